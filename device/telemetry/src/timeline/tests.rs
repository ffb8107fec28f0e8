use proptest::prelude::*;

use super::*;
use crate::samples::{any_record, trace, write_to_absent_page};

/// Slices of a track as (name, begin, end); fails if they do not nest.
fn slices(timeline: &Timeline, kind: TrackKind) -> Vec<(String, u64, u64)> {
    let mut slices = Vec::new();
    for (number, track) in timeline.tracks.iter().enumerate() {
        let mut open = Vec::new();
        for event in timeline.events.iter().filter(|e| e.track == number) {
            match event.phase {
                Phase::Begin => open.push((event.name.to_string(), event.at)),
                Phase::End => {
                    let (name, from) = open.pop().expect("a slice ends that has begun");
                    if track.kind == Some(kind) {
                        slices.push((name, from, event.at));
                    }
                }
                Phase::Instant => {}
            }
        }
        assert!(open.is_empty(), "{}: {open:?}", track.name);
    }
    slices
}

/// Names of the events of each arrow, in their order, with their tracks.
fn flows(timeline: &Timeline) -> Vec<Vec<String>> {
    let mut flows: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for event in &timeline.events {
        for flow in &event.flows {
            let track = &timeline.tracks[event.track].name;
            let names = flows.entry(*flow).or_default();
            names.push(format!("{track}: {}", event.name));
        }
    }
    flows.into_values().collect()
}

#[test]
fn a_fault_is_a_slice_with_its_stages() {
    let timeline = Timeline::new(&trace(write_to_absent_page(1000, 7, 5)));
    let slices = slices(&timeline, TrackKind::Fault(0, 0));
    let expected = [
        ("record", 1_000, 16_000),
        ("interrupt", 16_000, 66_000),
        ("wait", 66_000, 76_000),
        ("map", 76_000, 96_000),
        ("post", 96_000, 101_000),
        ("data", 101_000, 109_000),
        ("fault", 1_000, 109_000),
    ];
    assert_eq!(
        slices,
        expected.map(|(name, from, to)| (name.to_owned(), from, to))
    );
}

#[test]
fn an_arrow_leads_from_a_fault_to_the_repeated_packet() {
    let timeline = Timeline::new(&trace(write_to_absent_page(1000, 7, 5)));
    let flows = flows(&timeline);
    let expected = [
        "Page faults: fault",
        "QP 17 (ib_write_bw 4711) RNR waits: RNR wait",
        "QP 18: rnr_nak_sent",
        "QP 18: rnr_nak",
        "QP 17 (ib_write_bw 4711): rx rnr_nak",
        "QP 17 (ib_write_bw 4711): rnr_nak_received",
        "QP 17 (ib_write_bw 4711): rc_write_only",
    ];
    assert!(flows.iter().any(|flow| flow == &expected), "{flows:#?}");
    let waits = slices(&timeline, TrackKind::QueuePairWaits(17));
    assert_eq!(waits, [("RNR wait".to_owned(), 1_000, 109_000)]);
}

/// The fault of a PSN that comes again is not that of the retry before.
#[test]
fn a_retry_belongs_to_the_fault_before_it() {
    let retried = |at| {
        let cause = faultline_nic::RetryCause::Timeout;
        let retried = Diagnostic::Retried {
            qpn: 17,
            psn: 5,
            cause,
        };
        crate::samples::nic(at, 0, retried)
    };
    let mut records = write_to_absent_page(1000, 7, 5);
    records.push(retried(200_000));
    records.extend(write_to_absent_page(500_000, 8, 5));
    records.push(retried(700_000));
    let timeline = Timeline::new(&trace(records));
    let of = |at: u64, name: &str| {
        let events = timeline.events.iter();
        let mut events = events.filter(|event| event.at == at && event.name == name);
        events.next().unwrap()
    };
    for (fault, retry) in [(1000, 200_000), (500_000, 700_000)] {
        let arrows = &of(retry, "retried").flows;
        assert_eq!(arrows.len(), 1);
        assert!(of(fault, "fault").flows.contains(&arrows[0]), "{fault}");
    }
}

#[test]
fn a_gap_is_a_slice_of_its_nic() {
    let mut trace = trace(write_to_absent_page(1000, 7, 5));
    let gap = |after, before| crate::trace::Gap {
        nic: 1,
        after,
        before,
        lost: 9,
    };
    trace.header.gaps = vec![
        gap(None, Some(Instant(1000))),
        gap(Some(Instant(1000)), Some(Instant(101_000))),
        gap(Some(Instant(109_000)), None),
    ];
    let timeline = Timeline::new(&trace);
    let missing = |from, to| ("records are missing".to_owned(), from, to);
    assert_eq!(
        slices(&timeline, TrackKind::Gaps),
        [missing(1000, 101_000), missing(109_000, 109_000)]
    );
    let older = |event: &&Event| event.name == "older records are missing";
    assert_eq!(timeline.events.iter().find(older).unwrap().at, 1000);
}

#[test]
fn an_arrow_has_two_ends() {
    // The frame of the RNR NAK, and its effects, are not in the trace.
    let mut records = write_to_absent_page(1000, 7, 5);
    records.retain(|record| matches!(record.event, TraceEvent::Nic(Diagnostic::RnrNakSent { .. })));
    assert_eq!(records.len(), 1);
    assert_eq!(
        flows(&Timeline::new(&trace(records))),
        Vec::<Vec<String>>::new()
    );
}

#[test]
fn each_access_that_a_fault_has_delayed_has_a_slice() {
    let mut records = write_to_absent_page(1000, 7, 5);
    records.push(crate::samples::nic(
        120_000,
        1,
        Diagnostic::FaultDone {
            token: 7,
            qpn: 20,
            resumed: Instant(101_000),
            raised: Instant(1000),
        },
    ));
    let timeline = Timeline::new(&trace(records));
    assert_eq!(
        slices(&timeline, TrackKind::Fault(0, 1)),
        [
            ("data".to_owned(), 101_000, 120_000),
            ("fault access".to_owned(), 1_000, 120_000)
        ]
    );
}

#[test]
fn a_reused_token_is_another_fault() {
    let mut records = write_to_absent_page(1000, 7, 5);
    records.extend(write_to_absent_page(500_000, 7, 6));
    let timeline = Timeline::new(&trace(records));
    assert_eq!(slices(&timeline, TrackKind::Fault(1, 0)).len(), 7);
}

#[test]
fn a_fault_without_its_beginning_is_shown_from_when_it_was_raised() {
    let mut records = write_to_absent_page(1000, 7, 5);
    records.drain(..8);
    let timeline = Timeline::new(&trace(records));
    let slices = slices(&timeline, TrackKind::Fault(0, 0));
    assert_eq!(slices.last(), Some(&("fault".to_owned(), 1_000, 109_000)));
}

#[test]
fn states_of_a_queue_pair_follow_each_other() {
    use faultline_nic::State::{Err, Init, Reset};
    let state = |at, from, to| {
        let cause = faultline_nic::StateCause::Command;
        let state = Diagnostic::QpState {
            qpn: 3,
            from,
            to,
            cause,
        };
        crate::samples::nic(at, 0, state)
    };
    let records = vec![
        state(10, Reset, Init),
        state(30, Init, Err),
        state(50, Err, Reset),
    ];
    let timeline = Timeline::new(&trace(records));
    let slices = slices(&timeline, TrackKind::QueuePairState(3));
    let expected = [("INIT", 10, 30), ("ERR", 30, 50), ("RESET", 50, 50)];
    assert_eq!(slices, expected.map(|(name, a, b)| (name.to_owned(), a, b)));
}

proptest! {
    #[test]
    fn any_records_become_slices_that_nest(records in prop::collection::vec(any_record(), 0..200)) {
        let count = records.len();
        let timeline = Timeline::new(&trace(records));
        slices(&timeline, TrackKind::Device);
        prop_assert!(timeline.events.is_sorted_by_key(|event| event.at));
        // A fault has fourteen events at most, and each record at most one fault; and a few of its own.
        prop_assert!(timeline.events.len() <= 18 * count);
        let flows: usize = timeline.events.iter().map(|event| event.flows.len()).sum();
        prop_assert!(flows <= 8 * count);
    }
}
