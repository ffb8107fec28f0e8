// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Keys that work requests bind to memory: fast registration and windows. */
#include <linux/dma-mapping.h>
#include <linux/slab.h>

#include "faultline_ib.h"

/* Creates a key of the given kind without memory. */
static int faultline_create_free_key(struct ib_pd *ibpd, u32 kind, u64 length,
				     u32 *key)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_create_mkey params = {
		.pd = cpu_to_le32(to_fpd(ibpd)->pdn),
		.flags = cpu_to_le32(kind),
		.length = cpu_to_le64(length),
		.variant = faultline_mkey_variant(dev),
	};

	return faultline_cmd_create_mkey(dev, &params, key);
}

int faultline_alloc_mw(struct ib_mw *ibmw, struct ib_udata *udata)
{
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	return faultline_create_free_key(ibmw->pd,
					 ibmw->type == IB_MW_TYPE_1 ?
						 FAULTLINE_MKEY_WINDOW_1 :
						 FAULTLINE_MKEY_WINDOW_2,
					 0, &ibmw->rkey);
}

/* The device ignores the key's variant, which each binding changes. */
int faultline_dealloc_mw(struct ib_mw *ibmw)
{
	struct faultline_dev *dev = to_fdev(ibmw->device);

	return faultline_dead_ok(dev,
				 faultline_cmd_destroy_mkey(dev, ibmw->rkey));
}

struct ib_mr *faultline_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type,
				 u32 max_num_sg)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_mr *mr;
	u32 key;
	int err;

	if (type != IB_MR_TYPE_MEM_REG)
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_num_sg ||
	    max_num_sg > le32_to_cpu(dev->caps.max_fast_reg_pages))
		return ERR_PTR(-EINVAL);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->list_max = max_num_sg;
	mr->list = dma_alloc_coherent(&dev->pdev->dev,
				      max_num_sg * sizeof(*mr->list),
				      &mr->list_dma, GFP_KERNEL);
	if (!mr->list) {
		err = -ENOMEM;
		goto free_mr;
	}
	err = faultline_create_free_key(ibpd, FAULTLINE_MKEY_FAST_REG,
					max_num_sg, &key);
	if (err)
		goto free_list;
	mr->ibmr.lkey = key;
	mr->ibmr.rkey = key;
	return &mr->ibmr;

free_list:
	dma_free_coherent(&dev->pdev->dev, max_num_sg * sizeof(*mr->list),
			  mr->list, mr->list_dma);
free_mr:
	kfree(mr);
	return ERR_PTR(err);
}

int faultline_fast_dereg(struct faultline_mr *mr)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	int err;

	err = faultline_dead_ok(dev,
				faultline_cmd_destroy_mkey(dev, mr->ibmr.lkey));
	if (err)
		return err;
	dma_free_coherent(&dev->pdev->dev, mr->list_max * sizeof(*mr->list),
			  mr->list, mr->list_dma);
	kfree(mr);
	return 0;
}

static int faultline_add_page(struct ib_mr *ibmr, u64 addr)
{
	struct faultline_mr *mr = to_fmr(ibmr);

	if (mr->list_len == mr->list_max)
		return -ENOMEM;
	mr->list[mr->list_len++] = cpu_to_le64(addr);
	return 0;
}

int faultline_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int nents,
			unsigned int *offset)
{
	to_fmr(ibmr)->list_len = 0;
	return ib_sg_to_pages(ibmr, sg, nents, offset, faultline_add_page);
}

/* The device reads the page list when it executes the request. */
int faultline_fill_reg_mr(struct faultline_reg_mr_wqe *wqe,
			  const struct ib_reg_wr *wr)
{
	const struct faultline_mr *mr = to_fmr(wr->mr);

	BUILD_BUG_ON(sizeof(*wqe) != sizeof(struct faultline_sq_wqe));
	if (!mr->list || wr->access & ~(FAULTLINE_MR_ACCESS | IB_ACCESS_OPTIONAL))
		return -EINVAL;
	wqe->access = cpu_to_le32(wr->access & FAULTLINE_MR_ACCESS);
	wqe->key = cpu_to_le32(wr->key);
	wqe->iova = cpu_to_le64(mr->ibmr.iova);
	wqe->length = cpu_to_le64(mr->ibmr.length);
	wqe->list = cpu_to_le64(mr->list_dma);
	wqe->num_pages = cpu_to_le32(mr->list_len);
	wqe->page_shift = cpu_to_le32(ilog2(mr->ibmr.page_size));
	return 0;
}
