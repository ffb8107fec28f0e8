//! The division of NICs among engines, in the configuration.

use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::file;

/// Most engines of a process: sets of engines are the bits of a word.
pub const MOST_ENGINES: usize = 64;
/// Most characters of the name of an engine.
const MOST_CHARACTERS: usize = 32;

/// A number of engines, from 1 to [`MOST_ENGINES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineCount(usize);

impl Default for EngineCount {
    fn default() -> Self {
        Self(1)
    }
}

impl EngineCount {
    const ALLOWED: &str = "an integer from 1 to 64";

    fn new(count: u64) -> Option<Self> {
        let count = usize::try_from(count).ok()?;
        (1..=MOST_ENGINES).contains(&count).then_some(Self(count))
    }
}

const _: () = assert!(MOST_ENGINES == 64, "the messages name another limit");

impl FromStr for EngineCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.parse().ok().and_then(Self::new);
        count.ok_or_else(|| format!("{text:?} is not {}", Self::ALLOWED))
    }
}

impl<'de> Deserialize<'de> for EngineCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        file::number_within(deserializer, 1..=MOST_ENGINES as u64).map(Self)
    }
}

/// Name of an engine: 1 to 32 letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineName(String);

impl FromStr for EngineName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_name = (1..=MOST_CHARACTERS).contains(&name.len()) && name.chars().all(is_allowed);
        match is_name {
            true => Ok(Self(name.to_owned())),
            false => Err(format!(
                "{name:?} is not a name of an engine: 1 to {MOST_CHARACTERS} letters, digits, `-`, `_` and `.`"
            )),
        }
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for EngineName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(D::Error::custom)
    }
}

/// The engines of a process, in the order of their first NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineLayout {
    /// Their names. Each has a NIC, but for that of a process without NICs.
    pub names: Vec<String>,
    /// Engine by NIC.
    pub of_nics: Vec<usize>,
}

impl EngineLayout {
    /// Divides NICs. `names` has the engine of each that the configuration names; the others are divided in turn among `count`
    /// engines, whose names are numbers from 0 on.
    pub(crate) fn new<'a>(
        count: EngineCount,
        names: impl Iterator<Item = Option<&'a EngineName>>,
    ) -> Self {
        let mut layout = Self {
            names: Vec::new(),
            of_nics: Vec::new(),
        };
        let mut in_turn = (0..count.0).cycle();
        for name in names {
            let name = match name {
                Some(name) => name.to_string(),
                None => in_turn.next().unwrap_or_default().to_string(),
            };
            let known = layout.names.iter().position(|known| *known == name);
            layout.of_nics.push(known.unwrap_or(layout.names.len()));
            if known.is_none() {
                layout.names.push(name);
            }
        }
        if layout.names.is_empty() {
            layout.names.push("0".to_owned());
        }
        layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn layout(text: &str) -> (Vec<String>, Vec<usize>) {
        let layout = Config::from_toml(text).unwrap().engine_layout();
        (layout.names, layout.of_nics)
    }

    #[test]
    fn nics_are_divided_in_turn_or_by_name() {
        let nic = |name: &str| format!("[[nic]]\nname = \"{name}\"\n");
        let on = |name: &str, engine: &str| format!("{}engine = \"{engine}\"\n", nic(name));
        let [a, b, c] = ["a", "b", "c"].map(nic);
        let all = format!("{a}{b}{c}");
        assert_eq!(layout(&all), (vec!["0".to_owned()], vec![0, 0, 0]));
        let two = format!("engines = 2\n{all}");
        let names = ["0", "1"].map(str::to_owned).to_vec();
        assert_eq!(layout(&two), (names.clone(), vec![0, 1, 0]));
        let many = format!("engines = 64\n{a}{b}");
        assert_eq!(layout(&many), (names, vec![0, 1]), "an engine has a NIC");
        let named = format!("engines = 2\n{}{a}{}{b}", on("x", "fast"), on("y", "1"));
        let names = ["fast", "0", "1"].map(str::to_owned).to_vec();
        assert_eq!(layout(&named), (names, vec![0, 1, 2, 2]));
        let defaults = format!(
            "engines = 2\n[defaults]\nengine = \"e\"\n{a}{}",
            on("b", "f")
        );
        let names = ["e", "f"].map(str::to_owned).to_vec();
        assert_eq!(layout(&defaults), (names, vec![0, 1]));
        assert_eq!(layout(""), (vec!["0".to_owned()], vec![]));
    }

    #[test]
    fn wrong_values_are_refused_with_the_allowed_ones() {
        let refused = |text: &str, message: &str| {
            let error = Config::from_toml(text).unwrap_err();
            assert_eq!(error.to_string(), message);
        };
        for (value, shown) in [("0", "integer `0`"), ("65", "integer `65`")] {
            refused(
                &format!("engines = {value}"),
                &format!("1:11: engines: invalid value: {shown}, expected an integer from 1 to 64"),
            );
        }
        refused(
            "[[nic]]\nname = \"a\"\nengine = \"two words\"\n",
            "3:10: nic[0].engine: \"two words\" is not a name of an engine: 1 to 32 letters, digits, `-`, `_` and `.`",
        );
        refused(
            "[defaults]\nengine = \"\"\n",
            "2:10: defaults.engine: \"\" is not a name of an engine: 1 to 32 letters, digits, `-`, `_` and `.`",
        );
        for bad in ["0", "65", "", "x", "-1"] {
            let error = bad.parse::<EngineCount>().unwrap_err();
            assert_eq!(error, format!("{bad:?} is not an integer from 1 to 64"));
        }
        assert_eq!("64".parse(), Ok(EngineCount(64)));
    }
}
