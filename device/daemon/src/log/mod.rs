//! Log messages.
//!
//! - [`diagnostics`]: diagnostics of NICs as log messages
//! - [`notice`]: messages of engine threads that are not diagnostics of a NIC
//! - [`of_nic`]: the span of a NIC's messages, and the limit for those that its guest can cause
//! - [`output`]: the thread that writes messages to standard error
//! - `storm`: summaries of events that a NIC repeats too often to log each

pub mod diagnostics;
pub mod notice;
pub mod of_nic;
pub mod output;
mod storm;
