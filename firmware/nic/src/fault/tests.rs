//! Tests of the fault unit: faults, their places, time limits and tokens.

use super::*;
use crate::number::len32;

fn absent(va: u64, bytes: u32, write: bool) -> Absent {
    Absent {
        key: 7,
        va,
        named: va,
        bytes,
        write,
    }
}

const LIMIT: u32 = 16;

fn unit() -> FaultUnit {
    FaultUnit::new(LIMIT, 0xff)
}

fn source(qpn: u32, wait: WaitKind) -> FaultSource {
    FaultSource { qpn, wait }
}

fn insert(unit: &mut FaultUnit, qpn: u32, absent: &Absent) -> Token {
    unit.insert(Instant(0), source(qpn, WaitKind::Send), 1, absent)
}

/// Calls all queue pairs that must be called.
fn call_all(unit: &mut FaultUnit) -> Vec<u32> {
    let mut called = Vec::new();
    while unit.is_answering() {
        while unit.pop_answered().is_some() {}
        called.extend(unit.next_call().map(|call| call.qpn));
    }
    called
}

#[test]
fn a_miss_joins_a_fault_that_will_bring_its_page() {
    let mut unit = unit();
    let joined =
        |unit: &mut FaultUnit, absent: &Absent| unit.join(source(2, WaitKind::Request), absent);
    let read = insert(&mut unit, 1, &absent(0x1800, 0x1000, false));
    let write = insert(&mut unit, 1, &absent(0x8000, 1, true));
    assert_eq!(joined(&mut unit, &absent(0x2fff, 1, false)), Some(read));
    assert_eq!(joined(&mut unit, &absent(0x1000, 1, false)), Some(read));
    assert_eq!(joined(&mut unit, &absent(0x3000, 1, false)), None);
    assert_eq!(joined(&mut unit, &absent(0x2000, 1, true)), None);
    assert_eq!(joined(&mut unit, &absent(0x8fff, 1, false)), Some(write));
    assert_eq!(joined(&mut unit, &absent(0x8fff, 1, true)), Some(write));
    let other = Absent {
        key: 8,
        ..absent(0x8000, 1, false)
    };
    assert_eq!(joined(&mut unit, &other), None);
    assert!(unit.answer(write, true).is_some() && unit.answer(write, true).is_none());
    assert_eq!(joined(&mut unit, &absent(0x8fff, 1, true)), None);
    assert_ne!(insert(&mut unit, 1, &absent(0x8000, 1, true)), write);
    assert!(write.number() > read.number());
}

#[test]
fn a_read_joins_the_fault_of_a_write_to_its_page() {
    let mut unit = unit();
    let read = insert(&mut unit, 1, &absent(0x1000, 0x3000, false));
    let write = insert(&mut unit, 1, &absent(0x2000, 1, true));
    let at = |unit: &FaultUnit, va| {
        let index = unit.covering(&absent(va, 1, false))?;
        Some(unit.faults.get(index)?.token)
    };
    assert_eq!(at(&unit, 0x1000), Some(read));
    assert_eq!(at(&unit, 0x2000), Some(write));
    assert_eq!(at(&unit, 0x3000), Some(read));
}

#[test]
fn a_queue_pair_waits_once_and_is_forgotten() {
    let mut unit = unit();
    let token = insert(&mut unit, 5, &absent(0, 1, false));
    let other = source(9, WaitKind::Reply);
    let other = unit.insert(Instant(0), other, 1, &absent(0x5000, 1, false));
    for qpn in [3, 5, 3, 9, 5, 4] {
        let joined = unit.join(source(qpn, WaitKind::Send), &absent(0, 1, false));
        assert_eq!(joined, Some(token));
    }
    assert_eq!(unit.waits(), 5);
    unit.forget(9);
    unit.forget(77);
    assert_eq!(unit.waits(), 3);
    assert_eq!(unit.answer(token, true).unwrap().waiters, 3);
    assert_eq!(call_all(&mut unit), [5, 3, 4]);
    assert_eq!(unit.answer(other, true).unwrap().waiters, 0);
    assert_eq!(call_all(&mut unit), []);
    assert_eq!(unit.waits(), 0);
    assert_eq!(unit.free_places(), LIMIT as usize);
}

#[test]
fn tokens_are_never_used_twice() {
    let mut unit = unit();
    let mut last = Token::ROOM;
    for n in 0..1000 {
        let tokens = [0, 1, 2].map(|page| insert(&mut unit, 1, &absent(page * 0x1000, 1, true)));
        for token in tokens {
            assert!(token > last);
            last = token;
        }
        let [a, b, c] = tokens;
        for token in [b, [a, c][n % 2], [c, a][n % 2]] {
            assert!(unit.answer(token, true).is_some());
            assert!(unit.answer(token, true).is_none());
        }
        call_all(&mut unit);
    }
    assert!(unit.answer(Token::from_number(u64::MAX), true).is_none());
    assert!(unit.answer(Token::ROOM, true).is_none());
}

/// A queue pair that is destroyed after its fault was answered is not called, and later answers are handled.
#[test]
fn an_answer_does_not_wait_for_a_queue_pair_that_has_left() {
    let mut unit = unit();
    let first = insert(&mut unit, 1, &absent(0, 1, true));
    let second = insert(&mut unit, 2, &absent(0x1000, 1, true));
    assert!(unit.answer(first, true).is_some() && unit.answer(second, true).is_some());
    unit.forget(1);
    assert_eq!(call_all(&mut unit), [2]);
}

/// The ingress of the NIC may have stopped because there was no room, and continues at this token.
#[test]
fn the_token_of_an_answer_is_room_that_is_returned_after_the_call() {
    let mut unit = unit();
    unit.wait_for_room(Instant(0), 3, 1);
    assert!(unit.answer_next_for_room());
    assert_eq!(unit.pop_answered(), None);
    let call = unit.next_call().unwrap();
    assert_eq!(
        (call.qpn, call.token, call.repaired),
        (3, Token::ROOM, true)
    );
    assert!(unit.is_answering());
    assert_eq!(unit.pop_answered(), Some(Token::ROOM));
    assert!(!unit.is_answering() && unit.next_call().is_none());
}

fn cancel(unit: &mut FaultUnit, key: u32) {
    while unit.cancel_next(key).is_some() {}
}

#[test]
fn the_faults_of_a_key_are_cancelled() {
    let mut unit = unit();
    let of_key = |key: u32, page: u64| Absent {
        key,
        ..absent(page << PAGE_SHIFT, 1, page.is_multiple_of(2))
    };
    for (qpn, (key, page)) in [(6, 9), (7, 0), (7, 5), (8, 0), (7, 2)].iter().enumerate() {
        insert(&mut unit, len32(qpn), &of_key(*key, *page));
    }
    cancel(&mut unit, 7);
    assert_eq!(call_all(&mut unit), [1, 4, 2]);
    assert_eq!(unit.free_places(), LIMIT as usize - 2);
    assert_eq!(unit.age(Instant(7), None, 1), 7);
    cancel(&mut unit, 6);
    cancel(&mut unit, 8);
    cancel(&mut unit, 9);
    assert_eq!(call_all(&mut unit), [0, 3]);
    assert_eq!(unit.age(Instant(7), None, 1), 0);
    assert_eq!(unit.next_deadline(Nanos(1)), None);
}

#[test]
fn retries_become_rarer_the_longer_a_repair_takes() {
    use faultline_wire::aeth::rnr_timer_ns;
    let mut repair = RepairTime::default();
    let wait = |repair: RepairTime, age: u64| rnr_timer_ns(repair.rnr_timer(age));
    assert!((100_000..200_000).contains(&wait(repair, 0)));
    assert!((1_000_000..2_000_000).contains(&wait(repair, 1_000_000)));
    assert!(wait(repair, u64::MAX) <= 41_000_000);
    for _ in 0..100 {
        repair.learn(12_000);
    }
    assert!((10_000..30_000).contains(&wait(repair, 0)));
    // One page in ten with a delay of a minute does not delay the others.
    for n in 0..1000 {
        repair.learn(if n % 10 == 0 { 60_000_000_000 } else { 12_000 });
    }
    assert!((10_000..30_000).contains(&wait(repair, 0)));
    for _ in 0..100 {
        repair.learn(20_000_000);
    }
    assert!((10_000_000..41_000_000).contains(&wait(repair, 0)));
    for _ in 0..200 {
        repair.learn(0);
    }
    assert!(wait(repair, 0) < 20_000);
}
