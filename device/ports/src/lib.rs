//! The L2 switch between the ports of a process.
//!
//! It decides where frames go and knows nothing of what is in them.
#![forbid(unsafe_code)]
#![warn(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    clippy::unwrap_used,
    unreachable_pub
)]

mod switch;

pub use switch::{PortId, Route, Switch};
