// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Event queues of the device
 *
 * Event queues, their MSI-X vectors, and the objects that events name.
 *
 * Locking: faultline_eq.lock (taken in interrupts) protects the consumer index
 * of the queue. It serializes the interrupt and the search for lost interrupts
 * in faultline_dev.health_work. Event handlers run under it, so they must not
 * sleep. They take, under it, the lock of the admin queue, faultline_odp.lock,
 * faultline_cm.lock, faultline_dev.ib_event_lock, or those of a consumer's
 * handler.
 *
 * The lock of each array (faultline_dev.cqs, qps, srqs) protects the array and
 * the objects in it until a reference is taken; it is not held while the
 * handler runs. faultline_res_remove() waits for the last reference.
 *
 * Queues are created and destroyed under faultline_dev.state_lock.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>
#include <linux/slab.h>

#include "faultline_cmd.h"

#define FAULTLINE_EQ_DEPTH	BIT(FAULTLINE_EQ_LOG_DEPTH)
/* Attempts, at least 1 ms apart, to use the number of a destroyed object. */
#define FAULTLINE_NUMBER_TRIES	10000
/* Maximum number of events that one interrupt handles. */
#define FAULTLINE_EQ_BUDGET	256
#define FAULTLINE_EQ_SIZE	(FAULTLINE_EQ_DEPTH * sizeof(struct faultline_eqe))

void faultline_res_init(struct faultline_res *res, u32 num,
			void (*event)(struct faultline_res *res, u8 kind))
{
	res->num = num;
	res->event = event;
	refcount_set(&res->refs, 1);
	init_completion(&res->unused);
}

/*
 * Makes an object known to event handlers. The device may have reused the
 * number of a destroyed object that the driver has not removed yet: then this
 * waits for the removal. A number that stays in use ends the device.
 */
int faultline_res_add(struct faultline_dev *dev, struct xarray *xa,
		      struct faultline_res *res)
{
	unsigned int tries = FAULTLINE_NUMBER_TRIES;
	int err;

	while ((err = xa_insert_irq(xa, res->num, res, GFP_KERNEL)) == -EBUSY &&
	       tries-- && !faultline_is_dead(dev))
		usleep_range(1000, 2000);
	if (err != -EBUSY)
		return err;
	if (!faultline_is_dead(dev))
		faultline_err(dev, "the device has assigned number %#x twice\n",
			      res->num);
	faultline_fail(dev, "number of an object in use");
	return -EIO;
}

/* Hides an object from event handlers, and waits for running ones. */
void faultline_res_remove(struct xarray *xa, struct faultline_res *res)
{
	/* If faultline_res_add() has failed, the object is not in the array. */
	xa_cmpxchg_irq(xa, res->num, res, NULL, 0);
	faultline_res_put(res);
	wait_for_completion(&res->unused);
}

struct faultline_res *faultline_res_get(struct xarray *xa, u32 num)
{
	struct faultline_res *res;
	unsigned long flags;

	xa_lock_irqsave(xa, flags);
	res = xa_load(xa, num);
	if (res)
		refcount_inc(&res->refs);
	xa_unlock_irqrestore(xa, flags);
	return res;
}

void faultline_res_put(struct faultline_res *res)
{
	if (refcount_dec_and_test(&res->refs))
		complete(&res->unused);
}

static void faultline_res_event(struct xarray *xa, u32 num, u8 kind)
{
	struct faultline_res *res = faultline_res_get(xa, num);

	/* The queue may have events of an object that has been destroyed. */
	if (!res)
		return;
	res->event(res, kind);
	faultline_res_put(res);
}

/*
 * Returns true if events of this kind belong to the queue: page faults have a
 * queue of their own, and completions, as many as processes cause, must not
 * delay other events.
 */
static bool faultline_eq_takes(const struct faultline_eq *eq, u8 kind)
{
	switch (kind) {
	case FAULTLINE_EVENT_COMPLETION:
		return eq->vector >= FAULTLINE_EQ_COMP;
	case FAULTLINE_EVENT_PAGE_FAULT:
		return eq->vector == FAULTLINE_EQ_FAULTS;
	default:
		return eq->vector == FAULTLINE_EQ_ASYNC;
	}
}

/*
 * Handles an event. Objects are found by their numbers in arrays of one type,
 * so a wrong number is that of another object, or of none, but never memory of
 * another type. An unknown kind is ignored: a newer device may have it.
 */
static void faultline_handle_event(const struct faultline_eq *eq,
				   const struct faultline_eqe *eqe)
{
	struct faultline_dev *dev = eq->dev;
	u32 object = le32_to_cpu(eqe->object);

	if (!faultline_eq_takes(eq, eqe->kind)) {
		faultline_err(dev, "event %#x in the queue of vector %u\n",
			      eqe->kind, eq->vector);
		faultline_fail(dev, "event in a wrong queue");
		return;
	}
	switch (eqe->kind) {
	case FAULTLINE_EVENT_COMPLETION:
	case FAULTLINE_EVENT_CQ_ERROR:
		faultline_res_event(&dev->cqs, object, eqe->kind);
		break;
	case FAULTLINE_EVENT_ADMIN:
		faultline_cmdq_process(&dev->admin);
		break;
	case FAULTLINE_EVENT_PAGE_FAULT:
		faultline_odp_fault(dev, eqe);
		break;
	case FAULTLINE_EVENT_QP_FATAL:
	case FAULTLINE_EVENT_QP_REQUEST_ERROR:
	case FAULTLINE_EVENT_QP_ACCESS_ERROR:
	case FAULTLINE_EVENT_COMM_ESTABLISHED:
	case FAULTLINE_EVENT_SQ_DRAINED:
	case FAULTLINE_EVENT_LAST_WQE_REACHED:
	case FAULTLINE_EVENT_CONNECTED:
	case FAULTLINE_EVENT_CONNECT_FAILED:
	case FAULTLINE_EVENT_PEER_CLOSED:
	case FAULTLINE_EVENT_CONNECTION_CLOSED:
		faultline_res_event(&dev->qps, object, eqe->kind);
		break;
	case FAULTLINE_EVENT_CONNECTION_REQUEST:
	case FAULTLINE_EVENT_REQUEST_GONE:
		faultline_cm_event(dev, eqe->kind, object,
				   le64_to_cpu(eqe->token));
		break;
	case FAULTLINE_EVENT_SRQ_LIMIT:
	case FAULTLINE_EVENT_SRQ_ERROR:
		faultline_res_event(&dev->srqs, object, eqe->kind);
		break;
	case FAULTLINE_EVENT_PORT_UP:
	case FAULTLINE_EVENT_PORT_DOWN:
		faultline_net_link(dev,
				   eqe->kind == FAULTLINE_EVENT_PORT_UP);
		break;
	case FAULTLINE_EVENT_STALL_TIMEOUT:
		dev_warn_ratelimited(&dev->pdev->dev,
				     "QP %u held up all packets too long for a page: taken for a deadlock\n",
				     object);
		break;
	case FAULTLINE_EVENT_DEVICE_FATAL:
		faultline_fail(dev, "device reports a fatal error");
		break;
	default:
		dev_warn_ratelimited(&dev->pdev->dev, "unknown event %u\n",
				     eqe->kind);
	}
}

/*
 * Handles at most FAULTLINE_EQ_BUDGET events, since processes can cause events
 * as fast as this function handles them. Returns true if there were any.
 */
static bool faultline_eq_process(struct faultline_eq *eq)
{
	struct faultline_dev *dev = eq->dev;
	unsigned long flags;
	u32 first;
	bool any;

	spin_lock_irqsave(&eq->lock, flags);
	first = eq->consumer;
	while (!faultline_is_dead(dev) &&
	       eq->consumer - first < FAULTLINE_EQ_BUDGET) {
		const struct faultline_eqe *entry =
			&eq->ring[eq->consumer % FAULTLINE_EQ_DEPTH];
		struct faultline_eqe eqe;

		if (READ_ONCE(entry->phase) !=
		    faultline_phase(eq->consumer, FAULTLINE_EQ_LOG_DEPTH))
			break;
		dma_rmb();
		faultline_copy_entry(&eqe, entry, sizeof(eqe));
		faultline_handle_event(eq, &eqe);
		eq->consumer++;
		/* Report free entries before the queue is full. */
		if (!(eq->consumer % (FAULTLINE_EQ_DEPTH / 4)))
			faultline_doorbell(dev, FAULTLINE_DB_EQ_ARM, eq->eqn,
					   eq->consumer);
	}
	any = eq->consumer != first;
	/* If unread events remain, this raises the interrupt at once. */
	faultline_doorbell(dev, FAULTLINE_DB_EQ_ARM, eq->eqn, eq->consumer);
	spin_unlock_irqrestore(&eq->lock, flags);
	return any;
}

static bool faultline_eq_pending(const struct faultline_eq *eq)
{
	u32 consumer = READ_ONCE(eq->consumer);

	return READ_ONCE(eq->ring[consumer % FAULTLINE_EQ_DEPTH].phase) ==
	       faultline_phase(consumer, FAULTLINE_EQ_LOG_DEPTH);
}

static irqreturn_t faultline_eq_irq(int irq, void *data)
{
	struct faultline_eq *eq = data;

	if (!faultline_eq_pending(eq))
		faultline_suspect_reset(eq->dev);
	faultline_eq_process(eq);
	return IRQ_HANDLED;
}

/*
 * Handles events whose interrupt was lost: events that have been pending since
 * the previous call, one second ago.
 */
void faultline_eqs_check_lost(struct faultline_dev *dev)
{
	unsigned int i;

	for (i = 0; i < dev->num_eqs; i++) {
		struct faultline_eq *eq = &dev->eqs[i];
		u32 consumer = READ_ONCE(eq->consumer);

		bool stuck = eq->was_pending && eq->last_consumer == consumer;

		eq->was_pending = faultline_eq_pending(eq);
		eq->last_consumer = consumer;
		if (!stuck || !eq->was_pending)
			continue;
		if (faultline_eq_process(eq)) {
			atomic64_inc(&dev->lost_interrupts);
			dev_warn_ratelimited(&dev->pdev->dev,
					     "lost interrupt of vector %u\n",
					     eq->vector);
		}
	}
}

/* Waits until all event handlers that run have returned. */
void faultline_eqs_sync(struct faultline_dev *dev)
{
	unsigned int i;

	for (i = 0; i < dev->num_eqs; i++) {
		synchronize_irq(dev->eqs[i].irq);
		/* faultline_eqs_check_lost() handles events, too. */
		spin_lock_irq(&dev->eqs[i].lock);
		spin_unlock_irq(&dev->eqs[i].lock);
	}
}

/*
 * Handles the events that the device has written so far, except completions and
 * page faults. At most as many as the queue has: then more have followed.
 */
void faultline_eq_drain(struct faultline_dev *dev)
{
	unsigned int rounds = FAULTLINE_EQ_DEPTH / FAULTLINE_EQ_BUDGET;

	while (rounds-- && faultline_eq_process(&dev->eqs[FAULTLINE_EQ_ASYNC]))
		cond_resched();
}

static int faultline_eq_create(struct faultline_dev *dev, unsigned int vector,
			       u32 flags)
{
	struct faultline_eq *eq = &dev->eqs[vector];
	struct faultline_create_eq params = {};
	unsigned int cpu;
	int err;

	eq->dev = dev;
	eq->vector = vector;
	spin_lock_init(&eq->lock);
	eq->ring = dma_alloc_coherent(&dev->pdev->dev, FAULTLINE_EQ_SIZE,
				      &eq->dma, GFP_KERNEL);
	if (!eq->ring)
		return -ENOMEM;

	params.ring.addr = cpu_to_le64(eq->dma);
	params.ring.num_pages = cpu_to_le32(FAULTLINE_EQ_SIZE >> PAGE_SHIFT);
	params.ring.page_shift = PAGE_SHIFT;
	params.log_depth = FAULTLINE_EQ_LOG_DEPTH;
	params.vector = cpu_to_le16(vector);
	params.flags = cpu_to_le32(flags);
	err = faultline_cmd_create_eq(dev, &params, &eq->eqn);
	if (err)
		goto free_ring;

	snprintf(eq->name, sizeof(eq->name), "%s-%s-%u@pci:%s",
		 FAULTLINE_DRV_NAME,
		 vector == FAULTLINE_EQ_ASYNC ? "async" :
		 vector == FAULTLINE_EQ_FAULTS ? "faults" : "comp", vector,
		 pci_name(dev->pdev));
	eq->irq = pci_irq_vector(dev->pdev, vector);
	err = request_irq(eq->irq, faultline_eq_irq, 0, eq->name, eq);
	if (err)
		goto destroy;
	if (vector >= FAULTLINE_EQ_COMP) {
		cpu = cpumask_local_spread(vector - FAULTLINE_EQ_COMP,
					   dev_to_node(&dev->pdev->dev));
		irq_set_affinity_and_hint(eq->irq, cpumask_of(cpu));
	}
	dev->num_eqs = vector + 1;
	faultline_doorbell(dev, FAULTLINE_DB_EQ_ARM, eq->eqn, 0);
	return 0;

destroy:
	/* If it refuses, the device may still write to the ring. */
	if (faultline_dead_ok(dev, faultline_cmd_destroy_eq(dev, eq->eqn)))
		return err;
free_ring:
	dma_free_coherent(&dev->pdev->dev, FAULTLINE_EQ_SIZE, eq->ring,
			  eq->dma);
	return err;
}

static void faultline_eq_destroy(struct faultline_dev *dev,
				 struct faultline_eq *eq)
{
	int err;

	if (eq->vector == FAULTLINE_EQ_ASYNC && !faultline_is_dead(dev))
		faultline_write(dev, FAULTLINE_REG_ADMIN_EQN,
				FAULTLINE_INVALID_EQN);
	irq_update_affinity_hint(eq->irq, NULL);
	free_irq(eq->irq, eq);
	err = faultline_dead_ok(dev, faultline_cmd_destroy_eq(dev, eq->eqn));
	if (err) {
		/* The device may still write to the ring: do not free it. */
		faultline_err(dev, "EQ %u: can't destroy: %d\n", eq->eqn, err);
		return;
	}
	dma_free_coherent(&dev->pdev->dev, FAULTLINE_EQ_SIZE, eq->ring,
			  eq->dma);
}

void faultline_eqs_destroy(struct faultline_dev *dev)
{
	while (dev->num_eqs) {
		dev->num_eqs--;
		faultline_eq_destroy(dev, &dev->eqs[dev->num_eqs]);
	}
	kfree(dev->eqs);
	dev->eqs = NULL;
	pci_free_irq_vectors(dev->pdev);
}

int faultline_eqs_create(struct faultline_dev *dev)
{
	unsigned int max = FAULTLINE_EQ_COMP + num_online_cpus();
	unsigned int i;
	int vectors, err;

	max = min3(max, (unsigned int)FAULTLINE_MSIX_VECTORS,
		   le32_to_cpu(dev->caps.max_eq));
	vectors = pci_alloc_irq_vectors(dev->pdev, FAULTLINE_EQ_COMP + 1, max,
					PCI_IRQ_MSIX);
	if (vectors < 0) {
		faultline_err(dev, "no MSI-X vectors: %d\n", vectors);
		return vectors;
	}
	dev->eqs = kcalloc(vectors, sizeof(*dev->eqs), GFP_KERNEL);
	if (!dev->eqs) {
		pci_free_irq_vectors(dev->pdev);
		return -ENOMEM;
	}
	for (i = 0; i < vectors; i++) {
		u32 flags = 0;

		if (i == FAULTLINE_EQ_ASYNC)
			flags = FAULTLINE_EQ_FLAG_EQ_ASYNC;
		else if (i == FAULTLINE_EQ_FAULTS)
			flags = FAULTLINE_EQ_FLAG_EQ_FAULTS;
		err = faultline_eq_create(dev, i, flags);
		if (err) {
			faultline_err(dev, "event queue %u: %d\n", i, err);
			faultline_eqs_destroy(dev);
			return err;
		}
		if (i == FAULTLINE_EQ_ASYNC)
			faultline_write(dev, FAULTLINE_REG_ADMIN_EQN,
					dev->eqs[i].eqn);
	}
	return 0;
}

unsigned int faultline_num_comp_vectors(const struct faultline_dev *dev)
{
	return dev->num_eqs - FAULTLINE_EQ_COMP;
}

u32 faultline_comp_eqn(const struct faultline_dev *dev, unsigned int vector)
{
	vector %= faultline_num_comp_vectors(dev);
	return dev->eqs[FAULTLINE_EQ_COMP + vector].eqn;
}
