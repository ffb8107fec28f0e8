// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Shared receive queues.
 *
 * Requests complete out of order, so each has a tag from a stack of free ones.
 * The number of tags equals that of ring entries: if a tag is free, a slot is
 * free. After a ring has become smaller, surplus tags are not used.
 */
#include <errno.h>
#include <stdlib.h>

#include "faultline.h"

struct fl_srq *fl_alloc_srq(struct ibv_pd *pd, struct ibv_srq_attr *attr,
			    struct faultline_create_srq_req *req)
{
	struct fl_context *ctx = to_fl_ctx(pd->context);
	uint8_t log_depth, stride_shift;
	struct fl_srq *srq;
	uint32_t i;
	int ret = EINVAL;

	if (!attr->max_wr || attr->max_wr > ctx->max_srq_wr ||
	    attr->max_sge > ctx->max_sge)
		goto err;
	ret = ENOMEM;
	srq = calloc(1, sizeof(*srq));
	if (!srq)
		goto err;
	log_depth = fl_log2_up(attr->max_wr);
	stride_shift = fl_stride_shift(FAULTLINE_RQ_WQE_DATA +
					       attr->max_sge * sizeof(struct faultline_sge),
				       FAULTLINE_RQ_MIN_STRIDE_SHIFT);
	ret = fl_wq_alloc(ctx, to_fl_pd(pd), FAULTLINEDV_MEMORY_SRQ, &srq->wq,
			  log_depth, stride_shift, attr->max_sge);
	if (ret)
		goto err_srq;
	srq->pd = to_fl_pd(pd);
	srq->num_free = srq->wq.mask + 1;
	srq->num_tags = srq->num_free;
	srq->free = calloc(srq->num_free, sizeof(*srq->free));
	if (!srq->free) {
		ret = ENOMEM;
		goto err_wq;
	}
	for (i = 0; i < srq->num_free; i++)
		srq->free[i] = srq->num_free - 1 - i;
	req->buf_addr = (uintptr_t)srq->wq.ring.buf;
	req->log_depth = log_depth;
	req->stride_shift = stride_shift;
	return srq;

err_wq:
	fl_wq_free(&srq->wq);
err_srq:
	free(srq);
err:
	errno = ret;
	return NULL;
}

void fl_free_srq(struct fl_srq *srq)
{
	fl_free_tags(srq);
	free(srq->free);
	fl_wq_free(&srq->wq);
	free(srq);
}

struct ibv_srq *fl_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct fl_create_srq_resp resp = {};
	uint32_t max_sge = attr->attr.max_sge;
	struct fl_create_srq cmd = {};
	struct fl_srq *srq;
	int ret;

	srq = fl_alloc_srq(pd, &attr->attr, &cmd.drv);
	if (!srq)
		return NULL;
	ret = ibv_cmd_create_srq(pd, &srq->verbs_srq.srq, attr, &cmd.ibv_cmd,
				 sizeof(cmd), &resp.ibv_resp, sizeof(resp));
	if (ret) {
		fl_free_srq(srq);
		errno = ret;
		return NULL;
	}
	srq->srqn = resp.drv.srqn;
	attr->attr.max_wr = srq->wq.mask + 1;
	attr->attr.max_sge = max_sge;
	return &srq->verbs_srq.srq;
}

/* Creates an SRQ whose number completions carry. */
int fl_create_named_srq(struct ibv_context *context, struct fl_srq *srq,
			struct ibv_srq_init_attr_ex *attr,
			struct ibv_create_xsrq *cmd, size_t cmd_size)
{
	struct fl_create_srq_resp resp = {};
	uint32_t max_sge = attr->attr.max_sge;
	int ret;

	ret = ibv_cmd_create_srq_ex(context, &srq->verbs_srq, attr, cmd, cmd_size,
				    &resp.ibv_resp, sizeof(resp));
	if (ret)
		return ret;
	srq->srqn = resp.drv.srqn;
	srq->cq = to_fl_cq(attr->cq);
	ret = fl_table_insert(&to_fl_ctx(context)->srqs, srq->srqn, srq);
	if (ret) {
		ibv_cmd_destroy_srq(&srq->verbs_srq.srq);
		return ret;
	}
	attr->attr.max_wr = srq->wq.mask + 1;
	attr->attr.max_sge = max_sge;
	return 0;
}

static struct ibv_srq *create_xrc_srq(struct ibv_context *context,
				      struct ibv_srq_init_attr_ex *attr)
{
	struct fl_create_xsrq cmd = {};
	struct fl_srq *srq;
	int ret;

	srq = fl_alloc_srq(attr->pd, &attr->attr, &cmd.drv);
	if (!srq)
		return NULL;
	srq->is_xrc = true;
	ret = fl_create_named_srq(context, srq, attr, &cmd.ibv_cmd, sizeof(cmd));
	if (ret) {
		fl_free_srq(srq);
		errno = ret;
		return NULL;
	}
	return &srq->verbs_srq.srq;
}

struct ibv_srq *fl_create_srq_ex(struct ibv_context *context,
				 struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t xrc = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ;
	const uint32_t tags = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TM |
			      IBV_SRQ_INIT_ATTR_CQ;
	struct ibv_srq_init_attr basic;
	enum ibv_srq_type type = IBV_SRQT_BASIC;
	struct ibv_srq *srq;

	if (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE)
		type = attr->srq_type;
	if (attr->comp_mask & ~(xrc | tags | IBV_SRQ_INIT_ATTR_TYPE)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (type == IBV_SRQT_XRC && (attr->comp_mask & xrc) == xrc)
		return create_xrc_srq(context, attr);
	if (type == IBV_SRQT_TM && (attr->comp_mask & tags) == tags)
		return fl_create_tag_srq(context, attr);
	if (type != IBV_SRQT_BASIC || !(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD)) {
		errno = type > IBV_SRQT_TM ? EOPNOTSUPP : EINVAL;
		return NULL;
	}
	basic.srq_context = attr->srq_context;
	basic.attr = attr->attr;
	srq = fl_create_srq(attr->pd, &basic);
	if (srq)
		attr->attr = basic.attr;
	return srq;
}

int fl_get_srq_num(struct ibv_srq *ibsrq, uint32_t *num)
{
	struct fl_srq *srq = to_fl_srq(ibsrq);

	if (!srq->is_xrc)
		return EINVAL;
	*num = srq->srqn;
	return 0;
}

/* Adds tags for a ring of this depth, if there are fewer. */
static int add_tags(struct fl_srq *srq, uint32_t depth)
{
	uint64_t *wr_id;
	uint32_t *tags;

	if (depth <= srq->num_tags)
		return 0;
	wr_id = realloc(srq->wq.wr_id, depth * sizeof(*wr_id));
	if (!wr_id)
		return ENOMEM;
	srq->wq.wr_id = wr_id;
	tags = realloc(srq->free, depth * sizeof(*tags));
	if (!tags)
		return ENOMEM;
	srq->free = tags;
	while (srq->num_tags < depth)
		tags[srq->num_free++] = srq->num_tags++;
	return 0;
}

/*
 * Replaces the ring, in which indices restart at zero. Called under the lock.
 */
static void change_ring(struct fl_wq *wq, struct fl_ring *ring, uint8_t log_depth)
{
	struct fl_ring old = wq->ring;

	wq->ring = *ring;
	wq->log_depth = log_depth;
	wq->mask = (1U << log_depth) - 1;
	wq->head = le32toh(fl_wq_record(&wq->ring)->producer);
	*ring = old;
}

static int resize_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr, int mask)
{
	struct fl_context *ctx = to_fl_ctx(ibsrq->context);
	struct fl_srq *srq = to_fl_srq(ibsrq);
	struct fl_wq *wq = &srq->wq;
	struct fl_modify_srq cmd = {};
	struct fl_ring ring = {};
	uint32_t used, depth;
	uint8_t log_depth;
	bool locked;
	int ret;

	if (!attr->max_wr || attr->max_wr > ctx->max_srq_wr)
		return EINVAL;
	log_depth = fl_log2_up(attr->max_wr);
	depth = 1U << log_depth;
	ret = fl_ring_alloc(ctx, srq->pd, FAULTLINEDV_MEMORY_SRQ, &ring,
			    (size_t)1 << (log_depth + wq->stride_shift));
	if (ret)
		return ret;
	cmd.drv.buf_addr = (uintptr_t)ring.buf;
	cmd.drv.log_depth = log_depth;
	/* The device moves the posted requests: no thread may post meanwhile. */
	locked = fl_lock(&wq->lock);
	used = srq->num_tags - srq->num_free;
	ret = used > depth ? EINVAL : add_tags(srq, depth);
	if (!ret)
		ret = ibv_cmd_modify_srq(ibsrq, attr, mask, &cmd.ibv_cmd, sizeof(cmd));
	if (!ret)
		change_ring(wq, &ring, log_depth);
	fl_unlock(&wq->lock, locked);
	fl_ring_free(&ring);
	return ret;
}

int fl_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	struct ibv_modify_srq cmd;

	if (mask & IBV_SRQ_MAX_WR)
		return resize_srq(srq, attr, mask);
	return ibv_cmd_modify_srq(srq, attr, mask, &cmd, sizeof(cmd));
}

int fl_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	struct ibv_query_srq cmd;

	return ibv_cmd_query_srq(srq, attr, &cmd, sizeof(cmd));
}

int fl_destroy_srq(struct ibv_srq *ibsrq)
{
	struct fl_srq *srq = to_fl_srq(ibsrq);
	int ret = ibv_cmd_destroy_srq(ibsrq);

	if (ret)
		return ret;
	if (srq->cq) {
		fl_cq_clean_srq(srq->cq, srq->srqn);
		fl_table_remove(&to_fl_ctx(ibsrq->context)->srqs, srq->srqn);
	}
	fl_free_srq(srq);
	return 0;
}

int fl_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr,
		     struct ibv_recv_wr **bad)
{
	struct fl_srq *srq = to_fl_srq(ibsrq);
	struct fl_wq *wq = &srq->wq;
	bool locked = fl_lock(&wq->lock);
	int ret = 0;

	for (; wr; wr = wr->next) {
		uint32_t tag;

		if (wr->num_sge < 0 || wr->num_sge > wq->max_sge) {
			ret = EINVAL;
			break;
		}
		if (srq->num_tags - srq->num_free > wq->mask) {
			ret = ENOMEM;
			break;
		}
		tag = srq->free[--srq->num_free];
		wq->wr_id[tag] = wr->wr_id;
		fl_write_recv(wq, tag, wr);
	}
	udma_to_device_barrier();
	__atomic_store_n(&fl_wq_record(&wq->ring)->producer, htole32(wq->head),
			 __ATOMIC_RELEASE);
	fl_unlock(&wq->lock, locked);
	if (ret)
		*bad = wr;
	return ret;
}

/*
 * Returns the id of the completed request with this tag, and frees the tag. A
 * tag that the device invented or returned twice must not cause a write beyond
 * the stack.
 */
uint64_t fl_srq_release(struct fl_srq *srq, uint32_t tag)
{
	struct fl_wq *wq = &srq->wq;
	bool locked = fl_lock(&wq->lock);
	uint64_t wr_id;

	tag &= srq->num_tags - 1;
	wr_id = wq->wr_id[tag];
	if (srq->num_free < srq->num_tags)
		srq->free[srq->num_free++] = tag;
	fl_unlock(&wq->lock, locked);
	return wr_id;
}
