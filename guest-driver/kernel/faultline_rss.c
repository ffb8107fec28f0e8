// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * RSS of processes: work queues, RSS indirection tables, and the queue pairs
 * that distribute frames over them by a hash.
 */
#include <linux/dma-mapping.h>
#include <linux/slab.h>

#include "faultline_ib.h"

static struct faultline_rwq *to_frwq(struct ib_wq *ibwq)
{
	return container_of(ibwq, struct faultline_rwq, ibwq);
}

static void faultline_rwq_event(struct faultline_res *res, u8 kind)
{
	struct faultline_rwq *rwq =
		container_of(res, struct faultline_rwq, res);
	struct ib_event event = {
		.device = rwq->ibwq.device,
		.element.wq = &rwq->ibwq,
		.event = IB_EVENT_WQ_FATAL,
	};

	/* The core sets `uobject` last, and its handler needs it. */
	if (READ_ONCE(rwq->ibwq.uobject) && rwq->ibwq.event_handler)
		rwq->ibwq.event_handler(&event, rwq->ibwq.wq_context);
}

static int faultline_rwq_create_hw(struct faultline_dev *dev,
				   struct faultline_rwq *rwq,
				   const struct faultline_pd *pd,
				   const struct ib_wq_init_attr *attr,
				   struct ib_udata *udata, u32 *wqn)
{
	struct faultline_create_wq params = {};
	struct faultline_create_wq_req req;
	int err;

	err = ib_copy_validate_udata_in(udata, req, reserved);
	if (err)
		return err;
	if (memchr_inv(req.reserved, 0, sizeof(req.reserved)))
		return -EINVAL;
	err = faultline_buf_pin(dev, &rwq->buf, req.buf_addr, req.log_depth,
				req.stride_shift, attr->max_wr);
	if (err)
		return err;
	params.ring = rwq->buf.ring;
	params.pd = cpu_to_le32(pd->pdn);
	params.uctx = cpu_to_le32(faultline_udata_uctx(udata));
	params.cqn = cpu_to_le32(to_fcq(attr->cq)->res.num);
	params.log_depth = req.log_depth;
	params.stride_shift = req.stride_shift;
	params.max_sge = max(attr->max_sge, 1U);
	err = faultline_cmd_create_wq(dev, &params, wqn);
	faultline_buf_created(dev, &rwq->buf);
	if (err)
		faultline_buf_free(dev, &rwq->buf);
	return err;
}

struct ib_wq *faultline_create_wq(struct ib_pd *ibpd,
				  struct ib_wq_init_attr *attr,
				  struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_rwq *rwq;
	u32 wqn;
	int err;

	if (!udata || attr->wq_type != IB_WQT_RQ || attr->create_flags)
		return ERR_PTR(-EOPNOTSUPP);
	err = ib_respond_empty_udata(udata);
	if (err)
		return ERR_PTR(err);
	if (!attr->max_wr || attr->max_wr > le32_to_cpu(dev->caps.max_qp_wr) ||
	    attr->max_sge > le32_to_cpu(dev->caps.max_sge))
		return ERR_PTR(-EINVAL);
	rwq = kzalloc(sizeof(*rwq), GFP_KERNEL);
	if (!rwq)
		return ERR_PTR(-ENOMEM);
	err = faultline_rwq_create_hw(dev, rwq, to_fpd(ibpd), attr, udata,
				      &wqn);
	if (err)
		goto free;
	/* The core sets these later, but an event may come before. */
	rwq->ibwq.device = ibpd->device;
	rwq->ibwq.event_handler = attr->event_handler;
	rwq->ibwq.wq_context = attr->wq_context;
	rwq->ibwq.wq_num = wqn;
	rwq->ibwq.state = IB_WQS_RESET;
	/* Work queues and queue pairs share one number space. */
	faultline_res_init(&rwq->res, wqn, faultline_rwq_event);
	err = faultline_res_add(dev, &dev->qps, &rwq->res);
	if (err)
		goto destroy;
	return &rwq->ibwq;

destroy:
	faultline_cmd_destroy_wq(dev, wqn);
	faultline_buf_free(dev, &rwq->buf);
free:
	kfree(rwq);
	return ERR_PTR(err);
}

int faultline_modify_wq(struct ib_wq *ibwq, struct ib_wq_attr *attr, u32 mask,
			struct ib_udata *udata)
{
	int err = ib_no_udata_io(udata);

	BUILD_BUG_ON(IB_WQS_RESET != FAULTLINE_WQS_RESET);
	BUILD_BUG_ON(IB_WQS_RDY != FAULTLINE_WQS_RDY);
	BUILD_BUG_ON(IB_WQS_ERR != FAULTLINE_WQS_ERR);

	if (err)
		return err;
	if (mask & ~(IB_WQ_STATE | IB_WQ_CUR_STATE))
		return -EOPNOTSUPP;
	if (mask & IB_WQ_CUR_STATE && attr->curr_wq_state != ibwq->state)
		return -EINVAL;
	if (!(mask & IB_WQ_STATE))
		return 0;
	if (attr->wq_state > IB_WQS_ERR)
		return -EINVAL;
	err = faultline_cmd_modify_wq(to_fdev(ibwq->device), ibwq->wq_num,
				      attr->wq_state);
	if (!err)
		ibwq->state = attr->wq_state;
	return err;
}

int faultline_destroy_wq(struct ib_wq *ibwq, struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibwq->device);
	struct faultline_rwq *rwq = to_frwq(ibwq);
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	err = faultline_dead_ok(dev,
				faultline_cmd_destroy_wq(dev, ibwq->wq_num));
	if (err)
		return err;
	faultline_res_remove(&dev->qps, &rwq->res);
	faultline_buf_free(dev, &rwq->buf);
	kfree(rwq);
	return 0;
}

/*
 * Creates an RSS indirection table in the device. `list` has the numbers of
 * the work queues and must come from kmalloc(): the device reads it.
 */
int faultline_rwq_ind_table_create_hw(struct faultline_dev *dev, __le32 *list,
				      u8 log_size, u32 *table)
{
	struct device *dma_dev = &dev->pdev->dev;
	size_t size = sizeof(*list) << log_size;
	dma_addr_t addr;
	int err;

	addr = dma_map_single(dma_dev, list, size, DMA_TO_DEVICE);
	err = dma_mapping_error(dma_dev, addr);
	if (err)
		return err;
	err = faultline_cmd_create_rwq_ind_table(dev, addr, log_size, table);
	dma_unmap_single(dma_dev, addr, size, DMA_TO_DEVICE);
	return err;
}

int faultline_create_rwq_ind_table(struct ib_rwq_ind_table *ibtable,
				   struct ib_rwq_ind_table_init_attr *attr,
				   struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibtable->device);
	__le32 *list;
	u32 i, count;
	int err;

	err = ib_no_udata_io(udata);
	if (err)
		return err;
	if (attr->log_ind_tbl_size >
	    le32_to_cpu(dev->caps.max_rwq_ind_table_log_size))
		return -EINVAL;
	count = BIT(attr->log_ind_tbl_size);
	list = kmalloc_array(count, sizeof(*list), GFP_KERNEL);
	if (!list)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		list[i] = cpu_to_le32(attr->ind_tbl[i]->wq_num);
	err = faultline_rwq_ind_table_create_hw(
		dev, list, attr->log_ind_tbl_size, &ibtable->ind_tbl_num);
	kfree(list);
	return err;
}

int faultline_destroy_rwq_ind_table(struct ib_rwq_ind_table *ibtable)
{
	struct faultline_dev *dev = to_fdev(ibtable->device);

	return faultline_dead_ok(dev, faultline_cmd_destroy_rwq_ind_table(
					      dev, ibtable->ind_tbl_num));
}

/* Creates the device's part of an RSS queue pair. */
int faultline_rss_qp_create_hw(struct faultline_dev *dev,
			       struct faultline_qp *qp,
			       const struct ib_qp_init_attr *attr,
			       struct ib_udata *udata, u32 *qpn)
{
	struct faultline_create_rss_qp params = {};
	struct faultline_create_rss_qp_req req;
	int err;

	if (!udata || attr->qp_type != IB_QPT_RAW_PACKET)
		return -EOPNOTSUPP;
	/* An RSS queue pair has no send queue. */
	if (attr->send_cq || attr->cap.max_send_wr)
		return -EINVAL;
	err = ib_copy_validate_udata_in(udata, req, key);
	if (err)
		return err;
	if (memchr_inv(req.reserved, 0, sizeof(req.reserved)))
		return -EINVAL;
	if (req.hash_function != FAULTLINE_RSS_TOEPLITZ ||
	    req.hash_fields > U32_MAX)
		return -EOPNOTSUPP;
	if (req.key_len != sizeof(params.key))
		return -EINVAL;
	static_assert(sizeof(req.key) == sizeof(params.key));
	params.pd = cpu_to_le32(to_fpd(qp->ibqp.pd)->pdn);
	params.uctx = cpu_to_le32(faultline_udata_uctx(udata));
	params.table = cpu_to_le32(attr->rwq_ind_tbl->ind_tbl_num);
	params.hash_fields = cpu_to_le32(req.hash_fields);
	memcpy(params.key, req.key, sizeof(params.key));
	return faultline_cmd_create_rss_qp(dev, &params, qpn);
}
