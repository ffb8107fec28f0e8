//! The corners of the state machine (RFC 9293), of PAWS, SACK and ECN, as scripts.

use faultline_tcp::{Config, ConfigError, Instant, KeepAlive, Nanos};
use faultline_wire::Seq;

use crate::script::{Script, plain};

/// All options.
fn full() -> Config {
    Config {
        sack: true,
        timestamps: true,
        ecn: true,
        receive_window: 1 << 20,
        ..plain()
    }
}

#[test]
fn a_connection_opens_and_closes() {
    Script::active(plain()).run(
        "> S 0:1 mss 1000 ws 0 win 10000
         state SynSent
         < SA 0:1 ack 1 mss 500
         > A 1:1 ack 1 win 10000
         state Established
         send 700
         > A 1:501 ack 1
         > PA 501:701 ack 1
         < A 1:1 ack 701
         acked 700
         close
         > FA 701:702 ack 1
         state FinWait1
         < A 1:1 ack 702
         state FinWait2
         < FA 1:2 ack 702
         > A 702:702 ack 2
         state TimeWait
         +59999
         state TimeWait
         +2
         state Closed
         outcome Finished",
    );
}

#[test]
fn a_peer_opens_and_closes() {
    let mut script = Script::passive(plain());
    script.run(
        "< S 0:1 mss 700
         > SA 0:1 ack 1 mss 1000
         state SynReceived
         < A 1:1 ack 1
         state Established
         < PA 1:101 ack 1
         +40
         > A 1:1 ack 101
         < FA 101:102 ack 1
         > A 1:1 ack 102
         state CloseWait
         taken 100",
    );
    assert!(script.get().is_finished_by_peer());
    // The other direction stays open.
    script.run(
        "send 900
         > A 1:701 ack 102
         > PA 701:901 ack 102
         < A 102:102 ack 901
         close
         > FA 901:902 ack 102
         state LastAck
         < A 102:102 ack 902
         state Closed
         outcome Finished",
    );
}

#[test]
fn both_open_at_once() {
    Script::active(plain()).run(
        "> S 0:1
         < S 0:1 mss 1000
         > SA 0:1 ack 1
         state SynReceived
         < SA 0:1 ack 1
         > A 1:1 ack 1
         state Established
         < A 1:1 ack 1
         < PA 1:11 ack 1
         +40
         > A 1:1 ack 11",
    );
}

#[test]
fn both_close_at_once() {
    Script::established(plain()).run(
        "close
         > FA 1:2 ack 1
         < FA 1:2 ack 1
         > A 2:2 ack 2
         state Closing
         < A 2:2 ack 2
         state TimeWait
         < FA 1:2 ack 2
         > A 2:2 ack 2
         +60001
         outcome Finished",
    );
}

#[test]
fn a_fin_with_data_out_of_order_is_remembered() {
    Script::established(plain()).run(
        "< FA 501:1002 ack 1
         > A 1:1 ack 1
         state Established
         < A 1:501 ack 1
         > A 1:1 ack 1002
         state CloseWait
         taken 1000",
    );
}

#[test]
fn time_wait_begins_anew_with_each_fin() {
    Script::established(plain()).run(
        "close
         > FA 1:2 ack 1
         < FA 1:2 ack 2
         > A 2:2 ack 2
         +50000
         state TimeWait
         < FA 1:2 ack 2
         > A 2:2 ack 2
         +50000
         state TimeWait
         +10001
         outcome Finished",
    );
}

#[test]
fn a_lost_syn_is_repeated_and_given_up() {
    Script::active(Config {
        max_syn_retransmissions: 2,
        ..plain()
    })
    .run(
        "> S 0:1
         +999
         +1
         > S 0:1
         +2000
         > S 0:1
         +4000
         state Closed
         outcome TimedOut",
    );
}

#[test]
fn a_repeated_syn_is_answered_again() {
    Script::passive(plain()).run(
        "< S 0:1
         > SA 0:1 ack 1
         < S 0:1
         > SA 0:1 ack 1
         +1000
         > SA 0:1 ack 1
         < A 1:1 ack 1
         state Established",
    );
}

#[test]
fn close_before_the_handshake_is_over() {
    Script::passive(plain()).run(
        "< S 0:1
         > SA 0:1 ack 1
         close
         state FinWait1
         +1000
         > SA 0:1 ack 1
         < A 1:1 ack 1
         > FA 1:2 ack 1
         < A 1:1 ack 2
         state FinWait2",
    );
}

#[test]
fn wrong_answers_to_a_syn_are_refused() {
    Script::active(plain()).run(
        "> S 0:1
         < SA 0:1 ack 2
         > R 2:2
         < A 5:5 ack 0
         > R 0:0
         < R 0:0
         < RA 0:0 ack 7
         state SynSent
         < RA 0:0 ack 1
         outcome Refused",
    );
    Script::passive(plain()).run(
        "< S 0:1
         > SA 0:1 ack 1
         < A 1:1 ack 9
         > R 9:9
         < A 1:1 ack 0
         > R 0:0
         state SynReceived",
    );
}

#[test]
fn only_an_exact_reset_counts() {
    let mut script = Script::established(plain());
    script.run(
        "< R 2:2
         > A 1:1 ack 1
         < R 10000:10000
         > A 1:1 ack 1
         < R 10001:10001
         < R 0:0
         < R -5:-5
         state Established
         < R 1:1
         state Closed
         outcome Reset",
    );
}

#[test]
fn a_syn_in_the_window_is_challenged() {
    Script::established(plain()).run(
        "< S 1:2
         > A 1:1 ack 1
         < S 500:501
         > A 1:1 ack 1
         < SA 0:1 ack 1
         > A 1:1 ack 1
         state Established",
    );
}

#[test]
fn challenges_are_limited() {
    let mut script = Script::established(plain());
    for _ in 0..10 {
        script.run("< S 5:6\n> A 1:1 ack 1");
    }
    script.run("< S 5:6\n< R 3:3\n< A 1:1 ack 900\n+5000\n< S 5:6\n> A 1:1 ack 1");
}

#[test]
fn acknowledgments_of_the_far_past_and_the_future_are_ignored() {
    Script::established(plain()).run(
        "send 100
         > PA 1:101 ack 1
         < PA 1:11 ack 102
         > A 101:101 ack 1
         < PA 1:11 ack -30000
         > A 101:101 ack 1
         taken 0
         acked 0
         < PA 1:11 ack 101
         taken 10
         acked 100
         +40
         > A 101:101 ack 11
         < A 11:11 ack 50
         < PA 11:21 ack 50
         taken 20
         +40
         > A 101:101 ack 21",
    );
}

#[test]
fn every_second_segment_is_acknowledged() {
    Script::established(plain()).run(
        "< A 1:1001 ack 1
         +39
         +1
         > A 1:1 ack 1001
         < A 1001:2001 ack 1
         < A 2001:3001 ack 1
         > A 1:1 ack 3001
         < A 3001:4001 ack 1
         send 5
         > PA 1:6 ack 4001
         +100",
    );
}

#[test]
fn a_duplicate_is_acknowledged_at_once() {
    Script::established(plain()).run(
        "< A 1:1001 ack 1
         < A 1:1001 ack 1
         > A 1:1 ack 1001
         < A 501:1501 ack 1
         taken 1500
         +40
         > A 1:1 ack 1501",
    );
}

#[test]
fn data_beyond_the_window_is_not_taken() {
    let config = Config {
        receive_window: 1500,
        ..plain()
    };
    Script::established(config).run(
        "hold
         < A 1:1001 ack 1
         < A 1001:2001 ack 1
         > A 1:1 ack 1501 win 0
         < A 1501:2001 ack 1
         > A 1:1 ack 1501 win 0
         taken 0
         resume
         > A 1:1 ack 1501 win 1500
         taken 1500",
    );
}

#[test]
fn a_closed_window_is_probed() {
    Script::established(plain()).run(
        "< A 1:1 ack 1 win 0
         send 3000
         +200
         > A 1:2 ack 1
         < A 1:1 ack 1 win 0
         +400
         > A 1:2 ack 1
         < A 1:1 ack 1 win 0
         +800
         > A 1:2 ack 1
         < A 1:1 ack 1 win 1500
         > A 1:1001 ack 1
         < A 1:1 ack 1001 win 0
         acked 1000",
    );
}

#[test]
fn an_accepted_probe_is_acknowledged_data() {
    Script::established(plain()).run(
        "< A 1:1 ack 1 win 0
         send 10
         +200
         > A 1:2 ack 1
         < A 1:1 ack 2 win 100
         > PA 2:11 ack 1
         acked 1",
    );
}

#[test]
fn unanswered_probes_end_the_connection() {
    let config = Config {
        max_retransmissions: 2,
        ..plain()
    };
    Script::established(config).run(
        "< A 1:1 ack 1 win 0
         send 10
         +200
         > A 1:2 ack 1
         +400
         > A 1:2 ack 1
         < A 1:1 ack 1 win 0
         +800
         > A 1:2 ack 1
         +1600
         > A 1:2 ack 1
         +3200
         outcome TimedOut",
    );
}

#[test]
fn a_fin_waits_for_the_window_too() {
    Script::established(plain()).run(
        "< A 1:1 ack 1 win 0
         close
         +200
         > FA 1:2 ack 1
         < A 1:1 ack 2 win 0
         state FinWait2",
    );
}

#[test]
fn a_sliver_of_a_window_is_not_used() {
    Script::established(plain()).run(
        "send 5000
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > A 2001:3001 ack 1
         > A 3001:4001 ack 1
         > PA 4001:5001 ack 1
         < A 1:1 ack 5001 win 300
         send 2000
         +199
         +1
         > A 5001:5301 ack 1
         < A 1:1 ack 5301 win 10000
         > A 5301:6301 ack 1
         > PA 6301:7001 ack 1",
    );
}

#[test]
fn keep_alive_asks_and_gives_up() {
    let config = Config {
        keep_alive: Some(KeepAlive {
            idle: Nanos::from_millis(10_000),
            interval: Nanos::from_millis(1000),
            probes: 2,
        }),
        ..plain()
    };
    Script::established(config).run(
        "+9999
         +1
         > A 0:0 ack 1
         < A 1:1 ack 1
         +9999
         +1
         > A 0:0 ack 1
         +1000
         > A 0:0 ack 1
         +1000
         state Closed
         outcome TimedOut",
    );
}

#[test]
fn a_keep_alive_of_the_peer_is_answered() {
    Script::established(plain()).run(
        "< A 0:0 ack 1
         > A 1:1 ack 1
         < A 0:1 ack 1
         > A 1:1 ack 1
         taken 0",
    );
}

#[test]
fn the_timeout_doubles_and_the_window_falls_to_one_segment() {
    let config = Config {
        max_retransmissions: 3,
        ..plain()
    };
    Script::established(config).run(
        "send 2500
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > PA 2001:2501 ack 1
         cwnd 10000
         +200
         > A 1:1001 ack 1
         cwnd 1000
         +400
         > A 1:1001 ack 1
         +800
         > A 1:1001 ack 1
         < A 1:1 ack 1001
         > A 1001:2001 ack 1
         > PA 2001:2501 ack 1
         cwnd 2000
         < A 1:1 ack 2501
         acked 2500
         +100000
         send 1
         > PA 2501:2502 ack 1
         +50000
         > PA 2501:2502 ack 1
         > PA 2501:2502 ack 1
         > PA 2501:2502 ack 1
         outcome TimedOut",
    );
}

#[test]
fn an_acknowledgment_after_a_timeout_is_in_the_window_of_the_peer() {
    Script::established(plain()).run(
        "send 2000
         > A 1:1001 ack 1
         > PA 1001:2001 ack 1
         +200
         > A 1:1001 ack 1
         < A 1:1001 ack 1
         < A 1001:2001 ack 1
         > A 2001:2001 ack 2001
         abort
         > RA 2001:2001 ack 2001",
    );
    // Octets of a window probe may not have been accepted.
    Script::established(plain()).run(
        "< A 1:1 ack 1 win 0
         send 10
         +200
         > A 1:2 ack 1
         < A 1:1001 ack 1 win 0
         < A 1001:2001 ack 1 win 0
         > A 1:1 ack 2001",
    );
}

#[test]
fn duplicates_after_a_timeout_are_no_second_loss() {
    Script::established(plain()).run(
        "send 3000
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > PA 2001:3001 ack 1
         +200
         > A 1:1001 ack 1
         < A 1:1 ack 1
         > A 1001:2001 ack 1
         < A 1:1 ack 1
         > PA 2001:3001 ack 1
         < A 1:1 ack 1
         cwnd 1000",
    );
}

#[test]
fn three_duplicates_repair_a_loss() {
    let mut script = Script::established(plain());
    script.run(
        "send 6000
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > A 2001:3001 ack 1
         > A 3001:4001 ack 1
         > A 4001:5001 ack 1
         > PA 5001:6001 ack 1
         < A 1:1 ack 1
         < A 1:1 ack 1
         cwnd 10000
         < A 1:1 ack 1
         > A 1:1001 ack 1
         cwnd 3000
         < A 1:1 ack 1
         < A 1:1 ack 3001
         > A 3001:4001 ack 1
         send 1000
         > PA 6001:7001 ack 1
         < A 1:1 ack 6001
         cwnd 3000
         < A 1:1 ack 7001
         acked 7000",
    );
}

/// Opens a connection with all options. Its timestamp clock is at 100 at time 0.
pub(crate) fn with_options() -> Script {
    let mut script = Script::active(full());
    script.run(
        "> SEW 0:1 mss 1000 ws 5 sackok ts 100/0
         < SAE 0:1 ack 1 mss 1012 ws 3 sackok ts 7000/100
         > A 1:1 ack 1 ts 100/7000
         state Established",
    );
    script
}

#[test]
fn sack_repairs_several_losses_in_a_round_trip() {
    let mut script = with_options();
    assert_eq!(script.get().max_payload(), 988);
    script.record = 900;
    script.run(
        "send 8100
         > A 1:901 ack 1 ts 100/7000 ce
         > A 901:1801 ack 1 ts 100/7000 ce
         > A 1801:2701 ack 1 ts 100/7000 ce
         > A 2701:3601 ack 1 ts 100/7000 ce
         > A 3601:4501 ack 1 ts 100/7000 ce
         > A 4501:5401 ack 1 ts 100/7000 ce
         > A 5401:6301 ack 1 ts 100/7000 ce
         > A 6301:7201 ack 1 ts 100/7000 ce
         > PA 7201:8101 ack 1 ts 100/7000 ce
         < A 1:1 ack 1 ts 7001/100 sack 901-1801
         < A 1:1 ack 1 ts 7001/100 sack 2701-3601,901-1801
         < A 1:1 ack 1 ts 7001/100 sack 4501-5401,2701-3601,901-1801
         > A 1:901 ack 1 ts 100/7001
         < A 1:1 ack 1 ts 7001/100 sack 4501-8101,2701-3601,901-1801
         > A 1801:2701 ack 1 ts 100/7001
         > A 3601:4501 ack 1 ts 100/7001
         < A 1:1 ack 8101 ts 7001/100
         acked 8100",
    );
}

#[test]
fn sack_reports_the_newest_range_first() {
    with_options().run(
        "< A 101:201 ack 1 ts 7001/100
         > A 1:1 ack 1 ts 100/7000 sack 101-201
         < A 401:501 ack 1 ts 7001/100
         > A 1:1 ack 1 ts 100/7000 sack 401-501,101-201
         < A 201:301 ack 1 ts 7001/100
         > A 1:1 ack 1 ts 100/7000 sack 101-301,401-501",
    );
}

#[test]
fn a_full_set_of_ranges_takes_no_more() {
    let mut script = with_options();
    let mut before = String::new();
    for n in 0..9 {
        let (from, to) = (101 + 200 * n, 201 + 200 * n);
        let newest = format!("{from}-{to}");
        // The first two ranges follow the newest one; the ninth is not kept.
        let blocks = match n {
            0 => newest.clone(),
            1 => format!("{newest},101-201"),
            8 => before.clone(),
            _ => format!("{newest},101-201,301-401"),
        };
        before = blocks.clone();
        let step =
            format!("< A {from}:{to} ack 1 ts 7001/100\n> A 1:1 ack 1 ts 100/7000 sack {blocks}");
        script.run(&step);
        assert_eq!(script.owner.kept(), 100 * (n + 1).min(8));
    }
    // A part of a range that is known is kept in it.
    script.run(
        "< A 201:251 ack 1 ts 7001/100
         > A 1:1 ack 1 ts 100/7000 sack 101-251,301-401,501-601",
    );
    assert_eq!(script.owner.kept(), 850);
}

#[test]
fn segments_of_the_past_are_refused() {
    with_options().run(
        "< PA 1:11 ack 1 ts 7005/100
         +40
         > A 1:1 ack 11 ts 140/7005
         < PA 11:21 ack 1 ts 7004/100
         > A 1:1 ack 11 ts 140/7005
         taken 10
         < PA 11:21 ack 1
         taken 10
         < R 11:11 ts 1/1
         outcome Reset",
    );
}

#[test]
fn an_old_timestamp_is_believed_after_24_days() {
    let mut script = with_options();
    script.run("< PA 1:11 ack 1 ts 7005/100\n+40\n> A 1:1 ack 11 ts 140/7005");
    let days = 24 * 24 * 3600 * 1000 + 1;
    script.run(&format!("+{days}"));
    script.run("< PA 11:21 ack 1 ts 7004/100\ntaken 20");
    let clock = 140 + days + 40;
    script.run(&format!("+40\n> A 1:1 ack 21 ts {clock}/7004"));
}

#[test]
fn marks_are_echoed_until_the_peer_reacts() {
    with_options().run(
        "< A 1:901 ack 1 ts 7001/100 ce
         < A 901:1801 ack 1 ts 7001/100
         > AE 1:1 ack 1801 ts 100/7001
         < AW 1801:2701 ack 1 ts 7001/100
         +40
         > A 1:1 ack 2701 ts 140/7001",
    );
}

#[test]
fn an_echoed_mark_reduces_the_window_once() {
    let mut script = with_options();
    script.record = 900;
    script.run(
        "send 2700
         > A 1:901 ack 1 ts 100/7000 ce
         > A 901:1801 ack 1 ts 100/7000 ce
         > PA 1801:2701 ack 1 ts 100/7000 ce
         cwnd 9880
         < AE 1:1 ack 901 ts 7001/100
         cwnd 1976
         < AE 1:1 ack 1801 ts 7001/100
         < AE 1:1 ack 2701 ts 7001/100
         send 100
         > PAW 2701:2801 ack 1 ts 100/7001 ce
         < A 1:1 ack 2801 ts 7001/100
         send 100
         > PA 2801:2901 ack 1 ts 100/7001 ce",
    );
}

#[test]
fn a_smaller_path_mtu_sends_smaller_segments() {
    let mut script = Script::established(plain());
    script.run(
        "send 2000
         > A 1:1001 ack 1
         > PA 1001:2001 ack 1",
    );
    let (ours, now) = (Seq(0xffff_fe01), script.now);
    // A forged message quotes data that is not in flight.
    script.get().reduce_mss(700, Seq(5_000_000), now);
    script.run("cwnd 10000");
    script.get().reduce_mss(700, ours, now);
    script.run(
        "cwnd 10000
         > A 1:701 ack 1
         > A 701:1401 ack 1
         > PA 1401:2001 ack 1",
    );
    // Not below the floor.
    script.get().reduce_mss(68, ours, now);
    assert_eq!(script.get().max_payload(), 100);
}

/// Packets of the own interface become smaller: what is sent again too.
#[test]
fn a_smaller_mtu_of_the_interface_sends_smaller_segments() {
    let mut script = Script::established(plain());
    script.run(
        "send 1000
         > PA 1:1001 ack 1",
    );
    script.get().limit_mss(700);
    script.get().limit_mss(900);
    script.run(
        "send 1400
         > A 1001:1701 ack 1
         > PA 1701:2401 ack 1
         +200
         > A 1:701 ack 1",
    );
}

/// Data that has not been sent is replaced by other data, and by the end.
#[test]
fn data_that_was_not_sent_is_taken_back() {
    let mut script = Script::established(plain());
    script.run(
        "< A 1:1 ack 1 win 1500
         send 1500
         > A 1:1001 ack 1
         > PA 1001:1501 ack 1
         send 2000
         close
         state FinWait1",
    );
    let now = script.now;
    assert!(!script.get().retract(1499, now), "it was sent");
    assert!(!script.get().retract(3501, now), "there is no more");
    assert!(script.get().retract(1500, now));
    script.run(
        "state Established
         send 50
         close
         < A 1:1 ack 1501 win 1500
         > FPA 1501:1552 ack 1",
    );
    assert!(!script.get().retract(1550, now), "the end was sent");
    script.run("state FinWait1");
    // The peer closes first.
    let mut script = Script::established(plain());
    script.run(
        "< A 1:1 ack 1 win 0
         < FA 1:2 ack 1 win 0
         > A 1:1 ack 2
         send 10
         close
         state LastAck",
    );
    assert!(script.get().retract(0, now));
    script.run("state CloseWait");
}

#[test]
fn abort_sends_a_reset() {
    Script::established(plain()).run(
        "send 10
         > PA 1:11 ack 1
         abort
         > RA 11:11 ack 1
         outcome Aborted
         < A 1:1 ack 11
         +100000",
    );
}

#[test]
fn an_idle_connection_starts_slowly_again() {
    let mut script = Script::established(plain());
    let at = |n: u32| 1000 * n + 1;
    let sent = (0..10).map(|n| {
        let flags = if n == 9 { "PA" } else { "A" };
        format!("\n> {flags} {}:{} ack 1", at(n), at(n + 1))
    });
    let acks = (1..11).map(|n| format!("\n< A 1:1 ack {}", at(n)));
    let exchange: String = sent.chain(acks).collect();
    script.run(&format!("send 10000{exchange}"));
    script.run(
        "cwnd 14000
         +1000
         send 1
         > PA 10001:10002 ack 1
         cwnd 10000",
    );
}

#[test]
fn a_half_open_connection_is_reset_after_its_syn() {
    Script::passive(plain()).run(
        "< S 0:1
         > SA 0:1 ack 1
         abort
         > RA 1:1 ack 1
         outcome Aborted",
    );
}

#[test]
fn without_a_delay_each_segment_is_acknowledged() {
    let config = Config {
        delayed_ack: Nanos(0),
        ..plain()
    };
    Script::established(config).run(
        "< A 1:101 ack 1
         > A 1:1 ack 101
         < A 101:201 ack 1
         > A 1:1 ack 201",
    );
}

#[test]
fn an_acknowledgment_that_cannot_leave_wakes_nobody() {
    let mut script = Script::passive(plain());
    script.run("< S 0:1\n> SA 0:1 ack 1\n< S 5:6");
    assert_eq!(
        script.get().next_deadline(),
        Some(Instant(0) + Nanos::from_millis(1000))
    );
}

#[test]
fn a_window_that_no_field_can_state_is_refused() {
    let with = |receive_window| Config {
        receive_window,
        ..plain()
    };
    assert_eq!(with(1 << 30).check(), Ok(()));
    let too_large = (1 << 30) + 1;
    let error = ConfigError::ReceiveWindow(too_large);
    assert_eq!(with(too_large).check(), Err(error));
    assert!(error.to_string().contains("1073741825 octets is too large"));
}
