//! Markers in the stream that leaves (RFC 5044 section 4.3), for a peer that demands them.
//!
//! Offsets of the stream count markers, as the sequence numbers of TCP do: those of messages, FPDUs, copies and acknowledgments. The FPDUs
//! of a message are equally long only without markers. So the FPDU at an offset is found by *unmarked* offsets, which a stream without
//! markers would have.
//!
//! An example, with a maximum segment size of 1460 and offsets from the first FPDU:
//!
//! - *SEND of 3000 octets.* Up to three markers are in a segment, so an FPDU has 1448 octets without them. The FPDUs are 0 to 1460, 1460
//!   to 2920 and 2920 to 3100. The markers of the second are at 1536, 2048 and 2560; they point 76, 588 and 1100 octets back.
//! - *Answer to a READ of 1000 octets.* It is 3100 to 4128, with markers at 3584 and 4096. Its copy has them too.
//! - *The peer has acknowledged 1000 octets, and the rest is lost.* Offset 1000 is unmarked 992, in the FPDU from 0. That FPDU is read from
//!   guest memory again, its markers are inserted again, and the octets from 1000 to 1460 leave. The FPDU leaves in pieces, so it is copied.

use faultline_wire::mpa::{Fpdu, Marker, Markers};

use crate::number::{len32, low32, to_usize};

/// Says where the stream has markers: nowhere, if the peer has not demanded them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MarkerLayout {
    /// Offset of the first marker.
    first: Option<u64>,
}

impl MarkerLayout {
    /// Markers from this offset on, at which the first FPDU begins.
    pub(super) fn beginning_at(first: u64) -> Self {
        Self { first: Some(first) }
    }

    /// The unmarked offset of an octet of an FPDU. That of a marker is that of the octet after it.
    pub(super) fn unmarked(self, offset: u64) -> u64 {
        match self.first {
            None => offset,
            Some(first) => {
                let octets = Markers::octets_before(offset.saturating_sub(first));
                first.saturating_add(octets)
            }
        }
    }

    /// The offset of the begin or end of an FPDU. A marker at this offset is of the FPDU that begins here.
    pub(super) fn marked(self, unmarked: u64) -> u64 {
        match self.first {
            None => unmarked,
            Some(first) => {
                let position = Markers::position_after(unmarked.saturating_sub(first));
                first.saturating_add(position)
            }
        }
    }

    /// Octets without markers of the longest FPDU that fits into segments of `max` octets, wherever it begins (RFC 5044 section 4.5).
    pub(super) fn longest_fpdu(self, max: u32) -> u32 {
        let aligned = max & !3;
        match self.first {
            None => aligned,
            Some(_) => {
                let markers = low32(Markers::most_in(max.into()));
                aligned.saturating_sub(markers.saturating_mul(len32(Marker::LEN)))
            }
        }
    }

    /// Inserts the markers into an FPDU that begins at an offset and has, with markers and the CRC that `out` lacks, `len` octets.
    pub(super) fn insert(self, offset: u64, len: u32, out: &mut Vec<u8>) {
        let Some(first) = self.first else { return };
        let start = offset.saturating_sub(first);
        let mut from = out.len();
        let mut to = (len as usize).saturating_sub(Fpdu::CRC_LEN);
        out.resize(to, 0);
        // The octets behind the last marker move first. `to - from` octets of markers are left.
        while from < to {
            let last = start.saturating_add(to as u64).saturating_sub(1);
            let position = last.saturating_sub(last % Markers::INTERVAL);
            let at = to_usize(position.saturating_sub(start));
            let behind = at.saturating_add(Marker::LEN);
            let source = from.saturating_sub(to.saturating_sub(behind));
            out.copy_within(source..from, behind);
            // The buffer has room for it.
            let _ = out
                .get_mut(at..)
                .map(|place| Markers::at(position, start).emit(place));
            (from, to) = (source, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inserts markers octet by octet; `stream`: the octets before the FPDU.
    fn append(stream: &mut Vec<u8>, first: usize, fpdu: &[u8]) {
        let mut header = None;
        for octet in fpdu {
            let at = stream.len() - first;
            if at.is_multiple_of(512) {
                let distance = header.map_or(0, |header| at - header);
                stream.extend_from_slice(&len32(distance).to_be_bytes());
            }
            header = header.or(Some(stream.len() - first));
            stream.push(*octet);
        }
    }

    #[test]
    fn markers_are_where_an_insertion_by_octets_has_them() {
        for (first, lengths) in [
            (0, &[8, 508, 504, 12, 496][..]),
            (24, &[1436, 1436, 1436, 20, 40, 1420]),
            (531, &[4, 8, 4, 500, 512, 508, 508, 9000, 16]),
        ] {
            let layout = MarkerLayout::beginning_at(first as u64);
            let mut stream = vec![0xee; first];
            let mut unmarked = first as u64;
            for (n, len) in (0..200u32).zip(lengths.iter().cycle()) {
                let octet = |at: u32| ((at + n) & 0xff) as u8 | 1;
                let fpdu: Vec<u8> = (0..*len).map(octet).collect();
                let start = stream.len();
                append(&mut stream, first, &fpdu);
                let offset = layout.marked(unmarked);
                assert_eq!(offset, start as u64);
                unmarked += fpdu.len() as u64;
                assert_eq!(layout.marked(unmarked), stream.len() as u64);
                let expected = &stream[start..stream.len() - Fpdu::CRC_LEN];
                let mut out = fpdu[..fpdu.len() - Fpdu::CRC_LEN].to_vec();
                layout.insert(offset, len32(stream.len() - start), &mut out);
                assert_eq!(out, expected, "FPDU {n} of {len} octets from {start}");
            }
        }
    }

    /// The example above.
    #[test]
    fn a_send_and_an_answer() {
        let layout = MarkerLayout::beginning_at(0);
        assert_eq!(layout.longest_fpdu(1460), 1448);
        // The last FPDU of the SEND has 152 octets of payload, 20 of headers and a CRC; the answer 1000, 16 and a CRC.
        let ends = [1448, 2896, 2896 + 176, 2896 + 176 + 1020].map(|end| layout.marked(end));
        assert_eq!(ends, [1460, 2920, 3100, 4128]);
        assert_eq!(layout.unmarked(1000), 992);
        let mut out = vec![1; 1444];
        layout.insert(1460, 1460, &mut out);
        for (at, distance) in [(1536, 76), (2048, 588), (2560, 1100)] {
            let marker = Marker::parse(&out[at - 1460..]).unwrap();
            assert_eq!(marker, (Marker { distance }, 4));
        }
    }

    /// The longest FPDU fits wherever it begins.
    #[test]
    fn full_fpdus_fit_into_segments() {
        for max in [524, 536, 1220, 1448, 1460, 8948, 65_483] {
            let layout = MarkerLayout::beginning_at(0);
            let len = layout.longest_fpdu(max);
            assert!(len.is_multiple_of(4));
            let lengths = (0..508u64).map(|begin| {
                let end = layout.marked(begin + u64::from(len));
                end - layout.marked(begin)
            });
            let longest = lengths.max().unwrap();
            let fits = u64::from(max) - 7..=u64::from(max);
            assert!(fits.contains(&longest), "{longest} of {max}");
            assert_eq!(MarkerLayout::default().longest_fpdu(max), max & !3);
        }
    }
}
