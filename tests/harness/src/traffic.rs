//! Verified data traffic beside other events.
//!
//! - [`exchange`]: one round between two idle nodes
//! - [`Storm`]: both queues of two nodes are kept full, until one of them is gone
//! - [`Neighbours`]: two NICs that exchange data on a thread of their own, and must not be disturbed

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use faultline_abi::cqe;
use faultline_abi::wqe::Sge;

use crate::cq::{Cq, Wc};
use crate::error::DriverError;
use crate::qp::{Link, Qp, QpOptions, QpType, connect};
use crate::testbed::{Fabric, LONG, Node, connect_nodes, has_several_engines};
use crate::wr::SendWr;
use faultline_scenario::random::Rng;

/// An exchange uses the last quarter of a node's memory, a storm the memory before it. The first half of the quarter is
/// for sent data, the second for received data.
const OUT: usize = Node::BUF / 4 * 3;
const HALF: usize = Node::BUF / 8;
/// Longest message of an exchange: some packets, and a part of one.
const MAX_LEN: u64 = 20_000;
/// What surrounds the place where data arrives.
const EDGE: u8 = 0xee;

/// Moves data from the first node to the second by SEND and WRITE and back by READ; verifies every byte, and
/// those before and behind. Panics if something is not as it should be.
#[track_caller]
pub fn exchange((a, qa): (&mut Node, &mut Qp), (b, qb): (&mut Node, &mut Qp), rng: &mut Rng) {
    let len = rng.below(MAX_LEN) as usize + 1;
    let mut place = |half: usize| half + 1 + rng.below((HALF - len - 1) as u64) as usize;
    let (from, to, back) = (place(OUT), place(OUT + HALF), place(OUT + HALF));
    let seed = rng.next_u64();
    let arrived = |node: &Node, at: usize, seed: u64, what: &str| {
        assert_eq!(
            node.buf.pattern_mismatch(at, len, seed),
            None,
            "{what} of {len}"
        );
        let edges = [at - 1, at + len].map(|at| node.buf.to_vec(at, 1)[0]);
        assert_eq!(edges, [EDGE; 2], "around a {what} of {len}");
    };
    let sges = [a.mr.sge(from, len)];
    for (n, wr) in [
        SendWr::send(&sges).imm(len as u32),
        SendWr::write(&sges, b.mr.remote(to)),
    ]
    .into_iter()
    .enumerate()
    {
        let seed = seed.wrapping_add(n as u64);
        a.buf.fill_pattern(from, len, seed);
        b.buf.fill(to - 1, len + 2, EDGE);
        if n == 0 {
            good(qb.post_recv(17, &[b.mr.sge(to, len)]));
        }
        let id = good(qa.post_send(&wr.signaled()));
        if n == 0 {
            let wc = b.good_completion();
            let expected = (17, len as u32, len as u32, qb.number());
            assert_eq!((wc.id, wc.len, wc.imm, wc.qpn), expected);
        }
        let wc = a.good_completion();
        assert_eq!((wc.id, wc.qpn), (id, qa.number()));
        qa.retire(&wc);
        arrived(b, to, seed, "SEND or WRITE");
    }
    a.buf.fill(back - 1, len + 2, EDGE);
    let sges = [a.mr.sge(back, len)];
    good(qa.post_send(&SendWr::read(&sges, b.mr.remote(to)).signaled()));
    let wc = a.good_completion();
    assert_eq!(wc.len, len as u32);
    qa.retire(&wc);
    arrived(a, back, seed.wrapping_add(1), "READ");
}

#[track_caller]
fn good<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// Connects two nodes and lets them exchange data in both directions.
#[track_caller]
pub fn exchange_anew(a: &mut Node, b: &mut Node, rng: &mut Rng) {
    exchange_over(&Link::default(), 1, (a, b), rng);
}

/// Connects two nodes by a link with these properties, and lets them exchange data `rounds` times in both directions.
#[track_caller]
pub fn exchange_over(link: &Link, rounds: usize, (a, b): (&mut Node, &mut Node), rng: &mut Rng) {
    let (mut qa, mut qb) = (good(a.qp(QpType::Rc)), good(b.qp(QpType::Rc)));
    good(connect(&qa, &qb, link));
    for _ in 0..rounds {
        exchange((a, &mut qa), (b, &mut qb), rng);
        exchange((b, &mut qb), (a, &mut qa), rng);
    }
}

/// Lets two nodes exchange data in both directions on a connection of each path MTU.
#[track_caller]
pub fn exchange_at_all_mtus(a: &mut Node, b: &mut Node, rng: &mut Rng) {
    for path_mtu in 1..=5 {
        let link = Link {
            path_mtu,
            ..Link::default()
        };
        exchange_over(&link, 20, (a, b), rng);
    }
}

/// A lost peer is noticed within some ten milliseconds. A peer on the same thread never counts as lost, whatever time
/// the thread waits for a processor. On another thread it may, so half a second must pass then.
pub fn impatient() -> Link {
    Link {
        timeout: if has_several_engines() { 14 } else { 8 },
        retries: 7,
        ..Link::default()
    }
}

/// log2 of the send requests of each side of a storm: more than are carried out while a reset is on its way.
const LOG_DEPTH: u8 = 8;
/// Bytes of a message of a storm.
const MESSAGE: usize = 8000;
/// Bytes from one message's place to that of the next.
const STEP: usize = 8192;
/// Messages that differ.
const MESSAGES: usize = 32;
/// Where written messages arrive.
const WRITTEN: usize = MESSAGES * STEP;
/// Where sent messages arrive.
const SENT: usize = 2 * WRITTEN;

/// One side of a [`Storm`].
#[derive(Debug)]
struct Side {
    qp: Qp,
    cq: Cq,
    /// Receives that have not been completed.
    receives: usize,
    /// Where the peer has its messages.
    peer_seed: u64,
}

/// Two nodes that send and write to each other as much as their queues hold, each over a QP and a CQ of its own.
#[derive(Debug)]
pub struct Storm([Side; 2]);

fn message_seed(seed: u64, number: usize) -> u64 {
    seed ^ ((number as u64) << 56)
}

impl Storm {
    /// Requests that each side has under way.
    pub const DEPTH: usize = 1 << LOG_DEPTH;

    /// Connects two nodes and fills their memory with messages.
    pub fn new(nodes: [&Node; 2], rng: &mut Rng) -> Result<Self, DriverError> {
        let seeds = [rng.next_u64(), rng.next_u64()];
        let side = |i: usize| -> Result<Side, DriverError> {
            let node: &Node = nodes[i];
            for number in 0..MESSAGES {
                let seed = message_seed(seeds[i], number);
                node.buf.fill_pattern(number * STEP, MESSAGE, seed);
            }
            let cq = node.context.cq(&node.eq, LOG_DEPTH + 1)?;
            let options = QpOptions {
                send_depth: LOG_DEPTH,
                recv_depth: 6,
                ..QpOptions::default()
            };
            let (context, pd) = (&node.context, &node.pd);
            Ok(Side {
                qp: context.qp(pd, QpType::Rc, &cq, &cq, None, &options)?,
                cq,
                receives: 0,
                peer_seed: seeds[1 - i],
            })
        };
        let mut sides = [side(0)?, side(1)?];
        connect(&sides[0].qp, &sides[1].qp, &impatient())?;
        for (side, node) in sides.iter_mut().zip(nodes) {
            for tag in 0..MESSAGES {
                side.post_receive(node, tag);
            }
        }
        Ok(Self(sides))
    }

    /// Fills the send queues, and takes completions, which must be good, and verifies them.
    #[track_caller]
    pub fn turn(&mut self, nodes: [&Node; 2]) {
        for i in 0..2 {
            let (side, node, peer) = (&mut self.0[i], nodes[i], nodes[1 - i]);
            while side.qp.room() > 0 {
                side.post(node, peer);
            }
            while let Some(wc) = side.cq.poll() {
                assert!(wc.is_ok(), "failed: {wc:?}");
                if wc.is_receive() {
                    side.verify_receive(node, &wc);
                    side.post_receive(node, wc.id as usize);
                } else {
                    side.qp.retire(&wc);
                    side.verify_write(node, peer, &wc);
                }
            }
        }
    }

    /// The other node is gone. All requests of this one (0 or 1) must complete: some of them well, then one with the
    /// cause, then the rest flushed. Returns the status of the cause, and the number of requests that ended well.
    #[track_caller]
    pub fn end(&mut self, which: usize, node: &Node, peer: &Node) -> (u8, usize) {
        let side = &mut self.0[which];
        let mut statuses = Vec::new();
        let mut take = |side: &mut Side, wc: Wc| {
            if wc.is_receive() {
                side.receives -= 1;
                if wc.is_ok() {
                    side.receives += 1;
                    side.verify_receive(node, &wc);
                    return;
                }
                assert_eq!(wc.status, cqe::WR_FLUSH_ERR, "{wc:?}");
                return;
            }
            let next = wc
                .id
                .wrapping_sub(side.qp.next_index())
                .wrapping_add(side.waiting());
            assert_eq!(next, 0, "out of order: {wc:?}");
            side.qp.retire(&wc);
            statuses.push(wc.status);
        };
        // Earlier requests may have completed; this one can't.
        while side.qp.room() == 0 {
            let Some(wc) = side.cq.poll_for(LONG) else {
                panic!("no completion within {LONG:?}");
            };
            take(side, wc);
        }
        side.post(node, peer);
        while side.waiting() > 0 || side.receives > 0 {
            let Some(wc) = side.cq.poll_for(LONG) else {
                panic!(
                    "within {LONG:?}, {} requests and {} receives were not completed",
                    side.waiting(),
                    side.receives
                );
            };
            take(side, wc);
        }
        assert!(side.cq.poll().is_none(), "one completion too many");
        let well = statuses.iter().take_while(|s| **s == cqe::SUCCESS).count();
        let rest = &statuses[well..];
        assert!(
            rest[1..].iter().all(|status| *status == cqe::WR_FLUSH_ERR),
            "{statuses:?}"
        );
        (rest[0], well)
    }
}

impl Side {
    fn waiting(&self) -> u32 {
        (1 << LOG_DEPTH) - self.qp.room()
    }

    fn post(&mut self, node: &Node, peer: &Node) {
        let index = self.qp.next_index() as usize;
        let number = index % MESSAGES;
        let sges: [Sge; 1] = [node.mr.sge(number * STEP, MESSAGE)];
        // Each message is a WRITE in one lap and a SEND in the next.
        let wr = if (index + index / MESSAGES).is_multiple_of(2) {
            SendWr::write(&sges, peer.mr.remote(WRITTEN + number * STEP))
        } else {
            SendWr::send(&sges).imm(number as u32)
        };
        good(self.qp.post_send(&wr.signaled()));
    }

    fn post_receive(&mut self, node: &Node, tag: usize) {
        good(
            self.qp
                .post_recv(tag as u32, &[node.mr.sge(SENT + tag * STEP, MESSAGE)]),
        );
        self.receives += 1;
    }

    fn verify_receive(&mut self, node: &Node, wc: &Wc) {
        self.receives -= 1;
        assert_eq!(wc.len as usize, MESSAGE);
        let at = SENT + wc.id as usize * STEP;
        let seed = message_seed(self.peer_seed, wc.imm as usize);
        assert_eq!(node.buf.pattern_mismatch(at, MESSAGE, seed), None, "{wc:?}");
    }

    fn verify_write(&mut self, node: &Node, peer: &Node, wc: &Wc) {
        if wc.opcode != cqe::RDMA_WRITE {
            return;
        }
        let at = wc.id as usize % MESSAGES * STEP;
        let (ours, theirs) = (
            node.buf.to_vec(at, MESSAGE),
            peer.buf.to_vec(WRITTEN + at, MESSAGE),
        );
        assert!(ours == theirs, "what was written differs: {wc:?}");
    }
}

/// Two NICs that exchange data on a thread of their own, undisturbed by events of others.
#[derive(Debug)]
pub struct Neighbours {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbours {
    /// Opens two NICs of these names and begins.
    pub fn start(fabric: &Fabric, names: [&str; 2]) -> Result<Self, DriverError> {
        let [mut a, mut b] = [fabric.node(names[0])?, fabric.node(names[1])?];
        let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc)?;
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::Builder::new()
            .name("neighbours".to_owned())
            .spawn(move || {
                let mut rng = Rng::new(0x006e_6569_6768);
                while !stopped.load(Ordering::Relaxed) {
                    exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
                    counted.fetch_add(1, Ordering::Relaxed);
                    std::mem::swap(&mut a, &mut b);
                    std::mem::swap(&mut qa, &mut qb);
                }
            })?;
        Ok(Self {
            stop,
            rounds,
            thread: Some(thread),
        })
    }

    /// Waits until data has been verified that had not begun to move when this was called.
    #[track_caller]
    pub fn unharmed(&self) {
        let from = self.rounds.load(Ordering::Relaxed);
        let start = Instant::now();
        while self.rounds.load(Ordering::Relaxed) < from + 2 {
            let over = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!over, "the neighbours have failed");
            assert!(start.elapsed() < LONG, "the neighbours' data does not move");
            std::thread::yield_now();
        }
    }

    /// Ends it. Panics if something happened to them.
    #[track_caller]
    pub fn finish(mut self) {
        self.unharmed();
        assert!(self.end(), "the neighbours have failed");
    }

    fn end(&mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .take()
            .is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.end();
    }
}
