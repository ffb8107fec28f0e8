//! Send work requests that have begun and have not completed, in their order.
//!
//! A process may have tens of thousands of them, and each packet of a peer may require a search. So no search goes
//! through all of them: the numbers of requests with an outstanding answer are kept, and PSNs are found by bisection.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "positions are in a queue of bounded length; numbers of requests have 64 bits and are not below the first"
)]

use std::collections::VecDeque;

use faultline_wire::bth::Psn;

use crate::number::to_usize;
use crate::qp::work_request::SendWr;
use crate::receive_queue::SgEntry;
use crate::work::count_steps;

/// Number of requests for which an idle queue pair keeps room.
const KEPT_ROOM: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Pending {
    requests: VecDeque<SendWr>,
    /// Running number of the oldest.
    first: u64,
    /// Running numbers of those with an outstanding answer.
    awaiting: VecDeque<u64>,
    /// Bytes of SGEs that are allocated separately.
    far_sges: usize,
    /// The furthest position that transmission has reached.
    reached: usize,
}

/// Bytes of the SGEs of a request that are allocated separately.
fn far_sges(wr: &SendWr) -> usize {
    match wr.sges.spilled() {
        true => wr.sges.capacity() * size_of::<SgEntry>(),
        false => 0,
    }
}

impl Pending {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&SendWr> {
        self.requests.front()
    }

    #[inline]
    pub(crate) fn get(&self, position: usize) -> Option<&SendWr> {
        self.requests.get(position)
    }

    /// Only [`Pending::answer`] changes the outstanding answers.
    pub(crate) fn get_mut(&mut self, position: usize) -> Option<&mut SendWr> {
        self.requests.get_mut(position)
    }

    /// Adds a request that begins.
    #[inline]
    pub(crate) fn push(&mut self, wr: SendWr) {
        self.far_sges += far_sges(&wr);
        if wr.awaits_response() {
            self.awaiting
                .push_back(self.first + self.requests.len() as u64);
        }
        self.requests.push_back(wr);
    }

    /// Removes the oldest request and returns it.
    pub(crate) fn pop(&mut self) -> Option<SendWr> {
        let wr = self.requests.pop_front()?;
        self.popped(far_sges(&wr));
        Some(wr)
    }

    /// Removes the oldest request.
    #[inline]
    pub(crate) fn drop_front(&mut self) {
        if let Some(wr) = self.requests.front() {
            let far_sges = far_sges(wr);
            self.requests.pop_front();
            self.popped(far_sges);
        }
    }

    /// Accounts for the removal of the oldest request. A queue that was long returns memory when it is empty.
    #[inline]
    fn popped(&mut self, far_sges: usize) {
        self.awaiting.pop_front_if(|number| *number == self.first);
        self.first += 1;
        self.reached = self.reached.saturating_sub(1);
        self.far_sges -= far_sges;
        if self.requests.is_empty() && self.requests.capacity() > KEPT_ROOM {
            self.requests.shrink_to(0);
            self.awaiting.shrink_to(0);
        }
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.requests.capacity() * size_of::<SendWr>()
            + self.awaiting.capacity() * size_of::<u64>()
            + self.far_sges
    }

    /// Counts response packets of a request.
    pub(crate) fn answer(&mut self, position: usize, packets: u32) {
        let Some(wr) = self.requests.get_mut(position) else {
            return;
        };
        wr.responses += packets;
        if wr.awaits_response() {
            return;
        }
        // Responses arrive in order, so it is the first.
        let number = self.first + position as u64;
        if let Ok(at) = self.awaiting.binary_search(&number) {
            self.awaiting.remove(at);
        }
    }

    /// The oldest request with an answer outstanding.
    pub(crate) fn oldest_awaiting(&self) -> Option<usize> {
        let number = self.awaiting.front()?;
        Some(to_usize(number - self.first))
    }

    /// How many of the first `count` requests have an answer outstanding.
    pub(crate) fn awaiting(&self, count: usize) -> usize {
        let end = self.first + count as u64;
        self.awaiting.partition_point(|number| *number < end)
    }

    /// Records that transmission has reached this position.
    pub(crate) fn reach(&mut self, position: usize) {
        self.reached = self.reached.max(position);
    }

    /// Position of the request that a packet belongs to, if that has been sent.
    pub(crate) fn find(&self, psn: Psn) -> Option<usize> {
        // The first PSNs increase from one request to the next, and do not wrap within the sent requests.
        let (mut low, mut high) = (0, self.len().min(self.reached + 1));
        while low < high {
            count_steps(1);
            let middle = low + (high - low) / 2;
            match psn.diff(self.get(middle)?.first) >= 0 {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        // Requests without packets have the PSN of the next packet.
        let position = low.checked_sub(1)?;
        let wr = self.get(position)?;
        (wr.psns > 0 && psn.diff(wr.end()) < 0).then_some(position)
    }
}
