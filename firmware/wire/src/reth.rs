//! RDMA extended transport header (IBTA volume 1, chapter 9.3.3): the remote memory of RDMA READ,
//! RDMA WRITE, ATOMIC WRITE and FLUSH.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::WireError;
use crate::cursor::{Reader, Writer};

/// An RDMA extended transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Remote virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole message in bytes; at most 2^31 (chapter 9.7), which is not checked here.
    pub len: u32,
}

impl Reth {
    /// Length of the header in bytes.
    pub const LEN: usize = 16;

    /// Reads a header; returns it and its length.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        Ok((
            Self {
                addr: r.u64()?,
                rkey: r.u32()?,
                len: r.u32()?,
            },
            Self::LEN,
        ))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u64(self.addr)?;
        w.u32(self.rkey)?;
        w.u32(self.len)?;
        Ok(Self::LEN)
    }
}
