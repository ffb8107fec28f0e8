//! Vendor errors of completions: the device's own, which name the check that failed, or those of other adapters.
//!
//! This module does not decide which check fails. Diagnostics always have the device's own values.

use faultline_abi::cqe::{
    self, Cqe, LOC_LEN_ERR, LOC_PROT_ERR, LOC_QP_OP_ERR, REM_ACCESS_ERR, REM_INV_REQ_ERR,
    REM_OP_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR, WR_FLUSH_ERR,
};

/// Whose vendor errors completions have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VendorErrors {
    /// FAULTLINE_VENDOR_ERR_*.
    #[default]
    Own,
    /// The values in logs of ConnectX adapters for each status.
    ConnectX,
}

impl VendorErrors {
    /// The vendor error of a completion in error.
    pub(crate) fn of(self, cqe: &Cqe) -> u8 {
        match self {
            Self::Own => cqe.vendor_err,
            Self::ConnectX => connectx(cqe.status, cqe.opcode & cqe::RECV != 0),
        }
    }
}

/// The syndrome of this status on a send or receive queue; 0 if none is known.
fn connectx(status: u8, receive: bool) -> u8 {
    match (status, receive) {
        // Open MPI users' list: "LOCAL LENGTH ERROR status number 1 … vendor error 105".
        (LOC_LEN_ERR, false) => 0x69,
        // Open MPI users' list: "mlx4: local QP operation err (… vendor syndrome 6f …)"; other logs have 0x67, 0x6b.
        (LOC_QP_OP_ERR, false) => 0x6f,
        // linux-rdma/perftest issue 173; openucx/ucx issue 9515.
        (LOC_PROT_ERR, false) => 0x51,
        // openucx/ucx issue 1770; charm issue 2532.
        (REM_INV_REQ_ERR, false) => 0x8a,
        // openucx/ucx issue 5410; ofiwg/libfabric issue 4283.
        (REM_ACCESS_ERR, false) => 0x88,
        // openucx/ucx issue 5472.
        (REM_OP_ERR, false) => 0x89,
        // NVIDIA/nccl issue 1664; openucx/ucx issue 2973.
        (RETRY_EXC_ERR, false) => 0x81,
        // Open MPI users' list: "RECEIVER NOT READY RETRY EXCEEDED ERROR status number 13 … vendor error 135".
        (RNR_RETRY_EXC_ERR, false) => 0x87,
        // NVIDIA/nccl issue 1353; accelio issue 181. Logs of older adapters also have 0xf4.
        (WR_FLUSH_ERR, _) => 0xf9,
        _ => 0,
    }
}
