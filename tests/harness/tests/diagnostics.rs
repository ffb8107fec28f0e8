//! Each kind of diagnostic is provoked over the socket, and found under the same ids in the log, in the metrics, in the trace and
//! through the API.

use faultline_abi::status::STATUSES;
use faultline_abi::{Status, admin, cqe, doorbell, doorbell::Doorbell, event, regs};
use faultline_config::{Config, NicSettings};
use faultline_harness::paging::{PAGE, Pager};
use faultline_harness::testbed::{Fabric, LONG, Node, until};
use faultline_harness::traffic::impatient;
use faultline_harness::{Link, Qp, QpType, SendWr, connect};
use faultline_telemetry::DiagnosticKind;
use faultline_wire::aeth::NakCode;
use serde_json::{Value, json};

use crate::log::Log;
use crate::observed::request;

/// A process with NICs a and b, whose names begin with that of the test.
struct Process {
    name: &'static str,
    fabric: Fabric,
}

const A: &str = "a";
const B: &str = "b";
/// Records that a request for the trace can get.
const PART: usize = 4096;

impl Process {
    fn start(name: &'static str, settings: NicSettings) -> Self {
        Log::start();
        let config = Config {
            defaults: settings,
            ..Config::default()
        };
        let names = [A, B].map(|nic| format!("{name}-{nic}"));
        let names = names.each_ref().map(String::as_str);
        Self {
            name,
            fabric: Fabric::start_controlled(config, &names).unwrap(),
        }
    }

    fn full(&self, nic: &str) -> String {
        format!("{}-{nic}", self.name)
    }

    fn node(&self, nic: &str) -> Node {
        self.fabric.node(&self.full(nic)).unwrap()
    }

    /// Both nodes, and a connection.
    fn connected(&self, kind: QpType, link: &Link) -> (Node, Node, Qp, Qp) {
        let (a, b) = (self.node(A), self.node(B));
        let (qa, qb) = (a.qp(kind).unwrap(), b.qp(kind).unwrap());
        connect(&qa, &qb, link).unwrap();
        (a, b, qa, qb)
    }

    /// The body of the answer to a request.
    fn request(&self, method: &str, path: &str, body: &str) -> String {
        request(&self.fabric.control(), method, path, body)
    }

    /// The answer of the API about a NIC: `path` is below that of the NIC.
    fn api(&self, nic: &str, path: &str) -> Value {
        let path = format!("/v1/nics/{}{path}", self.full(nic));
        serde_json::from_str(&self.request("GET", &path, "")).unwrap()
    }

    fn counter(&self, nic: &str, name: &str) -> u64 {
        let counters = self.api(nic, "/counters");
        counters[name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name} in {counters}"))
    }

    fn pair(&self, nic: &str, qp: &Qp) -> Value {
        self.api(nic, &format!("/queue-pairs/{}", qp.number()))
    }

    fn act(&self, nic: &str, action: &Value) {
        let path = format!("/v1/nics/{}/actions", self.full(nic));
        self.request("POST", &path, &action.to_string());
    }

    fn set_policy(&self, nic: &str, qp: &Qp, policy: &str) {
        let path = format!(
            "/v1/nics/{}/queue-pairs/{}/fault-policy",
            self.full(nic),
            qp.number()
        );
        self.request("PUT", &path, &json!({ "policy": policy }).to_string());
    }

    /// The fields of all diagnostics of a kind in the trace.
    fn traced(&self, nic: &str, kind: DiagnosticKind) -> Vec<Value> {
        let name = format!("{kind:?}");
        let mut found = Vec::new();
        let mut from = 0;
        // A requester that tries again and again makes many records: they come in parts.
        loop {
            let path = format!("/v1/trace?from={from}&limit={PART}");
            let text = self.request("GET", &path, "");
            let mut lines = text.lines();
            let header: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
            assert_eq!(header["lost"], 0);
            let names = header["nics"].as_array().unwrap();
            let number = names.iter().position(|name| *name == self.full(nic));
            let number = number.unwrap() as u64;
            from = header["next"].as_u64().unwrap();
            let mut count = 0;
            for line in lines {
                count += 1;
                let record: Value = serde_json::from_str(line).unwrap();
                if record["nic"] != number {
                    continue;
                }
                match &record["event"]["Nic"] {
                    Value::Object(fields) => found.extend(fields.get(&name).cloned()),
                    Value::String(found_name) if *found_name == name => found.push(Value::Null),
                    _ => (),
                }
            }
            if count < PART {
                return found;
            }
        }
    }

    /// Waits for a diagnostic with these ids in the trace.
    #[track_caller]
    fn wait_for(&self, nic: &str, kind: DiagnosticKind, ids: &[Id]) -> Value {
        let fits = |fields: &Value| ids.iter().all(|id| fields[id.0] == shown(kind, *id));
        let mut found = Vec::new();
        let mut fitting = None;
        until(&format!("{kind:?} with {ids:?}"), || {
            found = self.traced(nic, kind);
            fitting = found.iter().find(|fields| fits(fields)).cloned();
            fitting.is_some()
        });
        fitting.unwrap()
    }

    /// Fields of the newest diagnostics of a kind that the API lists.
    fn listed(&self, nic: &str, kind: DiagnosticKind) -> Vec<Value> {
        let all = self.api(nic, "/diagnostics");
        let all = all.as_array().unwrap().iter();
        let of_kind = all.filter(|listed| listed["kind"] == kind.name());
        of_kind.map(|listed| listed["fields"].clone()).collect()
    }

    fn counted(&self, nic: &str, kind: DiagnosticKind) -> usize {
        let metrics = self.request("GET", "/metrics", "");
        let name = format!(
            "faultline_diagnostics_total{{nic=\"{}\",kind=\"{}\"}} ",
            self.full(nic),
            kind.name()
        );
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

/// An id of a diagnostic: the field's name and value.
type Id = (&'static str, u64);

/// The text for the value of an id: its name in log, trace and API, or the number.
fn shown(kind: DiagnosticKind, (name, value): Id) -> Value {
    let nak = |code| NakCode::from_u8(u8::try_from(code).ok()?).map(NakCode::name);
    let named = match (kind, name) {
        (_, "cause") => regs::FATAL_CODES.name(value),
        (_, "event") => event::KINDS.name(value),
        (_, "nak") => nak(value),
        (DiagnosticKind::Command, "status") => STATUSES.name(value),
        (_, "status") => cqe::STATUSES.name(value),
        _ => None,
    };
    named.map_or_else(|| Value::from(value), Value::from)
}

/// Returns true if a message has the id, as `name=value` or `name: value`, decimal or hexadecimal.
fn has_id(message: &str, kind: DiagnosticKind, id: Id) -> bool {
    let (name, value) = id;
    let texts = match shown(kind, id) {
        Value::String(name) => vec![name],
        _ if name == "opcode" => vec!["destroy_qp".to_owned()],
        _ => vec![format!("{value}"), format!("{value:#x}")],
    };
    texts.iter().any(|text| {
        ["=", ": "].iter().any(|between| {
            let id = format!("{name}{between}{text}");
            let ends = message.match_indices(&id).map(|(at, _)| at + id.len());
            let mut rests = ends.map(|end| message.get(end..).unwrap_or_default());
            rests.any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        })
    })
}

/// A diagnostic that a test has provoked.
struct Provoked {
    kind: DiagnosticKind,
    nic: &'static str,
    /// Ids by which it is found everywhere.
    ids: Vec<Id>,
}

impl Provoked {
    /// `in_api`: the same event in the API, if the test has found it there.
    #[track_caller]
    fn new(kind: DiagnosticKind, nic: &'static str, ids: &[Id], in_api: bool) -> Self {
        assert!(in_api, "{kind:?} is not in the API");
        let ids = ids.to_vec();
        Self { kind, nic, ids }
    }

    /// Finds it in the trace, in the metrics, in the API and in the log.
    fn check(&self, process: &Process) {
        let Self { kind, nic, ids } = self;
        process.wait_for(nic, *kind, ids);
        let fits = |fields: &Value| ids.iter().all(|id| fields[id.0] == shown(*kind, *id));
        let listed = process.listed(nic, *kind);
        assert!(
            listed.iter().any(fits),
            "{kind:?} with {ids:?} in {listed:?}"
        );
        until(&format!("{kind:?} in trace and metrics"), || {
            process.traced(nic, *kind).len() == process.counted(nic, *kind)
        });
        let words = [
            format!("nic{{name={}}}", process.full(nic)),
            format!("kind=\"{}\"", kind.name()),
        ];
        let is_message = |line: &str| {
            words.iter().all(|word| line.contains(word))
                && ids.iter().all(|id| has_id(line, *kind, *id))
        };
        until(&format!("{words:?} with {ids:?} in the log"), || {
            Log::start().text().lines().any(is_message)
        });
    }
}

macro_rules! scenarios {
    ($($scenario:ident $test:ident,)*) => {
        /// What makes a NIC report something.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Scenario {
            $($scenario,)*
        }

        $(
            #[test]
            fn $test() {
                let name = stringify!($test);
                let provoke = provoke::$test;
                check(Scenario::$scenario, name, provoke);
            }
        )*
    };
}

scenarios! {
    Repaired a_fault_is_repaired,
    Failed a_fault_fails,
    Expired a_fault_expires,
    Cancelled a_fault_is_cancelled,
    Stall an_ingress_stalls,
    LongStall an_ingress_stalls_for_too_long,
    LostPacket a_packet_is_lost,
    SilentPeer a_peer_is_silent,
    Refused a_key_is_refused,
    SmallQueue a_completion_queue_overruns,
    Wrong commands_and_doorbells_are_wrong,
    Stopped a_device_stops_and_is_reset,
    Injected a_rule_acts_inside_the_nic,
    RefusedHere a_local_key_is_refused,
    Barred an_address_is_removed,
    NotReady a_peer_is_never_ready,
    EventQueue an_event_queue_overruns,
    FaultQueue a_fault_queue_overruns,
    Parked packets_that_wait_for_a_page_overrun,
    Ingress frames_that_wait_for_a_stopped_nic_overrun,
}

/// The scenario that provokes a kind. A new kind needs one; `None`: the NICs here have no connections of iWARP, and
/// `tests/simulator/tests/iwarp_refusals.rs` provokes it.
fn scenario_of(kind: DiagnosticKind) -> Option<Scenario> {
    use DiagnosticKind as K;
    Some(match kind {
        K::FaultRaised
        | K::FaultJoined
        | K::FaultResumed
        | K::FaultContinued
        | K::FaultDone
        | K::RnrNakSent
        | K::RnrNakReceived => Scenario::Repaired,
        K::FaultFailed => Scenario::Failed,
        K::FaultExpired => Scenario::Expired,
        K::FaultCancelled => Scenario::Cancelled,
        K::Stalled | K::StallEnded => Scenario::Stall,
        K::StallTimedOut => Scenario::LongStall,
        K::Retried | K::SequenceNakSent => Scenario::LostPacket,
        K::RetriesExhausted => Scenario::SilentPeer,
        K::KeyRefused | K::RequestRefused | K::WorkFailed | K::QpFailed | K::QpState => {
            Scenario::Refused
        }
        K::Overrun => Scenario::SmallQueue,
        K::Command | K::DoorbellRefused => Scenario::Wrong,
        K::Fatal | K::Reset => Scenario::Stopped,
        K::Injected => Scenario::Injected,
        K::PacketDropped => Scenario::Barred,
        K::TerminateSent | K::TerminateReceived | K::ConnectionEnded => return None,
    })
}

/// Provokes the kinds of a scenario, and finds each.
fn check(
    scenario: Scenario,
    name: &'static str,
    provoke: fn(&'static str) -> (Process, Vec<Provoked>),
) {
    let (process, provoked) = provoke(name);
    for diagnostic in &provoked {
        diagnostic.check(&process);
    }
    for kind in DiagnosticKind::ALL {
        let is_provoked = provoked.iter().any(|diagnostic| diagnostic.kind == *kind);
        assert!(
            is_provoked || scenario_of(*kind) != Some(scenario),
            "{kind:?} was not provoked"
        );
    }
}

/// The scenarios. Each asks the API while its event lasts.
mod provoke {
    use DiagnosticKind as K;

    use super::*;

    type Outcome = (Process, Vec<Provoked>);

    /// A WRITE of a to a page of b that is absent.
    struct Absent {
        process: Process,
        a: Node,
        /// Owns what the region is made of.
        _b: Node,
        qa: Qp,
        qb: Qp,
        pager: Pager,
    }

    impl Absent {
        fn write(
            name: &'static str,
            kind: QpType,
            settings: NicSettings,
            policy: Option<&str>,
        ) -> Self {
            let process = Process::start(name, settings);
            let (a, b, mut qa, qb) = process.connected(kind, &Link::default());
            if let Some(policy) = policy {
                process.set_policy(B, &qb, policy);
            }
            let pager = Pager::new(&b, 16).unwrap();
            let wr = SendWr::write_inline(b"absent", pager.mr.remote(3 * PAGE)).signaled();
            qa.post_send(&wr).unwrap();
            Self {
                process,
                a,
                _b: b,
                qa,
                qb,
                pager,
            }
        }

        /// The ids of the fault, as its record has them.
        fn ids(&mut self) -> [Id; 4] {
            let record = self.pager.record(LONG).unwrap();
            [
                ("token", record.token.get()),
                ("qpn", u64::from(self.qb.number())),
                ("key", u64::from(record.key.get())),
                ("va", record.va.get()),
            ]
        }

        /// The only fault in flight, as the API shows it.
        fn fault(&self) -> Value {
            let faults = self.process.api(B, "/faults");
            assert_eq!(faults.as_array().unwrap().len(), 1, "{faults}");
            faults[0].clone()
        }
    }

    fn rnr(name: &'static str) -> Absent {
        Absent::write(name, QpType::Rc, NicSettings::default(), None)
    }

    pub(super) fn a_fault_is_repaired(name: &'static str) -> Outcome {
        let mut absent = rnr(name);
        let record = absent.pager.record(LONG).unwrap();
        let (token, qpn) = (record.token.get(), u64::from(absent.qb.number()));
        let (va, key) = (record.va.get(), u64::from(record.key.get()));
        let process = &absent.process;
        let ids = [("token", token), ("qpn", qpn)];
        // The requester tries again and meets the same fault.
        process.wait_for(B, K::FaultJoined, &ids);
        let fault = absent.fault();
        let is_shown = |ids: &[Id]| ids.iter().all(|(name, value)| fault[name] == *value);
        let raised = [("token", token), ("qpn", qpn), ("key", key), ("va", va)];
        let joined = process.counter(B, "page_faults_joined") > 0;
        let sent = process.counter(B, "rnr_nak_sent") > 1;
        let received = process.counter(A, "rnr_nak_received") > 0;
        let waits = process.pair(B, &absent.qb)["waits_for_page"] == true;
        absent.pager.repair(&record).unwrap();
        let done = absent.a.good_completion();
        absent.qa.retire(&done);
        let resumed = process.counter(B, "page_faults_resumed") == 1;
        process.wait_for(B, K::FaultDone, &ids);
        let pair = process.pair(B, &absent.qb);
        let continued = waits && pair["waits_for_page"] == false;
        let carried_out = pair["rx_bytes"].as_u64().is_some_and(|bytes| bytes >= 6);
        let psn = process.wait_for(B, K::RnrNakSent, &ids)["psn"]
            .as_u64()
            .unwrap();
        let peer = u64::from(absent.qa.number());
        let provoked = vec![
            Provoked::new(K::FaultRaised, B, &raised, is_shown(&raised)),
            Provoked::new(
                K::FaultJoined,
                B,
                &[("token", token), ("qpn", qpn), ("va", va)],
                joined,
            ),
            Provoked::new(
                K::RnrNakSent,
                B,
                &[("token", token), ("qpn", qpn), ("psn", psn)],
                sent,
            ),
            Provoked::new(
                K::RnrNakReceived,
                A,
                &[("qpn", peer), ("psn", psn)],
                received,
            ),
            Provoked::new(K::FaultResumed, B, &ids[..1], resumed),
            Provoked::new(K::FaultContinued, B, &ids, continued),
            Provoked::new(K::FaultDone, B, &ids, carried_out),
        ];
        (absent.process, provoked)
    }

    pub(super) fn a_fault_fails(name: &'static str) -> Outcome {
        let mut absent = rnr(name);
        let ids = absent.ids();
        let token = ids[0].1;
        let in_flight = absent.fault()["token"] == token;
        absent.pager.resume(token, Status::BadParameter).unwrap();
        assert_eq!(absent.a.completion().status, cqe::REM_ACCESS_ERR);
        let failed = absent.process.counter(B, "page_faults_failed") == 1;
        let failed = Provoked::new(K::FaultFailed, B, &ids, in_flight && failed);
        (absent.process, vec![failed])
    }

    pub(super) fn a_fault_expires(name: &'static str) -> Outcome {
        let settings = NicSettings {
            fault_timeout_ms: Some(300),
            ..NicSettings::default()
        };
        let mut absent = Absent::write(name, QpType::Rc, settings, None);
        let ids = absent.ids();
        assert_eq!(absent.a.completion().status, cqe::REM_ACCESS_ERR);
        let expired = absent.process.counter(B, "page_fault_timeouts") == 1;
        let expired = Provoked::new(K::FaultExpired, B, &ids, expired);
        (absent.process, vec![expired])
    }

    pub(super) fn a_fault_is_cancelled(name: &'static str) -> Outcome {
        let mut absent = rnr(name);
        let ids = absent.ids();
        let in_flight = absent.fault()["token"] == ids[0].1;
        // The region goes with its key.
        drop(absent.pager);
        absent.process.wait_for(B, K::FaultCancelled, &ids);
        let gone = absent.process.api(B, "/faults") == json!([]);
        let cancelled = Provoked::new(K::FaultCancelled, B, &ids, in_flight && gone);
        (absent.process, vec![cancelled])
    }

    pub(super) fn an_ingress_stalls(name: &'static str) -> Outcome {
        let mut absent = Absent::write(name, QpType::Rc, NicSettings::default(), Some("stall"));
        let record = absent.pager.record(LONG).unwrap();
        let process = &absent.process;
        let qpn = [("qpn", u64::from(absent.qb.number()))];
        process.wait_for(B, K::Stalled, &qpn);
        let stalled = process.api(B, "")["stalled"] == true;
        absent.pager.repair(&record).unwrap();
        absent.a.good_completion();
        let ended = process.wait_for(B, K::StallEnded, &[])["after"]
            .as_u64()
            .unwrap();
        let goes_on = process.api(B, "")["stalled"] == false && ended > 0;
        let provoked = vec![
            Provoked::new(K::Stalled, B, &qpn, stalled),
            Provoked::new(K::StallEnded, B, &[], goes_on),
        ];
        (absent.process, provoked)
    }

    pub(super) fn an_ingress_stalls_for_too_long(name: &'static str) -> Outcome {
        let settings = NicSettings {
            stall_timeout_ms: Some(50),
            ..NicSettings::default()
        };
        // A packet of a service that does not retransmit is not sent again, so there is one stall.
        let absent = Absent::write(name, QpType::Uc, settings, Some("stall"));
        let qpn = [("qpn", u64::from(absent.qb.number()))];
        absent.process.wait_for(B, K::StallTimedOut, &qpn);
        let counted = absent.process.counter(B, "stall_timeouts") == 1;
        let timed_out = Provoked::new(K::StallTimedOut, B, &qpn, counted);
        (absent.process, vec![timed_out])
    }

    pub(super) fn a_packet_is_lost(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        // No timeout before the NAK.
        let link = Link {
            timeout: 20,
            ..Link::default()
        };
        let (mut a, b, mut qa, qb) = process.connected(QpType::Rc, &link);
        process.act(
            B,
            &json!({"action": "drop_frames", "direction": "rx", "count": 1}),
        );
        for bytes in [b"first", b"other"] {
            qa.post_send(&SendWr::write_inline(bytes, b.mr.remote(0)).signaled())
                .unwrap();
        }
        for _ in 0..2 {
            let done = a.good_completion();
            qa.retire(&done);
        }
        let sent = process.wait_for(B, K::SequenceNakSent, &[("qpn", u64::from(qb.number()))]);
        let psn = sent["psn"].as_u64().unwrap();
        let counted = |nic, name| process.counter(nic, name) == 1;
        let sent = counted(B, "packet_seq_err_sent");
        let received = counted(A, "packet_seq_err");
        let provoked = vec![
            Provoked::new(
                K::SequenceNakSent,
                B,
                &[("qpn", u64::from(qb.number())), ("psn", psn)],
                sent,
            ),
            Provoked::new(
                K::Retried,
                A,
                &[("qpn", u64::from(qa.number())), ("psn", psn)],
                received,
            ),
        ];
        (process, provoked)
    }

    pub(super) fn a_peer_is_silent(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let (mut a, b, mut qa, _qb) = process.connected(QpType::Rc, &impatient());
        let link = format!("/v1/nics/{}/link", process.full(B));
        process.request("PUT", &link, r#"{"up": false}"#);
        qa.post_send(&SendWr::write_inline(b"unheard", b.mr.remote(0)).signaled())
            .unwrap();
        assert_eq!(a.completion().status, cqe::RETRY_EXC_ERR);
        let psn = process.wait_for(A, K::RetriesExhausted, &[])["psn"]
            .as_u64()
            .unwrap();
        let ids = [("qpn", u64::from(qa.number())), ("psn", psn)];
        let in_error = process.pair(A, &qa)["state"] == "ERR";
        let down = process.api(B, "/link")["up"] == false;
        let exhausted = Provoked::new(K::RetriesExhausted, A, &ids, in_error && down);
        (process, vec![exhausted])
    }

    pub(super) fn a_key_is_refused(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let (mut a, b, mut qa, qb) = process.connected(QpType::Rc, &Link::default());
        let mut remote = b.mr.remote(0);
        remote.key ^= 1;
        let psn = u64::from(qa.query().unwrap().sq_psn.get());
        qa.post_send(&SendWr::write_inline(b"refused", remote).signaled())
            .unwrap();
        let status = a.completion().status;
        assert_eq!(status, cqe::REM_ACCESS_ERR);
        let (here, there) = (u64::from(qa.number()), u64::from(qb.number()));
        let refused = process.counter(B, "resp_remote_access_errors") == 1;
        let known = process.api(B, "/regions")["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|region| region["key"] != u64::from(remote.key));
        let failed = process.pair(A, &qa)["state"] == "ERR";
        let error = process.pair(B, &qb)["state"] == "ERR";
        let key = [
            ("qpn", there),
            ("key", u64::from(remote.key)),
            ("va", remote.addr),
        ];
        let event = [("qpn", there), ("event", u64::from(event::QP_ACCESS_ERROR))];
        let work = [("qpn", here), ("status", u64::from(status))];
        let provoked = vec![
            Provoked::new(K::KeyRefused, B, &key, refused && known),
            Provoked::new(
                K::RequestRefused,
                B,
                &[("qpn", there), ("psn", psn), ("nak", 2)],
                refused,
            ),
            Provoked::new(K::QpFailed, B, &event, error),
            Provoked::new(K::QpState, B, &[("qpn", there)], error),
            Provoked::new(K::WorkFailed, A, &work, failed),
        ];
        (process, provoked)
    }

    pub(super) fn a_completion_queue_overruns(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let (a, b) = (process.node(A), process.node(B));
        let small = a.context.cq(&a.eq, 1).unwrap();
        let options = faultline_harness::QpOptions::default();
        let mut qa = a
            .context
            .qp(&a.pd, QpType::Rc, &small, &small, None, &options)
            .unwrap();
        let qb = b.qp(QpType::Rc).unwrap();
        connect(&qa, &qb, &Link::default()).unwrap();
        for _ in 0..4 {
            qa.post_send(&SendWr::write_inline(b"too many", b.mr.remote(0)).signaled())
                .unwrap();
        }
        let object = u64::from(small.number());
        let overrun = process.wait_for(A, K::Overrun, &[("object", object)]);
        assert_eq!(overrun["queue"], "Completion");
        until("a queue pair in error", || {
            process.pair(A, &qa)["state"] == "ERR"
        });
        let shown = process.pair(A, &qa)["send_cq"] == object;
        // Two completions fit, and none was read.
        let metrics = process.request("GET", "/metrics", "");
        let nic = process.api(A, "");
        for series in ["fullest_cq_unread", "fullest_cq_entries"] {
            let line = format!("faultline_{series}{{nic=\"{}\"}} 2", process.full(A));
            assert!(metrics.lines().any(|found| found == line), "{metrics}");
            assert_eq!(nic[series], 2);
        }
        let overrun = Provoked::new(K::Overrun, A, &[("object", object)], shown);
        (process, vec![overrun])
    }

    pub(super) fn commands_and_doorbells_are_wrong(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        // Without further objects: the log has a limit for each kind.
        let nic = process.fabric.open(&process.full(A)).unwrap();
        let wrong = nic.admin(admin::DESTROY_QP, 0xffff, &()).unwrap_err();
        assert_eq!(wrong.status(), Some(Status::BadQp));
        let bell = Doorbell {
            kind: doorbell::SQ,
            object: 0xfffe,
            value: 1,
        };
        nic.ring(0, bell).unwrap();
        let bell = [("page", 0), ("object", 0xfffe)];
        process.wait_for(A, K::DoorbellRefused, &bell);
        let opcode = u64::from(admin::DESTROY_QP);
        let command = [("opcode", opcode), ("status", Status::BadQp as u64)];
        // A device that sleeps is woken by a write with the same doorbell, so there may be two.
        let provoked = vec![
            Provoked::new(
                K::Command,
                A,
                &command,
                process.counter(A, "command_errors") == 1,
            ),
            Provoked::new(
                K::DoorbellRefused,
                A,
                &bell,
                process.counter(A, "doorbell_errors") > 0,
            ),
        ];
        (process, provoked)
    }

    pub(super) fn a_device_stops_and_is_reset(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let _nic = process.fabric.open(&process.full(A)).unwrap();
        let state = || process.api(A, "")["state"].clone();
        assert_eq!(state(), "running");
        process.act(A, &json!({"action": "fatal"}));
        let fatal = state() == "fatal";
        process.act(A, &json!({"action": "reset"}));
        let reset = state() == "disabled";
        let cause = u64::from(regs::INJECTED);
        let provoked = vec![
            Provoked::new(K::Fatal, A, &[("cause", cause)], fatal),
            Provoked::new(K::Reset, A, &[], reset),
        ];
        (process, provoked)
    }

    pub(super) fn a_local_key_is_refused(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let (mut a, b, mut qa, _qb) = process.connected(QpType::Rc, &Link::default());
        let mut sge = a.mr.sge(64, 8);
        sge.lkey.set(sge.lkey.get() ^ 1);
        let (key, va) = (u64::from(sge.lkey.get()), sge.addr.get());
        qa.post_send(&SendWr::write(&[sge], b.mr.remote(0)).signaled())
            .unwrap();
        assert_eq!(a.completion().status, cqe::LOC_PROT_ERR);
        let ids = [("qpn", u64::from(qa.number())), ("key", key), ("va", va)];
        let refused = process.wait_for(A, K::KeyRefused, &ids);
        assert_eq!(refused["by"], "Local");
        let in_error = process.pair(A, &qa)["state"] == "ERR";
        let cause = process.wait_for(A, K::QpState, &[ids[0]]);
        let failed = process.traced(A, K::QpState).into_iter().next_back();
        assert_eq!(
            failed.unwrap_or(cause)["cause"],
            json!({"SendFailed": {"status": "LOC_PROT_ERR"}})
        );
        let refused = Provoked::new(K::KeyRefused, A, &ids, in_error);
        (process, vec![refused])
    }

    /// A SEND for which there is no receive work request.
    pub(super) fn a_peer_is_never_ready(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let link = Link {
            rnr_retries: 1,
            ..Link::default()
        };
        let (mut a, _b, mut qa, _qb) = process.connected(QpType::Rc, &link);
        let sges = [a.mr.sge(0, 8)];
        qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
        assert_eq!(a.completion().status, cqe::RNR_RETRY_EXC_ERR);
        let qpn = [("qpn", u64::from(qa.number()))];
        let exhausted = process.wait_for(A, K::RetriesExhausted, &qpn);
        assert_eq!(exhausted["rnr"], true);
        let psn = exhausted["psn"].as_u64().unwrap();
        let refused = process.counter(A, "rnr_nak_received") == 2;
        let ids = [qpn[0], ("psn", psn)];
        let exhausted = Provoked::new(K::RetriesExhausted, A, &ids, refused);
        (process, vec![exhausted])
    }

    fn run_scenario(process: &Process, text: &str) {
        let file = json!({ "name": "overrun.toml", "text": text });
        process.request("POST", "/v1/scenario", &file.to_string());
    }

    pub(super) fn an_event_queue_overruns(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let a = process.node(A);
        let text = "[[rule]]\non = { doorbell = \"eq_arm\", nth = 1 }\ndo = { overrun_eq = {} }\n";
        run_scenario(&process, text);
        a.eq.arm().unwrap();
        let object = [("object", u64::from(a.eq.number()))];
        let overrun = process.wait_for(A, K::Overrun, &object);
        assert_eq!(overrun["queue"], "Event");
        let fatal = process.api(A, "")["state"] == "fatal";
        let overrun = Provoked::new(K::Overrun, A, &object, fatal);
        (process, vec![overrun])
    }

    pub(super) fn a_fault_queue_overruns(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let text = "[[rule]]\non = { fault = \"record\", nth = 1 }\ndo = { overrun = {} }\n";
        run_scenario(&process, text);
        let (a, b, mut qa, qb) = process.connected(QpType::Rc, &Link::default());
        let pager = Pager::new(&b, 16).unwrap();
        let wr = SendWr::write_inline(b"absent", pager.mr.remote(3 * PAGE)).signaled();
        qa.post_send(&wr).unwrap();
        let object = [("object", u64::from(qb.number()))];
        let overrun = process.wait_for(B, K::Overrun, &object);
        assert_eq!(overrun["queue"], "Fault");
        let counted = process.counter(B, "page_fault_overflow") == 1;
        let overrun = Provoked::new(K::Overrun, B, &object, counted);
        drop((pager, qa, qb, a));
        (process, vec![overrun])
    }

    /// More packets of a service that does not retransmit than the memory for them takes.
    pub(super) fn packets_that_wait_for_a_page_overrun(name: &'static str) -> Outcome {
        const LEN: usize = 64 << 10;
        let process = Process::start(name, NicSettings::default());
        let (mut a, b, mut qa, qb) = process.connected(QpType::Uc, &Link::default());
        let pager = Pager::new(&b, 16).unwrap();
        let object = [("object", u64::from(qb.number()))];
        // 16 MiB; a process gets as much as it leaves to others.
        for _ in 0..300 {
            let sges = [a.mr.sge(0, LEN)];
            qa.post_send(&SendWr::write(&sges, pager.mr.remote(0)).signaled())
                .unwrap();
            let done = a.good_completion();
            qa.retire(&done);
        }
        let overrun = process.wait_for(B, K::Overrun, &object);
        assert_eq!(overrun["queue"], "Parked");
        let metrics = process.request("GET", "/metrics", "");
        let parked = format!("faultline_parked_bytes{{nic=\"{}\"}} ", process.full(B));
        let parked = metrics.lines().find_map(|line| line.strip_prefix(&parked));
        let parked: u64 = parked.unwrap().parse().unwrap();
        let overrun = Provoked::new(K::Overrun, B, &object, parked > 1 << 20);
        drop((pager, qb));
        (process, vec![overrun])
    }

    /// More packets than a NIC with stopped ingress can hold. They do not all come while it pauses their sender, and
    /// each needs the absent page: at a timeout the next one stops the ingress again.
    pub(super) fn frames_that_wait_for_a_stopped_nic_overrun(name: &'static str) -> Outcome {
        let settings = NicSettings {
            stall_timeout_ms: Some(200),
            ..NicSettings::default()
        };
        let mut absent = Absent::write(name, QpType::Uc, settings, Some("stall"));
        // The ids of the NIC, which has one ingress.
        let object = [("object", 0)];
        let wr = SendWr::write_inline(b"absent", absent.pager.mr.remote(3 * PAGE)).signaled();
        until("the frames have no room", || {
            for _ in 0..1024 {
                while absent.qa.room() > 0 {
                    absent.qa.post_send(&wr).unwrap();
                }
                let done = absent.a.good_completion();
                absent.qa.retire(&done);
            }
            absent.process.counter(B, "stall_overflow") > 0
        });
        let overrun = absent.process.wait_for(B, K::Overrun, &object);
        assert_eq!(overrun["queue"], "Ingress");
        let metrics = absent.process.request("GET", "/metrics", "");
        let depth = format!(
            "faultline_queue_depth{{nic=\"{}\",queue=\"ingress_frames\"}} ",
            absent.process.full(B)
        );
        let depth = metrics.lines().find_map(|line| line.strip_prefix(&depth));
        // One less after each timeout, until the next packet comes.
        let shown = depth.is_some_and(|depth| (4000..=4096).contains(&depth.parse().unwrap()));
        let overrun = Provoked::new(K::Overrun, B, &object, shown);
        (absent.process, vec![overrun])
    }

    pub fn an_address_is_removed(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let (mut a, b, mut qa, _qb) = process.connected(QpType::Rc, &impatient());
        let none = admin::SetGid {
            vlan: faultline_abi::U16::new(0xffff),
            ..admin::SetGid::default()
        };
        a.nic.admin(admin::SET_GID, 0, &none).unwrap();
        qa.post_send(&SendWr::write_inline(b"unheard", b.mr.remote(0)).signaled())
            .unwrap();
        assert_eq!(a.completion().status, cqe::RETRY_EXC_ERR);
        let qpn = [("qpn", u64::from(qa.number()))];
        let found = process.wait_for(A, K::PacketDropped, &qpn);
        assert_eq!(found["sent"], true);
        assert_eq!(found["cause"], json!({"SourceGid": {"index": 0}}));
        let counted = process.counter(A, "tx_bad_gid") > 0;
        let dropped = Provoked::new(K::PacketDropped, A, &qpn, counted);
        (process, vec![dropped])
    }

    /// A scenario counts a completion.
    pub fn a_rule_acts_inside_the_nic(name: &'static str) -> Outcome {
        let process = Process::start(name, NicSettings::default());
        let (mut a, b, mut qa, _qb) = process.connected(QpType::Rc, &Link::default());
        let text = "[[rule]]\non = { completion = \"SUCCESS\", nth = 1 }\ndo = { count = {} }\n";
        let file = json!({ "name": "count.toml", "text": text });
        process.request("POST", "/v1/scenario", &file.to_string());
        let sges = [a.mr.sge(0, 8)];
        qa.post_send(&SendWr::write(&sges, b.mr.remote(0)).signaled())
            .unwrap();
        a.good_completion();
        let fired = || {
            let view = process.request("GET", "/v1/scenario", "");
            let view: Value = serde_json::from_str(&view).unwrap();
            view["rules"][0]["fired"] == 1
        };
        until("the rule has acted", fired);
        let ids = [
            ("qpn", u64::from(qa.number())),
            ("object", u64::from(a.cq.number())),
        ];
        let injected = Provoked::new(K::Injected, A, &ids, fired());
        (process, vec![injected])
    }
}

#[test]
fn an_id_is_a_whole_word() {
    let has = |message: &str, id| has_id(message, DiagnosticKind::KeyRefused, id);
    assert!(has("x qpn=17 y", ("qpn", 17)));
    assert!(has("RnrNakSent { qpn: 17, psn: 1 }", ("qpn", 17)));
    assert!(has("key=0x11", ("key", 17)));
    assert!(!has("qpn=171", ("qpn", 17)));
    assert!(!has("key=0x11f", ("key", 17)));
}
