//! Further observers of the events of an engine, such as a capture.

use std::fmt::Debug;

use crate::memory::Memory;
use faultline_fabric::outside::Seen;
use faultline_nic::Instant;

/// An observer of the events of an engine. Page faults are reported to it before the frame that has caused them.
pub trait Tap: Debug {
    /// The engine begins a pass at this time: no later event has an earlier time.
    fn begin_pass(&mut self, now: Instant);
    /// An event.
    fn seen(&mut self, now: Instant, seen: &Seen<'_, Memory>);
}
