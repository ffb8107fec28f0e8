/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Regions on demand. */
#ifndef FAULTLINE_ODP_H
#define FAULTLINE_ODP_H

#include <linux/hmm.h>
#include <linux/pci-p2pdma.h>

#include <rdma/ib_umem_odp.h>

#include "faultline_ib.h"

/* ib_umem_odp_map_dma_and_lock() wants a mask, and ignores it unless it faults. */
#ifdef FAULTLINE_COMPAT_ODP_PFNS
#define FAULTLINE_ODP_MASK	HMM_PFN_REQ_FAULT
#else
#define FAULTLINE_ODP_MASK	ODP_READ_ALLOWED_BIT
#endif

/* What HMM has found at a page of a umem whose mutex is held. */
static inline unsigned long faultline_odp_pfn(const struct ib_umem_odp *odp,
					      size_t index)
{
#ifdef FAULTLINE_COMPAT_ODP_PFNS
	return odp->map.pfn_list[index];
#else
	return odp->pfn_list[index];
#endif
}

/* The device's entry for a page of a umem whose mutex is held; 0: absent. */
static inline u64 faultline_odp_entry(struct faultline_dev *dev,
				      struct ib_umem_odp *odp, size_t index)
{
	u64 entry;
#ifdef FAULTLINE_COMPAT_ODP_PFNS
	struct pci_p2pdma_map_state p2pdma = {};
	unsigned long pfn = odp->map.pfn_list[index];
	dma_addr_t addr;

	if (!(pfn & HMM_PFN_VALID))
		return 0;
	addr = hmm_dma_map_pfn(&dev->pdev->dev, &odp->map, index, &p2pdma);
	if (dma_mapping_error(&dev->pdev->dev, addr))
		return 0;
	/*
	 * The core counts down when it unmaps, and leaves counting up to us. The
	 * sum is not exact: a look at the page tables takes no mutex, and so
	 * may put marks back that an invalidation has just removed.
	 */
	if (!(pfn & HMM_PFN_DMA_MAPPED))
		odp->npages++;
	entry = addr | FAULTLINE_PTE_READ;
	if (pfn & HMM_PFN_WRITE && odp->umem.writable)
		entry |= FAULTLINE_PTE_WRITE;
#else
	dma_addr_t addr = odp->dma_list[index];

	if (!addr)
		return 0;
	entry = (addr & ODP_DMA_ADDR_MASK) | FAULTLINE_PTE_READ;
	if (addr & ODP_WRITE_ALLOWED_BIT && odp->umem.writable)
		entry |= FAULTLINE_PTE_WRITE;
#endif
	return entry;
}

/* faultline_odp.c */
int faultline_odp_create(struct faultline_dev *dev);
void faultline_odp_destroy(struct faultline_dev *dev);
void faultline_odp_caps(const struct faultline_dev *dev,
			struct ib_odp_caps *caps);
void faultline_odp_init(struct faultline_mr *mr);
struct ib_umem *faultline_odp_umem(struct ib_device *ibdev, u64 start,
				   u64 length, u64 iova, int access);
void faultline_odp_release(struct faultline_mr *mr, struct ib_umem *umem);
int faultline_odp_attach(struct faultline_mr *mr);
void faultline_odp_detach(struct faultline_mr *mr);
int faultline_advise_mr(struct ib_pd *pd,
			enum ib_uverbs_advise_mr_advice advice, u32 flags,
			struct ib_sge *sg_list, u32 num_sge,
			struct uverbs_attr_bundle *attrs);
int faultline_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr);

/* faultline_dmabuf.c */
int faultline_dmabuf_bring(struct faultline_mr *mr);
void faultline_dmabuf_unmap(struct faultline_mr *mr);

#endif /* FAULTLINE_ODP_H */
