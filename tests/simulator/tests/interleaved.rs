//! Both ends of a connection execute all operations at once, compared with a model of the expected results.
//!
//! Requests of all kinds are outstanding together, receives are posted late, the wire is bad. The model has the
//! memory of a responder that executes in order at each request, so each READ, each atomic and each completion has
//! one right value.

use std::collections::VecDeque;

use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::{QPT_RC, QPT_UD};
use faultline_abi::wqe as wr;
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::{Mr, Rng, Send, Sge};
use faultline_simulator::{Pair, World, gid6};

/// Longest message.
const MAX_LEN: u64 = 10_000;
/// Requests of one side under way.
const WINDOW: u64 = 24;
/// Buffers that the peer reads and writes.
const SHARED: u64 = 8;
/// Atomic variables.
const VARIABLES: u64 = 4;

/// Offsets in a region.
const SOURCES: u64 = 0;
const RESULTS: u64 = SOURCES + WINDOW * MAX_LEN;
const LANDINGS: u64 = RESULTS + WINDOW * MAX_LEN;
const SHARES: u64 = LANDINGS + WINDOW * MAX_LEN;
const ATOMICS: u64 = SHARES + SHARED * MAX_LEN;
const REGION: u64 = ATOMICS + VARIABLES * 8 + 16;

/// What a request must come to.
struct Pending {
    index: u32,
    opcode: u8,
    len: u64,
    /// Expected contents of the local memory at the end, and their place.
    result: Option<(u64, Vec<u8>)>,
    /// The shared buffer that a READ reads.
    reads: Option<u64>,
}

/// A message that consumes a receive.
struct Message {
    data: Option<Vec<u8>>,
    len: u64,
    imm: Option<[u8; 4]>,
    solicited: bool,
}

/// One side as requester, with its model of its peer's memory.
struct Side {
    posted: u64,
    pending: VecDeque<Pending>,
    /// Messages to the peer that have not been received.
    messages: VecDeque<Message>,
    shares: Vec<Vec<u8>>,
    variables: [u64; VARIABLES as usize],
    /// Receives posted for the messages of the peer, and messages taken.
    receives: u64,
    received: u64,
}

impl Side {
    fn new() -> Self {
        Self {
            posted: 0,
            pending: VecDeque::new(),
            messages: VecDeque::new(),
            shares: vec![vec![0; MAX_LEN as usize]; SHARED as usize],
            variables: [0; VARIABLES as usize],
            receives: 0,
            received: 0,
        }
    }
}

/// How a run goes.
#[derive(Clone, Copy)]
struct Run {
    seed: u64,
    impairment: LinkModel,
    mtu: u8,
    by_reference: bool,
    /// READs and atomics under way.
    rd_atomic: u8,
    /// Requests of each side.
    count: u64,
}

struct Exchange {
    world: World,
    pair: Pair,
    rng: Rng,
    sides: [Side; 2],
}

fn bytes(rng: &mut Rng, len: u64) -> Vec<u8> {
    let salt = rng.next_u64();
    (0..len)
        .map(|i| (salt.wrapping_add(i.wrapping_mul(0x9e37)) >> 3) as u8)
        .collect()
}

/// I/O address of an atomic variable, aligned though the region is not.
fn variable(mr: &Mr, n: u64) -> u64 {
    ((mr.va + ATOMICS + 7) & !7) + n * 8
}

impl Exchange {
    fn new(run: &Run) -> Self {
        let mut world = World::new(2, run.seed);
        let pair = world.connect(QPT_RC, REGION, |c| {
            c.path_mtu = run.mtu;
            c.timeout = 8;
            c.min_rnr_timer = 1;
            c.rd_atomic = run.rd_atomic;
            let psn = (0xff_fff0 + run.seed as u32 * 5) & 0xff_ffff;
            (c.sq_psn, c.rq_psn) = (psn, psn);
        });
        if run.by_reference {
            world.hand_over_by_reference();
        } else {
            world.pace(run.seed % 3 * 40);
            world.impair(run.impairment);
        }
        Self {
            world,
            pair,
            rng: Rng::new(run.seed ^ 0x5eed),
            sides: [Side::new(), Side::new()],
        }
    }

    fn length(&mut self) -> u64 {
        match self.rng.below(5) {
            0 => self.rng.below(3),
            1 => self.rng.below(64),
            2 => self.rng.below(1500),
            3 => 1024 * (1 + self.rng.below(4)),
            _ => self.rng.below(MAX_LEN),
        }
    }

    /// Up to three pieces of a local buffer, in order.
    fn pieces(&mut self, side: usize, at: u64, len: u64) -> [Sge; 3] {
        let mr = self.pair.mr[side];
        let mut cut = [self.rng.below(len + 1), self.rng.below(len + 1)];
        cut.sort_unstable();
        [(0, cut[0]), (cut[0], cut[1]), (cut[1], len)]
            .map(|(from, to)| (mr.va + at + from, (to - from) as u32, mr.key))
    }

    fn post(&mut self, side: usize) {
        let slot = self.sides[side].posted % WINDOW;
        let index = self.sides[side].posted as u32;
        self.sides[side].posted += 1;
        let remote = self.pair.mr[1 - side];
        let opcode = self.rng.below(8) as u8;
        let opcode = if opcode == wr::WR_SEND_INV {
            wr::WR_SEND
        } else {
            opcode
        };
        let len = self.length();
        let data = bytes(&mut self.rng, len);
        let (source, result) = (SOURCES + slot * MAX_LEN, RESULTS + slot * MAX_LEN);
        let own = self.pair.mr[side];
        self.world.hosts[side].driver.write_mr(&own, source, &data);
        let imm = index.to_be_bytes();
        let solicited = self.rng.chance(300);
        let mut send = Send {
            opcode,
            imm,
            flags: if solicited { wr::WR_FLAG_SOLICITED } else { 0 },
            rkey: remote.key,
            ..Send::default()
        };
        let mut pending = Pending {
            index,
            opcode,
            len,
            result: None,
            reads: None,
        };
        let model = &mut self.sides[side];
        let with_imm = matches!(opcode, wr::WR_SEND_IMM | wr::WR_WRITE_IMM);
        let mut gather = Some(source);
        match opcode {
            wr::WR_SEND | wr::WR_SEND_IMM => model.messages.push_back(Message {
                data: Some(data.clone()),
                len,
                imm: with_imm.then_some(imm),
                solicited,
            }),
            wr::WR_WRITE | wr::WR_WRITE_IMM => {
                let share = self.rng.below(SHARED);
                let offset = self.rng.below(MAX_LEN - len + 1);
                send.remote_addr = remote.va + SHARES + share * MAX_LEN + offset;
                let at = offset as usize..(offset + len) as usize;
                model.shares[share as usize][at].copy_from_slice(&data);
                // A READ of it may be under way: only a fence keeps it from seeing this.
                if model.pending.iter().any(|p| p.reads == Some(share)) {
                    send.flags |= wr::WR_FLAG_FENCE;
                }
                if with_imm {
                    model.messages.push_back(Message {
                        data: None,
                        len,
                        imm: Some(imm),
                        solicited,
                    });
                }
            }
            wr::WR_READ => {
                let share = self.rng.below(SHARED);
                let offset = self.rng.below(MAX_LEN - len + 1);
                send.remote_addr = remote.va + SHARES + share * MAX_LEN + offset;
                let at = offset as usize..(offset + len) as usize;
                let expected = model.shares[share as usize][at].to_vec();
                pending.result = Some((result, expected));
                pending.reads = Some(share);
                gather = None;
            }
            _ => {
                let n = self.rng.below(VARIABLES);
                let old = model.variables[n as usize];
                send.remote_addr = variable(&remote, n);
                // Half of the comparisons hold.
                send.compare_add = if self.rng.chance(500) {
                    old
                } else {
                    self.rng.next_u64()
                };
                send.swap = self.rng.next_u64();
                model.variables[n as usize] = match opcode {
                    wr::WR_FETCH_ADD => old.wrapping_add(send.compare_add),
                    _ if old == send.compare_add => send.swap,
                    _ => old,
                };
                pending.len = 8;
                pending.result = Some((result, old.to_le_bytes().to_vec()));
                gather = None;
            }
        }
        self.sides[side].pending.push_back(pending);
        let inline = gather.is_some() && len <= 64 && self.rng.chance(500);
        let local_len = self.sides[side].pending.back().map_or(0, |p| p.len);
        let pieces = self.pieces(side, gather.unwrap_or(result), local_len);
        send.sges = if inline { &[] } else { &pieces };
        send.inline = inline.then_some(data.as_slice());
        let qp = &mut self.pair.qp[side];
        self.world.hosts[side].driver.post_send(qp, &send);
    }

    fn post_receive(&mut self, side: usize) {
        let n = self.sides[side].receives;
        self.sides[side].receives += 1;
        let pieces = self.pieces(side, LANDINGS + n % WINDOW * MAX_LEN, MAX_LEN);
        let qp = &mut self.pair.qp[side];
        self.world.hosts[side]
            .driver
            .post_recv(qp, n as u32, &pieces);
    }

    /// Checks what has completed.
    fn check(&mut self, side: usize) {
        for entry in self.world.completions(side, &mut self.pair.cq[side]) {
            assert_eq!(entry.status, cqe::SUCCESS, "{entry:?}");
            if entry.opcode & cqe::RECV != 0 {
                self.check_receive(side, &entry);
            } else {
                self.check_send(side, &entry);
            }
        }
    }

    fn check_send(&mut self, side: usize, entry: &Cqe) {
        let done = self.sides[side].pending.pop_front().expect("one request");
        assert_eq!(entry.wqe.get(), done.index, "in order, each once");
        assert_eq!(u64::from(entry.byte_len.get()), done.len);
        if let Some((at, expected)) = done.result {
            let mr = self.pair.mr[side];
            let found = self.world.hosts[side]
                .driver
                .read_mr(&mr, at, expected.len());
            assert!(
                found == expected,
                "request {} opcode {}",
                done.index,
                done.opcode
            );
        }
    }

    fn check_receive(&mut self, side: usize, entry: &Cqe) {
        let message = self.sides[1 - side].messages.pop_front().expect("one sent");
        let n = self.sides[side].received;
        self.sides[side].received += 1;
        assert_eq!(u64::from(entry.wqe.get()), n, "receives complete in order");
        assert_eq!(u64::from(entry.byte_len.get()), message.len);
        assert_eq!(entry.flags & cqe::CQE_IMM != 0, message.imm.is_some());
        assert_eq!(entry.flags & cqe::CQE_SOLICITED != 0, message.solicited);
        if let Some(imm) = message.imm {
            assert_eq!(entry.imm.to_bytes(), imm);
        }
        let Some(data) = message.data else {
            assert_eq!(entry.opcode, cqe::RECV_RDMA_WITH_IMM);
            return;
        };
        assert_eq!(entry.opcode, cqe::RECV);
        let mr = self.pair.mr[side];
        let at = LANDINGS + n % WINDOW * MAX_LEN;
        let found = self.world.hosts[side].driver.read_mr(&mr, at, data.len());
        assert!(found == data, "message {n}");
    }

    /// Posts the missing receives and runs until all messages have completed.
    fn complete_all(&mut self) {
        for side in 0..2 {
            let wanted = self.sides[1 - side].messages.len() as u64;
            while self.sides[side].receives < self.sides[side].received + wanted {
                self.post_receive(side);
            }
        }
        self.world.run();
        self.check(0);
        self.check(1);
        for side in &self.sides {
            assert_eq!((side.pending.len(), side.messages.len()), (0, 0));
        }
    }

    fn run(mut self, count: u64) {
        while self.sides.iter().any(|side| side.posted < count) {
            let side = self.rng.below(2) as usize;
            let (me, peer) = (&self.sides[side], &self.sides[1 - side]);
            let room = me.posted < count && me.pending.len() < WINDOW as usize;
            // A landing buffer is used again only after its message was checked.
            let landing = me.receives < me.received + WINDOW;
            match self.rng.below(10) {
                0..=4 if room => self.post(side),
                // Late on purpose, now and then.
                5..=7 if landing && peer.messages.len() as u64 + 2 > me.receives - me.received => {
                    self.post_receive(side);
                }
                8 => {
                    let ns = self.rng.below(20_000);
                    self.world.run_for(ns);
                }
                9 if self.rng.chance(50) => self.complete_all(),
                _ => {}
            }
            self.check(0);
            self.check(1);
            let full = self
                .sides
                .iter()
                .all(|s| s.pending.len() == WINDOW as usize);
            if full || self.sides[side].receives >= self.sides[side].received + WINDOW {
                self.complete_all();
            }
        }
        self.complete_all();
        for side in 0..2 {
            let mr = self.pair.mr[1 - side];
            let driver = &self.world.hosts[1 - side].driver;
            for (n, share) in self.sides[side].shares.iter().enumerate() {
                let at = SHARES + n as u64 * MAX_LEN;
                assert!(driver.read_mr(&mr, at, MAX_LEN as usize) == *share);
            }
            for (n, value) in self.sides[side].variables.iter().enumerate() {
                let at = variable(&mr, n as u64) - mr.va;
                assert_eq!(driver.read_mr(&mr, at, 8), value.to_le_bytes());
            }
        }
    }
}

fn run(run: Run) {
    let count = run.count;
    Exchange::new(&run).run(count);
}

const CALM: Run = Run {
    seed: 1,
    impairment: LinkModel::PLAIN,
    mtu: 3,
    by_reference: false,
    rd_atomic: 4,
    count: 300,
};

#[test]
fn on_a_perfect_wire() {
    for seed in 0..10 {
        run(Run {
            seed,
            mtu: 1 + (seed % 5) as u8,
            rd_atomic: 1 + (seed % 16) as u8,
            ..CALM
        });
    }
}

#[test]
fn by_reference() {
    for seed in 0..10 {
        run(Run {
            seed,
            mtu: 1 + (seed % 5) as u8,
            by_reference: true,
            ..CALM
        });
    }
}

fn matrix(impairment: fn(u32) -> LinkModel, rates: &[u32]) {
    for rate in rates {
        for seed in 0..8 {
            run(Run {
                seed,
                impairment: impairment(*rate),
                mtu: 1 + (seed % 5) as u8,
                rd_atomic: [1, 2, 4, 16][seed as usize % 4],
                count: 150,
                ..CALM
            });
        }
    }
}

const RATES: [u32; 4] = [5, 20, 50, 100];

#[test]
fn with_loss() {
    matrix(
        |loss| LinkModel {
            loss: loss * 1000,
            ..CALM.impairment
        },
        &RATES,
    );
}

#[test]
fn with_duplication() {
    matrix(
        |duplication| LinkModel {
            duplicate: duplication * 1000,
            ..CALM.impairment
        },
        &RATES,
    );
}

#[test]
fn with_reordering() {
    matrix(
        |reordering| LinkModel {
            reorder: reordering * 1000,
            ..CALM.impairment
        },
        &RATES,
    );
}

#[test]
fn with_corruption() {
    matrix(
        |corruption| LinkModel {
            corrupt: corruption * 1000,
            ..CALM.impairment
        },
        &RATES,
    );
}

#[test]
fn with_everything() {
    matrix(
        |rate| LinkModel {
            loss: rate * 1000,
            duplicate: rate * 1000,
            reorder: rate * 1000,
            corrupt: rate * 1000,
            ..LinkModel::PLAIN
        },
        &[5, 15, 40],
    );
}

/// UD: each datagram arrives whole, as often as the wire carried it, or not at all.
#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    for rate in [0, 20, 100] {
        for seed in 0..6 {
            let mut world = World::new(2, seed);
            let mut cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
            let mut qp = [0, 1].map(|i| world.hosts[i].qp(QPT_UD, &cq[i]).unwrap());
            let mr = [0, 1].map(|i| world.hosts[i].mr(1 << 20).unwrap());
            for (host, qp) in qp.iter().enumerate() {
                world.hosts[host]
                    .driver
                    .activate(qp.qpn, QPT_UD, 7)
                    .unwrap();
            }
            let mut path = world.path(1, 0);
            if seed % 2 == 1 {
                path.sgid_index = 1;
                path.dgid = gid6(&world.hosts[1]);
            }
            let pd = world.hosts[0].pd;
            let ah = world.hosts[0].driver.create_ah(pd, path.av()).unwrap();
            world.impair(LinkModel {
                loss: rate * 1000,
                duplicate: rate * 1000,
                reorder: rate * 1000,
                corrupt: rate * 1000,
                ..LinkModel::PLAIN
            });
            let mut rng = Rng::new(seed);
            let mut sent = Vec::new();
            let mut arrived = vec![0; 200];
            for n in 0..200u32 {
                let len = rng.below(4097);
                let data = bytes(&mut rng, len);
                world.hosts[0].driver.write_mr(&mr[0], 0, &data);
                sent.push(data);
                let send = Send {
                    opcode: wr::WR_SEND_IMM,
                    imm: n.to_be_bytes(),
                    sges: &[(mr[0].va, len as u32, mr[0].key)],
                    ah,
                    remote_qpn: qp[1].qpn,
                    qkey: 7,
                    ..Send::default()
                };
                // Always room: a datagram that arrives twice needs two buffers.
                for k in 0..2 {
                    let slot = (n * 2 + k) % 200;
                    let at = u64::from(slot) * 5000;
                    let sge = (mr[1].va + at, 4136, mr[1].key);
                    world.hosts[1].driver.post_recv(&mut qp[1], slot, &[sge]);
                }
                world.hosts[0].driver.post_send(&mut qp[0], &send);
                world.run();
                assert_eq!(world.completions(0, &mut cq[0]).len(), 1);
                for entry in world.completions(1, &mut cq[1]) {
                    assert_eq!(entry.status, cqe::SUCCESS);
                    let which = u32::from_be_bytes(entry.imm.to_bytes()) as usize;
                    let data = &sent[which];
                    arrived[which] += 1;
                    assert_eq!(entry.byte_len.get() as usize, data.len() + 40);
                    let at = u64::from(entry.wqe.get()) * 5000 + 40;
                    assert!(world.hosts[1].driver.read_mr(&mr[1], at, data.len()) == *data);
                }
                if n % 60 == 59 {
                    // Receives that were not used up: start over.
                    let qpn = qp[1].qpn;
                    world.hosts[1].driver.set_state(qpn, 0).unwrap();
                    qp[1].reset();
                    world.hosts[1].driver.activate(qpn, QPT_UD, 7).unwrap();
                }
            }
            let lost = arrived.iter().filter(|n| **n == 0).count();
            let twice = arrived.iter().filter(|n| **n == 2).count();
            assert_eq!((lost > 0, twice > 0), (rate > 0, rate > 0));
        }
    }
}
