//! Path MTU codes (IBTA volume 1, chapter 9.1 and the `PathRecord` MTU field, chapter 15.2).
//!
//! The MTU bounds the payload of one packet, not its headers.
//!
//! # Panics
//!
//! Nothing here panics.

use crate::WireError;

/// The largest payload of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// The MTU in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        128 << (self as u8)
    }

    /// The code on the wire and in verbs, 1 to 5.
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The MTU of a code on the wire or in verbs.
    pub const fn from_code(code: u8) -> Result<Self, WireError> {
        Ok(match code {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return Err(WireError::UnknownCode(code)),
        })
    }

    /// The largest path MTU whose packets fit an IP MTU of `ip_mtu` bytes with any extended headers;
    /// `None` if 256 bytes do not fit.
    pub const fn for_ip_mtu(ip_mtu: usize) -> Option<Self> {
        // Reserves space for the longest headers, as Linux `iboe_get_mtu`.
        const RESERVED: usize = crate::MAX_HEADER_LEN - crate::Ethernet::MAX_LEN + crate::ICRC_LEN;
        let room = ip_mtu.saturating_sub(RESERVED);
        Some(if room >= 4096 {
            Self::Mtu4096
        } else if room >= 2048 {
            Self::Mtu2048
        } else if room >= 1024 {
            Self::Mtu1024
        } else if room >= 512 {
            Self::Mtu512
        } else if room >= 256 {
            Self::Mtu256
        } else {
            return None;
        })
    }
}
