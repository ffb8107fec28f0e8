// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * Values that the device reports: its capabilities, and the answers to
 * commands. They are checked here, once, before other code uses them. Entries
 * of queues are checked where they are read: faultline_cq.c, faultline_eq.c,
 * faultline_txrx.c.
 *
 * The limits are those of the driver and of the kernel, not those of a device:
 * sizes of fields and of allocations, and what shifts can bear.
 */
#include "faultline_cmd.h"

/* One capability: at least `min`, at most `max`. */
struct faultline_limit {
	const char *name;
	u64 value;
	u64 min;
	u64 max;
};

#define FAULTLINE_MAX_OBJECTS	FAULTLINE_DB_OBJECT_MASK
#define FAULTLINE_MAX_DEPTH	BIT(FAULTLINE_MAX_LOG_DEPTH)
#define FAULTLINE_MAX_WQE	BIT(FAULTLINE_MAX_STRIDE_SHIFT)

static int faultline_check_limits(struct faultline_dev *dev,
				  const struct faultline_limit *limits,
				  size_t num)
{
	size_t i;

	for (i = 0; i < num; i++) {
		const struct faultline_limit *limit = &limits[i];

		if (limit->value >= limit->min && limit->value <= limit->max)
			continue;
		faultline_err(dev, "capability %s is %llu, the driver supports %llu to %llu\n",
			      limit->name, limit->value, limit->min,
			      limit->max);
		return -EPROTONOSUPPORT;
	}
	return 0;
}

#define FAULTLINE_LIMIT(caps, name, min, max) \
	{ #name, le32_to_cpu((caps)->name), min, max }

/* Checks the capabilities. Returns an error, and names the capability. */
int faultline_check_caps(struct faultline_dev *dev,
			 const struct faultline_caps *caps)
{
	bool iwarp = le32_to_cpu(caps->features) & FAULTLINE_FEATURE_IWARP;
	const struct faultline_limit limits[] = {
		/* Numbers of objects have 24 bits, and the core's counts 31. */
		FAULTLINE_LIMIT(caps, max_qp, 1, FAULTLINE_MAX_OBJECTS),
		FAULTLINE_LIMIT(caps, max_cq, 1, FAULTLINE_MAX_OBJECTS),
		FAULTLINE_LIMIT(caps, max_srq, 0, FAULTLINE_MAX_OBJECTS),
		FAULTLINE_LIMIT(caps, max_eq, FAULTLINE_EQ_COMP + 1,
				FAULTLINE_MAX_OBJECTS),
		FAULTLINE_LIMIT(caps, max_eqe, BIT(FAULTLINE_EQ_LOG_DEPTH),
				U32_MAX),
		FAULTLINE_LIMIT(caps, max_pd, 1, INT_MAX),
		FAULTLINE_LIMIT(caps, max_ah, 0, INT_MAX),
		FAULTLINE_LIMIT(caps, max_mkey, 1, INT_MAX),
		FAULTLINE_LIMIT(caps, max_mcast_grp, 0, U16_MAX),
		FAULTLINE_LIMIT(caps, max_mcast_qp, 0, S16_MAX),
		/* Rings. */
		FAULTLINE_LIMIT(caps, max_qp_wr, 1, FAULTLINE_MAX_DEPTH),
		FAULTLINE_LIMIT(caps, max_srq_wr, 0, FAULTLINE_MAX_DEPTH),
		FAULTLINE_LIMIT(caps, max_cqe, 1, FAULTLINE_MAX_DEPTH),
		FAULTLINE_LIMIT(caps, max_sge, 1,
				(FAULTLINE_MAX_WQE - FAULTLINE_SQ_WQE_DATA) /
				sizeof(struct faultline_sge)),
		FAULTLINE_LIMIT(caps, max_inline, 0,
				FAULTLINE_MAX_WQE - FAULTLINE_SQ_WQE_DATA),
		/* Lists that the driver allocates. */
		FAULTLINE_LIMIT(caps, max_map_pages, 1, SZ_64K),
		FAULTLINE_LIMIT(caps, max_fast_reg_pages, 0, SZ_64K),
		FAULTLINE_LIMIT(caps, max_faults, 0, SZ_64K),
		FAULTLINE_LIMIT(caps, max_listener, iwarp, SZ_64K),
		FAULTLINE_LIMIT(caps, max_rwq_ind_table, 0, INT_MAX),
		FAULTLINE_LIMIT(caps, max_rwq_ind_table_log_size, 0, 16),
		/* Indices and counts of attributes. */
		FAULTLINE_LIMIT(caps, max_gid, !iwarp, U16_MAX),
		FAULTLINE_LIMIT(caps, max_backlog, iwarp, U16_MAX),
		FAULTLINE_LIMIT(caps, max_rd_atomic, 0, U8_MAX),
		FAULTLINE_LIMIT(caps, max_init_rd_atomic, 0, U8_MAX),
		FAULTLINE_LIMIT(caps, max_msg_size, 1, BIT(31)),
		FAULTLINE_LIMIT(caps, max_mtu, ETH_MIN_MTU, ETH_MAX_MTU),
	};

	if (!(le64_to_cpu(caps->page_sizes) & PAGE_SIZE)) {
		faultline_err(dev, "capability page_sizes is %#llx, without pages of %lu bytes\n",
			      le64_to_cpu(caps->page_sizes), PAGE_SIZE);
		return -EPROTONOSUPPORT;
	}
	return faultline_check_limits(dev, limits, ARRAY_SIZE(limits));
}

/* The greatest number that an object can have which the command creates. */
static u32 faultline_max_number(const struct faultline_dev *dev, u16 opcode)
{
	switch (opcode) {
	case FAULTLINE_ADMIN_ALLOC_UCTX:
		return dev->num_db_pages - 1;
	case FAULTLINE_ADMIN_CREATE_EQ:
	case FAULTLINE_ADMIN_CREATE_CQ:
	case FAULTLINE_ADMIN_CREATE_SRQ:
	case FAULTLINE_ADMIN_CREATE_TM_SRQ:
	case FAULTLINE_ADMIN_CREATE_QP:
	case FAULTLINE_ADMIN_CREATE_RSS_QP:
	case FAULTLINE_ADMIN_CREATE_WQ:
		/* In doorbells; those of QPs and SRQs are in packets, too. */
		return FAULTLINE_DB_OBJECT_MASK;
	default:
		return U32_MAX;
	}
}

/*
 * Checks the number of a new object. Those of completion queues, queue pairs
 * and SRQs must also be unused: see faultline_res_add().
 */
int faultline_check_number(struct faultline_dev *dev, u16 opcode, u32 number)
{
	u32 max = faultline_max_number(dev, opcode);
	/* Doorbell page 0 belongs to the kernel. */
	u32 min = opcode == FAULTLINE_ADMIN_ALLOC_UCTX ? 1 : 0;

	if (number >= min && number <= max)
		return 0;
	faultline_err(dev, "command %#x: the device answers %#x, the driver expects %#x to %#x\n",
		      opcode, number, min, max);
	faultline_fail(dev, "invalid number of an object");
	return -EIO;
}

/* Checks the answer of QUERY_QP. */
int faultline_check_qp_attr(struct faultline_dev *dev,
			    const struct faultline_qp_attr *attr)
{
	/* The MTU is not set before RTR. */
	if (attr->state <= FAULTLINE_QPS_ERR && attr->path_mtu <= IB_MTU_4096)
		return 0;
	faultline_err(dev, "QUERY_QP: state %u, path MTU %u\n", attr->state,
		      attr->path_mtu);
	faultline_fail(dev, "invalid attributes of a QP");
	return -EIO;
}

/*
 * Checks the answer of QUERY_REQUEST and QUERY_CONNECTION. The peer may have
 * sent more private data than the command has asked for.
 */
int faultline_check_connection(struct faultline_dev *dev,
			       const struct faultline_connection_info *info)
{
	u16 len = le16_to_cpu(info->param.private_len);

	if (len <= FAULTLINE_MAX_PRIVATE_DATA &&
	    info->close_reason <= FAULTLINE_CLOSE_ABORTED)
		return 0;
	faultline_err(dev, "connection: %u bytes of private data, reason %u\n",
		      len, info->close_reason);
	faultline_fail(dev, "invalid properties of a connection");
	return -EIO;
}
