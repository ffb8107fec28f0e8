//! "Page Fault Support for Network Controllers" (ASPLOS 2017): the cost of a minor fault, and its parts.

use anyhow::{Context, Result};

use crate::chart::{self, Scale, Texts};
use crate::document::{Experiment, Picture, Table};
use crate::measured::{Measured, Place};
use faultline_simulation::FaultTimes;

use crate::simulated::Setup;
use crate::units::{median, quantity, time};

/// The paper's minor fault in nanoseconds, and the NIC's share of it.
pub const PUBLISHED: f64 = 220_000.0;
const PUBLISHED_IN_NIC: f64 = 0.9;

const SCENARIO: &str = r#"
[[traffic]]
op = "write"
count = 64
depth = 1
gap = "5ms"
mtu = 4096
remote = "on_demand"
fresh_pages = true
"#;

/// When a message was posted, and when its completion was read.
type Message = (u64, u64);

/// Medians in nanoseconds of the parts of a fault, in their order, and of the message.
struct Parts {
    before: f64,
    service: f64,
    data: f64,
    completion: f64,
    message: f64,
}

fn simulated(profile: &'static str) -> Result<Parts> {
    let run = Setup::new(profile, SCENARIO)?.run()?;
    let completions = run.results.completions.iter();
    let messages: Vec<Message> = completions
        .filter_map(|completion| Some((completion.posted?.0, completion.completed.0)))
        .collect();
    let pairs: Vec<(Message, FaultTimes)> = messages.into_iter().zip(run.results.faults).collect();
    let of = |part: &dyn Fn(&(Message, FaultTimes)) -> u64| {
        let values: Vec<f64> = pairs.iter().map(|pair| part(pair) as f64).collect();
        median(&values).context("no fault")
    };
    Ok(Parts {
        before: of(&|((posted, _), fault)| fault.raised.saturating_sub(*posted))?,
        service: of(&|(_, fault)| fault.resumed.saturating_sub(fault.raised))?,
        data: of(&|(_, fault)| fault.done.saturating_sub(fault.resumed))?,
        completion: of(&|((_, completed), fault)| completed.saturating_sub(fault.done))?,
        message: of(&|((posted, completed), _)| completed.saturating_sub(*posted))?,
    })
}

fn split(measured: &Measured) -> Result<(Table, String)> {
    let (ideal, published) = (simulated("ideal")?, simulated("connectx-like")?);
    let stage = |name: &str| measured.ns(Place::Guest, &format!("fault stage {name}"));
    let socket = |name: &str| measured.ns(Place::Socket, &format!("paging: {name}"));
    let mut table = Table::new(
        "Parts of a WRITE of 4 KiB to an absent page of the responder: medians (guests: means of each stage)",
        &[
            "Part",
            "who",
            "`ideal`, simulator",
            "`connectx-like`, simulator",
            "socket",
            "guests",
        ],
    );
    let none = || "–".to_owned();
    let mut add = |part: &str, by: &str, [a, b]: [f64; 2], socket: Option<f64>, guest: String| {
        let socket = socket.map_or_else(none, time);
        table.add([
            part.to_owned(),
            by.to_owned(),
            time(a),
            time(b),
            socket,
            guest,
        ]);
    };
    let to_record = socket("WRITE posted to fault record")?;
    let to_data = socket("resume to data")?;
    let before = [ideal.before, published.before];
    add(
        "posted until the access meets the absent page",
        "NIC",
        before,
        Some(to_record),
        none(),
    );
    let driver: Vec<f64> = ["interrupt", "wait", "map", "post"]
        .map(stage)
        .into_iter()
        .collect::<Result<_>>()?;
    let guest = format!(
        "{} (interrupt {}, wait {}, map {}, answer {})",
        time(driver.iter().sum()),
        time(driver[0]),
        time(driver[1]),
        time(driver[2]),
        time(driver[3])
    );
    let service = [ideal.service, published.service];
    add(
        "raised until the driver has answered",
        "driver",
        service,
        None,
        guest,
    );
    let data = [ideal.data, published.data];
    add(
        "answered until the data are in memory",
        "NIC, peer",
        data,
        Some(to_data),
        time(stage("data")?),
    );
    let completion = [ideal.completion, published.completion];
    add(
        "until the completion is read",
        "NIC",
        completion,
        None,
        none(),
    );
    let message = [ideal.message, published.message];
    let share = socket("the NIC's share of a fault")?;
    let guest = measured.ns(Place::Guest, "WRITE, page absent")?;
    add("the whole message", "", message, Some(share), time(guest));
    let groups = ["ideal", "connectx-like"].map(str::to_owned);
    let series = [
        ("until the fault", before),
        ("driver's service", service),
        ("answer to data", data),
        ("completion", completion),
    ]
    .map(|(name, values)| (name.to_owned(), values.map(|ns| ns / 1e3).to_vec()));
    let texts = Texts {
        title: "Parts of a WRITE to an absent page (simulator)",
        x: "profile",
        y: "µs",
    };
    Ok((
        table,
        chart::bars(texts, &groups, &series, Scale::LogarithmicFrom(0.1))?,
    ))
}

/// The experiment.
///
/// # Errors
/// A simulation fails, or a figure is absent.
pub fn experiment(measured: &Measured) -> Result<Experiment> {
    let (table, svg) = split(measured)?;
    let share = measured.ns(Place::Socket, "paging: the NIC's share of a fault")?;
    let whole = measured.ns(Place::Guest, "WRITE, page absent")?;
    let mut beside = Table::new(
        "Beside the paper",
        &["Figure", "ASPLOS 2017", "here", "place"],
    );
    beside.add([
        "cost of a minor fault".into(),
        format!("about {}", time(PUBLISHED)),
        time(whole),
        "guests".into(),
    ]);
    beside.add([
        "of it in the NIC".into(),
        format!(
            "about {} ({:.0} %)",
            time(PUBLISHED * PUBLISHED_IN_NIC),
            PUBLISHED_IN_NIC * 100.0
        ),
        format!("{} ({})", time(share), quantity(share / whole * 100.0, "%")),
        "NIC: socket; whole: guests".into(),
    ]);
    Ok(Experiment {
        title: "The cost of a page fault (ASPLOS 2017)",
        asked: "How long does a transfer to an absent page take, and where does the time go?",
        published: "I. Lesokhin et al., \"Page Fault Support for Network Controllers\", ASPLOS 2017: a minor fault takes about 220 µs on \
                    hardware of the time, about 90 % of it in the NIC.",
        method: "Simulator: 64 WRITEs of 4 KiB, each to an absent page, one at a time. The parts are divided at the fault's events \
                 (raised, answered, carried out). Socket: the driver of the benchmark answers each fault; its own work between the record \
                 and the answer is left out, so that the sum is the NIC's share. Guests: `odp_story` writes 4096 pages; the stages are \
                 the means of `faultline_fault_stage_seconds` over the whole program, its READs of swapped-out pages included."
            .to_owned(),
        tables: vec![beside, table],
        pictures: vec![Picture {
            file: "fault-parts.svg",
            alt: "Parts of a WRITE to an absent page in the simulator, for the profiles ideal and connectx-like",
            svg,
        }],
        differs: "The paper's adapters and processors are older. `connectx-like` takes the paper's sum as the time from the record \
                  to the answer (`fault_service`), so it reproduces the sum and not the division between NIC and driver. It also \
                  waits longer after an RNR NAK than its timer says (`rnr_wait_percent`), which the paper does not count; `ideal` \
                  has READY instead. Guests have emulated processors: only the ratio between the NIC and the rest is meaningful.",
    })
}
