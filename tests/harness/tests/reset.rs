//! Resets of a device whose flows, RSS queue pairs and tagged buffers are in use.

use std::time::Instant;

use faultline_abi::admin::{Counter, DESTROY_FLOW, DESTROY_SRQ, DESTROY_WQ};
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::steering::*;
use faultline_abi::tag::CQE_TM_DATA_VALID;
use faultline_abi::{Status, cqe, regs};
use faultline_harness::frames::{RawReceiver, SLOT, Stream, rule};
use faultline_harness::testbed::{Fabric, LONG, Node};
use faultline_harness::traffic::{Neighbours, exchange_anew, impatient};
use faultline_harness::{
    Cq, EventQueue, Flow, HASH_KEY_LEN, NicOptions, Qp, QpOptions, QpType, Reset, Rng, RssQp,
    RwqIndTable, SendWr, TagOp, TagSrq, Wq, connect, eager, pattern, rendezvous,
};

/// Frames to this port go to the raw queue pair, those to others to the work queues.
const RAW_PORT: u16 = 1;
const TAGS: u32 = 100;
/// Bytes of a message: tens of milliseconds for all of them.
const LEN: usize = 768 << 10;
const BUFFERS: u32 = 64;

/// The receivers of frames and tagged messages of one node.
struct Alive {
    _flows: [Flow; 2],
    receiver: RawReceiver,
    _rss: RssQp,
    _table: RwqIndTable,
    wqs: [Wq; 2],
    frames: Cq,
    srq: TagSrq,
    tags: Cq,
    /// On the SRQ.
    qp: Qp,
    eqs: [EventQueue; 2],
}

/// Where a buffer of a work queue is: no two of them share any.
fn place(queue: usize, buffer: u32) -> usize {
    (buffer as usize * 2 + queue) * SLOT
}

impl Alive {
    fn new(node: &Node) -> Self {
        let eqs = [3, 4].map(|vector| node.nic.event_queue(vector, 0, 6).unwrap());
        let (context, pd) = (&node.context, &node.pd);
        let receiver = RawReceiver::new(node, &eqs[0]).unwrap();
        let frames = context.cq(&eqs[0], 9).unwrap();
        let mut wqs = [(); 2].map(|()| context.wq(pd, &frames, 6).unwrap());
        for wq in &mut wqs {
            wq.modify(WQS_RDY).unwrap();
        }
        let table = node.nic.rwq_ind_table(&[&wqs[0], &wqs[1]]).unwrap();
        let key = *pattern(5, HASH_KEY_LEN).first_chunk().unwrap();
        let rss = context.rss_qp(pd, &table, HASH_SRC_PORT_UDP, &key).unwrap();
        let port = |port: u16| FlowFields {
            dst_port: port.to_be_bytes(),
            ..FlowFields::default()
        };
        let udp = FLOW_HAS_IPV4 | FLOW_HAS_UDP;
        let nic = &node.nic;
        let raw = nic.flow(
            &receiver.qp,
            &rule(0, udp, 1),
            Some(&(port(RAW_PORT), port(!0))),
        );
        let all = nic.flow(&rss, &rule(1, udp, 2), Some(&Default::default()));
        let tags = context.cq(&eqs[1], 9).unwrap();
        let srq = context.tag_srq(pd, &tags, 6, TAGS).unwrap();
        let options = QpOptions::default();
        let qp = node.qp_with(QpType::Rc, Some(&srq.srq), &options).unwrap();
        let mut alive = Self {
            _flows: [raw.unwrap(), all.unwrap()],
            receiver,
            _rss: rss,
            _table: table,
            wqs,
            frames,
            srq,
            tags,
            qp,
            eqs,
        };
        for n in 0..BUFFERS {
            (0..2).for_each(|queue| alive.post(node, queue, n));
        }
        alive
    }

    fn post(&mut self, node: &Node, queue: usize, buffer: u32) {
        let sges = [node.mr.sge(place(queue, buffer), SLOT)];
        let tag = buffer << 1 | queue as u32;
        self.wqs[queue].post(tag, &sges).unwrap();
    }

    /// Adds a buffer for any tag, behind those of frames.
    #[track_caller]
    fn add(&mut self, node: &Node, slot: u32) {
        let sges = [node.mr.sge(BUFFERS as usize * 2 * SLOT, LEN)];
        let any = TagOp {
            mask: 0,
            ..TagOp::add(slot, 0, &sges)
        };
        let id = self.srq.post(&any).unwrap();
        let wc = self.tags.poll_for(LONG).expect("it has been added");
        assert_eq!((wc.opcode, wc.id, wc.status), (cqe::TM_ADD, id, 0));
    }

    /// Messages that have come since the last call.
    fn messages(&mut self) -> u64 {
        let done = std::iter::from_fn(|| self.tags.poll()).filter(|wc| {
            assert!(wc.is_ok(), "{wc:?}");
            wc.tm_flags & CQE_TM_DATA_VALID != 0
        });
        done.count() as u64
    }

    /// Takes the frames that have come; returns how many by flow.
    fn take(&mut self, node: &Node, stream: &Stream) -> [u64; 2] {
        let mut count = [0; 2];
        while let Some((wc, frame)) = self.receiver.receive() {
            assert_eq!(wc.flow_tag, 1);
            stream.number_of(&frame);
            count[0] += 1;
        }
        while let Some(wc) = self.frames.poll() {
            assert!(wc.is_ok() && wc.flow_tag == 2, "{wc:?}");
            let (buffer, queue) = (wc.id >> 1, wc.id as usize & 1);
            assert_eq!(wc.qpn, self.wqs[queue].number());
            let at = place(queue, buffer);
            stream.number_of(&node.buf.to_vec(at, wc.len as usize));
            count[1] += 1;
            self.post(node, queue, buffer);
        }
        count
    }
}

/// Waits until `count` frames have come by each flow.
#[track_caller]
fn frames_come(alive: &mut Alive, node: &Node, stream: &Stream, count: u64) {
    let mut have = [0; 2];
    let start = Instant::now();
    while have.iter().any(|have| *have < count) {
        for (have, more) in have.iter_mut().zip(alive.take(node, stream)) {
            *have += more;
        }
        assert!(start.elapsed() < LONG, "frames do not come: {have:?}");
    }
}

/// Adds all tagged buffers, and sends a message for each from a new queue pair. Returns it, and the request by which data is
/// read. `read`: the data is read, else sent.
fn send_tagged(alive: &mut Alive, b: &Node, e: &mut Node, read: bool) -> (Qp, Vec<u8>) {
    let options = QpOptions {
        send_depth: 7,
        recv_depth: 7,
        inline: 48,
        sig_all: true,
        ..QpOptions::default()
    };
    let mut qe = e.qp_with(QpType::Rc, None, &options).unwrap();
    connect(&alive.qp, &qe, &impatient()).unwrap();
    e.buf.write(0, &eager(0, [0; 4]));
    for slot in 0..TAGS {
        qe.post_recv(0, &[e.mr.sge(Node::BUF - 64, 64)]).unwrap();
        alive.add(b, slot);
    }
    let request = rendezvous(0, [0; 4], e.mr.remote(16), LEN as u32);
    for _ in 0..TAGS {
        let sges = [e.mr.sge(0, LEN)];
        let wr = match read {
            false => SendWr::send(&sges),
            true => SendWr::send_inline(&request),
        };
        qe.post_send(&wr).unwrap();
    }
    (qe, request)
}

/// The peer's requests end: some well, one with the cause, the others flushed.
fn requests_end(e: &mut Node, qe: &mut Qp, request: &[u8], how: Reset) {
    qe.post_send(&SendWr::send_inline(request)).unwrap();
    let statuses: Vec<u8> = std::iter::from_fn(|| Some(e.completion()))
        .filter(|wc| !wc.is_receive())
        .map(|wc| wc.status)
        .take(TAGS as usize + 1)
        .collect();
    let well = statuses.iter().take_while(|s| **s == cqe::SUCCESS).count();
    assert_eq!(statuses[well], cqe::RETRY_EXC_ERR, "{how:?}");
    let flushed = |status: &u8| *status == cqe::WR_FLUSH_ERR;
    assert!(statuses[well + 1..].iter().all(flushed), "{statuses:?}");
}

/// A device that was started again has no state of the former one: frames, doorbells and commands do not reach it.
/// `old`: numbers of its SRQ, work queue and queue pair.
fn is_forgotten(b: &Node, stream: &Stream, old: (u32, u32, u32), how: Reset) {
    let filtered = |b: &Node| b.nic.counters().unwrap()[Counter::rx_filtered];
    let before = filtered(b);
    stream.rest();
    stream.go_on();
    stream.rest();
    assert!(filtered(b) > before, "no frames after {how:?}");
    let errors = |b: &Node| b.nic.counters().unwrap()[Counter::doorbell_errors];
    let before = errors(b);
    for (kind, object) in [
        (doorbell::TM_OPS, old.0),
        (doorbell::RQ, old.1),
        (doorbell::SQ, old.2),
    ] {
        let bell = Doorbell {
            kind,
            object,
            value: 1,
        };
        b.context.ring(bell).unwrap();
        b.nic.kick(b.context.page(), bell).unwrap();
    }
    let start = Instant::now();
    while errors(b) < before + 6 {
        assert!(start.elapsed() < LONG, "{} doorbells", errors(b) - before);
    }
    for (opcode, number, status) in [
        (DESTROY_FLOW, 1, Status::BadFlow),
        (DESTROY_SRQ, old.0, Status::BadSrq),
        (DESTROY_WQ, old.1, Status::BadWq),
    ] {
        let error = b.nic.admin(opcode, number, &[0u8; 0]).unwrap_err();
        assert_eq!(error.status(), Some(status), "{how:?}");
    }
}

#[test]
fn a_reset_ends_frames_and_messages_and_removes_flows_and_tags() {
    let fabric = Fabric::start_slow(&["a", "b", "c", "d", "e"], &["b", "e"]).unwrap();
    let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
    let options = NicOptions {
        ram: 4 << 20,
        ..NicOptions::default()
    };
    let mut b = fabric.node_with("b", &options).unwrap();
    let mut e = fabric.node("e").unwrap();
    let stream = Stream::start(fabric.node("a").unwrap(), &b, |number, frame| {
        let to = if number.is_multiple_of(3) {
            RAW_PORT
        } else {
            7
        };
        frame.ports = (number as u16, to);
    });
    stream.rest();
    let mut rng = Rng::new(1);
    let mut cut_short = 0;
    // A test that gets no processor may see the end of a round before the reset. Further rounds follow then.
    let mut round = 0;
    while round < 24 || cut_short <= 2 {
        assert!(
            round < 240,
            "{cut_short} resets in the midst of messages only"
        );
        let how = Reset::ALL[round % 4];
        let mut alive = Alive::new(&b);
        stream.go_on();
        frames_come(&mut alive, &b, &stream, 30);
        // Interrupts are those of the objects of now.
        alive.frames.arm(false).unwrap();
        alive.eqs[0].arm().unwrap();
        assert!(alive.eqs[0].sleep(LONG).unwrap(), "round {round}");
        // The data is sent in some rounds, and read in others.
        let (mut qe, request) = send_tagged(&mut alive, &b, &mut e, round / 4 % 2 == 1);
        let mut ends = 0;
        let some = rng.below(u64::from(TAGS) / 2);
        let start = Instant::now();
        while ends < some {
            ends += alive.messages();
            alive.take(&b, &stream);
            assert!(start.elapsed() < LONG, "{ends} messages");
        }

        b.nic.reset(how).unwrap();
        let nic = b.nic.clone();
        let canary = pattern(round as u64, nic.ram().file().len());
        ends += alive.messages();
        cut_short += usize::from(ends < u64::from(TAGS));
        nic.ram().file().write(0, &canary).unwrap();
        assert_eq!(nic.read_reg(regs::STATUS).unwrap() & regs::ENABLED, 0);
        requests_end(&mut e, &mut qe, &request, how);
        neighbours.unharmed();
        let mut now = vec![0; canary.len()];
        nic.ram().file().read(0, &mut now).unwrap();
        assert!(now == canary, "the device wrote to memory after {how:?}");

        let old = (alive.srq.number(), alive.wqs[0].number(), alive.qp.number());
        drop((alive, qe, b));
        while e.cq.poll().is_some() {}
        nic.start().unwrap();
        b = Node::new(nic).unwrap();
        is_forgotten(&b, &stream, old, how);
        exchange_anew(&mut e, &mut b, &mut rng);
        round += 1;
    }
    println!("{cut_short} resets in the midst of messages");
    neighbours.finish();
}
