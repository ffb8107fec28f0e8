//! Octets of a stream become FPDUs.

use faultline_wire::mpa::{Crc32c, Fpdu};

use super::segment::Octets;

/// Octets of an FPDU that are kept: its length, an untagged DDP header, and the longest header of RDMAP (RFC 7306 section 5.2.1).
const HEAD: usize = 72;

/// A whole FPDU.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    /// Position of its first octet in the stream.
    pub start: u64,
    /// Octets of the ULPDU.
    pub ulpdu_len: u16,
    /// The first octets of the ULPDU that are known, at most those of all headers.
    pub ulpdu: &'a [u8],
    /// Its padding, if that is known.
    pub pad: Option<&'a [u8]>,
    /// The CRC is right; `None`: octets are missing.
    pub crc: Option<bool>,
    /// Octets of the FPDU.
    pub len: usize,
}

impl Whole<'_> {
    /// A number that stands for its headers.
    pub(crate) fn digest(&self) -> u32 {
        digest(self.ulpdu_len, self.ulpdu)
    }
}

/// A number that stands for the length and the DDP header of an FPDU.
pub(crate) fn digest(ulpdu_len: u16, ulpdu: &[u8]) -> u32 {
    let mut sum = Crc32c::default();
    sum.update(&ulpdu_len.to_be_bytes());
    sum.update(ulpdu.get(..14).unwrap_or(ulpdu));
    sum.finish()
}

/// Length, ULPDU and result of the CRC of the FPDU with which these octets begin; `None` if it is not whole.
pub(crate) fn read(octets: &[u8]) -> Option<(Fpdu, &[u8], bool)> {
    let (fpdu, at) = Fpdu::parse(octets).ok()?;
    let all = octets.get(..fpdu.len())?;
    let (covered, crc) = all.split_last_chunk::<{ Fpdu::CRC_LEN }>()?;
    let mut sum = Crc32c::default();
    sum.update(covered);
    let ulpdu = covered.get(at..)?.get(..fpdu.ulpdu_len.into())?;
    Some((fpdu, ulpdu, sum.finish().to_le_bytes() == *crc))
}

/// The stream has an FPDU whose length is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// The FPDU that has begun.
#[derive(Debug, Default)]
pub(crate) struct Fpdus {
    /// Octets of it that have been seen.
    done: usize,
    fpdu: Fpdu,
    /// The first octets.
    head: Vec<u8>,
    /// Padding and CRC.
    tail: Vec<u8>,
    crc: Option<Crc32c>,
    has_unknown: bool,
}

impl Fpdus {
    /// Takes octets of the stream until an FPDU is whole; `position`: that after `octets`. `Ok(None)`: it continues in later octets.
    pub(crate) fn take(
        &mut self,
        octets: &mut Octets<'_>,
        position: u64,
    ) -> Result<Option<Whole<'_>>, Lost> {
        if self.done >= Fpdu::HEADER_LEN && self.done >= self.fpdu.len() {
            *self = Self::default();
        }
        while octets.len > 0 {
            let header = Fpdu::HEADER_LEN.saturating_sub(self.done);
            if header > 0 {
                let part = octets.take(header);
                if !part.is_whole() {
                    return Err(Lost);
                }
                self.add(part.known);
                self.done = self.done.saturating_add(part.len);
                if let Ok((fpdu, _)) = Fpdu::parse(&self.head) {
                    self.fpdu = fpdu;
                }
                continue;
            }
            let part = octets.take(self.fpdu.len().saturating_sub(self.done));
            self.add(part.known);
            self.has_unknown |= !part.is_whole();
            self.done = self.done.saturating_add(part.len);
            if self.done >= self.fpdu.len() {
                let end = position.saturating_sub(octets.len as u64);
                return Ok(Some(self.whole(end)));
            }
        }
        Ok(None)
    }

    /// Adds octets that follow the `done` ones.
    fn add(&mut self, known: &[u8]) {
        if !self.has_unknown && self.head.len() < HEAD {
            let room = HEAD.saturating_sub(self.head.len());
            self.head
                .extend_from_slice(known.get(..room).unwrap_or(known));
        }
        let pad = Fpdu::HEADER_LEN.saturating_add(self.fpdu.ulpdu_len.into());
        let crc = self.fpdu.len().saturating_sub(Fpdu::CRC_LEN);
        let before = |end: usize| end.saturating_sub(self.done).min(known.len());
        // The first two octets are covered, too.
        let covered = match self.done < Fpdu::HEADER_LEN {
            true => known.len(),
            false => before(crc),
        };
        let sum = self.crc.get_or_insert_with(Crc32c::default);
        sum.update(known.get(..covered).unwrap_or_default());
        if self.done >= Fpdu::HEADER_LEN && !self.has_unknown {
            self.tail
                .extend_from_slice(known.get(before(pad)..).unwrap_or_default());
        }
    }

    fn whole(&mut self, end: u64) -> Whole<'_> {
        let sum = self.crc.take().unwrap_or_default().finish();
        let split = self.tail.len().saturating_sub(Fpdu::CRC_LEN);
        let (pad, crc) = self.tail.split_at(split);
        let is_known = !self.has_unknown;
        let ulpdu = self.head.get(Fpdu::HEADER_LEN..).unwrap_or_default();
        let len = usize::from(self.fpdu.ulpdu_len);
        Whole {
            start: end.saturating_sub(self.fpdu.len() as u64),
            ulpdu_len: self.fpdu.ulpdu_len,
            ulpdu: ulpdu.get(..len).unwrap_or(ulpdu),
            pad: is_known.then_some(pad),
            crc: is_known.then(|| crc == sum.to_le_bytes()),
            len: self.fpdu.len(),
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.head.capacity().saturating_add(self.tail.capacity())
    }
}
