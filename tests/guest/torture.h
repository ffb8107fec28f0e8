/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * odp_torture: remote traffic on memory that keeps changing under it.
 *
 * The victim owns the areas, the client drives lanes of traffic on them. What
 * makes the right answer decidable is different for each kind of area:
 *
 * KEEP    Content survives everything that is done to the memory (fork, swap,
 *         migration, merging, huge pages). The client alone writes, keeps a copy
 *         of what it wrote and compares every READ and atomic result with it.
 *
 * LOSE    Content is lost and replaced on purpose (MADV_DONTNEED, MADV_FREE, a
 *         new mapping over the old one). The victim numbers the states an area
 *         goes through, says in advance which one may come ("ceiling") and
 *         afterwards which one is there ("floor"). A client's READ of the data
 *         lies between two READs of these numbers on the same queue pair, which
 *         execute in order: every byte must be that of a state between floor
 *         and ceiling. A NIC that still reads a page that was taken away shows
 *         a state below the floor.
 *
 * GO      As LOSE, but for a while there is nothing: unmapped, not accessible,
 *         moved elsewhere, deregistered, cut off the file. A READ must then end
 *         in a remote access error, and may do so only if such a state lies
 *         between floor and ceiling. The numbers are read on a second queue pair,
 *         for the first one is in error afterwards and is started anew.
 *
 * An area of the kinds LOSE and GO has three parts. The first is only read. On the
 * second a lane WRITEs, adds (FETCH_AND_ADD) and READs back: while the area stays in
 * one state, what comes back must be what was written; a request may be refused only
 * if a state in which that is right lies between floor and ceiling. SENDs arrive in the
 * third: the victim compares them, and knows itself which states there were.
 * After each event the victim fills fresh pages and compares them: most of these are
 * the pages that were taken away. A NIC that still writes to such a page shows there.
 *
 * EXIT    Another process, killed in the middle of traffic.
 */
#ifndef FAULTLINE_GUEST_TORTURE_H
#define FAULTLINE_GUEST_TORTURE_H

#include <infiniband/faultlinedv.h>

#include "common.h"

/* What a queue pair does about absent pages, and the device's counter of that. */
struct fault_policy {
	const char *name;
	enum faultlinedv_fault_policy number;
	const char *counter;
};

enum kind { KEEP, KEEP_HUGE, KEEP_PAIRS, LOSE, GO, GO_REGION, KINDS };

/* What the bytes of an area are in one of its states. */
enum content {
	CONTENT_PATTERN, /* the pattern of the state's generation */
	CONTENT_ZERO,
	CONTENT_EITHER, /* zero or the pattern of the state's generation, byte by byte */
	CONTENT_GONE,   /* not accessible */
	CONTENT_READ_ONLY, /* as CONTENT_PATTERN, and writes are refused */
};

/* A state: the generation of its content above, an enum content below. */
#define STATE(generation, content) ((uint32_t)((generation) << 3 | (content)))
#define STATE_CONTENT(state) ((enum content)((state) & 7))
#define STATE_GENERATION(state) ((state) >> 3)

/* What a lane does on an area of the kinds LOSE and GO: which of its parts it has. */
enum use { USE_READ, USE_WRITE, USE_SEND, USES };

#define PART (32 * PAGE)

#define HISTORY 64
/* More states than this between two looks cannot be distinguished. */
#define WINDOW (HISTORY - 8)

/* The numbers of one area, in the victim's memory. Each is there twice, once inverted: a torn read shows. */
struct book {
	uint64_t floor;
	uint64_t not_floor;
	uint64_t ceiling;
	uint64_t not_ceiling;
	/* Of the region that holds the area now; only a GO_REGION area's changes. */
	uint32_t rkey;
	uint32_t reserved;
	/* State n, at n modulo HISTORY. */
	uint32_t state[HISTORY];
};

#define MAX_LANES 32
/* The longest message; with an odd start it lies on up to six pages. */
#define MAX_MESSAGE (5 * PAGE - 77)
#define RECEIVES 16
/* As many as fit into one part of an area. */
#define LOSE_RECEIVES 4
#define SLOT (6 * PAGE)

/* What a client says when it connects. */
enum hello { HELLO_MAIN, HELLO_LANE, HELLO_EXIT };

struct greeting {
	uint32_t hello;
	uint32_t kind;
	uint32_t use;
	uint32_t reserved;
	uint64_t seed;
};

/* What the victim answers to a lane: where its area is. */
struct offer {
	uint64_t remote;
	uint64_t length;
	uint64_t book;
	uint32_t area;
	uint32_t rkey;
	uint32_t book_rkey;
	/* Where the lane's part begins in the area. */
	uint32_t base;
};

/* Commands over a lane's connection. */
enum command {
	COMMAND_RESTART = 'R', /* start the lane's queue pair anew */
	COMMAND_FINISH = 'F',  /* account for the lane */
	COMMAND_GO = 'G',      /* main: begin with the events */
	COMMAND_ASK = 'A',     /* main: how many events have done nothing yet? */
	COMMAND_STOP = 'S',    /* main: end the events */
	COMMAND_END = 'E',     /* main: all is said */
	COMMAND_TRAFFIC = 'T', /* exit: data flows */
};

struct account {
	uint64_t received;
	uint64_t wrong_bytes;
	uint64_t doubled;
	uint64_t sum[4];
};

/* Each message of a lane begins with this; the rest is content of that key. */
struct message {
	uint64_t number;
	uint64_t key;
};

struct options {
	const char *host; /* the victim's address; NULL: this is the victim */
	const char *events;
	const char *dax; /* a folder on a DAX file system: KEEP, LOSE and GO areas are files there */
	unsigned int seconds;
	unsigned int qps;
	uint64_t seed;
	bool implicit;
	bool same_iova;
	/* A check of this program itself: pinned regions, and events only if they are named. */
	bool pinned;
	/* Of the victim's queue pairs; NULL: the device's. */
	const struct fault_policy *policy;
	/*
	 * Every packet begins with a page: all that rdma_rxe gets right, which ignores the offset into an
	 * on-demand page (Linux 7.2). Both sides need it.
	 */
	bool aligned;
	uint16_t port;
};

/* Whether a lane has a second queue pair on which the numbers of its area are read. */
static inline bool has_steady(enum kind kind, enum use use)
{
	return use == USE_WRITE || (use == USE_READ && (kind == GO || kind == GO_REGION));
}

int victim(const struct options *options);
int sacrifice(const struct options *options);
int client(const struct options *options);

#endif
