// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Differences between kernels that need code: see faultline_compat.h. The rest
 * of the driver has one form of each operation; operations that have other
 * names or parameters on some kernels are adapted here.
 */
#include <linux/ethtool.h>
#include <linux/pci-p2pdma.h>

#include "faultline_ib.h"
#include "faultline_net.h"

#ifdef CONFIG_INFINIBAND_ON_DEMAND_PAGING
/*
 * Maps the page for DMA that HMM has found at an index of the umem, under the
 * umem_mutex. Returns false if there is no page or it cannot be mapped. A page
 * that is already mapped stays mapped, whatever HMM has found.
 *
 * On entry, `write` is true if HMM has found the page writable; on return, if
 * it has been writable at any time since it was mapped.
 */
#ifdef FAULTLINE_HAVE_ODP_HMM_DMA_MAP
bool faultline_odp_dma_map(struct device *dma_dev, struct ib_umem_odp *odp,
			   size_t index, unsigned long pfn, bool *write,
			   dma_addr_t *addr)
{
	struct pci_p2pdma_map_state p2pdma = {};
	unsigned long *entry = &odp->map.pfn_list[index];
	bool mapped = *entry & HMM_PFN_DMA_MAPPED;

	if (!mapped && !(pfn & HMM_PFN_VALID))
		return false;
	if (!mapped)
		*entry = pfn & ~HMM_PFN_WRITE;
	if (*write)
		*entry |= HMM_PFN_WRITE;
	*addr = hmm_dma_map_pfn(dma_dev, &odp->map, index, &p2pdma);
	if (dma_mapping_error(dma_dev, *addr))
		return false;
	/* The core decrements npages on unmap; drivers increment it. */
	if (!mapped)
		odp->npages++;
	*write = *entry & HMM_PFN_WRITE;
	return true;
}
#else
bool faultline_odp_dma_map(struct device *dma_dev, struct ib_umem_odp *odp,
			   size_t index, unsigned long pfn, bool *write,
			   dma_addr_t *addr)
{
	dma_addr_t *entry = &odp->dma_list[index];

	if (!*entry) {
		if (!(pfn & HMM_PFN_VALID))
			return false;
		*addr = dma_map_page(dma_dev, hmm_pfn_to_page(pfn), 0,
				     PAGE_SIZE, DMA_BIDIRECTIONAL);
		if (dma_mapping_error(dma_dev, *addr))
			return false;
		*entry = *addr | ODP_READ_ALLOWED_BIT;
		odp->pfn_list[index] = pfn;
		odp->npages++;
	}
	if (*write)
		*entry |= ODP_WRITE_ALLOWED_BIT;
	*addr = *entry & ODP_DMA_ADDR_MASK;
	*write = *entry & ODP_WRITE_ALLOWED_BIT;
	return true;
}
#endif /* FAULTLINE_HAVE_ODP_HMM_DMA_MAP */

/*
 * Returns true if a page of a range is mapped for DMA, under the umem_mutex.
 * The device has entries for such pages only.
 */
bool faultline_odp_any_mapped(struct ib_umem_odp *odp, u64 start, u64 end)
{
	size_t stop = (end - ib_umem_start(odp)) >> PAGE_SHIFT;
	size_t i;

	if (!odp->npages)
		return false;
	for (i = (start - ib_umem_start(odp)) >> PAGE_SHIFT; i < stop; i++)
#ifdef FAULTLINE_HAVE_ODP_HMM_DMA_MAP
		if (odp->map.pfn_list[i] & HMM_PFN_DMA_MAPPED)
			return true;
#else
		if (odp->dma_list[i])
			return true;
#endif
	return false;
}
#endif /* CONFIG_INFINIBAND_ON_DEMAND_PAGING */

/* Newer kernels have an operation for each of these commands. */
int faultline_compat_get_rxnfc(struct net_device *netdev,
			       struct ethtool_rxnfc *info, u32 *rule_locs)
{
	struct ethtool_rxfh_fields fields = { .flow_type = info->flow_type };
	int err;

	switch (info->cmd) {
	case ETHTOOL_GRXRINGS:
		info->data = faultline_get_rx_ring_count(netdev);
		return 0;
	case ETHTOOL_GRXFH:
		err = faultline_get_rxfh_fields(netdev, &fields);
		info->data = fields.data;
		return err;
	default:
		return -EOPNOTSUPP;
	}
}

#ifdef FAULTLINE_HAVE_REG_MR_DMAH
/* A DMA handle selects a cache of the host; the device does not support it. */
static struct ib_mr *
faultline_compat_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length,
			     u64 virt_addr, int access, struct ib_dmah *dmah,
			     struct ib_udata *udata)
{
	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
	return faultline_reg_user_mr(ibpd, start, length, virt_addr, access,
				     udata);
}

static struct ib_mr *
faultline_compat_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length,
				    u64 virt_addr, int fd, int access,
				    struct ib_dmah *dmah,
				    struct uverbs_attr_bundle *attrs)
{
	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
	return faultline_reg_user_mr_dmabuf(ibpd, offset, length, virt_addr, fd,
					    access, attrs);
}
#endif

#ifndef FAULTLINE_HAVE_USER_CQ_OPS
/* On these kernels `entries` is signed. */
static int faultline_compat_resize_cq(struct ib_cq *ibcq, int entries,
				      struct ib_udata *udata)
{
	return faultline_resize_cq(ibcq, max(entries, 0), udata);
}
#endif

#ifdef FAULTLINE_HAVE_COUNTER_INIT
/* Drivers declare the size of their counters; this one adds no fields. */
struct faultline_counter {
	struct rdma_counter rdma_counter;
};

static void faultline_compat_counter_init(struct rdma_counter *counter)
{
}
#endif

#ifdef FAULTLINE_HAVE_COUNTER_PORT
/* The device has one port. */
static int faultline_compat_counter_bind_qp(struct rdma_counter *counter,
					    struct ib_qp *ibqp, u32 port)
{
	return faultline_counter_bind_qp(counter, ibqp);
}

static int faultline_compat_counter_unbind_qp(struct ib_qp *ibqp, u32 port)
{
	return faultline_counter_unbind_qp(ibqp);
}
#endif

/* Operations that differ between kernels; see also faultline_verbs.c. */
const struct ib_device_ops faultline_compat_ops = {
#ifdef FAULTLINE_HAVE_ROBUST_UDATA
	.uverbs_robust_udata = 1,
#endif
#ifdef FAULTLINE_HAVE_REG_MR_DMAH
	.reg_user_mr = faultline_compat_reg_user_mr,
	.reg_user_mr_dmabuf = faultline_compat_reg_user_mr_dmabuf,
#else
	.reg_user_mr = faultline_reg_user_mr,
	.reg_user_mr_dmabuf = faultline_reg_user_mr_dmabuf,
#endif
#ifdef FAULTLINE_HAVE_USER_CQ_OPS
	.create_user_cq = faultline_create_cq,
	.resize_user_cq = faultline_resize_cq,
#else
	.resize_cq = faultline_compat_resize_cq,
#endif
#ifdef FAULTLINE_HAVE_COUNTER_INIT
	.counter_init = faultline_compat_counter_init,
	INIT_RDMA_OBJ_SIZE(rdma_counter, faultline_counter, rdma_counter),
#endif
#ifdef FAULTLINE_HAVE_COUNTER_PORT
	.counter_bind_qp = faultline_compat_counter_bind_qp,
	.counter_unbind_qp = faultline_compat_counter_unbind_qp,
#else
	.counter_bind_qp = faultline_counter_bind_qp,
	.counter_unbind_qp = faultline_counter_unbind_qp,
#endif
};
