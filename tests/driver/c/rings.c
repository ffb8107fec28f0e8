/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Rings in kernel memory, as the driver and as the device address them. */
#include "device.h"

static void *device_memory(u64 address)
{
	return (void *)(uintptr_t)(address - SHIM_DMA_OFFSET);
}

/* The address of an offset, as firmware/nic finds it. */
static u64 device_address(const struct faultline_ring *ring, size_t offset)
{
	size_t page = offset >> ring->page_shift;
	const __le64 *list = device_memory(ring->addr);
	size_t per_page = FAULTLINE_PAGE_SIZE / sizeof(*list);

	CHECK(page < ring->num_pages);
	if (!ring->levels)
		return ring->addr + offset;
	if (ring->levels == 2) {
		list = device_memory(list[page / per_page]);
		page %= per_page;
	}
	return list[page] + (offset & (FAULTLINE_PAGE_SIZE - 1));
}

static void one_ring(struct faultline_dev *dev, u8 log_depth, u8 stride_shift)
{
	size_t end = (size_t)1 << (log_depth + stride_shift), offset;
	struct faultline_buf buf;

	CHECK(!faultline_buf_alloc(dev, &buf, log_depth, stride_shift));
	/* The last offset is the record's. */
	for (offset = 0; offset <= end; offset += (size_t)1 << stride_shift) {
		u64 *word = faultline_buf_at(&buf, offset);
		u64 address = device_address(&buf.ring, offset);

		CHECK(!*word);
		*word = offset + 1;
		CHECK(*(u64 *)device_memory(address) == offset + 1);
		/* An entry does not cross into other memory. */
		if (offset < end)
			memset(word, 1, (size_t)1 << stride_shift);
		else
			memset(word, 1, FAULTLINE_RING_RECORD_SIZE);
		CHECK(device_address(&buf.ring, offset + 8) == address + 8);
	}
	faultline_buf_created(dev, &buf);
	faultline_buf_free(dev, &buf);
}

void test_rings(void)
{
	struct faultline_dev *dev = malloc(sizeof(*dev));
	u8 log_depth, stride_shift;

	begin(dev);
	for (log_depth = 2; log_depth <= 12; log_depth++)
		for (stride_shift = 5; stride_shift <= FAULTLINE_MAX_STRIDE_SHIFT; stride_shift++)
			one_ring(dev, log_depth, stride_shift);
	free(dev);
}
