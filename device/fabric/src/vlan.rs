//! Membership of ports in VLANs (IEEE 802.1Q, clauses 6.9, 8.6.2 and 8.6.4), and the tags of frames as octets.
//!
//! Only customer tags (EtherType 0x8100) are tags here. A frame with a service tag (0x88a8) is untagged, as in a customer
//! bridge (clause 5.9). There is no GVRP, MVRP or shared learning: membership is configured, and each VLAN has its own addresses.

use faultline_wire::ethernet::VlanTag;
use faultline_wire::{Ethernet, MacAddr};

/// Lowest VLAN identifier that a port may be a member of. 0 is the null VLAN: a tag with a priority only.
pub const FIRST_VLAN: u16 = 1;
/// Highest VLAN identifier that a port may be a member of. 4095 is reserved (clause 9.6).
pub const LAST_VLAN: u16 = 4094;

/// Default of the port VLAN identifier (clause 9.6).
const DEFAULT_PVID: u16 = 1;
const WORDS: usize = 64;

/// A set of VLANs from [`FIRST_VLAN`] to [`LAST_VLAN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; WORDS]>);

impl VlanSet {
    /// The empty set.
    pub fn none() -> Self {
        Self(Box::new([0; WORDS]))
    }

    /// All VLANs.
    pub fn all() -> Self {
        (FIRST_VLAN..=LAST_VLAN).collect()
    }

    /// True if `vlan` is in the set.
    pub fn contains(&self, vlan: u16) -> bool {
        let word = self.0.get(usize::from(vlan / 64));
        word.is_some_and(|word| word & (1 << (vlan % 64)) != 0)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let mut words = self.0.iter().zip(other.0.iter());
        words.any(|(own, other)| own & other != 0)
    }

    fn insert(&mut self, vlan: u16) {
        if (FIRST_VLAN..=LAST_VLAN).contains(&vlan)
            && let Some(word) = self.0.get_mut(usize::from(vlan / 64))
        {
            *word |= 1 << (vlan % 64);
        }
    }
}

impl FromIterator<u16> for VlanSet {
    /// Invalid numbers are ignored.
    fn from_iter<I: IntoIterator<Item = u16>>(vlans: I) -> Self {
        let mut set = Self::none();
        for vlan in vlans {
            set.insert(vlan);
        }
        set
    }
}

/// Membership of a port in VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanMembership {
    /// VLAN of received frames without tag. Frames of this VLAN leave the port without tag.
    pvid: u16,
    /// VLANs whose frames are received, and leave, with a tag.
    tagged: VlanSet,
}

impl Default for VlanMembership {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl VlanMembership {
    /// Membership from the configuration. Without `tagged`, a port with `pvid` is a member of that VLAN only (an access port), and a port
    /// without `pvid` is a member of all VLANs.
    pub fn new(pvid: Option<u16>, tagged: Option<VlanSet>) -> Self {
        let tagged = tagged.unwrap_or_else(|| match pvid {
            Some(_) => VlanSet::none(),
            None => VlanSet::all(),
        });
        Self {
            pvid: pvid.unwrap_or(DEFAULT_PVID),
            tagged,
        }
    }

    /// VLAN of a received frame (clause 6.9.1). A tag with the null VLAN is a priority, and has no VLAN.
    pub(crate) fn vlan_of(&self, tag: Option<VlanTag>) -> u16 {
        match tag {
            Some(tag) if tag.vid != 0 => tag.vid,
            _ => self.pvid,
        }
    }

    /// True if both ports are members of a VLAN.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.pvid)
            || other.contains(self.pvid)
            || self.tagged.overlaps(&other.tagged)
    }

    /// True if the port is a member of `vlan`.
    pub(crate) fn contains(&self, vlan: u16) -> bool {
        vlan == self.pvid || self.tagged.contains(vlan)
    }

    /// Tag of a frame of `vlan` that leaves the port (clause 6.9.2), if it was received with `tag`.
    pub(crate) fn egress_tag(&self, vlan: u16, tag: Option<VlanTag>) -> Option<VlanTag> {
        (vlan != self.pvid).then(|| VlanTag {
            vid: vlan,
            ..tag.unwrap_or_default()
        })
    }
}

/// Octets of the two addresses, which precede the tag.
const ADDRESSES: usize = 2 * size_of::<MacAddr>();

/// The tag of a frame as octets.
pub fn tag_of(frame: &[u8]) -> Option<VlanTag> {
    Ethernet::parse(frame).ok()?.0.vlan
}

/// Writes a frame as octets with `tag` instead of its own tag into `out`, whose contents it replaces; `None`: without tag. A frame
/// without Ethernet header is copied unchanged.
pub fn write_with_tag(frame: &[u8], tag: Option<VlanTag>, out: &mut Vec<u8>) {
    out.clear();
    let parsed = Ethernet::parse(frame).ok();
    let (Some((ethernet, _)), Some((addresses, rest))) =
        (parsed, frame.split_at_checked(ADDRESSES))
    else {
        out.extend_from_slice(frame);
        return;
    };
    let old = match ethernet.vlan {
        Some(_) => VlanTag::LEN,
        None => 0,
    };
    out.extend_from_slice(addresses);
    if let Some(tag) = tag {
        out.extend_from_slice(&tag.to_bytes());
    }
    out.extend_from_slice(rest.get(old..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(vid: u16) -> Option<VlanTag> {
        Some(VlanTag {
            pcp: 5,
            dei: true,
            vid,
        })
    }

    #[test]
    fn a_set_contains_valid_vlans_only() {
        let all = VlanSet::all();
        for vlan in [0, 4095, 4096, u16::MAX] {
            assert!(!all.contains(vlan), "{vlan}");
        }
        assert!((FIRST_VLAN..=LAST_VLAN).all(|vlan| all.contains(vlan)));
        let some: VlanSet = [0, 1, 64, 4094, 4095].into_iter().collect();
        let members: Vec<u16> = (0..=u16::MAX).filter(|vlan| some.contains(*vlan)).collect();
        assert_eq!(members, [1, 64, 4094]);
    }

    #[test]
    fn membership_follows_from_the_keys() {
        let members = |pvid, tagged: Option<&[u16]>| {
            let tagged = tagged.map(|tagged| tagged.iter().copied().collect());
            let membership = VlanMembership::new(pvid, tagged);
            [1, 10, 20].map(|vlan| membership.contains(vlan))
        };
        assert_eq!(members(None, None), [true, true, true]);
        assert_eq!(members(Some(10), None), [false, true, false]);
        assert_eq!(members(Some(10), Some(&[20])), [false, true, true]);
        assert_eq!(members(None, Some(&[20])), [true, false, true]);
    }

    #[test]
    fn frames_are_classified_and_tagged_by_the_vlan_of_the_port() {
        let port = VlanMembership::new(Some(10), Some(VlanSet::all()));
        assert_eq!(port.vlan_of(None), 10);
        assert_eq!(port.vlan_of(tag(0)), 10, "a tag with a priority only");
        assert_eq!(port.vlan_of(tag(20)), 20);
        assert_eq!(port.egress_tag(10, tag(10)), None);
        assert_eq!(port.egress_tag(10, None), None);
        assert_eq!(port.egress_tag(20, tag(20)), tag(20));
        assert_eq!(port.egress_tag(20, tag(0)), tag(20), "keeps the priority");
        let pushed = VlanTag {
            vid: 20,
            ..VlanTag::default()
        };
        assert_eq!(port.egress_tag(20, None), Some(pushed));
    }

    fn with_tag(frame: &[u8], tag: Option<VlanTag>) -> Vec<u8> {
        let mut out = vec![0xee; 100];
        write_with_tag(frame, tag, &mut out);
        out
    }

    #[test]
    fn the_tag_of_octets_is_pushed_replaced_and_removed() {
        let mut frame: Vec<u8> = (0..60).collect();
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let untagged = frame.clone();
        frame = with_tag(&frame, None);
        assert_eq!(frame, untagged);
        frame = with_tag(&frame, tag(0x123));
        assert_eq!(frame[..12], untagged[..12]);
        assert_eq!(frame[12..16], [0x81, 0x00, 0xb1, 0x23]);
        assert_eq!(frame[16..], untagged[12..]);
        assert_eq!(tag_of(&frame), tag(0x123));
        frame = with_tag(&frame, tag(4094));
        assert_eq!((tag_of(&frame), frame.len()), (tag(4094), 64));
        frame = with_tag(&frame, None);
        assert_eq!(frame, untagged);
        // Too short for an Ethernet header, or for the tag that it announces.
        for length in 0..18 {
            let mut short = vec![0x81; length];
            short[12.min(length)..].fill(0);
            if length >= 14 {
                short[12..14].copy_from_slice(&[0x81, 0x00]);
            }
            assert_eq!(tag_of(&short), None);
            assert_eq!(with_tag(&short, tag(7)), short);
        }
    }
}
