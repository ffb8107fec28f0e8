/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * Functions of the Faultline device beyond libibverbs: events when the mapping
 * behind a range or a registered region changes, and the handling of packets
 * whose memory is absent. Link with -lfaultline.
 *
 * A program that is linked statically defines RDMA_STATIC_PROVIDERS as
 * faultline and includes this file before infiniband/verbs.h.
 */
#ifndef FAULTLINEDV_H
#define FAULTLINEDV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef RDMA_STATIC_PROVIDERS
/* verbs.h declares those that are part of rdma-core. */
extern const struct verbs_device_ops verbs_provider_faultline;
#endif

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns true if the device supports the functions of this header. */
bool faultlinedv_is_supported(struct ibv_device *device);

/* ------------------------------- Memory -------------------------------- */

/*
 * Values of resource_type with which the allocators of a parent domain are
 * called.
 */
enum faultlinedv_memory {
	FAULTLINEDV_MEMORY_SQ = 1,
	FAULTLINEDV_MEMORY_RQ = 2,
	FAULTLINEDV_MEMORY_SRQ = 3,
	FAULTLINEDV_MEMORY_CQ = 4,
};

/* ------------------------------- Events -------------------------------- */

enum faultlinedv_event_type {
	/* A mapping in the range of a watch changes or has changed. */
	FAULTLINEDV_EVENT_RANGE = 1,
	/* The same below a watched region. */
	FAULTLINEDV_EVENT_MR = 2,
	/*
	 * The same, and the thread that makes the change waits until
	 * faultlinedv_restore_mr(), faultlinedv_release_mr(), ibv_dereg_mr(),
	 * or the time limit.
	 */
	FAULTLINEDV_EVENT_LEASE = 3,
	/*
	 * The queue was full, events have been lost: the memory behind all
	 * watches and regions of this queue may have changed.
	 */
	FAULTLINEDV_EVENT_OVERFLOW = 4,
};

enum faultlinedv_reason {
	FAULTLINEDV_REASON_UNMAP = 1,	/* munmap, mremap, mmap over it */
	FAULTLINEDV_REASON_CLEAR = 2,	/* pages go: truncate, madvise, COW */
	FAULTLINEDV_REASON_PROTECTION = 3,	/* mprotect */
	FAULTLINEDV_REASON_EXIT = 4,	/* the address space ends */
};

struct faultlinedv_event {
	/*
	 * Of what changes, whole pages; if a part of a huge page changes, all
	 * of it.
	 */
	uint64_t start;
	uint64_t end;
	uint64_t cookie;	/* of the watch or the region */
	uint32_t type;		/* enum faultlinedv_event_type */
	uint32_t reason;	/* enum faultlinedv_reason */
};

struct faultlinedv_events;

/*
 * A queue for the events of any number of watches and regions of the context,
 * with room for `depth` of them (1 ... 65536). NULL and errno if it fails.
 */
struct faultlinedv_events *
faultlinedv_create_events(struct ibv_context *context, uint32_t depth);
/*
 * Destroys an event queue. Its watches and regions continue without events;
 * events that were not read are lost.
 */
int faultlinedv_destroy_events(struct faultlinedv_events *events);
/* The descriptor for poll(), or to set O_NONBLOCK. */
int faultlinedv_events_fd(const struct faultlinedv_events *events);
/*
 * Waits for events, and returns the number of those written to `event`: 1 ...
 * max. On failure returns -1 and sets errno: EAGAIN with O_NONBLOCK if there
 * are no events, EIO if the device is gone.
 */
int faultlinedv_read_events(struct faultlinedv_events *events,
			    struct faultlinedv_event *event, int max);

/* ------------------------------- Watches ------------------------------- */

/*
 * Watches the mappings of [addr, addr + length) in this process; children of
 * fork() do not inherit the watch. Addresses without a mapping may be watched,
 * too.
 */
struct faultlinedv_watch {
	/*
	 * Increases before a mapping in the range changes; never 0, and no
	 * value occurs twice. Use faultlinedv_watch_value().
	 */
	const uint64_t *counter;
	struct ibv_context *context;
	uint32_t handle;
};

struct faultlinedv_watch *
faultlinedv_create_watch(struct faultlinedv_events *events, const void *addr,
			 size_t length, uint64_t cookie);
int faultlinedv_destroy_watch(struct faultlinedv_watch *watch);

/*
 * Reads the counter without a system call. It also increases when the device is
 * gone.
 */
static inline uint64_t
faultlinedv_watch_value(const struct faultlinedv_watch *watch)
{
	return __atomic_load_n(watch->counter, __ATOMIC_ACQUIRE);
}

/*
 * Waits until no change in the range is in progress, and returns the value of
 * the counter at that time. A registration after this call covers the current
 * mapping as long as the counter has this value. Returns 0 or an errno.
 */
int faultlinedv_sync_watch(struct faultlinedv_watch *watch, uint64_t *value);

/* --------------------------- Watched regions --------------------------- */

enum faultlinedv_mr_mode {
	/* The device keeps the old pages until the region is restored. */
	FAULTLINEDV_MR_KEEP = 1,
	/*
	 * The device loses the pages before the change is made: work requests
	 * that use them fail with IBV_WC_LOC_PROT_ERR, or at the peer with
	 * IBV_WC_REM_OP_ERR.
	 */
	FAULTLINEDV_MR_FENCE = 2,
	/* As FENCE, but the change first waits for an answer. */
	FAULTLINEDV_MR_LEASE = 3,
};

#define FAULTLINEDV_MAX_LEASE_MS 10000

struct faultlinedv_mr_attr {
	uint64_t comp_mask;	/* 0 */
	struct faultlinedv_events *events;
	uint64_t cookie;
	uint32_t mode;		/* enum faultlinedv_mr_mode */
	uint32_t lease_ms;	/* LEASE: 1 ... 10000, else 0 */
};

/*
 * Registers memory as ibv_reg_mr_iova() does, and watches the mapping below.
 * Not with IBV_ACCESS_ON_DEMAND: such regions follow the mapping by themselves.
 * To be released by ibv_dereg_mr(). NULL and errno if it fails.
 */
struct ibv_mr *faultlinedv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
				  uint64_t iova, int access,
				  const struct faultlinedv_mr_attr *attr);

/*
 * Answers a lease, waits until changes have ended, and lets the region's keys
 * refer to the memory that is mapped now. Returns 0 or an errno; with EFAULT,
 * not all of the range is mapped, and the region is unchanged. Only for the
 * process that registered the region.
 */
int faultlinedv_restore_mr(struct ibv_mr *mr);

/* Answers a lease: the device may lose the pages now. Returns 0 or an errno. */
int faultlinedv_release_mr(struct ibv_mr *mr);

/* ---------------------------- Fault policies --------------------------- */

/* The handling of a packet whose memory is absent. */
enum faultlinedv_fault_policy {
	/*
	 * RC: refuses it with an RNR NAK, and requests it again when the page
	 * is present. Datagrams and UC: parks it until then.
	 */
	FAULTLINEDV_FAULT_RNR = 0,
	/* Drops it. RC: requests it again when the page is present. */
	FAULTLINEDV_FAULT_DROP = 1,
	/* Holds it, and all other packets that the device receives. */
	FAULTLINEDV_FAULT_STALL = 2,
	/*
	 * Ends the connection, like an adapter without page faults: the
	 * requester gets IBV_WC_REM_OP_ERR.
	 */
	FAULTLINEDV_FAULT_TERMINATE = 3,
};

/*
 * Sets the fault policy of a queue pair, in any state of it. In RESET it gets
 * the default of the device again. The policy applies to incoming packets,
 * including READ requests. For its own buffers a requester waits under each
 * policy, and delays no other queue pair. Returns 0 or an errno: EPERM for
 * FAULTLINEDV_FAULT_STALL without CAP_NET_ADMIN, because that policy delays all
 * packets that the NIC receives.
 */
int faultlinedv_set_fault_policy(struct ibv_qp *qp,
				 enum faultlinedv_fault_policy policy);
int faultlinedv_query_fault_policy(struct ibv_qp *qp,
				   enum faultlinedv_fault_policy *policy);

#ifdef __cplusplus
}
#endif

#endif /* FAULTLINEDV_H */
