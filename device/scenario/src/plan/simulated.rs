//! Limits of simulated hosts and of their traffic.

use super::check::{Checker, in_quotes, range};
use super::names;
use crate::file::Scenario;
use crate::problem::Path;
use crate::traffic::{Operation, Service, Simulator, Traffic};
use crate::value::Range;

/// Path MTUs (IBTA table 152).
const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];
/// Most hosts.
const MAX_HOSTS: u8 = 8;
/// Longest message of a NIC.
const MAX_SIZE: u64 = 1 << 30;
/// Most messages of a connection.
const MAX_COUNT: u64 = 1_000_000;
/// Most work requests in a queue of a NIC.
const MAX_DEPTH: u64 = 1 << 15;
/// Most connections of one table of traffic.
const MAX_CONNECTIONS: u64 = 4096;

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
        }
        if let Some(guests) = scenario
            .guests
            .as_ref()
            .filter(|guests| guests.script.is_empty())
        {
            let path = Path::root().key("guests").key("script");
            self.wrong_value(path, format!("{:?} is no path of a script", guests.script));
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
            ("size", u64::from(traffic.size), range(0, MAX_SIZE)),
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
        self.optional_limits(path.key("receives"), receives, range(0, MAX_DEPTH));
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
        if let Some(policy) = &traffic.fault_policy {
            self.name(path.key("fault_policy"), &names::FAULT_POLICIES, policy);
        }
        self.operation(path, traffic);
    }

    /// Refuses operations that the service does not have (IBTA table 36).
    fn operation(&mut self, path: &Path, traffic: &Traffic) {
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
