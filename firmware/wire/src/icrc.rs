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

use crc32fast::Hasher;

use crate::{Bth, Ipv4, Ipv6, Udp, WireError};

/// Length of the iCRC in bytes.
pub const ICRC_LEN: usize = 4;

/// CRC-32 of eight bytes of ones.
const LRH_CRC: u32 = 0x2144_df1c;

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
        let mut icrc = Self(Hasher::new_with_initial(LRH_CRC));
        let rest = match l3.first().map(|byte| byte >> 4) {
            Some(4) => {
                let (mut ip, rest) = split::<{ Ipv4::LEN }>(l3)?;
                if ip[0] & 0xf != 5 {
                    return Err(WireError::IpOptions(usize::from(ip[0] & 0xf) * 4));
                }
                ip[1] = 0xff; // type of service
                ip[8] = 0xff; // time to live
                ip[10] = 0xff; // header checksum
                ip[11] = 0xff;
                icrc.update(&ip);
                rest
            }
            Some(6) => {
                let (mut ip, rest) = split::<{ Ipv6::LEN }>(l3)?;
                ip[0] |= 0x0f; // traffic class and flow label
                ip[1] = 0xff;
                ip[2] = 0xff;
                ip[3] = 0xff;
                ip[7] = 0xff; // hop limit
                icrc.update(&ip);
                rest
            }
            Some(version) => return Err(WireError::BadVersion(version)),
            None => return Err(WireError::Truncated { need: 1, have: 0 }),
        };
        let (mut transport, rest) = split::<{ Udp::LEN + Bth::LEN }>(rest)?;
        transport[6] = 0xff; // UDP checksum
        transport[7] = 0xff;
        transport[Udp::LEN + 4] = 0xff; // resv8a
        icrc.update(&transport);
        icrc.update(rest);
        Ok(icrc)
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

#[inline]
fn split<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), WireError> {
    match bytes.split_first_chunk::<N>() {
        Some((head, rest)) => Ok((*head, rest)),
        None => Err(WireError::Truncated {
            need: N,
            have: bytes.len(),
        }),
    }
}
