//! End-to-end flow control: which messages may be sent without a receive request that the responder has announced (IBTA 9.7.7.2).
//!
//! An ACK announces receive requests by its credits. The last message for which there is one is the limit sequence number (LSN): the
//! MSN of the ACK and its credits. A message beyond the LSN that takes a receive request is limited: the requester may send its first
//! packet, which asks for an acknowledgement, and nothing new before that packet is acknowledged.
//!
//! Messages are numbered from the beginning of the log, at 1. A log that begins with the connection has the numbers of SSN and MSN; with
//! others nothing is judged.
//!
//! A WRITE with immediate of several packets is not judged: its first packet does not say that it takes a receive request.

use faultline_wire::packet::RoceHeader;
use faultline_wire::{Headers, OpKind, Opcode, Psn, credit_count};

/// A limited message whose first packet was sent.
#[derive(Clone, Copy, Debug)]
struct Limited {
    /// PSN of its first packet.
    psn: Psn,
    number: Psn,
}

/// What a requester knows of the receive requests of its responder.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    /// Number of the last message that a response has permitted. It never goes back.
    last: Option<Psn>,
    /// The requester is known to obey it: since then the responder has not said that it uses no credits.
    is_obeyed: bool,
    limited: Option<Limited>,
}

impl Credits {
    /// A response arrives with a credit code, of which the MSN is `msn`. At most `ended` messages are completed at its PSN. `may_limit`: the
    /// requester is known to use it. Otherwise it can permit more messages, and not fewer.
    pub(crate) fn announce(&mut self, code: u8, msn: u32, ended: u32, may_limit: bool) {
        let Some(count) = credit_count(code) else {
            self.is_obeyed = false;
            return;
        };
        // A responder that counts wrongly permits more; the requester takes its word.
        let (said, ended) = (Psn::new(msn), Psn::new(ended));
        let completed = if said.diff(ended) > 0 { said } else { ended };
        let last = completed.add(count);
        if self.last.is_none_or(|before| last.diff(before) > 0) {
            self.last = Some(last);
        }
        self.is_obeyed |= may_limit;
    }

    /// A new request packet leaves. `ended` messages have ended before it, and requests before PSN `acked` are acknowledged. Returns
    /// what is wrong.
    pub(crate) fn check(&mut self, header: &RoceHeader, ended: u32, acked: Psn) -> Option<String> {
        let (bth, number) = (&header.bth, Psn::new(ended).next());
        let waits = |limited: &Limited| limited.psn.diff(acked) >= 0;
        self.limited = self
            .limited
            .filter(|limited| waits(limited) && self.is_beyond(limited.number).is_some());
        if let Some(limited) = &self.limited {
            let psn = limited.psn.get();
            return Some(format!(
                "PSN {psn} begins a message without credits, and is not acknowledged yet"
            ));
        }
        let missing = self.is_beyond(number)?;
        if !bth.opcode.is_first_or_only() || !takes_receive_request(bth.opcode) {
            return None;
        }
        self.limited = Some(Limited {
            psn: bth.psn,
            number,
        });
        (!bth.ack_req).then(|| {
            format!("the message is {missing} beyond the credits, and its first packet asks for no acknowledgement")
        })
    }

    /// How many messages this one is beyond the last one that is not limited; `None`: it is not limited.
    fn is_beyond(&self, number: Psn) -> Option<i32> {
        let last = self.last.filter(|_| self.is_obeyed)?;
        Some(number.diff(last)).filter(|beyond| *beyond > 0)
    }
}

/// True if a packet shows that its message takes a receive request.
fn takes_receive_request(opcode: Opcode) -> bool {
    match opcode.info().kind {
        OpKind::Send => true,
        OpKind::Write => opcode.has(Headers::IMM),
        _ => false,
    }
}
