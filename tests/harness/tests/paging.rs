//! Page faults over the socket: interrupts, answers good and bad, resets, and memory that is taken under traffic.

use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_abi::qp::FAULT_POLICY_STALL;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::{Status, U64, cqe, event, regs};
use faultline_config::{Config, NicSettings, PollMode};
use faultline_harness::paging::{PAGE, Pager};
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes};
use faultline_harness::traffic::{Neighbours, exchange_anew, impatient};
use faultline_harness::{Choices, DriverError, QpType, Reset, Rng, SendWr, connect};

use crate::held_clock::HeldClock;

/// A fabric of two that page, and two that must not notice.
fn fabric(settings: NicSettings) -> Fabric {
    let config = Config {
        defaults: settings,
        ..Config::default()
    };
    Fabric::start_with(config, &["a", "b", "c", "d"]).unwrap()
}

#[track_caller]
fn refused(result: Result<impl std::fmt::Debug, DriverError>) -> Status {
    match result {
        Ok(value) => panic!("accepted: {value:?}"),
        Err(error) => match error.status() {
            Some(status) => status,
            None => panic!("{error}"),
        },
    }
}

#[test]
fn a_fault_interrupts_and_its_answer_moves_the_data() {
    for poll in [PollMode::Adaptive, PollMode::Never] {
        let fabric = Fabric::start(poll, &["a", "b"]).unwrap();
        let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
        let (mut qa, qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
        let mut pager = Pager::new(&b, 16).unwrap();
        a.buf.fill_pattern(0, 3 * PAGE, 5);
        // Pages 3 to 6, the first and the last in part.
        let sges = [a.mr.sge(0, 3 * PAGE)];
        let at = 3 * PAGE + 100;
        qa.post_send(&SendWr::write(&sges, pager.mr.remote(at)).signaled())
            .unwrap();
        let mut seen = Vec::new();
        while a.cq.poll().is_none() {
            let Some(record) = pager.eq.wait(Duration::from_millis(20)).unwrap() else {
                continue;
            };
            assert_eq!(record.kind, event::PAGE_FAULT);
            assert_eq!(record.object.get(), qb.number());
            assert_eq!(record.key.get(), pager.mr.remote(0).key);
            assert_eq!(record.fault_flags.get(), event::WRITE);
            seen.push(Pager::page_of(&record));
            pager.repair(&record).unwrap();
        }
        assert_eq!(seen, [3, 4, 5, 6], "{poll:?}");
        assert_eq!(pager.buf.pattern_mismatch(at, 3 * PAGE, 5), None);
        let counters = b.nic.counters().unwrap();
        assert_eq!(counters[Counter::page_faults], 4);
        assert_eq!(counters[Counter::page_faults_resumed], 4);
    }
}

#[test]
fn answers_to_nothing_are_refused() {
    let fabric = fabric(NicSettings::default());
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let (mut a, mut b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut pager = Pager::new(&b, 4).unwrap();
    let write = |at| SendWr::write_inline(b"unheard of", at).signaled();
    qa.post_send(&write(pager.mr.remote(0))).unwrap();
    let token = pager.record(LONG).unwrap().token.get();

    let mut rng = Rng::new(3);
    for wrong in (0..2000)
        .map(|_| rng.edgy())
        .filter(|wrong| *wrong != token)
    {
        assert_eq!(refused(pager.resume(wrong, Status::Ok)), Status::BadToken);
    }
    let end = pager.buf.len() as u64;
    for (iova, count) in [
        (Pager::VA - PAGE as u64, 1),
        (Pager::VA + end, 1),
        (Pager::VA, 5),
        (Pager::VA, u64::MAX),
        (Pager::VA, 1 << 52),
        (u64::MAX - 4095, 1),
        (0, 1),
    ] {
        let map = pager.mr.map(TqCmd {
            flags: tq::CONTIGUOUS,
            iova: U64::new(iova),
            count: U64::new(count),
            list: U64::new(pager.buf.dma(0) | tq::READ),
            page_shift: 12,
            ..TqCmd::default()
        });
        let status = refused(map);
        assert_eq!(status, Status::BadRange, "{count} pages at {iova:#x}");
    }
    assert!(a.cq.poll().is_none());
    // An error ends the request, and the token is used up.
    pager.resume(token, Status::BadParameter).unwrap();
    assert_eq!(a.completion().status, cqe::REM_ACCESS_ERR);
    assert_eq!(refused(pager.resume(token, Status::Ok)), Status::BadToken);
    exchange_anew(&mut a, &mut b, &mut rng);
    neighbours.finish();
}

#[test]
fn a_driver_that_never_answers_harms_only_waiting_queue_pairs() {
    let config = Config {
        defaults: NicSettings {
            fault_timeout_ms: Some(100),
            ..NicSettings::default()
        },
        ..Config::default()
    };
    let fabric = Fabric::start_controlled(config, &["a", "b", "c", "d"]).unwrap();
    let socket = fabric.control();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let (mut a, mut b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut pager = Pager::new(&b, 4).unwrap();
    let write = SendWr::write_inline(b"nobody home", pager.mr.remote(0)).signaled();
    let clock = HeldClock::hold(&socket);
    let token = clock.standing(|| {
        qa.post_send(&write).unwrap();
        let token = pager.record(LONG).unwrap().token.get();
        exchange_anew(&mut a, &mut b, &mut Rng::new(4));
        neighbours.unharmed();
        token
    });
    clock.advance(Duration::from_millis(99));
    assert!(a.cq.poll().is_none(), "before the time limit");
    clock.advance(Duration::from_millis(1));
    clock.release();
    assert_eq!(a.completion().status, cqe::REM_ACCESS_ERR);
    assert_eq!(refused(pager.resume(token, Status::Ok)), Status::BadToken);
    assert_eq!(b.nic.counters().unwrap()[Counter::page_fault_timeouts], 1);
    neighbours.finish();
}

/// A NIC that stops its ingress stops its senders, until a time limit that runs only while the device runs.
#[test]
fn a_nic_that_stops_others_and_then_stops_itself_releases_them() {
    let fabric = fabric(NicSettings {
        stall_timeout_ms: Some(60_000),
        ..NicSettings::default()
    });
    let a = fabric.node("a").unwrap();
    for how in ["bus mastering off", "fatal"] {
        let b = fabric.node("b").unwrap();
        let (mut qa, qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
        let mut pager = Pager::new(&b, 4).unwrap();
        qb.set_fault_policy(FAULT_POLICY_STALL).unwrap();
        let write = SendWr::write_inline(b"nobody home", pager.mr.remote(0)).signaled();
        qa.post_send(&write).unwrap();
        pager.record(LONG).unwrap();
        match how {
            "fatal" => {
                b.nic.take_back(b.nic.ram()).unwrap();
                assert!(b.nic.counters().is_err());
                let status = b.nic.read_reg(regs::STATUS).unwrap();
                assert_ne!(status & regs::FATAL, 0);
            }
            _ => b.nic.write_config(4, &2u16.to_le_bytes()).unwrap(),
        }
        let (mut c, mut d) = (fabric.node("c").unwrap(), fabric.node("d").unwrap());
        exchange_anew(&mut c, &mut d, &mut Rng::new(8));
        b.nic.hang_up();
    }
}

#[test]
fn a_reset_forgets_the_faults_that_are_awaited() {
    let fabric = fabric(NicSettings::default());
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let mut a = fabric.node("a").unwrap();
    let mut b = fabric.node("b").unwrap();
    let mut rng = Rng::new(6);
    for how in [
        Reset::Function,
        Reset::Device,
        Reset::Register,
        Reset::Disable,
    ] {
        let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
        connect(&qa, &qb, &impatient()).unwrap();
        let mut pager = Pager::new(&b, 4).unwrap();
        let write = SendWr::write_inline(b"forget it", pager.mr.remote(0)).signaled();
        qa.post_send(&write).unwrap();
        let token = pager.record(LONG).unwrap().token.get();
        b.nic.reset(how).unwrap();
        assert_eq!(a.completion().status, cqe::RETRY_EXC_ERR, "{how:?}");
        let nic = b.nic.clone();
        drop((qb, pager, b));
        nic.start().unwrap();
        b = Node::new(nic).unwrap();
        let pager = Pager::new(&b, 4).unwrap();
        let status = refused(pager.resume(token, Status::Ok));
        assert_eq!(status, Status::BadToken, "{how:?}");
        assert_eq!(b.nic.counters().unwrap()[Counter::page_faults], 0);
        exchange_anew(&mut a, &mut b, &mut rng);
    }
    neighbours.finish();
}

/// MMU notifiers rely on this: after the answer to INVALIDATE the device does not access the page.
#[test]
fn a_page_that_was_taken_is_not_touched_again() {
    const PAGES: usize = 8;
    const ROUNDS: usize = 3000;
    const DEPTH: usize = 32;
    let fabric = fabric(NicSettings::default());
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    // Twice as many frames as pages: each page moves between two of them.
    let mut pager = Pager::new(&b, 2 * PAGES).unwrap();
    let mut at = [0usize; PAGES];
    let mut rng = Rng::new(7);
    let (mut under_way, mut written, mut taken) = (0, 0u64, 0);
    for round in 0..ROUNDS {
        while under_way < DEPTH {
            let sges = [a.mr.sge(rng.below(1000) as usize, 3000)];
            let to = rng.below((PAGES * PAGE - 3000) as u64) as usize;
            qa.post_send(&SendWr::write(&sges, pager.mr.remote(to)).signaled())
                .unwrap();
            under_way += 1;
        }
        while let Some(record) = pager.eq.poll() {
            let page = Pager::page_of(&record);
            pager.map(page, at[page] * PAGES + page).unwrap();
            pager.resume(record.token.get(), Status::Ok).unwrap();
        }
        let page = rng.below(PAGES as u64) as usize;
        pager.take(page).unwrap();
        let frame = (at[page] * PAGES + page) * PAGE;
        pager.buf.fill_pattern(frame, PAGE, round as u64);
        at[page] = 1 - at[page];
        taken += 1;
        for _ in 0..1 + rng.below(8) {
            while let Some(wc) = a.cq.poll() {
                assert!(wc.is_ok(), "{wc:?}");
                qa.retire(&wc);
                under_way -= 1;
                written += 1;
            }
            std::thread::yield_now();
        }
        assert_eq!(
            pager.buf.pattern_mismatch(frame, PAGE, round as u64),
            None,
            "the device wrote to page {page} after it was taken, in round {round}"
        );
        if round % 64 == 0 {
            pager.eq.arm().unwrap();
        }
    }
    // All that is still waited for comes through.
    while under_way > 0 {
        while let Some(record) = pager.eq.poll() {
            let page = Pager::page_of(&record);
            pager.map(page, at[page] * PAGES + page).unwrap();
            pager.resume(record.token.get(), Status::Ok).unwrap();
        }
        if let Some(wc) = a.cq.poll_for(Duration::from_millis(1)) {
            assert!(wc.is_ok(), "{wc:?}");
            qa.retire(&wc);
            under_way -= 1;
            written += 1;
        }
    }
    println!("{taken} pages taken, {written} WRITEs");
    assert!(written > ROUNDS as u64 / 10, "{written} WRITEs only");
}
