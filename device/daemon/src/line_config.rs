//! Models of links in the configuration.

use std::fmt;

use faultline_ports::line::LineModel;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::config_file;

/// The keys of a table that describes one direction of a link.
#[derive(serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    expecting = "a table of a link's direction"
)]
#[derive(Default)]
struct LineTable {
    #[serde(deserialize_with = "config_file::number")]
    rate_mbps: u32,
    #[serde(deserialize_with = "config_file::number")]
    delay_ns: u64,
    #[serde(deserialize_with = "config_file::number")]
    queue_bytes: u32,
    #[serde(deserialize_with = "config_file::number")]
    ecn_bytes: u32,
    #[serde(deserialize_with = "config_file::number")]
    pause_bytes: u32,
    #[serde(deserialize_with = "probability")]
    loss: u32,
    #[serde(deserialize_with = "probability")]
    duplicate: u32,
    #[serde(deserialize_with = "probability")]
    reorder: u32,
    #[serde(deserialize_with = "probability")]
    corrupt: u32,
    #[serde(deserialize_with = "config_file::number")]
    seed: u64,
}

/// Reads a table of a direction, for a key that may be absent.
pub(crate) fn line<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<LineModel>, D::Error> {
    let table = LineTable::deserialize(deserializer)?;
    Ok(Some(LineModel {
        rate_mbps: table.rate_mbps,
        delay_ns: table.delay_ns,
        queue_bytes: table.queue_bytes,
        ecn_bytes: table.ecn_bytes,
        pause_bytes: table.pause_bytes,
        loss: table.loss,
        duplicate: table.duplicate,
        reorder: table.reorder,
        corrupt: table.corrupt,
        seed: table.seed,
    }))
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
                return Err(E::invalid_value(serde::de::Unexpected::Float(value), &self));
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
                _ => Err(E::invalid_value(
                    serde::de::Unexpected::Signed(value),
                    &self,
                )),
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
        let expected = LineModel {
            loss: 10_000,
            reorder: 1_000_000,
            seed: 7,
            rate_mbps: 10_000,
            delay_ns: 500,
            ..LineModel::default()
        };
        assert_eq!(config.nics[0].settings.link_tx, Some(expected));
        assert_eq!(config.nics[0].settings.link_rx, None);
        assert_eq!(config.ports[0].link_rx.map(|line| line.corrupt), Some(1));
    }

    #[test]
    fn what_is_wrong_is_located() {
        assert_eq!(
            refusal_of_nic("link_tx = { loss = 1.5 }\n"),
            "3:20: nic[0].link_tx.loss: invalid value: floating point `1.5`, expected a number from 0 to 1"
        );
        assert_eq!(
            refusal_of_nic("link_rx = { los = 1 }\n"),
            "3:13: nic[0].link_rx.los: unknown key `los`, expected one of `rate_mbps`, `delay_ns`, `queue_bytes`, \
             `ecn_bytes`, `pause_bytes`, `loss`, `duplicate`, `reorder`, `corrupt`, `seed`"
        );
    }
}
