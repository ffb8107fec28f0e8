// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Queue pairs of iWARP adapters, which only rdma_cm connects. Each end listens at a TCP port of its own; the one with the
 * lower address accepts, the other one connects.
 */
#include "common.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>

#define RESOLVE_MS 10000

struct connection {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	/* The connection; NULL: there is none. */
	struct rdma_cm_id *id;
};

static void own_address(struct sockaddr_in *address)
{
	const char *ip = getenv("MY_IP");

	*address = (struct sockaddr_in){ .sin_family = AF_INET };
	if (!ip || inet_pton(AF_INET, ip, &address->sin_addr) != 1)
		die("MY_IP is no IPv4 address");
}

void connection_create(struct endpoint *end)
{
	struct connection *connection = calloc(1, sizeof(*connection));
	struct sockaddr_in address;

	own_address(&address);
	WANT(connection);
	connection->channel = rdma_create_event_channel();
	WANT(connection->channel);
	WANT(!rdma_create_id(connection->channel, &connection->listener, NULL, RDMA_PS_TCP));
	if (rdma_bind_addr(connection->listener, (struct sockaddr *)&address) ||
	    rdma_listen(connection->listener, 1))
		die("cannot listen for connections: %m");
	end->connection = connection;
	end->own.psn = ntohs(rdma_get_src_port(connection->listener));
	/* An IPv4 address mapped to IPv6. */
	memset(end->own.gid, 0, 10);
	memset(end->own.gid + 10, 0xff, 2);
	memcpy(end->own.gid + 12, &address.sin_addr, 4);
}

/* Waits for an event of `id`, and skips those of connections that have ended. Returns the identifier of the event. */
static struct rdma_cm_id *await(const struct endpoint *end, const struct rdma_cm_id *id,
				enum rdma_cm_event_type wanted)
{
	for (;;) {
		struct rdma_cm_event *event;
		struct rdma_cm_id *found;
		enum rdma_cm_event_type type;
		bool mine;
		int status;

		if (rdma_get_cm_event(end->connection->channel, &event))
			die("rdma_get_cm_event: %m");
		found = event->id;
		type = event->event;
		status = event->status;
		mine = found == id || event->listen_id == id;
		rdma_ack_cm_event(event);
		if (mine && type == wanted)
			return found;
		if (mine)
			die("queue pair %u: %s (%d) instead of %s", end->own.qpn,
			    rdma_event_str(type), status, rdma_event_str(wanted));
	}
}

static struct rdma_conn_param parameters(const struct endpoint *end)
{
	const struct ibv_device_attr *limits = &end->device->attributes.orig_attr;

	return (struct rdma_conn_param){
		.qp_num = end->own.qpn,
		.responder_resources = limits->max_qp_rd_atom < 8 ? limits->max_qp_rd_atom : 8,
		.initiator_depth =
			limits->max_qp_init_rd_atom < 8 ? limits->max_qp_init_rd_atom : 8,
	};
}

static void accept_peer(struct endpoint *end)
{
	struct connection *connection = end->connection;
	struct rdma_conn_param param = parameters(end);

	connection->id = await(end, connection->listener, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (rdma_accept(connection->id, &param))
		die("queue pair %u cannot accept: %m", end->own.qpn);
	await(end, connection->id, RDMA_CM_EVENT_ESTABLISHED);
}

static void connect_peer(struct endpoint *end)
{
	struct connection *connection = end->connection;
	struct rdma_conn_param param = parameters(end);
	struct sockaddr_in from, to = { .sin_family = AF_INET, .sin_port = htons(end->peer.psn) };
	struct rdma_cm_id *id;

	own_address(&from);
	memcpy(&to.sin_addr, end->peer.gid + 12, 4);
	WANT(!rdma_create_id(connection->channel, &connection->id, NULL, RDMA_PS_TCP));
	id = connection->id;
	if (rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, RESOLVE_MS))
		die("rdma_resolve_addr: %m");
	await(end, id, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, RESOLVE_MS))
		die("rdma_resolve_route: %m");
	await(end, id, RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (rdma_connect(id, &param))
		die("queue pair %u cannot connect: %m", end->own.qpn);
	await(end, id, RDMA_CM_EVENT_ESTABLISHED);
}

void connection_start(struct endpoint *end)
{
	if (memcmp(&end->own, &end->peer, sizeof(end->own)) < 0)
		accept_peer(end);
	else
		connect_peer(end);
}

void connection_stop(struct endpoint *end)
{
	struct connection *connection = end->connection;

	if (connection->id)
		rdma_destroy_id(connection->id);
	connection->id = NULL;
}

void connection_destroy(struct endpoint *end)
{
	connection_stop(end);
	rdma_destroy_id(end->connection->listener);
	rdma_destroy_event_channel(end->connection->channel);
	free(end->connection);
	end->connection = NULL;
}
