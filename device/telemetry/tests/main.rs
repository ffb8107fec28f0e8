//! What others read of telemetry: one program, which is linked once.

#![cfg(test)]

mod dashboard;
mod perfetto;
