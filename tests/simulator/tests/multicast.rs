//! Multicast: the receivers of packets to a group.

use faultline_abi::Status;
use faultline_abi::admin::{Counter, DESTROY_QP};
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_simulation::{Connect, Cq, Error, Mr, Qp, Send};
use faultline_simulator::pager::run as run_pagers;
use faultline_simulator::{HostPager, World, expect_cqe, packet};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::deth::Deth;
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Gid, MacAddr};

use crate::common::counter;

const LEN: u64 = 64 << 10;
const QKEY: u32 = 0x0123_4567;
const MULTICAST_QPN: u32 = 0xff_ffff;
const GROUP4: Gid = Gid::from_ipv4([239, 1, 2, 3]);

fn group6() -> Gid {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x0e, 9);
    Gid(gid)
}

/// A UD queue pair with a CQ and a region.
struct End {
    host: usize,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(world: &mut World, host: usize) -> Self {
        let cq = world.hosts[host].cq(8).unwrap();
        let qp = world.hosts[host].qp(QPT_UD, &cq).unwrap();
        let mr = world.hosts[host].mr(LEN).unwrap();
        let driver = &mut world.hosts[host].driver;
        driver.activate(qp.qpn, QPT_UD, QKEY).unwrap();
        Self { host, cq, qp, mr }
    }

    fn attach(&self, world: &mut World, group: Gid) -> Result<(), Error> {
        let driver = &mut world.hosts[self.host].driver;
        driver.attach_mcast(self.qp.qpn, group)
    }

    fn detach(&self, world: &mut World, group: Gid) -> Result<(), Error> {
        let driver = &mut world.hosts[self.host].driver;
        driver.detach_mcast(self.qp.qpn, group)
    }

    fn receive(&mut self, world: &mut World) {
        let (host, mr) = (self.host, self.mr);
        let driver = &mut world.hosts[host].driver;
        driver.post_recv(&mut self.qp, 7, &[(mr.va + 4096, 4096, mr.key)]);
    }

    fn send(&mut self, world: &mut World, group: Gid, qkey: u32, data: &[u8]) {
        let (host, mr) = (self.host, self.mr);
        let pd = world.hosts[host].pd;
        let path = Connect {
            dgid: group,
            dmac: group.multicast_mac().unwrap(),
            sgid_index: u16::from(!group.is_ipv4_mapped()),
            ..Connect::to(group, MacAddr([0; 6]), 0)
        };
        let driver = &mut world.hosts[host].driver;
        let ah = driver.create_ah(pd, path.av()).unwrap();
        driver.write_mr(&mr, 0, data);
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(mr.va, data.len() as u32, mr.key)],
            ah,
            remote_qpn: MULTICAST_QPN,
            qkey,
            ..Send::default()
        };
        driver.post_send(&mut self.qp, &send);
        // Long enough for everything but the time that a fault may take.
        world.run_for(1_000_000);
        expect_cqe(world, host, &mut self.cq, cqe::SUCCESS);
    }

    #[track_caller]
    fn expect(&mut self, world: &mut World, data: &[u8], src_qp: u32) {
        let found = expect_cqe(world, self.host, &mut self.cq, cqe::SUCCESS);
        assert_eq!(found.byte_len.get() as usize, 40 + data.len());
        assert_eq!((found.wqe.get(), found.src_qp.get()), (7, src_qp));
        let mr = self.mr;
        let got = world.hosts[self.host]
            .driver
            .read_mr(&mr, 4096 + 40, data.len());
        assert!(got == data);
    }

    #[track_caller]
    fn expect_nothing(&mut self, world: &mut World) {
        assert_eq!(world.completions(self.host, &mut self.cq), []);
    }
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 / 2) as u8).collect()
}

#[test]
fn every_member_gets_a_copy_and_no_other() {
    for by_reference in [false, true] {
        for group in [GROUP4, group6()] {
            let mut world = World::new(3, 1);
            if by_reference {
                world.hand_over_by_reference();
            }
            let mut sender = End::new(&mut world, 0);
            let mut near = End::new(&mut world, 0);
            let mut far = [1, 1, 2].map(|host| End::new(&mut world, host));
            let mut stranger = End::new(&mut world, 1);
            stranger
                .attach(&mut world, Gid::from_ipv4([239, 9, 9, 9]))
                .unwrap();
            for end in [&near].into_iter().chain(&far) {
                end.attach(&mut world, group).unwrap();
                // Twice is as good as once.
                end.attach(&mut world, group).unwrap();
            }
            for end in [&mut sender, &mut near, &mut stranger]
                .into_iter()
                .chain(&mut far)
            {
                end.receive(&mut world);
            }
            let data = payload(777);
            sender.send(&mut world, group, QKEY, &data);
            for end in [&mut near].into_iter().chain(&mut far) {
                end.expect(&mut world, &data, sender.qp.qpn);
            }
            sender.expect_nothing(&mut world);
            stranger.expect_nothing(&mut world);
            assert_eq!(counter(&mut world, 0, Counter::tx_mcast_packets), 1);
            assert_eq!(counter(&mut world, 1, Counter::rx_mcast_packets), 1);
            assert_eq!(counter(&mut world, 1, Counter::rx_mcast_copies), 2);
            assert_eq!(counter(&mut world, 2, Counter::rx_mcast_copies), 1);
        }
    }
}

#[test]
fn a_sender_that_is_a_member_receives_its_own_packets() {
    let mut world = World::new(2, 1);
    let mut end = End::new(&mut world, 0);
    end.attach(&mut world, GROUP4).unwrap();
    end.receive(&mut world);
    let (host, mr) = (end.host, end.mr);
    let data = payload(100);
    // The copy is there before the send completes, so both are.
    let pd = world.hosts[host].pd;
    let path = Connect::to(GROUP4, GROUP4.multicast_mac().unwrap(), 0);
    let driver = &mut world.hosts[host].driver;
    let ah = driver.create_ah(pd, path.av()).unwrap();
    driver.write_mr(&mr, 0, &data);
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(mr.va, 100, mr.key)],
        ah,
        remote_qpn: MULTICAST_QPN,
        qkey: QKEY,
        ..Send::default()
    };
    driver.post_send(&mut end.qp, &send);
    world.run();
    let found = world.completions(host, &mut end.cq);
    let opcodes: Vec<u8> = found.iter().map(|cqe| cqe.opcode).collect();
    assert_eq!(opcodes, [cqe::RECV, cqe::SEND]);
    assert!(world.hosts[host].driver.read_mr(&mr, 4096 + 40, 100) == data);
}

#[test]
fn former_members_get_no_packets() {
    let mut world = World::new(2, 1);
    let mut sender = End::new(&mut world, 0);
    let mut member = End::new(&mut world, 1);
    member.receive(&mut world);
    assert_eq!(
        member.detach(&mut world, GROUP4),
        Err(Error::Refused(Status::NotAttached))
    );
    member.attach(&mut world, GROUP4).unwrap();
    let driver = &mut world.hosts[1].driver;
    assert_eq!(
        driver.command(DESTROY_QP, member.qp.qpn, &()).map(drop),
        Err(Error::Refused(Status::InUse)),
        "who is in a group can't go"
    );
    member.detach(&mut world, GROUP4).unwrap();
    sender.send(&mut world, GROUP4, QKEY, b"gone");
    member.expect_nothing(&mut world);
    assert_eq!(counter(&mut world, 1, Counter::rx_mcast_packets), 0);
    let driver = &mut world.hosts[1].driver;
    driver.command(DESTROY_QP, member.qp.qpn, &()).unwrap();
    sender.send(&mut world, GROUP4, QKEY, b"still alive");
}

#[test]
fn each_member_checks_its_own_qkey_and_buffers() {
    let mut world = World::new(2, 1);
    let mut sender = End::new(&mut world, 0);
    let mut members = [1, 1, 1].map(|host| End::new(&mut world, host));
    for member in &members {
        member.attach(&mut world, GROUP4).unwrap();
    }
    // The first has another Q_Key, the second no buffer.
    let attr = QpAttr {
        mask: (QP_ATTR_STATE | QP_ATTR_QKEY).into(),
        state: QPS_RTS,
        qkey: (QKEY + 1).into(),
        ..QpAttr::default()
    };
    let driver = &mut world.hosts[1].driver;
    driver.modify_qp(members[0].qp.qpn, &attr).unwrap();
    members[0].receive(&mut world);
    members[2].receive(&mut world);
    let data = payload(64);
    sender.send(&mut world, GROUP4, QKEY, &data);
    members[0].expect_nothing(&mut world);
    members[1].expect_nothing(&mut world);
    members[2].expect(&mut world, &data, sender.qp.qpn);
    assert_eq!(counter(&mut world, 1, Counter::rx_bad_qkey), 1);
    assert_eq!(counter(&mut world, 1, Counter::out_of_buffer), 1);
}

#[test]
fn only_datagrams_to_the_groups_own_address_are_multicast() {
    let mut world = World::new(2, 1);
    let mut member = End::new(&mut world, 1);
    member.attach(&mut world, GROUP4).unwrap();
    member.receive(&mut world);
    let bth = Bth::new(Opcode::UdSendOnly, MULTICAST_QPN, Psn::new(0));
    let ip = Ip::from_gids(world.hosts[0].gid, GROUP4, 0, 0, 64);
    let mac = GROUP4.multicast_mac().unwrap();
    let mut good = RoceHeader::new(mac, world.hosts[0].mac, ip, bth);
    good.deth = Some(Deth {
        qkey: QKEY,
        src_qp: 5,
    });
    let mut to_host = good;
    to_host.ethernet.dst = world.hosts[1].mac;
    let mut other_group = good;
    other_group.ethernet.dst = MacAddr([1, 0, 0x5e, 9, 9, 9]);
    let mut own_ip = good;
    own_ip.ip = Ip::from_gids(world.hosts[0].gid, world.hosts[1].gid, 0, 0, 64);
    let mut to_qp = good;
    to_qp.bth.dest_qp = member.qp.qpn;
    let mut connected = good;
    connected.bth.opcode = Opcode::RcSendOnly;
    connected.deth = None;
    for (n, header) in [to_host, other_group, own_ip, to_qp, connected]
        .iter()
        .enumerate()
    {
        world.inject(0, packet(header, b"no"));
        world.run();
        member.expect_nothing(&mut world);
        // The first one has the address of a host and is for none of its GIDs.
        assert_eq!(counter(&mut world, 1, Counter::rx_bad_gid), 1);
        assert_eq!(counter(&mut world, 1, Counter::rx_filtered), n as u64);
    }
    world.inject(0, packet(&good, b"yes"));
    world.run();
    member.expect(&mut world, b"yes", 5);
}

/// Policies `stall` and `rnr`: held in front of the device, or parked in it.
#[test]
fn a_copy_that_waits_for_a_page_waits_alone() {
    for policy in [FAULT_POLICY_STALL, FAULT_POLICY_RNR] {
        for by_reference in [false, true] {
            let mut world = World::new(2, 1);
            if by_reference {
                world.hand_over_by_reference();
            }
            let mut sender = End::new(&mut world, 0);
            let mut members = [1, 1, 1].map(|host| End::new(&mut world, host));
            let mut pager = HostPager::new(&mut world, 1, 64, 5);
            for member in &members {
                member.attach(&mut world, GROUP4).unwrap();
            }
            // Two wait for pages of their own, the third does not.
            for (n, member) in members.iter_mut().take(2).enumerate() {
                let region = pager.register(&mut world, 0x10_0000 * (n as u64 + 1), 8192);
                let sge = pager.sge(region, 0, 4096);
                let driver = &mut world.hosts[1].driver;
                driver.set_fault_policy(member.qp.qpn, policy).unwrap();
                driver.post_recv(&mut member.qp, 7, &[sge]);
            }
            members[2].receive(&mut world);
            let data = payload(300);
            sender.send(&mut world, GROUP4, QKEY, &data);
            members[2].expect(&mut world, &data, sender.qp.qpn);
            for member in members.iter_mut().take(2) {
                member.expect_nothing(&mut world);
            }
            run_pagers(&mut world, &mut [&mut pager]);
            for (n, member) in members.iter_mut().take(2).enumerate() {
                expect_cqe(&mut world, 1, &mut member.cq, cqe::SUCCESS);
                assert!(pager.read(&world, n, 40, data.len()) == data);
            }
            members[2].expect_nothing(&mut world);
            assert_eq!(counter(&mut world, 1, Counter::rx_mcast_copies), 3);
            let stalls = counter(&mut world, 1, Counter::stalls);
            assert_eq!(stalls > 0, policy == FAULT_POLICY_STALL);
        }
    }
}

#[test]
fn bad_commands_are_refused() {
    let mut world = World::with_config(1, 1, |config| {
        config.limits.max_mcast_grp = 2;
        config.limits.max_mcast_qp = 2;
    });
    let ends = [0, 0, 0].map(|host| End::new(&mut world, host));
    let refused = |status| Err(Error::Refused(status));
    let group = |n| Gid::from_ipv4([239, 0, 0, n]);
    let own = world.hosts[0].gid;
    let mut ipv6 = [0; 16];
    (ipv6[0], ipv6[15]) = (0xfe, 1);
    for bad in [own, Gid::ZERO, Gid(ipv6)] {
        assert_eq!(ends[0].attach(&mut world, bad), refused(Status::BadGroup));
    }
    let driver = &mut world.hosts[0].driver;
    for qpn in [0, 1, 0xff_ffff, u32::MAX] {
        assert_eq!(driver.attach_mcast(qpn, group(1)), refused(Status::BadQp));
        assert_eq!(driver.detach_mcast(qpn, group(1)), refused(Status::BadQp));
    }
    let cq = world.hosts[0].cq(4).unwrap();
    for kind in [QPT_RC, QPT_UC, QPT_RAW] {
        let qp = world.hosts[0].qp(kind, &cq).unwrap();
        assert_eq!(
            world.hosts[0].driver.attach_mcast(qp.qpn, group(1)),
            refused(Status::BadQpType)
        );
    }
    ends[0].attach(&mut world, group(1)).unwrap();
    ends[1].attach(&mut world, group(1)).unwrap();
    // proves: max_mcast_qp_attach
    assert_eq!(
        ends[2].attach(&mut world, group(1)),
        refused(Status::NoResources)
    );
    ends[0].attach(&mut world, group(2)).unwrap();
    // proves: max_mcast_grp
    assert_eq!(
        ends[0].attach(&mut world, group(3)),
        refused(Status::NoResources)
    );
    // A group without members does not exist any more.
    ends[0].detach(&mut world, group(2)).unwrap();
    ends[0].attach(&mut world, group(3)).unwrap();
}
