//! The positions of the debate about pinned memory: what each costs for each message, and what each leaves to the kernel.

use anyhow::Result;

use crate::document::{Experiment, Table};
use crate::measured::{Measured, Place};
use crate::position_figures::{
    CHECK, KINDS, MESSAGES, POSITIONS, POSTING, REQUESTS, message, moved,
};
use crate::units::{digits, quantity, time, times};

fn size(kib: u32) -> String {
    match kib < 1024 {
        true => format!("{kib} KiB"),
        false => format!("{} MiB", kib / 1024),
    }
}

fn costs(measured: &Measured) -> Result<Table> {
    let sizes: Vec<String> = MESSAGES.iter().map(|kib| size(*kib)).collect();
    let mut columns = vec!["Position"];
    columns.extend(sizes.iter().map(String::as_str));
    let mut table = Table::new(
        "A message, from the look for its key to its completion: the time of the first position, and multiples of it",
        &columns,
    );
    let [pinned, ..] = POSITIONS;
    for position in POSITIONS {
        let mut cells = vec![position.to_owned()];
        for kib in MESSAGES {
            let base = measured.ns(Place::Guest, &message(kib, pinned))?;
            let ns = measured.ns(Place::Guest, &message(kib, position))?;
            cells.push(match position == pinned {
                true => time(ns),
                false => times(ns / base),
            });
        }
        table.add(cells);
    }
    Ok(table)
}

fn pages(measured: &Measured) -> Result<Table> {
    let mut columns = vec!["The kernel asks by"];
    columns.extend(KINDS);
    let mut table = Table::new(
        "Pages of 1024 that were reclaimed or moved, while requests wrote and read them",
        &columns,
    );
    for request in REQUESTS {
        let mut cells = vec![request.to_owned()];
        for kind in KINDS {
            let figure = measured.figure(Place::Guest, &moved(request, kind))?;
            cells.push(quantity(figure.value, "pages"));
        }
        table.add(cells);
    }
    Ok(table)
}

fn check(measured: &Measured) -> Result<Table> {
    let check = measured.ns(Place::Guest, CHECK)?;
    let posting = measured.ns(Place::Guest, POSTING)?;
    let mut table = Table::new(
        "The check of a cache with watch (`faultlinedv_watch_value()` and a comparison)",
        &["Figure", "Time"],
    );
    table.add(["check".to_owned(), time(check)]);
    table.add(["`ibv_post_send()` of 8 bytes".to_owned(), time(posting)]);
    table.add([
        "check / `ibv_post_send()`".to_owned(),
        match check.is_nan() {
            true => time(check),
            false => format!("{} %", digits(100.0 * check / posting)),
        },
    ]);
    Ok(table)
}

/// The experiment.
///
/// # Errors
/// A figure is absent.
pub fn experiment(measured: &Measured) -> Result<Experiment> {
    Ok(Experiment {
        title: "The cost of each position",
        asked: "What does a message cost in each position of the debate, what does the check of a registration cache add, and what does \
                registered memory leave to the kernel?",
        published: "The debate has positions and no measurements: the hardware that was argued about did not exist.",
        method: "Guest: `position_cost` writes from buffers to pinned memory of the same process, in all positions in turn, in pages of 4 KiB; \
                 the time that the fastest tenth of 31 to 101 messages keep to. Messages up to 256 KiB are posted by eight. Absent in the \
                 device: the process has the pages, and the device has lost its entries; one fault and read-ahead bring them, or \
                 `ibv_advise_mr()`, which is timed too. `pages_taken`: 4 MiB of each kind; each request of the kernel is repeated until it \
                 has moved on-demand memory, and the largest number counts. All data were right, and no request failed."
            .to_owned(),
        tables: vec![costs(measured)?, check(measured)?, pages(measured)?],
        pictures: Vec::new(),
        differs: "The guest's processor is emulated and the NIC's is not. So registrations and faults, which are work of the guest's kernel, \
                  are overstated against the copies of the NIC, and the multiples fall with the size of the message. Other programs ran on \
                  the machine: multiples between 0.6 and 1.4 are noise. 16 pages of each kind are taken out of service, one by one \
                  (MADV_SOFT_OFFLINE): the guests have no memory block without pages of the kernel, as hot-unplug needs. The collapse is \
                  khugepaged's, at a call of the process (MADV_COLLAPSE).",
    })
}
