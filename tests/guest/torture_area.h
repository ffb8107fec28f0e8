/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The victim's areas and what can be done to them. */
#ifndef FAULTLINE_GUEST_TORTURE_AREA_H
#define FAULTLINE_GUEST_TORTURE_AREA_H

#include "torture.h"

#include <stdatomic.h>

struct area {
	enum kind kind;
	unsigned int index;
	uint8_t *at;
	size_t length;
	/* Where receives go; only areas of KEEP kinds have it. */
	uint8_t *inbox;
	struct ibv_mr *mr;
	/* That of `mr`, which another thread may be replacing. */
	volatile uint32_t lkey;
	struct ibv_mr *inbox_mr;
	struct book *book;
	uint64_t generation;
	/* The DAX file it is a part of, -1 if none, and where in it. */
	int file;
	off_t offset;
	struct device *device;
	const struct options *options;
};

extern struct area areas[MAX_LANES];
extern unsigned int area_count;

/* Makes the next area; the book is the caller's. */
struct area *area_create(struct device *device, const struct options *options, enum kind kind,
			 struct book *book);
/* Registers it as the options say; a GO_REGION area has always a region of its own. */
void area_register(struct area *area, struct ibv_mr *implicit);
uint64_t area_remote(const struct area *area);
/* The first area of a kind; NULL if there is none. */
struct area *area_of(enum kind kind);

struct event {
	const char *name;
	/* Does it once; returns the amount that took effect, in pages or its own unit. */
	size_t (*run)(struct event *event);
	/* Runs in one thread with the others that keep contents. */
	bool keeps;
	/* Which kind of area it needs: on a DAX file, anonymous, or any. */
	enum { ANY, ANONYMOUS, FILED } needs;
	bool chosen;
	/* Why it cannot be done here; set by run(). */
	const char *skipped;
	unsigned long tried;
	size_t took;
	/* Of the pages that remote traffic is on, how many changed their place. */
	size_t moved;
};

extern struct event events[];
extern const unsigned int event_count;

/* Wrong bytes that the events have found themselves. */
extern atomic_size_t events_wrong;

void events_prepare(const struct options *options);

#endif
