//! Frames that leave modelled links.

use faultline_nic::Instant;
use faultline_scenario::trigger::Direction;

use crate::fabric::Fabric;
use crate::fate::Fate;
use crate::frame::Octets;
use crate::outside::Outside;

impl<O: Outside> Fabric<O> {
    /// Passes on the frames that have arrived at the ends of links. Returns true if there were any.
    pub(crate) fn take_from_links(&mut self, out: &mut O, now: Instant) -> bool {
        let mut worked = false;
        let mut bytes = std::mem::take(&mut self.octets);
        for index in 0..self.links.count() {
            let mut turn = self.begin_turn();
            while self.may_go_on(&turn) && !out.is_any_full() {
                let Some((port, dir, mark)) = self.links.receive(now, index, &mut bytes) else {
                    break;
                };
                worked = true;
                turn.take(1, bytes.len(), 0);
                let octets = Octets {
                    mark,
                    bytes: &bytes,
                };
                let fate = Fate::on_link(mark.effects);
                if fate != Fate::Passed {
                    if out.watches_frames() {
                        self.show_lost_on_link(out, now, (port, dir), fate, octets);
                    }
                    continue;
                }
                let is_external = port >= self.nics.ports();
                match dir {
                    Direction::Tx if is_external => self.send_to_peer(out, now, port, octets),
                    Direction::Rx if is_external => {
                        self.leave_port_after_link(out, now, port, octets);
                    }
                    Direction::Rx => self.arrive_after_link(out, now, port, octets),
                    Direction::Tx => self.cross_switch(out, now, port, octets),
                }
            }
        }
        self.octets = bytes;
        worked
    }
}
