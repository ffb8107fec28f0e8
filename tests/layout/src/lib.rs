//! Checks of the source tree and of its documents; see `tests/`.
#![forbid(unsafe_code)]

pub mod circles;
pub mod compatibility;
pub mod named;
pub mod proofs;
