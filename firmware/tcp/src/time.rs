//! Time as a connection sees it: a number that is passed in.

use core::ops::Add;

/// A point in time: nanoseconds since any fixed point. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Whole milliseconds; saturates.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// This span, doubled `times` times; saturates.
    pub(crate) const fn doubled(self, times: u32) -> Self {
        let times = if times < 32 { times } else { 32 };
        Self(self.0.saturating_mul(1u64.wrapping_shl(times)))
    }
}

impl Instant {
    /// The span since `earlier`; 0 if that is later.
    pub(crate) const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Nanos> for Instant {
    type Output = Instant;

    fn add(self, span: Nanos) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }
}
