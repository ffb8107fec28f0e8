//! After an invalidation has returned, the device does not touch the page: every order of the steps of a
//! transfer, of its faults and their answers, and of the page's comings and goings, up to a depth.
//!
//! The pager poisons a frame as soon as the invalidation has returned, and looks whether the poison is still
//! there when it uses the frame again and at the end: a write that came too late would show. A read that came
//! too late would bring poison to the other side.

use std::collections::BTreeMap;

use faultline_abi::qp::QPT_RC;
use faultline_abi::{Status, cqe, wqe as wr};
use faultline_simulation::Send;
use faultline_simulator::{HostPager, Pair, World, expect_cqe, pager};

/// In the middle of a page, so that two pages take part.
const VA: u64 = 0x7000_0000;
const AT: u64 = 4096 - 300;
const LEN: u32 = 600;
/// Steps whose order is varied.
const DEPTH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The next packet or timer.
    World,
    Map(usize),
    Invalidate(usize),
    /// The oldest fault is answered.
    Resume,
}

const STEPS: [Step; 6] = [
    Step::World,
    Step::Map(0),
    Step::Map(1),
    Step::Invalidate(0),
    Step::Invalidate(1),
    Step::Resume,
];

struct Run {
    world: World,
    pair: Pair,
    pager: HostPager,
    host: usize,
    opcode: u8,
    answered: usize,
    /// True for each of the two pages that is mapped.
    mapped: [bool; 2],
}

fn data() -> Vec<u8> {
    // No byte is the poison.
    (0..LEN).map(|i| (i % 200) as u8).collect()
}

impl Run {
    /// A transfer of three packets, posted; the pages of `host` come and go. `warm`: the same has been done before.
    fn new(opcode: u8, host: usize, warm: bool) -> Self {
        let mut world = World::new(2, 1);
        let mut pair = world.connect(QPT_RC, 4096, |c| c.path_mtu = 1);
        let mut pager = HostPager::new(&mut world, host, 6, 4);
        pager.register(&mut world, VA, 8192);
        let paged = pager.sge(0, AT, LEN);
        let pinned = pair.mr[1 - host];
        let pinned_sge = (pinned.va, LEN, pinned.key);
        let (local, remote) = match host {
            0 => (paged, pinned_sge),
            _ => (pinned_sge, paged),
        };
        // READ: from host 1 to host 0; the others the other way.
        let source = if opcode == wr::WR_READ { 1 } else { 0 };
        let send = Send {
            opcode,
            sges: &[local],
            remote_addr: remote.0,
            rkey: remote.2,
            ..Send::default()
        };
        for last in [false, true] {
            if !last && !warm {
                continue;
            }
            for (end, bytes) in [(source, data()), (1 - source, vec![0; LEN as usize])] {
                if end == host {
                    pager.write(&world, 0, AT, &bytes);
                } else {
                    world.hosts[end].driver.write_mr(&pinned, 0, &bytes);
                }
            }
            if opcode == wr::WR_SEND {
                world.hosts[1]
                    .driver
                    .post_recv(&mut pair.qp[1], 1, &[remote]);
            }
            world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
            if !last {
                pager::run(&mut world, &mut [&mut pager]);
                expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
            }
        }
        let answered = pager.records.len();
        let resident = pager.resident(0);
        assert!([0, 2].contains(&resident), "{resident} pages at the start");
        let mapped = [resident == 2; 2];
        Self {
            world,
            pair,
            pager,
            host,
            opcode,
            answered,
            mapped,
        }
    }

    /// False if a step would do nothing. Of [`Step::World`] that shows when it is taken.
    fn is_possible(&self, step: Step) -> bool {
        match step {
            Step::World => true,
            Step::Map(n) => !self.mapped[n],
            Step::Invalidate(n) => self.mapped[n],
            Step::Resume => self.pager.records.len() > self.answered,
        }
    }

    /// Takes a step; returns false if it would do nothing.
    fn take(&mut self, step: Step) -> bool {
        let page = |n: usize| VA / 4096 + n as u64;
        let did = match step {
            // Not as far as the time at which a fault is given up.
            Step::World => self.world.step(self.world.now() + 1_000_000_000),
            Step::Map(n) => {
                let before = self.pager.resident(0);
                self.pager.map_page(&mut self.world, 0, page(n), true);
                self.mapped[n] = true;
                self.pager.resident(0) > before
            }
            Step::Invalidate(n) => {
                let before = self.pager.resident(0);
                self.pager.evict(&mut self.world, 0, page(n));
                self.mapped[n] = false;
                self.pager.resident(0) < before
            }
            Step::Resume => match self.pager.records.get(self.answered) {
                Some(record) => {
                    let token = record.token.get();
                    self.answered += 1;
                    let answer = self.pager.resume(&mut self.world, token, Status::Ok);
                    assert!(answer.is_ok(), "{answer:?}");
                    true
                }
                None => false,
            },
        };
        self.pager.collect(&mut self.world);
        did
    }

    /// Lets a well-behaved pager do the rest, and looks at the result.
    fn finish(mut self, path: &[Step]) {
        pager::run(&mut self.world, &mut [&mut self.pager]);
        expect_cqe(&mut self.world, 0, &mut self.pair.cq[0], cqe::SUCCESS);
        let sink = if self.opcode == wr::WR_READ { 0 } else { 1 };
        let found = if sink == self.host {
            self.pager.read(&self.world, 0, AT, LEN as usize)
        } else {
            let mr = self.pair.mr[sink];
            self.world.hosts[sink].driver.read_mr(&mr, 0, LEN as usize)
        };
        assert!(found == data(), "{path:?}");
        self.pager.evict_all(&mut self.world, 0);
        self.pager.check_free(&self.world);
    }
}

/// Tries all orders that begin with `path`; returns their number by length.
fn explore(start: &impl Fn() -> Run, path: &mut Vec<Step>, count: &mut BTreeMap<usize, u64>) {
    let mut run = start();
    for (n, step) in path.iter().enumerate() {
        let did = run.take(*step);
        // A step without an effect leads to a state that was seen without it.
        if !did {
            assert_eq!((n + 1, *step), (path.len(), Step::World), "{path:?}");
            return;
        }
    }
    *count.entry(path.len()).or_default() += 1;
    let is_possible = |step: &Step| run.is_possible(*step);
    let next: Vec<Step> = STEPS.into_iter().filter(is_possible).collect();
    run.finish(path);
    if path.len() == DEPTH {
        return;
    }
    for step in next {
        path.push(step);
        explore(start, path, count);
        path.pop();
    }
}

fn explore_all(opcode: u8, host: usize) {
    // From a cold start; and when both pages have been used before, and so are in the translation cache.
    for warm in [false, true] {
        let mut count = BTreeMap::new();
        let start = || Run::new(opcode, host, warm);
        explore(&start, &mut Vec::new(), &mut count);
        let longest = count.get(&DEPTH).copied().unwrap_or(0);
        assert!(longest > 1000, "few orders were possible: {count:?}");
    }
}

#[test]
fn write_into_pages_that_come_and_go() {
    explore_all(wr::WR_WRITE, 1);
}

#[test]
fn send_into_pages_that_come_and_go() {
    explore_all(wr::WR_SEND, 1);
}

#[test]
fn read_from_pages_that_come_and_go() {
    explore_all(wr::WR_READ, 1);
}

#[test]
fn write_from_pages_that_come_and_go() {
    explore_all(wr::WR_WRITE, 0);
}

#[test]
fn read_into_pages_that_come_and_go() {
    explore_all(wr::WR_READ, 0);
}
