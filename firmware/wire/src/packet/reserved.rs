//! Requests of a reliable connection whose opcode is reserved.
//!
//! A responder does not drop such a packet, as it drops others that it can't parse: the requester gets a NAK, if the packet is
//! the expected one (IBTA volume 1, chapter 9.9.6: unsupported or reserved opcode, "invalid request").

use super::{IpHeader, RoceHeader, begin};
use crate::cursor::tail;
use crate::icrc::{ICRC_LEN, icrc};
use crate::{Bth, EtherType, Ethernet, Ipv4, Ipv6, Opcode, Udp};

/// Service of an opcode: its top three bits.
const SERVICE: u8 = 0xe0;

/// An opcode of the same service as a reserved one of RC or XRC.
fn stand_in(opcode: u8) -> Option<Opcode> {
    if Opcode::from_u8(opcode).is_some() {
        return None;
    }
    let known = [Opcode::RcSendOnly, Opcode::XrcSendOnly];
    known
        .into_iter()
        .find(|known| known.to_u8() & SERVICE == opcode & SERVICE)
}

/// Parses a RoCEv2 frame of service RC or XRC whose opcode is reserved. The header has SEND ONLY of this service in place of the
/// opcode, and no extended headers. `None`: another frame, or one that is not intact.
pub fn parse_reserved(frame: &[u8]) -> Option<RoceHeader> {
    let (ethernet, l3) = begin(frame).ok()?;
    match ethernet.ethertype {
        EtherType::IPV4 => parse_ip::<Ipv4>(ethernet, l3),
        _ => parse_ip::<Ipv6>(ethernet, l3),
    }
}

fn parse_ip<H: IpHeader>(ethernet: Ethernet, l3: &[u8]) -> Option<RoceHeader> {
    let (ip, ip_len) = H::parse(l3).ok()?;
    let ip = ip.into();
    let l3 = l3.get(..ip_len + ip.payload_len())?;
    let l4 = tail(l3, ip_len);
    let (udp, udp_len) = Udp::parse(l4).ok()?;
    let (covered, sum) = l3.split_last_chunk::<ICRC_LEN>()?;
    let mut transport = *tail(covered, ip_len + udp_len).first_chunk::<{ Bth::LEN }>()?;
    transport[0] = stand_in(transport[0])?.to_u8();
    let (bth, _) = Bth::parse(&transport).ok()?;
    let is_intact = usize::from(udp.len) == l4.len()
        && udp.is_intact(&ip, l4)
        && icrc(covered).ok()? == u32::from_le_bytes(*sum)
        && bth.version == 0;
    is_intact.then(|| RoceHeader {
        ethernet,
        udp_src_port: udp.src_port,
        ..RoceHeader::new(ethernet.dst, ethernet.src, ip, bth)
    })
}
