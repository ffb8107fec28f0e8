//! Kinds of things that a trigger matches: the keys that name them, and their conditions.

use faultline_abi::doorbell;
use faultline_nic::{Fact, Point, State};
use faultline_telemetry::DiagnosticKind;

use super::check::{Checker, in_quotes, range};
use super::names;
use super::{Choice, Conditions, PacketMatch, Thing};
use crate::problem::Path;
use crate::segment::SegmentMatch;
use crate::trigger::{Any, AnyOr, Direction, FaultMoment, Trigger};
use crate::value::{Chance, Range};

/// Largest PSN.
const MAX_PSN: u64 = (1 << 24) - 1;
/// Largest number of a queue pair.
const MAX_QPN: u64 = (1 << 24) - 1;
/// Probability of a certain event.
const ALWAYS: u32 = 1_000_000;

/// Keys that make a trigger for packets.
pub(crate) const PACKET_KEYS: [&str; 9] = [
    "dir", "opcode", "psn", "iter", "bytes", "offset", "queue", "msn", "stag",
];
/// Keys of TCP segments.
const SEGMENT_KEYS: [&str; 4] = ["offset", "queue", "msn", "stag"];
/// Keys that name different kinds of things.
pub(crate) const KIND_KEYS: [&str; 10] = [
    "fault",
    "completion",
    "event",
    "command",
    "lookup",
    "request",
    "interrupt",
    "doorbell",
    "diagnostic",
    "qp_state",
];

/// Conditions on the subject of a match.
const CONDITION_KEYS: [&str; 7] = ["qp", "qpn", "process", "key", "region", "page", "level"];

/// All keys of a trigger, in the order of the reference.
pub(crate) fn trigger_keys() -> impl Iterator<Item = &'static str> {
    let kinds = PACKET_KEYS.into_iter().chain(KIND_KEYS).chain(["signal"]);
    let choice = ["after", "before", "nth", "every", "chance"];
    kinds.chain(CONDITION_KEYS).chain(choice)
}

/// A kind of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Packet,
    Point(Point),
    Interrupt,
    /// Of this type, or of any.
    Doorbell(Option<u8>),
    /// Of this kind, or of any.
    Diagnostic(Option<DiagnosticKind>),
    QpState,
    Signal,
}

impl Kind {
    /// All kinds, in the order of the reference.
    pub(crate) const ALL: [Self; 14] = [
        Self::Packet,
        Self::Point(Point::FaultRecord),
        Self::Point(Point::FaultAnswer),
        Self::Point(Point::Completion),
        Self::Point(Point::Event),
        Self::Point(Point::AdminCommand),
        Self::Point(Point::TranslationCommand),
        Self::Point(Point::Lookup),
        Self::Point(Point::Request),
        Self::Interrupt,
        Self::Doorbell(None),
        Self::Diagnostic(None),
        Self::QpState,
        Self::Signal,
    ];

    pub(super) fn of(thing: &Thing) -> Self {
        match thing {
            Thing::Packet(_) => Self::Packet,
            Thing::Point(point, _) => Self::Point(*point),
            Thing::Interrupt(_) => Self::Interrupt,
            Thing::Doorbell(kind) => Self::Doorbell(*kind),
            Thing::Diagnostic(kind) => Self::Diagnostic(Some(*kind)),
            Thing::QpState(_) => Self::QpState,
            Thing::Signal(_) => Self::Signal,
        }
    }

    /// Its name in messages, in the plural.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Packet => "packets",
            Self::Point(Point::FaultRecord) => "fault records",
            Self::Point(Point::FaultAnswer) => "fault answers",
            Self::Point(Point::Completion) => "completions",
            Self::Point(Point::Event) => "events",
            Self::Point(Point::AdminCommand) => "commands of the admin queue",
            Self::Point(Point::TranslationCommand) => "commands of the translation queue",
            Self::Point(Point::Lookup) => "look-ups",
            Self::Point(Point::Request) => "requests",
            Self::Interrupt => "interrupts",
            Self::Doorbell(_) => "doorbells",
            Self::Diagnostic(_) => "diagnostics",
            Self::QpState => "changes of the state of a queue pair",
            Self::Signal => "signals",
        }
    }

    /// True if a queue pair belongs to each thing of this kind, or can: `None` of [`Kind::Doorbell`] and
    /// [`Kind::Diagnostic`].
    pub(super) fn has_queue_pair(self) -> bool {
        use DiagnosticKind as D;
        match self {
            Self::Packet | Self::QpState => true,
            Self::Point(point) => point.has(Fact::Qpn),
            Self::Doorbell(kind) => {
                kind.is_none_or(|kind| matches!(kind, doorbell::SQ | doorbell::RQ))
            }
            Self::Diagnostic(kind) => kind.is_none_or(|kind| match kind {
                D::QpState
                | D::QpFailed
                | D::WorkFailed
                | D::FaultRaised
                | D::FaultJoined
                | D::FaultContinued
                | D::FaultDone
                | D::Stalled
                | D::StallTimedOut
                | D::RnrNakSent
                | D::RnrNakReceived
                | D::Retried
                | D::SequenceNakSent
                | D::RetriesExhausted
                | D::KeyRefused
                | D::RequestRefused
                | D::PacketDropped
                | D::TerminateSent
                | D::TerminateReceived
                | D::ConnectionEnded => true,
                D::Fatal
                | D::Reset
                | D::FaultResumed
                | D::FaultFailed
                | D::FaultExpired
                | D::FaultCancelled
                | D::StallEnded
                | D::Overrun
                | D::Command
                | D::DoorbellRefused
                | D::Injected => false,
            }),
            Self::Interrupt | Self::Signal => false,
        }
    }

    fn has_key(self) -> bool {
        match self {
            Self::Point(point) => point.has(Fact::Key),
            Self::Diagnostic(kind) => kind.is_none_or(|kind| {
                matches!(
                    kind,
                    DiagnosticKind::FaultRaised | DiagnosticKind::KeyRefused
                )
            }),
            _ => false,
        }
    }

    fn has_address(self) -> bool {
        matches!(self, Self::Point(point) if point.has(Fact::Va))
    }

    fn has_level(self) -> bool {
        matches!(self, Self::Point(point) if point.has(Fact::Level))
    }

    /// Conditions that a trigger for such things can have, without those on time.
    pub(crate) fn conditions(self) -> Vec<&'static str> {
        let all = [
            ("qp", self.has_queue_pair()),
            ("qpn", self.has_queue_pair()),
            ("process", self.has_queue_pair()),
            ("key", self.has_key()),
            ("region", self.has_key() && self.has_address()),
            ("page", self.has_address()),
            ("level", self.has_level()),
        ];
        let allowed = all.into_iter().filter(|(_, allowed)| *allowed);
        allowed.map(|(key, _)| key).collect()
    }
}

/// Keys of the trigger that are present.
fn present(trigger: &Trigger) -> Vec<&'static str> {
    let all = [
        ("dir", trigger.dir.is_some()),
        ("opcode", trigger.opcode.is_some()),
        ("psn", trigger.psn.is_some()),
        ("iter", trigger.iter.is_some()),
        ("bytes", trigger.bytes.is_some()),
        ("offset", trigger.offset.is_some()),
        ("queue", trigger.queue.is_some()),
        ("msn", trigger.msn.is_some()),
        ("stag", trigger.stag.is_some()),
        ("fault", trigger.fault.is_some()),
        ("completion", trigger.completion.is_some()),
        ("event", trigger.event.is_some()),
        ("command", trigger.command.is_some()),
        ("lookup", trigger.lookup.is_some()),
        ("request", trigger.request.is_some()),
        ("interrupt", trigger.interrupt.is_some()),
        ("doorbell", trigger.doorbell.is_some()),
        ("diagnostic", trigger.diagnostic.is_some()),
        ("qp_state", trigger.qp_state.is_some()),
        ("signal", trigger.signal.is_some()),
        ("qp", trigger.qp.is_some()),
        ("qpn", trigger.qpn.is_some()),
        ("process", trigger.process.is_some()),
        ("key", trigger.key.is_some()),
        ("region", trigger.region.is_some()),
        ("page", trigger.page.is_some()),
        ("level", trigger.level.is_some()),
    ];
    let present = all.into_iter().filter(|(_, present)| *present);
    present.map(|(key, _)| key).collect()
}

/// What a trigger says of TCP segments.
fn segment_match(trigger: &Trigger) -> Option<SegmentMatch> {
    let segment = SegmentMatch {
        offset: trigger.offset,
        queue: trigger.queue,
        msn: trigger.msn,
        stag: trigger.stag,
    };
    (segment != SegmentMatch::default()).then_some(segment)
}

impl Checker<'_> {
    /// The things that a trigger matches.
    pub(super) fn thing(&mut self, path: &Path, trigger: &Trigger) -> Option<Thing> {
        let present = present(trigger);
        let is_kind = |key: &&&str| KIND_KEYS.contains(key) || **key == "signal";
        let mut kinds = present.iter().filter(is_kind);
        let kind = kinds.next().copied();
        for other in kinds {
            let message = format!(
                "`{}` and `{other}` name different kinds of things: a trigger has one",
                kind.unwrap_or_default()
            );
            self.wrong_key(path.key(other), message);
        }
        let packet_keys = present.iter().filter(|key| PACKET_KEYS.contains(key));
        let packet_keys: Vec<&str> = packet_keys.copied().collect();
        let Some(kind) = kind else {
            if packet_keys.is_empty() {
                let kinds: Vec<&str> = PACKET_KEYS
                    .into_iter()
                    .chain(KIND_KEYS)
                    .chain(["signal"])
                    .collect();
                let message = format!(
                    "the trigger does not say what matches: one of {} is needed",
                    in_quotes(&kinds)
                );
                self.wrong_value(path.clone(), message);
                return None;
            }
            return self.packets(path, trigger);
        };
        for key in packet_keys {
            let message = format!("`{key}` belongs to packets, and `{kind}` is present");
            self.wrong_key(path.key(key), message);
        }
        self.other_thing(path, trigger)
    }

    fn packets(&mut self, path: &Path, trigger: &Trigger) -> Option<Thing> {
        let segment = segment_match(trigger);
        let default = if segment.is_some() { "TCP" } else { "any" };
        let name = trigger.opcode.as_deref().unwrap_or(default);
        let packets = self.packet_match(&path.key("opcode"), trigger.dir, name)?;
        if packets.opcodes.segments.is_empty() {
            let keys = present(trigger).into_iter();
            for key in keys.filter(|key| SEGMENT_KEYS.contains(key)) {
                let message = format!("`{key}` belongs to TCP segments, and `{name}` is none");
                self.wrong_key(path.key(key), message);
            }
        }
        if packets.opcodes.has_others() {
            let needs_roce = [
                ("psn", trigger.psn.is_some()),
                ("iter", trigger.iter.is_some()),
                ("qp", trigger.qp.is_some()),
                ("qpn", trigger.qpn.is_some()),
                ("process", trigger.process.is_some()),
            ];
            for (key, _) in needs_roce.into_iter().filter(|(_, present)| *present) {
                let message = format!("`{key}` belongs to RoCE packets, and `{name}` is none");
                self.wrong_key(path.key(key), message);
            }
        }
        if let Some(psn) = trigger.psn.filter(|psn| psn.first > MAX_PSN) {
            let message = format!("{psn} is out of range: a PSN is 0 to {MAX_PSN}");
            self.wrong_value(path.key("psn"), message);
        }
        let at_least_one = Range::from(1);
        self.optional_limits(path.key("iter"), trigger.iter.map(u64::from), at_least_one);
        self.optional_limits(path.key("bytes"), trigger.bytes, at_least_one);
        Some(Thing::Packet(PacketMatch {
            psn: trigger.psn,
            iter: trigger.iter,
            bytes: trigger.bytes,
            segment,
            ..packets
        }))
    }

    /// Packets with an opcode. `path` is that of the opcode.
    pub(super) fn packet_match(
        &mut self,
        path: &Path,
        dir: Option<Direction>,
        opcode: &str,
    ) -> Option<PacketMatch> {
        let Some((opcodes, answer)) = names::opcodes(opcode) else {
            let groups = names::OPCODE_GROUPS.iter().map(|(group, _)| *group);
            let allowed = groups.chain(names::OPCODES.names()).collect();
            self.unknown(path.clone(), "opcode", opcode, allowed);
            return None;
        };
        Some(PacketMatch {
            dir: dir.unwrap_or(Direction::Tx),
            opcodes,
            answer,
            psn: None,
            iter: None,
            bytes: None,
            segment: None,
        })
    }

    fn other_thing(&mut self, path: &Path, trigger: &Trigger) -> Option<Thing> {
        if let Some(moment) = trigger.fault {
            let point = match moment {
                FaultMoment::Record => Point::FaultRecord,
                FaultMoment::Answer => Point::FaultAnswer,
            };
            return Some(Thing::Point(point, None));
        }
        if let Some(status) = &trigger.completion {
            let code = self.any_or(path.key("completion"), &names::COMPLETION_STATUSES, status)?;
            return Some(Thing::Point(Point::Completion, code));
        }
        if let Some(kind) = &trigger.event {
            let code = self.any_or(path.key("event"), &names::EVENTS, kind)?;
            return Some(Thing::Point(Point::Event, code));
        }
        if let Some(command) = &trigger.command {
            return self.command(path.key("command"), command);
        }
        if let Some(Any::Any) = trigger.lookup {
            return Some(Thing::Point(Point::Lookup, None));
        }
        if let Some(opcode) = &trigger.request {
            let code = self.any_or(path.key("request"), &names::OPCODES, opcode)?;
            return Some(Thing::Point(Point::Request, code));
        }
        if let Some(vector) = trigger.interrupt {
            return Some(Thing::Interrupt(match vector {
                AnyOr::Any(_) => None,
                AnyOr::Only(vector) => Some(vector),
            }));
        }
        if let Some(kind) = &trigger.doorbell {
            let code = self.any_or(path.key("doorbell"), &names::DOORBELLS, kind)?;
            let code = code.and_then(|code| u8::try_from(code).ok());
            return Some(Thing::Doorbell(code));
        }
        if let Some(kind) = &trigger.diagnostic {
            return self
                .diagnostic_kind(path.key("diagnostic"), kind)
                .map(Thing::Diagnostic);
        }
        if let Some(state) = &trigger.qp_state {
            let number = self.name(path.key("qp_state"), &names::QP_STATES, state)?;
            let state = State::ALL.get(usize::from(number)).copied();
            return state.map(Thing::QpState);
        }
        trigger.signal.clone().map(Thing::Signal)
    }

    pub(super) fn diagnostic_kind(&mut self, path: Path, name: &str) -> Option<DiagnosticKind> {
        let number = self.name(path.clone(), &names::DIAGNOSTICS, name)?;
        let kind = DiagnosticKind::ALL.get(usize::from(number)).copied();
        if kind == Some(DiagnosticKind::Injected) {
            let message = "a rule can't match the effects of rules: the key `fired` of the rule says how often it acts";
            self.wrong_value(path, message);
            return None;
        }
        kind
    }

    /// `any`, or a name. `None`: unknown.
    fn any_or(&mut self, path: Path, names: &names::Names, given: &str) -> Option<Option<u16>> {
        if given.eq_ignore_ascii_case("any") {
            return Some(None);
        }
        if let Some(found) = names.find(given) {
            return Some(Some(found));
        }
        let allowed = ["any"].into_iter().chain(names.names()).collect();
        self.unknown(path, names.what, given, allowed);
        None
    }

    /// A command of either queue.
    fn command(&mut self, path: Path, name: &str) -> Option<Thing> {
        let any = [
            ("any", Point::AdminCommand),
            ("any_translation", Point::TranslationCommand),
        ];
        let mut is_any = any.iter();
        if let Some((_, point)) = is_any.find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            return Some(Thing::Point(*point, None));
        }
        if let Some(code) = names::ADMIN_COMMANDS.find(name) {
            return Some(Thing::Point(Point::AdminCommand, Some(code)));
        }
        if let Some(code) = names::TRANSLATION_COMMANDS.find(name) {
            return Some(Thing::Point(Point::TranslationCommand, Some(code)));
        }
        let any = any.iter().map(|(name, _)| *name);
        let translation = names::TRANSLATION_COMMANDS.names();
        let allowed = any.chain(translation).chain(names::ADMIN_COMMANDS.names());
        self.unknown(path, "command", name, allowed.collect());
        None
    }

    /// The conditions of a trigger for such things.
    pub(super) fn conditions(&mut self, path: &Path, trigger: &Trigger, kind: Kind) -> Conditions {
        let allowed = kind.conditions();
        for key in present(trigger) {
            let is_condition =
                !PACKET_KEYS.contains(&key) && !KIND_KEYS.contains(&key) && key != "signal";
            if is_condition && !allowed.contains(&key) {
                let further = match allowed.is_empty() {
                    true => String::new(),
                    false => format!("{}, ", in_quotes(&allowed)),
                };
                let message = format!(
                    "{} have no `{key}`: conditions on them are {further}`after`, `before`",
                    kind.name()
                );
                self.wrong_key(path.key(key), message);
            }
        }
        self.not_both(
            path,
            ("qp", trigger.qp.is_some()),
            ("qpn", trigger.qpn.is_some()),
        );
        self.not_both(
            path,
            ("key", trigger.key.is_some()),
            ("region", trigger.region.is_some()),
        );
        self.optional_limits(
            path.key("qpn"),
            trigger.qpn.map(u64::from),
            range(0, MAX_QPN),
        );
        self.optional_limits(
            path.key("level"),
            trigger.level.map(u64::from),
            Range::from(1),
        );
        let after = trigger.after.map(|time| self.time(path.key("after"), time));
        let before = trigger
            .before
            .map(|time| self.time(path.key("before"), time));
        if let (Some(first), Some(last)) = (trigger.after, trigger.before)
            && first > last
        {
            let message = format!("{last} is before `after`, which is {first}: nothing matches");
            self.wrong_value(path.key("before"), message);
        }
        Conditions {
            connection: trigger.qp,
            qpn: trigger.qpn,
            key: trigger.key,
            region: trigger.region,
            pages: trigger.page,
            process: trigger.process.clone(),
            level: trigger.level,
            after,
            before,
        }
    }

    /// Selects the matches that count. `times` is that of the action; `once`: the action takes place once if the file
    /// has no number.
    pub(super) fn choice(
        &mut self,
        path: &Path,
        trigger: &Trigger,
        times: Option<u64>,
        once: bool,
    ) -> Choice {
        let at_least_one = Range::from(1);
        self.optional_limits(path.key("nth"), trigger.nth, at_least_one);
        self.optional_limits(path.key("every"), trigger.every, at_least_one);
        let only_one = trigger.every.is_none() && (trigger.nth.is_some() || once);
        Choice {
            skip: trigger.nth.unwrap_or(1).saturating_sub(1),
            every: trigger.every.unwrap_or(1),
            times: times.unwrap_or(if only_one { 1 } else { u64::MAX }),
            per_million: trigger.chance.map_or(ALWAYS, Chance::per_million),
        }
    }
}
