//! How many READs, atomics, FLUSHes and ATOMIC WRITEs a requester has outstanding, and how many it may have.
//!
//! A request is outstanding until the requester has all of its responses. One that is sent again is the same request.
//!
//! On a link it is not known when a response arrives at the requester, or whether it does. But a requester knows of no response that
//! has not passed: what is outstanding on the link is outstanding at the requester, too. So each finding there is right, if
//! the frames of both directions are passed in their order, and a requester that goes on while responses are on their way to it is not found.

use std::collections::VecDeque;

use faultline_wire::Psn;

use crate::log::LOG_LIMIT;
use crate::memory;

/// The READs and the like of a requester.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// The requester's attribute, as it is for the next packet.
    pub own_limit: Option<u32>,
    /// Limit of the connection, as its ends have agreed on it by the connection manager.
    pub agreed_limit: Option<u32>,
    /// PSN after the last response to each request, oldest first. Their responses may have been seen.
    ends: VecDeque<Psn>,
    /// The first PSN that no response has answered, whether responses before it were seen or not.
    passed: Option<Psn>,
}

impl Reads {
    /// Forgets what was sent.
    pub(crate) fn restart(&mut self) {
        self.ends.clear();
        self.passed = None;
    }

    /// A request leaves for the first time, whose responses end before `end`.
    pub(crate) fn push(&mut self, end: Psn) {
        if self.ends.len() >= LOG_LIMIT {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
    }

    /// Gives back memory that it does not use.
    pub(crate) fn trim(&mut self) {
        self.ends.shrink_to_fit();
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        memory::array::<Psn>(self.ends.capacity())
    }

    /// The requester is answered until PSN `acked`, without a gap.
    pub(crate) fn answer(&mut self, acked: Psn) {
        while self.ends.pop_front_if(|end| end.diff(acked) <= 0).is_some() {}
    }

    /// A response has come after which the requester sends no request before `first` again.
    pub(crate) fn pass(&mut self, first: Psn) {
        if self.passed.is_none_or(|passed| first.diff(passed) > 0) {
            self.passed = Some(first);
        }
    }

    /// One more request is about to leave. Returns what is wrong. `is_exact`: all that arrives at the requester is known.
    pub(crate) fn check(&self, is_exact: bool) -> Option<String> {
        // On a link, others may have said something else to the adapter than what it has agreed on.
        let limit = match is_exact {
            true => {
                let limits = [self.own_limit, self.agreed_limit].into_iter();
                limits.flatten().min()
            }
            false => self.own_limit.or(self.agreed_limit),
        }?;
        let outstanding = match (is_exact, self.passed) {
            (true, _) => self.ends.len(),
            // On a link, responses of which the connection was not known were not counted. A later response shows that they were sent.
            (false, Some(passed)) => {
                let waits = |end: &&Psn| end.diff(passed) > 0;
                self.ends.iter().rev().take_while(waits).count()
            }
            // Nor are responses counted if the connection of none is known.
            (false, None) => return None,
        };
        let limit_reached = usize::try_from(limit).is_ok_and(|limit| outstanding >= limit);
        limit_reached.then(|| {
            format!("{outstanding} READs and the like are outstanding already, {limit} may be")
        })
    }
}
