/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The netdev and its queues. */
#ifndef FAULTLINE_NET_H
#define FAULTLINE_NET_H

#include <linux/ethtool.h>

#include "faultline_ib.h"

/* Work requests of each queue, until somebody wants another number. */
#define FAULTLINE_NET_DEPTH		512
#define FAULTLINE_NET_MIN_DEPTH		64
#define FAULTLINE_NET_MAX_DEPTH		4096
#define FAULTLINE_NET_CQE_SHIFT		6
/* Linear part and fragments of any skb. */
#define FAULTLINE_NET_MAX_SGE		(MAX_SKB_FRAGS + 1)

struct faultline_net_cq {
	struct faultline_res res;
	struct faultline_net *net;
	struct faultline_buf buf;
	u8 log_depth;
	u32 consumer;
	/* Completions and microseconds that a notice may wait for. */
	u16 count;
	u16 period;
};

struct faultline_tx_slot {
	struct sk_buff *skb;
	unsigned int num;
	/* Our own copy: what stands in the ring is open to the device. */
	dma_addr_t addr[FAULTLINE_NET_MAX_SGE];
	u32 len[FAULTLINE_NET_MAX_SGE];
};

struct faultline_rx_slot {
	struct sk_buff *skb;
	dma_addr_t addr;
};

struct faultline_net {
	struct faultline_dev *dev;
	struct net_device *netdev;
	struct napi_struct napi;

	u32 pdn;
	u32 lkey;
	struct faultline_net_cq tx_cq;
	struct faultline_net_cq rx_cq;
	struct faultline_res qp_res;
	struct faultline_wq sq;
	struct faultline_wq rq;
	struct faultline_tx_slot *tx;
	struct faultline_rx_slot *rx;
	/* Work requests of the queues, powers of two. */
	u32 tx_depth;
	u32 rx_depth;
	/* Bytes of a receive buffer. */
	unsigned int rx_size;

	/* Orders SET_NETDEV commands. */
	struct mutex config_lock;
	/* What the next one says; under config_lock. */
	bool up;
	u32 rx_flags;
	struct work_struct mode_work;
	struct work_struct reset_work;
};

/* What cannot be changed while the queues exist. */
struct faultline_net_shape {
	int mtu;
	u32 tx_depth;
	u32 rx_depth;
};

static inline struct faultline_net_shape
faultline_net_shape(const struct faultline_net *net)
{
	return (struct faultline_net_shape) {
		.mtu = net->netdev->mtu,
		.tx_depth = net->tx_depth,
		.rx_depth = net->rx_depth,
	};
}

static inline struct faultline_tx_slot *
faultline_tx_slot(const struct faultline_net *net, u32 index)
{
	return &net->tx[index & (net->tx_depth - 1)];
}

static inline struct faultline_rx_slot *
faultline_rx_slot(const struct faultline_net *net, u32 index)
{
	return &net->rx[index & (net->rx_depth - 1)];
}

/* faultline_net.c */
int faultline_net_moderate(struct faultline_net_cq *cq, u16 count, u16 period);
int faultline_net_reshape(struct faultline_net *net,
			  const struct faultline_net_shape *shape);

/* faultline_ethtool.c */
extern const struct ethtool_ops faultline_ethtool_ops;

#endif /* FAULTLINE_NET_H */
