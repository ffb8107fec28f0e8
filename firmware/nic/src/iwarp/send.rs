//! The stream that leaves: messages, their FPDUs, and the octets of these.
//!
//! A message is one entry, whatever its length: all of its FPDUs but the last are equally long without markers, so the FPDU at an offset
//! of the stream is found by arithmetic. Its payload is read from guest memory whenever a segment leaves, or from a copy.

use std::collections::VecDeque;

use faultline_wire::ddp::{DDP_VERSION, Ddp, DdpTarget};
use faultline_wire::mpa::{Crc32c, Fpdu};
use faultline_wire::rdmap::{RdmapControl, RdmapOpcode};
use smallvec::SmallVec;

use super::copies::Copies;
use super::kept::KeptRoom;
use super::markers::MarkerLayout;
use super::page_wait::PageOf;
use super::work::SendQueue;
use crate::budget::{Budget, Held};
use crate::core::Core;
use crate::dma::{Dma, DmaError};
use crate::fault::Need;
use crate::mkey::{Access, KeyRange, Miss};
use crate::number::{len32, low32};
use crate::qp::endpoint::Endpoint;
use crate::qp::sge;
use crate::qp::types::{Failure, PlaceError};
use crate::qp::work_request::SendWr;
use crate::segments::{Segments, push_segment};

/// Octets of an FPDU besides its DDP segment: length and CRC.
const FRAMING: u32 = 6;

/// Octets that the NIC has made itself.
pub(super) type Octets = SmallVec<[u8; 32]>;

/// The payload of a message.
#[derive(Debug)]
pub(super) enum Content {
    /// Octets of the NIC.
    Own(Octets),
    /// The data of the send work request with this index.
    Work(u32),
    /// Memory that a READ names.
    Source {
        /// Its key.
        key: u32,
        /// Its first address.
        addr: u64,
    },
}

/// The headers of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Framing {
    /// None: a setup frame, before the first FPDU.
    Setup,
    /// DDP.
    Ddp {
        opcode: RdmapOpcode,
        /// Of the first segment.
        target: DdpTarget,
    },
}

impl Framing {
    /// True for the answer to a READ or atomic.
    fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Ddp {
                opcode: RdmapOpcode::ReadResponse | RdmapOpcode::AtomicResponse,
                ..
            }
        )
    }
}

/// A message in the stream.
#[derive(Debug)]
struct Message {
    start: u64,
    end: u64,
    /// Octets of payload.
    len: u32,
    /// Octets of payload in each FPDU but the last.
    room: u32,
    framing: Framing,
    content: Content,
}

/// Why an FPDU cannot be built.
#[derive(Debug)]
pub(super) enum Blocked {
    /// A page is missing for the FPDU that ends at this offset of the stream.
    Absent(Need, PageOf, u64),
    /// A local buffer of the work request with this index cannot be used.
    Work(u32, Failure),
    /// The memory that a READ names cannot be read any more.
    Source(Miss),
    /// The work request has been completed, because the connection ends.
    Completed,
    /// There is no memory for a copy, until the peer has acknowledged others.
    NoRoom,
}

/// An FPDU to send, or the rest of a setup frame.
#[derive(Debug)]
pub(super) struct Part {
    /// Its offset in the stream.
    pub start: u64,
    /// Its length in octets.
    pub len: u32,
    /// The same without markers.
    unmarked_len: u32,
    origin: PartOrigin,
    header: SmallVec<[u8; 20]>,
    own: Octets,
    segments: Segments,
}

/// The origin of the octets of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartOrigin {
    /// A setup frame, which has no length and no CRC.
    Setup,
    /// A copy.
    Copied,
    /// Octets that do not change before they are acknowledged.
    Stable,
    /// Memory that a READ names.
    Source,
}

/// The stream that leaves.
#[derive(Debug, Default)]
pub(super) struct Sender {
    messages: VecDeque<Message>,
    /// Octets of all messages.
    pushed: u64,
    /// Octets that have been sent at least once.
    sent: u64,
    markers: MarkerLayout,
    copies: Copies,
    /// Messages begun in each queue.
    msns: [u32; 4],
    /// Answers to READs and atomics that the peer has not acknowledged.
    unacknowledged_answers: usize,
    held: Option<Held>,
}

impl Sender {
    /// Octets of all messages.
    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Octets that have been sent at least once.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Octets that have not been sent once.
    pub(super) fn unsent(&self) -> u64 {
        self.pushed.saturating_sub(self.sent)
    }

    /// The peer demands markers, and only the setup frame has been pushed: the first FPDU follows.
    pub(super) fn insert_markers(&mut self) {
        self.markers = MarkerLayout::beginning_at(self.pushed);
    }

    /// Answers to READs and atomics that have not been sent completely.
    pub(super) fn answers(&self) -> usize {
        let is_left = |message: &&Message| message.end > self.sent;
        let unsent = self.messages.iter().rev().take_while(is_left);
        unsent.filter(|message| message.framing.is_answer()).count()
    }

    /// Answers to READs and atomics that the peer has not acknowledged.
    pub(super) fn unacknowledged_answers(&self) -> usize {
        self.unacknowledged_answers
    }

    /// The target of the next untagged message of a queue.
    pub(super) fn untagged(&mut self, queue: u32, upper: u32) -> DdpTarget {
        let msn = self.msns.get_mut(queue as usize).map_or(0, |last| {
            *last = last.wrapping_add(1);
            *last
        });
        DdpTarget::Untagged {
            upper,
            queue,
            msn,
            offset: 0,
        }
    }

    /// Appends a message of `len` octets. `max` is the longest segment of the connection. Returns the octets that it adds to the stream.
    pub(super) fn push(
        &mut self,
        budget: &Budget,
        (framing, content): (Framing, Content),
        len: u32,
        max: u32,
    ) -> u64 {
        let start = self.pushed;
        let (room, end) = match framing {
            Framing::Setup => (len, start.saturating_add(len.into())),
            Framing::Ddp { target, .. } => {
                let header = header_len(target);
                // All FPDUs but the last need no padding.
                let longest = self.markers.longest_fpdu(max);
                let room = longest.saturating_sub(FRAMING.saturating_add(header));
                let room = (room & !3).max(4);
                let others = len.div_ceil(room).saturating_sub(1);
                let last = len.saturating_sub(others.saturating_mul(room));
                let full = u64::from(fpdu_len(header, room));
                let last = fpdu_len(header, last);
                let octets = full
                    .saturating_mul(others.into())
                    .saturating_add(last.into());
                let begin = self.markers.unmarked(start);
                (room, self.markers.marked(begin.saturating_add(octets)))
            }
        };
        self.pushed = end;
        if framing.is_answer() {
            self.unacknowledged_answers = self.unacknowledged_answers.saturating_add(1);
        }
        self.messages.push_back(Message {
            start,
            end,
            len,
            room,
            framing,
            content,
        });
        self.account(budget);
        end.saturating_sub(start)
    }

    /// A segment up to this offset has been sent.
    pub(super) fn note_sent(&mut self, until: u64) {
        self.sent = self.sent.max(until);
    }

    /// The end of the last FPDU that has begun to leave. Nothing behind it has been sent.
    pub(super) fn sent_fpdus(&self) -> u64 {
        let at = self
            .messages
            .partition_point(|message| message.end <= self.sent);
        let message = self.messages.get(at);
        message.map_or(self.sent, |message| {
            message.end_of_fpdu(self.markers, self.sent)
        })
    }

    /// Removes everything behind an FPDU. Nothing of that has been sent.
    pub(super) fn truncate(&mut self, budget: &Budget, end: u64) {
        while let Some(message) = self.messages.back_mut()
            && message.end > end
        {
            if message.start < end {
                message.end = end;
                break;
            }
            if message.framing.is_answer() {
                self.unacknowledged_answers = self.unacknowledged_answers.saturating_sub(1);
            }
            self.messages.pop_back();
        }
        self.pushed = self.pushed.min(end);
        self.account(budget);
    }

    /// Forgets what the peer has acknowledged.
    pub(super) fn release(&mut self, budget: &Budget, acknowledged: u64) {
        while let Some(message) = self.messages.front()
            && message.end <= acknowledged
        {
            if message.framing.is_answer() {
                self.unacknowledged_answers = self.unacknowledged_answers.saturating_sub(1);
            }
            self.messages.pop_front();
        }
        // An idle connection has room for one message, so that one at a time needs no allocation.
        if self.messages.is_empty() {
            self.messages.shrink_to(1);
        }
        self.copies.release(acknowledged);
        self.account(budget);
    }

    fn account(&mut self, budget: &Budget) {
        let messages = self.messages.capacity();
        let bytes = messages.saturating_mul(size_of::<Message>());
        let held = self.held.get_or_insert_with(|| budget.none());
        if held.bytes() != bytes {
            held.set(bytes);
        }
    }

    /// Drops all copies: nothing is sent any more.
    pub(super) fn forget_copies(&mut self) {
        self.copies = Copies::default();
    }

    /// Keeps a copy of an FPDU if it must be the same when it is sent again. `sent` octets of it leave now.
    pub(super) fn keep_copy(&mut self, core: &Core, part: &Part, octets: &[u8], sent: usize) {
        if part.needs_copy(sent) {
            self.copies.add(room(core), part.start, octets.to_vec());
        }
    }

    /// Octets of an FPDU that may leave from `offset` on, at most `max`. If a part of it leaves, there must be memory for a copy, except for the
    /// first one that is not acknowledged (`acknowledged`: octets of the stream), so that the stream makes progress.
    pub(super) fn leaving(
        &self,
        core: &Core,
        part: &Part,
        (offset, max): (u64, u32),
        acknowledged: u64,
    ) -> Result<u32, Blocked> {
        let len = part.left_from(offset, max);
        // There was room for the FPDU of an answer when its memory was looked up.
        let is_answer = part.origin == PartOrigin::Source;
        let may_leave = is_answer
            || !part.needs_copy(len as usize)
            || part.start <= acknowledged
            || self.copies.has_room(room(core), part.len as usize);
        may_leave.then_some(len).ok_or(Blocked::NoRoom)
    }

    /// The FPDU at an offset of the stream, with the guest memory of its payload.
    pub(super) fn part_at(
        &self,
        qp: &Endpoint,
        core: &Core,
        work: &SendQueue,
        offset: u64,
    ) -> Result<Part, Blocked> {
        let at = self
            .messages
            .partition_point(|message| message.end <= offset);
        // The connection sends only octets that were pushed and are not acknowledged.
        let Some(message) = self.messages.get(at) else {
            return Ok(Part::empty(offset));
        };
        let Framing::Ddp { opcode, target } = message.framing else {
            return Ok(message.setup());
        };
        let header = header_len(target);
        let (index, begin) = message.fpdu_at(self.markers, offset);
        let done = low32(index).saturating_mul(message.room);
        let start = self.markers.marked(begin);
        let left = message.len.saturating_sub(done);
        let len = left.min(message.room);
        let unmarked_len = fpdu_len(header, len);
        let end = self
            .markers
            .marked(begin.saturating_add(unmarked_len.into()));
        let mut part = Part {
            start,
            len: low32(end.saturating_sub(start)),
            unmarked_len,
            origin: PartOrigin::Stable,
            header: SmallVec::new(),
            own: Octets::new(),
            segments: Segments::new(),
        };
        if self.copies.get(start).is_some() {
            part.origin = PartOrigin::Copied;
            return Ok(part);
        }
        let ddp = Ddp {
            last: len == left,
            version: DDP_VERSION,
            upper_control: RdmapControl::new(opcode).to_u8(),
            target: moved(target, done),
        };
        part.set_header(&ddp, header.saturating_add(len));
        match &message.content {
            Content::Own(octets) => {
                let from = octets.get(done as usize..).unwrap_or_default();
                let own = from.get(..len as usize).unwrap_or(from);
                part.own.extend_from_slice(own);
            }
            Content::Work(index) => {
                let request = work.get(*index).ok_or(Blocked::Completed)?;
                let range = (done, len, low32(start));
                gather(qp, core, &request.wr, range, &mut part.segments)
                    .map_err(|error| error.blocked(*index, part.end()))?;
            }
            Content::Source { key, addr } => {
                part.origin = PartOrigin::Source;
                if !self.copies.has_room(room(core), part.len as usize) {
                    return Err(Blocked::NoRoom);
                }
                let range = KeyRange {
                    key: *key,
                    user: qp.key_user(),
                    va: addr.wrapping_add(done.into()),
                    len,
                    access: Access::RemoteRead,
                };
                if len > 0 {
                    let end = part.end();
                    source(core, &range, (left, start, end), &mut part.segments)?;
                }
            }
        }
        Ok(part)
    }

    /// Replaces `out` by the octets of an FPDU, its CRC included.
    pub(super) fn write<M: Dma>(
        &self,
        part: &Part,
        mem: &M,
        out: &mut Vec<u8>,
    ) -> Result<(), DmaError> {
        out.clear();
        if part.origin == PartOrigin::Copied {
            out.extend_from_slice(self.copies.get(part.start).unwrap_or_default());
            return Ok(());
        }
        out.extend_from_slice(&part.header);
        out.extend_from_slice(&part.own);
        for segment in &part.segments {
            let at = out.len();
            out.resize(at.saturating_add(segment.len as usize), 0);
            mem.read(segment.addr, out.get_mut(at..).unwrap_or_default())?;
        }
        if part.origin != PartOrigin::Setup {
            // The padding is zero.
            let end = (part.unmarked_len as usize).saturating_sub(Fpdu::CRC_LEN);
            out.resize(end, 0);
            self.markers.insert(part.start, part.len, out);
            let mut crc = Crc32c::default();
            crc.update(out);
            out.extend_from_slice(&crc.finish().to_le_bytes());
        }
        Ok(())
    }
}

impl Message {
    /// Octets of a setup frame, or without markers of each FPDU but the last.
    fn full(&self) -> u64 {
        match self.framing {
            Framing::Setup => self.len.into(),
            Framing::Ddp { target, .. } => fpdu_len(header_len(target), self.room).into(),
        }
    }

    /// Number and unmarked offset of the FPDU with the octet at an offset of this message.
    fn fpdu_at(&self, markers: MarkerLayout, offset: u64) -> (u64, u64) {
        let (full, start) = (self.full(), markers.unmarked(self.start));
        let done = markers.unmarked(offset).saturating_sub(start);
        let index = done.checked_div(full).unwrap_or(0);
        (index, index.saturating_mul(full).saturating_add(start))
    }

    /// The end of the FPDU in front of an offset of this message.
    fn end_of_fpdu(&self, markers: MarkerLayout, offset: u64) -> u64 {
        if offset <= self.start {
            return self.start;
        }
        // The octet before may be one of a marker, which is unmarked that of the next octet.
        let (_, begin) = self.fpdu_at(markers, offset.saturating_sub(1));
        let end = begin.saturating_add(self.full());
        match self.framing {
            Framing::Setup => self.end,
            Framing::Ddp { .. } => markers.marked(end).min(self.end),
        }
    }

    fn setup(&self) -> Part {
        let own = match &self.content {
            Content::Own(octets) => octets.clone(),
            _ => Octets::new(),
        };
        Part {
            len: self.len,
            unmarked_len: self.len,
            own,
            ..Part::empty(self.start)
        }
    }
}

impl Part {
    fn empty(start: u64) -> Self {
        Self {
            start,
            len: 0,
            unmarked_len: 0,
            origin: PartOrigin::Setup,
            header: SmallVec::new(),
            own: Octets::new(),
            segments: Segments::new(),
        }
    }

    /// The offset of the stream after it.
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len.into())
    }

    /// True if the FPDU must be the same when it is sent again, and only a copy can be. `leaving`: its octets that leave now.
    fn needs_copy(&self, leaving: usize) -> bool {
        match self.origin {
            PartOrigin::Setup | PartOrigin::Copied => false,
            PartOrigin::Stable => leaving < self.len as usize,
            PartOrigin::Source => true,
        }
    }

    /// Number of octets from `offset` on, at most `max`, at least 1.
    fn left_from(&self, offset: u64, max: u32) -> u32 {
        let done = low32(offset.saturating_sub(self.start));
        self.len.saturating_sub(done).clamp(1, max.max(1))
    }

    fn set_header(&mut self, ddp: &Ddp, ulpdu_len: u32) {
        let len = Fpdu::HEADER_LEN.saturating_add(ddp.header_len());
        self.header.resize(len, 0);
        let fpdu = Fpdu {
            ulpdu_len: u16::try_from(ulpdu_len).unwrap_or(u16::MAX),
        };
        // The buffer has room for both.
        let _ = fpdu.emit(&mut self.header);
        if let Some(rest) = self.header.get_mut(Fpdu::HEADER_LEN..) {
            let _ = ddp.emit(rest);
        }
    }
}

/// Memory for copies.
fn room(core: &Core) -> KeptRoom<'_> {
    KeptRoom::new(&core.budget, &core.kept_budget, 0)
}

fn header_len(target: DdpTarget) -> u32 {
    match target {
        DdpTarget::Tagged { .. } => len32(Ddp::TAGGED_LEN),
        DdpTarget::Untagged { .. } => len32(Ddp::UNTAGGED_LEN),
    }
}

/// Octets of an FPDU with this length of the DDP header and of the payload.
fn fpdu_len(header: u32, payload: u32) -> u32 {
    let ulpdu = header.saturating_add(payload);
    let padded = ulpdu.saturating_add(2).next_multiple_of(4);
    padded.saturating_add(len32(Fpdu::CRC_LEN))
}

/// The target of a later segment of a message.
fn moved(target: DdpTarget, by: u32) -> DdpTarget {
    match target {
        DdpTarget::Tagged { stag, offset } => DdpTarget::Tagged {
            stag,
            offset: offset.wrapping_add(by.into()),
        },
        DdpTarget::Untagged {
            upper, queue, msn, ..
        } => DdpTarget::Untagged {
            upper,
            queue,
            msn,
            offset: by,
        },
    }
}

/// Why local memory of a work request cannot be read.
struct GatherError {
    error: PlaceError,
    offset: u32,
}

impl GatherError {
    /// For the FPDU of this work request that ends at `end`.
    fn blocked(self, index: u32, end: u64) -> Blocked {
        match self.error {
            PlaceError::Absent(absent, hint) => {
                let need = Need::new(absent, hint, self.offset);
                Blocked::Absent(need, PageOf::Data(index), end)
            }
            PlaceError::Failed(failure) => Blocked::Work(index, failure),
            PlaceError::Lost => Blocked::Work(index, Failure::FLUSHED),
        }
    }
}

/// Appends the guest memory behind `len` octets of the data of a work request; `offset` is that in the stream.
fn gather(
    qp: &Endpoint,
    core: &Core,
    wr: &SendWr,
    (from, len, offset): (u32, u32, u32),
    out: &mut Segments,
) -> Result<(), GatherError> {
    let inline_len = wr.inline.map_or(0, |(_, len)| len);
    let inline = inline_len.saturating_sub(from).min(len);
    if let Some((at, _)) = wr.inline {
        push_segment(out, at.wrapping_add(from.into()), inline);
    }
    let rest = from.saturating_sub(inline_len);
    let left = len.saturating_sub(inline);
    for part in sge::parts(&wr.sges, rest.into(), left.into()) {
        let range = part.range(wr.key_user(qp), Access::LocalRead);
        core.mkeys
            .translate(&range, out)
            .map_err(|miss| GatherError {
                error: PlaceError::new(miss, part.va, part.left),
                offset,
            })?;
    }
    Ok(())
}

/// Appends the guest memory of a range that a READ names, for the FPDU from `start` to `end`. `left` octets of the range have to be sent.
fn source(
    core: &Core,
    range: &KeyRange,
    (left, start, end): (u32, u64, u64),
    out: &mut Segments,
) -> Result<(), Blocked> {
    core.mkeys
        .translate(range, out)
        .map_err(|miss| match PlaceError::new(miss, range.va, left) {
            PlaceError::Absent(absent, hint) => {
                let need = Need::new(absent, hint, low32(start));
                Blocked::Absent(need, PageOf::Source, end)
            }
            _ => Blocked::Source(miss),
        })
}

const _: () = assert!(Ddp::UNTAGGED_LEN + Fpdu::HEADER_LEN <= 20);
