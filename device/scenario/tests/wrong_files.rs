//! Wrong files, and the exact text that is drawn for each: `wrong/NAME.toml` and `wrong/NAME.txt`. With `FAULTLINE_BLESS=1`
//! the texts are written anew.

use std::fs;
use std::path::{Path, PathBuf};

use faultline_scenario::problem::Problems;
use faultline_scenario::read;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong")
}

fn problems(name: &str, text: &str) -> Problems {
    let nics = ["left", "right"].map(str::to_owned);
    match read::load(name, text, &nics) {
        Ok(scenario) => panic!("{name} is read: {scenario:?}"),
        Err(problems) => problems,
    }
}

#[test]
fn each_wrong_file_has_its_drawn_problems() {
    let mut files: Vec<PathBuf> = fs::read_dir(folder())
        .expect("the folder exists")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    files.sort();
    assert!(files.len() >= 14);
    let mut differ = Vec::new();
    for path in files {
        let name = path.file_name().expect("name").to_string_lossy();
        let text = fs::read_to_string(&path).expect("readable");
        let drawn = problems(&name, &text).to_string() + "\n";
        let expected = path.with_extension("txt");
        if std::env::var_os("FAULTLINE_BLESS").is_some() {
            fs::write(&expected, &drawn).expect("writable");
        } else if fs::read_to_string(&expected).unwrap_or_default() != drawn {
            differ.push(format!("{name}:\n{drawn}"));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn files_that_are_too_large_or_too_deep_are_refused() {
    let rule = "[[rule]]\non = { opcode = \"ACK\" }\ndo = { drop = {} }\n";
    let timed = "[[at]]\ntime = \"1s\"\ndo = { fatal = {} }\n";
    let expect = "[[expect]]\npackets = { opcode = \"ACK\", count = 1 }\n";
    let traffic = "[[traffic]]\nop = \"send\"\n";
    for (table, most) in [(rule, 64), (timed, 64), (expect, 256), (traffic, 64)] {
        assert!(read::read("a", &table.repeat(most)).is_ok(), "{table}");
        let found = problems("a", &table.repeat(most + 1)).to_string();
        assert!(found.contains(&format!("at most {most}")), "{found}");
    }
    let long = format!("# {}", " ".repeat(read::MAX_BYTES));
    assert_eq!(
        problems("a.toml", &long).to_string(),
        "error: a.toml: the file has 1048578 bytes, at most 1048576 are allowed"
    );
    for deep in [
        format!("title = {}", "[".repeat(100_000)),
        format!("a = {}", "{ a = ".repeat(100_000)),
        format!("{}a = 1", "a.".repeat(100_000)),
        format!("[{}a]", "a.".repeat(100_000)),
    ] {
        let found = problems("a.toml", &deep);
        assert_eq!(found.list().len(), 1);
        assert!(found.to_string().len() < 2000, "{found}");
    }
}

/// Only for a terminal.
#[test]
fn colours_are_drawn_on_demand() {
    let found = problems("a.toml", "sed = 1");
    assert!(!found.to_string().contains('\u{1b}'));
    assert!(found.draw(true).contains('\u{1b}'));
}
