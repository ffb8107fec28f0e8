// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Performance management
 *
 * Answers the packets of the performance management class (IBTA volume 1, 16.1)
 * by which the core reads the counters of a port for sysfs (ports/1/counters).
 * They count RoCE packets, as those of other RoCE adapters; the netdev has its
 * own counters for the rest.
 *
 * Packets that arrive from the network are not answered: a peer has no business
 * with the counters of this guest, and can cause no command of the device.
 *
 * Locking: see faultline_stats.c. The functions sleep.
 */
#include <linux/netdevice.h>
#include <linux/slab.h>

#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>

#include "faultline_ib.h"

/* Version of the class (16.1). */
#define FAULTLINE_PMA_VERSION	1
/* Response time 4.096 us * 2^18, about a second: a command of the device. */
#define FAULTLINE_PMA_RESP_TIME	18
/* All ports, in port_select. */
#define FAULTLINE_PMA_ALL_PORTS	0xff
/* A data counter counts units of four octets (16.1.3.5). */
#define FAULTLINE_PMA_UNIT	4

static __be32 faultline_pma_be32(u64 value)
{
	return cpu_to_be32(min_t(u64, value, U32_MAX));
}

static __be16 faultline_pma_be16(u64 value)
{
	return cpu_to_be16(min_t(u64, value, U16_MAX));
}

/*
 * What is left of all frames without the Ethernet frames. The values were read
 * at one time.
 */
static u64 faultline_pma_rest(const u64 *values, unsigned int all,
			      unsigned int part)
{
	return values[all] - min(values[part], values[all]);
}

static u64 faultline_pma_sent(const u64 *values)
{
	return faultline_pma_rest(values, FAULTLINE_CNT_tx_packets,
				  FAULTLINE_CNT_tx_ethernet_packets);
}

static u64 faultline_pma_received(const u64 *values)
{
	return faultline_pma_rest(values, FAULTLINE_CNT_rx_packets,
				  FAULTLINE_CNT_rx_ethernet_packets);
}

static u64 faultline_pma_sent_data(const u64 *values)
{
	return faultline_pma_rest(values, FAULTLINE_CNT_tx_bytes,
				  FAULTLINE_CNT_tx_ethernet_bytes) /
	       FAULTLINE_PMA_UNIT;
}

static u64 faultline_pma_received_data(const u64 *values)
{
	return faultline_pma_rest(values, FAULTLINE_CNT_rx_bytes,
				  FAULTLINE_CNT_rx_ethernet_bytes) /
	       FAULTLINE_PMA_UNIT;
}

/* PortCountersExtended: 64-bit counters. */
static void faultline_pma_extended(struct ib_pma_portcounters_ext *pma,
				   const u64 *values)
{
	u64 sent = faultline_pma_sent(values);
	u64 received = faultline_pma_received(values);
	u64 group_sent = min(values[FAULTLINE_CNT_tx_mcast_packets], sent);
	u64 group_received = min(values[FAULTLINE_CNT_rx_port_mcast_packets],
				 received);

	pma->port_xmit_data = cpu_to_be64(faultline_pma_sent_data(values));
	pma->port_rcv_data = cpu_to_be64(faultline_pma_received_data(values));
	pma->port_xmit_packets = cpu_to_be64(sent);
	pma->port_rcv_packets = cpu_to_be64(received);
	pma->port_unicast_xmit_packets = cpu_to_be64(sent - group_sent);
	pma->port_unicast_rcv_packets = cpu_to_be64(received - group_received);
	pma->port_multicast_xmit_packets = cpu_to_be64(group_sent);
	pma->port_multicast_rcv_packets = cpu_to_be64(group_received);
}

/*
 * PortCounters: errors, and counters of 32 bits that stay at their maximum.
 * Those that are zero describe links of InfiniBand.
 */
static void faultline_pma_counters(struct faultline_dev *dev,
				   struct ib_pma_portcounters *pma,
				   const u64 *values)
{
	const struct net_device *netdev = faultline_netdev(dev);
	int downed = atomic_read(&netdev->carrier_down_count);

	pma->link_downed_counter = min_t(unsigned int, downed, U8_MAX);
	pma->port_rcv_errors =
		faultline_pma_be16(values[FAULTLINE_CNT_rx_malformed] +
				   values[FAULTLINE_CNT_rx_icrc_errors]);
	pma->port_xmit_discards =
		faultline_pma_be16(values[FAULTLINE_CNT_tx_interface_down] +
				   values[FAULTLINE_CNT_tx_over_mtu] +
				   values[FAULTLINE_CNT_tx_bad_gid]);
	pma->port_xmit_data =
		faultline_pma_be32(faultline_pma_sent_data(values));
	pma->port_rcv_data =
		faultline_pma_be32(faultline_pma_received_data(values));
	pma->port_xmit_packets = faultline_pma_be32(faultline_pma_sent(values));
	pma->port_rcv_packets =
		faultline_pma_be32(faultline_pma_received(values));
}

static void faultline_pma_class_info(struct ib_class_port_info *info)
{
	info->base_version = IB_MGMT_BASE_VERSION;
	info->class_version = FAULTLINE_PMA_VERSION;
	info->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH;
	ib_set_cpi_resp_time(info, FAULTLINE_PMA_RESP_TIME);
}

static int faultline_pma_read(struct faultline_dev *dev,
			      struct ib_pma_mad *out)
{
	u64 *values = kcalloc(faultline_num_counters, sizeof(*values),
			      GFP_KERNEL);
	int err;

	if (!values)
		return -ENOMEM;
	err = faultline_read_counters(dev, 0, values);
	if (err)
		goto free;
	if (out->mad_hdr.attr_id == IB_PMA_PORT_COUNTERS_EXT)
		faultline_pma_extended((void *)out->data, values);
	else
		faultline_pma_counters(dev, (void *)out->data, values);
free:
	kfree(values);
	return err;
}

/* Returns the status of the answer, or a negative error without an answer. */
static int faultline_pma_get(struct faultline_dev *dev, u32 port,
			     const struct ib_pma_mad *in,
			     struct ib_pma_mad *out)
{
	/* In both attributes: the second octet. */
	u8 port_select = in->data[1];
	int err;

	switch (in->mad_hdr.attr_id) {
	case IB_PMA_CLASS_PORT_INFO:
		if (in->mad_hdr.attr_mod)
			return IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE;
		faultline_pma_class_info((void *)out->data);
		return IB_MGMT_MAD_STATUS_SUCCESS;
	case IB_PMA_PORT_COUNTERS:
	case IB_PMA_PORT_COUNTERS_EXT:
		if (port_select != port &&
		    port_select != FAULTLINE_PMA_ALL_PORTS)
			return IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE;
		out->data[1] = port_select;
		err = faultline_pma_read(dev, out);
		return err ?: IB_MGMT_MAD_STATUS_SUCCESS;
	default:
		return IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB;
	}
}

/* Counters cannot be reset, so there is no method but GET. */
int faultline_process_mad(struct ib_device *ibdev, int flags, u32 port,
			  const struct ib_wc *wc, const struct ib_grh *grh,
			  const struct ib_mad *in, struct ib_mad *out,
			  size_t *out_size, u16 *out_pkey_index)
{
	const struct ib_mad_hdr *hdr = &in->mad_hdr;
	int status;

	BUILD_BUG_ON(sizeof(struct ib_pma_mad) != sizeof(struct ib_mad));
	/* Only the core asks without a packet. */
	if (wc || hdr->mgmt_class != IB_MGMT_CLASS_PERF_MGMT)
		return IB_MAD_RESULT_SUCCESS;
	if (*out_size < sizeof(*out))
		return IB_MAD_RESULT_FAILURE;
	memset(out, 0, sizeof(*out));
	out->mad_hdr = *hdr;
	if (hdr->base_version != IB_MGMT_BASE_VERSION ||
	    hdr->class_version != FAULTLINE_PMA_VERSION)
		status = IB_MGMT_MAD_STATUS_BAD_VERSION;
	else if (hdr->method != IB_MGMT_METHOD_GET)
		status = IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD;
	else
		status = faultline_pma_get(to_fdev(ibdev), port, (void *)in,
					   (void *)out);
	if (status < 0)
		return IB_MAD_RESULT_FAILURE;
	out->mad_hdr.method = IB_MGMT_METHOD_GET_RESP;
	out->mad_hdr.status = cpu_to_be16(status);
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}
