//! Connections that peers open: state LISTEN, and half-open connections.

use alloc::vec::Vec;

use faultline_wire::TcpFlags;

use crate::config::Config;
use crate::connection::Connection;
use crate::isn::{Start, Tuple};
use crate::segment::{Data, Receiver, Segment, Transmit, Verdict};
use crate::state::State;
use crate::time::Instant;

/// A listening port, with a bounded number of half-open connections.
///
/// For each segment to the port whose [`Tuple`] has no [`Connection`] the owner calls [`complete`](Listener::complete), and
/// [`receive`](Listener::receive) if that returned nothing. A flood of SYNs occupies the backlog, for
/// [`Config::max_syn_retransmissions`] timeouts each, and costs this listener's peers their connections; other connections are not
/// affected, and nothing is allocated.
#[derive(Debug)]
pub struct Listener {
    config: Config,
    backlog: Vec<(Tuple, Connection)>,
    capacity: usize,
    overflows: u64,
}

impl Listener {
    /// A listener with room for `capacity` half-open connections. `config` is that of its connections.
    pub fn new(config: Config, capacity: usize) -> Self {
        Self {
            config,
            backlog: Vec::with_capacity(capacity),
            capacity,
            overflows: 0,
        }
    }

    /// The number of half-open connections.
    pub fn half_open(&self) -> usize {
        self.backlog.len()
    }

    /// SYNs that were dropped because there was no room.
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Removes and returns the connection that the segment opens: the one that has sent a SYN to these ends, which the segment
    /// acknowledges. The segment may have data, so pass it to [`Connection::receive`] next.
    pub fn complete(&mut self, tuple: &Tuple, segment: &Segment) -> Option<Connection> {
        let is_opened = |(ends, connection): &(Tuple, Connection)| {
            ends == tuple && connection.is_opened_by(segment)
        };
        let at = self.backlog.iter().position(is_opened)?;
        let (_, connection) = self.backlog.swap_remove(at);
        Some(connection)
    }

    /// Handles any other segment. Returns false if it is neither for a half-open connection nor a SYN: the owner answers with
    /// [`reset_for`](crate::reset_for). `start` is [`Secret::start`](crate::Secret::start) for these ends.
    pub fn receive(
        &mut self,
        tuple: &Tuple,
        segment: &Segment,
        start: Start,
        now: Instant,
    ) -> bool {
        let mut half_open = self.backlog.iter_mut();
        if let Some((_, connection)) = half_open.find(|(ends, _)| ends == tuple) {
            connection.receive(segment, now, &mut NoData);
            self.remove_closed();
            return true;
        }
        if segment.header.flags.contains(TcpFlags::RST) {
            return true;
        }
        let Some(connection) = Connection::accept(self.config, segment, start, now) else {
            return false;
        };
        if self.backlog.len() < self.capacity {
            self.backlog.push((*tuple, connection));
        } else {
            self.overflows = self.overflows.saturating_add(1);
        }
        true
    }

    /// The next segment to send, and its ends.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(Tuple, Transmit)> {
        let mut half_open = self.backlog.iter_mut();
        let next = half_open.find_map(|(ends, connection)| {
            let transmit = connection.poll_transmit(now, |_, max| max)?;
            Some((*ends, transmit))
        });
        self.remove_closed();
        next
    }

    /// The time at which [`Listener::handle_deadline`] has work.
    pub fn next_deadline(&self) -> Option<Instant> {
        let connections = self.backlog.iter().map(|(_, connection)| connection);
        connections.filter_map(Connection::next_deadline).min()
    }

    /// Handles the timers that are due.
    pub fn handle_deadline(&mut self, now: Instant) {
        for (_, connection) in &mut self.backlog {
            connection.handle_deadline(now);
        }
        self.remove_closed();
    }

    /// Removes connections that are no longer half-open, and have sent their reset: nothing else would, because nobody owns them.
    fn remove_closed(&mut self) {
        self.backlog.retain(|(_, connection)| {
            connection.state() == State::SynReceived || connection.has_reset()
        });
    }
}

/// A half-open connection has no owner. A segment with data that could be delivered completes it.
struct NoData;

impl Receiver for NoData {
    fn deliver(&mut self, _: Data) -> Verdict {
        Verdict::Refused
    }

    fn keep(&mut self, _: Data) -> bool {
        false
    }
}
