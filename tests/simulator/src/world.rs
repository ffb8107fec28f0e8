//! A world: hosts, and the actions and observations of tests.

use std::cell::{RefCell, RefMut};
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use faultline_abi::cqe::Cqe;
use faultline_abi::doorbell::Doorbell;
use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::qp::{QPT_RC, QPT_UC};
use faultline_abi::{U16, wqe as wr};
use faultline_checker::{Finding, Rule};
use faultline_fabric::Mark;
use faultline_fabric::link_model::{LinkModel, LinkModelCounts, ModelledLink};
use faultline_nic::{Diagnostic, Dma, Instant, Nic, NicConfig, Origin, State as QpState};
use faultline_scenario::trigger::Direction;
use faultline_simulation::{Bus, Connect, Cq, Mr, Qp, Rng, Send, open_stream};
use faultline_wire::packet::{RoceHeader, seal};
use faultline_wire::{Gid, MacAddr, PrioritySet};

use crate::around::Around;
use crate::fabrics::{END_OF_TIME_NS, Fabrics};
use crate::memory::{GuestMemory, Persisting};

/// Memory of each guest.
const RAM: usize = 16 << 20;

/// One host's way to its NIC.
#[derive(Clone, Debug)]
pub struct SimBus {
    state: Rc<RefCell<Fabrics>>,
    id: usize,
}

impl Bus for SimBus {
    fn ram_len(&self) -> u64 {
        RAM as u64
    }

    fn read(&self, addr: u64, buf: &mut [u8]) {
        let state = self.state.borrow();
        let read = state.ram(self.id).read(addr, buf);
        read.expect("address within memory");
    }

    fn write(&self, addr: u64, data: &[u8]) {
        let state = self.state.borrow();
        let written = state.ram(self.id).write(addr, data);
        written.expect("address within memory");
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        state.nic(self.id).read_register(now, offset)
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        state.nic(self.id).write_register(now, offset, value);
    }

    fn doorbell(&mut self, page: u32, bell: Doorbell) {
        self.state.borrow_mut().doorbell(self.id, page, bell);
    }

    fn wait(&mut self) -> bool {
        self.state.borrow_mut().step(END_OF_TIME_NS)
    }

    fn renewed(&mut self, qpn: u32) {
        let checker = &mut self.state.borrow_mut().around.checker;
        checker.restart_queue_pair(self.id, qpn);
    }
}

/// A host of a world.
pub type Host = faultline_simulation::Host<SimBus>;

/// IPv6 address of a host, entry 1 of the GID table.
pub fn gid6(host: &Host) -> Gid {
    let [.., last] = host.mac.0;
    let mut gid = [0; 16];
    (gid[0], gid[15]) = (0xfd, last);
    Gid(gid)
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
    state: Rc<RefCell<Fabrics>>,
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
        let configs = (0..hosts).map(|id| config(mac(id))).collect();
        let state = Rc::new(RefCell::new(Fabrics::new(configs, RAM, seed)));
        let host = |id: usize| {
            let bus = SimBus {
                state: Rc::clone(&state),
                id,
            };
            let gid = Gid::from_ipv4([10, 0, 0, id as u8 + 1]);
            let mut host = Host::start(bus, mac(id), gid).expect("driver starts");
            let gid6 = gid6(&host);
            host.driver.set_gid(1, gid6, mac(id)).expect("GID");
            host
        };
        let hosts = (0..hosts).map(host).collect();
        Self { state, hosts }
    }

    /// Moves all NICs to one fabric, and gives the frames of a host a modelled link to the others.
    pub fn model_link(&self, host: usize, model: LinkModel) {
        let mut state = self.state.borrow_mut();
        state.gather();
        state.model_link(host, model);
    }

    /// Looks at the modelled link of a host.
    pub fn link<T>(&self, host: usize, look: impl FnOnce(&ModelledLink<Mark>) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let link = state.fabric(host).links.get(host, Direction::Tx);
        look(link.expect("a modelled link"))
    }

    /// Effects of the modelled link of a host.
    pub fn link_counts(&self, host: usize) -> LinkModelCounts {
        self.link(host, ModelledLink::counts)
    }

    /// Pauses these priorities of a host's frames, and no others, as the link of a peer does.
    pub fn pause(&self, host: usize, paused: PrioritySet) {
        self.state.borrow_mut().pause(host, paused);
    }

    /// Changes each frame that a host sends to the wire, or (`None`) loses it.
    pub fn change(&self, host: usize, change: impl FnMut(Vec<u8>) -> Option<Vec<u8>> + 'static) {
        self.between_fabrics().change = Some((host, Box::new(change)));
    }

    /// The way between fabrics, which a world with all NICs in one fabric does not have.
    fn between_fabrics(&self) -> RefMut<'_, Around> {
        let around = RefMut::map(self.state.borrow_mut(), |state| &mut state.around);
        assert!(!around.is_gathered, "the NICs of one fabric have no wire");
        around
    }

    /// Sets the model of the wire from each host to the others, for frames from now on. Its seed is that of the world.
    pub fn impair(&self, model: LinkModel) {
        self.between_fabrics().wire.set_model(model);
    }

    /// Sets how many of 1000 frames on the wire get the mark of congestion, if their senders react to it (RFC 3168).
    pub fn mark(&self, frames: u32) {
        self.between_fabrics().wire.marking = frames;
    }

    /// Moves all NICs to one fabric, where frames pass by reference and at once.
    pub fn hand_over_by_reference(&self) {
        self.state.borrow_mut().gather();
    }

    /// The same without observers of frames and without the packet checker, for which each frame ends with a turn. `stops`: a seed, by which
    /// something waits now and then for the end of a sender's turns.
    pub fn hand_over_unseen(&self, stops: Option<u64>) {
        let mut state = self.state.borrow_mut();
        state.gather();
        state.around.is_unseen = true;
        state.around.stops = stops.map(|seed| RefCell::new(Rng::new(seed)));
    }

    /// Frames of a host with more payload than a turn.
    pub fn long_runs(&self, host: usize) -> u64 {
        self.state.borrow().around.long_runs[host]
    }

    /// Lets frames pass between fabrics at once and with typed headers, as between the engines of a process. [`World::lose`] loses
    /// whole runs of packets.
    pub fn hand_over_between_engines(&self) {
        self.state.borrow_mut().around.is_typed = true;
    }

    /// Separates a host from the others by a wire on which any adapter can be: its NIC knows nothing of theirs, and they
    /// know nothing of it.
    pub fn make_foreign(&self, host: usize) {
        let mut state = self.state.borrow_mut();
        state.around.foreign.insert(host);
        state.around.checker.set_ready(host, false);
    }

    /// Lets each frame occupy its sender's line for this time, so that a burst arrives one by one.
    pub fn pace(&self, ns_per_frame: u64) {
        self.between_fabrics().wire.gap = ns_per_frame;
    }

    /// Loses the packets for which `lose` says so, by sender and header. It sees all packets to other fabrics.
    pub fn lose(&self, lose: impl FnMut(usize, &RoceHeader) -> bool + 'static) {
        self.between_fabrics().filter = Some(Box::new(lose));
    }

    /// Loses nothing more by [`World::lose`].
    pub fn lose_nothing(&self) {
        self.state.borrow_mut().around.filter = None;
    }

    /// Lets memory of a host become durable only when [`World::persist`] says so.
    pub fn persist_slowly(&self, host: usize) {
        self.state.borrow().memory(host).persist_slowly();
    }

    /// The requests of a host to make memory durable, oldest first.
    pub fn persisting(&self, host: usize) -> Vec<Persisting> {
        self.state.borrow().memory(host).persisting()
    }

    /// Completes the oldest of these, with success or failure.
    pub fn persist(&self, host: usize, well: bool) {
        let mut state = self.state.borrow_mut();
        let request = state.memory(host).take_persisting();
        let nic = state.nic(host);
        nic.persisted(request.qpn, request.number, well);
    }

    /// Checks that the NICs have sent no packet that violates a rule of the specification.
    fn check_packets(&self) {
        let state = self.state.borrow();
        let is_wrong = |violation: &&Finding| !state.around.permitted.contains(&violation.rule);
        let wrong: Vec<String> = state
            .around
            .checker
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

    /// Segments of iWARP connections that the packet checker has judged, and those that it has not.
    pub fn segments(&self) -> (u64, u64) {
        let checker = &self.state.borrow().around.checker;
        (checker.segments(), checker.unjudged_segments())
    }

    /// Permits violations of these rules, for a test that causes them on purpose.
    pub fn permit(&self, rules: &[Rule]) {
        self.state.borrow_mut().around.permitted.extend(rules);
    }

    /// Checks that the counts of queue pairs by state are those of the list.
    fn check_state_counts(&self) {
        let mut state = self.state.borrow_mut();
        for host in 0..self.hosts.len() {
            let nic = state.nic(host);
            let mut listed = [0; QpState::ALL.len()];
            let mut from = Some(0);
            while let Some(place) = from {
                let part = nic.queue_pairs(place, usize::MAX);
                for state in part.items.iter().filter_map(|pair| pair.state) {
                    listed[state as usize] += 1;
                }
                from = part.next;
            }
            let counted = nic.object_counts().qp_states;
            assert!(
                counted.iter().eq(QpState::ALL.into_iter().zip(listed)),
                "{counted:?}, but {listed:?}"
            );
        }
    }

    /// Looks at a NIC.
    pub fn with_nic<T>(&self, host: usize, look: impl FnOnce(&mut Nic) -> T) -> T {
        look(self.state.borrow_mut().nic(host))
    }

    /// Does something to a NIC as its operator would, at the present time and with the memory of its guest.
    pub fn operate<T>(
        &self,
        host: usize,
        work: impl FnOnce(&mut Nic, Instant, &GuestMemory) -> T,
    ) -> T {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        let memory = state.memory(host).clone();
        work(state.nic(host), now, &memory)
    }

    /// The most work that a call has been: a doorbell, a frame, a deadline, a look for something to send, in the unit of [`Nic::work`].
    pub fn longest_call(&self) -> u64 {
        self.state.borrow().around.meter.longest
    }

    /// From now on another processor of `host` keeps this receive queue full, for this number of looks of the device.
    pub fn keep_full(&self, host: usize, qp: &Qp, looks: u32) {
        let state = self.state.borrow();
        state.memory(host).keep_full(qp.receive_record(), looks);
    }

    /// From now on another processor of `host` changes the memory that the device reads: `race` gets the address and
    /// the bytes of each read, and may replace them.
    pub fn race(&self, host: usize, race: impl FnMut(u64, &mut [u8]) + 'static) {
        let mut state = self.state.borrow_mut();
        state.memory(host).race(race);
        // Its packets are not shown from now on.
        state.around.checker.set_remote(host);
    }

    /// From now on another processor of `host` stores these bytes at `addr`, after the device has read the present ones
    /// this number of times.
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

    /// Messages that a host has sent in trains, several in a frame.
    pub fn messages_in_trains(&self, host: usize) -> u64 {
        self.state.borrow().around.in_trains[host]
    }

    /// Keeps the headers of the packets that are sent from now on.
    pub fn start_trace(&self) {
        self.state.borrow_mut().around.trace = Some(Vec::new());
    }

    /// Headers kept so far, with the host that sent each.
    pub fn take_trace(&self) -> Vec<(usize, RoceHeader)> {
        self.state
            .borrow_mut()
            .around
            .trace
            .replace(Vec::new())
            .unwrap_or_default()
    }

    /// Calculates the hash of all frames from now on that NICs send to the wire and receive from it, with their times.
    pub fn start_hash(&self) {
        self.state.borrow_mut().around.hash = Some(DefaultHasher::new());
    }

    /// This hash. It means something in the same build only.
    pub fn hash(&self) -> u64 {
        let state = self.state.borrow();
        state.around.hash.as_ref().map_or(0, Hasher::finish)
    }

    /// Keeps the octets of the frames that leave from now on.
    pub fn start_capture(&self) {
        self.state.borrow_mut().around.capture = Some(Vec::new());
    }

    /// Frames kept since the last call, with the host that sent each. A frame whose payload cannot be read is not sent.
    pub fn take_capture(&self) -> Vec<(usize, Vec<u8>)> {
        self.state
            .borrow_mut()
            .around
            .capture
            .replace(Vec::new())
            .unwrap_or_default()
    }

    /// Interrupts of a host since the last call.
    pub fn take_interrupts(&self, host: usize) -> Vec<u16> {
        std::mem::take(&mut self.state.borrow_mut().around.interrupts[host])
    }

    /// Diagnostics of a host since the last call, with their times.
    pub fn take_diagnostics(&self, host: usize) -> Vec<(Instant, Diagnostic)> {
        let mut state = self.state.borrow_mut();
        let mut all = std::mem::take(&mut state.around.diagnostics[host]);
        let nic = state.nic(host);
        all.extend(std::iter::from_fn(|| nic.poll_diagnostic()));
        all
    }

    /// Puts octets on the wire as if `host` had sent them.
    pub fn inject(&self, host: usize, bytes: Vec<u8>) {
        let mut state = self.state.borrow_mut();
        let now = state.now;
        state
            .around
            .wire
            .send(now, (host, None, Origin::Unknown), bytes);
    }

    /// The path from one host to the other: IPv4, 1024-byte packets.
    pub fn path(&self, to: usize, qpn: u32) -> Connect {
        self.hosts[to].path(qpn)
    }

    /// Connects a QP of host 0 with one of host 1; `change` adjusts the attributes of both.
    pub fn connect(&mut self, kind: u8, mr_len: u64, change: impl Fn(&mut Connect)) -> Pair {
        assert!(kind == QPT_RC || kind == QPT_UC);
        let cq = [0, 1].map(|i| self.hosts[i].cq(10).expect("CQ"));
        let qp = [0, 1].map(|i| self.hosts[i].qp(kind, &cq[i]).expect("QP"));
        let mr = [0, 1].map(|i| self.hosts[i].mr(mr_len).expect("MR"));
        self.connect_qps(kind, [qp[0].qpn, qp[1].qpn], change);
        Pair { cq, qp, mr }
    }

    /// Connects a queue pair of host 0 with one of host 1, given their numbers.
    pub fn connect_qps(&mut self, kind: u8, qpns: [u32; 2], change: impl Fn(&mut Connect)) {
        for i in 0..2 {
            let mut path = self.path(1 - i, qpns[1 - i]);
            change(&mut path);
            if path.sgid_index == 1 {
                path.dgid = gid6(&self.hosts[1 - i]);
            }
            self.hosts[i]
                .driver
                .connect(qpns[i], kind, &path)
                .expect("connection");
        }
    }

    /// TCP port of a queue pair that has opened a connection by [`World::open_stream`].
    pub fn stream_port(qpn: u32) -> u16 {
        40_000 + (qpn & 0x3fff) as u16
    }

    /// Opens an iWARP connection from the first of two hosts to the other, for queue pairs in RESET, over paths of `mtu` octets. Events
    /// of the two drivers are read.
    pub fn open_stream(&mut self, ends: [(usize, u32); 2], mtu: u16) {
        let [from, to] = ends.map(|(host, _)| host);
        let hosts = self.hosts.get_disjoint_mut([from, to]);
        let qpns = ends.map(|(_, qpn)| qpn);
        let change = |end, path| match end {
            0 => ConnectionPath {
                mtu: U16::new(mtu),
                ..path
            },
            _ => path,
        };
        let port = Self::stream_port(qpns[0]);
        open_stream(hosts.expect("two hosts"), qpns, port, change).expect("a connection");
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
