/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Threads that take turns in a fixed order, and work items, each of which runs in a thread. */
#include <pthread.h>

#include "faultline.h"

#define MOST_THREADS 256
#define TURN_NS 50000
/* Longer than anything that a test waits for. */
#define LIMIT_NS (60 * 1000 * NSEC_PER_MSEC)

u64 virtual_ns;
static pthread_mutex_t baton = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turns[MOST_THREADS];
static bool alive[MOST_THREADS] = { true };
static unsigned int turn;
static __thread unsigned int me;

static void pass_on(void)
{
	virtual_ns += TURN_NS;
	if (virtual_ns > LIMIT_NS) {
		fprintf(stderr, "a thread waits for ever\n");
		exit(1);
	}
	do
		turn = (turn + 1) % MOST_THREADS;
	while (!alive[turn]);
	pthread_cond_signal(&turns[turn]);
}

static void await_turn(void)
{
	while (turn != me)
		pthread_cond_wait(&turns[me], &baton);
}

void shim_yield(void)
{
	pass_on();
	await_turn();
}

struct start { void (*run)(void *data); void *data; unsigned int number; };

static void *begin_thread(void *data)
{
	struct start start = *(struct start *)data;

	free(data);
	me = start.number;
	pthread_mutex_lock(&baton);
	await_turn();
	start.run(start.data);
	alive[me] = false;
	pass_on();
	pthread_mutex_unlock(&baton);
	return NULL;
}

/* The first thread has the baton from its first call on. */
void start_thread(void (*run)(void *data), void *data)
{
	static bool has_baton;
	struct start *start = malloc(sizeof(*start));
	pthread_t thread;
	unsigned int i;

	if (!has_baton)
		pthread_mutex_lock(&baton);
	has_baton = true;
	for (i = 0; alive[i]; i++)
		assert(i + 1 < MOST_THREADS);
	*start = (struct start){ run, data, i };
	alive[i] = true;
	assert(!pthread_create(&thread, NULL, begin_thread, start));
	pthread_detach(thread);
}

void join_threads(void)
{
	unsigned int i, others;

	do {
		shim_yield();
		for (others = 0, i = 0; i < MOST_THREADS; i++)
			others += i != me && alive[i];
	} while (others);
}

u64 wait_for_completion_timeout(struct completion *completion, unsigned long ms)
{
	u64 deadline = virtual_ns + ms * NSEC_PER_MSEC;

	while (!completion->done && virtual_ns < deadline)
		shim_yield();
	return completion->done;
}

/* --- work ---------------------------------------------------------------- */

struct due { struct work_struct *work; u64 time; unsigned int number; };

static void run_work(void *data)
{
	struct due due = *(struct due *)data;

	free(data);
	while (due.work->queued && due.work->number == due.number && virtual_ns < due.time)
		shim_yield();
	while (due.work->running)
		shim_yield();
	if (!due.work->queued || due.work->number != due.number)
		return;
	due.work->queued = false;
	due.work->running = true;
	due.work->func(due.work);
	due.work->running = false;
}

static bool queue_at(struct work_struct *work, u64 time)
{
	struct due *due = malloc(sizeof(*due));

	work->queued = true;
	*due = (struct due){ work, time, ++work->number };
	start_thread(run_work, due);
	return true;
}

bool shim_queue_work(struct work_struct *work)
{
	return !work->disabled && !work->queued && queue_at(work, virtual_ns);
}

bool shim_queue_delayed(struct delayed_work *work, unsigned long ms, bool again)
{
	return !work->work.disabled && (again || !work->work.queued) && queue_at(&work->work, virtual_ns + ms * NSEC_PER_MSEC);
}

void cancel_work_sync(struct work_struct *work)
{
	work->queued = false;
	/* The thread of the work item finds out in its turn. */
	do
		shim_yield();
	while (work->running);
}

void shim_flush(struct work_struct *work)
{
	while (work->queued || work->running)
		shim_yield();
}
