/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
/*
 * The locks of queues.
 *
 * The application holds the lock of a send queue from wr_start to wr_complete or
 * wr_abort, and the lock of a CQ from start_poll to end_poll: a batch. A thread
 * that calls another verb for the same queue within its batch must not wait for
 * itself, so a lock knows the thread whose batch it is.
 *
 * A queue that one thread at a time uses (a thread domain, or
 * IBV_CREATE_CQ_ATTR_SINGLE_THREADED) has no lock: `is_unshared`.
 */
#ifndef FAULTLINE_LOCK_H
#define FAULTLINE_LOCK_H

#include <pthread.h>
#include <stdbool.h>

struct fl_lock {
	pthread_spinlock_t spin;
	bool is_unshared;
	bool has_batch;		/* of an unshared queue */
	pthread_t owner;	/* of the batch of a shared queue, or 0 */
};

static inline int fl_lock_init(struct fl_lock *lock, bool is_unshared)
{
	lock->is_unshared = is_unshared;
	lock->has_batch = false;
	lock->owner = 0;
	return pthread_spin_init(&lock->spin, PTHREAD_PROCESS_PRIVATE);
}

static inline void fl_lock_destroy(struct fl_lock *lock)
{
	pthread_spin_destroy(&lock->spin);
}

/* Returns true within a batch of the calling thread. */
static inline bool fl_in_batch(struct fl_lock *lock)
{
	if (lock->is_unshared)
		return lock->has_batch;
	/* Other values are written by other threads: none is this thread's. */
	return __atomic_load_n(&lock->owner, __ATOMIC_RELAXED) == pthread_self();
}

/* Returns whether there is something to unlock: the argument of fl_unlock(). */
static inline bool fl_lock(struct fl_lock *lock)
{
	if (lock->is_unshared || fl_in_batch(lock))
		return false;
	pthread_spin_lock(&lock->spin);
	return true;
}

static inline void fl_unlock(struct fl_lock *lock, bool locked)
{
	if (locked)
		pthread_spin_unlock(&lock->spin);
}

/* Begins a batch. Must not be called within one of the same thread. */
static inline void fl_begin_batch(struct fl_lock *lock)
{
	if (lock->is_unshared) {
		lock->has_batch = true;
		return;
	}
	pthread_spin_lock(&lock->spin);
	__atomic_store_n(&lock->owner, pthread_self(), __ATOMIC_RELAXED);
}

static inline void fl_end_batch(struct fl_lock *lock)
{
	if (lock->is_unshared) {
		lock->has_batch = false;
		return;
	}
	__atomic_store_n(&lock->owner, (pthread_t)0, __ATOMIC_RELAXED);
	pthread_spin_unlock(&lock->spin);
}

#endif /* FAULTLINE_LOCK_H */
