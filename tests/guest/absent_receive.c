// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * absent_receive: messages that a receiver can't ask to be sent again, into
 * buffers whose pages are absent: UC, UD and raw Ethernet. The packets wait in
 * the device, nothing is lost, and they complete in order. Their senders'
 * buffers are on demand as well. One guest, which sends to itself by way of the
 * switch.
 */
#include "common.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MESSAGES 8
#define SLOT (3 * PAGE)
/* Not at the start of a page. */
#define SKEW 91
#define QKEY 0x1111
#define GRH 40
#define PORT 7020
#define SOON_MS 20000

struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
} __attribute__((packed));

/* A sender and a receiver of one type; UD and raw queue pairs are both in one. */
struct ends {
	enum ibv_qp_type type;
	struct ibv_cq *cq;
	struct ibv_qp *from;
	struct ibv_qp *to;
	struct ibv_ah *ah;
	struct ibv_flow *flow;
};

/* Fresh memory, without pages in the device. */
struct absent {
	uint8_t *at;
	struct ibv_mr *mr;
};

static struct device device;

static struct absent absent_create(void)
{
	struct absent absent = { .at = anonymous(MESSAGES * SLOT) };

	/* Each page shall be absent by itself. */
	madvise(absent.at, MESSAGES * SLOT, MADV_NOHUGEPAGE);
	absent.mr = region(&device, absent.at, MESSAGES * SLOT, true);
	return absent;
}

static void absent_destroy(struct absent *absent)
{
	WANT(!ibv_dereg_mr(absent->mr));
	munmap(absent->at, MESSAGES * SLOT);
}

/* --- queue pairs ------------------------------------------------------------ */

static struct ibv_qp *make_qp(struct ends *ends)
{
	struct ibv_qp_init_attr init = {
		.qp_type = ends->type,
		.send_cq = ends->cq,
		.recv_cq = ends->cq,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = MESSAGES, .max_recv_wr = MESSAGES, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(device.pd, &init);

	if (!qp)
		die("cannot create a queue pair: %m");
	return qp;
}

static struct ibv_ah_attr to_self(void)
{
	return (struct ibv_ah_attr) {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = device.gid, .sgid_index = device.gid_index, .hop_limit = 64 },
	};
}

static void start(struct ends *ends, struct ibv_qp *qp, const struct ibv_qp *peer)
{
	bool uc = ends->type == IBV_QPT_UC, ud = ends->type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
	};

	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT |
			    (uc ? IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS : 0) |
			    (ud ? IBV_QP_PKEY_INDEX | IBV_QP_QKEY : 0)));
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = device.mtu;
	attr.dest_qp_num = peer->qp_num;
	attr.ah_attr = to_self();
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE |
			    (uc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN : 0)));
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (uc || ud ? IBV_QP_SQ_PSN : 0)));
}

static void make_frame(struct frame *frame, uint32_t length)
{
	*frame = (struct frame) {
		.eth.h_proto = htons(ETH_P_IP),
		.ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP,
			.tot_len = htons(length - sizeof(frame->eth)),
			.saddr = htonl(0x0a630901), .daddr = htonl(0x0a630902) },
		.udp = { .source = htons(7), .dest = htons(PORT),
			 .len = htons(length - sizeof(frame->eth) - sizeof(frame->ip)) },
	};
	read_own_mac(frame->eth.h_source);
	memcpy(frame->eth.h_dest, frame->eth.h_source, ETH_ALEN);
}

static void steer(struct ends *ends)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_ipv4 ipv4;
		struct ibv_flow_spec_tcp_udp udp;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .port = 1,
			  .num_of_specs = 3 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) },
		.ipv4 = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof(rule.ipv4) },
		.udp = { .type = IBV_FLOW_SPEC_UDP, .size = sizeof(rule.udp),
			 .val.dst_port = htons(PORT), .mask.dst_port = 0xffff },
	};

	read_own_mac(rule.eth.val.dst_mac);
	memset(rule.eth.mask.dst_mac, 0xff, ETH_ALEN);
	ends->flow = ibv_create_flow(ends->to, &rule.attr);
	if (!ends->flow)
		die("cannot create a flow: %m");
}

static void open_ends(struct ends *ends)
{
	struct ibv_ah_attr attr = to_self();

	ends->cq = ibv_create_cq(device.context, 4 * MESSAGES, NULL, NULL, 0);
	if (!ends->cq)
		die("cannot create a completion queue: %m");
	ends->from = make_qp(ends);
	ends->to = make_qp(ends);
	start(ends, ends->from, ends->to);
	start(ends, ends->to, ends->from);
	if (ends->type == IBV_QPT_UD) {
		ends->ah = ibv_create_ah(device.pd, &attr);
		if (!ends->ah)
			die("cannot create an address handle: %m");
	}
	if (ends->type == IBV_QPT_RAW_PACKET)
		steer(ends);
}

static void close_ends(struct ends *ends)
{
	WANT(!ends->flow || !ibv_destroy_flow(ends->flow));
	WANT(!ends->ah || !ibv_destroy_ah(ends->ah));
	WANT(!ibv_destroy_qp(ends->from) && !ibv_destroy_qp(ends->to) && !ibv_destroy_cq(ends->cq));
}

/* --- messages --------------------------------------------------------------- */

static void post(struct ends *ends, enum ibv_wr_opcode opcode, uint8_t *at, uint32_t length,
		 const struct ibv_mr *mr, const uint8_t *remote, uint32_t rkey)
{
	struct ibv_sge piece = { (uintptr_t)at, length, mr->lkey };
	struct ibv_send_wr work = { .sg_list = &piece, .num_sge = 1, .opcode = opcode,
				    .imm_data = htonl(77) }, *bad;

	if (ends->type == IBV_QPT_UD) {
		work.wr.ud.ah = ends->ah;
		work.wr.ud.remote_qpn = ends->to->qp_num;
		work.wr.ud.remote_qkey = QKEY;
	} else {
		work.wr.rdma.remote_addr = (uintptr_t)remote;
		work.wr.rdma.rkey = rkey;
	}
	work.wr_id = MESSAGES;
	WANT(!ibv_post_send(ends->from, &work, &bad));
}

static void receive(struct ends *ends, uint64_t id, uint8_t *at, uint32_t length,
		    const struct ibv_mr *mr)
{
	struct ibv_sge piece = { (uintptr_t)at, length, mr->lkey };
	struct ibv_recv_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1 }, *bad;

	WANT(!ibv_post_recv(ends->to, &work, &bad));
}

/* All of the messages and receives have completed, the receives in order and with this length. */
static void all_complete(struct ends *ends, enum ibv_wc_opcode opcode, uint32_t length)
{
	uint64_t deadline = now_ms() + SOON_MS;
	unsigned int sent = 0, received = 0;
	struct ibv_wc wc;

	while (sent < MESSAGES || received < MESSAGES) {
		if (now_ms() >= deadline)
			die("%u messages have left and %u have arrived", sent, received);
		if (!ibv_poll_cq(ends->cq, 1, &wc))
			continue;
		if (wc.status != IBV_WC_SUCCESS)
			die("%s of %llu", ibv_wc_status_str(wc.status), (unsigned long long)wc.wr_id);
		if (wc.wr_id == MESSAGES) {
			sent++;
			continue;
		}
		/* proves: IBV_WC_RECV_RDMA_WITH_IMM */
		WANT(wc.wr_id == received && wc.opcode == opcode && wc.byte_len == length);
		received++;
	}
}

/* What the device counts of absent pages. */
struct counts {
	long faults;
	long parked;
	long lost;
	long refused;
};

static struct counts count(void)
{
	return (struct counts) {
		.faults = device_counter(&device, "page_faults"),
		.parked = device_counter(&device, "parked_packets"),
		.lost = device_counter(&device, "park_overflow") +
			device_counter(&device, "page_fault_drops"),
		.refused = device_counter(&device, "page_fault_rnr"),
	};
}

/* The pages were absent, packets have waited for them in the device, and none was refused or lost. */
static void has_waited(const char *what, const struct counts *before)
{
	struct counts now = count();

	say("%s: %ld faults, %ld packets have waited", what, now.faults - before->faults,
	    now.parked - before->parked);
	/* proves: IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV */
	/* proves: IBV_ODP_SUPPORT_WRITE, IBV_ACCESS_ON_DEMAND, IBK_ON_DEMAND_PAGING */
	WANT(now.faults >= before->faults + 2);
	WANT(now.parked > before->parked);
	WANT(now.lost == before->lost && now.refused == before->refused);
}

/* `head` bytes in front of the content are the network's, and `own` of them the sender's. */
static void test_messages(const char *what, enum ibv_qp_type type, uint32_t length, uint32_t head,
			  uint32_t own)
{
	struct ends ends = { .type = type };
	struct absent out = absent_create(), in = absent_create();
	struct counts before = count();

	open_ends(&ends);
	for (unsigned int i = 0; i < MESSAGES; i++) {
		uint8_t *at = out.at + i * SLOT + SKEW;

		if (own) {
			struct frame frame;

			make_frame(&frame, length);
			memcpy(at, &frame, own);
		}
		content_fill(at + own, content_key(4, type, i), 0, length - own);
		receive(&ends, i, in.at + i * SLOT + SKEW, SLOT - SKEW, in.mr);
	}
	for (unsigned int i = 0; i < MESSAGES; i++)
		post(&ends, IBV_WR_SEND, out.at + i * SLOT + SKEW, length, out.mr, NULL, 0);
	all_complete(&ends, IBV_WC_RECV, length - own + head);
	for (unsigned int i = 0; i < MESSAGES; i++)
		WANT(!content_wrong(in.at + i * SLOT + SKEW + head, content_key(4, type, i), 0,
				    length - own));
	has_waited(what, &before);
	close_ends(&ends);
	absent_destroy(&out);
	absent_destroy(&in);
}

/* UC again: WRITEs to absent memory, reported by the receives. */
static void test_writes(void)
{
	struct ends ends = { .type = IBV_QPT_UC };
	struct absent out = absent_create(), in = absent_create();
	struct counts before = count();
	uint32_t length = 2 * PAGE + 13;

	open_ends(&ends);
	for (unsigned int i = 0; i < MESSAGES; i++) {
		content_fill(out.at + i * SLOT, content_key(4, 99, i), 0, length);
		receive(&ends, i, in.at, 0, in.mr);
	}
	for (unsigned int i = 0; i < MESSAGES; i++)
		post(&ends, IBV_WR_RDMA_WRITE_WITH_IMM, out.at + i * SLOT, length, out.mr,
		     in.at + i * SLOT + SKEW, in.mr->rkey);
	all_complete(&ends, IBV_WC_RECV_RDMA_WITH_IMM, length);
	for (unsigned int i = 0; i < MESSAGES; i++)
		/* proves: IBV_WR_RDMA_WRITE_WITH_IMM */
		WANT(!content_wrong(in.at + i * SLOT + SKEW, content_key(4, 99, i), 0, length));
	has_waited("UC, WRITE", &before);
	close_ends(&ends);
	absent_destroy(&out);
	absent_destroy(&in);
}

int main(void)
{
	int kmsg = kmsg_open();

	device_open(&device);
	device_needs_odp(&device, false);
	test_messages("UC, SEND", IBV_QPT_UC, 2 * PAGE + 13, 0, 0);
	test_writes();
	test_messages("UD", IBV_QPT_UD, 901, GRH, 0);
	test_messages("raw", IBV_QPT_RAW_PACKET, 1400, sizeof(struct frame), sizeof(struct frame));
	WANT(!ibv_dealloc_pd(device.pd) && !ibv_close_device(device.context));
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
