//! A NIC with its port of the switch.

use faultline_nic::{Instant, Nic};
use faultline_scenario::trigger::Direction;

use crate::fate::Fate;
use crate::frame::Frame;
use crate::port_faults::PortFaults;

/// A NIC of a fabric.
#[derive(Debug)]
pub struct NicPort {
    /// The NIC.
    pub nic: Nic,
    /// Bus mastering is on and the function is in D0. Otherwise it performs no DMA and sends no interrupts.
    pub bus_master: bool,
    /// Injected faults.
    pub faults: PortFaults,
    /// The driver does not know yet of a change of the link.
    pub link_changed: bool,
    /// Diagnostics that the NIC had no room for.
    pub lost_diagnostics: u64,
    /// Frames passed the port at the last call of [`NicPort::goes_down`].
    was_up: bool,
}

impl NicPort {
    /// The port of a NIC without bus mastering.
    pub fn new(nic: Nic) -> Self {
        Self {
            nic,
            bus_master: false,
            faults: PortFaults::default(),
            link_changed: false,
            lost_diagnostics: 0,
            was_up: false,
        }
    }

    /// When its next timer is due. A function without bus mastering is not run, so its timers are not handled until bus mastering is on.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.bus_master {
            true => self.nic.next_deadline(),
            false => None,
        }
    }

    /// Returns true if the port has stopped passing frames since the last call.
    #[inline]
    pub(crate) fn goes_down(&mut self) -> bool {
        let is_up = self.nic.is_link_up() && self.nic.is_interface_up();
        std::mem::replace(&mut self.was_up, is_up) && !is_up
    }

    /// True if it has nothing to do before its next deadline, unless something happens. No event wakes a queue pair
    /// that waits for the end of a pause: the owner sets the paused priorities in each turn of the NIC.
    #[inline]
    pub(crate) fn may_rest(&self) -> bool {
        let nic = &self.nic;
        // Its turns begin with bus mastering, which ends the rest.
        if !self.bus_master {
            return !nic.has_diagnostics();
        }
        !self.link_changed && !nic.has_events() && !nic.may_send() && !nic.waits_for_pause()
    }

    /// True if it has work other than sending that is due at once.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.bus_master && (self.nic.has_events() || self.nic.has_deferred_work())
    }

    /// True if it has something to send, and may.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.bus_master && self.nic.is_running() && self.nic.may_send()
    }

    /// True if it pauses all that send to it. A NIC without bus mastering accepts no frames, so its pause would never end, and is ignored.
    #[inline]
    pub(crate) fn pauses_senders(&self) -> bool {
        self.bus_master && self.nic.is_stalled()
    }

    /// Returns true if a frame of this number of packets is dropped because the link is down, or because the function
    /// may not access memory.
    #[inline]
    pub(crate) fn drops_as_down(&mut self, packets: u32) -> bool {
        let is_down = !self.bus_master || !self.nic.is_link_up();
        if is_down {
            let down = &mut self.faults.counts.down;
            *down = down.wrapping_add(u64::from(packets));
        }
        is_down
    }

    /// Returns the fate of a frame at this port, before rules are asked.
    #[inline(always)]
    pub(crate) fn fate(&mut self, dir: Direction, frame: Frame<'_>) -> Fate {
        match self.drops_as_down(frame.packets()) {
            true => Fate::LinkDown,
            false => self.faults.fate(dir, frame),
        }
    }
}
