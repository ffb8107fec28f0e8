//! Ports that lead out of the process.
//!
//! Each has a thread, which passes frames as octets between the engine and a stream socket, a TAP device or a vhost-user front-end.
//! [`owned`] is a ring of frames between two engines of the process.
#![forbid(unsafe_code)]
// Values of guests, peers and sockets reach this crate; arithmetic on them must not panic, except in tests.
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
pub mod owned;
pub mod stream;
pub mod tap;
mod vhost_device;
pub mod vhost_net;
pub mod virtio_net;
mod virtqueue;
