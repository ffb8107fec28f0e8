/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Regions on demand. */
#ifndef FAULTLINE_ODP_H
#define FAULTLINE_ODP_H

#include <linux/hmm.h>
#include <linux/pci-p2pdma.h>

#include <rdma/ib_umem_odp.h>

#include "faultline_ib.h"

/*
 * The device's entry for a page of a umem whose mutex is held, of which HMM has
 * found `pfn`; 0: absent, or it can't be mapped for DMA.
 *
 * What is mapped for DMA holds until an invalidation, whatever has been found: HMM
 * may have looked before another worker brought the page, or before it could be
 * written, and no notifier tells of either. An entry has the rights that the
 * process has, whatever access is asked for. The core marks a page dirty when it
 * goes if it could be written.
 */
static inline u64 faultline_odp_enter(struct faultline_dev *dev,
				      struct ib_umem_odp *odp, size_t index,
				      unsigned long pfn)
{
	bool write = pfn & HMM_PFN_WRITE && odp->umem.writable;
	dma_addr_t addr;
#ifdef FAULTLINE_COMPAT_ODP_PFNS
	struct pci_p2pdma_map_state p2pdma = {};
	unsigned long *entry = &odp->map.pfn_list[index];
	bool mapped = *entry & HMM_PFN_DMA_MAPPED;

	if (!mapped && !(pfn & HMM_PFN_VALID))
		return 0;
	if (!mapped)
		*entry = pfn & ~HMM_PFN_WRITE;
	if (write)
		*entry |= HMM_PFN_WRITE;
	addr = hmm_dma_map_pfn(&dev->pdev->dev, &odp->map, index, &p2pdma);
	if (dma_mapping_error(&dev->pdev->dev, addr))
		return 0;
	/* The core counts down when it unmaps, and leaves counting up to us. */
	if (!mapped)
		odp->npages++;
	write = *entry & HMM_PFN_WRITE;
#else
	dma_addr_t *entry = &odp->dma_list[index];

	if (!*entry) {
		if (!(pfn & HMM_PFN_VALID))
			return 0;
		addr = dma_map_page(&dev->pdev->dev, hmm_pfn_to_page(pfn), 0,
				    PAGE_SIZE, DMA_BIDIRECTIONAL);
		if (dma_mapping_error(&dev->pdev->dev, addr))
			return 0;
		*entry = addr | ODP_READ_ALLOWED_BIT;
		odp->pfn_list[index] = pfn;
		odp->npages++;
	}
	if (write)
		*entry |= ODP_WRITE_ALLOWED_BIT;
	addr = *entry & ODP_DMA_ADDR_MASK;
	write = *entry & ODP_WRITE_ALLOWED_BIT;
#endif
	return addr | FAULTLINE_PTE_READ | (write ? FAULTLINE_PTE_WRITE : 0);
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
