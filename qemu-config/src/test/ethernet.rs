//! The suite `ethernet`: groups and flows, as rdma-core's own tests see them.

use std::path::Path;

use super::{Options, Tally, needs, pyverbs};
use crate::image::Kernel;
use crate::workspace::Workspace;

/// rdma-core's tests, by module.
pub const PYVERBS: &[(&str, &[&str])] = &[
    (
        "test_rdmacm",
        &[
            "test_rdmacm_async_multicast_traffic",
            "test_rdmacm_async_ex_multicast_traffic",
            "test_rdmacm_async_ex_leave_multicast_traffic",
        ],
    ),
    (
        "test_flow",
        &[
            "test_eth_spec_flow_traffic",
            "test_ipv4_spec_flow_traffic",
            "test_ipv6_spec_flow_traffic",
            "test_udp_spec_flow_traffic",
            "test_tcp_spec_flow_traffic",
        ],
    ),
    (
        "test_qp",
        &[
            "test_create_raw_qp_no_attr",
            "test_create_raw_qp_with_attr",
            "test_create_raw_qp_ex_no_attr",
            "test_create_raw_qp_ex_with_attr",
            "test_create_raw_qp_ex_with_illegal_caps_max_send_wr",
            "test_create_raw_qp_ex_with_illegal_caps_max_send_sge",
            "test_create_raw_qp_ex_with_illegal_caps_max_recv_sge",
            "test_create_raw_qp_ex_with_illegal_caps_max_recv_wr",
            "test_query_raw_qp",
        ],
    ),
];

/// Runs those whose names contain `filter`.
pub fn run(
    workspace: &Workspace,
    filter: &str,
    kernel: Kernel,
    options: &Options,
    label: &str,
    dir: &Path,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let plan = needs::plan(workspace.root(), "ethernet", kernel, options);
    for &tests in PYVERBS {
        pyverbs::run(workspace, tests, filter, &plan, label, dir, tally)?;
    }
    Ok(())
}
