//! Congestion control (DCQCN) in the configuration.

use faultline_nic::{Dcqcn, Nanos};
use serde::de::{Deserialize, Deserializer, Error};

use crate::file::{self, Misfit};

/// The keys of the table `dcqcn`, all with the default values of [`Dcqcn`].
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table of DCQCN settings")]
struct DcqcnTable {
    #[serde(deserialize_with = "file::number")]
    line_rate_mbps: u32,
    #[serde(deserialize_with = "file::number")]
    min_rate_mbps: u32,
    #[serde(deserialize_with = "file::number")]
    cnp_interval_us: u32,
    #[serde(deserialize_with = "file::number")]
    cnp_dscp: u8,
    #[serde(deserialize_with = "file::number")]
    g_shift: u8,
    #[serde(deserialize_with = "file::number")]
    alpha_interval_us: u32,
    #[serde(deserialize_with = "file::number")]
    increase_interval_us: u32,
    #[serde(deserialize_with = "file::number")]
    increase_bytes: u32,
    #[serde(deserialize_with = "file::number")]
    fast_recovery_rounds: u32,
    #[serde(deserialize_with = "file::number")]
    additive_mbps: u32,
    #[serde(deserialize_with = "file::number")]
    hyper_mbps: u32,
}

impl Default for DcqcnTable {
    fn default() -> Self {
        let usual = Dcqcn::default();
        let us = |time: Nanos| u32::try_from(time.0 / 1000).unwrap_or(u32::MAX);
        Self {
            line_rate_mbps: usual.line_rate_mbps,
            min_rate_mbps: usual.min_rate_mbps,
            cnp_interval_us: us(usual.cnp_interval),
            cnp_dscp: usual.cnp_dscp,
            g_shift: usual.g_shift,
            alpha_interval_us: us(usual.alpha_interval),
            increase_interval_us: us(usual.increase_interval),
            increase_bytes: usual.increase_bytes,
            fast_recovery_rounds: usual.fast_recovery_rounds,
            additive_mbps: usual.additive_mbps,
            hyper_mbps: usual.hyper_mbps,
        }
    }
}

/// Reads the table, for a key that may be absent.
pub(crate) fn dcqcn<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Dcqcn>, D::Error> {
    let table = DcqcnTable::deserialize(deserializer)?;
    let within = |key, value: u32, least: u32, most: u32| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(D::Error::custom(Misfit::of_value(
            key,
            format!("invalid value: integer `{value}`, expected an integer from {least} to {most}"),
        ))),
    };
    within("line_rate_mbps", table.line_rate_mbps, 1, 1_000_000)?;
    within(
        "min_rate_mbps",
        table.min_rate_mbps,
        1,
        table.line_rate_mbps,
    )?;
    within("cnp_dscp", table.cnp_dscp.into(), 0, 63)?;
    within("g_shift", table.g_shift.into(), 0, 16)?;
    within("alpha_interval_us", table.alpha_interval_us, 1, u32::MAX)?;
    within(
        "increase_interval_us",
        table.increase_interval_us,
        1,
        u32::MAX,
    )?;
    within("increase_bytes", table.increase_bytes, 1, u32::MAX)?;
    let us = |us: u32| Nanos::from_micros(us.into());
    Ok(Some(Dcqcn {
        line_rate_mbps: table.line_rate_mbps,
        min_rate_mbps: table.min_rate_mbps,
        cnp_interval: us(table.cnp_interval_us),
        cnp_dscp: table.cnp_dscp,
        g_shift: table.g_shift,
        alpha_interval: us(table.alpha_interval_us),
        increase_interval: us(table.increase_interval_us),
        increase_bytes: table.increase_bytes,
        fast_recovery_rounds: table.fast_recovery_rounds,
        additive_mbps: table.additive_mbps,
        hyper_mbps: table.hyper_mbps,
    }))
}

#[cfg(test)]
mod tests {
    use faultline_nic::{Dcqcn, Nanos};

    use crate::config::{Config, refusal_of_nic};

    fn of_first(text: &str) -> Result<Option<Dcqcn>, String> {
        let config = Config::from_toml(text).map_err(|error| error.to_string())?;
        let nic = config.nics.first().ok_or("no NIC")?;
        Ok(config.nic_config(nic).congestion)
    }

    #[test]
    fn an_empty_table_switches_it_on_with_the_usual_parameters() {
        let off = of_first("[[nic]]\nname = \"a\"\n");
        assert_eq!(off, Ok(None));
        let on = of_first("[[nic]]\nname = \"a\"\ndcqcn = {}\n");
        assert_eq!(on, Ok(Some(Dcqcn::default())));
        let all = of_first("[defaults]\ndcqcn = { cnp_interval_us = 4 }\n[[nic]]\nname = \"a\"\n");
        let cnp_interval = Nanos(4000);
        let usual = Dcqcn::default();
        assert_eq!(
            all,
            Ok(Some(Dcqcn {
                cnp_interval,
                ..usual
            }))
        );
    }

    #[test]
    fn values_that_mean_nothing_are_refused_where_they_are() {
        assert_eq!(
            refusal_of_nic("dcqcn = { line_rate_mbps = 0 }\n"),
            "3:28: nic[0].dcqcn.line_rate_mbps: invalid value: integer `0`, expected an integer from 1 to 1000000"
        );
        assert_eq!(
            refusal_of_nic("dcqcn = { cnp_dscp = 64 }\n"),
            "3:22: nic[0].dcqcn.cnp_dscp: invalid value: integer `64`, expected an integer from 0 to 63"
        );
        // A default that does not fit the given values has the place of the table.
        assert_eq!(
            refusal_of_nic("dcqcn = { line_rate_mbps = 5 }\n"),
            "3:9: nic[0].dcqcn.min_rate_mbps: invalid value: integer `10`, expected an integer from 1 to 5"
        );
        let error = refusal_of_nic("dcqcn = { rate = 1 }\n");
        assert!(
            error.contains("3:11") && error.contains("`line_rate_mbps`"),
            "{error}"
        );
    }
}
