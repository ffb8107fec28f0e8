// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Lanes that write to memory which changes or goes: WRITE, atomics, SEND. */
#include "torture_lane.h"

#include <string.h>

/* The words for atomics are in the last pages of a lane's part, WRITEs in those before. */
#define WORDS (2 * PAGE)

enum { WRITE, WRITE_WORD, ADD, READ, READ_WORD, BURST };

struct burst {
	struct slot *slots[BURST];
	enum ibv_wc_status status[BURST];
	uint64_t key;
	uint64_t word;
	uint64_t added;
};

static struct slot *post_one(struct lane *lane, uint32_t rkey, enum ibv_wr_opcode opcode,
			     uint64_t offset, uint32_t length, const void *data)
{
	struct slot *slot = lane_take(lane, !data);

	if (length == sizeof(uint64_t))
		slot->at = slot->buffer + rng_below(&lane->rng, PAGE / 8) * 8;
	if (lane->options->aligned)
		slot->at = slot->buffer;
	if (data)
		memcpy(slot->at, data, length);
	slot->held = true;
	slot->request.rkey = rkey;
	lane_post(lane, &lane->end, slot, opcode, offset, length);
	return slot;
}

/* WRITEs something and a word, adds to the word, and READs both: all in order, as RC has it. */
static void burst_post(struct lane *lane, uint32_t rkey, struct burst *burst)
{
	static __thread uint8_t data[MAX_MESSAGE];
	uint32_t length = 1 + rng_below(&lane->rng, 1u << rng_below(&lane->rng, 15));
	uint64_t offset, words = lane->offer.length - WORDS, word;

	if (length > sizeof(data))
		length = sizeof(data);
	if (lane->options->aligned && length > ONE_PACKET)
		length = ONE_PACKET;
	offset = rng_below(&lane->rng, words - length);
	word = words + rng_below(&lane->rng, WORDS / 8) * 8;
	if (lane->options->aligned) {
		offset -= offset % PAGE;
		word -= word % PAGE;
	}
	burst->key = rng_next(&lane->rng);
	burst->word = rng_next(&lane->rng);
	burst->added = rng_next(&lane->rng);
	content_fill(data, burst->key, 0, length);
	burst->slots[WRITE] = post_one(lane, rkey, IBV_WR_RDMA_WRITE, offset, length, data);
	burst->slots[WRITE_WORD] =
		post_one(lane, rkey, IBV_WR_RDMA_WRITE, word, sizeof(burst->word), &burst->word);
	/* What an atomic gives back lands where nothing is yet. */
	burst->slots[ADD] = lane_take(lane, true);
	burst->slots[ADD]->at = burst->slots[ADD]->buffer;
	burst->slots[ADD]->held = true;
	burst->slots[ADD]->request.rkey = rkey;
	burst->slots[ADD]->request.compare_add = burst->added;
	lane_post(lane, &lane->end, burst->slots[ADD], IBV_WR_ATOMIC_FETCH_AND_ADD, word,
		  sizeof(burst->word));
	burst->slots[READ] = post_one(lane, rkey, IBV_WR_RDMA_READ, offset, length, NULL);
	burst->slots[READ_WORD] =
		post_one(lane, rkey, IBV_WR_RDMA_READ, word, sizeof(burst->word), NULL);
}

/* Whether each request ended as the states between the two looks allow; true if all have succeeded. */
static bool burst_judge(struct lane *lane, const struct burst *burst, const struct window *window)
{
	for (unsigned int i = 0; i < BURST; i++) {
		bool reads = i == READ || i == READ_WORD;
		bool refused = window->gone || (!reads && window->read_only);
		bool allowed = reads ? window->present : window->writable;

		if (burst->status[i] == IBV_WC_SUCCESS) {
			if (window->clear && !allowed) {
				tell("lane %u: request %u of a burst succeeded while nothing allowed it",
				     lane->index, i);
				atomic_fetch_add(&totals.late_success, 1);
			}
			continue;
		}
		if (burst->status[i] != IBV_WC_REM_ACCESS_ERR) {
			tell("lane %u: request %u of a burst gave %s instead of a remote access error",
			     lane->index, i, ibv_wc_status_str(burst->status[i]));
			atomic_fetch_add(&totals.wrong_status, 1);
		} else if (window->clear && !refused) {
			tell("lane %u: request %u of a burst was refused, and nothing forbade it",
			     lane->index, i);
			atomic_fetch_add(&totals.early_errors, 1);
		} else {
			atomic_fetch_add(&totals.errors_seen, 1);
		}
		while (++i < BURST)
			if (burst->status[i] != IBV_WC_WR_FLUSH_ERR) {
				tell("lane %u: behind an error came %s", lane->index,
				     ibv_wc_status_str(burst->status[i]));
				atomic_fetch_add(&totals.wrong_status, 1);
			}
		return false;
	}
	return true;
}

/* If the memory was not changed, a READ returns the written data. */
static void burst_compare(struct lane *lane, const struct burst *burst)
{
	const struct slot *read = burst->slots[READ];
	uint64_t fetched, word;
	size_t wrong = content_wrong(read->at, burst->key, 0, read->request.length);

	memcpy(&fetched, burst->slots[ADD]->at, sizeof(fetched));
	memcpy(&word, burst->slots[READ_WORD]->at, sizeof(word));
	if (wrong)
		tell("lane %u: %zu of %u bytes written to %#llx did not come back", lane->index,
		     wrong, read->request.length,
		     (unsigned long long)(read->request.remote - lane->offer.remote));
	if (fetched != burst->word || word != burst->word + burst->added) {
		tell("lane %u: a word %#llx was fetched as %#llx, and with %#llx added it was %#llx",
		     lane->index, (unsigned long long)burst->word, (unsigned long long)fetched,
		     (unsigned long long)burst->added, (unsigned long long)word);
		wrong += sizeof(word);
	}
	atomic_fetch_add(&totals.wrong_bytes, wrong);
	atomic_fetch_add(&totals.compared, 1);
}

void write_run(struct lane *lane)
{
	while (!stopping) {
		struct slot *book = lane_post_book(lane, &lane->steady);
		struct book before, after;
		struct window window;
		struct burst burst;
		bool succeeded;

		if (!lane_expect(lane, &lane->steady, 1))
			return;
		memcpy(&before, book->at, sizeof(before));
		burst_post(lane, before.rkey, &burst);
		if (!lane_statuses(lane, burst.slots, burst.status, BURST))
			return;
		book = lane_post_book(lane, &lane->steady);
		if (!lane_expect(lane, &lane->steady, 1))
			return;
		lane->fetching = 0;
		memcpy(&after, book->at, sizeof(after));
		window_between(lane, &before, &after, &window);
		if (!window.clear)
			atomic_fetch_add(&totals.unclear, 1);
		succeeded = burst_judge(lane, &burst, &window);
		if (succeeded && window.clear && window.single)
			burst_compare(lane, &burst);
		for (unsigned int i = 0; i < BURST; i++)
			burst.slots[i]->held = false;
		if (!succeeded)
			lane_restart(lane);
	}
}

void send_run(struct lane *lane)
{
	enum { MESSAGES = 3 };

	while (!stopping) {
		struct slot *slots[MESSAGES];
		enum ibv_wc_status status[MESSAGES];
		bool failed = false;

		for (unsigned int i = 0; i < MESSAGES; i++) {
			struct slot *slot = lane_take(lane, false);
			uint32_t length = 1 + rng_below(&lane->rng, 1u << rng_below(&lane->rng, 15));
			uint32_t limit = lane->options->aligned ? ONE_PACKET : MAX_MESSAGE;

			length = length > limit ? limit : length;
			slot->request.immediate = lane->sent;
			content_fill(slot->at,
				     content_key(lane->options->seed, lane->offer.base, lane->sent),
				     0, length);
			lane->sent++;
			slot->held = true;
			slots[i] = slot;
			lane_post(lane, &lane->end, slot, IBV_WR_SEND_WITH_IMM, 0, length);
		}
		if (!lane_statuses(lane, slots, status, MESSAGES))
			return;
		for (unsigned int i = 0; i < MESSAGES; i++) {
			slots[i]->held = false;
			if (failed ? status[i] == IBV_WC_WR_FLUSH_ERR :
				     status[i] == IBV_WC_SUCCESS) {
				lane->acknowledged += !failed;
			} else if (!failed && status[i] == IBV_WC_REM_OP_ERR) {
				/* The victim knows whether it was right. */
				failed = true;
				atomic_fetch_add(&totals.errors_seen, 1);
			} else {
				tell("lane %u: a SEND ended with %s", lane->index,
				     ibv_wc_status_str(status[i]));
				failed = true;
				atomic_fetch_add(&totals.wrong_status, 1);
			}
		}
		if (failed)
			lane_restart(lane);
	}
}
