//! The trace of a process, through its control server.

use std::path::Path;

use serde_json::Value;

use crate::observed::request;

/// Header and records of the trace, from this path of the control server.
#[track_caller]
pub fn trace(socket: &Path, path: &str) -> (Value, Vec<Value>) {
    let text = request(socket, "GET", path, "");
    let mut lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.next().unwrap(), lines.collect())
}
