//! End-to-end flow control (IBTA 9.7.7.2): a responder says in its acknowledgements for how many messages it has receive requests.
//!
//! Messages of a connection are numbered from 1 on, as the responder's MSN counts them. One that takes a receive request and whose number
//! is beyond the last MSN plus the credits is *limited*: its first packet is sent alone with AckReq, and no new packet follows before the
//! acknowledgement has arrived. So a requester gets new credits although it has none. Without an ACK timeout, the loss of that packet or
//! of its acknowledgement stops the send queue, as the loss of the last packet does.

use faultline_wire::aeth::{Aeth, Syndrome, credit_count};
use faultline_wire::bth::Psn;

use crate::qp::work_request::SendWr;

/// The first packet of a limited message, which is not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Probe {
    psn: Psn,
    /// Number of the message.
    number: Psn,
}

/// The credits that a requester has received. Numbers of messages have 24 bits and wrap, as PSNs do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// Number of the last message.
    last: Psn,
    /// Number of the last message that has a receive request. `None`: the peer has sent no credits yet, or does not use them.
    limit: Option<Psn>,
    probe: Option<Probe>,
}

impl Credits {
    /// Number of a new message.
    pub(super) fn number(&mut self) -> Psn {
        self.last = self.last.next();
        self.last
    }

    /// Takes the credits of an acknowledgement. They never withdraw earlier credits.
    pub(super) fn take(&mut self, aeth: &Aeth) {
        let Syndrome::Ack { credits } = aeth.syndrome else {
            return;
        };
        let limit = credit_count(credits).map(|count| Psn::new(aeth.msn).add(count));
        self.limit = match (self.limit, limit) {
            (Some(before), Some(now)) if now.diff(before) < 0 => Some(before),
            _ => limit,
        };
        if self
            .probe
            .is_some_and(|probe| !self.is_beyond(probe.number))
        {
            self.probe = None;
        }
    }

    fn is_beyond(&self, number: Psn) -> bool {
        self.limit.is_some_and(|limit| number.diff(limit) > 0)
    }

    /// Everything before this PSN is acknowledged.
    pub(super) fn acknowledged(&mut self, until: Psn) {
        self.probe.take_if(|probe| until.diff(probe.psn) > 0);
    }

    /// True if no packet with this PSN may be sent now.
    #[inline]
    pub(super) fn hold_back(&self, psn: Psn) -> bool {
        self.probe.is_some_and(|probe| psn.diff(probe.psn) > 0)
    }

    /// True if packet `packet` of a message is the first one of a limited message.
    pub(super) fn begins_limited(&self, wr: &SendWr, packet: u32) -> bool {
        packet == 0 && wr.takes_receive_request() && self.is_beyond(wr.number)
    }

    /// Packet `packet` of a message was sent.
    #[inline]
    pub(super) fn sent(&mut self, wr: &SendWr, packet: u32) {
        if self.begins_limited(wr, packet) {
            self.probe = Some(Probe {
                psn: wr.first,
                number: wr.number,
            });
        }
    }
}
