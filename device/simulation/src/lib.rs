//! Scenarios on simulated hosts, in virtual time.
//!
//! A run has up to eight hosts on a wire. Each host has a NIC and software that drives it: a driver, a pager that serves page
//! faults, and traffic as the scenario says. One thread does everything in the order of virtual time, and all random numbers
//! follow from the seed: the same file and seed give the same trace, whose hash identifies the run.
//!
//! - [`scenario`]: a scenario with its rules, and the verdict on it
//! - [`mod@run`]: traffic from beginning to end
//! - `record`: what is kept of a run; [`event`]: its events as values
//! - [`driver`], [`tag`]: the driver of a host; `bus`: what it needs of its surroundings; `memory`: the memory that it shares with its NIC
//! - `host`: a driver with what its connections share
//! - `software`, [`pager`], `connection`: the software of the hosts; `limits`: what a scenario may ask of it
//! - [`process`]: engines with their fabrics, as in the emulator, and the clock
//! - [`trace`]: what has happened, and its hash
//! - [`vopr`]: random processes that must keep their promises
//!
//! A driver that waits for the answer to a command does nothing else meanwhile, and neither does the software of the
//! other hosts. Only NICs and the wire continue.

#![forbid(unsafe_code)]
// Values of scenario files reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod bus;
mod connection;
pub mod driver;
mod error;
pub mod event;
mod fast_key;
mod host;
mod iwarp;
mod limits;
mod memory;
pub mod pager;
pub mod process;
mod record;
pub mod run;
pub mod scenario;
mod software;
mod status;
pub mod tag;
pub mod trace;
pub mod vopr;

pub use bus::{Bus, RAM_BASE};
pub use driver::{Connect, Cq, CqConfig, Driver, Error, Mr, Qp, QpConfig, Send, Sge, Srq};
pub use error::{SimulationError, Stuck};
pub use faultline_scenario::random::Rng;
pub use host::Host;
pub use iwarp::{Private, connection_path, listener_path, open_stream};
pub use memory::Memory;
pub use pager::{FaultService, Pager};
pub use record::FaultTimes;
pub use run::{Ending, Options, Results, run};
pub use scenario::{Outcome, expect_legal_packets, simulate};
pub use tag::{TagOp, TagSrq};
