// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * fault_cost [ROUNDS]: what a page fault of the device costs, beside a page fault of
 * the processor.
 *
 * The ratio is (absent - warm) / local: the time of a WRITE that meets an absent page,
 * less that of the same WRITE when the page is present, in local first touches. The
 * memory is new, so that each page must be allocated. The ratio is that of medians; a
 * second one, of the times that a tenth of the requests stay below, depends less on what
 * else runs on the machine.
 *
 * Runs in one guest. It measures, and fails only if there was nothing to measure, or
 * if bytes are wrong.
 */
#include "watched.h"

#include <stdlib.h>

#define PAGES 512UL
#define LENGTH (PAGES * PAGE)
#define PAIRS 16U
/* Pages of a range that is discarded in one call. */
#define DISCARD 16UL

struct bench {
	struct device device;
	struct loop loops[PAIRS];
	/* Pinned. */
	uint8_t *buffer;
	struct ibv_mr *mr;
	size_t order[PAGES];
};

/* Memory that no processor has touched, registered on demand. */
struct fresh {
	uint8_t *memory;
	struct ibv_mr *mr;
	long faults;
};

/* A huge page would be one fault for 512. */
static uint8_t *small_pages(void)
{
	uint8_t *memory = anonymous(LENGTH);

	if (madvise(memory, LENGTH, MADV_NOHUGEPAGE))
		die("cannot advise: %m");
	return memory;
}

static void set_order(struct bench *bench, bool random)
{
	struct rng rng = { 11 };

	for (size_t i = 0; i < PAGES; i++)
		bench->order[i] = i;
	for (size_t i = PAGES; random && i > 1; i--) {
		size_t other = rng_below(&rng, i), saved = bench->order[i - 1];

		bench->order[i - 1] = bench->order[other];
		bench->order[other] = saved;
	}
}

/* Nanoseconds. */
struct times {
	uint64_t median;
	uint64_t tenth;
};

static struct times times_of(uint64_t *values)
{
	struct times times = { .median = median(values, PAGES) };

	times.tenth = values[PAGES / 10];
	return times;
}

static struct times local_touch(const struct bench *bench)
{
	static uint64_t took[PAGES];
	volatile uint8_t *memory = small_pages();

	for (size_t i = 0; i < PAGES; i++) {
		uint64_t start = now_ns();

		memory[bench->order[i] * PAGE] = 1;
		took[i] = now_ns() - start;
	}
	munmap((void *)memory, LENGTH);
	return times_of(took);
}

static struct fresh fresh_open(struct bench *bench)
{
	struct fresh fresh = { .memory = small_pages() };

	fresh.mr = region(&bench->device, fresh.memory, LENGTH, true);
	fresh.faults = device_counter(&bench->device, "page_faults");
	return fresh;
}

static long fresh_faults(const struct bench *bench, const struct fresh *fresh)
{
	return device_counter(&bench->device, "page_faults") - fresh->faults;
}

static void fresh_close(struct bench *bench, struct fresh *fresh)
{
	for (size_t i = 0; i < PAGES; i++)
		WANT(!memcmp(fresh->memory + i * PAGE, bench->buffer, PAGE));
	WANT(!ibv_dereg_mr(fresh->mr));
	munmap(fresh->memory, LENGTH);
}

static struct request page_write(const struct bench *bench, const struct fresh *fresh, size_t page)
{
	return (struct request) {
		.opcode = IBV_WR_RDMA_WRITE,
		.id = page,
		.local = bench->buffer,
		.length = PAGE,
		.lkey = bench->mr->lkey,
		.remote = (uintptr_t)fresh->memory + page * PAGE,
		.rkey = fresh->mr->rkey,
	};
}

static void complete(struct endpoint *end)
{
	struct ibv_wc wc;

	if (!endpoint_wait(end, &wc, 60000))
		die("a request does not complete");
	if (wc.status)
		die("page %lu: %s", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
}

static struct times each_page(struct bench *bench, const struct fresh *fresh)
{
	static uint64_t took[PAGES];
	struct endpoint *end = &bench->loops[0].near;

	for (size_t i = 0; i < PAGES; i++) {
		struct request request = page_write(bench, fresh, bench->order[i]);
		uint64_t start = now_ns();

		endpoint_post(end, &request);
		complete(end);
		took[i] = now_ns() - start;
	}
	return times_of(took);
}

static void report(const char *name, const char *which, uint64_t local, uint64_t warm,
		   uint64_t absent)
{
	say("%s, %s: local %.1f us, warm %.1f us, absent %.1f us, ratio %.1f", name, which,
	    local / 1e3, warm / 1e3, absent / 1e3, ((double)absent - warm) / local);
}

/* One request after the other. */
static void latency(struct bench *bench, const char *name)
{
	struct times local = local_touch(bench), absent, warm;
	struct fresh fresh = fresh_open(bench);
	long faults;

	absent = each_page(bench, &fresh);
	faults = fresh_faults(bench, &fresh);
	warm = each_page(bench, &fresh);
	report(name, "median", local.median, warm.median, absent.median);
	report(name, "fastest tenth", local.tenth, warm.tenth, absent.tenth);
	say("%s: %lu pages, %ld faults", name, PAGES, faults);
	/* Each page has been absent, and read-ahead allocates none. */
	WANT(faults >= (long)PAGES / 2);
	fresh_close(bench, &fresh);
}

/* `depth` requests at a time on each of `pairs` queue pairs, which take pages in turn. */
static void throughput(struct bench *bench, unsigned int pairs, unsigned int depth)
{
	struct fresh fresh = fresh_open(bench);
	uint64_t start = now_ns();
	size_t posted = 0;
	long faults;

	for (; posted < (size_t)pairs * depth; posted++) {
		struct request request = page_write(bench, &fresh, bench->order[posted]);

		endpoint_post(&bench->loops[posted % pairs].near, &request);
	}
	for (size_t done = 0; done < PAGES; done++) {
		struct endpoint *end = &bench->loops[done % pairs].near;

		complete(end);
		if (posted < PAGES) {
			struct request request = page_write(bench, &fresh, bench->order[posted++]);

			endpoint_post(end, &request);
		}
	}
	start = now_ns() - start;
	faults = fresh_faults(bench, &fresh);
	say("%u queue pairs, %u requests each: %.0f pages/s, faults %ld", pairs, depth,
	    PAGES * 1e9 / start, faults);
	WANT(faults >= (long)PAGES / 2);
	fresh_close(bench, &fresh);
}

/* The cost of the notifier for memory without entries in the device. */
static void discard(struct bench *bench)
{
	static uint64_t took[PAGES];
	uint8_t *memory = small_pages();
	struct ibv_mr *mr = region(&bench->device, memory, LENGTH, true);

	for (size_t i = 0; i < PAGES; i++) {
		uint64_t start = now_ns();

		if (madvise(memory + i % (PAGES / DISCARD) * DISCARD * PAGE, DISCARD * PAGE,
			    MADV_DONTNEED))
			die("cannot discard: %m");
		took[i] = now_ns() - start;
	}
	say("discard of absent pages: %.1f us", median(took, PAGES) / 1e3);
	WANT(!ibv_dereg_mr(mr));
	munmap(memory, LENGTH);
}

int main(int argc, char **argv)
{
	unsigned int rounds = argc > 1 ? atoi(argv[1]) : 1;
	int kmsg = kmsg_open();
	struct bench bench;

	device_open(&bench.device);
	device_needs_odp(&bench.device, false);
	for (size_t i = 0; i < PAIRS; i++)
		loop_create(&bench.loops[i], &bench.device);
	bench.buffer = anonymous(PAGE);
	content_fill(bench.buffer, content_key(31, 0, 0), 0, PAGE);
	bench.mr = region(&bench.device, bench.buffer, PAGE, false);
	for (unsigned int i = 0; i < rounds; i++) {
		set_order(&bench, false);
		latency(&bench, "sequential");
		set_order(&bench, true);
		latency(&bench, "random");
		throughput(&bench, 1, 1);
		throughput(&bench, 1, PAIRS);
		throughput(&bench, PAIRS, 1);
		discard(&bench);
	}
	WANT(!ibv_dereg_mr(bench.mr));
	for (size_t i = 0; i < PAIRS; i++)
		loop_destroy(&bench.loops[i]);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
