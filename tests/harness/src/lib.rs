//! A user-space driver for the device, for tests and benchmarks.
//!
//! [`Driver`] speaks the ABI over a [`Bus`]: [`SocketBus`] is a vfio-user socket with memory and doorbell pages
//! shared with the device's process; the simulator has a bus that calls the NIC in the same thread. The verbs
//! that it offers are thin: what a test posts is what the device reads.

#![forbid(unsafe_code)]

pub mod bus;
pub mod driver;
pub mod socket;

pub use bus::{Bus, RAM_BASE};
pub use driver::{Connect, Cq, CqConfig, Driver, Error, Mr, Qp, QpConfig, Send, Sge, Srq};
pub use socket::SocketBus;
