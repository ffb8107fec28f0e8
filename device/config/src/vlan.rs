//! VLANs of NICs and ports in the configuration: keys `pvid` and `vlans`.

use std::fmt;

use faultline_fabric::vlan::{FIRST_VLAN, LAST_VLAN, VlanSet};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

/// The number of a VLAN.
struct Vlan(u16);

struct VlanVisitor;

impl Visitor<'_> for VlanVisitor {
    type Value = Vlan;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a VLAN from {FIRST_VLAN} to {LAST_VLAN}")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Vlan, E> {
        let vlan = u16::try_from(value).ok();
        let vlan = vlan.filter(|vlan| (FIRST_VLAN..=LAST_VLAN).contains(vlan));
        vlan.map(Vlan)
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }
}

impl<'de> Deserialize<'de> for Vlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(VlanVisitor)
    }
}

/// Reads the VLAN of untagged frames, for a key that may be absent.
pub(crate) fn pvid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    Vlan::deserialize(deserializer).map(|vlan| Some(vlan.0))
}

/// Reads the VLANs of tagged frames, for a key that may be absent.
pub(crate) fn vlans<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<VlanSet>, D::Error> {
    struct Vlans;

    impl<'de> Visitor<'de> for Vlans {
        type Value = VlanSet;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(
                f,
                "\"all\" or an array of VLANs from {FIRST_VLAN} to {LAST_VLAN}"
            )
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<VlanSet, E> {
            match text {
                "all" => Ok(VlanSet::all()),
                _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
            }
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VlanSet, A::Error> {
            let vlans = std::iter::from_fn(|| seq.next_element::<Vlan>().transpose());
            vlans.map(|vlan| vlan.map(|vlan| vlan.0)).collect()
        }
    }

    deserializer.deserialize_any(Vlans).map(Some)
}

#[cfg(test)]
mod tests {
    use faultline_fabric::vlan::VlanMembership;

    use super::*;
    use crate::config::{Config, refusal_of_nic};

    #[test]
    fn membership_is_read_for_nics_and_ports() {
        let text = "[[nic]]\nname = \"a\"\npvid = 10\n\
                    [[nic]]\nname = \"b\"\nvlans = [10, 4094]\n\
                    [[nic]]\nname = \"c\"\n\
                    [[port]]\nname = \"p\"\nkind = \"tap\"\ninterface = \"x\"\npvid = 1\nvlans = \"all\"\n";
        let config = Config::from_toml(text).unwrap();
        let some = [10, 4094].into_iter().collect();
        let expected = [
            VlanMembership::new(Some(10), None),
            VlanMembership::new(None, Some(some)),
            VlanMembership::default(),
            VlanMembership::new(Some(1), Some(VlanSet::all())),
        ];
        assert_eq!(config.vlan_memberships().unwrap(), expected);
    }

    #[test]
    fn defaults_hold_for_nics_only() {
        let text = "[defaults]\npvid = 7\n[[nic]]\nname = \"a\"\n[[nic]]\nname = \"b\"\npvid = 8\n\
                    [[port]]\nname = \"p\"\nkind = \"tap\"\ninterface = \"x\"\n";
        let config = Config::from_toml(text).unwrap();
        let expected = [
            VlanMembership::new(Some(7), None),
            VlanMembership::new(Some(8), None),
            VlanMembership::default(),
        ];
        assert_eq!(config.vlan_memberships().unwrap(), expected);
    }

    #[test]
    fn without_keys_the_switch_is_not_vlan_aware() {
        let config = Config::from_toml("[[nic]]\nname = \"a\"\n").unwrap();
        assert_eq!(config.vlan_memberships(), None);
    }

    #[test]
    fn problems_are_located() {
        assert_eq!(
            refusal_of_nic("pvid = 4095\n"),
            "3:8: nic[0].pvid: invalid value: integer `4095`, expected a VLAN from 1 to 4094"
        );
        assert_eq!(
            refusal_of_nic("pvid = \"blue\"\n"),
            "3:8: nic[0].pvid: invalid type: string \"blue\", expected a VLAN from 1 to 4094"
        );
        assert_eq!(
            refusal_of_nic("vlans = [1, 0]\n"),
            "3:13: nic[0].vlans[1]: invalid value: integer `0`, expected a VLAN from 1 to 4094"
        );
        assert_eq!(
            refusal_of_nic("vlans = \"none\"\n"),
            "3:9: nic[0].vlans: invalid value: string \"none\", expected \"all\" or an array of VLANs from 1 to 4094"
        );
        assert_eq!(
            refusal_of_nic("vlans = 5\n"),
            "3:9: nic[0].vlans: invalid type: integer `5`, expected \"all\" or an array of VLANs from 1 to 4094"
        );
        let port = "[[port]]\nname = \"p\"\nkind = \"tap\"\ninterface = \"x\"\npvid = -1\n";
        assert_eq!(
            refusal_of_nic(port),
            "7:8: port[0].pvid: invalid value: integer `-1`, expected a VLAN from 1 to 4094"
        );
    }
}
