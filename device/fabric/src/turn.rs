//! The parts of a pass over all NICs of a fabric. The owner calls them in this order:
//!
//! 1. [`Fabric::begin_pass`]: finds pauses and holds for this pass
//! 2. [`Fabric::receive_from_other`] for frames of other fabrics, and [`Fabric::take_frames`]
//! 3. for each NIC its [`Turn`]: doorbells and [`Turn::run_timers`]; requests of rules; [`Fabric::transmit`]
//! 4. [`Fabric::end_pass`]
//!
//! A NIC that [rests](crate::nics) and has no doorbells needs no turn.

use faultline_nic::{Dma, Instant, TxFrame};
use faultline_scenario::rules::{Late, RuleSets};
use faultline_wire::PrioritySet;

use crate::external_port::ExternalPort;
use crate::fabric::Fabric;
use crate::nic_port::NicPort;
use crate::outside::{Outside, Seen};
use crate::switch::{PortId, Switch};
use crate::turn_limit::TurnLimit;

/// Further turns of a NIC after its first one in a pass, while nothing else waits: together 256 KiB, or some tens of microseconds. So a pass has an end,
/// and its time is not much older than the frames that it sends.
const FURTHER_TURNS: u32 = 15;

/// Turns for which a NIC prepares the next run of a message. Packets that the receiver does not take are prepared
/// again.
const TURNS_AT_ONCE: u32 = 8;

/// The rest of the turns of a NIC in a pass.
#[derive(Debug)]
struct Turns {
    /// The rest of its turn.
    limit: TurnLimit,
    /// Number of further turns in this pass.
    further: u32,
}

/// The first part of a NIC's turn, before it sends.
#[derive(Debug)]
pub struct Turn<'a, M> {
    id: PortId,
    /// The NIC.
    pub port: &'a mut NicPort,
    /// Its memory.
    pub memory: &'a M,
    /// The rules, which may take its doorbells.
    pub rules: &'a mut RuleSets,
    switch: &'a mut Switch,
}

impl<M: Dma> Turn<'_, M> {
    /// Reports a change of the link, and handles timers that are due. Returns true if there was work.
    #[inline(always)]
    pub fn run_timers(&mut self, now: Instant) -> bool {
        let port = &mut *self.port;
        let mut worked = false;
        if std::mem::take(&mut port.link_changed) {
            port.nic.report_link(now, self.memory);
            worked = true;
        }
        if port.nic.is_due(now) {
            port.nic.handle_deadline(now, self.memory);
            worked = true;
        }
        // Addresses behind the NIC may be reachable through another port now.
        if port.goes_down() {
            self.switch.forget(self.id);
        }
        // A command may have changed the address of the NIC.
        self.switch.set_present_address(self.id, port.nic.mac());
        worked
    }
}

impl<O: Outside> Fabric<O> {
    /// Updates the pauses of link models and the holds of external ports. Called once for each pass, so frames that a
    /// sender adds in its turn do not pause others in the same pass. Returns true if other fabrics must be woken.
    #[inline(always)]
    pub fn begin_pass(&mut self, out: &O, now: Instant) -> bool {
        if !self.links.is_empty() {
            // Frames of other fabrics may have been sent into links at a later time than that of this pass.
            self.links.update_pauses(self.time_after_others(now));
        }
        let mut wakes = self.holds.has_ports() && self.update_holds(now);
        if out.has_others() {
            wakes |= self.share_pauses();
            self.switch.refresh();
        }
        wakes && out.has_others()
    }

    /// Takes frames from the ends of links, and from external ports. Returns true if there were any.
    #[inline(always)]
    pub fn take_frames(&mut self, out: &mut O, now: Instant) -> bool {
        let of_links = !self.links.is_empty() && self.take_from_links(out, now);
        let of_externals = !self.externals.is_empty()
            && !self.senders_are_paused()
            && self.take_from_externals(out, now);
        of_links | of_externals
    }

    /// Begins the turn of a NIC; `None` without bus mastering: then it rests.
    #[inline(always)]
    pub fn turn(&mut self, id: PortId) -> Option<Turn<'_, O::Memory>> {
        if !self.nics.get(id)?.bus_master {
            self.nics.let_rest(id);
            return None;
        }
        Some(Turn {
            id,
            port: self.nics.get_mut(id)?,
            memory: self.memories.get(id)?,
            rules: &mut self.rules,
            switch: &mut self.switch,
        })
    }

    /// Lets a NIC that had nothing to do in its turn rest, unless the switch has not granted its address yet.
    #[inline]
    pub fn let_rest(&mut self, id: PortId) {
        // A NIC asks for its address in each turn; the switch grants it when another port has released it.
        if self.switch.has_present_address(id) {
            self.nics.let_rest(id);
        }
    }

    /// Lets a NIC send, up to the limits of a turn, and for further turns while nothing else waits. Returns true if it has sent.
    #[inline(always)]
    pub fn transmit(&mut self, out: &mut O, now: Instant, id: PortId) -> bool {
        let paused = self.paused_priorities(id);
        if out.is_held(id) || paused == PrioritySet::ALL {
            return false;
        }
        let Some(port) = self.nics.get_mut(id) else {
            return false;
        };
        port.nic.set_paused_priorities(paused);
        if !port.nic.may_send() {
            return false;
        }
        let drops = port.faults.drops_packets();
        // A NIC whose ingress is paused pauses all other NICs, as Ethernet PAUSE frames do: the destination of the next
        // frame is not known before it is built. Only a NIC with a frame to send asks, because there may be many NICs.
        let pauses = |(other, port): (PortId, &NicPort)| other != id && port.pauses_senders();
        if self.nics.iter().any(pauses) {
            return false;
        }
        let single = drops || self.passes_single_packets();
        let mut turns = Turns {
            limit: self.begin_turn(),
            further: FURTHER_TURNS,
        };
        let mut worked = false;
        let mut frame = self.sent.take().unwrap_or_default();
        while let (Some(port), Some(memory)) = (self.nics.awake_port(id), self.memories.get(id))
            && port.nic.may_send()
        {
            let before = port.nic.work();
            let most = if single { 0 } else { turns.limit.octets() };
            if !port.nic.poll_transmit(now, memory, most, &mut frame) {
                break;
            }
            let built = port.nic.work().wrapping_sub(before);
            let len = port.nic.last_len();
            let to = self.leave_nic(out, now, id, &mut frame, len);
            turns.limit.take(frame.packets, len, built);
            worked = true;
            if out.is_held(id) {
                break;
            }
            if self.may_go_on(&turns.limit) {
                continue;
            }
            if !self.begin_further_turn(out, id, &mut turns) {
                break;
            }
            // A switch with VLANs may change the tag, and so the length, of each frame.
            let is_plain = !single && !out.watches_frames() && !self.switch.is_vlan_aware();
            let goes_on = frame.packets > 1 && is_plain;
            if let Some(to) = to.filter(|to| goes_on && *to != id)
                && !self.pass_next_runs(out, now, (id, to), &mut turns, &mut frame)
            {
                break;
            }
        }
        self.sent = Some(frame);
        worked
    }

    /// Begins a further turn of NIC `id`. Returns false if its turns are over.
    #[inline]
    fn begin_further_turn(&self, out: &O, id: PortId, turns: &mut Turns) -> bool {
        let begins = turns.further > 0
            && turns.limit.extend(self.received_work)
            && !self.others_wait(out, id);
        turns.further = turns.further.saturating_sub(1);
        begins
    }

    /// Passes the next runs of a message to the NIC that has just received the last frame, turn by turn. Switch and
    /// ports are not asked again: a NIC with rules, link models or captures on the path has no further turns
    /// ([`Fabric::others_wait`]). Returns false if the turns of the sender are over.
    #[inline(never)]
    fn pass_next_runs(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        turns: &mut Turns,
        frame: &mut TxFrame,
    ) -> bool {
        loop {
            let (Some(port), Some(memory)) = (self.nics.awake_port(from), self.memories.get(from))
            else {
                return true;
            };
            let octets = turns.limit.octets();
            let at_once = turns.further.saturating_add(1).min(TURNS_AT_ONCE);
            let most = octets.saturating_mul(at_once as usize);
            if !port.nic.poll_next_run(now, memory, most, frame) {
                return true;
            }
            let (taken, goes_on) = self.receive_next_runs(out, now, (from, to), turns, frame);
            let is_refused = taken < frame.packets && goes_on;
            if taken > 0 {
                frame.keep_packets(taken);
                self.next_runs_sent(out, now, (from, to), turns, frame);
            }
            if !goes_on {
                return false;
            }
            if is_refused {
                return true;
            }
        }
    }

    /// Lets a NIC receive a run turn by turn. Returns the number of received packets, and whether the next turn of the
    /// sender has begun.
    #[inline]
    fn receive_next_runs(
        &mut self,
        out: &O,
        now: Instant,
        (from, to): (PortId, PortId),
        turns: &mut Turns,
        frame: &TxFrame,
    ) -> (u32, bool) {
        let octets = turns.limit.octets() as u64;
        let in_turn = u64::from(frame.packets).saturating_mul(octets);
        let in_turn = in_turn.checked_div(frame.payload_len as u64).unwrap_or(0);
        let in_turn = u32::try_from(in_turn).unwrap_or(u32::MAX).max(1);
        let mut taken = 0;
        while taken < frame.packets {
            let packets = in_turn.min(frame.packets.saturating_sub(taken));
            let (Some(port), Some(memory), Some(source)) = (
                self.nics.get_mut(to),
                self.memories.get(to),
                self.memories.get(from),
            ) else {
                break;
            };
            let before = port.nic.work();
            let part = (taken, packets);
            if !port
                .nic
                .receive_next_run(now, memory, (frame, source), part)
            {
                break;
            }
            let work = port.nic.work().wrapping_sub(before);
            self.received_work = self.received_work.saturating_add(work);
            taken = taken.saturating_add(packets);
            if !self.begin_further_turn(out, from, turns) {
                return (taken, false);
            }
        }
        (taken, true)
    }

    /// A NIC has sent a run, and another one has received it.
    #[inline]
    fn next_runs_sent(
        &mut self,
        out: &mut O,
        now: Instant,
        (from, to): (PortId, PortId),
        turns: &mut Turns,
        frame: &TxFrame,
    ) {
        let (Some(port), Some(memory)) = (self.nics.awake_port(from), self.memories.get(from))
        else {
            return;
        };
        let before = port.nic.work();
        port.nic.next_run_sent(now, memory, frame);
        let built = port.nic.work().wrapping_sub(before);
        turns.limit.take(0, 0, built);
        let seen = Seen::Sent {
            nic: from,
            sender: port.nic.last_sender(),
            frame,
            len: port.nic.last_len(),
            to: Some(to),
        };
        out.seen(now, seen);
    }

    /// True if something waits for the end of the turns of NIC `id`.
    fn others_wait(&self, out: &O, id: PortId) -> bool {
        let waits = |(other, port): (PortId, &NicPort)| {
            port.has_news() || other != id && (port.may_send() || port.pauses_senders())
        };
        // NICs are asked first: the receiver often has an answer to send.
        self.nics.awake().any(waits)
            || !self.rules.is_empty()
            || !self.links.is_empty()
            || self.has_work(out)
            || self.externals.iter().any(ExternalPort::must_flush)
            || out.is_awaited(&self.nics)
    }

    /// Flushes external ports, sends interrupts, and takes diagnostics of the NICs. Returns true if there was an interrupt.
    #[inline(always)]
    pub fn end_pass(&mut self, out: &mut O, now: Instant) -> bool {
        self.flush_externals();
        let mut worked = false;
        if self.nics.all_rest() {
            return worked;
        }
        for id in 0..self.nics.ports() {
            // A NIC that rests has neither interrupts nor diagnostics.
            if self.nics.is_awake(id) {
                worked |= self.send_interrupts(out, now, id);
            }
        }
        self.take_diagnostics(out, now);
        worked
    }

    /// Sends the pending interrupts of a NIC. Without bus mastering they stay pending. Returns true if one was sent.
    #[inline(always)]
    fn send_interrupts(&mut self, out: &mut O, now: Instant, id: PortId) -> bool {
        let Some(port) = self.nics.get_mut(id).filter(|port| port.bus_master) else {
            return false;
        };
        let mut any = false;
        while let Some(vector) = port.nic.poll_interrupt() {
            any = true;
            let passes = self.rules.interrupt(now, id, vector);
            if passes && !port.faults.loses_interrupt() {
                out.interrupt(now, id, vector);
            }
        }
        any
    }

    /// Passes the frames, doorbells and interrupts that rules have kept until `now`. Returns true if there were any.
    pub fn pass_kept(&mut self, out: &mut O, now: Instant) -> bool {
        let mut worked = self.pass_kept_frames(out, now);
        while let Some(late) = self.rules.poll_late() {
            worked = true;
            let has_bus_master = |nic| self.nics.get(nic).is_some_and(|port| port.bus_master);
            match late {
                Late::Doorbell { nic, page, bell } if has_bus_master(nic) => {
                    out.seen(now, Seen::LateDoorbell { nic, page, bell });
                    self.doorbell(now, nic, page, bell);
                }
                Late::Interrupt { nic, vector } if has_bus_master(nic) => {
                    out.interrupt(now, nic, vector);
                }
                Late::Doorbell { .. } | Late::Interrupt { .. } => {}
            }
        }
        worked
    }
}
