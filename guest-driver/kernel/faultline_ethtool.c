// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* What ethtool asks the netdev. Queues can't be added, so that is not offered. */
#include <linux/ethtool.h>
#include <linux/log2.h>

#include "faultline_net.h"

static void faultline_get_drvinfo(struct net_device *netdev,
				  struct ethtool_drvinfo *info)
{
	struct faultline_net *net = netdev_priv(netdev);
	u64 version = le64_to_cpu(net->dev->caps.fw_version);

	strscpy(info->driver, FAULTLINE_DRV_NAME, sizeof(info->driver));
	strscpy(info->bus_info, pci_name(net->dev->pdev),
		sizeof(info->bus_info));
	snprintf(info->fw_version, sizeof(info->fw_version), "%u.%u.%u",
		 (u32)(version >> 32), (u32)(version >> 16) & 0xffff,
		 (u32)version & 0xffff);
}

static int faultline_get_link_ksettings(struct net_device *netdev,
					struct ethtool_link_ksettings *cmd)
{
	ethtool_link_ksettings_zero_link_mode(cmd, supported);
	ethtool_link_ksettings_zero_link_mode(cmd, advertising);
	/* The same as the RDMA port reports: 4 lanes of 25 Gbit/s. */
	cmd->base.speed = SPEED_100000;
	cmd->base.duplex = DUPLEX_FULL;
	cmd->base.autoneg = AUTONEG_DISABLE;
	cmd->base.port = PORT_OTHER;
	return 0;
}

static u32 faultline_max_depth(const struct faultline_net *net)
{
	const struct faultline_caps *caps = &net->dev->caps;
	/* A CQ has twice the entries. */
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

/* Rings have 2^n entries: the next larger one is taken. The core has checked the maximum. */
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

	coal->rx_max_coalesced_frames = net->rx_cq.count;
	coal->rx_coalesce_usecs = net->rx_cq.period;
	coal->tx_max_coalesced_frames = net->tx_cq.count;
	coal->tx_coalesce_usecs = net->tx_cq.period;
	return 0;
}

static bool faultline_can_moderate(const struct faultline_net *net, u32 count,
				   u32 period)
{
	/* A last frame must not wait for one that never comes. */
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
	int err;

	if (!faultline_can_moderate(net, coal->rx_max_coalesced_frames,
				    coal->rx_coalesce_usecs) ||
	    !faultline_can_moderate(net, coal->tx_max_coalesced_frames,
				    coal->tx_coalesce_usecs)) {
		NL_SET_ERR_MSG(extack, "too large, or frames without a time");
		return -EINVAL;
	}
	err = faultline_net_moderate(&net->rx_cq, coal->rx_max_coalesced_frames,
				     coal->rx_coalesce_usecs);
	if (err)
		return err;
	return faultline_net_moderate(&net->tx_cq,
				      coal->tx_max_coalesced_frames,
				      coal->tx_coalesce_usecs);
}

static int faultline_get_sset_count(struct net_device *netdev, int set)
{
	return set == ETH_SS_STATS ? faultline_num_counters : -EOPNOTSUPP;
}

static void faultline_get_strings(struct net_device *netdev, u32 set, u8 *data)
{
	unsigned int i;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < faultline_num_counters; i++)
		ethtool_puts(&data, faultline_stat_descs[i].name);
}

/* The device's counters: of RoCE and of the netdev together. */
static void faultline_get_ethtool_stats(struct net_device *netdev,
					struct ethtool_stats *stats, u64 *data)
{
	struct faultline_net *net = netdev_priv(netdev);

	if (faultline_read_counters(net->dev, 0, data))
		memset(data, 0, faultline_num_counters * sizeof(*data));
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
	.get_sset_count = faultline_get_sset_count,
	.get_strings = faultline_get_strings,
	.get_ethtool_stats = faultline_get_ethtool_stats,
};
