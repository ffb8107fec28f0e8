/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The libibverbs provider of the Faultline device: its objects and their shared
 * declarations.
 *
 * The device's layouts and protocols are in faultline_abi.h, the interface to
 * the kernel is in faultline_uapi.h.
 */
#ifndef FAULTLINE_H
#define FAULTLINE_H

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ccan/minmax.h>
#include <infiniband/cmd_ioctl.h>
#include <infiniband/driver.h>
#include <infiniband/kern-abi.h>
#include <util/udma_barrier.h>
#include <util/util.h>

#include "compat.h"
#include "faultline_abi.h"
#include "faultline_uapi.h"
#include "faultlinedv.h"
#include "lock.h"

/* Matches the modalias of the PCI function: FAULTLINE_PCI_SUBSYSTEM_VENDOR
 * and FAULTLINE_PCI_SUBSYSTEM.
 */
#define FL_MODALIAS "pci:v*d*sv00001AF4sd000010F0bc*"

/* Numbers have 24 bits: a table of tables of 4096 finds an object by number. */
#define FL_TABLE_SHIFT 12
#define FL_TABLE_SIZE (1 << FL_TABLE_SHIFT)
#define FL_TABLE_MASK (FL_TABLE_SIZE - 1)

/* The fields that an RSS QP can hash. */
#define FL_RX_HASH_FIELDS                                                      \
	(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_IPV6 |  \
	 IBV_RX_HASH_DST_IPV6 | IBV_RX_HASH_SRC_PORT_TCP |                     \
	 IBV_RX_HASH_DST_PORT_TCP | IBV_RX_HASH_SRC_PORT_UDP |                 \
	 IBV_RX_HASH_DST_PORT_UDP)

/* Larger than the number of tags or operations of any device. */
#define FL_MAX_TAGS (1 << 20)

/* The bit that the completions of tag matching have in their opcodes. */
#define FL_WC_TM FAULTLINE_WC_TM_ADD

/* Smallest number of entries of a CQ, as log2. */
#define FL_MIN_CQ_LOG_DEPTH 4

/* The type of a RoCE packet, reported in `sl` as ConnectX does. */
#define FL_SL_UDP	(1 << 3)
#define FL_SL_IPV4	2
#define FL_SL_IPV6	1

/*
 * Time limit for what the device does at once if it works. The kernel's
 * watchdog takes longer to find that the device has failed; then all waits end.
 */
#define FL_DEVICE_TIMEOUT_NS 2000000000ULL

/* Objects by number. */
struct fl_table {
	pthread_mutex_t lock;	/* serializes insertions */
	void **leaf[FL_TABLE_SIZE];
};

struct fl_qp;
struct fl_tags;
struct fl_counter_page;

struct fl_context {
	struct verbs_context ibv_ctx;
	struct faultline_doorbell_page *doorbell;
	volatile uint64_t *kick;
	long page_size;
	uint32_t max_qp_wr;
	uint32_t max_srq_wr;
	uint32_t max_cqe;
	uint32_t max_sge;
	uint32_t max_inline;
	uint32_t max_tso;
	struct fl_table qps;
	struct fl_table srqs;	/* those that completions name */
	struct fl_table rwqs;
	/*
	 * Difference of the time of day and the device's clock, and the time of
	 * its measurement.
	 */
	uint64_t wallclock_ahead;
	uint64_t clock_synced_at;
	/* Protects the list of pages of watches' counters. */
	pthread_mutex_t counters_lock;
	struct fl_counter_page *counters;
};

/* Memory of a ring and of the record behind it. */
struct fl_ring {
	uint8_t *buf;
	size_t len;		/* as mapped */
	size_t ring_len;	/* without the record */
	struct fl_pd *owner;	/* whose allocator gave the memory; or NULL */
	uint64_t type;		/* what the allocator was told */
};

struct fl_td {
	struct ibv_td ibv_td;
	uint32_t users;		/* parent domains */
};

struct fl_pd {
	struct ibv_pd ibv_pd;
	uint32_t pdn;
	/* Parent domains; of a parent domain: queues in memory of its allocator. */
	uint32_t users;
	/* The other members are for parent domains. */
	struct fl_pd *contained;
	struct fl_td *td;
	void *(*alloc)(struct ibv_pd *pd, void *context, size_t size,
		       size_t alignment, uint64_t type);
	void (*free)(struct ibv_pd *pd, void *context, void *buf, uint64_t type);
	void *allocator_context;
};

struct fl_dm {
	struct verbs_dm verbs_dm;
	void *buf;
	uint64_t length;
	uint64_t mmap_length;
};

struct fl_ah {
	struct ibv_ah ibv_ah;
	uint32_t ahn;
};

struct fl_cq {
	struct verbs_cq verbs_cq;
	struct fl_lock lock;
	struct fl_ring ring;
	struct fl_pd *pd;	/* parent domain; or NULL */
	uint32_t log_depth;
	uint32_t consumer;
	uint32_t cqn;
	bool wallclock;		/* tells the time of day of completions */
	struct fl_qp *last_qp;	/* of the entry before, mostly of the next too */
	struct faultline_cqe current;	/* what start_poll and next_poll found */
};

/* A send or receive queue. Counts are of work requests, modulo 2^32. */
struct fl_wq {
	struct fl_ring ring;
	uint64_t *wr_id;
	uint32_t mask;		/* entries - 1 */
	uint8_t log_depth;
	uint8_t stride_shift;
	uint32_t max_sge;
	uint32_t head;		/* posted */
	uint32_t tail;		/* completed */
	struct fl_lock lock;
};

struct fl_srq {
	struct verbs_srq verbs_srq;
	struct fl_wq wq;
	bool is_xrc;
	uint32_t srqn;
	struct fl_cq *cq;	/* of completions that name it, or NULL */
	uint32_t *free;		/* stack of tags that are not in use */
	uint32_t num_free;
	uint32_t num_tags;	/* as many as the ring ever had entries */
	struct fl_pd *pd;
	struct fl_tags *tags;	/* NULL: no tag matching */
};

/* A work queue, to which an RSS queue pair distributes frames. */
struct fl_rwq {
	struct ibv_wq ibv_wq;
	struct fl_wq wq;
};

struct fl_qp {
	struct verbs_qp verbs_qp;
	struct fl_wq sq;
	struct fl_wq rq;
	uint32_t max_inline;
	uint32_t ops;		/* bits of enum ibv_wr_opcode */
	uint16_t max_tso_header;
	bool sq_sig_all;
	bool is_iwarp;
	/* wr_start ... wr_complete: the batch of the send queue's lock */
	uint32_t ex_head;	/* sq.head when it began */
	struct faultline_sq_wqe *ex_wqe;
	int ex_err;
};

static inline struct fl_context *to_fl_ctx(struct ibv_context *ctx)
{
	return container_of(ctx, struct fl_context, ibv_ctx.context);
}

static inline bool fl_is_iwarp(const struct fl_context *ctx)
{
	return ctx->ibv_ctx.context.device->transport_type == IBV_TRANSPORT_IWARP;
}

static inline struct fl_pd *to_fl_pd(struct ibv_pd *pd)
{
	return container_of(pd, struct fl_pd, ibv_pd);
}

static inline struct fl_td *to_fl_td(struct ibv_td *td)
{
	return container_of(td, struct fl_td, ibv_td);
}

static inline struct fl_dm *to_fl_dm(struct ibv_dm *dm)
{
	return container_of(dm, struct fl_dm, verbs_dm.dm);
}

static inline struct fl_ah *to_fl_ah(struct ibv_ah *ah)
{
	return container_of(ah, struct fl_ah, ibv_ah);
}

static inline struct fl_cq *to_fl_cq(struct ibv_cq *cq)
{
	return container_of(cq, struct fl_cq, verbs_cq.cq);
}

static inline struct fl_cq *to_fl_cq_ex(struct ibv_cq_ex *cq)
{
	return container_of(cq, struct fl_cq, verbs_cq.cq_ex);
}

static inline struct fl_srq *to_fl_srq(struct ibv_srq *srq)
{
	return container_of(srq, struct fl_srq, verbs_srq.srq);
}

static inline struct fl_rwq *to_fl_rwq(struct ibv_wq *wq)
{
	return container_of(wq, struct fl_rwq, ibv_wq);
}

static inline struct fl_qp *to_fl_qp(struct ibv_qp *qp)
{
	return container_of(qp, struct fl_qp, verbs_qp.qp);
}

static inline struct fl_qp *to_fl_qp_ex(struct ibv_qp_ex *qp)
{
	return container_of(qp, struct fl_qp, verbs_qp.qp_ex);
}

static inline struct faultline_wq_record *fl_wq_record(struct fl_ring *ring)
{
	return (void *)(ring->buf + ring->ring_len);
}

static inline void *fl_wq_entry(struct fl_wq *wq, uint32_t index)
{
	return wq->ring.buf + ((size_t)(index & wq->mask) << wq->stride_shift);
}

/*
 * The phase in entry number `index` of a ring when the device has written it.
 */
static inline uint8_t fl_phase(uint32_t index, uint32_t log_depth)
{
	return !((index >> log_depth) & 1);
}

/* Smallest power of two that is not below n, as log2. */
static inline uint8_t fl_log2_up(uint32_t n)
{
	return n <= 1 ? 0 : 32 - __builtin_clz(n - 1);
}

/* log2 of the stride of entries of this many bytes. */
static inline uint8_t fl_stride_shift(uint32_t bytes, uint8_t least)
{
	uint8_t shift = fl_log2_up(bytes);

	return shift > least ? shift : least;
}

/* Bytes in front of the SGEs that this number of inline bytes takes. */
static inline uint32_t fl_header_room(uint32_t len)
{
	return (len + sizeof(struct faultline_sge) - 1) / sizeof(struct faultline_sge) *
	       sizeof(struct faultline_sge);
}

static inline void fl_set_sge(struct faultline_sge *to, uint64_t addr,
			      uint32_t length, uint32_t lkey)
{
	to->addr = htole64(addr);
	to->length = htole32(length);
	to->lkey = htole32(lkey);
}

/*
 * Returns true if the device is gone: unplugged, unbound, or failed. The kernel
 * then replaces the doorbell page by an empty one.
 */
static inline bool fl_is_gone(struct fl_context *ctx)
{
	return !__atomic_load_n(&ctx->doorbell->alive, __ATOMIC_RELAXED);
}

/*
 * A full barrier between a store that the device reads (a doorbell, a producer
 * index) and a load of a word that the device writes (`asleep`, `notify`). It
 * pairs with the device's barrier between its store and its load: one of the
 * two sees the other's store.
 *
 * The device is another process of the host, so this must be a barrier in a
 * guest with one virtual CPU, too. On x86, compilers make a locked instruction
 * of a sequentially consistent fence. QEMU's TCG executes it as an ordinary one
 * in a guest that can have one CPU only, where the load can pass the store then.
 */
static inline void fl_device_barrier(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__asm__ __volatile__("mfence" ::: "memory");
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* faultline.c */
bool fl_is_ours(struct ibv_device *device);

/* dv.c */
void fl_unmap_counters(struct fl_context *ctx);

/* doorbell.c */
uint64_t fl_now_ns(void);
void fl_doorbell_drain(struct fl_context *ctx);
void fl_doorbell(struct fl_context *ctx, uint8_t type, uint32_t object,
		 uint32_t value);

/* rings */
int fl_ring_alloc(struct fl_context *ctx, struct fl_pd *pd, uint64_t type,
		  struct fl_ring *ring, size_t len);
void fl_ring_free(struct fl_ring *ring);
int fl_wq_alloc(struct fl_context *ctx, struct fl_pd *pd, uint64_t type,
		struct fl_wq *wq, uint8_t log_depth, uint8_t stride_shift,
		uint32_t max_sge);
void fl_wq_free(struct fl_wq *wq);

/* QP numbers */
int fl_table_insert(struct fl_table *table, uint32_t number, void *object);
void fl_table_remove(struct fl_table *table, uint32_t number);
void *fl_table_find(struct fl_table *table, uint32_t number);

/* cq.c */
struct ibv_cq *fl_create_cq(struct ibv_context *context, int cqe,
			    struct ibv_comp_channel *channel, int comp_vector);
struct ibv_cq_ex *fl_create_cq_ex(struct ibv_context *context,
				  struct ibv_cq_init_attr_ex *attr);
int fl_destroy_cq(struct ibv_cq *cq);
int fl_resize_cq(struct ibv_cq *cq, int cqe);
int fl_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int fl_poll_cq(struct ibv_cq *cq, int num, struct ibv_wc *wc);
int fl_req_notify_cq(struct ibv_cq *cq, int solicited_only);
void fl_cq_clean(struct fl_cq *cq, uint32_t qpn, struct ibv_srq *srq);
void fl_cq_clean_srq(struct fl_cq *cq, uint32_t srqn);

/* qp.c */
struct ibv_qp *fl_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *fl_create_qp_ex(struct ibv_context *context,
			       struct ibv_qp_init_attr_ex *attr);
struct ibv_qp *fl_open_qp(struct ibv_context *context,
			  struct ibv_qp_open_attr *attr);
int fl_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int fl_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		struct ibv_qp_init_attr *init);
int fl_destroy_qp(struct ibv_qp *qp);
int fl_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
		 struct ibv_send_wr **bad);
int fl_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
		 struct ibv_recv_wr **bad);
void fl_write_recv(struct fl_wq *wq, uint32_t tag, struct ibv_recv_wr *wr);
int fl_post_receives(struct fl_context *ctx, struct fl_wq *wq, uint32_t number,
		     struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
void fl_reset_wq(struct fl_wq *wq);

/* tag.c */
struct ibv_srq *fl_create_tag_srq(struct ibv_context *context,
				  struct ibv_srq_init_attr_ex *attr);
void fl_free_tags(struct fl_srq *srq);
int fl_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *wr, struct ibv_ops_wr **bad);
bool fl_tag_retire(struct fl_context *ctx, const struct faultline_cqe *cqe, uint64_t *wr_id);
unsigned int fl_tag_wc_flags(uint8_t tm_flags);
void fl_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *info);

/* srq.c */
struct fl_srq *fl_alloc_srq(struct ibv_pd *pd, struct ibv_srq_attr *attr,
			    struct faultline_create_srq_req *req);
void fl_free_srq(struct fl_srq *srq);
int fl_create_named_srq(struct ibv_context *context, struct fl_srq *srq,
			struct ibv_srq_init_attr_ex *attr,
			struct ibv_create_xsrq *cmd, size_t cmd_size);
struct ibv_srq *fl_create_srq(struct ibv_pd *pd,
			      struct ibv_srq_init_attr *attr);
struct ibv_srq *fl_create_srq_ex(struct ibv_context *context,
				 struct ibv_srq_init_attr_ex *attr);
int fl_get_srq_num(struct ibv_srq *srq, uint32_t *num);
int fl_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int fl_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int fl_destroy_srq(struct ibv_srq *srq);
int fl_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
		     struct ibv_recv_wr **bad);
uint64_t fl_srq_release(struct fl_srq *srq, uint32_t tag);

/* domain.c */
struct ibv_pd *fl_alloc_pd(struct ibv_context *context);
int fl_dealloc_pd(struct ibv_pd *pd);
struct ibv_pd *fl_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr);
bool fl_pd_alloc(struct fl_pd *pd, size_t size, size_t alignment, uint64_t type,
		 void **buf);
void fl_pd_free(struct fl_pd *pd, void *buf, uint64_t type);
struct ibv_td *fl_alloc_td(struct ibv_context *context,
			   struct ibv_td_init_attr *attr);
int fl_dealloc_td(struct ibv_td *td);
struct ibv_pd *fl_import_pd(struct ibv_context *context, uint32_t handle);
void fl_unimport_pd(struct ibv_pd *pd);

/* dm.c */
struct ibv_dm *fl_alloc_dm(struct ibv_context *context,
			   struct ibv_alloc_dm_attr *attr);
int fl_free_dm(struct ibv_dm *dm);
struct ibv_mr *fl_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm,
			    uint64_t offset, size_t length, unsigned int access);
struct ibv_dm *fl_import_dm(struct ibv_context *context, uint32_t handle);
void fl_unimport_dm(struct ibv_dm *dm);

/* clock.c */
int fl_clock_sync(struct fl_context *ctx);
void fl_clock_refresh(struct fl_context *ctx);
uint64_t fl_wallclock(const struct fl_context *ctx, uint64_t timestamp);
int fl_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values);

/* verbs.c */
int fl_query_device(struct ibv_context *context,
		    const struct ibv_query_device_ex_input *input,
		    struct ibv_device_attr_ex *attr, size_t attr_size);
int fl_query_port(struct ibv_context *context, uint8_t port,
		  struct ibv_port_attr *attr);
struct ibv_xrcd *fl_open_xrcd(struct ibv_context *context,
			      struct ibv_xrcd_init_attr *attr);
int fl_close_xrcd(struct ibv_xrcd *xrcd);
struct ibv_mr *fl_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				uint64_t iova, int fd, int access);
struct ibv_mr *fl_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			 uint64_t hca_va, int access);
struct ibv_mr *fl_import_mr(struct ibv_pd *pd, uint32_t handle);
void fl_unimport_mr(struct ibv_mr *mr);
struct ibv_mw *fl_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int fl_dealloc_mw(struct ibv_mw *mw);
int fl_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int fl_rereg_mr(struct verbs_mr *vmr, int flags, struct ibv_pd *pd, void *addr,
		size_t length, int access);
int fl_dereg_mr(struct verbs_mr *vmr);
struct ibv_ah *fl_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int fl_destroy_ah(struct ibv_ah *ah);

/* steering.c */
int fl_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int fl_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
struct ibv_flow *fl_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *attr);
int fl_destroy_flow(struct ibv_flow *flow);

/* rss.c */
struct ibv_wq *fl_create_wq(struct ibv_context *context,
			    struct ibv_wq_init_attr *attr);
int fl_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *attr);
int fl_destroy_wq(struct ibv_wq *wq);
struct ibv_rwq_ind_table *
fl_create_rwq_ind_table(struct ibv_context *context,
			struct ibv_rwq_ind_table_init_attr *attr);
int fl_destroy_rwq_ind_table(struct ibv_rwq_ind_table *table);
struct ibv_qp *fl_create_rss_qp(struct ibv_context *context,
				struct ibv_qp_init_attr_ex *attr);

/*
 * Commands and answers of the core, followed by the provider's part.
 * (rdma-core's macro for this needs headers in its own tree.)
 */
#define FL_DRV_PART(name, member, core, part)                                  \
	struct name {                                                          \
		struct core member;                                            \
		struct part drv;                                               \
	};                                                                     \
	static_assert(offsetof(struct name, drv) == sizeof(struct core),       \
		      "padding before the driver's part of " #name)

FL_DRV_PART(fl_get_context_resp, ibv_resp, ib_uverbs_get_context_resp,
	    faultline_alloc_ucontext_resp);
FL_DRV_PART(fl_alloc_pd_resp, ibv_resp, ib_uverbs_alloc_pd_resp,
	    faultline_alloc_pd_resp);
FL_DRV_PART(fl_reg_mr, ibv_cmd, ibv_reg_mr, faultline_reg_mr_req);
FL_DRV_PART(fl_create_cq_ex, ibv_cmd, ibv_create_cq_ex, faultline_create_cq_req);
FL_DRV_PART(fl_create_cq_ex_resp, ibv_resp, ib_uverbs_ex_create_cq_resp,
	    faultline_create_cq_resp);
FL_DRV_PART(fl_resize_cq, ibv_cmd, ibv_resize_cq, faultline_resize_cq_req);
FL_DRV_PART(fl_create_qp_ex, ibv_cmd, ibv_create_qp_ex, faultline_create_qp_req);
FL_DRV_PART(fl_create_qp_ex_resp, ibv_resp, ib_uverbs_ex_create_qp_resp,
	    faultline_create_qp_resp);
FL_DRV_PART(fl_create_rss_qp_ex, ibv_cmd, ibv_create_qp_ex,
	    faultline_create_rss_qp_req);
FL_DRV_PART(fl_create_wq_cmd, ibv_cmd, ibv_create_wq, faultline_create_wq_req);
FL_DRV_PART(fl_create_srq, ibv_cmd, ibv_create_srq, faultline_create_srq_req);
FL_DRV_PART(fl_create_xsrq, ibv_cmd, ibv_create_xsrq, faultline_create_srq_req);
FL_DRV_PART(fl_modify_srq, ibv_cmd, ibv_modify_srq, faultline_resize_srq_req);
FL_DRV_PART(fl_create_tag_srq, ibv_cmd, ibv_create_xsrq, faultline_create_tm_srq_req);
FL_DRV_PART(fl_create_srq_resp, ibv_resp, ib_uverbs_create_srq_resp,
	    faultline_create_srq_resp);
FL_DRV_PART(fl_create_ah_resp, ibv_resp, ib_uverbs_create_ah_resp,
	    faultline_create_ah_resp);

#endif /* FAULTLINE_H */
