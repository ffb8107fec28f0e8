//! Frames on modelled links: between a NIC and the switch, and between an external port and its peer.
//!
//! A frame that enters such a link becomes octets. Without modelled links, the data path tests one flag for each frame.

use crate::frame::Mark;
use crate::link_model::{Effects, LinkModel, ModelledLink};
use crate::outside::Place;
use crate::switch::PortId;
use faultline_nic::Instant;
use faultline_scenario::trigger::Direction;
use faultline_wire::PrioritySet;

use crate::frame::Octets;

/// The modelled links of an engine.
#[derive(Debug, Default)]
pub struct LinkModels {
    /// The directions that have a model. `Tx` is away from the NIC, and to the peer of an external port.
    all: Vec<(Place, ModelledLink<Mark>)>,
}

impl LinkModels {
    /// Adds the models of a port: away from the NIC or to the peer, and the other direction.
    pub fn add(&mut self, port: PortId, models: [Option<LinkModel>; 2]) {
        for (dir, model) in [Direction::Tx, Direction::Rx].into_iter().zip(models) {
            if let Some(model) = model {
                self.all.push(((port, dir), ModelledLink::new(model)));
            }
        }
    }

    /// Removes the links of a port and returns them.
    pub fn take(&mut self, port: PortId) -> Vec<(Place, ModelledLink<Mark>)> {
        self.all
            .extract_if(.., |((of, _), _)| *of == port)
            .collect()
    }

    /// Adds links that [`LinkModels::take`] has returned.
    pub fn put(&mut self, links: Vec<(Place, ModelledLink<Mark>)>) {
        self.all.extend(links);
    }

    /// True if there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// True if a direction of a link has a model.
    pub fn has(&self, port: PortId, dir: Direction) -> bool {
        let mut all = self.all.iter();
        all.any(|(place, _)| *place == (port, dir))
    }

    /// Sends octets into a link. Returns the effects that are known now; `None` if this direction of the link has no model.
    pub fn send(
        &mut self,
        now: Instant,
        port: PortId,
        dir: Direction,
        frame: Octets<'_>,
    ) -> Option<Effects> {
        let mut all = self.all.iter_mut();
        let (_, line) = all.find(|(place, _)| *place == (port, dir))?;
        Some(line.send(now.0, frame.bytes, frame.mark))
    }

    /// Number of modelled directions of links.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Takes the next frame that has arrived at the end of the link with this index into `frame`. Returns the place, and the mark of the
    /// frame with the effects of the link; `None` if there is no frame. A frame that was lost late is returned too, with this effect.
    pub fn receive(
        &mut self,
        now: Instant,
        index: usize,
        frame: &mut Vec<u8>,
    ) -> Option<(PortId, Direction, Mark)> {
        let ((port, dir), line) = self.all.get_mut(index)?;
        let (mark, effects) = line.receive(now.0, frame)?;
        let mark = Mark {
            effects: mark.effects | effects,
            ..mark
        };
        Some((*port, *dir, mark))
    }

    /// All modelled links, with port and direction.
    pub fn iter(&self) -> impl Iterator<Item = (PortId, Direction, &ModelledLink<Mark>)> {
        let all = self.all.iter();
        all.map(|((port, dir), link)| (*port, *dir, link))
    }

    /// The model of a direction of a link, if there is one.
    pub fn get(&self, port: PortId, dir: Direction) -> Option<&ModelledLink<Mark>> {
        let mut all = self.all.iter();
        let found = all.find(|(place, _)| *place == (port, dir));
        found.map(|(_, link)| link)
    }

    /// Updates the pauses of all links. Called once in each pass, so the frames of one sender do not pause others in the same pass.
    pub fn update_pauses(&mut self, now: Instant) {
        for (_, line) in &mut self.all {
            line.update_pause(now.0);
        }
    }

    /// Priorities that links pause for port `sender`, which is a NIC if it is below `nics`. The link of a sender to the switch pauses that
    /// sender; a link from the switch pauses all senders, because the destination of the next frame is unknown before it is built.
    pub fn paused(&self, sender: PortId, nics: usize) -> PrioritySet {
        let mut paused = PrioritySet::NONE;
        for ((port, dir), line) in &self.all {
            let is_external = *port >= nics;
            let from_switch = is_external == (*dir == Direction::Tx);
            if from_switch == (*port != sender) {
                paused = paused.or(line.paused());
            }
        }
        paused
    }

    /// Changes the rate of a direction of a link, in Mbit/s; 0: not limited. Returns false if it has no model.
    pub fn set_rate(&mut self, port: PortId, dir: Direction, mbps: u32) -> bool {
        let mut all = self.all.iter_mut();
        let link = all.find(|(place, _)| *place == (port, dir));
        link.map(|(_, link)| link.set_rate(mbps)).is_some()
    }

    /// Time at which the next frame arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.all.iter().filter_map(|(_, line)| line.next_deadline());
        deadlines.min().map(Instant)
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::Origin;

    use super::*;

    /// NICs 0 to 2; the link of NIC 2 pauses priority 3; port 3 is an external one.
    fn lines() -> LinkModels {
        let model = LinkModel {
            rate_mbps: 1000,
            pause_bytes: 2000,
            pfc: PrioritySet::NONE.with(3),
            ..LinkModel::default()
        };
        let mut lines = LinkModels::default();
        lines.add(2, [None, Some(model)]);
        lines
    }

    /// Sends frames of priority 3 to NIC 2.
    fn fill(lines: &mut LinkModels, now: Instant) {
        let mut bytes = [0; 1000];
        bytes[12..16].copy_from_slice(&[0x81, 0, 3 << 5, 1]);
        for _ in 0..4 {
            let frame = Octets::new(Origin::Unknown, &bytes);
            assert_eq!(
                lines.send(now, 2, Direction::Rx, frame),
                Some(Effects::NONE)
            );
        }
    }

    #[test]
    fn a_sender_that_fills_a_link_takes_no_turn_from_others() {
        let mut lines = lines();
        lines.update_pauses(Instant(0));
        fill(&mut lines, Instant(0));
        for sender in [1, 3] {
            assert!(lines.paused(sender, 3).is_empty());
        }
        lines.update_pauses(Instant(1));
        let three = PrioritySet::NONE.with(3);
        for sender in [0, 1, 3, PortId::MAX] {
            assert_eq!(lines.paused(sender, 3), three);
        }
        assert!(lines.paused(2, 3).is_empty(), "it does not send into it");
    }

    #[test]
    fn a_pause_goes_with_the_link() {
        let mut lines = lines();
        fill(&mut lines, Instant(0));
        lines.update_pauses(Instant(0));
        let taken = lines.take(2);
        assert!(lines.paused(1, 3).is_empty());
        let mut others = LinkModels::default();
        others.put(taken);
        assert!(!others.paused(1, 3).is_empty());
        others.update_pauses(Instant(1_000_000));
        assert!(others.paused(1, 3).is_empty());
    }
}
