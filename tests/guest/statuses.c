// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * statuses: how requests end that can't succeed, and the attributes of queue
 * pairs that decide when: a receive that is too short, none at all, a peer that
 * is gone, a peer whose responses break the protocol, a window on a region that
 * allows none, a send queue in error. Runs in one guest.
 */
#include "watched.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#define LENGTH (64 * PAGE)
#define QKEY 0x1234

static struct device device;
static uint8_t *buffer;
static struct ibv_mr *mr;

static void to_rts(struct endpoint *end, uint8_t timeout, uint8_t retries, uint8_t rnr_retries,
		   uint8_t reads)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = timeout,
		.retry_cnt = retries,
		.rnr_retry = rnr_retries,
		.sq_psn = end->own.psn,
		.max_rd_atomic = reads,
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
	/* proves: post_send, IBV_WC_REM_INV_REQ_ERR */
	WANT(send_some(&loop, 65) == IBV_WC_REM_INV_REQ_ERR);
	/* proves: post_recv, poll_cq */
	WANT(endpoint_wait(&loop.far, &wc, 5000) && wc.wr_id == 3);
	/* proves: IBV_WC_LOC_LEN_ERR */
	WANT(wc.status == IBV_WC_LOC_LEN_ERR);
	for (size_t i = 64; i < PAGE; i++)
		WANT(buffer[PAGE + i] == 0x5a);
	/* proves: IBV_QPS_ERR */
	WANT(state_of(loop.near.qp) == IBV_QPS_ERR && state_of(loop.far.qp) == IBV_QPS_ERR);
	loop_destroy(&loop);
}

/* No receive: this number of retries and no more; seven means for ever, and a later receive is in time. */
static void test_not_ready(void)
{
	struct request request = {
		.opcode = IBV_WR_SEND, .local = buffer, .length = 64, .lkey = mr->lkey,
	};
	long naks = device_counter(&device, "rnr_nak_received");
	struct loop loop;
	struct ibv_wc wc;

	meet(&loop);
	to_rts(&loop.near, 14, 7, 3, 1);
	endpoint_start(&loop.far);
	/* proves: IBV_WC_RNR_RETRY_EXC_ERR */
	WANT(send_some(&loop, 64) == IBV_WC_RNR_RETRY_EXC_ERR);
	naks = device_counter(&device, "rnr_nak_received") - naks;
	/* The first one, and its three retries. */
	/* proves: IBV_QP_RNR_RETRY */
	if (naks != 4)
		die("%ld RNR NAKs for three retries", naks);
	endpoint_stop(&loop.near);
	endpoint_stop(&loop.far);
	endpoint_start(&loop.far);
	to_rts(&loop.near, 14, 7, 7, 1);
	endpoint_post(&loop.near, &request);
	WANT(!endpoint_wait(&loop.near, &wc, 300));
	endpoint_receive(&loop.far, 4, buffer + PAGE, PAGE, mr->lkey);
	WANT(endpoint_wait(&loop.near, &wc, 20000) && wc.status == IBV_WC_SUCCESS);
	WANT(endpoint_wait(&loop.far, &wc, 20000) && wc.status == IBV_WC_SUCCESS);
	loop_destroy(&loop);
}

/* How long a request is tried whose peer has no receive and says with this timer when it will be ready. */
static uint64_t refused_for(uint8_t timer)
{
	struct ibv_qp_attr attr = { .min_rnr_timer = timer };
	struct loop loop;
	uint64_t begin;

	meet(&loop);
	endpoint_start(&loop.far);
	to_rts(&loop.near, 14, 7, 3, 1);
	WANT(!ibv_modify_qp(loop.far.qp, &attr, IBV_QP_MIN_RNR_TIMER));
	begin = now_ms();
	WANT(send_some(&loop, 64) == IBV_WC_RNR_RETRY_EXC_ERR);
	begin = now_ms() - begin;
	loop_destroy(&loop);
	return begin;
}

/* The receiver says how long a sender waits before each of its three retries: 10.24 ms, 163.84 ms. */
static void test_not_ready_timer(void)
{
	uint64_t is_long = refused_for(28), is_short = refused_for(20);

	say("three waits take %llu ms and %llu ms", (unsigned long long)is_short,
	    (unsigned long long)is_long);
	/* proves: IBV_QP_MIN_RNR_TIMER */
	WANT(is_short >= 30 && is_long >= 491 && is_short < is_long);
	/* proves: IB_DEVICE_RC_RNR_NAK_GEN */
	WANT(device.attributes.orig_attr.device_cap_flags & IBV_DEVICE_RC_RNR_NAK_GEN);
}

/* No more READs leave than the queue pair may have outstanding, and none if that is none. */
static void test_reads_outstanding(void)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_READ, .local = buffer, .length = 64, .lkey = mr->lkey,
		.remote = (uintptr_t)buffer + PAGE, .rkey = mr->rkey,
	};
	struct loop loop;
	struct ibv_wc wc;
	long begin;

	/* The far end is in RESET and counts what comes. No timeout: nothing is sent twice. */
	meet(&loop);
	to_rts(&loop.near, 0, 7, 7, 3);
	begin = device_counter(&device, "rx_bad_qp");
	WANT(begin >= 0);
	for (int i = 0; i < 6; i++)
		endpoint_post(&loop.near, &request);
	WANT(!endpoint_wait(&loop.near, &wc, 200));
	begin = device_counter(&device, "rx_bad_qp") - begin;
	/* proves: IBV_QP_MAX_QP_RD_ATOMIC */
	if (begin != 3)
		die("%ld READs are outstanding instead of three", begin);
	endpoint_stop(&loop.near);
	endpoint_start(&loop.far);
	to_rts(&loop.near, 14, 7, 7, 0);
	endpoint_post(&loop.near, &request);
	WANT(endpoint_wait(&loop.near, &wc, 5000));
	/* proves: IBV_WC_LOC_QP_OP_ERR */
	if (wc.status != IBV_WC_LOC_QP_OP_ERR)
		die("a READ that may not be outstanding: %s", ibv_wc_status_str(wc.status));
	WANT(state_of(loop.near.qp) == IBV_QPS_ERR);
	loop_destroy(&loop);
}

/* More READs at once than the far end has agreed to: it refuses the second one. In drain it may be set to another number. */
static void test_reads_agreed(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .max_dest_rd_atomic = 1 };
	struct ibv_sge piece = { (uintptr_t)buffer, LENGTH / 2, mr->lkey };
	struct ibv_send_wr second = {
		.wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
		.wr.rdma = { (uintptr_t)buffer + LENGTH / 2, mr->rkey },
	}, first = second, *bad;
	struct loop loop;
	struct ibv_wc wc;

	first.wr_id = 1;
	first.next = &second;
	loop_create(&loop, &device);
	WANT(!ibv_post_send(loop.near.qp, &first, &bad));
	for (uint64_t id = 1; id <= 2; id++)
		WANT(endpoint_wait(&loop.near, &wc, 5000) && wc.wr_id == id &&
		     wc.status == IBV_WC_SUCCESS);
	WANT(!ibv_modify_qp(loop.far.qp, &attr, IBV_QP_STATE));
	WANT(!ibv_modify_qp(loop.far.qp, &attr, IBV_QP_STATE | IBV_QP_MAX_DEST_RD_ATOMIC));
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(loop.far.qp, &attr, IBV_QP_STATE));
	WANT(!ibv_post_send(loop.near.qp, &first, &bad));
	WANT(endpoint_wait(&loop.near, &wc, 5000) && wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	WANT(endpoint_wait(&loop.near, &wc, 5000) && wc.wr_id == 2);
	/* proves: IBV_QP_MAX_DEST_RD_ATOMIC */
	if (wc.status != IBV_WC_REM_INV_REQ_ERR)
		die("one READ too many: %s", ibv_wc_status_str(wc.status));
	loop_destroy(&loop);
}

/* The key of a WRITE with immediate data is refused: both sides learn of it, each in its way. */
static void test_immediate(void)
{
	struct loop loop;
	struct ibv_wc wc;

	loop_create(&loop, &device);
	memset(buffer + PAGE, 0x5a, PAGE);
	endpoint_receive(&loop.far, 9, buffer + 2 * PAGE, PAGE, mr->lkey);
	WANT(loop_do(&loop, IBV_WR_RDMA_WRITE_WITH_IMM, buffer, 64, mr->lkey, buffer + PAGE,
		     mr->rkey ^ 0x100) == IBV_WC_REM_ACCESS_ERR);
	WANT(endpoint_wait(&loop.far, &wc, 5000) && wc.wr_id == 9);
	/* proves: IBV_WC_LOC_ACCESS_ERR */
	if (wc.status != IBV_WC_LOC_ACCESS_ERR)
		die("the receive of a WRITE with a wrong key: %s", ibv_wc_status_str(wc.status));
	for (size_t i = 0; i < PAGE; i++)
		WANT(buffer[PAGE + i] == 0x5a);
	loop_destroy(&loop);
}

/* --- forged responses --------------------------------------------------------- */

/* Of the base transport header, and an acknowledgement that grants no credits. */
enum {
	READ_FIRST = 0x0d,
	READ_MIDDLE = 0x0e,
	READ_LAST = 0x0f,
	READ_ONLY = 0x10,
	ATOMIC_ACK = 0x12,
	PKEY = 0xffff,
	ROCE_PORT = 4791,
};

#define ACKNOWLEDGED 0x1f000000U
#define FORGED 0x77

struct packet {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct {
		uint8_t opcode;
		uint8_t flags;
		uint16_t pkey;
		uint32_t qpn;
		uint32_t psn;
	} __attribute__((packed)) bth;
	/* Extended headers, payload and iCRC. */
	uint8_t rest[2048];
} __attribute__((packed));

static uint32_t crc32_of(uint32_t crc, const void *data, size_t length)
{
	const uint8_t *at = data;

	while (length--) {
		crc ^= *at++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return crc;
}

/* Over eight bytes of ones and the packet, in which what routers change is ones (IBTA annex A17.3.3). */
static uint32_t icrc_of(const struct packet *packet, size_t length)
{
	struct packet masked = *packet;
	uint32_t crc = crc32_of(~0U, (uint8_t[8]){ [0 ... 7] = 0xff }, 8);

	masked.ip.tos = 0xff;
	masked.ip.ttl = 0xff;
	masked.ip.check = 0xffff;
	masked.udp.check = 0xffff;
	masked.bth.qpn |= htonl(0xff000000);
	return ~crc32_of(crc, &masked.ip, length - sizeof(masked.eth));
}

static uint16_t ip_checksum(const struct iphdr *ip)
{
	const uint16_t *at = (const void *)ip;
	uint32_t sum = 0;

	for (size_t i = 0; i < sizeof(*ip) / 2; i++)
		sum += at[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

/* A response as the queue pair's peer would send it, with `length` bytes (multiple of four) of FORGED; its own length. */
static size_t forge(struct packet *packet, const struct endpoint *to, uint8_t opcode, uint32_t psn,
		    uint32_t length)
{
	struct iphdr ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP };
	uint32_t aeth = htonl(ACKNOWLEDGED | 1), icrc;
	uint8_t *at = packet->rest;
	size_t whole;

	memset(packet, 0, sizeof(*packet));
	packet->bth.opcode = opcode;
	packet->bth.pkey = htons(PKEY);
	packet->bth.qpn = htonl(to->own.qpn);
	packet->bth.psn = htonl(psn & 0xffffff);
	if (opcode != READ_MIDDLE) {
		memcpy(at, &aeth, sizeof(aeth));
		at += sizeof(aeth);
	}
	if (opcode == ATOMIC_ACK)
		WANT(length == 8);
	memset(at, FORGED, length);
	at += length;
	whole = at + sizeof(icrc) - (uint8_t *)packet;
	read_own_mac(packet->eth.h_source);
	memcpy(packet->eth.h_dest, packet->eth.h_source, ETH_ALEN);
	packet->eth.h_proto = htons(ETH_P_IP);
	ip.tot_len = htons(whole - sizeof(packet->eth));
	/* Of the mapped address. */
	memcpy(&ip.saddr, device.gid.raw + 12, 4);
	memcpy(&ip.daddr, device.gid.raw + 12, 4);
	ip.check = ip_checksum(&ip);
	packet->ip = ip;
	packet->udp = (struct udphdr) {
		.source = htons(0xc000), .dest = htons(ROCE_PORT),
		.len = htons(whole - sizeof(packet->eth) - sizeof(packet->ip)),
	};
	icrc = icrc_of(packet, whole - sizeof(icrc));
	for (int i = 0; i < 4; i++)
		at[i] = icrc >> 8 * i;
	return whole;
}

static void raw_create(struct endpoint *raw)
{
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RAW_PACKET, .send_cq = cq, .recv_cq = cq, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = cq ? ibv_create_qp(device.pd, &init) : NULL;

	if (!qp)
		die("cannot create a raw queue pair: %m");
	endpoint_adopt(raw, &device, cq, qp);
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	for (attr.qp_state = IBV_QPS_RTR; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static void raw_send(struct endpoint *raw, const struct packet *packet, size_t length)
{
	struct request request = {
		.opcode = IBV_WR_SEND, .local = buffer + 3 * PAGE, .length = length,
		.lkey = mr->lkey,
	};
	struct ibv_wc wc;

	memcpy(request.local, packet, length);
	endpoint_post(raw, &request);
	WANT(endpoint_wait(raw, &wc, 5000) && wc.status == IBV_WC_SUCCESS);
}

struct lie {
	enum ibv_wr_opcode opcode;
	uint32_t length;
	/* The second one may be missing. */
	struct {
		uint8_t opcode;
		uint32_t length;
	} responses[2];
	enum ibv_wc_status status;
};

/* A request, and a false response of the peer; a few true ones, to show that the others are refused for a reason. */
static const struct lie lies[] = {
	{ IBV_WR_RDMA_READ, 64, { { READ_ONLY, 64 } }, IBV_WC_SUCCESS },
	{ IBV_WR_RDMA_READ, 64, { { READ_ONLY, 60 } }, IBV_WC_BAD_RESP_ERR },
	{ IBV_WR_RDMA_READ, 64, { { READ_ONLY, 68 } }, IBV_WC_BAD_RESP_ERR },
	{ IBV_WR_RDMA_READ, 64, { { READ_FIRST, 64 } }, IBV_WC_BAD_RESP_ERR },
	{ IBV_WR_RDMA_READ, 64, { { READ_MIDDLE, 64 } }, IBV_WC_BAD_RESP_ERR },
	{ IBV_WR_RDMA_READ, 64, { { ATOMIC_ACK, 8 } }, IBV_WC_BAD_RESP_ERR },
	{ IBV_WR_RDMA_READ, 1124, { { READ_FIRST, 1024 }, { READ_LAST, 100 } }, IBV_WC_SUCCESS },
	{ IBV_WR_RDMA_READ, 1124, { { READ_FIRST, 1024 }, { READ_LAST, 96 } }, IBV_WC_BAD_RESP_ERR },
	{ IBV_WR_RDMA_READ, 1124, { { READ_ONLY, 1024 } }, IBV_WC_BAD_RESP_ERR },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, 8, { { ATOMIC_ACK, 8 } }, IBV_WC_SUCCESS },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, 8, { { READ_ONLY, 8 } }, IBV_WC_BAD_RESP_ERR },
};

static void test_lie(struct endpoint *raw, const struct lie *lie)
{
	bool bad = lie->status != IBV_WC_SUCCESS;
	struct request request = {
		.opcode = lie->opcode, .id = 7, .local = buffer + PAGE + 64, .length = lie->length,
		.lkey = mr->lkey, .remote = (uintptr_t)buffer, .rkey = mr->rkey,
	}, behind = {
		.opcode = IBV_WR_RDMA_WRITE, .id = 8, .local = buffer, .length = 8,
		.lkey = mr->lkey, .remote = (uintptr_t)buffer, .rkey = mr->rkey,
	};
	size_t good = bad ? 0 : lie->length;
	struct packet packet;
	struct loop loop;
	struct ibv_wc wc;

	/* The far end is in RESET and says nothing. */
	meet(&loop);
	WANT(device.mtu == IBV_MTU_1024);
	to_rts(&loop.near, 0, 7, 7, 1);
	memset(buffer + PAGE, 0x5a, 2 * PAGE);
	endpoint_post(&loop.near, &request);
	if (bad)
		endpoint_post(&loop.near, &behind);
	for (int i = 0; i < 2 && lie->responses[i].opcode; i++) {
		uint32_t length = lie->responses[i].length;

		if (bad && i)
			good = lie->responses[0].length;
		raw_send(raw, &packet, forge(&packet, &loop.near, lie->responses[i].opcode,
					     loop.near.own.psn + i, length));
	}
	if (!endpoint_wait(&loop.near, &wc, 5000))
		die("response %#x of %u bytes does not end request %d", lie->responses[0].opcode,
		    lie->responses[0].length, lie->opcode);
	/* proves: IBV_WC_BAD_RESP_ERR */
	if (wc.wr_id != 7 || wc.status != lie->status)
		die("response %#x to request %d: %s", lie->responses[0].opcode, lie->opcode,
		    ibv_wc_status_str(wc.status));
	for (size_t i = 0; i < 2 * PAGE; i++)
		WANT(buffer[PAGE + i] == (i >= 64 && i < 64 + good ? FORGED : 0x5a));
	if (bad) {
		WANT(wc.vendor_err && state_of(loop.near.qp) == IBV_QPS_ERR);
		WANT(endpoint_wait(&loop.near, &wc, 5000) && wc.wr_id == 8);
		WANT(wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	loop_destroy(&loop);
}

/* A process with CAP_NET_RAW may write packets; those in the name of a peer are judged as that peer's. */
static void test_lies(void)
{
	struct endpoint raw;

	raw_create(&raw);
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++)
		test_lie(&raw, &lies[i]);
	endpoint_destroy(&raw);
}

/* A peer that is not there: after the retries, each after its timeout, and not before. */
static void test_silence(void)
{
	struct loop loop;
	uint64_t begin;
	long timeouts = device_counter(&device, "local_ack_timeout_err");

	meet(&loop);
	/* 4.096 us times 2^15: 134 ms, three times. */
	to_rts(&loop.near, 15, 2, 7, 1);
	endpoint_destroy(&loop.far);
	begin = now_ms();
	/* proves: IBV_WC_RETRY_EXC_ERR, IBV_QP_RETRY_CNT */
	WANT(send_some(&loop, 64) == IBV_WC_RETRY_EXC_ERR);
	begin = now_ms() - begin;
	say("a peer that is gone is given up after %llu ms", (unsigned long long)begin);
	/* IBTA lets an adapter wait four times as long. */
	/* proves: IBV_QP_TIMEOUT */
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
	/* proves: IBV_WC_MW_BIND_ERR, IBV_ACCESS_MW_BIND */
	if (wc.status != IBV_WC_MW_BIND_ERR)
		die("a binding that is not allowed: %s", ibv_wc_status_str(wc.status));
	WANT(!ibv_dealloc_mw(mw));
	loop_destroy(&loop);
}

/* A datagram from a buffer without rights: only the send queue stops, and continues on request. */
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
	/* proves: IBV_QPS_SQE */
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
	test_not_ready_timer();
	test_reads_outstanding();
	test_reads_agreed();
	test_immediate();
	test_lies();
	test_silence();
	test_bind();
	test_send_queue();
	/* proves: dealloc_pd, free_context, dealloc_ucontext */
	WANT(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(device.pd) && !ibv_close_device(device.context));
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
