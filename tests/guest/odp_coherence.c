// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * odp_coherence cache: a registration cache that knows a buffer by its address
 * sends from pages that are no longer the buffer's, if regions are pinned, and
 * the right ones if they are registered on demand.
 *
 * odp_coherence lost: the work requests that touch memory which is gone fail
 * with the right status, and nothing else does.
 */
#include "coherence.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

void place_send(const struct side *side, const void *at, const struct ibv_mr *mr)
{
	struct place place = { (uintptr_t)at, mr->rkey, 0 };

	send_all(side->link, &place, sizeof(place));
}

struct place place_receive(const struct side *side)
{
	struct place place;

	receive_all(side->link, &place, sizeof(place));
	return place;
}

void meet(const struct side *side)
{
	char byte = 0;

	send_all(side->link, &byte, 1);
	receive_all(side->link, &byte, 1);
}

void endpoint_join(struct endpoint *end, struct side *side, unsigned int sends,
		   unsigned int receives)
{
	endpoint_create(end, &side->device, sends, receives);
	endpoint_meet(end, side->link);
	endpoint_start(end);
	meet(side);
}

enum ibv_wc_status ask(struct endpoint *end, enum ibv_wr_opcode opcode, void *local,
		       uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey)
{
	struct request request = {
		.opcode = opcode,
		.id = 77,
		.local = local,
		.length = length,
		.lkey = lkey,
		.remote = remote,
		.rkey = rkey,
	};
	struct ibv_wc wc;

	endpoint_post(end, &request);
	if (!endpoint_wait(end, &wc, 60000))
		die("a request (opcode %d) does not complete", opcode);
	if (wc.wr_id != 77)
		die("a completion of another request: %llu", (unsigned long long)wc.wr_id);
	return wc.status;
}

void want(const char *what, enum ibv_wc_status seen, enum ibv_wc_status wanted)
{
	if (seen != wanted)
		die("%s: %s, and should be: %s", what, ibv_wc_status_str(seen),
		    ibv_wc_status_str(wanted));
	say("%s: %s", what, ibv_wc_status_str(seen));
}

void want_content(const char *what, const void *at, uint64_t key, uint64_t offset, size_t length)
{
	size_t wrong = content_wrong(at, key, offset, length);

	if (wrong)
		die("%s: %zu of %zu bytes are wrong", what, wrong, length);
	say("%s: %zu bytes right", what, length);
}

/* --- cache -------------------------------------------------------------------- */

/* Each page of the buffer is a message of its own, which fits into a packet: see coherence_lost.c. */
#define MESSAGE 1000

static void cache_server(struct side *side)
{
	uint8_t *inbox = anonymous(LENGTH);
	struct ibv_mr *mr = region(&side->device, inbox, LENGTH, false);
	struct endpoint end;

	endpoint_join(&end, side, 4, PAGES);
	for (unsigned int round = 0; round < 2; round++) {
		for (unsigned int generation = 1; generation <= 2; generation++) {
			uint8_t got = 0;

			memset(inbox, 0, LENGTH);
			for (unsigned int i = 0; i < PAGES; i++)
				endpoint_receive(&end, i, inbox + i * PAGE, PAGE, mr->lkey);
			meet(side);
			for (unsigned int i = 0; i < PAGES; i++) {
				struct ibv_wc wc;

				if (!endpoint_wait(&end, &wc, 60000) ||
				    wc.status != IBV_WC_SUCCESS || wc.byte_len != MESSAGE)
					die("message %u is not received", i);
			}
			/* Which generation has come, whole: 0 is neither. */
			for (unsigned int g = 1; g <= 2; g++) {
				size_t wrong = 0;

				for (unsigned int i = 0; i < PAGES; i++)
					wrong += content_wrong(inbox + i * PAGE,
							       content_key(round, 0, g), i * PAGE,
							       MESSAGE);
				if (!wrong)
					got = g;
			}
			send_all(side->link, &got, 1);
		}
	}
}

/* A cache of one entry that knows a buffer by where it is, as many MPI libraries had. */
static struct ibv_mr *cached(struct side *side, void *at, bool on_demand)
{
	static struct ibv_mr *known;
	static void *known_at;
	static bool known_on_demand;

	if (!known || known_at != at || known_on_demand != on_demand) {
		known = region(&side->device, at, LENGTH, on_demand);
		known_at = at;
		known_on_demand = on_demand;
	}
	return known;
}

static void cache_client(struct side *side)
{
	struct endpoint end;

	endpoint_join(&end, side, 4, 4);
	for (unsigned int round = 0; round < 2; round++) {
		bool on_demand = round;
		void *at = anonymous(LENGTH);

		for (unsigned int generation = 1; generation <= 2; generation++) {
			uint8_t got;

			if (generation == 2) {
				/* free() of a large buffer, and malloc() of another one, in effect. */
				if (munmap(at, LENGTH) ||
				    mmap(at, LENGTH, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
					 0) != at)
					die("the same address cannot be mapped again: %m");
			}
			content_fill(at, content_key(round, 0, generation), 0, LENGTH);
			meet(side);
			for (unsigned int i = 0; i < PAGES; i++) {
				enum ibv_wc_status status =
					ask(&end, IBV_WR_SEND, (uint8_t *)at + i * PAGE, MESSAGE,
					    cached(side, at, on_demand)->lkey, 0, 0);

				if (status != IBV_WC_SUCCESS)
					die("a SEND from the cached region: %s",
					    ibv_wc_status_str(status));
			}
			receive_all(side->link, &got, 1);
			say("%s, buffer %u at the same address: buffer %u has arrived",
			    on_demand ? "on demand" : "pinned", generation, got);
			if (got != (on_demand || generation == 1 ? generation : 1))
				die("that is not what must happen");
		}
	}
	say("stale data with pinned regions, right data on demand");
}

/* -------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "", *host = argc > 2 ? argv[2] : NULL;
	bool cache = !strcmp(what, "cache");
	struct side side;
	char verdict = 0;
	int log;

	if (argc < 2 || argc > 3 || (!cache && strcmp(what, "lost"))) {
		fprintf(stderr, "odp_coherence cache|lost [address of the server]\n");
		return 2;
	}
	log = kmsg_open();
	device_open(&side.device);
	device_needs_odp(&side.device, false);
	side.link = host ? connect_to(host, 18620, 10000) : accept_from(listen_on(18620));
	if (side.link < 0)
		die("no server listens at %s", host);
	if (host)
		(cache ? cache_client : lost_client)(&side);
	else
		(cache ? cache_server : lost_server)(&side);
	/* Both have come to the end. */
	verdict = kmsg_complaints(log) > 0;
	send_all(side.link, &verdict, 1);
	if (verdict)
		die("the kernel has complained");
	receive_all(side.link, &verdict, 1);
	if (verdict)
		die("the other side has failed");
	say("all right");
	return 0;
}
