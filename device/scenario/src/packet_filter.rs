//! A choice of packets by the name of an opcode or of a group of opcodes, for tools beside scenarios.

use faultline_wire::packet::RoceHeader;

use crate::plan::names::{OPCODE_GROUPS, OPCODES, opcodes};
use crate::plan::{Answer, Opcodes};
use crate::suggestion::closest;

/// Packets with one of some opcodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketFilter {
    opcodes: Opcodes,
    answer: Option<Answer>,
}

impl PacketFilter {
    /// The packets that a name stands for, as in a rule: an opcode or a group of opcodes.
    ///
    /// # Errors
    ///
    /// A message, if there is no such name.
    pub fn named(name: &str) -> Result<Self, String> {
        if let Some((opcodes, answer)) = opcodes(name) {
            if !opcodes.segments.is_empty() {
                return Err(format!(
                    "{name} is for rules of scenarios; `RAW` has all frames that are not RoCE"
                ));
            }
            return Ok(Self { opcodes, answer });
        }
        let groups = OPCODE_GROUPS.iter().map(|(group, _)| *group);
        let similar = closest(name, groups.clone().chain(OPCODES.names()));
        let similar = similar.map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"));
        let has_packets =
            |group: &&str| opcodes(group).is_some_and(|(set, _)| set.segments.is_empty());
        let groups: Vec<&str> = groups.filter(has_packets).collect();
        Err(format!(
            "there is no opcode {name:?}{similar}; allowed are single opcodes, such as RC_SEND_ONLY, and the groups {}",
            groups.join(", ")
        ))
    }

    /// True if a packet is chosen. `None`: a frame that is not RoCE.
    pub fn fits(&self, header: Option<&RoceHeader>) -> bool {
        let Some(header) = header else {
            return self.opcodes.raw;
        };
        self.opcodes.contains(header.bth.opcode)
            && self
                .answer
                .is_none_or(|only| Answer::of(header) == Some(only))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_rules() {
        assert!(PacketFilter::named("RNR_NAK").is_ok());
        assert!(PacketFilter::named("rc_send_only").is_ok());
        let error = PacketFilter::named("TCP_SYN").unwrap_err();
        assert!(error.contains("`RAW` has all frames"), "{error}");
        assert!(PacketFilter::named("RAW").unwrap().fits(None));
        assert!(!PacketFilter::named("any").unwrap().fits(None));
        let error = PacketFilter::named("RNRNAK").unwrap_err();
        assert!(error.contains("did you mean \"RNR_NAK\"?"), "{error}");
    }
}
