//! A port of the switch that leads out of the process.
//!
//! Its thread, of [`faultline_ports`], does what may wait. The engine exchanges frames with it through two bounded rings.

use std::sync::atomic::Ordering;

use faultline_ports::channel::{EngineEnd, MAX_FRAME, PortStatus};
use faultline_wire::{Ethernet, priority};

use crate::capture::Fate;
use crate::link::length_of_octets;

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
}

/// A port that leads out of the process.
#[derive(Debug)]
pub(crate) struct ExternalPort {
    name: String,
    mtu: Option<u16>,
    pub(crate) counts: ExternalCounts,
    end: EngineEnd,
}

impl ExternalPort {
    pub(crate) fn new(name: &str, mtu: Option<u16>, end: EngineEnd) -> Self {
        Self {
            name: name.to_owned(),
            mtu,
            counts: ExternalCounts::default(),
            end,
        }
    }

    /// Sends a frame to the peer. Returns what becomes of it.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Fate {
        let fate = self.fate(frame);
        if fate != Fate::Passed {
            return fate;
        }
        if !self.end.status().is_connected.load(Ordering::Relaxed) {
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
