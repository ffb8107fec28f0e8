//! What the connections of a NIC share: their owners by addresses and ports, listeners, requests, and segments that belong to no queue
//! pair.
//!
//! A guest pays for all of it: listeners, their backlogs and requests are limited in number, and count in the budget of the NIC.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use faultline_tcp::{self as tcp, Connection, Secret, Tuple};
use faultline_wire::{Gid, PrioritySet};

use super::path::{StreamPath, set_octets};
use super::setup::Offer;
use crate::budget::Held;
use crate::frame::TxFrame;
use crate::gid_table::{NO_VLAN, Source};
use crate::table::Table;
use crate::time::{Instant, Nanos, earlier};

/// Address of a listener for all IPv4 addresses.
const ANY_V4: Gid = Gid::from_ipv4([0; 4]);
/// Address of a listener for all IPv6 addresses.
const ANY_V6: Gid = Gid::ZERO;
/// Segments without a queue pair that wait to be sent. More are lost, as on any wire.
const MAX_OUT: usize = 256;
/// Mean time between two resets in answer to segments of unknown connections: 200 in a second.
const RESET_INTERVAL: Nanos = Nanos::from_millis(5);
/// Resets may be ahead of the mean by this time: 50 at once.
const RESET_BURST: Nanos = Nanos::from_millis(50 * 5 - 5);
/// Time in which a peer must send its whole setup request.
pub(crate) const SETUP_TIMEOUT: Nanos = Nanos::from_millis(10_000);

/// True for the address of a listener for all addresses of a version of IP.
pub(crate) fn is_any(address: Gid) -> bool {
    address == ANY_V4 || address == ANY_V6
}

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A queue pair.
    QueuePair(u32),
    /// A request that has no answer yet.
    Request(u32),
}

/// A listener.
#[derive(Debug)]
pub(crate) struct Listening {
    /// Own address, or [`ANY_V4`] or [`ANY_V6`].
    pub local: Gid,
    pub port: u16,
    pub vlan: u16,
    /// Connections that are being opened, and requests without an answer.
    pub requests: u32,
    pub backlog: u32,
    pub _held: Held,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The connection is half-open, or the setup frame of the peer has not arrived completely.
    Opening,
    /// The driver knows it.
    Announced,
    /// It has ended without an answer, and the driver knows that.
    Gone,
    /// The driver has rejected it; the reply is on its way.
    Rejected,
}

/// A connection that a peer opens, from its SYN on, until it has a queue pair.
#[derive(Debug)]
pub(crate) struct Request {
    pub listener: u32,
    pub path: StreamPath,
    pub connection: Connection,
    pub stage: Stage,
    /// First octets of the peer, until the setup frame is complete.
    pub octets: Vec<u8>,
    /// What the peer has said.
    pub offer: Offer,
    /// The reply that rejects it.
    pub reply: Vec<u8>,
    /// It ends then.
    pub deadline: Instant,
    pub timer_at: Option<Instant>,
    pub _held: Held,
}

/// A segment that belongs to no queue pair.
#[derive(Debug)]
struct Outgoing {
    octets: Vec<u8>,
    source: Source,
    priority: u8,
}

/// The rate of resets in answer to segments of unknown connections, as kernels limit it.
#[derive(Debug, Default)]
struct ResetLimit {
    /// The time at which all resets so far would have left, one after another.
    until: Instant,
}

impl ResetLimit {
    /// True if one more may be sent now; counts it.
    fn take(&mut self, now: Instant) -> bool {
        let allowed = self.until <= now + RESET_BURST;
        if allowed {
            self.until = self.until.max(now) + RESET_INTERVAL;
        }
        allowed
    }
}

/// Buffers for the octets of one segment.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    pub fpdu: Vec<u8>,
    pub frame: Vec<u8>,
}

/// The state that the connections of a NIC share.
#[derive(Debug)]
pub(crate) struct Connections {
    pub listeners: Table<Listening>,
    pub requests: Table<Request>,
    owners: BTreeMap<Key, Owner>,
    /// Listeners by port, address and VLAN.
    listening: BTreeMap<(u16, [u8; 16], u16), u32>,
    /// Timers of requests.
    timers: BTreeSet<(Instant, u32)>,
    out: VecDeque<Outgoing>,
    resets: ResetLimit,
    pub secret: Secret,
    pub buffers: Buffers,
}

/// Both ends, in an order.
type Key = ([u8; 16], u16, [u8; 16], u16);

fn key(tuple: &Tuple) -> Key {
    let Tuple {
        local,
        local_port,
        remote,
        remote_port,
    } = tuple;
    (local.0, *local_port, remote.0, *remote_port)
}

impl Connections {
    /// No connections, and room for `max` listeners and as many requests.
    pub(crate) fn new(max: u32, secret: [u64; 2]) -> Self {
        Self {
            listeners: Table::new(max, 1),
            requests: Table::new(max, 1),
            owners: BTreeMap::new(),
            listening: BTreeMap::new(),
            timers: BTreeSet::new(),
            out: VecDeque::new(),
            resets: ResetLimit::default(),
            secret: Secret(secret),
            buffers: Buffers::default(),
        }
    }

    /// The owner of the connection with these ends.
    pub(crate) fn owner(&self, tuple: &Tuple) -> Option<Owner> {
        self.owners.get(&key(tuple)).copied()
    }

    /// Number of connections.
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    /// Registers the owner of the connection with these ends.
    pub(crate) fn set_owner(&mut self, tuple: &Tuple, owner: Owner) {
        self.owners.insert(key(tuple), owner);
    }

    /// The connection with these ends is over, if this is its owner.
    pub(crate) fn remove_owner(&mut self, tuple: &Tuple, owner: Owner) {
        if self.owner(tuple) == Some(owner) {
            self.owners.remove(&key(tuple));
        }
    }

    /// The listener for this address, port and VLAN: that of the address, or else that of any.
    pub(crate) fn listener_for(&self, local: Gid, port: u16, vlan: Option<u16>) -> Option<u32> {
        let vlan = vlan.unwrap_or(NO_VLAN);
        let of = |address: Gid| self.listening.get(&(port, address.0, vlan)).copied();
        let any = match local.is_ipv4_mapped() {
            true => ANY_V4,
            false => ANY_V6,
        };
        of(local).or_else(|| of(any))
    }

    /// True if a listener has this address, port and VLAN.
    pub(crate) fn is_listening(&self, local: Gid, port: u16, vlan: u16) -> bool {
        self.listening.contains_key(&(port, local.0, vlan))
    }

    /// Adds a listener. `None`: there are too many.
    pub(crate) fn listen(&mut self, listening: Listening) -> Option<u32> {
        let place = (listening.port, listening.local.0, listening.vlan);
        let number = self.listeners.insert_with(|_| listening)?;
        self.listening.insert(place, number);
        Some(number)
    }

    /// Removes a listener.
    pub(crate) fn unlisten(&mut self, number: u32) -> bool {
        let Some(listening) = self.listeners.remove(number) else {
            return false;
        };
        self.listening
            .remove(&(listening.port, listening.local.0, listening.vlan));
        true
    }

    /// Removes a request. Its connection has another owner, or none.
    pub(crate) fn remove_request(&mut self, number: u32) -> Option<Request> {
        let request = self.requests.remove(number)?;
        self.remove_owner(&request.path.tuple, Owner::Request(number));
        if let Some(at) = request.timer_at {
            self.timers.remove(&(at, number));
        }
        if let Some(listening) = self.listeners.get_mut(request.listener) {
            listening.requests = listening.requests.saturating_sub(1);
        }
        Some(request)
    }

    /// Sets the timer of a request to its next deadline.
    pub(crate) fn sync_timer(&mut self, number: u32) {
        let Some(request) = self.requests.get_mut(number) else {
            return;
        };
        let of_connection = request.connection.next_deadline().map(from_tcp);
        let next = earlier(of_connection, Some(request.deadline));
        let next = next.filter(|_| request.stage != Stage::Gone);
        if request.timer_at == next {
            return;
        }
        if let Some(at) = std::mem::replace(&mut request.timer_at, next) {
            self.timers.remove(&(at, number));
        }
        if let Some(at) = next {
            self.timers.insert((at, number));
        }
    }

    /// The time of the first timer of a request.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes a request whose timer is due.
    pub(crate) fn pop_timer(&mut self, now: Instant) -> Option<u32> {
        let (at, number) = *self.timers.first()?;
        if at > now {
            return None;
        }
        self.timers.pop_first();
        if let Some(request) = self.requests.get_mut(number) {
            request.timer_at = None;
        }
        Some(number)
    }

    /// Sends a segment that belongs to no queue pair.
    pub(crate) fn send(&mut self, path: &StreamPath, transmit: &tcp::Transmit, data: &[u8]) {
        if self.out.len() < MAX_OUT {
            let mut octets = Vec::new();
            path.write(transmit, data, &mut octets);
            self.out.push_back(Outgoing {
                octets,
                source: path.source,
                priority: path.priority(),
            });
        }
    }

    /// Resets an unknown connection of a peer, if there were not too many.
    pub(crate) fn send_reset(&mut self, now: Instant, path: &StreamPath, reset: &tcp::Transmit) {
        if self.resets.take(now) {
            self.send(path, reset, &[]);
        }
    }

    /// True if there are such segments.
    pub(crate) fn has_out(&self) -> bool {
        !self.out.is_empty()
    }

    /// Makes `frame` the next such segment. Segments of paused priorities are lost, as on any wire. Returns the entry of the GID table from
    /// which it is sent; `None`: there is none.
    pub(crate) fn poll_out(&mut self, paused: PrioritySet, frame: &mut TxFrame) -> Option<Source> {
        while let Some(next) = self.out.pop_front() {
            if !paused.contains(next.priority) {
                set_octets(frame, &next.octets);
                return Some(next.source);
            }
        }
        None
    }
}

/// Time of the NIC for TCP.
pub(crate) fn to_tcp(now: Instant) -> tcp::Instant {
    tcp::Instant(now.0)
}

/// Time of TCP for the NIC.
pub(crate) fn from_tcp(at: tcp::Instant) -> Instant {
    Instant(at.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_have_a_rate() {
        let mut limit = ResetLimit::default();
        let mut now = Instant(1_000_000_000);
        let mut sent = |now| (0..1000).filter(|_| limit.take(now)).count();
        assert_eq!((sent(now), sent(now)), (50, 0));
        now = now + Nanos::from_millis(100);
        assert_eq!(sent(now), 20);
        now = now + Nanos::from_millis(10_000);
        assert_eq!(sent(now), 50);
    }
}
