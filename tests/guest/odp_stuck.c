// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * odp_stuck DIRECTORY [xrc | contexts]: page faults and prefetches that take very long do not keep
 * another process's from being served. DIRECTORY is on a file system that can be frozen:
 * a page of a file there that is to be written waits until it thaws. With xrc the
 * faults are those of XRC targets, which belong to no process, and more of them
 * than the device has places for. With contexts they are of many contexts of one user, and
 * the other process is another user's. Runs in one guest.
 */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* More than there are faults served at once. */
#define STUCK 40
/* Faults that the device takes at once, and a larger number of targets. */
#define PLACES 1024
#define STUCK_TARGETS 1100
/* Without a limit for users, as many contexts could take all places: each can have half of the free ones. */
#define CONTEXTS 12
/* Of the neighbour, if it is another user. */
#define OTHER_UID 1000
#define PAGES 64
/* More than a work queue of Linux does at once. */
#define PREFETCHES 1100

struct pair {
	struct endpoint near;
	struct endpoint far;
	/* An XRC target instead of `far`, and a queue of its domain. */
	struct ibv_qp *target;
	uint32_t srqn;
};

static void pair_create(struct pair *pair, struct device *device)
{
	endpoint_create(&pair->near, device, 4, 4);
	endpoint_create(&pair->far, device, 4, 4);
	pair->near.peer = pair->far.own;
	pair->far.peer = pair->near.own;
	endpoint_start(&pair->near);
	endpoint_start(&pair->far);
}

struct domain {
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
};

static void domain_create(struct domain *domain, struct device *device)
{
	struct ibv_xrcd_init_attr xrcd = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = O_CREAT,
	};
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = 1, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_XRCD,
		.srq_type = IBV_SRQT_XRC,
		.pd = device->pd,
		.cq = ibv_create_cq(device->context, 1, NULL, NULL, 0),
	};

	domain->xrcd = ibv_open_xrcd(device->context, &xrcd);
	srq.xrcd = domain->xrcd;
	if (!domain->xrcd || !srq.cq)
		die("cannot make an XRC domain: %m");
	domain->srq = ibv_create_srq_ex(device->context, &srq);
	if (!domain->srq)
		die("cannot make a shared receive queue: %m");
}

static void pair_create_xrc(struct pair *pair, struct device *device, struct domain *domain)
{
	struct ibv_qp_init_attr_ex send = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = device->pd, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
	};
	struct ibv_qp_init_attr_ex receive = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = domain->xrcd,
	};
	struct ibv_cq *cq = ibv_create_cq(device->context, 1, NULL, NULL, 0);
	struct ibv_qp *qp;

	if (!cq)
		die("cannot create a completion queue: %m");
	send.send_cq = cq;
	send.recv_cq = cq;
	qp = ibv_create_qp_ex(device->context, &send);
	pair->target = ibv_create_qp_ex(device->context, &receive);
	if (!qp || !pair->target)
		die("cannot create XRC queue pairs: %m");
	endpoint_adopt(&pair->near, device, cq, qp);
	if (ibv_get_srq_num(domain->srq, &pair->srqn))
		die("a shared receive queue without a number");
	xrc_init(pair->target);
	xrc_listen(device, pair->target, qp->qp_num, true);
	xrc_init(qp);
	xrc_listen(device, qp, pair->target->qp_num, false);
	xrc_start(qp, false);
}

static void post_write_xrc(struct pair *pair, const struct ibv_mr *from, const struct ibv_mr *to,
			   size_t page)
{
	struct ibv_sge piece = { (uintptr_t)from->addr, 64, from->lkey };
	struct ibv_send_wr work = {
		.wr_id = page, .sg_list = &piece, .num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)to->addr + page * PAGE, .rkey = to->rkey },
		.qp_type.xrc.remote_srqn = pair->srqn,
	}, *bad;

	if (ibv_post_send(pair->near.qp, &work, &bad))
		die("cannot post to an XRC initiator");
}

static void post_write(struct pair *pair, const struct ibv_mr *from, const struct ibv_mr *to,
		       size_t page)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE,
		.id = page,
		.local = from->addr,
		.length = 64,
		.lkey = from->lkey,
		.remote = (uintptr_t)to->addr + page * PAGE,
		.rkey = to->rkey,
	};

	if (pair->target)
		post_write_xrc(pair, from, to, page);
	else
		endpoint_post(&pair->near, &request);
}

static int prefetch(const struct ibv_mr *mr, size_t page)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)mr->addr + page * PAGE,
		.length = PAGE,
		.lkey = mr->lkey,
	};

	return ibv_advise_mr(mr->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1);
}

static atomic_bool frozen;

/* Asks for pages that don't come, and so waits for them at last. */
static void *prefetch_run(void *argument)
{
	const struct ibv_mr *mr = argument;

	while (!frozen)
		sleep_ms(10);
	for (size_t i = 0; i < PREFETCHES; i++)
		if (prefetch(mr, i % STUCK))
			die("cannot prefetch: %m");
	return NULL;
}

/* Another process: its pages come while those of the first don't. */
static int neighbour(int go, int fs, bool other)
{
	struct ibv_mr *from, *to;
	struct device device;
	struct pair pair;
	uint8_t *memory;
	struct ibv_wc wc;
	uint64_t start;
	bool good = true;
	char byte;

	if (read(go, &byte, 1) != 1)
		return 1;
	if (other && setresuid(OTHER_UID, OTHER_UID, 0))
		die("cannot become another user: %m");
	device_open(&device);
	pair_create(&pair, &device);
	memory = anonymous(PAGES * PAGE);
	from = region(&device, anonymous(PAGE), PAGE, false);
	to = region(&device, memory, PAGES * PAGE, true);
	content_fill(from->addr, content_key(1, 0, 0), 0, 64);
	start = now_ms();
	for (size_t page = 0; page < PAGES && good; page++) {
		post_write(&pair, from, to, page);
		good = endpoint_wait(&pair.near, &wc, 10000) && wc.status == IBV_WC_SUCCESS &&
		       !content_wrong(memory + page * PAGE, content_key(1, 0, 0), 0, 64);
	}
	say("%d pages of a neighbour: %s after %llu ms", PAGES, good ? "there" : "NOT THERE",
	    (unsigned long long)(now_ms() - start));
	/* A prefetch that waits for its turn would hold the region. */
	start = now_ms();
	if (prefetch(to, 0) || ibv_dereg_mr(to))
		die("cannot prefetch or deregister: %m");
	say("prefetched and deregistered after %llu ms", (unsigned long long)(now_ms() - start));
	if (other && setresuid(0, 0, 0))
		die("cannot become root again: %m");
	/* The stuck process can't do this: its address space must not change. */
	if (ioctl(fs, FITHAW, 0))
		say("cannot thaw: %m");
	return !good;
}

/* A context of the stuck process, with its regions. */
struct context {
	struct device device;
	struct domain domain;
	struct ibv_mr *from;
	struct ibv_mr *to;
};

static void context_open(struct context *context, uint8_t *memory, size_t size, bool xrc)
{
	device_open(&context->device);
	device_needs_odp(&context->device, false);
	context->from = region(&context->device, anonymous(PAGE), PAGE, false);
	content_fill(context->from->addr, content_key(2, 0, 0), 0, 64);
	context->to = region(&context->device, memory, size, true);
	if (xrc)
		domain_create(&context->domain, &context->device);
}

/* The context of a target. Each has some more than half of the rest. */
static size_t context_of(size_t target, size_t contexts)
{
	size_t context = 0, first = 0, rest = STUCK_TARGETS;

	while (context + 1 < contexts) {
		size_t own = rest / 2 + 4;

		if (target < first + own)
			break;
		first += own;
		rest -= own;
		context++;
	}
	return context;
}

int main(int argc, char **argv)
{
	static struct pair pairs[STUCK_TARGETS];
	static struct context opened[CONTEXTS];
	bool many = argc == 3 && !strcmp(argv[2], "contexts");
	bool xrc = many || (argc == 3 && !strcmp(argv[2], "xrc"));
	size_t stuck = xrc ? STUCK_TARGETS : STUCK;
	size_t contexts = many ? CONTEXTS : 1;
	struct device *device = &opened[0].device;
	struct ibv_wc wc;
	uint8_t *memory;
	char name[256];
	int go[2], fs, file, status;
	long least = many ? PLACES / 2 + 1 : xrc ? STUCK_TARGETS / 4 : STUCK;
	long faults, waiting = 0;
	pthread_t thread;
	pid_t pid;

	if (argc != 2 && !xrc)
		die("usage: odp_stuck DIRECTORY [xrc | contexts]");
	fs = open(argv[1], O_RDONLY | O_DIRECTORY);
	snprintf(name, sizeof(name), "%s/odp_stuck.%d", argv[1], getpid());
	file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fs < 0 || file < 0 || unlink(name) || ftruncate(file, stuck * PAGE))
		die("cannot make %s: %m", name);
	if (pipe(go))
		die("cannot make a pipe: %m");
	pid = fork();
	if (pid < 0)
		die("cannot fork: %m");
	if (!pid)
		_exit(neighbour(go[0], fs, many));

	memory = mmap(NULL, stuck * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		die("cannot map %s: %m", name);
	for (size_t i = 0; i < contexts; i++)
		context_open(&opened[i], memory, stuck * PAGE, xrc);
	for (size_t i = 0; i < stuck; i++) {
		struct context *of = &opened[context_of(i, contexts)];

		if (xrc)
			pair_create_xrc(&pairs[i], &of->device, &of->domain);
		else
			pair_create(&pairs[i], &of->device);
	}
	/* Now: a thread needs a stack, and a process that is stuck gets no more memory. */
	if (pthread_create(&thread, NULL, prefetch_run, opened[0].to))
		die("cannot start a thread");
	faults = device_counter(device, "page_faults");
	if (ioctl(fs, FIFREEZE, 0))
		die("cannot freeze %s: %m", argv[1]);
	for (size_t i = 0; i < stuck; i++) {
		struct context *of = &opened[context_of(i, contexts)];

		post_write(&pairs[i], of->from, of->to, i);
	}
	for (int i = 0; i < 200 && waiting < least; i++) {
		sleep_ms(100);
		waiting = device_counter(device, "page_faults") - faults;
	}
	/* For those beyond a limit. */
	sleep_ms(1000);
	for (size_t i = 0; i < stuck; i++)
		if (endpoint_wait(&pairs[i].near, &wc, 0))
			die("write %zu did not have to wait: %s", i, ibv_wc_status_str(wc.status));
	waiting = device_counter(device, "page_faults") - faults;
	/* Targets have what one context, or one user, gets of the device's places; the others wait for one of these. */
	say("%ld faults wait", waiting);
	if (many && waiting > PLACES * 3 / 4)
		die("one user has %ld of %d places", waiting, PLACES);
	if (waiting < least)
		die("only %ld faults", waiting);
	frozen = true;
	sleep_ms(1000);
	if (write(go[1], "", 1) != 1)
		die("cannot write to a pipe: %m");
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die("cannot wait: %m");
	pthread_join(thread, NULL);
	for (size_t i = 0; i < stuck; i++) {
		if (!endpoint_wait(&pairs[i].near, &wc, 10000) || wc.status != IBV_WC_SUCCESS)
			die("write %zu does not come through", i);
		if (content_wrong(memory + i * PAGE, content_key(2, 0, 0), 0, 64))
			die("write %zu has other data", i);
	}
	if (status)
		die("the neighbour had to wait");
	puts("PASS");
	return 0;
}
