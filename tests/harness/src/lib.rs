//! A driver in user space for a Faultline device, over its vfio-user socket.
//!
//! It is the device's first driver and its tests' means: it lends its own memory to the device, maps the
//! doorbell pages, starts the command rings and event queues, and offers verbs at native speed:
//!
//! - [`Nic`]: connection, start and reset, registers, commands, counters, doorbells
//! - [`Context`], [`Pd`], [`Mr`], [`Ah`], [`EventQueue`], [`Cq`], [`Srq`], [`Qp`]: the objects, destroyed
//!   when dropped
//! - [`Flow`], [`Wq`], [`RwqIndTable`], [`RssQp`], [`TagSrq`]: who gets which frames and messages
//! - [`SendWr`], [`Wc`]: what goes into a QP and comes out of a CQ
//! - [`client`]: the protocol, with the means to speak badly
//! - [`testbed`]: a process with NICs on threads of this one, and nodes that are ready to talk
//! - [`traffic`]: data that is verified while something else goes on
//! - [`frames`]: Ethernet frames, and who receives them
//! - [`paging`]: regions on demand, and their page faults answered
//!
//! Posting, polling and doorbells neither allocate nor lock, with one exception: a doorbell to a device that
//! sleeps is a message on the socket.

#![forbid(unsafe_code)]

pub mod client;
mod cq;
mod device_memory;
mod domain;
mod error;
mod event;
pub mod frames;
mod nic;
pub mod paging;
mod patience;
mod qp;
mod ram;
mod ring;
mod steering;
mod tag;
pub mod testbed;
pub mod traffic;
mod wr;

pub use cq::{Cq, Wc};
pub use device_memory::Dm;
pub use domain::{Ah, Context, Mr, Pd, Remote, path_to};
pub use error::{DriverError, PostError, RingError};
pub use event::EventQueue;
pub use faultline_scenario::random::Rng;
pub use nic::{Counters, Nic, NicOptions, Reset};
pub use qp::{Link, Qp, QpOptions, QpType, Srq, connect};
pub use ram::{Buf, Choices, Ram, pattern};
pub use ring::RingLayout;
pub use steering::{Flow, HASH_KEY_LEN, Receiver, RssQp, RwqIndTable, Wq};
pub use tag::{TagOp, TagSrq, eager, rendezvous};
pub use wr::{Data, SendWr};
