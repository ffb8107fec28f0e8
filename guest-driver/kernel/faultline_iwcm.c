// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Connections of an iWARP adapter
 *
 * The device has TCP and MPA. This file is between its commands and events and
 * the core's iw_cm: it finds the way to the peer, reserves the local TCP port in
 * the guest's own stack, and reports what becomes of a connection.
 *
 * A queue pair of type RC has a struct faultline_conn from its creation to its
 * destruction, and one connection at a time. An event of the device sets a bit
 * and queues the work item of the connection, which reads the rest with
 * QUERY_CONNECTION and calls iw_cm. The bits may be set by a device that lies.
 * What iw_cm gets depends on `state` only: one CONNECT_REPLY after iw_connect()
 * or one ESTABLISHED after iw_accept(), then perhaps one DISCONNECT, then one
 * CLOSE. iw_cm waits for the first and the last of them without a time limit, so
 * they are also sent when the device dies, does not answer, or the queue pair is
 * destroyed.
 *
 * Locking: faultline_qp.mutex protects struct faultline_conn, but for `events`
 * and `refs`. iw_cm is called under it: its handlers run in its own workqueue,
 * without a lock of iw_cm that a downcall needs. No spinlock is held.
 *
 * References: the connection has one on its iw_cm_id while `state` is not IDLE.
 * iw_cm has one on the queue pair, counted in `refs`, from iw_get_qp() to
 * iw_rem_ref(). faultline_conn_destroy() ends the connection and waits for the
 * last. The work item needs none, since destruction waits for it. A reserved
 * port has a reference on its network namespace.
 */
#include <linux/capability.h>
#include <linux/dma-mapping.h>
#include <linux/if_vlan.h>
#include <linux/in.h>
#include <linux/net.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include <net/ipv6.h>
#include <net/route.h>
#include <net/sock.h>

#include "faultline_iwarp.h"

/* iw_cm uses its functions as long as the module has a connection. */
static const char *(*const faultline_holds_iw_cm)(int) __used = iwcm_reject_msg;

/* Time for the resolution of the peer's MAC address. */
#define FAULTLINE_RESOLVE_TIMEOUT_MS	3000
/*
 * Time for a connection to be opened. The device gives up earlier: this is for
 * one that never answers.
 */
#define FAULTLINE_OPEN_TIMEOUT		(300 * HZ)

enum faultline_conn_state {
	/* No connection. */
	FAULTLINE_CONN_IDLE,
	/* Active: the MAC address of the peer is being resolved. */
	FAULTLINE_CONN_RESOLVING,
	/* Active: CONNECT has been executed. */
	FAULTLINE_CONN_CONNECTING,
	/* Passive: ACCEPT has been executed. */
	FAULTLINE_CONN_ACCEPTING,
	/* iw_cm knows the connection as established. */
	FAULTLINE_CONN_ESTABLISHED,
};

/* Bits of faultline_conn.events. */
enum {
	FAULTLINE_CONN_RESOLVED,
	FAULTLINE_CONN_CONNECTED,
	FAULTLINE_CONN_PEER_CLOSED,
	/* Not opened, or ended. */
	FAULTLINE_CONN_CLOSED,
};

struct faultline_conn {
	struct faultline_qp *qp;
	enum faultline_conn_state state;
	/* The queue pair is being destroyed: no commands. */
	bool stopped;
	/* DISCONNECT has been reported. */
	bool disconnected;
	/* The process that has created the queue pair; NULL: a kernel thread. */
	struct mm_struct *mm;
	struct iw_cm_id *cm_id;
	unsigned long events;
	struct delayed_work work;
	unsigned long deadline;

	/* References of iw_cm on the queue pair, and one of the driver. */
	refcount_t refs;
	struct completion unused;

	/* The rest is for active connections. */
	struct socket *port;
	struct sockaddr_storage local;
	struct sockaddr_storage remote;
	struct rdma_dev_addr addr;
	/* The interface of the local address. */
	int ifindex;
	/* The result of the resolution, before FAULTLINE_CONN_RESOLVED. */
	int addr_status;
	u8 tos;
	u16 ird;
	u16 ord;
	u16 private_len;
	u8 *private_data;
};

/* --- addresses and ports --------------------------------------------------*/

static bool faultline_ip_is_v4(const u8 *ip)
{
	return ipv6_addr_v4mapped((const struct in6_addr *)ip);
}

void faultline_ip_fill(u8 *ip, const struct sockaddr_storage *addr)
{
	const struct sockaddr_in *v4 = (const void *)addr;
	const struct sockaddr_in6 *v6 = (const void *)addr;

	if (addr->ss_family == AF_INET)
		ipv6_addr_set_v4mapped(v4->sin_addr.s_addr,
				       (struct in6_addr *)ip);
	else
		memcpy(ip, &v6->sin6_addr, sizeof(v6->sin6_addr));
}

static void faultline_ip_read(struct sockaddr_storage *addr, const u8 *ip,
			      __le16 port, int ifindex)
{
	struct sockaddr_in *v4 = (void *)addr;
	struct sockaddr_in6 *v6 = (void *)addr;

	memset(addr, 0, sizeof(*addr));
	if (faultline_ip_is_v4(ip)) {
		v4->sin_family = AF_INET;
		memcpy(&v4->sin_addr, ip + 12, sizeof(v4->sin_addr));
	} else {
		v6->sin6_family = AF_INET6;
		memcpy(&v6->sin6_addr, ip, sizeof(v6->sin6_addr));
		if (ipv6_addr_type(&v6->sin6_addr) & IPV6_ADDR_LINKLOCAL)
			v6->sin6_scope_id = ifindex;
	}
	*faultline_port(addr) = htons(le16_to_cpu(port));
}

/* The interface of a VLAN, or the netdev itself. 0: there is none. */
static int faultline_vlan_ifindex(struct net_device *netdev, u16 vlan)
{
	struct net_device *found = NULL;
	int ifindex;

	rcu_read_lock();
	/* The id is that of the device, and an index in the core. */
	if (vlan == FAULTLINE_NO_VLAN)
		found = netdev;
	else if (vlan < VLAN_N_VID)
		found = __vlan_find_dev_deep_rcu(netdev, htons(ETH_P_8021Q),
						 vlan);
	ifindex = found ? found->ifindex : 0;
	rcu_read_unlock();
	return ifindex;
}

/* The addresses of a request or connection, for iw_cm. */
void faultline_path_addrs(struct faultline_dev *dev,
			  const struct faultline_connection_path *path,
			  struct iw_cm_event *event)
{
	int ifindex = faultline_vlan_ifindex(faultline_netdev(dev),
					     le16_to_cpu(path->vlan));

	faultline_ip_read(&event->local_addr, path->local_ip, path->local_port,
			  ifindex);
	faultline_ip_read(&event->remote_addr, path->remote_ip,
			  path->remote_port, ifindex);
}

/* The network namespace of the netdev, with a reference; NULL if it ends. */
struct net *faultline_cm_net(struct faultline_dev *dev)
{
	struct net *net;

	rcu_read_lock();
	net = maybe_get_net(dev_net(faultline_netdev(dev)));
	rcu_read_unlock();
	return net;
}

/*
 * Returns true if an interface is the netdev or a VLAN of it. The core's
 * functions name the real device of a VLAN in a VLAN, too, which is not one.
 */
bool faultline_cm_interface(struct faultline_dev *dev,
			    struct net_device *found, u16 *vlan)
{
	struct net_device *netdev = faultline_netdev(dev);

	*vlan = FAULTLINE_NO_VLAN;
	if (found == netdev)
		return true;
	if (!is_vlan_dev(found) || vlan_dev_real_dev(found) != netdev ||
	    dev_get_iflink(found) != netdev->ifindex ||
	    vlan_dev_vlan_proto(found) != htons(ETH_P_8021Q))
		return false;
	*vlan = vlan_dev_vlan_id(found);
	return true;
}

/* Finds the interface of a local address: the netdev, or a VLAN of it. */
int faultline_cm_local(struct faultline_dev *dev, struct net *net,
		       const struct sockaddr_storage *local, int *ifindex,
		       u16 *vlan)
{
	struct rdma_dev_addr addr = { .net = net };
	struct net_device *found;
	int err;

	if (local->ss_family == AF_INET6)
		addr.bound_dev_if =
			((const struct sockaddr_in6 *)local)->sin6_scope_id;
	err = rdma_translate_ip((const struct sockaddr *)local, &addr);
	if (err)
		return err;
	found = dev_get_by_index(net, addr.bound_dev_if);
	if (!found)
		return -ENODEV;
	*ifindex = found->ifindex;
	if (!faultline_cm_interface(dev, found, vlan))
		err = -EADDRNOTAVAIL;
	dev_put(found);
	return err;
}

/*
 * Reserves a TCP port in the guest's own stack by a socket that is bound to it.
 * The socket has neither SO_REUSEADDR nor a connection: no other socket of the
 * guest can be bound to the port. Writes the port to `addr` if that was zero.
 */
int faultline_port_reserve(struct net *net, struct sockaddr_storage *addr,
			   int ifindex, bool v6only, struct socket **port)
{
	struct socket *sock;
	int err;

	err = sock_create_kern(net, addr->ss_family, SOCK_STREAM, IPPROTO_TCP,
			       &sock);
	if (err)
		return err;
	/* A socket of the kernel does not keep its namespace. */
	get_net(net);
	if (ifindex)
		err = sock_bindtoindex(sock->sk, ifindex, true);
	if (!err && v6only && addr->ss_family == AF_INET6)
		err = ip6_sock_set_v6only(sock->sk);
	/* The type of the address differs between kernels. */
	if (!err)
		err = kernel_bind(sock, (void *)addr,
				  rdma_addr_size((struct sockaddr *)addr));
	if (!err && !*faultline_port(addr)) {
		err = kernel_getsockname(sock, (struct sockaddr *)addr);
		err = min(err, 0);
	}
	if (err) {
		faultline_port_release(sock);
		return err;
	}
	*port = sock;
	return 0;
}

void faultline_port_release(struct socket *port)
{
	struct net *net;

	if (!port)
		return;
	net = sock_net(port->sk);
	sock_release(port);
	put_net(net);
}

/* --- private data ---------------------------------------------------------*/

/*
 * Maps a copy of private data for the device, which reads it while it executes
 * the command. Returns the copy, NULL if there is no data, or an error.
 */
u8 *faultline_private_map(struct faultline_dev *dev,
			  struct faultline_connection_param *param,
			  const void *data, u16 len)
{
	dma_addr_t dma;
	u8 *copy;

	if (!len)
		return NULL;
	copy = kmemdup(data, len, GFP_KERNEL);
	if (!copy)
		return ERR_PTR(-ENOMEM);
	dma = dma_map_single(&dev->pdev->dev, copy, len, DMA_TO_DEVICE);
	if (dma_mapping_error(&dev->pdev->dev, dma)) {
		kfree(copy);
		return ERR_PTR(-ENOMEM);
	}
	param->private_addr = cpu_to_le64(dma);
	param->private_len = cpu_to_le16(len);
	return copy;
}

void faultline_private_unmap(struct faultline_dev *dev,
			     const struct faultline_connection_param *param,
			     u8 *copy)
{
	if (!copy)
		return;
	dma_unmap_single(&dev->pdev->dev, le64_to_cpu(param->private_addr),
			 le16_to_cpu(param->private_len), DMA_TO_DEVICE);
	kfree(copy);
}

/* Reads what the peer of a request or of a queue pair's connection has said. */
int faultline_peer_query(struct faultline_dev *dev, bool request, u32 number,
			 struct faultline_peer *peer)
{
	struct faultline_query_connection params = {
		.len = cpu_to_le16(sizeof(peer->data)),
	};
	dma_addr_t dma;
	u8 *data;
	int err;

	data = kzalloc(sizeof(peer->data), GFP_KERNEL);
	if (!data)
		return -ENOMEM;
	dma = dma_map_single(&dev->pdev->dev, data, sizeof(peer->data),
			     DMA_FROM_DEVICE);
	if (dma_mapping_error(&dev->pdev->dev, dma)) {
		kfree(data);
		return -ENOMEM;
	}
	params.addr = cpu_to_le64(dma);
	err = request ? faultline_cmd_query_request(dev, number, &params,
						    &peer->info) :
			faultline_cmd_query_connection(dev, number, &params,
						       &peer->info);
	dma_unmap_single(&dev->pdev->dev, dma, sizeof(peer->data),
			 DMA_FROM_DEVICE);
	memcpy(peer->data, data, sizeof(peer->data));
	kfree(data);
	return err;
}

/* --- the connection of a queue pair ---------------------------------------*/

static void faultline_conn_queue(struct faultline_conn *conn)
{
	struct faultline_dev *dev = to_fdev(conn->qp->ibqp.device);

	mod_delayed_work(dev->wq, &conn->work, 0);
}

/* An event of the device. Runs in interrupt context. */
void faultline_conn_event(struct faultline_conn *conn, u8 kind)
{
	switch (kind) {
	case FAULTLINE_EVENT_CONNECTED:
		set_bit(FAULTLINE_CONN_CONNECTED, &conn->events);
		break;
	case FAULTLINE_EVENT_PEER_CLOSED:
		set_bit(FAULTLINE_CONN_PEER_CLOSED, &conn->events);
		break;
	default:
		set_bit(FAULTLINE_CONN_CLOSED, &conn->events);
		break;
	}
	faultline_conn_queue(conn);
}

/* The device is dead. Runs with interrupts disabled. */
void faultline_conn_death(struct faultline_conn *conn)
{
	faultline_conn_queue(conn);
}

/*
 * Calls iw_cm, which may run out of memory for a copy of private data. It has
 * allocated everything else before.
 */
static void faultline_conn_upcall(struct faultline_conn *conn,
				  struct iw_cm_event *event)
{
	struct iw_cm_id *cm_id = conn->cm_id;

	if (!cm_id->event_handler(cm_id, event) || !event->private_data_len)
		return;
	event->private_data_len = 0;
	cm_id->event_handler(cm_id, event);
}

static void faultline_conn_report(struct faultline_conn *conn,
				  enum iw_cm_event_type type)
{
	struct iw_cm_event event = { .event = type };

	faultline_conn_upcall(conn, &event);
}

/* Releases what a connection has. iw_cm has got its last event. */
static void faultline_conn_end(struct faultline_conn *conn)
{
	/* Does nothing if the resolution has ended. */
	if (conn->port)
		rdma_addr_cancel(&conn->addr);
	faultline_port_release(conn->port);
	conn->port = NULL;
	kfree(conn->private_data);
	conn->private_data = NULL;
	conn->cm_id->rem_ref(conn->cm_id);
	conn->cm_id = NULL;
	conn->state = FAULTLINE_CONN_IDLE;
}

/* Sets the state that active and passive connections share. */
static void faultline_conn_begin(struct faultline_conn *conn,
				 struct iw_cm_id *cm_id,
				 enum faultline_conn_state state)
{
	cm_id->add_ref(cm_id);
	conn->cm_id = cm_id;
	conn->disconnected = false;
	conn->events = 0;
	conn->deadline = jiffies + FAULTLINE_OPEN_TIMEOUT;
	conn->state = state;
}

/* iw_cm's status of CONNECT_REPLY: why the connection was not opened. */
static int faultline_close_errno(u8 reason)
{
	switch (reason) {
	case FAULTLINE_CLOSE_REFUSED:
	case FAULTLINE_CLOSE_REJECTED:
		return -ECONNREFUSED;
	case FAULTLINE_CLOSE_TIMED_OUT:
		return -ETIMEDOUT;
	case FAULTLINE_CLOSE_RESET:
		return -ECONNRESET;
	case FAULTLINE_CLOSE_SETUP:
		return -EPROTO;
	default:
		return -ECONNABORTED;
	}
}

/* Reports the end of an attempt to connect, with what the peer has said. */
static void faultline_conn_reply(struct faultline_conn *conn, int status,
				 struct faultline_peer *peer)
{
	struct iw_cm_event event = {
		.event = IW_CM_EVENT_CONNECT_REPLY,
		.status = status,
		.local_addr = conn->local,
		.remote_addr = conn->remote,
	};
	const struct faultline_connection_param *param;

	if (peer) {
		param = &peer->info.param;
		/* As the core names them: READs to the peer, and from it. */
		event.ird = min_t(u16, le16_to_cpu(param->ord), U8_MAX);
		event.ord = min_t(u16, le16_to_cpu(param->ird), U8_MAX);
		event.private_data = peer->data;
		event.private_data_len = faultline_peer_len(peer);
	}
	faultline_conn_upcall(conn, &event);
}

static void faultline_conn_fail(struct faultline_conn *conn, int status,
				struct faultline_peer *peer)
{
	faultline_conn_reply(conn, status, peer);
	faultline_conn_end(conn);
}

/* Reports a passive connection. Its properties are known if `peer` is. */
static void faultline_conn_established(struct faultline_conn *conn,
				       const struct faultline_peer *peer)
{
	struct iw_cm_event event = { .event = IW_CM_EVENT_ESTABLISHED };

	if (peer) {
		event.ird = min_t(u16, le16_to_cpu(peer->info.param.ord),
				  U8_MAX);
		event.ord = min_t(u16, le16_to_cpu(peer->info.param.ird),
				  U8_MAX);
	}
	faultline_conn_upcall(conn, &event);
}

/*
 * Gives iw_cm the events that are missing up to the end of the connection, and
 * ends it.
 */
static void faultline_conn_abort(struct faultline_conn *conn, int status)
{
	switch (conn->state) {
	case FAULTLINE_CONN_IDLE:
		return;
	case FAULTLINE_CONN_RESOLVING:
	case FAULTLINE_CONN_CONNECTING:
		faultline_conn_fail(conn, status, NULL);
		return;
	case FAULTLINE_CONN_ACCEPTING:
		/* iw_cm has no event for an ACCEPT that fails later. */
		faultline_conn_established(conn, NULL);
		fallthrough;
	case FAULTLINE_CONN_ESTABLISHED:
		faultline_conn_report(conn, IW_CM_EVENT_CLOSE);
		faultline_conn_end(conn);
		return;
	}
}

/* VLAN priority of a type of service, as the guest's own stack maps it. */
static u8 faultline_vlan_priority(const struct net_device *found, u8 tos)
{
	u32 priority = rt_tos2priority(tos);

	if (!is_vlan_dev(found))
		return 0;
	return (vlan_dev_get_egress_qos_mask((struct net_device *)found,
					     priority) &
		VLAN_PRIO_MASK) >> VLAN_PRIO_SHIFT;
}

/*
 * Returns true if the way to the peer begins at the interface of the local
 * address, or if the peer has an address of this guest.
 */
static bool faultline_conn_is_routed(const struct faultline_conn *conn)
{
	struct rdma_dev_addr own = { .net = conn->addr.net };

	return conn->addr.bound_dev_if == conn->ifindex ||
	       !rdma_translate_ip((const struct sockaddr *)&conn->remote, &own);
}

/* Fills the path of an active connection, whose MAC address is resolved. */
static int faultline_conn_path(struct faultline_dev *dev,
			       struct faultline_conn *conn,
			       struct faultline_connection_path *path)
{
	struct net_device *found;
	bool fits;
	u16 vlan;

	if (!faultline_conn_is_routed(conn))
		return -EHOSTUNREACH;
	found = dev_get_by_index(sock_net(conn->port->sk), conn->ifindex);
	if (!found)
		return -ENODEV;
	fits = faultline_cm_interface(dev, found, &vlan);
	faultline_ip_fill(path->local_ip, &conn->local);
	faultline_ip_fill(path->remote_ip, &conn->remote);
	path->local_port = cpu_to_le16(ntohs(*faultline_port(&conn->local)));
	path->remote_port = cpu_to_le16(ntohs(*faultline_port(&conn->remote)));
	memcpy(path->dmac, conn->addr.dst_dev_addr, ETH_ALEN);
	path->vlan = cpu_to_le16(vlan);
	path->sl = faultline_vlan_priority(found, conn->tos);
	path->traffic_class = conn->tos;
	path->hop_limit = clamp_t(int, conn->addr.hoplimit, 0, U8_MAX);
	path->mtu = cpu_to_le16(min_t(u32, READ_ONCE(found->mtu), U16_MAX));
	dev_put(found);
	return fits ? 0 : -EADDRNOTAVAIL;
}

static int faultline_conn_send(struct faultline_conn *conn)
{
	struct faultline_dev *dev = to_fdev(conn->qp->ibqp.device);
	struct faultline_connect params = {
		.param.ird = cpu_to_le16(conn->ird),
		.param.ord = cpu_to_le16(conn->ord),
	};
	u8 *copy;
	int err;

	err = faultline_conn_path(dev, conn, &params.path);
	if (err)
		return err;
	copy = faultline_private_map(dev, &params.param, conn->private_data,
				     conn->private_len);
	if (IS_ERR(copy))
		return PTR_ERR(copy);
	err = faultline_cmd_connect(dev, conn->qp->res.num, &params);
	faultline_private_unmap(dev, &params.param, copy);
	return err;
}

/* Opens a connection when the MAC address of the peer is known. */
static void faultline_conn_open(struct faultline_conn *conn)
{
	int err;

	if (!test_bit(FAULTLINE_CONN_RESOLVED, &conn->events))
		return;
	/* Pairs with the barrier in faultline_conn_resolved(). */
	smp_rmb();
	err = conn->addr_status ?: faultline_conn_send(conn);
	if (err)
		faultline_conn_fail(conn, err, NULL);
	else
		conn->state = FAULTLINE_CONN_CONNECTING;
}

/* Ends an attempt that the device does not end. */
static void faultline_conn_time_out(struct faultline_conn *conn)
{
	struct faultline_dev *dev = to_fdev(conn->qp->ibqp.device);
	struct faultline_qp_attr params = {
		.mask = cpu_to_le32(FAULTLINE_QP_ATTR_STATE),
		.state = FAULTLINE_QPS_ERR,
	};

	faultline_warn(dev, "QP %u: no event for a connection\n",
		       conn->qp->res.num);
	faultline_cmd_modify_qp(dev, conn->qp->res.num, &params);
	conn->qp->state = IB_QPS_ERR;
	faultline_conn_abort(conn, -ETIMEDOUT);
}

/* Handles the first event of a connection that has been requested. */
static void faultline_conn_opened(struct faultline_conn *conn)
{
	struct faultline_dev *dev = to_fdev(conn->qp->ibqp.device);
	bool connected = test_bit(FAULTLINE_CONN_CONNECTED, &conn->events);
	struct faultline_peer *peer = NULL;
	int err = -ENOMEM;

	if (!connected && !test_bit(FAULTLINE_CONN_CLOSED, &conn->events)) {
		if (time_after_eq(jiffies, conn->deadline))
			faultline_conn_time_out(conn);
		return;
	}
	peer = kzalloc(sizeof(*peer), GFP_KERNEL);
	if (peer)
		err = faultline_peer_query(dev, false, conn->qp->res.num, peer);
	if (err) {
		kfree(peer);
		peer = NULL;
	}
	if (connected)
		conn->qp->state = IB_QPS_RTS;
	if (conn->state == FAULTLINE_CONN_ACCEPTING) {
		faultline_conn_established(conn, peer);
		conn->state = FAULTLINE_CONN_ESTABLISHED;
	} else if (connected) {
		faultline_conn_reply(conn, 0, peer);
		conn->state = FAULTLINE_CONN_ESTABLISHED;
	} else {
		err = err ?: faultline_close_errno(peer->info.close_reason);
		conn->qp->state = IB_QPS_ERR;
		faultline_conn_fail(conn, err, peer);
	}
	kfree(peer);
}

static void faultline_conn_closing(struct faultline_conn *conn)
{
	if (!conn->disconnected &&
	    test_bit(FAULTLINE_CONN_PEER_CLOSED, &conn->events)) {
		conn->disconnected = true;
		faultline_conn_report(conn, IW_CM_EVENT_DISCONNECT);
	}
	if (test_bit(FAULTLINE_CONN_CLOSED, &conn->events)) {
		conn->qp->state = IB_QPS_ERR;
		faultline_conn_abort(conn, 0);
	}
}

static void faultline_conn_work(struct work_struct *work)
{
	struct faultline_conn *conn = container_of(to_delayed_work(work),
						   struct faultline_conn, work);
	struct faultline_dev *dev = to_fdev(conn->qp->ibqp.device);

	mutex_lock(&conn->qp->mutex);
	if (conn->stopped)
		goto unlock;
	if (faultline_is_dead(dev)) {
		faultline_conn_abort(conn, -ENETDOWN);
		goto unlock;
	}
	if (conn->state == FAULTLINE_CONN_RESOLVING)
		faultline_conn_open(conn);
	if (conn->state == FAULTLINE_CONN_CONNECTING ||
	    conn->state == FAULTLINE_CONN_ACCEPTING)
		faultline_conn_opened(conn);
	if (conn->state == FAULTLINE_CONN_ESTABLISHED)
		faultline_conn_closing(conn);
	/* An event that comes first queues it at once. */
	if (conn->state == FAULTLINE_CONN_CONNECTING ||
	    conn->state == FAULTLINE_CONN_ACCEPTING)
		queue_delayed_work(dev->wq, &conn->work,
				   FAULTLINE_OPEN_TIMEOUT);
unlock:
	mutex_unlock(&conn->qp->mutex);
}

/* Creates the connection of a queue pair, which has not been added yet. */
int faultline_conn_create(struct faultline_qp *qp)
{
	struct faultline_conn *conn = kzalloc(sizeof(*conn), GFP_KERNEL);

	if (!conn)
		return -ENOMEM;
	conn->qp = qp;
	/* A later process cannot have the same address space. */
	conn->mm = current->mm;
	if (conn->mm)
		mmgrab(conn->mm);
	INIT_DELAYED_WORK(&conn->work, faultline_conn_work);
	refcount_set(&conn->refs, 1);
	init_completion(&conn->unused);
	qp->conn = conn;
	return 0;
}

/*
 * No further command uses the number of the queue pair, which another one may
 * get as soon as this one has been destroyed; or commands may use it again,
 * because the device has refused to destroy it.
 */
void faultline_conn_stop(struct faultline_qp *qp, bool stop)
{
	if (!qp->conn)
		return;
	mutex_lock(&qp->mutex);
	qp->conn->stopped = stop;
	mutex_unlock(&qp->mutex);
	if (!stop)
		faultline_conn_queue(qp->conn);
}

/* The caller has the mutex of the queue pair. */
bool faultline_conn_stopped(const struct faultline_conn *conn)
{
	return conn->stopped;
}

/*
 * The queue pair has been reset: its connection, if any, has ended. The device
 * has written the events of the connection before its answer: they are handled
 * now, or they could end the next connection.
 */
void faultline_conn_reset(struct faultline_conn *conn)
{
	faultline_eq_drain(to_fdev(conn->qp->ibqp.device));
	faultline_conn_abort(conn, -ECONNABORTED);
}

/*
 * The queue pair has been destroyed in the device, and no event finds it any
 * more. iw_cm handles the last event and returns its reference.
 */
void faultline_conn_destroy(struct faultline_qp *qp)
{
	struct faultline_conn *conn = qp->conn;

	if (!conn)
		return;
	mutex_lock(&qp->mutex);
	conn->stopped = true;
	faultline_conn_abort(conn, -ECONNABORTED);
	mutex_unlock(&qp->mutex);
	disable_delayed_work_sync(&conn->work);
	if (!refcount_dec_and_test(&conn->refs))
		wait_for_completion(&conn->unused);
	if (conn->mm)
		mmdrop(conn->mm);
	kfree(conn);
	qp->conn = NULL;
}

/*
 * Returns the bits of an attribute mask that the device gets, or an error. The
 * states of a connection are those of iw_cm: librdmacm asks for RTR and RTS,
 * too, as for other transports.
 */
int faultline_conn_attr_mask(const struct ib_qp_attr *attr, int mask)
{
	if (mask & ~(IB_QP_STATE | IB_QP_CUR_STATE | IB_QP_ACCESS_FLAGS |
		     IB_QP_PKEY_INDEX | IB_QP_PORT))
		return -EOPNOTSUPP;
	if (!(mask & IB_QP_STATE) || attr->qp_state == IB_QPS_RTR ||
	    attr->qp_state == IB_QPS_RTS)
		return 0;
	return attr->qp_state == IB_QPS_INIT ?
		       IB_QP_STATE | IB_QP_ACCESS_FLAGS : IB_QP_STATE;
}

/* --- operations of iw_cm --------------------------------------------------*/

/*
 * Returns true if the caller may connect a queue pair. Processes name it to the
 * core by its number, which the core does not check: it must be one that they
 * have created, also for the kernel, as a mount does. The kernel's own threads
 * connect those of the kernel, and so does an administrator.
 */
static bool faultline_conn_permitted(const struct faultline_conn *conn)
{
	if (conn->mm && conn->mm == current->mm)
		return true;
	return !conn->qp->user && (!current->mm || capable(CAP_NET_ADMIN));
}

/*
 * Takes the reference, which iw_cm is to take by iw_add_ref() directly after
 * this: between the two a process could destroy the queue pair. Called under a
 * spinlock.
 */
struct ib_qp *faultline_iw_get_qp(struct ib_device *ibdev, int qpn)
{
	struct faultline_dev *dev = to_fdev(ibdev);
	struct faultline_qp *qp = NULL;
	struct faultline_res *res;
	unsigned long flags;

	xa_lock_irqsave(&dev->qps, flags);
	res = xa_load(&dev->qps, (u32)qpn);
	if (res)
		qp = faultline_res_qp(res);
	if (qp && (!qp->conn || !faultline_conn_permitted(qp->conn) ||
		   !refcount_inc_not_zero(&qp->conn->refs)))
		qp = NULL;
	xa_unlock_irqrestore(&dev->qps, flags);
	return qp ? &qp->ibqp : NULL;
}

void faultline_iw_add_ref(struct ib_qp *ibqp)
{
}

void faultline_iw_rem_ref(struct ib_qp *ibqp)
{
	struct faultline_conn *conn = to_fqp(ibqp)->conn;

	if (refcount_dec_and_test(&conn->refs))
		complete(&conn->unused);
}

/*
 * Finds the queue pair of iw_connect() or iw_accept() and locks its mutex. The
 * caller unlocks it and puts the reference of faultline_qp.res.
 */
static struct faultline_qp *faultline_conn_lock(struct faultline_dev *dev,
						const struct iw_cm_conn_param *p)
{
	struct faultline_res *res = faultline_res_get(&dev->qps, p->qpn);
	struct faultline_qp *qp;

	if (!res)
		return ERR_PTR(-EINVAL);
	qp = faultline_res_qp(res);
	if (!qp || !qp->conn || !faultline_conn_permitted(qp->conn))
		goto put;
	mutex_lock(&qp->mutex);
	if (!qp->conn->stopped && qp->conn->state == FAULTLINE_CONN_IDLE)
		return qp;
	mutex_unlock(&qp->mutex);
put:
	faultline_res_put(res);
	return ERR_PTR(-EINVAL);
}

static void faultline_conn_unlock(struct faultline_qp *qp)
{
	mutex_unlock(&qp->mutex);
	faultline_res_put(&qp->res);
}

static int faultline_conn_check(const struct faultline_dev *dev,
				const struct iw_cm_conn_param *cm_param)
{
	if (faultline_is_dead(dev))
		return -ENETDOWN;
	if (cm_param->ird > le32_to_cpu(dev->caps.max_rd_atomic) ||
	    cm_param->ord > le32_to_cpu(dev->caps.max_init_rd_atomic) ||
	    cm_param->private_data_len > FAULTLINE_MAX_PRIVATE_DATA)
		return -EINVAL;
	return 0;
}

/* Called by the core when it has resolved the MAC address of the peer. */
static void faultline_conn_resolved(int status, struct sockaddr *src,
				    struct rdma_dev_addr *addr, void *context)
{
	struct faultline_conn *conn = context;

	conn->addr_status = status;
	/* Pairs with the barrier in faultline_conn_open(). */
	smp_wmb();
	set_bit(FAULTLINE_CONN_RESOLVED, &conn->events);
	faultline_conn_queue(conn);
}

/*
 * Reserves the local port. librdmacm has chosen it among the ports of RDMA
 * connections, so a socket of the guest may have it already: then the connection
 * gets another one.
 */
static int faultline_conn_bind(struct faultline_conn *conn, struct net *net)
{
	int err;

	err = faultline_port_reserve(net, &conn->local, 0, true, &conn->port);
	if (err != -EADDRINUSE)
		return err;
	*faultline_port(&conn->local) = 0;
	return faultline_port_reserve(net, &conn->local, 0, true, &conn->port);
}

/* Starts the resolution of the peer's MAC address. */
static int faultline_conn_resolve(struct faultline_dev *dev,
				  struct faultline_conn *conn, struct net *net)
{
	int err;
	u16 vlan;

	err = faultline_cm_local(dev, net, &conn->local, &conn->ifindex, &vlan);
	if (err)
		return err;
	/* Not in the work item, which runs in the same workqueue. */
	faultline_addrs_flush(dev);
	err = faultline_conn_bind(conn, net);
	if (err)
		return err;
	conn->addr = (struct rdma_dev_addr) {
		.net = net,
		.bound_dev_if = conn->ifindex,
	};
	err = rdma_resolve_ip((struct sockaddr *)&conn->local,
			      (struct sockaddr *)&conn->remote, &conn->addr,
			      FAULTLINE_RESOLVE_TIMEOUT_MS,
			      faultline_conn_resolved, false, conn);
	if (err) {
		faultline_port_release(conn->port);
		conn->port = NULL;
	}
	return err;
}

static int faultline_conn_start(struct faultline_dev *dev,
				struct faultline_conn *conn,
				struct iw_cm_id *cm_id,
				const struct iw_cm_conn_param *cm_param,
				struct net *net)
{
	u8 *data = NULL;
	int err;

	if (cm_param->private_data_len) {
		data = kmemdup(cm_param->private_data,
			       cm_param->private_data_len, GFP_KERNEL);
		if (!data)
			return -ENOMEM;
	}
	conn->local = cm_id->m_local_addr;
	conn->remote = cm_id->m_remote_addr;
	conn->tos = cm_id->tos_set ? cm_id->tos : 0;
	conn->ird = cm_param->ird;
	conn->ord = cm_param->ord;
	/* The work item waits for the mutex. */
	faultline_conn_begin(conn, cm_id, FAULTLINE_CONN_RESOLVING);
	conn->private_data = data;
	conn->private_len = cm_param->private_data_len;
	err = faultline_conn_resolve(dev, conn, net);
	if (err)
		faultline_conn_end(conn);
	return err;
}

int faultline_iw_connect(struct iw_cm_id *cm_id,
			 struct iw_cm_conn_param *cm_param)
{
	struct faultline_dev *dev = faultline_cm_dev(cm_id);
	struct faultline_qp *qp;
	struct net *net;
	int err;

	err = faultline_conn_check(dev, cm_param);
	if (err)
		return err;
	net = faultline_cm_net(dev);
	if (!net)
		return -ENETDOWN;
	qp = faultline_conn_lock(dev, cm_param);
	if (IS_ERR(qp)) {
		err = PTR_ERR(qp);
		goto put_net;
	}
	err = faultline_conn_start(dev, qp->conn, cm_id, cm_param, net);
	faultline_conn_unlock(qp);
put_net:
	put_net(net);
	return err;
}

static int faultline_conn_accept(struct faultline_dev *dev,
				 struct faultline_conn *conn,
				 struct iw_cm_id *cm_id,
				 const struct iw_cm_conn_param *cm_param,
				 u32 request)
{
	struct faultline_accept params = {
		.param.ird = cpu_to_le16(cm_param->ird),
		.param.ord = cpu_to_le16(cm_param->ord),
		.request = cpu_to_le32(request),
	};
	u8 *copy;
	int err;

	copy = faultline_private_map(dev, &params.param, cm_param->private_data,
				     cm_param->private_data_len);
	if (IS_ERR(copy))
		return PTR_ERR(copy);
	faultline_conn_begin(conn, cm_id, FAULTLINE_CONN_ACCEPTING);
	err = faultline_cmd_accept(dev, conn->qp->res.num, &params);
	faultline_private_unmap(dev, &params.param, copy);
	if (err) {
		faultline_conn_end(conn);
		return err;
	}
	/* Requests wait in the device until the connection is established. */
	conn->qp->state = IB_QPS_RTS;
	queue_delayed_work(dev->wq, &conn->work, FAULTLINE_OPEN_TIMEOUT);
	return 0;
}

/* If this fails, iw_cm does not reject the request: it ends here. */
int faultline_iw_accept(struct iw_cm_id *cm_id,
			struct iw_cm_conn_param *cm_param)
{
	struct faultline_dev *dev = faultline_cm_dev(cm_id);
	struct faultline_qp *qp;
	u32 request;
	int err;

	err = faultline_request_take(cm_id, &request);
	if (err)
		return err;
	err = faultline_conn_check(dev, cm_param);
	if (err)
		goto reject;
	qp = faultline_conn_lock(dev, cm_param);
	if (IS_ERR(qp)) {
		err = PTR_ERR(qp);
		goto reject;
	}
	err = faultline_conn_accept(dev, qp->conn, cm_id, cm_param, request);
	faultline_conn_unlock(qp);
	if (!err)
		return 0;
reject:
	faultline_request_reject(dev, request, NULL, 0);
	return err;
}
