/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* The netdev and its channels. */
#ifndef FAULTLINE_NET_H
#define FAULTLINE_NET_H

#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <linux/u64_stats_sync.h>

#include "faultline_ib.h"

/* Default number of work requests of each queue. */
#define FAULTLINE_NET_DEPTH		512
#define FAULTLINE_NET_MIN_DEPTH		64
#define FAULTLINE_NET_MAX_DEPTH		4096
#define FAULTLINE_NET_CQE_SHIFT		6
/* Linear part and fragments of any skb. */
#define FAULTLINE_NET_MAX_SGE		(MAX_SKB_FRAGS + 1)

/* Limit on channels; one thread of the device serves all of them. */
#define FAULTLINE_NET_MAX_CHANNELS	8
/* log2 of the entries of the RSS indirection table. */
#define FAULTLINE_RSS_INDIR_LOG_SIZE	7
#define FAULTLINE_RSS_INDIR_SIZE	BIT(FAULTLINE_RSS_INDIR_LOG_SIZE)
#define FAULTLINE_RSS_KEY_SIZE \
	sizeof_field(struct faultline_create_rss_qp, key)

struct faultline_channel;

struct faultline_net_cq {
	struct faultline_res res;
	struct faultline_channel *ch;
	struct faultline_buf buf;
	u8 log_depth;
	u32 consumer;
	/*
	 * The device raises an event, or has raised one that was not handled
	 * yet.
	 */
	bool is_armed;
	/* `consumer` when the CQ was armed. */
	u32 armed_at;
};

struct faultline_tx_slot {
	struct sk_buff *skb;
	unsigned int num;
	/* A copy, since the device could change the ring. */
	dma_addr_t addr[FAULTLINE_NET_MAX_SGE];
	u32 len[FAULTLINE_NET_MAX_SGE];
};

struct faultline_rx_slot {
	struct sk_buff *skb;
	dma_addr_t addr;
};

/* Frames of a channel since the netdev was created; written by NAPI. */
struct faultline_channel_stats {
	struct u64_stats_sync syncp;
	u64_stats_t rx_packets;
	u64_stats_t rx_bytes;
	u64_stats_t tx_packets;
	u64_stats_t tx_bytes;
};

/* A snapshot of struct faultline_channel_stats. */
struct faultline_queue_stats {
	u64 rx_packets;
	u64 rx_bytes;
	u64 tx_packets;
	u64 tx_bytes;
};

/* One pair of queues to send and receive: a raw QP and its CQs. */
struct faultline_channel {
	struct faultline_net *net;
	unsigned int index;
	struct napi_struct napi;
	struct faultline_net_cq tx_cq;
	struct faultline_net_cq rx_cq;
	struct faultline_res qp_res;
	struct faultline_wq sq;
	struct faultline_wq rq;
	struct faultline_tx_slot *tx;
	struct faultline_rx_slot *rx;
	struct faultline_channel_stats stats;
	/* Polls again after an allocation of buffers has failed. */
	struct timer_list refill_timer;
};

/* Interrupt moderation: number of completions, and microseconds. */
struct faultline_moderation {
	u16 count;
	u16 period;
};

/* The receive QP: that of the only channel, or an RSS QP. */
struct faultline_net_rss {
	u32 qpn;
	/* 0: one channel, no RSS. */
	u32 rwq_ind_table;
};

struct faultline_net {
	struct faultline_dev *dev;
	struct net_device *netdev;

	u32 pdn;
	u32 lkey;
	/* Work requests of each queue, powers of two. */
	u32 tx_depth;
	u32 rx_depth;
	/* Bytes of the longest frame and of a receive buffer. */
	unsigned int frame_size;
	struct faultline_moderation rx_moderation;
	struct faultline_moderation tx_moderation;

	/* The RSS indirection table: channels by hash. */
	u8 rss_indir_log_size;
	u32 rss_indir[FAULTLINE_RSS_INDIR_SIZE];
	u8 rss_key[FAULTLINE_RSS_KEY_SIZE];
	struct faultline_net_rss rss;

	/* Serializes SET_NETDEV and SET_MAC_FILTER commands. */
	struct mutex config_lock;
	/* Parameters of the next SET_NETDEV; under config_lock. */
	bool up;
	u32 qpn;
	u32 rx_flags;
	/* For the device to read; under config_lock. */
	struct faultline_mac_filter_entry *filter;
	dma_addr_t filter_dma;
	struct work_struct mode_work;
	struct work_struct reset_work;

	/* The first num_channels are in use. */
	unsigned int num_channels;
	unsigned int max_channels;
	struct faultline_channel channels[] __counted_by(max_channels);
};

/* Properties that cannot change while the queues exist. */
struct faultline_net_shape {
	int mtu;
	u32 tx_depth;
	u32 rx_depth;
	unsigned int channels;
};

static inline struct faultline_net_shape
faultline_net_shape(const struct faultline_net *net)
{
	return (struct faultline_net_shape) {
		.mtu = net->netdev->mtu,
		.tx_depth = net->tx_depth,
		.rx_depth = net->rx_depth,
		.channels = net->num_channels,
	};
}

static inline bool faultline_net_running(const struct faultline_net *net)
{
	return netif_running(net->netdev) && netif_device_present(net->netdev);
}

static inline struct netdev_queue *
faultline_tx_queue(const struct faultline_channel *ch)
{
	return netdev_get_tx_queue(ch->net->netdev, ch->index);
}

static inline struct faultline_tx_slot *
faultline_tx_slot(const struct faultline_channel *ch, u32 index)
{
	return &ch->tx[index & (ch->net->tx_depth - 1)];
}

static inline struct faultline_rx_slot *
faultline_rx_slot(const struct faultline_channel *ch, u32 index)
{
	return &ch->rx[index & (ch->net->rx_depth - 1)];
}

/* faultline_net.c */
int faultline_net_receive_on(struct faultline_net *net, u32 qpn);
int faultline_net_reshape(struct faultline_net *net,
			  const struct faultline_net_shape *shape);

/* faultline_channel.c */
void faultline_net_reclaim(struct faultline_net *net, int err);
int faultline_channel_create(struct faultline_channel *ch);
void faultline_channel_destroy(struct faultline_channel *ch);
void faultline_channel_read_stats(const struct faultline_channel *ch,
				  struct faultline_queue_stats *stats);
int faultline_net_moderate(struct faultline_net *net,
			   const struct faultline_moderation *rx,
			   const struct faultline_moderation *tx);

/* faultline_net_rss.c */
void faultline_net_rss_reset(struct faultline_net *net);
int faultline_net_rss_create(struct faultline_net *net,
			     struct faultline_net_rss *rss);
void faultline_net_rss_destroy(struct faultline_net *net,
			       const struct faultline_net_rss *rss);
int faultline_net_rss_replace(struct faultline_net *net);
void faultline_net_set_xps(struct faultline_net *net);

/* faultline_txrx.c */
void faultline_channel_arm(struct faultline_channel *ch);
void faultline_tx_free(struct faultline_channel *ch,
		       struct faultline_tx_slot *slot, int budget);
bool faultline_rx_refill(struct faultline_channel *ch, gfp_t gfp);
struct sk_buff *faultline_rx_take(struct faultline_channel *ch,
				  struct faultline_rx_slot *slot);
int faultline_napi_poll(struct napi_struct *napi, int budget);
void faultline_refill_expired(struct timer_list *timer);
netdev_tx_t faultline_start_xmit(struct sk_buff *skb,
				 struct net_device *netdev);

/* faultline_ethtool.c */
extern const struct ethtool_ops faultline_ethtool_ops;
u32 faultline_get_rx_ring_count(struct net_device *netdev);
int faultline_get_rxfh_fields(struct net_device *netdev,
			      struct ethtool_rxfh_fields *fields);

#endif /* FAULTLINE_NET_H */
