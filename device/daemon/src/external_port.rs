//! A port of the switch that leads out of the process.
//!
//! Its thread, of [`faultline_ports`], does what may wait. The engine exchanges frames with it through two bounded rings.
//!
//! # Back-pressure
//!
//! When less than half of the ring to its thread is free, a port *holds* senders: a NIC whose frame goes to it sends nothing until three
//! quarters are free, as behind a switch that sends PAUSE frames. Other NICs go on. Each NIC can exceed the mark by one packet, for which
//! there is the other half of the ring. If the peer has not taken enough within the hold time of the port, nobody waits any more until it
//! has: frames are dropped when the ring is full. So a peer costs a NIC at most this time for each quarter of the ring that it is sent.

use std::sync::atomic::Ordering;
use std::time::Duration;

use faultline_nic::Instant;
use faultline_ports::channel::{EngineEnd, MAX_FRAME, PortStatus};
use faultline_wire::{Ethernet, priority};

use crate::capture::Fate;
use crate::link::length_of_octets;
use crate::port_config::PortEntry;

/// What a port has passed and dropped since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExternalCounts {
    /// Frames from the peer, and their octets.
    pub(crate) rx_frames: u64,
    pub(crate) rx_octets: u64,
    /// Frames to the peer, and their octets.
    pub(crate) tx_frames: u64,
    pub(crate) tx_octets: u64,
    /// Frames that were longer than the MTU, or than any port passes with the VLAN tag that they have here.
    pub(crate) too_long: u64,
    /// Frames that were shorter than an Ethernet header.
    pub(crate) too_short: u64,
    /// Frames of the peer that were dropped because the port, or the one with their destination address, is no member of their VLAN.
    pub(crate) vlan: u64,
    /// Frames to the peer that were dropped because there is none.
    pub(crate) no_peer: u64,
    /// Frames to the peer that were dropped because it took the ones before too slowly.
    pub(crate) overrun: u64,
    /// How often senders have begun to wait for the peer.
    pub(crate) holds: u64,
}

/// Whether senders wait for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crowding {
    /// The mark has not been reached since there was room.
    None,
    /// Senders wait until this time.
    HoldsUntil(Instant),
    /// The peer has not taken enough in the hold time.
    TooSlow,
}

/// A port that leads out of the process.
#[derive(Debug)]
pub(crate) struct ExternalPort {
    name: String,
    mtu: Option<u16>,
    pub(crate) counts: ExternalCounts,
    end: EngineEnd,
    hold: Duration,
    crowding: Crowding,
}

impl ExternalPort {
    pub(crate) fn new(config: &PortEntry, end: EngineEnd) -> Self {
        Self {
            name: config.name.clone(),
            mtu: config.mtu,
            counts: ExternalCounts::default(),
            end,
            hold: config.hold,
            crowding: Crowding::None,
        }
    }

    /// Sends a frame to the peer. Returns what becomes of it.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Fate {
        let fate = self.fate(frame);
        if fate != Fate::Passed {
            return fate;
        }
        if !self.has_peer() {
            self.counts.no_peer = self.counts.no_peer.saturating_add(1);
            Fate::NoPeer
        } else if self.end.send(frame) {
            self.counts.tx_frames = self.counts.tx_frames.saturating_add(1);
            self.counts.tx_octets = self.counts.tx_octets.saturating_add(frame.len() as u64);
            Fate::Passed
        } else {
            self.counts.overrun = self.counts.overrun.saturating_add(1);
            Fate::Overrun
        }
    }

    /// Returns true if who has just sent a frame to the peer must wait.
    pub(crate) fn holds_after_frame(&mut self, now: Instant) -> bool {
        let is_asked = self.crowding == Crowding::None && !self.hold.is_zero();
        if is_asked && !self.end.has_half_of_room() && self.has_peer() {
            let hold = u64::try_from(self.hold.as_nanos()).unwrap_or(u64::MAX);
            self.crowding = Crowding::HoldsUntil(Instant(now.0.saturating_add(hold)));
            self.counts.holds = self.counts.holds.saturating_add(1);
        }
        self.holds()
    }

    /// Looks whether the peer has taken frames, or has had its time. Returns true if senders who have waited go on.
    pub(crate) fn update_hold(&mut self, now: Instant) -> bool {
        let held = self.holds();
        match self.crowding {
            Crowding::None => {}
            _ if self.has_room() => self.crowding = Crowding::None,
            Crowding::HoldsUntil(end) if end <= now => self.crowding = Crowding::TooSlow,
            Crowding::HoldsUntil(_) => self.end.await_room(),
            Crowding::TooSlow => {}
        }
        held && !self.holds()
    }

    /// True while senders wait.
    pub(crate) fn holds(&self) -> bool {
        self.hold_end().is_some()
    }

    /// When senders go on at the latest, if they wait.
    pub(crate) fn hold_end(&self) -> Option<Instant> {
        match self.crowding {
            Crowding::HoldsUntil(end) => Some(end),
            Crowding::None | Crowding::TooSlow => None,
        }
    }

    /// True if senders wait without need.
    pub(crate) fn has_room_again(&self) -> bool {
        self.holds() && self.has_room()
    }

    /// True if senders need not wait any more. Without a peer, frames are dropped.
    fn has_room(&self) -> bool {
        self.end.has_most_of_room() || !self.has_peer()
    }

    fn has_peer(&self) -> bool {
        self.end.status().is_connected.load(Ordering::Relaxed)
    }

    /// Takes the next frame of the peer into `frame`. Returns what becomes of it; `None` if there is no frame.
    pub(crate) fn take(&mut self, frame: &mut Vec<u8>) -> Option<Fate> {
        if !self.end.take(frame) {
            return None;
        }
        self.counts.rx_frames = self.counts.rx_frames.saturating_add(1);
        self.counts.rx_octets = self.counts.rx_octets.saturating_add(frame.len() as u64);
        Some(self.fate(frame))
    }

    /// The priority of the next frame of the peer; `None` if there is no frame.
    pub(crate) fn next_priority(&mut self) -> Option<u8> {
        let mut first = [0; Ethernet::MAX_LEN];
        let length = self.end.peek(&mut first)?;
        Some(priority::of_frame(first.get(..length)?))
    }

    /// What becomes of a frame because of its length.
    fn fate(&mut self, frame: &[u8]) -> Fate {
        let counts = &mut self.counts;
        if frame.len() < Ethernet::LEN {
            counts.too_short = counts.too_short.saturating_add(1);
            return Fate::TooShort;
        }
        let length = length_of_octets(frame.len(), frame);
        let is_long =
            frame.len() > MAX_FRAME || self.mtu.is_some_and(|mtu| length > usize::from(mtu));
        if is_long {
            counts.too_long = counts.too_long.saturating_add(1);
            return Fate::TooLong;
        }
        Fate::Passed
    }

    /// True if the peer has sent a frame that was not taken.
    pub(crate) fn has_frame(&self) -> bool {
        self.end.has_frame()
    }

    /// Wakes the port's thread if it waits for what was done since the last call.
    pub(crate) fn flush(&mut self) {
        self.end.flush();
    }

    /// Name in the configuration.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What the port's thread tells.
    pub(crate) fn status(&self) -> &PortStatus {
        self.end.status()
    }
}
