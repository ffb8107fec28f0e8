/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Regions on demand. */
#ifndef FAULTLINE_ODP_H
#define FAULTLINE_ODP_H

#include <linux/hmm.h>
#include <linux/pci-p2pdma.h>

#include <rdma/ib_umem_odp.h>

#include "faultline_ib.h"

/*
 * Maps a page that HMM has found for DMA, if it is not, and returns the device's
 * entry for it: 0 if it can't be mapped. The umem's mutex is held.
 *
 * An entry has the rights that the process has, whatever access is asked for. The
 * core marks a page dirty when it goes if it could be written.
 */
static inline u64 faultline_odp_enter(struct faultline_dev *dev,
				      struct ib_umem_odp *odp, size_t index,
				      unsigned long pfn)
{
	bool write = pfn & HMM_PFN_WRITE && odp->umem.writable;
	dma_addr_t addr;
#ifdef FAULTLINE_COMPAT_ODP_PFNS
	const unsigned long marks = HMM_PFN_DMA_MAPPED | HMM_PFN_P2PDMA |
				    HMM_PFN_P2PDMA_BUS;
	struct pci_p2pdma_map_state p2pdma = {};
	unsigned long *entry = &odp->map.pfn_list[index];
	bool mapped = *entry & HMM_PFN_DMA_MAPPED;

	*entry = (*entry & marks) | (pfn & ~(marks | HMM_PFN_WRITE)) |
		 (write ? HMM_PFN_WRITE : 0);
	addr = hmm_dma_map_pfn(&dev->pdev->dev, &odp->map, index, &p2pdma);
	if (dma_mapping_error(&dev->pdev->dev, addr))
		return 0;
	/* The core counts down when it unmaps, and leaves counting up to us. */
	if (!mapped)
		odp->npages++;
#else
	dma_addr_t *entry = &odp->dma_list[index];

	if (!*entry) {
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
