/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * The device as a whole: transport of commands and doorbells, event queues,
 * life cycle. Verbs objects are in faultline_ib.h.
 */
#ifndef FAULTLINE_H
#define FAULTLINE_H

#include <linux/completion.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <rdma/ib_verbs.h>

#include "faultline_abi.h"
#include "faultline_compat.h"

#define FAULTLINE_DRV_NAME	"faultline"

/* Both command channels have 64 entries. */
#define FAULTLINE_CMDQ_LOG_DEPTH	6
#define FAULTLINE_CMDQ_DEPTH		BIT(FAULTLINE_CMDQ_LOG_DEPTH)
/* No command takes this long unless the device is dead. */
#define FAULTLINE_CMD_TIMEOUT_MS	10000
/* Interval of polls, which find completions whose interrupt was lost. */
#define FAULTLINE_CMD_POLL_MS		50
/* The device increments its heartbeat every second. */
#define FAULTLINE_HEARTBEAT_PERIOD	HZ
/* Misses before the registers are read, and before the device is dead. */
#define FAULTLINE_HEARTBEAT_SUSPECT	2
#define FAULTLINE_HEARTBEAT_MISSES	5

/* log2 of the depth of the deepest ring of verbs, that of a CQ. */
#define FAULTLINE_MAX_LOG_DEPTH	24

/* Event queues, by MSI-X vector. */
#define FAULTLINE_EQ_ASYNC	0
#define FAULTLINE_EQ_FAULTS	1
#define FAULTLINE_EQ_COMP	2
#define FAULTLINE_EQ_LOG_DEPTH	12

/* The device takes the times of a page fault and the process of a context. */
#define FAULTLINE_ABI_MINOR_TOLD	1
/* The device takes the user of a context. */
#define FAULTLINE_ABI_MINOR_USER	3

/* Not a valid EQ number. */
#define FAULTLINE_INVALID_EQN	U32_MAX

struct devlink;
struct faultline_cm;
struct faultline_dev;
struct faultline_net;

/*
 * The RDMA device. A recovery replaces it, since the core cannot register a
 * device twice; struct faultline_dev stays.
 */
struct faultline_ib {
	struct ib_device ibdev;		/* first: see ib_alloc_device() */
	struct faultline_dev *dev;
};

/* How the caller of a command waits if the answer does not come at once. */
enum faultline_wait {
	/* Sleep until the interrupt arrives. */
	FAULTLINE_WAIT_SLEEP,
	/* Poll, sleeping in between. */
	FAULTLINE_WAIT_POLL,
};

/* A command in flight. It must live until faultline_cmdq_wait() returns. */
struct faultline_cmd_req {
	struct completion done;
	/* The buffer for the completion; comp_size bytes. */
	void *comp;
	/* When the command was sent, in nanoseconds. */
	u64 start;
	u16 id;
	u8 opcode;
	/* 0: in flight, 1: completed, < 0: aborted. Under the queue's lock. */
	int state;
};

/* The admin queue or the translation queue. */
struct faultline_cmdq {
	struct faultline_dev *dev;
	const char *name;
	/* Protects everything below; taken in interrupts. */
	spinlock_t lock;
	void *sq;
	void *cq;
	dma_addr_t sq_dma;
	dma_addr_t cq_dma;
	u32 cmd_size;
	u32 comp_size;
	u8 db_type;
	u32 producer;
	u32 consumer;
	bool stopped;
	struct faultline_cmd_req *reqs[FAULTLINE_CMDQ_DEPTH];
	/* Waiters for a free entry. */
	wait_queue_head_t space;
};

struct faultline_eq {
	struct faultline_dev *dev;
	/* Serializes the interrupt and faultline_eqs_check_lost(). */
	spinlock_t lock;
	struct faultline_eqe *ring;
	dma_addr_t dma;
	u32 eqn;
	u32 consumer;
	/* State at the last call of faultline_eqs_check_lost(). */
	u32 last_consumer;
	bool was_pending;
	unsigned int vector;
	int irq;
	char name[64];
};

/*
 * An object that events refer to: CQ, QP, SRQ or WQ. An event handler holds a
 * reference while it runs; destruction waits for the last reference.
 */
struct faultline_res {
	u32 num;
	refcount_t refs;
	struct completion unused;
	/* Called in interrupt context. */
	void (*event)(struct faultline_res *res, u8 kind);
};

/* Counters of the driver that are switched on by `rdma statistic set`. */
enum {
	FAULTLINE_TIMED_TOTAL,
	FAULTLINE_TIMED_WAIT,
	FAULTLINE_TIMED_MAP,
	FAULTLINE_NUM_TIMED,
};

/* Bits of faultline_dev.flags. */
enum {
	/* The device has stopped or is being stopped: no commands, no DMA. */
	FAULTLINE_DEAD,
	/* A failure has not been reported to devlink yet. */
	FAULTLINE_REPORT_DUE,
	/* A failure has been reported, and its end has not. */
	FAULTLINE_REPORTED,
	/* Recover without a request: devlink's auto_recover is on. */
	FAULTLINE_AUTO_RECOVER,
	/* The device stays dead, since the machine shuts down. */
	FAULTLINE_STOPPED,
};

struct faultline_dev {
	struct pci_dev *pdev;

	void __iomem *regs;
	struct faultline_doorbell_page *db;	/* page 0 */
	void __iomem *kick;			/* page 0 */
	phys_addr_t db_phys;
	u32 kick_offset;
	u32 num_db_pages;
	u16 abi_minor;
	struct faultline_caps caps;
	u64 features;

	struct faultline_cmdq admin;
	struct faultline_cmdq translation;

	struct faultline_eq *eqs;
	unsigned int num_eqs;

	struct xarray cqs;
	struct xarray qps;
	struct xarray srqs;

	unsigned long flags;
	const char *death_reason;
	/* Contents of page 0 when the device was declared dead. */
	u32 death_heartbeat;
	u64 death_doorbells_stored;
	u64 death_doorbells_handled;
	/* Set by death_work before the device is reset. */
	u32 death_status;
	u32 death_code;
	struct workqueue_struct *wq;
	struct workqueue_struct *death_wq;
	struct work_struct death_work;
	/* The device does no more DMA. */
	struct completion quiesced;
	/* Changes of mappings wait here for answers; see faultline_lease.c. */
	wait_queue_head_t lease_answers;
	struct delayed_work health_work;
	u32 heartbeat;
	unsigned int heartbeat_misses;

	/*
	 * Serializes faultline_up() and faultline_down(), and protects the
	 * fields up to recovery_work; see faultline_recovery.c.
	 */
	struct mutex state_lock;
	/* faultline_iw_create_listen() reads it without the lock. */
	bool up;
	/* Stays down until faultline_release(): a reset, suspend or reload. */
	bool held;
	/* Attempts to recover that have failed in a row. */
	unsigned int attempts;
	struct delayed_work recovery_work;

	/* NULL: no RDMA device is registered or about to be. */
	struct faultline_ib *ib;
	/* Those with faultline_pd.of_consumer. */
	atomic_t consumer_pds;
	/* Protects ib_registered: no event is dispatched without it. */
	spinlock_t ib_event_lock;
	bool ib_registered;

	struct faultline_net *net;

	/* NULL: all memory must be pinned. */
	struct faultline_odp *odp;

	/* NULL: not an iWARP adapter. */
	struct faultline_cm *cm;
	struct faultline_addrs *addrs;

	/* Serializes reads of the clock, which take two registers. */
	spinlock_t clock_lock;

	/* Address handles with pending commands, and QPs that wait for them. */
	spinlock_t ah_lock;
	struct list_head ah_todo;
	struct list_head ah_waiters;
	struct work_struct ah_work;

	/* Protects the counters' buffer. */
	struct mutex counters_lock;
	__le64 *counters;
	dma_addr_t counters_dma;

	atomic_t mkey_variant;
	atomic64_t lost_interrupts;
	/* Optional counters that are switched on, by index, and all of them. */
	unsigned long timed_stats;
	atomic64_t timed[FAULTLINE_NUM_TIMED];

	struct devlink *devlink;
};

static inline struct faultline_dev *to_fdev(struct ib_device *ibdev)
{
	return container_of(ibdev, struct faultline_ib, ibdev)->dev;
}

static inline bool faultline_is_dead(const struct faultline_dev *dev)
{
	return test_bit(FAULTLINE_DEAD, &dev->flags);
}

static inline bool faultline_is_iwarp(const struct faultline_dev *dev)
{
	return le32_to_cpu(dev->caps.features) & FAULTLINE_FEATURE_IWARP;
}

#define faultline_err(fdev, fmt, ...) \
	dev_err(&(fdev)->pdev->dev, fmt, ##__VA_ARGS__)
#define faultline_warn(fdev, fmt, ...) \
	dev_warn(&(fdev)->pdev->dev, fmt, ##__VA_ARGS__)
#define faultline_info(fdev, fmt, ...) \
	dev_info(&(fdev)->pdev->dev, fmt, ##__VA_ARGS__)

/*
 * Copies an entry of a ring that the device writes. Each word is read once: a
 * device that changes the entry later changes nothing that has been checked.
 */
static inline void faultline_copy_entry(void *to, const void *from, size_t size)
{
	const u64 *words = from;
	u64 *copy = to;
	size_t i;

	for (i = 0; i < size / sizeof(*copy); i++)
		copy[i] = READ_ONCE(words[i]);
}

/* Entry `index` of a ring of 2^log_depth entries carries this phase. */
static inline u8 faultline_phase(u32 index, u8 log_depth)
{
	return !((index >> log_depth) & 1);
}

/*
 * The result of a command that destroys an object. Success if the device is
 * dead: then the command has waited until the device does no more DMA.
 */
static inline int faultline_dead_ok(struct faultline_dev *dev, int err)
{
	return err && faultline_is_dead(dev) ? 0 : err;
}

/* faultline_recovery.c */
void faultline_fail(struct faultline_dev *dev, const char *reason);
void faultline_quiesce(struct faultline_dev *dev, const char *reason);
void faultline_suspect_reset(struct faultline_dev *dev);
void faultline_recovery_init(struct faultline_dev *dev);
void faultline_recovery_enable(struct faultline_dev *dev);
void faultline_recovery_disable(struct faultline_dev *dev);
int faultline_up(struct faultline_dev *dev);
void faultline_down(struct faultline_dev *dev);
int faultline_recover_now(struct faultline_dev *dev);
void faultline_forbid_recovery(struct faultline_dev *dev);
void faultline_hold(struct faultline_dev *dev, const char *reason);
int faultline_release(struct faultline_dev *dev);
void faultline_release_later(struct faultline_dev *dev);

/* faultline_health.c */
#if IS_ENABLED(CONFIG_NET_DEVLINK)
int faultline_health_create(struct faultline_dev *dev);
void faultline_health_register(struct faultline_dev *dev);
void faultline_health_unregister(struct faultline_dev *dev);
void faultline_health_destroy(struct faultline_dev *dev);
void faultline_health_report(struct faultline_dev *dev);
void faultline_health_gave_up(struct faultline_dev *dev);
void faultline_health_recovered(struct faultline_dev *dev);
#else
static inline int faultline_health_create(struct faultline_dev *dev)
{
	return 0;
}

static inline void faultline_health_register(struct faultline_dev *dev)
{
}

static inline void faultline_health_unregister(struct faultline_dev *dev)
{
}

static inline void faultline_health_destroy(struct faultline_dev *dev)
{
}

static inline void faultline_health_report(struct faultline_dev *dev)
{
	set_bit(FAULTLINE_AUTO_RECOVER, &dev->flags);
}

static inline void faultline_health_gave_up(struct faultline_dev *dev)
{
}

static inline void faultline_health_recovered(struct faultline_dev *dev)
{
}
#endif

/*
 * A full barrier between a store that the device reads (a doorbell, a producer
 * index) and a load of a word that the device writes (`asleep`, `notify`). It
 * pairs with the device's barrier between its store and its load: one of the
 * two sees the other's store.
 *
 * The device is another process of the host, so this must be a barrier in a
 * guest with one virtual CPU, too. On x86, smp_mb() and virt_mb() are locked
 * instructions. QEMU's TCG executes these as ordinary ones in a guest that can
 * have one CPU only, where the load can then pass the store. mb() is MFENCE.
 *
 * Barriers between processors of the guest, and those that order stores or
 * loads among themselves (dma_wmb(), smp_store_release()), need not be this
 * one.
 */
static inline void faultline_device_mb(void)
{
	mb();
}

/* faultline_hw.c */
u32 faultline_read(struct faultline_dev *dev, u32 reg);
u32 faultline_link_speed(struct faultline_dev *dev);
void faultline_fw_version(const struct faultline_dev *dev, char *text,
			  size_t size);
void faultline_write(struct faultline_dev *dev, u32 reg, u32 value);
u64 faultline_clock(struct faultline_dev *dev);
void faultline_doorbell(struct faultline_dev *dev, u8 type, u32 object,
			u32 value);
int faultline_hw_init(struct faultline_dev *dev);
int faultline_hw_start(struct faultline_dev *dev);
void faultline_hw_cleanup(struct faultline_dev *dev);
void faultline_hw_stop(struct faultline_dev *dev);
bool faultline_hw_answers(struct faultline_dev *dev);
void faultline_cmdq_process(struct faultline_cmdq *q);
void faultline_cmdq_abort(struct faultline_cmdq *q);
int faultline_cmdq_post(struct faultline_cmdq *q, const void *cmd,
			const void *behind, struct faultline_cmd_req *req);
int faultline_cmdq_wait(struct faultline_cmdq *q, struct faultline_cmd_req *req,
			enum faultline_wait wait);
int faultline_cmdq_exec(struct faultline_cmdq *q, const void *cmd, void *comp,
			enum faultline_wait wait);

/* faultline_check.c */
struct faultline_connection_info;
struct faultline_qp_attr;

int faultline_check_caps(struct faultline_dev *dev,
			 const struct faultline_caps *caps);
int faultline_check_number(struct faultline_dev *dev, u16 opcode, u32 number);
int faultline_check_qp_attr(struct faultline_dev *dev,
			    const struct faultline_qp_attr *attr);
int faultline_check_connection(struct faultline_dev *dev,
			       const struct faultline_connection_info *info);

/* faultline_eq.c */
int faultline_eqs_create(struct faultline_dev *dev);
void faultline_eqs_destroy(struct faultline_dev *dev);
void faultline_eqs_check_lost(struct faultline_dev *dev);
void faultline_eqs_sync(struct faultline_dev *dev);
void faultline_eq_drain(struct faultline_dev *dev);
unsigned int faultline_num_comp_vectors(const struct faultline_dev *dev);
u32 faultline_comp_eqn(const struct faultline_dev *dev, unsigned int vector);

void faultline_res_init(struct faultline_res *res, u32 num,
			void (*event)(struct faultline_res *res, u8 kind));
int faultline_res_add(struct faultline_dev *dev, struct xarray *xa,
		      struct faultline_res *res);
void faultline_res_remove(struct xarray *xa, struct faultline_res *res);
struct faultline_res *faultline_res_get(struct xarray *xa, u32 num);
void faultline_res_put(struct faultline_res *res);

#ifdef CONFIG_INFINIBAND_ON_DEMAND_PAGING
/* faultline_odp_fault.c */
void faultline_odp_fault(struct faultline_dev *dev,
			 const struct faultline_eqe *eqe);
#else
static inline void faultline_odp_fault(struct faultline_dev *dev,
				       const struct faultline_eqe *eqe)
{
	dev_warn_ratelimited(&dev->pdev->dev,
			     "page fault of a device without on-demand regions\n");
}
#endif

/* faultline_listen.c */
int faultline_cm_create(struct faultline_dev *dev);
void faultline_cm_destroy(struct faultline_dev *dev);
void faultline_cm_event(struct faultline_dev *dev, u8 kind, u32 object,
			u64 token);

/* faultline_addr.c */
int faultline_addrs_create(struct faultline_dev *dev);
void faultline_addrs_destroy(struct faultline_dev *dev);

/* faultline_net.c */
int faultline_net_create(struct faultline_dev *dev);
void faultline_net_destroy(struct faultline_dev *dev);
int faultline_net_start(struct faultline_dev *dev);
void faultline_net_stop(struct faultline_dev *dev);
void faultline_net_death(struct faultline_dev *dev);
void faultline_net_link(struct faultline_dev *dev, bool up);
struct net_device *faultline_netdev(struct faultline_dev *dev);

/* faultline_verbs.c */
int faultline_ib_register(struct faultline_dev *dev);
void faultline_ib_unregister(struct faultline_dev *dev);
void faultline_ib_death(struct faultline_dev *dev);
void faultline_ib_wait_released(struct faultline_dev *dev);
void faultline_ib_port_event(struct faultline_dev *dev, bool up);
void faultline_ib_gid_changed(struct faultline_dev *dev);

#endif /* FAULTLINE_H */
