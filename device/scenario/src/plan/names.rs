//! Names of scenario files, and their meaning.

use std::sync::LazyLock;

use faultline_abi::admin::Counter;
use faultline_abi::status::STATUSES;
use faultline_abi::{ConstantGroup, admin, cqe, doorbell, event, translation};
use faultline_checker::Rule;
use faultline_nic::injection::RNR_NAK;
use faultline_nic::{FaultPolicy, State};
use faultline_telemetry::{DiagnosticKind, Stage, opcode_name};
use faultline_wire::aeth::NakCode;
use faultline_wire::opcode::OpKind;
use faultline_wire::rdmap::RdmapOpcode;
use faultline_wire::{Opcode, Service};

use super::{Answer, Opcodes};
use crate::segment::SegmentKinds;

/// Names of one kind of things. Letters of either case are the same.
#[derive(Debug)]
pub(crate) struct Names {
    /// What they name.
    pub(crate) what: &'static str,
    pub(crate) list: Vec<(String, u16)>,
}

impl Names {
    fn new(what: &'static str, list: impl IntoIterator<Item = (String, u16)>) -> Self {
        let list = list.into_iter().collect();
        Self { what, list }
    }

    /// The constants of a group of the device's interface, without their prefix.
    fn of_group(what: &'static str, group: &ConstantGroup) -> Self {
        let constants = group.names().filter_map(|(name, value)| {
            Some((name.to_ascii_lowercase(), u16::try_from(value).ok()?))
        });
        Self::new(what, constants)
    }

    fn without(mut self, value: u16) -> Self {
        self.list.retain(|(_, number)| *number != value);
        self
    }

    fn in_capitals(mut self) -> Self {
        for (name, _) in &mut self.list {
            name.make_ascii_uppercase();
        }
        self
    }

    pub(crate) fn find(&self, name: &str) -> Option<u16> {
        let mut list = self.list.iter();
        let found = list.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, number)| *number)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|(name, _)| name.as_str())
    }
}

/// Statuses of completions.
pub(crate) static COMPLETION_STATUSES: LazyLock<Names> =
    LazyLock::new(|| Names::of_group("completion status", &cqe::STATUSES).in_capitals());

/// Statuses that a failed completion can have.
pub(crate) static FAILED_STATUSES: LazyLock<Names> = LazyLock::new(|| {
    let all = Names::of_group("completion status", &cqe::STATUSES);
    all.without(u16::from(cqe::SUCCESS)).in_capitals()
});

/// Events, without fault records: these are the trigger `fault`.
pub(crate) static EVENTS: LazyLock<Names> = LazyLock::new(|| {
    let all = Names::of_group("event", &event::KINDS);
    all.without(u16::from(event::PAGE_FAULT))
});

/// Commands of the admin queue.
pub(crate) static ADMIN_COMMANDS: LazyLock<Names> =
    LazyLock::new(|| Names::of_group("command", &admin::OPCODES));

/// Commands of the translation queue.
pub(crate) static TRANSLATION_COMMANDS: LazyLock<Names> =
    LazyLock::new(|| Names::of_group("command", &translation::OPCODES));

/// Statuses of commands that are refused.
pub(crate) static COMMAND_STATUSES: LazyLock<Names> =
    LazyLock::new(|| Names::of_group("command status", &STATUSES).without(0));

/// Types of doorbells.
pub(crate) static DOORBELLS: LazyLock<Names> =
    LazyLock::new(|| Names::of_group("doorbell", &doorbell::TYPES));

/// How a request fails.
pub(crate) static REQUEST_FAILURES: LazyLock<Names> = LazyLock::new(|| {
    let nak = |code: NakCode| (code.name().to_owned(), u16::from(code.to_u8()));
    Names::new(
        "NAK code",
        [
            ("rnr".to_owned(), RNR_NAK),
            nak(NakCode::PsnSequenceError),
            nak(NakCode::InvalidRequest),
            nak(NakCode::RemoteAccessError),
            nak(NakCode::RemoteOperationalError),
            nak(NakCode::InvalidRdRequest),
        ],
    )
});

/// Kinds of diagnostics.
pub(crate) static DIAGNOSTICS: LazyLock<Names> = LazyLock::new(|| {
    let kinds = DiagnosticKind::ALL.iter().zip(0u16..);
    Names::new(
        "diagnostic",
        kinds.map(|(kind, number)| (kind.name().to_owned(), number)),
    )
});

/// States of queue pairs.
pub(crate) static QP_STATES: LazyLock<Names> = LazyLock::new(|| {
    let states = State::ALL.iter().zip(0u16..);
    Names::new(
        "state of a queue pair",
        states.map(|(state, number)| (state.name().to_owned(), number)),
    )
});

/// Counters of the device.
pub(crate) static COUNTERS: LazyLock<Names> = LazyLock::new(|| {
    let counters = Counter::ALL.iter().zip(0u16..);
    Names::new(
        "counter",
        counters.map(|(counter, number)| (counter.name().to_owned(), number)),
    )
});

/// Rules of the packet checker.
pub(crate) static PACKET_RULES: LazyLock<Names> = LazyLock::new(|| {
    let rules = Rule::ALL.iter().zip(0u16..);
    Names::new(
        "rule of the packet checker",
        rules.map(|(rule, number)| (rule.name().to_owned(), number)),
    )
});

/// Fault policies.
pub(crate) static FAULT_POLICIES: LazyLock<Names> = LazyLock::new(|| {
    let policies = FaultPolicy::ALL.iter().zip(0u16..);
    Names::new(
        "fault policy",
        policies.map(|(policy, number)| (policy.name().to_owned(), number)),
    )
});

/// Kinds of latency: messages of simulated traffic, then the stages of page faults.
pub(crate) static LATENCIES: LazyLock<Names> = LazyLock::new(|| {
    let stages = Stage::ALL.iter().map(|stage| stage.name());
    let all = ["message"].into_iter().chain(stages);
    Names::new(
        "latency",
        all.zip(0u16..)
            .map(|(name, number)| (name.to_owned(), number)),
    )
});

/// Single opcodes.
pub(crate) static OPCODES: LazyLock<Names> = LazyLock::new(|| {
    let opcodes = Opcode::ALL.iter().map(|opcode| opcode.to_u8());
    Names::new(
        "opcode",
        opcodes.map(|value| (opcode_name(value), u16::from(value))),
    )
});

/// Groups of opcodes, and the contents of each.
pub(crate) const OPCODE_GROUPS: [(&str, &str); 31] = [
    ("any", "all RoCE packets"),
    (
        "SEND",
        "SEND, with or without immediate data or invalidation",
    ),
    ("WRITE", "RDMA WRITE, with or without immediate data"),
    ("READ", "RDMA READ requests"),
    ("READ_RESPONSE", "RDMA READ responses"),
    ("ATOMIC", "compare-and-swap and fetch-and-add requests"),
    ("ATOMIC_ACK", "responses to atomic requests"),
    ("ATOMIC_WRITE", "ATOMIC WRITE requests"),
    ("FLUSH", "FLUSH requests"),
    (
        "ACK",
        "acknowledge packets that are neither NAK nor RNR NAK",
    ),
    ("NAK", "NAKs of any code"),
    ("RNR_NAK", "RNR NAKs"),
    (
        "READY",
        "READY packets, which tell a requester not to wait for its RNR timer",
    ),
    ("REQUEST", "all requests"),
    ("RESPONSE", "all responses, acknowledgements included"),
    ("CNP", "congestion notification packets"),
    ("RAW", "frames that are not RoCE"),
    ("TCP", "all TCP segments"),
    ("TCP_SYN", "TCP segments with SYN"),
    ("TCP_FIN", "TCP segments with FIN"),
    ("TCP_RST", "TCP segments with RST"),
    ("TCP_ACK", "TCP segments without data, SYN, FIN and RST"),
    ("MPA", "TCP segments with an MPA request or reply"),
    (
        "FPDU",
        "TCP segments that begin with a whole FPDU of iWARP, of any message type",
    ),
    (
        "IWARP_SEND",
        "the same with a SEND of any of the four types",
    ),
    ("IWARP_WRITE", "with an RDMA WRITE"),
    ("IWARP_READ", "with a READ request"),
    ("IWARP_READ_RESPONSE", "with a READ response"),
    ("IWARP_ATOMIC", "with an atomic request"),
    ("IWARP_ATOMIC_RESPONSE", "with an atomic response"),
    ("IWARP_TERMINATE", "with a Terminate message"),
];

/// The kinds of TCP segments that a group has.
fn segments(group: &str) -> Option<SegmentKinds> {
    use RdmapOpcode as O;
    let messages: &[O] = match group {
        "TCP" => return Some(SegmentKinds::ALL),
        "TCP_SYN" => return Some(SegmentKinds::SYN),
        "TCP_FIN" => return Some(SegmentKinds::FIN),
        "TCP_RST" => return Some(SegmentKinds::RST),
        "TCP_ACK" => return Some(SegmentKinds::ACK),
        "MPA" => return Some(SegmentKinds::SETUP),
        "FPDU" => &O::ALL,
        "IWARP_SEND" => &[
            O::Send,
            O::SendInvalidate,
            O::SendSolicited,
            O::SendSolicitedInvalidate,
        ],
        "IWARP_WRITE" => &[O::Write],
        "IWARP_READ" => &[O::ReadRequest],
        "IWARP_READ_RESPONSE" => &[O::ReadResponse],
        "IWARP_ATOMIC" => &[O::AtomicRequest],
        "IWARP_ATOMIC_RESPONSE" => &[O::AtomicResponse],
        "IWARP_TERMINATE" => &[O::Terminate],
        _ => return None,
    };
    Some(SegmentKinds::of_messages(messages))
}

/// The packets of a group of opcodes, or of an opcode.
pub(crate) fn opcodes(name: &str) -> Option<(Opcodes, Option<Answer>)> {
    let mut groups = OPCODE_GROUPS.iter().map(|(group, _)| *group);
    let Some(group) = groups.find(|group| group.eq_ignore_ascii_case(name)) else {
        let value = u8::try_from(OPCODES.find(name)?).ok()?;
        let opcode = Opcode::from_u8(value)?;
        return Some((set(|other| other == opcode), None));
    };
    let kind = |kind: OpKind| set(|opcode| opcode.info().kind == kind);
    Some(match group {
        "any" => (Opcodes::ALL, None),
        "SEND" => (kind(OpKind::Send), None),
        "WRITE" => (kind(OpKind::Write), None),
        "READ" => (kind(OpKind::ReadRequest), None),
        "READ_RESPONSE" => (kind(OpKind::ReadResponse), None),
        "ATOMIC" => (set(|opcode| opcode.info().kind.is_atomic()), None),
        "ATOMIC_ACK" => (kind(OpKind::AtomicAck), None),
        "ATOMIC_WRITE" => (kind(OpKind::AtomicWrite), None),
        "FLUSH" => (kind(OpKind::Flush), None),
        "ACK" => (kind(OpKind::Ack), Some(Answer::Ack)),
        "NAK" => (kind(OpKind::Ack), Some(Answer::Nak)),
        "RNR_NAK" => (kind(OpKind::Ack), Some(Answer::RnrNak)),
        "READY" => (kind(OpKind::Ready), None),
        "REQUEST" => (set(Opcode::is_request), None),
        "RESPONSE" => (set(Opcode::is_response), None),
        "CNP" => (set(|opcode| opcode.info().service == Service::Cnp), None),
        "RAW" => {
            let raw = Opcodes {
                raw: true,
                ..Opcodes::default()
            };
            (raw, None)
        }
        _ => (Opcodes::of_segments(segments(group)?), None),
    })
}

fn set(contains: impl Fn(Opcode) -> bool) -> Opcodes {
    let mut opcodes = Opcodes::default();
    let all = Opcode::ALL.iter().copied();
    all.filter(|opcode| contains(*opcode))
        .for_each(|opcode| opcodes.insert(opcode));
    opcodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_a_kind_differ_and_are_found() {
        for names in [
            &COMPLETION_STATUSES,
            &FAILED_STATUSES,
            &EVENTS,
            &ADMIN_COMMANDS,
            &TRANSLATION_COMMANDS,
            &COMMAND_STATUSES,
            &DOORBELLS,
            &REQUEST_FAILURES,
            &DIAGNOSTICS,
            &QP_STATES,
            &COUNTERS,
            &PACKET_RULES,
            &FAULT_POLICIES,
            &LATENCIES,
            &OPCODES,
        ] {
            assert!(!names.list.is_empty(), "{}", names.what);
            for (name, number) in &names.list {
                assert_eq!(
                    names.find(&name.to_ascii_uppercase()),
                    Some(*number),
                    "{name}"
                );
                assert_eq!(
                    names.find(&name.to_ascii_lowercase()),
                    Some(*number),
                    "{name}"
                );
            }
        }
        assert_eq!(COMPLETION_STATUSES.find("retry_exc_err"), Some(12));
        assert_eq!(ADMIN_COMMANDS.find("create_qp"), Some(admin::CREATE_QP));
        assert_eq!(COMMAND_STATUSES.find("no_resources"), Some(4));
        assert_eq!(FAILED_STATUSES.find("success"), None);
        assert_eq!(EVENTS.find("page_fault"), None);
    }

    /// `command` names commands of both queues.
    #[test]
    fn no_command_is_in_both_queues() {
        for name in TRANSLATION_COMMANDS.names() {
            assert_eq!(ADMIN_COMMANDS.find(name), None, "{name}");
        }
    }

    #[test]
    fn groups_contain_the_opcodes_that_they_say() {
        for (group, _) in OPCODE_GROUPS {
            let (opcodes, _) = opcodes(&group.to_ascii_lowercase()).unwrap();
            assert_ne!(opcodes, Opcodes::default(), "{group}");
            // A name that is also that of an opcode means this opcode only.
            if let Some(value) = OPCODES.find(group) {
                let only = set(|opcode| u16::from(opcode.to_u8()) == value);
                assert_eq!(opcodes, only, "{group}");
            }
        }
        let (acks, answer) = opcodes("ack").unwrap();
        assert!(acks.contains(Opcode::RcAcknowledge) && acks.contains(Opcode::XrcAcknowledge));
        assert!(!acks.contains(Opcode::RcReadResponseOnly));
        assert_eq!(answer, Some(Answer::Ack));
        let (one, _) = opcodes("RC_SEND_ONLY").unwrap();
        assert!(one.contains(Opcode::RcSendOnly) && !one.contains(Opcode::UdSendOnly));
        assert_eq!(opcodes("rc_send_onl"), None);
    }
}
