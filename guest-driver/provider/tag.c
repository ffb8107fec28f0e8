// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Tag matching: shared receive queues with a list of tagged buffers.
 *
 * The list has places, which the provider assigns; the handle of a buffer is
 * its place. A place is free again when the completion that reports it is
 * polled, so that a program which does not know that its buffer was consumed
 * can't remove another one.
 */
#include <errno.h>
#include <stdlib.h>

#include "faultline.h"

/* An operation that has been posted. */
struct fl_tag_op {
	uint32_t slot;
	bool busy;		/* its completion has not been polled */
	bool signaled;		/* the program wants to know */
};

struct fl_tags {
	struct fl_wq ops;	/* wr_id: of operations; its lock is for all of it */
	struct fl_tag_op *op;	/* as many */
	uint64_t *recv_wr_id;	/* of buffers, by place */
	uint32_t max_tags;
	uint32_t *free;		/* stack of places */
	uint32_t num_free;
};

static void free_tags(struct fl_tags *tags)
{
	fl_wq_free(&tags->ops);
	free(tags->free);
	free(tags->recv_wr_id);
	free(tags->op);
	free(tags);
}

static struct fl_tags *alloc_tags(struct ibv_pd *pd, const struct ibv_tm_cap *cap)
{
	struct fl_tags *tags;
	uint32_t i;
	int ret;

	if (!cap->max_num_tags || cap->max_num_tags > FL_MAX_TAGS || !cap->max_ops ||
	    cap->max_ops > FL_MAX_TAGS) {
		errno = EINVAL;
		return NULL;
	}
	tags = calloc(1, sizeof(*tags));
	if (!tags)
		return NULL;
	ret = fl_wq_alloc(to_fl_ctx(pd->context), to_fl_pd(pd), FAULTLINEDV_MEMORY_SRQ,
			  &tags->ops, fl_log2_up(cap->max_ops), FAULTLINE_TM_OP_SHIFT,
			  FAULTLINE_TM_MAX_SGE);
	if (ret) {
		free(tags);
		errno = ret;
		return NULL;
	}
	tags->max_tags = cap->max_num_tags;
	tags->num_free = cap->max_num_tags;
	tags->op = calloc(tags->ops.mask + 1, sizeof(*tags->op));
	tags->recv_wr_id = calloc(cap->max_num_tags, sizeof(*tags->recv_wr_id));
	tags->free = calloc(cap->max_num_tags, sizeof(*tags->free));
	if (!tags->op || !tags->recv_wr_id || !tags->free) {
		free_tags(tags);
		errno = ENOMEM;
		return NULL;
	}
	for (i = 0; i < tags->num_free; i++)
		tags->free[i] = tags->num_free - 1 - i;
	return tags;
}

struct ibv_srq *fl_create_tag_srq(struct ibv_context *context,
				  struct ibv_srq_init_attr_ex *attr)
{
	struct fl_create_tag_srq cmd = {};
	struct fl_tags *tags;
	struct fl_srq *srq;
	int ret;

	tags = alloc_tags(attr->pd, &attr->tm_cap);
	if (!tags)
		return NULL;
	srq = fl_alloc_srq(attr->pd, &attr->attr, &cmd.drv.srq);
	if (!srq) {
		ret = errno;
		goto err_tags;
	}
	srq->tags = tags;
	cmd.drv.ops_addr = (uintptr_t)tags->ops.ring.buf;
	cmd.drv.ops_log_depth = tags->ops.log_depth;
	ret = fl_create_named_srq(context, srq, attr, &cmd.ibv_cmd, sizeof(cmd));
	if (!ret)
		return &srq->verbs_srq.srq;

	srq->tags = NULL;
	fl_free_srq(srq);
err_tags:
	free_tags(tags);
	errno = ret;
	return NULL;
}

void fl_free_tags(struct fl_srq *srq)
{
	if (srq->tags)
		free_tags(srq->tags);
}

/*
 * Returns true if the ring has room for one more operation: the device has
 * executed the last one in this slot, and the program has polled its
 * completion.
 */
static bool has_room(struct fl_tags *tags)
{
	struct fl_wq *ops = &tags->ops;
	uint32_t taken = le32toh(__atomic_load_n(&fl_wq_record(&ops->ring)->consumer,
						 __ATOMIC_ACQUIRE));

	return ops->head - taken <= ops->mask && !tags->op[ops->head & ops->mask].busy;
}

static int take_place(struct fl_tags *tags, struct ibv_ops_wr *wr, struct faultline_tm_op *to)
{
	int i;

	if (wr->tm.add.num_sge < 0 || wr->tm.add.num_sge > FAULTLINE_TM_MAX_SGE)
		return EINVAL;
	if (!tags->num_free)
		return ENOMEM;
	wr->tm.handle = tags->free[--tags->num_free];
	tags->recv_wr_id[wr->tm.handle] = wr->tm.add.recv_wr_id;
	to->opcode = FAULTLINE_TM_OP_ADD;
	to->num_sge = wr->tm.add.num_sge;
	to->tag = htole64(wr->tm.add.tag);
	to->mask = htole64(wr->tm.add.mask);
	for (i = 0; i < wr->tm.add.num_sge; i++)
		fl_set_sge(&to->sge[i], wr->tm.add.sg_list[i].addr,
			   wr->tm.add.sg_list[i].length, wr->tm.add.sg_list[i].lkey);
	return 0;
}

static int post_op(struct fl_tags *tags, struct ibv_ops_wr *wr)
{
	struct fl_wq *ops = &tags->ops;
	struct fl_tag_op *op = &tags->op[ops->head & ops->mask];
	bool signaled = wr->flags & IBV_OPS_SIGNALED;
	struct faultline_tm_op to = {};
	int ret;

	if (!check_comp_mask(wr->flags, IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC))
		return EINVAL;
	if (!has_room(tags))
		return ENOMEM;
	switch (wr->opcode) {
	case IBV_WR_TAG_ADD:
		ret = take_place(tags, wr, &to);
		if (ret)
			return ret;
		break;
	case IBV_WR_TAG_DEL:
		if (wr->tm.handle >= tags->max_tags)
			return EINVAL;
		to.opcode = FAULTLINE_TM_OP_DEL;
		break;
	case IBV_WR_TAG_SYNC:
		to.opcode = FAULTLINE_TM_OP_SYNC;
		break;
	default:
		return EINVAL;
	}
	op->slot = wr->opcode == IBV_WR_TAG_SYNC ? 0 : wr->tm.handle;
	op->signaled = signaled;
	/* The provider must know in any case when a place becomes free. */
	op->busy = signaled || wr->opcode == IBV_WR_TAG_DEL;
	ops->wr_id[ops->head & ops->mask] = wr->wr_id;
	to.slot = htole32(op->slot);
	if (op->busy)
		to.flags |= FAULTLINE_TM_OP_FLAG_SIGNALED;
	if (wr->flags & IBV_OPS_TM_SYNC) {
		to.flags |= FAULTLINE_TM_OP_FLAG_SYNC;
		to.unexpected = htole32(wr->tm.unexpected_cnt);
	}
	*(struct faultline_tm_op *)fl_wq_entry(ops, ops->head) = to;
	ops->head++;
	return 0;
}

int fl_post_srq_ops(struct ibv_srq *ibsrq, struct ibv_ops_wr *wr, struct ibv_ops_wr **bad)
{
	struct fl_srq *srq = to_fl_srq(ibsrq);
	struct fl_tags *tags = srq->tags;
	uint32_t first;
	bool locked;
	int ret = 0;

	if (!tags) {
		*bad = wr;
		return EINVAL;
	}
	locked = fl_lock(&tags->ops.lock);
	first = tags->ops.head;
	for (; wr; wr = wr->next) {
		ret = post_op(tags, wr);
		if (ret) {
			*bad = wr;
			break;
		}
	}
	if (tags->ops.head != first) {
		udma_to_device_barrier();
		fl_doorbell(to_fl_ctx(ibsrq->context), FAULTLINE_DB_TM_OPS, srq->srqn,
			    tags->ops.head);
	}
	fl_unlock(&tags->ops.lock, locked);
	return ret;
}

/*
 * Frees a place. One that the device invented or returned twice must not cause
 * a write beyond the stack.
 */
static void release(struct fl_tags *tags, uint32_t slot)
{
	if (slot < tags->max_tags && tags->num_free < tags->max_tags)
		tags->free[tags->num_free++] = slot;
}

static bool retire_op(struct fl_tags *tags, const struct faultline_cqe *cqe, uint64_t *wr_id)
{
	uint32_t index = le32toh(cqe->wqe) & tags->ops.mask;
	struct fl_tag_op *op = &tags->op[index];
	bool failed = cqe->status != FAULTLINE_WC_STATUS_SUCCESS;

	*wr_id = tags->ops.wr_id[index];
	op->busy = false;
	if (cqe->opcode == FAULTLINE_WC_TM_ADD ? failed :
	    cqe->opcode == FAULTLINE_WC_TM_DEL && !failed)
		release(tags, op->slot);
	return failed || op->signaled;
}

static void retire_buffer(struct fl_tags *tags, const struct faultline_cqe *cqe,
			  uint64_t *wr_id)
{
	uint32_t slot = le32toh(cqe->wqe);

	*wr_id = slot < tags->max_tags ? tags->recv_wr_id[slot] : 0;
	if (cqe->status != FAULTLINE_WC_STATUS_SUCCESS ||
	    cqe->tm_flags & FAULTLINE_CQE_TM_DATA_VALID)
		release(tags, slot);
}

/* Does what retire() does, for completions of a tag matching queue. */
bool fl_tag_retire(struct fl_context *ctx, const struct faultline_cqe *cqe, uint64_t *wr_id)
{
	struct fl_srq *srq = fl_table_find(&ctx->srqs, le32toh(cqe->srqn));
	bool wanted = true, locked;

	if (!srq || !srq->tags)
		return false;
	if (cqe->opcode & FAULTLINE_WC_RECV && !(cqe->tm_flags & FAULTLINE_CQE_TM_TAGGED)) {
		*wr_id = fl_srq_release(srq, le32toh(cqe->wqe));
		return true;
	}
	locked = fl_lock(&srq->tags->ops.lock);
	if (cqe->opcode & FAULTLINE_WC_RECV)
		retire_buffer(srq->tags, cqe, wr_id);
	else
		wanted = retire_op(srq->tags, cqe, wr_id);
	fl_unlock(&srq->tags->ops.lock, locked);
	return wanted;
}

unsigned int fl_tag_wc_flags(uint8_t tm_flags)
{
	unsigned int out = 0;

	if (tm_flags & FAULTLINE_CQE_TM_MATCH)
		out |= IBV_WC_TM_MATCH;
	if (tm_flags & FAULTLINE_CQE_TM_DATA_VALID)
		out |= IBV_WC_TM_DATA_VALID;
	if (tm_flags & FAULTLINE_CQE_TM_SYNC_REQ)
		out |= IBV_WC_TM_SYNC_REQ;
	return out;
}

void fl_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *info)
{
	const struct faultline_cqe *cqe = &to_fl_cq_ex(cq)->current;

	info->tag = le32toh(cqe->tm_tag[0]) | (uint64_t)le32toh(cqe->tm_tag[1]) << 32;
	/* It has the bytes of the wire. */
	info->priv = be32toh((__force __be32)cqe->flow_tag);
}
