// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * idle_gaps: doorbells at the moments at which the emulator's engine falls
 * asleep. Runs in one guest.
 *
 *	idle_gaps ROUNDS POLL_US
 *
 * In each round it rings nothing for a random time below twice the engine's
 * poll time, and then posts a WRITE of 8 bytes. If driver and engine miss each
 * other, the WRITE waits until the engine's sleep ends by time, for up to
 * 250 ms. The emulator counts this (missed_wakeups) and the lab looks at the
 * count after each test. The times that this program prints show what the guest
 * sees of it; a busy host makes outliers, too, so they fail nothing.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "common.h"

/* For one WRITE; the engine finds each doorbell within 250 ms. */
#define TIMEOUT_NS 60000000000ULL

static const uint64_t limits_ms[] = { 10, 50, 100, 200 };

static void spin(uint64_t ns)
{
	uint64_t start = now_ns();

	while (now_ns() - start < ns)
		;
}

/* Returns the time from posting to the completion. */
static uint64_t write_word(struct endpoint *near, const struct request *request)
{
	uint64_t start = now_ns(), took;
	struct ibv_wc wc;
	int count;

	endpoint_post(near, request);
	do {
		count = ibv_poll_cq(near->cq, 1, &wc);
		took = now_ns() - start;
		if (took > TIMEOUT_NS)
			die("a WRITE does not complete");
	} while (!count);
	WANT(count == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == request->id);
	return took;
}

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void report(uint64_t *times, unsigned int rounds)
{
	unsigned int i, n = rounds;

	qsort(times, rounds, sizeof(*times), ascending);
	say("%u WRITEs: median %" PRIu64 " us, longest %" PRIu64 " us", rounds,
	    times[rounds / 2] / 1000, times[rounds - 1] / 1000);
	for (i = ARRAY_SIZE(limits_ms); i--;) {
		while (n && times[n - 1] >= limits_ms[i] * 1000000)
			n--;
		say("%u took %" PRIu64 " ms or longer", rounds - n, limits_ms[i]);
	}
}

int main(int argc, char **argv)
{
	unsigned int rounds = argc == 3 ? strtoul(argv[1], NULL, 0) : 0;
	uint64_t poll_ns = argc == 3 ? strtoul(argv[2], NULL, 0) * 1000 : 0;
	struct rng rng = { .state = 1 };
	struct endpoint near = {}, far = {};
	struct device device;
	struct ibv_mr *mr;
	uint64_t *words, *times;

	if (!rounds || !poll_ns)
		die("usage: idle_gaps ROUNDS POLL_US");
	device_open(&device);
	endpoint_create(&near, &device, 16, 16);
	endpoint_create(&far, &device, 16, 16);
	near.peer = far.own;
	far.peer = near.own;
	endpoint_start(&near);
	endpoint_start(&far);
	words = anonymous(PAGE);
	mr = region(&device, words, PAGE, false);
	times = calloc(rounds, sizeof(*times));
	WANT(times);

	for (unsigned int i = 0; i < rounds; i++) {
		struct request request = {
			.opcode = IBV_WR_RDMA_WRITE,
			.id = i,
			.local = &words[0],
			.length = sizeof(words[0]),
			.lkey = mr->lkey,
			.remote = (uintptr_t)&words[1],
			.rkey = mr->rkey,
		};

		words[0] = mix64(i);
		spin(rng_below(&rng, 2 * poll_ns));
		times[i] = write_word(&near, &request);
		WANT(words[1] == mix64(i));
	}
	report(times, rounds);
	endpoint_destroy(&near);
	endpoint_destroy(&far);
	WANT(!ibv_dereg_mr(mr));
	say("all right");
	return 0;
}
