// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * attributes: what can be asked of queue pairs and work queues, what is refused,
 * and the events that tell what has become of them. In one guest, whose queue
 * pairs are connected with each other.
 */
#include "common.h"

#include <errno.h>
#include <endian.h>
#include <fcntl.h>
#include <infiniband/faultlinedv.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define LENGTH 4096
#define SERVICE_LEVEL 3
#define TRAFFIC_CLASS 0x28
#define FLOW_LABEL 0x12345
#define QKEY 0x1234567

static struct device device;
static struct ibv_mr *memory;

/* --- pairs ---------------------------------------------------------------- */

struct pair {
	struct endpoint a;
	struct endpoint b;
};

static void introduce(struct pair *p)
{
	p->a.peer = p->b.own;
	p->b.peer = p->a.own;
}

/* `b` may be started later. */
static void make_pair(struct pair *p)
{
	endpoint_create(&p->a, &device, 8, 8);
	endpoint_create(&p->b, &device, 8, 8);
	introduce(p);
	endpoint_start(&p->a);
}

static void unmake_pair(struct pair *p)
{
	endpoint_destroy(&p->a);
	endpoint_destroy(&p->b);
}

static void send_flagged(struct endpoint *end, uint32_t length, unsigned int flags)
{
	struct request request = {
		.opcode = IBV_WR_SEND, .local = memory->addr, .length = length,
		.lkey = memory->lkey, .flags = flags,
	};

	endpoint_post(end, &request);
}

static void write_with(struct endpoint *end, uint32_t rkey)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE, .local = memory->addr, .length = 64,
		.lkey = memory->lkey, .remote = (uintptr_t)memory->addr, .rkey = rkey,
	};

	endpoint_post(end, &request);
}

static void receive(struct endpoint *end, uint32_t length, uint32_t lkey)
{
	endpoint_receive(end, 0, memory->addr, length, lkey);
}

static enum ibv_wc_status next_status(struct endpoint *end)
{
	struct ibv_wc wc;

	if (!endpoint_wait(end, &wc, 10000))
		die("no completion");
	return wc.status;
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	WANT(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* --- events --------------------------------------------------------------- */

static bool readable(int fd, int ms)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	return poll(&poll_fd, 1, ms) == 1;
}

/* The next event that is not of type `passed_over` must be this one, of this object. */
static void expect_event_but(int passed_over, enum ibv_event_type type, const void *object)
{
	struct ibv_async_event event;

	do {
		if (!readable(device.context->async_fd, 10000))
			die("no event, expected %s", ibv_event_type_str(type));
		WANT(!ibv_get_async_event(device.context, &event));
		ibv_ack_async_event(&event);
	} while ((int)event.event_type == passed_over);
	if (event.event_type != type)
		die("%s instead of %s", ibv_event_type_str(event.event_type),
		    ibv_event_type_str(type));
	/* All elements of the union are pointers but that of ports. */
	WANT(event.element.qp == object);
}

static void expect_event(enum ibv_event_type type, const void *object)
{
	expect_event_but(-1, type, object);
}

static void no_event(void)
{
	WANT(!readable(device.context->async_fd, 0));
}

/* A peer that only listens gets an event when the connection is established. */
static void test_established(void)
{
	struct pair p;

	make_pair(&p);
	endpoint_listen(&p.b);
	receive(&p.b, LENGTH, memory->lkey);
	no_event();
	send_flagged(&p.a, 100, 0);
	WANT(next_status(&p.a) == IBV_WC_SUCCESS);
	/* proves: IBV_EVENT_COMM_EST */
	expect_event(IBV_EVENT_COMM_EST, p.b.qp);
	WANT(next_status(&p.b) == IBV_WC_SUCCESS);
	unmake_pair(&p);
}

/*
 * A wrong request of a peer ends the connection, and the side that refuses it gets an event, if no completion reports the
 * error.
 */
static void test_refusals(void)
{
	struct ibv_qp_attr no_access = { .qp_access_flags = 0 };
	struct pair p;

	make_pair(&p);
	endpoint_start(&p.b);
	write_with(&p.a, memory->rkey ^ 0x55);
	WANT(next_status(&p.a) == IBV_WC_REM_ACCESS_ERR);
	/* proves: IBV_EVENT_QP_ACCESS_ERR */
	expect_event(IBV_EVENT_QP_ACCESS_ERR, p.b.qp);
	unmake_pair(&p);

	make_pair(&p);
	endpoint_start(&p.b);
	receive(&p.b, 10, memory->lkey);
	send_flagged(&p.a, 11, 0);
	WANT(next_status(&p.a) == IBV_WC_REM_INV_REQ_ERR);
	WANT(next_status(&p.b) == IBV_WC_LOC_LEN_ERR);
	no_event();
	unmake_pair(&p);

	make_pair(&p);
	endpoint_start(&p.b);
	WANT(!ibv_modify_qp(p.b.qp, &no_access, IBV_QP_ACCESS_FLAGS));
	write_with(&p.a, memory->rkey);
	WANT(next_status(&p.a) == IBV_WC_REM_INV_REQ_ERR);
	/* proves: IBV_EVENT_QP_REQ_ERR */
	expect_event(IBV_EVENT_QP_REQ_ERR, p.b.qp);
	unmake_pair(&p);

	make_pair(&p);
	endpoint_start(&p.b);
	receive(&p.b, 10, memory->lkey ^ 0x55);
	send_flagged(&p.a, 10, 0);
	WANT(next_status(&p.a) == IBV_WC_REM_OP_ERR);
	WANT(next_status(&p.b) == IBV_WC_LOC_PROT_ERR);
	WANT(state_of(p.b.qp) == IBV_QPS_ERR);
	unmake_pair(&p);
	no_event();
}

static void test_last_request(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(device.pd, &srq_attr);
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 },
	};
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct endpoint end;

	WANT(srq && cq);
	endpoint_adopt(&end, &device, cq, ibv_create_qp(device.pd, &init));
	end.peer = end.own;
	endpoint_start(&end);
	no_event();
	WANT(!ibv_modify_qp(end.qp, &error, IBV_QP_STATE));
	/* proves: IBV_EVENT_QP_LAST_WQE_REACHED */
	expect_event(IBV_EVENT_QP_LAST_WQE_REACHED, end.qp);
	endpoint_destroy(&end);
	/* proves: destroy_srq */
	WANT(!ibv_destroy_srq(srq));
}

/* More completions than the queue has room for, and none is polled. */
static void test_overrun(void)
{
	struct ibv_cq *cq = ibv_create_cq(device.context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 128, .max_send_sge = 1 },
	};
	struct endpoint end;
	int i;

	WANT(cq && cq->cqe < 100);
	endpoint_adopt(&end, &device, cq, ibv_create_qp(device.pd, &init));
	end.peer = end.own;
	endpoint_start(&end);
	for (i = 0; i <= cq->cqe; i++)
		write_with(&end, memory->rkey);
	/* The queue pair fails too. */
	/* proves: IBV_EVENT_CQ_ERR */
	expect_event_but(IBV_EVENT_QP_FATAL, IBV_EVENT_CQ_ERR, cq);
	endpoint_destroy(&end);
}

/* A shared receive queue in which more is said to be posted than it holds: it fails, and who receives from it. */
static void test_broken_ring(void)
{
	uint8_t *ring = anonymous(PAGE);
	struct ibv_pd *parent = domain_with_ring(&device, FAULTLINEDV_MEMORY_SRQ, ring);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(parent, &srq_attr);
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 },
	};
	struct ibv_sge sge = { (uintptr_t)memory->addr, LENGTH, memory->lkey };
	struct ibv_recv_wr work = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	struct pair p;

	WANT(srq && cq && srq_attr.attr.max_wr == 16);
	endpoint_create(&p.a, &device, 8, 8);
	endpoint_adopt(&p.b, &device, cq, ibv_create_qp(device.pd, &init));
	introduce(&p);
	endpoint_start(&p.a);
	endpoint_start(&p.b);
	for (int i = 0; i < 3; i++)
		WANT(!ibv_post_srq_recv(srq, &work, &bad));
	send_flagged(&p.a, 10, 0);
	/* proves: post_srq_recv */
	WANT(next_status(&p.a) == IBV_WC_SUCCESS && next_status(&p.b) == IBV_WC_SUCCESS);
	__atomic_store_n(posted_of_ring(ring, 16, 3), htole32(1000), __ATOMIC_RELEASE);
	/* The device reads the index again when it has taken all entries up to the last one. */
	for (int i = 0; status == IBV_WC_SUCCESS; i++) {
		WANT(i < 4);
		send_flagged(&p.a, 10, 0);
		status = next_status(&p.a);
		WANT(status != IBV_WC_SUCCESS || next_status(&p.b) == IBV_WC_SUCCESS);
	}
	WANT(status == IBV_WC_REM_OP_ERR);
	/* proves: IBV_EVENT_SRQ_ERR */
	expect_event(IBV_EVENT_SRQ_ERR, srq);
	/* proves: IBV_EVENT_QP_FATAL */
	expect_event_but(IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_FATAL, p.b.qp);
	WANT(state_of(p.b.qp) == IBV_QPS_ERR);
	unmake_pair(&p);
	WANT(!ibv_destroy_srq(srq) && !ibv_dealloc_pd(parent));
}

/* --- queue pairs ---------------------------------------------------------- */

static void test_drain(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_wc wc;
	struct pair p;

	make_pair(&p);
	endpoint_start(&p.b);
	WANT(!ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	/* proves: IBV_EVENT_SQ_DRAINED, IBV_QP_EN_SQD_ASYNC_NOTIFY */
	expect_event(IBV_EVENT_SQ_DRAINED, p.a.qp);
	WANT(state_of(p.a.qp) == IBV_QPS_SQD);
	write_with(&p.a, memory->rkey);
	/* proves: IBV_QPS_SQD */
	WANT(!endpoint_wait(&p.a, &wc, 200));
	/* A wrong current state is refused. */
	attr.qp_state = IBV_QPS_RTS;
	attr.cur_qp_state = IBV_QPS_RTS;
	/* proves: IBV_QP_CUR_STATE */
	WANT(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE) == EINVAL);
	WANT(state_of(p.a.qp) == IBV_QPS_SQD);
	/* proves: IB_DEVICE_CURR_QP_STATE_MOD */
	WANT(device.attributes.orig_attr.device_cap_flags & IBV_DEVICE_CURR_QP_STATE_MOD);
	attr.cur_qp_state = IBV_QPS_SQD;
	WANT(!ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
	WANT(next_status(&p.a) == IBV_WC_SUCCESS);
	unmake_pair(&p);
}

static void test_refused_changes(void)
{
	const struct ibv_ah_attr path = {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = device.gid, .sgid_index = device.gid_index, .hop_limit = 1 },
	};
	struct ibv_qp_attr attr = {
		.path_mig_state = IBV_MIG_REARM, .alt_ah_attr = path, .alt_port_num = 1,
		.alt_timeout = 14, .rate_limit = 1000000,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16 },
	};
	static const struct {
		int mask, error;
	} refused[] = {
		/* The kernel's core knows that RoCE has none. */
		{ IBV_QP_ALT_PATH, EINVAL },
		{ IBV_QP_PATH_MIG_STATE, EOPNOTSUPP },
		{ IBV_QP_CAP, EOPNOTSUPP },
		{ IBV_QP_RATE_LIMIT, EOPNOTSUPP },
	};
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_UD, .pd = device.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.cap = { .max_send_wr = 8, .max_send_sge = 1, .max_recv_wr = 8, .max_recv_sge = 1 },
	};
	static const uint32_t flags[] = {
		IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_CREATE_SCATTER_FCS,
		IBV_QP_CREATE_CVLAN_STRIPPING, IBV_QP_CREATE_SOURCE_QPN,
		IBV_QP_CREATE_PCI_WRITE_END_PADDING,
	};
	struct ibv_qp *qp;
	struct pair p;
	size_t i;

	make_pair(&p);
	endpoint_start(&p.b);
	for (i = 0; i < ARRAY_SIZE(refused); i++)
		/* proves: IBV_QP_ALT_PATH, IBV_QP_PATH_MIG_STATE, IBV_QP_CAP */
		/* proves: IBV_QP_RATE_LIMIT */
		WANT(ibv_modify_qp(p.a.qp, &attr, refused[i].mask) == refused[i].error);
	WANT(state_of(p.a.qp) == IBV_QPS_RTS);
	write_with(&p.a, memory->rkey);
	WANT(next_status(&p.a) == IBV_WC_SUCCESS);

	init.send_cq = p.a.cq;
	init.recv_cq = p.a.cq;
	for (i = 0; i < ARRAY_SIZE(flags); i++) {
		init.create_flags = flags[i];
		WANT(!ibv_create_qp_ex(device.context, &init) && errno == EOPNOTSUPP);
	}
	init.create_flags = 0;
	qp = ibv_create_qp_ex(device.context, &init);
	/* proves: IBV_QP_INIT_ATTR_CREATE_FLAGS */
	WANT(qp && !ibv_destroy_qp(qp));
	unmake_pair(&p);
}

/* A peer that waits for solicited completions is woken by solicited messages only. */
static void test_solicited(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device.context);
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, channel, 0), *told;
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct pair p;
	void *context;

	WANT(channel && cq);
	endpoint_create(&p.a, &device, 8, 8);
	endpoint_adopt(&p.b, &device, cq, ibv_create_qp(device.pd, &init));
	introduce(&p);
	endpoint_start(&p.a);
	endpoint_start(&p.b);
	receive(&p.b, LENGTH, memory->lkey);
	receive(&p.b, LENGTH, memory->lkey);
	WANT(!ibv_req_notify_cq(cq, 1));
	send_flagged(&p.a, 10, 0);
	WANT(next_status(&p.a) == IBV_WC_SUCCESS);
	/* proves: IBV_SEND_SOLICITED */
	WANT(!readable(channel->fd, 200));
	send_flagged(&p.a, 10, IBV_SEND_SOLICITED);
	WANT(next_status(&p.a) == IBV_WC_SUCCESS);
	WANT(readable(channel->fd, 10000));
	WANT(!ibv_get_cq_event(channel, &told, &context) && told == cq);
	ibv_ack_cq_events(cq, 1);
	unmake_pair(&p);
	WANT(!ibv_destroy_comp_channel(channel));
}

/* --- addresses ------------------------------------------------------------ */

static const struct ibv_ah_attr *to_myself(void)
{
	static struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1, .sl = SERVICE_LEVEL,
		.grh = { .flow_label = FLOW_LABEL, .traffic_class = TRAFFIC_CLASS },
	};

	attr.grh.dgid = device.gid;
	attr.grh.sgid_index = device.gid_index;
	return &attr;
}

/* A connection's path can be read back; the hop limit is the route's, by the kernel's core. */
static void test_path(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024,
		.min_rnr_timer = 21, .ah_attr = *to_myself(),
	};
	const struct ibv_global_route *route = &attr.ah_attr.grh;
	struct ibv_qp_init_attr init;
	struct endpoint end;

	endpoint_create(&end, &device, 8, 8);
	attr.dest_qp_num = end.qp->qp_num;
	WANT(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						   IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC |
						   IBV_QP_MIN_RNR_TIMER));
	memset(&attr, 0, sizeof(attr));
	WANT(!ibv_query_qp(end.qp, &attr, IBV_QP_AV, &init));
	/* proves: sl, port_num, IBV_QP_AV */
	WANT(attr.ah_attr.sl == SERVICE_LEVEL && attr.ah_attr.port_num == 1);
	/* proves: dgid */
	WANT(attr.ah_attr.is_global && !memcmp(&route->dgid, &device.gid, sizeof(route->dgid)));
	/* proves: sgid_index */
	WANT(route->sgid_index == device.gid_index && route->hop_limit);
	/* proves: flow_label, traffic_class */
	WANT(route->traffic_class == TRAFFIC_CLASS && route->flow_label == FLOW_LABEL);
	WANT(attr.path_mtu == IBV_MTU_1024 && attr.min_rnr_timer == 21);
	endpoint_destroy(&end);
}

/* Nothing is promised about the order of a message's bytes, and there are no options of a vendor to negotiate. */
static void test_unsupported(void)
{
	struct ibv_ece ece = { .vendor_id = 0x1af4 };
	struct endpoint end;

	endpoint_create(&end, &device, 8, 8);
	/* proves: query_qp_data_in_order */
	WANT(!ibv_query_qp_data_in_order(end.qp, IBV_WR_RDMA_WRITE, 0));
	/* proves: query_ece */
	WANT(ibv_query_ece(end.qp, &ece) == EOPNOTSUPP);
	/* proves: set_ece */
	WANT(ibv_set_ece(end.qp, &ece) == EOPNOTSUPP);
	endpoint_destroy(&end);
}

/* What an address handle says stands in the header that the receiver gets. */
static void check_header(const uint8_t *grh)
{
	const uint8_t *ipv4 = grh + 20;

	if (device.gid.raw[10] == 0xff && device.gid.raw[11] == 0xff) {
		/* proves: traffic_class */
		WANT(ipv4[0] == 0x45 && ipv4[1] == TRAFFIC_CLASS && ipv4[8]);
		return;
	}
	WANT(grh[0] == (0x60 | TRAFFIC_CLASS >> 4) && grh[7]);
	WANT(grh[1] == ((TRAFFIC_CLASS & 0xf) << 4 | FLOW_LABEL >> 16));
	WANT(grh[2] == (FLOW_LABEL >> 8 & 0xff) && grh[3] == (FLOW_LABEL & 0xff));
}

static void test_datagram(void)
{
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_ah_attr where = *to_myself();
	struct ibv_ah *ah = ibv_create_ah(device.pd, &where);
	struct ibv_sge sge = { (uintptr_t)memory->addr + LENGTH / 2, 100, memory->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct endpoint end;
	struct ibv_wc wc;
	int i;

	WANT(cq && ah);
	endpoint_adopt(&end, &device, cq, ibv_create_qp(device.pd, &init));
	WANT(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						   IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	WANT(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	WANT(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	memset(memory->addr, 0, LENGTH);
	receive(&end, LENGTH / 2, memory->lkey);
	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = end.qp->qp_num;
	send.wr.ud.remote_qkey = QKEY;
	WANT(!ibv_post_send(end.qp, &send, &bad));
	for (i = 0; i < 2; i++) {
		WANT(endpoint_wait(&end, &wc, 10000) && wc.status == IBV_WC_SUCCESS);
		if (!(wc.opcode & IBV_WC_RECV))
			continue;
		/* proves: IBV_WC_GRH */
		WANT(wc.wc_flags & IBV_WC_GRH && wc.byte_len == 140);
		WANT(wc.src_qp == end.qp->qp_num);
		/* proves: create_ah */
		check_header(memory->addr);
	}
	endpoint_destroy(&end);
	WANT(!ibv_destroy_ah(ah));
}

/* --- work queues ---------------------------------------------------------- */

static void test_work_queue(void)
{
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	struct ibv_wq_init_attr init = {
		.wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = device.pd, .cq = cq,
		.comp_mask = IBV_WQ_INIT_ATTR_FLAGS,
	};
	struct ibv_wq_attr attr = {
		.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE,
		.curr_wq_state = IBV_WQS_RESET, .wq_state = IBV_WQS_RDY,
	};
	static const uint32_t flags[] = {
		IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_WQ_FLAGS_SCATTER_FCS, IBV_WQ_FLAGS_DELAY_DROP,
		IBV_WQ_FLAGS_PCI_WRITE_END_PADDING,
	};
	struct ibv_wq *wq;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(flags); i++) {
		init.create_flags = flags[i];
		/* proves: IBV_WQ_FLAGS_CVLAN_STRIPPING, IBV_WQ_FLAGS_SCATTER_FCS */
		/* proves: IBV_WQ_FLAGS_DELAY_DROP, IBV_WQ_FLAGS_PCI_WRITE_END_PADDING */
		WANT(!ibv_create_wq(device.context, &init) && errno == EOPNOTSUPP);
	}
	init.create_flags = 0;
	wq = ibv_create_wq(device.context, &init);
	/* proves: IBV_WQ_INIT_ATTR_FLAGS */
	WANT(wq);
	/* proves: modify_wq, IBV_WQ_ATTR_STATE, IBV_WQS_RESET, IBV_WQS_RDY */
	WANT(!ibv_modify_wq(wq, &attr) && wq->state == IBV_WQS_RDY);
	/* It is not in RESET any more. */
	attr.wq_state = IBV_WQS_ERR;
	/* proves: IBV_WQ_ATTR_CURR_STATE */
	WANT(ibv_modify_wq(wq, &attr) == EINVAL && wq->state == IBV_WQS_RDY);
	attr.curr_wq_state = IBV_WQS_RDY;
	/* proves: IBV_WQS_ERR */
	WANT(!ibv_modify_wq(wq, &attr) && wq->state == IBV_WQS_ERR);
	attr.attr_mask = IBV_WQ_ATTR_FLAGS;
	attr.flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING;
	/* proves: IBV_WQ_ATTR_FLAGS */
	WANT(ibv_modify_wq(wq, &attr) == EOPNOTSUPP);
	WANT(!ibv_destroy_wq(wq) && !ibv_destroy_cq(cq));
}

int main(void)
{
	device_open(&device);
	WANT(!fcntl(device.context->async_fd, F_SETFL, O_NONBLOCK));
	memory = region(&device, anonymous(LENGTH), LENGTH, false);
	test_established();
	test_refusals();
	test_last_request();
	test_drain();
	test_refused_changes();
	test_solicited();
	test_path();
	test_unsupported();
	test_datagram();
	test_work_queue();
	test_overrun();
	test_broken_ring();
	puts("PASS");
	return 0;
}
