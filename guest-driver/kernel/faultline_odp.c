// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Regions on demand: page faults of the device, and MMU notifiers.
 *
 * The device has entries for some pages of a region. Where it has none it
 * raises a fault; a work item has HMM find the pages, and fault in those that are
 * absent as the process itself would. Then it takes the region's umem_mutex,
 * writes the entries if nothing was invalidated meanwhile, and resumes the fault.
 * An invalidation takes the same mutex and removes the entries before it returns.
 * Races that are lost fault again.
 *
 * A region over the whole address space ("implicit") has one key and, for each
 * FAULTLINE_CHILD_SIZE bytes with pages, a child with a notifier. A region of a
 * dma-buf has neither: see faultline_dmabuf.c.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include <rdma/ib_umem_odp.h>

#include "faultline_odp.h"

/* Faults that are served at the same time. */
#define FAULTLINE_FAULT_WORKERS	16
/* As much of that as one user may have, with however many processes. */
#define FAULTLINE_USER_WORKERS	12
/* Prefetches that an address space may have in the queue. */
#define FAULTLINE_MAX_PREFETCHES	4
/*
 * Bytes that a fault brings beyond what it demands: if the message needs them, or
 * if they are there and faults come one behind the other, from so many on.
 */
#define FAULTLINE_FAULT_AHEAD	SZ_1M
#define FAULTLINE_STREAM_AHEAD	SZ_64K
/* Workers of one address space that fault pages in ahead of need. */
#define FAULTLINE_AHEAD_WORKERS	2
/* Less than the device's own patience. */
#define FAULTLINE_FAULT_PATIENCE	(30 * HZ)
/* How often a fault that found no memory is tried again, after 20 ms each. */
#define FAULTLINE_SHORT_OF_MEMORY	10
/* Bytes of an implicit region behind one notifier. */
#define FAULTLINE_CHILD_SHIFT	21
#define FAULTLINE_CHILD_SIZE	BIT_ULL(FAULTLINE_CHILD_SHIFT)
/* Children without pages stay for so long, for pages often come back. */
#define FAULTLINE_CHILD_IDLE	HZ
/* With more of them, each new child releases two. */
#define FAULTLINE_IDLE_CHILDREN	64
#define FAULTLINE_LIST_ENTRIES	(PAGE_SIZE / sizeof(__le64))
/* The device has an entry of that size, too. */
#define FAULTLINE_HUGE_SHIFT	21
#define FAULTLINE_HUGE_SIZE	BIT_ULL(FAULTLINE_HUGE_SHIFT)
/* How often pages may be gone again before their entries are written. */
#define FAULTLINE_LOOKS	8

/* What HMM finds in a range, and a page of entries on their way to the device. */
struct faultline_list {
	__le64 *entries;
	dma_addr_t dma;
	unsigned long *pfns;
	struct list_head free;
};

/* What an implicit region has of one piece of the address space. */
struct faultline_child {
	struct ib_umem_odp *odp;
	/* The rest under the lock of the region's children: who brings pages. */
	unsigned int users;
	/* Among those without pages, or empty. */
	struct list_head idle;
};

/* A fault that has been read from the queue. */
struct faultline_fault {
	struct work_struct work;
	struct faultline_dev *dev;
	/* In the list of what is free, or in that of a share. */
	struct list_head link;
	u64 token;
	u64 va;
	u64 bytes;
	u64 hint;
	u32 key;
	bool write;
};

/* What one user has of the workers. */
struct faultline_odp_user {
	struct list_head link;
	kuid_t uid;
	unsigned int shares;
	/* Faults that are served. */
	unsigned int active;
};

/*
 * What one address space has of the workers. A page may take its time, or never
 * come (of a FUSE file, say): others must not wait for it.
 */
struct faultline_odp_share {
	struct list_head link;
	/* Only compared. NULL: the kernel's. */
	struct mm_struct *mm;
	struct faultline_odp_user *user;
	unsigned int regions;
	/* Faults that are served. */
	unsigned int active;
	/* Of these, answered ones for which pages are faulted in ahead. */
	unsigned int ahead;
	/* Prefetches that are queued. */
	atomic_t prefetches;
	/* Faults that wait, and, if there are any, a place in line. */
	struct list_head waiting;
	struct list_head in_line;
};

struct faultline_odp {
	/* For faults, and nothing else. */
	struct workqueue_struct *wq;
	/* As much as processes like to ask for. */
	struct workqueue_struct *prefetch_wq;
	/* Protects the lists and the shares. Taken in interrupts. */
	spinlock_t lock;
	struct list_head shares;
	struct list_head users;
	/* Shares with faults that wait. */
	struct list_head line;
	/* Faults that are served. */
	unsigned int active;
	struct list_head free_faults;
	struct faultline_fault *faults;
	struct list_head free_lists;
	struct faultline_list lists[FAULTLINE_FAULT_WORKERS];
	wait_queue_head_t list_freed;
	/* Regions by index of their key. */
	struct xarray mrs;
};

/*
 * There is one for each worker that serves a fault. Memory may be short then,
 * so nothing is allocated.
 */
static struct faultline_list *faultline_list_get(struct faultline_odp *odp)
{
	struct faultline_list *list = NULL;

	spin_lock_irq(&odp->lock);
	wait_event_lock_irq(odp->list_freed, !list_empty(&odp->free_lists),
			    odp->lock);
	list = list_first_entry(&odp->free_lists, struct faultline_list, free);
	list_del(&list->free);
	spin_unlock_irq(&odp->lock);
	return list;
}

static void faultline_list_put(struct faultline_odp *odp,
			       struct faultline_list *list)
{
	spin_lock_irq(&odp->lock);
	list_add(&list->free, &odp->free_lists);
	spin_unlock_irq(&odp->lock);
	wake_up(&odp->list_freed);
}

/* For whoever can wait for memory: he must not hold up those that serve faults. */
static int faultline_list_alloc(struct faultline_dev *dev,
				struct faultline_list *list)
{
	list->pfns = kcalloc(FAULTLINE_LIST_ENTRIES, sizeof(*list->pfns),
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

static void faultline_list_free(struct faultline_dev *dev,
				struct faultline_list *list)
{
	if (list->entries)
		dma_free_coherent(&dev->pdev->dev, PAGE_SIZE, list->entries,
				  list->dma);
	kfree(list->pfns);
}

static struct faultline_odp_share *
faultline_odp_share_find(struct faultline_odp *odp, struct mm_struct *mm)
{
	struct faultline_odp_share *share;

	lockdep_assert_held(&odp->lock);
	list_for_each_entry(share, &odp->shares, link)
		if (share->mm == mm)
			return share;
	return NULL;
}

static struct faultline_odp_user *
faultline_odp_user_find(struct faultline_odp *odp, kuid_t uid)
{
	struct faultline_odp_user *user;

	lockdep_assert_held(&odp->lock);
	list_for_each_entry(user, &odp->users, link)
		if (uid_eq(user->uid, uid))
			return user;
	return NULL;
}

/* For one more region of an address space. */
static struct faultline_odp_share *
faultline_odp_share_get(struct faultline_odp *odp, struct mm_struct *mm)
{
	struct faultline_odp_share *share, *fresh;
	struct faultline_odp_user *fresh_user;

	fresh = kzalloc(sizeof(*fresh), GFP_KERNEL);
	fresh_user = kzalloc(sizeof(*fresh_user), GFP_KERNEL);
	if (!fresh || !fresh_user) {
		kfree(fresh);
		kfree(fresh_user);
		return NULL;
	}
	fresh->mm = mm;
	INIT_LIST_HEAD(&fresh->waiting);
	INIT_LIST_HEAD(&fresh->in_line);
	fresh_user->uid = current_uid();
	spin_lock_irq(&odp->lock);
	share = faultline_odp_share_find(odp, mm);
	if (!share) {
		share = fresh;
		fresh = NULL;
		list_add(&share->link, &odp->shares);
		share->user = faultline_odp_user_find(odp, fresh_user->uid);
		if (!share->user) {
			share->user = fresh_user;
			fresh_user = NULL;
			list_add(&share->user->link, &odp->users);
		}
		share->user->shares++;
	}
	share->regions++;
	spin_unlock_irq(&odp->lock);
	kfree(fresh);
	kfree(fresh_user);
	return share;
}

/*
 * A region goes, and no fault of it is served any more. Those that wait find
 * out that it has gone.
 */
static void faultline_odp_share_put(struct faultline_odp *odp,
				    struct faultline_odp_share *share, u32 key)
{
	struct faultline_odp_user *user = share->user;
	struct faultline_fault *fault, *next;

	spin_lock_irq(&odp->lock);
	list_for_each_entry_safe(fault, next, &share->waiting, link) {
		if (fault->key != key)
			continue;
		list_del(&fault->link);
		queue_work(odp->wq, &fault->work);
	}
	if (list_empty(&share->waiting))
		list_del_init(&share->in_line);
	if (--share->regions) {
		share = NULL;
		user = NULL;
	} else {
		list_del(&share->link);
		if (--user->shares)
			user = NULL;
		else
			list_del(&user->link);
	}
	spin_unlock_irq(&odp->lock);
	kfree(share);
	kfree(user);
}

/*
 * As much as nobody has yet: whoever comes first gets half of the workers, the
 * next a half of the others, and so on. So there are some for who comes late,
 * and for other users some in any case.
 */
static bool faultline_odp_may_serve(const struct faultline_odp *odp,
				    const struct faultline_odp_share *share)
{
	lockdep_assert_held(&odp->lock);
	return share->active < FAULTLINE_FAULT_WORKERS - odp->active &&
	       share->user->active < FAULTLINE_USER_WORKERS;
}

/* Whether a fault is served now; else it waits for its turn. */
static bool faultline_odp_begin(struct faultline_odp *odp,
				struct faultline_odp_share *share,
				struct faultline_fault *fault)
{
	bool now;

	spin_lock_irq(&odp->lock);
	now = faultline_odp_may_serve(odp, share);
	if (now) {
		share->active++;
		share->user->active++;
		odp->active++;
	} else {
		list_add_tail(&fault->link, &share->waiting);
		if (list_empty(&share->in_line))
			list_add_tail(&share->in_line, &odp->line);
	}
	spin_unlock_irq(&odp->lock);
	return now;
}

/* A fault has been served: one of each share that may is next. */
static void faultline_odp_end(struct faultline_odp *odp,
			      struct faultline_odp_share *served)
{
	struct faultline_odp_share *share, *next;
	struct faultline_fault *fault;

	spin_lock_irq(&odp->lock);
	served->active--;
	served->user->active--;
	odp->active--;
	list_for_each_entry_safe(share, next, &odp->line, in_line) {
		if (!faultline_odp_may_serve(odp, share))
			continue;
		fault = list_first_entry(&share->waiting,
					 struct faultline_fault, link);
		list_del(&fault->link);
		if (list_empty(&share->waiting))
			list_del_init(&share->in_line);
		queue_work(odp->wq, &fault->work);
	}
	spin_unlock_irq(&odp->lock);
}

static struct faultline_mr *faultline_odp_mr_get(struct faultline_dev *dev,
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

static void faultline_odp_mr_put(struct faultline_mr *mr)
{
	if (refcount_dec_and_test(&mr->users))
		complete(&mr->unused);
}

/* What is at an address of the process stands at this I/O virtual address. */
static u64 faultline_odp_iova(const struct faultline_mr *mr, u64 addr)
{
	return addr - mr->umem->address + mr->ibmr.iova;
}

static unsigned long faultline_odp_child_index(struct ib_umem_odp *odp)
{
	return ib_umem_start(odp) >> FAULTLINE_CHILD_SHIFT;
}

/* A child that has no pages any more, nor a user, is soon released. */
static void faultline_odp_child_idle(struct faultline_mr *mr,
				     struct faultline_child *child)
{
	lockdep_assert_held(&mr->children.xa_lock);
	if (child->users || !list_empty(&child->idle))
		return;
	list_add_tail(&child->idle, &mr->idle_children);
	mr->idle_count++;
	queue_delayed_work(FAULTLINE_COMPAT_UNBOUND_WQ, &mr->reap_children,
			   FAULTLINE_CHILD_IDLE);
}

static bool faultline_odp_invalidate(struct mmu_interval_notifier *mni,
				     const struct mmu_notifier_range *range,
				     unsigned long seq)
{
	struct ib_umem_odp *odp =
		container_of(mni, struct ib_umem_odp, notifier);
	struct faultline_child *child;
	struct faultline_mr *mr;
	u64 start, end;
	u32 removed = 0;

	if (!mmu_notifier_range_blockable(range))
		return false;
	mutex_lock(&odp->umem_mutex);
	mmu_interval_set_seq(mni, seq);
	/* Until a page has been mapped there may be no region yet. */
	mr = odp->private;
	if (!mr)
		goto out;
	start = max_t(u64, ib_umem_start(odp), PAGE_ALIGN_DOWN(range->start));
	/* At the end of a process the range ends at ULONG_MAX. */
	end = PAGE_ALIGN(min_t(u64, ib_umem_end(odp), range->end));
	/*
	 * A partial range removes the whole entry of a huge page; the rest of it
	 * faults again.
	 *
	 * Fails if the key is gone, when the device has no entries of it, and
	 * if the device is dead, when it has stopped all DMA.
	 */
	faultline_tq_invalidate(to_fdev(mr->ibmr.device), mr->ibmr.lkey,
				faultline_odp_iova(mr, start), end - start,
				&removed);
	atomic64_add(removed, &mr->page_invalidations);
	ib_umem_odp_unmap_dma_pages(odp, start, end);
	if (&odp->umem != mr->umem && !odp->npages) {
		xa_lock(&mr->children);
		child = xa_load(&mr->children, faultline_odp_child_index(odp));
		if (child && child->odp == odp)
			faultline_odp_child_idle(mr, child);
		xa_unlock(&mr->children);
	}
out:
	mutex_unlock(&odp->umem_mutex);
	return true;
}

static const struct mmu_interval_notifier_ops faultline_mn_ops = {
	.invalidate = faultline_odp_invalidate,
};

/*
 * Extends a range to the huge page at its beginning, if the process has one there
 * that can be one entry of the device. False if the range stays as it is.
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
	/* Nobody has asked for the rest. */
	range->default_flags = 0;
	return true;
}

/* True if the entries are contiguous and can be one entry of a huge page. */
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

/* Writes the entries of a range; the umem's mutex is held. */
static int faultline_odp_write(struct faultline_mr *mr, u64 start, size_t count,
			       const struct faultline_list *list)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	u64 iova = faultline_odp_iova(mr, start);

	if (faultline_odp_is_huge(mr, list->entries, start, count))
		return faultline_tq_map(dev, mr->ibmr.lkey, iova, 1,
					FAULTLINE_HUGE_SHIFT,
					le64_to_cpu(list->entries[0]), true,
					FAULTLINE_WAIT_POLL);
	return faultline_tq_map(dev, mr->ibmr.lkey, iova, count, PAGE_SHIFT,
				list->dma, false, FAULTLINE_WAIT_POLL);
}

/*
 * Maps what HMM has found for DMA, and writes the device's entries for it; the
 * umem's mutex is held. Returns 1 if a page of [start, stop) is absent, or can't
 * be written and should.
 *
 * What was found is kept apart from what is mapped for DMA, and pages that were not
 * found may be mapped: see faultline_odp_enter(). Also, while munmap() removes
 * pages their range has no mapping of the process any more, and its invalidation
 * is still to come.
 */
static int faultline_odp_enter_range(struct faultline_mr *mr,
				     struct ib_umem_odp *odp,
				     struct faultline_list *list,
				     const struct hmm_range *found, u64 start,
				     u64 stop, bool write)
{
	u64 wanted = FAULTLINE_PTE_READ | (write ? FAULTLINE_PTE_WRITE : 0);
	size_t index = (found->start - ib_umem_start(odp)) >> PAGE_SHIFT;
	size_t count = (found->end - found->start) >> PAGE_SHIFT;
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	bool some = false, less = false;
	size_t i;
	int err;

	for (i = 0; i < count; i++) {
		u64 at = found->start + ((u64)i << PAGE_SHIFT);
		bool demanded = at >= start && at < stop;
		unsigned long pfn = found->hmm_pfns[i];
		u64 entry = faultline_odp_enter(dev, odp, index + i, pfn);

		/* It is there, and can't be mapped for DMA. */
		if (!entry && pfn & HMM_PFN_VALID && demanded)
			return -EFAULT;
		list->entries[i] = cpu_to_le64(entry);
		some |= entry;
		less |= demanded && (entry & wanted) != wanted;
	}
	err = some ? faultline_odp_write(mr, found->start, count, list) : 0;
	return err ?: less;
}

/*
 * Writes the device's entries for the pages that the process has in a range, with
 * `fault` after it has got them, or in the huge page at its beginning. Returns 1 as
 * faultline_odp_enter_range() does.
 */
static int faultline_odp_look(struct faultline_mr *mr, struct ib_umem_odp *odp,
			      struct faultline_list *list, u64 start, u64 stop,
			      bool write, bool fault)
{
	unsigned long patience = msecs_to_jiffies(HMM_RANGE_DEFAULT_TIMEOUT);
	unsigned long give_up = jiffies + patience;
	struct mm_struct *mm = odp->umem.owning_mm;
	struct hmm_range range = {
		.notifier = &odp->notifier,
		.start = start,
		.end = stop,
		.hmm_pfns = list->pfns,
	};
	bool again = true;
	int ret;

	if (fault)
		range.default_flags = HMM_PFN_REQ_FAULT |
				      (write ? HMM_PFN_REQ_WRITE : 0);
	/* A process that ends has no pages any more. */
	if (!mmget_not_zero(mm))
		return -EINVAL;
	do {
		/* This may take long, and none of the driver's locks are held. */
		ret = faultline_hmm_walk(&range);
		if (ret == -EBUSY)
			continue;
		if (ret)
			break;
		ret = -EBUSY;
		mutex_lock(&odp->umem_mutex);
		again = mmu_interval_read_retry(range.notifier,
						range.notifier_seq);
		if (!again && faultline_odp_widen(mr, odp, &range)) {
			/* Another look, once; the first may have taken long. */
			give_up = jiffies + patience;
			again = true;
		}
		if (!again)
			ret = faultline_odp_enter_range(mr, odp, list, &range,
							start, stop, write);
		mutex_unlock(&odp->umem_mutex);
	} while (again && time_before(jiffies, give_up));
	mmput_async(mm);
	return ret;
}

/*
 * Brings pages of one umem and tells the device; `addr` and `end` lie in it.
 * Without `fault` only those that are there anyway: then 1 if there are others.
 */
static int faultline_odp_map(struct faultline_mr *mr, struct ib_umem_odp *odp,
			     struct faultline_list *list, u64 addr, u64 end,
			     bool write, bool fault)
{
	u64 start = addr;
	int less = 0;

	/* From here on there may be pages, even if not all can be mapped. */
	mutex_lock(&odp->umem_mutex);
	odp->private = mr;
	mutex_unlock(&odp->umem_mutex);
	while (addr < end) {
		u64 first = PAGE_ALIGN_DOWN(addr);
		u64 stop = min(PAGE_ALIGN(end),
			       ALIGN_DOWN(first, FAULTLINE_HUGE_SIZE) +
				       FAULTLINE_HUGE_SIZE);
		unsigned int looks = 0;
		int ret;

		do {
			/* What a fault needs is no more than that. */
			if (addr != start && READ_ONCE(mr->going))
				return -ESHUTDOWN;
			if (fatal_signal_pending(current))
				return -EINTR;
			if (++looks > FAULTLINE_LOOKS)
				return -EAGAIN;
			ret = faultline_odp_look(mr, odp, list, first, stop,
						 write, fault);
			/* Getting the pages may have taken all the time. */
		} while (fault && (ret > 0 || ret == -EBUSY));
		if (ret < 0)
			return ret;
		less |= ret;
		addr = stop;
	}
	return less;
}

/* True if a range is memory that the process may read, so that pages can be there. */
static bool faultline_odp_is_memory(struct mm_struct *mm, u64 start, u64 end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	mmap_read_lock(mm);
	for_each_vma_range(vmi, vma, end) {
		if (vma->vm_start > start || !(vma->vm_flags & VM_READ) ||
		    vma->vm_flags & (VM_IO | VM_PFNMAP))
			break;
		start = vma->vm_end;
	}
	mmap_read_unlock(mm);
	return start >= end;
}

/* Whether any of that can be accessed: what is only reserved may be without end. */
static bool faultline_odp_is_accessible(struct mm_struct *mm, u64 start,
					u64 end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;
	bool accessible = false;

	mmap_read_lock(mm);
	for_each_vma_range(vmi, vma, end) {
		accessible = vma->vm_flags & (VM_READ | VM_WRITE);
		if (accessible)
			break;
	}
	mmap_read_unlock(mm);
	return accessible;
}

static void faultline_odp_free_child(struct faultline_child *child)
{
	ib_umem_odp_release(child->odp);
	kfree(child);
}

/* Releases as many of a region's children without pages. */
static void faultline_odp_reap(struct faultline_mr *mr, unsigned int count)
{
	for (; count; count--) {
		struct faultline_child *child;
		struct ib_umem_odp *odp;
		bool unused;

		xa_lock(&mr->children);
		child = list_first_entry_or_null(&mr->idle_children,
						 struct faultline_child, idle);
		if (!child) {
			xa_unlock(&mr->children);
			return;
		}
		list_del_init(&child->idle);
		mr->idle_count--;
		odp = child->odp;
		/* Without a user there can only become less pages. */
		unused = !child->users && !READ_ONCE(odp->npages);
		if (unused)
			__xa_erase(&mr->children,
				   faultline_odp_child_index(odp));
		xa_unlock(&mr->children);
		if (unused) {
			/*
			 * Whatever has been counted, the device keeps no page
			 * behind a notifier that goes. There may be another
			 * child already: then its pages fault again.
			 */
			if (odp->private)
				faultline_tq_invalidate(to_fdev(mr->ibmr.device),
							mr->ibmr.lkey,
							ib_umem_start(odp),
							FAULTLINE_CHILD_SIZE,
							NULL);
			faultline_odp_free_child(child);
		}
		cond_resched();
	}
}

static void faultline_odp_reap_work(struct work_struct *work)
{
	faultline_odp_reap(container_of(to_delayed_work(work),
					struct faultline_mr, reap_children),
			   UINT_MAX);
}

/* The device has no entries any more, and nobody brings pages. */
static void faultline_odp_free_children(struct faultline_mr *mr)
{
	struct faultline_child *child;

	do {
		unsigned long index = 0;

		xa_lock(&mr->children);
		child = xa_find(&mr->children, &index, ULONG_MAX, XA_PRESENT);
		if (child) {
			__xa_erase(&mr->children, index);
			if (!list_empty(&child->idle)) {
				list_del_init(&child->idle);
				mr->idle_count--;
			}
		}
		xa_unlock(&mr->children);
		if (child)
			faultline_odp_free_child(child);
		cond_resched();
	} while (child);
	/* No notifier is there any more that would queue it. */
	cancel_delayed_work_sync(&mr->reap_children);
}

static struct faultline_child *
faultline_odp_new_child(struct faultline_mr *mr, unsigned long index)
{
	struct mm_struct *mm = mr->umem->owning_mm;
	u64 start = (u64)index << FAULTLINE_CHILD_SHIFT;
	struct ib_umem_odp *odp = ERR_PTR(-EFAULT);
	struct faultline_child *child;

	child = kzalloc(sizeof(*child), GFP_KERNEL);
	if (!child)
		return ERR_PTR(-ENOMEM);
	/* A process that ends has no pages any more. */
	if (mmget_not_zero(mm)) {
		/* A peer must not make us allocate for what does not exist. */
		if (faultline_odp_is_accessible(mm, start,
						start + FAULTLINE_CHILD_SIZE))
			odp = ib_umem_odp_alloc_child(to_ib_umem_odp(mr->umem),
						      start,
						      FAULTLINE_CHILD_SIZE,
						      &faultline_mn_ops);
		mmput_async(mm);
	}
	if (IS_ERR(odp)) {
		kfree(child);
		return ERR_CAST(odp);
	}
	child->odp = odp;
	child->users = 1;
	INIT_LIST_HEAD(&child->idle);
	return child;
}

static struct faultline_child *
faultline_odp_find_child(struct faultline_mr *mr, unsigned long index)
{
	struct faultline_child *child;

	xa_lock(&mr->children);
	child = xa_load(&mr->children, index);
	if (child)
		child->users++;
	xa_unlock(&mr->children);
	return child;
}

/* Only for a fault is one made. To be given back. */
static struct faultline_child *faultline_odp_child_get(struct faultline_mr *mr,
						       u64 addr, bool fault)
{
	unsigned long index = addr >> FAULTLINE_CHILD_SHIFT;
	struct faultline_child *child = faultline_odp_find_child(mr, index);
	int err;

	if (child || !fault)
		return child;
	mutex_lock(&mr->children_lock);
	child = faultline_odp_find_child(mr, index);
	if (child)
		goto out;
	child = faultline_odp_new_child(mr, index);
	if (IS_ERR(child))
		goto out;
	err = xa_err(xa_store(&mr->children, index, child, GFP_KERNEL));
	if (err) {
		faultline_odp_free_child(child);
		child = ERR_PTR(err);
	}
out:
	mutex_unlock(&mr->children_lock);
	if (READ_ONCE(mr->idle_count) > FAULTLINE_IDLE_CHILDREN)
		faultline_odp_reap(mr, 2);
	return child;
}

static void faultline_odp_child_put(struct faultline_mr *mr,
				    struct faultline_child *child)
{
	xa_lock(&mr->children);
	child->users--;
	if (!READ_ONCE(child->odp->npages))
		faultline_odp_child_idle(mr, child);
	xa_unlock(&mr->children);
}

/* Brings pages at addresses of the process, as faultline_odp_map() does. */
static int faultline_odp_bring(struct faultline_mr *mr,
			       struct faultline_list *list, u64 addr, u64 end,
			       bool write, bool fault)
{
	struct ib_umem_odp *odp = to_ib_umem_odp(mr->umem);
	struct faultline_child *child;
	u64 first = addr;
	int ret, less = 0;

	if (write && !mr->umem->writable)
		return -EPERM;
	if (mr->umem->is_dmabuf)
		return faultline_dmabuf_bring(mr);
	if (!odp->is_implicit_odp)
		return faultline_odp_map(mr, odp, list, addr, end, write,
					 fault);
	if (end > TASK_SIZE_MAX)
		return -EFAULT;
	while (addr < end) {
		u64 stop = min(end, ALIGN_DOWN(addr, FAULTLINE_CHILD_SIZE) +
					    FAULTLINE_CHILD_SIZE);

		if (addr != first && READ_ONCE(mr->going))
			return -ESHUTDOWN;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		child = faultline_odp_child_get(mr, addr, fault);
		if (IS_ERR(child))
			return PTR_ERR(child);
		ret = 1;
		if (child) {
			ret = faultline_odp_map(mr, child->odp, list, addr,
						stop, write, fault);
			faultline_odp_child_put(mr, child);
		}
		if (ret < 0)
			return ret;
		less |= ret;
		addr = stop;
	}
	return less;
}

/* The range of addresses behind a range of the region. */
static int faultline_odp_range(const struct faultline_mr *mr, u64 iova,
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

/*
 * Whether an error may be gone the next time. Invalidations may win for longer
 * than the core is ready to wait. A fault that finds no memory looks to us like
 * one at an address where nothing is, so that the latter is tried again, too,
 * if there is something.
 */
static bool faultline_odp_may_pass(struct faultline_mr *mr, u64 addr, u64 end,
				   int err, unsigned int *short_of_memory)
{
	switch (err) {
	case -EBUSY:
	case -EAGAIN:
		return true;
	case -EFAULT:
		if (mr->umem->is_dmabuf ||
		    !faultline_odp_is_memory(mr->umem->owning_mm, addr, end))
			return false;
		fallthrough;
	case -ENOMEM:
		if (++*short_of_memory > FAULTLINE_SHORT_OF_MEMORY)
			return false;
		msleep(20);
		return true;
	default:
		return false;
	}
}

/* Brings what a fault demands. */
static int faultline_odp_serve(struct faultline_mr *mr,
			       struct faultline_list *list,
			       const struct faultline_fault *fault)
{
	struct faultline_dev *dev = fault->dev;
	unsigned long give_up = jiffies + FAULTLINE_FAULT_PATIENCE;
	unsigned int short_of_memory = 0;
	u64 addr, end;
	int err;

	err = faultline_odp_range(mr, fault->va, fault->bytes, &addr, &end);
	if (err)
		return err;
	do {
		err = faultline_odp_bring(mr, list, addr, end, fault->write,
					  true);
	} while (faultline_odp_may_pass(mr, addr, end, err,
					&short_of_memory) &&
		 time_before(jiffies, give_up) && !faultline_is_dead(dev));
	return err;
}

/*
 * How far to look beyond a message whose absent pages are at [start, end): the
 * farther, the longer faults have come one behind the other.
 */
static u64 faultline_odp_stream(struct faultline_odp *odp,
				struct faultline_mr *mr, u64 start, u64 end)
{
	u64 window;

	spin_lock_irq(&odp->lock);
	window = mr->stream_window;
	if (start >= mr->stream_start && start <= mr->stream_end)
		window = clamp_t(u64, 2 * window, FAULTLINE_STREAM_AHEAD,
				 FAULTLINE_FAULT_AHEAD);
	else
		window = window > FAULTLINE_STREAM_AHEAD ? window / 2 : 0;
	mr->stream_window = window;
	mr->stream_start = start + PAGE_SIZE;
	mr->stream_end = end + window;
	spin_unlock_irq(&odp->lock);
	return window;
}

/*
 * Writes entries for pages behind those that a fault demands, as far as they are
 * present: this neither waits for pages nor allocates them. True if the message
 * needs pages of [*start, *end) that are absent.
 */
static bool faultline_odp_near(struct faultline_mr *mr,
			       struct faultline_list *list,
			       const struct faultline_fault *fault, u64 *start,
			       u64 *end)
{
	struct faultline_odp *odp = fault->dev->odp;
	u64 hint = min_t(u64, fault->hint, FAULTLINE_FAULT_AHEAD);
	u64 limit, window, addr, demanded;
	bool less;

	/* Of a dma-buf all is there. */
	if (mr->umem->is_dmabuf ||
	    faultline_odp_range(mr, fault->va, fault->bytes, &addr, &demanded))
		return false;
	if (hint <= fault->bytes ||
	    faultline_odp_range(mr, fault->va, hint, &addr, end))
		*end = demanded;
	*start = PAGE_ALIGN(demanded);
	*end = PAGE_ALIGN(*end);
	window = faultline_odp_stream(odp, mr, PAGE_ALIGN_DOWN(addr), *end);
	/* Up to the end of the region's last page, and of addresses. */
	limit = TASK_SIZE_MAX;
	if (mr->ibmr.length < limit - mr->umem->address)
		limit = PAGE_ALIGN(mr->umem->address + mr->ibmr.length);
	*end = min(*end, limit);
	less = *start < *end &&
	       faultline_odp_bring(mr, list, *start, *end, fault->write,
				   false) > 0;
	limit = min(limit, *end + window);
	if (*end < limit)
		faultline_odp_bring(mr, list, *end, limit, false, false);
	return less;
}

/*
 * False if enough workers fault in what messages need next: no fault waits for
 * that, so one worker does it for a region, and few for an address space.
 */
static bool faultline_odp_ahead_begin(struct faultline_odp *odp,
				      struct faultline_mr *mr)
{
	bool begin;

	spin_lock_irq(&odp->lock);
	begin = !mr->ahead && mr->share->ahead < FAULTLINE_AHEAD_WORKERS;
	if (begin) {
		mr->ahead = true;
		mr->share->ahead++;
	}
	spin_unlock_irq(&odp->lock);
	return begin;
}

/*
 * Faults in what a message needs next, while the device goes on. It begins with
 * little, so that the first pages are there soon.
 */
static void faultline_odp_ahead(struct faultline_odp *odp,
				struct faultline_mr *mr,
				struct faultline_list *list, u64 start, u64 end,
				bool write)
{
	u64 step = FAULTLINE_STREAM_AHEAD;

	while (start < end && !READ_ONCE(mr->going)) {
		u64 stop = min(end, start + step);

		if (faultline_odp_bring(mr, list, start, stop, write, true))
			break;
		start = stop;
		step *= 2;
	}
	spin_lock_irq(&odp->lock);
	mr->ahead = false;
	mr->share->ahead--;
	spin_unlock_irq(&odp->lock);
}

/* Gives a fault's memory back, for the next one. */
static void faultline_fault_free(struct faultline_fault *fault)
{
	struct faultline_odp *odp = fault->dev->odp;

	spin_lock_irq(&odp->lock);
	list_add(&fault->link, &odp->free_faults);
	spin_unlock_irq(&odp->lock);
}

static void faultline_fault_work(struct work_struct *work)
{
	struct faultline_fault *fault =
		container_of(work, struct faultline_fault, work);
	struct faultline_dev *dev = fault->dev;
	struct faultline_odp *odp = dev->odp;
	struct faultline_mr *mr = faultline_odp_mr_get(dev, fault->key);
	struct faultline_list *list;
	u64 token = fault->token;
	u64 start, end;
	int err;

	/*
	 * The region may have gone while its fault was on the way: then the
	 * answer is refused, and the fault has gone with it.
	 */
	if (!mr) {
		faultline_fault_free(fault);
		faultline_tq_resume(dev, token, FAULTLINE_BAD_MKEY,
				    FAULTLINE_WAIT_POLL);
		return;
	}
	if (!faultline_odp_begin(odp, mr->share, fault)) {
		faultline_odp_mr_put(mr);
		return;
	}
	list = faultline_list_get(odp);
	err = faultline_odp_serve(mr, list, fault);
	atomic64_inc(&mr->page_faults);
	if (!err)
		atomic64_inc(&mr->page_faults_handled);
	if (!err && faultline_odp_near(mr, list, fault, &start, &end) &&
	    faultline_odp_ahead_begin(odp, mr)) {
		/*
		 * The fault's memory stays in use: a work item that is queued
		 * again waits for the end of this call.
		 */
		faultline_tq_resume(dev, token, FAULTLINE_OK,
				    FAULTLINE_WAIT_POLL);
		faultline_odp_ahead(odp, mr, list, start, end, fault->write);
		faultline_fault_free(fault);
	} else {
		/*
		 * Before the answer: as soon as it has that, the device may
		 * raise another one, and there are not many more of these than
		 * it may raise.
		 */
		faultline_fault_free(fault);
		faultline_tq_resume(dev, token,
				    err ? FAULTLINE_BAD_RANGE : FAULTLINE_OK,
				    FAULTLINE_WAIT_POLL);
	}
	faultline_list_put(odp, list);
	/* The share goes with its last region. */
	faultline_odp_end(odp, mr->share);
	faultline_odp_mr_put(mr);
}

/* A fault that is not served. */
struct faultline_refusal {
	struct work_struct work;
	struct faultline_dev *dev;
	u64 token;
};

static void faultline_refuse_work(struct work_struct *work)
{
	struct faultline_refusal *refusal =
		container_of(work, struct faultline_refusal, work);

	faultline_tq_resume(refusal->dev, refusal->token,
			    FAULTLINE_NO_RESOURCES, FAULTLINE_WAIT_POLL);
	kfree(refusal);
}

/* An answer that is not given the device does without, after a time. */
static void faultline_odp_refuse(struct faultline_dev *dev, u64 token)
{
	struct faultline_refusal *refusal =
		kmalloc(sizeof(*refusal), GFP_ATOMIC);

	if (!refusal)
		return;
	INIT_WORK(&refusal->work, faultline_refuse_work);
	refusal->dev = dev;
	refusal->token = token;
	queue_work(dev->wq, &refusal->work);
}

/* In interrupt context. */
void faultline_odp_fault(struct faultline_dev *dev,
			 const struct faultline_eqe *eqe)
{
	struct faultline_odp *odp = dev->odp;
	struct faultline_fault *fault = NULL;
	unsigned long flags;

	if (odp) {
		spin_lock_irqsave(&odp->lock, flags);
		fault = list_first_entry_or_null(&odp->free_faults,
						 struct faultline_fault, link);
		if (fault)
			list_del(&fault->link);
		spin_unlock_irqrestore(&odp->lock, flags);
	}
	if (!fault) {
		/* Far more than the device says that it raises at once. */
		faultline_odp_refuse(dev, le64_to_cpu(eqe->token));
		return;
	}
	fault->token = le64_to_cpu(eqe->token);
	fault->va = le64_to_cpu(eqe->va);
	fault->bytes = le32_to_cpu(eqe->bytes);
	fault->hint = le64_to_cpu(eqe->hint_bytes);
	fault->key = le32_to_cpu(eqe->key);
	fault->write = le32_to_cpu(eqe->fault_flags) & FAULTLINE_FAULT_WRITE;
	queue_work(odp->wq, &fault->work);
}

/*
 * Lets go of memory that the device has no entries of. Without a region: of
 * memory that was never attached to one.
 */
void faultline_odp_release(struct faultline_mr *mr, struct ib_umem *umem)
{
	bool is_implicit = !umem->is_dmabuf &&
			   to_ib_umem_odp(umem)->is_implicit_odp;
	struct mm_struct *mm = umem->owning_mm;

	if (mr)
		faultline_odp_free_children(mr);
	if (umem->is_dmabuf)
		ib_umem_release(umem);
	else
		ib_umem_odp_release(to_ib_umem_odp(umem));
	if (is_implicit)
		mmdrop(mm);
}

/* What every region has that may become one on demand. */
void faultline_odp_init(struct faultline_mr *mr)
{
	xa_init(&mr->children);
	INIT_LIST_HEAD(&mr->idle_children);
	mutex_init(&mr->children_lock);
	INIT_DELAYED_WORK(&mr->reap_children, faultline_odp_reap_work);
}

/* Memory for a region on demand, of which no page is looked at yet. */
struct ib_umem *faultline_odp_umem(struct ib_device *ibdev, u64 start,
				   u64 length, u64 iova, int access)
{
	struct ib_umem_odp *odp;
	bool implicit;

	/* The offset within a page is the same on both sides. */
	if ((start ^ iova) & ~PAGE_MASK)
		return ERR_PTR(-EINVAL);
	/*
	 * Huge pages are found wherever they are. The core would take nothing
	 * else then.
	 */
	access &= ~IB_ACCESS_HUGETLB;
	implicit = !start && length == U64_MAX;
	if (implicit && iova)
		return ERR_PTR(-EINVAL);
	odp = implicit ? ib_umem_odp_alloc_implicit(ibdev, access) :
			 ib_umem_odp_get(ibdev, start, length, access,
					 &faultline_mn_ops);
	if (IS_ERR(odp))
		return ERR_CAST(odp);
	/*
	 * A notifier keeps the address space. Where there is none yet, it may
	 * end before the region does, which a child process can inherit.
	 */
	if (odp->is_implicit_odp)
		mmgrab(odp->umem.owning_mm);
	return &odp->umem;
}

/* No fault is served after this, and the device has no pages any more. */
void faultline_odp_detach(struct faultline_mr *mr)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);

	xa_erase(&dev->odp->mrs, mr->ibmr.lkey >> 8);
	WRITE_ONCE(mr->going, true);
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
 * The region's key exists: from here on faults find it. Also after a change that
 * was refused, when children may be there.
 */
int faultline_odp_attach(struct faultline_mr *mr)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	struct ib_umem_odp *odp = to_ib_umem_odp(mr->umem);
	u64 start = mr->umem->address;
	struct faultline_list list;
	int err;

	refcount_set(&mr->users, 1);
	init_completion(&mr->unused);
	mr->going = false;
	/* A dma-buf is nobody's memory: it counts for who registers it. */
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
		/* Better now than when a peer wants it. */
		err = faultline_dmabuf_bring(mr);
		if (err)
			faultline_odp_detach(mr);
		return err;
	}
	/* What is there need not fault. */
	if (odp->is_implicit_odp || faultline_list_alloc(dev, &list))
		return 0;
	faultline_odp_bring(mr, &list, start, start + mr->ibmr.length,
			    mr->umem->writable, false);
	faultline_list_free(dev, &list);
	return 0;
}

/* A region that a prefetch may look at. */
static struct faultline_mr *
faultline_prefetchable(struct ib_pd *pd, enum ib_uverbs_advise_mr_advice advice,
		       u32 lkey)
{
	struct faultline_mr *mr = faultline_odp_mr_get(to_fdev(pd->device),
						       lkey);

	if (!mr)
		return ERR_PTR(-ENOENT);
	if (mr->ibmr.pd != pd ||
	    (advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
	     !mr->umem->writable)) {
		faultline_odp_mr_put(mr);
		return ERR_PTR(-EPERM);
	}
	return mr;
}

struct faultline_prefetch {
	struct work_struct work;
	struct faultline_dev *dev;
	/* While it is queued; it goes after the region. */
	struct faultline_odp_share *share;
	struct faultline_list list;
	enum ib_uverbs_advise_mr_advice advice;
	u32 count;
	struct {
		struct faultline_mr *mr;
		u64 addr;
		u64 end;
	} parts[] __counted_by(count);
};

static int faultline_prefetch_run(struct faultline_prefetch *prefetch)
{
	bool write = prefetch->advice ==
		     IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	bool fault = prefetch->advice !=
		     IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	int err = 0;
	u32 i;

	for (i = 0; i < prefetch->count && err >= 0; i++) {
		struct faultline_mr *mr = prefetch->parts[i].mr;

		err = faultline_odp_bring(mr, &prefetch->list,
					  prefetch->parts[i].addr,
					  prefetch->parts[i].end, write, fault);
		atomic64_inc(&mr->page_prefetch);
		/* Who deregisters a region waits for us: the first has the share. */
		if (READ_ONCE(prefetch->parts[0].mr->going))
			break;
		if (i) {
			prefetch->parts[i].mr = NULL;
			faultline_odp_mr_put(mr);
		}
	}
	return min(err, 0);
}

static void faultline_prefetch_free(struct faultline_prefetch *prefetch)
{
	u32 i;

	if (prefetch->share)
		atomic_dec(&prefetch->share->prefetches);
	for (i = 0; i < prefetch->count; i++)
		if (prefetch->parts[i].mr)
			faultline_odp_mr_put(prefetch->parts[i].mr);
	faultline_list_free(prefetch->dev, &prefetch->list);
	kvfree(prefetch);
}

static void faultline_prefetch_work(struct work_struct *work)
{
	struct faultline_prefetch *prefetch =
		container_of(work, struct faultline_prefetch, work);

	faultline_prefetch_run(prefetch);
	faultline_prefetch_free(prefetch);
}

/*
 * False: whoever asks has so much in the queue that he shall do it himself. Pages
 * that never come must not take all workers.
 */
static bool faultline_prefetch_queue(struct faultline_prefetch *prefetch)
{
	struct faultline_odp_share *share;

	if (!prefetch->count)
		return false;
	share = prefetch->parts[0].mr->share;
	if (atomic_inc_return(&share->prefetches) > FAULTLINE_MAX_PREFETCHES) {
		atomic_dec(&share->prefetches);
		return false;
	}
	prefetch->share = share;
	queue_work(prefetch->dev->odp->prefetch_wq, &prefetch->work);
	return true;
}

int faultline_advise_mr(struct ib_pd *pd,
			enum ib_uverbs_advise_mr_advice advice, u32 flags,
			struct ib_sge *sg_list, u32 num_sge,
			struct uverbs_attr_bundle *attrs)
{
	struct faultline_dev *dev = to_fdev(pd->device);
	struct faultline_prefetch *prefetch;
	int err = 0;
	u32 i;

	if (!dev->odp ||
	    (advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH &&
	     advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
	     advice != IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT))
		return -EOPNOTSUPP;
	if (flags & ~IB_UVERBS_ADVISE_MR_FLAG_FLUSH)
		return -EOPNOTSUPP;
	prefetch = kvzalloc(struct_size(prefetch, parts, num_sge),
			    GFP_KERNEL_ACCOUNT);
	if (!prefetch)
		return -ENOMEM;
	prefetch->dev = dev;
	prefetch->advice = advice;
	prefetch->count = num_sge;
	INIT_WORK(&prefetch->work, faultline_prefetch_work);
	err = faultline_list_alloc(dev, &prefetch->list);
	if (err)
		goto free;
	for (i = 0; i < num_sge; i++) {
		const struct ib_sge *sge = &sg_list[i];
		struct faultline_mr *mr;
		u64 iova;

		mr = faultline_prefetchable(pd, advice, sge->lkey);
		if (IS_ERR(mr)) {
			err = PTR_ERR(mr);
			goto free;
		}
		prefetch->parts[i].mr = mr;
		iova = sge->addr;
		if (mr->access & IB_ZERO_BASED)
			iova += mr->ibmr.iova;
		err = faultline_odp_range(mr, iova, sge->length,
					  &prefetch->parts[i].addr,
					  &prefetch->parts[i].end);
		if (err)
			goto free;
	}
	if (!(flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH) &&
	    faultline_prefetch_queue(prefetch))
		return 0;
	err = faultline_prefetch_run(prefetch);
	/* Of what is queued nobody hears. */
	if (!(flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH))
		err = 0;
free:
	faultline_prefetch_free(prefetch);
	return err;
}

int faultline_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr)
{
	struct faultline_mr *mr = to_fmr(ibmr);
	struct nlattr *table;

	if (!mr->on_demand)
		return 0;
	table = nla_nest_start(msg, RDMA_NLDEV_ATTR_STAT_HWCOUNTERS);
	if (!table)
		return -EMSGSIZE;
	if (rdma_nl_stat_hwcounter_entry(msg, "page_faults",
					 atomic64_read(&mr->page_faults)) ||
	    rdma_nl_stat_hwcounter_entry(msg, "page_faults_handled",
					 atomic64_read(&mr->page_faults_handled)) ||
	    rdma_nl_stat_hwcounter_entry(msg, "page_invalidations",
					 atomic64_read(&mr->page_invalidations)) ||
	    rdma_nl_stat_hwcounter_entry(msg, "page_prefetch",
					 atomic64_read(&mr->page_prefetch))) {
		nla_nest_cancel(msg, table);
		return -EMSGSIZE;
	}
	nla_nest_end(msg, table);
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
	if (odp->wq)
		destroy_workqueue(odp->wq);
	for (i = 0; i < FAULTLINE_FAULT_WORKERS; i++)
		faultline_list_free(dev, &odp->lists[i]);
	xa_destroy(&odp->mrs);
	kvfree(odp->faults);
	kfree(odp);
}

/* Nothing raises faults any more. */
void faultline_odp_destroy(struct faultline_dev *dev)
{
	if (dev->odp)
		faultline_odp_free(dev, dev->odp);
	dev->odp = NULL;
}

/* Before the queue of faults is made. A device without paging is fine. */
int faultline_odp_create(struct faultline_dev *dev)
{
	/*
	 * Twice what may be outstanding: those of a key that goes are over for
	 * the device, and still queued here. Each worker may keep one that is
	 * answered.
	 */
	u32 max_faults = 2 * le32_to_cpu(dev->caps.max_faults) +
			 FAULTLINE_FAULT_WORKERS;
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
	INIT_LIST_HEAD(&odp->line);
	init_waitqueue_head(&odp->list_freed);
	xa_init(&odp->mrs);
	/* Reclaim may wait for pages that wait for us. */
	odp->wq = alloc_workqueue("%s-odp-%s", WQ_HIGHPRI | WQ_UNBOUND |
				  WQ_MEM_RECLAIM, FAULTLINE_FAULT_WORKERS,
				  FAULTLINE_DRV_NAME, pci_name(dev->pdev));
	odp->prefetch_wq = alloc_workqueue("%s-prefetch-%s", WQ_UNBOUND, 0,
					   FAULTLINE_DRV_NAME,
					   pci_name(dev->pdev));
	odp->faults = kvcalloc(max_faults, sizeof(*odp->faults), GFP_KERNEL);
	if (!odp->wq || !odp->prefetch_wq || !odp->faults)
		goto nomem;
	for (i = 0; i < max_faults; i++) {
		struct faultline_fault *fault = &odp->faults[i];

		fault->dev = dev;
		INIT_WORK(&fault->work, faultline_fault_work);
		list_add(&fault->link, &odp->free_faults);
	}
	for (i = 0; i < FAULTLINE_FAULT_WORKERS; i++) {
		struct faultline_list *list = &odp->lists[i];

		if (faultline_list_alloc(dev, list))
			goto nomem;
		list_add(&list->free, &odp->free_lists);
	}
	dev->odp = odp;
	return 0;

nomem:
	faultline_odp_free(dev, odp);
	return -ENOMEM;
}
