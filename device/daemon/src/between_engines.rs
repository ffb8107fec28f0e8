//! What an engine does with frames of and for NICs of other engines.

use faultline_fabric::{PortId, Route};
use faultline_nic::Instant;
use faultline_telemetry::FrameEvent;
use faultline_wire::PrioritySet;

use crate::engine::{Engine, TURN_BYTES, TURN_PACKETS};
use crate::engine_link::Contents;
use crate::port::number;
use faultline_fabric::frame::{Frame, FrameMut, Octets};

/// No port of this engine: for [`LinkModels::paused`](LinkModels::paused), a sender of another one.
const OTHER_ENGINE: PortId = PortId::MAX;

impl Engine {
    /// True if a port is of this engine.
    #[inline]
    pub(crate) fn has_port(&self, id: PortId) -> bool {
        match id.checked_sub(self.ports.len()) {
            None => self.ports.get(id).is_some(),
            Some(external) => external < self.externals.len(),
        }
    }

    /// Sends a frame to the engine of another port; `to` is `None`: to all others.
    pub(crate) fn send_to_engines(
        &mut self,
        now: Instant,
        from: PortId,
        to: Option<PortId>,
        frame: Frame<'_>,
    ) {
        let frame = match frame {
            Frame::Octets(Octets { mark, bytes }) => {
                self.links
                    .send_octets((now, from), to, (mark.origin, bytes));
                return;
            }
            Frame::ByReference(frame) => frame,
        };
        // What has come from another engine goes to none.
        if let (Some(port), Some(ram)) = (self.ports.get_mut(from), self.rams.get(from)) {
            let sender = port.nic.last_sender();
            if !self.links.send((now, from, sender), to, frame, ram) {
                port.nic.payload_not_read();
            }
            self.hold_sender(from, to);
        }
    }

    /// Takes frames of other engines, as many of each as one turn allows. Returns the time of the rest of the pass, and true if there
    /// were any. While a NIC pauses its senders they stay on their links, as those of external ports do.
    pub(crate) fn run_links(&mut self, mut now: Instant) -> (Instant, bool) {
        self.switch.refresh();
        self.links.reclaim();
        now = now.max(self.links.latest);
        let mut worked = false;
        // What pauses all that send into this engine pauses other engines, too: their frames stay on the link. Those of single
        // priorities are paused where they are sent.
        if self.paused_for_other_engines() == PrioritySet::ALL || self.senders_are_paused() {
            return (now, worked);
        }
        for engine in 0..self.links.count() {
            let (mut frames, mut octets) = (0, 0);
            while frames < TURN_PACKETS && octets < TURN_BYTES {
                let Some(taken) = self.take_linked(&mut now, engine) else {
                    break;
                };
                frames = frames.saturating_add(1);
                octets = octets.saturating_add(taken);
                worked = true;
            }
        }
        (now, worked)
    }

    /// Priorities that link models of this engine pause for senders on other engines.
    fn paused_for_other_engines(&self) -> PrioritySet {
        self.lines.paused(OTHER_ENGINE, self.ports.len())
    }

    /// Tells the other engines which priorities they must not send, and learns what they have told.
    pub(crate) fn share_pauses(&mut self) {
        // If all are paused, frames stay on the links.
        let paused = self.paused_for_other_engines();
        let single = match paused == PrioritySet::ALL {
            true => PrioritySet::NONE,
            false => paused,
        };
        if self.shared_pauses.publish(single) {
            self.links.wake_all();
        }
        self.shared_pauses.refresh();
    }

    /// Priorities that link models of all engines pause for a port of this one.
    #[inline]
    pub(crate) fn paused_priorities(&self, sender: PortId) -> PrioritySet {
        let of_others = self.shared_pauses.paused();
        match self.lines.is_empty() {
            true => of_others,
            false => of_others.or(self.lines.paused(sender, self.ports.len())),
        }
    }

    /// Takes all frames of other engines. The number of frames on a link is bounded.
    pub(crate) fn drain_links(&mut self) {
        let mut now = self.now().max(self.links.latest);
        for engine in 0..self.links.count() {
            while self.take_linked(&mut now, engine).is_some() {}
        }
    }

    /// Takes a frame of another engine. Returns its length; `None` if there is none. The clock is read once for each pass, so the
    /// frame may have a later time than this pass. What it causes is later than the frame: `now` is moved.
    fn take_linked(&mut self, now: &mut Instant, engine: usize) -> Option<usize> {
        let mut linked = self.links.take(engine)?;
        *now = (*now).max(Instant(linked.at.0.saturating_add(1)));
        self.links.latest = *now;
        let length = match linked.contents {
            Contents::Typed => {
                let length = linked.frame.len();
                let seen = self.recorder.frame(linked.sender, &linked.frame, length);
                let frame = FrameMut::ByReference(&mut linked.frame);
                self.receive_linked(*now, linked.from, frame, seen.as_ref());
                length
            }
            Contents::Octets(origin, length) => {
                let mut octets = std::mem::take(&mut self.scratch);
                if self.links.read_octets(engine, &linked, length, &mut octets) {
                    let frame = FrameMut::Octets(Octets::new(origin, &octets));
                    self.receive_linked(*now, linked.from, frame, None);
                }
                self.scratch = octets;
                length
            }
        };
        self.links.give_back(engine, linked);
        Some(length)
    }

    /// Delivers a frame of another engine to the ports of this one. `seen` is recorded at each NIC that receives it.
    #[inline(always)]
    fn receive_linked(
        &mut self,
        now: Instant,
        from: PortId,
        mut frame: FrameMut<'_>,
        seen: Option<&FrameEvent>,
    ) {
        let Some(addresses) = frame.as_frame().addresses() else {
            return;
        };
        match self
            .switch
            .forward(from, addresses, || frame.as_frame().vlan_tag())
        {
            Route::To(to) if self.has_port(to) => {
                let is_received = self.egress(now, (from, to), &mut frame).is_some();
                if let Some(seen) = seen.filter(|_| is_received) {
                    self.recorder.received(number(to), seen);
                }
            }
            Route::Flood => {
                self.flood(now, from, frame, seen);
            }
            // The table has changed since the other engine has read it.
            Route::To(_) | Route::Forged | Route::NoMember => {}
        }
    }

    /// True if a frame of another engine can be taken, or one can be sent again.
    pub(crate) fn has_link_work(&self) -> bool {
        self.links.has_frame() && !self.senders_are_paused() || self.links.has_room_again()
    }
}
