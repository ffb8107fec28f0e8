//! Documents that are made from the code: the JSON schema, and the reference in `docs/scenarios.md`. With `FAULTLINE_BLESS=1`
//! they are written anew.

use std::fs;
use std::path::{Path, PathBuf};

use faultline_scenario::{reference, schema};

fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// Compares a document with the text that the code makes.
#[track_caller]
fn compare(name: &str, made: &str) {
    let path = document(name);
    if std::env::var_os("FAULTLINE_BLESS").is_some()
        && let Err(error) = fs::write(&path, made)
    {
        panic!("docs/{name} can't be written: {error}");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "docs/{name} is not that of the code: FAULTLINE_BLESS=1 cargo test -p faultline-scenario documents::"
    );
}

#[test]
fn the_schema_is_that_of_the_code() {
    compare("scenario.schema.json", &schema::schema_text());
}

#[test]
fn the_schema_of_profiles_is_that_of_the_code() {
    compare("profile.schema.json", &schema::profile_text());
}

#[test]
fn the_reference_is_that_of_the_code() {
    let text = fs::read_to_string(document("scenarios.md")).expect("the document is readable");
    let begin = text.find(reference::BEGIN).expect("the reference begins") + reference::BEGIN.len();
    let end = text.find(reference::END).expect("the reference ends");
    let made = format!("{}\n{}{}", &text[..begin], reference::text(), &text[end..]);
    compare("scenarios.md", &made);
}
