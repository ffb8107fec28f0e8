// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Page entries of on-demand regions
 *
 * faultline_odp_populate() writes device entries for pages of a process.
 * HMM finds the pages and, if asked to, faults in absent ones as the process
 * itself would. Under the umem_mutex the driver then checks that no page of
 * the range was invalidated meanwhile, maps the pages for DMA and sends the
 * entries to the device. After an invalidation it repeats the walk. It waits
 * for the device without the mutex.
 *
 * Locking: the walk takes the mmap_lock, may sleep for long, and runs without
 * any lock of the driver. The umem_mutex of the region (or of the child of an
 * implicit region) protects the list of DMA mappings, `npages`, `private`, and
 * the order of the device's entries: the notifier holds it while it removes
 * entries. Therefore nothing is allocated under it, and it is never held while
 * a page is faulted in.
 *
 * A struct faultline_page_list belongs to its user. Those for page faults are
 * preallocated; faultline_odp.lock protects the list of free ones.
 *
 * Everything runs in process context: page fault and prefetch workers, verbs.
 */
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "faultline_odp.h"

/* The device supports this page size, too. */
#define FAULTLINE_HUGE_SHIFT	21
#define FAULTLINE_HUGE_SIZE	BIT_ULL(FAULTLINE_HUGE_SHIFT)
/* Maximum number of attempts for a step if pages are removed meanwhile. */
#define FAULTLINE_MAP_TRIES	8

/*
 * Takes a preallocated list. A page fault must not wait for memory, so there
 * is one for each worker.
 */
struct faultline_page_list *faultline_page_list_get(struct faultline_odp *odp)
{
	struct faultline_page_list *list = NULL;

	spin_lock_irq(&odp->lock);
	wait_event_lock_irq(odp->list_freed, !list_empty(&odp->free_lists),
			    odp->lock);
	list = list_first_entry(&odp->free_lists, struct faultline_page_list,
				free);
	list_del(&list->free);
	spin_unlock_irq(&odp->lock);
	return list;
}

void faultline_page_list_put(struct faultline_odp *odp,
			     struct faultline_page_list *list)
{
	spin_lock_irq(&odp->lock);
	list_add(&list->free, &odp->free_lists);
	spin_unlock_irq(&odp->lock);
	wake_up(&odp->list_freed);
}

/* Allocates a list for requests other than page faults. */
int faultline_page_list_alloc(struct faultline_dev *dev,
			      struct faultline_page_list *list)
{
	list->pfns = kcalloc(FAULTLINE_PAGE_LIST_LEN, sizeof(*list->pfns),
			     GFP_KERNEL);
	if (!list->pfns)
		return -ENOMEM;
	list->entries = dma_alloc_coherent(&dev->pdev->dev, PAGE_SIZE,
					   &list->dma, GFP_KERNEL);
	if (list->entries)
		return 0;
	kfree(list->pfns);
	list->pfns = NULL;
	return -ENOMEM;
}

void faultline_page_list_free(struct faultline_dev *dev,
			      struct faultline_page_list *list)
{
	if (list->entries)
		dma_free_coherent(&dev->pdev->dev, PAGE_SIZE, list->entries,
				  list->dma);
	kfree(list->pfns);
}

/*
 * Maps a page for DMA, under the umem_mutex, and returns the device's entry
 * for it. `pfn` is what HMM has found. Returns 0 if the page is absent or
 * cannot be mapped for DMA.
 *
 * A DMA mapping is valid until the next invalidation, whatever this walk has
 * found: HMM may have walked before another worker faulted the page in or made
 * it writable, and no notifier reports these changes. An entry has the rights
 * of the process, whatever access the fault requests. The core marks a page
 * dirty on unmap if its mapping was writable.
 */
static u64 faultline_odp_map_page(struct faultline_dev *dev,
				  struct ib_umem_odp *odp, size_t index,
				  unsigned long pfn)
{
	bool write = pfn & HMM_PFN_WRITE && odp->umem.writable;
	dma_addr_t addr;

	if (!faultline_odp_dma_map(&dev->pdev->dev, odp, index, pfn, &write,
				   &addr))
		return 0;
	return addr | FAULTLINE_PTE_READ | (write ? FAULTLINE_PTE_WRITE : 0);
}

/*
 * Extends a range to the huge page at its beginning, if the process has one
 * there and the device can have one entry for it. Returns false if the range
 * stays as it is.
 */
static bool faultline_odp_widen(const struct faultline_mr *mr,
				struct ib_umem_odp *odp,
				struct hmm_range *range)
{
	const struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	u64 first = ALIGN_DOWN(range->start, FAULTLINE_HUGE_SIZE);
	unsigned long pfn = range->hmm_pfns[0];

	if (!(pfn & HMM_PFN_VALID) ||
	    hmm_pfn_to_map_order(pfn) + PAGE_SHIFT < FAULTLINE_HUGE_SHIFT ||
	    !(le64_to_cpu(dev->caps.page_sizes) & FAULTLINE_HUGE_SIZE))
		return false;
	if (first < ib_umem_start(odp) ||
	    first + FAULTLINE_HUGE_SIZE > ib_umem_end(odp) ||
	    !IS_ALIGNED(faultline_odp_iova(mr, first), FAULTLINE_HUGE_SIZE) ||
	    range->end - range->start == FAULTLINE_HUGE_SIZE)
		return false;
	range->start = first;
	range->end = first + FAULTLINE_HUGE_SIZE;
	/* The fault does not need the rest: map only present pages of it. */
	range->default_flags = 0;
	return true;
}

/* Returns true if the entries can be one entry of a huge page. */
static bool faultline_odp_is_huge(const struct faultline_mr *mr,
				  const __le64 *entries, u64 start, size_t count)
{
	const struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	u64 first = le64_to_cpu(entries[0]);
	size_t i;

	if (count << PAGE_SHIFT != FAULTLINE_HUGE_SIZE || !first ||
	    !IS_ALIGNED(first & PAGE_MASK, FAULTLINE_HUGE_SIZE) ||
	    !IS_ALIGNED(faultline_odp_iova(mr, start), FAULTLINE_HUGE_SIZE) ||
	    !(le64_to_cpu(dev->caps.page_sizes) & FAULTLINE_HUGE_SIZE))
		return false;
	for (i = 1; i < count; i++)
		if (le64_to_cpu(entries[i]) != first + (i << PAGE_SHIFT))
			return false;
	return true;
}

/*
 * Sends the entries of a range to the device, under the umem_mutex. A later
 * invalidation takes the mutex and sends its command behind this one, so that
 * it removes these entries, although nothing has waited for them.
 */
static int faultline_odp_post_entries(struct faultline_mr *mr, u64 start,
				      size_t count,
				      struct faultline_page_list *list,
				      const struct faultline_tq_cmd *resume)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	bool huge = faultline_odp_is_huge(mr, list->entries, start, count);
	int err;

	err = faultline_tq_post_map(dev, &list->map, mr->ibmr.lkey,
				    faultline_odp_iova(mr, start),
				    huge ? 1 : count,
				    huge ? FAULTLINE_HUGE_SHIFT : PAGE_SHIFT,
				    huge ? le64_to_cpu(list->entries[0]) :
					   list->dma,
				    huge, resume);
	list->is_posted = !err;
	return err;
}

/*
 * Waits until the device has the entries, if any were sent. If it refuses them
 * although the fault is answered, the access faults again.
 */
static int faultline_odp_finish(struct faultline_mr *mr,
				struct faultline_page_list *list)
{
	int err;

	if (!list->is_posted)
		return 0;
	list->is_posted = false;
	err = faultline_tq_wait(to_fdev(mr->ibmr.device), &list->map);
	if (!err || !list->fault || !list->fault->is_answered)
		return err;
	WRITE_ONCE(mr->map_refused, true);
	return 0;
}

/*
 * Maps the pages that HMM has found for DMA and writes the device's entries,
 * under the umem_mutex. Returns 1 if a page of [start, stop) is absent, or is
 * not writable and `write` is set.
 *
 * HMM's result is kept apart from the list of DMA mappings; see
 * faultline_odp_map_page(). While munmap() removes pages, HMM finds none,
 * although their invalidation is still to come.
 */
static int faultline_odp_map_range(struct faultline_mr *mr,
				   struct ib_umem_odp *odp,
				   struct faultline_page_list *list,
				   const struct hmm_range *found, u64 start,
				   u64 stop, bool write)
{
	u64 wanted = FAULTLINE_PTE_READ | (write ? FAULTLINE_PTE_WRITE : 0);
	size_t index = (found->start - ib_umem_start(odp)) >> PAGE_SHIFT;
	size_t count = (found->end - found->start) >> PAGE_SHIFT;
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	bool some = false, absent = false;
	struct faultline_tq_cmd answer;
	int mapped = odp->npages;
	int err = 0;
	size_t i;

	for (i = 0; i < count && !err; i++) {
		u64 at = found->start + ((u64)i << PAGE_SHIFT);
		bool demanded = at >= start && at < stop;
		unsigned long pfn = found->hmm_pfns[i];
		u64 entry = faultline_odp_map_page(dev, odp, index + i, pfn);

		/* The page is present, but cannot be mapped for DMA. */
		if (!entry && pfn & HMM_PFN_VALID && demanded)
			err = -EFAULT;
		list->entries[i] = cpu_to_le64(entry);
		some |= entry;
		absent |= demanded && (entry & wanted) != wanted;
	}
	atomic64_add(odp->npages - mapped, &mr->pages_present);
	if (err || !some)
		return err ?: absent;
	list->has_found = true;
	if (list->fault && !absent && stop >= list->fault_end) {
		answer = faultline_fault_answer(mr, list->fault, 0);
		err = faultline_odp_post_entries(mr, found->start, count, list,
						 &answer);
	} else {
		err = faultline_odp_post_entries(mr, found->start, count, list,
						 NULL);
	}
	return err ?: absent;
}

/*
 * Returns true if a part of the range is secret memory (memfd_secret(2)). The
 * kernel does not pin it, so that only the process itself can read it. HMM does
 * not refuse it, so the driver must: peers could read it otherwise. The caller
 * checks afterwards that the range has not been invalidated since HMM has
 * walked it: secret memory that was there then is still there here.
 */
static bool faultline_odp_is_secret(struct mm_struct *mm,
				    const struct hmm_range *range)
{
	VMA_ITERATOR(vmi, mm, range->start);
	struct vm_area_struct *vma;
	bool secret = false;

	mmap_read_lock(mm);
	for_each_vma_range(vmi, vma, range->end)
		if (vma->vm_file &&
		    file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC)
			secret = true;
	mmap_read_unlock(mm);
	return secret;
}

/*
 * Writes the device's entries for the present pages of a range or of the huge
 * page at its beginning. With `fault` set it faults in absent pages first.
 * Returns 1 as faultline_odp_map_range() does.
 */
static int faultline_odp_map_chunk(struct faultline_mr *mr,
				   struct ib_umem_odp *odp,
				   struct faultline_page_list *list, u64 start,
				   u64 stop, bool write, bool fault)
{
	unsigned long timeout = msecs_to_jiffies(HMM_RANGE_DEFAULT_TIMEOUT);
	unsigned long deadline = jiffies + timeout;
	struct mm_struct *mm = odp->umem.owning_mm;
	struct hmm_range range = {
		.notifier = &odp->notifier,
		.start = start,
		.end = stop,
		.hmm_pfns = list->pfns,
	};
	bool again = true;
	int ret, err;

	if (fault)
		range.default_flags = HMM_PFN_REQ_FAULT |
				      (write ? HMM_PFN_REQ_WRITE : 0);
	/* A process that has ended has no pages any more. */
	if (!mmget_not_zero(mm))
		return -EINVAL;
	do {
		/* May take long; no lock of the driver is held. */
		ret = faultline_hmm_walk(&range);
		if (ret == -EBUSY)
			continue;
		if (ret)
			break;
		if (faultline_odp_is_secret(mm, &range)) {
			ret = -EPERM;
			break;
		}
		ret = -EBUSY;
		mutex_lock(&odp->umem_mutex);
		again = mmu_interval_read_retry(range.notifier,
						range.notifier_seq);
		if (!again && faultline_odp_widen(mr, odp, &range)) {
			/* One more walk, with a time limit of its own. */
			deadline = jiffies + timeout;
			again = true;
		}
		if (!again)
			ret = faultline_odp_map_range(mr, odp, list, &range,
						      start, stop, write);
		mutex_unlock(&odp->umem_mutex);
		err = faultline_odp_finish(mr, list);
		if (err)
			ret = err;
	} while (again && time_before(jiffies, deadline));
	mmput_async(mm);
	return ret;
}

/*
 * Writes the device's entries for [addr, end), which is a part of one umem.
 * With `fault` set it faults in absent pages; otherwise it returns 1 if pages
 * are absent.
 */
int faultline_odp_map_umem(struct faultline_mr *mr, struct ib_umem_odp *odp,
			   struct faultline_page_list *list, u64 addr, u64 end,
			   bool write, bool fault)
{
	u64 start = addr;
	int absent = 0;

	/* From here on the notifier finds the region and its entries. */
	mutex_lock(&odp->umem_mutex);
	odp->private = mr;
	mutex_unlock(&odp->umem_mutex);
	while (addr < end) {
		u64 first = PAGE_ALIGN_DOWN(addr);
		u64 stop = min(PAGE_ALIGN(end),
			       ALIGN_DOWN(first, FAULTLINE_HUGE_SIZE) +
				       FAULTLINE_HUGE_SIZE);
		unsigned int tries = 0;
		int ret;

		do {
			/* A page fault needs only the first step. */
			if (addr != start && READ_ONCE(mr->detaching))
				return -ESHUTDOWN;
			if (fatal_signal_pending(current))
				return -EINTR;
			if (++tries > FAULTLINE_MAP_TRIES)
				return -EAGAIN;
			ret = faultline_odp_map_chunk(mr, odp, list, first,
						      stop, write, fault);
			/* Faulting in may have used up the time limit. */
		} while (fault && (ret > 0 || ret == -EBUSY));
		if (ret < 0)
			return ret;
		absent |= ret;
		addr = stop;
		cond_resched();
	}
	return absent;
}

/* Does what faultline_odp_map_umem() does, for any on-demand region. */
int faultline_odp_populate(struct faultline_mr *mr,
			   struct faultline_page_list *list, u64 addr, u64 end,
			   bool write, bool fault)
{
	struct ib_umem_odp *odp = to_ib_umem_odp(mr->umem);

	if (write && !mr->umem->writable)
		return -EPERM;
	if (mr->umem->is_dmabuf)
		return faultline_dmabuf_map(mr);
	if (odp->is_implicit_odp)
		return faultline_odp_populate_implicit(mr, list, addr, end,
						       write, fault);
	return faultline_odp_map_umem(mr, odp, list, addr, end, write, fault);
}
