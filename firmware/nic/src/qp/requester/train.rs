//! Trains: messages of one packet each that leave as one frame (see [`TxFrame`]).

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a train has at most MOST_MESSAGES messages, and as many bytes as one turn sends"
)]

use faultline_abi::wqe::{WR_FLAG_FENCE, WR_FLAG_SOLICITED};
use faultline_wire::bth::Psn;

use super::{MessageRange, Requester};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::frame::{Target, TxFrame};
use crate::mkey::Mkeys;
use crate::number::len32;
use crate::qp::endpoint::Endpoint;
use crate::qp::types::QpType;
use crate::qp::work_request::{SendExtra, SendOp, SendWr};
use crate::segments::truncate_segments;

/// Messages of a train at most: as many packets as a turn of a queue pair has.
const MOST_MESSAGES: u32 = 32;

/// Common properties of the messages of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    is_write: bool,
    length: u32,
    is_solicited: bool,
}

impl Form {
    /// The form of a message, with the target of a WRITE. `None` if it cannot be in a train.
    #[inline]
    fn of(wr: &SendWr) -> Option<(Self, Option<Target>)> {
        let target = match wr.op {
            Some(SendOp::Send(SendExtra::Nothing)) => None,
            Some(SendOp::Write { to, imm: None }) => Some(Target {
                addr: to.addr,
                rkey: to.rkey,
            }),
            _ => return None,
        };
        let form = Self {
            is_write: target.is_some(),
            length: wr.length,
            is_solicited: wr.has(WR_FLAG_SOLICITED),
        };
        let is_plain = wr.psns == 1 && wr.failed.is_none() && wr.device.is_none();
        is_plain.then_some((form, target))
    }
}

impl Requester {
    /// Adds the messages behind the one at the cursor to `frame`, which is about to be sent: those that may be sent now
    /// and have the same form, up to `most` bytes. A message that may not be sent, or has an error, is handled when it
    /// is the first.
    #[inline]
    pub(super) fn extend_to_train<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        most: u32,
        frame: &mut TxFrame,
    ) {
        if most == 0 || frame.packets > 1 || (!self.has_posted() && self.is_last()) {
            return;
        }
        let Some(leader) = self.pending.get(self.cursor) else {
            return;
        };
        let Some((form, target)) = Form::of(leader).filter(|_| self.may_lead(qp, cx.core, leader))
        else {
            return;
        };
        let messages = most.checked_div(form.length);
        let messages = messages.unwrap_or(MOST_MESSAGES).min(MOST_MESSAGES);
        push_target(frame, target);
        while frame.packets < messages {
            let position = self.cursor + frame.packets as usize;
            if position == self.pending.len() && !self.fetch(qp, cx) {
                break;
            }
            if !self.add_message(qp, cx.core, (position, form), frame) {
                break;
            }
        }
    }

    /// True if no request that has begun is behind the cursor.
    #[inline]
    fn is_last(&self) -> bool {
        self.cursor + 1 >= self.pending.len()
    }

    /// True if others may follow a message in its frame.
    #[inline]
    fn may_lead(&self, qp: &Endpoint, core: &Core, wr: &SendWr) -> bool {
        matches!(qp.config.kind, QpType::Rc | QpType::Uc)
            && !self.credits.begins_limited(wr, 0)
            && self.window.small().is_none()
            && self.dammed.is_none()
            && !core.config.pitfalls.damming
            && !core.delays_packets()
    }

    /// Adds a message to a train. Returns false if it cannot be added.
    #[inline]
    fn add_message(
        &self,
        qp: &Endpoint,
        core: &Core,
        (position, form): (usize, Form),
        frame: &mut TxFrame,
    ) -> bool {
        let Some(wr) = self.pending.get(position) else {
            return false;
        };
        let Some((_, target)) = Form::of(wr).filter(|(its, _)| *its == form) else {
            return false;
        };
        if wr.has(WR_FLAG_FENCE) || !self.may_follow(qp, wr, wr.first) {
            return false;
        }
        let range = MessageRange::to_send(0, wr.length);
        let payload = &mut frame.payload;
        let gathered = self.gather_by(Mkeys::try_translate, qp, core, (wr, range), payload);
        if gathered.is_err() {
            truncate_segments(&mut frame.payload, len32(frame.payload_len));
            return false;
        }
        push_target(frame, target);
        frame.payload_len += wr.length as usize;
        frame.packets += 1;
        true
    }

    /// True if the packet with this PSN may be sent now: see [`Requester::may_send`] and [`Requester::waits_for_page`].
    #[inline]
    fn may_follow(&self, qp: &Endpoint, wr: &SendWr, psn: Psn) -> bool {
        if self.page.is_some_and(|wait| psn.diff(wait.psn) >= 0) {
            return false;
        }
        !qp.is_reliable()
            || psn.diff(self.unacked) < self.window.packets()
                && !self.credits.hold_back(psn)
                && !self.credits.begins_limited(wr, 0)
    }
}

/// Adds the target of a WRITE. A SEND has none.
#[inline]
fn push_target(frame: &mut TxFrame, target: Option<Target>) {
    if let Some(target) = target {
        frame.targets.push(target);
    }
}
