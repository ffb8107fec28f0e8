//! The newest diagnostics of each kind: a flood of packets, or of another kind, does not evict them.

use faultline_nic::{Diagnostic, Instant};

use crate::kind::DiagnosticKind;

/// Diagnostics that are kept of each kind.
const KEPT: usize = 8;

/// The newest diagnostics of a NIC.
#[derive(Clone, Debug)]
pub(crate) struct Recent {
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    newest: [Option<(Instant, Diagnostic)>; KEPT],
    /// Place of the next one.
    next: usize,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            kinds: vec![Kind::default(); DiagnosticKind::COUNT],
        }
    }
}

impl Recent {
    /// Keeps a diagnostic, in place of the oldest of its kind.
    #[inline]
    pub(crate) fn push(&mut self, at: Instant, diagnostic: &Diagnostic) {
        let kind = DiagnosticKind::of(diagnostic) as usize;
        if let Some(kind) = self.kinds.get_mut(kind) {
            if let Some(slot) = kind.newest.get_mut(kind.next) {
                *slot = Some((at, *diagnostic));
            }
            kind.next = kind.next.saturating_add(1) % KEPT;
        }
    }

    /// All that are kept, the newest first.
    pub(crate) fn newest(&self) -> Vec<(Instant, Diagnostic)> {
        let all = self.kinds.iter().flat_map(|kind| kind.newest);
        let mut all: Vec<_> = all.flatten().collect();
        all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_kind_leaves_others() {
        let mut recent = Recent::default();
        recent.push(Instant(1), &Diagnostic::Fatal { cause: 4 });
        for at in 2..1000 {
            recent.push(Instant(at), &Diagnostic::Reset);
        }
        let newest = recent.newest();
        let times: Vec<u64> = newest.iter().map(|(at, _)| at.0).collect();
        assert_eq!(times, [999, 998, 997, 996, 995, 994, 993, 992, 1]);
        assert_eq!(newest[8].1, Diagnostic::Fatal { cause: 4 });
    }
}
