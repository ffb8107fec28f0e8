// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Address handles
 *
 * The device creates and destroys address handles by commands, which sleep. The
 * kernel also creates and destroys handles with interrupts disabled (the
 * connection manager does): then a work item executes the command. Until the
 * handle has been created, send requests that use it stay in the ring without
 * a doorbell.
 *
 * Locking: faultline_dev.ah_lock (taken with interrupts disabled) protects the
 * lists ah_todo and ah_waiters, and the result and `destroyed` of each handle.
 * It may be taken under a send queue's lock, not the other way round.
 */
#include <linux/slab.h>

#include "faultline_cmd.h"
#include "faultline_ib.h"

/* Not a valid handle: requests with it complete with an error. */
#define FAULTLINE_NO_AH	U32_MAX

/* A handle in the device. Requests in the ring hold references, too. */
struct faultline_ah_handle {
	struct kref refs;
	/* In dev->ah_todo while a command is pending. */
	struct list_head link;
	u32 pdn;
	struct faultline_av av;
	/* Under dev->ah_lock: the number, or the error of the creation. */
	u32 ahn;
	int err;
	/* Under dev->ah_lock: destroy it once it has been created. */
	bool destroyed;
};

static void faultline_ah_handle_free(struct kref *refs)
{
	kfree(container_of(refs, struct faultline_ah_handle, refs));
}

static void faultline_ah_handle_put(struct faultline_ah_handle *handle)
{
	kref_put(&handle->refs, faultline_ah_handle_free);
}

/* Returns the next handle with a pending command, or NULL. */
static struct faultline_ah_handle *faultline_ah_next(struct faultline_dev *dev)
{
	struct faultline_ah_handle *handle;

	spin_lock_irq(&dev->ah_lock);
	handle = list_first_entry_or_null(&dev->ah_todo,
					  struct faultline_ah_handle, link);
	if (handle)
		list_del_init(&handle->link);
	spin_unlock_irq(&dev->ah_lock);
	return handle;
}

/* Rings the doorbells of queue pairs that waited for address handles. */
static void faultline_ah_resume_qps(struct faultline_dev *dev)
{
	struct faultline_qp *qp;
	LIST_HEAD(waiting);

	spin_lock_irq(&dev->ah_lock);
	/* Queue pairs that must wait longer are added to the list again. */
	list_splice_init(&dev->ah_waiters, &waiting);
	while ((qp = list_first_entry_or_null(&waiting, struct faultline_qp,
					      ah_wait_entry))) {
		list_del_init(&qp->ah_wait_entry);
		/* Fails if the queue pair is being destroyed. */
		if (!refcount_inc_not_zero(&qp->res.refs))
			continue;
		spin_unlock_irq(&dev->ah_lock);
		spin_lock_irq(&qp->sq.lock);
		faultline_sq_ring(qp);
		spin_unlock_irq(&qp->sq.lock);
		faultline_res_put(&qp->res);
		spin_lock_irq(&dev->ah_lock);
	}
	spin_unlock_irq(&dev->ah_lock);
}

static bool faultline_ah_created(const struct faultline_ah_handle *handle)
{
	/* Pairs with the release in faultline_ah_set(). */
	return smp_load_acquire(&handle->err) != -EINPROGRESS;
}

/* Sets the result of the creation; dev->ah_lock is held. */
static void faultline_ah_set(struct faultline_ah_handle *handle, u32 ahn,
			     int err)
{
	handle->ahn = err ? FAULTLINE_NO_AH : ahn;
	/* Pairs with the acquire in faultline_ah_created(). */
	smp_store_release(&handle->err, err);
}

void faultline_ah_work(struct work_struct *work)
{
	struct faultline_dev *dev =
		container_of(work, struct faultline_dev, ah_work);
	struct faultline_ah_handle *handle;
	bool destroyed;
	u32 ahn = 0;
	int err;

	while ((handle = faultline_ah_next(dev))) {
		if (!faultline_ah_created(handle)) {
			err = faultline_cmd_create_ah(dev, handle->pdn,
						      &handle->av, &ahn);
			spin_lock_irq(&dev->ah_lock);
			faultline_ah_set(handle, ahn, err);
			destroyed = handle->destroyed;
			spin_unlock_irq(&dev->ah_lock);
			faultline_ah_resume_qps(dev);
			if (!destroyed)
				continue;
		}
		if (!handle->err)
			faultline_cmd_destroy_ah(dev, handle->ahn);
		faultline_ah_handle_put(handle);
	}
	faultline_ah_resume_qps(dev);
}

int faultline_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init_attr,
			struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibah->device);
	bool sleepable = init_attr->flags & RDMA_CREATE_AH_SLEEPABLE;
	bool dead = faultline_is_dead(dev);
	struct faultline_create_ah_resp resp = {};
	struct faultline_ah_handle *handle;
	unsigned long flags;
	int err;

	err = ib_is_udata_in_empty(udata);
	if (err)
		return err;
	if (!(rdma_ah_get_ah_flags(init_attr->ah_attr) & IB_AH_GRH))
		return -EINVAL;
	if (dead && udata)
		return -EIO;
	handle = kzalloc(sizeof(*handle), sleepable ? GFP_KERNEL : GFP_ATOMIC);
	if (!handle)
		return -ENOMEM;
	kref_init(&handle->refs);
	INIT_LIST_HEAD(&handle->link);
	handle->pdn = to_fpd(ibah->pd)->pdn;
	faultline_av_fill(&handle->av, init_attr->ah_attr);
	to_fah(ibah)->handle = handle;
	/*
	 * Without a handle, the CM sends no DREQ, and tells the consumer
	 * nothing. With one, the MAD fails; see faultline_flush_status().
	 */
	if (dead) {
		handle->err = -EIO;
		return 0;
	}
	if (!sleepable) {
		handle->err = -EINPROGRESS;
		spin_lock_irqsave(&dev->ah_lock, flags);
		list_add_tail(&handle->link, &dev->ah_todo);
		spin_unlock_irqrestore(&dev->ah_lock, flags);
		queue_work(dev->wq, &dev->ah_work);
		return 0;
	}
	err = faultline_cmd_create_ah(dev, handle->pdn, &handle->av,
				      &handle->ahn);
	if (err)
		goto put;
	resp.ahn = handle->ahn;
	err = faultline_respond(udata, resp);
	if (err)
		goto destroy;
	return 0;

destroy:
	faultline_cmd_destroy_ah(dev, handle->ahn);
put:
	faultline_ah_handle_put(handle);
	return err;
}

static int faultline_destroy_ah_now(struct faultline_dev *dev,
				    struct faultline_ah_handle *handle)
{
	int err = 0;

	if (!faultline_ah_created(handle))
		flush_work(&dev->ah_work);
	if (!handle->err)
		err = faultline_dead_ok(
			dev, faultline_cmd_destroy_ah(dev, handle->ahn));
	if (!err)
		faultline_ah_handle_put(handle);
	return err;
}

int faultline_destroy_ah(struct ib_ah *ibah, u32 flags)
{
	struct faultline_dev *dev = to_fdev(ibah->device);
	struct faultline_ah_handle *handle = to_fah(ibah)->handle;
	unsigned long irq_flags;
	bool uncreated;

	if (flags & RDMA_DESTROY_AH_SLEEPABLE)
		return faultline_destroy_ah_now(dev, handle);
	spin_lock_irqsave(&dev->ah_lock, irq_flags);
	uncreated = !faultline_ah_created(handle) && !list_empty(&handle->link);
	if (uncreated) {
		list_del_init(&handle->link);
		faultline_ah_set(handle, 0, -ECANCELED);
	} else if (!faultline_ah_created(handle)) {
		/* The work item that creates the handle checks this later. */
		handle->destroyed = true;
	} else {
		list_add_tail(&handle->link, &dev->ah_todo);
	}
	spin_unlock_irqrestore(&dev->ah_lock, irq_flags);
	if (uncreated)
		faultline_ah_handle_put(handle);
	queue_work(dev->wq, &dev->ah_work);
	return 0;
}

/* Waits until all pending commands have been executed. */
void faultline_ah_flush(struct faultline_dev *dev)
{
	flush_work(&dev->ah_work);
}

/*
 * Enters the handle into the request at a ring index. If the device has not
 * created it yet, the request must wait. The send queue's lock is held.
 */
void faultline_ah_reference(struct faultline_qp *qp, u32 index,
			    struct faultline_sq_wqe *wqe, struct ib_ah *ibah)
{
	struct faultline_ah_handle *handle = to_fah(ibah)->handle;
	u32 slot = index & (faultline_wq_depth(&qp->sq) - 1);

	if (likely(faultline_ah_created(handle))) {
		wqe->ah = cpu_to_le32(handle->ahn);
		return;
	}
	kref_get(&handle->refs);
	qp->pending_ahs[slot] = handle;
}

/* Returns true if the request need not wait. The send queue's lock is held. */
bool faultline_ah_ready(struct faultline_qp *qp, u32 index)
{
	struct faultline_dev *dev = to_fdev(qp->ibqp.device);
	u32 slot = index & (faultline_wq_depth(&qp->sq) - 1);
	struct faultline_ah_handle *handle = qp->pending_ahs[slot];
	struct faultline_sq_wqe *wqe;
	unsigned long flags;
	bool ready;

	if (likely(!handle))
		return true;
	spin_lock_irqsave(&dev->ah_lock, flags);
	ready = faultline_ah_created(handle);
	/* The work item sets the result first, and then reads the list. */
	if (!ready && list_empty(&qp->ah_wait_entry))
		list_add_tail(&qp->ah_wait_entry, &dev->ah_waiters);
	spin_unlock_irqrestore(&dev->ah_lock, flags);
	if (!ready)
		return false;
	wqe = faultline_wq_entry(&qp->sq, index);
	wqe->ah = cpu_to_le32(handle->ahn);
	qp->pending_ahs[slot] = NULL;
	faultline_ah_handle_put(handle);
	return true;
}

/* Drops all requests in the ring. */
void faultline_ah_reset(struct faultline_qp *qp)
{
	struct faultline_dev *dev = to_fdev(qp->ibqp.device);
	u32 i;

	if (!qp->pending_ahs)
		return;
	spin_lock_irq(&qp->sq.lock);
	spin_lock(&dev->ah_lock);
	list_del_init(&qp->ah_wait_entry);
	spin_unlock(&dev->ah_lock);
	for (i = 0; i < faultline_wq_depth(&qp->sq); i++) {
		if (qp->pending_ahs[i])
			faultline_ah_handle_put(qp->pending_ahs[i]);
		qp->pending_ahs[i] = NULL;
	}
	qp->sq.producer = 0;
	qp->doorbell_producer = 0;
	spin_unlock_irq(&qp->sq.lock);
}
