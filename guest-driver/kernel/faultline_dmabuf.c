// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Regions of other devices' buffers (dma-buf)
 *
 * On a device with on-demand paging the buffer is not pinned: its exporter may
 * move it. It then calls faultline_dmabuf_move_notify(), which removes the
 * device's entries. The next access faults, and the fault maps the whole
 * buffer where it is now. If device or kernel have no on-demand paging, the
 * buffer is pinned.
 *
 * Locking: the buffer's reservation lock protects the DMA mapping (`sgt`) and
 * the device's entries, as the umem_mutex does for other on-demand regions.
 * The exporter holds it when it calls faultline_dmabuf_move_notify(), in any
 * context that may sleep.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/slab.h>

#include "faultline_odp.h"

/* Removes the device's entries; under the reservation lock. */
static void faultline_dmabuf_unmap_locked(struct faultline_mr *mr)
{
	struct ib_umem_dmabuf *umem = to_ib_umem_dmabuf(mr->umem);
	u32 removed = 0;

	if (!umem->sgt)
		return;
	/* Fails only if the device is dead: then it has stopped all DMA. */
	faultline_tq_invalidate(to_fdev(mr->ibmr.device), mr->ibmr.lkey,
				mr->ibmr.iova, mr->ibmr.length, &removed);
	atomic64_add(removed, &mr->page_invalidations);
	ib_umem_dmabuf_unmap_pages(umem);
}

/*
 * The exporter is about to move the buffer. Before the region has a key, and
 * after it has been detached, nothing is mapped.
 */
static void faultline_dmabuf_move_notify(struct dma_buf_attachment *attach)
{
	struct ib_umem_dmabuf *umem = attach->importer_priv;

	dma_resv_assert_held(attach->dmabuf->resv);
	if (umem->sgt)
		faultline_dmabuf_unmap_locked(umem->private);
}

static const struct dma_buf_attach_ops faultline_dmabuf_ops = {
	.FAULTLINE_MOVE_NOTIFY = faultline_dmabuf_move_notify,
};

/* Uses the largest page size that the buffer's pages allow. */
static int faultline_dmabuf_map_locked(struct faultline_mr *mr)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	struct faultline_map map;
	unsigned long page_size;
	int err;

	page_size = ib_umem_find_best_pgsz(mr->umem,
					   le64_to_cpu(dev->caps.page_sizes),
					   mr->ibmr.iova);
	if (!page_size)
		return -EINVAL;
	err = faultline_map_init(&map, dev, mr->umem, mr->ibmr.lkey,
				 mr->ibmr.iova, page_size);
	if (err)
		return err;
	err = faultline_map_run(&map);
	faultline_map_done(&map);
	return err;
}

/* Maps the whole buffer where it is now, unless it is mapped. */
int faultline_dmabuf_map(struct faultline_mr *mr)
{
	struct ib_umem_dmabuf *umem = to_ib_umem_dmabuf(mr->umem);
	struct dma_resv *resv = umem->attach->dmabuf->resv;
	int err = 0;

	dma_resv_lock(resv, NULL);
	if (!umem->sgt) {
		err = ib_umem_dmabuf_map_pages(umem);
		if (!err)
			err = faultline_dmabuf_map_locked(mr);
		if (err)
			faultline_dmabuf_unmap_locked(mr);
	}
	dma_resv_unlock(resv);
	return err;
}

/* Unmaps the buffer of a detached region; no fault maps it again. */
void faultline_dmabuf_unmap(struct faultline_mr *mr)
{
	struct dma_resv *resv =
		to_ib_umem_dmabuf(mr->umem)->attach->dmabuf->resv;

	dma_resv_lock(resv, NULL);
	faultline_dmabuf_unmap_locked(mr);
	dma_resv_unlock(resv);
}

static struct ib_umem_dmabuf *
faultline_dmabuf_get(struct ib_device *ibdev, u64 offset, u64 length, int fd,
		     int access)
{
	if (access & IB_ACCESS_ON_DEMAND)
		return ib_umem_dmabuf_get(ibdev, offset, length, fd, access,
					  &faultline_dmabuf_ops);
	return ib_umem_dmabuf_get_pinned(ibdev, offset, length, fd, access);
}

struct ib_mr *faultline_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset,
					   u64 length, u64 virt_addr, int fd,
					   int access,
					   struct uverbs_attr_bundle *attrs)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	bool on_demand = dev->odp;
	struct ib_umem_dmabuf *umem;
	struct faultline_mr *mr;
	int err;

	if (access & IB_ACCESS_ON_DEMAND)
		return ERR_PTR(-EOPNOTSUPP);
	err = faultline_check_region(dev, length, virt_addr, access);
	if (err)
		return ERR_PTR(err);
	/* An empty region would not refer to the buffer. */
	if (!length)
		return ERR_PTR(-EINVAL);
	/* Offset and IOVA must have the same offset within a page. */
	if ((offset ^ virt_addr) & ~PAGE_MASK)
		return ERR_PTR(-EINVAL);
	if (on_demand)
		access |= IB_ACCESS_ON_DEMAND;
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->dma_buf = true;
	faultline_odp_init(mr);
	umem = faultline_dmabuf_get(ibpd->device, offset, length, fd, access);
	if (IS_ERR(umem)) {
		err = PTR_ERR(umem);
		goto free_mr;
	}
	umem->private = mr;
	mr->umem = &umem->umem;
	err = faultline_mr_create_mkey(ibpd, mr, length, virt_addr, access,
				       PAGE_SIZE);
	if (err)
		goto release;
	err = on_demand ? faultline_odp_attach(mr) :
			  faultline_dmabuf_map_locked(mr);
	if (err)
		goto destroy;
	return &mr->ibmr;

destroy:
	faultline_cmd_destroy_mkey(dev, mr->ibmr.lkey);
release:
	ib_umem_release(mr->umem);
free_mr:
	kfree(mr);
	return ERR_PTR(err);
}
