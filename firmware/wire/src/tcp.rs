//! TCP header (RFC 9293 section 3.1) and its options: maximum segment size, window scale and timestamps (RFC 7323), selective
//! acknowledgment (RFC 2018).
//!
//! [`Tcp::parse`] skips options that it does not know (RFC 9293, MUST-6) and refuses a malformed option list as a whole: no field of
//! such a header can be trusted. Bits that are reserved, and the AE flag of accurate ECN, are ignored and written as zero.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use bitflags::bitflags;

use crate::checksum::InternetSum;
use crate::cursor::{Reader, Writer, tail};
use crate::ip::PROTOCOL_TCP;
use crate::{Ip, WireError};

/// A sequence number (RFC 9293 section 3.4). Arithmetic wraps at 2^32.
///
/// There is no `Ord`: sequence numbers are ordered only relative to a window; see [`Seq::diff`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// The sequence number `octets` after this one.
    #[inline]
    pub const fn add(self, octets: u32) -> Self {
        Self(self.0.wrapping_add(octets))
    }

    /// The signed distance from `other` to `self`: positive when `self` is later.
    #[inline]
    pub const fn diff(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

bitflags! {
    /// Control bits (RFC 9293 section 3.1; CWR and ECE: RFC 3168 section 6.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TcpFlags: u8 {
        /// No more data from the sender.
        const FIN = 1 << 0;
        /// Synchronize sequence numbers.
        const SYN = 1 << 1;
        /// Reset the connection.
        const RST = 1 << 2;
        /// Push.
        const PSH = 1 << 3;
        /// The acknowledgment field is significant.
        const ACK = 1 << 4;
        /// The urgent pointer is significant.
        const URG = 1 << 5;
        /// Echo of a congestion mark.
        const ECE = 1 << 6;
        /// The congestion window has been reduced.
        const CWR = 1 << 7;
    }
}

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timestamps {
    /// TSval: the clock of the sender.
    pub value: u32,
    /// TSecr: the last TSval of the peer.
    pub echo: u32,
}

/// The blocks of a selective acknowledgment (RFC 2018 section 3): up to four, up to three beside timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); Self::MAX],
    len: u8,
}

impl SackBlocks {
    /// The largest number of blocks in an option.
    pub const MAX: usize = 4;

    /// Adds a block: the first octet, and the octet after the last. Returns false if there is no room.
    #[inline]
    pub fn push(&mut self, left: Seq, right: Seq) -> bool {
        match self.blocks.get_mut(usize::from(self.len)) {
            Some(block) => {
                *block = (left, right);
                self.len = self.len.saturating_add(1);
                true
            }
            None => false,
        }
    }

    /// The blocks, as their first octet and the octet after their last.
    #[inline]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        self.blocks.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// The options of a TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpOptions {
    /// Maximum segment size in octets; in SYN segments only.
    pub mss: Option<u16>,
    /// Window scale: the shift count, as sent (RFC 7323 section 2.3 limits its use to 14); in SYN segments only.
    pub window_scale: Option<u8>,
    /// SACK permitted; in SYN segments only.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgment.
    pub sack: SackBlocks,
}

/// Option kinds (IANA, TCP option kind numbers).
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
}

impl TcpOptions {
    /// The largest length of all options in octets.
    pub const MAX_LEN: usize = 40;

    /// Length on the wire in octets, padding included: a multiple of 4. More than [`TcpOptions::MAX_LEN`] if the options do not fit
    /// into a header.
    #[inline]
    pub fn len(&self) -> usize {
        let mut len: usize = 0;
        let mut add = |present: bool, octets: usize| {
            if present {
                len = len.saturating_add(octets);
            }
        };
        add(self.mss.is_some(), 4);
        add(self.window_scale.is_some(), 4);
        add(self.sack_permitted, 4);
        add(self.timestamps.is_some(), 12);
        let blocks = self.sack.as_slice().len();
        add(blocks > 0, blocks.saturating_mul(8).saturating_add(4));
        len
    }

    /// True if there are no options.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn parse(mut rest: &[u8]) -> Result<Self, WireError> {
        let mut options = Self::default();
        while let Some((&kind, after)) = rest.split_first() {
            match kind {
                kind::END => break,
                kind::NOP => rest = after,
                _ => {
                    let len = after.first().copied().unwrap_or_default();
                    let (option, next) = (usize::from(len) >= 2)
                        .then(|| rest.split_at_checked(len.into()))
                        .flatten()
                        .ok_or(WireError::BadOption(kind))?;
                    options.read(kind, tail(option, 2))?;
                    rest = next;
                }
            }
        }
        Ok(options)
    }

    /// Reads the data of one option.
    fn read(&mut self, kind: u8, data: &[u8]) -> Result<(), WireError> {
        let bad = WireError::BadOption(kind);
        match kind {
            kind::MSS => {
                let mss = <[u8; 2]>::try_from(data).map_err(|_| bad)?;
                self.mss = Some(u16::from_be_bytes(mss));
            }
            kind::WINDOW_SCALE => {
                let [shift] = <[u8; 1]>::try_from(data).map_err(|_| bad)?;
                self.window_scale = Some(shift);
            }
            kind::SACK_PERMITTED if data.is_empty() => self.sack_permitted = true,
            kind::TIMESTAMPS => {
                let mut r = Reader::new(data, 8)?;
                let (value, echo) = (r.u32()?, r.u32()?);
                if data.len() != 8 {
                    return Err(bad);
                }
                self.timestamps = Some(Timestamps { value, echo });
            }
            kind::SACK if data.len().is_multiple_of(8) && !data.is_empty() => {
                self.sack = SackBlocks::default();
                let mut r = Reader::new(data, data.len())?;
                for _ in 0..data.len() / 8 {
                    self.sack.push(Seq(r.u32()?), Seq(r.u32()?));
                }
            }
            kind::SACK_PERMITTED | kind::SACK => return Err(bad),
            _ => (),
        }
        Ok(())
    }

    /// Writes the options, each padded in front to a multiple of 4 octets.
    fn emit(&self, w: &mut Writer) -> Result<(), WireError> {
        if let Some(mss) = self.mss {
            w.put([kind::MSS, 4])?;
            w.u16(mss)?;
        }
        if let Some(shift) = self.window_scale {
            w.put([kind::NOP, kind::WINDOW_SCALE, 3, shift])?;
        }
        if self.sack_permitted {
            w.put([kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2])?;
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            w.put([kind::NOP, kind::NOP, kind::TIMESTAMPS, 10])?;
            w.u32(value)?;
            w.u32(echo)?;
        }
        let blocks = self.sack.as_slice();
        if !blocks.is_empty() {
            // At most four blocks.
            let len = blocks.len().saturating_mul(8).saturating_add(2);
            let len = u8::try_from(len).unwrap_or(u8::MAX);
            w.put([kind::NOP, kind::NOP, kind::SACK, len])?;
            for (left, right) in blocks {
                w.u32(left.0)?;
                w.u32(right.0)?;
            }
        }
        Ok(())
    }
}

/// A TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tcp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first octet of data, or of the SYN.
    pub seq: Seq,
    /// The next sequence number that the sender expects; significant with [`TcpFlags::ACK`].
    pub ack: Seq,
    /// Control bits.
    pub flags: TcpFlags,
    /// Receive window, in units of 2^(window scale) octets, in SYN segments of one octet.
    pub window: u16,
    /// Checksum on the wire; [`Tcp::checksum`] computes it.
    pub checksum: u16,
    /// Urgent pointer; significant with [`TcpFlags::URG`].
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}

impl Tcp {
    /// Length of a header without options in octets.
    pub const LEN: usize = 20;
    /// Length of the longest header in octets.
    pub const MAX_LEN: usize = Self::LEN + TcpOptions::MAX_LEN;

    /// Length of this header on the wire in octets.
    #[inline]
    pub fn header_len(&self) -> usize {
        Self::LEN.saturating_add(self.options.len())
    }

    /// Reads a header; returns it and its length, which is the offset of the data.
    #[inline]
    pub fn parse(buf: &[u8]) -> Result<(Self, usize), WireError> {
        let mut r = Reader::new(buf, Self::LEN)?;
        let (src_port, dst_port) = (r.u16()?, r.u16()?);
        let (seq, ack) = (Seq(r.u32()?), Seq(r.u32()?));
        let [offset, flags] = r.take()?;
        let len = usize::from(offset >> 4).saturating_mul(4);
        if len < Self::LEN {
            return Err(WireError::BadLength {
                declared: len,
                available: Self::LEN,
            });
        }
        let Some(options) = buf.get(Self::LEN..len) else {
            let have = buf.len();
            return Err(WireError::Truncated { need: len, have });
        };
        let tcp = Self {
            src_port,
            dst_port,
            seq,
            ack,
            flags: TcpFlags::from_bits_retain(flags),
            window: r.u16()?,
            checksum: r.u16()?,
            urgent: r.u16()?,
            options: TcpOptions::parse(options)?,
        };
        Ok((tcp, len))
    }

    /// Writes the header; returns its length.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let len = self.header_len();
        if len > Self::MAX_LEN {
            return Err(WireError::FieldOutOfRange {
                field: "options",
                value: u32::try_from(self.options.len()).unwrap_or(u32::MAX),
            });
        }
        let mut w = Writer::new(out, len)?;
        w.u16(self.src_port)?;
        w.u16(self.dst_port)?;
        w.u32(self.seq.0)?;
        w.u32(self.ack.0)?;
        // The data offset counts words of 4 octets, in the upper 4 bits.
        let offset = u8::try_from(len / 4).unwrap_or(u8::MAX) << 4;
        w.put([offset, self.flags.bits()])?;
        w.u16(self.window)?;
        w.u16(self.checksum)?;
        w.u16(self.urgent)?;
        self.options.emit(&mut w)?;
        Ok(len)
    }

    /// The checksum of a segment in an IP packet with header `ip`. `header` is the TCP header on the wire with a checksum of zero, and
    /// `payload` the pieces of the data.
    pub fn checksum<'a>(
        ip: &Ip,
        header: &[u8],
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> u16 {
        let lens = payload.clone().map(<[u8]>::len);
        let len = lens.fold(header.len(), usize::saturating_add);
        let mut sum = ip.pseudo_header(PROTOCOL_TCP, len);
        sum.add(header);
        payload.for_each(|piece| sum.add(piece));
        sum.checksum()
    }

    /// True if the checksum is right for the segment `l4`, this header included, in an IP packet with header `ip`.
    #[inline]
    pub fn is_intact(ip: &Ip, l4: &[u8]) -> bool {
        let mut sum: InternetSum = ip.pseudo_header(PROTOCOL_TCP, l4.len());
        sum.add(l4);
        sum.is_right()
    }
}
