//! iWARP: segments that end a stream, and the Terminate messages that say why.

use faultline_abi::admin::Counter;
use faultline_abi::qp::{QPS_ERR, QPT_RC};
use faultline_abi::{cqe, event, iwarp, wqe as wr};
use faultline_nic::Diagnostic as D;
use faultline_simulation::{Private, Send};
use faultline_simulator::World;
use faultline_wire::mpa::{Crc32c, Fpdu};
use faultline_wire::rdmap::TerminateCode as T;
use faultline_wire::{Ethernet, Ip, Tcp, TcpFlags};

use crate::common::{counter, state};
use crate::iwarp::{
    any, completed, connect, events, has_data, path, post, post_recv, seal, segment, statuses,
    world,
};

/// Changes the DDP segment of a frame, and makes both checksums right again.
fn rewrite(frame: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let (_, at_ip) = Ethernet::parse(frame).unwrap();
    let (ip, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
    let at_tcp = at_ip + ip_len;
    let (_, tcp_len) = Tcp::parse(&frame[at_tcp..]).unwrap();
    let at = at_tcp + tcp_len;
    let (fpdu, _) = Fpdu::parse(&frame[at..]).unwrap();
    let end = at + fpdu.len();
    change(&mut frame[at + 2..end - 4]);
    let mut crc = Crc32c::default();
    crc.update(&frame[at..end - 4]);
    frame[end - 4..end].copy_from_slice(&crc.finish().to_le_bytes());
    seal(frame, &ip, at_tcp);
}

/// Host 0 sends a request that is changed on its way; host 1 must refuse it with this code.
fn refused(opcode: u8, code: T, change: impl Fn(&mut [u8]) + 'static) {
    let mut world = world(21);
    let mut link = connect(&mut world, false);
    post_recv(&mut world, &mut link, 500);
    let mut left = 1;
    world.change(0, move |mut frame| {
        if left > 0 && has_data(&frame) {
            left -= 1;
            rewrite(&mut frame, &change);
        }
        Some(frame)
    });
    post(&mut world, &mut link, opcode, 100, |_| {});
    world.run();
    let [a, b] = [link.qp[0].qpn, link.qp[1].qpn];
    let about = |host: usize| {
        let all = world.take_diagnostics(host);
        let is_about = |found: &D| {
            matches!(
                found,
                D::TerminateSent { .. } | D::TerminateReceived { .. } | D::ConnectionEnded { .. }
            )
        };
        let found = all.into_iter().map(|(_, found)| found);
        found.filter(is_about).collect::<Vec<_>>()
    };
    let ended = |qpn: u32, reason: u8| D::ConnectionEnded { qpn, reason };
    let sent = D::TerminateSent { qpn: b, code };
    assert_eq!(about(1), [sent, ended(b, iwarp::TERMINATED)]);
    let received = D::TerminateReceived { qpn: a, code };
    assert_eq!(about(0), [received, ended(a, iwarp::TERMINATED_BY_PEER)]);
    let expected = match (code.layer, code.error_type) {
        (0 | 1, 1) => (1, 0),
        (0 | 1, 2) => (0, 1),
        _ => (0, 0),
    };
    let mut counts = |host, access, invalid| {
        let access = counter(&mut world, host, access);
        (access, counter(&mut world, host, invalid))
    };
    let of_responder = counts(
        1,
        Counter::resp_remote_access_errors,
        Counter::resp_invalid_request,
    );
    let of_requester = counts(
        0,
        Counter::req_remote_access_errors,
        Counter::req_remote_invalid_request,
    );
    assert_eq!(
        (of_responder, of_requester),
        (expected, expected),
        "{code:?}"
    );
    let closed = |qpn: u32, reason: u8| (event::CONNECTION_CLOSED, qpn, u64::from(reason));
    assert_eq!(
        events(&mut world, 1),
        [closed(b, iwarp::TERMINATED)],
        "{code:?}"
    );
    assert_eq!(
        events(&mut world, 0),
        [closed(a, iwarp::TERMINATED_BY_PEER)],
        "{code:?}"
    );
    for host in 0..2 {
        let qpn = link.qp[host].qpn;
        let (info, _) = world.hosts[host].driver.query_connection(qpn).unwrap();
        let found = (info.terminate_type, info.terminate_code);
        assert_eq!(
            found,
            (code.layer << 4 | code.error_type, code.code),
            "{code:?}"
        );
        assert_eq!(state(&mut world, host, &link.qp[host]), QPS_ERR);
    }
    // The receive is flushed, and nothing is left.
    let received = completed(&mut world, 1, &mut link);
    assert_eq!(received.len(), 1, "{code:?}");
    assert_ne!(received[0].1, cqe::SUCCESS);
}

#[test]
fn each_rule_of_ddp_and_rdmap_has_its_code() {
    let (send, write) = (wr::WR_SEND, wr::WR_WRITE);
    refused(write, T::DDP_TAGGED_VERSION, |ddp| ddp[0] ^= 3);
    refused(send, T::DDP_UNTAGGED_VERSION, |ddp| ddp[0] ^= 3);
    refused(send, T::RDMAP_VERSION, |ddp| ddp[1] ^= 0xc0);
    refused(send, T::DDP_UNTAGGED_QUEUE, |ddp| ddp[9] = 9);
    refused(send, T::DDP_UNTAGGED_MSN_RANGE, |ddp| ddp[13] += 1);
    refused(send, T::DDP_UNTAGGED_OFFSET, |ddp| ddp[17] = 1);
    // A READ request in the queue of SEND, a reserved opcode.
    refused(send, T::RDMAP_OPCODE, |ddp| ddp[1] = 0x41);
    refused(send, T::RDMAP_OPCODE, |ddp| ddp[1] = 0x4f);
    refused(write, T::RDMAP_OPCODE, |ddp| ddp[1] = 0x42);
    // Another variant of the key, and an address outside of it.
    refused(write, T::DDP_TAGGED_INVALID_STAG, |ddp| ddp[5] ^= 1);
    refused(write, T::DDP_TAGGED_BOUNDS, |ddp| ddp[6] = 0x10);
    refused(write, T::DDP_TAGGED_OFFSET_WRAP, |ddp| {
        ddp[6..14].fill(0xff)
    });
    // SEND with invalidate of a key that does not exist.
    refused(send, T::RDMAP_CANNOT_INVALIDATE, |ddp| {
        ddp[1] = 0x44;
        ddp[2..6].fill(0xee);
    });
}

#[test]
fn a_damaged_fpdu_is_not_executed() {
    let mut world = world(22);
    let mut link = connect(&mut world, false);
    let mut left = 1;
    world.change(0, move |mut frame| {
        if left > 0 && has_data(&frame) {
            left -= 1;
            let last = frame.len() - 6;
            frame[last] ^= 1;
            let (_, at_ip) = Ethernet::parse(&frame).unwrap();
            let (ip, ip_len) = Ip::parse(&frame[at_ip..]).unwrap();
            seal(&mut frame, &ip, at_ip + ip_len);
        }
        Some(frame)
    });
    world.hosts[0].driver.write_mr(&link.mr[0], 0, &[0x77; 100]);
    post(&mut world, &mut link, wr::WR_WRITE, 100, |_| {});
    world.run();
    let qpn = link.qp[1].qpn;
    let (info, _) = world.hosts[1].driver.query_connection(qpn).unwrap();
    assert_eq!(info.close_reason, iwarp::TERMINATED);
    assert_eq!(
        (info.terminate_type, info.terminate_code),
        (0x20, T::MPA_CRC.code)
    );
    assert_eq!(world.hosts[1].driver.read_mr(&link.mr[1], 0, 100), [0; 100]);
}

#[test]
fn a_message_without_receive_and_one_that_is_too_long_end_the_stream() {
    for (posted, code) in [
        (None, T::DDP_UNTAGGED_NO_BUFFER),
        (Some(99), T::DDP_UNTAGGED_TOO_LONG),
    ] {
        let mut world = world(23);
        let mut link = connect(&mut world, false);
        if let Some(len) = posted {
            post_recv(&mut world, &mut link, len);
        }
        post(&mut world, &mut link, wr::WR_SEND, 100, |_| {});
        world.run();
        let qpn = link.qp[0].qpn;
        let (info, _) = world.hosts[0].driver.query_connection(qpn).unwrap();
        let found = (info.close_reason, info.terminate_type, info.terminate_code);
        let expected = code.layer << 4 | code.error_type;
        assert_eq!(found, (iwarp::TERMINATED_BY_PEER, expected, code.code));
        let received = completed(&mut world, 1, &mut link);
        let too_long = posted.map(|_| cqe::LOC_LEN_ERR);
        assert_eq!(
            statuses(&received),
            too_long.into_iter().collect::<Vec<_>>()
        );
    }
}

#[test]
fn work_requests_that_iwarp_does_not_have_fail_with_a_status() {
    for opcode in [wr::WR_SEND_IMM, wr::WR_ATOMIC_WRITE, wr::WR_FLUSH, 99] {
        let mut world = world(24);
        let mut link = connect(&mut world, false);
        let send = Send {
            opcode,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut link.qp[0], &send);
        post(&mut world, &mut link, wr::WR_SEND, 1, |_| {});
        world.run();
        let done = completed(&mut world, 0, &mut link);
        assert_eq!(
            statuses(&done),
            [cqe::LOC_QP_OP_ERR, cqe::WR_FLUSH_ERR],
            "{opcode}"
        );
        assert_eq!(state(&mut world, 1, &link.qp[1]), QPS_ERR);
    }
}

#[test]
fn an_iwarp_adapter_refuses_what_it_does_not_have() {
    use faultline_abi::qp::{QPT_GSI, QPT_RAW, QPT_UC, QPT_UD, QPT_XRC_INI, QPT_XRC_TGT};
    let mut world = world(25);
    let cq = world.hosts[0].cq(4).unwrap();
    for kind in [QPT_GSI, QPT_UC, QPT_UD, QPT_XRC_INI, QPT_XRC_TGT] {
        let config = world.hosts[0].qp_config(kind, &cq);
        assert!(world.hosts[0].driver.create_qp(&config).is_err(), "{kind}");
    }
    for kind in [QPT_RC, QPT_RAW] {
        let config = world.hosts[0].qp_config(kind, &cq);
        assert!(world.hosts[0].driver.create_qp(&config).is_ok(), "{kind}");
    }
    assert!(world.hosts[0].driver.alloc_xrcd().is_err());
}

/// Raw segments of a host without a connection: a peer that opens connections and sends no setup frame, or a part of one.
#[test]
fn a_peer_that_does_not_finish_its_setup_holds_a_place_for_a_limited_time_only() {
    let mut world = world(26);
    let cq = world.hosts[0].cq(4).unwrap();
    let qp = world.hosts[0].qp(QPT_RC, &cq).unwrap();
    world.hosts[0].driver.to_init(qp.qpn, 0).unwrap();
    let driver = &mut world.hosts[1].driver;
    let listener = driver.listen(any(false), 3).unwrap();
    let before = world.with_nic(1, |nic| nic.held_memory());
    // Each SYN has another port; nobody answers what host 1 replies.
    for port in 1..200 {
        let frame = syn(&world, port);
        world.inject(0, frame);
    }
    world.run_for(1_000_000);
    let held = world.with_nic(1, |nic| nic.held_memory());
    assert!(
        held > before && held - before < 8 << 10,
        "{}",
        held - before
    );
    world.run();
    assert_eq!(world.with_nic(1, |nic| nic.held_memory()), before);
    assert_eq!(events(&mut world, 1), []);
    // Its places are free again. The setup frame of this one never ends.
    world.change(0, |mut frame| {
        if has_data(&frame) {
            let at = frame.len() - 1;
            frame.truncate(at);
            cut_data(&mut frame);
        }
        Some(frame)
    });
    let way = path(&world, 0, false, 40_000);
    let driver = &mut world.hosts[0].driver;
    driver.open(qp.qpn, way, &Private::default()).unwrap();
    world.run();
    assert_eq!(events(&mut world, 1), []);
    let failed = events(&mut world, 0);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, event::CONNECT_FAILED);
    assert_eq!(world.with_nic(1, |nic| nic.held_memory()), before);
    world.hosts[1].driver.unlisten(listener).unwrap();
}

/// Makes the headers of a frame right again whose last octet of data was cut off.
fn cut_data(frame: &mut [u8]) {
    let (_, at_ip) = Ethernet::parse(frame).unwrap();
    let have = frame.len() - at_ip;
    let (mut ip, ip_len) = Ip::parse_start(&frame[at_ip..], have + 1).unwrap();
    ip.set_payload_len(have - ip_len).unwrap();
    ip.emit(&mut frame[at_ip..]).unwrap();
    seal(frame, &ip, at_ip + ip_len);
}

/// A SYN of host 0 to the listener of host 1.
fn syn(world: &World, port: u16) -> Vec<u8> {
    let tcp = Tcp {
        src_port: port,
        dst_port: any(false).local_port.get(),
        flags: TcpFlags::SYN,
        window: 1000,
        ..Tcp::default()
    };
    segment(world, 0, &tcp)
}
