//! The path of frames between NICs, and between NICs and external ports.
//!
//! As in the firmware, there is no thread, clock, file or socket here: events and the time are arguments, and the fabric calls its owner
//! through a trait. So the same code runs in an engine thread and in virtual time. The common data of the fabrics of a process (assigned
//! addresses, holds, pauses) is in atomics, and in a table that is changed under a lock.
//!
//! - [`by_port`]: a table by port
//! - `by_rules`: effects of scenario rules
//! - `classes`: queues of priorities that share the rate of a link
//! - `data_path`: the path of a frame from its source to the ports that receive it
//! - `diagnostics`: diagnostics of the NICs, for rules and for the owner
//! - [`external_port`]: a port that leads out of the process
//! - `externals`: frames of their peers
//! - [`fabric`]: NICs, their memory, switch, links and external ports
//! - [`fate`]: the fate of a frame at an interface
//! - [`frame`]: a frame on its way, by reference or as octets
//! - `held_senders`: holds and resumes the queue pairs of a fabric
//! - [`holds`]: queue pairs that wait for the peer of an external port
//! - `link_ends`: frames that leave modelled links
//! - `link_entry`: frames that enter modelled links
//! - [`link_model`]: one direction of a modelled link
//! - [`link_models`]: the modelled links of a fabric
//! - [`nic_port`]: a NIC with its port of the switch
//! - [`nics`]: the NICs, and which of them rest
//! - [`others`]: frames of other fabrics of the process
//! - [`outside`]: calls of a fabric to its owner, and events for observers
//! - `pauses`: pauses for senders of this fabric and of others
//! - [`port_faults`]: MTU and injected faults of a NIC's port
//! - [`scenario`]: the beginning of a scenario, and the facts about its run
//! - [`shared_pauses`]: priorities that link models pause for senders of other fabrics
//! - `sight`: events for observers of frames at interfaces
//! - [`switch`]: the learning switch
//! - [`taken_nic`]: the move of a NIC to another fabric
//! - [`turn`]: the parts of a pass
//! - [`turn_limit`]: the work of a source of frames in one turn
//! - [`vlan`]: VLAN membership and tags

#![forbid(unsafe_code)]
// Values from guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod by_port;
pub mod by_rules;
mod classes;
mod data_path;
mod diagnostics;
pub mod external_port;
mod externals;
pub mod fabric;
pub mod fate;
pub mod frame;
mod held_senders;
pub mod holds;
mod link_ends;
mod link_entry;
pub mod link_model;
pub mod link_models;
pub mod nic_port;
pub mod nics;
pub mod others;
pub mod outside;
mod pauses;
pub mod port_faults;
pub mod scenario;
pub mod shared_pauses;
mod sight;
pub mod switch;
pub mod taken_nic;
pub mod turn;
pub mod turn_limit;
pub mod vlan;

pub use fabric::Fabric;
pub use fate::Fate;
pub use frame::Mark;
pub use switch::{AGING, Clash, Egress, PortId, Route, Switch};
