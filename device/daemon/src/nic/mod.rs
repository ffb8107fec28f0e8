//! Parts of a NIC outside of the firmware and the fabric.
//!
//! - [`io`]: doorbell pages, device memory, interrupts and log of a NIC
//! - [`doorbell_ring`]: the doorbell ring of a page
//! - [`ram`]: the memory of one guest, as the firmware accesses it
//! - `durable`: threads that flush guest memory to files

pub mod doorbell_ring;
pub(crate) mod durable;
pub mod io;
pub mod ram;
