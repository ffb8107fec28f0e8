//! The injection table: each outcome of each point, as the driver and the peer see it.

use faultline_abi::admin::Counter;
use faultline_abi::event;
use faultline_abi::qp::*;
use faultline_abi::translation::{INVALIDATE, RESUME, TqCmd};
use faultline_abi::{Status, U32, U64, cqe, wqe as wr};
use faultline_nic::injection::{ALWAYS, MAX_DELAYED, MAX_INJECTIONS, RNR_NAK};
use faultline_nic::{Diagnostic, Fact, Filter, Injection, InjectionError, Nanos, Outcome, Point};
use faultline_simulation::{Error, Send};
use faultline_simulator::{HostPager, Pair, World, expect_cqe, pager};

use crate::common::counter;

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Each match has this effect.
fn each(point: Point, outcome: Outcome) -> Injection {
    Injection {
        id: 7,
        point,
        filter: Filter::default(),
        skip: 0,
        every: 1,
        times: u64::MAX,
        per_million: ALWAYS,
        outcome,
    }
}

/// The first match has this effect.
fn once(point: Point, outcome: Outcome) -> Injection {
    Injection {
        times: 1,
        ..each(point, outcome)
    }
}

#[track_caller]
fn add(world: &World, host: usize, injection: Injection) {
    world.with_nic(host, |nic| nic.add_injection(injection).unwrap());
}

fn clear(world: &World, host: usize) {
    world.with_nic(host, faultline_nic::Nic::clear_injections);
}

fn diagnostics(world: &World, host: usize) -> Vec<Diagnostic> {
    let all = world.take_diagnostics(host).into_iter();
    all.map(|(_, diagnostic)| diagnostic).collect()
}

/// Effects that the NIC has reported: id and point.
fn effects(world: &World, host: usize) -> Vec<(u32, Point)> {
    let all = diagnostics(world, host).into_iter();
    all.filter_map(|diagnostic| match diagnostic {
        Diagnostic::Injected { id, point, .. } => Some((id, point)),
        _ => None,
    })
    .collect()
}

fn pair() -> (World, Pair) {
    let mut world = World::new(2, 1);
    let pair = world.connect(QPT_RC, 4096, |_| {});
    for host in 0..2 {
        world.hosts[host].driver.async_events();
        diagnostics(&world, host);
    }
    (world, pair)
}

fn state(world: &mut World, host: usize, qpn: u32) -> u8 {
    world.hosts[host].driver.query_qp(qpn).unwrap().state
}

fn of_completion(outcome: Outcome) -> (World, Pair) {
    let (mut world, mut pair) = pair();
    add(&world, 0, once(Point::Completion, outcome));
    world.post_write(&mut pair, 8);
    world.run_for(10 * US);
    assert_eq!(effects(&world, 0), [(7, Point::Completion)], "{outcome:?}");
    (world, pair)
}

/// Two WRITEs; the injection applies to the completion of the first. Returns the statuses after 10 µs, and later ones.
fn statuses(outcome: Outcome) -> (Vec<u8>, Vec<u8>) {
    let (mut world, mut pair) = of_completion(outcome);
    let found = world.completions(0, &mut pair.cq[0]);
    let first = found.iter().map(|cqe| cqe.status).collect();
    world.post_write(&mut pair, 8);
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    (first, found.iter().map(|cqe| cqe.status).collect())
}

#[test]
fn outcomes_of_completions() {
    let access = cqe::REM_ACCESS_ERR;
    for (outcome, first, then) in [
        (Outcome::Report, vec![0], vec![0]),
        (Outcome::Drop, vec![], vec![0]),
        // The second waits behind the first.
        (Outcome::Delay(Nanos::from_millis(3)), vec![], vec![0, 0]),
        (Outcome::Duplicate, vec![0, 0], vec![0]),
        (Outcome::Fail(u16::from(access)), vec![access], vec![0]),
        (Outcome::Corrupt, vec![0], vec![0]),
    ] {
        assert_eq!(statuses(outcome), (first, then), "{outcome:?}");
    }
}

#[test]
fn delayed_completions_keep_their_order_and_time() {
    let (mut world, mut pair) = pair();
    add(
        &world,
        0,
        once(Point::Completion, Outcome::Delay(Nanos::from_millis(3))),
    );
    world.post_write(&mut pair, 8);
    world.post_write(&mut pair, 8);
    world.run_for(2 * MS);
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 0);
    world.run_for(2 * MS);
    let found = world.completions(0, &mut pair.cq[0]);
    let order: Vec<_> = found.iter().map(|cqe| cqe.wqe.get()).collect();
    assert_eq!(order, [0, 1]);
    for cqe in &found {
        assert!((3 * MS..4 * MS).contains(&cqe.timestamp.get()));
    }
    // Nothing is left behind which others would have to wait.
    world.post_write(&mut pair, 8);
    world.run_for(10 * US);
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
}

/// DESTROY_QP and the state RESET promise that no completion follows.
#[test]
fn a_destroyed_queue_pair_gets_no_late_completion() {
    for destroy in [true, false] {
        let (mut world, mut pair) = of_completion(Outcome::Delay(Nanos::from_millis(1)));
        let driver = &mut world.hosts[0].driver;
        let qpn = pair.qp[0].qpn;
        match destroy {
            true => drop(driver.command(faultline_abi::admin::DESTROY_QP, qpn, &())),
            false => driver.set_state(qpn, QPS_RESET).unwrap(),
        }
        world.run_for(5 * MS);
        assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 0);
    }
}

#[test]
fn a_corrupt_completion_names_no_queue_pair() {
    let (mut world, mut pair) = of_completion(Outcome::Corrupt);
    let cqe = expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    assert_eq!(cqe.qpn.get(), !pair.qp[0].qpn);
    assert_eq!(cqe.byte_len.get(), !8);
}

#[test]
fn a_completion_overruns_its_queue() {
    let (mut world, pair) = of_completion(Outcome::Overrun);
    world.run();
    let (cqn, qpn) = (pair.cq[0].cqn, pair.qp[0].qpn);
    assert_eq!(
        world.hosts[0].driver.async_events(),
        [(event::CQ_ERROR, cqn), (event::QP_FATAL, qpn)]
    );
    assert_eq!(state(&mut world, 0, qpn), QPS_ERR);
}

/// More completions are delayed than fit: those beyond are written at once, behind the others.
#[test]
fn the_number_of_delayed_things_is_limited() {
    let (mut world, mut pair) = pair();
    let cq = world.hosts[0].cq(13).unwrap();
    let mut qp = world.hosts[0].qp(QPT_RC, &cq).unwrap();
    let driver = &mut world.hosts[1].driver;
    driver.set_state(pair.qp[1].qpn, QPS_RESET).unwrap();
    pair.qp[1].reset();
    for (host, own, to, peer) in [
        (0, qp.qpn, 1, pair.qp[1].qpn),
        (1, pair.qp[1].qpn, 0, qp.qpn),
    ] {
        let path = world.path(to, peer);
        world.hosts[host]
            .driver
            .connect(own, QPT_RC, &path)
            .unwrap();
    }
    std::mem::swap(&mut qp, &mut pair.qp[0]);
    pair.cq[0] = cq;
    let delay = Outcome::Delay(Nanos::from_millis(3_600_000));
    add(&world, 0, each(Point::Completion, delay));
    for n in 0..MAX_DELAYED as u32 {
        world.post_write(&mut pair, 8);
        if n % 16 == 15 {
            world.run_for(US * 20);
        }
    }
    world.run_for(10 * MS);
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 0);
    world.post_write(&mut pair, 8);
    world.run_for(10 * MS);
    let found = world.completions(0, &mut pair.cq[0]);
    let order: Vec<_> = found.iter().map(|cqe| cqe.wqe.get()).collect();
    let all: Vec<_> = (0..=MAX_DELAYED as u32).collect();
    assert_eq!(order, all);
}

/// Host 0 writes to absent pages of host 1.
struct Faults {
    world: World,
    pager: HostPager,
    pair: Pair,
    posted: u64,
}

impl Faults {
    fn new(log_depth: u8) -> Self {
        let mut world = World::with_config(2, 1, |config| {
            config.fault_timeout = Nanos::from_millis(50);
        });
        let mut pager = HostPager::new(&mut world, 1, 64, log_depth);
        pager.register(&mut world, VA, 64 * PAGE);
        let pair = world.connect(QPT_RC, 4096, |path| path.rnr_retry = 7);
        diagnostics(&world, 1);
        Self {
            world,
            pager,
            pair,
            posted: 0,
        }
    }

    /// Writes 8 bytes to this page.
    fn write(&mut self, page: u64) {
        let from = self.pair.mr[0];
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, 8, from.key)],
            remote_addr: VA + page * PAGE,
            rkey: self.pager.regions[0].key,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &write);
        self.posted += 1;
    }

    fn run(&mut self) {
        let (world, pager) = (&mut self.world, &mut self.pager);
        pager::run(world, &mut [pager]);
    }

    /// Status of each write that has completed, and the pages of the records.
    fn result(&mut self) -> (Vec<u8>, Vec<u64>) {
        let found = self.world.completions(0, &mut self.pair.cq[0]);
        let statuses = found.iter().map(|cqe| cqe.status).collect();
        let pages = self.pager.records.iter();
        let pages = pages.map(|record| (record.va.get() - VA) / PAGE).collect();
        (statuses, pages)
    }
}

#[test]
fn outcomes_of_fault_records() {
    let (lost, well) = (cqe::REM_OP_ERR, cqe::SUCCESS);
    for (outcome, status, pages) in [
        (Outcome::Report, well, vec![3]),
        // The fault ends by its timeout.
        (Outcome::Drop, cqe::REM_ACCESS_ERR, vec![]),
        (Outcome::Delay(Nanos::from_millis(2)), well, vec![3]),
        (Outcome::Duplicate, well, vec![3, 3]),
        (Outcome::Corrupt, well, vec![4, 3]),
        (Outcome::Fail(0), cqe::REM_ACCESS_ERR, vec![3]),
        (Outcome::Overrun, well, vec![3]),
    ] {
        let mut faults = Faults::new(6);
        add(&faults.world, 1, once(Point::FaultRecord, outcome));
        faults.write(3);
        faults.run();
        let first = faults.pager.records.first().map(|r| r.timestamp.get());
        assert_eq!(faults.result(), (vec![status], pages), "{outcome:?}");
        assert_ne!(status, lost);
        let told = effects(&faults.world, 1);
        assert_eq!(told, [(7, Point::FaultRecord)], "{outcome:?}");
        match outcome {
            Outcome::Delay(_) => assert!(first.unwrap() >= 2 * MS),
            Outcome::Overrun => {
                assert_eq!(
                    counter(&mut faults.world, 1, Counter::page_fault_overflow),
                    1
                );
            }
            Outcome::Drop => {
                assert_eq!(
                    counter(&mut faults.world, 1, Counter::page_fault_timeouts),
                    1
                );
                assert!(faults.world.now() >= 50 * MS);
            }
            Outcome::Fail(_) => {
                assert_eq!(
                    counter(&mut faults.world, 1, Counter::page_faults_failed),
                    1
                );
            }
            _ => {}
        }
        // What comes next is as always.
        if status == well {
            faults.write(9);
            faults.run();
            assert_eq!(faults.result().0, [well], "{outcome:?}");
        }
    }
}

/// A requester's fault without room waits until there is some. An injection without end must not call it again and again at
/// one point in time.
#[test]
fn a_fault_queue_that_is_always_overrun_leaves_the_clock_running() {
    // More than are called in one turn.
    const COUNT: u64 = 40;
    let mut faults = Faults::new(6);
    add(&faults.world, 1, each(Point::FaultRecord, Outcome::Overrun));
    let mut pairs = Vec::new();
    for page in 0..COUNT {
        let mut pair = faults.world.connect(QPT_RC, 64, |_| {});
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[faults.pager.sge(0, page * PAGE, 8)],
            remote_addr: pair.mr[0].va,
            rkey: pair.mr[0].key,
            ..Send::default()
        };
        let driver = &mut faults.world.hosts[1].driver;
        driver.post_send(&mut pair.qp[1], &write);
        pairs.push(pair);
    }
    let before = counter(&mut faults.world, 1, Counter::page_fault_overflow);
    assert_eq!(before, COUNT);
    faults.world.run_for(10 * MS);
    let tries = counter(&mut faults.world, 1, Counter::page_fault_overflow) - before;
    // Every 100 µs, for those that are called in a turn.
    assert!((COUNT * 20..=COUNT * 100).contains(&tries), "{tries}");
    faults.pager.collect(&mut faults.world);
    assert_eq!(faults.pager.records, []);
    clear(&faults.world, 1);
    faults.run();
    for pair in &mut pairs {
        expect_cqe(&mut faults.world, 1, &mut pair.cq[1], cqe::SUCCESS);
    }
    assert_eq!(faults.pager.records.len() as u64, COUNT);
}

/// Completion events of host 0 that its queue shows.
fn notices(world: &mut World) -> usize {
    let host = &mut world.hosts[0];
    std::iter::from_fn(|| host.driver.poll_event(&mut host.eq)).count()
}

#[test]
fn outcomes_of_events() {
    for (outcome, at_once, later) in [
        (Outcome::Report, 1, 0),
        (Outcome::Drop, 0, 0),
        (Outcome::Delay(Nanos::from_millis(2)), 0, 1),
        (Outcome::Duplicate, 2, 0),
        (Outcome::Overrun, 0, 0),
    ] {
        let (mut world, mut pair) = pair();
        let filter = Filter {
            code: Some(event::COMPLETION.into()),
            object: Some(pair.cq[0].cqn),
            ..Filter::default()
        };
        let injection = once(Point::Event, outcome);
        add(
            &world,
            0,
            Injection {
                filter,
                ..injection
            },
        );
        let host = &mut world.hosts[0];
        host.driver.arm_cq(&pair.cq[0], false);
        host.driver.arm_eq(&host.eq);
        world.take_interrupts(0);
        world.post_write(&mut pair, 8);
        world.run_for(10 * US);
        assert_eq!(notices(&mut world), at_once, "{outcome:?}");
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        let interrupts = world.take_interrupts(0);
        match outcome {
            Outcome::Overrun => assert!(!world.with_nic(0, |nic| nic.is_running())),
            _ => assert_eq!(interrupts.len(), at_once.min(1), "{outcome:?}"),
        }
        world.run_for(5 * MS);
        assert_eq!(notices(&mut world), later, "{outcome:?}");
        assert_eq!(world.take_interrupts(0).len(), later, "{outcome:?}");
        assert_eq!(effects(&world, 0), [(7, Point::Event)], "{outcome:?}");
    }
}

/// Events that are late or doubled and find no room wait once for each CQ, as all do.
#[test]
fn late_completion_events_wait_for_room_once() {
    let (mut world, mut pair) = pair();
    let filter = Filter {
        code: Some(event::COMPLETION.into()),
        ..Filter::default()
    };
    for (id, outcome) in [
        (1, Outcome::Duplicate),
        (2, Outcome::Delay(Nanos::from_millis(1))),
    ] {
        let injection = Injection {
            id,
            filter,
            every: 2,
            skip: u64::from(id) - 1,
            ..each(Point::Event, outcome)
        };
        add(&world, 0, injection);
    }
    // The driver reads no events.
    for _ in 0..2000 {
        world.hosts[0].driver.arm_cq(&pair.cq[0], false);
        world.post_write(&mut pair, 8);
        world.run_for(20 * US);
        world.completions(0, &mut pair.cq[0]);
    }
    world.run();
    assert_eq!(world.with_nic(0, |nic| nic.waiting_notices()), 1);
    assert!(world.with_nic(0, |nic| nic.is_running()));
}

#[test]
fn outcomes_of_admin_commands() {
    let refused = Error::Refused(Status::NoResources);
    for (outcome, first, then) in [
        (Outcome::Report, Ok(()), Ok(())),
        (Outcome::Drop, Err(Error::Silent), Err(Error::Silent)),
        (Outcome::Delay(Nanos::from_millis(3)), Ok(()), Ok(())),
        (
            Outcome::Fail(Status::NoResources as u16),
            Err(refused),
            Ok(()),
        ),
    ] {
        let (mut world, _) = pair();
        let pds = world.with_nic(0, |nic| nic.object_counts().pds);
        let filter = Filter {
            code: Some(faultline_abi::admin::ALLOC_PD),
            ..Filter::default()
        };
        let injection = once(Point::AdminCommand, outcome);
        add(
            &world,
            0,
            Injection {
                filter,
                ..injection
            },
        );
        let begin = world.now();
        let driver = &mut world.hosts[0].driver;
        assert_eq!(driver.alloc_pd().map(drop), first, "{outcome:?}");
        let took = world.now() - begin;
        if let Outcome::Delay(by) = outcome {
            assert!((by.0..by.0 + MS).contains(&took), "{took}");
        }
        let driver = &mut world.hosts[0].driver;
        assert_eq!(driver.alloc_pd().map(drop), then, "{outcome:?}");
        let done = [first, then].iter().filter(|result| result.is_ok()).count();
        let now = world.with_nic(0, |nic| nic.object_counts().pds);
        assert_eq!(now - pds, done, "{outcome:?}");
        assert_eq!(
            effects(&world, 0),
            [(7, Point::AdminCommand)],
            "{outcome:?}"
        );
    }
}

/// A hanging queue hangs until a reset, even if the injection is removed.
#[test]
fn a_dropped_command_stops_its_queue_until_a_reset() {
    let (mut world, _) = pair();
    add(&world, 0, once(Point::AdminCommand, Outcome::Drop));
    let driver = &mut world.hosts[0].driver;
    assert_eq!(driver.alloc_pd(), Err(Error::Silent));
    clear(&world, 0);
    let driver = &mut world.hosts[0].driver;
    assert_eq!(driver.alloc_pd(), Err(Error::Silent));
    world.operate(0, |nic, now, _| {
        assert_eq!(nic.next_deadline(), None);
        nic.reset(now);
    });
    let bus = world.hosts[0].driver.bus.clone();
    let mut again = faultline_simulation::Driver::new(bus).unwrap();
    again.alloc_pd().unwrap();
}

fn invalidate(key: u32, page: u64) -> TqCmd {
    TqCmd {
        opcode: INVALIDATE,
        key: U32::new(key),
        iova: U64::new(VA + page * PAGE),
        count: U64::new(PAGE),
        ..TqCmd::default()
    }
}

#[test]
fn outcomes_of_translation_commands() {
    let refused = Error::Refused(Status::BadRange);
    for (outcome, first, then) in [
        (Outcome::Report, Ok(1), Ok(1)),
        (Outcome::Drop, Err(Error::Silent), Err(Error::Silent)),
        (Outcome::Delay(Nanos::from_millis(3)), Ok(1), Ok(1)),
        (Outcome::Fail(Status::BadRange as u16), Err(refused), Ok(1)),
    ] {
        let mut faults = Faults::new(6);
        for page in [3, 4] {
            faults.write(page);
            faults.run();
        }
        let key = faults.pager.regions[0].key;
        let filter = Filter {
            code: Some(INVALIDATE.into()),
            key: Some(key),
            ..Filter::default()
        };
        let injection = once(Point::TranslationCommand, outcome);
        add(
            &faults.world,
            1,
            Injection {
                filter,
                ..injection
            },
        );
        let begin = faults.world.now();
        let driver = &mut faults.world.hosts[1].driver;
        assert_eq!(driver.translate(&invalidate(key, 3)), first, "{outcome:?}");
        let took = faults.world.now() - begin;
        if let Outcome::Delay(by) = outcome {
            assert!((by.0..by.0 + MS).contains(&took), "{took}");
        }
        let driver = &mut faults.world.hosts[1].driver;
        assert_eq!(driver.translate(&invalidate(key, 4)), then, "{outcome:?}");
        let told = effects(&faults.world, 1);
        assert_eq!(told, [(7, Point::TranslationCommand)], "{outcome:?}");
    }
}

/// Commands behind a delayed one wait with it, and each passes the point once.
#[test]
fn commands_keep_their_order() {
    let mut faults = Faults::new(6);
    let key = faults.pager.regions[0].key;
    let delay = Outcome::Delay(Nanos::from_millis(1));
    let each = each(Point::TranslationCommand, delay);
    add(&faults.world, 1, Injection { times: 3, ..each });
    let driver = &mut faults.world.hosts[1].driver;
    let commands: Vec<_> = (0..5).map(|page| invalidate(key, page)).collect();
    let done = driver.translate_all(&commands).unwrap();
    assert_eq!(done.first(), Some(&0));
    assert!(faults.world.now() >= 3 * MS);
    faults.world.with_nic(1, |nic| {
        let used = nic.injections()[0].clone();
        assert_eq!((used.matches, used.effects), (3, 3));
    });
}

#[test]
fn outcomes_of_fault_answers() {
    let well = cqe::SUCCESS;
    for (outcome, status, expired, errors) in [
        (Outcome::Report, well, 0, 0),
        // The page is there, so the request succeeds when it is sent again. The fault stays until its timeout.
        (Outcome::Drop, well, 1, 0),
        (Outcome::Delay(Nanos::from_millis(2)), well, 0, 0),
        (Outcome::Duplicate, well, 0, 1),
        (Outcome::Corrupt, well, 1, 1),
        (Outcome::Fail(0), cqe::REM_ACCESS_ERR, 0, 0),
    ] {
        let mut faults = Faults::new(6);
        let filter = Filter {
            qpn: Some(faults.pair.qp[1].qpn),
            key: Some(faults.pager.regions[0].key),
            va: Some((VA + 3 * PAGE, VA + 4 * PAGE - 1)),
            code: Some(Status::Ok as u16),
            ..Filter::default()
        };
        let injection = once(Point::FaultAnswer, outcome);
        add(
            &faults.world,
            1,
            Injection {
                filter,
                ..injection
            },
        );
        let before = counter(&mut faults.world, 1, Counter::command_errors);
        faults.write(3);
        faults.run();
        assert_eq!(faults.result(), (vec![status], vec![3]), "{outcome:?}");
        if status == well {
            // A fault that fails after its request was carried out does not end the connection.
            faults.write(3);
            faults.run();
            assert_eq!(faults.result(), (vec![well], vec![3]), "{outcome:?}");
        }
        let all = diagnostics(&faults.world, 1);
        let count = |is: fn(&Diagnostic) -> bool| all.iter().filter(|d| is(d)).count();
        assert_eq!(
            count(|d| matches!(d, Diagnostic::Injected { id: 7, .. })),
            1,
            "{outcome:?}"
        );
        let timeouts = count(|d| matches!(d, Diagnostic::FaultExpired { .. }));
        assert_eq!(timeouts, expired, "{outcome:?}");
        let failed = count(|d| matches!(d, Diagnostic::FaultFailed { .. }));
        assert_eq!(failed, usize::from(status != well), "{outcome:?}");
        let now = counter(&mut faults.world, 1, Counter::command_errors);
        assert_eq!(now - before, errors, "{outcome:?}");
        let driver = &mut faults.world.hosts[1].driver;
        let resume = TqCmd {
            opcode: RESUME,
            token: faults.pager.records[0].token,
            ..TqCmd::default()
        };
        let refused = Err(Error::Refused(Status::BadToken));
        assert_eq!(driver.translate(&resume), refused, "the fault has ended");
    }
}

/// A page-table look-up of one key takes long; that of another does not.
#[test]
fn a_lookup_takes_long() {
    for met in [true, false] {
        let (mut world, mut pair) = pair();
        let mr = pair.mr[1];
        let filter = Filter {
            key: Some(if met { mr.key } else { pair.mr[0].key + 0x100 }),
            va: Some((mr.va, mr.va + 63)),
            qpn: Some(pair.qp[1].qpn),
            ..Filter::default()
        };
        let delay = Outcome::Delay(Nanos::from_millis(2));
        let injection = once(Point::Lookup, delay);
        add(
            &world,
            1,
            Injection {
                filter,
                ..injection
            },
        );
        world.post_write(&mut pair, 8);
        world.run_for(MS);
        let answered = world.completions(0, &mut pair.cq[0]).len();
        assert_eq!(answered, usize::from(!met));
        world.run();
        assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 1 - answered);
        assert_eq!(effects(&world, 1).len(), usize::from(met));
        // In the translation cache now.
        let begin = world.now();
        world.post_write(&mut pair, 8);
        world.run_for(MS);
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        assert!(world.now() - begin <= MS);
    }
}

#[test]
fn outcomes_of_requests() {
    let well = cqe::SUCCESS;
    for (outcome, status, event) in [
        (Outcome::Report, well, None),
        (Outcome::Drop, well, None),
        (Outcome::Fail(0), well, None),
        (
            Outcome::Fail(1),
            cqe::REM_INV_REQ_ERR,
            Some(event::QP_REQUEST_ERROR),
        ),
        (
            Outcome::Fail(2),
            cqe::REM_ACCESS_ERR,
            Some(event::QP_ACCESS_ERROR),
        ),
        (Outcome::Fail(3), cqe::REM_OP_ERR, Some(event::QP_FATAL)),
        (
            Outcome::Fail(4),
            cqe::REM_INV_REQ_ERR,
            Some(event::QP_REQUEST_ERROR),
        ),
        (Outcome::Fail(RNR_NAK), well, None),
    ] {
        for by_reference in [false, true] {
            let mut world = World::new(2, 1);
            let len = 40_000;
            let mut pair = world.connect(QPT_RC, len, |_| {});
            if by_reference {
                world.hand_over_by_reference();
            }
            for host in 0..2 {
                world.hosts[host].driver.async_events();
                diagnostics(&world, host);
            }
            let data: Vec<u8> = (0..len).map(|n| ((n * 7) >> 3) as u8).collect();
            world.hosts[0].driver.write_mr(&pair.mr[0], 0, &data);
            let filter = Filter {
                qpn: Some(pair.qp[1].qpn),
                ..Filter::default()
            };
            // A packet in the middle of the message.
            let injection = Injection {
                filter,
                skip: 5,
                ..once(Point::Request, outcome)
            };
            add(&world, 1, injection);
            world.post_write(&mut pair, len as u32);
            world.run();
            expect_cqe(&mut world, 0, &mut pair.cq[0], status);
            assert_eq!(effects(&world, 1), [(7, Point::Request)], "{outcome:?}");
            let qpn = pair.qp[1].qpn;
            let events = world.hosts[1].driver.async_events();
            // The first packet of the connection has raised COMM_ESTABLISHED, unless it is in RTS.
            let found: Vec<_> = events.iter().filter(|(_, object)| *object == qpn).collect();
            let expected = event.map(|kind| (kind, qpn));
            assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{outcome:?}");
            if status == well {
                let arrived = world.hosts[1].driver.read_mr(&pair.mr[1], 0, len as usize);
                assert_eq!(arrived, data);
            }
            let naks = counter(&mut world, 1, Counter::rnr_nak_sent);
            assert_eq!(naks, u64::from(outcome == Outcome::Fail(RNR_NAK)));
        }
    }
}

/// A request is selected by its key, address and opcode.
#[test]
fn a_filter_selects_a_request() {
    let (mut world, mut pair) = pair();
    let mr = pair.mr[1];
    let filter = Filter {
        key: Some(mr.key),
        va: Some((mr.va, mr.va)),
        code: Some(faultline_wire::Opcode::RcWriteOnly.to_u8().into()),
        ..Filter::default()
    };
    let injection = once(Point::Request, Outcome::Fail(2));
    add(
        &world,
        1,
        Injection {
            filter,
            ..injection
        },
    );
    // No RETH: nothing to compare.
    world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 0, &[(mr.va, 64, mr.key)]);
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"x"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    world.post_write(&mut pair, 8);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_ACCESS_ERR);
}

#[test]
fn skip_every_and_times_select_the_effects() {
    let (mut world, mut pair) = pair();
    add(
        &world,
        0,
        Injection {
            skip: 2,
            every: 3,
            times: 2,
            ..each(Point::Completion, Outcome::Fail(cqe::GENERAL_ERR.into()))
        },
    );
    for _ in 0..12 {
        world.post_write(&mut pair, 8);
    }
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    let failed = found.iter().enumerate().filter(|(_, cqe)| cqe.status != 0);
    assert_eq!(failed.map(|(n, _)| n).collect::<Vec<_>>(), [2, 5]);
    world.with_nic(0, |nic| {
        let [used] = nic.injections() else { panic!() };
        // It is not compared any more when it is used up.
        assert_eq!((used.matches, used.effects), (6, 2));
    });
}

#[test]
fn the_same_seed_has_the_same_effects() {
    let failed = |seed| {
        let (mut world, mut pair) = pair();
        world.with_nic(0, |nic| nic.seed_injections(seed));
        add(
            &world,
            0,
            Injection {
                per_million: 300_000,
                ..each(Point::Completion, Outcome::Fail(cqe::GENERAL_ERR.into()))
            },
        );
        let mut failed = Vec::new();
        for n in 0..200 {
            world.post_write(&mut pair, 8);
            world.run();
            if world.completions(0, &mut pair.cq[0])[0].status != 0 {
                failed.push(n);
            }
        }
        failed
    };
    let first = failed(1);
    assert!((40..80).contains(&first.len()), "{first:?}");
    assert_eq!(failed(1), first);
    assert_ne!(failed(2), first);
}

/// The first that is due decides; reports decide nothing, and a filter selects.
#[test]
fn the_first_due_injection_decides() {
    let (mut world, mut pair) = pair();
    let qpn = pair.qp[0].qpn;
    let fail = |id, qpn, status: u8| Injection {
        id,
        filter: Filter {
            qpn: Some(qpn),
            ..Filter::default()
        },
        ..each(Point::Completion, Outcome::Fail(status.into()))
    };
    add(&world, 0, fail(1, qpn + 1, cqe::REM_INV_REQ_ERR));
    let report = Injection {
        id: 2,
        ..each(Point::Completion, Outcome::Report)
    };
    add(&world, 0, report);
    add(&world, 0, fail(3, qpn, cqe::REM_OP_ERR));
    add(&world, 0, fail(4, qpn, cqe::REM_ACCESS_ERR));
    add(&world, 0, Injection { id: 5, ..report });
    world.post_write(&mut pair, 8);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_OP_ERR);
    let told: Vec<_> = effects(&world, 0).into_iter().map(|(id, _)| id).collect();
    assert_eq!(told, [2, 3, 5]);
    let used = world.with_nic(0, |nic| {
        let used = nic.injections().iter();
        used.map(|used| (used.injection.id, used.matches, used.effects))
            .collect::<Vec<_>>()
    });
    assert_eq!(
        used,
        [(1, 0, 0), (2, 1, 1), (3, 1, 1), (4, 1, 0), (5, 1, 1)]
    );
    world.with_nic(0, |nic| {
        assert!(nic.remove_injection(3) && !nic.remove_injection(3));
    });
    world.post_write(&mut pair, 8);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_ACCESS_ERR);
}

/// The fill level of a CQ selects the completion before the queue is full.
#[test]
fn a_level_selects() {
    let (mut world, mut pair) = pair();
    add(
        &world,
        0,
        Injection {
            filter: Filter {
                min_level: Some(3),
                ..Filter::default()
            },
            ..each(Point::Completion, Outcome::Fail(cqe::GENERAL_ERR.into()))
        },
    );
    for _ in 0..4 {
        world.post_write(&mut pair, 8);
    }
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    let statuses: Vec<_> = found.iter().map(|cqe| cqe.status).collect();
    assert_eq!(statuses, [0, 0, 0, cqe::GENERAL_ERR]);
}

#[test]
fn wrong_injections_are_refused() {
    let (world, _) = pair();
    let add = |injection| world.with_nic(0, |nic| nic.add_injection(injection));
    let good = each(Point::Completion, Outcome::Drop);
    let (point, outcome) = (Point::Lookup, Outcome::Drop);
    assert_eq!(
        add(each(point, outcome)),
        Err(InjectionError::Outcome { point, outcome })
    );
    for never in [
        Injection { every: 0, ..good },
        Injection { times: 0, ..good },
        Injection {
            per_million: 0,
            ..good
        },
        Injection {
            per_million: ALWAYS + 1,
            ..good
        },
    ] {
        assert_eq!(add(never), Err(InjectionError::Never));
    }
    let filter = Filter {
        key: Some(1),
        ..Filter::default()
    };
    let (point, fact) = (Point::Completion, Fact::Key);
    assert_eq!(
        add(Injection { filter, ..good }),
        Err(InjectionError::Fact { point, fact })
    );
    let (first, last) = (2, 1);
    let filter = Filter {
        va: Some((first, last)),
        ..Filter::default()
    };
    let lookup = each(Point::Lookup, Outcome::Delay(Nanos(1)));
    assert_eq!(
        add(Injection { filter, ..lookup }),
        Err(InjectionError::Range { first, last })
    );
    for id in 0..MAX_INJECTIONS as u32 {
        assert_eq!(add(Injection { id, ..good }), Ok(()));
    }
    assert_eq!(
        add(Injection { id: 3, ..good }),
        Err(InjectionError::DuplicateId(3))
    );
    assert_eq!(add(Injection { id: 99, ..good }), Err(InjectionError::Full));
    clear(&world, 0);
    assert_eq!(add(Injection { id: 99, ..good }), Ok(()));
    for status in [0, 24, 0x100] {
        let (point, outcome) = (Point::Completion, Outcome::Fail(status));
        let wrong = Injection { outcome, ..good };
        assert_eq!(add(wrong), Err(InjectionError::Outcome { point, outcome }));
    }
}

/// Delayed effects are dropped at a reset of the device; the table stays.
#[test]
fn injections_survive_a_reset() {
    let (mut world, mut pair) = pair();
    let delay = Outcome::Delay(Nanos::from_millis(1));
    add(&world, 0, each(Point::Completion, delay));
    world.post_write(&mut pair, 8);
    world.run_for(10 * US);
    world.operate(0, |nic, now, _| {
        assert!(nic.next_deadline().is_some());
        nic.reset(now);
        assert_eq!(nic.next_deadline(), None);
        assert_eq!(nic.injections().len(), 1);
    });
    assert!(effects(&world, 0).contains(&(7, Point::Completion)));
    assert_eq!(world.with_nic(0, |nic| nic.object_counts().qps), 0);
}

/// The device is reset, and a new driver starts.
fn restart(world: &mut World, id: usize) {
    world.operate(id, |nic, now, _| nic.reset(now));
    let host = &mut world.hosts[id];
    let bus = host.driver.bus.clone();
    host.driver = faultline_simulation::Driver::new(bus).unwrap();
    let driver = &mut host.driver;
    driver.set_gid(0, host.gid, host.mac).unwrap();
    driver.set_netdev(host.mac, 9000, 0).unwrap();
    host.pd = driver.alloc_pd().unwrap();
    host.eq = driver.create_eq(0, 1, 10).unwrap();
}

/// A point is passed after a reset as before.
#[test]
fn injections_have_effects_after_a_reset() {
    for point in [Point::Lookup, Point::Completion, Point::Request] {
        let (mut world, _) = pair();
        add(&world, 1, once(point, Outcome::Report));
        for host in 0..2 {
            restart(&mut world, host);
        }
        let mut pair = world.connect(QPT_RC, 4096, |_| {});
        let mr = pair.mr[1];
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut pair.qp[1], 0, &[(mr.va, 64, mr.key)]);
        let send = Send {
            opcode: wr::WR_SEND,
            inline: Some(b"data"),
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
        assert_eq!(effects(&world, 1), [(7, point)]);
    }
}

/// A turn of the device for another reason does not shorten the delay of a command.
#[test]
fn a_delayed_command_waits_for_its_time() {
    let mut faults = Faults::new(6);
    let delay = Outcome::Delay(Nanos::from_millis(3));
    add(&faults.world, 1, once(Point::TranslationCommand, delay));
    // It is put off to the next turn that the queue pair is told of the end of this fault.
    let fail = Injection {
        id: 8,
        ..once(Point::FaultRecord, Outcome::Fail(0))
    };
    add(&faults.world, 1, fail);
    faults.write(3);
    let begin = faults.world.now();
    let key = faults.pager.regions[0].key;
    let driver = &mut faults.world.hosts[1].driver;
    driver.translate(&invalidate(key, 9)).unwrap();
    let all = effects(&faults.world, 1);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(faults.world.now() - begin >= 3 * MS);
}

/// The record of a fault that has ended is not written.
#[test]
fn a_late_record_of_a_fault_that_has_ended_is_dropped() {
    let mut faults = Faults::new(6);
    let delay = Outcome::Delay(Nanos::from_millis(80));
    add(&faults.world, 1, once(Point::FaultRecord, delay));
    faults.write(3);
    faults.run();
    assert!(faults.world.now() >= 80 * MS);
    assert_eq!(faults.result(), (vec![cqe::REM_ACCESS_ERR], vec![]));
}
