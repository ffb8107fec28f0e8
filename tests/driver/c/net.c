/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* DMA maps, buffers and the netdev core, as net.h declares them. */
#include "device.h"

unsigned int fail_one_in, num_maps, num_skbs;
void (*received)(struct sk_buff *skb);
int rtnl;
bool xmit_more;

static bool fails(void)
{
	return fail_one_in && !random_number(fail_one_in);
}

/* --- maps ---------------------------------------------------------------- */

struct map {
	u8 *memory;
	size_t size;
	int direction;
	bool page;
	u8 bounce[];
};

static struct map *map_at(dma_addr_t addr)
{
	return container_of((void *)(uintptr_t)(addr - SHIM_DMA_OFFSET), struct map, bounce);
}

dma_addr_t shim_map(void *memory, size_t size, int direction, bool page)
{
	struct map *map;

	if (fails())
		return DMA_MAPPING_ERROR;
	map = malloc(sizeof(*map) + size);
	*map = (struct map){ memory, size, direction, page };
	if (direction == DMA_TO_DEVICE)
		memcpy(map->bounce, memory, size);
	num_maps++;
	return (uintptr_t)map->bounce + SHIM_DMA_OFFSET;
}

void shim_unmap(dma_addr_t addr, size_t size, int direction, bool page)
{
	struct map *map = map_at(addr);

	CHECK(map->size == size && map->direction == direction && map->page == page);
	/* In both directions, for the memory must still be there. */
	memmove(map->memory, direction == DMA_FROM_DEVICE ? map->bounce : map->memory, size);
	free(map);
	num_maps--;
}

void *mapped_memory(dma_addr_t addr, size_t size, int direction)
{
	struct map *map = map_at(addr);

	CHECK(map->size >= size && map->direction == direction);
	return map->bounce;
}

/* --- buffers ------------------------------------------------------------- */

struct sk_buff *shim_alloc_skb(unsigned int room)
{
	struct sk_buff *skb;

	if (fails())
		return NULL;
	skb = calloc(1, sizeof(*skb));
	skb->head = skb->data = malloc(room);
	skb->room = room;
	num_skbs++;
	return skb;
}

void shim_free_skb(struct sk_buff *skb)
{
	unsigned int i;

	if (!skb)
		return;
	for (i = 0; i < skb->shared.nr_frags; i++)
		free(skb->shared.frags[i].memory);
	free(skb->head);
	free(skb);
	num_skbs--;
}

u8 *skb_put(struct sk_buff *skb, unsigned int len)
{
	u8 *end = skb->data + skb->len;

	/* The kernel panics. */
	CHECK(!skb->data_len && skb->len + len <= skb->room);
	skb->len += len;
	return end;
}

/* Moves the fragments into the linear part. */
int skb_linearize(struct sk_buff *skb)
{
	unsigned int i, at = skb_headlen(skb);
	u8 *whole;

	if (fails())
		return -ENOMEM;
	whole = malloc(skb->len);
	memcpy(whole, skb->data, at);
	for (i = 0; i < skb->shared.nr_frags; i++) {
		memcpy(whole + at, skb->shared.frags[i].memory, skb->shared.frags[i].size);
		at += skb->shared.frags[i].size;
		free(skb->shared.frags[i].memory);
	}
	free(skb->head);
	skb->head = skb->data = whole;
	skb->room = skb->len;
	skb->data_len = 0;
	skb->shared.nr_frags = 0;
	return 0;
}

u16 eth_type_trans(struct sk_buff *skb, struct net_device *netdev)
{
	u16 protocol;

	/* The kernel reads the header before it looks at the length. */
	CHECK(skb->len >= ETH_HLEN);
	memcpy(&protocol, skb->data + ETH_HLEN - sizeof(protocol), sizeof(protocol));
	skb->data += ETH_HLEN;
	skb->room -= ETH_HLEN;
	skb->len -= ETH_HLEN;
	return protocol;
}

void napi_gro_receive(struct napi_struct *napi, struct sk_buff *skb)
{
	CHECK(napi->scheduled);
	received(skb);
	shim_free_skb(skb);
}

/* --- the core ------------------------------------------------------------ */

struct net_device *shim_alloc_netdev(size_t size)
{
	struct net_device *netdev = calloc(1, sizeof(*netdev));

	netdev->priv = calloc(1, size);
	netdev->mtu = 1500;
	netdev->present = true;
	netdev->queue.stopped = true;
	return netdev;
}

void free_netdev(struct net_device *netdev)
{
	CHECK(!netdev->registered);
	free(netdev->priv);
	free(netdev);
}

int register_netdev(struct net_device *netdev)
{
	netdev->registered = true;
	return 0;
}

/* The core stops the netdev and empties its lists of addresses. */
void unregister_netdev(struct net_device *netdev)
{
	rtnl_lock();
	if (netdev->running)
		netdev->netdev_ops->ndo_stop(netdev);
	netdev->running = false;
	netdev->num_mc = 0;
	netdev->netdev_ops->ndo_set_rx_mode(netdev);
	netdev->registered = false;
	rtnl_unlock();
}

void napi_schedule(struct napi_struct *napi)
{
	if (napi->enabled)
		napi->scheduled = true;
}

bool napi_complete_done(struct napi_struct *napi, int done)
{
	CHECK(napi->scheduled);
	napi->scheduled = false;
	return true;
}

void netdev_tx_completed_queue(struct netdev_queue *queue, unsigned int packets, unsigned int bytes)
{
	queue->completed += bytes;
	/* The kernel panics (dql_completed()). */
	CHECK(queue->completed <= queue->sent);
}

bool __netdev_tx_sent_queue(struct netdev_queue *queue, unsigned int bytes, bool more)
{
	queue->sent += bytes;
	return !more || queue->stopped;
}
