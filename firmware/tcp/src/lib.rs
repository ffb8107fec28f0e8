//! TCP as an offload engine has it: connections as state machines.
//!
//! A [`Connection`] has no thread, clock or socket, and owns no payload. The data to send stays where it is, in guest memory, until the
//! peer has acknowledged it; a segment that leaves is a header, an offset in the stream and a length, and the owner
//! provides the octets again for a retransmission. The owner of a connection decides about data that arrives, segment by segment ([`Receiver`]): it takes octets,
//! refuses them without an acknowledgment, or holds them while the window closes.
//!
//! Where to look:
//! - [`Connection`]: the calls and their order
//! - `segment`: segments, and the decisions about data
//! - `state`: the states and their table; `timers`
//! - `send`: flight, loss recovery; `congestion`, `rtt`
//! - `receive`: order, window, acknowledgments
//! - `pos`, `ranges`: sequence numbers without wrap-around, and sets of them
//! - [`Listener`]: connections that a peer opens; `isn`: initial sequence numbers
//!
//! Not implemented: TCP Fast Open, urgent data (the octets are ordinary data), RACK-TLP, CUBIC, accurate ECN, SYN cookies, path MTU
//! probes (RFC 8899), reassembly of IP fragments.
//!
//! # Limits
//!
//! A peer can make a connection remember 8 ranges of received and 16 of selectively acknowledged octets. The owner keeps at most a receive
//! window of octets. Each segment that arrives causes at most one segment that acknowledges it. Only these ranges, and the places of a
//! [`Listener`], are allocated ([`Connection::allocated`]).
//!
//! # Panics
//!
//! Nothing here panics, whatever arrives.
//!
//! # Sources
//!
//! RFC 9293 (TCP), 5681, 6582 and 6928 (congestion control), 6298 (timeout), 7323 (window scale, timestamps), 2018 and 6675 (selective
//! acknowledgment), 5961 (blind attacks), 3168 (ECN), 6528 (initial sequence numbers), 1191 (path MTU).

#![no_std]
#![forbid(unsafe_code)]
// Values of peers reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod config;
mod congestion;
mod connection;
mod isn;
mod limit;
mod listener;
mod pos;
mod ranges;
mod receive;
mod rtt;
mod segment;
mod send;
mod state;
mod time;
mod timers;

pub use config::{Config, ConfigError, KeepAlive};
pub use connection::Connection;
pub use isn::{Secret, Start, Tuple};
pub use listener::Listener;
pub use segment::{Data, Receiver, Segment, Source, Transmit, Verdict, reset_for};
pub use state::{Outcome, State};
pub use time::{Instant, Nanos};
