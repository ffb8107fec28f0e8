//! What the engine does with frames on modelled links.

use faultline_nic::{Instant, TxFrame};
use faultline_ports::PortId;
use faultline_scenario::trigger::Direction;

use crate::engine::{Engine, TURN_PACKETS};
use crate::lines::Octets;
use faultline_capture::record::Fate;

impl Engine {
    /// Sends a frame of a NIC into the link of a NIC, packet by packet. Returns false if the link has no model.
    #[cold]
    pub(crate) fn enters_line(
        &mut self,
        now: Instant,
        sender: PortId,
        (port, dir): (PortId, Direction),
        frame: &TxFrame,
    ) -> bool {
        if !self.lines.has(port, dir) {
            return false;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        for packet in 0..frame.packets {
            let Some(ram) = self.rams.get(sender) else {
                break;
            };
            // Memory that cannot be read any more: the packet is lost.
            if frame.write_packet(packet, ram, &mut bytes).is_err() {
                continue;
            }
            let octets = Octets::new(frame.origin(), &bytes);
            let Some(effects) = self.lines.send(now, port, dir, octets) else {
                break;
            };
            if self.captures.is_on() {
                match dir {
                    Direction::Tx => self.capture_on_line(now, sender, frame, (effects, &bytes)),
                    // A frame that is not lost is captured where it arrives.
                    Direction::Rx => self.capture_loss(now, (port, dir), effects, octets),
                }
            }
        }
        self.scratch = bytes;
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
                let frame = Octets {
                    mark,
                    bytes: &bytes,
                };
                if Fate::on_line(mark.effects) != Fate::Passed {
                    if self.captures.is_on() {
                        self.capture_loss(now, (port, dir), mark.effects, frame);
                    }
                    continue;
                }
                let is_external = port >= self.ports.len();
                match dir {
                    Direction::Tx if is_external => self.send_octets(now, port, frame),
                    Direction::Rx if is_external => self.enter_from_port(now, port, frame),
                    Direction::Rx => self.arrive_octets(now, port, frame),
                    Direction::Tx => self.forward_octets(now, port, frame),
                }
            }
        }
        self.scratch = bytes;
        worked
    }
}
