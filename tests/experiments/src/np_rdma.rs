//! NP-RDMA (arXiv 2310.11062): what on-demand memory adds to a transfer.

use anyhow::Result;

use crate::document::{Experiment, Table};
use crate::measured::{Measured, Place};
use crate::simulated::Setup;
use crate::units::{time, times};

/// Added latency in nanoseconds of a profile: no fault, minor fault; and the pinned latency.
struct Added {
    pinned: f64,
    warm: f64,
    minor: f64,
}

fn scenario(op: &str, remote: &str, fresh: bool) -> String {
    format!(
        r#"
[[traffic]]
op = "{op}"
count = 64
depth = 1
gap = "5ms"
mtu = 4096
remote = "{remote}"
fresh_pages = {fresh}
"#
    )
}

fn added(profile: &'static str, op: &str) -> Result<Added> {
    let median = |remote, fresh| -> Result<f64> {
        Setup::new(profile, &scenario(op, remote, fresh))?
            .run()?
            .median(0)
    };
    let pinned = median("pinned", false)?;
    Ok(Added {
        pinned,
        warm: median("on_demand", false)? - pinned,
        minor: median("on_demand", true)? - pinned,
    })
}

/// How much longer minor faults of `connectx-like` take than those of `ideal`, for WRITE and READ.
fn ratios([ideal_write, ideal_read, connectx_write, connectx_read]: &[Added; 4]) -> Table {
    let mut table = Table::new(
        "Minor faults of an adapter with on-demand paging against faults that software serves",
        &["Ratio", "NP-RDMA", "WRITE", "READ"],
    );
    table.add([
        "adapter / NP-RDMA; here `connectx-like` / `ideal`".into(),
        "500 ×".into(),
        times(connectx_write.minor / ideal_write.minor),
        times(connectx_read.minor / ideal_read.minor),
    ]);
    table
}

/// The experiment.
///
/// # Errors
/// A simulation fails, or a figure is absent.
pub fn experiment(measured: &Measured) -> Result<Experiment> {
    let mut table = Table::new(
        "Added to a transfer of 4 KiB from or to pinned memory",
        &[
            "Case",
            "NP-RDMA",
            "`ideal` WRITE",
            "`ideal` READ",
            "`connectx-like` WRITE",
            "`connectx-like` READ",
            "socket, WRITE",
            "guests",
        ],
    );
    let kinds = [
        added("ideal", "write")?,
        added("ideal", "read")?,
        added("connectx-like", "write")?,
        added("connectx-like", "read")?,
    ];
    let row = |of: fn(&Added) -> String| {
        let [a, b, c, d] = &kinds;
        [of(a), of(b), of(c), of(d)]
    };
    let guest = |name: &str| measured.ns(Place::Guest, name);
    let warm = guest("WRITE, page present")?;
    let share = measured.ns(Place::Socket, "paging: the NIC's share of a fault")?;
    let rate = measured.figure(Place::Socket, "paging: rate of WRITEs, warm region")?;
    let ratio = rate.ratio.unwrap_or(f64::NAN);
    let mut add =
        |case: &str, published: &str, [a, b, c, d]: [String; 4], socket: String, guest| {
            table.add([
                case.to_owned(),
                published.to_owned(),
                a,
                b,
                c,
                d,
                socket,
                guest,
            ]);
        };
    let none = || "–".to_owned();
    add(
        "(pinned, the whole transfer)",
        "–",
        row(|k| time(k.pinned)),
        none(),
        none(),
    );
    let socket = format!("message rate against pinned memory: {}", times(ratio));
    add(
        "no fault",
        "0.1–2 µs",
        row(|k| time(k.warm)),
        socket,
        none(),
    );
    let socket = format!("{} in the NIC", time(share));
    let minor = guest("WRITE, page absent")? - warm;
    add(
        "minor fault",
        "3.5–5.7 µs",
        row(|k| time(k.minor)),
        socket,
        time(minor),
    );
    let major = guest("READ, page swapped out")? - warm;
    let row_of_none = [none(), none(), none(), none()];
    add(
        "major fault",
        "60 µs",
        row_of_none,
        none(),
        format!("{} (READ)", time(major)),
    );
    Ok(Experiment {
        title: "What on-demand memory adds (NP-RDMA)",
        asked: "What does a region whose pages are not pinned add to a transfer, with and without faults?",
        published: "NP-RDMA (arXiv 2310.11062): 0.1 to 2 µs without a fault, 3.5 to 5.7 µs with a minor fault, 60 µs with a major one; \
                    500 times faster than on-demand paging of adapters.",
        method: "Simulator: medians of 64 transfers of 4 KiB, one at a time; in a pinned region, in an on-demand region whose page is \
                 present, and each to an absent page. Socket: the NIC's share of a fault, and the rate of WRITEs to a warm on-demand \
                 region against a pinned one. Guests: `odp_story`, differences to WRITEs to present pages of the same region; the major \
                 fault is a READ of pages that are swapped out to compressed memory (zram)."
            .to_owned(),
        tables: vec![table, ratios(&kinds)],
        pictures: Vec::new(),
        differs: "NP-RDMA serves faults in software beside the adapter. `ideal` takes 4 µs, within the paper's range, for the \
                  driver's service, so its minor fault is no independent measurement; the socket's figure is. Guests have emulated \
                  processors. The simulator has no swap device; the guests' major fault reads compressed memory, NP-RDMA's an SSD. \
                  The ratio of 500 is between other adapters and other software.",
    })
}
