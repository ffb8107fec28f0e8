// SPDX-License-Identifier: Apache-2.0 OR MIT
// Preloaded into programs that destroy a queue pair as soon as they have all that they want: they keep it a second longer.
//
// The peer may not have got the last acknowledgement, and sends its request again, which only a queue pair that still exists can
// acknowledge (RFC 9293, 3.6.1, has TIME-WAIT for the same). Without one, the peer's request fails after its retries; rdma_rxe,
// to which a retry count of 7 means infinity, repeats it for ever.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <unistd.h>

int ibv_destroy_qp(struct ibv_qp *qp)
{
	int (*destroy)(struct ibv_qp *) = (int (*)(struct ibv_qp *))dlsym(RTLD_NEXT, "ibv_destroy_qp");

	sleep(1);
	return destroy(qp);
}
