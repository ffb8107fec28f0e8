// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Own addresses of an iWARP adapter
 *
 * The device takes segments for the addresses that it knows. The core enters
 * addresses for RoCE only, so the driver does it here: those of the netdev and
 * of its VLANs. Notifiers, some of which must not sleep, queue a work item,
 * which collects the addresses that exist and changes the entries that differ.
 * A command that names an address first waits for it.
 *
 * Locking: only the work item uses the entries. Addresses are collected under
 * RCU, those of IPv6 also under the lock of their interface.
 *
 * Everything exists for one life of the device.
 */
#include <linux/inetdevice.h>
#include <linux/netdevice.h>
#include <linux/slab.h>

#include <net/addrconf.h>
#include <net/if_inet6.h>
#include <net/ipv6.h>

#include "faultline_iwarp.h"

struct faultline_addrs {
	struct faultline_dev *dev;
	struct work_struct work;
	struct notifier_block netdev_nb;
	struct notifier_block inet_nb;
	struct notifier_block inet6_nb;
	u32 max;
	/* The device's entries, by index; `valid` tells which are in use. */
	struct faultline_set_gid *entries;
	/* What they are to be, in any order. */
	struct faultline_set_gid *wanted;
	u32 num_wanted;
};

static void faultline_addrs_want(struct faultline_addrs *addrs,
				 const struct net_device *netdev, u16 vlan,
				 const struct in6_addr *ip)
{
	struct faultline_set_gid *entry;

	if (addrs->num_wanted == addrs->max)
		return;
	entry = &addrs->wanted[addrs->num_wanted++];
	*entry = (struct faultline_set_gid) {
		.vlan = cpu_to_le16(vlan),
		.valid = 1,
	};
	memcpy(entry->gid, ip, sizeof(entry->gid));
	memcpy(entry->mac, netdev->dev_addr, sizeof(entry->mac));
}

static void faultline_addrs_want_v4(struct faultline_addrs *addrs,
				    struct net_device *netdev, u16 vlan)
{
	struct in_device *in_dev = __in_dev_get_rcu(netdev);
	const struct in_ifaddr *ifa;
	struct in6_addr ip;

	if (!in_dev)
		return;
	in_dev_for_each_ifa_rcu(ifa, in_dev) {
		ipv6_addr_set_v4mapped(ifa->ifa_local, &ip);
		faultline_addrs_want(addrs, netdev, vlan, &ip);
	}
}

static void faultline_addrs_want_v6(struct faultline_addrs *addrs,
				    struct net_device *netdev, u16 vlan)
{
#if IS_ENABLED(CONFIG_IPV6)
	struct inet6_dev *in6_dev = __in6_dev_get(netdev);
	const struct inet6_ifaddr *ifp;

	if (!in6_dev)
		return;
	read_lock_bh(&in6_dev->lock);
	list_for_each_entry(ifp, &in6_dev->addr_list, if_list)
		faultline_addrs_want(addrs, netdev, vlan, &ifp->addr);
	read_unlock_bh(&in6_dev->lock);
#endif
}

static void faultline_addrs_collect(struct faultline_addrs *addrs,
				    struct net *net)
{
	struct net_device *netdev;
	u16 vlan;

	addrs->num_wanted = 0;
	rcu_read_lock();
	for_each_netdev_rcu(net, netdev) {
		if (!(READ_ONCE(netdev->flags) & IFF_UP) ||
		    !faultline_cm_interface(addrs->dev, netdev, &vlan))
			continue;
		faultline_addrs_want_v4(addrs, netdev, vlan);
		faultline_addrs_want_v6(addrs, netdev, vlan);
	}
	rcu_read_unlock();
}

static bool faultline_addrs_same(const struct faultline_set_gid *a,
				 const struct faultline_set_gid *b)
{
	return a->valid && b->valid && a->vlan == b->vlan &&
	       !memcmp(a->gid, b->gid, sizeof(a->gid));
}

static struct faultline_set_gid *
faultline_addrs_find(struct faultline_set_gid *entries, u32 num,
		     const struct faultline_set_gid *entry)
{
	u32 i;

	for (i = 0; i < num; i++)
		if (faultline_addrs_same(&entries[i], entry))
			return &entries[i];
	return NULL;
}

static void faultline_addrs_set(struct faultline_addrs *addrs, u32 index,
				const struct faultline_set_gid *entry)
{
	int err = faultline_cmd_set_gid(addrs->dev, index, entry);

	if (!err)
		addrs->entries[index] = *entry;
	else if (!faultline_is_dead(addrs->dev))
		dev_warn_ratelimited(&addrs->dev->pdev->dev,
				     "can't %s address %pI6c: %d\n",
				     entry->valid ? "set" : "remove",
				     entry->valid ? entry->gid :
						    addrs->entries[index].gid,
				     err);
}

/* Removes entries that have gone, and changes those with another MAC address. */
static void faultline_addrs_update(struct faultline_addrs *addrs)
{
	const struct faultline_set_gid none = {
		.vlan = cpu_to_le16(FAULTLINE_NO_VLAN),
	};
	const struct faultline_set_gid *wanted;
	u32 i;

	for (i = 0; i < addrs->max; i++) {
		if (!addrs->entries[i].valid)
			continue;
		wanted = faultline_addrs_find(addrs->wanted, addrs->num_wanted,
					      &addrs->entries[i]);
		if (!wanted)
			faultline_addrs_set(addrs, i, &none);
		else if (memcmp(wanted->mac, addrs->entries[i].mac, ETH_ALEN))
			faultline_addrs_set(addrs, i, wanted);
	}
}

static void faultline_addrs_add(struct faultline_addrs *addrs)
{
	u32 i, free = 0;

	for (i = 0; i < addrs->num_wanted; i++) {
		if (faultline_addrs_find(addrs->entries, addrs->max,
					 &addrs->wanted[i]))
			continue;
		while (free < addrs->max && addrs->entries[free].valid)
			free++;
		if (free == addrs->max)
			return;
		/* One that the device has refused leaves its place free. */
		faultline_addrs_set(addrs, free, &addrs->wanted[i]);
	}
}

static void faultline_addrs_work(struct work_struct *work)
{
	struct faultline_addrs *addrs =
		container_of(work, struct faultline_addrs, work);
	struct net *net;

	if (faultline_is_dead(addrs->dev))
		return;
	net = faultline_cm_net(addrs->dev);
	if (!net)
		return;
	faultline_addrs_collect(addrs, net);
	put_net(net);
	faultline_addrs_update(addrs);
	faultline_addrs_add(addrs);
}

/* Waits until the device knows the addresses that have been added so far. */
void faultline_addrs_flush(struct faultline_dev *dev)
{
	flush_work(&dev->addrs->work);
}

static void faultline_addrs_changed(struct faultline_addrs *addrs,
				    struct net_device *netdev)
{
	u16 vlan;

	if (faultline_cm_interface(addrs->dev, netdev, &vlan))
		queue_work(addrs->dev->wq, &addrs->work);
}

static int faultline_addrs_netdev_event(struct notifier_block *nb,
					unsigned long event, void *data)
{
	struct faultline_addrs *addrs =
		container_of(nb, struct faultline_addrs, netdev_nb);

	struct net_device *netdev = netdev_notifier_info_to_dev(data);

	faultline_addrs_changed(addrs, netdev);
	if (event == NETDEV_CHANGEADDR &&
	    netdev == faultline_netdev(addrs->dev))
		faultline_ib_gid_changed(addrs->dev);
	return NOTIFY_DONE;
}

static int faultline_addrs_inet_event(struct notifier_block *nb,
				      unsigned long event, void *data)
{
	struct faultline_addrs *addrs =
		container_of(nb, struct faultline_addrs, inet_nb);
	struct in_ifaddr *ifa = data;

	faultline_addrs_changed(addrs, ifa->ifa_dev->dev);
	return NOTIFY_DONE;
}

/* Must not sleep. */
static int faultline_addrs_inet6_event(struct notifier_block *nb,
				       unsigned long event, void *data)
{
	struct faultline_addrs *addrs =
		container_of(nb, struct faultline_addrs, inet6_nb);
	struct inet6_ifaddr *ifa = data;

	faultline_addrs_changed(addrs, ifa->idev->dev);
	return NOTIFY_DONE;
}

static void faultline_addrs_free(struct faultline_dev *dev)
{
	kvfree(dev->addrs->wanted);
	kvfree(dev->addrs->entries);
	kfree(dev->addrs);
	dev->addrs = NULL;
}

/* Called when the netdev exists, and before the RDMA device does. */
int faultline_addrs_create(struct faultline_dev *dev)
{
	struct faultline_addrs *addrs;
	int err;

	if (!faultline_is_iwarp(dev))
		return 0;
	addrs = kzalloc(sizeof(*addrs), GFP_KERNEL);
	if (!addrs)
		return -ENOMEM;
	dev->addrs = addrs;
	addrs->dev = dev;
	addrs->max = le32_to_cpu(dev->caps.max_gid);
	addrs->entries = kvcalloc(addrs->max, sizeof(*addrs->entries),
				  GFP_KERNEL);
	addrs->wanted = kvcalloc(addrs->max, sizeof(*addrs->wanted),
				 GFP_KERNEL);
	INIT_WORK(&addrs->work, faultline_addrs_work);
	addrs->netdev_nb.notifier_call = faultline_addrs_netdev_event;
	addrs->inet_nb.notifier_call = faultline_addrs_inet_event;
	addrs->inet6_nb.notifier_call = faultline_addrs_inet6_event;
	err = addrs->entries && addrs->wanted ? 0 : -ENOMEM;
	if (err)
		goto free;
	err = register_netdevice_notifier(&addrs->netdev_nb);
	if (err)
		goto free;
	err = register_inetaddr_notifier(&addrs->inet_nb);
	if (err)
		goto unregister_netdev;
	err = register_inet6addr_notifier(&addrs->inet6_nb);
	if (err)
		goto unregister_inet;
	queue_work(dev->wq, &addrs->work);
	return 0;

unregister_inet:
	unregister_inetaddr_notifier(&addrs->inet_nb);
unregister_netdev:
	unregister_netdevice_notifier(&addrs->netdev_nb);
	cancel_work_sync(&addrs->work);
free:
	faultline_addrs_free(dev);
	return err;
}

/* No command uses an address any more. The entries go with the device's life. */
void faultline_addrs_destroy(struct faultline_dev *dev)
{
	struct faultline_addrs *addrs = dev->addrs;

	if (!addrs)
		return;
	unregister_inet6addr_notifier(&addrs->inet6_nb);
	unregister_inetaddr_notifier(&addrs->inet_nb);
	unregister_netdevice_notifier(&addrs->netdev_nb);
	cancel_work_sync(&addrs->work);
	faultline_addrs_free(dev);
}
