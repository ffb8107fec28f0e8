//! The requester of a connection: checks new requests against earlier requests and their responses.

use faultline_wire::packet::RoceHeader;
use faultline_wire::{Aeth, NakCode, OpKind, Position, Psn, Service, Syndrome, rnr_timer_ns};

use crate::credits::Credits;
use crate::log::{Log, Request};
use crate::packet::{Report, Seen};
use crate::reads::Reads;
use crate::rule::Rule;

/// PSNs that may be outstanding (IBTA 9.7.2).
const WINDOW: i32 = 1 << 23;

/// A message that is not complete.
#[derive(Clone, Copy, Debug)]
struct OpenMessage {
    kind: OpKind,
    /// Bytes of payload so far.
    bytes: u32,
    /// Length in the RETH.
    length: Option<u32>,
    /// Shared receive queue of an XRC message.
    srqn: Option<u32>,
}

/// The wait after an RNR NAK.
#[derive(Clone, Copy, Debug)]
struct RnrWait {
    psn: Psn,
    until: u64,
}

/// A requester.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    pub log: Log,
    /// The requester may have sent requests before the first one that was seen, and may be repeating them.
    pub has_unseen_start: bool,
    /// PSN of the next new request; unknown after a READ without a known MTU.
    next: Option<Psn>,
    open: Option<OpenMessage>,
    /// Requests before this PSN are answered.
    acked: Option<Psn>,
    rnr: Option<RnrWait>,
    /// The requester has sent READs or atomics. A requester may discard their responses, for example because the memory for them is
    /// absent, and then repeats the later requests too.
    has_reads: bool,
    /// A NAK for this PSN has ended the connection.
    failed: Option<(Psn, NakCode)>,
    credits: Credits,
    pub reads: Reads,
}

impl Requester {
    /// Creates a requester. `has_unseen_start`: it may have sent requests before the first one that is seen.
    pub(crate) fn new(has_unseen_start: bool) -> Self {
        Self {
            has_unseen_start,
            ..Self::default()
        }
    }

    /// Discards answered requests, except the last ones.
    pub(crate) fn trim(&mut self) {
        if let Some(acked) = self.acked {
            self.log.trim(acked);
        }
        self.reads.trim();
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let lists = self.log.heap().saturating_add(self.reads.heap());
        lists.saturating_add(self.credits.heap())
    }

    /// PSN of the next new request, if it is known.
    pub(crate) fn next(&self) -> Option<Psn> {
        self.next
    }

    /// Checks a request that is sent. Returns true if requests before it are missing.
    pub(crate) fn sent(
        &mut self,
        seen: Seen,
        header: &RoceHeader,
        payload: usize,
        mtu: Option<u32>,
        report: &mut dyn FnMut(Report),
    ) -> bool {
        let psn = header.bth.psn;
        if seen.is_exact {
            self.check_pauses(seen.at, psn, report);
        }
        let request = Request::of_packet(header, payload, mtu);
        let Some(next) = self.next else {
            // The first packet, or one after a READ whose PSNs can't be counted.
            self.restart(!header.bth.opcode.is_first_or_only(), psn);
            self.append(seen, header, request, report);
            return false;
        };
        match psn.diff(next) {
            0 => self.append(seen, header, request, report),
            ahead @ 1.. => {
                let expected = next.get();
                if !seen.may_have_gaps {
                    report((
                        Rule::RequestPsn,
                        format!("the PSN is {ahead} beyond the next one, {expected}"),
                    ));
                }
                // The next packets are compared with this one, which may be of another connection.
                self.restart(true, psn);
                self.reads.agreed_limit = None;
                self.append(seen, header, request, report);
                return true;
            }
            _ if header.bth.opcode.info().service == Service::Uc => {
                let expected = next.get();
                report((
                    Rule::RequestPsn,
                    format!("UC has no retransmissions; the next PSN is {expected}"),
                ));
            }
            _ => self.repeat(seen.is_exact, header, request, mtu, report),
        }
        false
    }

    /// Discards the requests before `psn`. `is_partial`: messages may have begun before it.
    fn restart(&mut self, is_partial: bool, psn: Psn) {
        self.log = Log::default();
        self.log.is_partial = is_partial;
        self.open = None;
        self.acked = Some(psn);
        self.credits = Credits::default();
        self.reads.restart();
    }

    fn check_pauses(&mut self, at: u64, psn: Psn, report: &mut dyn FnMut(Report)) {
        // A request before the refused one is repeated: its response was discarded, and so was the NAK after it.
        let is_before = |refused: Psn| self.has_reads && psn.diff(refused) < 0;
        if self.rnr.is_some_and(|wait| is_before(wait.psn)) {
            self.rnr = None;
        }
        if self.failed.is_some_and(|(refused, _)| is_before(refused)) {
            self.failed = None;
        }
        if let Some((_, code)) = self.failed {
            report((
                Rule::SentAfterFailure,
                format!("a request after the NAK {code:?}"),
            ));
        }
        if let Some(wait) = &self.rnr
            && psn.diff(wait.psn) >= 0
            && at < wait.until
        {
            let (early, refused) = (wait.until.saturating_sub(at), wait.psn.get());
            report((
                Rule::RnrWait,
                format!(
                    "{early} ns before the end of the RNR timer of the RNR NAK of PSN {refused}"
                ),
            ));
        }
    }

    /// Checks a new request against the credits of the responder.
    fn check_credits(&mut self, seen: Seen, header: &RoceHeader, report: &mut dyn FnMut(Report)) {
        // An XRC target takes receive requests from SRQs, which have no credits.
        let is_known = seen.is_exact && !seen.may_have_gaps && !self.has_unseen_start;
        if !is_known || self.log.is_partial || header.bth.opcode.info().service != Service::Rc {
            return;
        }
        let what = self
            .acked
            .and_then(|acked| self.credits.check(header, self.log.ended(), acked));
        if let Some(what) = what {
            report((Rule::Credits, what));
        }
    }

    /// Checks a new request against the limit of outstanding READs and atomics.
    fn check_reads(&self, seen: Seen, header: &RoceHeader, report: &mut dyn FnMut(Report)) {
        // Repeated requests from before the first one that was seen may have been answered meanwhile.
        if self.has_unseen_start || !header.bth.opcode.info().kind.is_answered() {
            return;
        }
        if let Some(what) = self.reads.check(seen.is_exact) {
            report((Rule::ReadLimit, what));
        }
    }

    /// Adds a new request, at the expected PSN.
    fn append(
        &mut self,
        seen: Seen,
        header: &RoceHeader,
        request: Option<Request>,
        report: &mut dyn FnMut(Report),
    ) {
        self.check_credits(seen, header, report);
        self.check_reads(seen, header, report);
        let info = header.bth.opcode.info();
        let bytes = request.map_or(0, |request| request.bytes);
        let srqn = header.xrceth.map(|xrceth| xrceth.srqn);
        let continues = matches!(info.position, Position::Middle | Position::Last);
        match (&mut self.open, continues) {
            (Some(open), true) if open.kind == info.kind => {
                open.bytes = open.bytes.saturating_add(bytes);
                if let (Some(first), Some(now)) = (open.srqn, srqn)
                    && first != now
                {
                    report((
                        Rule::ConnectionField,
                        format!(
                            "the shared receive queue is {now:#x}, and {first:#x} of the first packet of the message"
                        ),
                    ));
                }
            }
            (Some(open), _) => {
                let kind = open.kind;
                report((
                    Rule::OpcodeSequence,
                    format!("a {kind:?} has begun and has not ended"),
                ));
                self.open = None;
            }
            // The beginning of the message may be before the capture.
            (None, true) if !self.log.is_partial => report((
                Rule::OpcodeSequence,
                "it continues a message, and none has begun".to_owned(),
            )),
            (None, _) => {}
        }
        if info.position == Position::First {
            self.open = Some(OpenMessage {
                kind: info.kind,
                bytes,
                length: header.reth.map(|reth| reth.len),
                srqn,
            });
        }
        if info.position == Position::Last
            && let Some(open) = self.open.take()
            && let Some(length) = open.length
            && length != open.bytes
        {
            let bytes = open.bytes;
            report((
                Rule::MessageLength,
                format!("the message has {bytes} bytes, its RETH says {length}"),
            ));
        }
        self.has_reads |= info.kind.is_answered();
        self.next = request.map(|request| request.end());
        if let Some(request) = request {
            self.log.push(request);
            if info.kind.is_answered() {
                self.reads.push(request.end());
            }
        }
        if let (Some(next), Some(acked)) = (self.next, self.acked)
            && info.service != Service::Uc
            && next.diff(acked) >= WINDOW
        {
            let count = next.diff(acked);
            report((Rule::Outstanding, format!("{count} PSNs are outstanding")));
        }
    }

    /// A request whose PSN was used before.
    fn repeat(
        &mut self,
        is_exact: bool,
        header: &RoceHeader,
        request: Option<Request>,
        mtu: Option<u32>,
        report: &mut dyn FnMut(Report),
    ) {
        let psn = header.bth.psn;
        let (Some(first), Some(now)) = (self.log.find(psn).copied(), request) else {
            return;
        };
        let answered = self.acked.is_some_and(|acked| psn.diff(acked) < 0);
        if is_exact && answered && !self.has_reads {
            report((
                Rule::RepeatedAfterAck,
                "the request was answered before".to_owned(),
            ));
        }
        if first.opcode != now.opcode {
            let before = first.opcode;
            report((
                Rule::Repetition,
                format!("the first request with this PSN was {before:?}"),
            ));
            return;
        }
        self.discard_responses(psn);
        // A repeated READ may request only the rest, from the first missing response (IBTA 9.7.5.1.3).
        let skipped = u32::try_from(psn.diff(first.psn)).unwrap_or(0);
        let skipped = skipped.saturating_mul(mtu.unwrap_or(0));
        let rest = first.reth.map(|reth| {
            let addr = reth.addr.wrapping_add(u64::from(skipped));
            (addr, reth.rkey, reth.len.saturating_sub(skipped))
        });
        let asked = now.reth.map(|reth| (reth.addr, reth.rkey, reth.len));
        if rest != asked || now.bytes != first.bytes.saturating_sub(skipped) {
            report((
                Rule::Repetition,
                format!("address, key or length differ: {asked:x?} after {rest:x?}"),
            ));
        } else if now.others != first.others {
            report((
                Rule::Repetition,
                "immediate, key to invalidate, operands, placement or receive queue differ"
                    .to_owned(),
            ));
        }
    }

    /// A READ or atomic is repeated from `psn` on: the requester has discarded its responses from there on.
    fn discard_responses(&mut self, psn: Psn) {
        if let Some(request) = self.log.find_mut(psn) {
            let place = u32::try_from(psn.diff(request.psn)).unwrap_or(0);
            if request.opcode.info().kind.is_answered() && request.answer.responses > place {
                request.answer.responses = place;
                if self.acked.is_some_and(|acked| psn.diff(acked) < 0) {
                    self.acked = Some(psn);
                }
            }
        }
    }

    /// A response arrives. `is_held`: the requester reads it later, so a NAK does not bind it yet.
    pub(crate) fn received(&mut self, at: u64, header: &RoceHeader, is_held: bool) {
        let psn = header.bth.psn;
        let Some(next) = self.log.next().filter(|next| psn.diff(*next) < 0) else {
            // The response is to a request that was not seen.
            if self.has_unseen_start {
                self.go_on_after(header);
            }
            return;
        };
        let kind = header.bth.opcode.info().kind;
        if kind == OpKind::Ready {
            if self.rnr.is_some_and(|wait| wait.psn == psn) {
                self.rnr = None;
            }
            return;
        }
        self.reads.pass(first_not_answered(header));
        // The MSN of a response with data may count requests that were executed after its own. Requesters may ignore its credits.
        if kind != OpKind::Ack
            && let Some(aeth) = &header.aeth
            && let Syndrome::Ack { credits } = aeth.syndrome
        {
            let ended = self.log.ended();
            self.credits.announce(credits, aeth.msn, ended, false);
        }
        if kind != OpKind::Ack && !self.take_response(psn) {
            // A requester may conclude that all requests before the first missing response were executed.
            if self.has_reads {
                self.acknowledge(psn, next);
            }
            return;
        }
        let Some(aeth) = acknowledgement(header) else {
            self.acknowledge(psn.next(), next);
            return;
        };
        match aeth.syndrome {
            Syndrome::Ack { credits } => {
                self.acknowledge(psn.next(), next);
                // Requesters may ignore an older ACK, and an ACK after a missing response.
                let is_used = self.acked == Some(psn.next());
                if kind == OpKind::Ack
                    && let Some(ended) = self.log.ended_at(psn)
                {
                    self.credits.announce(credits, aeth.msn, ended, is_used);
                }
            }
            Syndrome::RnrNak { timer } => {
                self.acknowledge(psn, next);
                // A NAK after a missing response is ignored: the request before it is repeated first. A duplicate of an RNR NAK does not
                // prolong the wait.
                let waits = |wait: RnrWait| wait.psn == psn && at < wait.until;
                let is_again = self.rnr.is_some_and(waits);
                if self.acked == Some(psn) && !is_held && !is_again {
                    let until = at.saturating_add(rnr_timer_ns(timer));
                    self.rnr = Some(RnrWait { psn, until });
                }
            }
            Syndrome::Nak(code) => {
                self.acknowledge(psn, next);
                if self.acked == Some(psn) && code != NakCode::PsnSequenceError && !is_held {
                    self.failed = Some((psn, code));
                }
            }
            Syndrome::Reserved(_) => {}
        }
    }

    /// The response is to a request from before the first one that was seen: it ends the repetition of such requests.
    fn go_on_after(&mut self, header: &RoceHeader) {
        let psn = first_not_answered(header);
        if self.next.is_some_and(|next| psn.diff(next) > 0) {
            self.restart(true, psn);
            self.next = Some(psn);
        }
    }

    /// Counts a response with data. Returns false if it is not the expected one: the requester drops it, and repeats the request.
    fn take_response(&mut self, psn: Psn) -> bool {
        let (Some(acked), Some(request)) = (self.acked, self.log.find(psn)) else {
            return false;
        };
        if !request.opcode.info().kind.is_answered() {
            return false;
        }
        let first = request.psn;
        let place = u32::try_from(psn.diff(first)).unwrap_or(u32::MAX);
        let before = |request: &&Request| request.psn.diff(first) < 0;
        let is_next = request.answer.responses == place;
        if !is_next || self.log.from(acked).take_while(before).any(Request::waits) {
            return false;
        }
        if let Some(request) = self.log.find_mut(psn) {
            request.answer.responses = place.saturating_add(1);
        }
        true
    }

    /// Marks requests before `until` as acknowledged, up to the first missing response.
    fn acknowledge(&mut self, until: Psn, next: Psn) {
        let Some(acked) = self.acked else {
            return;
        };
        if until.diff(next) > 0 || until.diff(acked) <= 0 {
            return;
        }
        let before = |request: &&Request| request.psn.diff(until) < 0;
        let waiting = self
            .log
            .from(acked)
            .take_while(before)
            .find(|request| request.waits());
        // The first missing response.
        let until = waiting.map_or(until, |request| request.psn.add(request.answer.responses));
        if until.diff(acked) > 0 {
            self.acked = Some(until);
            self.reads.answer(until);
            // The refused request was executed: a later transmission of it has arrived.
            if self.rnr.is_some_and(|wait| until.diff(wait.psn) > 0) {
                self.rnr = None;
            }
        }
    }
}

/// PSN after the last request that a response acknowledges.
pub(crate) fn first_not_answered(header: &RoceHeader) -> Psn {
    match acknowledgement(header).map(|aeth| aeth.syndrome) {
        Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }) => header.bth.psn,
        _ => header.bth.psn.next(),
    }
}

/// Returns the AETH of a response, if it is relevant. The AETH of a response with data is relevant only with an ACK syndrome: with the
/// syndrome of a NAK the requester may accept the response or drop it.
fn acknowledgement(header: &RoceHeader) -> Option<Aeth> {
    let is_alone = header.bth.opcode.info().kind == OpKind::Ack;
    header
        .aeth
        .filter(|aeth| is_alone || matches!(aeth.syndrome, Syndrome::Ack { .. }))
}
