// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * odp_oversubscribe: RDMA over a region many times the size of the guest's memory.
 *
 * The server maps the region, has it registered on demand by a user who may
 * lock next to nothing, and lets the client write all of it and read it back.
 * Both compute the SHA-256 of the region. The same region cannot be
 * registered pinned, which is shown first.
 */
#include "common.h"

#include <errno.h>
#include <linux/if_alg.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNK (64 * PAGE)
#define DEPTH 4
/* Default limit of memory that an ordinary user may lock. */
#define MEMLOCK (8UL << 20)
#define NOBODY 65534
/* Swapping in the pages of a READ may take a while. */
#define TIMEOUT_MS 120000

struct deal {
	uint64_t remote;
	uint64_t length;
	uint64_t seed;
	uint32_t rkey;
	uint32_t reserved;
};

static uint64_t option_seed = 1;
/* How many times the guest's memory the region must have at least. */
static unsigned int times = 10;
/* For rdma_rxe, which ignores the offset into an on-demand page: one packet at each page's start. */
static bool aligned;

/* The kernel's SHA-256 of a stream: it hashes the data that is sent to the socket. */
static int sha256_begin(void)
{
	struct sockaddr_alg address = {
		.salg_family = AF_ALG, .salg_type = "hash", .salg_name = "sha256",
	};
	int algorithm = socket(AF_ALG, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), stream;

	if (algorithm < 0 || bind(algorithm, (void *)&address, sizeof(address)))
		die("the kernel has no SHA-256: %m");
	stream = accept(algorithm, NULL, NULL);
	if (stream < 0)
		die("SHA-256: %m");
	close(algorithm);
	return stream;
}

static void sha256_add(int stream, const void *data, size_t length)
{
	if (send(stream, data, length, MSG_MORE) != (ssize_t)length)
		die("SHA-256 of %zu bytes: %m", length);
}

struct sha256 {
	uint8_t byte[32];
};

static struct sha256 sha256_end(int stream)
{
	struct sha256 sum;

	if (read(stream, &sum, sizeof(sum)) != sizeof(sum))
		die("SHA-256: %m");
	close(stream);
	return sum;
}

/* In hexadecimal, in one buffer for all. */
static const char *sha256_text(const struct sha256 *sum)
{
	static char text[2 * sizeof(*sum) + 1];

	for (size_t i = 0; i < sizeof(sum->byte); i++)
		sprintf(text + 2 * i, "%02x", sum->byte[i]);
	return text;
}

/* The pieces that are written and read: all of it, or the beginning of each page. */
static uint32_t piece_length(void)
{
	return aligned ? 1024 : CHUNK;
}

static uint64_t piece_step(void)
{
	return aligned ? PAGE : CHUNK;
}

/* Without privileges and with an ordinary user's limit, as in the debate about pinning. */
static struct ibv_mr *register_as_user(struct device *device, void *memory, size_t length,
				       bool on_demand, int *error)
{
	struct ibv_mr *mr;

	if (seteuid(NOBODY))
		die("seteuid: %m");
	errno = 0;
	mr = ibv_reg_mr(device->pd, memory, length,
			ALL_ACCESS | (on_demand ? IBV_ACCESS_ON_DEMAND : 0));
	*error = errno;
	if (seteuid(0))
		die("seteuid: %m");
	return mr;
}

static struct sha256 sum_memory(const uint8_t *memory, uint64_t length)
{
	int stream = sha256_begin();

	for (uint64_t at = 0; at < length; at += piece_step())
		sha256_add(stream, memory + at, piece_length());
	return sha256_end(stream);
}

static int serve(uint64_t length, uint16_t port)
{
	struct rlimit limit = { MEMLOCK, MEMLOCK };
	long total = status_kib("/proc/meminfo", "MemTotal");
	uint64_t killed = vmstat("oom_kill"), out = vmstat("pswpout"), in = vmstat("pswpin");
	int log = kmsg_open(), link, error;
	struct sha256 sum, theirs;
	struct device device;
	struct endpoint end;
	struct ibv_mr *mr;
	struct deal deal;
	int64_t pinned;
	uint8_t *memory;
	char byte = 0;

	device_open(&device);
	device_needs_odp(&device, false);
	if (length < (uint64_t)times * total * 1024)
		die("%" PRIu64 " MiB are less than %u times this guest's %ld MiB", length >> 20,
		    times, total >> 10);
	if (setrlimit(RLIMIT_MEMLOCK, &limit))
		die("setrlimit: %m");
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED)
		die("cannot map %" PRIu64 " MiB: %m", length >> 20);
	say("region %" PRIu64 " MiB, memory %ld MiB, swap %ld MiB, limit on locked memory %lu MiB",
	    length >> 20, total >> 10, status_kib("/proc/meminfo", "SwapTotal") >> 10,
	    MEMLOCK >> 20);

	mr = register_as_user(&device, memory, length, false, &error);
	if (mr)
		die("a pinned region of that size was accepted");
	if (error != ENOMEM && error != EPERM)
		die("a pinned region of that size gives %s", strerror(error));
	say("pinned: refused (%s)", strerror(error));
	endpoint_create(&end, &device, 1, 1);
	pinned = pinned_pages();
	mr = register_as_user(&device, memory, length, true, &error);
	if (!mr)
		die("on demand: refused (%s)", strerror(error));
	pinned = pinned_pages() - pinned;
	say("on demand: accepted; pinned pages %lld, locked memory of the process %ld KiB",
	    (long long)pinned, status_kib("/proc/self/status", "VmPin"));
	if (pinned)
		die("the region on demand has pinned memory");

	link = accept_from(listen_on(port));
	deal.remote = (uintptr_t)memory;
	deal.length = length;
	deal.seed = option_seed;
	deal.rkey = mr->rkey;
	deal.reserved = aligned;
	send_all(link, &deal, sizeof(deal));
	endpoint_meet(&end, link);
	endpoint_start(&end);
	send_all(link, &byte, 1);

	/* The client has written and read everything; now this side looks, with the CPU. */
	receive_all(link, &theirs, sizeof(theirs));
	sum = sum_memory(memory, length);
	error = memcmp(&sum, &theirs, sizeof(sum));
	say("sha256 %s: %s", sha256_text(&sum),
	    error ? "DIFFERS from the client's" : "the same as the client's");
	out = vmstat("pswpout") - out;
	in = vmstat("pswpin") - in;
	killed = vmstat("oom_kill") - killed;
	say("pages swapped out %" PRIu64 ", in %" PRIu64 "; resident %ld MiB; processes killed for memory %" PRIu64,
	    out, in, status_kib("/proc/self/status", "VmRSS") >> 10, killed);
	byte = error || killed || out < (length >> 12) / 2 || kmsg_complaints(log) > 0;
	if (out < (length >> 12) / 2)
		say("too little was swapped for a test of this");
	if (ibv_dereg_mr(mr))
		die("cannot deregister: %m");
	try_send(link, &byte, 1);
	say("%s", byte ? "FAILED" : "all right");
	return byte;
}

/* Moves the whole region in one direction; DEPTH pieces are under way at a time. */
static struct sha256 transfer(struct endpoint *end, const struct deal *deal,
			      const struct ibv_mr *mr, uint8_t *buffers, bool write)
{
	uint64_t key = content_key(deal->seed, 0, 0), count = deal->length / piece_step();
	uint64_t posted = 0, done = 0, shown = now_ms(), started = shown;
	int sum = sha256_begin();

	while (done < count) {
		struct ibv_wc wc;
		uint8_t *at;

		while (posted < count && posted < done + DEPTH) {
			struct request request = {
				.opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
				.id = posted,
				.local = buffers + posted % DEPTH * CHUNK,
				.length = piece_length(),
				.lkey = mr->lkey,
				.remote = deal->remote + posted * piece_step(),
				.rkey = deal->rkey,
			};

			if (write) {
				content_fill(request.local, key, posted * piece_step(),
					     request.length);
				sha256_add(sum, request.local, request.length);
			} else {
				memset(request.local, 0, request.length);
			}
			endpoint_post(end, &request);
			posted++;
		}
		if (!endpoint_wait(end, &wc, TIMEOUT_MS))
			die("piece %" PRIu64 " of %" PRIu64 " does not complete", done, count);
		if (wc.status != IBV_WC_SUCCESS)
			die("piece %" PRIu64 " of %" PRIu64 ": %s", (uint64_t)wc.wr_id, count,
			    ibv_wc_status_str(wc.status));
		if (wc.wr_id != done)
			die("piece %" PRIu64 " completed when %" PRIu64 " was due",
			    (uint64_t)wc.wr_id, done);
		at = buffers + done % DEPTH * CHUNK;
		if (!write) {
			size_t wrong = content_wrong(at, key, done * piece_step(), piece_length());

			if (wrong)
				die("%zu of %u bytes at %#" PRIx64 " are wrong", wrong,
				    piece_length(), done * piece_step());
			sha256_add(sum, at, piece_length());
		}
		done++;
		if (now_ms() - shown > 15000) {
			shown = now_ms();
			say("%s %" PRIu64 " of %" PRIu64 " MiB", write ? "written" : "read",
			    done * piece_step() >> 20, deal->length >> 20);
		}
	}
	say("%s %" PRIu64 " MiB in %.1f s", write ? "written" : "read", deal->length >> 20,
	    (now_ms() - started) / 1000.0);
	return sha256_end(sum);
}

static int drive(const char *host, uint16_t port)
{
	int link = connect_to(host, port, SERVER_FILLS_MS);
	struct sha256 written, read;
	struct device device;
	struct endpoint end;
	struct deal deal;
	struct ibv_mr *mr;
	uint8_t *buffers;
	char byte;

	if (link < 0)
		die("no server listens at %s:%u", host, port);
	device_open(&device);
	receive_all(link, &deal, sizeof(deal));
	aligned = deal.reserved;
	buffers = anonymous(DEPTH * CHUNK);
	mr = region(&device, buffers, DEPTH * CHUNK, false);
	endpoint_create(&end, &device, DEPTH, 1);
	endpoint_meet(&end, link);
	endpoint_start(&end);
	receive_all(link, &byte, 1);
	written = transfer(&end, &deal, mr, buffers, true);
	read = transfer(&end, &deal, mr, buffers, false);
	if (memcmp(&written, &read, sizeof(written)))
		die("what was read is not what was written");
	say("sha256 %s written and read", sha256_text(&read));
	send_all(link, &read, sizeof(read));
	receive_all(link, &byte, 1);
	if (byte)
		die("the server has failed");
	say("all right");
	return 0;
}

int main(int argc, char **argv)
{
	static const struct option words[] = {
		{ "mib", required_argument, NULL, 'm' },
		{ "seed", required_argument, NULL, 's' },
		{ "port", required_argument, NULL, 'p' },
		{ "times", required_argument, NULL, 't' },
		{ "aligned", no_argument, NULL, 'a' },
		{ NULL, 0, NULL, 0 },
	};
	uint64_t mib = 0;
	uint16_t port = 18610;
	int option;

	while ((option = getopt_long(argc, argv, "", words, NULL)) >= 0) {
		switch (option) {
		case 'm':
			mib = strtoull(optarg, NULL, 0);
			break;
		case 's':
			option_seed = strtoull(optarg, NULL, 0);
			break;
		case 'p':
			port = strtoul(optarg, NULL, 0);
			break;
		case 't':
			times = strtoul(optarg, NULL, 0);
			break;
		case 'a':
			aligned = true;
			break;
		default:
			fprintf(stderr,
				"odp_oversubscribe --mib N [--times N] [--seed N] [--aligned]\n"
				"    the server, with a region of N MiB, at least N times (10) its memory\n"
				"odp_oversubscribe <address>\n"
				"    the client\n");
			return 2;
		}
	}
	return optind < argc ? drive(argv[optind], port) : serve(mib << 20, port);
}
