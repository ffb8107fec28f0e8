//! The configuration file as text: places of its problems, and allowed values.
//!
//! This module knows no setting: the keys are in [`crate::config`]. Places and words are those of scenario files.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use faultline_scenario::problem::{Problem, position};
use faultline_scenario::whole::read_whole;
use serde::de::{DeserializeOwned, Deserializer, Error, Unexpected, Visitor};

/// A configuration file that can't be used: position, key, and problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {}{problem}", .key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default())]
pub struct Malformed {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Path of the key or of the table, such as `nic[1].mac`; `None` in the top-level table and where the text is not TOML.
    pub key: Option<String>,
    /// The problem, with the value, and the allowed values.
    pub problem: String,
}

impl Malformed {
    fn new(text: &str, problem: Problem) -> Self {
        let span = problem.span(text).unwrap_or_default();
        let (line, column) = position(text, span.start);
        let key = problem.path.to_string();
        Self {
            line,
            column,
            key: (!key.is_empty()).then_some(key),
            problem: problem.message,
        }
    }
}

/// The text of a configuration, in which its values have their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigText {
    path: Option<PathBuf>,
    text: String,
}

impl ConfigText {
    /// `path` is that of the file.
    pub(crate) fn new(path: Option<&Path>, text: &str) -> Self {
        Self {
            path: path.map(Path::to_owned),
            text: text.to_owned(),
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Finds the position of a problem.
    pub(crate) fn locate(&self, problem: Problem) -> Malformed {
        Malformed::new(&self.text, problem)
    }
}

/// A key that does not fit the others of its table. An error about a table has the position of the table, in serde: [`parse`] takes the
/// key from the message.
#[derive(Debug)]
pub(crate) struct Misfit {
    /// Beginning of the message: whether it is about the key or its value.
    part: &'static str,
    key: &'static str,
    problem: String,
}

impl Misfit {
    const KEY: &str = "key";
    const VALUE: &str = "value of key";

    /// The table must not have the key.
    pub(crate) fn of_key(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            part: Self::KEY,
            key,
            problem: problem.into(),
        }
    }

    /// The key must not have this value.
    pub(crate) fn of_value(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            part: Self::VALUE,
            ..Self::of_key(key, problem)
        }
    }

    /// The problem of the key, if that of its table is a misfit.
    fn find(problem: Problem) -> Problem {
        let Some((head, message)) = problem.message.split_once("`: ") else {
            return problem;
        };
        let Some((part, key)) = head.split_once(" `") else {
            return problem;
        };
        match part {
            Self::KEY => Problem::of_key(problem.path.key(key), message),
            Self::VALUE => Problem::of_value(problem.path.key(key), message),
            _ => problem,
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`: {}", self.part, self.key, self.problem)
    }
}

/// Reads a value from TOML. The error has all problems of the text, at least one.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Malformed>> {
    let located = |problem| Malformed::new(text, problem);
    read_whole(text, Misfit::find).map_err(|problems| problems.into_iter().map(located).collect())
}

/// Reads an unsigned number. The largest number of TOML is 2^63 - 1.
pub(crate) fn number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    let largest = [i64::MAX as u64, u32::MAX.into(), u16::MAX.into()];
    let largest = largest
        .into_iter()
        .find(|&value| T::try_from(value).is_ok());
    number_within(deserializer, 0..=largest.unwrap_or(u8::MAX.into()))
}

/// Reads a number of this range.
pub(crate) fn number_within<'de, D, T>(
    deserializer: D,
    range: RangeInclusive<u64>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    deserializer.deserialize_i64(NumberVisitor {
        range,
        to: PhantomData,
    })
}

/// As [`number`], for a key that may be absent.
pub(crate) fn optional_number<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    number(deserializer).map(Some)
}

struct NumberVisitor<T> {
    range: RangeInclusive<u64>,
    to: PhantomData<T>,
}

impl<T: TryFrom<u64>> Visitor<'_> for NumberVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.range.start(), self.range.end());
        write!(f, "an integer from {first} to {last}")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        let number = u64::try_from(value).ok();
        number
            .filter(|number| self.range.contains(number))
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        Err(E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<T, E> {
        let value = value.to_string();
        Err(E::invalid_value(Unexpected::Other(&value), &self))
    }
}

/// Reads one of the names of an enumeration.
pub(crate) fn name<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: ValueEnum,
{
    deserializer.deserialize_str(NameVisitor(PhantomData))
}

struct NameVisitor<T>(PhantomData<T>);

impl<T: ValueEnum> Visitor<'_> for NameVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of")?;
        let values = T::value_variants().iter();
        for (index, value) in values.filter_map(T::to_possible_value).enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} `{}`", value.get_name())?;
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_str(text, false).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const NIC_KEYS: &str = "`name`, `socket`, `socket_group`, `present`, `mac`, `on_demand`, `fault_policy`, `fault_timeout_ms`, \
         `stall_timeout_ms`, `ready`, `transport`, `mig_req`, `dcqcn`, `lookup_ns`, `table_mib`, `pitfalls`, `spoof_check`, `addresses`, `mac_change`, `pci_id`, `pvid`, `vlans`, \
         `link_tx`, `link_rx`, `profile`, `engine`";

    /// `text` is refused at `line`, `column`, with this message.
    #[track_caller]
    fn refused(text: &str, line: usize, column: usize, message: &str) {
        let errors = parse::<Config>(text).unwrap_err();
        let errors = errors.iter().map(Malformed::to_string);
        assert_eq!(
            errors.collect::<Vec<_>>(),
            [format!("{line}:{column}: {message}")]
        );
    }

    #[test]
    fn unknown_keys_are_named_with_those_that_are_allowed() {
        refused(
            "poll = \"busy\"\npol = 1\n",
            2,
            1,
            "pol: unknown key `pol`, expected one of `poll`, `poll_time_us`, `engines`, `trace_records`, `metrics`, `socket_group`, `defaults`, `control`, `nic`, `port`",
        );
        refused(
            "[[nic]]\nname = \"a\"\n\n[[nic]]\nname = \"b\"\n  ondemand = true\n",
            6,
            3,
            &format!("nic[1].ondemand: unknown key `ondemand`, expected one of {NIC_KEYS}"),
        );
        let defaults = NIC_KEYS.replace("`name`, `socket`, `socket_group`, `present`, `mac`, ", "");
        refused(
            "[defaults]\nname = \"a\"\n",
            2,
            1,
            &format!("defaults.name: unknown key `name`, expected one of {defaults}"),
        );
    }

    /// One look at each inner table: with two, the time of the search would double with each level.
    #[test]
    fn a_deep_table_is_found_at_once() {
        let key = format!("pol{}", ".a".repeat(60));
        let errors = parse::<Config>(&format!("[{key}]\n")).unwrap_err();
        let [error] = errors.as_slice() else {
            panic!("{errors:?}");
        };
        let place = (error.line, error.column, error.key.as_deref());
        assert_eq!(place, (1, 2, Some(key.as_str())));
    }

    #[test]
    fn values_of_a_wrong_type_are_shown_with_the_right_one() {
        refused(
            "poll_time_us = \"5\"",
            1,
            16,
            "poll_time_us: invalid type: string \"5\", expected an integer from 0 to 9223372036854775807",
        );
        refused(
            "[[nic]]\nname = \"a\"\non_demand = 1\n",
            3,
            13,
            "nic[0].on_demand: invalid type: integer `1`, expected a boolean",
        );
        refused(
            "[[nic]]\nname = \"a\"\nready = true\n",
            3,
            9,
            "nic[0].ready: invalid type: boolean `true`, expected one of `known`, `always`, `never`",
        );
        refused(
            "nic = [{ name = \"a\" }, { name = \"b\", lookup_ns = 1.5 }]",
            1,
            50,
            "nic[1].lookup_ns: invalid type: floating point `1.5`, expected an integer from 0 to 9223372036854775807",
        );
        refused(
            "[[nic]]\nname = \"a\"\npitfalls = [\"flood\", 7]\n",
            3,
            22,
            "nic[0].pitfalls[1]: invalid type: integer `7`, expected one of `damming`, `flood`, `qp_keys`",
        );
        refused(
            "defaults = 3\n",
            1,
            12,
            "defaults: invalid type: integer `3`, expected a table of NIC settings",
        );
    }

    #[test]
    fn values_out_of_range_are_shown_with_the_range() {
        refused(
            "[defaults]\nfault_timeout_ms = -5\n",
            2,
            20,
            "defaults.fault_timeout_ms: invalid value: integer `-5`, expected an integer from 0 to 9223372036854775807",
        );
        refused(
            "[[nic]]\nname = \"a\"\nmig_req = 2\n",
            3,
            11,
            "nic[0].mig_req: invalid value: integer `2`, expected 0 or 1",
        );
        refused(
            "[[nic]]\nname = \"a\"\nready = \"maybe\"\n",
            3,
            9,
            "nic[0].ready: invalid value: string \"maybe\", expected one of `known`, `always`, `never`",
        );
        refused(
            "[[nic]]\nname = \"a\"\ntable_mib = 9223372036854775808\n",
            3,
            13,
            "nic[0].table_mib: invalid value: integer `9223372036854775808`, expected an integer from 0 to 9223372036854775807",
        );
        refused(
            "poll_time_us = 99999999999999999999",
            1,
            16,
            "poll_time_us: invalid value: 99999999999999999999, expected an integer from 0 to 9223372036854775807",
        );
        refused(
            "[[nic]]\nname = \"a\"\nfault_policy = \"lazy\"\n",
            3,
            16,
            "nic[0].fault_policy: invalid value: string \"lazy\", expected one of `rnr`, `drop`, `stall`, `terminate`",
        );
        refused(
            "poll = \"often\"\n",
            1,
            8,
            "poll: invalid value: string \"often\", expected one of `busy`, `adaptive`, `never`",
        );
        refused(
            "[[nic]]\nname = \"ä\"\nmac = \"01:00:00:00:00:00\"\n",
            3,
            7,
            "nic[0].mac: \"01:00:00:00:00:00\" is not a unicast MAC address such as 02:00:00:00:00:01",
        );
    }

    #[test]
    fn the_control_server_listens_on_loopback_addresses_only() {
        for (address, what) in [
            ("0.0.0.0:9180", "not a loopback address and a port"),
            ("192.0.2.1:9180", "not a loopback address and a port"),
            ("[::]:9180", "not a loopback address and a port"),
            ("localhost:9180", "not an address and a port"),
            ("127.0.0.1", "not an address and a port"),
        ] {
            refused(
                &format!("[control]\nlisten = \"{address}\"\n"),
                2,
                10,
                &format!(
                    "control.listen: \"{address}\" is {what}, such as 127.0.0.1:9180 or [::1]:9180"
                ),
            );
        }
        refused(
            "[control]\nsockets = \"/a\"\n",
            2,
            1,
            "control.sockets: unknown key `sockets`, expected one of `socket`, `listen`, `token_file`",
        );
        refused(
            "control = \"/a\"\n",
            1,
            11,
            "control: invalid type: string \"/a\", expected a table of settings of the control server",
        );
    }

    #[test]
    fn missing_keys_and_invalid_toml_are_located() {
        refused(
            "poll = \"busy\"\n[[nic]]\nsocket = \"/a\"\n",
            2,
            1,
            "nic[0]: missing key `name`",
        );
        refused(
            "poll = \"busy\"\n[[nic]\n",
            2,
            7,
            "unclosed array table, expected `]`",
        );
        refused(
            "poll = \"busy\"\npoll = \"busy\"\n",
            2,
            1,
            "poll: duplicate key",
        );
    }
}
