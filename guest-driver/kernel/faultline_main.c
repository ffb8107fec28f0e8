// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: PCI driver
 *
 * Probe, removal, resets and power management.
 *
 * Locking: all functions run in process context, and the cores call them with
 * the lock of the device held, so no two of them run at the same time.
 * faultline_dev.state_lock is taken under it: here by probe and removal, and in
 * faultline_recovery.c for resets and power management. Removal, shutdown and
 * resets wait for recovery_work. They do not hold state_lock then, since
 * recovery_work takes it.
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/pm.h>

#include "faultline_odp.h"

MODULE_AUTHOR("The Faultline authors");
MODULE_DESCRIPTION("Faultline RDMA NIC");
MODULE_LICENSE("Dual BSD/GPL");

static int faultline_init_software(struct faultline_dev *dev,
				   struct pci_dev *pdev)
{
	dev->pdev = pdev;
	faultline_recovery_init(dev);
	spin_lock_init(&dev->ib_event_lock);
	spin_lock_init(&dev->clock_lock);
	mutex_init(&dev->counters_lock);
	xa_init_flags(&dev->cqs, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->qps, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->srqs, XA_FLAGS_LOCK_IRQ);
	spin_lock_init(&dev->ah_lock);
	INIT_LIST_HEAD(&dev->ah_todo);
	INIT_LIST_HEAD(&dev->ah_waiters);
	init_waitqueue_head(&dev->lease_answers);
	INIT_WORK(&dev->ah_work, faultline_ah_work);
	/* WQ_MEM_RECLAIM: memory may be swapped through the device. */
	dev->wq = alloc_workqueue("%s-%s", WQ_UNBOUND | WQ_MEM_RECLAIM, 0,
				  FAULTLINE_DRV_NAME, pci_name(pdev));
	if (!dev->wq)
		return -ENOMEM;
	/*
	 * A separate workqueue: commands in work items of dev->wq wait until a
	 * device that does not answer has been declared dead.
	 */
	dev->death_wq = alloc_workqueue("%s-death-%s",
					WQ_UNBOUND | WQ_MEM_RECLAIM, 0,
					FAULTLINE_DRV_NAME, pci_name(pdev));
	if (!dev->death_wq) {
		destroy_workqueue(dev->wq);
		return -ENOMEM;
	}
	return 0;
}

static void faultline_cleanup_software(struct faultline_dev *dev)
{
	destroy_workqueue(dev->death_wq);
	destroy_workqueue(dev->wq);
	xa_destroy(&dev->srqs);
	xa_destroy(&dev->qps);
	xa_destroy(&dev->cqs);
}

static int faultline_init_pci(struct pci_dev *pdev)
{
	int err;

	err = pci_enable_device_mem(pdev);
	if (err)
		return err;
	err = pci_request_mem_regions(pdev, FAULTLINE_DRV_NAME);
	if (err)
		goto disable;
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		goto release;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	return 0;

release:
	pci_release_mem_regions(pdev);
disable:
	pci_disable_device(pdev);
	return err;
}

static void faultline_cleanup_pci(struct pci_dev *pdev)
{
	pci_release_mem_regions(pdev);
	pci_disable_device(pdev);
}

static int faultline_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct faultline_dev *dev;
	int err;

	dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		return -ENOMEM;
	err = faultline_init_software(dev, pdev);
	if (err)
		goto free_dev;
	err = faultline_init_pci(pdev);
	if (err)
		goto cleanup_software;
	err = faultline_hw_init(dev);
	if (err)
		goto cleanup_pci;
	err = faultline_health_create(dev);
	if (err)
		goto cleanup_hw;
	mutex_lock(&dev->state_lock);
	err = faultline_up(dev);
	mutex_unlock(&dev->state_lock);
	if (err)
		goto destroy_health;
	pci_set_drvdata(pdev, dev);
	faultline_health_register(dev);
	faultline_recovery_enable(dev);
	return 0;

destroy_health:
	if (dev->net)
		faultline_net_destroy(dev);
	faultline_health_destroy(dev);
cleanup_hw:
	faultline_hw_cleanup(dev);
cleanup_pci:
	faultline_cleanup_pci(pdev);
cleanup_software:
	faultline_cleanup_software(dev);
free_dev:
	kfree(dev);
	return err;
}

/*
 * Also called for a dead device, at any moment of its recovery, and for an
 * unplugged one: its registers do not answer, so commands fail.
 */
static void faultline_remove(struct pci_dev *pdev)
{
	struct faultline_dev *dev = pci_get_drvdata(pdev);

	faultline_recovery_disable(dev);
	faultline_health_unregister(dev);
	mutex_lock(&dev->state_lock);
	if (dev->up && !faultline_hw_answers(dev))
		faultline_fail(dev, "removed");
	faultline_down(dev);
	mutex_unlock(&dev->state_lock);
	faultline_net_destroy(dev);
	faultline_health_destroy(dev);
	faultline_hw_cleanup(dev);
	faultline_cleanup_pci(pdev);
	faultline_cleanup_software(dev);
	kfree(dev);
}

static void faultline_shutdown(struct pci_dev *pdev)
{
	struct faultline_dev *dev = pci_get_drvdata(pdev);

	/* Commands that wait, also those of a recovery, fail at once. */
	faultline_quiesce(dev, "shutdown");
	faultline_recovery_disable(dev);
}

/* A function-level reset destroys all objects of the device. */
static void faultline_reset_prepare(struct pci_dev *pdev)
{
	struct faultline_dev *dev = pci_get_drvdata(pdev);

	if (!dev)
		return;
	faultline_forbid_recovery(dev);
	faultline_fail(dev, "function level reset");
	faultline_health_report(dev);
	/* It may be the one that reports what exists until the next line. */
	flush_delayed_work(&dev->recovery_work);
	faultline_hold(dev, "function level reset");
}

static void faultline_reset_done(struct pci_dev *pdev)
{
	struct faultline_dev *dev = pci_get_drvdata(pdev);

	if (dev)
		faultline_release(dev);
}

static const struct pci_error_handlers faultline_err_handlers = {
	.reset_prepare = faultline_reset_prepare,
	.reset_done = faultline_reset_done,
};

/*
 * The device loses its state in S3, and the emulator does if the guest is
 * restored from an image. Consumers lose their connections, as they do if the
 * device fails, but no failure is reported.
 */
static int faultline_suspend(struct device *device)
{
	faultline_hold(dev_get_drvdata(device), "suspend");
	return 0;
}

static int faultline_resume(struct device *device)
{
	/* No RDMA device can be added while its parent is being resumed. */
	faultline_release_later(dev_get_drvdata(device));
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(faultline_pm_ops, faultline_suspend,
				faultline_resume);

static const struct pci_device_id faultline_ids[] = {
	{ PCI_DEVICE(FAULTLINE_PCI_VENDOR, FAULTLINE_PCI_DEVICE) },
	{}
};
MODULE_DEVICE_TABLE(pci, faultline_ids);

static struct pci_driver faultline_driver = {
	.name = FAULTLINE_DRV_NAME,
	.id_table = faultline_ids,
	.probe = faultline_probe,
	.remove = faultline_remove,
	.shutdown = faultline_shutdown,
	.err_handler = &faultline_err_handlers,
	.driver.pm = pm_sleep_ptr(&faultline_pm_ops),
};

module_pci_driver(faultline_driver);
