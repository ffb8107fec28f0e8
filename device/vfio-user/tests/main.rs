//! The server at its socket: one program, which is linked once.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

mod client;
mod common;
mod malformed;
mod random;
mod relay;
