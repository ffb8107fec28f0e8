// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * foreign_mads: management packets from the network to QP 1 of the other guest.
 *
 *	foreign_mads			is asked
 *	foreign_mads HOST		asks
 *
 * Its counters are not for a peer: each attribute of the performance management
 * class (IBTA volume 1, 16.1) is answered as not supported. Packets of any
 * content and length do no harm: afterwards it answers as before, and its own
 * files in sysfs are readable.
 */
#include "common.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define PORT 18735
#define QP1_QKEY 0x80010000
#define GRH 40
#define MAD 256
#define SLOTS 128
#define RANDOM 3000
#define TIMEOUT_MS 20000
/* After a flood the next request may be lost. */
#define ANSWER_MS 500
/* Offsets and values of fields of a management packet (IBTA volume 1, 13.4.2). */
#define CLASS_AT 1
#define VERSION_AT 2
#define METHOD_AT 3
#define STATUS_AT 4
#define TID_AT 8
#define ATTRIBUTE_AT 16
#define DATA_AT 64
#define PERFORMANCE 0x04
#define CONNECTIONS 0x07
#define GET 0x01
#define GET_RESP 0x81
#define UNSUPPORTED 0x000c

static struct device device;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
/* Receive buffers, then the packet that is sent. */
static uint8_t *memory;
static uint8_t *sent(void)
{
	return memory + SLOTS * (GRH + MAD);
}

static void receive(unsigned int slot)
{
	struct ibv_sge piece = {
		(uintptr_t)memory + slot * (GRH + MAD), GRH + MAD, mr->lkey
	};
	struct ibv_recv_wr work = { .wr_id = slot, .sg_list = &piece, .num_sge = 1 }, *bad;

	WANT(!ibv_post_recv(qp, &work, &bad));
}

static void create(int fd)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = SLOTS, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QP1_QKEY
	};
	struct ibv_ah_attr to = {
		.is_global = 1, .port_num = 1,
		.grh = { .sgid_index = device.gid_index, .hop_limit = 64 },
	};

	memory = anonymous((SLOTS + 1) * (GRH + MAD));
	mr = region(&device, memory, (SLOTS + 1) * (GRH + MAD), false);
	cq = ibv_create_cq(device.context, 2 * SLOTS, NULL, NULL, 0);
	WANT(cq);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(device.pd, &init);
	WANT(qp);
	WANT(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	for (unsigned int slot = 0; slot < SLOTS; slot++)
		receive(slot);
	receive_all(fd, &to.grh.dgid, sizeof(to.grh.dgid));
	ah = ibv_create_ah(device.pd, &to);
	WANT(ah);
}

/* Sends the packet, and waits until it has left. Answers that come meanwhile are dropped. */
static void send_mad(uint32_t length)
{
	struct ibv_sge piece = { (uintptr_t)sent(), length, mr->lkey };
	struct ibv_send_wr work = {
		.wr_id = SLOTS, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
		.wr.ud = { .ah = ah, .remote_qpn = 1, .remote_qkey = QP1_QKEY },
	}, *bad;
	uint64_t end = now_ms() + TIMEOUT_MS;
	struct ibv_wc wc;

	WANT(!ibv_post_send(qp, &work, &bad));
	for (;;) {
		int count = ibv_poll_cq(cq, 1, &wc);

		WANT(count >= 0);
		if (now_ms() > end)
			die("a datagram does not complete");
		if (!count)
			continue;
		WANT(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == SLOTS)
			return;
		receive(wc.wr_id);
	}
}

/* The answer to the request with this transaction identifier, or NULL if none comes in time. */
static const uint8_t *answer(uint64_t tid, unsigned int ms)
{
	uint64_t end = now_ms() + ms;
	struct ibv_wc wc;

	while (now_ms() < end) {
		const uint8_t *mad;
		int count = ibv_poll_cq(cq, 1, &wc);

		WANT(count >= 0);
		if (!count)
			continue;
		WANT(wc.status == IBV_WC_SUCCESS);
		mad = memory + wc.wr_id * (GRH + MAD) + GRH;
		if (wc.byte_len == GRH + MAD && mad[METHOD_AT] == GET_RESP &&
		    !memcmp(mad + TID_AT, &tid, sizeof(tid)))
			return mad;
		receive(wc.wr_id);
	}
	return NULL;
}

/* Requests an attribute. The answer must say that it is not supported. */
static void ask(uint16_t attribute)
{
	static uint64_t last;
	const uint8_t *mad;

	do {
		/* A datagram may be lost. The answer has the identifier of the request. */
		last++;
		memset(sent(), 0, MAD);
		sent()[0] = sent()[VERSION_AT] = 1;
		sent()[CLASS_AT] = PERFORMANCE;
		sent()[METHOD_AT] = GET;
		memcpy(sent() + TID_AT, &last, sizeof(last));
		sent()[ATTRIBUTE_AT] = attribute >> 8;
		sent()[ATTRIBUTE_AT + 1] = attribute;
		/* PortSelect: its only port. */
		sent()[DATA_AT + 1] = 1;
		send_mad(MAD);
		mad = answer(last, ANSWER_MS);
		if (last > 200)
			die("attribute %#x is not answered", attribute);
	} while (!mad);
	if ((mad[STATUS_AT] << 8 | mad[STATUS_AT + 1]) != UNSUPPORTED)
		die("attribute %#x has status %#x", attribute,
		    mad[STATUS_AT] << 8 | mad[STATUS_AT + 1]);
	if (memcmp(mad + DATA_AT, sent() + DATA_AT, MAD - DATA_AT))
		die("the answer to attribute %#x has data", attribute);
	receive((mad - GRH - memory) / (GRH + MAD));
}

static void ask_for_counters(void)
{
	ask(0x01); /* ClassPortInfo */
	ask(0x12); /* PortCounters */
	ask(0x1d); /* PortCountersExtended */
}

static void be_asker(const char *host)
{
	int fd = connect_to(host, PORT, TIMEOUT_MS);
	struct rng rng = { 5 };
	uint8_t done = 1;

	create(fd);
	ask_for_counters();
	say("a peer does not get the counters");
	for (unsigned int i = 0; i < RANDOM; i++) {
		for (unsigned int at = 0; at < MAD; at++)
			sent()[at] = rng_next(&rng);
		sent()[0] = 1;
		/* Most of them of classes and methods that exist. */
		if (rng_below(&rng, 4))
			sent()[CLASS_AT] = rng_below(&rng, 2) ? PERFORMANCE : rng_below(&rng, 16);
		/* The connection manager would go on sending by itself. */
		if (sent()[CLASS_AT] == CONNECTIONS)
			sent()[CLASS_AT] = PERFORMANCE;
		if (rng_below(&rng, 4))
			sent()[METHOD_AT] = rng_below(&rng, 8) | (rng_below(&rng, 2) ? 0x80 : 0);
		if (rng_below(&rng, 2))
			memcpy(sent() + ATTRIBUTE_AT, (uint8_t[]){ 0, 0x10 | rng_below(&rng, 16) }, 2);
		send_mad(rng_below(&rng, 3) ? MAD : rng_below(&rng, MAD + 1));
	}
	ask_for_counters();
	send_all(fd, &done, sizeof(done));
	receive_all(fd, &done, sizeof(done));
	say("all right");
}

static void be_asked(void)
{
	int fd = accept_from(listen_on(PORT));
	char path[256];
	uint8_t done;

	send_all(fd, &device.gid, sizeof(device.gid));
	receive_all(fd, &done, sizeof(done));
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/counters/port_rcv_packets",
		 ibv_get_device_name(device.context->device));
	/* All packets have arrived: the last one has been answered. */
	if (read_number(path, -1) < RANDOM)
		die("%s is %ld", path, read_number(path, -1));
	send_all(fd, &done, sizeof(done));
	say("all right");
}

int main(int argc, char **argv)
{
	device_open(&device);
	if (argc == 2)
		be_asker(argv[1]);
	else
		be_asked();
	return 0;
}
