//! iWARP: two NICs with queue pairs over TCP.
//!
//! - here: connections, operations, losses
//! - `iwarp_faults`: page faults; `iwarp_refusals`, `iwarp_ends`: what ends a stream
//! - `iwarp_addresses`: own addresses, and an interface that changes; `iwarp_memory`: keys, shared receive queues, faults

use faultline_abi::admin::DESTROY_QP;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::event::{self, Eqe};
use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::qp::{
    ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, QPS_ERR, QPS_RTS, QPS_SQD,
    QPT_RC,
};
use faultline_abi::{iwarp, wqe as wr};
use faultline_fabric::link_model::LinkModel;
use faultline_nic::{NicConfig, Transport};
use faultline_simulation::{Cq, Mr, Private, Qp, Send, connection_path, listener_path};
use faultline_simulator::{World, gid6};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::{EtherType, Ethernet, Gid, Ip, Tcp};

use crate::common::{pattern, state};

const PORT: u16 = 4791;
/// Nanoseconds in which a handshake is over, without a loss.
const SOON: u64 = 1_000_000;
const RIGHTS: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

/// Two connected queue pairs with a CQ and a region each; host 0 has opened the connection.
pub struct Link {
    pub cq: [Cq; 2],
    pub qp: [Qp; 2],
    pub mr: [Mr; 2],
}

pub fn iwarp(config: &mut NicConfig) {
    config.transport = Transport::Iwarp;
    config.secret = [7, 9];
}

pub fn world(seed: u64) -> World {
    World::with_config(2, seed, iwarp)
}

/// Events of connections: kind, object, token.
pub fn events(world: &mut World, host: usize) -> Vec<(u8, u32, u64)> {
    let of_connection = |event: &Eqe| {
        let kinds = event::CONNECTION_REQUEST..=event::CONNECTION_CLOSED;
        let facts = (event.kind, event.object.get(), event.token.get());
        kinds.contains(&event.kind).then_some(facts)
    };
    let events = world.hosts[host].driver.whole_events();
    events.iter().filter_map(of_connection).collect()
}

/// Address of a host, of the version of IP.
fn address(world: &World, host: usize, v6: bool) -> Gid {
    let host = &world.hosts[host];
    if v6 { gid6(host) } else { host.gid }
}

/// The way from one host to the other.
pub fn path(world: &World, from: usize, v6: bool, local_port: u16) -> ConnectionPath {
    let own = (address(world, from, v6), local_port);
    let other = (address(world, 1 - from, v6), PORT);
    connection_path(own, other, world.hosts[1 - from].mac)
}

/// Any address of a version of IP, this port.
pub fn any(v6: bool) -> ConnectionPath {
    let address = if v6 {
        Gid::ZERO
    } else {
        Gid::from_ipv4([0; 4])
    };
    listener_path(address, PORT)
}

/// A queue pair in INIT.
pub fn qp_in_init(world: &mut World, host: usize) -> (Cq, Qp) {
    let cq = world.hosts[host].cq(10).unwrap();
    let qp = world.hosts[host].qp(QPT_RC, &cq).unwrap();
    world.hosts[host].driver.to_init(qp.qpn, RIGHTS).unwrap();
    (cq, qp)
}

/// Opens a connection from host 0 to host 1.
pub fn connect(world: &mut World, v6: bool) -> Link {
    let ends = [0, 1].map(|host| qp_in_init(world, host));
    connect_qps(world, v6, ends)
}

/// Opens a connection between these queue pairs, which are in INIT.
pub fn connect_qps(world: &mut World, v6: bool, ends: [(Cq, Qp); 2]) -> Link {
    let [(cq0, qp0), (cq1, qp1)] = ends;
    let listener = world.hosts[1].driver.listen(any(v6), 4).unwrap();
    let path = path(world, 0, v6, 40_000);
    let hello = Private {
        data: b"hello",
        ..Private::default()
    };
    world.hosts[0].driver.open(qp0.qpn, path, &hello).unwrap();
    world.run_for(SOON);
    let found = events(world, 1);
    let [(event::CONNECTION_REQUEST, object, token)] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(object, listener);
    let request = u32::try_from(token).unwrap();
    let (info, private) = world.hosts[1].driver.query_request(request).unwrap();
    assert_eq!(private, b"hello");
    assert_eq!((info.param.ird.get(), info.param.ord.get()), (4, 4));
    assert_eq!(info.path.remote_port.get(), 40_000);
    let welcome = Private {
        data: b"welcome",
        ird: 2,
        ord: 8,
    };
    let driver = &mut world.hosts[1].driver;
    driver.accept(qp1.qpn, request, &welcome).unwrap();
    world.run();
    assert_eq!(events(world, 1), [(event::CONNECTED, qp1.qpn, 0)]);
    assert_eq!(events(world, 0), [(event::CONNECTED, qp0.qpn, 0)]);
    let (info, private) = world.hosts[0].driver.query_connection(qp0.qpn).unwrap();
    assert_eq!(private, b"welcome");
    assert_eq!((info.param.ird.get(), info.param.ord.get()), (4, 2));
    let mr = [0, 1].map(|i| world.hosts[i].mr(1 << 20).unwrap());
    world.hosts[1].driver.unlisten(listener).unwrap();
    Link {
        cq: [cq0, cq1],
        qp: [qp0, qp1],
        mr,
    }
}

/// Completions of a host, as opcode, status and bytes.
pub fn completed(world: &mut World, host: usize, link: &mut Link) -> Vec<(u8, u8, u32)> {
    let facts = |cqe: &Cqe| (cqe.opcode, cqe.status, cqe.byte_len.get());
    let all = world.completions(host, &mut link.cq[host]);
    all.iter().map(facts).collect()
}

/// The statuses of completions.
pub fn statuses(completions: &[(u8, u8, u32)]) -> Vec<u8> {
    completions.iter().map(|(_, status, _)| *status).collect()
}

/// A frame of host `from` to the other one: a TCP segment over IPv4, without data and options.
pub fn segment(world: &World, from: usize, tcp: &Tcp) -> Vec<u8> {
    let [own, peer] = [&world.hosts[from], &world.hosts[1 - from]];
    let ethernet = Ethernet {
        dst: peer.mac,
        src: own.mac,
        vlan: None,
        ethertype: EtherType::IPV4,
    };
    let mut ip = Ip::from_gids(own.gid, peer.gid, 0, 0, 64);
    if let Ip::V4(ip) = &mut ip {
        ip.protocol = PROTOCOL_TCP;
    }
    ip.set_payload_len(Tcp::LEN).unwrap();
    let mut frame = vec![0; 14 + 20 + 20];
    ethernet.emit(&mut frame).unwrap();
    ip.emit(&mut frame[14..]).unwrap();
    tcp.emit(&mut frame[34..]).unwrap();
    seal(&mut frame, &ip, 34);
    frame
}

/// Writes the checksum of the TCP segment at `at_tcp`.
pub fn seal(frame: &mut [u8], ip: &Ip, at_tcp: usize) {
    frame[at_tcp + 16..at_tcp + 18].fill(0);
    let sum = Tcp::checksum(ip, &frame[at_tcp..], std::iter::empty());
    frame[at_tcp + 16..at_tcp + 18].copy_from_slice(&sum.to_be_bytes());
}

/// Both ends close in order.
pub fn close(world: &mut World, link: &Link) {
    let [a, b] = [link.qp[0].qpn, link.qp[1].qpn];
    world.hosts[0].driver.set_state(a, QPS_SQD).unwrap();
    world.run();
    let finished = u64::from(iwarp::FINISHED);
    assert_eq!(
        events(world, 1),
        [
            (event::PEER_CLOSED, b, 0),
            (event::CONNECTION_CLOSED, b, finished)
        ]
    );
    assert_eq!(events(world, 0), [(event::CONNECTION_CLOSED, a, finished)]);
    for host in 0..2 {
        assert_eq!(state(world, host, &link.qp[host]), QPS_ERR);
    }
}

#[test]
fn a_send_passes_over_both_versions_of_ip() {
    for v6 in [false, true] {
        let mut world = world(1);
        let mut link = connect(&mut world, v6);
        assert_eq!(state(&mut world, 0, &link.qp[0]), QPS_RTS);
        let data = pattern(100_003);
        world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
        let [from, to] = link.mr;
        let len = data.len() as u32;
        let sges = [(to.va, len, to.key)];
        world.hosts[1].driver.post_recv(&mut link.qp[1], 5, &sges);
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(from.va, len, from.key)],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut link.qp[0], &send);
        world.run();
        let received = completed(&mut world, 1, &mut link);
        assert_eq!(received, [(cqe::RECV, cqe::SUCCESS, len)]);
        let sent = completed(&mut world, 0, &mut link);
        assert_eq!(sent, [(cqe::SEND, cqe::SUCCESS, len)]);
        let arrived = world.hosts[1].driver.read_mr(&link.mr[1], 0, data.len());
        assert_eq!(arrived, data);
        close(&mut world, &link);
    }
}

/// Posts a request from host 0 about the start of both regions.
pub fn post(
    world: &mut World,
    link: &mut Link,
    opcode: u8,
    len: u32,
    change: impl FnOnce(&mut Send<'_>),
) {
    let [from, to] = link.mr;
    let sges = [(from.va, len, from.key)];
    let mut send = Send {
        opcode,
        sges: &sges,
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    change(&mut send);
    world.hosts[0].driver.post_send(&mut link.qp[0], &send);
}

/// Posts a receive of host 1 at the start of its region.
pub fn post_recv(world: &mut World, link: &mut Link, len: u32) {
    let to = link.mr[1];
    let sges = [(to.va, len, to.key)];
    world.hosts[1].driver.post_recv(&mut link.qp[1], 0, &sges);
}

#[test]
fn each_operation_completes_with_its_data() {
    let mut world = world(2);
    let mut link = connect(&mut world, false);
    let data = pattern(50_001);
    let len = data.len() as u32;
    // WRITE.
    world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
    post(&mut world, &mut link, wr::WR_WRITE, len, |_| {});
    world.run();
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(done, [(cqe::RDMA_WRITE, cqe::SUCCESS, len)]);
    let arrived = world.hosts[1].driver.read_mr(&link.mr[1], 0, data.len());
    assert_eq!(arrived, data);
    // READ, twice as many as may be outstanding, and one without data.
    let other: Vec<u8> = data.iter().map(|octet| octet ^ 0x55).collect();
    world.hosts[1].driver.write_mr(&link.mr[1], 0, &other);
    for _ in 0..4 {
        post(&mut world, &mut link, wr::WR_READ, len, |_| {});
    }
    post(&mut world, &mut link, wr::WR_READ, 0, |send| {
        send.sges = &[]
    });
    world.run();
    let done = completed(&mut world, 0, &mut link);
    let mut expected = vec![(cqe::RDMA_READ, cqe::SUCCESS, len); 4];
    expected.push((cqe::RDMA_READ, cqe::SUCCESS, 0));
    assert_eq!(done, expected);
    let arrived = world.hosts[0].driver.read_mr(&link.mr[0], 0, data.len());
    assert_eq!(arrived, other);
    // WRITE with immediate data.
    let third: Vec<u8> = data.iter().map(|octet| octet ^ 0xaa).collect();
    world.hosts[0].driver.write_mr(&link.mr[0], 0, &third);
    post_recv(&mut world, &mut link, 0);
    post(&mut world, &mut link, wr::WR_WRITE_IMM, len, |send| {
        send.imm = [1, 2, 3, 4];
    });
    world.run();
    let cqe = world.completions(1, &mut link.cq[1]);
    assert_eq!(cqe.len(), 1);
    assert_eq!(cqe[0].opcode, cqe::RECV_RDMA_WITH_IMM);
    assert_eq!(
        (cqe[0].imm.to_bytes(), cqe[0].byte_len.get()),
        ([1, 2, 3, 4], len)
    );
    let arrived = world.hosts[1].driver.read_mr(&link.mr[1], 0, data.len());
    assert_eq!(arrived, third);
    assert_eq!(completed(&mut world, 0, &mut link).len(), 1);
    // Atomics.
    let word = |world: &World, host: usize| {
        let bytes = world.hosts[host].driver.read_mr(&link.mr[host], 0xddd, 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    // The region begins at 0x...123, so this is a multiple of 8.
    world.hosts[1]
        .driver
        .write_mr(&link.mr[1], 0xddd, &7u64.to_le_bytes());
    let [from, to] = link.mr;
    let sges = [(from.va + 0xddd, 8, from.key)];
    for (opcode, compare_add, swap, before, after) in [
        (wr::WR_FETCH_ADD, 5, 0, 7, 12),
        (wr::WR_COMP_SWAP, 11, 1, 12, 12),
        (wr::WR_COMP_SWAP, 12, 1, 12, 1),
    ] {
        let send = Send {
            opcode,
            sges: &sges,
            remote_addr: to.va + 0xddd,
            rkey: to.key,
            compare_add,
            swap,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut link.qp[0], &send);
        world.run();
        assert_eq!((word(&world, 0), word(&world, 1)), (before, after));
    }
    let done = completed(&mut world, 0, &mut link);
    assert!(
        done.iter().all(|(_, status, _)| *status == cqe::SUCCESS),
        "{done:?}"
    );
    assert_eq!(done.len(), 3);
    // SEND of inline data, solicited.
    post_recv(&mut world, &mut link, 64);
    post(&mut world, &mut link, wr::WR_SEND, 0, |send| {
        send.sges = &[];
        send.inline = Some(b"inline");
        send.flags = wr::WR_FLAG_SOLICITED;
    });
    world.run();
    let cqe = world.completions(1, &mut link.cq[1]);
    assert_eq!(
        (cqe[0].flags, cqe[0].byte_len.get()),
        (cqe::CQE_SOLICITED, 6)
    );
    assert_eq!(world.hosts[1].driver.read_mr(&link.mr[1], 0, 6), b"inline");
    assert_eq!(completed(&mut world, 0, &mut link).len(), 1);
    close(&mut world, &link);
}

#[test]
fn a_rejected_request_reports_the_private_data_of_the_reply() {
    let mut world = world(3);
    let (_, qp) = qp_in_init(&mut world, 0);
    let listener = world.hosts[1].driver.listen(any(false), 1).unwrap();
    let path = path(&world, 0, false, 40_000);
    let driver = &mut world.hosts[0].driver;
    driver.open(qp.qpn, path, &Private::default()).unwrap();
    world.run_for(SOON);
    let (_, object, token) = events(&mut world, 1)[0];
    assert_eq!(object, listener);
    let no = Private {
        data: b"no",
        ..Private::default()
    };
    let request = u32::try_from(token).unwrap();
    world.hosts[1].driver.reject(request, &no).unwrap();
    world.run();
    let rejected = u64::from(iwarp::REJECTED);
    assert_eq!(
        events(&mut world, 0),
        [(event::CONNECT_FAILED, qp.qpn, rejected)]
    );
    let (info, private) = world.hosts[0].driver.query_connection(qp.qpn).unwrap();
    assert_eq!(
        (info.close_reason, private.as_slice()),
        (iwarp::REJECTED, &b"no"[..])
    );
    assert_eq!(events(&mut world, 1), []);
    // The number can be used no more.
    assert!(world.hosts[1].driver.reject(request, &no).is_err());
}

#[test]
fn a_request_without_an_answer_ends_and_is_freed_by_the_driver() {
    let mut world = world(4);
    let (_, qp) = qp_in_init(&mut world, 0);
    let (_, other) = qp_in_init(&mut world, 1);
    world.hosts[1].driver.listen(any(false), 1).unwrap();
    let path = path(&world, 0, false, 40_000);
    let driver = &mut world.hosts[0].driver;
    driver.open(qp.qpn, path, &Private::default()).unwrap();
    world.run_for(SOON);
    let (_, _, token) = events(&mut world, 1)[0];
    let request = u32::try_from(token).unwrap();
    world.run();
    assert_eq!(events(&mut world, 1), [(event::REQUEST_GONE, request, 0)]);
    let reset = u64::from(iwarp::RESET);
    assert_eq!(
        events(&mut world, 0),
        [(event::CONNECT_FAILED, qp.qpn, reset)]
    );
    let driver = &mut world.hosts[1].driver;
    let gone = driver.accept(other.qpn, request, &Private::default());
    assert!(gone.is_err());
    driver.reject(request, &Private::default()).unwrap();
    assert!(driver.reject(request, &Private::default()).is_err());
}

#[test]
fn nobody_answers_and_the_connection_fails() {
    let mut world = world(5);
    let (_, qp) = qp_in_init(&mut world, 0);
    let path = path(&world, 0, false, 40_000);
    let driver = &mut world.hosts[0].driver;
    driver.open(qp.qpn, path, &Private::default()).unwrap();
    world.run();
    let timed_out = u64::from(iwarp::TIMED_OUT);
    assert_eq!(
        events(&mut world, 0),
        [(event::CONNECT_FAILED, qp.qpn, timed_out)]
    );
    assert_eq!(state(&mut world, 0, &qp), QPS_ERR);
}

/// Messages of all kinds and lengths in both directions, over a bad wire: each arrives once, in order, with its data.
#[test]
fn messages_pass_a_bad_wire_once_and_in_order() {
    let lengths = [1u32, 20, 1431, 1432, 1433, 4096, 70_001, 3];
    for (seed, loss, reordering, duplication, corruption) in [
        (11, 30, 0, 0, 0),
        (12, 0, 100, 0, 0),
        (13, 0, 0, 100, 0),
        (14, 20, 50, 50, 20),
        (15, 100, 0, 0, 0),
    ] {
        let mut world = world(seed);
        let mut link = connect(&mut world, false);
        world.impair(LinkModel {
            loss: loss * 1000,
            reorder: reordering * 1000,
            duplicate: duplication * 1000,
            corrupt: corruption * 1000,
            ..LinkModel::PLAIN
        });
        let [from, to] = link.mr;
        let mut offset = 0u64;
        let mut expected = Vec::new();
        for (n, len) in lengths.iter().cycle().take(48).enumerate() {
            let data: Vec<u8> = pattern(*len).iter().map(|octet| octet ^ n as u8).collect();
            world.hosts[0].driver.write_mr(&from, offset, &data);
            let sges = [(to.va + offset, *len, to.key)];
            world.hosts[1]
                .driver
                .post_recv(&mut link.qp[1], n as u32, &sges);
            let send = Send {
                opcode: wr::WR_SEND,
                sges: &[(from.va + offset, *len, from.key)],
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut link.qp[0], &send);
            offset += u64::from(*len) + 5;
            expected.push((n as u32, *len));
        }
        // READs of the other end's memory, into another place.
        let place = 900_000;
        world.hosts[0].driver.write_mr(&from, place, &pattern(100));
        let send = Send {
            opcode: wr::WR_READ,
            sges: &[(to.va + place, 100, to.key)],
            remote_addr: from.va + place,
            rkey: from.key,
            ..Send::default()
        };
        world.hosts[1].driver.post_send(&mut link.qp[1], &send);
        world.run();
        let mut received: Vec<_> = world.completions(1, &mut link.cq[1]);
        received.retain(|cqe| cqe.opcode == cqe::RECV);
        let found: Vec<_> = received
            .iter()
            .map(|cqe| (cqe.wqe.get(), cqe.byte_len.get()))
            .collect();
        assert_eq!(found, expected, "seed {seed}");
        let sent = completed(&mut world, 0, &mut link);
        assert_eq!(sent.len(), expected.len(), "seed {seed}");
        assert!(sent.iter().all(|(_, status, _)| *status == cqe::SUCCESS));
        let end = offset as usize;
        let sent = world.hosts[0].driver.read_mr(&from, 0, end);
        let arrived = world.hosts[1].driver.read_mr(&to, 0, end);
        let mut at = 0;
        for (_, len) in expected {
            let range = at..at + len as usize;
            assert_eq!(arrived[range.clone()], sent[range], "seed {seed}");
            at += len as usize + 5;
        }
        let read = world.hosts[1].driver.read_mr(&to, place, 100);
        assert_eq!(read, pattern(100));
    }
}

/// Memory of an idle queue pair with a connection; no timer runs.
#[test]
fn an_idle_connection_takes_little_memory_and_no_timer() {
    let mut world = world(6);
    let before = world.with_nic(0, |nic| nic.held_memory());
    let link = connect(&mut world, false);
    let after = world.with_nic(0, |nic| nic.held_memory());
    // Without the rings, the CQ and the region's page table.
    assert!(after - before < 16 << 10, "{} octets", after - before);
    assert_eq!(world.with_nic(0, |nic| nic.next_deadline()), None);
    assert_eq!(world.with_nic(1, |nic| nic.next_deadline()), None);
    assert!(!world.step(u64::MAX));
    close(&mut world, &link);
}

/// The driver destroys a queue pair, or the peer's host fails: the other end learns of it.
#[test]
fn the_end_of_one_queue_pair_ends_the_other() {
    for destroys in [true, false] {
        let mut world = world(8);
        let mut link = connect(&mut world, false);
        post_recv(&mut world, &mut link, 10);
        let [a, b] = [link.qp[0].qpn, link.qp[1].qpn];
        let driver = &mut world.hosts[0].driver;
        match destroys {
            true => drop(driver.command(DESTROY_QP, a, &()).unwrap()),
            false => driver.set_state(a, QPS_ERR).unwrap(),
        }
        world.run();
        let reset = u64::from(iwarp::RESET);
        assert_eq!(
            events(&mut world, 1),
            [(event::CONNECTION_CLOSED, b, reset)]
        );
        let aborted = (event::CONNECTION_CLOSED, a, u64::from(iwarp::ABORTED));
        let expected: &[_] = if destroys { &[] } else { &[aborted] };
        assert_eq!(events(&mut world, 0), expected);
        assert_eq!(
            completed(&mut world, 1, &mut link),
            [(cqe::RECV, cqe::WR_FLUSH_ERR, 0)]
        );
        // The ports can be used again.
        let mut link = connect(&mut world, false);
        post(&mut world, &mut link, wr::WR_WRITE, 10, |_| {});
        world.run();
        assert_eq!(completed(&mut world, 0, &mut link).len(), 1);
    }
}

/// The passive side sends first: the RTR message of the active one permits that.
#[test]
fn the_passive_side_may_send_first() {
    let mut world = world(9);
    let mut link = connect(&mut world, false);
    let [to, from] = link.mr;
    let sges = [(to.va, 9, to.key)];
    world.hosts[0].driver.post_recv(&mut link.qp[0], 0, &sges);
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(from.va, 9, from.key)],
        ..Send::default()
    };
    world.hosts[1].driver.post_send(&mut link.qp[1], &send);
    world.run();
    assert_eq!(
        completed(&mut world, 0, &mut link),
        [(cqe::RECV, cqe::SUCCESS, 9)]
    );
    assert_eq!(
        completed(&mut world, 1, &mut link),
        [(cqe::SEND, cqe::SUCCESS, 9)]
    );
}

/// True if the frame has data.
pub fn has_data(frame: &[u8]) -> bool {
    let (_, at_ip) = Ethernet::parse(frame).unwrap();
    let (ip, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
    let (_, tcp_len) = Tcp::parse(&frame[at_ip + ip_len..]).unwrap();
    ip.payload_len() > tcp_len
}

/// RTR is sent once more if the peer has sent nothing for a second.
#[test]
fn rtr_is_repeated_to_a_silent_peer() {
    for answers in [false, true] {
        let mut world = world(10);
        world.start_capture();
        let mut ends = [0, 1].map(|host| qp_in_init(&mut world, host));
        if answers {
            let mr = world.hosts[0].mr(100).unwrap();
            let sges = [(mr.va, 100, mr.key)];
            let [(_, a), (_, b)] = &mut ends;
            world.hosts[0].driver.post_recv(a, 0, &sges);
            let send = Send {
                opcode: wr::WR_SEND,
                inline: Some(b"answer"),
                ..Send::default()
            };
            world.hosts[1].driver.post_send(b, &send);
        }
        connect_qps(&mut world, false, ends);
        let frames = world.take_capture();
        let sent = frames
            .iter()
            .filter(|(host, frame)| *host == 0 && has_data(frame));
        // The setup request is the first.
        assert_eq!(sent.count(), if answers { 2 } else { 3 });
    }
}

/// The receiver closes, or fails, while a long message arrives: what is reported as received is what was sent.
#[test]
fn a_message_that_an_end_cuts_is_not_received_with_other_data() {
    let mut cut = 0;
    for (seed, state, after) in [
        (41, QPS_SQD, 3_000),
        (42, QPS_SQD, 30_000),
        (43, QPS_ERR, 30_000),
        (44, QPS_SQD, 200_000),
    ] {
        for loss in [0, 100] {
            let mut world = world(seed);
            let mut link = connect(&mut world, false);
            world.impair(LinkModel {
                loss: loss * 1000,
                ..LinkModel::PLAIN
            });
            let data = pattern(500_000);
            let len = data.len() as u32;
            world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
            post_recv(&mut world, &mut link, len);
            post(&mut world, &mut link, wr::WR_SEND, len, |_| {});
            world.run_for(after);
            let qpn = link.qp[1].qpn;
            world.hosts[1].driver.set_state(qpn, state).unwrap();
            world.run();
            let received = completed(&mut world, 1, &mut link);
            assert_eq!(received.len(), 1);
            let arrived = world.hosts[1].driver.read_mr(&link.mr[1], 0, data.len());
            match received[0].1 {
                cqe::SUCCESS => assert_eq!(arrived, data, "{seed} {loss}"),
                // What has been placed is the start of the message.
                _ => {
                    cut += 1;
                    let octets = arrived.iter().zip(&data);
                    let placed = octets.take_while(|(to, from)| to == from).count();
                    let rest = &arrived[placed..];
                    assert!(rest.iter().all(|octet| *octet == 0), "{seed} {loss}");
                }
            }
            let sent = completed(&mut world, 0, &mut link);
            assert_eq!(sent.len(), 1);
            if sent[0].1 == cqe::SUCCESS {
                assert_eq!(received[0].1, cqe::SUCCESS, "{seed} {loss}");
            }
        }
    }
    assert!(cut > 0);
}
