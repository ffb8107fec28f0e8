//! One direction of a connection: the requests of one side, and the answers to them.

use faultline_wire::packet::{Parsed, RoceHeader};
use faultline_wire::{Gid, MacAddr, OpKind, Position, Psn, Service};

use crate::finding::addresses;
use crate::log::{FAR, Request};
use crate::memory;
use crate::packet::{MAX_PAYLOAD, Report, Seen, is_mtu};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::rule::Rule;

/// Most flows that are remembered; a connection has two.
pub const FLOW_LIMIT: usize = 1 << 11;

/// Bits of a P_Key that name a partition (IBTA 10.9.1).
pub(crate) const PARTITION: u16 = 0x7fff;

/// What identifies a flow in a packet of its requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Address of the requester.
    pub from: Gid,
    /// Address of the responder.
    pub to: Gid,
    /// Queue pair of the responder.
    pub qpn: u32,
}

impl Key {
    /// Of the flow of a request.
    pub(crate) fn of_request(header: &RoceHeader) -> Self {
        let (from, to) = addresses(header);
        let qpn = header.bth.dest_qp;
        Self { from, to, qpn }
    }
}

/// Number of an adapter that was passed with a packet.
pub(crate) type Adapter = usize;

/// Who has sent a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sender {
    Adapter(Adapter),
    /// Software has made it, and this adapter has only sent it.
    Software(Adapter),
    #[default]
    Unknown,
}

impl Sender {
    /// The adapter to which the packet is charged.
    pub(crate) fn adapter(self) -> Option<Adapter> {
        match self {
            Self::Adapter(adapter) => Some(adapter),
            Self::Software(_) | Self::Unknown => None,
        }
    }

    /// The adapter where it was sent.
    pub(crate) fn place(self) -> Option<Adapter> {
        match self {
            Self::Adapter(adapter) | Self::Software(adapter) => Some(adapter),
            Self::Unknown => None,
        }
    }
}

/// The requests of one side of a connection, and the answers to them.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Who has sent the first request.
    pub requester: Sender,
    /// The requester's queue pair, if it is known.
    pub from_qpn: Option<u32>,
    /// Who has sent the first response of which that is known.
    pub answered_by: Option<Sender>,
    /// Others have sent packets with its addresses and numbers, another adapter or another queue pair. What these did to either end is not
    /// known: it is not judged.
    pub is_mixed: bool,
    /// MAC addresses of the requester and of the responder, if they are those of adapters.
    macs: [Option<MacAddr>; 2],
    /// The responder's adapter, if a request has arrived there.
    pub to_adapter: Option<Adapter>,
    /// Responses were found to belong to it.
    pub is_answered: bool,
    requests: Requester,
    responder: Option<Responder>,
    /// A READ has arrived whose PSNs can't be counted, because the MTU is not known. The responder is followed again from the request
    /// on with which the log of the requester begins anew.
    lost_count: bool,
    /// Bytes of payload in a full packet, once one was seen.
    mtu: Option<u32>,
    /// Partition and service of the first packet.
    partition: Option<u16>,
    service: Option<Service>,
    /// The flow with the same key before a request with a distant PSN, until a second one shows that it was of another connection.
    pub before: Option<Box<Flow>>,
    /// On a link: a request was missing that its responder may have got.
    has_missed_request: bool,
}

/// True for the services whose requests have PSNs that are checked.
pub(crate) fn is_connected(service: Service) -> bool {
    match service {
        Service::Rc | Service::Uc | Service::Xrc => true,
        // READY is no request.
        Service::Ud | Service::Cnp | Service::Manufacturer => false,
    }
}

impl Flow {
    /// A flow. `has_past`: packets of it may have been lost before the first one that is passed. `agreed_limit`: READs and the like
    /// that its requester may have outstanding, if the connection manager has agreed on that.
    pub(crate) fn new(requester: Sender, has_past: bool, agreed_limit: Option<u32>) -> Self {
        let mut requests = Requester::new(has_past);
        requests.reads.agreed_limit = agreed_limit;
        Self {
            requester,
            requests,
            ..Self::default()
        }
    }

    /// It may be another connection than the flow before with the same key, or its first packet has a wrong PSN.
    pub(crate) fn continue_from(&mut self, mut before: Box<Self>) {
        self.mtu = before.mtu;
        before.before = None;
        self.before = Some(before);
    }

    /// An adapter has sent a packet of this flow.
    pub(crate) fn learn_mac(&mut self, header: &RoceHeader) {
        let end = usize::from(header.bth.opcode.is_response());
        if let Some(mac) = self.macs.get_mut(end) {
            *mac = Some(header.ethernet.src);
        }
    }

    /// True unless a packet that arrives has another source MAC address than the adapter at the other end has sent: an adapter drops it.
    pub(crate) fn has_mac(&self, header: &RoceHeader) -> bool {
        let end = usize::from(header.bth.opcode.is_response());
        let mac = self.macs.get(end).copied().flatten();
        mac.is_none_or(|mac| mac == header.ethernet.src)
    }

    /// A packet with its addresses and numbers was sent as a response. Returns false if the flow is not judged.
    pub(crate) fn is_answered_by(&mut self, sender: Sender) -> bool {
        if sender != Sender::Unknown {
            self.is_mixed |= *self.answered_by.get_or_insert(sender) != sender;
        }
        // Software may send what an adapter drops without an answer.
        let is_of_software = matches!(self.requester, Sender::Software(_));
        self.is_mixed |= is_of_software && sender.adapter().is_some();
        !self.is_mixed
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let responder = self.responder.as_ref().map_or(0, Responder::heap);
        let before = self.before.as_ref().map_or(0, |before| {
            memory::array::<Self>(1).saturating_add(before.heap())
        });
        let own = self.requests.heap().saturating_add(responder);
        own.saturating_add(before)
    }

    /// Forgets what is needed least: requests that were answered long ago, and a former connection.
    pub(crate) fn trim(&mut self) {
        self.before = None;
        if self.is_mixed {
            self.requests = Requester::default();
            self.responder = None;
            return;
        }
        self.requests.trim();
        if let Some(responder) = &mut self.responder {
            responder.trim();
        }
    }

    /// Compares a packet with the MTU, which is learned from one that is full.
    fn check_mtu(&mut self, header: &RoceHeader, payload: usize, report: &mut dyn FnMut(Report)) {
        let info = header.bth.opcode.info();
        // Others are wrong by themselves, and those of one length have it said by their opcode.
        if !info.payload || info.kind == OpKind::AtomicWrite || payload > MAX_PAYLOAD {
            return;
        }
        let is_full = matches!(info.position, Position::First | Position::Middle);
        if is_full && !is_mtu(payload) {
            return;
        }
        let Ok(bytes) = u32::try_from(payload) else {
            return;
        };
        match self.mtu {
            None if is_full => self.mtu = Some(bytes),
            Some(mtu) if is_full && bytes != mtu => {
                report((
                    Rule::PathMtu,
                    format!("{bytes} bytes in the middle of a message; the path MTU is {mtu}"),
                ));
                self.mtu = Some(bytes);
            }
            Some(mtu) if bytes > mtu => report((
                Rule::PathMtu,
                format!("{bytes} bytes are more than the path MTU, {mtu}"),
            )),
            _ => {}
        }
    }

    /// Compares the service and the partition of a packet with those of the others.
    fn check_constants(&mut self, header: &RoceHeader, report: &mut dyn FnMut(Report)) {
        let service = header.bth.opcode.info().service;
        if service != Service::Manufacturer {
            let first = *self.service.get_or_insert(service);
            if service != first {
                report((
                    Rule::ConnectionField,
                    format!("the service is {service:?}, that of the connection is {first:?}"),
                ));
            }
        }
        let partition = header.bth.pkey & PARTITION;
        let first = *self.partition.get_or_insert(partition);
        if partition != first {
            report((
                Rule::ConnectionField,
                format!(
                    "the partition is {partition:#06x}, that of the connection is {first:#06x}"
                ),
            ));
        }
    }

    /// Sets the bytes of payload in a full packet, if they are known.
    pub(crate) fn set_mtu(&mut self, mtu: Option<u32>) {
        self.mtu = mtu.or(self.mtu);
    }

    /// Sets the limit of READs and the like that the sender of the next request has, if it is known.
    pub(crate) fn set_read_limit(&mut self, limit: Option<u32>) {
        self.requests.reads.own_limit = limit;
    }

    pub(crate) fn request_sent(
        &mut self,
        seen: Seen,
        parsed: &Parsed<'_>,
        report: &mut dyn FnMut(Report),
    ) {
        let (header, payload) = (&parsed.header, parsed.payload.len());
        self.check_mtu(header, payload, report);
        self.check_constants(header, report);
        let has_gap = self.requests.sent(seen, header, payload, self.mtu, report);
        if has_gap && !seen.is_exact {
            // The missing request may have reached the responder, by another way or before the capture lost it.
            self.has_missed_request = true;
            if let Some(responder) = &mut self.responder {
                responder.expect_unseen();
            }
        }
    }

    pub(crate) fn request_received(&mut self, parsed: &Parsed<'_>) {
        let Some(first) = self.requests.log.first() else {
            return;
        };
        let (header, payload) = (&parsed.header, parsed.payload.len());
        if Request::of_packet(header, payload, self.mtu).is_none() {
            self.responder = None;
            self.lost_count = true;
            return;
        }
        if self.lost_count && header.bth.psn != first {
            return;
        }
        self.lost_count = false;
        let responder = self.responder.get_or_insert_with(|| {
            Responder::new(first, self.requests.has_past || self.has_missed_request)
        });
        responder.received(header, payload, self.mtu);
    }

    /// A response leaves.
    pub(crate) fn response_sent(
        &mut self,
        seen: Seen,
        parsed: &Parsed<'_>,
        report: &mut dyn FnMut(Report),
    ) {
        let (header, payload) = (&parsed.header, parsed.payload.len());
        self.check_mtu(header, payload, report);
        self.check_constants(header, report);
        // A response to a request before those that were seen, after the capture has begun or has lost packets.
        let responder = self.responder.as_ref();
        if !seen.is_exact && responder.is_some_and(|responder| responder.is_before(header.bth.psn))
        {
            return;
        }
        if let Some(responder) = &mut self.responder {
            responder.sent(seen, header, payload, report);
        }
    }

    pub(crate) fn response_received(&mut self, at: u64, parsed: &Parsed<'_>, is_held: bool) {
        self.requests.received(at, &parsed.header, is_held);
    }

    /// True if a request with this PSN was sent and is remembered.
    pub(crate) fn has_sent(&self, header: &RoceHeader) -> bool {
        self.requests.log.find(header.bth.psn).is_some()
    }

    /// PSN of the next new request, if it is known.
    pub(crate) fn next(&self) -> Option<Psn> {
        self.requests.next()
    }

    /// True if the PSN of a request is so far from the next one that it must belong to another connection.
    pub(crate) fn is_far(&self, header: &RoceHeader) -> bool {
        let next = self.requests.log.next();
        next.is_some_and(|next| header.bth.psn.diff(next).unsigned_abs() > FAR)
    }
}

#[cfg(test)]
mod tests {
    use faultline_wire::opcode::Opcode;

    use super::*;

    #[test]
    fn requests_of_all_connections_are_followed() {
        for opcode in Opcode::ALL.iter().filter(|opcode| opcode.is_request()) {
            let service = opcode.info().service;
            assert_eq!(is_connected(service), service != Service::Ud, "{opcode:?}");
        }
    }
}
