// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Receive buffers of one interface can't be allocated while this module says so,
 * for tests. Kernels of distributions have no fault injection; a return probe
 * takes the buffer away instead.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/skbuff.h>

static char *netdev;
module_param(netdev, charp, 0444);
MODULE_PARM_DESC(netdev, "Interface that gets no buffers");

static bool fail;
module_param(fail, bool, 0644);
MODULE_PARM_DESC(fail, "Whether allocations fail");

static atomic_t failed;

static int failed_get(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%d\n", atomic_read(&failed));
}

static const struct kernel_param_ops failed_ops = { .get = failed_get };
module_param_cb(failed, &failed_ops, NULL, 0444);
MODULE_PARM_DESC(failed, "How many allocations have failed");

#ifdef CONFIG_KRETPROBES
/* Only compared: the interface may go. */
static struct net_device *starved;

/* Nonzero: the return is not of interest. */
static int entered(struct kretprobe_instance *probe, struct pt_regs *regs)
{
	return !READ_ONCE(fail) ||
	       regs_get_kernel_argument(regs, 0) != (unsigned long)starved;
}
NOKPROBE_SYMBOL(entered);

static int returned(struct kretprobe_instance *probe, struct pt_regs *regs)
{
	struct sk_buff *skb = (struct sk_buff *)regs_return_value(regs);

	if (skb)
		dev_kfree_skb_any(skb);
	regs_set_return_value(regs, 0);
	atomic_inc(&failed);
	return 0;
}
NOKPROBE_SYMBOL(returned);

static struct kretprobe probe = {
	.kp.symbol_name = "__netdev_alloc_skb",
	.entry_handler = entered,
	.handler = returned,
	.maxactive = 64,
};

static int __init failing_receive_init(void)
{
	struct net_device *ndev;

	ndev = netdev ? dev_get_by_name(&init_net, netdev) : NULL;
	if (!ndev)
		return -EINVAL;
	starved = ndev;
	dev_put(ndev);
	return register_kretprobe(&probe);
}

static void __exit failing_receive_exit(void)
{
	unregister_kretprobe(&probe);
	if (probe.nmissed)
		pr_warn("%d returns were missed\n", probe.nmissed);
}
#else
static int __init failing_receive_init(void)
{
	return -EOPNOTSUPP;
}

static void __exit failing_receive_exit(void)
{
}
#endif

module_init(failing_receive_init);
module_exit(failing_receive_exit);
MODULE_DESCRIPTION("Receive buffers that can't be allocated, for tests");
MODULE_AUTHOR("The Faultline authors");
MODULE_LICENSE("Dual BSD/GPL");
