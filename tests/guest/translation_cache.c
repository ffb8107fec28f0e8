// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * translation_cache: what the device counts of its translation cache. A page
 * that is used again is a hit and no miss, a page that is new is a miss, and
 * what goes from a page table is shot down. Runs in one guest, which must be
 * idle otherwise.
 */
#include "watched.h"

#define PAGES 16
#define ROUNDS 50
/* What the kernel's own packets may add meanwhile. */
#define NOISE 200

struct counts {
	long hits;
	long misses;
	long shootdowns;
	long faults;
};

static struct device device;
static struct loop loop;
static uint8_t *buffer;
static struct ibv_mr *mr;

static struct counts count(void)
{
	return (struct counts) {
		.hits = device_counter(&device, "tlb_hits"),
		.misses = device_counter(&device, "tlb_misses"),
		.shootdowns = device_counter(&device, "tlb_shootdowns"),
		.faults = device_counter(&device, "page_faults"),
	};
}

static struct counts since(const struct counts *before)
{
	struct counts now = count();

	return (struct counts) {
		now.hits - before->hits, now.misses - before->misses,
		now.shootdowns - before->shootdowns, now.faults - before->faults,
	};
}

static void write_pages(uint8_t *at, uint32_t rkey, unsigned int rounds)
{
	static uint64_t generation;

	for (unsigned int round = 0; round < rounds; round++) {
		uint64_t key = content_key(9, 0, ++generation);

		content_fill(buffer, key, 0, 64);
		for (unsigned int i = 0; i < PAGES; i++) {
			WANT(loop_do(&loop, IBV_WR_RDMA_WRITE, buffer, 64, mr->lkey, at + i * PAGE,
				     rkey) == IBV_WC_SUCCESS);
			WANT(!content_wrong(at + i * PAGE, key, 0, 64));
		}
	}
}

int main(void)
{
	int kmsg = kmsg_open();
	uint8_t *at = anonymous(PAGES * PAGE);
	struct counts before, first, warm, gone;
	struct ibv_mr *far;

	device_open(&device);
	device_needs_odp(&device, false);
	loop_create(&loop, &device);
	buffer = anonymous(PAGE);
	mr = region(&device, buffer, PAGE, false);
	madvise(at, PAGES * PAGE, MADV_NOHUGEPAGE);
	/* Present: the driver reports them to the device when it registers. */
	memset(at, 1, PAGES * PAGE);
	far = region(&device, at, PAGES * PAGE, true);

	before = count();
	WANT(before.hits >= 0 && before.misses >= 0 && before.shootdowns >= 0);
	write_pages(at, far->rkey, 1);
	first = since(&before);
	say("the first time: %ld hits, %ld misses, %ld faults", first.hits, first.misses, first.faults);
	WANT(first.misses >= PAGES);

	before = count();
	write_pages(at, far->rkey, ROUNDS);
	warm = since(&before);
	say("%u times again: %ld hits, %ld misses, %ld shoot-downs", ROUNDS, warm.hits, warm.misses,
	    warm.shootdowns);
	/* At least the page that is written and the buffer that is sent. */
	WANT(warm.hits >= 2L * PAGES * ROUNDS);
	WANT(warm.misses < NOISE && warm.shootdowns == 0 && warm.faults == 0);

	/* One shoot-down of the region, for any number of pages, and all of them are looked up again. */
	before = count();
	WANT(!madvise(at, PAGES * PAGE, MADV_DONTNEED));
	gone = since(&before);
	WANT(gone.shootdowns >= 1 && gone.shootdowns <= PAGES);
	before = count();
	write_pages(at, far->rkey, 1);
	gone = since(&before);
	say("after they were gone: %ld misses, %ld faults", gone.misses, gone.faults);
	WANT(gone.misses >= PAGES && gone.faults >= 1);

	/* A key that goes takes its lines along. */
	before = count();
	WANT(!ibv_dereg_mr(far));
	far = region(&device, at, PAGES * PAGE, true);
	write_pages(at, far->rkey, 1);
	WANT(since(&before).misses >= PAGES);

	WANT(!ibv_dereg_mr(far) && !ibv_dereg_mr(mr));
	loop_destroy(&loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
