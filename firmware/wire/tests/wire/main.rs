//! Tests of the wire formats, as one binary: proptest and etherparse are slow to link.

#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

mod fields;
mod headers;
mod iwarp;
mod known;
mod packets;
mod rxe;
mod support;
mod tables;
mod tcp;
