//! Priorities that link models of one engine pause for senders on other engines.
//!
//! Each engine publishes its set in each pass, and reads those of the others. There are no locks. An engine whose set changes wakes the
//! others, and an engine checks for changes before it sleeps (`device/daemon/src/engines/sleep.rs`), because no other event resumes queue
//! pairs at the end of a pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use faultline_wire::PrioritySet;

/// The sets of all engines, as one engine sees them.
#[derive(Debug)]
pub struct SharedPauses {
    /// By engine.
    all: Arc<[AtomicU8]>,
    own: usize,
    /// The priorities that others paused at the last [`SharedPauses::refresh`].
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

    /// Publishes the priorities that links of this engine pause. Returns true after a change: the others must be woken.
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

    /// Reads the published sets of the others.
    #[inline]
    pub fn refresh(&mut self) {
        self.others = self.read();
    }

    /// Priorities that others pause, after the last [`SharedPauses::refresh`].
    #[inline]
    pub fn paused(&self) -> PrioritySet {
        self.others
    }

    /// Returns true if published sets have changed since the last [`SharedPauses::refresh`].
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
