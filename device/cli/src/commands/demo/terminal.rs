//! Stories in a terminal of 80 columns.

use std::fmt::Write;

use super::rows::{Mark, Row, Shape, time};
use super::story::Told;
use crate::commands::print as print_bytes;

/// Columns of the time at the left.
const TIME: usize = 11;
/// Columns between the two lines of the hosts.
const BETWEEN: usize = 66;

/// Next steps for a reader.
const NEXT: &str = "\
Change a story:   faultline demo lost-ack --scenario > mine.toml
                  faultline scenario run -v mine.toml
With pictures:    faultline demo --html story.html
";

/// Prints stories.
pub(super) fn print(told: &[Told], coloured: bool) -> anyhow::Result<()> {
    print_bytes(text_of(told, coloured).as_bytes())
}

/// The text of stories.
pub(super) fn text_of(told: &[Told], coloured: bool) -> String {
    let mut text = String::new();
    for told in told {
        let title = paint(&told.title, "1", coloured);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{title}  ({})\n", told.name);
        let _ = writeln!(
            text,
            "{:TIME$}nic0{:>width$}",
            "",
            "nic1",
            width = BETWEEN.saturating_sub(2)
        );
        for row in &told.rows {
            text += &line_of(row, coloured);
        }
        text.push('\n');
        for line in &told.summary {
            let _ = writeln!(text, "{line}");
        }
        text.push('\n');
    }
    text + NEXT
}

fn paint(text: &str, code: &str, coloured: bool) -> String {
    match coloured && !code.is_empty() {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// The colour of a step (ECMA-48, select graphic rendition).
fn code(mark: Mark) -> &'static str {
    match mark {
        Mark::Plain => "",
        Mark::Post => "1",
        Mark::Fault => "33",
        Mark::Good => "32",
        Mark::RnrNak => "35",
        Mark::Again => "36",
        Mark::Bad => "31",
    }
}

/// The sign of a step at a host.
fn sign(mark: Mark) -> char {
    match mark {
        Mark::Post => '▸',
        Mark::Fault => '◆',
        Mark::Good => '●',
        Mark::Bad => '✗',
        Mark::Plain | Mark::RnrNak | Mark::Again => '○',
    }
}

/// A line of the picture.
fn line_of(row: &Row, coloured: bool) -> String {
    let sign = sign(row.mark);
    let (left, middle, right) = match &row.shape {
        Shape::Arrow { from, lost } => arrow(&row.text, *from == 0, lost.as_deref()),
        Shape::Note { host: 0 } => ('│', format!(" {sign} {}", row.text), '│'),
        Shape::Note { .. } => (
            '│',
            format!("{:>BETWEEN$}", format!("{} {sign} ", row.text)),
            '│',
        ),
        Shape::Gap => (
            '┊',
            format!("{:^BETWEEN$}", format!("{} later", row.text)),
            '┊',
        ),
    };
    let at = match row.shape {
        Shape::Gap => String::new(),
        _ => time(row.at),
    };
    let at = format!("{at:>width$} ", width = TIME.saturating_sub(1));
    let middle = paint(&format!("{middle:<BETWEEN$}"), code(row.mark), coloured);
    format!("{at}{left}{middle}{right}\n")
}

/// A packet: from left to right, or back.
fn arrow(text: &str, to_right: bool, lost: Option<&str>) -> (char, String, char) {
    let label = format!(" {text} ");
    let why = lost.map(|why| format!(" {why} ")).unwrap_or_default();
    let used = label.chars().count().saturating_add(why.chars().count());
    let line = "─".repeat(BETWEEN.saturating_sub(used).saturating_sub(3));
    match (to_right, lost.is_some()) {
        (true, false) => ('├', format!("─{label}{line}─▶"), '│'),
        (true, true) => ('├', format!("─{label}{line}─✗{why}"), '│'),
        (false, false) => ('│', format!("◀─{line}{label}─"), '┤'),
        (false, true) => ('│', format!("{why}✗─{line}{label}─"), '┤'),
    }
}
