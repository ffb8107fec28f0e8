//! Reads scenario files.

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::file::Scenario;
use crate::plan::Plan;
use crate::problem::{Path, Problem, Problems};
use crate::whole::read_part;

/// Largest file.
pub const MAX_BYTES: usize = 1 << 20;
/// Most rules of a file.
pub const MAX_RULES: usize = 64;
/// Most actions at times of a file.
pub const MAX_TIMED: usize = 64;
/// Most expectations of a file.
pub const MAX_EXPECTATIONS: usize = 256;
/// Most tables of traffic of a file.
pub const MAX_TRAFFIC: usize = 64;

/// Reads the text of a scenario file. `name` is the file's, for messages. Names of opcodes, events and so on are checked by
/// [`Scenario::plan`].
pub fn read(name: &str, text: &str) -> Result<Scenario, Problems> {
    read_text(text).map_err(|problems| Problems::new(name, text, problems))
}

/// Reads the text of a scenario file and checks it for a process with these NICs and no ports.
pub fn load(name: &str, text: &str, nics: &[String]) -> Result<(Scenario, Plan), Problems> {
    let wrong = |problems| Problems::new(name, text, problems);
    let scenario = read_text(text).map_err(wrong)?;
    let plan = scenario.plan(nics, &[]).map_err(wrong)?;
    Ok((scenario, plan))
}

fn read_text(text: &str) -> Result<Scenario, Vec<Problem>> {
    if text.len() > MAX_BYTES {
        return Err(vec![Problem::of_file(format!(
            "the file has {} bytes, at most {MAX_BYTES} are allowed",
            text.len()
        ))]);
    }
    let mut table = DeTable::parse(text).map_err(|error| vec![Problem::of_toml(text, &error)])?;
    let whole = table.get_ref().clone();
    let mut problems = Vec::new();
    let root = table.get_mut();
    // Each element is read on its own, so that one wrong element does not hide the others.
    let traffic = take_all(&whole, root, "traffic", MAX_TRAFFIC, &mut problems);
    let rules = take_all(&whole, root, "rule", MAX_RULES, &mut problems);
    let timed = take_all(&whole, root, "at", MAX_TIMED, &mut problems);
    let expectations = take_all(&whole, root, "expect", MAX_EXPECTATIONS, &mut problems);
    let rest = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
    match read_part(&whole, rest, |problem| problem) {
        Ok(scenario) if problems.is_empty() => Ok(Scenario {
            traffic,
            rules,
            timed,
            expectations,
            ..scenario
        }),
        Ok(_) => Err(problems),
        Err(further) => {
            problems.extend(further);
            Err(problems)
        }
    }
}

/// Takes an array of tables out of the document and reads its elements.
fn take_all<T: DeserializeOwned>(
    whole: &DeTable<'_>,
    root: &mut DeTable<'_>,
    key: &'static str,
    most: usize,
    problems: &mut Vec<Problem>,
) -> Vec<T> {
    let Some(value) = root.remove(key) else {
        return Vec::new();
    };
    let path = Path::root().key(key);
    let DeValue::Array(elements) = value.into_inner() else {
        let message = format!("an array of tables is expected: write `[[{key}]]` above each");
        problems.push(Problem::of_key(path, message));
        return Vec::new();
    };
    if elements.len() > most {
        let message = format!(
            "the file has {} tables `[[{key}]]`, at most {most} are allowed",
            elements.len()
        );
        problems.push(Problem::of_value(path.index(most), message));
        return Vec::new();
    }
    let mut read = Vec::new();
    for element in elements {
        match read_part(whole, element, |problem| problem) {
            Ok(value) => read.push(value),
            Err(further) => problems.extend(further),
        }
    }
    read
}
