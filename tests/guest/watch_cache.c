// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * watch_cache: a registration cache that asks the counters of range watches
 * whether what it has registered is still what is mapped, and what a watch
 * notices and what not. Runs in one guest.
 *
 * watch_cache unplug DRIVER ADDRESS: readers and counters when the device is
 * taken away from its driver. Leaves the guest without the device.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "watched.h"

#define LENGTH (16 * PAGE)
#define CACHE_SIZE 8
#define MANY 2000
#define ROUNDS 400

/* --- the cache ---------------------------------------------------------- */

struct cached {
	void *at;
	size_t length;
	struct ibv_mr *mr;
	struct faultlinedv_watch *watch;
	/* The counter when the memory was registered. */
	uint64_t value;
};

struct cache {
	struct device *device;
	struct faultlinedv_events *events;
	pthread_mutex_t lock;
	struct cached entries[CACHE_SIZE];
	unsigned int used;
	unsigned int hits;
	unsigned int renewals;
	bool naive;
};

/* Registers the present mappings: neither earlier ones nor gaps. */
static void cache_register(struct cache *cache, struct cached *entry)
{
	do {
		if (entry->mr && ibv_dereg_mr(entry->mr))
			die("cannot deregister");
		if (faultlinedv_sync_watch(entry->watch, &entry->value))
			die("cannot synchronize with a watch");
		entry->mr = ibv_reg_mr(cache->device->pd, entry->at, entry->length, ALL_ACCESS);
		/* Another thread may have unmapped it: who sends knows that it is there. */
		if (!entry->mr && errno != EFAULT)
			die("cannot register: %m");
	} while (faultlinedv_watch_value(entry->watch) != entry->value);
}

/* The key of a buffer. The fast path is a comparison, and no system call. */
static uint32_t cache_lookup(struct cache *cache, void *at, size_t length)
{
	struct cached *entry = NULL;
	uint32_t key;

	pthread_mutex_lock(&cache->lock);
	for (unsigned int i = 0; i < cache->used && !entry; i++)
		if (cache->entries[i].at == at && cache->entries[i].length == length)
			entry = &cache->entries[i];
	if (!entry) {
		if (cache->used == CACHE_SIZE)
			die("the cache is full");
		entry = &cache->entries[cache->used++];
		entry->at = at;
		entry->length = length;
		entry->watch = faultlinedv_create_watch(cache->events, at, length, cache->used);
		if (!entry->watch)
			die("cannot watch: %m");
		cache_register(cache, entry);
	} else if (cache->naive || (entry->mr &&
				    faultlinedv_watch_value(entry->watch) == entry->value)) {
		cache->hits++;
	} else {
		cache->renewals++;
		cache_register(cache, entry);
	}
	key = entry->mr ? entry->mr->lkey : 0;
	pthread_mutex_unlock(&cache->lock);
	return key;
}

static void cache_init(struct cache *cache, struct device *device, bool naive)
{
	memset(cache, 0, sizeof(*cache));
	cache->device = device;
	cache->events = events_create(device, 256);
	cache->naive = naive;
	pthread_mutex_init(&cache->lock, NULL);
}

static void cache_clear(struct cache *cache)
{
	for (unsigned int i = 0; i < cache->used; i++) {
		if (cache->entries[i].mr && ibv_dereg_mr(cache->entries[i].mr))
			die("cannot deregister");
		if (faultlinedv_destroy_watch(cache->entries[i].watch))
			die("cannot destroy a watch");
	}
	faultlinedv_destroy_events(cache->events);
	pthread_mutex_destroy(&cache->lock);
}

/* --- sent data ----------------------------------------------------------- */

struct bench {
	struct device device;
	struct loop loop;
	uint8_t *target;
	struct ibv_mr *target_mr;
};

/* Sends a buffer through the cache; how many bytes arrive that are not its content. */
static size_t send_cached(struct bench *bench, struct cache *cache, void *at, uint64_t key)
{
	uint32_t lkey = cache_lookup(cache, at, LENGTH);

	if (loop_do(&bench->loop, IBV_WR_RDMA_WRITE, at, LENGTH, lkey, bench->target,
		    bench->target_mr->rkey) != IBV_WC_SUCCESS)
		die("a transfer fails");
	return content_wrong(bench->target, key, 0, LENGTH);
}

/* munmap, mmap at the same address, other content. */
static void renew(void *at, uint64_t key)
{
	WANT(!munmap(at, LENGTH));
	WANT(mmap(at, LENGTH, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
	content_fill(at, key, 0, LENGTH);
}

static void test_caches(struct bench *bench)
{
	void *at = anonymous(LENGTH);
	struct cache naive, watching;
	size_t stale;

	cache_init(&naive, &bench->device, true);
	content_fill(at, 1, 0, LENGTH);
	WANT(!send_cached(bench, &naive, at, 1));
	renew(at, 2);
	stale = send_cached(bench, &naive, at, 2);
	say("a cache by address sends %zu stale bytes of %lu", stale, LENGTH);
	WANT(stale > LENGTH / 2);
	WANT(!content_wrong(bench->target, 1, 0, LENGTH));
	cache_clear(&naive);

	cache_init(&watching, &bench->device, false);
	for (uint64_t key = 3; key < 50; key++) {
		renew(at, key);
		for (int i = 0; i < 3; i++)
			WANT(!send_cached(bench, &watching, at, key));
	}
	say("a watching cache: %u hits, %u renewals, nothing stale", watching.hits,
	    watching.renewals);
	WANT(watching.hits == 47 * 2);
	WANT(watching.renewals == 46);
	cache_clear(&watching);
	WANT(!munmap(at, LENGTH));
}

/* --- two threads and one cache -------------------------------------------- */

struct meddler {
	struct cache *cache;
	void *at;
	bool stop;
};

/* Registers the buffer again and again, also while it is being unmapped. */
static void *meddle(void *argument)
{
	struct meddler *meddler = argument;

	while (!__atomic_load_n(&meddler->stop, __ATOMIC_RELAXED))
		cache_lookup(meddler->cache, meddler->at, LENGTH);
	return NULL;
}

static void test_threads(struct bench *bench)
{
	void *at = anonymous(LENGTH);
	struct cache cache;
	struct meddler meddler = { &cache, at, false };
	pthread_t thread;

	cache_init(&cache, &bench->device, false);
	WANT(!pthread_create(&thread, NULL, meddle, &meddler));
	for (uint64_t key = 100; key < 100 + ROUNDS; key++) {
		renew(at, key);
		WANT(!send_cached(bench, &cache, at, key));
	}
	__atomic_store_n(&meddler.stop, true, __ATOMIC_RELAXED);
	WANT(!pthread_join(thread, NULL));
	say("with another thread at the cache: %u renewals in %u rounds, nothing stale",
	    cache.renewals, ROUNDS);
	cache_clear(&cache);
	WANT(!munmap(at, LENGTH));
}

/* --- events of a watch ------------------------------------------------------ */

static struct faultlinedv_watch *watch_create(struct faultlinedv_events *events, const void *at,
					      size_t length, uint64_t cookie)
{
	struct faultlinedv_watch *watch = faultlinedv_create_watch(events, at, length, cookie);

	if (!watch)
		die("cannot watch: %m");
	WANT(faultlinedv_watch_value(watch));
	return watch;
}

static void test_notices(struct device *device)
{
	struct faultlinedv_events *events = events_create(device, 64);
	uint8_t *at = anonymous(LENGTH), *other = anonymous(LENGTH);
	struct faultlinedv_watch *watch;
	struct faultlinedv_event event;
	uint64_t value, synced;

	memset(at, 1, LENGTH);
	watch = watch_create(events, at, LENGTH, 4711);
	value = faultlinedv_watch_value(watch);

	/* Accesses, and looking for accesses, are no changes. */
	memset(at, 2, LENGTH);
	WANT(!write_file("/proc/self/clear_refs", "1"));
	WANT(!write_file("/proc/self/clear_refs", "4"));
	memset(at, 3, LENGTH);
	WANT(faultlinedv_watch_value(watch) == value);
	WANT(!events_wait(events, 0));
	/* Nor is what happens beside it. */
	memset(other, 1, LENGTH);
	WANT(!munmap(other, LENGTH));
	WANT(faultlinedv_watch_value(watch) == value);

#define NOTICED(what, from, to, why)                                          \
	do {                                                                  \
		WANT(faultlinedv_watch_value(watch) > value);                 \
		WANT(!faultlinedv_sync_watch(watch, &synced));                \
		value = faultlinedv_watch_value(watch);                       \
		WANT(synced == value);                                        \
		event = event_read(events);                                   \
		say("noticed: %s, pages %ld to %ld", what,                    \
		    (long)(event.start - (uintptr_t)at) / (long)PAGE,         \
		    (long)(event.end - (uintptr_t)at) / (long)PAGE);          \
		WANT(event.type == FAULTLINEDV_EVENT_RANGE);                  \
		WANT(event.reason == (why));                                  \
		WANT(event.cookie == 4711);                                   \
		WANT(event.start <= (uintptr_t)at + (from) * PAGE);           \
		WANT(event.end >= (uintptr_t)at + (to) * PAGE);               \
		WANT(event.start >= (uintptr_t)at);                           \
		WANT(event.end <= (uintptr_t)at + LENGTH);                    \
		events_drain(events);                                         \
	} while (0)

	WANT(!madvise(at + 2 * PAGE, PAGE, MADV_DONTNEED));
	NOTICED("madvise", 2, 3, FAULTLINEDV_REASON_CLEAR);
	WANT(!mprotect(at + PAGE, PAGE, PROT_READ));
	NOTICED("mprotect", 1, 2, FAULTLINEDV_REASON_PROTECTION);
	replace(at + 3 * PAGE, PAGE);
	NOTICED("mmap over it", 3, 4, FAULTLINEDV_REASON_UNMAP);
	other = mremap(at + 4 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other);
	WANT(other != MAP_FAILED);
	NOTICED("mremap away", 4, 5, FAULTLINEDV_REASON_UNMAP);
	WANT(mremap(other, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + 5 * PAGE) ==
	     at + 5 * PAGE);
	NOTICED("mremap to it", 5, 6, FAULTLINEDV_REASON_UNMAP);
	WANT(!munmap(at, LENGTH));
	NOTICED("munmap", 15, 16, FAULTLINEDV_REASON_UNMAP);

	/* The place is free: to be watched all the same. */
	WANT(mmap(at, LENGTH, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
	memset(at, 1, LENGTH);
	events_drain(events);
	WANT(!munmap(at, LENGTH));
	NOTICED("munmap of a mapping made after the watch", 15, 16, FAULTLINEDV_REASON_UNMAP);

	WANT(!faultlinedv_destroy_watch(watch));
	faultlinedv_destroy_events(events);
}

static void test_fork(struct device *device)
{
	struct faultlinedv_events *events = events_create(device, 64);
	uint8_t *at = anonymous(LENGTH);
	struct faultlinedv_watch *watch;
	uint64_t value;
	int status;
	pid_t child;

	memset(at, 1, LENGTH);
	watch = watch_create(events, at, LENGTH, 1);
	value = faultlinedv_watch_value(watch);
	child = fork();
	WANT(child >= 0);
	if (!child) {
		/* The memory of the child, which the parent's watch does not cover. */
		memset(at, 2, LENGTH);
		munmap(at, LENGTH);
		_exit(faultlinedv_watch_value(watch) != value);
	}
	WANT(waitpid(child, &status, 0) == child);
	WANT(!status);
	WANT(faultlinedv_watch_value(watch) == value);
	WANT(!events_wait(events, 0));

	/* While there is a child, to write means to get another page. */
	child = fork();
	WANT(child >= 0);
	if (!child) {
		pause();
		_exit(0);
	}
	at[5 * PAGE] = 7;
	WANT(faultlinedv_watch_value(watch) > value);
	WANT(event_read(events).reason == FAULTLINEDV_REASON_CLEAR);
	WANT(!kill(child, SIGKILL));
	WANT(waitpid(child, &status, 0) == child);
	say("a child's changes are its own; copy-on-write in the parent is noticed");
	WANT(!faultlinedv_destroy_watch(watch));
	faultlinedv_destroy_events(events);
	WANT(!munmap(at, LENGTH));
}

static void test_many(struct device *device)
{
	static struct faultlinedv_watch *watches[MANY];
	static uint64_t values[MANY];
	struct faultlinedv_events *events = events_create(device, 16);
	uint8_t *at = anonymous(MANY * PAGE);
	struct faultlinedv_event event;
	unsigned int moved = 0;

	/* Of a huge page all changes when a part of it does. */
	WANT(!madvise(at, MANY * PAGE, MADV_NOHUGEPAGE));
	memset(at, 1, MANY * PAGE);
	/* Two pages each: every page but the ends is watched twice. */
	for (unsigned int i = 0; i < MANY; i++) {
		watches[i] = watch_create(events, at + i * PAGE, i + 1 < MANY ? 2 * PAGE : PAGE, i);
		values[i] = faultlinedv_watch_value(watches[i]);
	}
	WANT(!madvise(at + 500 * PAGE, PAGE, MADV_DONTNEED));
	for (unsigned int i = 0; i < MANY; i++)
		moved += faultlinedv_watch_value(watches[i]) != values[i];
	WANT(moved == 2);
	WANT(faultlinedv_watch_value(watches[499]) != values[499]);
	WANT(faultlinedv_watch_value(watches[500]) != values[500]);
	WANT(event_read(events).type == FAULTLINEDV_EVENT_RANGE);
	WANT(event_read(events).type == FAULTLINEDV_EVENT_RANGE);
	WANT(!events_wait(events, 0));

	/* More than the queue holds: the reader gets an event, and no counter is wrong. */
	WANT(!munmap(at, MANY * PAGE));
	for (unsigned int i = 0; i < MANY; i++)
		WANT(faultlinedv_watch_value(watches[i]) != values[i]);
	event = event_read(events);
	WANT(event.type == FAULTLINEDV_EVENT_OVERFLOW);
	WANT(event.start == 0 && event.end == UINT64_MAX);
	for (int i = 0; i < 16; i++)
		WANT(event_read(events).type == FAULTLINEDV_EVENT_RANGE);
	WANT(!events_wait(events, 0));
	say("%u overlapping watches: each counts, and a full queue says so", MANY);
	for (unsigned int i = 0; i < MANY; i++) {
		/* What is closed is closed; the counters go on. */
		if (i == MANY / 2)
			faultlinedv_destroy_events(events);
		WANT(!faultlinedv_destroy_watch(watches[i]));
	}
}

/* --- reading ------------------------------------------------------------------ */

struct reader {
	struct faultlinedv_events *events;
	struct faultlinedv_event event;
	int result;
	int error;
};

static void *read_one(void *argument)
{
	struct reader *reader = argument;

	reader->result = faultlinedv_read_events(reader->events, &reader->event, 1);
	reader->error = errno;
	return NULL;
}

static void test_reading(struct device *device)
{
	struct faultlinedv_events *events = events_create(device, 4);
	struct reader reader = { .events = events };
	uint8_t *at = anonymous(LENGTH);
	struct faultlinedv_event event;
	struct faultlinedv_watch *watch;
	int fd = faultlinedv_events_fd(events);
	pthread_t thread;

	memset(at, 1, LENGTH);
	watch = watch_create(events, at, LENGTH, 5);
	WANT(!pthread_create(&thread, NULL, read_one, &reader));
	sleep_ms(100);
	WANT(!munmap(at, LENGTH));
	WANT(!pthread_join(thread, NULL));
	WANT(reader.result == 1);
	WANT(reader.event.cookie == 5);

	WANT(!fcntl(fd, F_SETFL, O_NONBLOCK));
	WANT(faultlinedv_read_events(events, &event, 1) == -1 && errno == EAGAIN);
	WANT(read(fd, &event, sizeof(event) - 1) == -1 && errno == EINVAL);

	/* What could not be delivered is not lost silently. */
	replace(at, LENGTH);
	memset(at, 1, LENGTH);
	WANT(!munmap(at, LENGTH));
	WANT(read(fd, at, sizeof(event)) == -1 && errno == EFAULT);
	event = event_read(events);
	WANT(event.type == FAULTLINEDV_EVENT_OVERFLOW);

	/* Nonsense is refused. */
	WANT(!faultlinedv_create_watch(events, at, 0, 0) && errno == EINVAL);
	WANT(!faultlinedv_create_watch(events, (void *)~0xfffUL, 8192, 0) && errno == EINVAL);
	WANT(!faultlinedv_create_events(device->context, 0) && errno == EINVAL);
	say("events are read, waited for and refused as they should be");
	WANT(!faultlinedv_destroy_watch(watch));
	faultlinedv_destroy_events(events);
}

/* --- without the device ---------------------------------------------------------- */

static void test_unplug(struct device *device, const char *driver, const char *address)
{
	struct faultlinedv_events *events = events_create(device, 4);
	struct reader reader = { .events = events };
	uint8_t *at = anonymous(LENGTH);
	struct faultlinedv_watch *watch = watch_create(events, at, LENGTH, 5);
	uint64_t value = faultlinedv_watch_value(watch), synced;
	char path[256];
	pthread_t thread;
	int error;

	snprintf(path, sizeof(path), "/sys/bus/pci/drivers/%s/unbind", driver);
	WANT(!pthread_create(&thread, NULL, read_one, &reader));
	sleep_ms(200);
	error = write_file(path, address);
	if (error)
		die("cannot unbind: %s", strerror(-error));
	WANT(!pthread_join(thread, NULL));
	WANT(reader.result == -1 && reader.error == EIO);
	WANT(events_wait(events, 0));
	WANT(faultlinedv_watch_value(watch) != value);
	value = faultlinedv_watch_value(watch);
	WANT(!munmap(at, LENGTH));
	WANT(faultlinedv_watch_value(watch) == value);
	WANT(faultlinedv_sync_watch(watch, &synced));
	WANT(!faultlinedv_destroy_watch(watch));
	faultlinedv_destroy_events(events);
	say("without the device readers get errors, and counters have gone up");
}

int main(int argc, char **argv)
{
	static struct bench bench;

	device_open(&bench.device);
	if (!faultlinedv_is_supported(bench.device.context->device))
		die("this is not a device that can watch");
	if (argc == 4 && !strcmp(argv[1], "unplug")) {
		test_unplug(&bench.device, argv[2], argv[3]);
		puts("PASS");
		return 0;
	}
	if (argc != 1)
		die("usage: %s [unplug DRIVER ADDRESS]", argv[0]);
	loop_create(&bench.loop, &bench.device);
	bench.target = anonymous(LENGTH);
	bench.target_mr = region(&bench.device, bench.target, LENGTH, false);
	test_caches(&bench);
	test_threads(&bench);
	test_notices(&bench.device);
	test_fork(&bench.device);
	test_many(&bench.device);
	test_reading(&bench.device);
	loop_destroy(&bench.loop);
	WANT(!ibv_dereg_mr(bench.target_mr));
	WANT(!ibv_dealloc_pd(bench.device.pd));
	WANT(!ibv_close_device(bench.device.context));
	puts("PASS");
	return 0;
}
