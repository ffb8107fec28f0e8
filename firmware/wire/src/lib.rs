//! Parses and writes RoCEv2 packets, and the headers of iWARP: TCP, MPA, DDP, RDMAP.
//!
//! One file per header, each with a typed representation, a checked `parse` and an `emit`.
//! [`packet`] combines the headers into packets; [`icrc`] computes the invariant CRC; [`field`] is a table of all fields with the
//! values that they may have, for checkers. [`mpa`], [`ddp`] and [`rdmap`] are the layers of iWARP above [`tcp`]. Numbers on the wire are big-endian, except the iCRC.
//!
//! This crate has no queue pairs, does not buffer, does not allocate, and does not check a packet
//! against any transport state.
//!
//! # Panics
//!
//! Nothing in this crate panics, for any bytes and field values: parse and write errors are
//! [`WireError`].
//!
//! # Features
//!
//! With `std`, the CRC uses carry-less multiplication if the processor supports it (detected at run
//! time), which is several times as fast. Nothing else changes.
//!
//! # Speed
//!
//! Each packet passes `parse` of Ethernet, IP and BTH. They are inlined into their caller, whatever the compiler estimates: a
//! header that is returned in memory is written in small pieces and read in large ones, which the processor can't forward. For
//! the same reason whole packets are parsed by code for each IP version, and the iCRC masks headers in whole words.
//! `cargo lab bench wire` measures it.
//!
//! # Sources
//!
//! "IBTA volume 1" is the InfiniBand Architecture Specification, volume 1, release 1.4 unless said
//! otherwise; annex A17 is RoCEv2. Where the specification was not available, only the
//! chapter is cited, and Linux `rdma_rxe` is the reference.

#![no_std]
#![forbid(unsafe_code)]
// Values of guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[cfg(test)]
extern crate std;

mod cursor;
mod error;

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod checksum;
pub mod ddp;
pub mod deth;
pub mod ethernet;
pub mod ext;
pub mod field;
pub mod icrc;
pub mod ip;
pub mod mpa;
pub mod mtu;
pub mod opcode;
pub mod packet;
mod peer_query;
pub mod priority;
pub mod rdmap;
pub mod reth;
pub mod tcp;
mod terminate_code;
pub mod udp;

pub use aeth::{
    Aeth, NakCode, Syndrome, ack_timeout_ns, credit_count, rnr_timer_code, rnr_timer_ns,
};
pub use atomic::{AtomicAckEth, AtomicEth};
pub use bth::{Bth, GSI_QPN, MULTICAST_QPN, Psn};
pub use deth::{Deth, GSI_QKEY};
pub use error::WireError;
pub use ethernet::{EtherType, Ethernet, MacAddr, VlanTag};
pub use ext::{CNP_PAYLOAD_LEN, Feth, Ieth, ImmDt, XrcEth};
pub use icrc::ICRC_LEN;
pub use ip::{Gid, Ip, Ipv4, Ipv6};
pub use mtu::PathMtu;
pub use opcode::{Headers, OpKind, Opcode, OpcodeInfo, Position, Service};
pub use packet::{MAX_HEADER_LEN, Parsed, RoceHeader, pad_len, parse, seal};
pub use peer_query::{PeerQuery, QueryEnd};
pub use priority::PrioritySet;
pub use reth::Reth;
pub use tcp::{SackBlocks, Seq, Tcp, TcpFlags, TcpOptions, Timestamps};
pub use udp::{ROCE_V2_PORT, Udp};
