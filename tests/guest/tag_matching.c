// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Tag matching between two guests: messages in any order, eager and by
 * rendezvous, expected and not.
 *
 *	tag_matching [--on-demand]		receives, and checks every byte
 *	tag_matching [--on-demand] HOST		sends
 *
 * A message's tag says what it is: both sides make it from a number. In each
 * round the receiver adds a buffer for every second number before it says go,
 * and takes the others, which come unexpected, from the receive queue: it
 * reads their data itself, as software does.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <infiniband/tm_types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

#define PORT 18640
#define MESSAGES 64
#define ROUNDS 12
#define LONGEST 65536U
#define EAGER_LIMIT 16384U
#define HEADERS (sizeof(struct ibv_tmh) + sizeof(struct ibv_rvh))
#define SYNC_ID 1000000
#define TAG(round, number) ((uint64_t)(round) << 40 | (number))

/* What a message is like; the same on both sides. */
static uint64_t content(unsigned int round, unsigned int number)
{
	return content_key(7, round, number);
}

static uint32_t length_of(unsigned int round, unsigned int number)
{
	return mix64(content(round, number)) % (LONGEST + 1);
}

static bool is_rendezvous(unsigned int round, unsigned int number)
{
	return length_of(round, number) > EAGER_LIMIT || mix64(number) % 4 == 0;
}

static bool is_expected(unsigned int number)
{
	return number % 2 == 0;
}

/* --- who receives -------------------------------------------------------- */

struct receiver {
	struct device device;
	struct endpoint end;
	struct ibv_cq_ex *cq;
	struct ibv_srq *srq;
	uint8_t *tagged;	/* MESSAGES buffers of LONGEST bytes */
	uint8_t *plain;		/* as many, with room for the headers */
	struct ibv_mr *tagged_mr;
	struct ibv_mr *plain_mr;
	uint32_t unexpected;	/* handled */
	bool matched[MESSAGES];
	bool done[MESSAGES];
};

#define PLAIN_LENGTH (LONGEST + 4096)

static uint8_t *tagged_buffer(struct receiver *r, unsigned int number)
{
	return r->tagged + (size_t)number * LONGEST;
}

static void post_plain(struct receiver *r, unsigned int number)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)r->plain + (size_t)number * PLAIN_LENGTH,
		.length = PLAIN_LENGTH,
		.lkey = r->plain_mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 }, *bad;

	WANT(!ibv_post_srq_recv(r->srq, &wr, &bad));
}

static uint32_t post_op(struct receiver *r, enum ibv_ops_wr_opcode opcode, uint64_t id, int flags,
			uint32_t handle, unsigned int number, uint64_t tag)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)tagged_buffer(r, number),
		.length = LONGEST,
		.lkey = r->tagged_mr->lkey,
	};
	struct ibv_ops_wr wr = {
		.wr_id = id,
		.opcode = opcode,
		.flags = flags,
		.tm = {
			.unexpected_cnt = r->unexpected,
			.handle = handle,
			.add = {
				.recv_wr_id = number,
				.sg_list = &sge,
				.num_sge = 1,
				.tag = tag,
				.mask = UINT64_MAX,
			},
		},
	}, *bad;

	WANT(!ibv_post_srq_ops(r->srq, &wr, &bad));
	return wr.tm.handle;
}

struct completion {
	uint64_t id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	unsigned int flags;
	uint32_t length;
	struct ibv_wc_tm_info tm;
};

static bool next(struct receiver *r, struct completion *c, unsigned int ms)
{
	struct ibv_poll_cq_attr none = {};
	uint64_t give_up = now_ms() + ms;

	while (ibv_start_poll(r->cq, &none))
		if (now_ms() > give_up)
			return false;
	c->id = r->cq->wr_id;
	c->status = r->cq->status;
	c->opcode = ibv_wc_read_opcode(r->cq);
	c->flags = ibv_wc_read_wc_flags(r->cq);
	c->length = ibv_wc_read_byte_len(r->cq);
	ibv_wc_read_tm_info(r->cq, &c->tm);
	ibv_end_poll(r->cq);
	return true;
}

static struct completion expect(struct receiver *r, enum ibv_wc_opcode opcode, uint64_t id)
{
	struct completion c;

	WANT(next(r, &c, 20000));
	/* proves: read_opcode, post_srq_ops */
	if (c.opcode != opcode || c.id != id)
		die("opcode %d of %lu, not %d of %lu", c.opcode, (unsigned long)c.id, opcode,
		    (unsigned long)id);
	return c;
}

static void receiver_create(struct receiver *r, bool on_demand)
{
	struct ibv_cq_init_attr_ex cq = {
		.cqe = 8 * MESSAGES,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_TM_INFO,
	};
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = MESSAGES, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
		.srq_type = IBV_SRQT_TM,
		.tm_cap = { .max_num_tags = MESSAGES, .max_ops = MESSAGES },
	};
	struct ibv_qp_init_attr qp = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	const struct ibv_tm_caps *caps = &r->device.attributes.tm_caps;
	struct ibv_cq *send_cq;

	device_open(&r->device);
	/* proves: tm_caps, IBV_TM_CAP_RC */
	WANT(caps->flags & IBV_TM_CAP_RC && caps->max_num_tags >= MESSAGES &&
	     caps->max_ops >= MESSAGES && caps->max_rndv_hdr_size >= HEADERS && caps->max_sge);
	r->cq = ibv_create_cq_ex(r->device.context, &cq);
	if (!r->cq)
		die("ibv_create_cq_ex: %m");
	srq.pd = r->device.pd;
	srq.cq = ibv_cq_ex_to_cq(r->cq);
	srq.tm_cap.max_num_tags = caps->max_num_tags + 1;
	WANT(!ibv_create_srq_ex(r->device.context, &srq));
	srq.tm_cap.max_num_tags = MESSAGES;
	r->srq = ibv_create_srq_ex(r->device.context, &srq);
	/* proves: IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_TM */
	if (!r->srq)
		die("ibv_create_srq_ex: %m");
	/* The program's own requests complete elsewhere. */
	send_cq = ibv_create_cq(r->device.context, 16, NULL, NULL, 0);
	WANT(send_cq);
	qp.srq = r->srq;
	qp.send_cq = send_cq;
	qp.recv_cq = send_cq;
	endpoint_adopt(&r->end, &r->device, send_cq, ibv_create_qp(r->device.pd, &qp));
	r->tagged = anonymous((size_t)MESSAGES * LONGEST);
	r->plain = anonymous((size_t)MESSAGES * PLAIN_LENGTH);
	r->tagged_mr = region(&r->device, r->tagged, (size_t)MESSAGES * LONGEST, on_demand);
	r->plain_mr = region(&r->device, r->plain, (size_t)MESSAGES * PLAIN_LENGTH, on_demand);
}

/* One request of our own, on the queue pair on which the device has its own. */
static void own_request(struct receiver *r, enum ibv_wr_opcode opcode, void *local,
			uint32_t length, uint64_t remote, uint32_t rkey)
{
	struct request request = {
		.opcode = opcode,
		.id = 5,
		.local = local,
		.length = length,
		.lkey = r->plain_mr->lkey,
		.remote = remote,
		.rkey = rkey,
		.flags = IBV_SEND_SIGNALED,
	};
	struct ibv_wc wc;

	endpoint_post(&r->end, &request);
	WANT(endpoint_wait(&r->end, &wc, 20000) && !wc.status && wc.wr_id == 5);
}

/* A message for which there was no buffer, with its headers. */
static void handle_unexpected(struct receiver *r, unsigned int round, const struct completion *c)
{
	uint8_t *at = r->plain + (size_t)c->id * PLAIN_LENGTH;
	struct ibv_tmh *tmh = (struct ibv_tmh *)at;
	struct ibv_rvh *rvh = (struct ibv_rvh *)(tmh + 1);
	unsigned int number = be64toh(tmh->tag) & 0xffffff;
	uint32_t length;

	WANT(number < MESSAGES && !is_expected(number) && !r->done[number]);
	WANT(be64toh(tmh->tag) == TAG(round, number) && ntohl(tmh->app_ctx) == number);
	length = length_of(round, number);
	if (tmh->opcode == IBV_TMH_EAGER) {
		/* proves: read_byte_len */
		WANT(c->length == sizeof(*tmh) + length);
		WANT(!content_wrong(at + sizeof(*tmh), content(round, number), 0, length));
	} else {
		WANT(tmh->opcode == IBV_TMH_RNDV && ntohl(rvh->len) == length);
		own_request(r, IBV_WR_RDMA_READ, at + HEADERS, length, be64toh(rvh->va),
			    ntohl(rvh->rkey));
		WANT(!content_wrong(at + HEADERS, content(round, number), 0, length));
		tmh->opcode = IBV_TMH_FIN;
		own_request(r, IBV_WR_SEND, at, HEADERS, 0, 0);
	}
	r->unexpected++;
	r->done[number] = true;
	post_plain(r, c->id);
}

static void handle_tagged(struct receiver *r, unsigned int round, const struct completion *c)
{
	unsigned int number = c->id;

	WANT(number < MESSAGES && is_expected(number) && !r->done[number]);
	if (c->flags & IBV_WC_TM_MATCH) {
		WANT(!r->matched[number]);
		/* proves: read_tm_info, IBV_WC_EX_WITH_TM_INFO, IBV_WC_TM_MATCH */
		WANT(c->tm.tag == TAG(round, number) && c->tm.priv == number);
		r->matched[number] = true;
	}
	if (c->flags & IBV_WC_TM_DATA_VALID) {
		uint32_t length = length_of(round, number);

		WANT(r->matched[number] && c->length == length);
		/* proves: IBV_WC_TM_DATA_VALID, IBV_WR_TAG_ADD */
		WANT(!content_wrong(tagged_buffer(r, number), content(round, number), 0, length));
		r->done[number] = true;
	}
}

static void receive_round(struct receiver *r, int fd, unsigned int round)
{
	uint32_t handle, left = MESSAGES;
	unsigned int number, i;
	struct completion c;

	memset(r->matched, 0, sizeof(r->matched));
	memset(r->done, 0, sizeof(r->done));
	for (number = 0; number < MESSAGES; number++)
		if (is_expected(number))
			post_op(r, IBV_WR_TAG_ADD, number, number % 4 ? 0 : IBV_OPS_SIGNALED, 0,
				number, TAG(round, number));
	for (number = 0; number < MESSAGES; number += 4) {
		c = expect(r, IBV_WC_TM_ADD, number);
		/* proves: IBV_WC_TM_ADD, IBV_OPS_SIGNALED */
		WANT(!c.status && !(c.flags & IBV_WC_TM_SYNC_REQ));
	}
	/* A buffer that is removed in time matches nothing; silently, and the other way. */
	for (i = 0; i < 3; i++) {
		handle = post_op(r, IBV_WR_TAG_ADD, 0, 0, 0, 1, TAG(round, 1));
		post_op(r, IBV_WR_TAG_DEL, 77, i ? IBV_OPS_SIGNALED : 0, handle, 0, 0);
		if (i)
			/* proves: IBV_WC_TM_DEL, IBV_WR_TAG_DEL */
			WANT(!expect(r, IBV_WC_TM_DEL, 77).status);
	}
	post_op(r, IBV_WR_TAG_DEL, 78, 0, handle, 0, 0);
	/* proves: IBV_WC_TM_ERR */
	WANT(expect(r, IBV_WC_TM_DEL, 78).status == IBV_WC_TM_ERR);

	send_all(fd, "", 1);
	while (left) {
		WANT(next(r, &c, 20000));
		if (c.status)
			die("message %lu of round %u: %s", (unsigned long)c.id, round,
			    ibv_wc_status_str(c.status));
		/* proves: IBV_WC_TM_RECV */
		WANT(c.opcode == IBV_WC_TM_RECV);
		if (c.flags & (IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID))
			handle_tagged(r, round, &c);
		else
			handle_unexpected(r, round, &c);
		for (left = 0, number = 0; number < MESSAGES; number++)
			left += !r->done[number];
	}
	/* The device does not match new messages before it knows which ones we have handled. */
	handle = post_op(r, IBV_WR_TAG_ADD, 79, IBV_OPS_SIGNALED, 0, 0, 1);
	/* proves: IBV_WC_TM_SYNC_REQ, read_wc_flags */
	WANT(expect(r, IBV_WC_TM_ADD, 79).flags == IBV_WC_TM_SYNC_REQ);
	post_op(r, IBV_WR_TAG_DEL, 80, IBV_OPS_SIGNALED, handle, 0, 0);
	expect(r, IBV_WC_TM_DEL, 80);
	post_op(r, IBV_WR_TAG_SYNC, SYNC_ID, IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC, 0, 0, 0);
	/* proves: IBV_WC_TM_SYNC, IBV_WR_TAG_SYNC, IBV_OPS_TM_SYNC */
	WANT(!expect(r, IBV_WC_TM_SYNC, SYNC_ID).flags);
	WANT(!next(r, &c, 20));
}

static void receiver_run(bool on_demand)
{
	struct receiver r = {};
	struct completion c;
	unsigned int i;
	int fd;

	receiver_create(&r, on_demand);
	fd = accept_from(listen_on(PORT));
	endpoint_meet(&r.end, fd);
	endpoint_start(&r.end);
	for (i = 0; i < MESSAGES; i++)
		post_plain(&r, i);
	for (i = 0; i < ROUNDS; i++)
		receive_round(&r, fd, i);
	/* The sender is about to send what does not fit. */
	{
		struct ibv_sge sge = { (uintptr_t)r.tagged, 40, r.tagged_mr->lkey };
		struct ibv_ops_wr wr = {
			.opcode = IBV_WR_TAG_ADD,
			.tm.add = {
				.recv_wr_id = 99,
				.sg_list = &sge,
				.num_sge = 1,
				.tag = 42,
				.mask = UINT64_MAX,
			},
		}, *bad;

		WANT(!ibv_post_srq_ops(r.srq, &wr, &bad));
	}
	send_all(fd, "", 1);
	c = expect(&r, IBV_WC_TM_RECV, 99);
	/* proves: IBV_WC_TM_RNDV_INCOMPLETE */
	WANT(c.status == IBV_WC_TM_RNDV_INCOMPLETE);
	WANT(r.tagged[0] == IBV_TMH_RNDV);
	/* A full list, and too many operations. */
	for (i = 0; i < MESSAGES; i++)
		post_op(&r, IBV_WR_TAG_ADD, i, IBV_OPS_SIGNALED, 0, i, 1);
	{
		struct ibv_ops_wr wr = { .opcode = IBV_WR_TAG_ADD }, *bad;

		WANT(ibv_post_srq_ops(r.srq, &wr, &bad) == ENOMEM && bad == &wr);
		for (i = 0; i < MESSAGES; i++)
			expect(&r, IBV_WC_TM_ADD, i);
		WANT(ibv_post_srq_ops(r.srq, &wr, &bad) == ENOMEM && bad == &wr);
		wr.opcode = IBV_WR_TAG_DEL;
		wr.tm.handle = MESSAGES;
		WANT(ibv_post_srq_ops(r.srq, &wr, &bad) == EINVAL);
	}
	send_all(fd, "", 1);
	receive_all(fd, &i, 1);
	endpoint_destroy(&r.end);
	WANT(!ibv_destroy_srq(r.srq));
	WANT(!ibv_destroy_cq(ibv_cq_ex_to_cq(r.cq)));
	say("%u unexpected messages, all right", r.unexpected);
}

/* --- who sends ------------------------------------------------------------ */

struct sender {
	struct device device;
	struct endpoint end;
	uint8_t *memory;	/* MESSAGES pieces: header, then data */
	struct ibv_mr *mr;
	uint8_t *fins;
	struct ibv_mr *fins_mr;
};

#define PIECE (LONGEST + 4096)

static uint8_t *write_message(struct sender *s, unsigned int round, unsigned int number,
			      uint32_t *length)
{
	uint8_t *at = s->memory + (size_t)number * PIECE;
	struct ibv_tmh *tmh = (struct ibv_tmh *)at;
	struct ibv_rvh *rvh = (struct ibv_rvh *)(tmh + 1);
	bool eager = !is_rendezvous(round, number);

	*length = length_of(round, number);
	memset(at, 0, HEADERS);
	tmh->opcode = eager ? IBV_TMH_EAGER : IBV_TMH_RNDV;
	tmh->app_ctx = htonl(number);
	tmh->tag = htobe64(TAG(round, number));
	if (eager) {
		content_fill(at + sizeof(*tmh), content(round, number), 0, *length);
		*length += sizeof(*tmh);
		return at;
	}
	rvh->va = htobe64((uintptr_t)at + HEADERS);
	rvh->rkey = htonl(s->mr->rkey);
	rvh->len = htonl(*length);
	content_fill(at + HEADERS, content(round, number), 0, *length);
	*length = HEADERS;
	return at;
}

static void send_message(struct sender *s, uint64_t id, void *at, uint32_t length)
{
	struct request request = {
		.opcode = IBV_WR_SEND,
		.id = id,
		.local = at,
		.length = length,
		.lkey = s->mr->lkey,
		.flags = IBV_SEND_SIGNALED,
	};

	endpoint_post(&s->end, &request);
}

static void send_round(struct sender *s, unsigned int round, struct rng *rng)
{
	unsigned int order[MESSAGES], i, sent = 0, fins = 0, wanted_fins = 0;
	bool told[MESSAGES] = {};
	struct ibv_wc wc;

	for (i = 0; i < MESSAGES; i++)
		order[i] = i;
	for (i = MESSAGES - 1; i; i--) {
		unsigned int other = rng_below(rng, i + 1), number = order[i];

		order[i] = order[other];
		order[other] = number;
	}
	for (i = 0; i < MESSAGES; i++) {
		uint32_t length;
		uint8_t *at = write_message(s, round, order[i], &length);

		if (is_rendezvous(round, order[i])) {
			endpoint_receive(&s->end, MESSAGES + wanted_fins,
					 s->fins + wanted_fins * 64, 64, s->fins_mr->lkey);
			wanted_fins++;
		}
		send_message(s, order[i], at, length);
	}
	while (sent < MESSAGES || fins < wanted_fins) {
		struct ibv_tmh *tmh;
		uint64_t number;

		WANT(endpoint_wait(&s->end, &wc, 20000));
		if (wc.status)
			die("round %u: %s", round, ibv_wc_status_str(wc.status));
		if (wc.wr_id < MESSAGES) {
			sent++;
			continue;
		}
		/* The data of a rendezvous has been read: it may be changed now. */
		tmh = (struct ibv_tmh *)(s->fins + (wc.wr_id - MESSAGES) * 64);
		number = be64toh(tmh->tag) & 0xffffff;
		WANT(wc.byte_len == HEADERS && tmh->opcode == IBV_TMH_FIN);
		WANT(number < MESSAGES && be64toh(tmh->tag) == TAG(round, number));
		WANT(is_rendezvous(round, number) && !told[number]);
		WANT(ntohl(tmh->app_ctx) == number);
		told[number] = true;
		memset(s->memory + number * PIECE, 0xdd, PIECE);
		fins++;
	}
}

static void sender_run(const char *host, bool on_demand)
{
	struct rng rng = { 3 };
	struct sender s = {};
	unsigned int round;
	struct ibv_wc wc;
	uint32_t length;
	uint8_t *at;
	char go;
	int fd;

	device_open(&s.device);
	endpoint_create(&s.end, &s.device, 2 * MESSAGES, 2 * MESSAGES);
	s.memory = anonymous((size_t)MESSAGES * PIECE);
	s.mr = region(&s.device, s.memory, (size_t)MESSAGES * PIECE, on_demand);
	s.fins = anonymous(MESSAGES * 64);
	s.fins_mr = region(&s.device, s.fins, MESSAGES * 64, on_demand);
	fd = connect_to(host, PORT, 20000);
	if (fd < 0)
		die("%s does not answer", host);
	endpoint_meet(&s.end, fd);
	endpoint_start(&s.end);
	for (round = 0; round < ROUNDS; round++) {
		receive_all(fd, &go, 1);
		send_round(&s, round, &rng);
	}
	receive_all(fd, &go, 1);
	at = s.memory;
	memset(at, 0, HEADERS);
	at[0] = IBV_TMH_RNDV;
	((struct ibv_tmh *)at)->tag = htobe64(42);
	((struct ibv_rvh *)(at + sizeof(struct ibv_tmh)))->len = htonl(41);
	length = HEADERS;
	send_message(&s, 1, at, length);
	WANT(endpoint_wait(&s.end, &wc, 20000) && !wc.status);
	receive_all(fd, &go, 1);
	send_all(fd, "", 1);
	endpoint_destroy(&s.end);
	printf("all right\n");
}

int main(int argc, char **argv)
{
	bool on_demand = argc > 1 && !strcmp(argv[1], "--on-demand");

	if (argc > 1 + on_demand)
		sender_run(argv[1 + on_demand], on_demand);
	else
		receiver_run(on_demand);
	return 0;
}
