/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A device that lies to the netdev. Between lies it is honest: it reads the
 * frames that the netdev sends, and frames that it writes reach the stack with
 * their octets. After each lie the netdev drops a frame, restarts its queues or
 * ignores an entry, as a model that shares no code with the driver expects.
 */
#include "device.h"

#define DEPTH 8
/* Lies to one netdev. */
#define ROUNDS 100
#define MOST_SGE (MAX_SKB_FRAGS + 1)
#define BUDGET 64

enum { TX, RX };

enum lie {
	/* A completion of a request that is not outstanding: any index, and that of the last completion. */
	LIE_SENT_INDEX, LIE_SENT_TWICE,
	LIE_SENT_STATUS,
	/* A completion of another buffer than the next one: any, the last one, and the next one while the queue is empty. */
	LIE_TAG, LIE_RECEIVED_TWICE, LIE_NO_BUFFER,
	LIE_TOO_LONG, LIE_TOO_SHORT, LIE_STATUS, LIE_FLUSHED,
	/* An entry with the phase of another lap. */
	LIE_PHASE,
	/* Events of another kind, or of a queue that has no entry. */
	LIE_EVENT,
	/* An event that never comes. */
	LIE_NO_EVENT,
	/* Entries as fast as they are read; more than the queue has; random octets. */
	LIE_ENDLESS, LIE_OVERRUN, LIE_RANDOM,
	LIES,
};

/* The octets of a frame depend on its seed and their place. */
struct frame {
	u32 seed, len;
	bool sum_is_ok, is_hashed;
};

struct world {
	struct faultline_dev dev;
	struct net_device *netdev;
	struct faultline_net *net;
	struct faultline_channel *ch;
	u32 frames;
	/* Of the send queue: the last doorbell, requests that the device has executed and completed, and their frames. */
	u32 doorbell, executed, completed;
	struct frame sent[DEPTH];
	/* Of the receive queue: buffers that the device has used. */
	u32 used;
	/* Frames that must reach the stack, in this order, and those that have reached it. */
	struct frame expected[DEPTH];
	u32 to_expect, reached;
	/* A lie may be true: any frame may reach the stack. */
	bool any_may_reach;
	/* Frames that the netdev has dropped. */
	u32 rx_dropped, tx_dropped;
	/* Of each CQ: entries that the device has written, the first one, whether it is armed, and with which index. */
	u32 entries[2];
	u32 first[2];
	bool armed[2];
	u32 armed_at[2];
	/* Entries of a lie without an end. */
	u32 endless;
	unsigned int endless_cq;
};

static struct world *w;

static u8 octet(const struct frame *frame, u32 i)
{
	return frame->seed + i * 7 + (i >> 8);
}

static struct faultline_net_cq *cq_of(unsigned int which)
{
	return which == TX ? &w->ch->tx_cq : &w->ch->rx_cq;
}

/* --- the device ---------------------------------------------------------- */

static void event(unsigned int which, u8 kind)
{
	struct faultline_res *res = faultline_res_get(&w->dev.cqs, cq_of(which)->res.num);

	res->event(res, kind);
	faultline_res_put(res);
}

static void raise_event(unsigned int which)
{
	if (!w->armed[which] || (s32)(w->entries[which] - w->armed_at[which]) <= 0)
		return;
	w->armed[which] = false;
	event(which, FAULTLINE_EVENT_COMPLETION);
}

static void on_doorbell(u8 type, u32 object, u32 value)
{
	unsigned int which = object == w->ch->rx_cq.res.num;

	if (type == FAULTLINE_DB_SQ) {
		CHECK(object == w->ch->qp_res.num);
		w->doorbell = value;
		return;
	}
	CHECK(type == FAULTLINE_DB_CQ_ARM && object == cq_of(which)->res.num);
	w->armed[which] = true;
	w->armed_at[which] = value;
	/* A moderated event, at once, is for entries that have been read before. */
	if (!random_number(8)) {
		w->armed[which] = false;
		event(which, FAULTLINE_EVENT_COMPLETION);
	}
	raise_event(which);
}

static void put_entry(unsigned int which, struct faultline_cqe entry)
{
	struct faultline_net_cq *cq = cq_of(which);
	u32 slot = w->entries[which] % BIT(cq->log_depth);

	*(struct faultline_cqe *)faultline_buf_at(&cq->buf, slot * sizeof(entry)) = entry;
}

static void write_entry(unsigned int which, struct faultline_cqe entry)
{
	entry.qpn = w->ch->qp_res.num;
	entry.phase = faultline_phase(w->entries[which], cq_of(which)->log_depth);
	put_entry(which, entry);
	w->entries[which]++;
	raise_event(which);
}

/* Reads the frames that the driver has told of. */
static void execute(void)
{
	while ((s32)(w->doorbell - w->executed) > 0) {
		const struct faultline_sq_wqe *wqe = faultline_wq_entry(&w->ch->sq, w->executed);
		const struct faultline_sge *sge = (const void *)wqe + FAULTLINE_SQ_WQE_DATA;
		const struct frame *frame = &w->sent[w->executed++ % DEPTH];
		u32 at = 0, i, k;

		CHECK(wqe->opcode == FAULTLINE_WR_RAW && wqe->flags & FAULTLINE_WR_FLAG_SIGNALED);
		CHECK(wqe->num_sge && wqe->num_sge <= w->dev.caps.max_sge);
		for (i = 0; i < wqe->num_sge; i++) {
			const u8 *memory = mapped_memory(sge[i].addr, sge[i].length, DMA_TO_DEVICE);

			for (k = 0; k < sge[i].length; k++)
				CHECK(memory[k] == octet(frame, at + k));
			at += k;
		}
		CHECK(at == frame->len);
	}
}

/* Completes frames that have been sent, also some that the device has not read. */
static bool complete_sent(u8 status)
{
	u32 outstanding = w->ch->sq.producer - w->completed;

	if (!outstanding)
		return false;
	w->completed += 1 + random_number(outstanding);
	if ((s32)(w->completed - w->executed) > 0)
		w->executed = w->completed;
	write_entry(TX, (struct faultline_cqe){ .wqe = w->completed - 1, .status = status });
	return true;
}

/* Takes the next receive buffer and fills it. Returns false if there is none. */
static bool fill(struct frame *frame, u32 *tag)
{
	const struct faultline_rq_wqe *wqe = faultline_wq_entry(&w->ch->rq, w->used);
	const struct faultline_sge *sge = (const void *)wqe + FAULTLINE_RQ_WQE_DATA;
	u8 *memory;
	u32 i;

	if (w->used == faultline_wq_record(&w->ch->rq)->producer)
		return false;
	w->used++;
	CHECK(wqe->num_sge == 1);
	memory = mapped_memory(sge->addr, sge->length, DMA_FROM_DEVICE);
	*frame = (struct frame){ w->frames++, ETH_HLEN + random_number(sge->length - ETH_HLEN + 1) };
	for (i = 0; i < sge->length; i++)
		memory[i] = octet(frame, i);
	*tag = wqe->tag;
	return true;
}

/* Receives a frame. `entry` has what is not as it should be. */
static bool receive(struct faultline_cqe entry)
{
	struct frame frame;
	bool is_dropped = entry.status || entry.byte_len;

	if (!fill(&frame, &entry.wqe))
		return false;
	if (!entry.byte_len)
		entry.byte_len = frame.len;
	if (!is_dropped) {
		entry.flags = random_number(256);
		entry.imm = frame.seed;
		frame.sum_is_ok = entry.flags & FAULTLINE_CQE_CSUM_OK && w->netdev->features & NETIF_F_RXCSUM;
		frame.is_hashed = entry.flags & FAULTLINE_CQE_HASH && w->netdev->features & NETIF_F_RXHASH;
		w->expected[w->to_expect++ % DEPTH] = frame;
	} else if (entry.status != FAULTLINE_WC_STATUS_WR_FLUSH_ERR) {
		w->rx_dropped++;
	}
	write_entry(RX, entry);
	return true;
}

/* --- the kernel ---------------------------------------------------------- */

static void on_received(struct sk_buff *skb)
{
	const struct frame *frame = &w->expected[w->reached % DEPTH];
	u32 i;

	if (w->any_may_reach) {
		CHECK(skb->len <= w->net->frame_size - ETH_HLEN);
		return;
	}
	CHECK(w->reached++ != w->to_expect);
	CHECK(skb->len == frame->len - ETH_HLEN);
	CHECK(skb->protocol == (octet(frame, 12) | octet(frame, 13) << 8));
	for (i = 0; i < skb->len; i++)
		CHECK(skb->data[i] == octet(frame, ETH_HLEN + i));
	CHECK(skb->ip_summed == (frame->sum_is_ok ? CHECKSUM_UNNECESSARY : CHECKSUM_NONE));
	CHECK(skb->hash_type == (frame->is_hashed ? PKT_HASH_TYPE_L4 : 0));
	CHECK(!frame->is_hashed || skb->hash == frame->seed);
}

static struct sk_buff *make_skb(struct frame *frame)
{
	unsigned int linear = ETH_HLEN + random_number(w->net->frame_size), i, k, at = linear;
	unsigned int frags = random_number(4) ? 0 : random_number(MAX_SKB_FRAGS + 1);
	struct sk_buff *skb = shim_alloc_skb(linear);

	*frame = (struct frame){ w->frames++, linear };
	skb_put(skb, linear);
	for (i = 0; i < linear; i++)
		skb->data[i] = octet(frame, i);
	for (k = 0; k < frags; k++) {
		skb_frag_t *frag = &skb->shared.frags[skb->shared.nr_frags++];

		frag->size = 1 + random_number(20);
		frag->memory = malloc(frag->size);
		for (i = 0; i < frag->size; i++)
			frag->memory[i] = octet(frame, at++);
	}
	frame->len = skb->len = at;
	skb->data_len = at - linear;
	if (!random_number(3))
		skb->ip_summed = CHECKSUM_PARTIAL;
	if (frame->len > w->net->frame_size && random_number(2))
		skb->shared.gso_size = 40;
	return skb;
}

static void send(void)
{
	u32 producer = w->ch->sq.producer, doorbell = w->doorbell;
	bool is_dead = faultline_is_dead(&w->dev), is_too_long;
	struct frame frame;
	struct sk_buff *skb;

	if (w->netdev->queue.stopped) {
		CHECK(producer - w->ch->sq.consumer == DEPTH);
		return;
	}
	skb = make_skb(&frame);
	is_too_long = frame.len > w->net->frame_size && !skb->shared.gso_size;
	w->sent[producer % DEPTH] = frame;
	xmit_more = random_number(2);
	fail_one_in = random_number(10) ? 0 : 3;
	CHECK(w->netdev->netdev_ops->ndo_start_xmit(skb, w->netdev) == NETDEV_TX_OK);
	if (w->ch->sq.producer == producer)
		CHECK(w->netdev->tx_dropped == ++w->tx_dropped && (is_too_long || fail_one_in || is_dead));
	else
		CHECK(w->ch->sq.producer == producer + 1 && !is_too_long && !is_dead);
	if (is_dead)
		CHECK(w->doorbell == doorbell);
	else if (!xmit_more || w->netdev->queue.stopped || w->ch->sq.producer == producer)
		CHECK(w->doorbell == w->ch->sq.producer);
	fail_one_in = 0;
}

/* Polls until the driver waits for an event. Returns false if it never does. */
static bool poll_all(void)
{
	struct napi_struct *napi = &w->ch->napi;
	unsigned int limit = 1000;

	while (napi->scheduled) {
		if (!limit--)
			return false;
		/* Netpoll has a budget of zero. */
		int budget = random_number(8) ? 1 + random_number(BUDGET) : 0;
		int done = napi->poll(napi, budget);

		CHECK(done >= 0 && done <= budget && (done < budget || napi->scheduled));
	}
	return true;
}

/* Each buffer is in one place, and each map is that of a buffer. */
static void check_buffers(void)
{
	u32 received = w->ch->rq.producer - w->ch->rq.consumer;
	u32 i, maps = received;

	for (i = 0; i < DEPTH; i++)
		maps += w->ch->tx[i].num;
	CHECK(num_skbs == w->ch->sq.producer - w->ch->sq.consumer + received);
	CHECK(num_maps == maps);
}

/* The driver has read all entries, and only these. */
static void check_caught_up(void)
{
	unsigned int which;

	for (which = TX; which <= RX; which++) {
		CHECK(cq_of(which)->consumer == w->entries[which]);
		CHECK(w->armed[which] && w->armed_at[which] == w->entries[which]);
	}
	CHECK(w->ch->sq.consumer == w->completed);
	CHECK(w->reached == w->to_expect);
	CHECK(w->netdev->rx_dropped == w->rx_dropped);
	CHECK(w->netdev->queue.stopped == (w->ch->sq.producer - w->completed == DEPTH));
	check_buffers();
}

static void honest_steps(void)
{
	unsigned int steps = 1 + random_number(8), which;

	while (steps--) {
		switch (random_number(6)) {
		case 0:
		case 1:
			send();
			break;
		case 2:
			execute();
			break;
		case 3:
			complete_sent(0);
			break;
		case 4:
			receive((struct faultline_cqe){ .status = random_number(8) ? 0 : FAULTLINE_WC_STATUS_LOC_LEN_ERR });
			break;
		default:
			fail_one_in = random_number(4) ? 0 : 2;
			poll_all();
			fail_one_in = 0;
		}
	}
	CHECK(poll_all());
	check_caught_up();
	CHECK(!w->net->reset_work.queued);
	for (which = TX; which <= RX; which++) {
		const struct faultline_net_cq *cq = cq_of(which);
		const struct faultline_cq_record *record =
			faultline_buf_at(&cq->buf, BIT(cq->log_depth) * sizeof(struct faultline_cqe));

		/* The driver has told of the entries that it has read. */
		CHECK(record->consumer == cq->consumer || cq->consumer == w->first[which]);
	}
}

/* --- lies ---------------------------------------------------------------- */

/* A number around one of the indices of a queue, or any. */
static u32 any_index(u32 consumer, u32 producer)
{
	const u32 bounds[] = { 0, consumer, producer, consumer + DEPTH, producer + DEPTH, 1U << 31, consumer + (1U << 31) };

	if (!random_number(4))
		return random_number(1ULL << 32);
	return bounds[random_number(ARRAY_SIZE(bounds))] + random_number(3) - 1;
}

static void write_random(unsigned int which)
{
	struct faultline_cqe entry;
	size_t i;

	for (i = 0; i < sizeof(entry); i++)
		((u8 *)&entry)[i] = random_number(3) ? 0 : random_number(256);
	if (random_number(2))
		entry.wqe = which == TX ? any_index(w->completed, w->ch->sq.producer) :
					  any_index(w->used, w->ch->rq.producer);
	if (random_number(2))
		entry.byte_len = random_number(200);
	write_entry(which, entry);
}

/* The device has an entry ready whenever the driver has found one. */
static void on_found(void)
{
	if (w->endless++ < 1000)
		write_entry(w->endless_cq, (struct faultline_cqe){
			.wqe = w->endless_cq == TX ? w->completed - 1 : w->ch->rq.consumer - 1,
		});
}

/* Whatever the device writes, one poll ends. */
static void tell_endless(void)
{
	w->endless = 0;
	w->endless_cq = random_number(2);
	entry_found = on_found;
	on_found();
	while (w->ch->napi.scheduled) {
		u32 before = w->endless;

		w->ch->napi.poll(&w->ch->napi, BUDGET);
		CHECK(w->endless - before <= BUDGET + DEPTH);
	}
	entry_found = NULL;
}

/* No buffer is posted while the device completes one. */
static bool tell_no_buffer(void)
{
	fail_one_in = 1;
	while (receive((struct faultline_cqe){}))
		poll_all();
	CHECK(w->ch->rq.producer == w->ch->rq.consumer && w->ch->refill_timer.pending);
	write_entry(RX, (struct faultline_cqe){ .wqe = w->ch->rq.consumer, .byte_len = 60 });
	poll_all();
	fail_one_in = 0;
	return true;
}

/* An event of another kind than completions restarts the queues. */
static void tell_event(void)
{
	u8 kind = random_number(2) ? FAULTLINE_EVENT_COMPLETION : random_number(256);
	struct faultline_res *res;

	event(random_number(2), kind);
	CHECK(w->net->reset_work.queued == (kind != FAULTLINE_EVENT_COMPLETION));
	if (random_number(2))
		return;
	res = faultline_res_get(&w->dev.qps, w->ch->qp_res.num);
	res->event(res, kind);
	faultline_res_put(res);
	CHECK(w->net->reset_work.queued);
}

/* Entries of a receive whose buffer the driver passes to nobody. */
static bool tell_received(enum lie lie)
{
	switch (lie) {
	case LIE_TOO_LONG:
		return receive((struct faultline_cqe){
			.byte_len = random_number(3) ? w->net->frame_size + 1 : U32_MAX - random_number(1ULL << 31),
		});
	case LIE_TOO_SHORT:
		return receive((struct faultline_cqe){ .byte_len = 1 + random_number(ETH_HLEN - 1) });
	case LIE_STATUS:
		return receive((struct faultline_cqe){ .status = 6 + random_number(250) });
	default:
		return receive((struct faultline_cqe){ .status = FAULTLINE_WC_STATUS_WR_FLUSH_ERR });
	}
}

/* Writes a lie. Returns false if it is not possible now. */
static bool tell(enum lie lie)
{
	struct faultline_cqe entry = { .byte_len = 60 };
	unsigned int which = random_number(2), n;
	u32 outstanding = w->ch->sq.producer - w->completed;

	switch (lie) {
	case LIE_SENT_INDEX:
		do
			entry.wqe = any_index(w->completed, w->ch->sq.producer);
		while (entry.wqe - w->completed < outstanding);
		write_entry(TX, entry);
		return true;
	case LIE_SENT_TWICE:
		entry.wqe = w->completed - 1;
		write_entry(TX, entry);
		return true;
	case LIE_SENT_STATUS:
		return complete_sent(1 + random_number(255));
	case LIE_TAG:
		do
			entry.wqe = any_index(w->used, w->ch->rq.producer);
		while (entry.wqe == w->used);
		write_entry(RX, entry);
		return true;
	case LIE_RECEIVED_TWICE:
		entry.wqe = w->used - 1;
		write_entry(RX, entry);
		return true;
	case LIE_NO_BUFFER:
		return tell_no_buffer();
	case LIE_PHASE:
		entry.phase = !faultline_phase(w->entries[which], cq_of(which)->log_depth);
		entry.wqe = which == TX ? w->completed : w->used;
		put_entry(which, entry);
		event(which, FAULTLINE_EVENT_COMPLETION);
		return true;
	case LIE_EVENT:
		tell_event();
		return true;
	case LIE_NO_EVENT:
		w->armed[RX] = false;
		receive((struct faultline_cqe){});
		event(TX, FAULTLINE_EVENT_COMPLETION);
		return true;
	case LIE_ENDLESS:
		tell_endless();
		return true;
	case LIE_OVERRUN:
		for (n = BIT(cq_of(which)->log_depth) * (1 + random_number(3)) + random_number(4); n; n--)
			write_random(which);
		return true;
	case LIE_RANDOM:
		write_random(which);
		return true;
	default:
		return tell_received(lie);
	}
}

/* Indices pass the end of their 32 bits. */
static void move_indices(void)
{
	u32 at = -(u32)random_number(3 * DEPTH), i;
	unsigned int which;

	w->ch->sq.producer = w->ch->sq.consumer = w->doorbell = w->executed = w->completed = at;
	for (which = TX; which <= RX; which++) {
		struct faultline_net_cq *cq = cq_of(which);

		CHECK(w->armed[which] && cq->is_armed);
		cq->consumer = cq->armed_at = w->armed_at[which] = -(2U << cq->log_depth);
		w->entries[which] = w->first[which] = cq->consumer;
	}
	for (i = 0; i < DEPTH; i++)
		shim_free_skb(faultline_rx_take(w->ch, &w->ch->rx[i]));
	w->ch->rq.producer = w->ch->rq.consumer = w->used = at;
	CHECK(faultline_rx_refill(w->ch, GFP_KERNEL));
}

/* New queues have no entry. Before the netdev creates them. */
static void forget_queues(void)
{
	memset(w->entries, 0, sizeof(w->entries));
	memset(w->first, 0, sizeof(w->first));
	memset(w->armed, 0, sizeof(w->armed));
	w->doorbell = w->executed = w->completed = w->used = 0;
	w->to_expect = w->reached;
}

static void restart(void)
{
	forget_queues();
	w->any_may_reach = false;
	CHECK(w->net->reset_work.queued && run_works());
	CHECK(!faultline_is_dead(&w->dev) && strstr(last_message, "restarting the queues"));
	w->rx_dropped = w->netdev->rx_dropped;
	CHECK(poll_all());
	if (random_number(2))
		move_indices();
	check_caught_up();
}

/* Returns false if the lie was not possible. */
static bool round_of(enum lie lie)
{
	honest_steps();
	w->any_may_reach = lie == LIE_OVERRUN || lie == LIE_RANDOM;
	if (!tell(lie))
		return false;
	/* A CQ whose next entry is overwritten has events for ever. */
	CHECK(poll_all() || lie == LIE_OVERRUN);
	switch (lie) {
	case LIE_TOO_LONG:
	case LIE_TOO_SHORT:
	case LIE_STATUS:
	case LIE_PHASE:
	case LIE_NO_EVENT:
		CHECK(!w->net->reset_work.queued);
		check_caught_up();
		return true;
	case LIE_EVENT:
	case LIE_OVERRUN:
	case LIE_RANDOM:
		/* The lie may be true, and its consequences are unknown. */
		check_buffers();
		schedule_work(&w->net->reset_work);
		break;
	case LIE_ENDLESS:
		check_buffers();
		break;
	default:
		check_caught_up();
	}
	restart();
	return true;
}

/* --- a life of the netdev ------------------------------------------------ */

static void bring_up(u32 max_sge)
{
	begin(&w->dev);
	w->dev.caps.max_sge = max_sge;
	CHECK(!faultline_eqs_create(&w->dev));
	CHECK(!faultline_net_create(&w->dev));
	w->net = w->dev.net;
	w->netdev = w->net->netdev;
	w->ch = &w->net->channels[0];
	w->net->tx_depth = w->net->rx_depth = DEPTH;
	w->netdev->mtu = ETH_MIN_MTU + random_number(40);
	if (random_number(2))
		w->netdev->features ^= NETIF_F_RXHASH | NETIF_F_RXCSUM;
	rung = on_doorbell;
	received = on_received;
	w->netdev->running = true;
	CHECK(!w->netdev->netdev_ops->ndo_open(w->netdev));
	CHECK(w->netdev->carrier);
}

static void take_down(void)
{
	if (random_number(2)) {
		faultline_fail(&w->dev, "test");
		send();
	}
	faultline_net_stop(&w->dev);
	CHECK(!num_skbs && !num_maps);
	faultline_net_destroy(&w->dev);
	CHECK(!run_works());
	faultline_eqs_destroy(&w->dev);
}

void test_frames(u64 netdevs)
{
	u64 told[LIES] = {}, s, lies = 0;
	int round, lie;

	for (s = 1; s <= netdevs; s++) {
		seed(s);
		w = calloc(1, sizeof(*w));
		bring_up(random_number(2) ? MOST_SGE + 1 : 1 + random_number(4));
		for (round = 0; round < ROUNDS; round++) {
			lie = random_number(LIES);
			told[lie] += round_of(lie);
		}
		take_down();
		free(w);
	}
	for (lie = 0; lie < LIES; lie++) {
		lies += told[lie];
		CHECK(told[lie] > netdevs * ROUNDS / LIES / 4);
	}
	printf("%llu lies\n", (unsigned long long)lies);
}
