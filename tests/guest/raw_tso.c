// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * raw_tso: large TCP packets of a process, whose headers are in the work
 * request and whose payload is in a region, pinned or on demand. The device
 * cuts them. One guest, which sends to itself by way of the switch.
 */
#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PORT 7010
#define MSS 1448
#define PAYLOAD 30011
#define PARTS ((PAYLOAD + MSS - 1) / MSS)
#define SLOT 2048
#define SEQUENCE 0xfffff000u
#define SOON_MS 20000

struct headers {
	struct ethhdr eth;
	struct iphdr ip;
	struct tcphdr tcp;
} __attribute__((packed));

static struct device device;
static struct ibv_cq *cq;
static struct ibv_mr *slots_mr;
static uint8_t *slots;
static struct headers headers;

static void make_headers(void)
{
	headers = (struct headers) {
		.eth.h_proto = htons(ETH_P_IP),
		.ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP,
			.tot_len = htons(sizeof(headers) - sizeof(headers.eth) + PAYLOAD),
			.saddr = htonl(0x0a630901), .daddr = htonl(0x0a630902) },
		.tcp = { .source = htons(7), .dest = htons(PORT), .seq = htonl(SEQUENCE),
			 .doff = 5, .ack = 1, .psh = 1 },
	};
	read_own_mac(headers.eth.h_source);
	memcpy(headers.eth.h_dest, headers.eth.h_source, ETH_ALEN);
}

static struct ibv_qp *make_qp(uint16_t tso_header)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RAW_PACKET,
		.pd = device.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
			     IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
		.max_tso_header = tso_header,
		.cap = { .max_send_wr = 4, .max_recv_wr = 64, .max_send_sge = 2,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr state = { .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp_ex(device.context, &attr);

	if (!qp)
		die("cannot create a queue pair: %m");
	state.qp_state = IBV_QPS_INIT;
	WANT(!ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PORT));
	state.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(qp, &state, IBV_QP_STATE));
	state.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(qp, &state, IBV_QP_STATE));
	return qp;
}

static struct ibv_flow *flow_to(struct ibv_qp *qp)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_ipv4 ipv4;
		struct ibv_flow_spec_tcp_udp tcp;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .port = 1,
			  .num_of_specs = 3 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) },
		.ipv4 = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof(rule.ipv4) },
		.tcp = { .type = IBV_FLOW_SPEC_TCP, .size = sizeof(rule.tcp),
			 .val.dst_port = htons(PORT), .mask.dst_port = 0xffff },
	};
	struct ibv_flow *flow;

	memcpy(rule.eth.val.dst_mac, headers.eth.h_dest, ETH_ALEN);
	memset(rule.eth.mask.dst_mac, 0xff, ETH_ALEN);
	flow = ibv_create_flow(qp, &rule.attr);
	if (!flow)
		die("cannot create a flow: %m");
	return flow;
}

/* The payload in two pieces. */
static void pieces_of(const struct ibv_mr *mr, struct ibv_sge *pieces)
{
	uint64_t at = (uintptr_t)mr->addr;

	pieces[0] = (struct ibv_sge) { at, 1001, mr->lkey };
	pieces[1] = (struct ibv_sge) { at + 1001, PAYLOAD - 1001, mr->lkey };
}

static int send_built(struct ibv_qp *qp, const struct ibv_mr *mr, uint16_t length, uint16_t mss)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_sge pieces[2];

	pieces_of(mr, pieces);
	ibv_wr_start(ex);
	ex->wr_id = 99;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_tso(ex, &headers, length, mss);
	ibv_wr_set_sge_list(ex, 2, pieces);
	return ibv_wr_complete(ex);
}

static int send_posted(struct ibv_qp *qp, const struct ibv_mr *mr)
{
	struct ibv_sge pieces[2];
	struct ibv_send_wr *bad, work = {
		.wr_id = 99,
		.opcode = IBV_WR_TSO,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM,
		.sg_list = pieces,
		.num_sge = 2,
		.tso = { .hdr = &headers, .hdr_sz = sizeof(headers), .mss = MSS },
	};

	pieces_of(mr, pieces);
	return ibv_post_send(qp, &work, &bad);
}

static void receive_in_all(struct ibv_qp *qp)
{
	for (uint64_t id = 0; id < PARTS; id++) {
		struct ibv_sge piece = { (uintptr_t)slots + id * SLOT, SLOT, slots_mr->lkey };
		struct ibv_recv_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1 }, *bad;

		WANT(!ibv_post_recv(qp, &work, &bad));
	}
}

/* All parts arrive, and the request is done. */
static void wants_parts(uint64_t key)
{
	uint64_t deadline = now_ms() + SOON_MS;
	unsigned int parts = 0, sent = 0;
	struct ibv_wc wc;

	while (parts < PARTS || !sent) {
		uint32_t at = parts * MSS, part = PAYLOAD - at < MSS ? PAYLOAD - at : MSS;
		uint8_t *frame = slots + parts * SLOT;
		struct headers got;

		if (now_ms() > deadline)
			die("%u of %u parts have arrived", parts, PARTS);
		if (!ibv_poll_cq(cq, 1, &wc))
			continue;
		WANT(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == 99) {
			/* proves: IBV_WC_TSO */
			WANT(wc.opcode == IBV_WC_TSO);
			sent++;
			continue;
		}
		WANT(wc.opcode == IBV_WC_RECV && wc.wr_id == parts);
		WANT(wc.byte_len == sizeof(got) + part);
		/* proves: IBV_WC_IP_CSUM_OK */
		WANT(wc.wc_flags & IBV_WC_IP_CSUM_OK);
		memcpy(&got, frame, sizeof(got));
		WANT(ntohl(got.tcp.seq) == SEQUENCE + at);
		WANT(got.tcp.psh == (parts == PARTS - 1));
		WANT(ntohs(got.ip.tot_len) == sizeof(got) - sizeof(got.eth) + part);
		/* proves: IBV_WR_TSO, wr_send_tso, IBV_QP_EX_WITH_TSO */
		WANT(!content_wrong(frame + sizeof(got), key, at, part));
		parts++;
	}
	WANT(sent == 1);
}

static void test(bool on_demand)
{
	uint8_t *payload = anonymous(PAYLOAD);
	struct ibv_mr *mr = region(&device, payload, PAYLOAD, on_demand);
	struct ibv_qp *sender = make_qp(sizeof(headers)), *qp = make_qp(0);
	struct ibv_flow *flow = flow_to(qp);
	long before = device_counter(&device, "tx_segmented");

	for (unsigned int round = 0; round < 2; round++) {
		content_fill(payload, content_key(9, on_demand, round), 0, PAYLOAD);
		receive_in_all(qp);
		WANT(!(round ? send_posted(sender, mr) :
			       send_built(sender, mr, sizeof(headers), MSS)));
		wants_parts(content_key(9, on_demand, round));
	}
	WANT(device_counter(&device, "tx_segmented") == before + 2);
	/* proves: IBV_QP_INIT_ATTR_MAX_TSO_HEADER */
	WANT(send_built(sender, mr, sizeof(headers) + 1, MSS) == EINVAL);
	WANT(send_built(sender, mr, sizeof(headers), 0) == EINVAL);
	WANT(send_posted(qp, mr) == EINVAL);
	WANT(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp) && !ibv_destroy_qp(sender));
	WANT(!ibv_dereg_mr(mr));
	munmap(payload, PAYLOAD);
}

int main(void)
{
	int kmsg = kmsg_open();

	device_open(&device);
	device_needs_odp(&device, false);
	/* proves: tso_caps */
	WANT(device.attributes.tso_caps.max_tso >= PAYLOAD);
	WANT(device.attributes.tso_caps.supported_qpts == 1U << IBV_QPT_RAW_PACKET);
	cq = ibv_create_cq(device.context, 256, NULL, NULL, 0);
	if (!cq)
		die("cannot create a completion queue: %m");
	slots = anonymous(PARTS * SLOT);
	slots_mr = region(&device, slots, PARTS * SLOT, false);
	make_headers();
	test(false);
	test(true);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
