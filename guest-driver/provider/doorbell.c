// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The ring of doorbells in the process's page. firmware/abi/src/ring.rs
 * describes the steps, and why a thread that is stopped or killed between two
 * of them delays no other; this file must not differ from it. Its exchanges
 * must be atomic for the threads of the guest only, not for the device.
 *
 * A doorbell that finds no room goes to the kick page instead. So it overtakes
 * those in the ring, which is harmless: doorbells carry absolute indices.
 */
#include <sched.h>
#include <time.h>

#include <util/mmio.h>

#include "faultline.h"

/*
 * Time to wait for room in a full ring. The device empties it in microseconds.
 */
#define FL_DOORBELL_SPIN_NS 20000ULL
/* Rounds after which a ring counts as full: more than invalid contents need. */
#define FL_DOORBELL_TRIES (4 * FAULTLINE_DB_RING_ENTRIES)

uint64_t fl_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* Traps: returns when the device has handled the doorbell, or is gone. */
static void kick(struct fl_context *ctx, uint64_t bits)
{
	mmio_write64_le((void *)ctx->kick, htole64(bits));
}

/* The state of a slot for a thread that appends the doorbell `index`. */
enum slot {
	SLOT_FREE,
	SLOT_UNTAKEN,	/* the doorbell of the lap before */
	SLOT_PASSED,	/* this doorbell was stored, and perhaps taken */
};

static enum slot look(struct faultline_doorbell_page *page, uint64_t index)
{
	uint64_t bits = le64toh(__atomic_load_n(
		&page->ring[index % FAULTLINE_DB_RING_ENTRIES],
		__ATOMIC_ACQUIRE));
	uint64_t lap = index >> FAULTLINE_DB_LAP_SHIFT;

	if (bits == lap)
		return SLOT_FREE;
	if (((bits >> FAULTLINE_DB_TYPE_SHIFT) & FAULTLINE_DB_TYPE_MASK) &&
	    bits >> FAULTLINE_DB_PHASE_SHIFT == (lap & 1))
		return SLOT_UNTAKEN;
	return SLOT_PASSED;
}

static uint64_t load_producer(struct faultline_doorbell_page *page)
{
	return le64toh(__atomic_load_n(&page->producer, __ATOMIC_ACQUIRE));
}

/* Advances `producer` from `index`, unless another thread has done so. */
static void advance(struct faultline_doorbell_page *page, uint64_t index)
{
	__le64 from = htole64(index);

	__atomic_compare_exchange_n(&page->producer, &from, htole64(index + 1),
				    false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Stores a doorbell. Returns false if the ring is full. */
static bool append(struct faultline_doorbell_page *page, uint64_t bits)
{
	unsigned int tries;

	for (tries = 0; tries < FL_DOORBELL_TRIES; tries++) {
		uint64_t index = load_producer(page);
		uint64_t lap = index >> FAULTLINE_DB_LAP_SHIFT;
		__le64 free = htole64(lap);

		switch (look(page, index)) {
		case SLOT_FREE:
			if (!__atomic_compare_exchange_n(
				    &page->ring[index % FAULTLINE_DB_RING_ENTRIES],
				    &free,
				    htole64(bits | (~lap & 1) << FAULTLINE_DB_PHASE_SHIFT),
				    false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
				break;
			advance(page, index);
			return true;
		case SLOT_UNTAKEN:
			/*
			 * The slot may have a doorbell of the next lap, if
			 * `index` is old.
			 */
			if (load_producer(page) == index)
				return false;
			break;
		case SLOT_PASSED:
			advance(page, index);
			break;
		}
	}
	return false;
}

void fl_doorbell(struct fl_context *ctx, uint8_t type, uint32_t object,
		 uint32_t value)
{
	struct faultline_doorbell_page *page = ctx->doorbell;
	uint64_t bits = (uint64_t)type << FAULTLINE_DB_TYPE_SHIFT |
			(uint64_t)object << FAULTLINE_DB_OBJECT_SHIFT | value;
	uint64_t spin_end = 0;

	while (!append(page, bits)) {
		uint64_t now = fl_now_ns();

		if (fl_is_gone(ctx))
			return;
		if (!spin_end) {
			spin_end = now + FL_DOORBELL_SPIN_NS;
		} else if (now > spin_end) {
			kick(ctx, bits);
			return;
		}
	}
	/* The device sets `asleep`, then reads the ring once more. */
	fl_device_barrier();
	if (__atomic_load_n(&page->asleep, __ATOMIC_RELAXED))
		kick(ctx, bits);
}

/*
 * Index behind the last stored doorbell, including those whose threads have not
 * advanced `producer`.
 */
static uint64_t ring_end(struct faultline_doorbell_page *page)
{
	unsigned int tries;
	uint64_t index;

	for (tries = 0; tries < FL_DOORBELL_TRIES; tries++) {
		index = load_producer(page);
		if (look(page, index) != SLOT_PASSED)
			return index;
		advance(page, index);
	}
	return load_producer(page);
}

/*
 * Waits until the device has handled the doorbells in the ring. Must be called
 * before a command after which indices of an object restart at zero: the device
 * may execute commands before doorbells, and would take an old index for a new
 * one.
 */
void fl_doorbell_drain(struct fl_context *ctx)
{
	struct faultline_doorbell_page *page = ctx->doorbell;
	uint64_t end = ring_end(page);
	uint64_t deadline = fl_now_ns() + FL_DEVICE_TIMEOUT_NS;

	while ((int64_t)(end - le64toh(__atomic_load_n(&page->consumer,
						       __ATOMIC_ACQUIRE))) > 0 &&
	       !fl_is_gone(ctx) && fl_now_ns() < deadline)
		sched_yield();
}
