// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Implicit on-demand regions
 *
 * An implicit region covers the whole address space with one key. It has a
 * child for each FAULTLINE_CHILD_SIZE bytes that have pages: an umem with a
 * notifier of its own. A page fault creates the child if the process can
 * access any of its addresses. A child without pages and without users is
 * released after a second (pages often come back), or earlier if there are
 * many.
 *
 * Locking, outermost first:
 *
 * - faultline_mr.children_lock serializes the creation of children. The
 *   mmap_lock is taken under it.
 * - The umem_mutex of a child. The notifier takes the next lock under it.
 * - The lock of the array faultline_mr.children (never taken in interrupts)
 *   protects the array, idle_children, idle_count, and `users` and `idle` of
 *   each child.
 *
 * A child in use (`users`) is not released. Only users add pages to a child,
 * so a child without users whose npages is zero stays without pages.
 *
 * Children are created by page faults and by prefetches, and released by a
 * work item on a system workqueue, by the creation of others, or with the
 * region.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "faultline_odp.h"

/* Bytes of a child. */
#define FAULTLINE_CHILD_SHIFT	21
#define FAULTLINE_CHILD_SIZE	BIT_ULL(FAULTLINE_CHILD_SHIFT)
/* Delay before a child without pages is released. */
#define FAULTLINE_CHILD_IDLE	HZ
/* If more children have no pages, each new child releases two of them. */
#define FAULTLINE_IDLE_CHILDREN	64

struct faultline_child {
	struct ib_umem_odp *odp;
	/* Number of calls that map pages of it. */
	unsigned int users;
	/* In faultline_mr.idle_children, or empty. */
	struct list_head idle;
};

static unsigned long faultline_odp_child_index(struct ib_umem_odp *odp)
{
	return ib_umem_start(odp) >> FAULTLINE_CHILD_SHIFT;
}

/* Schedules the release of a child if it has no user; it has no pages. */
static void faultline_odp_child_idle(struct faultline_mr *mr,
				     struct faultline_child *child)
{
	lockdep_assert_held(&mr->children.xa_lock);
	if (child->users || !list_empty(&child->idle))
		return;
	list_add_tail(&child->idle, &mr->idle_children);
	mr->idle_count++;
	queue_delayed_work(FAULTLINE_UNBOUND_WQ, &mr->reap_children,
			   FAULTLINE_CHILD_IDLE);
}

/* A notifier has removed pages of a child; the child's umem_mutex is held. */
void faultline_odp_child_emptied(struct faultline_mr *mr,
				 struct ib_umem_odp *odp)
{
	struct faultline_child *child;

	xa_lock(&mr->children);
	child = xa_load(&mr->children, faultline_odp_child_index(odp));
	if (child && child->odp == odp)
		faultline_odp_child_idle(mr, child);
	xa_unlock(&mr->children);
}

/*
 * Returns true if the process can access a part of the range. Reserved ranges,
 * which can be huge, need no child.
 */
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

/* Releases up to `count` children without pages and users. */
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
		/* Only users add pages, so without one npages cannot grow. */
		unused = !child->users && !READ_ONCE(odp->npages);
		if (unused)
			__xa_erase(&mr->children,
				   faultline_odp_child_index(odp));
		xa_unlock(&mr->children);
		if (unused) {
			/*
			 * The device must keep no entry of a range that has
			 * no notifier, whatever npages says. If the range has
			 * a new child already, its pages fault again.
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

/*
 * Releases all children. The device has no entries of the region any more, and
 * none of its pages are being mapped.
 */
void faultline_odp_free_children(struct faultline_mr *mr)
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
	/* No notifier is left that could queue the work item. */
	disable_delayed_work_sync(&mr->reap_children);
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
	/* A process that has ended has no pages any more. */
	if (mmget_not_zero(mm)) {
		/* A peer must not cause allocations for unmapped addresses. */
		if (faultline_odp_is_accessible(mm, start,
						start + FAULTLINE_CHILD_SIZE))
			odp = ib_umem_odp_alloc_child(to_ib_umem_odp(mr->umem),
						      start,
						      FAULTLINE_CHILD_SIZE,
						      &faultline_odp_mn_ops);
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

/*
 * Returns the child of an address, in use until faultline_odp_child_put().
 * Creates it if `fault` is set; otherwise returns NULL if there is none.
 */
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

/* Does what faultline_odp_map_umem() does, for an implicit region. */
int faultline_odp_populate_implicit(struct faultline_mr *mr,
				    struct faultline_page_list *list, u64 addr,
				    u64 end, bool write, bool fault)
{
	struct faultline_child *child;
	u64 first = addr;
	int ret, absent = 0;

	if (end > TASK_SIZE_MAX)
		return -EFAULT;
	while (addr < end) {
		u64 stop = min(end, ALIGN_DOWN(addr, FAULTLINE_CHILD_SIZE) +
					    FAULTLINE_CHILD_SIZE);

		if (addr != first && READ_ONCE(mr->detaching))
			return -ESHUTDOWN;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		child = faultline_odp_child_get(mr, addr, fault);
		if (IS_ERR(child))
			return PTR_ERR(child);
		ret = 1;
		if (child) {
			ret = faultline_odp_map_umem(mr, child->odp, list, addr,
						     stop, write, fault);
			faultline_odp_child_put(mr, child);
		}
		if (ret < 0)
			return ret;
		absent |= ret;
		addr = stop;
	}
	return absent;
}

void faultline_odp_init_implicit(struct faultline_mr *mr)
{
	xa_init(&mr->children);
	INIT_LIST_HEAD(&mr->idle_children);
	mutex_init(&mr->children_lock);
	INIT_DELAYED_WORK(&mr->reap_children, faultline_odp_reap_work);
}
