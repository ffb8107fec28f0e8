//! Segments of third parties that know the ends of a connection, and of peers that want more than their share.

use faultline_wire::Seq;

use crate::corners::with_options;
use crate::script::{Script, plain};

#[test]
fn the_timestamp_of_a_forged_segment_is_not_remembered() {
    with_options().run(
        "< A 1:1 ack 900000 ts 1000007000/100
         > A 1:1 ack 1 ts 100/7000
         < S 1:2 ts 1000007000/100
         > A 1:1 ack 1 ts 100/7000
         < R 0:5 ts 1000007000/100
         > A 1:1 ack 1 ts 100/7000
         < PA 1:11 ack 1 ts 7001/100
         taken 10
         +40
         > A 1:1 ack 11 ts 140/7001",
    );
}

#[test]
fn forged_segments_do_not_silence_the_answers_to_keep_alives() {
    let mut script = Script::established(plain());
    for _ in 0..10 {
        script.run("< S 5:6\n> A 1:1 ack 1");
    }
    script.run("< S 5:6\n< A 0:0 ack 9\n< A 0:0");
    // They have a limit of their own.
    for _ in 0..10 {
        script.run("< A 0:0 ack 1\n> A 1:1 ack 1");
    }
    script.run("< A 0:0 ack 1\n+5000\n< A 0:0 ack 1\n> A 1:1 ack 1");
}

#[test]
fn only_the_last_segment_of_the_peer_extends_time_wait() {
    Script::established(plain()).run(
        "< A 1:101 ack 1
         close
         > FA 1:2 ack 101
         < FA 101:102 ack 2
         > A 2:2 ack 102
         +50000
         < FA 50:51 ack 2
         > A 2:2 ack 102
         < FA 101:102 ack 1
         > A 2:2 ack 102
         +10001
         outcome Finished",
    );
}

/// Each duplicate stands for a segment that has left the network, so there are no more than segments in flight (RFC 5681 section 3.2).
#[test]
fn more_duplicates_than_segments_permit_no_burst() {
    let mut script = Script::established(plain());
    script.run(
        "send 4000
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > A 2001:3001 ack 1
         > PA 3001:4001 ack 1
         < A 1:1 ack 1
         < A 1:1 ack 1
         < A 1:1 ack 1
         > A 1:1001 ack 1",
    );
    for _ in 0..20 {
        script.run("< A 1:1 ack 1");
    }
    script.run(
        "send 16000
         > A 4001:5001 ack 1
         > A 5001:6001 ack 1",
    );
}

#[test]
fn a_duplicate_without_a_new_block_does_not_count() {
    let mut script = with_options();
    script.record = 900;
    script.run(
        "send 3600
         > A 1:901 ack 1 ts 100/7000 ce
         > A 901:1801 ack 1 ts 100/7000 ce
         > A 1801:2701 ack 1 ts 100/7000 ce
         > PA 2701:3601 ack 1 ts 100/7000 ce
         < A 1:1 ack 1 ts 7001/100
         < A 1:1 ack 1 ts 7001/100
         < A 1:1 ack 1 ts 7001/100
         < A 1:1 ack 1 ts 7001/100 sack 901-1801
         < A 1:1 ack 1 ts 7001/100 sack 901-1801
         < A 1:1 ack 1 ts 7001/100 sack 901-1801
         < A 1:1 ack 1 ts 7001/100 sack 901-2701
         cwnd 9880
         < A 1:1 ack 1 ts 7001/100 sack 901-3601
         > A 1:901 ack 1 ts 100/7001",
    );
}

#[test]
fn blocks_mean_nothing_unless_both_ends_use_them() {
    Script::established(plain()).run(
        "send 5000
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > A 2001:3001 ack 1
         > A 3001:4001 ack 1
         > PA 4001:5001 ack 1
         < A 1:1 ack 1 sack 1001-5001
         cwnd 10000",
    );
}

#[test]
fn messages_about_the_path_count_once_in_a_round_trip() {
    let mut script = Script::active(plain());
    script.run(
        "> S 0:1
         +10
         < SA 0:1 ack 1 mss 1000
         > A 1:1 ack 1
         send 1000
         > PA 1:1001 ack 1",
    );
    let quoted = Seq(0xffff_fe01);
    let now = script.now;
    script.get().reduce_mss(700, quoted, now);
    script.get().reduce_mss(500, quoted, now);
    assert_eq!(script.get().max_payload(), 700);
    script.run("+10\n> A 1:701 ack 1\n> PA 701:1001 ack 1");
    let now = script.now;
    script.get().reduce_mss(500, quoted, now);
    assert_eq!(script.get().max_payload(), 500);
}
