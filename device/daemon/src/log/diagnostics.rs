//! The log of the engine thread: a bounded queue of diagnostics and notices, and the thread that writes it. The engine thread writes
//! no log itself, so that it never waits for a reader of the log.
//!
//! A guest can cause millions of diagnostics in a second. The engine tries to put each diagnostic of an enabled level into the queue, and
//! counts those without room. The thread empties the queue at intervals, so that a flood does not wake it for each diagnostic, and limits
//! the messages of each NIC and kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant as Time};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use faultline_abi::status::STATUSES;
use faultline_abi::{ConstantGroup, cqe, event, iwarp, regs};
use faultline_nic::inspect::Process;
use faultline_nic::{Diagnostic, DropCause, Instant, Nic, State, StateCause};
use faultline_telemetry::{DiagnosticKind, command_name};
use faultline_wire::aeth::NakCode;
use faultline_wire::rdmap::TerminateCode;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Span};

use crate::log::notice::{self, Notice};
use crate::log::of_nic::{LogLimit, nic_span};
use crate::log::storm::{Repeated, Storm, StormWatch};

/// Diagnostics that wait for the thread. Each NIC has an equal share, so that a guest can't keep messages about another one out of
/// the log.
const CAPACITY: usize = 1024;
/// Smallest share of a NIC.
const MIN_SHARE: usize = 16;
/// Pause after the queue was emptied.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest time until suppressed messages are counted in the log although no other message of the kind follows.
const REVIEW: Duration = Duration::from_secs(5);

/// A message on its way to the log.
#[derive(Debug)]
struct Entry {
    nic: usize,
    message: Message,
}

#[derive(Debug)]
enum Message {
    Diagnostic {
        at: Instant,
        diagnostic: Diagnostic,
        /// The process that owns the object, as the driver has named it.
        owner: Option<Owner>,
    },
    Notice(Notice),
}

/// Process id and name, as in ALLOC_UCTX.
pub type Owner = (u32, [u8; 16]);

/// The engine's end of the queue.
#[derive(Clone, Debug)]
pub(crate) struct DiagnosticQueue {
    entries: Sender<Entry>,
    /// Entries in the queue, by NIC.
    waiting: Arc<[AtomicUsize]>,
    /// Largest number of entries of a NIC.
    share: usize,
    /// Messages without room, by NIC.
    dropped: Arc<[AtomicU64]>,
    /// Events that are too frequent for a message each, by NIC.
    repeated: Arc<[Repeated]>,
    most: LevelFilter,
}

impl DiagnosticQueue {
    /// Counts a diagnostic for the summaries of frequent events.
    #[inline]
    pub(crate) fn count(&self, nic: usize, diagnostic: &Diagnostic) {
        if let Some((storm, qpn)) = Storm::of(diagnostic)
            && let Some(repeated) = self.repeated.get(nic)
        {
            repeated.count(storm, qpn);
        }
    }

    /// Returns true if a message of a NIC must be logged and there is room for it. Counts the message if only the room is missing.
    #[inline]
    pub(crate) fn takes(&self, nic: usize, level: Level) -> bool {
        if level > self.most {
            return false;
        }
        let waiting = self.waiting.get(nic);
        let is_full = waiting.is_none_or(|count| count.load(Ordering::Relaxed) >= self.share);
        if is_full {
            self.drop_one(nic);
        }
        !is_full
    }

    /// Puts a diagnostic into the queue. `owner`: the process that owns its object.
    pub(crate) fn push_diagnostic(
        &self,
        nic: usize,
        at: Instant,
        diagnostic: Diagnostic,
        owner: Option<Owner>,
    ) {
        let message = Message::Diagnostic {
            at,
            diagnostic,
            owner,
        };
        self.push(Entry { nic, message });
    }

    /// The queue for notices of a NIC.
    pub(crate) fn of_nic(&self, nic: usize) -> NicLog {
        NicLog {
            queue: self.clone(),
            nic,
        }
    }

    fn drop_one(&self, nic: usize) {
        if let Some(dropped) = self.dropped.get(nic) {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn push(&self, entry: Entry) {
        let nic = entry.nic;
        // Before the entry is there, so that the count is never less than the number of entries.
        if let Some(count) = self.waiting.get(nic) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if self.entries.try_send(entry).is_err() {
            removed(&self.waiting, nic);
            self.drop_one(nic);
        }
    }
}

/// The queue for messages of one NIC. Sending one never waits.
#[derive(Clone, Debug)]
pub(crate) struct NicLog {
    queue: DiagnosticQueue,
    nic: usize,
}

impl NicLog {
    /// Sends a notice to the log. Without room it is counted.
    pub(crate) fn notice(&self, notice: Notice) {
        if self.queue.takes(self.nic, notice.level()) {
            self.queue.push(Entry {
                nic: self.nic,
                message: Message::Notice(notice),
            });
        }
    }

    /// Messages of the NIC without room, since the start.
    pub(crate) fn dropped(&self) -> u64 {
        let dropped = self.queue.dropped.get(self.nic);
        dropped.map_or(0, |dropped| dropped.load(Ordering::Relaxed))
    }
}

/// The writer's end of the queue.
#[derive(Debug)]
pub(crate) struct DiagnosticLog {
    entries: Receiver<Entry>,
    waiting: Arc<[AtomicUsize]>,
    dropped: Arc<[AtomicU64]>,
    repeated: Arc<[Repeated]>,
    limits: Vec<Limits>,
}

/// The limits of a NIC, by kind.
#[derive(Debug)]
struct Limits {
    span: Span,
    kinds: Vec<LogLimit>,
    notices: Vec<LogLimit>,
    /// Messages without room that were reported.
    dropped: u64,
    storms: [StormWatch; Storm::ALL.len()],
}

impl Limits {
    fn new(name: &str) -> Self {
        let kinds = DiagnosticKind::ALL.iter();
        Self {
            span: nic_span(name),
            kinds: kinds.map(|kind| LogLimit::of_kind(kind.name())).collect(),
            notices: notice::KINDS.map(LogLimit::of_kind).into(),
            dropped: 0,
            storms: Default::default(),
        }
    }
}

/// Creates a queue for diagnostics up to the level that is enabled now.
pub(crate) fn queue(names: &[String]) -> (DiagnosticQueue, DiagnosticLog) {
    let nics = names.len();
    let share = CAPACITY
        .checked_div(nics)
        .unwrap_or_default()
        .max(MIN_SHARE);
    let (sender, entries) = bounded(share.saturating_mul(nics));
    let waiting: Arc<[AtomicUsize]> = names.iter().map(|_| AtomicUsize::new(0)).collect();
    let dropped: Arc<[AtomicU64]> = names.iter().map(|_| AtomicU64::new(0)).collect();
    let repeated: Arc<[Repeated]> = names.iter().map(|_| Repeated::default()).collect();
    let queue = DiagnosticQueue {
        entries: sender,
        waiting: Arc::clone(&waiting),
        share,
        dropped: Arc::clone(&dropped),
        repeated: Arc::clone(&repeated),
        most: LevelFilter::current(),
    };
    let log = DiagnosticLog {
        entries,
        waiting,
        dropped,
        repeated,
        limits: names.iter().map(|name| Limits::new(name)).collect(),
    };
    (queue, log)
}

/// An entry of a NIC has left the queue.
fn removed(waiting: &[AtomicUsize], nic: usize) {
    if let Some(count) = waiting.get(nic) {
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DiagnosticLog {
    /// Writes diagnostics until the engine has ended.
    pub(crate) fn run(mut self) {
        let mut reviewed = Time::now();
        loop {
            let ended = match self.entries.recv_timeout(REVIEW) {
                Ok(entry) => {
                    self.write(&entry);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            for entry in self.entries.try_iter().take(CAPACITY) {
                self.write(&entry);
            }
            if ended || reviewed.elapsed() >= REVIEW {
                let now = Time::now();
                self.review_storms(now, now.duration_since(reviewed));
                reviewed = now;
                self.review(ended);
            }
            if ended {
                return;
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Logs summaries of events that were frequent in the time `time` until now.
    fn review_storms(&mut self, now: Time, time: Duration) {
        for (nic, repeated) in self.limits.iter_mut().zip(&*self.repeated) {
            let _nic = nic.span.enter();
            for (storm, watch) in Storm::ALL.into_iter().zip(&mut nic.storms) {
                let (count, qpn) = repeated.get(storm);
                if let Some(new) = watch.review(now, count, storm.limit(time)) {
                    let (kind, what) = (storm.name(), storm.description());
                    tracing::warn!(
                        kind,
                        "{what}: {new} times in {time:.1?}, {count} since the start, the last of qpn={qpn}"
                    );
                }
            }
        }
    }

    /// Logs the numbers of suppressed and dropped messages.
    fn review(&mut self, ended: bool) {
        for (nic, dropped) in self.limits.iter_mut().zip(&*self.dropped) {
            let _nic = nic.span.enter();
            let dropped = dropped.load(Ordering::Relaxed);
            let new = dropped.saturating_sub(std::mem::replace(&mut nic.dropped, dropped));
            if new > 0 {
                tracing::warn!("{new} messages were not logged: too many at once");
            }
            for limit in nic.kinds.iter().chain(&nic.notices) {
                if ended || limit.is_over() {
                    limit.report_suppressed();
                }
            }
        }
    }

    fn write(&self, entry: &Entry) {
        removed(&self.waiting, entry.nic);
        let Some(nic) = self.limits.get(entry.nic) else {
            return;
        };
        let _nic = nic.span.enter();
        match &entry.message {
            Message::Diagnostic {
                at,
                diagnostic,
                owner,
            } => nic.write_diagnostic(*at, diagnostic, *owner),
            Message::Notice(notice) => nic.write_notice(notice),
        }
    }
}

impl Limits {
    fn write_notice(&self, notice: &Notice) {
        let allows = self
            .notices
            .get(notice.kind())
            .is_some_and(LogLimit::allows);
        match notice.level() {
            _ if !allows => {}
            Level::ERROR => tracing::error!("{}", notice.text()),
            _ => tracing::warn!("{}", notice.text()),
        }
    }

    fn write_diagnostic(&self, at: Instant, diagnostic: &Diagnostic, owner: Option<Owner>) {
        let kind = DiagnosticKind::of(diagnostic);
        if !self.kinds.get(kind as usize).is_some_and(LogLimit::allows) {
            return;
        }
        let text = describe(diagnostic);
        let kind = kind.name();
        let at = Duration::from_nanos(at.0);
        let process = owner.and_then(|(pid, comm)| Process::new(pid, comm));
        macro_rules! log {
            ($level:expr) => {
                match &process {
                    Some(Process { pid, name }) => {
                        tracing::event!($level, kind, ?at, pid, program = name, "{text}");
                    }
                    None => tracing::event!($level, kind, ?at, "{text}"),
                }
            };
        }
        match level(diagnostic) {
            Level::ERROR => log!(Level::ERROR),
            Level::WARN => log!(Level::WARN),
            Level::INFO => log!(Level::INFO),
            Level::DEBUG => log!(Level::DEBUG),
            _ => log!(Level::TRACE),
        }
    }
}

/// The level of a diagnostic: its importance to an operator.
#[inline]
pub(crate) fn level(diagnostic: &Diagnostic) -> Level {
    match diagnostic {
        Diagnostic::Fatal { .. } => Level::ERROR,
        Diagnostic::QpFailed { .. }
        | Diagnostic::WorkFailed { .. }
        | Diagnostic::FaultFailed { .. }
        | Diagnostic::FaultExpired { .. }
        | Diagnostic::StallTimedOut { .. }
        | Diagnostic::RetriesExhausted { .. }
        | Diagnostic::KeyRefused { .. }
        | Diagnostic::RequestRefused { .. }
        | Diagnostic::TerminateSent { .. }
        | Diagnostic::TerminateReceived { .. }
        | Diagnostic::PacketDropped { .. }
        | Diagnostic::Overrun { .. }
        | Diagnostic::DoorbellRefused { .. } => Level::WARN,
        Diagnostic::Reset
        | Diagnostic::QpState { to: State::Err, .. }
        | Diagnostic::Stalled { .. }
        | Diagnostic::StallEnded { .. } => Level::INFO,
        Diagnostic::Injected { .. }
        | Diagnostic::QpState { .. }
        | Diagnostic::FaultRaised { .. }
        | Diagnostic::FaultResumed { .. }
        | Diagnostic::ConnectionEnded { .. }
        | Diagnostic::FaultCancelled { .. } => Level::DEBUG,
        Diagnostic::FaultJoined { .. }
        | Diagnostic::FaultContinued { .. }
        | Diagnostic::FaultDone { .. }
        | Diagnostic::RnrNakSent { .. }
        | Diagnostic::RnrNakReceived { .. }
        | Diagnostic::Retried { .. }
        | Diagnostic::SequenceNakSent { .. }
        | Diagnostic::Command { .. } => Level::TRACE,
    }
}

/// The process that owns the object of a diagnostic.
pub fn owner(nic: &Nic, diagnostic: &Diagnostic) -> Option<Owner> {
    nic.process_of(nic.context_of(diagnostic)?)
}

/// The name of a number in the device's interface, or the number.
fn name(group: &ConstantGroup, value: impl Into<u64>) -> String {
    let value = value.into();
    let found = group.name(value);
    found.map_or_else(|| value.to_string(), str::to_owned)
}

/// Why a queue pair has changed its state.
fn describe_cause(cause: StateCause) -> String {
    match cause {
        StateCause::Command => "command".to_owned(),
        StateCause::SendFailed { status } => {
            format!("send_failed status={}", name(&cqe::STATUSES, status))
        }
        StateCause::Event { event } => format!("event event={}", name(&event::KINDS, event)),
        StateCause::Completion => "completion".to_owned(),
    }
}

/// The fields of the code of a Terminate message.
fn describe_terminate(code: TerminateCode) -> String {
    let TerminateCode {
        layer,
        error_type,
        code: number,
    } = code;
    let name = code.name().unwrap_or("unknown");
    format!("layer={layer} type={error_type} code={number:#04x} ({name})")
}

/// Why packets do not pass the port of a NIC.
fn describe_drop(cause: DropCause) -> String {
    match cause {
        DropCause::InterfaceDown => "the interface is down".to_owned(),
        DropCause::OverMtu => "they are longer than the MTU of the interface".to_owned(),
        DropCause::SourceGid { index } => {
            format!("entry {index} of the GID table has changed since their path was set")
        }
        DropCause::SourceAddress => "the guest may not use their address".to_owned(),
        DropCause::DestinationGid => {
            "no entry of the GID table has their destination and VLAN".to_owned()
        }
    }
}

/// The fields of a diagnostic as text. Numbers of objects are decimal; keys, addresses and tokens hexadecimal.
fn describe(diagnostic: &Diagnostic) -> String {
    match *diagnostic {
        Diagnostic::Fatal { cause } => {
            let cause = name(&regs::FATAL_CODES, cause);
            format!("the device has stopped and needs a reset: cause={cause}")
        }
        Diagnostic::QpFailed { qpn, event } => {
            let event = name(&event::KINDS, event);
            format!("a queue pair has failed: qpn={qpn} event={event}")
        }
        Diagnostic::Reset => "the device was reset".to_owned(),
        Diagnostic::QpState {
            qpn,
            from,
            to,
            cause,
        } => {
            let cause = describe_cause(cause);
            let from = from.name();
            match to {
                State::Err => {
                    format!("a queue pair is in error: qpn={qpn} from={from} cause={cause}")
                }
                _ => format!(
                    "a queue pair has changed its state: qpn={qpn} from={from} to={} cause={cause}",
                    to.name()
                ),
            }
        }
        Diagnostic::Stalled { .. }
        | Diagnostic::StallEnded { .. }
        | Diagnostic::StallTimedOut { .. } => describe_stall(diagnostic),
        Diagnostic::WorkFailed {
            qpn,
            status,
            vendor,
            receive,
        } => {
            let which = if receive { "receive" } else { "send" };
            let status = name(&cqe::STATUSES, status);
            let vendor = name(&cqe::VENDOR_ERRS, vendor);
            format!(
                "a {which} work request has failed: qpn={qpn} status={status} vendor_err={vendor}"
            )
        }
        Diagnostic::FaultRaised { .. }
        | Diagnostic::FaultFailed { .. }
        | Diagnostic::FaultExpired { .. }
        | Diagnostic::FaultCancelled { .. } => describe_fault(diagnostic),
        Diagnostic::RetriesExhausted { qpn, psn, rnr } => {
            let which = if rnr { "RNR retries" } else { "retries" };
            format!("the {which} are used up: qpn={qpn} psn={psn}")
        }
        Diagnostic::KeyRefused { qpn, key, va, by } => {
            format!(
                "a memory key does not allow an access: qpn={qpn} key={key:#x} va={va:#x} use={by:?}"
            )
        }
        Diagnostic::PacketDropped { qpn, sent, cause } => {
            let way = if sent { "sent" } else { "received" };
            let why = describe_drop(cause);
            format!("packets are not {way}, because {why}: qpn={qpn}")
        }
        Diagnostic::RequestRefused { qpn, psn, nak } => {
            let code = NakCode::from_u8(nak);
            let nak = code.map_or_else(|| nak.to_string(), |code| code.name().to_owned());
            format!("a request was refused: qpn={qpn} psn={psn} nak={nak}")
        }
        Diagnostic::TerminateSent { .. }
        | Diagnostic::TerminateReceived { .. }
        | Diagnostic::ConnectionEnded { .. } => describe_connection(diagnostic),
        Diagnostic::Command {
            queue,
            opcode,
            status,
            object,
        } => {
            let command = command_name(queue, opcode.into());
            let status = name(&STATUSES, status);
            format!(
                "a command was executed: queue={queue:?} opcode={command} status={status} object={object}"
            )
        }
        Diagnostic::Overrun { queue, object } => {
            format!("a queue has overrun: queue={queue:?} object={object}")
        }
        Diagnostic::Injected {
            id,
            point,
            qpn,
            object,
        } => {
            format!("an injection had an effect: id={id} point={point:?} qpn={qpn} object={object}")
        }
        Diagnostic::DoorbellRefused { page, object } => {
            format!("a doorbell was refused: page={page} object={object}")
        }
        other => format!("{other:?}"),
    }
}

/// The fields of a stall of the ingress as text.
fn describe_stall(diagnostic: &Diagnostic) -> String {
    match *diagnostic {
        Diagnostic::Stalled { qpn } => {
            format!("the ingress is stopped until a page of a queue pair is present: qpn={qpn}")
        }
        Diagnostic::StallEnded { after } => {
            let after = Duration::from_nanos(after.0);
            format!("the ingress continues: after={after:?}")
        }
        Diagnostic::StallTimedOut { qpn } => {
            format!("the ingress was stopped for too long, its first packet is dropped: qpn={qpn}")
        }
        other => format!("{other:?}"),
    }
}

/// The fields of an event of an iWARP connection as text.
fn describe_connection(diagnostic: &Diagnostic) -> String {
    match *diagnostic {
        Diagnostic::TerminateSent { qpn, code } => {
            let code = describe_terminate(code);
            format!("a Terminate message is sent: qpn={qpn} {code}")
        }
        Diagnostic::TerminateReceived { qpn, code } => {
            let code = describe_terminate(code);
            format!("the peer has sent a Terminate message: qpn={qpn} {code}")
        }
        Diagnostic::ConnectionEnded { qpn, reason } => {
            let reason = name(&iwarp::CLOSE_REASONS, reason);
            format!("a connection has ended: qpn={qpn} reason={reason}")
        }
        other => format!("{other:?}"),
    }
}

/// The fields of a page fault as text.
fn describe_fault(diagnostic: &Diagnostic) -> String {
    match *diagnostic {
        Diagnostic::FaultRaised {
            token,
            qpn,
            key,
            va,
            bytes,
            psn,
            write,
            requester,
        } => format!(
            "page fault: token={token:#x} qpn={qpn} key={key:#x} va={va:#x} bytes={bytes} psn={psn} write={write} \
             requester={requester}"
        ),
        Diagnostic::FaultFailed {
            token,
            qpn,
            key,
            va,
            ..
        } => format!(
            "the driver cannot repair a page fault: token={token:#x} qpn={qpn} key={key:#x} va={va:#x}"
        ),
        Diagnostic::FaultExpired {
            token,
            qpn,
            key,
            va,
            ..
        } => format!(
            "the driver has not answered a page fault in time: token={token:#x} qpn={qpn} key={key:#x} va={va:#x}"
        ),
        Diagnostic::FaultCancelled {
            token,
            qpn,
            key,
            va,
            ..
        } => format!(
            "a page fault has ended with its region: token={token:#x} qpn={qpn} key={key:#x} va={va:#x}"
        ),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(va: u64) -> Diagnostic {
        Diagnostic::KeyRefused {
            qpn: 17,
            key: 0x1234,
            va,
            by: faultline_nic::KeyUse::Remote,
        }
    }

    fn filtered(most: LevelFilter) -> (DiagnosticQueue, DiagnosticLog) {
        let (queue, log) = queue(&["a".to_owned()]);
        (DiagnosticQueue { most, ..queue }, log)
    }

    #[test]
    fn numbers_of_the_device_have_their_names() {
        let failed = Diagnostic::WorkFailed {
            qpn: 5,
            status: cqe::RETRY_EXC_ERR,
            vendor: cqe::NONE,
            receive: false,
        };
        let text = "a send work request has failed: qpn=5 status=RETRY_EXC_ERR vendor_err=NONE";
        assert_eq!(describe(&failed), text);
        let refused = Diagnostic::RequestRefused {
            qpn: 5,
            psn: 7,
            nak: 2,
        };
        assert!(describe(&refused).ends_with("nak=remote_access"));
        assert_eq!(name(&regs::FATAL_CODES, 99u32), "99");
    }

    #[test]
    fn a_flood_takes_no_more_than_the_room_of_the_queue() {
        let (queue, log) = filtered(LevelFilter::INFO);
        for va in 0..1_000_000 {
            if queue.takes(0, Level::WARN) {
                queue.push_diagnostic(0, Instant(va), refused(va), None);
            }
        }
        assert_eq!(log.entries.len(), CAPACITY);
        let dropped = queue.of_nic(0).dropped();
        assert_eq!(dropped, 1_000_000 - CAPACITY as u64);
        log.entries.try_iter().for_each(|entry| log.write(&entry));
        let kind = DiagnosticKind::KeyRefused as usize;
        let suppressed = log.limits[0].kinds[kind].suppressed();
        assert_eq!(suppressed, CAPACITY as u64 - 20);
        // Another kind has a limit of its own.
        let other = DiagnosticKind::Overrun as usize;
        assert!(log.limits[0].kinds[other].allows());
    }

    #[test]
    fn a_flood_of_one_nic_leaves_room_for_another() {
        let (queue, log) = queue(&["a".to_owned(), "b".to_owned()]);
        let most = LevelFilter::INFO;
        let queue = DiagnosticQueue { most, ..queue };
        let push = |nic, va| {
            let takes = queue.takes(nic, Level::WARN);
            if takes {
                queue.push_diagnostic(nic, Instant(va), refused(va), None);
            }
            takes
        };
        let taken = (0..10_000).filter(|va| push(0, *va)).count();
        assert_eq!(taken, CAPACITY / 2);
        assert!(push(1, 0), "the other NIC");
        log.entries.try_iter().for_each(|entry| log.write(&entry));
        assert!(push(0, 0), "there is room again");
    }

    #[test]
    fn a_notice_goes_through_the_queue_of_diagnostics() {
        let (queue, log) = filtered(LevelFilter::INFO);
        let nic = queue.of_nic(0);
        for _ in 0..2 * CAPACITY {
            nic.notice(Notice::ScenarioProblem {
                set: 0,
                problem: "wrong".to_owned(),
            });
        }
        assert_eq!(log.entries.len(), CAPACITY);
        assert_eq!(nic.dropped(), CAPACITY as u64);
        log.entries.try_iter().for_each(|entry| log.write(&entry));
        let suppressed = log.limits[0].notices[4].suppressed();
        assert_eq!(suppressed, CAPACITY as u64 - 20);
    }

    #[test]
    fn levels_that_are_not_enabled_cost_nothing() {
        let nak = Diagnostic::RnrNakSent {
            qpn: 1,
            psn: 2,
            token: 3,
        };
        let (queue, _log) = filtered(LevelFilter::INFO);
        assert!(!queue.takes(0, level(&nak)) && queue.takes(0, level(&refused(0))));
        let (queue, _log) = filtered(LevelFilter::TRACE);
        assert!(queue.takes(0, level(&nak)));
        let (queue, _log) = filtered(LevelFilter::OFF);
        assert!(!queue.takes(0, Level::ERROR));
        assert_eq!(queue.of_nic(0).dropped(), 0);
    }

    #[test]
    fn ids_are_written_as_elsewhere() {
        assert_eq!(
            describe(&refused(0x7f00_0000_1000)),
            "a memory key does not allow an access: qpn=17 key=0x1234 va=0x7f0000001000 use=Remote"
        );
        assert_eq!(refused(0).queue_pair(), Some(17));
        assert_eq!(Diagnostic::Reset.queue_pair(), None);
    }
}
