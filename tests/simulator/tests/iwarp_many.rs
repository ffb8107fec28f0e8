//! A million messages between 8 iWARP NICs on a bad wire: exactly once, in order on each connection, unharmed, and the same again with
//! the same seed. The messages and their checks are those of `many_nics`.

use faultline_abi::admin::Counter;
use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::qp::{ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE};
use faultline_abi::{U16, event, wqe};
use faultline_simulation::Private;
use faultline_simulator::World;

use crate::iwarp::{any, events, iwarp};
use crate::many_nics::{Run, Setting, Trace, twice};

const RIGHTS: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

const IWARP: Setting = Setting {
    send: wqe::WR_SEND,
    nics: 8,
    distances: [1, 3],
    connect,
    counters: &[Counter::rx_csum_errors],
};

/// Opens a connection from the first of two hosts to the other.
fn connect(world: &mut World, [(a, from), (b, to)]: [(usize, u32); 2]) {
    let any = any(false);
    let path = ConnectionPath {
        local_ip: world.hosts[a].gid.0,
        remote_ip: world.hosts[b].gid.0,
        // Ports that no other connection of these hosts has.
        local_port: U16::new(40_000 + from as u16),
        remote_port: any.local_port,
        dmac: world.hosts[b].mac.0,
        vlan: U16::new(0xffff),
        ..ConnectionPath::default()
    };
    for (host, qpn) in [(a, from), (b, to)] {
        world.hosts[host].driver.to_init(qpn, RIGHTS).unwrap();
    }
    let listener = world.hosts[b].driver.listen(any, 1).unwrap();
    let driver = &mut world.hosts[a].driver;
    driver.open(from, path, &Private::default()).unwrap();
    let request = loop {
        match events(world, b)[..] {
            [] => assert!(world.step(u64::MAX), "no request"),
            [(event::CONNECTION_REQUEST, _, token)] => break token as u32,
            ref other => panic!("{other:?}"),
        }
    };
    let driver = &mut world.hosts[b].driver;
    driver.accept(to, request, &Private::default()).unwrap();
    driver.unlisten(listener).unwrap();
    world.run();
    assert_eq!(events(world, a), [(event::CONNECTED, from, 0)]);
    assert_eq!(events(world, b), [(event::CONNECTED, to, 0)]);
}

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
