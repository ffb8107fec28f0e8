/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Counts of the parts of implicit regions: the kernel keeps one (a child `struct ib_umem_odp`, with lists of its 512
 * pages and a notifier) for each 2 MiB in which the device has used a page. Probes count the calls that make and release
 * parts. So these counts do not depend on memory that other programs or the kernel use.
 *
 * Releases of regions on demand are counted, too: ib_umem_odp_release() is for both. No other program of the guest has
 * such regions while these tests run, and a test compares counts between which it releases none itself.
 */
#ifndef FAULTLINE_GUEST_PARTS_H
#define FAULTLINE_GUEST_PARTS_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common.h"

#define PART (2UL << 20)
#define TRACING "/sys/kernel/tracing/"
#define PARTS_INSTANCE TRACING "instances/odp_parts"

struct parts {
	long made;
	long released;
};

static inline int parts_define(const char *text)
{
	int fd = open(TRACING "kprobe_events", O_WRONLY | O_APPEND | O_CLOEXEC);
	int result = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		result = -errno;
	close(fd);
	return result;
}

static inline void parts_end(void)
{
	write_file(PARTS_INSTANCE "/events/odp_parts/enable", "0");
	rmdir(PARTS_INSTANCE);
	parts_define("-:odp_parts/made\n");
	parts_define("-:odp_parts/released\n");
}

/* False on kernels that the lab builds: they have no probes, and one of them looks for lost memory itself (kmemleak). */
static inline bool parts_begin(void)
{
	struct utsname kernel;

	if (access(TRACING "kprobe_events", F_OK))
		mount("none", TRACING, "tracefs", 0, NULL);
	if (access(TRACING "kprobe_events", F_OK)) {
		WANT(!uname(&kernel) && strstr(kernel.release, "-faultline-"));
		say("this kernel has no probes: nothing is counted");
		return false;
	}
	/* What a program has left that was killed. */
	parts_end();
	WANT(!parts_define("p:odp_parts/made ib_umem_odp_alloc_child\n"));
	WANT(!parts_define("p:odp_parts/released ib_umem_odp_release\n"));
	WANT(!mkdir(PARTS_INSTANCE, 0700));
	WANT(!write_file(PARTS_INSTANCE "/events/odp_parts/enable", "1"));
	return true;
}

/* How often a part was made, and a part or region released, since parts_begin(). */
static inline struct parts parts_now(void)
{
	FILE *file = fopen(TRACING "kprobe_profile", "r");
	struct parts parts = { -1, -1 };
	char name[64];
	long hits, missed;

	WANT(file);
	while (fscanf(file, "%63s %ld %ld", name, &hits, &missed) == 3) {
		long *count = !strcmp(name, "made") ? &parts.made :
			      !strcmp(name, "released") ? &parts.released : NULL;

		if (!count)
			continue;
		WANT(!missed);
		*count = hits;
	}
	fclose(file);
	WANT(parts.made >= 0 && parts.released >= 0);
	return parts;
}

/* Parts that were made since `before`. */
static inline long parts_made(const struct parts *before)
{
	return parts_now().made - before->made;
}

/* Parts that were made since `before` and are still there. */
static inline long parts_kept(const struct parts *before)
{
	struct parts now = parts_now();

	return now.made - before->made - (now.released - before->released);
}

/* Waits until as many parts as that are left of those that were made since `before`. */
static inline void parts_await(const char *what, const struct parts *before, long count)
{
	uint64_t deadline = now_ms() + 60000;

	while (parts_kept(before) != count) {
		if (now_ms() > deadline)
			die("%s: %ld parts are kept, not %ld", what, parts_kept(before), count);
		sleep_ms(10);
	}
}

#endif
