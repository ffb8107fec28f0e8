// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Memory regions: pinned user memory, and DMA regions of the kernel. */
#include <linux/dma-mapping.h>
#include <linux/log2.h>
#include <linux/slab.h>

#include <rdma/iter.h>

#include "faultline_odp.h"
#include "faultline_watch.h"

/* Hints that have no effect. */
#define FAULTLINE_MR_HINTS	(IB_ACCESS_HUGETLB | IB_ACCESS_OPTIONAL)

/* Limit on contiguous pages in one command, which bounds its duration. */
#define FAULTLINE_MAX_CONTIGUOUS	BIT(16)

u8 faultline_mkey_variant(struct faultline_dev *dev)
{
	return atomic_inc_return(&dev->mkey_variant);
}

/* Creates a key whose addresses are DMA addresses. */
int faultline_create_dma_mkey(struct faultline_dev *dev, u32 pdn, u32 access,
			      u32 *key)
{
	struct faultline_create_mkey params = {
		.pd = cpu_to_le32(pdn),
		.access = cpu_to_le32(access),
		.flags = cpu_to_le32(FAULTLINE_MKEY_PHYSICAL),
		.page_shift = PAGE_SHIFT,
		.variant = faultline_mkey_variant(dev),
	};

	return faultline_cmd_create_mkey(dev, &params, key);
}

struct ib_mr *faultline_get_dma_mr(struct ib_pd *ibpd, int access)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_mr *mr;
	u32 key;
	int err;

	if (access & ~(FAULTLINE_MR_ACCESS | FAULTLINE_MR_HINTS))
		return ERR_PTR(-EOPNOTSUPP);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	err = faultline_create_dma_mkey(dev, to_fpd(ibpd)->pdn,
					access & FAULTLINE_MR_ACCESS, &key);
	if (err) {
		kfree(mr);
		return ERR_PTR(err);
	}
	mr->ibmr.lkey = key;
	mr->ibmr.rkey = key;
	return &mr->ibmr;
}

static int faultline_map_flush(struct faultline_map *map)
{
	u64 list = map->contiguous ? map->first | map->perms : map->list_dma;
	int err;

	if (!map->count)
		return 0;
	err = faultline_tq_map(map->dev, map->key, map->iova, map->count,
			       map->page_shift, list, map->contiguous,
			       FAULTLINE_WAIT_POLL);
	map->iova += map->count << map->page_shift;
	map->count = 0;
	return err;
}

static int faultline_map_page(struct faultline_map *map, u64 addr)
{
	bool follows = map->contiguous && map->count < FAULTLINE_MAX_CONTIGUOUS &&
		       addr == map->first + (map->count << map->page_shift);
	int err;

	if (map->count && !follows && map->count >= map->list_len) {
		err = faultline_map_flush(map);
		if (err)
			return err;
	}
	if (!map->count) {
		map->first = addr;
		map->contiguous = true;
	} else if (!follows) {
		map->contiguous = false;
	}
	if (map->count < map->list_len)
		map->list[map->count] = cpu_to_le64(addr | map->perms);
	map->count++;
	return 0;
}

/*
 * Allocates what faultline_map_run() needs to write the entries of a pinned
 * region. faultline_map_done() frees it.
 */
int faultline_map_init(struct faultline_map *map, struct faultline_dev *dev,
		       struct ib_umem *umem, u32 key, u64 iova,
		       unsigned long page_size)
{
	*map = (struct faultline_map) {
		.dev = dev,
		.umem = umem,
		.key = key,
		.page_shift = ilog2(page_size),
		.perms = FAULTLINE_PTE_READ,
		.iova = ALIGN_DOWN(iova, page_size),
	};
	if (umem->writable)
		map->perms |= FAULTLINE_PTE_WRITE;
	map->list_len = clamp_t(u64, ib_umem_num_dma_blocks(umem, page_size), 1,
				max(le32_to_cpu(dev->caps.max_map_pages), 1U));
	map->list = dma_alloc_coherent(&dev->pdev->dev,
				       map->list_len * sizeof(*map->list),
				       &map->list_dma, GFP_KERNEL);
	return map->list ? 0 : -ENOMEM;
}

/* Allocates nothing, since MMU notifiers may wait for it. */
int faultline_map_run(struct faultline_map *map)
{
	struct ib_block_iter iter;
	int err;

	rdma_umem_for_each_dma_block(map->umem, &iter, BIT(map->page_shift)) {
		err = faultline_map_page(map,
					 rdma_block_iter_dma_address(&iter));
		if (err)
			return err;
	}
	return faultline_map_flush(map);
}

void faultline_map_done(struct faultline_map *map)
{
	dma_free_coherent(&map->dev->pdev->dev,
			  map->list_len * sizeof(*map->list), map->list,
			  map->list_dma);
}

/* Writes the device's entries of a pinned region. */
static int faultline_map_umem(struct faultline_dev *dev, struct ib_umem *umem,
			      u32 key, u64 iova, unsigned long page_size)
{
	struct faultline_map map;
	int err;

	err = faultline_map_init(&map, dev, umem, key, iova, page_size);
	if (err)
		return err;
	err = faultline_map_run(&map);
	faultline_map_done(&map);
	return err;
}

/* Pins memory; returns the best page size for the device. */
struct ib_umem *faultline_pin(struct ib_device *ibdev, u64 start, u64 length,
			      u64 virt_addr, int access,
			      unsigned long *page_size)
{
	struct faultline_dev *dev = to_fdev(ibdev);
	struct ib_umem *umem;

	umem = faultline_umem_get(ibdev, start, length, access);
	if (IS_ERR(umem))
		return umem;
	*page_size = ib_umem_find_best_pgsz(umem,
					    le64_to_cpu(dev->caps.page_sizes),
					    virt_addr);
	if (*page_size)
		return umem;
	ib_umem_release(umem);
	return ERR_PTR(-EINVAL);
}

/*
 * Returns the memory of a region: on demand, pinned, or NULL for an empty
 * region; and the best page size for the device.
 */
static struct ib_umem *faultline_get_umem(struct ib_device *ibdev, u64 start,
					  u64 length, u64 virt_addr, int access,
					  unsigned long *page_size)
{
	*page_size = PAGE_SIZE;
	if (!length)
		return NULL;
	if (access & IB_ACCESS_ON_DEMAND)
		return faultline_odp_umem(ibdev, start, length, virt_addr,
					  access);
	return faultline_pin(ibdev, start, length, virt_addr, access,
			     page_size);
}

/* Writes the device's first entries of a region, or attaches it. */
static int faultline_fill_region(struct faultline_mr *mr, u64 virt_addr,
				 unsigned long page_size)
{
	if (!mr->umem)
		return 0;
	if (mr->umem->is_odp)
		return faultline_odp_attach(mr);
	return faultline_map_umem(to_fdev(mr->ibmr.device), mr->umem,
				  mr->ibmr.lkey, virt_addr, page_size);
}

/*
 * Releases memory that the device has no entries of. `mr` is NULL if the memory
 * was never attached.
 */
static void faultline_put_umem(struct faultline_mr *mr, struct ib_umem *umem)
{
	if (umem && umem->is_odp)
		faultline_odp_release(mr, umem);
	else
		ib_umem_release(umem);
}

static void faultline_mkey_params(struct faultline_create_mkey *params,
				  struct ib_pd *ibpd, u64 length,
				  u64 virt_addr, int access,
				  unsigned long page_size)
{
	params->pd = cpu_to_le32(to_fpd(ibpd)->pdn);
	params->access = cpu_to_le32(access & (FAULTLINE_MR_ACCESS |
					       IB_ACCESS_ON_DEMAND));
	params->iova = cpu_to_le64(virt_addr);
	params->length = cpu_to_le64(length);
	params->page_shift = ilog2(page_size);
}

/* Creates a key without entries. */
int faultline_mr_create_mkey(struct ib_pd *ibpd, struct faultline_mr *mr,
			     u64 length, u64 virt_addr, int access,
			     unsigned long page_size)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	struct faultline_create_mkey params = {
		.variant = faultline_mkey_variant(dev),
	};
	u32 key;
	int err;

	faultline_mkey_params(&params, ibpd, length, virt_addr, access,
			      page_size);
	err = faultline_cmd_create_mkey(dev, &params, &key);
	if (err)
		return err;
	mr->access = access;
	mr->ibmr.device = ibpd->device;
	mr->ibmr.lkey = key;
	mr->ibmr.rkey = key;
	mr->ibmr.length = length;
	mr->ibmr.iova = virt_addr;
	mr->ibmr.page_size = page_size;
	return 0;
}

/* Checks what the core does not check. */
int faultline_check_region(struct faultline_dev *dev, u64 length,
			   u64 virt_addr, int access)
{
	if (access & ~(FAULTLINE_MR_ACCESS | FAULTLINE_MR_HINTS |
		       IB_ACCESS_ON_DEMAND))
		return -EOPNOTSUPP;
	if (access & IB_ACCESS_ON_DEMAND && !dev->odp)
		return -EOPNOTSUPP;
	/* An implicit region, or an empty one. */
	if ((access & IB_ACCESS_ON_DEMAND && length == U64_MAX) || !length)
		return 0;
	if (length > le64_to_cpu(dev->caps.max_mr_size) ||
	    virt_addr + (length - 1) < virt_addr)
		return -EINVAL;
	return 0;
}

struct ib_mr *faultline_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length,
				    u64 virt_addr, int access,
				    struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibpd->device);
	bool on_demand = access & IB_ACCESS_ON_DEMAND;
	struct faultline_reg_mr_req req;
	unsigned long page_size;
	struct faultline_mr *mr;
	int err;

	err = faultline_check_region(dev, length, virt_addr, access);
	if (!err)
		err = ib_respond_empty_udata(udata);
	if (err)
		return ERR_PTR(err);
	if (ib_is_udata_in_empty(udata)) {
		if (!IS_ENABLED(CONFIG_INFINIBAND_FAULTLINE_EXTENSIONS))
			return ERR_PTR(-EOPNOTSUPP);
		/* On-demand and empty regions cannot be watched. */
		err = on_demand || !length ? -EINVAL :
				  ib_copy_validate_udata_in(udata, req, reserved);
		return err ? ERR_PTR(err) :
			     faultline_watched_reg(ibpd, start, length,
						   virt_addr, access, &req);
	}
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	faultline_odp_init(mr);
	mr->umem = faultline_get_umem(ibpd->device, start, length, virt_addr,
				      access, &page_size);
	if (IS_ERR(mr->umem)) {
		err = PTR_ERR(mr->umem);
		goto free_mr;
	}
	err = faultline_mr_create_mkey(ibpd, mr, length, virt_addr, access,
				       page_size);
	if (err)
		goto release;
	err = faultline_fill_region(mr, virt_addr, page_size);
	if (err)
		goto destroy;
	return &mr->ibmr;

destroy:
	faultline_cmd_destroy_mkey(dev, mr->ibmr.lkey);
release:
	faultline_put_umem(mr, mr->umem);
free_mr:
	kfree(mr);
	return ERR_PTR(err);
}

/* Changes access rights or protection domain, not the pages. */
static int faultline_rereg_rights(struct faultline_mr *mr, struct ib_pd *ibpd,
				  int access)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	struct faultline_create_mkey params = {
		.flags = cpu_to_le32(FAULTLINE_MKEY_KEEP_PAGES),
	};
	int err;

	faultline_mkey_params(&params, ibpd, mr->ibmr.length, mr->ibmr.iova,
			      access, mr->ibmr.page_size);
	err = faultline_cmd_modify_mkey(dev, mr->ibmr.lkey, &params);
	if (!err)
		mr->access = access;
	return err;
}

/*
 * Replaces the memory of a key. If an error occurs after the key has been
 * changed, the region is empty and can only be deregistered.
 */
static int faultline_rereg_memory(struct faultline_mr *mr, struct ib_pd *ibpd,
				  u64 start, u64 length, u64 virt_addr,
				  int access)
{
	struct faultline_dev *dev = to_fdev(mr->ibmr.device);
	struct faultline_create_mkey params = {};
	bool was_on_demand = mr->on_demand;
	struct ib_umem *old = mr->umem;
	unsigned long page_size;
	struct ib_umem *umem;
	int err;

	umem = faultline_get_umem(mr->ibmr.device, start, length, virt_addr,
				  access, &page_size);
	if (IS_ERR(umem))
		return PTR_ERR(umem);
	if (was_on_demand)
		faultline_odp_detach(mr);
	faultline_mkey_params(&params, ibpd, length, virt_addr, access,
			      page_size);
	err = faultline_cmd_modify_mkey(dev, mr->ibmr.lkey, &params);
	if (err) {
		/* Restore the old state, if possible. */
		faultline_put_umem(NULL, umem);
		if (was_on_demand)
			faultline_odp_attach(mr);
		return err;
	}
	/* The device has no entry of the old memory any more. */
	faultline_put_umem(mr, old);
	mr->umem = umem;
	mr->access = access;
	mr->ibmr.length = length;
	mr->ibmr.iova = virt_addr;
	mr->ibmr.page_size = page_size;
	return faultline_fill_region(mr, virt_addr, page_size);
}

struct ib_mr *faultline_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start,
				      u64 length, u64 virt_addr, int access,
				      struct ib_pd *ibpd,
				      struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibmr->device);
	struct faultline_mr *mr = to_fmr(ibmr);
	struct ib_umem *umem = mr->umem;
	int err = ib_no_udata_io(udata);

	if (err)
		return ERR_PTR(err);
	/* Watches, device memory and dma-bufs belong to one registration. */
	if (flags & ~IB_MR_REREG_SUPPORTED || mr->watch || ibmr->dm ||
	    (umem && umem->is_dmabuf))
		return ERR_PTR(-EOPNOTSUPP);
	if (!(flags & IB_MR_REREG_PD))
		ibpd = ibmr->pd;
	if (!(flags & IB_MR_REREG_ACCESS))
		access = mr->access;
	if (!(flags & IB_MR_REREG_TRANS)) {
		start = umem ? umem->address : 0;
		length = ibmr->length;
		virt_addr = ibmr->iova;
	}
	err = faultline_check_region(dev, length, virt_addr, access);
	if (err)
		return ERR_PTR(err);
	/* New rights or on-demand paging may need new memory objects. */
	if ((flags & IB_MR_REREG_TRANS) ||
	    ((access ^ mr->access) & IB_ACCESS_ON_DEMAND) ||
	    (umem && ib_access_writable(access) && !umem->writable))
		err = faultline_rereg_memory(mr, ibpd, start, length, virt_addr,
					     access);
	else
		err = faultline_rereg_rights(mr, ibpd, access);
	return ERR_PTR(err);
}

int faultline_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct faultline_dev *dev = to_fdev(ibmr->device);
	struct faultline_mr *mr = to_fmr(ibmr);
	int err = ib_no_udata_io(udata);

	if (err)
		return err;
	if (faultline_is_watched(mr))
		return faultline_watched_dereg(mr);
	if (mr->list)
		return faultline_fast_dereg(mr);
	/*
	 * The key of an on-demand region is destroyed after its notifiers: an
	 * invalidation must not reach another region with the same key. Pinned
	 * memory must outlive the key.
	 *
	 * The device refuses to destroy a key with a bound memory window.
	 * Setting the present rights again detects this: if it fails, the
	 * region is unchanged. If a window is bound after that check, the
	 * region remains without memory.
	 */
	if (mr->on_demand || (mr->umem && mr->umem->is_odp)) {
		err = faultline_rereg_rights(mr, ibmr->pd, mr->access);
		if (err == -EBUSY)
			return err;
		/* After a failed change it is detached already. */
		if (mr->on_demand)
			faultline_odp_detach(mr);
		faultline_odp_release(mr, mr->umem);
		mr->umem = NULL;
	}
	err = faultline_dead_ok(dev,
				faultline_cmd_destroy_mkey(dev, ibmr->lkey));
	if (err)
		return err;
	ib_umem_release(mr->umem);
	kfree(mr);
	return 0;
}
