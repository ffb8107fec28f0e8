// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * two_reads: what a READ costs that is posted while its queue pair waits for
 * an absent page of the peer. The page of the first READ is absent, and the
 * responder refuses it with RNR NAKs until the page is present. The second READ,
 * of the next page, is posted while the requester waits for the timer of such
 * an RNR NAK.
 *
 *	two_reads			owns the memory
 *	two_reads HOST MIN_MS MAX_MS	reads; fails unless the second READ
 *					takes MIN_MS to MAX_MS
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "common.h"

#define PORT 18620
#define READS 2
#define LENGTH (READS * PAGE)
/*
 * Until the second READ is posted. The page must be absent for longer: the
 * scenario delays its fault record.
 */
#define GAP_MS 100
/* Longer than all retries. */
#define TIMEOUT_MS 20000

/* Message of the memory's owner to the other guest, in its own byte order. */
struct memory {
	uint64_t address;
	uint32_t rkey;
};

static void own(void)
{
	struct endpoint end = {};
	struct memory memory = {};
	struct device device;
	struct ibv_mr *mr;
	uint8_t *pages;
	char done;
	int fd;

	device_open(&device);
	device_needs_odp(&device, false);
	endpoint_create(&end, &device, 1, 1);
	pages = anonymous(LENGTH);
	/* Each page is absent by itself. */
	madvise(pages, LENGTH, MADV_NOHUGEPAGE);
	mr = region(&device, pages, LENGTH, true);
	memory.address = (uintptr_t)pages;
	memory.rkey = mr->rkey;
	fd = accept_from(listen_on(PORT));
	endpoint_meet(&end, fd);
	endpoint_start(&end);
	send_all(fd, &memory, sizeof(memory));
	receive_all(fd, &done, 1);
	endpoint_destroy(&end);
	WANT(!ibv_dereg_mr(mr));
}

static void post(struct endpoint *end, unsigned int page, uint8_t *into, uint32_t lkey,
		 const struct memory *memory)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_READ,
		.id = page,
		.local = into + page * PAGE,
		.length = PAGE,
		.lkey = lkey,
		.remote = memory->address + page * PAGE,
		.rkey = memory->rkey,
		.flags = IBV_SEND_SIGNALED,
	};

	endpoint_post(end, &request);
}

/* Posts both READs. Returns how long the second one takes. */
static uint64_t both(struct endpoint *end, uint8_t *into, uint32_t lkey,
		     const struct memory *memory)
{
	uint64_t posted[READS], took = 0;

	for (unsigned int page = 0; page < READS; page++) {
		if (page)
			sleep_ms(GAP_MS);
		posted[page] = now_ms();
		post(end, page, into, lkey, memory);
	}
	for (unsigned int page = 0; page < READS; page++) {
		struct ibv_wc wc;

		if (!endpoint_wait(end, &wc, TIMEOUT_MS))
			die("READ %u has not completed after %d ms", page, TIMEOUT_MS);
		if (wc.status || wc.wr_id != page)
			die("READ %u: %s", page, ibv_wc_status_str(wc.status));
		took = now_ms() - posted[page];
		say("READ %u takes %" PRIu64 " ms", page, took);
	}
	return took;
}

static void use(const char *host, uint64_t min_ms, uint64_t max_ms)
{
	struct endpoint end = {};
	struct memory memory;
	struct device device;
	struct ibv_mr *mr;
	uint8_t *into;
	uint64_t took;
	int fd;

	device_open(&device);
	into = anonymous(LENGTH);
	memset(into, 0xa5, LENGTH);
	mr = region(&device, into, LENGTH, false);
	endpoint_create(&end, &device, READS, 1);
	fd = connect_to(host, PORT, 20000);
	if (fd < 0)
		die("%s does not answer", host);
	endpoint_meet(&end, fd);
	endpoint_start(&end);
	receive_all(fd, &memory, sizeof(memory));
	took = both(&end, into, mr->lkey, &memory);
	for (size_t i = 0; i < LENGTH; i++)
		WANT(!into[i]);
	send_all(fd, "", 1);
	if (took < min_ms || took > max_ms)
		die("READ 1 takes %" PRIu64 " ms; expected %" PRIu64 " to %" PRIu64 " ms", took,
		    min_ms, max_ms);
	endpoint_destroy(&end);
	WANT(!ibv_dereg_mr(mr));
}

/* A number of milliseconds of the command line. */
static uint64_t milliseconds(const char *text)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end)
		die("%s is not a number of milliseconds", text);
	return value;
}

int main(int argc, char **argv)
{
	if (argc == 1) {
		own();
	} else if (argc == 4) {
		use(argv[1], milliseconds(argv[2]), milliseconds(argv[3]));
	} else {
		fprintf(stderr, "usage: two_reads [HOST MIN_MS MAX_MS]\n");
		return 2;
	}
	return 0;
}
