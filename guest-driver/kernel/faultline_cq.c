// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Completion queues
 *
 * User CQs are polled by the process; see the provider.
 *
 * The device is not trusted: an entry is copied, and each value of the copy is
 * checked before it is used. An entry that the device may not write ends the
 * device (faultline_fail()), and all outstanding requests are flushed.
 *
 * Locking: faultline_cq.lock (taken with interrupts disabled, in any context)
 * protects the consumer index and the lists of QPs of a kernel CQ. It also
 * keeps the QPs that a poll finds: a QP is removed under this lock before it is
 * freed. Under it, faultline_wq.lock of an SRQ and the lock of the array
 * faultline_dev.qps are taken, and no other lock of the driver: polls free the
 * entries of a QP's work queues by a release of the consumer index.
 * faultline_cq.resize_lock (a mutex) serializes resizing of a CQ of a process,
 * and protects its ring.
 *
 * faultline_cq_event() runs in interrupt context, under faultline_eq.lock, and
 * in a work item if the device is dead. comp_handler may poll and arm the CQ.
 */
#include <linux/if_vlan.h>
#include <linux/log2.h>
#include <linux/slab.h>

#include "faultline_ib.h"

/* log2 of the size of an entry. */
#define FAULTLINE_CQE_SHIFT	6

static u32 faultline_cq_depth(const struct faultline_cq *cq)
{
	return BIT(cq->log_depth);
}

static struct faultline_cqe *faultline_cq_entry(struct faultline_cq *cq,
						u32 index)
{
	index &= faultline_cq_depth(cq) - 1;
	return faultline_buf_at(&cq->buf, (size_t)index << FAULTLINE_CQE_SHIFT);
}

static bool faultline_cq_has(struct faultline_cq *cq, u32 index)
{
	return READ_ONCE(faultline_cq_entry(cq, index)->phase) ==
	       faultline_phase(index, cq->log_depth);
}

static struct faultline_cq_record *faultline_cq_record(struct faultline_cq *cq)
{
	return faultline_buf_at(&cq->buf, (size_t)faultline_cq_depth(cq) <<
						  FAULTLINE_CQE_SHIFT);
}

void faultline_cq_event(struct faultline_res *res, u8 kind)
{
	struct faultline_cq *cq = container_of(res, struct faultline_cq, res);
	struct ib_event event = {
		.device = cq->ibcq.device,
		.element.cq = &cq->ibcq,
		.event = IB_EVENT_CQ_ERR,
	};

	if (kind == FAULTLINE_EVENT_COMPLETION) {
		if (cq->ibcq.comp_handler)
			cq->ibcq.comp_handler(&cq->ibcq, cq->ibcq.cq_context);
		return;
	}
	ibdev_err(cq->ibcq.device, "CQ %u overflowed or can't be written\n",
		  res->num);
	if (cq->ibcq.event_handler)
		cq->ibcq.event_handler(&event, cq->ibcq.cq_context);
}

static void faultline_cq_notify_work(struct work_struct *work)
{
	struct faultline_cq *cq =
		container_of(work, struct faultline_cq, notify_work);

	faultline_cq_event(&cq->res, FAULTLINE_EVENT_COMPLETION);
}

/*
 * Makes the consumer poll a CQ of a dead device, which flushes its requests.
 * Uses a work item, since the caller may hold any lock.
 */
void faultline_cq_notify_dead(struct faultline_cq *cq)
{
	if (!cq->user)
		queue_work(to_fdev(cq->ibcq.device)->wq, &cq->notify_work);
}

static int faultline_cq_buf(struct faultline_cq *cq, unsigned int entries,
			    struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(cq->ibcq.device);
	struct faultline_create_cq_req req;
	int err;

	if (!udata) {
		cq->log_depth = order_base_2(max(entries, 4U));
		return faultline_buf_alloc(dev, &cq->buf, cq->log_depth,
					   FAULTLINE_CQE_SHIFT);
	}
	cq->user = true;
	err = ib_copy_validate_udata_in(udata, req, reserved);
	if (err)
		return err;
	if (req.reserved)
		return -EINVAL;
	err = faultline_buf_pin(dev, &cq->buf, req.buf_addr, req.log_depth,
				FAULTLINE_CQE_SHIFT, entries);
	/* Fits: faultline_buf_pin() limits it to FAULTLINE_MAX_LOG_DEPTH. */
	cq->log_depth = req.log_depth;
	return err;
}

int faultline_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
			struct uverbs_attr_bundle *attrs)
{
	struct ib_udata *udata = attrs ? &attrs->driver_udata : NULL;
	struct faultline_dev *dev = to_fdev(ibcq->device);
	struct faultline_cq *cq = to_fcq(ibcq);
	struct faultline_create_cq params = {};
	struct faultline_create_cq_resp resp = {};
	u32 cqn;
	int err;

	if (attr->flags & ~IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > le32_to_cpu(dev->caps.max_cqe))
		return -EINVAL;
	spin_lock_init(&cq->lock);
	mutex_init(&cq->resize_lock);
	INIT_LIST_HEAD(&cq->send_qps);
	INIT_LIST_HEAD(&cq->recv_qps);
	INIT_WORK(&cq->notify_work, faultline_cq_notify_work);
	err = faultline_cq_buf(cq, attr->cqe, udata);
	if (err)
		return err;

	params.ring = cq->buf.ring;
	params.log_depth = cq->log_depth;
	params.eqn = cpu_to_le32(faultline_comp_eqn(dev, attr->comp_vector));
	params.uctx = cpu_to_le32(faultline_udata_uctx(udata));
	err = faultline_cmd_create_cq(dev, &params, &cqn);
	faultline_buf_created(dev, &cq->buf);
	if (err)
		goto free_buf;

	faultline_res_init(&cq->res, cqn, faultline_cq_event);
	err = faultline_res_add(dev, &dev->cqs, &cq->res);
	if (err)
		goto destroy;
	ibcq->cqe = faultline_cq_depth(cq);
	resp.cqn = cqn;
	err = faultline_respond(udata, resp);
	if (err)
		goto remove;
	return 0;

remove:
	faultline_res_remove(&dev->cqs, &cq->res);
destroy:
	faultline_cmd_destroy_cq(dev, cqn);
free_buf:
	faultline_buf_free(dev, &cq->buf);
	return faultline_verb_error(dev, udata, err);
}

int faultline_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibcq->device);
	struct faultline_cq *cq = to_fcq(ibcq);
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	err = faultline_dead_ok(dev,
				faultline_cmd_destroy_cq(dev, cq->res.num));
	if (err)
		return err;
	faultline_res_remove(&dev->cqs, &cq->res);
	disable_work_sync(&cq->notify_work);
	faultline_buf_free(dev, &cq->buf);
	return 0;
}

int faultline_modify_cq(struct ib_cq *ibcq, u16 count, u16 period)
{
	struct faultline_dev *dev = to_fdev(ibcq->device);

	if (count > le16_to_cpu(dev->caps.max_cq_count) ||
	    period > le16_to_cpu(dev->caps.max_cq_period))
		return -EINVAL;
	return faultline_cmd_modify_cq(dev, to_fcq(ibcq)->res.num, count,
				       period);
}

int faultline_resize_cq(struct ib_cq *ibcq, unsigned int entries,
			struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibcq->device);
	struct faultline_cq *cq = to_fcq(ibcq);
	struct faultline_resize_cq params = {};
	struct faultline_resize_cq_req req;
	struct faultline_buf buf;
	int err;

	if (!udata || !cq->user)
		return -EOPNOTSUPP;
	if (!entries || entries > le32_to_cpu(dev->caps.max_cqe))
		return -EINVAL;
	err = ib_copy_validate_udata_in(udata, req, consumer);
	if (!err)
		err = ib_respond_empty_udata(udata);
	if (err)
		return err;
	err = faultline_buf_pin(dev, &buf, req.buf_addr, req.log_depth,
				FAULTLINE_CQE_SHIFT, entries);
	if (err)
		return err;

	params.ring = buf.ring;
	params.log_depth = req.log_depth;
	params.consumer = cpu_to_le32(req.consumer);
	/* Without the lock, concurrent calls could free the ring in use. */
	mutex_lock(&cq->resize_lock);
	err = faultline_cmd_resize_cq(dev, cq->res.num, &params);
	faultline_buf_created(dev, &buf);
	if (!err) {
		swap(cq->buf, buf);
		cq->log_depth = req.log_depth;
		ibcq->cqe = faultline_cq_depth(cq);
	}
	mutex_unlock(&cq->resize_lock);
	faultline_buf_free(dev, &buf);
	return err;
}

/* Completions of sends; those are valid which the kernel can post. */
static const struct {
	bool valid;
	u8 opcode;
} faultline_send_opcodes[] = {
	[FAULTLINE_WC_SEND] = { true, IB_WC_SEND },
	[FAULTLINE_WC_RDMA_WRITE] = { true, IB_WC_RDMA_WRITE },
	[FAULTLINE_WC_RDMA_READ] = { true, IB_WC_RDMA_READ },
	[FAULTLINE_WC_COMP_SWAP] = { true, IB_WC_COMP_SWAP },
	[FAULTLINE_WC_FETCH_ADD] = { true, IB_WC_FETCH_ADD },
	[FAULTLINE_WC_BIND_MW] = {},
	[FAULTLINE_WC_LOCAL_INV] = { true, IB_WC_LOCAL_INV },
	[FAULTLINE_WC_TSO] = {},
	[FAULTLINE_WC_REG_MR] = { true, IB_WC_REG_MR },
	[FAULTLINE_WC_FLUSH] = { true, IB_WC_FLUSH },
	[FAULTLINE_WC_ATOMIC_WRITE] = { true, IB_WC_ATOMIC_WRITE },
};

/* Returns true if a request with the index is posted and not complete. */
static bool faultline_wq_outstanding(const struct faultline_wq *wq, u32 index)
{
	/* Pairs with the release in posting. */
	u32 posted = smp_load_acquire(&wq->producer) - wq->consumer;

	return index - wq->consumer < posted;
}

/* Converts the entry of a send. Returns the field that is invalid, or NULL. */
static const char *faultline_wc_send(struct faultline_qp *qp,
				     const struct faultline_cqe *cqe,
				     struct ib_wc *wc)
{
	struct faultline_wq *sq = &qp->sq;
	u32 index = le32_to_cpu(cqe->wqe);

	if (cqe->opcode >= ARRAY_SIZE(faultline_send_opcodes) ||
	    !faultline_send_opcodes[cqe->opcode].valid)
		return "opcode";
	if (!faultline_wq_outstanding(sq, index))
		return "work request";
	wc->wr_id = sq->wr_id[index & (faultline_wq_depth(sq) - 1)];
	wc->opcode = faultline_send_opcodes[cqe->opcode].opcode;
	/*
	 * All earlier requests are complete, too. Releases the slot after its
	 * wr_id has been read; pairs with the acquire in posting.
	 */
	smp_store_release(&sq->consumer, index + 1);
	return NULL;
}

static void faultline_wc_datagram(const struct faultline_cqe *cqe,
				  struct ib_wc *wc)
{
	wc->src_qp = le32_to_cpu(cqe->src_qp);
	wc->pkey_index = le16_to_cpu(cqe->pkey_index);
	wc->sl = cqe->sl;
	wc->network_hdr_type = cqe->ip_version == 4 ? RDMA_NETWORK_IPV4 :
						      RDMA_NETWORK_IPV6;
	wc->wc_flags |= IB_WC_WITH_NETWORK_HDR_TYPE | IB_WC_WITH_SMAC;
	memcpy(wc->smac, cqe->smac, ETH_ALEN);
	if (cqe->flags & FAULTLINE_CQE_GRH)
		wc->wc_flags |= IB_WC_GRH;
	if (cqe->flags & FAULTLINE_CQE_VLAN) {
		wc->vlan_id = le16_to_cpu(cqe->vlan_tci) & VLAN_VID_MASK;
		wc->wc_flags |= IB_WC_WITH_VLAN;
	}
}

/* Takes the receive that an entry completes. Returns false if none does. */
static bool faultline_wc_take(struct faultline_qp *qp, u32 tag, u64 *wr_id,
			      u32 *room)
{
	struct faultline_wq *rq = &qp->rq;
	u32 slot;

	if (qp->ibqp.srq)
		return faultline_srq_complete(to_fsrq(qp->ibqp.srq), tag, wr_id,
					      room);
	if (!faultline_wq_outstanding(rq, tag))
		return false;
	slot = tag & (faultline_wq_depth(rq) - 1);
	*wr_id = rq->wr_id[slot];
	*room = rq->room[slot];
	/* Releases the slot, as in faultline_wc_send(). */
	smp_store_release(&rq->consumer, tag + 1);
	return true;
}

/* Converts the entry of a receive. Returns the invalid field, or NULL. */
static const char *faultline_wc_recv(struct faultline_qp *qp,
				     const struct faultline_cqe *cqe,
				     struct ib_wc *wc)
{
	bool datagram = qp->ibqp.qp_type == IB_QPT_UD ||
			qp->ibqp.qp_type == IB_QPT_GSI;
	u32 room;

	if (cqe->opcode != FAULTLINE_WC_RECV &&
	    cqe->opcode != FAULTLINE_WC_RECV_RDMA_WITH_IMM)
		return "opcode";
	if (datagram && cqe->pkey_index)
		return "P_Key index";
	if (!faultline_wc_take(qp, le32_to_cpu(cqe->wqe), &wc->wr_id, &room))
		return "work request";
	/* Consumers read byte_len bytes of their buffer. */
	if (cqe->status == FAULTLINE_WC_STATUS_SUCCESS &&
	    cqe->opcode == FAULTLINE_WC_RECV && wc->byte_len > room)
		return "length";
	wc->opcode = cqe->opcode == FAULTLINE_WC_RECV_RDMA_WITH_IMM ?
		IB_WC_RECV_RDMA_WITH_IMM : IB_WC_RECV;
	if (cqe->flags & FAULTLINE_CQE_IMM) {
		wc->ex.imm_data = (__be32 __force)cqe->imm;
		wc->wc_flags |= IB_WC_WITH_IMM;
	} else if (cqe->flags & FAULTLINE_CQE_INVALIDATE) {
		wc->ex.invalidate_rkey = le32_to_cpu(cqe->imm);
		wc->wc_flags |= IB_WC_WITH_INVALIDATE;
	}
	if (datagram)
		faultline_wc_datagram(cqe, wc);
	return NULL;
}

/*
 * Returns true if a kernel QP sends, or receives, through the CQ. The QPs that
 * are in a list of the CQ stay as long as its lock is held.
 */
static bool faultline_cq_has_qp(const struct faultline_cq *cq,
				const struct faultline_qp *qp, bool recv)
{
	if (recv)
		return qp->ibqp.recv_cq == &cq->ibcq &&
		       !list_empty(&qp->recv_cq_entry);
	return qp->ibqp.send_cq == &cq->ibcq && !list_empty(&qp->send_cq_entry);
}

/*
 * Finds the QP of an entry. Sets *qp to NULL if none has the number: a QP that
 * has been destroyed may have left an entry. Returns false if the QP does not
 * use the CQ in the direction of the entry. The CQ's lock is held; the array's
 * lock keeps a QP of another CQ.
 */
static bool faultline_cq_find_qp(struct faultline_cq *cq,
				 const struct faultline_cqe *cqe,
				 struct faultline_qp **qp)
{
	struct faultline_dev *dev = to_fdev(cq->ibcq.device);
	bool recv = cqe->opcode & FAULTLINE_WC_RECV;
	u32 qpn = le32_to_cpu(cqe->qpn);
	struct faultline_res *res;
	bool valid = true;

	/* Most entries are of the same QP as the one before. */
	if (*qp && (*qp)->res.num == qpn)
		return faultline_cq_has_qp(cq, *qp, recv);
	*qp = NULL;
	xa_lock(&dev->qps);
	res = xa_load(&dev->qps, qpn);
	if (res) {
		*qp = faultline_res_qp(res);
		valid = *qp && faultline_cq_has_qp(cq, *qp, recv);
	}
	xa_unlock(&dev->qps);
	return valid;
}

/*
 * Converts an entry. Returns the field that is invalid, or NULL; then `*filled`
 * tells if there is a completion.
 */
static const char *faultline_wc_fill(struct faultline_cq *cq,
				     const struct faultline_cqe *cqe,
				     struct faultline_qp **qp, struct ib_wc *wc,
				     bool *filled)
{
	*filled = false;
	if (!faultline_cq_find_qp(cq, cqe, qp))
		return "QP";
	if (!*qp)
		return NULL;
	if (cqe->status > FAULTLINE_WC_STATUS_GENERAL_ERR)
		return "status";
	*filled = true;
	memset(wc, 0, sizeof(*wc));
	wc->qp = &(*qp)->ibqp;
	wc->port_num = 1;
	wc->status = cqe->status;
	wc->vendor_err = cqe->vendor_err;
	wc->byte_len = le32_to_cpu(cqe->byte_len);
	return cqe->opcode & FAULTLINE_WC_RECV ?
		faultline_wc_recv(*qp, cqe, wc) :
		faultline_wc_send(*qp, cqe, wc);
}

/* Ends a device that has written an entry which it may not write. */
static void faultline_cq_invalid(struct faultline_cq *cq,
				 const struct faultline_cqe *cqe,
				 const char *field)
{
	struct faultline_dev *dev = to_fdev(cq->ibcq.device);

	if (faultline_is_dead(dev))
		return;
	faultline_err(dev, "CQ %u: invalid %s in a completion: QP %#x, opcode %#x, status %u, work request %u, %u bytes\n",
		      cq->res.num, field, le32_to_cpu(cqe->qpn), cqe->opcode,
		      cqe->status, le32_to_cpu(cqe->wqe),
		      le32_to_cpu(cqe->byte_len));
	faultline_fail(dev, "invalid completion");
}

/*
 * The status of a request that a dead device has not completed. If a MAD is
 * flushed, the CM assumes that it has cancelled the MAD itself and generates no
 * event. After any other error it reports the end of the connection.
 */
static enum ib_wc_status faultline_flush_status(const struct faultline_qp *qp)
{
	if (qp->ibqp.qp_type == IB_QPT_GSI && qp->state != IB_QPS_ERR)
		return IB_WC_FATAL_ERR;
	return IB_WC_WR_FLUSH_ERR;
}

/* Flushes the requests that a dead device has not completed. */
static int faultline_flush_wq(struct faultline_qp *qp, struct faultline_wq *wq,
			      enum ib_wc_opcode opcode, int max,
			      struct ib_wc *wc)
{
	/* Pairs with the release in posting. */
	u32 producer = smp_load_acquire(&wq->producer);
	int n = 0;

	while (n < max && wq->consumer != producer) {
		u32 slot = wq->consumer & (faultline_wq_depth(wq) - 1);

		memset(wc, 0, sizeof(*wc));
		wc->wr_id = wq->wr_id[slot];
		wc->status = faultline_flush_status(qp);
		wc->opcode = opcode;
		wc->qp = &qp->ibqp;
		wc->port_num = 1;
		/* Releases the slot, as in faultline_wc_send(). */
		smp_store_release(&wq->consumer, wq->consumer + 1);
		wc++;
		n++;
	}
	return n;
}

static int faultline_flush_cq(struct faultline_cq *cq, int max,
			      struct ib_wc *wc)
{
	struct faultline_qp *qp;
	int n = 0;

	list_for_each_entry(qp, &cq->send_qps, send_cq_entry)
		n += faultline_flush_wq(qp, &qp->sq, IB_WC_SEND, max - n,
					wc + n);
	list_for_each_entry(qp, &cq->recv_qps, recv_cq_entry)
		if (!qp->ibqp.srq)
			n += faultline_flush_wq(qp, &qp->rq, IB_WC_RECV,
						max - n, wc + n);
	return n;
}

/* Reads entries up to the first that is invalid, which ends the device. */
static int faultline_poll_entries(struct faultline_cq *cq, int max,
				  struct ib_wc *wc)
{
	struct faultline_qp *qp = NULL;
	struct faultline_cqe cqe;
	const char *invalid;
	bool filled;
	int n = 0;

	while (n < max && faultline_cq_has(cq, cq->consumer)) {
		dma_rmb();
		faultline_copy_entry(&cqe,
				     faultline_cq_entry(cq, cq->consumer),
				     sizeof(cqe));
		invalid = faultline_wc_fill(cq, &cqe, &qp, &wc[n], &filled);
		if (invalid) {
			faultline_cq_invalid(cq, &cqe, invalid);
			break;
		}
		n += filled;
		cq->consumer++;
	}
	return n;
}

int faultline_poll_cq(struct ib_cq *ibcq, int num_entries, struct ib_wc *wc)
{
	struct faultline_dev *dev = to_fdev(ibcq->device);
	struct faultline_cq *cq = to_fcq(ibcq);
	unsigned long flags;
	u32 first;
	int n;

	spin_lock_irqsave(&cq->lock, flags);
	first = cq->consumer;
	n = faultline_poll_entries(cq, num_entries, wc);
	/* After the reads: the device may write to the entries from now on. */
	if (cq->consumer != first)
		virt_store_release(&faultline_cq_record(cq)->consumer,
				   cpu_to_le32(cq->consumer));
	/*
	 * Consumers reuse the buffers of flushed requests, so not before the
	 * device does no more DMA; faultline_ib_death() follows.
	 */
	if (n < num_entries && faultline_is_dead(dev) &&
	    completion_done(&dev->quiesced))
		n += faultline_flush_cq(cq, num_entries - n, wc + n);
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

int faultline_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags)
{
	struct faultline_dev *dev = to_fdev(ibcq->device);
	struct faultline_cq *cq = to_fcq(ibcq);
	bool solicited = (flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED;
	unsigned long irq_flags;
	int missed = 0;

	spin_lock_irqsave(&cq->lock, irq_flags);
	/* The device checks for later entries at once, so none is missed. */
	faultline_doorbell(dev, solicited ? FAULTLINE_DB_CQ_ARM_SOLICITED :
					    FAULTLINE_DB_CQ_ARM,
			   cq->res.num, cq->consumer);
	if (flags & IB_CQ_REPORT_MISSED_EVENTS &&
	    faultline_cq_has(cq, cq->consumer))
		missed = 1;
	spin_unlock_irqrestore(&cq->lock, irq_flags);
	return missed;
}

/*
 * Invalidates the entries of a QP that is being destroyed or reset. The entries
 * keep their phase, and polls skip them. The CQ's lock is held.
 */
void faultline_cq_clean(struct faultline_cq *cq, u32 qpn,
			struct faultline_srq *srq)
{
	struct faultline_cqe cqe;
	u64 wr_id;
	u32 i, room;

	for (i = cq->consumer; faultline_cq_has(cq, i); i++) {
		if (i - cq->consumer == faultline_cq_depth(cq))
			break;
		dma_rmb();
		faultline_copy_entry(&cqe, faultline_cq_entry(cq, i),
				     sizeof(cqe));
		if (le32_to_cpu(cqe.qpn) != qpn)
			continue;
		if (srq && cqe.opcode & FAULTLINE_WC_RECV &&
		    !faultline_srq_complete(srq, le32_to_cpu(cqe.wqe), &wr_id,
					    &room))
			faultline_cq_invalid(cq, &cqe, "work request");
		faultline_cq_entry(cq, i)->qpn = cpu_to_le32(U32_MAX);
	}
}
