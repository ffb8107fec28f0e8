// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The client's side: lanes of verified traffic, every request accounted for. */
#include "torture_lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Times the time that was asked for, if events have done nothing by then. */
#define EXTENSION 8

struct totals totals;
atomic_bool stopping;
atomic_uint told;

static struct lane lanes[MAX_LANES];

static uint64_t wr_id(const struct slot *slot, const struct lane *lane)
{
	return slot->number << 8 | (uint64_t)(slot - lane->slots);
}

struct slot *lane_match(struct lane *lane, const struct ibv_wc *wc)
{
	unsigned int index = wc->wr_id & 0xff;

	if (index >= DEPTH || !lane->slots[index].busy ||
	    lane->slots[index].number != wc->wr_id >> 8) {
		tell("lane %u: a completion too many: id %#llx, status %s", lane->index,
		     (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
		atomic_fetch_add(&totals.doubled, 1);
		return NULL;
	}
	lane->slots[index].busy = false;
	lane->busy--;
	return &lane->slots[index];
}

/*
 * Takes a free slot; its buffer starts anywhere in a page. One time in four the
 * buffer's pages are given away first, so that the local side has to fault.
 */
struct slot *lane_take(struct lane *lane, bool landing)
{
	for (unsigned int i = 0; i < DEPTH; i++) {
		struct slot *slot = &lane->slots[i];

		if (slot->busy || slot->held)
			continue;
		slot->busy = true;
		slot->number = lane->next++;
		slot->at = slot->buffer + rng_below(&lane->rng, PAGE);
		if (lane->options->aligned)
			slot->at = slot->buffer;
		if (rng_below(&lane->rng, 4) == 0 && !lane->options->pinned)
			madvise(slot->buffer, SLOT, MADV_DONTNEED);
		else if (landing)
			memset(slot->buffer, 0x5a, SLOT);
		lane->busy++;
		return slot;
	}
	die("lane %u has no free slot", lane->index);
}

void lane_post(struct lane *lane, struct endpoint *end, struct slot *slot, enum ibv_wr_opcode opcode,
	       uint64_t offset, uint32_t length)
{
	struct request *request = &slot->request;

	request->opcode = opcode;
	request->id = wr_id(slot, lane);
	request->local = slot->at;
	request->length = length;
	request->lkey = lane->mr->lkey;
	request->remote = lane->offer.remote + offset;
	request->flags = 0;
	if (opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
	    opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		if (opcode != IBV_WR_RDMA_READ && lane->fetching)
			request->flags = IBV_SEND_FENCE;
		lane->fetching++;
	} else if (lane->fetching) {
		/* Without a fence a WRITE may overtake a READ (IBTA volume 1, 10.8.3.3). */
		request->flags = IBV_SEND_FENCE;
	}
	endpoint_post(end, request);
	atomic_fetch_add(&totals.requests, 1);
	atomic_fetch_add(&totals.bytes, length);
}

uint64_t lane_place(struct lane *lane, uint32_t *length)
{
	uint64_t offset;

	if (*length > MAX_MESSAGE)
		*length = MAX_MESSAGE;
	offset = rng_below(&lane->rng, lane->offer.length - *length);
	if (lane->options->aligned) {
		offset -= offset % PAGE;
		*length = *length > ONE_PACKET ? ONE_PACKET : *length;
	}
	return offset;
}

/* --- memory that keeps its content ---------------------------------------- */

static void post_read(struct lane *lane, uint64_t offset, uint32_t length)
{
	struct slot *slot = lane_take(lane, true);

	memcpy(slot->expected, lane->shadow + offset, length);
	slot->request.rkey = lane->offer.rkey;
	lane_post(lane, &lane->end, slot, IBV_WR_RDMA_READ, offset, length);
}

static void post_write(struct lane *lane, uint64_t offset, uint32_t length, uint64_t key)
{
	struct slot *slot = lane_take(lane, false);

	content_fill(slot->at, key, 0, length);
	memcpy(lane->shadow + offset, slot->at, length);
	slot->request.rkey = lane->offer.rkey;
	lane_post(lane, &lane->end, slot, IBV_WR_RDMA_WRITE, offset, length);
}

static void post_atomic(struct lane *lane, uint64_t offset)
{
	struct slot *slot = lane_take(lane, true);
	uint64_t old, value = rng_next(&lane->rng);
	bool add = value & 1;

	slot->at = slot->buffer + rng_below(&lane->rng, PAGE / 8) * 8;
	if (lane->options->aligned)
		slot->at = slot->buffer;
	memcpy(&old, lane->shadow + offset, 8);
	memcpy(slot->expected, &old, 8);
	slot->request.rkey = lane->offer.rkey;
	if (add) {
		slot->request.compare_add = value;
		value += old;
	} else {
		/* Every second comparison fails. */
		bool right = value & 2;

		slot->request.compare_add = right ? old : ~old;
		slot->request.swap = value;
		if (!right)
			value = old;
	}
	memcpy(lane->shadow + offset, &value, 8);
	lane_post(lane, &lane->end, slot,
	     add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP, offset, 8);
}

static void post_send(struct lane *lane, uint32_t length)
{
	struct slot *slot = lane_take(lane, false);
	struct message head = { lane->sent++, rng_next(&lane->rng) };

	if (length < sizeof(head))
		length = sizeof(head);
	memcpy(slot->at, &head, sizeof(head));
	content_fill(slot->at + sizeof(head), head.key, sizeof(head), length - sizeof(head));
	lane_post(lane, &lane->end, slot, IBV_WR_SEND, 0, length);
}

static void keep_post(struct lane *lane)
{
	struct rng *rng = &lane->rng;
	uint64_t choice = rng_below(rng, 100);
	/* Lengths of all magnitudes, the short ones as often as the long ones. */
	uint32_t length = 1 + rng_below(rng, 1u << rng_below(rng, 15));
	uint64_t area = lane->offer.length, offset;

	if (lane->kind == KEEP_PAIRS) {
		/*
		 * Two neighbouring pages hold the same, which is what the kernel merges: what is written to one
		 * is written to the other, and rarely, for a page that keeps changing is not merged.
		 */
		uint64_t pair = rng_below(rng, area / (2 * PAGE)) * 2 * PAGE;

		if (choice < 97 || lane->busy > DEPTH - 2) {
			offset = lane_place(lane, &length);
			post_read(lane, offset, length);
		} else {
			uint64_t key = rng_next(rng), in_page;

			length = length > PAGE ? PAGE : length;
			if (lane->options->aligned && length > ONE_PACKET)
				length = ONE_PACKET;
			in_page = lane->options->aligned ? 0 : rng_below(rng, PAGE - length + 1);
			post_write(lane, pair + in_page, length, key);
			post_write(lane, pair + PAGE + in_page, length, key);
		}
		return;
	}
	offset = lane_place(lane, &length);
	if (choice < 40)
		post_read(lane, offset, length);
	else if (choice < 75)
		post_write(lane, offset, length, rng_next(rng));
	else if (choice < 87)
		post_atomic(lane, lane->options->aligned ? offset : rng_below(rng, area / 8) * 8);
	else
		post_send(lane, lane->options->aligned && length > ONE_PACKET ? ONE_PACKET : length);
}

/* Waits for one completion of a KEEP lane, all of which must succeed. */
static bool keep_complete(struct lane *lane)
{
	struct ibv_wc wc;
	struct slot *slot;
	size_t wrong = 0;

	if (!endpoint_wait(&lane->end, &wc, TIMEOUT_MS)) {
		for (unsigned int i = 0; i < DEPTH; i++)
			if (lane->slots[i].busy)
				tell("lane %u: no completion for opcode %d at %#llx + %u, flags %#x",
				     lane->index, lane->slots[i].request.opcode,
				     (unsigned long long)(lane->slots[i].request.remote -
							  lane->offer.remote),
				     lane->slots[i].request.length, lane->slots[i].request.flags);
		atomic_fetch_add(&totals.lost, lane->busy);
		return false;
	}
	slot = lane_match(lane, &wc);
	if (!slot)
		return false;
	if (wc.status != IBV_WC_SUCCESS) {
		tell("lane %u: opcode %d at %#llx + %u failed: %s, vendor %#x", lane->index,
		     slot->request.opcode,
		     (unsigned long long)(slot->request.remote - lane->offer.remote),
		     slot->request.length, ibv_wc_status_str(wc.status), wc.vendor_err);
		atomic_fetch_add(&totals.wrong_status, 1);
		return false;
	}
	switch (slot->request.opcode) {
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		lane->fetching--;
		for (uint32_t i = 0; i < slot->request.length; i++)
			wrong += slot->at[i] != slot->expected[i];
		if (wrong) {
			uint32_t first = 0;

			while (slot->at[first] == slot->expected[first])
				first++;
			tell("lane %u: %zu of %u bytes wrong at %#llx (opcode %d, local +%#lx), first at +%#x: %#x, expected %#x",
			     lane->index, wrong, slot->request.length,
			     (unsigned long long)(slot->request.remote - lane->offer.remote),
			     slot->request.opcode, (unsigned long)(slot->at - slot->buffer), first,
			     slot->at[first], slot->expected[first]);
			atomic_fetch_add(&totals.wrong_bytes, wrong);
		}
		break;
	case IBV_WR_SEND:
		lane->acknowledged++;
		break;
	default:
		break;
	}
	return true;
}

static void keep_run(struct lane *lane)
{
	bool alive = true;

	/* The area begins with the victim's data. */
	if (lane->kind == KEEP_PAIRS)
		for (uint64_t page = 0; page < lane->offer.length / PAGE; page++)
			content_fill(lane->shadow + page * PAGE,
				     content_key(lane->options->seed, lane->offer.area, page / 2),
				     0, PAGE);
	else
		content_fill(lane->shadow, content_key(lane->options->seed, lane->offer.area, 0),
			     0, lane->offer.length);
	while (alive && !stopping) {
		while (lane->busy <= DEPTH - 2)
			keep_post(lane);
		alive = keep_complete(lane);
	}
	while (alive && lane->busy)
		alive = keep_complete(lane);
	lane->broken = !alive;
}

/* --- memory that loses its content ------------------------------------------ */

/* Whether the numbers of a book are whole. */
static bool whole(const struct book *before, const struct book *after)
{
	return before->floor == ~before->not_floor && after->ceiling == ~after->not_ceiling &&
	       before->floor <= after->ceiling;
}

void window_between(struct lane *lane, const struct book *before, const struct book *after,
		    struct window *window)
{
	memset(window, 0, offsetof(struct window, keys));
	window->clear = whole(before, after) && after->ceiling - before->floor < WINDOW;
	if (!window->clear)
		return;
	window->single = before->floor == after->ceiling;
	for (uint64_t number = before->floor; number <= after->ceiling; number++) {
		uint32_t state = after->state[number % HISTORY];
		enum content content = STATE_CONTENT(state);

		window->gone |= content == CONTENT_GONE;
		window->present |= content != CONTENT_GONE;
		window->read_only |= content == CONTENT_READ_ONLY;
		window->writable |= content != CONTENT_GONE && content != CONTENT_READ_ONLY;
		window->zero |= content == CONTENT_ZERO || content == CONTENT_EITHER;
		if (content != CONTENT_GONE && content != CONTENT_ZERO)
			window->keys[window->count++] = content_key(
				lane->options->seed, lane->offer.area, STATE_GENERATION(state));
	}
}

/* How many bytes belong to none of a window's states. */
static size_t wrong_in_window(const struct window *window, uint64_t offset, const uint8_t *at,
			      uint32_t length)
{
	size_t wrong = 0;

	/* The common case first, it is much quicker. */
	if (window->count == 1 && !window->zero)
		return content_wrong(at, window->keys[0], offset, length);
	for (uint32_t i = 0; i < length; i++) {
		bool right = window->zero && at[i] == 0;

		for (unsigned int k = 0; k < window->count && !right; k++)
			right = at[i] == content_byte(window->keys[k], offset + i);
		wrong += !right;
	}
	return wrong;
}

static void report_wrong(struct lane *lane, size_t wrong, const struct book *before,
			 const struct book *after, uint64_t offset, const uint8_t *at,
			 uint32_t length)
{
	uint64_t floor = before->floor;
	int age = -1;

	atomic_fetch_add(&totals.wrong_bytes, wrong);
	/* Stale data is the likeliest fault: say how old it is. */
	for (int back = 1; back < 32 && (uint64_t)back <= floor; back++) {
		uint32_t value = after->state[(floor - back) % HISTORY];
		uint64_t key = content_key(lane->options->seed, lane->offer.area,
					   STATE_GENERATION(value));

		if (STATE_CONTENT(value) == CONTENT_PATTERN &&
		    content_wrong(at, key, offset, length) < length / 2 + 1) {
			age = back;
			break;
		}
	}
	tell("lane %u: %zu of %u bytes at %#llx belong to none of the states %llu to %llu%s%d",
	     lane->index, wrong, length, (unsigned long long)offset, (unsigned long long)floor,
	     (unsigned long long)after->ceiling,
	     age > 0 ? "; stale, states behind: " : "; not stale either: ", age);
}

struct slot *lane_post_book(struct lane *lane, struct endpoint *end)
{
	struct slot *slot = lane_take(lane, true);
	uint64_t offset = lane->offer.book - lane->offer.remote;

	slot->at = slot->buffer + (lane->options->aligned ? 0 : 64);
	slot->request.rkey = lane->offer.book_rkey;
	lane_post(lane, end, slot, IBV_WR_RDMA_READ, offset, sizeof(struct book));
	return slot;
}

static struct slot *post_data(struct lane *lane, uint32_t rkey, uint64_t *offset)
{
	struct slot *slot = lane_take(lane, true);
	uint32_t length = 1 + rng_below(&lane->rng, 1u << rng_below(&lane->rng, 15));

	*offset = lane_place(lane, &length);
	slot->request.rkey = rkey;
	lane_post(lane, &lane->end, slot, IBV_WR_RDMA_READ, *offset, length);
	return slot;
}

/* The request that completes next; NULL if none does, or one that was not outstanding. */
static struct slot *lane_next(struct lane *lane, struct endpoint *end, struct ibv_wc *wc)
{
	if (endpoint_wait(end, wc, TIMEOUT_MS))
		return lane_match(lane, wc);
	tell("lane %u: %u completions do not come", lane->index, lane->busy);
	atomic_fetch_add(&totals.lost, lane->busy);
	return NULL;
}

bool lane_expect(struct lane *lane, struct endpoint *end, unsigned int count)
{
	while (count--) {
		struct ibv_wc wc;
		struct slot *slot = lane_next(lane, end, &wc);

		if (!slot)
			return false;
		if (wc.status != IBV_WC_SUCCESS) {
			tell("lane %u: a READ of %u bytes at %#llx failed: %s, vendor %#x",
			     lane->index, slot->request.length,
			     (unsigned long long)(slot->request.remote - lane->offer.remote),
			     ibv_wc_status_str(wc.status), wc.vendor_err);
			atomic_fetch_add(&totals.wrong_status, 1);
			return false;
		}
	}
	return true;
}

bool lane_statuses(struct lane *lane, struct slot **slots, enum ibv_wc_status *status,
		   unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		struct ibv_wc wc;
		struct slot *slot = lane_next(lane, &lane->end, &wc);

		if (!slot)
			return false;
		if (slot != slots[i]) {
			tell("lane %u: completions out of order", lane->index);
			atomic_fetch_add(&totals.wrong_status, 1);
		}
		status[i] = wc.status;
	}
	return true;
}

static void lose_run(struct lane *lane)
{
	while (!stopping) {
		uint64_t offsets[DEPTH - 2];
		struct slot *data[DEPTH - 2], *before = lane_post_book(lane, &lane->end), *after;
		struct book old, new;
		struct window window;

		for (unsigned int i = 0; i < DEPTH - 2; i++)
			data[i] = post_data(lane, lane->offer.rkey, &offsets[i]);
		after = lane_post_book(lane, &lane->end);
		if (!lane_expect(lane, &lane->end, DEPTH))
			return;
		lane->fetching = 0;
		memcpy(&old, before->at, sizeof(old));
		memcpy(&new, after->at, sizeof(new));
		if (!whole(&old, &new)) {
			atomic_fetch_add(&totals.torn, 1);
			continue;
		}
		window_between(lane, &old, &new, &window);
		if (!window.clear) {
			atomic_fetch_add(&totals.unclear, 1);
			continue;
		}
		for (unsigned int i = 0; i < DEPTH - 2; i++) {
			uint32_t length = data[i]->request.length;
			size_t wrong = wrong_in_window(&window, offsets[i], data[i]->at, length);

			if (wrong)
				report_wrong(lane, wrong, &old, &new, offsets[i], data[i]->at,
					     length);
		}
	}
}

/* --- memory that goes away -------------------------------------------------- */

void lane_restart(struct lane *lane)
{
	char command = COMMAND_RESTART, answer;

	endpoint_stop(&lane->end);
	send_all(lane->link, &command, 1);
	receive_all(lane->link, &answer, 1);
	endpoint_start(&lane->end);
	atomic_fetch_add(&totals.restarts, 1);
}

static void go_run(struct lane *lane)
{
	enum { BURST = 3 };

	while (!stopping) {
		uint64_t offsets[BURST];
		struct slot *data[BURST], *slot = lane_post_book(lane, &lane->steady);
		enum ibv_wc_status status[BURST];
		struct book old, new;
		struct window window;
		bool failed = false;

		if (!lane_expect(lane, &lane->steady, 1))
			return;
		memcpy(&old, slot->at, sizeof(old));
		for (unsigned int i = 0; i < BURST; i++) {
			data[i] = post_data(lane, old.rkey, &offsets[i]);
			data[i]->held = true;
		}
		if (!lane_statuses(lane, data, status, BURST))
			return;
		slot = lane_post_book(lane, &lane->steady);
		if (!lane_expect(lane, &lane->steady, 1))
			return;
		lane->fetching = 0;
		memcpy(&new, slot->at, sizeof(new));
		if (!whole(&old, &new)) {
			atomic_fetch_add(&totals.torn, 1);
			/* Which of the bursts failed is still to be cleared up below. */
		}
		window_between(lane, &old, &new, &window);
		for (unsigned int i = 0; i < BURST; i++) {
			uint32_t length = data[i]->request.length;
			size_t wrong = 0;

			data[i]->held = false;
			if (!window.clear)
				atomic_fetch_add(&totals.unclear, 1);
			else if (status[i] == IBV_WC_SUCCESS)
				wrong = wrong_in_window(&window, offsets[i], data[i]->at, length);
			if (failed) {
				if (status[i] != IBV_WC_WR_FLUSH_ERR) {
					tell("lane %u: behind an error came %s", lane->index,
					     ibv_wc_status_str(status[i]));
					atomic_fetch_add(&totals.wrong_status, 1);
				}
			} else if (status[i] == IBV_WC_SUCCESS) {
				if (window.clear && !window.present) {
					tell("lane %u: a READ succeeded while there was nothing, state %llu",
					     lane->index, (unsigned long long)old.floor);
					atomic_fetch_add(&totals.late_success, 1);
				} else if (wrong) {
					report_wrong(lane, wrong, &old, &new, offsets[i],
						     data[i]->at, length);
				}
			} else {
				failed = true;
				if (status[i] != IBV_WC_REM_ACCESS_ERR) {
					tell("lane %u: absent memory gave %s instead of a remote access error",
					     lane->index, ibv_wc_status_str(status[i]));
					atomic_fetch_add(&totals.wrong_status, 1);
				} else if (window.clear && !window.gone) {
					tell("lane %u: an error although the memory was there, states %llu to %llu",
					     lane->index, (unsigned long long)old.floor,
					     (unsigned long long)new.ceiling);
					atomic_fetch_add(&totals.early_errors, 1);
				} else {
					atomic_fetch_add(&totals.errors_seen, 1);
				}
			}
		}
		if (failed)
			lane_restart(lane);
	}
}

/* --- processes that exit ------------------------------------------------------ */

/* One process that will be killed: false if none is there to connect to. */
static bool exit_once(struct lane *lane, const struct options *options)
{
	int link = connect_to(options->host, options->port + 1, 500);
	struct greeting greeting = { HELLO_EXIT, KEEP, USE_READ, 0, options->seed };
	struct endpoint end;
	bool told_traffic = false, dead = false;
	char byte = COMMAND_TRAFFIC, sink;
	uint64_t key;

	if (link < 0)
		return false;
	endpoint_create(&end, lane->device, DEPTH, 1);
	/* Half a second in all: no answer will come. */
	end.timeout = 15;
	end.retries = 3;
	if (!try_send(link, &greeting, sizeof(greeting)) ||
	    !try_receive(link, &lane->offer, sizeof(lane->offer)) ||
	    !try_send(link, &end.own, sizeof(end.own)) ||
	    !try_receive(link, &end.peer, sizeof(end.peer)))
		goto out;
	endpoint_start(&end);
	key = content_key(options->seed, lane->offer.area, 0);
	if (!try_receive(link, &sink, 1))
		goto out;
	while (!dead) {
		uint64_t offsets[DEPTH] = { 0 };

		while (lane->busy < DEPTH) {
			uint64_t offset;
			struct slot *slot = lane_take(lane, true);
			uint32_t length = 1 + rng_below(&lane->rng, MAX_MESSAGE);

			offset = lane_place(lane, &length);
			offsets[slot - lane->slots] = offset;
			slot->request.rkey = lane->offer.rkey;
			lane_post(lane, &end, slot, IBV_WR_RDMA_READ, offset, length);
		}
		while (lane->busy) {
			struct ibv_wc wc;
			struct slot *slot;
			size_t wrong;

			if (!endpoint_wait(&end, &wc, TIMEOUT_MS)) {
				tell("a killed process: %u completions do not come", lane->busy);
				atomic_fetch_add(&totals.lost, lane->busy);
				lane->busy = 0;
				for (unsigned int i = 0; i < DEPTH; i++)
					lane->slots[i].busy = false;
				dead = true;
				break;
			}
			slot = lane_match(lane, &wc);
			if (!slot || wc.status == IBV_WC_WR_FLUSH_ERR)
				continue;
			if (wc.status != IBV_WC_SUCCESS) {
				dead = true;
				if (wc.status != IBV_WC_RETRY_EXC_ERR &&
				    wc.status != IBV_WC_REM_ACCESS_ERR &&
				    wc.status != IBV_WC_REM_OP_ERR) {
					tell("a killed process gave %s", ibv_wc_status_str(wc.status));
					atomic_fetch_add(&totals.wrong_status, 1);
				}
				continue;
			}
			wrong = content_wrong(slot->at, key, offsets[slot - lane->slots],
					      slot->request.length);
			if (wrong) {
				tell("a killed process: %zu wrong bytes", wrong);
				atomic_fetch_add(&totals.wrong_bytes, wrong);
			}
		}
		if (!told_traffic) {
			told_traffic = true;
			if (!try_send(link, &byte, 1))
				break;
		}
	}
	/* The kernel closes a dead process's connection: an error while it lives is wrong. */
	if (dead && !try_receive(link, &sink, 1))
		atomic_fetch_add(&totals.exits, 1);
	lane->fetching = 0;
out:
	endpoint_destroy(&end);
	close(link);
	return true;
}

/* --- all of it ------------------------------------------------------------------ */

static void slots_create(struct lane *lane)
{
	lane->memory = anonymous(DEPTH * SLOT);
	lane->mr = region(lane->device, lane->memory, DEPTH * SLOT, !lane->options->pinned);
	for (unsigned int i = 0; i < DEPTH; i++) {
		lane->slots[i].buffer = lane->memory + i * SLOT;
		lane->slots[i].expected = malloc(MAX_MESSAGE);
		if (!lane->slots[i].expected)
			die("no memory");
	}
}

static void *lane_run(void *argument)
{
	struct lane *lane = argument;

	if (lane->use != USE_READ) {
		(lane->use == USE_WRITE ? write_run : send_run)(lane);
		return NULL;
	}
	switch (lane->kind) {
	case LOSE:
		lose_run(lane);
		break;
	case GO:
	case GO_REGION:
		go_run(lane);
		break;
	case KINDS:
		while (!stopping)
			if (!exit_once(lane, lane->options))
				sleep_ms(50);
		break;
	default:
		keep_run(lane);
	}
	return NULL;
}

static void lane_start(struct lane *lane, struct device *device, const struct options *options,
		       enum kind kind, enum use use, unsigned int index)
{
	struct greeting greeting = { HELLO_LANE, kind, use, 0, options->seed };

	lane->options = options;
	lane->device = device;
	lane->kind = kind;
	lane->use = use;
	lane->index = index;
	lane->rng.state = mix64(options->seed ^ mix64(index));
	slots_create(lane);
	if (kind == KINDS)
		return;
	lane->link = connect_to(options->host, options->port, 10000);
	if (lane->link < 0)
		die("no server listens at %s:%u", options->host, options->port);
	send_all(lane->link, &greeting, sizeof(greeting));
	receive_all(lane->link, &lane->offer, sizeof(lane->offer));
	lane->shadow = malloc(lane->offer.length);
	if (!lane->shadow)
		die("no memory");
	endpoint_create(&lane->end, device, DEPTH, 1);
	endpoint_meet(&lane->end, lane->link);
	endpoint_start(&lane->end);
	if (has_steady(kind, use)) {
		endpoint_create(&lane->steady, device, DEPTH, 1);
		endpoint_meet(&lane->steady, lane->link);
		endpoint_start(&lane->steady);
	}
	/* Both sides are up. */
	receive_all(lane->link, &(char){ 0 }, 1);
}

/* Compares the counts and the memory of the victim with the records of this side. */
static void lane_finish(struct lane *lane)
{
	char command = COMMAND_FINISH;
	struct account account;
	struct ibv_wc wc;

	while (endpoint_wait(&lane->end, &wc, 0))
		lane_match(lane, &wc);
	send_all(lane->link, &command, 1);
	receive_all(lane->link, &account, sizeof(account));
	atomic_fetch_add(&totals.wrong_bytes, account.wrong_bytes);
	atomic_fetch_add(&totals.doubled, account.doubled);
	/* It has been counted. */
	if (lane->broken)
		return;
	if (account.received < lane->acknowledged) {
		tell("lane %u: %llu messages acknowledged, %llu received", lane->index,
		     (unsigned long long)lane->acknowledged,
		     (unsigned long long)account.received);
		atomic_fetch_add(&totals.lost, lane->acknowledged - account.received);
	} else if (account.received > lane->sent) {
		atomic_fetch_add(&totals.doubled, account.received - lane->sent);
	}
	if (lane->kind <= KEEP_PAIRS) {
		struct checksum sum;

		checksum_init(&sum);
		checksum_add(&sum, lane->shadow, lane->offer.length);
		if (memcmp(sum.lane, account.sum, sizeof(account.sum))) {
			tell("lane %u: the victim's area is not what was written", lane->index);
			atomic_fetch_add(&totals.wrong_bytes, 1);
		}
	}
}

static unsigned int events_idle(int link)
{
	uint8_t byte = COMMAND_ASK;

	send_all(link, &byte, 1);
	receive_all(link, &byte, 1);
	return byte;
}

int client(const struct options *options)
{
	struct greeting greeting = { HELLO_MAIN, KEEP, USE_READ, 0, options->seed };
	unsigned int count = 0;
	struct device device;
	int link, log = kmsg_open();
	int64_t pinned, pinned_with;
	char byte = COMMAND_GO, verdict;
	uint64_t end;

	device_open(&device);
	if (!options->pinned)
		device_needs_odp(&device, options->implicit);
	link = connect_to(options->host, options->port, 10000);
	if (link < 0)
		die("no server listens at %s:%u", options->host, options->port);
	send_all(link, &greeting, sizeof(greeting));
	for (unsigned int i = 0; i < options->qps; i++, count++)
		lane_start(&lanes[count], &device, options, i % 3 == 1 ? KEEP_HUGE : KEEP, USE_READ,
			   count);
	lane_start(&lanes[count], &device, options, KEEP_PAIRS, USE_READ, count);
	count++;
	for (enum kind kind = LOSE; kind <= KINDS; kind++, count++)
		lane_start(&lanes[count], &device, options, kind, USE_READ, count);
	for (enum kind kind = LOSE; kind < KINDS; kind++) {
		lane_start(&lanes[count], &device, options, kind, USE_WRITE, count);
		count++;
		lane_start(&lanes[count], &device, options, kind, USE_SEND, count);
		count++;
	}

	send_all(link, &byte, 1);
	for (unsigned int i = 0; i < count; i++)
		if (pthread_create(&lanes[i].thread, NULL, lane_run, &lanes[i]))
			die("cannot start a thread");
	end = now_ms() + (uint64_t)options->seconds * 1000;
	while (now_ms() < end)
		sleep_ms(50);
	/* On a slow machine the victim may not have come round to every event. */
	end += (uint64_t)options->seconds * 1000 * EXTENSION;
	while (now_ms() < end && events_idle(link))
		sleep_ms(200);
	/* The events end last: the traffic's last requests meet them too. */
	stopping = true;
	for (unsigned int i = 0; i < count; i++)
		pthread_join(lanes[i].thread, NULL);
	byte = COMMAND_STOP;
	send_all(link, &byte, 1);
	receive_all(link, &verdict, 1);
	for (unsigned int i = 0; i < count; i++)
		if (lanes[i].kind != KINDS)
			lane_finish(&lanes[i]);

	pinned_with = pinned_pages();
	for (unsigned int i = 0; i < count; i++)
		if (ibv_dereg_mr(lanes[i].mr))
			die("cannot deregister");
	/* Pinned regions must show, or the count would show nothing. */
	pinned = pinned_with - pinned_pages();
	if (options->pinned)
		pinned = pinned >= (int64_t)(count * DEPTH * SLOT / PAGE) ? 0 : -1;
	byte = COMMAND_END;
	send_all(link, &byte, 1);
	receive_all(link, &verdict, 1);

	say("requests %llu, MiB %llu, errors of absent memory %llu, restarts %llu, exits %llu",
	    totals.requests, totals.bytes >> 20, totals.errors_seen, totals.restarts, totals.exits);
	say("not decidable: torn books %llu, too many states %llu; read back in one state %llu", totals.torn,
	    totals.unclear, totals.compared);
	say("wrong bytes %llu, lost completions %llu, doubled completions %llu, wrong statuses %llu, "
	    "errors without cause %llu, successes on nothing %llu, pinned pages of the regions %lld",
	    totals.wrong_bytes, totals.lost, totals.doubled, totals.wrong_status,
	    totals.early_errors, totals.late_success, (long long)pinned);
	if (totals.torn + totals.unclear > totals.requests / 10)
		die("too much could not be decided");
	if (!totals.requests || !totals.compared)
		die("there was no traffic, or nothing of what was written was read back");
	if (totals.wrong_bytes || totals.lost || totals.doubled || totals.wrong_status ||
	    totals.early_errors || totals.late_success || pinned || kmsg_complaints(log))
		die("see above");
	if (verdict)
		die("the victim has failed");
	say("all right");
	return 0;
}
