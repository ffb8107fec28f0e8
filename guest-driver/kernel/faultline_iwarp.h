/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* iWARP: listeners, requests and connections. */
#ifndef FAULTLINE_IWARP_H
#define FAULTLINE_IWARP_H

#include <linux/socket.h>

#include <rdma/ib_addr.h>
#include <rdma/iw_cm.h>

#include "faultline_ib.h"

/* The core's events have one byte for the length of private data. */
#define FAULTLINE_CM_PRIVATE_DATA	U8_MAX

/* What the peer has said, and its private data. */
struct faultline_peer {
	struct faultline_connection_info info;
	u8 data[FAULTLINE_CM_PRIVATE_DATA];
};

/* The bytes of private data that are in `data`. */
static inline u8 faultline_peer_len(const struct faultline_peer *peer)
{
	return min_t(u16, le16_to_cpu(peer->info.param.private_len),
		     sizeof(peer->data));
}

static inline struct faultline_dev *faultline_cm_dev(struct iw_cm_id *cm_id)
{
	return to_fdev(cm_id->device);
}

/* The port of an IPv4 or IPv6 address. */
static inline __be16 *faultline_port(struct sockaddr_storage *addr)
{
	return addr->ss_family == AF_INET ?
		       &((struct sockaddr_in *)addr)->sin_port :
		       &((struct sockaddr_in6 *)addr)->sin6_port;
}

/* faultline_addr.c; for recovery see faultline_ib.h */
void faultline_addrs_flush(struct faultline_dev *dev);

/* faultline_iwcm.c */
bool faultline_cm_interface(struct faultline_dev *dev,
			    struct net_device *found, u16 *vlan);
int faultline_cm_local(struct faultline_dev *dev, struct net *net,
		       const struct sockaddr_storage *local, int *ifindex,
		       u16 *vlan);
struct net *faultline_cm_net(struct faultline_dev *dev);
int faultline_port_reserve(struct net *net, struct sockaddr_storage *addr,
			   int ifindex, bool v6only, struct socket **port);
void faultline_port_release(struct socket *port);
void faultline_ip_fill(u8 *ip, const struct sockaddr_storage *addr);
void faultline_path_addrs(struct faultline_dev *dev,
			  const struct faultline_connection_path *path,
			  struct iw_cm_event *event);
int faultline_peer_query(struct faultline_dev *dev, bool request, u32 number,
			 struct faultline_peer *peer);
u8 *faultline_private_map(struct faultline_dev *dev,
			  struct faultline_connection_param *param,
			  const void *data, u16 len);
void faultline_private_unmap(struct faultline_dev *dev,
			     const struct faultline_connection_param *param,
			     u8 *copy);

int faultline_iw_connect(struct iw_cm_id *cm_id,
			 struct iw_cm_conn_param *cm_param);
int faultline_iw_accept(struct iw_cm_id *cm_id,
			struct iw_cm_conn_param *cm_param);
struct ib_qp *faultline_iw_get_qp(struct ib_device *ibdev, int qpn);
void faultline_iw_add_ref(struct ib_qp *ibqp);
void faultline_iw_rem_ref(struct ib_qp *ibqp);

/* faultline_listen.c */
int faultline_request_take(struct iw_cm_id *cm_id, u32 *number);
int faultline_request_reject(struct faultline_dev *dev, u32 number,
			     const void *data, u8 len);
int faultline_iw_reject(struct iw_cm_id *cm_id, const void *data, u8 len);
int faultline_iw_create_listen(struct iw_cm_id *cm_id, int backlog);
int faultline_iw_destroy_listen(struct iw_cm_id *cm_id);

#endif /* FAULTLINE_IWARP_H */
