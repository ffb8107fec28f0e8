// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * secret_memory: memory of memfd_secret(2), which the kernel does not pin, is
 * not readable or writable through on-demand regions either: neither by a peer
 * nor by the process' own requests. Memory beside it is. Runs in one guest.
 */
#include "watched.h"

#include <sys/syscall.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

#define LENGTH (4 * PAGE)

/* Ordinary pages, secret ones behind them, and ordinary ones. */
static uint8_t *make_memory(void)
{
	int fd = syscall(SYS_memfd_secret, 0);
	uint8_t *memory = anonymous(3 * LENGTH);

	if (fd < 0)
		die("memfd_secret: %m");
	WANT(!ftruncate(fd, LENGTH));
	WANT(mmap(memory + LENGTH, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
	     MAP_FAILED);
	WANT(!close(fd));
	/* Present pages: each was touched. */
	content_fill(memory, content_key(7, 0, 0), 0, 3 * LENGTH);
	return memory;
}

static void refused(struct loop *loop, enum ibv_wr_opcode opcode, uint8_t *local, struct ibv_mr *local_mr, uint8_t *remote,
		    struct ibv_mr *remote_mr, enum ibv_wc_status status)
{
	WANT(loop_do(loop, opcode, local, PAGE, local_mr->lkey, remote, remote_mr->rkey) == status);
	loop_restart(loop);
}

static void test_region(struct loop *loop, struct ibv_mr *mr, uint8_t *memory, struct ibv_mr *pinned, uint8_t *buffer)
{
	uint8_t *secret = memory + LENGTH;
	uint64_t key = content_key(7, 0, 0);

	memset(buffer, 0, LENGTH);
	refused(loop, IBV_WR_RDMA_READ, buffer, pinned, secret, mr, IBV_WC_REM_ACCESS_ERR);
	refused(loop, IBV_WR_RDMA_READ, buffer, pinned, secret + 2 * PAGE, mr, IBV_WC_REM_ACCESS_ERR);
	/* The second page of the message is secret. */
	refused(loop, IBV_WR_RDMA_READ, buffer, pinned, secret - PAGE / 2, mr, IBV_WC_REM_ACCESS_ERR);
	refused(loop, IBV_WR_RDMA_WRITE, buffer, pinned, secret, mr, IBV_WC_REM_ACCESS_ERR);
	/* As the source of its own request. */
	refused(loop, IBV_WR_RDMA_WRITE, secret, mr, buffer, pinned, IBV_WC_LOC_PROT_ERR);
	WANT(!content_wrong(memory, key, 0, 3 * LENGTH));

	/* What lies beside it is ordinary, also after all this. */
	WANT(loop_do(loop, IBV_WR_RDMA_READ, buffer, LENGTH, pinned->lkey, memory, mr->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(buffer, key, 0, LENGTH));
	WANT(loop_do(loop, IBV_WR_RDMA_READ, buffer, LENGTH, pinned->lkey, secret + LENGTH, mr->rkey) == IBV_WC_SUCCESS);
	WANT(!content_wrong(buffer, key, 2 * LENGTH, LENGTH));
}

int main(void)
{
	struct ibv_mr *mr, *pinned, *implicit;
	uint8_t *memory, *buffer;
	struct device device;
	struct loop loop;

	device_open(&device);
	device_needs_odp(&device, true);
	loop_create(&loop, &device);
	memory = make_memory();
	buffer = anonymous(LENGTH);
	pinned = region(&device, buffer, LENGTH, false);
	errno = 0;
	WANT(!ibv_reg_mr(device.pd, memory + LENGTH, LENGTH, ALL_ACCESS));
	WANT(errno == EFAULT);
	mr = region(&device, memory, 3 * LENGTH, true);
	test_region(&loop, mr, memory, pinned, buffer);
	WANT(!ibv_dereg_mr(mr));
	implicit = ibv_reg_mr(device.pd, NULL, SIZE_MAX, ALL_ACCESS | IBV_ACCESS_ON_DEMAND);
	WANT(implicit);
	test_region(&loop, implicit, memory, pinned, buffer);
	WANT(!ibv_dereg_mr(implicit) && !ibv_dereg_mr(pinned));
	loop_destroy(&loop);
	puts("PASS");
	return 0;
}
