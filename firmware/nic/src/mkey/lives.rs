//! Lives of queue pairs, for fast registrations that end with the queue pair on which they were made (pitfall `qp_keys`).
//!
//! A life ends when the queue pair enters ERR or RESET, or is destroyed. All registrations of a life end at once, without a look at any of
//! them: a registration has the number of its life, and numbers are not used twice.

use std::collections::BTreeMap;

/// A life of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    qpn: u32,
    number: u64,
}

/// The lives that last and have registrations: at most one of each queue pair.
#[derive(Debug, Default)]
pub(super) struct Lives {
    by_qp: BTreeMap<u32, u64>,
    last: u64,
}

impl Lives {
    /// The life of a queue pair that registers memory.
    pub(super) fn of(&mut self, qpn: u32) -> Life {
        let next = self.last.wrapping_add(1);
        let number = *self.by_qp.entry(qpn).or_insert(next);
        if number == next {
            self.last = next;
        }
        Life { qpn, number }
    }

    /// True if a life lasts.
    pub(super) fn lasts(&self, life: Life) -> bool {
        self.by_qp.get(&life.qpn) == Some(&life.number)
    }

    /// True if a life lasts and is that of a queue pair.
    pub(super) fn is_of(&self, life: Life, qpn: u32) -> bool {
        life.qpn == qpn && self.lasts(life)
    }

    /// The life of a queue pair ends.
    pub(super) fn end(&mut self, qpn: u32) {
        self.by_qp.remove(&qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_that_has_ended_does_not_come_back() {
        let mut lives = Lives::default();
        let [first, other] = [5, 6].map(|qpn| lives.of(qpn));
        assert_eq!(lives.of(5), first);
        assert!(lives.is_of(first, 5) && !lives.is_of(first, 6));
        lives.end(5);
        assert!(!lives.lasts(first) && lives.lasts(other));
        let second = lives.of(5);
        assert!(lives.lasts(second) && !lives.lasts(first));
    }
}
