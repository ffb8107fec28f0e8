/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A device that lies in events and in answers to commands. */
#include "device.h"

#define OBJECTS 3

struct object {
	struct faultline_res res;
	unsigned int events;
	u8 kind;
};

static void count_event(struct faultline_res *res, u8 kind)
{
	struct object *object = container_of(res, struct object, res);

	object->events++;
	object->kind = kind;
}

/* The array whose objects have events of a kind, or -1. */
static int array_of(u8 kind)
{
	switch (kind) {
	case FAULTLINE_EVENT_COMPLETION:
	case FAULTLINE_EVENT_CQ_ERROR:
		return 0;
	case FAULTLINE_EVENT_QP_FATAL ... FAULTLINE_EVENT_LAST_WQE_REACHED:
	case FAULTLINE_EVENT_CONNECTED ... FAULTLINE_EVENT_CONNECTION_CLOSED:
		return 1;
	case FAULTLINE_EVENT_SRQ_LIMIT:
	case FAULTLINE_EVENT_SRQ_ERROR:
		return 2;
	default:
		return -1;
	}
}

/* The vector whose queue has events of a kind. */
static unsigned int vector_of(u8 kind)
{
	return kind == FAULTLINE_EVENT_COMPLETION ? FAULTLINE_EQ_COMP :
	       kind == FAULTLINE_EVENT_PAGE_FAULT ? FAULTLINE_EQ_FAULTS : FAULTLINE_EQ_ASYNC;
}

static void one_event(struct faultline_dev *dev, struct object (*objects)[OBJECTS])
{
	static const u8 kinds[] = {
		FAULTLINE_EVENT_COMPLETION, FAULTLINE_EVENT_CQ_ERROR, FAULTLINE_EVENT_QP_FATAL,
		FAULTLINE_EVENT_LAST_WQE_REACHED, FAULTLINE_EVENT_CONNECTED, FAULTLINE_EVENT_SRQ_LIMIT, FAULTLINE_EVENT_PAGE_FAULT,
	};
	unsigned int vector = random_number(FAULTLINE_EQ_COMP + 1);
	struct faultline_eq *eq = &dev->eqs[vector];
	/* Numbers from 1 on, or any. */
	u32 number = random_number(4) ? 1 + random_number(OBJECTS) : random_number(1ULL << 32);
	u8 kind = random_number(4) ? kinds[random_number(sizeof(kinds))] : random_number(256);
	struct faultline_eqe eqe = {
		.kind = kind, .object = number, .token = random_number(1ULL << 40), .va = random_number(1ULL << 48),
		.bytes = random_number(1ULL << 32), .phase = faultline_phase(eq->consumer, FAULTLINE_EQ_LOG_DEPTH),
	};
	bool fatal = kind == FAULTLINE_EVENT_DEVICE_FATAL && vector == FAULTLINE_EQ_ASYNC;
	u32 consumer = eq->consumer;
	int a, i;

	eq->ring[consumer % BIT(FAULTLINE_EQ_LOG_DEPTH)] = eqe;
	interrupt[vector](SHIM_FIRST_IRQ + vector, interrupt_data[vector]);
	CHECK(eq->consumer == consumer + 1);
	CHECK(faultline_is_dead(dev) == (fatal || vector != vector_of(kind)));
	if (faultline_is_dead(dev) && !fatal)
		CHECK(strstr(last_message, "in the queue of vector"));
	for (a = 0; a < 3; a++) {
		for (i = 0; i < OBJECTS; i++) {
			bool mine = !faultline_is_dead(dev) && array_of(kind) == a && number == objects[a][i].res.num;

			CHECK(objects[a][i].events == mine);
			CHECK(!mine || objects[a][i].kind == kind);
			objects[a][i].events = 0;
		}
	}
}

void test_events(u64 seeds)
{
	struct object objects[3][OBJECTS];
	struct faultline_dev *dev = malloc(sizeof(*dev));
	struct xarray *arrays[3] = { &dev->cqs, &dev->qps, &dev->srqs };
	unsigned int deaths = 0;
	int a, i, step;
	u64 s;

	for (s = 1; s <= seeds; s++) {
		seed(s);
		begin(dev);
		CHECK(!faultline_eqs_create(dev));
		memset(objects, 0, sizeof(objects));
		for (a = 0; a < 3; a++) {
			for (i = 0; i < OBJECTS; i++) {
				faultline_res_init(&objects[a][i].res, i + 1, count_event);
				CHECK(!faultline_res_add(dev, arrays[a], &objects[a][i].res));
			}
		}
		for (step = 0; step < 50 && !faultline_is_dead(dev); step++)
			one_event(dev, objects);
		deaths += faultline_is_dead(dev);
		faultline_eqs_destroy(dev);
	}
	free(dev);
	CHECK(deaths > seeds / 2);
}

static void test_numbers(struct faultline_dev *dev)
{
	static const u16 numbered[] = {
		FAULTLINE_ADMIN_CREATE_EQ, FAULTLINE_ADMIN_CREATE_CQ, FAULTLINE_ADMIN_CREATE_SRQ,
		FAULTLINE_ADMIN_CREATE_TM_SRQ, FAULTLINE_ADMIN_CREATE_QP, FAULTLINE_ADMIN_CREATE_RSS_QP,
		FAULTLINE_ADMIN_CREATE_WQ,
	};
	struct faultline_res first, second;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(numbered); i++) {
		begin(dev);
		CHECK(!faultline_check_number(dev, numbered[i], FAULTLINE_DB_OBJECT_MASK) && !faultline_is_dead(dev));
		CHECK(faultline_check_number(dev, numbered[i], FAULTLINE_DB_OBJECT_MASK + 1) == -EIO);
		CHECK(died(dev, "0x1000000"));
	}
	/* Doorbell page 0 is the kernel's. */
	begin(dev);
	CHECK(!faultline_check_number(dev, FAULTLINE_ADMIN_ALLOC_UCTX, dev->num_db_pages - 1));
	CHECK(faultline_check_number(dev, FAULTLINE_ADMIN_ALLOC_UCTX, dev->num_db_pages) == -EIO);
	CHECK(died(dev, "0x400"));
	begin(dev);
	CHECK(faultline_check_number(dev, FAULTLINE_ADMIN_ALLOC_UCTX, 0) == -EIO && faultline_is_dead(dev));

	begin(dev);
	faultline_res_init(&first, 0x77, count_event);
	faultline_res_init(&second, 0x77, count_event);
	CHECK(!faultline_res_add(dev, &dev->cqs, &first));
	CHECK(faultline_res_add(dev, &dev->cqs, &second) == -EIO);
	CHECK(died(dev, "0x77 twice"));
	CHECK(faultline_res_get(&dev->cqs, 0x77) == &first);
}

static void test_query(struct faultline_dev *dev)
{
	begin(dev);
	qp_answer = (struct faultline_qp_attr){ .state = FAULTLINE_QPS_ERR, .path_mtu = IB_MTU_4096 };
	CHECK(!faultline_cmd_query_qp(dev, 1, &qp_answer) && !faultline_is_dead(dev));
	qp_answer.state++;
	CHECK(faultline_cmd_query_qp(dev, 1, &qp_answer) == -EIO && died(dev, "state 7"));
	begin(dev);
	qp_answer = (struct faultline_qp_attr){ .path_mtu = IB_MTU_4096 + 1 };
	CHECK(faultline_cmd_query_qp(dev, 1, &qp_answer) == -EIO && died(dev, "path MTU 6"));
}

/* Each capability that a shift, an allocation or a narrow field depends on. */
#define REFUSED(field, value)								\
	do {										\
		good_caps(&caps);							\
		caps.field = (value);							\
		CHECK(faultline_check_caps(dev, &caps) == -EPROTONOSUPPORT);		\
		CHECK(strstr(last_message, "capability " #field));			\
	} while (0)

static void test_caps(struct faultline_dev *dev)
{
	struct faultline_caps caps;

	begin(dev);
	good_caps(&caps);
	CHECK(!faultline_check_caps(dev, &caps));
	REFUSED(page_sizes, 1 << 21);
	REFUSED(max_qp, 1 << 24);
	REFUSED(max_qp, 0);
	REFUSED(max_cq, U32_MAX);
	REFUSED(max_srq, U32_MAX);
	REFUSED(max_eq, 2);
	REFUSED(max_eqe, 1024);
	REFUSED(max_pd, 1U << 31);
	REFUSED(max_ah, U32_MAX);
	REFUSED(max_mkey, U32_MAX);
	REFUSED(max_mcast_grp, U32_MAX);
	REFUSED(max_mcast_qp, U32_MAX);
	REFUSED(max_qp_wr, (1 << 24) + 1);
	REFUSED(max_srq_wr, 1U << 31);
	REFUSED(max_cqe, U32_MAX);
	REFUSED(max_cqe, 0);
	REFUSED(max_sge, 256);
	REFUSED(max_sge, 0);
	REFUSED(max_inline, 4096);
	REFUSED(max_map_pages, 0);
	REFUSED(max_map_pages, 1 << 20);
	REFUSED(max_fast_reg_pages, U32_MAX);
	REFUSED(max_faults, U32_MAX);
	REFUSED(max_rwq_ind_table, U32_MAX);
	REFUSED(max_rwq_ind_table_log_size, 32);
	REFUSED(max_gid, 0);
	REFUSED(max_gid, 1 << 16);
	REFUSED(max_rd_atomic, 256);
	REFUSED(max_init_rd_atomic, 256);
	REFUSED(max_msg_size, 0);
	REFUSED(max_mtu, 1 << 16);
	REFUSED(max_mtu, 0);
	REFUSED(max_listener, 1 << 17);
	REFUSED(max_backlog, 1 << 16);
	/* An iWARP adapter has listeners, and needs no GIDs. */
	good_caps(&caps);
	caps.features = FAULTLINE_FEATURE_IWARP;
	CHECK(faultline_check_caps(dev, &caps) == -EPROTONOSUPPORT && strstr(last_message, "capability max_listener"));
	caps.max_listener = 1;
	CHECK(faultline_check_caps(dev, &caps) == -EPROTONOSUPPORT && strstr(last_message, "capability max_backlog"));
	caps.max_backlog = 1;
	caps.max_gid = 0;
	CHECK(!faultline_check_caps(dev, &caps));
}

void test_answers(void)
{
	struct faultline_dev *dev = malloc(sizeof(*dev));

	test_numbers(dev);
	test_query(dev);
	test_caps(dev);
	free(dev);
}
