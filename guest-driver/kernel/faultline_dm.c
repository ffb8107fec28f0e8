// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Device memory: allocated, mapped and registered by processes. */
#include <linux/log2.h>
#include <linux/slab.h>

#include <rdma/uverbs_std_types.h>

#include "faultline_ib.h"

#define UVERBS_MODULE_NAME faultline_ib
#include <rdma/uverbs_named_ioctl.h>

/* log2 of the largest supported alignment: allocations are whole pages. */
#define FAULTLINE_DM_LOG_ALIGN	12

struct faultline_dm {
	struct ib_dm ibdm;
	u32 number;
	struct faultline_mmap_entry entry;
};

static struct faultline_dm *to_fdm(struct ib_dm *ibdm)
{
	return container_of(ibdm, struct faultline_dm, ibdm);
}

static void faultline_dm_resp(struct faultline_dm *dm,
			      struct faultline_dm_resp *resp)
{
	struct rdma_user_mmap_entry *entry = &dm->entry.rdma_entry;

	resp->mmap_offset = rdma_user_mmap_get_offset(entry);
	resp->mmap_length = (u64)entry->npages << PAGE_SHIFT;
	resp->length = dm->ibdm.length;
}

static int faultline_dm_insert(struct faultline_ucontext *ctx,
			       struct faultline_dm *dm,
			       const struct faultline_dm_place *place)
{
	struct faultline_dev *dev = to_fdev(ctx->ibucontext.device);
	u64 bar_len = pci_resource_len(dev->pdev, FAULTLINE_BAR_DOORBELL);
	u64 offset = le64_to_cpu(place->offset);
	u64 length = le64_to_cpu(place->length);

	if (offset > bar_len || length > bar_len - offset ||
	    length < dm->ibdm.length) {
		faultline_fail(dev, "device memory exceeds the BAR");
		return -EIO;
	}
	dm->entry.kind = FAULTLINE_MMAP_DEVICE_MEMORY;
	dm->entry.phys = dev->db_phys + offset;
	return rdma_user_mmap_entry_insert(&ctx->ibucontext,
					   &dm->entry.rdma_entry, length);
}

struct ib_dm *faultline_alloc_dm(struct ib_device *ibdev,
				 struct ib_ucontext *ibctx,
				 struct ib_dm_alloc_attr *attr,
				 struct uverbs_attr_bundle *attrs)
{
	struct faultline_dev *dev = to_fdev(ibdev);
	struct faultline_dm_resp resp = {};
	struct faultline_dm_place place;
	struct faultline_dm *dm;
	int err;

	if (attr->alignment > FAULTLINE_DM_LOG_ALIGN)
		return ERR_PTR(-EOPNOTSUPP);
	dm = kzalloc(sizeof(*dm), GFP_KERNEL);
	if (!dm)
		return ERR_PTR(-ENOMEM);
	err = faultline_cmd_alloc_dm(dev, attr->length, &dm->number, &place);
	if (err)
		goto free_dm;
	dm->ibdm.device = ibdev;
	dm->ibdm.length = attr->length;
	err = faultline_dm_insert(to_fucontext(ibctx), dm, &place);
	if (err)
		goto dealloc;
	faultline_dm_resp(dm, &resp);
	err = uverbs_copy_to(attrs, FAULTLINE_ATTR_DM_ALLOC_RESP, &resp,
			     sizeof(resp));
	if (err) {
		/* The memory is not mapped yet, so this frees everything. */
		rdma_user_mmap_entry_remove(&dm->entry.rdma_entry);
		return ERR_PTR(err);
	}
	return &dm->ibdm;

dealloc:
	faultline_cmd_dealloc_dm(dev, dm->number);
free_dm:
	kfree(dm);
	return ERR_PTR(err);
}

/* The device's pages stay until the last process has unmapped them. */
int faultline_dealloc_dm(struct ib_dm *ibdm, struct uverbs_attr_bundle *attrs)
{
	rdma_user_mmap_entry_remove(&to_fdm(ibdm)->entry.rdma_entry);
	return 0;
}

void faultline_dm_unmapped(struct faultline_mmap_entry *entry)
{
	struct faultline_dm *dm = container_of(entry, struct faultline_dm,
					       entry);
	struct faultline_dev *dev = to_fdev(dm->ibdm.device);
	int err;

	err = faultline_dead_ok(dev, faultline_cmd_dealloc_dm(dev, dm->number));
	if (err)
		faultline_err(dev, "device memory %u: can't free: %d\n",
			      dm->number, err);
	kfree(dm);
}

/* The core has checked the range. */
struct ib_mr *faultline_reg_dm_mr(struct ib_pd *ibpd, struct ib_dm *ibdm,
				  struct ib_dm_mr_attr *attr,
				  struct uverbs_attr_bundle *attrs)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_create_dm_mkey params = {
		.pd = cpu_to_le32(to_fpd(ibpd)->pdn),
		.access = cpu_to_le32(attr->access_flags & FAULTLINE_MR_ACCESS),
		.dm = cpu_to_le32(to_fdm(ibdm)->number),
		.variant = faultline_mkey_variant(dev),
		.offset = cpu_to_le64(attr->offset),
		.length = cpu_to_le64(attr->length),
	};
	struct faultline_mr *mr;
	u32 key;
	int err;

	if (attr->access_flags & IB_ACCESS_MW_BIND ||
	    attr->access_flags & ~(FAULTLINE_MR_ACCESS | IB_ACCESS_OPTIONAL))
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = faultline_cmd_create_dm_mkey(dev, &params, &key);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	mr->access = attr->access_flags;
	mr->ibmr.lkey = key;
	mr->ibmr.rkey = key;
	mr->ibmr.length = attr->length;
	return &mr->ibmr;
}

static int
UVERBS_HANDLER(FAULTLINE_METHOD_DM_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_dm *ibdm =
		uverbs_attr_get_obj(attrs, FAULTLINE_ATTR_DM_QUERY_HANDLE);
	struct faultline_dm_resp resp = {};

	if (IS_ERR(ibdm))
		return PTR_ERR(ibdm);
	faultline_dm_resp(to_fdm(ibdm), &resp);
	return uverbs_copy_to(attrs, FAULTLINE_ATTR_DM_QUERY_RESP, &resp,
			      sizeof(resp));
}

ADD_UVERBS_ATTRIBUTES_SIMPLE(
	faultline_dm_alloc, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC,
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_DM_ALLOC_RESP,
			    UVERBS_ATTR_STRUCT(struct faultline_dm_resp,
					       mmap_length),
			    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	FAULTLINE_METHOD_DM_QUERY,
	UVERBS_ATTR_IDR(FAULTLINE_ATTR_DM_QUERY_HANDLE, UVERBS_OBJECT_DM,
			UVERBS_ACCESS_READ, UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(FAULTLINE_ATTR_DM_QUERY_RESP,
			    UVERBS_ATTR_STRUCT(struct faultline_dm_resp,
					       mmap_length),
			    UA_MANDATORY));

ADD_UVERBS_METHODS(faultline_dm_methods, UVERBS_OBJECT_DM,
		   &UVERBS_METHOD(FAULTLINE_METHOD_DM_QUERY));

const struct uapi_definition faultline_dm_defs[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &faultline_dm_alloc),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &faultline_dm_methods),
	{}
};
