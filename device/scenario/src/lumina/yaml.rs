//! Reads YAML into a tree in which each key and value has its place in the text.
//!
//! Not read: aliases, which could make a small file a large tree, and further documents.

use std::collections::HashSet;
use std::ops::Range;

use saphyr_parser::{Event, Parser, Span};

use crate::problem::Problem;

/// Deepest nesting.
const MAX_DEPTH: usize = 32;
/// Characters of a value that a message shows.
const SHOWN: usize = 40;

/// A value.
#[derive(Debug)]
pub(super) struct Node {
    /// Bytes of the text.
    pub(super) span: Range<usize>,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Scalar(String),
    Sequence(Vec<Node>),
    Mapping(Vec<(Key, Node)>),
}

/// A key of a mapping.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) span: Range<usize>,
}

impl Node {
    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// The value in a message.
    pub(super) fn shown(&self) -> String {
        match &self.value {
            Value::Scalar(text) => {
                let shown: String = text.chars().take(SHOWN).collect();
                let rest = if shown.len() < text.len() { " …" } else { "" };
                format!("{shown:?}{rest}")
            }
            Value::Sequence(_) => "a sequence".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }
}

/// A sequence or mapping that has begun.
struct Open {
    node: Node,
    /// A mapping's key that waits for its value.
    key: Option<Key>,
    /// Names of a mapping's keys. A search through the entries would make the time quadratic.
    names: HashSet<String>,
}

/// Reads the only document of a text.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let places = Places::new(text);
    let mut parser = Parser::new_from_str(text);
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let at = places.byte(error.marker().index());
            Problem::of_span(at..at, format!("the file is not YAML: {}", error.info()))
        })?;
        let span = places.range(span);
        let begun = |value| Open {
            node: Node {
                span: span.clone(),
                value,
            },
            key: None,
            names: HashSet::new(),
        };
        let done = match event {
            Event::Scalar(text, ..) => Some(begun(Value::Scalar(text.into_owned())).node),
            Event::SequenceStart(..) => {
                open.push(begun(Value::Sequence(Vec::new())));
                None
            }
            Event::MappingStart(..) => {
                open.push(begun(Value::Mapping(Vec::new())));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|open| open.node),
            Event::Alias(_) => {
                let message = "aliases are not read: write the value again";
                return Err(Problem::of_span(span, message));
            }
            Event::DocumentStart(_) if root.is_some() => {
                let message = "a second document begins: Lumina's files have one";
                return Err(Problem::of_span(span, message));
            }
            _ => None,
        };
        if open.len() > MAX_DEPTH {
            let message = format!("the nesting is deeper than {MAX_DEPTH} levels");
            return Err(Problem::of_span(span, message));
        }
        if let Some(node) = done {
            match open.last_mut() {
                None => root = Some(node),
                Some(parent) => parent.add(node)?,
            }
        }
    }
    root.ok_or_else(|| Problem::of_file("the file is empty"))
}

impl Open {
    fn add(&mut self, node: Node) -> Result<(), Problem> {
        match (&mut self.node.value, self.key.take()) {
            (Value::Sequence(values), _) => values.push(node),
            (Value::Mapping(entries), Some(key)) => entries.push((key, node)),
            (Value::Mapping(_), None) => {
                let Some(name) = node.text() else {
                    let message = format!("{} is no key: a key is a word", node.shown());
                    return Err(Problem::of_span(node.span, message));
                };
                if !self.names.insert(name.to_owned()) {
                    let message = format!("duplicate key {}", node.shown());
                    return Err(Problem::of_span(node.span, message));
                }
                self.key = Some(Key {
                    name: name.to_owned(),
                    span: node.span,
                });
            }
            (Value::Scalar(_), _) => {}
        }
        Ok(())
    }
}

/// Places of characters, which the parser counts, as bytes.
struct Places {
    /// Byte at which each character begins, and the end.
    starts: Vec<usize>,
}

impl Places {
    fn new(text: &str) -> Self {
        let starts = text.char_indices().map(|(at, _)| at);
        Self {
            starts: starts.chain([text.len()]).collect(),
        }
    }

    fn byte(&self, character: usize) -> usize {
        let end = self.starts.last().copied().unwrap_or_default();
        self.starts.get(character).copied().unwrap_or(end)
    }

    fn range(&self, span: Span) -> Range<usize> {
        let start = self.byte(span.start.index());
        start..self.byte(span.end.index()).max(start)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The shortest of a few times in which a text is parsed.
    fn time(text: &str) -> Duration {
        let once = || {
            let start = Instant::now();
            parse(text).map(drop).expect("it is YAML");
            start.elapsed()
        };
        (0..3).map(|_| once()).min().unwrap_or_default()
    }

    #[test]
    fn the_time_of_a_large_mapping_is_linear() {
        let largest = super::super::MAX_BYTES;
        let lines = |line: fn(usize) -> String| (0..largest / 9).map(line).collect::<String>();
        let keys = lines(|n| format!("{n:05}: a\n"));
        let values = lines(|n| format!("- {n:05}\n"));
        // With a search through the keys before, the mapping takes some hundred times as long as the sequence.
        let (keys, values) = (time(&keys), time(&values));
        assert!(
            keys < values * 20,
            "{keys:?} for keys, {values:?} for values"
        );
    }

    #[test]
    fn a_key_is_a_duplicate_in_its_own_mapping_only() {
        assert!(parse("a: { a: 1 }\nb: [ { a: 1 }, { a: 2 } ]\n").is_ok());
        assert!(parse("a: { b: 1, c: { d: 1 }, b: 2 }\n").is_err());
    }
}
