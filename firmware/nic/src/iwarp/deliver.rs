//! The stream that arrives: what the connection delivers in order becomes FPDUs, and octets that cannot be used yet are kept.

use faultline_abi::admin::Counter;
use faultline_tcp::{Data, Receiver, Source, Verdict};
use faultline_wire::mpa::{Crc32c, Fpdu, MpaRole, MpaSetup};
use faultline_wire::rdmap::TerminateCode;

use super::kept::{Kept, KeptRoom, Piece};
use super::receives::Receives;
use super::refusal::{End, Refused, Stop};
use super::send::Sender;
use super::setup::{self, Offer};
use super::work::SendQueue;
use crate::context::Context;
use crate::core::Core;
use crate::diagnostic::Diagnostic;
use crate::dma::Dma;
use crate::fault::{Need, RaisedFault, Token, WaitKind};
use crate::number::len16;
use crate::payload::Payload;
use crate::qp::endpoint::Endpoint;
use crate::qp::fault_policy::FaultPolicy;
use crate::work;

/// What a stream expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The reply to the setup request.
    Reply,
    /// FPDUs.
    Fpdus,
    /// Nothing: the stream ends, and octets are dropped.
    Ended,
}

/// A message of SEND that has begun, and the next message of each queue.
#[derive(Debug)]
pub(super) struct Inbound {
    pub kept: Kept,
    pub phase: Phase,
    /// Message sequence number of the current or next message of each queue.
    pub msns: [u32; 4],
    /// Octets of the current untagged message that have arrived; `None`: no message has begun.
    pub received: Option<u32>,
    /// Octets of the last or current WRITE.
    pub written: u32,
    /// The last segment of a WRITE has arrived since.
    pub write_ended: bool,
    /// An FPDU has arrived, so the passive side may send (RFC 5044 section 7.1).
    pub has_fpdu: bool,
    /// The page that the next FPDU waits for.
    pub page: Option<Token>,
    /// The last FPDU that was refused because of a page: its offset, and the fault.
    pub refused: Option<(u64, Token)>,
    /// Octets that are kept also without memory: those of an FPDU of a peer that obeys the maximum segment size of the SYN (RFC 5044
    /// section 5), and of a setup frame.
    reserve: u16,
    /// Kept octets wait for the next turn.
    pub waits_for_turn: bool,
}

impl Inbound {
    /// Nothing has arrived. `mss` is the maximum segment size that this end states.
    pub(super) fn new(phase: Phase, mss: u16) -> Self {
        Self {
            kept: Kept::default(),
            phase,
            msns: [1; 4],
            received: None,
            written: 0,
            write_ended: true,
            has_fpdu: false,
            page: None,
            refused: None,
            reserve: mss.max(len16(MAX_SETUP)),
            waits_for_turn: false,
        }
    }

    /// Memory for kept octets.
    fn room<'a>(&self, core: &'a Core) -> KeptRoom<'a> {
        KeptRoom::new(&core.budget, &core.kept_budget, self.reserve.into())
    }

    /// True if the FPDU at this offset was refused because of another fault.
    fn was_refused_for_another(&self, offset: u64, token: Token) -> bool {
        self.refused
            .is_some_and(|(at, other)| at == offset && other != token)
    }

    /// True if kept octets begin with something that can be delivered. `taken`: the offset of the first octet that was not.
    pub(super) fn has_more(&self, taken: u64) -> bool {
        let octets = self.kept.at(taken);
        match self.phase {
            _ if octets.is_empty() || self.page.is_some() || self.waits_for_turn => false,
            Phase::Reply => !matches!(setup::parse(octets, MpaRole::Reply), Ok(None)),
            Phase::Fpdus => Fpdu::parse(octets).is_ok_and(|(fpdu, _)| fpdu.len() <= octets.len()),
            Phase::Ended => true,
        }
    }
}

/// The parts of a queue pair that a segment, or the end of a wait, may change.
pub(super) struct Delivery<'d, 'c, 'p, M> {
    pub qp: &'d Endpoint,
    pub cx: &'d mut Context<'c, M>,
    /// Data of the segment.
    pub data: Payload<'p, M>,
    pub inbound: &'d mut Inbound,
    pub sender: &'d mut Sender,
    pub work: &'d mut SendQueue,
    pub receives: &'d mut Receives,
    /// Longest segment of the connection.
    pub max_payload: u32,
    /// Work at the beginning of the turn.
    pub turn: u64,
    /// Octets that were added to the stream that leaves.
    pub pushed: u64,
    /// The peer's reply to the setup request.
    pub reply: Option<Offer>,
    /// Why the stream ends.
    pub end: Option<End>,
    /// The segment has stopped the ingress, which must hold it.
    pub is_stalled: bool,
}

impl<M: Dma> Receiver for Delivery<'_, '_, '_, M> {
    fn deliver(&mut self, data: Data) -> Verdict {
        match data.source {
            Source::Segment { at } => {
                let octets = self.data.part(at as usize, data.len as usize);
                let verdict = self.take(&octets, data.offset, false);
                if verdict != Verdict::Held {
                    return verdict;
                }
                self.inbound.kept.set_next(data.offset);
                match self.keep_octets(data.offset, &octets) {
                    true => Verdict::Held,
                    // As if the network had lost it.
                    false => {
                        self.inbound.page = None;
                        Verdict::Refused
                    }
                }
            }
            Source::Kept => self.deliver_kept(data),
        }
    }

    fn keep(&mut self, data: Data) -> bool {
        let Source::Segment { at } = data.source else {
            return false;
        };
        let octets = self.data.part(at as usize, data.len as usize);
        self.keep_octets(data.offset, &octets)
    }
}

impl<M: Dma> Delivery<'_, '_, '_, M> {
    /// Keeps octets for later. Returns false if there is no memory.
    fn keep_octets(&mut self, offset: u64, octets: &Payload<'_, M>) -> bool {
        let room = self.inbound.room(self.cx.core);
        self.inbound.kept.add(room, offset, octets)
    }

    fn deliver_kept(&mut self, data: Data) -> Verdict {
        let Some(piece) = self.inbound.kept.take(data.offset) else {
            // Cannot happen: the connection offers only ranges that `keep` has accepted.
            return Verdict::Held;
        };
        let verdict = self.take_piece(&piece, data);
        let used = match verdict {
            Verdict::Taken(octets) => octets as usize,
            Verdict::Refused | Verdict::Held => 0,
        };
        let room = self.inbound.room(self.cx.core);
        self.inbound.kept.put_back(room, data.offset, piece, used);
        verdict
    }

    fn take_piece(&mut self, piece: &Piece, data: Data) -> Verdict {
        let octets = piece.rest();
        let octets = octets.get(..data.len as usize).unwrap_or(octets);
        self.take(&Payload::Bytes(octets), data.offset, true)
    }

    /// Uses octets in order. `is_kept`: they cannot be refused.
    fn take(&mut self, octets: &Payload<'_, M>, offset: u64, is_kept: bool) -> Verdict {
        let len = octets.len();
        match self.inbound.phase {
            Phase::Ended => taken(len),
            Phase::Reply => self.take_reply(octets),
            Phase::Fpdus => {
                let mut length = [0; Fpdu::HEADER_LEN];
                let fpdu = match octets.read(0, &mut length) {
                    Err(_) => return Verdict::Refused,
                    Ok(_) => Fpdu::parse(&length).map_or(Fpdu::default(), |(fpdu, _)| fpdu),
                };
                if len < Fpdu::HEADER_LEN || len < fpdu.len() {
                    return Verdict::Held;
                }
                self.take_fpdu(&octets.part(0, fpdu.len()), fpdu, offset, is_kept)
            }
        }
    }

    fn take_reply(&mut self, octets: &Payload<'_, M>) -> Verdict {
        let Ok(bytes) = octets.part(0, octets.len().min(MAX_SETUP)).to_vec() else {
            return Verdict::Refused;
        };
        match setup::parse(&bytes, MpaRole::Reply) {
            Ok(None) => Verdict::Held,
            Ok(Some((offer, len))) => {
                self.inbound.phase = match offer.reject {
                    true => Phase::Ended,
                    false => Phase::Fpdus,
                };
                // Here, because the next octets may be a READ request, whose answer follows.
                if offer.markers {
                    self.sender.insert_markers();
                }
                self.reply = Some(offer);
                taken(len)
            }
            Err(_) => {
                self.end(End::BadSetup);
                taken(octets.len())
            }
        }
    }

    /// Executes a whole FPDU.
    fn take_fpdu(
        &mut self,
        octets: &Payload<'_, M>,
        fpdu: Fpdu,
        offset: u64,
        is_kept: bool,
    ) -> Verdict {
        // A peer that fills a gap causes the delivery of a whole window.
        if is_kept && self.cx.core.is_over(self.turn) {
            self.inbound.waits_for_turn = true;
            return Verdict::Held;
        }
        let again = if is_kept { octets.len() } else { 0 };
        self.cx.core.charge(work::of_frames(1, again));
        match has_right_crc(octets) {
            None => return Verdict::Refused,
            Some(true) => {}
            Some(false) => {
                self.cx.count(Counter::rx_icrc_errors);
                let refused = Refused::new(TerminateCode::MPA_CRC, &[], fpdu.ulpdu_len);
                self.end(End::Refused(refused));
                return taken(octets.len());
            }
        }
        self.inbound.has_fpdu = true;
        let ulpdu = octets.part(Fpdu::HEADER_LEN, fpdu.ulpdu_len.into());
        let psn = (offset & 0xffff_ffff) as u32;
        match self.execute(fpdu, &ulpdu, psn) {
            Ok(()) => {}
            Err(Stop::Lost) => return Verdict::Refused,
            Err(Stop::Absent(need)) => {
                return self.await_page(&need, is_kept, (offset, octets.len()));
            }
            Err(Stop::End(end)) => self.end(end),
        }
        taken(octets.len())
    }

    /// Ends the stream, unless that has begun.
    fn end(&mut self, end: End) {
        self.inbound.phase = Phase::Ended;
        self.end.get_or_insert(end);
    }

    /// Handles a missing page of the next FPDU, at this offset and with this length, by the fault policy.
    fn await_page(&mut self, need: &Need, is_kept: bool, (offset, len): (u64, usize)) -> Verdict {
        let policy = self.qp.fault_policy();
        let source = self.qp.fault_source(WaitKind::Request);
        if policy == FaultPolicy::Terminate {
            let code = TerminateCode::RDMAP_CATASTROPHIC_STREAM;
            self.end(End::Refused(Refused::new(code, &[], 0)));
            return taken(len);
        }
        let token = match self.cx.raise_fault(source, need) {
            RaisedFault::Waiting(token) => token,
            RaisedFault::NoRoom => {
                let (now, key) = (self.cx.now, need.absent.key);
                self.cx.core.wait_for_room(now, self.qp.number, key);
                Token::ROOM
            }
            RaisedFault::NoQueue => {
                let code = TerminateCode::RDMAP_LOCAL_CATASTROPHIC;
                self.end(End::Refused(Refused::new(code, &[], 0)));
                return taken(len);
            }
        };
        // Octets that are acknowledged, and that the peer cannot send again are held under each policy.
        match policy {
            // If a page is absent again after the fault was answered, the FPDU is held: each page may be taken away before the
            // peer's timeout, which doubles.
            FaultPolicy::Drop
                if !is_kept && !self.inbound.was_refused_for_another(offset, token) =>
            {
                self.inbound.refused = Some((offset, token));
                self.cx.count(Counter::page_fault_drops);
                Verdict::Refused
            }
            FaultPolicy::Stall if !is_kept => {
                self.inbound.refused = Some((offset, token));
                self.cx.count(Counter::stalls);
                let qpn = self.qp.number;
                self.cx.diagnose(Diagnostic::Stalled { qpn });
                self.cx.core.ingress.stop(self.cx.now, qpn, token);
                self.is_stalled = true;
                Verdict::Refused
            }
            FaultPolicy::Rnr | FaultPolicy::Drop | FaultPolicy::Stall | FaultPolicy::Terminate => {
                self.inbound.page = Some(token);
                Verdict::Held
            }
        }
    }
}

/// Octets of the longest setup frame.
pub(crate) const MAX_SETUP: usize = MpaSetup::LEN + MpaSetup::MAX_PRIVATE_DATA as usize;

fn taken(len: usize) -> Verdict {
    Verdict::Taken(u32::try_from(len).unwrap_or(u32::MAX))
}

/// Compares the CRC of a whole FPDU. `None`: it cannot be read.
fn has_right_crc<M: Dma>(octets: &Payload<'_, M>) -> Option<bool> {
    let whole;
    let bytes = match octets {
        Payload::Bytes(bytes) => *bytes,
        Payload::Guest { .. } => {
            whole = octets.to_vec().ok()?;
            &whole
        }
    };
    let (covered, crc) = bytes.split_last_chunk::<{ Fpdu::CRC_LEN }>()?;
    let mut sum = Crc32c::default();
    sum.update(covered);
    Some(sum.finish().to_le_bytes() == *crc)
}
