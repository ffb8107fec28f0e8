//! Stellar (SIGCOMM 2025): time to register memory against its size.

use anyhow::Result;

use crate::chart::{self, Line, Texts};
use crate::document::{Experiment, Picture, Table};
use crate::measured::{Measured, Place, REGION_SIZES, registration};
use crate::units::{time, times};

/// The paper's start-up: seconds, and TB.
const PUBLISHED: (f64, f64) = (390.0, 1.6);

/// The experiment.
///
/// # Errors
/// A figure is absent.
pub fn experiment(measured: &Measured) -> Result<Experiment> {
    let mut table = Table::new(
        "Registration of anonymous memory in a guest: medians",
        &[
            "Region",
            "pinned",
            "for each GiB",
            "on demand",
            "pinned / on demand",
        ],
    );
    let (mut pinned_line, mut on_demand_line) = (Vec::new(), Vec::new());
    let mut last = 0.0;
    for mib in REGION_SIZES {
        let [pinned, on_demand] =
            [false, true].map(|kind| measured.ns(Place::Guest, &registration(mib, kind)));
        let (pinned, on_demand) = (pinned?, on_demand?);
        pinned_line.push((f64::from(mib), pinned));
        on_demand_line.push((f64::from(mib), on_demand));
        last = pinned / f64::from(mib) * 1024.0;
        table.add([
            format!("{mib} MiB"),
            time(pinned),
            time(last),
            time(on_demand),
            times(pinned / on_demand),
        ]);
    }
    let (seconds, terabytes) = PUBLISHED;
    let each = seconds * 1e9 / (terabytes * 1e12 / f64::from(1 << 30));
    let mut beside = Table::new("Beside the paper", &["Figure", "Stellar", "here, guests"]);
    beside.add([
        "pinning 1 GiB".into(),
        format!("{} (390 s for 1.6 TB)", time(each)),
        format!("{} (from the largest region)", time(last)),
    ]);
    let first = on_demand_line.first().map_or(0.0, |point| point.1);
    let largest = on_demand_line.last().map_or(0.0, |point| point.1);
    beside.add([
        "on demand, 256 MiB against 1 MiB".into(),
        "independent of the size".into(),
        times(largest / first),
    ]);
    let lines = [
        Line {
            name: "pinned".to_owned(),
            points: pinned_line,
        },
        Line {
            name: "on demand".to_owned(),
            points: on_demand_line,
        },
    ];
    let texts = Texts {
        title: "Time to register a region in a guest",
        x: "MiB",
        y: "registration",
    };
    let pictures = match last.is_finite() {
        true => vec![Picture {
            file: "registration.svg",
            alt: "Time to register a region against its size, pinned and on demand",
            svg: chart::lines(texts, &lines, &|ns| time(ns))?,
        }],
        false => Vec::new(),
    };
    Ok(Experiment {
        title: "Start-up time against pinned memory (Stellar)",
        asked: "How does the time to register memory depend on its size?",
        published: "Stellar (SIGCOMM 2025): 390 s to pin 1.6 TB when a virtual machine starts; on-demand pinning removes this time from \
                    the start.",
        method: "Guests: `register_time` maps fresh anonymous memory with transparent huge pages off, registers it, and deregisters it, \
                 9 times for each size and kind; the registration alone is timed."
            .to_owned(),
        tables: vec![beside, table],
        pictures,
        differs: "Stellar pins a virtual machine's memory in the host's IOMMU (VFIO); here a process in a guest pins its pages. \
                  Both allocate, clear and pin each page. Pages are of 4 KiB and the guest's processor is emulated, so the time \
                  for each GiB is not comparable. An on-demand registration grows with the size, because the kernel's RDMA core \
                  allocates and clears a table with entries for each page. Sizes end at 256 MiB because the guests have 1 GiB. \
                  Pages of an on-demand region are paid for later, one fault each.",
    })
}
