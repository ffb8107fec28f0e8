//! Tests that read the log. It is one for a process, at level TRACE, which would slow down all other tests and fill its memory.

mod diagnostics;
mod flood;
mod log;
mod observed;
mod sight;
mod traced;
