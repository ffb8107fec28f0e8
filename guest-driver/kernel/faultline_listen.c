// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Listeners of an iWARP adapter
 *
 * A listener of iw_cm is one or several of the device: for any address there is
 * one for each family, with and without each VLAN of the netdev. A VLAN that is
 * created later is not covered. A listener of another network namespace than the
 * netdev's has none for any address. A user without CAP_NET_ADMIN has at most
 * a part of the device's listeners.
 *
 * Interrupts put events about requests into a ring, and a work item takes them
 * out in order. It enters a request into an array, reads what the peer has said,
 * and gives it to iw_cm, which accepts or rejects it by `provider_data`: the
 * number of the request in the lower half, and its generation in the upper one.
 * The device uses a number again, and iw_cm may ask for a request that has ended:
 * then the generation differs. The function that removes a request from the array must answer it:
 * iw_accept(), iw_reject(), or the work item when the request has ended. iw_cm
 * forgets a request without an answer if its listener is destroyed meanwhile;
 * the device ends it after a time.
 *
 * Locking: faultline_cm.lock (taken in interrupts) protects the indices of the
 * ring. The locks of the arrays protect their entries; a listener is found with a
 * reference, as other objects of events, and its destruction waits for the last
 * one. `generation` belongs to the work item. `users_lock` protects the counts
 * of users. iw_cm is called without locks.
 *
 * Everything exists for one life of the device, from faultline_cm_create() to
 * faultline_cm_destroy().
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/if_vlan.h>
#include <linux/in.h>
#include <linux/log2.h>
#include <linux/net.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include <net/ipv6.h>
#include <net/sock.h>

#include <rdma/rdma_cm.h>

#include "faultline_iwarp.h"

/* A user may have the device's listeners divided by this. */
#define FAULTLINE_USER_LISTENERS	4

struct faultline_listen;

/* A user without CAP_NET_ADMIN who has listeners. */
struct faultline_cm_user {
	struct list_head link;
	kuid_t uid;
	/* Listeners of the device. */
	u32 listeners;
};

/* A listener of the device. */
struct faultline_listener {
	struct faultline_res res;
	struct faultline_listen *listen;
};

/* A listener of iw_cm; iw_cm_id.provider_data. */
struct faultline_listen {
	struct iw_cm_id *cm_id;
	/* NULL: shared with a socket. */
	struct socket *port;
	/* NULL: no user's, or an administrator's. */
	struct faultline_cm_user *user;
	/* Listeners for which `user` is charged. */
	unsigned int max;
	unsigned int num;
	struct faultline_listener listeners[];
};

struct faultline_cm_event {
	u32 object;
	u32 token;
	u8 kind;
};

struct faultline_cm {
	struct faultline_dev *dev;
	struct xarray listeners;
	/* By number; values are generations. */
	struct xarray requests;
	atomic_t num_requests;
	u32 generation;
	struct mutex users_lock;
	struct list_head users;
	struct work_struct work;
	/* Protects the ring. */
	spinlock_t lock;
	u32 head;
	u32 tail;
	u32 depth;
	struct faultline_cm_event ring[];
};

/* --- requests -------------------------------------------------------------*/

static void *faultline_request_cookie(u32 generation, u32 number)
{
	return (void *)(uintptr_t)((u64)generation << 32 | number);
}

/* Removes a request. Returns false if it has been removed, or is another. */
static bool faultline_request_remove(struct faultline_cm *cm, u32 number,
				     u32 generation)
{
	void *value = xa_mk_value(generation);

	if (xa_cmpxchg(&cm->requests, number, value, NULL, GFP_KERNEL) != value)
		return false;
	atomic_dec(&cm->num_requests);
	return true;
}

/* Takes the request of an iw_cm_id, which the caller answers. */
int faultline_request_take(struct iw_cm_id *cm_id, u32 *number)
{
	struct faultline_cm *cm = faultline_cm_dev(cm_id)->cm;
	u64 cookie = (uintptr_t)cm_id->provider_data;

	*number = lower_32_bits(cookie);
	return faultline_request_remove(cm, *number, upper_32_bits(cookie)) ?
		       0 : -ECONNRESET;
}

int faultline_request_reject(struct faultline_dev *dev, u32 number,
			     const void *data, u8 len)
{
	struct faultline_accept params = {};
	u8 *copy;
	int err;

	copy = faultline_private_map(dev, &params.param, data, len);
	/* The peer gets the refusal without its reason. */
	if (IS_ERR(copy))
		copy = NULL;
	err = faultline_cmd_reject(dev, number, &params);
	faultline_private_unmap(dev, &params.param, copy);
	return err;
}

int faultline_iw_reject(struct iw_cm_id *cm_id, const void *data, u8 len)
{
	u32 number;
	int err;

	err = faultline_request_take(cm_id, &number);
	return err ?: faultline_request_reject(faultline_cm_dev(cm_id), number,
					       data, len);
}

/* Enters a request. The device must not have more, or use a number twice. */
static int faultline_request_add(struct faultline_cm *cm, u32 number)
{
	struct faultline_dev *dev = cm->dev;
	int err;

	cm->generation++;
	err = xa_insert(&cm->requests, number, xa_mk_value(cm->generation),
			GFP_KERNEL);
	if (err == -EBUSY)
		faultline_fail(dev, "number of a request in use");
	if (err)
		return err;
	if (atomic_inc_return(&cm->num_requests) <=
	    le32_to_cpu(dev->caps.max_listener))
		return 0;
	faultline_request_remove(cm, number, cm->generation);
	faultline_fail(dev, "more requests than the device has");
	return -EIO;
}

/*
 * Returns true if a request is for this listener and came to an address of this
 * adapter. The core would attach another one's to that adapter, whose queue
 * pairs have the same numbers.
 */
static bool faultline_request_fits(struct faultline_cm *cm,
				   struct faultline_listen *listen,
				   struct sockaddr_storage *local)
{
	struct net *net = faultline_cm_net(cm->dev);
	int ifindex, err;
	u16 vlan;

	if (!net)
		return false;
	err = faultline_cm_local(cm->dev, net, local, &ifindex, &vlan);
	put_net(net);
	return !err && *faultline_port(local) ==
			       *faultline_port(&listen->cm_id->m_local_addr);
}

/* Gives a request to iw_cm. */
static int faultline_request_report(struct faultline_cm *cm,
				    struct faultline_listen *listen,
				    u32 number, struct faultline_peer *peer)
{
	const struct faultline_connection_param *param = &peer->info.param;
	const struct faultline_caps *caps = &cm->dev->caps;
	u32 ird = le16_to_cpu(param->ird), ord = le16_to_cpu(param->ord);
	struct iw_cm_event event = {
		.event = IW_CM_EVENT_CONNECT_REQUEST,
		.provider_data = faultline_request_cookie(cm->generation,
							  number),
		.private_data = peer->data,
		.private_data_len = faultline_peer_len(peer),
	};

	if (!(le16_to_cpu(param->flags) & FAULTLINE_CONNECTION_ENHANCED)) {
		/* MPA revision 1 does not tell them. */
		ird = le32_to_cpu(caps->max_init_rd_atomic);
		ord = le32_to_cpu(caps->max_rd_atomic);
	}
	/* As the core names them: READs to the peer, and from it. */
	event.ird = min_t(u32, ird, U8_MAX);
	event.ord = min_t(u32, ord, U8_MAX);
	faultline_path_addrs(cm->dev, &peer->info.path, &event);
	if (!faultline_request_fits(cm, listen, &event.local_addr))
		return -EADDRNOTAVAIL;
	return listen->cm_id->event_handler(listen->cm_id, &event);
}

static int faultline_request_handle(struct faultline_cm *cm,
				    struct faultline_listen *listen, u32 number)
{
	struct faultline_peer *peer;
	int err;

	err = faultline_request_add(cm, number);
	if (err)
		return err;
	err = -ENOMEM;
	peer = kzalloc(sizeof(*peer), GFP_KERNEL);
	if (peer)
		err = faultline_peer_query(cm->dev, true, number, peer);
	if (!err)
		err = faultline_request_report(cm, listen, number, peer);
	kfree(peer);
	if (err)
		faultline_request_remove(cm, number, cm->generation);
	return err;
}

static void faultline_request_begin(struct faultline_cm *cm, u32 listener,
				    u32 number)
{
	struct faultline_res *res = faultline_res_get(&cm->listeners, listener);
	struct faultline_listener *found;
	int err = -ENOENT;

	if (res) {
		found = container_of(res, struct faultline_listener, res);
		err = faultline_request_handle(cm, found->listen, number);
		faultline_res_put(res);
	}
	if (err)
		faultline_request_reject(cm->dev, number, NULL, 0);
}

/* The device has ended a request: its number may be used again. */
static void faultline_request_end(struct faultline_cm *cm, u32 number)
{
	void *value = xa_load(&cm->requests, number);

	/* Else iw_accept() or iw_reject() answers it at this moment. */
	if (value && faultline_request_remove(cm, number, xa_to_value(value)))
		faultline_request_reject(cm->dev, number, NULL, 0);
}

/* --- events ---------------------------------------------------------------*/

/* Runs in interrupt context. */
void faultline_cm_event(struct faultline_dev *dev, u8 kind, u32 object,
			u64 token)
{
	struct faultline_cm *cm = dev->cm;
	unsigned long flags;
	bool room;

	/* A device without the feature has no such events. */
	if (!cm)
		return;
	spin_lock_irqsave(&cm->lock, flags);
	room = cm->tail - cm->head < cm->depth;
	if (room)
		cm->ring[cm->tail++ & (cm->depth - 1)] =
			(struct faultline_cm_event) {
				.kind = kind,
				.object = object,
				.token = lower_32_bits(token),
			};
	spin_unlock_irqrestore(&cm->lock, flags);
	if (room)
		queue_work(dev->wq, &cm->work);
	else
		faultline_fail(dev, "more events of requests than the device has requests");
}

static bool faultline_cm_take(struct faultline_cm *cm,
			      struct faultline_cm_event *event)
{
	bool any;

	spin_lock_irq(&cm->lock);
	any = cm->head != cm->tail;
	if (any)
		*event = cm->ring[cm->head++ & (cm->depth - 1)];
	spin_unlock_irq(&cm->lock);
	return any;
}

static void faultline_cm_work(struct work_struct *work)
{
	struct faultline_cm *cm = container_of(work, struct faultline_cm, work);
	struct faultline_cm_event event;

	while (faultline_cm_take(cm, &event)) {
		cond_resched();
		if (event.kind == FAULTLINE_EVENT_CONNECTION_REQUEST)
			faultline_request_begin(cm, event.object, event.token);
		else
			faultline_request_end(cm, event.object);
	}
}

/* Called before the event queues are created. */
int faultline_cm_create(struct faultline_dev *dev)
{
	struct faultline_cm *cm;
	u32 depth;

	if (!faultline_is_iwarp(dev))
		return 0;
	/*
	 * For each number at most its end, and the begin and the end of the
	 * next request that has it: the work item has to take the begin before
	 * the number is used again.
	 */
	depth = roundup_pow_of_two(3 * le32_to_cpu(dev->caps.max_listener));
	cm = kvzalloc(struct_size(cm, ring, depth), GFP_KERNEL);
	if (!cm)
		return -ENOMEM;
	cm->dev = dev;
	cm->depth = depth;
	xa_init_flags(&cm->listeners, XA_FLAGS_LOCK_IRQ);
	xa_init(&cm->requests);
	mutex_init(&cm->users_lock);
	INIT_LIST_HEAD(&cm->users);
	spin_lock_init(&cm->lock);
	INIT_WORK(&cm->work, faultline_cm_work);
	dev->cm = cm;
	return 0;
}

/* There are no events and no listeners any more. */
void faultline_cm_destroy(struct faultline_dev *dev)
{
	struct faultline_cm *cm = dev->cm;

	if (!cm)
		return;
	cancel_work_sync(&cm->work);
	xa_destroy(&cm->requests);
	xa_destroy(&cm->listeners);
	kvfree(cm);
	dev->cm = NULL;
}

/* --- listeners ------------------------------------------------------------*/

/* Families of a listener, as addresses of the device. */
#define FAULTLINE_CM_FAMILIES	2

static bool faultline_cm_is_any(const struct sockaddr_storage *addr)
{
	const struct sockaddr_in *v4 = (const void *)addr;
	const struct sockaddr_in6 *v6 = (const void *)addr;

	return addr->ss_family == AF_INET ? !v4->sin_addr.s_addr :
					    ipv6_addr_any(&v6->sin6_addr);
}

/* A listener of both families: for any address of IPv6, unless it has IPv6 only. */
static bool faultline_listen_is_dual(const struct iw_cm_id *cm_id)
{
	return cm_id->m_local_addr.ss_family == AF_INET6 && !cm_id->afonly &&
	       faultline_cm_is_any(&cm_id->m_local_addr);
}

/* Fills in the VLANs of the netdev, and first none. Returns their number. */
static unsigned int faultline_cm_vlans(struct faultline_dev *dev,
				       struct net *net, u16 *vlans,
				       unsigned int max)
{
	struct net_device *found;
	unsigned int num = 0;
	u16 vlan;

	vlans[num++] = FAULTLINE_NO_VLAN;
	rcu_read_lock();
	for_each_netdev_rcu(net, found)
		if (num < max && faultline_cm_interface(dev, found, &vlan) &&
		    vlan != FAULTLINE_NO_VLAN)
			vlans[num++] = vlan;
	rcu_read_unlock();
	return num;
}

/*
 * Charges the user for the listeners of the device that this one may need. Not
 * an administrator, and not the kernel, which listens for one.
 */
static int faultline_listen_charge(struct faultline_dev *dev,
				   struct faultline_listen *listen)
{
	u32 most = le32_to_cpu(dev->caps.max_listener) /
		   FAULTLINE_USER_LISTENERS;
	struct faultline_cm *cm = dev->cm;
	struct faultline_cm_user *user;
	int err = 0;

	if (!current->mm || capable(CAP_NET_ADMIN))
		return 0;
	mutex_lock(&cm->users_lock);
	list_for_each_entry(user, &cm->users, link)
		if (uid_eq(user->uid, current_uid()))
			goto found;
	user = kzalloc(sizeof(*user), GFP_KERNEL);
	if (!user) {
		err = -ENOMEM;
		goto unlock;
	}
	user->uid = current_uid();
	list_add_tail(&user->link, &cm->users);
found:
	if (listen->max > most || user->listeners > most - listen->max) {
		err = -EDQUOT;
	} else {
		user->listeners += listen->max;
		listen->user = user;
	}
	if (!user->listeners) {
		list_del(&user->link);
		kfree(user);
	}
unlock:
	mutex_unlock(&cm->users_lock);
	return err;
}

static void faultline_listen_uncharge(struct faultline_dev *dev,
				      struct faultline_listen *listen)
{
	struct faultline_cm_user *user = listen->user;

	if (!user)
		return;
	mutex_lock(&dev->cm->users_lock);
	user->listeners -= listen->max;
	if (!user->listeners) {
		list_del(&user->link);
		kfree(user);
	}
	mutex_unlock(&dev->cm->users_lock);
}

static int faultline_listener_add(struct faultline_dev *dev,
				  struct faultline_listen *listen,
				  const u8 *ip, u16 port, u16 vlan, u32 backlog)
{
	struct faultline_listener *listener = &listen->listeners[listen->num];
	struct faultline_create_listener params = {
		.path.local_port = cpu_to_le16(port),
		.path.vlan = cpu_to_le16(vlan),
		.backlog = cpu_to_le16(backlog),
	};
	u32 number;
	int err;

	memcpy(params.path.local_ip, ip, sizeof(params.path.local_ip));
	err = faultline_cmd_create_listener(dev, &params, &number);
	if (err)
		return err;
	listener->listen = listen;
	faultline_res_init(&listener->res, number, NULL);
	err = faultline_res_add(dev, &dev->cm->listeners, &listener->res);
	if (err)
		faultline_cmd_destroy_listener(dev, number);
	else
		listen->num++;
	return err;
}

static void faultline_listen_free(struct faultline_dev *dev,
				  struct faultline_listen *listen)
{
	struct faultline_listener *listener;
	int err;

	while (listen->num) {
		listener = &listen->listeners[--listen->num];
		err = faultline_cmd_destroy_listener(dev, listener->res.num);
		err = faultline_dead_ok(dev, err);
		if (err)
			faultline_err(dev, "listener %u: can't destroy: %d\n",
				      listener->res.num, err);
		faultline_res_remove(&dev->cm->listeners, &listener->res);
	}
	faultline_listen_uncharge(dev, listen);
	faultline_port_release(listen->port);
	listen->cm_id->rem_ref(listen->cm_id);
	kvfree(listen);
}

/* Creates the listeners of the device for an address and some VLANs. */
static int faultline_listen_start(struct faultline_dev *dev,
				  struct faultline_listen *listen,
				  const struct sockaddr_storage *local,
				  const u16 *vlans, unsigned int num_vlans,
				  u32 backlog)
{
	u16 port = ntohs(*faultline_port((struct sockaddr_storage *)local));
	bool both = faultline_listen_is_dual(listen->cm_id);
	u8 ip[FAULTLINE_CM_FAMILIES][16];
	unsigned int i, j;
	int err;

	faultline_ip_fill(ip[0], local);
	ipv6_addr_set_v4mapped(htonl(INADDR_ANY), (struct in6_addr *)ip[1]);
	for (i = 0; i < num_vlans; i++) {
		for (j = 0; j <= both; j++) {
			err = faultline_listener_add(dev, listen, ip[j], port,
						     vlans[i], backlog);
			if (err)
				return err;
		}
	}
	return 0;
}

/*
 * Reserves the port of a listener. An administrator's, or the kernel's, may share
 * it with a socket, as on adapters that reserve no port: LIO has a socket at the
 * port of each iSER portal. Connections that peers open through this adapter are
 * then those of the listener. Two adapters of the guest may have the same port.
 */
static int faultline_listen_reserve(struct faultline_dev *dev, struct net *net,
				    struct faultline_listen *listen,
				    struct sockaddr_storage *local, int ifindex)
{
	int err = faultline_port_reserve(net, local, ifindex,
					 listen->cm_id->afonly, &listen->port);

	if (err != -EADDRINUSE || (current->mm && !capable(CAP_NET_ADMIN)))
		return err;
	dev_info_ratelimited(&dev->pdev->dev,
			     "port %u: a listener shares it with a socket\n",
			     ntohs(*faultline_port(local)));
	return 0;
}

static int faultline_listen_open(struct faultline_dev *dev, struct net *net,
				 struct iw_cm_id *cm_id, u32 backlog)
{
	struct sockaddr_storage local = cm_id->m_local_addr;
	unsigned int num_vlans = 1, max_vlans = VLAN_N_VID;
	struct faultline_listen *listen;
	int ifindex, err;
	u16 *vlans;

	vlans = kvcalloc(max_vlans, sizeof(*vlans), GFP_KERNEL);
	if (!vlans)
		return -ENOMEM;
	if (faultline_cm_is_any(&local)) {
		num_vlans = faultline_cm_vlans(dev, net, vlans, max_vlans);
		ifindex = faultline_netdev(dev)->ifindex;
		err = 0;
	} else {
		err = faultline_cm_local(dev, net, &local, &ifindex, vlans);
	}
	if (err)
		goto free_vlans;
	err = -ENOMEM;
	listen = kvzalloc(struct_size(listen, listeners,
				      FAULTLINE_CM_FAMILIES * num_vlans),
			  GFP_KERNEL);
	if (!listen)
		goto free_vlans;
	listen->cm_id = cm_id;
	cm_id->add_ref(cm_id);
	listen->max = num_vlans * (faultline_listen_is_dual(cm_id) ? 2 : 1);
	err = faultline_listen_charge(dev, listen);
	if (!err)
		err = faultline_listen_reserve(dev, net, listen, &local,
					       ifindex);
	if (!err)
		err = faultline_listen_start(dev, listen, &local, vlans,
					     num_vlans, backlog);
	if (err)
		faultline_listen_free(dev, listen);
	else
		cm_id->provider_data = listen;
free_vlans:
	kvfree(vlans);
	return err;
}

/*
 * Returns true if a listener for any address listens to those of `net`, the
 * namespace of the netdev. The core asks all adapters; also while a device
 * registers, in any process or thread. So the listener itself tells: rdma_cm,
 * the only user of iw_cm, has its own structure as the context, which begins
 * with a struct rdma_cm_id.
 */
static bool faultline_listen_is_here(const struct iw_cm_id *cm_id,
				     const struct net *net)
{
	const struct rdma_cm_id *id = cm_id->context;

	return net_eq(id->route.addr.dev_addr.net, net) &&
	       rdma_dev_access_netns(cm_id->device, net);
}

int faultline_iw_create_listen(struct iw_cm_id *cm_id, int backlog)
{
	struct faultline_dev *dev = faultline_cm_dev(cm_id);
	__be16 port = *faultline_port(&cm_id->m_local_addr);
	struct net *net;
	int err;

	if (cm_id->m_local_addr.ss_family != AF_INET &&
	    cm_id->m_local_addr.ss_family != AF_INET6)
		return -EAFNOSUPPORT;
	if (!port)
		return -EINVAL;
	net = faultline_cm_net(dev);
	if (!net)
		return -ENETDOWN;
	if (faultline_cm_is_any(&cm_id->m_local_addr) &&
	    !faultline_listen_is_here(cm_id, net)) {
		put_net(net);
		return 0;
	}
	faultline_addrs_flush(dev);
	err = faultline_listen_open(dev, net, cm_id,
				    clamp_t(u32, backlog, 1,
					    le32_to_cpu(dev->caps.max_backlog)));
	put_net(net);
	/*
	 * While the device registers, the core creates the listeners for any
	 * address again. After an error rdma_cm would not use the adapter.
	 */
	if (err && !READ_ONCE(dev->up) &&
	    faultline_cm_is_any(&cm_id->m_local_addr)) {
		dev_warn_ratelimited(&dev->pdev->dev,
				     "port %u: can't listen again: %d\n",
				     ntohs(port), err);
		err = 0;
	}
	return err;
}

/* Without provider_data, there is no listener. */
int faultline_iw_destroy_listen(struct iw_cm_id *cm_id)
{
	struct faultline_listen *listen = cm_id->provider_data;

	cm_id->provider_data = NULL;
	if (listen)
		faultline_listen_free(faultline_cm_dev(cm_id), listen);
	return 0;
}
