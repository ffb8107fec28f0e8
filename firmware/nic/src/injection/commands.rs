//! Injected effects on commands.

use faultline_abi::Status;
use faultline_abi::admin::Counter;

use super::delayed::Delayed;
use super::entry::Facts;
use super::point::{Outcome, Point};
use crate::command_ring::{CommandRings, Gate};
use crate::diagnostic::{CommandQueue, DriverTimes};
use crate::dma::Dma;
use crate::fault::Token;
use crate::nic::Nic;
use crate::time::Instant;

/// The effect of injections on the next command of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandFate {
    /// The command is executed.
    Execute,
    /// The command waits, and so do later ones.
    Wait,
    /// The command is refused.
    Refuse(Status),
}

impl Nic {
    fn rings_mut(&mut self, queue: CommandQueue) -> &mut CommandRings {
        match queue {
            CommandQueue::Admin => &mut self.admin,
            CommandQueue::Translation => &mut self.translation,
        }
    }

    /// Determines the effect of injections on the next command. A command passes the point once, even if several turns
    /// read it.
    #[inline]
    pub(crate) fn command_fate(
        &mut self,
        now: Instant,
        queue: CommandQueue,
        opcode: u16,
        key: Option<u32>,
    ) -> CommandFate {
        let point = match queue {
            CommandQueue::Admin => Point::AdminCommand,
            CommandQueue::Translation => Point::TranslationCommand,
        };
        if !self.core.injections.has(point) {
            return CommandFate::Execute;
        }
        match self.rings_mut(queue).gate {
            Gate::Open => self.injected_command_fate(now, queue, point, (opcode, key)),
            Gate::Passed => CommandFate::Execute,
            Gate::Closed => CommandFate::Wait,
        }
    }

    #[cold]
    fn injected_command_fate(
        &mut self,
        now: Instant,
        queue: CommandQueue,
        point: Point,
        (opcode, key): (u16, Option<u32>),
    ) -> CommandFate {
        let facts = Facts {
            key,
            code: Some(opcode),
            ..Facts::default()
        };
        let (gate, fate) = match self.core.inject(now, point, &facts) {
            Some(Outcome::Drop) => (Gate::Closed, CommandFate::Wait),
            Some(Outcome::Delay(by)) => {
                let late = match queue {
                    CommandQueue::Admin => Delayed::AdminQueue,
                    CommandQueue::Translation => Delayed::TranslationQueue,
                };
                match self.core.delay(now, by, late) {
                    Ok(()) => (Gate::Closed, CommandFate::Wait),
                    Err(_) => (Gate::Passed, CommandFate::Execute),
                }
            }
            Some(Outcome::Fail(status)) => {
                // `Point::allows` has checked the number.
                let status = Status::from_u16(status).unwrap_or(Status::BadOpcode);
                (Gate::Passed, CommandFate::Refuse(status))
            }
            _ => (Gate::Passed, CommandFate::Execute),
        };
        self.rings_mut(queue).gate = gate;
        fate
    }

    /// Ends the delay of the command that has stopped a queue. The queue continues in the next turn.
    pub(super) fn open_gate(&mut self, now: Instant, queue: CommandQueue) {
        self.rings_mut(queue).gate = Gate::Passed;
        self.core.defer(now);
    }

    /// Executes RESUME in a NIC with injections for answers. Returns the number of queue pairs that waited.
    #[cold]
    pub(crate) fn resume_with_injections<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        number: u64,
        resume_status: u16,
        driver: DriverTimes,
    ) -> Result<u32, Status> {
        let repaired = resume_status == Status::Ok as u16;
        let token = Token::from_number(number);
        let Some((fault, qpn)) = self.core.faults.find(token) else {
            return self.resume_fault(now, mem, number, repaired, driver);
        };
        let facts = Facts {
            qpn,
            key: Some(fault.key),
            va: Some(fault.first_address()),
            code: Some(resume_status),
            ..Facts::default()
        };
        match self.core.inject(now, Point::FaultAnswer, &facts) {
            Some(Outcome::Drop) => Ok(0),
            Some(Outcome::Delay(by)) => {
                let late = Delayed::Answer {
                    token,
                    repaired,
                    driver,
                };
                match self.core.delay(now, by, late) {
                    Ok(()) => Ok(0),
                    Err(_) => self.resume_fault(now, mem, number, repaired, driver),
                }
            }
            Some(Outcome::Duplicate) => {
                let first = self.resume_fault(now, mem, number, repaired, driver);
                if self
                    .resume_fault(now, mem, number, repaired, driver)
                    .is_err()
                {
                    self.core.counters.inc(Counter::command_errors);
                }
                first
            }
            Some(Outcome::Corrupt) => Err(Status::BadToken),
            Some(Outcome::Fail(_)) => self.resume_fault(now, mem, number, false, driver),
            _ => self.resume_fault(now, mem, number, repaired, driver),
        }
    }
}
