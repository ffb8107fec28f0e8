//! Reads a type from TOML, with all problems of the text instead of the first one.

use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, ValueDeserializer};

use crate::problem::{Path, Problem, contains};

/// Most readings of a text. Each finds one problem.
const MOST: usize = 50;

/// Reads the text of a file. serde ends at the first problem of a type. So the key with a problem is left out, and the rest is read again, until
/// nothing is wrong. `refine` changes a problem into that of a key, if its message says so.
pub fn read_whole<T: DeserializeOwned>(
    text: &str,
    refine: impl Fn(Problem) -> Problem,
) -> Result<T, Vec<Problem>> {
    let table = DeTable::parse(text).map_err(|error| vec![Problem::of_toml(text, &error)])?;
    let value = Spanned::new(table.span(), DeValue::Table(table.get_ref().clone()));
    read_part(table.get_ref(), value, refine)
}

/// As [`read_whole`], for a part of a document.
pub(crate) fn read_part<T: DeserializeOwned>(
    whole: &DeTable<'_>,
    mut rest: Spanned<DeValue<'_>>,
    refine: impl Fn(Problem) -> Problem,
) -> Result<T, Vec<Problem>> {
    let mut problems = Vec::new();
    // Where nothing further is reported: the places of problems, and tables without a key that they had, because another problem of such a
    // table may follow from this.
    let mut settled: Vec<Path> = Vec::new();
    for _ in 0..MOST {
        let error = match T::deserialize(ValueDeserializer::from(rest.clone())) {
            Ok(value) if problems.is_empty() => return Ok(value),
            Ok(_) => break,
            Err(error) => error,
        };
        let problem = Problem::of_type(whole, &error);
        let is_settled = settled.contains(&problem.path);
        let problem = refine(problem);
        let is_removed = remove_in(&mut rest, &problem.span_in(whole));
        settled.extend(problem.path.parent());
        settled.push(problem.path.clone());
        if !is_settled {
            problems.push(problem);
        }
        if !is_removed {
            break;
        }
    }
    Err(problems)
}

/// Removes the innermost key, or element of an array, whose key or value is at `span`. Returns false if there is none.
fn remove(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        if remove_in(value, span) {
            return true;
        }
        if contains(&key.span(), span) || contains(&value.span(), span) {
            found = Some(key.get_ref().to_string());
            break;
        }
    }
    found.is_some_and(|key| table.remove(key.as_str()).is_some())
}

/// As [`remove`], within a value.
fn remove_in(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>) -> bool {
    match value.get_mut() {
        DeValue::Table(table) => remove(table, span),
        DeValue::Array(array) => remove_element(array, span),
        _ => false,
    }
}

fn remove_element(array: &mut DeArray<'_>, span: &Range<usize>) -> bool {
    if array.iter_mut().any(|element| remove_in(element, span)) {
        return true;
    }
    let before = array.len();
    let elements = std::mem::replace(array, DeArray::new()).into_iter();
    *array = elements
        .filter(|element| !contains(&element.span(), span))
        .collect();
    array.len() < before
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Item {
        name: String,
        #[serde(default)]
        size: u8,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Sample {
        count: u8,
        item: Vec<Item>,
        sizes: Vec<u8>,
    }

    /// The paths and messages of the problems of a text.
    fn problems(text: &str) -> Vec<String> {
        let read = read_whole::<Sample>(text, |problem| problem);
        let shown = |problem: &Problem| format!("{}: {}", problem.path, problem.message);
        read.unwrap_err().iter().map(shown).collect()
    }

    #[test]
    fn all_problems_are_found() {
        let text = "count = -1\nsizes = [1, true, 300]\nother = 2\n[[item]]\nsize = \"a\"\n[[item]]\nname = 3\nsize = 4\n\
             [[item]]\nname = \"c\"\nsize = false\n";
        let mut found = problems(text);
        found.sort();
        let byte = "expected an integer from 0 to 255";
        let expected = [
            format!("count: invalid value: integer `-1`, {byte}"),
            format!("item[0].size: invalid type: string \"a\", {byte}"),
            "item[1].name: invalid type: integer `3`, expected a string".to_owned(),
            format!("item[2].size: invalid type: boolean `false`, {byte}"),
            "other: unknown key `other`, expected one of `count`, `item`, `sizes`".to_owned(),
            format!("sizes[1]: invalid type: boolean `true`, {byte}"),
            format!("sizes[2]: invalid value: integer `300`, {byte}"),
        ];
        assert_eq!(found, expected);
    }

    /// The key `name` of the second item is missing because it was left out.
    #[test]
    fn problems_that_follow_from_others_are_left_out() {
        let found = problems("[[item]]\nsize = 1\n[[item]]\nname = 1\nsize = 2\n");
        assert_eq!(
            found,
            [
                "item[0]: missing key `name`",
                "item[1].name: invalid type: integer `1`, expected a string"
            ]
        );
    }

    #[test]
    fn a_text_without_problems_is_read() {
        let read = read_whole::<Sample>("sizes = [1]\n[[item]]\nname = \"a\"\n", |problem| problem);
        let item = Item {
            name: "a".to_owned(),
            size: 0,
        };
        let expected = Sample {
            count: 0,
            item: vec![item],
            sizes: vec![1],
        };
        assert_eq!(read, Ok(expected));
    }
}
