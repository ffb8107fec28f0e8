// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The victim's side: areas, lanes' other ends, the threads that do the events, the verdict. */
#include "torture_area.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct end {
	int link;
	struct area *area;
	enum use use;
	/* Receives that the lane has posted; 0 if nothing is sent on it. */
	unsigned int receives;
	struct endpoint lane;
	struct endpoint steady;
	struct account account;
	/* Since the queue pair was started. */
	uint32_t posted;
	/* USE_SEND: the state that the area had reached when each receive was posted, and the next message. */
	uint64_t floor[LOSE_RECEIVES];
	uint32_t expected;
	/* The lane was started anew: messages that failed are not sent again. */
	bool restarted;
	pthread_t thread;
};

static struct end ends[MAX_LANES];
static unsigned int end_count;
static atomic_bool stopping;
static atomic_uint told;
/* Messages to memory that changes or goes which could be compared. */
static atomic_ullong landed_whole;

static uint8_t *inbox_slot(struct end *end, uint64_t index)
{
	size_t start = end->area->options->aligned ? 0 : index * 249 % PAGE;

	/* Every slot starts elsewhere in its first page. */
	return end->area->inbox + index * SLOT + start;
}

/* Tells a client that reads the book. */
static void count_posted(struct end *end)
{
	*(volatile uint32_t *)&end->area->book->posted = ++end->posted;
}

static void post_receive(struct end *end, uint64_t index)
{
	endpoint_receive(&end->lane, index, inbox_slot(end, index), MAX_MESSAGE,
			 end->area->inbox_mr->lkey);
	count_posted(end);
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

/* --- messages to memory that changes or goes --------------------------------- */

static uint8_t *landing_slot(struct end *end, uint64_t index)
{
	size_t start = end->area->options->aligned ? 0 : index * 249 % PAGE;

	return end->area->at + USE_SEND * PART + index * SLOT + start;
}

static void post_landing(struct end *end, uint64_t index)
{
	uint64_t remote = area_remote(end->area) + (landing_slot(end, index) - end->area->at);

	end->floor[index] = *(volatile uint64_t *)&end->area->book->floor;
	atomic_thread_fence(memory_order_seq_cst);
	endpoint_receive(&end->lane, index, (void *)(uintptr_t)remote, MAX_MESSAGE,
			 end->area->lkey);
	count_posted(end);
}

/*
 * The states that the area may have been in since a receive was posted: whether
 * one of them has taken the memory away, and whether it is a single one. False if
 * there were too many.
 */
static bool states_since(const struct end *end, uint64_t floor, bool *gone, bool *single)
{
	const struct book *book = end->area->book;
	uint64_t ceiling;

	atomic_thread_fence(memory_order_seq_cst);
	ceiling = *(volatile uint64_t *)&book->ceiling;
	*gone = false;
	*single = floor == ceiling;
	if (ceiling - floor >= WINDOW)
		return false;
	for (uint64_t number = floor; number <= ceiling; number++) {
		enum content content = STATE_CONTENT(book->state[number % HISTORY]);

		*gone |= content == CONTENT_GONE || content == CONTENT_READ_ONLY;
	}
	return true;
}

static void complain(struct end *end, const char *what, const struct ibv_wc *wc)
{
	if (atomic_fetch_add(&told, 1) < 20)
		say("area %u, message %u: %s (%s)", end->area->index, end->expected, what,
		    ibv_wc_status_str(wc->status));
	end->account.wrong_bytes++;
}

static void landed(struct end *end, const struct ibv_wc *wc)
{
	static __thread uint8_t data[MAX_MESSAGE];
	struct iovec here = { data, wc->byte_len };
	struct iovec there = { landing_slot(end, wc->wr_id), wc->byte_len };
	uint64_t floor = end->floor[wc->wr_id];
	bool gone, single;
	ssize_t copied;
	uint32_t number;

	if (wc->status == IBV_WC_WR_FLUSH_ERR)
		return;
	if (wc->status != IBV_WC_SUCCESS) {
		if (wc->status != IBV_WC_LOC_PROT_ERR)
			complain(end, "a wrong status", wc);
		else if (states_since(end, floor, &gone, &single) && !gone)
			complain(end, "refused, and the memory was there all the time", wc);
		return;
	}
	number = wc->wc_flags & IBV_WC_WITH_IMM ? ntohl(wc->imm_data) : end->expected;
	if (number < end->expected || (number > end->expected && !end->restarted))
		complain(end, "not the next one", wc);
	end->expected = number + 1;
	end->restarted = false;
	end->account.received++;
	/* Not by a plain access: the memory may go meanwhile. */
	copied = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
	if (states_since(end, floor, &gone, &single) && single) {
		size_t wrong;

		if (copied != (ssize_t)wc->byte_len) {
			complain(end, "it can't be read", wc);
		} else {
			wrong = content_wrong(data,
					      content_key(end->area->options->seed,
							  USE_SEND * PART, number),
					      0, wc->byte_len);
			if (wrong)
				complain(end, "wrong bytes", wc);
			atomic_fetch_add(&landed_whole, 1);
		}
	}
	post_landing(end, wc->wr_id);
}

/* --- the lanes' other ends --------------------------------------------------- */

static void post_receives(struct end *end)
{
	for (uint64_t i = 0; i < end->receives; i++)
		(end->use == USE_SEND ? post_landing : post_receive)(end, i);
}

/* Takes the next completion; false if none comes in `ms`. */
static bool take_completion(struct end *end, unsigned int ms)
{
	struct ibv_wc wc;

	if (!end->receives || !endpoint_wait(&end->lane, &wc, ms))
		return false;
	(end->use == USE_SEND ? landed : received)(end, &wc);
	return true;
}

static void lane_start_anew(struct end *end)
{
	uint64_t next;

	receive_all(end->link, &next, sizeof(next));
	while (take_completion(end, 0))
		;
	endpoint_stop(&end->lane);
	endpoint_listen(&end->lane);
	end->restarted = true;
	if (device_is_iwarp(end->lane.device))
		end->expected = next;
	end->posted = 0;
	post_receives(end);
	endpoint_connect_telling(&end->lane, end->link, COMMAND_RESTART);
}

static void finish(struct end *end)
{
	/* The client has its acknowledgements; the completions are on their way at most. */
	while (take_completion(end, 200))
		;
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
		char command = 0;
		ssize_t got;
		unsigned int drained = 0;

		while (drained < RECEIVES && take_completion(end, 0))
			drained++;
		got = recv(end->link, &command, 1, MSG_DONTWAIT);
		if (got == 0)
			die("the client is gone");
		if (got < 0) {
			struct pollfd link = { .fd = end->link, .events = POLLIN };

			/* Lanes without receives have nothing else to do. */
			if (!drained)
				poll(&link, 1, end->receives ? 1 : 1000);
			continue;
		}
		if (command == COMMAND_RESTART) {
			lane_start_anew(end);
		} else {
			finish(end);
			return NULL;
		}
	}
}

/* The area of a lane: a new one, or for lanes that write the one that another lane reads. */
static struct area *area_for(const struct greeting *greeting, struct device *device,
			     const struct options *options, struct book *book,
			     struct ibv_mr *implicit)
{
	struct area *area;

	if (greeting->use != USE_READ) {
		area = area_of(greeting->kind);
		if (!area || greeting->kind <= KEEP_PAIRS)
			die("there is no area of kind %u to write to", greeting->kind);
		return area;
	}
	area = area_create(device, options, greeting->kind, book);
	area_register(area, implicit);
	book->floor = book->ceiling = HISTORY;
	book->not_floor = book->not_ceiling = ~book->floor;
	book->state[0] = STATE(0, CONTENT_PATTERN);
	book->rkey = area->mr->rkey;
	return area;
}

static void set_policy(const struct endpoint *end, const struct options *options)
{
	int error = 0;

	if (options->policy)
		error = faultlinedv_set_fault_policy(end->qp, options->policy->number);
	if (error)
		die("cannot set a fault policy: %s", strerror(error));
}

static void end_create(int link, const struct greeting *greeting, struct device *device,
		       const struct options *options, uint8_t *books, struct ibv_mr *books_mr,
		       struct ibv_mr *implicit)
{
	struct end *end = &ends[end_count];
	/* A page each: reading one must not depend on another. */
	struct book *book = (struct book *)(books + end_count * PAGE);
	struct offer offer;
	bool parted;

	if (greeting->hello != HELLO_LANE || greeting->kind >= KINDS || greeting->use >= USES ||
	    end_count == MAX_LANES)
		die("this is no client of this program");
	end_count++;
	end->link = link;
	end->use = greeting->use;
	end->area = area_for(greeting, device, options, book, implicit);
	if (end->area->inbox)
		end->receives = RECEIVES;
	else if (end->use == USE_SEND)
		end->receives = LOSE_RECEIVES;
	parted = end->area->kind > KEEP_PAIRS;
	memset(&offer, 0, sizeof(offer));
	offer.base = parted ? end->use * PART : 0;
	offer.remote = area_remote(end->area) + offer.base;
	offer.length = parted ? PART : end->area->length;
	offer.book = (uintptr_t)end->area->book;
	offer.area = end->area->index;
	offer.rkey = end->area->mr->rkey;
	offer.book_rkey = books_mr->rkey;
	send_all(link, &offer, sizeof(offer));
	endpoint_create(&end->lane, device, 1, end->receives ? end->receives : 1);
	endpoint_meet(&end->lane, link);
	endpoint_start(&end->lane);
	set_policy(&end->lane, options);
	if (has_steady(end->area->kind, end->use)) {
		endpoint_create(&end->steady, device, 1, 1);
		endpoint_meet(&end->steady, link);
		endpoint_start(&end->steady);
		set_policy(&end->steady, options);
	}
	post_receives(end);
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
	return event->chosen && !event->took;
}

/* How many of the events have done nothing; of those that may still do something. */
static unsigned int events_pending(void)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < event_count; i++)
		count += is_idle(&events[i]) && !events[i].skipped;
	return count;
}

/* The same of all: an event that could not run has shown nothing. */
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
			say("%-10s could not run: %s", event->name, event->skipped);
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
	long applied = 0;

	device_open(&device);
	if (options->policy)
		applied = device_counter(&device, options->policy->counter);
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
		uint8_t count = events_pending();

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
	say("messages to memory that changes or goes compared %llu", landed_whole);
	say("wrong bytes or failures received %zu, wrong after fork or in memory without a region %zu, "
	    "pinned pages of the regions %lld, kernel complaints %u, events without effect %u",
	    wrong, events_wrong, (long long)pinned, complaints, idle);
	if (options->policy) {
		applied = device_counter(&device, options->policy->counter) - applied;
		say("the policy %s was applied %ld times", options->policy->name, applied);
		if (applied <= 0)
			wrong++;
	}
	answer = wrong || events_wrong || pinned || complaints || idle || !landed_whole;
	command = answer;
	try_send(main_link, &command, 1);
	say("%s", answer ? "FAILED" : "all right");
	return answer;
}
