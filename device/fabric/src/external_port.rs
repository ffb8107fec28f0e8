//! A port of the switch that leads out of the process.
//!
//! The fabric exchanges frames with its peer through two bounded rings ([`Peer`]), and never waits for it.
//!
//! # Back-pressure
//!
//! When less than half of the ring to the peer is free, a port *holds* senders (`holds.rs`): a connected queue pair that sends a frame to
//! it then sends nothing until three quarters of the ring are free. Only connections to this peer wait. Datagrams, frames of the netdev
//! and frames of other ports are dropped if there is no room.
//!
//! A hold ends after the hold time of the port at the latest, so connections to a peer that takes no frames fail as on a wire that loses
//! all packets. The port holds senders again when the peer has taken a quarter of the ring.

use std::time::Duration;

use faultline_nic::Instant;
use faultline_wire::{Ethernet, priority};

use crate::fate::Fate;
use crate::frame::octets_for_mtu;
use crate::outside::Peer;
use crate::switch::PortId;

/// Frames that a port has passed and dropped since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExternalCounts {
    /// Frames from the peer.
    pub rx_frames: u64,
    /// Their octets.
    pub rx_octets: u64,
    /// Frames to the peer.
    pub tx_frames: u64,
    /// Their octets.
    pub tx_octets: u64,
    /// Frames longer than the MTU, or than the maximum of all ports with the VLAN tag of this port.
    pub too_long: u64,
    /// Frames that were shorter than an Ethernet header.
    pub too_short: u64,
    /// Frames of the peer that were dropped because the port, or the one with their destination address, is no member of their VLAN.
    pub vlan: u64,
    /// Frames that were dropped because there is no peer.
    pub no_peer: u64,
    /// Frames that were dropped because the peer takes frames too slowly.
    pub overrun: u64,
    /// Number of holds that have begun.
    pub holds: u64,
}

/// Whether a port holds senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Not now.
    None,
    /// Until this time at the latest.
    Until(Instant),
    /// The hold time is over. The port holds senders again when the peer has taken this number of octets since the start.
    NotBefore(u64),
}

/// A port that leads out of the process.
#[derive(Debug)]
pub struct ExternalPort<P> {
    name: String,
    mtu: Option<u16>,
    /// Counts of passed and dropped frames.
    pub counts: ExternalCounts,
    peer: P,
    /// The peer has not been woken for a frame yet.
    must_flush: bool,
    hold: Hold,
    hold_time: Duration,
    /// Number of the present peer, counted from 1, and the NICs of this process whose addresses it has used.
    clashes: (u64, Vec<PortId>),
}

impl<P: Peer> ExternalPort<P> {
    /// Creates a port. `mtu`: longest payload of Ethernet frames, if it is limited. `hold_time`: maximum duration of a hold.
    pub fn new(name: String, mtu: Option<u16>, hold_time: Duration, peer: P) -> Self {
        Self {
            name,
            mtu,
            counts: ExternalCounts::default(),
            peer,
            must_flush: false,
            hold: Hold::None,
            hold_time,
            clashes: (0, Vec::new()),
        }
    }

    /// Sends a frame to the peer. Returns its fate.
    #[inline]
    pub fn send(&mut self, frame: &[u8]) -> Fate {
        let fate = self.fate(frame);
        if fate != Fate::Passed {
            return fate;
        }
        if !self.has_peer() {
            self.counts.no_peer = self.counts.no_peer.saturating_add(1);
            Fate::NoPeer
        } else if self.peer.send(frame) {
            self.must_flush = true;
            self.counts.tx_frames = self.counts.tx_frames.saturating_add(1);
            self.counts.tx_octets = self.counts.tx_octets.saturating_add(frame.len() as u64);
            Fate::Passed
        } else {
            self.counts.overrun = self.counts.overrun.saturating_add(1);
            Fate::Overrun
        }
    }

    /// Begins to hold senders if the last frame has left too little room. Returns true if a hold begins.
    #[inline]
    pub fn begins_hold(&mut self, now: Instant) -> bool {
        let may_begin = self.hold == Hold::None && !self.hold_time.is_zero();
        if !may_begin || self.peer.has_half_of_room() || !self.has_peer() {
            return false;
        }
        let time = u64::try_from(self.hold_time.as_nanos()).unwrap_or(u64::MAX);
        self.hold = Hold::Until(Instant(now.0.saturating_add(time)));
        self.counts.holds = self.counts.holds.saturating_add(1);
        self.peer.await_room(true);
        true
    }

    /// Ends a hold if the peer has taken enough frames or the hold time is over. Called in each pass.
    #[inline]
    pub fn update_hold(&mut self, now: Instant) {
        let held = self.holds();
        self.hold = match self.hold {
            Hold::None => return,
            _ if self.has_room() => Hold::None,
            Hold::Until(end) if end <= now => {
                Hold::NotBefore(self.peer.taken().saturating_add(self.peer.quarter()))
            }
            Hold::NotBefore(taken) if taken <= self.peer.taken() => Hold::None,
            hold => hold,
        };
        if held && !self.holds() {
            self.peer.await_room(false);
        }
    }

    /// True while senders are held.
    #[inline]
    pub fn holds(&self) -> bool {
        self.hold_end().is_some()
    }

    /// Latest end of the present hold, if there is one.
    #[inline]
    pub fn hold_end(&self) -> Option<Instant> {
        match self.hold {
            Hold::Until(end) => Some(end),
            Hold::None | Hold::NotBefore(_) => None,
        }
    }

    /// Returns true if senders are held although there is room.
    #[inline]
    pub fn has_room_again(&self) -> bool {
        self.holds() && self.has_room()
    }

    /// Returns true if a hold can end. Without a peer, frames are dropped.
    fn has_room(&self) -> bool {
        self.peer.has_most_of_room() || !self.has_peer()
    }

    fn has_peer(&self) -> bool {
        self.peer.is_connected()
    }

    /// Takes the next frame of the peer into `frame`. Returns its fate; `None` if there is no frame.
    #[inline]
    pub fn take(&mut self, frame: &mut Vec<u8>) -> Option<Fate> {
        if !self.peer.take(frame) {
            return None;
        }
        self.counts.rx_frames = self.counts.rx_frames.saturating_add(1);
        self.counts.rx_octets = self.counts.rx_octets.saturating_add(frame.len() as u64);
        Some(self.fate(frame))
    }

    /// The priority of the next frame of the peer; `None` if there is no frame.
    pub fn next_priority(&mut self) -> Option<u8> {
        let mut first = [0; Ethernet::MAX_LEN];
        let length = self.peer.peek(&mut first)?;
        Some(priority::of_frame(first.get(..length)?))
    }

    /// Returns the fate of a frame by its length.
    #[inline]
    fn fate(&mut self, frame: &[u8]) -> Fate {
        let counts = &mut self.counts;
        if frame.len() < Ethernet::LEN {
            counts.too_short = counts.too_short.saturating_add(1);
            return Fate::TooShort;
        }
        let length = octets_for_mtu(frame.len(), frame);
        let is_long =
            frame.len() > P::MAX_FRAME || self.mtu.is_some_and(|mtu| length > usize::from(mtu));
        if is_long {
            counts.too_long = counts.too_long.saturating_add(1);
            return Fate::TooLong;
        }
        Fate::Passed
    }

    /// True if the peer has sent a frame that was not taken.
    #[inline]
    pub fn has_frame(&self) -> bool {
        self.peer.has_frame()
    }

    /// The peer has used the address of a NIC of this process. Returns true for the first time.
    pub fn is_first_clash(&mut self, nic: PortId) -> bool {
        let peer = self.peer.connections();
        let (of_peer, nics) = &mut self.clashes;
        if std::mem::replace(of_peer, peer) != peer {
            nics.clear();
        }
        let is_first = !nics.contains(&nic);
        if is_first {
            nics.push(nic);
        }
        is_first
    }

    /// Returns true if [`ExternalPort::flush`] must wake the peer for a frame.
    #[inline]
    pub fn must_flush(&self) -> bool {
        self.must_flush
    }

    /// Wakes the port's thread if it waits for a frame sent, or room made, since the last call.
    #[inline]
    pub fn flush(&mut self) {
        self.must_flush = false;
        self.peer.flush();
    }

    /// Name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rings.
    pub fn peer(&self) -> &P {
        &self.peer
    }
}
