//! The NIC: the part that is silicon and microcode on an adapter.
//!
//! A [`Nic`] has no thread, clock, file or socket; its documentation describes the calls and their order. So it runs the
//! same in the device, in the harness and in the simulator.
//!
//! Where to look:
//! - `nic`: the calls of a [`Nic`]; `nic/receive`: frames that arrive; `nic/gate`: those that do not pass; `nic/registers`; `nic/faults`
//! - `command_ring`, `admin`, `translation`: commands of the driver, by the layouts of `firmware/abi`
//! - [`mkey`], [`page_table`], `tlb`: memory keys; `device_memory`
//! - `fault`, `ingress`: page faults, and the ingress while fault policy `stall` stops it
//! - `cq`, `eq`, `receive_queue`, `srq`, `ring`: queues in guest memory
//! - `tag`: shared receive queues that match tags
//! - `queues`: queue pairs, work queues and RSS queue pairs by number
//! - `qp`: the state table, requester, responder, datagrams, raw Ethernet, work queues
//! - `frame`, `payload`, `segments`, `path`: packets that leave and arrive; `gate`, `port_security`: those that do not; `gid_table`
//! - `ethernet`, `multicast`, `steering`, `rss`, `headers`: frames that are not addressed to one queue pair
//! - `offload`: checksums and segmentation
//! - `iwarp`: queue pairs over TCP
//! - `diagnostic`: what a NIC reports of its work, for logs, metrics and traces
//! - [`inspect`]: read-only views of the objects, for operators; `nic/operator`: operations for them
//! - [`injection`]: errors and delays that an operator injects
//! - `latency`: a model of the latency of hardware
//! - `work`: the cost of operations, so that no guest can occupy the engine
//!
//! A caller needs [`Nic`], [`NicConfig`], [`Dma`], [`TxFrame`] and the types that these use. Other modules are private, except
//! for [`mkey`], [`page_table`] and [`budget`]: fuzz targets and tests compare them with simpler models of page tables.

#![forbid(unsafe_code)]
// Values from guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod admin;
pub mod budget;
mod command_ring;
mod config;
mod congestion;
mod context;
mod core;
mod counters;
mod cq;
mod device_memory;
mod diagnostic;
mod dma;
mod eq;
mod ethernet;
mod fault;
mod flow_control;
mod frame;
mod gate;
mod gid_table;
mod headers;
mod ingress;
pub mod injection;
pub mod inspect;
mod iwarp;
mod latency;
pub mod mkey;
mod multicast;
#[cfg(feature = "serde")]
pub mod names;
mod netdev;
mod nic;
mod number;
mod offload;
mod origin;
pub mod page_table;
mod park;
mod path;
mod payload;
mod peers;
mod port_security;
mod qp;
mod queues;
mod receive_queue;
mod references;
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
mod vendor_error;
mod work;

pub use crate::config::{Limits, NicConfig, Pitfalls, Transport};
pub use crate::congestion::Dcqcn;
pub use crate::core::DEFAULT_LINK_SPEED_MBPS;
pub use crate::counters::Counters;
pub use crate::device_memory::DEVICE_MEMORY;
pub use crate::diagnostic::{
    CommandQueue, Diagnostic, DriverTimes, DropCause, KeyUse, OverrunQueue, RetryCause,
};
pub use crate::dma::{Dma, DmaError, Persist};
pub use crate::frame::{FrameKind, TxFrame};
pub use crate::injection::{Fact, Filter, Injection, InjectionError, InjectionUse, Outcome, Point};
pub use crate::latency::Latency;
pub use crate::nic::{Nic, ObjectCounts, Remains};
pub use crate::origin::{Origin, ReadyMode};
pub use crate::payload::Payload;
pub use crate::port_security::{AddressRange, PortSecurity};
pub use crate::qp::{FaultPolicy, QpType, State, StateCause, StateCounts};
pub use crate::segments::{Segment, Segments};
pub use crate::time::{Instant, Nanos};
pub use crate::vendor_error::VendorErrors;
pub use crate::work::{TURN as TURN_WORK, count_steps, steps};
