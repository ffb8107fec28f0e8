// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * key_refused: a change of a region that the device refuses, because a window
 * is bound to it, changes nothing and affects no other object. The same holds
 * for an invalid change of a shared receive queue, and for a fault in the
 * memory of a process that has ended. Runs in one guest.
 */
#include "watched.h"

#include <sys/socket.h>
#include <sys/wait.h>

#define LENGTH (4 * PAGE)

struct bench {
	struct device device;
	struct loop loop;
	uint8_t *buffer;
	struct ibv_mr *mr;
};

static struct ibv_mr *on_demand(struct bench *bench, void *at, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(bench->device.pd, at, length,
				       ALL_ACCESS | IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND);

	if (!mr)
		die("cannot register on demand: %m");
	return mr;
}

/* Some bytes to this address, by this key; whether they are there. */
static void write_through(struct bench *bench, const struct ibv_mr *mr, uint8_t *at)
{
	static uint64_t generation;

	content_fill(bench->buffer, content_key(2, 0, ++generation), 0, PAGE);
	WANT(loop_do(&bench->loop, IBV_WR_RDMA_WRITE, bench->buffer, PAGE, bench->mr->lkey, at,
		     mr->rkey) == IBV_WC_SUCCESS);
	WANT(!memcmp(at, bench->buffer, PAGE));
}

static struct ibv_mw *window(struct bench *bench, struct ibv_mr *mr, void *at)
{
	struct ibv_mw *mw = ibv_alloc_mw(bench->device.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {
		.wr_id = 3,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, (uintptr_t)at, PAGE, IBV_ACCESS_REMOTE_WRITE },
	};
	struct ibv_wc wc;

	if (!mw)
		die("cannot allocate a window: %m");
	WANT(!ibv_bind_mw(bench->loop.near.qp, mw, &bind));
	WANT(endpoint_wait(&bench->loop.near, &wc, 5000));
	WANT(wc.status == IBV_WC_SUCCESS);
	return mw;
}

/* The parts of an implicit region stay its parts. */
static void test_implicit(struct bench *bench)
{
	uint8_t *at = anonymous(LENGTH), *other = anonymous(PAGE);
	struct ibv_mr *mr = on_demand(bench, NULL, SIZE_MAX);
	struct ibv_mw *mw;

	write_through(bench, mr, at);
	mw = window(bench, mr, at);
	WANT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, PAGE, 0));
	write_through(bench, mr, at);
	/* proves: IBV_ODP_SUPPORT_IMPLICIT */
	write_through(bench, mr, at + PAGE);
	replace(at, LENGTH);
	write_through(bench, mr, at);
	WANT(!ibv_dealloc_mw(mw));
	WANT(!ibv_dereg_mr(mr));
	/* No object that was destroyed above is notified of this. */
	replace(at, LENGTH);
	munmap(at, LENGTH);
	munmap(other, PAGE);
}

/* A region with a window is not deregistered, and stays as it was. */
static void test_bound(struct bench *bench)
{
	uint8_t *at = anonymous(LENGTH);
	struct ibv_mr *mr = on_demand(bench, at, LENGTH);
	struct ibv_mw *mw = window(bench, mr, at);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;

	WANT(ibv_dereg_mr(mr));
	WANT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access));
	write_through(bench, mr, at);
	replace(at, LENGTH);
	write_through(bench, mr, at + PAGE);
	WANT(!ibv_dealloc_mw(mw));
	WANT(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, access));
	write_through(bench, mr, at);
	WANT(!ibv_dereg_mr(mr));
	munmap(at, LENGTH);
}

/* Who sleeps until the others have hung up: a child that has inherited the device. */
static __attribute__((noreturn)) void wait_for_end(int fd)
{
	char byte;

	while (read(fd, &byte, 1) > 0)
		;
	_exit(0);
}

struct offer {
	uint64_t at;
	uint32_t rkey;
};

/* Offers all of its memory, and ends; its region does not. */
static void end_early(int fd)
{
	struct endpoint end;
	struct device device;
	struct offer offer;
	struct ibv_mr *mr;

	device_open(&device);
	endpoint_create(&end, &device, 16, 16);
	endpoint_meet(&end, fd);
	endpoint_start(&end);
	mr = ibv_reg_mr(device.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	if (!mr)
		die("cannot register on demand: %m");
	offer.at = (uintptr_t)anonymous(PAGE);
	offer.rkey = mr->rkey;
	send_all(fd, &offer, sizeof(offer));
	switch (fork()) {
	case 0:
		wait_for_end(fd);
	case -1:
		die("cannot fork: %m");
	}
	_exit(0);
}

/* A fault in an address space that is no more ends the request. */
static void test_ended(struct bench *bench)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE,
		.local = bench->buffer,
		.length = PAGE,
		.lkey = bench->mr->lkey,
	};
	struct endpoint end;
	struct offer offer;
	struct ibv_wc wc;
	int status, pair[2];
	pid_t child;

	WANT(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child = fork();
	if (!child) {
		close(pair[0]);
		end_early(pair[1]);
	}
	WANT(child > 0);
	close(pair[1]);
	endpoint_create(&end, &bench->device, 16, 16);
	endpoint_meet(&end, pair[0]);
	endpoint_start(&end);
	receive_all(pair[0], &offer, sizeof(offer));
	WANT(waitpid(child, &status, 0) == child && status == 0);
	/* Whatever is left of it is given up a moment later. */
	sleep_ms(500);
	request.remote = offer.at;
	request.rkey = offer.rkey;
	endpoint_post(&end, &request);
	WANT(endpoint_wait(&end, &wc, 60000));
	WANT(wc.status == IBV_WC_REM_ACCESS_ERR);
	close(pair[0]);
	endpoint_destroy(&end);
}

/* A new size is refused with a limit that does not fit to it, and the queue continues as before. */
static void test_queue(struct bench *bench)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(bench->device.pd, &init);
	struct ibv_srq_attr change = { .max_wr = 2000, .srq_limit = 100000 }, now;
	struct ibv_cq *cq = ibv_create_cq(bench->device.context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .send_cq = cq, .recv_cq = cq, .srq = srq,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = srq && cq ? ibv_create_qp(bench->device.pd, &attr) : NULL;
	struct ibv_sge piece = { (uintptr_t)bench->buffer, PAGE / 2, bench->mr->lkey };
	struct ibv_recv_wr work = { .sg_list = &piece, .num_sge = 1 }, *bad;
	struct request request = {
		.opcode = IBV_WR_SEND, .local = bench->buffer + PAGE / 2, .length = PAGE / 2,
		.lkey = bench->mr->lkey,
	};
	struct endpoint end;
	struct ibv_wc wc;

	WANT(qp);
	endpoint_adopt(&end, &bench->device, cq, qp);
	end.peer = end.own;
	endpoint_start(&end);
	WANT(ibv_modify_srq(srq, &change, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) == EINVAL);
	WANT(!ibv_query_srq(srq, &now) && now.max_wr == 8);
	content_fill(bench->buffer, content_key(3, 0, 0), 0, PAGE);
	WANT(!ibv_post_srq_recv(srq, &work, &bad));
	endpoint_post(&end, &request);
	for (int i = 0; i < 2; i++)
		WANT(endpoint_wait(&end, &wc, 20000) && wc.status == IBV_WC_SUCCESS);
	WANT(!content_wrong(bench->buffer, content_key(3, 0, 0), PAGE / 2, PAGE / 2));
	endpoint_destroy(&end);
	WANT(!ibv_destroy_srq(srq));
}

int main(void)
{
	int kmsg = kmsg_open();
	struct bench bench;

	device_open(&bench.device);
	device_needs_odp(&bench.device, true);
	loop_create(&bench.loop, &bench.device);
	bench.buffer = anonymous(PAGE);
	bench.mr = region(&bench.device, bench.buffer, PAGE, false);
	test_implicit(&bench);
	test_bound(&bench);
	test_queue(&bench);
	test_ended(&bench);
	WANT(!ibv_dereg_mr(bench.mr));
	loop_destroy(&bench.loop);
	WANT(!kmsg_complaints(kmsg));
	puts("PASS");
	return 0;
}
