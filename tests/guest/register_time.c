// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * register_time MIB...: how long the registration of fresh memory takes,
 * pinned and on demand, and what of it counts as pinned. Each line is a name,
 * a value and a unit, separated by tabs. Runs in one guest.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common.h"

#define MIB (1UL << 20)
#define TIMES 9
#define NOBODY 65534

static void *fresh(size_t length)
{
	void *memory = anonymous(length);

	/* A huge page would be pinned at the price of one page. */
	if (madvise(memory, length, MADV_NOHUGEPAGE))
		die("MADV_NOHUGEPAGE: %m");
	return memory;
}

/* Median over several registrations; `locked` gets the increase of VmPin by the last one, in KiB. */
static uint64_t registration(struct device *device, size_t length, bool on_demand, long *locked)
{
	uint64_t took[TIMES];
	unsigned int i;

	for (i = 0; i < TIMES; i++) {
		void *memory = fresh(length);
		long before = status_kib("/proc/self/status", "VmPin");
		uint64_t start = now_ns();
		struct ibv_mr *mr = region(device, memory, length, on_demand);

		took[i] = now_ns() - start;
		*locked = status_kib("/proc/self/status", "VmPin") - before;
		WANT(!ibv_dereg_mr(mr));
		munmap(memory, length);
	}
	return median(took, TIMES);
}

/* Whether an ordinary user may register twice as much as the limit of locked memory. */
static bool is_allowed(struct device *device, bool on_demand)
{
	const size_t length = 64 * PAGE;
	struct rlimit limit = { length / 2, length / 2 };
	void *memory = fresh(length);
	struct ibv_mr *mr;
	int error;

	WANT(!setrlimit(RLIMIT_MEMLOCK, &limit));
	WANT(!seteuid(NOBODY));
	errno = 0;
	mr = ibv_reg_mr(device->pd, memory, length,
			ALL_ACCESS | (on_demand ? IBV_ACCESS_ON_DEMAND : 0));
	error = errno;
	WANT(!seteuid(0));
	if (mr)
		WANT(!ibv_dereg_mr(mr));
	else
		WANT(error == ENOMEM);
	munmap(memory, length);
	return mr;
}

int main(int argc, char **argv)
{
	struct device device;
	int i, kind;

	device_open(&device);
	device_needs_odp(&device, false);
	for (i = 1; i < argc; i++) {
		unsigned long mib = strtoul(argv[i], NULL, 0);

		for (kind = 0; kind < 2; kind++) {
			long locked = 0;
			uint64_t ns = registration(&device, mib * MIB, kind, &locked);

			printf("registration of %lu MiB, %s\t%.3f\tus\n", mib,
			       kind ? "on demand" : "pinned", ns / 1e3);
			printf("VmPin of %s region of %lu MiB\t%ld\tKiB\n",
			       kind ? "an on-demand" : "a pinned", mib, locked);
			fflush(stdout);
		}
	}
	WANT(!is_allowed(&device, false));
	printf("on-demand region beyond RLIMIT_MEMLOCK\t%d\tregistered\n",
	       is_allowed(&device, true));
	return 0;
}
