//! Problems of TOML files: the place, the value, and the allowed values.
//!
//! This module knows no key of any file. Scenarios, profiles and the daemon's configuration use the same words and the
//! same drawing.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::suggestion;

/// Problems of a file that are drawn. Further ones are counted.
const MAX_DRAWN: usize = 50;

/// A place in a TOML document, such as `rule[2].on.iter`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<Step>);

/// A step from a table or an array to one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

impl Path {
    /// The top-level table.
    pub fn root() -> Self {
        Self::default()
    }

    /// A key of this table.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.to_owned()))
    }

    /// An element of this array, from 0.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    /// The table or array of the last step.
    pub(crate) fn parent(&self) -> Option<Self> {
        let (_, steps) = self.0.split_last()?;
        Some(Self(steps.to_vec()))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if index == 0 => write!(f, "{key}")?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// The place of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// The file as a whole.
    File,
    /// Bytes of the text.
    Span(Range<usize>),
    /// The last key of the path.
    Key,
    /// The value at the path.
    Value,
}

/// Something that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where; empty in the top-level table, and where the text is not TOML.
    pub path: Path,
    /// The problem, with the value, and the allowed values.
    pub message: String,
    /// A name that is close to the wrong one.
    pub suggestion: Option<String>,
    place: Place,
}

impl Problem {
    /// Something about the whole file.
    pub fn of_file(message: impl Into<String>) -> Self {
        Self::new(Path::root(), message, Place::File)
    }

    /// A key that must not be there.
    pub fn of_key(path: Path, message: impl Into<String>) -> Self {
        Self::new(path, message, Place::Key)
    }

    /// A wrong value.
    pub fn of_value(path: Path, message: impl Into<String>) -> Self {
        Self::new(path, message, Place::Value)
    }

    /// Bytes of the text.
    pub fn of_span(span: Range<usize>, message: impl Into<String>) -> Self {
        Self::new(Path::root(), message, Place::Span(span))
    }

    fn new(path: Path, message: impl Into<String>, place: Place) -> Self {
        Self {
            path,
            message: message.into(),
            suggestion: None,
            place,
        }
    }

    /// With a suggestion, if `given` is close to one of the names that are allowed.
    #[must_use]
    pub fn with_suggestion<'a>(
        mut self,
        given: &str,
        allowed: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        self.suggestion = suggestion::closest(given, allowed).map(str::to_owned);
        self
    }

    /// Byte at which it begins, if that is known without the document.
    pub(crate) fn start(&self) -> usize {
        match &self.place {
            Place::Span(span) => span.start,
            _ => 0,
        }
    }

    /// An error of the TOML parser, or of a type that is read from TOML. `text` is the whole document.
    pub fn of_toml(text: &str, error: &toml::de::Error) -> Self {
        let table = DeTable::parse(text);
        let mut problem = match &table {
            Ok(table) => return Self::of_type(table.get_ref(), error),
            Err(_) => Self::of_type(&DeTable::new(), error),
        };
        // A second value for a key is not TOML: it is in no table.
        if error.message() == "duplicate key"
            && let Some(key) = error.span().and_then(|span| text.get(span))
        {
            problem.path = Path::root().key(key);
        }
        problem
    }

    /// An error of a type that is read from a document.
    pub(crate) fn of_type(table: &DeTable<'_>, error: &toml::de::Error) -> Self {
        let span = error.span().unwrap_or_default();
        let message = words(error.message());
        Self {
            path: path_in_table(table, &span).unwrap_or_default(),
            suggestion: suggestion_in(&message),
            message,
            place: Place::Span(span),
        }
    }

    /// Bytes of the text that the problem is about; `None`: the file as a whole.
    pub fn span(&self, text: &str) -> Option<Range<usize>> {
        match &self.place {
            Place::File => None,
            Place::Span(span) => Some(span.clone()),
            Place::Key | Place::Value => {
                let table = DeTable::parse(text).ok()?;
                Some(self.span_in(table.get_ref()))
            }
        }
    }

    /// As [`Problem::span`], in a document that has been parsed.
    pub(crate) fn span_in(&self, table: &DeTable<'_>) -> Range<usize> {
        match &self.place {
            Place::File => 0..0,
            Place::Span(span) => span.clone(),
            Place::Key => span_of_path(table, &self.path.0, true),
            Place::Value => span_of_path(table, &self.path.0, false),
        }
    }
}

/// Line and column of a byte of the text, both counted from 1; columns are characters.
pub fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let last_line = before.rsplit('\n').next().unwrap_or_default();
    (
        before.matches('\n').count().saturating_add(1),
        last_line.chars().count().saturating_add(1),
    )
}

/// Problems of a file, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    name: String,
    text: String,
    problems: Vec<Problem>,
    /// They are warnings: a part of the file was left out.
    are_warnings: bool,
}

impl Problems {
    /// Warnings about a file: as [`Problems::new`], and drawn as warnings.
    pub fn warnings(name: &str, text: &str, problems: Vec<Problem>) -> Self {
        Self {
            are_warnings: true,
            ..Self::new(name, text, problems)
        }
    }

    /// Problems of the file with this name and text. They are ordered by their place.
    pub fn new(name: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        if let Ok(table) = DeTable::parse(text) {
            problems.sort_by_key(|problem| problem.span_in(table.get_ref()).start);
        }
        Self {
            name: name.to_owned(),
            text: text.to_owned(),
            problems,
            are_warnings: false,
        }
    }

    /// The problems, in the order of the text.
    pub fn list(&self) -> &[Problem] {
        &self.problems
    }

    /// Draws each problem with its source line. `styled`: with colours, for a terminal.
    pub fn draw(&self, styled: bool) -> String {
        let renderer = match styled {
            true => Renderer::styled(),
            false => Renderer::plain(),
        };
        let table = DeTable::parse(&self.text).ok();
        let span = |problem: &Problem| match (&problem.place, &table) {
            (Place::File, _) => None,
            (Place::Span(span), _) => Some(span.clone()),
            (_, Some(table)) => Some(problem.span_in(table.get_ref())),
            (_, None) => None,
        };
        let drawn = self.problems.iter().take(MAX_DRAWN);
        let mut parts: Vec<String> = drawn
            .map(|problem| self.draw_one(&renderer, problem, span(problem)))
            .collect();
        if let Some(more) = self
            .problems
            .len()
            .checked_sub(MAX_DRAWN)
            .filter(|n| *n > 0)
        {
            let (level, what) = match self.are_warnings {
                true => ("warning", "warnings"),
                false => ("error", "problems"),
            };
            parts.push(format!("{level}: {}: {more} more {what}", self.name));
        }
        parts.join("\n\n")
    }

    fn draw_one(
        &self,
        renderer: &Renderer,
        problem: &Problem,
        span: Option<Range<usize>>,
    ) -> String {
        let level = match self.are_warnings {
            true => Level::WARNING,
            false => Level::ERROR,
        };
        let path = problem.path.to_string();
        let title = match path.as_str() {
            "" => problem.message.clone(),
            path => format!("{path}: {}", problem.message),
        };
        let suggestion = problem.suggestion.as_ref();
        let label = suggestion.map(|name| format!("did you mean `{name}`?"));
        let Some(span) = span else {
            let title = format!("{}: {title}", self.name);
            return renderer.render(&[Group::with_title(level.primary_title(title))]);
        };
        // Only the line at which the problem begins, so that neither a long value nor a long file matters.
        let (line, line_start, in_line) = first_line(&self.text, span);
        let mark = AnnotationKind::Primary.span(in_line).label(label);
        let snippet = Snippet::source(line)
            .line_start(line_start)
            .path(&self.name)
            .annotation(mark);
        renderer.render(&[level.primary_title(title).element(snippet)])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(false))
    }
}

impl std::error::Error for Problems {}

/// The line at which `span` begins, its number, and the part of `span` that is in it.
fn first_line(text: &str, span: Range<usize>) -> (&str, usize, Range<usize>) {
    let (before, from) = text
        .split_at_checked(span.start)
        .unwrap_or((text, Default::default()));
    let start = before.rfind('\n').map_or(0, |at| at.saturating_add(1));
    let rest = from.split('\n').next().unwrap_or_default().len();
    let end = before.len().saturating_add(rest);
    let line = text.get(start..end).unwrap_or_default();
    let line = line.strip_suffix('\r').unwrap_or(line);
    let first = before.len().saturating_sub(start).min(line.len());
    let last = span.end.saturating_sub(start).min(line.len());
    let number = before.matches('\n').count().saturating_add(1);
    (line, number, first..last.max(first))
}

/// Path of the innermost key of a table whose key or value is at `span`. `None`: the table itself.
fn path_in_table(table: &DeTable<'_>, span: &Range<usize>) -> Option<Path> {
    table.iter().find_map(|(key, value)| {
        let mut path = match contains(&key.span(), span) {
            true => Some(path_in_value(value.get_ref(), span).unwrap_or_default()),
            false => path_to(value, span),
        };
        if let Some(path) = &mut path {
            path.0.insert(0, Step::Key(key.get_ref().to_string()));
        }
        path
    })
}

/// The rest of the path behind the key of a value.
fn path_in_value(value: &DeValue<'_>, span: &Range<usize>) -> Option<Path> {
    match value {
        DeValue::Table(table) => path_in_table(table, span),
        DeValue::Array(array) => array.iter().enumerate().find_map(|(index, element)| {
            let mut path = path_to(element, span)?;
            path.0.insert(0, Step::Index(index));
            Some(path)
        }),
        _ => None,
    }
}

/// As [`path_in_value`]; empty if `span` is at the value itself, `None` if it is not within it. The span of a table is that of its
/// header: its keys are beyond it.
fn path_to(value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> Option<Path> {
    let inner = path_in_value(value.get_ref(), span);
    inner.or_else(|| contains(&value.span(), span).then(Path::root))
}

pub(crate) fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Span of the value at a path, or of its key. Where the document ends before the path does (the value is a default), that of the
/// innermost table that exists.
fn span_of_path(table: &DeTable<'_>, steps: &[Step], wants_key: bool) -> Range<usize> {
    let mut span = 0..0;
    let mut here: Option<&DeValue<'_>> = None;
    for (index, step) in steps.iter().enumerate() {
        let table = match (index, here) {
            (0, _) => Some(table),
            (_, Some(DeValue::Table(table))) => Some(table),
            _ => None,
        };
        let is_last = index.saturating_add(1) == steps.len();
        match step {
            Step::Key(key) => {
                let Some((key, value)) = table.and_then(|table| table.get_key_value(key.as_str()))
                else {
                    return span;
                };
                span = match is_last && wants_key {
                    true => key.span(),
                    false => value.span(),
                };
                here = Some(value.get_ref());
            }
            Step::Index(index) => {
                let Some(DeValue::Array(array)) = here else {
                    return span;
                };
                let Some(element) = array.get(*index) else {
                    return span;
                };
                span = element.span();
                here = Some(element.get_ref());
            }
        }
    }
    span
}

/// The message of an error in the words of TOML instead of Rust's.
fn words(message: &str) -> String {
    for (prefix, replacement) in [
        ("unknown field ", "unknown key "),
        ("missing field ", "missing key "),
        ("duplicate field ", "duplicate key "),
        ("unknown variant ", "unknown name "),
    ] {
        if let Some(rest) = message.strip_prefix(prefix) {
            return format!("{replacement}{rest}");
        }
    }
    match message {
        "wanted exactly 1 element, found 0 elements" => {
            return "the table is empty: it must have exactly one key".to_owned();
        }
        "wanted exactly 1 element, more than 1 element" => {
            return "the table has more than one key: it must have exactly one".to_owned();
        }
        "wanted string or table" => return "a table with exactly one key is expected".to_owned(),
        "invalid type: unit variant, expected newtype variant" => {
            return "a table with exactly one key is expected, such as `{ drop = {} }`".to_owned();
        }
        _ => {}
    }
    let message = message
        .replace("invalid type: map", "invalid type: table")
        .replace("invalid type: sequence", "invalid type: array")
        .replace("` as i128", "`");
    match message.rsplit_once(", expected ") {
        Some((given, expected)) => format!("{given}, expected {}", type_words(expected)),
        None => message,
    }
}

/// The TOML name of a Rust type.
fn type_words(expected: &str) -> String {
    let largest = match expected {
        "u8" => u64::from(u8::MAX),
        "u16" => u64::from(u16::MAX),
        "u32" => u64::from(u32::MAX),
        // The largest integer of TOML.
        "u64" | "usize" => i64::MAX.unsigned_abs(),
        "f64" => return "a number".to_owned(),
        "a sequence" => return "an array".to_owned(),
        "a map" => return "a table".to_owned(),
        _ if expected.starts_with("struct ") => return "a table".to_owned(),
        _ => return expected.to_owned(),
    };
    format!("an integer from 0 to {largest}")
}

/// The name that a message about an unknown name means: the message has the name first, then those that are allowed.
fn suggestion_in(message: &str) -> Option<String> {
    let names = message
        .strip_prefix("unknown key ")
        .or(message.strip_prefix("unknown name "))?;
    let mut names = names.split('`').skip(1).step_by(2);
    let given = names.next()?;
    suggestion::closest(given, names).map(str::to_owned)
}
