/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/**
 * DOC: Differences between kernels
 *
 * The driver builds on Linux 6.12, 7.2 and 7.3. Each difference between them
 * is handled in this header or in faultline_compat.c, and nowhere else. The
 * declarations of a kernel are probed, not derived from its version, since
 * distributions backport interfaces: compat_probe.sh compiles an expression
 * for each difference and writes FAULTLINE_HAVE_* to the generated header
 * compat_config.h. Macros of the kernel need no probe: #ifndef detects them.
 */
#ifndef FAULTLINE_COMPAT_H
#define FAULTLINE_COMPAT_H

#include <linux/dma-buf.h>
#include <linux/hmm.h>
#include <linux/mmu_notifier.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include <net/devlink.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "compat_config.h"

struct ethtool_rxnfc;

/* Returns true if the core derives port events from the netdev's events. */
static inline bool faultline_core_dispatches_port_events(void)
{
#ifdef FAULTLINE_HAVE_REPORT_PORT_EVENT
	return true;
#else
	return false;
#endif
}

/* Callback that the exporter of a dma-buf calls before it moves the buffer. */
#ifdef FAULTLINE_HAVE_INVALIDATE_MAPPINGS
#define FAULTLINE_MOVE_NOTIFY	invalidate_mappings
#else
#define FAULTLINE_MOVE_NOTIFY	move_notify
#endif

/* The workqueue for long work that need not run on the same CPU. */
#ifdef FAULTLINE_HAVE_SYSTEM_DFL_WQ
#define FAULTLINE_UNBOUND_WQ	system_dfl_wq
#else
#define FAULTLINE_UNBOUND_WQ	system_unbound_wq
#endif

/* Newer kernels have the periods of automatic recovery in the operations. */
static inline struct devlink_health_reporter *
faultline_reporter_create(struct devlink *devlink,
			  const struct devlink_health_reporter_ops *ops,
			  void *priv)
{
#ifdef FAULTLINE_HAVE_REPORTER_PERIODS
	return devlink_health_reporter_create(devlink, ops, priv);
#else
	return devlink_health_reporter_create(devlink, ops, 0, priv);
#endif
}

static inline struct ib_umem *faultline_umem_get(struct ib_device *device,
						 unsigned long addr,
						 size_t size, int access)
{
#ifdef FAULTLINE_HAVE_UMEM_GET_VA
	return ib_umem_get_va(device, addr, size, access);
#else
	return ib_umem_get(device, addr, size, access);
#endif
}

#ifdef CONFIG_INFINIBAND_ON_DEMAND_PAGING
/*
 * Finds the pages of a range. Returns -EBUSY if the range has been invalidated
 * meanwhile. Newer kernels take the mmap_lock themselves, and release it for
 * handlers that need that (userfaultfd).
 */
static inline int faultline_hmm_walk(struct hmm_range *range)
{
#ifdef FAULTLINE_HAVE_HMM_UNLOCKED
	unsigned long timeout = msecs_to_jiffies(HMM_RANGE_DEFAULT_TIMEOUT);

	return hmm_range_fault_unlocked_timeout(range, timeout);
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

/* faultline_compat.c */
bool faultline_odp_dma_map(struct device *dma_dev, struct ib_umem_odp *odp,
			   size_t index, unsigned long pfn, bool *write,
			   dma_addr_t *addr);
bool faultline_odp_any_mapped(struct ib_umem_odp *odp, u64 start, u64 end);
#endif

/*
 * Newer kernels copy the driver's part of a request themselves. A provider
 * that is newer than the driver may send a longer request if the rest is zero,
 * and may expect a longer answer.
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
static inline int faultline_udata_out(struct ib_udata *udata, void *resp,
				      size_t size)
{
	if (udata->outlen > size &&
	    clear_user(udata->outbuf + size, udata->outlen - size))
		return -EFAULT;
	return ib_copy_to_udata(udata, resp, min(size, udata->outlen));
}

#define ib_respond_udata(udata, resp)					\
	faultline_udata_out(udata, &(resp), sizeof(resp))
#endif

#ifndef FAULTLINE_HAVE_NO_UDATA_IO
/* For verbs whose request has no data for the driver. */
static inline int ib_is_udata_in_empty(struct ib_udata *udata)
{
	if (udata && udata->inlen &&
	    !ib_is_udata_cleared(udata, 0, udata->inlen))
		return -EOPNOTSUPP;
	return 0;
}

/* For verbs whose response has no data of the driver. */
static inline int ib_respond_empty_udata(struct ib_udata *udata)
{
	if (udata && udata->outlen && clear_user(udata->outbuf, udata->outlen))
		return -EFAULT;
	return 0;
}

/* For verbs with neither. */
static inline int ib_no_udata_io(struct ib_udata *udata)
{
	return ib_is_udata_in_empty(udata) ?: ib_respond_empty_udata(udata);
}
#endif

/* faultline_compat.c */
extern const struct ib_device_ops faultline_compat_ops;

/* On older kernels struct ethtool_rxnfc has these fields. */
#ifndef FAULTLINE_HAVE_RXFH_FIELDS
struct ethtool_rxfh_fields {
	u32 data;
	u32 flow_type;
};
#endif

/* Initializers in struct ethtool_ops. */
int faultline_compat_get_rxnfc(struct net_device *netdev,
			       struct ethtool_rxnfc *info, u32 *rule_locs);
#if !defined(FAULTLINE_HAVE_RXFH_FIELDS)
#define FAULTLINE_COMPAT_ETHTOOL_OPS					\
	.get_rxnfc = faultline_compat_get_rxnfc
#elif !defined(FAULTLINE_HAVE_RX_RING_COUNT)
#define FAULTLINE_COMPAT_ETHTOOL_OPS					\
	.get_rxnfc = faultline_compat_get_rxnfc,			\
	.get_rxfh_fields = faultline_get_rxfh_fields
#else
#define FAULTLINE_COMPAT_ETHTOOL_OPS					\
	.get_rx_ring_count = faultline_get_rx_ring_count,		\
	.get_rxfh_fields = faultline_get_rxfh_fields
#endif

#endif /* FAULTLINE_COMPAT_H */
