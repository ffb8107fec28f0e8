//! The L2 switch between the ports of a process.
//!
//! It selects the output ports of a frame from its MAC addresses only.
#![forbid(unsafe_code)]

mod switch;

pub use switch::{PortId, Route, Switch};
