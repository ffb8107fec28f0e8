//! `docs/benchmark-results.md`: `cargo lab bench --counts --bless` writes its section on instructions, `cargo lab bench --docs` that on times.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::workspace::Workspace;

/// The page.
const PAGE: &str = "docs/benchmark-results.md";
const HEAD: &str = "# Benchmark results

`cargo lab bench --counts --bless` writes the section on instructions, `cargo lab bench --docs` that on times.
[Benchmarks](benchmarks.md) describes the commands.
";

/// A section of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Instructions for each operation.
    Instructions,
    /// Times, rates and bandwidths of one machine.
    Times,
}

impl Section {
    const ALL: [Self; 2] = [Self::Instructions, Self::Times];

    fn heading(self) -> &'static str {
        match self {
            Self::Instructions => "## Instructions",
            Self::Times => "## Times of one machine",
        }
    }

    /// Its text in a page, without the heading.
    fn of(self, page: &str) -> Option<&str> {
        let (_, rest) = page.split_once(&format!("{}\n", self.heading()))?;
        Some(rest.split("\n## ").next().unwrap_or(rest).trim())
    }
}

/// The page with another text in a section.
fn replaced(page: &str, section: Section, text: &str) -> String {
    let mut new = HEAD.to_owned();
    for each in Section::ALL {
        let text = match each == section {
            true => Some(text.trim()),
            false => each.of(page),
        };
        if let Some(text) = text {
            let _ = write!(new, "\n{}\n\n{text}\n", each.heading());
        }
    }
    new
}

/// Writes a section of the page.
pub fn write(workspace: &Workspace, section: Section, text: &str) -> Result<()> {
    let path = workspace.root().join(PAGE);
    let page = match path.exists() {
        true => fs::read_to_string(&path).with_context(|| format!("reading {PAGE}"))?,
        false => String::new(),
    };
    fs::write(&path, replaced(&page, section, text)).with_context(|| format!("writing {PAGE}"))
}

/// The table of instructions: name, operation, instructions and misses of the instruction cache of each shape.
pub fn instructions<'a>(
    compiler: &str,
    shapes: impl Iterator<Item = (&'a str, &'a str, f64, f64)>,
) -> String {
    let mut text = format!(
        "For each operation, with {compiler}.\n\n| Shape | Operation | Instructions | I1 misses |\n|---|---|---|---|\n"
    );
    for (name, operation, instructions, misses) in shapes {
        let _ = writeln!(
            text,
            "| `{name}` | {operation} | {instructions:.0} | {misses:.0} |"
        );
    }
    text
}

/// A figure, as the harness's benchmark writes it.
#[derive(Debug, Deserialize)]
struct Figure {
    name: String,
    value: f64,
    middle_half: Option<[f64; 2]>,
    unit: String,
    against: Option<String>,
    ratio: Option<f64>,
    wanted: Option<String>,
    met: Option<bool>,
}

/// The table of the figures in a file of the harness's benchmark.
pub fn times(figures: &Path, machine: &str) -> Result<String> {
    let text = fs::read(figures).with_context(|| format!("reading {}", figures.display()))?;
    let figures: Vec<Figure> = serde_json::from_slice(&text).context("figures of the benchmark")?;
    let mut text = format!(
        "{machine} Medians; in brackets the middle half of the values.\n\n| Figure | Result | Relative to | Target |\n|---|---|---|---|\n"
    );
    for figure in &figures {
        let middle = figure.middle_half.map_or_else(String::new, |[low, high]| {
            format!(" ({} to {})", number(low), number(high))
        });
        let relative = match (figure.ratio, &figure.against) {
            (Some(ratio), Some(against)) => format!("{} × {against}", number(ratio)),
            _ => String::new(),
        };
        let missed = if figure.met == Some(false) {
            " (missed)"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "| {} | {} {}{middle} | {relative} | {}{missed} |",
            figure.name,
            number(figure.value),
            figure.unit,
            figure.wanted.as_deref().unwrap_or_default(),
        );
    }
    Ok(text)
}

/// A number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The machine in words, with its load now.
pub fn machine() -> String {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let info = text("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, model)| model.trim());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = text("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or("unknown");
    format!("{processors} processors ({model}), load {load} at the start.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts;

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let first = replaced("", Section::Times, "fast\n");
        assert!(first.starts_with(HEAD) && first.ends_with("## Times of one machine\n\nfast\n"));
        let both = replaced(&first, Section::Instructions, "few");
        assert_eq!(Section::Times.of(&both), Some("fast"));
        let again = replaced(&both, Section::Instructions, "fewer");
        assert_eq!(Section::Instructions.of(&again), Some("fewer"));
        assert_eq!(Section::Times.of(&again), Some("fast"));
        assert_eq!(again.matches("## ").count(), 2);
    }

    #[test]
    fn figures_become_rows() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("figures.json");
        let figures = serde_json::json!([
            { "name": "copy", "value": 11.257, "middle_half": [10.0, 12.5], "unit": "GB/s", "against": null, "ratio": null,
              "wanted": null, "met": null },
            { "name": "WRITE", "value": 5.9, "middle_half": null, "unit": "GB/s", "against": "copy", "ratio": 0.5241,
              "wanted": ">= 0.7", "met": false },
        ]);
        fs::write(&file, figures.to_string()).unwrap();
        let text = times(&file, "A machine.").unwrap();
        let rows: Vec<&str> = text.lines().skip(4).collect();
        assert_eq!(
            rows,
            [
                "| copy | 11.3 GB/s (10.0 to 12.5) |  |  |",
                "| WRITE | 5.90 GB/s | 0.524 × copy | >= 0.7 (missed) |"
            ]
        );
    }

    #[test]
    fn the_page_has_the_instructions_of_the_baseline() {
        let workspace = Workspace::find().unwrap();
        let page = fs::read_to_string(workspace.root().join(PAGE)).unwrap();
        let table = Section::Instructions.of(&page).unwrap();
        let baseline = counts::instructions_of_baseline(&workspace).unwrap();
        for (name, instructions) in &baseline {
            let row = table
                .lines()
                .find(|row| row.contains(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("{PAGE} does not have {name}"));
            let found = row.contains(&format!("| {instructions:.0} |"));
            assert!(found, "{row}\nthe baseline says {instructions}");
        }
        let rows = table.lines().filter(|row| row.starts_with("| `")).count();
        assert_eq!(rows, baseline.len(), "rows that the baseline does not have");
    }
}
