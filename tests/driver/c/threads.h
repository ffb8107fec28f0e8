/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The part of the kernel that the life cycle of the device uses: threads that
 * take turns, in virtual time, and PCI. See threads.c and shutdown.c.
 */
#ifndef THREADS_H
#define THREADS_H

#define HZ 1000
#define NSEC_PER_USEC 1000ULL
#define NSEC_PER_MSEC 1000000ULL
#define UINT_MAX U32_MAX
#define MEMREMAP_WB 0
#define XA_FLAGS_LOCK_IRQ 0
#define WQ_UNBOUND 0
#define WQ_MEM_RECLAIM 0
#define DMA_BIT_MASK(n) (~0ULL >> (64 - (n)))

typedef struct { u32 value; } kuid_t;

/* Virtual time in ns. Each turn takes 50 us. */
extern u64 virtual_ns;
/* Starts a thread. */
void start_thread(void (*run)(void *data), void *data);
/* Waits until all others have ended. */
void join_threads(void);

u64 wait_for_completion_timeout(struct completion *completion, unsigned long ms);
bool shim_queue_delayed(struct delayed_work *work, unsigned long ms, bool again);
void shim_flush(struct work_struct *work);

#define ktime_get_mono_fast_ns() virtual_ns
#define jiffies_to_msecs(t) ((unsigned int)(t))
#define cpu_relax() shim_yield()
#define usleep_range(a, b) shim_yield()
#define might_sleep() ((void)0)
#define wake_up(wq) ((void)(wq))
#define wake_up_all(wq) ((void)(wq))
#define init_waitqueue_head(wq) ((void)(wq))
#define wait_event_timeout(wq, condition, ms) ((void)(condition), shim_yield())
#define INIT_DELAYED_WORK(w, f) INIT_WORK(&(w)->work, f)
#define to_delayed_work(w) container_of(w, struct delayed_work, work)
#define queue_delayed_work(wq, w, ms) shim_queue_delayed(w, ms, false)
#define mod_delayed_work(wq, w, ms) shim_queue_delayed(w, ms, true)
#define cancel_delayed_work(w) ((w)->work.queued = false)
#define cancel_delayed_work_sync(w) cancel_work_sync(&(w)->work)
#define disable_delayed_work(w) ((w)->work.disabled++, (w)->work.queued = false)
#define disable_delayed_work_sync(w) disable_work_sync(&(w)->work)
#define enable_delayed_work(w) enable_work(&(w)->work)
#define flush_work(w) shim_flush(w)
#define flush_delayed_work(w) shim_flush(&(w)->work)
#define alloc_workqueue(...) malloc(1)
#define destroy_workqueue(wq) free(wq)
#define flush_workqueue(wq) ((void)(wq))

/* --- PCI ----------------------------------------------------------------- */

struct pci_device_id { u32 vendor, device; };
struct pci_error_handlers {
	void (*reset_prepare)(struct pci_dev *pdev);
	void (*reset_done)(struct pci_dev *pdev);
};
struct dev_pm_ops { int (*suspend)(struct device *dev), (*resume)(struct device *dev); };
struct pci_driver {
	const char *name;
	const struct pci_device_id *id_table;
	int (*probe)(struct pci_dev *pdev, const struct pci_device_id *id);
	void (*remove)(struct pci_dev *pdev);
	void (*shutdown)(struct pci_dev *pdev);
	const struct pci_error_handlers *err_handler;
	struct { const struct dev_pm_ops *pm; } driver;
};
extern struct pci_driver *const driver;
extern void *drvdata;

#define MODULE_AUTHOR(text) _Static_assert(true, text)
#define MODULE_DESCRIPTION(text) _Static_assert(true, text)
#define MODULE_LICENSE(text) _Static_assert(true, text)
#define MODULE_DEVICE_TABLE(bus, table) _Static_assert(true, "")
#define module_pci_driver(d) struct pci_driver *const driver = &(d)
#define DEFINE_SIMPLE_DEV_PM_OPS(name, s, r) const struct dev_pm_ops name = { s, r }
#define pm_sleep_ptr(p) (p)
#define PCI_DEVICE(v, d) (v), (d)
#define pci_set_drvdata(pdev, data) (drvdata = (data))
#define pci_get_drvdata(pdev) drvdata
#define dev_get_drvdata(dev) drvdata
#define pci_enable_device_mem(pdev) 0
#define pci_disable_device(pdev) ((void)(pdev))
#define pci_request_mem_regions(pdev, name) 0
#define pci_release_mem_regions(pdev) ((void)(pdev))
#define pci_set_master(pdev) ((void)(pdev))
#define pci_clear_master(pdev) ((void)(pdev))
#define dma_set_mask_and_coherent(dev, mask) 0
#define dma_set_max_seg_size(dev, size) ((void)(dev))
#define xa_init_flags(xa, flags) memset(xa, 0, sizeof(*(xa)))
#define xa_destroy(xa) ((void)(xa))
#define kzalloc(size, gfp) calloc(1, size)

/* --- registers ----------------------------------------------------------- */

#define lower_32_bits(x) ((u32)(x))
#define upper_32_bits(x) ((u32)((x) >> 32))
#define le16_to_cpup(p) (*(p))
#define cmpxchg64(p, from, to) __sync_val_compare_and_swap(p, from, to)

extern u8 registers[];
extern u8 page[];
u32 readl(const void *address);
void writel(u32 value, void *address);
void writeq(u64 doorbell, void *address);
#define pci_iomap(pdev, bar, size) registers
#define pci_iounmap(pdev, p) ((void)(p))
#define pci_resource_len(pdev, bar) (2 * PAGE_SIZE)
#define pci_resource_start(pdev, bar) 0x1000
#define memremap(at, size, flags) ((void *)page)
#define memunmap(p) ((void)(p))
#define ioremap(at, size) ((void *)page)
#define iounmap(p) ((void)(p))

#endif /* THREADS_H */
