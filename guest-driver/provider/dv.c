// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Changes of mappings: events, watches and watched regions; fault policies
 * (faultlinedv.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <infiniband/cmd_ioctl.h>

#include "faultline.h"
#include "faultlinedv.h"

struct faultlinedv_events {
	struct ibv_context *context;
	int fd;
};

/* A page of counters, from which the kernel allocates those of watches. */
struct fl_counter_page {
	struct fl_counter_page *next;
	uint64_t offset;
	const uint64_t *values;
};

/* Events are read in the layout in which the kernel writes them. */
static_assert(sizeof(struct faultlinedv_event) == sizeof(struct faultline_event) &&
	      offsetof(struct faultlinedv_event, cookie) ==
		      offsetof(struct faultline_event, cookie) &&
	      offsetof(struct faultlinedv_event, type) ==
		      offsetof(struct faultline_event, type) &&
	      offsetof(struct faultlinedv_event, reason) ==
		      offsetof(struct faultline_event, reason),
	      "events differ");
static_assert((int)FAULTLINEDV_EVENT_OVERFLOW == (int)FAULTLINE_EVENT_OVERFLOW &&
	      (int)FAULTLINEDV_REASON_EXIT == (int)FAULTLINE_REASON_EXIT &&
	      (int)FAULTLINEDV_MR_LEASE == (int)FAULTLINE_MR_LEASE &&
	      FAULTLINEDV_MAX_LEASE_MS == FAULTLINE_MAX_LEASE_MS &&
	      (int)FAULTLINEDV_FAULT_RNR == FAULTLINE_FAULT_POLICY_RNR &&
	      (int)FAULTLINEDV_FAULT_DROP == FAULTLINE_FAULT_POLICY_DROP &&
	      (int)FAULTLINEDV_FAULT_STALL == FAULTLINE_FAULT_POLICY_STALL &&
	      (int)FAULTLINEDV_FAULT_TERMINATE == FAULTLINE_FAULT_POLICY_TERMINATE,
	      "values differ");

bool faultlinedv_is_supported(struct ibv_device *device)
{
	return fl_is_ours(device);
}

struct faultlinedv_events *
faultlinedv_create_events(struct ibv_context *context, uint32_t depth)
{
	DECLARE_COMMAND_BUFFER(cmd, FAULTLINE_OBJECT_EVENTS,
			       FAULTLINE_METHOD_EVENTS_CREATE, 2);
	struct faultlinedv_events *events;
	struct ib_uverbs_attr *fd;
	int ret;

	if (!fl_is_ours(context->device)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	events = calloc(1, sizeof(*events));
	if (!events)
		return NULL;
	fd = fill_attr_out_fd(cmd, FAULTLINE_ATTR_EVENTS_CREATE_FD, 0);
	fill_attr_in_ptr(cmd, FAULTLINE_ATTR_EVENTS_CREATE_DEPTH, &depth);
	ret = execute_ioctl(context, cmd);
	if (ret) {
		free(events);
		errno = ret;
		return NULL;
	}
	events->context = context;
	events->fd = read_attr_fd(FAULTLINE_ATTR_EVENTS_CREATE_FD, fd);
	return events;
}

int faultlinedv_destroy_events(struct faultlinedv_events *events)
{
	close(events->fd);
	free(events);
	return 0;
}

int faultlinedv_events_fd(const struct faultlinedv_events *events)
{
	return events->fd;
}

int faultlinedv_read_events(struct faultlinedv_events *events,
			    struct faultlinedv_event *event, int max)
{
	ssize_t got;

	if (max <= 0) {
		errno = EINVAL;
		return -1;
	}
	got = read(events->fd, event, (size_t)max * sizeof(*event));
	return got < 0 ? -1 : (int)(got / (ssize_t)sizeof(*event));
}

/* Pages remain mapped as long as the context exists. */
static const uint64_t *fl_map_counters(struct fl_context *ctx, uint64_t offset)
{
	struct fl_counter_page *page;
	void *values;

	pthread_mutex_lock(&ctx->counters_lock);
	for (page = ctx->counters; page; page = page->next)
		if (page->offset == offset)
			goto out;
	page = calloc(1, sizeof(*page));
	if (!page)
		goto out;
	values = mmap(NULL, ctx->page_size, PROT_READ, MAP_SHARED,
		      ctx->ibv_ctx.context.cmd_fd, offset);
	if (values == MAP_FAILED) {
		free(page);
		page = NULL;
		goto out;
	}
	page->offset = offset;
	page->values = values;
	page->next = ctx->counters;
	ctx->counters = page;
out:
	pthread_mutex_unlock(&ctx->counters_lock);
	return page ? page->values : NULL;
}

void fl_unmap_counters(struct fl_context *ctx)
{
	struct fl_counter_page *page;

	while ((page = ctx->counters)) {
		ctx->counters = page->next;
		munmap((void *)page->values, ctx->page_size);
		free(page);
	}
}

static int fl_destroy_watch(struct faultlinedv_watch *watch)
{
	DECLARE_COMMAND_BUFFER(cmd, FAULTLINE_OBJECT_WATCH,
			       FAULTLINE_METHOD_WATCH_DESTROY, 1);

	fill_attr_in_obj(cmd, FAULTLINE_ATTR_WATCH_DESTROY_HANDLE, watch->handle);
	return execute_ioctl(watch->context, cmd);
}

struct faultlinedv_watch *
faultlinedv_create_watch(struct faultlinedv_events *events, const void *addr,
			 size_t length, uint64_t cookie)
{
	DECLARE_COMMAND_BUFFER(cmd, FAULTLINE_OBJECT_WATCH,
			       FAULTLINE_METHOD_WATCH_CREATE, 4);
	struct faultline_create_watch_req req = {
		.start = (uintptr_t)addr,
		.length = length,
		.cookie = cookie,
	};
	struct faultline_create_watch_resp resp = {};
	struct faultlinedv_watch *watch;
	struct ib_uverbs_attr *handle;
	const uint64_t *values;
	int ret;

	watch = calloc(1, sizeof(*watch));
	if (!watch)
		return NULL;
	handle = fill_attr_out_obj(cmd, FAULTLINE_ATTR_WATCH_CREATE_HANDLE);
	fill_attr_in_fd(cmd, FAULTLINE_ATTR_WATCH_CREATE_EVENTS, events->fd);
	fill_attr_in_ptr(cmd, FAULTLINE_ATTR_WATCH_CREATE_REQ, &req);
	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_WATCH_CREATE_RESP, &resp);
	ret = execute_ioctl(events->context, cmd);
	if (ret)
		goto err;
	watch->context = events->context;
	watch->handle = read_attr_obj(FAULTLINE_ATTR_WATCH_CREATE_HANDLE, handle);
	values = fl_map_counters(to_fl_ctx(events->context), resp.page_offset);
	if (!values) {
		ret = errno;
		fl_destroy_watch(watch);
		goto err;
	}
	watch->counter = &values[resp.index];
	return watch;

err:
	free(watch);
	errno = ret;
	return NULL;
}

int faultlinedv_destroy_watch(struct faultlinedv_watch *watch)
{
	int ret = fl_destroy_watch(watch);

	/* If the device is gone, the kernel has removed everything already. */
	if (!ret || ret == EIO) {
		free(watch);
		ret = 0;
	}
	return ret;
}

int faultlinedv_sync_watch(struct faultlinedv_watch *watch, uint64_t *value)
{
	DECLARE_COMMAND_BUFFER(cmd, FAULTLINE_OBJECT_WATCH,
			       FAULTLINE_METHOD_WATCH_SYNC, 2);

	fill_attr_in_obj(cmd, FAULTLINE_ATTR_WATCH_SYNC_HANDLE, watch->handle);
	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_WATCH_SYNC_VALUE, value);
	return execute_ioctl(watch->context, cmd);
}

struct ibv_mr *faultlinedv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				  uint64_t iova, int access,
				  const struct faultlinedv_mr_attr *attr)
{
	struct ib_uverbs_reg_mr_resp resp;
	struct fl_reg_mr cmd = {};
	struct verbs_mr *vmr;
	int ret;

	if (!fl_is_ours(pd->context->device) || attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!attr->events) {
		errno = EINVAL;
		return NULL;
	}
	cmd.drv.cookie = attr->cookie;
	cmd.drv.events_fd = attr->events->fd;
	cmd.drv.mode = attr->mode;
	cmd.drv.lease_ms = attr->lease_ms;
	vmr = calloc(1, sizeof(*vmr));
	if (!vmr)
		return NULL;
	/* As in ibv_reg_mr(), which does this around the provider's part. */
	if (ibv_dontfork_range(addr, length)) {
		ret = errno;
		goto err_free;
	}
	ret = ibv_cmd_reg_mr(pd, addr, length, iova, access, vmr, &cmd.ibv_cmd,
			     sizeof(cmd), &resp, sizeof(resp));
	if (ret)
		goto err_fork;
	vmr->ibv_mr.context = pd->context;
	vmr->ibv_mr.pd = pd;
	vmr->ibv_mr.addr = addr;
	vmr->ibv_mr.length = length;
	return &vmr->ibv_mr;

err_fork:
	ibv_dofork_range(addr, length);
err_free:
	free(vmr);
	errno = ret;
	return NULL;
}

int faultlinedv_restore_mr(struct ibv_mr *mr)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_MR,
			       FAULTLINE_METHOD_MR_RESTORE, 1);

	if (!fl_is_ours(mr->context->device))
		return EOPNOTSUPP;
	fill_attr_in_obj(cmd, FAULTLINE_ATTR_MR_RESTORE_HANDLE, mr->handle);
	return execute_ioctl(mr->context, cmd);
}

int faultlinedv_release_mr(struct ibv_mr *mr)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_MR,
			       FAULTLINE_METHOD_MR_RELEASE, 1);

	if (!fl_is_ours(mr->context->device))
		return EOPNOTSUPP;
	fill_attr_in_obj(cmd, FAULTLINE_ATTR_MR_RELEASE_HANDLE, mr->handle);
	return execute_ioctl(mr->context, cmd);
}

int faultlinedv_set_fault_policy(struct ibv_qp *qp,
				 enum faultlinedv_fault_policy policy)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_QP,
			       FAULTLINE_METHOD_QP_SET_POLICY, 2);
	uint32_t value = policy;

	if (!fl_is_ours(qp->context->device))
		return EOPNOTSUPP;
	fill_attr_in_obj(cmd, FAULTLINE_ATTR_QP_SET_POLICY_HANDLE, qp->handle);
	fill_attr_in_ptr(cmd, FAULTLINE_ATTR_QP_SET_POLICY_VALUE, &value);
	return execute_ioctl(qp->context, cmd);
}

int faultlinedv_query_fault_policy(struct ibv_qp *qp,
				   enum faultlinedv_fault_policy *policy)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_QP,
			       FAULTLINE_METHOD_QP_QUERY_POLICY, 2);
	uint32_t value;
	int ret;

	if (!fl_is_ours(qp->context->device))
		return EOPNOTSUPP;
	fill_attr_in_obj(cmd, FAULTLINE_ATTR_QP_QUERY_POLICY_HANDLE, qp->handle);
	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_QP_QUERY_POLICY_VALUE, &value);
	ret = execute_ioctl(qp->context, cmd);
	if (!ret)
		*policy = value;
	return ret;
}
