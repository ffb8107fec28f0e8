// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Event queues
 *
 * MMU notifiers report changes of mappings to a queue, which a process reads
 * through a file descriptor. A notifier can neither wait nor fail nor allocate,
 * so the queue is bounded. If it overflows, the reader gets an event which says
 * that any mapping may have changed.
 *
 * Locking: faultline_events.lock protects the queue. It is the innermost lock,
 * also taken by notifiers that must not sleep, and never in interrupts.
 */
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <rdma/uverbs_std_types.h>

#include "faultline_watch.h"

#define UVERBS_MODULE_NAME faultline_ib
#include <rdma/uverbs_named_ioctl.h>

/* Events that are copied to user space at a time. */
#define FAULTLINE_EVENTS_BATCH	8

/*
 * Returns why a range is invalidated, 0 if the same pages stay mapped. Single
 * pages are write-protected for copy-on-write after fork (the page is replaced
 * when it is written to, which is another event) or to track dirty pages.
 */
u32 faultline_change_reason(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_SOFT_DIRTY:
	case MMU_NOTIFY_PROTECTION_PAGE:
		return 0;
	case MMU_NOTIFY_PROTECTION_VMA:
		return FAULTLINE_REASON_PROTECTION;
	case MMU_NOTIFY_RELEASE:
		return FAULTLINE_REASON_EXIT;
	case MMU_NOTIFY_UNMAP:
		return FAULTLINE_REASON_UNMAP;
	default:
		return FAULTLINE_REASON_CLEAR;
	}
}

/* Merges an event with the last one: a change often has several ranges. */
static bool faultline_event_merge(struct faultline_event *last,
				  const struct faultline_event *event)
{
	if (last->cookie != event->cookie || last->type != event->type ||
	    last->reason != event->reason || event->start > last->end ||
	    event->end < last->start)
		return false;
	last->start = min(last->start, event->start);
	last->end = max(last->end, event->end);
	return true;
}

static struct faultline_event *
faultline_events_slot(struct faultline_events *events, u32 index)
{
	return &events->ring[(events->head + index) % events->depth];
}

/* Must not be called in interrupt context. */
void faultline_events_post(struct faultline_events *events,
			   const struct faultline_event *event)
{
	spin_lock(&events->lock);
	if (!events->ring) {
		spin_unlock(&events->lock);
		return;
	}
	if (!events->count ||
	    !faultline_event_merge(faultline_events_slot(events,
							 events->count - 1),
				   event)) {
		if (events->count < events->depth)
			*faultline_events_slot(events, events->count++) =
				*event;
		else
			events->overflow = true;
	}
	spin_unlock(&events->lock);
	wake_up_interruptible(&events->wait);
}

/* Returns true if a process can read the events. */
bool faultline_events_open(struct faultline_events *events)
{
	return READ_ONCE(events->ring);
}

/* Takes up to `room` events. Returns -EIO if the queue has been closed. */
static int faultline_events_take(struct faultline_events *events,
				 struct faultline_event *batch, u32 room)
{
	u32 n = 0;

	spin_lock(&events->lock);
	if (!events->ring) {
		spin_unlock(&events->lock);
		return -EIO;
	}
	/* Report it first, so that other events cannot delay it. */
	if (events->overflow) {
		events->overflow = false;
		batch[n++] = (struct faultline_event) {
			.type = FAULTLINE_EVENT_OVERFLOW,
			.end = U64_MAX,
		};
	}
	while (n < room && events->count) {
		batch[n++] = *faultline_events_slot(events, 0);
		events->head = (events->head + 1) % events->depth;
		events->count--;
	}
	spin_unlock(&events->lock);
	return n;
}

static bool faultline_events_ready(struct faultline_events *events)
{
	bool ready;

	spin_lock(&events->lock);
	ready = !events->ring || events->count || events->overflow;
	spin_unlock(&events->lock);
	return ready;
}

static ssize_t faultline_events_read(struct file *filp, char __user *buf,
				     size_t size, loff_t *pos)
{
	struct faultline_events *events = filp->private_data;
	struct faultline_event batch[FAULTLINE_EVENTS_BATCH];
	size_t room = size / sizeof(batch[0]);
	size_t done = 0;
	int n;

	if (!room)
		return -EINVAL;
	WRITE_ONCE(events->reader, task_pid_nr(current));
	while (done < room) {
		n = faultline_events_take(events, batch,
					  min_t(size_t, room - done,
						ARRAY_SIZE(batch)));
		if (n < 0)
			return n;
		if (!n && done)
			break;
		if (!n) {
			if (filp->f_flags & O_NONBLOCK)
				return -EAGAIN;
			if (wait_event_interruptible(events->wait,
						     faultline_events_ready(events)))
				return -ERESTARTSYS;
			continue;
		}
		if (copy_to_user(buf + done * sizeof(batch[0]), batch,
				 n * sizeof(batch[0]))) {
			spin_lock(&events->lock);
			events->overflow = true;
			spin_unlock(&events->lock);
			return -EFAULT;
		}
		done += n;
	}
	return done * sizeof(batch[0]);
}

static __poll_t faultline_events_poll(struct file *filp,
				      struct poll_table_struct *table)
{
	struct faultline_events *events = filp->private_data;
	__poll_t mask = 0;

	poll_wait(filp, &events->wait, table);
	spin_lock(&events->lock);
	if (!events->ring)
		mask = EPOLLIN | EPOLLRDNORM | EPOLLERR | EPOLLHUP;
	else if (events->count || events->overflow)
		mask = EPOLLIN | EPOLLRDNORM;
	spin_unlock(&events->lock);
	return mask;
}

static const struct file_operations faultline_events_fops = {
	.owner = THIS_MODULE,
	.read = faultline_events_read,
	.poll = faultline_events_poll,
	.release = uverbs_uobject_fd_release,
};

/* Returns the queue of a file descriptor, with a reference on it. */
struct faultline_events *faultline_events_get(struct faultline_dev *dev, int fd)
{
	struct faultline_events *events = ERR_PTR(-EBADF);
	struct file *file = fget(fd);

	if (!file)
		return events;
	/* The core sets private_data before it installs the descriptor. */
	if (file->f_op == &faultline_events_fops) {
		events = file->private_data;
		if (events->dev == dev)
			uverbs_uobject_get(&events->uobj);
		else
			events = ERR_PTR(-EINVAL);
	}
	fput(file);
	return events;
}

/* The last reference frees the memory. */
void faultline_events_put(struct faultline_events *events)
{
	uverbs_uobject_put(&events->uobj);
}

/* The descriptor was closed or the device removed: readers get errors. */
static void faultline_events_destroy(struct ib_uobject *uobj,
				     enum rdma_remove_reason why)
{
	struct faultline_events *events =
		container_of(uobj, struct faultline_events, uobj);
	struct faultline_event *ring;

	spin_lock(&events->lock);
	ring = events->ring;
	WRITE_ONCE(events->ring, NULL);
	spin_unlock(&events->lock);
	wake_up_interruptible_all(&events->wait);
	kvfree(ring);
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_EVENTS_CREATE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_uobject *uobj =
		uverbs_attr_get_uobject(attrs, FAULTLINE_ATTR_EVENTS_CREATE_FD);
	struct faultline_events *events =
		container_of(uobj, struct faultline_events, uobj);
	struct ib_ucontext *ibctx = ib_uverbs_get_ucontext(attrs);
	u32 depth;
	int err;

	spin_lock_init(&events->lock);
	init_waitqueue_head(&events->wait);
	if (IS_ERR(ibctx))
		return PTR_ERR(ibctx);
	err = uverbs_copy_from(&depth, attrs,
			       FAULTLINE_ATTR_EVENTS_CREATE_DEPTH);
	if (err)
		return err;
	if (!depth || depth > FAULTLINE_MAX_EVENTS_DEPTH)
		return -EINVAL;
	events->dev = to_fdev(ibctx->device);
	events->depth = depth;
	events->ring = kvcalloc(depth, sizeof(*events->ring),
				GFP_KERNEL_ACCOUNT);
	if (!events->ring)
		return -ENOMEM;
	uverbs_finalize_uobj_create(attrs, FAULTLINE_ATTR_EVENTS_CREATE_FD);
	return 0;
}

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_EVENTS_CREATE,
	UVERBS_ATTR_FD(FAULTLINE_ATTR_EVENTS_CREATE_FD, FAULTLINE_OBJECT_EVENTS,
		       UVERBS_ACCESS_NEW, UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(FAULTLINE_ATTR_EVENTS_CREATE_DEPTH,
			   UVERBS_ATTR_TYPE(u32), UA_MANDATORY));

DECLARE_UVERBS_NAMED_OBJECT(
	FAULTLINE_OBJECT_EVENTS,
	UVERBS_TYPE_ALLOC_FD(sizeof(struct faultline_events),
			     faultline_events_destroy, &faultline_events_fops,
			     "[faultline-events]", O_RDONLY),
	&UVERBS_METHOD(FAULTLINE_METHOD_EVENTS_CREATE));

const struct uapi_definition faultline_events_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(FAULTLINE_OBJECT_EVENTS),
	{}
};
