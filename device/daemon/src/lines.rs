//! Frames on modelled links: between a NIC and the switch, and between an external port and its peer.
//!
//! What enters such a link becomes octets. Without any, the data path tests one flag for each frame.

use faultline_nic::{Instant, Origin};
use faultline_ports::PortId;
use faultline_ports::line::{Line, LineModel};
use faultline_scenario::trigger::Direction;

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

    /// Takes the lines of a port away.
    pub(crate) fn take(&mut self, port: PortId) -> Vec<(PortId, Direction, Line<Origin>)> {
        self.all.extract_if(.., |(of, ..)| *of == port).collect()
    }

    /// Adds lines that were taken away.
    pub(crate) fn put(&mut self, lines: Vec<(PortId, Direction, Line<Origin>)>) {
        self.all.extend(lines);
    }

    /// True if there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn find(&mut self, port: PortId, dir: Direction) -> Option<&mut Line<Origin>> {
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

    /// Number of lines.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// A line by its index, with port and direction.
    pub(crate) fn get_mut(
        &mut self,
        index: usize,
    ) -> Option<&mut (PortId, Direction, Line<Origin>)> {
        self.all.get_mut(index)
    }

    /// All lines, with port and direction.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PortId, Direction, &Line<Origin>)> {
        self.all.iter().map(|(port, dir, line)| (*port, *dir, line))
    }

    /// True if a link pauses the frames of port `sender`, a NIC if it is below `nics`. The link of a sender to the switch pauses that
    /// sender; a link from the switch pauses all that may send into it, because the destination of the next frame is not known
    /// before it is built.
    pub(crate) fn pause(&mut self, now: Instant, sender: PortId, nics: usize) -> bool {
        let mut paused = false;
        for (port, dir, line) in &mut self.all {
            let is_external = *port >= nics;
            let from_switch = is_external == (*dir == Direction::Tx);
            if from_switch == (*port != sender) {
                paused |= line.pauses(now.0);
            }
        }
        paused
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
