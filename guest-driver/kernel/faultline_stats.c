// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/**
 * DOC: Counters
 *
 * Counters for `rdma statistic`, sysfs and ethtool: those of the device, and
 * counter sets that are bound to queue pairs. The core adds up the device's
 * counters and the sets to get those of the port.
 *
 * Locking: faultline_dev.counters_lock (a mutex) protects the buffer into which
 * the device writes counters, during the command and until they are copied. It
 * is taken under the locks of the readers: those of the core's statistics, or
 * the RTNL lock. The core's lock of a counter set serializes binding, and
 * protects the number of the set (rdma_counter.id).
 *
 * Counters of the driver are atomic, and workers change them without a lock.
 */
#include <rdma/rdma_netlink.h>
#include <rdma/restrack.h>

#include "faultline_ib.h"

#define FAULTLINE_COUNTER(counter)	\
	[FAULTLINE_CNT_##counter] = { .name = #counter }

const struct rdma_stat_desc faultline_stat_descs[] = {
	FAULTLINE_COUNTER(tx_packets),
	FAULTLINE_COUNTER(tx_bytes),
	FAULTLINE_COUNTER(rx_packets),
	FAULTLINE_COUNTER(rx_bytes),
	FAULTLINE_COUNTER(tx_roce_packets),
	FAULTLINE_COUNTER(rx_roce_packets),
	FAULTLINE_COUNTER(rx_filtered),
	FAULTLINE_COUNTER(rx_no_buffer),
	FAULTLINE_COUNTER(rx_malformed),
	FAULTLINE_COUNTER(rx_icrc_errors),
	FAULTLINE_COUNTER(rx_bad_qp),
	FAULTLINE_COUNTER(rx_bad_pkey),
	FAULTLINE_COUNTER(rx_bad_qkey),
	FAULTLINE_COUNTER(rx_bad_source),
	FAULTLINE_COUNTER(out_of_buffer),
	FAULTLINE_COUNTER(out_of_sequence),
	FAULTLINE_COUNTER(duplicate_request),
	FAULTLINE_COUNTER(local_ack_timeout_err),
	FAULTLINE_COUNTER(retransmitted_packets),
	FAULTLINE_COUNTER(rnr_nak_sent),
	FAULTLINE_COUNTER(rnr_nak_received),
	FAULTLINE_COUNTER(packet_seq_err_sent),
	FAULTLINE_COUNTER(packet_seq_err),
	FAULTLINE_COUNTER(resp_remote_access_errors),
	FAULTLINE_COUNTER(req_remote_access_errors),
	FAULTLINE_COUNTER(resp_invalid_request),
	FAULTLINE_COUNTER(req_remote_invalid_request),
	FAULTLINE_COUNTER(cqe_error),
	FAULTLINE_COUNTER(cqe_flush_error),
	FAULTLINE_COUNTER(np_ecn_marked_roce_packets),
	FAULTLINE_COUNTER(np_cnp_sent),
	FAULTLINE_COUNTER(rp_cnp_handled),
	FAULTLINE_COUNTER(doorbell_errors),
	FAULTLINE_COUNTER(register_errors),
	FAULTLINE_COUNTER(dma_errors),
	FAULTLINE_COUNTER(command_errors),
	FAULTLINE_COUNTER(page_faults),
	FAULTLINE_COUNTER(page_faults_resumed),
	FAULTLINE_COUNTER(page_faults_joined),
	FAULTLINE_COUNTER(page_fault_overflow),
	FAULTLINE_COUNTER(page_invalidations),
	FAULTLINE_COUNTER(page_faults_failed),
	FAULTLINE_COUNTER(page_fault_timeouts),
	FAULTLINE_COUNTER(page_fault_rnr),
	FAULTLINE_COUNTER(page_fault_drops),
	FAULTLINE_COUNTER(parked_packets),
	FAULTLINE_COUNTER(park_overflow),
	FAULTLINE_COUNTER(stalls),
	FAULTLINE_COUNTER(stall_timeouts),
	FAULTLINE_COUNTER(stall_overflow),
	FAULTLINE_COUNTER(ready_notices),
	FAULTLINE_COUNTER(tlb_hits),
	FAULTLINE_COUNTER(tlb_misses),
	FAULTLINE_COUNTER(tlb_shootdowns),
	FAULTLINE_COUNTER(tx_mcast_packets),
	FAULTLINE_COUNTER(rx_mcast_packets),
	FAULTLINE_COUNTER(rx_mcast_copies),
	FAULTLINE_COUNTER(rx_steered),
	FAULTLINE_COUNTER(rx_flow_drops),
	FAULTLINE_COUNTER(rx_csum_errors),
	FAULTLINE_COUNTER(tx_segmented),
	FAULTLINE_COUNTER(resp_local_length_error),
	FAULTLINE_COUNTER(tx_bad_source),
	FAULTLINE_COUNTER(table_bytes),
	FAULTLINE_COUNTER(ready_received),
	FAULTLINE_COUNTER(ready_refused),
	FAULTLINE_COUNTER(tx_interface_down),
	FAULTLINE_COUNTER(rx_interface_down),
	FAULTLINE_COUNTER(tx_over_mtu),
	FAULTLINE_COUNTER(rx_over_mtu),
	FAULTLINE_COUNTER(tx_bad_gid),
	FAULTLINE_COUNTER(rx_bad_gid),
	FAULTLINE_COUNTER(tx_bad_address),
	FAULTLINE_COUNTER(tx_ethernet_packets),
	FAULTLINE_COUNTER(tx_ethernet_bytes),
	FAULTLINE_COUNTER(rx_ethernet_packets),
	FAULTLINE_COUNTER(rx_ethernet_bytes),
	FAULTLINE_COUNTER(rx_port_mcast_packets),
	FAULTLINE_COUNTER(rx_read_requests),
	FAULTLINE_COUNTER(rx_write_requests),
	FAULTLINE_COUNTER(rx_atomic_requests),
	FAULTLINE_COUNTER(rnr_nak_retry_err),
	FAULTLINE_COUNTER(implied_nak_seq_err),
	FAULTLINE_COUNTER(req_cqe_error),
	FAULTLINE_COUNTER(req_cqe_flush_error),
	FAULTLINE_COUNTER(resp_cqe_error),
	FAULTLINE_COUNTER(resp_cqe_flush_error),
	FAULTLINE_COUNTER(req_transport_retries_exceeded),
	FAULTLINE_COUNTER(req_rnr_retries_exceeded),
	FAULTLINE_COUNTER(rp_cnp_ignored),
	/* Counted by the driver. */
	{ .name = "lost_interrupts" },
	/* The name of rx_icrc_errors by which scripts for mlx5 ask. */
	{ .name = "rx_icrc_encapsulated" },
	/* Nanoseconds of all page faults: record read to answer, and parts. */
	{ .name = "page_fault_ns", .flags = IB_STAT_FLAG_OPTIONAL },
	{ .name = "page_fault_wait_ns", .flags = IB_STAT_FLAG_OPTIONAL },
	{ .name = "page_fault_map_ns", .flags = IB_STAT_FLAG_OPTIONAL },
};

/*
 * The device's counters come first, then that of the driver and the name of
 * mlx5, and the optional ones last. `rdma statistic` gets all of them in one
 * message of a page, so their names must fit into it.
 */
#define FAULTLINE_FIRST_TIMED						\
	(ARRAY_SIZE(faultline_stat_descs) - FAULTLINE_NUM_TIMED)
#define FAULTLINE_ICRC_ENCAPSULATED	(FAULTLINE_FIRST_TIMED - 1)
#define FAULTLINE_NUM_COUNTERS	(FAULTLINE_ICRC_ENCAPSULATED - 1)

const unsigned int faultline_num_counters = ARRAY_SIZE(faultline_stat_descs);

/* The buffer exists as long as counters can be read. */
int faultline_counters_create(struct faultline_dev *dev)
{
	dev->counters = dma_alloc_coherent(&dev->pdev->dev, PAGE_SIZE,
					   &dev->counters_dma, GFP_KERNEL);
	return dev->counters ? 0 : -ENOMEM;
}

void faultline_counters_destroy(struct faultline_dev *dev)
{
	dma_free_coherent(&dev->pdev->dev, PAGE_SIZE, dev->counters,
			  dev->counters_dma);
}

/*
 * Reads all counters of the device (set 0) or of a set, in the order of their
 * descriptions. Sleeps.
 */
int faultline_read_counters(struct faultline_dev *dev, u32 set, u64 *values)
{
	unsigned int i;
	int err;

	BUILD_BUG_ON(FAULTLINE_NUM_COUNTERS * sizeof(u64) > PAGE_SIZE);
	mutex_lock(&dev->counters_lock);
	err = faultline_cmd_query_counters(dev, set, dev->counters_dma,
					   FAULTLINE_NUM_COUNTERS *
						   sizeof(u64));
	for (i = 0; !err && i < FAULTLINE_NUM_COUNTERS; i++)
		values[i] = le64_to_cpu(dev->counters[i]);
	mutex_unlock(&dev->counters_lock);
	if (err)
		return err;
	/* The driver counts for the device only. */
	values[FAULTLINE_NUM_COUNTERS] =
		set ? 0 : atomic64_read(&dev->lost_interrupts);
	values[FAULTLINE_ICRC_ENCAPSULATED] =
		values[FAULTLINE_CNT_rx_icrc_errors];
	for (i = 0; i < FAULTLINE_NUM_TIMED; i++)
		values[FAULTLINE_FIRST_TIMED + i] =
			set ? 0 : atomic64_read(&dev->timed[i]);
	return 0;
}

/* Switches an optional counter on or off. Its value stays while it is off. */
int faultline_modify_hw_stat(struct ib_device *ibdev, u32 port,
			     unsigned int index, bool enable)
{
	struct faultline_dev *dev = to_fdev(ibdev);

	if (index < FAULTLINE_FIRST_TIMED || index >= faultline_num_counters)
		return -EOPNOTSUPP;
	index -= FAULTLINE_FIRST_TIMED;
	if (enable)
		set_bit(index, &dev->timed_stats);
	else
		clear_bit(index, &dev->timed_stats);
	return 0;
}

static void faultline_stats_timed(struct faultline_dev *dev, unsigned int index,
				  u64 ns)
{
	if (test_bit(index, &dev->timed_stats))
		atomic64_add(ns, &dev->timed[index]);
}

/* Adds a page fault that was served; all times in nanoseconds. */
void faultline_stats_fault(struct faultline_dev *dev, struct faultline_mr *mr,
			   u64 total, u64 wait, u64 map)
{
	s64 longest = atomic64_read(&mr->page_fault_max_ns);

	atomic64_add(total, &mr->page_fault_ns);
	while ((s64)total > longest &&
	       !atomic64_try_cmpxchg(&mr->page_fault_max_ns, &longest, total))
		;
	if (!READ_ONCE(dev->timed_stats))
		return;
	faultline_stats_timed(dev, FAULTLINE_TIMED_TOTAL, total);
	faultline_stats_timed(dev, FAULTLINE_TIMED_WAIT, wait);
	faultline_stats_timed(dev, FAULTLINE_TIMED_MAP, map);
}

/* Adds a change of a watched region that has waited for an answer. */
void faultline_stats_lease(struct faultline_mr *mr, u64 wait, bool answered)
{
	atomic64_inc(&mr->lease_waits);
	atomic64_add(wait, &mr->lease_wait_ns);
	if (!answered)
		atomic64_inc(&mr->lease_timeouts);
}

struct faultline_mr_stat {
	const char *name;
	size_t offset;
};

#define FAULTLINE_MR_STAT(member)					\
	{ .name = #member, .offset = offsetof(struct faultline_mr, member) }

static const struct faultline_mr_stat faultline_odp_stats[] = {
	FAULTLINE_MR_STAT(page_faults),
	FAULTLINE_MR_STAT(page_faults_handled),
	FAULTLINE_MR_STAT(page_invalidations),
	FAULTLINE_MR_STAT(page_prefetch),
	FAULTLINE_MR_STAT(page_fault_ns),
	FAULTLINE_MR_STAT(page_fault_max_ns),
};

static const struct faultline_mr_stat faultline_watch_stats[] = {
	FAULTLINE_MR_STAT(watch_events),
	FAULTLINE_MR_STAT(lease_waits),
	FAULTLINE_MR_STAT(lease_timeouts),
	FAULTLINE_MR_STAT(lease_wait_ns),
};

static int faultline_put_mr_stats(struct sk_buff *msg, struct faultline_mr *mr,
				  const struct faultline_mr_stat *stats,
				  size_t count)
{
	size_t i;
	int err;

	for (i = 0; i < count; i++) {
		const atomic64_t *value = (void *)mr + stats[i].offset;

		err = rdma_nl_stat_hwcounter_entry(msg, stats[i].name,
						   atomic64_read(value));
		if (err)
			return err;
	}
	return 0;
}

/* For `rdma statistic show mr`: on-demand and watched regions. */
int faultline_fill_stat_mr(struct sk_buff *msg, struct ib_mr *ibmr)
{
	struct faultline_mr *mr = to_fmr(ibmr);
	struct nlattr *table;
	int err;

	if (!READ_ONCE(mr->on_demand) && !mr->watch)
		return 0;
	table = nla_nest_start(msg, RDMA_NLDEV_ATTR_STAT_HWCOUNTERS);
	if (!table)
		return -EMSGSIZE;
	if (mr->watch)
		err = faultline_put_mr_stats(msg, mr, faultline_watch_stats,
					     ARRAY_SIZE(faultline_watch_stats));
	else
		err = faultline_put_mr_stats(msg, mr, faultline_odp_stats,
					     ARRAY_SIZE(faultline_odp_stats));
	if (err) {
		nla_nest_cancel(msg, table);
		return -EMSGSIZE;
	}
	nla_nest_end(msg, table);
	return 0;
}

struct rdma_hw_stats *faultline_alloc_hw_port_stats(struct ib_device *ibdev,
						    u32 port)
{
	struct rdma_hw_stats *stats;
	unsigned int i;

	stats = rdma_alloc_hw_stats_struct(faultline_stat_descs,
					   faultline_num_counters,
					   RDMA_HW_STATS_DEFAULT_LIFESPAN);
	if (!stats)
		return NULL;
	/* Optional counters are off until faultline_modify_hw_stat(). */
	for (i = 0; i < faultline_num_counters; i++)
		if (faultline_stat_descs[i].flags & IB_STAT_FLAG_OPTIONAL)
			set_bit(i, stats->is_disabled);
	return stats;
}

int faultline_get_hw_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats,
			   u32 port, int index)
{
	return faultline_read_counters(to_fdev(ibdev), 0, stats->value) ?:
	       faultline_num_counters;
}

struct rdma_hw_stats *
faultline_counter_alloc_stats(struct rdma_counter *counter)
{
	return faultline_alloc_hw_port_stats(counter->device, counter->port);
}

int faultline_counter_update_stats(struct rdma_counter *counter)
{
	return faultline_read_counters(to_fdev(counter->device), counter->id,
				       counter->stats->value);
}

int faultline_counter_dealloc(struct rdma_counter *counter)
{
	struct faultline_dev *dev = to_fdev(counter->device);

	if (!counter->id)
		return 0;
	return faultline_dead_ok(
		dev, faultline_cmd_dealloc_counters(dev, counter->id));
}

/* The first queue pair of a counter allocates its set in the device. */
int faultline_counter_bind_qp(struct rdma_counter *counter, struct ib_qp *ibqp)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	bool is_new = !counter->id;
	u32 set = counter->id;
	int err;

	if (is_new) {
		err = faultline_cmd_alloc_counters(dev, &set);
		if (err)
			return err;
	}
	err = faultline_cmd_bind_counters(dev, to_fqp(ibqp)->res.num, set);
	if (err) {
		if (is_new)
			faultline_cmd_dealloc_counters(dev, set);
		return err;
	}
	counter->id = set;
	ibqp->counter = counter;
	return 0;
}

int faultline_counter_unbind_qp(struct ib_qp *ibqp)
{
	struct faultline_dev *dev = to_fdev(ibqp->device);
	int err;

	err = faultline_dead_ok(dev, faultline_cmd_bind_counters(
					     dev, to_fqp(ibqp)->res.num, 0));
	if (!err)
		ibqp->counter = NULL;
	return err;
}
