// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * completion_fields: what completions tell of where something came from: the
 * flow that took a frame, and the VLAN of a datagram. One guest, which sends to
 * itself by way of the switch.
 */
#include "common.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 16
#define SLOT 2048
#define SOON_MS 20000

/* Content of a receive completion. */
struct seen {
	uint64_t id;
	uint32_t length;
	uint32_t tag;
	uint16_t vlan;
	uint8_t sl;
};

static struct device device;
static struct ibv_cq *send_cq;
static struct ibv_cq_ex *recv_cq;
/* The first half is sent from, the second received in. */
static uint8_t *memory;
static struct ibv_mr *mr;

static uint8_t *slot_of(uint64_t id)
{
	return memory + (SLOTS + id) * SLOT;
}

static void set_up(void)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = SLOTS,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_CVLAN |
			    IBV_WC_EX_WITH_FLOW_TAG,
	};

	device_open(&device);
	memory = anonymous(2 * SLOTS * SLOT);
	mr = region(&device, memory, 2 * SLOTS * SLOT, false);
	send_cq = ibv_create_cq(device.context, SLOTS, NULL, NULL, 0);
	recv_cq = ibv_create_cq_ex(device.context, &attr);
	if (!send_cq || !recv_cq)
		die("cannot create completion queues: %m");
}

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = send_cq,
		.recv_cq = ibv_cq_ex_to_cq(recv_cq),
		.qp_type = type,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = SLOTS, .max_recv_wr = SLOTS, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr state = { .port_num = 1, .qkey = 0x1111 };
	int named = type == IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(device.pd, &attr);

	if (!qp)
		die("cannot create a queue pair: %m");
	state.qp_state = IBV_QPS_INIT;
	WANT(!ibv_modify_qp(qp, &state, IBV_QP_STATE | IBV_QP_PORT |
			    (named ? IBV_QP_PKEY_INDEX | IBV_QP_QKEY : 0)));
	state.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(qp, &state, IBV_QP_STATE));
	state.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(qp, &state, IBV_QP_STATE | (named ? IBV_QP_SQ_PSN : 0)));
	return qp;
}

static void receive_in_all(struct ibv_qp *qp)
{
	for (uint64_t id = 0; id < SLOTS; id++) {
		struct ibv_sge piece = { (uintptr_t)slot_of(id), SLOT, mr->lkey };
		struct ibv_recv_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1 }, *bad;

		WANT(!ibv_post_recv(qp, &work, &bad));
	}
}

/* Posts the data at the start of the memory, and waits until it is sent. */
static void send_out(struct ibv_qp *qp, uint32_t length, struct ibv_ah *ah)
{
	struct ibv_sge piece = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr work = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	uint64_t deadline = now_ms() + SOON_MS;
	struct ibv_wc wc;
	int count;

	if (ah) {
		work.wr.ud.ah = ah;
		work.wr.ud.remote_qpn = qp->qp_num;
		work.wr.ud.remote_qkey = 0x1111;
	}
	WANT(!ibv_post_send(qp, &work, &bad));
	while (!(count = ibv_poll_cq(send_cq, 1, &wc)))
		WANT(now_ms() < deadline);
	WANT(count == 1 && wc.status == IBV_WC_SUCCESS);
}

static struct seen next_received(void)
{
	struct ibv_poll_cq_attr attr = {};
	uint64_t deadline = now_ms() + SOON_MS;
	struct seen seen;
	int error;

	while ((error = ibv_start_poll(recv_cq, &attr))) {
		WANT(error == ENOENT);
		if (now_ms() >= deadline)
			die("nothing arrives");
	}
	WANT(recv_cq->status == IBV_WC_SUCCESS);
	WANT(ibv_wc_read_opcode(recv_cq) == IBV_WC_RECV);
	seen = (struct seen) {
		.id = recv_cq->wr_id,
		.length = ibv_wc_read_byte_len(recv_cq),
		.tag = ibv_wc_read_flow_tag(recv_cq),
		.vlan = ibv_wc_read_cvlan(recv_cq),
		.sl = ibv_wc_read_sl(recv_cq),
	};
	ibv_end_poll(recv_cq);
	return seen;
}

/* --- flows ------------------------------------------------------------------ */

enum { TAGGED_PORT = 7001, OTHER_PORT, PLAIN_PORT, DROPPED_PORT };

#define TAG 0x1234
/* All bits of a tag count. */
#define OTHER_TAG 0xfedcba98
/* Priority 3, VLAN 291. */
#define TCI 0x6123

static uint8_t own_mac[ETH_ALEN];

/* A flow of frames to this port; `action` is the last specification, or NULL. */
static struct ibv_flow *flow_to(struct ibv_qp *qp, uint16_t port, const void *action, size_t size)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_ipv4 ipv4;
		struct ibv_flow_spec_tcp_udp udp;
		uint8_t action[sizeof(struct ibv_flow_spec_action_tag)];
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .port = 1,
			  .num_of_specs = action ? 4 : 3 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) },
		.ipv4 = { .type = IBV_FLOW_SPEC_IPV4, .size = sizeof(rule.ipv4) },
		.udp = { .type = IBV_FLOW_SPEC_UDP, .size = sizeof(rule.udp),
			 .val.dst_port = htons(port), .mask.dst_port = 0xffff },
	};
	struct ibv_flow *flow;

	rule.attr.size = offsetof(__typeof__(rule), action) + size;
	memcpy(rule.eth.val.dst_mac, own_mac, ETH_ALEN);
	memset(rule.eth.mask.dst_mac, 0xff, ETH_ALEN);
	if (action)
		memcpy(rule.action, action, size);
	flow = ibv_create_flow(qp, &rule.attr);
	if (!flow)
		die("cannot create a flow to port %u: %m", port);
	return flow;
}

static struct ibv_flow *tagged_flow(struct ibv_qp *qp, uint16_t port, uint32_t tag)
{
	struct ibv_flow_spec_action_tag action = {
		.type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof(action), .tag_id = tag,
	};

	return flow_to(qp, port, &action, sizeof(action));
}

static struct ibv_flow *dropped_flow(struct ibv_qp *qp, uint16_t port)
{
	struct ibv_flow_spec_action_drop action = {
		.type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof(action),
	};

	return flow_to(qp, port, &action, sizeof(action));
}

/* A UDP packet to this port in a frame to the own address, with a VLAN tag if there is one. */
static uint32_t frame_to(uint8_t *at, uint16_t port, uint16_t tci)
{
	uint32_t payload = 100 + port % 100;
	uint8_t *start = at;
	struct iphdr ip = {
		.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP,
		.tot_len = htons(sizeof(ip) + sizeof(struct udphdr) + payload),
		.saddr = htonl(0x0a630901), .daddr = htonl(0x0a630902),
	};
	struct udphdr udp = {
		.source = htons(7), .dest = htons(port), .len = htons(sizeof(udp) + payload),
	};
	uint16_t tag[2] = { htons(ETH_P_8021Q), htons(tci) };
	uint16_t type = htons(ETH_P_IP);

	memcpy(at, own_mac, ETH_ALEN);
	memcpy(at + ETH_ALEN, own_mac, ETH_ALEN);
	at += 2 * ETH_ALEN;
	if (tci) {
		memcpy(at, tag, sizeof(tag));
		at += sizeof(tag);
	}
	memcpy(at, &type, sizeof(type));
	at += sizeof(type);
	memcpy(at, &ip, sizeof(ip));
	at += sizeof(ip);
	memcpy(at, &udp, sizeof(udp));
	at += sizeof(udp);
	content_fill(at, content_key(1, port, tci), 0, payload);
	return at + payload - start;
}

static void send_frame(struct ibv_qp *qp, uint16_t port, uint16_t tci)
{
	send_out(qp, frame_to(memory, port, tci), NULL);
}

/* The next one that arrives is this one, whole, with this tag. */
static void wants_frame(uint16_t port, uint16_t tci, uint32_t tag)
{
	uint8_t expected[SLOT];
	uint32_t length = frame_to(expected, port, tci);
	struct seen seen = next_received();

	/* proves: read_flow_tag, IBV_WC_EX_WITH_FLOW_TAG, IBV_FLOW_SPEC_ACTION_TAG */
	if (seen.tag != tag)
		die("a frame to port %u has the tag %#x", port, seen.tag);
	/* Headers that stay in a frame are not reported either, as with other adapters. */
	WANT(seen.vlan == 0);
	WANT(seen.length == length);
	WANT(!memcmp(slot_of(seen.id), expected, length));
}

static void test_flows(void)
{
	struct ibv_qp *sender, *qp;
	struct ibv_flow *tagged, *other, *plain, *dropped;
	long drops, steered;

	read_own_mac(own_mac);
	sender = make_qp(IBV_QPT_RAW_PACKET);
	qp = make_qp(IBV_QPT_RAW_PACKET);
	receive_in_all(qp);
	tagged = tagged_flow(qp, TAGGED_PORT, TAG);
	other = tagged_flow(qp, OTHER_PORT, OTHER_TAG);
	plain = flow_to(qp, PLAIN_PORT, NULL, 0);
	dropped = dropped_flow(qp, DROPPED_PORT);
	drops = device_counter(&device, "rx_flow_drops");
	steered = device_counter(&device, "rx_steered");
	WANT(drops >= 0 && steered >= 0);

	/* Frames keep their order: dropped frames would have come before the last. */
	send_frame(sender, DROPPED_PORT, 0);
	send_frame(sender, TAGGED_PORT, 0);
	send_frame(sender, PLAIN_PORT, 0);
	send_frame(sender, OTHER_PORT, 0);
	send_frame(sender, DROPPED_PORT, TCI);
	send_frame(sender, TAGGED_PORT, TCI);
	send_frame(sender, PLAIN_PORT, TCI);
	wants_frame(TAGGED_PORT, 0, TAG);
	wants_frame(PLAIN_PORT, 0, 0);
	wants_frame(OTHER_PORT, 0, OTHER_TAG);
	wants_frame(TAGGED_PORT, TCI, TAG);
	wants_frame(PLAIN_PORT, TCI, 0);
	/* proves: IBV_FLOW_SPEC_ACTION_DROP */
	WANT(device_counter(&device, "rx_flow_drops") == drops + 2);
	/* proves: create_flow */
	WANT(device_counter(&device, "rx_steered") == steered + 5);

	/* What a flow did ends with it. */
	WANT(!ibv_destroy_flow(tagged) && !ibv_destroy_flow(dropped));
	tagged = tagged_flow(qp, DROPPED_PORT, 1);
	send_frame(sender, TAGGED_PORT, 0);
	send_frame(sender, DROPPED_PORT, 0);
	/* proves: destroy_flow */
	wants_frame(DROPPED_PORT, 0, 1);
	WANT(device_counter(&device, "rx_flow_drops") == drops + 2);

	WANT(!ibv_destroy_flow(tagged) && !ibv_destroy_flow(other) && !ibv_destroy_flow(plain));
	WANT(!ibv_destroy_qp(qp) && !ibv_destroy_qp(sender));
	say("frames have the tags of their flows, and what is to be dropped does not arrive");
}

/* --- VLANs ------------------------------------------------------------------ */

/* Packet types in the place of a service level, as ConnectX reports them: IP version, and a UDP header. */
enum { TYPE_IPV6 = 8 | 1, TYPE_IPV4 = 8 | 2 };

/* Where the GID of this address is in the table. The kernel adds it soon. */
static struct ibv_gid_entry gid_of(const char *address)
{
	uint64_t deadline = now_ms() + SOON_MS;
	struct ibv_gid_entry entries[64];
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	if (inet_pton(AF_INET, address, gid.raw + 12) != 1)
		die("%s is not an IPv4 address", address);
	do {
		ssize_t count = ibv_query_gid_table(device.context, entries,
						    ARRAY_SIZE(entries), 0);

		WANT(count >= 0);
		for (ssize_t i = 0; i < count; i++)
			if (entries[i].gid_type == IBV_GID_TYPE_ROCE_V2 &&
			    !memcmp(&entries[i].gid, &gid, sizeof(gid)))
				return entries[i];
		sleep_ms(50);
	} while (now_ms() < deadline);
	die("%s has no GID", address);
}

static struct ibv_ah *to_gid(const union ibv_gid *gid, unsigned int index, uint8_t sl)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1, .sl = sl,
		.grh = { .dgid = *gid, .sgid_index = index, .hop_limit = 64 },
	};
	struct ibv_ah *ah = ibv_create_ah(device.pd, &attr);

	if (!ah)
		die("cannot create an address handle: %m");
	return ah;
}

static bool is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(gid->raw, mapped, sizeof(mapped));
}

/* A datagram over IPv6 says so. Its completion is read by ibv_poll_cq(). */
static void check_ipv6(struct ibv_qp *qp)
{
	struct ibv_gid_entry entries[64];
	ssize_t count = ibv_query_gid_table(device.context, entries, ARRAY_SIZE(entries), 0);
	uint64_t deadline = now_ms() + SOON_MS;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	ssize_t i = 0;
	int got;

	while (i < count && (is_ipv4(&entries[i].gid) ||
			     entries[i].gid_type != IBV_GID_TYPE_ROCE_V2))
		i++;
	if (i >= count)
		die("the device has no IPv6 address");
	ah = to_gid(&entries[i].gid, entries[i].gid_index, 0);
	send_out(qp, 1000, ah);
	while (!(got = ibv_poll_cq(ibv_cq_ex_to_cq(recv_cq), 1, &wc)))
		WANT(now_ms() < deadline);
	WANT(got == 1 && wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_GRH);
	if (wc.sl != TYPE_IPV6)
		die("a datagram over IPv6 is said to have the level %u", wc.sl);
	WANT(!ibv_destroy_ah(ah));
}

static void test_vlan(const char *address, uint16_t vid)
{
	struct ibv_gid_entry entry = gid_of(address);
	struct ibv_ah *tagged = to_gid(&entry.gid, entry.gid_index, 5);
	struct ibv_ah *plain = to_gid(&device.gid, device.gid_index, 5);
	/* As ibv_init_ah_from_wc() makes it from the completion of the first one. */
	struct ibv_ah *reply = to_gid(&entry.gid, entry.gid_index, TYPE_IPV4);
	struct ibv_qp *qp = make_qp(IBV_QPT_UD);
	struct seen seen;

	receive_in_all(qp);
	for (int round = 0; round < 2; round++) {
		content_fill(memory, content_key(2, round, 0), 0, 1000);
		send_out(qp, 1000, tagged);
		seen = next_received();
		/* The whole tag, and the packet's type in place of a level, as ConnectX has them. */
		/* proves: read_cvlan, IBV_WC_EX_WITH_CVLAN, sl, IBV_WC_EX_WITH_SL */
		/* proves: IB_WC_WITH_VLAN */
		if (seen.vlan != (5 << 13 | vid) || seen.sl != TYPE_IPV4)
			die("a datagram in VLAN %u with priority 5 is said to have the tag %#x, level %u",
			    vid, seen.vlan, seen.sl);
		WANT(seen.tag == 0 && seen.length == 1040);
		WANT(!content_wrong(slot_of(seen.id) + 40, content_key(2, round, 0), 0, 1000));

		content_fill(memory, content_key(3, round, 0), 0, 1000);
		send_out(qp, 1000, plain);
		seen = next_received();
		WANT(seen.vlan == 0 && seen.tag == 0 && seen.length == 1040);
		WANT(seen.sl == (is_ipv4(&device.gid) ? TYPE_IPV4 : TYPE_IPV6));
		WANT(!content_wrong(slot_of(seen.id) + 40, content_key(3, round, 0), 0, 1000));

		send_out(qp, 1000, reply);
		seen = next_received();
		if (seen.vlan != vid)
			die("an answer to a datagram in VLAN %u has the tag %#x", vid, seen.vlan);
	}
	check_ipv6(qp);
	WANT(!ibv_destroy_qp(qp) && !ibv_destroy_ah(tagged) && !ibv_destroy_ah(plain) &&
	     !ibv_destroy_ah(reply));
	say("datagrams have the tag of their VLAN, and none outside of it");
}

int main(int argc, char **argv)
{
	set_up();
	if (argc == 2 && !strcmp(argv[1], "flows"))
		test_flows();
	else if (argc == 4 && !strcmp(argv[1], "vlan"))
		test_vlan(argv[2], atoi(argv[3]));
	else
		die("usage: %s flows | vlan ADDRESS VID", argv[0]);
	puts("PASS");
	return 0;
}
