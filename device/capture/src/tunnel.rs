//! Frames in tunnels and behind several VLAN tags, as mirrors and switches hand them to captures: the frame inside is judged.
//!
//! Known are VXLAN (RFC 7348), GRE with Ethernet or IP inside (RFC 2784, RFC 2890), ERSPAN types I to III in GRE, and several VLAN tags (IEEE
//! 802.1ad); the last tag is kept. IP fragments are not put together.

use faultline_wire::EtherType;
use faultline_wire::ip::PROTOCOL_UDP;

/// Tunnels in tunnels that are looked into.
const MOST_LAYERS: usize = 4;
/// Two MAC addresses.
const ADDRESSES: usize = 12;
/// The shortest header of IPv4.
const IPV4_LEN: usize = 20;
/// EtherTypes of outer VLAN tags: 802.1ad, and the one that was used before it.
const SERVICE_TAG: u16 = 0x88a8;
const OLD_SERVICE_TAG: u16 = 0x9100;
const PROTOCOL_GRE: u8 = 47;
/// UDP ports of VXLAN: that of IANA, and the default of Linux.
const VXLAN: [u16; 2] = [4789, 8472];
/// Flags of a VXLAN header: it has an identifier.
const VXLAN_FLAGS: u8 = 0x08;
/// Protocols in GRE beside IP.
const ETHERNET: u16 = 0x6558;
const ERSPAN: u16 = 0x88be;
const ERSPAN_3: u16 = 0x22eb;
/// Flags of GRE: a checksum, a key, a sequence number; the version.
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
const GRE_VERSION: u16 = 7;

/// A frame that was in a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    /// What is known of it.
    pub octets: Vec<u8>,
    /// Its length as its IP header says.
    pub length: usize,
}

/// Takes a frame out of its tunnels. `None`: it is in none.
pub(crate) fn unwrap(frame: &[u8]) -> Option<Inner> {
    let mut octets = layer(frame)?;
    for _ in 1..MOST_LAYERS {
        match layer(&octets) {
            Some(inner) => octets = inner,
            None => break,
        }
    }
    let length = length(&octets).unwrap_or(octets.len());
    // Padding of a short frame is not part of it.
    octets.truncate(length);
    Some(Inner { octets, length })
}

fn short(octets: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*octets.get(at..)?.first_chunk()?))
}

/// The VLAN tags of a frame, and the place behind its EtherType.
fn tags(frame: &[u8]) -> Option<(usize, usize)> {
    let is_tag = |kind| matches!(kind, EtherType::VLAN | SERVICE_TAG | OLD_SERVICE_TAG);
    let (mut count, mut at) = (0_usize, ADDRESSES);
    while is_tag(short(frame, at)?) {
        count = count.saturating_add(1);
        at = at.saturating_add(4);
    }
    Some((count, at.saturating_add(2)))
}

/// Protocol and payload of an IP packet that is no fragment, without padding behind it.
fn ip(kind: u16, packet: &[u8]) -> Option<(u8, &[u8])> {
    let (protocol, header, end) = match kind {
        EtherType::IPV4 => {
            let header = usize::from(packet.first()? & 0xf).saturating_mul(4);
            if short(packet, 6)? & 0x3fff != 0 {
                return None;
            }
            // A frame that the adapter was to divide has no length.
            let end = match usize::from(short(packet, 2)?) {
                0 => packet.len(),
                end => end,
            };
            (*packet.get(9)?, header, end)
        }
        EtherType::IPV6 => {
            let end = usize::from(short(packet, 4)?).saturating_add(40);
            (*packet.get(6)?, 40, end)
        }
        _ => return None,
    };
    let payload = packet.get(header..end.min(packet.len()))?;
    Some((protocol, payload))
}

/// Takes a frame out of one tunnel, or all of its VLAN tags but the last from it.
fn layer(frame: &[u8]) -> Option<Vec<u8>> {
    let (tags, at) = tags(frame)?;
    let kind = short(frame, at.checked_sub(2)?)?;
    let addresses = frame.get(..ADDRESSES)?;
    if let Some((protocol, payload)) = ip(kind, frame.get(at..)?) {
        let inner = match protocol {
            PROTOCOL_UDP => vxlan(payload).map(<[u8]>::to_vec),
            PROTOCOL_GRE => gre(addresses, payload),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
    }
    let is_single = short(frame, ADDRESSES)? == EtherType::VLAN;
    if tags == 0 || tags == 1 && is_single {
        return None;
    }
    // From the contents of the last tag on.
    let last = frame.get(at.checked_sub(4)?..)?;
    Some([addresses, &EtherType::VLAN.to_be_bytes(), last].concat())
}

fn vxlan(datagram: &[u8]) -> Option<&[u8]> {
    const UDP: usize = 8;
    let is_vxlan = VXLAN.contains(&short(datagram, 2)?) && datagram.get(UDP)? & VXLAN_FLAGS != 0;
    datagram.get(UDP.saturating_add(8)..).filter(|_| is_vxlan)
}

/// `addresses`: those of the frame around it, for an IP packet without any.
fn gre(addresses: &[u8], packet: &[u8]) -> Option<Vec<u8>> {
    let (flags, protocol) = (short(packet, 0)?, short(packet, 2)?);
    if flags & GRE_VERSION != 0 {
        return None;
    }
    let optional = [GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE];
    let count = optional.iter().filter(|flag| flags & **flag != 0).count();
    let payload = packet.get(count.saturating_mul(4).saturating_add(4)..)?;
    let skipped = match protocol {
        EtherType::IPV4 | EtherType::IPV6 => {
            return Some([addresses, &protocol.to_be_bytes(), payload].concat());
        }
        ETHERNET => 0,
        // Type I has no header, and no sequence number in GRE.
        ERSPAN if flags & GRE_SEQUENCE == 0 => 0,
        ERSPAN => 8,
        // The last bit of the header says that a subheader follows.
        ERSPAN_3 if payload.get(11)? & 1 != 0 => 20,
        ERSPAN_3 => 12,
        _ => return None,
    };
    payload.get(skipped..).map(<[u8]>::to_vec)
}

/// Length of a frame as its IP header says. `None`: it says nothing, or what can't be.
fn length(frame: &[u8]) -> Option<usize> {
    let (_, at) = tags(frame)?;
    let packet = frame.get(at..)?;
    let length = match short(frame, at.checked_sub(2)?)? {
        EtherType::IPV4 => Some(short(packet, 2)?.into()).filter(|length| *length >= IPV4_LEN)?,
        EtherType::IPV6 => usize::from(short(packet, 4)?).saturating_add(40),
        _ => return None,
    };
    Some(at.saturating_add(length))
}
