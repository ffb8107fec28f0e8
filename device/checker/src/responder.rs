//! The responder of a connection: checks responses against the requests that have arrived.
//!
//! A request that has arrived may have been refused or dropped, so the responder may have executed only a part of the requests in the log.

use faultline_wire::packet::RoceHeader;
use faultline_wire::{Aeth, NakCode, OpKind, Position, Psn, Syndrome};

use crate::log::{FAR, Log, Request};
use crate::packet::{Report, Seen};
use crate::requester::first_not_answered;
use crate::rule::Rule;

/// A READ whose responses are being sent.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// PSN of the next response.
    next: Psn,
    /// PSN after the last one.
    end: Psn,
    /// Remaining bytes.
    left: u32,
}

/// A request that was refused by an RNR NAK, or by a NAK that ends the connection.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    psn: Psn,
    /// Refused transmissions of the request.
    count: u32,
    ends: bool,
}

/// A responder.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// Requests may have arrived before the first one that was seen, which may be a repetition.
    has_unseen_start: bool,
    /// PSN of the first request that was seen.
    first: Option<Psn>,
    /// Requests that have arrived in order.
    log: Log,
    /// Requests before this PSN were acknowledged or answered.
    acked: Option<Psn>,
    /// Messages that were completed before the log begins, from the MSN of the first acknowledgement.
    base: Option<u32>,
    /// PSN of the last sequence NAK, until a request with this PSN or an earlier one arrives.
    nak: Option<Psn>,
    /// PSN of a sequence NAK for a request that had arrived, until a request with this PSN or an earlier one arrives.
    late_nak: Option<Psn>,
    /// PSN of the last RNR NAK.
    refused: Option<Psn>,
    /// The request that the last NAK has refused.
    refusal: Option<Refusal>,
    reading: Option<Reading>,
    /// Responses may continue one whose beginning was not seen.
    has_missed_read: bool,
}

impl Responder {
    /// Creates a responder. `first`: PSN of the first request that is seen. `has_unseen_start`: others may have arrived before.
    pub(crate) fn new(first: Psn, has_unseen_start: bool) -> Self {
        Self {
            has_unseen_start,
            first: Some(first),
            acked: Some(first),
            has_missed_read: true,
            ..Self::default()
        }
    }

    /// Requests may have arrived that were not seen.
    pub(crate) fn expect_unseen(&mut self) {
        self.has_unseen_start = true;
    }

    /// Forgets requests that were answered, except the last ones.
    pub(crate) fn trim(&mut self) {
        if let Some(acked) = self.acked {
            self.log.trim(acked);
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.log.heap()
    }

    /// Returns true if a PSN is before that of the first request that was seen, and not distant.
    pub(crate) fn is_before(&self, psn: Psn) -> bool {
        self.first.is_some_and(|first| {
            let behind = psn.diff(first);
            behind < 0 && behind.unsigned_abs() <= FAR
        })
    }

    /// True if a request may have arrived before the first one that was seen: the first ones may be repetitions.
    fn may_have_come_before(&self, psn: Psn) -> bool {
        let is_near = |first| psn.diff(first).unsigned_abs() <= FAR;
        self.has_unseen_start && self.first.is_some_and(is_near)
    }

    /// Number of arrivals of a request; maximal if it is not known.
    fn arrivals(&self, psn: Psn) -> u32 {
        match self.log.find(psn) {
            Some(request) if !self.may_have_come_before(psn) => request.arrivals,
            _ => u32::MAX,
        }
    }

    /// PSN of the next request that can be executed.
    fn next(&self) -> Option<Psn> {
        self.log.next().or(self.acked)
    }

    /// A request arrives.
    pub(crate) fn received(&mut self, header: &RoceHeader, payload: usize, mtu: Option<u32>) {
        let psn = header.bth.psn;
        let Some(next) = self.next() else {
            return;
        };
        let ahead = psn.diff(next);
        if self.nak.is_some_and(|nak| psn.diff(nak) <= 0) {
            self.nak = None;
        }
        if self.late_nak.is_some_and(|nak| psn.diff(nak) <= 0) {
            self.late_nak = None;
        }
        if ahead > 0 {
            return;
        }
        let Some(request) = Request::of_packet(header, payload, mtu) else {
            return;
        };
        if ahead < 0 {
            // Another request under the same PSN: the first one was forged, or the responder has refused it.
            if self
                .log
                .find(psn)
                .is_some_and(|known| known.opcode != request.opcode)
            {
                self.log.cut(psn);
                self.log.push(request);
                self.refusal.take_if(|refusal| refusal.psn.diff(psn) >= 0);
            } else if let Some(known) = self.log.find_mut(psn) {
                known.arrivals = known.arrivals.saturating_add(1);
            }
            return;
        }
        self.log.push(request);
    }

    /// A response leaves.
    pub(crate) fn sent(
        &mut self,
        seen: Seen,
        header: &RoceHeader,
        payload: usize,
        report: &mut dyn FnMut(Report),
    ) {
        let psn = header.bth.psn;
        let (Some(next), Some(acked)) = (self.next(), self.acked) else {
            return;
        };
        if header.bth.opcode.info().kind == OpKind::Ready {
            // The RNR NAK before it may not have been seen.
            if !seen.may_have_gaps && (self.refused.is_some() || !self.has_unseen_start) {
                self.ready(psn, acked, report);
            }
            return;
        }
        let syndrome = header.aeth.map_or(Syndrome::ACK, |aeth| aeth.syndrome);
        if matches!(syndrome, Syndrome::RnrNak { .. }) {
            self.refused = Some(psn);
        }
        let is_gap_nak = syndrome == Syndrome::Nak(NakCode::PsnSequenceError);
        // A sequence NAK has the expected PSN, which has not arrived.
        let beyond = if is_gap_nak { next.next() } else { next };
        if psn.diff(beyond) >= 0 {
            if self.has_unseen_start {
                // The request was repeated, or has arrived, before the first one that was seen.
                *self = Self {
                    refused: self.refused,
                    ..Self::new(first_not_answered(header), true)
                };
                return;
            }
            let last = next.prev().get();
            report((
                Rule::ResponsePsn,
                format!("no such request has arrived; the last one is PSN {last}"),
            ));
            return;
        }
        self.check_refusal(seen, psn, acked, syndrome, report);
        match header.bth.opcode.info().kind {
            OpKind::ReadResponse => {
                self.has_missed_read &= !seen.is_exact;
                self.check_waiting_before(seen, psn, acked, report);
                self.read_response(seen, header, payload, report);
            }
            OpKind::AtomicAck => {
                self.check_waiting_before(seen, psn, acked, report);
                self.atomic_response(header, report);
            }
            _ => match syndrome {
                Syndrome::Ack { .. } => self.acknowledgement(seen, psn, acked, report),
                Syndrome::Nak(NakCode::PsnSequenceError) => self.sequence_nak(psn, acked, report),
                // A repeated READ may be refused: its memory may be absent now.
                _ if psn.diff(acked) < 0 && !self.has_own_answer(psn) => {
                    let before = acked.get();
                    report((
                        Rule::AckOrder,
                        format!(
                            "it refuses a request that was answered; the first request without an answer has PSN {before}"
                        ),
                    ));
                }
                _ => {}
            },
        }
        if let Some(aeth) = &header.aeth {
            // A NAK does not acknowledge the request that it refuses.
            self.check_msn(header, aeth, psn.diff(acked) >= 0, report);
        }
    }

    /// A refused request and later ones must not be acknowledged before the request has arrived again. Copies of it may have been under
    /// way when it was refused, so each NAK uses up one arrival.
    fn check_refusal(
        &mut self,
        seen: Seen,
        psn: Psn,
        acked: Psn,
        syndrome: Syndrome,
        report: &mut dyn FnMut(Report),
    ) {
        let ends = match syndrome {
            Syndrome::RnrNak { .. } => false,
            Syndrome::Nak(code) if code != NakCode::PsnSequenceError => true,
            Syndrome::Ack { .. } => {
                let Some(refusal) = self.refusal.filter(|refusal| psn.diff(refusal.psn) >= 0)
                else {
                    return;
                };
                self.refusal = None;
                let has_come_again = self.arrivals(refusal.psn) > refusal.count;
                // On a link, the next packets may be of another connection of the same queue pairs.
                if seen.may_have_gaps || has_come_again && !(refusal.ends && seen.is_exact) {
                    return;
                }
                let refused = refusal.psn.get();
                let how = match (refusal.ends, has_come_again) {
                    (true, _) => "the connection has ended with a NAK",
                    (false, _) => "an RNR NAK has refused it, and it has not arrived again since",
                };
                report((
                    Rule::AckAfterNak,
                    format!("it acknowledges PSN {refused}: {how}"),
                ));
                return;
            }
            Syndrome::Nak(_) | Syndrome::Reserved(_) => return,
        };
        // A repeated READ may be refused after its first responses were accepted.
        if psn.diff(acked) < 0 {
            return;
        }
        let before = self.refusal.filter(|refusal| refusal.psn == psn);
        let count = before.map_or(0, |refusal| refusal.count).saturating_add(1);
        let count = count.min(self.arrivals(psn));
        self.refusal = Some(Refusal { psn, count, ends });
    }

    fn ready(&self, psn: Psn, acked: Psn, report: &mut dyn FnMut(Report)) {
        if self.refused != Some(psn) || psn.diff(acked) < 0 {
            let what = match self.refused {
                Some(refused) => format!("the last RNR NAK was for PSN {}", refused.get()),
                None => "no RNR NAK was sent".to_owned(),
            };
            report((
                Rule::Ready,
                format!("the requester does not wait for an RNR timer: {what}"),
            ));
        }
    }

    /// Returns true if the request of this PSN has, or may have, an answer of its own, not only an acknowledgement.
    fn has_own_answer(&self, psn: Psn) -> bool {
        match self.log.find(psn) {
            Some(request) => request.opcode.info().kind.is_answered(),
            None => self.log.has_forgotten(psn),
        }
    }

    fn acknowledgement(
        &mut self,
        seen: Seen,
        psn: Psn,
        acked: Psn,
        report: &mut dyn FnMut(Report),
    ) {
        // The PSN before the first one answers a repetition.
        if psn.next().diff(acked) < 0 {
            let before = acked.prev().get();
            report((
                Rule::AckOrder,
                format!("PSN {before} was acknowledged before"),
            ));
            return;
        }
        self.check_waiting(seen, psn.next(), acked, report);
        self.acked = Some(psn.next());
        // Responses to unseen earlier READs were sent before this response.
        self.has_missed_read &= self.has_unseen_start || seen.may_have_gaps;
    }

    /// Earlier requests that have an answer of their own are answered before a request is acknowledged.
    fn check_waiting(&self, seen: Seen, until: Psn, acked: Psn, report: &mut dyn FnMut(Report)) {
        let is_before = |request: &&Request| request.psn.diff(until) < 0;
        let mut requests = self.log.from(acked).take_while(is_before);
        if !seen.may_have_gaps
            && let Some(waiting) = requests.find(|request| request.waits())
        {
            let (opcode, missing) = (waiting.opcode, waiting.psn.get());
            report((
                Rule::ResponseOrder,
                format!("the {opcode:?} of PSN {missing} has no answer yet"),
            ));
        }
    }

    /// The same, for a response with data.
    fn check_waiting_before(
        &self,
        seen: Seen,
        psn: Psn,
        acked: Psn,
        report: &mut dyn FnMut(Report),
    ) {
        if let Some(request) = self.log.find(psn)
            && psn.diff(acked) >= 0
        {
            self.check_waiting(seen, request.psn, acked, report);
        }
    }

    fn sequence_nak(&mut self, psn: Psn, acked: Psn, report: &mut dyn FnMut(Report)) {
        if psn.diff(acked) < 0 {
            let expected = acked.get();
            report((
                Rule::SequenceNak,
                format!("the PSN was acknowledged; expected is {expected} or a later one"),
            ));
        } else if self.nak == Some(psn) {
            report((
                Rule::SequenceNak,
                "a second NAK for the same gap, without an arrival in between".to_owned(),
            ));
        }
        // The NAK may have waited while the request arrived. After a page fault the responder requests the packet again.
        let has_arrived = self.next().is_some_and(|next| psn.diff(next) < 0);
        let is_late = has_arrived && self.late_nak.replace(psn) != Some(psn);
        self.nak = (!is_late).then_some(psn);
    }

    fn read_response(
        &mut self,
        seen: Seen,
        header: &RoceHeader,
        payload: usize,
        report: &mut dyn FnMut(Report),
    ) {
        let psn = header.bth.psn;
        let bytes = u32::try_from(payload).unwrap_or(u32::MAX);
        let position = header.bth.opcode.info().position;
        let mut wrong = |what: String| report((Rule::ReadResponse, what));
        if matches!(position, Position::First | Position::Only) {
            self.reading = None;
            self.has_missed_read = false;
            let Some(request) = self
                .log
                .find(psn)
                .filter(|request| is_answered_by_read(request))
            else {
                match self.log.has_forgotten(psn) {
                    true => self.has_missed_read = true,
                    false => {
                        wrong("the request of this PSN has no READ response".to_owned());
                    }
                }
                return;
            };
            // The responses to a repeated READ may begin in its middle; then the number of bytes follows from the packets, which are all
            // full except the last.
            let skipped = u32::try_from(psn.diff(request.psn)).unwrap_or(0);
            let is_full = position == Position::First;
            if skipped > 0 && request.arrivals < 2 && !self.has_unseen_start && !seen.may_have_gaps
            {
                wrong(format!(
                    "the response begins in the middle, and PSN {} was not repeated",
                    request.psn.get()
                ));
            }
            let left = match (skipped, is_full) {
                (0, _) => request_bytes(request),
                (_, true) => request.bytes.saturating_sub(skipped.saturating_mul(bytes)),
                (_, false) => bytes,
            };
            self.reading = Some(Reading {
                next: psn,
                end: request.end(),
                left,
            });
        }
        let Some(reading) = &mut self.reading else {
            if self.has_missed_read || seen.may_have_gaps {
                return;
            }
            wrong("it continues a response, and none has begun".to_owned());
            return;
        };
        if psn != reading.next {
            if !seen.may_have_gaps {
                let expected = reading.next.get();
                wrong(format!("the next response has PSN {expected}"));
            }
            self.reading = None;
            self.has_missed_read = true;
            return;
        }
        reading.next = psn.next();
        let is_end = matches!(position, Position::Last | Position::Only);
        let is_last = reading.next == reading.end;
        let left = reading.left.checked_sub(bytes);
        reading.left = left.unwrap_or(0);
        if is_end != is_last || left.is_none() || is_end && left != Some(0) {
            let rest = reading.end.diff(psn).saturating_sub(1);
            let left = left.map_or_else(|| "too many".to_owned(), |left| left.to_string());
            wrong(format!("{rest} responses and {left} bytes remain after it"));
        }
        self.answered(psn);
    }

    /// A response to this PSN was sent, which acknowledges all earlier requests.
    fn answered(&mut self, psn: Psn) {
        if let Some(request) = self.log.find_mut(psn)
            && Some(psn.diff(request.psn)) == i32::try_from(request.answer.responses).ok()
        {
            request.answer.responses = request.answer.responses.saturating_add(1);
        }
        if self.acked.is_some_and(|acked| psn.next().diff(acked) > 0) {
            self.acked = Some(psn.next());
        }
    }

    fn atomic_response(&mut self, header: &RoceHeader, report: &mut dyn FnMut(Report)) {
        let psn = header.bth.psn;
        let value = header.atomic_ack.map(|ack| ack.original);
        let request = self.log.find_mut(psn);
        let Some(request) = request.filter(|request| request.opcode.info().kind.is_atomic()) else {
            if !self.log.has_forgotten(psn) {
                report((
                    Rule::ResponsePsn,
                    "the request of this PSN is not an atomic".to_owned(),
                ));
            }
            return;
        };
        match request.answer.value {
            Some(first) if Some(first) != value => report((
                Rule::AtomicReplay,
                format!("the value is {value:x?}, in the first response it was {first:#x}"),
            )),
            _ => request.answer.value = value,
        }
        self.answered(psn);
    }

    /// Compares the MSN of a response with the number of completed messages.
    fn check_msn(
        &mut self,
        header: &RoceHeader,
        aeth: &Aeth,
        is_new: bool,
        report: &mut dyn FnMut(Report),
    ) {
        let psn = header.bth.psn;
        let is_ack = header.bth.opcode.info().kind == OpKind::Ack;
        let completed = match aeth.syndrome {
            Syndrome::Ack { .. } if is_ack => self.log.ended_at(psn),
            // A NAK refuses a message that is not completed, and the first of several responses may belong to one.
            _ => {
                let request = self.log.find(psn).map_or(psn, |request| request.psn);
                self.log.ended_at(request.prev())
            }
        };
        let Some(completed) = completed.filter(|_| !self.log.is_partial) else {
            return;
        };
        // The refused request and later ones were not executed, unless a READ is repeated.
        let is_nak = matches!(aeth.syndrome, Syndrome::RnrNak { .. } | Syndrome::Nak(_));
        let is_first_nak = is_nak && is_new && self.late_nak != Some(psn);
        // Responses with data may have waited while later requests were executed.
        let is_exact = is_ack && matches!(aeth.syndrome, Syndrome::Ack { .. });
        let Some(base) = self.base else {
            self.base = is_exact.then(|| aeth.msn.wrapping_sub(completed) & Psn::MAX);
            return;
        };
        let least = base.wrapping_add(completed) & Psn::MAX;
        let most = base.wrapping_add(self.log.ended()) & Psn::MAX;
        let most = if is_exact || is_first_nak {
            least
        } else {
            most
        };
        let msn = Psn::new(aeth.msn);
        if msn.diff(Psn::new(least)) < 0 || msn.diff(Psn::new(most)) > 0 {
            report((
                Rule::Msn,
                format!("the MSN is {}, expected is {least} to {most}", aeth.msn),
            ));
        }
    }
}

/// True for requests that are answered by a READ response.
fn is_answered_by_read(request: &Request) -> bool {
    let kind = request.opcode.info().kind;
    kind.is_answered() && !kind.is_atomic()
}

/// Bytes of payload in all responses to a request.
fn request_bytes(request: &Request) -> u32 {
    match request.opcode.info().kind {
        OpKind::ReadRequest => request.bytes,
        // FLUSH and ATOMIC WRITE are answered by an empty READ response (IBTA A19.4).
        _ => 0,
    }
}
