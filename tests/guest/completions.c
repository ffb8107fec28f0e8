// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * completions: when completions were made, by the device's clock and by the
 * time of day, and how long a queue that gathers them waits before it tells.
 * One queue pair connected with itself, in one guest.
 */
#include "common.h"

#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define LENGTH 4096
/* Clocks are compared through system calls under an emulator. */
#define TOLERANCE_NS 50000000ULL

static struct ibv_mr *memory;

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static uint64_t device_ns(struct device *device)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	WANT(!ibv_query_rt_values_ex(device->context, &values));
	return values.raw_clock.tv_sec * 1000000000ULL + values.raw_clock.tv_nsec;
}

/* A queue pair of this CQ, connected with itself. */
static void connect_to_itself(struct endpoint *end, struct device *device, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	*end = (struct endpoint) { .device = device, .cq = cq, .timeout = 14, .retries = 7 };
	end->qp = ibv_create_qp(device->pd, &attr);
	WANT(end->qp);
	end->own.qpn = end->qp->qp_num;
	memcpy(end->own.gid, &device->gid, sizeof(end->own.gid));
	end->peer = end->own;
	endpoint_start(end);
}

static void write_to_itself(struct endpoint *end, unsigned int count, uint32_t rkey)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE,
		.local = memory->addr,
		.length = 8,
		.lkey = memory->lkey,
		.remote = (uintptr_t)memory->addr + 8,
		.rkey = rkey,
	};

	while (count--)
		endpoint_post(end, &request);
}

static void test_times(struct device *device)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(device->context, &attr);
	struct ibv_poll_cq_attr poll_attr = {};
	uint64_t last = 0, error = 0;
	struct endpoint end;
	int round;

	WANT(cq);
	/* proves: completion_timestamp_mask */
	WANT(device->attributes.completion_timestamp_mask == UINT64_MAX);
	/* proves: hca_core_clock */
	WANT(device->attributes.hca_core_clock == 1000000);
	connect_to_itself(&end, device, ibv_cq_ex_to_cq(cq));
	for (round = 0; round < 50; round++) {
		uint64_t device_before = device_ns(device), before = clock_ns(CLOCK_REALTIME);
		uint64_t stamp, wall, device_after, after;

		write_to_itself(&end, 1, memory->rkey);
		while (ibv_start_poll(cq, &poll_attr))
			;
		WANT(cq->status == IBV_WC_SUCCESS);
		stamp = ibv_wc_read_completion_ts(cq);
		wall = ibv_wc_read_completion_wallclock_ns(cq);
		ibv_end_poll(cq);
		after = clock_ns(CLOCK_REALTIME);
		device_after = device_ns(device);
		/* proves: read_completion_ts, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP */
		/* proves: query_rt_values, IBV_VALUES_MASK_RAW_CLOCK */
		WANT(device_before < stamp && stamp < device_after && stamp > last);
		last = stamp;
		/* proves: read_completion_wallclock_ns */
		/* proves: IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK */
		if (wall < before - TOLERANCE_NS || wall > after + TOLERANCE_NS)
			die("round %d: between %llu and %llu, but it says %llu", round,
			    (unsigned long long)before, (unsigned long long)after,
			    (unsigned long long)wall);
		if (wall < before && before - wall > error)
			error = before - wall;
		if (wall > after && wall - after > error)
			error = wall - after;
		/* Longer than the library trusts its measurement of the clocks. */
		if (round == 25)
			usleep(1500000);
	}
	say("times of day are right to within %llu us", (unsigned long long)error / 1000);
	/* proves: destroy_qp, destroy_cq */
	WANT(!ibv_destroy_qp(end.qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

struct gathering {
	struct device *device;
	struct ibv_comp_channel *channel;
	struct endpoint end;
};

static bool told_within(struct gathering *g, int ms)
{
	struct pollfd poller = { .fd = g->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *context;

	if (poll(&poller, 1, ms) != 1)
		return false;
	WANT(!ibv_get_cq_event(g->channel, &cq, &context) && cq == g->end.cq);
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void complete(struct gathering *g, unsigned int count)
{
	struct ibv_wc wc;

	write_to_itself(&g->end, count, memory->rkey);
	while (count--)
		WANT(endpoint_wait(&g->end, &wc, 10000) && wc.status == IBV_WC_SUCCESS);
}

static void rule(struct gathering *g, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = count, .cq_period = period },
	};

	WANT(!ibv_modify_cq(g->end.cq, &attr));
}

static void test_notices(struct device *device)
{
	struct gathering g = { .device = device };
	struct ibv_modify_cq_attr endless = {
		.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = { .cq_count = 2 },
	};
	uint64_t start;
	struct ibv_cq *cq;

	/* proves: cq_mod_caps */
	WANT(device->attributes.cq_mod_caps.max_cq_count >= 32);
	WANT(device->attributes.cq_mod_caps.max_cq_period >= 60000);
	g.channel = ibv_create_comp_channel(device->context);
	WANT(g.channel);
	cq = ibv_create_cq(device->context, 64, NULL, g.channel, 0);
	WANT(cq);
	connect_to_itself(&g.end, device, cq);

	/* So many at once, long before the period is over. */
	rule(&g, 32, 60000);
	WANT(!ibv_req_notify_cq(cq, 0));
	start = clock_ns(CLOCK_MONOTONIC);
	complete(&g, 31);
	if (clock_ns(CLOCK_MONOTONIC) - start < 30000000)
		WANT(!told_within(&g, 0));
	complete(&g, 1);
	WANT(told_within(&g, 5000));

	/* Fewer: at the end of the period, and not before. */
	WANT(!ibv_req_notify_cq(cq, 0));
	start = clock_ns(CLOCK_MONOTONIC);
	complete(&g, 3);
	WANT(told_within(&g, 5000));
	/* proves: IBV_CQ_ATTR_MODERATE, modify_cq */
	WANT(clock_ns(CLOCK_MONOTONIC) - start > 55000000);

	/* As ever, when nothing is to be gathered. */
	rule(&g, 0, 0);
	WANT(!ibv_req_notify_cq(cq, 0));
	complete(&g, 1);
	WANT(told_within(&g, 5000));
	WANT(ibv_modify_cq(cq, &endless) == EINVAL);
	WANT(!ibv_destroy_qp(g.end.qp) && !ibv_destroy_cq(cq));
	WANT(!ibv_destroy_comp_channel(g.channel));
}

/* A thread domain has no locks, which cannot be seen; it must do no harm. */
static void test_thread_domain(struct device *device)
{
	struct ibv_td_init_attr td_attr = {};
	struct ibv_td *td = ibv_alloc_td(device->context, &td_attr);
	struct ibv_parent_domain_init_attr attr = { .pd = device->pd, .td = td };
	struct ibv_cq *cq = ibv_create_cq(device->context, 64, NULL, NULL, 0);
	struct ibv_pd *pd = device->pd, *parent;
	struct endpoint end;
	struct ibv_wc wc;

	WANT(td && cq);
	parent = ibv_alloc_parent_domain(device->context, &attr);
	WANT(parent && ibv_dealloc_td(td) == EBUSY);
	device->pd = parent;
	connect_to_itself(&end, device, cq);
	device->pd = pd;
	write_to_itself(&end, 1, memory->rkey);
	/* proves: alloc_td */
	WANT(endpoint_wait(&end, &wc, 10000) && wc.status == IBV_WC_SUCCESS);
	WANT(!ibv_destroy_qp(end.qp) && !ibv_destroy_cq(cq));
	/* proves: dealloc_td */
	WANT(!ibv_dealloc_pd(parent) && !ibv_dealloc_td(td));
}

/* The hint that one thread polls is taken; that an overrun is to be ignored is not. */
static void test_flags(struct device *device)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
	};
	struct ibv_cq_ex *cq;
	struct endpoint end;
	struct ibv_wc wc;

	errno = 0;
	/* proves: IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN */
	WANT(!ibv_create_cq_ex(device->context, &attr) && errno == EOPNOTSUPP);
	attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	cq = ibv_create_cq_ex(device->context, &attr);
	WANT(cq);
	connect_to_itself(&end, device, ibv_cq_ex_to_cq(cq));
	write_to_itself(&end, 1, memory->rkey);
	/* proves: IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CREATE_CQ_ATTR_SINGLE_THREADED */
	WANT(endpoint_wait(&end, &wc, 10000) && wc.status == IBV_WC_SUCCESS);
	WANT(!ibv_destroy_qp(end.qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

int main(void)
{
	struct device device;

	device_open(&device);
	memory = region(&device, anonymous(LENGTH), LENGTH, false);
	test_times(&device);
	test_notices(&device);
	test_thread_domain(&device);
	test_flags(&device);
	puts("PASS");
	return 0;
}
