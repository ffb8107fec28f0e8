// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * static_library: a program that is linked with libfaultline.a and libibverbs.a
 * finds the NIC and uses it. Compiled in guests that have both.
 */
#define RDMA_STATIC_PROVIDERS faultline

#include <stdio.h>

#include <infiniband/faultlinedv.h>

#define REQUIRE(condition)                                              \
	do {                                                            \
		if (!(condition)) {                                     \
			fprintf(stderr, "line %d: " #condition ": %m\n", \
				__LINE__);                              \
			return 1;                                       \
		}                                                       \
	} while (0)

static char buffer[8192];

int main(void)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = 4,
			.max_recv_wr = 4,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};
	struct ibv_device **devices;
	struct ibv_context *context;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_pd *pd;
	int count;

	devices = ibv_get_device_list(&count);
	REQUIRE(devices && count == 1);
	REQUIRE(faultlinedv_is_supported(devices[0]));
	context = ibv_open_device(devices[0]);
	REQUIRE(context);
	pd = ibv_alloc_pd(context);
	REQUIRE(pd);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	REQUIRE(mr);
	attr.send_cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	REQUIRE(attr.send_cq);
	attr.recv_cq = attr.send_cq;
	qp = ibv_create_qp(pd, &attr);
	REQUIRE(qp);
	REQUIRE(!ibv_destroy_qp(qp));
	REQUIRE(!ibv_destroy_cq(attr.send_cq));
	REQUIRE(!ibv_dereg_mr(mr));
	REQUIRE(!ibv_dealloc_pd(pd));
	REQUIRE(!ibv_close_device(context));
	ibv_free_device_list(devices);
	puts("PASS");
	return 0;
}
