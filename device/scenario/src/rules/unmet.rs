//! Conditions that do not hold. A rule that has not acted shows the nearest: the last one that was looked at and did not hold.

/// A condition, in the order in which conditions are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmet {
    Opcode,
    Segment,
    Psn,
    Iter,
    Place,
    Qpn,
    Key,
    Qp,
    Process,
    After,
    Before,
    Bytes,
    Choice,
}

impl Unmet {
    const ALL: [Self; 13] = [
        Self::Opcode,
        Self::Segment,
        Self::Psn,
        Self::Iter,
        Self::Place,
        Self::Qpn,
        Self::Key,
        Self::Qp,
        Self::Process,
        Self::After,
        Self::Before,
        Self::Bytes,
        Self::Choice,
    ];

    /// The keys of a rule that make it.
    fn keys(self) -> &'static str {
        match self {
            Self::Opcode => "opcode",
            Self::Segment => "offset, queue, msn, or stag",
            Self::Psn => "psn",
            Self::Iter => "iter",
            Self::Place => "nic",
            Self::Qpn => "qpn",
            Self::Key => "key",
            Self::Qp => "qp",
            Self::Process => "process",
            Self::After => "after",
            Self::Before => "before",
            Self::Bytes => "bytes",
            Self::Choice => "nth, every, chance, or the limit of actions",
        }
    }
}

/// What was missed by a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The key of the rule, or the keys.
    pub keys: &'static str,
    /// Packets, doorbells, interrupts or diagnostics for which all conditions before it held, and it did not.
    pub count: u64,
}

/// How often each condition was the first that did not hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Misses([u64; Unmet::ALL.len()]);

impl Misses {
    pub(super) fn note(&mut self, unmet: Unmet) {
        if let Some(count) = self.0.get_mut(unmet as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// The nearest.
    pub(super) fn nearest(&self) -> Option<Miss> {
        let mut all = Unmet::ALL.into_iter().zip(self.0);
        let (unmet, count) = all.rfind(|(_, count)| *count > 0)?;
        let keys = unmet.keys();
        Some(Miss { keys, count })
    }
}
