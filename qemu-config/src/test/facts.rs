//! Facts of each suite and test: its guarantee, the runs that have it, and the reason.

use std::fmt::{self, Display, Formatter};

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Nothing in particular: at least one test of each guarantee, and of each row of `docs/requirements.md` that tests in guests
    /// show in minutes.
    Default,
    /// `--all`: the tests of each release, which take longer or show the same in another way.
    All,
    /// Suites by their names. A named suite runs completely.
    Named,
}

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

    /// As lists show it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Nothing => "no",
            Self::First => "first kernel",
            Self::Both => "both kernels",
        }
    }
}

/// The runs without names that have a test, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    pub default: On,
    pub all: On,
    pub reason: &'static str,
}

impl Runs {
    /// The kernels on which a run has the test.
    pub fn on(self, run: Run) -> On {
        match run {
            Run::Default => self.default,
            Run::All => self.all,
            Run::Named => On::Both,
        }
    }
}

impl Display for Runs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (default, all) = (self.default.text(), self.all.text());
        write!(f, "default: {default}, --all: {all} ({})", self.reason)
    }
}

/// Runs by the kernels of the default run and of `--all`.
pub const fn runs(default: On, all: On, reason: &'static str) -> Runs {
    Runs {
        default,
        all,
        reason,
    }
}

/// Tests that run only when they are named.
pub const fn by_name(reason: &'static str) -> Runs {
    runs(On::Nothing, On::Nothing, reason)
}

/// The facts of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Its name within the suite.
    pub name: &'static str,
    /// A sentence that is wrong if the NIC, or the subject of the test, is wrong.
    pub shows: &'static str,
    /// The runs that have it, if these are not those of its suite.
    pub runs: Option<Runs>,
}

/// Facts of a test that has the runs of its suite.
pub const fn facts(name: &'static str, shows: &'static str) -> Facts {
    Facts {
        name,
        shows,
        runs: None,
    }
}

impl Facts {
    /// The same in other runs than its suite.
    pub const fn runs(self, runs: Runs) -> Self {
        Self {
            runs: Some(runs),
            ..self
        }
    }
}

/// The facts of a suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuiteFacts {
    pub name: &'static str,
    /// A sentence that is wrong if the NIC, or the subject of the suite, is wrong.
    pub shows: &'static str,
    /// The runs that have those of its tests that say nothing else.
    pub runs: Runs,
}

/// A test that is a function: its facts, and the function.
#[derive(Debug, Clone, Copy)]
pub struct Row<T> {
    pub facts: Facts,
    pub run: T,
}

impl<T: Copy> Row<T> {
    /// The same in other runs than its suite.
    pub const fn runs(self, runs: Runs) -> Self {
        Self {
            facts: self.facts.runs(runs),
            ..self
        }
    }
}

/// A row of a test that has the runs of its suite.
pub const fn row<T: Copy>(name: &'static str, shows: &'static str, run: T) -> Row<T> {
    Row {
        facts: facts(name, shows),
        run,
    }
}

/// The rows whose names contain `filter`.
pub fn chosen<T: Copy>(rows: &[Row<T>], filter: &str) -> Vec<Row<T>> {
    let named = rows.iter().filter(|row| row.facts.name.contains(filter));
    named.copied().collect()
}

/// The facts of rows.
pub fn all<T: Copy>(rows: &[Row<T>]) -> Vec<Facts> {
    rows.iter().map(|row| row.facts).collect()
}
