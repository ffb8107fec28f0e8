// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Memory of rings: kernel memory, or pinned memory of processes. */
#include <linux/dma-mapping.h>
#include <linux/log2.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

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
 * Builds the list of page addresses, with one or two levels. Two levels are one
 * allocation: the lists, then a page with the addresses of the lists.
 */
static int faultline_buf_list(struct faultline_dev *dev,
			      struct faultline_buf *buf, struct sg_table *sgt)
{
	size_t pages = buf->size >> PAGE_SHIFT;
	size_t lists = DIV_ROUND_UP(pages, FAULTLINE_ADDRS_PER_PAGE);
	struct ib_block_iter iter;
	size_t i = 0;
	__le64 *top;

	if (lists > FAULTLINE_ADDRS_PER_PAGE)
		return -EINVAL;
	buf->list_size = (lists > 1 ? lists + 1 : 1) * FAULTLINE_PAGE_SIZE;
	buf->list = dma_alloc_coherent(&dev->pdev->dev, buf->list_size,
				       &buf->list_dma, GFP_KERNEL);
	if (!buf->list)
		return -ENOMEM;
	rdma_for_each_block(sgt->sgl, &iter, sgt->nents, PAGE_SIZE)
		buf->list[i++] =
			cpu_to_le64(rdma_block_iter_dma_address(&iter));

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

/* Describes contiguous memory, which needs no page list. */
static void faultline_buf_contiguous(struct faultline_buf *buf, dma_addr_t dma)
{
	buf->ring.addr = cpu_to_le64(dma);
	buf->ring.num_pages = cpu_to_le32(buf->size >> PAGE_SHIFT);
	buf->ring.page_shift = PAGE_SHIFT;
	buf->ring.levels = 0;
}

/* Allocates a ring that is too large for a contiguous allocation. */
static int faultline_buf_scattered(struct faultline_dev *dev,
				   struct faultline_buf *buf)
{
	size_t count = buf->size >> PAGE_SHIFT;
	struct page **pages;
	size_t i;
	int err;

	buf->cpu = vzalloc(buf->size);
	if (!buf->cpu)
		return -ENOMEM;
	pages = kvmalloc_array(count, sizeof(*pages), GFP_KERNEL);
	if (!pages) {
		err = -ENOMEM;
		goto err_free;
	}
	for (i = 0; i < count; i++)
		pages[i] = vmalloc_to_page(buf->cpu + (i << PAGE_SHIFT));
	err = sg_alloc_table_from_pages(&buf->sgt, pages, count, 0, buf->size,
					GFP_KERNEL);
	kvfree(pages);
	if (err)
		goto err_free;
	err = dma_map_sgtable(&dev->pdev->dev, &buf->sgt, DMA_BIDIRECTIONAL, 0);
	if (err)
		goto err_table;
	err = faultline_buf_list(dev, buf, &buf->sgt);
	if (err)
		goto err_unmap;
	buf->scattered = true;
	return 0;

err_unmap:
	dma_unmap_sgtable(&dev->pdev->dev, &buf->sgt, DMA_BIDIRECTIONAL, 0);
err_table:
	sg_free_table(&buf->sgt);
err_free:
	vfree(buf->cpu);
	buf->cpu = NULL;
	return err;
}

/* Allocates a zeroed ring in kernel memory. */
int faultline_buf_alloc(struct faultline_dev *dev, struct faultline_buf *buf,
			u8 log_depth, u8 stride_shift)
{
	memset(buf, 0, sizeof(*buf));
	buf->size = faultline_ring_bytes(log_depth, stride_shift);
	if (buf->size > PAGE_SIZE << PAGE_ALLOC_COSTLY_ORDER)
		return faultline_buf_scattered(dev, buf);
	buf->cpu = dma_alloc_coherent(&dev->pdev->dev, buf->size, &buf->dma,
				      GFP_KERNEL);
	if (!buf->cpu)
		return -ENOMEM;
	faultline_buf_contiguous(buf, buf->dma);
	return 0;
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
	err = faultline_buf_list(dev, buf, &umem->sgt_append.sgt);
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
	faultline_buf_created(dev, buf);
	if (buf->scattered) {
		dma_unmap_sgtable(&dev->pdev->dev, &buf->sgt,
				  DMA_BIDIRECTIONAL, 0);
		sg_free_table(&buf->sgt);
		vfree(buf->cpu);
		buf->scattered = false;
	} else if (buf->cpu) {
		dma_free_coherent(&dev->pdev->dev, buf->size, buf->cpu,
				  buf->dma);
	}
	ib_umem_release(buf->umem);
	buf->cpu = NULL;
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
