//! GIDs of interfaces above the netdev that have a MAC address of their own, as macvlan has; and of guests that have the GID of another one.

use faultline_abi::admin::{Counter, SET_GID, SetGid};
use faultline_abi::qp::*;
use faultline_abi::{Status, U16, cqe, wqe as wr};
use faultline_checker::Rule;
use faultline_simulation::{Connect, Error, Send};
use faultline_simulator::{Pair, World, expect_cqe, packet};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Gid, Ip, MacAddr};

use crate::common::counter;

const INDEX: u16 = 5;
const UPPER: MacAddr = MacAddr([2, 0xaa, 0, 0, 0, 7]);

fn gid(host: usize) -> Gid {
    Gid::from_ipv4([192, 168, 7, host as u8 + 1])
}

fn upper(host: usize) -> MacAddr {
    let mut mac = UPPER;
    mac.0[5] += host as u8;
    mac
}

/// Connects queue pairs that use these entries.
fn connect(world: &mut World, kind: u8) -> Pair {
    let cq = [0, 1].map(|host| world.hosts[host].cq(6).unwrap());
    let qp = [0, 1].map(|host| world.hosts[host].qp(kind, &cq[host]).unwrap());
    let mr = [0, 1].map(|host| world.hosts[host].mr(4096).unwrap());
    for host in [0, 1] {
        let path = Connect {
            sgid_index: INDEX,
            ..Connect::to(gid(1 - host), upper(1 - host), qp[1 - host].qpn)
        };
        let driver = &mut world.hosts[host].driver;
        driver.connect(qp[host].qpn, kind, &path).unwrap();
    }
    Pair { cq, qp, mr }
}

#[test]
fn packets_to_the_address_of_a_gid_arrive() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        for host in [0, 1] {
            let driver = &mut world.hosts[host].driver;
            driver
                .set_gid(INDEX.into(), gid(host), upper(host))
                .unwrap();
        }
        let mut pair = connect(&mut world, QPT_RC);
        world.post_write(&mut pair, 4000);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        // A datagram says from which address it came.
        let cq = [0, 1].map(|host| world.hosts[host].cq(6).unwrap());
        let mut qp = [0, 1].map(|host| world.hosts[host].qp(QPT_UD, &cq[host]).unwrap());
        let [_, mut cq] = cq;
        for (host, qp) in qp.iter().enumerate() {
            world.hosts[host]
                .driver
                .activate(qp.qpn, QPT_UD, 7)
                .unwrap();
        }
        let av = Connect {
            sgid_index: INDEX,
            ..Connect::to(gid(1), upper(1), 0)
        };
        let pd = world.hosts[0].pd;
        let ah = world.hosts[0].driver.create_ah(pd, av.av()).unwrap();
        let mr = pair.mr[1];
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut qp[1], 0, &[(mr.va, 100, mr.key)]);
        let send = Send {
            opcode: wr::WR_SEND,
            ah,
            remote_qpn: qp[1].qpn,
            qkey: 7,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp[0], &send);
        world.run();
        let found = expect_cqe(&mut world, 1, &mut cq, cqe::SUCCESS);
        assert_eq!(found.smac, upper(0).0);
        // The entry is removed, and with it the address.
        let (index, none) = (INDEX.into(), SetGid::default());
        let none = SetGid {
            vlan: U16::new(0xffff),
            ..none
        };
        let driver = &mut world.hosts[1].driver;
        driver.command(SET_GID, index, &none).unwrap();
        world.post_write(&mut pair, 8);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::RETRY_EXC_ERR);
        // The netdev's own address is as it was.
        let mut pair = world.connect(QPT_RC, 4096, |_| {});
        world.post_write(&mut pair, 8);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    }
}

#[test]
fn a_gid_has_no_group_address() {
    let mut world = World::new(1, 1);
    let group = MacAddr([3, 0, 0, 0, 0, 1]);
    let driver = &mut world.hosts[0].driver;
    let refused = driver.set_gid(INDEX.into(), gid(0), group);
    assert_eq!(refused, Err(Error::Refused(Status::BadParameter)));
}

/// Host 2 has the GID of host 1, with its own MAC address: the switch passes its packets.
#[test]
fn a_guest_with_its_neighbours_address_is_no_peer_of_its_connections() {
    for kind in [QPT_RC, QPT_UC] {
        for by_reference in [false, true] {
            let mut world = World::new(3, 1);
            if by_reference {
                world.hand_over_by_reference();
            }
            let mut pair = world.connect(kind, 4096, |_| {});
            let (gid, mac) = (world.hosts[1].gid, world.hosts[2].mac);
            world.hosts[2].driver.set_gid(0, gid, mac).unwrap();
            let mut cq = world.hosts[2].cq(6).unwrap();
            let mut qp = world.hosts[2].qp(kind, &cq).unwrap();
            let mr = world.hosts[2].mr(4096).unwrap();
            world.hosts[2].driver.write_mr(&mr, 0, b"impostor");
            let path = Connect {
                retry_cnt: 0,
                timeout: 8,
                ..world.path(0, pair.qp[0].qpn)
            };
            let driver = &mut world.hosts[2].driver;
            driver.connect(qp.qpn, kind, &path).unwrap();
            // It knows the key, the address and the PSN of a connection that has not sent anything yet.
            let write = Send {
                opcode: wr::WR_WRITE,
                sges: &[(mr.va, 8, mr.key)],
                remote_addr: pair.mr[0].va,
                rkey: pair.mr[0].key,
                ..Send::default()
            };
            driver.post_send(&mut qp, &write);
            world.run();
            let status = match kind {
                QPT_RC => cqe::RETRY_EXC_ERR,
                _ => cqe::SUCCESS,
            };
            expect_cqe(&mut world, 2, &mut cq, status);
            assert_eq!(world.hosts[0].driver.read_mr(&pair.mr[0], 0, 8), [0; 8]);
            assert!(counter(&mut world, 0, Counter::rx_bad_source) > 0);
            // The connection goes on.
            for _ in 0..2 {
                world.post_write(&mut pair, 100);
                world.run();
                expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
            }
        }
    }
}

/// A frame that comes from a wire, or that software has built, has no origin of a NIC. But the peer of the connection is known by then.
#[test]
fn a_wire_does_not_carry_packets_of_a_neighbours_connection() {
    let mut world = World::new(3, 1);
    let mut pair = world.connect(QPT_RC, 4096, |_| {});
    world.post_write(&mut pair, 100);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    let qpn = pair.qp[1].qpn;
    let forged = |world: &World, psn, mac| {
        let (from, to) = (&world.hosts[0], &world.hosts[1]);
        let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        let bth = Bth::new(Opcode::RcSendOnly, qpn, Psn::new(psn));
        packet(&RoceHeader::new(to.mac, mac, ip, bth), b"forged")
    };
    let mr = pair.mr[1];
    let driver = &mut world.hosts[1].driver;
    driver.post_recv(&mut pair.qp[1], 1, &[(mr.va, 100, mr.key)]);
    let before = counter(&mut world, 1, Counter::rx_bad_source);
    world.inject(2, forged(&world, 1, world.hosts[2].mac));
    world.run();
    assert_eq!(world.completions(1, &mut pair.cq[1]), []);
    assert_eq!(counter(&mut world, 1, Counter::rx_bad_source), before + 1);
    // With the address of the peer it would have been taken.
    world.permit(&Rule::ALL);
    world.inject(2, forged(&world, 1, world.hosts[0].mac));
    world.run();
    expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
}
