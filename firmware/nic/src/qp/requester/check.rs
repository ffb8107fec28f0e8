//! Work requests that a connected queue pair refuses.

use faultline_abi::cqe;
use faultline_abi::wqe::WR_FLAG_CSUM;

use crate::core::Core;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::Failure;
use crate::qp::work_request::{SendOp, SendWr};

/// Checks whether a connected QP can execute a work request (IBTA 10.7.2.2, 11.4.1.1).
pub(super) fn check_connected(qp: &Endpoint, core: &Core, wr: &SendWr) -> Result<(), Failure> {
    const OPCODE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE);
    const SGE_COUNT: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT);
    const LENGTH: Failure = Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH);
    let op = wr.op.ok_or(OPCODE)?;
    // RoCE has no READ with invalidate.
    if wr.invalidates().is_some() {
        return Err(OPCODE);
    }
    // The list of a registration has DMA addresses, which only the kernel may name.
    if matches!(op, SendOp::FastReg(_)) && qp.config.uctx != 0 {
        return Err(OPCODE);
    }
    let without_data = op.is_local() || matches!(op, SendOp::Flush { .. });
    if without_data && (!wr.sges.is_empty() || wr.inline.is_some()) {
        return Err(SGE_COUNT);
    }
    if wr.has(WR_FLAG_CSUM)
        || (op.writes_locally() && wr.inline.is_some())
        || (op.is_answered() && qp.attr.max_rd_atomic == 0)
    {
        return Err(OPCODE);
    }
    if matches!(op, SendOp::Atomic { .. } | SendOp::AtomicWrite { .. }) && wr.length != 8 {
        return Err(LENGTH);
    }
    for range in wr.key_ranges(qp) {
        core.mkeys.check(&range).map_err(Failure::local)?;
    }
    Ok(())
}
