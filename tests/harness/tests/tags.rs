//! Tag matching between two devices, over the sockets: operations by doorbell and completions by interrupt, buffers
//! that are removed while messages look for them, and memory that is taken from under messages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use faultline_abi::cqe;
use faultline_abi::tag::{
    CQE_TM_DATA_VALID, CQE_TM_MATCH, CQE_TM_SYNC_REQ, CQE_TM_TAGGED, TMH_FIN, TMH_RNDV,
};
use faultline_config::PollMode;
use faultline_harness::testbed::{ALL_ACCESS, Fabric, LONG, Node};
use faultline_harness::traffic::{Neighbours, exchange_anew, impatient};
use faultline_harness::{
    Cq, EventQueue, Link, Mr, Qp, QpOptions, QpType, Ram, Rng, SendWr, TagOp, TagSrq, Wc, connect,
    eager, pattern, rendezvous,
};

const TAGS: u32 = 16;
const MATCHED: u8 = CQE_TM_TAGGED | CQE_TM_MATCH;
const VALID: u8 = CQE_TM_TAGGED | CQE_TM_DATA_VALID;
/// Bytes from one buffer to the next.
const STEP: usize = 8192;
/// Buffers for messages that are not expected, behind the tagged ones.
const PLAIN: u32 = 64;

fn options() -> QpOptions {
    QpOptions {
        send_depth: 7,
        recv_depth: 7,
        inline: 48,
        ..QpOptions::default()
    }
}

/// The side that looks for tags.
struct Matcher {
    node: Node,
    eq: EventQueue,
    /// Of the SRQ.
    cq: Cq,
    srq: TagSrq,
}

impl Matcher {
    const VECTOR: u16 = 3;

    fn new(node: Node, tags: u32) -> Self {
        let eq = node.nic.event_queue(Self::VECTOR, 0, 6).unwrap();
        let cq = node.context.cq(&eq, 9).unwrap();
        let srq = node.context.tag_srq(&node.pd, &cq, 6, tags).unwrap();
        Self { node, eq, cq, srq }
    }

    /// A QP on the SRQ, and one of the peer's that is connected to it.
    fn connect(&self, peer: &Node, link: &Link) -> (Qp, Qp) {
        let own = self
            .node
            .qp_with(QpType::Rc, Some(&self.srq.srq), &options());
        let (own, other) = (own.unwrap(), peer.qp_with(QpType::Rc, None, &options()));
        let other = other.unwrap();
        connect(&own, &other, link).unwrap();
        (own, other)
    }

    fn post_plain(&mut self, n: u32) {
        let at = (TAGS + n) as usize * STEP;
        let sges = [self.node.mr.sge(at, STEP)];
        self.srq.srq.post(n, &sges).unwrap();
    }

    fn plain(&self, wc: &Wc) -> Vec<u8> {
        let at = (TAGS + wc.id) as usize * STEP;
        self.node.buf.to_vec(at, wc.len as usize)
    }

    /// The next completion, by interrupt.
    #[track_caller]
    fn told(&mut self) -> Wc {
        match self.cq.wait(&mut self.eq, LONG).unwrap() {
            Some(wc) => wc,
            None => panic!("not told of anything within {LONG:?}"),
        }
    }

    /// Carries out an operation; returns its completion.
    #[track_caller]
    fn done(&mut self, op: &TagOp<'_>) -> Wc {
        let id = self.srq.post(op).unwrap();
        let wc = self.told();
        assert_eq!((wc.id, wc.srqn), (id, self.srq.number()));
        wc
    }

    #[track_caller]
    fn add(&mut self, slot: u32, tag: u64) -> u8 {
        let sges = [self.node.mr.sge(slot as usize * STEP, STEP)];
        let wc = self.done(&TagOp::add(slot, tag, &sges));
        assert_eq!((wc.opcode, wc.status), (cqe::TM_ADD, cqe::SUCCESS));
        wc.tm_flags
    }

    fn tagged(&self, slot: u32, len: usize) -> Vec<u8> {
        self.node.buf.to_vec(slot as usize * STEP, len)
    }
}

#[test]
fn messages_of_all_kinds_find_their_way() {
    for poll in [PollMode::Adaptive, PollMode::Never] {
        let fabric = Fabric::start(poll, &["a", "b"]).unwrap();
        let mut a = fabric.node("a").unwrap();
        let mut m = Matcher::new(fabric.node("b").unwrap(), TAGS);
        let (qb, mut qa) = m.connect(&a, &Link::default());
        let mut send = |a: &mut Node, message: &[u8]| {
            a.buf.write(0, message);
            let sges = [a.mr.sge(0, message.len())];
            let id = qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
            let wc = a.good_completion();
            assert_eq!(wc.id, id);
            qa.retire(&wc);
        };
        for (slot, len) in [(3, 1000), (0, 0), (7, 7000)] {
            assert_eq!(m.add(slot, 0x1_0000_0000 + u64::from(slot)), 0);
            let data = pattern(u64::from(slot), len);
            let header = eager(0x1_0000_0000 + u64::from(slot), *b"ctx!");
            send(&mut a, &[header, data.clone()].concat());
            let mut wc = m.told();
            assert_eq!((wc.opcode, wc.id), (cqe::TM_RECV, slot));
            assert_eq!(wc.tm_tag, 0x1_0000_0000 + u64::from(slot));
            assert_eq!(wc.flow_tag, u32::from_le_bytes(*b"ctx!"));
            if len > 4096 {
                assert_eq!(wc.tm_flags, MATCHED);
                wc = m.told();
                assert_eq!((wc.id, wc.tm_flags), (slot, VALID));
            } else {
                assert_eq!(wc.tm_flags, MATCHED | VALID);
            }
            assert_eq!((wc.len as usize, wc.qpn), (len, qb.number()));
            assert!(m.tagged(slot, len) == data);
        }
        // The device reads the waiting data, and reports it.
        m.add(1, 9);
        a.buf.fill_pattern(4000, 8000, 17);
        let request = rendezvous(9, *b"rndv", a.mr.remote(4000), 8000);
        send(&mut a, &request);
        let wc = m.told();
        assert_eq!((wc.id, wc.tm_flags, wc.tm_tag), (1, MATCHED, 9));
        let wc = m.told();
        assert_eq!((wc.id, wc.tm_flags, wc.len), (1, VALID, 8000));
        assert_eq!(m.node.buf.pattern_mismatch(STEP, 8000, 17), None);
        // Where the sender has no receive the FIN waits; then it comes.
        assert_eq!(a.cq.poll(), None);
        let sges = [a.mr.sge(200, 64)];
        qa.post_recv(5, &sges).unwrap();
        let fin = a.good_completion();
        assert_eq!((fin.id, fin.len), (5, 32));
        let bytes = a.buf.to_vec(200, 32);
        assert_eq!((bytes[0], &bytes[1..]), (TMH_FIN, &request[1..32]));

        // No buffer matches this one. Messages that match a later buffer must not overtake it.
        let mut send = |a: &mut Node, tag: u64, data: &[u8]| {
            let message = [eager(tag, *b"late"), data.to_vec()].concat();
            a.buf.write(0, &message);
            let sges = [a.mr.sge(0, message.len())];
            qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
            qa.retire(&a.good_completion());
            message
        };
        (0..2).for_each(|n| m.post_plain(n));
        for n in 0..2 {
            let message = send(&mut a, 4, b"who");
            let wc = m.told();
            assert_eq!((wc.opcode, wc.tm_flags, wc.id), (cqe::TM_RECV, 0, n));
            assert!(m.plain(&wc) == message);
            if n == 0 {
                assert_eq!(m.add(4, 4), CQE_TM_SYNC_REQ);
            }
        }
        assert_eq!(m.done(&TagOp::sync(1)).tm_flags, CQE_TM_SYNC_REQ);
        let wc = m.done(&TagOp::remove(4).handled(2));
        assert_eq!((wc.opcode, wc.status), (cqe::TM_DEL, cqe::SUCCESS));
        assert_eq!(wc.tm_flags, 0);
        assert_eq!(m.add(4, 4), 0);
        send(&mut a, 4, b"now");
        assert_eq!(m.told().tm_flags, MATCHED | VALID);
        assert!(m.tagged(4, 3) == b"now");
        // A message has it, or there never was one.
        for slot in [4, 15, TAGS, u32::MAX] {
            let wc = m.done(&TagOp::remove(slot));
            let expected = (cqe::TM_ERR, cqe::KEY_STATE);
            assert_eq!((wc.status, wc.vendor_err), expected, "{slot}");
        }
        assert_eq!((m.cq.poll(), a.cq.poll()), (None, None));
        if poll == PollMode::Never {
            assert!(m.node.nic.kicks() > 0, "the engine never slept");
        }
        let (mut a, mut b) = (a, m.node);
        exchange_anew(&mut a, &mut b, &mut Rng::new(1));
    }
}

/// Message number n: how long it is, and whether its data has to be read.
fn shape(number: u64) -> (usize, bool) {
    let len = (number * 7919) % 7000;
    (len as usize, number.is_multiple_of(3))
}

/// Software with a list of receives; the device has as many of them as it can.
///
/// All messages have the same tag, so that message n belongs to the receive that is the oldest when it arrives.
struct Software {
    m: Matcher,
    qp: Qp,
    /// Receives on the device's list, oldest first. Those whose place is in `cancelled` may have been removed.
    order: VecDeque<u32>,
    free: Vec<u32>,
    cancelled: HashMap<u32, u32>,
    /// Operation that removes a buffer that software has given a message to: it can't fail.
    claimed: HashMap<u32, u32>,
    /// Messages that are there and have no receive.
    early: VecDeque<Vec<u8>>,
    /// Which message has the buffer.
    holds: HashMap<u32, u64>,
    /// Receives that software matches with messages.
    handled: u32,
    next_message: u64,
    arrived: Arc<AtomicU64>,
    matched: u64,
    cancels: [u64; 2],
    claims: u64,
    directly: u64,
}

impl Software {
    const TAG: u64 = 0xfeed;

    /// How often each thing has happened that can happen to a receive.
    fn effects(&self) -> [(&'static str, u64); 5] {
        [
            ("matched by the device", self.matched),
            ("claimed by software", self.claims),
            ("served directly", self.directly),
            ("cancelled", self.cancels[1]),
            ("cancelled too late", self.cancels[0]),
        ]
    }

    /// A receive: of a message that has arrived already, or on the list.
    fn receive(&mut self) {
        if let Some(message) = self.early.pop_front() {
            self.directly += 1;
            self.accept(&message);
            self.handled += 1;
            let op = TagOp::sync(self.handled);
            self.m.srq.post(&op).unwrap();
            return;
        }
        let Some(slot) = self.free.pop() else { return };
        self.m.node.buf.fill(slot as usize * STEP, STEP, 0);
        let sges = [self.m.node.mr.sge(slot as usize * STEP, STEP)];
        let op = TagOp::add(slot, Self::TAG, &sges);
        self.m.srq.post(&op).unwrap();
        self.order.push_back(slot);
    }

    fn cancel(&mut self, slot: u32) {
        if !self.is_cancelled(slot) {
            let id = self.m.srq.post(&TagOp::remove(slot)).unwrap();
            self.cancelled.insert(id, slot);
        }
    }

    fn is_cancelled(&self, slot: u32) -> bool {
        self.cancelled.values().any(|other| *other == slot)
    }

    /// A message that the device has not matched. Software reads the data of a rendezvous.
    fn accept(&mut self, message: &[u8]) {
        let number = number_of(message);
        let (len, waits) = shape(number);
        assert_eq!(waits, message[0] == TMH_RNDV);
        if !waits {
            assert!(message[16..] == pattern(number, len));
        } else {
            let word = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
            let from = faultline_harness::Remote {
                addr: u64::from(word(16)) << 32 | u64::from(word(20)),
                key: word(24),
            };
            assert_eq!(word(28) as usize, len);
            let at = (TAGS + PLAIN) as usize * STEP;
            let sges = [self.m.node.mr.sge(at, len)];
            self.qp
                .post_send(&SendWr::read(&sges, from).signaled())
                .unwrap();
            let wc = self.m.node.good_completion();
            self.qp.retire(&wc);
            assert_eq!(self.m.node.buf.pattern_mismatch(at, len, number), None);
        }
        self.arrived.fetch_add(1, Ordering::Release);
    }

    fn on_completion(&mut self, wc: &Wc) {
        match wc.opcode {
            cqe::TM_ADD | cqe::TM_SYNC => assert!(wc.is_ok(), "{wc:?}"),
            cqe::TM_DEL => self.on_removed(wc),
            cqe::TM_RECV if wc.tm_flags & CQE_TM_TAGGED != 0 => self.on_tagged(wc),
            cqe::TM_RECV => self.on_unexpected(wc),
            _ => panic!("{wc:?}"),
        }
    }

    fn on_removed(&mut self, wc: &Wc) {
        if let Some(slot) = self.claimed.remove(&wc.id) {
            assert!(wc.is_ok(), "a buffer that must not match has: {wc:?}");
            self.free.push(slot);
            return;
        }
        let slot = self.cancelled.remove(&wc.id).expect("an operation of ours");
        self.cancels[usize::from(wc.is_ok())] += 1;
        if wc.is_ok() {
            self.order.retain(|other| *other != slot);
            self.free.push(slot);
        } else {
            assert_eq!((wc.status, wc.vendor_err), (cqe::TM_ERR, cqe::KEY_STATE));
            // The completion that says which message has it came first, or comes with the last packet of that message:
            // then it is the oldest.
            let at = self.order.iter().position(|other| *other == slot);
            assert!(matches!(at, None | Some(0)), "neither here nor there");
            if at.is_none() && !self.holds.contains_key(&slot) {
                self.free.push(slot);
            }
        }
    }

    fn on_tagged(&mut self, wc: &Wc) {
        assert!(wc.is_ok(), "{wc:?}");
        let slot = wc.id;
        if wc.tm_flags & CQE_TM_MATCH != 0 {
            let number = self.next_message;
            self.next_message += 1;
            assert_eq!(wc.flow_tag, number as u32, "messages out of order");
            assert_eq!(self.order.pop_front(), Some(slot), "message {number}");
            self.holds.insert(slot, number);
            self.matched += 1;
        }
        if wc.tm_flags & CQE_TM_DATA_VALID != 0 {
            let number = self.holds.remove(&slot).expect("told before");
            let (len, _) = shape(number);
            assert_eq!(wc.len as usize, len);
            let at = slot as usize * STEP;
            let wrong = self.m.node.buf.pattern_mismatch(at, len, number);
            assert_eq!(wrong, None, "message {number}");
            assert_eq!(self.m.tagged(slot, len + 1)[len], 0, "behind it");
            // While its removal is under way, the answer could not be told from that for the next receive in this buffer.
            if !self.is_cancelled(slot) {
                self.free.push(slot);
            }
            self.arrived.fetch_add(1, Ordering::Release);
        }
    }

    fn on_unexpected(&mut self, wc: &Wc) {
        assert!(wc.is_ok(), "{wc:?}");
        let message = self.m.plain(wc);
        assert_eq!(number_of(&message), self.next_message);
        self.next_message += 1;
        self.m.post_plain(wc.id);
        // The oldest receive that has not been cancelled: its cancellation can't fail any more.
        let mut order = self.order.iter();
        match order.position(|slot| !self.is_cancelled(*slot)) {
            Some(at) => {
                let slot = self.order.remove(at).unwrap();
                self.handled += 1;
                let op = TagOp::remove(slot).handled(self.handled);
                let id = self.m.srq.post(&op).unwrap();
                self.claimed.insert(id, slot);
                self.claims += 1;
                self.accept(&message);
            }
            None => self.early.push_back(message),
        }
    }
}

fn number_of(message: &[u8]) -> u64 {
    u64::from(u32::from_le_bytes(message[4..8].try_into().unwrap()))
}

/// Progress that the two threads of the test below share.
struct Progress {
    /// Messages that have arrived.
    arrived: Arc<AtomicU64>,
    /// No more messages are needed.
    enough: Arc<AtomicBool>,
    /// Messages that were sent, once there are enough.
    sent: Arc<AtomicU64>,
}

/// Sends messages until there are enough and all have arrived. Returns its arguments, which must live until then.
fn send_until_enough(mut a: Node, mut qa: Qp, progress: &Progress) -> (Node, Qp) {
    const WINDOW: u64 = 12;
    let fin = [a.mr.sge(Node::BUF - 64, 64)];
    (0..60).for_each(|_| qa.post_recv(0, &fin).unwrap());
    let mut number = 0;
    let start = Instant::now();
    while !progress.enough.load(Ordering::Acquire) {
        while let Some(wc) = a.cq.poll() {
            assert!(wc.is_ok(), "{wc:?}");
            match wc.is_receive() {
                true => qa.post_recv(0, &fin).unwrap(),
                false => qa.retire(&wc),
            }
        }
        let open = number - progress.arrived.load(Ordering::Acquire);
        // Now and then a rest, in which receives get ahead of messages.
        if open == 0 && number.is_multiple_of(50) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let window = if number.is_multiple_of(50) { 1 } else { WINDOW };
        if open >= window || qa.room() == 0 {
            assert!(start.elapsed() < LONG, "stuck at {number}");
            std::thread::yield_now();
            continue;
        }
        let (len, waits) = shape(number);
        let at = number as usize % 32 * STEP;
        let ctx = (number as u32).to_le_bytes();
        let size = if waits {
            a.buf.fill_pattern(at + 64, len, number);
            let from = a.mr.remote(at + 64);
            let request = rendezvous(Software::TAG, ctx, from, len as u32);
            a.buf.write(at, &request);
            request.len()
        } else {
            a.buf.write(at, &eager(Software::TAG, ctx));
            a.buf.fill_pattern(at + 16, len, number);
            16 + len
        };
        let sges = [a.mr.sge(at, size)];
        qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
        number += 1;
    }
    progress.sent.store(number, Ordering::Release);
    // The data must stay until it has been read.
    while progress.arrived.load(Ordering::Acquire) < number && start.elapsed() < LONG {
        std::thread::yield_now();
    }
    (a, qa)
}

#[test]
fn receives_come_and_go_while_messages_do_and_all_match_in_order() {
    /// At least.
    const MESSAGES: u64 = 20_000;
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b", "c", "d"]).unwrap();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let a = fabric.node("a").unwrap();
    let mut m = Matcher::new(fabric.node("b").unwrap(), TAGS);
    (0..PLAIN).for_each(|n| m.post_plain(n));
    let (qp, qa) = m.connect(&a, &Link::default());
    let arrived = Arc::new(AtomicU64::new(0));
    let enough = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(u64::MAX));
    let progress = Progress {
        arrived: arrived.clone(),
        enough: enough.clone(),
        sent: sent.clone(),
    };
    let sender = std::thread::spawn(move || send_until_enough(a, qa, &progress));
    let mut s = Software {
        m,
        qp,
        order: VecDeque::new(),
        free: (0..TAGS).collect(),
        cancelled: HashMap::new(),
        claimed: HashMap::new(),
        early: VecDeque::new(),
        holds: HashMap::new(),
        handled: 0,
        next_message: 0,
        arrived,
        matched: 0,
        cancels: [0; 2],
        claims: 0,
        directly: 0,
    };
    let mut rng = Rng::new(1);
    let mut ahead = true;
    let start = Instant::now();
    loop {
        let arrived = s.arrived.load(Ordering::Acquire);
        if arrived >= sent.load(Ordering::Acquire) {
            break;
        }
        // On a busy machine some of the possible effects are rare.
        let effects = s.effects();
        if arrived >= MESSAGES && effects.iter().all(|(_, count)| *count > 20) {
            enough.store(true, Ordering::Release);
        }
        assert!(start.elapsed() < LONG, "{arrived} messages, {effects:?}");
        while let Some(wc) = s.m.cq.poll() {
            s.on_completion(&wc);
        }
        // Room for an operation at each completion that may want one.
        if s.m.srq.under_way() > 2 {
            std::thread::yield_now();
            continue;
        }
        // At times there are more receives than messages, at times the other way round.
        if rng.below(300) == 0 {
            ahead = !ahead;
        }
        match (rng.below(64), ahead) {
            (0, _) => {
                if let Some(slot) = s.order.front().copied() {
                    s.cancel(slot);
                }
            }
            (1, _) => {
                if let Some(slot) = s.order.back().copied() {
                    s.cancel(slot);
                }
            }
            (2..8, _) | (_, true) => s.receive(),
            _ => std::thread::sleep(Duration::from_micros(rng.below(30))),
        }
    }
    let _sender = sender.join().unwrap();
    println!("{:?}", s.effects());
    neighbours.finish();
}

/// The side whose memory is removed, and the kind of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// Tagged buffers; the data is sent.
    Sent,
    /// Tagged buffers; the data is read.
    Read,
    /// Data that is to be read.
    Source,
}

/// Buffers and their length: tens of milliseconds of work, if nothing came between.
const BUFFERS: u32 = 100;
const LEN: usize = 64 << 10;

/// Adds all buffers of a round, for any tag, and posts a request for each. Data moves from `from` to `to`.
fn post_all(m: &mut Matcher, (a, qa): (&Node, &mut Qp), what: Gone, (from, to): (&Mr, &Mr)) {
    let fins = [a.mr.sge(Node::BUF - 64, 64)];
    for slot in 0..BUFFERS {
        qa.post_recv(0, &fins).unwrap();
        let sges = [to.sge(0, LEN)];
        let any = TagOp {
            mask: 0,
            ..TagOp::add(slot, 0, &sges)
        };
        let wc = m.done(&any);
        assert_eq!((wc.opcode, wc.status), (cqe::TM_ADD, cqe::SUCCESS));
    }
    if what == Gone::Sent {
        a.buf.write(0, &eager(0, [0; 4]));
    }
    let request = rendezvous(0, [0; 4], from.remote(0), LEN as u32);
    let sges = [a.mr.sge(0, LEN)];
    for _ in 0..BUFFERS {
        let wr = match what {
            Gone::Sent => SendWr::send(&sges),
            Gone::Read | Gone::Source => SendWr::send_inline(&request),
        };
        qa.post_send(&wr.signaled()).unwrap();
    }
}

/// Checks the completions of buffers: those before the memory was gone, the first one after it, and the rest. Returns true if
/// there was one after it.
fn check_ends(ends: &[Wc], what: Gone) -> bool {
    let well = ends.iter().take_while(|wc| wc.is_ok()).count();
    if let Some(wc) = ends.get(well) {
        let expected = match what {
            Gone::Source => (cqe::RETRY_EXC_ERR, cqe::NONE),
            Gone::Sent | Gone::Read => (cqe::LOC_PROT_ERR, cqe::DMA),
        };
        assert_eq!((wc.status, wc.vendor_err), expected, "{what:?} {wc:?}");
        let mut rest = ends[well + 1..].iter();
        assert!(rest.all(|wc| wc.status == cqe::WR_FLUSH_ERR), "{ends:?}");
    }
    let mut slots: Vec<u32> = ends.iter().map(|wc| wc.id).collect();
    slots.sort_unstable();
    assert!(slots.iter().copied().eq(0..ends.len() as u32), "{ends:?}");
    well < ends.len()
}

#[test]
fn the_list_continues_after_memory_of_messages_is_freed() {
    const SEED: u64 = 99;
    let fabric = Fabric::start_slow(&["a", "b"], &["a", "b"]).unwrap();
    let mut a = fabric.node("a").unwrap();
    let mut m = Matcher::new(fabric.node("b").unwrap(), BUFFERS);
    let mut rng = Rng::new(4);
    let mut cut_short = [0; 3];
    // A test that gets no processor may see the end of a round before it takes anything. Further rounds follow then.
    let mut round = 0;
    while round < 45 || cut_short.contains(&0) {
        assert!(round < 450, "{cut_short:?}");
        let what = [Gone::Sent, Gone::Read, Gone::Source][round % 3];
        let owner = if what == Gone::Source { &a } else { &m.node };
        let nic = owner.nic.clone();
        let ram = Ram::new(LEN, 0x77_0000_0000).unwrap();
        nic.lend(&ram).unwrap();
        let lent = ram.alloc(LEN, 4096).unwrap();
        let mr = owner.pd.register(&lent, ALL_ACCESS).unwrap();
        let (from, to) = match what {
            Gone::Source => (&mr, m.node.mr.clone()),
            Gone::Sent | Gone::Read => (&a.mr, mr.clone()),
        };
        lent.fill_pattern(0, LEN, SEED);
        m.node.buf.fill_pattern(0, LEN, SEED);
        a.buf.fill_pattern(0, LEN, SEED);
        let (qb, mut qa) = m.connect(&a, &impatient());
        post_all(&mut m, (&a, &mut qa), what, (from, &to));
        // The results of the buffers: at some moment the memory of the first one and of others is removed.
        let (mut matched, mut ends) = (Vec::new(), Vec::new());
        let mut take = |m: &mut Matcher, ends: &mut Vec<Wc>| {
            while let Some(wc) = m.cq.poll() {
                assert_eq!(wc.opcode, cqe::TM_RECV, "{wc:?}");
                assert_ne!(wc.tm_flags & CQE_TM_TAGGED, 0, "{wc:?}");
                if wc.tm_flags & CQE_TM_MATCH != 0 {
                    assert_eq!(wc.id as usize, matched.len(), "the oldest comes first");
                    matched.push(wc.id);
                }
                if !wc.is_ok() || wc.tm_flags & CQE_TM_DATA_VALID != 0 {
                    ends.push(wc);
                }
            }
            matched.len()
        };
        let some = rng.below(u64::from(BUFFERS)) as usize;
        let start = Instant::now();
        while ends.len() < some {
            take(&mut m, &mut ends);
            assert!(start.elapsed() < LONG, "{what:?}: {ends:?}");
        }
        nic.take_back(&ram).unwrap();
        let canary = pattern(round as u64, LEN);
        ram.file().write(0, &canary).unwrap();

        let mut sent = 0;
        while sent < BUFFERS {
            let wc = a.completion();
            sent += u32::from(!wc.is_receive());
        }
        let start = Instant::now();
        while ends.len() < take(&mut m, &mut ends) {
            assert!(start.elapsed() < LONG, "{what:?}: {ends:?}");
        }
        cut_short[round % 3] += u32::from(check_ends(&ends, what));
        // Those that no message has found are still on the list.
        for slot in ends.len() as u32..BUFFERS {
            assert!(m.done(&TagOp::remove(slot)).is_ok(), "{what:?}: {slot}");
        }
        drop((qa, qb));
        while a.cq.poll().is_some() {}
        assert_eq!(m.node.buf.pattern_mismatch(0, LEN, SEED), None);
        let (_qb, mut qa) = m.connect(&a, &Link::default());
        m.add(0, 7);
        let message = [eager(7, [0; 4]), b"well".to_vec()].concat();
        qa.post_send(&SendWr::send_inline(&message)).unwrap();
        assert_eq!(m.told().tm_flags, MATCHED | VALID);
        assert!(m.tagged(0, 4) == b"well");
        let mut now = vec![0; LEN];
        ram.file().read(0, &mut now).unwrap();
        assert!(
            now == canary,
            "{what:?}: the device wrote to what was taken"
        );
        round += 1;
    }
    println!("cut short: {cut_short:?} of {round}");
}
