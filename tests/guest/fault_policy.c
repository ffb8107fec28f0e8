// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * fault_policy: what each fault policy of a queue pair makes of a packet whose
 * page is not there, as its peer and the device's counters see it. Runs in one
 * guest.
 */
#include <unistd.h>

#include "watched.h"

#define NOBODY 65534

struct policy {
	enum faultlinedv_fault_policy number;
	const char *name;
	/* The counter that goes up, and how a request ends. */
	const char *counter;
	enum ibv_wc_status status;
};

static const struct policy policies[] = {
	{ FAULTLINEDV_FAULT_RNR, "rnr", "page_fault_rnr", IBV_WC_SUCCESS },
	{ FAULTLINEDV_FAULT_DROP, "drop", "page_fault_drops", IBV_WC_SUCCESS },
	{ FAULTLINEDV_FAULT_STALL, "stall", "stalls", IBV_WC_SUCCESS },
	{ FAULTLINEDV_FAULT_TERMINATE, "terminate", NULL, IBV_WC_REM_OP_ERR },
};

static void choose(struct loop *loop, enum faultlinedv_fault_policy policy)
{
	enum faultlinedv_fault_policy now;

	WANT(!faultlinedv_set_fault_policy(loop->far.qp, policy));
	WANT(!faultlinedv_query_fault_policy(loop->far.qp, &now) && now == policy);
}

/* A page that is not there, in a region on demand. */
struct absent {
	uint8_t *at;
	struct ibv_mr *mr;
};

static struct absent absent_create(struct device *device)
{
	struct absent absent = { .at = anonymous(PAGE) };

	absent.mr = region(device, absent.at, PAGE, true);
	return absent;
}

static void absent_destroy(struct absent *absent)
{
	WANT(!ibv_dereg_mr(absent->mr));
	munmap(absent->at, PAGE);
}

struct bench {
	struct device device;
	struct loop loop;
	uint8_t *buffer;
	struct ibv_mr *mr;
};

static void test_write(struct bench *bench, const struct policy *policy)
{
	struct absent absent = absent_create(&bench->device);
	long before[ARRAY_SIZE(policies)] = {};
	enum ibv_wc_status status;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(policies); i++)
		if (policies[i].counter)
			before[i] = device_counter(&bench->device, policies[i].counter);
	choose(&bench->loop, policy->number);
	status = loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, PAGE, bench->mr->lkey,
			 absent.at, absent.mr->rkey);
	say("%s: a WRITE onto an absent page: %s", policy->name, ibv_wc_status_str(status));
	WANT(status == policy->status);
	if (status == IBV_WC_SUCCESS)
		WANT(!memcmp(absent.at, bench->buffer, PAGE));
	for (i = 0; i < ARRAY_SIZE(policies); i++) {
		long grown;

		if (!policies[i].counter)
			continue;
		WANT(before[i] >= 0);
		grown = device_counter(&bench->device, policies[i].counter) - before[i];
		/* proves: get_hw_stats, alloc_hw_port_stats */
		if ((grown > 0) != (policies[i].number == policy->number))
			die("%s: %s has grown by %ld", policy->name, policies[i].counter, grown);
	}
	absent_destroy(&absent);
	if (status != IBV_WC_SUCCESS)
		loop_restart(&bench->loop);
}

static void test_send(struct bench *bench, const struct policy *policy)
{
	struct absent absent = absent_create(&bench->device);
	enum ibv_wc_status status;
	struct ibv_wc wc;

	choose(&bench->loop, policy->number);
	endpoint_receive(&bench->loop.far, 7, absent.at, PAGE, absent.mr->lkey);
	status = loop_do(&bench->loop, IBV_WR_SEND, bench->buffer, PAGE, bench->mr->lkey, NULL, 0);
	say("%s: a SEND into an absent page: %s", policy->name, ibv_wc_status_str(status));
	WANT(status == policy->status);
	WANT(endpoint_wait(&bench->loop.far, &wc, 5000) && wc.wr_id == 7);
	if (status == IBV_WC_SUCCESS) {
		WANT(wc.status == IBV_WC_SUCCESS && wc.byte_len == PAGE);
		WANT(!memcmp(absent.at, bench->buffer, PAGE));
	} else {
		WANT(wc.status == IBV_WC_LOC_PROT_ERR);
	}
	absent_destroy(&absent);
	if (status != IBV_WC_SUCCESS)
		loop_restart(&bench->loop);
}

static void test_read(struct bench *bench, const struct policy *policy)
{
	struct absent absent = absent_create(&bench->device);
	uint8_t *into = bench->buffer + PAGE;
	enum ibv_wc_status status;

	choose(&bench->loop, policy->number);
	memset(into, 0xa5, PAGE);
	status = loop_do(&bench->loop, IBV_WR_RDMA_READ, into, PAGE, bench->mr->lkey, absent.at,
			 absent.mr->rkey);
	say("%s: a READ of an absent page: %s", policy->name, ibv_wc_status_str(status));
	WANT(status == policy->status);
	for (size_t i = 0; status == IBV_WC_SUCCESS && i < PAGE; i++)
		WANT(!into[i]);
	absent_destroy(&absent);
	if (status != IBV_WC_SUCCESS)
		loop_restart(&bench->loop);
}

/* A requester waits for its own buffer under every policy. */
static void test_own(struct bench *bench, const struct policy *policy)
{
	struct absent absent = absent_create(&bench->device);

	WANT(!faultlinedv_set_fault_policy(bench->loop.near.qp, policy->number));
	memset(bench->buffer + PAGE, 0xa5, PAGE);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, absent.at, PAGE, absent.mr->lkey,
		     bench->buffer + PAGE, bench->mr->rkey) == IBV_WC_SUCCESS);
	for (size_t i = PAGE; i < 2 * PAGE; i++)
		WANT(!bench->buffer[i]);
	absent_destroy(&absent);
}

int main(void)
{
	enum faultlinedv_fault_policy before, after;
	static struct bench bench;
	unsigned int i;

	device_open(&bench.device);
	device_needs_odp(&bench.device, false);
	loop_create(&bench.loop, &bench.device);
	bench.buffer = anonymous(2 * PAGE);
	content_fill(bench.buffer, content_key(1, 0, 0), 0, PAGE);
	bench.mr = region(&bench.device, bench.buffer, 2 * PAGE, false);

	WANT(!faultlinedv_query_fault_policy(bench.loop.far.qp, &before));
	WANT(faultlinedv_set_fault_policy(bench.loop.far.qp, 4) == EINVAL);
	/* Policy STALL stops all that the NIC receives, so it needs a capability. */
	WANT(!seteuid(NOBODY));
	WANT(faultlinedv_set_fault_policy(bench.loop.far.qp, FAULTLINEDV_FAULT_STALL) == EPERM);
	WANT(!faultlinedv_set_fault_policy(bench.loop.far.qp, FAULTLINEDV_FAULT_DROP));
	WANT(!seteuid(0));
	for (i = 0; i < ARRAY_SIZE(policies); i++) {
		test_write(&bench, &policies[i]);
		test_send(&bench, &policies[i]);
		test_read(&bench, &policies[i]);
		test_own(&bench, &policies[i]);
	}
	WANT(!faultlinedv_set_fault_policy(bench.loop.near.qp, before));
	/* Each queue pair has its own, and a reset one is as new. */
	choose(&bench.loop, FAULTLINEDV_FAULT_STALL);
	WANT(!faultlinedv_query_fault_policy(bench.loop.near.qp, &after) && after == before);
	endpoint_stop(&bench.loop.far);
	WANT(!faultlinedv_query_fault_policy(bench.loop.far.qp, &after) && after == before);

	loop_destroy(&bench.loop);
	WANT(!ibv_dereg_mr(bench.mr));
	WANT(!ibv_dealloc_pd(bench.device.pd));
	WANT(!ibv_close_device(bench.device.context));
	puts("PASS");
	return 0;
}
