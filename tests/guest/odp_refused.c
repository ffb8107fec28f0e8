// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * odp_refused: an adapter without on-demand paging, as programs see that:
 * nothing is advertised, whatever asks for it is refused with EOPNOTSUPP, and
 * memory is pinned, which counts against the user's limit. Runs in one guest.
 */
#include "watched.h"

#include <sys/resource.h>

#define LENGTH (64 * PAGE)
#define NOBODY 65534

static void test_refused(struct device *device, void *memory, struct ibv_mr *pinned)
{
	const struct ibv_odp_caps *caps = &device->attributes.odp_caps;
	struct ibv_sge range = { (uintptr_t)memory, PAGE, pinned->lkey };

	/* proves: odp_caps, xrc_odp_caps */
	WANT(!caps->general_caps);
	WANT(!caps->per_transport_caps.rc_odp_caps && !caps->per_transport_caps.uc_odp_caps &&
	     !caps->per_transport_caps.ud_odp_caps && !device->attributes.xrc_odp_caps);
	errno = 0;
	WANT(!ibv_reg_mr(device->pd, memory, LENGTH, ALL_ACCESS | IBV_ACCESS_ON_DEMAND));
	/* proves: IBV_ACCESS_ON_DEMAND */
	WANT(errno == EOPNOTSUPP);
	errno = 0;
	WANT(!ibv_reg_mr(device->pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND));
	WANT(errno == EOPNOTSUPP);
	WANT(ibv_advise_mr(device->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1) == EOPNOTSUPP);
}

/* What a user may lock holds for what he registers. */
static void test_limit(struct device *device, void *memory)
{
	struct rlimit limit = { LENGTH / 2, LENGTH / 2 };
	struct ibv_mr *mr;

	WANT(!setrlimit(RLIMIT_MEMLOCK, &limit));
	WANT(!seteuid(NOBODY));
	errno = 0;
	mr = ibv_reg_mr(device->pd, memory, LENGTH, ALL_ACCESS);
	WANT(!seteuid(0));
	WANT(!mr && errno == ENOMEM);
}

int main(void)
{
	struct device device;
	struct ibv_mr *from, *to;
	struct loop loop;
	uint8_t *memory;
	int64_t pinned;

	device_open(&device);
	loop_create(&loop, &device);
	memory = anonymous(2 * LENGTH);
	pinned = pinned_pages();
	from = region(&device, memory, LENGTH, false);
	to = region(&device, memory + LENGTH, LENGTH, false);
	pinned = pinned_pages() - pinned;
	say("%lu pages registered, %lld pinned", 2 * LENGTH / PAGE, (long long)pinned);
	WANT(pinned >= (int64_t)(2 * LENGTH / PAGE));
	test_refused(&device, memory, from);
	content_fill(memory, content_key(1, 0, 0), 0, LENGTH);
	WANT(loop_do(&loop, IBV_WR_RDMA_WRITE, memory, LENGTH, from->lkey, memory + LENGTH,
		     to->rkey) == IBV_WC_SUCCESS);
	WANT(!memcmp(memory, memory + LENGTH, LENGTH));
	test_limit(&device, memory);
	WANT(!ibv_dereg_mr(from) && !ibv_dereg_mr(to));
	loop_destroy(&loop);
	puts("PASS");
	return 0;
}
