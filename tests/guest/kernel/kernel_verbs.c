// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Verbs as consumers in the kernel use them, for tests: creates and destroys
 * address handles with interrupts off, as the connection manager does, and
 * tells how long the longest took; sends a datagram to itself through one of
 * them at once; asks for what is to be refused; has a connection with itself
 * carry out requests that the consumers in the kernel's tree do not post; and
 * registers and invalidates a key on several queue pairs.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/etherdevice.h>
#include <linux/irqflags.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/slab.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#define HANDLES 100
#define LENGTH 64
#define GRH 40
#define QKEY 0x1234
#define TIMEOUT_MS 30000

static char *netdev;
module_param(netdev, charp, 0444);
MODULE_PARM_DESC(netdev, "Interface of the RDMA device");

static int gid_index = 1;
module_param(gid_index, int, 0444);
MODULE_PARM_DESC(gid_index, "Index of the GID to send from");

static struct ib_device *ibdev;
static struct ib_pd *pd;
static struct rdma_ah_attr attr;
static struct ib_ah *handles[HANDLES];
static u64 longest_us;
static struct ib_cq *cq;
static struct ib_qp *qp;
/* Sent data, and behind it received data. */
static u8 *buffer;
static u64 buffer_dma;
static unsigned int sent;
static unsigned int received;
static enum ib_wc_status failure;
/* A receive is posted, and nothing was sent to it. */
static bool waiting;

static void note(ktime_t start)
{
	longest_us = max_t(u64, longest_us, ktime_us_delta(ktime_get(), start));
}

static int make(struct ib_ah **handle)
{
	unsigned long flags;
	ktime_t start;

	local_irq_save(flags);
	start = ktime_get();
	*handle = rdma_create_ah(pd, &attr, 0);
	note(start);
	local_irq_restore(flags);
	return PTR_ERR_OR_ZERO(*handle);
}

static int drop(struct ib_ah *handle)
{
	unsigned long flags;
	ktime_t start;
	int err;

	local_irq_save(flags);
	start = ktime_get();
	err = rdma_destroy_ah_user(handle, 0, NULL);
	note(start);
	local_irq_restore(flags);
	return err;
}

static void done(struct ib_wc *wc, unsigned int *count)
{
	if (wc->status)
		failure = wc->status;
	++*count;
}

static void send_done(struct ib_cq *of, struct ib_wc *wc)
{
	done(wc, &sent);
}

static void recv_done(struct ib_cq *of, struct ib_wc *wc)
{
	done(wc, &received);
}

static struct ib_cqe send_cqe = { .done = send_done };
static struct ib_cqe recv_cqe = { .done = recv_done };

/*
 * Posts before the device has made the handle; what was sent arrives then, at
 * a receive that is posted before, for a datagram without one is lost. If the
 * request is refused, the receive serves the next.
 */
static int send_to_self(int flags)
{
	struct ib_sge from = { buffer_dma, LENGTH, pd->local_dma_lkey };
	struct ib_sge to = { buffer_dma + LENGTH, GRH + LENGTH,
			     pd->local_dma_lkey };
	struct ib_recv_wr recv = { .wr_cqe = &recv_cqe, .sg_list = &to,
				   .num_sge = 1 };
	struct ib_ud_wr wr = {
		.wr = { .wr_cqe = &send_cqe, .sg_list = &from, .num_sge = 1,
			.opcode = IB_WR_SEND, .send_flags = flags },
		.remote_qpn = qp->qp_num,
		.remote_qkey = QKEY,
	};
	const struct ib_send_wr *bad = NULL;
	unsigned int tries = TIMEOUT_MS;
	struct ib_ah *handle;
	int err;

	memset(buffer + LENGTH, 0, GRH + LENGTH);
	get_random_bytes(buffer, LENGTH);
	sent = 0;
	received = 0;
	failure = 0;
	err = make(&handle);
	if (err)
		return err;
	wr.ah = handle;
	if (!waiting)
		err = ib_post_recv(qp, &recv, NULL);
	if (err)
		goto drop;
	waiting = true;
	err = ib_post_send(qp, &wr.wr, &bad);
	if (err) {
		if (bad != &wr.wr)
			err = -EPROTO;
		goto drop;
	}
	waiting = false;
	while (!err && (!sent || !received)) {
		ib_process_cq_direct(cq, -1);
		usleep_range(1000, 2000);
		if (!tries--)
			err = -ETIMEDOUT;
	}
	/* proves: IB_WR_SEND, create_cq, post_send, post_recv, poll_cq, get_dma_mr, IB_QPT_UD */
	/* proves: create_qp */
	if (!err && (failure ||
		     memcmp(buffer, buffer + LENGTH + GRH, LENGTH)))
		err = -EIO;
drop:
	/* proves: create_ah */
	return drop(handle) ?: err;
}

/* --- a connection with itself ------------------------------------------- */

#define IMMEDIATE 0x12345678
/* No flag of regions or queue pairs, and none that may be left out. */
#define UNKNOWN_ACCESS BIT(30)

static struct ib_qp *rc;
static struct ib_wc last_sent;
static struct ib_wc last_received;

static void rc_send_done(struct ib_cq *of, struct ib_wc *wc)
{
	last_sent = *wc;
	done(wc, &sent);
}

static void rc_recv_done(struct ib_cq *of, struct ib_wc *wc)
{
	last_received = *wc;
	done(wc, &received);
}

static struct ib_cqe rc_send_cqe = { .done = rc_send_done };
static struct ib_cqe rc_recv_cqe = { .done = rc_recv_done };

static struct ib_qp *make_rc(struct ib_pd *in, u32 create_flags)
{
	struct ib_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8,
			 .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
		.create_flags = create_flags,
	};

	return ib_create_qp(in, &init);
}

/* Connects a queue pair, maybe with itself. On the way, an unknown attribute flag is refused. */
static int connect_rc(struct ib_qp *to, u32 peer)
{
	struct ib_qp_attr state = {
		.qp_state = IB_QPS_INIT, .port_num = 1,
		.qp_access_flags = IB_ACCESS_REMOTE_WRITE | UNKNOWN_ACCESS,
	};
	int err;

	if (ib_modify_qp(to, &state, IB_QP_STATE | IB_QP_PKEY_INDEX |
			 IB_QP_PORT | IB_QP_ACCESS_FLAGS) != -EINVAL)
		return -EPROTO;
	state.qp_access_flags = IB_ACCESS_REMOTE_WRITE |
				IB_ACCESS_REMOTE_READ |
				IB_ACCESS_REMOTE_ATOMIC;
	err = ib_modify_qp(to, &state, IB_QP_STATE | IB_QP_PKEY_INDEX |
			   IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	if (err)
		return err;
	state.qp_state = IB_QPS_RTR;
	state.path_mtu = IB_MTU_1024;
	state.dest_qp_num = peer;
	state.max_dest_rd_atomic = 1;
	state.min_rnr_timer = 12;
	state.ah_attr = attr;
	err = ib_modify_qp(to, &state, IB_QP_STATE | IB_QP_AV |
			   IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN |
			   IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	state.qp_state = IB_QPS_RTS;
	state.timeout = 14;
	state.retry_cnt = 7;
	state.rnr_retry = 7;
	state.max_rd_atomic = 1;
	return ib_modify_qp(to, &state, IB_QP_STATE | IB_QP_TIMEOUT |
			    IB_QP_RETRY_CNT | IB_QP_RNR_RETRY | IB_QP_SQ_PSN |
			    IB_QP_MAX_QP_RD_ATOMIC);
}

/* Posts, and waits for its completion and for this number of receives. */
static int rc_do(struct ib_qp *on, struct ib_send_wr *wr, unsigned int receives)
{
	unsigned int tries = TIMEOUT_MS;
	const struct ib_send_wr *bad;
	int err;

	sent = 0;
	received = 0;
	failure = 0;
	wr->wr_cqe = &rc_send_cqe;
	wr->send_flags = IB_SEND_SIGNALED;
	err = ib_post_send(on, wr, &bad);
	while (!err && (!sent || received < receives)) {
		ib_process_cq_direct(cq, -1);
		usleep_range(1000, 2000);
		if (!tries--)
			err = -ETIMEDOUT;
	}
	return err ?: failure ? -EIO : 0;
}

/* What a receive completion says of immediate data. */
static bool got_immediate(enum ib_wc_opcode opcode)
{
	return last_received.opcode == opcode &&
	       last_received.wc_flags & IB_WC_WITH_IMM &&
	       last_received.ex.imm_data == cpu_to_be32(IMMEDIATE) &&
	       last_received.byte_len == LENGTH;
}

/* SEND and WRITE with immediate data into the second half of the buffer. */
static int rc_immediates(struct ib_mr *mr)
{
	struct ib_sge from = { buffer_dma, LENGTH, pd->local_dma_lkey };
	struct ib_sge to = { buffer_dma + LENGTH, LENGTH, pd->local_dma_lkey };
	struct ib_recv_wr recv = { .wr_cqe = &rc_recv_cqe, .sg_list = &to,
				   .num_sge = 1 };
	struct ib_rdma_wr wr = {
		.wr = { .sg_list = &from, .num_sge = 1,
			.opcode = IB_WR_SEND_WITH_IMM,
			.ex.imm_data = cpu_to_be32(IMMEDIATE) },
		.remote_addr = mr->iova + LENGTH,
		.rkey = mr->rkey,
	};
	int err;

	get_random_bytes(buffer, LENGTH);
	err = ib_post_recv(rc, &recv, NULL) ?: rc_do(rc, &wr.wr, 1);
	if (err)
		return err;
	/* proves: IB_WR_SEND_WITH_IMM, IB_WC_WITH_IMM, IB_QPT_RC, IB_SEND_SIGNALED */
	if (!got_immediate(IB_WC_RECV) ||
	    memcmp(buffer, buffer + LENGTH, LENGTH))
		return -EBADMSG;
	get_random_bytes(buffer, LENGTH);
	wr.wr.opcode = IB_WR_RDMA_WRITE_WITH_IMM;
	err = ib_post_recv(rc, &recv, NULL) ?: rc_do(rc, &wr.wr, 1);
	if (err)
		return err;
	/* proves: IB_WR_RDMA_WRITE_WITH_IMM */
	if (!got_immediate(IB_WC_RECV_RDMA_WITH_IMM) ||
	    memcmp(buffer, buffer + LENGTH, LENGTH))
		return -EBADMSG;
	return 0;
}

/* Both atomics on the second word of the buffer; the first gets the old content. */
static int rc_atomics(struct ib_mr *mr)
{
	struct ib_sge old = { buffer_dma, sizeof(u64), pd->local_dma_lkey };
	struct ib_atomic_wr wr = {
		.wr = { .sg_list = &old, .num_sge = 1,
			.opcode = IB_WR_ATOMIC_FETCH_AND_ADD },
		.remote_addr = mr->iova + sizeof(u64),
		.compare_add = 5,
		.rkey = mr->rkey,
	};
	u64 *words = (u64 *)buffer;
	int err;

	words[1] = 37;
	err = rc_do(rc, &wr.wr, 0);
	if (err)
		return err;
	/* proves: IB_WR_ATOMIC_FETCH_AND_ADD */
	if (last_sent.opcode != IB_WC_FETCH_ADD || words[0] != 37 ||
	    words[1] != 42)
		return -EBADMSG;
	wr.wr.opcode = IB_WR_ATOMIC_CMP_AND_SWP;
	wr.compare_add = 42;
	wr.swap = 7;
	err = rc_do(rc, &wr.wr, 0);
	if (err)
		return err;
	/* proves: IB_WR_ATOMIC_CMP_AND_SWP */
	if (last_sent.opcode != IB_WC_COMP_SWAP || words[0] != 42 ||
	    words[1] != 7)
		return -EBADMSG;
	/* It compares. */
	err = rc_do(rc, &wr.wr, 0);
	if (err)
		return err;
	return words[0] == 7 && words[1] == 7 ? 0 : -EBADMSG;
}

/*
 * ATOMIC WRITE of 8 bytes to the second word of the buffer. FLUSH is refused: no request of the kernel says which kind of
 * flush it is.
 */
static int rc_atomic_write(struct ib_mr *mr)
{
	struct ib_sge from = { buffer_dma, sizeof(u64), pd->local_dma_lkey };
	struct ib_rdma_wr wr = {
		.wr = { .sg_list = &from, .num_sge = 1,
			.opcode = IB_WR_ATOMIC_WRITE },
		.remote_addr = mr->iova + sizeof(u64),
		.rkey = mr->rkey,
	};
	u64 *words = (u64 *)buffer;
	int err;

	words[0] = 0x0123456789abcdef;
	words[1] = 0;
	words[2] = 5;
	err = rc_do(rc, &wr.wr, 0);
	if (err)
		return err;
	/* proves: IB_WR_ATOMIC_WRITE */
	if (last_sent.opcode != IB_WC_ATOMIC_WRITE || words[1] != words[0] ||
	    words[2] != 5)
		return -EBADMSG;
	wr.wr.opcode = IB_WR_FLUSH;
	return rc_do(rc, &wr.wr, 0) == -EOPNOTSUPP ? 0 : -EPROTO;
}

/* --- keys ----------------------------------------------------------------- */

/* Queue pairs of the domain of the key, two of them connected with each other, and one of another domain. */
struct key_users {
	struct ib_qp *near;
	struct ib_qp *far;
	struct ib_qp *other;
	struct ib_qp *stranger;
};

/* The request completes so. After an error the queue pair and its peer are connected again. */
static int rc_completes(struct ib_qp *on, struct ib_qp *peer,
			struct ib_send_wr *wr, enum ib_wc_status status)
{
	struct ib_qp_attr reset = { .qp_state = IB_QPS_RESET };
	int err = rc_do(on, wr, 0);

	if (err && err != -EIO)
		return err;
	if (failure != status) {
		pr_err("a request with opcode %d: %s instead of %s\n", wr->opcode,
		       ib_wc_status_msg(failure), ib_wc_status_msg(status));
		return -EBADMSG;
	}
	if (status == IB_WC_SUCCESS)
		return 0;
	return ib_modify_qp(on, &reset, IB_QP_STATE) ?:
	       ib_modify_qp(peer, &reset, IB_QP_STATE) ?:
	       connect_rc(peer, on->qp_num) ?:
	       (on == peer ? 0 : connect_rc(on, peer->qp_num));
}

/* A request about a key, on a queue pair that is connected with itself. */
static int key_request(struct ib_qp *on, struct ib_send_wr *wr,
		       enum ib_wc_status status)
{
	return rc_completes(on, on, wr, status);
}

/* A WRITE by this key to the second half of the buffer completes so, and moves data only if it succeeds. */
static int key_serves(struct key_users *users, struct ib_mr *mr, u32 rkey,
		      enum ib_wc_status status)
{
	struct ib_sge from = { buffer_dma, LENGTH, pd->local_dma_lkey };
	struct ib_rdma_wr wr = {
		.wr = { .sg_list = &from, .num_sge = 1,
			.opcode = IB_WR_RDMA_WRITE },
		.remote_addr = mr->iova + LENGTH,
		.rkey = rkey,
	};
	bool arrived;
	int err;

	get_random_bytes(buffer, LENGTH);
	err = rc_completes(users->near, users->far, &wr.wr, status);
	if (err)
		return err;
	arrived = !memcmp(buffer, buffer + LENGTH, LENGTH);
	return arrived == (status == IB_WC_SUCCESS) ? 0 : -EBADMSG;
}

/*
 * The key of a registration that was made on `rc`, whose domain also has `other` and not `stranger`. A request about a key that is
 * refused changes nothing.
 */
static int key_changes(struct ib_reg_wr *reg, struct key_users *users)
{
	struct ib_send_wr invalidate = { .opcode = IB_WR_LOCAL_INV };
	struct ib_qp *other = users->other, *stranger = users->stranger;
	struct ib_mr *mr = reg->mr;
	u32 first = mr->rkey;
	int err;

	invalidate.ex.invalidate_rkey = first;
	/* Another registration of a key that is valid, in its version and in the next. */
	err = key_request(rc, &reg->wr, IB_WC_MW_BIND_ERR) ?:
	      key_request(other, &reg->wr, IB_WC_MW_BIND_ERR);
	reg->key = ib_inc_rkey(first);
	err = err ?: key_request(rc, &reg->wr, IB_WC_MW_BIND_ERR) ?:
	      key_serves(users, mr, first, IB_WC_SUCCESS) ?:
	      key_serves(users, mr, reg->key, IB_WC_REM_ACCESS_ERR);
	/* An invalidation from another domain. */
	err = err ?: key_request(stranger, &invalidate, IB_WC_MW_BIND_ERR) ?:
	      key_serves(users, mr, first, IB_WC_SUCCESS);
	/* On another queue pair of the domain, and once more. */
	err = err ?: key_request(other, &invalidate, IB_WC_SUCCESS);
	/* proves: IB_WR_LOCAL_INV */
	if (!err && last_sent.opcode != IB_WC_LOCAL_INV)
		err = -EBADMSG;
	err = err ?: key_serves(users, mr, first, IB_WC_REM_ACCESS_ERR) ?:
	      key_request(other, &invalidate, IB_WC_MW_BIND_ERR);
	/* The next version, registered there too, after a refusal to the other domain. */
	err = err ?: key_request(stranger, &reg->wr, IB_WC_MW_BIND_ERR) ?:
	      key_serves(users, mr, reg->key, IB_WC_REM_ACCESS_ERR) ?:
	      key_request(other, &reg->wr, IB_WC_SUCCESS);
	ib_update_fast_reg_key(mr, reg->key & 0xff);
	return err ?: key_serves(users, mr, mr->rkey, IB_WC_SUCCESS) ?:
	       key_serves(users, mr, first, IB_WC_REM_ACCESS_ERR);
}

static int rc_keys(struct ib_reg_wr *reg)
{
	struct ib_pd *foreign = ib_alloc_pd(ibdev, 0);
	struct key_users users;
	struct ib_qp **qps[] = { &users.near, &users.far, &users.other,
				 &users.stranger };
	unsigned int i;
	int err = 0;

	if (IS_ERR(foreign))
		return PTR_ERR(foreign);
	for (i = 0; i < ARRAY_SIZE(qps); i++) {
		*qps[i] = make_rc(qps[i] == &users.stranger ? foreign : pd, 0);
		if (IS_ERR(*qps[i])) {
			err = PTR_ERR(*qps[i]);
			break;
		}
	}
	err = err ?: connect_rc(users.near, users.far->qp_num) ?:
	      connect_rc(users.far, users.near->qp_num) ?:
	      connect_rc(users.other, users.other->qp_num) ?:
	      connect_rc(users.stranger, users.stranger->qp_num) ?:
	      key_changes(reg, &users);
	while (i--)
		ib_destroy_qp(*qps[i]);
	ib_dealloc_pd(foreign);
	return err;
}

/* --- a registration, and all requests by it ------------------------------- */

/* A registration with an unknown right is refused, and the same without it is done. */
static int rc_requests(struct ib_mr *mr)
{
	struct ib_reg_wr wr = {
		.wr = { .opcode = IB_WR_REG_MR },
		.mr = mr,
		.key = mr->rkey,
		.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE |
			  IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC |
			  UNKNOWN_ACCESS,
	};
	struct scatterlist sg;
	int err;

	sg_init_table(&sg, 1);
	sg_set_page(&sg, virt_to_page(buffer), GRH + 2 * LENGTH,
		    offset_in_page(buffer));
	sg_dma_address(&sg) = buffer_dma;
	sg_dma_len(&sg) = GRH + 2 * LENGTH;
	if (ib_map_mr_sg(mr, &sg, 1, NULL, PAGE_SIZE) != 1)
		return -EINVAL;
	if (rc_do(rc, &wr.wr, 0) != -EINVAL)
		return -EPROTO;
	wr.access &= ~UNKNOWN_ACCESS;
	err = rc_do(rc, &wr.wr, 0);
	/* proves: IB_WR_REG_MR, alloc_mr, map_mr_sg, IB_MR_TYPE_MEM_REG */
	/* proves: IB_DEVICE_MEM_MGT_EXTENSIONS */
	if (!err && last_sent.opcode != IB_WC_REG_MR)
		err = -EBADMSG;
	return err ?: rc_immediates(mr) ?: rc_atomics(mr) ?: rc_atomic_write(mr) ?:
	       rc_keys(&wr);
}

static int connection_set(const char *value, const struct kernel_param *param)
{
	struct ib_mr *mr;
	int err;

	/* An unknown flag. */
	rc = make_rc(pd, BIT(30));
	if (!IS_ERR(rc)) {
		ib_destroy_qp(rc);
		return -EPROTO;
	}
	if (PTR_ERR(rc) != -EOPNOTSUPP && PTR_ERR(rc) != -EINVAL)
		return PTR_ERR(rc);
	rc = make_rc(pd, 0);
	if (IS_ERR(rc))
		return PTR_ERR(rc);
	mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, 4);
	if (IS_ERR(mr)) {
		err = PTR_ERR(mr);
		goto destroy;
	}
	err = connect_rc(rc, rc->qp_num) ?: rc_requests(mr);
	ib_drain_qp(rc);
	ib_dereg_mr(mr);
destroy:
	ib_destroy_qp(rc);
	return err;
}

static const struct kernel_param_ops connection_ops = { .set = connection_set };
module_param_cb(connection, &connection_ops, NULL, 0200);
MODULE_PARM_DESC(connection, "Write: a connection with itself, known and unknown flags");

/* Some are destroyed before the device has made them, some after, some at the end. */
static int run_set(const char *value, const struct kernel_param *param)
{
	unsigned int i;
	int err = 0;

	for (i = 0; !err && i < HANDLES; i++) {
		if (handles[i]) {
			err = drop(handles[i]);
			handles[i] = NULL;
		}
		if (!err)
			err = make(&handles[i]);
		if (err)
			handles[i] = NULL;
		else if (i % 3 == 0) {
			err = drop(handles[i]);
			handles[i] = NULL;
		}
	}
	return err ?: send_to_self(IB_SEND_SIGNALED);
}

/* Unknown send flags, and one that the device does not support, are refused. */
static int refused_set(const char *value, const struct kernel_param *param)
{
	/* proves: IB_SEND_IP_CSUM */
	if (send_to_self(IB_SEND_SIGNALED | BIT(30)) != -EINVAL ||
	    send_to_self(IB_SEND_SIGNALED | IB_SEND_IP_CSUM) != -EINVAL)
		return -EPROTO;
	/* proves: IB_SEND_SOLICITED */
	return send_to_self(IB_SEND_SIGNALED | IB_SEND_SOLICITED);
}

static const struct kernel_param_ops refused_ops = { .set = refused_set };
module_param_cb(refused, &refused_ops, NULL, 0200);
MODULE_PARM_DESC(refused, "Write: post requests with unknown flags");

static const struct kernel_param_ops run_ops = { .set = run_set };
module_param_cb(run, &run_ops, NULL, 0200);
MODULE_PARM_DESC(run, "Write: create and destroy handles, and send");
module_param(longest_us, ullong, 0444);
MODULE_PARM_DESC(longest_us, "What the longest call took, in microseconds");

static int make_qp(void)
{
	struct ib_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8,
			 .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_UD,
	};
	struct ib_qp_attr state = { .port_num = 1, .qkey = QKEY };
	int err;

	qp = ib_create_qp(pd, &init);
	if (IS_ERR(qp))
		return PTR_ERR(qp);
	state.qp_state = IB_QPS_INIT;
	err = ib_modify_qp(qp, &state, IB_QP_STATE | IB_QP_PKEY_INDEX |
			   IB_QP_PORT | IB_QP_QKEY);
	state.qp_state = IB_QPS_RTR;
	if (!err)
		err = ib_modify_qp(qp, &state, IB_QP_STATE);
	state.qp_state = IB_QPS_RTS;
	if (!err)
		err = ib_modify_qp(qp, &state, IB_QP_STATE | IB_QP_SQ_PSN);
	if (err)
		ib_destroy_qp(qp);
	return err;
}

static int make_queues(void)
{
	int err;

	buffer = kzalloc(GRH + 2 * LENGTH, GFP_KERNEL);
	if (!buffer)
		return -ENOMEM;
	buffer_dma = ib_dma_map_single(ibdev, buffer, GRH + 2 * LENGTH,
				       DMA_BIDIRECTIONAL);
	err = ib_dma_mapping_error(ibdev, buffer_dma);
	if (err)
		goto free;
	cq = ib_alloc_cq(ibdev, NULL, 16, 0, IB_POLL_DIRECT);
	if (IS_ERR(cq)) {
		err = PTR_ERR(cq);
		goto unmap;
	}
	err = make_qp();
	if (err)
		goto free_cq;
	return 0;

free_cq:
	ib_free_cq(cq);
unmap:
	ib_dma_unmap_single(ibdev, buffer_dma, GRH + 2 * LENGTH,
			    DMA_BIDIRECTIONAL);
free:
	kfree(buffer);
	return err;
}

static void destroy_queues(void)
{
	ib_destroy_qp(qp);
	ib_free_cq(cq);
	ib_dma_unmap_single(ibdev, buffer_dma, GRH + 2 * LENGTH,
			    DMA_BIDIRECTIONAL);
	kfree(buffer);
}

static int __init kernel_verbs_init(void)
{
	const struct ib_gid_attr *gid;
	struct net_device *ndev;
	int err;

	ndev = netdev ? dev_get_by_name(&init_net, netdev) : NULL;
	if (!ndev)
		return -EINVAL;
	ether_addr_copy(attr.roce.dmac, ndev->dev_addr);
	ibdev = ib_device_get_by_netdev(ndev, RDMA_DRIVER_UNKNOWN);
	dev_put(ndev);
	if (!ibdev)
		return -ENODEV;
	pd = ib_alloc_pd(ibdev, 0);
	if (IS_ERR(pd)) {
		err = PTR_ERR(pd);
		goto put;
	}
	err = make_queues();
	if (err)
		goto dealloc;
	gid = rdma_get_gid_attr(ibdev, 1, gid_index);
	if (IS_ERR(gid)) {
		err = PTR_ERR(gid);
		goto destroy;
	}
	attr.type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(&attr, 1);
	rdma_move_grh_sgid_attr(&attr, (union ib_gid *)&gid->gid, 0, 64, 0,
				gid);
	return 0;

destroy:
	destroy_queues();
dealloc:
	ib_dealloc_pd(pd);
put:
	ib_device_put(ibdev);
	return err;
}

static void __exit kernel_verbs_exit(void)
{
	unsigned int i;

	for (i = 0; i < HANDLES; i++)
		if (handles[i])
			drop(handles[i]);
	rdma_destroy_ah_attr(&attr);
	destroy_queues();
	ib_dealloc_pd(pd);
	ib_device_put(ibdev);
}

module_init(kernel_verbs_init);
module_exit(kernel_verbs_exit);
MODULE_DESCRIPTION("Verbs of the kernel, for tests");
MODULE_AUTHOR("The Faultline authors");
MODULE_LICENSE("Dual BSD/GPL");
