// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * empty_regions: regions of length zero, at any address and of every kind.
 * Requests of length zero may name them, and nothing longer. And a window of
 * type 2, which begins with the low byte 0. Runs in one guest.
 */
#include "watched.h"

struct bench {
	struct device device;
	struct loop loop;
	uint8_t *buffer;
	struct ibv_mr *mr;
};

/* A receive for a SEND that is to come. */
static void expect_send(struct bench *bench, struct ibv_mr *mr)
{
	endpoint_receive(&bench->loop.far, 2, mr->addr, 0, mr->lkey);
}

static void arrives_empty(struct bench *bench)
{
	struct ibv_wc wc;

	WANT(endpoint_wait(&bench->loop.far, &wc, 60000));
	WANT(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && !wc.byte_len);
}

static void check(struct bench *bench, struct ibv_mr *mr, const char *what)
{
	static const enum ibv_wr_opcode one_sided[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	enum ibv_wc_status status;

	for (size_t i = 0; i < ARRAY_SIZE(one_sided); i++) {
		/* Nothing of it, on either side. */
		status = loop_do(&bench->loop, one_sided[i], mr->addr, 0, mr->lkey, mr->addr,
				 mr->rkey);
		if (status != IBV_WC_SUCCESS)
			die("%s: no byte ends with %s", what, ibv_wc_status_str(status));
		/* A byte of it, there and here. */
		status = loop_do(&bench->loop, one_sided[i], bench->buffer, 1, bench->mr->lkey,
				 mr->addr, mr->rkey);
		/* proves: reg_user_mr */
		if (status != IBV_WC_REM_ACCESS_ERR)
			die("%s: a byte of the peer's ends with %s", what,
			    ibv_wc_status_str(status));
		loop_restart(&bench->loop);
		status = loop_do(&bench->loop, one_sided[i], mr->addr, 1, mr->lkey, bench->buffer,
				 bench->mr->rkey);
		if (status != IBV_WC_LOC_PROT_ERR)
			die("%s: a byte of its own ends with %s", what, ibv_wc_status_str(status));
		loop_restart(&bench->loop);
	}
	expect_send(bench, mr);
	WANT(loop_do(&bench->loop, IBV_WR_SEND, mr->addr, 0, mr->lkey, NULL, 0) == IBV_WC_SUCCESS);
	arrives_empty(bench);
	expect_send(bench, mr);
	status = loop_do(&bench->loop, IBV_WR_SEND, mr->addr, 1, mr->lkey, NULL, 0);
	if (status != IBV_WC_LOC_PROT_ERR)
		die("%s: a SEND of a byte ends with %s", what, ibv_wc_status_str(status));
	loop_restart(&bench->loop);
}

static void test_registered(struct bench *bench, int more, const char *what)
{
	/* Nothing is mapped at most of them. */
	void *const places[] = { bench->buffer + 5, NULL, (void *)0x12345678, (void *)-PAGE };

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		struct ibv_mr *mr = ibv_reg_mr(bench->device.pd, places[i], 0, ALL_ACCESS | more);

		if (!mr)
			die("%s: cannot register no byte at %p: %m", what, places[i]);
		check(bench, mr, what);
		WANT(!ibv_dereg_mr(mr));
	}
	say("%s: regions without a byte are used for nothing", what);
}

/* An empty region gets memory. The other way libibverbs does not ask for. */
static void test_changed(struct bench *bench, int more, const char *what)
{
	struct ibv_mr *mr = ibv_reg_mr(bench->device.pd, NULL, 0, ALL_ACCESS | more);
	uint8_t *memory = anonymous(2 * PAGE);

	WANT(mr);
	WANT(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS | more));
	check(bench, mr, what);
	WANT(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 2 * PAGE, 0));
	content_fill(bench->buffer, content_key(1, 0, 0), 0, PAGE);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, PAGE, bench->mr->lkey,
		     memory + 77, mr->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(memory + 77, content_key(1, 0, 0), 0, PAGE));
	WANT(!ibv_dereg_mr(mr));
	munmap(memory, 2 * PAGE);
	say("%s: an empty region gets memory", what);
}

static void test_device_memory(struct bench *bench)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(bench->device.context, &attr);
	struct ibv_mr *mr;

	WANT(dm);
	mr = ibv_reg_dm_mr(bench->device.pd, dm, 8, 0, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
	if (!mr)
		die("cannot register no byte of device memory: %m");
	check(bench, mr, "device memory");
	WANT(!ibv_dereg_mr(mr) && !ibv_free_dm(dm));
	say("device memory: regions without a byte are used for nothing");
}

/* A program that binds with the low byte 0 uses the key that it has. */
static void test_window(struct bench *bench)
{
	uint8_t *memory = anonymous(PAGE);
	struct ibv_mr *mr = ibv_reg_mr(bench->device.pd, memory, PAGE,
				       ALL_ACCESS | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(bench->device.pd, IBV_MW_TYPE_2);
	struct ibv_send_wr *bad, bind = {
		.wr_id = 9, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_wc wc;

	WANT(mr && mw);
	if (mw->rkey & 0xff)
		die("a window of type 2 begins with the key %#x", mw->rkey);
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = 0;
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info) {
		.mr = mr, .addr = (uintptr_t)memory, .length = PAGE,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	/* On the queue pair that answers: windows of type 2 are its alone. */
	WANT(!ibv_post_send(bench->loop.far.qp, &bind, &bad));
	WANT(endpoint_wait(&bench->loop.far, &wc, 60000) && wc.status == IBV_WC_SUCCESS);
	content_fill(bench->buffer, content_key(2, 0, 0), 0, PAGE);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, PAGE, bench->mr->lkey, memory,
		     mw->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(memory, content_key(2, 0, 0), 0, PAGE));
	WANT(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(mr));
	munmap(memory, PAGE);
	say("a window that is bound with the low byte 0 has the key that it began with");
}

int main(void)
{
	int kmsg = kmsg_open();
	struct bench bench = {};

	device_open(&bench.device);
	loop_create(&bench.loop, &bench.device);
	bench.buffer = anonymous(2 * PAGE);
	bench.mr = region(&bench.device, bench.buffer, 2 * PAGE, false);
	test_registered(&bench, 0, "pinned");
	test_registered(&bench, IBV_ACCESS_ON_DEMAND, "on demand");
	test_changed(&bench, 0, "pinned");
	test_changed(&bench, IBV_ACCESS_ON_DEMAND, "on demand");
	test_device_memory(&bench);
	test_window(&bench);
	WANT(!ibv_dereg_mr(bench.mr));
	loop_destroy(&bench.loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
