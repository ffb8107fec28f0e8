//! Positions: sequence numbers without wrap-around.

use core::ops::{Add, Sub};

use faultline_wire::Seq;

/// A position in one direction of a connection: 0 is the SYN, 1 the first octet of data, and the FIN follows the last one.
///
/// A sequence number is made of it when a segment leaves, and a position of each sequence number that arrives. All other code
/// compares positions, which have an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pos(pub(crate) u64);

impl Pos {
    /// The first octet of data.
    pub(crate) const DATA: Self = Self(1);

    /// The sequence number of this position, if `initial` is the one of the SYN.
    pub(crate) fn seq(self, initial: Seq) -> Seq {
        initial.add((self.0 & 0xffff_ffff) as u32)
    }

    /// The position of a sequence number, which is less than 2^31 from `self`. `None`: before the SYN.
    pub(crate) fn near(self, initial: Seq, seq: Seq) -> Option<Self> {
        let distance = seq.diff(self.seq(initial));
        self.0.checked_add_signed(distance.into()).map(Self)
    }

    /// The offset in the stream of data.
    pub(crate) fn offset(self) -> u64 {
        self - Self::DATA
    }
}

/// Saturates. A connection would need centuries to reach the end of the range.
impl Add<u64> for Pos {
    type Output = Self;

    fn add(self, octets: u64) -> Self {
        Self(self.0.saturating_add(octets))
    }
}

/// The distance in octets; 0 if `other` is later.
impl Sub for Pos {
    type Output = u64;

    fn sub(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap_and_positions_do_not() {
        let initial = Seq(0xffff_fff0);
        for at in [0, 1, 15, 16, 17, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40] {
            let pos = Pos(at);
            for (seq, expected) in [
                (pos.seq(initial), Some(pos)),
                (pos.seq(initial).add(1000), Some(pos + 1000)),
                (pos.seq(initial).add(u32::MAX), at.checked_sub(1).map(Pos)),
            ] {
                assert_eq!(pos.near(initial, seq), expected, "{at}");
            }
        }
    }
}
