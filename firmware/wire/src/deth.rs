//! Datagram extended transport header (IBTA volume 1, chapter 9.3.2): UD packets.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::WireError;
use crate::cursor::{Reader, Writer};

/// Q_Key of the queue pair of the general services interface (IBTA volume 1, chapter 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// A datagram extended transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source QP, 24 bits.
    pub src_qp: u32,
}

impl Deth {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Reads a header; returns it and its length.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let qkey = r.u32()?;
        let _reserved = r.u8()?;
        let src_qp = r.u24()?;
        Ok((Self { qkey, src_qp }, Self::LEN))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u32(self.qkey)?;
        w.u8(0)?;
        w.u24("src_qp", self.src_qp)?;
        Ok(Self::LEN)
    }
}
