// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Shared receive queues
 *
 * Locking: faultline_srq.resize_lock (a mutex) serializes changes of an SRQ,
 * and protects the ring of an SRQ of a process, which a resize replaces. It is
 * held during the commands. faultline_query_srq() reads the size without it.
 *
 * faultline_wq.lock (taken with interrupts disabled, in any context) protects
 * the ring and the free tags of a kernel SRQ: posting takes tags, and polls
 * return them, under faultline_cq.lock. No lock is taken under it.
 *
 * faultline_srq_event() runs in interrupt context, under faultline_eq.lock.
 */
#include <linux/bitmap.h>
#include <linux/log2.h>
#include <linux/slab.h>

#include "faultline_ib.h"

static void faultline_srq_event(struct faultline_res *res, u8 kind)
{
	struct faultline_srq *srq = container_of(res, struct faultline_srq, res);
	struct ib_event event = {
		.device = srq->ibsrq.device,
		.element.srq = &srq->ibsrq,
		.event = kind == FAULTLINE_EVENT_SRQ_LIMIT ?
			IB_EVENT_SRQ_LIMIT_REACHED : IB_EVENT_SRQ_ERR,
	};

	if (srq->ibsrq.event_handler)
		srq->ibsrq.event_handler(&event, srq->ibsrq.srq_context);
}

/*
 * Frees the tag of a completed work request, and returns its wr_id and the
 * bytes of its buffers. Returns false if no work request with the tag is
 * posted.
 */
bool faultline_srq_complete(struct faultline_srq *srq, u32 tag, u64 *wr_id,
			    u32 *room)
{
	struct faultline_wq *wq = &srq->wq;
	unsigned long flags;
	bool posted;

	if (tag >= faultline_wq_depth(wq))
		return false;
	spin_lock_irqsave(&wq->lock, flags);
	posted = __test_and_clear_bit(tag, srq->posted_tags);
	if (posted) {
		*wr_id = wq->wr_id[tag];
		*room = wq->room[tag];
		srq->free_tags[srq->num_free++] = tag;
	}
	spin_unlock_irqrestore(&wq->lock, flags);
	return posted;
}

static int faultline_srq_alloc(struct faultline_dev *dev,
			       struct faultline_srq *srq,
			       const struct ib_srq_attr *attr)
{
	struct faultline_wq *wq = &srq->wq;
	u32 i, depth;
	int err;

	err = faultline_wq_alloc(dev, wq, attr->max_wr,
				 FAULTLINE_RQ_WQE_DATA +
				 max(attr->max_sge, 1U) *
					 sizeof(struct faultline_sge));
	if (err)
		return err;
	depth = faultline_wq_depth(wq);
	srq->free_tags = kvcalloc(depth, sizeof(*srq->free_tags), GFP_KERNEL);
	srq->posted_tags = bitmap_zalloc(depth, GFP_KERNEL);
	if (!srq->free_tags || !srq->posted_tags) {
		bitmap_free(srq->posted_tags);
		kvfree(srq->free_tags);
		faultline_wq_free(dev, wq);
		return -ENOMEM;
	}
	for (i = 0; i < depth; i++)
		srq->free_tags[i] = i;
	srq->num_free = depth;
	return 0;
}

static int faultline_srq_pin(struct faultline_dev *dev,
			     struct faultline_srq *srq,
			     const struct ib_srq_attr *attr, bool with_tags,
			     struct ib_udata *udata)
{
	struct faultline_wq *wq = &srq->wq;
	struct faultline_create_tm_srq_req req = {};
	int err;

	srq->user = true;
	err = with_tags ? ib_copy_validate_udata_in(udata, req, reserved) :
			  ib_copy_validate_udata_in(udata, req.srq, reserved);
	if (err)
		return err;
	if (memchr_inv(req.srq.reserved, 0, sizeof(req.srq.reserved)) ||
	    memchr_inv(req.reserved, 0, sizeof(req.reserved)))
		return -EINVAL;
	wq->log_depth = req.srq.log_depth;
	wq->stride_shift = req.srq.stride_shift;
	err = faultline_buf_pin(dev, &wq->buf, req.srq.buf_addr,
				req.srq.log_depth, req.srq.stride_shift,
				attr->max_wr);
	if (err || !with_tags)
		return err;
	srq->ops_log_depth = req.ops_log_depth;
	err = faultline_buf_pin(dev, &srq->ops, req.ops_addr,
				req.ops_log_depth, FAULTLINE_TM_OP_SHIFT, 1);
	if (err)
		faultline_buf_free(dev, &wq->buf);
	return err;
}

static int faultline_srq_command(struct faultline_dev *dev,
				 struct faultline_srq *srq,
				 const struct faultline_create_srq *basic,
				 const struct ib_srq_init_attr *attr, u32 *srqn)
{
	struct faultline_create_tm_srq params = {
		.srq = *basic,
		.ops = srq->ops.ring,
		.max_tags = cpu_to_le32(attr->ext.tag_matching.max_num_tags),
		.ops_log_depth = srq->ops_log_depth,
	};

	if (attr->srq_type != IB_SRQT_TM)
		return faultline_cmd_create_srq(dev, basic, srqn);
	return faultline_cmd_create_tm_srq(dev, &params, srqn);
}

static void faultline_srq_free(struct faultline_dev *dev,
			       struct faultline_srq *srq)
{
	faultline_buf_free(dev, &srq->ops);
	faultline_wq_free(dev, &srq->wq);
	bitmap_free(srq->posted_tags);
	kvfree(srq->free_tags);
}

int faultline_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *attr,
			 struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibsrq->device);
	struct faultline_srq *srq = to_fsrq(ibsrq);
	struct faultline_create_srq params = {};
	struct faultline_create_srq_resp resp = {};
	u32 srqn;
	int err;

	if (attr->srq_type != IB_SRQT_BASIC && !udata)
		return -EOPNOTSUPP;
	if (attr->srq_type == IB_SRQT_TM && !dev->caps.max_tm_tags)
		return -EOPNOTSUPP;
	if (!attr->attr.max_wr ||
	    attr->attr.max_wr > le32_to_cpu(dev->caps.max_srq_wr) ||
	    attr->attr.max_sge > le32_to_cpu(dev->caps.max_sge) ||
	    attr->attr.srq_limit > attr->attr.max_wr)
		return -EINVAL;
	spin_lock_init(&srq->wq.lock);
	mutex_init(&srq->resize_lock);
	srq->wq.max_sge = max(attr->attr.max_sge, 1U);
	err = udata ? faultline_srq_pin(dev, srq, &attr->attr,
					attr->srq_type == IB_SRQT_TM, udata) :
		      faultline_srq_alloc(dev, srq, &attr->attr);
	if (err)
		return err;

	params.ring = srq->wq.buf.ring;
	params.pd = cpu_to_le32(to_fpd(ibsrq->pd)->pdn);
	params.uctx = cpu_to_le32(faultline_udata_uctx(udata));
	params.log_depth = srq->wq.log_depth;
	params.stride_shift = srq->wq.stride_shift;
	params.max_sge = srq->wq.max_sge;
	params.limit = cpu_to_le32(attr->attr.srq_limit);
	if (attr->srq_type == IB_SRQT_XRC) {
		params.kind = 1;
		params.xrcd = cpu_to_le32(to_fxrcd(attr->ext.xrc.xrcd)->xrcdn);
	}
	if (ib_srq_has_cq(attr->srq_type))
		params.cqn = cpu_to_le32(to_fcq(attr->ext.cq)->res.num);
	err = faultline_srq_command(dev, srq, &params, attr, &srqn);
	faultline_buf_created(dev, &srq->wq.buf);
	faultline_buf_created(dev, &srq->ops);
	if (err)
		goto free_srq;

	faultline_res_init(&srq->res, srqn, faultline_srq_event);
	err = faultline_res_add(dev, &dev->srqs, &srq->res);
	if (err)
		goto destroy;
	attr->attr.max_wr = faultline_wq_depth(&srq->wq);
	attr->attr.max_sge = srq->wq.max_sge;
	/* The number by which peers address the SRQ. */
	if (attr->srq_type == IB_SRQT_XRC)
		ibsrq->ext.xrc.srq_num = srqn;
	resp.srqn = srqn;
	err = faultline_respond(udata, resp);
	if (err)
		goto remove;
	return 0;

remove:
	faultline_res_remove(&dev->srqs, &srq->res);
destroy:
	faultline_cmd_destroy_srq(dev, srqn);
free_srq:
	faultline_srq_free(dev, srq);
	return err;
}

/*
 * The provider does not post meanwhile. It continues at the index that the
 * device writes to the new record.
 */
static int faultline_resize_srq(struct faultline_dev *dev,
				struct faultline_srq *srq, u32 max_wr,
				struct ib_udata *udata)
{
	struct faultline_resize_srq params = {};
	struct faultline_resize_srq_req req;
	struct faultline_buf buf;
	int err;

	if (!udata || !srq->user)
		return -EOPNOTSUPP;
	if (!max_wr || max_wr > le32_to_cpu(dev->caps.max_srq_wr))
		return -EINVAL;
	err = ib_copy_validate_udata_in(udata, req, reserved);
	if (err)
		return err;
	if (memchr_inv(req.reserved, 0, sizeof(req.reserved)))
		return -EINVAL;
	err = faultline_buf_pin(dev, &buf, req.buf_addr, req.log_depth,
				srq->wq.stride_shift, max_wr);
	if (err)
		return err;

	params.ring = buf.ring;
	params.log_depth = req.log_depth;
	err = faultline_cmd_resize_srq(dev, srq->res.num, &params);
	faultline_buf_created(dev, &buf);
	if (!err) {
		swap(srq->wq.buf, buf);
		srq->wq.log_depth = req.log_depth;
	}
	faultline_buf_free(dev, &buf);
	return err;
}

static int __faultline_modify_srq(struct faultline_srq *srq,
				  struct ib_srq_attr *attr,
				  enum ib_srq_attr_mask mask,
				  struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(srq->ibsrq.device);
	int err;

	if (mask & ~(IB_SRQ_MAX_WR | IB_SRQ_LIMIT))
		return -EINVAL;
	/* Only a change of the size has a part of the driver's. */
	err = mask & IB_SRQ_MAX_WR ? 0 : ib_is_udata_in_empty(udata);
	if (err)
		return err;
	/* Check this first: on error the provider keeps the old ring. */
	if (mask & IB_SRQ_LIMIT &&
	    attr->srq_limit > (mask & IB_SRQ_MAX_WR ?
			       attr->max_wr : faultline_wq_depth(&srq->wq)))
		return -EINVAL;
	if (mask & IB_SRQ_MAX_WR) {
		err = faultline_resize_srq(dev, srq, attr->max_wr, udata);
		if (err)
			return err;
	}
	if (!(mask & IB_SRQ_LIMIT))
		return 0;
	return faultline_cmd_modify_srq(dev, srq->res.num, attr->srq_limit);
}

int faultline_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
			 enum ib_srq_attr_mask mask, struct ib_udata *udata)
{
	struct faultline_srq *srq = to_fsrq(ibsrq);
	int err = ib_respond_empty_udata(udata);

	if (err)
		return err;
	/* Without the lock, concurrent calls could free the ring in use. */
	mutex_lock(&srq->resize_lock);
	err = __faultline_modify_srq(srq, attr, mask, udata);
	mutex_unlock(&srq->resize_lock);
	return err;
}

int faultline_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct faultline_srq *srq = to_fsrq(ibsrq);

	attr->max_wr = faultline_wq_depth(&srq->wq);
	attr->max_sge = srq->wq.max_sge;
	return faultline_cmd_query_srq(to_fdev(ibsrq->device), srq->res.num,
				       &attr->srq_limit);
}

int faultline_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibsrq->device);
	struct faultline_srq *srq = to_fsrq(ibsrq);
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	err = faultline_dead_ok(dev,
				faultline_cmd_destroy_srq(dev, srq->res.num));
	if (err)
		return err;
	faultline_res_remove(&dev->srqs, &srq->res);
	faultline_srq_free(dev, srq);
	return 0;
}
