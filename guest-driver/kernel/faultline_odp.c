// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: On-demand paging
 *
 * The device has entries for some pages of an on-demand region. An access to
 * another page raises a page fault: the driver finds the page, maps it for
 * DMA, writes the entry, and resumes the access. When the mapping of the
 * process changes, an MMU notifier removes the entries before the change is
 * made. If both happen at once, the fault is repeated.
 *
 * ========================== ==============================================
 * faultline_odp.c            regions, their MMU notifier, set-up per device
 * faultline_odp_pages.c      finding pages, writing the device's entries
 * faultline_odp_fault.c      page faults of the device
 * faultline_odp_share.c      shares of the fault workers
 * faultline_odp_implicit.c   regions over the whole address space
 * faultline_odp_prefetch.c   ibv_advise_mr()
 * faultline_dmabuf.c         regions of dma-bufs, without MMU notifier
 * ========================== ==============================================
 *
 * Life of a region: faultline_odp_umem() before the key exists;
 * faultline_odp_attach() makes the key known to faults; faultline_odp_detach()
 * waits for faults and prefetches of the region and removes its entries;
 * faultline_odp_release() removes the notifiers. The key is destroyed last: an
 * invalidation must not reach another region with the same key.
 *
 * Lock order, outermost first:
 *
 * - faultline_mr.children_lock: creation of an implicit region's children
 * - the mmap_lock of the address space: held by callers of the notifier, and
 *   taken by HMM
 * - the umem_mutex of an umem (for a dma-buf: its reservation lock): DMA
 *   mappings and device entries
 * - the lock of the array faultline_mr.children
 * - the lock of the translation queue
 *
 * The lock of the array faultline_odp.mrs protects the array, and a region
 * found there until a reference is taken. faultline_odp.lock is taken in
 * interrupts. No lock of the driver is taken under these two.
 *
 * faultline_odp_invalidate() runs in any process that changes a mapping, with
 * locks of that address space held, so it waits only for the device. All
 * other functions run in process context and may sleep: verbs calls, page
 * fault workers, prefetch workers.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "faultline_odp.h"

/* Returns the attached region of a key, with a reference on it. */
struct faultline_mr *faultline_odp_mr_get(struct faultline_dev *dev,
					  u32 key)
{
	struct faultline_mr *mr;

	xa_lock(&dev->odp->mrs);
	mr = xa_load(&dev->odp->mrs, key >> 8);
	if (mr && mr->ibmr.lkey == key)
		refcount_inc(&mr->users);
	else
		mr = NULL;
	xa_unlock(&dev->odp->mrs);
	return mr;
}

void faultline_odp_mr_put(struct faultline_mr *mr)
{
	if (refcount_dec_and_test(&mr->users))
		complete(&mr->unused);
}

/* Returns the I/O virtual address of an address of the process. */
u64 faultline_odp_iova(const struct faultline_mr *mr, u64 addr)
{
	return addr - mr->umem->address + mr->ibmr.iova;
}

/* Returns the range of process addresses of a range of the region. */
int faultline_odp_range(const struct faultline_mr *mr, u64 iova,
			u64 length, u64 *addr, u64 *end)
{
	u64 offset = iova - mr->ibmr.iova;

	if (iova < mr->ibmr.iova || offset > mr->ibmr.length ||
	    length > mr->ibmr.length - offset)
		return -EFAULT;
	*addr = mr->umem->address + offset;
	*end = *addr + length;
	return 0;
}

static bool faultline_odp_invalidate(struct mmu_interval_notifier *mni,
				     const struct mmu_notifier_range *range,
				     unsigned long seq)
{
	struct ib_umem_odp *odp =
		container_of(mni, struct ib_umem_odp, notifier);
	struct faultline_mr *mr;
	u64 start, end;
	u32 removed = 0;
	int mapped;

	if (!mmu_notifier_range_blockable(range))
		return false;
	mutex_lock(&odp->umem_mutex);
	mmu_interval_set_seq(mni, seq);
	/* NULL until the first page has been mapped. */
	mr = odp->private;
	if (!mr)
		goto out;
	start = max_t(u64, ib_umem_start(odp), PAGE_ALIGN_DOWN(range->start));
	/* When the process exits, range->end is ULONG_MAX. */
	end = PAGE_ALIGN(min_t(u64, ib_umem_end(odp), range->end));
	/* The device has no entry in the range, and none is on the way. */
	if (!faultline_odp_any_mapped(odp, start, end))
		goto out;
	/*
	 * If the range covers a part of a huge page, its whole entry is
	 * removed, and the rest faults again.
	 *
	 * The command fails if the key has been destroyed (then it has no
	 * entries) or if the device is dead (then it has stopped all DMA).
	 */
	faultline_tq_invalidate(to_fdev(mr->ibmr.device), mr->ibmr.lkey,
				faultline_odp_iova(mr, start), end - start,
				&removed);
	atomic64_add(removed, &mr->page_invalidations);
	mapped = odp->npages;
	ib_umem_odp_unmap_dma_pages(odp, start, end);
	atomic64_sub(mapped - odp->npages, &mr->pages_present);
	if (&odp->umem != mr->umem && !odp->npages)
		faultline_odp_child_emptied(mr, odp);
out:
	mutex_unlock(&odp->umem_mutex);
	return true;
}

const struct mmu_interval_notifier_ops faultline_odp_mn_ops = {
	.invalidate = faultline_odp_invalidate,
};

/* Initializes a region that is or may become an on-demand region. */
void faultline_odp_init(struct faultline_mr *mr)
{
	faultline_odp_init_implicit(mr);
}

/* Returns the memory of an on-demand region, without any page mapped. */
struct ib_umem *faultline_odp_umem(struct ib_device *ibdev, u64 start,
				   u64 length, u64 iova, int access)
{
	struct ib_umem_odp *odp;
	bool implicit;

	/* Address and IOVA must have the same offset within a page. */
	if ((start ^ iova) & ~PAGE_MASK)
		return ERR_PTR(-EINVAL);
	/*
	 * With this flag the core would accept huge pages only. Huge pages are
	 * used without it, too.
	 */
	access &= ~IB_ACCESS_HUGETLB;
	implicit = !start && length == U64_MAX;
	if (implicit && iova)
		return ERR_PTR(-EINVAL);
	odp = implicit ? ib_umem_odp_alloc_implicit(ibdev, access) :
			 ib_umem_odp_get(ibdev, start, length, access,
					 &faultline_odp_mn_ops);
	if (IS_ERR(odp))
		return ERR_CAST(odp);
	/*
	 * A notifier holds a reference on the address space. An implicit region
	 * has none of its own, and can outlive the address space: a child
	 * process may inherit it.
	 */
	if (odp->is_implicit_odp)
		mmgrab(odp->umem.owning_mm);
	return &odp->umem;
}

/*
 * Releases memory that the device has no entries of. `mr` is NULL if the
 * memory was never attached.
 */
void faultline_odp_release(struct faultline_mr *mr, struct ib_umem *umem)
{
	bool is_implicit = !umem->is_dmabuf &&
			   to_ib_umem_odp(umem)->is_implicit_odp;
	struct mm_struct *mm = umem->owning_mm;

	if (mr) {
		faultline_odp_free_children(mr);
		atomic64_set(&mr->pages_present, 0);
	}
	if (umem->is_dmabuf)
		ib_umem_release(umem);
	else
		ib_umem_odp_release(to_ib_umem_odp(umem));
	if (is_implicit)
		mmdrop(mm);
}

/*
 * Waits for all faults and prefetches of the region that are being served, and
 * removes the device's entries.
 */
void faultline_odp_detach(struct faultline_mr *mr)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);

	xa_erase(&dev->odp->mrs, mr->ibmr.lkey >> 8);
	WRITE_ONCE(mr->detaching, true);
	faultline_odp_mr_put(mr);
	wait_for_completion(&mr->unused);
	faultline_odp_share_put(dev->odp, mr->share, mr->ibmr.lkey);
	if (mr->umem->is_dmabuf)
		faultline_dmabuf_unmap(mr);
	else
		faultline_tq_invalidate(dev, mr->ibmr.lkey, mr->ibmr.iova,
					mr->ibmr.length, NULL);
	mr->on_demand = false;
}

/*
 * Makes the region known to page faults. It has a key. Its children may exist
 * already if this follows a refused change of the region.
 */
int faultline_odp_attach(struct faultline_mr *mr)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	struct ib_umem_odp *odp = to_ib_umem_odp(mr->umem);
	u64 start = mr->umem->address;
	struct faultline_page_list list = {};
	int err;

	refcount_set(&mr->users, 1);
	init_completion(&mr->unused);
	mr->detaching = false;
	/* A dma-buf has no owning_mm: use that of the caller. */
	mr->share = faultline_odp_share_get(dev->odp,
					    mr->umem->owning_mm ?: current->mm);
	if (!mr->share)
		return -ENOMEM;
	mr->on_demand = true;
	err = xa_err(xa_store(&dev->odp->mrs, mr->ibmr.lkey >> 8, mr,
			      GFP_KERNEL));
	if (err) {
		faultline_odp_share_put(dev->odp, mr->share, mr->ibmr.lkey);
		mr->on_demand = false;
		return err;
	}
	if (mr->umem->is_dmabuf) {
		/* Map it now, so that the first access does not fault. */
		err = faultline_dmabuf_map(mr);
		if (err)
			faultline_odp_detach(mr);
		return err;
	}
	/* Map the pages that are present, so that they do not fault. */
	if (odp->is_implicit_odp || faultline_page_list_alloc(dev, &list))
		return 0;
	faultline_odp_populate(mr, &list, start, start + mr->ibmr.length,
			       mr->umem->writable, false);
	faultline_page_list_free(dev, &list);
	return 0;
}

void faultline_odp_caps(const struct faultline_dev *dev,
			struct ib_odp_caps *caps)
{
	if (!dev->odp)
		return;
	caps->general_caps = IB_ODP_SUPPORT | IB_ODP_SUPPORT_IMPLICIT;
	caps->per_transport_caps.rc_odp_caps =
		le32_to_cpu(dev->caps.rc_odp_caps);
	caps->per_transport_caps.uc_odp_caps =
		le32_to_cpu(dev->caps.uc_odp_caps);
	caps->per_transport_caps.ud_odp_caps =
		le32_to_cpu(dev->caps.ud_odp_caps);
	caps->per_transport_caps.xrc_odp_caps =
		le32_to_cpu(dev->caps.xrc_odp_caps);
}

static void faultline_odp_free(struct faultline_dev *dev,
			       struct faultline_odp *odp)
{
	unsigned int i;

	if (odp->prefetch_wq)
		destroy_workqueue(odp->prefetch_wq);
	faultline_odp_faults_free(odp);
	for (i = 0; i < FAULTLINE_FAULT_WORKERS; i++)
		faultline_page_list_free(dev, &odp->lists[i]);
	xa_destroy(&odp->mrs);
	kfree(odp);
}

/* The device raises no faults any more. */
void faultline_odp_destroy(struct faultline_dev *dev)
{
	if (dev->odp)
		faultline_odp_free(dev, dev->odp);
	dev->odp = NULL;
}

/*
 * Called before the fault event queue is created. Does nothing for a device
 * without on-demand paging.
 */
int faultline_odp_create(struct faultline_dev *dev)
{
	struct faultline_odp *odp;
	unsigned int i;

	if (!dev->caps.rc_odp_caps)
		return 0;
	odp = kzalloc(sizeof(*odp), GFP_KERNEL);
	if (!odp)
		return -ENOMEM;
	spin_lock_init(&odp->lock);
	INIT_LIST_HEAD(&odp->free_faults);
	INIT_LIST_HEAD(&odp->free_lists);
	INIT_LIST_HEAD(&odp->shares);
	INIT_LIST_HEAD(&odp->users);
	INIT_LIST_HEAD(&odp->blocked_shares);
	init_waitqueue_head(&odp->list_freed);
	xa_init(&odp->mrs);
	odp->prefetch_wq = alloc_workqueue("%s-prefetch-%s", WQ_UNBOUND, 0,
					   FAULTLINE_DRV_NAME,
					   pci_name(dev->pdev));
	if (faultline_odp_faults_alloc(dev, odp) || !odp->prefetch_wq)
		goto nomem;
	for (i = 0; i < FAULTLINE_FAULT_WORKERS; i++) {
		struct faultline_page_list *list = &odp->lists[i];

		if (faultline_page_list_alloc(dev, list))
			goto nomem;
		list_add(&list->free, &odp->free_lists);
	}
	dev->odp = odp;
	return 0;

nomem:
	faultline_odp_free(dev, odp);
	return -ENOMEM;
}
