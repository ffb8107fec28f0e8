/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Own addresses of an iWARP adapter: what the device knows of interfaces and addresses that come, change and go. The kernel of this
 * test has no IPv6.
 */
#include "device.h"
#include "faultline_iwarp.h"

#define ENTRIES 4

void shim_flush_work(struct work_struct *work)
{
	bool queued = work->queued;

	cancel_work_sync(work);
	if (queued)
		work->func(work);
}

struct net_device *shim_netdevs;
struct notifier_block *shim_notifiers[3];

static struct faultline_set_gid table[ENTRIES];
/* The next command is refused. */
static bool refuse;
static unsigned int num_gid_changes;

int faultline_cmd_set_gid(struct faultline_dev *dev, u32 index, const struct faultline_set_gid *params)
{
	static const u8 zero[16];

	if (faultline_is_dead(dev))
		return -EIO;
	CHECK(index < le32_to_cpu(dev->caps.max_gid));
	if (refuse)
		return -EOPNOTSUPP;
	if (index < ENTRIES) {
		CHECK(params->valid == !!memcmp(params->gid, zero, sizeof(zero)));
		table[index] = *params;
	}
	return 0;
}

void faultline_ib_gid_changed(struct faultline_dev *dev)
{
	num_gid_changes++;
}

/* True if the device has exactly one entry of this address, with this VLAN and last byte of the MAC address. */
static bool has(const struct in6_addr *ip, u16 vlan, u8 mac)
{
	unsigned int found = 0;
	int i;

	for (i = 0; i < ENTRIES; i++)
		found += table[i].valid && !memcmp(table[i].gid, ip, sizeof(*ip)) && table[i].vlan == vlan &&
			 table[i].mac[5] == mac;
	return found == 1;
}

static unsigned int num_entries(void)
{
	unsigned int num = 0;
	int i;

	for (i = 0; i < ENTRIES; i++)
		num += table[i].valid;
	return num;
}

static void notify(int which, unsigned long event, void *data)
{
	shim_notifiers[which]->notifier_call(shim_notifiers[which], event, data);
	run_works();
}

static struct in6_addr v4(u32 ip)
{
	struct in6_addr mapped;

	ipv6_addr_set_v4mapped(htonl(ip), &mapped);
	return mapped;
}

void test_addresses(void)
{
	struct faultline_dev dev = { .caps = { .features = FAULTLINE_FEATURE_IWARP, .max_gid = ENTRIES } };
	struct net_device netdev = { .ifindex = 1, .flags = IFF_UP, .dev_addr = { 2, 0, 0, 0, 0, 1 } };
	struct net_device vlan = { .ifindex = 2, .flags = IFF_UP, .dev_addr = { 2, 0, 0, 0, 0, 2 }, .lower = &netdev,
				   .vlan = 7, .vlan_proto = htons(ETH_P_8021Q) };
	struct net_device inner = { .ifindex = 3, .flags = IFF_UP, .lower = &vlan, .vlan = 8,
				    .vlan_proto = htons(ETH_P_8021Q) };
	struct net_device other = { .ifindex = 4, .flags = IFF_UP };
	struct in_device in = { &netdev }, in_vlan = { &vlan }, in_inner = { &inner }, in_other = { &other };
	struct in_ifaddr first = { htonl(0x0a000001), &in }, second = { htonl(0x0a000002), &in };
	struct in_ifaddr tagged = { htonl(0x0a000001), &in_vlan }, foreign = { htonl(0x0a000009), &in_inner };
	struct in_ifaddr third = { htonl(0x0a000003), &in };
	struct in6_addr one = v4(0x0a000001), two = v4(0x0a000002), three = v4(0x0a000003);
	struct faultline_net net = { .netdev = &netdev };

	memset(table, 0, sizeof(table));
	dev.net = &net;
	netdev.ip_ptr = &in;
	vlan.ip_ptr = &in_vlan;
	inner.ip_ptr = &in_inner;
	other.ip_ptr = &in_other;
	in.first = &first;
	first.next = &third;
	in_inner.first = in_other.first = &foreign;
	shim_netdevs = &other;
	other.next = &netdev;
	netdev.next = &vlan;
	vlan.next = &inner;

	/* Those that exist. */
	CHECK(!faultline_addrs_create(&dev));
	run_works();
	CHECK(num_entries() == 2 && has(&one, 0xffff, 1) && has(&three, 0xffff, 1));
	/* The same address in a VLAN is another entry. */
	in_vlan.first = &tagged;
	notify(1, 0, &tagged);
	CHECK(num_entries() == 3 && has(&one, 7, 2) && has(&one, 0xffff, 1));
	/* Those of other interfaces, and of a VLAN in a VLAN, are not the adapter's. */
	foreign.ifa_dev = &in_other;
	shim_notifiers[1]->notifier_call(shim_notifiers[1], 0, &foreign);
	foreign.ifa_dev = &in_inner;
	shim_notifiers[1]->notifier_call(shim_notifiers[1], 0, &foreign);
	CHECK(!run_works());
	/* One that goes makes room for another. */
	first.next = NULL;
	notify(1, 0, &third);
	CHECK(num_entries() == 2);
	first.next = &second;
	notify(1, 0, &second);
	CHECK(num_entries() == 3 && has(&two, 0xffff, 1));
	/* Another MAC address, for both entries of the netdev. */
	netdev.dev_addr[5] = 9;
	notify(0, NETDEV_CHANGEADDR, &netdev);
	CHECK(num_gid_changes == 1 && num_entries() == 3);
	CHECK(has(&one, 0xffff, 9) && has(&two, 0xffff, 9) && has(&one, 7, 2));
	/* An interface that is down has no address. */
	vlan.flags = 0;
	notify(0, 0, &vlan);
	CHECK(num_entries() == 2 && !has(&one, 7, 2));
	/* What the device has refused is tried again with the next change. */
	vlan.flags = IFF_UP;
	refuse = true;
	notify(0, 0, &vlan);
	CHECK(num_entries() == 2);
	refuse = false;
	notify(0, 0, &vlan);
	CHECK(num_entries() == 3 && has(&one, 7, 2));
	faultline_addrs_destroy(&dev);
	CHECK(!shim_notifiers[0] && !shim_notifiers[1] && !shim_notifiers[2] && !shim_net.refs);
	shim_netdevs = NULL;
}
