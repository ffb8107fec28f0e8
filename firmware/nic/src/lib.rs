//! The NIC: what would be silicon and its microcode.
//!
//! A [`Nic`] has no thread, clock, file or socket; its documentation describes the calls and their order. So it runs the
//! same in the device, in the harness and in the simulator.
//!
//! Where to look:
//! - `nic`: the calls of a [`Nic`]; `nic/receive`: frames that arrive; `nic/registers`; `nic/faults`
//! - `command_ring`, `admin`, `translation`: commands of the driver, by the layouts of `firmware/abi`
//! - [`mkey`], [`page_table`], `tlb`: memory keys; `device_memory`
//! - `fault`, `ingress`: page faults, and the ingress while fault policy `stall` stops it
//! - `cq`, `eq`, `receive_queue`, `srq`, `ring`: queues in guest memory
//! - `tag`: shared receive queues that match tags
//! - `queues`: queue pairs, work queues and RSS queue pairs by number
//! - `qp`: the state table, requester, responder, datagrams, raw Ethernet, work queues
//! - `frame`, `payload`, `segments`, `path`: packets that leave and arrive
//! - `ethernet`, `multicast`, `steering`, `rss`, `headers`: frames that are not addressed to one queue pair
//! - `offload`: checksums and segmentation
//! - `work`: the cost of operations, so that no guest can occupy the engine
//!
//! A caller needs [`Nic`], [`NicConfig`], [`Dma`], [`TxFrame`] and the types that these use. Other modules are private, except
//! for [`mkey`], [`page_table`] and [`budget`]: fuzz targets and tests compare them with simpler models of page tables.

#![forbid(unsafe_code)]

mod admin;
pub mod budget;
mod command_ring;
mod config;
mod context;
mod core;
mod counters;
mod cq;
mod device_memory;
mod dma;
mod eq;
mod ethernet;
#[allow(unreachable_pub, reason = "most of its items are `pub` without need")]
mod fault;
mod frame;
mod headers;
mod ingress;
pub mod mkey;
mod multicast;
mod netdev;
#[allow(unreachable_pub, reason = "most of its items are `pub` without need")]
mod nic;
mod offload;
pub mod page_table;
mod park;
mod path;
mod payload;
#[allow(
    clippy::too_many_arguments,
    unreachable_pub,
    reason = "most of its items are `pub` without need"
)]
mod qp;
mod queues;
mod receive_queue;
mod registers;
mod ring;
mod rss;
mod segments;
mod srq;
mod steering;
mod table;
mod tag;
mod time;
mod tlb;
mod translation;
mod work;

pub use crate::config::{Limits, NicConfig, Pitfalls};
pub use crate::counters::Counters;
pub use crate::device_memory::DEVICE_MEMORY;
pub use crate::dma::{Dma, DmaError, Persist};
pub use crate::frame::{FrameKind, TxFrame};
pub use crate::nic::{Nic, ObjectCounts, Remains};
pub use crate::payload::Payload;
pub use crate::qp::FaultPolicy;
pub use crate::segments::{Segment, Segments};
pub use crate::time::{Instant, Nanos};
pub use crate::work::{TURN as TURN_WORK, count_steps, steps};
