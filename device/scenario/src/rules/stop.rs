//! The end of a run.

use super::request::NicRequest;
use super::running::{NEVER, Rules};
use super::schedule::Due;
use super::view::NicView;

impl Rules {
    /// Ends the run: afterwards [`Rules::poll_request`] returns the requests that undo lasting actions. Frames, doorbells and
    /// interrupts that were kept are passed. None of these requests is refused for want of room: there are at most as many as
    /// policies were changed, and entries added.
    pub fn stop(&mut self) {
        while let Some(due) = self.schedule.pop(NEVER) {
            match due {
                Due::End(nic, lasting) => self.end_lasting(nic, lasting),
                Due::Late(late) => self.late.push_back(late),
                Due::Timed(_) | Due::BeginPoint(_) | Due::EndPoint(_) => {}
            }
        }
        self.frames.release();
        for nic in 0..self.nics.len() {
            let policies = self.nics.get_mut(nic).map(NicView::take_policies);
            for (qpn, policy) in policies.unwrap_or_default() {
                self.requests
                    .push_back((nic, NicRequest::FaultPolicy(qpn, policy.restored)));
            }
        }
        self.end_points();
    }
}
