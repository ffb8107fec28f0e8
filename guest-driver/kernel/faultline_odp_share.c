// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Shares of the page fault workers
 *
 * FAULTLINE_FAULT_WORKERS page faults are served at the same time. A page may
 * take long, or never arrive (a page of a FUSE file, for example), so no
 * address space may occupy all workers: a fault begins only if its address
 * space serves fewer faults than there are idle workers. The first address
 * space gets half of the workers, the second half of the rest, and so on. One
 * user gets at most FAULTLINE_USER_WORKERS workers, for all of the user's
 * processes. A fault that may not begin waits in the list of its share until
 * another one has ended.
 *
 * Each address space with on-demand regions has one struct
 * faultline_odp_share, each user one struct faultline_odp_user. A share exists
 * as long as a region of its address space is attached; each region counts in
 * `regions`.
 *
 * Locking: faultline_odp.lock (taken in interrupts) protects everything here,
 * except faultline_odp_share.prefetches, which is atomic. No other lock of the
 * driver is taken under it. All functions run in process context.
 */
#include <linux/cred.h>
#include <linux/slab.h>

#include "faultline_odp.h"

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

/* Returns the share of an address space, for one more region of it. */
struct faultline_odp_share *
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
	INIT_LIST_HEAD(&fresh->blocked);
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
 * Drops a region's reference on its share; none of the region's faults is
 * served any more. Waiting faults of the region are queued, and find it
 * detached.
 */
void faultline_odp_share_put(struct faultline_odp *odp,
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
		list_del_init(&share->blocked);
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

static bool faultline_odp_may_serve(const struct faultline_odp *odp,
				    const struct faultline_odp_share *share)
{
	lockdep_assert_held(&odp->lock);
	return share->active < FAULTLINE_FAULT_WORKERS - odp->active &&
	       share->user->active < FAULTLINE_USER_WORKERS;
}

/*
 * Returns true if the fault may be served now. Otherwise the fault is in the
 * list of its share, and its work item is queued again later.
 */
bool faultline_odp_share_begin(struct faultline_odp *odp,
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
		if (list_empty(&share->blocked))
			list_add_tail(&share->blocked, &odp->blocked_shares);
	}
	spin_unlock_irq(&odp->lock);
	return now;
}

/*
 * Ends a fault for which faultline_odp_share_begin() returned true. Queues one
 * waiting fault of each share that may serve another one.
 */
void faultline_odp_share_end(struct faultline_odp *odp,
			     struct faultline_odp_share *served)
{
	struct faultline_odp_share *share, *next;
	struct faultline_fault *fault;

	spin_lock_irq(&odp->lock);
	served->active--;
	served->user->active--;
	odp->active--;
	list_for_each_entry_safe(share, next, &odp->blocked_shares, blocked) {
		if (!faultline_odp_may_serve(odp, share))
			continue;
		fault = list_first_entry(&share->waiting,
					 struct faultline_fault, link);
		list_del(&fault->link);
		if (list_empty(&share->waiting))
			list_del_init(&share->blocked);
		queue_work(odp->wq, &fault->work);
	}
	spin_unlock_irq(&odp->lock);
}
