//! Frames on their way out, and payloads on their way in.
//!
//! Inside a process a frame is handed over by reference: typed headers, and the payload as a list of
//! segments of the sender's guest memory, so that the bytes are copied once, to where the receiver wants
//! them. [`TxFrame::to_bytes`] is for wires that need octets.
//!
//! # Runs
//!
//! Where both ends are in the process, several packets of one message may be handed over as one frame, a *run*,
//! as a host does with segmentation and receive offload: the header is that of the first packet, the others are
//! MIDDLE packets with the PSNs that follow, and every packet carries the same number of bytes. No run holds the
//! last packet of a message. A receiver for whom the run as a whole is not what comes next takes it apart
//! ([`packet_of_run`]), so a run never means anything else than its packets.

use faultline_wire::MacAddr;
use faultline_wire::packet::{RoceHeader, pad_len, seal};
use smallvec::SmallVec;

use crate::dma::{Dma, DmaError};
use crate::headers::MAX_HEADERS;
use crate::offload::Head;
use crate::tag::HEADERS;

/// A run of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// DMA address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
}

/// Runs of guest memory, in order. Four fit without allocation.
pub type Segments = SmallVec<[Segment; 4]>;

/// Appends a segment, or lengthens the last one if it follows directly.
pub(crate) fn push_segment(segments: &mut Segments, addr: u64, len: u32) {
    if len == 0 {
        return;
    }
    if follows(segments, addr)
        && let Some(last) = segments.last_mut()
        && let Some(sum) = last.len.checked_add(len)
    {
        last.len = sum;
        return;
    }
    segments.push(Segment { addr, len });
}

/// Whether memory at `addr` directly follows the last segment.
pub(crate) fn follows(segments: &Segments, addr: u64) -> bool {
    segments
        .last()
        .is_some_and(|last| last.addr.wrapping_add(u64::from(last.len)) == addr)
}

/// Keeps the first `len` bytes; gives `len`.
pub(crate) fn truncate_segments(segments: &mut Segments, len: u32) -> u32 {
    let mut left = len;
    segments.retain(|segment| {
        segment.len = segment.len.min(left);
        left -= segment.len;
        segment.len > 0
    });
    len
}

/// What kind of frame it is.
// Nearly all frames are RoCE; a box for their headers would be an allocation for each.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq)]
pub enum FrameKind {
    /// A RoCE packet; the payload is what stands between the headers and the padding.
    Roce(RoceHeader),
    /// Any other frame, without FCS: the head, then the payload.
    Raw {
        /// Destination address.
        dst: MacAddr,
        /// Source address.
        src: MacAddr,
        /// The NIC's own copy of the headers, which it may have written or changed: at least all that switches and
        /// receivers look at.
        head: Head,
        /// Its checksums are right: the NIC has filled them in.
        checked: bool,
    },
}

/// A frame that leaves the NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct TxFrame {
    /// Headers.
    pub kind: FrameKind,
    /// Payload in the memory of the sender's guest; valid until the sender is called again.
    pub payload: Segments,
    /// Sum of the segments.
    pub payload_len: usize,
    /// Packets in the run; 1 for all frames but runs.
    pub packets: u32,
    /// A payload that the NIC has made itself, instead of one in the memory of a guest.
    pub own: Option<[u8; HEADERS]>,
}

/// Header of packet `index` of a run whose first packet has this header.
pub(crate) fn packet_of_run(first: &RoceHeader, index: u32, packets: u32) -> RoceHeader {
    let mut header = *first;
    // A run asks for an acknowledgement of its end.
    header.bth.ack_req &= index + 1 == packets;
    if index > 0 {
        header.bth.psn = first.bth.psn.add(index);
        header.bth.opcode = first.bth.opcode.middle().unwrap_or(first.bth.opcode);
        header.reth = None;
        header.aeth = None;
    }
    header
}

impl TxFrame {
    /// A RoCE packet.
    pub(crate) fn packet(header: RoceHeader, payload: Segments, payload_len: usize) -> Self {
        Self {
            kind: FrameKind::Roce(header),
            payload,
            payload_len,
            packets: 1,
            own: None,
        }
    }

    /// A RoCE packet with a payload that the NIC has made.
    pub(crate) fn own(header: RoceHeader, payload: [u8; HEADERS]) -> Self {
        Self {
            own: Some(payload),
            ..Self::packet(header, Segments::new(), HEADERS)
        }
    }

    /// Destination MAC address.
    pub fn dst(&self) -> MacAddr {
        match &self.kind {
            FrameKind::Roce(header) => header.ethernet.dst,
            FrameKind::Raw { dst, .. } => *dst,
        }
    }

    /// Source MAC address.
    pub fn src(&self) -> MacAddr {
        match &self.kind {
            FrameKind::Roce(header) => header.ethernet.src,
            FrameKind::Raw { src, .. } => *src,
        }
    }

    /// Octets on the wire, without FCS; of all packets, if it is a run.
    pub fn len(&self) -> usize {
        match &self.kind {
            FrameKind::Roce(header) if self.packets > 1 => {
                let each = self.payload_len / self.packets as usize;
                let others = self.packets as usize - 1;
                let middle = packet_of_run(header, 1, self.packets);
                header.frame_len(each) + others * middle.frame_len(each)
            }
            FrameKind::Roce(header) => header.frame_len(self.payload_len),
            FrameKind::Raw { head, .. } => head.len() + self.payload_len,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the frame as octets, with padding and invariant CRC, to the end of `out`. A wire takes packets:
    /// this is not for runs.
    pub fn to_bytes<M: Dma>(&self, mem: &M, out: &mut Vec<u8>) -> Result<(), DmaError> {
        debug_assert_eq!(self.packets, 1);
        let start = out.len();
        out.resize(start + self.len(), 0);
        let Some(frame) = out.get_mut(start..) else {
            return Ok(());
        };
        let mut at = match &self.kind {
            // The buffer is exactly as long as `frame_len` said.
            FrameKind::Roce(header) => header.emit(self.payload_len, frame).unwrap_or(0),
            FrameKind::Raw { head, .. } => {
                if let Some(to) = frame.get_mut(..head.len()) {
                    to.copy_from_slice(head);
                }
                head.len()
            }
        };
        if let Some(own) = &self.own
            && let Some(buf) = frame.get_mut(at..at + own.len())
        {
            buf.copy_from_slice(own);
            at += own.len();
        }
        for segment in &self.payload {
            let len = segment.len as usize;
            if let Some(buf) = frame.get_mut(at..at + len) {
                mem.read(segment.addr, buf)?;
            }
            at += len;
        }
        if matches!(self.kind, FrameKind::Roce(_)) {
            debug_assert_eq!(at + pad_len(self.payload_len) + 4, frame.len());
            let _ = seal(frame);
        }
        Ok(())
    }

    /// What a receiver takes: the payload; of a raw frame all of it.
    pub(crate) fn view<'a, M: Dma>(&'a self, mem: &'a M) -> Payload<'a, M> {
        if let Some(own) = &self.own {
            return Payload::Bytes(own);
        }
        let head: &[u8] = match &self.kind {
            FrameKind::Roce(_) => &[],
            FrameKind::Raw { head, .. } => head,
        };
        Payload::guest(head, mem, &self.payload, self.payload_len)
    }

    /// Packet `index` of a run as octets, with padding and invariant CRC.
    pub fn packet_bytes<M: Dma>(&self, index: u32, mem: &M) -> Result<Vec<u8>, DmaError> {
        let all = self.view(mem);
        let each = all.len() / self.packets.max(1) as usize;
        let payload = all.part(index as usize * each, each);
        let FrameKind::Roce(first) = &self.kind else {
            return payload.to_vec();
        };
        let header = packet_of_run(first, index, self.packets);
        let mut bytes = vec![0; header.frame_len(each)];
        // The buffer is exactly as long as `frame_len` said.
        let at = header.emit(each, &mut bytes).unwrap_or(0);
        if let Some(to) = bytes.get_mut(at..at + each) {
            payload.read(0, to)?;
        }
        let _ = seal(&mut bytes);
        Ok(bytes)
    }
}

/// Whose memory was missing when a payload was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The sender's, which is none of the receiver's business: the frame counts as lost.
    Source,
    /// The receiver's.
    Destination,
}

/// Whether all of a run of memory can be read. For errors only: it reads all of it.
fn is_readable<M: Dma>(mem: &M, addr: u64, len: u64) -> bool {
    let mut buf = [0; 256];
    (0..len).step_by(buf.len()).all(|at| {
        let n = (len - at).min(buf.len() as u64) as usize;
        buf.get_mut(..n)
            .is_some_and(|buf| mem.read(addr.wrapping_add(at), buf).is_ok())
    })
}

/// The payload of a frame that arrives.
#[derive(Debug)]
pub enum Payload<'a, M> {
    /// In the memory of the sender's guest, behind headers that the NIC has its own copy of.
    Guest {
        /// Those headers; of RoCE packets mostly none.
        head: &'a [u8],
        /// That memory.
        mem: &'a M,
        /// Where in it.
        segments: &'a [Segment],
        /// Bytes of the segments before it.
        skip: usize,
        /// Bytes, the head's included.
        len: usize,
    },
    /// Octets.
    Bytes(&'a [u8]),
}

impl<M> Clone for Payload<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Payload<'_, M> {}

impl<'a, M: Dma> Payload<'a, M> {
    /// A head that the NIC has written, and `len` bytes in segments of guest memory.
    pub(crate) fn guest(head: &'a [u8], mem: &'a M, segments: &'a [Segment], len: usize) -> Self {
        Self::Guest {
            head,
            mem,
            segments,
            skip: 0,
            len: head.len() + len,
        }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Guest { len, .. } => *len,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part of `len` bytes from offset `at` on; it must lie inside.
    pub fn part(&self, at: usize, len: usize) -> Self {
        match *self {
            Self::Guest {
                head,
                mem,
                segments,
                skip,
                ..
            } => {
                let in_head = at.min(head.len());
                let end = (at + len).min(head.len());
                Self::Guest {
                    head: head.get(in_head..end).unwrap_or(&[]),
                    mem,
                    segments,
                    skip: skip + at - in_head,
                    len,
                }
            }
            Self::Bytes(bytes) => Self::Bytes(bytes.get(at..at + len).unwrap_or(&[])),
        }
    }

    /// Copies `len` bytes from offset `skip` to guest memory at `dst`. Bytes beyond the payload are left out.
    pub fn copy_to(&self, skip: usize, to: &M, dst: u64, len: usize) -> Result<(), CopyError> {
        match self {
            Self::Bytes(bytes) => match bytes.get(skip..(skip + len).min(bytes.len())) {
                Some(part) => to.write(dst, part).map_err(|_| CopyError::Destination),
                None => Ok(()),
            },
            Self::Guest {
                head,
                mem,
                segments,
                skip: before,
                ..
            } => {
                let (mut dst, mut len) = (dst, len);
                let mut skip = skip;
                if let Some(rest) = head.get(skip..).filter(|rest| !rest.is_empty()) {
                    let part = rest.get(..len).unwrap_or(rest);
                    to.write(dst, part).map_err(|_| CopyError::Destination)?;
                    dst += part.len() as u64;
                    len -= part.len();
                    if len == 0 {
                        return Ok(());
                    }
                    skip = head.len();
                }
                let mut skip = (before + skip - head.len()) as u64;
                let mut left = len as u64;
                for segment in *segments {
                    let have = u64::from(segment.len);
                    if skip >= have {
                        skip -= have;
                        continue;
                    }
                    let n = (have - skip).min(left);
                    let src = segment.addr + skip;
                    if to.copy_from(dst, mem, src, n as usize).is_err() {
                        return Err(match is_readable(*mem, src, n) {
                            true => CopyError::Destination,
                            false => CopyError::Source,
                        });
                    }
                    skip = 0;
                    dst += n;
                    left -= n;
                    if left == 0 {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// The same payload, whose first bytes are read into `head` now and will not change any more.
    pub(crate) fn with_own_head<'b>(&self, head: &'b mut [u8]) -> Result<Payload<'b, M>, DmaError>
    where
        'a: 'b,
    {
        let read = self.read(0, head)?;
        let own = head.get(..read).unwrap_or(&[]);
        Ok(match *self {
            Self::Bytes(bytes) => Payload::Bytes(bytes),
            Self::Guest {
                head: before,
                mem,
                segments,
                skip,
                len,
            } if before.len() <= own.len() => Payload::Guest {
                head: own,
                mem,
                segments,
                skip: skip + own.len() - before.len(),
                len,
            },
            // It is as long already.
            whole @ Self::Guest { .. } => whole,
        })
    }

    /// The first bytes of a frame, as many as its headers may have.
    pub(crate) fn head(&self) -> Result<Head, DmaError> {
        let mut head = Head::from_elem(0, self.len().min(MAX_HEADERS));
        self.read(0, &mut head)?;
        Ok(head)
    }

    /// A copy of all of it.
    pub fn to_vec(&self) -> Result<Vec<u8>, DmaError> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads from offset `skip` into `buf`, as much as there is; gives the number of bytes.
    pub fn read(&self, skip: usize, buf: &mut [u8]) -> Result<usize, DmaError> {
        let n = self.len().saturating_sub(skip).min(buf.len());
        match self {
            Self::Bytes(bytes) => {
                if let (Some(src), Some(dst)) = (bytes.get(skip..skip + n), buf.get_mut(..n)) {
                    dst.copy_from_slice(src);
                }
            }
            Self::Guest {
                head,
                mem,
                segments,
                skip: before,
                ..
            } => {
                let from_head = head.get(skip..).unwrap_or(&[]);
                let mut at = from_head.len().min(n);
                if let (Some(to), Some(from)) = (buf.get_mut(..at), from_head.get(..at)) {
                    to.copy_from_slice(from);
                }
                let mut skip = before + skip.max(head.len()) - head.len();
                for segment in *segments {
                    let have = segment.len as usize;
                    if skip >= have {
                        skip -= have;
                        continue;
                    }
                    let part = (have - skip).min(n - at);
                    if part == 0 {
                        break;
                    }
                    if let Some(dst) = buf.get_mut(at..at + part) {
                        mem.read(segment.addr + skip as u64, dst)?;
                    }
                    skip = 0;
                    at += part;
                }
            }
        }
        Ok(n)
    }
}

/// A frame that is no RoCE packet.
#[derive(Debug)]
pub(crate) struct Frame<'a, M> {
    pub payload: Payload<'a, M>,
    /// A NIC of this process has made its checksums.
    pub checked: bool,
    /// Hash of its addresses and ports, if an RSS queue pair has made one.
    pub hash: Option<u32>,
}

impl<M> Clone for Frame<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Frame<'_, M> {}

impl<'a, M> From<Payload<'a, M>> for Frame<'a, M> {
    fn from(payload: Payload<'a, M>) -> Self {
        Self {
            payload,
            checked: false,
            hash: None,
        }
    }
}
