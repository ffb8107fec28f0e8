//! The data path of a Faultline process: NICs on vfio-user sockets, engine threads with a fabric each.
//!
//! - [`doorbell_ring`]: the doorbell ring of a page
//! - `between_engines`: frames of other engines
//! - [`clock`]: the device clock
//! - [`engine`]: a thread that owns NICs
//! - [`engine_io`]: what an engine thread has around its fabric
//! - `engine_link`: the links between engines
//! - [`engines`]: the engines of a process
//! - [`handle`]: requests to an engine
//! - [`supervisor`]: the process that holds the connections of clients while another serves them
//! - [`manual_engines`]: the engines of a process without threads, whose passes the caller makes
//! - [`log_output`]: the thread that writes log messages to standard error
//! - `missed`: doorbells that have not waked the engine
//! - `moved_nic`: a NIC on its way from one engine to another
//! - [`nic_log`]: the span of a NIC's log messages, and the limit for those that its guest can cause
//! - `notice`: log messages of the engine thread that are not diagnostics of a NIC
//! - [`observe`]: copies of the state of NICs
//! - [`nic_io`]: doorbell pages, device memory, interrupts and log of a NIC
//! - [`peer_rings`]: the rings between a fabric and the thread of an external port
//! - [`ram`]: the memory of one guest, as the firmware accesses it
//! - [`scenario`]: the scenario that runs on the engine's NICs
//! - `scenario_engine`: its beginning, its end, and the requests that only the engine can carry out
//! - [`diagnostic_log`]: diagnostics as log messages
//! - `durable`: threads that flush guest memory to files
//! - `function`: the PCI function that a vfio-user client sees
//! - `storm`: summaries of what a NIC repeats too often for a log line each
//! - [`sleep`]: the protocol by which the engine sleeps and is woken
//! - [`server`]: the sockets and threads
//! - `socket_group`: the group whose members can connect to sockets

#![forbid(unsafe_code)]
// Values of guests, peers and sockets get here, and none of them may stop the process. Tests may.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod between_engines;
pub mod clock;
pub mod diagnostic_log;
pub mod doorbell_ring;
mod durable;
pub mod engine;
pub mod engine_io;
mod engine_link;
pub mod engines;
mod function;
pub mod handle;
pub mod log_output;
pub mod manual_engines;
mod missed;
mod moved_nic;
pub mod nic_io;
pub mod nic_log;
mod notice;
pub mod observe;
pub mod peer_rings;
pub mod ram;
pub mod scenario;
mod scenario_engine;
pub mod server;
pub mod sleep;
mod socket_group;
mod storm;
pub mod supervisor;

pub use server::Server;
