// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Hot path of the netdev: frames through the queues of a channel. */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/tcp.h>

#include "faultline_net.h"

/* Delay before the next attempt to allocate receive buffers. */
#define FAULTLINE_REFILL_DELAY	msecs_to_jiffies(20)

/* Copies the next entry, for the device could change it. */
static bool faultline_net_cqe(const struct faultline_net_cq *cq,
			      struct faultline_cqe *cqe)
{
	size_t slot = cq->consumer & (BIT(cq->log_depth) - 1);
	const struct faultline_cqe *entry =
		faultline_buf_at(&cq->buf, slot << FAULTLINE_NET_CQE_SHIFT);

	if (READ_ONCE(entry->phase) !=
	    faultline_phase(cq->consumer, cq->log_depth))
		return false;
	dma_rmb();
	faultline_copy_entry(cqe, entry, sizeof(*cqe));
	return true;
}

/* Tells the device which entries have been read. */
static void faultline_net_cq_release(struct faultline_net_cq *cq)
{
	struct faultline_cq_record *record =
		faultline_buf_at(&cq->buf,
				 BIT(cq->log_depth + FAULTLINE_NET_CQE_SHIFT));

	/* After the reads: the device may write to the entries from now on. */
	virt_store_release(&record->consumer, cpu_to_le32(cq->consumer));
}

/*
 * What disarms a CQ is its event, not an entry: a moderated event is for entries
 * that may have been read before it. An event that never comes must not leave
 * the CQ disarmed for ever, so it is armed after new entries, too.
 */
static void faultline_net_cq_arm(struct faultline_net_cq *cq)
{
	u32 consumer = cq->consumer;

	if (READ_ONCE(cq->is_armed) && cq->armed_at == consumer)
		return;
	/* Before the doorbell, for the event may follow at once. */
	WRITE_ONCE(cq->is_armed, true);
	cq->armed_at = consumer;
	faultline_doorbell(cq->ch->net->dev, FAULTLINE_DB_CQ_ARM, cq->res.num,
			   consumer);
}

/* Requests interrupts for further completions of both queues. */
void faultline_channel_arm(struct faultline_channel *ch)
{
	faultline_net_cq_arm(&ch->tx_cq);
	faultline_net_cq_arm(&ch->rx_cq);
}

/* Frees the buffers of a send work request. */
void faultline_tx_free(struct faultline_channel *ch,
		       struct faultline_tx_slot *slot, int budget)
{
	struct device *dma_dev = &ch->net->dev->pdev->dev;
	unsigned int i;

	for (i = 0; i < slot->num; i++) {
		if (!i)
			dma_unmap_single(dma_dev, slot->addr[i], slot->len[i],
					 DMA_TO_DEVICE);
		else
			dma_unmap_page(dma_dev, slot->addr[i], slot->len[i],
				       DMA_TO_DEVICE);
	}
	if (slot->skb)
		napi_consume_skb(slot->skb, budget);
	slot->skb = NULL;
	slot->num = 0;
}

static bool faultline_tx_has_room(const struct faultline_channel *ch)
{
	return ch->sq.producer - READ_ONCE(ch->sq.consumer) <
	       ch->net->tx_depth;
}

static void faultline_tx_count(struct faultline_channel *ch,
			       unsigned int packets, unsigned int bytes)
{
	u64_stats_update_begin(&ch->stats.syncp);
	u64_stats_add(&ch->stats.tx_packets, packets);
	u64_stats_add(&ch->stats.tx_bytes, bytes);
	u64_stats_update_end(&ch->stats.syncp);
}

static void faultline_tx_poll(struct faultline_channel *ch, int budget)
{
	struct netdev_queue *queue = faultline_tx_queue(ch);
	unsigned int packets = 0, bytes = 0;
	struct faultline_cqe cqe;
	bool failed = false;

	while (faultline_net_cqe(&ch->tx_cq, &cqe)) {
		u32 index = ch->sq.consumer;
		u32 count = le32_to_cpu(cqe.wqe) - index + 1;

		failed |= cqe.status != FAULTLINE_WC_STATUS_SUCCESS;
		ch->tx_cq.consumer++;
		/*
		 * The device can complete outstanding requests only, and at
		 * least one. After another entry the queues are restarted, so
		 * this does not read as many as a device may write.
		 */
		if (!count || count > smp_load_acquire(&ch->sq.producer) - index) {
			failed = true;
			break;
		}
		for (; count; count--, index++) {
			struct faultline_tx_slot *slot =
				faultline_tx_slot(ch, index);

			packets++;
			bytes += slot->skb->len;
			faultline_tx_free(ch, slot, budget);
		}
		WRITE_ONCE(ch->sq.consumer, index);
	}
	if (packets) {
		faultline_net_cq_release(&ch->tx_cq);
		faultline_tx_count(ch, packets, bytes);
		netdev_tx_completed_queue(queue, packets, bytes);
		/* Pairs with the barrier after stopping the queue. */
		smp_mb();
		if (netif_tx_queue_stopped(queue) && faultline_tx_has_room(ch))
			netif_tx_wake_queue(queue);
	}
	if (failed)
		schedule_work(&ch->net->reset_work);
}

static int faultline_tx_map(struct faultline_channel *ch, struct sk_buff *skb,
			    struct faultline_tx_slot *slot)
{
	struct device *dma_dev = &ch->net->dev->pdev->dev;
	int i;

	slot->len[0] = skb_headlen(skb);
	slot->addr[0] = dma_map_single(dma_dev, skb->data, slot->len[0],
				       DMA_TO_DEVICE);
	if (dma_mapping_error(dma_dev, slot->addr[0]))
		return -ENOMEM;
	slot->num = 1;
	for (i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];

		slot->len[i + 1] = skb_frag_size(frag);
		slot->addr[i + 1] = skb_frag_dma_map(dma_dev, frag, 0,
						     slot->len[i + 1],
						     DMA_TO_DEVICE);
		if (dma_mapping_error(dma_dev, slot->addr[i + 1]))
			return -ENOMEM;
		slot->num++;
	}
	return 0;
}

/*
 * Requests offloads for a frame. ndo_features_check has ensured that the
 * headers are in the part of the frame that the device parses.
 */
static void faultline_tx_offload(struct faultline_sq_wqe *wqe,
				 const struct sk_buff *skb)
{
	struct faultline_raw_seg *raw = (void *)&wqe->compare_add;

	static_assert(offsetof(struct faultline_sq_wqe, swap) ==
		      offsetof(struct faultline_sq_wqe, compare_add) + 8);
	if (skb->ip_summed != CHECKSUM_PARTIAL)
		return;
	wqe->flags |= FAULTLINE_WR_FLAG_CSUM;
	raw->csum_start = cpu_to_le16(skb_checksum_start_offset(skb));
	raw->csum_offset = cpu_to_le16(skb->csum_offset);
	if (skb_is_gso(skb)) {
		raw->mss = cpu_to_le16(skb_shinfo(skb)->gso_size);
		raw->header_len = cpu_to_le16(skb_tcp_all_headers(skb));
	}
}

static void faultline_tx_fill(struct faultline_channel *ch,
			      const struct faultline_tx_slot *slot)
{
	struct faultline_sq_wqe *wqe =
		faultline_wq_entry(&ch->sq, ch->sq.producer);
	struct faultline_sge *sge = (void *)wqe + FAULTLINE_SQ_WQE_DATA;
	unsigned int i;

	memset(wqe, 0, sizeof(*wqe));
	wqe->opcode = FAULTLINE_WR_RAW;
	wqe->flags = FAULTLINE_WR_FLAG_SIGNALED;
	wqe->num_sge = slot->num;
	faultline_tx_offload(wqe, slot->skb);
	for (i = 0; i < slot->num; i++) {
		sge[i].addr = cpu_to_le64(slot->addr[i]);
		sge[i].length = cpu_to_le32(slot->len[i]);
		sge[i].lkey = cpu_to_le32(ch->net->lkey);
	}
}

static void faultline_tx_kick(const struct faultline_channel *ch)
{
	faultline_doorbell(ch->net->dev, FAULTLINE_DB_SQ, ch->qp_res.num,
			   ch->sq.producer);
}

netdev_tx_t faultline_start_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_channel *ch =
		&net->channels[skb_get_queue_mapping(skb)];
	struct netdev_queue *queue = faultline_tx_queue(ch);
	struct faultline_tx_slot *slot;
	bool kick;

	if (unlikely(!faultline_tx_has_room(ch))) {
		netif_tx_stop_queue(queue);
		return NETDEV_TX_BUSY;
	}
	slot = faultline_tx_slot(ch, ch->sq.producer);
	/* The device would refuse a longer frame and stop the queue. */
	if (unlikely(!skb_is_gso(skb) && skb->len > net->frame_size))
		goto drop;
	if (unlikely(skb_shinfo(skb)->nr_frags >= ch->sq.max_sge &&
		     skb_linearize(skb)))
		goto drop;
	if (unlikely(faultline_is_dead(net->dev)))
		goto drop;
	if (faultline_tx_map(ch, skb, slot)) {
		/* Unmaps the mapped parts; slot->skb is not set yet. */
		faultline_tx_free(ch, slot, 0);
		goto drop;
	}
	slot->skb = skb;
	faultline_tx_fill(ch, slot);
	skb_tx_timestamp(skb);
	kick = __netdev_tx_sent_queue(queue, skb->len, netdev_xmit_more());
	/* The slot is filled before a completion of it is accepted. */
	smp_store_release(&ch->sq.producer, ch->sq.producer + 1);

	if (!faultline_tx_has_room(ch)) {
		netif_tx_stop_queue(queue);
		/* Pairs with the barrier in faultline_tx_poll(). */
		smp_mb();
		if (faultline_tx_has_room(ch))
			netif_tx_start_queue(queue);
		kick = true;
	}
	if (kick)
		faultline_tx_kick(ch);
	return NETDEV_TX_OK;

drop:
	dev_core_stats_tx_dropped_inc(netdev);
	dev_kfree_skb_any(skb);
	/* Earlier frames may still need the doorbell of their batch. */
	faultline_tx_kick(ch);
	return NETDEV_TX_OK;
}

/* Fills the receive queue. Returns false if it has no buffer at all. */
bool faultline_rx_refill(struct faultline_channel *ch, gfp_t gfp)
{
	struct faultline_net *net = ch->net;
	struct device *dma_dev = &net->dev->pdev->dev;
	struct faultline_wq *rq = &ch->rq;
	u32 producer = rq->producer;

	while (producer - rq->consumer < net->rx_depth) {
		struct faultline_rx_slot *slot =
			faultline_rx_slot(ch, producer);
		struct faultline_rq_wqe *wqe = faultline_wq_entry(rq, producer);
		struct faultline_sge *sge = (void *)wqe + FAULTLINE_RQ_WQE_DATA;
		struct sk_buff *skb;

		skb = __netdev_alloc_skb_ip_align(net->netdev, net->frame_size,
						  gfp);
		if (!skb)
			break;
		slot->addr = dma_map_single(dma_dev, skb->data, net->frame_size,
					    DMA_FROM_DEVICE);
		if (dma_mapping_error(dma_dev, slot->addr)) {
			dev_kfree_skb_any(skb);
			break;
		}
		slot->skb = skb;
		memset(wqe, 0, sizeof(*wqe));
		wqe->tag = cpu_to_le32(producer);
		wqe->num_sge = 1;
		sge->addr = cpu_to_le64(slot->addr);
		sge->length = cpu_to_le32(net->frame_size);
		sge->lkey = cpu_to_le32(net->lkey);
		producer++;
	}
	if (producer != rq->producer) {
		rq->producer = producer;
		dma_wmb();
		WRITE_ONCE(faultline_wq_record(rq)->producer,
			   cpu_to_le32(producer));
	}
	return producer != rq->consumer;
}

/* Takes the buffer out of a slot of the receive queue. */
struct sk_buff *faultline_rx_take(struct faultline_channel *ch,
				  struct faultline_rx_slot *slot)
{
	struct sk_buff *skb = slot->skb;

	if (skb)
		dma_unmap_single(&ch->net->dev->pdev->dev, slot->addr,
				 ch->net->frame_size, DMA_FROM_DEVICE);
	slot->skb = NULL;
	return skb;
}

/* Passes a frame to the stack. Returns its length, 0 if it was dropped. */
static unsigned int faultline_rx_frame(struct faultline_channel *ch,
				       const struct faultline_cqe *cqe)
{
	struct faultline_net *net = ch->net;
	u32 tag = le32_to_cpu(cqe->wqe);
	u32 len = le32_to_cpu(cqe->byte_len);
	u8 status = cqe->status;
	struct sk_buff *skb;

	/* The device uses receive buffers in order. */
	if (tag != ch->rq.consumer || tag == ch->rq.producer) {
		if (net_ratelimit())
			netdev_err(net->netdev, "completion %u, expected %u\n",
				   tag, ch->rq.consumer);
		schedule_work(&net->reset_work);
		return 0;
	}
	skb = faultline_rx_take(ch, faultline_rx_slot(ch, tag));
	ch->rq.consumer++;
	if (status != FAULTLINE_WC_STATUS_SUCCESS || len < ETH_HLEN ||
	    len > net->frame_size) {
		dev_kfree_skb_any(skb);
		if (status == FAULTLINE_WC_STATUS_WR_FLUSH_ERR)
			schedule_work(&net->reset_work);
		else
			dev_core_stats_rx_dropped_inc(net->netdev);
		return 0;
	}
	skb_put(skb, len);
	skb->protocol = eth_type_trans(skb, net->netdev);
	if (cqe->flags & FAULTLINE_CQE_CSUM_OK &&
	    net->netdev->features & NETIF_F_RXCSUM)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	if (cqe->flags & FAULTLINE_CQE_HASH &&
	    net->netdev->features & NETIF_F_RXHASH)
		skb_set_hash(skb, le32_to_cpu(cqe->imm), PKT_HASH_TYPE_L4);
	skb_record_rx_queue(skb, ch->index);
	napi_gro_receive(&ch->napi, skb);
	return len;
}

/* Returns the number of completions, at most `budget`. */
static int faultline_rx_poll(struct faultline_channel *ch, int budget)
{
	unsigned int packets = 0, bytes = 0, len;
	struct faultline_cqe cqe;
	int done = 0;

	while (done < budget && faultline_net_cqe(&ch->rx_cq, &cqe)) {
		len = faultline_rx_frame(ch, &cqe);
		packets += !!len;
		bytes += len;
		ch->rx_cq.consumer++;
		done++;
	}
	if (done)
		faultline_net_cq_release(&ch->rx_cq);
	if (packets) {
		u64_stats_update_begin(&ch->stats.syncp);
		u64_stats_add(&ch->stats.rx_packets, packets);
		u64_stats_add(&ch->stats.rx_bytes, bytes);
		u64_stats_update_end(&ch->stats.syncp);
	}
	return done;
}

void faultline_refill_expired(struct timer_list *timer)
{
	struct faultline_channel *ch =
		container_of(timer, struct faultline_channel, refill_timer);

	napi_schedule(&ch->napi);
}

int faultline_napi_poll(struct napi_struct *napi, int budget)
{
	struct faultline_channel *ch =
		container_of(napi, struct faultline_channel, napi);
	int done;

	faultline_tx_poll(ch, budget);
	done = faultline_rx_poll(ch, budget);
	/*
	 * Without receive buffers there are no completions, so nothing would
	 * schedule NAPI again. The timer does.
	 */
	if (!faultline_rx_refill(ch, GFP_ATOMIC) &&
	    !faultline_is_dead(ch->net->dev))
		mod_timer(&ch->refill_timer, jiffies + FAULTLINE_REFILL_DELAY);
	if (done == budget)
		return budget;
	if (napi_complete_done(napi, done))
		faultline_channel_arm(ch);
	return done;
}
