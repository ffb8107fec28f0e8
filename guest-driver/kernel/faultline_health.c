// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: devlink instance and health reporter
 *
 * The reporter "fatal" reports that the device has stopped: it has a fatal
 * status, its heartbeat is silent, its registers do not answer, or it was
 * reset. An administrator can recover such a device: the driver is unbound and
 * bound again. The driver does not recover a device by itself, because netdev,
 * addresses and RDMA device are new ones afterwards.
 *
 * Locking: faultline_health.lock, taken before the devlink lock, protects
 * `registered` and `reported`: no report is made to an unregistered instance.
 * The operations of the reporter run under the devlink lock and take no other;
 * they end before faultline_health_unregister() returns. So a recovery is only
 * started by its operation.
 */
#include <linux/mutex.h>

#include <net/devlink.h>

#include "faultline.h"

struct faultline_health {
	struct faultline_dev *dev;
	struct devlink_health_reporter *reporter;
	struct mutex lock;
	bool registered;
	bool reported;
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
	faultline_health_eqs(fmsg, dev);
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

	/* Set by faultline_health_report(), for automatic recovery. */
	if (priv_ctx)
		return -EOPNOTSUPP;
	if (!faultline_hw_answers(dev)) {
		NL_SET_ERR_MSG(extack,
			       "The device does not answer: restart the emulator and the virtual machine");
		return -EIO;
	}
	err = faultline_recover(dev);
	if (err == -EBUSY)
		NL_SET_ERR_MSG(extack, "A recovery has been started already");
	return err;
}

static const struct devlink_health_reporter_ops faultline_health_ops = {
	.name = "fatal",
	.recover = faultline_health_recover,
	.dump = faultline_health_dump,
	.diagnose = faultline_health_diagnose,
};

static const struct devlink_ops faultline_devlink_ops = {};

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
	mutex_init(&health->lock);
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
	mutex_destroy(&health->lock);
	devlink_free(dev->devlink);
	dev->devlink = NULL;
}

/* Called once the device is dead; reports it once. Sleeps. */
void faultline_health_report(struct faultline_dev *dev)
{
	struct faultline_health *health;

	/* The device died while it was probed. */
	if (!dev->devlink)
		return;
	health = devlink_priv(dev->devlink);
	mutex_lock(&health->lock);
	if (health->registered && !health->reported) {
		health->reported = true;
		devlink_health_report(health->reporter, dev->death_reason,
				      dev);
	}
	mutex_unlock(&health->lock);
}

void faultline_health_register(struct faultline_dev *dev)
{
	struct faultline_health *health = devlink_priv(dev->devlink);

	devlink_register(dev->devlink);
	mutex_lock(&health->lock);
	health->registered = true;
	mutex_unlock(&health->lock);
	/* If it died before, unregister_work could not report it. */
	if (faultline_is_dead(dev))
		faultline_health_report(dev);
}

void faultline_health_unregister(struct faultline_dev *dev)
{
	struct faultline_health *health = devlink_priv(dev->devlink);

	mutex_lock(&health->lock);
	health->registered = false;
	mutex_unlock(&health->lock);
	devlink_unregister(dev->devlink);
}
