//! Tests of the wire formats, as one binary: proptest and etherparse are slow to link.

#![cfg(test)]

mod headers;
mod known;
mod packets;
mod rxe;
mod support;
mod tables;
