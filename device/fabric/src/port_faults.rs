//! Faults that an operator injects at the port of a NIC: an MTU, drops of packets, lost interrupts.
//!
//! Without faults, a frame costs one test of a flag.

use crate::fate::Fate;
use faultline_scenario::trigger::Direction;

use crate::frame::Frame;

/// Packets and interrupts that a port has dropped since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets that were dropped because the link was down, or because the function may not access memory.
    pub down: u64,
    /// Packets that were longer than the MTU.
    pub too_long: u64,
    /// Sent packets that were dropped by request.
    pub tx_dropped: u64,
    /// Received packets that were dropped by request.
    pub rx_dropped: u64,
    /// Sent packets whose sender, or the port with their destination address, is not a member of their VLAN.
    pub vlan: u64,
    /// Interrupts that were suppressed by request.
    pub interrupts_lost: u64,
}

/// Injected faults of a port.
#[derive(Debug, Default)]
pub struct PortFaults {
    /// Longest frame without Ethernet header and VLAN tag; `None`: not limited.
    mtu: Option<u16>,
    /// Packets to drop.
    tx_drops: u32,
    rx_drops: u32,
    /// Interrupts to suppress.
    interrupt_losses: u32,
    /// There is an MTU, or there are packets to drop.
    impaired: bool,
    /// Counts of dropped packets and interrupts.
    pub counts: FaultCounts,
}

impl PortFaults {
    /// Longest payload of Ethernet frames that pass, if it is limited.
    pub fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    /// Sets the longest payload of Ethernet frames that pass; `None`: that of the NIC.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = mtu;
        self.update();
    }

    /// Packets that are still to be dropped in a direction.
    pub fn pending_drops(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Tx => self.tx_drops,
            Direction::Rx => self.rx_drops,
        }
    }

    /// Interrupts that are still to be suppressed.
    pub fn pending_interrupt_losses(&self) -> u32 {
        self.interrupt_losses
    }

    /// Sets how many packets to drop next. Replaces an earlier request; 0 cancels it.
    pub fn drop_frames(&mut self, direction: Direction, count: u32) {
        match direction {
            Direction::Tx => self.tx_drops = count,
            Direction::Rx => self.rx_drops = count,
        }
        self.update();
    }

    /// Suppresses the next `count` interrupts.
    pub fn lose_interrupts(&mut self, count: u32) {
        self.interrupt_losses = count;
    }

    fn update(&mut self) {
        self.impaired = self.mtu.is_some() || self.tx_drops > 0 || self.rx_drops > 0;
    }

    /// True if packets are to be dropped by request.
    #[inline(always)]
    pub(crate) fn drops_packets(&self) -> bool {
        self.impaired && (self.tx_drops > 0 || self.rx_drops > 0)
    }

    /// Returns the fate of a frame here. A frame of several packets is dropped as a whole: while packets
    /// are dropped by request, they pass singly.
    #[inline(always)]
    pub fn fate(&mut self, direction: Direction, frame: Frame<'_>) -> Fate {
        match self.impaired {
            false => Fate::Passed,
            true => self.impaired_fate(direction, frame.packets(), frame.length_for_mtu()),
        }
    }

    fn impaired_fate(&mut self, direction: Direction, packets: u32, length: usize) -> Fate {
        let count = u64::from(packets);
        if self.mtu.is_some_and(|mtu| length > usize::from(mtu)) {
            self.counts.too_long = self.counts.too_long.wrapping_add(count);
            return Fate::TooLong;
        }
        let (drops, dropped) = match direction {
            Direction::Tx => (&mut self.tx_drops, &mut self.counts.tx_dropped),
            Direction::Rx => (&mut self.rx_drops, &mut self.counts.rx_dropped),
        };
        if *drops == 0 {
            return Fate::Passed;
        }
        *drops = drops.saturating_sub(packets);
        *dropped = dropped.wrapping_add(count);
        self.update();
        Fate::Requested
    }

    /// Returns true if an interrupt is suppressed.
    #[inline]
    pub fn loses_interrupt(&mut self) -> bool {
        let Some(left) = self.interrupt_losses.checked_sub(1) else {
            return false;
        };
        self.interrupt_losses = left;
        self.counts.interrupts_lost = self.counts.interrupts_lost.wrapping_add(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::{Origin, TxFrame};

    use super::*;
    use crate::frame::Octets;

    /// A frame without payload: its length is 0.
    fn frames(packets: u32) -> TxFrame {
        TxFrame {
            packets,
            ..TxFrame::default()
        }
    }

    fn long_frame(bytes: usize) -> TxFrame {
        TxFrame {
            payload_len: bytes,
            ..TxFrame::default()
        }
    }

    fn fate(link: &mut PortFaults, direction: Direction, frame: TxFrame) -> Fate {
        link.fate(direction, Frame::ByReference(&frame))
    }

    #[test]
    fn a_request_drops_as_many_packets_in_one_direction() {
        let mut link = PortFaults::default();
        assert_eq!(fate(&mut link, Direction::Tx, frames(1)), Fate::Passed);
        link.drop_frames(Direction::Tx, 3);
        let fates = [1, 1, 1, 1].map(|packets| fate(&mut link, Direction::Tx, frames(packets)));
        let dropped = Fate::Requested;
        assert_eq!(fates, [dropped, dropped, dropped, Fate::Passed]);
        assert!(!link.impaired, "it costs nothing any more");
        link.drop_frames(Direction::Rx, 3);
        assert_eq!(fate(&mut link, Direction::Tx, frames(1)), Fate::Passed);
        let run = fate(&mut link, Direction::Rx, frames(8));
        assert_eq!(run, Fate::Requested, "a run, as a whole");
        assert_eq!(fate(&mut link, Direction::Rx, frames(1)), Fate::Passed);
        let counts = FaultCounts {
            tx_dropped: 3,
            rx_dropped: 8,
            ..FaultCounts::default()
        };
        assert_eq!(link.counts, counts);
        link.drop_frames(Direction::Rx, 3);
        link.drop_frames(Direction::Rx, 0);
        let after = fate(&mut link, Direction::Rx, frames(1));
        assert_eq!(after, Fate::Passed, "withdrawn");
    }

    #[test]
    fn the_mtu_is_without_the_ethernet_header() {
        let mut link = PortFaults::default();
        link.set_mtu(Some(1500));
        let (tx, rx) = (Direction::Tx, Direction::Rx);
        assert_eq!(fate(&mut link, tx, long_frame(1514)), Fate::Passed);
        assert_eq!(fate(&mut link, tx, long_frame(1515)), Fate::TooLong);
        assert_eq!(fate(&mut link, rx, long_frame(9000)), Fate::TooLong);
        assert_eq!(link.counts.too_long, 2);
        link.set_mtu(None);
        assert_eq!(fate(&mut link, tx, long_frame(9000)), Fate::Passed);
    }

    #[test]
    fn the_mtu_holds_for_octets_with_and_without_a_tag() {
        let mut link = PortFaults::default();
        link.set_mtu(Some(1500));
        let mut octets = [0; 1519];
        for (tag, longest) in [([0x08, 0x00], 1514), ([0x81, 0x00], 1518)] {
            octets[12..14].copy_from_slice(&tag);
            for (length, expected) in [(longest, Fate::Passed), (longest + 1, Fate::TooLong)] {
                let packet = Octets::new(Origin::Unknown, &octets[..length]);
                let fate = link.fate(Direction::Rx, Frame::Octets(packet));
                assert_eq!(fate, expected, "{length} octets");
            }
        }
    }

    #[test]
    fn as_many_interrupts_are_lost_as_requested() {
        let mut link = PortFaults::default();
        link.lose_interrupts(2);
        let lost = [(); 4].map(|()| link.loses_interrupt());
        assert_eq!(lost, [true, true, false, false]);
        assert_eq!(link.counts.interrupts_lost, 2);
    }
}
