//! Base transport header (IBTA volume 1, chapter 9.2) and packet sequence numbers.
//!
//! Reserved bits are written as zero and ignored on parse. FECN and BECN are the top two bits of
//! the reserved byte `resv8a` of chapter 9.2, as annex A17.9 assigns them; the iCRC masks that byte.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::cursor::{Reader, Writer, fits};
use crate::opcode::BTH_LEN;
use crate::{Opcode, WireError};

/// Number of the queue pair of the general services interface (IBTA volume 1, chapter 3.5.1).
pub const GSI_QPN: u32 = 1;
/// Destination of packets to a multicast group instead of the number of a queue pair (IBTA volume 1, chapter 3.5.1).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// A 24-bit packet sequence number (IBTA volume 1, chapter 9.7.2). Arithmetic wraps at 2^24.
///
/// There is no `Ord`: sequence numbers are ordered only relative to a window; see [`Psn::diff`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The largest sequence number; also the bit mask.
    pub const MAX: u32 = 0xff_ffff;

    /// Creates a PSN from the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MAX)
    }

    /// The value, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The next PSN.
    #[inline]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// The previous PSN.
    #[inline]
    pub const fn prev(self) -> Self {
        self.sub(1)
    }

    /// The PSN `count` after this one. Wraps to 0 after 2^24 - 1.
    #[inline]
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The PSN `count` before this one.
    #[inline]
    pub const fn sub(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// The signed distance from `other` to `self`, in (-2^23, 2^23]: positive when `self` is
    /// later.
    #[inline]
    pub const fn diff(self, other: Self) -> i32 {
        let forward = self.sub(other.0).0 as i32;
        if forward > 1 << 23 {
            forward.wrapping_sub(1 << 24)
        } else {
            forward
        }
    }
}

impl From<u32> for Psn {
    /// As [`Psn::new`].
    fn from(value: u32) -> Self {
        Self::new(value)
    }
}

impl From<Psn> for u32 {
    fn from(psn: Psn) -> Self {
        psn.0
    }
}

/// A base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// Service, operation and position of the packet.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state; set means "migrated", the value of endpoints without path migration.
    pub migration: bool,
    /// Number of pad bytes after the payload, 0 to 3.
    pub pad: u8,
    /// Transport header version, 4 bits; 0 is the only one defined.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification; set in a CNP.
    pub becn: bool,
    /// Destination QP, 24 bits.
    pub dest_qp: u32,
    /// Acknowledge request.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length of the header in bytes.
    pub const LEN: usize = BTH_LEN;
    /// The default partition with full membership (IBTA volume 1, chapter 10.9).
    pub const DEFAULT_PKEY: u16 = 0xffff;

    /// Creates a header with the given values, the default partition, "migrated", and no other flags.
    pub const fn new(opcode: Opcode, dest_qp: u32, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migration: true,
            pad: 0,
            version: 0,
            pkey: Self::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads a header; returns it and its length. Accepts any `version`.
    #[inline(always)]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let opcode = r.u8()?;
        let opcode = Opcode::from_u8(opcode).ok_or(WireError::UnknownOpcode(opcode))?;
        let flags = r.u8()?;
        let pkey = r.u16()?;
        let congestion = r.u8()?;
        let dest_qp = r.u24()?;
        let ack = r.u8()?;
        let psn = Psn::new(r.u24()?);
        let bth = Self {
            opcode,
            solicited: flags & 0x80 != 0,
            migration: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            version: flags & 0xf,
            pkey,
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            dest_qp,
            ack_req: ack & 0x80 != 0,
            psn,
        };
        Ok((bth, Self::LEN))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        fits("pad", self.pad.into(), 2)?;
        fits("version", self.version.into(), 4)?;
        let mut w = Writer::new(out, Self::LEN)?;
        w.u8(self.opcode.to_u8())?;
        w.u8(u8::from(self.solicited) << 7
            | u8::from(self.migration) << 6
            | self.pad << 4
            | self.version)?;
        w.u16(self.pkey)?;
        w.u8(u8::from(self.fecn) << 7 | u8::from(self.becn) << 6)?;
        w.u24("dest_qp", self.dest_qp)?;
        w.u8(u8::from(self.ack_req) << 7)?;
        w.u24("psn", self.psn.get())?;
        Ok(Self::LEN)
    }
}
