// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * hello_rdma: sends a message over an RC connection, and gets one back.
 *
 *     hello_rdma server ADDRESS
 *     hello_rdma client ADDRESS
 *
 * ADDRESS is the server's. Both compare what they receive.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define PORT "7471"
/* Several packets, the last of them shorter than the others. */
#define LENGTH 10001

#define REQUIRE(condition)                                               \
	do {                                                             \
		if (!(condition)) {                                      \
			fprintf(stderr, "line %d: " #condition ": %m\n", \
				__LINE__);                               \
			return 1;                                        \
		}                                                        \
	} while (0)

static unsigned char message[LENGTH], received[LENGTH];

/* Prints the device and the GID that the connection uses. */
static void print_port(struct rdma_cm_id *id)
{
	char gid[INET6_ADDRSTRLEN];

	inet_ntop(AF_INET6, &id->route.addr.addr.ibaddr.sgid, gid, sizeof(gid));
	printf("device %s, GID %s\n", ibv_get_device_name(id->verbs->device),
	       gid);
}

static int send_message(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_wc wc;

	REQUIRE(!rdma_post_send(id, NULL, message, LENGTH, mr, 0));
	REQUIRE(rdma_get_send_comp(id, &wc) == 1);
	REQUIRE(wc.status == IBV_WC_SUCCESS);
	return 0;
}

static int receive_message(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	REQUIRE(rdma_get_recv_comp(id, &wc) == 1);
	REQUIRE(wc.status == IBV_WC_SUCCESS);
	REQUIRE(wc.byte_len == LENGTH);
	REQUIRE(!memcmp(received, message, LENGTH));
	return 0;
}

/* Sends a message and receives one; the server, which answers, receives first. */
static int exchange(struct rdma_cm_id *id, int is_server)
{
	struct ibv_mr *in, *out;

	in = rdma_reg_msgs(id, received, LENGTH);
	out = rdma_reg_msgs(id, message, LENGTH);
	REQUIRE(in && out);
	REQUIRE(!rdma_post_recv(id, NULL, received, LENGTH, in));
	REQUIRE(!(is_server ? rdma_accept(id, NULL) : rdma_connect(id, NULL)));
	print_port(id);
	if (is_server)
		REQUIRE(!receive_message(id) && !send_message(id, out));
	else
		REQUIRE(!send_message(id, out) && !receive_message(id));
	/* The other side may have disconnected before. */
	rdma_disconnect(id);
	REQUIRE(!rdma_dereg_mr(in) && !rdma_dereg_mr(out));
	return 0;
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP };
	struct rdma_cm_id *id, *listener = NULL;
	struct ibv_qp_init_attr attr = {
		/* One work request of each kind, with one SGE. */
		.cap = { 1, 1, 1, 1, 0 },
		.sq_sig_all = 1,
	};
	struct rdma_addrinfo *address;
	int is_server;

	REQUIRE(argc == 3);
	is_server = !strcmp(argv[1], "server");
	for (int n = 0; n < LENGTH; n++)
		message[n] = n * 7 + n / 256;
	hints.ai_flags = is_server ? RAI_PASSIVE : 0;
	REQUIRE(!rdma_getaddrinfo(argv[2], PORT, &hints, &address));
	REQUIRE(!rdma_create_ep(&id, address, NULL, &attr));
	if (is_server) {
		listener = id;
		REQUIRE(!rdma_listen(listener, 1));
		puts("listening");
		fflush(stdout);
		REQUIRE(!rdma_get_request(listener, &id));
	}
	REQUIRE(!exchange(id, is_server));
	rdma_destroy_ep(id);
	if (listener)
		rdma_destroy_ep(listener);
	rdma_freeaddrinfo(address);
	puts("PASS");
	return 0;
}
