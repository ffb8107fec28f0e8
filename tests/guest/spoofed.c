// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * spoofed: a third guest uses the IP address of one end of an RC connection,
 * and knows its queue pair numbers, PSNs and keys. The other end takes none of
 * its packets, and the connection goes on.
 *
 *	spoofed victim				the end that is attacked
 *	spoofed owner VICTIM-ADDRESS		the other end
 *	spoofed attacker VICTIM-ADDRESS		its $GID_INDEX has the owner's address
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

#define PORT 18730
/* One packet. */
#define SIZE 1024
#define SEED 4
#define ROUNDS 3

/* Data for the attacker. */
struct secret {
	struct address victim;
	uint32_t psn;
	uint32_t rkey;
	uint64_t remote;
};

/* Content of a SEND in a round, and of memory that no packet may change. */
static uint64_t key_of(uint64_t round)
{
	return content_key(SEED, 0, round);
}

static void want_success(struct endpoint *end)
{
	struct ibv_wc wc;

	if (!endpoint_wait(end, &wc, 20000))
		die("no completion");
	if (wc.status != IBV_WC_SUCCESS)
		die("a completion has status %s", ibv_wc_status_str(wc.status));
}

static long bad_sources(struct device *device)
{
	long count = device_counter(device, "rx_bad_source");

	WANT(count >= 0);
	return count;
}

/* The owner's next message, after all forged packets of the attacker. */
static void receive(struct endpoint *end, struct ibv_mr *mr, uint8_t *buffer, unsigned int round,
		    int owner)
{
	uint8_t go = 1;

	send_all(owner, &go, sizeof(go));
	want_success(end);
	if (content_wrong(buffer, key_of(round), 0, SIZE))
		die("message %u is not the owner's", round);
	endpoint_receive(end, round, buffer, SIZE, mr->lkey);
}

static void be_victim(void)
{
	int listener = listen_on(PORT), owner, attacker;
	uint8_t *memory = anonymous(2 * SIZE), *target = memory + SIZE, done;
	struct device device;
	struct endpoint end;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	long before;

	device_open(&device);
	mr = region(&device, memory, 2 * SIZE, false);
	content_fill(target, key_of(ROUNDS), 0, SIZE);
	endpoint_create(&end, &device, 4, 4);
	owner = accept_from(listener);
	endpoint_meet(&end, owner);
	endpoint_start(&end);
	endpoint_receive(&end, 0, memory, SIZE, mr->lkey);
	receive(&end, mr, memory, 0, owner);
	say("the first message is verified");
	attacker = accept_from(listener);
	for (unsigned int round = 1; round < ROUNDS; round++) {
		struct secret secret = {
			.victim = end.own,
			.psn = (end.peer.psn + round) & 0xffffff,
			.rkey = mr->rkey,
			.remote = (uintptr_t)target,
		};

		before = bad_sources(&device);
		send_all(attacker, &secret, sizeof(secret));
		receive_all(attacker, &done, sizeof(done));
		if (endpoint_wait(&end, &wc, 0))
			die("a packet of the attacker has completed a request: %s",
			    ibv_wc_status_str(wc.status));
		if (content_wrong(target, key_of(ROUNDS), 0, SIZE))
			die("the attacker has written into memory");
		if (bad_sources(&device) <= before)
			die("the attacker's packets are not counted");
		receive(&end, mr, memory, round, owner);
	}
	say("PASS");
}

static void be_owner(const char *victim)
{
	int fd = connect_to(victim, PORT, 20000);
	uint8_t *memory = anonymous(SIZE), go;
	struct device device;
	struct endpoint end;
	struct ibv_mr *mr;

	device_open(&device);
	mr = region(&device, memory, SIZE, false);
	endpoint_create(&end, &device, 4, 4);
	if (128U << device.mtu < SIZE)
		die("the MTU is below %u", SIZE);
	endpoint_meet(&end, fd);
	endpoint_start(&end);
	for (unsigned int round = 0; round < ROUNDS; round++) {
		struct request request = {
			.opcode = IBV_WR_SEND, .id = round, .local = memory, .length = SIZE,
			.lkey = mr->lkey,
		};

		receive_all(fd, &go, sizeof(go));
		content_fill(memory, key_of(round), 0, SIZE);
		endpoint_post(&end, &request);
		want_success(&end);
	}
	say("PASS");
}

/* One request towards the victim, as the owner would send it. It must end without an answer. */
static void attack(struct endpoint *end, const struct request *request)
{
	struct ibv_wc wc;

	endpoint_stop(end);
	endpoint_start(end);
	endpoint_post(end, request);
	if (!endpoint_wait(end, &wc, 20000))
		die("no completion");
	if (wc.status != IBV_WC_RETRY_EXC_ERR)
		die("request %d ends with status %s", request->opcode,
		    ibv_wc_status_str(wc.status));
}

static void be_attacker(const char *victim)
{
	int fd = connect_to(victim, PORT, 20000);
	uint8_t *memory = anonymous(SIZE), done = 1;
	struct device device;
	struct endpoint end;
	struct ibv_mr *mr;

	device_open(&device);
	mr = region(&device, memory, SIZE, false);
	memset(memory, 0x5a, SIZE);
	endpoint_create(&end, &device, 4, 4);
	end.timeout = 12;
	end.retries = 1;
	for (unsigned int round = 1; round < ROUNDS; round++) {
		struct secret secret;
		struct request request = {
			.local = memory, .length = SIZE, .lkey = mr->lkey,
		};

		receive_all(fd, &secret, sizeof(secret));
		end.peer = secret.victim;
		end.own.psn = secret.psn;
		request.remote = secret.remote;
		request.rkey = secret.rkey;
		request.opcode = IBV_WR_RDMA_WRITE;
		attack(&end, &request);
		request.opcode = IBV_WR_SEND;
		attack(&end, &request);
		/* A refusal would end the victim's connection. */
		request.opcode = IBV_WR_RDMA_WRITE;
		request.rkey = secret.rkey ^ 0x100;
		attack(&end, &request);
		send_all(fd, &done, sizeof(done));
	}
	say("PASS");
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "victim"))
		be_victim();
	else if (argc == 3 && !strcmp(argv[1], "owner"))
		be_owner(argv[2]);
	else if (argc == 3 && !strcmp(argv[1], "attacker"))
		be_attacker(argv[2]);
	else
		die("usage: spoofed victim | owner VICTIM-ADDRESS | attacker VICTIM-ADDRESS");
	return 0;
}
