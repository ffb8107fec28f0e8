// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Fault policies
 *
 * Methods that set and query the fault policy of a queue pair. For an XRC
 * target the QP of a process is an object of the core; real_qp is the driver's.
 *
 * Locking: faultline_qp.mutex is held during the commands, and serializes them
 * with each other and with changes of the QP's state (faultline_qp.c). The core
 * locks the object of one process only, and several processes can share an XRC
 * target. Everything runs in process context.
 */
#include <rdma/uverbs_std_types.h>

#include "faultline_ib.h"

#define UVERBS_MODULE_NAME faultline_ib
#include <rdma/uverbs_named_ioctl.h>

static int
UVERBS_HANDLER(FAULTLINE_METHOD_QP_SET_POLICY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_qp *ibqp =
		uverbs_attr_get_obj(attrs, FAULTLINE_ATTR_QP_SET_POLICY_HANDLE);
	struct faultline_qp_attr params = {
		.mask = cpu_to_le32(FAULTLINE_QP_ATTR_FAULT_POLICY),
	};
	struct faultline_qp *qp;
	u32 policy;
	int err;

	if (IS_ERR(ibqp))
		return PTR_ERR(ibqp);
	err = uverbs_copy_from(&policy, attrs,
			       FAULTLINE_ATTR_QP_SET_POLICY_VALUE);
	if (err)
		return err;
	if (policy > FAULTLINE_FAULT_POLICY_TERMINATE)
		return -EINVAL;
	/* This policy can pause all reception, also that of the netdev. */
	if (policy == FAULTLINE_FAULT_POLICY_STALL && !capable(CAP_NET_ADMIN))
		return -EPERM;
	params.fault_policy = policy;
	qp = to_fqp(ibqp->real_qp);
	mutex_lock(&qp->mutex);
	err = faultline_cmd_modify_qp(to_fdev(ibqp->device), qp->res.num,
				      &params);
	mutex_unlock(&qp->mutex);
	return err;
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_QP_QUERY_POLICY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_qp *ibqp =
		uverbs_attr_get_obj(attrs,
				    FAULTLINE_ATTR_QP_QUERY_POLICY_HANDLE);
	struct faultline_qp_attr hw;
	struct faultline_qp *qp;
	u32 policy;
	int err;

	if (IS_ERR(ibqp))
		return PTR_ERR(ibqp);
	qp = to_fqp(ibqp->real_qp);
	mutex_lock(&qp->mutex);
	err = faultline_cmd_query_qp(to_fdev(ibqp->device), qp->res.num, &hw);
	mutex_unlock(&qp->mutex);
	if (err)
		return err;
	policy = hw.fault_policy;
	return uverbs_copy_to(attrs, FAULTLINE_ATTR_QP_QUERY_POLICY_VALUE,
			      &policy, sizeof(policy));
}

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_QP_SET_POLICY,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_QP_SET_POLICY_HANDLE, UVERBS_OBJECT_QP,
			UVERBS_ACCESS_WRITE, UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(FAULTLINE_ATTR_QP_SET_POLICY_VALUE,
			   UVERBS_ATTR_TYPE(u32), UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_QP_QUERY_POLICY,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_QP_QUERY_POLICY_HANDLE, UVERBS_OBJECT_QP,
			UVERBS_ACCESS_READ, UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_QP_QUERY_POLICY_VALUE,
			    UVERBS_ATTR_TYPE(u32), UA_MANDATORY));

ADD_UVERBS_METHODS(faultline_qp_methods, UVERBS_OBJECT_QP,
		   &UVERBS_METHOD(FAULTLINE_METHOD_QP_SET_POLICY),
		   &UVERBS_METHOD(FAULTLINE_METHOD_QP_QUERY_POLICY));

const struct uapi_definition faultline_policy_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_QP, &faultline_qp_methods),
	{}
};
