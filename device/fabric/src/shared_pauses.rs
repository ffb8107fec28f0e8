//! Priorities that the links of one engine pause, for senders on the other engines.
//!
//! Each engine publishes a set in each pass, and reads those of the others. Nothing is locked. An engine whose set changes wakes the
//! others, and one that is about to sleep looks for changes once more (`device/daemon/src/engines/sleep.rs`): queue pairs that wait for the end of a pause
//! have no other reason to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use faultline_wire::PrioritySet;

/// What an engine knows of the pauses of the others.
#[derive(Debug)]
pub struct SharedPauses {
    /// By engine.
    all: Arc<[AtomicU8]>,
    own: usize,
    /// What others have paused when that was read last.
    others: PrioritySet,
}

impl SharedPauses {
    /// One for each engine of a process.
    pub fn of_engines(count: usize) -> impl Iterator<Item = Self> {
        let all: Arc<[AtomicU8]> = (0..count).map(|_| AtomicU8::new(0)).collect();
        (0..count).map(move |own| Self {
            all: Arc::clone(&all),
            own,
            others: PrioritySet::NONE,
        })
    }

    /// Publishes what links of this engine pause. Returns true if that has changed: the others must be woken.
    #[inline]
    pub fn publish(&mut self, paused: PrioritySet) -> bool {
        let Some(own) = self.all.get(self.own) else {
            return false;
        };
        // Only this engine writes it.
        let has_changed = own.load(Ordering::Relaxed) != paused.bits();
        if has_changed {
            own.store(paused.bits(), Ordering::Release);
        }
        has_changed
    }

    /// Reads what the others have published.
    #[inline]
    pub fn refresh(&mut self) {
        self.others = self.read();
    }

    /// What others pause, by the last [`SharedPauses::refresh`].
    #[inline]
    pub fn paused(&self) -> PrioritySet {
        self.others
    }

    /// True if others have published something else since the last [`SharedPauses::refresh`].
    #[inline]
    pub fn has_news(&self) -> bool {
        self.read() != self.others
    }

    #[inline]
    fn read(&self) -> PrioritySet {
        let all = self.all.iter().enumerate();
        let others = all.filter(|(engine, _)| *engine != self.own);
        let sets = others.map(|(_, bits)| PrioritySet::from_bits(bits.load(Ordering::Acquire)));
        sets.fold(PrioritySet::NONE, PrioritySet::or)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_sees_the_pauses_of_the_others() {
        let mut engines: Vec<_> = SharedPauses::of_engines(3).collect();
        let (three, five) = (PrioritySet::NONE.with(3), PrioritySet::NONE.with(5));
        assert!(engines[0].publish(three) && !engines[0].publish(three));
        assert!(engines[1].publish(five));
        assert!(engines[2].has_news() && engines[2].paused().is_empty());
        engines.iter_mut().for_each(SharedPauses::refresh);
        let seen: Vec<_> = engines.iter().map(SharedPauses::paused).collect();
        assert_eq!(seen, [five, three, three.or(five)]);
        assert!(engines.iter().all(|engine| !engine.has_news()));
        assert!(engines[1].publish(PrioritySet::NONE));
        assert!(engines[0].has_news() && !engines[1].has_news());
    }

    #[test]
    fn one_engine_alone_is_not_paused_by_others() {
        let mut engines: Vec<_> = SharedPauses::of_engines(1).collect();
        engines[0].publish(PrioritySet::ALL);
        engines[0].refresh();
        assert!(engines[0].paused().is_empty() && !engines[0].has_news());
    }
}
