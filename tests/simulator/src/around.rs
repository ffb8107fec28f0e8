//! The owner of a world's fabrics: the wire between them, and observers of the ports of NICs.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash};

use faultline_checker::{Checker, Place, QueuePair, Rule};
use faultline_fabric::frame::{Frame, Octets};
use faultline_fabric::nics::Nics;
use faultline_fabric::outside::{Outside, Seen, Sight};
use faultline_fabric::{Fate, PortId};
use faultline_nic::{Diagnostic, Instant, Nic, Origin, TxFrame};
use faultline_scenario::trigger::Direction;
use faultline_simulation::Rng;
use faultline_simulation::process::{Crossing, SimPeer};
use faultline_wire::packet::RoceHeader;

use crate::memory::GuestMemory;
use crate::meter::Meter;
use crate::wire::Wire;

/// Octets of a turn.
const TURN: usize = 16 << 10;
/// Of 1000 looks during the turns of a sender, those that find that something waits.
const STOPS: u32 = 200;

/// Says of a packet, by sender and header, whether it is lost.
pub(crate) type Filter = Box<dyn FnMut(PortId, &RoceHeader) -> bool>;

/// Changes a frame of a host, or (`None`) loses it.
pub(crate) type Change = Box<dyn FnMut(Vec<u8>) -> Option<Vec<u8>>>;

/// The owner of all fabrics.
pub(crate) struct Around {
    pub(crate) wire: Wire,
    /// Frames pass between fabrics at once, with typed headers, as between the engines of a process.
    pub(crate) is_typed: bool,
    /// All NICs are in one fabric.
    pub(crate) is_gathered: bool,
    /// Frames have no observers: no test, no packet checker.
    pub(crate) is_unseen: bool,
    /// Decides by chance that something waits for the end of a sender's turns.
    pub(crate) stops: Option<RefCell<Rng>>,
    /// Frames that each NIC has sent with more than a turn's payload.
    pub(crate) long_runs: Vec<u64>,
    /// Frames between fabrics, and the port with the destination address of each.
    pub(crate) crossing: VecDeque<(Option<PortId>, Crossing)>,
    /// Packets that are lost in addition to the losses of the wire.
    pub(crate) filter: Option<Filter>,
    /// Changes frames of a host before they enter the wire.
    pub(crate) change: Option<(PortId, Change)>,
    /// Headers of all RoCE packets that were sent, if a test wants them.
    pub(crate) trace: Option<Vec<(PortId, RoceHeader)>>,
    /// The frames themselves, if a test wants them.
    pub(crate) capture: Option<Vec<(PortId, Vec<u8>)>>,
    /// Hash of the frames that were sent and received, if a test wants it.
    pub(crate) hash: Option<DefaultHasher>,
    /// Messages that each NIC has sent in trains.
    pub(crate) in_trains: Vec<u64>,
    pub(crate) meter: Meter,
    pub(crate) interrupts: Vec<Vec<u16>>,
    pub(crate) diagnostics: Vec<Vec<(Instant, Diagnostic)>>,
    /// Hosts that are on a wire of their own: nothing is known of the frames from there and to there.
    pub(crate) foreign: BTreeSet<PortId>,
    pub(crate) checker: Checker,
    /// Violations that a test causes on purpose.
    pub(crate) permitted: Vec<Rule>,
    octets: Vec<u8>,
}

impl Around {
    pub(crate) fn new(hosts: usize, seed: u64) -> Self {
        let mut checker = Checker::new(Place::Adapter);
        (0..hosts).for_each(|id| checker.set_ready(id, true));
        Self {
            wire: Wire::new(hosts, seed),
            is_typed: false,
            is_gathered: false,
            is_unseen: false,
            stops: None,
            long_runs: vec![0; hosts],
            crossing: VecDeque::new(),
            filter: None,
            change: None,
            trace: None,
            capture: None,
            hash: None,
            in_trains: vec![0; hosts],
            meter: Meter::new(hosts),
            interrupts: vec![Vec::new(); hosts],
            diagnostics: vec![Vec::new(); hosts],
            foreign: BTreeSet::new(),
            checker,
            permitted: Vec::new(),
            octets: Vec::new(),
        }
    }

    fn loses(&mut self, from: PortId, header: Option<&RoceHeader>) -> bool {
        match (&mut self.filter, header) {
            (Some(filter), Some(header)) => filter(from, header),
            _ => false,
        }
    }

    /// Sends the packets of a frame into the wire. Returns false if one cannot be read: it is lost.
    fn send(
        &mut self,
        now: Instant,
        (from, to): (PortId, Option<PortId>),
        frame: &TxFrame,
        memory: &GuestMemory,
    ) -> bool {
        let mut is_read = true;
        for packet in 0..frame.packets {
            if self.loses(from, frame.packet_header(packet).as_ref()) {
                continue;
            }
            match frame.packet_bytes(packet, memory) {
                Ok(bytes) => self.enter_wire(now, (from, to), frame.origin(), bytes),
                Err(_) => is_read = false,
            }
        }
        is_read
    }

    fn enter_wire(
        &mut self,
        now: Instant,
        (from, to): (PortId, Option<PortId>),
        origin: Origin,
        bytes: Vec<u8>,
    ) {
        let changed = match &mut self.change {
            Some((host, change)) if *host == from => change(bytes),
            _ => Some(bytes),
        };
        if let Some(bytes) = changed {
            self.wire.send(now.0, (from, to, origin), bytes);
        }
    }

    /// A frame at the port of a NIC.
    fn frame(&mut self, now: Instant, sight: &Sight<'_, GuestMemory>) {
        let (id, dir) = sight.place;
        if let Some(nic) = sight.device {
            self.meter.end(id, nic);
        }
        if sight.is_again {
            return;
        }
        if dir == Direction::Tx {
            self.trace(sight);
        }
        // Another look at memory that changes during a read would be another result, and one more of the reads that a test counts.
        if sight.memory.is_some_and(GuestMemory::is_raced) {
            return;
        }
        let mut octets = std::mem::take(&mut self.octets);
        for packet in 0..sight.frame.packets() {
            let bytes = match sight.frame {
                Frame::Octets(Octets { bytes, .. }) => Some(bytes),
                Frame::ByReference(frame) => sight.memory.and_then(|memory| {
                    let octets = Octets::of_packet(frame, packet, memory, &mut octets)?;
                    Some(octets.bytes)
                }),
            };
            if let Some(bytes) = bytes {
                self.packet(now, sight, bytes);
            }
        }
        self.octets = octets;
    }

    fn trace(&mut self, sight: &Sight<'_, GuestMemory>) {
        let (id, _) = sight.place;
        let Some(trace) = self.trace.as_mut().filter(|_| !is_barred(sight.fate)) else {
            return;
        };
        match sight.frame {
            Frame::Octets(_) => trace.extend(sight.frame.header().map(|header| (id, header))),
            Frame::ByReference(frame) => {
                let headers = (0..frame.packets).filter_map(|n| frame.packet_header(n));
                trace.extend(headers.map(|header| (id, header)));
            }
        }
    }

    fn packet(&mut self, now: Instant, sight: &Sight<'_, GuestMemory>, bytes: &[u8]) {
        let (id, dir) = sight.place;
        if let Some(hash) = &mut self.hash {
            (now.0, id, bytes).hash(hash);
        }
        if dir == Direction::Tx {
            if let Some(capture) = self.capture.as_mut().filter(|_| !is_barred(sight.fate)) {
                capture.push((id, bytes.to_vec()));
            }
            // Only a NIC's own packets and segments are judged, not raw frames that look like them.
            let is_raw = matches!(sight.sent, Some(frame) if frame.packet_header(0).is_none());
            let makes = |nic: &Nic| nic.makes_segments(sight.sender);
            if !is_raw || sight.device.is_some_and(makes) {
                let sender = sight.device.and_then(|nic| queue_pair(nic, sight.sender));
                self.checker.sent(now.0, id, sender, bytes);
            }
        } else if sight.fate != Fate::Passed {
            // The NIC has not looked at it.
        } else if sight.device.is_some_and(Nic::holds_input) {
            self.checker.held(now.0, id, bytes);
        } else {
            self.checker.received(now.0, id, bytes);
        }
    }
}

fn queue_pair(nic: &Nic, qpn: u32) -> Option<QueuePair> {
    let pair = nic.queue_pair_info(qpn)?;
    Some(QueuePair {
        qpn,
        mtu: Some(pair.mtu),
        read_limit: pair.max_rd_atomic.map(u32::from),
    })
}

/// True if the NIC did not send the frame.
fn is_barred(fate: Fate) -> bool {
    let barred = [
        Fate::InterfaceDown,
        Fate::OverMtu,
        Fate::BadGid,
        Fate::BadAddress,
    ];
    barred.contains(&fate)
}

impl Outside for Around {
    type Memory = GuestMemory;
    // There are no external ports.
    type Peer = SimPeer;

    fn interrupt(&mut self, _: Instant, nic: PortId, vector: u16) {
        self.interrupts[nic].push(vector);
    }

    fn has_others(&self) -> bool {
        self.interrupts.len() > 1 && !self.is_gathered
    }

    fn cross(
        &mut self,
        now: Instant,
        (from, sender): (PortId, u32),
        to: Option<PortId>,
        frame: Frame<'_>,
        memory: Option<&GuestMemory>,
    ) -> bool {
        let is_read = match (frame, memory) {
            (Frame::Octets(Octets { mark, bytes }), _) => {
                self.enter_wire(now, (from, to), mark.origin, bytes.to_vec());
                true
            }
            (Frame::ByReference(sent), Some(memory)) if !self.is_typed => {
                self.send(now, (from, to), sent, memory)
            }
            (Frame::ByReference(sent), _) => {
                let crossing = Crossing::new(now, (from, sender), frame, memory);
                let is_read = crossing.is_some();
                let crossing =
                    crossing.filter(|_| !self.loses(from, sent.packet_header(0).as_ref()));
                self.crossing
                    .extend(crossing.map(|crossing| (to, crossing)));
                is_read
            }
        };
        self.meter.begin();
        is_read
    }

    fn is_held(&self, _: PortId) -> bool {
        false
    }

    fn is_any_full(&self) -> bool {
        false
    }

    fn is_awaited(&self, _: &Nics) -> bool {
        let stops = self.stops.as_ref();
        stops.is_some_and(|rng| rng.borrow_mut().chance(STOPS))
    }

    fn watches_frames(&self) -> bool {
        !self.is_unseen
    }

    fn names_faults(&self) -> bool {
        false
    }

    fn seen(&mut self, now: Instant, seen: Seen<'_, GuestMemory>) {
        match seen {
            Seen::Sent { nic, frame, .. } if frame.is_train() => {
                self.in_trains[nic] += u64::from(frame.packets);
            }
            Seen::Sent { nic, frame, .. } if frame.payload_len > TURN => {
                self.long_runs[nic] += 1;
            }
            Seen::Frame(sight) => self.frame(now, &sight),
            Seen::Diagnostic {
                nic, diagnostic, ..
            } => {
                // They are taken before a frame is shown: the call that has sent it has not ended yet.
                self.diagnostics[nic].push((now, *diagnostic));
                return;
            }
            _ => {}
        }
        self.meter.begin();
    }
}
