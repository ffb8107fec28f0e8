// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * file_regions: files of the page cache and of tmpfs as regions on demand,
 * shared and private, and mappings that may only be read: a peer that writes to
 * one gets an error, and its bytes stay. Runs in one guest.
 */
#include "watched.h"

#include <fcntl.h>
#include <stdlib.h>

#define LENGTH (64 * PAGE)
#define PART (5 * PAGE + 77)

struct bench {
	struct device device;
	struct loop loop;
	uint8_t *buffer;
	struct ibv_mr *mr;
};

struct file {
	const char *folder;
	int fd;
	uint8_t *map;
	struct ibv_mr *mr;
};

static void file_open(struct file *file, uint64_t key)
{
	uint8_t *content = anonymous(LENGTH);
	char path[64];

	snprintf(path, sizeof(path), "%s/file_regions.XXXXXX", file->folder);
	file->fd = mkstemp(path);
	if (file->fd < 0)
		die("cannot make a file in %s: %m", file->folder);
	unlink(path);
	content_fill(content, key, 0, LENGTH);
	if (pwrite(file->fd, content, LENGTH, 0) != LENGTH)
		die("cannot fill a file in %s: %m", file->folder);
	munmap(content, LENGTH);
}

static void file_map(struct file *file, struct bench *bench, int protection, int flags, int access)
{
	file->map = mmap(NULL, LENGTH, protection, flags, file->fd, 0);
	if (file->map == MAP_FAILED)
		die("cannot map a file of %s: %m", file->folder);
	file->mr = ibv_reg_mr(bench->device.pd, file->map, LENGTH, access | IBV_ACCESS_ON_DEMAND);
	if (!file->mr)
		die("cannot register a file of %s: %m", file->folder);
}

static void file_unmap(struct file *file)
{
	WANT(!ibv_dereg_mr(file->mr));
	munmap(file->map, LENGTH);
}

/* Its pages leave the page cache, where the file system has a disk. */
static void evict(struct file *file)
{
	WANT(!fsync(file->fd));
	madvise(file->map, LENGTH, MADV_DONTNEED);
	posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
}

static enum ibv_wc_status ask(struct bench *bench, enum ibv_wr_opcode opcode, struct file *file,
			      size_t offset)
{
	return loop_do(&bench->loop, opcode, bench->buffer, PART, bench->mr->lkey,
		       file->map + offset, file->mr->rkey);
}

static void wants_read(struct bench *bench, struct file *file, size_t offset, uint64_t key,
		       size_t at)
{
	memset(bench->buffer, 0, PART);
	WANT(ask(bench, IBV_WR_RDMA_READ, file, offset) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->buffer, key, at, PART));
}

/* What a process that reads the file gets. */
static void wants_file(struct file *file, size_t offset, uint64_t key, size_t at)
{
	static uint8_t got[PART];

	WANT(pread(file->fd, got, PART, offset) == PART);
	WANT(!content_wrong(got, key, at, PART));
}

/* A peer's WRITE changes the file's content, and a peer's READ returns the writes of others to the file. */
static void test_shared(struct bench *bench, const char *folder)
{
	uint64_t key = content_key(8, 1, 0), written = content_key(8, 1, 1), more = content_key(8, 1, 2);
	struct file file = { .folder = folder };
	size_t at = 3 * PAGE - 11;
	static uint8_t text[PART];
	long faults;

	file_open(&file, key);
	file_map(&file, bench, PROT_READ | PROT_WRITE, MAP_SHARED, ALL_ACCESS);
	for (int round = 0; round < 2; round++) {
		evict(&file);
		faults = device_counter(&bench->device, "page_faults");
		wants_read(bench, &file, at + 20 * PAGE, key, at + 20 * PAGE);
		content_fill(bench->buffer, written, 0, PART);
		WANT(ask(bench, IBV_WR_RDMA_WRITE, &file, at) == IBV_WC_SUCCESS);
		WANT(device_counter(&bench->device, "page_faults") >= faults + 1);
		wants_file(&file, at, written, 0);
		WANT(!content_wrong(file.map + at, written, 0, PART));
		/* Also after it has been on the disk. */
		evict(&file);
		wants_file(&file, at, written, 0);
		wants_read(bench, &file, at, written, 0);
		content_fill(text, more, 0, PART);
		WANT(pwrite(file.fd, text, PART, at) == PART);
		wants_read(bench, &file, at, more, 0);
	}
	/* A hole comes, and is filled by a peer. */
	WANT(!fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 16 * PAGE));
	WANT(ask(bench, IBV_WR_RDMA_READ, &file, PAGE) == IBV_WC_SUCCESS);
	for (size_t i = 0; i < PART; i++)
		WANT(!bench->buffer[i]);
	content_fill(bench->buffer, written, 0, PART);
	WANT(ask(bench, IBV_WR_RDMA_WRITE, &file, PAGE + 5) == IBV_WC_SUCCESS);
	wants_file(&file, PAGE + 5, written, 0);
	file_unmap(&file);
	close(file.fd);
}

/* A peer's WRITE to a private mapping is the process's own, and the file stays. */
static void test_private(struct bench *bench, const char *folder)
{
	uint64_t key = content_key(8, 2, 0), written = content_key(8, 2, 1);
	struct file file = { .folder = folder };
	size_t at = 7 * PAGE + 123;

	file_open(&file, key);
	file_map(&file, bench, PROT_READ | PROT_WRITE, MAP_PRIVATE, ALL_ACCESS);
	wants_read(bench, &file, at, key, at);
	content_fill(bench->buffer, written, 0, PART);
	WANT(ask(bench, IBV_WR_RDMA_WRITE, &file, at) == IBV_WC_SUCCESS);
	WANT(!content_wrong(file.map + at, written, 0, PART));
	wants_file(&file, at, key, at);
	wants_read(bench, &file, at, written, 0);
	file_unmap(&file);
	close(file.fd);
}

/* The region has the right to be written, and the mapping has not: it is read, and a WRITE fails and changes nothing. */
static void test_read_only(struct bench *bench, struct file *file, uint64_t key)
{
	enum ibv_wc_status status;

	for (int round = 0; round < 2; round++) {
		/* Before and after the device knows the page. */
		if (round)
			wants_read(bench, file, PAGE, key, PAGE);
		memset(bench->buffer, 0xc3, PART);
		status = ask(bench, IBV_WR_RDMA_WRITE, file, PAGE);
		/* proves: IBV_WC_REM_ACCESS_ERR */
		if (status != IBV_WC_REM_ACCESS_ERR)
			die("a WRITE to memory that may only be read: %s", ibv_wc_status_str(status));
		loop_restart(&bench->loop);
		WANT(!content_wrong(file->map + PAGE, key, PAGE, PART));
	}
	status = loop_do(&bench->loop, IBV_WR_ATOMIC_FETCH_AND_ADD, bench->buffer, 8,
			 bench->mr->lkey, file->map + PAGE, file->mr->rkey);
	WANT(status == IBV_WC_REM_ACCESS_ERR);
	loop_restart(&bench->loop);
	wants_read(bench, file, PAGE, key, PAGE);
	WANT(!content_wrong(file->map, key, 0, LENGTH));
}

static void test_refused_writes(struct bench *bench, const char *folder)
{
	uint64_t key = content_key(8, 3, 0);
	struct file file = { .folder = folder };
	struct file private = { .folder = "anonymous memory" };

	file_open(&file, key);
	file_map(&file, bench, PROT_READ, MAP_SHARED, ALL_ACCESS);
	test_read_only(bench, &file, key);
	file_unmap(&file);
	close(file.fd);
	/* Of memory that may be written until it is protected. */
	private.map = anonymous(LENGTH);
	content_fill(private.map, key, 0, LENGTH);
	private.mr = region(&bench->device, private.map, LENGTH, true);
	content_fill(bench->buffer, key, PAGE, PART);
	WANT(ask(bench, IBV_WR_RDMA_WRITE, &private, PAGE) == IBV_WC_SUCCESS);
	WANT(!mprotect(private.map, LENGTH, PROT_READ));
	test_read_only(bench, &private, key);
	WANT(!mprotect(private.map, LENGTH, PROT_READ | PROT_WRITE));
	WANT(ask(bench, IBV_WR_RDMA_WRITE, &private, PAGE) == IBV_WC_SUCCESS);
	WANT(!memcmp(private.map + PAGE, bench->buffer, PART));
	file_unmap(&private);
}

int main(void)
{
	/* The root file system has a disk and a page cache. */
	static const char *const folders[] = { "/root", "/dev/shm" };
	int kmsg = kmsg_open();
	struct bench bench;

	device_open(&bench.device);
	device_needs_odp(&bench.device, false);
	loop_create(&bench.loop, &bench.device);
	bench.buffer = anonymous(PART);
	bench.mr = region(&bench.device, bench.buffer, PART, false);
	for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
		test_shared(&bench, folders[i]);
		test_private(&bench, folders[i]);
		test_refused_writes(&bench, folders[i]);
		say("%s: all right", folders[i]);
	}
	WANT(!ibv_dereg_mr(bench.mr));
	loop_destroy(&bench.loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
