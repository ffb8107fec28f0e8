/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the programs about changing mappings share: a queue pair connected to
 * another one of the same process, so that they run in one guest.
 */
#ifndef FAULTLINE_GUEST_WATCHED_H
#define FAULTLINE_GUEST_WATCHED_H

#include <errno.h>
#include <infiniband/faultlinedv.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

struct loop {
	struct endpoint near;
	struct endpoint far;
};

static inline void loop_start(struct loop *loop)
{
	endpoint_start(&loop->near);
	endpoint_start(&loop->far);
}

static inline void loop_create(struct loop *loop, struct device *device)
{
	endpoint_create(&loop->near, device, 16, 16);
	endpoint_create(&loop->far, device, 16, 16);
	loop->near.peer = loop->far.own;
	loop->far.peer = loop->near.own;
	loop_start(loop);
}

/* After an error. */
static inline void loop_restart(struct loop *loop)
{
	struct ibv_wc wc;

	endpoint_stop(&loop->near);
	endpoint_stop(&loop->far);
	while (endpoint_wait(&loop->near, &wc, 1) || endpoint_wait(&loop->far, &wc, 1))
		;
	loop_start(loop);
}

static inline void loop_destroy(struct loop *loop)
{
	endpoint_destroy(&loop->near);
	endpoint_destroy(&loop->far);
}

/* One request from the near end to the far end; how it completes. */
static inline enum ibv_wc_status loop_do(struct loop *loop, enum ibv_wr_opcode opcode, void *local,
					 uint32_t length, uint32_t lkey, const void *remote,
					 uint32_t rkey)
{
	struct request request = {
		.opcode = opcode,
		.id = 1,
		.local = local,
		.length = length,
		.lkey = lkey,
		.remote = (uintptr_t)remote,
		.rkey = rkey,
	};
	struct ibv_wc wc;

	endpoint_post(&loop->near, &request);
	if (!endpoint_wait(&loop->near, &wc, 60000))
		die("a request does not complete");
	return wc.status;
}

/* Other memory at the same address, in one step. */
static inline void replace(void *at, size_t length)
{
	if (mmap(at, length, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0) != at)
		die("cannot map over %p: %m", at);
}

static inline struct faultlinedv_events *events_create(struct device *device, uint32_t depth)
{
	struct faultlinedv_events *events = faultlinedv_create_events(device->context, depth);

	if (!events)
		die("cannot create a queue of events: %m");
	return events;
}

/* Whether there is an event within `ms`. */
static inline bool events_wait(struct faultlinedv_events *events, int ms)
{
	struct pollfd poller = { .fd = faultlinedv_events_fd(events), .events = POLLIN };

	return poll(&poller, 1, ms) == 1;
}

static inline struct faultlinedv_event event_read(struct faultlinedv_events *events)
{
	struct faultlinedv_event event;

	if (!events_wait(events, 5000))
		die("no event comes");
	if (faultlinedv_read_events(events, &event, 1) != 1)
		die("cannot read an event: %m");
	return event;
}

static inline void events_drain(struct faultlinedv_events *events)
{
	while (events_wait(events, 0))
		event_read(events);
}

#endif
