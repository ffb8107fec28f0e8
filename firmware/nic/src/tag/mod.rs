//! Tag matching: the list of tagged buffers of a shared receive queue, and the headers of messages.
//!
//! - [`message`]: headers and the result of matching
//! - [`list`]: the buffers
//!
//! Handling of messages by a queue pair is in `qp/tag.rs`.

pub(crate) mod list;
pub(crate) mod message;
