//! The L2 switch between the ports of a process.
//!
//! It decides where frames go and knows nothing of what is in them.
#![forbid(unsafe_code)]

mod switch;

pub use switch::{PortId, Route, Switch};
