//! The world: hosts, the wire, the clock.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use faultline_abi::cqe::Cqe;
use faultline_abi::doorbell::Doorbell;
use faultline_abi::qp::{QPT_RC, QPT_UC};
use faultline_abi::wqe as wr;
use faultline_nic::{Dma, FrameKind, Instant, Nic, NicConfig, Origin, State as QpState, TxFrame};
use faultline_oracle::{Finding, Oracle, Place, QueuePair, Rule};
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Connect, Cq, CqConfig, Driver, Mr, Qp, QpConfig, Rng, Send};
use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{Gid, MacAddr, PrioritySet};

use crate::link::Link;
use crate::memory::{GuestMemory, Persisting};
use crate::wire::{Impairment, Wire};

/// Memory of each guest.
const RAM: usize = 16 << 20;
/// No test needs more virtual time: one that does is stuck.
const END_OF_TIME_NS: u64 = 600_000_000_000;
/// Steps at one instant. A NIC that needs more has a deadline which its handler does not end.
const STEPS_AT_ONCE: u32 = 1_000_000;

/// Frames that a NIC with a link of its own sends in a turn, after which the link is asked again, as the engine does.
const TURN_FRAMES: u32 = 32;

/// A NIC with its guest's memory.
#[derive(Debug)]
struct Node {
    nic: Nic,
    memory: GuestMemory,
}

/// Whether a frame to this address gets there. A NIC hears itself only where it is addressed: the switch turns
/// such frames round.
fn hears(node: &Node, own: bool, dst: MacAddr) -> bool {
    if own {
        dst == node.nic.mac()
    } else {
        node.nic.accepts(dst)
    }
}

/// Says of a packet, by sender and header, whether it is lost.
type Filter = Box<dyn FnMut(usize, &RoceHeader) -> bool>;

struct State {
    now: u64,
    /// A time and the number of steps at this time.
    steps_at: (u64, u32),
    nodes: Vec<Node>,
    wire: Wire,
    /// Links in place of the wire, by sender.
    links: BTreeMap<usize, Box<dyn Link>>,
    /// Packets that are lost whatever the wire does.
    filter: Option<Filter>,
    /// Frames are handed over at once, as between the NICs of one process, in runs of random length.
    by_reference: Option<Rng>,
    /// Headers of all RoCE packets that were sent, if someone wants them.
    trace: Option<Vec<(usize, RoceHeader)>>,
    /// The frames themselves, if they are wanted.
    capture: Option<Vec<(usize, Vec<u8>)>>,
    /// Hash of the frames that have been sent and received by wire, if it is wanted.
    hash: Option<DefaultHasher>,
    /// The most that a NIC has done in one call.
    longest_call: u64,
    interrupts: Vec<Vec<u16>>,
    /// Hosts that are on a wire of their own: nothing is known of the frames from there and to there.
    foreign: BTreeSet<usize>,
    oracle: Oracle,
    /// Violations that a test causes on purpose.
    permitted: Vec<Rule>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("now", &self.now)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

/// Steps that one unit of work may stand for, and those of a call that need not be charged.
const STEPS_PER_WORK: u64 = 4;
const FREE_STEPS: u64 = 1024;

/// Calls a NIC and keeps the most that one call did. What it has really done must be in what it says it has done: else
/// a guest could have it do that without end.
fn watched<R>(nic: &mut Nic, longest: &mut u64, call: impl FnOnce(&mut Nic) -> R) -> R {
    let (work, steps) = (nic.work(), faultline_nic::steps());
    let result = call(nic);
    // A driver may have asked for a reset, after which it counts anew.
    if let Some(work) = nic.work().checked_sub(work) {
        *longest = work.max(*longest);
        if let (Some(before), Some(after)) = (steps, faultline_nic::steps()) {
            let steps = after - before;
            assert!(
                steps <= work * STEPS_PER_WORK + FREE_STEPS,
                "{steps} steps were taken, and work for {work} was charged"
            );
        }
    }
    result
}

fn add_to_hash(hash: &mut Option<DefaultHasher>, now: u64, node: usize, bytes: &[u8]) {
    if let Some(hash) = hash {
        (now, node, bytes).hash(hash);
    }
}

impl State {
    /// Sends whatever the NICs have, and keeps their interrupts.
    fn drain(&mut self) {
        while self.drain_once() {}
    }

    /// Returns whether a frame was handed over, so that there may be an answer.
    fn drain_once(&mut self) -> bool {
        let now = Instant(self.now);
        let mut delivered = false;
        for id in 0..self.nodes.len() {
            // As the engine does: who can't deliver does not send.
            let paused = |(other, node): (usize, &Node)| other != id && node.nic.is_stalled();
            if self.nodes.iter().enumerate().any(paused) {
                continue;
            }
            if let Some(link) = self.links.get_mut(&id) {
                let paused = link.paused(self.now);
                if paused == PrioritySet::ALL {
                    continue;
                }
                self.nodes[id].nic.set_paused_priorities(paused);
            }
            let memory = self.nodes[id].memory.clone();
            let mut frame = TxFrame::default();
            let mut sent = 0;
            loop {
                if sent == TURN_FRAMES && self.links.contains_key(&id) {
                    delivered = true;
                    break;
                }
                sent += 1;
                let longest = self
                    .by_reference
                    .as_mut()
                    .map_or(0, |rng| rng.below(64 << 10));
                let found = watched(&mut self.nodes[id].nic, &mut self.longest_call, |nic| {
                    nic.poll_transmit(now, &memory, longest as usize, &mut frame)
                });
                if !found {
                    break;
                }
                let is_barred = self.nodes[id].nic.last_barred().is_some();
                if let FrameKind::Roce(header) = &frame.kind {
                    self.judge(id, &frame, &memory);
                    if let Some(trace) = self.trace.as_mut().filter(|_| !is_barred) {
                        trace.push((id, *header));
                    }
                    if self.filter.as_mut().is_some_and(|lose| lose(id, header)) {
                        continue;
                    }
                }
                if is_barred {
                    continue;
                }
                if let Some(capture) = &mut self.capture {
                    let packets = (0..frame.packets).map(|n| frame.packet_bytes(n, &memory));
                    capture.extend(packets.flatten().map(|bytes| (id, bytes)));
                }
                if self.by_reference.is_some() {
                    self.hand_over(id, &frame, &memory);
                    delivered = true;
                    continue;
                }
                // What can't be read does not reach the wire.
                if let Ok(bytes) = frame.packet_bytes(0, &memory) {
                    add_to_hash(&mut self.hash, self.now, id, &bytes);
                    match self.links.get_mut(&id) {
                        None => self.wire.send(self.now, id, frame.origin(), bytes),
                        Some(link) => link.send(self.now, frame.origin(), &bytes),
                    }
                }
            }
            while let Some(vector) = self.nodes[id].nic.poll_interrupt() {
                self.interrupts[id].push(vector);
            }
        }
        delivered
    }

    /// Shows the packets of a frame that leaves to the oracle.
    fn judge(&mut self, from: usize, frame: &TxFrame, memory: &GuestMemory) {
        // Another look at the memory would be another result, and one more of the looks that a test counts.
        if memory.is_raced() {
            return;
        }
        let nic = &self.nodes[from].nic;
        let qpn = nic.last_sender();
        let sender = nic.queue_pair_info(qpn).map(|pair| QueuePair {
            qpn,
            mtu: Some(pair.mtu),
            read_limit: pair.max_rd_atomic.map(u32::from),
        });
        for packet in 0..frame.packets {
            if let Ok(bytes) = frame.packet_bytes(packet, memory) {
                self.oracle.sent(self.now, from, sender, &bytes);
            }
        }
    }

    fn hand_over(&mut self, from: usize, frame: &TxFrame, sender: &GuestMemory) {
        let now = Instant(self.now);
        for (id, node) in self.nodes.iter_mut().enumerate() {
            if hears(node, id == from, frame.dst()) {
                let packets = if sender.is_raced() { 0 } else { frame.packets };
                for packet in 0..packets {
                    if let Ok(bytes) = frame.packet_bytes(packet, sender) {
                        self.oracle.received(self.now, id, &bytes);
                    }
                }
                watched(&mut node.nic, &mut self.longest_call, |nic| {
                    nic.receive(now, &node.memory, frame, sender);
                });
            }
        }
    }

    /// Takes a frame that has arrived, with its sender.
    fn next_arrival(&mut self) -> Option<(usize, Origin, Vec<u8>)> {
        if let Some(frame) = self.wire.pop(self.now) {
            return Some((frame.from, frame.origin, frame.bytes));
        }
        let now = self.now;
        let mut links = self.links.iter_mut();
        links.find_map(|(from, link)| {
            link.receive(now)
                .map(|(origin, bytes)| (*from, origin, bytes))
        })
    }

    /// The next event happens. Returns false if there is none before `until`.
    fn step(&mut self, until: u64) -> bool {
        self.drain();
        let timers = self
            .nodes
            .iter()
            .filter_map(|node| node.nic.next_deadline())
            .map(|at| at.0);
        let Some(at) = timers
            .chain(self.wire.next_at())
            .chain(self.links.values().filter_map(|link| link.next_deadline()))
            .min()
            .filter(|at| *at <= until)
        else {
            return false;
        };
        self.now = self.now.max(at);
        let steps = match self.steps_at {
            (time, steps) if time == self.now => steps + 1,
            _ => 0,
        };
        assert!(steps < STEPS_AT_ONCE, "the clock does not advance");
        self.steps_at = (self.now, steps);
        assert!(
            self.now < END_OF_TIME_NS,
            "the simulation does not come to rest"
        );
        let now = Instant(self.now);
        while let Some((from, origin, bytes)) = self.next_arrival() {
            let dst = MacAddr(bytes[..6].try_into().expect("a frame has an address"));
            for (id, node) in self.nodes.iter_mut().enumerate() {
                if hears(node, id == from, dst) {
                    add_to_hash(&mut self.hash, self.now, id, &bytes);
                    self.oracle.received(self.now, id, &bytes);
                    watched(&mut node.nic, &mut self.longest_call, |nic| {
                        let alien = [id, from].iter().any(|end| self.foreign.contains(end));
                        let origin = if alien { Origin::Unknown } else { origin };
                        nic.receive_bytes_from(now, &node.memory, origin, &bytes);
                    });
                }
            }
        }
        for node in &mut self.nodes {
            watched(&mut node.nic, &mut self.longest_call, |nic| {
                nic.handle_deadline(now, &node.memory);
            });
        }
        self.drain();
        true
    }
}

/// One host's way to its NIC.
#[derive(Clone, Debug)]
pub struct SimBus {
    state: Rc<RefCell<State>>,
    id: usize,
}

impl Bus for SimBus {
    fn ram_len(&self) -> u64 {
        RAM as u64
    }

    fn read(&self, addr: u64, buf: &mut [u8]) {
        self.state.borrow().nodes[self.id]
            .memory
            .own()
            .read(addr, buf)
            .expect("address within memory");
    }

    fn write(&self, addr: u64, data: &[u8]) {
        self.state.borrow().nodes[self.id]
            .memory
            .write(addr, data)
            .expect("address within memory");
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        state.nodes[self.id].nic.read_register(now, offset)
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        state.nodes[self.id].nic.write_register(now, offset, value);
    }

    fn doorbell(&mut self, page: u32, bell: Doorbell) {
        let state = &mut *self.state.borrow_mut();
        let now = Instant(state.now);
        let node = &mut state.nodes[self.id];
        watched(&mut node.nic, &mut state.longest_call, |nic| {
            nic.doorbell(now, &node.memory, page, bell);
        });
        state.drain();
    }

    fn wait(&mut self) -> bool {
        self.state.borrow_mut().step(END_OF_TIME_NS)
    }

    fn renewed(&mut self, qpn: u32) {
        self.state
            .borrow_mut()
            .oracle
            .restart_queue_pair(self.id, qpn);
    }
}

/// A host: a driver, and where it is on the wire.
#[derive(Debug)]
pub struct Host {
    /// The driver.
    pub driver: Driver<SimBus>,
    /// MAC address.
    pub mac: MacAddr,
    /// IPv4 address, entry 0 of the GID table.
    pub gid4: Gid,
    /// IPv6 address, entry 1 of the GID table.
    pub gid6: Gid,
    /// A protection domain.
    pub pd: u32,
    /// Event queue of completion notices, on vector 1.
    pub eq: faultline_simulation::driver::Eq,
}

impl Host {
    /// A completion queue.
    pub fn cq(&mut self, log_depth: u8) -> Cq {
        let config = CqConfig {
            log_depth,
            eqn: self.eq.eqn,
            uctx: 0,
        };
        self.driver.create_cq(config).expect("CQ")
    }

    /// A region with every right whose pages do not begin at a page boundary of the I/O address space.
    pub fn mr(&mut self, len: u64) -> Mr {
        self.driver
            .reg_mr(self.pd, 0x7f00_0000_0123, len, ALL_ACCESS)
            .expect("MR")
    }

    /// A queue pair whose sends and receives complete on one CQ.
    pub fn qp(&mut self, kind: u8, cq: &Cq) -> Qp {
        let config = self.qp_config(kind, cq);
        self.driver.create_qp(&config).expect("QP")
    }

    /// The usual shape of a queue pair.
    pub fn qp_config(&self, kind: u8, cq: &Cq) -> QpConfig {
        QpConfig {
            kind,
            pd: self.pd,
            uctx: 0,
            send_cqn: cq.cqn,
            recv_cqn: cq.cqn,
            srqn: None,
            log_depth: 8,
            max_sge: 4,
            flags: faultline_abi::admin::QP_FLAG_SIG_ALL,
        }
    }
}

/// Two connected queue pairs with a CQ and a region each.
#[derive(Debug)]
pub struct Pair {
    /// Completion queues.
    pub cq: [Cq; 2],
    /// Queue pairs.
    pub qp: [Qp; 2],
    /// Regions.
    pub mr: [Mr; 2],
}

/// Hosts on a wire.
#[derive(Debug)]
pub struct World {
    state: Rc<RefCell<State>>,
    /// The hosts.
    pub hosts: Vec<Host>,
}

/// Each test ends with the checks that hold at any time.
impl Drop for World {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check_state_counts();
            self.check_packets();
        }
    }
}

impl World {
    /// `hosts` hosts on a wire without faults.
    pub fn new(hosts: usize, seed: u64) -> Self {
        Self::with_config(hosts, seed, |_| {})
    }

    /// The same with NICs of another configuration.
    pub fn with_config(hosts: usize, seed: u64, change: impl Fn(&mut NicConfig)) -> Self {
        let config = |mac: MacAddr| {
            let mut config = NicConfig::new(mac);
            change(&mut config);
            config
        };
        let mac = |id: usize| MacAddr([2, 0, 0, 0, 0, id as u8 + 1]);
        let node = |id| {
            let config = config(mac(id));
            let device = config.limits.device_memory as usize;
            Node {
                nic: Nic::new(config),
                memory: GuestMemory::new(RAM, device),
            }
        };
        let nodes = (0..hosts).map(node).collect();
        let mut oracle = Oracle::new(Place::Adapter);
        (0..hosts).for_each(|id| oracle.set_ready(id, true));
        let state = Rc::new(RefCell::new(State {
            now: 0,
            steps_at: (0, 0),
            nodes,
            wire: Wire::new(seed),
            links: BTreeMap::new(),
            filter: None,
            by_reference: None,
            trace: None,
            capture: None,
            hash: None,
            longest_call: 0,
            interrupts: vec![Vec::new(); hosts],
            foreign: BTreeSet::new(),
            oracle,
            permitted: Vec::new(),
        }));
        let host = |id: usize| {
            let bus = SimBus {
                state: Rc::clone(&state),
                id,
            };
            let mut driver = Driver::new(bus).expect("driver starts");
            let gid4 = Gid::from_ipv4([10, 0, 0, id as u8 + 1]);
            let mut gid6 = [0; 16];
            (gid6[0], gid6[15]) = (0xfd, id as u8 + 1);
            let gid6 = Gid(gid6);
            driver.set_gid(0, gid4, mac(id)).expect("GID");
            driver.set_gid(1, gid6, mac(id)).expect("GID");
            driver.set_netdev(mac(id), 9000, 0).expect("netdev");
            let pd = driver.alloc_pd().expect("PD");
            let eq = driver.create_eq(0, 1, 10).expect("EQ");
            Host {
                driver,
                mac: mac(id),
                gid4,
                gid6,
                pd,
                eq,
            }
        };
        let hosts = (0..hosts).map(host).collect();
        Self { state, hosts }
    }

    /// Adds a link of its own for a host, which its frames pass instead of the wire.
    pub fn set_link(&self, host: usize, link: impl Link + 'static) {
        self.state.borrow_mut().links.insert(host, Box::new(link));
    }

    /// Faults of the wire from now on.
    pub fn impair(&self, impairment: Impairment) {
        self.state.borrow_mut().wire.impairment = impairment;
    }

    /// Hands frames over by reference and at once from now on, as between the NICs of one process. Packets of
    /// a message go in runs of random length.
    pub fn hand_over_by_reference(&self) {
        self.state.borrow_mut().by_reference = Some(Rng::new(1));
    }

    /// Separates a host from the others by a wire on which any adapter can be: its NIC knows nothing of theirs, and they
    /// know nothing of it.
    pub fn make_foreign(&self, host: usize) {
        let mut state = self.state.borrow_mut();
        state.foreign.insert(host);
        state.oracle.set_ready(host, false);
    }

    /// Lets each frame take up its sender's line for so long, so that a burst arrives one by one.
    pub fn pace(&self, ns_per_frame: u64) {
        self.state.borrow_mut().wire.gap = ns_per_frame;
    }

    /// Loses the packets for which `lose` says so, by sender and header. It sees every packet that is sent.
    pub fn lose(&self, lose: impl FnMut(usize, &RoceHeader) -> bool + 'static) {
        self.state.borrow_mut().filter = Some(Box::new(lose));
    }

    /// Loses nothing more by [`World::lose`].
    pub fn lose_nothing(&self) {
        self.state.borrow_mut().filter = None;
    }

    /// Lets memory of a host become durable only when [`World::persist`] says so.
    pub fn persist_slowly(&self, host: usize) {
        let state = self.state.borrow();
        state.nodes[host].memory.persist_slowly();
    }

    /// The requests of a host to make memory durable, oldest first.
    pub fn persisting(&self, host: usize) -> Vec<Persisting> {
        self.state.borrow().nodes[host].memory.persisting()
    }

    /// Completes the oldest of these, with success or failure.
    pub fn persist(&self, host: usize, well: bool) {
        let state = &mut *self.state.borrow_mut();
        let node = &mut state.nodes[host];
        let request = node.memory.take_persisting();
        node.nic.persisted(request.qpn, request.number, well);
    }

    /// Checks that the NICs have sent no packet that violates a rule of the specification.
    fn check_packets(&self) {
        let state = self.state.borrow();
        let is_wrong = |violation: &&Finding| !state.permitted.contains(&violation.rule);
        let wrong: Vec<String> = state
            .oracle
            .violations()
            .iter()
            .filter(is_wrong)
            .map(|violation| violation.to_string())
            .collect();
        assert!(
            wrong.is_empty(),
            "{} violations:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    }

    /// Permits violations of these rules, for a test that causes them on purpose.
    pub fn permit(&self, rules: &[Rule]) {
        self.state.borrow_mut().permitted.extend(rules);
    }

    /// Checks that the counts of queue pairs by state are those of the list.
    fn check_state_counts(&self) {
        for node in &mut self.state.borrow_mut().nodes {
            let mut listed = [0; QpState::ALL.len()];
            let mut from = Some(0);
            while let Some(place) = from {
                let part = node.nic.queue_pairs(place, usize::MAX);
                for state in part.items.iter().filter_map(|pair| pair.state) {
                    listed[state as usize] += 1;
                }
                from = part.next;
            }
            let counted = node.nic.object_counts().qp_states;
            assert!(
                counted.iter().eq(QpState::ALL.into_iter().zip(listed)),
                "{counted:?}, but {listed:?}"
            );
        }
    }

    /// Looks at a NIC.
    pub fn with_nic<T>(&self, host: usize, look: impl FnOnce(&mut Nic) -> T) -> T {
        look(&mut self.state.borrow_mut().nodes[host].nic)
    }

    /// Does something to a NIC as its operator would, at the present time and with the memory of its guest.
    pub fn operate<T>(
        &self,
        host: usize,
        work: impl FnOnce(&mut Nic, Instant, &GuestMemory) -> T,
    ) -> T {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        let Node { nic, memory } = &mut state.nodes[host];
        work(nic, now, memory)
    }

    /// The most work that a call has been: a doorbell, a frame, a deadline, a look for something to send, in the unit of [`Nic::work`].
    pub fn longest_call(&self) -> u64 {
        self.state.borrow().longest_call
    }

    /// From now on another processor of `host` keeps this receive queue full, for so many looks of the device.
    pub fn keep_full(&self, host: usize, qp: &Qp, looks: u32) {
        let memory = &self.state.borrow().nodes[host].memory;
        memory.keep_full(qp.receive_record(), looks);
    }

    /// From now on another processor of `host` changes what the device reads: `race` gets the address and the bytes of
    /// each read, and may put others in their place.
    pub fn race(&self, host: usize, race: impl FnMut(u64, &mut [u8]) + 'static) {
        let mut state = self.state.borrow_mut();
        state.nodes[host].memory.race(race);
        // Its packets are not shown from now on.
        state.oracle.set_remote(host);
    }

    /// From now on another processor of `host` lets the device find these bytes at `addr`, when it has read them so many
    /// times as they are.
    pub fn change_after(&self, host: usize, addr: u64, bytes: &[u8], mut reads: u32) {
        let bytes = bytes.to_vec();
        self.race(host, move |from, read| {
            let end = from + read.len() as u64;
            if addr < from || addr + bytes.len() as u64 > end {
                return;
            }
            if reads > 0 {
                reads -= 1;
                return;
            }
            let at = (addr - from) as usize;
            read[at..at + bytes.len()].copy_from_slice(&bytes);
        });
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.state.borrow().now
    }

    /// Lets everything happen until nothing is left to happen.
    pub fn run(&self) {
        while self.state.borrow_mut().step(END_OF_TIME_NS) {}
    }

    /// Lets the next thing happen, if there is one until then.
    pub fn step(&self, until: u64) -> bool {
        self.state.borrow_mut().step(until.min(END_OF_TIME_NS))
    }

    /// Nothing happens until then.
    pub fn advance_to(&self, ns: u64) {
        let mut state = self.state.borrow_mut();
        state.now = state.now.max(ns);
    }

    /// Lets everything happen for some time.
    pub fn run_for(&self, ns: u64) {
        let until = self.now() + ns;
        while self.state.borrow_mut().step(until) {}
        self.state.borrow_mut().now = until;
    }

    /// Keeps the headers of the packets that are sent from now on.
    pub fn start_trace(&self) {
        self.state.borrow_mut().trace = Some(Vec::new());
    }

    /// Headers kept so far, with the host that sent each.
    pub fn take_trace(&self) -> Vec<(usize, RoceHeader)> {
        self.state
            .borrow_mut()
            .trace
            .replace(Vec::new())
            .unwrap_or_default()
    }

    /// Calculates the hash of all frames from now on that NICs send to the wire and receive from it, with their times.
    pub fn start_hash(&self) {
        self.state.borrow_mut().hash = Some(DefaultHasher::new());
    }

    /// This hash. It means something in the same build only.
    pub fn hash(&self) -> u64 {
        let state = self.state.borrow();
        state.hash.as_ref().map_or(0, Hasher::finish)
    }

    /// Keeps the octets of the frames that leave from now on.
    pub fn start_capture(&self) {
        self.state.borrow_mut().capture = Some(Vec::new());
    }

    /// Frames kept since the last call, with the host that sent each. What can't be read of a sender's memory does not
    /// leave.
    pub fn take_capture(&self) -> Vec<(usize, Vec<u8>)> {
        self.state
            .borrow_mut()
            .capture
            .replace(Vec::new())
            .unwrap_or_default()
    }

    /// Interrupts of a host since the last call.
    pub fn take_interrupts(&self, host: usize) -> Vec<u16> {
        std::mem::take(&mut self.state.borrow_mut().interrupts[host])
    }

    /// Puts octets on the wire as if `host` had sent them.
    pub fn inject(&self, host: usize, bytes: Vec<u8>) {
        let mut state = self.state.borrow_mut();
        let now = state.now;
        state.wire.send(now, host, Origin::Unknown, bytes);
    }

    /// The path from one host to the other: IPv4, 1024-byte packets.
    pub fn path(&self, to: usize, qpn: u32) -> Connect {
        Connect::to(self.hosts[to].gid4, self.hosts[to].mac, qpn)
    }

    /// Connects a QP of host 0 with one of host 1; `change` adjusts the attributes of both.
    pub fn connect(&mut self, kind: u8, mr_len: u64, change: impl Fn(&mut Connect)) -> Pair {
        assert!(kind == QPT_RC || kind == QPT_UC);
        let cq = [0, 1].map(|i| self.hosts[i].cq(10));
        let qp = [0, 1].map(|i| self.hosts[i].qp(kind, &cq[i]));
        let mr = [0, 1].map(|i| self.hosts[i].mr(mr_len));
        self.connect_qps(kind, [qp[0].qpn, qp[1].qpn], change);
        Pair { cq, qp, mr }
    }

    /// Connects a queue pair of host 0 with one of host 1, given their numbers.
    pub fn connect_qps(&mut self, kind: u8, qpns: [u32; 2], change: impl Fn(&mut Connect)) {
        for i in 0..2 {
            let mut path = self.path(1 - i, qpns[1 - i]);
            change(&mut path);
            if path.sgid_index == 1 {
                path.dgid = self.hosts[1 - i].gid6;
            }
            self.hosts[i]
                .driver
                .connect(qpns[i], kind, &path)
                .expect("connection");
        }
    }

    /// Posts a WRITE of `len` bytes from the start of host 0's region to the start of host 1's.
    pub fn post_write(&mut self, pair: &mut Pair, len: u32) {
        let [from, to] = pair.mr;
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, len, from.key)],
            remote_addr: to.va,
            rkey: to.key,
            ..Send::default()
        };
        self.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    }

    /// Completions of a CQ that are there.
    pub fn completions(&mut self, host: usize, cq: &mut Cq) -> Vec<Cqe> {
        std::iter::from_fn(|| self.hosts[host].driver.poll(cq)).collect()
    }
}

/// A packet with these headers and this payload as octets, correct down to the checksum.
pub fn packet(header: &RoceHeader, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.frame_len(payload.len())];
    header
        .emit(payload.len(), &mut bytes)
        .expect("headers that belong to the opcode");
    let at = header.header_len();
    bytes[at..at + payload.len()].copy_from_slice(payload);
    seal(&mut bytes).expect("room for the checksum");
    bytes
}

/// Checks that exactly one completion is there, with this status, and gives it.
#[track_caller]
pub fn expect_cqe(world: &mut World, host: usize, cq: &mut Cq, status: u8) -> Cqe {
    let found = world.completions(host, cq);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].status, status, "{:?}", found[0]);
    found[0]
}
