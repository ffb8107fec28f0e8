// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The device's clock, and its relation to the time of day.
 */
#include <errno.h>
#include <time.h>

#include "faultline.h"

/* The relation is measured again when it is older: clocks drift and are set. */
#define FL_CLOCK_MAX_AGE_NS 1000000000ULL
/* Measurements; the quickest counts, and a quick one ends the series. */
#define FL_CLOCK_SAMPLES 16
#define FL_CLOCK_QUICK_NS 100000

static uint64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static int query_clock(struct fl_context *ctx, uint64_t *ns)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_DEVICE,
			       FAULTLINE_METHOD_QUERY_CLOCK, 1);

	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_QUERY_CLOCK_VALUE, ns);
	return execute_ioctl(&ctx->ibv_ctx.context, cmd) ? errno : 0;
}

/* Measures how far the time of day is ahead of the device's clock. */
int fl_clock_sync(struct fl_context *ctx)
{
	uint64_t best = UINT64_MAX, ahead = 0;
	int i;

	for (i = 0; i < FL_CLOCK_SAMPLES && best > FL_CLOCK_QUICK_NS; i++) {
		uint64_t before = now_ns(CLOCK_REALTIME), device, after;
		int ret = query_clock(ctx, &device);

		if (ret)
			return ret;
		after = now_ns(CLOCK_REALTIME);
		if (after - before < best) {
			best = after - before;
			ahead = before + best / 2 - device;
		}
	}
	__atomic_store_n(&ctx->wallclock_ahead, ahead, __ATOMIC_RELAXED);
	__atomic_store_n(&ctx->clock_synced_at, now_ns(CLOCK_MONOTONIC_COARSE),
			 __ATOMIC_RELAXED);
	return 0;
}

/*
 * Measures the relation again if it is old. Makes system calls, so it must not
 * be called under a lock. If the device does not answer, the old relation
 * stays.
 */
void fl_clock_refresh(struct fl_context *ctx)
{
	uint64_t synced_at = __atomic_load_n(&ctx->clock_synced_at, __ATOMIC_RELAXED);

	if (now_ns(CLOCK_MONOTONIC_COARSE) - synced_at > FL_CLOCK_MAX_AGE_NS)
		fl_clock_sync(ctx);
}

/* Time of day of a time stamp of the device, in nanoseconds. */
uint64_t fl_wallclock(const struct fl_context *ctx, uint64_t timestamp)
{
	return timestamp + __atomic_load_n(&ctx->wallclock_ahead, __ATOMIC_RELAXED);
}

int fl_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	uint64_t ns;
	int ret;

	if (!check_comp_mask(values->comp_mask, IBV_VALUES_MASK_RAW_CLOCK))
		return EINVAL;
	if (!(values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK))
		return 0;
	ret = query_clock(to_fl_ctx(context), &ns);
	if (ret)
		return ret;
	/* In the unit of the time stamps of completions: all in one number. */
	values->raw_clock.tv_sec = 0;
	values->raw_clock.tv_nsec = ns;
	return 0;
}
