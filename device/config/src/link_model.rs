//! Models of links in the configuration.

use std::fmt;

use faultline_fabric::link_model::{LinkModel, MAX_PRIORITY_OCTETS};
use faultline_wire::PrioritySet;
use faultline_wire::priority::PRIORITIES;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};

use crate::file::{self, Misfit};

/// The keys of a table that describes one direction of a link.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table of a link's direction"
)]
#[derive(Default)]
struct LinkModelTable {
    #[serde(deserialize_with = "file::number")]
    rate_mbps: u32,
    #[serde(deserialize_with = "file::number")]
    delay_ns: u64,
    #[serde(deserialize_with = "file::number")]
    queue_bytes: u32,
    #[serde(deserialize_with = "file::number")]
    ecn_bytes: u32,
    #[serde(deserialize_with = "file::number")]
    pause_bytes: u32,
    #[serde(deserialize_with = "priorities")]
    pfc: PrioritySet,
    #[serde(deserialize_with = "probability")]
    loss: u32,
    #[serde(deserialize_with = "probability")]
    duplicate: u32,
    #[serde(deserialize_with = "probability")]
    reorder: u32,
    #[serde(deserialize_with = "probability")]
    corrupt: u32,
    #[serde(deserialize_with = "file::number")]
    seed: u64,
}

/// Reads a table of a direction, for a key that may be absent.
pub(crate) fn link_model<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<LinkModel>, D::Error> {
    let table = LinkModelTable::deserialize(deserializer)?;
    if !table.pfc.is_empty() {
        check_priorities(&table).map_err(D::Error::custom)?;
    }
    Ok(Some(LinkModel {
        rate_mbps: table.rate_mbps,
        delay_ns: table.delay_ns,
        queue_bytes: table.queue_bytes,
        ecn_bytes: table.ecn_bytes,
        pause_bytes: table.pause_bytes,
        pfc: table.pfc,
        loss: table.loss,
        duplicate: table.duplicate,
        reorder: table.reorder,
        corrupt: table.corrupt,
        seed: table.seed,
    }))
}

/// Checks the limits of the queues of priorities.
fn check_priorities(table: &LinkModelTable) -> Result<(), Misfit> {
    let queue = match table.queue_bytes {
        0 => MAX_PRIORITY_OCTETS,
        bytes => bytes as usize,
    };
    if queue > MAX_PRIORITY_OCTETS {
        Err(Misfit::of_value(
            "queue_bytes",
            format!(
                "invalid value: integer `{queue}`, expected at most {MAX_PRIORITY_OCTETS} for each priority with `pfc`"
            ),
        ))
    } else if table.pause_bytes == 0 {
        Err(Misfit::of_key(
            "pfc",
            "this key needs `pause_bytes`, from which on a priority is paused",
        ))
    } else if table.pause_bytes as usize >= queue {
        Err(Misfit::of_value(
            "pause_bytes",
            format!(
                "invalid value: integer `{}`, expected less than {queue}, the room of the queue, with `pfc`",
                table.pause_bytes
            ),
        ))
    } else {
        Ok(())
    }
}

/// A priority of frames.
struct Priority(u8);

struct PriorityVisitor;

impl Visitor<'_> for PriorityVisitor {
    type Value = Priority;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a priority from 0 to 7")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Priority, E> {
        let priority = u8::try_from(value).ok();
        let priority = priority.filter(|priority| usize::from(*priority) < PRIORITIES);
        priority
            .map(Priority)
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(PriorityVisitor)
    }
}

/// Reads an array of priorities.
fn priorities<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PrioritySet, D::Error> {
    struct Priorities;

    impl<'de> Visitor<'de> for Priorities {
        type Value = PrioritySet;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of priorities from 0 to 7")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PrioritySet, A::Error> {
            let mut set = PrioritySet::NONE;
            while let Some(Priority(priority)) = seq.next_element()? {
                set = set.with(priority);
            }
            Ok(set)
        }
    }

    deserializer.deserialize_any(Priorities)
}

/// Reads a probability. The result is in millionths.
fn probability<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Probability;

    impl Visitor<'_> for Probability {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number from 0 to 1")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<u32, E> {
            if !(0.0..=1.0).contains(&value) {
                return Err(E::invalid_value(Unexpected::Float(value), &self));
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is at most a million"
            )]
            let millionths = (value * 1e6).round() as u32;
            Ok(millionths)
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<u32, E> {
            match value {
                0 => Ok(0),
                1 => Ok(1_000_000),
                _ => Err(E::invalid_value(Unexpected::Signed(value), &self)),
            }
        }
    }

    deserializer.deserialize_any(Probability)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, refusal_of_nic};

    #[test]
    fn a_line_is_read_for_nics_and_ports() {
        let text = "[[nic]]\nname = \"a\"\n\
                    link_tx = { loss = 0.01, reorder = 1, seed = 7, rate_mbps = 10000, delay_ns = 500 }\n\
                    [[port]]\nname = \"p\"\nkind = \"tap\"\ninterface = \"x\"\nlink_rx = { corrupt = 0.000001 }\n";
        let config = Config::from_toml(text).unwrap();
        let expected = LinkModel {
            loss: 10_000,
            reorder: 1_000_000,
            seed: 7,
            rate_mbps: 10_000,
            delay_ns: 500,
            ..LinkModel::default()
        };
        assert_eq!(config.nics[0].settings.link_tx, Some(expected));
        assert_eq!(config.nics[0].settings.link_rx, None);
        assert_eq!(config.ports[0].link_rx.map(|line| line.corrupt), Some(1));
    }

    #[test]
    fn priorities_are_read() {
        let text = "[defaults]\nlink_rx = { rate_mbps = 1000, pause_bytes = 40000, pfc = [3, 0, 3] }\n\
                    [[nic]]\nname = \"a\"\nlink_tx = { pfc = [] }\n";
        let config = Config::from_toml(text).unwrap();
        let pfc = |line: Option<LinkModel>| line.map(|line| line.pfc);
        let expected = PrioritySet::NONE.with(0).with(3);
        assert_eq!(pfc(config.defaults.link_rx), Some(expected));
        let tx = config.nics[0].settings.link_tx;
        assert_eq!(pfc(tx), Some(PrioritySet::NONE));
    }

    #[test]
    fn wrong_priorities_are_located() {
        assert_eq!(
            refusal_of_nic("link_tx = { pause_bytes = 1, pfc = [3, 8] }\n"),
            "3:40: nic[0].link_tx.pfc[1]: invalid value: integer `8`, expected a priority from 0 to 7"
        );
        assert_eq!(
            refusal_of_nic("link_tx = { pause_bytes = 1, pfc = 3 }\n"),
            "3:36: nic[0].link_tx.pfc: invalid type: integer `3`, expected an array of priorities from 0 to 7"
        );
        assert_eq!(
            refusal_of_nic("link_tx = { pause_bytes = 1, pfc = [\"3\"] }\n"),
            "3:37: nic[0].link_tx.pfc[0]: invalid type: string \"3\", expected a priority from 0 to 7"
        );
        assert_eq!(
            refusal_of_nic("link_rx = { rate_mbps = 1000, pfc = [3] }\n"),
            "3:31: nic[0].link_rx.pfc: this key needs `pause_bytes`, from which on a priority is paused"
        );
        assert_eq!(
            refusal_of_nic("link_rx = { queue_bytes = 1048577, pause_bytes = 1, pfc = [3] }\n"),
            "3:27: nic[0].link_rx.queue_bytes: invalid value: integer `1048577`, expected at most 1048576 for each priority with `pfc`"
        );
        assert_eq!(
            refusal_of_nic("link_rx = { queue_bytes = 5000, pause_bytes = 5000, pfc = [3] }\n"),
            "3:47: nic[0].link_rx.pause_bytes: invalid value: integer `5000`, expected less than 5000, the room of the queue, with `pfc`"
        );
        assert_eq!(
            refusal_of_nic("link_rx = { pause_bytes = 1048576, pfc = [3] }\n"),
            "3:27: nic[0].link_rx.pause_bytes: invalid value: integer `1048576`, expected less than 1048576, the room of the queue, with `pfc`"
        );
        assert_eq!(
            refusal_of_nic("[defaults.link_rx]\nrate_mbps = 1000\npfc = [3]\n"),
            "5:1: defaults.link_rx.pfc: this key needs `pause_bytes`, from which on a priority is paused"
        );
    }

    #[test]
    fn problems_are_located() {
        assert_eq!(
            refusal_of_nic("link_tx = { loss = 1.5 }\n"),
            "3:20: nic[0].link_tx.loss: invalid value: floating point `1.5`, expected a number from 0 to 1"
        );
        assert_eq!(
            refusal_of_nic("link_rx = { los = 1 }\n"),
            "3:13: nic[0].link_rx.los: unknown key `los`, expected one of `rate_mbps`, `delay_ns`, `queue_bytes`, \
             `ecn_bytes`, `pause_bytes`, `pfc`, `loss`, `duplicate`, `reorder`, `corrupt`, `seed`"
        );
    }
}
