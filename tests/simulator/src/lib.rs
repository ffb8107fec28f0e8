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

mod link;
mod memory;
pub mod pager;
mod wire;
mod world;

pub use link::Link;
pub use memory::{GuestMemory, Persisting};
pub use pager::HostPager;
pub use wire::{Impairment, Rate};
pub use world::{Host, Pair, SimBus, World, expect_cqe, packet};
