//! A guest uses the IP addresses that its operator has listed, and no others: in its GID table and in frames that its software builds.

use faultline_abi::Status;
use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::{QPT_RAW, QPT_RC};
use faultline_abi::wqe as wr;
use faultline_nic::{AddressRange, PortSecurity};
use faultline_simulation::{Error, Send};
use faultline_simulator::{World, expect_cqe};
use faultline_wire::{Gid, MacAddr};

use crate::common::counter;

const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OWN: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];
/// The range fd00::/64.
const OWN_V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
const OTHER_V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7];
const NONE_V6: [u8; 16] = [0; 16];

/// Host 0 has a list.
fn world() -> World {
    World::with_config(2, 1, |config| {
        if config.mac.0 == OWN_MAC {
            let range = |gid, bits| AddressRange::new(gid, bits).unwrap();
            let own = vec![range(Gid::from_ipv4(OWN), 128), range(Gid(OWN_V6), 64)];
            config.addresses = Some(PortSecurity::new(own));
        }
    })
}

fn ethernet(ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2];
    frame.extend(OWN_MAC);
    frame.extend(ethertype.to_be_bytes());
    frame.extend(rest);
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4(src: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![
        0x45,
        0,
        0,
        20 + payload.len() as u8,
        0,
        0,
        0,
        0,
        64,
        protocol,
        0,
        0,
    ];
    packet.extend(src);
    packet.extend(OTHER);
    packet.extend(payload);
    ethernet(0x0800, &packet)
}

fn ipv6(src: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, payload.len() as u8, next, 255];
    packet.extend(src);
    packet.extend(OTHER_V6);
    packet.extend(payload);
    ethernet(0x86dd, &packet)
}

fn arp(sender_mac: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 2];
    packet.extend(sender_mac);
    packet.extend(sender);
    packet.extend([0; 6]);
    packet.extend(target);
    ethernet(0x0806, &packet)
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    let mut packet = from.to_be_bytes().to_vec();
    packet.extend(to.to_be_bytes());
    packet.extend([0, 8, 0, 0]);
    packet
}

fn icmpv6(kind: u8, target: [u8; 16]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target);
    message
}

fn with_header(next: u8, header: [u8; 7], rest: Vec<u8>) -> Vec<u8> {
    let mut payload = vec![next];
    payload.extend(header);
    payload.extend(rest);
    payload
}

/// Frames by name, and whether they may be sent.
type Frames = Vec<(&'static str, Vec<u8>, bool)>;

fn frames_v4() -> Frames {
    let tagged = |mut frame: Vec<u8>| {
        frame.splice(12..12, [0x81, 0, 0, 7]);
        frame
    };
    vec![
        ("IPv4", ipv4(OWN, 6, &[0; 20]), true),
        ("IPv4 of another", ipv4(OTHER, 6, &[0; 20]), false),
        (
            "IPv4 of another in a VLAN",
            tagged(ipv4(OTHER, 6, &[0; 20])),
            false,
        ),
        ("IPv4 in a VLAN", tagged(ipv4(OWN, 6, &[0; 20])), true),
        (
            "a RoCE packet of another, built by software",
            ipv4(OTHER, 17, &udp(50_000, 4791)),
            false,
        ),
        ("a DHCP client", ipv4([0; 4], 17, &udp(68, 67)), true),
        (
            "no address, but no DHCP",
            ipv4([0; 4], 17, &udp(68, 53)),
            false,
        ),
        ("a DHCP server", ipv4(OWN, 17, &udp(67, 68)), false),
        ("ARP", arp(OWN_MAC, OWN, OTHER), true),
        ("ARP for another", arp(OWN_MAC, OTHER, OWN), false),
        (
            "ARP with another MAC address",
            arp([2, 0, 0, 0, 0, 2], OWN, OTHER),
            false,
        ),
        ("an ARP probe", arp(OWN_MAC, [0; 4], OWN), true),
        (
            "an ARP probe for another's address",
            arp(OWN_MAC, [0; 4], OTHER),
            false,
        ),
        ("another protocol", ethernet(0x88b5, &[0; 46]), false),
        ("a service tag", ethernet(0x88a8, &[0, 7, 8, 0]), false),
        ("a header that is cut off", ethernet(0x0800, &[0x4f]), false),
        (
            "a DHCP server with another port",
            ipv4(OWN, 17, &udp(1067, 68)),
            false,
        ),
        (
            "a report of groups without address",
            ipv4([0; 4], 2, &[0x16; 8]),
            true,
        ),
        ("an ICMP redirect", ipv4(OWN, 1, &[5; 8]), false),
        ("an ICMP router advertisement", ipv4(OWN, 1, &[9; 8]), false),
        ("an echo request", ipv4(OWN, 1, &[8; 8]), true),
    ]
}

fn frames_v6() -> Frames {
    let link_local = Gid::link_local(MacAddr(OWN_MAC)).0;
    let (solicitation, advertisement) = (135, 136);
    vec![
        ("IPv6", ipv6(OWN_V6, 6, &[0; 20]), true),
        ("IPv6 of another", ipv6(OTHER_V6, 6, &[0; 20]), false),
        (
            "the own link-local address",
            ipv6(link_local, 6, &[0; 20]),
            true,
        ),
        (
            "a solicitation",
            ipv6(OWN_V6, 58, &icmpv6(solicitation, OTHER_V6)),
            true,
        ),
        (
            "duplicate address detection",
            ipv6(NONE_V6, 58, &icmpv6(solicitation, OWN_V6)),
            true,
        ),
        (
            "the same for another's address",
            ipv6(NONE_V6, 58, &icmpv6(solicitation, OTHER_V6)),
            false,
        ),
        (
            "an advertisement",
            ipv6(OWN_V6, 58, &icmpv6(advertisement, OWN_V6)),
            true,
        ),
        (
            "an advertisement for another",
            ipv6(OWN_V6, 58, &icmpv6(advertisement, OTHER_V6)),
            false,
        ),
        (
            "a router's advertisement",
            ipv6(link_local, 58, &icmpv6(134, OWN_V6)),
            false,
        ),
        ("a redirect", ipv6(OWN_V6, 58, &icmpv6(137, OWN_V6)), false),
        (
            "no address, but no neighbour discovery",
            ipv6(NONE_V6, 17, &udp(1, 2)),
            false,
        ),
        (
            "an echo request without address",
            ipv6(NONE_V6, 58, &icmpv6(128, OWN_V6)),
            false,
        ),
        ("a DHCPv6 server", ipv6(OWN_V6, 17, &udp(547, 546)), false),
        (
            "a report of groups",
            ipv6(
                NONE_V6,
                0,
                &with_header(58, [0, 5, 2, 0, 0, 1, 0], icmpv6(143, NONE_V6)),
            ),
            true,
        ),
        (
            "an advertisement behind a header",
            ipv6(
                OWN_V6,
                0,
                &with_header(58, [0; 7], icmpv6(advertisement, OTHER_V6)),
            ),
            false,
        ),
        (
            "an advertisement in a fragment",
            ipv6(
                OWN_V6,
                44,
                &with_header(58, [0; 7], icmpv6(advertisement, OTHER_V6)),
            ),
            false,
        ),
        (
            "a fragment of UDP",
            ipv6(OWN_V6, 44, &with_header(17, [0; 7], udp(1, 2))),
            true,
        ),
        (
            "a DHCPv6 server in a fragment",
            ipv6(OWN_V6, 44, &with_header(17, [0; 7], udp(547, 546))),
            false,
        ),
        (
            "destination options",
            ipv6(OWN_V6, 60, &with_header(58, [0; 7], icmpv6(128, OWN_V6))),
            false,
        ),
        (
            "a DHCPv6 server with another port",
            ipv6(OWN_V6, 17, &udp(1000, 546)),
            false,
        ),
    ]
}

#[test]
fn frames_of_other_addresses_are_not_sent() {
    for by_reference in [false, true] {
        let mut world = world();
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut cq = world.hosts[0].cq(8).unwrap();
        let mut qp = world.hosts[0].qp(QPT_RAW, &cq).unwrap();
        let mr = world.hosts[0].mr(4096).unwrap();
        let driver = &mut world.hosts[0].driver;
        driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
        let mut barred = 0;
        for (what, frame, permitted) in frames_v4().into_iter().chain(frames_v6()) {
            let before = counter(&mut world, 1, Counter::rx_packets);
            world.hosts[0].driver.write_mr(&mr, 0, &frame);
            let send = Send {
                opcode: wr::WR_RAW,
                sges: &[(mr.va, frame.len() as u32, mr.key)],
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut qp, &send);
            world.run();
            expect_cqe(&mut world, 0, &mut cq, cqe::SUCCESS);
            let arrived = counter(&mut world, 1, Counter::rx_packets) - before;
            assert_eq!(arrived, u64::from(permitted), "{what}");
            barred += u64::from(!permitted);
            assert_eq!(
                counter(&mut world, 0, Counter::tx_bad_address),
                barred,
                "{what}"
            );
        }
    }
}

#[test]
fn an_address_of_another_gets_into_no_gid_table() {
    let mut world = world();
    let mac = world.hosts[0].mac;
    let driver = &mut world.hosts[0].driver;
    let refused = Err(Error::Refused(Status::NotSupported));
    for gid in [Gid::from_ipv4(OTHER), Gid(OTHER_V6)] {
        assert_eq!(driver.set_gid(2, gid, mac), refused, "{gid}");
    }
    for gid in [Gid::from_ipv4(OWN), Gid(OWN_V6), Gid::link_local(mac)] {
        driver.set_gid(2, gid, mac).unwrap();
    }
    driver.clear_gid(2).unwrap();
    // Connections of the own addresses are as without a list.
    let mut pair = world.connect(QPT_RC, 64 << 10, |connect| connect.path_mtu = 5);
    world.post_write(&mut pair, 60_000);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
}
