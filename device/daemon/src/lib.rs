//! The Faultline process: NICs on vfio-user sockets, one engine thread, a switch between them.
//!
//! - [`doorbell_ring`]: the doorbell ring of a page
//! - [`config`]: the NICs to serve and their settings, from a file or the command line
//! - `config_file`: positions and messages of errors in the file
//! - [`engine`]: the thread that owns all NICs
//! - `port`: one NIC with its doorbell pages, device memory and interrupts
//! - `ram`: the memory of one guest, as the firmware accesses it
//! - `durable`: threads that flush guest memory to files
//! - `function`: the PCI function that a vfio-user client sees
//! - `log_limit`: the limit for messages that a guest can cause
//! - [`sleep`]: the protocol by which the engine sleeps and is woken
//! - [`server`]: the sockets and threads

#![forbid(unsafe_code)]

pub mod config;
mod config_file;
pub mod doorbell_ring;
mod durable;
pub mod engine;
mod function;
mod log_limit;
mod port;
mod ram;
pub mod server;
pub mod sleep;

pub use config::{Config, ConfigError, NicEntry, NicSettings, PollMode};
pub use config_file::Malformed;
pub use server::Server;
