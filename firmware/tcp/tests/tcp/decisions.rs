//! Decisions of the owner about data: taken in parts, refused, held.

use faultline_tcp::Config;

use crate::script::{Script, plain};

fn sack() -> Script {
    let config = Config {
        sack: true,
        ..plain()
    };
    let mut script = Script::active(config);
    script.run("> S 0:1 sackok\n< SA 0:1 ack 1 mss 1000 sackok\n> A 1:1 ack 1");
    script
}

#[test]
fn a_refused_segment_is_lost_for_the_peer() {
    Script::established(plain()).run(
        "refuse
         < PA 1:501 ack 1
         +1000
         taken 0
         < A 501:1001 ack 1
         > A 1:1 ack 1
         < PA 1:501 ack 1
         > A 1:1 ack 1001
         taken 1000",
    );
}

#[test]
fn the_octets_before_a_refused_one_are_acknowledged() {
    Script::established(plain()).run(
        "take 200
         refuse
         < PA 1:501 ack 1
         taken 200
         +40
         > A 1:1 ack 201
         < PA 201:501 ack 1
         taken 500
         +40
         > A 1:1 ack 501",
    );
}

#[test]
fn octets_out_of_order_may_be_refused() {
    sack().run(
        "keep nothing
         < A 501:1001 ack 1
         > A 1:1 ack 1
         keep all
         < A 1001:1501 ack 1
         > A 1:1 ack 1 sack 1001-1501
         < A 1:501 ack 1
         > A 1:1 ack 501 sack 1001-1501
         taken 500
         < A 501:1001 ack 1
         > A 1:1 ack 1501
         taken 1500",
    );
}

#[test]
fn held_octets_close_the_window_and_resume_opens_it() {
    Script::established(plain()).run(
        "hold
         < A 1:4001 ack 1
         +40
         > A 1:1 ack 4001 win 6000
         taken 0
         < A 4001:8001 ack 1
         < A 8001:10001 ack 1
         > A 1:1 ack 10001 win 0
         < A 10001:10002 ack 1
         > A 1:1 ack 10001 win 0
         taken 0
         resume
         > A 1:1 ack 10001 win 10000
         taken 10000",
    );
}

#[test]
fn resume_may_hold_again() {
    Script::established(plain()).run(
        "hold
         < A 1:4001 ack 1
         +40
         > A 1:1 ack 4001 win 6000
         take 1500
         hold
         resume
         > A 1:1 ack 4001 win 7500
         taken 1500
         refuse
         resume
         taken 1500
         resume
         > A 1:1 ack 4001 win 10000
         taken 4000",
    );
}

#[test]
fn a_gap_before_held_octets_is_filled() {
    sack().run(
        "hold
         < A 1:101 ack 1
         < A 201:301 ack 1
         > A 1:1 ack 101 sack 201-301
         < A 101:201 ack 1
         > A 1:1 ack 301
         taken 0
         resume
         taken 300
         < FA 301:302 ack 1
         > A 1:1 ack 302
         state CloseWait",
    );
}

#[test]
fn a_fin_behind_held_octets_is_acknowledged_and_reported_later() {
    let mut script = Script::established(plain());
    script.run(
        "hold
         < FA 1:102 ack 1
         > A 1:1 ack 102
         state CloseWait",
    );
    assert!(script.get().is_held() && !script.get().is_finished_by_peer());
    script.run("resume\ntaken 100");
    assert!(!script.get().is_held() && script.get().is_finished_by_peer());
}

#[test]
fn held_octets_are_delivered_after_the_end_of_the_connection() {
    let mut script = Script::established(plain());
    script.run(
        "hold
         < FA 1:102 ack 1
         > A 1:1 ack 102
         close
         > FA 1:2 ack 102
         < A 102:102 ack 2
         state Closed
         outcome Finished
         taken 0",
    );
    assert!(script.get().is_held());
    script.run("resume\ntaken 100\n+100000");
    assert!(!script.get().is_held() && script.get().is_finished_by_peer());
}

#[test]
fn a_fin_of_a_refused_segment_is_lost_too() {
    Script::established(plain()).run(
        "refuse
         < FA 1:102 ack 1
         +1000
         < PA 1:101 ack 1
         +40
         > A 1:1 ack 101
         state Established
         < FA 101:102 ack 1
         > A 1:1 ack 102
         state CloseWait",
    );
}

#[test]
fn the_sender_of_a_refused_segment_retransmits_it_and_slows_down() {
    let mut sender = Script::established(plain());
    // The answers are those of the test above: nothing for the refused segment, duplicates for those after it.
    sender.run(
        "send 5000
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > A 2001:3001 ack 1
         > A 3001:4001 ack 1
         > PA 4001:5001 ack 1
         < A 1:1 ack 1
         < A 1:1 ack 1
         < A 1:1 ack 1
         > A 1:1001 ack 1
         cwnd 2500",
    );
}
