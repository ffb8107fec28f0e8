// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Protection domains, parent domains, and thread domains.
 *
 * A parent domain exists in the library only: the kernel sees the protection
 * domain that it contains. It determines where the memory of queues comes from.
 * A thread domain promises that one thread at a time uses its objects: its send
 * queues, receive queues and CQs have no locks. An SRQ has one, because threads
 * that poll CQs of other domains return its requests.
 */
#include <errno.h>
#include <stdlib.h>

#include "faultline.h"

struct ibv_pd *fl_alloc_pd(struct ibv_context *context)
{
	struct fl_alloc_pd_resp resp = {};
	struct ibv_alloc_pd cmd;
	struct fl_pd *pd;
	int ret;

	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	ret = ibv_cmd_alloc_pd(context, &pd->ibv_pd, &cmd, sizeof(cmd),
			       &resp.ibv_resp, sizeof(resp));
	if (ret) {
		free(pd);
		errno = ret;
		return NULL;
	}
	pd->pdn = resp.drv.pdn;
	return &pd->ibv_pd;
}

static void put(uint32_t *users)
{
	__atomic_fetch_sub(users, 1, __ATOMIC_RELEASE);
}

static void get(uint32_t *users)
{
	__atomic_fetch_add(users, 1, __ATOMIC_RELAXED);
}

static bool is_used(uint32_t *users)
{
	return __atomic_load_n(users, __ATOMIC_ACQUIRE);
}

static void free_parent(struct fl_pd *pd)
{
	put(&pd->contained->users);
	if (pd->td)
		put(&pd->td->users);
	free(pd);
}

int fl_dealloc_pd(struct ibv_pd *ibpd)
{
	struct fl_pd *pd = to_fl_pd(ibpd);
	int ret;

	if (is_used(&pd->users))
		return EBUSY;
	if (pd->contained) {
		free_parent(pd);
		return 0;
	}
	ret = ibv_cmd_dealloc_pd(ibpd);
	if (!ret)
		free(pd);
	return ret;
}

struct ibv_pd *fl_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr)
{
	const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			       IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct fl_pd *pd;

	if (ibv_check_alloc_parent_domain(attr))
		return NULL;
	if (!check_comp_mask(attr->comp_mask, known)) {
		errno = EINVAL;
		return NULL;
	}
	/* The domain in a parent domain must not be a parent domain itself. */
	if (to_fl_pd(attr->pd)->contained) {
		errno = EINVAL;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	ibv_initialize_parent_domain(&pd->ibv_pd, attr->pd);
	pd->contained = to_fl_pd(attr->pd);
	pd->pdn = pd->contained->pdn;
	get(&pd->contained->users);
	if (attr->td) {
		pd->td = to_fl_td(attr->td);
		get(&pd->td->users);
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
		pd->alloc = attr->alloc;
		pd->free = attr->free;
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		pd->allocator_context = attr->pd_context;
	return &pd->ibv_pd;
}

/*
 * Allocates memory of a queue with the allocator of the domain. Returns false
 * if the default allocator must be used. NULL in *buf: the allocator has
 * failed.
 */
bool fl_pd_alloc(struct fl_pd *pd, size_t size, size_t alignment, uint64_t type,
		 void **buf)
{
	if (!pd || !pd->alloc)
		return false;
	*buf = pd->alloc(&pd->ibv_pd, pd->allocator_context, size, alignment, type);
	if (*buf == IBV_ALLOCATOR_USE_DEFAULT)
		return false;
	if (*buf)
		get(&pd->users);
	return true;
}

void fl_pd_free(struct fl_pd *pd, void *buf, uint64_t type)
{
	pd->free(&pd->ibv_pd, pd->allocator_context, buf, type);
	put(&pd->users);
}

struct ibv_td *fl_alloc_td(struct ibv_context *context,
			   struct ibv_td_init_attr *attr)
{
	struct fl_td *td;

	if (attr->comp_mask) {
		errno = EINVAL;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td)
		return NULL;
	td->ibv_td.context = context;
	return &td->ibv_td;
}

int fl_dealloc_td(struct ibv_td *ibtd)
{
	struct fl_td *td = to_fl_td(ibtd);

	if (is_used(&td->users))
		return EBUSY;
	free(td);
	return 0;
}

struct ibv_pd *fl_import_pd(struct ibv_context *context, uint32_t handle)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_PD, FAULTLINE_METHOD_PD_QUERY, 2);
	struct faultline_alloc_pd_resp resp;
	struct fl_pd *pd;

	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	fill_attr_in_obj(cmd, FAULTLINE_ATTR_PD_QUERY_HANDLE, handle);
	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_PD_QUERY_RESP, &resp);
	if (execute_ioctl(context, cmd)) {
		free(pd);
		return NULL;
	}
	pd->ibv_pd.context = context;
	pd->ibv_pd.handle = handle;
	pd->pdn = resp.pdn;
	return &pd->ibv_pd;
}

/* Frees the import only. The PD belongs to the context that allocated it. */
void fl_unimport_pd(struct ibv_pd *pd)
{
	free(to_fl_pd(pd));
}
