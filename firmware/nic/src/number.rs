//! Conversions between types of integers for which the standard library has none that cannot fail.

const _: () = assert!(usize::BITS == 64, "lengths and indices have up to 64 bits");

/// A length or an index of the ABI, which are 64 bits wide.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the assertion above says that usize has 64 bits"
)]
pub(crate) const fn to_usize(number: u64) -> usize {
    number as usize
}

/// The lower 32 bits.
#[inline]
pub(crate) const fn low32(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

/// A length as a 32-bit number. Frames, messages and tables are far shorter than the number at which it saturates.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "lost bits are excluded by the comparison"
)]
pub(crate) const fn len32(len: usize) -> u32 {
    if len > u32::MAX as usize {
        return u32::MAX;
    }
    len as u32
}

/// A length as a 16-bit field of a packet. Packets are shorter than the number at which it saturates.
#[inline]
pub(crate) fn len16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
