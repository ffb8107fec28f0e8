// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * xrc_shared: an XRC target that two processes share, and that lives as long as
 * one of them. The owner makes it, the sharer opens it by its number in the
 * domain of the same file, the sender (this process) sends to queues of both.
 * Then the owner ends. One guest.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/faultlinedv.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define DOMAIN_FILE "/tmp/xrc_shared.domain"
#define OTHER_FILE "/tmp/xrc_shared.other"
#define LENGTH 5000U
#define RECEIVES 8
#define SOON_MS 20000

/* What the owner and the sharer tell the sender of their queue and of their memory. */
struct queue {
	uint32_t target;
	uint32_t srqn;
	uint64_t addr;
	uint32_t rkey;
};

/* A process's side of the domain. */
struct side {
	struct device device;
	struct ibv_xrcd *xrcd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	uint8_t *memory;
	struct ibv_mr *mr;
	/* To the sender. */
	int sender;
};

static struct ibv_xrcd *domain_of(struct device *device, const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd, .oflags = O_CREAT,
	};
	struct ibv_xrcd *xrcd = fd < 0 ? NULL : ibv_open_xrcd(device->context, &attr);

	/* proves: open_xrcd, IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS */
	if (!xrcd)
		die("cannot open the domain of %s: %m", path);
	close(fd);
	return xrcd;
}

static void side_open(struct side *side, int sender)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = RECEIVES, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_XRCD,
		.srq_type = IBV_SRQT_XRC,
	};

	side->sender = sender;
	device_open(&side->device);
	side->xrcd = domain_of(&side->device, DOMAIN_FILE);
	side->cq = ibv_create_cq(side->device.context, RECEIVES, NULL, NULL, 0);
	WANT(side->cq);
	attr.pd = side->device.pd;
	attr.cq = side->cq;
	attr.xrcd = side->xrcd;
	side->srq = ibv_create_srq_ex(side->device.context, &attr);
	if (!side->srq)
		die("cannot create a shared receive queue: %m");
	side->memory = anonymous((RECEIVES + 1) * LENGTH);
	side->mr = region(&side->device, side->memory, (RECEIVES + 1) * LENGTH, false);
	for (uint64_t id = 0; id < RECEIVES; id++) {
		struct ibv_sge piece = { (uintptr_t)side->memory + id * LENGTH, LENGTH,
					 side->mr->lkey };
		struct ibv_recv_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1 }, *bad;

		WANT(!ibv_post_srq_recv(side->srq, &work, &bad));
	}
}

static void side_tell(struct side *side, uint32_t target)
{
	struct queue queue = {
		.target = target,
		.addr = (uintptr_t)side->memory + RECEIVES * LENGTH,
		.rkey = side->mr->rkey,
	};

	WANT(!ibv_get_srq_num(side->srq, &queue.srqn));
	send_all(side->sender, &queue, sizeof(queue));
}

/* Takes one message, after the sender has said which. */
static void side_receive(struct side *side, uint32_t target)
{
	uint64_t deadline = now_ms() + SOON_MS;
	struct ibv_wc wc;
	uint64_t key;
	int count;

	receive_all(side->sender, &key, sizeof(key));
	while (!(count = ibv_poll_cq(side->cq, 1, &wc)))
		if (now_ms() >= deadline)
			die("a message does not arrive");
	WANT(count == 1 && wc.status == IBV_WC_SUCCESS);
	/* proves: IBV_SRQT_XRC, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_PD */
	/* proves: IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ, get_srq_num */
	WANT(wc.opcode == IBV_WC_RECV && wc.byte_len == LENGTH && wc.qp_num == target);
	WANT(!content_wrong(side->memory + wc.wr_id * LENGTH, key, 0, LENGTH));
	send_all(side->sender, &key, sizeof(key));
}

static void wants_event(struct side *side, enum ibv_event_type type, struct ibv_qp *qp)
{
	struct pollfd poller = { .fd = side->device.context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&poller, 1, SOON_MS) != 1)
		die("the event \"%s\" does not come", ibv_event_type_str(type));
	WANT(!ibv_get_async_event(side->device.context, &event));
	if (event.event_type != type || event.element.qp != qp)
		die("\"%s\" comes instead of \"%s\"", ibv_event_type_str(event.event_type),
		    ibv_event_type_str(type));
	ibv_ack_async_event(&event);
}

/* --- queue pairs ------------------------------------------------------------ */

static struct ibv_qp *open_target(struct device *device, struct ibv_xrcd *xrcd, uint32_t number)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE |
			     IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_num = number, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV, .qp_context = device,
	};

	return ibv_open_qp(device->context, &attr);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp, uint32_t *peer)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	WANT(!ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN, &init));
	/* proves: IBV_QPT_XRC_RECV */
	WANT(init.qp_type == IBV_QPT_XRC_RECV);
	if (peer)
		*peer = attr.dest_qp_num;
	return attr.qp_state;
}

/* --- the two that share ------------------------------------------------------ */

static void own(int sender)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD,
	};
	struct side side = {};
	struct ibv_qp *qp;
	uint32_t peer;

	side_open(&side, sender);
	attr.xrcd = side.xrcd;
	qp = ibv_create_qp_ex(side.device.context, &attr);
	if (!qp)
		die("cannot create a target: %m");
	side_tell(&side, qp->qp_num);
	receive_all(sender, &peer, sizeof(peer));
	xrc_init(qp);
	xrc_listen(&side.device, qp, peer, true);
	send_all(sender, &peer, sizeof(peer));
	side_receive(&side, qp->qp_num);
	wants_event(&side, IBV_EVENT_COMM_EST, qp);
	/* Until it is killed, with all that it has. */
	pause();
}

static void not_opened(struct side *side, struct ibv_xrcd *xrcd, uint32_t number)
{
	errno = 0;
	WANT(!open_target(&side->device, xrcd, number) && errno == EINVAL);
}

static void share(int sender)
{
	enum faultlinedv_fault_policy policy;
	uint64_t deadline;
	uint32_t target[2], peer;
	struct ibv_xrcd *other;
	struct side side = {};
	struct ibv_qp *qp;

	receive_all(sender, target, sizeof(target));
	side_open(&side, sender);
	/* The number is good in its own domain only. */
	other = domain_of(&side.device, OTHER_FILE);
	/* proves: IBV_QP_OPEN_ATTR_XRCD */
	not_opened(&side, other, target[0]);
	not_opened(&side, side.xrcd, target[0] + 1);
	/* proves: close_xrcd, dealloc_xrcd */
	WANT(!ibv_close_xrcd(other));
	qp = open_target(&side.device, side.xrcd, target[0]);
	if (!qp)
		die("cannot open the target: %m");
	/* proves: open_qp, IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE */
	WANT(qp->qp_num == target[0] && qp->qp_type == IBV_QPT_XRC_RECV);
	/* proves: IBV_QP_OPEN_ATTR_CONTEXT */
	WANT(qp->qp_context == &side.device);
	/* proves: IBV_QPS_RTR, IBV_QP_INIT_ATTR_XRCD */
	WANT(state_of(qp, &peer) == IBV_QPS_RTR && peer == target[1]);
	/* Own features of this device work on opened objects, too. */
	if (faultlinedv_is_supported(side.device.context->device)) {
		WANT(!faultlinedv_set_fault_policy(qp, FAULTLINEDV_FAULT_DROP));
		WANT(!faultlinedv_query_fault_policy(qp, &policy));
		WANT(policy == FAULTLINEDV_FAULT_DROP);
	}
	side_tell(&side, qp->qp_num);
	side_receive(&side, qp->qp_num);

	/* The owner has ended. */
	side_receive(&side, qp->qp_num);
	WANT(state_of(qp, NULL) == IBV_QPS_RTR);
	xrc_start(qp, true);
	side_receive(&side, qp->qp_num);
	side_receive(&side, qp->qp_num);
	receive_all(sender, &peer, sizeof(peer));
	WANT(!content_wrong(side.memory + RECEIVES * LENGTH, 77, 0, LENGTH));

	/* Now the peer sends to the owner's queue, which does not exist any more. */
	send_all(sender, &peer, sizeof(peer));
	deadline = now_ms() + SOON_MS;
	while (state_of(qp, NULL) != IBV_QPS_ERR)
		WANT(now_ms() < deadline);
	WANT(!ibv_destroy_qp(qp));
	/* With its last user it went. */
	not_opened(&side, side.xrcd, target[0]);
	WANT(!ibv_destroy_srq(side.srq) && !ibv_close_xrcd(side.xrcd));
	WANT(!ibv_dereg_mr(side.mr) && !ibv_destroy_cq(side.cq));
	WANT(!ibv_dealloc_pd(side.device.pd) && !ibv_close_device(side.device.context));
}

/* --- the one that sends ------------------------------------------------------- */

struct process {
	pid_t pid;
	int fd;
};

/* `other` is a descriptor that only this process shall have. */
static struct process start(void (*run)(int), int other)
{
	struct process process;
	int pair[2];

	WANT(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	process.fd = pair[0];
	process.pid = fork();
	WANT(process.pid >= 0);
	if (!process.pid) {
		close(pair[0]);
		close(other);
		run(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	return process;
}

static struct device device;
static struct endpoint end;
static struct ibv_mr *mr;

static enum ibv_wc_status post(struct ibv_send_wr *work)
{
	struct ibv_sge piece = { (uintptr_t)mr->addr, LENGTH, mr->lkey };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	work->sg_list = &piece;
	work->num_sge = 1;
	work->send_flags = IBV_SEND_SIGNALED;
	WANT(!ibv_post_send(end.qp, work, &bad));
	if (!endpoint_wait(&end, &wc, SOON_MS))
		die("a request does not complete");
	return wc.status;
}

static enum ibv_wc_status message_to(const struct queue *queue, uint64_t key)
{
	struct ibv_send_wr work = {
		.opcode = IBV_WR_SEND, .qp_type.xrc.remote_srqn = queue->srqn,
	};

	content_fill(mr->addr, key, 0, LENGTH);
	return post(&work);
}

static void arrives(const struct process *process, const struct queue *queue, uint64_t key)
{
	uint64_t answer;

	/* proves: IBV_QPT_XRC_SEND */
	WANT(message_to(queue, key) == IBV_WC_SUCCESS);
	send_all(process->fd, &key, sizeof(key));
	receive_all(process->fd, &answer, sizeof(answer));
	WANT(answer == key);
}

static void write_to(const struct queue *queue, uint64_t key)
{
	struct ibv_send_wr work = {
		.opcode = IBV_WR_RDMA_WRITE, .qp_type.xrc.remote_srqn = queue->srqn,
		.wr.rdma = { .remote_addr = queue->addr, .rkey = queue->rkey },
	};

	content_fill(mr->addr, key, 0, LENGTH);
	WANT(post(&work) == IBV_WC_SUCCESS);
}

static void make_sender(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};

	device_open(&device);
	mr = region(&device, anonymous(LENGTH), LENGTH, false);
	end.cq = ibv_create_cq(device.context, 4, NULL, NULL, 0);
	attr.pd = device.pd;
	attr.send_cq = end.cq;
	end.qp = end.cq ? ibv_create_qp_ex(device.context, &attr) : NULL;
	if (!end.qp)
		die("cannot create an initiator: %m");
}

int main(void)
{
	struct process owner = start(own, -1), sharer = start(share, owner.fd);
	struct queue of_owner, of_sharer;
	uint32_t target[2], word = 0;
	int status;

	make_sender();
	receive_all(owner.fd, &of_owner, sizeof(of_owner));
	target[0] = of_owner.target;
	target[1] = end.qp->qp_num;
	send_all(owner.fd, &target[1], sizeof(target[1]));
	receive_all(owner.fd, &word, sizeof(word));
	send_all(sharer.fd, target, sizeof(target));
	receive_all(sharer.fd, &of_sharer, sizeof(of_sharer));
	WANT(of_sharer.target == of_owner.target && of_sharer.srqn != of_owner.srqn);
	xrc_init(end.qp);
	xrc_listen(&device, end.qp, target[0], false);
	xrc_start(end.qp, false);
	arrives(&owner, &of_owner, 11);
	arrives(&sharer, &of_sharer, 12);

	WANT(!kill(owner.pid, SIGKILL) && waitpid(owner.pid, &status, 0) == owner.pid);
	WANT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	for (uint64_t key = 13; key < 16; key++)
		arrives(&sharer, &of_sharer, key);
	write_to(&of_sharer, 77);
	send_all(sharer.fd, &word, sizeof(word));
	receive_all(sharer.fd, &word, sizeof(word));
	WANT(message_to(&of_owner, 16) == IBV_WC_REM_INV_REQ_ERR);
	WANT(waitpid(sharer.pid, &status, 0) == sharer.pid && !status);
	WANT(!ibv_destroy_qp(end.qp) && !ibv_destroy_cq(end.cq));
	unlink(DOMAIN_FILE);
	unlink(OTHER_FILE);
	puts("PASS");
	return 0;
}
