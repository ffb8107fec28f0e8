// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Memory that is gone under a region: on either side, for every operation that
 * can touch it. Around each failure stand requests that must not be harmed:
 * those posted before it on the same queue pair, another queue pair on the same
 * region's living part, and another region's key.
 *
 * Every access begins with a page and fits into a packet, so that the test says
 * something about NICs whose on-demand paging can do no more.
 */
#include "coherence.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* The part of a region that goes: its second half. */
#define GONE (PAGES / 2)
#define MESSAGE 1000
#define SEED_VICTIM 11
#define SEED_OTHER 12
#define SEED_CLIENT 13

/* The cases in which the server has to do something. */
enum step { STEP_REMOTE = 1, STEP_INBOX, STEP_RECEIVED, STEP_RESTART, STEP_END };

static void server_step(const struct side *side, enum step step)
{
	char byte = step;

	send_all(side->link, &byte, 1);
	receive_all(side->link, &byte, 1);
}

void lost_server(struct side *side)
{
	uint8_t *memory = anonymous(LENGTH), *other = anonymous(LENGTH), *inbox = anonymous(LENGTH);
	struct ibv_mr *memory_mr = region(&side->device, memory, LENGTH, true);
	struct ibv_mr *other_mr = region(&side->device, other, LENGTH, true);
	struct ibv_mr *inbox_mr = region(&side->device, inbox, LENGTH, true);
	struct endpoint fragile, steady;
	struct ibv_wc wc;
	char byte;

	content_fill(memory, content_key(SEED_VICTIM, 0, 0), 0, LENGTH);
	content_fill(other, content_key(SEED_OTHER, 0, 0), 0, LENGTH);
	endpoint_join(&fragile, side, 16, 16);
	endpoint_join(&steady, side, 16, 16);
	place_send(side, memory, memory_mr);
	place_send(side, other, other_mr);
	for (;;) {
		receive_all(side->link, &byte, 1);
		switch ((enum step)byte) {
		case STEP_REMOTE:
			if (munmap(memory + GONE * PAGE, LENGTH - GONE * PAGE))
				die("munmap: %m");
			break;
		case STEP_INBOX:
			/* Two receives that live, one that lies on nothing, one behind it. */
			if (munmap(inbox + GONE * PAGE, LENGTH - GONE * PAGE))
				die("munmap: %m");
			endpoint_receive(&fragile, 0, inbox, PAGE, inbox_mr->lkey);
			endpoint_receive(&fragile, 1, inbox + PAGE, PAGE, inbox_mr->lkey);
			endpoint_receive(&fragile, 2, inbox + GONE * PAGE, PAGE, inbox_mr->lkey);
			endpoint_receive(&fragile, 3, inbox + 2 * PAGE, PAGE, inbox_mr->lkey);
			break;
		case STEP_RESTART:
			endpoint_stop(&fragile);
			while (endpoint_wait(&fragile, &wc, 0))
				;
			endpoint_listen(&fragile);
			endpoint_connect_telling(&fragile, side->link, byte);
			continue;
		case STEP_RECEIVED:
			/* What has come of the receives. */
			for (unsigned int i = 0; i < 4; i++) {
				static const enum ibv_wc_status wanted[] = {
					IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR,
					IBV_WC_WR_FLUSH_ERR,
				};

				if (!endpoint_wait(&fragile, &wc, 20000))
					die("receive %u does not complete", i);
				if (wc.wr_id != i)
					die("receive %u completed as number %u", (unsigned)wc.wr_id, i);
				/* proves: IBV_WC_LOC_PROT_ERR */
				want("a receive", wc.status, wanted[i]);
			}
			if (endpoint_wait(&fragile, &wc, 200))
				die("a receive completed twice");
			want_content("the receive before the lost one", inbox + PAGE,
				     content_key(SEED_CLIENT, 0, 0), PAGE, MESSAGE);
			break;
		case STEP_END:
			send_all(side->link, &byte, 1);
			return;
		}
		send_all(side->link, &byte, 1);
	}
}

static struct endpoint fragile, steady;
static struct place remote, other;
static uint8_t *local, *landing;
static struct ibv_mr *local_mr, *landing_mr;

/* Work that must continue after any failure. */
static void unharmed(void)
{
	memset(landing, 0x5a, LENGTH);
	want("  another queue pair, the region's living part",
	     ask(&steady, IBV_WR_RDMA_READ, landing, MESSAGE, landing_mr->lkey, remote.at + PAGE,
		 remote.rkey),
	     IBV_WC_SUCCESS);
	want_content("  its data", landing, content_key(SEED_VICTIM, 0, 0), PAGE, MESSAGE);
	want("  another region's key",
	     ask(&steady, IBV_WR_RDMA_READ, landing + PAGE, MESSAGE, landing_mr->lkey,
		 other.at + (PAGES - 1) * PAGE, other.rkey),
	     IBV_WC_SUCCESS);
	want_content("  its data", landing + PAGE, content_key(SEED_OTHER, 0, 0),
		     (PAGES - 1) * PAGE, MESSAGE);
	want("  local memory that is left",
	     ask(&steady, IBV_WR_RDMA_WRITE, local, MESSAGE, local_mr->lkey, other.at, other.rkey),
	     IBV_WC_SUCCESS);
}

static void restart(struct side *side)
{
	endpoint_stop(&fragile);
	server_step(side, STEP_RESTART);
	endpoint_start(&fragile);
}

/*
 * Over iWARP, SENDs and WRITEs complete when TCP has acknowledged them: one to
 * lost memory may succeed, and then the request behind it fails, or is flushed.
 */
static bool may_end_late(const struct side *side, const struct request *request,
			 enum ibv_wc_status status)
{
	return device_is_iwarp(&side->device) && request->opcode == IBV_WR_RDMA_WRITE &&
	       status == IBV_WC_REM_ACCESS_ERR;
}

/*
 * Posts two requests that are right, `bad`, and one behind it; the first two
 * must succeed, the third end with `status`, the last be flushed.
 */
static void fails_alone(struct side *side, const char *what, struct request bad,
			enum ibv_wc_status status)
{
	enum ibv_wc_status wanted[] = { IBV_WC_SUCCESS, IBV_WC_SUCCESS, status,
					IBV_WC_WR_FLUSH_ERR };
	struct request good = {
		.opcode = IBV_WR_RDMA_READ,
		.local = landing,
		.length = MESSAGE,
		.lkey = landing_mr->lkey,
		.remote = remote.at,
		.rkey = remote.rkey,
	};
	struct ibv_wc wc;

	say("%s", what);
	bad.id = 2;
	for (unsigned int i = 0; i < 4; i++) {
		good.id = i;
		good.local = landing + i * PAGE;
		endpoint_post(&fragile, i == 2 ? &bad : &good);
	}
	for (unsigned int i = 0; i < 4; i++) {
		if (!endpoint_wait(&fragile, &wc, 60000))
			die("request %u does not complete", i);
		if (wc.wr_id != i)
			die("request %u completed as number %u", (unsigned)wc.wr_id, i);
		if (i == 2 && wc.status == IBV_WC_SUCCESS && may_end_late(side, &bad, status))
			wanted[2] = IBV_WC_SUCCESS;
		if (i == 3 && wanted[2] == IBV_WC_SUCCESS && wc.status == status)
			wanted[3] = status;
		/* proves: IBV_WC_WR_FLUSH_ERR */
		want(i < 2 ? "  before" : i == 2 ? "  on lost memory" : "  behind", wc.status,
		     wanted[i]);
	}
	if (endpoint_wait(&fragile, &wc, 200))
		die("a request completed twice");
	unharmed();
	restart(side);
}

void lost_client(struct side *side)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		uint32_t length;
		const char *name;
	} kinds[] = {
		{ IBV_WR_RDMA_READ, MESSAGE, "READ" },
		{ IBV_WR_RDMA_WRITE, MESSAGE, "WRITE" },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 8, "atomic" },
		/* Only on this side: what a SEND touches over there is a receive's, see below. */
		{ IBV_WR_SEND, MESSAGE, "SEND" },
	};
	enum ibv_wc_status status;
	struct request bad;
	char text[64];

	local = anonymous(LENGTH);
	landing = anonymous(LENGTH);
	local_mr = region(&side->device, local, LENGTH, true);
	landing_mr = region(&side->device, landing, LENGTH, false);
	content_fill(local, content_key(SEED_CLIENT, 0, 0), 0, LENGTH);
	endpoint_join(&fragile, side, 16, 16);
	endpoint_join(&steady, side, 16, 16);
	remote = place_receive(side);
	other = place_receive(side);
	unharmed();

	server_step(side, STEP_REMOTE);
	for (size_t i = 0; i < ARRAY_SIZE(kinds) - 1; i++) {
		bad = (struct request){
			.opcode = kinds[i].opcode,
			.local = landing + 4 * PAGE,
			.length = kinds[i].length,
			.lkey = landing_mr->lkey,
			.remote = remote.at + (GONE + i) * PAGE,
			.rkey = remote.rkey,
		};
		snprintf(text, sizeof(text), "remote memory gone, %s", kinds[i].name);
		/* proves: IBV_WC_REM_ACCESS_ERR */
		fails_alone(side, text, bad, IBV_WC_REM_ACCESS_ERR);
	}

	say("a receive's memory gone");
	server_step(side, STEP_INBOX);
	want("  first SEND",
	     ask(&fragile, IBV_WR_SEND, local, MESSAGE, local_mr->lkey, 0, 0), IBV_WC_SUCCESS);
	want("  second SEND",
	     ask(&fragile, IBV_WR_SEND, local + PAGE, MESSAGE, local_mr->lkey, 0, 0),
	     IBV_WC_SUCCESS);
	status = ask(&fragile, IBV_WR_SEND, local, MESSAGE, local_mr->lkey, 0, 0);
	if (device_is_iwarp(&side->device) && status == IBV_WC_SUCCESS) {
		status = ask(&fragile, IBV_WR_RDMA_READ, landing, MESSAGE, landing_mr->lkey,
			     remote.at, remote.rkey);
		if (status == IBV_WC_WR_FLUSH_ERR)
			status = IBV_WC_REM_OP_ERR;
	}
	/* proves: IBV_WC_REM_OP_ERR */
	want("  the SEND to lost memory", status, IBV_WC_REM_OP_ERR);
	unharmed();
	server_step(side, STEP_RECEIVED);
	restart(side);

	if (munmap(local + GONE * PAGE, LENGTH - GONE * PAGE))
		die("munmap: %m");
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		bad = (struct request){
			.opcode = kinds[i].opcode,
			.local = local + (GONE + i) * PAGE,
			.length = kinds[i].length,
			.lkey = local_mr->lkey,
			.remote = other.at + 4 * PAGE,
			.rkey = other.rkey,
		};
		snprintf(text, sizeof(text), "local memory gone, %s", kinds[i].name);
		/* proves: IBV_WC_LOC_PROT_ERR */
		fails_alone(side, text, bad, IBV_WC_LOC_PROT_ERR);
	}

	server_step(side, STEP_END);
}
