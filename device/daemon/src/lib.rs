//! The data path of a Faultline process: NICs on vfio-user sockets, engine threads, a switch between them.
//!
//! - [`doorbell_ring`]: the doorbell ring of a page
//! - `between_engines`: what an engine does with frames of and for other engines
//! - `capture_engine`: what the engine copies for them
//! - [`clock`]: the device clock
//! - `data_path`: the way of a frame from its source to the ports that receive it
//! - [`engine`]: a thread that owns NICs
//! - `engine_link`: the links between engines
//! - [`engines`]: the engines of a process
//! - [`handle`]: requests to an engine
//! - [`supervisor`]: the process that holds the connections of clients while another serves them
//! - `lines_engine`: what the engine does with them
//! - [`manual_engines`]: the engines of a process without threads, whose passes the caller makes
//! - [`log_output`]: the thread that writes log messages to standard error
//! - `missed`: doorbells that have not waked the engine
//! - `moved_nic`: a NIC on its way from one engine to another
//! - [`nic_log`]: the span of a NIC's log messages, and the limit for those that its guest can cause
//! - `notice`: log messages of the engine thread that are not diagnostics of a NIC
//! - [`observe`]: copies of the state of NICs
//! - [`port`]: one NIC with its doorbell pages, device memory and interrupts
//! - [`ram`]: the memory of one guest, as the firmware accesses it
//! - [`scenario`]: the scenario that runs on the engine's NICs
//! - `scenario_engine`: what the engine does for it
//! - [`diagnostic_log`]: diagnostics as log messages
//! - `durable`: threads that flush guest memory to files
//! - [`external_port`]: a port that leads out of the process
//! - `externals_engine`: what the engine does with these ports
//! - `function`: the PCI function that a vfio-user client sees
//! - `storm`: summaries of what a NIC repeats too often for a log line each
//! - [`sleep`]: the protocol by which the engine sleeps and is woken
//! - [`server`]: the sockets and threads
//! - `socket_group`: the group whose members can connect to sockets

#![forbid(unsafe_code)]
// Values of guests, peers and sockets get here, and none of them may stop the process. Tests may.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod between_engines;
mod capture_engine;
pub mod clock;
mod data_path;
pub mod diagnostic_log;
pub mod doorbell_ring;
mod durable;
pub mod engine;
mod engine_link;
pub mod engines;
pub mod external_port;
mod externals_engine;
mod function;
pub mod handle;
mod lines_engine;
pub mod log_output;
pub mod manual_engines;
mod missed;
mod moved_nic;
pub mod nic_log;
mod notice;
pub mod observe;
pub mod port;
pub mod ram;
pub mod scenario;
mod scenario_engine;
pub mod server;
pub mod sleep;
mod socket_group;
mod storm;
pub mod supervisor;

pub use server::Server;
