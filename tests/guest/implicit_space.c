// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * implicit_space: one region over the whole address space, in which 1 TiB is
 * mapped and little of it touched. What driver and device keep for it must be in
 * proportion to what is touched, in the worst case (each page in a part of its
 * own) and in the usual one (pages side by side), and go with the pages, the
 * device's with the region. Runs in one guest.
 */
#include "watched.h"

#define SPACE (1UL << 40)
#define TOUCHES 2048UL
#define DENSE (32UL << 20)
#define PIECE (1UL << 20)
#define SOON_MS 20000

/*
 * Bytes for a page that is alone: the driver's part of 2 MiB with a list of its pages and a notifier, the
 * device's table of 2 MiB and its share of the tables above.
 */
#define MOST_ALONE_DRIVER (12 << 10)
#define MOST_ALONE_DEVICE (12 << 10)
/* For a page among others. */
#define MOST_DENSE_DRIVER 64
#define MOST_DENSE_DEVICE 64

/*
 * What the kernel's leak detector notes for each allocation, and what KASAN holds back
 * of freed memory, is in the kernel's memory, too, and as much as the allocations.
 */
static long driver_limit(unsigned long pages, long bytes)
{
	bool debug = !access("/sys/kernel/debug/kmemleak", F_OK);

	return (long)pages * bytes * (debug ? 2 : 1);
}

struct memory {
	long driver;
	long device;
};

static struct device device;
static struct loop loop;
static uint8_t *buffer;
static struct ibv_mr *mr;

/* The kernel's memory that is not for pages of processes or files, and that of the device's tables. */
static struct memory memory_now(void)
{
	return (struct memory) {
		.driver = status_kib("/proc/meminfo", "SUnreclaim") * 1024,
		.device = device_counter(&device, "table_bytes"),
	};
}

static struct memory since(const struct memory *before)
{
	struct memory now = memory_now();

	WANT(now.driver > 0 && now.device >= 0);
	return (struct memory) { now.driver - before->driver, now.device - before->device };
}

static void report(const char *what, const struct memory *grown, unsigned long pages)
{
	say("%s: %lu pages touched; for each byte of them the driver keeps %.3f and the device %.3f bytes", what,
	    pages, (double)grown->driver / (pages * PAGE), (double)grown->device / (pages * PAGE));
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
	struct memory before = memory_now(), grown;

	touch_alone(space, rkey, 0);
	grown = since(&before);
	report("alone", &grown, TOUCHES);
	WANT(grown.driver <= driver_limit(TOUCHES, MOST_ALONE_DRIVER));
	WANT(grown.device <= (long)TOUCHES * MOST_ALONE_DEVICE);
	/* There is something to be measured. */
	WANT(grown.driver >= (long)TOUCHES * 1024 && grown.device >= (long)TOUCHES * 1024);
}

static void test_dense(uint8_t *at, uint32_t rkey)
{
	struct memory before = memory_now(), grown;

	for (unsigned long i = 0; i < DENSE / PIECE; i++)
		write_at(at + i * PIECE, rkey, i, PIECE);
	grown = since(&before);
	report("side by side", &grown, DENSE / PAGE);
	WANT(grown.driver <= driver_limit(DENSE / PAGE, MOST_DENSE_DRIVER));
	WANT(grown.device <= (long)(DENSE / PAGE) * MOST_DENSE_DEVICE);
	for (unsigned long i = 0; i < DENSE / PIECE; i++)
		WANT(!content_wrong(at + i * PIECE, content_key(10, 0, i), 0, PIECE));
}

/* What was kept has gone, but for a part: the kernel's caches have some. */
static void goes(const char *what, const struct memory *before, const struct memory *full,
		 bool device_too)
{
	uint64_t deadline = now_ms() + SOON_MS;
	struct memory left;
	bool gone;

	do {
		sleep_ms(100);
		left = since(before);
		gone = left.driver <= full->driver / 4 &&
		       (!device_too || left.device <= full->device / 10);
	} while (!gone && now_ms() < deadline);
	say("%s: of %ld KiB in the driver %ld are left, of %ld in the device %ld", what,
	    full->driver >> 10, left.driver >> 10, full->device >> 10, left.device >> 10);
	WANT(gone);
}

int main(void)
{
	struct memory before, full, again;
	int kmsg = kmsg_open();
	struct ibv_mr *all;
	uint8_t *space;

	device_open(&device);
	device_needs_odp(&device, true);
	loop_create(&loop, &device);
	buffer = anonymous(PIECE);
	mr = region(&device, buffer, PIECE, false);
	space = mmap(NULL, SPACE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (space == MAP_FAILED)
		die("cannot map %lu GiB: %m", SPACE >> 30);
	madvise(space, SPACE, MADV_NOHUGEPAGE);
	before = memory_now();
	all = ibv_reg_mr(device.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	if (!all)
		die("cannot register the address space: %m");
	/* It costs nothing yet. */
	full = since(&before);
	WANT(full.device < (64 << 10) && full.driver < (1 << 20));
	test_alone(space, all->rkey);
	/* Where none of the others are. */
	test_dense(space + SPACE / 2 - DENSE, all->rkey);
	full = since(&before);
	WANT(!madvise(space, SPACE, MADV_DONTNEED));
	/* The driver gives it back. The device's tables stay with the region, and other pages use them. */
	goes("after the pages", &before, &full, false);
	touch_alone(space, all->rkey, 1);
	again = since(&before);
	WANT(again.device <= full.device + full.device / 20 && again.driver <= full.driver + full.driver / 4);
	WANT(!ibv_dereg_mr(all));
	munmap(space, SPACE);
	goes("after the region", &before, &full, true);
	WANT(!ibv_dereg_mr(mr));
	loop_destroy(&loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
