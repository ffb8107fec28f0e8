//! The result of a test.

use std::time::Duration;

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It succeeded.
    Passed,
    /// It failed; the text is the reason.
    Failed(String),
    /// It could not run; the text is the reason.
    Skipped(String),
}

/// An ended test, or the passed tests of a step with several.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Name of the test.
    pub name: String,
    /// How long it took.
    pub elapsed: Duration,
    /// Its result.
    pub verdict: Verdict,
}
