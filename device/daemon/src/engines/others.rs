//! Frames of other engines: the engine takes them from its links and gives them to its fabric.

use faultline_fabric::frame::{FrameMut, Octets};
use faultline_fabric::others::OtherFrame;
use faultline_nic::Instant;

use crate::engines::engine::Engine;
use crate::engines::link::Contents;

impl Engine {
    /// Takes frames of other engines, up to one turn for each. Returns the time of the rest of the pass, and true if
    /// there were any. While a NIC pauses its senders the frames stay on their links, like frames of external ports.
    pub(crate) fn run_links(&mut self, now: Instant) -> (Instant, bool) {
        self.io.links.reclaim();
        let mut now = self.fabric.time_after_others(now);
        let mut worked = false;
        if self.fabric.pauses_others() {
            return (now, worked);
        }
        for engine in 0..self.io.links.count() {
            let mut turn = self.fabric.begin_turn();
            while self.fabric.may_go_on(&turn) {
                let Some((packets, octets)) = self.take_linked(&mut now, engine) else {
                    break;
                };
                turn.take(packets, octets, 0);
                worked = true;
            }
        }
        (now, worked)
    }

    /// Takes all frames of other engines. The number of frames on a link is bounded.
    pub(crate) fn drain_links(&mut self) {
        let mut now = self.fabric.time_after_others(self.now());
        for engine in 0..self.io.links.count() {
            while self.take_linked(&mut now, engine).is_some() {}
        }
    }

    /// Takes a frame of another engine. Returns its packets and octets; `None` if there is none.
    fn take_linked(&mut self, now: &mut Instant, engine: usize) -> Option<(u32, usize)> {
        let mut linked = self.io.links.take(engine)?;
        let (at, from, sender) = (linked.at, linked.from, linked.sender);
        let other = |frame| OtherFrame {
            at,
            from,
            sender,
            frame,
        };
        let taken = match linked.contents {
            Contents::Typed => {
                let taken = (linked.frame.packets, linked.frame.len());
                let frame = other(FrameMut::ByReference(&mut linked.frame));
                self.fabric.receive_from_other(&mut self.io, now, frame);
                taken
            }
            Contents::Octets(origin, length) => {
                let mut octets = std::mem::take(&mut self.octets);
                if self
                    .io
                    .links
                    .read_octets(engine, &linked, length, &mut octets)
                {
                    let frame = other(FrameMut::Octets(Octets::new(origin, &octets)));
                    self.fabric.receive_from_other(&mut self.io, now, frame);
                }
                self.octets = octets;
                (1, length)
            }
        };
        self.io.links.give_back(engine, linked);
        Some(taken)
    }

    /// True if a frame of another engine can be taken, or one can be sent again.
    pub(crate) fn has_link_work(&self) -> bool {
        let links = &self.io.links;
        links.has_frame() && !self.fabric.senders_are_paused() || links.has_room_again()
    }
}
