//! Page faults counted by SQL over the trace for Perfetto, and compared with the report and the guest's tracepoints.
//!
//! `device/telemetry/tests/perfetto_trace.py` runs the queries in Perfetto's trace processor. The report has been compared with the
//! metrics before, so equal numbers here are those of the metrics too.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::watched::Watched;
use crate::command::{capture, say};
use crate::host;

const SCRIPT: &str = "device/telemetry/tests/perfetto_trace.py";
/// Stages whose durations the driver measures, the last one first, and their fields in the tracepoint of the answer.
const DRIVER: [(&str, &str); 3] = [("post", "post_ns"), ("map", "map_ns"), ("wait", "wait_ns")];
/// Ranks of the report: name, thousandths.
const RANKS: [(&str, usize); 5] = [
    ("p50", 500),
    ("p90", 900),
    ("p99", 990),
    ("p999", 999),
    ("max", 1000),
];

/// Fields of the guest's events, by token.
type Events = BTreeMap<u64, BTreeMap<String, u64>>;

/// Compares the faults of a NIC after a time in the file of a trace with the report of the same faults and with the guest's answers.
/// `intervals`: nanoseconds from fault to answer by the device's clock, by token.
pub(super) fn compare(
    watched: &Watched<'_>,
    (file, nic, since): (&str, &str, u64),
    report: &Value,
    (answers, intervals): (&Events, &BTreeMap<u64, u64>),
) -> Result<()> {
    let perfetto = host::perfetto(watched.workspace)?;
    let mut python = Command::new("python3");
    python
        .arg(watched.workspace.root().join(SCRIPT))
        .arg(perfetto.trace_processor)
        .arg(watched.logs.join(file))
        .args(["--nic", nic, "--since", &since.to_string()])
        .env("PYTHONPATH", perfetto.packages);
    let text = capture(&mut python).with_context(|| format!("SQL over {file}"))?;
    let counted: Value = serde_json::from_str(&text).with_context(|| format!("reading {text}"))?;
    ensure!(
        counted["faults"] == report["faults"]["all"],
        "SQL counts {} faults, the report has {}",
        counted["faults"],
        report["faults"]["all"]
    );
    let tokens: Vec<&u64> = answers.keys().collect();
    ensure!(
        counted["tokens"] == json!(tokens),
        "the tokens are {} by SQL, and {tokens:?} in the guest",
        counted["tokens"]
    );
    let stages = by_name(&counted["stages"])?;
    let reported = by_name(&report["stages"])?;
    ensure!(
        stages == reported,
        "the stages are {stages:?} by SQL, and {reported:?} in the report"
    );
    // Intervals that do not fit into the time that the device has measured are cut, the earliest stage first. This
    // happens when a busy host stops the engine between its look at the clock and the answer.
    let mut left = intervals.clone();
    for (stage, field) in DRIVER {
        let durations = answers.iter().map(|(token, answer)| {
            let left = left.get_mut(token)?;
            let duration = *answer.get(field)?.min(left);
            *left -= duration;
            Some(duration)
        });
        let durations = durations.collect::<Option<Vec<u64>>>();
        let durations = durations.with_context(|| format!("an answer has no {field}"))?;
        let measured = percentiles(stage, durations);
        ensure!(
            stages.get(stage) == Some(&measured),
            "{stage} is {:?} by SQL, and {measured} by the guest's tracepoints",
            stages.get(stage)
        );
    }
    say(format!(
        "{} page faults by SQL, with the percentiles of report and tracepoints",
        counted["faults"]
    ));
    Ok(())
}

fn by_name(stages: &Value) -> Result<BTreeMap<&str, Value>> {
    let stages = stages.as_array().context("stages are a list")?;
    let named = stages.iter().map(|stage| {
        let name = stage["stage"].as_str().context("a stage has a name")?;
        Ok((name, stage.clone()))
    });
    named.collect()
}

/// The report's row of a stage with these durations: percentiles by nearest rank.
fn percentiles(stage: &str, mut durations: Vec<u64>) -> Value {
    durations.sort_unstable();
    let mut value = json!({"stage": stage, "count": durations.len()});
    for (name, thousandths) in RANKS {
        let rank = (durations.len() * thousandths).div_ceil(1000);
        let duration = durations.get(rank.saturating_sub(1));
        value[name] = json!(duration.copied().unwrap_or_default());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_durations_of_the_nearest_rank() {
        let durations = (1..=100).rev().collect();
        let expected = json!({"stage": "map", "count": 100, "p50": 50, "p90": 90, "p99": 99, "p999": 100, "max": 100});
        assert_eq!(percentiles("map", durations), expected);
    }
}
