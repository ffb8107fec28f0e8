//! The rows of the table.

use std::fmt::{self, Display, Formatter};

/// The kernels on which a run has a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Nothing,
    First,
    Both,
}

impl On {
    /// True if it has the test on the first kernel of the run, or on another one.
    pub fn includes(self, is_first: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::First => is_first,
            Self::Both => true,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Nothing => "no",
            Self::First => "first kernel",
            Self::Both => "both kernels",
        }
    }
}

/// A row: a suite, or some of its tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub suite: &'static str,
    /// Names of tests; modules of `pyverbs`; all tests of the suite that no other row names, if empty.
    pub tests: &'static [&'static str],
    pub default: On,
    pub all: On,
    pub reason: &'static str,
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (default, all) = (self.default.text(), self.all.text());
        write!(f, "default: {default}, --all: {all} ({})", self.reason)
    }
}
