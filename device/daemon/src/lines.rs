//! Frames on modelled links: between a NIC and the switch, and between an external port and its peer.
//!
//! What enters such a link becomes octets. Without any, the data path tests one flag for each frame.

use faultline_nic::{Instant, Origin, TxFrame};
use faultline_ports::PortId;
use faultline_ports::line::{Line, LineModel};
use faultline_scenario::trigger::Direction;

use crate::engine::{Engine, TURN_PACKETS};

/// The modelled links of an engine.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The directions that have a model. `Tx` is away from the NIC, and to the peer of an external port.
    all: Vec<(PortId, Direction, Line<Origin>)>,
}

impl Lines {
    /// Adds the models of a port: away from the NIC or to the peer, and the other direction.
    pub(crate) fn add(&mut self, port: PortId, models: [Option<LineModel>; 2]) {
        for (dir, model) in [Direction::Tx, Direction::Rx].into_iter().zip(models) {
            if let Some(model) = model {
                self.all.push((port, dir, Line::new(model)));
            }
        }
    }

    /// True if there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn find(&mut self, port: PortId, dir: Direction) -> Option<&mut Line<Origin>> {
        let is_it = |(of, direction, _): &&mut (PortId, Direction, Line<Origin>)| {
            (*of, *direction) == (port, dir)
        };
        self.all.iter_mut().find(is_it).map(|(_, _, line)| line)
    }

    /// Sends octets into a link. Returns false if this direction of it has no model.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        port: PortId,
        dir: Direction,
        (origin, frame): (Origin, &[u8]),
    ) -> bool {
        let line = self.find(port, dir);
        line.map(|line| line.send(now.0, frame, origin)).is_some()
    }

    /// All lines, with port and direction.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PortId, Direction, &Line<Origin>)> {
        self.all.iter().map(|(port, dir, line)| (*port, *dir, line))
    }

    /// When the next frame arrives.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self
            .all
            .iter()
            .filter_map(|(_, _, line)| line.next_deadline());
        deadlines.min().map(Instant)
    }
}

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
        for index in 0..self.lines.all.len() {
            for _ in 0..TURN_PACKETS {
                let Some((port, dir, line)) = self.lines.all.get_mut(index) else {
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
