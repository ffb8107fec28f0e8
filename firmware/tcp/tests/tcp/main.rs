//! Tests of connections in virtual time, as one binary.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

mod corners;
mod decisions;
mod foreign;
mod forged;
mod hostile;
mod listener;
mod network;
mod pair;
mod recovery;
mod script;
mod support;
