// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Probe and removal of the driver, and failure of the device. */
#include <linux/dma-mapping.h>
#include <linux/module.h>

#include "faultline_odp.h"

MODULE_AUTHOR("The Faultline authors");
MODULE_DESCRIPTION("Faultline RDMA NIC");
MODULE_LICENSE("Dual BSD/GPL");

/*
 * Declares the device dead, in any context. Commands fail at once from now on;
 * faultline_death_work() does the rest.
 */
void faultline_fail(struct faultline_dev *dev, const char *reason)
{
	if (test_and_set_bit(FAULTLINE_DEAD, &dev->flags))
		return;
	dev->death_heartbeat = le32_to_cpu(READ_ONCE(dev->db->heartbeat));
	dev->death_doorbells_stored = le64_to_cpu(READ_ONCE(dev->db->producer));
	dev->death_doorbells_handled =
		le64_to_cpu(READ_ONCE(dev->db->consumer));
	WRITE_ONCE(dev->death_reason, reason);
	faultline_err(dev, "device is dead: %s\n", reason);
	queue_work(dev->death_wq, &dev->death_work);
}

static void faultline_death_work(struct work_struct *work)
{
	struct faultline_dev *dev =
		container_of(work, struct faultline_dev, death_work);

	/* The reset clears both. */
	if (faultline_hw_answers(dev)) {
		dev->death_status = faultline_read(dev, FAULTLINE_REG_STATUS);
		dev->death_code = faultline_read(dev, FAULTLINE_REG_FATAL_CODE);
	}
	/* End all DMA first: callers that free buffers wait for it. */
	faultline_hw_stop(dev);
	complete_all(&dev->quiesced);
	faultline_cmdq_abort(&dev->admin);
	faultline_cmdq_abort(&dev->translation);

	/* Then wake up consumers that wait for completions. */
	faultline_ib_death(dev);

	/* The rest allocates memory and waits for other workqueues. */
	queue_work(FAULTLINE_UNBOUND_WQ, &dev->unregister_work);
}

/* Unregisters a dead device from the network stack and the RDMA core. */
static void faultline_unregister_work(struct work_struct *work)
{
	struct faultline_dev *dev =
		container_of(work, struct faultline_dev, unregister_work);

	faultline_health_report(dev);
	faultline_net_death(dev);
	/*
	 * User contexts are disassociated: their verbs fail, and their
	 * doorbell mappings are replaced by memory that has no effect.
	 */
	faultline_ib_unregister(dev);
}

/* Waits for work items that send commands or handle a device failure. */
static void faultline_flush_works(struct faultline_dev *dev)
{
	flush_workqueue(dev->wq);
	flush_work(&dev->death_work);
	flush_work(&dev->unregister_work);
}

/*
 * A running device increments a heartbeat in memory. Registers are read only if
 * the heartbeat stops: QEMU waits for the emulator's answer under a lock that
 * stops all processors of the guest.
 */
static void faultline_check_health(struct faultline_dev *dev)
{
	u32 heartbeat = le32_to_cpu(READ_ONCE(dev->db->heartbeat));
	u32 status;

	if (heartbeat != dev->heartbeat) {
		dev->heartbeat = heartbeat;
		dev->heartbeat_misses = 0;
		return;
	}
	if (++dev->heartbeat_misses < FAULTLINE_HEARTBEAT_SUSPECT)
		return;
	if (!faultline_hw_answers(dev)) {
		faultline_fail(dev, "registers do not answer");
		return;
	}
	status = faultline_read(dev, FAULTLINE_REG_STATUS);
	if (status & FAULTLINE_STATUS_FATAL) {
		faultline_err(dev, "fatal code %u\n",
			      faultline_read(dev, FAULTLINE_REG_FATAL_CODE));
		faultline_fail(dev, "fatal status");
	} else if (!(status & FAULTLINE_STATUS_ENABLED)) {
		faultline_fail(dev, "unexpected reset");
	} else if (dev->heartbeat_misses >= FAULTLINE_HEARTBEAT_MISSES) {
		faultline_fail(dev, "no heartbeat");
	}
}

static void faultline_health_work(struct work_struct *work)
{
	struct faultline_dev *dev = container_of(to_delayed_work(work),
						 struct faultline_dev,
						 health_work);

	faultline_check_health(dev);
	if (faultline_is_dead(dev))
		return;
	faultline_eqs_check_lost(dev);
	queue_delayed_work(dev->wq, &dev->health_work,
			   FAULTLINE_HEARTBEAT_PERIOD);
}

static int faultline_init_software(struct faultline_dev *dev,
				   struct pci_dev *pdev)
{
	dev->pdev = pdev;
	mutex_init(&dev->ib_lock);
	mutex_init(&dev->net_lock);
	spin_lock_init(&dev->ib_event_lock);
	spin_lock_init(&dev->clock_lock);
	mutex_init(&dev->counters_lock);
	init_completion(&dev->quiesced);
	xa_init_flags(&dev->cqs, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->qps, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->srqs, XA_FLAGS_LOCK_IRQ);
	INIT_WORK(&dev->death_work, faultline_death_work);
	INIT_WORK(&dev->unregister_work, faultline_unregister_work);
	INIT_DELAYED_WORK(&dev->health_work, faultline_health_work);
	spin_lock_init(&dev->ah_lock);
	INIT_LIST_HEAD(&dev->ah_todo);
	INIT_LIST_HEAD(&dev->ah_waiters);
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

	dev = ib_alloc_device(faultline_dev, ibdev);
	if (!dev)
		return -ENOMEM;
	err = faultline_init_software(dev, pdev);
	if (err)
		goto dealloc;
	err = faultline_init_pci(pdev);
	if (err)
		goto cleanup_software;
	err = faultline_hw_init(dev);
	if (err)
		goto cleanup_pci;
	err = faultline_odp_create(dev);
	if (err)
		goto cleanup_hw;
	err = faultline_eqs_create(dev);
	if (err)
		goto destroy_odp;
	err = faultline_counters_create(dev);
	if (err)
		goto destroy_eqs;
	err = faultline_health_create(dev);
	if (err)
		goto destroy_counters;
	err = faultline_net_create(dev);
	if (err)
		goto destroy_health;
	err = faultline_ib_register(dev);
	if (err)
		goto destroy_net;
	pci_set_drvdata(pdev, dev);
	faultline_health_register(dev);
	queue_delayed_work(dev->wq, &dev->health_work,
			   FAULTLINE_HEARTBEAT_PERIOD);
	return 0;

destroy_net:
	faultline_net_destroy(dev);
destroy_health:
	/* The work of a dead device uses it. */
	faultline_flush_works(dev);
	faultline_health_destroy(dev);
destroy_counters:
	faultline_counters_destroy(dev);
destroy_eqs:
	faultline_eqs_destroy(dev);
destroy_odp:
	faultline_odp_destroy(dev);
cleanup_hw:
	faultline_flush_works(dev);
	faultline_hw_cleanup(dev);
cleanup_pci:
	faultline_cleanup_pci(pdev);
cleanup_software:
	faultline_cleanup_software(dev);
dealloc:
	ib_dealloc_device(&dev->ibdev);
	return err;
}

/*
 * Also called for a dead device, and for an unplugged one: its registers do
 * not answer, so commands fail.
 */
static void faultline_remove(struct pci_dev *pdev)
{
	struct faultline_dev *dev = pci_get_drvdata(pdev);

	if (!faultline_hw_answers(dev))
		faultline_fail(dev, "removed");
	cancel_delayed_work_sync(&dev->health_work);
	faultline_health_unregister(dev);
	faultline_ib_unregister(dev);
	faultline_net_destroy(dev);
	faultline_counters_destroy(dev);
	faultline_eqs_destroy(dev);
	faultline_odp_destroy(dev);
	faultline_flush_works(dev);
	faultline_health_destroy(dev);
	faultline_hw_cleanup(dev);
	faultline_cleanup_pci(pdev);
	faultline_cleanup_software(dev);
	ib_dealloc_device(&dev->ibdev);
}

/* A dead device that is to be removed and probed again. */
struct faultline_recovery {
	struct work_struct work;
	struct pci_dev *pdev;
	/* Only compared: it may have been removed. */
	struct faultline_dev *dev;
};

static struct workqueue_struct *faultline_recovery_wq;

static void faultline_recovery_work(struct work_struct *work)
{
	struct faultline_recovery *recovery =
		container_of(work, struct faultline_recovery, work);
	struct pci_dev *pdev = recovery->pdev;
	int err;

	/* Another task may have unbound the driver in the meantime. */
	if (pci_get_drvdata(pdev) == recovery->dev) {
		err = device_reprobe(&pdev->dev);
		if (err)
			pci_err(pdev, "recovery: probing failed: %d\n", err);
	}
	pci_dev_put(pdev);
	kfree(recovery);
}

/*
 * Starts the recovery of a dead device: a work item unbinds the driver and
 * binds it again. This ends the devlink instance, so it can't be done in an
 * operation of the instance. Consumers have received the fatal event before,
 * and their objects are gone: the device is a new one to them.
 */
int faultline_recover(struct faultline_dev *dev)
{
	struct faultline_recovery *recovery;

	recovery = kzalloc(sizeof(*recovery), GFP_KERNEL);
	if (!recovery)
		return -ENOMEM;
	if (test_and_set_bit(FAULTLINE_RECOVERING, &dev->flags)) {
		kfree(recovery);
		return -EBUSY;
	}
	INIT_WORK(&recovery->work, faultline_recovery_work);
	recovery->pdev = pci_dev_get(dev->pdev);
	recovery->dev = dev;
	queue_work(faultline_recovery_wq, &recovery->work);
	return 0;
}

static void faultline_shutdown(struct pci_dev *pdev)
{
	faultline_hw_stop(pci_get_drvdata(pdev));
}

/* A function level reset destroys all objects of the device. */
static void faultline_reset_prepare(struct pci_dev *pdev)
{
	struct faultline_dev *dev = pci_get_drvdata(pdev);

	if (dev)
		faultline_fail(dev, "function level reset");
}

static const struct pci_error_handlers faultline_err_handlers = {
	.reset_prepare = faultline_reset_prepare,
};

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
};

static int __init faultline_init(void)
{
	int err;

	faultline_recovery_wq = alloc_workqueue("%s-recovery", WQ_UNBOUND, 0,
						FAULTLINE_DRV_NAME);
	if (!faultline_recovery_wq)
		return -ENOMEM;
	err = pci_register_driver(&faultline_driver);
	if (err)
		destroy_workqueue(faultline_recovery_wq);
	return err;
}
module_init(faultline_init);

static void __exit faultline_exit(void)
{
	/* No device remains that could start a recovery. */
	pci_unregister_driver(&faultline_driver);
	destroy_workqueue(faultline_recovery_wq);
}
module_exit(faultline_exit);
