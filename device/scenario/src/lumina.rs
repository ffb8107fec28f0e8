//! Imports the test files of Lumina (SIGCOMM 2023, "Understanding the Micro-Behaviors of Hardware Offloaded Network Stacks with
//! Lumina"), which are YAML.
//!
//! Lumina's switch changes data packets of connections: an event names a connection, a PSN within a message, the transmission
//! ("iteration") of that message, and what happens. An event applies to each message of its connection. Here each event becomes
//! one rule for each message, and the parameters of the traffic become tables `traffic`.
//!
//! What describes Lumina's test bed (hosts, switch, capture) has no equivalent and is a warning. An event or parameter of the
//! traffic that cannot be kept is an error. Lumina's checks of its captures are not imported.

mod events;
mod text;
mod traffic;
mod yaml;

use std::ops::Range as Span;

use self::yaml::{Key, Node, Value};
use crate::problem::{Path, Problem, Problems};
use crate::value::Range;

/// Largest file.
pub const MAX_BYTES: usize = 256 << 10;

/// A scenario that was made of a file of Lumina.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The scenario's file (TOML).
    pub text: String,
    /// What has no equivalent and was left out.
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
/// What is wrong in the file, or what this project cannot do.
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

/// What was found in a file.
#[derive(Debug, Default)]
struct Report {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
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

    /// Warns of what a host of the test bed has and a simulated one has not.
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

    /// Something that has no equivalent.
    fn warn(&mut self, path: Path, key: &Key, node: &Node, message: &str) {
        let shown = match &node.value {
            Value::Scalar { .. } => format!("{}: {message}", node.shown()),
            _ => message.to_owned(),
        };
        let mut problem = Problem::of_span(key.span.clone(), shown);
        problem.path = path;
        self.warnings.push(problem);
    }

    /// Something wrong.
    fn wrong(&mut self, path: Path, span: &Span<usize>, message: impl Into<String>) {
        let mut problem = Problem::of_span(span.clone(), message);
        problem.path = path;
        self.problems.push(problem);
    }

    fn missing(&mut self, table: &Table<'_>, key: &str) {
        let message = format!("missing key `{key}`");
        self.wrong(table.path.clone(), &table.span, message);
    }

    /// The node as a table.
    fn table<'a>(&mut self, path: Path, node: &'a Node) -> Option<Table<'a>> {
        match &node.value {
            Value::Mapping(entries) => {
                let span = entries
                    .first()
                    .map_or(node.span.clone(), |(key, _)| key.span.clone());
                Some(Table {
                    path,
                    entries,
                    span,
                })
            }
            _ => {
                let message = format!("{}: a mapping of keys to values is expected", node.shown());
                self.wrong(path, &node.span, message);
                None
            }
        }
    }

    /// Refuses keys that are not in `allowed`.
    fn only(&mut self, table: &Table<'_>, allowed: &[&str]) {
        for (key, node) in table.entries {
            if !allowed.contains(&key.name.as_str()) {
                let message = format!(
                    "unknown key with the value {}: expected one of `{}`",
                    node.shown(),
                    allowed.join("`, `")
                );
                let mut problem = Problem::of_span(key.span.clone(), message)
                    .with_suggestion(&key.name, allowed.iter().copied());
                problem.path = table.path.key(&key.name);
                self.problems.push(problem);
            }
        }
    }

    /// A number that must be there, unless there is a default.
    fn number(
        &mut self,
        table: &Table<'_>,
        key: &str,
        default: Option<u64>,
        allowed: Range,
    ) -> Option<u64> {
        let Some(node) = table.get(key) else {
            if default.is_none() {
                self.missing(table, key);
            }
            return default;
        };
        self.number_of(table.path.key(key), node, allowed)
    }

    fn number_of(&mut self, path: Path, node: &Node, allowed: Range) -> Option<u64> {
        let value = node.text().and_then(|text| text.trim().parse::<u64>().ok());
        let value = value.filter(|value| allowed.contains(*value));
        if value.is_none() {
            let message = format!(
                "{}: a number from {} to {} is expected",
                node.shown(),
                allowed.first,
                allowed.last
            );
            self.wrong(path, &node.span, message);
        }
        value
    }

    /// One of several names; letters of either case are the same.
    fn name<T: Copy>(&mut self, table: &Table<'_>, key: &str, names: &[(&str, T)]) -> Option<T> {
        let Some(node) = table.get(key) else {
            self.missing(table, key);
            return None;
        };
        let text = node.text().unwrap_or_default().trim().to_lowercase();
        let found = names.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            let message = format!("{}: expected one of `{}`", node.shown(), known.join("`, `"));
            let mut problem =
                Problem::of_span(node.span.clone(), message).with_suggestion(&text, known);
            problem.path = table.path.key(key);
            self.problems.push(problem);
        }
        found.map(|(_, value)| *value)
    }
}

/// A mapping and its path.
struct Table<'a> {
    path: Path,
    entries: &'a [(Key, Node)],
    /// Where a missing key would be: at the first key.
    span: Span<usize>,
}

impl<'a> Table<'a> {
    fn entry(&self, name: &str) -> Option<&'a (Key, Node)> {
        self.entries.iter().find(|(key, _)| key.name == name)
    }

    fn get(&self, name: &str) -> Option<&'a Node> {
        self.entry(name).map(|(_, node)| node)
    }
}
