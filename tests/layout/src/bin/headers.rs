//! Whether `docs/compatibility.md` has a row for all that these headers declare: `headers DOCUMENT HEADER…`.
//!
//! The lab runs it with the headers of the guests' libibverbs and kernels (`cargo lab test host::compatibility`).
#![forbid(unsafe_code)]

use std::fs;
use std::process::ExitCode;

use faultline_layout::compatibility::{Declarations, declare, differences, sections};

fn check() -> Result<Vec<String>, String> {
    let read = |path: &String| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [document, headers @ ..] = arguments.as_slice() else {
        return Err("usage: headers DOCUMENT HEADER…".into());
    };
    let mut declarations = Declarations::new();
    for header in headers {
        declare(&mut declarations, &read(header)?);
    }
    let sections = sections(&read(document)?)?;
    let rows: usize = sections.iter().map(|section| section.rows.len()).sum();
    println!(
        "{rows} rows in {} sections, {} headers",
        sections.len(),
        headers.len()
    );
    Ok(differences(&sections, &declarations))
}

fn main() -> ExitCode {
    match check() {
        Ok(found) if found.is_empty() => ExitCode::SUCCESS,
        Ok(found) => {
            eprintln!("{}", found.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
