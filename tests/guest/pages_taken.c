// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * pages_taken: what the kernel can take or move of memory that the NIC uses,
 * if it is pinned, on demand, or on demand and locked with mlock(), while
 * requests write and read it. Each line is a name, a value and a unit,
 * separated by tabs. Runs in one guest with two NUMA nodes and swap.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "watched.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif
#define MPOL_MF_MOVE 2

#define HUGE (2UL << 20)
#define LENGTH (2 * HUGE)
#define PAGES (LENGTH / PAGE)
#define CGROUP "/sys/fs/cgroup/pages_taken"
/* Attempts to take a page of the on-demand memory: compaction begins anywhere. */
#define ATTEMPTS 50
/* A page that is taken out of service is lost for this guest. */
#define OFFLINE_PAGES 16
/* Pages of a message. */
#define MESSAGE 16

enum kind { PINNED, ON_DEMAND, LOCKED, KINDS };

static const char *const kind_names[KINDS] = {
	"pinned", "on demand", "on demand and locked",
};

struct area {
	uint8_t *at;
	struct ibv_mr *mr;
	/* The content of each page, or 0. */
	uint64_t generation[PAGES];
};

static struct device device;
static struct loop loop;
static struct area areas[KINDS];
/* What is written and read. */
static uint8_t *local;
static struct ibv_mr *local_mr;
static bool is_over;
static unsigned long messages;

/* --- the traffic ---------------------------------------------------------- */

static void transfer(enum ibv_wr_opcode opcode, struct area *area, size_t page, size_t count)
{
	enum ibv_wc_status status = loop_do(&loop, opcode, local, count * PAGE, local_mr->lkey,
					    area->at + page * PAGE, area->mr->rkey);

	if (status != IBV_WC_SUCCESS)
		die("a message fails: %s", ibv_wc_status_str(status));
}

static void fill(struct area *area, size_t page, size_t count, uint64_t generation)
{
	for (size_t i = 0; i < count; i++) {
		area->generation[page + i] = generation;
		content_fill(local + i * PAGE, content_key(1, area - areas, generation),
			     (page + i) * PAGE, PAGE);
	}
}

static size_t wrong_bytes(const uint8_t *at, const struct area *area, size_t page, size_t count)
{
	size_t wrong = 0;

	for (size_t i = 0; i < count; i++)
		wrong += content_wrong(at + i * PAGE,
				       content_key(1, area - areas, area->generation[page + i]),
				       (page + i) * PAGE, PAGE);
	return wrong;
}

/* Reads its earlier data, and writes anew. */
static void *make_traffic(void *unused)
{
	struct rng rng = { 7 };
	uint64_t generation = 1;

	(void)unused;
	while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
		struct area *area = &areas[generation % KINDS];
		size_t count = 1 + rng_below(&rng, MESSAGE);
		size_t page = rng_below(&rng, PAGES - count + 1);

		memset(local, 0, count * PAGE);
		transfer(IBV_WR_RDMA_READ, area, page, count);
		if (wrong_bytes(local, area, page, count))
			die("bytes are wrong in %s memory", kind_names[area - areas]);
		fill(area, page, count, ++generation);
		transfer(IBV_WR_RDMA_WRITE, area, page, count);
		__atomic_add_fetch(&messages, 2, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* --- actions of the kernel -------------------------------------------------- */

static void reclaim(void)
{
	int error = write_file(CGROUP "/memory.reclaim", "64M");

	/* EAGAIN: less than that was reclaimed. */
	if (error && error != -EAGAIN)
		die("memory.reclaim: %s", strerror(-error));
}

static void migrate(void)
{
	static void *pages[PAGES];
	static int nodes[PAGES], status[PAGES], node;

	node = !node;
	for (enum kind kind = 0; kind < KINDS; kind++) {
		for (size_t i = 0; i < PAGES; i++) {
			pages[i] = areas[kind].at + i * PAGE;
			nodes[i] = node;
		}
		if (syscall(SYS_move_pages, 0, PAGES, pages, nodes, status, MPOL_MF_MOVE) < 0)
			die("move_pages: %m");
	}
}

/*
 * Moves what can be moved into single free pages between pages of other memory.
 * After that memory is freed, there is something to compact.
 */
static void scatter(void)
{
	const size_t length = 16 * LENGTH;
	uint8_t *other = anonymous(length);

	WANT(!madvise(other, length, MADV_NOHUGEPAGE));
	for (size_t at = 0; at < length; at += PAGE)
		other[at] = 1;
	for (size_t at = 0; at < length; at += 2 * PAGE)
		WANT(!madvise(other + at, PAGE, MADV_DONTNEED));
	migrate();
	WANT(!munmap(other, length));
}

static void compact(void)
{
	if (write_file("/proc/sys/vm/compact_memory", "1"))
		die("compact_memory cannot be written");
}

/* As khugepaged does, which takes its time. */
static void collapse(void)
{
	for (enum kind kind = 0; kind < KINDS; kind++) {
		WANT(!madvise(areas[kind].at, LENGTH, MADV_HUGEPAGE));
		madvise(areas[kind].at, LENGTH, MADV_COLLAPSE);
	}
}

/* As hot-unplug does, page by page: the content moves, and nothing uses the old page any more. */
static void take_out_of_service(void)
{
	for (enum kind kind = 0; kind < KINDS; kind++)
		if (madvise(areas[kind].at, OFFLINE_PAGES * PAGE, MADV_SOFT_OFFLINE) &&
		    errno == EINVAL)
			die("MADV_SOFT_OFFLINE: %m");
}

static const struct event {
	const char *name;
	void (*run)(void);
	/* Makes it possible, or NULL. */
	void (*before)(void);
	/* Locked memory is kept from it. */
	bool spares_locked;
} events[] = {
	{ "compaction", compact, scatter, false },
	{ "move_pages", migrate, NULL, false },
	{ "memory.reclaim", reclaim, NULL, true },
	{ "taking pages out of service", take_out_of_service, NULL, false },
	{ "collapse into huge pages", collapse, NULL, false },
};

static void look(uint64_t (*maps)[PAGES])
{
	for (enum kind kind = 0; kind < KINDS; kind++)
		page_map(areas[kind].at, LENGTH, maps[kind]);
}

/* All memory is in use after an event, too. */
static void await_messages(void)
{
	unsigned long before = __atomic_load_n(&messages, __ATOMIC_RELAXED);

	while (__atomic_load_n(&messages, __ATOMIC_RELAXED) < before + 20 * KINDS)
		sleep_ms(1);
}

/* Repeats an event until it has moved on-demand memory, and locked memory only if it may. */
static void cause(const struct event *event)
{
	static uint64_t before[KINDS][PAGES], after[KINDS][PAGES];
	size_t moved[KINDS] = {};

	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		if (event->before)
			event->before();
		look(before);
		event->run();
		look(after);
		for (enum kind kind = 0; kind < KINDS; kind++) {
			size_t count = 0;

			for (size_t i = 0; i < PAGES; i++)
				count += page_has_moved(before[kind][i], after[kind][i]);
			/* Something else may have moved them meanwhile: the kernel compacts by itself, too. */
			if (count > moved[kind] || (kind == LOCKED && event->spares_locked))
				moved[kind] = count;
		}
		if (moved[ON_DEMAND] && event->spares_locked == !moved[LOCKED])
			break;
	}
	await_messages();
	for (enum kind kind = 0; kind < KINDS; kind++)
		printf("pages moved by %s, %s\t%zu\tpages\n", event->name, kind_names[kind],
		       moved[kind]);
	fflush(stdout);
	WANT(!moved[PINNED]);
	WANT(moved[ON_DEMAND]);
	WANT(event->spares_locked == !moved[LOCKED]);
}

/* --------------------------------------------------------------------------- */

/* Memory of small pages that begins where a huge page may. */
static uint8_t *aligned_memory(void)
{
	uint8_t *at = anonymous(LENGTH + HUGE);

	at += -(uintptr_t)at % HUGE;
	WANT(!madvise(at, LENGTH, MADV_NOHUGEPAGE));
	return at;
}

static void prepare(void)
{
	char pid[16];

	WANT(!write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory"));
	WANT(!mkdir(CGROUP, 0755) || errno == EEXIST);
	snprintf(pid, sizeof(pid), "%d", getpid());
	WANT(!write_file(CGROUP "/cgroup.procs", pid));
	device_open(&device);
	device_needs_odp(&device, false);
	loop_create(&loop, &device);
	local = anonymous(MESSAGE * PAGE);
	local_mr = region(&device, local, MESSAGE * PAGE, false);
	for (enum kind kind = 0; kind < KINDS; kind++) {
		areas[kind].at = aligned_memory();
		memset(areas[kind].at, 1, LENGTH);
	}
	WANT(!mlock(areas[LOCKED].at, LENGTH));
	for (enum kind kind = 0; kind < KINDS; kind++)
		areas[kind].mr = region(&device, areas[kind].at, LENGTH, kind != PINNED);
	for (enum kind kind = 0; kind < KINDS; kind++) {
		for (size_t page = 0; page < PAGES; page += MESSAGE) {
			fill(&areas[kind], page, MESSAGE, 1);
			transfer(IBV_WR_RDMA_WRITE, &areas[kind], page, MESSAGE);
		}
	}
}

int main(void)
{
	const char *balancing = "/proc/sys/kernel/numa_balancing";
	pthread_t thread;
	char was[16];

	/* It would move pages at any time. */
	snprintf(was, sizeof(was), "%ld", read_number(balancing, 0));
	write_file(balancing, "0");
	prepare();
	WANT(!pthread_create(&thread, NULL, make_traffic, NULL));
	for (size_t i = 0; i < ARRAY_SIZE(events); i++)
		cause(&events[i]);
	__atomic_store_n(&is_over, true, __ATOMIC_RELEASE);
	WANT(!pthread_join(thread, NULL));
	for (enum kind kind = 0; kind < KINDS; kind++) {
		WANT(!wrong_bytes(areas[kind].at, &areas[kind], 0, PAGES));
		WANT(!ibv_dereg_mr(areas[kind].mr));
	}
	say("%lu messages meanwhile, all right", messages);
	write_file(balancing, was);
	write_file("/sys/fs/cgroup/cgroup.procs", "0");
	rmdir(CGROUP);
	puts("PASS");
	return 0;
}
