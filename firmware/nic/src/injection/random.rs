//! Random numbers for the probability of effects.

/// Random numbers: SplitMix64, so that a seed means the same everywhere.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SplitMix64(pub u64);

const MILLION: u32 = 1_000_000;

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with this probability in millionths. No number is drawn for an effect that always takes place.
    pub(super) fn is_below(&mut self, per_million: u32) -> bool {
        if per_million >= MILLION {
            return true;
        }
        let number = self.next().checked_rem(u64::from(MILLION));
        number.is_some_and(|number| number < u64::from(per_million))
    }
}
