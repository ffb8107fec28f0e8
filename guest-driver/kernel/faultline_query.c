// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Queries: attributes of a user context or PD, which a process may have
 * imported, and the device's clock.
 */
#include <rdma/uverbs_std_types.h>

#include "faultline_ib.h"

#define UVERBS_MODULE_NAME faultline_ib
#include <rdma/uverbs_named_ioctl.h>

int faultline_query_ucontext(struct ib_ucontext *ibctx,
			     struct uverbs_attr_bundle *attrs)
{
	struct faultline_alloc_ucontext_resp resp;

	faultline_ucontext_resp(to_fucontext(ibctx), &resp);
	return uverbs_copy_to(attrs, FAULTLINE_ATTR_QUERY_CONTEXT_RESP, &resp,
			      sizeof(resp));
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_PD_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_pd *ibpd =
		uverbs_attr_get_obj(attrs, FAULTLINE_ATTR_PD_QUERY_HANDLE);
	struct faultline_alloc_pd_resp resp = {};

	if (IS_ERR(ibpd))
		return PTR_ERR(ibpd);
	resp.pdn = to_fpd(ibpd)->pdn;
	return uverbs_copy_to(attrs, FAULTLINE_ATTR_PD_QUERY_RESP, &resp,
			      sizeof(resp));
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_QUERY_CLOCK)(struct uverbs_attr_bundle *attrs)
{
	struct ib_ucontext *ibctx = ib_uverbs_get_ucontext(attrs);
	u64 clock;

	if (IS_ERR(ibctx))
		return PTR_ERR(ibctx);
	if (faultline_is_dead(to_fdev(ibctx->device)))
		return -EIO;
	clock = faultline_clock(to_fdev(ibctx->device));
	return uverbs_copy_to(attrs, FAULTLINE_ATTR_QUERY_CLOCK_VALUE, &clock,
			      sizeof(clock));
}

ADD_UVERBS_ATTRIBUTES_SIMPLE(
	faultline_query_context, UVERBS_OBJECT_DEVICE,
	UVERBS_METHOD_QUERY_CONTEXT,
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_QUERY_CONTEXT_RESP,
			    UVERBS_ATTR_STRUCT(
				    struct faultline_alloc_ucontext_resp,
				    max_inline),
			    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_PD_QUERY,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_PD_QUERY_HANDLE, UVERBS_OBJECT_PD,
			UVERBS_ACCESS_READ, UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_PD_QUERY_RESP,
			    UVERBS_ATTR_TYPE(struct faultline_alloc_pd_resp),
			    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_QUERY_CLOCK,
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_QUERY_CLOCK_VALUE,
			    UVERBS_ATTR_TYPE(u64), UA_MANDATORY));

ADD_UVERBS_METHODS(faultline_pd_methods, UVERBS_OBJECT_PD,
		   &UVERBS_METHOD(FAULTLINE_METHOD_PD_QUERY));
ADD_UVERBS_METHODS(faultline_device_methods, UVERBS_OBJECT_DEVICE,
		   &UVERBS_METHOD(FAULTLINE_METHOD_QUERY_CLOCK));

const struct uapi_definition faultline_query_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &faultline_query_context),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE,
				&faultline_device_methods),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_PD, &faultline_pd_methods),
	{}
};
