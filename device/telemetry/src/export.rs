//! Reads and writes traces in all forms.

use std::io::Write;
use std::path::Path;

use crate::trace::{Trace, TraceError};
use crate::{chrome, perfetto};

/// The form of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// One record in each line, as JSON.
    Raw,
    /// JSON in Chrome's trace event format, for Perfetto.
    Json,
    /// Protobuf, for Perfetto.
    Perfetto,
}

impl TraceFormat {
    /// The form by the extension of a file: `jsonl`, `json` or `pftrace`.
    pub fn of_path(path: &Path) -> Result<Self, TraceError> {
        let extension = path.extension().unwrap_or_default();
        match extension.to_string_lossy().as_ref() {
            "jsonl" => Ok(Self::Raw),
            "json" => Ok(Self::Json),
            "pftrace" => Ok(Self::Perfetto),
            _ => Err(TraceError::Extension(path.display().to_string())),
        }
    }
}

impl Trace {
    /// Writes the trace in a form. All forms contain the records, so [`Trace::read`] reads each of them.
    pub fn write(&self, format: TraceFormat, out: &mut impl Write) -> Result<(), TraceError> {
        match format {
            TraceFormat::Raw => self.write_raw(out),
            TraceFormat::Json => chrome::write(self, out),
            TraceFormat::Perfetto => perfetto::write(self, out),
        }
    }

    /// Reads a trace that [`Trace::write`] has written, in any form.
    pub fn read(bytes: &[u8]) -> Result<Self, TraceError> {
        if bytes.first() == Some(&perfetto::FIRST_BYTE) && !bytes.starts_with(b"\n{") {
            return perfetto::read(bytes);
        }
        if bytes.starts_with(chrome::START) {
            return chrome::read(bytes);
        }
        Self::read_raw(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::samples::{any_record, trace, write_to_absent_page};

    const FORMATS: [TraceFormat; 3] = [TraceFormat::Raw, TraceFormat::Json, TraceFormat::Perfetto];

    fn written(trace: &Trace, format: TraceFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        trace.write(format, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_extension_selects_the_form() {
        let format = |path| TraceFormat::of_path(Path::new(path));
        assert_eq!(format("a/b.jsonl").unwrap(), TraceFormat::Raw);
        assert_eq!(format("x.json").unwrap(), TraceFormat::Json);
        assert_eq!(format("x.y.pftrace").unwrap(), TraceFormat::Perfetto);
        for path in ["x", "x.txt", "json", ".json", ""] {
            assert!(format(path).is_err(), "{path}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        for bytes in [
            &b""[..],
            b"\n",
            b"{\"traceEvents\":[]}",
            b"\x0a\x00",
            b"\x0a\xff\xff\xff\xff",
            b"\x7fELF",
            crate::chrome::START,
        ] {
            let error = Trace::read(bytes).unwrap_err();
            assert!(
                matches!(error, TraceError::Foreign(_)),
                "{bytes:?}: {error}"
            );
        }
    }

    #[test]
    fn json_has_the_events_of_a_fault() {
        let bytes = written(&trace(write_to_absent_page(1001, 7, 5)), TraceFormat::Json);
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let fault = events
            .iter()
            .find(|e| e["ph"] == "b" && e["name"] == "fault")
            .unwrap();
        assert_eq!(fault["ts"].to_string(), "1.001");
        // Each slice of a fault ends under the name with which it has begun.
        let names = |phase: &str| {
            let slices = events.iter().filter(|e| e["ph"] == phase);
            let mut names: Vec<_> = slices.map(|e| e["name"].to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names("b"), names("e"));
        assert_eq!(fault["args"]["va"], "0x7f0000001000");
        assert_eq!(fault["args"]["outcome"], "resumed");
        let count = |phase: &str| events.iter().filter(|e| e["ph"] == phase).count();
        assert_eq!((count("b"), count("e")), (7, 7));
        // Four arrows with two ends: three frames, and the RNR NAK, which leads on.
        assert_eq!((count("s"), count("f")), (4, 4));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_trace_is_read_back_from_each_form(records in prop::collection::vec(any_record(), 0..200)) {
            let trace = trace(records);
            for format in FORMATS {
                let bytes = written(&trace, format);
                prop_assert_eq!(&Trace::read(&bytes).unwrap(), &trace);
                prop_assert!(bytes.len() <= 2000 + 4000 * trace.records.len());
            }
            let json: Value = serde_json::from_slice(&written(&trace, TraceFormat::Json)).unwrap();
            prop_assert!(json["traceEvents"].is_array());
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Trace::read(&bytes).is_err());
        }
    }
}
