//! Experiments as text.

use std::fmt::Write;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Headings.
    pub columns: Vec<String>,
    /// Cells by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(caption: &str, columns: &[&str]) -> Self {
        Self {
            caption: caption.to_owned(),
            columns: columns.iter().map(|text| (*text).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn add(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    fn render(&self, to: &mut String) {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        to.push_str(&self.caption);
        to.push_str("\n\n");
        to.push_str(&line(&self.columns));
        to.push_str(&format!("{}|\n", "|---".repeat(self.columns.len())));
        for row in &self.rows {
            to.push_str(&line(row));
        }
        to.push('\n');
    }
}

/// A picture.
#[derive(Clone, Debug)]
pub struct Picture {
    /// File name.
    pub file: &'static str,
    /// What it shows.
    pub alt: &'static str,
    /// SVG.
    pub svg: String,
}

/// An experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Heading.
    pub title: &'static str,
    /// The question.
    pub asked: &'static str,
    /// What was published, and where.
    pub published: &'static str,
    /// How it was measured.
    pub method: String,
    /// Figures.
    pub tables: Vec<Table>,
    /// Pictures of them.
    pub pictures: Vec<Picture>,
    /// What differs or can't be compared, and why.
    pub differs: &'static str,
}

/// Where pictures are, below `docs`.
pub const PICTURES: &str = "images/experiments";

const HEAD: &str = "<!-- Made by `cargo lab experiments`. Do not edit: change tests/experiments. -->

# Experiments

Published figures about RDMA without pinned memory, beside those of this NIC. One command makes this page and its pictures:

    cargo lab experiments

It measures at the emulator's socket and in two guests, runs the simulations, and takes less than 20 minutes on two processors without
hardware virtualization. `cargo lab experiments --simulator` repeats only the simulations, in a minute.

| Place | What runs | What its times are |
|---|---|---|
| simulator | two simulated hosts with the NIC's firmware, a driver and a pager | virtual: the same on each machine. The wire takes 1 µs and has no limit of bandwidth; the service of a fault and the latency of hardware are those of the [profile](page-faults.md#settings-of-a-nic); the firmware takes no time |
| socket | the emulator, and a driver in another process at its vfio-user socket (`cargo lab bench`) | of this machine, without a guest |
| guests | two Debian guests with the Linux driver, under TCG: QEMU emulates their processors | of this machine; the guest's own code is slower than on hardware |

The simulator's figures are compared exactly with this page by a test (`cargo test -p faultline-experiments`). The others are in
`experiments.json`; the test checks their names and units, and that this page has them. Figures of a place where nothing was measured
yet are shown as \"not measured\".

";

/// The document. `machine` is where its figures were measured.
pub fn render(experiments: &[Experiment], machine: &str) -> String {
    let mut text = HEAD.to_owned();
    // Writing to a string does not fail.
    let _ = writeln!(text, "Measured on: {machine}.\n");
    for experiment in experiments {
        let Experiment {
            title,
            asked,
            published,
            method,
            tables,
            pictures,
            differs,
        } = experiment;
        let _ = write!(
            text,
            "## {title}\n\n**Asked.** {asked}\n\n**Published.** {published}\n\n**Measured.** {method}\n\n"
        );
        for table in tables {
            table.render(&mut text);
        }
        for Picture { file, alt, .. } in pictures {
            let _ = writeln!(text, "![{alt}]({PICTURES}/{file})\n");
        }
        let _ = writeln!(text, "**What differs.** {differs}\n");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
