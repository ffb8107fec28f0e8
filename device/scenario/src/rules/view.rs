//! The state that rules have of a NIC: its connections and on-demand regions in the order of their creation, and the
//! rules that concern its packets.

use std::collections::{BTreeMap, HashMap, VecDeque};

use faultline_nic::{FaultPolicy, Instant, Nanos, Nic};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Opcode, Psn, Seq};

use super::lasting::Lasting;
use super::request::{NicRequest, Subject};
use super::unmet::Unmet;
use crate::plan::{Conditions, Opcodes, PacketMatch};
use crate::segment::{Ends, SegmentFacts};
use crate::trigger::Direction;

/// Most connections of a NIC that are remembered at a time, most that get a number in a run, and most regions that are remembered.
const MAX_REMEMBERED: usize = 1 << 16;
/// Most TCP streams that are followed in one direction at a site.
const MAX_STREAMS: usize = 1 << 12;
/// PSNs have 24 bits.
const PSN_MASK: u32 = (1 << 24) - 1;

/// Transmissions of a connection's packets of one kind in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Transmission {
    last: Option<Psn>,
    number: u32,
}

impl Transmission {
    /// A packet with this PSN. Returns the number of the transmission, from 1. A new one begins with a PSN that is not after
    /// the last.
    pub(super) fn advance(&mut self, psn: Psn) -> u32 {
        let continues = self.last.is_some_and(|last| psn.diff(last) > 0);
        if !continues {
            self.number = self.number.saturating_add(1);
        }
        self.last = Some(psn);
        self.number
    }
}

/// Bytes of the longest name of a process (`TASK_COMM_LEN` of Linux).
const NAME: usize = 16;

/// Name of a process, in place, so that [`Connection`] owns no memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessName([u8; NAME]);

impl ProcessName {
    /// A name; only its first [`NAME`] bytes count.
    pub(super) fn new(name: &str) -> Self {
        let mut bytes = [0; NAME];
        bytes
            .iter_mut()
            .zip(name.bytes())
            .for_each(|(to, byte)| *to = byte);
        Self(bytes)
    }
}

/// A connection. It has no destructor, so that all connections of a NIC can be forgotten in a step of the same length, however many
/// there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    /// First PSN of requests that the NIC sends.
    pub(super) first_sent: Option<Psn>,
    /// First PSN of requests that it receives.
    first_received: Option<Psn>,
    sent_requests: Transmission,
    received_requests: Transmission,
    sent_responses: Transmission,
    received_responses: Transmission,
    /// Name of the process that owns it.
    process: Option<ProcessName>,
    /// Number in this run; `None`: it is older than the run, or there were too many before.
    number: Option<u32>,
    /// Fault policy, as the driver has set it.
    pub(super) policy: FaultPolicy,
}

/// A queue pair that is ready to receive.
#[derive(Clone, Debug, Default)]
pub(super) struct NewConnection {
    pub(super) qpn: u32,
    pub(super) first_sent: Option<Psn>,
    pub(super) first_received: Option<Psn>,
    pub(super) process: Option<ProcessName>,
    pub(super) policy: FaultPolicy,
}

/// A fault policy that actions have changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangedPolicy {
    /// The policy at the end of the run.
    pub(super) restored: FaultPolicy,
    /// The policy by the last action.
    pub(super) changed: FaultPolicy,
    /// Time of the last action.
    pub(super) at: Instant,
}

/// An on-demand region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) key: u32,
    /// First address.
    pub(super) first: u64,
    /// Bytes.
    pub(super) len: u64,
}

/// A packet, as its caller describes it.
#[derive(Clone, Copy, Debug)]
pub struct PacketFacts<'a> {
    /// Headers; `None` if it is not RoCE.
    pub header: Option<&'a RoceHeader>,
    /// The TCP segment, if it is one and [`Rules::wants_segments`](super::Rules::wants_segments).
    pub segment: Option<SegmentFacts>,
    /// Octets on the wire, without FCS.
    pub bytes: usize,
}

/// Rules and expectations about packets of one NIC in one direction.
#[derive(Debug, Default)]
pub(super) struct PacketSide {
    /// Indices of rules.
    pub(super) rules: Vec<usize>,
    /// Indices of expectations.
    pub(super) expectations: Vec<usize>,
    /// Opcodes that one of them names.
    opcodes: Opcodes,
    /// Queue pairs that the rules name, unless a rule concerns all.
    queue_pairs: Vec<u32>,
    concerns_all: bool,
    /// A rule asks for the PSN or the transmission, so each packet is followed.
    pub(super) follows: bool,
    /// The sequence number of the first octet of each TCP stream.
    starts: HashMap<Ends, Seq>,
    /// The streams of `starts`, the oldest first.
    streams: VecDeque<Ends>,
}

impl PacketSide {
    /// Adds a rule or an expectation. `qpn`: the number of the queue pair that it names.
    pub(super) fn add(&mut self, packets: &PacketMatch, qpn: Option<u32>) {
        match qpn {
            Some(qpn) => self.queue_pairs.push(qpn),
            None => self.concerns_all = true,
        }
        self.opcodes.merge(&packets.opcodes);
        self.follows |= packets.psn.is_some() || packets.iter.is_some();
    }

    pub(super) fn names(&self, opcode: Option<Opcode>) -> bool {
        let others = self.opcodes.has_others();
        opcode.map_or(others, |opcode| self.opcodes.contains(opcode))
    }

    /// True if rules or expectations concern TCP segments.
    pub(super) fn wants_segments(&self) -> bool {
        !self.opcodes.segments.is_empty()
    }

    /// The offset in its stream of the first octet of a segment. `None`: a SYN, which is before the first octet, or a stream that is not
    /// followed. A new stream replaces the oldest one if there are many; one whose SYN was not seen does not.
    pub(super) fn follow_segment(&mut self, segment: &SegmentFacts) -> Option<u32> {
        if segment.is_syn {
            self.follow_stream(segment.ends, segment.seq.add(1));
            return None;
        }
        if !self.starts.contains_key(&segment.ends) && self.starts.len() < MAX_STREAMS {
            self.follow_stream(segment.ends, segment.seq);
        }
        let start = self.starts.get(&segment.ends)?;
        Some(segment.seq.0.wrapping_sub(start.0))
    }

    fn follow_stream(&mut self, ends: Ends, start: Seq) {
        if self.starts.insert(ends, start).is_some() {
            return;
        }
        self.streams.push_back(ends);
        if self.streams.len() > MAX_STREAMS
            && let Some(oldest) = self.streams.pop_front()
        {
            self.starts.remove(&oldest);
        }
    }

    /// True if a packet of a queue pair may match.
    pub(super) fn concerns(&self, opcode: Option<Opcode>, qpn: impl FnOnce() -> u32) -> bool {
        self.names(opcode) && (self.concerns_all || self.queue_pairs.contains(&qpn()))
    }
}

/// Both directions of a NIC, or of a port that leads out of the process.
#[derive(Debug, Default)]
pub(super) struct PacketSides {
    sent: PacketSide,
    received: PacketSide,
}

impl PacketSides {
    pub(super) fn of(&self, dir: Direction) -> &PacketSide {
        match dir {
            Direction::Tx => &self.sent,
            Direction::Rx => &self.received,
        }
    }

    pub(super) fn of_mut(&mut self, dir: Direction) -> &mut PacketSide {
        match dir {
            Direction::Tx => &mut self.sent,
            Direction::Rx => &mut self.received,
        }
    }
}

/// A NIC, as the rules see it.
#[derive(Debug, Default)]
pub(super) struct NicView {
    /// Next place of the search for existing connections; `None`: it has ended.
    pub(super) next_place: Option<u32>,
    /// Connections that exist, by queue pair.
    connections: HashMap<u32, Connection>,
    /// Queue pairs of the connections that were made in this run, by number.
    numbered: Vec<u32>,
    /// That later ones get no number was reported.
    numbers_ended: bool,
    /// Fault policies that actions have changed, by queue pair.
    pub(super) policies: BTreeMap<u32, ChangedPolicy>,
    /// The link was up at the start.
    pub(super) was_up: bool,
    /// How many actions of each kind last.
    pub(super) lasting: [u32; Lasting::COUNT],
    /// An action of this kind lasts until the end of the run.
    pub(super) until_stop: [bool; Lasting::COUNT],
    /// The last request of each kind of lasting action, and its time.
    pub(super) requested: [Option<(Instant, NicRequest)>; Lasting::COUNT],
    regions: Vec<Region>,
    pub(super) packets: PacketSides,
    /// How long a look-up takes without actions.
    pub(super) lookup: Nanos,
}

impl NicView {
    /// True if an action of this kind lasts.
    pub(super) fn lasts(&self, lasting: Lasting) -> bool {
        let count = self.lasting.get(lasting as usize);
        count.is_some_and(|count| *count > 0)
    }

    pub(super) fn new(nic: &Nic) -> Self {
        Self {
            next_place: Some(0),
            lookup: nic.config().lookup,
            was_up: nic.is_link_up(),
            ..Self::default()
        }
    }

    pub(super) fn connection_mut(&mut self, qpn: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&qpn)
    }

    /// Queue pair of the N-th connection, unless it has ended.
    pub(super) fn qpn_of(&self, connection: u32) -> Option<u32> {
        let qpn = *self.numbered.get(usize::try_from(connection).ok()?)?;
        let is_same = self.connections.get(&qpn)?.number == Some(connection);
        is_same.then_some(qpn)
    }

    pub(super) fn region(&self, number: u32) -> Option<Region> {
        self.regions.get(usize::try_from(number).ok()?).copied()
    }

    /// The first of the conditions on queue pair, key and process that does not hold. Those on pages and levels exist inside the NIC
    /// only.
    pub(super) fn unmet(&self, conditions: &Conditions, subject: &Subject) -> Option<Unmet> {
        let is_of_process =
            |only: &str| subject.qpn.is_some_and(|qpn| self.is_of_process(qpn, only));
        let is_connection = |number| subject.qpn.is_some() && self.qpn_of(number) == subject.qpn;
        if conditions.qpn.is_some_and(|only| subject.qpn != Some(only)) {
            Some(Unmet::Qpn)
        } else if conditions.key.is_some_and(|only| subject.key != Some(only)) {
            Some(Unmet::Key)
        } else if !conditions.connection.is_none_or(is_connection) {
            Some(Unmet::Qp)
        } else if !conditions.process.as_deref().is_none_or(is_of_process) {
            Some(Unmet::Process)
        } else {
            None
        }
    }

    /// True if the connection of a queue pair belongs to a process with this name.
    fn is_of_process(&self, qpn: u32, name: &str) -> bool {
        let connection = self.connections.get(&qpn);
        connection.is_some_and(|connection| connection.process == Some(ProcessName::new(name)))
    }

    /// True if a queue pair is the connection, and belongs to the process, that conditions ask for.
    pub(super) fn is_meant(&self, conditions: &Conditions, qpn: u32) -> bool {
        let is_connection = |number| self.qpn_of(number) == Some(qpn);
        let process = conditions.process.as_deref();
        conditions.connection.is_none_or(is_connection)
            && process.is_none_or(|name| self.is_of_process(qpn, name))
    }
}

impl NicView {
    /// Remembers a connection that is older than the run. Returns false if there are too many.
    pub(super) fn existed(&mut self, new: NewConnection) -> bool {
        self.insert(new, None)
    }

    /// Remembers a connection. It has a number only if there were not too many before. Returns false if too many exist.
    pub(super) fn connected(&mut self, new: NewConnection) -> bool {
        let index = self.numbered.len();
        let number = u32::try_from(index).ok();
        let number = number.filter(|_| index < MAX_REMEMBERED);
        let qpn = new.qpn;
        let is_remembered = self.insert(new, number);
        if is_remembered && number.is_some() {
            self.numbered.push(qpn);
        }
        is_remembered
    }

    /// True once, when connections get no numbers any more.
    pub(super) fn ends_numbers(&mut self) -> bool {
        self.numbered.len() >= MAX_REMEMBERED && !std::mem::replace(&mut self.numbers_ended, true)
    }

    fn insert(&mut self, new: NewConnection, number: Option<u32>) -> bool {
        let is_known = self.connections.contains_key(&new.qpn);
        if !is_known && self.connections.len() >= MAX_REMEMBERED {
            return false;
        }
        let connection = Connection {
            first_sent: new.first_sent,
            first_received: new.first_received,
            sent_requests: Transmission::default(),
            received_requests: Transmission::default(),
            sent_responses: Transmission::default(),
            received_responses: Transmission::default(),
            process: new.process,
            number,
            policy: new.policy,
        };
        self.connections.insert(new.qpn, connection);
        true
    }

    /// Forgets the connection of a queue pair.
    pub(super) fn ended(&mut self, qpn: u32) {
        self.policies.remove(&qpn);
        self.connections.remove(&qpn);
    }

    /// Forgets all connections.
    pub(super) fn all_ended(&mut self) {
        self.policies.clear();
        self.connections.clear();
    }

    /// An action changes the fault policy of a queue pair. What was before the first action is remembered.
    pub(super) fn change_policy(&mut self, at: Instant, qpn: u32, changed: FaultPolicy) {
        let Some(connection) = self.connections.get(&qpn) else {
            return;
        };
        let first = ChangedPolicy {
            restored: connection.policy,
            changed,
            at,
        };
        let policy = self.policies.entry(qpn).or_insert(first);
        *policy = ChangedPolicy {
            changed,
            at,
            ..*policy
        };
    }

    /// Another set of rules knows what the fault policy of a queue pair is without actions.
    pub(super) fn correct_policy(&mut self, qpn: u32, original: FaultPolicy) {
        if let Some(connection) = self.connections.get_mut(&qpn) {
            connection.policy = original;
        }
        if let Some(policy) = self.policies.get_mut(&qpn) {
            policy.restored = original;
        }
    }

    /// Fault policies that actions have changed.
    pub(super) fn take_policies(&mut self) -> BTreeMap<u32, ChangedPolicy> {
        std::mem::take(&mut self.policies)
    }

    /// Remembers a region. Returns its number, unless there are too many.
    pub(super) fn registered(&mut self, region: Region) -> Option<u32> {
        let index = self.regions.len();
        let number = u32::try_from(index)
            .ok()
            .filter(|_| index < MAX_REMEMBERED)?;
        self.regions.push(region);
        Some(number)
    }
}

impl NicView {
    /// Returns the PSN relative to the first of the connection, and the number of the transmission.
    pub(super) fn follow_packet(
        &mut self,
        dir: Direction,
        qpn: u32,
        header: &RoceHeader,
    ) -> Option<(Option<u32>, u32)> {
        let connection = self.connection_mut(qpn)?;
        // A response has the PSN of its request, which went in the other direction.
        let (first, transmission) = match (dir, header.bth.opcode.is_response()) {
            (Direction::Tx, false) => (connection.first_sent, &mut connection.sent_requests),
            (Direction::Rx, false) => {
                (connection.first_received, &mut connection.received_requests)
            }
            (Direction::Tx, true) => (connection.first_received, &mut connection.sent_responses),
            (Direction::Rx, true) => (connection.first_sent, &mut connection.received_responses),
        };
        let psn = header.bth.psn;
        let iter = transmission.advance(psn);
        let relative = first.map(|first| psn.get().wrapping_sub(first.get()) & PSN_MASK);
        Some((relative, iter))
    }
}
