// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * implicit_space: one region over the whole address space, in which 1 TiB is
 * mapped and little of it touched. What driver and device keep for it must be in
 * proportion to what is touched, in the worst case (each page in a part of its
 * own) and in the usual one (pages side by side), and go with the pages, the
 * device's with the region. The driver's memory is counted in parts (parts.h), the
 * device's in octets of its tables. Runs in one guest.
 */
#include "parts.h"
#include "watched.h"

#define SPACE (1UL << 40)
#define TOUCHES 2048UL
#define DENSE (32UL << 20)
#define PIECE (1UL << 20)
#define SOON_MS 60000

/* Bytes of the device's table of 2 MiB for a page that is alone, with its share of the tables above. */
#define MOST_ALONE (12 << 10)
/* For a page among others. */
#define MOST_DENSE 64

static struct device device;
static struct loop loop;
static uint8_t *buffer;
static struct ibv_mr *mr;

static bool counts;

/* What driver and device have for all regions. */
struct kept {
	struct parts parts;
	long device;
};

static struct kept kept_now(void)
{
	struct kept kept = { .device = device_counter(&device, "table_bytes") };

	if (counts)
		kept.parts = parts_now();
	WANT(kept.device >= 0);
	return kept;
}

/* Bytes that the device has more than then. */
static long grown(const struct kept *before)
{
	return kept_now().device - before->device;
}

/* Exactly this number of parts was made since then. */
static void made(const char *what, const struct kept *before, long parts)
{
	if (counts && parts_made(&before->parts) != parts)
		die("%s: %ld parts are made, not %ld", what, parts_made(&before->parts), parts);
}

static void report(const char *what, long device_bytes, unsigned long pages)
{
	say("%s: %lu pages touched; for each byte of them the device keeps %.3f bytes", what, pages,
	    (double)device_bytes / (pages * PAGE));
}

static void write_at(uint8_t *at, uint32_t rkey, uint64_t generation, size_t length)
{
	content_fill(buffer, content_key(10, 0, generation), 0, length);
	WANT(loop_do(&loop, IBV_WR_RDMA_WRITE, buffer, length, mr->lkey, at, rkey) == IBV_WC_SUCCESS);
}

/* Each in 512 MiB of its own, at a page that is chosen at random, in each round another one. */
static uint8_t *place(uint8_t *space, unsigned long i, unsigned int round)
{
	uint64_t stride = SPACE / TOUCHES;

	return space + i * stride + mix64(i + round * TOUCHES) % (stride / PAGE) * PAGE + 17;
}

static void touch_alone(uint8_t *space, uint32_t rkey, unsigned int round)
{
	for (unsigned long i = 0; i < TOUCHES; i++)
		write_at(place(space, i, round), rkey, i + round, 64);
	for (unsigned long i = 0; i < TOUCHES; i++)
		WANT(!content_wrong(place(space, i, round), content_key(10, 0, i + round), 0, 64));
}

static void test_alone(uint8_t *space, uint32_t rkey)
{
	struct kept before = kept_now();
	long device_bytes;

	touch_alone(space, rkey, 0);
	device_bytes = grown(&before);
	report("alone", device_bytes, TOUCHES);
	made("alone", &before, TOUCHES);
	WANT(device_bytes <= (long)TOUCHES * MOST_ALONE);
	/* There is something to be measured. */
	WANT(device_bytes >= (long)TOUCHES * 1024);
}

static void test_dense(uint8_t *at, uint32_t rkey)
{
	struct kept before = kept_now();
	long device_bytes;

	for (unsigned long i = 0; i < DENSE / PIECE; i++)
		write_at(at + i * PIECE, rkey, i, PIECE);
	device_bytes = grown(&before);
	report("side by side", device_bytes, DENSE / PAGE);
	made("side by side", &before, DENSE / PART);
	WANT(device_bytes <= (long)(DENSE / PAGE) * MOST_DENSE);
	for (unsigned long i = 0; i < DENSE / PIECE; i++)
		WANT(!content_wrong(at + i * PIECE, content_key(10, 0, i), 0, PIECE));
}

/* The device's tables go with the region, but for a few that it keeps. */
static void device_gives_back(const struct kept *before, long full)
{
	uint64_t deadline = now_ms() + SOON_MS;

	while (grown(before) > full / 10) {
		if (now_ms() > deadline)
			die("of %ld KiB in the device %ld are left", full >> 10, grown(before) >> 10);
		sleep_ms(100);
	}
}

int main(void)
{
	struct kept before;
	long full, again;
	int kmsg = kmsg_open();
	struct ibv_mr *all;
	uint8_t *mapped, *space;

	device_open(&device);
	device_needs_odp(&device, true);
	loop_create(&loop, &device);
	buffer = anonymous(PIECE);
	mr = region(&device, buffer, PIECE, false);
	mapped = mmap(NULL, SPACE + PART, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mapped == MAP_FAILED)
		die("cannot map %lu GiB: %m", SPACE >> 30);
	/* Places that are far apart are in different parts then. */
	space = (uint8_t *)(((uintptr_t)mapped + PART - 1) & ~(PART - 1));
	madvise(space, SPACE, MADV_NOHUGEPAGE);
	counts = parts_begin();
	before = kept_now();
	all = ibv_reg_mr(device.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	if (!all)
		die("cannot register the address space: %m");
	/* It costs nothing yet. */
	made("a new region", &before, 0);
	WANT(grown(&before) < (64 << 10));
	test_alone(space, all->rkey);
	/* Where none of the others are. */
	test_dense(space + SPACE / 2 - DENSE, all->rkey);
	full = grown(&before);
	WANT(!madvise(space, SPACE, MADV_DONTNEED));
	/* The driver gives its parts back. The device's tables stay with the region, and other pages use them. */
	if (counts)
		parts_await("after the pages", &before.parts, 0);
	touch_alone(space, all->rkey, 1);
	again = grown(&before);
	WANT(again <= full + full / 20);
	made("again", &before, TOUCHES + DENSE / PART + TOUCHES);
	WANT(!ibv_dereg_mr(all));
	munmap(mapped, SPACE + PART);
	/* The region itself is one more. */
	if (counts)
		parts_await("after the region", &before.parts, -1);
	device_gives_back(&before, full);
	if (counts)
		parts_end();
	WANT(!ibv_dereg_mr(mr));
	loop_destroy(&loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
