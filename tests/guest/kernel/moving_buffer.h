/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* /dev/moving_buffer: dma-bufs that move on request. */
#ifndef MOVING_BUFFER_H
#define MOVING_BUFFER_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* A new buffer of this number of bytes; returns its file descriptor. */
#define MOVING_BUFFER_CREATE	_IOW('m', 1, __u64)
/*
 * The buffer behind this descriptor gets other pages, with the same content.
 * EBUSY: an importer has pinned it. ENOTEMPTY: an importer has kept the old
 * pages mapped.
 */
#define MOVING_BUFFER_MOVE	_IOW('m', 2, __u64)
/* How many bytes have been written to pages after the buffer had left them. */
#define MOVING_BUFFER_STALE	_IOW('m', 3, __u64)

#endif
