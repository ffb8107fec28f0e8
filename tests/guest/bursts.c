// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * bursts: much at once, between two guests, and every byte compared.
 *
 *	bursts			receives
 *	bursts HOST		sends
 *
 * 64 KiB of datagrams of 64 bytes in one list of requests: with buffers for all
 * of them none is lost, with buffers for half of them the first half arrives.
 * Then 100 and 1000 queue pairs, each with a WRITE, a SEND and a READ of 16 KiB:
 * each completes once, in a bounded time.
 */
#include "common.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT 18670
#define QKEY 0x11111111
#define GRH 40
#define DATAGRAM 64
#define DATAGRAMS 1024
#define ROUNDS 20
#define BLOCK (16UL << 10)
#define MOST_QPS 1000
/* For all requests that are posted at once; it takes some hundred milliseconds. */
#define TIMEOUT_MS 30000
/* Nothing more comes after this time. */
#define QUIET_MS 200

enum operation { WRITE, SEND, READ, OPERATIONS };

static struct device device;
static int link_fd;
static bool sends;

/* Both sides have come here. */
static void meet(void)
{
	char byte = 'm';

	send_all(link_fd, &byte, 1);
	receive_all(link_fd, &byte, 1);
}

/* The next completion; ends the program if none comes before `end`, or if it is none of success. */
static struct ibv_wc next_completion(struct ibv_cq *cq, uint64_t end)
{
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		if (now_ms() > end)
			die("a completion does not come");
	WANT(count == 1);
	if (wc.status != IBV_WC_SUCCESS)
		die("request %#llx ended with %s", (unsigned long long)wc.wr_id,
		    ibv_wc_status_str(wc.status));
	return wc;
}

/* --- datagrams ------------------------------------------------------------ */

struct datagrams {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	struct address peer;
	struct ibv_ah *ah;
};

static void datagrams_create(struct datagrams *d)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = DATAGRAMS, .max_recv_wr = DATAGRAMS, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_ah_attr to = {
		.is_global = 1, .port_num = 1,
		.grh = { .sgid_index = device.gid_index, .hop_limit = 64 },
	};
	struct address own = { 0 };

	d->memory = anonymous(DATAGRAMS * (GRH + DATAGRAM));
	d->mr = region(&device, d->memory, DATAGRAMS * (GRH + DATAGRAM), false);
	d->cq = ibv_create_cq(device.context, DATAGRAMS, NULL, NULL, 0);
	WANT(d->cq);
	init.send_cq = init.recv_cq = d->cq;
	d->qp = ibv_create_qp(device.pd, &init);
	WANT(d->qp);
	WANT(!ibv_modify_qp(d->qp, &attr,
			    IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(d->qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(d->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	own.qpn = d->qp->qp_num;
	memcpy(own.gid, &device.gid, sizeof(own.gid));
	send_all(link_fd, &own, sizeof(own));
	receive_all(link_fd, &d->peer, sizeof(d->peer));
	memcpy(&to.grh.dgid, d->peer.gid, sizeof(d->peer.gid));
	d->ah = ibv_create_ah(device.pd, &to);
	WANT(d->ah);
}

static void datagrams_destroy(struct datagrams *d)
{
	WANT(!ibv_destroy_ah(d->ah) && !ibv_destroy_qp(d->qp) && !ibv_destroy_cq(d->cq));
	WANT(!ibv_dereg_mr(d->mr));
}

/* All in one list; only the last one is signalled. */
static void datagrams_send(struct datagrams *d, uint64_t round)
{
	static struct ibv_send_wr work[DATAGRAMS];
	static struct ibv_sge pieces[DATAGRAMS];
	struct ibv_send_wr *bad;

	for (uint32_t i = 0; i < DATAGRAMS; i++) {
		uint8_t *at = d->memory + i * DATAGRAM;

		content_fill(at, content_key(round, 0, i), 0, DATAGRAM);
		pieces[i] = (struct ibv_sge) { (uintptr_t)at, DATAGRAM, d->mr->lkey };
		work[i] = (struct ibv_send_wr) {
			.wr_id = i, .sg_list = &pieces[i], .num_sge = 1,
			.next = i + 1 < DATAGRAMS ? &work[i + 1] : NULL,
			.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(i),
			.send_flags = i + 1 < DATAGRAMS ? 0 : IBV_SEND_SIGNALED,
			.wr.ud = { .ah = d->ah, .remote_qpn = d->peer.qpn, .remote_qkey = QKEY },
		};
	}
	WANT(!ibv_post_send(d->qp, work, &bad));
	WANT(next_completion(d->cq, now_ms() + TIMEOUT_MS).wr_id == DATAGRAMS - 1);
}

static void datagrams_post(struct datagrams *d, uint32_t buffers)
{
	memset(d->memory, 0, DATAGRAMS * (GRH + DATAGRAM));
	for (uint32_t i = 0; i < buffers; i++) {
		struct ibv_sge piece = { (uintptr_t)d->memory + i * (GRH + DATAGRAM),
					 GRH + DATAGRAM, d->mr->lkey };
		struct ibv_recv_wr work = { .wr_id = i, .sg_list = &piece, .num_sge = 1 }, *bad;

		WANT(!ibv_post_recv(d->qp, &work, &bad));
	}
}

static void datagrams_receive(struct datagrams *d, uint64_t round, uint32_t buffers)
{
	uint64_t end = now_ms() + TIMEOUT_MS;
	struct ibv_wc wc;

	for (uint32_t i = 0; i < buffers; i++) {
		const uint8_t *at = d->memory + i * (GRH + DATAGRAM) + GRH;

		wc = next_completion(d->cq, end);
		if (wc.wr_id != i || ntohl(wc.imm_data) != i || wc.byte_len != GRH + DATAGRAM)
			die("round %llu: datagram %u came as number %u, with %u bytes",
			    (unsigned long long)round, i, ntohl(wc.imm_data), wc.byte_len);
		if (content_wrong(at, content_key(round, 0, i), 0, DATAGRAM))
			die("round %llu: datagram %u has other data", (unsigned long long)round, i);
	}
	sleep_ms(buffers < DATAGRAMS ? QUIET_MS : 0);
	WANT(!ibv_poll_cq(d->cq, 1, &wc));
}

static void test_datagrams(void)
{
	struct datagrams d;

	datagrams_create(&d);
	for (uint64_t round = 0; round < ROUNDS; round++) {
		/* In the last round the second half is dropped. */
		uint32_t buffers = round + 1 < ROUNDS ? DATAGRAMS : DATAGRAMS / 2;

		if (!sends)
			datagrams_post(&d, buffers);
		meet();
		if (sends)
			datagrams_send(&d, round);
		else
			datagrams_receive(&d, round, buffers);
		meet();
	}
	datagrams_destroy(&d);
	say("%u bursts of %u datagrams", ROUNDS, DATAGRAMS);
}

/* --- connections ---------------------------------------------------------- */

/* What the sender must know of the receiver's memory. */
struct offer {
	uint64_t at;
	uint32_t rkey;
	uint32_t reserved;
};

static uint64_t key_of(uint32_t qp, enum operation operation)
{
	return content_key(MOST_QPS, operation, qp);
}

static void post(struct endpoint *end, uint32_t i, enum operation operation, const struct ibv_mr *mr,
		 const struct offer *offer, uint32_t count)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_SEND,
						      IBV_WR_RDMA_READ };
	struct request request = {
		.opcode = opcodes[operation],
		.id = i * OPERATIONS + operation,
		.local = (uint8_t *)mr->addr + ((uint64_t)operation * count + i) * BLOCK,
		.length = BLOCK,
		.lkey = mr->lkey,
		/* What is WRITTEN is READ. */
		.remote = offer->at + i * BLOCK,
		.rkey = offer->rkey,
	};

	endpoint_post(end, &request);
}

/* Posts everything, waits for everything, and compares the data that was read back. */
static void connections_send(struct endpoint *ends, struct ibv_cq *cq, uint32_t count,
			     const struct ibv_mr *mr, const struct offer *offer)
{
	uint8_t *memory = mr->addr, *done = calloc(count, OPERATIONS);
	uint64_t start, took;

	WANT(done);
	for (uint32_t i = 0; i < count; i++)
		for (enum operation o = WRITE; o <= SEND; o++)
			content_fill(memory + ((uint64_t)o * count + i) * BLOCK, key_of(i, o), 0, BLOCK);
	start = now_ms();
	for (uint32_t i = 0; i < count; i++)
		for (enum operation o = WRITE; o < OPERATIONS; o++)
			post(&ends[i], i, o, mr, offer, count);
	for (uint32_t n = 0; n < count * OPERATIONS; n++) {
		struct ibv_wc wc = next_completion(cq, start + TIMEOUT_MS);

		WANT(wc.wr_id < (uint64_t)count * OPERATIONS && !done[wc.wr_id]);
		done[wc.wr_id] = 1;
	}
	took = now_ms() - start;
	for (uint32_t i = 0; i < count; i++)
		if (content_wrong(memory + ((uint64_t)READ * count + i) * BLOCK, key_of(i, WRITE), 0,
				  BLOCK))
			die("queue pair %u has read other data than it has written", i);
	free(done);
	say("%u queue pairs: %u operations of 16 KiB in %llu ms", count, count * OPERATIONS,
	    (unsigned long long)took);
}

static void connections_receive(struct ibv_cq *cq, uint32_t count, const struct ibv_mr *mr)
{
	const uint8_t *memory = mr->addr;
	uint64_t end = now_ms() + TIMEOUT_MS;
	uint8_t *done = calloc(count, 1);
	struct ibv_wc wc;

	WANT(done);
	for (uint32_t n = 0; n < count; n++) {
		wc = next_completion(cq, end);
		WANT(wc.wr_id < count && !done[wc.wr_id] && wc.byte_len == BLOCK);
		done[wc.wr_id] = 1;
	}
	/* The sender has all its completions. */
	meet();
	WANT(!ibv_poll_cq(cq, 1, &wc));
	for (uint32_t i = 0; i < count; i++)
		for (enum operation o = WRITE; o <= SEND; o++)
			if (content_wrong(memory + ((uint64_t)o * count + i) * BLOCK, key_of(i, o), 0,
					  BLOCK))
				die("queue pair %u has received other data", i);
	free(done);
}

static void test_connections(uint32_t count)
{
	struct endpoint *ends = calloc(count, sizeof(*ends));
	struct ibv_cq *cq = ibv_create_cq(device.context, count * OPERATIONS, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = OPERATIONS, .max_recv_wr = 1, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	size_t length = (size_t)OPERATIONS * count * BLOCK;
	uint8_t *memory = anonymous(length);
	struct ibv_mr *mr = region(&device, memory, length, false);
	struct offer offer = { (uintptr_t)memory, mr->rkey, 0 };

	WANT(ends && cq);
	for (uint32_t i = 0; i < count; i++) {
		struct ibv_qp *qp = ibv_create_qp(device.pd, &init);

		if (!qp)
			die("cannot create queue pair %u: %m", i);
		endpoint_adopt(&ends[i], &device, cq, qp);
		endpoint_meet(&ends[i], link_fd);
		endpoint_start(&ends[i]);
		if (!sends)
			endpoint_receive(&ends[i], i, memory + ((uint64_t)SEND * count + i) * BLOCK,
					 BLOCK, mr->lkey);
	}
	send_all(link_fd, &offer, sizeof(offer));
	receive_all(link_fd, &offer, sizeof(offer));
	if (sends) {
		connections_send(ends, cq, count, mr, &offer);
		meet();
	} else {
		connections_receive(cq, count, mr);
	}
	meet();
	for (uint32_t i = 0; i < count; i++)
		WANT(!ibv_destroy_qp(ends[i].qp));
	WANT(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
	free(ends);
}

int main(int argc, char **argv)
{
	if (argc > 2)
		die("usage: bursts [HOST]");
	sends = argc == 2;
	device_open(&device);
	link_fd = sends ? connect_to(argv[1], PORT, 10000) : accept_from(listen_on(PORT));
	if (link_fd < 0)
		die("%s does not answer", argv[1]);
	test_datagrams();
	test_connections(100);
	test_connections(MOST_QPS);
	say("all right");
	return 0;
}
