//! Page faults counted in four ways: in the trace, in the metrics, by the tracepoints of the guest, and by SQL over the trace
//! for Perfetto.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::sql;
use super::storm::Storm;
use super::watched::{SHORT, Watched, picture, until};
use crate::command::say;

/// The NIC of the guest that owns the memory.
const NIC: &str = "nic0";
/// Pages of the storm, each written and read. Its events must fit into the trace that is always kept: each fault has some
/// twenty.
const PAGES: usize = 400;
/// The trace for Perfetto.
const PERFETTO: &str = "storm.pftrace";
/// With the value 1, the pictures in `docs/images` become those of this run.
const BLESS: &str = "FAULTLINE_BLESS";
/// Options that draw pictures of the storm, and the files' names.
const PICTURES: [(&str, &str); 2] = [
    ("--histogram", "fault-latency.svg"),
    ("--time-line", "fault-time-line.svg"),
];
/// Ranks in the report that are compared with the histograms: name, thousandths.
const RANKS: [(&str, u64); 3] = [("p50", 500), ("p90", 900), ("p99", 990)];

pub fn run(watched: &Watched<'_>) -> Result<()> {
    watched.server.must("fault_tracing begin", SHORT)?;
    let before = trace(watched, "before.jsonl")?;
    let began = before.records.last().map_or(0, |record| record.at);
    let metrics_before = Metrics::read(watched)?;
    let storm = Storm::start(watched, PAGES)?;
    let pid = storm.pid;
    check_process(watched, pid)?;
    storm.finish()?;
    let metrics = Metrics::read(watched)?.since(&metrics_before);
    let after = trace(watched, "after.jsonl")?;
    watched.faultline(&["trace", "-o", PERFETTO])?;
    let guest = watched.server.must("fault_tracing end", SHORT)?;
    ensure!(
        after.records.first().is_some_and(|first| first.at <= began),
        "the trace has lost events of the storm: it needs a smaller number of pages than {PAGES}"
    );
    // The programs' start would be most of the time line.
    let storm = after.since(began).starting_with("FaultRaised")?;
    fs::write(watched.logs.join("storm.jsonl"), storm.text())?;
    let mut arguments = vec!["report", "storm.jsonl", "--json"];
    arguments.extend(PICTURES.iter().flat_map(|&(option, name)| [option, name]));
    let report = watched.faultline(&arguments)?;
    let report: Value = serde_json::from_str(&report).context("reading the report")?;
    compare_metrics(&report, &metrics)?;
    compare_guest(&storm, &report, &guest)?;
    let guest = guest_events(&guest, "resume")?;
    let answers = (&guest, &storm.intervals()?);
    sql::compare(watched, (PERFETTO, NIC, began), &report, answers)?;
    check_log(watched)?;
    bless(watched)
}

/// Puts the pictures into the documents if that is wanted.
fn bless(watched: &Watched<'_>) -> Result<()> {
    for (_, name) in PICTURES {
        let text = picture(&watched.logs.join(name))?;
        if std::env::var_os(BLESS).is_some_and(|value| value == "1") {
            let to = watched.workspace.root().join("docs/images").join(name);
            fs::write(&to, &text).with_context(|| format!("writing {}", to.display()))?;
        }
    }
    Ok(())
}

// --- the trace --------------------------------------------------------------------------------------------------------

/// A record of the trace, and its line.
#[derive(Debug, Clone)]
struct Record {
    at: u64,
    nic: u64,
    /// Kind and fields of a diagnostic.
    diagnostic: Option<(String, Value)>,
    line: String,
}

/// A trace in its raw form.
struct Trace {
    header: String,
    records: Vec<Record>,
}

/// Saves the events that the process has kept.
fn trace(watched: &Watched<'_>, name: &str) -> Result<Trace> {
    watched.faultline(&["trace", "-o", name])?;
    let text = fs::read_to_string(watched.logs.join(name)).context("reading a trace")?;
    let (header, records) = text.split_once('\n').context("a trace has a header")?;
    let records = records.lines().map(Record::new).collect::<Result<_>>()?;
    let header = header.to_owned();
    Ok(Trace { header, records })
}

impl Record {
    fn new(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line).with_context(|| format!("reading {line}"))?;
        let number = |name: &str| {
            value[name]
                .as_u64()
                .with_context(|| format!("{name} of {line}"))
        };
        let fields = value.pointer("/event/Nic").and_then(Value::as_object);
        let diagnostic = fields.and_then(|fields| fields.iter().next());
        Ok(Self {
            at: number("at")?,
            nic: number("nic")?,
            diagnostic: diagnostic.map(|(kind, fields)| (kind.clone(), fields.clone())),
            line: line.to_owned(),
        })
    }
}

impl Trace {
    /// The records after a time.
    fn since(self, time: u64) -> Self {
        let mut records = self.records;
        records.retain(|record| record.at > time);
        Self { records, ..self }
    }

    /// The records from the first diagnostic of a kind on.
    fn starting_with(mut self, kind: &str) -> Result<Self> {
        let is_first = |record: &Record| {
            let diagnostic = record.diagnostic.as_ref();
            diagnostic.is_some_and(|(name, _)| name == kind)
        };
        let first = self.records.iter().position(is_first);
        let first = first.with_context(|| format!("there is no {kind} in the trace"))?;
        self.records.drain(..first);
        Ok(self)
    }

    fn text(&self) -> String {
        let lines = self.records.iter().map(|record| record.line.as_str());
        let lines = std::iter::once(self.header.as_str()).chain(lines);
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Nanoseconds from each fault to its answer, without the time for which the record has waited, by token.
    fn intervals(&self) -> Result<BTreeMap<u64, u64>> {
        let answers = self.records.iter().filter(|record| record.nic == 0);
        let interval = |record: &Record| {
            let (_, fields) =
                (record.diagnostic.as_ref()).filter(|(kind, _)| kind == "FaultResumed")?;
            let (raised, waited) = (fields["raised"].as_u64(), fields["record_ns"].as_u64());
            let interval = record.at.saturating_sub(raised?).saturating_sub(waited?);
            Some((fields["token"].as_u64(), interval))
        };
        by_token(answers.filter_map(interval)).context("answers in the trace")
    }

    /// The fields of diagnostics of a kind, by token.
    fn by_token(&self, kind: &str) -> Result<BTreeMap<u64, &Value>> {
        let diagnostics = self.records.iter().filter(|record| record.nic == 0);
        let fields = diagnostics
            .filter_map(|record| record.diagnostic.as_ref())
            .filter(|(name, _)| name == kind)
            .map(|(_, fields)| fields);
        by_token(fields.map(|fields| (fields["token"].as_u64(), fields)))
            .with_context(|| format!("{kind} in the trace"))
    }
}

/// Each token occurs once.
fn by_token<T>(items: impl Iterator<Item = (Option<u64>, T)>) -> Result<BTreeMap<u64, T>> {
    let mut map = BTreeMap::new();
    for (token, item) in items {
        let token = token.context("an event without a token")?;
        ensure!(
            map.insert(token, item).is_none(),
            "token {token:#x} occurs twice"
        );
    }
    Ok(map)
}

// --- the metrics ------------------------------------------------------------------------------------------------------

/// The samples of a scrape: name with labels, value.
#[derive(Debug)]
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn read(watched: &Watched<'_>) -> Result<Self> {
        let text = watched.faultline(&["ctl", "metrics"])?;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').context("a sample")?;
                Ok((name.to_owned(), value.parse()?))
            })
            .collect::<Result<_>>()
            .map(Self)
            .context("reading the metrics")
    }

    /// By how much they have grown.
    fn since(mut self, before: &Self) -> Self {
        for (name, value) in &mut self.0 {
            *value -= before.0.get(name).unwrap_or(&0.0);
        }
        self
    }

    fn count(&self, name: &str) -> Result<u64> {
        let value = self
            .0
            .get(name)
            .with_context(|| format!("there is no metric {name}"))?;
        Ok(*value as u64)
    }

    fn faults(&self, state: &str) -> Result<u64> {
        self.count(&format!(
            "faultline_faults_total{{nic=\"{NIC}\",state=\"{state}\"}}"
        ))
    }

    /// The buckets of the histogram of a stage: upper bound in nanoseconds, number of durations up to it.
    fn stage(&self, stage: &str) -> Result<Vec<(f64, u64)>> {
        let labels = format!(",nic=\"{NIC}\",stage=\"{stage}\"}}");
        let mut buckets = Vec::new();
        for (name, value) in &self.0 {
            let rest = name.strip_prefix("faultline_fault_stage_seconds_bucket{le=\"");
            let bound = rest.and_then(|rest| rest.strip_suffix(&labels)?.strip_suffix('"'));
            if let Some(bound) = bound {
                let bound: f64 = match bound {
                    "+Inf" => f64::INFINITY,
                    bound => bound.parse().with_context(|| format!("reading {name}"))?,
                };
                buckets.push((bound * 1e9, *value as u64));
            }
        }
        ensure!(
            !buckets.is_empty(),
            "there is no histogram of stage {stage}"
        );
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(buckets)
    }
}

/// The bounds of the bucket with the duration of a rank (nearest rank).
fn bucket_of(buckets: &[(f64, u64)], thousandths: u64) -> (f64, f64) {
    let count = buckets.last().map_or(0, |(_, count)| *count);
    let rank = (count * thousandths).div_ceil(1000);
    let at = buckets.iter().position(|(_, count)| *count >= rank);
    let at = at.unwrap_or_default();
    let lower = at.checked_sub(1).and_then(|at| buckets.get(at));
    let upper = buckets.get(at).map_or(f64::INFINITY, |(bound, _)| *bound);
    (lower.map_or(0.0, |(bound, _)| *bound), upper)
}

fn compare_metrics(report: &Value, metrics: &Metrics) -> Result<()> {
    let of_report = |name: &str| {
        let value = report.pointer(&format!("/faults/{name}"));
        value
            .and_then(Value::as_u64)
            .with_context(|| format!("{name} of the report"))
    };
    let all = of_report("all")?;
    ensure!(all as usize >= PAGES, "{all} faults of {PAGES} pages");
    for (state, name) in [
        ("raised", "all"),
        ("resumed", "resumed"),
        ("failed", "failed"),
        ("expired", "expired"),
        ("cancelled", "cancelled"),
    ] {
        let (counted, traced) = (metrics.faults(state)?, of_report(name)?);
        ensure!(
            counted == traced,
            "{state}: the metrics have {counted}, the trace has {traced}"
        );
    }
    ensure!(of_report("in_flight")? == 0, "faults in flight at the end");
    let stages = report["stages"]
        .as_array()
        .context("stages of the report")?;
    ensure!(stages.len() == 7, "{stages:?}");
    for stage in stages {
        let name = stage["stage"].as_str().context("name of a stage")?;
        let buckets = metrics.stage(name)?;
        let (counted, traced) = (
            buckets.last().map(|(_, count)| *count),
            stage["count"].as_u64(),
        );
        ensure!(
            counted == traced,
            "{name}: the metrics have {counted:?}, the trace has {traced:?}"
        );
        let mut shown = Vec::new();
        for (rank, thousandths) in RANKS {
            let traced = stage[rank]
                .as_u64()
                .with_context(|| format!("{rank} of {name}"))?;
            let (lower, upper) = bucket_of(&buckets, thousandths);
            ensure!(
                (lower..=upper).contains(&(traced as f64)),
                "{name}: {rank} is {traced} ns in the trace, and in the metrics from {lower} to {upper} ns"
            );
            shown.push(format!("{rank} {:.3} ms", traced as f64 / 1e6));
        }
        say(format!(
            "{name}: {} ({})",
            shown.join(", "),
            traced.unwrap_or_default()
        ));
    }
    say(format!("{all} page faults in trace and metrics"));
    Ok(())
}

// --- the guest --------------------------------------------------------------------------------------------------------

/// The events of a name in the text of a trace: their fields, by token.
fn guest_events(text: &str, name: &str) -> Result<BTreeMap<u64, BTreeMap<String, u64>>> {
    let mark = format!(": faultline_{name}: ");
    let events = text
        .lines()
        .filter_map(|line| Some(line.split_once(&mark)?.1));
    let fields = events.map(|rest| {
        let words = rest.split(' ').filter_map(|word| word.split_once('='));
        let fields: BTreeMap<String, u64> = words
            .filter_map(|(name, value)| Some((name.to_owned(), number(value)?)))
            .collect();
        (fields.get("token").copied(), fields)
    });
    by_token(fields).with_context(|| format!("faultline_{name} in the guest"))
}

/// Statuses can be negative; their size does not matter here.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.trim_start_matches('-').parse().ok(),
    }
}

/// The guest has seen the same faults, with the same addresses and durations.
fn compare_guest(storm: &Trace, report: &Value, guest: &str) -> Result<()> {
    for lost in guest
        .lines()
        .filter(|line| line.starts_with("overrun:") || line.starts_with("dropped events:"))
    {
        ensure!(lost.ends_with(": 0"), "the guest has lost events: {lost}");
    }
    let raised = storm.by_token("FaultRaised")?;
    let faults = guest_events(guest, "fault")?;
    ensure!(
        raised.keys().eq(faults.keys()) && report["faults"]["all"] == faults.len(),
        "{} faults in the trace, {} in the guest",
        raised.len(),
        faults.len()
    );
    for (token, fault) in &faults {
        for name in ["key", "va", "qpn", "bytes"] {
            let (here, there) = (&raised[token][name], fault.get(name).copied());
            ensure!(
                here.as_u64() == there,
                "token {token:#x}: {name} is {here} in the trace and {there:?} in the guest"
            );
        }
    }
    let served = guest_events(guest, "serve")?;
    ensure!(
        served.keys().eq(faults.keys()),
        "{} faults served",
        served.len()
    );
    let resumed = storm.by_token("FaultResumed")?;
    let answers = guest_events(guest, "resume")?;
    ensure!(
        resumed.keys().eq(answers.keys()),
        "{} faults resumed in the trace, {} in the guest",
        resumed.len(),
        answers.len()
    );
    for (token, answer) in &answers {
        for name in ["wait_ns", "map_ns", "post_ns"] {
            let (here, there) = (&resumed[token]["driver"][name], answer.get(name).copied());
            ensure!(
                here.as_u64() == there,
                "token {token:#x}: {name} is {here} in the trace and {there:?} in the guest"
            );
        }
    }
    say(format!(
        "{} page faults with the same tokens, addresses and durations in the guest",
        faults.len()
    ));
    Ok(())
}

// --- processes --------------------------------------------------------------------------------------------------------

/// The host's view of faults and queue pairs leads to the process in the guest.
fn check_process(watched: &Watched<'_>, pid: u64) -> Result<()> {
    let fault = until("a page fault in flight", SHORT, || {
        let faults = watched.ctl(&["faults", NIC])?;
        Ok(faults.get(0).cloned())
    })?;
    let pairs = watched.ctl(&["qps", NIC])?;
    let contexts = watched.ctl(&["contexts", NIC])?;
    let context = contexts
        .as_array()
        .and_then(|all| {
            all.iter()
                .find(|context| context["context"] == fault["context"])
        })
        .with_context(|| format!("context of {fault} in {contexts}"))?;
    ensure!(
        context["pid"] == pid && context["program"] == "fault_storm",
        "the process is {pid} in the guest, and on the host it is {context}"
    );
    let owned = pairs.as_array().into_iter().flatten();
    let owned = owned
        .filter(|pair| pair["context"] == fault["context"])
        .count();
    ensure!(owned == 4, "{owned} queue pairs of the storm in {pairs}");
    Ok(())
}

/// A message of the log about a queue pair has its process. Earlier tests in these guests may have used up the messages of the
/// minute.
fn check_log(watched: &Watched<'_>) -> Result<()> {
    let limit = 2 * SHORT;
    until("a message of a failed queue pair in the log", limit, || {
        let output = watched
            .server
            .must("fault_policy & pid=$!; wait $pid; echo pid=$pid", limit)?;
        let pid = output.lines().last().context("a process id")?;
        let words = [
            "nic{name=nic0}:",
            "kind=\"qp_failed\"",
            pid,
            "program=\"fault_policy\"",
        ];
        Ok(watched.expect_log(&words, SHORT / 30).ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_in_one_bucket() {
        let buckets = [(1.0, 0), (2.0, 5), (4.0, 5), (f64::INFINITY, 10)];
        assert_eq!(bucket_of(&buckets, 500), (1.0, 2.0));
        assert_eq!(bucket_of(&buckets, 600), (4.0, f64::INFINITY));
        assert_eq!(bucket_of(&[(1.0, 3), (2.0, 3)], 990), (0.0, 1.0));
    }

    #[test]
    fn events_of_a_guest_are_read() {
        let text = "# tracer: nop\n  bash-1 [000] d.. 28.4: faultline_fault: 0000:00:03.0 token=0x2d va=0x7f bytes=9\n\
                    x-2 [000] ... 28.5: faultline_resume: 0000:00:03.0 token=0x2d status=0 wait_ns=3\n";
        let faults = guest_events(text, "fault").unwrap();
        assert_eq!(faults[&0x2d]["va"], 0x7f);
        assert_eq!(faults[&0x2d]["bytes"], 9);
        assert_eq!(guest_events(text, "resume").unwrap()[&0x2d]["wait_ns"], 3);
        assert!(guest_events(&text.repeat(2), "fault").is_err());
    }
}
