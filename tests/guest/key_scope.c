// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * key_scope: how far a key reaches, as a process sees it. A key is good in its
 * protection domain and in no other, also for prefetches; each binding of a
 * window has a version of its own, and many are invalidated before one fence; a
 * queue pair in error takes no region, no window and no other queue pair along.
 * Runs in one guest.
 */
#include "watched.h"

#define LENGTH (4 * PAGE)
#define WINDOWS 8

static struct device device;
/* A second domain of the same process. */
static struct device other;

struct memory {
	uint8_t *at;
	struct ibv_mr *mr;
};

static struct memory memory_in(struct device *domain, int more)
{
	struct memory memory = { .at = anonymous(LENGTH) };

	memory.mr = ibv_reg_mr(domain->pd, memory.at, LENGTH, ALL_ACCESS | IBV_ACCESS_MW_BIND | more);
	if (!memory.mr)
		die("cannot register: %m");
	return memory;
}

static void forget(struct memory *memory)
{
	WANT(!ibv_dereg_mr(memory->mr));
	munmap(memory->at, LENGTH);
}

static enum ibv_wc_status write_to(struct loop *loop, const struct memory *from, uint8_t *at, uint32_t rkey)
{
	static uint64_t generation;

	content_fill(from->at, content_key(6, 0, ++generation), 0, PAGE);
	return loop_do(loop, IBV_WR_RDMA_WRITE, from->at, PAGE, from->mr->lkey, at, rkey);
}

/* A write through this key arrives. */
static void reaches(struct loop *loop, const struct memory *from, uint8_t *at, uint32_t rkey)
{
	WANT(write_to(loop, from, at, rkey) == IBV_WC_SUCCESS);
	/* proves: reg_mr, reg_user_mr */
	WANT(!memcmp(at, from->at, PAGE));
}

/* It is refused, and changes nothing. */
static void refused(struct loop *loop, const struct memory *from, uint8_t *at, uint32_t rkey)
{
	memset(at, 0x5a, PAGE);
	/* proves: IBV_WC_REM_ACCESS_ERR */
	WANT(write_to(loop, from, at, rkey) == IBV_WC_REM_ACCESS_ERR);
	for (size_t i = 0; i < PAGE; i++)
		WANT(at[i] == 0x5a);
	loop_restart(loop);
}

/* --- domains ---------------------------------------------------------------- */

static void test_domains(int more)
{
	struct memory own = memory_in(&device, more), foreign = memory_in(&other, more);
	struct loop loop, elsewhere;
	struct ibv_wc wc;

	loop_create(&loop, &device);
	loop_create(&elsewhere, &other);
	reaches(&loop, &own, own.at + PAGE, own.mr->rkey);
	reaches(&elsewhere, &foreign, foreign.at + PAGE, foreign.mr->rkey);
	refused(&loop, &own, foreign.at, foreign.mr->rkey);
	/* As its own buffer, too: for sent data, for a response, for received data. */
	memset(foreign.at, 0x77, PAGE);
	memset(own.at, 0x66, PAGE);
	/* proves: IBV_WC_LOC_PROT_ERR */
	WANT(loop_do(&loop, IBV_WR_RDMA_WRITE, foreign.at, 64, foreign.mr->lkey, own.at,
		     own.mr->rkey) == IBV_WC_LOC_PROT_ERR);
	loop_restart(&loop);
	WANT(loop_do(&loop, IBV_WR_RDMA_READ, foreign.at, 64, foreign.mr->lkey, own.at,
		     own.mr->rkey) == IBV_WC_LOC_PROT_ERR);
	loop_restart(&loop);
	endpoint_receive(&loop.far, 5, foreign.at, 64, foreign.mr->lkey);
	WANT(loop_do(&loop, IBV_WR_SEND, own.at, 64, own.mr->lkey, NULL, 0) == IBV_WC_REM_OP_ERR);
	WANT(endpoint_wait(&loop.far, &wc, 5000) && wc.wr_id == 5 && wc.status == IBV_WC_LOC_PROT_ERR);
	loop_restart(&loop);
	for (size_t i = 0; i < 64; i++)
		WANT(foreign.at[i] == 0x77 && own.at[i] == 0x66);
	/* The refused accesses have affected no queue pair. */
	reaches(&loop, &own, own.at + PAGE, own.mr->rkey);
	reaches(&elsewhere, &foreign, foreign.at + PAGE, foreign.mr->rkey);
	loop_destroy(&loop);
	loop_destroy(&elsewhere);
	forget(&own);
	forget(&foreign);
}

/* --- rights ----------------------------------------------------------------- */

/* Accesses beyond a region's rights are refused, and those within them are executed. */
static void test_rights(int more)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		int right;
	} kinds[] = {
		{ IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ },
		{ IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC },
	};
	struct memory own = memory_in(&device, 0);
	uint8_t *at = anonymous(PAGE);
	struct loop loop;

	loop_create(&loop, &device);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		for (size_t of = 0; of < ARRAY_SIZE(kinds); of++) {
			int access = IBV_ACCESS_LOCAL_WRITE | kinds[of].right | more;
			struct ibv_mr *mr = ibv_reg_mr(device.pd, at, PAGE, access);
			enum ibv_wc_status status;

			WANT(mr);
			status = loop_do(&loop, kinds[i].opcode, own.at, 8, own.mr->lkey, at, mr->rkey);
			/* proves: IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE */
			/* proves: IBV_ACCESS_REMOTE_ATOMIC */
			if (status != (i == of ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR))
				die("opcode %d with rights %#x: %s", kinds[i].opcode, access,
				    ibv_wc_status_str(status));
			if (status != IBV_WC_SUCCESS)
				loop_restart(&loop);
			WANT(!ibv_dereg_mr(mr));
		}
	}
	loop_destroy(&loop);
	munmap(at, PAGE);
	forget(&own);
}

/* --- prefetch --------------------------------------------------------------- */

/* One's own pages are brought early, those of another domain's region are not. */
static void test_prefetch(void)
{
	static const enum ibv_advise_mr_advice advices[] = {
		IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
		IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
	};
	struct memory own = memory_in(&device, IBV_ACCESS_ON_DEMAND);
	struct memory foreign = memory_in(&other, IBV_ACCESS_ON_DEMAND);
	struct ibv_sge mine = { (uintptr_t)own.at, LENGTH, own.mr->lkey };
	struct ibv_sge both[] = { mine, { (uintptr_t)foreign.at, LENGTH, foreign.mr->lkey } };
	struct loop loop;
	long faults;

	for (size_t i = 0; i < ARRAY_SIZE(advices); i++) {
		for (unsigned int flags = 0; flags <= IBV_ADVISE_MR_FLAG_FLUSH; flags++) {
			WANT(ibv_advise_mr(device.pd, advices[i], flags, &both[1], 1) == EPERM);
			WANT(ibv_advise_mr(device.pd, advices[i], flags, both, 2) == EPERM);
			WANT(ibv_advise_mr(other.pd, advices[i], flags, both, 2) == EPERM);
		}
	}
	WANT(!ibv_advise_mr(device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
			    &mine, 1));
	loop_create(&loop, &device);
	faults = device_counter(&device, "page_faults");
	reaches(&loop, &own, own.at + PAGE, own.mr->rkey);
	/* proves: advise_mr, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE */
	/* proves: IB_UVERBS_ADVISE_MR_FLAG_FLUSH */
	WANT(device_counter(&device, "page_faults") == faults);
	loop_destroy(&loop);
	/* Nothing of the refused ones has been done. */
	loop_create(&loop, &other);
	reaches(&loop, &foreign, foreign.at + PAGE, foreign.mr->rkey);
	WANT(device_counter(&device, "page_faults") > faults);
	loop_destroy(&loop);
	forget(&own);
	forget(&foreign);
}

/* --- versions ---------------------------------------------------------------- */

static struct ibv_qp *extended(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = device.pd, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV |
				  IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
		.cap = { .max_send_wr = 4 * WINDOWS, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(device.context, &attr);

	if (!qp)
		die("cannot create a queue pair: %m");
	return qp;
}

static void complete(struct endpoint *end, enum ibv_wc_opcode opcode, unsigned int count)
{
	struct ibv_wc wc;

	while (count--) {
		WANT(endpoint_wait(end, &wc, 20000));
		if (wc.status != IBV_WC_SUCCESS || wc.opcode != opcode)
			die("%s of opcode %d", ibv_wc_status_str(wc.status), wc.opcode);
	}
}

/* The far end of a loop, whose own requests are these. */
static void bind_all(struct ibv_qp_ex *ex, struct ibv_mw **windows, const uint32_t *keys,
		     const struct memory *memory)
{
	ibv_wr_start(ex);
	for (unsigned int i = 0; i < WINDOWS; i++) {
		struct ibv_mw_bind_info info = {
			memory->mr, (uintptr_t)memory->at + i * PAGE / 2, PAGE / 2,
			IBV_ACCESS_REMOTE_WRITE,
		};

		ex->wr_id = i;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_bind_mw(ex, windows[i], keys[i], &info);
	}
	WANT(!ibv_wr_complete(ex));
}

static enum ibv_wc_status write_window(struct loop *loop, const struct memory *from,
				       const struct memory *to, unsigned int i, uint32_t rkey)
{
	uint8_t *at = to->at + i * PAGE / 2;
	enum ibv_wc_status status;

	content_fill(from->at, content_key(7, i, rkey), 0, 200);
	memset(at, 0, 200);
	status = loop_do(loop, IBV_WR_RDMA_WRITE, from->at, 200, from->mr->lkey, at, rkey);
	WANT(content_wrong(at, content_key(7, i, rkey), 0, 200) == 0 || status != IBV_WC_SUCCESS);
	return status;
}

/*
 * RKEY(b, v): the window keeps its index, and each binding has another low byte; the older one is refused. All are
 * invalidated in a row, and a fence orders what follows behind them.
 */
static void test_versions(void)
{
	struct memory from = memory_in(&device, 0), to = memory_in(&device, IBV_ACCESS_ON_DEMAND);
	struct ibv_cq *cq = ibv_create_cq(device.context, 8 * WINDOWS, NULL, NULL, 0);
	struct ibv_mw *windows[WINDOWS];
	uint32_t keys[WINDOWS], older[WINDOWS];
	struct ibv_qp_ex *ex;
	struct loop loop;

	endpoint_create(&loop.near, &device, 16, 16);
	WANT(cq);
	endpoint_adopt(&loop.far, &device, cq, extended(cq));
	loop.near.peer = loop.far.own;
	loop.far.peer = loop.near.own;
	loop_start(&loop);
	ex = ibv_qp_to_qp_ex(loop.far.qp);
	WANT(ex);
	for (unsigned int i = 0; i < WINDOWS; i++) {
		windows[i] = ibv_alloc_mw(device.pd, IBV_MW_TYPE_2);
		if (!windows[i])
			die("cannot allocate a window: %m");
		keys[i] = windows[i]->rkey;
	}
	for (unsigned int round = 0; round < 3; round++) {
		for (unsigned int i = 0; i < WINDOWS; i++) {
			older[i] = keys[i];
			keys[i] = ibv_inc_rkey(keys[i]);
			WANT(keys[i] >> 8 == older[i] >> 8 && keys[i] != older[i]);
		}
		bind_all(ex, windows, keys, &to);
		complete(&loop.far, IBV_WC_BIND_MW, WINDOWS);
		for (unsigned int i = 0; i < WINDOWS; i++)
			WANT(write_window(&loop, &from, &to, i, keys[i]) == IBV_WC_SUCCESS);
		/* All of them, and one fence behind. */
		ibv_wr_start(ex);
		for (unsigned int i = 0; i < WINDOWS; i++) {
			ex->wr_id = i;
			ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_local_inv(ex, keys[i]);
		}
		ex->wr_id = WINDOWS;
		ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, to.mr->lkey, (uintptr_t)to.at, 8);
		endpoint_receive(&loop.near, 1, from.at + PAGE, PAGE, from.mr->lkey);
		WANT(!ibv_wr_complete(ex));
		complete(&loop.far, IBV_WC_LOCAL_INV, WINDOWS);
		complete(&loop.far, IBV_WC_SEND, 1);
		complete(&loop.near, IBV_WC_RECV, 1);
	}
	/* Neither the last version nor one before it is good any more. */
	WANT(write_window(&loop, &from, &to, 0, keys[0]) == IBV_WC_REM_ACCESS_ERR);
	loop_restart(&loop);
	keys[1] = ibv_inc_rkey(keys[1]);
	for (unsigned int i = 2; i < WINDOWS; i++)
		keys[i] = ibv_inc_rkey(keys[i]);
	keys[0] = ibv_inc_rkey(keys[0]);
	bind_all(ex, windows, keys, &to);
	complete(&loop.far, IBV_WC_BIND_MW, WINDOWS);
	WANT(write_window(&loop, &from, &to, 1, keys[1]) == IBV_WC_SUCCESS);
	WANT(write_window(&loop, &from, &to, 1, (keys[1] & ~0xffu) | ((keys[1] - 1) & 0xff)) ==
	     IBV_WC_REM_ACCESS_ERR);
	loop_restart(&loop);
	for (unsigned int i = 0; i < WINDOWS; i++)
		WANT(!ibv_dealloc_mw(windows[i]));
	loop_destroy(&loop);
	forget(&from);
	forget(&to);
}

/* --- errors ------------------------------------------------------------------- */

/* Does a queue pair's error render all keys invalid? */
static void test_error(int more)
{
	struct memory memory = memory_in(&device, more);
	struct ibv_mw *mw = ibv_alloc_mw(device.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { memory.mr, (uintptr_t)memory.at + PAGE, PAGE, IBV_ACCESS_REMOTE_WRITE },
	};
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct loop broken, loop;
	struct ibv_wc wc;

	WANT(mw);
	loop_create(&broken, &device);
	loop_create(&loop, &device);
	/* By the queue pair that will break. */
	WANT(!ibv_bind_mw(broken.near.qp, mw, &bind));
	complete(&broken.near, IBV_WC_BIND_MW, 1);
	reaches(&broken, &memory, memory.at + PAGE, mw->rkey);
	WANT(write_to(&broken, &memory, memory.at + PAGE, memory.mr->rkey ^ 1) == IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < 2; i++) {
		WANT(!ibv_query_qp(i ? broken.far.qp : broken.near.qp, &attr, IBV_QP_STATE, &init));
		WANT(attr.qp_state == IBV_QPS_ERR);
	}
	/* What is posted to it is flushed, and all others go on with the same keys. */
	WANT(write_to(&broken, &memory, memory.at + PAGE, memory.mr->rkey) == IBV_WC_WR_FLUSH_ERR);
	reaches(&loop, &memory, memory.at + PAGE, memory.mr->rkey);
	reaches(&loop, &memory, memory.at + PAGE, mw->rkey);
	WANT(loop_do(&loop, IBV_WR_RDMA_READ, memory.at, 64, memory.mr->lkey, memory.at + PAGE,
		     memory.mr->rkey) == IBV_WC_SUCCESS);
	endpoint_destroy(&broken.near);
	endpoint_destroy(&broken.far);
	reaches(&loop, &memory, memory.at + PAGE, memory.mr->rkey);
	reaches(&loop, &memory, memory.at + PAGE, mw->rkey);
	WANT(!endpoint_wait(&loop.near, &wc, 1) && !endpoint_wait(&loop.far, &wc, 1));
	WANT(!ibv_dealloc_mw(mw));
	loop_destroy(&loop);
	forget(&memory);
}

int main(void)
{
	int kmsg = kmsg_open();

	device_open(&device);
	device_needs_odp(&device, false);
	other = device;
	other.pd = ibv_alloc_pd(device.context);
	if (!other.pd)
		die("cannot allocate a protection domain: %m");
	test_domains(0);
	test_domains(IBV_ACCESS_ON_DEMAND);
	test_rights(0);
	test_rights(IBV_ACCESS_ON_DEMAND);
	test_prefetch();
	test_versions();
	test_error(0);
	test_error(IBV_ACCESS_ON_DEMAND);
	WANT(!ibv_dealloc_pd(other.pd) && !ibv_dealloc_pd(device.pd));
	WANT(!ibv_close_device(device.context));
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
