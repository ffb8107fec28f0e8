//! Diagnostics of the NICs, for rules and for the owner.

use faultline_nic::Instant;

use crate::fabric::Fabric;
use crate::outside::{Outside, Seen};
use crate::switch::PortId;

impl<O: Outside> Fabric<O> {
    /// Takes diagnostics before NIC `id` sends, if rules or observers must know a connection before its packets.
    #[inline(always)]
    pub fn take_early_diagnostics(&mut self, out: &mut O, now: Instant, id: PortId) {
        let asks = !self.rules.is_empty() || out.watches_frames();
        let port = self.nics.get(id);
        if asks && port.is_some_and(|port| port.nic.has_diagnostics()) {
            self.take_diagnostics(out, now);
        }
    }

    /// Takes the diagnostics of the NICs.
    #[inline]
    pub fn take_diagnostics(&mut self, out: &mut O, now: Instant) {
        for (id, port) in self.nics.awake_mut() {
            if port.nic.has_diagnostics() {
                for (at, diagnostic) in port.nic.diagnostics() {
                    self.rules.diagnostic(*at, id, diagnostic, &port.nic);
                    let seen = Seen::Diagnostic {
                        nic: id,
                        diagnostic,
                        device: &port.nic,
                    };
                    out.seen(*at, seen);
                }
                port.nic.clear_diagnostics();
            }
            let lost = port.nic.take_lost_diagnostics();
            if lost > 0 {
                port.lost_diagnostics = port.lost_diagnostics.wrapping_add(lost);
                self.rules.lost_diagnostics(id, lost);
                out.seen(now, Seen::LostDiagnostics(id, lost));
            }
        }
    }
}
