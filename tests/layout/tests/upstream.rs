//! `guest-driver/UPSTREAM.md` divides all files of the driver among patches.

use std::collections::BTreeMap;

use faultline_layout::named::{part, read};

/// The names in backquotes of a cell, without their common beginning.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn every_file_of_the_driver_is_in_one_patch() {
    let document = read("guest-driver/UPSTREAM.md");
    let table = part(&document, "| Patch | Files (`faultline_…`) |", "\n\n");
    let mut patches: BTreeMap<&str, usize> = BTreeMap::new();
    for row in table.lines().filter(|row| row.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for name in cells.get(2).into_iter().flat_map(|cell| names(cell)) {
            *patches.entry(name).or_default() += 1;
        }
    }
    let build = read("guest-driver/kernel/Kbuild");
    let objects = build.split_whitespace();
    let objects = objects.filter_map(|word| word.strip_prefix("faultline_")?.strip_suffix(".o"));
    let objects: Vec<&str> = objects.collect();
    assert!(objects.len() > 30, "{objects:?}");
    for name in objects {
        // It goes away; see the document.
        let expected = usize::from(name != "compat");
        let found = patches.get(name).copied().unwrap_or_default();
        assert_eq!(found, expected, "patches with faultline_{name}.c");
    }
}
