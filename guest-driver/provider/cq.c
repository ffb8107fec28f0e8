// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Completion queues.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "faultline.h"

static struct faultline_cqe *cq_entry(struct fl_cq *cq, uint32_t index)
{
	uint32_t slot = index & ((1U << cq->log_depth) - 1);

	return (struct faultline_cqe *)cq->ring.buf + slot;
}

/* The entry with this number, if the device has written it. */
static struct faultline_cqe *new_entry(struct fl_cq *cq, uint32_t index)
{
	struct faultline_cqe *cqe = cq_entry(cq, index);

	if (__atomic_load_n(&cqe->phase, __ATOMIC_ACQUIRE) !=
	    fl_phase(index, cq->log_depth))
		return NULL;
	udma_from_device_barrier();
	return cqe;
}

static void publish_consumer(struct fl_cq *cq)
{
	struct faultline_cq_record *record = (void *)(cq->ring.buf + cq->ring.ring_len);

	/*
	 * From here on the device may overwrite the entries before the index.
	 */
	__atomic_store_n(&record->consumer, htole32(cq->consumer), __ATOMIC_RELEASE);
}

static struct fl_qp *find_qp(struct fl_cq *cq, uint32_t qpn)
{
	if (!cq->last_qp || cq->last_qp->verbs_qp.qp.qp_num != qpn)
		cq->last_qp = fl_table_find(&to_fl_ctx(cq->verbs_cq.cq.context)->qps,
					    qpn);
	return cq->last_qp;
}

static uint64_t retire_receive(struct fl_wq *wq, uint32_t tag)
{
	uint64_t wr_id = wq->wr_id[tag & wq->mask];

	__atomic_store_n(&wq->tail, wq->tail + 1, __ATOMIC_RELEASE);
	return wr_id;
}

static uint64_t retire_of_qp(struct fl_qp *qp, const struct faultline_cqe *cqe)
{
	uint32_t index = le32toh(cqe->wqe);
	struct ibv_srq *srq = qp->verbs_qp.qp.srq;
	uint64_t wr_id;

	if (!(cqe->opcode & FAULTLINE_WC_RECV)) {
		wr_id = qp->sq.wr_id[index & qp->sq.mask];
		/* The entry also completes everything posted before it. */
		__atomic_store_n(&qp->sq.tail, index + 1, __ATOMIC_RELEASE);
		return wr_id;
	}
	if (srq)
		return fl_srq_release(to_fl_srq(srq), index);
	return retire_receive(&qp->rq, index);
}

/*
 * Gets the work request id of an entry and frees its place in the work queue.
 * Returns false if the queue of the entry does not exist any more.
 */
static bool retire(struct fl_cq *cq, const struct faultline_cqe *cqe,
		   uint64_t *wr_id)
{
	struct fl_context *ctx = to_fl_ctx(cq->verbs_cq.cq.context);
	struct fl_rwq *rwq;
	struct fl_srq *srq;
	struct fl_qp *qp;

	if (cqe->opcode & FL_WC_TM)
		return fl_tag_retire(ctx, cqe, wr_id);
	/* The target may belong to another process; the SRQ is of this one. */
	if (cqe->flags & FAULTLINE_CQE_XRC) {
		srq = fl_table_find(&ctx->srqs, le32toh(cqe->srqn));
		if (srq)
			*wr_id = fl_srq_release(srq, le32toh(cqe->wqe));
		return srq;
	}
	qp = find_qp(cq, le32toh(cqe->qpn));
	if (qp) {
		*wr_id = retire_of_qp(qp, cqe);
		return true;
	}
	/* Work queues and queue pairs share their numbers. */
	rwq = fl_table_find(&ctx->rwqs, le32toh(cqe->qpn));
	if (rwq)
		*wr_id = retire_receive(&rwq->wq, le32toh(cqe->wqe));
	return rwq;
}

static enum ibv_wc_opcode wc_opcode(uint8_t opcode)
{
	switch (opcode) {
	case FAULTLINE_WC_RDMA_WRITE:
		return IBV_WC_RDMA_WRITE;
	case FAULTLINE_WC_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case FAULTLINE_WC_COMP_SWAP:
		return IBV_WC_COMP_SWAP;
	case FAULTLINE_WC_FETCH_ADD:
		return IBV_WC_FETCH_ADD;
	case FAULTLINE_WC_BIND_MW:
		return IBV_WC_BIND_MW;
	case FAULTLINE_WC_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
#ifdef FAULTLINE_HAVE_FLUSH
	case FAULTLINE_WC_FLUSH:
		return IBV_WC_FLUSH;
#endif
	case FAULTLINE_WC_TSO:
		return IBV_WC_TSO;
	case FAULTLINE_WC_ATOMIC_WRITE:
		return IBV_WC_ATOMIC_WRITE;
	case FAULTLINE_WC_TM_ADD:
		return IBV_WC_TM_ADD;
	case FAULTLINE_WC_TM_DEL:
		return IBV_WC_TM_DEL;
	case FAULTLINE_WC_TM_SYNC:
		return IBV_WC_TM_SYNC;
	case FAULTLINE_WC_TM_RECV:
		return IBV_WC_TM_RECV;
	case FAULTLINE_WC_TM_NO_TAG:
		return IBV_WC_TM_NO_TAG;
	case FAULTLINE_WC_RECV:
		return IBV_WC_RECV;
	case FAULTLINE_WC_RECV_RDMA_WITH_IMM:
		return IBV_WC_RECV_RDMA_WITH_IMM;
	case FAULTLINE_WC_SEND:
	default:
		return IBV_WC_SEND;
	}
}

static unsigned int wc_flags(uint8_t flags)
{
	unsigned int out = 0;

	if (flags & FAULTLINE_CQE_GRH)
		out |= IBV_WC_GRH;
	if (flags & FAULTLINE_CQE_IMM)
		out |= IBV_WC_WITH_IMM;
	if (flags & FAULTLINE_CQE_INVALIDATE)
		out |= IBV_WC_WITH_INV;
	if (flags & FAULTLINE_CQE_CSUM_OK)
		out |= IBV_WC_IP_CSUM_OK;
	return out;
}

/* `imm` has the bytes of the wire; an rkey is a number. */
static __be32 wc_imm(const struct faultline_cqe *cqe)
{
	if (cqe->flags & FAULTLINE_CQE_INVALIDATE)
		return (__force __be32)le32toh(cqe->imm);
	return (__force __be32)cqe->imm;
}

/*
 * For a datagram over RoCE, ConnectX reports the type of its packet in place of
 * a service level. Programs (UCX) distinguish an IPv4 header from a GRH by it.
 * The VLAN priority is in `cvlan`.
 */
static uint8_t wc_sl(const struct faultline_cqe *cqe)
{
	if (!(cqe->flags & FAULTLINE_CQE_GRH))
		return cqe->sl;
	switch (cqe->ip_version) {
	case 4:
		return FL_SL_UDP | FL_SL_IPV4;
	case 6:
		return FL_SL_UDP | FL_SL_IPV6;
	default:
		return cqe->sl;
	}
}

int fl_poll_cq(struct ibv_cq *ibcq, int num, struct ibv_wc *wc)
{
	struct fl_cq *cq = to_fl_cq(ibcq);
	bool locked = fl_lock(&cq->lock);
	uint32_t first;
	int n = 0;

	first = cq->consumer;
	while (n < num) {
		const struct faultline_cqe *cqe = new_entry(cq, cq->consumer);
		uint64_t wr_id;

		if (!cqe)
			break;
		cq->consumer++;
		if (!retire(cq, cqe, &wr_id))
			continue;
		memset(wc, 0, sizeof(*wc));
		wc->wr_id = wr_id;
		wc->status = cqe->status;
		wc->opcode = wc_opcode(cqe->opcode);
		wc->vendor_err = cqe->vendor_err;
		wc->byte_len = le32toh(cqe->byte_len);
		wc->imm_data = wc_imm(cqe);
		wc->qp_num = le32toh(cqe->qpn);
		wc->src_qp = le32toh(cqe->src_qp);
		wc->wc_flags = wc_flags(cqe->flags) | fl_tag_wc_flags(cqe->tm_flags);
		wc->pkey_index = le16toh(cqe->pkey_index);
		wc->sl = wc_sl(cqe);
		wc++;
		n++;
	}
	if (cq->consumer != first)
		publish_consumer(cq);
	fl_unlock(&cq->lock, locked);
	if (!n && fl_is_gone(to_fl_ctx(ibcq->context)))
		return -EIO;
	return n;
}

static int fl_next_poll(struct ibv_cq_ex *ibcq)
{
	struct fl_cq *cq = to_fl_cq_ex(ibcq);
	const struct faultline_cqe *cqe;

	do {
		cqe = new_entry(cq, cq->consumer);
		if (!cqe)
			return fl_is_gone(to_fl_ctx(ibcq->context)) ? EIO : ENOENT;
		cq->consumer++;
	} while (!retire(cq, cqe, &ibcq->wr_id));
	cq->current = *cqe;
	ibcq->status = cqe->status;
	return 0;
}

static int fl_start_poll(struct ibv_cq_ex *ibcq, struct ibv_poll_cq_attr *attr)
{
	struct fl_cq *cq = to_fl_cq_ex(ibcq);
	uint32_t first;
	int ret;

	if (attr->comp_mask || fl_in_batch(&cq->lock))
		return EINVAL;
	if (cq->wallclock)
		fl_clock_refresh(to_fl_ctx(ibcq->context));
	fl_begin_batch(&cq->lock);
	first = cq->consumer;
	ret = fl_next_poll(ibcq);
	if (ret) {
		if (cq->consumer != first)
			publish_consumer(cq);
		fl_end_batch(&cq->lock);
	}
	return ret;
}

static void fl_end_poll(struct ibv_cq_ex *ibcq)
{
	struct fl_cq *cq = to_fl_cq_ex(ibcq);

	if (!fl_in_batch(&cq->lock))
		return;
	publish_consumer(cq);
	fl_end_batch(&cq->lock);
}

static enum ibv_wc_opcode fl_read_opcode(struct ibv_cq_ex *cq)
{
	return wc_opcode(to_fl_cq_ex(cq)->current.opcode);
}

static uint32_t fl_read_vendor_err(struct ibv_cq_ex *cq)
{
	return to_fl_cq_ex(cq)->current.vendor_err;
}

static uint32_t fl_read_byte_len(struct ibv_cq_ex *cq)
{
	return le32toh(to_fl_cq_ex(cq)->current.byte_len);
}

static __be32 fl_read_imm_data(struct ibv_cq_ex *cq)
{
	return wc_imm(&to_fl_cq_ex(cq)->current);
}

static uint32_t fl_read_qp_num(struct ibv_cq_ex *cq)
{
	return le32toh(to_fl_cq_ex(cq)->current.qpn);
}

static uint32_t fl_read_src_qp(struct ibv_cq_ex *cq)
{
	return le32toh(to_fl_cq_ex(cq)->current.src_qp);
}

static unsigned int fl_read_wc_flags(struct ibv_cq_ex *cq)
{
	const struct faultline_cqe *cqe = &to_fl_cq_ex(cq)->current;

	return wc_flags(cqe->flags) | fl_tag_wc_flags(cqe->tm_flags);
}

/* Only InfiniBand has LIDs. */
static uint32_t fl_read_slid(struct ibv_cq_ex *cq)
{
	return 0;
}

static uint8_t fl_read_sl(struct ibv_cq_ex *cq)
{
	return wc_sl(&to_fl_cq_ex(cq)->current);
}

static uint8_t fl_read_dlid_path_bits(struct ibv_cq_ex *cq)
{
	return 0;
}

static uint64_t fl_read_completion_ts(struct ibv_cq_ex *cq)
{
	return le64toh(to_fl_cq_ex(cq)->current.timestamp);
}

static uint64_t fl_read_completion_wallclock_ns(struct ibv_cq_ex *cq)
{
	return fl_wallclock(to_fl_ctx(cq->context), fl_read_completion_ts(cq));
}

/* The whole tag with the priority, as in mlx5. */
static uint16_t fl_read_cvlan(struct ibv_cq_ex *cq)
{
	return le16toh(to_fl_cq_ex(cq)->current.vlan_tci);
}

static uint32_t fl_read_flow_tag(struct ibv_cq_ex *cq)
{
	return le32toh(to_fl_cq_ex(cq)->current.flow_tag);
}

static void set_readers(struct ibv_cq_ex *cq, uint64_t wc_flags)
{
	cq->start_poll = fl_start_poll;
	cq->next_poll = fl_next_poll;
	cq->end_poll = fl_end_poll;
	cq->read_opcode = fl_read_opcode;
	cq->read_vendor_err = fl_read_vendor_err;
	cq->read_wc_flags = fl_read_wc_flags;
	if (wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
		cq->read_byte_len = fl_read_byte_len;
	if (wc_flags & IBV_WC_EX_WITH_IMM)
		cq->read_imm_data = fl_read_imm_data;
	if (wc_flags & IBV_WC_EX_WITH_QP_NUM)
		cq->read_qp_num = fl_read_qp_num;
	if (wc_flags & IBV_WC_EX_WITH_SRC_QP)
		cq->read_src_qp = fl_read_src_qp;
	if (wc_flags & IBV_WC_EX_WITH_SLID)
		cq->read_slid = fl_read_slid;
	if (wc_flags & IBV_WC_EX_WITH_SL)
		cq->read_sl = fl_read_sl;
	if (wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
		cq->read_dlid_path_bits = fl_read_dlid_path_bits;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		cq->read_completion_ts = fl_read_completion_ts;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		cq->read_completion_wallclock_ns = fl_read_completion_wallclock_ns;
	if (wc_flags & IBV_WC_EX_WITH_CVLAN)
		cq->read_cvlan = fl_read_cvlan;
	if (wc_flags & IBV_WC_EX_WITH_FLOW_TAG)
		cq->read_flow_tag = fl_read_flow_tag;
	if (wc_flags & IBV_WC_EX_WITH_TM_INFO)
		cq->read_tm_info = fl_read_tm_info;
}

#define FL_WC_FLAGS                                                            \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |         \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_CVLAN | \
	 IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO)

static uint32_t cq_log_depth(uint32_t cqe)
{
	uint8_t log_depth = fl_log2_up(cqe);

	return log_depth > FL_MIN_CQ_LOG_DEPTH ? log_depth : FL_MIN_CQ_LOG_DEPTH;
}

/* Returns true if the application promises that one thread at a time uses the CQ. */
static bool is_unshared(const struct ibv_cq_init_attr_ex *attr, const struct fl_pd *pd)
{
	return (pd && pd->td) || ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
				  (attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED));
}

static struct fl_cq *create_cq(struct ibv_context *context,
			       struct ibv_cq_init_attr_ex *attr)
{
	struct fl_context *ctx = to_fl_ctx(context);
	struct fl_create_cq_ex_resp resp = {};
	struct fl_create_cq_ex cmd = {};
	struct ibv_cq_init_attr_ex kernel_attr = *attr;
	struct fl_pd *pd = NULL;
	struct fl_cq *cq;
	int ret;

	if (!attr->cqe || attr->cqe > ctx->max_cqe) {
		errno = EINVAL;
		return NULL;
	}
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return NULL;
	cq->log_depth = cq_log_depth(attr->cqe);
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD)
		pd = to_fl_pd(attr->parent_domain);
	ret = fl_ring_alloc(ctx, pd, FAULTLINEDV_MEMORY_CQ, &cq->ring,
			    sizeof(struct faultline_cqe) << cq->log_depth);
	if (ret)
		goto err_cq;
	ret = fl_lock_init(&cq->lock, is_unshared(attr, pd));
	if (ret)
		goto err_ring;
	cmd.drv.buf_addr = (uintptr_t)cq->ring.buf;
	cmd.drv.log_depth = cq->log_depth;
	/*
	 * The provider alone implements the readers: the kernel gets no flags.
	 */
	kernel_attr.wc_flags = 0;
	kernel_attr.comp_mask = 0;
	kernel_attr.flags = 0;
	kernel_attr.cqe = 1U << cq->log_depth;
	ret = ibv_cmd_create_cq_ex(context, &kernel_attr, FL_CQ_PROV_ATTR(NULL) &cq->verbs_cq,
				   &cmd.ibv_cmd, sizeof(cmd), &resp.ibv_resp, sizeof(resp), 0);
	if (ret)
		goto err_lock;
	cq->cqn = resp.drv.cqn;
	cq->pd = pd;
	return cq;

err_lock:
	fl_lock_destroy(&cq->lock);
err_ring:
	fl_ring_free(&cq->ring);
err_cq:
	free(cq);
	errno = ret;
	return NULL;
}

struct ibv_cq *fl_create_cq(struct ibv_context *context, int cqe,
			    struct ibv_comp_channel *channel, int comp_vector)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe > 0 ? cqe : 0,
		.channel = channel,
		.comp_vector = comp_vector,
	};
	struct fl_cq *cq = create_cq(context, &attr);

	return cq ? &cq->verbs_cq.cq : NULL;
}

struct ibv_cq_ex *fl_create_cq_ex(struct ibv_context *context,
				  struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
	struct fl_cq *cq;

	if (!check_comp_mask(attr->comp_mask, known) ||
	    !check_comp_mask(attr->wc_flags, FL_WC_FLAGS) ||
	    ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
	     !check_comp_mask(attr->flags, IBV_CREATE_CQ_ATTR_SINGLE_THREADED))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) &&
	    (!attr->parent_domain || !to_fl_pd(attr->parent_domain)->contained)) {
		errno = EINVAL;
		return NULL;
	}
	if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
		int ret = fl_clock_sync(to_fl_ctx(context));

		if (ret) {
			errno = ret;
			return NULL;
		}
	}
	cq = create_cq(context, attr);
	if (!cq)
		return NULL;
	cq->wallclock = attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	set_readers(&cq->verbs_cq.cq_ex, attr->wc_flags);
	return &cq->verbs_cq.cq_ex;
}

int fl_destroy_cq(struct ibv_cq *ibcq)
{
	struct fl_cq *cq = to_fl_cq(ibcq);
	int ret = ibv_cmd_destroy_cq(ibcq);

	if (ret)
		return ret;
	fl_lock_destroy(&cq->lock);
	fl_ring_free(&cq->ring);
	free(cq);
	return 0;
}

int fl_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	struct fl_context *ctx = to_fl_ctx(ibcq->context);
	struct fl_cq *cq = to_fl_cq(ibcq);
	struct ib_uverbs_resize_cq_resp resp = {};
	struct fl_resize_cq cmd = {};
	struct fl_ring ring = {};
	uint32_t log_depth;
	bool locked;
	int ret;

	if (cqe <= 0 || cqe > ctx->max_cqe)
		return EINVAL;
	log_depth = cq_log_depth(cqe);
	ret = fl_ring_alloc(ctx, cq->pd, FAULTLINEDV_MEMORY_CQ, &ring,
			    sizeof(struct faultline_cqe) << log_depth);
	if (ret)
		return ret;
	/*
	 * The device copies the unread entries. Until it has, no thread may poll
	 * or arm the CQ: indices restart at zero, and the device would take an
	 * old index for a new one.
	 */
	locked = fl_lock(&cq->lock);
	fl_doorbell_drain(ctx);
	cmd.drv.buf_addr = (uintptr_t)ring.buf;
	cmd.drv.log_depth = log_depth;
	cmd.drv.consumer = cq->consumer;
	ret = ibv_cmd_resize_cq(ibcq, 1 << log_depth, &cmd.ibv_cmd, sizeof(cmd), &resp,
				sizeof(resp));
	if (!ret) {
		struct fl_ring old = cq->ring;

		cq->ring = ring;
		cq->log_depth = log_depth;
		cq->consumer = 0;	/* counts begin anew */
		publish_consumer(cq);
		ring = old;
	}
	fl_unlock(&cq->lock, locked);
	fl_ring_free(&ring);
	/*
	 * The CQ has more entries than fit: other providers report an invalid
	 * size.
	 */
	return ret == EBUSY ? EINVAL : ret;
}

int fl_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	struct ibv_modify_cq cmd = {};

	return ibv_cmd_modify_cq(cq, attr, &cmd, sizeof(cmd));
}

int fl_req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct fl_cq *cq = to_fl_cq(ibcq);
	/* Under the lock: not while the queue is resized. */
	bool locked = fl_lock(&cq->lock);

	fl_doorbell(to_fl_ctx(ibcq->context),
		    solicited_only ? FAULTLINE_DB_CQ_ARM_SOLICITED : FAULTLINE_DB_CQ_ARM,
		    cq->cqn, cq->consumer);
	fl_unlock(&cq->lock, locked);
	return 0;
}

/*
 * Removes the entries of a QP that is destroyed or reset. The other entries
 * move up, the newest first, so that none is lost; the consumer index moves
 * past the gap.
 */
void fl_cq_clean(struct fl_cq *cq, uint32_t qpn, struct ibv_srq *srq)
{
	bool locked = fl_lock(&cq->lock);
	uint32_t end, removed = 0;

	for (end = cq->consumer; new_entry(cq, end); end++)
		if (end - cq->consumer == 1U << cq->log_depth)
			break;
	while (end != cq->consumer) {
		struct faultline_cqe *cqe = cq_entry(cq, --end);

		/*
		 * Entries of tag matching remain: their buffers belong to the
		 * SRQ.
		 */
		if (le32toh(cqe->qpn) == qpn && !(cqe->opcode & FL_WC_TM)) {
			if ((cqe->opcode & FAULTLINE_WC_RECV) && srq)
				fl_srq_release(to_fl_srq(srq),
					       le32toh(cqe->wqe));
			removed++;
		} else if (removed) {
			struct faultline_cqe *to = cq_entry(cq, end + removed);

			*to = *cqe;
			to->phase = fl_phase(end + removed, cq->log_depth);
		}
	}
	cq->consumer += removed;
	cq->last_qp = NULL;
	publish_consumer(cq);
	fl_unlock(&cq->lock, locked);
}

/*
 * Invalidates the remaining entries of a destroyed SRQ: no SRQ has that number.
 * Entries for sends of its queue pairs remain.
 */
void fl_cq_clean_srq(struct fl_cq *cq, uint32_t srqn)
{
	bool locked = fl_lock(&cq->lock);
	uint32_t index;

	for (index = cq->consumer; index - cq->consumer < 1U << cq->log_depth;
	     index++) {
		struct faultline_cqe *cqe = new_entry(cq, index);

		if (!cqe)
			break;
		if ((cqe->flags & FAULTLINE_CQE_XRC || cqe->opcode & FL_WC_TM) &&
		    le32toh(cqe->srqn) == srqn)
			cqe->srqn = htole32(UINT32_MAX);
	}
	fl_unlock(&cq->lock, locked);
}
