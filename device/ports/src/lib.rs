//! The L2 switch between the ports of a process, and ports that lead out of it.
//!
//! The switch selects the output ports of a frame from its addresses and its VLAN. A port that leads out of the process has a thread, which
//! passes frames as octets between the engine and a stream socket or a TAP device. [`mod@line`] is the model of a link, with rate, delay
//! and random impairments. [`owned`] is a ring of frames between two engines of the process.
#![forbid(unsafe_code)]
// Values of guests, peers and sockets get here, and none of them may stop the process. Tests may.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
#![cfg_attr(
    test,
    expect(
        clippy::cast_possible_truncation,
        reason = "test data is cut to the width of a field"
    )
)]

pub mod address;
pub mod channel;
mod classes;
pub mod line;
pub mod owned;
pub mod stream;
mod switch;
pub mod tap;
mod vhost_device;
pub mod vhost_net;
pub mod virtio_net;
mod virtqueue;
pub mod vlan;

pub use switch::{AGING, Clash, Egress, PortId, Route, Switch};
