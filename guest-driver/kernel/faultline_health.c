// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: devlink instance and health reporter
 *
 * The reporter "fatal" reports that the device has stopped: it has a fatal
 * status, its heartbeat is silent, its registers do not answer, or it was
 * reset. If the reporter's auto_recover is on, the driver then recovers the
 * device (faultline_recovery.c), and the reporter counts that. An administrator
 * can request one more attempt.
 *
 * Reports are made by recovery_work and by PCI resets. Neither can run before
 * faultline_health_register() has returned, nor while or after
 * faultline_health_unregister() runs: probe enables recovery_work at its end,
 * removal disables it first, and both hold the device's lock. Operations of
 * the instance run under the devlink lock; see faultline_recovery.c.
 */
#include <net/devlink.h>

#include "faultline.h"

struct faultline_health {
	struct faultline_dev *dev;
	struct devlink_health_reporter *reporter;
};

static const char *faultline_fatal_name(u32 code)
{
	switch (code) {
	case FAULTLINE_FATAL_NONE:
		return "none";
	case FAULTLINE_FATAL_BAD_RINGS:
		return "bad rings";
	case FAULTLINE_FATAL_RING_DMA:
		return "ring DMA";
	case FAULTLINE_FATAL_EVENT_QUEUE:
		return "event queue";
	case FAULTLINE_FATAL_INJECTED:
		return "injected";
	default:
		return "unknown";
	}
}

/* Both operations begin with this. */
static void faultline_health_state(struct faultline_dev *dev,
				   struct devlink_fmsg *fmsg)
{
	bool dead = faultline_is_dead(dev);
	const char *cause = READ_ONCE(dev->death_reason);
	u32 status, code, heartbeat;

	if (dead) {
		heartbeat = READ_ONCE(dev->death_heartbeat);
		status = READ_ONCE(dev->death_status);
		code = READ_ONCE(dev->death_code);
	} else {
		heartbeat = le32_to_cpu(READ_ONCE(dev->db->heartbeat));
		status = faultline_read(dev, FAULTLINE_REG_STATUS);
		code = faultline_read(dev, FAULTLINE_REG_FATAL_CODE);
	}
	devlink_fmsg_string_pair_put(fmsg, "state", dead ? "dead" : "running");
	devlink_fmsg_string_pair_put(fmsg, "cause",
				     dead && cause ? cause : "none");
	devlink_fmsg_u32_pair_put(fmsg, "status", status);
	devlink_fmsg_u32_pair_put(fmsg, "fatal_code", code);
	devlink_fmsg_string_pair_put(fmsg, "fatal_name",
				     faultline_fatal_name(code));
	devlink_fmsg_u32_pair_put(fmsg, "heartbeat", heartbeat);
	devlink_fmsg_u32_pair_put(fmsg, "heartbeat_misses",
				  READ_ONCE(dev->heartbeat_misses));
}

static int faultline_health_diagnose(struct devlink_health_reporter *reporter,
				     struct devlink_fmsg *fmsg,
				     struct netlink_ext_ack *extack)
{
	struct faultline_health *health =
		devlink_health_reporter_priv(reporter);
	struct faultline_dev *dev = health->dev;

	faultline_health_state(dev, fmsg);
	devlink_fmsg_u64_pair_put(fmsg, "lost_interrupts",
				  atomic64_read(&dev->lost_interrupts));
	return 0;
}

static void faultline_health_cmdq(struct devlink_fmsg *fmsg,
				  const struct faultline_cmdq *q)
{
	devlink_fmsg_pair_nest_start(fmsg, q->name);
	devlink_fmsg_obj_nest_start(fmsg);
	devlink_fmsg_u32_pair_put(fmsg, "producer", READ_ONCE(q->producer));
	devlink_fmsg_u32_pair_put(fmsg, "consumer", READ_ONCE(q->consumer));
	devlink_fmsg_bool_pair_put(fmsg, "stopped", READ_ONCE(q->stopped));
	devlink_fmsg_obj_nest_end(fmsg);
	devlink_fmsg_pair_nest_end(fmsg);
}

static void faultline_health_eqs(struct devlink_fmsg *fmsg,
				 const struct faultline_dev *dev)
{
	unsigned int i;

	devlink_fmsg_arr_pair_nest_start(fmsg, "event_queues");
	/* Empty when the device is down. The caller holds state_lock. */
	for (i = 0; i < dev->num_eqs; i++) {
		devlink_fmsg_obj_nest_start(fmsg);
		devlink_fmsg_u32_pair_put(fmsg, "vector", dev->eqs[i].vector);
		devlink_fmsg_u32_pair_put(fmsg, "consumer",
					  READ_ONCE(dev->eqs[i].consumer));
		devlink_fmsg_obj_nest_end(fmsg);
	}
	devlink_fmsg_arr_pair_nest_end(fmsg);
}

static int faultline_health_dump(struct devlink_health_reporter *reporter,
				 struct devlink_fmsg *fmsg, void *priv_ctx,
				 struct netlink_ext_ack *extack)
{
	struct faultline_health *health =
		devlink_health_reporter_priv(reporter);
	struct faultline_dev *dev = health->dev;

	/* devlink keeps the first dump: that of a running device is useless. */
	if (!faultline_is_dead(dev)) {
		NL_SET_ERR_MSG(extack, "The device is running: use diagnose");
		return -ENODATA;
	}
	faultline_health_state(dev, fmsg);
	faultline_health_cmdq(fmsg, &dev->admin);
	faultline_health_cmdq(fmsg, &dev->translation);
	devlink_fmsg_u64_pair_put(fmsg, "doorbells_stored",
				  READ_ONCE(dev->death_doorbells_stored));
	devlink_fmsg_u64_pair_put(fmsg, "doorbells_handled",
				  READ_ONCE(dev->death_doorbells_handled));
	/* The queues go while the device is being recovered. */
	if (mutex_trylock(&dev->state_lock)) {
		faultline_health_eqs(fmsg, dev);
		mutex_unlock(&dev->state_lock);
	}
	return 0;
}

static int faultline_health_recover(struct devlink_health_reporter *reporter,
				    void *priv_ctx,
				    struct netlink_ext_ack *extack)
{
	struct faultline_health *health =
		devlink_health_reporter_priv(reporter);
	struct faultline_dev *dev = health->dev;
	int err;

	/*
	 * Set by faultline_health_report(): auto_recover is on. The caller goes
	 * on to recover the device, and reports that.
	 */
	if (priv_ctx) {
		set_bit(FAULTLINE_AUTO_RECOVER, &dev->flags);
		return -EINPROGRESS;
	}
	err = faultline_recover_now(dev);
	if (err == -EBUSY)
		NL_SET_ERR_MSG(extack,
			       "The device is being recovered, reset or suspended");
	else if (err)
		NL_SET_ERR_MSG(extack,
			       "The device does not come back: see the kernel's log");
	else
		/* devlink counts the recovery. */
		clear_bit(FAULTLINE_REPORTED, &dev->flags);
	return err;
}

static const struct devlink_health_reporter_ops faultline_health_ops = {
	.name = "fatal",
	.recover = faultline_health_recover,
	.dump = faultline_health_dump,
	.diagnose = faultline_health_diagnose,
};

static int faultline_reload_down(struct devlink *devlink, bool netns_change,
				 enum devlink_reload_action action,
				 enum devlink_reload_limit limit,
				 struct netlink_ext_ack *extack)
{
	struct faultline_health *health = devlink_priv(devlink);

	if (netns_change) {
		NL_SET_ERR_MSG(extack, "The netdev stays where it is");
		return -EOPNOTSUPP;
	}
	faultline_hold(health->dev, "devlink reload");
	return 0;
}

static int faultline_reload_up(struct devlink *devlink,
			       enum devlink_reload_action action,
			       enum devlink_reload_limit limit,
			       u32 *actions_performed,
			       struct netlink_ext_ack *extack)
{
	struct faultline_health *health = devlink_priv(devlink);

	*actions_performed = BIT(DEVLINK_RELOAD_ACTION_DRIVER_REINIT);
	return faultline_release(health->dev);
}

static int faultline_info_get(struct devlink *devlink,
			      struct devlink_info_req *req,
			      struct netlink_ext_ack *extack)
{
	struct faultline_health *health = devlink_priv(devlink);
	const struct faultline_dev *dev = health->dev;
	char version[32];
	int err;

	faultline_fw_version(dev, version, sizeof(version));
	err = devlink_info_version_running_put(req,
					       DEVLINK_INFO_VERSION_GENERIC_FW,
					       version);
	if (err)
		return err;
	snprintf(version, sizeof(version), "%u.%u", FAULTLINE_ABI_VERSION >> 16,
		 dev->abi_minor);
	return devlink_info_version_running_put(req,
						DEVLINK_INFO_VERSION_GENERIC_FW_MGMT_API,
						version);
}

static const struct devlink_ops faultline_devlink_ops = {
	.info_get = faultline_info_get,
	.reload_actions = BIT(DEVLINK_RELOAD_ACTION_DRIVER_REINIT),
	.reload_down = faultline_reload_down,
	.reload_up = faultline_reload_up,
};

/* Creates the devlink instance; it is not visible yet. */
int faultline_health_create(struct faultline_dev *dev)
{
	struct devlink_health_reporter *reporter;
	struct faultline_health *health;
	struct devlink *devlink;

	devlink = devlink_alloc(&faultline_devlink_ops, sizeof(*health),
				&dev->pdev->dev);
	if (!devlink)
		return -ENOMEM;
	health = devlink_priv(devlink);
	health->dev = dev;
	reporter = faultline_reporter_create(devlink, &faultline_health_ops,
					     health);
	if (IS_ERR(reporter)) {
		devlink_free(devlink);
		return PTR_ERR(reporter);
	}
	health->reporter = reporter;
	dev->devlink = devlink;
	return 0;
}

/* No work of the device runs any more. */
void faultline_health_destroy(struct faultline_dev *dev)
{
	struct faultline_health *health = devlink_priv(dev->devlink);

	devlink_health_reporter_destroy(health->reporter);
	devlink_free(dev->devlink);
	dev->devlink = NULL;
}

/* Reports a failure once. devlink then says whether to recover. Sleeps. */
void faultline_health_report(struct faultline_dev *dev)
{
	struct faultline_health *health = devlink_priv(dev->devlink);

	if (!test_and_clear_bit(FAULTLINE_REPORT_DUE, &dev->flags) ||
	    test_and_set_bit(FAULTLINE_REPORTED, &dev->flags))
		return;
	clear_bit(FAULTLINE_AUTO_RECOVER, &dev->flags);
	/* The dump shows the device as it was stopped. */
	flush_work(&dev->death_work);
	/*
	 * devlink aborts if auto_recover is on, and it has not noted yet that
	 * the last recovery has ended.
	 */
	if (devlink_health_report(health->reporter, dev->death_reason, dev) ==
	    -ECANCELED)
		set_bit(FAULTLINE_AUTO_RECOVER, &dev->flags);
}

/*
 * The driver has given up, perhaps after a reset or suspend that was no
 * failure. devlink does not recover a device that it takes for healthy.
 */
void faultline_health_gave_up(struct faultline_dev *dev)
{
	struct faultline_health *health = devlink_priv(dev->devlink);

	set_bit(FAULTLINE_REPORTED, &dev->flags);
	devlink_health_reporter_state_update(health->reporter,
					     DEVLINK_HEALTH_REPORTER_STATE_ERROR);
}

/* The device is up again. */
void faultline_health_recovered(struct faultline_dev *dev)
{
	struct faultline_health *health = devlink_priv(dev->devlink);

	if (!test_and_clear_bit(FAULTLINE_REPORTED, &dev->flags))
		return;
	devlink_health_reporter_recovery_done(health->reporter);
	devlink_health_reporter_state_update(health->reporter,
					     DEVLINK_HEALTH_REPORTER_STATE_HEALTHY);
}

void faultline_health_register(struct faultline_dev *dev)
{
	devlink_register(dev->devlink);
}

void faultline_health_unregister(struct faultline_dev *dev)
{
	devlink_unregister(dev->devlink);
}
