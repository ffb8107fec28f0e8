// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * builders: requests that are made by the builders of ibv_qp_ex, where no other
 * suite uses them: inline data in pieces, lists of pieces, requests that are
 * given up, and invalidations. What becomes of them is read by the readers of an
 * extended completion queue, and by ibv_poll_cq(). Runs in one guest.
 */
#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define LENGTH (4 * PAGE)
#define IMMEDIATE 0x12345678
#define QKEY 0x1234567
#define INLINE 64
#define SOON_MS 10000

static struct device device;
static struct ibv_mr *mr;
/* The first half is for sent data, the second for received data. */
static uint8_t *memory;
static struct ibv_cq_ex *cq;
/* Two ends of a connection, whose requests and receives share that queue. */
static struct endpoint near, far;

#define FIELDS \
	(IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | \
	 IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | \
	 IBV_WC_EX_WITH_DLID_PATH_BITS)

/* All that there is to read of a completion. */
struct seen {
	uint64_t id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	unsigned int flags;
	uint32_t length, vendor_err, qpn, src_qp, slid, immediate, invalidated;
	uint8_t sl, path_bits;
};

static struct ibv_qp *make_qp(enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq),
		.qp_type = type, .pd = device.pd, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = ops,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4,
			 .max_recv_sge = 1, .max_inline_data = INLINE },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(device.context, &init);

	if (!qp)
		die("cannot create a queue pair: %m");
	return qp;
}

static void connect_ends(void)
{
	endpoint_stop(&near);
	endpoint_stop(&far);
	endpoint_start(&near);
	endpoint_start(&far);
}

static void set_up(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 64, .wc_flags = FIELDS };

	device_open(&device);
	memory = anonymous(LENGTH);
	/* Windows of type 2 are bound to it. */
	mr = ibv_reg_mr(device.pd, memory, LENGTH, ALL_ACCESS | IBV_ACCESS_MW_BIND);
	cq = ibv_create_cq_ex(device.context, &init);
	WANT(mr && cq);
	endpoint_adopt(&near, &device, ibv_cq_ex_to_cq(cq),
		       make_qp(IBV_QPT_RC, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
				      IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE));
	endpoint_adopt(&far, &device, ibv_cq_ex_to_cq(cq),
		       make_qp(IBV_QPT_RC, IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW));
	near.peer = far.own;
	far.peer = near.own;
	connect_ends();
}

static uint8_t *inbox(void)
{
	return memory + LENGTH / 2;
}

static void receive(void)
{
	memset(inbox(), 0, LENGTH / 2);
	endpoint_receive(&far, 7, inbox(), LENGTH / 2, mr->lkey);
}

static struct ibv_qp_ex *start(struct endpoint *end, uint64_t id)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(end->qp);

	ibv_wr_start(ex);
	ex->wr_id = id;
	ex->wr_flags = 0;
	return ex;
}

/* The next completion, by the readers. */
static struct seen read_next(void)
{
	struct ibv_poll_cq_attr attr = {};
	uint64_t deadline = now_ms() + SOON_MS;
	struct seen seen;
	int error;

	while ((error = ibv_start_poll(cq, &attr))) {
		WANT(error == ENOENT);
		if (now_ms() >= deadline)
			die("no completion");
	}
	seen = (struct seen) { .id = cq->wr_id, .status = cq->status };
	seen.vendor_err = ibv_wc_read_vendor_err(cq);
	seen.qpn = ibv_wc_read_qp_num(cq);
	if (!seen.status) {
		seen.opcode = ibv_wc_read_opcode(cq);
		seen.flags = ibv_wc_read_wc_flags(cq);
		seen.length = ibv_wc_read_byte_len(cq);
		seen.src_qp = ibv_wc_read_src_qp(cq);
		seen.slid = ibv_wc_read_slid(cq);
		seen.sl = ibv_wc_read_sl(cq);
		seen.path_bits = ibv_wc_read_dlid_path_bits(cq);
		if (seen.flags & IBV_WC_WITH_IMM)
			seen.immediate = ntohl(ibv_wc_read_imm_data(cq));
		if (seen.flags & IBV_WC_WITH_INV)
			seen.invalidated = ibv_wc_read_invalidated_rkey(cq);
	}
	ibv_end_poll(cq);
	return seen;
}

/* The completions of a message, which come in any order: that of the receive. */
static struct seen message_done(uint64_t id)
{
	struct seen receive = {}, one;

	for (int i = 0; i < 2; i++) {
		one = read_next();
		if (one.status)
			die("message %llu: %s", (unsigned long long)id,
			    ibv_wc_status_str(one.status));
		WANT(!one.vendor_err);
		if (one.opcode == IBV_WC_RECV)
			receive = one;
		else
			/* proves: IBV_WC_SEND, read_qp_num */
			WANT(one.id == id && one.opcode == IBV_WC_SEND && one.qpn == near.own.qpn);
	}
	/* proves: IBV_WC_RECV, IBV_WC_EX_WITH_QP_NUM, create_cq_ex */
	WANT(receive.id == 7 && receive.opcode == IBV_WC_RECV && receive.qpn == far.own.qpn);
	return receive;
}

static void no_completion(void)
{
	struct ibv_poll_cq_attr attr = {};

	sleep_ms(50);
	WANT(ibv_start_poll(cq, &attr) == ENOENT);
}

/* Inline data is copied at once: the program may change the buffer before the request is sent. */
static void test_inline(void)
{
	uint8_t data[INLINE];
	struct ibv_data_buf pieces[3] = {
		{ data, 1 }, { data + 1, 30 }, { data + 31, INLINE - 31 },
	};
	struct ibv_qp_ex *ex;
	struct seen seen;

	content_fill(data, content_key(1, 0, 0), 0, INLINE);
	receive();
	ex = start(&near, 1);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, data, 37);
	memset(data, 0, INLINE);
	WANT(!ibv_wr_complete(ex));
	seen = message_done(1);
	/* proves: wr_set_inline_data, IBV_WC_EX_WITH_BYTE_LEN */
	WANT(seen.length == 37 && !content_wrong(inbox(), content_key(1, 0, 0), 0, 37));

	content_fill(data, content_key(1, 1, 0), 0, INLINE);
	receive();
	ex = start(&near, 2);
	ibv_wr_send_imm(ex, htonl(IMMEDIATE));
	ibv_wr_set_inline_data_list(ex, 3, pieces);
	memset(data, 0, INLINE);
	WANT(!ibv_wr_complete(ex));
	seen = message_done(2);
	/* proves: read_imm_data, IBV_WC_EX_WITH_IMM, IBV_WC_WITH_IMM, IBV_WR_SEND_WITH_IMM */
	WANT(seen.length == INLINE && seen.flags & IBV_WC_WITH_IMM && seen.immediate == IMMEDIATE);
	/* proves: wr_set_inline_data_list */
	WANT(!content_wrong(inbox(), content_key(1, 1, 0), 0, INLINE));

	/* More than the queue pair was made for: nothing is posted, and what follows is. */
	ex = start(&near, 3);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, memory, 4096);
	WANT(ibv_wr_complete(ex));
	no_completion();
}

/* A message of several pieces, in their order. */
static void test_list(void)
{
	struct ibv_sge pieces[4] = {
		{ (uintptr_t)memory + 3000, 1000, mr->lkey },
		{ (uintptr_t)memory + 17, 1, mr->lkey },
		{ (uintptr_t)memory, 0, mr->lkey },
		{ (uintptr_t)memory + 100, 2000, mr->lkey },
	};
	struct ibv_sge many[5] = { pieces[0], pieces[0], pieces[0], pieces[0], pieces[0] };
	struct ibv_qp_ex *ex;

	content_fill(memory, content_key(2, 0, 0), 0, LENGTH / 2);
	receive();
	ex = start(&near, 4);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 4, pieces);
	WANT(!ibv_wr_complete(ex));
	WANT(message_done(4).length == 3001);
	/* proves: wr_set_sge_list */
	WANT(!content_wrong(inbox(), content_key(2, 0, 0), 3000, 1000));
	WANT(!content_wrong(inbox() + 1000, content_key(2, 0, 0), 17, 1));
	WANT(!content_wrong(inbox() + 1001, content_key(2, 0, 0), 100, 2000));

	ex = start(&near, 5);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 5, many);
	WANT(ibv_wr_complete(ex) == EINVAL);
	no_completion();
}

/* Requests that are given up leave no trace; those before and behind them go. */
static void test_abort(void)
{
	struct ibv_qp_ex *ex;

	content_fill(memory, content_key(3, 0, 0), 0, 100);
	ex = start(&near, 6);
	for (int i = 0; i < 3; i++) {
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 200);
	}
	ibv_wr_abort(ex);
	/* proves: wr_abort */
	no_completion();
	receive();
	ex = start(&near, 8);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 100);
	WANT(!ibv_wr_complete(ex));
	WANT(message_done(8).length == 100);
	WANT(!content_wrong(inbox(), content_key(3, 0, 0), 0, 100));
}

/* Binds a window to the far end's queue pair and returns the key that it then has. */
static uint32_t bind_window(struct ibv_mw *mw, uint8_t low)
{
	struct ibv_mw_bind_info info = {
		.mr = mr, .addr = (uintptr_t)inbox(), .length = PAGE,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};
	uint32_t rkey = (mw->rkey & ~0xffU) | low;
	struct ibv_qp_ex *ex;
	struct seen seen;

	ex = start(&far, 9);
	ibv_wr_bind_mw(ex, mw, rkey, &info);
	WANT(!ibv_wr_complete(ex));
	seen = read_next();
	/* proves: IBV_WC_BIND_MW */
	WANT(seen.id == 9 && !seen.status && seen.opcode == IBV_WC_BIND_MW);
	return rkey;
}

/* How a WRITE through a key ends; the connection is there afterwards. */
static struct seen write_by(uint32_t rkey)
{
	struct ibv_qp_ex *ex;
	struct seen seen;

	ex = start(&near, 10);
	ibv_wr_rdma_write(ex, rkey, (uintptr_t)inbox());
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 64);
	WANT(!ibv_wr_complete(ex));
	seen = read_next();
	WANT(seen.id == 10 && seen.qpn == near.own.qpn);
	if (seen.status)
		connect_ends();
	return seen;
}

static void wants_gone(uint32_t rkey)
{
	struct seen seen = write_by(rkey);

	/* proves: read_vendor_err */
	if (seen.status != IBV_WC_REM_ACCESS_ERR || !seen.vendor_err)
		die("a key that is invalid: %s, %u", ibv_wc_status_str(seen.status),
		    seen.vendor_err);
}

/* Keys are made invalid by their owner, and by a message from the other end. */
static void test_invalidations(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(device.pd, IBV_MW_TYPE_2);
	struct ibv_qp_ex *ex;
	struct seen seen;
	uint32_t rkey;

	WANT(mw);
	rkey = bind_window(mw, 1);
	WANT(!write_by(rkey).status);
	ex = start(&far, 11);
	ibv_wr_local_inv(ex, rkey);
	WANT(!ibv_wr_complete(ex));
	seen = read_next();
	/* proves: IBV_WC_LOCAL_INV */
	WANT(seen.id == 11 && !seen.status && seen.opcode == IBV_WC_LOCAL_INV);
	/* proves: wr_local_inv, IBV_QP_EX_WITH_LOCAL_INV */
	wants_gone(rkey);

	rkey = bind_window(mw, 2);
	WANT(!write_by(rkey).status);
	receive();
	ex = start(&near, 12);
	ibv_wr_send_inv(ex, rkey);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 10);
	WANT(!ibv_wr_complete(ex));
	seen = message_done(12);
	/* proves: IBV_WC_WITH_INV */
	WANT(seen.flags & IBV_WC_WITH_INV && seen.invalidated == rkey && seen.length == 10);
	/* proves: wr_send_inv, IBV_QP_EX_WITH_SEND_WITH_INV */
	wants_gone(rkey);
	WANT(!ibv_dealloc_mw(mw));
}

/* A datagram reports its source; InfiniBand's identifiers are zero. */
static void test_datagram(void)
{
	struct ibv_ah_attr to_self = {
		.is_global = 1, .port_num = 1, .sl = 3,
		.grh = { .dgid = device.gid, .sgid_index = device.gid_index, .hop_limit = 64 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp *qp = make_qp(IBV_QPT_UD, IBV_QP_EX_WITH_SEND);
	struct ibv_ah *ah = ibv_create_ah(device.pd, &to_self);
	struct ibv_sge into = { (uintptr_t)inbox(), PAGE, mr->lkey };
	struct ibv_recv_wr work = { .wr_id = 7, .sg_list = &into, .num_sge = 1 }, *bad;
	struct ibv_qp_ex *ud = ibv_qp_to_qp_ex(qp);
	struct seen seen;

	WANT(ah);
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	WANT(!ibv_post_recv(qp, &work, &bad));
	ibv_wr_start(ud);
	ud->wr_id = 13;
	ud->wr_flags = 0;
	ibv_wr_send(ud);
	ibv_wr_set_ud_addr(ud, ah, qp->qp_num, QKEY);
	ibv_wr_set_sge(ud, mr->lkey, (uintptr_t)memory, 333);
	WANT(!ibv_wr_complete(ud));
	for (int i = 0; i < 2; i++) {
		seen = read_next();
		WANT(!seen.status && seen.qpn == qp->qp_num);
		if (seen.opcode != IBV_WC_RECV)
			continue;
		WANT(seen.id == 7 && seen.length == 40 + 333 && seen.flags & IBV_WC_GRH);
		/* proves: read_src_qp, IBV_WC_EX_WITH_SRC_QP */
		WANT(seen.src_qp == qp->qp_num);
		/* The packet's type, as ConnectX reports it: IPv4 or IPv6 over UDP. */
		/* proves: read_sl, IBV_WC_EX_WITH_SL */
		WANT(seen.sl == 9 || seen.sl == 10);
		/* proves: read_slid, read_dlid_path_bits, IBV_WC_EX_WITH_SLID */
		/* proves: IBV_WC_EX_WITH_DLID_PATH_BITS */
		WANT(!seen.slid && !seen.path_bits);
	}
	WANT(!ibv_destroy_qp(qp) && !ibv_destroy_ah(ah));
}

int main(void)
{
	int kmsg = kmsg_open();

	set_up();
	test_inline();
	test_list();
	test_abort();
	test_invalidations();
	test_datagram();
	WANT(!ibv_destroy_qp(near.qp) && !ibv_destroy_qp(far.qp));
	WANT(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	WANT(!ibv_dereg_mr(mr));
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
