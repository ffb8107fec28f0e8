// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Page faults of the device
 *
 * The device raises a page fault when an access to an on-demand region finds
 * no entry. The interrupt of the fault event queue copies the event and queues
 * a work item. The work item gets the pages and sends MAP, which writes the
 * device's entries, and RESUME, which answers the fault, with one doorbell: the
 * device executes both in order. If it refuses MAP, the access faults again.
 *
 * After the answer the work item maps pages behind the demanded ones, as far as
 * they are present, and faults in absent pages that the same message needs
 * next.
 *
 * Faults that get no answer end after the device's own fault timeout, 60 s.
 *
 * Locking: faultline_odp.lock (taken in interrupts) protects the list of free
 * faults, `readahead_*` and `prefaulting` of each region, and `prefaulting` of
 * each share. A reference on the region (faultline_odp_mr_get()) keeps the
 * region and its share while a fault is served; detaching waits for it. No
 * lock is held during HMM walks or waits for the device.
 *
 * faultline_odp_fault() runs in interrupt context, everything else in workers
 * of faultline_odp.wq. Memory reclaim can wait for a page fault of the device,
 * so that workqueue has WQ_MEM_RECLAIM, and faults and page lists are
 * preallocated.
 */
#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "faultline_trace.h"

/*
 * Maximum number of bytes to map beyond the demanded ones for the message, and
 * beyond the message for sequential faults. Readahead for sequential faults
 * starts with FAULTLINE_READAHEAD_MIN bytes.
 */
#define FAULTLINE_READAHEAD_MAX	SZ_1M
#define FAULTLINE_READAHEAD_MIN	SZ_64K
/* Sequential faults without readahead after one that has found no page. */
#define FAULTLINE_READAHEAD_PAUSE	16
/* Workers of one address space that fault in pages after the answer. */
#define FAULTLINE_PREFAULT_WORKERS	2
/* Must be shorter than the device's fault timeout (60 s). */
#define FAULTLINE_FAULT_TIMEOUT	(30 * HZ)
/* Retries of a fault for which no memory was available, 20 ms apart. */
#define FAULTLINE_NOMEM_RETRIES	10

/*
 * Returns true if the process may read the whole range, so that its pages can
 * exist.
 */
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

/*
 * Returns true if the fault may succeed when it is tried again. HMM returns
 * -EFAULT both if the kernel has no memory for the page and if the process has
 * no memory at the address. So -EFAULT is retried where the process has
 * memory.
 */
static bool faultline_odp_should_retry(struct faultline_mr *mr, u64 addr,
				       u64 end, int err, unsigned int *nomem)
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
		if (++*nomem > FAULTLINE_NOMEM_RETRIES)
			return false;
		msleep(20);
		return true;
	default:
		return false;
	}
}

/*
 * Returns true if a fault may be answered together with the last MAP, before
 * the device has executed it; then the caller ends with clear_bit_unlock().
 * Otherwise the answer waits for MAP: the access and a refusal of MAP could
 * follow each other without end. So that no worker misses the refusal that
 * another one is about to read, one fault of a page at a time is answered
 * early; `bit` is that of the page.
 */
static bool faultline_odp_answers_early(struct faultline_mr *mr,
					unsigned int bit)
{
	if (test_and_set_bit_lock(bit, mr->early_answers))
		return false;
	if (!READ_ONCE(mr->map_refused))
		return true;
	clear_bit_unlock(bit, mr->early_answers);
	return false;
}

/* Maps the pages that a fault demands, and may answer it. */
static int faultline_odp_serve(struct faultline_mr *mr,
			       struct faultline_page_list *list,
			       struct faultline_fault *fault)
{
	unsigned int bit = hash_64(fault->va >> PAGE_SHIFT,
				   FAULTLINE_LOG_EARLY_ANSWERS);
	struct faultline_dev *dev = fault->dev;
	unsigned long deadline = jiffies + FAULTLINE_FAULT_TIMEOUT;
	unsigned int nomem = 0;
	u64 addr, end;
	int err;

	err = faultline_odp_range(mr, fault->va, fault->bytes, &addr, &end);
	if (err)
		return err;
	if (faultline_odp_answers_early(mr, bit))
		list->fault = fault;
	list->fault_end = end;
	do {
		err = faultline_odp_populate(mr, list, addr, end, fault->write,
					     true);
	} while (faultline_odp_should_retry(mr, addr, end, err, &nomem) &&
		 time_before(jiffies, deadline) && !faultline_is_dead(dev));
	if (list->fault)
		clear_bit_unlock(bit, mr->early_answers);
	list->fault = NULL;
	return err;
}

/*
 * Returns the number of bytes to map beyond a message whose absent pages are
 * [start, end). Sequential faults double the number, other faults halve it.
 */
static u64 faultline_odp_readahead(struct faultline_odp *odp,
				   struct faultline_mr *mr, u64 start, u64 end)
{
	u64 window;

	spin_lock_irq(&odp->lock);
	window = mr->readahead_window;
	if (start < mr->readahead_start || start > mr->readahead_end)
		window = window > FAULTLINE_READAHEAD_MIN ? window / 2 : 0;
	else if (mr->readahead_pause)
		mr->readahead_pause--;
	else
		window = clamp_t(u64, 2 * window, FAULTLINE_READAHEAD_MIN,
				 FAULTLINE_READAHEAD_MAX);
	mr->readahead_window = window;
	mr->readahead_start = start + PAGE_SIZE;
	mr->readahead_end = end + window;
	spin_unlock_irq(&odp->lock);
	return window;
}

/*
 * No page beyond the message was present: memory that is new to the process is
 * touched in order. Do without a window for some faults.
 */
static void faultline_odp_readahead_failed(struct faultline_odp *odp,
					   struct faultline_mr *mr)
{
	spin_lock_irq(&odp->lock);
	mr->readahead_window = 0;
	mr->readahead_pause = FAULTLINE_READAHEAD_PAUSE;
	spin_unlock_irq(&odp->lock);
}

/*
 * Writes entries for present pages behind those that a fault demands. Neither
 * waits for pages nor allocates them. Returns true if the message needs absent
 * pages of [*start, *end).
 */
static bool faultline_odp_fault_around(struct faultline_mr *mr,
				       struct faultline_page_list *list,
				       const struct faultline_fault *fault,
				       u64 *start, u64 *end)
{
	struct faultline_odp *odp = fault->dev->odp;
	u64 hint = min_t(u64, fault->hint, FAULTLINE_READAHEAD_MAX);
	u64 limit, window, addr, demanded;
	bool absent;

	/* A dma-buf is always mapped completely. */
	if (mr->umem->is_dmabuf ||
	    faultline_odp_range(mr, fault->va, fault->bytes, &addr, &demanded))
		return false;
	if (hint <= fault->bytes ||
	    faultline_odp_range(mr, fault->va, hint, &addr, end))
		*end = demanded;
	*start = PAGE_ALIGN(demanded);
	*end = PAGE_ALIGN(*end);
	window = faultline_odp_readahead(odp, mr, PAGE_ALIGN_DOWN(addr), *end);
	/* Not beyond the region's last page or the address space. */
	limit = TASK_SIZE_MAX;
	if (mr->ibmr.length < limit - mr->umem->address)
		limit = PAGE_ALIGN(mr->umem->address + mr->ibmr.length);
	*end = min(*end, limit);
	absent = *start < *end &&
		 faultline_odp_populate(mr, list, *start, *end, fault->write,
					false) > 0;
	limit = min(limit, *end + window);
	if (*end < limit) {
		list->has_found = false;
		faultline_odp_populate(mr, list, *end, limit, false, false);
		if (!list->has_found)
			faultline_odp_readahead_failed(odp, mr);
	}
	return absent;
}

/*
 * Returns true if this worker may fault in pages after the answer: one worker
 * for a region, few for an address space, since no fault waits for these
 * pages.
 */
static bool faultline_odp_prefault_begin(struct faultline_odp *odp,
					 struct faultline_mr *mr)
{
	bool begin;

	spin_lock_irq(&odp->lock);
	begin = !mr->prefaulting &&
		mr->share->prefaulting < FAULTLINE_PREFAULT_WORKERS;
	if (begin) {
		mr->prefaulting = true;
		mr->share->prefaulting++;
	}
	spin_unlock_irq(&odp->lock);
	return begin;
}

/*
 * Faults in the pages that the message needs next, while the device continues.
 * The first steps are small, so that the first pages are present soon.
 */
static void faultline_odp_prefault(struct faultline_odp *odp,
				   struct faultline_mr *mr,
				   struct faultline_page_list *list, u64 start,
				   u64 end, bool write)
{
	u64 step = FAULTLINE_READAHEAD_MIN;

	while (start < end && !READ_ONCE(mr->detaching)) {
		u64 stop = min(end, start + step);

		if (faultline_odp_populate(mr, list, start, stop, write, true))
			break;
		start = stop;
		step *= 2;
	}
	spin_lock_irq(&odp->lock);
	mr->prefaulting = false;
	mr->share->prefaulting--;
	spin_unlock_irq(&odp->lock);
}

/*
 * Maps pages that the device will probably need next: no access waits for them.
 */
static void faultline_odp_read_ahead(struct faultline_mr *mr,
				     struct faultline_page_list *list,
				     const struct faultline_fault *fault)
{
	struct faultline_odp *odp = fault->dev->odp;
	u64 start, end;

	if (faultline_odp_fault_around(mr, list, fault, &start, &end) &&
	    faultline_odp_prefault_begin(odp, mr))
		faultline_odp_prefault(odp, mr, list, start, end, fault->write);
}

static void faultline_fault_free(struct faultline_fault *fault)
{
	struct faultline_odp *odp = fault->dev->odp;

	spin_lock_irq(&odp->lock);
	list_add(&fault->link, &odp->free_faults);
	spin_unlock_irq(&odp->lock);
}

/* The device takes at most 32 bits. */
static u32 faultline_duration(u64 from, u64 to)
{
	return min_t(u64, to - from, U32_MAX);
}

/*
 * Measures the parts of the service of a fault, whose answer is posted next,
 * and adds them to the statistics. `mr` may be NULL.
 */
static void faultline_fault_measure(struct faultline_dev *dev,
				    struct faultline_mr *mr, u64 read,
				    u64 begin, u64 mapped,
				    struct faultline_fault_times *times)
{
	u64 posted = ktime_get_ns();

	times->wait_ns = faultline_duration(read, begin);
	times->map_ns = faultline_duration(begin, mapped);
	times->post_ns = faultline_duration(mapped, posted);
	if (mr)
		faultline_stats_fault(dev, mr, posted - read, begin - read,
				      mapped - begin);
}

/* Answers a fault of no region with an error. */
static void faultline_fault_refuse(struct faultline_dev *dev, u64 token,
				   u16 status, u64 read)
{
	struct faultline_fault_times times;
	struct faultline_tq_cmd answer;
	u64 now = ktime_get_ns();

	faultline_fault_measure(dev, NULL, read, now, now, &times);
	answer = faultline_tq_resume_cmd(dev, token, status, &times);
	faultline_tq_resume(dev, &answer);
}

/*
 * Returns the answer of a fault, which the caller sends at once, and accounts
 * for the fault: after the answer a peer's request may complete, and its
 * process may read the counters.
 */
struct faultline_tq_cmd faultline_fault_answer(struct faultline_mr *mr,
					       struct faultline_fault *fault,
					       int err)
{
	struct faultline_fault_times times;
	u64 mapped = ktime_get_ns();

	fault->is_answered = true;
	trace_faultline_serve(fault->dev, fault, err);
	atomic64_inc(&mr->page_faults);
	if (!err)
		atomic64_inc(&mr->page_faults_handled);
	faultline_fault_measure(fault->dev, mr, fault->read_ns, fault->begin_ns,
				mapped, &times);
	return faultline_tq_resume_cmd(fault->dev, fault->token,
				       err ? FAULTLINE_BAD_RANGE : FAULTLINE_OK,
				       &times);
}

/* Maps the pages of a fault and answers it. Returns 0 if they are mapped. */
static int faultline_fault_serve(struct faultline_mr *mr,
				 struct faultline_page_list *list,
				 struct faultline_fault *fault)
{
	struct faultline_tq_cmd answer;
	int err;

	fault->begin_ns = ktime_get_ns();
	fault->is_answered = false;
	err = faultline_odp_serve(mr, list, fault);
	if (fault->is_answered)
		return err;
	/* The device has taken the entries, if there are any. */
	if (!err)
		WRITE_ONCE(mr->map_refused, false);
	answer = faultline_fault_answer(mr, fault, err);
	faultline_tq_resume(fault->dev, &answer);
	return err;
}

static void faultline_fault_work(struct work_struct *work)
{
	struct faultline_fault *fault =
		container_of(work, struct faultline_fault, work);
	struct faultline_dev *dev = fault->dev;
	struct faultline_odp *odp = dev->odp;
	struct faultline_mr *mr = faultline_odp_mr_get(dev, fault->key);
	struct faultline_page_list *list;
	u64 read = fault->read_ns;
	u64 token = fault->token;

	/*
	 * The region may have been deregistered since the fault was raised.
	 * Then the device has dropped the fault and refuses the answer.
	 */
	if (!mr) {
		trace_faultline_serve(dev, fault, -ENOENT);
		faultline_fault_free(fault);
		faultline_fault_refuse(dev, token, FAULTLINE_BAD_MKEY, read);
		return;
	}
	if (!faultline_odp_share_begin(odp, mr->share, fault)) {
		faultline_odp_mr_put(mr);
		return;
	}
	list = faultline_page_list_get(odp);
	if (!faultline_fault_serve(mr, list, fault))
		faultline_odp_read_ahead(mr, list, fault);
	/*
	 * The device may have raised another fault since the answer: each
	 * worker may keep one fault. A work item that is queued again would
	 * wait for the end of this function.
	 */
	faultline_fault_free(fault);
	faultline_page_list_put(odp, list);
	/* The share exists as long as the reference on the region. */
	faultline_odp_share_end(odp, mr->share);
	faultline_odp_mr_put(mr);
}

/* A fault that is answered with an error. */
struct faultline_refusal {
	struct work_struct work;
	struct faultline_dev *dev;
	u64 read_ns;
	u64 token;
};

static void faultline_refuse_work(struct work_struct *work)
{
	struct faultline_refusal *refusal =
		container_of(work, struct faultline_refusal, work);

	faultline_fault_refuse(refusal->dev, refusal->token,
			       FAULTLINE_NO_RESOURCES, refusal->read_ns);
	kfree(refusal);
}

/* If the allocation fails, the device's fault timeout ends the fault. */
static void faultline_odp_refuse(struct faultline_dev *dev, u64 token, u64 now)
{
	struct faultline_refusal *refusal =
		kmalloc(sizeof(*refusal), GFP_ATOMIC);

	if (!refusal)
		return;
	INIT_WORK(&refusal->work, faultline_refuse_work);
	refusal->dev = dev;
	refusal->read_ns = now;
	refusal->token = token;
	queue_work(dev->wq, &refusal->work);
}

/* Runs in interrupt context. */
void faultline_odp_fault(struct faultline_dev *dev,
			 const struct faultline_eqe *eqe)
{
	struct faultline_odp *odp = dev->odp;
	struct faultline_fault *fault = NULL;
	unsigned long flags;
	u64 now;

	trace_faultline_fault(dev, eqe);
	now = ktime_get_ns();
	if (odp) {
		spin_lock_irqsave(&odp->lock, flags);
		fault = list_first_entry_or_null(&odp->free_faults,
						 struct faultline_fault, link);
		if (fault)
			list_del(&fault->link);
		spin_unlock_irqrestore(&odp->lock, flags);
	}
	if (!fault) {
		/* The device has exceeded its limit on outstanding faults. */
		faultline_odp_refuse(dev, le64_to_cpu(eqe->token), now);
		return;
	}
	fault->read_ns = now;
	fault->token = le64_to_cpu(eqe->token);
	fault->va = le64_to_cpu(eqe->va);
	fault->bytes = le32_to_cpu(eqe->bytes);
	fault->hint = le64_to_cpu(eqe->hint_bytes);
	fault->key = le32_to_cpu(eqe->key);
	fault->write = le32_to_cpu(eqe->fault_flags) & FAULTLINE_FAULT_WRITE;
	queue_work(odp->wq, &fault->work);
}

/* Allocates the faults and their workqueue. */
int faultline_odp_faults_alloc(struct faultline_dev *dev,
			       struct faultline_odp *odp)
{
	/*
	 * Twice the device's limit on outstanding faults: those of a destroyed
	 * key have ended for the device, but may still be queued here. Each
	 * worker may keep one fault after the answer.
	 */
	u32 max_faults = 2 * le32_to_cpu(dev->caps.max_faults) +
			 FAULTLINE_FAULT_WORKERS;
	unsigned int i;

	/*
	 * Memory reclaim may wait for a page fault of the device. Shares limit
	 * the number of faults that are served. The workqueue's own limit is
	 * divided among NUMA nodes (since Linux 6.9): faults that never end
	 * could occupy all of a node's part.
	 */
	odp->wq = alloc_workqueue("%s-odp-%s", WQ_HIGHPRI | WQ_UNBOUND |
				  WQ_MEM_RECLAIM, WQ_MAX_ACTIVE,
				  FAULTLINE_DRV_NAME, pci_name(dev->pdev));
	odp->faults = kvcalloc(max_faults, sizeof(*odp->faults), GFP_KERNEL);
	if (!odp->wq || !odp->faults)
		return -ENOMEM;
	for (i = 0; i < max_faults; i++) {
		struct faultline_fault *fault = &odp->faults[i];

		fault->dev = dev;
		INIT_WORK(&fault->work, faultline_fault_work);
		list_add(&fault->link, &odp->free_faults);
	}
	return 0;
}

/* Also called after an error of faultline_odp_faults_alloc(). */
void faultline_odp_faults_free(struct faultline_odp *odp)
{
	if (odp->wq)
		destroy_workqueue(odp->wq);
	kvfree(odp->faults);
}
