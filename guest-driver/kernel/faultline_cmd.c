// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* One typed function per command; see faultline_cmd.h. */
#include <linux/cred.h>
#include <linux/sched.h>

#include "faultline_trace.h"

/* Maps the status of a command to an errno. */
static int faultline_status_errno(u16 status)
{
	switch (status) {
	case FAULTLINE_OK:
		return 0;
	case FAULTLINE_NO_RESOURCES:
	case FAULTLINE_NO_DEVICE_MEMORY:
		return -ENOMEM;
	case FAULTLINE_IN_USE:
	case FAULTLINE_CQ_NOT_EMPTY:
		return -EBUSY;
	case FAULTLINE_BAD_OPCODE:
	case FAULTLINE_NOT_SUPPORTED:
	case FAULTLINE_BAD_QP_TYPE:
		return -EOPNOTSUPP;
	case FAULTLINE_DMA_ERROR:
		return -EFAULT;
	case FAULTLINE_BAD_TOKEN:
		return -ENOENT;
	case FAULTLINE_BAD_GID:
		return -ENODEV;
	case FAULTLINE_BAD_REQUEST:
	case FAULTLINE_REQUEST_GONE:
		return -ECONNRESET;
	case FAULTLINE_ADDRESS_IN_USE:
		return -EADDRINUSE;
	case FAULTLINE_BAD_ADDRESS:
		return -EADDRNOTAVAIL;
	default:
		return -EINVAL;
	}
}

static int faultline_admin(struct faultline_dev *dev, u16 opcode, u32 handle,
			   const void *body, size_t body_size, u32 *answer,
			   void *answer_body, size_t answer_size,
			   enum faultline_wait wait)
{
	struct faultline_admin_cmd cmd = {};
	struct faultline_admin_comp comp;
	u16 status;
	int err;

	cmd.hdr.opcode = cpu_to_le16(opcode);
	cmd.hdr.handle = cpu_to_le32(handle);
	if (body_size)
		memcpy(cmd.body, body, body_size);
	err = faultline_cmdq_exec(&dev->admin, &cmd, &comp, wait);
	if (err)
		return err;
	status = le16_to_cpu(comp.status);
	if (status) {
		dev_dbg(&dev->pdev->dev,
			"admin command %#x on %#x: status %u\n", opcode,
			handle, status);
		return faultline_status_errno(status);
	}
	if (answer) {
		*answer = le32_to_cpu(comp.handle);
		err = faultline_check_number(dev, opcode, *answer);
		if (err)
			return err;
	}
	if (answer_size)
		memcpy(answer_body, comp.body, answer_size);
	return 0;
}

/* A command that creates an object and returns its number in `handle`. */
#define faultline_create(dev, opcode, params, handle)			\
	({								\
		BUILD_BUG_ON(sizeof(*(params)) >			\
			     sizeof_field(struct faultline_admin_cmd, body)); \
		faultline_admin(dev, opcode, 0, params,			\
				sizeof(*(params)), handle, NULL, 0,	\
				FAULTLINE_WAIT_SLEEP);			\
	})

/* A command on an object, which returns only a status. */
#define faultline_change(dev, opcode, handle, params)			\
	({								\
		BUILD_BUG_ON(sizeof(*(params)) >			\
			     sizeof_field(struct faultline_admin_cmd, body)); \
		faultline_admin(dev, opcode, handle, params,		\
				sizeof(*(params)), NULL, NULL, 0,	\
				FAULTLINE_WAIT_SLEEP);			\
	})

/* A command without parameters. */
static int faultline_plain(struct faultline_dev *dev, u16 opcode, u32 handle,
			   u32 *answer)
{
	return faultline_admin(dev, opcode, handle, NULL, 0, answer, NULL, 0,
			       FAULTLINE_WAIT_SLEEP);
}

/* Names the calling process and its user to the device, if it knows these. */
int faultline_cmd_alloc_uctx(struct faultline_dev *dev, u32 *uctx)
{
	struct faultline_alloc_uctx params = {};

	if (dev->abi_minor >= FAULTLINE_ABI_MINOR_TOLD) {
		params.pid = cpu_to_le32(task_tgid_nr(current));
		BUILD_BUG_ON(sizeof(params.comm) < TASK_COMM_LEN);
		get_task_comm(params.comm, current->group_leader);
	}
	/* No user has the highest number, so none becomes 0. */
	if (dev->abi_minor >= FAULTLINE_ABI_MINOR_USER)
		params.user = cpu_to_le32(from_kuid(&init_user_ns,
						    current_uid()) + 1);
	return faultline_create(dev, FAULTLINE_ADMIN_ALLOC_UCTX, &params, uctx);
}

int faultline_cmd_dealloc_uctx(struct faultline_dev *dev, u32 uctx)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DEALLOC_UCTX, uctx, NULL);
}

int faultline_cmd_create_eq(struct faultline_dev *dev,
			    const struct faultline_create_eq *params, u32 *eqn)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_EQ, params, eqn);
}

int faultline_cmd_destroy_eq(struct faultline_dev *dev, u32 eqn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_EQ, eqn, NULL);
}

int faultline_cmd_alloc_pd(struct faultline_dev *dev, u32 uctx, u32 *pdn)
{
	const struct faultline_alloc_pd params = { .uctx = cpu_to_le32(uctx) };

	return faultline_create(dev, FAULTLINE_ADMIN_ALLOC_PD, &params, pdn);
}

int faultline_cmd_dealloc_pd(struct faultline_dev *dev, u32 pdn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DEALLOC_PD, pdn, NULL);
}

int faultline_cmd_alloc_xrcd(struct faultline_dev *dev, u32 *xrcdn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_ALLOC_XRCD, 0, xrcdn);
}

int faultline_cmd_dealloc_xrcd(struct faultline_dev *dev, u32 xrcdn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DEALLOC_XRCD, xrcdn, NULL);
}

int faultline_cmd_create_mkey(struct faultline_dev *dev,
			      const struct faultline_create_mkey *params,
			      u32 *key)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_MKEY, params, key);
}

int faultline_cmd_modify_mkey(struct faultline_dev *dev, u32 key,
			      const struct faultline_create_mkey *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_MODIFY_MKEY, key, params);
}

int faultline_cmd_destroy_mkey(struct faultline_dev *dev, u32 key)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_MKEY, key, NULL);
}

int faultline_cmd_alloc_dm(struct faultline_dev *dev, u64 length, u32 *dm,
			   struct faultline_dm_place *place)
{
	struct faultline_alloc_dm params = { .length = cpu_to_le64(length) };

	return faultline_admin(dev, FAULTLINE_ADMIN_ALLOC_DM, 0, &params,
			       sizeof(params), dm, place, sizeof(*place),
			       FAULTLINE_WAIT_SLEEP);
}

int faultline_cmd_dealloc_dm(struct faultline_dev *dev, u32 dm)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DEALLOC_DM, dm, NULL);
}

int faultline_cmd_create_dm_mkey(struct faultline_dev *dev,
				 const struct faultline_create_dm_mkey *params,
				 u32 *key)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_DM_MKEY, params,
				key);
}

int faultline_cmd_create_cq(struct faultline_dev *dev,
			    const struct faultline_create_cq *params, u32 *cqn)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_CQ, params, cqn);
}

int faultline_cmd_resize_cq(struct faultline_dev *dev, u32 cqn,
			    const struct faultline_resize_cq *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_RESIZE_CQ, cqn, params);
}

/* Sets moderation: events after `count` completions or `period` us. */
int faultline_cmd_modify_cq(struct faultline_dev *dev, u32 cqn, u16 count,
			    u16 period)
{
	struct faultline_modify_cq params = {
		.count = cpu_to_le16(count),
		.period = cpu_to_le16(period),
	};

	return faultline_change(dev, FAULTLINE_ADMIN_MODIFY_CQ, cqn, &params);
}

int faultline_cmd_destroy_cq(struct faultline_dev *dev, u32 cqn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_CQ, cqn, NULL);
}

int faultline_cmd_create_srq(struct faultline_dev *dev,
			     const struct faultline_create_srq *params,
			     u32 *srqn)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_SRQ, params, srqn);
}

int faultline_cmd_resize_srq(struct faultline_dev *dev, u32 srqn,
			     const struct faultline_resize_srq *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_RESIZE_SRQ, srqn, params);
}

int faultline_cmd_create_tm_srq(struct faultline_dev *dev,
				const struct faultline_create_tm_srq *params,
				u32 *srqn)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_TM_SRQ, params,
				srqn);
}

int faultline_cmd_modify_srq(struct faultline_dev *dev, u32 srqn, u32 limit)
{
	struct faultline_modify_srq params = { .limit = cpu_to_le32(limit) };

	return faultline_change(dev, FAULTLINE_ADMIN_MODIFY_SRQ, srqn, &params);
}

int faultline_cmd_query_srq(struct faultline_dev *dev, u32 srqn, u32 *limit)
{
	struct faultline_query_srq answer;
	int err;

	err = faultline_admin(dev, FAULTLINE_ADMIN_QUERY_SRQ, srqn, NULL, 0,
			      NULL, &answer, sizeof(answer),
			      FAULTLINE_WAIT_SLEEP);
	if (!err)
		*limit = le32_to_cpu(answer.limit);
	return err;
}

int faultline_cmd_destroy_srq(struct faultline_dev *dev, u32 srqn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_SRQ, srqn, NULL);
}

int faultline_cmd_create_qp(struct faultline_dev *dev,
			    const struct faultline_create_qp *params, u32 *qpn)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_QP, params, qpn);
}

int faultline_cmd_modify_qp(struct faultline_dev *dev, u32 qpn,
			    const struct faultline_qp_attr *attr)
{
	return faultline_change(dev, FAULTLINE_ADMIN_MODIFY_QP, qpn, attr);
}

int faultline_cmd_query_qp(struct faultline_dev *dev, u32 qpn,
			   struct faultline_qp_attr *attr)
{
	int err;

	BUILD_BUG_ON(sizeof(*attr) >
		     sizeof_field(struct faultline_admin_comp, body));
	err = faultline_admin(dev, FAULTLINE_ADMIN_QUERY_QP, qpn, NULL, 0,
			      NULL, attr, sizeof(*attr), FAULTLINE_WAIT_SLEEP);
	return err ?: faultline_check_qp_attr(dev, attr);
}

int faultline_cmd_destroy_qp(struct faultline_dev *dev, u32 qpn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_QP, qpn, NULL);
}

int faultline_cmd_create_listener(struct faultline_dev *dev,
				  const struct faultline_create_listener *params,
				  u32 *listener)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_LISTENER, params,
				listener);
}

int faultline_cmd_destroy_listener(struct faultline_dev *dev, u32 listener)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_LISTENER, listener,
			       NULL);
}

int faultline_cmd_connect(struct faultline_dev *dev, u32 qpn,
			  const struct faultline_connect *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_CONNECT, qpn, params);
}

int faultline_cmd_accept(struct faultline_dev *dev, u32 qpn,
			 const struct faultline_accept *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_ACCEPT, qpn, params);
}

int faultline_cmd_reject(struct faultline_dev *dev, u32 request,
			 const struct faultline_accept *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_REJECT, request, params);
}

static int faultline_query(struct faultline_dev *dev, u16 opcode, u32 handle,
			   const struct faultline_query_connection *params,
			   struct faultline_connection_info *info)
{
	int err;

	BUILD_BUG_ON(sizeof(*info) >
		     sizeof_field(struct faultline_admin_comp, body));
	err = faultline_admin(dev, opcode, handle, params, sizeof(*params),
			      NULL, info, sizeof(*info), FAULTLINE_WAIT_SLEEP);
	return err ?: faultline_check_connection(dev, info);
}

int faultline_cmd_query_request(struct faultline_dev *dev, u32 request,
				const struct faultline_query_connection *params,
				struct faultline_connection_info *info)
{
	return faultline_query(dev, FAULTLINE_ADMIN_QUERY_REQUEST, request,
			       params, info);
}

int faultline_cmd_query_connection(struct faultline_dev *dev, u32 qpn,
				   const struct faultline_query_connection *params,
				   struct faultline_connection_info *info)
{
	return faultline_query(dev, FAULTLINE_ADMIN_QUERY_CONNECTION, qpn,
			       params, info);
}

int faultline_cmd_attach_mcast(struct faultline_dev *dev, u32 qpn,
			       const struct faultline_mcast *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_ATTACH_MCAST, qpn, params);
}

int faultline_cmd_detach_mcast(struct faultline_dev *dev, u32 qpn,
			       const struct faultline_mcast *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_DETACH_MCAST, qpn, params);
}

int faultline_cmd_create_flow(struct faultline_dev *dev,
			      const struct faultline_create_flow *params,
			      u32 *flow)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_FLOW, params, flow);
}

int faultline_cmd_destroy_flow(struct faultline_dev *dev, u32 flow)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_FLOW, flow, NULL);
}

int faultline_cmd_create_wq(struct faultline_dev *dev,
			    const struct faultline_create_wq *params, u32 *wqn)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_WQ, params, wqn);
}

int faultline_cmd_modify_wq(struct faultline_dev *dev, u32 wqn, u8 state)
{
	struct faultline_modify_wq params = { .state = state };

	return faultline_change(dev, FAULTLINE_ADMIN_MODIFY_WQ, wqn, &params);
}

int faultline_cmd_destroy_wq(struct faultline_dev *dev, u32 wqn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_WQ, wqn, NULL);
}

int faultline_cmd_create_rwq_ind_table(struct faultline_dev *dev,
				       dma_addr_t addr, u8 log_size, u32 *table)
{
	struct faultline_create_rwq_ind_table params = {
		.addr = cpu_to_le64(addr),
		.log_size = log_size,
	};

	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_RWQ_IND_TABLE,
				&params, table);
}

int faultline_cmd_destroy_rwq_ind_table(struct faultline_dev *dev, u32 table)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_RWQ_IND_TABLE,
			       table, NULL);
}

int faultline_cmd_create_rss_qp(struct faultline_dev *dev,
				const struct faultline_create_rss_qp *params,
				u32 *qpn)
{
	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_RSS_QP, params,
				qpn);
}

int faultline_cmd_create_ah(struct faultline_dev *dev, u32 pdn,
			    const struct faultline_av *av, u32 *ahn)
{
	struct faultline_create_ah params = {
		.pd = cpu_to_le32(pdn),
		.av = *av,
	};

	return faultline_create(dev, FAULTLINE_ADMIN_CREATE_AH, &params, ahn);
}

int faultline_cmd_destroy_ah(struct faultline_dev *dev, u32 ahn)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DESTROY_AH, ahn, NULL);
}

int faultline_cmd_set_gid(struct faultline_dev *dev, u32 index,
			  const struct faultline_set_gid *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_SET_GID, index, params);
}

int faultline_cmd_set_netdev(struct faultline_dev *dev,
			     const struct faultline_set_netdev *params)
{
	return faultline_change(dev, FAULTLINE_ADMIN_SET_NETDEV, 0, params);
}

/* Replaces the MAC filter by `count` entries at `addr`. */
int faultline_cmd_set_mac_filter(struct faultline_dev *dev, dma_addr_t addr,
				 u32 count)
{
	struct faultline_set_mac_filter params = {
		.addr = cpu_to_le64(addr),
		.count = cpu_to_le32(count),
	};

	return faultline_change(dev, FAULTLINE_ADMIN_SET_MAC_FILTER, 0,
				&params);
}

/* Reads the counters of a set, or of the device if `set` is 0. */
int faultline_cmd_query_counters(struct faultline_dev *dev, u32 set,
				 dma_addr_t addr, u32 len)
{
	struct faultline_query_counters params = {
		.addr = cpu_to_le64(addr),
		.len = cpu_to_le32(len),
	};

	return faultline_change(dev, FAULTLINE_ADMIN_QUERY_COUNTERS, set,
				&params);
}

int faultline_cmd_alloc_counters(struct faultline_dev *dev, u32 *set)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_ALLOC_COUNTERS, 0, set);
}

int faultline_cmd_dealloc_counters(struct faultline_dev *dev, u32 set)
{
	return faultline_plain(dev, FAULTLINE_ADMIN_DEALLOC_COUNTERS, set,
			       NULL);
}

/* Selects the counters of a queue pair: a set, or the device's (set 0). */
int faultline_cmd_bind_counters(struct faultline_dev *dev, u32 qpn, u32 set)
{
	struct faultline_bind_counters params = {
		.counters = cpu_to_le32(set),
	};

	return faultline_change(dev, FAULTLINE_ADMIN_BIND_COUNTERS, qpn,
				&params);
}

static int faultline_tq_status(struct faultline_dev *dev, u8 opcode, u32 key,
			       const struct faultline_tq_comp *comp)
{
	u16 status = le16_to_cpu(comp->status);

	if (status)
		dev_dbg(&dev->pdev->dev,
			"translation command %u on key %#x: status %u\n",
			opcode, key, status);
	return faultline_status_errno(status);
}

static int faultline_tq(struct faultline_dev *dev,
			const struct faultline_tq_cmd *cmd,
			enum faultline_wait wait, u32 *count)
{
	struct faultline_tq_comp comp;
	int err;

	err = faultline_cmdq_exec(&dev->translation, cmd, &comp, wait);
	if (err)
		return err;
	if (count)
		*count = le32_to_cpu(comp.count);
	return faultline_tq_status(dev, cmd->opcode, le32_to_cpu(cmd->key),
				   &comp);
}

/*
 * Returns the command that writes `count` page entries of 2^page_shift bytes
 * each from `iova` on. `list` is the DMA address of the entries, or if they are
 * contiguous the first entry itself.
 */
static struct faultline_tq_cmd
faultline_tq_map_cmd(u32 key, u64 iova, u64 count, u8 page_shift, u64 list,
		     bool contiguous)
{
	return (struct faultline_tq_cmd) {
		.opcode = FAULTLINE_TQ_MAP,
		.flags = contiguous ? FAULTLINE_TQ_FLAG_CONTIGUOUS : 0,
		.key = cpu_to_le32(key),
		.iova = cpu_to_le64(iova),
		.count = cpu_to_le64(count),
		.list = cpu_to_le64(list),
		.page_shift = page_shift,
	};
}

/* Writes page entries; see faultline_tq_map_cmd(). */
int faultline_tq_map(struct faultline_dev *dev, u32 key, u64 iova, u64 count,
		     u8 page_shift, u64 list, bool contiguous,
		     enum faultline_wait wait)
{
	struct faultline_tq_cmd cmd = faultline_tq_map_cmd(key, iova, count,
							   page_shift, list,
							   contiguous);

	return faultline_tq(dev, &cmd, wait, NULL);
}

/*
 * Does what faultline_tq_map() does, but returns before the entries are
 * written: faultline_tq_wait() returns the result. The device executes commands
 * in order, so that a later faultline_tq_invalidate() removes the entries. The
 * command `resume`, if it is not NULL, is executed directly behind.
 */
int faultline_tq_post_map(struct faultline_dev *dev,
			  struct faultline_posted *posted, u32 key, u64 iova,
			  u64 count, u8 page_shift, u64 list, bool contiguous,
			  const struct faultline_tq_cmd *resume)
{
	struct faultline_tq_cmd cmd = faultline_tq_map_cmd(key, iova, count,
							   page_shift, list,
							   contiguous);

	posted->key = key;
	posted->req.comp = &posted->comp;
	return faultline_cmdq_post(&dev->translation, &cmd, resume,
				   &posted->req);
}

/* Waits for the MAP that faultline_tq_post_map() has sent. */
int faultline_tq_wait(struct faultline_dev *dev,
		      struct faultline_posted *posted)
{
	return faultline_cmdq_wait(&dev->translation, &posted->req,
				   FAULTLINE_WAIT_POLL) ?:
	       faultline_tq_status(dev, FAULTLINE_TQ_MAP, posted->key,
				   &posted->comp);
}

/*
 * Removes all entries that overlap a range; afterwards the device does not
 * access the pages. Safe in MMU notifiers: waits only for the device.
 */
int faultline_tq_invalidate(struct faultline_dev *dev, u32 key, u64 iova,
			    u64 length, u32 *removed)
{
	struct faultline_tq_cmd cmd = {
		.opcode = FAULTLINE_TQ_INVALIDATE,
		.key = cpu_to_le32(key),
		.iova = cpu_to_le64(iova),
		.count = cpu_to_le64(length),
	};

	u32 entries = 0;
	int err;

	err = faultline_tq(dev, &cmd, FAULTLINE_WAIT_POLL, &entries);
	trace_faultline_invalidate(dev, key, iova, length, entries);
	if (removed)
		*removed = entries;
	return err;
}

/*
 * Returns the command that answers a page fault with FAULTLINE_OK or the status
 * of its failure. A device that does not know the times requires zero.
 */
struct faultline_tq_cmd
faultline_tq_resume_cmd(struct faultline_dev *dev, u64 token, u16 status,
			const struct faultline_fault_times *times)
{
	struct faultline_tq_cmd cmd = {
		.opcode = FAULTLINE_TQ_RESUME,
		.token = cpu_to_le64(token),
		.resume_status = cpu_to_le16(status),
	};

	if (dev->abi_minor >= FAULTLINE_ABI_MINOR_TOLD) {
		cmd.wait_ns = cpu_to_le32(times->wait_ns);
		cmd.map_ns = cpu_to_le32(times->map_ns);
		cmd.post_ns = cpu_to_le32(times->post_ns);
	}
	trace_faultline_resume(dev, token, status, times);
	return cmd;
}

/*
 * Sends the answer of a page fault. Nothing depends on when the device has
 * executed the command, or on its status, so nothing waits for it.
 */
void faultline_tq_resume(struct faultline_dev *dev,
			 const struct faultline_tq_cmd *answer)
{
	faultline_cmdq_post(&dev->translation, answer, NULL, NULL);
}
