// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The ring of doorbells in our page (firmware/abi/src/doorbell.rs).
 *
 * Several threads append at once. A slot is claimed only while there is room:
 * a claimed slot is always filled, since the device would wait at a hole for
 * ever. What finds no room goes to the kick page instead. It so overtakes what
 * is in the ring, which is harmless: doorbells carry absolute indices.
 */
#include <sched.h>
#include <time.h>

#include <util/mmio.h>

#include "faultline.h"

/* How long a full ring is watched. The device empties it in microseconds. */
#define FL_DOORBELL_SPIN_NS 20000ULL

uint64_t fl_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

/* Trapped: returns when the device has handled it, or is no more. */
static void kick(struct fl_context *ctx, uint64_t bits)
{
	mmio_write64_le((void *)ctx->kick, htole64(bits));
}

/*
 * Claims a slot. False: the ring is full. `consumer` may have passed a
 * `producer` that was read earlier; then the exchange fails.
 */
static bool claim(struct faultline_doorbell_page *page, uint32_t *index)
{
	*index = __atomic_load_n(&page->producer, __ATOMIC_RELAXED);
	do {
		uint32_t consumer = __atomic_load_n(&page->consumer,
						    __ATOMIC_ACQUIRE);

		if ((int32_t)(*index - consumer) >= FAULTLINE_DB_RING_ENTRIES)
			return false;
	} while (!__atomic_compare_exchange_n(&page->producer, index, *index + 1,
					      true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	return true;
}

void fl_doorbell(struct fl_context *ctx, uint8_t type, uint32_t object,
		 uint32_t value)
{
	struct faultline_doorbell_page *page = ctx->doorbell;
	uint64_t bits = (uint64_t)type << FAULTLINE_DB_TYPE_SHIFT |
			(uint64_t)object << FAULTLINE_DB_OBJECT_SHIFT | value;
	uint64_t lap, patience = 0;
	uint32_t index;

	while (!claim(page, &index)) {
		uint64_t now = fl_now_ns();

		if (fl_is_gone(ctx))
			return;
		if (!patience) {
			patience = now + FL_DOORBELL_SPIN_NS;
		} else if (now > patience) {
			kick(ctx, bits);
			return;
		}
	}
	lap = !((index >> FAULTLINE_DB_LAP_SHIFT) & 1);
	__atomic_store_n(&page->ring[index % FAULTLINE_DB_RING_ENTRIES],
			 htole64(bits | lap << FAULTLINE_DB_PHASE_SHIFT),
			 __ATOMIC_RELEASE);
	/* The device sets `asleep`, then looks at the ring once more. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&page->asleep, __ATOMIC_RELAXED))
		kick(ctx, bits);
}

/*
 * Waits until the device has taken what is in the ring. To be called before a
 * command after which indices of an object count from zero: the device may
 * run commands ahead of doorbells, and an old index would then count as new.
 */
void fl_doorbell_drain(struct fl_context *ctx)
{
	struct faultline_doorbell_page *page = ctx->doorbell;
	uint32_t end = __atomic_load_n(&page->producer, __ATOMIC_ACQUIRE);
	uint64_t patience = fl_now_ns() + FL_PATIENCE_NS;

	while ((int32_t)(end - __atomic_load_n(&page->consumer,
					       __ATOMIC_ACQUIRE)) > 0 &&
	       !fl_is_gone(ctx) && fl_now_ns() < patience)
		sched_yield();
}
