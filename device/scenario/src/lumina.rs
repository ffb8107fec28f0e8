//! Imports the test files of Lumina (SIGCOMM 2023, "Understanding the Micro-Behaviors of Hardware Offloaded Network Stacks with
//! Lumina"), which are YAML.
//!
//! Lumina's switch changes data packets of connections: an event names a connection, a PSN within a message, the transmission
//! ("iteration") of that message, and what happens. An event applies to each message of its connection. Here each event becomes
//! one rule for each message, and the parameters of the traffic become tables `traffic`.
//!
//! The description of Lumina's test bed (hosts, switch, capture) has no equivalent and is a warning. An event or
//! parameter of the traffic that cannot be kept is an error. Lumina's checks of its captures are not imported.

mod events;
mod report;
mod text;
mod traffic;
mod yaml;

use self::report::Report;
use self::yaml::{Node, Value};
use crate::problem::{Path, Problem, Problems};

/// Largest file.
pub const MAX_BYTES: usize = 256 << 10;

/// A scenario that was made of a file of Lumina.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The scenario's file (TOML).
    pub text: String,
    /// Warnings: keys that have no equivalent and were left out.
    pub warnings: Problems,
}

/// Keys of the file that describe the test bed.
const TEST_BED: [&str; 7] = [
    "local-workspace",
    "result-path",
    "aggregate-pcap-filename",
    "rewrite-udp-dst-port",
    "switch",
    "requester-mirror",
    "responder-mirror",
];

/// Makes a scenario of the text of a Lumina file. `name` is the file's, for messages.
///
/// # Errors
/// The problems of the file, and its parts that this project cannot do.
pub fn import(name: &str, text: &str) -> Result<Imported, Problems> {
    let wrong = |problems| Problems::new(name, text, problems);
    if text.len() > MAX_BYTES {
        let message = format!(
            "the file has {} bytes, at most {MAX_BYTES} are allowed",
            text.len()
        );
        return Err(wrong(vec![Problem::of_file(message)]));
    }
    let root = yaml::parse(text).map_err(|problem| wrong(vec![problem]))?;
    let mut report = Report::default();
    let scenario = report.scenario(&root);
    if let (Some((traffic, rules)), true) = (scenario, report.problems.is_empty()) {
        return Ok(Imported {
            text: text::scenario(name, &traffic, &rules),
            warnings: Problems::warnings(name, text, report.warnings),
        });
    }
    report.problems.sort_by_key(|problem| problem.start());
    Err(wrong(report.problems))
}

impl Report {
    /// Reads the whole file. `None` if there is no traffic that could be read.
    fn scenario(&mut self, root: &Node) -> Option<(traffic::Traffic, Vec<events::Rule>)> {
        let root = self.table(Path::root(), root)?;
        for (key, node) in root.entries {
            let path = root.path.key(&key.name);
            let message = match key.name.as_str() {
                "traffic" => continue,
                "requester" | "responder" => {
                    self.host(&path, node);
                    continue;
                }
                "num-repeats" => {
                    "the simulator repeats a run exactly: try other seeds with `faultline scenario run --seeds`"
                }
                name if TEST_BED.contains(&name) => {
                    "this describes Lumina's test bed: it is left out"
                }
                _ => "this key is not one of Lumina's: it is left out",
            };
            self.warn(path, key, node, message);
        }
        let Some(node) = root.get("traffic") else {
            self.missing(&root, "traffic");
            return None;
        };
        let table = self.table(root.path.key("traffic"), node)?;
        let traffic = self.traffic(&table)?;
        let rules = self.events(&table, &traffic);
        Some((traffic, rules))
    }

    /// Warns of properties of a host of the test bed that a simulated host does not have.
    fn host(&mut self, path: &Path, node: &Node) {
        let Some(host) = self.table(path.clone(), node) else {
            return;
        };
        for (key, node) in host.entries {
            let path = path.key(&key.name);
            match (key.name.as_str(), &node.value) {
                ("nic", Value::Mapping(entries)) => {
                    let found = entries.iter().find(|(key, _)| key.name == "type");
                    if let Some((key, node)) = found {
                        let message = "the NICs have the default profile: add `profile = \"connectx-like\"` for costs as published";
                        self.warn(path.key("type"), key, node, message);
                    }
                }
                ("roce-parameters", Value::Mapping(entries)) => {
                    for (key, node) in entries {
                        let message = "the NIC has no such parameter: it is left out";
                        self.warn(path.key(&key.name), key, node, message);
                    }
                }
                _ => {}
            }
        }
        if let Some((key, _)) = host.entries.first() {
            let message = "hosts are simulated: address, account and interface are left out";
            let mut problem = Problem::of_span(key.span.clone(), message);
            problem.path = path.clone();
            self.warnings.push(problem);
        }
    }
}
