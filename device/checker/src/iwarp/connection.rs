//! A connection: the rules of TCP, and what both directions have to do with each other.

use faultline_wire::TcpFlags as F;
use faultline_wire::mpa::MpaFlags;
use faultline_wire::rdmap::ReadRequest;

use super::fpdus::{Fpdus, Whole};
use super::messages::{Event, header_len};
use super::segment::{End, Octets, Segment};
use super::setup::{self, Setup};
use super::side::{REQUEST_LIMIT, SentFpdu, Side, Stream, Syn};
use crate::flow::Sender;
use crate::packet::Report;
use crate::rule::Rule;

/// How much is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It may be one of iWARP: its first data tells.
    Candidate,
    Iwarp,
    /// It is not one of iWARP.
    Foreign,
    /// Its beginning was not seen, or several senders have sent with its addresses and ports.
    Unjudged,
}

/// Callback for violated rules.
type Reports<'r> = &'r mut dyn FnMut(Report);

/// Both directions. The end with index 0 has opened the connection.
#[derive(Debug)]
pub(crate) struct Connection {
    ends: [End; 2],
    sides: [Side; 2],
    pub kind: Kind,
    /// The note that a part is not judged was made.
    is_noted: bool,
}

impl Connection {
    /// A connection that the sender of a SYN opens.
    pub(crate) fn new(ends: [End; 2], kind: Kind) -> Self {
        Self {
            ends,
            sides: [Side::default(), Side::default()],
            kind,
            is_noted: false,
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let sides = self.sides.iter().map(Side::heap);
        sides.fold(0, usize::saturating_add)
    }

    /// The index of the end that has sent a segment.
    fn end_of(&self, ends: [End; 2]) -> usize {
        usize::from(self.ends != ends)
    }

    /// True if a SYN is not that of this connection: another one begins.
    pub(crate) fn is_other(&self, segment: &Segment<'_>) -> bool {
        let side = self.sides.get(self.end_of(segment.ends));
        let syn = side.and_then(|side| side.syn);
        syn.is_none_or(|syn| syn.isn != segment.tcp.seq)
    }

    /// True if a segment is the first one of the end that has not opened the connection.
    pub(crate) fn is_answer(&self, segment: &Segment<'_>) -> bool {
        let side = self.sides.get(self.end_of(segment.ends));
        self.end_of(segment.ends) > 0 && side.is_some_and(|side| side.syn.is_none())
    }

    /// True if another sender has sent from the first of these ends to the second one.
    pub(crate) fn is_of_other(&self, ends: [End; 2], sender: Sender) -> bool {
        let known = self.sides.get(self.end_of(ends)).map(|side| side.sender);
        let known = known.filter(|known| *known != Sender::Unknown);
        sender != Sender::Unknown && known.is_some_and(|known| known != sender)
    }

    fn pair(&mut self, from: usize) -> (&mut Side, &mut Side) {
        let [active, passive] = &mut self.sides;
        match from {
            0 => (active, passive),
            _ => (passive, active),
        }
    }

    /// A segment has arrived at its receiver.
    pub(crate) fn arrived(&mut self, segment: &Segment<'_>) {
        let from = self.end_of(segment.ends);
        if segment.is_intact != Some(false) && !segment.tcp.flags.contains(F::RST) {
            let (own, peer) = self.pair(from);
            peer.announced(own, &segment.tcp);
        }
    }

    /// Judges a segment. `is_exact`: all segments of its sender are seen.
    pub(crate) fn sent(
        &mut self,
        segment: &Segment<'_>,
        (sender, is_exact): (Sender, bool),
        report: Reports<'_>,
    ) {
        let from = self.end_of(segment.ends);
        let flags = segment.tcp.flags;
        let (own, peer) = self.pair(from);
        if sender != Sender::Unknown {
            own.sender = sender;
        }
        own.is_exact = is_exact;
        if flags.contains(F::SYN) {
            let is_other = own.syn.is_some_and(|syn| syn.isn != segment.tcp.seq);
            // The peer discards a SYN with another number in a connection that exists (RFC 9293 section 3.10.7.4).
            if is_other && (peer.acked > 0 || own.next > 1) {
                return;
            }
            own.syn = Some(Syn::of(&segment.tcp));
            own.next = own.next.max(1);
            // An earlier refusal has not arrived: the end opens.
            own.is_reset = false;
            if segment.len > 0 {
                self.lose(from, "a SYN has data", report);
            }
            return;
        }
        // It was changed on its way, and its receiver discards it; or an adapter adds the checksum later. If the receiver takes its data,
        // an acknowledgment tells that it is missing here.
        if !is_exact && segment.is_intact == Some(false) {
            return;
        }
        if flags.contains(F::RST) {
            // An RST out of the window is discarded, as is one of an end that has not begun (RFC 9293 section 3.10.7).
            let position = own
                .syn
                .and_then(|syn| syn.position(own.next, segment.tcp.seq));
            let is_in_window = position.is_some_and(|at| (peer.acked..=own.next).contains(&at));
            // One of an unknown sender does not end what a known one sends.
            own.is_reset |= is_in_window && sender == own.sender;
            return;
        }
        let (Some(syn), Some(_)) = (own.syn, peer.syn) else {
            self.give_up("the handshake was not seen", report);
            return;
        };
        if own.is_reset {
            report((Rule::TcpAfterEnd, "it follows a reset".to_owned()));
            return;
        }
        let Some(position) = syn.position(own.next, segment.tcp.seq) else {
            if is_exact {
                let what = "the sequence number is before that of the SYN".to_owned();
                report((Rule::TcpSequence, what));
            }
            return;
        };
        self.judge_header(from, segment, report);
        self.judge_ack(from, segment, report);
        self.judge_data(from, position, segment, report);
    }

    /// Nothing of the connection is judged any more.
    fn give_up(&mut self, why: &str, report: Reports<'_>) {
        let was = std::mem::replace(&mut self.kind, Kind::Unjudged);
        self.sides.iter_mut().for_each(Side::lose);
        match was {
            Kind::Candidate => self.kind = Kind::Foreign,
            _ => self.note(why, report),
        }
    }

    /// The data of an end is not judged any more.
    fn lose(&mut self, from: usize, why: &str, report: Reports<'_>) {
        if self.kind == Kind::Candidate {
            self.kind = Kind::Foreign;
            return;
        }
        let (own, peer) = self.pair(from);
        own.lose();
        // Their responses are not seen.
        peer.reads.clear();
        peer.atomics.clear();
        self.note(why, report);
    }

    fn note(&mut self, why: &str, report: Reports<'_>) {
        if !std::mem::replace(&mut self.is_noted, true) {
            let what = format!("what follows in the connection is not judged: {why}");
            report((Rule::UnjudgedStream, what));
        }
    }

    /// Fields of the header that do not depend on other segments but the SYNs.
    fn judge_header(&mut self, from: usize, segment: &Segment<'_>, report: Reports<'_>) {
        let (own, peer) = self.pair(from);
        let (Some(syn), Some(of_peer)) = (own.syn, peer.syn) else {
            return;
        };
        let options = &segment.tcp.options;
        let mut wrong = |what: &str| report((Rule::TcpOption, what.to_owned()));
        if options.mss.is_some() || options.window_scale.is_some() || options.sack_permitted {
            wrong("an option of a SYN is in another segment");
        }
        match (syn.timestamps && of_peer.timestamps, options.timestamps) {
            (true, None) => wrong("timestamps are missing, which both ends have offered"),
            (false, Some(_)) => wrong("it has timestamps, which not both ends have offered"),
            _ => {}
        }
        let may_have_sack = syn.sack && of_peer.sack;
        if !may_have_sack && !options.sack.as_slice().is_empty() {
            wrong("it has a selective acknowledgment, which not both ends have permitted");
        }
        // Outside of adapters, segments may be larger.
        if !own.is_exact {
            return;
        }
        if segment.is_intact == Some(false) {
            let sum = segment.tcp.checksum;
            report((
                Rule::TcpSegment,
                format!("the checksum {sum:#06x} is wrong"),
            ));
        }
        let len = segment.len.saturating_add(options.len());
        let mss = usize::from(peer.mss());
        if segment.len > 0 && len > mss {
            let what = format!("{len} octets of options and data are more than {mss}");
            report((Rule::TcpMss, what));
        }
    }

    fn judge_ack(&mut self, from: usize, segment: &Segment<'_>, report: Reports<'_>) {
        let (own, peer) = self.pair(from);
        let Some(syn) = peer.syn else {
            return;
        };
        if !segment.tcp.flags.contains(F::ACK) {
            let what = "it has no acknowledgment".to_owned();
            report((Rule::TcpAck, what));
            return;
        }
        // No acknowledgment may pass an end whose segments are all seen.
        let is_exact = peer.is_exact;
        let ack = syn.position(peer.next, segment.tcp.ack).unwrap_or(0);
        let (sent, acked) = (peer.next, own.acked);
        if ack < acked && own.is_exact {
            let what = format!("it acknowledges {ack} octets, after {acked}");
            report((Rule::TcpAck, what));
        }
        let blocks = segment.tcp.options.sack.as_slice().iter();
        let blocks = blocks.map(|(left, right)| {
            let at = |seq| syn.position(sent, seq).unwrap_or(0);
            (at(*left), at(*right))
        });
        for (left, right) in blocks {
            if is_exact && (left >= right || right > sent) {
                let what =
                    format!("it has a block of {left} to {right}, but {sent} octets were sent");
                report((Rule::TcpAck, what));
            }
        }
        if ack <= sent {
            own.acked = acked.max(ack);
            peer.forget_until(ack);
        } else if is_exact {
            let what = format!("it acknowledges {ack} octets, but {sent} were sent");
            report((Rule::TcpAck, what));
        } else {
            own.acked = ack;
            peer.next = ack;
            self.lose(1usize.saturating_sub(from), "segments are missing", report);
        }
    }

    fn judge_data(
        &mut self,
        from: usize,
        position: u64,
        segment: &Segment<'_>,
        report: Reports<'_>,
    ) {
        let (own, _) = self.pair(from);
        let (next, edge, is_exact) = (own.next, own.edge, own.is_exact);
        let end = position.saturating_add(segment.len as u64);
        if position > next {
            if is_exact {
                let what = format!("it begins at {position}, but {next} octets were sent");
                report((Rule::TcpSequence, what));
                own.next = end;
                own.lose();
            } else if own.is_followed() && !own.keep(position, segment) {
                own.next = end;
                self.lose(from, "segments are missing", report);
            }
            return;
        }
        let is_fin = segment.tcp.flags.contains(F::FIN);
        // A keep-alive may have one octet before the next one, in the place of the FIN, too (RFC 9293 section 3.8.4).
        let is_keep_alive = segment.len == 1 && position.saturating_add(1) == next;
        if let Some(fin) = own.fin
            && (segment.len > 0 && end > fin && !is_keep_alive || is_fin && end != fin)
        {
            let what = format!("it has octets up to {end}, but a FIN was sent at {fin}");
            report((Rule::TcpAfterEnd, what));
            return;
        }
        // A window probe has one octet (RFC 9293 section 3.8.6.1).
        if is_exact && edge > 0 && end > edge && segment.len > 1 {
            let what = format!("it ends at {end}, the window at {edge}");
            report((Rule::TcpWindow, what));
        }
        if position < next && end > position {
            self.judge_again(from, position, segment, report);
        }
        let skip = usize::try_from(next.saturating_sub(position)).unwrap_or(usize::MAX);
        self.feed(from, segment.rest(skip), end.max(next), report);
        self.feed_kept(from, report);
        if is_fin {
            self.pair(from).0.end_at(end);
        }
    }

    /// Data that was kept may follow now.
    fn feed_kept(&mut self, from: usize, report: Reports<'_>) {
        while let Some((position, early)) = self.pair(from).0.take_kept() {
            let next = self.pair(from).0.next;
            let end = position.saturating_add(early.len as u64);
            let skip = usize::try_from(next.saturating_sub(position)).unwrap_or(usize::MAX);
            self.feed(from, early.rest(skip), end.max(next), report);
            if early.is_fin {
                self.pair(from).0.end_at(end);
            }
        }
    }

    /// A segment repeats octets. If an FPDU begins with it, that is the one that was sent.
    fn judge_again(
        &mut self,
        from: usize,
        position: u64,
        segment: &Segment<'_>,
        report: Reports<'_>,
    ) {
        let (own, _) = self.pair(from);
        let (Some(before), Stream::Fpdus(fpdus)) = (own.sent_at(position), &own.stream) else {
            return;
        };
        let (mut fpdus, mut octets) = (fpdus.begin(), segment.rest(0));
        let end = position.saturating_add(octets.len as u64);
        let Ok(Some(whole)) = fpdus.take(&mut octets, end) else {
            return;
        };
        // All of its octets are known.
        let Some(is_intact) = whole.crc else {
            return;
        };
        judge_markers(&whole, report);
        if whole.digest() != before.digest {
            let what = "an FPDU is sent again with other headers".to_owned();
            report((Rule::TcpRepetition, what));
        } else if !is_intact && self.has_crc() {
            let what = "an FPDU is sent again with a wrong CRC".to_owned();
            report((Rule::MpaCrc, what));
        }
    }

    /// Takes new octets of an end, up to position `end`.
    fn feed(&mut self, from: usize, mut octets: Octets<'_>, end: u64, report: Reports<'_>) {
        let (own, _) = self.pair(from);
        own.next = end;
        while octets.len > 0 && matches!(self.kind, Kind::Candidate | Kind::Iwarp) {
            let (own, _) = self.pair(from);
            match &mut own.stream {
                Stream::Lost => return,
                Stream::Rejected => {
                    let what = "data follows a connection that was rejected".to_owned();
                    report((Rule::MpaOrder, what));
                    return;
                }
                Stream::Setup(_) => self.feed_setup(from, &mut octets, end, report),
                Stream::Fpdus(_) => {
                    if !self.feed_fpdu(from, &mut octets, end, report) {
                        return;
                    }
                }
            }
        }
    }

    /// Takes octets of a setup frame from `octets`, which end at position `end`.
    fn feed_setup(&mut self, from: usize, octets: &mut Octets<'_>, end: u64, report: Reports<'_>) {
        let request = self.sides.first().and_then(|side| side.setup);
        let is_candidate = self.kind == Kind::Candidate;
        let (own, _) = self.pair(from);
        let Stream::Setup(seen) = &mut own.stream else {
            return;
        };
        let part = octets.take(setup::missing(seen));
        if !part.is_whole() {
            self.lose(from, "a setup frame is cut", report);
            return;
        }
        seen.extend_from_slice(part.known);
        let role = Side::role(from);
        if is_candidate {
            if from > 0 || !setup::may_be(seen, role) {
                self.kind = Kind::Foreign;
                return;
            }
            if seen.len() >= setup::KEY {
                self.kind = Kind::Iwarp;
            }
        } else if from > 0 && request.is_none() && seen.len() == part.len {
            let what = "the passive end sends before the MPA request".to_owned();
            report((Rule::MpaOrder, what));
        }
        let (own, _) = self.pair(from);
        let Stream::Setup(seen) = &own.stream else {
            return;
        };
        match setup::read(seen, role, request.as_ref(), report) {
            Ok(None) => {}
            Ok(Some(frame)) => {
                let first = end.saturating_sub(octets.len as u64);
                self.begin_fpdus(from, frame, first, report);
            }
            Err(()) => own.lose(),
        }
    }

    /// A setup frame has ended: FPDUs follow at position `first`.
    fn begin_fpdus(&mut self, from: usize, frame: Setup, first: u64, report: Reports<'_>) {
        let (own, peer) = self.pair(from);
        own.setup = Some(frame);
        // An end inserts markers if its peer demands them.
        let has_markers = peer.setup.is_some_and(|setup| setup.has(MpaFlags::MARKERS));
        own.stream = Stream::Fpdus(Fpdus::new(first, has_markers));
        if from > 0 && frame.has(MpaFlags::REJECT) {
            own.stream = Stream::Rejected;
            peer.stream = Stream::Rejected;
        }
        let is_late = match &mut peer.stream {
            Stream::Fpdus(fpdus) if frame.has(MpaFlags::MARKERS) => !fpdus.expect_markers(),
            _ => false,
        };
        if is_late {
            let other = 1usize.saturating_sub(from);
            let why = "FPDUs are before the setup frame that demands markers";
            self.lose(other, why, report);
        }
    }

    /// True if FPDUs have CRCs: one of the ends wants them (RFC 5044 section 7.1.1).
    fn has_crc(&self) -> bool {
        let wants = |side: &Side| side.setup.is_some_and(|setup| setup.has(MpaFlags::CRC));
        self.sides.iter().any(wants)
    }

    /// True if the first FPDU of the active end may be empty: both ends permit it (RFC 6581 section 4).
    fn may_begin_empty(&self) -> bool {
        let enhanced = |side: &Side| side.setup.and_then(|setup| setup.enhanced);
        self.sides
            .iter()
            .all(|side| enhanced(side).is_some_and(|setup| setup.peer_to_peer && setup.rtr_send))
    }

    /// Takes octets up to the end of an FPDU. Returns false if no more are judged.
    fn feed_fpdu(
        &mut self,
        from: usize,
        octets: &mut Octets<'_>,
        end: u64,
        report: Reports<'_>,
    ) -> bool {
        let has_crc = self.has_crc();
        let may_be_empty = from == 0 && self.may_begin_empty();
        let may_send = match self.sides.each_ref() {
            // The reply of the passive end, then the first FPDU of the active one (RFC 5044 section 7.1.2).
            [_, passive] if from == 0 => passive.setup.is_some() || !passive.is_followed(),
            [active, _] => active.messages.fpdus > 0 || !active.is_followed(),
        };
        let (own, peer) = self.pair(from);
        let emss = usize::from(own.emss(peer));
        let Stream::Fpdus(fpdus) = &mut own.stream else {
            return false;
        };
        let whole = match fpdus.take(octets, end) {
            Ok(None) => return true,
            Ok(Some(whole)) => whole,
            Err(_) => {
                self.lose(from, "the length of an FPDU is cut", report);
                return false;
            }
        };
        if !may_send && own.is_exact && peer.is_exact {
            let what = "an FPDU is sent before the first one of the active end".to_owned();
            report((Rule::MpaOrder, what));
        }
        judge_fpdu(&whole, emss, report);
        if has_crc && whole.crc == Some(false) {
            report((Rule::MpaCrc, "the CRC is wrong".to_owned()));
            own.lose();
            peer.reads.clear();
            peer.atomics.clear();
            return false;
        }
        let needed = header_len(whole.ulpdu).min(whole.ulpdu_len.into());
        if whole.ulpdu.len() < needed {
            self.lose(from, "headers are cut", report);
            return false;
        }
        let sent = SentFpdu {
            start: whole.start,
            digest: whole.digest(),
        };
        let event = own
            .messages
            .judge(whole.ulpdu, whole.ulpdu_len, may_be_empty, report);
        own.remember(sent);
        if let Some(event) = event {
            self.judge_event(from, event, report);
        }
        true
    }

    fn judge_event(&mut self, from: usize, event: Event, report: Reports<'_>) {
        let (own, peer) = self.pair(from);
        match event {
            Event::ReadRequest(request) => own.reads.push_back(request),
            Event::AtomicRequest(id) => own.atomics.push_back(id),
            Event::ReadResponse {
                stag,
                offset,
                len,
                last,
            } => {
                if peer.is_followed() && !peer.is_unsure {
                    let part = (stag, offset, len, last);
                    judge_read_response(peer, part, report);
                }
                return;
            }
            Event::AtomicResponse(id) => {
                if !peer.is_followed() || peer.is_unsure {
                    return;
                }
                let expected = peer.atomics.pop_front();
                if expected != Some(id) {
                    let what =
                        format!("an atomic response has number {id}, expected is {expected:?}");
                    report((Rule::RdmapResponse, what));
                }
                return;
            }
        }
        let count = own.outstanding();
        if count > REQUEST_LIMIT {
            own.stop_requests();
            return;
        }
        let limit = peer.setup.and_then(|setup| setup.ird());
        if let Some(limit) = limit.map(usize::from)
            && peer.is_followed()
            && count > limit
        {
            let what =
                format!("{count} READs and atomics are outstanding, the peer serves {limit}");
            report((Rule::RdmapReadLimit, what));
        }
    }
}

/// The rules of MPA for one FPDU.
fn judge_fpdu(whole: &Whole<'_>, emss: usize, report: Reports<'_>) {
    // The MULPDU is the EMSS without framing, rounded down (RFC 5044 section 4.5).
    if whole.len > emss & !3 {
        let (len, emss) = (whole.len, emss);
        let what = format!("an FPDU of {len} octets does not fit into a segment of {emss}");
        report((Rule::MpaLength, what));
    }
    judge_markers(whole, report);
    if let Some(pad) = whole.pad
        && pad.iter().any(|octet| *octet != 0)
    {
        report((Rule::MpaLength, format!("the pad octets are {pad:02x?}")));
    }
}

fn judge_markers(whole: &Whole<'_>, report: Reports<'_>) {
    if let Some((found, distance)) = whole.wrong_marker {
        let what = format!("a marker is {found:02x?}, its distance to the FPDU is {distance}");
        report((Rule::MpaMarker, what));
    }
}

fn judge_read_response(
    requester: &mut Side,
    (stag, offset, len, last): (u32, u64, u32, bool),
    report: Reports<'_>,
) {
    let mut wrong = |what: String| report((Rule::RdmapResponse, what));
    let Some(&ReadRequest {
        sink,
        len: requested,
        ..
    }) = requester.reads.front()
    else {
        wrong("a READ response has no request".to_owned());
        return;
    };
    let done = requester.read_done;
    let expected = (sink.0, sink.1.wrapping_add(done.into()));
    if (stag, offset) != expected {
        let (right, at) = expected;
        wrong(format!(
            "a READ response is for STag {stag:#x} at {offset:#x}, expected is {right:#x} at {at:#x}"
        ));
    }
    let done = done.saturating_add(len);
    if last && done != requested || done > requested {
        wrong(format!(
            "a READ response has {done} octets, the request {requested}"
        ));
    }
    requester.read_done = done;
    if last {
        requester.read_done = 0;
        requester.reads.pop_front();
    }
}
