// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * failover: a stream over one of two NICs, as collective libraries have it: an
 * RC queue pair for each NIC. If the port of the first has an error, or its
 * retries end, the stream goes on over the second; when the port is active
 * again, it returns. Each chunk arrives exactly once and in order.
 *
 *	failover CONTROL-ADDRESS				the receiver
 *	failover --sends CONTROL-ADDRESS			the sender
 *
 * $RDMA_DEV and $GID_INDEX are the first NIC, $RDMA_DEV2 and $GID_INDEX2 the
 * second; the control connection must outlast errors of the first. With
 * --waits an end ignores errors of its port, so that only retries that end show
 * them. The stream ends when $FAILOVER_END exists at the sender.
 *
 * The sender WRITEs chunks with immediate data into slots of the receiver, which
 * WRITEs the number of chunks that it has verified back, as credits. Both ends
 * therefore have requests that can fail. The sender leads: it ends the queue
 * pair of the NIC that it leaves, asks the receiver to do the same and to say
 * which chunk it needs, and connects the queue pairs of the other NIC.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

#define PORT 18720
#define NICS 2
#define SLOTS 16
#define LONGEST (32 * 1024)
#define RECEIVES (2 * SLOTS)
#define SEED 41
/* Chunks over a NIC until this program says that it carries the stream. */
#define CARRIES 50
/* Identifier of a request that writes credits; those of chunks are smaller. */
#define CREDIT (1ULL << 32)

/* Messages of the control connection. */
enum kind {
	SWITCH = 1,	/* sender: end the queue pair; the stream goes on over NIC `nic` */
	NEEDS,		/* receiver: all that came is taken; chunk `chunk` is next */
	FAILED,		/* receiver: the NIC in use has failed here */
	ACTIVE,		/* receiver: the port of NIC `nic` is active again */
	END,		/* sender: there are `chunk` chunks in all */
};

struct control {
	uint32_t kind;
	uint32_t nic;
	uint64_t chunk;
};

struct memory {
	uint8_t slots[SLOTS][LONGEST];
	/* At the sender: chunks that the receiver has verified. At the receiver: the source of that. */
	volatile uint64_t credits;
};

struct nic {
	struct device device;
	struct endpoint end;
	struct ibv_mr *mr;
	/* Requests and receive requests without a completion. */
	unsigned int sends;
	unsigned int receives;
	bool has_failed;
	/* The port has become active after an error. */
	bool is_back;
	/* Address and key of the peer's memory. */
	uint64_t remote;
	uint32_t rkey;
};

static struct nic nics[NICS];
static struct memory *memory;
static unsigned int current;
static int control;
static bool sends, waits;
/* Sender: the next chunk to send. Receiver: the next one to come. */
static uint64_t next;
/* The first chunk since the last switch. */
static uint64_t since;
/* Requests that ended with IBV_WC_RETRY_EXC_ERR. */
static unsigned int retries_ended;

static size_t length_of(uint64_t chunk)
{
	return 1 + content_key(SEED, 1, chunk) % LONGEST;
}

static uint64_t key_of(uint64_t chunk)
{
	return content_key(SEED, 0, chunk);
}

static void tell(enum kind kind, unsigned int nic, uint64_t chunk)
{
	struct control message = { .kind = kind, .nic = nic, .chunk = chunk };

	send_all(control, &message, sizeof(message));
}

/* --- a NIC -------------------------------------------------------------- */

static void open_nic(struct nic *nic, const char *device, const char *gid_index)
{
	const char *name = getenv(device), *gid = getenv(gid_index);

	if (!name || !gid)
		die("%s and %s are not set", device, gid_index);
	device_open_named(&nic->device, name, atoi(gid));
	endpoint_create(&nic->end, &nic->device, 2 * SLOTS, RECEIVES);
	/* A quarter of a second, eight times. */
	nic->end.timeout = 16;
	nic->mr = region(&nic->device, memory, sizeof(*memory), false);
	if (fcntl(nic->device.context->async_fd, F_SETFL, O_NONBLOCK))
		die("fcntl: %m");
}

static void post_receive(struct nic *nic)
{
	/* A WRITE with immediate data needs no memory of it. */
	struct ibv_recv_wr work = {}, *bad;

	WANT(!ibv_post_recv(nic->end.qp, &work, &bad));
	nic->receives++;
}

/* Connects the queue pairs of a NIC at both ends, which begin with new PSNs. */
static void connect_nic(struct nic *nic)
{
	uint64_t own[2] = { (uintptr_t)memory, nic->mr->rkey }, peer[2];
	uint8_t ready = 1;

	nic->end.own.psn = (nic->end.own.psn + 0x1234) & 0xffffff;
	endpoint_meet(&nic->end, control);
	send_all(control, own, sizeof(own));
	receive_all(control, peer, sizeof(peer));
	nic->remote = peer[0];
	nic->rkey = peer[1];
	endpoint_stop(&nic->end);
	endpoint_start(&nic->end);
	if (!sends)
		while (nic->receives < RECEIVES)
			post_receive(nic);
	send_all(control, &ready, sizeof(ready));
	receive_all(control, &ready, sizeof(ready));
	nic->has_failed = false;
}

static void note_failure(struct nic *nic, const struct ibv_wc *wc)
{
	if (wc->status == IBV_WC_RETRY_EXC_ERR) {
		retries_ended++;
		say("NIC %u: retries have ended", current);
	} else if (wc->status != IBV_WC_WR_FLUSH_ERR) {
		die("NIC %u: a request ends with %s", current, ibv_wc_status_str(wc->status));
	}
	nic->has_failed = true;
}

/* The receiver's part of a completion: the next chunk must be right. */
static void take(struct nic *nic, const struct ibv_wc *wc)
{
	uint8_t *slot = memory->slots[next % SLOTS];
	size_t length = length_of(next);

	if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM)
		die("an unexpected completion of a receive request: %d", wc->opcode);
	if (ntohl(wc->imm_data) != (uint32_t)next)
		die("chunk %u comes instead of %lu", ntohl(wc->imm_data), next);
	if (wc->byte_len != length || content_wrong(slot, key_of(next), 0, length))
		die("chunk %lu is wrong", next);
	memset(slot, 0, length);
	next++;
	if (next - since == CARRIES)
		say("NIC %u carries the stream", (unsigned int)(nic - nics));
}

static bool poll_nic(struct nic *nic)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(nic->end.cq, 1, &wc);
	bool is_receive;

	if (count < 0)
		die("cannot poll a completion queue");
	if (!count)
		return false;
	/* A receiver posts numbered requests for its credits only. */
	is_receive = !sends && wc.wr_id == 0;
	if (is_receive)
		nic->receives--;
	else
		nic->sends--;
	if (wc.status != IBV_WC_SUCCESS)
		note_failure(nic, &wc);
	else if (is_receive)
		take(nic, &wc);
	return true;
}

/* Ends the queue pair, and takes earlier completions. */
static void leave(struct nic *nic)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	uint64_t limit = now_ms() + 30000;

	if (ibv_modify_qp(nic->end.qp, &error, IBV_QP_STATE))
		die("cannot end a queue pair: %m");
	while (nic->sends || nic->receives)
		if (!poll_nic(nic) && now_ms() > limit)
			die("%u requests and %u receive requests have no completion", nic->sends,
			    nic->receives);
}

/* --- events --------------------------------------------------------------- */

static void look_for_events(unsigned int index)
{
	struct nic *nic = &nics[index];
	struct ibv_async_event event;

	while (!ibv_get_async_event(nic->device.context, &event)) {
		if (event.event_type == IBV_EVENT_PORT_ERR) {
			say("NIC %u: port error", index);
			nic->is_back = false;
			if (!waits && index == current)
				nic->has_failed = true;
		} else if (event.event_type == IBV_EVENT_PORT_ACTIVE) {
			say("NIC %u: port active", index);
			nic->is_back = true;
		} else if (event.event_type == IBV_EVENT_QP_FATAL ||
			   event.event_type == IBV_EVENT_DEVICE_FATAL) {
			die("NIC %u: event %s", index, ibv_event_type_str(event.event_type));
		}
		ibv_ack_async_event(&event);
	}
}

static bool control_has_message(void)
{
	struct pollfd poller = { .fd = control, .events = POLLIN };

	return poll(&poller, 1, 0) > 0;
}

/* --- the sender ----------------------------------------------------------- */

static void switch_to(unsigned int nic)
{
	struct control answer;

	leave(&nics[current]);
	tell(SWITCH, nic, next);
	/* What the receiver said before it heard of the switch is about the time before it. */
	do {
		receive_all(control, &answer, sizeof(answer));
		if (answer.kind == ACTIVE)
			nics[answer.nic].is_back = true;
	} while (answer.kind != NEEDS);
	if (answer.chunk > next || answer.chunk < memory->credits)
		die("the receiver needs chunk %lu, sent are %lu, verified %lu", answer.chunk, next,
		    memory->credits);
	say("NIC %u to NIC %u: sent are %lu chunks, goes on with %lu", current, nic, next,
	    answer.chunk);
	next = answer.chunk;
	since = next;
	memory->credits = next;
	current = nic;
	connect_nic(&nics[nic]);
}

static void send_chunk(struct nic *nic)
{
	uint8_t *slot = memory->slots[next % SLOTS];
	size_t length = length_of(next);
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.id = next & (CREDIT - 1),
		.local = slot,
		.length = length,
		.lkey = nic->mr->lkey,
		.remote = nic->remote + offsetof(struct memory, slots[next % SLOTS]),
		.rkey = nic->rkey,
		.immediate = next,
	};

	content_fill(slot, key_of(next), 0, length);
	endpoint_post(&nic->end, &request);
	nic->sends++;
	next++;
	if (next - since == CARRIES)
		say("NIC %u carries the stream", current);
}

static void hear_receiver(void)
{
	struct control message;

	receive_all(control, &message, sizeof(message));
	if (message.kind == FAILED && message.nic == current)
		nics[current].has_failed = true;
	else if (message.kind == ACTIVE)
		nics[message.nic].is_back = true;
}

static void send_stream(const char *end)
{
	struct control message;

	for (;;) {
		struct nic *nic = &nics[current];

		for (unsigned int i = 0; i < NICS; i++)
			look_for_events(i);
		if (control_has_message())
			hear_receiver();
		while (poll_nic(nic))
			;
		if (nic->has_failed) {
			switch_to(!current);
			continue;
		}
		if (current && nics[0].is_back) {
			nics[0].is_back = false;
			switch_to(0);
			continue;
		}
		if (!access(end, F_OK)) {
			if (nic->sends)
				continue;
			break;
		}
		/* The slot of the chunk is free at both ends. */
		if (next - memory->credits < SLOTS && nic->sends < SLOTS)
			send_chunk(nic);
	}
	tell(END, 0, next);
	/* The queue pair answers until the receiver has all. */
	while (try_receive(control, &message, sizeof(message)))
		;
}

/* --- the receiver --------------------------------------------------------- */

static void send_credits(struct nic *nic)
{
	struct request request = {
		.opcode = IBV_WR_RDMA_WRITE,
		.id = CREDIT,
		.local = (void *)&memory->credits,
		.length = sizeof(memory->credits),
		.lkey = nic->mr->lkey,
		.remote = nic->remote + offsetof(struct memory, credits),
		.rkey = nic->rkey,
	};

	memory->credits = next;
	endpoint_post(&nic->end, &request);
	nic->sends++;
}

/* Returns the number of chunks that there are, once the sender has said it; 0 before. */
static uint64_t hear_sender(void)
{
	struct control message;

	receive_all(control, &message, sizeof(message));
	if (message.kind == END)
		return message.chunk;
	if (message.kind != SWITCH || message.nic >= NICS)
		die("an unexpected message: %u", message.kind);
	leave(&nics[current]);
	tell(NEEDS, current, next);
	say("NIC %u to NIC %u: goes on with chunk %lu", current, message.nic, next);
	current = message.nic;
	since = next;
	connect_nic(&nics[current]);
	return 0;
}

static void receive_stream(void)
{
	bool has_told = false;
	uint64_t total = 0;

	while (!total || next < total) {
		struct nic *nic = &nics[current];

		for (unsigned int i = 0; i < NICS; i++) {
			look_for_events(i);
			if (nics[i].is_back) {
				nics[i].is_back = false;
				tell(ACTIVE, i, 0);
			}
		}
		while (poll_nic(nic))
			;
		if (nic->has_failed && !has_told) {
			tell(FAILED, current, 0);
			has_told = true;
		}
		if (!nic->has_failed) {
			while (nic->receives < RECEIVES)
				post_receive(nic);
			if (next > memory->credits && !nic->sends)
				send_credits(nic);
		}
		if (control_has_message()) {
			unsigned int nic_before = current;

			total = hear_sender();
			if (current != nic_before)
				has_told = false;
		}
	}
	if (next != total)
		die("%lu chunks came, %lu were sent", next, total);
}

int main(int argc, char **argv)
{
	const char *end = getenv("FAILOVER_END");

	for (; argc > 2; argc--, argv++) {
		if (!strcmp(argv[1], "--sends"))
			sends = true;
		else if (!strcmp(argv[1], "--waits"))
			waits = true;
		else
			break;
	}
	if (argc != 2 || !end)
		die("usage: FAILOVER_END=PATH failover [--sends] [--waits] CONTROL-ADDRESS");
	memory = anonymous(sizeof(*memory));
	open_nic(&nics[0], "RDMA_DEV", "GID_INDEX");
	open_nic(&nics[1], "RDMA_DEV2", "GID_INDEX2");
	control = sends ? connect_to(argv[1], PORT, 20000) : accept_from(listen_on(PORT));
	if (control < 0)
		die("no receiver at %s", argv[1]);
	connect_nic(&nics[0]);
	if (sends)
		send_stream(end);
	else
		receive_stream();
	say("%lu chunks, each once and in order; retries have ended %u times", next, retries_ended);
	say("all right");
	return 0;
}
