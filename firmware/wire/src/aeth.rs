//! ACK extended transport header (IBTA volume 1, chapter 9.3.5), its syndromes (chapter 9.7.5.1,
//! tables 44 to 46), the credit codes of ACKs (chapter 9.7.7.2) and the time codes of RNR NAK and
//! ACK timeout.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::WireError;
use crate::cursor::{Reader, Writer};

/// Why a responder refused a request (IBTA volume 1, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A PSN arrived out of order: resend from the PSN of the NAK.
    PsnSequenceError = 0,
    /// The request is malformed or not supported by the responder QP.
    InvalidRequest = 1,
    /// The R_Key, its access rights or its range do not allow the request.
    RemoteAccessError = 2,
    /// The responder could not complete a valid request.
    RemoteOperationalError = 3,
    /// Used by the reliable datagram service only.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// Returns the code of a five-bit syndrome value; `None` if reserved.
    pub const fn from_u8(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }

    /// The five-bit syndrome value.
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// Its name in logs and scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PsnSequenceError => "psn",
            Self::InvalidRequest => "invalid_request",
            Self::RemoteAccessError => "remote_access",
            Self::RemoteOperationalError => "remote_op",
            Self::InvalidRdRequest => "invalid_rd_request",
        }
    }
}

/// The syndrome of an AETH (IBTA volume 1, table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// ACK.
    Ack {
        /// End-to-end credit code, 5 bits; 31 means that credits are not used (chapter 9.7.7.2).
        /// See [`credit_count`].
        credits: u8,
    },
    /// RNR NAK: the requester resends after the timer expires.
    RnrNak {
        /// Timer code, 5 bits; see [`rnr_timer_ns`].
        timer: u8,
    },
    /// NAK.
    Nak(NakCode),
    /// A reserved value, unchanged from the wire.
    Reserved(u8),
}

impl Syndrome {
    /// An ACK that does not use end-to-end credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// Decodes a syndrome byte; reserved values become `Reserved`.
    #[inline]
    pub const fn from_u8(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: value },
            0b001 => Self::RnrNak { timer: value },
            0b011 => match NakCode::from_u8(value) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the syndrome byte. Only the low five bits of a credit or timer code are used.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code.to_u8(),
            Self::Reserved(byte) => byte,
        }
    }
}

impl From<u8> for Syndrome {
    fn from(byte: u8) -> Self {
        Self::from_u8(byte)
    }
}

impl From<Syndrome> for u8 {
    fn from(syndrome: Syndrome) -> Self {
        syndrome.to_u8()
    }
}

/// An ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK, with its code.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages completed by the responder.
    pub msn: u32,
}

impl Aeth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Reads a header; returns it and its length.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let syndrome = Syndrome::from_u8(r.u8()?);
        let msn = r.u24()?;
        Ok((Self { syndrome, msn }, Self::LEN))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.u8(self.syndrome.to_u8())?;
        w.u24("msn", self.msn)?;
        Ok(Self::LEN)
    }
}

/// IBTA volume 1, table 45, in units of 10 microseconds.
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The delay of an RNR NAK timer code in nanoseconds (IBTA volume 1, table 45). Code 0 is the
/// longest, 655.36 ms. Only the low five bits of `code` are used.
#[expect(
    clippy::indexing_slicing,
    reason = "the table has an element for each five-bit value"
)]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "entries of the table are below 2^17"
)]
pub const fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[(code & 0x1f) as usize] as u64 * 10_000
}

/// The code of the shortest RNR NAK timer that is at least `ns` nanoseconds; code 0, the
/// longest, if `ns` exceeds all timers.
pub const fn rnr_timer_code(ns: u64) -> u8 {
    let mut code = 1;
    while code < 32 {
        if rnr_timer_ns(code) >= ns {
            return code;
        }
        code = code.wrapping_add(1);
    }
    0
}

/// Receive requests by end-to-end credit code, IBTA volume 1, chapter 9.7.7.2.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// The number of receive requests that the credit code of an ACK announces (IBTA volume 1, chapter
/// 9.7.7.2); `None` if the responder does not use end-to-end credits (code 31). Only the low five
/// bits of `code` are used.
#[expect(
    clippy::indexing_slicing,
    reason = "the table has an element for each five-bit value but 31"
)]
pub const fn credit_count(code: u8) -> Option<u32> {
    match code & 0x1f {
        31 => None,
        code => Some(CREDITS[code as usize]),
    }
}

/// The local ACK timeout of an exponent, in nanoseconds: 4.096 us * 2^exp (IBTA volume 1, chapter
/// 9.9.2); `None` means no timeout (exponent 0). Only the low five bits of `exp` are used.
pub const fn ack_timeout_ns(exp: u8) -> Option<u64> {
    match exp & 0x1f {
        0 => None,
        exp => Some(4096 << exp),
    }
}
