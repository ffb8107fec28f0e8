// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A peer writes to pages that are not present and reads them back, over several queue
 * pairs; the owner removes the pages, and so on. Each request meets a page fault.
 *
 *	fault_storm			the owner of the memory
 *	fault_storm HOST PAGES		writes to this number of pages, and reads as many
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

#define PORT 18620
#define QPS 4
/* Pages of the region. */
#define PAGES 128UL
#define LENGTH (PAGES * PAGE)
#define SEED 18

/* What the peer asks the owner to do. */
enum order {
	/* Remove the pages, without looking at them. */
	ORDER_REMOVE,
	/* Compare them with the content of this round, then remove them. */
	ORDER_CHECK,
	ORDER_END,
};

struct message {
	uint64_t order;
	uint64_t round;
	/* Pages that have been written to. */
	uint64_t pages;
};

struct answer {
	uint64_t address;
	uint64_t wrong;
	uint32_t rkey;
};

static void own(void)
{
	struct endpoint ends[QPS];
	struct message message;
	struct answer answer = {};
	struct device device;
	struct ibv_mr *mr;
	uint8_t *memory;
	int fd, i;

	device_open(&device);
	device_needs_odp(&device, false);
	memory = anonymous(LENGTH);
	/* A huge page would be one fault for 512. */
	madvise(memory, LENGTH, MADV_NOHUGEPAGE);
	mr = region(&device, memory, LENGTH, true);
	answer.address = (uintptr_t)memory;
	answer.rkey = mr->rkey;
	fd = accept_from(listen_on(PORT));
	for (i = 0; i < QPS; i++) {
		endpoint_create(&ends[i], &device, 4, 4);
		endpoint_meet(&ends[i], fd);
		endpoint_start(&ends[i]);
	}
	for (;;) {
		send_all(fd, &answer, sizeof(answer));
		receive_all(fd, &message, sizeof(message));
		if (message.order == ORDER_END)
			break;
		if (message.order == ORDER_CHECK)
			answer.wrong += content_wrong(memory, content_key(SEED, 0, message.round), 0,
						      message.pages * PAGE);
		if (madvise(memory, LENGTH, MADV_DONTNEED))
			die("MADV_DONTNEED: %m");
	}
	for (i = 0; i < QPS; i++)
		endpoint_destroy(&ends[i]);
	ibv_dereg_mr(mr);
}

struct peer {
	struct endpoint ends[QPS];
	struct ibv_mr *mr;
	uint8_t *local;
	struct answer owner;
	int fd;
};

/* A request for each of `pages` pages, one at a time on each queue pair. */
static void request_pages(struct peer *peer, enum ibv_wr_opcode opcode, uint64_t pages)
{
	struct ibv_wc wc;
	uint64_t first, i;

	for (first = 0; first < pages; first += QPS) {
		for (i = first; i < first + QPS && i < pages; i++) {
			struct request request = {
				.opcode = opcode,
				.id = i,
				.local = peer->local + i * PAGE,
				.length = PAGE,
				.lkey = peer->mr->lkey,
				.remote = peer->owner.address + i * PAGE,
				.rkey = peer->owner.rkey,
			};

			endpoint_post(&peer->ends[i % QPS], &request);
		}
		for (i = first; i < first + QPS && i < pages; i++) {
			if (!endpoint_wait(&peer->ends[i % QPS], &wc, 20000))
				die("page %lu: no completion", (unsigned long)i);
			if (wc.status || wc.wr_id != i)
				die("page %lu: %s", (unsigned long)i, ibv_wc_status_str(wc.status));
		}
	}
}

static void order(struct peer *peer, enum order order, uint64_t round, uint64_t pages)
{
	struct message message = { .order = order, .round = round, .pages = pages };

	send_all(peer->fd, &message, sizeof(message));
	if (order != ORDER_END)
		receive_all(peer->fd, &peer->owner, sizeof(peer->owner));
}

static void use(const char *host, uint64_t pages)
{
	uint64_t start, done, round = 0, wrong = 0, i;
	struct peer peer = {};
	struct device device;

	device_open(&device);
	peer.local = anonymous(LENGTH);
	peer.mr = region(&device, peer.local, LENGTH, false);
	peer.fd = connect_to(host, PORT, 20000);
	if (peer.fd < 0)
		die("%s does not answer", host);
	for (i = 0; i < QPS; i++) {
		endpoint_create(&peer.ends[i], &device, 4, 4);
		endpoint_meet(&peer.ends[i], peer.fd);
		endpoint_start(&peer.ends[i]);
	}
	receive_all(peer.fd, &peer.owner, sizeof(peer.owner));
	start = now_ms();
	for (done = 0; done < pages; round++) {
		uint64_t now = pages - done < PAGES ? pages - done : PAGES;

		content_fill(peer.local, content_key(SEED, 0, round), 0, now * PAGE);
		request_pages(&peer, IBV_WR_RDMA_WRITE, now);
		order(&peer, ORDER_CHECK, round, now);
		/* New pages of anonymous memory are zero. */
		request_pages(&peer, IBV_WR_RDMA_READ, now);
		for (i = 0; i < now * PAGE; i++)
			wrong += peer.local[i] != 0;
		order(&peer, ORDER_REMOVE, round, 0);
		done += now;
	}
	printf("%lu pages written and read in %.1f s; wrong bytes: %lu\n", (unsigned long)done,
	       (now_ms() - start) / 1e3, (unsigned long)(wrong + peer.owner.wrong));
	fflush(stdout);
	if (wrong || peer.owner.wrong)
		die("bytes are wrong");
	order(&peer, ORDER_END, 0, 0);
	for (i = 0; i < QPS; i++)
		endpoint_destroy(&peer.ends[i]);
	ibv_dereg_mr(peer.mr);
}

int main(int argc, char **argv)
{
	if (argc == 3)
		use(argv[1], strtoul(argv[2], NULL, 0));
	else if (argc == 1)
		own();
	else
		die("usage: fault_storm [HOST PAGES]");
	return 0;
}
