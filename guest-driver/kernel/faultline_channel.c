// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Channels of the netdev: each is a raw Ethernet QP with its two CQs. */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/slab.h>

#include "faultline_net.h"

static void faultline_net_cq_event(struct faultline_res *res, u8 kind)
{
	struct faultline_net_cq *cq =
		container_of(res, struct faultline_net_cq, res);

	if (kind != FAULTLINE_EVENT_COMPLETION) {
		schedule_work(&cq->ch->net->reset_work);
		return;
	}
	WRITE_ONCE(cq->is_armed, false);
	napi_schedule(&cq->ch->napi);
}

static void faultline_net_qp_event(struct faultline_res *res, u8 kind)
{
	struct faultline_channel *ch =
		container_of(res, struct faultline_channel, qp_res);

	netdev_err(ch->net->netdev, "event %u of the raw QP of channel %u\n",
		   kind, ch->index);
	schedule_work(&ch->net->reset_work);
}

/*
 * Checks the result of a command that destroys a queue. If the command has
 * failed, the device may still use the queue's memory: then this declares the
 * device dead and waits until it has stopped all DMA.
 */
void faultline_net_reclaim(struct faultline_net *net, int err)
{
	if (!faultline_dead_ok(net->dev, err))
		return;
	netdev_err(net->netdev, "can't destroy a queue: %d\n", err);
	faultline_fail(net->dev, "queue can't be destroyed");
	wait_for_completion(&net->dev->quiesced);
}

/*
 * Creates the CQ of a queue with `depth` work requests, each of which makes at
 * most one completion.
 */
static int faultline_net_create_cq(struct faultline_channel *ch,
				   struct faultline_net_cq *cq, u32 depth,
				   const struct faultline_moderation *moderation)
{
	struct faultline_dev *dev = ch->net->dev;
	struct faultline_create_cq params = {};
	u32 cqn;
	int err;

	cq->ch = ch;
	cq->consumer = 0;
	cq->is_armed = false;
	cq->log_depth = ilog2(depth) + 1;
	err = faultline_buf_alloc(dev, &cq->buf, cq->log_depth,
				  FAULTLINE_NET_CQE_SHIFT);
	if (err)
		return err;
	params.ring = cq->buf.ring;
	params.log_depth = cq->log_depth;
	params.eqn = cpu_to_le32(faultline_comp_eqn(dev, ch->index));
	err = faultline_cmd_create_cq(dev, &params, &cqn);
	faultline_buf_created(dev, &cq->buf);
	if (err)
		goto free_buf;
	if (moderation->period) {
		err = faultline_cmd_modify_cq(dev, cqn, moderation->count,
					      moderation->period);
		if (err)
			goto destroy;
	}
	faultline_res_init(&cq->res, cqn, faultline_net_cq_event);
	err = faultline_res_add(dev, &dev->cqs, &cq->res);
	if (err)
		goto destroy;
	return 0;

destroy:
	faultline_net_reclaim(ch->net, faultline_cmd_destroy_cq(dev, cqn));
free_buf:
	faultline_buf_free(dev, &cq->buf);
	return err;
}

static void faultline_net_destroy_cq(struct faultline_net_cq *cq)
{
	struct faultline_net *net = cq->ch->net;

	faultline_res_remove(&net->dev->cqs, &cq->res);
	faultline_net_reclaim(net,
			      faultline_cmd_destroy_cq(net->dev, cq->res.num));
	faultline_buf_free(net->dev, &cq->buf);
}

/* Sets interrupt moderation, of existing CQs and of those created later. */
int faultline_net_moderate(struct faultline_net *net,
			   const struct faultline_moderation *rx,
			   const struct faultline_moderation *tx)
{
	unsigned int i;
	int err;

	for (i = 0; faultline_net_running(net) && i < net->num_channels; i++) {
		struct faultline_channel *ch = &net->channels[i];

		err = faultline_cmd_modify_cq(net->dev, ch->rx_cq.res.num,
					      rx->count, rx->period);
		if (!err)
			err = faultline_cmd_modify_cq(net->dev,
						      ch->tx_cq.res.num,
						      tx->count, tx->period);
		if (err)
			return err;
	}
	net->rx_moderation = *rx;
	net->tx_moderation = *tx;
	return 0;
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

static int faultline_net_create_qp(struct faultline_channel *ch)
{
	struct faultline_net *net = ch->net;
	struct faultline_dev *dev = net->dev;
	struct faultline_create_qp params = {};
	u32 qpn;
	int err;

	params.sq = ch->sq.buf.ring;
	params.rq = ch->rq.buf.ring;
	params.pd = cpu_to_le32(net->pdn);
	params.send_cqn = cpu_to_le32(ch->tx_cq.res.num);
	params.recv_cqn = cpu_to_le32(ch->rx_cq.res.num);
	params.qp_type = FAULTLINE_QPT_RAW;
	params.sq_log_depth = ch->sq.log_depth;
	params.sq_stride_shift = ch->sq.stride_shift;
	params.rq_log_depth = ch->rq.log_depth;
	params.rq_stride_shift = ch->rq.stride_shift;
	params.max_send_sge = ch->sq.max_sge;
	params.max_recv_sge = 1;
	err = faultline_cmd_create_qp(dev, &params, &qpn);
	faultline_buf_created(dev, &ch->sq.buf);
	faultline_buf_created(dev, &ch->rq.buf);
	if (err)
		return err;
	faultline_res_init(&ch->qp_res, qpn, faultline_net_qp_event);
	err = faultline_net_start_qp(net, qpn);
	if (!err)
		err = faultline_res_add(dev, &dev->qps, &ch->qp_res);
	if (err)
		faultline_net_reclaim(net, faultline_cmd_destroy_qp(dev, qpn));
	return err;
}

static void faultline_net_destroy_qp(struct faultline_channel *ch)
{
	struct faultline_net *net = ch->net;

	faultline_res_remove(&net->dev->qps, &ch->qp_res);
	faultline_net_reclaim(net, faultline_cmd_destroy_qp(net->dev,
							    ch->qp_res.num));
}

static int faultline_channel_alloc(struct faultline_channel *ch)
{
	struct faultline_net *net = ch->net;
	struct faultline_dev *dev = net->dev;
	int err;

	ch->sq.max_sge = min_t(u32, FAULTLINE_NET_MAX_SGE,
			       le32_to_cpu(dev->caps.max_sge));
	ch->sq.producer = 0;
	ch->sq.consumer = 0;
	ch->rq.producer = 0;
	ch->rq.consumer = 0;
	ch->tx = kvcalloc(net->tx_depth, sizeof(*ch->tx), GFP_KERNEL);
	ch->rx = kvcalloc(net->rx_depth, sizeof(*ch->rx), GFP_KERNEL);
	if (!ch->tx || !ch->rx) {
		err = -ENOMEM;
		goto free_slots;
	}
	err = faultline_wq_alloc(dev, &ch->sq, net->tx_depth,
				 FAULTLINE_SQ_WQE_DATA +
				 ch->sq.max_sge *
					 sizeof(struct faultline_sge));
	if (err)
		goto free_slots;
	err = faultline_wq_alloc(dev, &ch->rq, net->rx_depth,
				 FAULTLINE_RQ_WQE_DATA +
					 sizeof(struct faultline_sge));
	if (err)
		goto free_sq;
	return 0;

free_sq:
	faultline_wq_free(dev, &ch->sq);
free_slots:
	kvfree(ch->rx);
	kvfree(ch->tx);
	return err;
}

/* Frees all buffers; the device does not use the rings any more. */
static void faultline_channel_free(struct faultline_channel *ch)
{
	struct faultline_net *net = ch->net;
	unsigned int i;

	for (i = 0; i < net->tx_depth; i++)
		faultline_tx_free(ch, &ch->tx[i], 0);
	for (i = 0; i < net->rx_depth; i++)
		dev_kfree_skb_any(faultline_rx_take(ch, &ch->rx[i]));
	faultline_wq_free(net->dev, &ch->rq);
	faultline_wq_free(net->dev, &ch->sq);
	kvfree(ch->rx);
	kvfree(ch->tx);
	netdev_tx_reset_queue(faultline_tx_queue(ch));
}

/* Creates the queues of a channel and fills the receive queue. */
int faultline_channel_create(struct faultline_channel *ch)
{
	struct faultline_net *net = ch->net;
	int err;

	err = faultline_channel_alloc(ch);
	if (err)
		return err;
	err = faultline_net_create_cq(ch, &ch->tx_cq, net->tx_depth,
				      &net->tx_moderation);
	if (err)
		goto free;
	err = faultline_net_create_cq(ch, &ch->rx_cq, net->rx_depth,
				      &net->rx_moderation);
	if (err)
		goto destroy_tx_cq;
	err = faultline_net_create_qp(ch);
	if (err)
		goto destroy_rx_cq;
	if (!faultline_rx_refill(ch, GFP_KERNEL)) {
		err = -ENOMEM;
		goto destroy_qp;
	}
	return 0;

destroy_qp:
	faultline_net_destroy_qp(ch);
destroy_rx_cq:
	faultline_net_destroy_cq(&ch->rx_cq);
destroy_tx_cq:
	faultline_net_destroy_cq(&ch->tx_cq);
free:
	faultline_channel_free(ch);
	return err;
}

void faultline_channel_destroy(struct faultline_channel *ch)
{
	faultline_net_destroy_qp(ch);
	faultline_net_destroy_cq(&ch->rx_cq);
	faultline_net_destroy_cq(&ch->tx_cq);
	faultline_channel_free(ch);
}

void faultline_channel_read_stats(const struct faultline_channel *ch,
				  struct faultline_queue_stats *stats)
{
	unsigned int start;

	do {
		start = u64_stats_fetch_begin(&ch->stats.syncp);
		stats->rx_packets = u64_stats_read(&ch->stats.rx_packets);
		stats->rx_bytes = u64_stats_read(&ch->stats.rx_bytes);
		stats->tx_packets = u64_stats_read(&ch->stats.tx_packets);
		stats->tx_bytes = u64_stats_read(&ch->stats.tx_bytes);
	} while (u64_stats_fetch_retry(&ch->stats.syncp, start));
}
