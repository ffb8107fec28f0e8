//! Segments of third parties that know the ends of a connection, and of peers that want more than their share.

use crate::corners::with_options;

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
