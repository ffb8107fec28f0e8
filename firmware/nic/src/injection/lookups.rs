//! Injected delays of look-ups in page tables.

use super::entry::Facts;
use super::point::{Outcome, Point};
use crate::core::Core;
use crate::time::Instant;

impl Core {
    /// Makes the translation cache record misses while injections apply to them.
    pub(crate) fn watch_lookups(&self) {
        self.mkeys.tlb.watch(self.injections.has(Point::Lookup));
    }

    /// Passes the point for each look-up since the last call. The delays of several add up.
    #[cold]
    pub(crate) fn inject_lookups(&mut self, now: Instant) {
        for miss in self.mkeys.tlb.take_seen() {
            let facts = Facts {
                qpn: Some(miss.qpn),
                key: Some(miss.key),
                va: Some(miss.va),
                ..Facts::default()
            };
            if let Some(Outcome::Delay(by)) = self.inject(now, Point::Lookup, &facts) {
                self.stay_busy(now, by);
            }
        }
    }
}
