//! Values of scenario files: times, ranges, probabilities.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use faultline_nic::Nanos;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time: a number and a unit, such as `"300ms"`, `"2s"` or `"1s 500ms"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Nanos);

impl Time {
    /// So many milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(Nanos(ms.saturating_mul(1_000_000)))
    }

    /// A number of microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(Nanos(us.saturating_mul(1_000)))
    }

    /// Nanoseconds.
    pub const fn nanos(self) -> u64 {
        self.0.0
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}",
            humantime::format_duration(Duration::from_nanos(self.nanos()))
        )
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = "a time is a number and a unit (ns, us, ms, s, m, h), such as \"300ms\"";
        let duration = humantime::parse_duration(text)
            .map_err(|error| format!("{text:?}: {error}; {allowed}"))?;
        let nanos =
            u64::try_from(duration.as_nanos()).map_err(|_| format!("{text:?} is too long"))?;
        Ok(Self(Nanos(nanos)))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string with a number and a unit (ns, us, ms, s, m, h), such as \"300ms\"",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A number and a unit (ns, us, ms, s, m, h), such as \"300ms\".",
            "examples": ["300ms", "2s", "10us"]
        })
    }
}

/// A range of numbers: `3` or `"3"` is exactly 3, `"2..5"` from 2 to 5, `"1.."` at least 1, `"..8"` at most 8. Both ends are
/// included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Smallest number.
    pub first: u64,
    /// Largest number.
    pub last: u64,
}

impl Range {
    /// From `first` on.
    pub const fn from(first: u64) -> Self {
        Self {
            first,
            last: u64::MAX,
        }
    }

    /// Exactly `value`.
    pub const fn exactly(value: u64) -> Self {
        Self {
            first: value,
            last: value,
        }
    }

    /// True if `value` is in the range.
    pub const fn contains(self, value: u64) -> bool {
        self.first <= value && value <= self.last
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (first, last) if first == last => write!(f, "{first}"),
            (0, last) if last != u64::MAX => write!(f, "..{last}"),
            (first, u64::MAX) => write!(f, "{first}.."),
            (first, last) => write!(f, "{first}..{last}"),
        }
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a range: a range is \"3\", \"2..5\", \"1..\" or \"..8\", both ends included"
            )
        };
        let number = |text: &str, default| match text.trim() {
            "" => Ok(default),
            digits => digits.parse::<u64>().map_err(|_| wrong()),
        };
        let range = match text.split_once("..") {
            Some((first, last)) => Self {
                first: number(first, 0)?,
                last: number(last, u64::MAX)?,
            },
            None => Self::exactly(text.trim().parse().map_err(|_| wrong())?),
        };
        if range.first > range.last {
            return Err(format!(
                "{text:?} is empty: the first number is greater than the last"
            ));
        }
        Ok(range)
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Range;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a range such as \"1..\", \"..8\" or \"2..5\"")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Range, E> {
                Ok(Range::exactly(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Range, E> {
                let value = u64::try_from(value)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))?;
                Ok(Range::exactly(value))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Range, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Serialize for Range {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Range {
    fn schema_name() -> Cow<'static, str> {
        "Range".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": "^ *([0-9]+|[0-9]* *\\.\\. *[0-9]*) *$",
            "description": "A number, or a range such as \"1..\", \"..8\" or \"2..5\". Both ends are included.",
            "examples": [3, "1..", "..8", "2..5"]
        })
    }
}

/// A probability from 0 (exclusive) to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chance(f64);

impl Chance {
    /// In millionths, at least one.
    pub fn per_million(self) -> u32 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 < self.0 <= 1, so the product is in range"
        )]
        let millionths = (self.0 * 1e6).round() as u32;
        millionths.max(1)
    }
}

impl<'de> Deserialize<'de> for Chance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        match value > 0.0 && value <= 1.0 {
            true => Ok(Self(value)),
            false => Err(de::Error::custom(format!(
                "{value} is not a probability: it must be greater than 0 and at most 1"
            ))),
        }
    }
}

impl Serialize for Chance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

impl JsonSchema for Chance {
    fn schema_name() -> Cow<'static, str> {
        "Chance".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "A probability. The random numbers follow from the scenario's seed."
        })
    }
}
