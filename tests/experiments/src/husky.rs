//! Husky (NSDI 2023): what a victim loses beside an attacker.

use anyhow::Result;
use faultline_nic::Nanos;

use crate::chart::{self, Scale, Texts};
use crate::document::{Experiment, Picture, Table};
use crate::simulated::Setup;
use crate::units::time;

const PROFILES: [&str; 3] = ["ideal", "connectx-like", "memfree-hca"];

/// What the victim has beside it.
struct Attack {
    name: &'static str,
    /// In the picture.
    short: &'static str,
    traffic: &'static str,
}

const VICTIM: &str = r#"
[[traffic]]
name = "victim"
op = "write"
size = 512
count = 2000
depth = 16
timeout = 20
"#;

const ATTACKS: [Attack; 8] = [
    Attack {
        name: "another traffic like the victim's (a fair share, no attack)",
        short: "fair share",
        traffic: r#"
[[traffic]]
size = 512
count = 2000
depth = 16
op = "write"
"#,
    },
    Attack {
        name: "PU-RNR: 64 connections whose receiver is not ready",
        short: "PU-RNR",
        traffic: r#"
[[traffic]]
op = "send"
size = 64
count = 8
depth = 8
connections = 64
receives = 1
receive_delay = "500us"
min_rnr_timer = 1
"#,
    },
    Attack {
        name: "512 connections with regions of their own, 512 B",
        short: "512 QPs",
        traffic: r#"
[[traffic]]
size = 512
count = 8
depth = 1
connections = 512
op = "write"
"#,
    },
    Attack {
        name: "2048 connections with regions of their own, 512 B",
        short: "2048 QPs",
        traffic: r#"
[[traffic]]
size = 512
count = 2
depth = 1
connections = 2048
op = "write"
"#,
    },
    Attack {
        name: "16 connections, 128 B",
        short: "128 B",
        traffic: r#"
[[traffic]]
size = 128
mtu = 256
count = 200
depth = 16
connections = 16
op = "write"
"#,
    },
    Attack {
        name: "16 connections, 129 B",
        short: "129 B",
        traffic: r#"
[[traffic]]
size = 129
mtu = 256
count = 200
depth = 16
connections = 16
op = "write"
"#,
    },
    Attack {
        name: "16 connections, 256 B",
        short: "256 B",
        traffic: r#"
[[traffic]]
size = 256
mtu = 256
count = 200
depth = 16
connections = 16
op = "write"
"#,
    },
    Attack {
        name: "16 connections, 257 B",
        short: "257 B",
        traffic: r#"
[[traffic]]
size = 257
mtu = 256
count = 200
depth = 16
connections = 16
op = "write"
"#,
    },
];

/// A victim and 8 attackers whose rates are fixed, as in `tests/scenarios/husky_sizes.toml`: with 128 and 256 bytes the attackers leave the
/// victim the time that it needs.
fn paced(sizes: [u32; 2]) -> String {
    let mut text = r#"
[[traffic]]
name = "victim"
op = "write"
size = 64
count = 500
gap = "2us"
timeout = 20
"#
    .to_owned();
    for size in sizes {
        text += &format!(
            "[[traffic]]\nop = \"write\"\nsize = {size}\nmtu = 256\ncount = 400\nconnections = 4\ngap = \"9us\"\ntimeout = 20\n"
        );
    }
    text
}

/// The victim's loss beside attackers by size, without and with units of payload.
fn sizes() -> Result<Table> {
    let mut table = Table::new(
        "The same for 500 WRITEs of 64 bytes, one every 2 µs, beside 4 connections for each size of the attackers, with a message every \
         9 µs. Nothing but units of payload takes time: 0.5 µs each",
        &["Attackers", "no units", "units of 128 bytes"],
    );
    for sizes in [[128, 256], [129, 257]] {
        let [first, second] = sizes;
        let none = Setup::new("ideal", &paced(sizes))?;
        let units = none.clone().change(|config| {
            config.latency.payload_unit = 128;
            config.latency.payload_unit_time = Nanos(500);
        });
        let [none, units] = [none, units].map(|setup| loss(&setup).map(shown));
        table.add([format!("{first} B and {second} B"), none?, units?]);
    }
    Ok(table)
}

/// A loss in a table.
fn shown((loss, alone, beside): (f64, f64, f64)) -> String {
    let percent = loss * 100.0;
    format!("{percent:.1} % ({} → {})", time(alone), time(beside))
}

/// Share of the victim's throughput that it loses, and its times alone and beside the others.
fn loss(setup: &Setup) -> Result<(f64, f64, f64)> {
    let beside = setup.run()?.took(0)?;
    let alone = setup.clone().alone(0).run()?.took(0)?;
    Ok((1.0 - alone / beside, alone, beside))
}

/// The experiment.
///
/// # Errors
/// A simulation fails.
pub fn experiment() -> Result<Experiment> {
    let mut table = Table::new(
        "The victim's loss of throughput: 2000 WRITEs of 512 bytes, 16 outstanding, beside each attacker",
        &["Attacker", "`ideal`", "`connectx-like`", "`memfree-hca`"],
    );
    let mut series: Vec<(String, Vec<f64>)> = PROFILES.map(|p| (p.to_owned(), Vec::new())).into();
    for attack in &ATTACKS {
        let mut cells = Vec::new();
        for (profile, (_, values)) in PROFILES.into_iter().zip(&mut series) {
            let scenario = format!("{VICTIM}{}", attack.traffic);
            let found = loss(&Setup::new(profile, &scenario)?)?;
            values.push(found.0.max(0.0) * 100.0);
            cells.push(shown(found));
        }
        let [a, b, c] = cells.try_into().unwrap_or_default();
        table.add([attack.name.to_owned(), a, b, c]);
    }
    let texts = Texts {
        title: "Loss of a victim's throughput beside an attacker (simulator)",
        x: "attacker",
        y: "%",
    };
    let groups: Vec<String> = ATTACKS
        .iter()
        .map(|attack| attack.short.to_owned())
        .collect();
    let svg = chart::bars(texts, &groups, &series, Scale::Linear)?;
    Ok(Experiment {
        title: "Isolation (Husky)",
        asked: "How much throughput does a victim lose beside an attacker that uses up a resource within the NIC?",
        published: "X. Kong et al., \"Understanding RDMA Microarchitecture Resources for Performance Isolation\" (Husky), NSDI 2023: \
                    attackers use up caches (4096 regions of 1 KiB; accesses of 512 bytes in 4096 and of 1 MiB in 1024 of them), units \
                    of processing (requests to a receiver that is not ready, PU-RNR) and pipelines (messages of 129 and 257 bytes). No \
                    isolation that the authors tried on adapters of three vendors withstands all attackers.",
        method: "Simulator: the time of the victim's traffic alone and beside each attacker, which begins at the same time. The loss is \
                 the share of throughput that is missing. The first row is no attack: another traffic like the victim's shows what \
                 sharing costs by itself. The profiles `connectx-like` and `memfree-hca` have caches for the state of 1024 and 64 queue \
                 pairs."
            .to_owned(),
        tables: vec![table, sizes()?],
        pictures: vec![Picture {
            file: "victims.svg",
            alt: "Loss of the victim's throughput, by attacker and profile",
            svg,
        }],
        differs: "The structure of the paper's adapters is not published, so its numbers have no counterpart. The model has one \
                  pipeline with a cost for each doorbell, work request, cache miss of a queue pair and miss in the page tables. \
                  Attackers by number of queue pairs and by RNR work as in the paper. Attackers by size need a NIC with units of \
                  payload (`payload_unit`), whose size and cost the second table assumes; none of the three profiles has them. \
                  Keys are not cached, so the attack with registrations alone has no effect. With `ideal` the loss is 0 by \
                  construction. The emulator divides its time among the queue pairs of all NICs of an engine: \
                  [threat-model.md](threat-model.md).",
    })
}
