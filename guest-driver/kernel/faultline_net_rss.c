// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* RSS of the netdev: distribution of frames to channels; and XPS. */
#include <linux/cpumask.h>
#include <linux/dma-mapping.h>
#include <linux/ethtool.h>
#include <linux/slab.h>

#include "faultline_net.h"

/*
 * Ports are hashed for TCP only. Fragments of UDP datagrams have no ports, and
 * must reach the channel of the other datagrams of their flow.
 */
#define FAULTLINE_NET_HASH_FIELDS	(FAULTLINE_HASH_SRC_IPV4 |	\
					 FAULTLINE_HASH_DST_IPV4 |	\
					 FAULTLINE_HASH_SRC_IPV6 |	\
					 FAULTLINE_HASH_DST_IPV6 |	\
					 FAULTLINE_HASH_SRC_PORT_TCP |	\
					 FAULTLINE_HASH_DST_PORT_TCP)

/* Sets the default indirection table: all channels in turn. */
void faultline_net_rss_reset(struct faultline_net *net)
{
	u32 i;

	for (i = 0; i < ARRAY_SIZE(net->rss_indir); i++)
		net->rss_indir[i] =
			ethtool_rxfh_indir_default(i, net->num_channels);
}

static int faultline_net_rss_create_table(struct faultline_net *net, u32 *table)
{
	u32 i, count = BIT(net->rss_indir_log_size);
	__le32 *list;
	int err;

	list = kmalloc_array(count, sizeof(*list), GFP_KERNEL);
	if (!list)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		const struct faultline_channel *ch =
			&net->channels[net->rss_indir[i]];

		list[i] = cpu_to_le32(ch->qp_res.num);
	}
	err = faultline_rwq_ind_table_create_hw(net->dev, list,
						net->rss_indir_log_size, table);
	kfree(list);
	return err;
}

static void faultline_net_rss_destroy_table(struct faultline_net *net,
					    u32 table)
{
	faultline_net_reclaim(net, faultline_cmd_destroy_rwq_ind_table(net->dev,
								       table));
}

/* Creates the receive queue pair of the channels, which must exist. */
int faultline_net_rss_create(struct faultline_net *net,
			     struct faultline_net_rss *rss)
{
	struct faultline_create_rss_qp params = {};
	int err;

	if (net->num_channels == 1) {
		rss->qpn = net->channels[0].qp_res.num;
		rss->rwq_ind_table = 0;
		return 0;
	}
	err = faultline_net_rss_create_table(net, &rss->rwq_ind_table);
	if (err)
		return err;
	params.pd = cpu_to_le32(net->pdn);
	params.table = cpu_to_le32(rss->rwq_ind_table);
	params.hash_fields = cpu_to_le32(FAULTLINE_NET_HASH_FIELDS);
	memcpy(params.key, net->rss_key, sizeof(params.key));
	err = faultline_cmd_create_rss_qp(net->dev, &params, &rss->qpn);
	if (err)
		faultline_net_rss_destroy_table(net, rss->rwq_ind_table);
	return err;
}

/* Destroys a receive queue pair that the netdev does not use any more. */
void faultline_net_rss_destroy(struct faultline_net *net,
			       const struct faultline_net_rss *rss)
{
	if (!rss->rwq_ind_table)
		return;
	faultline_net_reclaim(net,
			      faultline_cmd_destroy_qp(net->dev, rss->qpn));
	faultline_net_rss_destroy_table(net, rss->rwq_ind_table);
}

/* Replaces the receive queue pair by one with the present table and key. */
int faultline_net_rss_replace(struct faultline_net *net)
{
	struct faultline_net_rss rss;
	int err;

	if (!faultline_net_running(net))
		return 0;
	err = faultline_net_rss_create(net, &rss);
	if (err)
		return err;
	err = faultline_net_receive_on(net, rss.qpn);
	if (err) {
		faultline_net_rss_destroy(net, &rss);
		return err;
	}
	faultline_net_rss_destroy(net, &net->rss);
	net->rss = rss;
	return 0;
}

/* Assigns the CPUs to transmit queues in turn. Under the RTNL lock. */
void faultline_net_set_xps(struct faultline_net *net)
{
	int node = dev_to_node(&net->dev->pdev->dev);
	unsigned int i, k;
	cpumask_var_t mask;

	if (!zalloc_cpumask_var(&mask, GFP_KERNEL))
		return;
	for (i = 0; i < net->num_channels; i++) {
		cpumask_clear(mask);
		/* Start at the i-th CPU, as the interrupt vectors do. */
		for (k = i; k < num_online_cpus(); k += net->num_channels)
			cpumask_set_cpu(cpumask_local_spread(k, node), mask);
		/* Only a hint, so errors are ignored. */
		netif_set_xps_queue(net->netdev, mask, i);
	}
	free_cpumask_var(mask);
}
