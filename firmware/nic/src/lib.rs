//! The NIC: what would be silicon and its microcode.
//!
//! A [`Nic`] has no thread, clock, file or socket. Events go in by `handle`-like calls (a register access, a
//! doorbell, a frame, a deadline) with the time and the guest's memory as arguments; frames, interrupts and
//! the next deadline come out of `poll_*` and [`Nic::next_deadline`]. So it runs the same in the device, in
//! the harness and in the simulator.
//!
//! Where to look:
//! - `registers`, `admin`, `translation`: the driver's side, `firmware/abi` in action
//! - [`mkey`], [`page_table`], `tlb`: memory regions; [`device_memory`]
//! - `fault`, `ingress`: what happens when a page is not there
//! - [`cq`], [`eq`], [`srq`], [`ring`]: queues in guest memory
//! - [`tag`]: shared receive queues that look into messages
//! - [`qp`]: the state table, requester, responder, datagrams, raw Ethernet
//! - [`frame`], [`path`]: packets on their way out and in
//! - `ethernet`, `multicast`, `steering`, [`rss`], `headers`: who gets a frame that is for no queue pair alone
//! - [`offload`]: checksums and segmentation
//! - `work`: what things cost, so that nobody has the engine for himself

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
pub mod budget;
mod command_ring;
pub mod config;
mod context;
mod core;
pub mod counters;
pub mod cq;
pub mod device_memory;
pub mod dma;
pub mod eq;
mod ethernet;
mod fault;
pub mod frame;
mod headers;
mod ingress;
pub mod mkey;
mod multicast;
mod netdev;
mod nic;
pub mod offload;
pub mod page_table;
pub mod park;
mod path;
mod payload;
pub mod qp;
pub mod receive_queue;
mod registers;
pub mod ring;
pub mod rss;
mod segments;
pub mod srq;
mod steering;
pub mod table;
pub mod tag;
pub mod time;
mod tlb;
mod translation;
mod work;

pub use crate::config::{Limits, NicConfig, Pitfalls};
pub use crate::device_memory::DEVICE_MEMORY;
pub use crate::dma::{Dma, DmaError, Persist};
pub use crate::frame::{FrameKind, Payload, Segment, Segments, TxFrame};
pub use crate::nic::{Nic, Remains};
pub use crate::time::{Instant, Nanos};
pub use crate::work::{TURN as TURN_WORK, count_steps, steps};
