//! Checks of the depth and the stride of a ring.

use faultline_abi::Status;
use faultline_abi::wqe::{MAX_STRIDE_SHIFT, RQ_MIN_STRIDE_SHIFT, RQ_WQE_DATA, Sge};

use crate::config::MAX_SGE;
use crate::number::len32;

/// Checks log2 of a depth, which is at most `max` entries.
pub(super) fn check_depth(log_depth: u8, max: u32) -> Result<u8, Status> {
    match 1u32.checked_shl(u32::from(log_depth)) {
        Some(depth) if depth <= max => Ok(log_depth),
        _ => Err(Status::BadDepth),
    }
}

/// Checks log2 of the stride of a work queue: `min` to [`MAX_STRIDE_SHIFT`], and at least `need` bytes, the length of
/// the longest work request.
pub(super) fn check_stride(shift: u8, min: u32, need: u32) -> Result<u8, Status> {
    let shift32 = u32::from(shift);
    if (min..=MAX_STRIDE_SHIFT).contains(&shift32) && need <= 1 << shift32 {
        Ok(shift)
    } else {
        Err(Status::BadStride)
    }
}

/// Checks log2 of the stride of a receive queue whose work requests have up to `max_sge` entries.
pub(super) fn check_recv_stride(shift: u8, max_sge: u8) -> Result<u8, Status> {
    if u32::from(max_sge) > MAX_SGE {
        return Err(Status::BadStride);
    }
    let sges = u32::from(max_sge).saturating_mul(len32(size_of::<Sge>()));
    let need = RQ_WQE_DATA.saturating_add(sges);
    check_stride(shift, RQ_MIN_STRIDE_SHIFT, need)
}
