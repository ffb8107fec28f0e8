//! NICs, a lossy wire and a virtual clock, in one thread.
//!
//! A [`World`] has NICs with their guests' memory and a wire between them. Frames travel as octets, so that
//! formats and checksums take part. Nothing happens by itself: [`World::run`] lets packets and timers happen
//! in order of time until none is left, and the clock jumps from one to the next. Everything random comes from
//! one seed.
//!
//! A [`faultline_oracle`] sees all packets. A test fails if a NIC has sent one that violates a rule of the specification,
//! unless the test [permits](World::permit) it.

#![forbid(unsafe_code)]

mod bus;
pub mod driver;
mod link;
mod memory;
pub mod pager;
mod rng;
pub mod tag;
mod wire;
mod world;

pub use bus::{Bus, RAM_BASE};
pub use driver::{Connect, Cq, CqConfig, Driver, Error, Mr, Qp, QpConfig, Send, Sge, Srq};
pub use faultline_oracle::Rule;
pub use link::Link;
pub use memory::{Memory, Persisting};
pub use pager::{Answer, Pager};
pub use rng::Rng;
pub use tag::{TagOp, TagSrq};
pub use wire::{Impairment, Rate};
pub use world::{Host, Pair, SimBus, World, expect_cqe, packet};
