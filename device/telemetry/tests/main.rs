//! Telemetry for readers outside of the process: one program, which is linked once.

#![cfg(test)]

mod dashboard;
mod perfetto;
