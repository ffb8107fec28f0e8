// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Steering of received frames: multicast groups and flows. */
#include <linux/dma-mapping.h>
#include <linux/slab.h>

#include "faultline_ib.h"

struct faultline_flow {
	struct ib_flow ibflow;
	u32 flown;
};

/* Values and masks of a flow, in the device's format. */
struct faultline_flow_match {
	struct faultline_flow_fields values;
	struct faultline_flow_fields mask;
};

/* The core has checked that the GID is a multicast GID and the QP is UD. */
int faultline_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct faultline_mcast params;

	memcpy(params.gid, gid->raw, sizeof(params.gid));
	return faultline_cmd_attach_mcast(to_fdev(ibqp->device),
					  to_fqp(ibqp)->res.num, &params);
}

int faultline_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_mcast params;

	memcpy(params.gid, gid->raw, sizeof(params.gid));
	return faultline_dead_ok(
		dev, faultline_cmd_detach_mcast(dev, to_fqp(ibqp)->res.num,
						&params));
}

/* Copies one field of a specification, its value and its mask. */
#define FAULTLINE_FIELD(match, field, spec, member)			\
	do {								\
		static_assert(sizeof((match)->values.field) ==		\
			      sizeof((spec)->val.member));		\
		memcpy(&(match)->values.field, &(spec)->val.member,	\
		       sizeof((spec)->val.member));			\
		memcpy(&(match)->mask.field, &(spec)->mask.member,	\
		       sizeof((spec)->mask.member));			\
	} while (0)

static void faultline_match_eth(struct faultline_flow_match *match,
				const struct ib_flow_spec_eth *eth)
{
	FAULTLINE_FIELD(match, dmac, eth, dst_mac);
	FAULTLINE_FIELD(match, smac, eth, src_mac);
	FAULTLINE_FIELD(match, ether_type, eth, ether_type);
	FAULTLINE_FIELD(match, vlan_tci, eth, vlan_tag);
}

/* Converts the flags to those of the IPv4 header. */
static u8 faultline_ipv4_flags(u8 flags)
{
	return (flags & IB_IPV4_DONT_FRAG ? 2 : 0) |
	       (flags & IB_IPV4_MORE_FRAG ? 1 : 0);
}

static void faultline_match_ipv4(struct faultline_flow_match *match,
				 const struct ib_flow_spec_ipv4 *ipv4)
{
	memcpy(match->values.src_ip + 12, &ipv4->val.src_ip, 4);
	memcpy(match->mask.src_ip + 12, &ipv4->mask.src_ip, 4);
	memcpy(match->values.dst_ip + 12, &ipv4->val.dst_ip, 4);
	memcpy(match->mask.dst_ip + 12, &ipv4->mask.dst_ip, 4);
	FAULTLINE_FIELD(match, protocol, ipv4, proto);
	FAULTLINE_FIELD(match, traffic_class, ipv4, tos);
	FAULTLINE_FIELD(match, hop_limit, ipv4, ttl);
	match->values.ip_flags = faultline_ipv4_flags(ipv4->val.flags);
	match->mask.ip_flags = faultline_ipv4_flags(ipv4->mask.flags);
}

static void faultline_match_ipv6(struct faultline_flow_match *match,
				 const struct ib_flow_spec_ipv6 *ipv6)
{
	FAULTLINE_FIELD(match, src_ip, ipv6, src_ip);
	FAULTLINE_FIELD(match, dst_ip, ipv6, dst_ip);
	FAULTLINE_FIELD(match, flow_label, ipv6, flow_label);
	FAULTLINE_FIELD(match, protocol, ipv6, next_hdr);
	FAULTLINE_FIELD(match, traffic_class, ipv6, traffic_class);
	FAULTLINE_FIELD(match, hop_limit, ipv6, hop_limit);
}

static void faultline_match_ports(struct faultline_flow_match *match,
				  const struct ib_flow_spec_tcp_udp *ports)
{
	FAULTLINE_FIELD(match, src_port, ports, src_port);
	FAULTLINE_FIELD(match, dst_port, ports, dst_port);
}

/* Adds one specification. The core has checked its size. */
static int faultline_add_spec(struct faultline_create_flow *params,
			      struct faultline_flow_match *match,
			      const union ib_flow_spec *spec)
{
	u32 header;

	switch (spec->type) {
	case IB_FLOW_SPEC_ETH:
		header = FAULTLINE_FLOW_HAS_ETH;
		faultline_match_eth(match, &spec->eth);
		break;
	case IB_FLOW_SPEC_IPV4:
		header = FAULTLINE_FLOW_HAS_IPV4;
		faultline_match_ipv4(match, &spec->ipv4);
		break;
	case IB_FLOW_SPEC_IPV6:
		header = FAULTLINE_FLOW_HAS_IPV6;
		faultline_match_ipv6(match, &spec->ipv6);
		break;
	case IB_FLOW_SPEC_TCP:
		header = FAULTLINE_FLOW_HAS_TCP;
		faultline_match_ports(match, &spec->tcp_udp);
		break;
	case IB_FLOW_SPEC_UDP:
		header = FAULTLINE_FLOW_HAS_UDP;
		faultline_match_ports(match, &spec->tcp_udp);
		break;
	case IB_FLOW_SPEC_ACTION_TAG:
		params->tag = cpu_to_le32(spec->flow_tag.tag_id);
		return 0;
	case IB_FLOW_SPEC_ACTION_DROP:
		params->flags |= FAULTLINE_FLOW_FLAG_DROP;
		return 0;
	default:
		return -EOPNOTSUPP;
	}
	if (le32_to_cpu(params->headers) & header)
		return -EINVAL;
	params->headers |= cpu_to_le32(header);
	return 0;
}

static int faultline_fill_flow(struct faultline_create_flow *params,
			       struct faultline_flow_match *match,
			       const struct ib_flow_attr *attr)
{
	const void *spec = attr->flows;
	int err;
	u8 i;

	BUILD_BUG_ON(IB_FLOW_ATTR_NORMAL != FAULTLINE_FLOW_KIND_NORMAL);
	BUILD_BUG_ON(IB_FLOW_ATTR_ALL_DEFAULT !=
		     FAULTLINE_FLOW_KIND_ALL_DEFAULT);
	BUILD_BUG_ON(IB_FLOW_ATTR_MC_DEFAULT != FAULTLINE_FLOW_KIND_MC_DEFAULT);
	BUILD_BUG_ON(IB_FLOW_ATTR_SNIFFER != FAULTLINE_FLOW_KIND_SNIFFER);

	if (attr->flags & IB_FLOW_ATTR_FLAGS_EGRESS)
		return -EOPNOTSUPP;
	params->kind = attr->type;
	params->priority = cpu_to_le16(attr->priority);
	if (attr->flags & IB_FLOW_ATTR_FLAGS_DONT_TRAP)
		params->flags |= FAULTLINE_FLOW_FLAG_DONT_TRAP;
	for (i = 0; i < attr->num_of_specs; i++) {
		err = faultline_add_spec(params, match, spec);
		if (err)
			return err;
		spec += ((const union ib_flow_spec *)spec)->size;
	}
	return 0;
}

/* The device reads the match fields while the command runs. */
static int faultline_create_flow_hw(struct faultline_dev *dev,
				    struct faultline_create_flow *params,
				    struct faultline_flow_match *match,
				    u32 *flown)
{
	struct device *dma_dev = &dev->pdev->dev;
	dma_addr_t addr;
	int err;

	if (params->kind != FAULTLINE_FLOW_KIND_NORMAL)
		return faultline_cmd_create_flow(dev, params, flown);
	addr = dma_map_single(dma_dev, match, sizeof(*match), DMA_TO_DEVICE);
	if (dma_mapping_error(dma_dev, addr))
		return -ENOMEM;
	params->fields_addr = cpu_to_le64(addr);
	err = faultline_cmd_create_flow(dev, params, flown);
	dma_unmap_single(dma_dev, addr, sizeof(*match), DMA_TO_DEVICE);
	return err;
}

/* The core has checked for CAP_NET_RAW. */
struct ib_flow *faultline_create_flow(struct ib_qp *ibqp,
				      struct ib_flow_attr *attr,
				      struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_create_flow params = {
		.qpn = cpu_to_le32(to_fqp(ibqp)->res.num),
	};
	struct faultline_flow_match *match;
	struct faultline_flow *flow;
	int err;

	err = ib_no_udata_io(udata);
	if (err)
		return ERR_PTR(err);
	flow = kzalloc(sizeof(*flow), GFP_KERNEL);
	match = kzalloc(sizeof(*match), GFP_KERNEL);
	err = flow && match ? 0 : -ENOMEM;
	if (!err)
		err = faultline_fill_flow(&params, match, attr);
	if (!err)
		err = faultline_create_flow_hw(dev, &params, match,
					       &flow->flown);
	kfree(match);
	if (err) {
		kfree(flow);
		return ERR_PTR(err);
	}
	return &flow->ibflow;
}

int faultline_destroy_flow(struct ib_flow *ibflow)
{
	struct faultline_flow *flow =
		container_of(ibflow, struct faultline_flow, ibflow);
	struct faultline_dev *dev = to_fdev(ibflow->device);
	int err;

	err = faultline_dead_ok(dev,
				faultline_cmd_destroy_flow(dev, flow->flown));
	if (!err)
		kfree(flow);
	return err;
}
