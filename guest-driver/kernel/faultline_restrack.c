// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Details of resources
 *
 * The details of QPs, CQs, SRQs and memory regions that `rdma resource show
 * ... -dd` prints in addition to the core's own attributes.
 *
 * The core calls these functions in process context, with a reference on the
 * resource's entry in its database. That keeps the memory of the object, but
 * not its rings: an object may be destroyed or changed meanwhile. So only
 * plain members are read, each once, and a query that the device refuses adds
 * no attribute.
 */
#include <rdma/rdma_netlink.h>
#include <rdma/restrack.h>

#include "faultline_odp.h"
#include "faultline_watch.h"

static const char *faultline_policy_name(u8 policy)
{
	switch (policy) {
	case FAULTLINE_FAULT_POLICY_RNR:
		return "rnr";
	case FAULTLINE_FAULT_POLICY_DROP:
		return "drop";
	case FAULTLINE_FAULT_POLICY_STALL:
		return "stall";
	case FAULTLINE_FAULT_POLICY_TERMINATE:
		return "terminate";
	default:
		return "unknown";
	}
}

/* Ends the table of driver attributes, or removes it after an error. */
static int faultline_res_done(struct sk_buff *msg, struct nlattr *table,
			      bool failed)
{
	if (failed) {
		nla_nest_cancel(msg, table);
		return -EMSGSIZE;
	}
	nla_nest_end(msg, table);
	return 0;
}

/* The indices of a kernel queue; those of a process are in its own memory. */
static bool faultline_put_wq(struct sk_buff *msg, const struct faultline_wq *wq,
			     bool user, const char *const names[4])
{
	bool failed = rdma_nl_put_driver_u32(msg, names[0],
					     faultline_wq_depth(wq)) ||
		      rdma_nl_put_driver_u32(msg, names[1], wq->max_sge);

	if (!failed && !user)
		failed = rdma_nl_put_driver_u32(msg, names[2],
						READ_ONCE(wq->producer)) ||
			 rdma_nl_put_driver_u32(msg, names[3],
						READ_ONCE(wq->consumer));
	return failed;
}

/* Adds the device's attributes of a QP that has a state. */
static bool faultline_put_qp_attr(struct sk_buff *msg, struct faultline_qp *qp)
{
	struct faultline_dev *dev = to_fdev(qp->ibqp.device);
	struct faultline_qp_attr hw;
	const char *policy;

	if (faultline_cmd_query_qp(dev, qp->res.num, &hw))
		return false;
	policy = faultline_policy_name(hw.fault_policy);
	return rdma_nl_put_driver_string(msg, "fault_policy", policy) ||
	       rdma_nl_put_driver_u32_hex(msg, "access",
					  le32_to_cpu(hw.access)) ||
	       rdma_nl_put_driver_u32(msg, "min_rnr_timer", hw.min_rnr_timer) ||
	       rdma_nl_put_driver_u32(msg, "timeout", hw.timeout) ||
	       rdma_nl_put_driver_u32(msg, "retry_cnt", hw.retry_cnt) ||
	       rdma_nl_put_driver_u32(msg, "rnr_retry", hw.rnr_retry);
}

int faultline_fill_res_qp(struct sk_buff *msg, struct ib_qp *ibqp)
{
	static const char *const sq[] = {
		"sq_depth", "sq_max_sge", "sq_producer", "sq_consumer",
	};
	static const char *const rq[] = {
		"rq_depth", "rq_max_sge", "rq_producer", "rq_consumer",
	};
	struct faultline_qp *qp = to_fqp(ibqp);
	struct nlattr *table = nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
	bool failed = false;

	if (!table)
		return -EMSGSIZE;
	/* These types have no queue of their own, or only one. */
	if (ibqp->qp_type != IB_QPT_XRC_TGT && !ibqp->rwq_ind_tbl)
		failed = faultline_put_wq(msg, &qp->sq, qp->user, sq) ||
			 rdma_nl_put_driver_u32(msg, "max_inline",
						qp->max_inline);
	if (!failed && ibqp->qp_type != IB_QPT_XRC_TGT &&
	    ibqp->qp_type != IB_QPT_XRC_INI && !ibqp->srq && !ibqp->rwq_ind_tbl)
		failed = faultline_put_wq(msg, &qp->rq, qp->user, rq);
	if (!failed)
		failed = faultline_put_qp_attr(msg, qp);
	return faultline_res_done(msg, table, failed);
}

int faultline_fill_res_cq(struct sk_buff *msg, struct ib_cq *ibcq)
{
	struct faultline_cq *cq = to_fcq(ibcq);
	struct nlattr *table = nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
	bool failed;

	if (!table)
		return -EMSGSIZE;
	failed = rdma_nl_put_driver_u32(msg, "cqn", cq->res.num) ||
		 rdma_nl_put_driver_u32(msg, "depth",
					BIT(READ_ONCE(cq->log_depth)));
	if (!failed && !cq->user)
		failed = rdma_nl_put_driver_u32(msg, "consumer",
						READ_ONCE(cq->consumer));
	return faultline_res_done(msg, table, failed);
}

int faultline_fill_res_srq(struct sk_buff *msg, struct ib_srq *ibsrq)
{
	struct faultline_srq *srq = to_fsrq(ibsrq);
	struct nlattr *table = nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
	bool failed;
	u32 limit;

	if (!table)
		return -EMSGSIZE;
	failed = rdma_nl_put_driver_u32(msg, "depth",
					faultline_wq_depth(&srq->wq)) ||
		 rdma_nl_put_driver_u32(msg, "max_sge", srq->wq.max_sge);
	if (!failed && ibsrq->srq_type == IB_SRQT_TM)
		failed = rdma_nl_put_driver_u32(msg, "tag_ops_depth",
						BIT(srq->ops_log_depth));
	if (!failed && !faultline_cmd_query_srq(to_fdev(ibsrq->device),
						srq->res.num, &limit))
		failed = rdma_nl_put_driver_u32(msg, "limit", limit);
	return faultline_res_done(msg, table, failed);
}

static const char *faultline_mr_kind(const struct faultline_mr *mr)
{
	switch (mr->ibmr.type) {
	case IB_MR_TYPE_USER:
		if (mr->dma_buf)
			return "dma-buf";
		if (!READ_ONCE(mr->on_demand))
			return "pinned";
		return mr->ibmr.length == U64_MAX ? "implicit" : "on-demand";
	case IB_MR_TYPE_DM:
		return "device-memory";
	case IB_MR_TYPE_DMA:
		return "dma";
	default:
		return "fast-registration";
	}
}

int faultline_fill_res_mr(struct sk_buff *msg, struct ib_mr *ibmr)
{
	struct faultline_mr *mr = to_fmr(ibmr);
	struct nlattr *table = nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
	u64 present = atomic64_read(&mr->pages_present);
	u64 window = READ_ONCE(mr->readahead_window);
	bool failed;

	if (!table)
		return -EMSGSIZE;
	failed = rdma_nl_put_driver_string(msg, "kind",
					   faultline_mr_kind(mr)) ||
		 rdma_nl_put_driver_u32_hex(msg, "access",
					    READ_ONCE(mr->access));
	if (!failed && READ_ONCE(mr->on_demand) && !mr->dma_buf)
		failed = rdma_nl_put_driver_u64(msg, "pages_present",
						present) ||
			 rdma_nl_put_driver_u64(msg, "readahead_bytes", window);
	if (!failed && faultline_is_watched(mr))
		failed = rdma_nl_put_driver_string(msg, "watch",
						   faultline_watch_mode(mr)) ||
			 rdma_nl_put_driver_u32(msg, "lease_ms",
						faultline_watch_lease_ms(mr));
	return faultline_res_done(msg, table, failed);
}
