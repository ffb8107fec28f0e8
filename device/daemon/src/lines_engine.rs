//! What the engine does with frames on modelled links.

use faultline_fabric::Fate;
use faultline_fabric::PortId;
use faultline_nic::Instant;
use faultline_scenario::trigger::Direction;

use crate::engine::{Engine, TURN_PACKETS};
use faultline_fabric::frame::{Frame, Octets};

impl Engine {
    /// Sends a frame that has come in at port `from` into the link of a port, packet by packet. Returns false if the link has no model.
    #[cold]
    pub(crate) fn enter_link(
        &mut self,
        now: Instant,
        from: PortId,
        (port, dir): (PortId, Direction),
        frame: Frame<'_>,
    ) -> bool {
        if !self.lines.has(port, dir) {
            return false;
        }
        // A packet that cannot be read is lost.
        let _ = self.for_each_packet(from, frame, |engine, octets| {
            let effects = engine.lines.send(now, port, dir, octets);
            if let Some(effects) = effects.filter(|_| engine.captures.is_on()) {
                engine.capture_on_link(now, from, (port, dir), (frame, octets), effects);
            }
        });
        true
    }

    /// Passes frames on that have arrived at the ends of links. Returns true if there were any.
    pub(crate) fn run_lines(&mut self, now: Instant) -> bool {
        let mut worked = false;
        let mut bytes = std::mem::take(&mut self.scratch);
        for index in 0..self.lines.count() {
            for _ in 0..TURN_PACKETS {
                if self.links.is_any_full() {
                    break;
                }
                let Some((port, dir, mark)) = self.lines.receive(now, index, &mut bytes) else {
                    break;
                };
                worked = true;
                let octets = Octets {
                    mark,
                    bytes: &bytes,
                };
                let fate = Fate::on_link(mark.effects);
                if fate != Fate::Passed {
                    if self.captures.is_on() {
                        self.capture(now, port, (port, dir), (fate, None), Frame::Octets(octets));
                    }
                    continue;
                }
                let is_external = port >= self.ports.len();
                match dir {
                    Direction::Tx if is_external => self.send_to_peer(now, port, octets),
                    Direction::Rx if is_external => {
                        self.leave_port_after_link(now, port, octets);
                    }
                    Direction::Rx => self.arrive_after_link(now, port, octets),
                    Direction::Tx => self.cross_switch(now, port, octets),
                }
            }
        }
        self.scratch = bytes;
        worked
    }
}
