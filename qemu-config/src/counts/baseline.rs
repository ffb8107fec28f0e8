//! The counts of an earlier version, and the comparison with them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Growth beyond which a comparison fails. Two runs of one build differ by less than a sixth of it.
pub const MOST_GROWTH: f64 = 0.003;
/// Decrease beyond which a new baseline is due, so that a later loss of the gain is noticed.
pub const MOST_DECREASE: f64 = 0.01;
/// Share of a shape's instructions from which on a function is in the baseline.
const LEAST_SHARE: f64 = 0.005;
/// Functions that a failure names.
const NAMED: usize = 8;

/// The counts of a shape, for each operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Instructions, without those of the C library.
    pub instructions: f64,
    /// Misses of the first-level instruction cache.
    pub i1_misses: f64,
    /// Octets that the C library has copied or set.
    pub copied: f64,
    /// Instructions of the rest of the C library.
    pub library: f64,
    /// Instructions by function.
    pub functions: BTreeMap<String, f64>,
}

impl Shape {
    /// The functions that are in the baseline.
    fn shortened(&self) -> Self {
        let least = self.instructions * LEAST_SHARE;
        let functions = self.functions.iter().filter(|(_, n)| **n >= least);
        Self {
            functions: functions.map(|(name, n)| (name.clone(), *n)).collect(),
            ..*self
        }
    }

    /// The functions that have grown most since the baseline, with the counts before and now. A function that is not in the
    /// baseline had less than its least share.
    fn grown(&self, before: &Self) -> Vec<String> {
        let least = before.instructions * LEAST_SHARE;
        let mut grown: Vec<(f64, String)> = Vec::new();
        for (name, now) in &self.functions {
            match before.functions.get(name) {
                Some(was) => grown.push((now - was, format!("{name}: {was:.1} -> {now:.1}"))),
                None => grown.push((
                    now - least,
                    format!("{name}: less than {least:.1} -> {now:.1}"),
                )),
            }
        }
        grown.retain(|(growth, _)| *growth >= 0.05);
        grown.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        grown
            .into_iter()
            .take(NAMED)
            .map(|(_, text)| text)
            .collect()
    }
}

/// The result of a comparison.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// As the baseline, or little else.
    Same,
    /// More instructions: the functions that have grown.
    Grown(Vec<String>),
    /// Fewer instructions.
    Decreased,
    /// The baseline does not have the shape.
    New,
}

/// The counts of all shapes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// The compiler that built the program, and its host. Another one makes other code.
    pub compiler: String,
    /// By name.
    pub shapes: BTreeMap<String, Shape>,
}

impl Baseline {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("reading {}", path.display()))
    }

    /// Writes the file, with the functions that matter.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = format!(
            "# Instructions of each operation of tests/counts, and of its functions.\n\
             # Written by `cargo lab bench --counts --bless`.\n\n{}",
            self.text()
        );
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    fn text(&self) -> String {
        let mut text = format!("compiler = {:?}\n", self.compiler);
        for (name, shape) in &self.shapes {
            let shape = shape.shortened();
            text += &format!(
                "\n[shapes.{name}]\ninstructions = {:.2}\ni1_misses = {:.2}\ncopied = {:.1}\nlibrary = {:.2}\n\n\
                 [shapes.{name}.functions]\n",
                shape.instructions, shape.i1_misses, shape.copied, shape.library
            );
            for (function, instructions) in &shape.functions {
                text += &format!(
                    "{} = {instructions:.2}\n",
                    toml::Value::from(function.as_str())
                );
            }
        }
        text
    }

    /// Compares the counts of a shape with those of the baseline.
    pub fn compare(&self, name: &str, now: &Shape) -> Verdict {
        let Some(before) = self.shapes.get(name) else {
            return Verdict::New;
        };
        let change = change(before, now);
        match () {
            () if change > MOST_GROWTH => Verdict::Grown(now.grown(before)),
            () if change < -MOST_DECREASE => Verdict::Decreased,
            () => Verdict::Same,
        }
    }
}

/// The growth of the instructions, as a share.
pub fn change(before: &Shape, now: &Shape) -> f64 {
    now.instructions / before.instructions - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(functions: &[(&str, f64)]) -> Shape {
        Shape {
            instructions: functions.iter().map(|(_, n)| n).sum(),
            functions: functions
                .iter()
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect(),
            ..Shape::default()
        }
    }

    fn baseline() -> Baseline {
        let usual = shape(&[("a::<[u8; 4]>", 600.0), ("b \"x\"", 399.0), ("small", 1.0)]);
        Baseline {
            compiler: "rustc 1".to_owned(),
            shapes: [("usual".to_owned(), usual)].into(),
        }
    }

    #[test]
    fn growth_beyond_the_limit_names_the_functions() {
        let compare = |functions: &[(&str, f64)]| baseline().compare("usual", &shape(functions));
        let same = compare(&[("a::<[u8; 4]>", 602.9), ("b \"x\"", 399.0), ("small", 1.0)]);
        assert_eq!(same, Verdict::Same);
        let grown = compare(&[("a::<[u8; 4]>", 603.2), ("b \"x\"", 398.0), ("new", 30.0)]);
        let names = ["new: less than 5.0 -> 30.0", "a::<[u8; 4]>: 600.0 -> 603.2"];
        assert_eq!(grown, Verdict::Grown(names.map(str::to_owned).into()));
    }

    #[test]
    fn a_decrease_asks_for_a_new_baseline() {
        let compare = |n: f64| baseline().compare("usual", &shape(&[("a::<[u8; 4]>", n)]));
        assert_eq!(compare(991.0), Verdict::Same);
        assert_eq!(compare(989.0), Verdict::Decreased);
        assert_eq!(baseline().compare("other", &shape(&[])), Verdict::New);
    }

    #[test]
    fn the_file_has_the_functions_that_matter() {
        let file = tempfile::NamedTempFile::new().unwrap();
        baseline().write(file.path()).unwrap();
        let read = Baseline::read(file.path()).unwrap();
        let mut want = baseline();
        want.shapes
            .get_mut("usual")
            .unwrap()
            .functions
            .remove("small");
        assert_eq!(read, want);
    }
}
