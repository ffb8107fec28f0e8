/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Differences between the kernels this driver builds on: 6.12, 7.2 and 7.3. Each
 * one stands here and nowhere else.
 */
#ifndef FAULTLINE_COMPAT_H
#define FAULTLINE_COMPAT_H

#include <linux/hmm.h>
#include <linux/mmu_notifier.h>
#include <linux/version.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

/*
 * 6.14: the core turns the link events of a netdev into port events itself.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define FAULTLINE_COMPAT_PORT_EVENTS
#endif

/*
 * 6.16: regions on demand keep page frame numbers, and are mapped for DMA one
 * by one.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define FAULTLINE_COMPAT_ODP_PFNS
#endif

/*
 * 7.x: callbacks for kernel and user CQs are separate, resize is for user CQs
 * only, a DMA handle may come with a registration, the callback for buffers that
 * move and a work queue have other names, counters are the driver's, and ethtool
 * has a callback for the number of receive rings.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
#define FAULTLINE_COMPAT_USER_CQ_OPS
#define FAULTLINE_COMPAT_DMAH
#define FAULTLINE_COMPAT_MOVE_NOTIFY	invalidate_mappings
#define FAULTLINE_COMPAT_UNBOUND_WQ	system_dfl_wq
/* Drivers allocate counters, and are told the port of a queue pair. */
#define FAULTLINE_COMPAT_COUNTER_PORT
#define FAULTLINE_COMPAT_RX_RING_COUNT

static inline struct ib_umem *faultline_umem_get(struct ib_device *device,
						 unsigned long addr,
						 size_t size, int access)
{
	return ib_umem_get_va(device, addr, size, access);
}
#else
#define FAULTLINE_COMPAT_MOVE_NOTIFY	move_notify
#define FAULTLINE_COMPAT_UNBOUND_WQ	system_unbound_wq

static inline struct ib_umem *faultline_umem_get(struct ib_device *device,
						 unsigned long addr,
						 size_t size, int access)
{
	return ib_umem_get(device, addr, size, access);
}
#endif

/*
 * Finds the pages of a range. -EBUSY: the range has been invalidated meanwhile.
 * 7.3: HMM takes the lock of the address space, and drops it for handlers that
 * need that (userfaultfd).
 */
static inline int faultline_hmm_walk(struct hmm_range *range)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0)
	return hmm_range_fault_unlocked_timeout(
		range, msecs_to_jiffies(HMM_RANGE_DEFAULT_TIMEOUT));
#else
	struct mm_struct *mm = range->notifier->mm;
	int err;

	range->notifier_seq = mmu_interval_read_begin(range->notifier);
	mmap_read_lock(mm);
	err = hmm_range_fault(range);
	mmap_read_unlock(mm);
	return err;
#endif
}

/*
 * Newer kernels read and write the driver's part of a request themselves. A
 * provider that is newer than the driver may send more, as long as that is
 * zero, and may take more.
 */
#ifndef ib_copy_validate_udata_in
static inline int faultline_udata_in(struct ib_udata *udata, void *req,
				     size_t size, size_t min_size)
{
	if (udata->inlen < min_size)
		return -EINVAL;
	if (udata->inlen > size &&
	    !ib_is_udata_cleared(udata, size, udata->inlen - size))
		return -EOPNOTSUPP;
	memset(req, 0, size);
	return ib_copy_from_udata(req, udata, min(size, udata->inlen));
}

#define ib_copy_validate_udata_in(udata, req, last)			\
	faultline_udata_in(udata, &(req), sizeof(req),			\
			   offsetofend(typeof(req), last))
#endif

#ifndef ib_respond_udata
#define ib_respond_udata(udata, resp)					\
	ib_copy_to_udata(udata, &(resp), min(sizeof(resp), (udata)->outlen))
#endif

#endif /* FAULTLINE_COMPAT_H */
