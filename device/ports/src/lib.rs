//! The L2 switch between the ports of a process.
//!
//! It selects the output ports of a frame from its MAC addresses only.
#![forbid(unsafe_code)]
// Values of guests, peers and sockets get here, and none of them may stop the process. Tests may.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod switch;

pub use switch::{PortId, Route, Switch};
