// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * lease_held: a change of a mapping waits for a process that holds a lease on
 * it and does not answer, while the device ends. The lease must end with the
 * device, or at its time limit at the latest. Prints when the change waits.
 */
#include <pthread.h>

#include "watched.h"

#define LENGTH (8 * PAGE)
#define LEASE_MS 5000
/* What the end of a lease may take, on a busy host. */
#define SLACK_MS 3000

struct changer {
	uint8_t *at;
	uint64_t took;
};

static void *change(void *argument)
{
	struct changer *me = argument;
	uint64_t start = now_ms();

	replace(me->at, LENGTH);
	me->took = now_ms() - start;
	return NULL;
}

int main(void)
{
	struct device device;
	struct changer changer = { .at = anonymous(LENGTH) };
	struct faultlinedv_events *events;
	struct faultlinedv_event event;
	struct ibv_async_event death;
	struct ibv_mr *mr;
	pthread_t thread;

	device_open(&device);
	events = events_create(&device, 16);
	mr = faultlinedv_reg_mr(device.pd, changer.at, LENGTH, (uintptr_t)changer.at, ALL_ACCESS,
				&(struct faultlinedv_mr_attr){
					.events = events,
					.mode = FAULTLINEDV_MR_LEASE,
					.lease_ms = LEASE_MS,
				});
	if (!mr)
		die("cannot register: %m");
	WANT(!pthread_create(&thread, NULL, change, &changer));
	event = event_read(events);
	WANT(event.type == FAULTLINEDV_EVENT_LEASE);
	say("the change waits");
	WANT(!pthread_join(thread, NULL));
	say("the change has waited %llu ms", (unsigned long long)changer.took);
	WANT(changer.took < LEASE_MS + SLACK_MS);
	do
		WANT(!ibv_get_async_event(device.context, &death));
	while (death.event_type != IBV_EVENT_DEVICE_FATAL);
	say("the device has ended");
	/* The kernel has destroyed them with the device; its answers do not matter. */
	ibv_dereg_mr(mr);
	faultlinedv_destroy_events(events);
	ibv_dealloc_pd(device.pd);
	WANT(!ibv_close_device(device.context));
	puts("PASS");
	return 0;
}
