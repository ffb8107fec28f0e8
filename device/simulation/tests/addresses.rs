//! Address spoofing: no NIC can send from the address of another, or receive its frames; a NIC may use another address
//! of its own.

use faultline_abi::Status;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::RETRY_EXC_ERR;
use faultline_abi::qp::QPT_RC;
use faultline_simulation::process::{ProcessShape, Processes};
use faultline_wire::MacAddr;

use crate::common::{Connect, End, Error, Expect, connected, exchange, nics, process};
use crate::stations::{BROADCAST, Frame, Station};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
/// An address of no NIC.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0xaa, 1];
const LEN: u64 = 20_000;
/// Transmissions of a request that is not answered.
const ATTEMPTS: u64 = 4;

/// NICs a, b and c, whose guests may give them other addresses. The NICs in `unchecked` may send from any address.
fn with_mac_changes(engines: usize, unchecked: &[usize]) -> Processes {
    let mut nics = nics(3, |nic| nic % engines);
    for nic in unchecked {
        nics[*nic].is_unchecked = true;
    }
    let shape = ProcessShape {
        engines,
        nics,
        seed: 6,
        ..ProcessShape::default()
    };
    Processes::with_config(&shape, &|config| config.mac_change = true).unwrap()
}

fn stations(world: &mut Processes) -> [Station; 3] {
    [A, B, C].map(|nic| Station::new(world, (0, nic)))
}

/// As `ip link set address`.
fn use_address(world: &mut Processes, nic: usize, mac: [u8; 6]) {
    let driver = &mut world.at((0, nic)).driver;
    driver.set_netdev(MacAddr(mac), 1500, 0).unwrap();
    world.settle();
}

/// Number of arrivals of a frame that one NIC sends.
#[track_caller]
fn passes(
    world: &mut Processes,
    stations: &mut [Station; 3],
    (from, to): (usize, usize),
    (src, dst): ([u8; 6], [u8; 6]),
) -> usize {
    let frame = Frame::new(dst, src);
    stations[from].send(world, &frame);
    let found = stations[to].received(world);
    assert!(found.iter().all(|found| *found == frame.bytes()));
    found.len()
}

/// The same; no other NIC gets the frame, and neither does its sender.
#[track_caller]
fn passes_only(
    world: &mut Processes,
    stations: &mut [Station; 3],
    way: (usize, usize),
    addresses: ([u8; 6], [u8; 6]),
) -> usize {
    let found = passes(world, stations, way, addresses);
    for station in stations {
        assert_eq!(station.received(world).len(), 0, "{addresses:x?}");
    }
    found
}

fn forged(world: &mut Processes, nic: usize) -> u64 {
    world.counter((0, nic), Counter::tx_bad_source)
}

fn impatient(path: Connect) -> Connect {
    Connect {
        timeout: 8,
        retry_cnt: ATTEMPTS as u8 - 1,
        ..path
    }
}

#[test]
fn frames_in_the_name_of_a_neighbour_are_dropped_and_counted() {
    for engines in [1, 2, 3] {
        let mut world = with_mac_changes(engines, &[]);
        let mut stations = stations(&mut world);
        let [mac_a, mac_b, mac_c] = stations.each_ref().map(|station| station.mac);
        for (src, expected) in [(mac_c, 1), (OTHER, 1), (mac_b, 0), (mac_a, 0)] {
            for dst in [mac_a, BROADCAST] {
                let before = forged(&mut world, C);
                let got = passes(&mut world, &mut stations, (C, A), (src, dst));
                assert_eq!(got, expected, "{engines} engines, {src:x?}");
                let dropped = forged(&mut world, C) - before;
                assert_eq!(dropped, 1 - expected as u64, "{src:x?}");
            }
        }

        // A connection of a and b. Queue pair numbers are easy to guess, so only the address of its peer protects it.
        let at = [(0, A), (0, B)];
        let [mut own, mut peer] = connected(&mut world, at, QPT_RC, (4, LEN), |path| path);
        exchange(&mut world, &mut own, &peer, 1);
        let gid = world.at((0, B)).gid;
        let driver = &mut world.at((0, C)).driver;
        driver.set_gid(0, gid, MacAddr(mac_b)).unwrap();
        use_address(&mut world, C, mac_b);
        let mut thief = End::new(&mut world, (0, C), QPT_RC, (4, LEN));
        let path = impatient(own.path(&mut world));
        thief.connect(&mut world, &path);
        let received = |world: &mut Processes| {
            [Counter::rx_packets, Counter::rx_roce_packets]
                .map(|counter| world.counter((0, A), counter))
        };
        let before = (forged(&mut world, C), received(&mut world));
        thief.write(&mut world, &own.mr, 6);
        let found = thief.await_count(&mut world, 1);
        assert_eq!(found[0].status, RETRY_EXC_ERR);
        assert_eq!(forged(&mut world, C), before.0 + ATTEMPTS);
        assert_eq!(received(&mut world), before.1);

        // Frames to the neighbour do not reach the NIC that claims its address, before or after the neighbour's reset.
        let ways = ((A, C), (mac_a, mac_b));
        assert_eq!(passes(&mut world, &mut stations, ways.0, ways.1), 0);
        exchange(&mut world, &mut peer, &own, 2);
        world.all[0].reset_nic(B);
        world.settle();
        assert_eq!(passes(&mut world, &mut stations, ways.0, ways.1), 0);
        world.all[0].restart_host(B).unwrap();
        let [mut own, peer] = connected(&mut world, at, QPT_RC, (4, LEN), |path| path);
        exchange(&mut world, &mut own, &peer, 3);
        world.expect_legal();
    }
}

#[test]
fn a_guest_does_not_change_the_mac_address_by_default() {
    let mut world = process(&ProcessShape {
        nics: nics(1, |_| 0),
        ..ProcessShape::default()
    });
    let host = world.at((0, A));
    let refused = host.driver.set_netdev(MacAddr(OTHER), 1500, 0);
    assert_eq!(refused, Err(Error::Refused(Status::NotSupported)));
    let own = host.mac;
    host.driver.set_netdev(own, 1500, 0).unwrap();
}

/// Its own MAC address, and the IP address of b. It knows the key and the queue pair of a.
#[test]
fn a_guest_with_the_ip_address_of_its_neighbour_is_no_peer_of_its_connections() {
    for engines in [1, 2, 3] {
        let mut world = process(&ProcessShape {
            engines,
            nics: nics(3, |nic| nic % engines),
            ..ProcessShape::default()
        });
        let [own, mut peer] =
            connected(&mut world, [(0, A), (0, B)], QPT_RC, (4, LEN), |path| path);
        let gid = world.at((0, B)).gid;
        let host = world.at((0, C));
        host.driver.set_gid(0, gid, host.mac).unwrap();
        // Before and after the first packet of the peer.
        for seed in 0..2 {
            let mut thief = End::new(&mut world, (0, C), QPT_RC, (4, LEN));
            let path = impatient(own.path(&mut world));
            thief.connect(&mut world, &path);
            let before = world.counter((0, A), Counter::rx_bad_source);
            own.fill(&mut world, 0, &[0x55; 16]);
            thief.write(&mut world, &own.mr, 6);
            let found = thief.await_count(&mut world, 1);
            assert_eq!(found[0].status, RETRY_EXC_ERR);
            assert_eq!(own.read(&mut world, 0, 16), [0x55; 16]);
            let refused = world.counter((0, A), Counter::rx_bad_source) - before;
            assert_eq!(refused, ATTEMPTS, "{engines} engines");
            exchange(&mut world, &mut peer, &own, seed);
        }
    }
}

#[test]
fn a_nic_that_uses_another_address_has_both() {
    for engines in [1, 2, 3] {
        let mut world = with_mac_changes(engines, &[]);
        let mut stations = stations(&mut world);
        let [mac_a, mac_b, mac_c] = stations.each_ref().map(|station| station.mac);
        use_address(&mut world, A, OTHER);
        let mut count = |world: &mut Processes, way, addresses| {
            passes_only(world, &mut stations, way, addresses)
        };
        // Both directions, with the new address.
        assert_eq!(count(&mut world, (A, B), (OTHER, mac_b)), 1);
        assert_eq!(count(&mut world, (B, A), (mac_b, OTHER)), 1);
        // c claims either address: by its command, and by sending from it. Frames to the address reach its owner.
        for claimed in [mac_a, OTHER] {
            use_address(&mut world, C, claimed);
            assert_eq!(count(&mut world, (C, B), (claimed, mac_b)), 0);
            assert_eq!(count(&mut world, (B, A), (mac_b, claimed)), 1);
        }
        // c still works with its own address, and a with its old one.
        assert_eq!(count(&mut world, (C, B), (mac_c, mac_b)), 1);
        assert_eq!(count(&mut world, (A, B), (mac_a, mac_b)), 1);
        use_address(&mut world, A, mac_a);
        assert_eq!(count(&mut world, (B, A), (mac_b, mac_a)), 1);
        assert_eq!([A, B, C].map(|nic| forged(&mut world, nic)), [0, 0, 2]);
    }
}

/// The NIC has nothing to do when the address becomes free, and no other one gets ahead of it.
#[test]
fn a_released_address_goes_to_the_nic_that_waits_for_it() {
    for engines in [1, 2, 3] {
        let mut world = with_mac_changes(engines, &[]);
        let mut stations = stations(&mut world);
        let [mac_a, mac_b, _] = stations.each_ref().map(|station| station.mac);
        use_address(&mut world, A, OTHER);
        use_address(&mut world, C, OTHER);
        let mut count =
            |world: &mut Processes, way, addresses| passes(world, &mut stations, way, addresses);
        assert_eq!(count(&mut world, (B, A), (mac_b, OTHER)), 1);
        use_address(&mut world, A, mac_a);
        assert_eq!(count(&mut world, (B, A), (OTHER, mac_a)), 0);
        assert_eq!(forged(&mut world, B), 1, "{engines} engines");
        assert_eq!(count(&mut world, (B, C), (mac_b, OTHER)), 1);
    }
}

#[test]
fn a_nic_without_the_check_may_forward_the_frames_of_others() {
    for engines in [1, 2, 3] {
        let mut world = with_mac_changes(engines, &[C]);
        let mut stations = stations(&mut world);
        let [mac_a, mac_b, _] = stations.each_ref().map(|station| station.mac);
        let mut count =
            |world: &mut Processes, way, addresses| passes(world, &mut stations, way, addresses);
        assert_eq!(count(&mut world, (C, A), (mac_b, mac_a)), 1);
        assert_eq!(forged(&mut world, C), 0);
        // The address stays where it belongs.
        assert_eq!(count(&mut world, (C, B), (mac_a, mac_b)), 1);
        assert_eq!(count(&mut world, (B, A), (mac_b, mac_a)), 1);
        assert_eq!(count(&mut world, (A, B), (mac_a, mac_b)), 1);
        assert_eq!(forged(&mut world, A), 0);
    }
}
