/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A device that lies in completions. Consumers post to queue pairs with their
 * own receive queue and with an SRQ, on two CQs; the device completes
 * posted requests, and once in each of its lives writes an entry with a wrong
 * field. A model that shares no code with the driver knows the posted requests.
 */
#include "device.h"

#define DEPTH 8
#define QPS 3
#define POSTED 64
#define LIFE 200

enum lie {
	NO_LIE, LIE_QP_OF_OTHER_CQ, LIE_DIRECTION, LIE_NETDEV_QP, LIE_USER_QP, LIE_INDEX, LIE_TWICE, LIE_OPCODE,
	LIE_STATUS, LIE_LENGTH, LIE_RANDOM, LIES,
};

/* A request that is posted, of a QP or of the SRQ. */
struct posted {
	u64 wr_id;
	u32 index;
	u32 room;
};

struct queue {
	struct posted posted[POSTED];
	unsigned int num;
};

struct life {
	struct faultline_dev dev;
	struct faultline_ib ib;
	struct faultline_pd pd;
	struct faultline_cq cq[2];
	u32 produced[2];
	struct faultline_srq *srq;
	/* 0: both directions on CQ 0. 1: receives on CQ 1. 2: receives from the SRQ on CQ 0. */
	struct faultline_qp *qp[QPS];
	struct queue send[QPS], recv[QPS], shared;
	struct faultline_res *netdev;
	struct faultline_qp *user;
	u64 next_id;
	/* The entry of the last honest completion. */
	struct faultline_cqe last;
	unsigned int last_cq;
	bool has_last;
	/* Requests that the driver has flushed. */
	unsigned int flushed;
};

static void other_event(struct faultline_res *res, u8 kind)
{
}

static struct faultline_qp *make_qp(struct life *l, struct faultline_cq *recv, struct faultline_srq *srq)
{
	/* A block of its own, so that AddressSanitizer knows its end. */
	struct faultline_qp *qp = calloc(1, sizeof(*qp));
	struct ib_qp_init_attr attr = {
		.send_cq = &l->cq[0].ibcq, .recv_cq = &recv->ibcq, .srq = srq ? &srq->ibsrq : NULL,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2 },
		.qp_type = IB_QPT_RC,
	};

	qp->ibqp.device = &l->ib.ibdev;
	qp->ibqp.pd = &l->pd.ibpd;
	CHECK(!faultline_create_qp(&qp->ibqp, &attr, NULL));
	qp->state = IB_QPS_RTS;
	/* Indices pass the end of their 32 bits in each life. */
	qp->sq.producer = qp->sq.consumer = -(u32)DEPTH;
	qp->rq.producer = qp->rq.consumer = -(u32)DEPTH;
	return qp;
}

static void make(struct life *l)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 4 * DEPTH };
	struct ib_srq_init_attr srq_attr = { .attr = { .max_wr = DEPTH, .max_sge = 2 } };
	static struct faultline_eq eqs[FAULTLINE_EQ_COMP + 1];
	int i;

	memset(l, 0, sizeof(*l));
	begin(&l->dev);
	l->dev.eqs = eqs;
	l->dev.num_eqs = FAULTLINE_EQ_COMP + 1;
	l->dev.ib = &l->ib;
	l->ib.dev = &l->dev;
	l->pd.ibpd.device = &l->ib.ibdev;
	for (i = 0; i < 2; i++) {
		l->cq[i].ibcq.device = &l->ib.ibdev;
		CHECK(!faultline_create_cq(&l->cq[i].ibcq, &cq_attr, NULL));
	}
	l->srq = calloc(1, sizeof(*l->srq));
	l->srq->ibsrq.device = &l->ib.ibdev;
	l->srq->ibsrq.pd = &l->pd.ibpd;
	CHECK(!faultline_create_srq(&l->srq->ibsrq, &srq_attr, NULL));
	l->qp[0] = make_qp(l, &l->cq[0], NULL);
	l->qp[1] = make_qp(l, &l->cq[1], NULL);
	l->qp[2] = make_qp(l, &l->cq[0], l->srq);
	/* A block of its own, so that no QP is around it. */
	l->netdev = malloc(sizeof(*l->netdev));
	faultline_res_init(l->netdev, next_number++, other_event);
	CHECK(!faultline_res_add(&l->dev, &l->dev.qps, l->netdev));
	/* As faultline_create_qp() leaves one of a process. */
	l->user = make_qp(l, &l->cq[0], NULL);
	list_del_init(&l->user->send_cq_entry);
	list_del_init(&l->user->recv_cq_entry);
	l->user->user = true;
	l->user->ibqp.send_cq = NULL;
	l->user->ibqp.recv_cq = NULL;
}

static void unmake(struct life *l)
{
	int i;

	l->user->ibqp.send_cq = &l->cq[0].ibcq;
	l->user->ibqp.recv_cq = &l->cq[0].ibcq;
	CHECK(!faultline_destroy_qp(&l->user->ibqp, NULL));
	free(l->user);
	free(l->netdev);
	for (i = 0; i < QPS; i++) {
		CHECK(!faultline_destroy_qp(&l->qp[i]->ibqp, NULL));
		free(l->qp[i]);
	}
	CHECK(!faultline_destroy_srq(&l->srq->ibsrq, NULL));
	free(l->srq);
	for (i = 0; i < 2; i++)
		CHECK(!faultline_destroy_cq(&l->cq[i].ibcq, NULL));
}

static void note(struct queue *queue, u64 wr_id, u32 index, u32 room)
{
	CHECK(queue->num < POSTED);
	queue->posted[queue->num++] = (struct posted){ wr_id, index, room };
}

static void forget(struct queue *queue, unsigned int first, unsigned int num)
{
	queue->num -= num;
	memmove(&queue->posted[first], &queue->posted[first + num], (queue->num - first) * sizeof(struct posted));
}

static void post_send(struct life *l, int i)
{
	struct ib_sge sge = { .length = 64 };
	struct ib_rdma_wr wr = { .wr = { .wr_id = ++l->next_id, .sg_list = &sge, .num_sge = 1, .opcode = IB_WR_RDMA_READ } };
	u32 index = l->qp[i]->sq.producer;
	const struct ib_send_wr *bad;
	int err = faultline_post_send(&l->qp[i]->ibqp, &wr.wr, &bad);

	CHECK(err == (l->send[i].num < DEPTH ? 0 : -ENOMEM));
	if (!err)
		note(&l->send[i], wr.wr.wr_id, index, 0);
}

static void post_recv(struct life *l, int i)
{
	struct ib_sge sge[2] = { { .length = random_number(100) }, { .length = random_number(100) } };
	struct ib_recv_wr wr = { .wr_id = ++l->next_id, .sg_list = sge, .num_sge = 2 };
	struct queue *queue = i == 2 ? &l->shared : &l->recv[i];
	const struct ib_recv_wr *bad;
	struct faultline_wq *wq = i == 2 ? &l->srq->wq : &l->qp[i]->rq;
	u32 producer = wq->producer;
	int err = i == 2 ? faultline_post_srq_recv(&l->srq->ibsrq, &wr, &bad) :
			   faultline_post_recv(&l->qp[i]->ibqp, &wr, &bad);
	struct faultline_rq_wqe *wqe;

	CHECK(err == (queue->num < DEPTH ? 0 : -ENOMEM));
	if (err)
		return;
	wqe = faultline_wq_entry(wq, producer);
	note(queue, wr.wr_id, wqe->tag, sge[0].length + sge[1].length);
}

static void write_entry(struct life *l, unsigned int c, struct faultline_cqe entry)
{
	u32 slot = l->produced[c]++ % BIT(l->cq[c].log_depth);

	entry.phase = faultline_phase(l->produced[c] - 1, l->cq[c].log_depth);
	*(struct faultline_cqe *)faultline_buf_at(&l->cq[c].buf, slot * sizeof(entry)) = entry;
}

/* An entry as an honest device writes it. Returns false if nothing is posted. */
static bool honest(struct life *l, bool recv, int i, struct faultline_cqe *entry, unsigned int *c, struct queue **queue,
		   unsigned int *which)
{
	*queue = !recv ? &l->send[i] : i == 2 ? &l->shared : &l->recv[i];
	if (!(*queue)->num)
		return false;
	/* Sends may leave earlier ones without a completion; SRQs have no order. */
	*which = recv && i != 2 ? 0 : random_number((*queue)->num);
	*c = recv && i == 1;
	*entry = (struct faultline_cqe) {
		.qpn = l->qp[i]->res.num, .wqe = (*queue)->posted[*which].index,
		.opcode = recv ? FAULTLINE_WC_RECV : FAULTLINE_WC_RDMA_READ,
		.byte_len = recv ? random_number((*queue)->posted[*which].room + 1) : 64,
	};
	return true;
}

static void poll_honest(struct life *l, unsigned int c, const struct posted *posted, const struct faultline_cqe *entry)
{
	struct ib_wc wc[4];

	CHECK(faultline_poll_cq(&l->cq[c].ibcq, 4, wc) == 1);
	CHECK(!faultline_is_dead(&l->dev));
	CHECK(wc[0].wr_id == posted->wr_id && wc[0].byte_len == entry->byte_len && wc[0].status == entry->status);
	CHECK(wc[0].qp->qp_num == entry->qpn);
}

/* The consumer has got the completion of a request; one of a send completes all earlier ones. */
static void completed(struct queue *queue, unsigned int which, bool recv)
{
	if (recv)
		forget(queue, which, 1);
	else
		forget(queue, 0, which + 1);
}

static void complete_one(struct life *l)
{
	bool recv = random_number(2);
	int i = random_number(QPS);
	struct faultline_cqe entry;
	struct queue *queue;
	unsigned int c, which;

	if (!honest(l, recv, i, &entry, &c, &queue, &which))
		return;
	write_entry(l, c, entry);
	poll_honest(l, c, &queue->posted[which], &entry);
	l->last = entry;
	l->last_cq = c;
	l->has_last = true;
	completed(queue, which, recv);
}

static bool is_posted(const struct queue *queue, u32 index)
{
	unsigned int i;

	for (i = 0; i < queue->num; i++)
		if (queue->posted[i].index == index)
			return true;
	return false;
}

/* Makes an honest entry a lie. Returns the word that the message must have, or NULL if the lie is impossible now. */
static const char *falsify(struct life *l, enum lie lie, bool recv, int i, const struct queue *queue, unsigned int which,
			   struct faultline_cqe *entry, unsigned int *c)
{
	switch (lie) {
	case LIE_QP_OF_OTHER_CQ:
		/* Neither direction of the first and the third QP uses CQ 1. */
		if (i == 1)
			return NULL;
		*c = 1;
		return "invalid QP";
	case LIE_DIRECTION:
		if (i != 1)
			return NULL;
		*c = !*c;
		return "invalid QP";
	case LIE_NETDEV_QP:
		entry->qpn = l->netdev->num;
		return "invalid QP";
	case LIE_USER_QP:
		entry->qpn = l->user->res.num;
		return "invalid QP";
	case LIE_INDEX:
		do
			entry->wqe = random_number(2) ? random_number(1ULL << 32) : entry->wqe + random_number(64) - 32;
		while (is_posted(queue, entry->wqe));
		return "invalid work request";
	case LIE_TWICE:
		if (!l->has_last)
			return NULL;
		*entry = l->last;
		*c = l->last_cq;
		/* A tag of the SRQ may be posted again. */
		if (is_posted(&l->shared, entry->wqe) && entry->qpn == l->qp[2]->res.num)
			return NULL;
		return "invalid work request";
	case LIE_OPCODE:
		entry->opcode = recv ? 0x82 + random_number(0x7e) : FAULTLINE_WC_ATOMIC_WRITE + 1 + random_number(0x70);
		return "invalid opcode";
	case LIE_STATUS:
		entry->status = FAULTLINE_WC_STATUS_GENERAL_ERR + 1 + random_number(200);
		return "invalid status";
	case LIE_LENGTH:
		if (!recv)
			return NULL;
		entry->byte_len = queue->posted[which].room + 1 + random_number(1000);
		return "invalid length";
	default:
		return NULL;
	}
}

/* The driver gives the requests back that are posted, each once, and nothing else. */
static void check_flushed(struct life *l)
{
	unsigned int expected = 0, found = l->flushed, c, n, i;
	struct ib_wc wc[2];

	for (i = 0; i < QPS; i++)
		expected += l->send[i].num + l->recv[i].num;
	for (c = 0; c < 2; c++) {
		while ((n = faultline_poll_cq(&l->cq[c].ibcq, 2, wc))) {
			for (i = 0; i < n; i++)
				CHECK(wc[i].status == IB_WC_WR_FLUSH_ERR);
			found += n;
		}
	}
	CHECK(found == expected);
}

/*
 * An honest entry of the QP in the CQ of its other direction, which the same poll reads before the lie: the driver remembers the
 * QP. Returns the number of entries.
 */
static int write_before(struct life *l, bool recv, int i)
{
	struct faultline_cqe entry;
	struct queue *queue;
	unsigned int c, which;

	if (!honest(l, !recv, i, &entry, &c, &queue, &which))
		return 0;
	write_entry(l, c, entry);
	completed(queue, which, !recv);
	return 1;
}

/* Returns false if the lie was not possible. */
static bool tell(struct life *l, enum lie lie)
{
	bool recv = random_number(2);
	int i = random_number(QPS);
	struct faultline_cqe entry;
	const char *message;
	struct queue *queue;
	unsigned int c, which;
	struct ib_wc wc[2];
	int before = 0;

	if (!honest(l, recv, i, &entry, &c, &queue, &which))
		return false;
	message = falsify(l, lie, recv, i, queue, which, &entry, &c);
	if (!message)
		return false;
	if (lie == LIE_DIRECTION)
		before = write_before(l, recv, i);
	write_entry(l, c, entry);
	faultline_poll_cq(&l->cq[c].ibcq, 0, wc);
	CHECK(!faultline_is_dead(&l->dev));
	l->flushed = faultline_poll_cq(&l->cq[c].ibcq, before + 1, wc) - before;
	CHECK(!before || wc[0].status == IB_WC_SUCCESS);
	CHECK(!l->flushed || wc[before].status == IB_WC_WR_FLUSH_ERR);
	CHECK(died(&l->dev, message));
	CHECK(!strcmp(l->dev.death_reason, "invalid completion"));
	return true;
}

/* Random octets: whatever the driver makes of them, it stays within its memory and completes nothing twice. */
static void tell_random(struct life *l)
{
	unsigned int c = random_number(2);
	struct faultline_cqe entry;
	struct ib_wc wc[8];
	size_t k;

	for (k = 0; k < sizeof(entry); k++)
		((u8 *)&entry)[k] = random_number(3) ? random_number(12) : random_number(256);
	entry.qpn = random_number(12);
	write_entry(l, c, entry);
	faultline_poll_cq(&l->cq[c].ibcq, 8, wc);
}

static void live(struct life *l, enum lie lie)
{
	unsigned int step;

	for (step = 0; step < LIFE && !faultline_is_dead(&l->dev); step++) {
		int i = random_number(QPS);

		if (random_number(2))
			post_send(l, i);
		else
			post_recv(l, i);
		if (random_number(3))
			complete_one(l);
		if (lie && step > LIFE / 4 && tell(l, lie))
			break;
	}
}

void test_completions(u64 seeds)
{
	unsigned int told[LIES] = {};
	struct life *l = malloc(sizeof(*l));
	u64 s;

	for (s = 1; s <= seeds; s++) {
		enum lie lie = s % LIES;
		int k;

		seed(s);
		make(l);
		live(l, lie == LIE_RANDOM ? NO_LIE : lie);
		if (lie == LIE_RANDOM)
			for (k = 0; k < 100; k++)
				tell_random(l);
		told[lie] += faultline_is_dead(&l->dev);
		/* The receive whose length is wrong is lost. */
		if (lie && lie < LIE_LENGTH && faultline_is_dead(&l->dev))
			check_flushed(l);
		unmake(l);
	}
	free(l);
	CHECK(!told[NO_LIE]);
	for (s = NO_LIE + 1; s < LIES; s++)
		CHECK(told[s] > seeds / LIES / 2);
}
