// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * decoherence: pinned regions whose mapping changes, with an event, and the
 * same keys pointed at the new memory. Until that the device keeps the old
 * pages, or has none, or the change waits. Runs in one guest.
 *
 * decoherence FOLDER: in which a file system on a DAX device is.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "watched.h"

#define PAGES 8
#define LENGTH (PAGES * PAGE)
/* What nothing that must not wait may take, and what something that waits takes. */
#define PROMPT_MS 1000
#define LEASE_MS 2500
#define ANSWER_MS 300
/* By how much a wait may be shorter than the sleep in it. */
#define SLACK_MS 10

struct bench {
	struct device device;
	struct loop loop;
	/* Memory that nothing happens to, and its queue pairs. */
	struct loop others;
	uint8_t *safe;
	struct ibv_mr *safe_mr;
};

static struct ibv_mr *watched(struct bench *bench, struct faultlinedv_events *events, void *at,
			      uint64_t cookie, uint32_t mode, uint32_t lease_ms)
{
	struct faultlinedv_mr_attr attr = {
		.events = events,
		.cookie = cookie,
		.mode = mode,
		.lease_ms = lease_ms,
	};
	struct ibv_mr *mr = faultlinedv_reg_mr(bench->device.pd, at, LENGTH, (uintptr_t)at,
					       ALL_ACCESS, &attr);

	if (!mr)
		die("cannot register: %m");
	return mr;
}

/* From the region: how it completes. */
static enum ibv_wc_status fetch(struct bench *bench, struct ibv_mr *mr, uint8_t *at,
				uint32_t length)
{
	memset(bench->safe, 0, LENGTH);
	return loop_do(&bench->loop, IBV_WR_RDMA_WRITE, at, length, mr->lkey, bench->safe,
		       bench->safe_mr->rkey);
}

static void fetch_wants(struct bench *bench, struct ibv_mr *mr, uint8_t *at, uint64_t key)
{
	WANT(fetch(bench, mr, at, LENGTH) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->safe, key, 0, LENGTH));
}

/* Into the region, by its rkey. */
static void store_wants(struct bench *bench, struct ibv_mr *mr, uint8_t *at, uint64_t key)
{
	content_fill(bench->safe, key, 0, LENGTH);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->safe, LENGTH, bench->safe_mr->lkey,
		     at, mr->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(at, key, 0, LENGTH));
}

/* That another region and other queue pairs go on as if nothing had been. */
static void others_are_well(struct bench *bench)
{
	content_fill(bench->safe, 99, 0, PAGE);
	WANT(loop_do(&bench->others, IBV_WR_RDMA_WRITE, bench->safe, PAGE, bench->safe_mr->lkey,
		     bench->safe + PAGE, bench->safe_mr->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->safe + PAGE, 99, 0, PAGE));
}

static struct faultlinedv_event wants_event(struct faultlinedv_events *events, uint32_t type,
					    uint32_t reason, uint64_t cookie)
{
	struct faultlinedv_event event = event_read(events);

	WANT(event.type == type);
	WANT(event.reason == reason);
	WANT(event.cookie == cookie);
	return event;
}

/* --- what `rdma statistic` shows ------------------------------------------------------- */

/* What a command prints, as one line. */
static void output_of(const char *command, char *text, size_t size)
{
	FILE *pipe = popen(command, "r");
	size_t length;

	WANT(pipe);
	length = fread(text, 1, size - 1, pipe);
	WANT(!pclose(pipe));
	WANT(length < size - 1);
	text[length] = 0;
}

/* The number that follows a name in a text. */
static uint64_t number_after(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	unsigned long long value;

	if (!at || sscanf(at + strlen(name), "%llu", &value) != 1)
		die("there is no number after \"%s\" in: %s", name, text);
	return value;
}

struct counters {
	uint64_t events;
	uint64_t waits;
	uint64_t timeouts;
	uint64_t wait_ms;
};

static struct counters counters_of(const struct ibv_mr *mr)
{
	char text[16384], command[64], *line, key[32];
	struct counters counters;

	output_of("rdma -d resource show mr", text, sizeof(text));
	snprintf(key, sizeof(key), " lkey 0x%x ", mr->lkey);
	for (line = strtok(text, "\n"); line && !strstr(line, key); line = strtok(NULL, "\n"))
		;
	if (!line)
		die("`rdma resource` shows no region with%s", key);
	snprintf(command, sizeof(command), "rdma statistic show mr mrn %llu",
		 (unsigned long long)number_after(line, " mrn "));
	output_of(command, text, sizeof(text));
	counters.events = number_after(text, "watch_events ");
	counters.waits = number_after(text, "lease_waits ");
	counters.timeouts = number_after(text, "lease_timeouts ");
	counters.wait_ms = number_after(text, "lease_wait_ns ") / 1000000;
	return counters;
}

/*
 * Checks the numbers, and the time of all waits: the kernel may invalidate one range more
 * than once, so that there are more events than changes; `most_ms` is the time of the calls that
 * waited. Each waited at least for an answer or for the time limit.
 */
static void wants_counters(const struct ibv_mr *mr, uint64_t events, uint64_t waits,
			   uint64_t timeouts, uint64_t most_ms)
{
	struct counters seen = counters_of(mr);

	say("events %llu, waits %llu, timeouts %llu, %llu ms", (unsigned long long)seen.events,
	    (unsigned long long)seen.waits, (unsigned long long)seen.timeouts,
	    (unsigned long long)seen.wait_ms);
	WANT(seen.events >= events);
	WANT(seen.waits == waits);
	WANT(seen.timeouts == timeouts);
	WANT(seen.wait_ms <= most_ms);
	WANT(seen.wait_ms + waits * SLACK_MS >=
	     (waits - timeouts) * ANSWER_MS + timeouts * LEASE_MS);
}

static void test_keep(struct bench *bench)
{
	struct faultlinedv_events *events = events_create(&bench->device, 16);
	struct faultlinedv_event event;
	uint8_t *at = anonymous(LENGTH);
	struct ibv_mr *mr;
	uint32_t lkey, rkey;

	content_fill(at, 1, 0, LENGTH);
	mr = watched(bench, events, at, 7, FAULTLINEDV_MR_KEEP, 0);
	lkey = mr->lkey;
	rkey = mr->rkey;
	fetch_wants(bench, mr, at, 1);
	/* The device does not use the rights of the process. */
	WANT(!mprotect(at, LENGTH, PROT_READ));
	WANT(!mprotect(at, LENGTH, PROT_READ | PROT_WRITE));
	WANT(!events_wait(events, 0));

	WANT(!munmap(at, LENGTH));
	event = wants_event(events, FAULTLINEDV_EVENT_MR, FAULTLINEDV_REASON_UNMAP, 7);
	WANT(event.start == (uintptr_t)at && event.end == (uintptr_t)at + LENGTH);
	wants_counters(mr, 1, 0, 0, 0);
	fetch_wants(bench, mr, at, 1);
	WANT(faultlinedv_restore_mr(mr) == EFAULT);
	fetch_wants(bench, mr, at, 1);
	replace(at, LENGTH);
	content_fill(at, 2, 0, LENGTH);
	fetch_wants(bench, mr, at, 1);
	WANT(!faultlinedv_restore_mr(mr));
	WANT(mr->lkey == lkey && mr->rkey == rkey);
	fetch_wants(bench, mr, at, 2);
	store_wants(bench, mr, at, 3);

	/* A part of it, by other means. */
	events_drain(events);
	WANT(!madvise(at + PAGE, PAGE, MADV_DONTNEED));
	event = wants_event(events, FAULTLINEDV_EVENT_MR, FAULTLINEDV_REASON_CLEAR, 7);
	WANT(event.start == (uintptr_t)at + PAGE && event.end == (uintptr_t)at + 2 * PAGE);
	content_fill(at, 4, 0, LENGTH);
	WANT(fetch(bench, mr, at, LENGTH) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->safe, 4, 0, PAGE));
	WANT(!content_wrong(bench->safe + PAGE, 3, PAGE, PAGE));
	WANT(!faultlinedv_restore_mr(mr));
	fetch_wants(bench, mr, at, 4);
	WANT(!events_wait(events, 0));

	say("keep: old pages until the region is restored, then the new ones under the same keys");
	WANT(!ibv_dereg_mr(mr));
	faultlinedv_destroy_events(events);
	WANT(!munmap(at, LENGTH));
}

static void test_fence(struct bench *bench)
{
	struct faultlinedv_events *events = events_create(&bench->device, 16);
	uint8_t *at = anonymous(LENGTH);
	struct ibv_mr *mr;

	content_fill(at, 1, 0, LENGTH);
	mr = watched(bench, events, at, 8, FAULTLINEDV_MR_FENCE, 0);
	fetch_wants(bench, mr, at, 1);
	replace(at + 2 * PAGE, PAGE);
	wants_event(events, FAULTLINEDV_EVENT_MR, FAULTLINEDV_REASON_UNMAP, 8);
	content_fill(at, 2, 0, LENGTH);

	/* Requests to mapped memory work; those to unmapped memory fail, and only those. */
	WANT(fetch(bench, mr, at, 2 * PAGE) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->safe, 2, 0, 2 * PAGE));
	WANT(fetch(bench, mr, at + 2 * PAGE, PAGE) == IBV_WC_LOC_PROT_ERR);
	others_are_well(bench);
	loop_restart(&bench->loop);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->safe, PAGE, bench->safe_mr->lkey,
		     at + 2 * PAGE, mr->rkey) == IBV_WC_REM_OP_ERR);
	loop_restart(&bench->loop);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_READ, bench->safe, PAGE, bench->safe_mr->lkey,
		     at + 2 * PAGE, mr->rkey) == IBV_WC_REM_OP_ERR);
	loop_restart(&bench->loop);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_READ, at + 2 * PAGE, PAGE, mr->lkey, bench->safe,
		     bench->safe_mr->rkey) == IBV_WC_LOC_PROT_ERR);
	loop_restart(&bench->loop);
	others_are_well(bench);

	WANT(!faultlinedv_restore_mr(mr));
	fetch_wants(bench, mr, at, 2);
	store_wants(bench, mr, at, 3);
	say("fence: work requests for what is gone fail, and only these; restored, all is well");
	WANT(!ibv_dereg_mr(mr));
	faultlinedv_destroy_events(events);
	WANT(!munmap(at, LENGTH));
}

/* --- leases ----------------------------------------------------------------- */

enum answer { IGNORE, RELEASE, RESTORE, DEREGISTER };

/* Answers one lease of one region, as a thread beside the one that unmaps. */
struct answerer {
	struct bench *bench;
	struct faultlinedv_events *events;
	struct ibv_mr *mr;
	uint8_t *at;
	enum answer answer;
	uint64_t old;
	unsigned int delay_ms;
	struct faultlinedv_event event;
	int result;
	pthread_t thread;
};

static void *answer_lease(void *argument)
{
	struct answerer *me = argument;

	if (faultlinedv_read_events(me->events, &me->event, 1) != 1)
		die("cannot read an event: %m");
	/* Nothing has happened yet: finish the request under way. */
	if (me->event.type == FAULTLINEDV_EVENT_LEASE && me->answer != IGNORE)
		fetch_wants(me->bench, me->mr, me->at, me->old);
	sleep_ms(me->delay_ms);
	switch (me->answer) {
	case IGNORE:
		break;
	case RELEASE:
		me->result = faultlinedv_release_mr(me->mr);
		break;
	case RESTORE:
		me->result = faultlinedv_restore_mr(me->mr);
		break;
	case DEREGISTER:
		me->result = ibv_dereg_mr(me->mr);
		break;
	}
	return NULL;
}

static void answerer_start(struct answerer *answerer, enum answer answer, unsigned int delay_ms,
			   uint64_t old)
{
	answerer->answer = answer;
	answerer->delay_ms = delay_ms;
	answerer->old = old;
	answerer->result = -1;
	WANT(!pthread_create(&answerer->thread, NULL, answer_lease, answerer));
	/* Let it read: from then on it is known who answers. */
	sleep_ms(100);
}

static void answerer_end(struct answerer *answerer)
{
	WANT(!pthread_join(answerer->thread, NULL));
}

/* How long it takes to map something else over a range. */
static uint64_t replace_ms(void *at, size_t length)
{
	uint64_t start = now_ms();

	replace(at, length);
	return now_ms() - start;
}

static void test_lease(struct bench *bench)
{
	struct faultlinedv_events *events = events_create(&bench->device, 16);
	struct answerer answerer = { .bench = bench, .events = events };
	uint8_t *at = anonymous(LENGTH);
	struct ibv_mr *mr;
	uint64_t took, waited;

	content_fill(at, 1, 0, LENGTH);
	mr = watched(bench, events, at, 9, FAULTLINEDV_MR_LEASE, LEASE_MS);
	answerer.mr = mr;
	answerer.at = at;
	fetch_wants(bench, mr, at, 1);
	wants_counters(mr, 0, 0, 0, 0);

	/* The process restores it: no transfer has failed. */
	answerer_start(&answerer, RESTORE, ANSWER_MS, 1);
	took = replace_ms(at, LENGTH);
	answerer_end(&answerer);
	WANT(answerer.event.type == FAULTLINEDV_EVENT_LEASE);
	WANT(!answerer.result);
	say("lease: mmap over it has waited %llu ms for restore", (unsigned long long)took);
	WANT(took >= ANSWER_MS && took < LEASE_MS);
	waited = took;
	wants_counters(mr, 1, 1, 0, waited);
	content_fill(at, 2, 0, LENGTH);
	fetch_wants(bench, mr, at, 2);

	/* It gives the memory up, and restores it later. */
	answerer_start(&answerer, RELEASE, ANSWER_MS, 2);
	took = replace_ms(at, LENGTH);
	answerer_end(&answerer);
	WANT(!answerer.result);
	say("lease: mmap over it has waited %llu ms for release", (unsigned long long)took);
	WANT(took >= ANSWER_MS && took < LEASE_MS);
	waited += took;
	wants_counters(mr, 2, 2, 0, waited);
	content_fill(at, 3, 0, LENGTH);
	WANT(fetch(bench, mr, at, LENGTH) == IBV_WC_LOC_PROT_ERR);
	others_are_well(bench);
	loop_restart(&bench->loop);
	WANT(!faultlinedv_restore_mr(mr));
	fetch_wants(bench, mr, at, 3);

	/* It does not answer: the time limit. */
	answerer_start(&answerer, IGNORE, 0, 3);
	took = replace_ms(at, 4 * PAGE);
	answerer_end(&answerer);
	say("lease: mmap over it has waited %llu ms for nothing", (unsigned long long)took);
	WANT(took >= LEASE_MS && took < LEASE_MS + PROMPT_MS);
	waited += took;
	wants_counters(mr, 3, 3, 1, waited);
	WANT(fetch(bench, mr, at, PAGE) == IBV_WC_LOC_PROT_ERR);
	loop_restart(&bench->loop);
	/* What is lost is lost: no second event, nothing to wait for. */
	WANT(replace_ms(at, 4 * PAGE) < PROMPT_MS);
	WANT(!events_wait(events, 0));
	/* And for the rest it is not waited for before it has answered. */
	WANT(fetch(bench, mr, at + 4 * PAGE, PAGE) == IBV_WC_SUCCESS);
	answerer_start(&answerer, IGNORE, 0, 3);
	WANT(replace_ms(at + 4 * PAGE, 4 * PAGE) < PROMPT_MS);
	answerer_end(&answerer);
	WANT(answerer.event.type == FAULTLINEDV_EVENT_MR);
	wants_counters(mr, 4, 3, 1, waited);
	content_fill(at, 4, 0, LENGTH);
	WANT(!faultlinedv_restore_mr(mr));
	fetch_wants(bench, mr, at, 4);

	/* A change by the thread that reads the events does not wait for that thread. */
	replace(at, LENGTH);
	event_read(events);
	WANT(!faultlinedv_restore_mr(mr));
	WANT(replace_ms(at, LENGTH) < PROMPT_MS);
	wants_event(events, FAULTLINEDV_EVENT_MR, FAULTLINEDV_REASON_UNMAP, 9);
	say("lease: the thread that reads the events does not wait for itself");

	/* To deregister is an answer, too. */
	content_fill(at, 5, 0, LENGTH);
	WANT(!faultlinedv_restore_mr(mr));
	answerer_start(&answerer, DEREGISTER, 300, 5);
	took = replace_ms(at, LENGTH);
	answerer_end(&answerer);
	WANT(!answerer.result);
	WANT(took >= 300 && took < LEASE_MS);
	faultlinedv_destroy_events(events);
	WANT(!munmap(at, LENGTH));
}

/* Another process truncates the file below. */
static void test_truncate(struct bench *bench)
{
	struct faultlinedv_events *events = events_create(&bench->device, 16);
	struct answerer answerer = { .bench = bench, .events = events };
	int file = memfd_create("decoherence", 0), status;
	uint64_t start;
	uint8_t *at;
	pid_t child;

	WANT(file >= 0);
	WANT(!ftruncate(file, LENGTH));
	at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	WANT(at != MAP_FAILED);
	content_fill(at, 1, 0, LENGTH);
	answerer.mr = watched(bench, events, at, 10, FAULTLINEDV_MR_LEASE, LEASE_MS);
	answerer.at = at;
	answerer_start(&answerer, RELEASE, 300, 1);
	start = now_ms();
	child = fork();
	WANT(child >= 0);
	if (!child)
		_exit(ftruncate(file, 4 * PAGE) != 0);
	WANT(waitpid(child, &status, 0) == child);
	WANT(!status);
	WANT(now_ms() - start >= 300 && now_ms() - start < LEASE_MS);
	answerer_end(&answerer);
	WANT(!answerer.result);
	WANT(answerer.event.reason == FAULTLINEDV_REASON_CLEAR);
	/* What still exists keeps working. */
	WANT(fetch(bench, answerer.mr, at, 4 * PAGE) == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->safe, 1, 0, 4 * PAGE));
	WANT(fetch(bench, answerer.mr, at + 4 * PAGE, PAGE) == IBV_WC_LOC_PROT_ERR);
	loop_restart(&bench->loop);
	WANT(faultlinedv_restore_mr(answerer.mr) == EFAULT);
	WANT(!ftruncate(file, LENGTH));
	content_fill(at, 2, 0, LENGTH);
	WANT(!faultlinedv_restore_mr(answerer.mr));
	fetch_wants(bench, answerer.mr, at, 2);
	say("lease: truncate in another process has waited; what was left kept working");
	WANT(!ibv_dereg_mr(answerer.mr));
	faultlinedv_destroy_events(events);
	WANT(!munmap(at, LENGTH));
	close(file);
}

/* A process with a lease of ten seconds and a reader that does not answer. */
static void *read_forever(void *argument)
{
	struct faultlinedv_event event;

	while (faultlinedv_read_events(argument, &event, 1) == 1)
		;
	return NULL;
}

static void *unmap_all(void *at)
{
	munmap(at, LENGTH);
	return NULL;
}

static void leave(bool waiting)
{
	struct bench bench = {};
	struct faultlinedv_events *events;
	uint8_t *at = anonymous(LENGTH);
	pthread_t thread;

	device_open(&bench.device);
	events = events_create(&bench.device, 16);
	memset(at, 1, LENGTH);
	watched(&bench, events, at, 11, FAULTLINEDV_MR_LEASE, FAULTLINEDV_MAX_LEASE_MS);
	WANT(!pthread_create(&thread, NULL, read_forever, events));
	sleep_ms(100);
	if (waiting) {
		WANT(!pthread_create(&thread, NULL, unmap_all, at));
		sleep_ms(200);
		raise(SIGKILL);
	}
	_exit(0);
}

static void test_exit(void)
{
	for (int waiting = 0; waiting < 2; waiting++) {
		uint64_t start = now_ms();
		int status;
		pid_t child = fork();

		WANT(child >= 0);
		if (!child)
			leave(waiting);
		WANT(waitpid(child, &status, 0) == child);
		say("a process with a lease%s has ended after %llu ms",
		    waiting ? " that is waited for" : "", (unsigned long long)(now_ms() - start));
		WANT(waiting ? WIFSIGNALED(status) : status == 0);
		WANT(now_ms() - start < 5000);
	}
}

static void test_refusals(struct bench *bench)
{
	struct faultlinedv_events *events = events_create(&bench->device, 16);
	uint8_t *at = anonymous(LENGTH);
	struct faultlinedv_mr_attr attr = { .events = events, .mode = FAULTLINEDV_MR_LEASE };
	struct ibv_mr *plain = region(&bench->device, at, LENGTH, false);

#define REFUSED(access)                                                       \
	WANT(!faultlinedv_reg_mr(bench->device.pd, at, LENGTH, (uintptr_t)at, access, &attr) && \
	     errno == EINVAL)
	REFUSED(ALL_ACCESS);
	attr.lease_ms = FAULTLINEDV_MAX_LEASE_MS + 1;
	REFUSED(ALL_ACCESS);
	attr.mode = 4;
	attr.lease_ms = 0;
	REFUSED(ALL_ACCESS);
	attr.mode = FAULTLINEDV_MR_KEEP;
	REFUSED(ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	WANT(faultlinedv_restore_mr(plain) == EINVAL);
	WANT(faultlinedv_release_mr(plain) == EINVAL);
	WANT(!faultlinedv_reg_mr(bench->device.pd, at, 0, (uintptr_t)at, ALL_ACCESS, &attr) &&
	     errno == EINVAL);
	WANT(!munmap(at, LENGTH));
	WANT(!faultlinedv_reg_mr(bench->device.pd, at, LENGTH, (uintptr_t)at, ALL_ACCESS, &attr) &&
	     errno == EFAULT);
	WANT(!ibv_dereg_mr(plain));
	faultlinedv_destroy_events(events);
}

/* Nobody but the process of a region can restore it: another one has other memory at the addresses. */
static void test_other_process(struct bench *bench)
{
	struct faultlinedv_events *events = events_create(&bench->device, 16);
	uint8_t *at = anonymous(LENGTH);
	struct ibv_mr *mr = watched(bench, events, at, 1, FAULTLINEDV_MR_KEEP, 0);
	int status;
	pid_t child = fork();

	WANT(child >= 0);
	if (!child)
		_exit(faultlinedv_restore_mr(mr) != EPERM);
	WANT(waitpid(child, &status, 0) == child);
	WANT(!status);
	WANT(!ibv_dereg_mr(mr));
	faultlinedv_destroy_events(events);
	munmap(at, LENGTH);
}

/* The kernel pins no file on a DAX device for long, so neither a lease nor a pinned region is possible; an on-demand region is. */
static void test_dax(struct bench *bench, const char *folder)
{
	struct faultlinedv_events *events = events_create(&bench->device, 16);
	struct faultlinedv_mr_attr attr = {
		.events = events, .mode = FAULTLINEDV_MR_LEASE, .lease_ms = LEASE_MS,
	};
	char path[256];
	uint8_t *at;
	int fd;

	snprintf(path, sizeof(path), "%s/decoherence", folder);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	WANT(fd >= 0 && !unlink(path) && !ftruncate(fd, LENGTH));
	at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	WANT(at != MAP_FAILED);
	for (uint32_t mode = FAULTLINEDV_MR_KEEP; mode <= FAULTLINEDV_MR_LEASE; mode++) {
		attr.mode = mode;
		attr.lease_ms = mode == FAULTLINEDV_MR_LEASE ? LEASE_MS : 0;
		errno = 0;
		WANT(!faultlinedv_reg_mr(bench->device.pd, at, LENGTH, (uintptr_t)at, ALL_ACCESS,
					 &attr));
		WANT(errno == EOPNOTSUPP);
	}
	errno = 0;
	WANT(!ibv_reg_mr(bench->device.pd, at, LENGTH, ALL_ACCESS) && errno == EOPNOTSUPP);
	WANT(!ibv_dereg_mr(region(&bench->device, at, LENGTH, true)));
	munmap(at, LENGTH);
	close(fd);
	faultlinedv_destroy_events(events);
}

int main(int argc, char **argv)
{
	static struct bench bench;
	int64_t pinned = pinned_pages();

	/* While there is no other thread and no device yet to be inherited. */
	test_exit();
	device_open(&bench.device);
	if (!faultlinedv_is_supported(bench.device.context->device))
		die("this is not a device that can watch");
	loop_create(&bench.loop, &bench.device);
	loop_create(&bench.others, &bench.device);
	bench.safe = anonymous(LENGTH);
	bench.safe_mr = region(&bench.device, bench.safe, LENGTH, false);
	test_refusals(&bench);
	test_other_process(&bench);
	if (argc > 1)
		test_dax(&bench, argv[1]);
	test_keep(&bench);
	test_fence(&bench);
	test_lease(&bench);
	test_truncate(&bench);
	loop_destroy(&bench.loop);
	loop_destroy(&bench.others);
	WANT(!ibv_dereg_mr(bench.safe_mr));
	WANT(!ibv_dealloc_pd(bench.device.pd));
	WANT(!ibv_close_device(bench.device.context));
	if (pinned_pages() > pinned)
		die("%lld pages stay pinned", (long long)(pinned_pages() - pinned));
	puts("PASS");
	return 0;
}
