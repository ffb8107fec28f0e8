// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Verbs as consumers in the kernel use them, for tests: creates and destroys
 * address handles with interrupts off, as the connection manager does, and
 * tells how long the longest took; sends a datagram to itself through one of
 * them at once; and asks for what is to be refused.
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
#define PATIENCE_MS 30000

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
/* What is sent, and behind it what is received. */
static u8 *buffer;
static u64 buffer_dma;
static unsigned int sent;
static unsigned int received;
static enum ib_wc_status failure;

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

/* Posts before the device has made the handle; what was sent arrives then. */
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
	unsigned int tries = PATIENCE_MS;
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
	err = ib_post_send(qp, &wr.wr, &bad);
	if (err) {
		if (bad != &wr.wr)
			err = -EPROTO;
		goto drop;
	}
	err = ib_post_recv(qp, &recv, NULL);
	while (!err && (!sent || !received)) {
		ib_process_cq_direct(cq, -1);
		usleep_range(1000, 2000);
		if (!tries--)
			err = -ETIMEDOUT;
	}
	if (!err && (failure ||
		     memcmp(buffer, buffer + LENGTH + GRH, LENGTH)))
		err = -EIO;
drop:
	return drop(handle) ?: err;
}

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

/* Flags that nobody knows, and one that the device does not support. */
static int refused_set(const char *value, const struct kernel_param *param)
{
	if (send_to_self(IB_SEND_SIGNALED | BIT(30)) != -EINVAL ||
	    send_to_self(IB_SEND_SIGNALED | IB_SEND_IP_CSUM) != -EINVAL)
		return -EPROTO;
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
