//! The four-byte extended headers: immediate data and invalidate (IBTA volume 1, chapter 9.3), XRC
//! (annex A14) and flush (release 1.5, memory placement extensions).
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::WireError;
use crate::cursor::{Reader, Writer, fits};

/// Length of the payload of a CNP in bytes: reserved, written as zero, ignored on receipt (annex A17.9).
pub const CNP_PAYLOAD_LEN: usize = 16;

/// Immediate data: the four bytes of the sender, read as a big-endian number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmDt(pub u32);

/// Invalidate extended transport header: the R_Key to invalidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ieth(pub u32);

/// XRC extended transport header: in every XRC request, directly after the BTH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct XrcEth {
    /// The shared receive queue at the responder, 24 bits.
    pub srqn: u32,
}

/// Flush extended transport header.
///
/// The values are those of release 1.5 as defined in Linux (`IB_FLUSH_*` in `ib_verbs.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Feth {
    /// Selectivity level, 2 bits: [`Feth::RANGE`] or [`Feth::MR`].
    pub selectivity: u8,
    /// Placement type, 4 bits: a set of [`Feth::GLOBAL`] and [`Feth::PERSISTENT`].
    pub placement: u8,
}

impl Feth {
    /// Selectivity: the memory range of the RETH.
    pub const RANGE: u8 = 0;
    /// Selectivity: the whole memory region of the R_Key.
    pub const MR: u8 = 1;
    /// Placement: make globally visible.
    pub const GLOBAL: u8 = 1;
    /// Placement: make persistent.
    pub const PERSISTENT: u8 = 2;
}

macro_rules! four_bytes {
    ($name:ident, $parse:expr, $emit:expr) => {
        impl $name {
            /// Length of the header in bytes.
            pub const LEN: usize = 4;

            /// Reads a header; returns it and its length. Reserved bits are ignored.
            #[inline]
            pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
                let word = Reader::new(buf, Self::LEN)?.u32()?;
                Ok(($parse(word), Self::LEN))
            }

            /// Writes the header; returns its length.
            #[inline]
            pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
                let word: u32 = $emit(self)?;
                Writer::new(out, Self::LEN)?.u32(word)?;
                Ok(Self::LEN)
            }
        }
    };
}

four_bytes!(ImmDt, ImmDt, |imm: &ImmDt| Ok(imm.0));
four_bytes!(Ieth, Ieth, |ieth: &Ieth| Ok(ieth.0));
four_bytes!(
    XrcEth,
    |word: u32| XrcEth {
        srqn: word & 0xff_ffff
    },
    |eth: &XrcEth| fits("srqn", eth.srqn, 24).map(|()| eth.srqn)
);
four_bytes!(
    Feth,
    |word: u32| Feth {
        selectivity: (word >> 4 & 3) as u8,
        placement: (word & 0xf) as u8
    },
    |feth: &Feth| {
        fits("selectivity", feth.selectivity.into(), 2)?;
        fits("placement", feth.placement.into(), 4)?;
        Ok(u32::from(feth.selectivity) << 4 | u32::from(feth.placement))
    }
);
