//! Queues of the priorities of a link, which share its rate.
//!
//! Each priority has a queue. Priorities with frames get equal shares of the rate, counted in octets (self-clocked fair queueing): equal
//! weights of enhanced transmission selection (IEEE 802.1Q clause 37), without strict priorities.

use std::collections::VecDeque;

use faultline_wire::priority::PRIORITIES;

/// The queue of a priority. Its entries have type `T`.
#[derive(Debug)]
struct Class<T> {
    waiting: VecDeque<(usize, T)>,
    octets: u64,
    /// Virtual time at which the last queued frame is sent.
    finish: u64,
}

/// The queues of all priorities.
#[derive(Debug)]
pub(crate) struct Classes<T> {
    by_priority: [Class<T>; PRIORITIES],
    /// Virtual time: octets granted to each priority.
    granted: u64,
}

impl<T> Classes<T> {
    pub(crate) fn new() -> Self {
        let class = |_| Class {
            waiting: VecDeque::new(),
            octets: 0,
            finish: 0,
        };
        Self {
            by_priority: std::array::from_fn(class),
            granted: 0,
        }
    }

    /// Octets that wait in the queue of a priority.
    pub(crate) fn octets(&self, priority: u8) -> u64 {
        let class = self.by_priority.get(usize::from(priority));
        class.map_or(0, |class| class.octets)
    }

    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        let mut classes = self.by_priority.iter();
        classes.all(|class| class.waiting.is_empty())
    }

    /// Appends a frame of `octets` octets to the queue of its priority.
    pub(crate) fn push(&mut self, priority: u8, octets: usize, item: T) {
        let Some(class) = self.by_priority.get_mut(usize::from(priority)) else {
            return;
        };
        if class.waiting.is_empty() {
            // A priority gains no credit while it is idle.
            class.finish = class.finish.max(self.granted);
        }
        class.octets = class.octets.saturating_add(octets as u64);
        class.waiting.push_back((octets, item));
    }

    /// Removes the frame to be sent next.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let classes = self.by_priority.iter_mut();
        let class = classes
            .filter(|class| !class.waiting.is_empty())
            .min_by_key(|class| class.finish)?;
        let (octets, item) = class.waiting.pop_front()?;
        class.octets = class.octets.saturating_sub(octets as u64);
        self.granted = class.finish;
        class.finish = class.finish.saturating_add(octets as u64);
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Octets of each of two priorities among the first `octets` octets sent.
    fn shares(classes: &mut Classes<(u8, usize)>, octets: usize) -> [usize; 2] {
        let mut sent = [0, 0];
        while sent.iter().sum::<usize>() < octets {
            let (priority, octets) = classes.pop().unwrap();
            sent[usize::from(priority == 3)] += octets;
        }
        sent
    }

    #[test]
    fn priorities_share_the_rate_by_octets() {
        let mut classes = Classes::new();
        // The shorter frames come first, and are more.
        for _ in 0..1000 {
            classes.push(0, 100, (0, 100));
        }
        for _ in 0..100 {
            classes.push(3, 1000, (3, 1000));
        }
        assert_eq!((classes.octets(0), classes.octets(3)), (100_000, 100_000));
        let [zero, three] = shares(&mut classes, 50_000);
        assert!(zero.abs_diff(three) <= 1000, "{zero} {three}");
        assert_eq!(classes.octets(3), 100_000 - three as u64);
    }

    #[test]
    fn an_idle_priority_saves_no_share() {
        let mut classes = Classes::new();
        for _ in 0..100 {
            classes.push(0, 1000, (0, 1000));
        }
        assert_eq!(shares(&mut classes, 50_000), [50_000, 0]);
        for _ in 0..100 {
            classes.push(3, 1000, (3, 1000));
        }
        let [zero, three] = shares(&mut classes, 50_000);
        assert!(zero.abs_diff(three) <= 1000, "{zero} {three}");
    }

    #[test]
    fn frames_of_a_priority_stay_in_order() {
        let mut classes = Classes::new();
        for n in 0..20usize {
            classes.push(if n % 3 == 0 { 7 } else { 1 }, 64 + n, n);
        }
        let mut last = [None, None];
        while let Some(n) = classes.pop() {
            let last = &mut last[usize::from(n % 3 == 0)];
            assert!(*last < Some(n));
            *last = Some(n);
        }
        assert!(classes.is_empty() && classes.octets(1) == 0 && classes.octets(7) == 0);
    }
}
