// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/*
 * An owner of dma-bufs that moves them on request, as graphics drivers do when
 * they run out of their own memory. For tests: pages that a buffer has left are
 * filled with a pattern and kept until the buffer goes, so that a device that
 * still writes to them is found out.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "compat_config.h"
#include "moving_buffer.h"

/* MODULE_IMPORT_NS() takes a string in newer kernels, and a token in others. */
MODULE_INFO(import_ns, "DMA_BUF");

/* Newer kernels have renamed the function together with the callback. */
#ifndef FAULTLINE_HAVE_INVALIDATE_MAPPINGS
#define dma_buf_invalidate_mappings dma_buf_move_notify
#endif

#define MOVING_BUFFER_MAX	(64UL << 20)
#define MOVING_BUFFER_MOVES	64
#define MOVING_BUFFER_PATTERN	0xdb

/* All under the reservation lock of the buffer. */
struct moving_buffer {
	unsigned long num;
	struct page **pages;
	unsigned int mappings;
	unsigned int pins;
	unsigned int moves;
	struct page **old[MOVING_BUFFER_MOVES];
};

static void free_pages_of(struct page **pages, unsigned long num)
{
	unsigned long i;

	for (i = 0; pages && i < num && pages[i]; i++)
		put_page(pages[i]);
	kvfree(pages);
}

static struct page **alloc_pages_for(unsigned long num)
{
	struct page **pages = kvcalloc(num, sizeof(*pages), GFP_KERNEL);
	unsigned long i;

	for (i = 0; pages && i < num; i++) {
		pages[i] = alloc_page(GFP_HIGHUSER | __GFP_ZERO);
		if (!pages[i]) {
			free_pages_of(pages, num);
			return NULL;
		}
	}
	return pages;
}

static int moving_buffer_pin(struct dma_buf_attachment *attach)
{
	struct moving_buffer *buffer = attach->dmabuf->priv;

	buffer->pins++;
	return 0;
}

static void moving_buffer_unpin(struct dma_buf_attachment *attach)
{
	struct moving_buffer *buffer = attach->dmabuf->priv;

	buffer->pins--;
}

static struct sg_table *moving_buffer_map(struct dma_buf_attachment *attach,
					  enum dma_data_direction dir)
{
	struct moving_buffer *buffer = attach->dmabuf->priv;
	struct sg_table *table = kzalloc(sizeof(*table), GFP_KERNEL);
	int err;

	if (!table)
		return ERR_PTR(-ENOMEM);
	err = sg_alloc_table_from_pages(table, buffer->pages, buffer->num, 0,
					buffer->num << PAGE_SHIFT, GFP_KERNEL);
	if (err)
		goto free;
	err = dma_map_sgtable(attach->dev, table, dir, 0);
	if (err)
		goto free_table;
	buffer->mappings++;
	return table;

free_table:
	sg_free_table(table);
free:
	kfree(table);
	return ERR_PTR(err);
}

static void moving_buffer_unmap(struct dma_buf_attachment *attach,
				struct sg_table *table,
				enum dma_data_direction dir)
{
	struct moving_buffer *buffer = attach->dmabuf->priv;

	dma_unmap_sgtable(attach->dev, table, dir, 0);
	sg_free_table(table);
	kfree(table);
	buffer->mappings--;
}

static void moving_buffer_release(struct dma_buf *dmabuf)
{
	struct moving_buffer *buffer = dmabuf->priv;
	unsigned int i;

	for (i = 0; i < buffer->moves; i++)
		free_pages_of(buffer->old[i], buffer->num);
	free_pages_of(buffer->pages, buffer->num);
	kfree(buffer);
}

/* Shows the pages of now: after a move it has to be mapped anew. */
static int moving_buffer_mmap(struct dma_buf *dmabuf,
			      struct vm_area_struct *vma)
{
	struct moving_buffer *buffer = dmabuf->priv;
	unsigned long num = vma_pages(vma);

	if (vma->vm_pgoff || num > buffer->num)
		return -EINVAL;
	return vm_insert_pages(vma, vma->vm_start, buffer->pages, &num);
}

static const struct dma_buf_ops moving_buffer_ops = {
	.pin = moving_buffer_pin,
	.unpin = moving_buffer_unpin,
	.map_dma_buf = moving_buffer_map,
	.unmap_dma_buf = moving_buffer_unmap,
	.release = moving_buffer_release,
	.mmap = moving_buffer_mmap,
};

static int moving_buffer_create(u64 size)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct moving_buffer *buffer;
	struct dma_buf *dmabuf;
	int fd;

	if (!size || size > MOVING_BUFFER_MAX || !PAGE_ALIGNED(size))
		return -EINVAL;
	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);
	if (!buffer)
		return -ENOMEM;
	buffer->num = size >> PAGE_SHIFT;
	buffer->pages = alloc_pages_for(buffer->num);
	if (!buffer->pages) {
		kfree(buffer);
		return -ENOMEM;
	}
	info.ops = &moving_buffer_ops;
	info.size = size;
	info.flags = O_RDWR;
	info.priv = buffer;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		free_pages_of(buffer->pages, buffer->num);
		kfree(buffer);
		return PTR_ERR(dmabuf);
	}
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}

static int moving_buffer_move(struct dma_buf *dmabuf)
{
	struct moving_buffer *buffer = dmabuf->priv;
	struct page **pages;
	unsigned long i;

	dma_resv_assert_held(dmabuf->resv);
	if (buffer->pins)
		return -EBUSY;
	if (buffer->moves == MOVING_BUFFER_MOVES)
		return -ENOSPC;
	pages = alloc_pages_for(buffer->num);
	if (!pages)
		return -ENOMEM;
	dma_buf_invalidate_mappings(dmabuf);
	if (buffer->mappings) {
		free_pages_of(pages, buffer->num);
		return -ENOTEMPTY;
	}
	for (i = 0; i < buffer->num; i++) {
		copy_highpage(pages[i], buffer->pages[i]);
		memset_page(buffer->pages[i], 0, MOVING_BUFFER_PATTERN,
			    PAGE_SIZE);
	}
	buffer->old[buffer->moves++] = buffer->pages;
	buffer->pages = pages;
	return 0;
}

static int moving_buffer_stale(struct dma_buf *dmabuf)
{
	struct moving_buffer *buffer = dmabuf->priv;
	unsigned long i, at;
	unsigned int move;
	int stale = 0;

	dma_resv_assert_held(dmabuf->resv);
	for (move = 0; move < buffer->moves; move++) {
		for (i = 0; i < buffer->num; i++) {
			u8 *bytes = kmap_local_page(buffer->old[move][i]);

			for (at = 0; at < PAGE_SIZE; at++)
				stale += bytes[at] != MOVING_BUFFER_PATTERN;
			kunmap_local(bytes);
		}
	}
	return stale;
}

static long moving_buffer_ioctl(struct file *file, unsigned int cmd,
				unsigned long arg)
{
	struct dma_buf *dmabuf;
	long ret = -ENOTTY;
	u64 value;

	if (copy_from_user(&value, (void __user *)arg, sizeof(value)))
		return -EFAULT;
	if (cmd == MOVING_BUFFER_CREATE)
		return moving_buffer_create(value);
	dmabuf = dma_buf_get(value);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	if (dmabuf->ops == &moving_buffer_ops) {
		dma_resv_lock(dmabuf->resv, NULL);
		if (cmd == MOVING_BUFFER_MOVE)
			ret = moving_buffer_move(dmabuf);
		else if (cmd == MOVING_BUFFER_STALE)
			ret = moving_buffer_stale(dmabuf);
		dma_resv_unlock(dmabuf->resv);
	}
	dma_buf_put(dmabuf);
	return ret;
}

static const struct file_operations moving_buffer_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = moving_buffer_ioctl,
};

static struct miscdevice moving_buffer_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "moving_buffer",
	.fops = &moving_buffer_fops,
};

module_misc_device(moving_buffer_device);

MODULE_DESCRIPTION("dma-bufs that move on request, for tests");
MODULE_LICENSE("Dual BSD/GPL");
