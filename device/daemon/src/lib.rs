//! The data path of a Faultline process: NICs on vfio-user sockets, engine threads with a fabric each.
//!
//! - [`engines`]: threads that own NICs with a fabric, the links between them, their sleep, requests to them, and scenarios
//! - [`nic`]: doorbell pages, device memory, guest memory and interrupts of a NIC
//! - [`server`]: sockets and threads, the PCI function that a vfio-user client sees, and the supervisor
//! - [`log`]: log messages
//! - [`clock`]: the device clock
//! - [`observe`]: copies of the state of NICs
//! - [`peer_rings`]: the rings between a fabric and the thread of an external port

#![forbid(unsafe_code)]
// Values from guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod clock;
pub mod engines;
pub mod log;
pub mod nic;
pub mod observe;
pub mod peer_rings;
pub mod server;

pub use server::Server;
