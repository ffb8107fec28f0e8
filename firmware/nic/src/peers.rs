//! Which peers behind a wire are Faultlines, by the queue pair of their connection.
//!
//! A queue pair that has refused a request for an absent page asks the other end with a peer query, whose nonce the answer must repeat.
//! So an answer proves that the other end receives frames for this address, and knows the query. `docs/decisions/008-ready.md` has the
//! reasons. This module makes no frames: `qp/peer.rs` does.

use std::collections::BTreeMap;

use faultline_tcp::Secret;

use crate::time::{Instant, Nanos};

/// Queries of a connection. Another adapter gets no more.
const MAX_QUERIES: u8 = 4;
/// Shortest time between two queries of a connection.
const QUERY_INTERVAL: Nanos = Nanos::from_millis(1000);

/// What is known of the peer of a connection.
#[derive(Debug, Default)]
struct Peer {
    is_faultline: bool,
    /// Queries sent.
    queries: u8,
    /// Nonce of the last query; 0: it was answered, or there is none.
    nonce: u64,
    /// Earliest time of the next query.
    next: Instant,
}

/// The peers of queue pairs that have asked.
#[derive(Debug)]
pub(crate) struct Peers {
    secret: Secret,
    /// Queries of all queue pairs, so that each has another nonce.
    queries: u64,
    by_queue_pair: BTreeMap<u32, Peer>,
}

impl Peers {
    /// Nothing is known. `secret`: the key of the nonces.
    pub(crate) fn new(secret: [u64; 2]) -> Self {
        Self {
            secret: Secret(secret),
            queries: 0,
            by_queue_pair: BTreeMap::new(),
        }
    }

    /// True if the peer of this queue pair has answered.
    pub(crate) fn is_faultline(&self, qpn: u32) -> bool {
        let peer = self.by_queue_pair.get(&qpn);
        peer.is_some_and(|peer| peer.is_faultline)
    }

    /// The nonce of a query that is to be sent now; `None`: the peer is known, or has been asked too often or a short time ago.
    pub(crate) fn query(&mut self, now: Instant, qpn: u32) -> Option<u64> {
        let peer = self.by_queue_pair.entry(qpn).or_default();
        if peer.is_faultline || peer.queries >= MAX_QUERIES || now < peer.next {
            return None;
        }
        peer.queries = peer.queries.saturating_add(1);
        peer.next = now + QUERY_INTERVAL;
        self.queries = self.queries.wrapping_add(1);
        // A reset begins the count again, and the time continues.
        let words = [u64::from(qpn), self.queries, now.0];
        peer.nonce = self.secret.hash(&words).max(1);
        Some(peer.nonce)
    }

    /// Accepts an answer with this nonce, if it is that of the last query of the queue pair.
    pub(crate) fn answered(&mut self, qpn: u32, nonce: u64) {
        if let Some(peer) = self.by_queue_pair.get_mut(&qpn)
            && nonce != 0
            && peer.nonce == nonce
        {
            (peer.is_faultline, peer.nonce) = (true, 0);
        }
    }

    /// The connection of this queue pair is over, or has another peer.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.by_queue_pair.remove(&qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_nonce_is_an_answer() {
        let mut peers = Peers::new([1, 2]);
        let first = peers.query(Instant(5), 17).unwrap();
        let second = peers.query(Instant(5) + QUERY_INTERVAL, 17).unwrap();
        assert_ne!(first, second);
        for wrong in [0, first, second ^ 1] {
            peers.answered(17, wrong);
            assert!(!peers.is_faultline(17));
        }
        peers.answered(18, second);
        assert!(!peers.is_faultline(17) && !peers.is_faultline(18));
        peers.answered(17, second);
        assert!(peers.is_faultline(17));
        assert_eq!(peers.query(Instant(u64::MAX), 17), None);
        // A new connection of the same queue pair.
        peers.forget(17);
        assert!(!peers.is_faultline(17));
        peers.answered(17, 0);
        peers.answered(17, second);
        assert!(!peers.is_faultline(17));
    }

    #[test]
    fn queries_are_few_and_far_between() {
        let mut peers = Peers::new([1, 2]);
        let mut times = Vec::new();
        let step = QUERY_INTERVAL.0 / 10;
        for at in (0..100).map(|n| n * step) {
            times.extend(peers.query(Instant(at), 17).map(|_| at));
        }
        assert_eq!(times, [0, 10, 20, 30].map(|n| n * step));
        assert!(peers.query(Instant(0), 18).is_some());
    }

    #[test]
    fn a_reset_or_another_secret_changes_the_nonces() {
        let nonce = |secret, at| Peers::new(secret).query(Instant(at), 17);
        assert_eq!(nonce([1, 2], 5), nonce([1, 2], 5));
        assert_ne!(nonce([1, 2], 5), nonce([1, 2], 6));
        assert_ne!(nonce([1, 2], 5), nonce([1, 3], 5));
    }
}
