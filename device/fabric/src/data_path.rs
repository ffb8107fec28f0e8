//! The path of a frame through a fabric, by reference or as octets ([`Frame`]).
//!
//! Injected faults and rules of a NIC act between the NIC and its modelled link, rules of an external port between the switch and the
//! link. A frame passes, in either direction:
//!
//! ```text
//! NIC ── faults ── rules ── link ── switch ── rules ── link ── peer of an external port
//! ```
//!
//! | Function | Called for | Next stations |
//! |---|---|---|
//! | [`Fabric::leave_nic`] | a frame that a NIC sends | faults, rules, link, switch |
//! | [`Fabric::leave_nic_after_rules`] | a packet that rules have kept there | link, switch |
//! | [`Fabric::leave_port`] | a packet of the peer of an external port | link, rules, switch |
//! | [`Fabric::leave_port_after_link`] | a packet that was on the link there | rules, switch |
//! | [`Fabric::cross_switch`] | a packet that was on the link of a NIC, or that rules have kept at an external port | switch |
//! | [`Fabric::egress`] | a frame that leaves the switch, at each destination | link, faults, rules, NIC; or rules, link, peer |
//! | [`Fabric::arrive_after_link`] | a packet that was on the link to a NIC | faults, rules, NIC |
//! | [`Fabric::receive_after_rules`] | a packet that rules have kept there | NIC |
//! | [`Fabric::pass_to_peer`] | a packet that rules have kept at an external port | link, peer |
//! | [`Fabric::send_to_peer`] | a packet that was on the link to a peer | peer |
//!
//! All of these functions except `egress` know the form of the frame. The functions between them are `inline(always)`, so the form is not
//! tested at run time: such tests would add 5 % of instructions to an 8-byte WRITE.
//!
//! A frame by reference becomes octets where it enters a modelled link, where a rule keeps it, and at an external port. The sources of
//! frames are in `turn.rs`, `externals.rs`, `others.rs` and `link_ends.rs`.

use faultline_nic::{Instant, TxFrame};
use faultline_scenario::rules::ByRule;
use faultline_scenario::trigger::Direction;
use faultline_wire::ethernet::VlanTag;

use crate::fabric::Fabric;
use crate::fate::Fate;
use crate::frame::{Frame, FrameMut, Mark, Octets};
use crate::link_model::Effects;
use crate::outside::{Outside, Place, Seen};
use crate::switch::{Clash, Egress, PortId, Route};

impl<O: Outside> Fabric<O> {
    /// A NIC sends a frame, of length `len`. It goes to NICs by reference, which copy the payload during the call, and to external
    /// ports as octets. The frame is not changed afterwards. Returns the NIC if there is one destination and it has received the frame.
    #[inline(always)]
    pub(crate) fn leave_nic(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        sent: &mut TxFrame,
        len: usize,
    ) -> Option<PortId> {
        let port = self.nics.awake_port(from);
        let sender = port.as_ref().map_or(0, |port| port.nic.last_sender());
        let mut frame = FrameMut::ByReference(sent);
        let place = (from, Direction::Tx);
        let fate = port.map_or(Fate::LinkDown, |port| match port.nic.last_barred() {
            None => port.fate(Direction::Tx, frame.as_frame()),
            Some(cause) => Fate::barred(cause),
        });
        let dropped = self.drop_at_nic(out, now, (from, place), frame.as_frame(), fate);
        let is_dropped = dropped.is_some();
        let is_on_link = !is_dropped
            && !self.links.is_empty()
            && self.enter_link(out, now, from, place, frame.as_frame());
        let route = match is_dropped || is_on_link {
            true => None,
            false => self.route(out, now, from, frame.as_frame()),
        };
        // `enter_link` has shown packets that are on a modelled link.
        if out.watches_frames() && !is_on_link {
            let fate = dropped.unwrap_or_else(|| (fate_of_route(route), None));
            self.show(out, now, (from, place), fate, frame.as_frame());
        }
        let to = match route {
            None => {
                if is_dropped {
                    self.pass_kept_frames(out, now);
                }
                None
            }
            Some(route) => self.follow(out, now, (from, route), &mut frame),
        };
        let seen = Seen::Sent {
            nic: from,
            sender,
            frame: sent,
            len,
            to,
        };
        out.seen(now, seen);
        to
    }

    /// A packet that rules have kept leaves a NIC.
    pub(crate) fn leave_nic_after_rules(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        octets: Octets<'_>,
    ) {
        let (place, frame) = ((from, Direction::Tx), Frame::Octets(octets));
        if self.links.is_empty() || !self.enter_link(out, now, from, place, frame) {
            self.cross_switch(out, now, from, octets);
        }
    }

    /// A packet of the peer of an external port enters, unless the port drops it (`fate`).
    #[inline]
    pub(crate) fn leave_port(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        fate: Fate,
        octets: Octets<'_>,
    ) {
        let (place, frame) = ((from, Direction::Rx), Frame::Octets(octets));
        // `enter_link` shows a packet that enters a modelled link.
        if fate == Fate::Passed
            && !self.links.is_empty()
            && self.enter_link(out, now, from, place, frame)
        {
            return;
        }
        if out.watches_frames() {
            self.show(out, now, (from, place), (fate, None), frame);
        }
        if fate == Fate::Passed {
            self.leave_port_after_link(out, now, from, octets);
        }
    }

    /// A packet of the peer of an external port goes to the switch, unless rules take it.
    #[inline]
    pub(crate) fn leave_port_after_link(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        octets: Octets<'_>,
    ) {
        let frame = Frame::Octets(octets);
        if !self.drop_by_rules(out, now, from, (from, Direction::Rx), frame) {
            self.cross_switch(out, now, from, octets);
        }
    }

    /// Passes a packet that has entered the process, or has left a NIC, through the switch.
    #[inline]
    pub(crate) fn cross_switch(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        octets: Octets<'_>,
    ) {
        match self.route(out, now, from, Frame::Octets(octets)) {
            None => {}
            // The destination is behind the external port that has sent the packet.
            Some(Route::To(to)) if to == from && from >= self.nics.ports() => {}
            Some(route) => {
                let mut frame = FrameMut::Octets(octets);
                self.follow(out, now, (from, route), &mut frame);
            }
        }
    }

    /// Returns the route of a frame; `None` if the frame has no addresses.
    #[inline(always)]
    fn route(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        frame: Frame<'_>,
    ) -> Option<Route> {
        let route = self
            .switch
            .forward(from, frame.addresses()?, || frame.vlan_tag());
        // A NIC cannot send from another NIC's address, so its frames cause no clash.
        if let Frame::Octets(_) = frame
            && let Some(clash) = self.switch.take_clash()
        {
            self.report_clash(out, now, clash);
        }
        Some(route)
    }

    /// Delivers a frame to the destinations of its route. Returns the NIC if there is one destination and it has received the frame.
    #[inline(always)]
    fn follow(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, route): (PortId, Route),
        frame: &mut FrameMut<'_>,
    ) -> Option<PortId> {
        match route {
            Route::To(to) => return self.egress(out, now, (from, to), frame).then_some(to),
            Route::Flood => {
                if out.has_others() {
                    self.send_to_others(out, now, from, None, frame.as_frame());
                }
                self.flood(out, now, from, frame.reborrow());
            }
            Route::NoMember => self.count_no_member(from, frame.as_frame().packets()),
            Route::Forged => {
                if let Some((src, _)) = frame.as_frame().addresses()
                    && let Some(port) = self.nics.get_mut(from)
                {
                    port.nic.source_refused(frame.as_frame().packets());
                    out.seen(now, Seen::ForgedSource(from, src));
                }
            }
        }
        None
    }

    /// Delivers a frame to all ports of this fabric except `from`.
    #[inline(never)]
    pub(crate) fn flood(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        mut frame: FrameMut<'_>,
    ) {
        let count = self.nics.ports().saturating_add(self.externals.len());
        for to in 0..count {
            if to == from || !self.has_port(to) {
                continue;
            }
            if self.egress(out, now, (from, to), &mut frame) {
                self.note_received(out, now, (from, to), frame.as_frame());
            }
        }
    }

    /// Reports that a NIC has received a frame by reference that was flooded or came from another fabric. Octets are reported where each
    /// NIC receives them.
    #[inline(always)]
    pub(crate) fn note_received(
        &self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Frame<'_>,
    ) {
        if let Frame::ByReference(_) = frame {
            let seen = Seen::Received {
                nic: to,
                sender: self.sender(from),
                frame,
            };
            out.seen(now, seen);
        }
    }

    /// Counts packets of a port that are dropped because of their VLAN.
    fn count_no_member(&mut self, from: PortId, packets: u32) {
        let counter = match from < self.nics.ports() {
            true => self
                .nics
                .get_mut(from)
                .map(|port| &mut port.faults.counts.vlan),
            false => self.external_mut(from).map(|port| &mut port.counts.vlan),
        };
        if let Some(counter) = counter {
            *counter = counter.saturating_add(packets.into());
        }
    }

    /// Delivers a frame to a port with the VLAN tag of this port, unless the port is not a member of its VLAN. Another fabric gets the
    /// frame unchanged and applies its own VLANs. Returns as [`Fabric::arrive`].
    #[inline(always)]
    pub(crate) fn egress(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: &mut FrameMut<'_>,
    ) -> bool {
        if self.switch.is_vlan_aware() && self.has_port(to) {
            match self.switch.egress(from, to, frame.as_frame().vlan_tag()) {
                Egress::NoMember => return false,
                Egress::Keep => {}
                Egress::Tag(new) => {
                    return self.arrive_with_tag(out, now, (from, to), frame.reborrow(), new);
                }
            }
        }
        self.arrive(out, now, (from, to), frame.as_frame())
    }

    /// As [`Fabric::arrive`], with another VLAN tag.
    #[inline(never)]
    fn arrive_with_tag(
        &mut self,
        out: &mut O,
        now: Instant,
        ports: (PortId, PortId),
        mut frame: FrameMut<'_>,
        tag: Option<VlanTag>,
    ) -> bool {
        let before = frame.as_frame().vlan_tag();
        let mut buffer = std::mem::take(&mut self.tagged);
        let work = self.arrive(out, now, ports, frame.with_vlan_tag(tag, &mut buffer));
        self.tagged = buffer;
        if let FrameMut::ByReference(frame) = frame {
            frame.set_vlan_tag(before);
        }
        work
    }

    /// A frame leaves the switch to a NIC, an external port or another fabric. Returns true if a NIC of this fabric has received it.
    #[inline(always)]
    fn arrive(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Frame<'_>,
    ) -> bool {
        if to >= self.nics.ports() {
            match frame {
                Frame::Octets(octets) if self.has_port(to) => {
                    self.arrive_at_port(out, now, from, to, octets);
                }
                frame => self.leave_fabric(out, now, (from, to), frame),
            }
            return false;
        }
        let place = (to, Direction::Rx);
        if !self.links.is_empty() && self.enter_link(out, now, from, place, frame) {
            return false;
        }
        self.arrive_at_nic(out, now, (from, to), frame)
    }

    /// A packet that was on the link to a NIC arrives there.
    pub(crate) fn arrive_after_link(
        &mut self,
        out: &mut O,
        now: Instant,
        to: PortId,
        octets: Octets<'_>,
    ) {
        self.arrive_at_nic(out, now, (to, to), Frame::Octets(octets));
    }

    /// A frame arrives at a NIC, whose faults and rules may take it. Returns as [`Fabric::arrive`].
    #[inline(always)]
    fn arrive_at_nic(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Frame<'_>,
    ) -> bool {
        let Some(port) = self.nics.get_mut(to) else {
            self.leave_fabric(out, now, (from, to), frame);
            return false;
        };
        // Octets are filtered in `receive`, because a rule may keep them until the NIC has another address.
        if let Frame::ByReference(sent) = frame {
            if !port.nic.accepts(sent.dst()) {
                return false;
            }
            if sent.packets > 1 && port.faults.drops_packets() {
                self.arrive_singly(out, now, (from, to), frame);
                return false;
            }
        }
        let place = (to, Direction::Rx);
        let fate = port.fate(place.1, frame);
        if let Some(dropped) = self.drop_at_nic(out, now, (from, place), frame, fate) {
            if out.watches_frames() {
                self.show(out, now, (from, place), dropped, frame);
            }
            self.pass_kept_frames(out, now);
            return false;
        }
        self.receive(out, now, (from, to), frame)
    }

    /// The packets of a frame arrive at a NIC one by one, because some of them are to be dropped there.
    #[cold]
    fn arrive_singly(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Frame<'_>,
    ) {
        let unread = self.for_each_packet(out, from, frame, |fabric, out, octets| {
            fabric.arrive_at_nic(out, now, (from, to), Frame::Octets(octets));
        });
        // The memory of a NIC of another fabric was read there.
        if let Some(port) = self.nics.get_mut(from) {
            port.nic.payload_not_read(unread);
        }
    }

    /// Drops a frame at a NIC if its fate is not [`Fate::Passed`] or rules take it. Returns its fate in this case, and the rule.
    #[inline(always)]
    fn drop_at_nic(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, place): (PortId, Place),
        frame: Frame<'_>,
        fate: Fate,
    ) -> Option<(Fate, Option<ByRule>)> {
        if fate != Fate::Passed {
            return Some((fate, None));
        }
        let rule = self.rules_take(out, now, from, place, frame)?;
        Some((Fate::Rule, Some(rule)))
    }

    /// Rules of an external port may take a frame. Returns true if one has.
    #[inline(always)]
    fn drop_by_rules(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        place: Place,
        frame: Frame<'_>,
    ) -> bool {
        let rule = self.rules_take(out, now, from, place, frame);
        if rule.is_none() {
            return false;
        }
        if out.watches_frames() {
            self.show(out, now, (from, place), (Fate::Rule, rule), frame);
        }
        self.pass_kept_frames(out, now);
        true
    }

    /// A NIC receives a packet that its rules have kept.
    pub(crate) fn receive_after_rules(
        &mut self,
        out: &mut O,
        now: Instant,
        to: PortId,
        octets: Octets<'_>,
    ) {
        self.receive(out, now, (to, to), Frame::Octets(octets));
    }

    /// A NIC receives a frame. Returns as [`Fabric::arrive`].
    #[inline(always)]
    fn receive(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Frame<'_>,
    ) -> bool {
        if let Frame::Octets(_) = frame {
            let Some(port) = self.nics.get_mut(to) else {
                return false;
            };
            let accepts = frame
                .addresses()
                .is_some_and(|(_, dst)| port.nic.accepts(dst));
            // The link may have gone down while rules kept the packet.
            if !accepts || port.drops_as_down(1) {
                return false;
            }
        }
        let is_watched = out.watches_frames();
        if is_watched {
            self.show_arriving(out, now, to);
        }
        // Its rest has ended where it was asked whether it takes the frame.
        let (Some(port), Some(ram)) = (self.nics.awake_port(to), self.memories.get(to)) else {
            return false;
        };
        let before = port.nic.work();
        match frame {
            Frame::ByReference(frame) => {
                let Some(sender) = self.memories.get(from) else {
                    return false;
                };
                port.nic.receive(now, ram, frame, sender);
            }
            Frame::Octets(Octets { mark, bytes }) => {
                let seen = Seen::Received {
                    nic: to,
                    sender: 0,
                    frame,
                };
                out.seen(now, seen);
                port.nic.receive_bytes_from(now, ram, mark.origin, bytes);
            }
        }
        let work = port.nic.work().wrapping_sub(before);
        self.received_work = self.received_work.saturating_add(work);
        if is_watched {
            self.show_received(out, now, (from, to), frame);
        }
        true
    }

    /// A frame goes to a port that is not a NIC of this fabric.
    #[cold]
    fn leave_fabric(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        frame: Frame<'_>,
    ) {
        if !self.has_port(to) {
            self.send_to_others(out, now, from, Some(to), frame);
            return;
        }
        let unread = self.for_each_packet(out, from, frame, |fabric, out, octets| {
            fabric.arrive_at_port(out, now, from, to, octets);
        });
        if let Frame::ByReference(_) = frame {
            self.end_send_to_peer(now, (from, to), unread);
        }
    }

    /// A packet arrives at an external port, whose rules may take it.
    #[inline]
    fn arrive_at_port(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        to: PortId,
        octets: Octets<'_>,
    ) {
        let place = (to, Direction::Tx);
        if !self.drop_by_rules(out, now, from, place, Frame::Octets(octets)) {
            self.pass_to_peer(out, now, to, octets);
        }
    }

    /// Sends a packet to the peer of an external port without asking rules: over the link model, if there is one.
    #[inline(always)]
    pub(crate) fn pass_to_peer(
        &mut self,
        out: &mut O,
        now: Instant,
        to: PortId,
        octets: Octets<'_>,
    ) {
        let (place, frame) = ((to, Direction::Tx), Frame::Octets(octets));
        if self.links.is_empty() || !self.enter_link(out, now, to, place, frame) {
            self.send_to_peer(out, now, to, octets);
        }
    }

    /// Sends a packet to the peer of an external port.
    #[inline]
    pub(crate) fn send_to_peer(
        &mut self,
        out: &mut O,
        now: Instant,
        to: PortId,
        octets: Octets<'_>,
    ) {
        if let Some(port) = self.external_mut(to) {
            let fate = port.send(octets.bytes);
            if out.watches_frames() {
                let frame = Frame::Octets(octets);
                self.show(out, now, (to, (to, Direction::Tx)), (fate, None), frame);
            }
        }
    }

    /// The peer of an external port uses the address of a NIC of the process.
    #[cold]
    pub(crate) fn report_clash(&mut self, out: &mut O, now: Instant, clash: Clash) {
        if let Some(port) = self.external_mut(clash.sender)
            && port.is_first_clash(clash.owner)
        {
            let seen = Seen::AddressInUse {
                nic: clash.owner,
                address: clash.address,
                port: port.name(),
            };
            out.seen(now, seen);
        }
    }

    /// Sends a frame to the fabric of another port; `to` is `None`: to all others.
    #[inline]
    pub(crate) fn send_to_others(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        to: Option<PortId>,
        frame: Frame<'_>,
    ) {
        if let Frame::Octets(_) = frame {
            // Only a frame beyond the maximum length is lost.
            let _ = out.cross(now, (from, 0), to, frame, None);
            return;
        }
        // A frame of another fabric is never sent to a fabric.
        if let Some(port) = self.nics.get_mut(from) {
            let sender = port.nic.last_sender();
            if !out.cross(now, (from, sender), to, frame, self.memories.get(from)) {
                port.nic.payload_not_read(frame.packets());
            }
            self.hold_sender(from, to);
        }
    }

    /// Offers a frame that has entered at port `from` to the rules of a port. Returns the rule that has taken it.
    #[inline(always)]
    fn rules_take(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        place: Place,
        frame: Frame<'_>,
    ) -> Option<ByRule> {
        match self.rules_ignore(place, frame) {
            true => None,
            false => self.ask_rules(out, now, from, place, frame),
        }
    }

    #[cold]
    fn ask_rules(
        &mut self,
        out: &mut O,
        now: Instant,
        from: PortId,
        place: Place,
        frame: Frame<'_>,
    ) -> Option<ByRule> {
        // The previous frame may have been the last one that had to overtake them.
        self.pass_kept_frames(out, now);
        self.offer_to_rules(now, from, place, frame)
    }

    /// Passes the frames that rules have kept until `now`. Returns true if there were any. It is called after a rule has taken a frame and
    /// before rules examine the next one, so a frame that is only changed keeps its place. If another rule takes a kept frame again, the
    /// same call passes it once more.
    #[cold]
    #[inline(never)]
    pub(crate) fn pass_kept_frames(&mut self, out: &mut O, now: Instant) -> bool {
        if std::mem::replace(&mut self.passes_kept, true) {
            return false;
        }
        let mut worked = false;
        while let Some(kept) = self.rules.poll_frame(now) {
            worked = true;
            let octets = Octets {
                mark: Mark {
                    origin: kept.origin,
                    effects: Effects::from_bits(kept.note),
                    rule: kept.by,
                },
                bytes: &kept.bytes,
            };
            let is_external = kept.site >= self.nics.ports();
            match kept.dir {
                Direction::Tx if is_external => self.pass_to_peer(out, now, kept.site, octets),
                Direction::Rx if is_external => self.cross_switch(out, now, kept.site, octets),
                Direction::Tx => self.leave_nic_after_rules(out, now, kept.site, octets),
                Direction::Rx => self.receive_after_rules(out, now, kept.site, octets),
            }
        }
        self.passes_kept = false;
        worked
    }
}

/// The fate of a frame that the switch gives a route.
fn fate_of_route(route: Option<Route>) -> Fate {
    match route {
        Some(Route::Forged) => Fate::Forged,
        Some(Route::NoMember) => Fate::NoMember,
        Some(Route::To(_) | Route::Flood) | None => Fate::Passed,
    }
}
