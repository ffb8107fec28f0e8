//! A passive checker: compares the RoCEv2 packets that adapters send with the rules of the InfiniBand specification, and their iWARP
//! connections with those of the RFCs.
//!
//! A [`Checker`] gets the packets of one or more places with their times: [`sent`](Checker::sent) by an adapter, and
//! [`received`](Checker::received) by it. It judges sent packets. Received packets are not judged; they determine the responses that the adapter may send. A violation names the packet, the rule with its source, and the error.
//!
//! # Two kinds of places
//!
//! At [`Place::Adapter`] the checker knows all packets that an adapter has received. At [`Place::Link`] a packet may be lost after the
//! checker has seen it, so rules that depend on received packets are not applied; each packet is passed to both `sent` and `received`.
//!
//! # What it does not do
//!
//! - It keeps no payload: the memory of a request may change between two transmissions, so a different payload is legal.
//! - It does not know retry counts and timeouts of queue pairs. It knows the number of READs and atomics that may be outstanding if the
//!   caller passes it with the sender of a packet, or if messages of the connection manager contain it.
//! - It accepts every end of a connection: packets after [`restart_queue_pair`](Checker::restart_queue_pair) belong to another connection.
//!   In a capture, a distant PSN begins another connection.
//! - UD is checked packet by packet: PSNs of datagrams have no meaning to the receiver.
//!
//! # Limits
//!
//! The checker stores [`FLOW_LIMIT`] directions of connections, and [`LOG_LIMIT`] requests at each end of a direction. Beyond these limits
//! it discards the oldest entries and does not judge their packets. Violations of an adapter beyond [`VIOLATION_LIMIT`] are only counted.
//! [`limit_memory`](Checker::limit_memory) sets a memory budget for all of these, with an equal share for each adapter.

#![forbid(unsafe_code)]
// Values from peers and files reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod checker;
mod connection_manager;
mod credits;
mod finding;
mod findings;
mod flow;
mod frame;
mod iwarp;
mod log;
mod memory;
mod order;
mod packet;
mod reads;
mod recent;
mod requester;
mod responder;
mod rule;
mod tracks;
mod unjudged;

pub use checker::Checker;
pub use finding::Finding;
pub use findings::{REMARK_LIMIT, VIOLATION_LIMIT};
pub use flow::FLOW_LIMIT;
pub use frame::{Frame, Place, QueuePair};
pub use iwarp::{End, SegmentHeader};
pub use log::LOG_LIMIT;
pub use order::Presupposed;
pub use rule::{Rule, Severity};
pub use unjudged::{Change, UNJUDGED, Unjudged};
