//! The tests of rdma-core's own suite (56.1) that are for every device, by module.
//!
//! The tags above a test (see `docs/compatibility.md`) name the assertions of its source: that source belongs to
//! another project, and has no place for tags. Calls without a check of the result have no tag.

use super::facts::On::Both;
use super::facts::{Row, Runs, row, runs};

/// A module, and the names of its tests.
pub type Module = Row<&'static [&'static str]>;

const fn module(name: &'static str, tests: &'static [&'static str]) -> Module {
    row(name, "rdma-core's tests of this module pass.", tests)
}

const SECOND: Runs = runs(
    Both,
    Both,
    "the driver has other code on the second kernel: CQs of processes, and page \
     tables of on-demand regions",
);

/// The modules.
pub const MODULES: &[Module] = &[
    module(
        "test_addr",
        &[
            // proves: create_ah, create_user_ah, grh, is_global
            "test_create_ah",
            // proves: create_ah, grh, is_global
            "test_create_ah_roce",
            // proves: destroy_ah
            "test_destroy_ah",
        ],
    ),
    module(
        "test_atomic",
        &[
            // proves: IBV_WR_ATOMIC_CMP_AND_SWP
            "test_atomic_cmp_and_swap",
            // proves: atomic_cap, IBV_WR_ATOMIC_FETCH_AND_ADD
            "test_atomic_fetch_and_add",
            "test_atomic_invalid_lkey",
            "test_atomic_invalid_mr_access",
            // proves: IBV_QP_ACCESS_FLAGS
            "test_atomic_invalid_qp_access",
            "test_atomic_invalid_rkey",
            "test_atomic_non_aligned_addr",
            "test_xrc_atomic_cmp_and_swap",
            "test_xrc_atomic_fetch_and_add",
        ],
    ),
    module(
        "test_cq",
        &[
            // proves: create_cq, create_user_cq, destroy_cq
            "test_create_cq",
            // proves: max_cqe
            "test_create_cq_bad_flow",
            "test_create_cq_with_comp_channel",
            // proves: resize_cq, resize_user_cq
            "test_resize_cq",
        ],
    )
    .runs(SECOND),
    module(
        "test_cq_events",
        &[
            // proves: req_notify_cq
            "test_cq_events_rc",
            // proves: req_notify_cq
            "test_cq_events_ud",
        ],
    ),
    module(
        "test_cqex",
        &[
            "test_create_cq_ex",
            "test_create_cq_ex_bad_flow",
            // proves: create_cq_ex, start_poll, end_poll
            "test_rc_traffic_cq_ex",
            "test_ud_traffic_cq_ex",
            // proves: get_srq_num, open_xrcd, alloc_xrcd, IB_DEVICE_XRC, IBV_QPT_XRC_RECV
            // proves: IB_QPT_XRC_TGT, IB_QPT_XRC_INI, IBV_QP_INIT_ATTR_XRCD
            "test_xrc_traffic_cq_ex",
        ],
    ),
    module(
        "test_device",
        &[
            // proves: alloc_dm
            "test_create_dm",
            // proves: alloc_dm, max_dm_size
            "test_create_dm_bad_flow",
            // proves: free_dm, dealloc_dm
            "test_destroy_dm",
            "test_destroy_dm_bad_flow",
            // proves: mmap
            "test_dm_read",
            "test_dm_write",
            "test_dm_write_bad_flow",
            // proves: alloc_dm
            "test_multi_process_alloc_dm",
            "test_dev_list",
            "test_get_pkey_index",
            // proves: alloc_ucontext, mmap
            "test_open_dev",
            // proves: phys_port_cnt_ex
            "test_phys_port_cnt_ex",
            "test_query_device",
            // proves: query_device_ex, orig_attr
            "test_query_device_ex",
            "test_query_gid",
            "test_query_gid_ex",
            "test_query_gid_ex_bad_flow",
            "test_query_gid_table",
            "test_query_gid_table_bad_flow",
            "test_query_pkey",
            // proves: query_port
            "test_query_port",
            "test_query_port_bad_flow",
            // proves: import_dm, unimport_dm, query_ucontext, IBV_DM_MASK_HANDLE
            "test_import_dm",
        ],
    ),
    module(
        "test_flow",
        &[
            // proves: create_flow, IB_DEVICE_MANAGED_FLOW_STEERING, IBV_QPT_RAW_PACKET
            // proves: IB_QPT_RAW_PACKET, IBV_FLOW_ATTR_NORMAL, IBV_FLOW_SPEC_ETH
            "test_eth_spec_flow_traffic",
            // proves: IBV_FLOW_SPEC_IPV4, IBV_FLOW_SPEC_IPV4_EXT
            "test_ipv4_spec_flow_traffic",
            // proves: IBV_FLOW_SPEC_IPV6
            "test_ipv6_spec_flow_traffic",
            // proves: create_flow, IBV_FLOW_SPEC_TCP
            "test_tcp_spec_flow_traffic",
            // proves: IBV_FLOW_SPEC_UDP
            "test_udp_spec_flow_traffic",
        ],
    ),
    module("test_fork", &["test_is_fork_initialized"]),
    module(
        "test_mr",
        &[
            // proves: reg_dm_mr
            "test_create_dm_mr",
            "test_dm_bad_access",
            // proves: reg_dm_mr
            "test_dm_bad_registration",
            "test_dm_atomic_cmp_swp",
            "test_dm_atomic_fetch_add",
            "test_dm_remote_read_traffic",
            // proves: reg_dm_mr, IBV_ACCESS_ZERO_BASED
            "test_dm_remote_traffic",
            // proves: IBV_WR_RDMA_WRITE_WITH_IMM
            "test_dm_remote_write_traffic_imm",
            // proves: reg_dm_mr
            "test_dm_traffic",
            "test_dmabuf_dereg_mr",
            "test_dmabuf_dereg_mr_twice",
            "test_dmabuf_lkey",
            "test_dmabuf_read",
            "test_dmabuf_reg_mr",
            "test_dmabuf_reg_mr_bad_flags",
            "test_dmabuf_rkey",
            "test_dmabuf_write",
            "test_dmabuf_rc_traffic",
            "test_dmabuf_rdma_traffic",
            // proves: rereg_mr, IBV_REREG_MR_CHANGE_ACCESS, IBV_WR_RDMA_WRITE
            "test_mr_rereg_access",
            // proves: rereg_user_mr, IBV_ACCESS_REMOTE_WRITE
            "test_mr_rereg_access_bad_flow",
            // proves: rereg_mr, IBV_REREG_MR_CHANGE_TRANSLATION
            "test_mr_rereg_addr",
            // proves: rereg_user_mr, IBV_ACCESS_REMOTE_ATOMIC
            "test_mr_rereg_atomic",
            // proves: rereg_mr, IBV_REREG_MR_CHANGE_PD, IBV_WC_REM_OP_ERR
            "test_mr_rereg_pd",
            // proves: reg_mr, reg_user_mr, IBV_ACCESS_LOCAL_WRITE
            "test_reg_mr_bad_flags",
            // proves: bind_mw, IBV_WC_REM_ACCESS_ERR
            "test_invalidate_mw_type1",
            // proves: alloc_mw, bind_mw, IB_DEVICE_MEM_WINDOW, IBV_ACCESS_MW_BIND, IBV_MW_TYPE_1
            "test_mw_type1",
            // proves: alloc_mw, IBV_MW_TYPE_2, IBV_WR_BIND_MW
            "test_mw_type2",
            // proves: dealloc_mw
            "test_mw_type2_invalidate_dealloc",
            // proves: alloc_mw, IBV_WR_LOCAL_INV
            "test_mw_type2_invalidate_local",
            // proves: IBV_WR_SEND_WITH_INV
            "test_mw_type2_invalidate_remote",
            "test_reg_mw_wrong_type",
        ],
    ),
    module(
        "test_odp",
        &[
            // proves: advise_mr, IB_UVERBS_ADVISE_MR_FLAG_FLUSH
            "test_odp_async_prefetch_rc_traffic",
            "test_odp_implicit_async_prefetch_rc_traffic",
            // proves: IBV_ODP_SUPPORT_IMPLICIT
            "test_odp_implicit_rc_traffic",
            "test_odp_implicit_sync_prefetch_rc_traffic",
            "test_odp_prefetch_async_no_page_fault_rc_traffic",
            // proves: IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
            "test_odp_prefetch_sync_no_page_fault_rc_traffic",
            // proves: IBV_ODP_SUPPORT_ATOMIC
            "test_odp_rc_atomic_cmp_and_swp",
            // proves: IBV_ODP_SUPPORT_ATOMIC
            "test_odp_rc_atomic_fetch_and_add",
            // proves: IBV_ACCESS_HUGETLB
            "test_odp_rc_huge_traffic",
            "test_odp_rc_huge_user_addr_traffic",
            "test_odp_rc_mixed_mr",
            // proves: IBV_ODP_SUPPORT_READ
            "test_odp_rc_rdma_read",
            // proves: IBV_ODP_SUPPORT_WRITE
            "test_odp_rc_rdma_write",
            // proves: IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_RECV
            // proves: IBV_ACCESS_ON_DEMAND
            "test_odp_rc_traffic",
            // proves: advise_mr, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH
            // proves: IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE
            "test_odp_sync_prefetch_rc_traffic",
            // proves: IBV_ODP_SUPPORT_SEND
            "test_odp_ud_traffic",
            "test_odp_xrc_traffic",
        ],
    )
    .runs(SECOND),
    module(
        "test_parent_domain",
        &[
            // proves: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            "test_default_allocators_rc_traffic",
            // proves: IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            // proves: IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            "test_huge_page_traffic",
            "test_mem_align_rc_traffic",
            // proves: alloc_parent_domain, IBV_CQ_INIT_ATTR_MASK_PD
            "test_mem_align_srq_excq_rc_traffic",
            "test_mem_align_ud_traffic",
            "test_without_allocators_rc_traffic",
        ],
    ),
    module(
        "test_pd",
        &[
            // proves: alloc_pd
            "test_alloc_pd",
            // proves: dealloc_pd
            "test_dealloc_pd",
            "test_destroy_pd_twice",
            // proves: alloc_pd
            "test_multiple_pd_creation",
        ],
    ),
    module(
        "test_qp",
        &[
            "test_create_raw_qp_ex_no_attr",
            // proves: IBV_QPT_RAW_PACKET
            "test_create_raw_qp_ex_with_attr",
            "test_create_raw_qp_ex_with_illegal_caps_max_recv_sge",
            "test_create_raw_qp_ex_with_illegal_caps_max_recv_wr",
            "test_create_raw_qp_ex_with_illegal_caps_max_send_sge",
            // proves: max_qp_wr
            "test_create_raw_qp_ex_with_illegal_caps_max_send_wr",
            "test_create_raw_qp_no_attr",
            "test_create_raw_qp_with_attr",
            // proves: IBV_QP_INIT_ATTR_PD
            "test_create_rc_qp_ex_no_attr",
            // proves: IBV_QPT_RC
            "test_create_rc_qp_ex_with_attr",
            "test_create_rc_qp_no_attr",
            // proves: create_qp, modify_qp, IBV_QP_STATE, IBV_QP_PKEY_INDEX, IBV_QP_PORT
            // proves: IBV_QPS_INIT
            "test_create_rc_qp_with_attr",
            // proves: IBV_QPT_UC
            "test_create_uc_qp_ex_no_attr",
            "test_create_uc_qp_ex_with_attr",
            // proves: create_qp
            "test_create_uc_qp_no_attr",
            "test_create_uc_qp_with_attr",
            // proves: create_qp_ex
            "test_create_ud_qp_ex_no_attr",
            // proves: IBV_QPT_UD, IBV_QPS_RTS
            "test_create_ud_qp_ex_with_attr",
            "test_create_ud_qp_no_attr",
            "test_create_ud_qp_with_attr",
            // proves: IBV_QP_QKEY, IBV_QP_SQ_PSN, IBV_QPS_RESET
            "test_modify_ud_qp",
            "test_query_data_in_order",
            "test_query_raw_qp",
            // proves: query_qp
            "test_query_rc_qp",
            "test_query_uc_qp",
            "test_query_ud_qp",
        ],
    ),
    module(
        "test_qpex",
        &[
            "test_full_rq_bad_flow",
            "test_post_receive_qp_state_bad_flow",
            "test_post_send_qp_state_bad_flow",
            // proves: IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp
            "test_qp_ex_rc_atomic_cmp_swp",
            // proves: IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add
            "test_qp_ex_rc_atomic_fetch_add",
            // proves: IB_DEVICE_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE, IBV_QP_EX_WITH_ATOMIC_WRITE
            // proves: wr_atomic_write
            "test_qp_ex_rc_atomic_write",
            // proves: IBV_QP_EX_WITH_BIND_MW, wr_bind_mw
            "test_qp_ex_rc_bind_mw",
            // proves: IB_DEVICE_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_GLOBAL, IBV_WR_FLUSH
            // proves: IBV_FLUSH_GLOBAL, IBV_FLUSH_RANGE, IBV_FLUSH_MR, IBV_QP_EX_WITH_FLUSH
            // proves: wr_flush
            "test_qp_ex_rc_flush",
            // proves: IBV_ACCESS_FLUSH_PERSISTENT, IBV_FLUSH_PERSISTENT
            "test_qp_ex_rc_flush_type_violate",
            // proves: IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read
            "test_qp_ex_rc_rdma_read",
            "test_qp_ex_rc_rdma_read_zero_size",
            // proves: IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write
            "test_qp_ex_rc_rdma_write",
            // proves: IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm
            "test_qp_ex_rc_rdma_write_imm",
            "test_qp_ex_rc_rdma_write_zero_length",
            // proves: IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_EX_WITH_SEND, wr_send, wr_set_sge
            // proves: wr_start, wr_complete
            "test_qp_ex_rc_send",
            // proves: IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm
            "test_qp_ex_rc_send_imm",
            // proves: IBV_QP_EX_WITH_SEND, wr_set_ud_addr
            "test_qp_ex_ud_send",
            "test_qp_ex_ud_send_imm",
            "test_qp_ex_ud_zero_size",
            // proves: create_srq_ex, wr_set_xrc_srqn, IBV_SRQT_XRC
            "test_qp_ex_xrc_send",
            // proves: IBV_QPT_XRC_SEND
            "test_qp_ex_xrc_send_imm",
            "test_rq_with_larger_sgl_bad_flow",
        ],
    ),
    module(
        "test_rdmacm",
        &[
            // proves: detach_mcast
            "test_rdmacm_async_ex_leave_multicast_traffic",
            "test_rdmacm_async_ex_multicast_traffic",
            // proves: attach_mcast
            "test_rdmacm_async_multicast_traffic",
            "test_rdmacm_async_read",
            "test_rdmacm_async_reject_traffic",
            "test_rdmacm_async_traffic",
            "test_rdmacm_async_traffic_external_qp",
            "test_rdmacm_async_udp_traffic",
            "test_rdmacm_async_write",
            "test_rdmacm_sync_traffic",
        ],
    ),
    module(
        "test_relaxed_ordering",
        &[
            // proves: IBV_ACCESS_RELAXED_ORDERING
            "test_ro_rc_traffic",
            "test_ro_ud_traffic",
            "test_ro_xrc_traffic",
        ],
    ),
    module(
        "test_rss_traffic",
        &[
            // proves: create_rwq_ind_table, create_wq, modify_wq, IBV_QP_INIT_ATTR_IND_TABLE
            // proves: IBV_QP_INIT_ATTR_RX_HASH, IBV_WQT_RQ, IBV_WQ_ATTR_STATE
            "test_rss_traffic",
        ],
    ),
    module(
        "test_shared_pd",
        &[
            // proves: import_mr, import_pd, unimport_mr, unimport_pd
            "test_imported_rc_ex_rdma_write",
        ],
    ),
    module(
        "test_srq",
        &[
            // proves: modify_srq, query_srq, IBV_SRQ_LIMIT, IBV_EVENT_SRQ_LIMIT_REACHED
            "test_modify_srq_limit",
            // proves: create_srq, IBV_SRQT_BASIC
            "test_rc_srq_traffic",
            // proves: modify_srq, max_srq_wr, IB_DEVICE_SRQ_RESIZE, IBV_SRQ_MAX_WR
            "test_resize_srq",
        ],
    ),
    module(
        "test_tag_matching",
        &[
            // proves: IBV_WC_TM_NO_TAG
            "test_tm_no_tag",
            // proves: IBV_TM_CAP_RC
            "test_tm_rndv",
            // proves: create_srq_ex, IBV_WC_EX_WITH_TM_INFO, IBV_SRQT_TM, IBV_SRQ_INIT_ATTR_TM
            "test_tm_traffic",
            // proves: post_srq_ops, IBV_WR_TAG_ADD, IBV_WR_TAG_SYNC, IBV_OPS_SIGNALED
            // proves: IBV_OPS_TM_SYNC
            "test_tm_unexpected_tag",
        ],
    ),
];
