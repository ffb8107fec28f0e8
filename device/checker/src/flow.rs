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

/// Maximum number of stored flows; a connection has two.
pub const FLOW_LIMIT: usize = 1 << 11;

/// Bits of a P_Key that name a partition (IBTA 10.9.1).
pub(crate) const PARTITION: u16 = 0x7fff;

/// Identifies a flow by fields of its requester's packets.
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
    /// Returns the key of a request's flow.
    pub(crate) fn of_request(header: &RoceHeader) -> Self {
        let (from, to) = addresses(header);
        let qpn = header.bth.dest_qp;
        Self { from, to, qpn }
    }
}

/// Number of an adapter, as the caller passes it with a packet.
pub(crate) type Adapter = usize;

/// The sender of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sender {
    Adapter(Adapter),
    /// Software that has built the packet, and the adapter that has sent it.
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
    /// Sender of the first request.
    pub requester: Sender,
    /// The requester's queue pair, if it is known.
    pub from_qpn: Option<u32>,
    /// Sender of the first response with a known sender.
    pub answered_by: Option<Sender>,
    /// Another adapter or queue pair has sent packets with the addresses and numbers of this flow. Their effect on both ends is unknown,
    /// so the flow is not judged.
    pub is_mixed: bool,
    /// MAC addresses of the requester and of the responder, if they are those of adapters.
    macs: [Option<MacAddr>; 2],
    /// The responder's adapter, if a request has arrived there.
    pub to_adapter: Option<Adapter>,
    /// The flow has responses.
    pub is_answered: bool,
    requests: Requester,
    responder: Option<Responder>,
    /// A READ has arrived whose number of PSNs is unknown, because the MTU is unknown. The responder is judged again from the first
    /// request of the requester's next log.
    lost_count: bool,
    /// Bytes of payload in a full packet, once one was seen.
    mtu: Option<u32>,
    /// Partition and service of the first packet.
    partition: Option<u16>,
    service: Option<Service>,
    /// The former flow with the same key, after a request with a distant PSN, until a second request shows that a new connection has
    /// begun.
    pub before: Option<Box<Flow>>,
    /// On a link: the responder may have received a request that was not seen.
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
    /// Creates a flow. `has_unseen_start`: the connection may have begun before the first packet that was seen. `agreed_limit`: READs and
    /// atomics that the requester may have outstanding, if messages of the connection manager have set it.
    pub(crate) fn new(
        requester: Sender,
        has_unseen_start: bool,
        agreed_limit: Option<u32>,
    ) -> Self {
        let mut requests = Requester::new(has_unseen_start);
        requests.reads.agreed_limit = agreed_limit;
        Self {
            requester,
            requests,
            ..Self::default()
        }
    }

    /// Continues from a former flow with the same key: this flow is another connection, or its first packet has a wrong PSN.
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

    /// Returns false if an arriving packet has another source MAC address than the packets of the adapter at the other end: the receiving
    /// adapter drops it.
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
        // Software may send packets that an adapter drops without a response.
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

    /// Discards the least useful data: old answered requests, and a former connection.
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

    /// Compares the length of a packet with the MTU, which the first full packet shows.
    fn check_mtu(&mut self, header: &RoceHeader, payload: usize, report: &mut dyn FnMut(Report)) {
        let info = header.bth.opcode.info();
        // Other packets violate `PayloadLength`, or have a length that follows from their opcode.
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

    /// Sets the sender's limit of outstanding READs and atomics for the next request, if it is known.
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
            // The missing request may have reached the responder by another path, or the capture has lost it.
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
            Responder::new(
                first,
                self.requests.has_unseen_start || self.has_missed_request,
            )
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
        // A response to a request before the first one that was seen: the capture has just begun or has lost packets.
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

    /// Returns true if a request's PSN is so far from the expected one that the request must belong to another connection.
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
