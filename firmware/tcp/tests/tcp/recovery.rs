//! Windows and the repair of losses, where acknowledgments are old or contradict earlier ones.

use crate::corners::with_options;
use crate::script::{Script, plain};

#[test]
fn an_old_acknowledgment_has_an_old_window() {
    let mut script = Script::established(plain());
    script.run(
        "send 3000
         > A 1:1001 ack 1
         > A 1001:2001 ack 1
         > PA 2001:3001 ack 1
         < A 1:1 ack 2001
         < PA 11:21 ack 1001 win 0
         > A 3001:3001 ack 1",
    );
    assert_eq!(script.get().peer_window(), 20_000);
}

/// RFC 6582 section 3.2, step 1: the acknowledgment has to cover more than what was sent at the timeout.
#[test]
fn duplicates_of_segments_that_were_sent_twice_are_no_loss() {
    Script::established(plain()).run(
        "send 2000
         > A 1:1001 ack 1
         > PA 1001:2001 ack 1
         +200
         > A 1:1001 ack 1
         < A 1:1 ack 2001
         send 6000
         > A 2001:3001 ack 1
         > A 3001:4001 ack 1
         < A 1:1 ack 2001
         > A 4001:5001 ack 1
         < A 1:1 ack 2001
         > A 5001:6001 ack 1
         < A 1:1 ack 2001
         > A 6001:7001 ack 1
         cwnd 2000",
    );
}

/// RFC 2018 section 8: the peer has discarded octets that it has reported.
#[test]
fn an_acknowledgment_in_a_reported_range_takes_the_report_back() {
    with_options().run(
        "send 5928
         > A 1:989 ack 1 ts 100/7000 ce
         > A 989:1977 ack 1 ts 100/7000 ce
         > A 1977:2965 ack 1 ts 100/7000 ce
         > A 2965:3953 ack 1 ts 100/7000 ce
         > A 3953:4941 ack 1 ts 100/7000 ce
         > PA 4941:5929 ack 1 ts 100/7000 ce
         < A 1:1 ack 1 ts 7001/100 sack 989-1977
         < A 1:1 ack 1 ts 7001/100 sack 989-2965
         < A 1:1 ack 1 ts 7001/100 sack 989-3953
         > A 1:989 ack 1 ts 100/7001
         < A 1:1 ack 1977 ts 7001/100
         > A 1977:2965 ack 1 ts 100/7001",
    );
}

#[test]
fn a_window_probe_ends_where_the_owner_wants() {
    let mut script = Script::established(plain());
    script.record = 400;
    script.run("< A 1:1 ack 1 win 500");
    // The owner is busy: the probe is due before the first segment could leave.
    let now = script.now;
    assert!(script.get().send(1000, now));
    script.now = script.get().next_deadline().unwrap();
    let now = script.now;
    script.get().handle_deadline(now);
    script.run("keep all\n> A 1:401 ack 1");
}
