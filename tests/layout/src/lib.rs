//! Checks of the source tree; see `tests/`.
#![forbid(unsafe_code)]
