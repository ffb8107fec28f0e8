// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * The Ethernet side: a netdev on a raw Ethernet QP of the kernel's. Everything
 * that RoCE does not take comes here.
 */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/ipv6.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/tcp.h>

#include "faultline_net.h"

struct net_device *faultline_netdev(struct faultline_dev *dev)
{
	return dev->net->netdev;
}

/* Tells the device what to receive. */
static int faultline_net_config(struct faultline_net *net)
{
	struct net_device *netdev = net->netdev;
	struct faultline_set_netdev params = {};
	u32 flags = READ_ONCE(net->rx_flags);
	int err;

	mutex_lock(&net->config_lock);
	ether_addr_copy(params.mac, netdev->dev_addr);
	params.mtu = cpu_to_le16(netdev->mtu);
	if (net->up) {
		flags |= FAULTLINE_NETDEV_UP;
		params.qpn = cpu_to_le32(net->qp_res.num);
	}
	params.flags = cpu_to_le32(flags);
	err = faultline_cmd_set_netdev(net->dev, &params);
	mutex_unlock(&net->config_lock);
	return err;
}

static int faultline_net_set_up(struct faultline_net *net, bool up)
{
	mutex_lock(&net->config_lock);
	net->up = up;
	mutex_unlock(&net->config_lock);
	return faultline_net_config(net);
}

static void faultline_net_mode_work(struct work_struct *work)
{
	struct faultline_net *net =
		container_of(work, struct faultline_net, mode_work);

	faultline_net_config(net);
}

/* May not sleep. */
static void faultline_set_rx_mode(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);
	u32 flags = 0;

	if (netdev->flags & IFF_PROMISC)
		flags |= FAULTLINE_NETDEV_PROMISC;
	/* There is no filter by group. */
	if (netdev->flags & IFF_ALLMULTI || !netdev_mc_empty(netdev))
		flags |= FAULTLINE_NETDEV_ALLMULTI;
	if (flags == net->rx_flags)
		return;
	WRITE_ONCE(net->rx_flags, flags);
	queue_work(net->dev->wq, &net->mode_work);
}

static struct faultline_cqe *faultline_net_cqe(struct faultline_net_cq *cq)
{
	struct faultline_cqe *ring = cq->buf.cpu;
	struct faultline_cqe *cqe =
		&ring[cq->consumer & (BIT(cq->log_depth) - 1)];

	if (READ_ONCE(cqe->phase) !=
	    faultline_phase(cq->consumer, cq->log_depth))
		return NULL;
	dma_rmb();
	return cqe;
}

/* Frees the entries that were taken off for new completions. */
static void faultline_net_cq_release(struct faultline_net_cq *cq)
{
	struct faultline_cq_record *record =
		cq->buf.cpu +
		sizeof(struct faultline_cqe) * BIT(cq->log_depth);

	WRITE_ONCE(record->consumer, cpu_to_le32(cq->consumer));
}

static void faultline_net_cq_arm(struct faultline_net_cq *cq)
{
	faultline_doorbell(cq->net->dev, FAULTLINE_DB_CQ_ARM, cq->res.num,
			   cq->consumer);
}

static void faultline_net_cq_event(struct faultline_res *res, u8 kind)
{
	struct faultline_net_cq *cq =
		container_of(res, struct faultline_net_cq, res);

	if (kind == FAULTLINE_EVENT_COMPLETION)
		napi_schedule(&cq->net->napi);
	else
		schedule_work(&cq->net->reset_work);
}

static void faultline_net_qp_event(struct faultline_res *res, u8 kind)
{
	struct faultline_net *net =
		container_of(res, struct faultline_net, qp_res);

	netdev_err(net->netdev, "event %u of the raw QP\n", kind);
	schedule_work(&net->reset_work);
}

/* A work request of the send queue is done, or will never be. */
static void faultline_tx_free(struct faultline_net *net,
			      struct faultline_tx_slot *slot, int budget)
{
	struct device *dma_dev = &net->dev->pdev->dev;
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

static bool faultline_tx_has_room(const struct faultline_net *net)
{
	return net->sq.producer - READ_ONCE(net->sq.consumer) <
	       net->tx_depth;
}

static void faultline_tx_poll(struct faultline_net *net, int budget)
{
	unsigned int packets = 0, bytes = 0;
	struct faultline_cqe *cqe;
	bool failed = false;

	while ((cqe = faultline_net_cqe(&net->tx_cq))) {
		u32 end = le32_to_cpu(cqe->wqe) + 1;
		u32 index = net->sq.consumer;

		failed |= cqe->status != FAULTLINE_WC_STATUS_SUCCESS;
		net->tx_cq.consumer++;
		/* Only what is out can be done. */
		if (end - index > net->sq.producer - index) {
			failed = true;
			continue;
		}
		for (; index != end; index++) {
			struct faultline_tx_slot *slot =
				faultline_tx_slot(net, index);

			packets++;
			bytes += slot->skb->len;
			faultline_tx_free(net, slot, budget);
		}
		WRITE_ONCE(net->sq.consumer, index);
	}
	if (packets) {
		faultline_net_cq_release(&net->tx_cq);
		dev_sw_netstats_tx_add(net->netdev, packets, bytes);
		netdev_completed_queue(net->netdev, packets, bytes);
		/* Pairs with the barrier after stopping the queue. */
		smp_mb();
		if (netif_queue_stopped(net->netdev) &&
		    faultline_tx_has_room(net))
			netif_wake_queue(net->netdev);
	}
	if (failed)
		schedule_work(&net->reset_work);
}

static int faultline_tx_map(struct faultline_net *net, struct sk_buff *skb,
			    struct faultline_tx_slot *slot)
{
	struct device *dma_dev = &net->dev->pdev->dev;
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
 * What the device is to do for a frame. It sums and cuts only what begins in
 * the part of a frame that it looks at; ndo_features_check sees to that.
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

static void faultline_tx_fill(struct faultline_net *net,
			      const struct faultline_tx_slot *slot)
{
	struct faultline_sq_wqe *wqe =
		faultline_wq_entry(&net->sq, net->sq.producer);
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
		sge[i].lkey = cpu_to_le32(net->lkey);
	}
}

static netdev_tx_t faultline_start_xmit(struct sk_buff *skb,
					struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_tx_slot *slot;
	bool kick;

	if (unlikely(!faultline_tx_has_room(net))) {
		netif_stop_queue(netdev);
		return NETDEV_TX_BUSY;
	}
	slot = faultline_tx_slot(net, net->sq.producer);
	if (unlikely(skb_shinfo(skb)->nr_frags >= net->sq.max_sge &&
		     skb_linearize(skb)))
		goto drop;
	if (unlikely(faultline_is_dead(net->dev)))
		goto drop;
	if (faultline_tx_map(net, skb, slot)) {
		/* Unmaps what was mapped, leaves the skb to us. */
		faultline_tx_free(net, slot, 0);
		goto drop;
	}
	slot->skb = skb;
	faultline_tx_fill(net, slot);
	skb_tx_timestamp(skb);
	kick = __netdev_sent_queue(netdev, skb->len, netdev_xmit_more());
	WRITE_ONCE(net->sq.producer, net->sq.producer + 1);

	if (!faultline_tx_has_room(net)) {
		netif_stop_queue(netdev);
		/* Pairs with the one in faultline_tx_poll(). */
		smp_mb();
		if (faultline_tx_has_room(net))
			netif_start_queue(netdev);
		kick = true;
	}
	if (kick)
		faultline_doorbell(net->dev, FAULTLINE_DB_SQ, net->qp_res.num,
				   net->sq.producer);
	return NETDEV_TX_OK;

drop:
	dev_core_stats_tx_dropped_inc(netdev);
	dev_kfree_skb_any(skb);
	/* Frames before this one may wait for the last of their batch. */
	faultline_doorbell(net->dev, FAULTLINE_DB_SQ, net->qp_res.num,
			   net->sq.producer);
	return NETDEV_TX_OK;
}

/* Fills the receive queue up. False: there is not one buffer in it. */
static bool faultline_rx_refill(struct faultline_net *net, gfp_t gfp)
{
	struct device *dma_dev = &net->dev->pdev->dev;
	struct faultline_wq *rq = &net->rq;
	u32 producer = rq->producer;

	while (producer - rq->consumer < net->rx_depth) {
		struct faultline_rx_slot *slot =
			faultline_rx_slot(net, producer);
		struct faultline_rq_wqe *wqe = faultline_wq_entry(rq, producer);
		struct faultline_sge *sge = (void *)wqe + FAULTLINE_RQ_WQE_DATA;
		struct sk_buff *skb;

		skb = __netdev_alloc_skb_ip_align(net->netdev, net->rx_size,
						  gfp);
		if (!skb)
			break;
		slot->addr = dma_map_single(dma_dev, skb->data, net->rx_size,
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
		sge->length = cpu_to_le32(net->rx_size);
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
static struct sk_buff *faultline_rx_take(struct faultline_net *net,
					 struct faultline_rx_slot *slot)
{
	struct sk_buff *skb = slot->skb;

	if (skb)
		dma_unmap_single(&net->dev->pdev->dev, slot->addr,
				 net->rx_size, DMA_FROM_DEVICE);
	slot->skb = NULL;
	return skb;
}

static void faultline_rx_frame(struct faultline_net *net,
			       const struct faultline_cqe *cqe)
{
	u32 tag = le32_to_cpu(cqe->wqe);
	u32 len = le32_to_cpu(cqe->byte_len);
	u8 status = cqe->status;
	struct sk_buff *skb;

	/* The queue is in order. */
	if (tag != net->rq.consumer || tag == net->rq.producer) {
		netdev_err(net->netdev, "receive %u where %u is due\n", tag,
			   net->rq.consumer);
		schedule_work(&net->reset_work);
		return;
	}
	skb = faultline_rx_take(net, faultline_rx_slot(net, tag));
	net->rq.consumer++;
	if (status != FAULTLINE_WC_STATUS_SUCCESS || len < ETH_HLEN ||
	    len > net->rx_size) {
		dev_kfree_skb_any(skb);
		if (status == FAULTLINE_WC_STATUS_WR_FLUSH_ERR)
			schedule_work(&net->reset_work);
		else
			dev_core_stats_rx_dropped_inc(net->netdev);
		return;
	}
	skb_put(skb, len);
	skb->protocol = eth_type_trans(skb, net->netdev);
	if (cqe->flags & FAULTLINE_CQE_CSUM_OK &&
	    net->netdev->features & NETIF_F_RXCSUM)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	skb_record_rx_queue(skb, 0);
	dev_sw_netstats_rx_add(net->netdev, len);
	napi_gro_receive(&net->napi, skb);
}

static int faultline_napi_poll(struct napi_struct *napi, int budget)
{
	struct faultline_net *net =
		container_of(napi, struct faultline_net, napi);
	struct faultline_cqe *cqe;
	int done = 0;

	faultline_tx_poll(net, budget);
	while (done < budget && (cqe = faultline_net_cqe(&net->rx_cq))) {
		faultline_rx_frame(net, cqe);
		net->rx_cq.consumer++;
		done++;
	}
	if (done)
		faultline_net_cq_release(&net->rx_cq);
	/* Without a buffer nothing would ever wake us: poll on. */
	if (!faultline_rx_refill(net, GFP_ATOMIC) &&
	    !faultline_is_dead(net->dev))
		return budget;
	if (done == budget)
		return budget;
	if (napi_complete_done(napi, done)) {
		faultline_net_cq_arm(&net->tx_cq);
		faultline_net_cq_arm(&net->rx_cq);
	}
	return done;
}

/*
 * A command that destroys failed. If the device holds on to our memory, it is
 * the device that has to go.
 */
static void faultline_net_must(struct faultline_net *net, int err)
{
	if (!faultline_settle(net->dev, err))
		return;
	netdev_err(net->netdev, "can't take a queue back: %d\n", err);
	faultline_fail(net->dev, "queue can't be destroyed");
	wait_for_completion(&net->dev->quiesced);
}

/* Says how long notices may wait, of a CQ that exists or of the next one. */
int faultline_net_moderate(struct faultline_net_cq *cq, u16 count, u16 period)
{
	int err = 0;

	if (netif_running(cq->net->netdev) &&
	    netif_device_present(cq->net->netdev))
		err = faultline_cmd_modify_cq(cq->net->dev, cq->res.num, count,
					      period);
	if (err)
		return err;
	cq->count = count;
	cq->period = period;
	return 0;
}

/* A CQ for a queue of so many work requests: each makes at most one completion. */
static int faultline_net_create_cq(struct faultline_net *net,
				   struct faultline_net_cq *cq, u32 depth)
{
	struct faultline_dev *dev = net->dev;
	struct faultline_create_cq params = {};
	u32 cqn;
	int err;

	cq->consumer = 0;
	cq->log_depth = ilog2(depth) + 1;
	err = faultline_buf_alloc(dev, &cq->buf, cq->log_depth,
				  FAULTLINE_NET_CQE_SHIFT);
	if (err)
		return err;
	params.ring = cq->buf.ring;
	params.log_depth = cq->log_depth;
	params.eqn = cpu_to_le32(faultline_comp_eqn(dev, 0));
	err = faultline_cmd_create_cq(dev, &params, &cqn);
	faultline_buf_created(dev, &cq->buf);
	if (err)
		goto free_buf;
	if (cq->period) {
		err = faultline_cmd_modify_cq(dev, cqn, cq->count, cq->period);
		if (err)
			goto destroy;
	}
	faultline_res_init(&cq->res, cqn, faultline_net_cq_event);
	err = faultline_res_add(&dev->cqs, &cq->res);
	if (err)
		goto destroy;
	return 0;

destroy:
	faultline_net_must(net, faultline_cmd_destroy_cq(dev, cqn));
free_buf:
	faultline_buf_free(dev, &cq->buf);
	return err;
}

static void faultline_net_destroy_cq(struct faultline_net *net,
				     struct faultline_net_cq *cq)
{
	faultline_res_remove(&net->dev->cqs, &cq->res);
	faultline_net_must(net, faultline_cmd_destroy_cq(net->dev,
							 cq->res.num));
	faultline_buf_free(net->dev, &cq->buf);
}

static int faultline_net_modify_qp(struct faultline_net *net, u32 qpn,
				   u8 state, u32 mask)
{
	struct faultline_qp_attr attr = {
		.mask = cpu_to_le32(FAULTLINE_QP_ATTR_STATE | mask),
		.state = state,
	};

	if (mask & FAULTLINE_QP_ATTR_PORT)
		attr.port = 1;
	return faultline_cmd_modify_qp(net->dev, qpn, &attr);
}

static int faultline_net_start_qp(struct faultline_net *net, u32 qpn)
{
	int err;

	err = faultline_net_modify_qp(net, qpn, FAULTLINE_QPS_INIT,
				      FAULTLINE_QP_ATTR_PORT);
	if (!err)
		err = faultline_net_modify_qp(net, qpn, FAULTLINE_QPS_RTR, 0);
	if (!err)
		err = faultline_net_modify_qp(net, qpn, FAULTLINE_QPS_RTS, 0);
	return err;
}

static int faultline_net_create_qp(struct faultline_net *net)
{
	struct faultline_dev *dev = net->dev;
	struct faultline_create_qp params = {};
	u32 qpn;
	int err;

	params.sq = net->sq.buf.ring;
	params.rq = net->rq.buf.ring;
	params.pd = cpu_to_le32(net->pdn);
	params.send_cqn = cpu_to_le32(net->tx_cq.res.num);
	params.recv_cqn = cpu_to_le32(net->rx_cq.res.num);
	params.qp_type = FAULTLINE_QPT_RAW;
	params.sq_log_depth = net->sq.log_depth;
	params.sq_stride_shift = net->sq.stride_shift;
	params.rq_log_depth = net->rq.log_depth;
	params.rq_stride_shift = net->rq.stride_shift;
	params.max_send_sge = net->sq.max_sge;
	params.max_recv_sge = 1;
	err = faultline_cmd_create_qp(dev, &params, &qpn);
	faultline_buf_created(dev, &net->sq.buf);
	faultline_buf_created(dev, &net->rq.buf);
	if (err)
		return err;
	faultline_res_init(&net->qp_res, qpn, faultline_net_qp_event);
	err = faultline_net_start_qp(net, qpn);
	if (!err)
		err = faultline_res_add(&dev->qps, &net->qp_res);
	if (err)
		faultline_net_must(net, faultline_cmd_destroy_qp(dev, qpn));
	return err;
}

static int faultline_net_alloc_rings(struct faultline_net *net)
{
	struct faultline_dev *dev = net->dev;
	int err;

	net->rx_size = net->netdev->mtu + ETH_HLEN + VLAN_HLEN;
	net->sq.max_sge = min_t(u32, FAULTLINE_NET_MAX_SGE,
				le32_to_cpu(dev->caps.max_sge));
	net->sq.producer = 0;
	net->sq.consumer = 0;
	net->rq.producer = 0;
	net->rq.consumer = 0;
	net->tx = kvcalloc(net->tx_depth, sizeof(*net->tx), GFP_KERNEL);
	net->rx = kvcalloc(net->rx_depth, sizeof(*net->rx), GFP_KERNEL);
	if (!net->tx || !net->rx) {
		err = -ENOMEM;
		goto free_slots;
	}
	err = faultline_wq_alloc(dev, &net->sq, net->tx_depth,
				 FAULTLINE_SQ_WQE_DATA +
				 net->sq.max_sge *
					 sizeof(struct faultline_sge));
	if (err)
		goto free_slots;
	err = faultline_wq_alloc(dev, &net->rq, net->rx_depth,
				 FAULTLINE_RQ_WQE_DATA +
					 sizeof(struct faultline_sge));
	if (err)
		goto free_sq;
	return 0;

free_sq:
	faultline_wq_free(dev, &net->sq);
free_slots:
	kvfree(net->rx);
	kvfree(net->tx);
	return err;
}

/* The device has let go of the rings: gives every buffer back. */
static void faultline_net_free_rings(struct faultline_net *net)
{
	unsigned int i;

	for (i = 0; i < net->tx_depth; i++)
		faultline_tx_free(net, &net->tx[i], 0);
	for (i = 0; i < net->rx_depth; i++)
		dev_kfree_skb_any(faultline_rx_take(net, &net->rx[i]));
	faultline_wq_free(net->dev, &net->rq);
	faultline_wq_free(net->dev, &net->sq);
	kvfree(net->rx);
	kvfree(net->tx);
	netdev_reset_queue(net->netdev);
}

static int faultline_open(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_dev *dev = net->dev;
	int err;

	if (faultline_is_dead(dev))
		return -EIO;
	err = faultline_net_alloc_rings(net);
	if (err)
		return err;
	err = faultline_net_create_cq(net, &net->tx_cq, net->tx_depth);
	if (err)
		goto free_rings;
	err = faultline_net_create_cq(net, &net->rx_cq, net->rx_depth);
	if (err)
		goto destroy_tx_cq;
	err = faultline_net_create_qp(net);
	if (err)
		goto destroy_rx_cq;
	if (!faultline_rx_refill(net, GFP_KERNEL)) {
		err = -ENOMEM;
		goto destroy_qp;
	}
	napi_enable(&net->napi);
	err = faultline_net_set_up(net, true);
	if (err)
		goto disable_napi;
	faultline_net_cq_arm(&net->tx_cq);
	faultline_net_cq_arm(&net->rx_cq);
	netif_start_queue(netdev);
	faultline_net_link(dev, faultline_read(dev, FAULTLINE_REG_STATUS) &
				FAULTLINE_STATUS_LINK_UP);
	return 0;

disable_napi:
	napi_disable(&net->napi);
destroy_qp:
	faultline_res_remove(&dev->qps, &net->qp_res);
	faultline_net_must(net, faultline_cmd_destroy_qp(dev,
							 net->qp_res.num));
destroy_rx_cq:
	faultline_net_destroy_cq(net, &net->rx_cq);
destroy_tx_cq:
	faultline_net_destroy_cq(net, &net->tx_cq);
free_rings:
	faultline_net_free_rings(net);
	return err;
}

static int faultline_stop(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_dev *dev = net->dev;

	/* First who wakes the queue, then the queue: resets come here, too. */
	napi_disable(&net->napi);
	netif_tx_disable(netdev);
	netif_carrier_off(netdev);
	faultline_ib_port_event(dev, false);
	cancel_work_sync(&net->mode_work);
	faultline_net_set_up(net, false);
	faultline_res_remove(&dev->qps, &net->qp_res);
	faultline_net_must(net, faultline_cmd_destroy_qp(dev,
							 net->qp_res.num));
	faultline_net_destroy_cq(net, &net->rx_cq);
	faultline_net_destroy_cq(net, &net->tx_cq);
	faultline_net_free_rings(net);
	return 0;
}

/* The queue pair has stopped: start over with a new one. */
static void faultline_net_reset_work(struct work_struct *work)
{
	struct faultline_net *net =
		container_of(work, struct faultline_net, reset_work);
	struct net_device *netdev = net->netdev;

	rtnl_lock();
	if (netif_running(netdev) && netif_device_present(netdev) &&
	    !faultline_is_dead(net->dev)) {
		netdev_warn(netdev, "restarting the queues\n");
		faultline_stop(netdev);
		if (faultline_open(netdev)) {
			netdev_err(netdev, "can't restart the queues\n");
			faultline_fail(net->dev, "netdev queues lost");
			netif_device_detach(netdev);
		}
	}
	rtnl_unlock();
}

static void faultline_tx_timeout(struct net_device *netdev,
				 unsigned int txqueue)
{
	struct faultline_net *net = netdev_priv(netdev);

	netdev_warn(netdev, "transmit timeout: %u of %u done\n",
		    net->sq.consumer, net->sq.producer);
	schedule_work(&net->reset_work);
}

/* The headers that the device finds: no extension headers, no tunnels. */
static bool faultline_can_segment(const struct sk_buff *skb)
{
	unsigned int ip_len = skb_network_header_len(skb);

	if (skb->encapsulation || skb_network_offset(skb) != ETH_HLEN)
		return false;
	if (skb->protocol == htons(ETH_P_IPV6))
		return ip_len == sizeof(struct ipv6hdr);
	return skb->protocol == htons(ETH_P_IP);
}

static netdev_features_t faultline_features_check(struct sk_buff *skb,
						  struct net_device *netdev,
						  netdev_features_t features)
{
	features = vlan_features_check(skb, features);
	if (skb->ip_summed == CHECKSUM_PARTIAL &&
	    skb_checksum_start_offset(skb) + skb->csum_offset +
			    sizeof(__sum16) > FAULTLINE_MAX_RAW_HEADERS)
		features &= ~(NETIF_F_CSUM_MASK | NETIF_F_GSO_MASK);
	if (skb_is_gso(skb) && !faultline_can_segment(skb))
		features &= ~NETIF_F_GSO_MASK;
	return features;
}

static int faultline_set_mac_address(struct net_device *netdev, void *addr)
{
	struct faultline_net *net = netdev_priv(netdev);
	u8 old[ETH_ALEN];
	int err;

	ether_addr_copy(old, netdev->dev_addr);
	err = eth_mac_addr(netdev, addr);
	if (err)
		return err;
	err = faultline_net_config(net);
	if (err)
		eth_hw_addr_set(netdev, old);
	return err;
}

static void faultline_net_apply(struct faultline_net *net,
				const struct faultline_net_shape *shape)
{
	WRITE_ONCE(net->netdev->mtu, shape->mtu);
	net->tx_depth = shape->tx_depth;
	net->rx_depth = shape->rx_depth;
}

/* Gives the queues another shape; if that fails they are as they were. */
int faultline_net_reshape(struct faultline_net *net,
			  const struct faultline_net_shape *shape)
{
	struct net_device *netdev = net->netdev;
	bool running = netif_running(netdev) && netif_device_present(netdev);
	struct faultline_net_shape old = faultline_net_shape(net);
	int err;

	if (faultline_is_dead(net->dev))
		return -EIO;
	if (running)
		faultline_stop(netdev);
	faultline_net_apply(net, shape);
	err = running ? faultline_open(netdev) : faultline_net_config(net);
	if (!err)
		return 0;
	faultline_net_apply(net, &old);
	if (running && faultline_open(netdev)) {
		faultline_fail(net->dev, "netdev queues lost");
		netif_device_detach(netdev);
	}
	return err;
}

static int faultline_change_mtu(struct net_device *netdev, int mtu)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_net_shape shape = faultline_net_shape(net);

	/* The receive buffers have the size of the MTU. */
	shape.mtu = mtu;
	return faultline_net_reshape(net, &shape);
}

static const struct net_device_ops faultline_netdev_ops = {
	.ndo_open = faultline_open,
	.ndo_stop = faultline_stop,
	.ndo_start_xmit = faultline_start_xmit,
	.ndo_features_check = faultline_features_check,
	.ndo_get_stats64 = dev_get_tstats64,
	.ndo_set_rx_mode = faultline_set_rx_mode,
	.ndo_set_mac_address = faultline_set_mac_address,
	.ndo_change_mtu = faultline_change_mtu,
	.ndo_tx_timeout = faultline_tx_timeout,
	.ndo_validate_addr = eth_validate_addr,
};

static void faultline_net_read_mac(struct faultline_dev *dev,
				   struct net_device *netdev)
{
	u32 low = faultline_read(dev, FAULTLINE_REG_MAC);
	u32 high = faultline_read(dev, FAULTLINE_REG_MAC + 4);
	u8 mac[ETH_ALEN] = {
		low, low >> 8, low >> 16, low >> 24, high, high >> 8,
	};

	if (is_valid_ether_addr(mac)) {
		eth_hw_addr_set(netdev, mac);
		return;
	}
	faultline_warn(dev, "no valid MAC address, using a random one\n");
	eth_hw_addr_random(netdev);
}

/* The link came up or went down. In interrupt context too. */
void faultline_net_link(struct faultline_dev *dev, bool up)
{
	struct faultline_net *net = READ_ONCE(dev->net);

	if (!net || !netif_running(net->netdev) || faultline_is_dead(dev))
		return;
	if (up)
		netif_carrier_on(net->netdev);
	else
		netif_carrier_off(net->netdev);
	faultline_ib_port_event(dev, up);
}

/* The device is dead: no carrier, and transmission ends. */
void faultline_net_death(struct faultline_dev *dev)
{
	mutex_lock(&dev->net_lock);
	if (dev->net)
		netif_carrier_off(dev->net->netdev);
	mutex_unlock(&dev->net_lock);
}

/* Nobody finds the netdev any more, and no event is about it. */
static void faultline_net_forget(struct faultline_dev *dev)
{
	mutex_lock(&dev->net_lock);
	WRITE_ONCE(dev->net, NULL);
	mutex_unlock(&dev->net_lock);
	faultline_eqs_sync(dev);
}

int faultline_net_create(struct faultline_dev *dev)
{
	struct faultline_net *net;
	struct net_device *netdev;
	u32 max_tso;
	int err;

	netdev = alloc_etherdev(sizeof(*net));
	if (!netdev)
		return -ENOMEM;
	SET_NETDEV_DEV(netdev, &dev->pdev->dev);
	net = netdev_priv(netdev);
	net->dev = dev;
	net->netdev = netdev;
	net->tx_depth = FAULTLINE_NET_DEPTH;
	net->rx_depth = FAULTLINE_NET_DEPTH;
	net->tx_cq.net = net;
	net->rx_cq.net = net;
	mutex_init(&net->config_lock);
	INIT_WORK(&net->mode_work, faultline_net_mode_work);
	INIT_WORK(&net->reset_work, faultline_net_reset_work);
	netdev->netdev_ops = &faultline_netdev_ops;
	netdev->ethtool_ops = &faultline_ethtool_ops;
	netdev->min_mtu = ETH_MIN_MTU;
	netdev->max_mtu = le32_to_cpu(dev->caps.max_mtu);
	netdev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_RXCSUM;
	netdev->vlan_features = netdev->hw_features | NETIF_F_HIGHDMA;
	max_tso = le32_to_cpu(dev->caps.max_tso);
	if (max_tso) {
		netdev->hw_features |= NETIF_F_TSO | NETIF_F_TSO6;
		netif_set_tso_max_size(netdev, min(max_tso, GSO_LEGACY_MAX_SIZE));
	}
	netdev->features = netdev->hw_features | NETIF_F_HIGHDMA;
	netdev->pcpu_stat_type = NETDEV_PCPU_STAT_TSTATS;
	netif_napi_add(netdev, &net->napi, faultline_napi_poll);
	faultline_net_read_mac(dev, netdev);

	err = faultline_cmd_alloc_pd(dev, &net->pdn);
	if (err)
		goto free_netdev;
	err = faultline_create_dma_mkey(dev, net->pdn,
					FAULTLINE_ACCESS_LOCAL_WRITE,
					&net->lkey);
	if (err)
		goto dealloc_pd;
	err = faultline_net_config(net);
	if (err)
		goto destroy_mkey;
	netif_carrier_off(netdev);
	mutex_lock(&dev->net_lock);
	WRITE_ONCE(dev->net, net);
	mutex_unlock(&dev->net_lock);
	err = register_netdev(netdev);
	if (err)
		goto forget;
	return 0;

forget:
	faultline_net_forget(dev);
destroy_mkey:
	faultline_cmd_destroy_mkey(dev, net->lkey);
dealloc_pd:
	faultline_cmd_dealloc_pd(dev, net->pdn);
free_netdev:
	free_netdev(netdev);
	return err;
}

void faultline_net_destroy(struct faultline_dev *dev)
{
	struct faultline_net *net = dev->net;

	/* Stops it, and with it all work but resets. */
	unregister_netdev(net->netdev);
	faultline_net_forget(dev);
	cancel_work_sync(&net->reset_work);
	cancel_work_sync(&net->mode_work);
	faultline_cmd_destroy_mkey(dev, net->lkey);
	faultline_cmd_dealloc_pd(dev, net->pdn);
	free_netdev(net->netdev);
}
