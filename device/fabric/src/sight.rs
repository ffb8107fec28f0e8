//! Events for observers of frames at interfaces: captures and packet checkers.

use faultline_nic::{DropCause, Instant};
use faultline_scenario::rules::ByRule;
use faultline_scenario::trigger::Direction;

use crate::fabric::Fabric;
use crate::fate::Fate;
use crate::frame::{Frame, Octets, is_rnr_nak};
use crate::link_model::Effects;
use crate::outside::{Outside, Place, Seen, Sight};
use crate::switch::PortId;

impl<O: Outside> Fabric<O> {
    /// Shows a frame that has entered at port `from`, at the interface of a port. `fate`: the fate of the frame there, and the rule that
    /// has taken it.
    #[cold]
    pub(crate) fn show(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, place): (PortId, Place),
        (fate, rule): (Fate, Option<ByRule>),
        frame: Frame<'_>,
    ) {
        self.take_diagnostics_of(out, now, place, frame);
        let sent = frame.by_reference();
        let sight = self.sight(place, fate, frame);
        let sight = Sight {
            rule: rule.or(sight.rule),
            sender: sent.map_or(0, |_| self.sender(from)),
            sent,
            memory: self.memories.get(from),
            ..sight
        };
        out.seen(now, Seen::Frame(sight));
    }

    /// A NIC is about to receive a frame that is shown afterwards.
    #[cold]
    pub(crate) fn show_arriving(&mut self, out: &mut O, now: Instant, to: PortId) {
        self.take_faults(out, now);
        // The NIC may have refused held frames since the last one that was shown.
        self.take_refused(to);
        out.seen(now, Seen::Arriving(to));
    }

    /// A NIC has received a frame.
    #[cold]
    pub(crate) fn show_received(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Frame<'_>,
    ) {
        self.take_faults(out, now);
        let fate = self.take_refused(to).map_or(Fate::Passed, Fate::barred);
        let place = (to, Direction::Rx);
        self.show(out, now, (from, place), (fate, None), frame);
    }

    /// Returns the reason why a NIC has refused a frame since the last call.
    fn take_refused(&mut self, nic: PortId) -> Option<DropCause> {
        self.nics.get_mut(nic)?.nic.take_refused()
    }

    /// Shows a packet that enters the modelled link of a port, with the effects of the link.
    #[cold]
    pub(crate) fn show_on_link(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, (port, dir)): (PortId, Place),
        (frame, octets): (Frame<'_>, Octets<'_>),
        effects: Effects,
    ) {
        let fate = Fate::on_link(effects);
        let goes_to_switch = self.goes_to_switch((port, dir));
        let is_shown = match goes_to_switch {
            // A packet that rules have kept was shown when they took it.
            true => octets.mark.rule.is_none(),
            // A packet that is not lost is shown where it arrives.
            false => fate != Fate::Passed,
        };
        if !is_shown {
            return;
        }
        let sent = frame.by_reference().filter(|_| goes_to_switch);
        if goes_to_switch {
            self.take_diagnostics_of(out, now, (port, dir), frame);
        }
        let sight = self.sight((port, dir), fate, Frame::Octets(octets));
        let sight = Sight {
            effects: sight.effects | effects,
            sender: sent.map_or(0, |_| self.sender(from)),
            sent,
            ..sight
        };
        out.seen(now, Seen::Frame(sight));
    }

    /// Shows a packet that is lost on the modelled link of a port after it has entered the link.
    #[cold]
    pub(crate) fn show_lost_on_link(
        &mut self,
        out: &mut O,
        now: Instant,
        place: Place,
        fate: Fate,
        octets: Octets<'_>,
    ) {
        let sight = Sight {
            is_again: self.goes_to_switch(place),
            ..self.sight(place, fate, Frame::Octets(octets))
        };
        out.seen(now, Seen::Frame(sight));
    }

    /// A frame at an interface, with its octets only.
    fn sight<'a>(&'a self, place: Place, fate: Fate, frame: Frame<'a>) -> Sight<'a, O::Memory> {
        let mark = frame.mark();
        Sight {
            place,
            fate,
            is_again: false,
            effects: mark.effects,
            rule: mark.rule,
            sender: 0,
            frame,
            sent: None,
            memory: None,
            device: self.nics.get(place.0).map(|port| &port.nic),
        }
    }

    /// True if the link of this interface leads to the switch.
    fn goes_to_switch(&self, (port, dir): Place) -> bool {
        let is_external = port >= self.nics.ports();
        is_external == (dir == Direction::Rx)
    }

    /// Takes the diagnostics of the NICs before an RNR NAK of one of them is shown: the diagnostic with its page fault may be among them.
    fn take_diagnostics_of(
        &mut self,
        out: &mut O,
        now: Instant,
        (_, dir): Place,
        frame: Frame<'_>,
    ) {
        if dir == Direction::Tx && frame.by_reference().is_some_and(is_rnr_nak) {
            self.take_diagnostics(out, now);
        }
    }

    /// Takes the diagnostics of the NICs, if page faults must be reported before their frames.
    fn take_faults(&mut self, out: &mut O, now: Instant) {
        if out.names_faults() {
            self.take_diagnostics(out, now);
        }
    }

    /// The sending queue pair of the forwarded frame.
    pub(crate) fn sender(&self, nic: PortId) -> u32 {
        let port = self.nics.get(nic);
        port.map_or(self.sender_of_other, |port| port.nic.last_sender())
    }
}
