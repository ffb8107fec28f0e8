//! `docs/requirements.md` has a row for each requirement, names tests that there are, and says why where none runs in guests.

use faultline_layout::named::{exists, read, tests_of};

/// Requirements R1 to R30.
const ROWS: usize = 30;

/// Whether a test of this name runs in a guest. Steps of the suite `keys` do not.
fn runs_in_guests(test: &str) -> bool {
    let place = test.split("::").next().unwrap_or_default();
    ["lab", "guest", "pyverbs"].contains(&place) && !test.starts_with("lab::keys::")
}

#[test]
fn every_requirement_names_its_tests() {
    let document = read("docs/requirements.md");
    let rows: Vec<Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| R"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .filter(|cells: &Vec<&str>| cells.first() != Some(&"Row"))
        .collect();
    let numbers: Vec<String> = rows.iter().map(|cells| cells[0].to_owned()).collect();
    let expected: Vec<String> = (1..=ROWS).map(|n| format!("R{n}")).collect();
    assert_eq!(numbers, expected);
    let mut wrong = Vec::new();
    for cells in &rows {
        let [row, what, guests, below, not_shown] = cells[..] else {
            panic!("not five cells: {cells:?}");
        };
        assert!(!what.is_empty(), "{row}");
        let in_guests = tests_of(guests);
        if in_guests.is_empty() && not_shown.is_empty() {
            wrong.push(format!("{row}: neither a test in guests nor a reason"));
        }
        let elsewhere = in_guests.iter().filter(|test| !runs_in_guests(test));
        wrong.extend(elsewhere.map(|test| format!("{row}: {test} runs in no guest")));
        let all = in_guests
            .iter()
            .chain(&tests_of(below))
            .copied()
            .collect::<Vec<_>>();
        let gone = all.iter().filter(|test| !exists(test));
        wrong.extend(gone.map(|test| format!("{row}: there is no {test}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
