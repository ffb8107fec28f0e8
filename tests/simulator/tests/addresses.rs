//! GIDs of interfaces above the netdev that have a MAC address of their own, as macvlan has.

use faultline_abi::admin::{SET_GID, SetGid};
use faultline_abi::qp::*;
use faultline_abi::{Status, U16, cqe, wqe as wr};
use faultline_simulator::{Connect, Error, Pair, Send, World, expect_cqe};
use faultline_wire::{Gid, MacAddr};

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
    let cq = [0, 1].map(|host| world.hosts[host].cq(6));
    let qp = [0, 1].map(|host| world.hosts[host].qp(kind, &cq[host]));
    let mr = [0, 1].map(|host| world.hosts[host].mr(4096));
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
        let cq = [0, 1].map(|host| world.hosts[host].cq(6));
        let mut qp = [0, 1].map(|host| world.hosts[host].qp(QPT_UD, &cq[host]));
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
        // The entry goes, and with it the address.
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
