//! MPA, the framing of iWARP in a TCP stream (RFC 5044), with the enhanced connection setup of RFC 6581.
//!
//! A connection begins with a request and a reply frame ([`MpaSetup`]). Then each direction is a sequence of FPDUs: a length, a ULPDU
//! (a DDP segment), up to three octets of zeros, and a CRC-32C. [`Fpdu`] has the layout, [`Crc32c`] the checksum.
//!
//! Markers point from fixed positions of the stream to the FPDU around them. An endpoint states in its setup frame whether it wants to
//! *receive* them. This project never does, but inserts them for a peer that does: [`Markers`].
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use bitflags::bitflags;
use crc::{CRC_32_ISCSI, Crc, Table};

use crate::WireError;
use crate::cursor::{Reader, Writer, fits};
use crate::ddp::Ddp;

bitflags! {
    /// Flags of a setup frame (RFC 5044 section 7.1.1; ENHANCED: RFC 6581 section 4).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MpaFlags: u8 {
        /// The sender of the frame wants to receive markers.
        const MARKERS = 0x80;
        /// The sender of the frame wants CRCs in both directions.
        const CRC = 0x40;
        /// In a reply: the connection is rejected.
        const REJECT = 0x20;
        /// The private data begins with [`EnhancedSetup`].
        const ENHANCED = 0x10;
    }
}

/// Direction of a setup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MpaRole {
    /// The active side's frame.
    Request,
    /// The passive side's answer.
    Reply,
}

impl MpaRole {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// The fixed part of a setup frame (RFC 5044 section 7.1.1). The private data follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MpaSetup {
    /// Request or reply.
    pub role: MpaRole,
    /// Flags.
    pub flags: MpaFlags,
    /// Revision: 1, or 2 for RFC 6581.
    pub revision: u8,
    /// Octets of private data, [`EnhancedSetup`] included: at most [`MpaSetup::MAX_PRIVATE_DATA`].
    pub private_data_len: u16,
}

impl MpaSetup {
    /// Length of the fixed part in octets.
    pub const LEN: usize = 20;
    /// Largest length of the private data in octets (RFC 5044 section 7.1.1).
    pub const MAX_PRIVATE_DATA: u16 = 512;

    /// Reads the fixed part; returns it and its length. The caller checks the revision and waits for the private data.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let key = r.take::<16>()?;
        let roles = [MpaRole::Request, MpaRole::Reply];
        let role = roles.into_iter().find(|role| *role.key() == key);
        let role = role.ok_or(WireError::BadKey)?;
        let flags = MpaFlags::from_bits_truncate(r.u8()?);
        let revision = r.u8()?;
        let private_data_len = r.u16()?;
        if private_data_len > Self::MAX_PRIVATE_DATA {
            return Err(WireError::BadLength {
                declared: private_data_len.into(),
                available: Self::MAX_PRIVATE_DATA.into(),
            });
        }
        let setup = Self {
            role,
            flags,
            revision,
            private_data_len,
        };
        Ok((setup, Self::LEN))
    }

    /// Writes the fixed part; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        if self.private_data_len > Self::MAX_PRIVATE_DATA {
            return Err(WireError::FieldOutOfRange {
                field: "private_data_len",
                value: self.private_data_len.into(),
            });
        }
        let mut w = Writer::new(out, Self::LEN)?;
        w.put(*self.role.key())?;
        w.put([self.flags.bits(), self.revision])?;
        w.u16(self.private_data_len)?;
        Ok(Self::LEN)
    }
}

/// The start of the private data of an enhanced setup (RFC 6581 section 4): depths of the READ queues, and the first message of the
/// active side (RTR) by which the passive side learns that it may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EnhancedSetup {
    /// Inbound READ queue depth, 14 bits; [`EnhancedSetup::NOT_NEGOTIATED`]: no statement.
    pub ird: u16,
    /// Outbound READ queue depth, 14 bits; [`EnhancedSetup::NOT_NEGOTIATED`]: no statement.
    pub ord: u16,
    /// Either side may send first (flag A): an RTR message is necessary.
    pub peer_to_peer: bool,
    /// RTR may be an FPDU without data (flag B).
    pub rtr_send: bool,
    /// RTR may be a WRITE without data (flag C).
    pub rtr_write: bool,
    /// RTR may be a READ without data (flag D).
    pub rtr_read: bool,
}

impl EnhancedSetup {
    /// Length in octets.
    pub const LEN: usize = 4;
    /// A depth that its sender does not state.
    pub const NOT_NEGOTIATED: u16 = 0x3fff;

    /// Reads the fields; returns them and their length.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let (ird, ord) = (r.u16()?, r.u16()?);
        let setup = Self {
            ird: ird & Self::NOT_NEGOTIATED,
            ord: ord & Self::NOT_NEGOTIATED,
            peer_to_peer: ird & 0x8000 != 0,
            rtr_send: ird & 0x4000 != 0,
            rtr_write: ord & 0x8000 != 0,
            rtr_read: ord & 0x4000 != 0,
        };
        Ok((setup, Self::LEN))
    }

    /// Writes the fields; returns their length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        fits("ird", self.ird.into(), 14)?;
        fits("ord", self.ord.into(), 14)?;
        let flags = |high: bool, low: bool| u16::from(high) << 15 | u16::from(low) << 14;
        let mut w = Writer::new(out, Self::LEN)?;
        w.u16(flags(self.peer_to_peer, self.rtr_send) | self.ird)?;
        w.u16(flags(self.rtr_write, self.rtr_read) | self.ord)?;
        Ok(Self::LEN)
    }
}

/// The layout of an FPDU without markers (RFC 5044 section 4.1): length, ULPDU, pad, CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fpdu {
    /// Octets of the ULPDU.
    pub ulpdu_len: u16,
}

impl Fpdu {
    /// Length of the header in octets.
    pub const HEADER_LEN: usize = 2;
    /// Length of the CRC in octets.
    pub const CRC_LEN: usize = 4;

    /// Reads the header; returns it and its length. The FPDU may continue in later segments.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let ulpdu_len = Reader::new(buf, Self::HEADER_LEN)?.u16()?;
        Ok((Self { ulpdu_len }, Self::HEADER_LEN))
    }

    /// Writes the header; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        Writer::new(out, Self::HEADER_LEN)?.u16(self.ulpdu_len)?;
        Ok(Self::HEADER_LEN)
    }

    /// Octets of payload in a ULPDU that begins with this header. [`Ddp::parse`] cannot know that the ULPDU ends before the header does:
    /// pad, CRC and the next FPDU follow it.
    pub fn payload_len(&self, header: &Ddp) -> Result<u32, WireError> {
        let (need, have) = (header.header_len(), usize::from(self.ulpdu_len));
        let len = have
            .checked_sub(need)
            .and_then(|len| u32::try_from(len).ok());
        len.ok_or(WireError::Truncated { need, have })
    }

    /// Number of octets of zeros after the ULPDU, which make the FPDU a multiple of 4.
    pub const fn pad_len(&self) -> usize {
        // Header and ULPDU are at most 65537 octets.
        (self.ulpdu_len.wrapping_add(2).wrapping_neg() & 3) as usize
    }

    /// Length from the header to the CRC in octets, at most 65544.
    pub const fn len(&self) -> usize {
        let ulpdu = (self.ulpdu_len as usize).saturating_add(Self::HEADER_LEN);
        ulpdu
            .saturating_add(self.pad_len())
            .saturating_add(Self::CRC_LEN)
    }

    /// True if there is no ULPDU.
    pub const fn is_empty(&self) -> bool {
        self.ulpdu_len == 0
    }
}

static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// The CRC-32C of an FPDU (RFC 5044 section 4.4): over everything before it, markers included. The wire carries it as `to_le_bytes`, like
/// that of iSCSI.
pub struct Crc32c(crc::Digest<'static, u32, Table<16>>);

impl Default for Crc32c {
    fn default() -> Self {
        Self(CRC.digest())
    }
}

impl core::fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Crc32c")
    }
}

impl Crc32c {
    /// Adds the next octets.
    #[inline]
    pub fn update(&mut self, octets: &[u8]) {
        self.0.update(octets);
    }

    /// The CRC.
    #[inline]
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }
}

/// A marker (RFC 5044 section 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marker {
    /// FPDUPTR: octets from the length of the FPDU around the marker to the marker, other markers included; 0 for one before the length.
    pub distance: u16,
}

impl Marker {
    /// Length in octets.
    pub const LEN: usize = 4;

    /// Reads a marker; returns it and its length. The reserved half is ignored.
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        r.u16()?;
        Ok((Self { distance: r.u16()? }, Self::LEN))
    }

    /// Writes a marker; returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u16(0)?;
        w.u16(self.distance)?;
        Ok(Self::LEN)
    }
}

/// Positions of the markers in one direction of a connection (RFC 5044 section 4.3): the first is immediately before the first FPDU, the
/// others follow at every 512th octet of the stream from there.
///
/// A *position* is an offset in the stream from the first marker, and counts markers. An *octet count* is without markers. A marker between
/// two FPDUs belongs to the second one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Markers;

impl Markers {
    /// Octets from one marker to the next.
    pub const INTERVAL: u64 = 512;
    /// Octets of FPDUs between two markers.
    const BETWEEN: u64 = Self::INTERVAL.saturating_sub(Marker::LEN as u64);

    /// Octets from `position` to the next marker: 0 if one begins there.
    pub const fn next(position: u64) -> u64 {
        position.wrapping_neg() % Self::INTERVAL
    }

    /// Octet count before `position`.
    pub const fn octets_before(position: u64) -> u64 {
        let since_marker = position % Self::INTERVAL;
        let whole = (position / Self::INTERVAL).saturating_mul(Self::BETWEEN);
        whole.saturating_add(since_marker.saturating_sub(Marker::LEN as u64))
    }

    /// The position after `octets`, before a marker that follows them.
    pub const fn position_after(octets: u64) -> u64 {
        let markers = octets.div_ceil(Self::BETWEEN);
        octets.saturating_add(markers.saturating_mul(Marker::LEN as u64))
    }

    /// Largest number of markers in an FPDU that has, with them, at most `len` octets.
    pub const fn most_in(len: u64) -> u64 {
        len.div_ceil(Self::INTERVAL)
    }

    /// The marker at `position`, of an FPDU that begins at `start` with its length or with a marker.
    pub fn at(position: u64, start: u64) -> Marker {
        let header = match Self::next(start) {
            0 => start.saturating_add(Marker::LEN as u64),
            _ => start,
        };
        // An FPDU in a segment has less than 65536 octets.
        let distance = u16::try_from(position.saturating_sub(header)).unwrap_or(u16::MAX);
        Marker { distance }
    }
}
