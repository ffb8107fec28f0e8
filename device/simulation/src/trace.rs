//! The events of a run, line by line, and their hash.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

/// Most lines that are kept; the hash is of all.
const MAX_LINES: usize = 1_000_000;

/// Detail of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing: the trace is empty. For runs whose verdict alone is needed, because a trace takes about a quarter of their time.
    Nothing,
    /// The number of its lines and their hash.
    #[default]
    Hash,
    /// The lines as well.
    Lines,
    /// The number of its lines and their hash, and the events of the run as values.
    Events,
}

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    detail: Detail,
    hash: Sha256,
    line: String,
    count: u64,
    kept: Vec<String>,
}

impl Trace {
    /// An empty trace.
    pub fn new(detail: Detail) -> Self {
        Self {
            detail,
            hash: Sha256::new(),
            line: String::new(),
            count: 0,
            kept: Vec::new(),
        }
    }

    /// Adds a line about a NIC.
    pub(crate) fn add(&mut self, now: u64, nic: usize, what: fmt::Arguments<'_>) {
        if self.detail == Detail::Nothing {
            return;
        }
        self.line.clear();
        // Writing to a string does not fail.
        let _ = write!(self.line, "{now} nic{nic} {what}");
        self.hash.update(self.line.as_bytes());
        self.hash.update(b"\n");
        self.count = self.count.saturating_add(1);
        if self.detail == Detail::Lines && self.kept.len() < MAX_LINES {
            self.kept.push(self.line.clone());
        }
    }

    /// What it keeps.
    pub(crate) fn detail(&self) -> Detail {
        self.detail
    }

    /// Number of lines.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// True if nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The lines that were kept.
    pub fn lines(&self) -> &[String] {
        &self.kept
    }

    /// SHA-256 of all lines, as hexadecimal digits.
    pub fn hash(&self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.hash.clone().finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}
