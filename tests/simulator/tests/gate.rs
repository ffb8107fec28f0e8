//! RoCE obeys the interface: whether it is up, its MTU, and the addresses of the GID table.

use faultline_abi::admin::{Counter, SET_GID, SetGid};
use faultline_abi::qp::{QPT_RC, QPT_UC, QPT_UD};
use faultline_abi::{U16, cqe, wqe as wr};
use faultline_nic::{Diagnostic, DropCause};
use faultline_simulation::{Connect, Cq, Mr, Qp, Send};
use faultline_simulator::{Pair, World, expect_cqe, packet};
use faultline_wire::Gid;
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::deth::Deth;
use faultline_wire::ethernet::VlanTag;
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;

use crate::common::counter;

const LEN: u64 = 64 << 10;
const QKEY: u32 = 0x1111_2222;

/// Frames as octets on a wire, and by reference as between the NICs of a process.
fn worlds(hosts: usize) -> [World; 2] {
    let worlds = [World::new(hosts, 1), World::new(hosts, 1)];
    worlds[1].hand_over_by_reference();
    worlds
}

fn set_up(world: &mut World, host: usize, up: bool) {
    let mac = world.hosts[host].mac;
    let driver = &mut world.hosts[host].driver;
    driver.set_interface(mac, 9000, 0, up).unwrap();
}

fn set_mtu(world: &mut World, host: usize, mtu: u16) {
    let mac = world.hosts[host].mac;
    world.hosts[host].driver.set_netdev(mac, mtu, 0).unwrap();
}

/// Few retries, so that a test ends soon.
fn impatient(connect: &mut Connect) {
    (connect.timeout, connect.retry_cnt) = (8, 2);
}

/// The outcome of a WRITE from host 0 to host 1.
fn write(world: &mut World, pair: &mut Pair, len: u32) -> u8 {
    world.post_write(pair, len);
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].status
}

/// The drops that a NIC has reported.
fn reported(world: &World, host: usize) -> Vec<(u32, bool, DropCause)> {
    let all = world.take_diagnostics(host).into_iter();
    all.filter_map(|(_, diagnostic)| match diagnostic {
        Diagnostic::PacketDropped { qpn, sent, cause } => Some((qpn, sent, cause)),
        _ => None,
    })
    .collect()
}

#[test]
fn no_packet_passes_a_stopped_interface() {
    for down in [0, 1] {
        for mut world in worlds(2) {
            let mut pair = world.connect(QPT_RC, LEN, impatient);
            assert_eq!(write(&mut world, &mut pair, 60_000), cqe::SUCCESS);
            set_up(&mut world, down, false);
            let before = counter(&mut world, 1 - down, Counter::rx_packets);
            assert_eq!(write(&mut world, &mut pair, 60_000), cqe::RETRY_EXC_ERR);
            let dropped = match down {
                0 => Counter::tx_interface_down,
                _ => Counter::rx_interface_down,
            };
            assert!(counter(&mut world, down, dropped) > 0);
            // Frames that a NIC does not send or receive are not counted as sent or received.
            assert_eq!(counter(&mut world, 1 - down, Counter::rx_packets), before);
            let sent = down == 0;
            let qpn = if sent { pair.qp[0].qpn } else { 0 };
            let once = [(qpn, sent, DropCause::InterfaceDown)];
            assert_eq!(reported(&world, down), once);
            set_up(&mut world, down, true);
            let mut pair = world.connect(QPT_RC, LEN, impatient);
            assert_eq!(write(&mut world, &mut pair, 60_000), cqe::SUCCESS);
        }
    }
}

#[test]
fn a_connection_survives_an_interface_that_is_down_for_less_than_its_retries() {
    for mut world in worlds(2) {
        let mut pair = world.connect(QPT_RC, LEN, |connect| connect.timeout = 14);
        set_up(&mut world, 1, false);
        world.post_write(&mut pair, 60_000);
        world.run_for(100_000_000);
        assert_eq!(world.completions(0, &mut pair.cq[0]), []);
        set_up(&mut world, 1, true);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        assert!(counter(&mut world, 1, Counter::rx_interface_down) > 0);
    }
}

#[test]
fn a_nic_does_not_reach_itself_while_its_interface_is_down() {
    for mut world in worlds(1) {
        let mut cq = world.hosts[0].cq(8).unwrap();
        let mut qp = [0, 1].map(|_| world.hosts[0].qp(QPT_RC, &cq).unwrap());
        let mr = world.hosts[0].mr(LEN).unwrap();
        for i in 0..2 {
            let mut path = world.path(0, qp[1 - i].qpn);
            impatient(&mut path);
            let driver = &mut world.hosts[0].driver;
            driver.connect(qp[i].qpn, QPT_RC, &path).unwrap();
        }
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(mr.va, 100, mr.key)],
            remote_addr: mr.va + 1000,
            rkey: mr.key,
            ..Send::default()
        };
        for (up, status) in [(true, cqe::SUCCESS), (false, cqe::RETRY_EXC_ERR)] {
            set_up(&mut world, 0, up);
            world.hosts[0].driver.post_send(&mut qp[0], &send);
            world.run();
            expect_cqe(&mut world, 0, &mut cq, status);
        }
    }
}

/// A change of an entry of host 0's GID table.
type Change = fn(&mut World);

#[test]
fn a_connection_does_not_outlive_its_address() {
    let removed: Change = |world| world.hosts[0].driver.clear_gid(0).unwrap();
    let replaced: Change = |world| {
        let mac = world.hosts[0].mac;
        let other = Gid::from_ipv4([10, 0, 0, 99]);
        world.hosts[0].driver.set_gid(0, other, mac).unwrap();
    };
    let moved: Change = |world| {
        let (gid, mac) = (world.hosts[0].gid, world.hosts[0].mac);
        world.hosts[0].driver.clear_gid(0).unwrap();
        world.hosts[0].driver.set_gid(2, gid, mac).unwrap();
    };
    for change in [removed, replaced, moved] {
        for mut world in worlds(2) {
            let mut pair = world.connect(QPT_RC, LEN, impatient);
            change(&mut world);
            assert_eq!(write(&mut world, &mut pair, 60_000), cqe::RETRY_EXC_ERR);
            assert!(counter(&mut world, 0, Counter::tx_bad_gid) > 0);
            let cause = DropCause::SourceGid { index: 0 };
            assert_eq!(reported(&world, 0), [(pair.qp[0].qpn, true, cause)]);
        }
    }
}

#[test]
fn packets_to_a_removed_address_are_not_received() {
    for kind in [QPT_RC, QPT_UC] {
        for mut world in worlds(2) {
            let mut pair = world.connect(kind, LEN, impatient);
            world.hosts[1].driver.clear_gid(0).unwrap();
            let status = write(&mut world, &mut pair, 60_000);
            let lost = match kind {
                QPT_RC => cqe::RETRY_EXC_ERR,
                _ => cqe::SUCCESS,
            };
            assert_eq!(status, lost);
            assert!(counter(&mut world, 1, Counter::rx_bad_gid) > 0);
            let qpn = pair.qp[1].qpn;
            assert_eq!(
                reported(&world, 1),
                [(qpn, false, DropCause::DestinationGid)]
            );
        }
    }
}

#[test]
fn an_entry_that_is_set_to_the_same_value_ends_nothing() {
    for mut world in worlds(2) {
        let mut pair = world.connect(QPT_RC, LEN, impatient);
        let (gid, mac) = (world.hosts[0].gid, world.hosts[0].mac);
        world.hosts[0].driver.set_gid(0, gid, mac).unwrap();
        assert_eq!(write(&mut world, &mut pair, 60_000), cqe::SUCCESS);
    }
}

/// Two queue pairs for datagrams.
struct Datagrams {
    cq: [Cq; 2],
    qp: [Qp; 2],
    mr: [Mr; 2],
}

impl Datagrams {
    fn new(world: &mut World) -> Self {
        let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
        let qp = [0, 1].map(|i| world.hosts[i].qp(QPT_UD, &cq[i]).unwrap());
        let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
        for (host, qp) in qp.iter().enumerate() {
            let driver = &mut world.hosts[host].driver;
            driver.activate(qp.qpn, QPT_UD, QKEY).unwrap();
        }
        Self { cq, qp, mr }
    }

    /// Sends a datagram from host 0. Returns true if host 1 has received it. The send completes in any case.
    fn arrives(&mut self, world: &mut World, ah: u32) -> bool {
        let [a, b] = self.mr;
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut self.qp[1], 1, &[(b.va, 5000, b.key)]);
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(a.va, 100, a.key)],
            ah,
            remote_qpn: self.qp[1].qpn,
            qkey: QKEY,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut self.qp[0], &send);
        world.run();
        expect_cqe(world, 0, &mut self.cq[0], cqe::SUCCESS);
        !world.completions(1, &mut self.cq[1]).is_empty()
    }

    /// A datagram by hand to a GID of host 1.
    fn forged(&self, world: &World, to: Gid, vlan: Option<u16>) -> RoceHeader {
        let ip = Ip::from_gids(world.hosts[0].gid, to, 0, 0, 64);
        let bth = Bth::new(Opcode::UdSendOnly, self.qp[1].qpn, Psn::new(0));
        let mut header = RoceHeader::new(world.hosts[1].mac, world.hosts[0].mac, ip, bth);
        header.deth = Some(Deth {
            qkey: QKEY,
            src_qp: 5,
        });
        header.ethernet.vlan = vlan.map(|vid| VlanTag {
            pcp: 0,
            dei: false,
            vid,
        });
        header
    }
}

#[test]
fn a_datagram_from_a_removed_address_completes_and_is_lost() {
    for mut world in worlds(2) {
        let mut ends = Datagrams::new(&mut world);
        let (pd, av) = (world.hosts[0].pd, world.path(1, 0).av());
        let ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
        assert!(ends.arrives(&mut world, ah));
        world.hosts[0].driver.clear_gid(0).unwrap();
        assert!(!ends.arrives(&mut world, ah));
        assert_eq!(counter(&mut world, 0, Counter::tx_bad_gid), 1);
        set_up(&mut world, 0, false);
        assert!(!ends.arrives(&mut world, ah));
        assert_eq!(counter(&mut world, 0, Counter::tx_interface_down), 1);
    }
}

#[test]
fn a_datagram_reaches_the_addresses_of_its_vlan_only() {
    let mut world = World::new(2, 1);
    let mut ends = Datagrams::new(&mut world);
    let (own, nobody) = (world.hosts[1].gid, Gid::from_ipv4([10, 0, 0, 77]));
    let entry = SetGid {
        gid: Gid::from_ipv4([10, 0, 7, 1]).0,
        mac: world.hosts[1].mac.0,
        vlan: U16::new(7),
        valid: 1,
        ..SetGid::default()
    };
    let in_vlan = Gid(entry.gid);
    world.hosts[1].driver.command(SET_GID, 2, &entry).unwrap();
    let cases = [
        (own, None, true),
        // Only a priority.
        (own, Some(0), true),
        (own, Some(7), false),
        (nobody, None, false),
        (in_vlan, Some(7), true),
        (in_vlan, Some(8), false),
        (in_vlan, None, false),
    ];
    let mut dropped = 0;
    for (to, vlan, arrives) in cases {
        let b = ends.mr[1];
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut ends.qp[1], 1, &[(b.va, 5000, b.key)]);
        world.inject(0, packet(&ends.forged(&world, to, vlan), b"data"));
        world.run();
        let found = world.completions(1, &mut ends.cq[1]);
        assert_eq!(found.len(), usize::from(arrives), "{to} in VLAN {vlan:?}");
        dropped += u64::from(!arrives);
        assert_eq!(counter(&mut world, 1, Counter::rx_bad_gid), dropped);
    }
}

#[test]
fn packets_over_the_mtu_of_an_interface_do_not_pass_it() {
    const CODE_4096: u8 = 5;
    for small in [0, 1] {
        for mut world in worlds(2) {
            let mut pair = world.connect(QPT_RC, LEN, |connect| {
                impatient(connect);
                connect.path_mtu = CODE_4096;
            });
            set_mtu(&mut world, small, 1500);
            // As on a path whose MTU is too small: only short packets pass.
            assert_eq!(write(&mut world, &mut pair, 1000), cqe::SUCCESS);
            assert_eq!(write(&mut world, &mut pair, 60_000), cqe::RETRY_EXC_ERR);
            let dropped = match small {
                0 => Counter::tx_over_mtu,
                _ => Counter::rx_over_mtu,
            };
            assert!(counter(&mut world, small, dropped) > 0);
            let causes = reported(&world, small).into_iter().map(|found| found.2);
            assert_eq!(causes.collect::<Vec<_>>(), [DropCause::OverMtu]);
        }
    }
}

/// The length of an IPv4 packet decides, to the octet: 4096 bytes of payload in the longest packet of a WRITE.
#[test]
fn the_mtu_holds_to_the_octet() {
    // IPv4, UDP, BTH, RETH, payload, ICRC.
    const NEEDED: u16 = 20 + 8 + 12 + 16 + 4096 + 4;
    for (mtu, status) in [(NEEDED, cqe::SUCCESS), (NEEDED - 1, cqe::RETRY_EXC_ERR)] {
        for mut world in worlds(2) {
            let mut pair = world.connect(QPT_RC, LEN, |connect| {
                impatient(connect);
                connect.path_mtu = 5;
            });
            // The checker learns where the sequence begins: packets that do not leave are not shown to it.
            assert_eq!(write(&mut world, &mut pair, 1), cqe::SUCCESS);
            set_mtu(&mut world, 0, mtu);
            assert_eq!(write(&mut world, &mut pair, 40_960), status);
        }
    }
}
