//! Payloads of frames that arrive: in the memory of the sender's guest, or octets.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets and lengths are in a frame of bounded length; addresses wrap explicitly"
)]

use crate::dma::{Dma, DmaError};
use crate::headers::{Head, MAX_HEADERS};
use crate::number::to_usize;
use crate::segments::Segment;

/// The side whose memory could not be accessed when a payload was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// The sender's: for the receiver the frame is lost.
    Source,
    /// The receiver's.
    Destination,
}

/// True if all of a piece of memory can be read. For errors only: it reads all of it.
fn is_readable<M: Dma>(mem: &M, addr: u64, len: u64) -> bool {
    let mut buf = [0; 256];
    (0..len).step_by(buf.len()).all(|at| {
        let n = to_usize((len - at).min(buf.len() as u64));
        buf.get_mut(..n)
            .is_some_and(|buf| mem.read(addr.wrapping_add(at), buf).is_ok())
    })
}

/// The payload of a frame that arrives.
#[derive(Debug)]
pub enum Payload<'a, M> {
    /// In the memory of the sender's guest, except for headers, which the NIC has copied.
    Guest {
        /// The private copy; empty for most RoCE packets.
        head: &'a [u8],
        /// That memory.
        mem: &'a M,
        /// Segments of that memory.
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
    #[inline]
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
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Guest { len, .. } => *len,
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// True if the length is 0.
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

    /// Splits off the first `len` bytes. The second part begins at its own first segment.
    #[inline]
    pub(crate) fn split_at(self, len: usize) -> (Self, Self) {
        let (first, mut rest) = (
            self.part(0, len),
            self.part(len, self.len().saturating_sub(len)),
        );
        if let Self::Guest { segments, skip, .. } = &mut rest {
            while let Some((segment, later)) = segments.split_first()
                && segment.len as usize <= *skip
            {
                *skip -= segment.len as usize;
                *segments = later;
            }
        }
        (first, rest)
    }

    /// Copies the first bytes to a segment of guest memory, and removes them.
    #[inline]
    pub(crate) fn move_to(&mut self, to: &M, segment: &Segment) -> Result<(), CopyError> {
        let n = segment.len as usize;
        // The usual case: one segment and no head.
        if let Self::Guest {
            head: [],
            mem,
            segments,
            skip,
            len,
        } = self
            && let Some((first, later)) = segments.split_first()
            && *skip + n <= first.len as usize
        {
            let src = first.addr.wrapping_add(*skip as u64);
            to.copy_from(segment.addr, *mem, src, n)
                .map_err(|_| CopyError::Destination)?;
            *len -= n;
            *skip += n;
            if *skip == first.len as usize {
                (*segments, *skip) = (later, 0);
            }
            return Ok(());
        }
        let (part, rest) = self.split_at(n);
        *self = rest;
        part.copy_to(0, to, segment.addr, n)
    }

    /// Copies `len` bytes from offset `skip` to guest memory at `dst`. Bytes beyond the payload are left out.
    #[inline]
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
                    dst = dst.wrapping_add(part.len() as u64);
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
                    let src = segment.addr.wrapping_add(skip);
                    if to.copy_from(dst, mem, src, to_usize(n)).is_err() {
                        return Err(match is_readable(*mem, src, n) {
                            true => CopyError::Destination,
                            false => CopyError::Source,
                        });
                    }
                    skip = 0;
                    dst = dst.wrapping_add(n);
                    left -= n;
                    if left == 0 {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// The same payload, but its first bytes are read into `head` now and do not change any more.
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
            // Its own head is longer already.
            whole @ Self::Guest { .. } => whole,
        })
    }

    /// The first bytes of a frame, up to the maximum length of its headers.
    pub(crate) fn head(&self) -> Result<Head, DmaError> {
        let mut head = Head::from_elem(0, self.len().min(MAX_HEADERS));
        self.read(0, &mut head)?;
        Ok(head)
    }

    /// A copy of the whole payload.
    pub fn to_vec(&self) -> Result<Vec<u8>, DmaError> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads from offset `skip` into `buf`, up to the end of the payload. Returns the number of bytes.
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
                        mem.read(segment.addr.wrapping_add(skip as u64), dst)?;
                    }
                    skip = 0;
                    at += part;
                }
            }
        }
        Ok(n)
    }
}
