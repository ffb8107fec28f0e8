//! Random injections under random traffic, and under a guest that does anything: no panic, the clock advances, and
//! after the removal of the injections the former state is restored.

use faultline_abi::admin::{AdminCmd, Counter};
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::qp::*;
use faultline_abi::translation::TqCmd;
use faultline_abi::{U32, U64, cqe, wqe as wr};
use faultline_checker::Rule;
use faultline_nic::injection::{ALWAYS, MAX_INJECTIONS, RNR_NAK};
use faultline_nic::{
    Fact, FaultPolicy, Filter, Injection, InjectionError, InjectionUse, Nanos, Outcome, Point,
    TURN_WORK,
};
use faultline_simulation::{Bus, Error, Rng, Send};
use faultline_simulator::{HostPager, Pair, World, expect_cqe, pager};
use proptest::prelude::*;
use zerocopy::FromBytes;

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const US: u64 = 1_000;
/// Pages of each on-demand region. Nothing names the last one, so that a corrupt record names a page of the region, too.
const PAGES: u64 = 48;

fn outcome(rng: &mut Rng) -> Outcome {
    match rng.below(8) {
        0 => Outcome::Report,
        1 => Outcome::Drop,
        2 | 3 => Outcome::Delay(Nanos(rng.below(4) * rng.below(2_000_000))),
        4 => Outcome::Duplicate,
        5 => Outcome::Corrupt,
        6 => Outcome::Fail(if rng.chance(200) {
            RNR_NAK
        } else {
            rng.below(24) as u16
        }),
        _ => Outcome::Overrun,
    }
}

fn filter(rng: &mut Rng, point: Point) -> Filter {
    let mut filter = Filter::default();
    if rng.chance(600) {
        return filter;
    }
    let has = |fact| point.has(fact);
    if has(Fact::Qpn) && rng.chance(300) {
        filter.qpn = Some(rng.below(6) as u32);
    }
    if has(Fact::Object) && rng.chance(300) {
        filter.object = Some(rng.below(4) as u32);
    }
    if has(Fact::Va) && rng.chance(300) {
        let first = VA + rng.below(PAGES) * PAGE;
        filter.va = Some((first, first + rng.below(8) * PAGE));
    }
    if has(Fact::Code) && rng.chance(300) {
        filter.code = Some(rng.below(40) as u16);
    }
    if has(Fact::Level) && rng.chance(300) {
        filter.min_level = Some(rng.below(8) as u32);
    }
    filter
}

/// An entry that the table takes, if it has room and the id is free.
fn injection(rng: &mut Rng, allowed: impl Fn(Point, Outcome) -> bool) -> Injection {
    let (point, outcome) = loop {
        let point = Point::ALL[rng.below(Point::ALL.len() as u64) as usize];
        let outcome = outcome(rng);
        if point.allows(outcome) && allowed(point, outcome) {
            break (point, outcome);
        }
    };
    Injection {
        id: rng.below(12) as u32,
        point,
        filter: filter(rng, point),
        skip: rng.below(4),
        every: rng.below(3) + 1,
        times: if rng.chance(300) {
            u64::MAX
        } else {
            rng.below(6) + 1
        },
        per_million: if rng.chance(500) {
            ALWAYS
        } else {
            rng.below(1_000_000) as u32 + 1
        },
        outcome,
    }
}

fn add(world: &World, host: usize, injection: Injection) {
    match world.with_nic(host, |nic| nic.add_injection(injection)) {
        Ok(()) | Err(InjectionError::DuplicateId(_)) => {}
        Err(error) => panic!("{error}: {injection:?}"),
    }
}

/// Two hosts with on-demand regions and connections.
struct Scene {
    world: World,
    pagers: [HostPager; 2],
    pairs: Vec<Pair>,
    rng: Rng,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let max_faults = 4 + rng.below(30) as u32;
        let mut world = World::with_config(2, seed, |config| {
            config.fault_timeout = Nanos::from_millis(20);
            config.stall_timeout = Nanos::from_millis(5);
            config.limits.max_faults = max_faults;
        });
        if rng.chance(500) {
            world.hand_over_by_reference();
        }
        let log_depth = 1 + rng.below(5) as u8;
        let pagers = [0, 1].map(|host| {
            let mut pager = HostPager::new(&mut world, host, 40, log_depth);
            pager.register(&mut world, VA, PAGES * PAGE);
            pager.maps_again = true;
            pager.delay = 1 + rng.below(100_000);
            pager
        });
        let mut scene = Self {
            world,
            pagers,
            pairs: Vec::new(),
            rng,
        };
        for _ in 0..3 {
            scene.connect();
        }
        scene
    }

    fn connect(&mut self) {
        let pair = self.world.connect(QPT_RC, 4096, |path| {
            path.timeout = 8;
            path.min_rnr_timer = 1;
        });
        self.pairs.push(pair);
    }

    /// Posts a request from one region to the other.
    fn post(&mut self) {
        let rng = &mut self.rng;
        let from = rng.below(2) as usize;
        let pair = rng.below(self.pairs.len() as u64) as usize;
        let len = 1 + rng.below(3 * PAGE) as u32;
        let mut place = || rng.below((PAGES - 5) * PAGE);
        let (here, there) = (place(), place() & !7);
        let opcode = [wr::WR_WRITE, wr::WR_READ, wr::WR_SEND, wr::WR_FETCH_ADD];
        let opcode = opcode[rng.below(4) as usize];
        let len = match opcode {
            wr::WR_FETCH_ADD => 8,
            _ => len,
        };
        let key = self.pagers[1 - from].regions[0].key;
        let sge = self.pagers[from].sge(0, here, len);
        let landing = self.pagers[1 - from].sge(0, there, 4 * PAGE as u32);
        let pair = &mut self.pairs[pair];
        let send = Send {
            opcode,
            sges: &[sge],
            remote_addr: VA + there,
            rkey: key,
            ..Send::default()
        };
        let hosts = &mut self.world.hosts;
        // Rings of 2^6 entries at least: a test that posted more would overwrite its own requests.
        if pair.qp[from].sends_posted() < 40 {
            if opcode == wr::WR_SEND {
                hosts[1 - from]
                    .driver
                    .post_recv(&mut pair.qp[1 - from], 0, &[landing]);
            }
            hosts[from].driver.post_send(&mut pair.qp[from], &send);
        }
    }

    fn operate(&mut self) {
        let rng = &mut self.rng;
        let host = rng.below(2) as usize;
        let key = self.pagers[host].regions[0].key;
        let (page, count) = (rng.below(PAGES - 4), rng.below(4) + 1);
        let (va, len) = (VA + page * PAGE, count * PAGE);
        let (what, yes, ns) = (rng.below(8), rng.chance(500), rng.below(300_000));
        let pair = rng.below(self.pairs.len() as u64) as usize;
        let qpn = self.pairs[pair].qp[host].qpn;
        let policies = FaultPolicy::ALL;
        let policy = policies[rng.below(policies.len() as u64) as usize];
        let rare = rng.chance(100);
        self.world.operate(host, |nic, now, mem| {
            let before = nic.work();
            match what {
                0 | 1 => _ = nic.evict(key, va, len),
                2 => nic.set_fault_queue_held(now, mem, yes),
                3 => nic.set_fault_queue_full(now, mem, yes),
                4 => nic.pause_ingress(now, Nanos(ns)),
                5 => _ = nic.request_pages(now, mem, key, va, len),
                6 => nic.set_fault_policy(qpn, policy).unwrap(),
                _ if rare => _ = nic.fail_queue_pair(now, mem, qpn),
                _ => nic.set_lookup(Nanos(ns / 100)),
            }
            assert!(nic.work() - before < 2 * TURN_WORK);
        });
    }

    fn some_time(&mut self) {
        let ns = self.rng.below(200) * US;
        self.world.run_for(ns);
        for pager in &mut self.pagers {
            pager.collect(&mut self.world);
            pager.answer_due(&mut self.world);
        }
        for host in 0..2 {
            for pair in &mut self.pairs {
                if self.rng.chance(500) {
                    self.world.completions(host, &mut pair.cq[host]);
                }
                if self.rng.chance(300) {
                    let solicited = self.rng.chance(300);
                    self.world.hosts[host]
                        .driver
                        .arm_cq(&pair.cq[host], solicited);
                }
            }
            let host = &mut self.world.hosts[host];
            while host.driver.poll_event(&mut host.eq).is_some() {}
            host.driver.arm_eq(&host.eq);
            host.driver.async_events();
        }
    }

    /// Without injections everything comes to rest, and a new connection works.
    fn recover(&mut self) {
        for host in 0..2 {
            self.world.operate(host, |nic, now, mem| {
                nic.clear_injections();
                nic.set_fault_queue_held(now, mem, false);
                nic.set_fault_queue_full(now, mem, false);
                nic.set_lookup(Nanos(0));
            });
        }
        let [a, b] = &mut self.pagers;
        pager::run(&mut self.world, &mut [a, b]);
        for (host, pager) in self.pagers.iter().enumerate() {
            pager.check_free(&self.world);
            self.world.with_nic(host, |nic| {
                assert!(nic.is_running());
                assert_eq!(nic.next_deadline(), None);
                assert_eq!(nic.faults(100), []);
                assert_eq!(nic.object_counts().fault_waits, 0);
            });
        }
        self.connect();
        let pair = self.pairs.last_mut().unwrap();
        let (from, to) = (pair.mr[0], pair.mr[1]);
        let data: Vec<u8> = (0..4000u32)
            .map(|n| (n * 7) as u8 ^ (n >> 8) as u8)
            .collect();
        self.world.hosts[0].driver.write_mr(&from, 0, &data);
        self.world.post_write(pair, 4000);
        self.world.run();
        expect_cqe(&mut self.world, 0, &mut pair.cq[0], cqe::SUCCESS);
        assert!(self.world.hosts[1].driver.read_mr(&to, 0, 4000) == data);
    }
}

/// Outcomes that the simulated driver survives: its commands are answered, and the device does not stop.
fn is_survived(point: Point, outcome: Outcome) -> bool {
    match (point, outcome) {
        (Point::AdminCommand | Point::TranslationCommand, outcome) => {
            matches!(outcome, Outcome::Report | Outcome::Delay(_))
        }
        (Point::Event, Outcome::Overrun) => false,
        _ => true,
    }
}

/// The same for all outcomes of one kind, with any numbers.
fn kind(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Delay(_) => Outcome::Delay(Nanos(0)),
        Outcome::Fail(_) => Outcome::Fail(0),
        other => other,
    }
}

/// Returns the kinds of effects that took place.
fn under_traffic(seed: u64) -> Vec<(Point, Outcome)> {
    let mut scene = Scene::new(seed);
    // Requests are refused that are right, and an operator holds frames that have arrived.
    scene.world.permit(&Rule::ALL);
    for host in 0..2 {
        scene.world.with_nic(host, |nic| nic.seed_injections(seed));
    }
    for _ in 0..80 {
        match scene.rng.below(10) {
            0 => {
                let host = scene.rng.below(2) as usize;
                let injection = injection(&mut scene.rng, is_survived);
                add(&scene.world, host, injection);
            }
            1 => {
                let (host, id) = (scene.rng.below(2) as usize, scene.rng.below(12) as u32);
                scene.world.with_nic(host, |nic| nic.remove_injection(id));
            }
            2 => {
                let driver = &mut scene.world.hosts[0].driver;
                driver.counter(Counter::tx_packets).unwrap();
            }
            3 => scene.operate(),
            4..=6 => scene.some_time(),
            _ => scene.post(),
        }
    }
    let mut effects = Vec::new();
    for host in 0..2 {
        scene.world.with_nic(host, |nic| {
            let used = nic.injections().iter().filter(|used| used.effects > 0);
            let of = |used: &InjectionUse| (used.injection.point, kind(used.injection.outcome));
            effects.extend(used.map(of));
        });
    }
    scene.recover();
    assert!(scene.world.longest_call() < 8 * TURN_WORK);
    effects
}

/// The random test causes all effects.
#[test]
fn each_effect_takes_place_under_random_traffic() {
    let found: Vec<_> = (0..400).flat_map(under_traffic).collect();
    let outcomes = [
        Outcome::Report,
        Outcome::Drop,
        Outcome::Delay(Nanos(0)),
        Outcome::Duplicate,
        Outcome::Corrupt,
        Outcome::Fail(0),
        Outcome::Overrun,
    ];
    for point in Point::ALL {
        for outcome in outcomes {
            // A status that is not zero, and a NAK code.
            let numbered = match outcome {
                Outcome::Fail(_) => Outcome::Fail(1),
                other => other,
            };
            if point.allows(numbered) && is_survived(point, outcome) {
                assert!(found.contains(&(point, outcome)), "{point:?} {outcome:?}");
            }
        }
    }
}

/// A command of mostly zeros.
fn any_command(rng: &mut Rng) -> AdminCmd {
    let mut bytes = [0u8; 128];
    for byte in &mut bytes {
        *byte = if rng.chance(300) {
            rng.next_u64() as u8
        } else {
            0
        };
    }
    let mut cmd = AdminCmd::read_from_bytes(&bytes).unwrap();
    cmd.hdr.opcode.set(rng.below(0x80) as u16);
    cmd.hdr.handle.set(rng.below(4) as u32);
    cmd
}

fn any_translation(rng: &mut Rng, key: u32) -> TqCmd {
    TqCmd {
        opcode: rng.below(5) as u8,
        key: U32::new(key),
        iova: U64::new(VA + rng.below(9) * PAGE),
        count: U64::new(rng.below(9)),
        token: U64::new(rng.below(64)),
        page_shift: 12,
        ..TqCmd::default()
    }
}

/// A doorbell, and its page: the kernel's, except for commands that the driver has not written.
fn any_doorbell(rng: &mut Rng) -> (u32, Doorbell) {
    let bell = Doorbell {
        kind: rng.below(10) as u8,
        object: rng.below(8) as u32,
        value: rng.next_u64() as u32 >> rng.below(32),
    };
    let page = match bell.kind {
        doorbell::ADMIN | doorbell::TRANSLATION => 1,
        _ => rng.below(3) as u32,
    };
    (page, bell)
}

/// Returns true if a command was not answered.
fn is_silent<T: std::fmt::Debug>(answer: Result<T, Error>) -> bool {
    match answer {
        Err(Error::Silent) => true,
        Ok(_) | Err(Error::Refused(_)) => false,
        other => panic!("{other:?}"),
    }
}

/// Hosts 1 and 2 talk to each other while the guest of host 0 does anything, and its operator injects anything.
fn under_attack(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(3, seed);
    let cq = [1, 2].map(|host| world.hosts[host].cq(8).unwrap());
    let qp = [0, 1].map(|n| world.hosts[n + 1].qp(QPT_RC, &cq[n]).unwrap());
    let mr = [1, 2].map(|host| world.hosts[host].mr(PAGE).unwrap());
    for n in 0..2 {
        let path = world.path(2 - n, qp[1 - n].qpn);
        let driver = &mut world.hosts[n + 1].driver;
        driver.connect(qp[n].qpn, QPT_RC, &path).unwrap();
    }
    let mut neighbours = Pair { cq, qp, mr };
    // Something for the attacker's commands to hit.
    let own = world.hosts[0].cq(4).unwrap();
    let qp = world.hosts[0].qp(QPT_RC, &own).unwrap();
    let path = world.path(1, 77);
    world.hosts[0]
        .driver
        .connect(qp.qpn, QPT_RC, &path)
        .unwrap();
    let mut pager = HostPager::new(&mut world, 0, 4, 2);
    let region = pager.register(&mut world, VA, 8 * PAGE);
    let key = pager.regions[region].key;
    // A driver without an answer does not continue with the queue: it can't distinguish new completions from old ones.
    let mut hangs = [false; 2];
    for n in 0..120 {
        match rng.below(6) {
            1 if hangs[0] => {}
            2 if hangs[1] => {}
            0 => add(&world, 0, injection(&mut rng, |_, _| true)),
            1 => {
                let cmd = any_command(&mut rng);
                hangs[0] = is_silent(world.hosts[0].driver.raw_command(&cmd));
            }
            2 => {
                let cmd = any_translation(&mut rng, key);
                hangs[1] = is_silent(world.hosts[0].driver.translate(&cmd));
            }
            3 => {
                let (page, bell) = any_doorbell(&mut rng);
                world.hosts[0].driver.bus.doorbell(page, bell);
            }
            4 => world.operate(0, |nic, now, mem| {
                let va = VA + rng.below(9) * PAGE;
                let _ = nic.request_pages(now, mem, key, va, PAGE);
                let _ = nic.evict(key, va, PAGE);
                nic.set_fault_queue_held(now, mem, rng.chance(500));
                nic.set_fault_queue_full(now, mem, rng.chance(500));
                if n % 10 == 0 {
                    let _ = nic.overrun_cq(now, mem, rng.below(4) as u32);
                    let _ = nic.fail_queue_pair(now, mem, rng.below(4) as u32);
                }
                assert!(nic.injections().len() <= MAX_INJECTIONS);
            }),
            _ => world.run_for(rng.below(300) * US),
        }
    }
    // A pause of host 0 has ended by itself; its packets do not concern the others.
    let data: Vec<u8> = (0..4000u32)
        .map(|n| (n * 5) as u8 ^ (n >> 8) as u8)
        .collect();
    world.hosts[1].driver.write_mr(&neighbours.mr[0], 0, &data);
    let (a, b) = (neighbours.mr[0], neighbours.mr[1]);
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(a.va, 4000, a.key)],
        remote_addr: b.va,
        rkey: b.key,
        ..Send::default()
    };
    let driver = &mut world.hosts[1].driver;
    driver.post_send(&mut neighbours.qp[0], &send);
    world.run();
    expect_cqe(&mut world, 1, &mut neighbours.cq[0], cqe::SUCCESS);
    assert!(world.hosts[2].driver.read_mr(&b, 0, 4000) == data);
    // A reset leaves a device that does not wait for anything, and is as good as new without the injections.
    world.operate(0, |nic, now, mem| {
        nic.reset(now);
        assert_eq!(nic.next_deadline(), None);
        nic.clear_injections();
        nic.set_fault_queue_held(now, mem, false);
        nic.set_fault_queue_full(now, mem, false);
    });
    let bus = world.hosts[0].driver.bus.clone();
    let mut driver = faultline_simulation::Driver::new(bus).unwrap();
    driver.alloc_pd().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_injections_under_random_traffic(seed: u64) {
        let _ = under_traffic(seed);
    }

    #[test]
    fn random_injections_under_a_hostile_guest(seed: u64) {
        under_attack(seed);
    }
}
