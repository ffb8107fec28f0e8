//! NICs, the wire between them, and the clock.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, Dma, FrameKind, Instant, Nic, NicConfig, Origin, TxFrame};
use faultline_oracle::{Oracle, QueuePair};
use faultline_scenario::trigger::Direction;
use faultline_simulator::{Bus, Memory, RAM_BASE};
use faultline_telemetry::DiagnosticKind;
use faultline_wire::MacAddr;
use faultline_wire::packet::{RoceHeader, parse};

use crate::observer::{Frame, Late, Operation, PassedFrame, SharedObserver};
use crate::trace::Trace;

/// Memory of each host. Pages exist when they are written to, so that much of it costs nothing.
pub(crate) const RAM: u64 = 256 << 20;
/// Steps and frames at one instant. A run that needs more does not advance.
const STEPS_AT_ONCE: u32 = 1_000_000;
const ETHERNET_HEADER: usize = 14;

/// A NIC with the memory of its host.
#[derive(Debug)]
pub(crate) struct Node {
    pub nic: Nic,
    pub memory: Memory,
    /// Vectors that the driver has not seen yet, as bits.
    interrupts: u64,
    /// Longest packet of the port without its Ethernet header.
    mtu: Option<u16>,
    /// The device has been removed.
    is_removed: bool,
    /// Speed of the port in Mb/s; `None`: frames take no time beside that of the wire.
    speed: Option<u32>,
    /// When the port has sent its last frame.
    sends_until: u64,
}

impl Node {
    /// True if frames pass the port.
    fn has_link(&self) -> bool {
        self.nic.is_link_up() && !self.is_removed
    }

    /// When the port has sent a frame, behind those before it.
    fn send_at(&mut self, now: u64, bytes: usize) -> u64 {
        let mbps = u64::from(self.speed.unwrap_or(0));
        let bits = (bytes as u64).saturating_mul(8000);
        let takes = bits.checked_div(mbps).unwrap_or(0);
        self.sends_until = self.sends_until.max(now).saturating_add(takes);
        self.sends_until
    }

    /// True if the port drops a frame because of its length.
    fn is_too_long(&self, frame: &[u8]) -> bool {
        let mtu = self.mtu.map_or(usize::MAX, usize::from);
        frame.len().saturating_sub(ETHERNET_HEADER) > mtu
    }
}

/// What happens at a time.
#[derive(Debug)]
enum Later {
    /// A frame arrives at all NICs that accept its address.
    Frame {
        from: usize,
        origin: Origin,
        bytes: Vec<u8>,
    },
}

#[derive(Debug)]
struct Due {
    at: u64,
    order: u64,
    what: Later,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first: the earliest, and of those the first that was added.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

/// What is counted in a run.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// RoCE packets by NIC, direction (true: sent) and BTH opcode.
    pub packets: BTreeMap<(usize, bool, u8), u64>,
    /// Diagnostics by NIC and kind.
    pub diagnostics: BTreeMap<(usize, &'static str), u64>,
}

/// What a step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something has happened.
    Done,
    /// Nothing happens until then.
    Nothing,
}

pub(crate) struct State {
    /// The device clock.
    pub now: u64,
    /// How long the device clock has stood still: the clock of the hosts is so much later.
    pub paused: u64,
    /// When the last pause was, and how long.
    last_pause: (u64, u64),
    /// The traffic began at this time.
    pub start: u64,
    /// Steps and frames at the present instant.
    steps: u32,
    pub nodes: Vec<Node>,
    wire_delay: u64,
    by_reference: bool,
    later: BinaryHeap<Due>,
    order: u64,
    pub observer: SharedObserver,
    /// Hosts whose driver is to move the entries of its GID table.
    pub moved_gids: Vec<usize>,
    pub trace: Trace,
    pub counts: Counts,
    /// Judges what the NICs send. Its times are since the traffic began.
    pub checker: Option<Oracle>,
    /// The clock does not advance. Nothing happens any more.
    pub broken: bool,
    /// Nothing happens after this time of the device clock.
    pub limit: u64,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("now", &self.now)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

/// Shape of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub hosts: u8,
    pub wire_delay: u64,
    pub by_reference: bool,
}

/// MAC address of a host.
pub(crate) fn mac_of(host: usize) -> MacAddr {
    let last = u8::try_from(host).unwrap_or(u8::MAX).saturating_add(1);
    MacAddr([2, 0, 0, 0, 0, last])
}

impl State {
    pub(crate) fn new(
        shape: Shape,
        configure: &mut dyn FnMut(&mut NicConfig),
        observer: SharedObserver,
        trace: Trace,
    ) -> Self {
        let mut node = |host| {
            let mut config = NicConfig::new(mac_of(host));
            configure(&mut config);
            let device = usize::try_from(config.limits.device_memory).unwrap_or(0);
            let ram = usize::try_from(RAM).unwrap_or(0);
            Node {
                nic: Nic::new(config),
                memory: Memory::with_device(ram, device),
                interrupts: 0,
                mtu: None,
                is_removed: false,
                speed: None,
                sends_until: 0,
            }
        };
        Self {
            now: 0,
            paused: 0,
            last_pause: (0, 0),
            start: 0,
            steps: 0,
            nodes: (0..usize::from(shape.hosts)).map(&mut node).collect(),
            wire_delay: shape.wire_delay,
            by_reference: shape.by_reference,
            later: BinaryHeap::new(),
            order: 0,
            observer,
            moved_gids: Vec::new(),
            trace,
            counts: Counts::default(),
            checker: None,
            broken: false,
            limit: u64::MAX,
        }
    }

    /// The traffic begins: the observer, the trace and the limit count from now on.
    pub(crate) fn begin(&mut self, observer: &SharedObserver, limit: u64) {
        self.start = self.now;
        self.limit = self.now.saturating_add(limit);
        self.trace = Trace::new(self.trace.detail());
        self.counts = Counts::default();
        self.observer = Rc::clone(observer);
        let nics = self.nodes.iter().map(|node| &node.nic);
        let nics: Vec<&Nic> = nics.collect();
        observer.borrow_mut().start(Instant(self.now), &nics);
        self.drain();
    }

    /// Time since the traffic began, for the trace.
    fn since_start(&self) -> u64 {
        self.now.saturating_sub(self.start)
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&mut self, nic: usize, what: std::fmt::Arguments<'_>) {
        self.trace.add(self.since_start(), nic, what);
    }

    fn add_later(&mut self, delay: u64, what: Later) {
        self.order = self.order.wrapping_add(1);
        self.later.push(Due {
            at: self.now.saturating_add(delay),
            order: self.order,
            what,
        });
    }

    /// Counts a step at this instant. Returns false if there are too many.
    fn count_step(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        self.broken |= self.steps > STEPS_AT_ONCE;
        !self.broken
    }

    /// Sends whatever the NICs have, passes their interrupts, and lets the observer act, until nothing is left to do at this
    /// instant.
    pub(crate) fn drain(&mut self) {
        while self.drain_once() {}
    }

    fn drain_once(&mut self) -> bool {
        let mut busy = false;
        for nic in 0..self.nodes.len() {
            busy |= self.transmit(nic);
            self.pass_interrupts(nic);
            self.take_diagnostics(nic);
        }
        busy |= self.operate();
        busy |= self.pass_taken_frames();
        busy |= self.pass_late();
        busy && self.count_step()
    }

    /// Sends what a NIC has. Returns true if there may be an answer at this instant.
    fn transmit(&mut self, nic: usize) -> bool {
        let now = Instant(self.now);
        // A sender waits while one of its receivers has paused it, as the engine's do.
        let mut others = self.nodes.iter().enumerate();
        if others.any(|(other, node)| other != nic && node.nic.is_stalled()) {
            return false;
        }
        let mut frame = TxFrame::default();
        let mut sent = false;
        loop {
            let Some(node) = self.nodes.get_mut(nic) else {
                return sent;
            };
            let memory = node.memory.clone();
            if !node.nic.poll_transmit(now, &memory, 0, &mut frame) || !self.count_step() {
                return sent;
            }
            let header = match &frame.kind {
                FrameKind::Roce(header) => Some(header),
                FrameKind::Raw { .. } => None,
            };
            self.note_frame(nic, Direction::Tx, header, frame.len());
            // What can't be read of the sender's memory does not leave.
            let Ok(bytes) = frame.packet_bytes(0, &memory) else {
                if let Some(checker) = &mut self.checker {
                    checker.skip();
                }
                continue;
            };
            let seen = Frame {
                header,
                origin: frame.origin(),
                bytes: &bytes,
            };
            let observer = Rc::clone(&self.observer);
            let qpn = self.nodes.get(nic).map_or(0, |node| node.nic.last_sender());
            self.check_sent(nic, qpn, &bytes);
            if self
                .nodes
                .get(nic)
                .is_some_and(|node| node.nic.last_barred().is_some())
            {
                continue;
            }
            let passes = self.can_send(nic, &bytes)
                && observer
                    .borrow_mut()
                    .frame(now, nic, Direction::Tx, qpn, &seen);
            if passes && self.by_reference {
                sent = true;
                let octets = (frame.origin(), &*bytes);
                self.deliver(nic, octets, Some((&frame, &memory)));
            } else if passes {
                self.send(nic, frame.origin(), bytes);
            }
            sent |= self.after_frame(nic);
        }
    }

    /// Shows a packet of a NIC to the checker.
    fn check_sent(&mut self, nic: usize, qpn: u32, bytes: &[u8]) {
        let at = self.since_start();
        let (Some(checker), Some(node)) = (&mut self.checker, self.nodes.get(nic)) else {
            return;
        };
        let sender = node.nic.queue_pair_info(qpn).map(|pair| QueuePair {
            qpn,
            mtu: Some(pair.mtu),
            read_limit: pair.max_rd_atomic.map(u32::from),
        });
        checker.sent(at, nic, sender, bytes);
    }

    /// Shows the checker a packet that a NIC receives.
    fn check_received(&mut self, nic: usize, bytes: &[u8]) {
        let at = self.since_start();
        if let Some(checker) = &mut self.checker {
            checker.received(at, nic, bytes);
        }
    }

    /// Does what follows from a frame before the next one: a frame that the observer has taken and passes at once keeps its
    /// place, and an operation comes before later frames. Returns true if there may be an answer at this instant.
    fn after_frame(&mut self, nic: usize) -> bool {
        self.take_diagnostics(nic);
        let operated = self.operate();
        let passed = self.pass_taken_frames();
        operated || passed
    }

    /// A frame goes to the wire.
    fn send(&mut self, nic: usize, origin: Origin, bytes: Vec<u8>) {
        let wire_delay = if self.by_reference {
            0
        } else {
            self.wire_delay
        };
        let now = self.now;
        let node = self.nodes.get_mut(nic);
        let sent = node.map_or(now, |node| node.send_at(now, bytes.len()));
        let delay = sent.saturating_sub(now).saturating_add(wire_delay);
        let frame = Later::Frame {
            from: nic,
            origin,
            bytes,
        };
        self.add_later(delay, frame);
    }

    fn can_send(&self, nic: usize, frame: &[u8]) -> bool {
        let node = self.nodes.get(nic);
        node.is_some_and(|node| node.has_link() && !node.is_too_long(frame))
    }

    /// Adds a frame to the trace and to the counts.
    fn note_frame(&mut self, nic: usize, dir: Direction, header: Option<&RoceHeader>, len: usize) {
        let name = match dir {
            Direction::Tx => "tx",
            Direction::Rx => "rx",
        };
        let Some(header) = header else {
            self.note(nic, format_args!("{name} raw {len} bytes"));
            return;
        };
        let class = (nic, dir == Direction::Tx, header.bth.opcode.to_u8());
        let count = self.counts.packets.entry(class).or_default();
        *count = count.saturating_add(1);
        let opcode = header.bth.opcode;
        let (qp, psn) = (header.bth.dest_qp, header.bth.psn.get());
        match header.aeth {
            Some(aeth) => self.note(
                nic,
                format_args!(
                    "{name} {opcode:?} qp {qp} psn {psn} {:?} {len} bytes",
                    aeth.syndrome
                ),
            ),
            None => self.note(
                nic,
                format_args!("{name} {opcode:?} qp {qp} psn {psn} {len} bytes"),
            ),
        }
    }

    /// Delivers a frame to all NICs that accept its address, unless the observer takes it.
    fn deliver(
        &mut self,
        from: usize,
        (origin, bytes): (Origin, &[u8]),
        by_reference: Option<(&TxFrame, &Memory)>,
    ) {
        let now = Instant(self.now);
        let Some(dst) = bytes.first_chunk().map(|dst| MacAddr(*dst)) else {
            return;
        };
        for id in 0..self.nodes.len() {
            let Some(node) = self.nodes.get(id) else {
                continue;
            };
            let accepts = match id == from {
                true => dst == node.nic.mac(),
                false => node.nic.accepts(dst),
            };
            if !accepts || !node.has_link() || node.is_too_long(bytes) {
                continue;
            }
            let parsed = parse(bytes).ok();
            let header = parsed.as_ref().map(|parsed| &parsed.header);
            self.note_frame(id, Direction::Rx, header, bytes.len());
            let observer = Rc::clone(&self.observer);
            let seen = Frame {
                header,
                origin,
                bytes,
            };
            let qpn = header.map_or(0, |header| header.bth.dest_qp);
            let passes = observer
                .borrow_mut()
                .frame(now, id, Direction::Rx, qpn, &seen);
            if passes {
                self.check_received(id, bytes);
            }
            if passes && let Some(Node { nic, memory, .. }) = self.nodes.get_mut(id) {
                match by_reference {
                    Some((frame, sender)) => nic.receive(now, memory, frame, sender),
                    None => nic.receive_bytes_from(now, memory, origin, bytes),
                }
            }
            self.after_frame(id);
        }
    }

    /// Passes the frames that the observer had taken and that are due. Returns true if there were some.
    fn pass_taken_frames(&mut self) -> bool {
        let observer = Rc::clone(&self.observer);
        let mut any = false;
        loop {
            let next = observer.borrow_mut().next_frame(Instant(self.now));
            let Some(frame) = next else {
                return any;
            };
            let PassedFrame {
                nic,
                dir,
                origin,
                bytes,
            } = frame;
            any = true;
            if !self.count_step() {
                return false;
            }
            match dir {
                Direction::Tx if self.can_send(nic, &bytes) => self.send(nic, origin, bytes),
                Direction::Tx => {}
                Direction::Rx => {
                    let now = Instant(self.now);
                    let has_link = self.nodes.get(nic).is_some_and(Node::has_link);
                    if has_link {
                        self.check_received(nic, &bytes);
                    }
                    if let Some(node) = self.nodes.get_mut(nic).filter(|_| has_link) {
                        let memory = &node.memory;
                        node.nic.receive_bytes_from(now, memory, origin, &bytes);
                    }
                }
            }
        }
    }

    fn pass_interrupts(&mut self, nic: usize) {
        while let Some(vector) = self
            .nodes
            .get_mut(nic)
            .and_then(|node| node.nic.poll_interrupt())
        {
            self.note(nic, format_args!("interrupt {vector}"));
            let observer = Rc::clone(&self.observer);
            let passes = observer
                .borrow_mut()
                .interrupt(Instant(self.now), nic, vector);
            if passes {
                self.interrupt(nic, vector);
            }
        }
    }

    /// Passes interrupts and doorbells that the observer had kept. Returns true if there were some.
    fn pass_late(&mut self) -> bool {
        let observer = Rc::clone(&self.observer);
        let mut any = false;
        loop {
            let next = observer.borrow_mut().next_late(Instant(self.now));
            match next.filter(|_| self.count_step()) {
                None => return any,
                Some(Late::Interrupt { nic, vector }) => self.interrupt(nic, vector),
                Some(Late::Doorbell { nic, page, bell }) => self.pass_doorbell(nic, page, bell),
            }
            any = true;
        }
    }

    fn interrupt(&mut self, nic: usize, vector: u16) {
        if let Some(node) = self.nodes.get_mut(nic) {
            node.interrupts |= 1_u64.checked_shl(u32::from(vector)).unwrap_or(0);
        }
    }

    fn take_diagnostics(&mut self, nic: usize) {
        while let Some((_, diagnostic)) = self
            .nodes
            .get_mut(nic)
            .and_then(|node| node.nic.poll_diagnostic())
        {
            self.note_diagnostic(nic, &diagnostic);
        }
        let node = self.nodes.get_mut(nic);
        let lost = node.map_or(0, |node| node.nic.take_lost_diagnostics());
        if lost > 0 {
            let observer = Rc::clone(&self.observer);
            observer.borrow_mut().lost_diagnostics(nic, lost);
        }
    }

    fn note_diagnostic(&mut self, nic: usize, diagnostic: &Diagnostic) {
        let kind = DiagnosticKind::of(diagnostic).name();
        let count = self.counts.diagnostics.entry((nic, kind)).or_default();
        *count = count.saturating_add(1);
        self.note(nic, format_args!("diagnostic {diagnostic:?}"));
        let observer = Rc::clone(&self.observer);
        if let Some(node) = self.nodes.get(nic) {
            let now = Instant(self.now);
            observer
                .borrow_mut()
                .diagnostic(now, nic, diagnostic, &node.nic);
        }
    }

    /// Does what the observer wants to be done to NICs. Returns true if there was something.
    fn operate(&mut self) -> bool {
        let observer = Rc::clone(&self.observer);
        let now = Instant(self.now);
        let mut any = false;
        loop {
            let next = observer.borrow_mut().next_operation(now);
            let Some((nic, operation)) = next.filter(|_| self.count_step()) else {
                return any;
            };
            any = true;
            let Some(node) = self.nodes.get_mut(nic) else {
                continue;
            };
            let what = match operation {
                Operation::Nic(operation) => {
                    if let Err(problem) = operation(&mut node.nic, now, &node.memory) {
                        observer.borrow_mut().note_problem(problem);
                    }
                    continue;
                }
                Operation::Link(up) => {
                    node.nic.set_link(now, &node.memory, up);
                    if up { "link up" } else { "link down" }
                }
                Operation::MoveGids => {
                    self.moved_gids.push(nic);
                    "GID table moved"
                }
                Operation::Mtu(mtu) => {
                    node.mtu = mtu;
                    "MTU changed"
                }
                Operation::Speed(Some(_)) if self.by_reference => {
                    let problem = "frames that are delivered by reference have no speed: leave out `by_reference` or `speed`";
                    observer.borrow_mut().note_problem(problem.to_owned());
                    continue;
                }
                Operation::Speed(mbps) => {
                    node.speed = mbps;
                    "speed changed"
                }
                Operation::Pause(time) => {
                    // Pauses that begin together end together.
                    let before = self.last_pause;
                    let lasts = match before.0 == self.now {
                        true => before.1.max(time.0),
                        false => time.0,
                    };
                    let already = if before.0 == self.now { before.1 } else { 0 };
                    let longer = lasts.saturating_sub(already);
                    self.paused = self.paused.saturating_add(longer);
                    // The limit is one of the hosts' clock.
                    self.limit = self.limit.saturating_sub(longer);
                    self.last_pause = (self.now, lasts);
                    "paused"
                }
                Operation::Reset => {
                    node.nic.reset(now);
                    node.interrupts = 0;
                    "reset"
                }
                Operation::Remove => {
                    node.nic.reset(now);
                    node.is_removed = true;
                    "removed"
                }
            };
            self.note(nic, format_args!("{what}"));
        }
    }

    /// When something happens next.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let timers = self
            .nodes
            .iter()
            .filter_map(|node| node.nic.next_deadline());
        let observer = self.observer.borrow().deadline();
        let later = self.later.peek().map(|due| due.at);
        let times = timers.chain(observer).map(|at| at.0).chain(later);
        times.min().map(|at| at.max(self.now))
    }

    /// Moves the clock.
    pub(crate) fn advance_to(&mut self, at: u64) {
        if at > self.now {
            self.now = at;
            self.steps = 0;
        }
    }

    /// The next thing happens, if there is one until then.
    pub(crate) fn step(&mut self, until: u64) -> Step {
        self.drain();
        let at = self.next_at().filter(|at| *at <= until.min(self.limit));
        let Some(at) = at.filter(|_| !self.broken) else {
            return Step::Nothing;
        };
        self.advance_to(at);
        if !self.count_step() {
            return Step::Nothing;
        }
        let now = Instant(self.now);
        while self.later.peek().is_some_and(|due| due.at <= self.now)
            && let Some(due) = self.later.pop()
        {
            match due.what {
                Later::Frame {
                    from,
                    origin,
                    bytes,
                } => self.deliver(from, (origin, &bytes), None),
            }
        }
        for node in &mut self.nodes {
            if node.nic.next_deadline().is_some_and(|at| at <= now) {
                node.nic.handle_deadline(now, &node.memory);
            }
        }
        let observer = Rc::clone(&self.observer);
        let due = observer.borrow().deadline().is_some_and(|at| at <= now);
        if due {
            observer.borrow_mut().handle_deadline(now);
        }
        self.drain();
        Step::Done
    }

    fn ring(&mut self, nic: usize, page: u32, bell: Doorbell) {
        let observer = Rc::clone(&self.observer);
        let now = Instant(self.now);
        let passes = observer.borrow_mut().doorbell(now, nic, page, bell);
        if passes {
            self.pass_doorbell(nic, page, bell);
        }
        self.drain();
    }

    fn pass_doorbell(&mut self, nic: usize, page: u32, bell: Doorbell) {
        let now = Instant(self.now);
        if let Some(node) = self.nodes.get_mut(nic)
            && !node.is_removed
        {
            node.nic.doorbell(now, &node.memory, page, bell);
        }
    }

    /// Interrupts of a host since the last call, as bits by vector.
    pub(crate) fn take_interrupts(&mut self, host: usize) -> u64 {
        let node = self.nodes.get_mut(host);
        node.map_or(0, |node| std::mem::take(&mut node.interrupts))
    }
}

/// The way of a host's driver to its NIC and to the memory of the host.
#[derive(Clone, Debug)]
pub(crate) struct HostBus {
    pub state: Rc<RefCell<State>>,
    pub host: usize,
}

impl HostBus {
    fn with_node<T>(&self, call: impl FnOnce(&mut Node, Instant) -> T) -> Option<T> {
        let mut state = self.state.borrow_mut();
        let now = Instant(state.now);
        let node = state.nodes.get_mut(self.host)?;
        Some(call(node, now))
    }
}

/// Addresses outside of the memory read as zero, and are not written.
impl Bus for HostBus {
    fn ram_len(&self) -> u64 {
        RAM
    }

    fn read(&self, addr: u64, buf: &mut [u8]) {
        debug_assert!(addr >= RAM_BASE, "a null pointer of the driver");
        self.with_node(|node, _| {
            if node.memory.read(addr, buf).is_err() {
                buf.fill(0);
            }
        });
    }

    fn write(&self, addr: u64, data: &[u8]) {
        self.with_node(|node, _| node.memory.write(addr, data).ok());
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        let read = self.with_node(|node, now| match node.is_removed {
            true => u32::MAX,
            false => node.nic.read_register(now, offset),
        });
        read.unwrap_or(u32::MAX)
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        self.with_node(|node, now| {
            if !node.is_removed {
                node.nic.write_register(now, offset, value);
            }
        });
    }

    fn doorbell(&mut self, page: u32, bell: Doorbell) {
        let host = self.host;
        self.state.borrow_mut().ring(host, page, bell);
    }

    fn renewed(&mut self, qpn: u32) {
        if let Some(checker) = &mut self.state.borrow_mut().checker {
            checker.renew(self.host, qpn);
        }
    }

    fn wait(&mut self) -> bool {
        self.state.borrow_mut().step(u64::MAX) == Step::Done
    }
}
