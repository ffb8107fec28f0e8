// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Watched pinned regions
 *
 * The device uses pinned pages, even if the mapping changes. For a watched
 * region the process receives an event about each change, and can point the
 * same key to the new mapping (RESTORE). The mode of the region decides what
 * the device does until then:
 *
 * - KEEP: it continues to use the old pages.
 * - FENCE: its entries are removed before the change is made; requests that
 *   use the pages fail.
 * - LEASE: as FENCE, but first the change waits until the process has answered
 *   or a time limit has passed.
 *
 * A lease delays the task that changes the mapping, which holds the locks of
 * the address space and maybe those of a file. Therefore:
 *
 * - A task never waits for itself: neither the thread that read the events
 *   last nor a process with a single thread waits.
 * - It waits only for processes of its own user. Another user could map the
 *   same file for this purpose, or move pages of a file that it may only read.
 * - It does not wait if the address space or the task is ending, if it has a
 *   fatal signal, is in reclaim, is a kernel thread or must not sleep, or if
 *   no process can read the events.
 * - The end of the device is an answer: nothing uses the pages any more.
 * - Answering takes no lock that the waiting task can hold: it does not use
 *   the address space. RESTORE answers first, then waits for the end of the
 *   change, and only then pins pages.
 * - After a time limit has passed, no change waits for any region with the
 *   same event queue until the process answers again. So any remaining
 *   deadlock (the answering thread needs a page that cannot be faulted in
 *   meanwhile, for example) ends with the first time limit.
 *
 * Locking, outermost first: faultline_mr_watch.restore_lock serializes RESTORE
 * and is never taken in notifiers. faultline_mr_watch.lock is taken in
 * notifiers that may sleep. It protects the state of the region, the sequence
 * of the notifier, and the device's entries. Code under it allocates nothing
 * and waits only for the device. It is released while a change waits for an
 * answer. Under it, faultline_lease_budget_lock protects the budgets of all
 * users, and faultline_events.lock the event queue.
 */
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include <rdma/uverbs_std_types.h>

#include "faultline_trace.h"

#define UVERBS_MODULE_NAME faultline_ib
#include <rdma/uverbs_named_ioctl.h>

/* Pinning can move pages, which invalidates the range: repeat it. */
#define FAULTLINE_PIN_TRIES	16

/*
 * Maximum total delay by all leases of a user in one period. A single lease may
 * use all of it.
 */
#define FAULTLINE_LEASE_BUDGET	msecs_to_jiffies(FAULTLINE_MAX_LEASE_MS)
#define FAULTLINE_LEASE_BUDGET_PERIOD	(60 * HZ)

/* All under faultline_lease_budget_lock, except `owner`, which is constant. */
struct faultline_lease_budget {
	struct list_head list;
	kuid_t owner;
	/* Watched regions of the user. */
	unsigned int users;
	/* Start of the period, and the used part of the budget; jiffies. */
	unsigned long since;
	unsigned long spent;
};

static LIST_HEAD(faultline_lease_budgets);
static DEFINE_SPINLOCK(faultline_lease_budget_lock);

struct faultline_mr_watch {
	struct mmu_interval_notifier notifier;
	struct faultline_mr *mr;
	struct faultline_dev *dev;
	struct faultline_events *events;
	u64 start;
	u64 length;
	u64 cookie;
	u32 mode;
	u32 lease_ms;
	/* Owner of the region. */
	kuid_t owner;
	/* Serializes RESTORE. Never taken in notifiers; before `lock`. */
	struct mutex restore_lock;
	/*
	 * Protects what follows, the notifier's sequence, and the entries in
	 * the device. Taken in notifiers that may sleep: code under it
	 * allocates nothing and waits only for the device.
	 */
	struct mutex lock;
	/* The key exists and may have entries. */
	bool live;
	/* All pages are anonymous. */
	bool anon;
	/* Pages are being pinned; the notifier's sequence reveals changes. */
	bool pinning;
	/* Deregistration has begun: changes do not wait. */
	bool closing;
	/* A range whose entries have been removed; there may be others. */
	u64 fenced_start;
	u64 fenced_end;
	/* Numbers of the last change that waits and the last answered one. */
	u64 asked;
	u64 answered;
	struct faultline_lease_budget *budget;
};

static struct faultline_lease_budget *faultline_lease_budget_get(kuid_t owner)
{
	struct faultline_lease_budget *budget, *fresh;

	fresh = kzalloc(sizeof(*fresh), GFP_KERNEL_ACCOUNT);
	if (!fresh)
		return NULL;
	spin_lock(&faultline_lease_budget_lock);
	list_for_each_entry(budget, &faultline_lease_budgets, list)
		if (uid_eq(budget->owner, owner))
			goto found;
	fresh->owner = owner;
	fresh->since = jiffies;
	list_add(&fresh->list, &faultline_lease_budgets);
	budget = fresh;
	fresh = NULL;
found:
	budget->users++;
	spin_unlock(&faultline_lease_budget_lock);
	kfree(fresh);
	return budget;
}

static void faultline_lease_budget_put(struct faultline_lease_budget *budget)
{
	spin_lock(&faultline_lease_budget_lock);
	if (--budget->users)
		budget = NULL;
	else
		list_del(&budget->list);
	spin_unlock(&faultline_lease_budget_lock);
	kfree(budget);
}

/* Returns the rest of the budget, in jiffies. */
static unsigned long
faultline_lease_budget_left(struct faultline_lease_budget *budget)
{
	unsigned long left;

	spin_lock(&faultline_lease_budget_lock);
	if (time_after(jiffies,
		       budget->since + FAULTLINE_LEASE_BUDGET_PERIOD)) {
		budget->since = jiffies;
		budget->spent = 0;
	}
	left = FAULTLINE_LEASE_BUDGET -
	       min(FAULTLINE_LEASE_BUDGET, budget->spent);
	spin_unlock(&faultline_lease_budget_lock);
	return left;
}

static void faultline_lease_budget_spend(struct faultline_lease_budget *budget,
					 unsigned long spent)
{
	spin_lock(&faultline_lease_budget_lock);
	budget->spent += spent;
	spin_unlock(&faultline_lease_budget_lock);
}

/* Returns true if a change replaces pages that the device uses. */
static bool faultline_lease_concerns(const struct faultline_mr_watch *watch,
				     const struct mmu_notifier_range *range)
{
	switch (faultline_change_reason(range)) {
	case 0:
	/* The rights of a region are those at the time of pinning. */
	case FAULTLINE_REASON_PROTECTION:
		return false;
	case FAULTLINE_REASON_CLEAR:
		/*
		 * Reclaim, compaction and khugepaged invalidate before they
		 * find that anonymous pages are pinned, and then change
		 * nothing. Kernel threads can truncate files, however.
		 */
		return !watch->anon ||
		       !(current->flags & (PF_KTHREAD | PF_MEMALLOC));
	default:
		return true;
	}
}

/* Returns true if the change may wait for an answer; see above. */
static bool faultline_lease_may_wait(const struct faultline_mr_watch *watch,
				     const struct mmu_notifier_range *range)
{
	struct mm_struct *mm = watch->notifier.mm;

	if (watch->mode != FAULTLINE_MR_LEASE || watch->closing ||
	    READ_ONCE(watch->events->lease_expired) ||
	    !faultline_events_open(watch->events) ||
	    !faultline_lease_budget_left(watch->budget))
		return false;
	/* The task holds locks of a file that the region can only read. */
	if (range->event == MMU_NOTIFY_CLEAR && !watch->anon &&
	    !watch->mr->umem->writable)
		return false;
	if (range->event == MMU_NOTIFY_RELEASE || !atomic_read(&mm->mm_users))
		return false;
	if (current->flags & (PF_KTHREAD | PF_MEMALLOC | PF_EXITING) ||
	    fatal_signal_pending(current))
		return false;
	if (READ_ONCE(watch->events->reader) == task_pid_nr(current))
		return false;
	if (current->mm != mm)
		return uid_eq(current_uid(), watch->owner) &&
		       uid_eq(current_euid(), watch->owner);
	return atomic_read(&mm->mm_users) > 1 || !thread_group_empty(current);
}

/*
 * Removes the device's entries of a range. One change often causes several
 * notifications, so the range is stored to avoid further commands for it.
 */
static void faultline_lease_fence(struct faultline_mr_watch *watch, u64 start,
				  u64 end)
{
	const struct ib_mr *ibmr = &watch->mr->ibmr;

	lockdep_assert_held(&watch->lock);
	/* Fails only if the device is dead: then it has stopped all DMA. */
	faultline_tq_invalidate(watch->dev, ibmr->lkey,
				start - watch->start + ibmr->iova, end - start,
				NULL);
	if (start <= watch->fenced_end && end >= watch->fenced_start) {
		watch->fenced_start = min(watch->fenced_start, start);
		watch->fenced_end = max(watch->fenced_end, end);
	} else {
		watch->fenced_start = start;
		watch->fenced_end = end;
	}
}

static bool faultline_lease_answered(struct faultline_mr_watch *watch,
				     u64 asked)
{
	return READ_ONCE(watch->answered) >= asked ||
	       READ_ONCE(watch->closing) || faultline_is_dead(watch->dev);
}

/*
 * Waits for an answer or the time limit; releases the lock meanwhile. Returns
 * true if the process has answered.
 */
static bool faultline_lease_wait(struct faultline_mr_watch *watch)
{
	unsigned long left = faultline_lease_budget_left(watch->budget);
	unsigned long since = jiffies;
	u64 asked = watch->asked;
	bool answered;

	lockdep_assert_held(&watch->lock);
	mutex_unlock(&watch->lock);
	wait_event_killable_timeout(watch->dev->lease_answers,
				    faultline_lease_answered(watch, asked),
				    min(left,
					msecs_to_jiffies(watch->lease_ms)));
	faultline_lease_budget_spend(watch->budget, jiffies - since);
	mutex_lock(&watch->lock);
	/* If the budget ended the wait, the time limit has not passed. */
	answered = faultline_lease_answered(watch, asked);
	if (!answered && left >= msecs_to_jiffies(watch->lease_ms))
		WRITE_ONCE(watch->events->lease_expired, true);
	return answered;
}

static bool faultline_lease_invalidate(struct mmu_interval_notifier *mni,
				       const struct mmu_notifier_range *range,
				       unsigned long seq)
{
	struct faultline_mr_watch *watch =
		container_of(mni, struct faultline_mr_watch, notifier);
	u64 first = ALIGN_DOWN(watch->start, PAGE_SIZE);
	u64 end = ALIGN(watch->start + watch->length, PAGE_SIZE);
	struct faultline_event event = {
		.start = max_t(u64, range->start, first),
		.end = min_t(u64, range->end, end),
		.cookie = watch->cookie,
		.type = FAULTLINE_EVENT_MR,
		.reason = faultline_change_reason(range),
	};
	bool wait, answered = false;
	u64 waited = 0;

	if (!mmu_notifier_range_blockable(range))
		return false;
	mutex_lock(&watch->lock);
	mmu_interval_set_seq(mni, seq);
	if (!watch->live || !faultline_lease_concerns(watch, range) ||
	    (event.start >= watch->fenced_start &&
	     event.end <= watch->fenced_end))
		goto out;
	if (!watch->pinning) {
		wait = faultline_lease_may_wait(watch, range);
		if (wait) {
			watch->asked++;
			event.type = FAULTLINE_EVENT_LEASE;
		}
		faultline_events_post(watch->events, &event);
		atomic64_inc(&watch->mr->watch_events);
		if (wait) {
			waited = ktime_get_ns();
			answered = faultline_lease_wait(watch);
			waited = ktime_get_ns() - waited;
			faultline_stats_lease(watch->mr, waited, answered);
		}
		trace_faultline_lease(watch->dev, watch->mr->ibmr.lkey,
				      watch->mode, &event, waited, answered);
	}
	if (watch->live && watch->mode != FAULTLINE_MR_KEEP)
		faultline_lease_fence(watch, event.start, event.end);
out:
	mutex_unlock(&watch->lock);
	return true;
}

static const struct mmu_interval_notifier_ops faultline_lease_mn_ops = {
	.invalidate = faultline_lease_invalidate,
};

static bool faultline_umem_is_anon(struct ib_umem *umem)
{
	struct sg_page_iter iter;

	for_each_sgtable_page(&umem->sgt_append.sgt, &iter, 0)
		if (!folio_test_anon(page_folio(sg_page_iter_page(&iter))))
			return false;
	return true;
}

/*
 * Points the key to the pages that are mapped. Returns -EAGAIN if the mapping
 * has changed meanwhile. `unused` is the memory that the caller must release.
 */
static int faultline_lease_try_pin(struct faultline_mr_watch *watch,
				   struct ib_umem **unused)
{
	struct faultline_mr *mr = watch->mr;
	struct faultline_map map;
	struct ib_umem *umem;
	unsigned long page_size, seq;
	bool anon;
	int err;

	*unused = NULL;
	seq = mmu_interval_read_begin(&watch->notifier);
	umem = faultline_pin(&watch->dev->ib->ibdev, watch->start, watch->length,
			     mr->ibmr.iova, mr->access, &page_size);
	if (IS_ERR(umem))
		return PTR_ERR(umem);
	*unused = umem;
	err = faultline_map_init(&map, watch->dev, umem, mr->ibmr.lkey,
				 mr->ibmr.iova, page_size);
	if (err)
		return err;
	anon = faultline_umem_is_anon(umem);
	mutex_lock(&watch->lock);
	if (mmu_interval_read_retry(&watch->notifier, seq)) {
		err = -EAGAIN;
	} else {
		watch->fenced_start = 0;
		watch->fenced_end = 0;
		err = faultline_map_run(&map);
		/* Keep the new pages on error, too: entries may refer to them. */
		*unused = mr->umem;
		mr->umem = umem;
		watch->anon = anon;
		watch->live = true;
		if (!err) {
			mr->ibmr.page_size = page_size;
			watch->pinning = false;
		}
	}
	mutex_unlock(&watch->lock);
	faultline_map_done(&map);
	return err;
}

static int faultline_lease_pin(struct faultline_mr_watch *watch)
{
	int tries = FAULTLINE_PIN_TRIES;
	struct ib_umem *unused;
	int err;

	do {
		if (fatal_signal_pending(current))
			return -EINTR;
		err = faultline_lease_try_pin(watch, &unused);
		if (unused)
			ib_umem_release(unused);
	} while (err == -EAGAIN && --tries);
	return err;
}

/* Answers all changes that wait now. */
static void faultline_lease_answer(struct faultline_mr_watch *watch)
{
	lockdep_assert_held(&watch->lock);
	WRITE_ONCE(watch->answered, watch->asked);
	WRITE_ONCE(watch->events->lease_expired, false);
	wake_up_all(&watch->dev->lease_answers);
}

static int faultline_lease_restore(struct faultline_mr_watch *watch)
{
	int err;

	/* A region of another address space (after fork) cannot be pinned. */
	if (current->mm != watch->notifier.mm)
		return -EPERM;
	/* Changes must not wait while this thread waits for the lock. */
	mutex_lock(&watch->lock);
	faultline_lease_answer(watch);
	mutex_unlock(&watch->lock);
	if (mutex_lock_killable(&watch->restore_lock))
		return -EINTR;
	mutex_lock(&watch->lock);
	watch->pinning = true;
	faultline_lease_answer(watch);
	mutex_unlock(&watch->lock);
	err = faultline_lease_pin(watch);
	if (err) {
		mutex_lock(&watch->lock);
		watch->pinning = false;
		mutex_unlock(&watch->lock);
	}
	mutex_unlock(&watch->restore_lock);
	return err;
}

static void faultline_mr_watch_free(struct faultline_mr_watch *watch)
{
	faultline_lease_budget_put(watch->budget);
	faultline_events_put(watch->events);
	mutex_destroy(&watch->lock);
	mutex_destroy(&watch->restore_lock);
	kfree(watch);
}

static struct faultline_mr_watch *
faultline_mr_watch_new(struct faultline_dev *dev, u64 start, u64 length,
		       const struct faultline_reg_mr_req *req)
{
	struct faultline_mr_watch *watch;
	bool lease = req->mode == FAULTLINE_MR_LEASE;

	if (req->reserved || req->mode < FAULTLINE_MR_KEEP ||
	    req->mode > FAULTLINE_MR_LEASE || lease != !!req->lease_ms ||
	    req->lease_ms > FAULTLINE_MAX_LEASE_MS)
		return ERR_PTR(-EINVAL);
	watch = kzalloc(sizeof(*watch), GFP_KERNEL_ACCOUNT);
	if (!watch)
		return ERR_PTR(-ENOMEM);
	watch->budget = faultline_lease_budget_get(current_euid());
	if (!watch->budget) {
		kfree(watch);
		return ERR_PTR(-ENOMEM);
	}
	watch->events = faultline_events_get(dev, req->events_fd);
	if (IS_ERR(watch->events)) {
		void *err = watch->events;

		faultline_lease_budget_put(watch->budget);
		kfree(watch);
		return err;
	}
	watch->dev = dev;
	watch->start = start;
	watch->length = length;
	watch->cookie = req->cookie;
	watch->mode = req->mode;
	watch->lease_ms = req->lease_ms;
	watch->owner = current_euid();
	watch->pinning = true;
	mutex_init(&watch->lock);
	mutex_init(&watch->restore_lock);
	return watch;
}

struct ib_mr *faultline_watched_reg(struct ib_pd *ibpd, u64 start, u64 length,
				    u64 iova, int access,
				    const struct faultline_reg_mr_req *req)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_mr_watch *watch;
	struct faultline_mr *mr;
	int err;

	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	watch = faultline_mr_watch_new(dev, start, length, req);
	if (IS_ERR(watch)) {
		err = PTR_ERR(watch);
		goto free_mr;
	}
	watch->mr = mr;
	mr->watch = watch;
	/* With the smallest page size, entries of any size fit. */
	err = faultline_mr_create_mkey(ibpd, mr, length, iova, access,
				       PAGE_SIZE);
	if (err)
		goto free_watch;
	/* Register the notifier before pinning, so that no change is missed. */
	err = mmu_interval_notifier_insert(&watch->notifier, current->mm, start,
					   length, &faultline_lease_mn_ops);
	if (err)
		goto destroy;
	err = faultline_lease_pin(watch);
	if (err)
		goto remove;
	return &mr->ibmr;

remove:
	mutex_lock(&watch->lock);
	watch->live = false;
	mutex_unlock(&watch->lock);
	mmu_interval_notifier_remove(&watch->notifier);
destroy:
	faultline_cmd_destroy_mkey(dev, mr->ibmr.lkey);
	if (mr->umem)
		ib_umem_release(mr->umem);
free_watch:
	faultline_mr_watch_free(watch);
free_mr:
	kfree(mr);
	return ERR_PTR(err);
}

int faultline_watched_dereg(struct faultline_mr *mr)
{
	struct faultline_mr_watch *watch = mr->watch;
	int err;

	/*
	 * Under the lock, since the notifier removes entries as long as `live`
	 * is set: it must not remove those of another region that gets the
	 * same key.
	 */
	mutex_lock(&watch->lock);
	err = faultline_dead_ok(watch->dev, faultline_cmd_destroy_mkey(
						    watch->dev, mr->ibmr.lkey));
	if (!err) {
		watch->live = false;
		WRITE_ONCE(watch->closing, true);
		faultline_lease_answer(watch);
	}
	mutex_unlock(&watch->lock);
	if (err)
		return err;
	/* Waits for notifiers that run; none waits for an answer now. */
	mmu_interval_notifier_remove(&watch->notifier);
	ib_umem_release(mr->umem);
	faultline_mr_watch_free(watch);
	kfree(mr);
	return 0;
}

/* Name of the device's handling of the pages when their mapping changes. */
const char *faultline_watch_mode(const struct faultline_mr *mr)
{
	switch (mr->watch->mode) {
	case FAULTLINE_MR_KEEP:
		return "keep";
	case FAULTLINE_MR_FENCE:
		return "fence";
	default:
		return "lease";
	}
}

u32 faultline_watch_lease_ms(const struct faultline_mr *mr)
{
	return mr->watch->lease_ms;
}

static struct faultline_mr_watch *
faultline_lease_of(struct uverbs_attr_bundle *attrs, u16 attr)
{
	struct ib_mr *ibmr = uverbs_attr_get_obj(attrs, attr);

	if (IS_ERR(ibmr))
		return ERR_CAST(ibmr);
	return to_fmr(ibmr)->watch ?: ERR_PTR(-EINVAL);
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_MR_RESTORE)(struct uverbs_attr_bundle *attrs)
{
	struct faultline_mr_watch *watch =
		faultline_lease_of(attrs, FAULTLINE_ATTR_MR_RESTORE_HANDLE);

	return IS_ERR(watch) ? PTR_ERR(watch) : faultline_lease_restore(watch);
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_MR_RELEASE)(struct uverbs_attr_bundle *attrs)
{
	struct faultline_mr_watch *watch =
		faultline_lease_of(attrs, FAULTLINE_ATTR_MR_RELEASE_HANDLE);

	if (IS_ERR(watch))
		return PTR_ERR(watch);
	mutex_lock(&watch->lock);
	faultline_lease_answer(watch);
	mutex_unlock(&watch->lock);
	return 0;
}

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_MR_RESTORE,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_MR_RESTORE_HANDLE, UVERBS_OBJECT_MR,
			UVERBS_ACCESS_READ, UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_MR_RELEASE,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_MR_RELEASE_HANDLE, UVERBS_OBJECT_MR,
			UVERBS_ACCESS_READ, UA_MANDATORY));

ADD_UVERBS_METHODS(faultline_mr_methods, UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(FAULTLINE_METHOD_MR_RESTORE),
		   &UVERBS_METHOD(FAULTLINE_METHOD_MR_RELEASE));

const struct uapi_definition faultline_lease_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &faultline_mr_methods),
	{}
};
