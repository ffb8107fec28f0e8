//! The control server: HTTP and JSON on a unix socket, by request also on a loopback address.
//!
//! It runs in a thread of its own. What it knows of the NICs it copies in closures that the engine executes between two
//! steps; at most a few of them wait at a time, however many clients there are.
//!
//! - `access`: closures for the engine
//! - `error`: errors as JSON
//! - `extract`: strict queries and bodies
//! - [`view`], [`objects`]: the JSON that clients see
//! - [`diagnostics`], `nics`, `lists`, `dump`, `engine`, [`ports`], [`scenario`], [`rules`], `trace`, `capture`, [`check`],
//!   `metrics`: the paths
//! - [`api`]: all paths together, and their description (OpenAPI)
//! - `guard`: token and `Host` header of TCP requests
//! - [`listen`]: sockets, connections, time limits
//! - `places`: the number of connections, and which one gives way to another
//! - `impatient`: the time limit for writing
//! - `parts`: bodies whose parts come from another task
//! - [`serve()`]: a process with its control server

#![forbid(unsafe_code)]
// Values of clients reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod access;
pub mod api;
mod capture;
pub mod check;
pub mod diagnostics;
mod dump;
mod engine;
mod error;
mod extract;
mod guard;
mod impatient;
pub mod listen;
mod lists;
mod metrics;
mod nics;
pub mod objects;
mod parts;
mod places;
pub mod ports;
pub mod rules;
pub mod scenario;
pub mod serve;
mod trace;
pub mod version;
pub mod view;

pub use listen::{ControlError, ControlServer};
pub use serve::{ServeError, serve};
