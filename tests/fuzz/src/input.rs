//! Numbers and octets out of an input; zero behind its end. And octets to compare with.

use std::sync::LazyLock;

/// Octets of a pattern that are used.
const PATTERN: usize = 128 << 10;

/// Octets that depend on their position and a number below 16. Made once: with its instrumentation the loop takes longer than
/// many an input.
pub fn pattern(number: usize, len: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let octets =
            |number: usize| (0..PATTERN).map(move |i| (i * i / 11 + i * (number + 1)) as u8);
        (0..16).map(|number| octets(number).collect()).collect()
    });
    &ALL[number][..len]
}

/// The rest of an input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.slice(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    /// Up to `len` octets.
    pub fn slice(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}
