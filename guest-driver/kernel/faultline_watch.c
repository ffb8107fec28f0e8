// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Range watches
 *
 * A watch counts the changes of mappings in a range of addresses, in a 64-bit
 * counter in a page that the process can read, and reports them to an event
 * queue. The counter is incremented before the change is made: the thread that
 * makes the change, and every thread that learns of it, reads a new value. The
 * counter is never 0 and never decreases, also if another watch reuses it.
 *
 * Between the increment and the end of the change the old pages can still be
 * pinned. A process that registers memory after an increment therefore uses
 * SYNC, which waits for the end of the change.
 *
 * Locking: faultline_ucontext.counters_lock (a mutex, never taken in notifiers)
 * protects the list of counter pages and the bitmaps of used counters.
 * faultline_watch.lock protects the counter and the sequence of the notifier.
 * It is taken in notifiers that must not sleep; faultline_events.lock is not
 * taken under it.
 */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include <rdma/uverbs_std_types.h>

#include "faultline_watch.h"

#define UVERBS_MODULE_NAME faultline_ib
#include <rdma/uverbs_named_ioctl.h>

#define FAULTLINE_COUNTERS	(PAGE_SIZE / sizeof(u64))

/* A page of counters; freed with the user context. */
struct faultline_counters {
	struct list_head list;		/* faultline_ucontext.counters */
	struct rdma_user_mmap_entry *entry;
	u64 offset;
	u64 *values;
	/* Under faultline_ucontext.counters_lock. */
	DECLARE_BITMAP(used, FAULTLINE_COUNTERS);
};

struct faultline_watch {
	struct mmu_interval_notifier notifier;
	struct faultline_events *events;
	struct faultline_ucontext *ctx;
	struct faultline_counters *counters;
	u32 index;
	u64 start;
	u64 end;
	u64 cookie;
	/*
	 * Protects the counter and the notifier's sequence. Taken in notifiers
	 * that must not sleep.
	 */
	spinlock_t lock;
};

void faultline_counters_free(struct faultline_ucontext *ctx)
{
	struct faultline_counters *counters, *next;

	list_for_each_entry_safe(counters, next, &ctx->counters, list) {
		rdma_user_mmap_entry_remove(counters->entry);
		/* Mappings hold references of their own. */
		put_page(virt_to_page(counters->values));
		kfree(counters);
	}
	INIT_LIST_HEAD(&ctx->counters);
}

static struct faultline_counters *
faultline_counters_new(struct faultline_ucontext *ctx)
{
	struct faultline_counters *counters;
	unsigned int i;

	lockdep_assert_held(&ctx->counters_lock);
	counters = kzalloc(sizeof(*counters), GFP_KERNEL_ACCOUNT);
	if (!counters)
		return ERR_PTR(-ENOMEM);
	counters->values = (u64 *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!counters->values)
		goto free;
	for (i = 0; i < FAULTLINE_COUNTERS; i++)
		counters->values[i] = 1;
	counters->entry =
		faultline_mmap_insert_page(ctx, virt_to_page(counters->values),
					   &counters->offset);
	if (!counters->entry)
		goto free_page;
	list_add(&counters->list, &ctx->counters);
	return counters;

free_page:
	free_page((unsigned long)counters->values);
free:
	kfree(counters);
	return ERR_PTR(-ENOMEM);
}

static int faultline_counter_get(struct faultline_watch *watch)
{
	struct faultline_ucontext *ctx = watch->ctx;
	struct faultline_counters *counters;
	int err = 0;

	mutex_lock(&ctx->counters_lock);
	list_for_each_entry(counters, &ctx->counters, list)
		if (!bitmap_full(counters->used, FAULTLINE_COUNTERS))
			goto found;
	counters = faultline_counters_new(ctx);
	if (IS_ERR(counters)) {
		err = PTR_ERR(counters);
		goto out;
	}
found:
	watch->counters = counters;
	watch->index = find_first_zero_bit(counters->used, FAULTLINE_COUNTERS);
	__set_bit(watch->index, counters->used);
out:
	mutex_unlock(&ctx->counters_lock);
	return err;
}

static void faultline_counter_put(struct faultline_watch *watch)
{
	mutex_lock(&watch->ctx->counters_lock);
	__clear_bit(watch->index, watch->counters->used);
	mutex_unlock(&watch->ctx->counters_lock);
}

static u64 *faultline_counter(struct faultline_watch *watch)
{
	return &watch->counters->values[watch->index];
}

static void faultline_counter_step(struct faultline_watch *watch)
{
	u64 *counter = faultline_counter(watch);

	lockdep_assert_held(&watch->lock);
	/* The change must become visible after the counter. */
	smp_store_release(counter, *counter + 1);
}

/* Must not sleep: the OOM reaper calls it, too. */
static bool faultline_watch_invalidate(struct mmu_interval_notifier *mni,
				       const struct mmu_notifier_range *range,
				       unsigned long seq)
{
	struct faultline_watch *watch =
		container_of(mni, struct faultline_watch, notifier);
	struct faultline_event event = {
		.start = max_t(u64, range->start, watch->start),
		.end = min_t(u64, range->end, watch->end),
		.cookie = watch->cookie,
		.type = FAULTLINE_EVENT_RANGE,
		.reason = faultline_change_reason(range),
	};

	spin_lock(&watch->lock);
	mmu_interval_set_seq(mni, seq);
	if (event.reason)
		faultline_counter_step(watch);
	spin_unlock(&watch->lock);
	if (event.reason)
		faultline_events_post(watch->events, &event);
	return true;
}

static const struct mmu_interval_notifier_ops faultline_watch_mn_ops = {
	.invalidate = faultline_watch_invalidate,
};

static void faultline_watch_free(struct faultline_watch *watch)
{
	faultline_counter_put(watch);
	faultline_events_put(watch->events);
	kfree(watch);
}

static int faultline_watch_destroy(struct ib_uobject *uobj,
				   enum rdma_remove_reason why,
				   struct uverbs_attr_bundle *attrs)
{
	struct faultline_watch *watch = uobj->object;

	mmu_interval_notifier_remove(&watch->notifier);
	/* Readers must notice that the range is not watched any more. */
	spin_lock(&watch->lock);
	faultline_counter_step(watch);
	spin_unlock(&watch->lock);
	faultline_watch_free(watch);
	return 0;
}

static struct faultline_watch *
faultline_watch_new(struct faultline_ucontext *ctx,
		    struct faultline_events *events,
		    const struct faultline_create_watch_req *req)
{
	struct faultline_watch *watch;
	u64 end;
	int err;

	if (!req->length || check_add_overflow(req->start, req->length, &end) ||
	    end > TASK_SIZE_MAX)
		return ERR_PTR(-EINVAL);
	watch = kzalloc(sizeof(*watch), GFP_KERNEL_ACCOUNT);
	if (!watch)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&watch->lock);
	watch->ctx = ctx;
	watch->start = req->start;
	watch->end = end;
	watch->cookie = req->cookie;
	watch->events = events;
	err = faultline_counter_get(watch);
	if (err)
		goto free;
	uverbs_uobject_get(&events->uobj);
	err = mmu_interval_notifier_insert(&watch->notifier, current->mm,
					   req->start, req->length,
					   &faultline_watch_mn_ops);
	if (err) {
		faultline_watch_free(watch);
		return ERR_PTR(err);
	}
	return watch;

free:
	kfree(watch);
	return ERR_PTR(err);
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_WATCH_CREATE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_uobject *uobj =
		uverbs_attr_get_uobject(attrs,
					FAULTLINE_ATTR_WATCH_CREATE_HANDLE);
	struct ib_uobject *events_uobj =
		uverbs_attr_get_uobject(attrs,
					FAULTLINE_ATTR_WATCH_CREATE_EVENTS);
	struct ib_ucontext *ibctx = ib_uverbs_get_ucontext(attrs);
	struct faultline_create_watch_resp resp = {};
	struct faultline_create_watch_req req;
	struct faultline_watch *watch;
	int err;

	if (IS_ERR(ibctx))
		return PTR_ERR(ibctx);
	err = uverbs_copy_from(&req, attrs, FAULTLINE_ATTR_WATCH_CREATE_REQ);
	if (err)
		return err;
	watch = faultline_watch_new(to_fucontext(ibctx),
				    container_of(events_uobj,
						 struct faultline_events, uobj),
				    &req);
	if (IS_ERR(watch))
		return PTR_ERR(watch);
	uobj->object = watch;
	uverbs_finalize_uobj_create(attrs, FAULTLINE_ATTR_WATCH_CREATE_HANDLE);
	resp.page_offset = watch->counters->offset;
	resp.index = watch->index;
	return uverbs_copy_to(attrs, FAULTLINE_ATTR_WATCH_CREATE_RESP, &resp,
			      sizeof(resp));
}

/* Returns the counter's value at a time when no change is in progress. */
static int
UVERBS_HANDLER(FAULTLINE_METHOD_WATCH_SYNC)(struct uverbs_attr_bundle *attrs)
{
	struct faultline_watch *watch =
		uverbs_attr_get_obj(attrs, FAULTLINE_ATTR_WATCH_SYNC_HANDLE);
	unsigned long seq;
	bool again;
	u64 value;

	do {
		if (fatal_signal_pending(current))
			return -EINTR;
		seq = mmu_interval_read_begin(&watch->notifier);
		spin_lock(&watch->lock);
		value = *faultline_counter(watch);
		again = mmu_interval_read_retry(&watch->notifier, seq);
		spin_unlock(&watch->lock);
	} while (again);
	return uverbs_copy_to(attrs, FAULTLINE_ATTR_WATCH_SYNC_VALUE, &value,
			      sizeof(value));
}

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_WATCH_CREATE,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_WATCH_CREATE_HANDLE,
			FAULTLINE_OBJECT_WATCH, UVERBS_ACCESS_NEW,
			UA_MANDATORY),
	UVERBS_ATTR_FD(FAULTLINE_ATTR_WATCH_CREATE_EVENTS,
		       FAULTLINE_OBJECT_EVENTS, UVERBS_ACCESS_READ,
		       UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(FAULTLINE_ATTR_WATCH_CREATE_REQ,
			   UVERBS_ATTR_STRUCT(struct faultline_create_watch_req,
					      cookie),
			   UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_WATCH_CREATE_RESP,
			    UVERBS_ATTR_TYPE(struct faultline_create_watch_resp),
			    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD_DESTROY(
	FAULTLINE_METHOD_WATCH_DESTROY,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_WATCH_DESTROY_HANDLE,
			FAULTLINE_OBJECT_WATCH, UVERBS_ACCESS_DESTROY,
			UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_WATCH_SYNC,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_WATCH_SYNC_HANDLE,
			FAULTLINE_OBJECT_WATCH, UVERBS_ACCESS_READ,
			UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_WATCH_SYNC_VALUE,
			    UVERBS_ATTR_TYPE(u64), UA_MANDATORY));

DECLARE_UVERBS_NAMED_OBJECT(
	FAULTLINE_OBJECT_WATCH,
	UVERBS_TYPE_ALLOC_IDR(faultline_watch_destroy),
	&UVERBS_METHOD(FAULTLINE_METHOD_WATCH_CREATE),
	&UVERBS_METHOD(FAULTLINE_METHOD_WATCH_DESTROY),
	&UVERBS_METHOD(FAULTLINE_METHOD_WATCH_SYNC));

const struct uapi_definition faultline_watch_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(FAULTLINE_OBJECT_WATCH),
	{}
};
