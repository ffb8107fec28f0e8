//! The figures of the debate's rows.

use anyhow::{Context, Result, bail, ensure};
use faultline_nic::{FaultPolicy, Nanos, NicConfig, ReadyMode};

use crate::measured::{Measured, Place};
use crate::simulated::{Run, Setup};
use crate::units::{digits, quantity, time, times};

/// Times of a fault's service.
const SERVICES: [&str; 4] = ["4us", "50us", "500us", "5ms"];

/// WRITEs to absent pages, one at a time.
fn absent(policy: &str, service: &str) -> String {
    format!(
        r#"
[simulator]
fault_service = "{service}"
[[traffic]]
op = "write"
count = 32
depth = 1
mtu = 4096
remote = "on_demand"
fresh_pages = true
fault_policy = "{policy}"
timeout = 14
"#
    )
}

fn shown(measured: &Measured, place: Place, name: &str) -> Result<String> {
    let figure = measured.figure(place, name)?;
    Ok(quantity(figure.value, &figure.unit))
}

pub(super) fn taken_back(measured: &Measured) -> Result<String> {
    let text = r#"
[simulator]
page_frames = 16
[[traffic]]
op = "write"
count = 400
depth = 4
remote = "on_demand"
fresh_pages = true
size = 2048
"#;
    let run = Setup::new("ideal", text)?.run()?;
    let traffic = run.traffic(0)?;
    let invalidations = run.counter(1, "page_invalidations")?;
    let pinned = shown(measured, Place::Guest, "pages pinned")?;
    let wrong = shown(measured, Place::Guest, "wrong bytes")?;
    Ok(format!(
        "{} messages right, {} wrong, {invalidations} pages invalidated meanwhile; guests: {pinned} pinned, {wrong} wrong",
        traffic.done, traffic.wrong
    )
    .replace("pages pinned", "pages pinned by the region"))
}

pub(super) fn pinned_only(_: &Measured) -> Result<String> {
    let on_demand = Setup::new("pinned-only", &absent("rnr", "4us"))?;
    let Err(refused) = on_demand.run_any() else {
        bail!("an adapter without paging has registered an on-demand region")
    };
    let pinned = absent("rnr", "4us").replace("on_demand", "pinned");
    let run = Setup::new("pinned-only", &pinned)?.run()?;
    Ok(format!(
        "\"{refused}\" (EOPNOTSUPP in guests); pinned: {} messages, {}",
        run.traffic(0)?.done,
        time(run.median(0)?)
    ))
}

pub(super) fn from_absent_pages(_: &Measured) -> Result<String> {
    let mut parts = Vec::new();
    for op in ["send", "write", "read"] {
        let text = format!(
            "[[traffic]]\nop = \"{op}\"\ncount = 64\ndepth = 1\nlocal = \"on_demand\"\nremote = \"on_demand\"\nfresh_pages = true\n"
        );
        let run = Setup::new("ideal", &text)?.run()?;
        let faults = run.counter(0, "page_faults")? + run.counter(1, "page_faults")?;
        let done = run.traffic(0)?.done;
        parts.push(format!("{op}: {done} of 64, {faults} faults"));
    }
    Ok(parts.join("; "))
}

pub(super) fn look_ups(_: &Measured) -> Result<String> {
    let text = absent("rnr", "4us")
        .replace("on_demand", "pinned")
        .replace("count = 32", "count = 256");
    type LookUp = (u64, fn(&mut NicConfig));
    let kinds: [LookUp; 3] = [
        (0, |config| config.lookup = Nanos(0)),
        (500, |config| config.lookup = Nanos(500)),
        (2000, |config| config.lookup = Nanos(2000)),
    ];
    let mut parts = Vec::new();
    let mut misses = 0;
    for (ns, change) in kinds {
        let run = Setup::new("ideal", &text)?.change(change).run()?;
        misses = run.counter(0, "tlb_misses")? + run.counter(1, "tlb_misses")?;
        parts.push(format!("{}: {}", time(ns as f64), time(run.median(0)?)));
    }
    let list = parts.join(", ");
    Ok(format!("{list}; {misses} misses for 256 WRITEs"))
}

pub(super) fn sparse_region(measured: &Measured) -> Result<String> {
    let name = "paging: device memory, 1 GiB of 1 TiB touched";
    let figure = measured.figure(Place::Socket, name)?;
    if figure.value.is_nan() {
        return Ok(quantity(figure.value, "%"));
    }
    let memory = figure.value / 100.0 * f64::from(1 << 30) / 1024.0;
    Ok(format!(
        "{} KiB: {} % of the touched memory",
        digits(memory),
        digits(figure.value)
    ))
}

pub(super) fn policies(_: &Measured) -> Result<String> {
    let mut parts = Vec::new();
    for policy in FaultPolicy::ALL.map(FaultPolicy::name) {
        let setup = Setup::new("ideal", &absent(policy, "4us"))?;
        let run = setup.run_any()?;
        let traffic = run.traffic(0)?;
        if traffic.done == 0 {
            let status = run.results.completions.first().map(|c| c.status);
            let status = status.context("no completion")?;
            parts.push(format!("{policy}: fails with status {status}"));
            continue;
        }
        let without = setup
            .change(|config| config.ready = ReadyMode::Never)
            .run()?;
        let (with, without) = (time(run.median(0)?), time(without.median(0)?));
        parts.push(format!("{policy}: {with}, without READY {without}"));
    }
    Ok(parts.join("; "))
}

/// A traffic in pinned memory beside a connection whose faults have a policy.
fn beside(policy: &str, simulator: &str) -> Result<Setup> {
    let text = format!(
        r#"
[simulator]
{simulator}
[[traffic]]
op = "write"
count = 2000
depth = 4
gap = "10us"
[[traffic]]
op = "write"
count = 4
depth = 1
remote = "on_demand"
fresh_pages = true
fault_policy = "{policy}"
timeout = 20
"#
    );
    Setup::new("ideal", &text)
}

pub(super) fn neighbours(_: &Measured) -> Result<String> {
    let mut parts = Vec::new();
    for policy in ["rnr", "stall"] {
        let setup = beside(policy, "fault_service = \"5ms\"")?;
        let together = setup.run()?.took(0)?;
        let alone = setup.alone(0).run()?.took(0)?;
        parts.push(format!("{policy}: neighbour {}", times(together / alone)));
    }
    let stuck: Run = beside("stall", "faults = \"ignore\"\nfault_queue = 64")?.run_any()?;
    let found = stuck.counter(1, "stall_timeouts")?;
    ensure!(found > 0, "a stall that can't end was not found");
    let longest = time(stuck.longest(0)?);
    parts.push(format!(
        "unserved fault under stall: found {found} times, neighbour held up for {longest}"
    ));
    Ok(parts.join("; "))
}

pub(super) fn ready(_: &Measured) -> Result<String> {
    let mut parts = Vec::new();
    for service in SERVICES {
        let setup = Setup::new("ideal", &absent("rnr", service))?;
        let with = setup.clone().run()?.median(0)?;
        let without = setup
            .change(|config| config.ready = ReadyMode::Never)
            .run()?
            .median(0)?;
        let service = service.replace("us", " µs").replace("ms", " ms");
        parts.push(format!(
            "fault of {service}: {} with, {} without",
            time(with),
            time(without)
        ));
    }
    Ok(parts.join("; "))
}

pub(super) fn larger_than_memory(_: &Measured) -> Result<String> {
    let mut parts = Vec::new();
    for op in ["write", "read"] {
        let text = format!(
            "[simulator]\npage_frames = 32\n[[traffic]]\nop = \"{op}\"\ncount = 320\ndepth = 2\nremote = \"on_demand\"\nfresh_pages = true\n"
        );
        let run = Setup::new("ideal", &text)?.run()?;
        let traffic = run.traffic(0)?;
        parts.push(format!(
            "{op}: {} pages through 32 frames, {} wrong",
            traffic.done, traffic.wrong
        ));
    }
    Ok(parts.join("; "))
}

pub(super) fn locked(measured: &Measured) -> Result<String> {
    let pinned = shown(
        measured,
        Place::Guest,
        "VmPin of a pinned region of 256 MiB",
    )?;
    let on_demand = shown(
        measured,
        Place::Guest,
        "VmPin of an on-demand region of 256 MiB",
    )?;
    let figure = measured.figure(Place::Guest, "on-demand region beyond RLIMIT_MEMLOCK")?;
    if figure.value.is_nan() {
        return Ok(pinned);
    }
    ensure!(figure.value == 1.0, "the on-demand region was refused");
    Ok(format!(
        "pinned {pinned}, on demand {on_demand}; beyond the limit: pinned ENOMEM, on demand registered"
    ))
}

/// Two connections; `second` describes the second one.
fn pair(simulator: &str, second: &str) -> Result<Run> {
    let text = format!(
        "[simulator]\n{simulator}\n[[traffic]]\nop = \"write\"\ncount = 500\ngap = \"2us\"\n\
         [[traffic]]\nop = \"write\"\ncount = 50\ndepth = 1\n{second}\n"
    );
    Setup::new("ideal", &text)?.run_any()
}

pub(super) fn lost_memory(_: &Measured) -> Result<String> {
    let run = pair("faults = \"fail\"", "remote = \"on_demand\"")?;
    outcome(&run)
}

pub(super) fn failed_queue_pair(_: &Measured) -> Result<String> {
    outcome(&pair("", "deregister = \"20us\"")?)
}

fn outcome(run: &Run) -> Result<String> {
    let (other, own) = (run.traffic(0)?, run.traffic(1)?);
    ensure!(own.failed > 0 && other.failed == 0, "{own:?} {other:?}");
    Ok(format!(
        "it: {} of 50 complete, then errors; the other: {} of 500, {} failed",
        own.done, other.done, other.failed
    ))
}

pub(super) fn invalidation(measured: &Measured) -> Result<String> {
    let [idle, saturated] = ["idle", "saturated"].map(|state| {
        let name = format!("keys: invalidation, {state} device, median");
        measured.ns(Place::Socket, &name)
    });
    Ok(format!(
        "idle {}, saturated {} (medians)",
        time(idle?),
        time(saturated?)
    ))
}

pub(super) fn warm(measured: &Measured) -> Result<String> {
    let ratio = |name: &str| -> Result<String> {
        let figure = measured.figure(Place::Socket, name)?;
        Ok(times(figure.ratio.unwrap_or(f64::NAN)))
    };
    Ok(format!(
        "bandwidth {}, message rate {}",
        ratio("paging: bandwidth, warm region")?,
        ratio("paging: rate of WRITEs, warm region")?
    ))
}
