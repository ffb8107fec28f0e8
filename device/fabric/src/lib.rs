//! The way of a frame between NICs, and between them and ports that lead out of the process.
//!
//! As in the firmware, there is no thread, clock, file or socket here: events and the time are arguments, and what the fabric wants of
//! its owner it asks through a trait. So the same code runs in an engine thread and in virtual time. What several fabrics of a
//! process share (assigned addresses, holds, pauses) is in atomics, and in a table whose changes are made under a lock.
//!
//! - [`by_port`]: a table by port
//! - `classes`: queues of priorities that share the rate of a link
//! - [`fate`]: what becomes of a frame at an interface
//! - [`frame`]: a frame on its way, by reference or as octets
//! - [`holds`]: queue pairs that wait for the peer of an external port
//! - [`link_model`]: one direction of a modelled link
//! - [`link_models`]: the modelled links of a fabric
//! - [`port_faults`]: MTU and injected faults of a NIC's port
//! - [`shared_pauses`]: priorities that link models pause for senders of other fabrics
//! - [`switch`]: the learning switch
//! - [`vlan`]: VLAN membership and tags

#![forbid(unsafe_code)]
// Values of guests, peers and sockets get here, and none of them may stop the process. Tests may.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
#![cfg_attr(
    test,
    expect(
        clippy::cast_possible_truncation,
        reason = "test data is cut to the width of a field"
    )
)]

pub mod by_port;
mod classes;
pub mod fate;
pub mod frame;
pub mod holds;
pub mod link_model;
pub mod link_models;
pub mod port_faults;
pub mod shared_pauses;
pub mod switch;
pub mod vlan;

pub use fate::Fate;
pub use frame::Mark;
pub use switch::{AGING, Clash, Egress, PortId, Route, Switch};
