/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/**
 * DOC: Tracepoints
 *
 * Events of on-demand paging: faultline_fault (record of the device read),
 * faultline_serve (pages mapped or refused), faultline_resume (answer to the
 * device), faultline_invalidate (entries removed), faultline_prefetch
 * (ibv_advise_mr()) and faultline_lease (change of a watched region). The token
 * of a page fault is that of the device's own records, which name the same
 * faults. Addresses are I/O virtual addresses of the region, except for those
 * of faultline_lease, which are addresses of the process.
 *
 * faultline_fault runs in interrupt context, all others in process context.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM faultline

#if !defined(FAULTLINE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define FAULTLINE_TRACE_H

#include <linux/tracepoint.h>

#include "faultline_odp.h"
#include "faultline_watch.h"

TRACE_EVENT(faultline_fault,
	TP_PROTO(const struct faultline_dev *dev,
		 const struct faultline_eqe *eqe),
	TP_ARGS(dev, eqe),
	TP_STRUCT__entry(
		__string(device, pci_name(dev->pdev))
		__field(u64, token)
		__field(u64, va)
		__field(u32, bytes)
		__field(u32, qpn)
		__field(u32, key)
		__field(bool, write)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->token = le64_to_cpu(eqe->token);
		__entry->va = le64_to_cpu(eqe->va);
		__entry->bytes = le32_to_cpu(eqe->bytes);
		__entry->qpn = le32_to_cpu(eqe->object);
		__entry->key = le32_to_cpu(eqe->key);
		__entry->write = le32_to_cpu(eqe->fault_flags) &
				 FAULTLINE_FAULT_WRITE;
	),
	TP_printk("%s token=%#llx qpn=%u key=%#x va=%#llx bytes=%u write=%d",
		  __get_str(device), __entry->token, __entry->qpn,
		  __entry->key, __entry->va, __entry->bytes, __entry->write)
);

TRACE_EVENT(faultline_serve,
	TP_PROTO(const struct faultline_dev *dev,
		 const struct faultline_fault *fault, int result),
	TP_ARGS(dev, fault, result),
	TP_STRUCT__entry(
		__string(device, pci_name(dev->pdev))
		__field(u64, token)
		__field(u64, va)
		__field(u64, pages)
		__field(u32, key)
		__field(int, result)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->token = fault->token;
		__entry->va = fault->va;
		__entry->pages = DIV_ROUND_UP_ULL((fault->va & ~PAGE_MASK) +
						  fault->bytes, PAGE_SIZE);
		__entry->key = fault->key;
		__entry->result = result;
	),
	TP_printk("%s token=%#llx key=%#x va=%#llx pages=%llu result=%d",
		  __get_str(device), __entry->token, __entry->key,
		  __entry->va, __entry->pages, __entry->result)
);

TRACE_EVENT(faultline_resume,
	TP_PROTO(const struct faultline_dev *dev, u64 token, u16 status,
		 const struct faultline_fault_times *times),
	TP_ARGS(dev, token, status, times),
	TP_STRUCT__entry(
		__string(device, pci_name(dev->pdev))
		__field(u64, token)
		__field(u32, wait_ns)
		__field(u32, map_ns)
		__field(u32, post_ns)
		__field(u16, status)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->token = token;
		__entry->wait_ns = times->wait_ns;
		__entry->map_ns = times->map_ns;
		__entry->post_ns = times->post_ns;
		__entry->status = status;
	),
	TP_printk("%s token=%#llx status=%u wait_ns=%u map_ns=%u post_ns=%u",
		  __get_str(device), __entry->token, __entry->status,
		  __entry->wait_ns, __entry->map_ns, __entry->post_ns)
);

TRACE_EVENT(faultline_invalidate,
	TP_PROTO(const struct faultline_dev *dev, u32 key, u64 start,
		 u64 length, u32 entries),
	TP_ARGS(dev, key, start, length, entries),
	TP_STRUCT__entry(
		__string(device, pci_name(dev->pdev))
		__field(u64, start)
		__field(u64, length)
		__field(u32, key)
		__field(u32, entries)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->start = start;
		__entry->length = length;
		__entry->key = key;
		__entry->entries = entries;
	),
	TP_printk("%s key=%#x start=%#llx length=%llu entries=%u",
		  __get_str(device), __entry->key, __entry->start,
		  __entry->length, __entry->entries)
);

TRACE_EVENT(faultline_prefetch,
	TP_PROTO(const struct faultline_dev *dev, u32 key, u64 start,
		 u64 length, u32 advice, int result),
	TP_ARGS(dev, key, start, length, advice, result),
	TP_STRUCT__entry(
		__string(device, pci_name(dev->pdev))
		__field(u64, start)
		__field(u64, length)
		__field(u32, key)
		__field(u32, advice)
		__field(int, result)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->start = start;
		__entry->length = length;
		__entry->key = key;
		__entry->advice = advice;
		__entry->result = result;
	),
	TP_printk("%s key=%#x start=%#llx length=%llu advice=%u result=%d",
		  __get_str(device), __entry->key, __entry->start,
		  __entry->length, __entry->advice, __entry->result)
);

TRACE_EVENT(faultline_lease,
	TP_PROTO(const struct faultline_dev *dev, u32 key, u32 mode,
		 const struct faultline_event *event, u64 wait_ns,
		 bool answered),
	TP_ARGS(dev, key, mode, event, wait_ns, answered),
	TP_STRUCT__entry(
		__string(device, pci_name(dev->pdev))
		__field(u64, start)
		__field(u64, length)
		__field(u64, wait_ns)
		__field(u32, key)
		__field(u32, mode)
		__field(u32, reason)
		__field(bool, answered)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->start = event->start;
		__entry->length = event->end - event->start;
		__entry->wait_ns = wait_ns;
		__entry->key = key;
		__entry->mode = mode;
		__entry->reason = event->reason;
		__entry->answered = answered;
	),
	TP_printk("%s key=%#x mode=%u reason=%u start=%#llx length=%llu wait_ns=%llu answered=%d",
		  __get_str(device), __entry->key, __entry->mode,
		  __entry->reason, __entry->start, __entry->length,
		  __entry->wait_ns, __entry->answered)
);

#endif /* FAULTLINE_TRACE_H */

/* The folder of this header is in the search path of faultline_trace.o. */
#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE faultline_trace
#include <trace/define_trace.h>
