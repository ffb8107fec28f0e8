//! NICs, a lossy wire and a virtual clock, in one thread.
//!
//! A [`World`] has hosts whose NICs are in fabrics ([`faultline_fabric`]), as in the emulator, each in one of its own. Frames between
//! fabrics travel as octets over a wire, which can lose, repeat, delay and change them, so that formats and checksums take part. A test
//! can move all NICs to one fabric, where frames pass by reference or over modelled links. Nothing happens by itself: [`World::run`]
//! lets packets and timers happen in order of time until none is left, and the clock jumps from one to the next. Everything random
//! comes from one seed.
//!
//! A [`faultline_checker`] sees all packets. A test fails if a NIC has sent one that violates a rule of the specification, unless the
//! test [permits](World::permit) it. A test also fails if a call of a NIC takes more steps than the work that it charges.
//!
//! - `world`: hosts, and what a test does to them and sees of them
//! - `fabrics`: the fabrics and the clock
//! - `around`: the owner of the fabrics: ways between them, observers of ports
//! - `wire`: modelled links between fabrics
//! - `meter`: work and steps of single calls
//! - `memory`: memory that other processors of a guest change
//! - [`pager`]: the pager of a host

#![forbid(unsafe_code)]

mod around;
mod fabrics;
mod memory;
mod meter;
pub mod pager;
mod wire;
mod world;

pub use memory::{GuestMemory, Persisting};
pub use pager::HostPager;
pub use world::{Host, Pair, SimBus, World, expect_cqe, gid6, packet};
