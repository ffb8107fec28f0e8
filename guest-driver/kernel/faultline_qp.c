// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Queue pairs
 *
 * Creation, state changes and destruction of queue pairs.
 *
 * Locking: faultline_qp.mutex serializes state changes, queries and the methods
 * of faultline_policy.c, and is held during their commands. Posting and polling
 * read `state` without it. These locks are taken under it, or without it by
 * creation and destruction, one after the other:
 *
 * - faultline_wq.lock of the send queue, and faultline_dev.ah_lock under it
 *   (faultline_ah_reset())
 * - faultline_cq.lock of the send CQ, then that of the receive CQ: a QP enters
 *   and leaves the lists of its CQs, and its completions are invalidated.
 *   Under it, faultline_wq.lock of an SRQ is taken.
 *
 * The connection of an iWARP queue pair belongs to it: see faultline_iwcm.c. It
 * is protected by the mutex.
 *
 * A change to RESET clears the indices of the work queues under the locks of
 * the CQs only: the consumer must not post at the same time.
 *
 * faultline_qp_event() runs in interrupt context, under faultline_eq.lock, and
 * for a dead device under the mutex; everything else in process context.
 */
#include <linux/etherdevice.h>
#include <linux/log2.h>
#include <linux/slab.h>

#include <rdma/ib_cache.h>

#include "faultline_ib.h"

static int faultline_qp_type(const struct faultline_dev *dev,
			     enum ib_qp_type type)
{
	if (faultline_is_iwarp(dev) && type != IB_QPT_RC &&
	    type != IB_QPT_RAW_PACKET)
		return -EOPNOTSUPP;
	switch (type) {
	case IB_QPT_GSI:
		return FAULTLINE_QPT_GSI;
	case IB_QPT_RC:
		return FAULTLINE_QPT_RC;
	case IB_QPT_UC:
		return FAULTLINE_QPT_UC;
	case IB_QPT_UD:
		return FAULTLINE_QPT_UD;
	case IB_QPT_RAW_PACKET:
		return FAULTLINE_QPT_RAW;
	case IB_QPT_XRC_INI:
		return FAULTLINE_QPT_XRC_INI;
	case IB_QPT_XRC_TGT:
		return FAULTLINE_QPT_XRC_TGT;
	default:
		return -EOPNOTSUPP;
	}
}

/* Returns true if the QP has a receive queue of its own. */
static bool faultline_qp_has_rq(const struct ib_qp *ibqp)
{
	return !ibqp->srq && !ibqp->rwq_ind_tbl &&
	       ibqp->qp_type != IB_QPT_XRC_INI &&
	       ibqp->qp_type != IB_QPT_XRC_TGT;
}

static void faultline_qp_event(struct faultline_res *res, u8 kind)
{
	struct faultline_qp *qp = container_of(res, struct faultline_qp, res);
	struct ib_event event = {
		.device = qp->ibqp.device,
		.element.qp = &qp->ibqp,
	};

	switch (kind) {
	case FAULTLINE_EVENT_CONNECTED:
	case FAULTLINE_EVENT_CONNECT_FAILED:
	case FAULTLINE_EVENT_PEER_CLOSED:
	case FAULTLINE_EVENT_CONNECTION_CLOSED:
		if (qp->conn)
			faultline_conn_event(qp->conn, kind);
		return;
	case FAULTLINE_EVENT_QP_FATAL:
		event.event = IB_EVENT_QP_FATAL;
		break;
	case FAULTLINE_EVENT_QP_REQUEST_ERROR:
		event.event = IB_EVENT_QP_REQ_ERR;
		break;
	case FAULTLINE_EVENT_QP_ACCESS_ERROR:
		event.event = IB_EVENT_QP_ACCESS_ERR;
		break;
	case FAULTLINE_EVENT_COMM_ESTABLISHED:
		event.event = IB_EVENT_COMM_EST;
		break;
	case FAULTLINE_EVENT_SQ_DRAINED:
		event.event = IB_EVENT_SQ_DRAINED;
		break;
	case FAULTLINE_EVENT_LAST_WQE_REACHED:
		event.event = IB_EVENT_QP_LAST_WQE_REACHED;
		break;
	default:
		return;
	}
	if (qp->ibqp.event_handler)
		qp->ibqp.event_handler(&event, qp->ibqp.qp_context);
}

/*
 * Returns the queue pair of the RDMA device that an object of the array is, or
 * NULL: the netdev's queue pairs and the work queues of processes are others.
 */
struct faultline_qp *faultline_res_qp(struct faultline_res *res)
{
	return res->event == faultline_qp_event ?
		container_of(res, struct faultline_qp, res) : NULL;
}

/* True for a queue pair of a consumer in the kernel, but for the core's GSI. */
bool faultline_qp_of_consumer(struct faultline_res *res)
{
	const struct faultline_qp *qp = faultline_res_qp(res);

	return qp && !qp->user && qp->ibqp.qp_type != IB_QPT_GSI;
}

static int faultline_qp_check_caps(struct faultline_dev *dev,
				   const struct ib_qp_init_attr *attr)
{
	u32 max_wr = le32_to_cpu(dev->caps.max_qp_wr);
	u32 max_sge = le32_to_cpu(dev->caps.max_sge);

	if (attr->cap.max_send_wr > max_wr ||
	    attr->cap.max_send_sge > max_sge ||
	    attr->cap.max_inline_data > le32_to_cpu(dev->caps.max_inline))
		return -EINVAL;
	if (!attr->srq && (attr->cap.max_recv_wr > max_wr ||
			   attr->cap.max_recv_sge > max_sge))
		return -EINVAL;
	return 0;
}

/* Allocates the rings of a kernel QP. */
static int faultline_qp_alloc(struct faultline_dev *dev,
			      struct faultline_qp *qp,
			      const struct ib_qp_cap *cap)
{
	size_t sge_size = sizeof(struct faultline_sge);
	size_t send = max_t(size_t, qp->sq.max_sge * sge_size, qp->max_inline);
	int err;

	err = faultline_wq_alloc(dev, &qp->sq, cap->max_send_wr,
				 FAULTLINE_SQ_WQE_DATA + send);
	if (err || qp->ibqp.srq)
		return err;
	err = faultline_wq_alloc(dev, &qp->rq, cap->max_recv_wr,
				 FAULTLINE_RQ_WQE_DATA +
					 qp->rq.max_sge * sge_size);
	if (err)
		faultline_wq_free(dev, &qp->sq);
	return err;
}

/* Pins the rings of a QP of a process. */
static int faultline_qp_pin(struct faultline_dev *dev, struct faultline_qp *qp,
			    const struct ib_qp_cap *cap,
			    struct ib_udata *udata)
{
	struct faultline_create_qp_req req;
	int err;

	qp->user = true;
	err = ib_copy_validate_udata_in(udata, req, reserved);
	if (err)
		return err;
	if (req.reserved)
		return -EINVAL;
	qp->sq.log_depth = req.sq_log_depth;
	qp->sq.stride_shift = req.sq_stride_shift;
	err = faultline_buf_pin(dev, &qp->sq.buf, req.sq_addr,
				req.sq_log_depth, req.sq_stride_shift,
				cap->max_send_wr);
	if (err)
		return err;
	if (!faultline_qp_has_rq(&qp->ibqp))
		return 0;
	qp->rq.log_depth = req.rq_log_depth;
	qp->rq.stride_shift = req.rq_stride_shift;
	err = faultline_buf_pin(dev, &qp->rq.buf, req.rq_addr,
				req.rq_log_depth, req.rq_stride_shift,
				cap->max_recv_wr);
	if (err)
		goto free_sq;
	return 0;

free_sq:
	faultline_buf_free(dev, &qp->sq.buf);
	return err;
}

static void faultline_qp_free(struct faultline_dev *dev,
			      struct faultline_qp *qp)
{
	faultline_conn_destroy(qp);
	faultline_ah_reset(qp);
	kvfree(qp->pending_ahs);
	faultline_wq_free(dev, &qp->sq);
	faultline_wq_free(dev, &qp->rq);
}

static int faultline_qp_create_hw(struct faultline_dev *dev,
				  struct faultline_qp *qp, int type,
				  struct ib_udata *udata, u32 *qpn)
{
	struct ib_qp *ibqp = &qp->ibqp;
	/* XRC initiators have no receive CQ. */
	struct ib_cq *recv_cq = ibqp->recv_cq ?: ibqp->send_cq;
	struct faultline_create_qp params = {};
	u32 flags = 0;
	int err;

	params.sq = qp->sq.buf.ring;
	params.pd = cpu_to_le32(to_fpd(ibqp->pd)->pdn);
	params.uctx = cpu_to_le32(faultline_udata_uctx(udata));
	params.send_cqn = cpu_to_le32(to_fcq(ibqp->send_cq)->res.num);
	params.recv_cqn = cpu_to_le32(to_fcq(recv_cq)->res.num);
	params.qp_type = type;
	params.sq_log_depth = qp->sq.log_depth;
	params.sq_stride_shift = qp->sq.stride_shift;
	params.max_send_sge = qp->sq.max_sge;
	params.max_inline = cpu_to_le32(qp->max_inline);
	if (qp->sig_all)
		flags |= FAULTLINE_QP_FLAG_SIG_ALL;
	if (ibqp->srq) {
		flags |= FAULTLINE_QP_FLAG_SRQ;
		params.srqn = cpu_to_le32(to_fsrq(ibqp->srq)->res.num);
	} else if (faultline_qp_has_rq(ibqp)) {
		params.rq = qp->rq.buf.ring;
		params.rq_log_depth = qp->rq.log_depth;
		params.rq_stride_shift = qp->rq.stride_shift;
		params.max_recv_sge = qp->rq.max_sge;
	}
	params.flags = cpu_to_le32(flags);
	err = faultline_cmd_create_qp(dev, &params, qpn);
	faultline_buf_created(dev, &qp->sq.buf);
	faultline_buf_created(dev, &qp->rq.buf);
	return err;
}

static struct faultline_srq *faultline_qp_srq(struct faultline_qp *qp)
{
	return qp->ibqp.srq ? to_fsrq(qp->ibqp.srq) : NULL;
}

/* Links a QP to its CQs, whose polls flush it if the device is dead. */
static void faultline_qp_link(struct faultline_qp *qp)
{
	struct faultline_cq *send_cq = to_fcq(qp->ibqp.send_cq);
	struct faultline_cq *recv_cq = to_fcq(qp->ibqp.recv_cq);

	spin_lock_irq(&send_cq->lock);
	list_add_tail(&qp->send_cq_entry, &send_cq->send_qps);
	spin_unlock_irq(&send_cq->lock);
	spin_lock_irq(&recv_cq->lock);
	list_add_tail(&qp->recv_cq_entry, &recv_cq->recv_qps);
	spin_unlock_irq(&recv_cq->lock);
}

/*
 * Hides a QP from polls and events. Polls look it up under the lock of their
 * CQ. Its completions are removed before its number, which no other QP can use
 * until then.
 */
static void faultline_qp_unlink(struct faultline_qp *qp)
{
	struct faultline_dev *dev = to_fdev(qp->ibqp.device);
	struct faultline_cq *send_cq = to_fcq(qp->ibqp.send_cq);
	struct faultline_cq *recv_cq = to_fcq(qp->ibqp.recv_cq);

	if (!qp->user) {
		spin_lock_irq(&send_cq->lock);
		list_del_init(&qp->send_cq_entry);
		faultline_cq_clean(send_cq, qp->res.num, faultline_qp_srq(qp));
		spin_unlock_irq(&send_cq->lock);
		spin_lock_irq(&recv_cq->lock);
		list_del_init(&qp->recv_cq_entry);
		faultline_cq_clean(recv_cq, qp->res.num, faultline_qp_srq(qp));
		spin_unlock_irq(&recv_cq->lock);
	}
	faultline_res_remove(&dev->qps, &qp->res);
}

/* Completes the creation of a QP without queues. */
static int faultline_without_queues(struct faultline_dev *dev,
				    struct faultline_qp *qp, u32 qpn,
				    struct ib_qp_init_attr *attr)
{
	int err;

	qp->user = true;
	qp->ibqp.qp_num = qpn;
	faultline_res_init(&qp->res, qpn, faultline_qp_event);
	err = faultline_res_add(dev, &dev->qps, &qp->res);
	if (err)
		faultline_cmd_destroy_qp(dev, qpn);
	else
		memset(&attr->cap, 0, sizeof(attr->cap));
	return err;
}

/*
 * An XRC target has no queues, PD or user context: it belongs to its XRC
 * domain, and processes can share it.
 */
static int faultline_create_xrc_target(struct faultline_dev *dev,
				       struct faultline_qp *qp,
				       struct ib_qp_init_attr *attr,
				       struct ib_udata *udata)
{
	struct faultline_create_qp params = {
		.qp_type = FAULTLINE_QPT_XRC_TGT,
		.xrcd = cpu_to_le32(to_fxrcd(attr->xrcd)->xrcdn),
	};
	u32 qpn;
	int err;

	err = ib_no_udata_io(udata);
	if (err)
		return err;
	err = faultline_cmd_create_qp(dev, &params, &qpn);
	if (err)
		return err;
	return faultline_without_queues(dev, qp, qpn, attr);
}

/* Creates an RSS QP, which has no queues of its own. */
static int faultline_create_rss_qp(struct faultline_dev *dev,
				   struct faultline_qp *qp,
				   struct ib_qp_init_attr *attr,
				   struct ib_udata *udata)
{
	struct faultline_create_qp_resp resp = {};
	u32 qpn;
	int err;

	err = faultline_rss_qp_create_hw(dev, qp, attr, udata, &qpn);
	if (err)
		return err;
	err = faultline_without_queues(dev, qp, qpn, attr);
	if (err)
		return err;
	resp.qpn = qpn;
	err = faultline_respond(udata, resp);
	if (err) {
		faultline_res_remove(&dev->qps, &qp->res);
		faultline_cmd_destroy_qp(dev, qpn);
	}
	return err;
}

int faultline_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr,
			struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_qp *qp = to_fqp(ibqp);
	struct faultline_create_qp_resp resp = {};
	int type = faultline_qp_type(dev, attr->qp_type);
	u32 qpn;
	int err;

	if (type < 0)
		return type;
	if (attr->create_flags)
		return -EOPNOTSUPP;
	if (udata && attr->qp_type == IB_QPT_GSI)
		return -EINVAL;
	if (!udata && (attr->qp_type == IB_QPT_XRC_INI ||
		       attr->qp_type == IB_QPT_RAW_PACKET))
		return -EOPNOTSUPP;

	mutex_init(&qp->mutex);
	INIT_LIST_HEAD(&qp->ah_wait_entry);
	INIT_LIST_HEAD(&qp->send_cq_entry);
	INIT_LIST_HEAD(&qp->recv_cq_entry);
	spin_lock_init(&qp->sq.lock);
	spin_lock_init(&qp->rq.lock);
	qp->state = IB_QPS_RESET;
	if (attr->qp_type == IB_QPT_XRC_TGT)
		return faultline_create_xrc_target(dev, qp, attr, udata);
	if (attr->rwq_ind_tbl)
		return faultline_create_rss_qp(dev, qp, attr, udata);
	err = faultline_qp_check_caps(dev, attr);
	if (err)
		return err;
	qp->sig_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->max_inline = attr->cap.max_inline_data;
	qp->sq.max_sge = max(attr->cap.max_send_sge, 1U);
	qp->rq.max_sge = max(attr->cap.max_recv_sge, 1U);
	/* The core sets these fields only after this function. */
	ibqp->qp_type = attr->qp_type;
	ibqp->srq = attr->srq;
	ibqp->send_cq = attr->send_cq;
	ibqp->recv_cq = attr->recv_cq;
	err = udata ? faultline_qp_pin(dev, qp, &attr->cap, udata) :
		      faultline_qp_alloc(dev, qp, &attr->cap);
	if (err)
		return err;
	if (!udata && (attr->qp_type == IB_QPT_UD ||
		       attr->qp_type == IB_QPT_GSI)) {
		qp->pending_ahs = kvcalloc(faultline_wq_depth(&qp->sq),
					   sizeof(*qp->pending_ahs),
					   GFP_KERNEL);
		if (!qp->pending_ahs) {
			err = -ENOMEM;
			goto free_qp;
		}
	}
	if (faultline_is_iwarp(dev) && attr->qp_type == IB_QPT_RC) {
		err = faultline_conn_create(qp);
		if (err)
			goto free_qp;
	}
	err = faultline_qp_create_hw(dev, qp, type, udata, &qpn);
	if (err)
		goto free_qp;

	ibqp->qp_num = qpn;
	faultline_res_init(&qp->res, qpn, faultline_qp_event);
	if (!qp->user)
		faultline_qp_link(qp);
	err = faultline_res_add(dev, &dev->qps, &qp->res);
	if (err)
		goto destroy;
	attr->cap.max_send_wr = faultline_wq_depth(&qp->sq);
	attr->cap.max_send_sge = qp->sq.max_sge;
	if (faultline_qp_has_rq(ibqp)) {
		attr->cap.max_recv_wr = faultline_wq_depth(&qp->rq);
		attr->cap.max_recv_sge = qp->rq.max_sge;
	}
	resp.qpn = qpn;
	err = faultline_respond(udata, resp);
	if (err)
		goto destroy;
	if (faultline_qp_of_consumer(&qp->res) &&
	    !atomic_xchg(&to_fpd(ibqp->pd)->of_consumer, 1))
		atomic_inc(&dev->consumer_pds);
	return 0;

destroy:
	faultline_conn_stop(qp, true);
	faultline_cmd_destroy_qp(dev, qpn);
	faultline_qp_unlink(qp);
free_qp:
	faultline_qp_free(dev, qp);
	return faultline_verb_error(dev, udata, err);
}

int faultline_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_qp *qp = to_fqp(ibqp);
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	faultline_conn_stop(qp, true);
	err = faultline_dead_ok(dev,
				faultline_cmd_destroy_qp(dev, qp->res.num));
	if (err) {
		faultline_conn_stop(qp, false);
		return err;
	}
	faultline_qp_unlink(qp);
	faultline_qp_free(dev, qp);
	return 0;
}

/* Supported attributes; the device uses the same bits. */
#define FAULTLINE_QP_ATTRS						\
	(IB_QP_STATE | IB_QP_CUR_STATE | IB_QP_EN_SQD_ASYNC_NOTIFY |	\
	 IB_QP_ACCESS_FLAGS | IB_QP_PKEY_INDEX | IB_QP_PORT |		\
	 IB_QP_QKEY | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_TIMEOUT |	\
	 IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_RQ_PSN |		\
	 IB_QP_MAX_QP_RD_ATOMIC | IB_QP_MIN_RNR_TIMER | IB_QP_SQ_PSN |	\
	 IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_DEST_QPN)

/* Access flags of a QP that the device checks. */
#define FAULTLINE_QP_ACCESS						\
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |		\
	 IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC |		\
	 IB_ACCESS_MW_BIND | IB_ACCESS_FLUSH_GLOBAL |			\
	 IB_ACCESS_FLUSH_PERSISTENT)

/*
 * Access flags for the device. iWARP has none at a queue pair, and librdmacm
 * gives none to one that it is going to connect: the keys decide.
 */
static u32 faultline_qp_access(const struct faultline_qp *qp,
			       const struct ib_qp_attr *attr)
{
	if (qp->conn)
		return IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
		       IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC |
		       IB_ACCESS_MW_BIND;
	return attr->qp_access_flags & FAULTLINE_QP_ACCESS;
}

static int faultline_qp_fill_attr(struct faultline_qp *qp,
				  const struct ib_qp_attr *attr, int mask,
				  enum ib_qp_state new_state,
				  struct faultline_qp_attr *out)
{
	BUILD_BUG_ON(IB_QP_DEST_QPN != FAULTLINE_QP_ATTR_DEST_QPN);
	BUILD_BUG_ON(IB_QP_MIN_RNR_TIMER != FAULTLINE_QP_ATTR_MIN_RNR_TIMER);
	BUILD_BUG_ON(IB_QPS_ERR != FAULTLINE_QPS_ERR);

	if (mask & IB_QP_PORT && attr->port_num != 1)
		return -EINVAL;
	if (mask & IB_QP_PKEY_INDEX && attr->pkey_index)
		return -EINVAL;
	/* Ignore flags that only regions have, but refuse unknown flags. */
	if (mask & IB_QP_ACCESS_FLAGS &&
	    attr->qp_access_flags & ~IB_ACCESS_SUPPORTED)
		return -EINVAL;
	if (mask & IB_QP_AV &&
	    !(rdma_ah_get_ah_flags(&attr->ah_attr) & IB_AH_GRH))
		return -EINVAL;
	if (mask & IB_QP_PATH_MTU &&
	    attr->path_mtu > faultline_active_mtu(to_fdev(qp->ibqp.device)))
		return -EINVAL;
	out->mask = cpu_to_le32(mask);
	if (mask & IB_QP_STATE)
		out->state = new_state;
	if (mask & IB_QP_CUR_STATE)
		out->cur_state = attr->cur_qp_state;
	if (mask & IB_QP_EN_SQD_ASYNC_NOTIFY)
		out->sqd_notify = !!attr->en_sqd_async_notify;
	if (mask & IB_QP_ACCESS_FLAGS)
		out->access = cpu_to_le32(faultline_qp_access(qp, attr));
	if (mask & IB_QP_PKEY_INDEX)
		out->pkey_index = cpu_to_le16(attr->pkey_index);
	if (mask & IB_QP_PORT)
		out->port = attr->port_num;
	if (mask & IB_QP_QKEY)
		out->qkey = cpu_to_le32(attr->qkey);
	if (mask & IB_QP_AV)
		faultline_av_fill(&out->av, &attr->ah_attr);
	if (mask & IB_QP_PATH_MTU)
		out->path_mtu = attr->path_mtu;
	if (mask & IB_QP_TIMEOUT)
		out->timeout = attr->timeout;
	if (mask & IB_QP_RETRY_CNT)
		out->retry_cnt = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		out->rnr_retry = attr->rnr_retry;
	if (mask & IB_QP_RQ_PSN)
		out->rq_psn = cpu_to_le32(attr->rq_psn & 0xffffff);
	if (mask & IB_QP_SQ_PSN)
		out->sq_psn = cpu_to_le32(attr->sq_psn & 0xffffff);
	if (mask & IB_QP_MAX_QP_RD_ATOMIC)
		out->max_rd_atomic = attr->max_rd_atomic;
	if (mask & IB_QP_MAX_DEST_RD_ATOMIC)
		out->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	if (mask & IB_QP_MIN_RNR_TIMER)
		out->min_rnr_timer = attr->min_rnr_timer;
	if (mask & IB_QP_DEST_QPN)
		out->dest_qpn = cpu_to_le32(attr->dest_qp_num & 0xffffff);
	return 0;
}

static void faultline_wq_reset(struct faultline_wq *wq)
{
	wq->producer = 0;
	wq->consumer = 0;
	if (wq->buf.parts)
		memset(faultline_wq_record(wq), 0,
		       sizeof(struct faultline_wq_record));
}

/*
 * Drops all posted requests and completions, for the RESET state: completions
 * first, since a poll takes one of a request that is not posted for an error of
 * the device.
 */
static void faultline_qp_reset(struct faultline_qp *qp)
{
	struct faultline_cq *send_cq = to_fcq(qp->ibqp.send_cq);
	struct faultline_cq *recv_cq = to_fcq(qp->ibqp.recv_cq);

	spin_lock_irq(&send_cq->lock);
	faultline_cq_clean(send_cq, qp->res.num, faultline_qp_srq(qp));
	spin_unlock_irq(&send_cq->lock);
	spin_lock_irq(&recv_cq->lock);
	faultline_cq_clean(recv_cq, qp->res.num, faultline_qp_srq(qp));
	faultline_wq_reset(&qp->rq);
	spin_unlock_irq(&recv_cq->lock);
	faultline_ah_reset(qp);
	spin_lock_irq(&send_cq->lock);
	faultline_wq_reset(&qp->sq);
	spin_unlock_irq(&send_cq->lock);
}

/*
 * Changes the state of a QP of a dead device. The change to ERR succeeds, since
 * consumers use it to get their requests back: the driver flushes them.
 */
static int faultline_modify_qp_dead(struct faultline_qp *qp,
				    enum ib_qp_state new_state)
{
	if (new_state != IB_QPS_ERR && new_state != IB_QPS_RESET)
		return -EIO;
	qp->state = new_state;
	if (qp->user)
		return 0;
	faultline_cq_notify_dead(to_fcq(qp->ibqp.send_cq));
	faultline_cq_notify_dead(to_fcq(qp->ibqp.recv_cq));
	if (qp->ibqp.srq && new_state == IB_QPS_ERR)
		faultline_qp_event(&qp->res, FAULTLINE_EVENT_LAST_WQE_REACHED);
	return 0;
}

/*
 * Finds the MAC address of a peer. The core does it for QPs of processes.
 * Consumers in the kernel have to pass the address, but SMC-Rv2 does not know
 * that of a peer without a RoCE v1 GID, and passes zeroes. The core offers the
 * resolution as a part of the creation of an address handle only.
 */
static int faultline_qp_resolve(struct ib_pd *pd, struct rdma_ah_attr *attr)
{
	struct rdma_ah_attr resolved = *attr;
	struct ib_ah *ah;

	ah = rdma_create_user_ah(pd, &resolved, NULL);
	if (IS_ERR(ah))
		return PTR_ERR(ah);
	ether_addr_copy(attr->roce.dmac, resolved.roce.dmac);
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
	return 0;
}

int faultline_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
			struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_qp *qp = to_fqp(ibqp);
	struct faultline_qp_attr params = {};
	enum ib_qp_state cur_state, new_state;
	int err;

	if (mask & ~FAULTLINE_QP_ATTRS)
		return -EOPNOTSUPP;
	err = ib_no_udata_io(udata);
	if (err)
		return err;
	if (qp->conn) {
		mask = faultline_conn_attr_mask(attr, mask);
		if (mask <= 0)
			return mask;
	}
	if (!udata && mask & IB_QP_AV && ibqp->pd &&
	    is_zero_ether_addr(attr->ah_attr.roce.dmac)) {
		err = faultline_qp_resolve(ibqp->pd, &attr->ah_attr);
		if (err)
			return err;
	}
	mutex_lock(&qp->mutex);
	/* iw_cm may ask while the queue pair is being destroyed. */
	if (qp->conn && faultline_conn_stopped(qp->conn)) {
		err = -EINVAL;
		goto out;
	}
	cur_state = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : qp->state;
	new_state = mask & IB_QP_STATE ? attr->qp_state : cur_state;
	/* The device knows the states of its connections. */
	if (!qp->conn &&
	    !ib_modify_qp_is_ok(cur_state, new_state, ibqp->qp_type, mask)) {
		err = -EINVAL;
		goto out;
	}
	if (faultline_is_dead(dev)) {
		err = faultline_modify_qp_dead(qp, new_state);
		goto out;
	}
	err = faultline_qp_fill_attr(qp, attr, mask, new_state, &params);
	if (err)
		goto out;
	err = faultline_cmd_modify_qp(dev, qp->res.num, &params);
	if (err && faultline_is_dead(dev))
		err = faultline_modify_qp_dead(qp, new_state);
	if (err)
		goto out;
	qp->state = new_state;
	if (new_state == IB_QPS_RESET && !qp->user)
		faultline_qp_reset(qp);
	if (new_state == IB_QPS_RESET && qp->conn)
		faultline_conn_reset(qp->conn);
out:
	mutex_unlock(&qp->mutex);
	return faultline_verb_error(dev, udata, err);
}

static void faultline_qp_read_av(const struct faultline_av *av,
				 struct rdma_ah_attr *attr)
{
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(attr, 1);
	rdma_ah_set_sl(attr, av->sl);
	rdma_ah_set_grh(attr, (union ib_gid *)av->dgid,
			le32_to_cpu(av->flow_label),
			le16_to_cpu(av->sgid_index), av->hop_limit,
			av->traffic_class);
	memcpy(attr->roce.dmac, av->dmac, ETH_ALEN);
}

int faultline_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		       struct ib_qp_init_attr *init_attr)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_qp *qp = to_fqp(ibqp);
	struct faultline_qp_attr hw;
	int err;

	memset(attr, 0, sizeof(*attr));
	memset(init_attr, 0, sizeof(*init_attr));
	if (qp->sq.buf.size || qp->sq.buf.umem)
		attr->cap.max_send_wr = faultline_wq_depth(&qp->sq);
	attr->cap.max_send_sge = qp->sq.max_sge;
	attr->cap.max_inline_data = qp->max_inline;
	if (faultline_qp_has_rq(ibqp)) {
		attr->cap.max_recv_wr = faultline_wq_depth(&qp->rq);
		attr->cap.max_recv_sge = qp->rq.max_sge;
	}
	init_attr->event_handler = ibqp->event_handler;
	init_attr->qp_context = ibqp->qp_context;
	init_attr->send_cq = ibqp->send_cq;
	init_attr->recv_cq = ibqp->recv_cq;
	init_attr->srq = ibqp->srq;
	init_attr->cap = attr->cap;
	init_attr->sq_sig_type = qp->sig_all ? IB_SIGNAL_ALL_WR :
					       IB_SIGNAL_REQ_WR;
	init_attr->qp_type = ibqp->qp_type;

	mutex_lock(&qp->mutex);
	err = faultline_cmd_query_qp(dev, qp->res.num, &hw);
	if (!err)
		qp->state = hw.state;
	mutex_unlock(&qp->mutex);
	if (err)
		return err;
	attr->qp_state = hw.state;
	attr->cur_qp_state = hw.state;
	attr->path_mtu = hw.path_mtu;
	attr->path_mig_state = IB_MIG_MIGRATED;
	attr->qkey = le32_to_cpu(hw.qkey);
	attr->rq_psn = le32_to_cpu(hw.rq_psn);
	attr->sq_psn = le32_to_cpu(hw.sq_psn);
	attr->dest_qp_num = le32_to_cpu(hw.dest_qpn);
	attr->qp_access_flags = le32_to_cpu(hw.access);
	attr->pkey_index = le16_to_cpu(hw.pkey_index);
	attr->en_sqd_async_notify = hw.sqd_notify;
	attr->sq_draining = hw.sq_draining;
	attr->max_rd_atomic = hw.max_rd_atomic;
	attr->max_dest_rd_atomic = hw.max_dest_rd_atomic;
	attr->min_rnr_timer = hw.min_rnr_timer;
	attr->port_num = 1;
	attr->timeout = hw.timeout;
	attr->retry_cnt = hw.retry_cnt;
	attr->rnr_retry = hw.rnr_retry;
	if (ibqp->qp_type != IB_QPT_UD && ibqp->qp_type != IB_QPT_GSI &&
	    ibqp->qp_type != IB_QPT_RAW_PACKET && !qp->conn)
		faultline_qp_read_av(&hw.av, &attr->ah_attr);
	return 0;
}
