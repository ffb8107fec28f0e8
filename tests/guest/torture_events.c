// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What happens to the victim's memory. Each event says how much of it took
 * effect, mostly by comparing the physical pages of /proc/self/pagemap before
 * and after: an event that changed nothing has tested nothing.
 */
#include "torture_area.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define MPOL_MF_MOVE 2

#define HUGE (2UL << 20)
/*
 * Far below where the kernel puts mappings by itself: nothing else can come to
 * lie in the hole that an unmapped area leaves.
 */
#define ARENA 0x200000000000UL
#define ARENA_STEP (64UL << 20)
/* Where pages wait that are moved in or out. */
#define STAGE (ARENA - ARENA_STEP)
/* On the wire an area lies elsewhere, at the same place in a page. */
#define IOVA_SHIFT 0x100000600000UL


struct area areas[MAX_LANES];
unsigned int area_count;
atomic_size_t events_wrong;

static const struct options *options;
static struct rng rng_keep, rng_lose;
static char cgroup[64];

static size_t kind_length(enum kind kind)
{
	switch (kind) {
	case KEEP_HUGE:
		return 2 * HUGE;
	case KEEP:
		return 1UL << 20;
	default:
		return USES * PART;
	}
}

/* --- pages ------------------------------------------------------------------ */

#define MAX_PAGES (2 * HUGE / PAGE)

/* Pages of all memory that keeps its content and has traffic on it. */
struct picture {
	size_t count;
	uint64_t *entries;
};

/* Calls `work` for every range that events which keep contents may touch. */
static void each_range(void (*work)(uint8_t *at, size_t length, void *), void *context)
{
	for (unsigned int i = 0; i < area_count; i++) {
		struct area *area = &areas[i];

		if (area->kind == GO || area->kind == GO_REGION || area->file >= 0)
			continue;
		work(area->at, area->length, context);
		if (area->inbox)
			work(area->inbox, RECEIVES * SLOT, context);
	}
}

static void picture_add(uint8_t *at, size_t length, void *context)
{
	struct picture *picture = context;
	size_t more = length / PAGE;

	picture->entries = realloc(picture->entries, (picture->count + more) * 8);
	if (!picture->entries)
		die("no memory");
	page_map(at, length, picture->entries + picture->count);
	picture->count += more;
}

static struct picture picture_take(void)
{
	struct picture picture = { 0, NULL };

	each_range(picture_add, &picture);
	return picture;
}

/* Frees both; pages that were present and now are elsewhere or nowhere. */
static size_t pictures_differ(struct picture *before, struct picture *after)
{
	size_t moved = 0;

	for (size_t i = 0; i < before->count; i++)
		moved += page_has_moved(before->entries[i], after->entries[i]);
	free(before->entries);
	free(after->entries);
	return moved;
}

static size_t swapped_pages(void)
{
	struct picture picture = picture_take();
	size_t swapped = 0;

	for (size_t i = 0; i < picture.count; i++)
		swapped += !!(picture.entries[i] & PAGE_SWAPPED);
	free(picture.entries);
	return swapped;
}

/* Pages of an area that were present and are not where they were. */
static size_t area_changes(const struct area *area, const uint64_t *before)
{
	static __thread uint64_t after[MAX_PAGES];
	size_t count = page_map(area->at, area->length, after), changed = 0;

	for (size_t i = 0; i < count; i++)
		changed += page_has_moved(before[i], after[i]);
	return changed;
}

/* --- areas ------------------------------------------------------------------ */

static void *map_at(unsigned long at, size_t length, int flags, int fd, off_t offset)
{
	void *want = (void *)at;
	void *got = mmap(want, length, PROT_READ | PROT_WRITE,
			 flags | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED), fd, offset);

	if (got != want)
		die("cannot map %zu bytes at %p: %m", length, want);
	return got;
}

static void pattern(struct area *area)
{
	content_fill(area->at, content_key(options->seed, area->index, area->generation), 0,
		     area->length);
}

static int dax_file(const char *name, size_t length)
{
	char path[256];
	int file;

	snprintf(path, sizeof(path), "%s/%s", options->dax, name);
	file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (file < 0 || ftruncate(file, length))
		die("cannot make %s: %m", path);
	return file;
}

struct area *area_create(struct device *device, const struct options *given, enum kind kind,
			 struct book *book)
{
	static int file = -1;
	unsigned long at = ARENA + area_count * ARENA_STEP;
	struct area *area;

	if (area_count == MAX_LANES)
		die("too many lanes");
	options = given;
	area = &areas[area_count];
	area->kind = kind;
	area->index = area_count++;
	area->device = device;
	area->options = options;
	area->length = kind_length(kind);
	area->book = book;
	area->file = -1;
	if (options->dax && (kind == LOSE || kind == GO)) {
		/* One file: its beginning stays, its end is cut off. */
		if (file < 0)
			file = dax_file("odp_torture", 2 * kind_length(LOSE));
		area->file = file;
		area->offset = kind == GO ? kind_length(LOSE) : 0;
	} else if (options->dax && kind == KEEP) {
		char name[32];

		/* What is written to a file over RDMA stays while others are cut and punched. */
		snprintf(name, sizeof(name), "odp_torture_%u", area->index);
		area->file = dax_file(name, area->length);
	}
	area->at = map_at(at, area->length, MAP_FIXED_NOREPLACE, area->file, area->offset);
	if (kind <= KEEP_PAIRS) {
		area->inbox = map_at(at + ARENA_STEP / 2, RECEIVES * SLOT, MAP_FIXED_NOREPLACE,
				     -1, 0);
		/* Huge pages where they are wanted and nowhere else. */
		madvise(area->at, area->length,
			kind == KEEP_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	}
	if (kind == KEEP_PAIRS)
		for (size_t page = 0; page < area->length / PAGE; page++)
			content_fill(area->at + page * PAGE,
				     content_key(options->seed, area->index, page / 2), 0, PAGE);
	else
		pattern(area);
	return area;
}

uint64_t area_remote(const struct area *area)
{
	uint64_t at = (uintptr_t)area->at;

	if (options->same_iova || (options->implicit && area->kind != GO_REGION))
		return at;
	return at + IOVA_SHIFT;
}

static void register_own(struct area *area)
{
	area->mr = ibv_reg_mr_iova(area->device->pd, area->at, area->length, area_remote(area),
				   ALL_ACCESS | (options->pinned ? 0 : IBV_ACCESS_ON_DEMAND));
	if (!area->mr)
		die("cannot register an area of kind %d: %m", area->kind);
	area->lkey = area->mr->lkey;
}

void area_register(struct area *area, struct ibv_mr *implicit)
{
	if (implicit && area->kind != GO_REGION) {
		area->mr = implicit;
		area->lkey = implicit->lkey;
	} else {
		register_own(area);
	}
	if (!area->inbox)
		return;
	area->inbox_mr = implicit ? implicit :
				    region(area->device, area->inbox, RECEIVES * SLOT,
					   !options->pinned);
}

/* --- states ------------------------------------------------------------------- */

/* Says which state comes next: from here on, it may be read. */
static void announce(struct area *area, enum content content)
{
	struct book *book = area->book;
	uint64_t next = book->ceiling + 1;

	book->state[next % HISTORY] = STATE(area->generation, content);
	atomic_thread_fence(memory_order_seq_cst);
	*(volatile uint64_t *)&book->ceiling = next;
	*(volatile uint64_t *)&book->not_ceiling = ~next;
	atomic_thread_fence(memory_order_seq_cst);
}

/* Says that the state has been reached: from here on, no older state may be read. */
static void confirm(struct area *area)
{
	struct book *book = area->book;

	atomic_thread_fence(memory_order_seq_cst);
	*(volatile uint64_t *)&book->floor = book->ceiling;
	*(volatile uint64_t *)&book->not_floor = ~book->ceiling;
	atomic_thread_fence(memory_order_seq_cst);
}

static void refill(struct area *area)
{
	area->generation++;
	announce(area, CONTENT_PATTERN);
	pattern(area);
	confirm(area);
}

/*
 * Between two states traffic needs time to meet them; sometimes it gets none.
 * Meanwhile pages that were taken from an area belong to something else, which
 * must not change: the kernel gives a thread first the page that it has freed last.
 */
static void pause_lose(void)
{
	const size_t length = USES * PART;
	uint64_t key = rng_next(&rng_lose), ms = rng_below(&rng_lose, 8);
	uint8_t *fresh = anonymous(length);
	size_t wrong;

	madvise(fresh, length, MADV_NOHUGEPAGE);
	content_fill(fresh, key, 0, length);
	if (ms)
		sleep_ms(ms * ms / 2);
	wrong = content_wrong(fresh, key, 0, length);
	if (wrong) {
		say("%zu bytes of memory without a region have changed", wrong);
		events_wrong += wrong;
	}
	munmap(fresh, length);
}

struct area *area_of(enum kind kind)
{
	for (unsigned int i = 0; i < area_count; i++)
		if (areas[i].kind == kind)
			return &areas[i];
	return NULL;
}

/* Runs `work` on the areas of LOSE and GO kind; how many pages have changed. */
static size_t lose(void (*work)(struct area *), enum kind kind)
{
	static __thread uint64_t before[MAX_PAGES];
	struct area *area = area_of(kind);
	size_t changed;

	if (!area)
		return 0;
	page_map(area->at, area->length, before);
	work(area);
	changed = area_changes(area, before);
	pause_lose();
	return changed;
}

#define MUST(call)                                        \
	do {                                              \
		if ((long)(call) == -1)                   \
			die("%s fails: %m", #call);       \
	} while (0)

static void dontneed_lose(struct area *area)
{
	announce(area, CONTENT_ZERO);
	MUST(madvise(area->at, area->length, MADV_DONTNEED));
	confirm(area);
	pause_lose();
	refill(area);
}

static size_t event_dontneed(struct event *event)
{
	(void)event;
	return lose(dontneed_lose, LOSE);
}

static void free_lose(struct area *area)
{
	announce(area, CONTENT_EITHER);
	MUST(madvise(area->at, area->length, MADV_FREE));
	confirm(area);
	pause_lose();
	/* Reclaim is what makes the difference; without it the pages stay for ever. */
	madvise(area->at, area->length, MADV_PAGEOUT);
	pause_lose();
	refill(area);
}

static size_t event_free(struct event *event)
{
	(void)event;
	return lose(free_lose, LOSE);
}

static void munmap_lose(struct area *area)
{
	announce(area, CONTENT_ZERO);
	map_at((uintptr_t)area->at, area->length, MAP_FIXED, -1, 0);
	confirm(area);
	pause_lose();
	refill(area);
}

static void munmap_go(struct area *area)
{
	announce(area, CONTENT_GONE);
	MUST(munmap(area->at, area->length));
	confirm(area);
	pause_lose();
	announce(area, CONTENT_ZERO);
	map_at((uintptr_t)area->at, area->length, MAP_FIXED_NOREPLACE, -1, 0);
	confirm(area);
	pause_lose();
	refill(area);
}

static size_t event_munmap(struct event *event)
{
	size_t changed = lose(munmap_lose, LOSE);

	(void)event;
	return lose(munmap_go, GO) ? changed : 0;
}

static void move(void *from, void *to, size_t length, int flags)
{
	MUST(mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to));
}

static void mremap_lose(struct area *area)
{
	if (rng_below(&rng_lose, 2)) {
		/* New pages come in at one stroke. */
		area->generation++;
		map_at(STAGE, area->length, MAP_FIXED, -1, 0);
		content_fill((void *)STAGE,
			     content_key(options->seed, area->index, area->generation), 0,
			     area->length);
		announce(area, CONTENT_PATTERN);
		move((void *)STAGE, area->at, area->length, 0);
		confirm(area);
	} else {
		/* The old ones leave the mapping behind and come back. */
		announce(area, CONTENT_ZERO);
		move(area->at, (void *)STAGE, area->length, MREMAP_DONTUNMAP);
		confirm(area);
		pause_lose();
		announce(area, CONTENT_PATTERN);
		move((void *)STAGE, area->at, area->length, 0);
		confirm(area);
		pause_lose();
		/* The same pages may be back in place: make the change visible in the page map as well. */
		MUST(madvise(area->at, area->length, MADV_NOHUGEPAGE));
		munmap_lose(area);
	}
}

static void mremap_go(struct area *area)
{
	announce(area, CONTENT_GONE);
	move(area->at, (void *)STAGE, area->length, 0);
	confirm(area);
	pause_lose();
	announce(area, CONTENT_PATTERN);
	move((void *)STAGE, area->at, area->length, 0);
	confirm(area);
}

static size_t event_mremap(struct event *event)
{
	(void)event;
	lose(mremap_go, GO);
	return lose(mremap_lose, LOSE);
}

/*
 * How many pages of an area this process can access through the kernel, which
 * looks at the mapping's protection as the driver's page faults do.
 */
static size_t accessible(const struct area *area, bool write)
{
	size_t count = 0;

	for (size_t at = 0; at < area->length; at += PAGE) {
		uint8_t byte = 0;
		struct iovec here = { &byte, 1 }, there = { area->at + at, 1 };

		count += (write ? process_vm_writev(getpid(), &here, 1, &there, 1, 0) :
				  process_vm_readv(getpid(), &here, 1, &there, 1, 0)) == 1;
	}
	return count;
}

/* Pages that have lost the access that the event has taken away. */
static size_t mprotected;

static void mprotect_lose(struct area *area)
{
	announce(area, CONTENT_READ_ONLY);
	MUST(mprotect(area->at, area->length, PROT_READ));
	confirm(area);
	mprotected += area->length / PAGE - accessible(area, true);
	pause_lose();
	announce(area, CONTENT_PATTERN);
	MUST(mprotect(area->at, area->length, PROT_READ | PROT_WRITE));
	confirm(area);
}

static void mprotect_go(struct area *area)
{
	announce(area, CONTENT_GONE);
	MUST(mprotect(area->at, area->length, PROT_NONE));
	confirm(area);
	mprotected += area->length / PAGE - accessible(area, false);
	pause_lose();
	announce(area, CONTENT_PATTERN);
	MUST(mprotect(area->at, area->length, PROT_READ | PROT_WRITE));
	confirm(area);
}

static size_t event_mprotect(struct event *event)
{
	(void)event;
	mprotected = 0;
	lose(mprotect_lose, LOSE);
	lose(mprotect_go, GO);
	return mprotected;
}

static size_t event_dereg(struct event *event)
{
	static const char refused[] = "resp_remote_access_errors";
	struct area *area = area_of(GO_REGION);
	long before, after;

	if (!area)
		return 0;
	announce(area, CONTENT_GONE);
	if (ibv_dereg_mr(area->mr))
		die("deregistration under traffic fails: %m");
	confirm(area);
	if (event->took) {
		/* That its key is refused has been seen; reading the counter takes time. */
		before = 0;
		pause_lose();
		after = 1;
	} else {
		before = device_counter(area->device, refused);
		pause_lose();
		/* rdma_rxe has no such counter. */
		after = before < 0 ? 0 : device_counter(area->device, refused);
	}
	announce(area, CONTENT_PATTERN);
	register_own(area);
	*(volatile uint32_t *)&area->book->rkey = area->mr->rkey;
	confirm(area);
	pause_lose();
	return after - before;
}

static size_t event_punch(struct event *event)
{
	struct area *area = area_of(LOSE);
	struct stat before, after;

	(void)event;
	if (!area)
		return 0;
	fstat(area->file, &before);
	announce(area, CONTENT_ZERO);
	MUST(fallocate(area->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, area->offset,
		       area->length));
	confirm(area);
	fstat(area->file, &after);
	pause_lose();
	refill(area);
	pause_lose();
	return before.st_blocks > after.st_blocks ? before.st_blocks - after.st_blocks : 0;
}

static size_t event_truncate(struct event *event)
{
	struct area *area = area_of(GO);
	struct stat stat;

	(void)event;
	if (!area)
		return 0;
	announce(area, CONTENT_GONE);
	MUST(ftruncate(area->file, area->offset));
	confirm(area);
	fstat(area->file, &stat);
	pause_lose();
	announce(area, CONTENT_ZERO);
	MUST(ftruncate(area->file, area->offset + area->length));
	confirm(area);
	pause_lose();
	refill(area);
	pause_lose();
	return stat.st_size == area->offset;
}

/* --- events that keep contents -------------------------------------------------- */

/* Whether fork() makes a copy of it. A file is the same one for both. */
static bool is_copied(const struct area *area)
{
	return area->kind <= KEEP_PAIRS && area->file < 0;
}

static void sum_keep(struct checksum *sum)
{
	checksum_init(sum);
	for (unsigned int i = 0; i < area_count; i++)
		if (is_copied(&areas[i]))
			checksum_add(sum, areas[i].at, areas[i].length);
}

/*
 * The child's copy must not change while the parent's receives remote writes,
 * and what the child writes must not appear in the parent's.
 */
static size_t event_fork(struct event *event)
{
	struct picture before = picture_take(), after;
	int status;
	pid_t child = fork();

	if (child < 0)
		die("fork: %m");
	if (!child) {
		struct checksum first, second;

		sum_keep(&first);
		sleep_ms(100);
		sum_keep(&second);
		for (unsigned int i = 0; i < area_count; i++)
			if (is_copied(&areas[i]))
				for (size_t at = 0; at < areas[i].length; at += PAGE / 2)
					memset(areas[i].at + at, 0xc4, 64);
		sleep_ms(20);
		_exit(!!memcmp(&first, &second, sizeof(first)));
	}
	if (waitpid(child, &status, 0) != child)
		die("waitpid: %m");
	if (status) {
		say("fork: remote writes to the parent are seen in the child (status %#x)", status);
		events_wrong++;
	}
	after = picture_take();
	event->moved += pictures_differ(&before, &after);
	/* Pages that either side has written since are copies now. */
	return event->moved;
}

static bool has_swap(char *device, size_t size)
{
	FILE *file = fopen("/proc/swaps", "r");
	char line[256];
	bool found;

	if (!file)
		return false;
	found = fgets(line, sizeof(line), file) && fgets(line, sizeof(line), file);
	fclose(file);
	if (found && device) {
		line[strcspn(line, " \t")] = '\0';
		snprintf(device, size, "%s", line);
	}
	return found;
}

static void page_out(uint8_t *at, size_t length, void *context)
{
	(void)context;
	madvise(at, length, MADV_PAGEOUT);
}

static size_t event_pageout(struct event *event)
{
	struct picture before, after;
	uint64_t out = vmstat("pswpout");

	if (!has_swap(NULL, 0)) {
		event->skipped = "there is no swap";
		return 0;
	}
	before = picture_take();
	each_range(page_out, NULL);
	after = picture_take();
	event->moved += pictures_differ(&before, &after);
	return vmstat("pswpout") - out;
}

static size_t event_swap(struct event *event)
{
	char device[256];
	size_t before, after;

	if (!has_swap(device, sizeof(device))) {
		event->skipped = "there is no swap";
		return 0;
	}
	each_range(page_out, NULL);
	before = swapped_pages();
	if (swapoff(device))
		die("swapoff %s: %m", device);
	after = swapped_pages();
	if (swapon(device, 0))
		die("swapon %s: %m", device);
	event->moved += before > after ? before - after : 0;
	return before > after ? before - after : 0;
}

static size_t event_ksm(struct event *event)
{
	struct area *area = area_of(KEEP_PAIRS);
	uint64_t end = now_ms() + 4000;
	long merged = 0;

	if (!area)
		return 0;
	if (madvise(area->at, area->length, MADV_MERGEABLE)) {
		event->skipped = "the kernel has no KSM";
		return 0;
	}
	write_file("/sys/kernel/mm/ksm/smart_scan", "0");
	write_file("/sys/kernel/mm/ksm/pages_to_scan", "200");
	write_file("/sys/kernel/mm/ksm/sleep_millisecs", "10");
	MUST(write_file("/sys/kernel/mm/ksm/run", "1") ? -1 : 0);
	while (now_ms() < end && merged < 16) {
		sleep_ms(50);
		merged = read_number("/proc/self/ksm_merging_pages", 0);
	}
	/* Remote writes break some of the merged pages, this breaks the rest. */
	MUST(write_file("/sys/kernel/mm/ksm/run", "2") ? -1 : 0);
	return merged;
}

/* KiB of an area that huge pages map. */
static size_t huge_kib(const struct area *area)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	unsigned long start, end;
	size_t sum = 0;
	bool inside = false;
	char line[256];

	if (!file)
		die("cannot open smaps: %m");
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2 && strchr(line, '-') < strchr(line, ' '))
			inside = start < (uintptr_t)area->at + area->length &&
				 end > (uintptr_t)area->at;
		else if (inside && !strncmp(line, "AnonHugePages:", 14))
			sum += strtoul(line + 14, NULL, 10);
	}
	fclose(file);
	return sum;
}

static size_t collapse(struct area *area)
{
	size_t before = huge_kib(area), after;

	madvise(area->at, area->length, MADV_COLLAPSE);
	after = huge_kib(area);
	return after > before ? (after - before) / 2048 : 0;
}

static size_t split(struct area *area)
{
	size_t before = huge_kib(area), after;
	char range[80];

	snprintf(range, sizeof(range), "%d,%#lx,%#lx", getpid(), (unsigned long)area->at,
		 (unsigned long)area->at + area->length);
	if (write_file("/sys/kernel/debug/split_huge_pages", range))
		/* Reclaiming a part splits the whole. */
		for (size_t at = 0; at < area->length; at += HUGE)
			madvise(area->at + at, PAGE, MADV_PAGEOUT);
	after = huge_kib(area);
	return before > after ? (before - after) / 2048 : 0;
}

/* Does one of the two on every area for huge pages, the other one before so that there is something to do. */
static size_t huge(struct event *event, size_t (*work)(struct area *), size_t (*other)(struct area *))
{
	struct picture before, after;
	size_t took = 0;
	bool any = false;

	for (unsigned int i = 0; i < area_count; i++)
		if (areas[i].kind == KEEP_HUGE)
			other(&areas[i]);
	before = picture_take();
	for (unsigned int i = 0; i < area_count; i++) {
		if (areas[i].kind != KEEP_HUGE)
			continue;
		any = true;
		took += work(&areas[i]);
	}
	after = picture_take();
	event->moved += pictures_differ(&before, &after);
	if (!any)
		event->skipped = "there is no lane on huge pages (--qps 2 or more)";
	return took;
}

static size_t event_split(struct event *event)
{
	return huge(event, split, collapse);
}

static size_t event_collapse(struct event *event)
{
	return huge(event, collapse, split);
}

static void migrate_range(uint8_t *at, size_t length, void *context)
{
	static void *pages[MAX_PAGES];
	static int nodes[MAX_PAGES], status[MAX_PAGES];
	size_t count = length / PAGE;

	for (size_t i = 0; i < count; i++) {
		pages[i] = at + i * PAGE;
		nodes[i] = *(int *)context;
	}
	syscall(SYS_move_pages, 0, count, pages, nodes, status, MPOL_MF_MOVE);
}

static size_t event_migrate(struct event *event)
{
	static int node;
	struct picture before, after;
	size_t moved;

	if (access("/sys/devices/system/node/node1", F_OK)) {
		event->skipped = "there is one NUMA node";
		return 0;
	}
	node = !node;
	before = picture_take();
	each_range(migrate_range, &node);
	after = picture_take();
	moved = pictures_differ(&before, &after);
	event->moved += moved;
	return moved;
}

static size_t event_compact(struct event *event)
{
	const size_t length = 48UL << 20;
	uint8_t *holes = anonymous(length);
	struct picture before, after;
	uint64_t migrated;

	/* Something to compact: memory in which every second page is free. */
	madvise(holes, length, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < length; at += PAGE)
		holes[at] = 1;
	for (size_t at = 0; at < length; at += 2 * PAGE)
		madvise(holes + at, PAGE, MADV_DONTNEED);
	before = picture_take();
	migrated = vmstat("pgmigrate_success");
	if (write_file("/proc/sys/vm/compact_memory", "1")) {
		event->skipped = "compact_memory cannot be written";
		migrated = 0;
	} else {
		migrated = vmstat("pgmigrate_success") - migrated;
	}
	after = picture_take();
	event->moved += pictures_differ(&before, &after);
	munmap(holes, length);
	return migrated;
}

static size_t event_memcg(struct event *event)
{
	struct picture before, after;
	char path[128];
	size_t moved;
	int error;

	if (!cgroup[0]) {
		event->skipped = "there is no memory control group";
		return 0;
	}
	if (!has_swap(NULL, 0)) {
		event->skipped = "there is no swap";
		return 0;
	}
	before = picture_take();
	snprintf(path, sizeof(path), "%s/memory.reclaim", cgroup);
	error = write_file(path, "8M");
	after = picture_take();
	moved = pictures_differ(&before, &after);
	event->moved += moved;
	/* EAGAIN: less than asked for was reclaimed. */
	if (error && error != -EAGAIN)
		die("memory.reclaim: %s", strerror(-error));
	return moved;
}

static size_t event_exit(struct event *event)
{
	char port[16], seed[32], byte;
	int pipes[2], status;
	bool traffic;
	pid_t child;

	(void)event;
	if (pipe2(pipes, O_CLOEXEC))
		die("pipe: %m");
	snprintf(port, sizeof(port), "%u", options->port + 1);
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)options->seed);
	child = vfork();
	if (child < 0)
		die("vfork: %m");
	if (!child) {
		dup2(pipes[1], 3);
		execl("/proc/self/exe", "odp_torture", "--sacrifice", "--port", port, "--seed", seed,
		      NULL);
		_exit(127);
	}
	close(pipes[1]);
	/* It says a byte when data flows, or nothing if it could not start. */
	traffic = read(pipes[0], &byte, 1) == 1;
	if (traffic)
		sleep_ms(rng_below(&rng_keep, 150));
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	close(pipes[0]);
	return traffic;
}

/* A process that serves one lane until it is killed. */
int sacrifice(const struct options *given)
{
	struct device device;
	struct endpoint end;
	struct greeting greeting;
	struct offer offer;
	struct ibv_mr *mr;
	uint8_t *memory;
	int link, listener;
	char byte = 0;
	const size_t length = 64 * PAGE;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* If no peer connects, there is no traffic during which to be killed. */
	alarm(30);
	device_open(&device);
	memory = anonymous(length);
	content_fill(memory, content_key(given->seed, 1000, 0), 0, length);
	mr = region(&device, memory, length, true);
	listener = listen_on(given->port);
	link = accept_from(listener);
	receive_all(link, &greeting, sizeof(greeting));
	memset(&offer, 0, sizeof(offer));
	offer.remote = (uintptr_t)memory;
	offer.length = length;
	offer.area = 1000;
	offer.rkey = mr->rkey;
	send_all(link, &offer, sizeof(offer));
	endpoint_create(&end, &device, 1, 1);
	endpoint_meet(&end, link);
	endpoint_start(&end);
	send_all(link, &byte, 1);
	receive_all(link, &byte, 1);
	if (write(3, &byte, 1) != 1)
		return 1;
	for (;;)
		pause();
}

struct event events[] = {
	{ .name = "munmap", .run = event_munmap, .needs = ANONYMOUS },
	{ .name = "mremap", .run = event_mremap, .needs = ANONYMOUS },
	{ .name = "mprotect", .run = event_mprotect, .needs = ANY },
	{ .name = "dontneed", .run = event_dontneed, .needs = ANONYMOUS },
	{ .name = "free", .run = event_free, .needs = ANONYMOUS },
	{ .name = "dereg", .run = event_dereg, .needs = ANY },
	{ .name = "punch", .run = event_punch, .needs = FILED },
	{ .name = "truncate", .run = event_truncate, .needs = FILED },
	{ .name = "fork", .run = event_fork, .keeps = true },
	{ .name = "pageout", .run = event_pageout, .keeps = true },
	{ .name = "swap", .run = event_swap, .keeps = true },
	{ .name = "ksm", .run = event_ksm, .keeps = true },
	{ .name = "split", .run = event_split, .keeps = true },
	{ .name = "collapse", .run = event_collapse, .keeps = true },
	{ .name = "migrate", .run = event_migrate, .keeps = true },
	{ .name = "compact", .run = event_compact, .keeps = true },
	{ .name = "memcg", .run = event_memcg, .keeps = true },
	{ .name = "exit", .run = event_exit, .keeps = true },
};
const unsigned int event_count = ARRAY_SIZE(events);

/* Marks the chosen events and makes the control group. */
void events_prepare(const struct options *given)
{
	char *list, *word, *rest, pid[16], path[128];

	options = given;
	rng_keep.state = mix64(options->seed ^ 0x6b656570);
	rng_lose.state = mix64(options->seed ^ 0x6c6f7365);
	if (!options->events) {
		for (unsigned int i = 0; i < event_count; i++)
			events[i].chosen = !options->pinned &&
					   (events[i].needs == ANY ||
					    (events[i].needs == FILED) == !!options->dax);
	} else {
		list = strdup(options->events);
		for (word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
			unsigned int i = 0;

			while (i < event_count && strcmp(events[i].name, word))
				i++;
			if (i == event_count)
				die("there is no event %s", word);
			if (events[i].needs != ANY && (events[i].needs == FILED) != !!options->dax)
				die("the event %s is for areas %s a DAX file", word,
				    events[i].needs == FILED ? "in" : "outside");
			events[i].chosen = true;
		}
		free(list);
	}
	write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	snprintf(cgroup, sizeof(cgroup), "/sys/fs/cgroup/odp_torture");
	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	snprintf(pid, sizeof(pid), "%d", getpid());
	mkdir(cgroup, 0755);
	if (write_file(path, pid))
		cgroup[0] = '\0';
}
