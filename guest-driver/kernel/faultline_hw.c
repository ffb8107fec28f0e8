// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Registers, doorbells and command queues
 *
 * Independent of the individual commands.
 *
 * Locking: faultline_cmdq.lock (taken in interrupts) protects the rings of a
 * command queue, their indices, and the requests in flight. No other lock of
 * the driver is taken under it. faultline_cmdq_post() and faultline_cmdq_wait()
 * sleep: their callers hold no spinlock, but may hold mutexes, also in MMU
 * notifiers. Therefore they allocate no memory.
 *
 * faultline_dev.clock_lock serializes reads of the clock. Doorbells need no
 * lock, and are rung in any context and under any lock.
 *
 * faultline_hw_start() runs under faultline_dev.state_lock. It resets the
 * command queues without their locks: the device is dead, so they are not used.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/ktime.h>

#include "faultline.h"

/* Time limit for a full doorbell ring, which drains in microseconds. */
#define FAULTLINE_DB_SPIN_NS	(20ULL * NSEC_PER_USEC)
/* Time to poll for an answer before sleeping: most commands take less. */
#define FAULTLINE_CMD_SPIN_NS	(50ULL * NSEC_PER_USEC)
#define FAULTLINE_CMD_TIMEOUT_NS	((u64)FAULTLINE_CMD_TIMEOUT_MS * NSEC_PER_MSEC)
/* Attempts before a ring counts as full; enough to skip invalid entries. */
#define FAULTLINE_DB_TRIES	(4 * FAULTLINE_DB_RING_ENTRIES)

u32 faultline_read(struct faultline_dev *dev, u32 reg)
{
	return readl(dev->regs + reg);
}

void faultline_write(struct faultline_dev *dev, u32 reg, u32 value)
{
	writel(value, dev->regs + reg);
}

static u64 faultline_read64(struct faultline_dev *dev, u32 reg)
{
	u64 low = faultline_read(dev, reg);

	return low | (u64)faultline_read(dev, reg + 4) << 32;
}

/* The device's clock in nanoseconds. The lower half latches the upper one. */
u64 faultline_clock(struct faultline_dev *dev)
{
	unsigned long flags;
	u64 clock;

	spin_lock_irqsave(&dev->clock_lock, flags);
	clock = faultline_read64(dev, FAULTLINE_REG_CLOCK);
	spin_unlock_irqrestore(&dev->clock_lock, flags);
	return clock;
}

/* The speed of the link in Mbit/s; 0 if the device does not tell it. */
u32 faultline_link_speed(struct faultline_dev *dev)
{
	u32 speed;

	if (faultline_is_dead(dev))
		return 0;
	speed = faultline_read(dev, FAULTLINE_REG_LINK_SPEED);
	/* A device that was removed reads as ones. */
	return speed == U32_MAX ? 0 : speed;
}

static void faultline_write64(struct faultline_dev *dev, u32 reg, u64 value)
{
	faultline_write(dev, reg, lower_32_bits(value));
	faultline_write(dev, reg + 4, upper_32_bits(value));
}

/* The device's firmware version as text. */
void faultline_fw_version(const struct faultline_dev *dev, char *text,
			  size_t size)
{
	u64 version = le64_to_cpu(dev->caps.fw_version);

	snprintf(text, size, "%u.%u.%u", (u32)(version >> 32),
		 (u32)(version >> 16) & 0xffff, (u32)version & 0xffff);
}

/* Returns false if the device was unplugged or its registers are disabled. */
bool faultline_hw_answers(struct faultline_dev *dev)
{
	return faultline_read(dev, FAULTLINE_REG_MAGIC) == FAULTLINE_MAGIC;
}

static void faultline_kick(struct faultline_dev *dev, u64 doorbell)
{
	writeq(doorbell, dev->kick);
}

static u64 faultline_db_load(const __le64 *word)
{
	/* Pairs with the device's stores and faultline_db_exchange(). */
	return le64_to_cpu(smp_load_acquire(word));
}

/*
 * Replaces `from` by `to`, after earlier stores. Returns false if it is not
 * `from`. In a guest with one CPU the exchange may be atomic for its threads
 * only, not for the device. This suffices: see firmware/abi/src/ring.rs.
 */
static bool faultline_db_exchange(__le64 *word, u64 from, u64 to)
{
	u64 old = (__force u64)cpu_to_le64(from);

	return cmpxchg64((u64 __force *)word, old,
			 (__force u64)cpu_to_le64(to)) == old;
}

/*
 * Stores a doorbell in the ring of page 0, as firmware/abi/src/ring.rs
 * describes: one exchange claims the slot and stores the doorbell, so an
 * interrupted caller never blocks other callers. Returns false if the ring is
 * full.
 */
static bool faultline_db_append(struct faultline_doorbell_page *page,
				u64 doorbell)
{
	unsigned int tries;

	for (tries = 0; tries < FAULTLINE_DB_TRIES; tries++) {
		u64 index = faultline_db_load(&page->producer);
		u64 lap = index >> FAULTLINE_DB_LAP_SHIFT;
		u64 phase = ~lap & 1;
		__le64 *slot = &page->ring[index % FAULTLINE_DB_RING_ENTRIES];
		u64 bits = faultline_db_load(slot);

		if (bits == lap) {
			if (!faultline_db_exchange(slot, lap, doorbell |
						   phase << FAULTLINE_DB_PHASE_SHIFT))
				continue;
			faultline_db_exchange(&page->producer, index, index + 1);
			return true;
		}
		if ((bits >> FAULTLINE_DB_TYPE_SHIFT & FAULTLINE_DB_TYPE_MASK) &&
		    bits >> FAULTLINE_DB_PHASE_SHIFT != phase) {
			/* An old `index` finds doorbells of the next lap. */
			if (faultline_db_load(&page->producer) == index)
				return false;
			continue;
		}
		/* The slot is used, but `producer` is not incremented yet. */
		faultline_db_exchange(&page->producer, index, index + 1);
	}
	return false;
}

/*
 * Appends a doorbell to the ring of page 0, in any context. If the ring stays
 * full, the doorbell is written to the kick page and so overtakes those in the
 * ring. This is harmless, since doorbells carry absolute indices.
 */
void faultline_doorbell(struct faultline_dev *dev, u8 type, u32 object,
			u32 value)
{
	struct faultline_doorbell_page *page = dev->db;
	u64 doorbell = (u64)type << FAULTLINE_DB_TYPE_SHIFT |
		       (u64)(object & FAULTLINE_DB_OBJECT_MASK) <<
			       FAULTLINE_DB_OBJECT_SHIFT |
		       value;
	u64 start = 0;

	if (faultline_is_dead(dev))
		return;
	/* Queue entries written before are visible first. */
	while (!faultline_db_append(page, doorbell)) {
		u64 now = ktime_get_mono_fast_ns();

		if (!start)
			start = now;
		if (now - start > FAULTLINE_DB_SPIN_NS ||
		    READ_ONCE(page->asleep)) {
			faultline_kick(dev, doorbell);
			return;
		}
		cpu_relax();
	}
	/*
	 * Pairs with the device's barrier between setting `asleep` and its
	 * last check of the ring: one of the two sees the other's store.
	 */
	faultline_device_mb();
	if (READ_ONCE(page->asleep))
		faultline_kick(dev, doorbell);
}

/* Handles the completions in the ring. The queue's lock is held. */
static void __faultline_cmdq_process(struct faultline_cmdq *q)
{
	bool progress = false;

	while (q->consumer != q->producer) {
		u32 slot = q->consumer % FAULTLINE_CMDQ_DEPTH;
		u8 *comp = q->cq + slot * q->comp_size;
		struct faultline_cmd_req *req = q->reqs[slot];
		u16 id;

		if (READ_ONCE(comp[q->comp_size - 1]) !=
		    faultline_phase(q->consumer, FAULTLINE_CMDQ_LOG_DEPTH))
			break;
		dma_rmb();
		id = le16_to_cpup((__le16 *)comp);
		if (id != (u16)q->consumer) {
			faultline_err(q->dev, "%s: completion %u, expected %u\n",
				      q->name, id, (u16)q->consumer);
			q->stopped = true;
			faultline_fail(q->dev, "completions out of order");
			break;
		}
		if (req) {
			memcpy(req->comp, comp, q->comp_size);
			req->state = 1;
			complete(&req->done);
			q->reqs[slot] = NULL;
		}
		q->consumer++;
		progress = true;
	}
	if (progress)
		wake_up(&q->space);
}

void faultline_cmdq_process(struct faultline_cmdq *q)
{
	unsigned long flags;

	spin_lock_irqsave(&q->lock, flags);
	if (!q->stopped)
		__faultline_cmdq_process(q);
	spin_unlock_irqrestore(&q->lock, flags);
}

/* Aborts all commands in flight and refuses further ones. */
void faultline_cmdq_abort(struct faultline_cmdq *q)
{
	unsigned long flags;
	unsigned int i;

	spin_lock_irqsave(&q->lock, flags);
	q->stopped = true;
	for (i = 0; i < FAULTLINE_CMDQ_DEPTH; i++) {
		struct faultline_cmd_req *req = q->reqs[i];

		if (!req)
			continue;
		req->state = -EIO;
		complete(&req->done);
		q->reqs[i] = NULL;
	}
	wake_up_all(&q->space);
	spin_unlock_irqrestore(&q->lock, flags);
}

/* Puts a command into the ring, which has room. The queue's lock is held. */
static void faultline_cmdq_put(struct faultline_cmdq *q, const void *cmd,
			       struct faultline_cmd_req *req)
{
	u32 slot = q->producer % FAULTLINE_CMDQ_DEPTH;
	u8 *entry = q->sq + slot * q->cmd_size;

	memcpy(entry, cmd, q->cmd_size);
	/* The id has the same offset in both kinds of commands. */
	BUILD_BUG_ON(offsetof(struct faultline_admin_hdr, id) !=
		     offsetof(struct faultline_tq_cmd, id));
	*(__le16 *)(entry + offsetof(struct faultline_admin_hdr, id)) =
		cpu_to_le16((u16)q->producer);
	if (req) {
		req->id = q->producer;
		req->state = 0;
	}
	q->reqs[slot] = req;
	q->producer++;
}

/*
 * Puts a command, and `behind` it if there is one, into the ring. Returns
 * -EBUSY if the ring is full.
 */
static int faultline_cmdq_try_post(struct faultline_cmdq *q, const void *cmd,
				   const void *behind,
				   struct faultline_cmd_req *req)
{
	unsigned long flags;
	int err = 0;

	spin_lock_irqsave(&q->lock, flags);
	if (q->stopped || faultline_is_dead(q->dev)) {
		err = -EIO;
		goto out;
	}
	__faultline_cmdq_process(q);
	if (q->producer - q->consumer + !!behind >= FAULTLINE_CMDQ_DEPTH) {
		err = -EBUSY;
		goto out;
	}
	faultline_cmdq_put(q, cmd, req);
	if (behind)
		faultline_cmdq_put(q, behind, NULL);
	/* The device sees the entries before the doorbell. */
	faultline_doorbell(q->dev, q->db_type, 0, q->producer);
out:
	spin_unlock_irqrestore(&q->lock, flags);
	return err;
}

/* Returns true if two commands fit, or if none will be taken any more. */
static bool faultline_cmdq_has_room(struct faultline_cmdq *q)
{
	unsigned long flags;
	bool room;

	spin_lock_irqsave(&q->lock, flags);
	if (!q->stopped)
		__faultline_cmdq_process(q);
	room = q->stopped ||
	       q->producer - q->consumer + 1 < FAULTLINE_CMDQ_DEPTH;
	spin_unlock_irqrestore(&q->lock, flags);
	return room;
}

static void faultline_cmdq_timeout(struct faultline_cmdq *q, u8 opcode)
{
	faultline_err(q->dev, "%s: command %#x timed out\n", q->name, opcode);
	faultline_fail(q->dev, "command timeout");
}

/*
 * Sends a command, and with the same doorbell a command `behind` it, which may
 * be NULL. The device executes both in order. `req`, which may be NULL, is for
 * faultline_cmdq_wait() for the first one; nothing waits for the other one.
 * Returns 0, or -EIO if the device is dead: then it has stopped all DMA.
 * Sleeps while the ring is full.
 */
int faultline_cmdq_post(struct faultline_cmdq *q, const void *cmd,
			const void *behind, struct faultline_cmd_req *req)
{
	u64 start = ktime_get_mono_fast_ns();
	u64 deadline = start + FAULTLINE_CMD_TIMEOUT_NS;
	int err;

	might_sleep();
	if (req) {
		init_completion(&req->done);
		req->opcode = *(const u8 *)cmd;
		req->start = start;
	}
	while ((err = faultline_cmdq_try_post(q, cmd, behind, req)) == -EBUSY) {
		if (ktime_get_mono_fast_ns() > deadline) {
			faultline_cmdq_timeout(q, *(const u8 *)cmd);
			err = -EIO;
			break;
		}
		wait_event_timeout(q->space, faultline_cmdq_has_room(q),
				   msecs_to_jiffies(FAULTLINE_CMD_POLL_MS));
	}
	if (err)
		wait_for_completion(&q->dev->quiesced);
	return err;
}

/* Handles the completions in the ring and returns the request's state. */
static int faultline_cmdq_look(struct faultline_cmdq *q,
			       struct faultline_cmd_req *req)
{
	unsigned long flags;
	int state;

	spin_lock_irqsave(&q->lock, flags);
	if (!q->stopped)
		__faultline_cmdq_process(q);
	state = req->state;
	spin_unlock_irqrestore(&q->lock, flags);
	return state;
}

/* Removes the request from the queue, so that its memory can be reused. */
static int faultline_cmdq_withdraw(struct faultline_cmdq *q,
				   struct faultline_cmd_req *req)
{
	unsigned long flags;
	int state;

	spin_lock_irqsave(&q->lock, flags);
	state = req->state;
	if (!state) {
		q->reqs[req->id % FAULTLINE_CMDQ_DEPTH] = NULL;
		state = -EIO;
	}
	spin_unlock_irqrestore(&q->lock, flags);
	return state;
}

static int __faultline_cmdq_wait(struct faultline_cmdq *q,
				 struct faultline_cmd_req *req,
				 enum faultline_wait wait)
{
	u64 deadline = req->start + FAULTLINE_CMD_TIMEOUT_NS;
	u64 start = ktime_get_mono_fast_ns();
	u64 now;
	int state;

	for (;;) {
		state = faultline_cmdq_look(q, req);
		if (!state && faultline_is_dead(q->dev))
			state = faultline_cmdq_withdraw(q, req);
		if (state)
			return state < 0 ? state : 0;
		now = ktime_get_mono_fast_ns();
		if (now > deadline)
			break;
		if (now - start < FAULTLINE_CMD_SPIN_NS)
			cpu_relax();
		else if (wait == FAULTLINE_WAIT_POLL)
			usleep_range(10, 50);
		else
			wait_for_completion_timeout(&req->done,
						    msecs_to_jiffies(FAULTLINE_CMD_POLL_MS));
	}
	return faultline_cmdq_withdraw(q, req) > 0 ? 0 : -ETIMEDOUT;
}

/*
 * Waits for the completion of a command that faultline_cmdq_post() has sent.
 * Returns 0 if it has completed, with any status, or -EIO if the device is
 * dead: then it has stopped all DMA. Sleeps.
 */
int faultline_cmdq_wait(struct faultline_cmdq *q, struct faultline_cmd_req *req,
			enum faultline_wait wait)
{
	int err;

	might_sleep();
	err = __faultline_cmdq_wait(q, req, wait);
	if (err == -ETIMEDOUT)
		faultline_cmdq_timeout(q, req->opcode);
	if (err)
		wait_for_completion(&q->dev->quiesced);
	return err ? -EIO : 0;
}

/* Sends a command and waits for its completion. Sleeps. */
int faultline_cmdq_exec(struct faultline_cmdq *q, const void *cmd, void *comp,
			enum faultline_wait wait)
{
	struct faultline_cmd_req req = { .comp = comp };

	return faultline_cmdq_post(q, cmd, NULL, &req) ?:
	       faultline_cmdq_wait(q, &req, wait);
}

static int faultline_cmdq_init(struct faultline_dev *dev,
			       struct faultline_cmdq *q, const char *name,
			       u8 db_type, u32 cmd_size, u32 comp_size)
{
	struct device *dma_dev = &dev->pdev->dev;

	q->dev = dev;
	q->name = name;
	q->db_type = db_type;
	q->cmd_size = cmd_size;
	q->comp_size = comp_size;
	spin_lock_init(&q->lock);
	init_waitqueue_head(&q->space);
	/* Allocate whole pages, since the rings must be page-aligned. */
	q->sq = dma_alloc_coherent(dma_dev,
				   PAGE_ALIGN(cmd_size * FAULTLINE_CMDQ_DEPTH),
				   &q->sq_dma, GFP_KERNEL);
	q->cq = dma_alloc_coherent(dma_dev,
				   PAGE_ALIGN(comp_size * FAULTLINE_CMDQ_DEPTH),
				   &q->cq_dma, GFP_KERNEL);
	return q->sq && q->cq ? 0 : -ENOMEM;
}

static void faultline_cmdq_cleanup(struct faultline_cmdq *q)
{
	struct device *dma_dev = &q->dev->pdev->dev;

	if (q->sq)
		dma_free_coherent(dma_dev,
				  PAGE_ALIGN(q->cmd_size * FAULTLINE_CMDQ_DEPTH),
				  q->sq, q->sq_dma);
	if (q->cq)
		dma_free_coherent(dma_dev,
				  PAGE_ALIGN(q->comp_size * FAULTLINE_CMDQ_DEPTH),
				  q->cq, q->cq_dma);
	q->sq = NULL;
	q->cq = NULL;
}

/* Both rings are empty again. The device does not use them. */
static void faultline_cmdq_reset(struct faultline_cmdq *q)
{
	memset(q->sq, 0, q->cmd_size * FAULTLINE_CMDQ_DEPTH);
	memset(q->cq, 0, q->comp_size * FAULTLINE_CMDQ_DEPTH);
	q->producer = 0;
	q->consumer = 0;
	q->stopped = false;
}

static int faultline_hw_identify(struct faultline_dev *dev)
{
	u32 magic = faultline_read(dev, FAULTLINE_REG_MAGIC);
	u32 version = faultline_read(dev, FAULTLINE_REG_ABI_VERSION);
	struct faultline_caps caps;
	u32 *words = (u32 *)&caps;
	unsigned int i;
	int err;

	if (magic != FAULTLINE_MAGIC) {
		faultline_err(dev, "magic is %#x, not %#x\n", magic,
			      FAULTLINE_MAGIC);
		return -ENODEV;
	}
	if (version >> 16 != FAULTLINE_ABI_VERSION >> 16) {
		faultline_err(dev, "device has ABI %u.%u, driver needs %u.%u; %s\n",
			      version >> 16, version & 0xffff,
			      FAULTLINE_ABI_VERSION >> 16,
			      FAULTLINE_ABI_VERSION & 0xffff,
			      version > FAULTLINE_ABI_VERSION ?
			      "the driver is too old: update the package faultline-dkms" :
			      "the device is too old: update the package faultline on the host");
		return -EPROTONOSUPPORT;
	}
	dev->abi_minor = version & 0xffff;
	for (i = 0; i < sizeof(caps) / 4; i++)
		words[i] = (u32 __force)cpu_to_le32(faultline_read(dev,
					FAULTLINE_REG_CAPS + i * 4));
	err = faultline_check_caps(dev, &caps);
	if (err)
		return err;
	dev->caps = caps;
	dev->features = faultline_read64(dev, FAULTLINE_REG_FEATURES);
	return 0;
}

/*
 * Maps doorbell page 0 and kick page 0. Doorbell pages are plain memory behind
 * a BAR. They are mapped as memory, since locked operations must work on them.
 * On x86 the mapping is uncached if firmware has marked the BAR uncached in the
 * MTRRs; in a guest this is as correct and as fast. Kick pages are mapped as
 * I/O, since accesses to them are trapped and have side effects.
 */
static int faultline_hw_map_doorbells(struct faultline_dev *dev)
{
	struct pci_dev *pdev = dev->pdev;
	u64 len = pci_resource_len(pdev, FAULTLINE_BAR_DOORBELL);
	u64 pages;

	dev->num_db_pages = faultline_read(dev, FAULTLINE_REG_DOORBELL_PAGES);
	pages = (u64)dev->num_db_pages * FAULTLINE_PAGE_SIZE;
	dev->kick_offset = faultline_read(dev, FAULTLINE_REG_KICK_OFFSET);
	dev->db_phys = pci_resource_start(pdev, FAULTLINE_BAR_DOORBELL);
	if (!dev->num_db_pages || dev->kick_offset % FAULTLINE_PAGE_SIZE ||
	    dev->kick_offset < pages || dev->kick_offset + pages > len) {
		faultline_err(dev, "doorbell pages do not fit into BAR %u\n",
			      FAULTLINE_BAR_DOORBELL);
		return -ENODEV;
	}
	dev->db = memremap(dev->db_phys, FAULTLINE_PAGE_SIZE, MEMREMAP_WB);
	if (!dev->db)
		return -ENOMEM;
	dev->kick = ioremap(dev->db_phys + dev->kick_offset,
			    FAULTLINE_PAGE_SIZE);
	return dev->kick ? 0 : -ENOMEM;
}

static void faultline_hw_unmap(struct faultline_dev *dev)
{
	if (dev->kick)
		iounmap(dev->kick);
	if (dev->db)
		memunmap(dev->db);
	if (dev->regs)
		pci_iounmap(dev->pdev, dev->regs);
	dev->kick = NULL;
	dev->db = NULL;
	dev->regs = NULL;
}

static int faultline_hw_enable(struct faultline_dev *dev)
{
	u32 status;

	faultline_write64(dev, FAULTLINE_REG_ADMIN_SQ_BASE, dev->admin.sq_dma);
	faultline_write64(dev, FAULTLINE_REG_ADMIN_CQ_BASE, dev->admin.cq_dma);
	faultline_write(dev, FAULTLINE_REG_ADMIN_LOG_DEPTH,
			FAULTLINE_CMDQ_LOG_DEPTH);
	faultline_write(dev, FAULTLINE_REG_ADMIN_EQN, FAULTLINE_INVALID_EQN);
	faultline_write64(dev, FAULTLINE_REG_TRANSLATION_SQ_BASE,
			  dev->translation.sq_dma);
	faultline_write64(dev, FAULTLINE_REG_TRANSLATION_CQ_BASE,
			  dev->translation.cq_dma);
	faultline_write(dev, FAULTLINE_REG_TRANSLATION_LOG_DEPTH,
			FAULTLINE_CMDQ_LOG_DEPTH);
	faultline_write(dev, FAULTLINE_REG_CONTROL, FAULTLINE_CONTROL_ENABLE);

	status = faultline_read(dev, FAULTLINE_REG_STATUS);
	if (status & FAULTLINE_STATUS_FATAL ||
	    !(status & FAULTLINE_STATUS_ENABLED)) {
		faultline_err(dev, "can't enable the device: status %#x, fatal code %u\n",
			      status,
			      faultline_read(dev, FAULTLINE_REG_FATAL_CODE));
		return -EIO;
	}
	return 0;
}

/* Resets the device; afterwards it does no DMA. */
void faultline_hw_stop(struct faultline_dev *dev)
{
	if (faultline_hw_answers(dev))
		faultline_write(dev, FAULTLINE_REG_CONTROL,
				FAULTLINE_CONTROL_RESET);
	pci_clear_master(dev->pdev);
}

/*
 * Maps the device and allocates the command rings, once. The mappings stay: no
 * function has to check for them.
 */
int faultline_hw_init(struct faultline_dev *dev)
{
	int err;

	if (PAGE_SIZE != FAULTLINE_PAGE_SIZE) {
		/* Several user contexts would share a page. */
		faultline_err(dev, "pages of %lu bytes are not supported\n",
			      PAGE_SIZE);
		return -EOPNOTSUPP;
	}
	dev->regs = pci_iomap(dev->pdev, FAULTLINE_BAR_REGS,
			      FAULTLINE_REGS_SIZE);
	if (!dev->regs)
		return -ENOMEM;
	err = faultline_hw_identify(dev);
	if (err)
		goto unmap;
	err = faultline_hw_map_doorbells(dev);
	if (err)
		goto unmap;
	err = faultline_cmdq_init(dev, &dev->admin, "admin",
				  FAULTLINE_DB_ADMIN,
				  sizeof(struct faultline_admin_cmd),
				  sizeof(struct faultline_admin_comp));
	if (err)
		goto free_admin;
	err = faultline_cmdq_init(dev, &dev->translation, "translation",
				  FAULTLINE_DB_TRANSLATION,
				  sizeof(struct faultline_tq_cmd),
				  sizeof(struct faultline_tq_comp));
	if (err)
		goto free_translation;
	return 0;

free_translation:
	faultline_cmdq_cleanup(&dev->translation);
free_admin:
	faultline_cmdq_cleanup(&dev->admin);
unmap:
	faultline_hw_unmap(dev);
	return err;
}

/*
 * Resets the device and enables it with empty command rings. No other code
 * uses the device. It may be another one than before: an emulator that was
 * restarted, perhaps in another version.
 */
int faultline_hw_start(struct faultline_dev *dev)
{
	int err;

	err = faultline_hw_identify(dev);
	if (err)
		return err;
	/* A previous driver may have left the device enabled. */
	faultline_write(dev, FAULTLINE_REG_CONTROL, FAULTLINE_CONTROL_RESET);
	if (faultline_read(dev, FAULTLINE_REG_DOORBELL_PAGES) !=
		    dev->num_db_pages ||
	    faultline_read(dev, FAULTLINE_REG_KICK_OFFSET) !=
		    dev->kick_offset) {
		faultline_err(dev, "the doorbell pages have moved: bind the driver again\n");
		return -ENODEV;
	}
	faultline_cmdq_reset(&dev->admin);
	faultline_cmdq_reset(&dev->translation);
	pci_set_master(dev->pdev);
	err = faultline_hw_enable(dev);
	if (err)
		faultline_hw_stop(dev);
	return err;
}

void faultline_hw_cleanup(struct faultline_dev *dev)
{
	faultline_cmdq_cleanup(&dev->translation);
	faultline_cmdq_cleanup(&dev->admin);
	faultline_hw_unmap(dev);
}
