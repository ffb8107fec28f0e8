//! A million messages between 8 iWARP NICs on a bad wire: exactly once, in order on each connection, unharmed, and the same again with
//! the same seed. The messages and their checks are those of `many_nics`.

use faultline_abi::admin::Counter;
use faultline_abi::wqe;
use faultline_simulator::World;

use crate::iwarp::iwarp;
use crate::many_nics::{Run, Setting, Trace, twice};

/// Octets of an IP packet.
const MTU: u16 = 1500;

const IWARP: Setting = Setting {
    send: wqe::WR_SEND,
    nics: 8,
    distances: [1, 3],
    connect: |world, ends| world.open_stream(ends, MTU),
    counters: &[Counter::rx_csum_errors],
};

fn run(seed: u64, messages: u64) -> Trace {
    let world = World::with_config(IWARP.nics, seed, iwarp);
    Run::new(&IWARP, world, messages).run()
}

#[test]
fn twenty_thousand_messages_are_the_same_again_with_the_same_seed() {
    let [first, again] = twice(|| run(1, 10_000));
    assert_eq!(first, again);
}

#[test]
fn another_seed_is_another_run() {
    let [first, other] = [1, 2].map(|seed| run(seed, 3_000));
    assert_ne!(first.hash, other.hash);
}

#[test]
#[ignore = "10^6 messages, twice: two minutes of a processor"]
fn a_million_messages_are_the_same_again_with_the_same_seed() {
    let [first, again] = twice(|| run(1, 1_000_000));
    assert_eq!(first, again);
}
