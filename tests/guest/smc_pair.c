// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * smc_pair: sockets of the kernel's SMC between two guests. Both directions
 * carry the same content, which is verified. The connections must use RDMA,
 * and not TCP, to which SMC falls back.
 *
 *	smc_pair			the server
 *	smc_pair PEER-ADDRESS		the client
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/netlink.h>
#include <linux/smc_diag.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

#define PORT 18720
#define CONNECTIONS 3
#define LENGTH (1 << 20)
#define PART 10000

static uint8_t content[LENGTH], got[LENGTH];

static int smc_socket(void)
{
	int fd = socket(AF_SMC, SOCK_STREAM, 0);

	if (fd < 0)
		die("SMC: %m");
	return fd;
}

/* The answer about the socket with this inode: the mode, and why it has fallen back. */
static uint8_t mode_of(int fd, uint32_t *reason)
{
	struct {
		struct nlmsghdr header;
		struct smc_diag_req request;
	} ask = {
		.header = {
			.nlmsg_len = sizeof(ask),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		},
		.request = { .diag_family = AF_SMC, .diag_ext = 1 << (SMC_DIAG_FALLBACK - 1) },
	};
	int netlink = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
	char buf[16384];
	struct stat stat;
	ssize_t len;

	WANT(!fstat(fd, &stat));
	WANT(netlink >= 0 && send(netlink, &ask, sizeof(ask), 0) == sizeof(ask));
	while ((len = recv(netlink, buf, sizeof(buf), 0)) > 0) {
		struct nlmsghdr *header = (void *)buf;

		for (; NLMSG_OK(header, len); header = NLMSG_NEXT(header, len)) {
			struct smc_diag_msg *message = NLMSG_DATA(header);
			struct nlattr *attr = (void *)(message + 1);

			if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR)
				die("the kernel does not know the socket");
			if (message->diag_inode != stat.st_ino)
				continue;
			*reason = 0;
			if ((char *)attr < (char *)header + header->nlmsg_len &&
			    attr->nla_type == SMC_DIAG_FALLBACK)
				*reason = ((struct smc_diag_fallback *)(attr + 1))->reason;
			close(netlink);
			return message->diag_mode;
		}
	}
	die("no answer about the socket: %m");
}

static const char *name_of(uint8_t mode)
{
	return mode == SMC_DIAG_MODE_SMCR ? "rdma" :
	       mode == SMC_DIAG_MODE_FALLBACK_TCP ? "tcp" : "another mode";
}

/* Sends the same data as the peer, at the same time, in parts of odd length. */
static void exchange(int fd, uint64_t key)
{
	size_t sent = 0, received = 0;

	content_fill(content, key, 0, LENGTH);
	memset(got, 0, LENGTH);
	while (sent < LENGTH || received < LENGTH) {
		struct pollfd poller = {
			.fd = fd,
			.events = (sent < LENGTH ? POLLOUT : 0) | (received < LENGTH ? POLLIN : 0),
		};
		size_t rest = LENGTH - sent;
		ssize_t n;

		WANT(poll(&poller, 1, 60000) == 1);
		if (poller.revents & POLLOUT) {
			n = send(fd, content + sent, rest < PART ? rest : PART, MSG_DONTWAIT);
			WANT(n > 0 || errno == EAGAIN);
			sent += n > 0 ? n : 0;
		}
		if (poller.revents & (POLLIN | POLLHUP)) {
			n = recv(fd, got + received, LENGTH - received, MSG_DONTWAIT);
			WANT(n > 0 || (n < 0 && errno == EAGAIN));
			received += n > 0 ? n : 0;
		}
	}
	WANT(!memcmp(content, got, LENGTH));
}

/* Until the peer has closed, so that neither loses data that the other still reads. */
static void end(int fd)
{
	char byte;

	WANT(!shutdown(fd, SHUT_WR));
	WANT(!recv(fd, &byte, 1, 0));
	WANT(!close(fd));
}

static void serve(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int one = 1, fd = smc_socket(), i;

	WANT(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	WANT(!bind(fd, (void *)&address, sizeof(address)) && !listen(fd, CONNECTIONS));
	for (i = 0; i < CONNECTIONS; i++) {
		int peer = accept(fd, NULL, NULL);

		WANT(peer >= 0);
		exchange(peer, i);
		end(peer);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int i;

	if (argc == 1) {
		serve();
		return 0;
	}
	if (!inet_aton(argv[1], &address.sin_addr))
		die("%s is not an address", argv[1]);
	for (i = 0; i < CONNECTIONS; i++) {
		uint64_t begin = now_ms(), took;
		int fd = smc_socket();
		uint32_t reason;
		uint8_t mode;

		WANT(!connect(fd, (void *)&address, sizeof(address)));
		took = now_ms() - begin;
		mode = mode_of(fd, &reason);
		printf("connection %d: %s, reason %#x, after %" PRIu64 " ms\n", i, name_of(mode), reason,
		       took);
		fflush(stdout);
		exchange(fd, i);
		end(fd);
		if (mode != SMC_DIAG_MODE_SMCR)
			die("the connection does not use RDMA");
	}
	puts("all right");
	return 0;
}
