/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of the kernel that the netdev uses: DMA maps, buffers, NAPI and the
 * core's calls. Functions without a body here are in net.c.
 *
 * Streaming maps are bounce buffers. What the device does after the end of a map
 * is a use after free, and so is the end of a map after that of its memory; what
 * the driver reads before the end of a map is not what the device has written.
 */
#ifndef NET_H
#define NET_H

#define DMA_MAPPING_ERROR (~0ULL)
#define GFP_ATOMIC 1
#define NETDEV_TX_OK 0
#define NETDEV_TX_BUSY 16
#define ETH_HLEN 14
#define VLAN_HLEN 4
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define MAX_SKB_FRAGS 17
#define GSO_LEGACY_MAX_SIZE 65536
#define SKB_GSO_DODGY 2
#define IFF_PROMISC 0x100
#define IFF_ALLMULTI 0x200
#define IFF_UNICAST_FLT 1
#define CHECKSUM_NONE 0
#define CHECKSUM_UNNECESSARY 1
#define CHECKSUM_PARTIAL 3
#define PKT_HASH_TYPE_L4 3
#define NETIF_F_SG (1 << 0)
#define NETIF_F_HW_CSUM (1 << 1)
#define NETIF_F_RXCSUM (1 << 2)
#define NETIF_F_HIGHDMA (1 << 3)
#define NETIF_F_TSO (1 << 4)
#define NETIF_F_TSO6 (1 << 5)
#define NETIF_F_RXHASH (1 << 6)
#define NETIF_F_CSUM_MASK NETIF_F_HW_CSUM
#define NETIF_F_GSO_MASK (NETIF_F_TSO | NETIF_F_TSO6)
#define NETDEV_QUEUE_TYPE_RX 0
#define NETDEV_QUEUE_TYPE_TX 1

typedef int netdev_tx_t;
typedef u64 netdev_features_t;
typedef u16 __sum16;
typedef u64 u64_stats_t;
struct u64_stats_sync { int held; };
struct ipv6hdr { u8 octets[40]; };
struct ethtool_ops { int unused; };
struct ethtool_rxfh_fields;
struct rtnl_link_stats64 { u64 rx_packets, rx_bytes, tx_packets, tx_bytes; };

#define static_assert _Static_assert
#define htons(x) __builtin_bswap16(x)
/* Time that a test lets pass. */
extern unsigned long shim_jiffies;
#define jiffies shim_jiffies
#define msecs_to_jiffies(ms) (ms)
#define ilog2(n) (63 - __builtin_clzll(n))
#define struct_size(p, field, n) (sizeof(*(p)) + (n) * sizeof((p)->field[0]))
#define __counted_by(n)
/* Without a second thread, the writers of statistics are seen in pairs. */
#define u64_stats_init(s) ((s)->held = 0)
#define u64_stats_update_begin(s) shim_lock(&(s)->held)
#define u64_stats_update_end(s) shim_unlock(&(s)->held)
#define u64_stats_fetch_begin(s) 0
#define u64_stats_fetch_retry(s, start) false
#define u64_stats_add(p, n) (*(p) += (n))
#define u64_stats_read(p) (*(p))

/* --- maps ---------------------------------------------------------------- */

enum dma_data_direction { DMA_TO_DEVICE = 1, DMA_FROM_DEVICE };

/* Every n-th map or allocation fails; 0: none, 1: each. */
extern unsigned int fail_one_in;
/* Maps and buffers that exist. */
extern unsigned int num_maps, num_skbs;

dma_addr_t shim_map(void *memory, size_t size, int direction, bool page);
void shim_unmap(dma_addr_t addr, size_t size, int direction, bool page);
/* The memory that the device sees at an address, which must be that of a map with at least this size. */
void *mapped_memory(dma_addr_t addr, size_t size, int direction);

#define dma_map_single(dev, memory, size, dir) shim_map(memory, size, dir, false)
#define dma_unmap_single(dev, addr, size, dir) shim_unmap(addr, size, dir, false)
#define skb_frag_dma_map(dev, frag, offset, size, dir) shim_map((frag)->memory + (offset), size, dir, true)
#define dma_unmap_page(dev, addr, size, dir) shim_unmap(addr, size, dir, true)
#define dma_mapping_error(dev, addr) ((addr) == DMA_MAPPING_ERROR)

/* --- buffers ------------------------------------------------------------- */

typedef struct { u8 *memory; u32 size; } skb_frag_t;
struct skb_shared_info { u8 nr_frags; u16 gso_size; u32 gso_type; skb_frag_t frags[MAX_SKB_FRAGS]; };

struct sk_buff {
	/* A block of its own, with `room` bytes. */
	u8 *head, *data;
	unsigned int room, len, data_len;
	u16 queue_mapping, protocol, csum_start, csum_offset;
	u32 hash;
	u8 ip_summed, hash_type, encapsulation;
	struct skb_shared_info shared;
};

struct net_device;
struct napi_struct;

struct sk_buff *shim_alloc_skb(unsigned int room);
void shim_free_skb(struct sk_buff *skb);
u8 *skb_put(struct sk_buff *skb, unsigned int len);
int skb_linearize(struct sk_buff *skb);
u16 eth_type_trans(struct sk_buff *skb, struct net_device *netdev);
void napi_gro_receive(struct napi_struct *napi, struct sk_buff *skb);
/* Called by napi_gro_receive(). */
extern void (*received)(struct sk_buff *skb);

#define __netdev_alloc_skb_ip_align(netdev, room, gfp) shim_alloc_skb(room)
#define napi_consume_skb(skb, budget) shim_free_skb(skb)
#define dev_kfree_skb_any(skb) shim_free_skb(skb)
#define skb_shinfo(skb) (&(skb)->shared)
#define skb_headlen(skb) ((skb)->len - (skb)->data_len)
#define skb_frag_size(frag) ((frag)->size)
#define skb_is_gso(skb) ((skb)->shared.gso_size != 0)
#define skb_checksum_start_offset(skb) ((skb)->csum_start)
#define skb_tcp_all_headers(skb) 54
#define skb_get_queue_mapping(skb) ((skb)->queue_mapping)
#define skb_record_rx_queue(skb, n) ((skb)->queue_mapping = (n))
#define skb_set_hash(skb, value, type) ((skb)->hash = (value), (skb)->hash_type = (type))
#define skb_tx_timestamp(skb) ((void)(skb)->data[0])
#define skb_network_header_len(skb) 20U
#define skb_network_offset(skb) ETH_HLEN
#define skb_gso_validate_mac_len(skb, len) true
#define vlan_features_check(skb, features) (features)

/* --- the core ------------------------------------------------------------ */

struct netdev_queue { bool stopped; u64 sent, completed; };
struct napi_struct {
	struct net_device *netdev;
	int (*poll)(struct napi_struct *napi, int budget);
	bool enabled, scheduled;
};
struct timer_list { void (*function)(struct timer_list *timer); bool pending; };
struct netdev_hw_addr { u8 addr[ETH_ALEN]; };

struct net_device_ops {
	int (*ndo_open)(struct net_device *netdev);
	int (*ndo_stop)(struct net_device *netdev);
	netdev_tx_t (*ndo_start_xmit)(struct sk_buff *skb, struct net_device *netdev);
	netdev_features_t (*ndo_features_check)(struct sk_buff *skb, struct net_device *netdev, netdev_features_t features);
	void (*ndo_get_stats64)(struct net_device *netdev, struct rtnl_link_stats64 *stats);
	void (*ndo_set_rx_mode)(struct net_device *netdev);
	int (*ndo_set_mac_address)(struct net_device *netdev, void *addr);
	int (*ndo_change_mtu)(struct net_device *netdev, int mtu);
	void (*ndo_tx_timeout)(struct net_device *netdev, unsigned int txqueue);
	int (*ndo_validate_addr)(struct net_device *netdev);
};

#define SHIM_ADDRESSES 4

struct net_device {
	/* A block of its own. */
	void *priv;
	const struct net_device_ops *netdev_ops;
	const struct ethtool_ops *ethtool_ops;
	struct netdev_queue queue;
	u64 features, hw_features, vlan_features;
	unsigned int mtu, min_mtu, max_mtu, flags, priv_flags;
	int ifindex;
	u8 dev_addr[ETH_ALEN];
	int addr_lock;
	unsigned int num_mc;
	struct netdev_hw_addr mc[SHIM_ADDRESSES];
	bool registered, running, present, carrier;
	/* A VLAN: the interface below it, the id, and the protocol. */
	struct net_device *lower;
	u16 vlan, vlan_proto;
	void *ip_ptr;
	struct net_device *next;
	unsigned int rx_dropped, tx_dropped;
};

extern int rtnl;
/* The argument `more` of the frame that is being sent. */
extern bool xmit_more;

struct net_device *shim_alloc_netdev(size_t size);
void free_netdev(struct net_device *netdev);
int register_netdev(struct net_device *netdev);
void unregister_netdev(struct net_device *netdev);
void napi_schedule(struct napi_struct *napi);
bool napi_complete_done(struct napi_struct *napi, int done);
void netdev_tx_completed_queue(struct netdev_queue *queue, unsigned int packets, unsigned int bytes);
bool __netdev_tx_sent_queue(struct netdev_queue *queue, unsigned int bytes, bool more);

#define alloc_etherdev_mqs(size, tx, rx) shim_alloc_netdev(size)
#define SET_NETDEV_DEV(netdev, parent) ((void)(parent))
#define netdev_priv(netdev) ((netdev)->priv)
#define netdev_err(netdev, ...) shim_log(__VA_ARGS__)
#define netdev_warn(netdev, ...) shim_log(__VA_ARGS__)
#define net_ratelimit() true
#define rtnl_lock() shim_lock(&rtnl)
#define rtnl_unlock() shim_unlock(&rtnl)
#define netif_addr_lock_bh(netdev) shim_lock(&(netdev)->addr_lock)
#define netif_addr_unlock_bh(netdev) shim_unlock(&(netdev)->addr_lock)
#define netif_running(netdev) ((netdev)->running)
#define netif_device_present(netdev) ((netdev)->present)
#define netif_device_detach(netdev) ((netdev)->present = false)
#define netif_device_attach(netdev) ((netdev)->present = true)
#define netif_carrier_on(netdev) ((netdev)->carrier = true)
#define netif_carrier_off(netdev) ((netdev)->carrier = false)
#define netdev_get_tx_queue(netdev, i) (&(netdev)->queue)
#define netif_tx_disable(netdev) ((netdev)->queue.stopped = true)
#define netif_tx_wake_all_queues(netdev) ((netdev)->queue.stopped = false)
#define netif_tx_stop_queue(q) ((q)->stopped = true)
#define netif_tx_start_queue(q) ((q)->stopped = false)
#define netif_tx_wake_queue(q) ((q)->stopped = false)
#define netif_tx_queue_stopped(q) ((q)->stopped)
#define netdev_tx_reset_queue(q) ((q)->sent = (q)->completed = 0)
#define netdev_xmit_more() xmit_more
#define dev_core_stats_rx_dropped_inc(netdev) ((netdev)->rx_dropped++)
#define dev_core_stats_tx_dropped_inc(netdev) ((netdev)->tx_dropped++)
#define netif_napi_add(dev, n, f) (*(n) = (struct napi_struct){ .netdev = (dev), .poll = (f) })
#define napi_enable(n) ((n)->enabled = true)
#define napi_disable(n) ((n)->enabled = (n)->scheduled = false)
#define netif_queue_set_napi(netdev, i, type, napi) ((void)(napi))
#define netif_set_real_num_queues(netdev, tx, rx) ((tx) == 1 ? 0 : -EINVAL)
#define netif_is_rxfh_configured(netdev) false
#define netif_get_num_default_rss_queues() 1
#define netif_set_tso_max_size(netdev, size) ((void)(size))
#define netdev_rss_key_fill(key, size) memset(key, 7, size)
#define timer_setup(t, f, flags) (*(t) = (struct timer_list){ .function = (f) })
#define mod_timer(t, when) ((void)(when), (t)->pending = true)
#define timer_delete_sync(t) ((t)->pending = false)
#define ether_addr_copy(to, from) memcpy(to, from, ETH_ALEN)
#define eth_hw_addr_set(netdev, addr) memcpy((netdev)->dev_addr, addr, ETH_ALEN)
#define eth_hw_addr_random(netdev) memset((netdev)->dev_addr, 2, ETH_ALEN)
#define is_valid_ether_addr(addr) (!((addr)[0] & 1))
#define eth_mac_addr(netdev, addr) (eth_hw_addr_set(netdev, addr), 0)
#define eth_validate_addr NULL
#define netdev_uc_count(netdev) 0U
#define netdev_mc_count(netdev) ((netdev)->num_mc)
#define netdev_for_each_uc_addr(ha, netdev) for (ha = NULL; ha; ha = NULL)
#define netdev_for_each_mc_addr(ha, netdev) for (ha = (netdev)->mc; ha < (netdev)->mc + (netdev)->num_mc; ha++)

#endif /* NET_H */
