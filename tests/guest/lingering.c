// SPDX-License-Identifier: Apache-2.0 OR MIT
// Preloaded into programs that destroy a queue pair as soon as they have all that they want: they keep it longer.
//
// The peer may not have got the last acknowledgement, and sends its request again, which only a queue pair that still exists can
// acknowledge (RFC 9293, 3.6.1, has TIME-WAIT for the same). Without one, the peer's request fails after its retries; rdma_rxe,
// to which a retry count of 7 means infinity, repeats it for ever. So a queue pair lives for a second longer.
//
// One of librdmacm lives until the peer has answered the request to disconnect (DREQ). Linux repeats a lost DREQ only as long as
// the identifier of the connection exists. A peer that never gets one waits for ever.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#define ANSWER_SECONDS 30

static atomic_bool asked, answered;

static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	int (*disconnect)(struct rdma_cm_id *) = (int (*)(struct rdma_cm_id *))next("rdma_disconnect");

	atomic_store(&asked, true);
	return disconnect(id);
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	int (*get)(struct rdma_event_channel *, struct rdma_cm_event **) =
		(int (*)(struct rdma_event_channel *, struct rdma_cm_event **))next("rdma_get_cm_event");
	int ret = get(channel, event);

	// A DREP, or the peer's own DREQ.
	if (!ret && (*event)->event == RDMA_CM_EVENT_DISCONNECTED)
		atomic_store(&answered, true);
	return ret;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	int (*destroy)(struct ibv_qp *) = (int (*)(struct ibv_qp *))next("ibv_destroy_qp");

	if (!atomic_load(&asked))
		sleep(1);
	else
		for (int waited = 0; !atomic_load(&answered) && waited < ANSWER_SECONDS * 1000; waited++)
			usleep(1000);
	return destroy(qp);
}
