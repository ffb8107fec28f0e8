//! What the engine does with frames on modelled links.

use faultline_nic::{Instant, TxFrame};
use faultline_ports::PortId;
use faultline_scenario::trigger::Direction;

use crate::engine::{Engine, TURN_PACKETS};

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
        let (Some(line), Some(ram)) = (self.lines.find(port, dir), self.rams.get(sender)) else {
            return false;
        };
        for packet in 0..frame.packets {
            // Memory that cannot be read any more: the packet is lost.
            if frame.write_packet(packet, ram, &mut self.scratch).is_ok() {
                line.send(now.0, &self.scratch, frame.origin());
            }
        }
        true
    }

    /// Passes frames on that have arrived at the ends of links. Returns true if there were any.
    pub(crate) fn run_lines(&mut self, now: Instant) -> bool {
        let mut worked = false;
        let mut frame = std::mem::take(&mut self.scratch);
        for index in 0..self.lines.count() {
            for _ in 0..TURN_PACKETS {
                if self.links.is_any_full() {
                    break;
                }
                let Some((port, dir, line)) = self.lines.get_mut(index) else {
                    break;
                };
                let (port, dir) = (*port, *dir);
                let Some(origin) = line.receive(now.0, &mut frame) else {
                    break;
                };
                worked = true;
                let is_external = port >= self.ports.len();
                match dir {
                    Direction::Tx if is_external => self.send_octets(port, &frame),
                    Direction::Rx if !is_external => {
                        self.arrive_octets(now, port, (origin, &frame))
                    }
                    Direction::Tx | Direction::Rx => {
                        self.forward_octets(now, port, (origin, &frame))
                    }
                }
            }
        }
        self.scratch = frame;
        worked
    }
}
