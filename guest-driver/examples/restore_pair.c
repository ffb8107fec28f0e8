// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * restore_pair: the owner of a region maps other memory there while writers on
 * other machines use its rkey.
 *
 *     owner:   restore_pair [OPTION]...
 *     writers: restore_pair [OPTION]... ADDRESS
 *
 * With a lease no write fails and no byte is lost. The two functions of the
 * handshake, answer() and obey(), are for other programs to copy:
 *
 *   thread that maps           thread of events                     writer
 *
 *   mmap() waits in the        event FAULTLINEDV_EVENT_LEASE
 *   kernel for an answer       STOP ──────────────────────────────▶ posts no more requests,
 *                                                                   waits for its completions
 *                              ◀─────────────────────────── STOPPED
 *   mmap() returns         ◀── faultlinedv_restore_mr()
 *                              GO ────────────────────────────────▶ writes by the same rkey
 *
 * Other modes show what happens without the handshake: with a fenced region
 * the write fails that reaches lost memory, and the connection is made anew;
 * an on-demand region follows the mapping, and writers learn nothing of it.
 *
 * The kernel also unmaps pages of a file for a moment when it wants to move or
 * to reclaim them (FAULTLINEDV_REASON_CLEAR). The owner answers this in the same
 * way.
 *
 * The region is one half of a file in memory, and in turn the other one. So the
 * owner sees both halves: each write is in the half that was mapped when it was
 * made, and none is in the other one.
 *
 * Build: cc -pthread restore_pair.c -lfaultline -libverbs
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/faultlinedv.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PORT 18640
#define MAX_WRITERS 8
/* Outstanding writes of a writer. */
#define DEPTH 4
/* Each writer's part of the region: neither begins nor ends with a page. */
#define PART_OFFSET 24
#define PART_LENGTH (3 * 4096 + 520)
#define PART_STRIDE (4 * 4096)
#define WORDS (PART_LENGTH / sizeof(uint64_t))

#define LEASE_MS 10000
/*
 * Changes wait for all regions of a user for at most 10 s in a minute; then
 * they do not wait. This program rests before that.
 */
#define LEASES_MS 7000
#define LEASES_PERIOD_S 61
/* A fence: time in which a writer meets the lost memory. */
#define PATIENCE_MS 1000
/* A change that takes as long is worth a message: a lease may have ended without an answer. */
#define SLOW_MS 1000

enum mode { MODE_LEASE, MODE_FENCE, MODE_ON_DEMAND };

static struct {
	enum mode mode;
	const char *device;
	int gid_index;
	unsigned int rounds;
	unsigned int writers;
} options = { .rounds = 100, .writers = 1 };

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("restore_pair: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	exit(1);
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

/* --- content of the memory ----------------------------------------------- */

/* Odd, so that each word has one origin; and each byte of a word depends on more than one part of it. */
#define MULTIPLIER 0x9e3779b97f4a7c15
/* MULTIPLIER * INVERSE = 1 (mod 2^64). */
#define INVERSE 0xf1de83e19937733d
#define MAX_GENERATION (UINT64_MAX >> 20)

/* The word at a place of a writer's part; `generation` is the number of the write, from 1. */
static uint64_t word_of(unsigned int writer, uint64_t generation, size_t index)
{
	return (generation << 20 | (uint64_t)writer << 16 | index) * MULTIPLIER;
}

/* The number of the write that has put a word here; 0 if none of this writer to this place has. */
static uint64_t generation_of(uint64_t word, unsigned int writer, size_t index)
{
	uint64_t origin = word * INVERSE;

	return (origin & 0xfffff) == ((uint64_t)writer << 16 | index) ? origin >> 20 : 0;
}

static void fill(uint64_t *part, unsigned int writer, uint64_t generation)
{
	for (size_t i = 0; i < WORDS; i++)
		part[i] = word_of(writer, generation, i);
}

/*
 * A part has the content of a write of `first` to `last`, or of several, and a
 * later one may have replaced the beginning of an earlier one.
 */
static void check_content(const uint64_t *part, unsigned int writer, uint64_t first, uint64_t last,
			  const char *when)
{
	uint64_t before = last;

	for (size_t i = 0; i < WORDS; i++) {
		uint64_t generation = generation_of(part[i], writer, i);

		if (generation < first || generation > before)
			die("%s: writer %u has wrong bytes at %zu: write %llu behind %llu, in place of %llu to %llu",
			    when, writer, i * sizeof(uint64_t), (unsigned long long)generation,
			    (unsigned long long)before, (unsigned long long)first,
			    (unsigned long long)last);
		before = generation;
	}
}

/* --- control connections ---------------------------------------------------- */

enum kind { ADDRESS = 1, REGION, STOP, STOPPED, GO, FAILED, END };

struct message {
	uint32_t kind;
	/* ADDRESS: the queue pair. REGION: the rkey. FAILED: the status. */
	uint32_t number;
	/* REGION: the address of the writer's part. STOPPED, FAILED: the number of its last complete write. */
	uint64_t value;
	/* ADDRESS. */
	union ibv_gid gid;
	/* REGION: which of the writers it is. */
	uint32_t writer;
	uint32_t mode;
};

static void send_message(int fd, const struct message *message)
{
	if (send(fd, message, sizeof(*message), MSG_NOSIGNAL) != sizeof(*message))
		die("the peer is gone");
}

static struct message receive_any(int fd)
{
	struct message message;

	if (recv(fd, &message, sizeof(message), MSG_WAITALL) != sizeof(message))
		die("the peer is gone");
	return message;
}

static struct message receive_message(int fd, enum kind kind)
{
	struct message message = receive_any(fd);

	if (message.kind != kind)
		die("message %u in place of %u, number %u", message.kind, kind, message.number);
	return message;
}

/* Without waiting: true if a message has come. */
static bool has_message(int fd)
{
	struct message message;
	ssize_t length = recv(fd, &message, sizeof(message), MSG_PEEK | MSG_DONTWAIT);

	if (!length || (length < 0 && errno != EAGAIN))
		die("the peer is gone");
	return length == sizeof(message);
}

/* --- queue pairs ---------------------------------------------------------------- */

struct endpoint {
	int fd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct message peer;
};

static struct ibv_context *context;
static struct ibv_pd *pd;

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *found = NULL;

	for (int i = 0; list && list[i] && !found; i++)
		if (!options.device || !strcmp(options.device, ibv_get_device_name(list[i])))
			found = list[i];
	if (!found || !faultlinedv_is_supported(found))
		die("there is no Faultline device %s", options.device ? options.device : "");
	context = ibv_open_device(found);
	ibv_free_device_list(list);
	pd = context ? ibv_alloc_pd(context) : NULL;
	if (!pd)
		die("cannot open the device: %m");
}

static void must_modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = ibv_modify_qp(qp, attr, mask);

	if (error)
		die("cannot move a queue pair to state %d: %s", attr->qp_state, strerror(error));
}

/* From any state to RTS, towards the known peer. */
static void connect_again(struct endpoint *end)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	must_modify(end->qp, &attr, IBV_QP_STATE);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	must_modify(end->qp, &attr,
		    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = end->peer.number, .min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1, .port_num = 1,
			.grh = { .dgid = end->peer.gid, .sgid_index = options.gid_index,
				 .hop_limit = 64 },
		},
	};
	must_modify(end->qp, &attr,
		    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
	};
	must_modify(end->qp, &attr,
		    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* A queue pair that is connected with the one of the peer. */
static void meet(struct endpoint *end, int fd)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
	};
	struct message own = { .kind = ADDRESS };
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	end->fd = fd;
	end->cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = end->cq;
	end->qp = end->cq ? ibv_create_qp(pd, &attr) : NULL;
	if (!end->qp)
		die("cannot create a queue pair: %m");
	if (ibv_query_gid(context, 1, options.gid_index, &own.gid))
		die("there is no GID %d", options.gid_index);
	own.number = end->qp->qp_num;
	send_message(fd, &own);
	end->peer = receive_message(fd, ADDRESS);
	connect_again(end);
}

/* --- the owner -------------------------------------------------------------------- */

struct writer {
	struct endpoint end;
	/* Its last write before it stopped: complete, or possibly begun. */
	uint64_t stopped_done;
	uint64_t stopped_begun;
	/* The same of the stop for the last change of the mapping. Not known if it is not asked. */
	uint64_t done;
	uint64_t begun;
};

static struct {
	struct writer writers[MAX_WRITERS];
	size_t length;
	int file;
	/* Where the region is, and both halves of the file. */
	uint8_t *region;
	uint8_t *halves[2];
	unsigned int mapped;
	struct ibv_mr *mr;
	struct faultlinedv_events *events;
	/* Of the thread that stops the writers. */
	pthread_mutex_t handshake;
	/* A change has been answered, and writers go on. */
	sem_t restored;
	bool is_over;
} owner = { .handshake = PTHREAD_MUTEX_INITIALIZER };

static const uint64_t *part_of(const uint8_t *memory, unsigned int writer)
{
	return (const void *)(memory + writer * PART_STRIDE + PART_OFFSET);
}

static void tell_all(enum kind kind)
{
	for (unsigned int i = 0; i < options.writers; i++)
		send_message(owner.writers[i].end.fd, &(struct message){ .kind = kind });
}

/* Stops a writer, unless it meets lost memory within `patience_ms`. Nothing of it is outstanding then. */
static void stop(struct writer *writer, int patience_ms)
{
	struct pollfd failure = { .fd = writer->end.fd, .events = POLLIN };
	struct message answer;

	if (!poll(&failure, 1, patience_ms))
		send_message(writer->end.fd, &(struct message){ .kind = STOP });
	answer = receive_any(writer->end.fd);
	if (answer.kind != STOPPED && answer.kind != FAILED)
		die("message %u after a stop", answer.kind);
	writer->stopped_done = answer.value;
	writer->stopped_begun = answer.value;
	if (answer.kind == STOPPED)
		return;
	if (answer.number != IBV_WC_REM_OP_ERR)
		die("a write ended with \"%s\"", ibv_wc_status_str(answer.number));
	writer->stopped_begun += DEPTH;
	connect_again(&writer->end);
}

static void stop_all(int patience_ms)
{
	for (unsigned int i = 0; i < options.writers; i++)
		stop(&owner.writers[i], patience_ms);
}

/* Returns true if the mapping changes, and false if pages only go for a moment. */
static bool is_change(const struct faultlinedv_event *event)
{
	const uint32_t expected = options.mode == MODE_LEASE ? FAULTLINEDV_EVENT_LEASE :
							       FAULTLINEDV_EVENT_MR;

	if (event->reason != FAULTLINEDV_REASON_UNMAP)
		return false;
	if (event->type != expected)
		die("event %u in place of %u: the change does not wait", event->type, expected);
	return true;
}

/* Without waiting: true if there is an event. */
static bool has_event(struct faultlinedv_event *event)
{
	struct pollfd events = { .fd = faultlinedv_events_fd(owner.events), .events = POLLIN };

	return poll(&events, 1, 0) > 0 && faultlinedv_read_events(owner.events, event, 1) == 1;
}

/*
 * The owner's part of the handshake. With a lease the change waits until the
 * region is restored; with a fence each writer meets the lost memory.
 */
static void answer(struct faultlinedv_event *event)
{
	bool changed = is_change(event), again;

	stop_all(changed && options.mode == MODE_FENCE ? PATIENCE_MS : 0);
	do {
		int error = faultlinedv_restore_mr(owner.mr);

		if (error)
			die("cannot restore the region: %s", strerror(error));
		/* Changes that have come meanwhile are answered before anybody writes. */
		again = has_event(event);
		if (again)
			changed |= is_change(event);
	} while (again);
	for (unsigned int i = 0; changed && i < options.writers; i++) {
		owner.writers[i].done = owner.writers[i].stopped_done;
		owner.writers[i].begun = owner.writers[i].stopped_begun;
	}
	tell_all(GO);
	if (changed)
		sem_post(&owner.restored);
}

static void *serve_events(void *unused)
{
	struct faultlinedv_event event;

	(void)unused;
	while (faultlinedv_read_events(owner.events, &event, 1) == 1) {
		pthread_mutex_lock(&owner.handshake);
		if (owner.is_over) {
			/* The memory may go: no writer is left. */
			faultlinedv_release_mr(owner.mr);
			pthread_mutex_unlock(&owner.handshake);
			return NULL;
		}
		answer(&event);
		pthread_mutex_unlock(&owner.handshake);
	}
	die("cannot read events: %m");
}

static void register_region(void)
{
	struct faultlinedv_mr_attr attr = {
		.mode = options.mode == MODE_LEASE ? FAULTLINEDV_MR_LEASE : FAULTLINEDV_MR_FENCE,
		.lease_ms = options.mode == MODE_LEASE ? LEASE_MS : 0,
	};
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	if (options.mode == MODE_ON_DEMAND) {
		owner.mr = ibv_reg_mr(pd, owner.region, owner.length, access | IBV_ACCESS_ON_DEMAND);
	} else {
		owner.events = attr.events = faultlinedv_create_events(context, 64);
		if (!owner.events)
			die("cannot create a queue of events: %m");
		owner.mr = faultlinedv_reg_mr(pd, owner.region, owner.length,
					      (uintptr_t)owner.region, access, &attr);
	}
	if (!owner.mr)
		die("cannot register: %m");
}

/* Maps one half of the file where the region is, in place of the other half. */
static void map_half(unsigned int half)
{
	if (mmap(owner.region, owner.length, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED | MAP_POPULATE, owner.file,
		 half * owner.length) != owner.region)
		die("cannot map: %m");
	owner.mapped = half;
}

static void make_memory(void)
{
	owner.length = options.writers * PART_STRIDE;
	owner.file = memfd_create("restore_pair", MFD_CLOEXEC);
	if (owner.file < 0 || ftruncate(owner.file, 2 * owner.length))
		die("cannot make a file in memory: %m");
	for (unsigned int half = 0; half < 2; half++) {
		owner.halves[half] = mmap(NULL, owner.length, PROT_READ | PROT_WRITE, MAP_SHARED,
					  owner.file, half * owner.length);
		if (owner.halves[half] == MAP_FAILED)
			die("cannot map: %m");
	}
	owner.region = mmap(NULL, owner.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (owner.region == MAP_FAILED)
		die("cannot reserve addresses: %m");
	map_half(0);
}

static void accept_writers(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (void *)&address, sizeof(address)) || listen(listener, MAX_WRITERS))
		die("cannot listen on port %d: %m", PORT);
	for (unsigned int i = 0; i < options.writers; i++) {
		struct message region = {
			.kind = REGION, .number = owner.mr->rkey, .writer = i,
			.mode = options.mode,
			.value = (uintptr_t)part_of(owner.region, i),
		};
		int fd = accept(listener, NULL, NULL);

		if (fd < 0)
			die("accept: %m");
		meet(&owner.writers[i].end, fd);
		owner.writers[i].done = 1;
		owner.writers[i].begun = MAX_GENERATION;
		send_message(fd, &region);
	}
	close(listener);
}

/* Waits until each writer has written to the mapped half after the last change, up to the end of its part. */
static void await_writes(void)
{
	for (unsigned int i = 0; i < options.writers; i++) {
		const volatile uint64_t *last = part_of(owner.region, i) + WORDS - 1;
		uint64_t before = *last;

		while (*last == before)
			usleep(100);
	}
}

/* One change of the mapping, and what must hold after it. Returns how long the change took. */
static uint64_t change(unsigned int round, uint8_t *left)
{
	unsigned int old = owner.mapped;
	uint64_t start = now_ms(), took;
	char when[32];

	snprintf(when, sizeof(when), "change %u, old memory", round);
	while (!sem_trywait(&owner.restored))
		;
	map_half(!old);
	took = now_ms() - start;
	if (took >= SLOW_MS)
		fprintf(stderr, "restore_pair: change %u has taken %llu ms\n", round,
			(unsigned long long)took);
	if (owner.events)
		while (sem_wait(&owner.restored))
			;
	for (unsigned int i = 0; i < options.writers; i++) {
		struct writer *writer = &owner.writers[i];

		check_content(part_of(owner.halves[old], i), i, writer->done, writer->begun, when);
	}
	memcpy(left, owner.halves[old], owner.length);
	/* A write that was under way during the change is in both halves, the next one is not. */
	await_writes();
	await_writes();
	if (memcmp(left, owner.halves[old], owner.length))
		die("round %u: the device has written to memory that is not mapped", round);
	return took;
}

static void own(void)
{
	uint64_t waited = 0, since = now_ms(), all = 0, longest = 0;
	pthread_t thread;
	uint8_t *left;

	make_memory();
	left = malloc(owner.length);
	register_region();
	sem_init(&owner.restored, 0, 0);
	accept_writers();
	/* The thread that answers leases must not wait for memory, also not for its stack. */
	if (options.mode == MODE_LEASE && mlockall(MCL_CURRENT | MCL_FUTURE))
		fputs("restore_pair: memory cannot be locked: a lease may end unanswered\n", stderr);
	if (owner.events && pthread_create(&thread, NULL, serve_events, NULL))
		die("cannot start a thread");
	await_writes();
	await_writes();
	for (unsigned int round = 0; round < options.rounds; round++) {
		uint64_t took;

		if (options.mode == MODE_LEASE && waited > LEASES_MS) {
			while (now_ms() < since + LEASES_PERIOD_S * 1000)
				sleep(1);
			since = now_ms();
			waited = 0;
		}
		took = change(round, left);
		waited += took;
		all += took;
		if (took > longest)
			longest = took;
	}
	pthread_mutex_lock(&owner.handshake);
	stop_all(0);
	for (unsigned int i = 0; i < options.writers; i++) {
		struct writer *writer = &owner.writers[i];

		check_content(part_of(owner.region, i), i, writer->stopped_done,
			      writer->stopped_begun, "at the end");
		printf("writer %u: %llu writes\n", i, (unsigned long long)writer->stopped_done);
	}
	/* The memory goes, and with it the thread of events: it reads one more. */
	owner.is_over = true;
	pthread_mutex_unlock(&owner.handshake);
	munmap(owner.region, owner.length);
	if (owner.events)
		pthread_join(thread, NULL);
	if (ibv_dereg_mr(owner.mr))
		die("cannot deregister");
	tell_all(END);
	printf("%u changes of the mapping, each in %.1f ms, the longest in %llu ms; no wrong byte\n"
	       "all right\n",
	       options.rounds, (double)all / options.rounds, (unsigned long long)longest);
}

/* --- writers ------------------------------------------------------------------------- */

static struct {
	struct endpoint end;
	struct message region;
	uint64_t buffers[DEPTH][WORDS];
	struct ibv_mr *mr;
	/* Writes that were posted, and that are complete. */
	uint64_t posted;
	uint64_t done;
	uint64_t failures;
	bool is_over;
} me;

static void post_write(void)
{
	uint64_t generation = ++me.posted;
	uint64_t *buffer = me.buffers[generation % DEPTH];
	struct ibv_sge sge = {
		.addr = (uintptr_t)buffer, .length = PART_LENGTH, .lkey = me.mr->lkey,
	};
	struct ibv_send_wr request = {
		.wr_id = generation, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = me.region.value, .rkey = me.region.number },
	}, *bad;
	int error;

	fill(buffer, me.region.writer, generation);
	error = ibv_post_send(me.end.qp, &request, &bad);
	if (error)
		die("cannot post a request: %s", strerror(error));
}

/* One completion, if there is one; returns its status. */
static enum ibv_wc_status complete(void)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(me.end.cq, 1, &wc);

	if (count < 0)
		die("cannot poll");
	if (!count)
		return IBV_WC_SUCCESS;
	if (wc.status == IBV_WC_SUCCESS)
		me.done = wc.wr_id;
	return wc.status;
}

/* Waits until the region is restored or gone. A stop may have crossed the failure of a write. */
static void await_go(void)
{
	struct message answer;

	do
		answer = receive_any(me.end.fd);
	while (answer.kind == STOP);
	me.is_over = answer.kind == END;
	if (answer.kind != GO && !me.is_over)
		die("message %u after a stop", answer.kind);
}

/* A write has failed: tells the owner, and goes on when the region is restored. */
static void fail(enum ibv_wc_status status)
{
	struct ibv_wc wc;

	if (me.region.mode != MODE_FENCE)
		die("write %llu failed: %s", (unsigned long long)me.done + 1, ibv_wc_status_str(status));
	/* The failed request and all behind it. */
	for (uint64_t rest = me.posted - me.done - 1; rest;)
		rest -= ibv_poll_cq(me.end.cq, 1, &wc) == 1;
	send_message(me.end.fd, &(struct message){ .kind = FAILED, .number = status, .value = me.done });
	await_go();
	if (me.is_over)
		return;
	connect_again(&me.end);
	me.posted = me.done + DEPTH;
	me.done = me.posted;
	me.failures++;
}

/* The writer's part of the handshake: stops when the owner asks for it, until the region is restored or gone. */
static void obey(void)
{
	receive_message(me.end.fd, STOP);
	while (me.done < me.posted) {
		enum ibv_wc_status status = complete();

		if (status != IBV_WC_SUCCESS) {
			fail(status);
			return;
		}
	}
	send_message(me.end.fd, &(struct message){ .kind = STOPPED, .value = me.done });
	await_go();
}

static int connect_to(const char *host)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
		die("%s is not an IPv4 address", host);
	if (connect(fd, (void *)&address, sizeof(address)))
		die("no owner answers at %s: %m", host);
	return fd;
}

static void write_to(const char *host)
{
	open_device();
	meet(&me.end, connect_to(host));
	me.region = receive_message(me.end.fd, REGION);
	me.mr = ibv_reg_mr(pd, me.buffers, sizeof(me.buffers), IBV_ACCESS_LOCAL_WRITE);
	if (!me.mr)
		die("cannot register: %m");
	while (!me.is_over) {
		enum ibv_wc_status status;

		if (has_message(me.end.fd))
			obey();
		else if (me.posted < me.done + DEPTH)
			post_write();
		status = complete();
		if (status != IBV_WC_SUCCESS)
			fail(status);
	}
	printf("writer %u: %llu writes, %llu failed\n", me.region.writer,
	       (unsigned long long)me.done, (unsigned long long)me.failures);
}

/* --------------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void usage(void)
{
	fputs("usage: restore_pair [-m lease|fence|on-demand] [-n CHANGES] [-w WRITERS]\n"
	      "                    [-d DEVICE] [-g GID-INDEX] [ADDRESS]\n"
	      "Without an address it owns the region, and -w is the number of writers on all\n"
	      "machines; with the owner's address it runs as many writers.\n",
	      stderr);
	exit(2);
}

static unsigned int number(const char *text, unsigned int most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (end == text || *end || !value || value > most)
		usage();
	return value;
}

static enum mode mode_of(const char *name)
{
	static const char *const names[] = { "lease", "fence", "on-demand" };

	for (unsigned int mode = 0; mode < 3; mode++)
		if (!strcmp(name, names[mode]))
			return mode;
	usage();
}

/* A process for each writer. */
static int run_writers(const char *host)
{
	int failed = 0, status;

	for (unsigned int i = 0; i < options.writers; i++) {
		pid_t child = fork();

		if (child < 0)
			die("fork: %m");
		if (!child) {
			write_to(host);
			exit(0);
		}
	}
	while (wait(&status) > 0)
		failed |= status;
	if (failed)
		return 1;
	puts("all right");
	return 0;
}

int main(int argc, char **argv)
{
	int option;

	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stderr, NULL, _IOLBF, 0);
	while ((option = getopt(argc, argv, "m:n:w:d:g:")) >= 0) {
		switch (option) {
		case 'm':
			options.mode = mode_of(optarg);
			break;
		case 'n':
			options.rounds = number(optarg, 1000000);
			break;
		case 'w':
			options.writers = number(optarg, MAX_WRITERS);
			break;
		case 'd':
			options.device = optarg;
			break;
		case 'g':
			options.gid_index = atoi(optarg);
			break;
		default:
			usage();
		}
	}
	if (argc > optind + 1)
		usage();
	if (argc > optind)
		return run_writers(argv[optind]);
	open_device();
	own();
	return 0;
}
