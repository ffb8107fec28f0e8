//! Frames reach members of their VLAN only, with the tag that the port has for it.

use faultline_abi::U16;
use faultline_abi::cqe::RETRY_EXC_ERR;
use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::qp::QPT_RC;
use faultline_fabric::vlan::VlanMembership;
use faultline_nic::Transport;
use faultline_simulation::open_stream;
use faultline_simulation::process::{NicShape, PortShape, ProcessShape, Processes};

use crate::common::{Connect, End, Expect, TIMEOUT_10, US, connected, exchange, process};
use crate::stations::{BROADCAST, Frame, Station};

/// Indices of the NICs: access ports of VLANs 10 and 20, and a NIC with tagged frames of both.
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// A peer behind a port.
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn members(pvid: Option<u16>, tagged: &[u16]) -> Option<VlanMembership> {
    let tagged = (!tagged.is_empty()).then(|| tagged.iter().copied().collect());
    Some(VlanMembership::new(pvid, tagged))
}

fn world(engines: usize, ports: Vec<PortShape>) -> Processes {
    world_of(Transport::Roce, engines, ports)
}

fn world_of(transport: Transport, engines: usize, ports: Vec<PortShape>) -> Processes {
    let vlans = [
        members(Some(10), &[]),
        members(Some(20), &[]),
        members(None, &[10, 20]),
    ];
    let nics = (0..).zip(vlans).map(|(nic, vlans)| NicShape {
        engine: nic % engines,
        vlans,
        transport,
        ..NicShape::default()
    });
    process(&ProcessShape {
        engines,
        nics: nics.collect(),
        ports,
        seed: 1,
        ..ProcessShape::default()
    })
}

fn stations(world: &mut Processes) -> [Station; 3] {
    [A, B, C].map(|nic| Station::new(world, (0, nic)))
}

/// Packets of a NIC that were dropped because of their VLAN.
fn dropped(world: &Processes) -> [u64; 3] {
    [A, B, C].map(|nic| {
        let port = world.all[0].with_port(nic, |port| port.faults.counts.vlan);
        port.unwrap()
    })
}

#[test]
fn nics_of_two_vlans_do_not_reach_each_other_and_both_reach_a_third() {
    for engines in [1, 2, 3] {
        let mut world = world(engines, Vec::new());
        let mut stations = stations(&mut world);
        let [mac_a, mac_b, mac_c] = stations.each_ref().map(|station| station.mac);

        // Access ports send and receive without tag; the third NIC with that of the VLAN.
        for (from, to, other, vlan) in [(A, B, mac_b, 10), (B, A, mac_a, 20)] {
            for (dst, at_c) in [(other, 0), (mac_c, 1), (BROADCAST, 1)] {
                let frame = Frame::new(dst, stations[from].mac);
                stations[from].send(&mut world, &frame);
                let found = stations[to].received(&mut world);
                assert_eq!(found.len(), 0, "of VLAN {vlan} to {dst:x?}");
                let tagged = frame.with_tag(Some(vlan));
                let found = stations[C].received(&mut world);
                assert_eq!(found, vec![tagged.bytes(); at_c], "{engines} engines");
            }
        }
        assert_eq!(dropped(&world), [1, 1, 0]);

        // From the third NIC, with a priority, which has no place without tag.
        for (vlan, member, other) in [(10, A, B), (20, B, A)] {
            for dst in [mac_a, mac_b, BROADCAST] {
                let untagged = Frame::new(dst, mac_c);
                let frame = untagged.with_tag(Some(5 << 13 | vlan));
                stations[C].send(&mut world, &frame);
                let is_reached = dst == BROADCAST || dst == stations[member].mac;
                let expected = vec![untagged.bytes(); usize::from(is_reached)];
                let found = stations[member].received(&mut world);
                assert_eq!(found, expected, "{vlan}, {dst:x?}");
                let found = stations[other].received(&mut world);
                assert_eq!(found.len(), 0, "{vlan}, {dst:x?}");
            }
        }
        assert_eq!(dropped(&world), [1, 1, 2]);

        // Frames without tag are of VLAN 1, and no port accepts frames of a VLAN that it is not a member of.
        for (from, vlan) in [(C, None), (C, Some(30)), (A, Some(20))] {
            let frame = Frame::new(BROADCAST, stations[from].mac).with_tag(vlan);
            stations[from].send(&mut world, &frame);
        }
        assert_eq!(dropped(&world), [2, 1, 3]);
        let received = stations
            .each_mut()
            .map(|station| station.received(&mut world).len());
        assert_eq!(received, [0; 3]);
    }
}

/// Opens an iWARP connection from one NIC to another. Frames of a NIC have the tag of its VLAN, if it has one.
fn stream(world: &mut Processes, nics: [(usize, Option<u16>); 2]) -> [End; 2] {
    let ends = nics.map(|(nic, _)| End::new(world, (0, nic), QPT_RC, (4, 20_000)));
    let hosts = world.all[0]
        .hosts
        .get_disjoint_mut(nics.map(|(nic, _)| nic));
    let qpns = ends.each_ref().map(|end| end.qp.qpn);
    let in_vlan = |end: usize, path: ConnectionPath| ConnectionPath {
        vlan: nics[end].1.map_or(path.vlan, U16::new),
        ..path
    };
    open_stream(hosts.unwrap(), qpns, 40_000, in_vlan).unwrap();
    ends
}

#[test]
fn iwarp_connects_an_access_port_and_a_trunk() {
    for engines in [1, 2, 3] {
        let mut world = world_of(Transport::Iwarp, engines, Vec::new());
        use_vlan(&mut world, C, 10);
        for nics in [[(A, None), (C, Some(10))], [(C, Some(10)), (A, None)]] {
            let [mut own, mut other] = stream(&mut world, nics);
            exchange(&mut world, &mut own, &other, 1);
            exchange(&mut world, &mut other, &own, 2);
        }
        assert_eq!(dropped(&world), [0; 3]);
        world.expect_legal();
    }
}

/// The entry of the GID table decides about the tag.
fn use_vlan(world: &mut Processes, nic: usize, vlan: u16) {
    let host = world.at((0, nic));
    let (gid, mac) = (host.gid, host.mac);
    host.driver.set_gid_in(0, (gid, vlan), mac).unwrap();
}

#[test]
fn connections_pass_between_members_of_a_vlan_only() {
    for engines in [1, 2, 3] {
        let mut world = world(engines, Vec::new());
        for (nic, vlan) in [(A, 10), (B, 20)] {
            use_vlan(&mut world, C, vlan);
            let at = [(0, nic), (0, C)];
            let [mut own, mut other] = connected(&mut world, at, QPT_RC, (4, 20_000), |path| path);
            for seed in 0..5 {
                exchange(&mut world, &mut own, &other, seed);
                exchange(&mut world, &mut other, &own, seed + 10);
            }
        }
        assert_eq!((world.now(), dropped(&world)), (0, [0; 3]));
        // Each transmission of a request to another VLAN is dropped, and nothing else.
        let change = |path| Connect {
            timeout: 10,
            retry_cnt: 3,
            ..path
        };
        let [mut own, other] = connected(&mut world, [(0, A), (0, B)], QPT_RC, (4, 4096), change);
        // The clocks of all engines are equal again.
        world.run_for(US);
        own.write(&mut world, &other.mr, 100);
        let found = own.await_count(&mut world, 1);
        assert_eq!(found[0].status, RETRY_EXC_ERR);
        assert_eq!(world.now(), US + 4 * TIMEOUT_10);
        assert_eq!(dropped(&world), [4, 0, 0]);
        world.expect_legal();
    }
}

#[test]
fn frames_of_an_external_port_have_the_tag_of_their_vlan() {
    for engines in [1, 2, 3] {
        let port = PortShape {
            room: 1 << 20,
            vlans: members(Some(20), &[10]),
            ..PortShape::default()
        };
        let mut world = world(engines, vec![port]);
        let mut stations = stations(&mut world);
        let peer = world.all[0].peer(0).unwrap().clone();
        let frame = Frame::new(BROADCAST, PEER);
        let [untagged, of_10, of_20, of_30] =
            [None, Some(10), Some(20), Some(30)].map(|vlan| frame.with_tag(vlan).bytes());
        let mut receive = |world: &mut Processes| {
            world.settle();
            stations.each_mut().map(|station| station.received(world))
        };
        // Of no VLAN of the port; then in its VLAN with and without tag, and in another one.
        let none = Vec::new;
        for (sent, expected) in [
            (&of_30, [none(), none(), none()]),
            (
                &of_20,
                [none(), vec![untagged.clone()], vec![of_20.clone()]],
            ),
            (
                &untagged,
                [none(), vec![untagged.clone()], vec![of_20.clone()]],
            ),
            (
                &of_10,
                [vec![untagged.clone()], none(), vec![of_10.clone()]],
            ),
        ] {
            peer.send(sent.clone());
            assert_eq!(receive(&mut world), expected, "{engines} engines");
        }
        assert_eq!(world.all[0].port_counts(0).unwrap().vlan, 1);
        // To the peer, which is known in both VLANs.
        for (from, vlan) in [(A, Some(10)), (B, None)] {
            let frame = Frame::new(PEER, stations[from].mac);
            stations[from].send(&mut world, &frame);
            let sent: Vec<_> = std::iter::from_fn(|| peer.take()).collect();
            assert_eq!(sent, [frame.with_tag(vlan).bytes()]);
        }
        let found = stations[C].received(&mut world);
        assert_eq!(found.len(), 0, "not flooded");
    }
}
