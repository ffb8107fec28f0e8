//! The limit of a turn: the frames and the work of one source before the next source.
//!
//! A source is a NIC, the end of a modelled link, an external port, or another fabric. A frame can cost far more than its octets: one that
//! ends a connection flushes its queues. So the work of all receiving NICs counts.

use faultline_nic::TURN_WORK;

/// Maximum number of packets of a turn.
const PACKETS: u32 = 32;
/// Approximate octets of a turn. Copying them takes some microseconds, for which others wait.
const OCTETS: usize = 16 << 10;

/// The rest of a turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnLimit {
    packets: u32,
    octets: usize,
    /// The work of receivers since the start, at the end of the turn.
    end: u64,
}

impl TurnLimit {
    /// Octets that may be sent in this turn.
    pub(crate) fn octets(&self) -> usize {
        self.octets
    }

    /// Counts frames, and work for them in addition to that of receivers.
    #[inline]
    pub fn take(&mut self, packets: u32, octets: usize, work: u64) {
        self.packets = self.packets.saturating_sub(packets);
        self.octets = self.octets.saturating_sub(octets);
        self.end = self.end.saturating_sub(work);
    }

    /// Begins a turn. `received`: work of receivers since the start.
    #[inline]
    pub(crate) fn new(received: u64) -> Self {
        Self {
            packets: PACKETS,
            octets: OCTETS,
            end: received.saturating_add(TURN_WORK),
        }
    }

    /// Begins a further turn of the same source. Its packets and octets are those of a new turn, but the limit of work stays: all turns
    /// together do no more work than one. Returns false if the limit of work is reached. `received`: work of receivers since the start.
    #[inline]
    pub(crate) fn extend(&mut self, received: u64) -> bool {
        (self.packets, self.octets) = (PACKETS, OCTETS);
        received < self.end
    }

    /// Returns true if another frame may be taken. `received`: work of receivers since the start.
    #[inline]
    pub(crate) fn has_room(&self, received: u64) -> bool {
        self.packets > 0 && self.octets > 0 && received < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_turns_do_the_work_of_one() {
        let mut turn = TurnLimit::new(1000);
        for received in 1001..1016 {
            assert!(turn.has_room(received));
            turn.take(PACKETS, OCTETS, 100);
            assert!(!turn.has_room(received));
            assert!(turn.extend(received));
        }
        let end = 1000 + TURN_WORK - 1500;
        assert!(turn.has_room(end - 1) && turn.extend(end - 1));
        assert!(!turn.has_room(end) && !turn.extend(end));
    }
}
