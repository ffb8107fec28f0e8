// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Device memory: mapped, copied to and from in words of 4 bytes, registered.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "faultline.h"

#define FL_DM_ALIGN 4

/* The device and its peers may write at any time. */
static bool is_part(const struct fl_dm *dm, uint64_t offset, size_t length)
{
	return offset % FL_DM_ALIGN == 0 && length % FL_DM_ALIGN == 0 &&
	       offset <= dm->length && length <= dm->length - offset;
}

static int copy_to_dm(struct ibv_dm *ibdm, uint64_t offset, const void *from,
		      size_t length)
{
	struct fl_dm *dm = to_fl_dm(ibdm);
	volatile uint32_t *to = dm->buf + offset;
	uint32_t word;
	size_t i;

	if (!is_part(dm, offset, length))
		return EFAULT;
	for (i = 0; i < length / sizeof(word); i++) {
		memcpy(&word, (const char *)from + i * sizeof(word), sizeof(word));
		to[i] = word;
	}
	/* A request that is posted next may send it. */
	udma_to_device_barrier();
	return 0;
}

static int copy_from_dm(void *to, struct ibv_dm *ibdm, uint64_t offset,
			size_t length)
{
	struct fl_dm *dm = to_fl_dm(ibdm);
	const volatile uint32_t *from = dm->buf + offset;
	uint32_t word;
	size_t i;

	if (!is_part(dm, offset, length))
		return EFAULT;
	udma_from_device_barrier();
	for (i = 0; i < length / sizeof(word); i++) {
		word = from[i];
		memcpy((char *)to + i * sizeof(word), &word, sizeof(word));
	}
	return 0;
}

static int map_dm(struct fl_dm *dm, struct ibv_context *context,
		  const struct faultline_dm_resp *resp)
{
	void *buf = mmap(NULL, resp->mmap_length, PROT_READ | PROT_WRITE,
			 MAP_SHARED, context->cmd_fd, resp->mmap_offset);

	if (buf == MAP_FAILED)
		return errno;
	dm->buf = buf;
	dm->length = resp->length;
	dm->mmap_length = resp->mmap_length;
	dm->verbs_dm.dm.memcpy_to_dm = copy_to_dm;
	dm->verbs_dm.dm.memcpy_from_dm = copy_from_dm;
	return 0;
}

struct ibv_dm *fl_alloc_dm(struct ibv_context *context,
			   struct ibv_alloc_dm_attr *attr)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, 1);
	struct faultline_dm_resp resp;
	struct fl_dm *dm;
	int ret;

	if (!check_comp_mask(attr->comp_mask, 0)) {
		errno = EINVAL;
		return NULL;
	}
	dm = calloc(1, sizeof(*dm));
	if (!dm)
		return NULL;
	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_DM_ALLOC_RESP, &resp);
	ret = ibv_cmd_alloc_dm(context, attr, &dm->verbs_dm, cmd);
	if (ret)
		goto err;
	ret = map_dm(dm, context, &resp);
	if (!ret)
		return &dm->verbs_dm.dm;
	ibv_cmd_free_dm(&dm->verbs_dm);
err:
	free(dm);
	errno = ret;
	return NULL;
}

int fl_free_dm(struct ibv_dm *ibdm)
{
	struct fl_dm *dm = to_fl_dm(ibdm);
	int ret = ibv_cmd_free_dm(&dm->verbs_dm);

	if (ret)
		return ret;
	munmap(dm->buf, dm->mmap_length);
	free(dm);
	return 0;
}

struct ibv_mr *fl_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *ibdm,
			    uint64_t offset, size_t length, unsigned int access)
{
	struct verbs_mr *vmr = calloc(1, sizeof(*vmr));
	int ret;

	if (!vmr)
		return NULL;
	ret = ibv_cmd_reg_dm_mr(pd, &to_fl_dm(ibdm)->verbs_dm, offset, length,
				access, vmr, NULL);
	if (ret) {
		free(vmr);
		errno = ret;
		return NULL;
	}
	return &vmr->ibv_mr;
}

struct ibv_dm *fl_import_dm(struct ibv_context *context, uint32_t handle)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_DM, FAULTLINE_METHOD_DM_QUERY, 2);
	struct faultline_dm_resp resp;
	struct fl_dm *dm;
	int ret;

	dm = calloc(1, sizeof(*dm));
	if (!dm)
		return NULL;
	fill_attr_in_obj(cmd, FAULTLINE_ATTR_DM_QUERY_HANDLE, handle);
	fill_attr_out_ptr(cmd, FAULTLINE_ATTR_DM_QUERY_RESP, &resp);
	ret = execute_ioctl(context, cmd) ? errno : map_dm(dm, context, &resp);
	if (ret) {
		free(dm);
		errno = ret;
		return NULL;
	}
	dm->verbs_dm.handle = handle;
	dm->verbs_dm.dm.context = context;
	dm->verbs_dm.dm.handle = handle;
	dm->verbs_dm.dm.comp_mask = IBV_DM_MASK_HANDLE;
	return &dm->verbs_dm.dm;
}

/* Frees the import only. The memory belongs to the context that allocated it. */
void fl_unimport_dm(struct ibv_dm *ibdm)
{
	struct fl_dm *dm = to_fl_dm(ibdm);

	munmap(dm->buf, dm->mmap_length);
	free(dm);
}
