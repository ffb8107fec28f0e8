/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Tests of work on memory that changes or is unmapped; each is a pair of functions. */
#ifndef FAULTLINE_GUEST_COHERENCE_H
#define FAULTLINE_GUEST_COHERENCE_H

#include "common.h"

#define PAGES 16
#define LENGTH (PAGES * PAGE)

/* A connection, and over it a queue pair. */
struct side {
	struct device device;
	int link;
};

/* Data that one side sends to the other about a region. */
struct place {
	uint64_t at;
	uint32_t rkey;
	uint32_t reserved;
};

void place_send(const struct side *side, const void *at, const struct ibv_mr *mr);
struct place place_receive(const struct side *side);
void endpoint_join(struct endpoint *end, struct side *side, unsigned int sends,
		   unsigned int receives);
/* One side waits here for the other. */
void meet(const struct side *side);

/* Posts one request and returns how it ended; ends the program if it does not end. */
enum ibv_wc_status ask(struct endpoint *end, enum ibv_wr_opcode opcode, void *local,
		       uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey);
/* Prints the result, and ends the program if it is not the expected one. */
void want(const char *what, enum ibv_wc_status seen, enum ibv_wc_status wanted);
void want_content(const char *what, const void *at, uint64_t key, uint64_t offset, size_t length);

void lost_server(struct side *side);
void lost_client(struct side *side);

#endif
