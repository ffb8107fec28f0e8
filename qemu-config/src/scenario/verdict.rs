//! The result of a scenario: output of `faultline ctl scenario stop --json`.

use std::fmt::Write;

use serde::Deserialize;

/// The verdict of the emulator.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Verdict {
    /// Everything holds, and there was no problem.
    pub passed: bool,
    /// Nanoseconds from start to stop.
    pub time_ns: u64,
    /// Rules, timed actions, expectations.
    pub checks: Vec<Check>,
    /// What could not be done.
    pub problems: Vec<String>,
}

/// Something that must hold.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Check {
    /// Rule, timed action or expectation.
    pub name: String,
    /// It holds.
    pub passed: bool,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

/// Checks as a table.
pub fn table(checks: &[Check]) -> String {
    let head = ["CHECK", "RESULT", "FOUND", "EXPECTED"].map(str::to_owned);
    let rows = checks.iter().map(|check| {
        let result = if check.passed { "ok" } else { "FAILED" };
        [
            check.name.clone(),
            result.to_owned(),
            check.found.clone(),
            check.expected.clone(),
        ]
    });
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(rows).collect();
    let mut widths = [0; 4];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Checks and problems as JUnit XML.
pub fn junit(name: &str, seconds: f64, checks: &[Check], problems: &[String]) -> String {
    let failed = checks.iter().filter(|check| !check.passed).count();
    // Problems are a test case of their own.
    let (tests, failures) = (checks.len() + 1, failed + usize::from(!problems.is_empty()));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites>\n<testsuite name=\"{}\" tests=\"{tests}\" failures=\"{failures}\" time=\"{seconds:.3}\">\n",
        escaped(name)
    );
    let mut case = |name: &str, failure: Option<String>| {
        // Writing to a string does not fail.
        let _ = match failure {
            None => writeln!(text, "<testcase name=\"{}\"/>", escaped(name)),
            Some(message) => writeln!(
                text,
                "<testcase name=\"{}\"><failure message=\"{}\"/></testcase>",
                escaped(name),
                escaped(&message)
            ),
        };
    };
    for check in checks {
        let failure = || format!("found {}, expected {}", check.found, check.expected);
        case(&check.name, (!check.passed).then(failure));
    }
    case(
        "no problems",
        (!problems.is_empty()).then(|| problems.join("; ")),
    );
    text += "</testsuite>\n</testsuites>\n";
    text
}

/// Text for XML. Characters that XML 1.0 does not allow become U+FFFD.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' => escaped += "&#10;",
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Vec<Check> {
        [("rule[0]", true), ("counter \"a\"", false)]
            .map(|(name, passed)| Check {
                name: name.to_owned(),
                passed,
                found: "0".to_owned(),
                expected: "1..".to_owned(),
            })
            .to_vec()
    }

    #[test]
    fn columns_are_aligned() {
        assert_eq!(
            table(&checks()),
            "CHECK        RESULT  FOUND  EXPECTED\n\
             rule[0]      ok      0      1..\n\
             counter \"a\"  FAILED  0      1..\n"
        );
    }

    #[test]
    fn failures_are_counted_and_escaped() {
        let text = junit("a & b", 1.5, &checks(), &["<it>".to_owned()]);
        for part in [
            "<testsuite name=\"a &amp; b\" tests=\"3\" failures=\"2\" time=\"1.500\">",
            "<testcase name=\"rule[0]\"/>",
            "<testcase name=\"counter &quot;a&quot;\"><failure message=\"found 0, expected 1..\"/></testcase>",
            "<failure message=\"&lt;it&gt;\"/>",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = junit("a", 0.0, &[], &[]);
        assert!(text.contains("tests=\"1\" failures=\"0\""), "{text}");
        assert_eq!(escaped("\u{1b}[1m\n"), "\u{fffd}[1m&#10;");
    }
}
