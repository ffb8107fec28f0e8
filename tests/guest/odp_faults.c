// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * odp_faults kept | refused | ahead | huge | slow DIRECTORY: what the driver does with a
 * page fault of the device.
 *
 * kept     What the device has written survives reclaim, also if the device has read
 *          the page since then.
 * refused  A fault where the device can never get a page is refused at once.
 * ahead    Streams fault rarely, and no page exists that was not requested.
 * huge     A huge page is one entry of the device, until a part of it goes.
 * slow     A page that takes very long does not hold up the page before it. DIRECTORY
 *          is on a file system that can be frozen.
 *
 * Runs in one guest.
 */
#include "watched.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#define PAGES 64
#define LENGTH (PAGES * PAGE)

struct bench {
	const char *directory;
	struct device device;
	struct loop loop;
	/* Pinned. */
	uint8_t *buffer;
	struct ibv_mr *mr;
};

/* --- kept ----------------------------------------------------------------- */

/* Pages behind those of the region, to which the device has no access. */
#define CONTROL 8
#define ALL_LENGTH ((PAGES + CONTROL) * PAGE)

/* Shared memory that has been read and never written: its page table entries are clean. */
static uint8_t *shared_read(void)
{
	int fd = memfd_create("kept", MFD_CLOEXEC);
	volatile uint8_t *memory;

	if (fd < 0 || ftruncate(fd, ALL_LENGTH))
		die("cannot make shared memory: %m");
	memory = mmap(NULL, ALL_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		die("cannot map shared memory: %m");
	close(fd);
	for (size_t i = 0; i < ALL_LENGTH; i += PAGE)
		WANT(memory[i] == 0);
	return (uint8_t *)memory;
}

/* The same, but its entries have been read-only before. */
static uint8_t *shared_protected(void)
{
	uint8_t *memory = shared_read();

	if (mprotect(memory, ALL_LENGTH, PROT_READ) ||
	    mprotect(memory, ALL_LENGTH, PROT_READ | PROT_WRITE))
		die("cannot protect memory: %m");
	return memory;
}

/* Private memory that the kernel may discard unless it is written again. */
static uint8_t *freed(void)
{
	uint8_t *memory = anonymous(ALL_LENGTH);

	if (madvise(memory, ALL_LENGTH, MADV_NOHUGEPAGE))
		die("cannot advise: %m");
	memset(memory, 0x5a, ALL_LENGTH);
	if (madvise(memory, ALL_LENGTH, MADV_FREE))
		die("cannot free memory: %m");
	return memory;
}

/* The device reads pages that it has written: because of a prefetch, or because it misses the first one. */
static void read_by_prefetch(struct bench *bench, struct ibv_mr *mr)
{
	struct ibv_sge all = { .addr = (uintptr_t)mr->addr, .length = LENGTH, .lkey = mr->lkey };

	WANT(!ibv_advise_mr(bench->device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH,
			    IBV_ADVISE_MR_FLAG_FLUSH, &all, 1));
}

static void read_by_fault(struct bench *bench, struct ibv_mr *mr)
{
	long faults = device_counter(&bench->device, "page_faults");

	/* Changes nothing, but the device has no entry of it any more. */
	if (mprotect(mr->addr, PAGE, PROT_READ) || mprotect(mr->addr, PAGE, PROT_READ | PROT_WRITE))
		die("cannot protect memory: %m");
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, mr->addr, LENGTH, mr->lkey, bench->buffer,
		     bench->mr->rkey) == IBV_WC_SUCCESS);
	WANT(device_counter(&bench->device, "page_faults") > faults);
}

static void kept(struct bench *bench, const char *name, uint8_t *(*make)(void),
		 void (*read)(struct bench *, struct ibv_mr *))
{
	static uint64_t generation;
	uint64_t key = content_key(21, 0, ++generation);
	uint8_t *memory = make();
	struct ibv_mr *mr = region(&bench->device, memory, LENGTH, true);
	size_t wrong, lost = 0;

	content_fill(bench->buffer, key, 0, LENGTH);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, LENGTH, bench->mr->lkey,
		     memory, mr->rkey) == IBV_WC_SUCCESS);
	read(bench, mr);
	/* The first time moves pages to where they can be reclaimed. */
	for (unsigned int i = 0; i < 2; i++)
		if (madvise(memory, ALL_LENGTH, MADV_PAGEOUT))
			die("cannot reclaim: %m");
	wrong = content_wrong(memory, key, 0, LENGTH);
	for (size_t i = LENGTH; i < ALL_LENGTH; i += PAGE)
		lost += memory[i] == 0;
	say("%s: %zu wrong bytes; %zu of %d pages that were not written are gone", name, wrong, lost,
	    CONTROL);
	if (wrong)
		die("what the device has written is lost");
	WANT(!ibv_dereg_mr(mr));
	munmap(memory, ALL_LENGTH);
}

static void test_kept(struct bench *bench)
{
	kept(bench, "shared memory, prefetch", shared_read, read_by_prefetch);
	kept(bench, "shared memory, read-ahead", shared_read, read_by_fault);
	kept(bench, "protected memory, prefetch", shared_protected, read_by_prefetch);
	kept(bench, "protected memory, read-ahead", shared_protected, read_by_fault);
	kept(bench, "freed memory, prefetch", freed, read_by_prefetch);
	kept(bench, "freed memory, read-ahead", freed, read_by_fault);
}

/* --- refused -------------------------------------------------------------- */

/* A driver that tries again does so for 200 ms at least. */
#define AT_ONCE_MS 120

/* How long a request takes whose fault is refused: the shortest of some, for others use the machine. */
static uint64_t refused_after(struct bench *bench, void *at, uint32_t length, uint32_t key,
			      enum ibv_wr_opcode opcode, bool local)
{
	uint64_t shortest = UINT64_MAX;

	for (unsigned int i = 0; i < 3; i++) {
		uint64_t start = now_ms(), took;
		enum ibv_wc_status status =
			local ? loop_do(&bench->loop, opcode, at, length, key, bench->buffer,
					bench->mr->rkey) :
				loop_do(&bench->loop, opcode, bench->buffer, length,
					bench->mr->lkey, at, key);

		took = now_ms() - start;
		if (took < shortest)
			shortest = took;
		if (status != (local ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR))
			die("a request completes with: %s", ibv_wc_status_str(status));
		loop_restart(&bench->loop);
	}
	return shortest;
}

static void refused(struct bench *bench, const char *name, uint8_t *at, uint32_t length,
		    const struct ibv_mr *mr)
{
	uint64_t times[] = {
		refused_after(bench, at, length, mr->rkey, IBV_WR_RDMA_READ, false),
		refused_after(bench, at, length, mr->rkey, IBV_WR_RDMA_WRITE, false),
		refused_after(bench, at, length, mr->lkey, IBV_WR_RDMA_WRITE, true),
	};

	for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
		say("%s, access %zu: refused after %llu ms", name, i,
		    (unsigned long long)times[i]);
		if (times[i] >= AT_ONCE_MS)
			die("that is not at once");
	}
}

/* Registers of a device: VM_IO and VM_PFNMAP. */
static uint8_t *registers(void)
{
	unsigned long start, end;
	char line[512], access[8];
	FILE *maps = fopen("/proc/self/maps", "r");

	if (!maps)
		die("cannot open /proc/self/maps: %m");
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "/dev/infiniband/uverbs") &&
		    sscanf(line, "%lx-%lx %7s", &start, &end, access) == 3 &&
		    !strncmp(access, "rw", 2)) {
			fclose(maps);
			return (uint8_t *)start;
		}
	die("the provider maps no registers");
}

static void test_refused(struct bench *bench)
{
	uint8_t *memory = anonymous(LENGTH), *last = memory + LENGTH - PAGE;
	struct ibv_mr *mr = region(&bench->device, memory, LENGTH, true), *io;
	uint8_t *map = registers();

	if (mprotect(memory, PAGE, PROT_NONE) || mprotect(last, PAGE, PROT_NONE))
		die("cannot protect memory: %m");
	refused(bench, "PROT_NONE", memory, 64, mr);
	/* What the fault demands begins where there is memory. */
	refused(bench, "PROT_NONE behind memory", last - 64, 128, mr);
	if (munmap(last, PAGE))
		die("cannot unmap: %m");
	refused(bench, "nothing behind memory", last - 64, 128, mr);
	if (mprotect(memory, PAGE, PROT_READ | PROT_WRITE))
		die("cannot protect memory: %m");
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, PAGE, bench->mr->lkey, memory,
		     mr->rkey) == IBV_WC_SUCCESS);
	WANT(!memcmp(memory, bench->buffer, PAGE));
	WANT(!ibv_dereg_mr(mr));
	io = region(&bench->device, map, PAGE, true);
	refused(bench, "registers", map, 8, io);
	WANT(!ibv_dereg_mr(io));
	munmap(memory, LENGTH - PAGE);
}

/* --- ahead ---------------------------------------------------------------- */

#define STREAM_PAGES 512
#define STREAM_LENGTH (STREAM_PAGES * PAGE)

/* How many pages of a range are in memory. */
static size_t resident(void *memory, size_t pages)
{
	uint64_t entry;
	size_t count = 0;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die("cannot open /proc/self/pagemap: %m");
	for (size_t i = 0; i < pages; i++) {
		off_t at = ((uintptr_t)memory / PAGE + i) * sizeof(entry);

		if (pread(fd, &entry, sizeof(entry), at) != sizeof(entry))
			die("cannot read /proc/self/pagemap: %m");
		count += entry >> 63;
	}
	close(fd);
	return count;
}

struct traffic {
	const char *name;
	/* The process has touched all pages since the registration. */
	bool touched;
	bool random;
	/* Pages of a message, and how many pages they are apart. */
	size_t pages;
	size_t stride;
	/* The most faults that a driver with read-ahead takes. */
	long most;
};

/* WRITEs that meet every page for the first time; whether that took no more than it should. */
static bool stream(struct bench *bench, const struct traffic *traffic)
{
	uint8_t *memory = anonymous(STREAM_LENGTH);
	size_t messages = STREAM_PAGES / traffic->stride, order[STREAM_PAGES], there, wanted;
	struct rng rng = { 7 };
	uint64_t started;
	struct ibv_mr *mr;
	long faults, taken;

	if (madvise(memory, STREAM_LENGTH, MADV_NOHUGEPAGE))
		die("cannot advise: %m");
	mr = region(&bench->device, memory, STREAM_LENGTH, true);
	if (traffic->touched)
		memset(memory, 0x11, STREAM_LENGTH);
	for (size_t i = 0; i < messages; i++)
		order[i] = i;
	for (size_t i = messages; traffic->random && i > 1; i--) {
		size_t other = rng_below(&rng, i), saved = order[i - 1];

		order[i - 1] = order[other];
		order[other] = saved;
	}
	faults = device_counter(&bench->device, "page_faults");
	taken = device_counter(&bench->device, "page_invalidations");
	started = now_ms();
	for (size_t i = 0; i < messages; i++)
		WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, traffic->pages * PAGE,
			     bench->mr->lkey, memory + order[i] * traffic->stride * PAGE,
			     mr->rkey) == IBV_WC_SUCCESS);
	started = now_ms() - started;
	faults = device_counter(&bench->device, "page_faults") - faults;
	/* The kernel may move or reclaim a page meanwhile: it is met once more. */
	taken = device_counter(&bench->device, "page_invalidations") - taken;
	there = resident(memory, STREAM_PAGES);
	wanted = traffic->touched ? STREAM_PAGES : messages * traffic->pages;
	say("%s: %zu pages, %ld faults, %ld taken away, %llu us a page; %zu in memory",
	    traffic->name, messages * traffic->pages, faults, taken,
	    (unsigned long long)(started * 1000 / (messages * traffic->pages)), there);
	for (size_t i = 0; i < messages; i++)
		WANT(!memcmp(memory + i * traffic->stride * PAGE, bench->buffer,
			     traffic->pages * PAGE));
	WANT(!ibv_dereg_mr(mr));
	munmap(memory, STREAM_LENGTH);
	if (there != wanted)
		say("%zu pages should be in memory", wanted);
	if (faults > traffic->most + taken)
		say("no more than %ld faults are needed", traffic->most);
	return there == wanted && faults <= traffic->most + taken;
}

static void test_ahead(struct bench *bench)
{
	static const struct traffic all[] = {
		{ "pages that are there, one after the other", true, false, 1, 1, STREAM_PAGES / 8 },
		{ "pages that are there, at random", true, true, 1, 1, STREAM_PAGES },
		{ "new pages, one after the other", false, false, 1, 1, STREAM_PAGES },
		{ "new pages, at random", false, true, 1, 1, STREAM_PAGES },
		{ "every eighth page, new, at random", false, true, 1, 8, STREAM_PAGES },
		{ "every eighth page, new, in order", false, false, 1, 8, STREAM_PAGES },
		{ "messages of 64 new pages", false, false, 64, 64, STREAM_PAGES / 4 },
		{ "messages of 64 new pages, at random", false, true, 64, 64, STREAM_PAGES / 4 },
	};
	bool good = true;

	content_fill(bench->buffer, content_key(22, 0, 0), 0, LENGTH);
	for (size_t i = 0; i < ARRAY_SIZE(all); i++)
		good &= stream(bench, &all[i]);
	if (!good)
		die("too many faults or pages");
}

/* --- huge ----------------------------------------------------------------- */

#define HUGE_PAGE (2UL << 20)
#define HUGE_PAGES 4
#define HUGE_LENGTH (HUGE_PAGES * HUGE_PAGE)

static uint8_t *transparent(void)
{
	uint8_t *memory = anonymous(HUGE_LENGTH + HUGE_PAGE);
	long before = status_kib("/proc/self/smaps_rollup", "AnonHugePages");

	memory += -(uintptr_t)memory & (HUGE_PAGE - 1);
	if (madvise(memory, HUGE_LENGTH, MADV_HUGEPAGE))
		die("cannot advise: %m");
	memset(memory, 0x33, HUGE_LENGTH);
	if (status_kib("/proc/self/smaps_rollup", "AnonHugePages") - before < (long)(HUGE_LENGTH >> 10))
		die("the kernel makes no huge pages");
	return memory;
}

static uint8_t *explicit(void)
{
	uint8_t *memory = mmap(NULL, HUGE_LENGTH, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

	if (memory == MAP_FAILED)
		die("cannot map huge pages: %m");
	memset(memory, 0x33, HUGE_LENGTH);
	return memory;
}

static void write_page(struct bench *bench, uint8_t *at, uint32_t rkey)
{
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, PAGE, bench->mr->lkey, at,
		     rkey) == IBV_WC_SUCCESS);
}

static uint8_t *huge(struct bench *bench, const char *name, uint8_t *(*make)(void), size_t skew,
		     long most)
{
	uint8_t *memory = make();
	struct ibv_mr *mr = ibv_reg_mr_iova(bench->device.pd, memory, HUGE_LENGTH,
					    HUGE_PAGE + skew, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	uint8_t *remote = (uint8_t *)HUGE_PAGE + skew;
	long faults, misses;
	struct rng rng = { 9 };

	if (!mr)
		die("cannot register: %m");
	/* The device has no entry any more; all is there, as it was. */
	if (mprotect(memory, HUGE_LENGTH, PROT_READ) ||
	    mprotect(memory, HUGE_LENGTH, PROT_READ | PROT_WRITE))
		die("cannot protect memory: %m");
	faults = device_counter(&bench->device, "page_faults");
	misses = device_counter(&bench->device, "tlb_misses");
	for (size_t i = 0; i < HUGE_PAGES * 512; i++)
		write_page(bench, remote + i * PAGE, mr->rkey);
	faults = device_counter(&bench->device, "page_faults") - faults;
	say("%s: %ld faults, %ld look-ups for %lu pages of 4 KiB", name, faults,
	    device_counter(&bench->device, "tlb_misses") - misses, HUGE_PAGES * 512UL);
	misses = device_counter(&bench->device, "tlb_misses");
	for (size_t i = 0; i < 512; i++)
		write_page(bench, remote + rng_below(&rng, HUGE_PAGES * 512) * PAGE, mr->rkey);
	say("%s: %ld look-ups for 512 pages at random", name,
	    device_counter(&bench->device, "tlb_misses") - misses);
	for (size_t i = 0; i < HUGE_LENGTH; i += PAGE)
		WANT(!memcmp(memory + i, bench->buffer, PAGE));
	/* proves: IBV_ACCESS_HUGETLB */
	if (faults > most)
		die("no more than %ld faults are needed", most);
	WANT(!ibv_dereg_mr(mr));
	return memory;
}

/* A part of a huge page is unmapped, gets other rights, or is shared with a child: the rest does not change. */
static void huge_parts(struct bench *bench, uint8_t *memory)
{
	struct ibv_mr *mr = region(&bench->device, memory, HUGE_LENGTH, true);
	uint8_t *part = memory + 100 * PAGE, *other = memory + HUGE_PAGE + 7 * PAGE;
	uint8_t saved[PAGE];
	int status;
	pid_t pid;

	write_page(bench, part, mr->rkey);
	if (madvise(part, PAGE, MADV_DONTNEED))
		die("cannot discard: %m");
	/* The neighbours first: they bring an entry for all that is left. */
	write_page(bench, part + PAGE, mr->rkey);
	write_page(bench, part - PAGE, mr->rkey);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, part, PAGE, mr->lkey, bench->buffer + PAGE,
		     bench->mr->rkey) == IBV_WC_SUCCESS);
	for (size_t i = 0; i < PAGE; i++)
		WANT(!bench->buffer[PAGE + i] && !part[i]);
	write_page(bench, part, mr->rkey);
	WANT(!memcmp(part, bench->buffer, PAGE));

	if (mprotect(other, PAGE, PROT_READ))
		die("cannot protect memory: %m");
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, 8, bench->mr->lkey, other,
		     mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	loop_restart(&bench->loop);
	write_page(bench, other + PAGE, mr->rkey);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, other, PAGE, mr->lkey, bench->buffer + PAGE,
		     bench->mr->rkey) == IBV_WC_SUCCESS);
	WANT(!memcmp(other, bench->buffer + PAGE, PAGE));

	/* The child does not see the device's writes after the fork. */
	other = memory + 2 * HUGE_PAGE + 9 * PAGE;
	memset(saved, 0x77, PAGE);
	memcpy(other, saved, PAGE);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, other, PAGE, mr->lkey, bench->buffer + PAGE,
		     bench->mr->rkey) == IBV_WC_SUCCESS);
	pid = fork();
	if (pid < 0)
		die("cannot fork: %m");
	if (!pid) {
		sleep_ms(300);
		_exit(!!memcmp(other, saved, PAGE));
	}
	write_page(bench, other, mr->rkey);
	WANT(!memcmp(other, bench->buffer, PAGE));
	WANT(waitpid(pid, &status, 0) == pid && !status);
	WANT(!ibv_dereg_mr(mr));
}

static void test_huge(struct bench *bench)
{
	content_fill(bench->buffer, content_key(23, 0, 0), 0, LENGTH);
	/* One page of the second half of the first can't be part of a huge page: its neighbours are not mapped. */
	huge(bench, "transparent huge pages, elsewhere", transparent, PAGE, HUGE_PAGES * 512);
	huge(bench, "hugetlbfs", explicit, 0, 2 * HUGE_PAGES);
	huge_parts(bench, huge(bench, "transparent huge pages", transparent, 0, 2 * HUGE_PAGES));
}

/* --- slow ----------------------------------------------------------------- */

/*
 * Two pages; the second can't be written while its file system is frozen. The
 * first one is not mapped by touching it, but read through its file.
 */
static void test_slow(struct bench *bench)
{
	int first = memfd_create("first", MFD_CLOEXEC), second, fs, seen = 0;
	uint8_t *memory = anonymous(2 * PAGE), byte = 0;
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE,
		.local = bench->buffer,
		.length = 2 * PAGE,
		.lkey = bench->mr->lkey,
		.remote = (uintptr_t)memory,
	};
	struct ibv_mr *mr;
	struct ibv_wc wc;
	uint64_t start;
	char name[256];

	if (!bench->directory)
		die("slow needs a directory");
	fs = open(bench->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	snprintf(name, sizeof(name), "%s/odp_faults.%d", bench->directory, getpid());
	second = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (first < 0 || fs < 0 || second < 0 || unlink(name) || ftruncate(first, PAGE) ||
	    ftruncate(second, PAGE))
		die("cannot make %s: %m", name);
	if (mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, first, 0) != memory ||
	    mmap(memory + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, second, 0) !=
		    memory + PAGE)
		die("cannot map %s: %m", name);
	content_fill(bench->buffer, content_key(24, 0, 0), 0, 2 * PAGE);
	mr = region(&bench->device, memory, 2 * PAGE, true);
	request.rkey = mr->rkey;
	if (ioctl(fs, FIFREEZE, 0))
		die("cannot freeze %s: %m", bench->directory);
	start = now_ms();
	endpoint_post(&bench->loop.near, &request);
	while (!seen && now_ms() - start < 3000)
		seen = pread(first, &byte, 1, 0) == 1 && byte;
	start = now_ms() - start;
	if (endpoint_wait(&bench->loop.near, &wc, 100))
		byte = 0;
	if (ioctl(fs, FITHAW, 0))
		die("cannot thaw %s: %m", bench->directory);
	if (!byte)
		die("the second page did not have to wait, or the first one did");
	say("the page before the slow one: written after %llu ms", (unsigned long long)start);
	WANT(endpoint_wait(&bench->loop.near, &wc, 20000) && wc.status == IBV_WC_SUCCESS);
	WANT(!memcmp(memory, bench->buffer, 2 * PAGE));
	WANT(!ibv_dereg_mr(mr));
}

/* --------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(struct bench *bench);
	} tests[] = {
		{ "kept", test_kept },
		{ "refused", test_refused },
		{ "ahead", test_ahead },
		{ "huge", test_huge },
		{ "slow", test_slow },
	};
	int kmsg = kmsg_open();
	struct bench bench;
	size_t i = 0;

	while (i < ARRAY_SIZE(tests) && (argc < 2 || strcmp(argv[1], tests[i].name)))
		i++;
	if (i == ARRAY_SIZE(tests))
		die("usage: odp_faults kept | refused | ahead | huge | slow DIRECTORY");
	bench.directory = argc > 2 ? argv[2] : NULL;
	device_open(&bench.device);
	device_needs_odp(&bench.device, false);
	loop_create(&bench.loop, &bench.device);
	bench.buffer = anonymous(LENGTH);
	bench.mr = region(&bench.device, bench.buffer, LENGTH, false);
	tests[i].run(&bench);
	WANT(!ibv_dereg_mr(bench.mr));
	loop_destroy(&bench.loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
