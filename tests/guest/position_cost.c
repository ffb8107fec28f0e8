// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * position_cost: what a message costs in each position of the debate about
 * pinned memory, from 4 KiB to 16 MiB. A message is a WRITE from a buffer of
 * the process to pinned memory, from the look for its key to its completion.
 * Small messages are measured by eight: a device that has had nothing to do
 * sleeps, and the first request wakes it.
 * The positions are measured in turn, so that the machine is the same for all,
 * and the time that a tenth of the messages keep to is printed: others wait for
 * whatever else the machine does.
 * Each line is a name, a value and a unit, separated by tabs. Runs in one guest.
 */
#include <stdio.h>
#include <stdlib.h>

#include "watched.h"

#define KIB 1024UL
#define LARGEST (16 * 1024 * KIB)
#define SMALLEST (4 * KIB)
#define HUGE (2048 * KIB)
/* Of a message, the fewest and the most. */
#define MIN_TIMES 31
#define MAX_TIMES 101
/* Bytes for all messages of a size and position, if the times allow it. */
#define BYTES (64 * 1024 * KIB)
/* Buffers in a cache. */
#define ENTRIES 40
/* Small messages at a time. */
#define SLOTS 8
#define CALLS 2000000
#define SMALL_MESSAGES 2001

struct entry {
	void *at;
	size_t length;
	struct ibv_mr *mr;
	struct faultlinedv_watch *watch;
	uint64_t value;
};

static struct device device;
static struct loop loop;
static struct faultlinedv_events *events;
static uint8_t *buffer;
static uint8_t *target;
static struct ibv_mr *target_mr;
static struct entry cache[ENTRIES];
static struct ibv_mr *pinned;
static struct ibv_mr *leased;
static struct ibv_mr *on_demand;
static struct ibv_mr *implicit;
/* The position. */
static const char *measured;

static struct ibv_mr *must(struct ibv_mr *mr)
{
	if (!mr)
		die("cannot register: %m");
	return mr;
}

/* The buffer of a message; buffers of small ones are too far from each other to be read ahead together. */
static uint8_t *slot(unsigned int number)
{
	return buffer + number * HUGE;
}

static unsigned int slots_of(size_t length)
{
	return length < HUGE / 4 ? SLOTS : 1;
}

static void post(void *from, size_t length, uint32_t lkey)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE, .local = from, .length = length, .lkey = lkey,
		.remote = (uintptr_t)target, .rkey = target_mr->rkey,
	};

	endpoint_post(&loop.near, &request);
}

static void complete(unsigned int messages)
{
	struct ibv_wc wc;

	while (messages) {
		int count = ibv_poll_cq(loop.near.cq, 1, &wc);

		if (count < 0 || (count && wc.status != IBV_WC_SUCCESS))
			die("%s: %s", measured, count < 0 ? "cannot poll" : ibv_wc_status_str(wc.status));
		messages -= count;
	}
}

/* --- the positions -------------------------------------------------------- */

static uint32_t pinned_for_ever(uint8_t *at, size_t length)
{
	(void)at;
	(void)length;
	return pinned->lkey;
}

static struct ibv_mr *registered[SLOTS];

static uint32_t registered_each_time(uint8_t *at, size_t length)
{
	struct ibv_mr *mr = must(ibv_reg_mr(device.pd, at, length, ALL_ACCESS));

	registered[(at - buffer) / HUGE] = mr;
	return mr->lkey;
}

static void deregister(uint8_t *at, size_t length)
{
	(void)length;
	WANT(!ibv_dereg_mr(registered[(at - buffer) / HUGE]));
}

static struct entry *look_up(uint8_t *at, size_t length)
{
	for (struct entry *entry = cache; entry < cache + ENTRIES; entry++)
		if (entry->at == at && entry->length == length)
			return entry;
	die("no entry of the cache for %zu bytes", length);
}

static uint32_t naive_cache(uint8_t *at, size_t length)
{
	return look_up(at, length)->mr->lkey;
}

static uint32_t watched_cache(uint8_t *at, size_t length)
{
	struct entry *entry = look_up(at, length);

	if (faultlinedv_watch_value(entry->watch) != entry->value)
		die("the mapping has changed");
	return entry->mr->lkey;
}

/* The registration stands: other positions of this program have changed the counter. */
static void renew(uint8_t *at, size_t length)
{
	struct entry *entry = look_up(at, length);

	WANT(!faultlinedv_sync_watch(entry->watch, &entry->value));
}

static uint32_t with_lease(uint8_t *at, size_t length)
{
	(void)at;
	(void)length;
	return leased->lkey;
}

static uint32_t explicit_region(uint8_t *at, size_t length)
{
	(void)at;
	(void)length;
	return on_demand->lkey;
}

static uint32_t implicit_region(uint8_t *at, size_t length)
{
	(void)at;
	(void)length;
	return implicit->lkey;
}

static uint32_t prefetched(uint8_t *at, size_t length)
{
	struct ibv_sge range = { (uintptr_t)at, length, on_demand->lkey };

	WANT(!ibv_advise_mr(device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH,
			    &range, 1));
	return on_demand->lkey;
}

/* Before a message whose pages are to be present in the device. */
static void bring_explicit(uint8_t *at, size_t length)
{
	post(at, length, on_demand->lkey);
	complete(1);
}

static void bring_implicit(uint8_t *at, size_t length)
{
	post(at, length, implicit->lkey);
	complete(1);
}

/*
 * The device loses its entries, and the process keeps its pages. All of the
 * buffer: a change of rights that divides a mapping counts as a change of the
 * 2 MiB around, and the region with a lease would lose its pages.
 */
static void take_away(uint8_t *at, size_t length)
{
	(void)length;
	if (at != buffer)
		return;
	WANT(!mprotect(buffer, LARGEST, PROT_READ));
	WANT(!mprotect(buffer, LARGEST, PROT_READ | PROT_WRITE));
}

static const struct position {
	const char *name;
	/* The key for a message. */
	uint32_t (*key)(uint8_t *at, size_t length);
	/* Before each message, not timed; and after it. */
	void (*before)(uint8_t *at, size_t length);
	void (*after)(uint8_t *at, size_t length);
} positions[] = {
	{ "pinned for ever", pinned_for_ever, NULL, NULL },
	{ "registered and deregistered", registered_each_time, NULL, deregister },
	{ "naive cache", naive_cache, NULL, NULL },
	{ "cache with watch", watched_cache, renew, NULL },
	{ "lease", with_lease, NULL, NULL },
	{ "on demand, present", explicit_region, bring_explicit, NULL },
	{ "implicit, present", implicit_region, bring_implicit, NULL },
	{ "on demand, absent in the device", explicit_region, take_away, NULL },
	{ "prefetched, absent in the device", prefetched, take_away, NULL },
};

/* -------------------------------------------------------------------------- */

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

/* The time that a tenth of the values keep to; sorts them. */
static double fastest_tenth(uint64_t *values, size_t count)
{
	qsort(values, count, sizeof(*values), compare);
	return values[count / 10] / 1e3;
}

/* The time of a message in a position. */
static uint64_t time_of(const struct position *position, size_t length)
{
	unsigned int slots = slots_of(length);
	uint64_t start;

	measured = position->name;
	for (unsigned int i = 0; position->before && i < slots; i++)
		position->before(slot(i), length);
	/* The data is in the caches of the machine, and the device awake, for each position alike. */
	for (unsigned int i = 0; i < slots; i++)
		post(slot(i), length, pinned->lkey);
	complete(slots);
	start = now_ns();
	for (unsigned int i = 0; i < slots; i++)
		post(slot(i), length, position->key(slot(i), length));
	complete(slots);
	for (unsigned int i = 0; position->after && i < slots; i++)
		position->after(slot(i), length);
	return (now_ns() - start) / slots;
}

static void measure(size_t length)
{
	size_t times = BYTES / length;
	static uint64_t took[ARRAY_SIZE(positions)][MAX_TIMES];

	times = times < MIN_TIMES ? MIN_TIMES : times > MAX_TIMES ? MAX_TIMES : times;
	for (size_t round = 0; round < times; round++)
		for (size_t i = 0; i < ARRAY_SIZE(positions); i++)
			took[i][round] = time_of(&positions[i], length);
	for (size_t i = 0; i < ARRAY_SIZE(positions); i++)
		printf("message of %zu KiB, %s\t%.3f\tus\n", length / KIB, positions[i].name,
		       fastest_tenth(took[i], times));
	fflush(stdout);
}

/* What the comparison adds to the send path: its time, and that of the call that posts a request. */
static void measure_check(void)
{
	struct entry *entry = look_up(buffer, SMALLEST);
	static uint64_t took[SMALL_MESSAGES];
	uint64_t start = now_ns(), empty, checked, same = 0;

	for (unsigned long i = 0; i < CALLS; i++)
		__asm__ volatile("" : : "r"(i) : "memory");
	empty = now_ns() - start;
	start = now_ns();
	for (unsigned long i = 0; i < CALLS; i++) {
		same += faultlinedv_watch_value(entry->watch) == entry->value;
		__asm__ volatile("" : : "r"(i) : "memory");
	}
	checked = now_ns() - start;
	WANT(same == CALLS);
	for (unsigned int i = 0; i < SMALL_MESSAGES; i++) {
		/* The device is awake. */
		post(buffer, 8, pinned->lkey);
		start = now_ns();
		post(buffer, 8, pinned->lkey);
		took[i] = now_ns() - start;
		complete(2);
	}
	printf("comparison with a watch's counter\t%.6f\tus\n",
	       (checked > empty ? checked - empty : 0) / 1e3 / CALLS);
	printf("posting of a WRITE of 8 bytes\t%.3f\tus\n", fastest_tenth(took, SMALL_MESSAGES));
}

static void prepare(void)
{
	struct faultlinedv_mr_attr attr = {
		.mode = FAULTLINEDV_MR_LEASE, .lease_ms = 1000,
	};
	unsigned int used = 0;

	device_open(&device);
	device_needs_odp(&device, true);
	loop_create(&loop, &device);
	events = attr.events = events_create(&device, 64);
	buffer = anonymous(LARGEST + HUGE);
	buffer += -(uintptr_t)buffer % HUGE;
	target = anonymous(LARGEST);
	/* Of the price of a huge page a page would have a share of 1/512. */
	WANT(!madvise(buffer, LARGEST, MADV_NOHUGEPAGE) && !madvise(target, LARGEST, MADV_NOHUGEPAGE));
	content_fill(buffer, content_key(1, 0, 0), 0, LARGEST);
	target_mr = region(&device, target, LARGEST, false);
	pinned = region(&device, buffer, LARGEST, false);
	on_demand = region(&device, buffer, LARGEST, true);
	implicit = must(ibv_reg_mr(device.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND));
	leased = must(faultlinedv_reg_mr(device.pd, buffer, LARGEST, (uintptr_t)buffer, ALL_ACCESS,
					 &attr));
	for (size_t length = SMALLEST; length <= LARGEST; length *= 4) {
		for (unsigned int i = 0; i < slots_of(length); i++) {
			struct entry *entry = &cache[used++];

			entry->at = slot(i);
			entry->length = length;
			entry->mr = region(&device, slot(i), length, false);
			entry->watch = faultlinedv_create_watch(events, slot(i), length, used);
			if (!entry->watch || faultlinedv_sync_watch(entry->watch, &entry->value))
				die("cannot watch: %m");
		}
	}
	WANT(used <= ENTRIES);
}

int main(void)
{
	prepare();
	measure_check();
	for (size_t length = SMALLEST; length <= LARGEST; length *= 4)
		measure(length);
	post(buffer, LARGEST, pinned->lkey);
	complete(1);
	WANT(!content_wrong(target, content_key(1, 0, 0), 0, LARGEST));
	puts("PASS");
	return 0;
}
