//! Processes of the emulator in virtual time: holds, pauses, VLANs, and NICs that move.

use std::time::Duration;

use faultline_abi::admin::QP_FLAG_SIG_ALL;
use faultline_abi::cqe::{RETRY_EXC_ERR, SUCCESS};
use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe::{WR_SEND, WR_WRITE};
use faultline_fabric::link_model::LinkModel;
use faultline_fabric::vlan::VlanMembership;
use faultline_nic::TURN_WORK;
use faultline_scenario::trigger::Direction;
use faultline_simulation::process::{NicShape, PortShape, Process, ProcessHost, ProcessShape};
use faultline_simulator::driver::ALL_ACCESS;
use faultline_simulator::{Connect, Cq, CqConfig, Mr, Qp, QpConfig, Send};

const LEN: u32 = 32 << 10;
const MS: u64 = 1_000_000;

/// One side of a connection.
pub(crate) struct Side {
    pub(crate) cq: Cq,
    qp: Qp,
    pub(crate) mr: Mr,
}

fn side(host: &mut ProcessHost) -> Side {
    let (cq, qp) = host.rc_pair(7).unwrap();
    let mr = host
        .driver
        .reg_mr(host.pd, 0x7f00_0000_0000, LEN.into(), ALL_ACCESS)
        .unwrap();
    Side { cq, qp, mr }
}

/// Makes the queue pair of a side ready to send along a path. A retry is made after 4 ms.
fn connect(host: &mut ProcessHost, own: &Side, path: Connect) {
    let path = Connect {
        timeout: 10,
        ..path
    };
    host.driver.connect(own.qp.qpn, QPT_RC, &path).unwrap();
}

/// A connection between two hosts of a process.
pub(crate) fn connection(process: &mut Process, hosts: [usize; 2]) -> [Side; 2] {
    let sides = hosts.map(|host| side(&mut process.hosts[host]));
    for (own, peer) in [(0, 1), (1, 0)] {
        let path = process.hosts[hosts[peer]].path(&sides[peer].qp);
        connect(&mut process.hosts[hosts[own]], &sides[own], path);
    }
    sides
}

/// Posts WRITEs of the whole region to the region of the other side.
fn post(host: &mut ProcessHost, from: &mut Side, to: &Mr, count: usize) {
    for _ in 0..count {
        let send = Send {
            opcode: WR_WRITE,
            sges: &[(from.mr.va, LEN, from.mr.key)],
            remote_addr: to.va,
            rkey: to.key,
            ..Send::default()
        };
        host.driver.post_send(&mut from.qp, &send);
    }
}

/// Posts WRITEs to the other side of a connection.
pub(crate) fn post_write(host: &mut ProcessHost, from: &mut Side, to: &Side, count: usize) {
    post(host, from, &to.mr, count);
}

pub(crate) fn statuses(host: &mut ProcessHost, cq: &mut Cq) -> Vec<u8> {
    std::iter::from_fn(|| host.driver.poll(cq))
        .map(|cqe| cqe.status)
        .collect()
}

fn nics(count: usize, engine: impl Fn(usize) -> usize) -> Vec<NicShape> {
    let nic = |nic| NicShape {
        engine: engine(nic),
        ..NicShape::default()
    };
    (0..count).map(nic).collect()
}

/// Two processes, connected by a port of each. The peer of the first takes a frame every ten microseconds. Returns how often its port
/// has held senders, and how many frames it had no room for.
fn through_a_slow_peer(hold: Duration) -> (u64, u64) {
    let shape = |room, first_address| ProcessShape {
        engines: 2,
        nics: nics(2, |nic| nic),
        ports: vec![PortShape {
            hold,
            room,
            ..PortShape::default()
        }],
        seed: 5,
        first_address,
    };
    let mut near = Process::new(&shape(1 << 20, 0)).unwrap();
    let mut far = Process::new(&shape(1 << 20, 2)).unwrap();
    // NIC 1 is of the engine without the port.
    let (mut own, mut peer) = (side(&mut near.hosts[1]), side(&mut far.hosts[0]));
    let (to_own, to_peer) = (near.hosts[1].path(&own.qp), far.hosts[0].path(&peer.qp));
    connect(&mut near.hosts[1], &own, to_peer);
    connect(&mut far.hosts[0], &peer, to_own);
    let (mut found, start) = (Vec::new(), near.now());
    // The switch learns the peer's address from the first answer. Before, frames are flooded, and hold nobody.
    for count in [1, 100] {
        post(&mut near.hosts[1], &mut own, &peer.mr, count);
        let wanted = found.len() + count;
        while found.len() < wanted {
            assert!(near.now() - start < 1000 * MS, "{} of 101", found.len());
            near.run_for(10_000);
            far.run_for(10_000);
            if let Some(frame) = near.peer(0).unwrap().take() {
                far.peer(0).unwrap().send(frame);
            }
            while let Some(frame) = far.peer(0).unwrap().take() {
                near.peer(0).unwrap().send(frame);
            }
            found.extend(statuses(&mut near.hosts[1], &mut own.cq));
        }
    }
    assert!(found.iter().all(|status| *status == SUCCESS));
    assert!(statuses(&mut far.hosts[0], &mut peer.cq).is_empty());
    let counts = near.port_counts(0).unwrap();
    (counts.holds, counts.overrun)
}

#[test]
fn a_slow_peer_holds_its_senders_on_all_engines_and_loses_nothing() {
    let (holds, overrun) = through_a_slow_peer(Duration::from_millis(100));
    assert!(holds > 0);
    assert_eq!(overrun, 0);
}

#[test]
fn without_holds_a_slow_peer_loses_frames() {
    let (holds, overrun) = through_a_slow_peer(Duration::ZERO);
    assert_eq!(holds, 0);
    assert!(overrun > 0);
}

/// Two NICs WRITE to a third, over a link of 1 Gbit/s that has room for 128 KiB. Returns pauses, and frames for which there was no room.
fn into_a_narrow_link(engines: usize, pause_bytes: u32) -> (u64, u64) {
    let mut nics = nics(3, |nic| nic % engines);
    nics[2].links[1] = Some(LinkModel {
        rate_mbps: 1000,
        queue_bytes: 128 << 10,
        pause_bytes,
        ..LinkModel::default()
    });
    let mut process = Process::new(&ProcessShape {
        engines,
        nics,
        ports: Vec::new(),
        seed: 9,
        first_address: 0,
    })
    .unwrap();
    let mut pairs = [
        connection(&mut process, [0, 2]),
        connection(&mut process, [1, 2]),
    ];
    for (host, [from, to]) in pairs.iter_mut().enumerate() {
        post(&mut process.hosts[host], from, &to.mr, 8);
    }
    process.run_for(500 * MS);
    for (host, [from, _]) in pairs.iter_mut().enumerate() {
        let found = statuses(&mut process.hosts[host], &mut from.cq);
        assert_eq!(found, [SUCCESS; 8]);
    }
    let counts = process.link_counts(2, Direction::Rx).unwrap();
    assert!(process.watched().violations.is_empty());
    (counts.pauses, counts.queue_full)
}

#[test]
fn a_link_pauses_senders_of_all_engines_before_it_is_full() {
    for engines in [1, 2, 3] {
        let (pauses, lost) = into_a_narrow_link(engines, 32 << 10);
        assert!(pauses > 0, "{engines} engines");
        assert_eq!(lost, 0, "{engines} engines");
    }
    let (pauses, lost) = into_a_narrow_link(2, 0);
    assert_eq!(pauses, 0);
    assert!(lost > 0);
}

#[test]
fn nics_of_different_vlans_do_not_reach_each_other() {
    for (engines, vlans, expected) in [
        (1, [7, 8], RETRY_EXC_ERR),
        (2, [7, 8], RETRY_EXC_ERR),
        (2, [7, 7], SUCCESS),
    ] {
        let mut nics = nics(2, |nic| nic % engines);
        for (nic, vlan) in nics.iter_mut().zip(vlans) {
            nic.vlans = Some(VlanMembership::new(Some(vlan), None));
        }
        let mut process = Process::new(&ProcessShape {
            engines,
            nics,
            ports: Vec::new(),
            seed: 1,
            first_address: 0,
        })
        .unwrap();
        let [mut from, to] = connection(&mut process, [0, 1]);
        post(&mut process.hosts[0], &mut from, &to.mr, 1);
        process.run_for(2000 * MS);
        assert_eq!(statuses(&mut process.hosts[0], &mut from.cq), [expected]);
        let dropped = process.with_port(0, |port| port.faults.counts.vlan);
        assert_eq!(dropped.unwrap() > 0, expected != SUCCESS);
    }
}

#[test]
fn a_nic_that_moves_keeps_its_connection() {
    let mut process = Process::new(&ProcessShape {
        engines: 3,
        nics: nics(2, |_| 0),
        ports: Vec::new(),
        seed: 2,
        first_address: 0,
    })
    .unwrap();
    let [mut from, to] = connection(&mut process, [0, 1]);
    let mut ended = 0;
    for (turn, engine) in [1, 2, 0, 2, 1].into_iter().enumerate() {
        post(&mut process.hosts[0], &mut from, &to.mr, 4);
        process.move_nics(&[turn % 2], engine);
        process.run_for(MS);
        let found = statuses(&mut process.hosts[0], &mut from.cq);
        assert!(found.iter().all(|status| *status == SUCCESS));
        ended += found.len();
    }
    assert_eq!(ended, 20);
    assert!(process.watched().violations.is_empty());
}

/// The first NIC sends a message to each of `pairs` queue pairs of the last one that is longer than its receives, all at once. Each ends a
/// connection with a thousand receives. Returns the most work of the last NIC in one pass of its engine. Two processes are connected by
/// their ports.
fn connections_that_end(shapes: &[ProcessShape], pairs: usize) -> u64 {
    const LOG_DEPTH: u8 = 10;
    let processes = shapes.iter().map(|shape| Process::new(shape).unwrap());
    let mut processes: Vec<Process> = processes.collect();
    let last = shapes.last().unwrap();
    let far = (shapes.len() - 1, last.nics.len() - 1);
    let of_host = |host: &mut ProcessHost| {
        let cq = host.driver.create_cq(CqConfig {
            log_depth: 16,
            eqn: host.eqn,
            uctx: 0,
        });
        let cq = cq.unwrap();
        let qps: Vec<Qp> = (0..pairs)
            .map(|_| {
                let config = QpConfig {
                    kind: QPT_RC,
                    pd: host.pd,
                    uctx: 0,
                    send_cqn: cq.cqn,
                    recv_cqn: cq.cqn,
                    srqn: None,
                    log_depth: LOG_DEPTH,
                    max_sge: 1,
                    flags: QP_FLAG_SIG_ALL,
                };
                host.driver.create_qp(&config).unwrap()
            })
            .collect();
        let access = ALL_ACCESS;
        let mr = host.driver.reg_mr(host.pd, 0x7f00_0000_0000, 4096, access);
        (cq, qps, mr.unwrap())
    };
    let (_, mut from, source) = of_host(&mut processes[0].hosts[0]);
    let (mut cq, mut to, target) = of_host(&mut processes[far.0].hosts[far.1]);
    for (from, to) in from.iter().zip(&mut to) {
        let path = processes[far.0].hosts[far.1].path(to);
        let back = processes[0].hosts[0].path(from);
        let driver = &mut processes[0].hosts[0].driver;
        driver.connect(from.qpn, QPT_RC, &path).unwrap();
        let driver = &mut processes[far.0].hosts[far.1].driver;
        driver.connect(to.qpn, QPT_RC, &back).unwrap();
        for tag in 0..(1 << LOG_DEPTH) - 1 {
            driver.post_recv(to, tag, &[(target.va, 8, target.key)]);
        }
    }
    let send = Send {
        opcode: WR_SEND,
        sges: &[(source.va, 100, source.key)],
        ..Send::default()
    };
    for from in &mut from {
        processes[0].hosts[0].driver.post_send(from, &send);
    }
    for _ in 0..100 {
        processes.iter().for_each(|process| process.run_for(MS));
        if let [near, far] = &processes[..] {
            exchange(near, far);
        }
    }
    let host = &mut processes[far.0].hosts[far.1];
    let ended = statuses(host, &mut cq);
    assert_eq!(ended.len(), pairs * ((1 << LOG_DEPTH) - 1));
    processes[far.0].longest_pass(last.nics[far.1].engine)
}

/// Passes all frames that wait at the ports of two processes to the other one.
fn exchange(near: &Process, far: &Process) {
    let peers = [near, far].map(|process| process.peer(0).unwrap());
    for [from, to] in [peers, [peers[1], peers[0]]] {
        while let Some(frame) = from.take() {
            to.send(frame);
        }
    }
}

/// Whether they come out of a modelled link, from another engine or through a port. A link with a delay delivers all of them at one
/// instant, and so does the peer of the port. A pass looks at the commands of all NICs, so its work is what a
/// neighbour's command waits for.
#[test]
fn frames_that_cost_much_wait_for_their_turn() {
    let delayed = LinkModel {
        delay_ns: 100_000,
        ..LinkModel::default()
    };
    let nic = |link, engine| NicShape {
        links: [link, None],
        engine,
        ..NicShape::default()
    };
    let shape = |engines| ProcessShape {
        engines,
        nics: vec![nic(Some(delayed), 0), nic(None, engines - 1)],
        seed: 3,
        ..ProcessShape::default()
    };
    let with_port = |first_address| ProcessShape {
        engines: 1,
        nics: vec![nic(None, 0)],
        ports: vec![PortShape {
            room: 1 << 20,
            ..PortShape::default()
        }],
        seed: 3,
        first_address,
    };
    for (what, shapes) in [
        ("a modelled link", vec![shape(1)]),
        ("another engine", vec![shape(2)]),
        ("a port", vec![with_port(0), with_port(1)]),
    ] {
        let one = connections_that_end(&shapes, 1);
        let pairs = 24;
        assert!(one * pairs > 2 * TURN_WORK, "{what}: {one} is too little");
        let most = connections_that_end(&shapes, usize::try_from(pairs).unwrap());
        // The last one of a turn may begin before the limit is reached, and answers come back in the same pass.
        assert!(most <= TURN_WORK + 2 * one, "{what}: {most}, one is {one}");
        assert!(
            most >= TURN_WORK,
            "{what}: {most}, the limit was not reached"
        );
    }
}
