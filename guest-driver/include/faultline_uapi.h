/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/*
 * What the libibverbs provider and the kernel module say to each other in the
 * driver-private part of the uverbs commands. Host byte order, as everywhere
 * in uverbs; the device's own layouts are in faultline_abi.h.
 */
#ifndef FAULTLINE_UAPI_H
#define FAULTLINE_UAPI_H

#include <linux/types.h>

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

struct faultline_create_srq_req {
	__aligned_u64 buf_addr;
	__u8 log_depth;
	__u8 stride_shift;
	__u8 reserved[6];
};

struct faultline_create_srq_resp {
	__u32 srqn;
	__u32 reserved;
};

struct faultline_create_ah_resp {
	__u32 ahn;
	__u32 reserved;
};

#endif /* FAULTLINE_UAPI_H */
