//! Invariant CRC of RoCEv2 packets (IBTA volume 1, chapter 7.8.1 as amended by annex A17.3).
//!
//! CRC-32 (polynomial 0x04c11db7, reflected, as in Ethernet) over eight bytes of ones in place of the
//! LRH, then the packet from the IP header up to but not including the iCRC. Every field that a
//! router may change counts as ones:
//!
//! - IPv4: type of service, time to live, header checksum;
//! - IPv6: traffic class, flow label, hop limit;
//! - UDP: checksum;
//! - BTH: the fifth byte (`resv8a`, where FECN and BECN are).
//!
//! The result is sent least significant byte first, unlike everything else in the packet.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes are.

use core::hint::black_box;

use crc32fast::Hasher;

use crate::{Bth, Ipv4, Ipv6, Udp, WireError};

/// Length of the iCRC in bytes.
pub const ICRC_LEN: usize = 4;

/// CRC-32 of eight bytes of ones.
const LRH_CRC: u32 = 0x2144_df1c;

/// Length of UDP header and BTH.
const TRANSPORT: usize = Udp::LEN + Bth::LEN;
/// Bits of IPv4, UDP and BTH header that count as ones.
#[rustfmt::skip]
const IPV4_ONES: [u8; Ipv4::LEN + TRANSPORT] = [
    // Type of service; time to live; header checksum.
    0, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0,
    // UDP: checksum.
    0, 0, 0, 0, 0, 0, 0xff, 0xff,
    // BTH: resv8a.
    0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0,
];
/// The same for IPv6.
#[rustfmt::skip]
const IPV6_ONES: [u8; Ipv6::LEN + TRANSPORT] = [
    // Traffic class and flow label; hop limit.
    0x0f, 0xff, 0xff, 0xff, 0, 0, 0, 0xff,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    // UDP: checksum.
    0, 0, 0, 0, 0, 0, 0xff, 0xff,
    // BTH: resv8a.
    0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0,
];

/// An incremental iCRC computation.
///
/// ```
/// # use faultline_wire::icrc::Icrc;
/// # fn f(headers: &[u8], payload: &[&[u8]]) -> Result<[u8; 4], faultline_wire::WireError> {
/// let mut icrc = Icrc::new(headers)?; // IP header to the last extended header
/// for piece in payload {
///     icrc.update(piece);
/// }
/// Ok(icrc.finish().to_le_bytes()) // the bytes on the wire
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Starts with `l3`, the packet from its IP header: at least IP, UDP and BTH, optionally more. An
    /// IPv4 header must have no options.
    #[inline]
    pub fn new(l3: &[u8]) -> Result<Self, WireError> {
        let mut icrc = Self::empty();
        let rest = match ip_format(l3)? {
            IpFormat::V4 => icrc.update_masked(l3, &IPV4_ONES)?,
            IpFormat::V6 => icrc.update_masked(l3, &IPV6_ONES)?,
        };
        icrc.update(rest);
        Ok(icrc)
    }

    fn empty() -> Self {
        Self(Hasher::new_with_initial(LRH_CRC))
    }

    /// Adds the first bytes of `l3`, with `ones` set, and returns the rest. They are added as one piece, because a
    /// short piece takes as long as a long one.
    #[inline]
    fn update_masked<'a, const N: usize>(
        &mut self,
        l3: &'a [u8],
        ones: &[u8; N],
    ) -> Result<&'a [u8], WireError> {
        let Some((head, rest)) = l3.split_first_chunk::<N>() else {
            return Err(truncated::<N>(l3));
        };
        self.update(&with_ones(head, ones));
        Ok(rest)
    }

    /// Continues with the next bytes of the packet: the rest of the extended headers, the
    /// payload, the pad.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The iCRC. The wire carries it as `to_le_bytes`.
    #[inline]
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }
}

/// The iCRC of a packet from its IP header up to but not including the iCRC.
#[inline]
pub fn icrc(l3: &[u8]) -> Result<u32, WireError> {
    Icrc::new(l3).map(Icrc::finish)
}

/// Format of the IP header of a packet that has an iCRC.
enum IpFormat {
    V4,
    V6,
}

/// The format of a packet's IP header, if it can have an iCRC with it.
#[inline]
fn ip_format(l3: &[u8]) -> Result<IpFormat, WireError> {
    let Some(first) = l3.first().copied() else {
        return Err(WireError::Truncated { need: 1, have: 0 });
    };
    match first >> 4 {
        4 if usize::from(first & 0xf) * 4 == Ipv4::LEN => Ok(IpFormat::V4),
        4 => Err(WireError::IpOptions(usize::from(first & 0xf) * 4)),
        6 => Ok(IpFormat::V6),
        version => Err(WireError::BadVersion(version)),
    }
}

/// `head` with the bits of `ones` set, in whole words: a compiler that knows `ones` writes single bytes instead, and the CRC's wide
/// load has to wait for such narrow stores before it.
#[inline]
fn with_ones<const N: usize>(head: &[u8; N], ones: &[u8; N]) -> [u8; N] {
    let mut masked = *head;
    for (byte, ones) in masked.iter_mut().zip(black_box(ones)) {
        *byte |= ones;
    }
    masked
}

#[cold]
fn truncated<const N: usize>(bytes: &[u8]) -> WireError {
    WireError::Truncated {
        need: N,
        have: bytes.len(),
    }
}
