// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Memory of rings: kernel memory, or pinned memory of processes. */
#include <linux/dma-mapping.h>
#include <linux/log2.h>
#include <linux/slab.h>

#include <rdma/iter.h>

#include "faultline_ib.h"

/* Page addresses in one page of a list. */
#define FAULTLINE_ADDRS_PER_PAGE	(FAULTLINE_PAGE_SIZE / sizeof(__le64))

static size_t faultline_ring_bytes(u8 log_depth, u8 stride_shift)
{
	return PAGE_ALIGN(((size_t)1 << (log_depth + stride_shift)) +
			  FAULTLINE_RING_RECORD_SIZE);
}

/*
 * Allocates the list of page addresses, with one or two levels. Two levels are
 * one allocation: the lists, then a page with the addresses of the lists.
 */
static int faultline_buf_list(struct faultline_dev *dev,
			      struct faultline_buf *buf)
{
	size_t pages = buf->size >> PAGE_SHIFT;
	size_t lists = DIV_ROUND_UP(pages, FAULTLINE_ADDRS_PER_PAGE);
	__le64 *top;
	size_t i;

	if (lists > FAULTLINE_ADDRS_PER_PAGE)
		return -EINVAL;
	buf->list_size = (lists > 1 ? lists + 1 : 1) * FAULTLINE_PAGE_SIZE;
	buf->list = dma_alloc_coherent(&dev->pdev->dev, buf->list_size,
				       &buf->list_dma, GFP_KERNEL);
	if (!buf->list)
		return -ENOMEM;
	buf->ring.num_pages = cpu_to_le32(pages);
	buf->ring.page_shift = PAGE_SHIFT;
	if (lists == 1) {
		buf->ring.addr = cpu_to_le64(buf->list_dma);
		buf->ring.levels = 1;
		return 0;
	}
	top = buf->list + lists * FAULTLINE_ADDRS_PER_PAGE;
	for (i = 0; i < lists; i++)
		top[i] = cpu_to_le64(buf->list_dma + i * FAULTLINE_PAGE_SIZE);
	buf->ring.addr = cpu_to_le64(buf->list_dma +
				     lists * FAULTLINE_PAGE_SIZE);
	buf->ring.levels = 2;
	return 0;
}

/* Lists the pages of memory of a process. */
static int faultline_buf_list_umem(struct faultline_dev *dev,
				   struct faultline_buf *buf,
				   struct ib_umem *umem)
{
	struct ib_block_iter iter;
	size_t i = 0;
	int err;

	err = faultline_buf_list(dev, buf);
	if (err)
		return err;
	rdma_for_each_block(umem->sgt_append.sgt.sgl, &iter,
			    umem->sgt_append.sgt.nents, PAGE_SIZE)
		buf->list[i++] =
			cpu_to_le64(rdma_block_iter_dma_address(&iter));
	return 0;
}

/* Describes contiguous memory, which needs no page list. */
static void faultline_buf_contiguous(struct faultline_buf *buf, dma_addr_t dma)
{
	buf->ring.addr = cpu_to_le64(dma);
	buf->ring.num_pages = cpu_to_le32(buf->size >> PAGE_SHIFT);
	buf->ring.page_shift = PAGE_SHIFT;
	buf->ring.levels = 0;
}

/* The bytes of a part: only the last one may be shorter. */
static size_t faultline_part_size(const struct faultline_buf *buf, size_t i)
{
	return min_t(size_t, FAULTLINE_PART_SIZE,
		     buf->size - (i << FAULTLINE_PART_SHIFT));
}

/* Lists the pages of all parts. */
static int faultline_buf_list_parts(struct faultline_dev *dev,
				    struct faultline_buf *buf)
{
	size_t pages = buf->size >> PAGE_SHIFT;
	size_t i, offset;
	int err;

	err = faultline_buf_list(dev, buf);
	if (err)
		return err;
	for (i = 0; i < pages; i++) {
		offset = i << PAGE_SHIFT;
		buf->list[i] =
			cpu_to_le64(buf->parts[offset >> FAULTLINE_PART_SHIFT].dma +
				    (offset & (FAULTLINE_PART_SIZE - 1)));
	}
	return 0;
}

/*
 * Allocates a zeroed ring in kernel memory. Both sides write to it at any time,
 * so it is coherent memory; a large one consists of parts, since contiguous
 * pages are rare.
 */
int faultline_buf_alloc(struct faultline_dev *dev, struct faultline_buf *buf,
			u8 log_depth, u8 stride_shift)
{
	struct faultline_part *part;
	size_t num, i;
	int err = 0;

	memset(buf, 0, sizeof(*buf));
	buf->size = faultline_ring_bytes(log_depth, stride_shift);
	num = DIV_ROUND_UP(buf->size, FAULTLINE_PART_SIZE);
	buf->parts = kvcalloc(num, sizeof(*buf->parts), GFP_KERNEL);
	if (!buf->parts)
		return -ENOMEM;
	for (i = 0; i < num; i++) {
		part = &buf->parts[i];
		part->cpu = dma_alloc_coherent(&dev->pdev->dev,
					       faultline_part_size(buf, i),
					       &part->dma, GFP_KERNEL);
		if (!part->cpu) {
			faultline_buf_free(dev, buf);
			return -ENOMEM;
		}
		buf->num_parts++;
	}
	if (num == 1)
		faultline_buf_contiguous(buf, buf->parts[0].dma);
	else
		err = faultline_buf_list_parts(dev, buf);
	if (err)
		faultline_buf_free(dev, buf);
	return err;
}

/* Pins a ring of a process, which must have room for `entries` entries. */
int faultline_buf_pin(struct faultline_dev *dev, struct faultline_buf *buf,
		      u64 addr, u32 log_depth, u8 stride_shift, u32 entries)
{
	struct ib_umem *umem;
	int err;

	memset(buf, 0, sizeof(*buf));
	if (log_depth > FAULTLINE_MAX_LOG_DEPTH ||
	    stride_shift > FAULTLINE_MAX_STRIDE_SHIFT ||
	    BIT(log_depth) < entries || !PAGE_ALIGNED(addr))
		return -EINVAL;
	buf->size = faultline_ring_bytes(log_depth, stride_shift);
	umem = faultline_umem_get(&dev->ib->ibdev, addr, buf->size,
				  IB_ACCESS_LOCAL_WRITE);
	if (IS_ERR(umem))
		return PTR_ERR(umem);
	buf->umem = umem;

	if (umem->sgt_append.sgt.nents == 1) {
		faultline_buf_contiguous(buf,
			sg_dma_address(umem->sgt_append.sgt.sgl));
		return 0;
	}
	err = faultline_buf_list_umem(dev, buf, umem);
	if (err)
		faultline_buf_free(dev, buf);
	return err;
}

/* Frees the page lists after the create command, which has read them. */
void faultline_buf_created(struct faultline_dev *dev,
			   struct faultline_buf *buf)
{
	if (!buf->list)
		return;
	dma_free_coherent(&dev->pdev->dev, buf->list_size, buf->list,
			  buf->list_dma);
	buf->list = NULL;
}

void faultline_buf_free(struct faultline_dev *dev, struct faultline_buf *buf)
{
	size_t i;

	faultline_buf_created(dev, buf);
	for (i = 0; i < buf->num_parts; i++)
		dma_free_coherent(&dev->pdev->dev, faultline_part_size(buf, i),
				  buf->parts[i].cpu, buf->parts[i].dma);
	kvfree(buf->parts);
	buf->parts = NULL;
	buf->num_parts = 0;
	ib_umem_release(buf->umem);
	buf->umem = NULL;
}

/* Allocates a kernel work queue for `depth` requests of `stride` bytes. */
int faultline_wq_alloc(struct faultline_dev *dev, struct faultline_wq *wq,
		       u32 depth, u32 stride)
{
	int err;

	wq->log_depth = order_base_2(max(depth, 4U));
	wq->stride_shift = order_base_2(stride);
	err = faultline_buf_alloc(dev, &wq->buf, wq->log_depth,
				  wq->stride_shift);
	if (err)
		return err;
	wq->wr_id = kvcalloc(faultline_wq_depth(wq), sizeof(*wq->wr_id),
			     GFP_KERNEL);
	wq->room = kvcalloc(faultline_wq_depth(wq), sizeof(*wq->room),
			    GFP_KERNEL);
	if (!wq->wr_id || !wq->room) {
		faultline_wq_free(dev, wq);
		return -ENOMEM;
	}
	return 0;
}

void faultline_wq_free(struct faultline_dev *dev, struct faultline_wq *wq)
{
	faultline_buf_free(dev, &wq->buf);
	kvfree(wq->room);
	kvfree(wq->wr_id);
	wq->room = NULL;
	wq->wr_id = NULL;
}
