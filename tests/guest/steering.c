// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * steering: which raw queue pairs receive a frame. Default flows, sniffers,
 * flows that do not trap, RSS over work queues by addresses and ports, and
 * checksum offload. One guest sends the frames that the other one requests; the
 * other one checks which of its queue pairs receive them.
 *
 *	steering            sends
 *	steering ADDRESS    tests
 */
#include "common.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/faultlinedv.h>
#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TCP_PORT 18680
#define SLOTS 64
#define SLOT 2048
#define SOON_MS 20000

enum { MARKER_PORT = 7100, PORT, CLOSED_PORT };

/* Source address of the frames of this program only. */
static const uint8_t from_mac[ETH_ALEN] = { 0x02, 0xfa, 0x01, 0x02, 0x03, 0x04 };

/* A request to the sender; the frame follows. */
struct order {
	uint32_t length;
	uint32_t flags;
};

/* A raw queue pair or work queue and its receive buffers. */
struct receiver {
	struct ibv_qp *qp;
	struct ibv_wq *wq;
	struct ibv_cq *cq;
	struct ibv_flow *flow;
	struct ibv_mr *mr;
	uint8_t *memory;
};

static struct device device;
static int control;
static uint8_t own_mac[ETH_ALEN];
static struct receiver marker;

/* --- queue pairs ------------------------------------------------------------ */

static void post(struct receiver *receiver, uint64_t slot)
{
	struct ibv_sge piece = { (uintptr_t)receiver->memory + slot * SLOT, SLOT, receiver->mr->lkey };
	struct ibv_recv_wr work = { .wr_id = slot, .sg_list = &piece, .num_sge = 1 }, *bad;

	WANT(!(receiver->wq ? ibv_post_wq_recv(receiver->wq, &work, &bad) :
			   ibv_post_recv(receiver->qp, &work, &bad)));
}

static void give_memory(struct receiver *receiver)
{
	receiver->memory = anonymous(SLOTS * SLOT);
	receiver->mr = region(&device, receiver->memory, SLOTS * SLOT, false);
	receiver->cq = ibv_create_cq(device.context, 2 * SLOTS, NULL, NULL, 0);
	WANT(receiver->cq);
}

static void make_receiver(struct receiver *receiver)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RAW_PACKET, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = SLOTS, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	memset(receiver, 0, sizeof(*receiver));
	give_memory(receiver);
	init.send_cq = receiver->cq;
	init.recv_cq = receiver->cq;
	receiver->qp = ibv_create_qp(device.pd, &init);
	if (!receiver->qp)
		die("cannot create a raw queue pair: %m");
	WANT(!ibv_modify_qp(receiver->qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	for (attr.qp_state = IBV_QPS_RTR; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		WANT(!ibv_modify_qp(receiver->qp, &attr, IBV_QP_STATE));
	for (uint64_t slot = 0; slot < SLOTS; slot++)
		post(receiver, slot);
}

static void free_memory(struct receiver *receiver)
{
	WANT(!ibv_destroy_cq(receiver->cq) && !ibv_dereg_mr(receiver->mr));
}

static void destroy_receiver(struct receiver *receiver)
{
	WANT(!receiver->flow || !ibv_destroy_flow(receiver->flow));
	WANT(!ibv_destroy_qp(receiver->qp));
	free_memory(receiver);
}

static struct ibv_flow *flow_of_type(struct ibv_qp *qp, enum ibv_flow_attr_type type)
{
	struct ibv_flow_attr attr = { .type = type, .size = sizeof(attr), .port = 1 };
	struct ibv_flow *flow = ibv_create_flow(qp, &attr);

	if (!flow)
		die("cannot create a flow of type %d: %m", type);
	return flow;
}

/* This program's frames, to this UDP port if it is not 0. */
static struct ibv_flow *flow_to(struct ibv_qp *qp, uint16_t port, uint16_t priority, uint32_t flags)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_ipv4 ipv4;
		struct ibv_flow_spec_tcp_udp udp;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .port = 1, .priority = priority,
			  .flags = flags, .num_of_specs = port ? 3 : 1,
			  .size = port ? sizeof(rule) : offsetof(__typeof__(rule), ipv4) },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) },
		.ipv4 = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof(rule.ipv4) },
		.udp = { .type = IBV_FLOW_SPEC_UDP, .size = sizeof(rule.udp),
			 .val.dst_port = htons(port), .mask.dst_port = 0xffff },
	};
	struct ibv_flow *flow;

	memcpy(rule.eth.val.src_mac, from_mac, ETH_ALEN);
	memset(rule.eth.mask.src_mac, 0xff, ETH_ALEN);
	flow = ibv_create_flow(qp, &rule.attr);
	if (!flow)
		die("cannot create a flow to port %u: %m", port);
	return flow;
}

/* --- frames ------------------------------------------------------------------- */

struct frame {
	uint32_t length;
	uint8_t bytes[512];
};

struct flow_of {
	uint8_t src[16], dst[16];
	uint16_t sport, dport;
	bool ipv6, tcp;
};

static uint16_t sum_of(const void *data, size_t length, uint32_t sum)
{
	const uint8_t *at = data;

	for (size_t i = 0; i < length; i++)
		sum += i % 2 ? at[i] : at[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Over the addresses, the length and the protocol, and what follows the IPv4 header: 0xffff if it is right. */
static uint16_t ipv4_sum(const struct frame *frame)
{
	const struct iphdr *ip = (const void *)(frame->bytes + ETH_HLEN);
	size_t length = ntohs(ip->tot_len) - sizeof(*ip);

	return sum_of(ip + 1, length, sum_of(&ip->saddr, 8, ip->protocol + length));
}

/* To this address; the checksums are wrong. The payload identifies frames. */
static struct frame frame_to(const uint8_t *mac, const struct flow_of *flow, uint64_t number)
{
	size_t payload = 100 + number % 50;
	size_t transport = flow->tcp ? sizeof(struct tcphdr) : sizeof(struct udphdr);
	struct frame frame = {};
	uint8_t *at = frame.bytes;
	uint16_t type = htons(flow->ipv6 ? ETH_P_IPV6 : ETH_P_IP);

	memcpy(at, mac, ETH_ALEN);
	memcpy(at + ETH_ALEN, from_mac, ETH_ALEN);
	memcpy(at + 2 * ETH_ALEN, &type, sizeof(type));
	at += ETH_HLEN;
	if (flow->ipv6) {
		struct ip6_hdr ip = {
			.ip6_flow = htonl(6U << 28), .ip6_hlim = 64,
			.ip6_plen = htons(transport + payload),
			.ip6_nxt = flow->tcp ? IPPROTO_TCP : IPPROTO_UDP,
		};

		memcpy(&ip.ip6_src, flow->src, 16);
		memcpy(&ip.ip6_dst, flow->dst, 16);
		memcpy(at, &ip, sizeof(ip));
		at += sizeof(ip);
	} else {
		struct iphdr ip = {
			.version = 4, .ihl = 5, .ttl = 64, .check = 0x1234,
			.protocol = flow->tcp ? IPPROTO_TCP : IPPROTO_UDP,
			.tot_len = htons(sizeof(ip) + transport + payload),
		};

		memcpy(&ip.saddr, flow->src, 4);
		memcpy(&ip.daddr, flow->dst, 4);
		memcpy(at, &ip, sizeof(ip));
		at += sizeof(ip);
	}
	if (flow->tcp) {
		struct tcphdr tcp = { .source = htons(flow->sport), .dest = htons(flow->dport),
				      .doff = 5, .ack = 1, .check = 0x1234 };

		memcpy(at, &tcp, sizeof(tcp));
	} else {
		struct udphdr udp = { .source = htons(flow->sport), .dest = htons(flow->dport),
				      .len = htons(sizeof(udp) + payload), .check = 0x1234 };

		memcpy(at, &udp, sizeof(udp));
	}
	at += transport;
	content_fill(at, content_key(4, number, 0), 0, payload);
	frame.length = at + payload - frame.bytes;
	return frame;
}

static struct frame udp_to(const uint8_t *mac, uint16_t port, uint64_t number)
{
	struct flow_of flow = { .src = { 10, 99, 9, 1 }, .dst = { 10, 99, 9, 2 },
				.sport = 7, .dport = port };

	return frame_to(mac, &flow, number);
}

/* Has the other guest send it. */
static void order_frame(const struct frame *frame, uint32_t flags)
{
	struct order order = { .length = frame->length, .flags = flags };

	send_all(control, &order, sizeof(order));
	send_all(control, frame->bytes, frame->length);
}

/* Waits until the oldest one that has been ordered has left. */
static void frame_sent(void)
{
	uint8_t done;

	receive_all(control, &done, 1);
}

static void send_frame(const struct frame *frame, uint32_t flags)
{
	order_frame(frame, flags);
	frame_sent();
}

/* Counts how often the frame was received; ignores other frames. */
static unsigned int arrived(struct receiver *receiver, const struct frame *frame)
{
	unsigned int count = 0;
	struct ibv_wc wc;

	while (ibv_poll_cq(receiver->cq, 1, &wc) > 0) {
		WANT(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		count += wc.byte_len == frame->length &&
			 !memcmp(receiver->memory + wc.wr_id * SLOT, frame->bytes, frame->length);
		post(receiver, wc.wr_id);
	}
	return count;
}

/* Frames keep their order: all frames before the marker arrive before it. */
static void mark(void)
{
	static uint64_t number;
	struct frame frame = udp_to(own_mac, MARKER_PORT, ++number);
	uint64_t deadline = now_ms() + SOON_MS;

	send_frame(&frame, 0);
	while (!arrived(&marker, &frame))
		if (now_ms() > deadline)
			die("marker %llu has not arrived", (unsigned long long)number);
}

/* Sends a frame and returns which receivers get it: bit n for receivers[n]. */
static unsigned int receivers_of(const struct frame *frame, struct receiver *receivers,
				 unsigned int count)
{
	unsigned int found = 0;

	send_frame(frame, 0);
	mark();
	for (unsigned int i = 0; i < count; i++) {
		unsigned int times = arrived(&receivers[i], frame);

		if (times > 1)
			die("a frame has arrived %u times at the same queue pair", times);
		found |= times << i;
	}
	return found;
}

/* --- flows -------------------------------------------------------------------- */

/* Frames that match no other flow go to default flows, and no other frames do. */
static void test_defaults(void)
{
	static const uint8_t unknown[ETH_ALEN] = { 0x02, 0x77, 0x77, 0x77, 0x77, 0x77 };
	static const uint8_t group[ETH_ALEN] = { 0x01, 0x00, 0x5e, 0x7f, 0x12, 0x34 };
	enum { GROUPS = 1, ALL = 2 };
	struct receiver receivers[2];
	struct frame frame;

	for (int i = 0; i < 2; i++)
		make_receiver(&receivers[i]);
	frame = udp_to(group, CLOSED_PORT, 1);
	WANT(receivers_of(&frame, receivers, 2) == 0);
	receivers[0].flow = flow_of_type(receivers[0].qp, IBV_FLOW_ATTR_MC_DEFAULT);
	receivers[1].flow = flow_of_type(receivers[1].qp, IBV_FLOW_ATTR_ALL_DEFAULT);
	/* proves: IBV_FLOW_ATTR_MC_DEFAULT */
	WANT(receivers_of(&frame, receivers, 2) == (GROUPS | ALL));
	frame = udp_to(unknown, CLOSED_PORT, 2);
	/* proves: IBV_FLOW_ATTR_ALL_DEFAULT */
	WANT(receivers_of(&frame, receivers, 2) == ALL);
	/* To the address of the interface. */
	frame = udp_to(own_mac, CLOSED_PORT, 3);
	WANT(receivers_of(&frame, receivers, 2) == 0);
	/* To the port of a flow. */
	frame = udp_to(own_mac, MARKER_PORT, 4);
	WANT(receivers_of(&frame, receivers, 2) == 0);
	for (int i = 0; i < 2; i++)
		destroy_receiver(&receivers[i]);
	say("default flows get what is left");
}

/* A sniffer sees what others get, RoCE packets too, and they get it all the same. */
static void test_sniffer(void)
{
	struct request request = { .opcode = IBV_WR_RDMA_WRITE, .length = 64 };
	uint8_t *memory = anonymous(PAGE);
	struct ibv_mr *mr = region(&device, memory, PAGE, false);
	struct receiver receivers[2];
	unsigned int roce = 0;
	struct endpoint loop;
	struct frame frame;
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++)
		make_receiver(&receivers[i]);
	receivers[0].flow = flow_of_type(receivers[0].qp, IBV_FLOW_ATTR_SNIFFER);
	receivers[1].flow = flow_to(receivers[1].qp, PORT, 3, 0);
	frame = udp_to(own_mac, PORT, 5);
	/* proves: IBV_FLOW_ATTR_SNIFFER */
	WANT(receivers_of(&frame, receivers, 2) == 3);
	frame = udp_to(own_mac, CLOSED_PORT, 6);
	WANT(receivers_of(&frame, receivers, 2) == 1);

	endpoint_create(&loop, &device, 8, 8);
	loop.peer = loop.own;
	endpoint_start(&loop);
	content_fill(memory, content_key(5, 0, 0), 0, 64);
	request.local = memory;
	request.lkey = mr->lkey;
	request.remote = (uintptr_t)memory + 2048;
	request.rkey = mr->rkey;
	endpoint_post(&loop, &request);
	WANT(endpoint_wait(&loop, &wc, SOON_MS) && wc.status == IBV_WC_SUCCESS);
	WANT(!content_wrong(memory + 2048, content_key(5, 0, 0), 0, 64));
	mark();
	while (ibv_poll_cq(receivers[0].cq, 1, &wc) > 0) {
		const uint8_t *at = receivers[0].memory + wc.wr_id * SLOT;

		/* The WRITE has its data behind Ethernet, IPv4, UDP, BTH and RETH. */
		roce += wc.byte_len == 14 + 20 + 8 + 12 + 16 + 64 + 4 &&
			!memcmp(at + 14 + 20 + 8 + 12 + 16, memory, 64);
	}
	if (roce < 1)
		die("the sniffer has not seen a WRITE");
	endpoint_destroy(&loop);
	WANT(!ibv_dereg_mr(mr));
	for (int i = 0; i < 2; i++)
		destroy_receiver(&receivers[i]);
	say("a sniffer sees what others get");
}

/* The best priority keeps a frame from others, unless it leaves it to them too; equals share. */
static void test_priorities(void)
{
	struct receiver receivers[3];
	struct frame frame = udp_to(own_mac, PORT, 7);

	for (int i = 0; i < 3; i++)
		make_receiver(&receivers[i]);
	receivers[0].flow = flow_to(receivers[0].qp, PORT, 5, 0);
	receivers[1].flow = flow_to(receivers[1].qp, PORT, 5, 0);
	WANT(receivers_of(&frame, receivers, 3) == 3);
	receivers[2].flow = flow_to(receivers[2].qp, PORT, 1, 0);
	WANT(receivers_of(&frame, receivers, 3) == 4);
	WANT(!ibv_destroy_flow(receivers[2].flow));
	receivers[2].flow = flow_to(receivers[2].qp, PORT, 1, IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
	/* proves: IBV_FLOW_ATTR_FLAGS_DONT_TRAP */
	WANT(receivers_of(&frame, receivers, 3) == 7);
	for (int i = 0; i < 3; i++)
		destroy_receiver(&receivers[i]);
	say("priorities decide, and flows that do not trap leave frames to others");
}

/* --- RSS ------------------------------------------------------------------ */

#define QUEUES 4
#define FRAMES 24

/* The key, an IPv6 flow and its hash of Microsoft's "Verifying the RSS Hash Calculation". */
static const uint8_t key[40] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
	0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3,
	0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
};
static const struct flow_of published = {
	.src = { 0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff, [15] = 7 },
	.dst = { 0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x00, 0x03, [15] = 1 },
	.sport = 2794, .dport = 1766, .ipv6 = true, .tcp = true,
};
#define PUBLISHED_HASH 0x40207d3d

struct input {
	uint8_t bytes[36];
	size_t length;
};

static void add(struct input *input, const void *bytes, size_t length)
{
	memcpy(input->bytes + input->length, bytes, length);
	input->length += length;
}

/* What of a flow is hashed, in this order. */
static struct input hashed(const struct flow_of *flow, uint64_t fields)
{
	uint16_t sport = htons(flow->sport), dport = htons(flow->dport);
	struct input input = {};

	if (fields & (flow->ipv6 ? IBV_RX_HASH_SRC_IPV6 : IBV_RX_HASH_SRC_IPV4))
		add(&input, flow->src, flow->ipv6 ? 16 : 4);
	if (fields & (flow->ipv6 ? IBV_RX_HASH_DST_IPV6 : IBV_RX_HASH_DST_IPV4))
		add(&input, flow->dst, flow->ipv6 ? 16 : 4);
	if (fields & (flow->tcp ? IBV_RX_HASH_SRC_PORT_TCP : IBV_RX_HASH_SRC_PORT_UDP))
		add(&input, &sport, 2);
	if (fields & (flow->tcp ? IBV_RX_HASH_DST_PORT_TCP : IBV_RX_HASH_DST_PORT_UDP))
		add(&input, &dport, 2);
	return input;
}

/* Bit `n` of the input, if it is set, adds bits n to n + 31 of the key. */
static uint32_t toeplitz(const struct input *input)
{
	uint32_t hash = 0;

	for (size_t bit = 0; bit < 8 * input->length; bit++) {
		uint32_t window = 0;

		if (!(input->bytes[bit / 8] >> (7 - bit % 8) & 1))
			continue;
		for (size_t i = bit; i < bit + 32; i++)
			window = window << 1 | (key[i / 8] >> (7 - i % 8) & 1);
		hash ^= window;
	}
	return hash;
}

/* A work queue that is ready, without receives. */
static void make_queue(struct receiver *receiver, struct ibv_pd *pd)
{
	struct ibv_wq_init_attr init = {
		.wq_type = IBV_WQT_RQ, .max_wr = SLOTS, .max_sge = 1, .pd = pd,
	};
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };

	memset(receiver, 0, sizeof(*receiver));
	give_memory(receiver);
	init.cq = receiver->cq;
	receiver->wq = ibv_create_wq(device.context, &init);
	if (!receiver->wq)
		die("cannot create a work queue: %m");
	WANT(!ibv_modify_wq(receiver->wq, &attr));
}

static struct ibv_qp *make_rss_qp(struct ibv_rwq_ind_table *table, uint64_t fields)
{
	uint8_t hash_key[sizeof(key)];
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RAW_PACKET, .pd = device.pd, .rwq_ind_tbl = table,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE |
			     IBV_QP_INIT_ATTR_RX_HASH,
		.rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
				  .rx_hash_key_len = sizeof(key), .rx_hash_key = hash_key,
				  .rx_hash_fields_mask = fields },
	};
	struct ibv_qp *qp;

	memcpy(hash_key, key, sizeof(key));
	qp = ibv_create_qp_ex(device.context, &init);
	if (!qp)
		die("cannot create an RSS queue pair for fields %#llx: %m", (unsigned long long)fields);
	return qp;
}

/* Which of the frames a completion is about. */
static unsigned int which(const struct receiver *receiver, const struct ibv_wc *wc,
			  const struct frame *frames)
{
	unsigned int i = 0;

	while (i < FRAMES && (wc->byte_len != frames[i].length ||
			      memcmp(receiver->memory + wc->wr_id * SLOT, frames[i].bytes,
				     frames[i].length)))
		i++;
	WANT(i < FRAMES);
	return i;
}

/* Sends frames with random fields. Each must arrive in the work queue that the hash of `fields` selects. */
static void check_rss(struct receiver *queues, struct ibv_rwq_ind_table *table, uint64_t fields,
		      struct flow_of flow, struct rng *rng)
{
	struct ibv_qp *qp = make_rss_qp(table, fields);
	struct ibv_flow *flow_of_all = flow_to(qp, 0, 3, 0);
	unsigned int expected[FRAMES], got[FRAMES] = {}, used = 0;
	struct frame frames[FRAMES];
	struct ibv_wc wc;

	for (unsigned int i = 0; i < FRAMES; i++) {
		struct input input = hashed(&flow, fields);

		expected[i] = toeplitz(&input) % QUEUES;
		frames[i] = frame_to(own_mac, &flow, i);
		order_frame(&frames[i], 0);
		for (int n = 0; n < 16; n++) {
			flow.src[n] = rng_next(rng);
			flow.dst[n] = rng_next(rng);
		}
		flow.sport = rng_next(rng);
		/* Not the markers', nor RoCE's. */
		flow.dport = 10000 + rng_below(rng, 50000);
	}
	for (unsigned int i = 0; i < FRAMES; i++)
		frame_sent();
	mark();
	for (unsigned int queue = 0; queue < QUEUES; queue++) {
		while (ibv_poll_cq(queues[queue].cq, 1, &wc) > 0) {
			unsigned int i;

			WANT(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
			i = which(&queues[queue], &wc, frames);
			/* proves: IBV_RX_HASH_FUNC_TOEPLITZ, IBV_RX_HASH_SRC_IPV6 */
			/* proves: IBV_RX_HASH_DST_IPV6, IBV_RX_HASH_SRC_PORT_TCP */
			/* proves: IBV_RX_HASH_DST_PORT_TCP, IBV_RX_HASH_SRC_PORT_UDP */
			/* proves: IBV_RX_HASH_DST_PORT_UDP */
			if (got[i]++ || queue != expected[i])
				die("frame %u, fields %#llx: in queue %u, expected in %u", i,
				    (unsigned long long)fields, queue, expected[i]);
			used |= 1U << queue;
			post(&queues[queue], wc.wr_id);
		}
	}
	for (unsigned int i = 0; i < FRAMES; i++)
		if (!got[i])
			die("frame %u, fields %#llx: lost", i, (unsigned long long)fields);
	/* Of so few frames one queue may get none. */
	if (__builtin_popcount(used) < QUEUES - 1)
		die("fields %#llx: only queues %#x are used", (unsigned long long)fields, used);
	WANT(!ibv_destroy_flow(flow_of_all) && !ibv_destroy_qp(qp));
}

static void test_rss(void)
{
	static const struct {
		uint64_t fields;
		bool ipv6, tcp;
	} kinds[] = {
		{ IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_TCP |
		  IBV_RX_HASH_DST_PORT_TCP, true, true },
		{ IBV_RX_HASH_SRC_IPV6, true, false },
		{ IBV_RX_HASH_DST_IPV6, true, true },
		{ IBV_RX_HASH_SRC_PORT_TCP, false, true },
		{ IBV_RX_HASH_DST_PORT_TCP, true, true },
		{ IBV_RX_HASH_SRC_PORT_UDP, false, false },
		{ IBV_RX_HASH_DST_PORT_UDP, true, false },
		{ IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_PORT_UDP, false, false },
	};
	struct input input = hashed(&published, kinds[0].fields);
	struct ibv_wq *members[QUEUES];
	struct ibv_rwq_ind_table_init_attr init = {
		.log_ind_tbl_size = 2, .ind_tbl = members,
	};
	struct ibv_rwq_ind_table *table;
	struct rng rng = { 20261123 };
	struct receiver queues[QUEUES];

	WANT(toeplitz(&input) == PUBLISHED_HASH);
	for (int i = 0; i < QUEUES; i++) {
		make_queue(&queues[i], device.pd);
		for (uint64_t slot = 0; slot < SLOTS; slot++)
			post(&queues[i], slot);
		members[i] = queues[i].wq;
	}
	table = ibv_create_rwq_ind_table(device.context, &init);
	WANT(table);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		struct flow_of flow = published;

		flow.ipv6 = kinds[i].ipv6;
		flow.tcp = kinds[i].tcp;
		check_rss(queues, table, kinds[i].fields, flow, &rng);
	}
	/* proves: destroy_rwq_ind_table */
	WANT(!ibv_destroy_rwq_ind_table(table));
	for (int i = 0; i < QUEUES; i++) {
		/* proves: destroy_wq */
		WANT(!ibv_destroy_wq(queues[i].wq));
		free_memory(&queues[i]);
	}
	say("RSS distributes frames by a hash of the selected fields");
}

/* A work queue in which more is said to be posted than it holds: it fails, and says so. */
static void test_broken_queue(void)
{
	uint8_t *ring = anonymous(PAGE);
	struct ibv_pd *parent = domain_with_ring(&device, FAULTLINEDV_MEMORY_RQ, ring);
	struct pollfd poller = { .fd = device.context->async_fd, .events = POLLIN };
	struct ibv_wq *member[1];
	struct ibv_rwq_ind_table_init_attr init = { .ind_tbl = member };
	struct frame frame = udp_to(own_mac, PORT, 8);
	struct ibv_async_event event;
	struct ibv_rwq_ind_table *table;
	struct ibv_flow *flow;
	struct receiver queue;
	struct ibv_qp *qp;

	make_queue(&queue, parent);
	member[0] = queue.wq;
	table = ibv_create_rwq_ind_table(device.context, &init);
	WANT(table);
	qp = make_rss_qp(table, IBV_RX_HASH_SRC_IPV4);
	flow = flow_to(qp, PORT, 3, 0);
	post(&queue, 0);
	WANT(receivers_of(&frame, &queue, 1) == 1);
	WANT(!poll(&poller, 1, 0));
	/* It has been posted again. */
	__atomic_store_n(posted_of_ring(ring, SLOTS, 2), htole32(1000), __ATOMIC_RELEASE);
	send_frame(&frame, 0);
	mark();
	send_frame(&frame, 0);
	WANT(poll(&poller, 1, SOON_MS) == 1 && !ibv_get_async_event(device.context, &event));
	/* proves: IBV_EVENT_WQ_FATAL */
	if (event.event_type != IBV_EVENT_WQ_FATAL)
		die("%s instead of a work queue's failure", ibv_event_type_str(event.event_type));
	WANT(event.element.wq == queue.wq);
	ibv_ack_async_event(&event);
	WANT(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp) && !ibv_destroy_rwq_ind_table(table));
	WANT(!ibv_destroy_wq(queue.wq));
	free_memory(&queue);
	WANT(!ibv_dealloc_pd(parent));
	say("a work queue that is broken says so");
}

/* --- checksums -------------------------------------------------------------------- */

/* Sends it; returns the frame that has arrived, and the result of its checksum check. */
static bool sums_right(struct receiver *receiver, struct frame *frame, uint32_t flags)
{
	uint64_t deadline = now_ms() + SOON_MS;
	struct ibv_wc wc;

	send_frame(frame, flags);
	while (!ibv_poll_cq(receiver->cq, 1, &wc))
		if (now_ms() > deadline)
			die("a frame has not arrived");
	WANT(wc.status == IBV_WC_SUCCESS && wc.byte_len == frame->length);
	memcpy(frame->bytes, receiver->memory + wc.wr_id * SLOT, frame->length);
	post(receiver, wc.wr_id);
	return wc.wc_flags & IBV_WC_IP_CSUM_OK;
}

/* Checksums are filled in on request, and each receiver learns whether they are right. */
static void test_checksums(void)
{
	struct flow_of flow = { .src = { 10, 99, 9, 1 }, .dst = { 10, 99, 9, 2 },
				.sport = 7, .dport = PORT };
	struct receiver receiver;

	/* proves: raw_packet_caps, IBV_RAW_PACKET_CAP_IP_CSUM */
	WANT(device.attributes.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM);
	make_receiver(&receiver);
	receiver.flow = flow_to(receiver.qp, 0, 3, 0);
	for (int i = 0; i < 2; i++) {
		struct frame sent, frame;

		flow.tcp = i;
		sent = frame_to(own_mac, &flow, i);
		frame = sent;
		WANT(!sums_right(&receiver, &frame, 0));
		WANT(!memcmp(frame.bytes, sent.bytes, sent.length));
		/* proves: IBV_WC_IP_CSUM_OK */
		WANT(sums_right(&receiver, &frame, IBV_SEND_IP_CSUM));
		WANT(memcmp(frame.bytes, sent.bytes, sent.length));
		/* proves: IBV_SEND_IP_CSUM */
		WANT(sum_of(frame.bytes + ETH_HLEN, 20, 0) == 0xffff && ipv4_sum(&frame) == 0xffff);
		/* Right already. */
		sent = frame;
		WANT(sums_right(&receiver, &frame, 0));
		WANT(!memcmp(frame.bytes, sent.bytes, sent.length));
		frame.bytes[frame.length - 1] ^= 1;
		WANT(!sums_right(&receiver, &frame, 0));
	}
	destroy_receiver(&receiver);
	say("checksums are filled in and looked at");
}

/* --- both guests -------------------------------------------------------------------- */

static void serve(void)
{
	struct order order;
	struct receiver sender;

	control = accept_from(listen_on(TCP_PORT));
	make_receiver(&sender);
	while (try_receive(control, &order, sizeof(order))) {
		struct ibv_sge piece = { (uintptr_t)sender.memory, order.length, sender.mr->lkey };
		struct ibv_send_wr work = {
			.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = order.flags,
		}, *bad;
		uint64_t deadline = now_ms() + SOON_MS;
		struct ibv_wc wc;

		WANT(order.length <= SLOT);
		receive_all(control, sender.memory, order.length);
		WANT(!ibv_post_send(sender.qp, &work, &bad));
		while (!ibv_poll_cq(sender.cq, 1, &wc))
			WANT(now_ms() < deadline);
		WANT(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
		send_all(control, "", 1);
	}
	destroy_receiver(&sender);
}

static void test(const char *peer)
{
	int kmsg = kmsg_open();

	control = connect_to(peer, TCP_PORT, SOON_MS);
	if (control < 0)
		die("%s does not answer", peer);
	read_own_mac(own_mac);
	make_receiver(&marker);
	marker.flow = flow_to(marker.qp, MARKER_PORT, 0, 0);
	test_defaults();
	test_sniffer();
	test_priorities();
	test_rss();
	test_broken_queue();
	test_checksums();
	destroy_receiver(&marker);
	close(control);
	WANT(!kmsg_complaints(kmsg));
	puts("all right");
}

int main(int argc, char **argv)
{
	device_open(&device);
	if (argc > 1)
		test(argv[1]);
	else
		serve();
	return 0;
}
