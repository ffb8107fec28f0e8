//! Random numbers and values.

use faultline_scenario::random::Rng;

/// A number from `from` to `to`.
pub(super) fn between(random: &mut Rng, from: u64, to: u64) -> u64 {
    let span = to.saturating_sub(from).saturating_add(1);
    from.saturating_add(random.below(span))
}

/// A number below `below`, or 0.
pub(super) fn index(random: &mut Rng, below: usize) -> usize {
    usize::try_from(random.below(below as u64)).unwrap_or(0)
}

/// One of these values; `default` if there are none.
pub(super) fn one_of<T: Copy>(random: &mut Rng, all: &[T], default: T) -> T {
    let found = all.get(index(random, all.len()));
    found.copied().unwrap_or(default)
}
