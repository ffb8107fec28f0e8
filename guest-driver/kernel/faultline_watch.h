/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * Reports of changed mappings to a process: event queues, range watches, and
 * watched pinned regions.
 */
#ifndef FAULTLINE_WATCH_H
#define FAULTLINE_WATCH_H

#include <linux/mmu_notifier.h>

#include "faultline_ib.h"

/* A queue of events behind a file descriptor. */
struct faultline_events {
	struct ib_uobject uobj;
	struct faultline_dev *dev;
	wait_queue_head_t wait;
	/*
	 * Protects what follows. Innermost; taken in MMU notifiers, also in
	 * those that must not sleep.
	 */
	spinlock_t lock;
	/* NULL: closed, or the device has been removed. */
	struct faultline_event *ring;
	u32 depth;
	u32 head;
	u32 count;
	/* Events have been lost since the last read. */
	bool overflow;
	/* The thread that read last; read without the lock. */
	pid_t reader;
	/*
	 * The time limit of a lease has passed, and no lease has been answered
	 * since. Not under the lock: a stale value does no harm.
	 */
	bool lease_expired;
};

/* faultline_events.c */
struct faultline_events *faultline_events_get(struct faultline_dev *dev,
					      int fd);
void faultline_events_put(struct faultline_events *events);
void faultline_events_post(struct faultline_events *events,
			   const struct faultline_event *event);
bool faultline_events_open(struct faultline_events *events);
u32 faultline_change_reason(const struct mmu_notifier_range *range);
extern const struct uapi_definition faultline_events_defs[];

/* faultline_watch.c */
#ifdef CONFIG_INFINIBAND_FAULTLINE_EXTENSIONS
void faultline_counters_free(struct faultline_ucontext *ctx);
#else
static inline void faultline_counters_free(struct faultline_ucontext *ctx)
{
}
#endif
extern const struct uapi_definition faultline_watch_defs[];

/* faultline_lease.c */
struct ib_mr *faultline_watched_reg(struct ib_pd *ibpd, u64 start, u64 length,
				    u64 iova, int access,
				    const struct faultline_reg_mr_req *req);
int faultline_watched_dereg(struct faultline_mr *mr);
const char *faultline_watch_mode(const struct faultline_mr *mr);
u32 faultline_watch_lease_ms(const struct faultline_mr *mr);
extern const struct uapi_definition faultline_lease_defs[];

/* If this is constant, the functions above are neither called nor linked. */
static inline bool faultline_is_watched(const struct faultline_mr *mr)
{
	return IS_ENABLED(CONFIG_INFINIBAND_FAULTLINE_EXTENSIONS) && mr->watch;
}

#endif /* FAULTLINE_WATCH_H */
