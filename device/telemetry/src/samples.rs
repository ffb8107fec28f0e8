//! Traces for tests.

use faultline_nic::{
    CommandQueue, Diagnostic, DriverTimes, DropCause, Instant, KeyUse, Nanos, OverrunQueue, Point,
    RetryCause, State, StateCause,
};
use faultline_wire::Opcode;
use faultline_wire::rdmap::TerminateCode;
use proptest::prelude::*;

use crate::event::{DoorbellPath, FrameEvent, Record, TraceEvent};
use crate::trace::{QueuePairOwner, Trace, TraceHeader};

pub(crate) fn frame(
    opcode: Opcode,
    to: u16,
    (src_qpn, dst_qpn): (u32, u32),
    psn: u32,
) -> FrameEvent {
    FrameEvent {
        to,
        opcode: opcode.to_u8(),
        syndrome: FrameEvent::NO_SYNDROME,
        src_qpn,
        dst_qpn,
        psn,
        packets: 1,
        bytes: 100,
    }
}

pub(crate) fn nic(at: u64, nic: u16, diagnostic: Diagnostic) -> Record {
    Record {
        at: Instant(at),
        nic,
        event: TraceEvent::Nic(diagnostic),
    }
}

fn sent(at: u64, nic: u16, frame: FrameEvent) -> Record {
    Record {
        at: Instant(at),
        nic,
        event: TraceEvent::Frame(frame),
    }
}

pub(crate) fn header() -> TraceHeader {
    let mut header = TraceHeader::new(vec!["left".to_owned(), "right".to_owned()]);
    header.queue_pairs.push(QueuePairOwner {
        nic: 0,
        qpn: 17,
        process: "ib_write_bw".to_owned(),
        pid: 4711,
        at: Instant(0),
    });
    header
}

/// QP 17 of NIC 0 writes to an absent page of NIC 1 (QP 18), beginning at `start`. The
/// fault has this token, takes 100 µs until RESUME, and 8 µs more until its data arrives. Records have the order in which
/// the engine makes them.
pub(crate) fn write_to_absent_page(start: u64, token: u64, psn: u32) -> Vec<Record> {
    let write = frame(Opcode::RcWriteOnly, 1, (17, 18), psn);
    let nak = FrameEvent {
        syndrome: 0x20 | 1,
        ..frame(Opcode::RcAcknowledge, 0, (18, 17), psn)
    };
    let ack = FrameEvent {
        syndrome: 0x1f,
        ..nak
    };
    let (raised, resumed) = (Instant(start), Instant(start + 100_000));
    let driver = DriverTimes {
        wait_ns: 10_000,
        map_ns: 20_000,
        post_ns: 5_000,
    };
    vec![
        Record {
            at: Instant(start),
            nic: 0,
            event: TraceEvent::Doorbell {
                page: 1,
                kind: 1,
                path: DoorbellPath::Page,
                object: 17,
                value: 1,
            },
        },
        sent(start, 0, write),
        sent(start, 1, nak),
        nic(
            start,
            0,
            Diagnostic::RnrNakReceived {
                qpn: 17,
                psn,
                delay: Nanos(10_000),
            },
        ),
        Record {
            at: Instant(start),
            nic: 1,
            event: TraceEvent::Interrupt { vector: 2 },
        },
        nic(
            start,
            1,
            Diagnostic::FaultRaised {
                token,
                qpn: 18,
                key: 0x1200,
                va: 0x7f00_0000_1000,
                bytes: 64,
                psn,
                write: true,
                requester: false,
            },
        ),
        nic(
            start,
            1,
            Diagnostic::RnrNakSent {
                qpn: 18,
                psn,
                token,
            },
        ),
        nic(
            start + 100_000,
            1,
            Diagnostic::Command {
                queue: CommandQueue::Translation,
                opcode: 3,
                status: 0,
                object: 0x1200,
            },
        ),
        nic(
            start + 100_000,
            1,
            Diagnostic::FaultResumed {
                token,
                raised,
                waiters: 1,
                record_ns: 15_000,
                driver,
            },
        ),
        sent(start + 108_000, 0, write),
        sent(start + 108_000, 1, ack),
        nic(
            start + 108_000,
            1,
            Diagnostic::FaultDone {
                token,
                qpn: 18,
                resumed,
                raised,
            },
        ),
    ]
}

pub(crate) fn trace(records: Vec<Record>) -> Trace {
    Trace {
        header: header(),
        records,
    }
}

/// A number that is often equal to another one, and sometimes an extreme.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..4, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn injected(id: u32, qpn: u32, point: u64) -> Diagnostic {
    Diagnostic::Injected {
        id,
        point: Point::ALL[point as usize % Point::ALL.len()],
        qpn,
        object: id,
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each kind")]
fn diagnostic(kind: u8, a: u64, b: u64, c: u64) -> Diagnostic {
    let states = [State::Reset, State::Init, State::Rts, State::Err];
    let state = |n: u64| states[n as usize % states.len()];
    let (qpn, psn, token) = (a as u32, b as u32, c);
    let (raised, resumed) = (Instant(a), Instant(b));
    match kind % 27 {
        0 => Diagnostic::Fatal { cause: qpn },
        1 => Diagnostic::Reset,
        2 => Diagnostic::QpState {
            qpn,
            from: state(b),
            to: state(c),
            cause: StateCause::Event { event: a as u8 },
        },
        3 => Diagnostic::QpFailed {
            qpn,
            event: b as u8,
        },
        4 => Diagnostic::WorkFailed {
            qpn,
            status: b as u8,
            vendor: c as u8,
            receive: b > c,
        },
        5 | 25 => Diagnostic::FaultRaised {
            token,
            qpn,
            key: psn,
            va: b,
            bytes: psn,
            psn,
            write: a > b,
            requester: b > c,
        },
        6 => Diagnostic::FaultJoined {
            token,
            qpn,
            va: b,
            psn,
        },
        7 => Diagnostic::FaultResumed {
            token,
            raised,
            waiters: psn,
            record_ns: psn,
            driver: DriverTimes {
                wait_ns: a as u32,
                map_ns: b as u32,
                post_ns: c as u32,
            },
        },
        8 => Diagnostic::FaultFailed {
            token,
            raised,
            qpn,
            key: psn,
            va: b,
        },
        9 => Diagnostic::FaultExpired {
            token,
            raised,
            qpn,
            key: psn,
            va: b,
        },
        10 => Diagnostic::FaultCancelled {
            token,
            raised,
            qpn,
            key: psn,
            va: b,
        },
        11 => Diagnostic::FaultContinued { token, qpn },
        12 => Diagnostic::FaultDone {
            token,
            qpn,
            resumed,
            raised,
        },
        13 => Diagnostic::Stalled { qpn },
        14 => Diagnostic::StallEnded { after: Nanos(a) },
        15 => Diagnostic::StallTimedOut { qpn },
        16 => Diagnostic::RnrNakSent { qpn, psn, token },
        17 => Diagnostic::RnrNakReceived {
            qpn,
            psn,
            delay: Nanos(c),
        },
        18 => Diagnostic::Retried {
            qpn,
            psn,
            cause: RetryCause::Timeout,
        },
        19 => Diagnostic::SequenceNakSent { qpn, psn },
        20 => Diagnostic::RetriesExhausted {
            qpn,
            psn,
            rnr: a > b,
        },
        21 => Diagnostic::KeyRefused {
            qpn,
            key: psn,
            va: c,
            by: KeyUse::Remote,
        },
        22 => Diagnostic::Overrun {
            queue: OverrunQueue::Parked,
            object: qpn,
        },
        23 => Diagnostic::Command {
            queue: CommandQueue::Admin,
            opcode: a as u16,
            status: b as u16,
            object: psn,
        },
        26 => injected(psn, qpn, c),
        27 => Diagnostic::PacketDropped {
            qpn,
            sent: a > b,
            cause: DropCause::SourceGid { index: c as u16 },
        },
        28 => Diagnostic::TerminateSent {
            qpn,
            code: TerminateCode::from_u16(c as u16),
        },
        29 => Diagnostic::TerminateReceived {
            qpn,
            code: TerminateCode::from_u16(c as u16),
        },
        30 => Diagnostic::ConnectionEnded {
            qpn,
            reason: c as u8,
        },
        _ => Diagnostic::RequestRefused {
            qpn,
            psn,
            nak: c as u8,
        },
    }
}

/// Any record of a few NICs, queue pairs and tokens.
pub(crate) fn any_record() -> impl Strategy<Value = Record> {
    let numbers = (number(), number(), number(), number());
    (0u16..3, any::<u8>(), any::<u8>(), numbers).prop_map(|(nic, what, kind, (at, a, b, c))| {
        let event = match what % 8 {
            0 | 1 => TraceEvent::Frame(FrameEvent {
                to: if c > 3 { FrameEvent::NO_NIC } else { c as u16 },
                opcode: kind & 0x1f,
                syndrome: [0x1f, 0x21, 0x60, 0xff][a as usize % 4],
                src_qpn: a as u32,
                dst_qpn: b as u32,
                psn: b as u32,
                packets: c as u16,
                bytes: a as u32,
            }),
            2 => TraceEvent::Doorbell {
                page: a as u32,
                kind,
                path: DoorbellPath::ALL[a as usize % 3],
                object: b as u32,
                value: c as u32,
            },
            3 => TraceEvent::Interrupt { vector: a as u16 },
            _ => TraceEvent::Nic(diagnostic(kind, a, b, c)),
        };
        Record {
            at: Instant(at),
            nic,
            event,
        }
    })
}
