//! End-to-end credits: a requester obeys those of its peer. The receiving NIC says in its acknowledgements that it uses none, as
//! `rdma_rxe` does, so a change on the wire puts credits into them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use faultline_abi::qp::*;
use faultline_abi::{cqe, wqe as wr};
use faultline_simulation::{Rng, Send};
use faultline_simulator::{Pair, World, packet};
use faultline_wire::aeth::Syndrome;
use faultline_wire::opcode::Position;
use faultline_wire::packet::parse;
use proptest::prelude::*;

const MTU: u32 = 1024;
/// From one host to the other.
const DELAY: u64 = 1_000;
/// The code that says that credits are not used.
const UNUSED: u8 = 31;

/// Lets the acknowledgements of the responder have these credit codes, or loses them.
fn set_credits(world: &World, lost: &Rc<RefCell<u32>>, mut code: impl FnMut() -> u8 + 'static) {
    let lost = Rc::clone(lost);
    world.change(1, move |frame| {
        let mut parsed = parse(&frame).expect("a packet of the responder");
        if *lost.borrow() > 0 {
            *lost.borrow_mut() -= 1;
            return None;
        }
        let code = code();
        if let Some(aeth) = &mut parsed.header.aeth
            && let Syndrome::Ack { credits } = &mut aeth.syndrome
        {
            *credits = code;
        }
        Some(packet(&parsed.header, parsed.payload))
    });
}

/// Host 0 sends to host 1.
struct Sender {
    world: World,
    pair: Pair,
    code: Rc<RefCell<u8>>,
    lost: Rc<RefCell<u32>>,
}

impl Sender {
    fn new() -> Self {
        let mut world = World::new(2, 1);
        let pair = world.connect(QPT_RC, 64 << 10, |c| c.timeout = 8);
        let (code, lost) = (Rc::new(RefCell::new(UNUSED)), Rc::new(RefCell::new(0)));
        let now = Rc::clone(&code);
        set_credits(&world, &lost, move || *now.borrow());
        world.start_trace();
        Self {
            world,
            pair,
            code,
            lost,
        }
    }

    /// One message was sent, whose acknowledgement has this code: up to 4 it is the number of credits. The receiver had
    /// `receives` receive requests.
    fn with_credits(receives: u32, code: u8) -> Self {
        let mut sender = Self::new();
        sender.receive(receives);
        *sender.code.borrow_mut() = code;
        sender.post(wr::WR_SEND, 1);
        sender.world.run();
        assert_eq!(sender.sent(), [(Position::Only, true)]);
        sender
    }

    /// Posts receive requests.
    fn receive(&mut self, count: u32) {
        let mr = self.pair.mr[1];
        for _ in 0..count {
            let sge = (mr.va, 32 << 10, mr.key);
            let driver = &mut self.world.hosts[1].driver;
            driver.post_recv(&mut self.pair.qp[1], 0, &[sge]);
        }
    }

    /// Posts a request of a number of packets.
    fn post(&mut self, opcode: u8, packets: u32) {
        let (from, to) = (self.pair.mr[0], self.pair.mr[1]);
        let send = Send {
            opcode,
            sges: &[(from.va, packets * MTU, from.key)],
            remote_addr: to.va,
            rkey: to.key,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &send);
    }

    /// Positions of the packets that the requester has sent since the last call, with those that ask for an acknowledgement.
    fn sent(&mut self) -> Vec<(Position, bool)> {
        let trace = self.world.take_trace();
        let requests = trace.iter().filter(|(host, _)| *host == 0);
        requests
            .map(|(_, header)| (header.bth.opcode.info().position, header.bth.ack_req))
            .collect()
    }

    /// Completions of the requester, which must all be successful.
    fn completed(&mut self) -> usize {
        let completions = self.world.completions(0, &mut self.pair.cq[0]);
        assert!(completions.iter().all(|done| done.status == cqe::SUCCESS));
        completions.len()
    }
}

#[test]
fn a_message_beyond_the_credits_begins_with_one_packet() {
    use Position::{First, Last, Middle, Only};
    let mut sender = Sender::with_credits(10, 0);
    // Packets behind the limited message wait for the acknowledgement of its first packet.
    sender.post(wr::WR_SEND, 3);
    sender.post(wr::WR_WRITE, 1);
    sender.world.run_for(DELAY / 2);
    assert_eq!(sender.sent(), [(First, true)]);
    sender.world.run();
    let rest = [(Middle, false), (Last, true), (Only, true)];
    assert_eq!(sender.sent(), rest);
    assert_eq!(sender.completed(), 3);
}

#[test]
fn messages_within_the_credits_are_not_held_back() {
    let mut sender = Sender::with_credits(10, 3);
    for _ in 0..5 {
        sender.post(wr::WR_SEND, 2);
    }
    sender.world.run_for(DELAY / 2);
    // Three whole messages, and the first packet of another one.
    assert_eq!(sender.sent().len(), 7);
    sender.world.run();
    assert_eq!(sender.completed(), 6);
}

#[test]
fn messages_without_a_receive_request_need_no_credits() {
    let mut sender = Sender::with_credits(1, 0);
    sender.post(wr::WR_WRITE, 3);
    sender.post(wr::WR_READ, 3);
    sender.post(wr::WR_WRITE, 3);
    sender.world.run_for(DELAY / 2);
    assert_eq!(sender.sent().len(), 7);
    sender.world.run();
    assert_eq!(sender.completed(), 4);
}

#[test]
fn a_peer_that_stops_using_credits_limits_nothing() {
    let mut sender = Sender::with_credits(10, 0);
    *sender.code.borrow_mut() = UNUSED;
    sender.post(wr::WR_SEND, 1);
    sender.world.run();
    sender.sent();
    for _ in 0..5 {
        sender.post(wr::WR_SEND, 2);
    }
    sender.world.run_for(DELAY / 2);
    assert_eq!(sender.sent().len(), 10);
    sender.world.run();
    assert_eq!(sender.completed(), 7);
}

/// The peer has no receive request, and says so before and by an RNR NAK.
#[test]
fn a_refused_message_is_repeated_by_its_first_packet() {
    use Position::{First, Last, Middle};
    let mut sender = Sender::with_credits(1, 0);
    sender.post(wr::WR_SEND, 3);
    sender.world.run_for(3 * DELAY);
    assert_eq!(sender.sent(), [(First, true)]);
    sender.receive(1);
    sender.world.run();
    assert_eq!(
        sender.sent(),
        [(First, true), (Middle, false), (Last, true)]
    );
    assert_eq!(sender.completed(), 2);
}

/// The acknowledgement of a first packet is lost: the timeout repeats it alone.
#[test]
fn a_lost_acknowledgement_of_a_first_packet_costs_a_timeout() {
    use Position::{First, Middle};
    let mut sender = Sender::with_credits(10, 0);
    *sender.lost.borrow_mut() = 1;
    sender.post(wr::WR_SEND, 3);
    sender.world.run();
    let first = (First, true);
    assert_eq!(
        sender.sent()[..3],
        [first, first, (Middle, false)],
        "the rest follows the second transmission"
    );
    assert_eq!(sender.completed(), 2);
}

/// By reference, packets of a message are sent in runs. The first one of a limited message is not part of a run.
#[test]
fn a_limited_message_does_not_begin_with_a_run() {
    let mut sender = Sender::new();
    sender.receive(10);
    sender.post(wr::WR_SEND, 1);
    *sender.code.borrow_mut() = 0;
    sender.world.run();
    sender.sent();
    sender.world.hand_over_by_reference();
    sender.post(wr::WR_SEND, 20);
    sender.world.run();
    assert_eq!(sender.sent()[0], (Position::First, true));
    assert_eq!(sender.completed(), 2);
}

/// With any credits of the peer and any losses, all messages arrive, once and in order.
fn arbitrary_credits(seed: u64) {
    const MESSAGES: u32 = 60;
    let mut rng = Rng::new(seed);
    let mut sender = Sender::new();
    let mut codes = Rng::new(seed ^ 0x5eed);
    let lossy = rng.chance(500);
    // Small numbers are the ones that limit.
    set_credits(&sender.world, &sender.lost, move || match codes.below(4) {
        0 => UNUSED,
        1 => codes.below(31) as u8,
        _ => codes.below(4) as u8,
    });
    if lossy {
        let mut lossy = Rng::new(seed ^ 0x1055);
        sender
            .world
            .lose(move |from, _| from == 0 && lossy.chance(20));
    }
    sender.receive(rng.below(4) as u32);
    let (mut posted, mut received, mut completed) = (0, 0, 0);
    let mut expected = VecDeque::new();
    while completed < MESSAGES as usize {
        for _ in 0..rng.below(6) {
            if posted < MESSAGES {
                posted += 1;
                let opcode = match rng.below(4) {
                    0 => wr::WR_WRITE,
                    1 => wr::WR_WRITE_IMM,
                    2 => wr::WR_READ,
                    _ => wr::WR_SEND,
                };
                let packets = rng.below(5) as u32 + 1;
                if opcode == wr::WR_SEND {
                    expected.push_back(Some(packets * MTU));
                } else if opcode == wr::WR_WRITE_IMM {
                    expected.push_back(None);
                }
                sender.post(opcode, packets);
            }
        }
        let run = rng.below(300_000);
        sender.world.run_for(run);
        sender.receive(rng.below(3) as u32);
        completed += sender.completed();
        for done in sender.world.completions(1, &mut sender.pair.cq[1]) {
            assert_eq!(done.status, cqe::SUCCESS);
            let len = expected.pop_front().expect("a message that was posted");
            assert!(len.is_none_or(|len| len == done.byte_len.get()), "{done:?}");
            received += 1;
        }
    }
    assert!(expected.is_empty(), "{received} messages have arrived");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn all_messages_arrive_with_any_credits(seed in any::<u64>()) {
        arbitrary_credits(seed);
    }
}
