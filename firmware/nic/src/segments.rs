//! Lists of segments of guest memory.

use smallvec::SmallVec;

/// A contiguous piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// DMA address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Pieces of guest memory, in order. Four fit without allocation.
pub type Segments = SmallVec<[Segment; 4]>;

/// Appends a segment, or lengthens the last one if it follows directly.
#[inline]
pub(crate) fn push_segment(segments: &mut Segments, addr: u64, len: u32) {
    if len == 0 {
        return;
    }
    if follows(segments, addr)
        && let Some(last) = segments.last_mut()
        && let Some(sum) = last.len.checked_add(len)
    {
        last.len = sum;
        return;
    }
    segments.push(Segment { addr, len });
}

/// True if memory at `addr` directly follows the last segment.
#[inline]
pub(crate) fn follows(segments: &Segments, addr: u64) -> bool {
    segments
        .last()
        .is_some_and(|last| last.addr.wrapping_add(u64::from(last.len)) == addr)
}

/// Keeps the first `len` bytes. Returns `len`.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a segment is not longer than what is left"
)]
pub(crate) fn truncate_segments(segments: &mut Segments, len: u32) -> u32 {
    let mut left = len;
    segments.retain(|segment| {
        segment.len = segment.len.min(left);
        left -= segment.len;
        segment.len > 0
    });
    len
}
