// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Failure and recovery
 *
 * A device is up (its event queues, netdev queues and RDMA device exist) or
 * down. The netdev and the devlink instance exist from probe to removal.
 * docs/recovery.md describes the states and what consumers see.
 *
 * - faultline_fail(), in any context, declares the device dead: commands and
 *   doorbells have no effect from now on.
 * - death_work stops the device, aborts commands and notifies consumers. It
 *   waits for nothing, since callers of commands wait for it.
 * - recovery_work reports the failure, brings the device down, and up again;
 *   if that fails, once more after a delay, FAULTLINE_ATTEMPTS times.
 * - faultline_hold() brings the device down for a reset or for suspend, and
 *   faultline_release() up again. In between, recovery_work does nothing.
 *
 * Locking: faultline_dev.state_lock serializes up and down. It is taken under
 * the device's lock (by removal, resets and power management) and under the
 * devlink lock (by operations of the instance), and the RTNL lock and those of
 * the RDMA core under it. So recovery_work reports to devlink before it takes
 * state_lock, and takes no device lock: removal waits for it.
 *
 * The flag FAULTLINE_DEAD is cleared only by faultline_up(), when nothing of
 * the last life exists any more: no verbs object (the RDMA device has been
 * unregistered), no netdev operation (the netdev is detached, and
 * faultline_net_stop() has held the RTNL lock), no work item of dev->wq. So no
 * command of one life is waited for in the next.
 */
#include <linux/delay.h>

#include "faultline_odp.h"

/* Attempts to bring a device up before it is given up. */
#define FAULTLINE_ATTEMPTS	8
/* Seconds before the second attempt; doubled for each further one. */
#define FAULTLINE_FIRST_DELAY	1
#define FAULTLINE_LONGEST_DELAY	30

/* No recovery runs during suspend: its workqueue is frozen. */
static void faultline_schedule_recovery(struct faultline_dev *dev)
{
	unsigned int attempts = READ_ONCE(dev->attempts);
	unsigned int seconds = 0;

	if (attempts)
		seconds = min(FAULTLINE_FIRST_DELAY << (attempts - 1),
			      FAULTLINE_LONGEST_DELAY);
	mod_delayed_work(system_freezable_wq, &dev->recovery_work,
			 seconds * HZ);
}

/* Starts to stop the device, in any context. Returns false if it is dead. */
static bool faultline_die(struct faultline_dev *dev, const char *reason,
			  bool report)
{
	if (test_and_set_bit(FAULTLINE_DEAD, &dev->flags))
		return false;
	/* recovery_work must see it. */
	if (report)
		set_bit(FAULTLINE_REPORT_DUE, &dev->flags);
	dev->death_heartbeat = le32_to_cpu(READ_ONCE(dev->db->heartbeat));
	dev->death_doorbells_stored = le64_to_cpu(READ_ONCE(dev->db->producer));
	dev->death_doorbells_handled =
		le64_to_cpu(READ_ONCE(dev->db->consumer));
	WRITE_ONCE(dev->death_reason, reason);
	queue_work(dev->death_wq, &dev->death_work);
	return true;
}

/*
 * Declares the device dead, in any context. Commands fail at once from now on;
 * death_work and recovery_work do the rest.
 */
void faultline_fail(struct faultline_dev *dev, const char *reason)
{
	if (faultline_die(dev, reason, true))
		faultline_err(dev, "device is dead: %s\n", reason);
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

	/* Then wake up consumers that wait for completions or for answers. */
	faultline_ib_death(dev);
	wake_up_all(&dev->lease_answers);

	/* The rest allocates memory and waits for other workqueues. */
	faultline_schedule_recovery(dev);
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
		WRITE_ONCE(dev->heartbeat, heartbeat);
		/* devlink health diagnose reads it at any time. */
		WRITE_ONCE(dev->heartbeat_misses, 0);
		/* The device works again: the next failure is a new one. */
		WRITE_ONCE(dev->attempts, 0);
		return;
	}
	WRITE_ONCE(dev->heartbeat_misses, dev->heartbeat_misses + 1);
	if (dev->heartbeat_misses < FAULTLINE_HEARTBEAT_SUSPECT)
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

/*
 * An interrupt without an event. An emulator that has taken the place of
 * another one raises each interrupt once; its heartbeat begins at zero.
 */
void faultline_suspect_reset(struct faultline_dev *dev)
{
	if (!READ_ONCE(dev->db->heartbeat) && READ_ONCE(dev->heartbeat))
		faultline_fail(dev, "unexpected reset");
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

/*
 * Stops the device for good, and waits until commands in flight have been
 * aborted. A recovery that runs meanwhile fails at its next command: it must
 * not be waited for before, since the device may answer none.
 */
void faultline_quiesce(struct faultline_dev *dev, const char *reason)
{
	/* No recovery begins. */
	disable_delayed_work(&dev->recovery_work);
	/* Before the test of FAULTLINE_DEAD, a full barrier; see up. */
	set_bit(FAULTLINE_STOPPED, &dev->flags);
	faultline_die(dev, reason, false);
	flush_work(&dev->death_work);
	disable_delayed_work_sync(&dev->health_work);
}

/*
 * Stops a device of which no object is used any more, dead or not, and waits
 * for all work of this life.
 */
static void faultline_end_life(struct faultline_dev *dev)
{
	flush_workqueue(dev->wq);
	if (!test_and_set_bit(FAULTLINE_DEAD, &dev->flags)) {
		faultline_hw_stop(dev);
		complete_all(&dev->quiesced);
	}
	flush_work(&dev->death_work);
}

/*
 * Resets the device and creates everything that the driver has in it. The
 * device is down; if this fails, it stays down. The caller holds state_lock.
 */
int faultline_up(struct faultline_dev *dev)
{
	int err;

	err = faultline_hw_start(dev);
	if (err)
		return err;
	WRITE_ONCE(dev->heartbeat, 0);
	WRITE_ONCE(dev->heartbeat_misses, 0);
	reinit_completion(&dev->quiesced);
	clear_bit(FAULTLINE_DEAD, &dev->flags);
	/* Either faultline_quiesce() finds the device alive, or this its flag. */
	smp_mb__after_atomic();
	if (test_bit(FAULTLINE_STOPPED, &dev->flags))
		faultline_die(dev, "stopped", false);

	err = faultline_odp_create(dev);
	if (err)
		goto end_life;
	err = faultline_cm_create(dev);
	if (err)
		goto destroy_odp;
	err = faultline_eqs_create(dev);
	if (err)
		goto destroy_cm;
	err = faultline_counters_create(dev);
	if (err)
		goto destroy_eqs;
	err = dev->net ? faultline_net_start(dev) : faultline_net_create(dev);
	if (err)
		goto destroy_counters;
	err = faultline_addrs_create(dev);
	if (err)
		goto stop_net;
	err = faultline_ib_register(dev);
	if (err)
		goto destroy_addrs;
	WRITE_ONCE(dev->up, true);
	queue_delayed_work(dev->wq, &dev->health_work,
			   FAULTLINE_HEARTBEAT_PERIOD);
	return 0;

destroy_addrs:
	faultline_addrs_destroy(dev);
stop_net:
	faultline_net_stop(dev);
destroy_counters:
	faultline_counters_destroy(dev);
destroy_eqs:
	faultline_eqs_destroy(dev);
destroy_cm:
	faultline_cm_destroy(dev);
destroy_odp:
	faultline_odp_destroy(dev);
end_life:
	faultline_end_life(dev);
	return err;
}

/*
 * Unregisters the RDMA device, stops the netdev, and destroys everything that
 * the driver has in the device, which may be dead. The caller holds state_lock.
 */
void faultline_down(struct faultline_dev *dev)
{
	if (!dev->up)
		return;
	WRITE_ONCE(dev->up, false);
	cancel_delayed_work_sync(&dev->health_work);
	if (faultline_is_dead(dev)) {
		faultline_net_death(dev);
		/* Consumers have been notified. */
		flush_work(&dev->death_work);
		faultline_ib_wait_released(dev);
	}
	faultline_ib_unregister(dev);
	faultline_addrs_destroy(dev);
	faultline_net_stop(dev);
	faultline_counters_destroy(dev);
	faultline_eqs_destroy(dev);
	faultline_cm_destroy(dev);
	faultline_odp_destroy(dev);
	faultline_end_life(dev);
}

static void faultline_give_up(struct faultline_dev *dev)
{
	faultline_err(dev, "not recovered after %u attempts: use devlink health recover, or bind the driver again\n",
		      dev->attempts);
	faultline_health_gave_up(dev);
	/* A failure in the last attempt has scheduled another one. */
	cancel_delayed_work(&dev->recovery_work);
}

/*
 * Brings a dead device down and up again. If that fails, the next attempt is
 * scheduled, unless it was the last one. The caller holds state_lock.
 */
static int faultline_recover(struct faultline_dev *dev)
{
	unsigned long start = jiffies;
	int err;

	faultline_down(dev);
	/* That of a failed attempt; further ones are of the next life. */
	clear_bit(FAULTLINE_REPORT_DUE, &dev->flags);
	/* Zero again when the device has a heartbeat. */
	WRITE_ONCE(dev->attempts, dev->attempts + 1);
	err = faultline_up(dev);
	if (!err) {
		faultline_info(dev, "recovered from \"%s\" in %u ms\n",
			       dev->death_reason,
			       jiffies_to_msecs(jiffies - start));
		return 0;
	}
	faultline_err(dev, "attempt %u to recover failed: %d\n",
		      dev->attempts, err);
	if (dev->attempts >= FAULTLINE_ATTEMPTS)
		faultline_give_up(dev);
	else
		faultline_schedule_recovery(dev);
	return err;
}

static void faultline_recovery_work(struct work_struct *work)
{
	struct faultline_dev *dev = container_of(to_delayed_work(work),
						 struct faultline_dev,
						 recovery_work);

	faultline_health_report(dev);
	mutex_lock(&dev->state_lock);
	if (dev->held || !faultline_is_dead(dev))
		goto unlock;
	if (!test_bit(FAULTLINE_AUTO_RECOVER, &dev->flags)) {
		faultline_down(dev);
	} else if (READ_ONCE(dev->attempts) >= FAULTLINE_ATTEMPTS) {
		/*
		 * It came up each time, and had no heartbeat. health_work may
		 * run until faultline_down(), and it does not take state_lock.
		 */
		faultline_down(dev);
		faultline_give_up(dev);
	} else if (!faultline_recover(dev)) {
		faultline_health_recovered(dev);
	}
unlock:
	mutex_unlock(&dev->state_lock);
}

/*
 * Recovers a dead device by request of the administrator, now; if that fails,
 * attempts begin anew.
 */
int faultline_recover_now(struct faultline_dev *dev)
{
	int err = 0;

	if (!mutex_trylock(&dev->state_lock))
		return -EBUSY;
	if (dev->held) {
		err = -EBUSY;
	} else if (faultline_is_dead(dev)) {
		WRITE_ONCE(dev->attempts, 0);
		err = faultline_recover(dev);
	}
	mutex_unlock(&dev->state_lock);
	return err;
}

/*
 * From now on recovery_work reports only: what the caller is going to report is
 * not changed by a recovery meanwhile. Until faultline_release().
 */
void faultline_forbid_recovery(struct faultline_dev *dev)
{
	mutex_lock(&dev->state_lock);
	dev->held = true;
	mutex_unlock(&dev->state_lock);
}

/* Brings the device down until it is released. */
void faultline_hold(struct faultline_dev *dev, const char *reason)
{
	/* First, or the recovery from this failure brings it up again. */
	faultline_forbid_recovery(dev);
	/* Consumers learn it as they learn of a failure; see down. */
	faultline_die(dev, reason, false);
	mutex_lock(&dev->state_lock);
	faultline_down(dev);
	mutex_unlock(&dev->state_lock);
}

/* Brings a device up that was held. */
int faultline_release(struct faultline_dev *dev)
{
	int err;

	mutex_lock(&dev->state_lock);
	dev->held = false;
	WRITE_ONCE(dev->attempts, 0);
	err = faultline_recover(dev);
	if (!err)
		faultline_health_recovered(dev);
	mutex_unlock(&dev->state_lock);
	return err;
}

/* The same by a work item, once tasks and workqueues are thawed. */
void faultline_release_later(struct faultline_dev *dev)
{
	mutex_lock(&dev->state_lock);
	dev->held = false;
	WRITE_ONCE(dev->attempts, 0);
	set_bit(FAULTLINE_AUTO_RECOVER, &dev->flags);
	mutex_unlock(&dev->state_lock);
	faultline_schedule_recovery(dev);
}

/* The device is down and dead; recovery_work is disabled until probe ends. */
void faultline_recovery_init(struct faultline_dev *dev)
{
	mutex_init(&dev->state_lock);
	init_completion(&dev->quiesced);
	set_bit(FAULTLINE_DEAD, &dev->flags);
	INIT_WORK(&dev->death_work, faultline_death_work);
	INIT_DELAYED_WORK(&dev->health_work, faultline_health_work);
	INIT_DELAYED_WORK(&dev->recovery_work, faultline_recovery_work);
	disable_delayed_work(&dev->recovery_work);
}

/* Called at the end of probe. The device may have died already. */
void faultline_recovery_enable(struct faultline_dev *dev)
{
	enable_delayed_work(&dev->recovery_work);
	if (faultline_is_dead(dev))
		faultline_schedule_recovery(dev);
}

/* Waits for a recovery that runs, and prevents further ones. */
void faultline_recovery_disable(struct faultline_dev *dev)
{
	disable_delayed_work_sync(&dev->recovery_work);
}
