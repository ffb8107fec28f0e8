//! Wake-ups that a driver has missed: doorbells that were rung while the engine slept, without a write to the kick page.
//!
//! [`crate::engines::sleep`] describes why each doorbell that the engine does not find in its last look is also written to the kick page:
//! the driver reads `asleep` behind a full barrier, and finds it set. Without a full barrier, the driver can read the old value.
//! Then the doorbell waits until the sleep ends by time, at a deadline or the next heartbeat. Drivers that lack the barrier
//! work, but with rare latencies of up to 250 ms, so they are counted.
//!
//! A doorbell in a page at the end of a sleep by time may have another reason: its write to the kick page is under way,
//! for as long as a busy host keeps the virtual CPU or the server thread waiting. So the engine handles the doorbell as
//! usual, but leaves `asleep` set in its page. A driver with a barrier finds it set, and its write arrives. The engine
//! awaits the write for [`BEATS`] heartbeats, which are as slow as the host is. Meanwhile doorbells of this page trap.
//!
//! A driver that is stopped for longer than that between the doorbell and the look at `asleep`, as by a debugger or by
//! QEMU's `stop`, is counted, too. The engine awaits one doorbell of each NIC at a time, and does not find others
//! meanwhile.
//!
//! This module does not find a doorbell that is rung while the engine sleeps if another event wakes the engine.

use faultline_abi::doorbell::Doorbell;

/// Heartbeats for which the write to the kick page is awaited: 5 s on a quiet host.
const BEATS: u32 = 20;

/// A doorbell whose write to the kick page is awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    /// Its page, and the version of the context that owns the page.
    pub(crate) context: (u32, u64),
    pub(crate) bell: Doorbell,
    beats: u32,
}

/// The result of the wait for the write to the kick page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Not known yet.
    Waits,
    /// The driver has not seen that the engine slept.
    Missed,
}

impl Suspect {
    pub(crate) fn new(context: (u32, u64), bell: Doorbell) -> Self {
        Self {
            context,
            bell,
            beats: 0,
        }
    }

    /// True if this doorbell, which was written to the kick page, is the awaited one.
    pub(crate) fn is(&self, page: u32, bell: Doorbell) -> bool {
        (self.context.0, self.bell) == (page, bell)
    }

    /// Counts a heartbeat.
    pub(crate) fn beat(&mut self) -> Verdict {
        self.beats = self.beats.saturating_add(1);
        match self.beats < BEATS {
            true => Verdict::Waits,
            false => Verdict::Missed,
        }
    }
}
