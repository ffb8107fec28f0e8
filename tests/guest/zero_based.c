// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * zero_based [--pinned]: regions whose addresses count from zero
 * (IBV_ACCESS_ZERO_BASED), wherever their memory is: pinned ones, and ones on
 * demand. Runs in one guest.
 */
#include "watched.h"

#define LENGTH (5 * PAGE)
/* Where a region begins in its first page. */
#define SKEW 0x123
#define ACCESS (ALL_ACCESS | IBV_ACCESS_ZERO_BASED)

struct bench {
	struct device device;
	struct loop loop;
	uint8_t *buffer;
	struct ibv_mr *mr;
};

/* A request of the loop's near end about a place in a region. */
static enum ibv_wc_status ask(struct bench *bench, enum ibv_wr_opcode opcode, uint32_t length,
			      uint64_t offset, uint32_t rkey)
{
	return loop_do(&bench->loop, opcode, bench->buffer, length, bench->mr->lkey,
		       (void *)offset, rkey);
}

static void refused(struct bench *bench, uint32_t length, uint64_t offset, uint32_t rkey)
{
	WANT(ask(bench, IBV_WR_RDMA_WRITE, length, offset, rkey) == IBV_WC_REM_ACCESS_ERR);
	loop_restart(&bench->loop);
}

/* A WRITE to an offset changes that place, and a READ returns its content. */
static void moves(struct bench *bench, uint8_t *memory, uint32_t length, uint64_t offset,
		  uint32_t rkey)
{
	static uint64_t generation;
	uint64_t key = content_key(5, offset, ++generation);

	content_fill(bench->buffer, key, 0, length);
	WANT(ask(bench, IBV_WR_RDMA_WRITE, length, offset, rkey) == IBV_WC_SUCCESS);
	/* proves: IBV_ACCESS_ZERO_BASED */
	WANT(!content_wrong(memory + offset, key, 0, length));
	memset(bench->buffer, 0, length);
	WANT(ask(bench, IBV_WR_RDMA_READ, length, offset, rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->buffer, key, 0, length));
}

static void test_region(struct bench *bench, int more)
{
	uint8_t *pages = anonymous(LENGTH), *memory = pages + SKEW;
	size_t length = LENGTH - 2 * SKEW;
	struct ibv_mr *mr = ibv_reg_mr(bench->device.pd, memory, length, ACCESS | more);

	if (!mr)
		die("cannot register: %m");
	moves(bench, memory, length, 0, mr->rkey);
	moves(bench, memory, 1, length - 1, mr->rkey);
	moves(bench, memory, 2 * PAGE, PAGE - SKEW - 1, mr->rkey);
	refused(bench, 1, length, mr->rkey);
	refused(bench, 8, (uintptr_t)memory, mr->rkey);
	refused(bench, 8, -(uint64_t)(uintptr_t)memory, mr->rkey);
	/* Its owner counts the same way. */
	content_fill(memory, content_key(5, 1, 0), 0, length);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, (void *)100, PAGE, mr->lkey,
		     bench->buffer, bench->mr->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->buffer, content_key(5, 1, 0), 100, PAGE));
	if (more & IBV_ACCESS_ON_DEMAND) {
		struct ibv_sge all = { .addr = 0, .length = length, .lkey = mr->lkey };
		struct ibv_sge beyond = { .addr = 1, .length = length, .lkey = mr->lkey };
		struct ibv_sge named = { (uintptr_t)memory, length, mr->lkey };
		long faults;

		/* Pages that are taken away are asked for by the driver's own addresses. */
		replace(pages, LENGTH);
		moves(bench, memory, length, 0, mr->rkey);
		/* As are those that are brought beforehand: nothing is missing then. */
		replace(pages, LENGTH);
		WANT(!ibv_advise_mr(bench->device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
				    IBV_ADVISE_MR_FLAG_FLUSH, &all, 1));
		faults = device_counter(&bench->device, "page_faults");
		moves(bench, memory, length, 0, mr->rkey);
		WANT(device_counter(&bench->device, "page_faults") == faults);
		WANT(ibv_advise_mr(bench->device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH,
				   IBV_ADVISE_MR_FLAG_FLUSH, &beyond, 1));
		WANT(ibv_advise_mr(bench->device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH,
				   IBV_ADVISE_MR_FLAG_FLUSH, &named, 1));
	}
	/* The other way round, and back. */
	WANT(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS | more));
	refused(bench, 8, 0, mr->rkey);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, PAGE, bench->mr->lkey,
		     memory, mr->rkey) == IBV_WC_SUCCESS);
	WANT(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS | more));
	moves(bench, memory, length, 0, mr->rkey);
	WANT(!ibv_dereg_mr(mr));
	munmap(pages, LENGTH);
}

int main(int argc, char **argv)
{
	bool pinned = argc == 2 && !strcmp(argv[1], "--pinned");
	int kmsg = kmsg_open();
	struct bench bench;

	if (argc > 1 && !pinned)
		die("usage: zero_based [--pinned]");
	device_open(&bench.device);
	if (!pinned)
		device_needs_odp(&bench.device, false);
	loop_create(&bench.loop, &bench.device);
	bench.buffer = anonymous(LENGTH);
	bench.mr = region(&bench.device, bench.buffer, LENGTH, false);
	test_region(&bench, 0);
	if (!pinned)
		test_region(&bench, IBV_ACCESS_ON_DEMAND);
	WANT(!ibv_dereg_mr(bench.mr));
	loop_destroy(&bench.loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
