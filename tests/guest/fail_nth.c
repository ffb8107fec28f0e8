// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * fail_nth: lets each allocation in the kernel fail, one after the other, in every call that makes or changes a verbs
 * object.
 *
 * The kernel must be built with fault injection
 * (Documentation/fault-injection/fault-injection.rst, "fail-nth"). A call whose
 * allocation fails may fail or do without; it must leave nothing behind, which
 * the kernel's checkers tell, and the same call must work at the next try. What
 * was to be changed must be as good as before, if it is a queue, and can be
 * destroyed, whatever it is.
 *
 * Not here, as they allocate nothing: detaching, modifying work queues, limits
 * of shared receive queues, waiting for changes under a watch.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/faultlinedv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#define SIZE (64 * PAGE)
/* No call makes more allocations. */
#define MOST 2000

static struct device device;
static uint8_t *memory;
/* Open all the time: to open it would take an allocation, which might be the one that fails. */
static int fail_nth;
/* What others are made of. */
static struct ibv_cq *cq;
static struct ibv_xrcd *xrcd;
static struct ibv_dm *dm;
static struct ibv_wq *wq;
static struct ibv_rwq_ind_table *table;
static struct ibv_qp *raw;
static struct faultlinedv_events *events;
static int buffer;

/* Makes an object; NULL and errno if it fails. */
typedef void *make_fn(void);
typedef int unmake_fn(void *object);

static void *make_context(void)
{
	return ibv_open_device(device.context->device);
}

static int unmake_context(void *context)
{
	return ibv_close_device(context);
}

static void *make_pd(void)
{
	return ibv_alloc_pd(device.context);
}

static int unmake_pd(void *pd)
{
	return ibv_dealloc_pd(pd);
}

static void *make_pinned(void)
{
	return ibv_reg_mr(device.pd, memory, SIZE, ALL_ACCESS);
}

static void *make_on_demand(void)
{
	return ibv_reg_mr(device.pd, memory, SIZE, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
}

static void *make_implicit(void)
{
	return ibv_reg_mr(device.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
}

static int unmake_mr(void *mr)
{
	return ibv_dereg_mr(mr);
}

static void *make_prefetched(void)
{
	struct ibv_mr *mr = make_on_demand();
	struct ibv_sge sge;

	if (!mr)
		return NULL;
	sge = (struct ibv_sge) { (uintptr_t)memory, SIZE, mr->lkey };
	errno = ibv_advise_mr(device.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
			      IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
	if (!errno)
		return mr;
	ibv_dereg_mr(mr);
	return NULL;
}

static void *make_window(void)
{
	return ibv_alloc_mw(device.pd, IBV_MW_TYPE_2);
}

static int unmake_window(void *window)
{
	return ibv_dealloc_mw(window);
}

static void *make_channel(void)
{
	return ibv_create_comp_channel(device.context);
}

static int unmake_channel(void *channel)
{
	return ibv_destroy_comp_channel(channel);
}

static void *make_cq(void)
{
	return ibv_create_cq(device.context, 1000, NULL, NULL, 0);
}

static int unmake_cq(void *object)
{
	return ibv_destroy_cq(object);
}

static void *make_srq(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 500, .max_sge = 2 } };

	return ibv_create_srq(device.pd, &attr);
}

static int unmake_srq(void *srq)
{
	return ibv_destroy_srq(srq);
}

static void *make_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 300, .max_recv_wr = 300, .max_send_sge = 4,
			 .max_recv_sge = 4, .max_inline_data = 64 },
	};

	return ibv_create_qp(device.pd, &attr);
}

static void *make_rc(void)
{
	return make_qp(IBV_QPT_RC);
}

static void *make_ud(void)
{
	return make_qp(IBV_QPT_UD);
}

static int unmake_qp(void *qp)
{
	return ibv_destroy_qp(qp);
}

static void *make_ah(void)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .sgid_index = device.gid_index, .dgid = device.gid, .hop_limit = 1 },
	};

	return ibv_create_ah(device.pd, &attr);
}

static int unmake_ah(void *ah)
{
	return ibv_destroy_ah(ah);
}

static void *make_xrcd(void)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = O_CREAT,
	};

	return ibv_open_xrcd(device.context, &attr);
}

static int unmake_xrcd(void *xrcd)
{
	return ibv_close_xrcd(xrcd);
}

static void *make_srq_ex(enum ibv_srq_type type, uint32_t mask)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = 500, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_CQ | mask,
		.srq_type = type, .pd = device.pd, .xrcd = xrcd, .cq = cq,
		.tm_cap = { .max_num_tags = 100, .max_ops = 50 },
	};

	return ibv_create_srq_ex(device.context, &attr);
}

static void *make_xrc_srq(void)
{
	return make_srq_ex(IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_XRCD);
}

static void *make_tag_srq(void)
{
	return make_srq_ex(IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_TM);
}

static void *make_dm(void)
{
	struct ibv_alloc_dm_attr attr = { .length = PAGE };

	return ibv_alloc_dm(device.context, &attr);
}

static int unmake_dm(void *memory)
{
	return ibv_free_dm(memory);
}

static void *make_dm_region(void)
{
	return ibv_reg_dm_mr(device.pd, dm, 0, PAGE,
			     IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
}

static void *make_wq(void)
{
	struct ibv_wq_init_attr attr = {
		.wq_type = IBV_WQT_RQ, .max_wr = 300, .max_sge = 2, .pd = device.pd, .cq = cq,
	};

	return ibv_create_wq(device.context, &attr);
}

static int unmake_wq(void *queue)
{
	return ibv_destroy_wq(queue);
}

static void *make_table(void)
{
	struct ibv_rwq_ind_table_init_attr attr = { .log_ind_tbl_size = 0, .ind_tbl = &wq };

	return ibv_create_rwq_ind_table(device.context, &attr);
}

static int unmake_table(void *object)
{
	return ibv_destroy_rwq_ind_table(object);
}

static void *make_rss(void)
{
	static uint8_t key[40] = { 1, 2, 3 };
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET, .pd = device.pd, .rwq_ind_tbl = table,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE |
			     IBV_QP_INIT_ATTR_RX_HASH,
		.rx_hash_conf = {
			.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
			.rx_hash_key_len = sizeof(key), .rx_hash_key = key,
			.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4,
		},
	};

	return ibv_create_qp_ex(device.context, &attr);
}

static void *make_raw(void)
{
	return make_qp(IBV_QPT_RAW_PACKET);
}

static void *make_flow(void)
{
	/* With specifications, uverbs itself (6.12) leaks one of two lists if the other can't be had. */
	struct ibv_flow_attr rule = {
		.type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(rule), .port = 1,
	};

	return ibv_create_flow(raw, &rule);
}

static int unmake_flow(void *flow)
{
	return ibv_destroy_flow(flow);
}

static void *make_dma_buf_region(void)
{
	return ibv_reg_dmabuf_mr(device.pd, 0, SIZE, 0, buffer, ALL_ACCESS);
}

static void *make_events(void)
{
	return faultlinedv_create_events(device.context, 64);
}

static int unmake_events(void *object)
{
	return faultlinedv_destroy_events(object);
}

static void *make_watch(void)
{
	return faultlinedv_create_watch(events, memory, SIZE, 1);
}

static int unmake_watch(void *watch)
{
	return faultlinedv_destroy_watch(watch);
}

static void *make_watched(enum faultlinedv_mr_mode mode)
{
	struct faultlinedv_mr_attr attr = {
		.events = events, .mode = mode,
		.lease_ms = mode == FAULTLINEDV_MR_LEASE ? 100 : 0,
	};

	return faultlinedv_reg_mr(device.pd, memory, SIZE, (uintptr_t)memory, ALL_ACCESS, &attr);
}

static void *make_kept(void)
{
	return make_watched(FAULTLINEDV_MR_KEEP);
}

static void *make_leased(void)
{
	return make_watched(FAULTLINEDV_MR_LEASE);
}

static const struct object {
	const char *name;
	make_fn *make;
	unmake_fn *unmake;
} objects[] = {
	{ "context", make_context, unmake_context },
	{ "protection domain", make_pd, unmake_pd },
	{ "pinned region", make_pinned, unmake_mr },
	{ "region on demand", make_on_demand, unmake_mr },
	{ "implicit region", make_implicit, unmake_mr },
	{ "prefetched region", make_prefetched, unmake_mr },
	{ "memory window", make_window, unmake_window },
	{ "completion channel", make_channel, unmake_channel },
	{ "completion queue", make_cq, unmake_cq },
	{ "shared receive queue", make_srq, unmake_srq },
	{ "RC queue pair", make_rc, unmake_qp },
	{ "UD queue pair", make_ud, unmake_qp },
	{ "address handle", make_ah, unmake_ah },
	{ "XRC domain", make_xrcd, unmake_xrcd },
	{ "XRC receive queue", make_xrc_srq, unmake_srq },
	{ "tag matching", make_tag_srq, unmake_srq },
	{ "device memory", make_dm, unmake_dm },
	{ "region of device memory", make_dm_region, unmake_mr },
	{ "work queue", make_wq, unmake_wq },
	{ "indirection table", make_table, unmake_table },
	{ "RSS queue pair", make_rss, unmake_qp },
	{ "raw queue pair", make_raw, unmake_qp },
	{ "flow", make_flow, unmake_flow },
	{ "region of a dma-buf", make_dma_buf_region, unmake_mr },
	{ "queue of events", make_events, unmake_events },
	{ "watch", make_watch, unmake_watch },
	{ "watched region", make_kept, unmake_mr },
	{ "leased region", make_leased, unmake_mr },
};

/* --- changes ------------------------------------------------------------------ */

/* What is changed is made anew each time. A change gives 0 or an errno. */
typedef int change_fn(void *object);

static int rereg(void *mr, void *at, size_t length, int access)
{
	errno = 0;
	return ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL,
			    at, length, access) ? errno : 0;
}

static int to_pinned(void *mr)
{
	return rereg(mr, memory + PAGE, SIZE / 2, ALL_ACCESS);
}

static int to_on_demand(void *mr)
{
	return rereg(mr, memory + PAGE, SIZE / 2, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
}

static int restore(void *mr)
{
	return faultlinedv_restore_mr(mr);
}

static int advise(struct ibv_mr *mr, enum ibv_advise_mr_advice advice, uint32_t flags)
{
	struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };

	return ibv_advise_mr(device.pd, advice, flags, &sge, 1);
}

static int prefetch(void *mr)
{
	return advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH);
}

static int prefetch_later(void *mr)
{
	return advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH, 0);
}

static int prefetch_present(void *mr)
{
	return advise(mr, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IBV_ADVISE_MR_FLAG_FLUSH);
}

/* A queue pair with queues of its own, connected with itself when it is to be shown that they work. */
struct loop {
	struct endpoint end;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
};

static void *make_loop(void)
{
	static struct loop loop;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_qp *qp;

	loop.mr = make_pinned();
	attr.send_cq = attr.recv_cq = make_cq();
	attr.srq = loop.srq = make_srq();
	qp = loop.mr && attr.srq && attr.recv_cq ? ibv_create_qp(device.pd, &attr) : NULL;
	if (!qp)
		return NULL;
	endpoint_adopt(&loop.end, &device, attr.send_cq, qp);
	loop.end.peer = loop.end.own;
	return &loop;
}

static int unmake_loop(void *object)
{
	struct loop *loop = object;
	struct ibv_sge piece = { (uintptr_t)memory, PAGE, loop->mr->lkey };
	struct ibv_recv_wr work = { .sg_list = &piece, .num_sge = 1 }, *bad;
	struct request request = {
		.opcode = IBV_WR_SEND, .local = memory + PAGE, .length = PAGE,
		.lkey = loop->mr->lkey,
	};
	struct ibv_wc wc;

	endpoint_stop(&loop->end);
	endpoint_start(&loop->end);
	if (ibv_post_srq_recv(loop->srq, &work, &bad))
		die("nothing can be posted any more");
	endpoint_post(&loop->end, &request);
	for (int i = 0; i < 2; i++)
		if (!endpoint_wait(&loop->end, &wc, 20000) || wc.status)
			die("a message has not arrived");
	endpoint_destroy(&loop->end);
	return ibv_destroy_srq(loop->srq) ?: ibv_dereg_mr(loop->mr);
}

static int resize_cq(void *loop)
{
	return ibv_resize_cq(((struct loop *)loop)->end.cq, 5000);
}

static int resize_srq(void *loop)
{
	struct ibv_srq_attr attr = { .max_wr = 2000, .srq_limit = 1 };

	return ibv_modify_srq(((struct loop *)loop)->srq, &attr,
			      IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT);
}

static int to_init(void *object)
{
	struct loop *loop = object;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	return ibv_modify_qp(loop->end.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_ACCESS_FLAGS);
}

static void *make_loop_in_init(void)
{
	struct loop *loop = make_loop();

	return loop && !to_init(loop) ? loop : NULL;
}

static int to_rtr(void *object)
{
	struct loop *loop = object;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = device.mtu,
		.dest_qp_num = loop->end.own.qpn, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {
			.is_global = 1, .port_num = 1,
			.grh = { .dgid = device.gid, .sgid_index = device.gid_index,
				 .hop_limit = 1 },
		},
	};

	return ibv_modify_qp(loop->end.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			     IBV_QP_MIN_RNR_TIMER);
}

static const union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, 239, 77, 0, 9 } };

static void *make_member(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1 };
	struct ibv_qp *qp = make_ud();

	if (qp && ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				IBV_QP_QKEY))
		return NULL;
	return qp;
}

static int attach(void *qp)
{
	return ibv_attach_mcast(qp, &group, 0);
}

static int unmake_member(void *qp)
{
	/* It may not be one. */
	ibv_detach_mcast(qp, &group, 0);
	return ibv_destroy_qp(qp);
}

static const struct change {
	const char *name;
	make_fn *make;
	change_fn *change;
	unmake_fn *unmake;
} changes[] = {
	{ "pinned region to another", make_pinned, to_pinned, unmake_mr },
	{ "pinned region to on demand", make_pinned, to_on_demand, unmake_mr },
	{ "on demand to pinned", make_on_demand, to_pinned, unmake_mr },
	{ "on demand to another", make_on_demand, to_on_demand, unmake_mr },
	{ "implicit to on demand", make_implicit, to_on_demand, unmake_mr },
	{ "restoring", make_kept, restore, unmake_mr },
	{ "prefetch", make_on_demand, prefetch, unmake_mr },
	{ "implicit prefetch", make_implicit, prefetch, unmake_mr },
	{ "queued prefetch", make_on_demand, prefetch_later, unmake_mr },
	{ "prefetch of present pages", make_on_demand, prefetch_present, unmake_mr },
	{ "resized completion queue", make_loop, resize_cq, unmake_loop },
	{ "resized shared receive queue", make_loop, resize_srq, unmake_loop },
	{ "queue pair to INIT", make_loop, to_init, unmake_loop },
	{ "queue pair to RTR", make_loop_in_init, to_rtr, unmake_loop },
	{ "member of a group", make_member, attach, unmake_member },
};

/* The kernel's allocation number `nth` from now on in this thread fails; 0: none. */
static void set_fail_nth(unsigned int nth)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%u", nth);

	if (pwrite(fail_nth, text, len, 0) != len)
		die("/proc/thread-self/fail-nth: %m");
}

/* Whether all before it has been too little to reach the failure. Ends it. */
static bool fail_nth_left(void)
{
	char text[16] = "";

	if (pread(fail_nth, text, sizeof(text) - 1, 0) <= 0)
		die("/proc/thread-self/fail-nth: %m");
	set_fail_nth(0);
	return atoi(text) > 0;
}

/* What calls say whose allocation has failed, the kernel's other parts among them. */
static bool is_of_allocation(int error)
{
	/* Routes have a name of their own for ENOMEM. */
	if (error == ENOBUFS)
		return true;
	/* uverbs copies unknown fields and refuses the request unless they are zero. */
	if (error == EOPNOTSUPP)
		return true;
	return error == ENOMEM || error == EFAULT || error == EAGAIN || error == ENODEV;
}

static void try(const struct object *object)
{
	unsigned int nth, refused = 0;

	for (nth = 1; nth < MOST; nth++) {
		void *made;
		bool left;
		int error;

		set_fail_nth(nth);
		made = object->make();
		error = errno;
		left = fail_nth_left();
		if (!made) {
			refused++;
			if (left)
				die("%s: %s without a failure", object->name, strerror(error));
			if (!is_of_allocation(error))
				die("%s: allocation %u fails: %s", object->name, nth,
				    strerror(error));
			continue;
		}
		error = object->unmake(made);
		if (error)
			die("%s: cannot be destroyed: %s", object->name, strerror(error));
		if (left)
			break;
	}
	if (nth == MOST)
		die("%s: no end of allocations", object->name);
	if (!refused)
		die("%s: no failure had any effect", object->name);
	say("%s: %u allocations, refused %u times", object->name, nth - 1, refused);
}

static void try_change(const struct change *change)
{
	unsigned int nth, refused = 0;

	for (nth = 1; nth < MOST; nth++) {
		void *object = change->make();
		bool left;
		int error;

		if (!object)
			die("%s: nothing to change: %m", change->name);
		set_fail_nth(nth);
		error = change->change(object);
		left = fail_nth_left();
		refused += !!error;
		if (error && left)
			die("%s: %s without a failure", change->name, strerror(error));
		if (error && !is_of_allocation(error))
			die("%s: allocation %u fails: %s", change->name, nth, strerror(error));
		/* The next try. Regions that have lost their memory may have another. */
		if (error) {
			error = change->change(object);
			if (error)
				die("%s: not even after allocation %u: %s", change->name, nth,
				    strerror(error));
		}
		error = change->unmake(object);
		if (error)
			die("%s: cannot be destroyed: %s", change->name, strerror(error));
		if (left)
			break;
	}
	if (nth == MOST)
		die("%s: no end of allocations", change->name);
	if (!refused)
		die("%s: no failure had any effect", change->name);
	say("%s: %u allocations, refused %u times", change->name, nth - 1, refused);
}

static void configure(const char *kind)
{
	static const struct {
		const char *file, *value;
	} settings[] = {
		{ "ignore-gfp-wait", "N" }, { "verbose", "0" },
		{ "ignore-gfp-highmem", "N" }, { "min-order", "0" },
	};
	char path[128];

	for (unsigned int i = 0; i < ARRAY_SIZE(settings); i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", kind, settings[i].file);
		/* The last two are for pages only. */
		if (write_file(path, settings[i].value) && i < 2)
			die("%s: this kernel injects no faults", path);
	}
}

int main(void)
{
	int log = kmsg_open();
	uint8_t *buffer_map;

	configure("failslab");
	configure("fail_page_alloc");
	fail_nth = open("/proc/thread-self/fail-nth", O_RDWR);
	if (fail_nth < 0)
		die("this kernel injects no faults");
	device_open(&device);
	memory = anonymous(SIZE);
	memset(memory, 1, SIZE);
	cq = make_cq();
	xrcd = make_xrcd();
	dm = make_dm();
	wq = cq ? make_wq() : NULL;
	table = wq ? make_table() : NULL;
	raw = cq ? make_raw() : NULL;
	events = make_events();
	buffer = udmabuf(SIZE, &buffer_map);
	if (!xrcd || !dm || !table || !raw || !events)
		die("something to work with: %m");
	for (unsigned int i = 0; i < ARRAY_SIZE(objects); i++)
		try(&objects[i]);
	for (unsigned int i = 0; i < ARRAY_SIZE(changes); i++)
		try_change(&changes[i]);
	if (kmsg_complaints(log))
		die("the kernel complains");
	say("PASS");
	return 0;
}
