//! Limits of simulated hosts and of their traffic.

use super::check::{Checker, in_quotes, range};
use super::names;
use crate::file::Scenario;
use crate::problem::Path;
use crate::traffic::{Operation, Service, Simulator, Traffic, Transport};
use crate::value::Range;

/// Path MTUs (IBTA table 152).
const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];
/// Most hosts.
const MAX_HOSTS: u8 = 8;
/// Longest message.
const MAX_SIZE: u64 = 16 << 20;
/// Most messages of a connection.
const MAX_COUNT: u64 = 1_000_000;
/// Most messages that are outstanding on a connection.
const MAX_DEPTH: u64 = 1024;
/// Most receives that are posted at the beginning.
const MAX_RECEIVES: u64 = 4096;
/// Most connections, of one table of traffic and of all.
const MAX_CONNECTIONS: u64 = 4096;
/// Most messages of all traffic: the latency of each is kept.
const MAX_MESSAGES: u64 = 4_000_000;

impl Checker<'_> {
    pub(super) fn simulated(&mut self, scenario: &Scenario) {
        self.simulator(&scenario.simulator);
        for (index, traffic) in scenario.traffic.iter().enumerate() {
            let path = Path::root().key("traffic").index(index);
            let mut before = scenario.traffic.iter().take(index);
            if !traffic.name.is_empty() && before.any(|other| other.name == traffic.name) {
                let message = format!("another traffic has the name {:?}", traffic.name);
                self.wrong_value(path.key("name"), message);
            }
            self.traffic(&path, traffic, scenario.simulator.hosts);
            if scenario.simulator.transport == Transport::Iwarp && traffic.service != Service::Rc {
                let message = "iWARP has reliable connections only: the service is `rc`".to_owned();
                self.wrong_value(path.key("service"), message);
            }
        }
        self.sums(&scenario.traffic);
        if let Some(guests) = scenario
            .guests
            .as_ref()
            .filter(|guests| guests.script.is_empty())
        {
            let path = Path::root().key("guests").key("script");
            self.wrong_value(path, format!("{:?} is no path of a script", guests.script));
        }
    }

    /// Refuses more connections or messages in all traffic than can be simulated, at the traffic that goes beyond.
    fn sums(&mut self, traffic: &[Traffic]) {
        let (mut connections, mut messages) = (0_u64, 0_u64);
        for (index, traffic) in traffic.iter().enumerate() {
            let path = Path::root().key("traffic").index(index);
            let (own, count) = (u64::from(traffic.connections), u64::from(traffic.count));
            let sums = (connections, messages);
            connections = connections.saturating_add(own);
            messages = messages.saturating_add(own.saturating_mul(count));
            if own <= MAX_CONNECTIONS && sums.0 <= MAX_CONNECTIONS && connections > MAX_CONNECTIONS
            {
                let message = format!(
                    "all traffic together has {connections} connections until here: at most {MAX_CONNECTIONS} are possible"
                );
                self.wrong_value(path.key("connections"), message);
            }
            if count <= MAX_COUNT && sums.1 <= MAX_MESSAGES && messages > MAX_MESSAGES {
                let message = format!(
                    "all traffic together has {messages} messages until here, counted over all connections: at most {MAX_MESSAGES} are possible"
                );
                self.wrong_value(path.key("count"), message);
            }
        }
    }

    fn simulator(&mut self, simulator: &Simulator) {
        let path = Path::root().key("simulator");
        self.limits(
            path.key("hosts"),
            simulator.hosts.into(),
            range(1, MAX_HOSTS.into()),
        );
        self.limits(
            path.key("page_frames"),
            simulator.page_frames.into(),
            range(2, 2048),
        );
        let queue = simulator.fault_queue;
        self.limits(path.key("fault_queue"), queue.into(), range(2, 1 << 16));
        if !queue.is_power_of_two() {
            let message = format!("{queue} is not a power of two");
            self.wrong_value(path.key("fault_queue"), message);
        }
        self.time(path.key("wire_delay"), simulator.wire_delay);
        if let Some(time) = simulator.fault_service {
            self.time(path.key("fault_service"), time);
        }
    }

    fn traffic(&mut self, path: &Path, traffic: &Traffic, hosts: u8) {
        for (key, nic) in [("from", &traffic.from), ("to", &traffic.to)] {
            let found = super::check::numbered_nic(nic);
            if found.is_none_or(|index| index >= usize::from(hosts)) {
                let names: Vec<String> = (0..hosts.min(MAX_HOSTS))
                    .map(|n| format!("nic{n}"))
                    .collect();
                let names = names.iter().map(String::as_str).collect();
                self.unknown(path.key(key), "NIC of the simulation", nic, names);
            }
        }
        let numbers = [
            ("size", u64::from(traffic.size), range(1, MAX_SIZE)),
            ("count", traffic.count.into(), range(1, MAX_COUNT)),
            ("depth", traffic.depth.into(), range(1, MAX_DEPTH)),
            (
                "connections",
                traffic.connections.into(),
                range(1, MAX_CONNECTIONS),
            ),
            ("sges", traffic.sges.into(), range(1, 4)),
            ("timeout", traffic.timeout.into(), range(0, 31)),
            ("retry_count", traffic.retry_count.into(), range(0, 7)),
            ("rnr_retry", traffic.rnr_retry.into(), range(0, 7)),
            ("min_rnr_timer", traffic.min_rnr_timer.into(), range(0, 31)),
        ];
        for (key, value, allowed) in numbers {
            self.limits(path.key(key), value, allowed);
        }
        let receives = traffic.receives.map(u64::from);
        self.optional_limits(path.key("receives"), receives, range(0, MAX_RECEIVES));
        if !MTUS.contains(&traffic.mtu) {
            let allowed = MTUS.map(|mtu| mtu.to_string());
            let allowed = in_quotes(&allowed.each_ref().map(String::as_str));
            let message = format!("{} is no path MTU: allowed are {allowed}", traffic.mtu);
            self.wrong_value(path.key("mtu"), message);
        }
        for (key, time) in [
            ("start", Some(traffic.start)),
            ("gap", Some(traffic.gap)),
            ("receive_delay", Some(traffic.receive_delay)),
            ("deregister", traffic.deregister),
        ] {
            if let Some(time) = time {
                self.time(path.key(key), time);
            }
        }
        if let Some(name) = &traffic.process
            && !(1..=15).contains(&name.len())
        {
            let message = format!("{name:?} is no name of a process: it must have 1 to 15 bytes");
            self.wrong_value(path.key("process"), message);
        }
        if let Some(policy) = &traffic.fault_policy {
            self.name(path.key("fault_policy"), &names::FAULT_POLICIES, policy);
        }
        self.operation(path, traffic);
    }

    /// Refuses operations that the service does not have (IBTA table 36).
    fn operation(&mut self, path: &Path, traffic: &Traffic) {
        let is_atomic = matches!(traffic.op, Operation::FetchAdd | Operation::CompareSwap);
        if is_atomic && traffic.size != 8 {
            let message = format!("{}: atomics have 8 bytes", traffic.size);
            self.wrong_value(path.key("size"), message);
        }
        if is_atomic && traffic.sges != 1 {
            let message = format!("{}: atomics have one scatter/gather entry", traffic.sges);
            self.wrong_value(path.key("sges"), message);
        }
        let allowed: &[(&str, Operation)] = match traffic.service {
            Service::Rc => return,
            Service::Uc => &[
                ("send", Operation::Send),
                ("write", Operation::Write),
                ("write_imm", Operation::WriteImm),
            ],
            Service::Ud => &[("send", Operation::Send)],
        };
        if !allowed
            .iter()
            .any(|(_, operation)| *operation == traffic.op)
        {
            let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
            let message = format!(
                "the service does not have this operation: it has {}",
                in_quotes(&names)
            );
            self.wrong_value(path.key("op"), message);
        }
        let mtu = Range {
            first: 0,
            last: traffic.mtu.into(),
        };
        if traffic.service == Service::Ud && !mtu.contains(traffic.size.into()) {
            let message = format!(
                "{} is out of range: a datagram has at most {} bytes, the path MTU",
                traffic.size, traffic.mtu
            );
            self.wrong_value(path.key("size"), message);
        }
    }
}
