//! Injected effects on events.

use faultline_abi::event::{self, Eqe};

use super::delayed::Delayed;
use super::entry::Facts;
use super::point::{Outcome, Point};
use crate::context::Context;
use crate::dma::Dma;
use crate::eq::Raised;
use crate::work;

impl<M: Dma> Context<'_, M> {
    /// Does what [`Context::push_event`] does, in a NIC with injections for events.
    #[cold]
    pub(crate) fn push_event_with_injections(&mut self, eqn: u32, eqe: Eqe) {
        let Some(eq) = self.core.eqs.get(eqn) else {
            return;
        };
        let facts = Facts {
            object: Some(eqe.object.get()),
            code: Some(u16::from(eqe.kind)),
            level: Some(eq.unread()),
            ..Facts::default()
        };
        match self.core.inject(self.now, Point::Event, &facts) {
            Some(Outcome::Drop) => self.core.charge(work::COMPLETION),
            Some(Outcome::Delay(by)) => {
                let late = Delayed::Event { eqn, eqe };
                if self.core.delay(self.now, by, late).is_err() {
                    self.append_event(eqn, eqe);
                }
            }
            Some(Outcome::Duplicate) => {
                self.append_event(eqn, eqe);
                self.append_event_again(eqn, eqe);
            }
            Some(Outcome::Overrun) => self.act_on(eqn, Raised::Failed),
            _ => self.append_event(eqn, eqe),
        }
    }

    /// Writes an event a second time, or late. A completion event that finds no room waits in the place of its CQ, like
    /// any other: the number of waiting ones is limited by the number of CQs.
    pub(crate) fn append_event_again(&mut self, eqn: u32, eqe: Eqe) {
        let core = &mut *self.core;
        if eqe.kind == event::COMPLETION
            && let Some(eq) = core.eqs.get_mut(eqn)
            && !eq.has_room()
        {
            let cqn = eqe.object.get();
            let cq = core.cqs.get_mut(cqn);
            if let Some(cq) = cq.filter(|cq| cq.event_waits.is_none()) {
                cq.event_waits = Some(eq.wait_for_room(cqn));
            }
            return;
        }
        self.append_event(eqn, eqe);
    }
}
