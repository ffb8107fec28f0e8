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
    /// The values in logs of ConnectX adapters for each status (docs/page-faults.md has the sources).
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
        (LOC_LEN_ERR, false) => 0x69,
        (LOC_QP_OP_ERR, false) => 0x6f,
        (LOC_PROT_ERR, false) => 0x51,
        (REM_INV_REQ_ERR, false) => 0x8a,
        (REM_ACCESS_ERR, false) => 0x88,
        (REM_OP_ERR, false) => 0x89,
        (RETRY_EXC_ERR, false) => 0x81,
        (RNR_RETRY_EXC_ERR, false) => 0x87,
        (WR_FLUSH_ERR, _) => 0xf9,
        _ => 0,
    }
}
