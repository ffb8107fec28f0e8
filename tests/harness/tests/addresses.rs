//! Address spoofing: no NIC can send from the address of another, or receive its frames; a NIC may use another address
//! of its own.

use faultline_abi::admin::{Counter, NETDEV_UP, SET_GID, SET_NETDEV, SetGid, SetNetdev};
use faultline_abi::steering::{CreateFlow, FLOW_KIND_ALL_DEFAULT};
use faultline_abi::{Status, U16, U32, cqe};
use faultline_config::{Config, NicSettings, PollMode};
use faultline_harness::frames::{Frame, RawReceiver, raw_qp, rule, send};
use faultline_harness::testbed::{Fabric, Node, connect_nodes};
use faultline_harness::traffic::{exchange, exchange_anew, impatient};
use faultline_harness::{DriverError, Flow, Qp, QpType, Reset, Rng, SendWr};

/// All frames that nothing else takes.
fn receive_rest(node: &Node) -> (RawReceiver, Flow) {
    let receiver = RawReceiver::new(node, &node.eq).unwrap();
    let create = CreateFlow {
        kind: FLOW_KIND_ALL_DEFAULT,
        ..rule(0, 0, 0)
    };
    let flow = node.nic.flow(&receiver.qp, &create, None).unwrap();
    (receiver, flow)
}

/// NICs a, b and c, whose guests may give them other addresses.
fn with_mac_changes() -> Fabric {
    let config = Config {
        defaults: NicSettings {
            mac_change: Some(true),
            ..NicSettings::default()
        },
        ..Config::default()
    };
    Fabric::start_with(config, &["a", "b", "c"]).unwrap()
}

/// As `ip link set address`.
fn use_address(node: &Node, mac: [u8; 6]) {
    let netdev = SetNetdev {
        mac,
        mtu: U16::new(1500),
        flags: U32::new(NETDEV_UP),
        ..SetNetdev::default()
    };
    node.nic.admin(SET_NETDEV, 0, &netdev).unwrap();
}

/// Frames from `src` to `dst` that are received, of one.
#[track_caller]
fn passes(
    (node, qp): (&mut Node, &mut Qp),
    src: [u8; 6],
    dst: [u8; 6],
    receiver: &mut RawReceiver,
) -> usize {
    let frame = Frame {
        src,
        dst,
        ..Frame::to(&node.nic)
    }
    .bytes();
    send(node, qp, &frame);
    std::iter::from_fn(|| receiver.receive())
        .inspect(|(_, bytes)| assert!(*bytes == frame))
        .count()
}

fn forged(node: &Node) -> u64 {
    node.nic.counters().unwrap()[Counter::tx_bad_source]
}

#[test]
fn frames_in_the_name_of_a_neighbour_are_dropped_and_counted() {
    let fabric = with_mac_changes();
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| fabric.node(name).unwrap());
    let mut raw = raw_qp(&c, &c.cq, 6).unwrap();
    let (mut at_a, _flow) = receive_rest(&a);
    let [mac_a, mac_b, mac_c] = [&a, &b, &c].map(|node| node.nic.mac());
    let other = [2, 0, 0, 0, 0, 9];
    for (src, expected) in [(mac_c, 1), (other, 1), (mac_b, 0), (mac_a, 0)] {
        for (n, dst) in [mac_a, [0xff; 6]].into_iter().enumerate() {
            let before = forged(&c);
            let got = passes((&mut c, &mut raw), src, dst, &mut at_a);
            assert_eq!(got, expected, "{src:x?}, {n}");
            assert_eq!(forged(&c) - before, 1 - expected as u64, "{src:x?}, {n}");
        }
    }

    // A connection of a and b. Queue pair numbers are easy to guess, so its peer's address is all that protects it.
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut rng = Rng::new(1);
    exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
    let gid = SetGid {
        gid: b.nic.gid(),
        mac: mac_b,
        vlan: U16::new(0xffff),
        valid: 1,
        ..SetGid::default()
    };
    c.nic.admin(SET_GID, 0, &gid).unwrap();
    use_address(&c, mac_b);
    let mut qc = c.qp(QpType::Rc).unwrap();
    qc.to_init(0, 0).unwrap();
    qc.to_rtr(&a.nic, qa.number(), &impatient()).unwrap();
    qc.to_rts(&impatient()).unwrap();
    let (before, received) = (forged(&c), a.nic.counters().unwrap());
    qc.post_send(&SendWr::write_inline(b"forged", a.mr.remote(0)).signaled())
        .unwrap();
    assert_eq!(c.completion().status, cqe::RETRY_EXC_ERR);
    assert!(forged(&c) > before);
    let now = a.nic.counters().unwrap();
    for counter in [Counter::rx_packets, Counter::rx_roce_packets] {
        assert_eq!(now[counter], received[counter]);
    }
    // Frames to the neighbour do not reach the NIC that claims its address, before or after the neighbour's reset.
    let (mut at_c, _flow) = receive_rest(&c);
    let mut from_a = raw_qp(&a, &a.cq, 6).unwrap();
    assert_eq!(passes((&mut a, &mut from_a), mac_a, mac_b, &mut at_c), 0);
    exchange((&mut b, &mut qb), (&mut a, &mut qa), &mut rng);
    drop(qb);
    let nic = b.nic.clone();
    drop(b);
    nic.reset(Reset::Function).unwrap();
    assert_eq!(passes((&mut a, &mut from_a), mac_a, mac_b, &mut at_c), 0);
    nic.start().unwrap();
    let mut b = Node::new(nic).unwrap();
    exchange_anew(&mut a, &mut b, &mut rng);
}

#[test]
fn a_guest_does_not_change_the_mac_address_by_default() {
    let fabric = Fabric::start(PollMode::Adaptive, &["a"]).unwrap();
    let a = fabric.node("a").unwrap();
    let netdev = |mac| SetNetdev {
        mac,
        mtu: U16::new(1500),
        flags: U32::new(NETDEV_UP),
        ..SetNetdev::default()
    };
    let other = netdev([2, 0, 0, 0, 0xaa, 1]);
    let error = a.nic.admin(SET_NETDEV, 0, &other).unwrap_err();
    let is_refused = matches!(
        error,
        DriverError::Admin {
            status: Status::NotSupported,
            ..
        }
    );
    assert!(is_refused, "{error}");
    a.nic.admin(SET_NETDEV, 0, &netdev(a.nic.mac())).unwrap();
}

#[test]
fn a_nic_without_the_check_may_forward_the_frames_of_others() {
    let config = Config {
        defaults: NicSettings {
            spoof_check: Some(false),
            ..NicSettings::default()
        },
        ..Config::default()
    };
    let fabric = Fabric::start_with(config, &["a", "b", "c"]).unwrap();
    let [a, mut b, mut c] = ["a", "b", "c"].map(|name| fabric.node(name).unwrap());
    let ((mut at_a, _f), (mut at_b, _g)) = (receive_rest(&a), receive_rest(&b));
    let mut raw = raw_qp(&c, &c.cq, 6).unwrap();
    let [mac_a, mac_b] = [&a, &b].map(|node| node.nic.mac());
    assert_eq!(passes((&mut c, &mut raw), mac_b, mac_a, &mut at_a), 1);
    assert_eq!(forged(&c), 0);
    // The address stays where it belongs.
    let mut raw = raw_qp(&c, &c.cq, 6).unwrap();
    assert_eq!(passes((&mut c, &mut raw), mac_a, mac_b, &mut at_b), 1);
    let mut raw = raw_qp(&b, &b.cq, 6).unwrap();
    assert_eq!(passes((&mut b, &mut raw), mac_b, mac_a, &mut at_a), 1);
}
