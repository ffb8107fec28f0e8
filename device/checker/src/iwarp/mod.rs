//! iWARP connections: TCP (RFC 9293), MPA (RFC 5044, 6581), DDP (RFC 5041) and RDMAP (RFC 5040, 7306).
//!
//! A [`Connection`](connection::Connection) begins with a SYN. It is an iWARP connection if its queue pair is known, or if its first data
//! is an MPA request. Octets in order become FPDUs, and their headers messages. A direction with missing octets is not judged
//! from there on, because the place of the next FPDU is not known.
//!
//! - `segment`: TCP segments; `fpdus`: octets become FPDUs; `setup`: MPA requests and replies; `messages`: DDP segments
//! - `side`: one direction; `connection`: both; `streams`: the connections, and their memory
//!
//! # Limits
//!
//! [`CONNECTION_LIMIT`](streams::CONNECTION_LIMIT) connections are stored. A connection has no payload: the first octets of one FPDU, a
//! bounded number of requests, and, if segments may be lost before they are seen, up to 64 KiB that arrived early.

mod connection;
mod fpdus;
mod messages;
mod segment;
mod setup;
mod side;
mod streams;

pub use segment::{End, SegmentHeader};
pub(crate) use streams::{Judged, Origin, Streams};
