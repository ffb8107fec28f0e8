//! Timers of a queue pair that waits for a page: every posted request completes, also when the peer is gone, and losses
//! before the page are repaired meanwhile.

use faultline_abi::admin::Counter;
use faultline_abi::qp::*;
use faultline_abi::{cqe, wqe as wr};
use faultline_nic::NicConfig;
use faultline_simulation::FaultService;
use faultline_simulation::{Connect, Rng, Send, Sge};
use faultline_simulator::{HostPager, Pair, World, packet, pager};
use faultline_wire::aeth::Syndrome;
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Time of eight transmissions of a request: 4.096 µs × 2^14 for each.
const RETRIES: u64 = 8 * 67 * MS + 10 * MS;

/// A connection. Both sides have a pinned region and one on demand.
struct Waiting {
    world: World,
    pair: Pair,
    pagers: [HostPager; 2],
}

impl Waiting {
    fn new(world: World) -> Self {
        Self::with_queues(world, 6)
    }

    /// With fault queues of 2^`log_depth` records.
    fn with_queues(world: World, log_depth: u8) -> Self {
        Self::connected(world, log_depth, QPT_RC, |_| {})
    }

    fn connected(mut world: World, log_depth: u8, kind: u8, change: impl Fn(&mut Connect)) -> Self {
        let pair = world.connect(kind, 256 << 10, change);
        let pagers = [0, 1].map(|host| {
            let mut pager = HostPager::new(&mut world, host, 128, log_depth);
            pager.register(&mut world, VA + host as u64 * 0x1000_0000, 512 << 10);
            pager
        });
        Self {
            world,
            pair,
            pagers,
        }
    }

    fn pinned(&self, host: usize, offset: u64, len: u32) -> Sge {
        let mr = &self.pair.mr[host];
        (mr.va + offset, len, mr.key)
    }

    fn post(&mut self, opcode: u8, local: Sge, remote: Sge) {
        let send = Send {
            opcode,
            sges: &[local],
            remote_addr: remote.0,
            rkey: remote.2,
            compare_add: 1,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &send);
    }

    /// A WRITE from one pinned region to the other, which misses no page.
    fn post_plain(&mut self) {
        self.post_plain_at(0);
    }

    fn post_plain_at(&mut self, offset: u64) {
        let (local, remote) = (self.pinned(0, offset, 5000), self.pinned(1, offset, 5000));
        self.post(wr::WR_WRITE, local, remote);
    }

    /// A WRITE of the first bytes of host 0's region on demand.
    fn post_absent(&mut self) {
        let (local, remote) = (self.pagers[0].sge(0, 0, 100), self.pinned(1, 8192, 100));
        self.post(wr::WR_WRITE, local, remote);
    }

    /// Lets everything happen for some time; no pager answers.
    fn pass(&mut self, ns: u64) {
        self.world.run_for(ns);
        for pager in &mut self.pagers {
            pager.collect(&mut self.world);
        }
    }

    /// Answers what is due now.
    fn answer(&mut self, host: usize) {
        self.pagers[host].collect(&mut self.world);
        self.world
            .advance_to(self.world.now() + self.pagers[host].delay);
        self.pagers[host].answer_due(&mut self.world);
    }

    fn run(&mut self) {
        let [a, b] = &mut self.pagers;
        pager::run(&mut self.world, &mut [a, b]);
    }

    fn statuses(&mut self) -> Vec<u8> {
        let found = self.world.completions(0, &mut self.pair.cq[0]);
        found.iter().map(|cqe| cqe.status).collect()
    }

    fn counter(&mut self, host: usize, counter: Counter) -> u64 {
        self.world.hosts[host].driver.counter(counter).unwrap()
    }
}

/// Loses the first acknowledgement, or every packet of the peer.
fn lose_answers(world: &World, all: bool) {
    let mut lost = 0;
    world.lose(move |from, _| {
        let hit = from == 1 && (all || lost == 0);
        lost += u32::from(hit);
        hit
    });
}

/// The acknowledgement of an earlier request is lost, and a page does not become present: because the driver answers with
/// an error, does not answer, or because the fault unit has no room for all this time.
#[test]
fn a_page_that_does_not_come_leaves_earlier_requests_their_timer() {
    for gone in [false, true] {
        for why in ["refused", "no queue", "no room"] {
            let mut w = match why {
                "no room" => Waiting::with_queues(
                    World::with_config(2, 1, |c: &mut NicConfig| c.limits.max_faults = 0),
                    6,
                ),
                _ => Waiting::new(World::new(2, 1)),
            };
            match why {
                "no queue" => w.pagers[0].close(&mut w.world),
                _ => w.pagers[0].service = FaultService::Fail,
            }
            lose_answers(&w.world, gone);
            w.post_plain();
            w.post_absent();
            w.post_plain();
            match (gone, why) {
                (false, "no room") => w.run(),
                // The answer of the driver comes long before the last retry.
                _ => {
                    w.pass(MS);
                    w.answer(0);
                    w.pass(RETRIES);
                }
            }
            let (first, second) = match gone {
                true => (cqe::RETRY_EXC_ERR, cqe::WR_FLUSH_ERR),
                false => (cqe::SUCCESS, cqe::LOC_PROT_ERR),
            };
            let expected = [first, second, cqe::WR_FLUSH_ERR];
            assert_eq!(w.statuses(), expected, "{why}, peer gone: {gone}");
        }
    }
}

/// A page that takes longer than all retries of requests before it.
#[test]
fn the_loss_of_the_peer_is_noticed_during_a_wait_for_a_page() {
    for room in [true, false] {
        let config = |config: &mut NicConfig| {
            if !room {
                config.limits.max_faults = 0;
            }
        };
        let mut w = Waiting::new(World::with_config(2, 1, config));
        lose_answers(&w.world, true);
        w.post_plain();
        w.post_absent();
        w.pass(RETRIES);
        assert_eq!(w.statuses(), [cqe::RETRY_EXC_ERR, cqe::WR_FLUSH_ERR]);
        assert_eq!(w.pagers[0].records.len(), usize::from(room));
    }
}

#[test]
fn losses_before_a_missing_page_are_repaired_while_it_is_awaited() {
    // The packet that is lost: the first or last of five, or the acknowledgement.
    for (from, psn) in [(0, 0), (0, 4), (1, 4)] {
        for room in [true, false] {
            let config = |config: &mut NicConfig| {
                if !room {
                    config.limits.max_faults = 0;
                }
            };
            let mut w = Waiting::new(World::with_config(2, 1, config));
            let mut lost = false;
            w.world.lose(move |sender, header| {
                let hit = !lost && sender == from && header.bth.psn.get() == psn;
                lost |= hit;
                hit
            });
            let data: Vec<u8> = (0..5000u32).map(|n| (n * 7 + n / 251) as u8).collect();
            let source = w.pair.mr[0];
            w.world.hosts[0].driver.write_mr(&source, 0, &data);
            w.pagers[0].write(&w.world, 0, 0, &[0x5a; 100]);
            w.post_plain();
            w.post_absent();
            // Longer than one time-out, shorter than the page takes.
            w.pass(150 * MS);
            assert_eq!(w.statuses(), [cqe::SUCCESS], "lost: {psn} of host {from}");
            let target = w.pair.mr[1];
            assert!(w.world.hosts[1].driver.read_mr(&target, 0, 5000) == data);
            // Nothing is outstanding now: the wait may take any time, and costs no retry.
            let before = w.counter(0, Counter::local_ack_timeout_err);
            w.pass(2_000 * MS);
            assert_eq!(w.counter(0, Counter::local_ack_timeout_err), before);
            assert!(w.statuses().is_empty());
            if room {
                w.answer(0);
                w.run();
                assert_eq!(w.statuses(), [cqe::SUCCESS]);
                assert_eq!(
                    w.world.hosts[1].driver.read_mr(&target, 8192, 100),
                    [0x5a; 100]
                );
            }
        }
    }
}

/// A message whose first packets have left; its next ones are not present.
#[test]
fn losses_within_a_message_are_repaired_while_its_rest_is_awaited() {
    let mut w = Waiting::new(World::new(2, 1));
    let data: Vec<u8> = (0..12_288u32).map(|n| (n * 3 + n / 255) as u8).collect();
    w.pagers[0].write(&w.world, 0, 0, &data);
    for page in 0..2 {
        w.pagers[0].map_page(&mut w.world, 0, VA / PAGE + page, false);
    }
    let mut lost = false;
    w.world.lose(move |sender, header| {
        let hit = !lost && sender == 0 && header.bth.psn.get() == 7;
        lost |= hit;
        hit
    });
    let (local, remote) = (w.pagers[0].sge(0, 0, 12_288), w.pinned(1, 0, 12_288));
    w.post(wr::WR_WRITE, local, remote);
    w.pass(150 * MS);
    let target = w.pair.mr[1];
    assert!(w.world.hosts[1].driver.read_mr(&target, 0, 8192) == data[..8192]);
    w.answer(0);
    w.run();
    assert_eq!(w.statuses(), [cqe::SUCCESS]);
    assert!(w.world.hosts[1].driver.read_mr(&target, 0, 12_288) == data);
}

/// The page of a packet that has to be sent again becomes absent meanwhile: the queue pair waits for that page first.
#[test]
fn a_repeated_packet_may_miss_a_page_itself() {
    for fails in [false, true] {
        let mut w = Waiting::new(World::new(2, 1));
        w.pagers[0].write(&w.world, 0, 0, &[1; 16]);
        w.pagers[0].write(&w.world, 0, 5 * PAGE, &[2; 16]);
        w.pagers[0].map_page(&mut w.world, 0, VA / PAGE, false);
        w.pagers[0].delay = 300 * MS;
        let mut lost = false;
        w.world.lose(move |sender, header| {
            let hit = !lost && sender == 0 && header.bth.psn.get() == 0;
            lost |= hit;
            hit
        });
        for n in [0, 5] {
            let (local, remote) = (w.pagers[0].sge(0, n * PAGE, 16), w.pinned(1, n * PAGE, 16));
            w.post(wr::WR_WRITE, local, remote);
        }
        w.pass(MS);
        assert_eq!(w.pagers[0].records.len(), 1);
        w.pagers[0].evict(&mut w.world, 0, VA / PAGE);
        w.pass(100 * MS);
        assert_eq!(w.pagers[0].records.len(), 2);
        if fails {
            w.pagers[0].service = FaultService::Fail;
        }
        w.run();
        let target = w.pair.mr[1];
        if fails {
            assert_eq!(w.statuses(), [cqe::LOC_PROT_ERR, cqe::WR_FLUSH_ERR]);
            continue;
        }
        assert_eq!(w.statuses(), [cqe::SUCCESS; 2]);
        for n in [0, 5] {
            let found = w.world.hosts[1].driver.read_mr(&target, n * PAGE, 16);
            assert_eq!(found, [1 + (n > 0) as u8; 16]);
        }
    }
}

/// A response arrives whose buffer is absent; then the peer is gone.
#[test]
fn a_response_that_waits_for_its_buffer_does_not_hide_the_loss_of_the_peer() {
    let mut w = Waiting::new(World::new(2, 1));
    w.pagers[0].delay = MS;
    w.pagers[0].map_page(&mut w.world, 0, VA / PAGE, true);
    let mut answers = 0;
    w.world.lose(move |from, _| {
        answers += u32::from(from == 1);
        from == 1 && answers > 1
    });
    let (local, remote) = (w.pagers[0].sge(0, 0, 100), w.pinned(1, 0, 100));
    w.post(wr::WR_READ, local, remote);
    // The request has left, its answer has not arrived.
    w.pagers[0].evict_all(&mut w.world, 0);
    w.run();
    assert_eq!(w.pagers[0].records.len(), 1);
    assert_eq!(w.statuses(), [cqe::RETRY_EXC_ERR]);
}

/// Every kind of request with pages that come, come late or do not come, with room for many faults or for few, under
/// every policy, while packets are lost, and the peer at some time for good: each of them completes.
#[test]
fn every_posted_request_completes() {
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let places = [2, 1024][rng.below(2) as usize];
        let config = |config: &mut NicConfig| config.limits.max_faults = places;
        let world = World::with_config(2, seed, config);
        let kind = [QPT_RC, QPT_RC, QPT_UC][rng.below(3) as usize];
        let mut w = Waiting::connected(world, 6, kind, |_| {});
        w.set_policy(rng.below(4) as u8);
        if seed % 3 == 0 {
            w.world.hand_over_between_engines();
        }
        let mut left = match rng.below(2) {
            0 => u64::MAX,
            _ => rng.below(60),
        };
        let mut losses = Rng::new(seed + 1000);
        w.world.lose(move |_, _| {
            left = left.saturating_sub(1);
            left == 0 || losses.chance(15)
        });
        for pager in &mut w.pagers {
            pager.delay = [50 * US, 20 * MS, 300 * MS, 2_000 * MS][rng.below(4) as usize];
            pager.ahead = rng.below(2) * 65_536;
        }
        let posted = 1 + rng.below(12);
        for n in 0..posted as u32 {
            let opcode = [
                wr::WR_SEND,
                wr::WR_WRITE,
                wr::WR_WRITE_IMM,
                wr::WR_READ,
                wr::WR_FETCH_ADD,
            ][rng.below(if kind == QPT_UC { 3 } else { 5 }) as usize];
            let len = match opcode {
                wr::WR_FETCH_ADD => 8,
                _ => 1 + rng.below(100_000) as u32,
            };
            let place = |rng: &mut Rng, w: &Waiting, host: usize| match rng.below(2) {
                0 => w.pinned(host, 5, len),
                _ => w.pagers[host].sge(0, rng.below(50) * PAGE, len),
            };
            let landing = place(&mut rng, &w, 1);
            let driver = &mut w.world.hosts[1].driver;
            driver.post_recv(&mut w.pair.qp[1], n, &[landing]);
            let (local, mut remote) = (place(&mut rng, &w, 0), place(&mut rng, &w, 1));
            remote.0 &= !7;
            if remote.0 < w.pair.mr[1].va {
                remote.0 += 8;
            }
            w.post(opcode, local, remote);
            let until = w.world.now() + rng.below(100 * MS);
            while w.world.step(until) {}
            w.world.advance_to(until);
            for (host, pager) in w.pagers.iter_mut().enumerate() {
                pager.collect(&mut w.world);
                if rng.chance(100) {
                    pager.service = FaultService::Fail;
                }
                pager.answer_due(&mut w.world);
                let page = VA / PAGE + host as u64 * 0x1_0000 + rng.below(60);
                pager.evict(&mut w.world, 0, page);
            }
        }
        w.run();
        let done = w.statuses();
        assert_eq!(done.len() as u64, posted, "seed {seed}: {done:?}");
    }
}

/// Many requests in flight on memory whose pages go and come late, on both sides: none of them fails, however long a
/// page takes, and a packet that is lost costs a retry at most.
#[test]
fn requests_in_flight_survive_memory_that_moves() {
    // Seeds 0 to 699 have been tried.
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let places = [2, 1024][rng.below(2) as usize];
        let world = World::with_config(2, seed, |config| config.limits.max_faults = places);
        let rd_atomic = [1, 2, 4, 16][rng.below(4) as usize];
        let mut w = Waiting::connected(world, 6, QPT_RC, |connect| connect.rd_atomic = rd_atomic);
        if seed % 3 == 0 {
            w.world.hand_over_between_engines();
        }
        if seed % 5 == 0 {
            w.world.pace(rng.below(3) * 40);
        }
        let rate = rng.below(3);
        let mut losses = Rng::new(seed + 1000);
        w.world.lose(move |_, _| losses.below(1000) < rate);
        let mut posted = 0;
        let mut done = Vec::new();
        for _ in 0..30 {
            for pager in &mut w.pagers {
                pager.delay = [5 * US, 50 * US, MS, 90 * MS, 900 * MS][rng.below(5) as usize];
                pager.ahead = rng.below(2) * 65_536;
            }
            for _ in 0..rng.below(12) {
                let opcode = [
                    wr::WR_SEND,
                    wr::WR_WRITE,
                    wr::WR_WRITE_IMM,
                    wr::WR_READ,
                    wr::WR_READ,
                    wr::WR_FETCH_ADD,
                ][rng.below(6) as usize];
                let len = match opcode {
                    wr::WR_FETCH_ADD => 8,
                    _ => 1 + rng.below(20_000) as u32,
                };
                let place = |rng: &mut Rng, w: &Waiting, host: usize| match rng.below(4) {
                    0 => w.pinned(host, 8 + rng.below(50_000), len),
                    _ => w.pagers[host].sge(0, 8 + rng.below(50 * PAGE), len),
                };
                if matches!(opcode, wr::WR_SEND | wr::WR_WRITE_IMM) {
                    let landing = place(&mut rng, &w, 1);
                    let driver = &mut w.world.hosts[1].driver;
                    driver.post_recv(&mut w.pair.qp[1], posted as u32, &[landing]);
                }
                let (local, mut remote) = (place(&mut rng, &w, 0), place(&mut rng, &w, 1));
                remote.0 &= !7;
                w.post(opcode, local, remote);
                posted += 1;
            }
            for _ in 0..rng.below(8) {
                let until = w.world.now() + [20 * US, 300 * US, 40 * MS][rng.below(3) as usize];
                while w.world.step(until) {}
                w.world.advance_to(until);
                for (host, pager) in w.pagers.iter_mut().enumerate() {
                    pager.collect(&mut w.world);
                    pager.answer_due(&mut w.world);
                    let page = VA / PAGE + host as u64 * 0x1_0000 + rng.below(60);
                    match rng.below(3) {
                        0 => pager.evict(&mut w.world, 0, page),
                        1 => pager.migrate(&mut w.world, 0, page),
                        _ => pager.evict_all(&mut w.world, 0),
                    }
                }
            }
            if rng.below(4) == 0 {
                w.run();
            }
            done.extend(w.statuses());
            w.world.completions(1, &mut w.pair.cq[1]);
        }
        w.run();
        done.extend(w.statuses());
        assert!(
            done.iter().all(|status| *status == cqe::SUCCESS) && done.len() == posted,
            "seed {seed}: {} of {posted}: {done:?}",
            done.len()
        );
    }
}

const READ: u32 = 128 << 10;

/// A READ of 128 KiB whose last page at the responder is absent, with its data in the swap.
fn slow_read(change: impl Fn(&mut Connect)) -> Waiting {
    let mut w = Waiting::connected(World::new(2, 1), 6, QPT_RC, change);
    let first = (VA + 0x1000_0000) / PAGE;
    for page in first..first + u64::from(READ) / PAGE - 1 {
        w.pagers[1].map_page(&mut w.world, 0, page, false);
    }
    w.pagers[1].write(&w.world, 0, 0, &read_data());
    w.pagers[1].delay = 2_000 * MS;
    w
}

fn read_data() -> Vec<u8> {
    (0..READ).map(|n| (n * 7 + n / 251) as u8).collect()
}

impl Waiting {
    fn post_slow_read(&mut self) {
        let (local, remote) = (self.pinned(0, 0, READ), self.pagers[1].sge(0, 0, READ));
        self.post(wr::WR_READ, local, remote);
    }

    fn set_policy(&mut self, policy: u8) {
        let qpn = self.pair.qp[1].qpn;
        self.world.hosts[1]
            .driver
            .set_fault_policy(qpn, policy)
            .unwrap();
    }

    #[track_caller]
    fn expect_landed(&self, len: usize) {
        let found = self.world.hosts[0].driver.read_mr(&self.pair.mr[0], 0, len);
        assert!(found == read_data()[..len]);
    }
}

/// The page takes longer than all retries. Requests behind the READ are executed once.
#[test]
fn a_read_waits_for_a_page_in_its_middle_as_long_as_it_takes() {
    for by_reference in [false, true] {
        let mut w = slow_read(|_| {});
        if by_reference {
            w.world.hand_over_by_reference();
        }
        w.world.start_trace();
        w.post_slow_read();
        for _ in 0..3 {
            let at = 8 - w.pair.mr[1].va % 8;
            let (local, remote) = (w.pinned(0, 200 << 10, 8), w.pinned(1, at, 8));
            w.post(wr::WR_FETCH_ADD, local, remote);
            w.post_plain_at(100 << 10);
        }
        w.run();
        assert_eq!(w.statuses(), [cqe::SUCCESS; 7]);
        w.expect_landed(READ as usize);
        let word = w.world.hosts[1]
            .driver
            .read_mr(&w.pair.mr[1], 8 - w.pair.mr[1].va % 8, 8);
        assert_eq!(word, 3u64.to_le_bytes());
        assert_eq!(
            w.counter(0, Counter::local_ack_timeout_err),
            1,
            "RNR NAKs do the rest"
        );
        let refusals: Vec<u32> = w
            .world
            .take_trace()
            .iter()
            .filter(|(from, h)| {
                let syndrome = h.aeth.map(|aeth| aeth.syndrome);
                *from == 1 && matches!(syndrome, Some(Syndrome::RnrNak { .. }))
            })
            .map(|(_, h)| h.bth.psn.get())
            .collect();
        let missing = (READ - PAGE as u32) / 1024;
        assert!(refusals.iter().all(|psn| *psn == missing), "{refusals:?}");
        // About 2 s in steps of up to 41 ms.
        assert!(
            (40..80).contains(&refusals.len()),
            "{} RNR NAKs",
            refusals.len()
        );
    }
}

#[test]
fn responses_before_a_missing_page_are_given_again_while_it_is_awaited() {
    for answer in [FaultService::Repair, FaultService::Fail] {
        let mut w = slow_read(|_| {});
        w.pagers[1].service = answer;
        let mut lost = false;
        w.world.lose(move |from, header| {
            let hit = !lost && from == 1 && header.bth.psn.get() == 120;
            lost |= hit;
            hit
        });
        w.post_slow_read();
        // The gap shows in the responses behind it: no time-out is needed.
        w.pass(50 * MS);
        w.expect_landed(READ as usize - PAGE as usize);
        w.run();
        match answer {
            FaultService::Repair => {
                assert_eq!(w.statuses(), [cqe::SUCCESS]);
                w.expect_landed(READ as usize);
            }
            _ => assert_eq!(w.statuses(), [cqe::REM_ACCESS_ERR]),
        }
    }
}

/// An earlier READ is asked for again while a later one waits for a page. The rest of the later one would continue no response after
/// the repetition, so its responses begin again.
#[test]
fn a_read_that_a_repetition_interrupts_begins_again() {
    let mut w = slow_read(|_| {});
    w.set_policy(FAULT_POLICY_STALL);
    w.pagers[1].delay = 50 * MS;
    let (local, remote) = (w.pinned(0, 0, 3000), w.pinned(1, 0, 3000));
    w.post(wr::WR_READ, local, remote);
    w.post_slow_read();
    w.pass(MS);
    let [a, b] = [0, 1].map(|host: usize| &w.world.hosts[host]);
    let ip = Ip::from_gids(a.gid, b.gid, 0, 0, 64);
    let bth = Bth::new(Opcode::RcReadRequest, w.pair.qp[1].qpn, Psn::new(0));
    let mut again = RoceHeader::new(b.mac, a.mac, ip, bth);
    again.reth = Some(Reth {
        addr: remote.0,
        rkey: remote.2,
        len: 3000,
    });
    w.world.start_trace();
    w.world.inject(0, packet(&again, &[]));
    w.run();
    assert_eq!(w.statuses(), [cqe::SUCCESS; 2]);
    w.expect_landed(READ as usize);
    let trace = w.world.take_trace();
    let mut sent = trace.iter().filter(|(from, _)| *from == 1);
    let psns: Vec<u32> = (sent.by_ref().take(4))
        .map(|(_, header)| header.bth.psn.get())
        .collect();
    assert_eq!(psns, [0, 1, 2, 3]);
}

/// A repeated READ is treated as the fault policy has it for every request, and retries are counted as agreed.
#[test]
fn a_repeated_read_is_refused_only_by_policy_rnr() {
    for (policy, status) in [
        (FAULT_POLICY_RNR, cqe::RNR_RETRY_EXC_ERR),
        (FAULT_POLICY_DROP, cqe::RETRY_EXC_ERR),
        (FAULT_POLICY_STALL, cqe::RETRY_EXC_ERR),
    ] {
        let mut w = slow_read(|c| c.rnr_retry = 2);
        w.set_policy(policy);
        w.post_slow_read();
        w.pass(RETRIES);
        assert_eq!(w.statuses(), [status], "policy {policy}");
        // A page that comes before the retries are used up is all that it needs.
        let mut w = slow_read(|c| c.rnr_retry = 2);
        w.set_policy(policy);
        w.pagers[1].delay = 100 * MS;
        w.post_slow_read();
        w.run();
        assert_eq!(w.statuses(), [cqe::SUCCESS], "policy {policy}");
        w.expect_landed(READ as usize);
    }
}

/// A page for a WRITE on UC that will not come costs that message, with any change of the policy meanwhile.
#[test]
fn an_unreliable_write_to_a_refused_page_is_lost_once() {
    for policy in [FAULT_POLICY_RNR, FAULT_POLICY_DROP, FAULT_POLICY_STALL] {
        for len in [100, 5000] {
            let mut w = Waiting::connected(World::new(2, 1), 6, QPT_UC, |_| {});
            w.set_policy(policy);
            w.pagers[1].service = FaultService::Fail;
            let (local, remote) = (w.pinned(0, 0, len), w.pagers[1].sge(0, 0, len));
            w.post(wr::WR_WRITE, local, remote);
            let data = [0x5a; 5000];
            let source = w.pair.mr[0];
            w.world.hosts[0].driver.write_mr(&source, 0, &data);
            w.post_plain();
            w.run();
            assert_eq!(w.statuses(), [cqe::SUCCESS; 2], "policy {policy}, {len}");
            assert_eq!(w.pagers[1].records.len(), 1, "policy {policy}, {len}");
            let target = w.pair.mr[1];
            assert!(w.world.hosts[1].driver.read_mr(&target, 0, 5000) == data);
        }
    }
}
