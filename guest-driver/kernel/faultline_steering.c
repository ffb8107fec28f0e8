// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Who gets which frames: multicast groups. */
#include "faultline_ib.h"

/* The core takes no groups but multicast GIDs, and no queue pairs but UD. */
int faultline_attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct faultline_mcast params;

	memcpy(params.gid, gid->raw, sizeof(params.gid));
	return faultline_cmd_attach_mcast(to_fdev(ibqp->device),
					  to_fqp(ibqp)->res.num, &params);
}

int faultline_detach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	struct faultline_mcast params;

	memcpy(params.gid, gid->raw, sizeof(params.gid));
	return faultline_settle(dev,
				faultline_cmd_detach_mcast(dev,
							   to_fqp(ibqp)->res.num,
							   &params));
}
