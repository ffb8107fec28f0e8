//! Problems and warnings of a file, and reading of values of the right kind.

use std::ops::Range as Span;

use super::yaml::{Key, Node, Value};
use crate::problem::{Path, Problem};
use crate::value::Range;

/// Problems and warnings of a file.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

impl Report {
    /// Something that has no equivalent.
    pub(super) fn warn(&mut self, path: Path, key: &Key, node: &Node, message: &str) {
        let shown = match &node.value {
            Value::Scalar { .. } => format!("{}: {message}", node.shown()),
            _ => message.to_owned(),
        };
        let mut problem = Problem::of_span(key.span.clone(), shown);
        problem.path = path;
        self.warnings.push(problem);
    }

    /// Something wrong.
    pub(super) fn wrong(&mut self, path: Path, span: &Span<usize>, message: impl Into<String>) {
        let mut problem = Problem::of_span(span.clone(), message);
        problem.path = path;
        self.problems.push(problem);
    }

    pub(super) fn missing(&mut self, table: &Table<'_>, key: &str) {
        let message = format!("missing key `{key}`");
        self.wrong(table.path.clone(), &table.span, message);
    }

    /// The node as a table.
    pub(super) fn table<'a>(&mut self, path: Path, node: &'a Node) -> Option<Table<'a>> {
        match &node.value {
            Value::Mapping(entries) => {
                let span = entries
                    .first()
                    .map_or(node.span.clone(), |(key, _)| key.span.clone());
                Some(Table {
                    path,
                    entries,
                    span,
                })
            }
            _ => {
                let message = format!("{}: a mapping of keys to values is expected", node.shown());
                self.wrong(path, &node.span, message);
                None
            }
        }
    }

    /// Refuses keys that are not in `allowed`.
    pub(super) fn only(&mut self, table: &Table<'_>, allowed: &[&str]) {
        for (key, node) in table.entries {
            if !allowed.contains(&key.name.as_str()) {
                let message = format!(
                    "unknown key with the value {}: expected one of `{}`",
                    node.shown(),
                    allowed.join("`, `")
                );
                let mut problem = Problem::of_span(key.span.clone(), message)
                    .with_suggestion(&key.name, allowed.iter().copied());
                problem.path = table.path.key(&key.name);
                self.problems.push(problem);
            }
        }
    }

    /// A number that must be there, unless there is a default.
    pub(super) fn number(
        &mut self,
        table: &Table<'_>,
        key: &str,
        default: Option<u64>,
        allowed: Range,
    ) -> Option<u64> {
        let Some(node) = table.get(key) else {
            if default.is_none() {
                self.missing(table, key);
            }
            return default;
        };
        self.number_of(table.path.key(key), node, allowed)
    }

    pub(super) fn number_of(&mut self, path: Path, node: &Node, allowed: Range) -> Option<u64> {
        let value = node.text().and_then(|text| text.trim().parse::<u64>().ok());
        let value = value.filter(|value| allowed.contains(*value));
        if value.is_none() {
            let message = format!(
                "{}: a number from {} to {} is expected",
                node.shown(),
                allowed.first,
                allowed.last
            );
            self.wrong(path, &node.span, message);
        }
        value
    }

    /// One of several names; letters of either case are the same.
    pub(super) fn name<T: Copy>(
        &mut self,
        table: &Table<'_>,
        key: &str,
        names: &[(&str, T)],
    ) -> Option<T> {
        let Some(node) = table.get(key) else {
            self.missing(table, key);
            return None;
        };
        let text = node.text().unwrap_or_default().trim().to_lowercase();
        let found = names.iter().find(|(name, _)| *name == text);
        if found.is_none() {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            let message = format!("{}: expected one of `{}`", node.shown(), known.join("`, `"));
            let mut problem =
                Problem::of_span(node.span.clone(), message).with_suggestion(&text, known);
            problem.path = table.path.key(key);
            self.problems.push(problem);
        }
        found.map(|(_, value)| *value)
    }
}

/// A mapping and its path.
pub(super) struct Table<'a> {
    pub(super) path: Path,
    pub(super) entries: &'a [(Key, Node)],
    /// Place of a missing key: at the first key.
    pub(super) span: Span<usize>,
}

impl<'a> Table<'a> {
    pub(super) fn entry(&self, name: &str) -> Option<&'a (Key, Node)> {
        self.entries.iter().find(|(key, _)| key.name == name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Node> {
        self.entry(name).map(|(_, node)| node)
    }
}
