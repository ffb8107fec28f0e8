// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * driver_data: the driver's part of requests and responses, behind that of the
 * core. For each verb: 64 octets more that are zero are accepted, since a newer
 * provider may send them; 64 octets more that are not zero are refused with
 * EOPNOTSUPP, since they may ask for something that this driver does not
 * know; and a response without room for the driver's part is accepted. Verbs
 * without a part of the driver refuse the same. Writes commands to the character device,
 * without a provider. Runs in one guest.
 */
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/ib_user_verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MORE 64
#define RING 65536
#define DEPTH_LOG 4

/* The driver's part of requests; see faultline_uapi.h. */
struct cq_request { uint64_t addr; uint32_t log_depth, reserved; };
struct qp_request { uint64_t sq, rq; uint8_t sq_depth, sq_stride, rq_depth, rq_stride; uint32_t reserved; };
struct srq_request { uint64_t addr; uint8_t log_depth, stride, reserved[6]; };

/* One verb: the core's parts, and the driver's. */
struct verb {
	const char *name;
	uint32_t command;
	const void *core;
	size_t core_len;
	const void *driver;
	size_t driver_len;
	size_t response_len;		/* of the core */
	size_t driver_response_len;
	/* The header separates the driver's parts from those of the core. */
	bool extended;
};

/* What is sent besides. */
enum variant { PLAIN, ZEROS, OTHERS, SHORT_RESPONSE };

static int device_fd(void)
{
	const char *wanted = getenv("RDMA_DEV");
	struct dirent *entry;
	DIR *folder = opendir("/sys/class/infiniband_verbs");
	char path[320], name[64] = "";
	int fd = -1;

	if (!folder || !wanted)
		die("no uverbs devices, or no RDMA_DEV");
	while (fd < 0 && (entry = readdir(folder))) {
		FILE *file;

		snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/%s/ibdev", entry->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fscanf(file, "%63s", name) == 1 && !strcmp(name, wanted)) {
			snprintf(path, sizeof(path), "/dev/infiniband/%s", entry->d_name);
			fd = open(path, O_RDWR | O_CLOEXEC);
		}
		fclose(file);
	}
	closedir(folder);
	if (fd < 0)
		die("no uverbs device of %s", wanted);
	return fd;
}

static uint64_t answer[128];

/*
 * Writes the headers. Returns their length. Without an extended header, the request begins with the address of the response, if
 * it has one.
 */
static size_t fill_headers(const struct verb *verb, uint8_t *request, size_t driver_len, size_t response_len)
{
	struct ib_uverbs_cmd_hdr *hdr = (void *)request;
	struct ib_uverbs_ex_cmd_hdr *extended = (void *)(hdr + 1);
	size_t length = sizeof(*hdr) + (verb->extended ? sizeof(*extended) : 0);

	hdr->command = verb->command;
	if (!verb->extended) {
		WANT(!((verb->core_len + driver_len) % 4) && !(response_len % 4));
		hdr->in_words = (length + verb->core_len + driver_len) / 4;
		hdr->out_words = response_len / 4;
		return length;
	}
	WANT(!(verb->core_len % 8) && !(driver_len % 8) && !(response_len % 8));
	hdr->command |= IB_USER_VERBS_CMD_FLAG_EXTENDED;
	hdr->in_words = verb->core_len / 8;
	hdr->out_words = verb->response_len / 8;
	extended->response = (uintptr_t)answer;
	extended->provider_in_words = driver_len / 8;
	extended->provider_out_words = (response_len - verb->response_len) / 8;
	return length;
}

/* Executes a verb. Returns 0 or an errno. */
static int execute(int fd, const struct verb *verb, enum variant variant, void *response)
{
	static uint64_t request[128];
	size_t more = variant == ZEROS || variant == OTHERS ? MORE : 0;
	size_t response_len = verb->response_len + (variant == SHORT_RESPONSE ? 0 : verb->driver_response_len);
	size_t driver_len = verb->driver_len + more;
	uint8_t *start = (uint8_t *)request, *core;
	ssize_t length;

	memset(request, 0, sizeof(request));
	memset(answer, 0xee, sizeof(answer));
	core = start + fill_headers(verb, start, driver_len, response_len);
	memcpy(core, verb->core, verb->core_len);
	if (verb->response_len && !verb->extended)
		*(uint64_t *)core = (uintptr_t)answer;
	if (verb->driver_len)
		memcpy(core + verb->core_len, verb->driver, verb->driver_len);
	length = core - start + verb->core_len + driver_len;
	if (variant == OTHERS)
		start[length - 1] = 1;
	if (write(fd, request, length) != length)
		return errno;
	/* Nothing is written behind the response. */
	WANT(((uint8_t *)answer)[response_len] == 0xee);
	if (response)
		memcpy(response, answer, verb->response_len);
	return 0;
}

/* Executes a verb in all variants; returns the response to the plain one. */
static void test_on(int fd, const struct verb *verb, void *response)
{
	int err = execute(fd, verb, ZEROS, NULL);

	if (err)
		die("%s with zeros behind its request: %s", verb->name, strerror(err));
	err = execute(fd, verb, OTHERS, NULL);
	if (err != EOPNOTSUPP)
		die("%s with others behind its request: %s", verb->name, strerror(err));
	err = execute(fd, verb, SHORT_RESPONSE, NULL);
	if (err)
		die("%s with a shorter response: %s", verb->name, strerror(err));
	err = execute(fd, verb, PLAIN, response);
	if (err)
		die("%s: %s", verb->name, strerror(err));
	say("%s", verb->name);
}

/* Each file has one context. */
static int test_context(void)
{
	struct ib_uverbs_get_context core = {};
	const struct verb verb = {
		"GET_CONTEXT", IB_USER_VERBS_CMD_GET_CONTEXT, &core, sizeof(core), NULL, 0,
		sizeof(struct ib_uverbs_get_context_resp), 64, false,
	};
	static const int wanted[] = { [ZEROS] = 0, [OTHERS] = EOPNOTSUPP, [SHORT_RESPONSE] = 0 };
	enum variant variant;
	int fd, err;

	for (variant = ZEROS; variant <= SHORT_RESPONSE; variant++) {
		fd = device_fd();
		err = execute(fd, &verb, variant, NULL);
		if (err != wanted[variant])
			die("%s, variant %d: %s", verb.name, variant, strerror(err));
		close(fd);
	}
	fd = device_fd();
	WANT(!execute(fd, &verb, PLAIN, NULL));
	say("%s", verb.name);
	return fd;
}

struct made { uint32_t pd, cq, mr, srq, qp; };

static void test_memory(int fd, struct made *made, void *memory)
{
	struct ib_uverbs_alloc_pd pd = {};
	struct ib_uverbs_alloc_pd_resp pd_resp;
	struct ib_uverbs_reg_mr mr = { .start = (uintptr_t)memory, .hca_va = (uintptr_t)memory, .length = 4096 };
	struct ib_uverbs_reg_mr_resp mr_resp;
	struct ib_uverbs_rereg_mr rereg = { .flags = 2 };	/* the PD */
	struct ib_uverbs_alloc_mw mw = { .mw_type = 1 };
	struct ib_uverbs_open_xrcd xrcd = { .fd = -1, .oflags = O_CREAT };

	test_on(fd, &(struct verb){ "ALLOC_PD", IB_USER_VERBS_CMD_ALLOC_PD, &pd, sizeof(pd), NULL, 0,
				    sizeof(pd_resp), 8, false }, &pd_resp);
	made->pd = pd_resp.pd_handle;
	mr.pd_handle = made->pd;
	mr.access_flags = 1;
	test_on(fd, &(struct verb){ "REG_MR", IB_USER_VERBS_CMD_REG_MR, &mr, sizeof(mr), NULL, 0,
				    sizeof(mr_resp), 8, false }, &mr_resp);
	made->mr = mr_resp.mr_handle;
	rereg.mr_handle = made->mr;
	rereg.pd_handle = made->pd;
	test_on(fd, &(struct verb){ "REREG_MR", IB_USER_VERBS_CMD_REREG_MR, &rereg, sizeof(rereg), NULL, 0,
				    sizeof(struct ib_uverbs_rereg_mr_resp), 8, false }, NULL);
	mw.pd_handle = made->pd;
	test_on(fd, &(struct verb){ "ALLOC_MW", IB_USER_VERBS_CMD_ALLOC_MW, &mw, sizeof(mw), NULL, 0,
				    sizeof(struct ib_uverbs_alloc_mw_resp), 8, false }, NULL);
	test_on(fd, &(struct verb){ "OPEN_XRCD", IB_USER_VERBS_CMD_OPEN_XRCD, &xrcd, sizeof(xrcd), NULL, 0,
				    sizeof(struct ib_uverbs_open_xrcd_resp), 8, false }, NULL);
}

static void test_queues(int fd, struct made *made, void *memory)
{
	const uint64_t ring = (uintptr_t)memory;
	struct ib_uverbs_create_cq cq = { .cqe = 1 << DEPTH_LOG, .comp_channel = -1 };
	struct ib_uverbs_create_cq_resp cq_resp;
	struct ib_uverbs_resize_cq resize = { .cqe = 2 << DEPTH_LOG };
	struct cq_request cq_driver = { ring, DEPTH_LOG, 0 };
	struct ib_uverbs_create_srq srq = { .pd_handle = made->pd, .max_wr = 1 << DEPTH_LOG, .max_sge = 1 };
	struct ib_uverbs_create_srq_resp srq_resp;
	struct srq_request srq_driver = { ring + RING, DEPTH_LOG, 6, {} };
	struct ib_uverbs_modify_srq modify = { .attr_mask = 2, .srq_limit = 1 };	/* the limit */
	struct ib_uverbs_create_qp qp = {
		.pd_handle = made->pd, .max_send_wr = 1 << DEPTH_LOG, .max_recv_wr = 1 << DEPTH_LOG,
		.max_send_sge = 1, .max_recv_sge = 1, .qp_type = 2,
	};
	struct ib_uverbs_create_qp_resp qp_resp;
	struct qp_request qp_driver = { ring + 2 * RING, ring + 3 * RING, DEPTH_LOG, 7, DEPTH_LOG, 6, 0 };
	/* INIT: state, access flags, P_Key index, port. */
	struct ib_uverbs_ex_modify_qp init = { .base = { .attr_mask = 1 | 8 | 16 | 32, .qp_state = 1, .port_num = 1 } };

	test_on(fd, &(struct verb){ "CREATE_CQ", IB_USER_VERBS_CMD_CREATE_CQ, &cq, sizeof(cq), &cq_driver,
				    sizeof(cq_driver), sizeof(cq_resp), 8, false }, &cq_resp);
	made->cq = cq_resp.cq_handle;
	resize.cq_handle = made->cq;
	cq_driver.addr = ring + 4 * RING;
	cq_driver.log_depth = DEPTH_LOG + 1;
	test_on(fd, &(struct verb){ "RESIZE_CQ", IB_USER_VERBS_CMD_RESIZE_CQ, &resize, sizeof(resize), &cq_driver,
				    sizeof(cq_driver), sizeof(struct ib_uverbs_resize_cq_resp), 8, false }, NULL);
	test_on(fd, &(struct verb){ "CREATE_SRQ", IB_USER_VERBS_CMD_CREATE_SRQ, &srq, sizeof(srq), &srq_driver,
				    sizeof(srq_driver), sizeof(srq_resp), 8, false }, &srq_resp);
	modify.srq_handle = srq_resp.srq_handle;
	test_on(fd, &(struct verb){ "MODIFY_SRQ", IB_USER_VERBS_CMD_MODIFY_SRQ, &modify, sizeof(modify), NULL, 0, 0, 0, false },
		NULL);
	qp.send_cq_handle = made->cq;
	qp.recv_cq_handle = made->cq;
	test_on(fd, &(struct verb){ "CREATE_QP", IB_USER_VERBS_CMD_CREATE_QP, &qp, sizeof(qp), &qp_driver,
				    sizeof(qp_driver), sizeof(qp_resp), 8, false }, &qp_resp);
	init.base.qp_handle = qp_resp.qp_handle;
	/* Only the extended command has a driver's part. */
	test_on(fd, &(struct verb){ "MODIFY_QP", IB_USER_VERBS_EX_CMD_MODIFY_QP, &init, sizeof(init), NULL, 0,
				    sizeof(struct ib_uverbs_ex_modify_qp_resp), 8, true }, NULL);
}

int main(void)
{
	struct ib_uverbs_ex_query_device query = {};
	uint8_t *memory = anonymous(8 * RING);
	struct made made;
	int fd;

	fd = test_context();
	test_on(fd, &(struct verb){ "QUERY_DEVICE", IB_USER_VERBS_EX_CMD_QUERY_DEVICE, &query, sizeof(query), NULL, 0,
				    sizeof(struct ib_uverbs_ex_query_device_resp), 8, true }, NULL);
	test_memory(fd, &made, memory);
	test_queues(fd, &made, memory);
	close(fd);
	puts("PASS");
	return 0;
}
