// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * device_attributes: every field of ibv_query_device_ex() and of
 * ibv_query_port(), compared with what the kernel shows of the PCI function and
 * with the limits of a NIC whose configuration sets none (`Limits::default()` in
 * firmware/nic/src/config.rs). Requests at a limit succeed, and requests above
 * it are refused. Runs in one guest.
 */
#include "common.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names that libibverbs gives to no bit of device_cap_flags_ex, as enum ib_device_cap_flags of the kernel has them. */
#define CAP_FLUSH_GLOBAL (1ULL << 38)
#define CAP_FLUSH_PERSISTENT (1ULL << 39)
#define CAP_ATOMIC_WRITE (1ULL << 40)
#define CAPABILITIES \
	(IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | \
	 IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_XRC | \
	 IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MANAGED_FLOW_STEERING)
#define HASH_FIELDS \
	(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 | \
	 IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP | IBV_RX_HASH_SRC_PORT_UDP | \
	 IBV_RX_HASH_DST_PORT_UDP)

static struct device device;
static const struct ibv_device_attr_ex *ex;
static const struct ibv_device_attr *attr;

/* A file of the device's folder in sysfs, without the end of its line. */
static void show(const char *file, char *text, int size)
{
	char path[256];
	FILE *stream;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/%s",
		 ibv_get_device_name(device.context->device), file);
	stream = fopen(path, "r");
	if (!stream || !fgets(text, size, stream))
		die("cannot read %s: %m", path);
	fclose(stream);
	text[strcspn(text, "\n")] = 0;
}

static unsigned long shown_number(const char *file)
{
	char text[64];

	show(file, text, sizeof(text));
	return strtoul(text, NULL, 16);
}

static void wants_guid(const char *file, __be64 guid)
{
	uint64_t value = be64toh(guid);
	char text[64], expected[64];

	show(file, text, sizeof(text));
	snprintf(expected, sizeof(expected), "%04x:%04x:%04x:%04x", (unsigned)(value >> 48),
		 (unsigned)(value >> 32) & 0xffff, (unsigned)(value >> 16) & 0xffff,
		 (unsigned)value & 0xffff);
	if (!value || strcmp(text, expected))
		die("%s is %s, and not %s", file, text, expected);
}

/* What the device is: the kernel shows the same of the PCI function, its address and its firmware. */
static void test_identity(void)
{
	uint8_t mac[ETH_ALEN], guid[8];
	char version[64];

	show("fw_ver", version, sizeof(version));
	/* proves: fw_ver, get_dev_fw_str */
	WANT(!strcmp(attr->fw_ver, version) && !strcmp(version, "0.1.0"));
	/* proves: vendor_id */
	WANT(attr->vendor_id == shown_number("device/vendor"));
	/* proves: vendor_part_id */
	WANT(attr->vendor_part_id == shown_number("device/device"));
	/* proves: hw_ver */
	WANT(attr->hw_ver == shown_number("device/revision"));
	/* proves: node_guid */
	wants_guid("node_guid", attr->node_guid);
	/* proves: sys_image_guid, IB_DEVICE_SYS_IMAGE_GUID */
	wants_guid("sys_image_guid", attr->sys_image_guid);
	/* It is derived from the interface's address (RFC 4291, appendix A). */
	read_own_mac(mac);
	memcpy(guid, (uint8_t[]) { mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5] }, 8);
	WANT(!memcmp(&attr->node_guid, guid, sizeof(guid)));
	/* proves: phys_port_cnt */
	WANT(attr->phys_port_cnt == 1);
	/* proves: phys_port_cnt_ex */
	WANT(ex->phys_port_cnt_ex == 1);
}

static void test_capabilities(void)
{
	uint64_t all = CAPABILITIES | CAP_FLUSH_GLOBAL | CAP_FLUSH_PERSISTENT | CAP_ATOMIC_WRITE;

	/* proves: device_cap_flags, IB_DEVICE_CURR_QP_STATE_MOD, IB_DEVICE_PORT_ACTIVE_EVENT */
	/* proves: IB_DEVICE_SYS_IMAGE_GUID, IB_DEVICE_RC_RNR_NAK_GEN, IB_DEVICE_SRQ_RESIZE */
	/* proves: IB_DEVICE_MEM_WINDOW, IB_DEVICE_XRC, IB_DEVICE_MEM_MGT_EXTENSIONS */
	/* proves: IB_DEVICE_MEM_WINDOW_TYPE_2B */
	/* proves: IB_DEVICE_MANAGED_FLOW_STEERING */
	WANT(attr->device_cap_flags == CAPABILITIES);
	/* proves: device_cap_flags_ex, IB_DEVICE_FLUSH_GLOBAL, IB_DEVICE_FLUSH_PERSISTENT */
	/* proves: IB_DEVICE_ATOMIC_WRITE */
	if (ex->device_cap_flags_ex != all)
		die("capabilities %#llx instead of %#llx", (unsigned long long)ex->device_cap_flags_ex,
		    (unsigned long long)all);
	/* proves: atomic_cap */
	WANT(attr->atomic_cap == IBV_ATOMIC_HCA);
}

static void test_limits(void)
{
	/* proves: max_mr_size */
	WANT(attr->max_mr_size == 1ULL << 62);
	/* proves: page_size_cap */
	WANT(attr->page_size_cap == (1UL << 12 | 1UL << 21 | 1UL << 30));
	/* proves: max_qp, max_qp_wr */
	WANT(attr->max_qp == 1 << 16 && attr->max_qp_wr == 1 << 15);
	/* proves: max_sge, max_sge_rd */
	WANT(attr->max_sge == 30 && attr->max_sge_rd == 30);
	/* proves: max_cq, max_cqe */
	WANT(attr->max_cq == 1 << 16 && attr->max_cqe == 1 << 20);
	/* proves: max_mr, max_mw */
	WANT(attr->max_mr == 1 << 20 && attr->max_mw == 1 << 20);
	/* proves: max_pd, max_ah, max_pkeys */
	WANT(attr->max_pd == 1 << 15 && attr->max_ah == 1 << 16 && attr->max_pkeys == 1);
	/* proves: max_qp_rd_atom, max_qp_init_rd_atom */
	WANT(attr->max_qp_rd_atom == 16 && attr->max_qp_init_rd_atom == 16);
	/* proves: max_res_rd_atom */
	WANT(attr->max_res_rd_atom == attr->max_qp_rd_atom * attr->max_qp);
	/* proves: max_srq, max_srq_wr, max_srq_sge */
	WANT(attr->max_srq == 1 << 14 && attr->max_srq_wr == 1 << 15 && attr->max_srq_sge == 30);
	/* proves: max_mcast_grp, max_mcast_qp_attach */
	WANT(attr->max_mcast_grp == 1 << 12 && attr->max_mcast_qp_attach == 256);
	/* proves: max_total_mcast_qp_attach */
	WANT(attr->max_total_mcast_qp_attach == 1 << 20);
	/* proves: max_raw_ethy_qp */
	WANT(attr->max_raw_ethy_qp == attr->max_qp);
	/* 4.096 us * 2^15. */
	/* proves: local_ca_ack_delay */
	WANT(attr->local_ca_ack_delay == 15);
	/* proves: max_ee, max_ee_rd_atom, max_ee_init_rd_atom, max_rdd */
	WANT(!attr->max_ee && !attr->max_ee_rd_atom && !attr->max_ee_init_rd_atom && !attr->max_rdd);
	/* proves: max_raw_ipv6_qp, max_fmr, max_map_per_fmr */
	WANT(!attr->max_raw_ipv6_qp && !attr->max_fmr && !attr->max_map_per_fmr);
}

static void test_extensions(void)
{
	const uint32_t ud = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
	const uint32_t uc = ud | IBV_ODP_SUPPORT_WRITE;
	const uint32_t rc = uc | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
	const struct ibv_odp_caps *odp = &ex->odp_caps;

	/* proves: odp_caps, IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_IMPLICIT */
	WANT(odp->general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	WANT(odp->per_transport_caps.rc_odp_caps == rc && odp->per_transport_caps.uc_odp_caps == uc);
	WANT(odp->per_transport_caps.ud_odp_caps == ud);
	/* proves: xrc_odp_caps */
	WANT(ex->xrc_odp_caps == rc);
	/* proves: completion_timestamp_mask, hca_core_clock */
	WANT(ex->completion_timestamp_mask == UINT64_MAX && ex->hca_core_clock == 1000000);
	/* proves: tso_caps */
	WANT(ex->tso_caps.max_tso == 1 << 16 && ex->tso_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET);
	/* proves: rss_caps */
	WANT(ex->rss_caps.supported_qpts == 1 << IBV_QPT_RAW_PACKET);
	WANT(ex->rss_caps.max_rwq_indirection_tables == 1 << 10);
	WANT(ex->rss_caps.max_rwq_indirection_table_size == 1 << 9);
	WANT(ex->rss_caps.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ);
	WANT(ex->rss_caps.rx_hash_fields_mask == HASH_FIELDS);
	/* proves: max_wq_type_rq */
	WANT(ex->max_wq_type_rq == 1 << 16);
	/* proves: packet_pacing_caps */
	WANT(!ex->packet_pacing_caps.supported_qpts && !ex->packet_pacing_caps.qp_rate_limit_max);
	/* proves: raw_packet_caps */
	WANT(ex->raw_packet_caps == IBV_RAW_PACKET_CAP_IP_CSUM);
	/* proves: tm_caps */
	WANT(ex->tm_caps.flags == IBV_TM_CAP_RC && ex->tm_caps.max_sge == 4);
	WANT(ex->tm_caps.max_num_tags == 128 && ex->tm_caps.max_ops == 256);
	/* proves: cq_mod_caps */
	WANT(ex->cq_mod_caps.max_cq_count == UINT16_MAX && ex->cq_mod_caps.max_cq_period == UINT16_MAX);
	/* proves: max_dm_size */
	WANT(ex->max_dm_size == 8 << 20);
	/* proves: pci_atomic_caps */
	WANT(!ex->pci_atomic_caps.fetch_add && !ex->pci_atomic_caps.swap &&
	     !ex->pci_atomic_caps.compare_swap);
}

/* --- requests at the limits --------------------------------------------------- */

static bool makes_qp(struct ibv_cq *cq, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = cap,
	};
	struct ibv_qp *qp = ibv_create_qp(device.pd, &init);

	if (!qp)
		return false;
	WANT(!ibv_destroy_qp(qp));
	return true;
}

static bool makes_srq(uint32_t max_wr, uint32_t max_sge)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = max_wr, .max_sge = max_sge } };
	struct ibv_srq *srq = ibv_create_srq(device.pd, &init);

	if (!srq)
		return false;
	WANT(!ibv_destroy_srq(srq));
	return true;
}

static void test_queues(void)
{
	struct ibv_cq *cq = ibv_create_cq(device.context, 16, NULL, NULL, 0);
	const uint32_t wr = attr->max_qp_wr, sge = attr->max_sge;

	WANT(cq);
	WANT(makes_qp(cq, (struct ibv_qp_cap) { wr, 1, 1, 1, 0 }));
	WANT(makes_qp(cq, (struct ibv_qp_cap) { 1, wr, 1, 1, 0 }));
	WANT(makes_qp(cq, (struct ibv_qp_cap) { 1, 1, sge, sge, 0 }));
	WANT(!makes_qp(cq, (struct ibv_qp_cap) { wr + 1, 1, 1, 1, 0 }));
	WANT(!makes_qp(cq, (struct ibv_qp_cap) { 1, wr + 1, 1, 1, 0 }));
	WANT(!makes_qp(cq, (struct ibv_qp_cap) { 1, 1, sge + 1, 1, 0 }));
	WANT(!makes_qp(cq, (struct ibv_qp_cap) { 1, 1, 1, sge + 1, 0 }));
	WANT(makes_srq(attr->max_srq_wr, 1) && makes_srq(1, attr->max_srq_sge));
	WANT(!makes_srq(attr->max_srq_wr + 1, 1) && !makes_srq(1, attr->max_srq_sge + 1));
	WANT(!ibv_create_cq(device.context, attr->max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	WANT(!ibv_destroy_cq(cq));
}

/* All of the device's memory can be had, and is free again when it is given back. */
static void test_device_memory(void)
{
	struct ibv_alloc_dm_attr all = { .length = ex->max_dm_size };
	struct ibv_alloc_dm_attr more = { .length = ex->max_dm_size + 1 }, little = { .length = 4 };
	struct ibv_dm *dm;

	WANT(!ibv_alloc_dm(device.context, &more));
	for (int i = 0; i < 3; i++) {
		/* proves: free_dm, dealloc_dm, mmap_free */
		dm = ibv_alloc_dm(device.context, &all);
		if (!dm)
			die("cannot allocate all of the device's memory, time %d: %m", i + 1);
		/* proves: alloc_dm */
		WANT(!ibv_alloc_dm(device.context, &little));
		WANT(!ibv_free_dm(dm));
	}
}

static void test_port(void)
{
	struct ibv_port_attr port;
	__be16 pkey = 0;

	WANT(!ibv_query_port(device.context, 1, &port));
	/* proves: query_port */
	WANT(port.state == IBV_PORT_ACTIVE && port.phys_state == 5);
	WANT(port.max_mtu == IBV_MTU_4096 && port.active_mtu == IBV_MTU_1024);
	WANT(port.max_msg_sz == 1U << 30 && port.gid_tbl_len == 256 && port.pkey_tbl_len == 1);
	/* proves: get_link_layer */
	WANT(port.link_layer == IBV_LINK_LAYER_ETHERNET);
	WANT(!port.lid && !port.sm_lid && !port.lmc);
	WANT(ibv_query_port(device.context, 2, &port));
	/* proves: query_pkey */
	WANT(!ibv_query_pkey(device.context, 1, 0, &pkey) && pkey == htons(0xffff));
}

int main(void)
{
	struct ibv_device_attr old;

	device_open(&device);
	ex = &device.attributes;
	attr = &ex->orig_attr;
	/* proves: query_device_ex */
	WANT(!ex->comp_mask);
	/* proves: query_device, orig_attr */
	WANT(!ibv_query_device(device.context, &old) && !memcmp(&old, attr, sizeof(old)));
	test_identity();
	test_capabilities();
	test_limits();
	test_extensions();
	test_queues();
	test_device_memory();
	test_port();
	WANT(!ibv_dealloc_pd(device.pd) && !ibv_close_device(device.context));
	puts("PASS");
	return 0;
}
