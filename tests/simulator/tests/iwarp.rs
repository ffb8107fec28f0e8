//! iWARP: two NICs with queue pairs over TCP.

use faultline_abi::cqe::{self, Cqe};
use faultline_abi::event::{self, Eqe};
use faultline_abi::iwarp::ConnectionPath;
use faultline_abi::qp::{
    ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, QPS_ERR, QPS_RTS, QPS_SQD,
    QPT_RC,
};
use faultline_abi::{U16, iwarp, wqe as wr};
use faultline_nic::{NicConfig, Transport};
use faultline_simulation::{Cq, Mr, Private, Qp, Send};
use faultline_simulator::World;
use faultline_wire::Gid;

use crate::common::{pattern, state};

const PORT: u16 = 4791;
const RIGHTS: u32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;

/// Two connected queue pairs with a CQ and a region each; host 0 has opened the connection.
pub struct Link {
    pub cq: [Cq; 2],
    pub qp: [Qp; 2],
    pub mr: [Mr; 2],
}

pub fn iwarp(config: &mut NicConfig) {
    config.transport = Transport::Iwarp;
    config.tcp_secret = [7, 9];
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
    if v6 { host.gid6 } else { host.gid4 }
}

/// The way from one host to the other.
pub fn path(world: &World, from: usize, v6: bool, local_port: u16) -> ConnectionPath {
    ConnectionPath {
        local_ip: address(world, from, v6).0,
        remote_ip: address(world, 1 - from, v6).0,
        local_port: U16::new(local_port),
        remote_port: U16::new(PORT),
        dmac: world.hosts[1 - from].mac.0,
        vlan: U16::new(0xffff),
        ..ConnectionPath::default()
    }
}

/// Any address, this port.
pub fn any() -> ConnectionPath {
    ConnectionPath {
        local_port: U16::new(PORT),
        vlan: U16::new(0xffff),
        ..ConnectionPath::default()
    }
}

/// A queue pair in INIT.
pub fn qp_in_init(world: &mut World, host: usize) -> (Cq, Qp) {
    let cq = world.hosts[host].cq(10);
    let qp = world.hosts[host].qp(QPT_RC, &cq);
    world.hosts[host].driver.to_init(qp.qpn, RIGHTS).unwrap();
    (cq, qp)
}

/// Opens a connection from host 0 to host 1.
pub fn connect(world: &mut World, v6: bool) -> Link {
    let (cq0, qp0) = qp_in_init(world, 0);
    let (cq1, qp1) = qp_in_init(world, 1);
    let listener = world.hosts[1].driver.listen(any(), 4).unwrap();
    let path = path(world, 0, v6, 40_000);
    let hello = Private {
        data: b"hello",
        ..Private::default()
    };
    world.hosts[0].driver.open(qp0.qpn, path, &hello).unwrap();
    world.run();
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
    let mr = [0, 1].map(|i| world.hosts[i].mr(1 << 20));
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

/// Both ends close in order.
pub fn close(world: &mut World, link: &Link) {
    let [a, b] = [link.qp[0].qpn, link.qp[1].qpn];
    world.hosts[0].driver.set_state(a, QPS_SQD).unwrap();
    world.run();
    let finished = u64::from(iwarp::FINISHED);
    assert_eq!(
        events(world, 1),
        [(event::PEER_CLOSED, b, 0), (event::CONNECTION_CLOSED, b, finished)]
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
