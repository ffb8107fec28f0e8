//! The metrics as JSON.

use std::collections::BTreeMap;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

/// A sample of a metric.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// Name of the metric.
    name: String,
    /// Its labels.
    labels: BTreeMap<String, String>,
    /// A number, or a string for a value that JSON does not have (`NaN`, `+Inf`).
    value: Value,
}

/// Reads the samples of a text for Prometheus.
pub(crate) fn samples(text: &str) -> anyhow::Result<Vec<Sample>> {
    let lines = text.lines();
    let samples = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    samples
        .map(|line| sample(line).with_context(|| format!("the metrics have the line {line:?}")))
        .collect()
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.strip_prefix(' ')?.split(' ').next()?;
    let number = serde_json::from_str(value).ok().filter(Value::is_number);
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: number.unwrap_or_else(|| Value::from(value)),
    })
}

/// Labels up to the closing brace, and the rest.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        labels.insert(name.to_owned(), value);
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// A value up to its closing quote, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        value.push(match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => match chars.next()? {
                'n' => '\n',
                other => other,
            },
            other => other,
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn samples_have_names_labels_and_values() {
        let text = "# TYPE a counter\na_total{nic=\"x\\\"}, y\",le=\"+Inf\"} 12\nb 0.5\nc{} NaN\nd{q=\"\\\\\\n\"} 1e3 17\n# EOF\n";
        let read = serde_json::to_value(samples(text).unwrap()).unwrap();
        let expected = json!([
            {"name": "a_total", "labels": {"nic": "x\"}, y", "le": "+Inf"}, "value": 12},
            {"name": "b", "labels": {}, "value": 0.5},
            {"name": "c", "labels": {}, "value": "NaN"},
            {"name": "d", "labels": {"q": "\\\n"}, "value": 1e3},
        ]);
        assert_eq!(read, expected);
        for wrong in ["a", "a{b=\"c\" 1", "a{b} 1", "a{b=\"c} 1"] {
            assert!(samples(wrong).is_err(), "{wrong}");
        }
    }
}
