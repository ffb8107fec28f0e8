//! The link of a port as an operator has set it: MTU, and faults to inject.
//!
//! Frames and interrupts pass through it where the engine hands them over. An unimpaired link costs one test of a flag.

use faultline_nic::{FrameKind, TxFrame};
use faultline_telemetry::Direction;
use faultline_wire::Ethernet;

/// What the link has dropped since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets that were dropped because the link was down, or because the function may not access memory.
    pub(crate) down: u64,
    /// Packets that were longer than the MTU.
    pub too_long: u64,
    /// Sent packets that were dropped by request.
    pub tx_dropped: u64,
    /// Received packets that were dropped by request.
    pub rx_dropped: u64,
    /// Sent packets whose sender, or the port with their destination address, is no member of their VLAN.
    pub vlan: u64,
    /// Interrupts that were suppressed by request.
    pub interrupts_lost: u64,
}

/// The link of a port.
#[derive(Debug)]
pub struct Link {
    /// Longest frame without Ethernet header and VLAN tag; `None`: not limited.
    mtu: Option<u16>,
    /// Packets to drop.
    tx_drops: u32,
    rx_drops: u32,
    /// Interrupts to suppress.
    interrupt_losses: u32,
    /// There is an MTU, or there are packets to drop.
    impaired: bool,
    pub(crate) counts: LinkCounts,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self {
            mtu: None,
            tx_drops: 0,
            rx_drops: 0,
            interrupt_losses: 0,
            impaired: false,
            counts: LinkCounts::default(),
        }
    }

    pub(crate) fn mtu(&self) -> Option<u16> {
        self.mtu
    }

    /// Sets the longest payload of Ethernet frames that pass; `None`: that of the NIC.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = mtu;
        self.update();
    }

    /// True if a frame is longer than the MTU.
    pub(crate) fn is_too_long(&self, frame: &TxFrame) -> bool {
        self.mtu.is_some_and(|mtu| length(frame) > usize::from(mtu))
    }

    /// As [`Link::is_too_long`], of a frame as octets.
    pub(crate) fn are_too_long(&self, frame: &[u8]) -> bool {
        let length = length_of_octets(frame.len(), frame);
        self.mtu.is_some_and(|mtu| length > usize::from(mtu))
    }

    /// Packets that are still to be dropped in a direction.
    pub(crate) fn pending_drops(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Tx => self.tx_drops,
            Direction::Rx => self.rx_drops,
        }
    }

    /// Interrupts that are still to be suppressed.
    pub(crate) fn pending_interrupt_losses(&self) -> u32 {
        self.interrupt_losses
    }

    /// Drops the next `count` packets; 0: none, also not those of an earlier request.
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

    /// Returns true if a frame is dropped here. A run of packets is dropped as a whole.
    #[inline]
    pub(crate) fn drops_frame(&mut self, direction: Direction, frame: &TxFrame) -> bool {
        self.impaired && self.drops(direction, frame.packets, length(frame))
    }

    /// Returns true if a frame that has come as octets is dropped here.
    #[inline]
    pub(crate) fn drops_octets(&mut self, direction: Direction, frame: &[u8]) -> bool {
        self.impaired && self.drops(direction, 1, length_of_octets(frame.len(), frame))
    }

    fn drops(&mut self, direction: Direction, packets: u32, length: usize) -> bool {
        let count = u64::from(packets);
        if self.mtu.is_some_and(|mtu| length > usize::from(mtu)) {
            self.counts.too_long = self.counts.too_long.wrapping_add(count);
            return true;
        }
        let (drops, dropped) = match direction {
            Direction::Tx => (&mut self.tx_drops, &mut self.counts.tx_dropped),
            Direction::Rx => (&mut self.rx_drops, &mut self.counts.rx_dropped),
        };
        if *drops == 0 {
            return false;
        }
        *drops = drops.saturating_sub(packets);
        *dropped = dropped.wrapping_add(count);
        self.update();
        true
    }

    /// Returns true if an interrupt is suppressed.
    #[inline]
    pub(crate) fn loses_interrupt(&mut self) -> bool {
        let Some(left) = self.interrupt_losses.checked_sub(1) else {
            return false;
        };
        self.interrupt_losses = left;
        self.counts.interrupts_lost = self.counts.interrupts_lost.wrapping_add(1);
        true
    }
}

/// Length of the longest packet of a frame without Ethernet header and VLAN tag.
fn length(frame: &TxFrame) -> usize {
    match &frame.kind {
        FrameKind::Roce(header) => {
            let packets = frame.packets.max(1) as usize;
            let each = frame.payload_len.checked_div(packets).unwrap_or(0);
            after_ethernet(header.frame_len(each), header.ethernet.vlan.is_some())
        }
        FrameKind::Raw { head, .. } => length_of_octets(frame.len(), head),
    }
}

/// Length of a frame without Ethernet header and VLAN tag. `head` has at least these.
pub(crate) fn length_of_octets(length: usize, head: &[u8]) -> usize {
    after_ethernet(length, head.get(12..14) == Some(&[0x81, 0x00]))
}

fn after_ethernet(length: usize, tagged: bool) -> usize {
    let tag = if tagged { 4 } else { 0 };
    length.saturating_sub(Ethernet::LEN).saturating_sub(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_request_drops_as_many_packets_in_one_direction() {
        let mut link = Link::new();
        assert!(!link.drops_frame(Direction::Tx, &frames(1)));
        link.drop_frames(Direction::Tx, 3);
        let dropped = [1, 1, 1, 1].map(|packets| link.drops_frame(Direction::Tx, &frames(packets)));
        assert_eq!(dropped, [true, true, true, false]);
        assert!(!link.impaired, "it costs nothing any more");
        link.drop_frames(Direction::Rx, 3);
        assert!(!link.drops_frame(Direction::Tx, &frames(1)));
        assert!(
            link.drops_frame(Direction::Rx, &frames(8)),
            "a run, as a whole"
        );
        assert!(!link.drops_frame(Direction::Rx, &frames(1)));
        let counts = LinkCounts {
            tx_dropped: 3,
            rx_dropped: 8,
            ..LinkCounts::default()
        };
        assert_eq!(link.counts, counts);
        link.drop_frames(Direction::Rx, 3);
        link.drop_frames(Direction::Rx, 0);
        assert!(!link.drops_frame(Direction::Rx, &frames(1)), "withdrawn");
    }

    #[test]
    fn the_mtu_is_without_the_ethernet_header() {
        let mut link = Link::new();
        link.set_mtu(Some(1500));
        assert!(!link.drops_frame(Direction::Tx, &long_frame(1514)));
        assert!(link.drops_frame(Direction::Tx, &long_frame(1515)));
        assert!(link.drops_frame(Direction::Rx, &long_frame(9000)));
        assert_eq!(link.counts.too_long, 2);
        link.set_mtu(None);
        assert!(!link.drops_frame(Direction::Tx, &long_frame(9000)));
    }

    #[test]
    fn as_many_interrupts_are_lost_as_requested() {
        let mut link = Link::new();
        link.lose_interrupts(2);
        let lost = [(); 4].map(|()| link.loses_interrupt());
        assert_eq!(lost, [true, true, false, false]);
        assert_eq!(link.counts.interrupts_lost, 2);
    }
}
