/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/*
 * The interface of libibverbs provider and kernel module: the driver-private
 * part of the uverbs commands. Host byte order, as everywhere in uverbs; the
 * device's own layouts are in faultline_abi.h.
 */
#ifndef FAULTLINE_UAPI_H
#define FAULTLINE_UAPI_H

#include <linux/types.h>
#include <rdma/ib_user_ioctl_cmds.h>

/* struct ib_device_ops.uverbs_abi_ver */
#define FAULTLINE_UVERBS_ABI_VERSION 1

struct faultline_alloc_ucontext_resp {
	/* mmap offsets of the doorbell page and of the kick page */
	__aligned_u64 doorbell_offset;
	__aligned_u64 kick_offset;
	__u32 abi_version;	/* FAULTLINE_ABI_VERSION of the device */
	__u32 max_qp_wr;
	__u32 max_srq_wr;
	__u32 max_cqe;
	__u32 max_sge;
	__u32 max_inline;
	__u32 max_tso;
	__u32 reserved;
};

struct faultline_alloc_pd_resp {
	__u32 pdn;
	__u32 reserved;
};

/*
 * Buffers below are user addresses, page aligned, of a ring of
 * 2^(log_depth + stride_shift) bytes followed by its 64-byte record. The
 * kernel registers ring and record, rounded up to pages.
 */
struct faultline_create_cq_req {
	__aligned_u64 buf_addr;
	__u32 log_depth;	/* entries of 64 bytes */
	__u32 reserved;
};

struct faultline_create_cq_resp {
	__u32 cqn;
	__u32 reserved;
};

struct faultline_resize_cq_req {
	__aligned_u64 buf_addr;
	__u32 log_depth;
	__u32 consumer;		/* consumer index at which polling stopped */
};

struct faultline_create_qp_req {
	__aligned_u64 sq_addr;
	__aligned_u64 rq_addr;	/* 0 with an SRQ */
	__u8 sq_log_depth;
	__u8 sq_stride_shift;
	__u8 rq_log_depth;
	__u8 rq_stride_shift;
	__u32 reserved;
};

struct faultline_create_qp_resp {
	__u32 qpn;
	__u32 reserved;
};

/* An RSS queue pair, which distributes frames by an indirection table. */
struct faultline_create_rss_qp_req {
	__aligned_u64 hash_fields;	/* enum ibv_rx_hash_fields */
	__u8 hash_function;		/* enum ibv_rx_hash_function_flags */
	__u8 key_len;
	__u8 reserved[6];
	__u8 key[40];
};

/* The only hash function. */
#define FAULTLINE_RSS_TOEPLITZ 1

struct faultline_create_wq_req {
	__aligned_u64 buf_addr;
	__u8 log_depth;
	__u8 stride_shift;
	__u8 reserved[6];
};

struct faultline_create_srq_req {
	__aligned_u64 buf_addr;
	__u8 log_depth;
	__u8 stride_shift;
	__u8 reserved[6];
};

/* Of an SRQ with tag matching: entries of 2^7 bytes. */
struct faultline_create_tm_srq_req {
	struct faultline_create_srq_req srq;
	__aligned_u64 ops_addr;
	__u8 ops_log_depth;
	__u8 reserved[7];
};

struct faultline_create_srq_resp {
	__u32 srqn;
	__u32 reserved;
};

/* Behind the core's part of MODIFY_SRQ, with IB_SRQ_MAX_WR. */
struct faultline_resize_srq_req {
	__aligned_u64 buf_addr;
	__u8 log_depth;
	__u8 reserved[7];
};

struct faultline_create_ah_resp {
	__u32 ahn;
	__u32 reserved;
};

/*
 * Behind the core's part of REG_MR, for a region whose mapping is watched.
 * Nothing there: a region that is pinned and that is all.
 */
enum faultline_mr_mode {
	/* The device keeps the old pages until the region is restored. */
	FAULTLINE_MR_KEEP = 1,
	/* The device loses the pages before the change is made. */
	FAULTLINE_MR_FENCE = 2,
	/* As FENCE, but before that the change waits for the process. */
	FAULTLINE_MR_LEASE = 3,
};

#define FAULTLINE_MAX_LEASE_MS	10000

struct faultline_reg_mr_req {
	__aligned_u64 cookie;
	__s32 events_fd;
	__u32 mode;		/* enum faultline_mr_mode */
	__u32 lease_ms;		/* LEASE: 1 ... FAULTLINE_MAX_LEASE_MS */
	__u32 reserved;
};

/* Device memory, behind the core's part of DM_ALLOC and in DM_QUERY. */
struct faultline_dm_resp {
	__aligned_u64 mmap_offset;
	__aligned_u64 length;		/* as asked for */
	__aligned_u64 mmap_length;	/* whole pages */
};

/* Objects, methods and attributes of the driver's own. */
enum faultline_objects {
	FAULTLINE_OBJECT_EVENTS = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_OBJECT_WATCH,
};

enum faultline_events_methods {
	FAULTLINE_METHOD_EVENTS_CREATE = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_events_create_attrs {
	FAULTLINE_ATTR_EVENTS_CREATE_FD = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_ATTR_EVENTS_CREATE_DEPTH,	/* __u32 */
};

enum faultline_watch_methods {
	FAULTLINE_METHOD_WATCH_CREATE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_METHOD_WATCH_DESTROY,
	FAULTLINE_METHOD_WATCH_SYNC,
};

enum faultline_watch_create_attrs {
	FAULTLINE_ATTR_WATCH_CREATE_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_ATTR_WATCH_CREATE_EVENTS,
	FAULTLINE_ATTR_WATCH_CREATE_REQ,	/* faultline_create_watch_req */
	FAULTLINE_ATTR_WATCH_CREATE_RESP,	/* faultline_create_watch_resp */
};

enum faultline_watch_destroy_attrs {
	FAULTLINE_ATTR_WATCH_DESTROY_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_watch_sync_attrs {
	FAULTLINE_ATTR_WATCH_SYNC_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_ATTR_WATCH_SYNC_VALUE,	/* __u64 */
};

/* Of the core's UVERBS_OBJECT_MR. */
enum faultline_mr_methods {
	FAULTLINE_METHOD_MR_RESTORE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_METHOD_MR_RELEASE,
};

enum faultline_mr_restore_attrs {
	FAULTLINE_ATTR_MR_RESTORE_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_mr_release_attrs {
	FAULTLINE_ATTR_MR_RELEASE_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
};

/* Of the core's UVERBS_OBJECT_QP. The values are FAULTLINE_FAULT_POLICY_*. */
enum faultline_qp_methods {
	FAULTLINE_METHOD_QP_SET_POLICY = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_METHOD_QP_QUERY_POLICY,
};

enum faultline_qp_set_policy_attrs {
	FAULTLINE_ATTR_QP_SET_POLICY_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_ATTR_QP_SET_POLICY_VALUE,	/* __u32 */
};

enum faultline_qp_query_policy_attrs {
	FAULTLINE_ATTR_QP_QUERY_POLICY_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_ATTR_QP_QUERY_POLICY_VALUE,	/* __u32 */
};

/* Of the core's UVERBS_OBJECT_DM. */
enum faultline_dm_alloc_attrs {
	FAULTLINE_ATTR_DM_ALLOC_RESP = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_dm_methods {
	FAULTLINE_METHOD_DM_QUERY = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_dm_query_attrs {
	FAULTLINE_ATTR_DM_QUERY_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_ATTR_DM_QUERY_RESP,	/* faultline_dm_resp */
};

/* Of the core's UVERBS_OBJECT_PD. */
enum faultline_pd_methods {
	FAULTLINE_METHOD_PD_QUERY = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_pd_query_attrs {
	FAULTLINE_ATTR_PD_QUERY_HANDLE = (1U << UVERBS_ID_NS_SHIFT),
	FAULTLINE_ATTR_PD_QUERY_RESP,	/* faultline_alloc_pd_resp */
};

/* Of the core's UVERBS_OBJECT_DEVICE. */
enum faultline_query_context_attrs {
	/* faultline_alloc_ucontext_resp */
	FAULTLINE_ATTR_QUERY_CONTEXT_RESP = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_device_methods {
	FAULTLINE_METHOD_QUERY_CLOCK = (1U << UVERBS_ID_NS_SHIFT),
};

enum faultline_query_clock_attrs {
	/* __u64, nanoseconds */
	FAULTLINE_ATTR_QUERY_CLOCK_VALUE = (1U << UVERBS_ID_NS_SHIFT),
};

struct faultline_create_watch_req {
	__aligned_u64 start;
	__aligned_u64 length;
	__aligned_u64 cookie;
};

struct faultline_create_watch_resp {
	/* mmap offset of a page of counters, read-only, and where in it */
	__aligned_u64 page_offset;
	__u32 index;		/* of a __u64 */
	__u32 reserved;
};

#define FAULTLINE_MAX_EVENTS_DEPTH	65536

enum faultline_event_type {
	/* A mapping in the range of a watch changes or has changed. */
	FAULTLINE_EVENT_RANGE = 1,
	/* The same below a watched region. */
	FAULTLINE_EVENT_MR = 2,
	/* The same, and the change waits for RESTORE or RELEASE. */
	FAULTLINE_EVENT_LEASE = 3,
	/* Events have been lost: anything may have changed. */
	FAULTLINE_EVENT_OVERFLOW = 4,
};

enum faultline_event_reason {
	FAULTLINE_REASON_UNMAP = 1,	/* munmap, mremap, mmap over it */
	FAULTLINE_REASON_CLEAR = 2,	/* pages go: truncate, madvise, COW */
	FAULTLINE_REASON_PROTECTION = 3,	/* mprotect */
	FAULTLINE_REASON_EXIT = 4,	/* the address space ends */
};

/* Reads of the event descriptor return whole events, at least one. */
struct faultline_event {
	__aligned_u64 start;
	__aligned_u64 end;
	__aligned_u64 cookie;
	__u32 type;		/* enum faultline_event_type */
	__u32 reason;		/* enum faultline_event_reason */
};

#endif /* FAULTLINE_UAPI_H */
