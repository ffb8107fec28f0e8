//! The configuration of a process: its NICs, ports, engines and control server, from a file or the command line.
//!
//! Without sockets, threads and engines: it reads the settings, and reports problems with their places.
//!
//! - [`config`]: the NICs to serve and their settings
//! - `check`: what NICs and ports must obey together
//! - `file`: positions and messages of errors in the file
//! - [`control`]: the control server
//! - `dcqcn`: the congestion control of a NIC
//! - [`engine`]: the division of NICs among engines
//! - `link_model`: models of links
//! - [`pci_id`]: the PCI identity of a NIC
//! - [`port`]: ports that lead out of the process
//! - `vlan`: the VLANs of a NIC or port

#![forbid(unsafe_code)]
// Values of users reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod addresses;
mod check;
pub mod config;
pub mod control;
mod dcqcn;
pub mod engine;
mod file;
mod link_model;
pub mod pci_id;
pub mod port;
mod vlan;

pub use config::{
    Config, ConfigError, NamedProfile, NicEntry, NicSettings, PollMode, SupervisedFiles,
};
pub use control::ControlSettings;
pub use engine::{EngineCount, EngineName};
pub use file::{ConfigText, Malformed};
