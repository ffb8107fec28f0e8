// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Network interface
 *
 * The netdev uses raw Ethernet QPs of the kernel. It receives all frames that
 * are not for RoCE.
 *
 * Locking, outermost first:
 *
 * - faultline_dev.state_lock is held by the callers of faultline_net_create(),
 *   faultline_net_start() and faultline_net_stop().
 * - The RTNL lock serializes everything that creates, replaces or destroys the
 *   queues: ndo_open and ndo_stop, changes of size and number, reset_work,
 *   and recovery.
 * - faultline_net.config_lock (a mutex) serializes SET_NETDEV and
 *   SET_MAC_FILTER, and protects their parameters. mode_work takes it without
 *   the RTNL lock.
 * - mode_work and reset_work use objects of the device and memory that it
 *   reads. They are disabled while these do not exist: then an attempt to queue
 *   them has no effect.
 * - The netdev's address lock protects the lists of addresses. ndo_set_rx_mode
 *   is called under it and must not sleep: it queues mode_work.
 *
 * faultline_net_link() also runs in interrupt context, under faultline_eq.lock,
 * and takes none of these: faultline_net_unpublish() waits for it.
 */
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/ipv6.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <linux/tcp.h>

#include <net/gso.h>

#include "faultline_net.h"

struct net_device *faultline_netdev(struct faultline_dev *dev)
{
	return dev->net->netdev;
}

/* Configures reception in the device. Under config_lock. */
static int faultline_net_config(struct faultline_net *net)
{
	struct net_device *netdev = net->netdev;
	struct faultline_set_netdev params = {};
	u32 flags = net->rx_flags;

	ether_addr_copy(params.mac, netdev->dev_addr);
	params.mtu = cpu_to_le16(netdev->mtu);
	if (net->up) {
		flags |= FAULTLINE_NETDEV_UP;
		params.qpn = cpu_to_le32(net->qpn);
	}
	params.flags = cpu_to_le32(flags);
	return faultline_cmd_set_netdev(net->dev, &params);
}

static int faultline_net_set_up(struct faultline_net *net, bool up)
{
	int err;

	mutex_lock(&net->config_lock);
	net->up = up;
	net->qpn = net->rss.qpn;
	err = faultline_net_config(net);
	mutex_unlock(&net->config_lock);
	return err;
}

/* Makes another queue pair receive the frames of the netdev. */
int faultline_net_receive_on(struct faultline_net *net, u32 qpn)
{
	u32 old;
	int err;

	mutex_lock(&net->config_lock);
	old = net->qpn;
	net->qpn = qpn;
	err = faultline_net_config(net);
	if (err)
		net->qpn = old;
	mutex_unlock(&net->config_lock);
	return err;
}

static u32 faultline_max_filter(const struct faultline_net *net)
{
	return min_t(u32, le32_to_cpu(net->dev->caps.max_mac_filter),
		     PAGE_SIZE / sizeof(*net->filter));
}

/*
 * Lists the addresses to receive besides the netdev's own. Returns flags that
 * replace addresses for which the list has no room. Under config_lock and the
 * netdev's address lock.
 */
static u32 faultline_net_list_addresses(struct faultline_net *net, u32 *count)
{
	struct net_device *netdev = net->netdev;
	u32 max = faultline_max_filter(net);
	struct netdev_hw_addr *ha;
	u32 flags = 0;
	u32 n = 0;

	memset(net->filter, 0, PAGE_SIZE);
	if (netdev_uc_count(netdev) <= max) {
		netdev_for_each_uc_addr(ha, netdev)
			ether_addr_copy(net->filter[n++].mac, ha->addr);
	} else {
		flags |= FAULTLINE_NETDEV_PROMISC;
	}
	if (netdev_mc_count(netdev) <= max - n) {
		netdev_for_each_mc_addr(ha, netdev)
			ether_addr_copy(net->filter[n++].mac, ha->addr);
	} else {
		flags |= FAULTLINE_NETDEV_ALLMULTI;
	}
	if (netdev->flags & IFF_PROMISC)
		flags |= FAULTLINE_NETDEV_PROMISC;
	if (netdev->flags & IFF_ALLMULTI)
		flags |= FAULTLINE_NETDEV_ALLMULTI;
	*count = n;
	return flags;
}

static void faultline_net_mode_work(struct work_struct *work)
{
	struct faultline_net *net =
		container_of(work, struct faultline_net, mode_work);
	u32 flags, old, count;

	mutex_lock(&net->config_lock);
	netif_addr_lock_bh(net->netdev);
	flags = faultline_net_list_addresses(net, &count);
	netif_addr_unlock_bh(net->netdev);
	/* Add filters before removing others, so that no frame is missed. */
	old = net->rx_flags;
	net->rx_flags |= flags;
	if (net->rx_flags != old)
		faultline_net_config(net);
	if (faultline_max_filter(net))
		faultline_cmd_set_mac_filter(net->dev, net->filter_dma, count);
	if (net->rx_flags != flags) {
		net->rx_flags = flags;
		faultline_net_config(net);
	}
	mutex_unlock(&net->config_lock);
}

/* Must not sleep. */
static void faultline_set_rx_mode(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);

	queue_work(net->dev->wq, &net->mode_work);
}

static void faultline_destroy_channels(struct faultline_net *net,
				       unsigned int count)
{
	while (count--)
		faultline_channel_destroy(&net->channels[count]);
}

static int faultline_create_channels(struct faultline_net *net)
{
	unsigned int i;
	int err;

	net->frame_size = net->netdev->mtu + ETH_HLEN + 2 * VLAN_HLEN;
	for (i = 0; i < net->num_channels; i++) {
		err = faultline_channel_create(&net->channels[i]);
		if (err)
			goto destroy;
	}
	err = faultline_net_rss_create(net, &net->rss);
	if (err)
		goto destroy;
	return 0;

destroy:
	faultline_destroy_channels(net, i);
	return err;
}

/* Reports to the network stack which NAPI serves a queue. */
static void faultline_net_set_queue_napi(struct faultline_net *net,
					 unsigned int i,
					 struct napi_struct *napi)
{
	netif_queue_set_napi(net->netdev, i, NETDEV_QUEUE_TYPE_RX, napi);
	netif_queue_set_napi(net->netdev, i, NETDEV_QUEUE_TYPE_TX, napi);
}

static void faultline_enable_napi(struct faultline_net *net)
{
	unsigned int i;

	for (i = 0; i < net->num_channels; i++) {
		napi_enable(&net->channels[i].napi);
		faultline_net_set_queue_napi(net, i, &net->channels[i].napi);
	}
}

static void faultline_disable_napi(struct faultline_net *net)
{
	unsigned int i;

	for (i = 0; i < net->num_channels; i++) {
		faultline_net_set_queue_napi(net, i, NULL);
		napi_disable(&net->channels[i].napi);
		/* Without NAPI, nothing starts the timer again. */
		timer_delete_sync(&net->channels[i].refill_timer);
	}
}

static int faultline_open(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);
	struct faultline_dev *dev = net->dev;
	unsigned int i;
	int err;

	if (faultline_is_dead(dev))
		return -EIO;
	err = faultline_create_channels(net);
	if (err)
		return err;
	faultline_enable_napi(net);
	err = faultline_net_set_up(net, true);
	if (err)
		goto disable_napi;
	for (i = 0; i < net->num_channels; i++)
		faultline_channel_arm(&net->channels[i]);
	/*
	 * Frames may have been queued while the queues were stopped. Waking
	 * schedules the qdiscs; starting would leave such frames there until
	 * another one follows, which TCP does not send before their ACK.
	 */
	netif_tx_wake_all_queues(netdev);
	faultline_net_link(dev, faultline_read(dev, FAULTLINE_REG_STATUS) &
				FAULTLINE_STATUS_LINK_UP);
	return 0;

disable_napi:
	faultline_disable_napi(net);
	faultline_net_rss_destroy(net, &net->rss);
	faultline_destroy_channels(net, net->num_channels);
	return err;
}

static int faultline_stop(struct net_device *netdev)
{
	struct faultline_net *net = netdev_priv(netdev);

	/* The core stops a detached netdev a second time. */
	if (!netif_device_present(netdev))
		return 0;
	/* Disable NAPI first, since it wakes the transmit queues. */
	faultline_disable_napi(net);
	netif_tx_disable(netdev);
	netif_carrier_off(netdev);
	faultline_ib_port_event(net->dev, false);
	faultline_net_set_up(net, false);
	faultline_net_rss_destroy(net, &net->rss);
	faultline_destroy_channels(net, net->num_channels);
	return 0;
}

/* Replaces all queues after an error of a queue pair. */
static void faultline_net_reset_work(struct work_struct *work)
{
	struct faultline_net *net =
		container_of(work, struct faultline_net, reset_work);
	struct net_device *netdev = net->netdev;

	rtnl_lock();
	if (faultline_net_running(net) && !faultline_is_dead(net->dev)) {
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
	const struct faultline_channel *ch = &net->channels[txqueue];

	netdev_warn(netdev, "transmit timeout of queue %u: %u of %u done\n",
		    txqueue, ch->sq.consumer, ch->sq.producer);
	schedule_work(&net->reset_work);
}

/*
 * Returns true if the device can segment the frame. It parses neither IPv6
 * extension headers nor tunnels. Lengths that a packet socket or a virtual
 * machine has set are checked here: a refused request would stop the queue.
 */
static bool faultline_can_segment(const struct sk_buff *skb,
				  const struct net_device *netdev)
{
	unsigned int ip_len = skb_network_header_len(skb);

	if (skb->encapsulation || skb_network_offset(skb) != ETH_HLEN)
		return false;
	if (skb_shinfo(skb)->gso_type & SKB_GSO_DODGY ||
	    !skb_gso_validate_mac_len(skb, netdev->mtu + ETH_HLEN))
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
	    (skb_checksum_start_offset(skb) < ETH_HLEN ||
	     skb_checksum_start_offset(skb) + skb->csum_offset +
			     sizeof(__sum16) > FAULTLINE_MAX_RAW_HEADERS))
		features &= ~(NETIF_F_CSUM_MASK | NETIF_F_GSO_MASK);
	if (skb_is_gso(skb) && !faultline_can_segment(skb, netdev))
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
	mutex_lock(&net->config_lock);
	err = faultline_net_config(net);
	mutex_unlock(&net->config_lock);
	if (err)
		eth_hw_addr_set(netdev, old);
	return err;
}

static int faultline_set_num_channels(struct faultline_net *net,
				      unsigned int count)
{
	int err;

	err = netif_set_real_num_queues(net->netdev, count, count);
	if (err)
		return err;
	net->num_channels = count;
	/* An indirection table that the user has set stays valid. */
	if (!netif_is_rxfh_configured(net->netdev))
		faultline_net_rss_reset(net);
	return 0;
}

static int faultline_net_apply(struct faultline_net *net,
			       const struct faultline_net_shape *shape)
{
	int err;

	if (shape->channels != net->num_channels) {
		err = faultline_set_num_channels(net, shape->channels);
		if (err)
			return err;
		faultline_net_set_xps(net);
	}
	WRITE_ONCE(net->netdev->mtu, shape->mtu);
	net->tx_depth = shape->tx_depth;
	net->rx_depth = shape->rx_depth;
	return 0;
}

/* Applies a shape while no queues exist, and creates the queues. */
static int faultline_net_remake(struct faultline_net *net,
				const struct faultline_net_shape *shape,
				bool running)
{
	int err;

	err = faultline_net_apply(net, shape);
	if (err)
		return err;
	return running ? faultline_open(net->netdev) :
			 faultline_net_set_up(net, false);
}

/* Replaces the queues by queues of another shape; restores them on error. */
int faultline_net_reshape(struct faultline_net *net,
			  const struct faultline_net_shape *shape)
{
	struct faultline_net_shape old = faultline_net_shape(net);
	bool running = faultline_net_running(net);
	int err;

	if (faultline_is_dead(net->dev))
		return -EIO;
	if (running)
		faultline_stop(net->netdev);
	err = faultline_net_remake(net, shape, running);
	if (!err)
		return 0;
	if (faultline_net_remake(net, &old, running) && running) {
		faultline_fail(net->dev, "netdev queues lost");
		netif_device_detach(net->netdev);
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

static void faultline_get_stats64(struct net_device *netdev,
				  struct rtnl_link_stats64 *stats)
{
	struct faultline_net *net = netdev_priv(netdev);
	unsigned int i;

	/* Include channels that are not in use any more. */
	for (i = 0; i < net->max_channels; i++) {
		struct faultline_queue_stats queue;

		faultline_channel_read_stats(&net->channels[i], &queue);
		stats->rx_packets += queue.rx_packets;
		stats->rx_bytes += queue.rx_bytes;
		stats->tx_packets += queue.tx_packets;
		stats->tx_bytes += queue.tx_bytes;
	}
}

static const struct net_device_ops faultline_netdev_ops = {
	.ndo_open = faultline_open,
	.ndo_stop = faultline_stop,
	.ndo_start_xmit = faultline_start_xmit,
	.ndo_features_check = faultline_features_check,
	.ndo_get_stats64 = faultline_get_stats64,
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

/* The link came up or went down. Also called in interrupt context. */
void faultline_net_link(struct faultline_dev *dev, bool up)
{
	struct faultline_net *net = READ_ONCE(dev->net);

	if (!net || !faultline_net_running(net) || faultline_is_dead(dev))
		return;
	if (up)
		netif_carrier_on(net->netdev);
	else
		netif_carrier_off(net->netdev);
	faultline_ib_port_event(dev, up);
}

/* Stops transmission and turns the carrier off, since the device is dead. */
void faultline_net_death(struct faultline_dev *dev)
{
	netif_carrier_off(dev->net->netdev);
}

/* Hides the netdev from event handlers, and waits for them. */
static void faultline_net_unpublish(struct faultline_dev *dev)
{
	WRITE_ONCE(dev->net, NULL);
	faultline_eqs_sync(dev);
}

/* Sets the features and limits of the netdev. */
static void faultline_net_features(struct faultline_net *net)
{
	const struct faultline_caps *caps = &net->dev->caps;
	struct net_device *netdev = net->netdev;
	u32 max_tso = le32_to_cpu(caps->max_tso);

	netdev->min_mtu = ETH_MIN_MTU;
	netdev->max_mtu = le32_to_cpu(caps->max_mtu);
	netdev->hw_features = NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_RXCSUM;
	netdev->vlan_features = netdev->hw_features | NETIF_F_HIGHDMA;
	if (max_tso) {
		netdev->hw_features |= NETIF_F_TSO | NETIF_F_TSO6;
		netif_set_tso_max_size(netdev, min(max_tso, GSO_LEGACY_MAX_SIZE));
	}
	/* Frames are hashed only to find a channel. */
	if (net->max_channels > 1)
		netdev->hw_features |= NETIF_F_RXHASH;
	netdev->features = netdev->hw_features | NETIF_F_HIGHDMA;
	/* Without address filter the core enables promiscuous mode. */
	if (faultline_max_filter(net))
		netdev->priv_flags |= IFF_UNICAST_FLT;
}

/* Several channels need a second RSS table while the first is replaced. */
static unsigned int faultline_max_channels(const struct faultline_dev *dev)
{
	if (!dev->caps.max_rwq_ind_table_log_size ||
	    le32_to_cpu(dev->caps.max_rwq_ind_table) < 2)
		return 1;
	return min_t(unsigned int, FAULTLINE_NET_MAX_CHANNELS,
		     faultline_num_comp_vectors(dev));
}

static void faultline_init_channels(struct faultline_net *net)
{
	unsigned int i;

	for (i = 0; i < net->max_channels; i++) {
		struct faultline_channel *ch = &net->channels[i];

		ch->net = net;
		ch->index = i;
		u64_stats_init(&ch->stats.syncp);
		netif_napi_add(net->netdev, &ch->napi, faultline_napi_poll);
		timer_setup(&ch->refill_timer, faultline_refill_expired, 0);
	}
}

static struct faultline_net *faultline_net_alloc(struct faultline_dev *dev)
{
	unsigned int max = faultline_max_channels(dev);
	struct net_device *netdev;
	struct faultline_net *net;

	netdev = alloc_etherdev_mqs(struct_size(net, channels, max), max, max);
	if (!netdev)
		return NULL;
	SET_NETDEV_DEV(netdev, &dev->pdev->dev);
	net = netdev_priv(netdev);
	net->dev = dev;
	net->netdev = netdev;
	net->max_channels = max;
	net->tx_depth = FAULTLINE_NET_DEPTH;
	net->rx_depth = FAULTLINE_NET_DEPTH;
	net->rss_indir_log_size =
		min_t(u32, FAULTLINE_RSS_INDIR_LOG_SIZE,
		      le32_to_cpu(dev->caps.max_rwq_ind_table_log_size));
	netdev_rss_key_fill(net->rss_key, sizeof(net->rss_key));
	mutex_init(&net->config_lock);
	INIT_WORK(&net->mode_work, faultline_net_mode_work);
	INIT_WORK(&net->reset_work, faultline_net_reset_work);
	disable_work(&net->mode_work);
	disable_work(&net->reset_work);
	netdev->netdev_ops = &faultline_netdev_ops;
	netdev->ethtool_ops = &faultline_ethtool_ops;
	faultline_init_channels(net);
	faultline_net_features(net);
	faultline_net_read_mac(dev, netdev);
	return net;
}

/* Creates the device objects that exist as long as the netdev. */
static int faultline_net_init_hw(struct faultline_net *net)
{
	struct faultline_dev *dev = net->dev;
	int err;

	net->filter = dma_alloc_coherent(&dev->pdev->dev, PAGE_SIZE,
					 &net->filter_dma, GFP_KERNEL);
	if (!net->filter)
		return -ENOMEM;
	err = faultline_cmd_alloc_pd(dev, 0, &net->pdn);
	if (err)
		goto free_filter;
	err = faultline_create_dma_mkey(dev, net->pdn,
					FAULTLINE_ACCESS_LOCAL_WRITE,
					&net->lkey);
	if (err)
		goto dealloc_pd;
	err = faultline_net_set_up(net, false);
	if (err)
		goto destroy_mkey;
	enable_work(&net->mode_work);
	enable_work(&net->reset_work);
	return 0;

destroy_mkey:
	faultline_cmd_destroy_mkey(dev, net->lkey);
dealloc_pd:
	faultline_cmd_dealloc_pd(dev, net->pdn);
free_filter:
	dma_free_coherent(&dev->pdev->dev, PAGE_SIZE, net->filter,
			  net->filter_dma);
	return err;
}

/* Without the RTNL lock, which reset_work takes. */
static void faultline_net_cleanup_hw(struct faultline_net *net)
{
	struct faultline_dev *dev = net->dev;

	/* They may be queued at any time, and use memory that is freed here. */
	disable_work_sync(&net->reset_work);
	disable_work_sync(&net->mode_work);
	faultline_cmd_destroy_mkey(dev, net->lkey);
	faultline_cmd_dealloc_pd(dev, net->pdn);
	dma_free_coherent(&dev->pdev->dev, PAGE_SIZE, net->filter,
			  net->filter_dma);
}

int faultline_net_create(struct faultline_dev *dev)
{
	struct faultline_net *net;
	unsigned int count;
	int err;

	net = faultline_net_alloc(dev);
	if (!net)
		return -ENOMEM;
	count = min_t(unsigned int, net->max_channels,
		      netif_get_num_default_rss_queues());
	err = faultline_set_num_channels(net, count);
	if (err)
		goto free_netdev;
	err = faultline_net_init_hw(net);
	if (err)
		goto free_netdev;
	netif_carrier_off(net->netdev);
	WRITE_ONCE(dev->net, net);
	err = register_netdev(net->netdev);
	if (err)
		goto forget;
	rtnl_lock();
	faultline_net_set_xps(net);
	rtnl_unlock();
	return 0;

forget:
	faultline_net_unpublish(dev);
	faultline_net_cleanup_hw(net);
free_netdev:
	free_netdev(net->netdev);
	return err;
}

/*
 * Stops the netdev and destroys its objects in the device. It stays registered
 * with its addresses and routes. As long as it is detached, the core refuses
 * all operations but the one that takes it down.
 */
void faultline_net_stop(struct faultline_dev *dev)
{
	struct faultline_net *net = dev->net;

	rtnl_lock();
	if (faultline_net_running(net))
		faultline_stop(net->netdev);
	netif_device_detach(net->netdev);
	rtnl_unlock();
	faultline_net_cleanup_hw(net);
}

/* The opposite of faultline_net_stop(). */
int faultline_net_start(struct faultline_dev *dev)
{
	struct faultline_net *net = dev->net;
	struct net_device *netdev = net->netdev;
	int err = 0;

	net->rx_flags = 0;
	err = faultline_net_init_hw(net);
	if (err)
		return err;
	rtnl_lock();
	if (netif_running(netdev))
		err = faultline_open(netdev);
	if (!err) {
		netif_device_attach(netdev);
		faultline_net_link(dev, faultline_read(dev, FAULTLINE_REG_STATUS) &
					FAULTLINE_STATUS_LINK_UP);
		/* Enters the addresses. */
		faultline_set_rx_mode(netdev);
	}
	rtnl_unlock();
	if (err)
		faultline_net_cleanup_hw(net);
	return err;
}

/* After faultline_net_stop(). */
void faultline_net_destroy(struct faultline_dev *dev)
{
	struct faultline_net *net = dev->net;

	unregister_netdev(net->netdev);
	dev->net = NULL;
	free_netdev(net->netdev);
}
