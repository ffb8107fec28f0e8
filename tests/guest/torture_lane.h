/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A lane of the client: a queue pair to an area of the victim, its requests, and the content that they may find there. */
#ifndef FAULTLINE_GUEST_TORTURE_LANE_H
#define FAULTLINE_GUEST_TORTURE_LANE_H

#include "torture.h"

#include <pthread.h>
#include <stdatomic.h>

#define DEPTH 8
/* Fits into a packet at every MTU that guests have. */
#define ONE_PACKET 1024
/* Nothing a healthy device and kernel do takes this long, even on a busy host. */
#define TIMEOUT_MS 60000

struct totals {
	atomic_ullong requests, bytes, wrong_bytes, lost, doubled, wrong_status, early_errors,
		late_success, errors_seen, torn, unclear, compared, restarts, exits;
};

extern struct totals totals;
extern atomic_bool stopping;
/* The first wrong bytes are worth a line, the next million is not. */
extern atomic_uint told;

#define tell(...)                                    \
	do {                                         \
		if (atomic_fetch_add(&told, 1) < 40) \
			say(__VA_ARGS__);            \
	} while (0)

struct slot {
	bool busy;
	/* Its data is still to be looked at. */
	bool held;
	uint64_t number;
	uint8_t *buffer;
	uint8_t *at;
	uint8_t *expected;
	struct request request;
};

struct lane {
	const struct options *options;
	struct device *device;
	enum kind kind;
	enum use use;
	unsigned int index;
	int link;
	struct endpoint end;
	/* The queue pair that stays healthy: of a lane that reads or writes memory that goes. */
	struct endpoint steady;
	struct offer offer;
	struct ibv_mr *mr;
	uint8_t *memory;
	uint8_t *shadow;
	struct slot slots[DEPTH];
	unsigned int busy;
	uint64_t next;
	/* SENDs that are posted, and those of them that were acknowledged. */
	uint64_t sent;
	uint64_t acknowledged;
	/* A request has failed: what the area holds is not known any more. */
	bool broken;
	/* READs and atomics under way: what follows and writes must be fenced. */
	unsigned int fetching;
	struct rng rng;
	pthread_t thread;
};

/* The states that an area may have been in between two looks at its book. */
struct window {
	/* False: it is not known which ones these are, and nothing below means anything. */
	bool clear;
	/* It is one state, which had come before the first look and had not gone at the second. */
	bool single;
	/* There is a state in which a READ is refused, or succeeds; the same for a WRITE. */
	bool gone;
	bool present;
	bool read_only;
	bool writable;
	/* What the bytes may be: zero, or the content of one of these keys. */
	bool zero;
	unsigned int count;
	uint64_t keys[WINDOW];
};

struct slot *lane_take(struct lane *lane, bool landing);
/* Finds the request that a completion belongs to; NULL if it was not outstanding. */
struct slot *lane_match(struct lane *lane, const struct ibv_wc *wc);
/* Posts to one of the lane's queue pairs; slot->at and slot->request.rkey are set. */
void lane_post(struct lane *lane, struct endpoint *end, struct slot *slot, enum ibv_wr_opcode opcode,
	       uint64_t offset, uint32_t length);
/* A place for `length` bytes, which may become fewer. */
uint64_t lane_place(struct lane *lane, uint32_t *length);
/* Waits for this number of completions; all must succeed. */
bool lane_expect(struct lane *lane, struct endpoint *end, unsigned int count);
/* The same for requests that may fail: their completions must come in the order of `slots`. */
bool lane_statuses(struct lane *lane, struct slot **slots, enum ibv_wc_status *status,
		   unsigned int count);
/* READs the area's book into a slot's buffer. */
struct slot *lane_post_book(struct lane *lane, struct endpoint *end);
/* Starts the lane's queue pair anew on both sides. */
void lane_restart(struct lane *lane);

void window_between(struct lane *lane, const struct book *before, const struct book *after,
		    struct window *window);

/* Lanes that WRITE and add to memory that changes or goes, and that SEND to it. */
void write_run(struct lane *lane);
void send_run(struct lane *lane);

#endif
