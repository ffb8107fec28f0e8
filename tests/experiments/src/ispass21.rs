//! "Pitfalls of InfiniBand with On-Demand Paging" (ISPASS 2021): damming and flood.

use anyhow::Result;
use faultline_nic::{NicConfig, Pitfalls};

use crate::asplos17;
use crate::chart::{self, Line, Texts};
use crate::document::{Experiment, Picture, Table};
use crate::simulated::{Run, Setup};
use crate::units::{time, times};

/// The paper's slow-down against a fault in the common case.
const PUBLISHED: &str = "10³–10⁴ ×";
/// Queue pairs at a time.
const QUEUE_PAIRS: [u32; 5] = [1, 4, 16, 64, 128];
/// Codes of the ACK timeout: 67 ms and 1.07 s (4.096 µs × 2^N).
const TIMEOUTS: [u8; 2] = [14, 18];

/// A kind of NIC.
struct Kind {
    name: &'static str,
    profile: &'static str,
    change: fn(&mut NicConfig),
}

const WITH: Kind = Kind {
    name: "`connectx-like`",
    profile: "connectx-like",
    change: |_| {},
};
const WITHOUT: Kind = Kind {
    name: "`connectx-like` without pitfalls",
    profile: "connectx-like",
    change: |config| config.pitfalls = Pitfalls::default(),
};
const IDEAL: Kind = Kind {
    name: "`ideal`",
    profile: "ideal",
    change: |_| {},
};

fn run(kind: &Kind, scenario: &str) -> Result<Run> {
    Setup::new(kind.profile, scenario)?
        .change(kind.change)
        .run()
}

/// Two READs on each queue pair. The second one is posted while the requester waits for its RNR timer.
fn dammed(queue_pairs: u32, timeout: u8) -> String {
    format!(
        r#"
[[traffic]]
op = "read"
count = 2
depth = 2
gap = "300us"
remote = "on_demand"
fresh_pages = true
connections = {queue_pairs}
timeout = {timeout}
"#
    )
}

fn damming_table() -> Result<(Table, Vec<Line>)> {
    let mut table = Table::new(
        "The longest READ, from posting to completion",
        &[
            "ACK timeout",
            "queue pairs",
            "ACK timeouts",
            "`connectx-like`",
            "without pitfalls",
            "`ideal`",
            "`connectx-like` / without pitfalls",
            "`connectx-like` / fault of 220 µs",
            "published",
        ],
    );
    let mut lines = Vec::new();
    for timeout in TIMEOUTS {
        let limit = time(4096.0 * f64::from(timeout).exp2());
        let mut points: [Vec<(f64, f64)>; 3] = Default::default();
        for queue_pairs in QUEUE_PAIRS {
            let scenario = dammed(queue_pairs, timeout);
            let runs = [
                run(&WITH, &scenario)?,
                run(&WITHOUT, &scenario)?,
                run(&IDEAL, &scenario)?,
            ];
            let timeouts = runs[0].counter(0, "local_ack_timeout_err")?;
            let longest = [
                runs[0].longest(0)?,
                runs[1].longest(0)?,
                runs[2].longest(0)?,
            ];
            for (points, longest) in points.iter_mut().zip(longest) {
                points.push((f64::from(queue_pairs), longest));
            }
            let [with, without, ideal] = longest;
            table.add([
                limit.clone(),
                queue_pairs.to_string(),
                timeouts.to_string(),
                time(with),
                time(without),
                time(ideal),
                times(with / without),
                times(with / asplos17::PUBLISHED),
                PUBLISHED.to_owned(),
            ]);
        }
        let [with, without, ideal] = points;
        lines.push(Line {
            name: format!("connectx-like, ACK timeout {limit}"),
            points: with,
        });
        if timeout == TIMEOUTS[0] {
            for (kind, points) in [(WITHOUT, without), (IDEAL, ideal)] {
                let name = kind.name.replace('`', "");
                lines.push(Line { name, points });
            }
        }
    }
    Ok((table, lines))
}

/// Damming.
///
/// # Errors
/// A simulation fails.
pub fn damming() -> Result<Experiment> {
    let (table, lines) = damming_table()?;
    let texts = Texts {
        title: "Packet damming: two READs of absent pages on each queue pair",
        x: "queue pairs",
        y: "longest READ",
    };
    let svg = chart::lines(texts, &lines, &|ns| time(ns))?;
    Ok(Experiment {
        title: "Packet damming (ISPASS 2021)",
        asked: "What does a request cost that is posted while its queue pair waits for an absent page?",
        published: "T. Fukuoka, S. Sato and K. Taura, \"Pitfalls of InfiniBand with On-Demand Paging\", ISPASS 2021: such requests are lost \
                    until the transport timeout; the latency is 3 to 4 orders of magnitude longer than that of a page fault in the common \
                    case. The paper also has curves by interval, number of queue pairs and adapter; only its abstract could be \
                    consulted, so only this range is compared.",
        method: "Simulator: two READs of absent pages of the responder on each queue pair. The second one is posted 300 µs after the first, \
                 while the requester waits for its RNR timer. With the pitfall it is lost until the ACK timeout; two \
                 codes of the timeout are compared (14 and 18)."
            .to_owned(),
        tables: vec![table],
        pictures: vec![Picture {
            file: "damming.svg",
            alt: "The longest READ against the number of queue pairs, with and without the pitfall",
            svg,
        }],
        differs: "The pitfall is imitated: the NIC loses exactly these requests, and the ACK timeout determines the cost: 2 to 3 \
                  orders of magnitude with code 14, the paper's 3 to 4 with code 18. Queue pairs wait at the same time, so their \
                  number matters little. Without its pitfalls `connectx-like` costs its wait after an RNR NAK. \
                  `tests/scenarios/damming.toml` and `no_damming.toml` are regression tests, in the simulator and between guests \
                  (`cargo lab test scenarios`).",
    })
}

/// READs into absent memory, one on each queue pair, beside a traffic between pinned regions.
fn flooded(queue_pairs: u32, service: &str) -> String {
    format!(
        r#"
[simulator]
page_frames = 1024
fault_service = "{service}"
[[traffic]]
op = "read"
count = 1
local = "on_demand"
connections = {queue_pairs}
[[traffic]]
op = "write"
size = 512
count = 500
depth = 16
"#
    )
}

/// Times of a fault's service: as published for a minor fault, and longer.
const SERVICES: [&str; 3] = ["220us", "2ms", "20ms"];

fn flood_table() -> Result<(Table, Vec<Line>)> {
    let mut table = Table::new(
        "READs into absent pages, one on each queue pair, and 500 WRITEs of 512 bytes between pinned regions beside them",
        &[
            "service of a fault",
            "queue pairs",
            "READ requests sent, `connectx-like`",
            "without pitfalls",
            "until all READs have completed, `connectx-like`",
            "without pitfalls",
            "slow-down",
            "slow-down of the WRITEs",
        ],
    );
    let mut lines = Vec::new();
    for service in SERVICES {
        let mut points = Vec::new();
        for queue_pairs in QUEUE_PAIRS {
            let scenario = flooded(queue_pairs, service);
            let (with, without) = (run(&WITH, &scenario)?, run(&WITHOUT, &scenario)?);
            let requests = with.sent(0, "rc_read_request");
            points.push((f64::from(queue_pairs), requests as f64));
            table.add([
                service.replace("us", " µs").replace("ms", " ms"),
                queue_pairs.to_string(),
                requests.to_string(),
                without.sent(0, "rc_read_request").to_string(),
                time(with.took(0)?),
                time(without.took(0)?),
                times(with.took(0)? / without.took(0)?),
                times(with.took(1)? / without.took(1)?),
            ]);
        }
        let service = service.replace("us", " µs").replace("ms", " ms");
        let name = format!("connectx-like, fault of {service}");
        lines.push(Line { name, points });
    }
    let name = "without pitfalls, any fault".to_owned();
    let points = QUEUE_PAIRS.map(|n| (f64::from(n), f64::from(n))).to_vec();
    lines.push(Line { name, points });
    Ok((table, lines))
}

/// Flood.
///
/// # Errors
/// A simulation fails.
pub fn flood() -> Result<Experiment> {
    let (table, lines) = flood_table()?;
    let texts = Texts {
        title: "Packet flood: a READ into an absent page on each queue pair",
        x: "queue pairs",
        y: "READ requests sent",
    };
    let svg = chart::lines(texts, &lines, &|count| format!("{count:.0}"))?;
    Ok(Experiment {
        title: "Packet flood (ISPASS 2021)",
        asked: "What do READs cost whose landing buffers are absent, on many queue pairs?",
        published: "The same paper: the requester sends the READs again and again until the pages are present; with many queue pairs the \
                    latency is 3 to 4 orders of magnitude longer than that of a page fault in the common case.",
        method: "Simulator: one READ on each queue pair into an absent page of the requester. READ requests are counted at the \
                 requester's port. 500 WRITEs on another connection, which needs no absent page, show what bystanders lose."
            .to_owned(),
        tables: vec![table],
        pictures: vec![Picture {
            file: "flood.svg",
            alt: "READ requests sent against the number of queue pairs, for three durations of a fault",
            svg,
        }],
        differs: "The packets of the flood are reproduced, the paper's latency is not: it depends on the adapter's handling of the \
                  flood, which is not published. Here the driver serves a fault in the same time whether or not packets arrive, \
                  and the wire has no limit of bandwidth; the flood takes time of the NIC's pipeline, which delays bystanders. \
                  Without the setting each READ is sent once, when its page is present.",
    })
}
