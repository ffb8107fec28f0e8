// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * dma_buf: regions of buffers that another driver exports. One guest.
 *
 * Buffers of /dev/udmabuf stay where they are; those of the module
 * moving_buffer move when they are told to.
 */
#include "watched.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>

#include "kernel/moving_buffer.h"

#define PAGES 600UL
#define LENGTH (PAGES * PAGE)
/* Far from any address of the process, and from offsets. */
#define IOVA 0x7654321000000UL
#define MOVES_UNDER_TRAFFIC 40

static struct device device;
static struct loop loop;
/* What the other side of each transfer has. */
static uint8_t *local;
static struct ibv_mr *local_mr;

static struct ibv_mr *buffer_region(int fd, uint64_t offset, size_t length, uint64_t iova,
				    int access)
{
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(device.pd, offset, length, iova, fd, access);

	if (!mr)
		die("ibv_reg_dmabuf_mr: %m");
	return mr;
}

/* One transfer between `local` and the region; its status. */
static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, const struct ibv_mr *mr,
				   uint64_t iova, size_t at, uint32_t length)
{
	struct request request = {
		.opcode = opcode,
		.id = 7,
		.local = local + at,
		.length = length,
		.lkey = local_mr->lkey,
		.remote = iova,
		.rkey = mr->rkey,
		.flags = IBV_SEND_SIGNALED,
	};
	struct ibv_wc wc;

	endpoint_post(&loop.near, &request);
	WANT(endpoint_wait(&loop.near, &wc, 20000) && wc.wr_id == 7);
	return wc.status;
}

static void refused(enum ibv_wr_opcode opcode, const struct ibv_mr *mr, uint64_t iova,
		    uint32_t length)
{
	WANT(transfer(opcode, mr, iova, 0, length) == IBV_WC_REM_ACCESS_ERR);
	loop_restart(&loop);
}

/* As target and as source of requests, and as local memory; not aligned to anything. */
static void test_traffic(void)
{
	uint64_t key = content_key(1, 0, 0);
	struct request into = {
		.opcode = IBV_WR_RDMA_READ,
		.id = 8,
		.length = LENGTH - 2 * 4099,
		.remote = (uintptr_t)local + 4099,
		.rkey = local_mr->rkey,
		.flags = IBV_SEND_SIGNALED,
	};
	struct ibv_wc wc;
	struct ibv_mr *mr;
	uint8_t *map;
	int fd = udmabuf(LENGTH, &map);

	mr = buffer_region(fd, 0, LENGTH, IOVA, ALL_ACCESS);
	content_fill(local, key, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_WRITE, mr, IOVA, 0, LENGTH));
	/* proves: reg_dmabuf_mr, reg_user_mr_dmabuf */
	WANT(!content_wrong(map, key, 0, LENGTH));

	content_fill(map, key + 1, 0, LENGTH);
	memset(local, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_READ, mr, IOVA + 4099, 4099, LENGTH - 2 * 4099));
	/* proves: IBV_WR_RDMA_READ */
	WANT(!content_wrong(local + 4099, key + 1, 4099, LENGTH - 2 * 4099));
	WANT(!local[4098] && !local[LENGTH - 4099]);

	content_fill(local, key + 2, 0, LENGTH);
	into.local = (void *)(IOVA + 4099);
	into.lkey = mr->lkey;
	endpoint_post(&loop.near, &into);
	WANT(endpoint_wait(&loop.near, &wc, 20000) && wc.wr_id == 8 && !wc.status);
	WANT(!content_wrong(map + 4099, key + 2, 4099, LENGTH - 2 * 4099));
	WANT(!content_wrong(map, key + 1, 0, 4099));

	ibv_dereg_mr(mr);
	munmap(map, LENGTH);
	close(fd);
	say("traffic: fine");
}

/* A part of a buffer is all that the key gives. */
static void test_part(void)
{
	const size_t offset = 3 * PAGE + 100, length = 5 * PAGE + 17;
	const uint64_t iova = IOVA + 100;
	uint64_t key = content_key(2, 0, 0);
	struct ibv_mr *mr;
	uint8_t *map;
	int fd = udmabuf(LENGTH, &map);
	size_t i;

	memset(map, 0x11, LENGTH);
	content_fill(local, key, 0, LENGTH);
	mr = buffer_region(fd, offset, length, iova, ALL_ACCESS);
	WANT(!transfer(IBV_WR_RDMA_WRITE, mr, iova, 0, length));
	refused(IBV_WR_RDMA_WRITE, mr, iova, length + 1);
	refused(IBV_WR_RDMA_WRITE, mr, iova - 1, 2);
	refused(IBV_WR_RDMA_READ, mr, iova + length, 1);
	refused(IBV_WR_RDMA_READ, mr, offset, 1);
	WANT(!content_wrong(map + offset, key, 0, length));
	for (i = 0; i < LENGTH; i++)
		WANT((i >= offset && i < offset + length) || map[i] == 0x11);
	ibv_dereg_mr(mr);
	munmap(map, LENGTH);
	close(fd);
	say("part: fine");
}

static void test_rights(void)
{
	uint64_t key = content_key(3, 0, 0);
	struct ibv_mr *mr;
	uint8_t *map;
	int fd = udmabuf(LENGTH, &map);

	content_fill(map, key, 0, LENGTH);
	mr = buffer_region(fd, 0, LENGTH, IOVA, IBV_ACCESS_REMOTE_READ);
	memset(local, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_READ, mr, IOVA, 0, LENGTH));
	WANT(!content_wrong(local, key, 0, LENGTH));
	memset(local, 0, LENGTH);
	refused(IBV_WR_RDMA_WRITE, mr, IOVA, 8);
	WANT(!content_wrong(map, key, 0, LENGTH));

	/* After deregistration the key is invalid. */
	WANT(!ibv_dereg_mr(mr));
	mr = buffer_region(fd, 0, LENGTH, IOVA, ALL_ACCESS);
	{
		struct ibv_mr gone = *mr;

		WANT(!ibv_dereg_mr(mr));
		/* proves: dereg_mr */
		refused(IBV_WR_RDMA_WRITE, &gone, IOVA, 8);
	}
	WANT(!content_wrong(map, key, 0, LENGTH));
	munmap(map, LENGTH);
	close(fd);
	say("rights: fine");
}

/* A region holds on to its buffer. */
static void test_closed_early(void)
{
	uint64_t key = content_key(4, 0, 0);
	struct ibv_mr *mr;
	uint8_t *map;
	int fd = udmabuf(LENGTH, &map);

	mr = buffer_region(fd, 0, LENGTH, IOVA, ALL_ACCESS);
	munmap(map, LENGTH);
	close(fd);
	content_fill(local, key, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_WRITE, mr, IOVA, 0, LENGTH));
	memset(local, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_READ, mr, IOVA, 0, LENGTH));
	WANT(!content_wrong(local, key, 0, LENGTH));
	WANT(!ibv_dereg_mr(mr));
	say("closed early: fine");
}

static void not_registered(int fd, uint64_t offset, size_t length, uint64_t iova, int access,
			   int error)
{
	errno = 0;
	if (ibv_reg_dmabuf_mr(device.pd, offset, length, iova, fd, access) || errno != error)
		die("offset %lx, length %zx, iova %lx, access %x: %m", offset, length, iova, access);
}

static void test_refused(void)
{
	struct ibv_mr *mr;
	uint8_t *map;
	int fd = udmabuf(LENGTH, &map);
	int file = open("/proc/self/exe", O_RDONLY);

	not_registered(fd, 0, LENGTH + 1, IOVA, ALL_ACCESS, EINVAL);
	not_registered(fd, PAGE, LENGTH, IOVA, ALL_ACCESS, EINVAL);
	not_registered(fd, LENGTH, 1, IOVA, ALL_ACCESS, EINVAL);
	not_registered(fd, -PAGE, 2 * PAGE, IOVA, ALL_ACCESS, EINVAL);
	not_registered(fd, 0, 0, IOVA, ALL_ACCESS, EINVAL);
	not_registered(fd, 1, PAGE, IOVA, ALL_ACCESS, EINVAL);
	not_registered(fd, 0, 2 * PAGE, -PAGE, ALL_ACCESS, EINVAL);
	not_registered(fd, 0, PAGE, IOVA, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	not_registered(file, 0, PAGE, IOVA, ALL_ACCESS, EINVAL);
	not_registered(-1, 0, PAGE, IOVA, ALL_ACCESS, EBADF);

	/* Other memory under the same key is for memory of the process. */
	mr = buffer_region(fd, 0, LENGTH, IOVA, ALL_ACCESS);
	WANT(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			  IBV_ACCESS_LOCAL_WRITE));
	local[0] = 1;
	WANT(!transfer(IBV_WR_RDMA_WRITE, mr, IOVA, 0, 1) && map[0] == 1);
	ibv_dereg_mr(mr);
	munmap(map, LENGTH);
	close(file);
	close(fd);
	say("refused: fine");
}

static int mover;

static int ask_mover(unsigned long what, uint64_t value)
{
	return ioctl(mover, what, &value);
}

static void check_buffer(int fd, uint64_t key)
{
	uint8_t *map = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, fd, 0);

	WANT(map != MAP_FAILED);
	WANT(!content_wrong(map, key, 0, LENGTH));
	munmap(map, LENGTH);
	WANT(!ask_mover(MOVING_BUFFER_STALE, fd));
}

static uint64_t faults(void)
{
	char path[256];

	snprintf(path, sizeof(path),
		 "/sys/class/infiniband/%s/ports/1/hw_counters/page_faults",
		 ibv_get_device_name(device.context->device));
	/* The kernel keeps the values for 10 ms. */
	sleep_ms(20);
	return read_number(path, 0);
}

struct moves {
	int fd;
	atomic_bool done;
};

static void *keep_moving(void *arg)
{
	struct moves *moves = arg;
	int i;

	for (i = 0; i < MOVES_UNDER_TRAFFIC; i++) {
		WANT(!ask_mover(MOVING_BUFFER_MOVE, moves->fd));
		sleep_ms(5);
	}
	moves->done = true;
	return NULL;
}

/* The device must not pin, and not use pages that the buffer has left. */
static void test_moves(bool may_pin)
{
	struct moves moves = {};
	uint64_t key = content_key(5, 0, 0), before, rounds;
	pthread_t thread;
	struct ibv_mr *mr;
	int fd;

	mover = open("/dev/moving_buffer", O_RDWR);
	fd = ask_mover(MOVING_BUFFER_CREATE, LENGTH);
	if (mover < 0 || fd < 0)
		die("moving_buffer: %m");
	mr = buffer_region(fd, 0, LENGTH, IOVA, ALL_ACCESS);
	content_fill(local, key, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_WRITE, mr, IOVA, 0, LENGTH));
	check_buffer(fd, key);
	if (ask_mover(MOVING_BUFFER_MOVE, fd)) {
		if (errno != EBUSY || !may_pin)
			die("the buffer does not move: %m");
		memset(local, 0, LENGTH);
		WANT(!transfer(IBV_WR_RDMA_READ, mr, IOVA, 0, LENGTH));
		WANT(!content_wrong(local, key, 0, LENGTH));
		WANT(!ibv_dereg_mr(mr));
		WANT(!ask_mover(MOVING_BUFFER_MOVE, fd));
		check_buffer(fd, key);
		say("moves: the buffer is pinned while it is registered");
		return;
	}

	before = faults();
	memset(local, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_READ, mr, IOVA, 0, LENGTH));
	WANT(!content_wrong(local, key, 0, LENGTH));
	WANT(faults() > before);
	WANT(!ask_mover(MOVING_BUFFER_MOVE, fd));
	content_fill(local, key + 1, 0, LENGTH);
	WANT(!transfer(IBV_WR_RDMA_WRITE, mr, IOVA, 0, LENGTH));
	check_buffer(fd, key + 1);

	moves.fd = fd;
	WANT(!pthread_create(&thread, NULL, keep_moving, &moves));
	for (rounds = 0; !moves.done; rounds++) {
		content_fill(local, key + rounds, 0, LENGTH);
		WANT(!transfer(IBV_WR_RDMA_WRITE, mr, IOVA, 0, LENGTH));
		memset(local, 0, LENGTH);
		WANT(!transfer(IBV_WR_RDMA_READ, mr, IOVA, 0, LENGTH));
		WANT(!content_wrong(local, key + rounds, 0, LENGTH));
	}
	pthread_join(thread, NULL);
	WANT(rounds > 2);
	check_buffer(fd, key + rounds - 1);

	/* Deregistered while its pages are away, and moved after that. */
	WANT(!ask_mover(MOVING_BUFFER_MOVE, fd));
	WANT(!ibv_dereg_mr(mr));
	WANT(!ask_mover(MOVING_BUFFER_MOVE, fd));
	check_buffer(fd, key + rounds - 1);
	close(fd);
	say("moves: fine, %lu rounds while it moved %d times", (unsigned long)rounds,
	    MOVES_UNDER_TRAFFIC);
}

int main(void)
{
	struct utsname kernel;
	bool on_demand;

	uname(&kernel);
	device_open(&device);
	on_demand = device.attributes.odp_caps.general_caps & IBV_ODP_SUPPORT;
	loop_create(&loop, &device);
	local = anonymous(LENGTH);
	local_mr = region(&device, local, LENGTH, false);
	test_traffic();
	test_part();
	test_rights();
	test_closed_early();
	test_refused();
	/* Debian builds older kernels so that they pin every buffer that is attached; ours for debugging does not. */
	test_moves(!on_demand || (atoi(kernel.release) < 7 &&
				  !strstr(kernel.release, "-faultline-debug")));
	loop_destroy(&loop);
	printf("PASS\n");
	return 0;
}
