//! Frames of a virtio network device: the offloads that their header requests, in software (VIRTIO 1.3, 5.1.6).
//!
//! A guest may leave the checksum of a frame to the device, and the division of a long TCP segment or of several UDP
//! datagrams. The same holds for the host's kernel and a TAP device. Frames on the rings of this process have full
//! checksums and are as long as they are on the wire, so this module does both before. It does not trust the header:
//! the lengths of headers are read from the frame.
//!
//! UDP segmentation is not offered to guests. Segmentation of tunnels is not supported.

use faultline_wire::checksum::InternetSum;

use crate::channel::MAX_FRAME;

/// Octets of the header, with the number of buffers.
pub const HEADER: usize = 12;
/// Octets of the header of a driver that knows neither VIRTIO 1 nor mergeable buffers.
pub const LEGACY_HEADER: usize = 10;

/// Flag of the header: the checksum is left to the device.
const NEEDS_CSUM: u8 = 1;
/// Kinds of segmentation, and the flag of a frame whose CWR is for its first segment.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
const UDP: usize = 8;
const VLAN_TAG: usize = 4;
/// VLAN tags, and extension headers of IPv6, that are read past.
const MAX_TAGS: usize = 2;
const MAX_EXTENSIONS: usize = 8;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// Extension headers of IPv6 that do not change the destination: hop-by-hop options, destination options.
const HOP_BY_HOP: u8 = 0;
const DESTINATION: u8 = 60;

/// Flags of TCP that only the first or only the last segment has.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// Why a frame of a guest or of the host's kernel is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It has no Ethernet header.
    #[error("a frame of {0} octets; an Ethernet header has {ETHERNET}")]
    TooShort(usize),
    /// The checksum is not within the frame.
    #[error("a checksum from octet {start} at {offset} in a frame of {length} octets")]
    Checksum {
        /// First octet that is summed.
        start: u16,
        /// Place of the checksum behind it.
        offset: u16,
        /// Octets of the frame.
        length: usize,
    },
    /// An unknown kind of segmentation.
    #[error("gso_type {0}; 1 (TCP over IPv4), 4 (TCP over IPv6) and 5 (UDP) are known")]
    Kind(u8),
    /// Segments without payload, or longer than IP allows.
    #[error("gso_size {0} is not a length of a segment")]
    SegmentSize(u16),
    /// The frame is not of the kind that `gso_type` says.
    #[error("headers of a frame to be segmented are not those of its gso_type, or fragmented")]
    Headers,
}

/// Two octets at `at`, big-endian.
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let octets = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*octets))
}

/// Two octets of a header of virtio, little-endian; 0 if it is shorter.
fn le16(bytes: &[u8], at: usize) -> u16 {
    let octets = bytes.get(at..).and_then(|rest| rest.first_chunk());
    octets.map_or(0, |octets| u16::from_le_bytes(*octets))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    let to = bytes.get_mut(at..)?.get_mut(..value.len())?;
    to.copy_from_slice(value);
    Some(())
}

/// EtherType and offset of the network header of a frame, behind VLAN tags.
fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = ETHERNET;
    for _ in 0..=MAX_TAGS {
        let kind = be16(frame, at.checked_sub(2)?)?;
        match kind {
            0x8100 | 0x88a8 => at = at.checked_add(VLAN_TAG)?,
            _ => return Some((kind, at)),
        }
    }
    None
}

/// Offset of the transport header of an IPv4 packet, and its protocol; `None` for a fragment.
fn transport_v4(frame: &[u8], network: usize) -> Option<(usize, u8)> {
    let ip = frame.get(network..)?;
    let length = usize::from(ip.first()? & 0xf).checked_mul(4)?;
    let is_fragment = be16(ip, 6)? & 0x3fff != 0;
    if ip.first()? >> 4 != 4 || length < IPV4 || is_fragment {
        return None;
    }
    Some((network.checked_add(length)?, *ip.get(9)?))
}

/// Offset of the transport header of an IPv6 packet, and its protocol.
fn transport_v6(frame: &[u8], network: usize) -> Option<(usize, u8)> {
    let ip = frame.get(network..)?;
    if ip.first()? >> 4 != 6 {
        return None;
    }
    let mut next = *ip.get(6)?;
    let mut at = network.checked_add(IPV6)?;
    for _ in 0..=MAX_EXTENSIONS {
        if !matches!(next, HOP_BY_HOP | DESTINATION) {
            return Some((at, next));
        }
        let header = frame.get(at..)?;
        let length = usize::from(*header.get(1)?)
            .checked_add(1)?
            .checked_mul(8)?;
        next = *header.first()?;
        at = at.checked_add(length)?;
    }
    None
}

fn transport(frame: &[u8]) -> Option<(usize, usize, u8)> {
    let (kind, network) = network(frame)?;
    let (transport, protocol) = match kind {
        0x0800 => transport_v4(frame, network)?,
        0x86dd => transport_v6(frame, network)?,
        _ => return None,
    };
    Some((network, transport, protocol))
}

/// A number that is the same for all frames of a connection, to divide them between queues.
pub fn flow(frame: &[u8]) -> u32 {
    let Some((kind, network)) = network(frame) else {
        return 0;
    };
    let (addresses, length) = match kind {
        0x0800 => (12, 8),
        0x86dd => (8, 32),
        _ => return 0,
    };
    let ip = frame.get(network..).unwrap_or_default();
    let addresses = ip.get(addresses..).and_then(|rest| rest.get(..length));
    let ports = transport(frame)
        .filter(|(.., protocol)| matches!(*protocol, PROTOCOL_TCP | PROTOCOL_UDP))
        .and_then(|(_, transport, _)| frame.get(transport..)?.get(..4));
    let octets = addresses.into_iter().chain(ports).flatten();
    // FNV-1a; its low bits are good enough for a handful of queues.
    let hash = octets.fold(0x811c_9dc5u32, |hash, octet| {
        (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193)
    });
    hash ^ hash >> 16
}

/// Fields of the transport header that the segments of a frame share.
#[derive(Clone, Copy, Debug)]
enum Transport {
    Tcp { sequence: u32, flags: u8 },
    Udp,
}

impl Transport {
    /// Reads a transport header. Returns its length, too.
    fn read(header: &[u8], protocol: u8) -> Option<(Self, usize)> {
        let (transport, length) = match protocol {
            PROTOCOL_TCP => {
                let transport = Self::Tcp {
                    sequence: u32::from_be_bytes(*header.get(4..)?.first_chunk()?),
                    flags: *header.get(13)?,
                };
                let length = usize::from(header.get(12)? >> 4).checked_mul(4)?;
                (transport, (length >= TCP).then_some(length)?)
            }
            PROTOCOL_UDP => (Self::Udp, UDP),
            _ => return None,
        };
        (header.len() >= length).then_some((transport, length))
    }
}

/// A frame that is to be divided.
#[derive(Clone, Copy, Debug)]
struct Segments {
    is_v6: bool,
    network: usize,
    transport_at: usize,
    /// Octets of all headers.
    headers: usize,
    mss: usize,
    id: u16,
    transport: Transport,
    /// Octets of payload that have been sent, and segments.
    done: usize,
    count: u16,
}

impl Segments {
    fn new(frame: &[u8], kind: u8, mss: u16, start: u16) -> Result<Self, Malformed> {
        let segments = Self::of(frame, usize::from(mss)).ok_or(Malformed::Headers)?;
        let is_as_named = match (kind & !GSO_ECN, segments.transport) {
            (GSO_TCPV4, Transport::Tcp { .. }) => !segments.is_v6,
            (GSO_TCPV6, Transport::Tcp { .. }) => segments.is_v6,
            (GSO_UDP_L4, Transport::Udp) => true,
            (GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4, _) => false,
            _ => return Err(Malformed::Kind(kind)),
        };
        if !is_as_named || segments.transport_at != usize::from(start) {
            return Err(Malformed::Headers);
        }
        let payload = frame.len().saturating_sub(segments.headers);
        // The octets that the length field of IP counts.
        let counted_from = match segments.is_v6 {
            true => segments.network.saturating_add(IPV6),
            false => segments.network,
        };
        let longest = segments
            .headers
            .saturating_sub(counted_from)
            .saturating_add(payload.min(segments.mss));
        if mss == 0 || longest > usize::from(u16::MAX) {
            return Err(Malformed::SegmentSize(mss));
        }
        Ok(segments)
    }

    fn of(frame: &[u8], mss: usize) -> Option<Self> {
        let (kind, _) = network(frame)?;
        let (network, transport_at, protocol) = transport(frame)?;
        let (transport, length) = Transport::read(frame.get(transport_at..)?, protocol)?;
        let is_v6 = kind == 0x86dd;
        let id = match is_v6 {
            true => 0,
            false => be16(frame, network.checked_add(4)?)?,
        };
        Some(Self {
            is_v6,
            network,
            transport_at,
            headers: transport_at.checked_add(length)?,
            mss,
            id,
            transport,
            done: 0,
            count: 0,
        })
    }

    /// Writes the next segment into `to`. Returns false if it was the last.
    fn next(&mut self, frame: &[u8], to: &mut Vec<u8>) -> Option<bool> {
        let payload = frame.get(self.headers..)?;
        let end = self.done.checked_add(self.mss)?.min(payload.len());
        let is_last = end == payload.len();
        to.clear();
        to.extend_from_slice(frame.get(..self.headers)?);
        to.extend_from_slice(payload.get(self.done..end)?);
        self.write_ip(to)?;
        self.write_transport(to, is_last)?;
        self.done = end;
        self.count = self.count.wrapping_add(1);
        Some(!is_last)
    }

    fn write_ip(&self, to: &mut [u8]) -> Option<()> {
        let counted = to.len().checked_sub(self.network)?;
        let ip = to.get_mut(self.network..)?;
        if self.is_v6 {
            let length = u16::try_from(counted.checked_sub(IPV6)?).ok()?;
            return put(ip, 4, &length.to_be_bytes());
        }
        let length = u16::try_from(counted).ok()?;
        put(ip, 2, &length.to_be_bytes())?;
        put(ip, 4, &self.id.wrapping_add(self.count).to_be_bytes())?;
        put(ip, 10, &[0; 2])?;
        let header = ip.get_mut(..self.transport_at.checked_sub(self.network)?)?;
        let mut sum = InternetSum::default();
        sum.add(header);
        put(header, 10, &sum.checksum().to_be_bytes())
    }

    fn write_transport(&self, to: &mut [u8], is_last: bool) -> Option<()> {
        let mut sum = InternetSum::default();
        let (at, octets) = if self.is_v6 { (8, 32) } else { (12, 8) };
        let addresses = to.get(self.network.checked_add(at)?..)?.get(..octets)?;
        sum.add(addresses);
        let header = to.get_mut(self.transport_at..)?;
        let length = u16::try_from(header.len()).ok()?;
        sum.add_number(u64::from(length));
        match self.transport {
            Transport::Tcp { sequence, flags } => {
                let done = u32::try_from(self.done).ok()?;
                put(header, 4, &sequence.wrapping_add(done).to_be_bytes())?;
                put(header, 13, &[self.tcp_flags(flags, is_last)])?;
                sum.add_number(u64::from(PROTOCOL_TCP));
                put(header, 16, &[0; 2])?;
                sum.add(header);
                put(header, 16, &sum.checksum().to_be_bytes())
            }
            Transport::Udp => {
                put(header, 4, &length.to_be_bytes())?;
                sum.add_number(u64::from(PROTOCOL_UDP));
                put(header, 6, &[0; 2])?;
                sum.add(header);
                put(header, 6, &udp_checksum(sum).to_be_bytes())
            }
        }
    }

    fn tcp_flags(&self, mut flags: u8, is_last: bool) -> u8 {
        if !is_last {
            flags &= !(FIN | PSH);
        }
        if self.done > 0 {
            flags &= !CWR;
        }
        flags
    }
}

/// The unsent part of a frame.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    Whole,
    Segments(Segments),
}

/// A frame of a guest on its way to the engine.
#[derive(Debug)]
pub struct Transmission {
    /// Header of virtio and frame, as the guest has written them.
    buffer: Vec<u8>,
    header: usize,
    segment: Vec<u8>,
    rest: Rest,
}

impl Default for Transmission {
    fn default() -> Self {
        Self {
            buffer: Vec::with_capacity(HEADER.saturating_add(MAX_FRAME)),
            header: HEADER,
            segment: Vec::with_capacity(MAX_FRAME),
            rest: Rest::Nothing,
        }
    }
}

impl Transmission {
    /// Buffer for the next frame of the guest, behind its header. Drops the rest of the previous frame.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.rest = Rest::Nothing;
        self.buffer.clear();
        &mut self.buffer
    }

    /// Reads the header of the frame in the buffer, which has `header` octets.
    ///
    /// # Errors
    ///
    /// The header requests an offload that cannot be done. The frame is not sent then.
    pub fn start(&mut self, header: usize) -> Result<(), Malformed> {
        self.rest = Rest::Nothing;
        self.header = header;
        let (head, frame) = self
            .buffer
            .split_at_mut_checked(header)
            .ok_or(Malformed::TooShort(0))?;
        if frame.len() < ETHERNET {
            return Err(Malformed::TooShort(frame.len()));
        }
        let flags = head.first().copied().unwrap_or(0);
        let kind = head.get(1).copied().unwrap_or(GSO_NONE);
        let (mss, start, offset) = (le16(head, 4), le16(head, 6), le16(head, 8));
        let needs_checksum = flags & NEEDS_CSUM != 0;
        self.rest = match kind & !GSO_ECN {
            GSO_NONE => {
                if needs_checksum {
                    complete(frame, start, offset)?;
                }
                Rest::Whole
            }
            _ if !needs_checksum => return Err(Malformed::Headers),
            _ => Rest::Segments(Segments::new(frame, kind, mss, start)?),
        };
        Ok(())
    }

    /// True if there are frames to send.
    pub fn is_pending(&self) -> bool {
        !matches!(self.rest, Rest::Nothing)
    }

    /// The next frame for the engine.
    pub fn next_frame(&mut self) -> Option<&[u8]> {
        let frame = self.buffer.get(self.header..)?;
        match &mut self.rest {
            Rest::Nothing => None,
            Rest::Whole => {
                self.rest = Rest::Nothing;
                Some(frame)
            }
            Rest::Segments(segments) => {
                let more = segments.next(frame, &mut self.segment);
                if more != Some(true) {
                    self.rest = Rest::Nothing;
                }
                more.map(|_| self.segment.as_slice())
            }
        }
    }
}

/// Completes a checksum that begins at `start` and is stored `offset` octets behind.
fn complete(frame: &mut [u8], start: u16, offset: u16) -> Result<(), Malformed> {
    let length = frame.len();
    put_checksum(frame, usize::from(start), usize::from(offset)).ok_or(Malformed::Checksum {
        start,
        offset,
        length,
    })
}

/// The driver has put the sum of the pseudo header where the checksum will be.
fn put_checksum(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    if start < ETHERNET {
        return None;
    }
    let mut sum = InternetSum::default();
    sum.add(frame.get(start..)?);
    let at = start.checked_add(offset)?;
    put(frame, at, &udp_checksum(sum).to_be_bytes())
}

/// 0 means "none" in UDP; 0xffff is the same number.
fn udp_checksum(sum: InternetSum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Header of a frame for a guest, in `buffers` buffers: nothing is left to the guest.
pub fn receive_header(buffers: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    if let Some(to) = header.last_chunk_mut() {
        *to = buffers.to_le_bytes();
    }
    header
}
