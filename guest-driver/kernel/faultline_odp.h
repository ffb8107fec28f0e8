/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* On-demand regions; see faultline_odp.c for the files and the lock order. */
#ifndef FAULTLINE_ODP_H
#define FAULTLINE_ODP_H

#include <linux/hmm.h>

#include <rdma/ib_umem_odp.h>

#include "faultline_cmd.h"
#include "faultline_ib.h"

/* Page faults that are served at the same time. */
#define FAULTLINE_FAULT_WORKERS	16
/* Page faults of one user (all processes) that are served at the same time. */
#define FAULTLINE_USER_WORKERS	12
#define FAULTLINE_PAGE_LIST_LEN	(PAGE_SIZE / sizeof(__le64))

/* HMM's result for a range, and a page of entries for the device to read. */
struct faultline_page_list {
	__le64 *entries;
	dma_addr_t dma;
	unsigned long *pfns;
	/* The MAP that reads `entries`, while `is_posted` is set. */
	struct faultline_posted map;
	bool is_posted;
	/* Set when a present page is found; cleared by the user. */
	bool has_found;
	/*
	 * The fault to answer together with the MAP of its last page, or NULL,
	 * and the end of the demanded range, an address of the process.
	 */
	struct faultline_fault *fault;
	u64 fault_end;
	/* In faultline_odp.free_lists, if it is one of those for faults. */
	struct list_head free;
};

/* A page fault of the device. */
struct faultline_fault {
	struct work_struct work;
	struct faultline_dev *dev;
	/* In faultline_odp.free_faults or faultline_odp_share.waiting. */
	struct list_head link;
	/* When the record was read. */
	u64 read_ns;
	u64 token;
	u64 va;
	u64 bytes;
	u64 hint;
	u32 key;
	bool write;
	bool is_answered;
	/* When a worker began to serve it. */
	u64 begin_ns;
};

/* The fault workers of one user. All under faultline_odp.lock. */
struct faultline_odp_user {
	struct list_head link;
	kuid_t uid;
	unsigned int shares;
	/* Faults that are served. */
	unsigned int active;
};

/* The fault workers of one address space. All under faultline_odp.lock. */
struct faultline_odp_share {
	struct list_head link;
	/* Only compared; NULL for the kernel. */
	struct mm_struct *mm;
	struct faultline_odp_user *user;
	/* Attached regions. */
	unsigned int regions;
	/* Faults that are served. */
	unsigned int active;
	/* Answered faults whose workers fault in further pages. */
	unsigned int prefaulting;
	/* Queued prefetches; not under the lock. */
	atomic_t prefetches;
	/* Faults that wait for a worker. */
	struct list_head waiting;
	/* In faultline_odp.blocked_shares while faults wait. */
	struct list_head blocked;
};

struct faultline_odp {
	/* Serves page faults only. */
	struct workqueue_struct *wq;
	struct workqueue_struct *prefetch_wq;
	/* Taken in interrupts. Protects the following, up to list_freed. */
	spinlock_t lock;
	struct list_head shares;
	struct list_head users;
	/* Shares with faults that wait. */
	struct list_head blocked_shares;
	/* Faults that are served. */
	unsigned int active;
	struct list_head free_faults;
	struct list_head free_lists;
	wait_queue_head_t list_freed;
	/* All faults and all page lists for faults; constant. */
	struct faultline_fault *faults;
	struct faultline_page_list lists[FAULTLINE_FAULT_WORKERS];
	/* Attached regions by index of their key. */
	struct xarray mrs;
};

#ifdef CONFIG_INFINIBAND_ON_DEMAND_PAGING
/* faultline_odp.c */
extern const struct mmu_interval_notifier_ops faultline_odp_mn_ops;
int faultline_odp_create(struct faultline_dev *dev);
void faultline_odp_destroy(struct faultline_dev *dev);
void faultline_odp_caps(const struct faultline_dev *dev,
			struct ib_odp_caps *caps);
void faultline_odp_init(struct faultline_mr *mr);
struct ib_umem *faultline_odp_umem(struct ib_device *ibdev, u64 start,
				   u64 length, u64 iova, int access);
void faultline_odp_release(struct faultline_mr *mr, struct ib_umem *umem);
int faultline_odp_attach(struct faultline_mr *mr);
void faultline_odp_detach(struct faultline_mr *mr);
struct faultline_mr *faultline_odp_mr_get(struct faultline_dev *dev, u32 key);
void faultline_odp_mr_put(struct faultline_mr *mr);
u64 faultline_odp_iova(const struct faultline_mr *mr, u64 addr);
int faultline_odp_range(const struct faultline_mr *mr, u64 iova, u64 length,
			u64 *addr, u64 *end);

/* faultline_odp_pages.c */
struct faultline_page_list *faultline_page_list_get(struct faultline_odp *odp);
void faultline_page_list_put(struct faultline_odp *odp,
			     struct faultline_page_list *list);
int faultline_page_list_alloc(struct faultline_dev *dev,
			      struct faultline_page_list *list);
void faultline_page_list_free(struct faultline_dev *dev,
			      struct faultline_page_list *list);
int faultline_odp_map_umem(struct faultline_mr *mr, struct ib_umem_odp *odp,
			   struct faultline_page_list *list, u64 addr, u64 end,
			   bool write, bool fault);
int faultline_odp_populate(struct faultline_mr *mr,
			   struct faultline_page_list *list, u64 addr, u64 end,
			   bool write, bool fault);

/* faultline_odp_fault.c; faultline_odp_fault() is in faultline.h */
int faultline_odp_faults_alloc(struct faultline_dev *dev,
			       struct faultline_odp *odp);
void faultline_odp_faults_free(struct faultline_odp *odp);
struct faultline_tq_cmd faultline_fault_answer(struct faultline_mr *mr,
					       struct faultline_fault *fault,
					       int err);

/* faultline_odp_share.c */
struct faultline_odp_share *
faultline_odp_share_get(struct faultline_odp *odp, struct mm_struct *mm);
void faultline_odp_share_put(struct faultline_odp *odp,
			     struct faultline_odp_share *share, u32 key);
bool faultline_odp_share_begin(struct faultline_odp *odp,
			       struct faultline_odp_share *share,
			       struct faultline_fault *fault);
void faultline_odp_share_end(struct faultline_odp *odp,
			     struct faultline_odp_share *served);

/* faultline_odp_implicit.c */
void faultline_odp_init_implicit(struct faultline_mr *mr);
void faultline_odp_free_children(struct faultline_mr *mr);
void faultline_odp_child_emptied(struct faultline_mr *mr,
				 struct ib_umem_odp *odp);
int faultline_odp_populate_implicit(struct faultline_mr *mr,
				    struct faultline_page_list *list, u64 addr,
				    u64 end, bool write, bool fault);

/* faultline_odp_prefetch.c */
int faultline_advise_mr(struct ib_pd *pd,
			enum ib_uverbs_advise_mr_advice advice, u32 flags,
			struct ib_sge *sg_list, u32 num_sge,
			struct uverbs_attr_bundle *attrs);

#else
/*
 * dev->odp stays NULL. No key has IB_ACCESS_ON_DEMAND, so the device raises no
 * page faults.
 */
static inline int faultline_odp_create(struct faultline_dev *dev)
{
	return 0;
}

static inline void faultline_odp_destroy(struct faultline_dev *dev)
{
}

static inline void faultline_odp_caps(const struct faultline_dev *dev,
				      struct ib_odp_caps *caps)
{
}

static inline void faultline_odp_init(struct faultline_mr *mr)
{
}

static inline struct ib_umem *faultline_odp_umem(struct ib_device *ibdev,
						 u64 start, u64 length,
						 u64 iova, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static inline void faultline_odp_release(struct faultline_mr *mr,
					 struct ib_umem *umem)
{
}

static inline int faultline_odp_attach(struct faultline_mr *mr)
{
	return -EOPNOTSUPP;
}

static inline void faultline_odp_detach(struct faultline_mr *mr)
{
}

static inline int faultline_advise_mr(struct ib_pd *pd,
				      enum ib_uverbs_advise_mr_advice advice,
				      u32 flags, struct ib_sge *sg_list,
				      u32 num_sge,
				      struct uverbs_attr_bundle *attrs)
{
	return -EOPNOTSUPP;
}
#endif

/* faultline_dmabuf.c */
int faultline_dmabuf_map(struct faultline_mr *mr);
void faultline_dmabuf_unmap(struct faultline_mr *mr);

#endif /* FAULTLINE_ODP_H */
