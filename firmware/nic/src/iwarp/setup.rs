//! MPA setup frames (RFC 5044 section 7.1, RFC 6581): made, parsed, and what both ends agree on.

use faultline_wire::mpa::{EnhancedSetup, MpaFlags, MpaRole, MpaSetup};

/// Longest private data of a setup frame that states the depths of the READ queues.
const MAX_ENHANCED: usize = MpaSetup::MAX_PRIVATE_DATA as usize - EnhancedSetup::LEN;

/// What one end offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    /// READs and atomics that this end serves at once. `None`: it has not said.
    pub ird: Option<u16>,
    /// READs and atomics that this end requests at once. `None`: it has not said.
    pub ord: Option<u16>,
    /// The peer speaks revision 2.
    pub enhanced: bool,
    /// Both ends may send first, and the active one begins with a WRITE without data (RTR).
    pub rtr_write: bool,
    /// The peer demands markers in FPDUs that it receives. This end never does.
    pub markers: bool,
    /// A reply: the request is rejected.
    pub reject: bool,
    /// Private data.
    pub private: Vec<u8>,
}

impl Offer {
    /// The setup frame with this offer. Private data that leaves no room for the depths has a frame of revision 1.
    pub(crate) fn to_frame(&self, role: MpaRole) -> Vec<u8> {
        let enhanced = self.enhanced && self.private.len() <= MAX_ENHANCED;
        let mut flags = MpaFlags::CRC;
        flags.set(MpaFlags::REJECT, self.reject);
        flags.set(MpaFlags::ENHANCED, enhanced);
        let depths = EnhancedSetup {
            ird: self.ird.unwrap_or(EnhancedSetup::NOT_NEGOTIATED),
            ord: self.ord.unwrap_or(EnhancedSetup::NOT_NEGOTIATED),
            peer_to_peer: self.rtr_write,
            rtr_write: self.rtr_write,
            ..EnhancedSetup::default()
        };
        let extra = if enhanced { EnhancedSetup::LEN } else { 0 };
        let len = self.private.len().saturating_add(extra);
        let setup = MpaSetup {
            role,
            flags,
            revision: if enhanced { 2 } else { 1 },
            private_data_len: u16::try_from(len).unwrap_or(MpaSetup::MAX_PRIVATE_DATA),
        };
        let mut frame = vec![0; MpaSetup::LEN.saturating_add(extra)];
        // The buffer has room for both, and the values are within their ranges.
        let _ = setup.emit(&mut frame);
        if let Some(rest) = frame.get_mut(MpaSetup::LEN..).filter(|_| enhanced) {
            let _ = depths.emit(rest);
        }
        frame.extend_from_slice(&self.private);
        frame
    }
}

/// The peer's setup frame breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadSetup;

/// Reads a setup frame from the start of a stream. `Ok(None)`: it continues in octets that have not arrived. Otherwise the offer, and the
/// length of the frame.
pub(crate) fn parse(octets: &[u8], role: MpaRole) -> Result<Option<(Offer, usize)>, BadSetup> {
    if octets.len() < MpaSetup::LEN {
        return Ok(None);
    }
    let (setup, at) = MpaSetup::parse(octets).map_err(|_| BadSetup)?;
    if setup.role != role || !matches!(setup.revision, 1 | 2) {
        return Err(BadSetup);
    }
    let end = at.saturating_add(setup.private_data_len.into());
    let Some(private) = octets.get(at..end) else {
        return Ok(None);
    };
    let mut offer = Offer {
        reject: role == MpaRole::Reply && setup.flags.contains(MpaFlags::REJECT),
        enhanced: setup.revision == 2,
        markers: setup.flags.contains(MpaFlags::MARKERS),
        ..Offer::default()
    };
    let mut rest = private;
    if setup.revision == 2 && setup.flags.contains(MpaFlags::ENHANCED) {
        let (depths, len) = EnhancedSetup::parse(private).map_err(|_| BadSetup)?;
        let stated = |depth: u16| (depth != EnhancedSetup::NOT_NEGOTIATED).then_some(depth);
        (offer.ird, offer.ord) = (stated(depths.ird), stated(depths.ord));
        offer.rtr_write = depths.peer_to_peer && depths.rtr_write;
        rest = private.get(len..).unwrap_or_default();
    }
    offer.private = rest.to_vec();
    Ok(Some((offer, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_arrives_in_pieces_and_is_what_was_sent() {
        for (enhanced, len) in [(true, 0), (true, 508), (true, 509), (false, 512)] {
            let offer = Offer {
                ird: Some(7),
                ord: Some(3),
                enhanced,
                rtr_write: enhanced,
                markers: false,
                reject: true,
                private: (0..len).map(|n: u32| (n & 0xff) as u8).collect(),
            };
            let mut frame = offer.to_frame(MpaRole::Reply);
            assert_eq!(frame[16] & 0x80, 0);
            for cut in 0..frame.len() {
                assert_eq!(parse(&frame[..cut], MpaRole::Reply), Ok(None), "{cut}");
            }
            let (read, end) = parse(&frame, MpaRole::Reply).unwrap().unwrap();
            assert_eq!(
                (read.private.as_slice(), end),
                (&*offer.private, frame.len())
            );
            assert!(read.reject && !read.markers);
            let fits = enhanced && len <= 508;
            assert_eq!(read.ird, fits.then_some(7));
            assert_eq!((read.enhanced, read.rtr_write), (fits, fits));
            assert_eq!(parse(&frame, MpaRole::Request), Err(BadSetup));
            // Flag M of a peer.
            frame[16] |= 0x80;
            let (demanding, _) = parse(&frame, MpaRole::Reply).unwrap().unwrap();
            assert!(demanding.markers);
        }
    }
}
