// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * hostile_process: what a process may ask of the driver that no library does,
 * and what it must not get by it. Runs in one guest.
 */
#include "parts.h"
#include "watched.h"

#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <sys/syscall.h>

#define HUGE_PAGE (2UL << 20)

/* Parts of implicit regions are counted. */
static bool counts;

/* --- a shared receive queue that two threads resize at once ------------------ */

#define RING (4 * PAGE)
#define RESIZES 600
#define SRQS 10

/* MODIFY_SRQ with the driver's part, as rdma-core's provider fills it in. */
struct resize {
	struct ib_uverbs_cmd_hdr header;
	struct ib_uverbs_modify_srq core;
	uint64_t buf_addr;
	uint8_t log_depth;
	uint8_t reserved[7];
};

struct resizer {
	struct ibv_srq *srq;
	pthread_barrier_t *start;
	unsigned int done;
	pthread_t thread;
};

static void *resize(void *argument)
{
	struct resizer *me = argument;
	uint8_t *rings = anonymous(2 * RING);

	pthread_barrier_wait(me->start);
	for (unsigned int i = 0; i < RESIZES; i++) {
		struct resize command = {
			.header = { .command = IB_USER_VERBS_CMD_MODIFY_SRQ,
				    .in_words = sizeof(command) / 4 },
			.core = { .srq_handle = me->srq->handle, .attr_mask = IBV_SRQ_MAX_WR,
				  .max_wr = 16 },
			.buf_addr = (uintptr_t)rings + i % 2 * RING,
			.log_depth = 4,
		};

		if (write(me->srq->context->cmd_fd, &command, sizeof(command)) == sizeof(command))
			me->done++;
	}
	munmap(rings, 2 * RING);
	return NULL;
}

/* Each ring is released once: the pages that are pinned for this process tell. */
static void test_resizes(struct device *device)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	long before = status_kib("/proc/self/status", "VmPin");
	unsigned int done = 0;

	for (unsigned int i = 0; i < SRQS; i++) {
		struct ibv_srq *srq = ibv_create_srq(device->pd, &attr);
		struct resizer resizers[2];
		pthread_barrier_t start;

		WANT(srq);
		WANT(!pthread_barrier_init(&start, NULL, 2));
		for (int n = 0; n < 2; n++) {
			resizers[n] = (struct resizer) { .srq = srq, .start = &start };
			WANT(!pthread_create(&resizers[n].thread, NULL, resize, &resizers[n]));
		}
		for (int n = 0; n < 2; n++) {
			WANT(!pthread_join(resizers[n].thread, NULL));
			done += resizers[n].done;
		}
		WANT(!ibv_destroy_srq(srq));
	}
	WANT(done == 2 * RESIZES * SRQS);
	WANT(before >= 0);
	if (status_kib("/proc/self/status", "VmPin") != before)
		die("%ld KiB are pinned, before it were %ld",
		    status_kib("/proc/self/status", "VmPin"), before);
	say("a queue that two threads resize releases each ring once");
}

/* --- a completion queue whose size is said in more bits than it has --------------- */

/* CREATE_CQ and RESIZE_CQ with the driver's part. */
struct make_cq {
	struct ib_uverbs_cmd_hdr header;
	struct ib_uverbs_create_cq core;
	uint64_t buf_addr;
	uint32_t log_depth;
	uint32_t reserved;
};

struct resize_cq {
	struct ib_uverbs_cmd_hdr header;
	struct ib_uverbs_resize_cq core;
	uint64_t buf_addr;
	uint32_t log_depth;
	uint32_t consumer;
};

static void test_cq_depth(struct device *device)
{
	uint8_t *ring = anonymous(2 * PAGE);
	uint8_t answer[64];
	struct ibv_cq *cq = ibv_create_cq(device->context, 16, NULL, NULL, 0);
	struct make_cq make = {
		.header = { .command = IB_USER_VERBS_CMD_CREATE_CQ,
			    .in_words = sizeof(make) / 4, .out_words = sizeof(answer) / 4 },
		.core = { .response = (uintptr_t)answer, .cqe = 16, .comp_channel = -1 },
		.buf_addr = (uintptr_t)ring,
		/* 4 in its lowest byte. */
		.log_depth = 0x104,
	};
	struct resize_cq resize = {
		.header = { .command = IB_USER_VERBS_CMD_RESIZE_CQ,
			    .in_words = sizeof(resize) / 4, .out_words = sizeof(answer) / 4 },
		.core = { .response = (uintptr_t)answer, .cqe = 16 },
		.buf_addr = (uintptr_t)ring,
		.log_depth = 0x104,
	};

	WANT(cq);
	resize.core.cq_handle = cq->handle;
	if (write(device->context->cmd_fd, &make, sizeof(make)) != -1 || errno != EINVAL)
		die("a completion queue of 2^260 entries is made, or refused with %m");
	if (write(device->context->cmd_fd, &resize, sizeof(resize)) != -1 || errno != EINVAL)
		die("a completion queue of 2^260 entries is resized to, or refused with %m");
	/* So it is the size that is refused. */
	resize.log_depth = 4;
	if (write(device->context->cmd_fd, &resize, sizeof(resize)) != sizeof(resize))
		die("cannot resize a completion queue by hand: %m");
	WANT(!ibv_destroy_cq(cq));
	munmap(ring, 2 * PAGE);
	say("the size of a completion queue is taken in all its bits");
}

/* --- a region with the hint of huge pages -------------------------------------- */

#define PAGES 513

/* The only page that is there is found where it is, and nowhere else. */
static void test_huge(struct device *device, struct loop *loop)
{
	uint8_t *mapped = mmap(NULL, (PAGES + 1) * HUGE_PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint8_t *at = (uint8_t *)(((uintptr_t)mapped + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	uint8_t *buffer = anonymous(PAGE);
	struct ibv_mr *mr, *own = region(device, buffer, PAGE, false);
	uint64_t key = content_key(8, 0, 0);

	WANT(mapped != MAP_FAILED && !madvise(at, PAGES * HUGE_PAGE, MADV_HUGEPAGE));
	content_fill(at + HUGE_PAGE, key, 0, HUGE_PAGE);
	mr = ibv_reg_mr(device->pd, at, PAGES * HUGE_PAGE,
			ALL_ACCESS | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB);
	if (!mr)
		die("cannot register: %m");
	for (int round = 0; round < 2; round++) {
		/* Far behind it nothing was ever written. */
		WANT(loop_do(loop, IBV_WR_RDMA_READ, buffer, PAGE, own->lkey,
			     at + 512 * HUGE_PAGE, mr->rkey) == IBV_WC_SUCCESS);
		for (size_t i = 0; i < PAGE; i++)
			WANT(!buffer[i]);
		WANT(loop_do(loop, IBV_WR_RDMA_READ, buffer, PAGE, own->lkey,
			     at + HUGE_PAGE + PAGE, mr->rkey) == IBV_WC_SUCCESS);
		if (round == 0) {
			WANT(!content_wrong(buffer, key, PAGE, PAGE));
			/* What the process gives back is not the device's either. */
			WANT(!madvise(at + HUGE_PAGE, HUGE_PAGE, MADV_DONTNEED));
			continue;
		}
		for (size_t i = 0; i < PAGE; i++)
			WANT(!buffer[i]);
	}
	content_fill(buffer, key, 0, PAGE);
	WANT(loop_do(loop, IBV_WR_RDMA_WRITE, buffer, PAGE, own->lkey, at + 512 * HUGE_PAGE,
		     mr->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(at + 512 * HUGE_PAGE, key, 0, PAGE));
	for (size_t i = 0; i < HUGE_PAGE; i++)
		WANT(!at[HUGE_PAGE + i]);
	WANT(!ibv_dereg_mr(mr) && !ibv_dereg_mr(own));
	munmap(mapped, (PAGES + 1) * HUGE_PAGE);
	munmap(buffer, PAGE);
	say("a region with the hint of huge pages has each where it is");
}

/* --- a prefetch of reserved memory ------------------------------------------------ */

#define RESERVED (64UL << 30)

static void test_prefetch(struct device *device)
{
	uint8_t *at = mmap(NULL, RESERVED, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			   -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(device->pd, NULL, SIZE_MAX,
				       ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	struct ibv_sge parts[RESERVED >> 31];
	struct parts before = { 0, 0 };

	WANT(at != MAP_FAILED && mr);
	for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
		parts[i] = (struct ibv_sge) { (uintptr_t)at + (i << 31), 1U << 31, mr->lkey };
	if (counts)
		before = parts_now();
	WANT(!ibv_advise_mr(device->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
			    IBV_ADVISE_MR_FLAG_FLUSH, parts, ARRAY_SIZE(parts)));
	if (counts && parts_made(&before))
		die("a prefetch of reserved memory makes %ld parts", parts_made(&before));
	WANT(!ibv_dereg_mr(mr));
	munmap(at, RESERVED);
	say("a prefetch of reserved memory takes no memory");
}

/* --- an implicit region over what comes and goes ------------------------------------ */

#define VISITS 1500
#define LEFT 1500
/* A page of a piece of 2 MiB, for the device. */
static void visit(struct device *device, const struct ibv_mr *mr, uint8_t *page)
{
	struct ibv_sge part = { (uintptr_t)page, PAGE, mr->lkey };

	WANT(!mprotect(page, PAGE, PROT_READ | PROT_WRITE));
	WANT(!ibv_advise_mr(device->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
			    IBV_ADVISE_MR_FLAG_FLUSH, &part, 1));
}

static uint8_t *reserve(size_t pieces)
{
	uint8_t *at = mmap(NULL, pieces * HUGE_PAGE, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	WANT(at != MAP_FAILED);
	return at;
}

static void visit_all(struct device *device, const struct ibv_mr *mr)
{
	uint8_t *at = reserve(VISITS);

	for (size_t i = 0; i < VISITS; i++) {
		visit(device, mr, at + i * HUGE_PAGE);
		WANT(!munmap(at + i * HUGE_PAGE, HUGE_PAGE));
	}
}

/* The driver keeps nothing of unmapped pieces, one after the other or all at once. */
static void test_visits(struct device *device)
{
	struct ibv_mr *mr = ibv_reg_mr(device->pd, NULL, SIZE_MAX,
				       ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	struct parts before = { 0, 0 };
	uint8_t *left;

	WANT(mr);
	if (counts)
		before = parts_now();
	visit_all(device, mr);
	if (counts) {
		WANT(parts_made(&before) == VISITS);
		parts_await("what has come and gone", &before, 0);
	}
	left = reserve(LEFT);
	for (size_t i = 0; i < LEFT; i++)
		visit(device, mr, left + i * HUGE_PAGE);
	/* The kernel may move pages, and their parts go then. */
	if (counts)
		WANT(parts_made(&before) == VISITS + LEFT && parts_kept(&before) > LEFT / 2);
	WANT(!munmap(left, LEFT * HUGE_PAGE));
	if (counts)
		parts_await("what was left", &before, 0);
	WANT(!ibv_dereg_mr(mr));
	say("nothing is kept of what has come and gone");
}

int main(void)
{
	int kmsg = kmsg_open();
	struct device device;
	struct loop loop;

	device_open(&device);
	device_needs_odp(&device, true);
	loop_create(&loop, &device);
	test_resizes(&device);
	test_cq_depth(&device);
	test_huge(&device, &loop);
	counts = parts_begin();
	test_prefetch(&device);
	test_visits(&device);
	if (counts)
		parts_end();
	loop_destroy(&loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
