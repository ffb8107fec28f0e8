// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Queue pairs: work requests go to rings that the device reads, without
 * system calls.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "faultline.h"

/* Operations of a QP type, as bits of enum ibv_wr_opcode. */
#define WR_BIT(op) (1U << IBV_WR_##op)
#define SEND_OPS (WR_BIT(SEND) | WR_BIT(SEND_WITH_IMM))
#define WRITE_OPS (WR_BIT(RDMA_WRITE) | WR_BIT(RDMA_WRITE_WITH_IMM))
/* Operations without packets. */
#define KEY_OPS (WR_BIT(LOCAL_INV) | WR_BIT(BIND_MW))
#define RC_OPS                                                                 \
	(SEND_OPS | WRITE_OPS | KEY_OPS | WR_BIT(SEND_WITH_INV) |              \
	 WR_BIT(RDMA_READ) | WR_BIT(ATOMIC_CMP_AND_SWP) |                      \
	 WR_BIT(ATOMIC_FETCH_AND_ADD) | WR_BIT(ATOMIC_WRITE))

static const uint8_t wr_opcode[] = {
	[IBV_WR_RDMA_WRITE] = FAULTLINE_WR_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = FAULTLINE_WR_WRITE_IMM,
	[IBV_WR_SEND] = FAULTLINE_WR_SEND,
	[IBV_WR_SEND_WITH_IMM] = FAULTLINE_WR_SEND_IMM,
	[IBV_WR_RDMA_READ] = FAULTLINE_WR_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = FAULTLINE_WR_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = FAULTLINE_WR_FETCH_ADD,
	[IBV_WR_LOCAL_INV] = FAULTLINE_WR_LOCAL_INV,
	[IBV_WR_BIND_MW] = FAULTLINE_WR_BIND_MW,
	[IBV_WR_SEND_WITH_INV] = FAULTLINE_WR_SEND_INV,
#ifdef FAULTLINE_HAVE_FLUSH
	[IBV_WR_FLUSH] = FAULTLINE_WR_FLUSH,
#endif
	[IBV_WR_ATOMIC_WRITE] = FAULTLINE_WR_ATOMIC_WRITE,
};

/* Operations of RoCE without a message of iWARP (RFC 5040, RFC 7306). */
#define ROCE_OPS WR_BIT(ATOMIC_WRITE)

static uint32_t qp_ops(const struct fl_context *ctx, enum ibv_qp_type type)
{
	if (fl_is_iwarp(ctx)) {
		if (type == IBV_QPT_RC)
			return RC_OPS & ~ROCE_OPS;
		if (type != IBV_QPT_RAW_PACKET)
			return 0;
	}
	switch (type) {
	case IBV_QPT_RC:
	case IBV_QPT_XRC_SEND:
		return RC_OPS;
	case IBV_QPT_UC:
		return SEND_OPS | WRITE_OPS | KEY_OPS;
	case IBV_QPT_UD:
		return SEND_OPS;
	case IBV_QPT_RAW_PACKET:
		return WR_BIT(SEND) | WR_BIT(TSO);
	default:
		return 0;
	}
}

static bool sq_full(struct fl_qp *qp)
{
	uint32_t tail = __atomic_load_n(&qp->sq.tail, __ATOMIC_ACQUIRE);

	return qp->sq.head - tail > qp->sq.mask;
}

/* An empty work request at the head of the send queue. */
static struct faultline_sq_wqe *start_wqe(struct fl_qp *qp, uint64_t wr_id,
					  enum ibv_wr_opcode opcode,
					  unsigned int flags)
{
	struct faultline_sq_wqe *wqe = fl_wq_entry(&qp->sq, qp->sq.head);

	memset(wqe, 0, sizeof(*wqe));
	wqe->opcode = qp->verbs_qp.qp.qp_type == IBV_QPT_RAW_PACKET ?
			      FAULTLINE_WR_RAW : wr_opcode[opcode];
	if ((flags & IBV_SEND_SIGNALED) || qp->sq_sig_all)
		wqe->flags |= FAULTLINE_WR_FLAG_SIGNALED;
	if (flags & IBV_SEND_SOLICITED)
		wqe->flags |= FAULTLINE_WR_FLAG_SOLICITED;
	if (flags & IBV_SEND_FENCE)
		wqe->flags |= FAULTLINE_WR_FLAG_FENCE;
	if (flags & IBV_SEND_IP_CSUM)
		wqe->flags |= FAULTLINE_WR_FLAG_CSUM;
	qp->sq.wr_id[qp->sq.head & qp->sq.mask] = wr_id;
	return wqe;
}

/* The SGEs are behind the inline data. */
static struct faultline_sge *wqe_sges(struct faultline_sq_wqe *wqe)
{
	size_t have = fl_header_room(le32toh(wqe->inline_len));

	return (void *)((uint8_t *)wqe + FAULTLINE_SQ_WQE_DATA + have);
}

static int set_sges(struct fl_qp *qp, struct faultline_sq_wqe *wqe,
		    const struct ibv_sge *sg, size_t num)
{
	struct faultline_sge *to = wqe_sges(wqe);
	uint8_t *end = (uint8_t *)wqe + (1UL << qp->sq.stride_shift);
	size_t i;

	if (num > qp->sq.max_sge || (uint8_t *)(to + num) > end)
		return EINVAL;
	/* The Read Request names one sink (RFC 5040 section 4.4). */
	if (qp->is_iwarp && num > 1 && wqe->opcode == FAULTLINE_WR_READ)
		return EINVAL;
	for (i = 0; i < num; i++)
		fl_set_sge(&to[i], sg[i].addr, sg[i].length, sg[i].lkey);
	wqe->num_sge = num;
	return 0;
}

static int add_inline(struct fl_qp *qp, struct faultline_sq_wqe *wqe,
		      const void *data, size_t len)
{
	size_t have = le32toh(wqe->inline_len);

	/* SGEs are behind the inline data already. */
	if (wqe->num_sge)
		return EINVAL;
	if (have > qp->max_inline || len > qp->max_inline - have)
		return EINVAL;
	memcpy((uint8_t *)wqe + FAULTLINE_SQ_WQE_DATA + have, data, len);
	wqe->inline_len = htole32(have + len);
	return 0;
}

static void set_ud(struct faultline_sq_wqe *wqe, struct ibv_ah *ah,
		   uint32_t qpn, uint32_t qkey)
{
	struct faultline_ud_seg *ud = (void *)&wqe->compare_add;

	wqe->ah = htole32(to_fl_ah(ah)->ahn);
	wqe->remote_qpn = htole32(qpn);
	ud->qkey = htole32(qkey);
}

static void set_remote(struct faultline_sq_wqe *wqe, uint64_t addr, uint32_t rkey)
{
	wqe->remote_addr = htole64(addr);
	wqe->rkey = htole32(rkey);
}

/* The region may be NULL if a window of type 1 is unbound. */
static void set_bind(struct faultline_sq_wqe *wqe, const struct ibv_mw *mw,
		     uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct faultline_bind_mw_wqe *bind = (void *)wqe;

	/* The program chooses only the low 8 bits of a new key. */
	bind->rkey = htole32((mw->rkey & ~0xffU) | (rkey & 0xff));
	bind->lkey = htole32(info->mr ? info->mr->lkey : 0);
	bind->addr = htole64(info->addr);
	bind->length = htole64(info->length);
	bind->access = htole32(info->mw_access_flags);
}

/*
 * Writes the segment of a TCP packet that the device splits. The headers are
 * copied into the request, so the application need not register their memory.
 */
static int set_tso(struct fl_qp *qp, struct faultline_sq_wqe *wqe, const void *header,
		   uint16_t len, uint16_t mss)
{
	struct faultline_raw_seg *seg = (void *)&wqe->compare_add;

	if (!len || len > qp->max_tso_header || !mss)
		return EINVAL;
	seg->mss = htole16(mss);
	seg->header_len = htole16(len);
	wqe->flags |= FAULTLINE_WR_FLAG_INLINE;
	return add_inline(qp, wqe, header, len);
}

static void ring_sq(struct fl_qp *qp)
{
	udma_to_device_barrier();
	fl_doorbell(to_fl_ctx(qp->verbs_qp.qp.context), FAULTLINE_DB_SQ,
		    qp->verbs_qp.qp.qp_num, qp->sq.head);
}

/*
 * Returns an errno if sends must not be posted. Before RTS they are refused at
 * once (IBTA 10.8.2), in the error states the device flushes them. The library
 * does not learn when an iWARP connection is established: then they wait in the
 * device.
 */
static int check_send(struct fl_qp *qp)
{
	struct ibv_qp *ibqp = &qp->verbs_qp.qp;

	if (ibqp->state < (qp->is_iwarp ? IBV_QPS_INIT : IBV_QPS_RTS))
		return EINVAL;
	return fl_is_gone(to_fl_ctx(ibqp->context)) ? EIO : 0;
}

/* Returns true if a queue pair of this type supports the flags. */
static bool check_flags(enum ibv_qp_type type, unsigned int flags)
{
	unsigned int known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED |
			     IBV_SEND_INLINE;

	if (type == IBV_QPT_RAW_PACKET)
		known |= IBV_SEND_IP_CSUM;
	return !(flags & ~known);
}

static int post_one(struct fl_qp *qp, struct ibv_send_wr *wr)
{
	enum ibv_qp_type type = qp->verbs_qp.qp.qp_type;
	struct faultline_sq_wqe *wqe;
	int i, ret = 0;

	if (wr->opcode >= 32 || !(qp->ops & (1U << wr->opcode)) ||
	    wr->num_sge < 0 || !check_flags(type, wr->send_flags))
		return EINVAL;
	if (sq_full(qp))
		return ENOMEM;
	wqe = start_wqe(qp, wr->wr_id, wr->opcode, wr->send_flags);
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		wqe->imm = (__force __le32)wr->imm_data;
		set_remote(wqe, wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
		break;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_WRITE:
		set_remote(wqe, wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		set_remote(wqe, wr->wr.atomic.remote_addr, wr->wr.atomic.rkey);
		wqe->compare_add = htole64(wr->wr.atomic.compare_add);
		if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
			wqe->swap = htole64(wr->wr.atomic.swap);
		break;
	case IBV_WR_SEND_WITH_IMM:
		wqe->imm = (__force __le32)wr->imm_data;
		break;
	case IBV_WR_SEND_WITH_INV:
		wqe->imm = htole32(wr->invalidate_rkey);
		break;
	case IBV_WR_LOCAL_INV:
		wqe->rkey = htole32(wr->invalidate_rkey);
		return 0;
	case IBV_WR_BIND_MW:
		set_bind(wqe, wr->bind_mw.mw, wr->bind_mw.rkey,
			 &wr->bind_mw.bind_info);
		return 0;
	case IBV_WR_TSO:
		ret = set_tso(qp, wqe, wr->tso.hdr, wr->tso.hdr_sz, wr->tso.mss);
		if (ret)
			return ret;
		break;
	default:
		break;
	}
	if (type == IBV_QPT_UD) {
		if (!wr->wr.ud.ah)
			return EINVAL;
		set_ud(wqe, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
	}
	if (type == IBV_QPT_XRC_SEND)
		wqe->remote_qpn = htole32(wr->qp_type.xrc.remote_srqn);
	if (!(wr->send_flags & IBV_SEND_INLINE))
		return set_sges(qp, wqe, wr->sg_list, wr->num_sge);
	if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
	    wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		return EINVAL;
	wqe->flags |= FAULTLINE_WR_FLAG_INLINE;
	for (i = 0; i < wr->num_sge && !ret; i++)
		ret = add_inline(qp, wqe, (void *)(uintptr_t)wr->sg_list[i].addr,
				 wr->sg_list[i].length);
	return ret;
}

int fl_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr,
		 struct ibv_send_wr **bad)
{
	struct fl_qp *qp = to_fl_qp(ibqp);
	uint32_t before;
	bool locked;
	int ret;

	ret = check_send(qp);
	/* The doorbell would also post the unfinished requests of the batch. */
	if (!ret && fl_in_batch(&qp->sq.lock))
		ret = EINVAL;
	if (ret) {
		*bad = wr;
		return ret;
	}
	locked = fl_lock(&qp->sq.lock);
	before = qp->sq.head;
	for (; wr; wr = wr->next) {
		ret = post_one(qp, wr);
		if (ret) {
			*bad = wr;
			break;
		}
		qp->sq.head++;
	}
	if (qp->sq.head != before)
		ring_sq(qp);
	fl_unlock(&qp->sq.lock, locked);
	return ret;
}

/* Binds a window of type 1, which gets another key (IBTA 10.6.7.2.1). */
int fl_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw = {
			.mw = mw,
			.rkey = ibv_inc_rkey(mw->rkey),
			.bind_info = bind->bind_info,
		},
	};
	struct ibv_send_wr *bad;
	int ret;

	if (bind->bind_info.mw_access_flags & IBV_ACCESS_ZERO_BASED)
		return EINVAL;
	ret = fl_post_send(qp, &wr, &bad);
	if (!ret)
		mw->rkey = wr.bind_mw.rkey;
	return ret;
}

/* Writes a receive work request at the head. */
void fl_write_recv(struct fl_wq *wq, uint32_t tag, struct ibv_recv_wr *wr)
{
	struct faultline_rq_wqe *wqe = fl_wq_entry(wq, wq->head);
	struct faultline_sge *to =
		(void *)((uint8_t *)wqe + FAULTLINE_RQ_WQE_DATA);
	int i;

	memset(wqe, 0, sizeof(*wqe));
	wqe->tag = htole32(tag);
	wqe->num_sge = wr->num_sge;
	for (i = 0; i < wr->num_sge; i++)
		fl_set_sge(&to[i], wr->sg_list[i].addr, wr->sg_list[i].length,
			   wr->sg_list[i].lkey);
	wq->head++;
}

/* Posts to the receive queue of the QP or WQ with this number. */
int fl_post_receives(struct fl_context *ctx, struct fl_wq *wq, uint32_t number,
		     struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct faultline_wq_record *record;
	bool locked = fl_lock(&wq->lock);
	int ret = 0;

	for (; wr; wr = wr->next) {
		uint32_t tail = __atomic_load_n(&wq->tail, __ATOMIC_ACQUIRE);

		if (wr->num_sge < 0 || wr->num_sge > wq->max_sge)
			ret = EINVAL;
		else if (wq->head - tail > wq->mask)
			ret = ENOMEM;
		if (ret) {
			*bad = wr;
			break;
		}
		wq->wr_id[wq->head & wq->mask] = wr->wr_id;
		fl_write_recv(wq, wq->head & wq->mask, wr);
	}
	record = fl_wq_record(&wq->ring);
	udma_to_device_barrier();
	__atomic_store_n(&record->producer, htole32(wq->head), __ATOMIC_RELEASE);
	/* A QP in error requests doorbells, so that it can flush. */
	fl_device_barrier();
	if (__atomic_load_n(&record->notify, __ATOMIC_RELAXED))
		fl_doorbell(ctx, FAULTLINE_DB_RQ, number, wq->head);
	fl_unlock(&wq->lock, locked);
	return ret;
}

int fl_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr,
		 struct ibv_recv_wr **bad)
{
	struct fl_wq *wq = &to_fl_qp(ibqp)->rq;

	/* With an SRQ the QP has no queue; in RESET nothing may be posted. */
	if (!wq->wr_id || ibqp->state == IBV_QPS_RESET) {
		*bad = wr;
		return EINVAL;
	}
	return fl_post_receives(to_fl_ctx(ibqp->context), wq, ibqp->qp_num, wr, bad);
}

/* struct ibv_qp_ex: wr_start, one builder and its setters per request, wr_complete. */

static void fl_wr_start(struct ibv_qp_ex *ibqp)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);

	/* A second batch of this thread within the first: both fail. */
	if (fl_in_batch(&qp->sq.lock)) {
		qp->ex_err = EINVAL;
		return;
	}
	fl_begin_batch(&qp->sq.lock);
	qp->ex_head = qp->sq.head;
	qp->ex_err = check_send(qp);
	qp->ex_wqe = NULL;
}

static void fl_wr_abort(struct ibv_qp_ex *ibqp)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);

	if (!fl_in_batch(&qp->sq.lock))
		return;
	qp->sq.head = qp->ex_head;
	fl_end_batch(&qp->sq.lock);
}

static int fl_wr_complete(struct ibv_qp_ex *ibqp)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);
	int ret;

	if (!fl_in_batch(&qp->sq.lock))
		return EINVAL;
	ret = qp->ex_err;
	if (ret) {
		fl_wr_abort(ibqp);
		return ret;
	}
	if (qp->sq.head != qp->ex_head)
		ring_sq(qp);
	fl_end_batch(&qp->sq.lock);
	return 0;
}

/* Begins a request; NULL after an error, which wr_complete returns. */
static struct faultline_sq_wqe *ex_begin(struct fl_qp *qp, enum ibv_wr_opcode opcode)
{
	struct ibv_qp_ex *ex = &qp->verbs_qp.qp_ex;

	if (!qp->ex_err && !check_flags(qp->verbs_qp.qp.qp_type, ex->wr_flags))
		qp->ex_err = EINVAL;
	if (!qp->ex_err && sq_full(qp))
		qp->ex_err = ENOMEM;
	if (qp->ex_err) {
		qp->ex_wqe = NULL;
		return NULL;
	}
	qp->ex_wqe = start_wqe(qp, ex->wr_id, opcode, ex->wr_flags);
	qp->sq.head++;
	return qp->ex_wqe;
}

static void fl_wr_send(struct ibv_qp_ex *ibqp)
{
	ex_begin(to_fl_qp_ex(ibqp), IBV_WR_SEND);
}

static void fl_wr_send_imm(struct ibv_qp_ex *ibqp, __be32 imm)
{
	struct faultline_sq_wqe *wqe = ex_begin(to_fl_qp_ex(ibqp), IBV_WR_SEND_WITH_IMM);

	if (wqe)
		wqe->imm = (__force __le32)imm;
}

static void fl_wr_send_tso(struct ibv_qp_ex *ibqp, void *header, uint16_t len, uint16_t mss)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);
	struct faultline_sq_wqe *wqe = ex_begin(qp, IBV_WR_TSO);

	if (wqe)
		qp->ex_err = set_tso(qp, wqe, header, len, mss);
}

static void ex_rdma(struct ibv_qp_ex *ibqp, enum ibv_wr_opcode opcode, uint32_t rkey,
		    uint64_t addr, __be32 imm)
{
	struct faultline_sq_wqe *wqe = ex_begin(to_fl_qp_ex(ibqp), opcode);

	if (!wqe)
		return;
	set_remote(wqe, addr, rkey);
	wqe->imm = (__force __le32)imm;
}

static void fl_wr_rdma_write(struct ibv_qp_ex *ibqp, uint32_t rkey, uint64_t addr)
{
	ex_rdma(ibqp, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}

static void fl_wr_rdma_write_imm(struct ibv_qp_ex *ibqp, uint32_t rkey, uint64_t addr,
				 __be32 imm)
{
	ex_rdma(ibqp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void fl_wr_rdma_read(struct ibv_qp_ex *ibqp, uint32_t rkey, uint64_t addr)
{
	ex_rdma(ibqp, IBV_WR_RDMA_READ, rkey, addr, 0);
}

static void fl_wr_atomic_cmp_swp(struct ibv_qp_ex *ibqp, uint32_t rkey, uint64_t addr,
				 uint64_t compare, uint64_t swap)
{
	struct faultline_sq_wqe *wqe =
		ex_begin(to_fl_qp_ex(ibqp), IBV_WR_ATOMIC_CMP_AND_SWP);

	if (!wqe)
		return;
	set_remote(wqe, addr, rkey);
	wqe->compare_add = htole64(compare);
	wqe->swap = htole64(swap);
}

static void fl_wr_atomic_fetch_add(struct ibv_qp_ex *ibqp, uint32_t rkey, uint64_t addr,
				   uint64_t add)
{
	struct faultline_sq_wqe *wqe =
		ex_begin(to_fl_qp_ex(ibqp), IBV_WR_ATOMIC_FETCH_AND_ADD);

	if (!wqe)
		return;
	set_remote(wqe, addr, rkey);
	wqe->compare_add = htole64(add);
}

static void fl_wr_send_inv(struct ibv_qp_ex *ibqp, uint32_t rkey)
{
	struct faultline_sq_wqe *wqe = ex_begin(to_fl_qp_ex(ibqp), IBV_WR_SEND_WITH_INV);

	if (wqe)
		wqe->imm = htole32(rkey);
}

static void fl_wr_local_inv(struct ibv_qp_ex *ibqp, uint32_t rkey)
{
	struct faultline_sq_wqe *wqe = ex_begin(to_fl_qp_ex(ibqp), IBV_WR_LOCAL_INV);

	if (wqe)
		wqe->rkey = htole32(rkey);
}

static void fl_wr_bind_mw(struct ibv_qp_ex *ibqp, struct ibv_mw *mw, uint32_t rkey,
			  const struct ibv_mw_bind_info *info)
{
	struct faultline_sq_wqe *wqe = ex_begin(to_fl_qp_ex(ibqp), IBV_WR_BIND_MW);

	if (wqe)
		set_bind(wqe, mw, rkey, info);
}

#ifdef FAULTLINE_HAVE_FLUSH
static void fl_wr_flush(struct ibv_qp_ex *ibqp, uint32_t rkey, uint64_t addr, size_t len,
			uint8_t type, uint8_t level)
{
	struct faultline_flush_wqe *wqe =
		(void *)ex_begin(to_fl_qp_ex(ibqp), IBV_WR_FLUSH);

	if (!wqe)
		return;
	wqe->rkey = htole32(rkey);
	wqe->remote_addr = htole64(addr);
	wqe->length = htole64(len);
	wqe->placement = htole32(type);
	wqe->selectivity = htole32(level);
}
#endif

static void fl_wr_atomic_write(struct ibv_qp_ex *ibqp, uint32_t rkey, uint64_t addr,
			       const void *value)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);
	struct faultline_sq_wqe *wqe = ex_begin(qp, IBV_WR_ATOMIC_WRITE);

	if (!wqe)
		return;
	set_remote(wqe, addr, rkey);
	wqe->flags |= FAULTLINE_WR_FLAG_INLINE;
	qp->ex_err = add_inline(qp, wqe, value, sizeof(uint64_t));
}

static void fl_wr_set_ud_addr(struct ibv_qp_ex *ibqp, struct ibv_ah *ah, uint32_t qpn,
			      uint32_t qkey)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);

	if (qp->ex_wqe)
		set_ud(qp->ex_wqe, ah, qpn, qkey);
}

static void fl_wr_set_xrc_srqn(struct ibv_qp_ex *ibqp, uint32_t srqn)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);

	if (qp->ex_wqe)
		qp->ex_wqe->remote_qpn = htole32(srqn);
}

static void fl_wr_set_sge_list(struct ibv_qp_ex *ibqp, size_t num,
			       const struct ibv_sge *sg)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);

	if (qp->ex_wqe && !qp->ex_err)
		qp->ex_err = set_sges(qp, qp->ex_wqe, sg, num);
}

static void fl_wr_set_sge(struct ibv_qp_ex *ibqp, uint32_t lkey, uint64_t addr,
			  uint32_t length)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	fl_wr_set_sge_list(ibqp, 1, &sge);
}

static void fl_wr_set_inline_data_list(struct ibv_qp_ex *ibqp, size_t num,
				       const struct ibv_data_buf *buf)
{
	struct fl_qp *qp = to_fl_qp_ex(ibqp);
	size_t i;

	if (!qp->ex_wqe)
		return;
	qp->ex_wqe->flags |= FAULTLINE_WR_FLAG_INLINE;
	for (i = 0; i < num && !qp->ex_err; i++)
		qp->ex_err = add_inline(qp, qp->ex_wqe, buf[i].addr, buf[i].length);
}

static void fl_wr_set_inline_data(struct ibv_qp_ex *ibqp, void *addr, size_t length)
{
	struct ibv_data_buf buf = { .addr = addr, .length = length };

	fl_wr_set_inline_data_list(ibqp, 1, &buf);
}

/* Operations that may be requested in send_ops_flags for a QP type. */
static uint64_t ex_ops(const struct fl_context *ctx, enum ibv_qp_type type)
{
	const uint64_t roce = fl_is_iwarp(ctx) ? 0 :
		FL_QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
	const uint64_t send = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t write =
		IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	const uint64_t keys = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;

	switch (type) {
	case IBV_QPT_RC:
	case IBV_QPT_XRC_SEND:
		return send | write | keys | IBV_QP_EX_WITH_SEND_WITH_INV |
		       IBV_QP_EX_WITH_RDMA_READ |
		       IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | roce;
	case IBV_QPT_UC:
		return send | write | keys;
	case IBV_QPT_UD:
		return send;
	case IBV_QPT_RAW_PACKET:
		return IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
	default:
		return 0;
	}
}

static void set_builders(struct ibv_qp_ex *ex, uint64_t ops)
{
	ex->wr_start = fl_wr_start;
	ex->wr_complete = fl_wr_complete;
	ex->wr_abort = fl_wr_abort;
	ex->wr_set_ud_addr = fl_wr_set_ud_addr;
	ex->wr_set_xrc_srqn = fl_wr_set_xrc_srqn;
	ex->wr_set_sge = fl_wr_set_sge;
	ex->wr_set_sge_list = fl_wr_set_sge_list;
	ex->wr_set_inline_data = fl_wr_set_inline_data;
	ex->wr_set_inline_data_list = fl_wr_set_inline_data_list;
	if (ops & IBV_QP_EX_WITH_SEND)
		ex->wr_send = fl_wr_send;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
		ex->wr_send_imm = fl_wr_send_imm;
	if (ops & IBV_QP_EX_WITH_TSO)
		ex->wr_send_tso = fl_wr_send_tso;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE)
		ex->wr_rdma_write = fl_wr_rdma_write;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		ex->wr_rdma_write_imm = fl_wr_rdma_write_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_READ)
		ex->wr_rdma_read = fl_wr_rdma_read;
	if (ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		ex->wr_atomic_cmp_swp = fl_wr_atomic_cmp_swp;
	if (ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		ex->wr_atomic_fetch_add = fl_wr_atomic_fetch_add;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_INV)
		ex->wr_send_inv = fl_wr_send_inv;
	if (ops & IBV_QP_EX_WITH_LOCAL_INV)
		ex->wr_local_inv = fl_wr_local_inv;
	if (ops & IBV_QP_EX_WITH_BIND_MW)
		ex->wr_bind_mw = fl_wr_bind_mw;
#ifdef FAULTLINE_HAVE_FLUSH
	if (ops & IBV_QP_EX_WITH_FLUSH)
		ex->wr_flush = fl_wr_flush;
#endif
	if (ops & IBV_QP_EX_WITH_ATOMIC_WRITE)
		ex->wr_atomic_write = fl_wr_atomic_write;
}

/* Returns true if the QP has a receive queue of its own. */
static bool has_rq(const struct ibv_qp_init_attr_ex *attr)
{
	return !attr->srq && attr->qp_type != IBV_QPT_XRC_SEND;
}

/* Largest number of header bytes of a request for segmentation. */
static uint16_t max_tso_header(const struct ibv_qp_init_attr_ex *attr)
{
	return attr->comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER ? attr->max_tso_header : 0;
}

static int check_init(struct fl_context *ctx, const struct ibv_qp_init_attr_ex *attr)
{
	const struct ibv_qp_cap *cap = &attr->cap;

	if (!qp_ops(ctx, attr->qp_type))
		return EOPNOTSUPP;
	if (!check_comp_mask(attr->comp_mask, IBV_QP_INIT_ATTR_PD |
						      IBV_QP_INIT_ATTR_CREATE_FLAGS |
						      IBV_QP_INIT_ATTR_MAX_TSO_HEADER |
						      IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return EOPNOTSUPP;
	if (max_tso_header(attr) > FAULTLINE_MAX_RAW_HEADERS ||
	    (max_tso_header(attr) && attr->qp_type != IBV_QPT_RAW_PACKET))
		return EINVAL;
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr->create_flags)
		return EOPNOTSUPP;
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) &&
	    (attr->send_ops_flags & ~ex_ops(ctx, attr->qp_type)))
		return EOPNOTSUPP;
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->send_cq)
		return EINVAL;
	if (attr->qp_type != IBV_QPT_XRC_SEND && !attr->recv_cq)
		return EINVAL;
	if (cap->max_send_wr > ctx->max_qp_wr || cap->max_send_sge > ctx->max_sge ||
	    cap->max_inline_data > ctx->max_inline)
		return EINVAL;
	/* Without a receive queue these are ignored. */
	if (has_rq(attr) && (cap->max_recv_wr > ctx->max_qp_wr ||
			   cap->max_recv_sge > ctx->max_sge))
		return EINVAL;
	return 0;
}

static int alloc_queues(struct fl_context *ctx, struct fl_qp *qp,
			struct ibv_qp_init_attr_ex *attr)
{
	const struct ibv_qp_cap *cap = &attr->cap;
	uint32_t data = fl_header_room(max_tso_header(attr)) +
			cap->max_send_sge * sizeof(struct faultline_sge);
	struct fl_pd *pd = to_fl_pd(attr->pd);
	uint8_t shift;
	int ret;

	if (data < cap->max_inline_data)
		data = cap->max_inline_data;
	shift = fl_stride_shift(FAULTLINE_SQ_WQE_DATA + data,
				FAULTLINE_SQ_MIN_STRIDE_SHIFT);
	ret = fl_wq_alloc(ctx, pd, FAULTLINEDV_MEMORY_SQ, &qp->sq,
			  fl_log2_up(cap->max_send_wr), shift, cap->max_send_sge);
	if (ret)
		return ret;
	/*
	 * All bytes of an entry are offered; IBA 11.2.4.1 allows more than
	 * requested.
	 */
	qp->max_inline = min_t(uint32_t, (1U << shift) - FAULTLINE_SQ_WQE_DATA,
			       ctx->max_inline);
	/* In a thread domain. An SRQ is shared by all CQs that complete its requests. */
	qp->sq.lock.is_unshared = !!pd->td;
	if (!has_rq(attr))
		return 0;
	shift = fl_stride_shift(FAULTLINE_RQ_WQE_DATA +
					cap->max_recv_sge * sizeof(struct faultline_sge),
				FAULTLINE_RQ_MIN_STRIDE_SHIFT);
	ret = fl_wq_alloc(ctx, pd, FAULTLINEDV_MEMORY_RQ, &qp->rq,
			  fl_log2_up(cap->max_recv_wr), shift, cap->max_recv_sge);
	if (ret)
		fl_wq_free(&qp->sq);
	qp->rq.lock.is_unshared = !!pd->td;
	return ret;
}

/*
 * Creates a target. It has no queues: only the kernel and the device know it.
 */
static struct ibv_qp *create_xrc_target(struct ibv_context *context,
					struct ibv_qp_init_attr_ex *attr)
{
	struct fl_create_qp_ex_resp resp = {};
	struct fl_create_qp_ex cmd = {};
	struct fl_qp *qp;
	int ret = EOPNOTSUPP;

	/*
	 * librdmacm passes a protection domain for every queue pair; a target
	 * has none.
	 */
	if ((attr->comp_mask & ~IBV_QP_INIT_ATTR_PD) != IBV_QP_INIT_ATTR_XRCD)
		goto err;
	ret = ENOMEM;
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		goto err;
	ret = ibv_cmd_create_qp_ex2(context, &qp->verbs_qp, attr, &cmd.ibv_cmd,
				    sizeof(cmd), &resp.ibv_resp, sizeof(resp) FL_QP_DRIVER_ATTRS(NULL));
	if (!ret)
		return &qp->verbs_qp.qp;
	free(qp);
err:
	errno = ret;
	return NULL;
}

struct ibv_qp *fl_open_qp(struct ibv_context *context,
			  struct ibv_qp_open_attr *attr)
{
	struct ib_uverbs_create_qp_resp resp;
	struct ibv_open_qp cmd;
	struct fl_qp *qp;
	int ret;

	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	ret = ibv_cmd_open_qp(context, &qp->verbs_qp, sizeof(qp->verbs_qp), attr,
			      &cmd, sizeof(cmd), &resp, sizeof(resp));
	if (ret) {
		free(qp);
		errno = ret;
		return NULL;
	}
	return &qp->verbs_qp.qp;
}

struct ibv_qp *fl_create_qp_ex(struct ibv_context *context,
			       struct ibv_qp_init_attr_ex *attr)
{
	struct fl_context *ctx = to_fl_ctx(context);
	struct fl_create_qp_ex_resp resp = {};
	struct fl_create_qp_ex cmd = {};
	struct ibv_qp_init_attr_ex kernel_attr;
	struct fl_qp *qp;
	int ret;

	if (attr->qp_type == IBV_QPT_XRC_RECV)
		return create_xrc_target(context, attr);
	if (attr->comp_mask & IBV_QP_INIT_ATTR_IND_TABLE)
		return fl_create_rss_qp(context, attr);
	ret = check_init(ctx, attr);
	if (ret)
		goto err;
	ret = ENOMEM;
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		goto err;
	ret = alloc_queues(ctx, qp, attr);
	if (ret)
		goto err_qp;
	cmd.drv.sq_addr = (uintptr_t)qp->sq.ring.buf;
	cmd.drv.sq_log_depth = qp->sq.log_depth;
	cmd.drv.sq_stride_shift = qp->sq.stride_shift;
	cmd.drv.rq_addr = (uintptr_t)qp->rq.ring.buf;
	cmd.drv.rq_log_depth = qp->rq.log_depth;
	cmd.drv.rq_stride_shift = qp->rq.stride_shift;
	kernel_attr = *attr;
	kernel_attr.cap.max_inline_data = qp->max_inline;
	if (!has_rq(attr)) {
		kernel_attr.cap.max_recv_wr = 0;
		kernel_attr.cap.max_recv_sge = 0;
	}
	/*
	 * The provider alone implements the builders: the kernel gets no flags.
	 */
	kernel_attr.comp_mask &= ~(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
				   IBV_QP_INIT_ATTR_MAX_TSO_HEADER);
	ret = ibv_cmd_create_qp_ex2(context, &qp->verbs_qp, &kernel_attr, &cmd.ibv_cmd,
				    sizeof(cmd), &resp.ibv_resp, sizeof(resp) FL_QP_DRIVER_ATTRS(NULL));
	if (ret)
		goto err_queues;
	qp->sq_sig_all = attr->sq_sig_all;
	qp->is_iwarp = fl_is_iwarp(ctx);
	qp->ops = qp_ops(ctx, attr->qp_type);
	qp->max_tso_header = max_tso_header(attr);
	ret = fl_table_insert(&ctx->qps, qp->verbs_qp.qp.qp_num, qp);
	if (ret)
		goto err_destroy;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		set_builders(&qp->verbs_qp.qp_ex, attr->send_ops_flags);
		qp->verbs_qp.comp_mask |= VERBS_QP_EX;
	}
	attr->cap.max_send_wr = qp->sq.mask + 1;
	attr->cap.max_recv_wr = qp->rq.wr_id ? qp->rq.mask + 1 : 0;
	if (!qp->rq.wr_id)
		attr->cap.max_recv_sge = 0;
	attr->cap.max_inline_data = qp->max_inline;
	return &qp->verbs_qp.qp;

err_destroy:
	ibv_cmd_destroy_qp(&qp->verbs_qp.qp);
err_queues:
	fl_wq_free(&qp->rq);
	fl_wq_free(&qp->sq);
err_qp:
	free(qp);
err:
	errno = ret;
	return NULL;
}

struct ibv_qp *fl_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp *qp = fl_create_qp_ex(pd->context, &ex);

	if (qp)
		attr->cap = ex.cap;
	return qp;
}

/* Removes a QP's entries from its CQs, before the QP is destroyed. */
static void clean_cqs(struct fl_qp *qp)
{
	struct ibv_qp *ibqp = &qp->verbs_qp.qp;

	if (ibqp->recv_cq)
		fl_cq_clean(to_fl_cq(ibqp->recv_cq), ibqp->qp_num, ibqp->srq);
	if (ibqp->send_cq && ibqp->send_cq != ibqp->recv_cq)
		fl_cq_clean(to_fl_cq(ibqp->send_cq), ibqp->qp_num, ibqp->srq);
}

/* Empties a queue, as the transition to RESET does. */
void fl_reset_wq(struct fl_wq *wq)
{
	bool locked;

	if (!wq->wr_id)
		return;
	locked = fl_lock(&wq->lock);
	wq->head = 0;
	wq->tail = 0;
	fl_wq_record(&wq->ring)->producer = 0;
	fl_unlock(&wq->lock, locked);
}

/* Discards the requests of this thread's batch, which wr_complete refuses then. */
static void cancel_batch(struct fl_qp *qp)
{
	if (!fl_in_batch(&qp->sq.lock))
		return;
	qp->ex_head = 0;
	qp->ex_wqe = NULL;
	qp->ex_err = EINVAL;
}

int fl_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct fl_qp *qp = to_fl_qp(ibqp);
	bool reset = (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_RESET;
	struct ibv_modify_qp cmd = {};
	int ret;

	/* A target has no queues. */
	reset &= !!qp->sq.wr_id;
	if (reset)
		fl_doorbell_drain(to_fl_ctx(ibqp->context));
	ret = ibv_cmd_modify_qp(ibqp, attr, mask, &cmd, sizeof(cmd));
	if (!ret && reset) {
		clean_cqs(qp);
		fl_reset_wq(&qp->sq);
		fl_reset_wq(&qp->rq);
		cancel_batch(qp);
	}
	return ret;
}

int fl_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask,
		struct ibv_qp_init_attr *init)
{
	struct fl_qp *qp = to_fl_qp(ibqp);
	struct ibv_query_qp cmd;
	int ret;

	ret = ibv_cmd_query_qp(ibqp, attr, mask, init, &cmd, sizeof(cmd));
	if (ret)
		return ret;
	init->cap.max_send_wr = qp->sq.wr_id ? qp->sq.mask + 1 : 0;
	init->cap.max_send_sge = qp->sq.max_sge;
	init->cap.max_recv_wr = qp->rq.wr_id ? qp->rq.mask + 1 : 0;
	init->cap.max_recv_sge = qp->rq.max_sge;
	init->cap.max_inline_data = qp->max_inline;
	attr->cap = init->cap;
	return 0;
}

int fl_destroy_qp(struct ibv_qp *ibqp)
{
	struct fl_context *ctx = to_fl_ctx(ibqp->context);
	struct fl_qp *qp = to_fl_qp(ibqp);
	int ret;

	/*
	 * Garbage collectors may destroy objects after the context, in which
	 * case this fails. Nothing of the context may be accessed before.
	 */
	ret = ibv_cmd_destroy_qp(ibqp);
	if (ret)
		return ret;
	clean_cqs(qp);
	fl_table_remove(&ctx->qps, ibqp->qp_num);
	fl_wq_free(&qp->rq);
	fl_wq_free(&qp->sq);
	free(qp);
	return 0;
}
