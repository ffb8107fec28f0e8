// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Posting of work requests
 *
 * Posts work requests of kernel QPs. Hot path: allocates nothing.
 *
 * Locking: faultline_wq.lock (taken with interrupts disabled, in any context)
 * serializes posting to a send queue, a receive queue or an SRQ. It protects
 * the ring, the producer index, and the free tags of an SRQ; in a send queue
 * also pending_ahs and doorbell_producer, and faultline_dev.ah_lock is taken
 * under it. The lock of an SRQ is also taken under faultline_cq.lock, by polls.
 *
 * Polls do not take the locks of a QP's queues: `producer` is released here and
 * acquired there, and `consumer` is released there and acquired here.
 * faultline_qp.state is read without faultline_qp.mutex.
 */
#include "faultline_ib.h"

static int faultline_send_opcode(const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_SEND:
		return FAULTLINE_WR_SEND;
	case IB_WR_SEND_WITH_IMM:
		return FAULTLINE_WR_SEND_IMM;
	case IB_WR_SEND_WITH_INV:
		return FAULTLINE_WR_SEND_INV;
	case IB_WR_RDMA_WRITE:
		return FAULTLINE_WR_WRITE;
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return FAULTLINE_WR_WRITE_IMM;
	case IB_WR_RDMA_READ:
		return FAULTLINE_WR_READ;
	case IB_WR_RDMA_READ_WITH_INV:
		/* The device refuses it if it is not an iWARP adapter. */
		return FAULTLINE_WR_READ_INV;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		return FAULTLINE_WR_COMP_SWAP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		return FAULTLINE_WR_FETCH_ADD;
	case IB_WR_ATOMIC_WRITE:
		return FAULTLINE_WR_ATOMIC_WRITE;
	case IB_WR_LOCAL_INV:
		return FAULTLINE_WR_LOCAL_INV;
	case IB_WR_REG_MR:
		return FAULTLINE_WR_REG_MR;
	default:
		/* FLUSH, too: no request of the kernel has its fields. */
		return -EOPNOTSUPP;
	}
}

/* Without checksum offload, which only raw packet QPs of processes support. */
#define FAULTLINE_SEND_FLAGS	(IB_SEND_FENCE | IB_SEND_SIGNALED |	\
				 IB_SEND_SOLICITED | IB_SEND_INLINE)

static u8 faultline_send_flags(const struct ib_send_wr *wr)
{
	u8 flags = 0;

	if (wr->send_flags & IB_SEND_SIGNALED)
		flags |= FAULTLINE_WR_FLAG_SIGNALED;
	if (wr->send_flags & IB_SEND_SOLICITED)
		flags |= FAULTLINE_WR_FLAG_SOLICITED;
	if (wr->send_flags & IB_SEND_FENCE)
		flags |= FAULTLINE_WR_FLAG_FENCE;
	if (wr->send_flags & IB_SEND_INLINE)
		flags |= FAULTLINE_WR_FLAG_INLINE;
	return flags;
}

static void faultline_fill_sges(struct faultline_sge *out,
				const struct ib_sge *in, int num)
{
	int i;

	for (i = 0; i < num; i++) {
		out[i].addr = cpu_to_le64(in[i].addr);
		out[i].length = cpu_to_le32(in[i].length);
		out[i].lkey = cpu_to_le32(in[i].lkey);
	}
}

static int faultline_fill_inline(struct faultline_qp *qp,
				 struct faultline_sq_wqe *wqe,
				 const struct ib_send_wr *wr)
{
	void *data = (void *)wqe + FAULTLINE_SQ_WQE_DATA;
	u32 len = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		const struct ib_sge *sge = &wr->sg_list[i];

		if (sge->length > qp->max_inline - len)
			return -EINVAL;
		memcpy(data + len, (void *)(uintptr_t)sge->addr, sge->length);
		len += sge->length;
	}
	wqe->inline_len = cpu_to_le32(len);
	return 0;
}

/*
 * Returns true if the request is an ib_ud_wr. On UD QPs only SENDs are: to
 * drain a queue, the core posts an RDMA WRITE to QPs of any type.
 */
static bool faultline_is_datagram(const struct faultline_qp *qp,
				  const struct ib_send_wr *wr)
{
	return (qp->ibqp.qp_type == IB_QPT_UD ||
		qp->ibqp.qp_type == IB_QPT_GSI) &&
	       (wr->opcode == IB_WR_SEND || wr->opcode == IB_WR_SEND_WITH_IMM);
}

static void faultline_fill_ud(struct faultline_sq_wqe *wqe,
			      const struct ib_ud_wr *ud)
{
	struct faultline_ud_seg *seg = (void *)&wqe->compare_add;

	BUILD_BUG_ON(offsetof(struct faultline_sq_wqe, compare_add) +
		     sizeof(*seg) !=
		     offsetofend(struct faultline_sq_wqe, swap));
	seg->qkey = cpu_to_le32(ud->remote_qkey);
	wqe->remote_qpn = cpu_to_le32(ud->remote_qpn);
}

static int faultline_fill_send(struct faultline_qp *qp,
			       struct faultline_sq_wqe *wqe,
			       const struct ib_send_wr *wr)
{
	int opcode = faultline_send_opcode(wr);

	if (opcode < 0)
		return opcode;
	if (wr->num_sge < 0 || wr->num_sge > qp->sq.max_sge ||
	    wr->send_flags & ~FAULTLINE_SEND_FLAGS)
		return -EINVAL;
	memset(wqe, 0, sizeof(*wqe));
	wqe->opcode = opcode;
	wqe->flags = faultline_send_flags(wr);

	switch (wr->opcode) {
	case IB_WR_REG_MR:
		return faultline_fill_reg_mr((void *)wqe, reg_wr(wr));
	case IB_WR_LOCAL_INV:
		wqe->rkey = cpu_to_le32(wr->ex.invalidate_rkey);
		return 0;
	case IB_WR_SEND_WITH_IMM:
		wqe->imm = (__le32 __force)wr->ex.imm_data;
		break;
	case IB_WR_SEND_WITH_INV:
		wqe->imm = cpu_to_le32(wr->ex.invalidate_rkey);
		break;
	case IB_WR_RDMA_READ_WITH_INV:
		/*
		 * The key of the sink, as other adapters do: rdma_rw changes it
		 * after it has set invalidate_rkey.
		 */
		if (wr->num_sge != 1)
			return -EINVAL;
		wqe->imm = cpu_to_le32(wr->sg_list[0].lkey);
		wqe->remote_addr = cpu_to_le64(rdma_wr(wr)->remote_addr);
		wqe->rkey = cpu_to_le32(rdma_wr(wr)->rkey);
		break;
	case IB_WR_RDMA_WRITE_WITH_IMM:
		wqe->imm = (__le32 __force)wr->ex.imm_data;
		fallthrough;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_READ:
	case IB_WR_ATOMIC_WRITE:
		wqe->remote_addr = cpu_to_le64(rdma_wr(wr)->remote_addr);
		wqe->rkey = cpu_to_le32(rdma_wr(wr)->rkey);
		break;
	case IB_WR_ATOMIC_CMP_AND_SWP:
		wqe->swap = cpu_to_le64(atomic_wr(wr)->swap);
		fallthrough;
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		wqe->compare_add = cpu_to_le64(atomic_wr(wr)->compare_add);
		wqe->remote_addr = cpu_to_le64(atomic_wr(wr)->remote_addr);
		wqe->rkey = cpu_to_le32(atomic_wr(wr)->rkey);
		break;
	default:
		break;
	}
	if (faultline_is_datagram(qp, wr))
		faultline_fill_ud(wqe, ud_wr(wr));

	if (wr->send_flags & IB_SEND_INLINE)
		return faultline_fill_inline(qp, wqe, wr);
	wqe->num_sge = wr->num_sge;
	faultline_fill_sges((void *)wqe + FAULTLINE_SQ_WQE_DATA, wr->sg_list,
			    wr->num_sge);
	return 0;
}

/*
 * Rings the doorbell for the posted requests, up to the first one that waits
 * for the creation of its address handle. The queue's lock is held.
 */
void faultline_sq_ring(struct faultline_qp *qp)
{
	struct faultline_dev *dev = to_fdev(qp->ibqp.device);
	u32 to = qp->sq.producer;

	if (qp->pending_ahs) {
		to = qp->doorbell_producer;
		while (to != qp->sq.producer && faultline_ah_ready(qp, to))
			to++;
		if (to == qp->doorbell_producer)
			return;
		qp->doorbell_producer = to;
	}
	faultline_doorbell(dev, FAULTLINE_DB_SQ, qp->res.num, to);
}

int faultline_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
			const struct ib_send_wr **bad_wr)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_qp *qp = to_fqp(ibqp);
	struct faultline_wq *sq = &qp->sq;
	struct faultline_sq_wqe *wqe;
	unsigned long flags;
	u32 producer;
	int err = 0;

	spin_lock_irqsave(&sq->lock, flags);
	if (qp->state == IB_QPS_RESET || qp->state == IB_QPS_INIT ||
	    qp->state == IB_QPS_RTR) {
		spin_unlock_irqrestore(&sq->lock, flags);
		*bad_wr = wr;
		return -EINVAL;
	}
	producer = sq->producer;
	for (; wr; wr = wr->next) {
		/* Pairs with the release in polling, which has read wr_id. */
		if (producer - smp_load_acquire(&sq->consumer) >=
		    faultline_wq_depth(sq)) {
			err = -ENOMEM;
			break;
		}
		wqe = faultline_wq_entry(sq, producer);
		err = faultline_fill_send(qp, wqe, wr);
		if (err)
			break;
		if (faultline_is_datagram(qp, wr))
			faultline_ah_reference(qp, producer, wqe,
					       ud_wr(wr)->ah);
		sq->wr_id[producer & (faultline_wq_depth(sq) - 1)] = wr->wr_id;
		producer++;
	}
	if (producer != sq->producer) {
		/* Ids before the index: flushing reads them. */
		smp_store_release(&sq->producer, producer);
		faultline_sq_ring(qp);
		/*
		 * If the device dies meanwhile, either this check finds it dead
		 * or faultline_flush_wq() sees the new producer index.
		 */
		smp_mb();
		if (faultline_is_dead(dev))
			faultline_cq_notify_dead(to_fcq(ibqp->send_cq));
	}
	spin_unlock_irqrestore(&sq->lock, flags);
	if (err)
		*bad_wr = wr;
	return err;
}

static void faultline_fill_recv(void *entry, u32 tag,
				const struct ib_recv_wr *wr)
{
	struct faultline_rq_wqe *wqe = entry;

	memset(wqe, 0, sizeof(*wqe));
	wqe->tag = cpu_to_le32(tag);
	wqe->num_sge = wr->num_sge;
	faultline_fill_sges(entry + FAULTLINE_RQ_WQE_DATA, wr->sg_list,
			    wr->num_sge);
}

/* The bytes of the buffers of a receive. */
static u32 faultline_recv_room(const struct ib_recv_wr *wr)
{
	u64 room = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++)
		room += wr->sg_list[i].length;
	return min_t(u64, room, U32_MAX);
}

/* Makes the new entries visible to the device, then the producer index. */
static void faultline_publish(struct faultline_wq *wq, u32 producer)
{
	/* Ids before the index: flushing reads them. */
	smp_store_release(&wq->producer, producer);
	dma_wmb();
	WRITE_ONCE(faultline_wq_record(wq)->producer, cpu_to_le32(producer));
}

int faultline_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad_wr)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_qp *qp = to_fqp(ibqp);
	struct faultline_wq *rq = &qp->rq;
	unsigned long flags;
	u32 producer, slot;
	int err = 0;

	if (ibqp->srq) {
		*bad_wr = wr;
		return -EINVAL;
	}
	spin_lock_irqsave(&rq->lock, flags);
	if (qp->state == IB_QPS_RESET) {
		spin_unlock_irqrestore(&rq->lock, flags);
		*bad_wr = wr;
		return -EINVAL;
	}
	producer = rq->producer;
	for (; wr; wr = wr->next) {
		/* As in faultline_post_send(). */
		if (producer - smp_load_acquire(&rq->consumer) >=
		    faultline_wq_depth(rq)) {
			err = -ENOMEM;
			break;
		}
		if (wr->num_sge < 0 || wr->num_sge > rq->max_sge) {
			err = -EINVAL;
			break;
		}
		faultline_fill_recv(faultline_wq_entry(rq, producer), producer,
				    wr);
		slot = producer & (faultline_wq_depth(rq) - 1);
		rq->wr_id[slot] = wr->wr_id;
		rq->room[slot] = faultline_recv_room(wr);
		producer++;
	}
	if (producer != rq->producer) {
		faultline_publish(rq, producer);
		/*
		 * Pairs with the device's barrier between setting `notify`
		 * and its last check of the producer index. Also see
		 * faultline_post_send().
		 */
		faultline_device_mb();
		if (READ_ONCE(faultline_wq_record(rq)->notify))
			faultline_doorbell(dev, FAULTLINE_DB_RQ, qp->res.num,
					   producer);
		if (faultline_is_dead(dev))
			faultline_cq_notify_dead(to_fcq(ibqp->recv_cq));
	}
	spin_unlock_irqrestore(&rq->lock, flags);
	if (err)
		*bad_wr = wr;
	return err;
}

int faultline_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			    const struct ib_recv_wr **bad_wr)
{
	struct faultline_srq *srq = to_fsrq(ibsrq);
	struct faultline_wq *wq = &srq->wq;
	unsigned long flags;
	u32 producer, tag;
	int err = 0;

	spin_lock_irqsave(&wq->lock, flags);
	producer = wq->producer;
	for (; wr; wr = wr->next) {
		/* There is one tag per entry: a free tag implies room. */
		if (!srq->num_free) {
			err = -ENOMEM;
			break;
		}
		if (wr->num_sge < 0 || wr->num_sge > wq->max_sge) {
			err = -EINVAL;
			break;
		}
		tag = srq->free_tags[--srq->num_free];
		__set_bit(tag, srq->posted_tags);
		wq->wr_id[tag] = wr->wr_id;
		wq->room[tag] = faultline_recv_room(wr);
		faultline_fill_recv(faultline_wq_entry(wq, producer), tag, wr);
		producer++;
	}
	if (producer != wq->producer)
		faultline_publish(wq, producer);
	spin_unlock_irqrestore(&wq->lock, flags);
	if (err)
		*bad_wr = wr;
	return err;
}
