//! Captures of frames, from the engines' rings to pcapng and the packet checker.
//!
//! Knows no engine of a process: an engine calls [`Captures`] with the frames that its fabric shows, and threads take the records.
//!
//! - [`capture`]: what an engine copies of each frame, and into which rings
//! - [`record`]: one record of a ring, and its comments
//! - [`records`]: the records of all engines in the order of their times
//! - `sight`: what captures take of the frames that a fabric shows
//! - [`share`]: what the engines and the reader of a capture share
//! - [`pcapng`]: records as a pcapng stream
//! - [`frame_checker`]: captured frames on their way to the checker
//! - [`checker`]: the packet checker of a running process
//! - `tunnel`: frames in tunnels of a file
//! - `window`: frames of a file in the order in which they were sent
//! - [`check`]: capture files against the rules of the specification

#![forbid(unsafe_code)]
// Values of guests, peers and files reach this crate; arithmetic on them must not panic, except in tests.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod capture;
pub mod check;
pub mod checker;
pub mod frame_checker;
pub mod pcapng;
pub mod record;
pub mod records;
pub mod share;
mod sight;
mod tunnel;
mod window;

pub use capture::Captures;
