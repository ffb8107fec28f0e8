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
		.max_map_pages = 512, .max_faults = 1024, .max_fast_reg_pages = 2048,
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
	return 0;
}

void faultline_write(struct faultline_dev *dev, u32 reg, u32 value)
{
}

void faultline_doorbell(struct faultline_dev *dev, u8 type, u32 object, u32 value)
{
}

void faultline_cmdq_process(struct faultline_cmdq *q)
{
}

void faultline_odp_fault(struct faultline_dev *dev, const struct faultline_eqe *eqe)
{
}

void faultline_net_link(struct faultline_dev *dev, bool up)
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

/* --- commands ------------------------------------------------------------ */

static int create(struct faultline_dev *dev, u16 opcode, u32 *number)
{
	*number = next_number++;
	return faultline_check_number(dev, opcode, *number);
}

int faultline_cmd_create_eq(struct faultline_dev *dev, const struct faultline_create_eq *params, u32 *eqn)
{
	return create(dev, FAULTLINE_ADMIN_CREATE_EQ, eqn);
}

int faultline_cmd_create_cq(struct faultline_dev *dev, const struct faultline_create_cq *params, u32 *cqn)
{
	return create(dev, FAULTLINE_ADMIN_CREATE_CQ, cqn);
}

int faultline_cmd_create_qp(struct faultline_dev *dev, const struct faultline_create_qp *params, u32 *qpn)
{
	return create(dev, FAULTLINE_ADMIN_CREATE_QP, qpn);
}

int faultline_cmd_create_srq(struct faultline_dev *dev, const struct faultline_create_srq *params, u32 *srqn)
{
	return create(dev, FAULTLINE_ADMIN_CREATE_SRQ, srqn);
}

int faultline_cmd_create_tm_srq(struct faultline_dev *dev, const struct faultline_create_tm_srq *params, u32 *srqn)
{
	return create(dev, FAULTLINE_ADMIN_CREATE_TM_SRQ, srqn);
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

int faultline_cmd_destroy_eq(struct faultline_dev *dev, u32 eqn) { return 0; }
int faultline_cmd_destroy_cq(struct faultline_dev *dev, u32 cqn) { return 0; }
int faultline_cmd_destroy_qp(struct faultline_dev *dev, u32 qpn) { return 0; }
int faultline_cmd_destroy_srq(struct faultline_dev *dev, u32 srqn) { return 0; }
int faultline_cmd_modify_srq(struct faultline_dev *dev, u32 srqn, u32 limit) { return 0; }
int faultline_cmd_modify_cq(struct faultline_dev *dev, u32 cqn, u16 count, u16 period) { return 0; }

int faultline_cmd_modify_qp(struct faultline_dev *dev, u32 qpn, const struct faultline_qp_attr *attr)
{
	return 0;
}

int faultline_cmd_resize_cq(struct faultline_dev *dev, u32 cqn, const struct faultline_resize_cq *params)
{
	return 0;
}

int faultline_cmd_resize_srq(struct faultline_dev *dev, u32 srqn, const struct faultline_resize_srq *params)
{
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "completions"))
		test_completions(strtoull(argv[2], NULL, 0));
	else if (argc == 3 && !strcmp(argv[1], "events"))
		test_events(strtoull(argv[2], NULL, 0));
	else if (argc == 2 && !strcmp(argv[1], "answers"))
		test_answers();
	else if (argc == 2 && !strcmp(argv[1], "rings"))
		test_rings();
	else
		return 2;
	return 0;
}
