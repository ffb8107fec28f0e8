// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * statuses: how requests end that can't succeed, and the attributes of queue
 * pairs that decide when: a receive that is too short, none at all, a peer that
 * is gone, a window on a region that allows none, a send queue in error. Runs in
 * one guest.
 */
#include "watched.h"

#define LENGTH (4 * PAGE)
#define QKEY 0x1234

static struct device device;
static uint8_t *buffer;
static struct ibv_mr *mr;

static void to_rts(struct endpoint *end, uint8_t timeout, uint8_t retries, uint8_t rnr_retries)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = timeout,
		.retry_cnt = retries,
		.rnr_retry = rnr_retries,
		.sq_psn = end->own.psn,
		.max_rd_atomic = 1,
	};

	endpoint_listen(end);
	WANT(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void meet(struct loop *loop)
{
	endpoint_create(&loop->near, &device, 16, 16);
	endpoint_create(&loop->far, &device, 16, 16);
	loop->near.peer = loop->far.own;
	loop->far.peer = loop->near.own;
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	WANT(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

static enum ibv_wc_status send_some(struct loop *loop, uint32_t length)
{
	return loop_do(loop, IBV_WR_SEND, buffer, length, mr->lkey, NULL, 0);
}

/* A message that is longer than its buffer: each side learns of it in its way, and not a byte more is written. */
static void test_length(void)
{
	struct loop loop;
	struct ibv_wc wc;

	loop_create(&loop, &device);
	memset(buffer + PAGE, 0x5a, PAGE);
	endpoint_receive(&loop.far, 3, buffer + PAGE, 64, mr->lkey);
	WANT(send_some(&loop, 65) == IBV_WC_REM_INV_REQ_ERR);
	WANT(endpoint_wait(&loop.far, &wc, 5000) && wc.wr_id == 3);
	WANT(wc.status == IBV_WC_LOC_LEN_ERR);
	for (size_t i = 64; i < PAGE; i++)
		WANT(buffer[PAGE + i] == 0x5a);
	WANT(state_of(loop.near.qp) == IBV_QPS_ERR && state_of(loop.far.qp) == IBV_QPS_ERR);
	loop_destroy(&loop);
}

/* No receive: so many retries and no more; seven means for ever, and a receive that comes is in time. */
static void test_not_ready(void)
{
	struct request request = {
		.opcode = IBV_WR_SEND, .local = buffer, .length = 64, .lkey = mr->lkey,
	};
	long naks = device_counter(&device, "rnr_nak_received");
	struct loop loop;
	struct ibv_wc wc;

	meet(&loop);
	to_rts(&loop.near, 14, 7, 3);
	endpoint_start(&loop.far);
	WANT(send_some(&loop, 64) == IBV_WC_RNR_RETRY_EXC_ERR);
	naks = device_counter(&device, "rnr_nak_received") - naks;
	/* The first one, and its three retries. */
	if (naks != 4)
		die("%ld RNR NAKs for three retries", naks);
	endpoint_stop(&loop.near);
	endpoint_stop(&loop.far);
	endpoint_start(&loop.far);
	to_rts(&loop.near, 14, 7, 7);
	endpoint_post(&loop.near, &request);
	WANT(!endpoint_wait(&loop.near, &wc, 300));
	endpoint_receive(&loop.far, 4, buffer + PAGE, PAGE, mr->lkey);
	WANT(endpoint_wait(&loop.near, &wc, 20000) && wc.status == IBV_WC_SUCCESS);
	WANT(endpoint_wait(&loop.far, &wc, 20000) && wc.status == IBV_WC_SUCCESS);
	loop_destroy(&loop);
}

/* A peer that is not there: after the retries, each after its timeout, and not before. */
static void test_silence(void)
{
	struct loop loop;
	uint64_t begin;
	long timeouts = device_counter(&device, "local_ack_timeout_err");

	meet(&loop);
	/* 4.096 us times 2^15: 134 ms, three times. */
	to_rts(&loop.near, 15, 2, 7);
	endpoint_destroy(&loop.far);
	begin = now_ms();
	WANT(send_some(&loop, 64) == IBV_WC_RETRY_EXC_ERR);
	begin = now_ms() - begin;
	say("a peer that is gone is given up after %llu ms", (unsigned long long)begin);
	/* IBTA lets an adapter wait four times as long. */
	WANT(begin >= 3 * 134 && begin < 4 * 3 * 134 + 2000);
	WANT(device_counter(&device, "local_ack_timeout_err") >= timeouts + 3);
	WANT(state_of(loop.near.qp) == IBV_QPS_ERR);
	endpoint_destroy(&loop.near);
}

/* A window needs a region that allows one. */
static void test_bind(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(device.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {
		.wr_id = 8,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)buffer, PAGE, IBV_ACCESS_REMOTE_WRITE },
	};
	struct loop loop;
	struct ibv_wc wc;

	WANT(mw);
	loop_create(&loop, &device);
	WANT(!ibv_bind_mw(loop.near.qp, mw, &bind));
	WANT(endpoint_wait(&loop.near, &wc, 5000) && wc.wr_id == 8);
	if (wc.status != IBV_WC_MW_BIND_ERR)
		die("a binding that is not allowed: %s", ibv_wc_status_str(wc.status));
	WANT(!ibv_dealloc_mw(mw));
	loop_destroy(&loop);
}

/* A datagram whose buffer is not the sender's to send: only the send queue stops, and goes on when it is told to. */
static void test_send_queue(void)
{
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD, .send_cq = cq, .recv_cq = cq, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_ah_attr to_self = {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = device.gid, .sgid_index = device.gid_index, .hop_limit = 64 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_ah *ah = ibv_create_ah(device.pd, &to_self);
	struct ibv_qp *qp = cq ? ibv_create_qp(device.pd, &init) : NULL;
	struct ibv_sge piece = { (uintptr_t)buffer, 64, mr->lkey ^ 0x100 };
	struct ibv_sge into = { (uintptr_t)buffer + PAGE, PAGE, mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 6, .sg_list = &into, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr work = {
		.wr_id = 5, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
	}, *bad;
	struct endpoint end;
	struct ibv_wc wc;

	WANT(ah && qp);
	endpoint_adopt(&end, &device, cq, qp);
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	work.wr.ud.ah = ah;
	work.wr.ud.remote_qpn = qp->qp_num;
	work.wr.ud.remote_qkey = QKEY;
	WANT(!ibv_post_recv(qp, &receive, &bad_receive));
	WANT(!ibv_post_send(qp, &work, &bad));
	WANT(endpoint_wait(&end, &wc, 5000) && wc.wr_id == 5 && wc.status == IBV_WC_LOC_PROT_ERR);
	WANT(state_of(qp) == IBV_QPS_SQE);
	/* The receive is still there. */
	piece.lkey = mr->lkey;
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	WANT(!ibv_post_send(qp, &work, &bad));
	for (int i = 0; i < 2; i++) {
		WANT(endpoint_wait(&end, &wc, 5000) && wc.status == IBV_WC_SUCCESS);
		WANT(wc.wr_id == 5 || (wc.wr_id == 6 && wc.byte_len == 40 + 64));
	}
	WANT(!ibv_destroy_ah(ah));
	endpoint_destroy(&end);
}

int main(void)
{
	int kmsg = kmsg_open();

	device_open(&device);
	buffer = anonymous(LENGTH);
	mr = region(&device, buffer, LENGTH, false);
	test_length();
	test_not_ready();
	test_silence();
	test_bind();
	test_send_queue();
	WANT(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(device.pd) && !ibv_close_device(device.context));
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
