//! What Faultline puts on an Ethernet link: RoCEv2 packets as typed headers and as bytes.
//!
//! One file per header, each with a typed representation, a checked `parse` and an `emit`;
//! [`packet`] puts them together and [`icrc`] guards them. Numbers on the network are big-endian,
//! the iCRC excepted.
//!
//! This crate does not know queue pairs, does not buffer, does not allocate, and does not judge
//! whether a packet makes sense to anyone: it says what is in it.
//!
//! # Panics
//!
//! Nothing in this crate panics, whatever bytes or field values it is given: what cannot be read
//! or written is a [`WireError`].
//!
//! # Features
//!
//! `std` lets the CRC use carry-less multiplication where the processor has it (detected at run
//! time), which is several times as fast. Nothing else changes.
//!
//! # Sources
//!
//! "IBTA volume 1" is the InfiniBand Architecture Specification, volume 1, release 1.4 unless said
//! otherwise; annex A17 is RoCEv2. Where the specification could not be consulted, the clause is
//! given no finer than is certain, and Linux `rdma_rxe` decided.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod cursor;
mod error;

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod checksum;
pub mod deth;
pub mod ethernet;
pub mod ext;
pub mod icrc;
pub mod ip;
pub mod mtu;
pub mod opcode;
pub mod packet;
pub mod reth;
pub mod udp;

pub use aeth::{Aeth, NakCode, Syndrome, ack_timeout_ns, rnr_timer_code, rnr_timer_ns};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::{Bth, Psn};
pub use deth::Deth;
pub use error::WireError;
pub use ethernet::{EtherType, Ethernet, MacAddr, VlanTag};
pub use ext::{CNP_PAYLOAD_LEN, Feth, Ieth, ImmDt, XrcEth};
pub use icrc::ICRC_LEN;
pub use ip::{Gid, Ip, Ipv4, Ipv6};
pub use mtu::PathMtu;
pub use opcode::{Headers, OpKind, Opcode, OpcodeInfo, Position, Service};
pub use packet::{MAX_HEADER_LEN, Parsed, RoceHeader, pad_len, parse, seal};
pub use reth::Reth;
pub use udp::{ROCE_V2_PORT, Udp};
