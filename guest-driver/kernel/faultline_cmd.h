/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * One function per command of the admin and translation queues. All return 0
 * or a negative errno. Unless said otherwise they sleep.
 */
#ifndef FAULTLINE_CMD_H
#define FAULTLINE_CMD_H

#include "faultline.h"

/* How long the parts of the service of a page fault took; see the ABI. */
struct faultline_fault_times {
	u32 wait_ns;
	u32 map_ns;
	u32 post_ns;
};

/* A MAP in flight: faultline_tq_post_map(), then faultline_tq_wait(). */
struct faultline_posted {
	struct faultline_cmd_req req;
	struct faultline_tq_comp comp;
	u32 key;
};

int faultline_cmd_alloc_uctx(struct faultline_dev *dev, u32 *uctx);
int faultline_cmd_dealloc_uctx(struct faultline_dev *dev, u32 uctx);

int faultline_cmd_create_eq(struct faultline_dev *dev,
			    const struct faultline_create_eq *params, u32 *eqn);
int faultline_cmd_destroy_eq(struct faultline_dev *dev, u32 eqn);

int faultline_cmd_alloc_xrcd(struct faultline_dev *dev, u32 *xrcdn);
int faultline_cmd_dealloc_xrcd(struct faultline_dev *dev, u32 xrcdn);

int faultline_cmd_alloc_pd(struct faultline_dev *dev, u32 uctx, u32 *pdn);
int faultline_cmd_dealloc_pd(struct faultline_dev *dev, u32 pdn);

int faultline_cmd_create_mkey(struct faultline_dev *dev,
			      const struct faultline_create_mkey *params,
			      u32 *key);
int faultline_cmd_modify_mkey(struct faultline_dev *dev, u32 key,
			      const struct faultline_create_mkey *params);
int faultline_cmd_destroy_mkey(struct faultline_dev *dev, u32 key);

int faultline_cmd_alloc_dm(struct faultline_dev *dev, u64 length, u32 *dm,
			   struct faultline_dm_place *place);
int faultline_cmd_dealloc_dm(struct faultline_dev *dev, u32 dm);
int faultline_cmd_create_dm_mkey(struct faultline_dev *dev,
				 const struct faultline_create_dm_mkey *params,
				 u32 *key);

int faultline_cmd_create_cq(struct faultline_dev *dev,
			    const struct faultline_create_cq *params, u32 *cqn);
int faultline_cmd_resize_cq(struct faultline_dev *dev, u32 cqn,
			    const struct faultline_resize_cq *params);
int faultline_cmd_modify_cq(struct faultline_dev *dev, u32 cqn, u16 count,
			    u16 period);
int faultline_cmd_destroy_cq(struct faultline_dev *dev, u32 cqn);

int faultline_cmd_create_srq(struct faultline_dev *dev,
			     const struct faultline_create_srq *params,
			     u32 *srqn);
int faultline_cmd_resize_srq(struct faultline_dev *dev, u32 srqn,
			     const struct faultline_resize_srq *params);
int faultline_cmd_create_tm_srq(struct faultline_dev *dev,
				const struct faultline_create_tm_srq *params,
				u32 *srqn);
int faultline_cmd_modify_srq(struct faultline_dev *dev, u32 srqn, u32 limit);
int faultline_cmd_query_srq(struct faultline_dev *dev, u32 srqn, u32 *limit);
int faultline_cmd_destroy_srq(struct faultline_dev *dev, u32 srqn);

int faultline_cmd_create_qp(struct faultline_dev *dev,
			    const struct faultline_create_qp *params, u32 *qpn);
int faultline_cmd_modify_qp(struct faultline_dev *dev, u32 qpn,
			    const struct faultline_qp_attr *attr);
int faultline_cmd_query_qp(struct faultline_dev *dev, u32 qpn,
			   struct faultline_qp_attr *attr);
int faultline_cmd_destroy_qp(struct faultline_dev *dev, u32 qpn);

int faultline_cmd_create_listener(struct faultline_dev *dev,
				  const struct faultline_create_listener *params,
				  u32 *listener);
int faultline_cmd_destroy_listener(struct faultline_dev *dev, u32 listener);
int faultline_cmd_connect(struct faultline_dev *dev, u32 qpn,
			  const struct faultline_connect *params);
int faultline_cmd_accept(struct faultline_dev *dev, u32 qpn,
			 const struct faultline_accept *params);
int faultline_cmd_reject(struct faultline_dev *dev, u32 request,
			 const struct faultline_accept *params);
int faultline_cmd_query_request(struct faultline_dev *dev, u32 request,
				const struct faultline_query_connection *params,
				struct faultline_connection_info *info);
int faultline_cmd_query_connection(struct faultline_dev *dev, u32 qpn,
				   const struct faultline_query_connection *params,
				   struct faultline_connection_info *info);

int faultline_cmd_attach_mcast(struct faultline_dev *dev, u32 qpn,
			       const struct faultline_mcast *params);
int faultline_cmd_detach_mcast(struct faultline_dev *dev, u32 qpn,
			       const struct faultline_mcast *params);
int faultline_cmd_create_flow(struct faultline_dev *dev,
			      const struct faultline_create_flow *params,
			      u32 *flow);
int faultline_cmd_destroy_flow(struct faultline_dev *dev, u32 flow);
int faultline_cmd_create_wq(struct faultline_dev *dev,
			    const struct faultline_create_wq *params,
			    u32 *wqn);
int faultline_cmd_modify_wq(struct faultline_dev *dev, u32 wqn, u8 state);
int faultline_cmd_destroy_wq(struct faultline_dev *dev, u32 wqn);
int faultline_cmd_create_rwq_ind_table(struct faultline_dev *dev,
				       dma_addr_t addr, u8 log_size,
				       u32 *table);
int faultline_cmd_destroy_rwq_ind_table(struct faultline_dev *dev, u32 table);
int faultline_cmd_create_rss_qp(struct faultline_dev *dev,
				const struct faultline_create_rss_qp *params,
				u32 *qpn);

int faultline_cmd_create_ah(struct faultline_dev *dev, u32 pdn,
			    const struct faultline_av *av, u32 *ahn);
int faultline_cmd_destroy_ah(struct faultline_dev *dev, u32 ahn);

int faultline_cmd_set_gid(struct faultline_dev *dev, u32 index,
			  const struct faultline_set_gid *params);
int faultline_cmd_set_netdev(struct faultline_dev *dev,
			     const struct faultline_set_netdev *params);
int faultline_cmd_set_mac_filter(struct faultline_dev *dev, dma_addr_t addr,
				 u32 count);
int faultline_cmd_query_counters(struct faultline_dev *dev, u32 set,
				 dma_addr_t addr, u32 len);
int faultline_cmd_alloc_counters(struct faultline_dev *dev, u32 *set);
int faultline_cmd_dealloc_counters(struct faultline_dev *dev, u32 set);
int faultline_cmd_bind_counters(struct faultline_dev *dev, u32 qpn, u32 set);

int faultline_tq_map(struct faultline_dev *dev, u32 key, u64 iova, u64 count,
		     u8 page_shift, u64 list, bool contiguous,
		     enum faultline_wait wait);
int faultline_tq_post_map(struct faultline_dev *dev,
			  struct faultline_posted *posted, u32 key, u64 iova,
			  u64 count, u8 page_shift, u64 list, bool contiguous,
			  const struct faultline_tq_cmd *resume);
int faultline_tq_wait(struct faultline_dev *dev,
		      struct faultline_posted *posted);
int faultline_tq_invalidate(struct faultline_dev *dev, u32 key, u64 iova,
			    u64 length, u32 *removed);
struct faultline_tq_cmd
faultline_tq_resume_cmd(struct faultline_dev *dev, u64 token, u16 status,
			const struct faultline_fault_times *times);
void faultline_tq_resume(struct faultline_dev *dev,
			 const struct faultline_tq_cmd *answer);

#endif /* FAULTLINE_CMD_H */
