//! The Faultline process: NICs on vfio-user sockets, engine threads, a switch between them.
//!
//! - [`doorbell_ring`]: the doorbell ring of a page
//! - `between_engines`: what an engine does with frames of and for other engines
//! - `by_port`: what an engine has by port
//! - `capture`: captures of frames, and their rings
//! - `capture_engine`: what the engine copies for them
//! - [`check`]: captures against the rules of the specification
//! - `clock`: the device clock
//! - [`config`]: the NICs to serve and their settings, from a file or the command line
//! - `config_check`: what its NICs and ports must obey together
//! - `config_file`: positions and messages of errors in the file
//! - [`control`]: the control server
//! - [`control_config`]: its settings
//! - [`engine`]: a thread that owns NICs
//! - [`engine_config`]: the division of NICs among engines, in the configuration
//! - `engine_link`: the links between engines
//! - [`engines`]: the engines of a process
//! - `handle`: requests to an engine
//! - [`supervisor`]: the process that holds the connections of clients while another serves them
//! - `line_config`: models of links, in the configuration
//! - `lines`: frames on modelled links
//! - `lines_engine`: what the engine does with them
//! - `link`: MTU and injected faults of a port
//! - [`log_output`]: the thread that writes log messages to standard error
//! - `judge`: captured frames on their way to the oracle
//! - `packet_checker`: the packet checker of a running process
//! - `moved_nic`: a NIC on its way from one engine to another
//! - `nic_log`: the span of a NIC's log messages, and the limit for those that its guest can cause
//! - `notice`: log messages of the engine thread that are not diagnostics of a NIC
//! - `observe`: copies of the state of NICs
//! - `octets`: frames as octets, of external ports and of scenarios
//! - [`port_config`]: ports that lead out of the process, in the configuration
//! - `port`: one NIC with its doorbell pages, device memory and interrupts
//! - `ram`: the memory of one guest, as the firmware accesses it
//! - `scenario`: the scenario that runs on the engine's NICs
//! - `scenario_engine`: what the engine does for it
//! - `diagnostic_log`: diagnostics as log messages
//! - `durable`: threads that flush guest memory to files
//! - `forward`: frames between the NICs of the engine
//! - `external_port`: a port that leads out of the process
//! - `function`: the PCI function that a vfio-user client sees
//! - `storm`: summaries of what a NIC repeats too often for a log line each
//! - [`sleep`]: the protocol by which the engine sleeps and is woken
//! - [`server`]: the sockets and threads
//! - [`service_manager`]: the notification that a service has started
//! - `socket_group`: the group whose members can connect to sockets

#![forbid(unsafe_code)]
// Values of guests, peers and sockets get here, and none of them may stop the process. Tests may.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod between_engines;
mod by_port;
mod capture;
mod capture_engine;
mod capture_record;
mod capture_records;
mod capture_share;
pub mod check;
mod clock;
pub mod config;
mod config_check;
mod config_file;
pub mod control;
pub mod control_config;
mod dcqcn_config;
mod diagnostic_log;
pub mod doorbell_ring;
mod durable;
pub mod engine;
pub mod engine_config;
mod engine_link;
pub mod engines;
mod external_port;
mod forward;
mod function;
mod handle;
mod holds;
mod judge;
mod line_config;
mod lines;
mod lines_engine;
mod link;
pub mod log_output;
mod moved_nic;
mod nic_log;
mod notice;
mod observe;
mod octets;
mod packet_checker;
pub mod pci_id;
mod port;
pub mod port_config;
mod ram;
mod scenario;
mod scenario_engine;
pub mod server;
pub mod service_manager;
mod shared_pauses;
pub mod sleep;
mod socket_group;
mod storm;
pub mod supervisor;
mod vlan_config;

pub use config::{Config, ConfigError, NamedProfile, NicEntry, NicSettings, PollMode};
pub use config_file::{ConfigText, Malformed};
pub use control_config::ControlSettings;
pub use engine_config::{EngineCount, EngineName};
pub use server::Server;
