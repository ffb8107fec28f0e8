//! Counters with the names that monitoring reads from adapters of other makers (`hw_counters` of mlx5): each counts its
//! event and nothing else. Each test compares all of them, on both hosts.

use faultline_abi::admin::Counter::{self, *};
use faultline_abi::qp::{QPS_ERR, QPT_RAW, QPT_RC, QPT_UC};
use faultline_abi::wqe as wr;
use faultline_nic::Dcqcn;
use faultline_simulation::Send;
use faultline_simulator::{Pair, World};
use faultline_wire::opcode::OpKind;

use crate::common::counter;

const LEN: u32 = 64 << 10;
/// Packets that a switch may mark.
const ECT: u8 = 2;

/// What is compared.
const COUNTERS: &[Counter] = &[
    out_of_buffer,
    out_of_sequence,
    duplicate_request,
    local_ack_timeout_err,
    packet_seq_err,
    implied_nak_seq_err,
    rnr_nak_retry_err,
    rnr_nak_received,
    rnr_nak_sent,
    rx_read_requests,
    rx_write_requests,
    rx_atomic_requests,
    cqe_error,
    cqe_flush_error,
    req_cqe_error,
    req_cqe_flush_error,
    resp_cqe_error,
    resp_cqe_flush_error,
    req_remote_access_errors,
    resp_remote_access_errors,
    req_remote_invalid_request,
    resp_local_length_error,
    req_transport_retries_exceeded,
    req_rnr_retries_exceeded,
    np_cnp_sent,
    rp_cnp_handled,
    rp_cnp_ignored,
    np_ecn_marked_roce_packets,
    rx_icrc_errors,
];

struct Setup {
    world: World,
    pair: Pair,
    before: [Vec<u64>; 2],
}

impl Setup {
    fn new() -> Self {
        Self::in_world(World::new(2, 1), QPT_RC)
    }

    fn in_world(mut world: World, kind: u8) -> Self {
        let pair = world.connect(kind, LEN.into(), |c| {
            (c.rnr_retry, c.retry_cnt, c.traffic_class) = (2, 2, ECT);
        });
        let before = [0, 1].map(|host| values(&mut world, host));
        Self {
            world,
            pair,
            before,
        }
    }

    fn post(&mut self, opcode: u8, len: u32) {
        let rkey = self.pair.mr[1].key;
        self.post_with(opcode, len, rkey);
    }

    fn post_with(&mut self, opcode: u8, len: u32, rkey: u32) {
        let (mr, remote) = (self.pair.mr[0], self.pair.mr[1]);
        let send = Send {
            opcode,
            sges: &[(mr.va, len, mr.key)],
            // Aligned, for atomic operations.
            remote_addr: remote.va.next_multiple_of(8),
            rkey,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &send);
    }

    fn receive(&mut self, len: u32) {
        let mr = self.pair.mr[1];
        let driver = &mut self.world.hosts[1].driver;
        driver.post_recv(&mut self.pair.qp[1], 1, &[(mr.va, len, mr.key)]);
    }

    /// Runs the world to its end, and compares the counts of each host since the last call.
    fn counts(&mut self, requester: &[(Counter, u64)], responder: &[(Counter, u64)]) {
        self.world.run();
        for (host, expected) in [requester, responder].into_iter().enumerate() {
            let now = values(&mut self.world, host);
            let before = std::mem::replace(&mut self.before[host], now.clone());
            let grown: Vec<_> = (COUNTERS.iter().copied())
                .zip(now.iter().zip(before).map(|(now, before)| now - before))
                .filter(|(_, more)| *more > 0)
                .collect();
            let mut expected = expected.to_vec();
            expected.retain(|(_, more)| *more > 0);
            expected.sort_by_key(|(counter, _)| COUNTERS.iter().position(|c| c == counter));
            assert_eq!(grown, expected, "host {host}");
        }
    }
}

fn values(world: &mut World, host: usize) -> Vec<u64> {
    let value = |name: &Counter| counter(world, host, *name);
    COUNTERS.iter().map(value).collect()
}

/// Of a message of several packets one request is counted, and of the parts of a run.
#[test]
fn requests_are_counted_by_kind_once_for_each_message() {
    let mut s = Setup::new();
    s.post(wr::WR_WRITE, 40_000);
    s.post(wr::WR_WRITE, 0);
    s.post(wr::WR_READ, 40_000);
    s.post(wr::WR_FETCH_ADD, 8);
    s.post(wr::WR_COMP_SWAP, 8);
    s.counts(
        &[],
        &[
            (rx_write_requests, 2),
            (rx_read_requests, 1),
            (rx_atomic_requests, 2),
        ],
    );
    s.receive(100);
    s.post(wr::WR_SEND, 100);
    s.counts(&[], &[]);
    s.receive(0);
    s.post(wr::WR_WRITE_IMM, 100);
    s.counts(&[], &[(rx_write_requests, 1)]);
    s.post(wr::WR_ATOMIC_WRITE, 8);
    s.counts(&[], &[(rx_atomic_requests, 1)]);
    let mut s = Setup::in_world(World::new(2, 1), QPT_UC);
    s.post(wr::WR_WRITE, 40_000);
    s.counts(&[], &[(rx_write_requests, 1)]);
}

/// A WRITE by reference arrives as one frame.
#[test]
fn a_run_of_packets_is_one_request() {
    let world = World::new(2, 1);
    world.hand_over_by_reference();
    let mut s = Setup::in_world(world, QPT_RC);
    s.post(wr::WR_WRITE, 40_000);
    s.post(wr::WR_READ, 40_000);
    s.counts(&[], &[(rx_write_requests, 1), (rx_read_requests, 1)]);
}

/// A repeated request is executed once, and counted as a duplicate.
#[test]
fn repetitions_are_duplicates() {
    for (opcode, requests) in [
        (wr::WR_WRITE, rx_write_requests),
        (wr::WR_READ, rx_read_requests),
        (wr::WR_FETCH_ADD, rx_atomic_requests),
    ] {
        let mut s = Setup::new();
        let mut lost = false;
        // The first answer.
        (s.world).lose(move |from, _| from == 1 && !std::mem::replace(&mut lost, true));
        s.post(opcode, 8);
        s.counts(
            &[(local_ack_timeout_err, 1)],
            &[(requests, 1), (duplicate_request, 1)],
        );
    }
}

/// A request that finds no receive: of a reliable connection it is sent again until no retry is left.
#[test]
fn a_missing_receive_is_out_of_buffer() {
    let mut s = Setup::new();
    s.post(wr::WR_SEND, 100);
    s.counts(
        &[
            (rnr_nak_received, 3),
            (rnr_nak_retry_err, 2),
            (req_rnr_retries_exceeded, 1),
            (cqe_error, 1),
            (req_cqe_error, 1),
        ],
        &[(out_of_buffer, 3), (rnr_nak_sent, 3)],
    );
    let mut s = Setup::new();
    s.post(wr::WR_WRITE_IMM, 100);
    s.world.run_for(10_000);
    s.receive(0);
    s.counts(
        &[(rnr_nak_received, 1), (rnr_nak_retry_err, 1)],
        &[
            (out_of_buffer, 1),
            (rnr_nak_sent, 1),
            (rx_write_requests, 1),
        ],
    );
    let mut s = Setup::in_world(World::new(2, 1), QPT_UC);
    s.post(wr::WR_SEND, 100);
    s.counts(&[], &[(out_of_buffer, 1)]);
}

/// The acknowledgement of a later request shows that the response of a READ was lost.
#[test]
fn a_lost_response_is_an_implied_nak() {
    let mut s = Setup::new();
    let mut lost = false;
    s.world.lose(move |_, header| {
        let is_response = header.bth.opcode.info().kind == OpKind::ReadResponse;
        is_response && !std::mem::replace(&mut lost, true)
    });
    s.post(wr::WR_READ, 100);
    s.post(wr::WR_WRITE, 100);
    s.counts(
        &[(implied_nak_seq_err, 1)],
        &[
            (rx_read_requests, 1),
            (rx_write_requests, 1),
            // Both are sent again.
            (duplicate_request, 2),
        ],
    );
}

#[test]
fn a_lost_request_is_a_sequence_error() {
    let mut s = Setup::new();
    let mut lost = false;
    (s.world).lose(move |from, _| from == 0 && !std::mem::replace(&mut lost, true));
    s.post(wr::WR_WRITE, 100);
    s.post(wr::WR_WRITE, 100);
    s.counts(
        &[(packet_seq_err, 1)],
        &[(out_of_sequence, 1), (rx_write_requests, 2)],
    );
}

#[test]
fn a_dead_peer_exceeds_the_retries() {
    let mut s = Setup::new();
    s.world.lose(|_, _| true);
    s.post(wr::WR_WRITE, 100);
    s.post(wr::WR_WRITE, 100);
    s.receive(100);
    s.counts(
        &[
            // The first transmission and two retries.
            (local_ack_timeout_err, 3),
            (req_transport_retries_exceeded, 1),
            (cqe_error, 1),
            (cqe_flush_error, 1),
            // The flushed completion included.
            (req_cqe_error, 2),
            (req_cqe_flush_error, 1),
        ],
        &[],
    );
}

#[test]
fn a_wrong_key_is_counted_on_both_sides() {
    let mut s = Setup::new();
    s.receive(100);
    s.receive(100);
    s.post_with(wr::WR_WRITE, 100, 0);
    s.counts(
        &[
            (req_remote_access_errors, 1),
            (cqe_error, 1),
            (req_cqe_error, 1),
        ],
        // The connection ends, and its receives are flushed.
        &[
            (resp_remote_access_errors, 1),
            (cqe_flush_error, 2),
            (resp_cqe_error, 2),
            (resp_cqe_flush_error, 2),
        ],
    );
}

#[test]
fn too_long_messages_are_counted_on_both_sides() {
    let mut s = Setup::new();
    s.receive(99);
    s.post(wr::WR_SEND, 100);
    s.counts(
        &[
            (req_remote_invalid_request, 1),
            (cqe_error, 1),
            (req_cqe_error, 1),
        ],
        &[
            (resp_local_length_error, 1),
            (cqe_error, 1),
            (resp_cqe_error, 1),
        ],
    );
}

#[test]
fn flushed_requests_are_counted_by_queue() {
    let mut s = Setup::new();
    let qpn = s.pair.qp[0].qpn;
    s.world.hosts[0].driver.set_state(qpn, QPS_ERR).unwrap();
    s.post(wr::WR_WRITE, 100);
    s.counts(
        &[
            (cqe_flush_error, 1),
            (req_cqe_error, 1),
            (req_cqe_flush_error, 1),
        ],
        &[],
    );
}

/// A notification that no queue pair obeys is ignored, and counted as such.
#[test]
fn notifications_are_handled_or_ignored() {
    for obeys in [true, false] {
        let congestion = Dcqcn::default();
        let world = World::with_config(2, 1, |config| {
            let is_sender = config.mac.0[5] == 1;
            config.congestion = (obeys || !is_sender).then_some(congestion);
        });
        world.mark(1000);
        let mut s = Setup::in_world(world, QPT_RC);
        s.post(wr::WR_WRITE, 100);
        let counted = if obeys {
            rp_cnp_handled
        } else {
            rp_cnp_ignored
        };
        // The acknowledgement is marked, too. A NIC without congestion control sends no notification.
        let answered = u64::from(obeys);
        let (marked, sent) = (np_ecn_marked_roce_packets, np_cnp_sent);
        let requester = [(counted, 1), (marked, 1), (sent, answered)];
        let responder = [
            (sent, 1),
            (marked, 1),
            (rx_write_requests, 1),
            (rp_cnp_handled, answered),
        ];
        s.counts(&requester, &responder);
    }
}

/// All frames without the Ethernet frames are RoCE packets, in packets and in bytes.
#[test]
fn ethernet_frames_are_counted_apart() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN.into(), |_| {});
    let cq = world.hosts[0].cq(6).unwrap();
    let mut raw = world.hosts[0].qp(QPT_RAW, &cq).unwrap();
    let mr = world.hosts[0].mr(4096).unwrap();
    let driver = &mut world.hosts[0].driver;
    driver.activate(raw.qpn, QPT_RAW, 0).unwrap();
    let mut frame = vec![0; 100];
    frame[..6].copy_from_slice(&world.hosts[1].mac.0);
    frame[6..12].copy_from_slice(&world.hosts[0].mac.0);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let driver = &mut world.hosts[0].driver;
    driver.write_mr(&mr, 0, &frame);
    let send = Send {
        opcode: wr::WR_RAW,
        sges: &[(mr.va, 100, mr.key)],
        ..Send::default()
    };
    driver.post_send(&mut raw, &send);
    world.post_write(&mut pair, 1000);
    world.run();
    let names = [
        [tx_packets, tx_bytes, tx_ethernet_packets, tx_ethernet_bytes],
        [rx_packets, rx_bytes, rx_ethernet_packets, rx_ethernet_bytes],
    ];
    // The WRITE has 1000 bytes behind Ethernet, IP, UDP, BTH and RETH, and an iCRC; the acknowledgement an AETH.
    let (write, ack) = (14 + 20 + 8 + 12 + 16 + 1000 + 4, 14 + 20 + 8 + 12 + 4 + 4);
    let mut get = |host, names: [Counter; 4]| names.map(|name| counter(&mut world, host, name));
    assert_eq!(get(0, names[0]), [2, write + 100, 1, 100]);
    assert_eq!(get(1, names[1]), [2, write + 100, 1, 100]);
    assert_eq!(get(1, names[0]), [1, ack, 0, 0]);
    assert_eq!(get(0, names[1]), [1, ack, 0, 0]);
}
