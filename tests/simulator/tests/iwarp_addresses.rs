//! iWARP: own addresses, and an interface whose configuration changes.

use std::cell::Cell;
use std::rc::Rc;

use faultline_abi::admin::Counter;
use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::qp::QPS_RTS;
use faultline_abi::translation as tq;
use faultline_abi::{Status, U16, cqe, event, iwarp as codes, wqe as wr};
use faultline_nic::{Diagnostic, DropCause};
use faultline_simulation::{Error, Private};
use faultline_simulator::World;
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::{Ethernet, Gid, Ip, MacAddr, Tcp, TcpFlags};

use crate::common::{counter, pattern, state};
use crate::iwarp::{
    any, completed, connect, events, iwarp, path, post, qp_in_init, seal, segment, statuses, world,
};

/// An address that no host has at first.
const OTHER: Gid = Gid::from_ipv4([10, 0, 0, 99]);

#[test]
fn a_listener_for_any_address_takes_segments_to_own_addresses_only() {
    let mut world = world(61);
    let (_, qp) = qp_in_init(&mut world, 0);
    world.hosts[1].driver.listen(any(false), 4).unwrap();
    let mut way = path(&world, 0, false, 40_000);
    way.remote_ip = OTHER.0;
    let driver = &mut world.hosts[0].driver;
    driver.open(qp.qpn, way, &Private::default()).unwrap();
    world.run_for(1_000_000);
    assert_eq!(events(&mut world, 1), [], "the guest may forward it");
    assert!(counter(&mut world, 1, Counter::rx_filtered) > 0);
    // The next SYN finds the address.
    let mac = world.hosts[1].mac;
    world.hosts[1].driver.set_gid(2, OTHER, mac).unwrap();
    world.run_for(5_000_000_000);
    let found = events(&mut world, 1);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, event::CONNECTION_REQUEST);
}

#[test]
fn commands_name_own_addresses_only() {
    let refused = Err(Error::Refused(Status::BadAddress));
    let mut world = world(62);
    let (_, qp) = qp_in_init(&mut world, 0);
    let mut way = path(&world, 0, false, 40_000);
    let own = way.local_ip;
    for (address, vlan) in [(OTHER.0, 0xffff), (own, 7)] {
        way.local_ip = address;
        way.vlan = U16::new(vlan);
        let driver = &mut world.hosts[0].driver;
        let open = driver.open(qp.qpn, way, &Private::default());
        assert_eq!(open.map(|()| 0), refused);
        let mut local = any(false);
        (local.local_ip, local.vlan) = (address, way.vlan);
        assert_eq!(driver.listen(local, 4), refused);
    }
    let mut local = any(false);
    local.local_ip = own;
    world.hosts[0].driver.listen(local, 4).unwrap();
    let mac = world.hosts[0].mac;
    world.hosts[0].driver.set_gid(2, OTHER, mac).unwrap();
    local.local_ip = OTHER.0;
    world.hosts[0].driver.listen(local, 4).unwrap();
}

/// Programs of one host may use its own NIC. A segment from an own address that has come from elsewhere, or to the port from which it was
/// sent, is forged.
#[test]
fn a_nic_connects_to_itself_and_takes_no_forged_segment_from_an_own_address() {
    let mut world = world(67);
    let [active, passive] = [0, 1].map(|_| qp_in_init(&mut world, 0).1);
    world.hosts[0].driver.listen(any(false), 4).unwrap();
    let mut way = path(&world, 0, false, 40_000);
    way.remote_ip = way.local_ip;
    let (own, other, port) = (world.hosts[0].mac, world.hosts[1].mac, way.remote_port);
    let sent = counter(&mut world, 0, Counter::tx_ethernet_packets);
    for (src, src_port) in [(other, 40_000), (own, port.get())] {
        let syn = Tcp {
            src_port,
            dst_port: port.get(),
            flags: TcpFlags::SYN,
            window: 1000,
            ..Tcp::default()
        };
        let forged = from_own_address(&world, src, &syn);
        world.inject(1, forged);
    }
    world.run_for(1_000_000);
    let now = counter(&mut world, 0, Counter::tx_ethernet_packets);
    assert_eq!(now, sent, "a forged SYN was answered");
    way.dmac = own.0;
    let driver = &mut world.hosts[0].driver;
    driver.open(active.qpn, way, &Private::default()).unwrap();
    world.run_for(1_000_000);
    let found = events(&mut world, 0);
    let [(event::CONNECTION_REQUEST, _, request)] = found[..] else {
        panic!("{found:?}");
    };
    let driver = &mut world.hosts[0].driver;
    driver
        .accept(passive.qpn, request as u32, &Private::default())
        .unwrap();
    world.run();
    for qp in [&active, &passive] {
        assert_eq!(state(&mut world, 0, qp), QPS_RTS);
    }
}

/// A segment without data to host 0, from its own IP address and this MAC address.
fn from_own_address(world: &World, src: MacAddr, tcp: &Tcp) -> Vec<u8> {
    let own = world.hosts[0].gid;
    let mut frame = segment(world, 1, tcp);
    let mut ip = Ip::from_gids(own, own, 0, 0, 64);
    if let Ip::V4(ip) = &mut ip {
        ip.protocol = PROTOCOL_TCP;
    }
    ip.set_payload_len(Tcp::LEN).unwrap();
    frame[6..12].copy_from_slice(&src.0);
    ip.emit(&mut frame[14..]).unwrap();
    seal(&mut frame, &ip, 34);
    frame
}

/// As while an interface is down and up: nothing is sent from the address meanwhile, and nothing received for it.
#[test]
fn an_address_that_is_removed_and_set_again_continues_its_connections() {
    let mut world = world(63);
    let mut link = connect(&mut world, false);
    let (gid, mac) = (world.hosts[0].gid, world.hosts[0].mac);
    world.hosts[0].driver.clear_gid(0).unwrap();
    world.take_diagnostics(0);
    post(&mut world, &mut link, wr::WR_WRITE, 100, |_| {});
    world.run_for(100_000_000);
    assert_eq!(completed(&mut world, 0, &mut link), []);
    assert!(counter(&mut world, 0, Counter::tx_bad_gid) > 0);
    let dropped = Diagnostic::PacketDropped {
        qpn: link.qp[0].qpn,
        sent: true,
        cause: DropCause::SourceGid { index: 0 },
    };
    let found = world.take_diagnostics(0);
    assert!(
        found.iter().any(|(_, found)| *found == dropped),
        "{found:?}"
    );
    // At another index.
    world.hosts[0].driver.set_gid(5, gid, mac).unwrap();
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, 100)]);
    assert_eq!(state(&mut world, 0, &link.qp[0]), QPS_RTS);
}

/// An address that does not come back ends its connections by the timeouts of TCP.
#[test]
fn an_address_that_stays_away_ends_its_connections() {
    let mut world = world(64);
    let mut link = connect(&mut world, false);
    world.hosts[1].driver.clear_gid(0).unwrap();
    post(&mut world, &mut link, wr::WR_WRITE, 100, |_| {});
    world.run();
    let timed_out = u64::from(codes::TIMED_OUT);
    let closed = (event::CONNECTION_CLOSED, link.qp[0].qpn, timed_out);
    assert_eq!(events(&mut world, 0), [closed]);
}

#[test]
fn segments_have_the_mac_address_that_the_address_has_now() {
    let mut world = world(65);
    let mut link = connect(&mut world, false);
    let new = MacAddr([2, 0, 0, 0, 0, 0x77]);
    let gid = world.hosts[0].gid;
    world.hosts[0].driver.set_gid(0, gid, new).unwrap();
    let seen = Rc::new(Cell::new(None));
    let sees = Rc::clone(&seen);
    world.change(0, move |frame| {
        sees.set(Some(Ethernet::parse(&frame).unwrap().0.src));
        Some(frame)
    });
    post(&mut world, &mut link, wr::WR_WRITE, 100, |_| {});
    world.run_for(100_000);
    assert_eq!(seen.get(), Some(new));
}

/// Takes all memory that a guest may take, for page tables.
pub fn spend_memory(world: &mut World, host: usize) {
    let pd = world.hosts[host].pd;
    let driver = &mut world.hosts[host].driver;
    let page = driver.alloc(4096).unwrap() | tq::READ | tq::WRITE;
    let key = driver.reg_on_demand(pd, 0, 1 << 46, 0).unwrap();
    // Tables of several levels, then of the last one.
    for shift in [30, 21] {
        let mut pages = 1..100_000u64;
        let is_spent = pages.any(|n| driver.give_page(tq::MAP, key, n << shift, page).is_err());
        assert!(is_spent);
    }
    // The rest, which is less than a page table needs.
    let mut ports = 1..1000;
    let is_spent = ports.any(|port| {
        let path = ConnectionPath {
            local_port: U16::new(port),
            ..any(true)
        };
        driver.listen(path, 1) == Err(Error::Refused(Status::NoResources))
    });
    assert!(is_spent);
}

/// FPDUs that were begun for a larger MTU leave in pieces, whose first ones the peer has to keep. It can also without memory, and if its own
/// MTU has become smaller, too.
#[test]
fn a_smaller_mtu_reaches_connections_and_their_fpdus_in_pieces_pass() {
    for smaller in [&[0][..], &[0, 1]] {
        let mut world = World::with_config(2, 66, |config| {
            iwarp(config);
            config.table_bytes = 4 << 20;
        });
        world.pace(1_000);
        let mut link = connect(&mut world, false);
        let len = 200_000;
        let data = pattern(len);
        world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
        spend_memory(&mut world, 1);
        // The first segments are lost, and leave again with the new MTU.
        world.change(0, |_| None);
        post(&mut world, &mut link, wr::WR_WRITE, len, |_| {});
        world.run_for(30_000);
        for host in smaller {
            let mac = world.hosts[*host].mac;
            world.hosts[*host].driver.set_netdev(mac, 700, 0).unwrap();
        }
        let longest = Rc::new(Cell::new(0));
        let sees = Rc::clone(&longest);
        world.change(0, move |frame| {
            let (_, at_ip) = Ethernet::parse(&frame).unwrap();
            let (ip, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
            sees.set(sees.get().max(ip_len + ip.payload_len()));
            Some(frame)
        });
        world.run();
        assert!((500..=700).contains(&longest.get()), "{}", longest.get());
        let done = completed(&mut world, 0, &mut link);
        assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, len)]);
        let arrived = world.hosts[1].driver.read_mr(&link.mr[1], 0, data.len());
        assert!(arrived == data);
    }
}

/// Another host has the peer's address now, or another router leads to it: data of the peer says so, a forged segment does not.
#[test]
fn segments_go_to_the_mac_address_from_which_the_peer_sends() {
    let mut world = world(68);
    let mut link = connect(&mut world, false);
    let [forged, new] = [0x66, 0x77].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let seen = Rc::new(Cell::new(None));
    let sees = Rc::clone(&seen);
    world.change(0, move |frame| {
        sees.set(Some(Ethernet::parse(&frame).unwrap().0.dst));
        Some(frame)
    });
    let way = path(&world, 0, false, 40_000);
    let tcp = Tcp {
        src_port: way.remote_port.get(),
        dst_port: way.local_port.get(),
        flags: TcpFlags::ACK,
        window: 1000,
        ..Tcp::default()
    };
    let mut frame = segment(&world, 1, &tcp);
    frame[6..12].copy_from_slice(&forged.0);
    world.inject(1, frame);
    world.run_for(100_000);
    post(&mut world, &mut link, wr::WR_WRITE, 100, |_| {});
    world.run_for(100_000);
    assert_eq!(seen.get(), Some(world.hosts[1].mac));
    assert_eq!(completed(&mut world, 0, &mut link).len(), 1);
    let gid = world.hosts[1].gid;
    world.hosts[1].driver.set_gid(0, gid, new).unwrap();
    let [to, from] = link.mr;
    let send = faultline_simulation::Send {
        opcode: wr::WR_WRITE,
        sges: &[(from.va, 100, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Default::default()
    };
    world.hosts[1].driver.post_send(&mut link.qp[1], &send);
    // The acknowledgment of the first one goes to the old address.
    world.run_for(2_000_000_000);
    assert_eq!(seen.get(), Some(new));
    assert_eq!(completed(&mut world, 1, &mut link).len(), 1);
}

/// A MAC address that changes on its way misleads nobody, also if the peer has nothing more to say.
#[test]
fn the_mac_address_of_one_segment_is_not_followed() {
    let mut world = world(69);
    let mut link = connect(&mut world, false);
    let wrong = Rc::new(Cell::new(0));
    let changes = Rc::clone(&wrong);
    world.change(0, move |mut frame| {
        let has_data = frame.len() > 150;
        if has_data && changes.replace(1) == 0 {
            frame[11] ^= 0x80;
        }
        Some(frame)
    });
    post(&mut world, &mut link, wr::WR_WRITE, 100, |_| {});
    world.run_for(100_000);
    assert_eq!(wrong.get(), 1);
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(statuses(&done), [cqe::SUCCESS]);
}
