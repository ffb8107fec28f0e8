//! Atomic extended transport header (IBTA volume 1, chapter 9.3) and its acknowledgment
//! header.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::WireError;
use crate::cursor::{Reader, Writer};

/// An atomic request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Remote virtual address; must be 8-byte aligned, which is not checked here.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// The swap value, or the value to add.
    pub swap_add: u64,
    /// The value to compare with; unused by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 28;

    /// Reads a header; returns it and its length.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let eth = Self {
            addr: r.u64()?,
            rkey: r.u32()?,
            swap_add: r.u64()?,
            compare: r.u64()?,
        };
        Ok((eth, Self::LEN))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u64(self.addr)?;
        w.u32(self.rkey)?;
        w.u64(self.swap_add)?;
        w.u64(self.compare)?;
        Ok(Self::LEN)
    }
}

/// An atomic acknowledgment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// The memory content before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Reads a header; returns it and its length.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        Ok((Self { original: r.u64()? }, Self::LEN))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u64(self.original)?;
        Ok(Self::LEN)
    }
}
