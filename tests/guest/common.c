// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "common.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/udmabuf.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void speak(const char *prefix, const char *format, va_list arguments)
{
	char line[1024];
	int length = snprintf(line, sizeof(line), "%s%s", program_invocation_short_name, prefix);

	length += vsnprintf(line + length, sizeof(line) - length - 1, format, arguments);
	if (length > (int)sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	/* One write: threads' lines stay whole. */
	if (write(STDOUT_FILENO, line, length) < 0)
		_exit(1);
}

void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	speak(": FAILED: ", format, arguments);
	va_end(arguments);
	_exit(1);
}

void say(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	speak(": ", format, arguments);
	va_end(arguments);
}

uint64_t now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

void sleep_ms(unsigned int ms)
{
	struct timespec time = { ms / 1000, (long)(ms % 1000) * 1000000 };

	while (nanosleep(&time, &time) && errno == EINTR)
		;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

uint64_t median(uint64_t *values, size_t count)
{
	qsort(values, count, sizeof(*values), by_value);
	return values[count / 2];
}

/* --- data ------------------------------------------------------------- */

uint64_t mix64(uint64_t value)
{
	value += 0x9e3779b97f4a7c15;
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
	value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
	return value ^ (value >> 31);
}

uint64_t rng_next(struct rng *rng)
{
	rng->state += 0x9e3779b97f4a7c15;
	return mix64(rng->state);
}

uint64_t rng_below(struct rng *rng, uint64_t bound)
{
	return rng_next(rng) % bound;
}

uint64_t content_key(uint64_t seed, uint64_t area, uint64_t generation)
{
	return mix64(mix64(mix64(seed) ^ area) ^ generation);
}

/* Never a zero byte: absent memory reads as zero and must differ from content. */
static uint64_t content_word(uint64_t key, uint64_t index)
{
	return mix64(key + index * 0xd1342543de82ef95) | 0x0101010101010101;
}

uint8_t content_byte(uint64_t key, uint64_t offset)
{
	return content_word(key, offset / 8) >> (offset % 8 * 8);
}

void content_fill(void *to, uint64_t key, uint64_t offset, size_t length)
{
	uint8_t *at = to;

	while (length && offset % 8) {
		*at++ = content_byte(key, offset++);
		length--;
	}
	for (; length >= 8; length -= 8, at += 8, offset += 8) {
		uint64_t word = content_word(key, offset / 8);

		memcpy(at, &word, 8);
	}
	while (length--)
		*at++ = content_byte(key, offset++);
}

size_t content_wrong(const void *memory, uint64_t key, uint64_t offset, size_t length)
{
	const uint8_t *at = memory;
	size_t wrong = 0;

	while (length) {
		if (offset % 8 == 0 && length >= 8) {
			uint64_t word = content_word(key, offset / 8), seen;

			memcpy(&seen, at, 8);
			if (seen == word) {
				at += 8;
				offset += 8;
				length -= 8;
				continue;
			}
		}
		wrong += *at++ != content_byte(key, offset++);
		length--;
	}
	return wrong;
}

void checksum_init(struct checksum *sum)
{
	for (unsigned int i = 0; i < 4; i++)
		sum->lane[i] = mix64(i + 1);
}

void checksum_add(struct checksum *sum, const void *data, size_t length)
{
	const uint8_t *at = data;

	for (; length >= 32; length -= 32, at += 32) {
		uint64_t word[4];

		memcpy(word, at, 32);
		for (unsigned int i = 0; i < 4; i++) {
			uint64_t lane = (sum->lane[i] ^ word[i]) * 0xff51afd7ed558ccd;

			sum->lane[i] = (lane << 29 | lane >> 35) + sum->lane[(i + 1) % 4];
		}
	}
}

/* --- the kernel's own counts -------------------------------------------- */

size_t page_map(const void *at, size_t length, uint64_t *entries)
{
	size_t count = length / PAGE;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	memset(entries, 0, count * 8);
	if (fd < 0 || pread(fd, entries, count * 8, (uintptr_t)at / PAGE * 8) < 0)
		die("cannot read the page map: %m");
	close(fd);
	return count;
}

bool page_has_moved(uint64_t before, uint64_t after)
{
	return (before & PAGE_PRESENT) &&
	       (!(after & PAGE_PRESENT) || (before & PAGE_FRAME) != (after & PAGE_FRAME));
}

uint64_t vmstat(const char *name)
{
	FILE *file = fopen("/proc/vmstat", "r");
	unsigned long long value, found = 0;
	char field[64];

	if (!file)
		die("cannot open /proc/vmstat: %m");
	while (fscanf(file, "%63s %llu", field, &value) == 2)
		if (!strcmp(field, name))
			found = value;
	fclose(file);
	return found;
}

int64_t pinned_pages(void)
{
	/* These counters live in per-CPU shares that reach the sum late; reading this file folds them in. */
	FILE *file = fopen("/proc/sys/vm/stat_refresh", "r");
	char sink[16];

	if (file) {
		while (fread(sink, 1, sizeof(sink), file) > 0)
			;
		fclose(file);
	}
	return (int64_t)(vmstat("nr_foll_pin_acquired") - vmstat("nr_foll_pin_released"));
}

long status_kib(const char *path, const char *field)
{
	FILE *file = fopen(path, "r");
	char line[256];
	long found = -1;
	size_t length = strlen(field);

	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, field, length) && line[length] == ':')
			found = strtol(line + length + 1, NULL, 10);
	fclose(file);
	return found;
}

int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), result = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		result = -errno;
	close(fd);
	return result;
}

long read_number(const char *path, long otherwise)
{
	FILE *file = fopen(path, "r");
	long value = otherwise;

	if (!file)
		return otherwise;
	if (fscanf(file, "%ld", &value) != 1)
		value = otherwise;
	fclose(file);
	return value;
}

void read_own_mac(uint8_t *mac)
{
	const char *netdev = getenv("NETDEV");
	unsigned int byte[ETH_ALEN];
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/%s/address", netdev ? netdev : "");
	file = fopen(path, "r");
	if (!file || fscanf(file, "%x:%x:%x:%x:%x:%x", &byte[0], &byte[1], &byte[2], &byte[3],
			    &byte[4], &byte[5]) != ETH_ALEN)
		die("%s: no address", path);
	fclose(file);
	for (int i = 0; i < ETH_ALEN; i++)
		mac[i] = byte[i];
}

int kmsg_open(void)
{
	int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		die("cannot open /dev/kmsg: %m");
	if (lseek(fd, 0, SEEK_END) < 0)
		die("cannot find the end of /dev/kmsg: %m");
	return fd;
}

unsigned int kmsg_complaints(int fd)
{
	static const char *const bad[] = {
		"WARNING:", "BUG:", "Oops", "Call Trace", "possible circular locking",
		"possible recursive locking", "inconsistent lock state", "INFO: task",
		"soft lockup", "rcu_preempt detected", "UBSAN", "KASAN", "refcount_t",
		"list_add corruption", "list_del corruption", "Bad page state",
		"Bad rss-counter", "general protection fault", "Out of memory",
		"oom-kill:", "nobody cared",
	};
	unsigned int found = 0;
	char record[8192];

	for (;;) {
		ssize_t length = read(fd, record, sizeof(record) - 1);

		if (length < 0 && errno == EPIPE) {
			/* The log has overtaken us: a lost message may have been a complaint. */
			say("the kernel log overflowed while the test ran");
			found++;
			continue;
		}
		if (length <= 0)
			return found;
		record[length] = '\0';
		/* Data races: those of the driver are an error of the guest. */
		if (strstr(record, "BUG: KCSAN:"))
			continue;
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			if (strstr(record, bad[i])) {
				char *text = strchr(record, ';');

				text = text ? text + 1 : record;
				text[strcspn(text, "\n")] = '\0';
				say("kernel: %s", text);
				found++;
				break;
			}
		}
	}
}

/* --- the other guest ---------------------------------------------------- */

int listen_on(uint16_t port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_ANY),
	};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	if (fd < 0)
		die("socket: %m");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 64))
		die("cannot listen on port %u: %m", port);
	return fd;
}

static void tune(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

int accept_from(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		die("accept: %m");
	tune(fd);
	return fd;
}

int connect_to(const char *host, uint16_t port, unsigned int ms)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	uint64_t end = now_ms() + ms;

	if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
		die("%s is not an IPv4 address", host);
	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0)
			die("socket: %m");
		if (!connect(fd, (struct sockaddr *)&address, sizeof(address))) {
			tune(fd);
			return fd;
		}
		close(fd);
		if (now_ms() >= end)
			return -1;
		sleep_ms(20);
	}
}

bool try_send(int fd, const void *data, size_t length)
{
	const char *at = data;

	while (length) {
		ssize_t sent = send(fd, at, length, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return false;
		at += sent;
		length -= sent;
	}
	return true;
}

bool try_receive(int fd, void *data, size_t length)
{
	char *at = data;

	while (length) {
		ssize_t got = recv(fd, at, length, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		at += got;
		length -= got;
	}
	return true;
}

void send_all(int fd, const void *data, size_t length)
{
	if (!try_send(fd, data, length))
		die("the other side's program is gone (sending)");
}

void receive_all(int fd, void *data, size_t length)
{
	if (!try_receive(fd, data, length))
		die("the other side's program is gone (receiving)");
}

/* --- the RDMA device ------------------------------------------------------ */

void device_open(struct device *device)
{
	const char *gid = getenv("GID_INDEX");

	device_open_named(device, getenv("RDMA_DEV"), gid && *gid ? atoi(gid) : 0);
}

void device_open_named(struct device *device, const char *name, int gid_index)
{
	struct ibv_device **list = ibv_get_device_list(NULL), *found = NULL;
	struct ibv_port_attr port;

	for (int i = 0; list && list[i] && !found; i++)
		if (!name || !*name || !strcmp(name, ibv_get_device_name(list[i])))
			found = list[i];
	if (!found)
		die("there is no RDMA device %s", name ? name : "");
	device->context = ibv_open_device(found);
	ibv_free_device_list(list);
	if (!device->context)
		die("cannot open the RDMA device: %m");
	device->pd = ibv_alloc_pd(device->context);
	if (!device->pd)
		die("cannot allocate a protection domain: %m");
	device->gid_index = gid_index;
	if (ibv_query_gid(device->context, 1, device->gid_index, &device->gid))
		die("there is no GID %d", device->gid_index);
	if (ibv_query_device_ex(device->context, NULL, &device->attributes))
		die("cannot query the device");
	if (ibv_query_port(device->context, 1, &port))
		die("cannot query the port");
	device->mtu = port.active_mtu;
}

bool device_is_iwarp(const struct device *device)
{
	return device->context->device->transport_type == IBV_TRANSPORT_IWARP;
}

long device_counter(const struct device *device, const char *name)
{
	char path[256];

	/* Else the kernel shows values that are up to 10 ms old. */
	sleep_ms(20);
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/hw_counters/%s",
		 ibv_get_device_name(device->context->device), name);
	return read_number(path, -1);
}

void device_needs_odp(const struct device *device, bool implicit)
{
	const struct ibv_odp_caps *caps = &device->attributes.odp_caps;
	uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
		      IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;

	if (!(caps->general_caps & IBV_ODP_SUPPORT))
		die("the device has no on-demand paging");
	if ((caps->per_transport_caps.rc_odp_caps & rc) != rc)
		die("the device's on-demand paging lacks operations: it has %#x, wanted is %#x",
		    caps->per_transport_caps.rc_odp_caps, rc);
	if (implicit && !(caps->general_caps & IBV_ODP_SUPPORT_IMPLICIT))
		die("the device has no implicit on-demand paging");
}

/* A ring that is made in memory of the program's. */
static struct {
	uint64_t what;
	void *memory;
} own_ring;

static void *ring_alloc(struct ibv_pd *pd, void *context, size_t size, size_t alignment,
			uint64_t what)
{
	(void)pd;
	(void)context;
	if (what != own_ring.what)
		return IBV_ALLOCATOR_USE_DEFAULT;
	if (size > PAGE || alignment > PAGE)
		die("a ring takes %zu bytes", size);
	return own_ring.memory;
}

static void ring_free(struct ibv_pd *pd, void *context, void *memory, uint64_t what)
{
	(void)pd;
	(void)context;
	(void)what;
	WANT(memory == own_ring.memory);
}

struct ibv_pd *domain_with_ring(struct device *device, uint64_t what, void *memory)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = device->pd, .alloc = ring_alloc, .free = ring_free,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
	};
	struct ibv_pd *parent;

	own_ring.what = what;
	own_ring.memory = memory;
	parent = ibv_alloc_parent_domain(device->context, &attr);
	if (!parent)
		die("cannot create a parent domain: %m");
	return parent;
}

uint32_t *posted_of_ring(void *memory, unsigned int depth, unsigned int posted)
{
	/* Behind the ring, whose entries are of some power of two. */
	for (size_t stride = 32; stride * depth < PAGE; stride *= 2) {
		uint32_t *at = (void *)((uint8_t *)memory + stride * depth);

		if (le32toh(*at) == posted)
			return at;
	}
	die("no index of %u requests", posted);
}

void endpoint_create(struct endpoint *end, struct device *device,
		     unsigned int sends, unsigned int receives)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = {
			.max_send_wr = sends,
			.max_recv_wr = receives,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};
	struct ibv_cq *cq;
	struct ibv_qp *qp;

	cq = ibv_create_cq(device->context, sends + receives + 1, NULL, NULL, 0);
	if (!cq)
		die("cannot create a completion queue: %m");
	init.send_cq = cq;
	init.recv_cq = cq;
	qp = ibv_create_qp(device->pd, &init);
	if (!qp)
		die("cannot create a queue pair: %m");
	endpoint_adopt(end, device, cq, qp);
}

void endpoint_adopt(struct endpoint *end, struct device *device, struct ibv_cq *cq,
		    struct ibv_qp *qp)
{
	uint32_t random;

	memset(end, 0, sizeof(*end));
	end->device = device;
	end->cq = cq;
	end->qp = qp;
	/* About a second, eight times: a page may have to come from a slow disk on a busy host. */
	end->timeout = 18;
	end->retries = 7;
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		die("getrandom: %m");
	end->own.qpn = end->qp->qp_num;
	end->own.psn = random & 0xffffff;
	memcpy(end->own.gid, &device->gid, 16);
	if (device_is_iwarp(device))
		connection_create(end);
}

void endpoint_meet(struct endpoint *end, int fd)
{
	send_all(fd, &end->own, sizeof(end->own));
	receive_all(fd, &end->peer, sizeof(end->peer));
}

static void modify(struct endpoint *end, struct ibv_qp_attr *attributes, int mask)
{
	int error = ibv_modify_qp(end->qp, attributes, mask);

	/*
	 * rxe moves a queue pair to the error state from a worker; that may come after the RESET that was
	 * the answer to it.
	 */
	for (unsigned int tries = 0; error == EINVAL && attributes->qp_state == IBV_QPS_INIT &&
				     tries < 100; tries++) {
		sleep_ms(5);
		endpoint_stop(end);
		error = ibv_modify_qp(end->qp, attributes, mask);
	}

	if (error)
		die("queue pair %u cannot go to state %d: %s", end->own.qpn,
		    attributes->qp_state, strerror(error));
}

void endpoint_stop(struct endpoint *end)
{
	struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_RESET };

	if (end->connection)
		connection_stop(end);
	modify(end, &attributes, IBV_QP_STATE);
}

void endpoint_listen(struct endpoint *end)
{
	const struct ibv_device_attr *limits = &end->device->attributes.orig_attr;
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ALL_ACCESS,
	};

	modify(end, &attributes,
	       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (end->connection)
		return;
	memset(&attributes, 0, sizeof(attributes));
	attributes.qp_state = IBV_QPS_RTR;
	attributes.path_mtu = end->device->mtu;
	attributes.dest_qp_num = end->peer.qpn;
	attributes.rq_psn = end->peer.psn;
	attributes.max_dest_rd_atomic = limits->max_qp_rd_atom < 8 ? limits->max_qp_rd_atom : 8;
	/* The shortest wait there is: 10 us. */
	attributes.min_rnr_timer = 1;
	attributes.ah_attr.is_global = 1;
	attributes.ah_attr.port_num = 1;
	attributes.ah_attr.grh.hop_limit = 64;
	attributes.ah_attr.grh.sgid_index = end->device->gid_index;
	memcpy(&attributes.ah_attr.grh.dgid, end->peer.gid, 16);
	modify(end, &attributes,
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

void endpoint_connect(struct endpoint *end)
{
	const struct ibv_device_attr *limits = &end->device->attributes.orig_attr;
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTS,
		.timeout = end->timeout,
		.retry_cnt = end->retries,
		.rnr_retry = 7,
		.sq_psn = end->own.psn,
		.max_rd_atomic =
			limits->max_qp_init_rd_atom < 8 ? limits->max_qp_init_rd_atom : 8,
	};

	if (end->connection)
		connection_start(end);
	else
		modify(end, &attributes,
		       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

void endpoint_connect_telling(struct endpoint *end, int link, char byte)
{
	if (!end->connection)
		endpoint_connect(end);
	send_all(link, &byte, 1);
	if (end->connection)
		endpoint_connect(end);
}

void endpoint_start(struct endpoint *end)
{
	endpoint_listen(end);
	endpoint_connect(end);
}

void endpoint_destroy(struct endpoint *end)
{
	if (end->connection)
		connection_destroy(end);
	if (ibv_destroy_qp(end->qp) || ibv_destroy_cq(end->cq))
		die("cannot destroy a queue pair: %m");
}

void xrc_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL_ACCESS,
	};

	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			    IBV_QP_ACCESS_FLAGS));
}

void xrc_listen(struct device *device, struct ibv_qp *qp, uint32_t peer, bool target)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = device->mtu, .dest_qp_num = peer,
		.rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {
			.is_global = 1, .port_num = 1,
			.grh = { .dgid = device->gid, .hop_limit = 64,
				 .sgid_index = device->gid_index },
		},
	};

	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    (target ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)));
}

void xrc_start(struct ibv_qp *qp, bool target)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
		.sq_psn = 7, .max_rd_atomic = 1,
	};

	WANT(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN |
			    (target ? 0 : IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					  IBV_QP_MAX_QP_RD_ATOMIC)));
}

bool endpoint_wait(struct endpoint *end, struct ibv_wc *wc, unsigned int ms)
{
	uint64_t deadline = 0;

	for (;;) {
		int count = ibv_poll_cq(end->cq, 1, wc);

		if (count < 0)
			die("polling a completion queue failed");
		if (count)
			return true;
		if (!deadline)
			deadline = now_ms() + ms;
		else if (now_ms() >= deadline)
			return false;
		sched_yield();
	}
}

void endpoint_post(struct endpoint *end, const struct request *request)
{
	struct ibv_sge piece = {
		.addr = (uintptr_t)request->local,
		.length = request->length,
		.lkey = request->lkey,
	};
	struct ibv_send_wr work = {
		.wr_id = request->id,
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = request->opcode,
		.imm_data = htonl(request->immediate),
		.send_flags = IBV_SEND_SIGNALED | request->flags,
	}, *bad;
	int error;

	if (request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
	    request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		work.wr.atomic.remote_addr = request->remote;
		work.wr.atomic.rkey = request->rkey;
		work.wr.atomic.compare_add = request->compare_add;
		work.wr.atomic.swap = request->swap;
	} else {
		work.wr.rdma.remote_addr = request->remote;
		work.wr.rdma.rkey = request->rkey;
	}
	error = ibv_post_send(end->qp, &work, &bad);
	if (error)
		die("posting to queue pair %u failed: %s", end->own.qpn, strerror(error));
}

void endpoint_receive(struct endpoint *end, uint64_t id, void *local, uint32_t length,
		      uint32_t lkey)
{
	struct ibv_sge piece = { .addr = (uintptr_t)local, .length = length, .lkey = lkey };
	struct ibv_recv_wr work = { .wr_id = id, .sg_list = &piece, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(end->qp, &work, &bad);

	if (error)
		die("posting a receive to queue pair %u failed: %s", end->own.qpn,
		    strerror(error));
}

struct ibv_mr *region(struct device *device, void *address, size_t length, bool on_demand)
{
	struct ibv_mr *mr = ibv_reg_mr(device->pd, address, length,
				       ALL_ACCESS | (on_demand ? IBV_ACCESS_ON_DEMAND : 0));

	if (!mr)
		die("cannot register %zu bytes %s: %m", length, on_demand ? "on demand" : "pinned");
	return mr;
}

void *anonymous(size_t length)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("cannot map %zu bytes: %m", length);
	return memory;
}

int udmabuf(size_t length, uint8_t **map)
{
	struct udmabuf_create create = { .flags = UDMABUF_FLAGS_CLOEXEC, .size = length };
	int control = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int memfd = memfd_create("buffer", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	int fd;

	if (control < 0 || memfd < 0 || ftruncate(memfd, length) ||
	    fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK))
		die("udmabuf: %m");
	create.memfd = memfd;
	fd = ioctl(control, UDMABUF_CREATE, &create);
	*map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (fd < 0 || *map == MAP_FAILED)
		die("udmabuf: %m");
	close(control);
	close(memfd);
	return fd;
}
