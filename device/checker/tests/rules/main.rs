//! Each rule: violations are found, and the most similar legal packets are not.

#![cfg(test)]

mod connection;
mod connection_manager;
mod credits;
mod flips;
mod flood;
mod forgers;
mod gaps;
mod iwarp;
mod packets;
mod reads;
mod requester;
mod responder;
mod streams;
mod talk;

use faultline_checker::Rule;

/// Names are distinct, each rule has a source, and the documentation lists all rules.
#[test]
fn rules_have_names_and_sources() {
    let document = include_str!("../../../../docs/capture.md");
    let rows: Vec<&str> = document
        .lines()
        .skip_while(|line| *line != "## Rules")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("| `"))
        .collect();
    assert_eq!(rows.len(), Rule::ALL.len());
    for (rule, row) in Rule::ALL.iter().zip(rows) {
        let (start, end) = (
            format!("| `{}` | {} | ", rule.name(), rule.severity().name()),
            format!(" | {} |", rule.source()),
        );
        assert!(row.starts_with(&start) && row.ends_with(&end), "{row}");
    }
    let names: std::collections::BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(names.len(), Rule::ALL.len());
    assert!(Rule::ALL.iter().all(|rule| {
        ["IBTA", "RFC"]
            .iter()
            .any(|from| rule.source().starts_with(from))
    }));
}
