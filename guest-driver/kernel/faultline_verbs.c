// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: RDMA device
 *
 * The ib_device: its attributes, user contexts, protection domains, address
 * handles, GIDs, and registration with the RDMA core.
 *
 * Locking: faultline_dev.state_lock is held while the RDMA device is registered
 * or unregistered, which sleeps and calls its consumers. It protects
 * faultline_dev.ib, which verbs read without: they run only while it is set.
 *
 * faultline_dev.ib_event_lock (taken in interrupts) protects ib_registered, and
 * is held while an event is dispatched: so no event is dispatched for a device
 * that is being unregistered. No lock of the driver is taken under it.
 *
 * The locks of the arrays faultline_dev.qps and cqs (taken with interrupts
 * disabled) keep the objects that faultline_ib_in_use() and
 * faultline_ib_death() visit.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_user_verbs.h>

#include "faultline_iwarp.h"
#include "faultline_odp.h"
#include "faultline_watch.h"

/* Local ACK delay: 4.096 us * 2^15, about 134 ms, generous for software. */
#define FAULTLINE_ACK_DELAY	15
/* Time for consumers in the kernel to release objects of a dead device. */
#define FAULTLINE_RELEASE_TIMEOUT	(2 * HZ)
/* Time for them to release the protection domains of their queue pairs. */
#define FAULTLINE_RELEASE_PD_TIMEOUT	(HZ / 2)

static struct faultline_mmap_entry *
to_fmmap(struct rdma_user_mmap_entry *rdma_entry)
{
	return container_of(rdma_entry, struct faultline_mmap_entry,
			    rdma_entry);
}

/* What an iWARP adapter does not have, or has in another form. */
static void faultline_iwarp_attrs(struct ib_device_attr *props)
{
	props->device_cap_flags &= ~(IB_DEVICE_RC_RNR_NAK_GEN | IB_DEVICE_XRC |
				     IB_DEVICE_FLUSH_GLOBAL |
				     IB_DEVICE_FLUSH_PERSISTENT |
				     IB_DEVICE_ATOMIC_WRITE);
	/* The Read Request names one sink (RFC 5040 section 4.4). */
	props->max_sge_rd = 1;
	props->max_ah = 0;
	props->max_mcast_grp = 0;
	props->max_mcast_qp_attach = 0;
	props->max_total_mcast_qp_attach = 0;
	props->max_pkeys = 0;
	props->local_ca_ack_delay = 0;
	memset(&props->tm_caps, 0, sizeof(props->tm_caps));
}

static int faultline_query_device(struct ib_device *ibdev,
				  struct ib_device_attr *props,
				  struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibdev);
	const struct faultline_caps *caps = &dev->caps;
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	memset(props, 0, sizeof(*props));
	props->fw_ver = le64_to_cpu(caps->fw_version);
	props->sys_image_guid = ibdev->node_guid;
	props->max_mr_size = le64_to_cpu(caps->max_mr_size);
	props->page_size_cap = le64_to_cpu(caps->page_sizes);
	props->vendor_id = dev->pdev->vendor;
	props->vendor_part_id = dev->pdev->device;
	props->hw_ver = dev->pdev->revision;
	props->max_qp = le32_to_cpu(caps->max_qp);
	props->max_qp_wr = le32_to_cpu(caps->max_qp_wr);
	props->device_cap_flags = IB_DEVICE_RC_RNR_NAK_GEN |
				  IB_DEVICE_PORT_ACTIVE_EVENT |
				  IB_DEVICE_SYS_IMAGE_GUID |
				  IB_DEVICE_CURR_QP_STATE_MOD |
				  IB_DEVICE_MANAGED_FLOW_STEERING |
				  IB_DEVICE_SRQ_RESIZE |
				  IB_DEVICE_XRC |
				  IB_DEVICE_MEM_WINDOW |
				  IB_DEVICE_MEM_WINDOW_TYPE_2B |
				  IB_DEVICE_MEM_MGT_EXTENSIONS |
				  IB_DEVICE_FLUSH_GLOBAL |
				  IB_DEVICE_FLUSH_PERSISTENT |
				  IB_DEVICE_ATOMIC_WRITE;
	props->max_send_sge = le32_to_cpu(caps->max_sge);
	props->max_recv_sge = le32_to_cpu(caps->max_sge);
	props->max_sge_rd = le32_to_cpu(caps->max_sge);
	props->max_cq = le32_to_cpu(caps->max_cq);
	props->max_cqe = le32_to_cpu(caps->max_cqe);
	props->max_mr = le32_to_cpu(caps->max_mkey);
	props->max_mw = props->max_mr;
	props->max_fast_reg_page_list_len =
		le32_to_cpu(caps->max_fast_reg_pages);
	props->max_pd = le32_to_cpu(caps->max_pd);
	props->max_qp_rd_atom = le32_to_cpu(caps->max_rd_atomic);
	props->max_qp_init_rd_atom = le32_to_cpu(caps->max_init_rd_atomic);
	props->max_res_rd_atom = min_t(u64, INT_MAX,
				       (u64)props->max_qp_rd_atom *
				       props->max_qp);
	props->atomic_cap = IB_ATOMIC_HCA;
	props->max_ah = le32_to_cpu(caps->max_ah);
	props->max_srq = le32_to_cpu(caps->max_srq);
	props->max_srq_wr = le32_to_cpu(caps->max_srq_wr);
	props->max_srq_sge = le32_to_cpu(caps->max_sge);
	props->max_mcast_grp = le32_to_cpu(caps->max_mcast_grp);
	props->max_mcast_qp_attach = le32_to_cpu(caps->max_mcast_qp);
	props->max_total_mcast_qp_attach = props->max_mcast_grp *
					   props->max_mcast_qp_attach;
	props->max_raw_ethy_qp = props->max_qp;
	props->rss_caps.supported_qpts = BIT(IB_QPT_RAW_PACKET);
	props->rss_caps.max_rwq_indirection_tables =
		le32_to_cpu(caps->max_rwq_ind_table);
	props->rss_caps.max_rwq_indirection_table_size =
		BIT(le32_to_cpu(caps->max_rwq_ind_table_log_size));
	props->max_wq_type_rq = props->max_qp;
	props->raw_packet_caps = IB_RAW_PACKET_CAP_IP_CSUM;
	props->max_pkeys = 1;
	props->cq_caps.max_cq_moderation_count =
		le16_to_cpu(caps->max_cq_count);
	props->cq_caps.max_cq_moderation_period =
		le16_to_cpu(caps->max_cq_period);
	props->max_dm_size = le64_to_cpu(caps->device_memory);
	props->local_ca_ack_delay = FAULTLINE_ACK_DELAY;
	/* Completions carry nanoseconds. */
	props->timestamp_mask = U64_MAX;
	props->hca_core_clock = NSEC_PER_MSEC;
	if (caps->max_tm_tags) {
		props->tm_caps.max_rndv_hdr_size = FAULTLINE_TM_MAX_RNDV;
		props->tm_caps.max_num_tags = le32_to_cpu(caps->max_tm_tags);
		props->tm_caps.max_ops = le32_to_cpu(caps->max_tm_ops);
		props->tm_caps.max_sge = FAULTLINE_TM_MAX_SGE;
		props->tm_caps.flags = IB_TM_CAP_RNDV_RC;
	}
	if (dev->odp)
		props->kernel_cap_flags |= IBK_ON_DEMAND_PAGING;
	faultline_odp_caps(dev, &props->odp_caps);
	if (faultline_is_iwarp(dev))
		faultline_iwarp_attrs(props);
	return 0;
}

/*
 * The slowest combination of lanes that is not slower than the link, or the
 * fastest of all. ib_get_eth_speed() would take the RTNL lock, and does not
 * know more than 100 Gbit/s in all kernels.
 */
static void faultline_port_speed(struct faultline_dev *dev,
				 struct ib_port_attr *props)
{
	static const struct {
		u32 mbps;
		u8 width;
		u16 speed;
	} speeds[] = {
		{ SPEED_2500, IB_WIDTH_1X, IB_SPEED_SDR },
		{ SPEED_5000, IB_WIDTH_1X, IB_SPEED_DDR },
		{ SPEED_10000, IB_WIDTH_1X, IB_SPEED_FDR10 },
		{ SPEED_20000, IB_WIDTH_4X, IB_SPEED_DDR },
		{ SPEED_25000, IB_WIDTH_1X, IB_SPEED_EDR },
		{ SPEED_40000, IB_WIDTH_4X, IB_SPEED_FDR10 },
		{ SPEED_50000, IB_WIDTH_2X, IB_SPEED_EDR },
		{ SPEED_100000, IB_WIDTH_4X, IB_SPEED_EDR },
		{ SPEED_200000, IB_WIDTH_4X, IB_SPEED_HDR },
		{ SPEED_400000, IB_WIDTH_4X, IB_SPEED_NDR },
		{ SPEED_800000, IB_WIDTH_4X, IB_SPEED_XDR },
	};
	u32 speed = faultline_link_speed(dev);
	unsigned int i = 0;

	if (!speed)
		speed = SPEED_100000;
	while (i < ARRAY_SIZE(speeds) - 1 && speeds[i].mbps < speed)
		i++;
	props->active_width = speeds[i].width;
	props->active_speed = speeds[i].speed;
}

/* Longest path MTU of packets that the interface passes. */
enum ib_mtu faultline_active_mtu(struct faultline_dev *dev)
{
	return iboe_get_mtu(READ_ONCE(faultline_netdev(dev)->mtu));
}

static int faultline_query_port(struct ib_device *ibdev, u32 port,
				struct ib_port_attr *props)
{
	struct faultline_dev *dev = to_fdev(ibdev);
	struct net_device *netdev = faultline_netdev(dev);

	/* The core has zeroed *props, but for iWARP state and MTU. */
	if (faultline_is_iwarp(dev)) {
		props->gid_tbl_len = 1;
	} else {
		props->gid_tbl_len = le32_to_cpu(dev->caps.max_gid);
		props->ip_gids = true;
		props->pkey_tbl_len = 1;
	}
	props->port_cap_flags = IB_PORT_CM_SUP;
	props->max_msg_sz = le32_to_cpu(dev->caps.max_msg_size);
	props->max_vl_num = 1;
	faultline_port_speed(dev, props);
	props->max_mtu = IB_MTU_4096;
	props->active_mtu = faultline_active_mtu(dev);
	props->phys_mtu = READ_ONCE(netdev->mtu);
	if (!faultline_is_dead(dev) && netif_running(netdev) &&
	    netif_carrier_ok(netdev)) {
		props->state = IB_PORT_ACTIVE;
		props->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	} else {
		props->state = IB_PORT_DOWN;
		props->phys_state = IB_PORT_PHYS_STATE_DISABLED;
	}
	return 0;
}

static int faultline_query_pkey(struct ib_device *ibdev, u32 port, u16 index,
				u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static enum rdma_link_layer faultline_link_layer(struct ib_device *ibdev,
						 u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int faultline_port_immutable(struct ib_device *ibdev, u32 port,
				    struct ib_port_immutable *immutable)
{
	u32 features = le32_to_cpu(to_fdev(ibdev)->caps.features);
	struct ib_port_attr attr;
	int err;

	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	if (features & FAULTLINE_FEATURE_ROCE_V1_GIDS)
		immutable->core_cap_flags |= RDMA_CORE_PORT_IBA_ROCE;
	err = ib_query_port(ibdev, port, &attr);
	if (err)
		return err;
	immutable->pkey_tbl_len = attr.pkey_tbl_len;
	immutable->gid_tbl_len = attr.gid_tbl_len;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static int faultline_iwarp_port_immutable(struct ib_device *ibdev, u32 port,
					  struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IWARP;
	immutable->gid_tbl_len = 1;
	return 0;
}

/* The only entry of the table is the MAC address. */
static int faultline_iwarp_query_gid(struct ib_device *ibdev, u32 port,
				     int index, union ib_gid *gid)
{
	if (index)
		return -EINVAL;
	memset(gid, 0, sizeof(*gid));
	ether_addr_copy(gid->raw, faultline_netdev(to_fdev(ibdev))->dev_addr);
	return 0;
}

static void faultline_fw_str(struct ib_device *ibdev, char *str)
{
	faultline_fw_version(to_fdev(ibdev), str, IB_FW_VERSION_NAME_MAX);
}

/*
 * The device does not get entries of RoCE v1, so it refuses their indices in
 * address vectors.
 */
static bool faultline_gid_of_device(const struct ib_gid_attr *attr)
{
	return attr->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP;
}

static int faultline_add_gid(const struct ib_gid_attr *attr, void **context)
{
	struct faultline_set_gid params = { .valid = 1 };
	u16 vlan = FAULTLINE_NO_VLAN;
	int err;

	if (!faultline_gid_of_device(attr))
		return 0;
	err = rdma_read_gid_l2_fields(attr, &vlan, params.mac);
	if (err)
		return err;
	memcpy(params.gid, attr->gid.raw, sizeof(params.gid));
	params.vlan = cpu_to_le16(vlan);
	return faultline_cmd_set_gid(to_fdev(attr->device), attr->index,
				     &params);
}

static int faultline_del_gid(const struct ib_gid_attr *attr, void **context)
{
	struct faultline_dev *dev = to_fdev(attr->device);
	struct faultline_set_gid params = {
		.vlan = cpu_to_le16(FAULTLINE_NO_VLAN),
	};

	if (!faultline_gid_of_device(attr))
		return 0;
	return faultline_dead_ok(dev, faultline_cmd_set_gid(dev, attr->index,
							    &params));
}

static struct rdma_user_mmap_entry *
__faultline_mmap_insert(struct faultline_ucontext *ctx,
			const struct faultline_mmap_entry *template)
{
	struct faultline_mmap_entry *entry;
	int err;

	entry = kmemdup(template, sizeof(*entry), GFP_KERNEL);
	if (!entry)
		return NULL;
	err = rdma_user_mmap_entry_insert(&ctx->ibucontext, &entry->rdma_entry,
					  PAGE_SIZE);
	if (err) {
		kfree(entry);
		return NULL;
	}
	return &entry->rdma_entry;
}

static struct rdma_user_mmap_entry *
faultline_mmap_insert(struct faultline_ucontext *ctx, phys_addr_t phys,
		      enum faultline_mmap_kind kind)
{
	struct faultline_mmap_entry entry = { .phys = phys, .kind = kind };

	return __faultline_mmap_insert(ctx, &entry);
}

/* The page must stay until the entry has been removed. */
struct rdma_user_mmap_entry *
faultline_mmap_insert_page(struct faultline_ucontext *ctx, struct page *page,
			   u64 *offset)
{
	struct faultline_mmap_entry template = {
		.page = page,
		.kind = FAULTLINE_MMAP_COUNTERS,
	};
	struct rdma_user_mmap_entry *entry;

	entry = __faultline_mmap_insert(ctx, &template);
	if (entry)
		*offset = rdma_user_mmap_get_offset(entry);
	return entry;
}

static void faultline_mmap_free(struct rdma_user_mmap_entry *rdma_entry)
{
	struct faultline_mmap_entry *entry = to_fmmap(rdma_entry);

	if (entry->kind == FAULTLINE_MMAP_DEVICE_MEMORY)
		faultline_dm_unmapped(entry);
	else
		kfree(entry);
}

static int faultline_mmap_counters(struct vm_area_struct *vma,
				   struct page *page)
{
	if (vma->vm_flags & (VM_WRITE | VM_EXEC))
		return -EPERM;
	vm_flags_mod(vma, VM_DONTEXPAND, VM_MAYWRITE | VM_MAYEXEC);
	/* The mapping holds a reference: it can outlive the device. */
	return vm_insert_page(vma, vma->vm_start, page);
}

/*
 * Doorbell pages and device memory are memory and mapped as such, like page 0
 * (the architecture gives both mappings of a page the same attributes).
 * Accesses to kick pages have side effects.
 */
static int faultline_mmap(struct ib_ucontext *ibctx, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *rdma_entry;
	struct faultline_mmap_entry *entry;
	pgprot_t prot = vma->vm_page_prot;
	int err;

	rdma_entry = rdma_user_mmap_entry_get(ibctx, vma);
	if (!rdma_entry)
		return -EINVAL;
	entry = to_fmmap(rdma_entry);
	if (entry->kind == FAULTLINE_MMAP_COUNTERS) {
		err = faultline_mmap_counters(vma, entry->page);
		goto put;
	}
	if (entry->kind == FAULTLINE_MMAP_KICK)
		prot = pgprot_noncached(prot);
	err = rdma_user_mmap_io(ibctx, vma, PHYS_PFN(entry->phys),
				rdma_entry->npages << PAGE_SHIFT, prot,
				rdma_entry);
put:
	rdma_user_mmap_entry_put(rdma_entry);
	return err;
}

static void faultline_ucontext_release(struct faultline_dev *dev,
				       struct faultline_ucontext *ctx)
{
	int err;

	faultline_counters_free(ctx);
	rdma_user_mmap_entry_remove(ctx->kick_entry);
	rdma_user_mmap_entry_remove(ctx->doorbell_entry);
	err = faultline_dead_ok(dev,
				faultline_cmd_dealloc_uctx(dev, ctx->uctx));
	if (err)
		faultline_err(dev, "user context %u: can't free: %d\n",
			      ctx->uctx, err);
}

/* Fills the response to the creation of a user context. */
void faultline_ucontext_resp(struct faultline_ucontext *ctx,
			     struct faultline_alloc_ucontext_resp *resp)
{
	struct faultline_dev *dev = to_fdev(ctx->ibucontext.device);

	*resp = (struct faultline_alloc_ucontext_resp) {
		.doorbell_offset =
			rdma_user_mmap_get_offset(ctx->doorbell_entry),
		.kick_offset = rdma_user_mmap_get_offset(ctx->kick_entry),
		.abi_version = faultline_read(dev, FAULTLINE_REG_ABI_VERSION),
		.max_qp_wr = le32_to_cpu(dev->caps.max_qp_wr),
		.max_srq_wr = le32_to_cpu(dev->caps.max_srq_wr),
		.max_cqe = le32_to_cpu(dev->caps.max_cqe),
		.max_sge = le32_to_cpu(dev->caps.max_sge),
		.max_inline = le32_to_cpu(dev->caps.max_inline),
		.max_tso = le32_to_cpu(dev->caps.max_tso),
	};
}

/*
 * Fails if a page that is mapped for DMA has to be synchronized, since DMA goes
 * through bounce buffers or caches are not coherent. Consumers in the kernel do
 * so; a process, which shares its memory with the device, cannot.
 */
static int faultline_check_sync(struct faultline_dev *dev)
{
	struct device *dma_dev = &dev->pdev->dev;
	struct page *page;
	dma_addr_t addr;
	int err = 0;

	page = alloc_page(GFP_KERNEL);
	if (!page)
		return -ENOMEM;
	addr = dma_map_page(dma_dev, page, 0, PAGE_SIZE, DMA_BIDIRECTIONAL);
	if (dma_mapping_error(dma_dev, addr)) {
		/* Perhaps since there are bounce buffers, all in use. */
		err = -ENOMEM;
	} else {
		if (dma_need_sync(dma_dev, addr))
			err = -EOPNOTSUPP;
		dma_unmap_page(dma_dev, addr, PAGE_SIZE, DMA_BIDIRECTIONAL);
	}
	__free_page(page);
	return err;
}

static int faultline_alloc_ucontext(struct ib_ucontext *ibctx,
				    struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibctx->device);
	struct faultline_ucontext *ctx = to_fucontext(ibctx);
	struct faultline_alloc_ucontext_resp resp;
	phys_addr_t page;
	int err;

	err = ib_is_udata_in_empty(udata);
	if (err)
		return err;
	err = faultline_check_sync(dev);
	if (err == -EOPNOTSUPP)
		dev_err_ratelimited(&dev->pdev->dev,
				    "DMA needs synchronization, as with swiotlb=force: processes cannot use the device\n");
	if (err)
		return err;
	mutex_init(&ctx->counters_lock);
	INIT_LIST_HEAD(&ctx->counters);
	err = faultline_cmd_alloc_uctx(dev, &ctx->uctx);
	if (err)
		return err;
	page = dev->db_phys + (u64)ctx->uctx * FAULTLINE_PAGE_SIZE;
	ctx->doorbell_entry = faultline_mmap_insert(ctx, page,
						    FAULTLINE_MMAP_DOORBELL);
	ctx->kick_entry = faultline_mmap_insert(ctx, page + dev->kick_offset,
						FAULTLINE_MMAP_KICK);
	if (!ctx->doorbell_entry || !ctx->kick_entry) {
		err = -ENOMEM;
		goto release;
	}
	faultline_ucontext_resp(ctx, &resp);
	err = faultline_respond(udata, resp);
	if (err)
		goto release;
	return 0;

release:
	faultline_ucontext_release(dev, ctx);
	return err;
}

static void faultline_dealloc_ucontext(struct ib_ucontext *ibctx)
{
	faultline_ucontext_release(to_fdev(ibctx->device), to_fucontext(ibctx));
}

/* The core has removed the mappings; nothing else to do. */
static void faultline_disassociate_ucontext(struct ib_ucontext *ibctx)
{
}

static int faultline_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_pd *pd = to_fpd(ibpd);
	struct faultline_alloc_pd_resp resp = {};
	int err;

	err = ib_is_udata_in_empty(udata);
	if (err)
		return err;
	err = faultline_cmd_alloc_pd(dev, faultline_udata_uctx(udata), &pd->pdn);
	if (err)
		return faultline_verb_error(dev, udata, err);
	resp.pdn = pd->pdn;
	err = faultline_respond(udata, resp);
	if (err)
		faultline_cmd_dealloc_pd(dev, pd->pdn);
	return err;
}

static int faultline_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	if (atomic_xchg(&to_fpd(ibpd)->of_consumer, 0))
		atomic_dec(&dev->consumer_pds);
	/* Commands that destroy address handles may be pending. */
	faultline_ah_flush(dev);
	return faultline_dead_ok(
		dev, faultline_cmd_dealloc_pd(dev, to_fpd(ibpd)->pdn));
}

static int faultline_alloc_xrcd(struct ib_xrcd *ibxrcd, struct ib_udata *udata)
{
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	return faultline_cmd_alloc_xrcd(to_fdev(ibxrcd->device),
					&to_fxrcd(ibxrcd)->xrcdn);
}

static int faultline_dealloc_xrcd(struct ib_xrcd *ibxrcd,
				  struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibxrcd->device);
	u32 xrcdn = to_fxrcd(ibxrcd)->xrcdn;
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	return faultline_dead_ok(dev, faultline_cmd_dealloc_xrcd(dev, xrcdn));
}

void faultline_av_fill(struct faultline_av *av, const struct rdma_ah_attr *attr)
{
	const struct ib_global_route *grh = rdma_ah_read_grh(attr);

	memcpy(av->dgid, grh->dgid.raw, sizeof(av->dgid));
	memcpy(av->dmac, attr->roce.dmac, ETH_ALEN);
	av->sgid_index = cpu_to_le16(grh->sgid_index);
	av->flow_label = cpu_to_le32(grh->flow_label & 0xfffff);
	av->sl = rdma_ah_get_sl(attr);
	av->traffic_class = grh->traffic_class;
	av->hop_limit = grh->hop_limit;
	av->port = 1;
}

/*
 * Operations of all adapters. Those that differ between kernels are in
 * faultline_compat_ops.
 */
static const struct ib_device_ops faultline_dev_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = FAULTLINE_UVERBS_ABI_VERSION,

	.alloc_dm = faultline_alloc_dm,
	.alloc_hw_port_stats = faultline_alloc_hw_port_stats,
	.alloc_mr = faultline_alloc_mr,
	.alloc_mw = faultline_alloc_mw,
	.alloc_pd = faultline_alloc_pd,
	.alloc_ucontext = faultline_alloc_ucontext,
	.counter_alloc_stats = faultline_counter_alloc_stats,
	.counter_dealloc = faultline_counter_dealloc,
	.counter_update_stats = faultline_counter_update_stats,
	.create_cq = faultline_create_cq,
	.create_flow = faultline_create_flow,
	.create_qp = faultline_create_qp,
	.create_rwq_ind_table = faultline_create_rwq_ind_table,
	.create_srq = faultline_create_srq,
	.dealloc_dm = faultline_dealloc_dm,
	.create_wq = faultline_create_wq,
	.dealloc_mw = faultline_dealloc_mw,
	.dealloc_pd = faultline_dealloc_pd,
	.dealloc_ucontext = faultline_dealloc_ucontext,
	.dereg_mr = faultline_dereg_mr,
	.destroy_cq = faultline_destroy_cq,
	.destroy_flow = faultline_destroy_flow,
	.destroy_qp = faultline_destroy_qp,
	.destroy_rwq_ind_table = faultline_destroy_rwq_ind_table,
	.destroy_srq = faultline_destroy_srq,
	.destroy_wq = faultline_destroy_wq,
	.disassociate_ucontext = faultline_disassociate_ucontext,
	.get_dev_fw_str = faultline_fw_str,
	.get_dma_mr = faultline_get_dma_mr,
	.get_hw_stats = faultline_get_hw_stats,
	.map_mr_sg = faultline_map_mr_sg,
	.mmap = faultline_mmap,
	.mmap_free = faultline_mmap_free,
	.modify_cq = faultline_modify_cq,
	.modify_hw_stat = faultline_modify_hw_stat,
	.modify_qp = faultline_modify_qp,
	.modify_srq = faultline_modify_srq,
	.modify_wq = faultline_modify_wq,
	.poll_cq = faultline_poll_cq,
	.post_recv = faultline_post_recv,
	.post_send = faultline_post_send,
	.post_srq_recv = faultline_post_srq_recv,
	.advise_mr = faultline_advise_mr,
	.fill_res_cq_entry = faultline_fill_res_cq,
	.fill_res_mr_entry = faultline_fill_res_mr,
	.fill_res_qp_entry = faultline_fill_res_qp,
	.fill_res_srq_entry = faultline_fill_res_srq,
	.fill_stat_mr_entry = faultline_fill_stat_mr,
	.query_device = faultline_query_device,
	.query_port = faultline_query_port,
	.query_qp = faultline_query_qp,
	.query_srq = faultline_query_srq,
	.query_ucontext = faultline_query_ucontext,
	.reg_dm_mr = faultline_reg_dm_mr,
	.req_notify_cq = faultline_req_notify_cq,
	.rereg_user_mr = faultline_rereg_user_mr,

	INIT_RDMA_OBJ_SIZE(ib_cq, faultline_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_mw, faultline_mw, ibmw),
	INIT_RDMA_OBJ_SIZE(ib_pd, faultline_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, faultline_qp, ibqp),
	INIT_RDMA_OBJ_SIZE(ib_rwq_ind_table, faultline_rwq_ind_table, ibtable),
	INIT_RDMA_OBJ_SIZE(ib_srq, faultline_srq, ibsrq),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, faultline_ucontext, ibucontext),
};

/* Operations of RoCE adapters only. */
static const struct ib_device_ops faultline_roce_ops = {
	.add_gid = faultline_add_gid,
	.alloc_xrcd = faultline_alloc_xrcd,
	.attach_mcast = faultline_attach_mcast,
	.create_ah = faultline_create_ah,
	.create_user_ah = faultline_create_ah,
	.dealloc_xrcd = faultline_dealloc_xrcd,
	.del_gid = faultline_del_gid,
	.destroy_ah = faultline_destroy_ah,
	.detach_mcast = faultline_detach_mcast,
	.get_link_layer = faultline_link_layer,
	.get_port_immutable = faultline_port_immutable,
	.process_mad = faultline_process_mad,
	.query_pkey = faultline_query_pkey,

	INIT_RDMA_OBJ_SIZE(ib_ah, faultline_ah, ibah),
	INIT_RDMA_OBJ_SIZE(ib_xrcd, faultline_xrcd, ibxrcd),
};

/* Operations of iWARP adapters only. */
static const struct ib_device_ops faultline_iwarp_ops = {
	.get_port_immutable = faultline_iwarp_port_immutable,
	.iw_accept = faultline_iw_accept,
	.iw_add_ref = faultline_iw_add_ref,
	.iw_connect = faultline_iw_connect,
	.iw_create_listen = faultline_iw_create_listen,
	.iw_destroy_listen = faultline_iw_destroy_listen,
	.iw_get_qp = faultline_iw_get_qp,
	.iw_reject = faultline_iw_reject,
	.iw_rem_ref = faultline_iw_rem_ref,
	.query_gid = faultline_iwarp_query_gid,
};

/* Methods and objects of this driver only. */
static const struct uapi_definition faultline_uapi_defs[] = {
	UAPI_DEF_CHAIN(faultline_dm_defs),
	UAPI_DEF_CHAIN(faultline_query_defs),
#ifdef CONFIG_INFINIBAND_FAULTLINE_EXTENSIONS
	UAPI_DEF_CHAIN(faultline_events_defs),
	UAPI_DEF_CHAIN(faultline_watch_defs),
	UAPI_DEF_CHAIN(faultline_lease_defs),
	UAPI_DEF_CHAIN(faultline_policy_defs),
#endif
	{}
};

static void faultline_ib_set_registered(struct faultline_dev *dev, bool yes)
{
	spin_lock_irq(&dev->ib_event_lock);
	dev->ib_registered = yes;
	spin_unlock_irq(&dev->ib_event_lock);
}

/* Runs in any context. The core accepts events of registered devices only. */
static void faultline_ib_dispatch(struct faultline_dev *dev,
				  enum ib_event_type type)
{
	struct ib_event event = {
		.event = type,
		.element.port_num = 1,
	};
	unsigned long flags;

	spin_lock_irqsave(&dev->ib_event_lock, flags);
	if (dev->ib_registered) {
		event.device = &dev->ib->ibdev;
		ib_dispatch_event(&event);
	}
	spin_unlock_irqrestore(&dev->ib_event_lock, flags);
}

static int faultline_ib_setup(struct faultline_dev *dev,
			      struct ib_device *ibdev)
{
	ibdev->node_guid = cpu_to_be64(le64_to_cpu(dev->caps.node_guid));
	ibdev->phys_port_cnt = 1;
	ibdev->num_comp_vectors = faultline_num_comp_vectors(dev);
	strscpy(ibdev->node_desc, FAULTLINE_DRV_NAME,
		sizeof(ibdev->node_desc));
	ibdev->dev.parent = &dev->pdev->dev;
	ib_set_device_ops(ibdev, &faultline_dev_ops);
	ib_set_device_ops(ibdev, &faultline_compat_ops);
	if (faultline_is_iwarp(dev)) {
		ibdev->node_type = RDMA_NODE_RNIC;
		strscpy(ibdev->iw_ifname, faultline_netdev(dev)->name,
			sizeof(ibdev->iw_ifname));
		/* Ports are reserved here, not by the port mapper. */
		ibdev->iw_driver_flags = IW_F_NO_PORT_MAP;
		ib_set_device_ops(ibdev, &faultline_iwarp_ops);
	} else {
		ibdev->node_type = RDMA_NODE_IB_CA;
		ib_set_device_ops(ibdev, &faultline_roce_ops);
	}
	ibdev->driver_def = faultline_uapi_defs;
	return ib_device_set_netdev(ibdev, faultline_netdev(dev), 1);
}

/* Registers a new RDMA device. The caller holds state_lock. */
int faultline_ib_register(struct faultline_dev *dev)
{
	struct faultline_ib *ib = ib_alloc_device(faultline_ib, ibdev);
	int err;

	if (!ib)
		return -ENOMEM;
	ib->dev = dev;
	dev->ib = ib;
	err = faultline_ib_setup(dev, &ib->ibdev);
	if (!err)
		err = ib_register_device(&ib->ibdev, FAULTLINE_DRV_NAME "%d",
					 &dev->pdev->dev);
	if (err) {
		dev->ib = NULL;
		ib_dealloc_device(&ib->ibdev);
		return err;
	}
	faultline_ib_set_registered(dev, true);
	return 0;
}

/*
 * Returns when no object of the RDMA device exists any more. User contexts are
 * disassociated: their verbs fail, and their doorbell mappings are replaced by
 * memory that has no effect. The caller holds state_lock.
 */
void faultline_ib_unregister(struct faultline_dev *dev)
{
	struct faultline_ib *ib = dev->ib;

	faultline_ib_set_registered(dev, false);
	ib_unregister_device(&ib->ibdev);
	dev->ib = NULL;
	ib_dealloc_device(&ib->ibdev);
}

/* Returns true if a consumer in the kernel has a queue pair. */
static bool faultline_ib_in_use(struct faultline_dev *dev)
{
	struct faultline_res *res;
	unsigned long index, flags;
	bool used = false;

	/* The lock keeps the QPs from being freed. */
	xa_lock_irqsave(&dev->qps, flags);
	xa_for_each(&dev->qps, index, res)
		used |= faultline_qp_of_consumer(res);
	xa_unlock_irqrestore(&dev->qps, flags);
	return used;
}

/*
 * Waits until consumers in the kernel have released their queue pairs, and
 * then the protection domains of these, but not for ever. A consumer that has
 * done so outlives the RDMA device: it reconnects to the next one, while the
 * removal of a device in use would end it (nvme-rdma deletes its controllers
 * until it has released the protection domain, its last object). There is no
 * guarantee that consumers release anything, and some keep their protection
 * domain (RDS).
 */
void faultline_ib_wait_released(struct faultline_dev *dev)
{
	unsigned long deadline = jiffies + FAULTLINE_RELEASE_TIMEOUT;

	while (faultline_ib_in_use(dev) && time_before(jiffies, deadline))
		msleep(20);
	deadline = jiffies + FAULTLINE_RELEASE_PD_TIMEOUT;
	while (atomic_read(&dev->consumer_pds) && time_before(jiffies, deadline))
		msleep(20);
}

/*
 * Notifies all consumers that the device is dead, so that they poll and get
 * their posted requests flushed. The device does no more DMA.
 */
void faultline_ib_death(struct faultline_dev *dev)
{
	struct faultline_res *res;
	unsigned long index, flags;
	struct faultline_qp *qp;

	faultline_ib_dispatch(dev, IB_EVENT_DEVICE_FATAL);

	/* The lock keeps the CQs from being freed. */
	xa_lock_irqsave(&dev->cqs, flags);
	xa_for_each(&dev->cqs, index, res)
		if (res->event == faultline_cq_event)
			faultline_cq_notify_dead(container_of(res,
							      struct faultline_cq,
							      res));
	xa_unlock_irqrestore(&dev->cqs, flags);

	/* The lock keeps the QPs from being freed. */
	xa_lock_irqsave(&dev->qps, flags);
	xa_for_each(&dev->qps, index, res) {
		qp = faultline_res_qp(res);
		if (qp && qp->conn)
			faultline_conn_death(qp->conn);
	}
	xa_unlock_irqrestore(&dev->qps, flags);
}

/* The MAC address has changed, which is the one entry of an iWARP adapter. */
void faultline_ib_gid_changed(struct faultline_dev *dev)
{
	faultline_ib_dispatch(dev, IB_EVENT_GID_CHANGE);
}

/* The link came up or went down. */
void faultline_ib_port_event(struct faultline_dev *dev, bool up)
{
	if (faultline_core_dispatches_port_events())
		return;
	faultline_ib_dispatch(dev, up ? IB_EVENT_PORT_ACTIVE :
					IB_EVENT_PORT_ERR);
}
