//! Guest memory and doorbell pages: the only crate with unsafe code.
