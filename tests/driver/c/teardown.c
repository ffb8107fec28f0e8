/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Work of the netdev that is queued while its objects go. In each command and
 * between any two steps, the core changes how the netdev receives, a queue has
 * an error, and all work that can run runs.
 */
#include "device.h"

static struct faultline_dev *dev;
static struct faultline_net *net;
static unsigned int num_ran;

/* An interface in promiscuous mode gets a group and leaves it, as `ip maddress` and tcpdump ask for. */
static void change_reception(void)
{
	struct net_device *netdev = net->netdev;

	netif_addr_lock_bh(netdev);
	netdev->flags ^= IFF_PROMISC;
	netdev->num_mc = (netdev->num_mc + 1) % SHIM_ADDRESSES;
	memset(netdev->mc, netdev->num_mc, sizeof(netdev->mc));
	netdev->netdev_ops->ndo_set_rx_mode(netdev);
	netif_addr_unlock_bh(netdev);
}

/* mode_work takes config_lock only, so it can run while another thread holds the RTNL lock. */
static void others(void)
{
	change_reception();
	schedule_work(&net->reset_work);
	if (!net->config_lock.held && net->mode_work.queued) {
		cancel_work_sync(&net->mode_work);
		meanwhile = NULL;
		net->mode_work.func(&net->mode_work);
		meanwhile = others;
		num_ran++;
	}
}

static bool device_has_addresses(void)
{
	u32 promisc = net->netdev->flags & IFF_PROMISC ? FAULTLINE_NETDEV_PROMISC : 0;

	return netdev_config.count == net->netdev->num_mc && (netdev_config.flags & FAULTLINE_NETDEV_PROMISC) == promisc &&
	       !memcmp(netdev_config.filter[0].mac, net->netdev->mc[0].addr, netdev_config.count ? ETH_ALEN : 0);
}

/* While its objects exist, the device learns what the netdev receives. */
static void check_follows(void)
{
	int i;

	for (i = 0; i < 5; i++) {
		change_reception();
		CHECK(run_works() && device_has_addresses());
	}
}

static void one_life(unsigned int stops)
{
	CHECK(!faultline_eqs_create(dev));
	CHECK(!faultline_net_create(dev));
	net = dev->net;
	net->netdev->running = true;
	CHECK(!net->netdev->netdev_ops->ndo_open(net->netdev));
	check_follows();
	while (stops--) {
		meanwhile = others;
		faultline_net_stop(dev);
		others();
		meanwhile = NULL;
		/* Nothing is left that would use what is gone. */
		CHECK(!run_works());
		CHECK(!faultline_net_start(dev));
		/* The list of a new life has all addresses. */
		CHECK(run_works() && device_has_addresses());
		check_follows();
	}
	meanwhile = others;
	faultline_net_stop(dev);
	others();
	meanwhile = NULL;
	faultline_net_destroy(dev);
	CHECK(!run_works());
	faultline_eqs_destroy(dev);
}

void test_teardown(void)
{
	unsigned int stops;

	dev = malloc(sizeof(*dev));
	for (stops = 0; stops < 50; stops++) {
		begin(dev);
		one_life(stops % 4);
	}
	CHECK(num_ran);
	free(dev);
}
