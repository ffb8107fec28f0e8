/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Verbs objects. */
#ifndef FAULTLINE_IB_H
#define FAULTLINE_IB_H

#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "faultline_cmd.h"
#include "faultline_uapi.h"

/* The largest part of a ring; a multiple of all entries. */
#define FAULTLINE_PART_SHIFT	(PAGE_SHIFT + PAGE_ALLOC_COSTLY_ORDER)
#define FAULTLINE_PART_SIZE	((size_t)1 << FAULTLINE_PART_SHIFT)

/* No VLAN, in SET_GID and in paths of connections. */
#define FAULTLINE_NO_VLAN	0xffff

/* log2 of the number of bits of faultline_mr.early_answers. */
#define FAULTLINE_LOG_EARLY_ANSWERS	6

struct faultline_part {
	void *cpu;
	dma_addr_t dma;
};

/* A ring and its record, in memory of the kernel or of a process. */
struct faultline_buf {
	/* Kernel: coherent memory. */
	struct faultline_part *parts;
	size_t num_parts;
	size_t size;
	/* User: */
	struct ib_umem *umem;
	/* The parameters of the create command. */
	struct faultline_ring ring;
	/* The lists that ring.addr refers to; freed after the command. */
	__le64 *list;
	dma_addr_t list_dma;
	size_t list_size;
};

struct faultline_mr_watch;

enum faultline_mmap_kind {
	FAULTLINE_MMAP_DOORBELL,
	FAULTLINE_MMAP_KICK,
	/* A page of the kernel, read-only. */
	FAULTLINE_MMAP_COUNTERS,
	FAULTLINE_MMAP_DEVICE_MEMORY,
};

/* A range that a process may map. */
struct faultline_mmap_entry {
	struct rdma_user_mmap_entry rdma_entry;
	phys_addr_t phys;
	struct page *page;
	enum faultline_mmap_kind kind;
};

struct faultline_ucontext {
	struct ib_ucontext ibucontext;
	u32 uctx;
	struct rdma_user_mmap_entry *doorbell_entry;
	struct rdma_user_mmap_entry *kick_entry;
	/* Protects the list of counter pages and their `used` bitmaps. */
	struct mutex counters_lock;
	struct list_head counters;
};

struct faultline_pd {
	struct ib_pd ibpd;
	u32 pdn;
	/* 1: has or had a queue pair of a consumer in the kernel. */
	atomic_t of_consumer;
};

struct faultline_xrcd {
	struct ib_xrcd ibxrcd;
	u32 xrcdn;
};

struct faultline_ah {
	struct ib_ah ibah;
	struct faultline_ah_handle *handle;
};

struct faultline_mw {
	struct ib_mw ibmw;
};

struct faultline_mr {
	struct ib_mr ibmr;
	struct ib_umem *umem;
	int access;
	bool dma_buf;
	/* NULL: the region is not watched. */
	struct faultline_mr_watch *watch;

	/*
	 * For statistics only. Nanoseconds from reading a fault record to the
	 * answer: the sum and the longest; changes of a watched region that
	 * were reported, that waited for an answer, and that got none in time,
	 * and the sum of the waits.
	 */
	atomic64_t page_fault_ns;
	atomic64_t page_fault_max_ns;
	atomic64_t watch_events;
	atomic64_t lease_waits;
	atomic64_t lease_timeouts;
	atomic64_t lease_wait_ns;

	/* For fast registration: addresses of pages, for the device to read. */
	__le64 *list;
	dma_addr_t list_dma;
	u32 list_len;
	u32 list_max;

	/* The rest is for on-demand regions; locking: see faultline_odp.c. */
	bool on_demand;
	/* faultline_odp_detach() has begun: populate no further pages. */
	bool detaching;
	/* References of faults and prefetches; detaching waits for the last. */
	refcount_t users;
	struct completion unused;
	/* The share of the region's address space. */
	struct faultline_odp_share *share;
	/*
	 * Under faultline_odp.lock: the range in which the next fault begins if
	 * faults are sequential, the number of bytes to map beyond the message,
	 * the number of sequential faults before the next try to do so, and
	 * whether a worker faults in further pages.
	 */
	u64 readahead_start;
	u64 readahead_end;
	u64 readahead_window;
	unsigned int readahead_pause;
	bool prefaulting;
	/*
	 * A fault was answered together with a MAP that the device then has
	 * refused: the next fault is answered after its MAP.
	 */
	bool map_refused;
	/* Pages, by hash, with a fault that may be answered before its MAP. */
	DECLARE_BITMAP(early_answers, 1 << FAULTLINE_LOG_EARLY_ANSWERS);
	/*
	 * Children of an implicit region by address, and those without pages.
	 * The array's lock protects both; the mutex serializes creation.
	 */
	struct xarray children;
	struct list_head idle_children;
	unsigned int idle_count;
	struct mutex children_lock;
	struct delayed_work reap_children;
	atomic64_t page_faults;
	atomic64_t page_faults_handled;
	atomic64_t page_invalidations;
	atomic64_t page_prefetch;
	/* Pages that are mapped for DMA. For statistics only. */
	atomic64_t pages_present;
};

/* Supported access flags of regions; the device uses the same values. */
#define FAULTLINE_MR_ACCESS	(IB_ACCESS_LOCAL_WRITE |	\
				 IB_ACCESS_REMOTE_WRITE |	\
				 IB_ACCESS_REMOTE_READ |	\
				 IB_ACCESS_REMOTE_ATOMIC |	\
				 IB_ACCESS_MW_BIND |		\
				 IB_ZERO_BASED |		\
				 IB_ACCESS_FLUSH_GLOBAL |	\
				 IB_ACCESS_FLUSH_PERSISTENT)

/* State of faultline_map_run(), which writes entries of pinned regions. */
struct faultline_map {
	struct faultline_dev *dev;
	struct ib_umem *umem;
	u32 key;
	u8 page_shift;
	u64 perms;
	u64 iova;		/* of the first page collected */
	u64 first;		/* DMA address of that page */
	u64 count;		/* pages collected */
	bool contiguous;	/* DMA addresses are contiguous */
	__le64 *list;
	dma_addr_t list_dma;
	u32 list_len;
};

struct faultline_cq {
	struct ib_cq ibcq;
	struct faultline_res res;
	struct faultline_buf buf;
	u8 log_depth;
	bool user;
	/* Serializes the resize of a CQ of a process. */
	struct mutex resize_lock;

	/* The rest is for kernel CQs. Protects consumer and the lists. */
	spinlock_t lock;
	u32 consumer;
	struct list_head send_qps;	/* faultline_qp.send_cq_entry */
	struct list_head recv_qps;	/* faultline_qp.recv_cq_entry */
	/* Calls comp_handler once the device is dead. */
	struct work_struct notify_work;
};

/* A work queue of a kernel QP. */
struct faultline_wq {
	/* Serializes posting. */
	spinlock_t lock;
	struct faultline_buf buf;
	u8 log_depth;
	u8 stride_shift;
	u32 max_sge;
	/* Written by posting; read, with acquire, by polling. */
	u32 producer;
	/* Written by polling; read by posting. */
	u32 consumer;
	/* Of each request: the consumer's id, and the bytes of its buffers. */
	u64 *wr_id;
	u32 *room;
};

struct faultline_srq {
	struct ib_srq ibsrq;
	struct faultline_res res;
	struct faultline_wq wq;
	struct mutex resize_lock;
	bool user;
	/* Ring of tag list operations, for SRQs with tag matching. */
	struct faultline_buf ops;
	u8 ops_log_depth;
	/* Tags that no posted work request uses, and the others; under wq.lock. */
	u32 *free_tags;
	u32 num_free;
	unsigned long *posted_tags;
};

/* A work queue of a process. */
struct faultline_rwq {
	struct ib_wq ibwq;
	struct faultline_res res;
	struct faultline_buf buf;
};

/* An RSS indirection table of work queues of a process. */
struct faultline_rwq_ind_table {
	struct ib_rwq_ind_table ibtable;
};

struct faultline_qp {
	struct ib_qp ibqp;
	struct faultline_res res;
	struct faultline_wq sq;
	struct faultline_wq rq;
	u32 max_inline;
	bool user;
	bool sig_all;
	/* Serializes state changes. */
	struct mutex mutex;
	enum ib_qp_state state;
	/*
	 * For UD queue pairs of the kernel, under sq.lock: by ring index, the
	 * address handles that the device has not created yet; and the producer
	 * index of the last doorbell.
	 */
	struct faultline_ah_handle **pending_ahs;
	u32 doorbell_producer;
	struct list_head ah_wait_entry;
	struct list_head send_cq_entry;
	struct list_head recv_cq_entry;
	/* Of an iWARP adapter's queue pair of type RC. */
	struct faultline_conn *conn;
};

static inline struct faultline_ucontext *
to_fucontext(struct ib_ucontext *ibucontext)
{
	return container_of(ibucontext, struct faultline_ucontext, ibucontext);
}

static inline struct faultline_pd *to_fpd(struct ib_pd *ibpd)
{
	return container_of(ibpd, struct faultline_pd, ibpd);
}

static inline struct faultline_xrcd *to_fxrcd(struct ib_xrcd *ibxrcd)
{
	return container_of(ibxrcd, struct faultline_xrcd, ibxrcd);
}

static inline struct faultline_ah *to_fah(struct ib_ah *ibah)
{
	return container_of(ibah, struct faultline_ah, ibah);
}

static inline struct faultline_mr *to_fmr(struct ib_mr *ibmr)
{
	return container_of(ibmr, struct faultline_mr, ibmr);
}

static inline struct faultline_cq *to_fcq(struct ib_cq *ibcq)
{
	return container_of(ibcq, struct faultline_cq, ibcq);
}

static inline struct faultline_srq *to_fsrq(struct ib_srq *ibsrq)
{
	return container_of(ibsrq, struct faultline_srq, ibsrq);
}

static inline struct faultline_qp *to_fqp(struct ib_qp *ibqp)
{
	return container_of(ibqp, struct faultline_qp, ibqp);
}

static inline u32 faultline_wq_depth(const struct faultline_wq *wq)
{
	return BIT(wq->log_depth);
}

/* The address of an offset in a ring of the kernel. */
static inline void *faultline_buf_at(const struct faultline_buf *buf,
				     size_t offset)
{
	return buf->parts[offset >> FAULTLINE_PART_SHIFT].cpu +
	       (offset & (FAULTLINE_PART_SIZE - 1));
}

static inline void *faultline_wq_entry(const struct faultline_wq *wq, u32 index)
{
	index &= faultline_wq_depth(wq) - 1;
	return faultline_buf_at(&wq->buf, (size_t)index << wq->stride_shift);
}

static inline struct faultline_wq_record *
faultline_wq_record(const struct faultline_wq *wq)
{
	return faultline_buf_at(&wq->buf, (size_t)1 << (wq->log_depth +
							wq->stride_shift));
}

/* The user context of a request, NULL for the kernel. */
static inline struct faultline_ucontext *
faultline_udata_ucontext(struct ib_udata *udata)
{
	return rdma_udata_to_drv_context(udata, struct faultline_ucontext,
					 ibucontext);
}

static inline u32 faultline_udata_uctx(struct ib_udata *udata)
{
	struct faultline_ucontext *ctx = faultline_udata_ucontext(udata);

	return ctx ? ctx->uctx : 0;
}

/* faultline_buf.c */
int faultline_buf_alloc(struct faultline_dev *dev, struct faultline_buf *buf,
			u8 log_depth, u8 stride_shift);
int faultline_buf_pin(struct faultline_dev *dev, struct faultline_buf *buf,
		      u64 addr, u32 log_depth, u8 stride_shift, u32 entries);
void faultline_buf_created(struct faultline_dev *dev,
			   struct faultline_buf *buf);
void faultline_buf_free(struct faultline_dev *dev, struct faultline_buf *buf);
int faultline_wq_alloc(struct faultline_dev *dev, struct faultline_wq *wq,
		       u32 depth, u32 stride);
void faultline_wq_free(struct faultline_dev *dev, struct faultline_wq *wq);

/* faultline_verbs.c */
/* Writes the driver's part of a response; nothing for the kernel. */
#define faultline_respond(udata, resp)					\
	((udata) && (udata)->outlen ? ib_respond_udata(udata, resp) : 0)

enum ib_mtu faultline_active_mtu(struct faultline_dev *dev);
void faultline_av_fill(struct faultline_av *av,
		       const struct rdma_ah_attr *attr);

void faultline_ucontext_resp(struct faultline_ucontext *ctx,
			     struct faultline_alloc_ucontext_resp *resp);
struct rdma_user_mmap_entry *
faultline_mmap_insert_page(struct faultline_ucontext *ctx, struct page *page,
			   u64 *offset);

/* faultline_ah.c */
struct faultline_sq_wqe;

int faultline_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init_attr,
			struct ib_udata *udata);
int faultline_destroy_ah(struct ib_ah *ibah, u32 flags);
void faultline_ah_work(struct work_struct *work);
void faultline_ah_flush(struct faultline_dev *dev);
void faultline_ah_reference(struct faultline_qp *qp, u32 index,
			    struct faultline_sq_wqe *wqe, struct ib_ah *ibah);
bool faultline_ah_ready(struct faultline_qp *qp, u32 index);
void faultline_ah_reset(struct faultline_qp *qp);

/*
 * The error of a verb. Consumers in the kernel that use a dead device, because
 * its removal is still to come, get ENETDOWN: SUNRPC connects again after it,
 * while after EIO it fails the requests of programs.
 */
static inline int faultline_verb_error(struct faultline_dev *dev,
				       const struct ib_udata *udata, int err)
{
	return err && !udata && faultline_is_dead(dev) ? -ENETDOWN : err;
}

/* faultline_cq.c */
int faultline_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
			struct uverbs_attr_bundle *attrs);
int faultline_modify_cq(struct ib_cq *ibcq, u16 count, u16 period);
int faultline_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata);
int faultline_resize_cq(struct ib_cq *ibcq, unsigned int entries,
			struct ib_udata *udata);
int faultline_poll_cq(struct ib_cq *ibcq, int num_entries, struct ib_wc *wc);
int faultline_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags);
void faultline_cq_clean(struct faultline_cq *cq, u32 qpn,
			struct faultline_srq *srq);
void faultline_cq_notify_dead(struct faultline_cq *cq);
void faultline_cq_event(struct faultline_res *res, u8 kind);

/* faultline_qp.c */
int faultline_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr,
			struct ib_udata *udata);
int faultline_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
			struct ib_udata *udata);
int faultline_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		       struct ib_qp_init_attr *init_attr);
int faultline_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata);
struct faultline_qp *faultline_res_qp(struct faultline_res *res);
bool faultline_qp_of_consumer(struct faultline_res *res);

/* faultline_iwcm.c */
struct faultline_conn;

int faultline_conn_create(struct faultline_qp *qp);
void faultline_conn_stop(struct faultline_qp *qp, bool stop);
bool faultline_conn_stopped(const struct faultline_conn *conn);
void faultline_conn_destroy(struct faultline_qp *qp);
void faultline_conn_event(struct faultline_conn *conn, u8 kind);
void faultline_conn_death(struct faultline_conn *conn);
void faultline_conn_reset(struct faultline_conn *conn);
int faultline_conn_attr_mask(const struct ib_qp_attr *attr, int mask);

/* faultline_steering.c */
int faultline_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid);
int faultline_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid);
struct ib_flow *faultline_create_flow(struct ib_qp *ibqp,
				      struct ib_flow_attr *attr,
				      struct ib_udata *udata);
int faultline_destroy_flow(struct ib_flow *ibflow);

/* faultline_rss.c */
struct ib_wq *faultline_create_wq(struct ib_pd *ibpd,
				  struct ib_wq_init_attr *attr,
				  struct ib_udata *udata);
int faultline_modify_wq(struct ib_wq *ibwq, struct ib_wq_attr *attr, u32 mask,
			struct ib_udata *udata);
int faultline_destroy_wq(struct ib_wq *ibwq, struct ib_udata *udata);
int faultline_rwq_ind_table_create_hw(struct faultline_dev *dev, __le32 *list,
				      u8 log_size, u32 *table);
int faultline_create_rwq_ind_table(struct ib_rwq_ind_table *ibtable,
				   struct ib_rwq_ind_table_init_attr *attr,
				   struct ib_udata *udata);
int faultline_destroy_rwq_ind_table(struct ib_rwq_ind_table *ibtable);
int faultline_rss_qp_create_hw(struct faultline_dev *dev,
			       struct faultline_qp *qp,
			       const struct ib_qp_init_attr *attr,
			       struct ib_udata *udata, u32 *qpn);

/* faultline_post.c */
void faultline_sq_ring(struct faultline_qp *qp);
int faultline_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
			const struct ib_send_wr **bad_wr);
int faultline_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
			const struct ib_recv_wr **bad_wr);
int faultline_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			    const struct ib_recv_wr **bad_wr);

/* faultline_srq.c */
int faultline_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *attr,
			 struct ib_udata *udata);
int faultline_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
			 enum ib_srq_attr_mask mask, struct ib_udata *udata);
int faultline_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr);
int faultline_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata);
bool faultline_srq_complete(struct faultline_srq *srq, u32 tag, u64 *wr_id,
			    u32 *room);

/* faultline_mr.c */
struct ib_mr *faultline_get_dma_mr(struct ib_pd *ibpd, int access);
struct ib_mr *faultline_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length,
				    u64 virt_addr, int access,
				    struct ib_udata *udata);
int faultline_check_region(struct faultline_dev *dev, u64 length,
			   u64 virt_addr, int access);
struct ib_mr *faultline_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start,
				      u64 length, u64 virt_addr, int access,
				      struct ib_pd *ibpd,
				      struct ib_udata *udata);
int faultline_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata);
u8 faultline_mkey_variant(struct faultline_dev *dev);
struct ib_umem *faultline_pin(struct ib_device *ibdev, u64 start, u64 length,
			      u64 virt_addr, int access,
			      unsigned long *page_size);
int faultline_map_init(struct faultline_map *map, struct faultline_dev *dev,
		       struct ib_umem *umem, u32 key, u64 iova,
		       unsigned long page_size);
int faultline_map_run(struct faultline_map *map);
void faultline_map_done(struct faultline_map *map);
int faultline_mr_create_mkey(struct ib_pd *ibpd, struct faultline_mr *mr,
			     u64 length, u64 virt_addr, int access,
			     unsigned long page_size);
int faultline_create_dma_mkey(struct faultline_dev *dev, u32 pdn, u32 access,
			      u32 *key);

/* faultline_policy.c */
extern const struct uapi_definition faultline_policy_defs[];

/* faultline_dm.c */
extern const struct uapi_definition faultline_dm_defs[];
struct ib_dm *faultline_alloc_dm(struct ib_device *ibdev,
				 struct ib_ucontext *ibctx,
				 struct ib_dm_alloc_attr *attr,
				 struct uverbs_attr_bundle *attrs);
int faultline_dealloc_dm(struct ib_dm *ibdm, struct uverbs_attr_bundle *attrs);
void faultline_dm_unmapped(struct faultline_mmap_entry *entry);
struct ib_mr *faultline_reg_dm_mr(struct ib_pd *ibpd, struct ib_dm *ibdm,
				  struct ib_dm_mr_attr *attr,
				  struct uverbs_attr_bundle *attrs);

/* faultline_query.c */
extern const struct uapi_definition faultline_query_defs[];
int faultline_query_ucontext(struct ib_ucontext *ibctx,
			     struct uverbs_attr_bundle *attrs);

/* faultline_dmabuf.c */
struct ib_mr *faultline_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset,
					   u64 length, u64 virt_addr, int fd,
					   int access,
					   struct uverbs_attr_bundle *attrs);

/* faultline_keys.c */
struct faultline_reg_mr_wqe;

int faultline_alloc_mw(struct ib_mw *ibmw, struct ib_udata *udata);
int faultline_dealloc_mw(struct ib_mw *ibmw);
struct ib_mr *faultline_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type,
				 u32 max_num_sg);
int faultline_fast_dereg(struct faultline_mr *mr);
int faultline_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int nents,
			unsigned int *offset);
int faultline_fill_reg_mr(struct faultline_reg_mr_wqe *wqe,
			  const struct ib_reg_wr *wr);

/* faultline_mad.c */
int faultline_process_mad(struct ib_device *ibdev, int flags, u32 port,
			  const struct ib_wc *wc, const struct ib_grh *grh,
			  const struct ib_mad *in, struct ib_mad *out,
			  size_t *out_size, u16 *out_pkey_index);

/* faultline_stats.c */
extern const struct rdma_stat_desc faultline_stat_descs[];
extern const unsigned int faultline_num_counters;
int faultline_counters_create(struct faultline_dev *dev);
void faultline_counters_destroy(struct faultline_dev *dev);
int faultline_read_counters(struct faultline_dev *dev, u32 set, u64 *values);
struct rdma_hw_stats *faultline_alloc_hw_port_stats(struct ib_device *ibdev,
						    u32 port);
int faultline_get_hw_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
			   u32 port, int index);
struct rdma_hw_stats *
faultline_counter_alloc_stats(struct rdma_counter *counter);
int faultline_counter_update_stats(struct rdma_counter *counter);
int faultline_counter_dealloc(struct rdma_counter *counter);
int faultline_counter_bind_qp(struct rdma_counter *counter, struct ib_qp *ibqp);
int faultline_counter_unbind_qp(struct ib_qp *ibqp);
int faultline_modify_hw_stat(struct ib_device *ibdev, u32 port,
			     unsigned int index, bool enable);
void faultline_stats_fault(struct faultline_dev *dev, struct faultline_mr *mr,
			   u64 total, u64 wait, u64 map);
void faultline_stats_lease(struct faultline_mr *mr, u64 wait, bool answered);
int faultline_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr);

/* faultline_restrack.c */
int faultline_fill_res_qp(struct sk_buff *msg, struct ib_qp *ibqp);
int faultline_fill_res_cq(struct sk_buff *msg, struct ib_cq *ibcq);
int faultline_fill_res_srq(struct sk_buff *msg, struct ib_srq *ibsrq);
int faultline_fill_res_mr(struct sk_buff *msg, struct ib_mr *ibmr);

#endif /* FAULTLINE_IB_H */
