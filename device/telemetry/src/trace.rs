//! A trace: records with the names of their objects, and its raw form.

use std::io::Write;

use faultline_nic::Instant;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::event::Record;

/// Version of the raw form.
pub(crate) const VERSION: u32 = 1;

/// The process that owns a queue pair, as its guest has reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairOwner {
    /// Number of the NIC.
    pub nic: u16,
    /// QP number.
    pub qpn: u32,
    /// Name of the process.
    pub process: String,
    /// Its number in the guest.
    pub pid: u32,
    /// Time of this ownership: the queue pair's number may have had another owner before, and may have later.
    #[serde(default)]
    pub at: Instant,
}

/// Records of a NIC that a trace lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Number of the NIC.
    pub nic: u16,
    /// Time of the NIC's last record before; `None`: the trace has none, and begins with the gap.
    pub after: Option<Instant>,
    /// Time of the NIC's first record behind it; `None`: the trace has none.
    pub before: Option<Instant>,
    /// Records.
    pub lost: u64,
}

/// Properties of the records of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceHeader {
    /// Version of the form.
    faultline_trace: u32,
    /// Names of the NICs, by number.
    pub nics: Vec<String>,
    /// Owners of queue pairs, as far as they are known.
    pub queue_pairs: Vec<QueuePairOwner>,
    /// Records that were overwritten before they could be copied.
    pub lost: u64,
    /// Where they are missing.
    #[serde(default)]
    pub gaps: Vec<Gap>,
}

impl TraceHeader {
    /// A header for NICs with these names.
    pub fn new(nics: Vec<String>) -> Self {
        Self {
            faultline_trace: VERSION,
            nics,
            queue_pairs: Vec::new(),
            lost: 0,
            gaps: Vec::new(),
        }
    }

    /// The name of a NIC; its number if it has none.
    pub fn nic_name(&self, nic: u16) -> String {
        let name = self.nics.get(usize::from(nic)).cloned();
        name.unwrap_or_else(|| format!("NIC {nic}"))
    }
}

/// A trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Names.
    pub header: TraceHeader,
    /// Records, by time.
    pub records: Vec<Record>,
}

/// Why a trace cannot be read or written.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The name of the file does not say in which form to write.
    #[error("{0}: the name of a trace ends with .jsonl (raw), .json or .pftrace (Perfetto)")]
    Extension(String),
    /// It is no trace that this program has written.
    #[error("not a trace of Faultline: {0}; give a file that `faultline trace -o` has written")]
    Foreign(String),
    /// It has another version.
    #[error("the trace has version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// Input or output has failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl From<serde_json::Error> for TraceError {
    fn from(error: serde_json::Error) -> Self {
        match error.is_io() {
            true => Self::Io(error.into()),
            false => Self::Foreign(error.to_string()),
        }
    }
}

impl Trace {
    /// Writes the raw form: the header, then one record in each line.
    pub fn write_raw(&self, out: &mut impl Write) -> Result<(), TraceError> {
        serde_json::to_writer(&mut *out, &self.header)?;
        out.write_all(b"\n")?;
        write_records(&self.records, out)
    }

    /// Reads the raw form.
    pub(crate) fn read_raw(text: &[u8]) -> Result<Self, TraceError> {
        let mut lines = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let header = lines.next().unwrap_or_default();
        Self {
            header: serde_json::from_slice(header)?,
            records: lines
                .map(serde_json::from_slice)
                .collect::<Result<_, _>>()?,
        }
        .of_this_version()
    }

    /// The trace, if this program understands its version.
    pub(crate) fn of_this_version(self) -> Result<Self, TraceError> {
        match self.header.faultline_trace {
            VERSION => Ok(self),
            other => Err(TraceError::Version(other)),
        }
    }
}

/// Writes one record in each line.
pub(crate) fn write_records(records: &[Record], out: &mut impl Write) -> Result<(), TraceError> {
    for record in records {
        serde_json::to_writer(&mut *out, record)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_another_version_is_refused() {
        let mut trace = Trace {
            header: TraceHeader::new(vec!["a".to_owned()]),
            records: Vec::new(),
        };
        trace.header.faultline_trace = 2;
        let mut raw = Vec::new();
        trace.write_raw(&mut raw).unwrap();
        let error = Trace::read_raw(&raw).unwrap_err();
        assert!(matches!(error, TraceError::Version(2)), "{error}");
    }

    #[test]
    fn other_files_are_refused() {
        for text in ["", "\n", "{}", "hello", "{\"nics\":[]}", "[1,2]"] {
            let error = Trace::read_raw(text.as_bytes()).unwrap_err();
            assert!(matches!(error, TraceError::Foreign(_)), "{error}");
        }
    }

    #[test]
    fn nics_without_a_name_have_a_number() {
        let header = TraceHeader::new(vec!["a".to_owned()]);
        assert_eq!(
            (header.nic_name(0), header.nic_name(7)),
            ("a".into(), "NIC 7".into())
        );
    }
}
