// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * The provider against a device and a kernel that this file plays: rings,
 * doorbells and completions, none of which need a guest.
 *
 * What is defined here with the names of libibverbs' commands stands in for
 * them. Not tested: what the real kernel answers.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../faultline.h"

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__,    \
				__LINE__, __func__, #condition);               \
			exit(1);                                               \
		}                                                              \
	} while (0)

#define MAX_WR 1024
#define MAX_CQE 4096
#define MAX_SGE 8
#define MAX_INLINE 256

/* The device and its kernel. */

static struct faultline_doorbell_page *page;
static uint64_t taken;		/* doorbells, by the device */
static uint32_t next_number;	/* of the next object */
static uint32_t device_depth;	/* log2 of the CQ's that was made or resized last */
static uint8_t *device_cq;	/* its ring */
static int kernel_error;	/* of the next command */
static bool ring_was_drained;	/* when the last command arrived */

static int kernel_answer(void)
{
	int ret = kernel_error;

	kernel_error = 0;
	ring_was_drained = page->producer ==
			   __atomic_load_n(&page->consumer, __ATOMIC_ACQUIRE);
	return ret;
}

static uint64_t device_clock;
static unsigned int clock_questions;
/* What must not be held when the kernel is asked. */
static pthread_spinlock_t *must_be_free;
static uint32_t srq_taken;	/* requests, by the device, of the SRQ's present ring */

/* Where a command wants the answer that has this number. */
static void *answer_of(struct ibv_command_buffer *cmd, uint16_t id)
{
	struct ib_uverbs_attr *attr;

	for (attr = cmd->hdr.attrs; attr != cmd->next_attr; attr++)
		if (attr->attr_id == id)
			return (void *)(uintptr_t)attr->data;
	CHECK(!"an answer was asked for");
	return NULL;
}

int ibv_cmd_create_cq_ex(struct ibv_context *context,
			 const struct ibv_cq_init_attr_ex *attr,
			 FL_CQ_PROV_ATTR(struct verbs_create_cq_prov_attr *prov_attr)
			 struct verbs_cq *cq,
			 struct ibv_create_cq_ex *cmd, size_t cmd_size,
			 struct ib_uverbs_ex_create_cq_resp *resp, size_t resp_size,
			 uint32_t flags)
{
	struct faultline_create_cq_req *req = &((struct fl_create_cq_ex *)cmd)->drv;

	CHECK(cmd_size == sizeof(struct fl_create_cq_ex));
	CHECK(attr->cqe == 1U << req->log_depth);
	device_cq = (void *)(uintptr_t)req->buf_addr;
	device_depth = req->log_depth;
	cq->cq.context = context;
	cq->cq.cqe = attr->cqe;
	((struct fl_create_cq_ex_resp *)resp)->drv.cqn = next_number++;
	return kernel_answer();
}

int ibv_cmd_resize_cq(struct ibv_cq *cq, int cqe, struct ibv_resize_cq *cmd,
		      size_t cmd_size, struct ib_uverbs_resize_cq_resp *resp,
		      size_t resp_size)
{
	struct faultline_resize_cq_req *req = &((struct fl_resize_cq *)cmd)->drv;
	uint32_t n = 0, old_depth = device_depth;
	struct faultline_cqe *from = (void *)device_cq;
	struct faultline_cqe *to = (void *)(uintptr_t)req->buf_addr;
	int ret = kernel_answer();

	if (ret)
		return ret;
	/* Unread entries go to the start of the new ring (cqe.rs, admin.rs). */
	for (;; n++) {
		uint32_t i = req->consumer + n;

		if (n >> old_depth ||
		    from[i & ((1U << old_depth) - 1)].phase != fl_phase(i, old_depth))
			break;
		CHECK(n < 1U << req->log_depth);
		to[n] = from[i & ((1U << old_depth) - 1)];
		to[n].phase = 1;
	}
	device_cq = (void *)to;
	device_depth = req->log_depth;
	cq->cqe = cqe;
	return 0;
}

int ibv_cmd_create_qp_ex2(struct ibv_context *context, struct verbs_qp *qp,
			  struct ibv_qp_init_attr_ex *attr,
			  struct ibv_create_qp_ex *cmd, size_t cmd_size,
			  struct ib_uverbs_ex_create_qp_resp *resp, size_t resp_size
			  FL_QP_DRIVER_ATTRS(struct ibv_command_buffer *driver))
{
	struct faultline_create_qp_req *req = &((struct fl_create_qp_ex *)cmd)->drv;

	CHECK(cmd_size == sizeof(struct fl_create_qp_ex));
	CHECK(attr->cap.max_inline_data <= MAX_INLINE);
	CHECK(1U << req->sq_log_depth >= attr->cap.max_send_wr);
	CHECK(req->sq_stride_shift >= FAULTLINE_SQ_MIN_STRIDE_SHIFT);
	CHECK(req->sq_stride_shift <= FAULTLINE_MAX_STRIDE_SHIFT);
	CHECK(1U << req->sq_stride_shift >=
	      FAULTLINE_SQ_WQE_DATA + attr->cap.max_inline_data);
	CHECK(1U << req->sq_stride_shift >=
	      FAULTLINE_SQ_WQE_DATA + 16 * attr->cap.max_send_sge);
	CHECK(!attr->srq == !!req->rq_addr);
	qp->qp.context = context;
	qp->qp.qp_num = next_number++;
	qp->qp.qp_type = attr->qp_type;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.srq = attr->srq;
	qp->qp.pd = attr->pd;
	qp->qp.state = IBV_QPS_RTS;
	return kernel_answer();
}

int ibv_cmd_create_srq(struct ibv_pd *pd, struct ibv_srq *srq,
		       struct ibv_srq_init_attr *attr, struct ibv_create_srq *cmd,
		       size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
		       size_t resp_size)
{
	srq->context = pd->context;
	((struct fl_create_srq_resp *)resp)->drv.srqn = next_number++;
	return kernel_answer();
}

int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		      struct ibv_modify_qp *cmd, size_t cmd_size)
{
	return kernel_answer();
}

/* What other threads do once the device has freed a queue pair's number. */
static void (*while_destroyed)(void);

int ibv_cmd_destroy_qp(struct ibv_qp *qp)
{
	int ret = kernel_answer();

	if (!ret && while_destroyed)
		while_destroyed();
	return ret;
}

int ibv_cmd_destroy_cq(struct ibv_cq *cq)
{
	return kernel_answer();
}

int ibv_cmd_destroy_srq(struct ibv_srq *srq)
{
	return kernel_answer();
}

/* Moves what the device has not taken to the new ring (srq.rs, admin.rs). */
int ibv_cmd_modify_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr, int mask,
		       struct ibv_modify_srq *cmd, size_t cmd_size)
{
	struct fl_wq *wq = &to_fl_srq(ibsrq)->wq;
	struct faultline_resize_srq_req *req = &((struct fl_modify_srq *)cmd)->drv;
	uint32_t posted = le32toh(fl_wq_record(&wq->ring)->producer) - srq_taken;
	uint8_t *to = (void *)(uintptr_t)req->buf_addr;
	struct faultline_wq_record *record;
	uint32_t i;
	int ret = kernel_answer();

	CHECK(mask == IBV_SRQ_MAX_WR && cmd_size == sizeof(struct fl_modify_srq));
	CHECK(1U << req->log_depth >= attr->max_wr);
	if (ret)
		return ret;
	CHECK(posted <= 1U << req->log_depth);
	for (i = 0; i < posted; i++)
		memcpy(to + (i << wq->stride_shift), fl_wq_entry(wq, srq_taken + i),
		       1U << wq->stride_shift);
	record = (void *)(to + (1U << (req->log_depth + wq->stride_shift)));
	record->producer = htole32(posted);
	srq_taken = 0;
	return 0;
}

/* Device memory is the second page of the file that stands for the device. */
int ibv_cmd_alloc_dm(struct ibv_context *context, const struct ibv_alloc_dm_attr *attr,
		     struct verbs_dm *dm, struct ibv_command_buffer *link)
{
	struct faultline_dm_resp *resp = answer_of(link, FAULTLINE_ATTR_DM_ALLOC_RESP);

	resp->mmap_offset = FAULTLINE_PAGE_SIZE;
	resp->mmap_length = FAULTLINE_PAGE_SIZE;
	resp->length = attr->length;
	dm->dm.context = context;
	return kernel_answer();
}

int ibv_cmd_free_dm(struct verbs_dm *dm)
{
	return kernel_answer();
}

/* The only command of its own that is played is the question for the clock. */
int execute_ioctl(struct ibv_context *context, struct ibv_command_buffer *cmd)
{
	uint64_t *clock = answer_of(cmd, FAULTLINE_ATTR_QUERY_CLOCK_VALUE);

	clock_questions++;
	if (must_be_free) {
		CHECK(!pthread_spin_trylock(must_be_free));
		pthread_spin_unlock(must_be_free);
	}
	*clock = device_clock;
	errno = kernel_answer();
	return errno;
}

/* Takes a doorbell; zero if there is none. The lap bit is checked and taken off. */
static uint64_t take_doorbell(void)
{
	uint64_t bits = __atomic_load_n(&page->ring[taken % FAULTLINE_DB_RING_ENTRIES],
					__ATOMIC_ACQUIRE);

	if (!(bits >> FAULTLINE_DB_TYPE_SHIFT & FAULTLINE_DB_TYPE_MASK) ||
	    bits >> FAULTLINE_DB_PHASE_SHIFT !=
		    !((taken >> FAULTLINE_DB_LAP_SHIFT) & 1))
		return 0;
	__atomic_store_n(&page->ring[taken % FAULTLINE_DB_RING_ENTRIES],
			 (taken >> FAULTLINE_DB_LAP_SHIFT) + 1,
			 __ATOMIC_RELEASE);
	taken++;
	__atomic_store_n(&page->consumer, taken, __ATOMIC_RELEASE);
	return bits & ~(1ULL << FAULTLINE_DB_PHASE_SHIFT);
}

static uint64_t bell(uint64_t type, uint64_t object, uint32_t value)
{
	return type << FAULTLINE_DB_TYPE_SHIFT | object << FAULTLINE_DB_OBJECT_SHIFT |
	       value;
}

static struct ibv_device adapter;

static struct fl_context *open_device(void)
{
	struct fl_context *ctx = calloc(1, sizeof(*ctx));

	/* Also for the processes that this one forks. */
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	page->alive = 1;
	taken = 0;
	next_number = 0x1001;	/* not the first of a table's leaf */
	adapter.transport_type = IBV_TRANSPORT_IB;
	ctx->ibv_ctx.context.device = &adapter;
	ctx->doorbell = page;
	ctx->kick = calloc(1, FAULTLINE_PAGE_SIZE);
	ctx->page_size = sysconf(_SC_PAGESIZE);
	ctx->max_qp_wr = MAX_WR;
	ctx->max_srq_wr = MAX_WR;
	ctx->max_cqe = MAX_CQE;
	ctx->max_sge = MAX_SGE;
	ctx->max_inline = MAX_INLINE;
	pthread_mutex_init(&ctx->qps.lock, NULL);
	return ctx;
}

static void close_device(struct fl_context *ctx)
{
	int i;

	for (i = 0; i < FL_TABLE_SIZE; i++)
		free(ctx->qps.leaf[i]);
	free((void *)ctx->kick);
	munmap(page, sizeof(*page));
	free(ctx);
}

/* A CQ, a QP and perhaps an SRQ, and the device's side of the CQ. */
struct setup {
	struct fl_context *ctx;
	struct fl_pd pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	uint32_t produced;
};

static struct ibv_qp *make_qp(struct setup *s, enum ibv_qp_type type, uint32_t depth)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.srq = s->srq,
		.qp_type = type,
		.cap = {
			.max_send_wr = depth,
			.max_recv_wr = depth,
			.max_send_sge = 2,
			.max_recv_sge = 2,
			.max_inline_data = 40,
		},
	};
	struct ibv_qp *qp = fl_create_qp(&s->pd.ibv_pd, &attr);

	CHECK(qp);
	CHECK(attr.cap.max_send_wr >= depth && attr.cap.max_inline_data >= 40);
	return qp;
}

static struct setup set_up(int cqe, uint32_t srq_depth, uint32_t depth)
{
	struct ibv_srq_init_attr attr = {
		.attr = { .max_wr = srq_depth, .max_sge = 2 },
	};
	struct setup s = { .ctx = open_device() };

	s.pd.ibv_pd.context = &s.ctx->ibv_ctx.context;
	s.cq = fl_create_cq(s.pd.ibv_pd.context, cqe, NULL, 0);
	CHECK(s.cq);
	if (srq_depth) {
		s.srq = fl_create_srq(&s.pd.ibv_pd, &attr);
		CHECK(s.srq && attr.attr.max_wr >= srq_depth);
	}
	s.qp = make_qp(&s, IBV_QPT_RC, depth);
	return s;
}

static void tear_down(struct setup *s)
{
	while (take_doorbell())
		;
	CHECK(!fl_destroy_qp(s->qp));
	if (s->srq)
		CHECK(!fl_destroy_srq(s->srq));
	CHECK(!fl_destroy_cq(s->cq));
	close_device(s->ctx);
}

/* A garbage collector may close the context first: its pages are gone then, and every command fails. */
static void destroying_after_the_context_touches_nothing_of_it(void)
{
	struct setup s = set_up(16, 4, 4);
	struct faultline_doorbell_page *doorbell = s.ctx->doorbell;

	s.ctx->doorbell = NULL;
	pthread_mutex_lock(&s.ctx->qps.lock);
	kernel_error = EBADF;
	CHECK(fl_destroy_qp(s.qp) == EBADF);
	kernel_error = EBADF;
	/* proves: destroy_srq */
	CHECK(fl_destroy_srq(s.srq) == EBADF);
	kernel_error = EBADF;
	/* proves: destroy_cq */
	CHECK(fl_destroy_cq(s.cq) == EBADF);
	pthread_mutex_unlock(&s.ctx->qps.lock);
	s.ctx->doorbell = doorbell;
	tear_down(&s);
}

static void complete(struct setup *s, uint32_t qpn, uint8_t opcode, uint32_t wqe)
{
	struct faultline_cqe *ring = (void *)device_cq;
	struct faultline_cqe *cqe = &ring[s->produced & ((1U << device_depth) - 1)];
	struct faultline_cq_record *record = (void *)(ring + (1U << device_depth));

	CHECK(s->produced - le32toh(record->consumer) < 1U << device_depth);
	memset(cqe, 0, offsetof(struct faultline_cqe, phase));
	cqe->wqe = htole32(wqe);
	cqe->qpn = htole32(qpn);
	cqe->opcode = opcode;
	cqe->byte_len = htole32(wqe ^ 0x5a5a);
	__atomic_store_n(&cqe->phase, fl_phase(s->produced, device_depth),
			 __ATOMIC_RELEASE);
	s->produced++;
}

static int post(struct ibv_qp *qp, uint64_t wr_id, unsigned int flags)
{
	struct ibv_sge sge = { .addr = 0x1000 + wr_id, .length = 8, .lkey = 7 };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = flags,
	};
	struct ibv_send_wr *bad = NULL;
	int ret = fl_post_send(qp, &wr, &bad);

	CHECK(!ret == !bad);
	return ret;
}

static int post_recv(struct setup *s, uint64_t wr_id)
{
	struct ibv_sge sge = { .addr = 0x1000 + wr_id, .length = 8, .lkey = 7 };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad = NULL;
	int ret = s->srq ? fl_post_srq_recv(s->srq, &wr, &bad) :
			   fl_post_recv(s->qp, &wr, &bad);

	CHECK(!ret == !bad);
	return ret;
}

/* Polls one completion and gives its wr_id. */
static uint64_t poll_one(struct setup *s)
{
	struct ibv_wc wc;

	CHECK(fl_poll_cq(s->cq, 1, &wc) == 1);
	return wc.wr_id;
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* Doorbells. */

static void doorbells_carry_their_lap(void)
{
	struct fl_context *ctx = open_device();
	uint32_t i;

	for (i = 1; i <= 5 * FAULTLINE_DB_RING_ENTRIES; i++) {
		CHECK(!take_doorbell());
		fl_doorbell(ctx, FAULTLINE_DB_SQ, 0xabcdef, i);
		CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, 0xabcdef, i));
	}
	CHECK(!*ctx->kick);
	close_device(ctx);
}

static void a_sleeping_device_is_kicked(void)
{
	struct fl_context *ctx = open_device();

	page->asleep = 1;
	fl_doorbell(ctx, FAULTLINE_DB_CQ_ARM, 5, 9);
	CHECK(*ctx->kick == bell(FAULTLINE_DB_CQ_ARM, 5, 9));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_CQ_ARM, 5, 9));
	close_device(ctx);
}

/* A device that pauses, however long, must find a ring without holes. */
static void a_full_ring_is_passed_by(void)
{
	struct fl_context *ctx = open_device();
	uint32_t i;
	double begin;

	for (i = 1; i <= FAULTLINE_DB_RING_ENTRIES; i++)
		fl_doorbell(ctx, FAULTLINE_DB_SQ, 3, i);
	CHECK(!*ctx->kick);
	begin = seconds();
	fl_doorbell(ctx, FAULTLINE_DB_SQ, 3, i);
	CHECK(*ctx->kick == bell(FAULTLINE_DB_SQ, 3, i));
	CHECK(seconds() - begin < 1);
	for (i = 1; i <= FAULTLINE_DB_RING_ENTRIES; i++)
		CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, 3, i));
	CHECK(!take_doorbell());
	for (i = 1000; i < 1000 + FAULTLINE_DB_RING_ENTRIES; i++) {
		fl_doorbell(ctx, FAULTLINE_DB_SQ, 3, i);
		CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, 3, i));
	}
	close_device(ctx);
}

static void a_device_that_is_gone_hangs_nobody(void)
{
	struct setup s = set_up(16, 0, 16);
	struct ibv_wc wc;
	uint32_t i;
	double begin = seconds();

	/* What the kernel puts in place of the page. */
	memset(page, 0, sizeof(*page));
	for (i = 0; i < 2 * FAULTLINE_DB_RING_ENTRIES; i++)
		fl_doorbell(s.ctx, FAULTLINE_DB_SQ, 3, i);
	CHECK(post(s.qp, 1, 0) == EIO);
	CHECK(fl_poll_cq(s.cq, 1, &wc) == -EIO);
	CHECK(!fl_destroy_qp(s.qp));
	CHECK(!fl_destroy_cq(s.cq));
	CHECK(seconds() - begin < 1);
	close_device(s.ctx);
}

#define THREADS 4
#define BELLS 20000

struct ringer {
	struct fl_context ctx;	/* same page, but a kick page of its own */
	uint64_t kick;
	uint32_t object;
	pthread_t thread;
};

static void *ring_many(void *arg)
{
	struct ringer *ringer = arg;
	uint32_t i;

	for (i = 1; i <= BELLS; i++)
		fl_doorbell(&ringer->ctx, FAULTLINE_DB_SQ, ringer->object, i);
	return NULL;
}

/* Threads append at once; the device pauses now and then. The last index of each arrives. */
static void threads_share_a_ring(void)
{
	struct fl_context *ctx = open_device();
	struct ringer *ringers = calloc(THREADS, sizeof(*ringers));
	uint32_t last[THREADS] = {}, i, passes = 0;
	bool done = false;

	for (i = 0; i < THREADS; i++) {
		ringers[i].ctx.doorbell = page;
		ringers[i].ctx.kick = &ringers[i].kick;
		ringers[i].object = i;
		CHECK(!pthread_create(&ringers[i].thread, NULL, ring_many,
				      &ringers[i]));
	}
	while (!done) {
		uint64_t bits;

		while ((bits = take_doorbell())) {
			uint32_t object = bits >> FAULTLINE_DB_OBJECT_SHIFT &
					  FAULTLINE_DB_OBJECT_MASK;

			CHECK(bits >> FAULTLINE_DB_TYPE_SHIFT == FAULTLINE_DB_SQ);
			CHECK(object < THREADS);
			/* In order: a thread rings one after the other. */
			CHECK((uint32_t)bits > last[object]);
			last[object] = bits;
		}
		if (!(++passes % 64))
			usleep(500);
		done = true;
		for (i = 0; i < THREADS; i++) {
			uint32_t kicked = __atomic_load_n(&ringers[i].kick,
							  __ATOMIC_ACQUIRE);

			done &= last[i] == BELLS || kicked == BELLS;
		}
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(ringers[i].thread, NULL);
	while (take_doorbell())
		;
	CHECK(taken == page->producer);
	free(ringers);
	close_device(ctx);
}

/*
 * A process on the same page begins to ring, and is killed after so many
 * instructions. True: it had rung before.
 */
static bool ring_and_die(struct fl_context *ctx, unsigned int instructions)
{
	/* In the page, as it is shared. */
	volatile uint8_t *rung = &page->reserved2[0];
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		fl_doorbell(ctx, FAULTLINE_DB_SQ, 2, 1);
		*rung = 1;
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
	while (instructions-- && !*rung) {
		CHECK(!ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL));
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
	}
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	return *rung;
}

/*
 * Kills a thread that rings a doorbell, after each of its instructions. Later
 * doorbells of other threads must arrive in the ring, and a wait for an empty
 * ring must not wait for the entry of the killed thread.
 */
static void a_ringer_that_is_killed_holds_up_no_other(void)
{
	static const struct {
		unsigned int before;	/* doorbells that were rung */
		bool untaken;		/* and are in the ring still */
		bool early;		/* the device looks before others ring */
	} states[] = {
		{ 0, false, false },
		{ 0, false, true },
		{ FAULTLINE_DB_RING_ENTRIES - 1, false, true },
		{ FAULTLINE_DB_RING_ENTRIES - 1, true, false },
		{ 2 * FAULTLINE_DB_RING_ENTRIES, false, false },
	};
	unsigned int s, i, died = 0;

	for (s = 0; s < sizeof(states) / sizeof(states[0]); s++) {
		bool rung = false;
		unsigned int instructions;

		for (instructions = 0; !rung; instructions++, died++) {
			struct fl_context *ctx = open_device();
			uint64_t bits, last = 0;
			double begin;

			for (i = 0; i < states[s].before; i++) {
				fl_doorbell(ctx, FAULTLINE_DB_SQ, 1, i);
				if (!states[s].untaken)
					CHECK(take_doorbell());
			}
			rung = ring_and_die(ctx, instructions);
			if (states[s].early || states[s].untaken)
				while (take_doorbell())
					;
			fl_doorbell(ctx, FAULTLINE_DB_SQ, 3, 7);
			fl_doorbell(ctx, FAULTLINE_DB_SQ, 3, 8);
			while ((bits = take_doorbell()))
				last = bits;
			CHECK(last == bell(FAULTLINE_DB_SQ, 3, 8));
			CHECK(!*ctx->kick && taken == page->producer);
			begin = seconds();
			fl_doorbell_drain(ctx);
			CHECK(seconds() - begin < 1);
			close_device(ctx);
		}
	}
	/* Among them those between any two accesses to the ring. */
	CHECK(died > 5 * 10);
}

static bool device_looked;

static void *look_late(void *arg)
{
	usleep(20000);
	__atomic_store_n(&device_looked, true, __ATOMIC_RELEASE);
	CHECK(take_doorbell());
	return NULL;
}

/* What a process that is killed has stored counts as rung for who waits until the ring is empty. */
static void draining_waits_for_the_doorbells_of_the_dead(void)
{
	struct fl_context *ctx = open_device();
	pthread_t device;

	fl_doorbell(ctx, FAULTLINE_DB_SQ, 1, 1);
	CHECK(page->producer == 1);
	page->producer = 0;
	CHECK(!pthread_create(&device, NULL, look_late, NULL));
	fl_doorbell_drain(ctx);
	CHECK(__atomic_load_n(&device_looked, __ATOMIC_ACQUIRE));
	CHECK(page->producer == 1 && page->consumer == 1);
	pthread_join(device, NULL);
	close_device(ctx);
}

/* Send queue. */

static void sends_stand_in_the_ring(void)
{
	struct setup s = set_up(64, 0, 4);
	struct fl_wq *sq = &to_fl_qp(s.qp)->sq;
	struct ibv_sge sge[3] = {
		{ .addr = 0x123456789abc, .length = 100, .lkey = 0x77 },
		{ .addr = 0x42, .length = 0, .lkey = 0x78 },
	};
	struct ibv_send_wr wr[2] = {
		{
			.wr_id = 1,
			.next = &wr[1],
			.sg_list = sge,
			.num_sge = 2,
			.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
			.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
			.imm_data = htobe32(0x01020304),
			.wr.rdma = { .remote_addr = 0xfeedULL << 32, .rkey = 0x99 },
		},
		{
			.wr_id = 2,
			.opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
			.sg_list = sge,
			.num_sge = 1,
			.send_flags = IBV_SEND_SOLICITED,
			.wr.atomic = {
				.remote_addr = 0x88,
				.rkey = 0x9a,
				.compare_add = 5,
				.swap = 6,
			},
		},
	};
	struct ibv_send_wr *bad;
	struct faultline_sq_wqe *wqe = fl_wq_entry(sq, 0);
	struct faultline_sge *to = (void *)((uint8_t *)wqe + FAULTLINE_SQ_WQE_DATA);

	CHECK(!fl_post_send(s.qp, wr, &bad));
	/* One doorbell for both. */
	/* proves: post_send */
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, s.qp->qp_num, 2));
	CHECK(!take_doorbell());
	/* proves: IBV_WR_RDMA_WRITE_WITH_IMM */
	CHECK(wqe->opcode == FAULTLINE_WR_WRITE_IMM && wqe->num_sge == 2);
	/* proves: IBV_SEND_FENCE */
	CHECK(wqe->flags == (FAULTLINE_WR_FLAG_SIGNALED | FAULTLINE_WR_FLAG_FENCE));
	CHECK(!memcmp(&wqe->imm, "\1\2\3\4", 4));
	CHECK(le64toh(wqe->remote_addr) == 0xfeedULL << 32 &&
	      le32toh(wqe->rkey) == 0x99 && !wqe->inline_len);
	CHECK(le64toh(to[0].addr) == 0x123456789abc && le32toh(to[0].length) == 100 &&
	      le32toh(to[0].lkey) == 0x77 && !to[1].length);
	wqe = fl_wq_entry(sq, 1);
	CHECK(wqe->opcode == FAULTLINE_WR_COMP_SWAP &&
	      wqe->flags == FAULTLINE_WR_FLAG_SOLICITED);
	CHECK(le64toh(wqe->compare_add) == 5 && le64toh(wqe->swap) == 6);

	/* The first of a list goes, the second is refused and named. */
	wr[1].num_sge = 3;
	CHECK(fl_post_send(s.qp, wr, &bad) == EINVAL && bad == &wr[1]);
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, s.qp->qp_num, 3));
	tear_down(&s);
}

static void a_full_send_queue_refuses(void)
{
	struct setup s = set_up(64, 0, 4);
	uint32_t i;

	for (i = 0; i < 4; i++)
		CHECK(!post(s.qp, i, 0));
	CHECK(post(s.qp, 9, 0) == ENOMEM);
	/* A completion stands for all before it. */
	complete(&s, s.qp->qp_num, FAULTLINE_WC_SEND, 2);
	CHECK(poll_one(&s) == 2);
	for (i = 0; i < 3; i++)
		CHECK(!post(s.qp, 10 + i, 0));
	CHECK(post(s.qp, 9, 0) == ENOMEM);
	tear_down(&s);
}

/* An iWARP adapter has no messages for some operations, and connections come from elsewhere. */
static void iwarp_has_its_own_operations(void)
{
	struct setup s = set_up(64, 0, 4);
	struct ibv_qp_init_attr attr = {
		.send_cq = s.cq, .recv_cq = s.cq, .qp_type = IBV_QPT_UD, .cap = { .max_send_wr = 1, .max_recv_wr = 1 },
	};
	uint64_t zero = 0;
	struct ibv_sge sge[2] = { { .addr = (uintptr_t)&zero, .length = 8 } };
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 2, .opcode = IBV_WR_RDMA_READ }, *bad;
	struct ibv_qp *roce = s.qp;

	adapter.transport_type = IBV_TRANSPORT_IWARP;
	s.qp = make_qp(&s, IBV_QPT_RC, 4);
	CHECK(!fl_create_qp(&s.pd.ibv_pd, &attr) && errno == EOPNOTSUPP);
	/* Nothing tells the library that the connection is established. */
	s.qp->state = IBV_QPS_RESET;
	CHECK(post(s.qp, 1, 0) == EINVAL);
	s.qp->state = IBV_QPS_INIT;
	CHECK(!post(s.qp, 1, 0));
	CHECK(fl_post_send(s.qp, &wr, &bad) == EINVAL);
	CHECK(!fl_post_send(roce, &wr, &bad));
	wr.num_sge = 1;
	CHECK(!fl_post_send(s.qp, &wr, &bad));
	wr.opcode = IBV_WR_ATOMIC_WRITE;
	wr.send_flags = IBV_SEND_INLINE;
	CHECK(fl_post_send(s.qp, &wr, &bad) == EINVAL);
	CHECK(!fl_post_send(roce, &wr, &bad));
	while (take_doorbell())
		;
	CHECK(!fl_destroy_qp(roce));
	tear_down(&s);
}

static void inline_data_is_copied(void)
{
	struct setup s = set_up(16, 0, 4);
	struct fl_qp *qp = to_fl_qp(s.qp);
	uint8_t data[MAX_INLINE + 1];
	struct ibv_sge sge[2] = {
		{ .addr = (uintptr_t)data, .length = 3 },
		{ .addr = (uintptr_t)data + 3, .length = 30 },
	};
	struct ibv_send_wr wr = {
		.sg_list = sge,
		.num_sge = 2,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE,
	};
	struct faultline_sq_wqe *wqe = fl_wq_entry(&qp->sq, 0);
	struct ibv_send_wr *bad;
	size_t i;

	for (i = 0; i < sizeof(data); i++)
		data[i] = i * 7 + 1;
	CHECK(!fl_post_send(s.qp, &wr, &bad));
	CHECK(le32toh(wqe->inline_len) == 33 && !wqe->num_sge &&
	      wqe->flags == FAULTLINE_WR_FLAG_INLINE);
	/* proves: IBV_SEND_INLINE */
	CHECK(!memcmp((uint8_t *)wqe + FAULTLINE_SQ_WQE_DATA, data, 33));
	sge[1].length = qp->max_inline - 2;
	CHECK(fl_post_send(s.qp, &wr, &bad) == EINVAL);
	/* The sum must not wrap. */
	sge[1].length = UINT32_MAX;
	CHECK(fl_post_send(s.qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_RDMA_READ;
	sge[1].length = 1;
	CHECK(fl_post_send(s.qp, &wr, &bad) == EINVAL);
	tear_down(&s);
}

/* What IBTA 10.8.2 wants refused at once. */
static void posts_before_their_state_are_refused(void)
{
	struct setup s = set_up(16, 0, 4);

	s.qp->state = IBV_QPS_RESET;
	CHECK(post(s.qp, 1, 0) == EINVAL);
	CHECK(post_recv(&s, 1) == EINVAL);
	s.qp->state = IBV_QPS_INIT;
	CHECK(post(s.qp, 1, 0) == EINVAL);
	CHECK(!post_recv(&s, 1));
	s.qp->state = IBV_QPS_RTR;
	CHECK(post(s.qp, 1, 0) == EINVAL);
	s.qp->state = IBV_QPS_ERR;
	CHECK(!post(s.qp, 1, 0));
	CHECK(!post_recv(&s, 2));
	tear_down(&s);
}

static void builders_make_requests(void)
{
	struct setup s = set_up(16, 0, 1);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = s.cq,
		.recv_cq = s.cq,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ,
		.pd = &s.pd.ibv_pd,
		.cap = { .max_send_wr = 2, .max_send_sge = 2, .max_inline_data = 16 },
	};
	struct ibv_qp *qp = fl_create_qp_ex(s.pd.ibv_pd.context, &attr);
	struct ibv_qp_ex *ex = &to_fl_qp(qp)->verbs_qp.qp_ex;
	char text[] = "abcdefg";
	struct ibv_data_buf bufs[2] = { { text, 3 }, { text + 3, 4 } };
	struct ibv_sge sges[3] = {};
	struct faultline_sq_wqe *wqe = fl_wq_entry(&to_fl_qp(qp)->sq, 0);

	/* proves: IBV_QP_INIT_ATTR_SEND_OPS_FLAGS */
	CHECK(ex->wr_send && ex->wr_rdma_read && !ex->wr_rdma_write);
	ex->wr_start(ex);
	ex->wr_id = 4;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_send(ex);
	ex->wr_set_inline_data_list(ex, 2, bufs);
	ex->wr_id = 5;
	ex->wr_rdma_read(ex, 0x11, 0x22);
	ex->wr_set_sge(ex, 1, 2, 3);
	CHECK(!take_doorbell());
	CHECK(!ex->wr_complete(ex));
	/* proves: wr_start, wr_complete */
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, qp->qp_num, 2));
	/* proves: wr_set_inline_data_list */
	CHECK(le32toh(wqe->inline_len) == 7 &&
	      !memcmp((uint8_t *)wqe + FAULTLINE_SQ_WQE_DATA, text, 7));
	/* No room: nothing is posted. */
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge(ex, 1, 2, 3);
	CHECK(ex->wr_complete(ex) == ENOMEM);
	complete(&s, qp->qp_num, FAULTLINE_WC_RDMA_READ, 1);
	CHECK(poll_one(&s) == 5);
	/* An error in one of several, and an abort, leave nothing behind. */
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge_list(ex, 3, sges);
	ex->wr_send(ex);
	ex->wr_set_sge(ex, 1, 2, 3);
	CHECK(ex->wr_complete(ex) == EINVAL);
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_abort(ex);
	/* proves: wr_abort */
	CHECK(!take_doorbell());
	qp->state = IBV_QPS_RTR;
	ex->wr_start(ex);
	ex->wr_send(ex);
	CHECK(ex->wr_complete(ex) == EINVAL);
	qp->state = IBV_QPS_RTS;
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_inline_data(ex, text + 1, 5);
	CHECK(!ex->wr_complete(ex));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, qp->qp_num, 3));
	/* proves: wr_set_inline_data */
	CHECK(le32toh(wqe->inline_len) == 5 &&
	      !memcmp((uint8_t *)wqe + FAULTLINE_SQ_WQE_DATA, text + 1, 5));
	CHECK(!fl_destroy_qp(qp));
	tear_down(&s);
}

/* A key is a number, also where immediate data has the bytes of the wire. */
static void invalidations_are_built(void)
{
	struct setup s = set_up(16, 0, 1);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = s.cq,
		.recv_cq = s.cq,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV,
		.pd = &s.pd.ibv_pd,
		.cap = { .max_send_wr = 2, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = fl_create_qp_ex(s.pd.ibv_pd.context, &attr);
	struct ibv_qp_ex *ex = &to_fl_qp(qp)->verbs_qp.qp_ex;
	struct faultline_sq_wqe *wqe = fl_wq_entry(&to_fl_qp(qp)->sq, 0);
	struct faultline_sge *to = (void *)((uint8_t *)wqe + FAULTLINE_SQ_WQE_DATA);

	CHECK(ex->wr_send_inv && ex->wr_local_inv && !ex->wr_send);
	ex->wr_start(ex);
	ex->wr_id = 4;
	ex->wr_flags = IBV_SEND_FENCE;
	ex->wr_send_inv(ex, 0x112233);
	ex->wr_set_sge(ex, 1, 2, 3);
	ex->wr_id = 5;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_local_inv(ex, 0x445566);
	CHECK(!ex->wr_complete(ex));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, qp->qp_num, 2));
	/* proves: wr_send_inv, IBV_QP_EX_WITH_SEND_WITH_INV */
	CHECK(wqe->opcode == FAULTLINE_WR_SEND_INV && wqe->flags == FAULTLINE_WR_FLAG_FENCE);
	CHECK(le32toh(wqe->imm) == 0x112233 && wqe->num_sge == 1 && le32toh(to->lkey) == 1);
	wqe = fl_wq_entry(&to_fl_qp(qp)->sq, 1);
	/* proves: wr_local_inv, IBV_QP_EX_WITH_LOCAL_INV */
	CHECK(wqe->opcode == FAULTLINE_WR_LOCAL_INV && !wqe->num_sge);
	CHECK(le32toh(wqe->rkey) == 0x445566 && wqe->flags == FAULTLINE_WR_FLAG_SIGNALED);
	CHECK(!fl_destroy_qp(qp));
	tear_down(&s);
}

/* A packet that is to be cut: its headers, then at the next multiple of 16 where the rest is. */
static void large_packets_bring_their_headers(void)
{
	struct setup s = set_up(16, 0, 1);
	const struct ibv_qp_init_attr_ex good = {
		.send_cq = s.cq,
		.recv_cq = s.cq,
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
			     IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
		.max_tso_header = 66,
		.pd = &s.pd.ibv_pd,
		.cap = { .max_send_wr = 8, .max_send_sge = 2 },
	};
	struct ibv_qp_init_attr_ex attr = good;
	struct ibv_context *context = s.pd.ibv_pd.context;
	struct ibv_qp *qp = fl_create_qp_ex(context, &attr);
	struct ibv_qp_ex *ex = &to_fl_qp(qp)->verbs_qp.qp_ex;
	uint8_t header[67] = { 0xaa, [65] = 0xbb };
	struct ibv_sge sges[2] = { { 0x1000, 5000, 7 }, { 0x9000, 6000, 8 } };
	struct ibv_send_wr wr = {
		.wr_id = 5,
		.opcode = IBV_WR_TSO,
		.sg_list = sges,
		.num_sge = 2,
		.tso = { .hdr = header, .hdr_sz = 66, .mss = 1400 },
	};
	struct ibv_send_wr *bad;
	int i;

	ex->wr_start(ex);
	ex->wr_id = 4;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
	ex->wr_send_tso(ex, header, 66, 1400);
	ex->wr_set_sge_list(ex, 2, sges);
	CHECK(!ex->wr_complete(ex));
	CHECK(!fl_post_send(qp, &wr, &bad));
	for (i = 0; i < 2; i++) {
		uint8_t *entry = fl_wq_entry(&to_fl_qp(qp)->sq, i);
		struct faultline_sq_wqe *wqe = (void *)entry;
		struct faultline_raw_seg *seg = (void *)&wqe->compare_add;
		struct faultline_sge *to = (void *)(entry + FAULTLINE_SQ_WQE_DATA + 80);

		/* proves: IBV_WR_TSO, wr_send_tso, IBV_QP_EX_WITH_TSO */
		CHECK(wqe->opcode == FAULTLINE_WR_RAW && wqe->num_sge == 2);
		CHECK(wqe->flags & FAULTLINE_WR_FLAG_INLINE);
		CHECK(le32toh(wqe->inline_len) == 66);
		CHECK(!memcmp(entry + FAULTLINE_SQ_WQE_DATA, header, 66));
		CHECK(le16toh(seg->mss) == 1400 && le16toh(seg->header_len) == 66);
		CHECK(le64toh(to[1].addr) == 0x9000 && le32toh(to[1].lkey) == 8);
	}
	complete(&s, qp->qp_num, FAULTLINE_WC_TSO, 1);
	/* proves: IBV_WC_TSO */
	CHECK(poll_one(&s) == 5);
	/* More headers than the queue was made for, and none; nothing to cut. */
	wr.tso.hdr_sz = 67;
	CHECK(fl_post_send(qp, &wr, &bad) == EINVAL);
	wr.tso.hdr_sz = 0;
	CHECK(fl_post_send(qp, &wr, &bad) == EINVAL);
	wr.tso.hdr_sz = 66;
	wr.tso.mss = 0;
	CHECK(fl_post_send(qp, &wr, &bad) == EINVAL);
	CHECK(!fl_destroy_qp(qp));
	attr = good;
	attr.max_tso_header = FAULTLINE_MAX_RAW_HEADERS + 1;
	/* proves: IBV_QP_INIT_ATTR_MAX_TSO_HEADER, tso_caps */
	CHECK(!fl_create_qp_ex(context, &attr) && errno == EINVAL);
	attr = good;
	attr.qp_type = IBV_QPT_UD;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(!fl_create_qp_ex(context, &attr) && errno == EINVAL);
	tear_down(&s);
}

/* Receive queues. */

static void receives_tell_by_the_record(void)
{
	struct setup s = set_up(16, 0, 4);
	struct fl_wq *rq = &to_fl_qp(s.qp)->rq;
	struct faultline_wq_record *record = fl_wq_record(&rq->ring);
	uint32_t i;

	for (i = 0; i < 4; i++)
		CHECK(!post_recv(&s, 100 + i));
	CHECK(post_recv(&s, 9) == ENOMEM);
	/* proves: post_recv */
	CHECK(le32toh(record->producer) == 4);
	CHECK(!take_doorbell());
	complete(&s, s.qp->qp_num, FAULTLINE_WC_RECV, 0);
	CHECK(poll_one(&s) == 100);
	/* A QP in error asks for doorbells. */
	record->notify = htole32(1);
	CHECK(!post_recv(&s, 104));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_RQ, s.qp->qp_num, 5));
	tear_down(&s);
}

static uint32_t tag_in_slot(struct setup *s, uint32_t index)
{
	struct faultline_rq_wqe *wqe = fl_wq_entry(&to_fl_srq(s->srq)->wq, index);

	return le32toh(wqe->tag);
}

/* Requests come back in any order; nothing posted is overwritten, nothing is lost. */
static void srq_tags_come_back_in_any_order(void)
{
	struct setup s = set_up(16, 4, 4);
	uint32_t tags[4], i, slot = 4;

	for (i = 0; i < 4; i++) {
		CHECK(!post_recv(&s, 200 + i));
		tags[i] = tag_in_slot(&s, i);
	}
	CHECK(post_recv(&s, 9) == ENOMEM);
	for (i = 0; i < 40; i++) {
		uint32_t which = (i * 3 + 1) % 4;	/* the device took all four */
		uint64_t id = 200 + which + (i / 4) * 1000;

		complete(&s, s.qp->qp_num, FAULTLINE_WC_RECV, tags[which]);
		/* proves: post_srq_recv */
		CHECK(poll_one(&s) == id);
		CHECK(!post_recv(&s, 200 + which + (i / 4 + 1) * 1000));
		CHECK(post_recv(&s, 9) == ENOMEM);
		tags[which] = tag_in_slot(&s, slot++);
	}
	tear_down(&s);
}

/* What is posted comes back once, with its id, however often the ring changes. */
static void a_resized_srq_keeps_its_requests(void)
{
	const uint32_t depths[] = { 8, 2, 16, 1, 4, 32, 4 };
	struct setup s = set_up(64, 4, 4);
	uint64_t posted = 0, completed = 0;
	uint32_t depth = 4, round;

	srq_taken = 0;
	for (round = 0; round < 70; round++) {
		struct ibv_srq_attr attr = { .max_wr = depths[round % 7] };
		int ret;

		while (posted - completed < depth)
			CHECK(!post_recv(&s, posted++));
		CHECK(post_recv(&s, 9) == ENOMEM);
		/* One of them stays posted, where that is more than none. */
		while (posted - completed > round % 3) {
			uint32_t tag = tag_in_slot(&s, srq_taken++);

			complete(&s, s.qp->qp_num, FAULTLINE_WC_RECV, tag);
			/* proves: modify_srq */
			CHECK(poll_one(&s) == completed++);
		}
		ret = fl_modify_srq(s.srq, &attr, IBV_SRQ_MAX_WR);
		if (posted - completed > attr.max_wr) {
			CHECK(ret == EINVAL);
		} else {
			CHECK(!ret);
			depth = attr.max_wr;
		}
	}
	CHECK(fl_modify_srq(s.srq, &(struct ibv_srq_attr) { .max_wr = MAX_WR + 1 },
			    IBV_SRQ_MAX_WR) == EINVAL);
	CHECK(fl_modify_srq(s.srq, &(struct ibv_srq_attr) {}, IBV_SRQ_MAX_WR) == EINVAL);
	kernel_error = EIO;
	CHECK(fl_modify_srq(s.srq, &(struct ibv_srq_attr) { .max_wr = 64 },
			    IBV_SRQ_MAX_WR) == EIO);
	while (posted - completed < depth)
		CHECK(!post_recv(&s, posted++));
	CHECK(post_recv(&s, 9) == ENOMEM);
	tear_down(&s);
}

/* A device that completes nonsense harms no memory but its own. */
static void wild_srq_tags_do_no_harm(void)
{
	struct setup s = set_up(16, 4, 4);
	uint32_t i;

	CHECK(!post_recv(&s, 1));
	for (i = 0; i < 12; i++)
		complete(&s, s.qp->qp_num, FAULTLINE_WC_RECV, 0xdead0000 + i);
	for (i = 0; i < 6; i++)
		poll_one(&s);
	CHECK(!fl_destroy_qp(s.qp));	/* cleans the other six */
	s.qp = make_qp(&s, IBV_QPT_RC, 4);
	for (i = 0; i < 4; i++)
		CHECK(!post_recv(&s, i));
	CHECK(post_recv(&s, 9) == ENOMEM);
	tear_down(&s);
}

/* Completion queues. */

static void completions_go_round(void)
{
	struct setup s = set_up(16, 0, 64);
	struct ibv_wc wc[64];
	uint32_t i, posted = 0, polled = 0;
	struct faultline_cq_record *record =
		(void *)(device_cq + (64U << device_depth));

	for (i = 0; i < 200; i++) {
		uint32_t burst = i % 16 + 1, j;
		int n;

		for (j = 0; j < burst; j++) {
			CHECK(!post(s.qp, posted, IBV_SEND_SIGNALED));
			CHECK(take_doorbell());
			complete(&s, s.qp->qp_num, FAULTLINE_WC_SEND, posted++);
		}
		n = fl_poll_cq(s.cq, 64, wc);
		CHECK(n == burst);
		for (j = 0; j < burst; j++, polled++) {
			/* proves: poll_cq */
			CHECK(wc[j].wr_id == polled);
			CHECK(wc[j].byte_len == (polled ^ 0x5a5a));
			CHECK(wc[j].qp_num == s.qp->qp_num);
			CHECK(wc[j].status == IBV_WC_SUCCESS);
		}
		CHECK(le32toh(record->consumer) == polled);
		CHECK(!fl_poll_cq(s.cq, 64, wc));
	}
	tear_down(&s);
}

static void a_destroyed_qp_takes_its_completions_along(void)
{
	struct setup s = set_up(16, 0, 64);
	struct ibv_qp *other = make_qp(&s, IBV_QPT_RC, 64);
	uint32_t round, i, mine = 0, theirs = 0, kept = 0;
	struct ibv_wc wc;

	for (round = 0; round < 5; round++) {
		/* Eleven entries of two QPs, so that they wrap. */
		for (i = 0; i < 11; i++) {
			bool is_mine = i % 3 != 1;

			CHECK(!post(is_mine ? s.qp : other, 500 + (is_mine ? mine : theirs),
				    IBV_SEND_SIGNALED));
			CHECK(take_doorbell());
			complete(&s, is_mine ? s.qp->qp_num : other->qp_num,
				 FAULTLINE_WC_SEND, is_mine ? mine++ : theirs++);
		}
		CHECK(!fl_destroy_qp(other));
		other = make_qp(&s, IBV_QPT_RC, 64);
		theirs = 0;
		while (fl_poll_cq(s.cq, 1, &wc) == 1) {
			CHECK(wc.qp_num == s.qp->qp_num);
			CHECK(wc.wr_id == 500 + kept++);
		}
		/* proves: destroy_qp */
		CHECK(kept == mine);
	}
	CHECK(!fl_destroy_qp(other));
	tear_down(&s);
}

static struct {
	struct setup *s;
	uint32_t number;
	struct ibv_qp *qp;
	pthread_t thread;
} successor;

/* The device gives the number to another thread's queue pair at once. */
static void *create_successor(void *arg)
{
	next_number = successor.number;
	successor.qp = make_qp(successor.s, IBV_QPT_RC, 4);
	successor.qp->qp_num = successor.number;
	CHECK(!post(successor.qp, 77, IBV_SEND_SIGNALED));
	complete(successor.s, successor.number, FAULTLINE_WC_SEND, 0);
	return NULL;
}

static void begin_successor(void)
{
	while_destroyed = NULL;
	CHECK(!pthread_create(&successor.thread, NULL, create_successor, NULL));
	usleep(50000);
}

static void a_number_is_taken_over_without_its_completions(void)
{
	struct setup s = set_up(16, 0, 4);
	struct ibv_qp *old = make_qp(&s, IBV_QPT_RC, 4);
	struct ibv_wc wc[4];

	CHECK(!post(old, 11, IBV_SEND_SIGNALED));
	complete(&s, old->qp_num, FAULTLINE_WC_SEND, 0);
	successor.s = &s;
	successor.number = old->qp_num;
	while_destroyed = begin_successor;
	CHECK(!fl_destroy_qp(old));
	CHECK(!pthread_join(successor.thread, NULL));
	CHECK(fl_poll_cq(s.cq, 4, wc) == 1);
	CHECK(wc[0].wr_id == 77 && wc[0].qp_num == successor.number);
	CHECK(!fl_destroy_qp(successor.qp));
	while (take_doorbell())
		;
	tear_down(&s);
}

static void an_extended_cq_reads_the_same(void)
{
	struct setup s = set_up(16, 0, 4);
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 3,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG |
			    IBV_WC_EX_WITH_QP_NUM |
			    IBV_WC_EX_WITH_SRC_QP | IBV_WC_EX_WITH_SL |
			    IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_DLID_PATH_BITS,
	};
	struct ibv_cq_ex *cq = fl_create_cq_ex(s.pd.ibv_pd.context, &attr);
	struct ibv_poll_cq_attr poll = {};
	struct setup ex = { .ctx = s.ctx, .pd = s.pd, .cq = ibv_cq_ex_to_cq(cq) };
	struct faultline_cqe *ring = (void *)device_cq;

	CHECK(!cq->read_tm_info && cq->read_imm_data);
	ex.qp = make_qp(&ex, IBV_QPT_RC, 4);
	CHECK(cq->start_poll(cq, &poll) == ENOENT);
	CHECK(!post_recv(&ex, 31) && !post_recv(&ex, 32));
	complete(&ex, ex.qp->qp_num, FAULTLINE_WC_RECV, 0);
	complete(&ex, ex.qp->qp_num, FAULTLINE_WC_RECV_RDMA_WITH_IMM, 1);
	ring[0].flags = FAULTLINE_CQE_INVALIDATE;
	ring[0].imm = htole32(0x778899);
	ring[1].flags = FAULTLINE_CQE_IMM | FAULTLINE_CQE_GRH | FAULTLINE_CQE_CSUM_OK;
	ring[1].imm = (__force __le32)htobe32(0x0a0b0c0d);
	ring[1].timestamp = htole64(123456789);
	ring[1].vlan_tci = htole16(0x6123);
	ring[1].flow_tag = htole32(0xabcdef);
	ring[1].src_qp = htole32(0x112233);
	ring[1].sl = 5;
	ring[1].status = FAULTLINE_WC_STATUS_LOC_LEN_ERR;
	ring[1].vendor_err = FAULTLINE_VENDOR_ERR_LENGTH;
	/* proves: start_poll */
	CHECK(!cq->start_poll(cq, &poll));
	CHECK(cq->wr_id == 31 && cq->status == IBV_WC_SUCCESS);
	/* proves: read_opcode */
	CHECK(cq->read_opcode(cq) == IBV_WC_RECV);
	/* proves: read_wc_flags, IBV_WC_WITH_INV */
	CHECK(cq->read_wc_flags(cq) == IBV_WC_WITH_INV);
	CHECK(ibv_wc_read_invalidated_rkey(cq) == 0x778899);
	/* proves: read_byte_len, IBV_WC_EX_WITH_BYTE_LEN */
	CHECK(cq->read_byte_len(cq) == 0x5a5a);
	/* proves: read_qp_num, IBV_WC_EX_WITH_QP_NUM */
	CHECK(cq->read_qp_num(cq) == ex.qp->qp_num);
	/* proves: next_poll */
	CHECK(!cq->next_poll(cq));
	CHECK(cq->wr_id == 32 && cq->status == IBV_WC_LOC_LEN_ERR);
	/* proves: IBV_WC_RECV_RDMA_WITH_IMM */
	CHECK(cq->read_opcode(cq) == IBV_WC_RECV_RDMA_WITH_IMM);
	/* proves: IBV_WC_WITH_IMM, IBV_WC_IP_CSUM_OK */
	CHECK(cq->read_wc_flags(cq) ==
	      (IBV_WC_WITH_IMM | IBV_WC_GRH | IBV_WC_IP_CSUM_OK));
	/* proves: read_imm_data, IBV_WC_EX_WITH_IMM */
	CHECK(be32toh(cq->read_imm_data(cq)) == 0x0a0b0c0d);
	/* proves: IBV_WC_EX_WITH_COMPLETION_TIMESTAMP */
	CHECK(cq->read_completion_ts(cq) == 123456789);
	/* proves: read_cvlan, read_flow_tag, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG */
	CHECK(cq->read_cvlan(cq) == 0x6123 && cq->read_flow_tag(cq) == 0xabcdef);
	/* proves: read_src_qp, read_sl, IBV_WC_EX_WITH_SRC_QP, IBV_WC_EX_WITH_SL */
	CHECK(cq->read_src_qp(cq) == 0x112233 && cq->read_sl(cq) == 5);
	/* proves: read_slid, read_dlid_path_bits, IBV_WC_EX_WITH_SLID */
	/* proves: IBV_WC_EX_WITH_DLID_PATH_BITS */
	CHECK(!cq->read_slid(cq) && !cq->read_dlid_path_bits(cq));
	/* proves: read_vendor_err */
	CHECK(cq->read_vendor_err(cq) == FAULTLINE_VENDOR_ERR_LENGTH);
	CHECK(cq->next_poll(cq) == ENOENT);
	cq->end_poll(cq);
	/* The lock is free again. */
	/* proves: end_poll */
	CHECK(cq->start_poll(cq, &poll) == ENOENT);
	CHECK(!fl_destroy_qp(ex.qp));
	CHECK(!fl_destroy_cq(ex.cq));
	tear_down(&s);
}

static void a_datagram_tells_its_packet_type(void)
{
	struct setup s = set_up(16, 0, 4);
	struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_SL };
	struct ibv_cq_ex *cq = fl_create_cq_ex(s.pd.ibv_pd.context, &attr);
	struct ibv_poll_cq_attr poll = {};
	struct setup ex = { .ctx = s.ctx, .pd = s.pd, .cq = ibv_cq_ex_to_cq(cq) };
	struct faultline_cqe *ring = (void *)device_cq;
	struct ibv_wc wc;
	int i;

	ex.qp = make_qp(&ex, IBV_QPT_UD, 4);
	for (i = 0; i < 4; i++) {
		CHECK(!post_recv(&ex, i));
		complete(&ex, ex.qp->qp_num, FAULTLINE_WC_RECV, i);
		ring[i].flags = FAULTLINE_CQE_GRH;
		ring[i].ip_version = i & 1 ? 6 : 4;
		/* The priority of a VLAN tag is not what programs look for here. */
		ring[i].sl = 5;
	}
	CHECK(fl_poll_cq(ex.cq, 1, &wc) == 1 && wc.sl == 10);
	CHECK(fl_poll_cq(ex.cq, 1, &wc) == 1 && wc.sl == 9);
	/* proves: IBV_WC_EX_WITH_SL */
	CHECK(!cq->start_poll(cq, &poll) && cq->read_sl(cq) == 10);
	CHECK(!cq->next_poll(cq) && cq->read_sl(cq) == 9);
	cq->end_poll(cq);
	CHECK(!fl_destroy_qp(ex.qp));
	CHECK(!fl_destroy_cq(ex.cq));
	tear_down(&s);
}

static void *drain_slowly(void *arg)
{
	usleep(20000);
	while (take_doorbell())
		;
	return NULL;
}

/* Starts a device that looks at doorbells only after a while. */
static pthread_t late_device(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, drain_slowly, NULL));
	return thread;
}

static void a_resized_cq_keeps_its_completions(void)
{
	struct setup s = set_up(16, 0, 64);
	uint32_t i, posted = 0, polled = 0;
	pthread_t device;

	for (i = 0; i < 30; i++) {
		CHECK(!post(s.qp, posted, IBV_SEND_SIGNALED));
		complete(&s, s.qp->qp_num, FAULTLINE_WC_SEND, posted++);
		if (i < 20)
			CHECK(poll_one(&s) == polled++);
	}
	CHECK(!fl_req_notify_cq(s.cq, 0));
	/* Its old index means something else afterwards: the device must have seen it before. */
	device = late_device();
	CHECK(!fl_resize_cq(s.cq, 100));
	CHECK(ring_was_drained);
	pthread_join(device, NULL);
	/* proves: resize_cq */
	CHECK(s.cq->cqe == 128);
	s.produced = posted - polled;
	while (polled < posted)
		CHECK(poll_one(&s) == polled++);
	for (i = 0; i < 300; i++) {
		CHECK(!post(s.qp, posted, IBV_SEND_SIGNALED));
		CHECK(take_doorbell());
		complete(&s, s.qp->qp_num, FAULTLINE_WC_SEND, posted++);
		CHECK(poll_one(&s) == polled++);
	}
	/* Too small for what is in it. */
	kernel_error = EBUSY;
	CHECK(fl_resize_cq(s.cq, 1) == EINVAL);
	CHECK(!fl_resize_cq(s.cq, 1));
	CHECK(s.cq->cqe >= 16);
	CHECK(fl_resize_cq(s.cq, 0) == EINVAL);
	CHECK(fl_resize_cq(s.cq, MAX_CQE + 1) == EINVAL);
	tear_down(&s);
}

/* An index that is rung late would count as new after a reset. */
/* Batches: wr_start ... wr_complete, start_poll ... end_poll. */

/* Queues with readers and builders, in a domain and with these flags. */
struct batches {
	struct setup s;
	struct ibv_pd *pd;
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
};

static struct ibv_qp *make_built_qp(struct batches *b)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(b->cq),
		.recv_cq = ibv_cq_ex_to_cq(b->cq),
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
		.pd = b->pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = fl_create_qp_ex(b->pd->context, &attr);

	CHECK(qp);
	return qp;
}

static struct batches make_batches(struct ibv_pd *parent, uint32_t flags, struct setup *s)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 16,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS |
			     (parent ? IBV_CQ_INIT_ATTR_MASK_PD : 0),
		.flags = flags,
		.parent_domain = parent,
	};
	struct batches b = { .s = *s, .pd = parent ? parent : &s->pd.ibv_pd };

	b.cq = fl_create_cq_ex(b.pd->context, &attr);
	CHECK(b.cq);
	b.s.cq = ibv_cq_ex_to_cq(b.cq);
	b.s.produced = 0;
	b.qp = make_built_qp(&b);
	b.ex = &to_fl_qp(b.qp)->verbs_qp.qp_ex;
	return b;
}

/* Within start_poll ... end_poll. */
static void call_verbs_in_a_poll(struct batches *b)
{
	struct faultline_cq_record *record;
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_poll_cq_attr poll = {};
	struct ibv_qp *other = make_built_qp(b);
	struct ibv_wc wc;
	int i;

	for (i = 0; i < 4; i++)
		CHECK(!post(b->qp, 40 + i, IBV_SEND_SIGNALED));
	CHECK(!post(other, 50, IBV_SEND_SIGNALED) && !post(other, 51, IBV_SEND_SIGNALED));
	while (take_doorbell())
		;
	complete(&b->s, b->qp->qp_num, FAULTLINE_WC_SEND, 0);
	complete(&b->s, other->qp_num, FAULTLINE_WC_SEND, 0);
	complete(&b->s, b->qp->qp_num, FAULTLINE_WC_SEND, 1);
	complete(&b->s, b->qp->qp_num, FAULTLINE_WC_SEND, 2);
	complete(&b->s, other->qp_num, FAULTLINE_WC_SEND, 1);
	complete(&b->s, b->qp->qp_num, FAULTLINE_WC_SEND, 3);
	CHECK(!b->cq->start_poll(b->cq, &poll) && b->cq->wr_id == 40);
	CHECK(b->cq->start_poll(b->cq, &poll) == EINVAL);
	CHECK(!fl_req_notify_cq(b->s.cq, 0));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_CQ_ARM, to_fl_cq(b->s.cq)->cqn, 1));
	CHECK(!fl_modify_qp(other, &reset, IBV_QP_STATE));
	CHECK(b->cq->read_opcode(b->cq) == IBV_WC_SEND);
	CHECK(!b->cq->next_poll(b->cq) && b->cq->wr_id == 41);
	CHECK(!fl_destroy_qp(other));
	CHECK(fl_poll_cq(b->s.cq, 1, &wc) == 1 && wc.wr_id == 42);
	CHECK(!fl_resize_cq(b->s.cq, 64));
	CHECK(!b->cq->next_poll(b->cq) && b->cq->wr_id == 43);
	CHECK(b->cq->next_poll(b->cq) == ENOENT);
	record = (void *)(device_cq + (64U << device_depth));
	CHECK(!record->consumer);
	b->cq->end_poll(b->cq);
	CHECK(le32toh(record->consumer) == 1);
	b->cq->end_poll(b->cq);
	b->s.produced = 1;
}

/* Within wr_start ... wr_complete. */
static void call_verbs_in_a_send(struct batches *b)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_ex *ex = b->ex;

	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_start(ex);
	ex->wr_id = 60;
	ex->wr_send(ex);
	/* The reset discards the batch. */
	CHECK(!fl_modify_qp(b->qp, &reset, IBV_QP_STATE));
	ex->wr_send(ex);
	ex->wr_set_sge(ex, 1, 2, 3);
	CHECK(ex->wr_complete(ex) == EINVAL);
	CHECK(ex->wr_complete(ex) == EINVAL);
	CHECK(!take_doorbell());
	/* A posted request within a batch would post the batch, too. */
	ex->wr_start(ex);
	ex->wr_id = 61;
	ex->wr_send(ex);
	CHECK(post(b->qp, 62, IBV_SEND_SIGNALED) == EINVAL);
	CHECK(!take_doorbell());
	CHECK(!ex->wr_complete(ex));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, b->qp->qp_num, 1));
	/* A batch within a batch. */
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_start(ex);
	ex->wr_send(ex);
	CHECK(ex->wr_complete(ex) == EINVAL);
	CHECK(ex->wr_complete(ex) == EINVAL);
	ex->wr_abort(ex);
	CHECK(!post(b->qp, 63, IBV_SEND_SIGNALED));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, b->qp->qp_num, 2));
	complete(&b->s, b->qp->qp_num, FAULTLINE_WC_SEND, 1);
	CHECK(poll_one(&b->s) == 63);
}

static void *call_verbs_in_batches(void *arg)
{
	call_verbs_in_a_poll(arg);
	call_verbs_in_a_send(arg);
	return NULL;
}

/* Another thread does the same: no lock is left behind. */
static void call_verbs_in_two_threads(struct batches *b)
{
	pthread_t thread;

	call_verbs_in_batches(b);
	b->s.produced = 0;
	CHECK(!fl_destroy_qp(b->qp));
	b->qp = make_built_qp(b);
	b->ex = &to_fl_qp(b->qp)->verbs_qp.qp_ex;
	CHECK(!fl_resize_cq(b->s.cq, 16));
	CHECK(!pthread_create(&thread, NULL, call_verbs_in_batches, b));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!fl_destroy_qp(b->qp) && !fl_destroy_cq(b->s.cq));
}

/* A thread that waited for itself would do so until the signal. */
static void a_thread_does_not_wait_for_its_own_batch(void)
{
	struct setup s = set_up(16, 0, 4);
	struct ibv_td_init_attr td_attr = {};
	struct ibv_td *td = fl_alloc_td(s.pd.ibv_pd.context, &td_attr);
	struct ibv_parent_domain_init_attr attr = { .pd = &s.pd.ibv_pd, .td = td };
	struct ibv_pd *parent = fl_alloc_parent_domain(s.pd.ibv_pd.context, &attr);
	struct batches b;

	alarm(60);
	b = make_batches(NULL, 0, &s);
	/* proves: start_poll, next_poll, end_poll */
	call_verbs_in_two_threads(&b);
	/* Without a lock there is nothing to wait for. */
	b = make_batches(NULL, IBV_CREATE_CQ_ATTR_SINGLE_THREADED, &s);
	CHECK(!pthread_spin_lock(&to_fl_cq(b.s.cq)->lock.spin));
	/* proves: IBV_CREATE_CQ_ATTR_SINGLE_THREADED */
	call_verbs_in_two_threads(&b);
	b = make_batches(parent, 0, &s);
	CHECK(!pthread_spin_lock(&to_fl_cq(b.s.cq)->lock.spin));
	CHECK(!pthread_spin_lock(&to_fl_qp(b.qp)->sq.lock.spin));
	CHECK(!pthread_spin_lock(&to_fl_qp(b.qp)->rq.lock.spin));
	call_verbs_in_two_threads(&b);
	alarm(0);
	CHECK(!fl_dealloc_pd(parent) && !fl_dealloc_td(td));
	tear_down(&s);
}

static void a_reset_leaves_nothing_behind(void)
{
	struct setup s = set_up(64, 0, 8);
	struct fl_qp *qp = to_fl_qp(s.qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_wc wc;
	pthread_t device;
	uint32_t i;

	for (i = 0; i < 5; i++) {
		CHECK(!post(s.qp, i, IBV_SEND_SIGNALED));
		CHECK(!post_recv(&s, i));
	}
	complete(&s, s.qp->qp_num, FAULTLINE_WC_SEND, 0);
	complete(&s, s.qp->qp_num, FAULTLINE_WC_RECV, 0);
	device = late_device();
	CHECK(!fl_modify_qp(s.qp, &attr, IBV_QP_STATE));
	CHECK(ring_was_drained);
	pthread_join(device, NULL);
	CHECK(!fl_poll_cq(s.cq, 1, &wc));
	/* proves: modify_qp, IBV_QPS_RESET */
	CHECK(!fl_wq_record(&qp->rq.ring)->producer);
	CHECK(!post(s.qp, 70, IBV_SEND_SIGNALED));
	CHECK(take_doorbell() == bell(FAULTLINE_DB_SQ, s.qp->qp_num, 1));
	for (i = 0; i < 8; i++)
		CHECK(!post_recv(&s, 80 + i));
	complete(&s, s.qp->qp_num, FAULTLINE_WC_SEND, 0);
	CHECK(poll_one(&s) == 70);
	complete(&s, s.qp->qp_num, FAULTLINE_WC_RECV, 0);
	CHECK(poll_one(&s) == 80);
	tear_down(&s);
}

/* What an allocator of the test's own has given. */
static struct {
	bool refuses;
	bool misaligned;
	bool uses_default;
	int live;
	uint64_t types;		/* a bit each */
} given;

static void *give(struct ibv_pd *pd, void *context, size_t size, size_t alignment,
		  uint64_t type)
{
	void *buf;

	CHECK(context == &given);
	given.types |= 1ULL << type;
	if (given.refuses)
		return NULL;
	if (given.uses_default)
		return IBV_ALLOCATOR_USE_DEFAULT;
	CHECK(!posix_memalign(&buf, alignment, size));
	memset(buf, 0xa5, size);
	given.live++;
	return (char *)buf + given.misaligned;
}

static void take_back(struct ibv_pd *pd, void *context, void *buf, uint64_t type)
{
	CHECK(context == &given && given.types & 1ULL << type);
	given.live--;
	free((char *)buf - given.misaligned);
}

/* Queues lie where the parent domain's allocator puts them. */
static void parent_domains_give_memory(void)
{
	struct setup s = set_up(16, 0, 4);
	struct ibv_context *context = s.pd.ibv_pd.context;
	struct ibv_td_init_attr td_attr = {};
	struct ibv_td *td = fl_alloc_td(context, &td_attr);
	struct ibv_parent_domain_init_attr attr = {
		.pd = &s.pd.ibv_pd,
		.td = td,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = give,
		.free = take_back,
		.pd_context = &given,
	};
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 16,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
	};
	struct ibv_pd *parent = fl_alloc_parent_domain(context, &attr);
	struct ibv_qp_init_attr qp_attr;
	struct ibv_cq_ex *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;

	/* proves: alloc_parent_domain */
	CHECK(parent && parent->context == context);
	/* It holds what it is made of. */
	/* proves: alloc_td */
	CHECK(fl_dealloc_td(td) == EBUSY);
	CHECK(fl_dealloc_pd(&s.pd.ibv_pd) == EBUSY);
	attr.pd = parent;
	CHECK(!fl_alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.pd = &s.pd.ibv_pd;
	attr.comp_mask |= 1 << 30;
	CHECK(!fl_alloc_parent_domain(context, &attr) && errno == EINVAL);

	cq_attr.parent_domain = &s.pd.ibv_pd;
	CHECK(!fl_create_cq_ex(context, &cq_attr) && errno == EINVAL);
	cq_attr.parent_domain = parent;
	cq = fl_create_cq_ex(context, &cq_attr);
	/* proves: IBV_CQ_INIT_ATTR_MASK_PD */
	CHECK(cq && given.live == 1);
	/* The allocator's memory was not zero; the ring must be. */
	CHECK(!device_cq[sizeof(struct faultline_cqe) - 1]);
	CHECK(!fl_resize_cq(ibv_cq_ex_to_cq(cq), 64) && given.live == 1);
	srq = fl_create_srq(parent, &srq_attr);
	CHECK(srq && given.live == 2);
	qp_attr = (struct ibv_qp_init_attr) {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.qp_type = IBV_QPT_RC,
		.cap = { 4, 4, 1, 1, 0 },
	};
	qp = fl_create_qp(parent, &qp_attr);
	/* proves: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS */
	/* proves: IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT */
	CHECK(qp && given.live == 4);
	CHECK(given.types == (1 << FAULTLINEDV_MEMORY_SQ | 1 << FAULTLINEDV_MEMORY_RQ |
			      1 << FAULTLINEDV_MEMORY_SRQ | 1 << FAULTLINEDV_MEMORY_CQ));
	CHECK(fl_dealloc_pd(parent) == EBUSY);
	CHECK(!fl_destroy_qp(qp) && !fl_destroy_srq(srq) && given.live == 1);
	CHECK(!fl_destroy_cq(ibv_cq_ex_to_cq(cq)) && !given.live);

	/* No memory, memory that is no page, and none of its own. */
	given.refuses = true;
	CHECK(!fl_create_srq(parent, &srq_attr) && errno == ENOMEM);
	given.refuses = false;
	given.misaligned = true;
	CHECK(!fl_create_srq(parent, &srq_attr) && errno == EINVAL && !given.live);
	given.misaligned = false;
	given.uses_default = true;
	srq = fl_create_srq(parent, &srq_attr);
	CHECK(srq && !given.live && !fl_destroy_srq(srq));
	/* proves: dealloc_td */
	CHECK(!fl_dealloc_pd(parent) && !fl_dealloc_td(td));
	tear_down(&s);
}

static void device_memory_is_copied_in_words(void)
{
	struct fl_context *ctx = open_device();
	struct ibv_context *context = &ctx->ibv_ctx.context;
	struct ibv_alloc_dm_attr attr = { .length = 100 };
	char data[104] = "what goes there must come back", back[104] = {};
	FILE *device = tmpfile();
	struct ibv_dm *dm;

	CHECK(device);
	context->cmd_fd = fileno(device);
	CHECK(!ftruncate(context->cmd_fd, 2 * FAULTLINE_PAGE_SIZE));
	dm = fl_alloc_dm(context, &attr);
	CHECK(dm);
	/* To a buffer of any alignment. */
	CHECK(!dm->memcpy_to_dm(dm, 8, data + 1, 92));
	CHECK(!dm->memcpy_from_dm(back + 3, dm, 8, 92));
	/* proves: alloc_dm */
	CHECK(!memcmp(data + 1, back + 3, 92));
	CHECK(pread(context->cmd_fd, back, 92, FAULTLINE_PAGE_SIZE + 8) == 92);
	CHECK(!memcmp(data + 1, back, 92));
	CHECK(dm->memcpy_to_dm(dm, 8, data, 96) == EFAULT);
	CHECK(dm->memcpy_to_dm(dm, 2, data, 4) == EFAULT);
	CHECK(dm->memcpy_to_dm(dm, 0, data, 3) == EFAULT);
	CHECK(dm->memcpy_from_dm(back, dm, 104, 0) == EFAULT);
	CHECK(dm->memcpy_from_dm(back, dm, UINT64_MAX - 3, 8) == EFAULT);
	CHECK(!dm->memcpy_from_dm(back, dm, 100, 0));
	attr.comp_mask = 1;
	CHECK(!fl_alloc_dm(context, &attr) && errno == EINVAL);
	attr.comp_mask = 0;
	kernel_error = ENOMEM;
	CHECK(!fl_alloc_dm(context, &attr) && errno == ENOMEM);
	kernel_error = EBUSY;
	CHECK(fl_free_dm(dm) == EBUSY);
	CHECK(!fl_free_dm(dm));
	fclose(device);
	close_device(ctx);
}

static void the_clock_is_related_to_the_time_of_day(void)
{
	struct fl_context *ctx = open_device();
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	struct timespec ts;
	uint64_t now, told;

	device_clock = 5000;
	CHECK(!fl_query_rt_values(&ctx->ibv_ctx.context, &values));
	/* proves: query_rt_values */
	CHECK(values.raw_clock.tv_sec == 0 && values.raw_clock.tv_nsec == 5000);
	values.comp_mask = 1 << 30;
	CHECK(fl_query_rt_values(&ctx->ibv_ctx.context, &values) == EINVAL);
	CHECK(!fl_clock_sync(ctx));
	clock_gettime(CLOCK_REALTIME, &ts);
	now = ts.tv_sec * 1000000000ULL + ts.tv_nsec;
	told = fl_wallclock(ctx, 5000);
	/* proves: IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK */
	CHECK(told <= now && now - told < 1000000000ULL);
	CHECK(fl_wallclock(ctx, 7000) - told == 2000);
	/* Old: measured anew; and if that fails, still an answer. */
	ctx->clock_synced_at = 0;
	device_clock = 9000;
	fl_clock_refresh(ctx);
	CHECK(fl_wallclock(ctx, 9000) >= now);
	CHECK(ctx->clock_synced_at);
	ctx->clock_synced_at = 0;
	kernel_error = EIO;
	fl_clock_refresh(ctx);
	CHECK(fl_wallclock(ctx, 9000) >= now);
	close_device(ctx);
}

static void the_time_of_day_is_measured_without_a_lock(void)
{
	struct setup s = set_up(16, 0, 4);
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 4,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq_ex *cq = fl_create_cq_ex(s.pd.ibv_pd.context, &attr);
	struct ibv_poll_cq_attr poll = {};
	struct setup ex = { .ctx = s.ctx, .pd = s.pd, .cq = ibv_cq_ex_to_cq(cq) };
	struct faultline_cqe *ring = (void *)device_cq;
	uint64_t told;

	CHECK(clock_questions);
	ex.qp = make_qp(&ex, IBV_QPT_RC, 4);
	CHECK(!post_recv(&ex, 1));
	complete(&ex, ex.qp->qp_num, FAULTLINE_WC_RECV, 0);
	ring[0].timestamp = htole64(4000);
	must_be_free = &to_fl_cq_ex(cq)->lock.spin;
	clock_questions = 0;
	s.ctx->clock_synced_at = 0;
	CHECK(!cq->start_poll(cq, &poll));
	CHECK(clock_questions);
	/* The relation may grow old meanwhile: the lock is held. */
	clock_questions = 0;
	s.ctx->clock_synced_at = 0;
	told = cq->read_completion_wallclock_ns(cq);
	CHECK(told == 4000 + s.ctx->wallclock_ahead && !clock_questions);
	cq->end_poll(cq);
	must_be_free = NULL;
	CHECK(!fl_destroy_qp(ex.qp));
	CHECK(!fl_destroy_cq(ex.cq));
	tear_down(&s);
}

static void the_device_is_known_by_its_subsystem(void)
{
	char modalias[64];

	snprintf(modalias, sizeof(modalias), "pci:v*d*sv%08Xsd%08Xbc*",
		 FAULTLINE_PCI_SUBSYSTEM_VENDOR, FAULTLINE_PCI_SUBSYSTEM);
	CHECK(!strcmp(modalias, FL_MODALIAS));
}

static void limits_are_checked_here(void)
{
	struct setup s = set_up(16, 4, 4);
	struct ibv_qp_init_attr good = {
		.send_cq = s.cq,
		.recv_cq = s.cq,
		.qp_type = IBV_QPT_UD,
		.cap = {
			.max_send_wr = MAX_WR,
			.max_recv_wr = MAX_WR,
			.max_send_sge = MAX_SGE,
			.max_recv_sge = MAX_SGE,
			.max_inline_data = MAX_INLINE,
		},
	};
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = MAX_WR + 1 } };
	struct ibv_qp_init_attr attr = good;
	struct ibv_qp *qp = fl_create_qp(&s.pd.ibv_pd, &attr);

	CHECK(qp && !fl_destroy_qp(qp));
#define REFUSED(field)                                                         \
	do {                                                                   \
		attr = good;                                                   \
		attr.cap.field++;                                              \
		CHECK(!fl_create_qp(&s.pd.ibv_pd, &attr) && errno == EINVAL);         \
	} while (0)
	REFUSED(max_send_wr);
	REFUSED(max_recv_wr);
	REFUSED(max_send_sge);
	REFUSED(max_recv_sge);
	REFUSED(max_inline_data);
#undef REFUSED
	/* With an SRQ there is no receive queue to limit. */
	attr = good;
	attr.srq = s.srq;
	attr.cap.max_recv_wr = MAX_WR + 1;
	qp = fl_create_qp(&s.pd.ibv_pd, &attr);
	CHECK(qp && !attr.cap.max_recv_wr && !fl_destroy_qp(qp));
	attr = good;
	attr.send_cq = NULL;
	CHECK(!fl_create_qp(&s.pd.ibv_pd, &attr) && errno == EINVAL);
	CHECK(!fl_create_srq(&s.pd.ibv_pd, &srq) && errno == EINVAL);
	CHECK(!fl_create_cq(s.pd.ibv_pd.context, MAX_CQE + 1, NULL, 0) && errno == EINVAL);
	CHECK(!fl_create_cq(s.pd.ibv_pd.context, 0, NULL, 0) && errno == EINVAL);
	/* What the kernel refuses leaves no trace. */
	attr = good;
	kernel_error = ENOSPC;
	CHECK(!fl_create_qp(&s.pd.ibv_pd, &attr) && errno == ENOSPC);
	tear_down(&s);
}

#define TEST(name) { #name, name }

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	TEST(doorbells_carry_their_lap),
	TEST(a_sleeping_device_is_kicked),
	TEST(a_full_ring_is_passed_by),
	TEST(a_device_that_is_gone_hangs_nobody),
	TEST(threads_share_a_ring),
	TEST(a_ringer_that_is_killed_holds_up_no_other),
	TEST(draining_waits_for_the_doorbells_of_the_dead),
	TEST(sends_stand_in_the_ring),
	TEST(a_full_send_queue_refuses),
	TEST(iwarp_has_its_own_operations),
	TEST(inline_data_is_copied),
	TEST(posts_before_their_state_are_refused),
	TEST(builders_make_requests),
	TEST(invalidations_are_built),
	TEST(large_packets_bring_their_headers),
	TEST(receives_tell_by_the_record),
	TEST(srq_tags_come_back_in_any_order),
	TEST(a_resized_srq_keeps_its_requests),
	TEST(wild_srq_tags_do_no_harm),
	TEST(completions_go_round),
	TEST(a_destroyed_qp_takes_its_completions_along),
	TEST(destroying_after_the_context_touches_nothing_of_it),
	TEST(a_number_is_taken_over_without_its_completions),
	TEST(an_extended_cq_reads_the_same),
	TEST(a_datagram_tells_its_packet_type),
	TEST(a_resized_cq_keeps_its_completions),
	TEST(a_thread_does_not_wait_for_its_own_batch),
	TEST(a_reset_leaves_nothing_behind),
	TEST(parent_domains_give_memory),
	TEST(device_memory_is_copied_in_words),
	TEST(the_clock_is_related_to_the_time_of_day),
	TEST(the_time_of_day_is_measured_without_a_lock),
	TEST(the_device_is_known_by_its_subsystem),
	TEST(limits_are_checked_here),
};

/* All tests, or those that are named. */
int main(int argc, char **argv)
{
	size_t i;

	for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		bool wanted = argc < 2;
		int arg;

		for (arg = 1; arg < argc; arg++)
			wanted |= !strcmp(argv[arg], tests[i].name);
		if (!wanted)
			continue;
		tests[i].run();
		printf("ok %s\n", tests[i].name);
	}
	return 0;
}
