// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* RSS: work queues, indirection tables, and RSS queue pairs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "faultline.h"

static int post_wq_recv(struct ibv_wq *ibwq, struct ibv_recv_wr *wr,
			struct ibv_recv_wr **bad)
{
	if (ibwq->state == IBV_WQS_RESET) {
		*bad = wr;
		return EINVAL;
	}
	return fl_post_receives(to_fl_ctx(ibwq->context), &to_fl_rwq(ibwq)->wq,
				ibwq->wq_num, wr, bad);
}

static int check_wq(struct fl_context *ctx, const struct ibv_wq_init_attr *attr)
{
	if (attr->wq_type != IBV_WQT_RQ)
		return EOPNOTSUPP;
	if (attr->comp_mask & ~IBV_WQ_INIT_ATTR_FLAGS)
		return EOPNOTSUPP;
	if ((attr->comp_mask & IBV_WQ_INIT_ATTR_FLAGS) && attr->create_flags)
		return EOPNOTSUPP;
	if (!attr->max_wr || attr->max_wr > ctx->max_qp_wr ||
	    attr->max_sge > ctx->max_sge)
		return EINVAL;
	return 0;
}

struct ibv_wq *fl_create_wq(struct ibv_context *context,
			    struct ibv_wq_init_attr *attr)
{
	struct fl_context *ctx = to_fl_ctx(context);
	struct ib_uverbs_ex_create_wq_resp resp = {};
	struct fl_create_wq_cmd cmd = {};
	struct fl_rwq *rwq;
	uint32_t max_sge;
	uint8_t shift;
	int ret;

	ret = check_wq(ctx, attr);
	if (ret)
		goto err;
	ret = ENOMEM;
	rwq = calloc(1, sizeof(*rwq));
	if (!rwq)
		goto err;
	max_sge = attr->max_sge ? attr->max_sge : 1;
	shift = fl_stride_shift(FAULTLINE_RQ_WQE_DATA +
					max_sge * sizeof(struct faultline_sge),
				FAULTLINE_RQ_MIN_STRIDE_SHIFT);
	ret = fl_wq_alloc(ctx, to_fl_pd(attr->pd), FAULTLINEDV_MEMORY_RQ, &rwq->wq,
			  fl_log2_up(attr->max_wr), shift, max_sge);
	if (ret)
		goto err_rwq;
	cmd.drv.buf_addr = (uintptr_t)rwq->wq.ring.buf;
	cmd.drv.log_depth = rwq->wq.log_depth;
	cmd.drv.stride_shift = shift;
	ret = ibv_cmd_create_wq(context, attr, &rwq->ibv_wq, &cmd.ibv_cmd,
				sizeof(cmd), &resp, sizeof(resp));
	if (ret)
		goto err_queue;
	ret = fl_table_insert(&ctx->rwqs, rwq->ibv_wq.wq_num, rwq);
	if (ret)
		goto err_destroy;
	rwq->ibv_wq.state = IBV_WQS_RESET;
	rwq->ibv_wq.post_recv = post_wq_recv;
	attr->max_wr = rwq->wq.mask + 1;
	return &rwq->ibv_wq;

err_destroy:
	ibv_cmd_destroy_wq(&rwq->ibv_wq);
err_queue:
	fl_wq_free(&rwq->wq);
err_rwq:
	free(rwq);
err:
	errno = ret;
	return NULL;
}

static void clean_cq(struct fl_rwq *rwq)
{
	fl_cq_clean(to_fl_cq(rwq->ibv_wq.cq), rwq->ibv_wq.wq_num, NULL);
}

int fl_modify_wq(struct ibv_wq *ibwq, struct ibv_wq_attr *attr)
{
	bool reset = (attr->attr_mask & IBV_WQ_ATTR_STATE) &&
		     attr->wq_state == IBV_WQS_RESET;
	struct fl_rwq *rwq = to_fl_rwq(ibwq);
	struct ibv_modify_wq cmd = {};
	int ret;

	if (reset)
		fl_doorbell_drain(to_fl_ctx(ibwq->context));
	ret = ibv_cmd_modify_wq(ibwq, attr, &cmd, sizeof(cmd));
	if (!ret && reset) {
		clean_cq(rwq);
		fl_reset_wq(&rwq->wq);
	}
	return ret;
}

int fl_destroy_wq(struct ibv_wq *ibwq)
{
	struct fl_context *ctx = to_fl_ctx(ibwq->context);
	struct fl_rwq *rwq = to_fl_rwq(ibwq);
	int ret;

	ret = ibv_cmd_destroy_wq(ibwq);
	if (ret)
		return ret;
	clean_cq(rwq);
	fl_table_remove(&ctx->rwqs, ibwq->wq_num);
	fl_wq_free(&rwq->wq);
	free(rwq);
	return 0;
}

struct ibv_rwq_ind_table *
fl_create_rwq_ind_table(struct ibv_context *context,
			struct ibv_rwq_ind_table_init_attr *attr)
{
	struct ib_uverbs_ex_create_rwq_ind_table_resp resp = {};
	struct ibv_rwq_ind_table *table;
	int ret;

	table = calloc(1, sizeof(*table));
	if (!table)
		return NULL;
	ret = ibv_cmd_create_rwq_ind_table(context, attr, table, &resp, sizeof(resp));
	if (ret) {
		free(table);
		errno = ret;
		return NULL;
	}
	return table;
}

int fl_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table)
{
	int ret = ibv_cmd_destroy_rwq_ind_table(table);

	if (!ret)
		free(table);
	return ret;
}

static int check_rss(const struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t needed = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE |
				IBV_QP_INIT_ATTR_RX_HASH;

	if (attr->qp_type != IBV_QPT_RAW_PACKET)
		return EOPNOTSUPP;
	if (!check_comp_mask(attr->comp_mask, needed | IBV_QP_INIT_ATTR_CREATE_FLAGS))
		return EOPNOTSUPP;
	if ((attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr->create_flags)
		return EOPNOTSUPP;
	if ((attr->comp_mask & needed) != needed)
		return EINVAL;
	if (attr->rx_hash_conf.rx_hash_fields_mask & ~(uint64_t)FL_RX_HASH_FIELDS)
		return EOPNOTSUPP;
	return 0;
}

/*
 * Creates an RSS queue pair. It has no queues and no states: it receives as
 * long as it exists.
 */
struct ibv_qp *fl_create_rss_qp(struct ibv_context *context,
				struct ibv_qp_init_attr_ex *attr)
{
	const struct ibv_rx_hash_conf *hash = &attr->rx_hash_conf;
	struct fl_create_qp_ex_resp resp = {};
	struct fl_create_rss_qp_ex cmd = {};
	struct fl_qp *qp;
	int ret;

	ret = check_rss(attr);
	if (ret)
		goto err;
	ret = EINVAL;
	if (hash->rx_hash_key_len != sizeof(cmd.drv.key))
		goto err;
	ret = ENOMEM;
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		goto err;
	cmd.drv.hash_fields = hash->rx_hash_fields_mask;
	cmd.drv.hash_function = hash->rx_hash_function;
	cmd.drv.key_len = hash->rx_hash_key_len;
	memcpy(cmd.drv.key, hash->rx_hash_key, sizeof(cmd.drv.key));
	ret = ibv_cmd_create_qp_ex2(context, &qp->verbs_qp, attr, &cmd.ibv_cmd,
				    sizeof(cmd), &resp.ibv_resp, sizeof(resp) FL_QP_DRIVER_ATTRS(NULL));
	if (!ret)
		return &qp->verbs_qp.qp;
	free(qp);
err:
	errno = ret;
	return NULL;
}
