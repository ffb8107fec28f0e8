// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* The ethtool operations of the netdev. */
#include <linux/ethtool.h>
#include <linux/log2.h>

#include "faultline_net.h"

static void faultline_get_drvinfo(struct net_device *netdev,
				  struct ethtool_drvinfo *info)
{
	struct faultline_net *net = netdev_priv(netdev);

	strscpy(info->driver, FAULTLINE_DRV_NAME, sizeof(info->driver));
	strscpy(info->bus_info, pci_name(net->dev->pdev),
		sizeof(info->bus_info));
	faultline_fw_version(net->dev, info->fw_version,
			     sizeof(info->fw_version));
}

static int faultline_get_link_ksettings(struct net_device *netdev,
					struct ethtool_link_ksettings *cmd)
{
	struct faultline_net *net = netdev_priv(netdev);
	u32 speed = faultline_link_speed(net->dev);

	ethtool_link_ksettings_zero_link_mode(cmd, supported);
	ethtool_link_ksettings_zero_link_mode(cmd, advertising);
	cmd->base.speed = speed ? speed : (u32)SPEED_UNKNOWN;
	cmd->base.duplex = DUPLEX_FULL;
	cmd->base.autoneg = AUTONEG_DISABLE;
	cmd->base.port = PORT_OTHER;
	return 0;
}

static u32 faultline_max_depth(const struct faultline_net *net)
{
	const struct faultline_caps *caps = &net->dev->caps;
	/* A CQ has twice as many entries as the queue. */
	u32 most = min3((u32)FAULTLINE_NET_MAX_DEPTH,
			le32_to_cpu(caps->max_qp_wr),
			le32_to_cpu(caps->max_cqe) / 2);

	return most ? rounddown_pow_of_two(most) : 0;
}

static void faultline_get_ringparam(struct net_device *netdev,
				    struct ethtool_ringparam *ring,
				    struct kernel_ethtool_ringparam *more,
				    struct netlink_ext_ack *extack)
{
	struct faultline_net *net = netdev_priv(netdev);

	ring->tx_max_pending = faultline_max_depth(net);
	ring->rx_max_pending = faultline_max_depth(net);
	ring->tx_pending = net->tx_depth;
	ring->rx_pending = net->rx_depth;
}

/* Rounds up to a power of two. The core has checked the maximum. */
static int faultline_set_ringparam(struct net_device *netdev,
				   struct ethtool_ringparam *ring,
				   struct kernel_ethtool_ringparam *more,
				   struct netlink_ext_ack *extack)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_net_shape shape = faultline_net_shape(net);

	if (ring->rx_mini_pending || ring->rx_jumbo_pending)
		return -EINVAL;
	if (ring->tx_pending < FAULTLINE_NET_MIN_DEPTH ||
	    ring->rx_pending < FAULTLINE_NET_MIN_DEPTH) {
		NL_SET_ERR_MSG(extack, "a ring has at least 64 entries");
		return -EINVAL;
	}
	shape.tx_depth = roundup_pow_of_two(ring->tx_pending);
	shape.rx_depth = roundup_pow_of_two(ring->rx_pending);
	if (shape.tx_depth == net->tx_depth && shape.rx_depth == net->rx_depth)
		return 0;
	return faultline_net_reshape(net, &shape);
}

static int faultline_get_coalesce(struct net_device *netdev,
				  struct ethtool_coalesce *coal,
				  struct kernel_ethtool_coalesce *more,
				  struct netlink_ext_ack *extack)
{
	struct faultline_net *net = netdev_priv(netdev);

	coal->rx_max_coalesced_frames = net->rx_moderation.count;
	coal->rx_coalesce_usecs = net->rx_moderation.period;
	coal->tx_max_coalesced_frames = net->tx_moderation.count;
	coal->tx_coalesce_usecs = net->tx_moderation.period;
	return 0;
}

static bool faultline_can_moderate(const struct faultline_net *net, u32 count,
				   u32 period)
{
	/* Without a period, the last frame could wait forever. */
	return count <= le16_to_cpu(net->dev->caps.max_cq_count) &&
	       period <= le16_to_cpu(net->dev->caps.max_cq_period) &&
	       (count <= 1 || period);
}

static int faultline_set_coalesce(struct net_device *netdev,
				  struct ethtool_coalesce *coal,
				  struct kernel_ethtool_coalesce *more,
				  struct netlink_ext_ack *extack)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_moderation rx, tx;

	if (!faultline_can_moderate(net, coal->rx_max_coalesced_frames,
				    coal->rx_coalesce_usecs) ||
	    !faultline_can_moderate(net, coal->tx_max_coalesced_frames,
				    coal->tx_coalesce_usecs)) {
		NL_SET_ERR_MSG(extack, "too large, or frames without usecs");
		return -EINVAL;
	}
	rx.count = coal->rx_max_coalesced_frames;
	rx.period = coal->rx_coalesce_usecs;
	tx.count = coal->tx_max_coalesced_frames;
	tx.period = coal->tx_coalesce_usecs;
	return faultline_net_moderate(net, &rx, &tx);
}

/* Each channel has one queue per direction. */
static void faultline_get_channels(struct net_device *netdev,
				   struct ethtool_channels *ch)
{
	struct faultline_net *net = netdev_priv(netdev);

	ch->max_combined = net->max_channels;
	ch->combined_count = net->num_channels;
}

/* The core has checked the maximum. */
static int faultline_set_channels(struct net_device *netdev,
				  struct ethtool_channels *ch)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_net_shape shape = faultline_net_shape(net);

	if (ch->combined_count == net->num_channels)
		return 0;
	shape.channels = ch->combined_count;
	return faultline_net_reshape(net, &shape);
}

u32 faultline_get_rx_ring_count(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);

	return net->num_channels;
}

static u32 faultline_get_rxfh_indir_size(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);

	return BIT(net->rss_indir_log_size);
}

static u32 faultline_get_rxfh_key_size(struct net_device *netdev)
{
	return FAULTLINE_RSS_KEY_SIZE;
}

static int faultline_get_rxfh(struct net_device *netdev,
			      struct ethtool_rxfh_param *rxfh)
{
	struct faultline_net *net = netdev_priv(netdev);

	rxfh->hfunc = ETH_RSS_HASH_TOP;
	if (rxfh->indir)
		memcpy(rxfh->indir, net->rss_indir,
		       sizeof(*net->rss_indir) << net->rss_indir_log_size);
	if (rxfh->key)
		memcpy(rxfh->key, net->rss_key, sizeof(net->rss_key));
	return 0;
}

/* The core has checked that the channels exist. */
static void faultline_apply_rxfh(struct faultline_net *net, const u32 *table,
				 const u8 *key)
{
	if (table)
		memcpy(net->rss_indir, table,
		       sizeof(*net->rss_indir) << net->rss_indir_log_size);
	if (key)
		memcpy(net->rss_key, key, sizeof(net->rss_key));
}

static int faultline_set_rxfh(struct net_device *netdev,
			      struct ethtool_rxfh_param *rxfh,
			      struct netlink_ext_ack *extack)
{
	struct faultline_net *net = netdev_priv(netdev);
	u32 table[FAULTLINE_RSS_INDIR_SIZE];
	u8 key[FAULTLINE_RSS_KEY_SIZE];
	int err;

	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE &&
	    rxfh->hfunc != ETH_RSS_HASH_TOP)
		return -EOPNOTSUPP;
	static_assert(sizeof(table) == sizeof(net->rss_indir));
	static_assert(sizeof(key) == sizeof(net->rss_key));
	memcpy(table, net->rss_indir, sizeof(table));
	memcpy(key, net->rss_key, sizeof(key));
	faultline_apply_rxfh(net, rxfh->indir, rxfh->key);
	err = faultline_net_rss_replace(net);
	if (err)
		faultline_apply_rxfh(net, table, key);
	return err;
}

int faultline_get_rxfh_fields(struct net_device *netdev,
			      struct ethtool_rxfh_fields *fields)
{
	switch (fields->flow_type) {
	case TCP_V4_FLOW:
	case TCP_V6_FLOW:
		fields->data = RXH_IP_SRC | RXH_IP_DST | RXH_L4_B_0_1 |
			       RXH_L4_B_2_3;
		return 0;
	case UDP_V4_FLOW:
	case UDP_V6_FLOW:
	case IPV4_FLOW:
	case IPV6_FLOW:
		fields->data = RXH_IP_SRC | RXH_IP_DST;
		return 0;
	default:
		fields->data = 0;
		return 0;
	}
}

/* Statistics of a channel, in the order of struct faultline_queue_stats. */
static const char *const faultline_queue_stat_names[] = {
	"rx%u_packets",
	"rx%u_bytes",
	"tx%u_packets",
	"tx%u_bytes",
};

#define FAULTLINE_NUM_QUEUE_STATS	ARRAY_SIZE(faultline_queue_stat_names)

/* Includes unused channels, so that the number never changes. */
static int faultline_get_sset_count(struct net_device *netdev, int set)
{
	struct faultline_net *net = netdev_priv(netdev);

	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return faultline_num_counters +
	       net->max_channels * FAULTLINE_NUM_QUEUE_STATS;
}

static void faultline_get_strings(struct net_device *netdev, u32 set, u8 *data)
{
	struct faultline_net *net = netdev_priv(netdev);
	unsigned int i, k;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < faultline_num_counters; i++)
		ethtool_puts(&data, faultline_stat_descs[i].name);
	for (i = 0; i < net->max_channels; i++)
		for (k = 0; k < FAULTLINE_NUM_QUEUE_STATS; k++)
			ethtool_sprintf(&data, faultline_queue_stat_names[k],
					i);
}

/*
 * Reports the device's counters (RoCE and netdev together), then the statistics
 * of each channel.
 */
static void faultline_get_ethtool_stats(struct net_device *netdev,
					struct ethtool_stats *stats, u64 *data)
{
	struct faultline_net *net = netdev_priv(netdev);
	unsigned int i;

	if (faultline_read_counters(net->dev, 0, data))
		memset(data, 0, faultline_num_counters * sizeof(*data));
	data += faultline_num_counters;
	for (i = 0; i < net->max_channels; i++) {
		struct faultline_queue_stats queue;

		static_assert(sizeof(queue) ==
			      FAULTLINE_NUM_QUEUE_STATS * sizeof(*data));
		faultline_channel_read_stats(&net->channels[i], &queue);
		memcpy(data, &queue, sizeof(queue));
		data += FAULTLINE_NUM_QUEUE_STATS;
	}
}

const struct ethtool_ops faultline_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_USECS |
				     ETHTOOL_COALESCE_MAX_FRAMES,
	.get_drvinfo = faultline_get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = faultline_get_link_ksettings,
	.get_ts_info = ethtool_op_get_ts_info,
	.get_coalesce = faultline_get_coalesce,
	.set_coalesce = faultline_set_coalesce,
	.get_ringparam = faultline_get_ringparam,
	.set_ringparam = faultline_set_ringparam,
	.get_channels = faultline_get_channels,
	.set_channels = faultline_set_channels,
	FAULTLINE_COMPAT_ETHTOOL_OPS,
	.get_rxfh_indir_size = faultline_get_rxfh_indir_size,
	.get_rxfh_key_size = faultline_get_rxfh_key_size,
	.get_rxfh = faultline_get_rxfh,
	.set_rxfh = faultline_set_rxfh,
	.get_sset_count = faultline_get_sset_count,
	.get_strings = faultline_get_strings,
	.get_ethtool_stats = faultline_get_ethtool_stats,
};
