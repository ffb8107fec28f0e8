// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * rds_pair: RDS over RDMA between two guests: messages of many sizes, and
 * RDMA in both directions, all verified.
 *
 *	rds_pair [--file PATH] OWN-ADDRESS			the server
 *	rds_pair [--file PATH] OWN-ADDRESS PEER-ADDRESS		the client
 *	rds_pair --until PATH OWN-ADDRESS PEER-ADDRESS		a client
 *
 * With --file, RDMA is between mappings of that file. With --until the client
 * exchanges messages, and does no RDMA, until that file exists.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rds.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

#define SERVER_PORT 18700
#define CLIENT_PORT 18701
/* TCP: listened on when messages can come. They get lost otherwise. */
#define READY_PORT 18640
#define LONGEST (64 * 1024)
#define MESSAGES 300
#define WINDOW (1 << 20)
/* Longer than a device is stopped in a test. */
#define ANSWER_MS 120000
/* Fills memory that is to be read into. */
#define UNREAD 0xa5

enum kind {
	ECHO = 1,	/* comes back */
	WRITTEN,	/* the window holds this content */
	FILL,		/* the window shall hold this content */
	QUIT,
};

struct message {
	uint32_t kind;
	uint32_t length;
	uint64_t key;
	uint8_t data[LONGEST];
};

#define HEADER offsetof(struct message, data)

static struct sockaddr_in address_of(const char *text, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	if (!inet_aton(text, &address.sin_addr))
		die("%s is not an address", text);
	return address;
}

static int open_socket(const char *own, uint16_t port)
{
	struct sockaddr_in address = address_of(own, port);
	int fd = socket(AF_RDS, SOCK_SEQPACKET, 0), transport = RDS_TRANS_IB;

	if (fd < 0)
		die("RDS: %m");
	if (setsockopt(fd, SOL_RDS, SO_RDS_TRANSPORT, &transport, sizeof(transport)))
		die("RDS over RDMA: %m");
	if (bind(fd, (void *)&address, sizeof(address)))
		die("bind to %s: %m", own);
	return fd;
}

static void put_control(struct msghdr *header, int type, const void *data, size_t size)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(header);

	c->cmsg_level = SOL_RDS;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(c), data, size);
}

/* With a window, the peer learns a name for it: the memory is registered on the connection that the message takes. */
static void put(int fd, const struct sockaddr_in *to, const struct message *message, size_t length,
		uint8_t *window)
{
	struct iovec iov = { (void *)message, HEADER + length };
	uint64_t cookie;
	struct rds_get_mr_args map = {
		.vec = { (uintptr_t)window, WINDOW },
		.cookie_addr = (uintptr_t)&cookie,
		.flags = RDS_RDMA_READWRITE,
	};
	char control[CMSG_SPACE(sizeof(map))] = {};
	struct msghdr header = {
		.msg_name = (void *)to, .msg_namelen = sizeof(*to),
		.msg_iov = &iov, .msg_iovlen = 1,
	};

	if (window) {
		header.msg_control = control;
		header.msg_controllen = sizeof(control);
		put_control(&header, RDS_CMSG_RDMA_MAP, &map, sizeof(map));
	}
	while (sendmsg(fd, &header, 0) < 0) {
		struct pollfd poller = { .fd = fd, .events = POLLOUT };

		if (errno != EAGAIN && errno != ENOBUFS)
			die("sendmsg: %m");
		poll(&poller, 1, 1000);
	}
}

/* What else may come of recvmsg. */
struct extra {
	/* The peer's window, as RDS names it. */
	rds_rdma_cookie_t window;
	/* How an RDMA operation has ended. */
	int status;
};

/* The next message; with `extra`, also a name for the peer's window, or the end of an RDMA operation without a message. */
static size_t get(int fd, struct message *message, struct sockaddr_in *from, struct extra *extra)
{
	struct iovec iov = { message, sizeof(*message) };
	char control[256];

	for (;;) {
		struct msghdr header = {
			.msg_name = from, .msg_namelen = from ? sizeof(*from) : 0,
			.msg_iov = &iov, .msg_iovlen = 1,
			.msg_control = control, .msg_controllen = sizeof(control),
		};
		struct pollfd poller = { .fd = fd, .events = POLLIN };
		ssize_t got;

		if (poll(&poller, 1, ANSWER_MS) != 1)
			die("nothing comes");
		got = recvmsg(fd, &header, MSG_DONTWAIT);
		if (got < 0 && errno != EAGAIN)
			die("recvmsg: %m");
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); got >= 0 && c;
		     c = CMSG_NXTHDR(&header, c)) {
			struct rds_rdma_notify notify;

			if (c->cmsg_level != SOL_RDS)
				continue;
			if (!extra)
				die("control message %d is not expected", c->cmsg_type);
			switch (c->cmsg_type) {
			case RDS_CMSG_RDMA_DEST:
				memcpy(&extra->window, CMSG_DATA(c), sizeof(extra->window));
				break;
			case RDS_CMSG_RDMA_STATUS:
				memcpy(&notify, CMSG_DATA(c), sizeof(notify));
				extra->status = notify.status;
				return 0;
			}
		}
		if (got > 0)
			return got;
	}
}

/* Memory for RDMA: anonymous, or of a file. */
static uint8_t *window_memory(const char *path)
{
	uint8_t *window;
	int fd;

	if (!path)
		return anonymous(WINDOW);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, WINDOW))
		die("%s: %m", path);
	window = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (window == MAP_FAILED)
		die("mapping %s: %m", path);
	close(fd);
	return window;
}

static void serve(int fd, uint8_t *window)
{
	static struct message message;
	bool offered = false;

	listen_on(READY_PORT);
	for (;;) {
		struct sockaddr_in from;
		bool offer = false;
		size_t got = get(fd, &message, &from, NULL);

		if (got < HEADER || got != HEADER + message.length)
			die("a message of %zu bytes says that it has %u", got, message.length);
		switch (message.kind) {
		case WRITTEN:
			if (content_wrong(window, message.key, 0, WINDOW))
				die("what was written by RDMA is wrong");
			break;
		case FILL:
			content_fill(window, message.key, 0, WINDOW);
			offer = !offered;
			offered = true;
			break;
		}
		put(fd, &from, &message, message.length, offer ? window : NULL);
		if (message.kind == QUIT)
			break;
	}
	sleep_ms(500);
	say("all right");
}

static void ask(int fd, const struct sockaddr_in *peer, uint32_t kind, uint64_t key,
		struct extra *extra)
{
	static struct message message;

	message.kind = kind;
	message.key = key;
	put(fd, peer, &message, 0, NULL);
	get(fd, &message, NULL, extra);
	if (message.kind != kind)
		die("the answer to %u is %u", kind, message.kind);
}

/*
 * A READ has a fence. Otherwise the message behind it may arrive before the
 * data of the READ have been sent, for example while they wait for a page, and
 * RDS reports the operation when the peer has acknowledged the message.
 */
static void rdma(int fd, const struct sockaddr_in *peer, rds_rdma_cookie_t window, uint8_t *local,
		 bool write)
{
	struct rds_iovec vec = { (uintptr_t)local, WINDOW };
	struct rds_rdma_args args = {
		.cookie = window,
		.remote_vec = { 0, WINDOW },
		.local_vec_addr = (uintptr_t)&vec,
		.nr_local = 1,
		.flags = RDS_RDMA_NOTIFY_ME | (write ? RDS_RDMA_READWRITE : RDS_RDMA_FENCE),
		.user_token = 4711,
	};
	char control[CMSG_SPACE(sizeof(args))] = {};
	struct msghdr header = {
		.msg_name = (void *)peer, .msg_namelen = sizeof(*peer),
		.msg_control = control, .msg_controllen = sizeof(control),
	};
	struct extra extra = { .status = -1 };
	static struct message unused;

	put_control(&header, RDS_CMSG_RDMA_ARGS, &args, sizeof(args));
	if (sendmsg(fd, &header, 0) < 0)
		die("RDMA %s: %m", write ? "write" : "read");
	get(fd, &unused, NULL, &extra);
	/* proves: IBK_ON_DEMAND_PAGING */
	if (extra.status != RDS_RDMA_SUCCESS)
		die("RDMA %s: status %d", write ? "write" : "read", extra.status);
}

/* The data is wrong: prints the place, and the data there. */
static void explain(const uint8_t *local, uint64_t key, uint64_t before)
{
	size_t first = WINDOW, last = 0, wrong = 0, unread = 0, old = 0;

	for (size_t i = 0; i < WINDOW; i++) {
		if (local[i] == content_byte(key, i))
			continue;
		if (!wrong++)
			first = i;
		last = i;
		unread += local[i] == UNREAD;
		old += local[i] == content_byte(before, i);
	}
	die("what was read by RDMA is wrong: %zu bytes from %zu to %zu, of which %zu were not written and %zu are older",
	    wrong, first, last, unread, old);
}

/* The server returns a message of any size. */
static void echo(int fd, const struct sockaddr_in *peer, struct rng *rng, unsigned int number)
{
	static struct message message, copy;

	message.kind = ECHO;
	message.length = rng_below(rng, LONGEST + 1);
	message.key = content_key(1, 0, number);
	content_fill(message.data, message.key, 0, message.length);
	put(fd, peer, &message, message.length, NULL);
	get(fd, &copy, NULL, NULL);
	if (copy.length != message.length || copy.key != message.key ||
	    memcmp(copy.data, message.data, message.length))
		die("message %u comes back changed", number);
}

static void echo_until(int fd, const char *path, const char *host)
{
	struct sockaddr_in peer = address_of(host, SERVER_PORT);
	struct rng rng = { 1 };
	unsigned int messages = 0;

	do {
		echo(fd, &peer, &rng, messages++);
		if (messages == 1)
			say("the first message is verified");
	} while (access(path, F_OK));
	say("%u messages verified", messages);
	ask(fd, &peer, QUIT, 0, NULL);
	say("all right");
}

static void drive(int fd, uint8_t *local, const char *host)
{
	struct sockaddr_in peer = address_of(host, SERVER_PORT);
	struct extra extra = {};
	struct rng rng = { 1 };

	for (unsigned int i = 0; i < MESSAGES; i++)
		echo(fd, &peer, &rng, i);
	say("%u messages verified", MESSAGES);
	for (unsigned int i = 0; i < 8; i++) {
		uint64_t key = content_key(2, 0, i);

		content_fill(local, key, 0, WINDOW);
		ask(fd, &peer, FILL, content_key(9, 9, i), &extra);
		rdma(fd, &peer, extra.window, local, true);
		ask(fd, &peer, WRITTEN, key, NULL);
		key = content_key(3, 0, i);
		ask(fd, &peer, FILL, key, NULL);
		memset(local, UNREAD, WINDOW);
		rdma(fd, &peer, extra.window, local, false);
		if (content_wrong(local, key, 0, WINDOW))
			explain(local, key, content_key(2, 0, i));
	}
	say("RDMA in both directions verified");
	ask(fd, &peer, QUIT, 0, NULL);
	say("all right");
}

int main(int argc, char **argv)
{
	const char *path = NULL;

	if (argc == 5 && !strcmp(argv[1], "--until")) {
		echo_until(open_socket(argv[3], CLIENT_PORT), argv[2], argv[4]);
		return 0;
	}
	if (argc > 2 && !strcmp(argv[1], "--file")) {
		path = argv[2];
		argv += 2;
		argc -= 2;
	}
	if (argc == 2)
		serve(open_socket(argv[1], SERVER_PORT), window_memory(path));
	else if (argc == 3)
		drive(open_socket(argv[1], CLIENT_PORT), window_memory(path), argv[2]);
	else
		die("usage: rds_pair [--file PATH | --until PATH] OWN-ADDRESS [PEER-ADDRESS]");
	return 0;
}
