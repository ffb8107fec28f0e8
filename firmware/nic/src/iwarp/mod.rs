//! iWARP: queue pairs over TCP (RFC 5040 to 5044, 6581, 7306). `docs/iwarp.md` describes them.
//!
//! - `qp`: the queue pair and its states; `stream`: its connection; `begin`: work requests become messages; `transmit`: segments; `end`: ends
//! - `work`: the send queue; `receives`: the receive queue
//! - `send`, `markers`, `copies`: the stream that leaves; `deliver`, `kept`: the stream that arrives; `execute`: DDP segments; `refusal`: Terminate
//! - `setup`: MPA requests and replies; `connections`: listeners, requests, owners of connections
//! - `page_wait`: pages of data that leaves; `path`, `arrived`: headers; `view`: for operators

mod arrived;
mod begin;
mod connections;
mod copies;
mod deliver;
mod end;
mod execute;
mod kept;
mod markers;
mod page_wait;
mod path;
mod qp;
mod receives;
mod refusal;
mod send;
mod setup;
mod stream;
mod transmit;
mod view;
mod work;

pub(crate) use arrived::Arrived;
pub(crate) use connections::{
    Connections, Listening, Owner, Request, SETUP_TIMEOUT, Stage, is_any, to_tcp,
};
pub(crate) use deliver::MAX_SETUP;
pub(crate) use path::StreamPath;
pub(crate) use qp::{StreamConfig, StreamQp, agreed};
pub(crate) use setup::{Offer, parse as parse_setup};
pub use view::{ConnectionInfo, ListenerInfo};
