//! The number of queue pairs in each state, kept up to date by every transition so that it can be read at any time.

use super::types::State;

/// Number of queue pairs and work queues in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts([usize; State::ALL.len()]);

impl StateCounts {
    /// One more is in this state.
    pub(crate) fn add(&mut self, state: State) {
        if let Some(count) = self.0.get_mut(state as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// One less is in this state.
    pub(crate) fn remove(&mut self, state: State) {
        if let Some(count) = self.0.get_mut(state as usize) {
            *count = count.saturating_sub(1);
        }
    }

    /// All states with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (State, usize)> {
        State::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_own_count() {
        let mut counts = StateCounts::default();
        for (times, state) in (1..).zip(State::ALL) {
            for _ in 0..times {
                counts.add(state);
            }
        }
        counts.remove(State::Err);
        let expected = State::ALL.into_iter().zip([1, 2, 3, 4, 5, 6, 6]);
        assert!(counts.iter().eq(expected), "{counts:?}");
    }
}
