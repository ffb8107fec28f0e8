//! Checks of values, which collect all problems of a file.

use faultline_nic::Nanos;

use super::names::Names;
use crate::problem::{Path, Problem};
use crate::profile;
use crate::value::{Range, Time};

/// Longest time in a file.
pub(crate) const MAX_TIME: Time = Time::from_millis(24 * 3600 * 1000);

/// The names that a check knows, and the problems that it has found.
#[derive(Debug)]
pub(super) struct Checker<'a> {
    /// Names of the NICs of the process.
    pub(super) nics: &'a [String],
    /// Names of the ports that lead out of it.
    ports: &'a [String],
    pub(super) problems: Vec<Problem>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(nics: &'a [String], ports: &'a [String]) -> Self {
        Self {
            nics,
            ports,
            problems: Vec::new(),
        }
    }

    pub(super) fn wrong_key(&mut self, path: Path, message: impl Into<String>) {
        self.problems.push(Problem::of_key(path, message));
    }

    pub(super) fn wrong_value(&mut self, path: Path, message: impl Into<String>) {
        self.problems.push(Problem::of_value(path, message));
    }

    /// The number that a name stands for.
    pub(super) fn name(&mut self, path: Path, names: &Names, given: &str) -> Option<u16> {
        let found = names.find(given);
        if found.is_none() {
            self.unknown(path, names.what, given, names.names().collect());
        }
        found
    }

    /// A name that is none of the allowed ones.
    pub(super) fn unknown(&mut self, path: Path, what: &str, given: &str, allowed: Vec<&str>) {
        let message = format!(
            "unknown {what} {given:?}, expected one of {}",
            in_quotes(&allowed)
        );
        let problem = Problem::of_value(path, message).with_suggestion(given, allowed);
        self.problems.push(problem);
    }

    /// The name of a profile that comes with Faultline. The caller reads one that is a file.
    pub(super) fn profile(&mut self, path: Path, given: Option<&str>) {
        let known = |name: &str| profile::is_path(name) || profile::embedded(name).is_some();
        if let Some(name) = given.filter(|name| !known(name)) {
            let names = profile::EMBEDDED.iter().map(|(name, _)| *name).collect();
            self.unknown(path, "profile", name, names);
        }
    }

    /// Index of a NIC: by its name, else `nicN`.
    pub(super) fn nic(&mut self, path: Path, name: Option<&str>) -> Option<usize> {
        let name = name?;
        let called = self.nics.iter().position(|nic| nic == name);
        let found = called.or_else(|| numbered_nic(name).filter(|index| *index < self.nics.len()));
        if found.is_none() {
            let nics = self.nics;
            let numbered: Vec<String> = (0..nics.len()).map(|n| format!("nic{n}")).collect();
            let unnamed = numbered.iter().filter(|name| !nics.contains(name));
            let allowed = nics.iter().chain(unnamed).map(String::as_str).collect();
            self.unknown(path, "NIC", name, allowed);
        }
        found
    }

    /// Index of a port that leads out of the process.
    pub(super) fn port(&mut self, path: Path, name: Option<&str>) -> Option<usize> {
        let name = name?;
        let found = self.ports.iter().position(|port| port == name);
        match found {
            None if self.ports.is_empty() => self.wrong_value(
                path,
                format!(
                    "there is no port {name:?}: neither the simulator nor this process has ports, which are tables `[[port]]` of the configuration of `faultline serve`"
                ),
            ),
            None => {
                let allowed = self.ports.iter().map(String::as_str).collect();
                self.unknown(path, "port", name, allowed);
            }
            Some(_) => {}
        }
        found
    }

    /// Refuses a number outside of a range.
    pub(super) fn limits(&mut self, path: Path, value: u64, allowed: Range) {
        if !allowed.contains(value) {
            let Range { first, last } = allowed;
            let expected = match last {
                u64::MAX => format!("at least {first}"),
                _ => format!("{first} to {last}"),
            };
            self.wrong_value(
                path,
                format!("{value} is out of range: {expected} is allowed"),
            );
        }
    }

    pub(super) fn optional_limits(&mut self, path: Path, value: Option<u64>, allowed: Range) {
        if let Some(value) = value {
            self.limits(path, value, allowed);
        }
    }

    /// Refuses a time that is too long.
    pub(super) fn time(&mut self, path: Path, time: Time) -> Nanos {
        if time > MAX_TIME {
            self.wrong_value(
                path,
                format!("{time} is too long: at most {MAX_TIME} is allowed"),
            );
        }
        time.0
    }

    /// Refuses a time that is zero or too long.
    pub(super) fn duration(&mut self, path: Path, time: Time) -> Nanos {
        if time.nanos() == 0 {
            self.wrong_value(path.clone(), "the time is zero: it must be longer");
        }
        self.time(path, time)
    }

    /// Refuses two keys of a table that exclude each other.
    pub(super) fn not_both(&mut self, path: &Path, first: (&str, bool), second: (&str, bool)) {
        if first.1 && second.1 {
            let message = format!("`{}` and `{}` exclude each other", first.0, second.0);
            self.wrong_key(path.key(second.0), message);
        }
    }
}

/// The number in a name such as `nic0`.
pub(super) fn numbered_nic(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("nic")?;
    let is_plain = digits == "0" || !digits.starts_with(['0', '+']);
    digits.parse().ok().filter(|_| is_plain)
}

/// Names as in the messages of the TOML parser.
pub(super) fn in_quotes(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// From `first` to `last`.
pub(super) const fn range(first: u64, last: u64) -> Range {
    Range { first, last }
}
