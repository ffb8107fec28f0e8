// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The victim's side: areas, lanes' other ends, the threads that do the events, the verdict. */
#include "torture_area.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct end {
	int link;
	struct area *area;
	struct endpoint lane;
	struct endpoint steady;
	struct account account;
	pthread_t thread;
};

static struct end ends[MAX_LANES];
static unsigned int end_count;
static atomic_bool stopping;
static atomic_uint told;

static uint8_t *inbox_slot(struct end *end, uint64_t index)
{
	size_t start = end->area->options->aligned ? 0 : index * 249 % PAGE;

	/* Every slot starts elsewhere in its first page. */
	return end->area->inbox + index * SLOT + start;
}

static void post_receive(struct end *end, uint64_t index)
{
	endpoint_receive(&end->lane, index, inbox_slot(end, index), MAX_MESSAGE,
			 end->area->inbox_mr->lkey);
}

/* Looks at one received message and gives its memory to the next. */
static void received(struct end *end, const struct ibv_wc *wc)
{
	const uint8_t *at = inbox_slot(end, wc->wr_id);
	struct message head;
	size_t wrong;

	if (wc->status != IBV_WC_SUCCESS) {
		/* A lane of GO kind is started anew and has posted nothing; others must not fail. */
		if (atomic_fetch_add(&told, 1) < 20)
			say("area %u: a receive ended with %s", end->area->index,
			    ibv_wc_status_str(wc->status));
		end->account.wrong_bytes++;
		return;
	}
	memcpy(&head, at, sizeof(head));
	wrong = head.number != end->account.received;
	wrong += content_wrong(at + sizeof(head), head.key, sizeof(head),
			       wc->byte_len - sizeof(head));
	if (wrong && atomic_fetch_add(&told, 1) < 20)
		say("area %u: message %llu (it says %llu) of %u bytes has %zu wrong ones",
		    end->area->index, (unsigned long long)end->account.received,
		    (unsigned long long)head.number, wc->byte_len, wrong);
	end->account.wrong_bytes += wrong;
	end->account.received++;
	/* The next message finds no page there. */
	if (!end->area->options->pinned)
		madvise(end->area->inbox + wc->wr_id * SLOT, SLOT, MADV_DONTNEED);
	post_receive(end, wc->wr_id);
}

static void finish(struct end *end)
{
	struct ibv_wc wc;

	/* The client has its acknowledgements; the completions are on their way at most. */
	while (end->area->inbox && endpoint_wait(&end->lane, &wc, 200))
		received(end, &wc);
	if (end->area->kind <= KEEP_PAIRS) {
		struct checksum sum;

		checksum_init(&sum);
		checksum_add(&sum, end->area->at, end->area->length);
		memcpy(end->account.sum, sum.lane, sizeof(end->account.sum));
	}
	send_all(end->link, &end->account, sizeof(end->account));
}

static void *end_run(void *argument)
{
	struct end *end = argument;

	for (;;) {
		struct ibv_wc wc;
		char command = 0;
		ssize_t got;
		unsigned int drained = 0;

		while (end->area->inbox && drained < RECEIVES && endpoint_wait(&end->lane, &wc, 0)) {
			received(end, &wc);
			drained++;
		}
		got = recv(end->link, &command, 1, MSG_DONTWAIT);
		if (got == 0)
			die("the client is gone");
		if (got < 0) {
			struct pollfd link = { .fd = end->link, .events = POLLIN };

			/* Lanes without receives have nothing else to do. */
			if (!drained)
				poll(&link, 1, end->area->inbox ? 1 : 1000);
			continue;
		}
		if (command == COMMAND_RESTART) {
			endpoint_stop(&end->lane);
			endpoint_start(&end->lane);
			send_all(end->link, &command, 1);
		} else {
			finish(end);
			return NULL;
		}
	}
}

static void end_create(int link, const struct greeting *greeting, struct device *device,
		       const struct options *options, uint8_t *books, struct ibv_mr *books_mr,
		       struct ibv_mr *implicit)
{
	struct end *end = &ends[end_count];
	/* A page each: reading one must not depend on another. */
	struct book *book = (struct book *)(books + end_count * PAGE);
	struct offer offer;

	if (greeting->hello != HELLO_LANE || greeting->kind >= KINDS || end_count == MAX_LANES)
		die("this is no client of this program");
	end_count++;
	end->link = link;
	end->area = area_create(device, options, greeting->kind, book);
	area_register(end->area, implicit);
	book->floor = book->ceiling = HISTORY;
	book->not_floor = book->not_ceiling = ~book->floor;
	book->state[0] = CONTENT_PATTERN;
	book->rkey = end->area->mr->rkey;
	memset(&offer, 0, sizeof(offer));
	offer.remote = area_remote(end->area);
	offer.length = end->area->length;
	offer.book = (uintptr_t)book;
	offer.area = end->area->index;
	offer.rkey = end->area->mr->rkey;
	offer.book_rkey = books_mr->rkey;
	send_all(link, &offer, sizeof(offer));
	endpoint_create(&end->lane, device, 1, RECEIVES);
	endpoint_meet(&end->lane, link);
	endpoint_start(&end->lane);
	if (end->area->kind == GO || end->area->kind == GO_REGION) {
		endpoint_create(&end->steady, device, 1, 1);
		endpoint_meet(&end->steady, link);
		endpoint_start(&end->steady);
	}
	if (end->area->inbox)
		for (uint64_t i = 0; i < RECEIVES; i++)
			post_receive(end, i);
	send_all(link, &(char){ 0 }, 1);
	if (pthread_create(&end->thread, NULL, end_run, end))
		die("cannot start a thread");
}

/* One of two threads: the events that keep contents, or those that do not. */
static void *events_run(void *argument)
{
	bool keeps = argument;

	while (!stopping) {
		bool any = false;

		for (unsigned int i = 0; i < event_count && !stopping; i++) {
			struct event *event = &events[i];

			if (!event->chosen || event->keeps != keeps || event->skipped)
				continue;
			any = true;
			event->took += event->run(event);
			event->tried++;
			sleep_ms(keeps ? 20 : 2);
		}
		if (!any)
			sleep_ms(100);
	}
	return NULL;
}

static bool is_idle(const struct event *event)
{
	return event->chosen && !event->skipped && !event->took;
}

/* How many of the events have done nothing. */
static unsigned int events_idle(void)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < event_count; i++)
		count += is_idle(&events[i]);
	return count;
}

static void events_report(void)
{
	say("%-10s %8s %10s %10s", "event", "times", "effect", "moved");
	for (unsigned int i = 0; i < event_count; i++) {
		const struct event *event = &events[i];

		if (!event->chosen)
			continue;
		if (event->skipped)
			say("%-10s skipped: %s", event->name, event->skipped);
		else
			say("%-10s %8lu %10zu %10zu%s", event->name, event->tried, event->took,
			    event->moved, is_idle(event) ? "  <- never took effect" : "");
	}
}

int victim(const struct options *options)
{
	int log = kmsg_open(), listener, main_link, answer;
	struct greeting greeting;
	struct device device;
	struct ibv_mr *books_mr, *implicit = NULL;
	pthread_t keeping, losing;
	unsigned int idle, complaints;
	int64_t pinned;
	uint8_t *books;
	size_t wrong = 0;
	char command = 0;

	device_open(&device);
	if (!options->pinned)
		device_needs_odp(&device, options->implicit);
	books = anonymous(MAX_LANES * PAGE);
	books_mr = region(&device, books, MAX_LANES * PAGE, !options->pinned);
	if (options->implicit)
		implicit = region(&device, NULL, SIZE_MAX, true);
	events_prepare(options);
	listener = listen_on(options->port);
	main_link = accept_from(listener);
	receive_all(main_link, &greeting, sizeof(greeting));
	if (greeting.seed != options->seed)
		die("both sides need the same --seed");
	while (command != COMMAND_GO) {
		struct pollfd polls[] = {
			{ .fd = listener, .events = POLLIN },
			{ .fd = main_link, .events = POLLIN },
		};

		if (poll(polls, 2, 60000) <= 0)
			die("the client does not come");
		if (polls[1].revents)
			receive_all(main_link, &command, 1);
		if (polls[0].revents & POLLIN) {
			int link = accept_from(listener);

			receive_all(link, &greeting, sizeof(greeting));
			end_create(link, &greeting, &device, options, books, books_mr, implicit);
		}
	}
	if (pthread_create(&keeping, NULL, events_run, (void *)1) ||
	    pthread_create(&losing, NULL, events_run, NULL))
		die("cannot start a thread");
	for (receive_all(main_link, &command, 1); command == COMMAND_ASK;
	     receive_all(main_link, &command, 1)) {
		uint8_t count = events_idle();

		send_all(main_link, &count, 1);
	}
	stopping = true;
	pthread_join(keeping, NULL);
	pthread_join(losing, NULL);
	send_all(main_link, &command, 1);
	for (unsigned int i = 0; i < end_count; i++) {
		pthread_join(ends[i].thread, NULL);
		wrong += ends[i].account.wrong_bytes + ends[i].account.doubled;
	}
	receive_all(main_link, &command, 1);

	/* Whatever else is pinned on this machine stays when the regions go. */
	pinned = pinned_pages();
	for (unsigned int i = 0; i < area_count; i++) {
		if (areas[i].mr != implicit && ibv_dereg_mr(areas[i].mr))
			die("cannot deregister an area: %m");
		if (areas[i].inbox_mr && areas[i].inbox_mr != implicit &&
		    ibv_dereg_mr(areas[i].inbox_mr))
			die("cannot deregister an inbox: %m");
	}
	if (ibv_dereg_mr(books_mr) || (implicit && ibv_dereg_mr(implicit)))
		die("cannot deregister: %m");
	pinned -= pinned_pages();
	if (options->pinned)
		pinned = pinned >= MAX_LANES ? 0 : -1;

	events_report();
	idle = events_idle();
	complaints = kmsg_complaints(log);
	say("wrong bytes or failures received %zu, wrong after fork %zu, pinned pages of the regions %lld, "
	    "kernel complaints %u, events without effect %u",
	    wrong, events_wrong, (long long)pinned, complaints, idle);
	answer = wrong || events_wrong || pinned || complaints || idle;
	command = answer;
	try_send(main_link, &command, 1);
	say("%s", answer ? "FAILED" : "all right");
	return answer;
}
