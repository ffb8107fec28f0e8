/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of the kernel that the compiled files of the driver use, for a
 * process with one thread. It stands in for all headers of the kernel that they
 * include. Locks count, so that a test finds one that is held twice or not at
 * all; memory comes from malloc(), so that AddressSanitizer knows its bounds.
 *
 * What the driver does not read is left out of structures. Functions without a
 * body here are in device.c.
 */
#ifndef SHIM_H
#define SHIM_H

#include <assert.h>
#include <errno.h>
#include <linux/types.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
typedef u64 dma_addr_t;
typedef u64 phys_addr_t;
typedef unsigned int gfp_t;
typedef int irqreturn_t;

#define __force
#define __iomem
#define __always_unused __attribute__((unused))
#define fallthrough __attribute__((fallthrough))
#define likely(x) (x)
#define unlikely(x) (x)
#define U8_MAX UINT8_MAX
#define U16_MAX UINT16_MAX
#define S16_MAX INT16_MAX
#define U32_MAX UINT32_MAX
#define U64_MAX UINT64_MAX
#define INT_MAX __INT_MAX__
#define SZ_64K 0x10000
#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
#define PAGE_ALLOC_COSTLY_ORDER 3
#define PAGE_ALIGNED(x) (!((x) & (PAGE_SIZE - 1)))
#define DIV_ROUND_UP(n, d) (((n) + (d) - 1) / (d))
#define PAGE_ALIGN(x) (((x) + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1))
#define GFP_KERNEL 0
#define IRQ_HANDLED 1
#define BIT(n) (1UL << (n))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define BUILD_BUG_ON(x) _Static_assert(!(x), #x)
#define sizeof_field(t, f) sizeof(((t *)0)->f)
#define offsetofend(t, f) (offsetof(t, f) + sizeof_field(t, f))
#define container_of(p, t, f) ((t *)((char *)(p) - offsetof(t, f)))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min3(a, b, c) min(min(a, b), c)
#define min_t(t, a, b) ((t)(a) < (t)(b) ? (t)(a) : (t)(b))
#define max_t(t, a, b) ((t)(a) > (t)(b) ? (t)(a) : (t)(b))
#define swap(a, b) do { __typeof__(a) t_ = (a); (a) = (b); (b) = t_; } while (0)
#define IS_ERR(p) ((uintptr_t)(p) >= (uintptr_t)-4095)
#define PTR_ERR(p) ((intptr_t)(p))
#define ERR_PTR(e) ((void *)(intptr_t)(e))
#define IS_ENABLED(x) 0
#define CONFIG_INFINIBAND_ON_DEMAND_PAGING 1

/* Byte order: the hosts of these tests are little-endian. */
#define cpu_to_le16(x) ((__le16)(x))
#define cpu_to_le32(x) ((__le32)(x))
#define cpu_to_le64(x) ((__le64)(x))
#define le16_to_cpu(x) ((u16)(x))
#define le32_to_cpu(x) ((u32)(x))
#define le64_to_cpu(x) ((u64)(x))

/* Memory order: one thread. */
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile __typeof__(x) *)&(x) = (v))
#define smp_load_acquire(p) READ_ONCE(*(p))
#define smp_store_release(p, v) WRITE_ONCE(*(p), v)
#define virt_store_release(p, v) WRITE_ONCE(*(p), v)
#define smp_mb() ((void)0)
#define smp_mb__after_atomic() ((void)0)
#define mb() ((void)0)
#ifdef SHIM_THREADS
#define dma_rmb() ((void)0)
#else
/* The device may act between the reads. */
void dma_rmb(void);
#endif
#define dma_wmb() ((void)0)

/* --- lists, bits, memory ------------------------------------------------- */

struct list_head {
	struct list_head *next, *prev;
};

static inline void INIT_LIST_HEAD(struct list_head *list)
{
	list->next = list;
	list->prev = list;
}

static inline bool list_empty(const struct list_head *list)
{
	return list->next == list;
}

static inline void list_add_tail(struct list_head *entry, struct list_head *list)
{
	entry->prev = list->prev;
	entry->next = list;
	list->prev->next = entry;
	list->prev = entry;
}

static inline void list_del_init(struct list_head *entry)
{
	entry->next->prev = entry->prev;
	entry->prev->next = entry->next;
	INIT_LIST_HEAD(entry);
}

#define list_for_each_entry(pos, head, field)					\
	for (pos = container_of((head)->next, __typeof__(*pos), field);		\
	     &pos->field != (head);						\
	     pos = container_of(pos->field.next, __typeof__(*pos), field))

static inline int order_base_2(u64 n)
{
	int order = 0;

	while ((1ULL << order) < n)
		order++;
	return order;
}

#define WORD_BITS (8 * sizeof(long))
#define DECLARE_BITMAP(name, bits) unsigned long name[DIV_ROUND_UP(bits, WORD_BITS)]

static inline void __set_bit(u32 bit, unsigned long *words)
{
	words[bit / WORD_BITS] |= BIT(bit % WORD_BITS);
}

static inline bool test_bit(u32 bit, const unsigned long *words)
{
	return words[bit / WORD_BITS] & BIT(bit % WORD_BITS);
}

#define set_bit(bit, words) __set_bit(bit, words)

static inline void clear_bit(u32 bit, unsigned long *words)
{
	words[bit / WORD_BITS] &= ~BIT(bit % WORD_BITS);
}

static inline bool test_and_set_bit(u32 bit, unsigned long *words)
{
	bool was = test_bit(bit, words);

	set_bit(bit, words);
	return was;
}

static inline bool __test_and_clear_bit(u32 bit, unsigned long *words)
{
	bool was = test_bit(bit, words);

	words[bit / WORD_BITS] &= ~BIT(bit % WORD_BITS);
	return was;
}

#define bitmap_zalloc(bits, gfp) calloc(((bits) + WORD_BITS - 1) / WORD_BITS, sizeof(long))
#define bitmap_free free
#define kcalloc(n, size, gfp) calloc(n, size)
#define kvcalloc(n, size, gfp) calloc(n, size)
#define kfree(p) free((void *)(p))
#define kvfree(p) free((void *)(p))

static inline const void *memchr_inv(const void *memory, int c, size_t size)
{
	const u8 *bytes = memory;

	for (; size; size--, bytes++)
		if (*bytes != (u8)c)
			return bytes;
	return NULL;
}

/* --- locks, references, waiting ------------------------------------------ */

typedef struct { int held; } spinlock_t;
struct mutex { int held; };
typedef struct { int count; } refcount_t;
typedef struct { int count; } atomic_t;
typedef struct { s64 count; } atomic64_t;
struct completion { unsigned int done; };
typedef struct { int unused; } wait_queue_head_t;
/* Work that is queued runs when a test says so (device.c), or in a thread (threads.c). */
struct work_struct {
	void (*func)(struct work_struct *work);
	struct work_struct *next;
	bool queued, running;
	unsigned int number;
	int disabled;
};
struct delayed_work { struct work_struct work; };

/* In a process with one thread nothing could release the lock or complete later. */
#ifdef SHIM_THREADS
void shim_yield(void);
#define SHIM_WAIT(condition) while (!(condition)) shim_yield()
#else
#define SHIM_WAIT(condition) assert(condition)
#endif

static inline void shim_lock(int *held)
{
	SHIM_WAIT(!*held);
	*held = 1;
}

static inline void shim_unlock(int *held)
{
	assert(*held);
	*held = 0;
}

static inline bool shim_trylock(int *held)
{
	bool was = *held;

	*held = 1;
	return !was;
}

#define spin_lock_init(l) ((l)->held = 0)
#define spin_lock_irqsave(l, flags) ((void)(flags = 0), shim_lock(&(l)->held))
#define spin_unlock_irqrestore(l, flags) ((void)flags, shim_unlock(&(l)->held))
#define spin_lock_irq(l) shim_lock(&(l)->held)
#define spin_unlock_irq(l) shim_unlock(&(l)->held)
#define mutex_init(m) ((m)->held = 0)
#define mutex_lock(m) shim_lock(&(m)->held)
#define mutex_trylock(m) shim_trylock(&(m)->held)
#define mutex_unlock(m) shim_unlock(&(m)->held)
#define refcount_set(r, n) ((r)->count = (n))
#define refcount_inc(r) ((r)->count++)
#define refcount_dec_and_test(r) (!--(r)->count)
#define atomic_inc(a) ((a)->count++)
#define atomic64_inc(a) ((a)->count++)
#define init_completion(c) ((c)->done = 0)
#define reinit_completion(c) ((c)->done = 0)
#define complete(c) ((c)->done++)
#define complete_all(c) ((c)->done = 1U << 31)
#define completion_done(c) ((c)->done != 0)
#define wait_for_completion(c) SHIM_WAIT((c)->done)
#define INIT_WORK(w, f) (*(w) = (struct work_struct){ .func = (f) })
bool shim_queue_work(struct work_struct *work);
void cancel_work_sync(struct work_struct *work);
#define queue_work(wq, w) shim_queue_work(w)
#define schedule_work(w) shim_queue_work(w)
#define disable_work(w) ((w)->disabled++)
#define disable_work_sync(w) (disable_work(w), cancel_work_sync(w))
#define enable_work(w) shim_enable_work(w)
#ifndef SHIM_THREADS
#define usleep_range(a, b) ((void)0)
#endif

static inline void shim_enable_work(struct work_struct *work)
{
	assert(work->disabled);
	work->disabled--;
}

static inline int atomic_xchg(atomic_t *a, int to)
{
	int was = a->count;

	a->count = to;
	return was;
}

/* --- arrays: few objects ------------------------------------------------- */

#define SHIM_OBJECTS 64

struct xarray {
	int held;
	struct { bool used; unsigned long index; void *value; } slots[SHIM_OBJECTS];
};

static inline void *xa_load(struct xarray *xa, unsigned long index)
{
	int i;

	for (i = 0; i < SHIM_OBJECTS; i++)
		if (xa->slots[i].used && xa->slots[i].index == index)
			return xa->slots[i].value;
	return NULL;
}

static inline int xa_insert_irq(struct xarray *xa, unsigned long index,
				void *value, gfp_t gfp)
{
	int i;

	if (xa_load(xa, index))
		return -EBUSY;
	for (i = 0; i < SHIM_OBJECTS; i++) {
		if (xa->slots[i].used)
			continue;
		xa->slots[i].used = true;
		xa->slots[i].index = index;
		xa->slots[i].value = value;
		return 0;
	}
	return -ENOMEM;
}

static inline void xa_cmpxchg_irq(struct xarray *xa, unsigned long index,
				  void *from, void *to, gfp_t gfp)
{
	int i;

	assert(!to);
	for (i = 0; i < SHIM_OBJECTS; i++)
		if (xa->slots[i].used && xa->slots[i].index == index &&
		    xa->slots[i].value == from)
			xa->slots[i].used = false;
}

#define xa_lock(xa) shim_lock(&(xa)->held)
#define xa_unlock(xa) shim_unlock(&(xa)->held)
#define xa_lock_irqsave(xa, flags) ((void)(flags = 0), shim_lock(&(xa)->held))
#define xa_unlock_irqrestore(xa, flags) ((void)flags, shim_unlock(&(xa)->held))

/* --- PCI, interrupts, network -------------------------------------------- */

struct device { int unused; };
struct pci_dev { struct device dev; };
struct sg_table { int unused; };
struct devlink;
struct uapi_definition { int unused; };
struct rdma_stat_desc { int unused; };
struct ib_dm;
struct ib_dm_alloc_attr;
struct ib_dm_mr_attr;
struct ib_flow_attr;
struct ib_rwq_ind_table_init_attr;
struct ib_wq_attr;
struct ib_wq_init_attr;
struct rdma_ah_init_attr;
struct rdma_counter;
enum ib_mr_type { SHIM_MR };

#define ETH_ALEN 6
#define ETH_MIN_MTU 68
#define ETH_MAX_MTU 0xffff
#define VLAN_VID_MASK 0x0fff
#define PCI_IRQ_MSIX 4

#define dev_err(dev, ...) shim_log(__VA_ARGS__)
#define dev_warn(dev, ...) shim_log(__VA_ARGS__)
#define dev_info(dev, ...) shim_log(__VA_ARGS__)
#define dev_warn_ratelimited(dev, ...) shim_log(__VA_ARGS__)
#define dev_info_ratelimited(dev, ...) shim_log(__VA_ARGS__)
#define ibdev_err(dev, ...) shim_log(__VA_ARGS__)
void shim_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define pci_name(pdev) "0000:00:01.0"
#define dev_to_node(dev) 0
#define num_online_cpus() 1U
#define cpumask_local_spread(i, node) 0
#define cpumask_of(cpu) NULL
#define irq_update_affinity_hint(irq, mask) ((void)(irq))
#define irq_set_affinity_and_hint(irq, mask) ((void)(irq))
#define synchronize_irq(irq) ((void)(irq))
#define SHIM_FIRST_IRQ 100
#define pci_irq_vector(pdev, i) (SHIM_FIRST_IRQ + (int)(i))
#define pci_free_irq_vectors(pdev) ((void)(pdev))
#define free_irq(irq, data) ((void)(irq))

static inline int pci_alloc_irq_vectors(struct pci_dev *pdev, int least, int most,
					int flags)
{
	return least;
}

#define request_irq(irq, handler, flags, name, data) shim_request_irq(irq, handler, data)
int shim_request_irq(int irq, irqreturn_t (*handler)(int, void *), void *data);

/* Addresses of the device are not those of the driver. */
#define SHIM_DMA_OFFSET (1ULL << 60)

static inline void *dma_alloc_coherent(struct device *dev, size_t size,
				       dma_addr_t *dma, gfp_t gfp)
{
	void *memory = aligned_alloc(PAGE_SIZE, PAGE_ALIGN(size));

	memset(memory, 0, PAGE_ALIGN(size));
	*dma = (uintptr_t)memory + SHIM_DMA_OFFSET;
	return memory;
}

static inline void dma_free_coherent(struct device *dev, size_t size, void *cpu,
				     dma_addr_t dma)
{
	assert((uintptr_t)cpu + SHIM_DMA_OFFSET == dma);
	free(cpu);
}

/* Memory of processes has one page each time. */
struct shim_block { dma_addr_t dma; bool end; };
#define ib_block_iter shim_block
#define sg_dma_address(sg) ((sg)->dma_address)
#define rdma_block_iter_dma_address(iter) ((iter)->dma)
#define rdma_for_each_block(sgl, iter, nents, size) \
	for (*(iter) = (struct shim_block){ (sgl)->dma_address, !(nents) }; !(iter)->end; (iter)->end = true)
#define faultline_umem_get(ibdev, addr, size, access) ((struct ib_umem *)ERR_PTR(-EFAULT))
#define ib_umem_release(umem) ((void)(umem))

#include "net.h"

/* --- verbs --------------------------------------------------------------- */

enum {
	IB_MIG_MIGRATED = 0, IB_AH_GRH = 1,
	IB_CQ_SOLICITED = 1, IB_CQ_NEXT_COMP = 2, IB_CQ_SOLICITED_MASK = 3,
	IB_CQ_REPORT_MISSED_EVENTS = 4, IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION = 1,
	IB_SIGNAL_ALL_WR = 0, IB_SIGNAL_REQ_WR,
	IB_SEND_FENCE = 1, IB_SEND_SIGNALED = 2, IB_SEND_SOLICITED = 4, IB_SEND_INLINE = 8,
	IB_WC_GRH = 1, IB_WC_WITH_IMM = 2, IB_WC_WITH_INVALIDATE = 4, IB_WC_WITH_SMAC = 16,
	IB_WC_WITH_VLAN = 32, IB_WC_WITH_NETWORK_HDR_TYPE = 64,
	RDMA_NETWORK_IPV4 = 2, RDMA_NETWORK_IPV6 = 3, RDMA_AH_ATTR_TYPE_ROCE = 2,
	IB_SRQ_MAX_WR = 1, IB_SRQ_LIMIT = 2,
	IB_ACCESS_LOCAL_WRITE = 1, IB_ACCESS_REMOTE_WRITE = 2, IB_ACCESS_REMOTE_READ = 4,
	IB_ACCESS_REMOTE_ATOMIC = 8, IB_ACCESS_MW_BIND = 16, IB_ZERO_BASED = 32,
	IB_ACCESS_FLUSH_GLOBAL = 256, IB_ACCESS_FLUSH_PERSISTENT = 512,
	IB_ACCESS_SUPPORTED = 0x3ff | 0x3ff << 20,
};

enum ib_qp_type {
	IB_QPT_SMI, IB_QPT_GSI, IB_QPT_RC, IB_QPT_UC, IB_QPT_UD, IB_QPT_RAW_PACKET = 8,
	IB_QPT_XRC_INI, IB_QPT_XRC_TGT,
};
enum ib_qp_state {
	IB_QPS_RESET, IB_QPS_INIT, IB_QPS_RTR, IB_QPS_RTS, IB_QPS_SQD, IB_QPS_SQE, IB_QPS_ERR,
};
enum ib_srq_type { IB_SRQT_BASIC, IB_SRQT_XRC, IB_SRQT_TM };
enum ib_wc_status { IB_WC_SUCCESS, IB_WC_WR_FLUSH_ERR = 5, IB_WC_FATAL_ERR = 19, IB_WC_GENERAL_ERR = 21 };
enum ib_wc_opcode {
	IB_WC_SEND, IB_WC_RDMA_WRITE, IB_WC_RDMA_READ, IB_WC_COMP_SWAP, IB_WC_FETCH_ADD,
	IB_WC_LOCAL_INV = 6, IB_WC_REG_MR, IB_WC_FLUSH, IB_WC_ATOMIC_WRITE,
	IB_WC_RECV = 128, IB_WC_RECV_RDMA_WITH_IMM,
};
enum ib_wr_opcode {
	IB_WR_RDMA_WRITE, IB_WR_RDMA_WRITE_WITH_IMM, IB_WR_SEND, IB_WR_SEND_WITH_IMM, IB_WR_RDMA_READ,
	IB_WR_ATOMIC_CMP_AND_SWP, IB_WR_ATOMIC_FETCH_AND_ADD, IB_WR_LOCAL_INV = 7, IB_WR_SEND_WITH_INV = 9,
	IB_WR_RDMA_READ_WITH_INV = 11,
	IB_WR_FLUSH = 14, IB_WR_ATOMIC_WRITE, IB_WR_REG_MR = 32,
};
enum ib_event_type {
	IB_EVENT_CQ_ERR, IB_EVENT_QP_FATAL, IB_EVENT_QP_REQ_ERR, IB_EVENT_QP_ACCESS_ERR, IB_EVENT_COMM_EST,
	IB_EVENT_SQ_DRAINED, IB_EVENT_QP_LAST_WQE_REACHED, IB_EVENT_SRQ_LIMIT_REACHED, IB_EVENT_SRQ_ERR,
};
enum ib_qp_attr_mask {
	IB_QP_STATE = 1, IB_QP_CUR_STATE = 1 << 1, IB_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2,
	IB_QP_ACCESS_FLAGS = 1 << 3, IB_QP_PKEY_INDEX = 1 << 4, IB_QP_PORT = 1 << 5, IB_QP_QKEY = 1 << 6,
	IB_QP_AV = 1 << 7, IB_QP_PATH_MTU = 1 << 8, IB_QP_TIMEOUT = 1 << 9, IB_QP_RETRY_CNT = 1 << 10,
	IB_QP_RNR_RETRY = 1 << 11, IB_QP_RQ_PSN = 1 << 12, IB_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	IB_QP_MIN_RNR_TIMER = 1 << 15, IB_QP_SQ_PSN = 1 << 16, IB_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	IB_QP_DEST_QPN = 1 << 20,
};
enum ib_cq_notify_flags { SHIM_NOTIFY };
enum ib_srq_attr_mask { SHIM_SRQ };
enum ib_mtu { IB_MTU_4096 = 5 };

union ib_gid { u8 raw[16]; };
struct ib_device { int num_comp_vectors; };
struct ib_udata { size_t inlen, outlen; };
struct scatterlist { dma_addr_t dma_address; };
struct ib_umem { struct { struct { struct scatterlist *sgl; int nents; } sgt; } sgt_append; };
struct ib_pd { struct ib_device *device; };
struct ib_xrcd { struct ib_device *device; };
struct ib_ah { struct ib_device *device; };
struct ib_mw { u32 rkey; };
struct ib_mr { u32 lkey; };
struct ib_ucontext { struct ib_device *device; };
struct ib_wq { u32 wq_num; };
struct ib_rwq_ind_table { u32 ind_tbl_num; };
struct rdma_user_mmap_entry { int unused; };

struct ib_event;
typedef void (*shim_handler)(struct ib_event *event, void *context);

struct ib_cq {
	struct ib_device *device;
	void (*comp_handler)(struct ib_cq *cq, void *context);
	shim_handler event_handler;
	void *cq_context;
	int cqe;
};

struct ib_srq {
	struct ib_device *device;
	struct ib_pd *pd;
	shim_handler event_handler;
	void *srq_context;
	struct { struct { u32 srq_num; } xrc; } ext;
};

struct ib_qp {
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *send_cq, *recv_cq;
	struct ib_srq *srq;
	struct ib_rwq_ind_table *rwq_ind_tbl;
	shim_handler event_handler;
	void *qp_context;
	u32 qp_num;
	enum ib_qp_type qp_type;
};

struct ib_event {
	struct ib_device *device;
	union { struct ib_cq *cq; struct ib_qp *qp; struct ib_srq *srq; } element;
	enum ib_event_type event;
};

struct ib_wc {
	u64 wr_id;
	enum ib_wc_status status;
	enum ib_wc_opcode opcode;
	u32 vendor_err, byte_len, src_qp;
	struct ib_qp *qp;
	union { __be32 imm_data; u32 invalidate_rkey; } ex;
	int wc_flags;
	u16 pkey_index, vlan_id;
	u8 sl, port_num, smac[ETH_ALEN], network_hdr_type;
};

struct ib_sge { u64 addr; u32 length, lkey; };
struct ib_recv_wr { struct ib_recv_wr *next; u64 wr_id; struct ib_sge *sg_list; int num_sge; };
struct ib_send_wr {
	struct ib_send_wr *next;
	u64 wr_id;
	struct ib_sge *sg_list;
	int num_sge;
	enum ib_wr_opcode opcode;
	int send_flags;
	union { __be32 imm_data; u32 invalidate_rkey; } ex;
};
struct ib_rdma_wr { struct ib_send_wr wr; u64 remote_addr; u32 rkey; };
struct ib_atomic_wr { struct ib_send_wr wr; u64 remote_addr, compare_add, swap; u32 rkey; };
struct ib_ud_wr { struct ib_send_wr wr; struct ib_ah *ah; u32 remote_qpn, remote_qkey; };
struct ib_reg_wr { struct ib_send_wr wr; };

#define rdma_wr(w) container_of(w, struct ib_rdma_wr, wr)
#define atomic_wr(w) container_of(w, struct ib_atomic_wr, wr)
#define ud_wr(w) container_of(w, struct ib_ud_wr, wr)
#define reg_wr(w) container_of(w, struct ib_reg_wr, wr)

struct ib_qp_cap { u32 max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data; };
struct ib_qp_init_attr {
	shim_handler event_handler;
	void *qp_context;
	struct ib_cq *send_cq, *recv_cq;
	struct ib_srq *srq;
	struct ib_xrcd *xrcd;
	struct ib_rwq_ind_table *rwq_ind_tbl;
	struct ib_qp_cap cap;
	int sq_sig_type, create_flags;
	enum ib_qp_type qp_type;
};
struct ib_cq_init_attr { u32 cqe, comp_vector, flags; };
struct ib_srq_attr { u32 max_wr, max_sge, srq_limit; };
struct ib_srq_init_attr {
	struct ib_srq_attr attr;
	enum ib_srq_type srq_type;
	struct {
		struct ib_cq *cq;
		struct { struct ib_xrcd *xrcd; } xrc;
		struct { u32 max_num_tags; } tag_matching;
	} ext;
};
struct ib_global_route { u16 sgid_index; };
struct rdma_ah_attr { int type; struct { u8 dmac[ETH_ALEN]; } roce; };
struct ib_qp_attr {
	enum ib_qp_state qp_state, cur_qp_state;
	int path_mtu, path_mig_state, qp_access_flags;
	u32 qkey, rq_psn, sq_psn, dest_qp_num;
	struct ib_qp_cap cap;
	struct rdma_ah_attr ah_attr;
	u16 pkey_index;
	u8 en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num;
	u8 timeout, retry_cnt, rnr_retry;
};
struct uverbs_attr_bundle { struct ib_udata driver_udata; };

/* Paths have a MAC address here. */
#define is_zero_ether_addr(addr) ((void)(addr), false)
#define RDMA_DESTROY_AH_SLEEPABLE 1
#define rdma_create_user_ah(pd, attr, udata) ((void)(pd), (void)(attr), (struct ib_ah *)ERR_PTR(-EINVAL))
#define rdma_destroy_ah(ah, flags) ((void)(ah))

#define ib_srq_has_cq(type) ((type) != IB_SRQT_BASIC)
#define ib_modify_qp_is_ok(...) true
#define rdma_ah_get_ah_flags(attr) IB_AH_GRH
#define rdma_ah_set_port_num(attr, n) ((void)(attr))
#define rdma_ah_set_sl(attr, n) ((void)(attr))
#define rdma_ah_set_grh(attr, gid, flow, index, hops, class) ((void)(attr))
#define rdma_udata_to_drv_context(udata, type, field) ((type *)NULL)
/* The consumers of these tests are in the kernel. */
#define ib_copy_validate_udata_in(udata, req, last) (memset(&(req), 0, sizeof(req)), -EINVAL)
#define ib_respond_udata(udata, resp) ((void)(resp), -EFAULT)
#define ib_is_udata_in_empty(udata) ((udata) ? -EOPNOTSUPP : 0)
#define ib_respond_empty_udata(udata) ((udata) ? -EFAULT : 0)
#define ib_no_udata_io(udata) ib_is_udata_in_empty(udata)

#ifdef SHIM_THREADS
#include "threads.h"
#else
#include "cm.h"
#endif

#endif /* SHIM_H */
