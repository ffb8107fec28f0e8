// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * pressure_cache: a registration cache that gives memory back when the kernel
 * is short of it. Registered memory is pinned, so the kernel cannot reclaim it:
 * in a control group with a hard limit a cache that keeps all registrations
 * ends with its process. This one learns of the shortage from two files of its
 * group: memory.events counts each time that the limit is reached, and
 * memory.pressure tells of tasks that wait for memory (PSI). It deregisters
 * the entries that were used least recently; the kernel then swaps their pages
 * out. Runs in one guest with swap.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "watched.h"

#define MIB (1UL << 20)
#define LENGTH (2 * MIB)
/* Buffers of the program: more than the limit, together with what else a process needs. */
#define BUFFERS 40
#define LIMIT "48M"
#define GROUP "/sys/fs/cgroup/pressure_cache"
/* Tasks of the group have waited for memory for 100 ms of 2 s, the shortest time that every user may ask for. */
#define STALLS "some 100000 2000000"

struct entry {
	uint8_t *at;
	struct ibv_mr *mr;
	struct faultlinedv_watch *watch;
	/* The counter of the watch when the memory was registered. */
	uint64_t value;
	/* Number of the look-up that has used it last. */
	uint64_t used;
};

struct cache {
	struct device *device;
	struct faultlinedv_events *events;
	pthread_mutex_t lock;
	struct entry entries[BUFFERS];
	unsigned int count;
	uint64_t look_ups;
	/* memory.events, and what it has said last; memory.pressure, -1 without it. */
	int limit_file;
	uint64_t limit_hits;
	int stall_file;
	/* Ends the thread. */
	int end[2];
	pthread_t thread;
	unsigned int released;
};

/* How often the group has reached its limits. */
static uint64_t limit_hits(struct cache *cache)
{
	char text[512];
	ssize_t length = pread(cache->limit_file, text, sizeof(text) - 1, 0);
	uint64_t hits = 0;

	if (length <= 0)
		die("cannot read memory.events: %m");
	text[length] = 0;
	for (const char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		unsigned long long count;

		if (sscanf(line, "high %llu", &count) == 1 || sscanf(line, "max %llu", &count) == 1)
			hits += count;
	}
	return hits;
}

/* Deregisters the half of the entries that was used least recently. */
static void release_half(struct cache *cache)
{
	unsigned int registered = 0;

	for (unsigned int i = 0; i < cache->count; i++)
		registered += !!cache->entries[i].mr;
	for (unsigned int rest = (registered + 1) / 2; rest; rest--) {
		struct entry *oldest = NULL;

		for (unsigned int i = 0; i < cache->count; i++) {
			struct entry *entry = &cache->entries[i];

			if (entry->mr && (!oldest || entry->used < oldest->used))
				oldest = entry;
		}
		if (ibv_dereg_mr(oldest->mr))
			die("cannot deregister");
		oldest->mr = NULL;
		cache->released++;
	}
}

/* Under the lock. */
static void respond(struct cache *cache)
{
	uint64_t hits = limit_hits(cache);

	if (hits == cache->limit_hits)
		return;
	cache->limit_hits = hits;
	release_half(cache);
}

/* Responds also while the program does not use its cache. */
static void *watch_pressure(void *argument)
{
	struct cache *cache = argument;
	struct pollfd files[] = {
		{ .fd = cache->end[0], .events = POLLIN },
		{ .fd = cache->limit_file, .events = POLLPRI },
		{ .fd = cache->stall_file, .events = POLLPRI },
	};

	while (poll(files, ARRAY_SIZE(files), -1) > 0 && !files[0].revents) {
		pthread_mutex_lock(&cache->lock);
		respond(cache);
		if (files[2].revents & POLLPRI)
			release_half(cache);
		pthread_mutex_unlock(&cache->lock);
	}
	return NULL;
}

static void cache_register(struct cache *cache, struct entry *entry)
{
	do {
		if (entry->mr && ibv_dereg_mr(entry->mr))
			die("cannot deregister");
		if (faultlinedv_sync_watch(entry->watch, &entry->value))
			die("cannot synchronize with a watch");
		entry->mr = ibv_reg_mr(cache->device->pd, entry->at, LENGTH, ALL_ACCESS);
		if (!entry->mr)
			die("cannot register: %m");
	} while (faultlinedv_watch_value(entry->watch) != entry->value);
}

/*
 * The key of a buffer. The caller holds the lock until its request is complete,
 * so that the entry stays; a library would count the users of an entry.
 */
static uint32_t cache_look_up(struct cache *cache, uint8_t *at, bool responds)
{
	struct entry *entry = cache->entries;

	while (entry < cache->entries + cache->count && entry->at != at)
		entry++;
	if (entry == cache->entries + cache->count) {
		WANT(cache->count < BUFFERS);
		cache->count++;
		entry->at = at;
		entry->watch = faultlinedv_create_watch(cache->events, at, LENGTH, 0);
		if (!entry->watch)
			die("cannot watch: %m");
	}
	entry->used = ++cache->look_ups;
	if (!entry->mr || faultlinedv_watch_value(entry->watch) != entry->value) {
		/* No page more is pinned before those are released that the kernel asks for. */
		if (responds)
			respond(cache);
		cache_register(cache, entry);
	}
	return entry->mr->lkey;
}

static void cache_init(struct cache *cache, struct device *device, bool responds)
{
	memset(cache, 0, sizeof(*cache));
	cache->device = device;
	cache->events = events_create(device, 256);
	pthread_mutex_init(&cache->lock, NULL);
	cache->limit_file = open(GROUP "/memory.events", O_RDONLY | O_CLOEXEC);
	cache->stall_file = open(GROUP "/memory.pressure", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (cache->stall_file >= 0 && write(cache->stall_file, STALLS, sizeof(STALLS)) < 0)
		die("cannot ask for memory.pressure: %m");
	cache->limit_hits = limit_hits(cache);
	WANT(!pipe2(cache->end, O_CLOEXEC));
	if (responds)
		WANT(!pthread_create(&cache->thread, NULL, watch_pressure, cache));
}

/* --- the program that uses it --------------------------------------------- */

/* Sends each buffer twice: when it is filled, and when all are. Returns the registrations that were released. */
static unsigned int use_cache(bool responds)
{
	static uint8_t *buffers[BUFFERS];
	struct device device;
	struct cache cache;
	struct loop loop;
	struct ibv_mr *target_mr;
	uint8_t *target;

	device_open(&device);
	loop_create(&loop, &device);
	cache_init(&cache, &device, responds);
	target = anonymous(LENGTH);
	target_mr = region(&device, target, LENGTH, false);
	for (unsigned int i = 0; i < 2 * BUFFERS; i++) {
		unsigned int number = i % BUFFERS;
		uint64_t key = content_key(3, number, 0);

		if (i < BUFFERS) {
			buffers[number] = anonymous(LENGTH);
			content_fill(buffers[number], key, 0, LENGTH);
		}
		memset(target, 0, LENGTH);
		pthread_mutex_lock(&cache.lock);
		WANT(loop_do(&loop, IBV_WR_RDMA_WRITE, buffers[number], LENGTH,
			     cache_look_up(&cache, buffers[number], responds), target,
			     target_mr->rkey) == IBV_WC_SUCCESS);
		pthread_mutex_unlock(&cache.lock);
		WANT(!content_wrong(target, key, 0, LENGTH));
	}
	if (responds) {
		WANT(write(cache.end[1], "", 1) == 1);
		WANT(!pthread_join(cache.thread, NULL));
	}
	return cache.released;
}

/* In a process of its own, in the group. */
static int run(bool responds)
{
	int status;
	pid_t child = fork();

	WANT(child >= 0);
	if (!child) {
		unsigned int released;

		WANT(!write_file(GROUP "/cgroup.procs", "0"));
		released = use_cache(responds);
		say("%d buffers of 2 MiB within " LIMIT "; %u registrations released", BUFFERS,
		    released);
		exit(responds ? !released : 0);
	}
	WANT(waitpid(child, &status, 0) == child);
	return status;
}

int main(void)
{
	char levels[64] = "";
	FILE *file = fopen("/proc/sys/kernel/printk", "r");
	int status;

	if (!file || !fgets(levels, sizeof(levels), file))
		die("cannot read the console's level");
	fclose(file);
	WANT(!write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory"));
	WANT(!mkdir(GROUP, 0755) || errno == EEXIST);
	WANT(!write_file(GROUP "/memory.max", LIMIT));

	WANT(!run(true));
	/* The kernel reports the end of a process without memory at length. Here it is expected. */
	write_file("/proc/sys/kernel/printk", "1");
	status = run(false);
	write_file("/proc/sys/kernel/printk", levels);
	WANT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	say("without a response to pressure the process is killed");
	WANT(!rmdir(GROUP));
	puts("PASS");
	return 0;
}
