//! What has happened in a run, line by line, and its hash.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

/// Most lines that are kept; the hash is of all.
const MAX_LINES: usize = 1_000_000;

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    hash: Sha256,
    line: String,
    count: u64,
    kept: Option<Vec<String>>,
}

impl Trace {
    /// An empty trace. If `keep` is set, the lines are kept, else only their hash.
    pub fn new(keep: bool) -> Self {
        Self {
            hash: Sha256::new(),
            line: String::new(),
            count: 0,
            kept: keep.then(Vec::new),
        }
    }

    /// Adds a line about a NIC.
    pub(crate) fn add(&mut self, now: u64, nic: usize, what: fmt::Arguments<'_>) {
        self.line.clear();
        // Writing to a string does not fail.
        let _ = write!(self.line, "{now} nic{nic} {what}");
        self.hash.update(self.line.as_bytes());
        self.hash.update(b"\n");
        self.count = self.count.saturating_add(1);
        if let Some(kept) = &mut self.kept
            && kept.len() < MAX_LINES
        {
            kept.push(self.line.clone());
        }
    }

    /// True if lines are kept.
    pub(crate) fn keeps(&self) -> bool {
        self.kept.is_some()
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
        self.kept.as_deref().unwrap_or_default()
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
