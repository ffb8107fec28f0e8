/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the guest test programs share: a queue pair with its completions
 * accounted for, a control connection, data that depends on its position, and
 * what the kernel counts.
 *
 * Everything here ends the program on failure of the set-up: a test that
 * cannot be set up has failed.
 */
#ifndef FAULTLINE_GUEST_COMMON_H
#define FAULTLINE_GUEST_COMMON_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE 4096UL
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);
/* Ends the program if what must be so is not. */
#define WANT(condition)                                                       \
	do {                                                                  \
		if (!(condition))                                             \
			die("line %d: not true: %s (%m)", __LINE__, #condition); \
	} while (0)
/* A line with the program's name in front, at once: a killed program has said it. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

uint64_t now_ms(void);
uint64_t now_ns(void);
void sleep_ms(unsigned int ms);

/* The median of some values, which it sorts. */
uint64_t median(uint64_t *values, size_t count);

/* --- data ------------------------------------------------------------- */

struct rng {
	uint64_t state;
};

uint64_t rng_next(struct rng *rng);
/* A number below `bound`, which must not be 0. */
uint64_t rng_below(struct rng *rng, uint64_t bound);

uint64_t mix64(uint64_t value);
/* The key of one content: who wrote it, where, which time. */
uint64_t content_key(uint64_t seed, uint64_t area, uint64_t generation);
uint8_t content_byte(uint64_t key, uint64_t offset);
/* Content at [offset, offset + length) of a key's endless stream. */
void content_fill(void *to, uint64_t key, uint64_t offset, size_t length);
/* How many bytes differ from that content. */
size_t content_wrong(const void *at, uint64_t key, uint64_t offset, size_t length);

/*
 * A running 256-bit checksum in four lanes of multiply and rotate: any changed,
 * moved or missing word changes it. `length` must be a multiple of 32.
 */
struct checksum {
	uint64_t lane[4];
};

void checksum_init(struct checksum *sum);
void checksum_add(struct checksum *sum, const void *data, size_t length);

/* --- the kernel's own counts -------------------------------------------- */

/* A counter of /proc/vmstat, 0 if the kernel has none of that name. */
uint64_t vmstat(const char *name);
/* Pages that are pinned now: acquired less released, per-CPU shares folded in. */
int64_t pinned_pages(void);
/* A field of /proc/self/status or /proc/meminfo in KiB; -1 if it is not there. */
long status_kib(const char *file, const char *field);
/* Writes a string to a file of the kernel; 0 or -errno. */
int write_file(const char *path, const char *text);
long read_number(const char *path, long otherwise);
/* The Ethernet address of the interface that $NETDEV names, of 6 bytes. */
void read_own_mac(uint8_t *mac);

/* An entry of /proc/self/pagemap. */
#define PAGE_PRESENT (1UL << 63)
#define PAGE_SWAPPED (1UL << 62)
#define PAGE_FRAME ((1UL << 55) - 1)
/* Reads the entries of a range, 0 where nothing is mapped; returns how many there are. */
size_t page_map(const void *at, size_t length, uint64_t *entries);
/* A page was present, and now is elsewhere or nowhere. */
bool page_has_moved(uint64_t before, uint64_t after);

/* Where the kernel log ends now. */
int kmsg_open(void);
/* Prints the complaints since then and returns how many there are. */
unsigned int kmsg_complaints(int fd);

/* --- the other guest ---------------------------------------------------- */

int listen_on(uint16_t port);
int accept_from(int listener);
/* Tries for `ms` milliseconds; returns -1 if no server answers. */
int connect_to(const char *host, uint16_t port, unsigned int ms);
/* For a server that first writes more than its memory: minutes on a slow machine. The test's own limit ends both. */
#define SERVER_FILLS_MS 280000
void send_all(int fd, const void *data, size_t length);
void receive_all(int fd, void *data, size_t length);
/* The same, but false instead of the program's end when the peer has ended. */
bool try_send(int fd, const void *data, size_t length);
bool try_receive(int fd, void *data, size_t length);

/* --- the RDMA device ------------------------------------------------------ */

struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	union ibv_gid gid;
	int gid_index;
	struct ibv_device_attr_ex attributes;
	enum ibv_mtu mtu;
};

/* By RDMA_DEV and GID_INDEX of the environment, else the first device and GID 0. */
void device_open(struct device *device);
/* By its name, and the index of a GID. */
void device_open_named(struct device *device, const char *name, int gid_index);
/* A counter of the device; -1 if it has none of that name. */
long device_counter(const struct device *device, const char *name);
/* Ends the program unless the device has explicit ODP for what RC does. */
void device_needs_odp(const struct device *device, bool implicit);

/*
 * A parent domain whose rings of type `what` (enum faultlinedv_memory) are made in the first page at `memory`, and the
 * place where software says how many requests it has posted to the ring of `depth` entries in it, of which there must
 * be `posted` by then. By writing there a process can break its own queue.
 */
struct ibv_pd *domain_with_ring(struct device *device, uint64_t what, void *memory);
uint32_t *posted_of_ring(void *memory, unsigned int depth, unsigned int posted);

/* Queue pairs of the device are connected over TCP (iWARP). */
bool device_is_iwarp(const struct device *device);

/* What a queue pair's other end has to know. Of an iWARP adapter `psn` is a TCP port, and `gid` an IPv4 address. */
struct address {
	uint32_t qpn;
	uint32_t psn;
	uint8_t gid[16];
};

struct connection;

struct endpoint {
	struct device *device;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct address own;
	struct address peer;
	/* Of an iWARP adapter, else NULL. */
	struct connection *connection;
	uint8_t timeout;
	uint8_t retries;
};

/* An RC queue pair in RESET, with a completion queue for it alone. */
void endpoint_create(struct endpoint *end, struct device *device,
		     unsigned int sends, unsigned int receives);
/* The same with a queue pair that the caller has created; endpoint_destroy() destroys both. */
void endpoint_adopt(struct endpoint *end, struct device *device, struct ibv_cq *cq,
		    struct ibv_qp *qp);
/* Swaps addresses over a control connection. */
void endpoint_meet(struct endpoint *end, int fd);
/* RESET or anything else -> RTR towards the known peer, or INIT of an iWARP adapter. Outstanding work is gone. */
void endpoint_listen(struct endpoint *end);
/* Then to RTS. On an iWARP adapter this waits for the peer to do the same. */
void endpoint_connect(struct endpoint *end);
/*
 * Connects it, and sends the peer a byte, after which the peer connects its end. A RoCE queue pair is connected first, because the
 * peer may send at once.
 */
void endpoint_connect_telling(struct endpoint *end, int link, char byte);
/* Both. */
void endpoint_start(struct endpoint *end);
/* To RESET, from any state. */
void endpoint_stop(struct endpoint *end);
void endpoint_destroy(struct endpoint *end);

/* connection.c, for common.c: the parts of these functions for iWARP adapters. */
void connection_create(struct endpoint *end);
void connection_start(struct endpoint *end);
void connection_stop(struct endpoint *end);
void connection_destroy(struct endpoint *end);

/*
 * An XRC queue pair, target or initiator: to INIT, to RTR towards a peer of the
 * same device, to RTS.
 */
void xrc_init(struct ibv_qp *qp);
void xrc_listen(struct device *device, struct ibv_qp *qp, uint32_t peer, bool target);
void xrc_start(struct ibv_qp *qp, bool target);
/* The next completion, waiting `ms` for it; false if there is none. */
bool endpoint_wait(struct endpoint *end, struct ibv_wc *wc, unsigned int ms);

/* One request with one piece of local memory; the flags are ibv_send_flags. */
struct request {
	enum ibv_wr_opcode opcode;
	uint64_t id;
	void *local;
	uint32_t length;
	uint32_t lkey;
	uint64_t remote;
	uint32_t rkey;
	uint64_t compare_add;
	uint64_t swap;
	/* Of a SEND or WRITE with immediate data, in host byte order. */
	uint32_t immediate;
	unsigned int flags;
};

void endpoint_post(struct endpoint *end, const struct request *request);
void endpoint_receive(struct endpoint *end, uint64_t id, void *local,
		      uint32_t length, uint32_t lkey);

#define ALL_ACCESS \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | \
	 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Registers for everything, on demand or pinned; ends the program if that fails. */
struct ibv_mr *region(struct device *device, void *address, size_t length, bool on_demand);

/* Anonymous private memory. */
void *anonymous(size_t length);

/* A dma-buf of /dev/udmabuf, and its memory. */
int udmabuf(size_t length, uint8_t **map);

#endif
