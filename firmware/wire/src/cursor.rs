//! Bounds-checked big-endian reading and writing, shared by all headers.
//!
//! Nothing here panics: an access beyond the end returns an error. Each header checks its whole
//! length once in [`Reader::new`] or [`Writer::new`], so the compiler removes the checks of each
//! field.

use crate::WireError;

pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader over the first `len` bytes of `buf`.
    #[inline]
    pub(crate) fn new(buf: &'a [u8], len: usize) -> Result<Self, WireError> {
        match buf.get(..len) {
            Some(rest) => Ok(Self { rest }),
            None => Err(WireError::Truncated {
                need: len,
                have: buf.len(),
            }),
        }
    }

    #[inline]
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(*head)
            }
            None => Err(WireError::Truncated {
                need: N,
                have: self.rest.len(),
            }),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        let [byte] = self.take::<1>()?;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.take()?))
    }

    #[inline]
    pub(crate) fn u24(&mut self) -> Result<u32, WireError> {
        let [a, b, c] = self.take::<3>()?;
        Ok(u32::from_be_bytes([0, a, b, c]))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.take()?))
    }
}

pub(crate) struct Writer<'a> {
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Creates a writer over the first `len` bytes of `buf`.
    #[inline]
    pub(crate) fn new(buf: &'a mut [u8], len: usize) -> Result<Self, WireError> {
        let have = buf.len();
        match buf.get_mut(..len) {
            Some(rest) => Ok(Self { rest }),
            None => Err(WireError::BufferTooSmall { need: len, have }),
        }
    }

    #[inline]
    pub(crate) fn put<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), WireError> {
        let rest = core::mem::take(&mut self.rest);
        let have = rest.len();
        match rest.split_first_chunk_mut::<N>() {
            Some((head, rest)) => {
                *head = bytes;
                self.rest = rest;
                Ok(())
            }
            None => Err(WireError::BufferTooSmall { need: N, have }),
        }
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) -> Result<(), WireError> {
        self.put([value])
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) -> Result<(), WireError> {
        self.put(value.to_be_bytes())
    }

    /// Writes 24 bits. The error for a larger value contains the name `field`.
    #[inline]
    pub(crate) fn u24(&mut self, field: &'static str, value: u32) -> Result<(), WireError> {
        let [high, a, b, c] = value.to_be_bytes();
        if high != 0 {
            return Err(WireError::FieldOutOfRange { field, value });
        }
        self.put([a, b, c])
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) -> Result<(), WireError> {
        self.put(value.to_be_bytes())
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) -> Result<(), WireError> {
        self.put(value.to_be_bytes())
    }
}

/// Returns an error if `value` is not below 2^`bits`.
#[inline]
pub(crate) fn fits(field: &'static str, value: u32, bits: u32) -> Result<(), WireError> {
    if value.checked_shr(bits).unwrap_or(0) == 0 {
        Ok(())
    } else {
        Err(WireError::FieldOutOfRange { field, value })
    }
}

/// The bytes of `buf` from offset `at`; empty if `buf` is shorter.
#[inline]
pub(crate) fn tail(buf: &[u8], at: usize) -> &[u8] {
    buf.get(at..).unwrap_or_default()
}

/// The mutable form of [`tail`].
#[inline]
pub(crate) fn tail_mut(buf: &mut [u8], at: usize) -> &mut [u8] {
    buf.get_mut(at..).unwrap_or_default()
}
