// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * raw_frames: frames between a raw queue pair in one guest and a packet socket
 * in the other one, whose interface may have any driver. The socket returns
 * each frame to its sender. Lengths go from the shortest to the longest that
 * the MTU allows; contents and order of the frames that come back are compared.
 *
 *	raw_frames            returns frames
 *	raw_frames ADDRESS    sends and receives by a raw queue pair
 */
#include "common.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TCP_PORT 18690
#define SOON_MS 20000
#define FRAMES 320
/* Frames under way. A packet socket has room for all of them. */
#define BURST 16
#define SLOT 16384
#define SEND_ID BURST
/* IEEE 802, Local Experimental Ethertype 1. */
#define TYPE 0x88b5

/* Source of the returned frames: the flow leaves all others to the interface. */
static const uint8_t returned_mac[ETH_ALEN] = { 0x02, 0xfa, 0x01, 0x02, 0x03, 0x05 };

struct head {
	struct ethhdr eth;
	uint32_t number;
} __attribute__((packed));

static struct device device;
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
/* BURST receive buffers, and then as many frames that are sent. */
static uint8_t *memory;

static const char *netdev(void)
{
	const char *name = getenv("NETDEV");

	if (!name)
		die("NETDEV is not set");
	return name;
}

/* --- the guest that returns frames ------------------------------------------ */

static int packet_socket(void)
{
	struct sockaddr_ll place = {
		.sll_family = AF_PACKET, .sll_protocol = htons(TYPE),
		.sll_ifindex = if_nametoindex(netdev()),
	};
	int fd = socket(AF_PACKET, SOCK_RAW, htons(TYPE));

	WANT(fd >= 0 && !bind(fd, (struct sockaddr *)&place, sizeof(place)));
	return fd;
}

/* Until the other guest closes its connection. */
static void return_frames(void)
{
	uint8_t own_mac[ETH_ALEN], frame[SLOT];
	struct pollfd polls[2] = { { .events = POLLIN }, { .events = POLLIN } };
	unsigned int count = 0;

	polls[0].fd = packet_socket();
	polls[1].fd = accept_from(listen_on(TCP_PORT));
	read_own_mac(own_mac);
	send_all(polls[1].fd, own_mac, sizeof(own_mac));
	for (;;) {
		struct ethhdr *eth = (void *)frame;
		ssize_t length;

		WANT(poll(polls, 2, SOON_MS) > 0);
		if (!polls[0].revents)
			break;
		length = recv(polls[0].fd, frame, sizeof(frame), 0);
		WANT(length >= (ssize_t)sizeof(struct head));
		WANT(!memcmp(eth->h_dest, own_mac, ETH_ALEN));
		memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
		memcpy(eth->h_source, returned_mac, ETH_ALEN);
		WANT(send(polls[0].fd, frame, length, 0) == length);
		count++;
	}
	say("%u frames returned", count);
	WANT(count == FRAMES);
}

/* --- the guest with the raw queue pair --------------------------------------- */

static void make_qp(void)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RAW_PACKET, .sq_sig_all = 1,
		.cap = { .max_send_wr = BURST, .max_recv_wr = BURST, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	cq = ibv_create_cq(device.context, 2 * BURST, NULL, NULL, 0);
	WANT(cq);
	init.send_cq = cq;
	init.recv_cq = cq;
	qp = ibv_create_qp(device.pd, &init);
	if (!qp)
		die("cannot create a raw queue pair: %m");
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	for (attr.qp_state = IBV_QPS_RTR; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static struct ibv_flow *flow_of_returned(void)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .port = 1,
			  .num_of_specs = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) },
	};
	struct ibv_flow *flow;

	memcpy(rule.eth.val.src_mac, returned_mac, ETH_ALEN);
	memset(rule.eth.mask.src_mac, 0xff, ETH_ALEN);
	flow = ibv_create_flow(qp, &rule.attr);
	if (!flow)
		die("cannot create a flow: %m");
	return flow;
}

static void post_receive(uint64_t slot)
{
	struct ibv_sge piece = { (uintptr_t)memory + slot * SLOT, SLOT, mr->lkey };
	struct ibv_recv_wr work = { .wr_id = slot, .sg_list = &piece, .num_sge = 1 }, *bad;

	WANT(!ibv_post_recv(qp, &work, &bad));
}

/* The shortest frame, the longest, and others between them. */
static uint32_t length_of(uint32_t number, uint32_t longest)
{
	switch (number) {
	case 0:
		return ETH_ZLEN;
	case 1:
		return longest;
	default:
		return ETH_ZLEN + mix64(number) % (longest - ETH_ZLEN);
	}
}

static void send_frame(uint32_t number, uint32_t length, const uint8_t *peer_mac,
		       const uint8_t *own_mac)
{
	uint8_t *frame = memory + (BURST + number % BURST) * SLOT;
	struct ibv_sge piece = { (uintptr_t)frame, length, mr->lkey };
	struct ibv_send_wr work = {
		.wr_id = SEND_ID, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
	}, *bad;
	struct head head = { .eth.h_proto = htons(TYPE), .number = number };

	memcpy(head.eth.h_dest, peer_mac, ETH_ALEN);
	memcpy(head.eth.h_source, own_mac, ETH_ALEN);
	memcpy(frame, &head, sizeof(head));
	content_fill(frame + sizeof(head), content_key(6, number, 0), 0, length - sizeof(head));
	WANT(!ibv_post_send(qp, &work, &bad));
}

/* The completion of the next frame that has come back. */
static void check_frame(const struct ibv_wc *wc, uint32_t number, uint32_t length,
			const uint8_t *own_mac)
{
	const uint8_t *frame = memory + wc->wr_id * SLOT;
	struct head head;

	memcpy(&head, frame, sizeof(head));
	if (head.number != number || wc->byte_len != length)
		die("frame %u of %u bytes has come back, expected %u of %u bytes", head.number,
		    wc->byte_len, number, length);
	WANT(!memcmp(head.eth.h_dest, own_mac, ETH_ALEN));
	WANT(!memcmp(head.eth.h_source, returned_mac, ETH_ALEN));
	WANT(!content_wrong(frame + sizeof(head), content_key(6, number, 0), 0,
			    length - sizeof(head)));
}

/* Sends a burst, and waits until all of it has been sent and has come back. */
static void burst(uint32_t first, uint32_t longest, const uint8_t *peer_mac,
		  const uint8_t *own_mac)
{
	uint32_t sent = 0, back = 0;
	uint64_t deadline = now_ms() + SOON_MS;
	struct ibv_wc wc;

	for (uint32_t number = first; number < first + BURST; number++)
		send_frame(number, length_of(number, longest), peer_mac, own_mac);
	while (sent < BURST || back < BURST) {
		if (now_ms() > deadline)
			die("of frames %u to %u, %u are sent and %u have come back", first,
			    first + BURST - 1, sent, back);
		if (ibv_poll_cq(cq, 1, &wc) <= 0)
			continue;
		WANT(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == SEND_ID) {
			WANT(wc.opcode == IBV_WC_SEND);
			sent++;
			continue;
		}
		WANT(wc.opcode == IBV_WC_RECV);
		check_frame(&wc, first + back, length_of(first + back, longest), own_mac);
		post_receive(wc.wr_id);
		back++;
	}
}

static void test(const char *peer)
{
	int kmsg = kmsg_open(), control = connect_to(peer, TCP_PORT, SOON_MS);
	uint8_t own_mac[ETH_ALEN], peer_mac[ETH_ALEN];
	struct ibv_flow *flow;
	uint32_t longest;
	char path[256];

	if (control < 0)
		die("%s does not answer", peer);
	receive_all(control, peer_mac, sizeof(peer_mac));
	read_own_mac(own_mac);
	snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", netdev());
	longest = read_number(path, 0) + ETH_HLEN;
	WANT(longest > ETH_ZLEN && longest <= SLOT);
	device_open(&device);
	memory = anonymous(2 * BURST * SLOT);
	mr = region(&device, memory, 2 * BURST * SLOT, false);
	make_qp();
	flow = flow_of_returned();
	for (uint64_t slot = 0; slot < BURST; slot++)
		post_receive(slot);
	for (uint32_t first = 0; first < FRAMES; first += BURST)
		burst(first, longest, peer_mac, own_mac);
	WANT(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	WANT(!ibv_dereg_mr(mr));
	close(control);
	WANT(!kmsg_complaints(kmsg));
	say("%u frames of up to %u bytes sent and received", FRAMES, longest);
	puts("all right");
}

int main(int argc, char **argv)
{
	if (argc > 1)
		test(argv[1]);
	else
		return_frames();
	return 0;
}
