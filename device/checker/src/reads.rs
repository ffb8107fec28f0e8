//! READs, atomics, FLUSHes and ATOMIC WRITEs that a requester has outstanding, and their limit. "READ" stands for all of these here.
//!
//! A request is outstanding until the requester has all of its responses. A retransmission is not another request.
//!
//! On a link it is unknown when a response arrives at the requester, or whether it does. But a request whose responses have not passed the
//! link is outstanding at the requester too. So each finding is correct if the frames of both directions are passed in order; a requester
//! that exceeds the limit while responses are under way is not found.

use std::collections::VecDeque;

use faultline_wire::Psn;

use crate::log::LOG_LIMIT;
use crate::memory;

/// The READs of a requester.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// The requester's attribute (`max_rd_atomic`) for the next packet.
    pub own_limit: Option<u32>,
    /// Limit of the connection from messages of the connection manager.
    pub agreed_limit: Option<u32>,
    /// PSN after the last response to each request, oldest first, including answered requests.
    ends: VecDeque<Psn>,
    /// The first PSN that no response has answered, even if responses before it were not seen.
    passed: Option<Psn>,
}

impl Reads {
    /// Discards all requests.
    pub(crate) fn restart(&mut self) {
        self.ends.clear();
        self.passed = None;
    }

    /// A new request is sent; its responses end before `end`.
    pub(crate) fn push(&mut self, end: Psn) {
        if self.ends.len() >= LOG_LIMIT {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
    }

    /// Releases unused memory.
    pub(crate) fn trim(&mut self) {
        self.ends.shrink_to_fit();
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        memory::array::<Psn>(self.ends.capacity())
    }

    /// The requester has all responses before PSN `acked`.
    pub(crate) fn answer(&mut self, acked: Psn) {
        while self.ends.pop_front_if(|end| end.diff(acked) <= 0).is_some() {}
    }

    /// A response has arrived, after which the requester does not repeat requests before `first`.
    pub(crate) fn pass(&mut self, first: Psn) {
        if self.passed.is_none_or(|passed| first.diff(passed) > 0) {
            self.passed = Some(first);
        }
    }

    /// Checks a new request, before [`Reads::push`]. Returns the violation, if any. `is_exact`: all packets that arrive at the requester
    /// are known.
    pub(crate) fn check(&self, is_exact: bool) -> Option<String> {
        // On a link the adapter may have received other messages of the connection manager than those that were seen.
        let limit = match is_exact {
            true => {
                let limits = [self.own_limit, self.agreed_limit].into_iter();
                limits.flatten().min()
            }
            false => self.own_limit.or(self.agreed_limit),
        }?;
        let outstanding = match (is_exact, self.passed) {
            (true, _) => self.ends.len(),
            // On a link, responses of unknown connections were not counted. A later response shows that they were sent.
            (false, Some(passed)) => {
                let waits = |end: &&Psn| end.diff(passed) > 0;
                self.ends.iter().rev().take_while(waits).count()
            }
            // No responses were counted if no response of the connection is known.
            (false, None) => return None,
        };
        let limit_reached = usize::try_from(limit).is_ok_and(|limit| outstanding >= limit);
        limit_reached.then(|| {
            format!("{outstanding} READs or atomics are outstanding already, the limit is {limit}")
        })
    }
}
