//! The records that engines put into the rings of captures.

use std::borrow::Cow;

use faultline_fabric::Fate;
use faultline_fabric::link_model::Effects;
use faultline_scenario::plan::ChangeKind;
use faultline_scenario::rules::ByRule;

/// Begin of the name of the program that has made a capture.
pub const PROGRAM: &str = "Faultline";
/// Description of the interface of a NIC.
pub const NIC_KIND: &str = "Faultline NIC";
/// Description of the interface of a port that leads out of the process.
pub const PORT_KIND: &str = "Faultline port";

/// Begins the comments of frames that were dropped.
pub const DROPPED: &str = "dropped: ";
/// Begins the comments of frames that go no further, or differ from what was sent.
pub const IMPAIRMENTS: [&str; 5] = [
    DROPPED,
    "not sent: ",
    "not received: ",
    "corrupted by ",
    "truncated by ",
];
/// The comment that an effect of a link model adds to a captured frame. Losses are fates.
struct EffectRow {
    effect: Effects,
    /// The contents of the frame are damaged, so the packet checker skips it.
    spoils: bool,
    comment: &'static str,
}

const fn effect(effect: Effects, comment: &'static str) -> EffectRow {
    EffectRow {
        effect,
        spoils: false,
        comment,
    }
}

const EFFECTS: [EffectRow; 4] = [
    effect(
        Effects::DUPLICATED,
        "duplicated by the model of a link: it is sent twice",
    ),
    effect(
        Effects::REORDERED,
        "reordered by the model of a link: others overtake it",
    ),
    EffectRow {
        spoils: true,
        ..effect(Effects::CORRUPTED, "corrupted by the model of a link")
    },
    effect(
        Effects::MARKED,
        "marked by the model of a link: congestion experienced",
    ),
];
/// Comment of the first frame after others, if one of them was lost at another interface.
pub const LOST_ELSEWHERE: &str = "frames of other interfaces were lost before this one";

/// The comment of a frame; `None` if it has passed, or a rule has taken it. `is_sent`: the interface has sent it.
fn comment(fate: Fate, is_sent: bool) -> Option<&'static str> {
    Some(match fate {
        Fate::Passed | Fate::Rule => return None,
        Fate::LinkDown => "dropped: the link is down, or the function has no bus mastering",
        Fate::TooLong => "dropped: longer than the MTU",
        Fate::Requested => "dropped: by request (drop-frames)",
        Fate::Forged => "dropped: the source address is that of another port",
        Fate::NoPeer => "dropped: the port has no peer",
        Fate::Overrun => "dropped: the peer takes frames too slowly",
        Fate::TooShort => "dropped: shorter than an Ethernet header",
        Fate::LinkLost => "dropped: lost at random by the model of the link",
        Fate::LinkFull => "dropped: the queue of the model of the link is full",
        Fate::InterfaceDown if is_sent => "not sent: the interface is down",
        Fate::InterfaceDown => "not received: the interface is down",
        Fate::OverMtu if is_sent => "not sent: longer than the MTU of the interface",
        Fate::OverMtu => "not received: longer than the MTU of the interface",
        Fate::BadAddress => "not sent: the guest may not use its address",
        Fate::BadGid if is_sent => "not sent: its entry of the GID table has changed",
        Fate::BadGid => "not received: no entry of the GID table has its destination and VLAN",
        Fate::NoMember => {
            "dropped: the port, or that of the destination address, is no member of the VLAN"
        }
    })
}

/// More READs and atomics than a queue pair can have outstanding: its limit is not known.
pub const NO_LIMIT: u32 = u32::MAX;

/// What a record without a frame says of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It begins another connection, with this path MTU.
    Renewal,
    /// It sends from now on, with at most this number of READs and atomics outstanding, or [`NO_LIMIT`].
    ReadLimit,
}

impl Notice {
    /// Its flag in a record.
    fn flag(self) -> u8 {
        match self {
            Self::Renewal => 1 << 2,
            Self::ReadLimit => 1 << 4,
        }
    }

    fn of_flags(flags: u8) -> Option<Self> {
        let all = [Self::Renewal, Self::ReadLimit];
        all.into_iter().find(|notice| flags & notice.flag() != 0)
    }
}

/// A record in the ring of a capture: this head, then the first octets of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Device time in nanoseconds.
    pub at: u64,
    /// Token of the page fault that the packet waits for; 0: none.
    pub token: u64,
    /// Octets of the whole frame, without FCS.
    pub length: u32,
    /// Frames of this interface lost since its previous record.
    pub lost: u32,
    /// The interface.
    pub port: u16,
    /// The interface has sent the frame.
    pub is_sent: bool,
    /// Frames of any interface were lost since the last record.
    pub is_after_loss: bool,
    /// Notices of this engine were lost since its last record.
    pub is_after_lost_notice: bool,
    /// Software has made the frame, not the NIC.
    pub is_raw: bool,
    /// The NIC that has received the frame executes it later: its ingress waits for a page fault.
    pub is_held: bool,
    /// No frame: the record is about the queue pair `sender` of this interface. The value is in `length`.
    pub notice: Option<Notice>,
    /// The queue pair that has sent the frame; 0: not known.
    pub sender: u32,
    /// What has become of the frame.
    pub fate: Fate,
    /// What links have done to the frame.
    pub effects: Effects,
    /// What a rule has done to the frame.
    pub rule: Option<ByRule>,
}

impl RecordHead {
    /// Octets of a head.
    pub const LEN: usize = 36;

    /// True if the frame goes no further, or differs from what was sent.
    pub fn is_impaired(&self) -> bool {
        let mut effects = EFFECTS.iter();
        self.fate != Fate::Passed
            || effects.any(|row| row.spoils && self.effects.contains(row.effect))
            || self.rule.is_some_and(|rule| rule.kind.spoils())
    }

    /// The comments of the frame.
    pub fn comments(&self) -> Vec<Cow<'static, str>> {
        let mut comments: Vec<Cow<'static, str>> = Vec::new();
        comments.extend(comment(self.fate, self.is_sent).map(Cow::from));
        comments.extend(self.rule_comment().map(Cow::from));
        let effects = EFFECTS.iter();
        let effects = effects.filter(|row| self.effects.contains(row.effect));
        comments.extend(effects.map(|row| Cow::from(row.comment)));
        if self.is_after_loss && self.lost == 0 {
            comments.push(LOST_ELSEWHERE.into());
        }
        comments.extend(self.fault_comment().map(Cow::from));
        comments
    }

    fn rule_comment(&self) -> Option<String> {
        let by = self.rule?;
        let (rule, kind) = (by.to_string(), by.kind);
        let change = kind.done();
        Some(match (self.fate, kind) {
            (Fate::Rule, ChangeKind::Drop) => {
                format!("{DROPPED}by {rule}")
            }
            (Fate::Rule, _) => {
                format!("{DROPPED}taken by {rule}, which passes it on later: {change}")
            }
            _ => format!("{change} by {rule}"),
        })
    }

    fn fault_comment(&self) -> Option<String> {
        let token = self.token;
        (token != 0).then(|| match self.is_sent {
            true => format!("waits for page fault {token}"),
            false => format!("not executed now because of page fault {token}"),
        })
    }

    /// The octets at the beginning of the record.
    pub fn to_octets(self) -> [u8; Self::LEN] {
        let mut octets = [0; Self::LEN];
        // 0 is no rule.
        let kind = (self.rule).map_or(0, |rule| rule.kind.number().saturating_add(1));
        let rule = self.rule.map_or(0, |rule| rule.rule);
        let fields = (self.at.to_le_bytes().into_iter())
            .chain(self.token.to_le_bytes())
            .chain(self.length.to_le_bytes())
            .chain(self.lost.to_le_bytes())
            .chain(self.sender.to_le_bytes())
            .chain(self.port.to_le_bytes())
            .chain(rule.to_le_bytes())
            .chain([
                u8::from(self.is_sent)
                    | u8::from(self.is_after_loss) << 1
                    | u8::from(self.is_raw) << 3
                    | u8::from(self.is_after_lost_notice) << 5
                    | u8::from(self.is_held) << 6
                    | self.notice.map_or(0, Notice::flag),
                self.fate.number(),
                self.effects.bits(),
                kind,
            ]);
        for (to, from) in octets.iter_mut().zip(fields) {
            *to = from;
        }
        octets
    }

    /// Takes a record apart: head and octets of the frame.
    pub fn split(record: &[u8]) -> Option<(Self, &[u8])> {
        let (at, rest) = record.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (lost, rest) = rest.split_first_chunk()?;
        let (sender, rest) = rest.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let (rule, rest) = rest.split_first_chunk()?;
        let ([flags, fate, effects, kind], frame) = rest.split_first_chunk()?;
        let kind = kind.checked_sub(1).and_then(ChangeKind::from_number);
        let head = Self {
            at: u64::from_le_bytes(*at),
            token: u64::from_le_bytes(*token),
            length: u32::from_le_bytes(*length),
            lost: u32::from_le_bytes(*lost),
            port: u16::from_le_bytes(*port),
            is_sent: flags & 1 != 0,
            is_after_loss: flags & 2 != 0,
            notice: Notice::of_flags(*flags),
            is_raw: flags & 8 != 0,
            is_held: flags & 64 != 0,
            is_after_lost_notice: flags & 32 != 0,
            sender: u32::from_le_bytes(*sender),
            fate: Fate::from_number(*fate)?,
            effects: Effects::from_bits(*effects),
            rule: kind.map(|kind| ByRule {
                rule: u16::from_le_bytes(*rule),
                kind,
            }),
        };
        Some((head, frame))
    }
}

#[cfg(test)]
mod tests {
    use faultline_scenario::rules::LIVE;

    use super::*;

    /// The comments of a record with these fates and changes, which has been in a ring.
    fn comments(fate: Fate, effects: Effects, rule: Option<ByRule>) -> (Vec<String>, bool) {
        let head = RecordHead {
            at: 0,
            token: 0,
            length: 60,
            lost: 0,
            port: 0,
            is_sent: true,
            is_after_loss: false,
            is_after_lost_notice: false,
            is_raw: false,
            is_held: false,
            notice: None,
            sender: 0,
            fate,
            effects,
            rule,
        };
        let octets = head.to_octets();
        let (again, frame) = RecordHead::split(&octets).unwrap();
        assert!(again == head && frame.is_empty());
        let comments = head.comments().into_iter().map(Cow::into_owned);
        (comments.collect(), head.is_impaired())
    }

    #[test]
    fn changes_by_rules_and_by_links_are_distinguished() {
        let rule = |kind| Some(ByRule { rule: 2, kind });
        let links = comments(Fate::Passed, Effects::CORRUPTED, None);
        assert_eq!(
            links,
            (vec!["corrupted by the model of a link".to_owned()], true)
        );
        for kind in ChangeKind::all() {
            let change = kind.done();
            let passed = comments(Fate::Passed, Effects::NONE, rule(kind));
            let text = format!("{change} by rule[2] of the scenario");
            assert_eq!(passed, (vec![text], kind.spoils()));
            let taken = match kind {
                ChangeKind::Drop => "dropped: by rule[2] of the scenario".to_owned(),
                _ => format!(
                    "dropped: taken by rule[2] of the scenario, which passes it on later: {change}"
                ),
            };
            let expected = (vec![taken], true);
            assert_eq!(comments(Fate::Rule, Effects::NONE, rule(kind)), expected);
        }
        let live = ByRule {
            rule: LIVE | 3,
            kind: ChangeKind::Drop,
        };
        let (found, _) = comments(Fate::Rule, Effects::NONE, Some(live));
        assert_eq!(found, ["dropped: by live rule 3"]);
        for (comments, is_impaired) in [
            links,
            comments(Fate::Passed, Effects::NONE, rule(ChangeKind::Truncate)),
            comments(Fate::Passed, Effects::NONE, rule(ChangeKind::Delay)),
            comments(Fate::Rule, Effects::NONE, rule(ChangeKind::Delay)),
        ] {
            assert_eq!(is_known(&comments[0]), is_impaired, "{comments:?}");
        }
    }

    /// A reader of the file knows of each frame that it goes no further.
    #[test]
    fn fates_are_read_from_comments() {
        for fate in Fate::all() {
            for is_sent in [true, false] {
                let known = comment(fate, is_sent).is_some_and(is_known);
                let has_own = !matches!(fate, Fate::Passed | Fate::Rule);
                assert_eq!(known, has_own, "{fate:?}");
            }
        }
    }

    /// The same for effects of links, and each has a comment.
    #[test]
    fn effects_are_read_from_comments() {
        for effect in Effects::EACH {
            let fate = Fate::on_link(effect);
            let (comments, is_impaired) = comments(fate, effect, None);
            assert_eq!(comments.len(), 1, "{effect:?}: {comments:?}");
            assert_eq!(is_known(&comments[0]), is_impaired, "{comments:?}");
        }
    }

    fn is_known(comment: &str) -> bool {
        IMPAIRMENTS.iter().any(|begin| comment.starts_with(begin))
    }
}
