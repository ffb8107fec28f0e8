/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the compiled files of the driver call: registers, doorbells and commands
 * of a device that these tests play, and the parts of the driver that are not
 * compiled.
 */
#include "device.h"

char last_message[1024];
u32 next_number;
struct faultline_qp_attr qp_answer;
irqreturn_t (*interrupt[FAULTLINE_EQ_COMP + 1])(int irq, void *data);
void *interrupt_data[FAULTLINE_EQ_COMP + 1];
void (*rung)(u8 type, u32 object, u32 value);
void (*entry_found)(void);
void (*meanwhile)(void);
static struct work_struct *works;
static u64 state;

void seed(u64 value)
{
	state = value * 0x9e3779b97f4a7c15 + 1;
}

u64 random_number(u64 below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

void shim_log(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_message, sizeof(last_message), format, args);
	va_end(args);
}

int shim_request_irq(int irq, irqreturn_t (*handler)(int, void *), void *data)
{
	interrupt[irq - SHIM_FIRST_IRQ] = handler;
	interrupt_data[irq - SHIM_FIRST_IRQ] = data;
	return 0;
}

void good_caps(struct faultline_caps *caps)
{
	*caps = (struct faultline_caps) {
		.page_sizes = 1 << 12 | 1 << 21, .max_mr_size = 1ULL << 62,
		.max_qp = 65536, .max_qp_wr = 32768, .max_sge = 30, .max_inline = 512,
		.max_cq = 65536, .max_cqe = 1 << 22, .max_mkey = 1 << 20, .max_pd = 65536,
		.max_ah = 65536, .max_srq = 65536, .max_srq_wr = 32768, .max_uctx = 1023,
		.max_eq = 64, .max_eqe = 65536, .max_gid = 256, .max_msg_size = 1 << 30,
		.max_rd_atomic = 16, .max_init_rd_atomic = 16, .max_mtu = 9000,
		.max_mac_filter = 64, .max_map_pages = 512, .max_faults = 1024, .max_fast_reg_pages = 2048,
		.max_rwq_ind_table = 64, .max_rwq_ind_table_log_size = 9,
	};
}

void begin(struct faultline_dev *dev)
{
	static struct pci_dev pdev;

	memset(dev, 0, sizeof(*dev));
	dev->pdev = &pdev;
	dev->num_db_pages = 1024;
	good_caps(&dev->caps);
	next_number = 1;
	last_message[0] = 0;
	works = NULL;
	meanwhile = NULL;
	rung = NULL;
	entry_found = NULL;
}

void dma_rmb(void)
{
	if (entry_found)
		entry_found();
}

bool shim_queue_work(struct work_struct *work)
{
	if (work->disabled || work->queued)
		return false;
	work->queued = true;
	work->next = works;
	works = work;
	return true;
}

void cancel_work_sync(struct work_struct *work)
{
	struct work_struct **at;

	for (at = &works; *at; at = &(*at)->next) {
		if (*at != work)
			continue;
		*at = work->next;
		break;
	}
	work->queued = false;
}

bool run_works(void)
{
	struct work_struct *work = works;

	if (!work)
		return false;
	while ((work = works)) {
		works = work->next;
		work->queued = false;
		work->func(work);
	}
	return true;
}

/* Says also whether the message with the value has been printed. */
bool died(struct faultline_dev *dev, const char *message)
{
	return faultline_is_dead(dev) && strstr(last_message, message);
}

/* As the driver does, but all at once: the device does no more DMA. */
void faultline_fail(struct faultline_dev *dev, const char *reason)
{
	dev->flags |= BIT(FAULTLINE_DEAD);
	dev->death_reason = reason;
	complete(&dev->quiesced);
}

void faultline_suspect_reset(struct faultline_dev *dev)
{
}

u32 faultline_read(struct faultline_dev *dev, u32 reg)
{
	return reg == FAULTLINE_REG_STATUS ? FAULTLINE_STATUS_LINK_UP : 0;
}

void faultline_write(struct faultline_dev *dev, u32 reg, u32 value)
{
}

void faultline_doorbell(struct faultline_dev *dev, u8 type, u32 object, u32 value)
{
	if (rung && !faultline_is_dead(dev))
		rung(type, object, value);
}

void faultline_cmdq_process(struct faultline_cmdq *q)
{
}

void faultline_odp_fault(struct faultline_dev *dev, const struct faultline_eqe *eqe)
{
}

void faultline_ib_port_event(struct faultline_dev *dev, bool up)
{
}

enum ib_mtu faultline_active_mtu(struct faultline_dev *dev)
{
	return IB_MTU_4096;
}

void faultline_av_fill(struct faultline_av *av, const struct rdma_ah_attr *attr)
{
}

/* --- address handles, keys, RSS ------------------------------------------ */

void faultline_ah_reference(struct faultline_qp *qp, u32 index, struct faultline_sq_wqe *wqe, struct ib_ah *ibah)
{
}

bool faultline_ah_ready(struct faultline_qp *qp, u32 index)
{
	return true;
}

void faultline_ah_reset(struct faultline_qp *qp)
{
	if (!qp->pending_ahs)
		return;
	qp->sq.producer = 0;
	qp->doorbell_producer = 0;
}

int faultline_fill_reg_mr(struct faultline_reg_mr_wqe *wqe, const struct ib_reg_wr *wr)
{
	return -EINVAL;
}

int faultline_rss_qp_create_hw(struct faultline_dev *dev, struct faultline_qp *qp, const struct ib_qp_init_attr *attr,
			       struct ib_udata *udata, u32 *qpn)
{
	return -EINVAL;
}

/* --- the netdev has one channel ------------------------------------------ */

const struct ethtool_ops faultline_ethtool_ops;

int faultline_net_rss_create(struct faultline_net *net, struct faultline_net_rss *rss)
{
	*rss = (struct faultline_net_rss){ .qpn = net->channels[0].qp_res.num };
	return 0;
}

void faultline_net_rss_destroy(struct faultline_net *net, const struct faultline_net_rss *rss) { }
void faultline_net_rss_reset(struct faultline_net *net) { }
void faultline_net_set_xps(struct faultline_net *net) { }

/* --- commands ------------------------------------------------------------ */

/* What the device knows of the netdev. */
struct netdev_config netdev_config;

/* The answer to a command that returns no number. */
static int answer(struct faultline_dev *dev)
{
	if (meanwhile)
		meanwhile();
	return faultline_is_dead(dev) ? -EIO : 0;
}

static int create(struct faultline_dev *dev, u16 opcode, u32 *number)
{
	int err = answer(dev);

	*number = next_number++;
	return err ?: faultline_check_number(dev, opcode, *number);
}

#define CREATE(name, opcode)									\
	int faultline_cmd_##name(struct faultline_dev *dev, const struct faultline_##name *params, u32 *number)	\
	{											\
		return create(dev, FAULTLINE_ADMIN_##opcode, number);				\
	}
#define ON_OBJECT(name)										\
	int faultline_cmd_##name(struct faultline_dev *dev, u32 number)				\
	{											\
		return answer(dev);								\
	}

CREATE(create_eq, CREATE_EQ)
CREATE(create_cq, CREATE_CQ)
CREATE(create_qp, CREATE_QP)
CREATE(create_srq, CREATE_SRQ)
CREATE(create_tm_srq, CREATE_TM_SRQ)
ON_OBJECT(destroy_eq)
ON_OBJECT(destroy_cq)
ON_OBJECT(destroy_qp)
ON_OBJECT(destroy_srq)
ON_OBJECT(destroy_mkey)
ON_OBJECT(dealloc_pd)

int faultline_cmd_alloc_pd(struct faultline_dev *dev, u32 uctx, u32 *pdn)
{
	return create(dev, FAULTLINE_ADMIN_ALLOC_PD, pdn);
}

int faultline_create_dma_mkey(struct faultline_dev *dev, u32 pdn, u32 access, u32 *key)
{
	return create(dev, FAULTLINE_ADMIN_CREATE_MKEY, key);
}

int faultline_cmd_set_netdev(struct faultline_dev *dev, const struct faultline_set_netdev *params)
{
	netdev_config.flags = params->flags;
	return answer(dev);
}

/* The device reads the list. */
int faultline_cmd_set_mac_filter(struct faultline_dev *dev, dma_addr_t addr, u32 count)
{
	const void *list = (void *)(uintptr_t)(addr - SHIM_DMA_OFFSET);

	CHECK(count <= ARRAY_SIZE(netdev_config.filter));
	memcpy(netdev_config.filter, list, count * sizeof(netdev_config.filter[0]));
	netdev_config.count = count;
	return answer(dev);
}

int faultline_cmd_query_qp(struct faultline_dev *dev, u32 qpn, struct faultline_qp_attr *attr)
{
	*attr = qp_answer;
	return faultline_check_qp_attr(dev, attr);
}

int faultline_cmd_query_srq(struct faultline_dev *dev, u32 srqn, u32 *limit)
{
	*limit = 0;
	return 0;
}

int faultline_cmd_modify_srq(struct faultline_dev *dev, u32 srqn, u32 limit)
{
	return answer(dev);
}

int faultline_cmd_modify_cq(struct faultline_dev *dev, u32 cqn, u16 count, u16 period)
{
	return answer(dev);
}

int faultline_cmd_modify_qp(struct faultline_dev *dev, u32 qpn, const struct faultline_qp_attr *attr)
{
	return answer(dev);
}

int faultline_cmd_resize_cq(struct faultline_dev *dev, u32 cqn, const struct faultline_resize_cq *params)
{
	return answer(dev);
}

int faultline_cmd_resize_srq(struct faultline_dev *dev, u32 srqn, const struct faultline_resize_srq *params)
{
	return answer(dev);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "completions"))
		test_completions(strtoull(argv[2], NULL, 0));
	else if (argc == 3 && !strcmp(argv[1], "events"))
		test_events(strtoull(argv[2], NULL, 0));
	else if (argc == 3 && !strcmp(argv[1], "frames"))
		test_frames(strtoull(argv[2], NULL, 0));
	else if (argc == 2 && !strcmp(argv[1], "teardown"))
		test_teardown();
	else if (argc == 2 && !strcmp(argv[1], "addresses"))
		test_addresses();
	else if (argc == 3 && !strcmp(argv[1], "connections"))
		test_connections(strtoull(argv[2], NULL, 0));
	else if (argc == 2 && !strcmp(argv[1], "answers"))
		test_answers();
	else if (argc == 2 && !strcmp(argv[1], "rings"))
		test_rings();
	else
		return 2;
	return 0;
}
