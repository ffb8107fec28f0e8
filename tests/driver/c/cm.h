/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of the kernel that connections use: addresses, sockets that reserve
 * ports, the resolution of addresses, and iw_cm. Functions without a body here
 * are in connections.c.
 */
#ifndef CM_H
#define CM_H

#define HZ 1000UL
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define IPPROTO_TCP 6
#define INADDR_ANY 0
#define ETH_P_8021Q 0x8100
#define VLAN_N_VID 4096
#define VLAN_PRIO_MASK 0xe000
#define VLAN_PRIO_SHIFT 13
#define CAP_NET_ADMIN 12
#define IPV6_ADDR_LINKLOCAL 0x20
#define XA_FLAGS_LOCK_IRQ 0
#define cond_resched() ((void)0)
#define list_del(entry) list_del_init(entry)
#define __used __attribute__((used))

#define htonl(x) __builtin_bswap32(x)
#define ntohs(x) __builtin_bswap16(x)
#define clamp_t(t, x, low, high) min_t(t, max_t(t, x, low), high)
#define lower_32_bits(x) ((u32)(x))
#define upper_32_bits(x) ((u32)((u64)(x) >> 32))
#define roundup_pow_of_two(n) (1UL << order_base_2(n))
#define kzalloc(size, gfp) calloc(1, size)
#define kvzalloc(size, gfp) calloc(1, size)
#define time_after_eq(a, b) ((long)((a) - (b)) >= 0)
#define smp_rmb() ((void)0)
#define smp_wmb() ((void)0)

static inline void *kmemdup(const void *from, size_t size, gfp_t gfp)
{
	return memcpy(malloc(size), from, size);
}

static inline bool refcount_inc_not_zero(refcount_t *refs)
{
	return refs->count ? ++refs->count : 0;
}

#define atomic_dec(a) ((a)->count--)
#define atomic_inc_return(a) (++(a)->count)

/* --- work with a delay: a test lets its time pass ------------------------ */

#define INIT_DELAYED_WORK(w, f) INIT_WORK(&(w)->work, f)
#define to_delayed_work(w) container_of(w, struct delayed_work, work)
#define mod_delayed_work(wq, w, delay) shim_delay(w, delay, true)
#define queue_delayed_work(wq, w, delay) shim_delay(w, delay, false)
#define disable_delayed_work_sync(w) (shim_disarm(w), disable_work_sync(&(w)->work))

/* Runs a work item that is queued. */
#define flush_work(w) shim_flush_work(w)

void shim_flush_work(struct work_struct *work);
void shim_delay(struct delayed_work *work, unsigned long delay, bool again);
void shim_disarm(struct delayed_work *work);

/* --- arrays -------------------------------------------------------------- */

#define xa_mk_value(n) ((void *)((uintptr_t)(n) << 1 | 1))
#define xa_to_value(p) ((unsigned long)(uintptr_t)(p) >> 1)
#define xa_init(xa) memset(xa, 0, sizeof(*(xa)))
#define xa_init_flags(xa, flags) xa_init(xa)
#define xa_destroy(xa) ((void)(xa))
#define xa_insert(xa, index, value, gfp) xa_insert_irq(xa, index, value, gfp)

static inline void *xa_cmpxchg(struct xarray *xa, unsigned long index, void *from, void *to, gfp_t gfp)
{
	void *was = xa_load(xa, index);

	xa_cmpxchg_irq(xa, index, from, to, gfp);
	return was;
}

/* --- addresses and sockets ----------------------------------------------- */

struct in6_addr { u8 s6_addr[16]; };
struct in_addr { u32 s_addr; };
struct sockaddr { u16 sa_family; };
struct sockaddr_in { u16 sin_family; __be16 sin_port; struct in_addr sin_addr; };
struct sockaddr_in6 { u16 sin6_family; __be16 sin6_port; u32 sin6_flowinfo; struct in6_addr sin6_addr; u32 sin6_scope_id; };
struct sockaddr_storage { u16 ss_family; u16 rest[15]; };

static inline bool ipv6_addr_v4mapped(const struct in6_addr *ip)
{
	return !memchr_inv(ip->s6_addr, 0, 10) && !memchr_inv(ip->s6_addr + 10, 0xff, 2);
}

static inline void ipv6_addr_set_v4mapped(u32 v4, struct in6_addr *ip)
{
	memset(ip->s6_addr, 0, 10);
	memset(ip->s6_addr + 10, 0xff, 2);
	memcpy(ip->s6_addr + 12, &v4, 4);
}

#define ipv6_addr_any(ip) (!memchr_inv((ip)->s6_addr, 0, 16))
#define ipv6_addr_type(ip) ((ip)->s6_addr[0] == 0xfe ? IPV6_ADDR_LINKLOCAL : 0)
#define rdma_addr_size(addr) ((addr)->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6))

struct net { int refs; };
struct sock { struct net *net; };
struct socket { struct sock own; struct sock *sk; };

/* Sockets that exist. */
extern unsigned int num_sockets;
extern struct net shim_net;

int sock_create_kern(struct net *net, int family, int type, int proto, struct socket **sock);
void sock_release(struct socket *sock);
int kernel_bind(struct socket *sock, void *addr, int size);
int kernel_getsockname(struct socket *sock, struct sockaddr *addr);

#define sock_net(sk) ((sk)->net)
#define sock_bindtoindex(sk, ifindex, lock) 0
#define ip6_sock_set_v6only(sk) 0
#define get_net(n) ((n)->refs++)
#define put_net(n) ((void)(n)->refs--)
#define maybe_get_net(n) ((n)->refs++, (n))
#define dev_net(netdev) (&shim_net)
#define rcu_read_lock() ((void)0)
#define rcu_read_unlock() ((void)0)

#define is_vlan_dev(netdev) ((netdev)->lower != NULL)
#define vlan_dev_vlan_id(netdev) ((netdev)->vlan)
#define vlan_dev_vlan_proto(netdev) ((netdev)->vlan_proto)
#define dev_get_iflink(netdev) ((netdev)->lower->ifindex)

static inline struct net_device *vlan_dev_real_dev(struct net_device *netdev)
{
	while (netdev->lower)
		netdev = netdev->lower;
	return netdev;
}

#define vlan_dev_get_egress_qos_mask(netdev, priority) ((void)(priority), 0)
#define rt_tos2priority(tos) (tos)
#define __vlan_find_dev_deep_rcu(netdev, proto, vlan) ((void)(vlan), (struct net_device *)NULL)
#define for_each_netdev_rcu(net, found) for (found = shim_netdevs; found; found = found->next)
#define dev_get_by_index(net, ifindex) shim_netdev(ifindex)
#define dev_put(netdev) ((void)(netdev))
/* All of the namespace. */
extern struct net_device *shim_netdevs;
struct net_device *shim_netdev(int ifindex);

/* --- addresses of interfaces, and notifiers ------------------------------ */

struct in_device { struct net_device *dev; struct in_ifaddr *first; };
struct in_ifaddr { u32 ifa_local; struct in_device *ifa_dev; struct in_ifaddr *next; };
struct inet6_dev { struct net_device *dev; };
struct inet6_ifaddr { struct inet6_dev *idev; };

#define IFF_UP 1
#define NETDEV_CHANGEADDR 8
#define NOTIFY_DONE 0
#define __in_dev_get_rcu(netdev) ((struct in_device *)(netdev)->ip_ptr)
#define in_dev_for_each_ifa_rcu(ifa, in_dev) for (ifa = (in_dev)->first; ifa; ifa = ifa->next)
#define netdev_notifier_info_to_dev(data) ((struct net_device *)(data))

struct notifier_block { int (*notifier_call)(struct notifier_block *nb, unsigned long event, void *data); };

/* The notifiers of interfaces, IPv4 and IPv6 addresses that are registered. */
extern struct notifier_block *shim_notifiers[3];

#define SHIM_REGISTER(i, nb) (shim_notifiers[i] = (nb), 0)
#define register_netdevice_notifier(nb) SHIM_REGISTER(0, nb)
#define register_inetaddr_notifier(nb) SHIM_REGISTER(1, nb)
#define register_inet6addr_notifier(nb) SHIM_REGISTER(2, nb)
#define unregister_netdevice_notifier(nb) ((void)(shim_notifiers[0] = NULL))
#define unregister_inetaddr_notifier(nb) ((void)(shim_notifiers[1] = NULL))
#define unregister_inet6addr_notifier(nb) ((void)(shim_notifiers[2] = NULL))

struct rdma_dev_addr { u8 dst_dev_addr[32]; int bound_dev_if; struct net *net; int hoplimit; };

int rdma_translate_ip(const struct sockaddr *ip, struct rdma_dev_addr *addr);
int rdma_resolve_ip(struct sockaddr *from, const struct sockaddr *to, struct rdma_dev_addr *addr, unsigned long ms,
		    void (*callback)(int status, struct sockaddr *from, struct rdma_dev_addr *addr, void *context),
		    bool by_gid, void *context);
void rdma_addr_cancel(struct rdma_dev_addr *addr);

/* --- processes ----------------------------------------------------------- */

struct mm_struct { int refs; };
typedef unsigned int kuid_t;
struct shim_task { struct mm_struct *mm; kuid_t uid; bool capable; };
extern struct shim_task shim_task;
#define current (&shim_task)
#define current_uid() (shim_task.uid)
#define uid_eq(a, b) ((a) == (b))
#define net_eq(a, b) ((a) == (b))
#define capable(what) (shim_task.capable)
#define mmgrab(mm) ((mm)->refs++)
#define mmdrop(mm) ((mm)->refs--)

/* --- rdma_cm ------------------------------------------------------------- */

struct rdma_cm_id { struct { struct { struct rdma_dev_addr dev_addr; } addr; } route; };

/* The namespace that has the RDMA device; NULL: all have it. */
extern const struct net *shim_rdma_net;

#define rdma_dev_access_netns(ibdev, net) (!shim_rdma_net || (net) == shim_rdma_net)

/* --- iw_cm --------------------------------------------------------------- */

enum iw_cm_event_type {
	IW_CM_EVENT_CONNECT_REQUEST = 1, IW_CM_EVENT_CONNECT_REPLY, IW_CM_EVENT_ESTABLISHED, IW_CM_EVENT_DISCONNECT,
	IW_CM_EVENT_CLOSE,
};

struct iw_cm_event {
	enum iw_cm_event_type event;
	int status;
	struct sockaddr_storage local_addr, remote_addr;
	void *private_data, *provider_data;
	u8 private_data_len, ord, ird;
};

struct iw_cm_id {
	struct ib_device *device;
	void *context;
	struct sockaddr_storage m_local_addr, m_remote_addr;
	void *provider_data;
	int (*event_handler)(struct iw_cm_id *cm_id, struct iw_cm_event *event);
	void (*add_ref)(struct iw_cm_id *cm_id);
	void (*rem_ref)(struct iw_cm_id *cm_id);
	u8 tos;
	bool tos_set, afonly;
};

const char *iwcm_reject_msg(int reason);

struct iw_cm_conn_param {
	const void *private_data;
	u16 private_data_len;
	u32 ord, ird, qpn;
};

#endif /* CM_H */
