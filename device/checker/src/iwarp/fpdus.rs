//! Octets of a stream become FPDUs.

use faultline_wire::mpa::{Crc32c, Fpdu, Marker, Markers};

use super::segment::Octets;

/// Octets of an FPDU that are kept: its length, an untagged DDP header, and the longest header of RDMAP (RFC 7306 section 5.2.1).
const HEAD: usize = 72;

/// A whole FPDU.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    /// Position of its first octet in the stream, which may be one of a marker.
    pub start: u64,
    /// Octets of the ULPDU.
    pub ulpdu_len: u16,
    /// The first octets of the ULPDU that are known, at most those of all headers.
    pub ulpdu: &'a [u8],
    /// Its padding, if that is known.
    pub pad: Option<&'a [u8]>,
    /// The CRC is right; `None`: octets are missing.
    pub crc: Option<bool>,
    /// Octets of the FPDU, markers included.
    pub len: usize,
    /// The first marker that is wrong: its octets, and the right distance.
    pub wrong_marker: Option<([u8; Marker::LEN], u16)>,
}

impl Whole<'_> {
    /// A number that stands for its length and its DDP header.
    pub(crate) fn digest(&self) -> u32 {
        let mut sum = Crc32c::default();
        sum.update(&self.ulpdu_len.to_be_bytes());
        sum.update(self.ulpdu.get(..14).unwrap_or(self.ulpdu));
        sum.finish()
    }
}

/// True if these octets begin with a whole FPDU without markers, which has a ULPDU and the right CRC.
pub(crate) fn begins(octets: &[u8]) -> bool {
    let Ok((fpdu, _)) = Fpdu::parse(octets) else {
        return false;
    };
    let all = octets.get(..fpdu.len());
    let split = all.and_then(<[u8]>::split_last_chunk::<{ Fpdu::CRC_LEN }>);
    split.is_some_and(|(covered, crc)| {
        let mut sum = Crc32c::default();
        sum.update(covered);
        !fpdu.is_empty() && sum.finish().to_le_bytes() == *crc
    })
}

/// The stream has an FPDU whose length is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// The FPDUs of a stream, and the one that has begun.
#[derive(Debug, Default)]
pub(crate) struct Fpdus {
    /// Position of the first FPDU.
    first: u64,
    has_markers: bool,
    /// Position of its first octet.
    start: u64,
    /// Octets of it that have been seen, without markers.
    done: usize,
    fpdu: Fpdu,
    /// The first octets.
    head: Vec<u8>,
    /// Padding and CRC.
    tail: Vec<u8>,
    crc: Option<Crc32c>,
    /// Octets of a marker that has begun.
    marker: Vec<u8>,
    wrong_marker: Option<([u8; Marker::LEN], u16)>,
    has_unknown: bool,
}

impl Fpdus {
    /// FPDUs from a position on.
    pub(crate) fn new(first: u64, has_markers: bool) -> Self {
        Self {
            first,
            has_markers,
            ..Self::default()
        }
    }

    /// The same stream at the begin of an FPDU.
    pub(crate) fn begin(&self) -> Self {
        Self::new(self.first, self.has_markers)
    }

    /// They have markers. Returns false if the first one has begun.
    pub(crate) fn expect_markers(&mut self) -> bool {
        let is_new = self.crc.is_none() && self.done == 0;
        self.has_markers |= is_new;
        is_new
    }

    /// Takes octets of the stream until an FPDU is whole; `position`: that after `octets`. `Ok(None)`: it continues in later octets.
    pub(crate) fn take(
        &mut self,
        octets: &mut Octets<'_>,
        position: u64,
    ) -> Result<Option<Whole<'_>>, Lost> {
        if self.done >= Fpdu::HEADER_LEN && self.done >= self.fpdu.len() {
            *self = self.begin();
        }
        while octets.len > 0 {
            let at = position.saturating_sub(octets.len as u64);
            if self.crc.is_none() {
                self.start = at;
            }
            let room = match self.until_marker(at) {
                0 => {
                    self.take_marker(octets, at);
                    continue;
                }
                room => room,
            };
            let header = Fpdu::HEADER_LEN.saturating_sub(self.done);
            if header > 0 {
                let part = octets.take(header.min(room));
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
            let part = octets.take(self.fpdu.len().saturating_sub(self.done).min(room));
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

    /// Octets of the FPDU from a position on before the next marker; 0: the octet is one of a marker.
    fn until_marker(&self, at: u64) -> usize {
        if !self.has_markers {
            return usize::MAX;
        }
        let position = at.saturating_sub(self.first);
        let since = position % Markers::INTERVAL;
        match since < Marker::LEN as u64 {
            true => 0,
            false => usize::try_from(Markers::next(position)).unwrap_or(usize::MAX),
        }
    }

    /// Takes a marker, or the part of it that `octets` have, from a position on.
    fn take_marker(&mut self, octets: &mut Octets<'_>, at: u64) {
        let position = at.saturating_sub(self.first);
        let done = position % Markers::INTERVAL;
        let left = (Marker::LEN as u64).saturating_sub(done);
        let part = octets.take(usize::try_from(left).unwrap_or(Marker::LEN));
        // The CRC is not interrupted by a marker: FPDUs are multiples of four octets.
        let sum = self.crc.get_or_insert_with(Crc32c::default);
        sum.update(part.known);
        self.has_unknown |= !part.is_whole();
        self.marker.extend_from_slice(part.known);
        if part.len as u64 == left {
            let found = <[u8; Marker::LEN]>::try_from(std::mem::take(&mut self.marker));
            let start = self.start.saturating_sub(self.first);
            let right = Markers::at(position.saturating_sub(done), start);
            let mut expected = [0; Marker::LEN];
            let _ = right.emit(&mut expected);
            if let Some(found) = found.ok().filter(|found| *found != expected) {
                self.wrong_marker.get_or_insert((found, right.distance));
            }
        }
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
            start: self.start,
            ulpdu_len: self.fpdu.ulpdu_len,
            ulpdu: ulpdu.get(..len).unwrap_or(ulpdu),
            pad: is_known.then_some(pad),
            crc: is_known.then(|| crc == sum.to_le_bytes()),
            len: usize::try_from(end.saturating_sub(self.start)).unwrap_or(usize::MAX),
            wrong_marker: self.wrong_marker,
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let parts = [&self.head, &self.tail, &self.marker].map(Vec::capacity);
        parts.into_iter().fold(0, usize::saturating_add)
    }
}
