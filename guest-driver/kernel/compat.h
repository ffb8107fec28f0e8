/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Differences between the kernels this driver builds on: 6.12, 7.2 and 7.3. Each
 * one stands here and nowhere else.
 */
#ifndef FAULTLINE_COMPAT_H
#define FAULTLINE_COMPAT_H

#include <linux/version.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

/*
 * 6.14: the core turns the link events of a netdev into port events itself.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define FAULTLINE_COMPAT_PORT_EVENTS
#endif

/*
 * 6.16: regions on demand keep page frame numbers, and are mapped for DMA one
 * by one. Where pages are huge the core finds its own in one place and releases
 * them in another: there none may be.
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

#endif /* FAULTLINE_COMPAT_H */
