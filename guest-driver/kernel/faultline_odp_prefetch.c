// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Prefetch of on-demand regions
 *
 * ibv_advise_mr() maps pages before they are accessed: all of them, or (with
 * NO_FAULT) only those that are present. With IBV_ADVISE_MR_FLAG_FLUSH the
 * caller does the work. Without it a work item does, unless the address space
 * has FAULTLINE_MAX_PREFETCHES queued: then the caller does it, since pages
 * that never arrive must not occupy all workers.
 *
 * Locking: no lock is held. A reference on each region keeps it attached;
 * faultline_odp_share.prefetches is atomic, and the first region's reference
 * keeps the share. Regions that are being detached end the request early.
 *
 * Everything runs in process context: in the caller, or in a worker of
 * faultline_odp.prefetch_wq.
 */
#include <linux/slab.h>

#include "faultline_trace.h"

/* Queued prefetches of one address space. */
#define FAULTLINE_MAX_PREFETCHES	4

struct faultline_prefetch {
	struct work_struct work;
	struct faultline_dev *dev;
	/* Set while the request is queued. Released before the region. */
	struct faultline_odp_share *share;
	struct faultline_page_list list;
	enum ib_uverbs_advise_mr_advice advice;
	u32 count;
	struct {
		struct faultline_mr *mr;
		u64 addr;
		u64 end;
	} parts[] __counted_by(count);
};

/* Returns a region that the request may prefetch, with a reference on it. */
static struct faultline_mr *
faultline_prefetchable(struct ib_pd *pd, enum ib_uverbs_advise_mr_advice advice,
		       u32 lkey)
{
	struct faultline_mr *mr = faultline_odp_mr_get(to_fdev(pd->device),
						       lkey);

	if (!mr)
		return ERR_PTR(-ENOENT);
	if (mr->ibmr.pd != pd ||
	    (advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE &&
	     !mr->umem->writable)) {
		faultline_odp_mr_put(mr);
		return ERR_PTR(-EPERM);
	}
	return mr;
}

static int faultline_prefetch_run(struct faultline_prefetch *prefetch)
{
	bool write = prefetch->advice ==
		     IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	bool fault = prefetch->advice !=
		     IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
	int err = 0;
	u32 i;

	for (i = 0; i < prefetch->count && err >= 0; i++) {
		struct faultline_mr *mr = prefetch->parts[i].mr;

		err = faultline_odp_populate(mr, &prefetch->list,
					     prefetch->parts[i].addr,
					     prefetch->parts[i].end, write,
					     fault);
		atomic64_inc(&mr->page_prefetch);
		trace_faultline_prefetch(prefetch->dev, mr->ibmr.lkey,
					 faultline_odp_iova(mr, prefetch->parts[i].addr),
					 prefetch->parts[i].end -
						 prefetch->parts[i].addr,
					 prefetch->advice, err);
		/*
		 * Deregistration waits for this request. The first region's
		 * reference keeps the share, so it is dropped last.
		 */
		if (READ_ONCE(prefetch->parts[0].mr->detaching))
			break;
		if (i) {
			prefetch->parts[i].mr = NULL;
			faultline_odp_mr_put(mr);
		}
	}
	return min(err, 0);
}

static void faultline_prefetch_free(struct faultline_prefetch *prefetch)
{
	u32 i;

	if (prefetch->share)
		atomic_dec(&prefetch->share->prefetches);
	for (i = 0; i < prefetch->count; i++)
		if (prefetch->parts[i].mr)
			faultline_odp_mr_put(prefetch->parts[i].mr);
	faultline_page_list_free(prefetch->dev, &prefetch->list);
	kvfree(prefetch);
}

static void faultline_prefetch_work(struct work_struct *work)
{
	struct faultline_prefetch *prefetch =
		container_of(work, struct faultline_prefetch, work);

	faultline_prefetch_run(prefetch);
	faultline_prefetch_free(prefetch);
}

/* Returns false if the caller must run the request itself. */
static bool faultline_prefetch_queue(struct faultline_prefetch *prefetch)
{
	struct faultline_odp_share *share;

	if (!prefetch->count)
		return false;
	share = prefetch->parts[0].mr->share;
	if (atomic_inc_return(&share->prefetches) > FAULTLINE_MAX_PREFETCHES) {
		atomic_dec(&share->prefetches);
		return false;
	}
	prefetch->share = share;
	queue_work(prefetch->dev->odp->prefetch_wq, &prefetch->work);
	return true;
}

static int faultline_prefetch_add(struct faultline_prefetch *prefetch,
				  struct ib_pd *pd, const struct ib_sge *sge,
				  u32 index)
{
	struct faultline_mr *mr;
	u64 iova = sge->addr;

	mr = faultline_prefetchable(pd, prefetch->advice, sge->lkey);
	if (IS_ERR(mr))
		return PTR_ERR(mr);
	prefetch->parts[index].mr = mr;
	if (mr->access & IB_ZERO_BASED)
		iova += mr->ibmr.iova;
	return faultline_odp_range(mr, iova, sge->length,
				   &prefetch->parts[index].addr,
				   &prefetch->parts[index].end);
}

static bool faultline_prefetch_supported(const struct faultline_dev *dev,
					 enum ib_uverbs_advise_mr_advice advice,
					 u32 flags)
{
	if (!dev->odp || flags & ~IB_UVERBS_ADVISE_MR_FLAG_FLUSH)
		return false;
	return advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH ||
	       advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE ||
	       advice == IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
}

int faultline_advise_mr(struct ib_pd *pd,
			enum ib_uverbs_advise_mr_advice advice, u32 flags,
			struct ib_sge *sg_list, u32 num_sge,
			struct uverbs_attr_bundle *attrs)
{
	struct faultline_dev *dev = to_fdev(pd->device);
	bool flush = flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH;
	struct faultline_prefetch *prefetch;
	int err = 0;
	u32 i;

	if (!faultline_prefetch_supported(dev, advice, flags))
		return -EOPNOTSUPP;
	prefetch = kvzalloc(struct_size(prefetch, parts, num_sge),
			    GFP_KERNEL_ACCOUNT);
	if (!prefetch)
		return -ENOMEM;
	prefetch->dev = dev;
	prefetch->advice = advice;
	prefetch->count = num_sge;
	INIT_WORK(&prefetch->work, faultline_prefetch_work);
	err = faultline_page_list_alloc(dev, &prefetch->list);
	for (i = 0; !err && i < num_sge; i++)
		err = faultline_prefetch_add(prefetch, pd, &sg_list[i], i);
	if (err)
		goto free;
	if (!flush && faultline_prefetch_queue(prefetch))
		return 0;
	err = faultline_prefetch_run(prefetch);
	/* Asynchronous requests report no errors of pages. */
	if (!flush)
		err = 0;
free:
	faultline_prefetch_free(prefetch);
	return err;
}
