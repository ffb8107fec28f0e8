//! The checked form of a scenario: names are numbers, and defaults are filled in.

mod check;
mod effects;
mod expectations;
pub(crate) mod names;
mod of_file;
mod simulated;
mod things;

pub(crate) use check::MAX_TIME;
pub(crate) use effects::{CHANGES, action_names};
pub(crate) use things::{Kind, trigger_keys};

use faultline_nic::{Nanos, Outcome, Point, State};
use faultline_telemetry::DiagnosticKind;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Opcode, Syndrome};

use crate::action::{Action, Part};
use crate::expectation::{Expectation, Violation};
use crate::trigger::Direction;
use crate::value::Range;

/// A scenario for the NICs of one process.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all random numbers.
    pub seed: u64,
    /// The run fails if it has not ended by then.
    pub limit: Nanos,
    /// Rules in the order of the file.
    pub rules: Vec<PlannedRule>,
    /// Actions at times.
    pub timed: Vec<PlannedTime>,
    /// Expectations in the order of the file.
    pub expectations: Vec<PlannedExpectation>,
}

/// A rule.
#[derive(Clone, Debug)]
pub struct PlannedRule {
    /// Name in messages.
    pub name: String,
    /// Index of the NIC that observes; `None`: each, unless a port observes.
    pub nic: Option<usize>,
    /// Index of the port that observes instead of NICs, among those that lead out of the process.
    pub port: Option<usize>,
    /// The kind of things that match.
    pub thing: Thing,
    /// Further conditions.
    pub conditions: Conditions,
    /// Which of the matches count.
    pub choice: Choice,
    /// What is done.
    pub effect: Effect,
    /// Packets on the wire may violate the specification after it.
    pub is_illegal: bool,
    /// How often the action must have taken place at the end.
    pub fired: Range,
}

/// A kind of things that rules match.
#[derive(Clone, Debug, PartialEq)]
pub enum Thing {
    /// Packets on the wire.
    Packet(PacketMatch),
    /// Passes through a point inside the NIC, with this code; `None`: any. [`faultline_nic::injection`] defines the
    /// codes.
    Point(Point, Option<u16>),
    /// Interrupts of one vector, or of all.
    Interrupt(Option<u16>),
    /// Doorbells of one type (`faultline_abi::doorbell`), or of all.
    Doorbell(Option<u8>),
    /// Diagnostics.
    Diagnostic(DiagnosticKind),
    /// Queue pairs that enter a state.
    QpState(State),
    /// A name that the API signals.
    Signal(String),
}

/// Which packets match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketMatch {
    /// Direction at the NIC that observes.
    pub dir: Direction,
    /// Their opcodes.
    pub opcodes: Opcodes,
    /// The condition on the AETH.
    pub answer: Option<Answer>,
    /// PSN relative to the first of the connection.
    pub psn: Option<Range>,
    /// Transmission, from 1.
    pub iter: Option<u32>,
    /// Only those with which a multiple of this number of bytes is reached.
    pub bytes: Option<u64>,
}

/// A set of BTH opcodes, and of frames that are not RoCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opcodes {
    bits: [u64; 4],
    /// Frames that are not RoCE are in the set.
    pub raw: bool,
}

impl Opcodes {
    /// All RoCE opcodes. Frames that are not RoCE have to be named.
    pub const ALL: Self = Self {
        bits: [u64::MAX; 4],
        raw: false,
    };

    /// Adds an opcode.
    pub fn insert(&mut self, opcode: Opcode) {
        let value = opcode.to_u8();
        if let Some(word) = self.bits.get_mut(usize::from(value >> 6)) {
            *word |= 1 << (value & 63);
        }
    }

    /// Adds all opcodes of another set.
    pub fn merge(&mut self, other: &Self) {
        for (word, other) in self.bits.iter_mut().zip(other.bits) {
            *word |= other;
        }
        self.raw |= other.raw;
    }

    /// True if the opcode is in the set.
    #[inline]
    pub fn contains(&self, opcode: Opcode) -> bool {
        let value = opcode.to_u8();
        let word = self.bits.get(usize::from(value >> 6));
        word.is_some_and(|word| word >> (value & 63) & 1 != 0)
    }
}

/// The kind of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// ACK.
    Ack,
    /// NAK of any code.
    Nak,
    /// RNR NAK.
    RnrNak,
}

impl Plan {
    /// True if an expectation is about violations, so that a packet checker is needed.
    pub fn checks_packets(&self) -> bool {
        let mut all = self.expectations.iter();
        all.any(|planned| matches!(planned.expectation, Expectation::Violation(_)))
    }

    /// Name of the first rule after which packets on the wire may violate the specification.
    pub fn illegal_rule(&self) -> Option<&str> {
        let mut all = self.rules.iter();
        let illegal = all.find(|rule| rule.is_illegal);
        illegal.map(|rule| rule.name.as_str())
    }

    /// Expects that no NIC violates a rule of the specification, unless a rule of the plan makes packets illegal, or
    /// the plan has an expectation about violations.
    pub fn expect_legal_packets(&mut self) {
        if self.checks_packets() || self.illegal_rule().is_some() {
            return;
        }
        self.expectations.push(PlannedExpectation {
            name: "violation".to_owned(),
            nic: None,
            expectation: Expectation::Violation(Violation {
                rule: None,
                count: Range::exactly(0),
            }),
            code: None,
            packets: None,
        });
    }
}

impl Answer {
    /// The kind of the AETH of a packet.
    pub fn of(header: &RoceHeader) -> Option<Self> {
        match header.aeth?.syndrome {
            Syndrome::Ack { .. } => Some(Self::Ack),
            Syndrome::RnrNak { .. } => Some(Self::RnrNak),
            Syndrome::Nak(_) => Some(Self::Nak),
            Syndrome::Reserved(_) => None,
        }
    }
}

/// Conditions besides the kind of the thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// The N-th connection of the NIC, from 0.
    pub connection: Option<u32>,
    /// Queue pair.
    pub qpn: Option<u32>,
    /// Memory key.
    pub key: Option<u32>,
    /// The N-th on-demand region of the NIC, from 0.
    pub region: Option<u32>,
    /// Pages of 4 KiB, from the beginning of the region if there is one.
    pub pages: Option<Range>,
    /// Name of the process.
    pub process: Option<String>,
    /// Unread entries of the queue, at least.
    pub level: Option<u32>,
    /// Not before this time since the start.
    pub after: Option<Nanos>,
    /// Not after this time.
    pub before: Option<Nanos>,
}

/// Which matches count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Matches before the first that counts.
    pub skip: u64,
    /// From the first that counts on, each N-th counts.
    pub every: u64,
    /// At most this number of matches counts.
    pub times: u64,
    /// Probability of each, in millionths.
    pub per_million: u32,
}

/// The effect of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Only counts.
    Count,
    /// Changes the packet.
    Packet(PacketChange),
    /// Changes an event inside the NIC.
    Inject(Outcome),
    /// Changes an interrupt or a doorbell.
    Boundary(BoundaryChange),
    /// Acts on the NIC: an action that does not change the matched thing.
    Nic(Action),
}

/// A change of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketChange {
    /// It is lost.
    Drop,
    /// It is passed on later.
    Delay(Nanos),
    /// It is passed on twice.
    Duplicate,
    /// An octet is inverted.
    Corrupt(Part),
    /// This number of packets overtakes it.
    Reorder(u32),
    /// It ends after this number of octets.
    Truncate(u16),
    /// Its ECN field says "congestion experienced".
    EcnMark,
    /// Its MigReq bit has this value.
    MigReq(bool),
}

macro_rules! change_kinds {
    ($($name:ident = $done:literal,)*) => {
        /// A change of a packet, without its parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum ChangeKind {
            $(
                #[doc = concat!("[`PacketChange::", stringify!($name), "`].")]
                $name,
            )*
        }

        impl ChangeKind {
            /// All of them, by their numbers.
            const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its effect on a packet, as a participle.
            pub fn done(self) -> &'static str {
                match self {
                    $(Self::$name => $done,)*
                }
            }
        }
    };
}

change_kinds! {
    Drop = "dropped",
    Delay = "delayed",
    Duplicate = "duplicated",
    Corrupt = "corrupted",
    Reorder = "reordered",
    Truncate = "truncated",
    EcnMark = "marked",
    MigReq = "changed in MigReq",
}

impl ChangeKind {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied()
    }

    /// Its number in records.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The inverse of [`ChangeKind::number`]; `None`: no kind has this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// True if the packet is not valid afterwards: its invariant CRC is wrong, or its end is missing.
    pub fn spoils(self) -> bool {
        matches!(self, Self::Corrupt | Self::Truncate)
    }
}

impl PacketChange {
    /// What it does.
    pub fn kind(self) -> ChangeKind {
        match self {
            Self::Drop => ChangeKind::Drop,
            Self::Delay(_) => ChangeKind::Delay,
            Self::Duplicate => ChangeKind::Duplicate,
            Self::Corrupt(_) => ChangeKind::Corrupt,
            Self::Reorder(_) => ChangeKind::Reorder,
            Self::Truncate(_) => ChangeKind::Truncate,
            Self::EcnMark => ChangeKind::EcnMark,
            Self::MigReq(_) => ChangeKind::MigReq,
        }
    }
}

/// A change of an interrupt or a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryChange {
    /// It is lost.
    Drop,
    /// It is passed on later.
    Delay(Nanos),
    /// It is passed on twice.
    Duplicate,
}

/// An action at a time.
#[derive(Clone, Debug)]
pub struct PlannedTime {
    /// Name in messages.
    pub name: String,
    /// Index of the NIC; `None`: each.
    pub nic: Option<usize>,
    /// Since the start of the run.
    pub time: Nanos,
    /// Period.
    pub every: Option<Nanos>,
    /// How often.
    pub times: u64,
    /// What is done.
    pub action: Action,
}

/// An expectation, with the names in it checked.
#[derive(Clone, Debug)]
pub struct PlannedExpectation {
    /// Name in messages: `expect[N]` and its kind.
    pub name: String,
    /// Index of the NIC; `None`: the sum over all.
    pub nic: Option<usize>,
    /// What must hold.
    pub expectation: Expectation,
    /// Number of the status, the kind or the counter that it names.
    pub code: Option<u16>,
    /// The packets of `packets`.
    pub packets: Option<PacketMatch>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_opcodes_contains_the_inserted_ones() {
        let inserted = [Opcode::ALL[0], Opcode::ALL[Opcode::ALL.len() - 1]];
        let mut set = Opcodes::default();
        inserted.into_iter().for_each(|opcode| set.insert(opcode));
        for opcode in Opcode::ALL {
            assert_eq!(set.contains(*opcode), inserted.contains(opcode));
            assert!(Opcodes::ALL.contains(*opcode));
        }
    }
}
