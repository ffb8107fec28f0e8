// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Device and context, memory of rings, QPs by number.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "faultline.h"

static void fl_free_context(struct ibv_context *ibctx);

/*
 * Allocates zeroed memory. `type` is the purpose, for the allocator of a parent
 * domain. `pd` may be NULL.
 */
int fl_ring_alloc(struct fl_context *ctx, struct fl_pd *pd, uint64_t type,
		  struct fl_ring *ring, size_t len)
{
	size_t total = align(len + FAULTLINE_RING_RECORD_SIZE, ctx->page_size);
	void *buf;

	ring->len = total;
	ring->ring_len = len;
	ring->type = type;
	if (fl_pd_alloc(pd, total, ctx->page_size, type, &buf)) {
		if (!buf)
			return ENOMEM;
		if ((uintptr_t)buf % ctx->page_size) {
			fl_pd_free(pd, buf, type);
			return EINVAL;
		}
		memset(buf, 0, total);
		ring->buf = buf;
		ring->owner = pd;
		return 0;
	}
	buf = mmap(NULL, total, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf == MAP_FAILED)
		return errno;
	/*
	 * A child process must not get copies of pages that the device writes.
	 */
	if (ibv_dontfork_range(buf, total)) {
		munmap(buf, total);
		return ENOMEM;
	}
	ring->buf = buf;
	ring->owner = NULL;
	return 0;
}

void fl_ring_free(struct fl_ring *ring)
{
	if (!ring->buf)
		return;
	if (ring->owner) {
		fl_pd_free(ring->owner, ring->buf, ring->type);
	} else {
		ibv_dofork_range(ring->buf, ring->len);
		munmap(ring->buf, ring->len);
	}
	ring->buf = NULL;
}

int fl_wq_alloc(struct fl_context *ctx, struct fl_pd *pd, uint64_t type,
		struct fl_wq *wq, uint8_t log_depth, uint8_t stride_shift,
		uint32_t max_sge)
{
	int ret;

	wq->log_depth = log_depth;
	wq->stride_shift = stride_shift;
	wq->mask = (1U << log_depth) - 1;
	wq->max_sge = max_sge;
	wq->wr_id = calloc((size_t)wq->mask + 1, sizeof(*wq->wr_id));
	if (!wq->wr_id)
		return ENOMEM;
	ret = fl_ring_alloc(ctx, pd, type, &wq->ring,
			    (size_t)1 << (log_depth + stride_shift));
	if (!ret)
		ret = fl_lock_init(&wq->lock, false);
	if (ret) {
		fl_ring_free(&wq->ring);
		free(wq->wr_id);
		wq->wr_id = NULL;
	}
	return ret;
}

void fl_wq_free(struct fl_wq *wq)
{
	if (!wq->wr_id)
		return;
	fl_lock_destroy(&wq->lock);
	fl_ring_free(&wq->ring);
	free(wq->wr_id);
	wq->wr_id = NULL;
}

/*
 * Waits until a number is free. The device may have given an object the number
 * of one that another thread has destroyed, but whose completions that thread
 * still removes.
 */
static void await_number(struct fl_table *table, uint32_t number)
{
	while (fl_table_find(table, number))
		sched_yield();
}

int fl_table_insert(struct fl_table *table, uint32_t number, void *object)
{
	void ***slot = &table->leaf[(number >> FL_TABLE_SHIFT) & FL_TABLE_MASK];
	int ret = 0;

	await_number(table, number);
	pthread_mutex_lock(&table->lock);
	if (!*slot) {
		void **leaf = calloc(FL_TABLE_SIZE, sizeof(*leaf));

		if (leaf)
			__atomic_store_n(slot, leaf, __ATOMIC_RELEASE);
		else
			ret = ENOMEM;
	}
	if (!ret)
		__atomic_store_n(&(*slot)[number & FL_TABLE_MASK], object,
				 __ATOMIC_RELEASE);
	pthread_mutex_unlock(&table->lock);
	return ret;
}

/*
 * Frees a number. Must be the last step, because another object may get the
 * number from now on.
 */
void fl_table_remove(struct fl_table *table, uint32_t number)
{
	void **leaf = table->leaf[(number >> FL_TABLE_SHIFT) & FL_TABLE_MASK];

	if (leaf)
		__atomic_store_n(&leaf[number & FL_TABLE_MASK], NULL,
				 __ATOMIC_RELEASE);
}

void *fl_table_find(struct fl_table *table, uint32_t number)
{
	void **leaf = __atomic_load_n(
		&table->leaf[(number >> FL_TABLE_SHIFT) & FL_TABLE_MASK],
		__ATOMIC_ACQUIRE);

	return leaf ? __atomic_load_n(&leaf[number & FL_TABLE_MASK],
				      __ATOMIC_ACQUIRE) : NULL;
}

static void fl_table_free(struct fl_table *table)
{
	int i;

	for (i = 0; i < FL_TABLE_SIZE; i++)
		free(table->leaf[i]);
	pthread_mutex_destroy(&table->lock);
}

static const struct verbs_context_ops fl_ops = {
	.advise_mr = ibv_cmd_advise_mr,
	.alloc_dm = fl_alloc_dm,
	.alloc_mw = fl_alloc_mw,
	.alloc_parent_domain = fl_alloc_parent_domain,
	.alloc_pd = fl_alloc_pd,
	.alloc_td = fl_alloc_td,
	.attach_mcast = fl_attach_mcast,
	.bind_mw = fl_bind_mw,
	.create_ah = fl_create_ah,
	.create_cq = fl_create_cq,
	.create_cq_ex = fl_create_cq_ex,
	.create_flow = fl_create_flow,
	.create_qp = fl_create_qp,
	.create_qp_ex = fl_create_qp_ex,
	.close_xrcd = fl_close_xrcd,
	.create_rwq_ind_table = fl_create_rwq_ind_table,
	.create_srq = fl_create_srq,
	.create_srq_ex = fl_create_srq_ex,
	.create_wq = fl_create_wq,
	.dealloc_mw = fl_dealloc_mw,
	.dealloc_pd = fl_dealloc_pd,
	.dealloc_td = fl_dealloc_td,
	.dereg_mr = fl_dereg_mr,
	.destroy_ah = fl_destroy_ah,
	.destroy_cq = fl_destroy_cq,
	.destroy_flow = fl_destroy_flow,
	.destroy_qp = fl_destroy_qp,
	.destroy_rwq_ind_table = fl_destroy_rwq_ind_table,
	.destroy_srq = fl_destroy_srq,
	.destroy_wq = fl_destroy_wq,
	.detach_mcast = fl_detach_mcast,
	.free_context = fl_free_context,
	.free_dm = fl_free_dm,
	.get_srq_num = fl_get_srq_num,
	.import_dm = fl_import_dm,
	.import_mr = fl_import_mr,
	.import_pd = fl_import_pd,
	.modify_cq = fl_modify_cq,
	.modify_qp = fl_modify_qp,
	.modify_srq = fl_modify_srq,
	.modify_wq = fl_modify_wq,
	.open_qp = fl_open_qp,
	.open_xrcd = fl_open_xrcd,
	.poll_cq = fl_poll_cq,
	.post_recv = fl_post_recv,
	.post_send = fl_post_send,
	.post_srq_ops = fl_post_srq_ops,
	.post_srq_recv = fl_post_srq_recv,
	.query_device_ex = fl_query_device,
	.query_port = fl_query_port,
	.query_qp = fl_query_qp,
	.query_rt_values = fl_query_rt_values,
	.query_srq = fl_query_srq,
	.reg_dmabuf_mr = fl_reg_dmabuf_mr,
	.reg_dm_mr = fl_reg_dm_mr,
	.reg_mr = fl_reg_mr,
	.rereg_mr = fl_rereg_mr,
	.req_notify_cq = fl_req_notify_cq,
	.resize_cq = fl_resize_cq,
	.unimport_dm = fl_unimport_dm,
	.unimport_mr = fl_unimport_mr,
	.unimport_pd = fl_unimport_pd,
};

static void *map_page(struct fl_context *ctx, int fd, int prot, uint64_t offset)
{
	void *page = mmap(NULL, FAULTLINE_PAGE_SIZE, prot, MAP_SHARED, fd, offset);

	return page == MAP_FAILED ? NULL : page;
}

/* The device marks the page as soon as the kernel has allocated it. */
static bool wait_for_device(struct fl_context *ctx)
{
	uint64_t deadline = fl_now_ns() + FL_DEVICE_TIMEOUT_NS;

	while (fl_is_gone(ctx)) {
		if (fl_now_ns() > deadline) {
			errno = EIO;
			return false;
		}
		sched_yield();
	}
	return true;
}

/* Initializes a context: the kernel's answer, the pages, the tables. */
static int set_up_context(struct fl_context *ctx, int cmd_fd,
			  const struct faultline_alloc_ucontext_resp *resp)
{
	if (resp->abi_version >> 16 != FAULTLINE_ABI_VERSION >> 16) {
		/* As libibverbs does for the kernel's ABI: verbs_err() is silent by default. */
		fprintf(stderr,
			"libfaultline: %s has device ABI %u.%u, this library needs %u.x; %s\n",
			ibv_get_device_name(ctx->ibv_ctx.context.device),
			resp->abi_version >> 16, resp->abi_version & 0xffff,
			FAULTLINE_ABI_VERSION >> 16,
			resp->abi_version > FAULTLINE_ABI_VERSION ?
				"update the packages libfaultline1 and faultline-ibverbs-provider" :
				"update the packages faultline (host) and faultline-dkms (guest)");
		return EOPNOTSUPP;
	}
	ctx->page_size = sysconf(_SC_PAGESIZE);
	ctx->max_qp_wr = resp->max_qp_wr;
	ctx->max_srq_wr = resp->max_srq_wr;
	ctx->max_cqe = resp->max_cqe;
	ctx->max_sge = resp->max_sge;
	ctx->max_inline = resp->max_inline;
	ctx->max_tso = resp->max_tso;
	ctx->doorbell = map_page(ctx, cmd_fd, PROT_READ | PROT_WRITE,
				 resp->doorbell_offset);
	if (!ctx->doorbell)
		return errno;
	if (!wait_for_device(ctx))
		goto err_doorbell;
	ctx->kick = map_page(ctx, cmd_fd, PROT_WRITE, resp->kick_offset);
	if (!ctx->kick)
		goto err_doorbell;
	pthread_mutex_init(&ctx->qps.lock, NULL);
	pthread_mutex_init(&ctx->srqs.lock, NULL);
	pthread_mutex_init(&ctx->rwqs.lock, NULL);
	pthread_mutex_init(&ctx->counters_lock, NULL);
	verbs_set_ops(&ctx->ibv_ctx, &fl_ops);
	return 0;

err_doorbell:
	munmap(ctx->doorbell, FAULTLINE_PAGE_SIZE);
	return errno;
}

/* The kernel has answered with `ret` and, if that is 0, `resp`. */
static struct verbs_context *complete_context(struct fl_context *ctx, int cmd_fd, int ret,
					      const struct faultline_alloc_ucontext_resp *resp)
{
	if (!ret)
		ret = set_up_context(ctx, cmd_fd, resp);
	if (!ret)
		return &ctx->ibv_ctx;
	verbs_uninit_context(&ctx->ibv_ctx);
	free(ctx);
	errno = ret;
	return NULL;
}

static struct verbs_context *fl_alloc_context(struct ibv_device *device, int cmd_fd,
					      void *private_data)
{
	struct fl_get_context_resp resp = {};
	struct ibv_get_context cmd = {};
	struct fl_context *ctx;
	int ret;

	ctx = verbs_init_and_alloc_context(device, cmd_fd, ctx, ibv_ctx,
					   RDMA_DRIVER_UNKNOWN);
	if (!ctx)
		return NULL;
	ret = ibv_cmd_get_context(&ctx->ibv_ctx, &cmd, sizeof(cmd), FL_CONTEXT_FDS(NULL)
				  &resp.ibv_resp, sizeof(resp));
	return complete_context(ctx, cmd_fd, ret, &resp.drv);
}

/*
 * Imports a context by the descriptor of an existing one, perhaps of another
 * process.
 */
static struct verbs_context *fl_import_context(struct ibv_device *device,
					       int cmd_fd)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_DEVICE,
			       UVERBS_METHOD_QUERY_CONTEXT, 1);
	struct faultline_alloc_ucontext_resp resp = {};
	struct fl_context *ctx;
	int ret;

	ctx = verbs_init_and_alloc_context(device, cmd_fd, ctx, ibv_ctx,
					   RDMA_DRIVER_UNKNOWN);
	if (!ctx)
		return NULL;
	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_QUERY_CONTEXT_RESP, &resp);
	ret = ibv_cmd_query_context(&ctx->ibv_ctx.context, cmd);
	return complete_context(ctx, cmd_fd, ret, &resp);
}

static void fl_free_context(struct ibv_context *ibctx)
{
	struct fl_context *ctx = to_fl_ctx(ibctx);

	munmap((void *)ctx->kick, FAULTLINE_PAGE_SIZE);
	munmap(ctx->doorbell, FAULTLINE_PAGE_SIZE);
	fl_table_free(&ctx->qps);
	fl_table_free(&ctx->srqs);
	fl_table_free(&ctx->rwqs);
	fl_unmap_counters(ctx);
	pthread_mutex_destroy(&ctx->counters_lock);
	verbs_uninit_context(&ctx->ibv_ctx);
	free(ctx);
}

static struct verbs_device *fl_alloc_device(struct verbs_sysfs_dev *sysfs_dev)
{
	return calloc(1, sizeof(struct verbs_device));
}

static void fl_uninit_device(struct verbs_device *device)
{
	free(device);
}

static const struct verbs_match_ent fl_match[] = {
	/* The function may have other ids, but not another subsystem. */
	VERBS_MODALIAS_MATCH(FL_MODALIAS, NULL),
	{}
};

static const struct verbs_device_ops fl_device_ops = {
	.name = "faultline",
	.match_min_abi_version = FAULTLINE_UVERBS_ABI_VERSION,
	.match_max_abi_version = FAULTLINE_UVERBS_ABI_VERSION,
	.match_table = fl_match,
	.alloc_device = fl_alloc_device,
	.uninit_device = fl_uninit_device,
	.alloc_context = fl_alloc_context,
	.import_context = fl_import_context,
};

bool fl_is_ours(struct ibv_device *device)
{
	return verbs_get_device(device)->ops == &fl_device_ops;
}

PROVIDER_DRIVER(faultline, fl_device_ops);
