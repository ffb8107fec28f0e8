// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* How frames are shared among the netdev's channels, and the channels among CPUs. */
#include <linux/cpumask.h>
#include <linux/dma-mapping.h>
#include <linux/ethtool.h>
#include <linux/slab.h>

#include "faultline_net.h"

/*
 * Ports of TCP only: fragments have none, and are to go where the rest of
 * their flow goes.
 */
#define FAULTLINE_NET_HASH_FIELDS	(FAULTLINE_HASH_SRC_IPV4 |	\
					 FAULTLINE_HASH_DST_IPV4 |	\
					 FAULTLINE_HASH_SRC_IPV6 |	\
					 FAULTLINE_HASH_DST_IPV6 |	\
					 FAULTLINE_HASH_SRC_PORT_TCP |	\
					 FAULTLINE_HASH_DST_PORT_TCP)

/* All channels in turn. */
void faultline_spread_reset(struct faultline_net *net)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(net->table); i++)
		net->table[i] = ethtool_rxfh_indir_default(i,
							   net->num_channels);
}

static int faultline_spread_create_table(struct faultline_net *net, u32 *table)
{
	u32 i, count = BIT(net->table_log_size);
	__le32 *list;
	int err;

	list = kmalloc_array(count, sizeof(*list), GFP_KERNEL);
	if (!list)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		const struct faultline_channel *ch =
			&net->channels[net->table[i]];

		list[i] = cpu_to_le32(ch->qp_res.num);
	}
	err = faultline_make_rwq_table(net->dev, list, net->table_log_size,
				       table);
	kfree(list);
	return err;
}

static void faultline_spread_destroy_table(struct faultline_net *net, u32 table)
{
	faultline_net_must(net, faultline_cmd_destroy_rwq_table(net->dev,
								table));
}

/* Makes who receives for all channels; they exist. */
int faultline_spread_create(struct faultline_net *net,
			    struct faultline_spread *spread)
{
	struct faultline_create_rss_qp params = {};
	int err;

	if (net->num_channels == 1) {
		spread->qpn = net->channels[0].qp_res.num;
		spread->table = 0;
		return 0;
	}
	err = faultline_spread_create_table(net, &spread->table);
	if (err)
		return err;
	params.pd = cpu_to_le32(net->pdn);
	params.table = cpu_to_le32(spread->table);
	params.hash_fields = cpu_to_le32(FAULTLINE_NET_HASH_FIELDS);
	memcpy(params.key, net->rss_key, sizeof(params.key));
	err = faultline_cmd_create_rss_qp(net->dev, &params, &spread->qpn);
	if (err)
		faultline_spread_destroy_table(net, spread->table);
	return err;
}

/* The device does not receive on it any more. */
void faultline_spread_destroy(struct faultline_net *net,
			      const struct faultline_spread *spread)
{
	if (!spread->table)
		return;
	faultline_net_must(net, faultline_cmd_destroy_qp(net->dev,
							 spread->qpn));
	faultline_spread_destroy_table(net, spread->table);
}

/* The table or the key is another one: puts it in the old one's place. */
int faultline_spread_change(struct faultline_net *net)
{
	struct faultline_spread spread;
	int err;

	if (!faultline_net_running(net))
		return 0;
	err = faultline_spread_create(net, &spread);
	if (err)
		return err;
	err = faultline_net_receive_on(net, spread.qpn);
	if (err) {
		faultline_spread_destroy(net, &spread);
		return err;
	}
	faultline_spread_destroy(net, &net->spread);
	net->spread = spread;
	return 0;
}

/* Lets the CPUs send on the channels in turn. Under the RTNL lock. */
void faultline_share_cpus(struct faultline_net *net)
{
	int node = dev_to_node(&net->dev->pdev->dev);
	unsigned int i, k;
	cpumask_var_t mask;

	if (!zalloc_cpumask_var(&mask, GFP_KERNEL))
		return;
	for (i = 0; i < net->num_channels; i++) {
		cpumask_clear(mask);
		/* As vectors are: channel i gets the i-th CPU first. */
		for (k = i; k < num_online_cpus(); k += net->num_channels)
			cpumask_set_cpu(cpumask_local_spread(k, node), mask);
		/* Only a hint: without it any CPU sends anywhere. */
		netif_set_xps_queue(net->netdev, mask, i);
	}
	free_cpumask_var(mask);
}
