//! iWARP: ends of a stream while other octets are on their way, and what is left of a connection.

use std::cell::Cell;
use std::rc::Rc;

use faultline_abi::admin::{Counter, DESTROY_MKEY};
use faultline_abi::qp::{QPS_ERR, QPS_SQD, QPT_RC};
use faultline_abi::{cqe, event, iwarp, wqe as wr};
use faultline_simulation::{QpConfig, Send};
use faultline_simulator::World;
use faultline_wire::rdmap::TerminateCode as T;
use faultline_wire::{Ethernet, Ip, Seq, Tcp, TcpFlags};

use crate::common::{counter, pattern, state};
use crate::iwarp::{
    Link, completed, connect, connect_qps, events, has_data, path, post, qp_in_init, segment,
    statuses, world,
};

/// More than leaves at once.
const LONG: u32 = 1 << 20;
/// Nanoseconds that a frame takes.
const PACE: u64 = 1_000;
/// Nanoseconds in which a message has begun and a long one has not ended.
const BEGUN: u64 = 30 * PACE;

fn paced(seed: u64) -> World {
    let world = world(seed);
    world.pace(PACE);
    world
}

/// A host sends a message, for which the other one has no receive work request.
fn send_to_nothing(world: &mut World, link: &mut Link, host: usize) {
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"unexpected"),
        ..Send::default()
    };
    world.hosts[host]
        .driver
        .post_send(&mut link.qp[host], &send);
}

/// Counts the resets that both hosts send from now on.
fn count_resets(world: &World) -> Rc<Cell<u32>> {
    let resets = Rc::new(Cell::new(0));
    for host in 0..2 {
        let counts = Rc::clone(&resets);
        world.change(host, move |frame| {
            let (_, at_ip) = Ethernet::parse(&frame).unwrap();
            let (_, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
            let (tcp, _) = Tcp::parse(&frame[at_ip + ip_len..]).unwrap();
            let is_reset = tcp.flags.contains(TcpFlags::RST);
            counts.set(counts.get() + u32::from(is_reset));
            Some(frame)
        });
    }
    resets
}

/// How a connection has ended: reason and code of the Terminate message.
fn ended(world: &mut World, link: &Link, host: usize) -> (u8, u8, u8) {
    let driver = &mut world.hosts[host].driver;
    let (info, _) = driver.query_connection(link.qp[host].qpn).unwrap();
    (info.close_reason, info.terminate_type, info.terminate_code)
}

fn with(reason: u8, code: T) -> (u8, u8, u8) {
    (reason, code.layer << 4 | code.error_type, code.code)
}

/// Also behind a close: neither that nor the rest of the message has been sent.
#[test]
fn a_terminate_message_goes_ahead_of_octets_that_were_not_sent() {
    for closes in [false, true] {
        let mut world = paced(51);
        let mut link = connect(&mut world, false);
        let data = vec![0x5a; LONG as usize];
        world.hosts[0].driver.write_mr(&link.mr[0], 0, &data);
        post(&mut world, &mut link, wr::WR_WRITE, LONG, |_| {});
        world.run_for(BEGUN);
        if closes {
            let qpn = link.qp[0].qpn;
            world.hosts[0].driver.set_state(qpn, QPS_SQD).unwrap();
        }
        send_to_nothing(&mut world, &mut link, 1);
        world.run();
        let code = T::DDP_UNTAGGED_NO_BUFFER;
        let by_peer = with(iwarp::TERMINATED_BY_PEER, code);
        assert_eq!(ended(&mut world, &link, 1), by_peer, "{closes}");
        assert_eq!(ended(&mut world, &link, 0), with(iwarp::TERMINATED, code));
        let to = link.mr[1];
        let first = world.hosts[1].driver.read_mr(&to, 0, 1);
        let last = world.hosts[1].driver.read_mr(&to, u64::from(LONG) - 1, 1);
        assert_eq!((first[0], last[0]), (0x5a, 0), "a part has arrived");
        // All octets of the stream are acknowledged, but not those of the WRITE.
        let done = completed(&mut world, 0, &mut link);
        assert_eq!(statuses(&done), [cqe::WR_FLUSH_ERR]);
    }
}

#[test]
fn a_read_whose_memory_loses_its_key_ends_with_a_terminate_message() {
    let mut world = paced(52);
    let mut link = connect(&mut world, false);
    post(&mut world, &mut link, wr::WR_READ, LONG, |_| {});
    world.run_for(BEGUN);
    let key = link.mr[1].key;
    let driver = &mut world.hosts[1].driver;
    driver.command(DESTROY_MKEY, key, &[0u8; 0]).unwrap();
    world.run();
    let code = T::RDMAP_INVALID_STAG;
    let by_peer = with(iwarp::TERMINATED_BY_PEER, code);
    assert_eq!(ended(&mut world, &link, 0), by_peer);
    assert_eq!(ended(&mut world, &link, 1), with(iwarp::TERMINATED, code));
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(statuses(&done), [cqe::REM_ACCESS_ERR]);
}

/// The same for the sender's own buffer, whose work request has the reason.
#[test]
fn a_buffer_that_loses_its_key_ends_with_a_terminate_message() {
    let mut world = paced(53);
    let mut link = connect(&mut world, false);
    post(&mut world, &mut link, wr::WR_WRITE, LONG, |_| {});
    post(&mut world, &mut link, wr::WR_WRITE, 10, |_| {});
    world.run_for(BEGUN);
    let key = link.mr[0].key;
    let driver = &mut world.hosts[0].driver;
    driver.command(DESTROY_MKEY, key, &[0u8; 0]).unwrap();
    world.run();
    let code = T::RDMAP_LOCAL_CATASTROPHIC;
    let by_peer = with(iwarp::TERMINATED_BY_PEER, code);
    assert_eq!(ended(&mut world, &link, 1), by_peer);
    let done = completed(&mut world, 0, &mut link);
    assert_eq!(statuses(&done), [cqe::LOC_PROT_ERR, cqe::WR_FLUSH_ERR]);
    assert_eq!(state(&mut world, 0, &link.qp[0]), QPS_ERR);
}

/// Its work request is flushed, and both ends finish: the end that has closed can send no answer, and executes nothing.
#[test]
fn a_read_or_atomic_behind_the_close_of_the_peer_is_flushed() {
    for opcode in [wr::WR_READ, wr::WR_FETCH_ADD] {
        let mut world = paced(55);
        let mut link = connect(&mut world, false);
        let resets = count_resets(&world);
        let at = link.mr[1].va.next_multiple_of(8);
        let qpn = link.qp[1].qpn;
        world.hosts[1].driver.set_state(qpn, QPS_SQD).unwrap();
        post(&mut world, &mut link, opcode, 8, |send| {
            (send.remote_addr, send.compare_add) = (at, 1);
        });
        world.run();
        for host in 0..2 {
            let (reason, ..) = ended(&mut world, &link, host);
            assert_eq!(reason, iwarp::FINISHED, "host {host}, opcode {opcode}");
            assert_eq!(state(&mut world, host, &link.qp[host]), QPS_ERR);
        }
        assert_eq!(resets.get(), 0);
        let done = completed(&mut world, 0, &mut link);
        assert_eq!(statuses(&done), [cqe::WR_FLUSH_ERR]);
        assert_eq!(world.hosts[1].driver.read_mr(&link.mr[1], 0, 16), [0; 16]);
    }
}

/// Each end tells what it has refused, and drops the message of the other.
#[test]
fn terminate_messages_that_cross_end_a_connection_in_order() {
    let mut world = paced(56);
    let mut link = connect(&mut world, false);
    let resets = count_resets(&world);
    for host in 0..2 {
        send_to_nothing(&mut world, &mut link, host);
    }
    world.run();
    for host in 0..2 {
        let found = ended(&mut world, &link, host);
        let code = T::DDP_UNTAGGED_NO_BUFFER;
        assert_eq!(found, with(iwarp::TERMINATED, code), "host {host}");
        let closed = (event::CONNECTION_CLOSED, link.qp[host].qpn);
        let reason = u64::from(iwarp::TERMINATED);
        let found = events(&mut world, host);
        assert_eq!(found, [(closed.0, closed.1, reason)], "host {host}");
        assert_eq!(state(&mut world, host, &link.qp[host]), QPS_ERR);
    }
    assert_eq!(resets.get(), 0);
}

/// A segment from host 1 with the ends of the connection.
fn stray(world: &World, seq: Seq) -> Vec<u8> {
    let way = path(world, 0, false, 40_000);
    let tcp = Tcp {
        src_port: way.remote_port.get(),
        dst_port: way.local_port.get(),
        seq,
        ack: Seq(1),
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 1000,
        ..Tcp::default()
    };
    segment(world, 1, &tcp)
}

/// The guest's own stack has opened a connection with the same ports.
#[test]
fn a_connection_in_time_wait_takes_no_segment_of_another_one() {
    let mut world = world(54);
    let link = connect(&mut world, false);
    let filtered = |world: &mut World| counter(world, 0, Counter::rx_filtered);
    let frame = stray(&world, Seq(12_345));
    world.inject(1, frame.clone());
    world.run_for(BEGUN);
    assert_eq!(filtered(&mut world), 0, "the connection is open");
    let qpn = link.qp[0].qpn;
    world.hosts[0].driver.set_state(qpn, QPS_SQD).unwrap();
    world.run_for(1_000_000);
    let finished = u64::from(iwarp::FINISHED);
    let closed = (event::CONNECTION_CLOSED, qpn, finished);
    assert_eq!(events(&mut world, 0), [closed]);
    world.inject(1, frame);
    world.run_for(BEGUN);
    assert_eq!(filtered(&mut world), 1, "it goes to the netdev");
}

/// The peer has an acknowledgment for octets that wait for the next turn, and both ends have sent a FIN.
#[test]
fn octets_that_wait_for_a_turn_arrive_behind_both_closes() {
    const WRITES: u64 = 6_000;
    let mut world = world(57);
    let cq = world.hosts[0].cq(4).unwrap();
    let config = QpConfig {
        log_depth: 13,
        flags: 0,
        ..world.hosts[0].qp_config(QPT_RC, &cq)
    };
    let qp = world.hosts[0].driver.create_qp(&config).unwrap();
    world.hosts[0].driver.to_init(qp.qpn, 0).unwrap();
    let other = qp_in_init(&mut world, 1);
    let mut link = connect_qps(&mut world, false, [(cq, qp), other]);
    // The congestion window grows.
    post(&mut world, &mut link, wr::WR_WRITE, LONG, |_| {});
    world.run();
    let [from, to] = link.mr;
    let data = pattern(8 * WRITES as u32);
    world.hosts[0].driver.write_mr(&from, 0, &data);
    // The first segment waits on its way.
    let late = Rc::new(Cell::new(Vec::new()));
    let (seen, mut first) = (Rc::clone(&late), None);
    world.change(0, move |frame| {
        let seq = frame[38..42].to_vec();
        if has_data(&frame) && *first.get_or_insert(seq.clone()) == seq {
            seen.set(frame);
            return None;
        }
        Some(frame)
    });
    for at in (0..WRITES).map(|n| 8 * n) {
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va + at, 8, from.key)],
            remote_addr: to.va + at,
            rkey: to.key,
            ..Send::default()
        };
        world.hosts[0].driver.write_send(&mut link.qp[0], &write);
    }
    world.hosts[0].driver.ring_sends(&link.qp[0]);
    world.run_for(1_000_000);
    let qpn = link.qp[1].qpn;
    world.hosts[1].driver.set_state(qpn, QPS_SQD).unwrap();
    world.run_for(1_000_000);
    assert_eq!(events(&mut world, 1), []);
    world.inject(0, late.take());
    world.run();
    let finished = u64::from(iwarp::FINISHED);
    let closed = (event::CONNECTION_CLOSED, qpn, finished);
    assert_eq!(events(&mut world, 1), [closed]);
    assert!(world.hosts[1].driver.read_mr(&to, 0, data.len()) == data);
}

/// A connection that has ended keeps no octets that have arrived, also if its queue pair stays.
#[test]
fn octets_behind_a_gap_end_with_the_connection() {
    /// Two FPDUs.
    const LEN: u32 = 12_000;
    let mut world = world(58);
    let mut link = connect(&mut world, false);
    let before = counter(&mut world, 1, Counter::table_bytes);
    let mut is_first = true;
    world.change(0, move |frame| {
        let is_lost = has_data(&frame) && std::mem::take(&mut is_first);
        (!is_lost).then_some(frame)
    });
    post(&mut world, &mut link, wr::WR_WRITE, LEN, |_| {});
    world.run_for(1_000_000);
    let held = counter(&mut world, 1, Counter::table_bytes) - before;
    assert!(held >= 500, "{held}");
    let qpn = link.qp[1].qpn;
    world.hosts[1].driver.set_state(qpn, QPS_ERR).unwrap();
    let left = counter(&mut world, 1, Counter::table_bytes) - before;
    assert!(left + 500 <= held, "{left} of {held}");
}
