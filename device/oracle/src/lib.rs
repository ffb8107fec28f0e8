//! A passive checker of RoCEv2 packets: what an adapter sends, compared with the rules of the InfiniBand specification.
//!
//! An [`Oracle`] gets the packets of one or more places with their times: [`sent`](Oracle::sent) by an adapter, and
//! [`received`](Oracle::received) by it. It judges what was sent. What was received is not judged; it is what the adapter
//! may answer. A violation names the packet, the rule with its source, and what was wrong.
//!
//! # Two kinds of places
//!
//! At [`Place::Adapter`] the oracle knows exactly what an adapter has received. At [`Place::Link`] a packet may be lost
//! after the oracle has seen it, so that rules about what the adapter has received are not applied; each packet is passed
//! to `sent` and to `received` there.
//!
//! # What it does not do
//!
//! - It keeps no payload: the memory of a request may change between two transmissions, so a different payload is legal.
//! - It knows no retry counts and timeouts of queue pairs. It knows how many READs and atomics may be outstanding if the caller
//!   says so with the sender of a packet, or the ends have agreed on it by messages of the connection manager that were passed.
//! - It accepts every end of a connection: what comes after [`renew`](Oracle::renew) is another connection. In a capture, a
//!   connection begins anew if its PSNs do.
//! - UD is checked packet by packet: PSNs of datagrams have no meaning to the receiver.
//!
//! # Limits
//!
//! Each direction of a connection remembers [`LOG_LIMIT`] requests at each end, and the oracle [`FLOW_LIMIT`] directions; what is beyond is
//! forgotten, oldest first, and not judged. Violations of an adapter beyond [`VIOLATION_LIMIT`] are only counted. With
//! [`limit_memory`](Oracle::limit_memory) all of them have a budget, of which each adapter has its share.

#![forbid(unsafe_code)]
// Values of peers and files get here, and none of them may stop the process. Tests may.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod connection_manager;
mod credits;
mod finding;
mod findings;
mod flow;
mod frame;
mod log;
mod memory;
mod oracle;
mod order;
mod packet;
mod reads;
mod recent;
mod requester;
mod responder;
mod rule;
mod tracks;
mod unjudged;

pub use finding::Finding;
pub use findings::{REMARK_LIMIT, VIOLATION_LIMIT};
pub use flow::FLOW_LIMIT;
pub use frame::{Frame, Place, QueuePair};
pub use log::LOG_LIMIT;
pub use oracle::Oracle;
pub use order::Presupposed;
pub use rule::{Rule, Severity};
pub use unjudged::{Change, UNJUDGED, Unjudged};
