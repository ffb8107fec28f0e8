//! End-to-end flow control: messages beyond the receive requests that the responder has announced (IBTA 9.7.7.2).
//!
//! An ACK announces receive requests by its credits. The number of the last message with a receive request is the limit sequence number
//! (LSN), the sum of the MSN and the credits of the ACK. A message beyond the LSN that takes a receive request is limited: the requester
//! may send its first packet, with AckReq set, and no new packet before the acknowledgement of that packet.
//!
//! Messages are numbered from 1 at the beginning of the log. These numbers are SSN and MSN if the log begins with the connection;
//! otherwise nothing is judged.
//!
//! The last packet of a WRITE shows by its immediate data that the message takes a receive request. The WRITE is judged then.

use faultline_wire::packet::RoceHeader;
use faultline_wire::{Bth, Headers, OpKind, Opcode, Position, Psn, credit_count};

use crate::memory;

/// A limited message whose first packet was sent.
#[derive(Clone, Copy, Debug)]
struct Limited {
    /// PSN of its first packet.
    psn: Psn,
    number: Psn,
}

/// A WRITE of several packets whose first one was sent beyond the credits.
#[derive(Debug)]
struct LongWrite {
    first: Limited,
    /// The violation, if the message takes a receive request.
    excess: Option<String>,
}

/// The credits that a requester has received.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    /// The LSN: number of the last permitted message. It never decreases.
    last: Option<Psn>,
    /// The requester must obey the LSN: the responder has not announced since then that it uses no credits.
    is_obeyed: bool,
    limited: Option<Limited>,
    write: Option<LongWrite>,
}

impl Credits {
    /// A response with credit code `code` and MSN `msn` arrives. At most `ended` messages are completed at its PSN. `may_limit`: the
    /// requester certainly uses the response; otherwise the response can only permit more messages.
    pub(crate) fn announce(&mut self, code: u8, msn: u32, ended: u32, may_limit: bool) {
        let Some(count) = credit_count(code) else {
            self.is_obeyed = false;
            return;
        };
        // A responder with a wrong count permits more messages; the requester relies on its count.
        let (said, ended) = (Psn::new(msn), Psn::new(ended));
        let completed = if said.diff(ended) > 0 { said } else { ended };
        let last = completed.add(count);
        if self.last.is_none_or(|before| last.diff(before) > 0) {
            self.last = Some(last);
        }
        self.is_obeyed |= may_limit;
    }

    /// A new request packet leaves. `ended` messages have ended before it, and requests before PSN `acked` are acknowledged. Returns the
    /// violation, if any.
    pub(crate) fn check(&mut self, header: &RoceHeader, ended: u32, acked: Psn) -> Option<String> {
        let (bth, number) = (&header.bth, Psn::new(ended).next());
        let must_wait = |limited: &Limited| {
            limited.psn.diff(acked) >= 0 && self.is_beyond(limited.number).is_some()
        };
        let limited = self.limited.filter(must_wait);
        let waiting_write = self.write.as_ref().map(|write| write.first);
        let waiting_write = waiting_write.filter(must_wait);
        self.limited = limited;
        if let Some(limited) = limited {
            return Some(waits_not(limited.psn));
        }
        if let (Some(first), Some(write)) = (waiting_write, &mut self.write) {
            write.excess.get_or_insert_with(|| waits_not(first.psn));
        }
        match bth.opcode.info().position {
            Position::First | Position::Only => self.begin(bth, number),
            Position::Middle => None,
            Position::Last => {
                let write = self.write.take()?;
                let is_its = bth.opcode.info().kind == OpKind::Write;
                (is_its && takes_receive_request(bth.opcode)).then_some(write.excess)?
            }
        }
    }

    /// A message begins.
    fn begin(&mut self, bth: &Bth, number: Psn) -> Option<String> {
        self.write = None;
        let missing = self.is_beyond(number)?;
        let first = Limited {
            psn: bth.psn,
            number,
        };
        let excess = (!bth.ack_req).then(|| {
            format!("the message is {missing} beyond the credits, and its first packet asks for no acknowledgement")
        });
        if takes_receive_request(bth.opcode) {
            self.limited = Some(first);
            return excess;
        }
        let is_write = bth.opcode.info().kind == OpKind::Write;
        self.write =
            (is_write && !bth.opcode.is_last_or_only()).then_some(LongWrite { first, excess });
        None
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let excess = self.write.as_ref().and_then(|write| write.excess.as_ref());
        excess.map_or(0, |text| memory::array::<u8>(text.capacity()))
    }

    /// Returns the distance of a message from the LSN; `None` if the message is not limited.
    fn is_beyond(&self, number: Psn) -> Option<i32> {
        let last = self.last.filter(|_| self.is_obeyed)?;
        Some(number.diff(last)).filter(|beyond| *beyond > 0)
    }
}

fn waits_not(psn: Psn) -> String {
    format!(
        "PSN {} begins a message without credits, and is not acknowledged yet",
        psn.get()
    )
}

/// True if a packet shows that its message takes a receive request.
fn takes_receive_request(opcode: Opcode) -> bool {
    match opcode.info().kind {
        OpKind::Send => true,
        OpKind::Write => opcode.has(Headers::IMM),
        _ => false,
    }
}
