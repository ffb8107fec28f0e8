// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * swap_deadlock: what the policy `stall` makes of swapping over the same NIC.
 *
 *	swap_deadlock --mib N		the server; its swap space is behind this NIC
 *	swap_deadlock ADDRESS		the client
 *
 * The client READs pages that the server has swapped out. Under `stall` the
 * server's NIC takes no packet before the page is there, and the page comes in
 * packets. The device must find that out, say so, and go on.
 */
#include <infiniband/faultlinedv.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

#define PORT 18630
#define READS 8
/* More than the kernel reads ahead. */
#define STEP (64 * PAGE)
#define KEY 20261121

struct deal {
	uint64_t remote;
	uint32_t rkey;
	uint32_t reserved;
};

/* Whether the driver has said since `log` that a stop was taken for a deadlock. */
static bool reported(int log)
{
	char record[8192];

	for (;;) {
		ssize_t length = read(log, record, sizeof(record) - 1);

		if (length <= 0)
			return false;
		record[length] = '\0';
		if (strstr(record, "taken for a deadlock"))
			return true;
	}
}

static int serve(size_t length)
{
	int log = kmsg_open(), report = kmsg_open(), link;
	uint8_t *memory = anonymous(length);
	struct device device;
	struct endpoint end;
	long before, found;
	struct deal deal;
	bool told;
	char byte;

	device_open(&device);
	device_needs_odp(&device, false);
	deal.remote = (uintptr_t)memory;
	deal.rkey = region(&device, memory, length, true)->rkey;
	content_fill(memory, KEY, 0, length);
	say("%zu MiB written, %ld MiB of them resident", length >> 20,
	    status_kib("/proc/self/status", "VmRSS") >> 10);
	endpoint_create(&end, &device, 1, 1);

	link = accept_from(listen_on(PORT));
	send_all(link, &deal, sizeof(deal));
	endpoint_meet(&end, link);
	endpoint_start(&end);
	if (faultlinedv_set_fault_policy(end.qp, FAULTLINEDV_FAULT_STALL))
		die("the policy stall: %m");
	before = device_counter(&device, "stall_timeouts");
	send_all(link, "", 1);
	receive_all(link, &byte, 1);

	found = device_counter(&device, "stall_timeouts") - before;
	told = reported(report);
	say("deadlocks found: %ld; reported: %s", found, told ? "yes" : "no");
	byte = found < 1 || !told || kmsg_complaints(log);
	send_all(link, &byte, 1);
	say("%s", byte ? "FAILED" : "all right");
	return byte;
}

static int drive(const char *host)
{
	int link = connect_to(host, PORT, SERVER_FILLS_MS);
	uint8_t *page = anonymous(PAGE);
	struct device device;
	struct endpoint end;
	struct ibv_mr *mr;
	struct deal deal;
	struct ibv_wc wc;
	char byte;

	if (link < 0)
		die("no server listens at %s:%u", host, PORT);
	device_open(&device);
	mr = region(&device, page, PAGE, false);
	receive_all(link, &deal, sizeof(deal));
	endpoint_create(&end, &device, 1, 1);
	endpoint_meet(&end, link);
	endpoint_start(&end);
	receive_all(link, &byte, 1);
	for (unsigned int i = 0; i < READS; i++) {
		uint64_t at = (uint64_t)i * STEP, started = now_ms();

		memset(page, 0, PAGE);
		endpoint_post(&end, &(struct request) {
			.opcode = IBV_WR_RDMA_READ, .local = page, .length = PAGE,
			.lkey = mr->lkey, .remote = deal.remote + at, .rkey = deal.rkey,
		});
		if (!endpoint_wait(&end, &wc, 60000))
			die("READ %u hangs", i);
		if (wc.status != IBV_WC_SUCCESS)
			die("READ %u: %s", i, ibv_wc_status_str(wc.status));
		if (content_wrong(page, KEY, at, PAGE))
			die("READ %u brings wrong bytes", i);
		say("READ %u: %" PRIu64 " ms", i, now_ms() - started);
	}
	send_all(link, "", 1);
	receive_all(link, &byte, 1);
	if (byte)
		die("the server has failed");
	say("all right");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--mib"))
		return serve(strtoull(argv[2], NULL, 0) << 20);
	if (argc == 2)
		return drive(argv[1]);
	die("usage: swap_deadlock --mib N | swap_deadlock ADDRESS");
}
