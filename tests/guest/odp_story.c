// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The life of memory that is not there, told in numbers: a peer writes to
 * pages that do not exist, they are swapped out, and the peer reads them back.
 *
 *	odp_story		the one whose memory it is
 *	odp_story HOST		the one who writes and reads, and prints the table
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#define PORT 18610
#define PAGES 4096UL
#define LENGTH (PAGES * PAGE)
/* MADV_PAGEOUT leaves some for later; then reclaim continues by itself. */
#define PAGEOUT_ROUNDS 50

/* Message of the owner of the memory. All in its own byte order: both are alike. */
struct facts {
	uint64_t address;
	uint32_t rkey;
	uint32_t resident;	/* pages of the region */
	bool counts;		/* the NIC counts its page faults; rdma_rxe does not */
	uint64_t faults;	/* that the NIC has raised; 0 if it does not count them */
	int64_t pinned;		/* pages, since before the registration */
	uint64_t wrong;		/* bytes */
	uint64_t touch_ns;	/* median of its own first touches */
};

static uint32_t resident(void *memory)
{
	static unsigned char map[PAGES];
	uint32_t count = 0;
	size_t i;

	if (mincore(memory, LENGTH, map))
		die("mincore: %m");
	for (i = 0; i < PAGES; i++)
		count += map[i] & 1;
	return count;
}

static void count_faults(const struct device *device, struct facts *facts)
{
	char path[256];

	snprintf(path, sizeof(path),
		 "/sys/class/infiniband/%s/ports/1/hw_counters/page_faults",
		 ibv_get_device_name(device->context->device));
	facts->counts = access(path, R_OK) == 0;
	facts->faults = read_number(path, 0);
}

static void *ordinary_pages(void)
{
	void *memory = anonymous(LENGTH);

	/* A huge page would be one fault for 512. */
	madvise(memory, LENGTH, MADV_NOHUGEPAGE);
	return memory;
}

/* Median of the time that a processor takes to touch a page for the first time. */
static uint64_t touch(void)
{
	static uint64_t took[PAGES];
	volatile char *memory = ordinary_pages();
	size_t i;

	for (i = 0; i < PAGES; i++) {
		uint64_t start = now_ns();

		memory[i * PAGE] = 1;
		took[i] = now_ns() - start;
	}
	munmap((void *)memory, LENGTH);
	return median(took, PAGES);
}

static void own(void)
{
	struct facts facts = {};
	struct endpoint end = {};
	struct device device;
	struct ibv_mr *mr;
	int64_t pinned;
	int fd, round;
	void *memory;
	char go;

	device_open(&device);
	device_needs_odp(&device, false);
	/* The queues are pinned; the region must not be. */
	endpoint_create(&end, &device, 16, 16);
	memory = ordinary_pages();
	pinned = pinned_pages();
	mr = region(&device, memory, LENGTH, true);
	fd = accept_from(listen_on(PORT));
	endpoint_meet(&end, fd);
	endpoint_start(&end);
	facts.address = (uintptr_t)memory;
	facts.rkey = mr->rkey;
	facts.resident = resident(memory);
	count_faults(&device, &facts);
	facts.pinned = pinned_pages() - pinned;
	send_all(fd, &facts, sizeof(facts));

	/* It has been written to. */
	receive_all(fd, &go, 1);
	facts.resident = resident(memory);
	count_faults(&device, &facts);
	facts.pinned = pinned_pages() - pinned;
	facts.wrong = content_wrong(memory, content_key(1, 0, 0), 0, LENGTH);
	facts.touch_ns = touch();
	send_all(fd, &facts, sizeof(facts));

	/* It goes to swap. */
	receive_all(fd, &go, 1);
	for (round = 0; round < PAGEOUT_ROUNDS && resident(memory); round++) {
		if (madvise(memory, LENGTH, MADV_PAGEOUT))
			die("MADV_PAGEOUT: %m");
		sleep_ms(20);
	}
	facts.resident = resident(memory);
	count_faults(&device, &facts);
	send_all(fd, &facts, sizeof(facts));

	/* It has been read. */
	receive_all(fd, &go, 1);
	facts.resident = resident(memory);
	count_faults(&device, &facts);
	facts.pinned = pinned_pages() - pinned;
	send_all(fd, &facts, sizeof(facts));
	receive_all(fd, &go, 1);
	endpoint_destroy(&end);
	ibv_dereg_mr(mr);
	say("fine");
}

/* One request for each page, one after the other; the median of their times. */
static uint64_t each_page(struct endpoint *end, enum ibv_wr_opcode opcode,
			  char *local, uint32_t lkey, const struct facts *facts)
{
	static uint64_t took[PAGES];
	struct ibv_wc wc;
	size_t i;

	for (i = 0; i < PAGES; i++) {
		struct request request = {
			.opcode = opcode,
			.id = i,
			.local = local + i * PAGE,
			.length = PAGE,
			.lkey = lkey,
			.remote = facts->address + i * PAGE,
			.rkey = facts->rkey,
			.flags = IBV_SEND_SIGNALED,
		};
		uint64_t start = now_ns();

		endpoint_post(end, &request);
		if (!endpoint_wait(end, &wc, 20000) || wc.status || wc.wr_id != i)
			die("page %zu: %s", i, ibv_wc_status_str(wc.status));
		took[i] = now_ns() - start;
	}
	return median(took, PAGES);
}

static void learn(int fd, struct facts *facts)
{
	send_all(fd, "", 1);
	receive_all(fd, facts, sizeof(*facts));
}

static void line(const char *what, const struct facts *before,
		 const struct facts *after, uint64_t ns)
{
	printf("%-40s %6u %6u %7lu %9.1f\n", what, before->resident,
	       after->resident, (unsigned long)(after->faults - before->faults),
	       ns / 1e3);
}

static void use(const char *host)
{
	struct facts start, written, swapped, back;
	struct endpoint end = {};
	struct device device;
	struct ibv_mr *mr;
	uint64_t absent, warm, read;
	uint64_t key = content_key(1, 0, 0);
	char *local;
	int fd;

	device_open(&device);
	local = anonymous(LENGTH);
	content_fill(local, key, 0, LENGTH);
	/* What is measured is the other side's memory. */
	mr = region(&device, local, LENGTH, false);
	endpoint_create(&end, &device, 16, 16);
	fd = connect_to(host, PORT, 20000);
	if (fd < 0)
		die("%s does not answer", host);
	endpoint_meet(&end, fd);
	endpoint_start(&end);
	receive_all(fd, &start, sizeof(start));

	absent = each_page(&end, IBV_WR_RDMA_WRITE, local, mr->lkey, &start);
	learn(fd, &written);
	warm = each_page(&end, IBV_WR_RDMA_WRITE, local, mr->lkey, &start);
	learn(fd, &swapped);
	memset(local, 0, LENGTH);
	read = each_page(&end, IBV_WR_RDMA_READ, local, mr->lkey, &start);
	learn(fd, &back);
	back.wrong = content_wrong(local, key, 0, LENGTH);
	send_all(fd, "", 1);

	printf("%-40s %6s %6s %7s %9s\n", "each of 4096 pages", "before", "after",
	       "faults", "us/page");
	line("written remotely, absent before", &start, &written, absent);
	line("written again, warm", &written, &written, warm);
	line("swapped out", &written, &swapped, 0);
	line("read back remotely", &swapped, &back, read);
	printf("touched by its own processor, absent before %27.1f\n",
	       written.touch_ns / 1e3);
	printf("remote write onto an absent page: %.1f times a local touch\n",
	       (double)absent / written.touch_ns);
	printf("pages pinned: %ld; wrong bytes: %lu\n", (long)back.pinned,
	       (unsigned long)(written.wrong + back.wrong));
	fflush(stdout);
	if (start.resident || written.resident < PAGES || swapped.resident > PAGES / 2)
		die("it did not happen as told above");
	if (start.counts && (written.faults - start.faults < PAGES / 2 ||
			     back.faults == swapped.faults))
		die("there were less page faults than absent pages");
	if (written.wrong || back.wrong || back.pinned)
		die("bytes are wrong or pages are pinned");
	printf(start.counts ? "as it should be\n" :
			      "all right; the owner's NIC counts no page faults\n");
	endpoint_destroy(&end);
	ibv_dereg_mr(mr);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		use(argv[1]);
	else
		own();
	return 0;
}
