//! Tag matching: a shared receive queue that looks into messages (docs/tag-matching.md).

use faultline_abi::admin::{
    CREATE_MKEY, Counter, CreateMkey, DESTROY_CQ, DESTROY_QP, DESTROY_SRQ, MKEY_WINDOW_1,
};
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::*;
use faultline_abi::tag::*;
use faultline_abi::wqe::{self as wr, BindMwWqe};
use faultline_abi::{Status, U32, doorbell, event};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::tag::{eager, rendezvous};
use faultline_simulation::{Connect, Cq, Error, Mr, Qp, QpConfig, Rng, Send, Sge, TagOp, TagSrq};
use faultline_simulator::{HostPager, World, expect_cqe, pager};
use zerocopy::IntoBytes;

const LEN: u64 = 1 << 20;
const TAGS: u32 = 16;
const CTX: [u8; 4] = *b"ctx!";
const MATCHED: u8 = CQE_TM_TAGGED | CQE_TM_MATCH;
const VALID: u8 = CQE_TM_TAGGED | CQE_TM_DATA_VALID;
/// Where the buffers of untagged requests begin.
const PLAIN: u64 = LEN / 2;
/// Bytes of each of them.
const PLAIN_LEN: u32 = 4096;

/// Host 0 has the SRQ and two QPs on it; host 1 a sender for each.
struct Tags {
    world: World,
    srq: TagSrq,
    /// Of the SRQ.
    cq: Cq,
    /// Of the QPs on the SRQ: only for sends.
    own_cq: Cq,
    receivers: Vec<Qp>,
    senders: Vec<Qp>,
    sender_cq: Cq,
    mr: [Mr; 2],
}

impl Tags {
    fn new(world: World) -> Self {
        Self::with_path(world, |_| {})
    }

    fn with_path(mut world: World, change: impl Fn(&mut Connect)) -> Self {
        let [mut cq, own_cq, sender_cq] =
            [0, 0, 1].map(|host: usize| world.hosts[host].cq(8).unwrap());
        let pd = world.hosts[0].pd;
        let driver = &mut world.hosts[0].driver;
        let srq = driver.create_tag_srq(pd, 0, cq.cqn, TAGS).unwrap();
        let mr = [0, 1].map(|host: usize| world.hosts[host].mr(LEN).unwrap());
        let (mut receivers, mut senders) = (vec![], vec![]);
        for _ in 0..2 {
            let mut config = world.hosts[0].qp_config(QPT_RC, &own_cq);
            config.srqn = Some(srq.srqn());
            let receiver = world.hosts[0].driver.create_qp(&config).unwrap();
            let sender = world.hosts[1].qp(QPT_RC, &sender_cq).unwrap();
            for (host, qpn, peer) in [(0, receiver.qpn, sender.qpn), (1, sender.qpn, receiver.qpn)]
            {
                let mut path = world.path(1 - host, peer);
                change(&mut path);
                world.hosts[host]
                    .driver
                    .connect(qpn, QPT_RC, &path)
                    .unwrap();
            }
            receivers.push(receiver);
            senders.push(sender);
        }
        assert!(world.completions(0, &mut cq).is_empty());
        Self {
            world,
            srq,
            cq,
            own_cq,
            receivers,
            senders,
            sender_cq,
            mr,
        }
    }

    fn buffer(&self, at: u64, len: u32) -> Sge {
        (self.mr[0].va + at, len, self.mr[0].key)
    }

    fn op(&mut self, op: &TagOp<'_>) {
        self.world.hosts[0].driver.post_tag_op(&mut self.srq, op);
    }

    /// Adds a buffer; there must be nothing to say but that it has been added.
    #[track_caller]
    fn add(&mut self, slot: u32, tag: u64, at: u64, len: u32) {
        let sges = [self.buffer(at, len)];
        self.op(&TagOp {
            slot,
            tag,
            mask: u64::MAX,
            sges: &sges,
            ..TagOp::default()
        });
        let posted = self.srq.ops_posted();
        let found = expect_cqe(&mut self.world, 0, &mut self.cq, cqe::SUCCESS);
        assert_eq!((found.opcode, found.tm_flags), (cqe::TM_ADD, 0));
        assert_eq!(found.wqe.get(), posted.wrapping_sub(1));
        assert_eq!(found.srqn.get(), self.srq.srqn());
        assert_eq!(self.world.hosts[0].driver.tag_ops_taken(&self.srq), posted);
    }

    /// Carries out an operation that makes a completion.
    #[track_caller]
    fn done(&mut self, op: &TagOp<'_>, status: u8) -> Cqe {
        self.op(op);
        expect_cqe(&mut self.world, 0, &mut self.cq, status)
    }

    /// Reports the count of unexpected messages; returns the flags of the completion.
    #[track_caller]
    fn sync(&mut self, count: u32) -> u8 {
        let op = TagOp {
            opcode: TM_OP_SYNC,
            sync: Some(count),
            ..TagOp::default()
        };
        let found = self.done(&op, cqe::SUCCESS);
        assert_eq!(found.opcode, cqe::TM_SYNC);
        found.tm_flags
    }

    fn post_plain(&mut self, n: u32) {
        let at = PLAIN + u64::from(n * PLAIN_LEN);
        let sge = self.buffer(at, PLAIN_LEN);
        let driver = &mut self.world.hosts[0].driver;
        driver.post_srq_recv(&mut self.srq.srq, n, &[sge]);
    }

    /// Sender `n` sends these bytes, which it puts at `at`.
    fn send_with(&mut self, n: usize, at: u64, bytes: &[u8], opcode: u8) {
        let mr = self.mr[1];
        self.world.hosts[1].driver.write_mr(&mr, at, bytes);
        let send = Send {
            opcode,
            sges: &[(mr.va + at, bytes.len() as u32, mr.key)],
            imm: *b"imm!",
            ..Send::default()
        };
        let driver = &mut self.world.hosts[1].driver;
        driver.post_send(&mut self.senders[n], &send);
    }

    fn send(&mut self, n: usize, bytes: &[u8]) {
        self.send_with(n, LEN - 65_536, bytes, wr::WR_SEND);
    }

    fn eager(&mut self, n: usize, tag: u64, data: &[u8]) {
        let message = [eager(TMH_EAGER, tag, CTX), data.to_vec()].concat();
        self.send(n, &message);
    }

    #[track_caller]
    fn one(&mut self) -> Cqe {
        self.world.run();
        expect_cqe(&mut self.world, 0, &mut self.cq, cqe::SUCCESS)
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        self.world.hosts[0].driver.read_mr(&self.mr[0], at, len)
    }
}

fn tag_of(found: &Cqe) -> u64 {
    u64::from(found.tm_tag[0].get()) | u64::from(found.tm_tag[1].get()) << 32
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i + seed).wrapping_mul(0x9e37_79b9) >> 9) as u8)
        .collect()
}

fn worlds() -> impl Iterator<Item = World> {
    [false, true].into_iter().map(|by_reference| {
        let world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        world
    })
}

#[test]
fn eager_messages_go_into_the_buffers_of_their_tags() {
    for world in worlds() {
        let mut t = Tags::new(world);
        for slot in 0..4 {
            let tag = 0x1_0000_0000 * u64::from(slot) + 7;
            t.add(slot, tag, u64::from(slot) * 1000, 1000);
        }
        // The last first; the messages are as long as the buffer, of one byte, and empty.
        for (slot, len) in [(3u32, 1000), (0, 1), (2, 0)] {
            let data = pattern(u64::from(slot), len);
            let tag = 0x1_0000_0000 * u64::from(slot) + 7;
            t.eager(slot as usize % 2, tag, &data);
            let found = t.one();
            assert_eq!(found.opcode, cqe::TM_RECV);
            assert_eq!((found.wqe.get(), found.tm_flags), (slot, MATCHED | VALID));
            assert_eq!((tag_of(&found), found.flow_tag.to_bytes()), (tag, CTX));
            assert_eq!(found.byte_len.get() as usize, len);
            assert_eq!(found.qpn.get(), t.receivers[slot as usize % 2].qpn);
            assert_eq!(found.srqn.get(), t.srq.srqn());
            assert!(t.read(u64::from(slot) * 1000, len) == data);
            // The place can be used again at once.
            t.add(slot, tag, u64::from(slot) * 1000, 1000);
        }
        assert!(t.world.completions(0, &mut t.own_cq).is_empty());
    }
}

#[test]
fn a_long_message_reports_its_match_first() {
    for world in worlds() {
        let mut t = Tags::new(world);
        t.add(5, 9, 100, 20_000);
        let data = pattern(3, 20_000);
        t.eager(0, 9, &data);
        t.world.run();
        let found = t.world.completions(0, &mut t.cq);
        let [matched, valid] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((matched.tm_flags, tag_of(matched)), (MATCHED, 9));
        assert_eq!((valid.tm_flags, tag_of(valid)), (VALID, 0));
        assert_eq!((matched.wqe.get(), valid.wqe.get()), (5, 5));
        assert_eq!((matched.byte_len.get(), valid.byte_len.get()), (0, 20_000));
        assert!(t.read(100, 20_000) == data);
    }
}

#[test]
fn the_oldest_buffer_that_matches_is_taken() {
    let mut t = Tags::new(World::new(2, 1));
    for (slot, tag, mask) in [(3, 0x20, 0xf0), (1, 0x21, 0xff), (2, 0, 0), (0, 0x21, 0xff)] {
        let sges = [t.buffer(0, 100)];
        let op = TagOp {
            slot,
            tag,
            mask,
            sges: &sges,
            ..TagOp::default()
        };
        t.done(&op, cqe::SUCCESS);
    }
    // Before its turn a buffer that has been removed does not match.
    let op = TagOp {
        opcode: TM_OP_DEL,
        slot: 1,
        ..TagOp::default()
    };
    assert_eq!(t.done(&op, cqe::SUCCESS).opcode, cqe::TM_DEL);
    for (tag, slot) in [(0x21, 3), (0x21, 2), (0x21, 0)] {
        t.eager(0, tag, b"data");
        assert_eq!(t.one().wqe.get(), slot);
    }
    // A tag with bits outside of the mask can't match anything.
    let sges = [t.buffer(0, 100)];
    let op = TagOp {
        tag: 0x100,
        mask: 0xff,
        sges: &sges,
        ..TagOp::default()
    };
    t.done(&op, cqe::SUCCESS);
    t.post_plain(0);
    t.eager(0, 0x100, b"data");
    assert_eq!(t.one().tm_flags, 0);
}

#[test]
fn unexpected_messages_keep_new_buffers_from_matching() {
    let mut t = Tags::new(World::new(2, 1));
    t.add(0, 1, 0, 100);
    for n in 0..3 {
        t.post_plain(n);
    }
    t.eager(0, 2, b"unexpected");
    let found = t.one();
    assert_eq!((found.opcode, found.tm_flags), (cqe::TM_RECV, 0));
    assert_eq!((found.wqe.get(), found.byte_len.get()), (0, 26));
    assert_eq!((tag_of(&found), found.flow_tag.get()), (0, 0));
    let whole = [eager(TMH_EAGER, 2, CTX), b"unexpected".to_vec()].concat();
    assert!(t.read(PLAIN, whole.len()) == whole);

    // Software adds a buffer for tag 2, not knowing of the message: the next one must not overtake it.
    let sges = [t.buffer(1000, 100)];
    let add = TagOp {
        slot: 1,
        tag: 2,
        mask: u64::MAX,
        sges: &sges,
        ..TagOp::default()
    };
    assert_eq!(t.done(&add, cqe::SUCCESS).tm_flags, CQE_TM_SYNC_REQ);
    t.eager(0, 2, b"another");
    let found = t.one();
    assert_eq!((found.wqe.get(), found.tm_flags), (1, 0));
    // Buffers that were on the list before do match.
    t.eager(1, 1, b"old");
    assert_eq!(t.one().tm_flags, MATCHED | VALID);

    // One of two messages has been handled; then both.
    assert_eq!(t.sync(1), CQE_TM_SYNC_REQ);
    t.eager(0, 2, b"third");
    assert_eq!(t.one().wqe.get(), 2);
    assert_eq!(t.sync(2), CQE_TM_SYNC_REQ);
    assert_eq!(t.sync(4), CQE_TM_SYNC_REQ);
    assert_eq!(t.sync(3), 0);
    t.eager(0, 2, b"matches");
    let found = t.one();
    assert_eq!((found.wqe.get(), found.tm_flags), (1, MATCHED | VALID));
    assert!(t.read(1000, 7) == b"matches");

    // Adding can tell the count, too.
    t.post_plain(3);
    t.eager(0, 2, b"unexpected");
    assert_eq!(t.one().tm_flags, 0);
    let op = TagOp {
        sync: Some(4),
        ..add
    };
    assert_eq!(t.done(&op, cqe::SUCCESS).tm_flags, 0);
    t.eager(0, 2, b"matches");
    assert_eq!(t.one().tm_flags, MATCHED | VALID);
}

#[test]
fn an_unexpected_message_waits_for_a_buffer_and_counts_once() {
    let mut t = Tags::with_path(World::new(2, 1), |c| c.min_rnr_timer = 1);
    t.eager(0, 2, b"first");
    t.world.run_for(100_000);
    assert!(t.world.completions(0, &mut t.cq).is_empty());
    // It looks again when it comes again.
    t.add(0, 2, 0, 100);
    assert_eq!(t.one().tm_flags, MATCHED | VALID);
    t.eager(0, 3, b"second");
    t.world.run_for(100_000);
    t.post_plain(0);
    assert_eq!(t.one().tm_flags, 0);
    assert_eq!(t.sync(1), 0);
}

#[test]
fn messages_without_a_tag_go_to_software_as_they_are() {
    let mut t = Tags::new(World::new(2, 1));
    t.add(0, 0, 0, 100);
    let mut fin = rendezvous(0, CTX, &t.mr[1], 0, 10);
    fin[0] = TMH_FIN;
    let messages = [
        eager(TMH_NO_TAG, 0, CTX),
        vec![],
        vec![TMH_EAGER],
        eager(TMH_EAGER, 0, CTX)[..15].to_vec(),
        eager(99, 0, CTX),
        fin,
    ];
    for (n, message) in messages.iter().enumerate() {
        t.post_plain(n as u32);
        t.send(0, message);
        let found = t.one();
        assert_eq!((found.opcode, found.tm_flags), (cqe::TM_NO_TAG, 0));
        assert_eq!((found.wqe.get(), tag_of(&found)), (n as u32, 0));
        assert_eq!(found.byte_len.get() as usize, message.len());
        assert!(t.read(PLAIN + n as u64 * u64::from(PLAIN_LEN), message.len()) == *message);
    }
    // They do not prevent later messages from matching.
    assert_eq!(t.sync(0), 0);
    t.eager(0, 0, b"tagged");
    assert_eq!(t.one().tm_flags, MATCHED | VALID);
    // A WRITE with immediate data takes a buffer, and completes where the others do.
    t.post_plain(20);
    let [to, from] = t.mr;
    let send = Send {
        opcode: wr::WR_WRITE_IMM,
        sges: &[(from.va, 100, from.key)],
        remote_addr: to.va + 5000,
        rkey: to.key,
        imm: *b"imm!",
        ..Send::default()
    };
    t.world.hosts[1].driver.post_send(&mut t.senders[0], &send);
    let found = t.one();
    assert_eq!(found.opcode, cqe::RECV_RDMA_WITH_IMM);
    assert_eq!((found.wqe.get(), found.imm.to_bytes()), (20, *b"imm!"));
}

/// The last message that sender `n` has got, for which it had posted a buffer at `at`.
#[track_caller]
fn expect_fin(t: &mut Tags, at: u64, request: &[u8]) {
    let found = t.world.completions(1, &mut t.sender_cq);
    let fin: Vec<&Cqe> = found.iter().filter(|c| c.opcode == cqe::RECV).collect();
    assert_eq!(fin.len(), 1, "{found:?}");
    assert_eq!((fin[0].status, fin[0].byte_len.get()), (cqe::SUCCESS, 32));
    let mut expected = request[..32].to_vec();
    expected[0] = TMH_FIN;
    assert!(t.world.hosts[1].driver.read_mr(&t.mr[1], at, 32) == expected);
}

fn post_for_fin(t: &mut Tags, n: usize, at: u64) {
    let mr = t.mr[1];
    let driver = &mut t.world.hosts[1].driver;
    driver.post_recv(&mut t.senders[n], 1, &[(mr.va + at, 64, mr.key)]);
}

#[test]
fn the_device_reads_the_data_of_a_rendezvous_and_completes_it() {
    for world in worlds() {
        let mut t = Tags::new(world);
        for (round, len) in [0u32, 1, 1024, 1025, 100_000].into_iter().enumerate() {
            let n = round % 2;
            let data = pattern(u64::from(len), len as usize);
            let mr = t.mr[1];
            t.world.hosts[1].driver.write_mr(&mr, 3000, &data);
            let slot = round as u32;
            let half = len / 2;
            let sges = [t.buffer(500, half), t.buffer(200_000, len - half)];
            t.op(&TagOp {
                slot,
                tag: 77,
                mask: u64::MAX,
                silent: true,
                sges: &sges,
                ..TagOp::default()
            });
            post_for_fin(&mut t, n, 200_000);
            let mut request = rendezvous(77, CTX, &mr, 3000, len);
            // What follows the headers is for software.
            request.resize(if round == 0 { 32 } else { 64 }, 0xee);
            t.send(n, &request);
            t.world.run();
            let found = t.world.completions(0, &mut t.cq);
            let [matched, valid] = found.as_slice() else {
                panic!("{found:?}");
            };
            assert_eq!((matched.opcode, matched.tm_flags), (cqe::TM_RECV, MATCHED));
            assert_eq!((tag_of(matched), matched.flow_tag.to_bytes()), (77, CTX));
            assert_eq!((valid.opcode, valid.tm_flags), (cqe::TM_RECV, VALID));
            assert_eq!((tag_of(valid), valid.byte_len.get()), (0, len));
            assert_eq!((matched.wqe.get(), valid.wqe.get()), (slot, slot));
            assert!(t.read(500, half as usize) == data[..half as usize]);
            assert!(t.read(200_000, (len - half) as usize) == data[half as usize..]);
            expect_fin(&mut t, 200_000, &request);
            assert!(t.world.completions(0, &mut t.own_cq).is_empty());
        }
    }
}

#[test]
fn rendezvous_and_own_requests_share_a_queue_pair() {
    let mut t = Tags::new(World::new(2, 1));
    let [own, peer] = t.mr;
    for slot in 0..TAGS {
        t.add(slot, u64::from(slot), u64::from(slot) * 10_000, 10_000);
    }
    let data = pattern(1, 160_000);
    t.world.hosts[1].driver.write_mr(&peer, 0, &data);
    for round in 0..TAGS {
        post_for_fin(&mut t, 0, 400_000);
        let at = u64::from(round) * 10_000;
        let request = rendezvous(u64::from(round), CTX, &peer, at, 10_000);
        t.send_with(0, 600_000 + at, &request, wr::WR_SEND);
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(own.va + PLAIN, 5000, own.key)],
            remote_addr: peer.va + 500_000,
            rkey: peer.key,
            ..Send::default()
        };
        t.world.hosts[0]
            .driver
            .post_send(&mut t.receivers[0], &write);
        for _ in 0..round {
            t.world.step(u64::MAX);
        }
    }
    t.world.run();
    let found = t.world.completions(0, &mut t.cq);
    assert_eq!(found.len(), 2 * TAGS as usize);
    for flags in [MATCHED, VALID] {
        let slots: Vec<u32> = found
            .iter()
            .filter(|found| found.tm_flags == flags)
            .map(|found| found.wqe.get())
            .collect();
        assert!(slots.iter().copied().eq(0..TAGS), "{slots:?}");
    }
    assert!(t.read(0, 160_000) == data);
    let own = t.world.completions(0, &mut t.own_cq);
    assert!(own.iter().map(|done| done.wqe.get()).eq(0..TAGS), "{own:?}");
    let fins = t.world.completions(1, &mut t.sender_cq);
    let fins = fins.iter().filter(|found| found.opcode == cqe::RECV);
    assert_eq!(fins.count(), TAGS as usize);
}

#[test]
fn every_message_is_matched_once_in_spite_of_losses() {
    for seed in 0..10 {
        let mut t = Tags::with_path(World::new(2, seed), |c| {
            c.timeout = 8;
            c.path_mtu = 1;
            c.min_rnr_timer = 1;
        });
        t.world.impair(LinkModel {
            loss: 40_000,
            duplicate: 40_000,
            reorder: 40_000,
            corrupt: 20_000,
            ..LinkModel::PLAIN
        });
        let mut rng = Rng::new(seed);
        let peer = t.mr[1];
        let data = pattern(seed, 3000);
        t.world.hosts[1].driver.write_mr(&peer, 0, &data);
        let mut expected = vec![];
        for slot in 0..TAGS {
            t.add(slot, u64::from(slot), u64::from(slot) * 3000, 3000);
            let len = rng.below(3000) as usize;
            let n = rng.below(2) as usize;
            let at = 300_000 + u64::from(slot) * 4000;
            if rng.below(2) == 0 {
                post_for_fin(&mut t, n, 200_000);
                let request = rendezvous(u64::from(slot), CTX, &peer, 0, len as u32);
                t.send_with(n, at, &request, wr::WR_SEND);
                expected.push((slot, len, 2));
            } else {
                let head = eager(TMH_EAGER, u64::from(slot), CTX);
                t.send_with(n, at, &[&head, &data[..len]].concat(), wr::WR_SEND);
                expected.push((slot, len, if len + 16 > 256 { 2 } else { 1 }));
            }
        }
        t.world.run();
        let found = t.world.completions(0, &mut t.cq);
        for (slot, len, completions) in expected {
            let of_slot: Vec<&Cqe> = found.iter().filter(|f| f.wqe.get() == slot).collect();
            assert_eq!(of_slot.len(), completions, "{seed}: {of_slot:?}");
            let last = of_slot.last().unwrap();
            assert!(last.tm_flags & VALID == VALID && last.byte_len.get() as usize == len);
            assert!(t.read(u64::from(slot) * 3000, len) == data[..len]);
        }
        let fins = t.world.completions(1, &mut t.sender_cq);
        assert!(fins.iter().all(|done| done.status == cqe::SUCCESS));
    }
}

#[test]
fn data_that_does_not_fit_is_left_to_software() {
    for capacity in [100u32, 20] {
        let mut t = Tags::new(World::new(2, 1));
        let peer = t.mr[1];
        t.add(2, 5, 0, capacity);
        let mut request = rendezvous(5, CTX, &peer, 0, 101);
        request.resize(64, 0xee);
        t.send(0, &request);
        t.world.run();
        // proves: IBV_WC_TM_RNDV_INCOMPLETE
        let found = expect_cqe(&mut t.world, 0, &mut t.cq, cqe::TM_RNDV_INCOMPLETE);
        assert_eq!((found.opcode, found.wqe.get()), (cqe::TM_RECV, 2));
        assert_eq!((found.tm_flags, tag_of(&found)), (MATCHED, 5));
        let n = capacity.min(32) as usize;
        assert_eq!(found.byte_len.get() as usize, n);
        assert!(t.read(0, n) == request[..n]);
        assert_eq!(t.read(n as u64, 64), [0; 64]);
        // It was matched, and the queue pair continues.
        assert_eq!(t.sync(0), 0);
        t.add(2, 5, 0, 100);
        t.eager(0, 5, b"next");
        assert_eq!(t.one().tm_flags, MATCHED | VALID);
    }
    // So it is if the queue pair must not read.
    let mut t = Tags::with_path(World::new(2, 1), |c| c.rd_atomic = 0);
    t.add(2, 5, 0, 1000);
    let request = rendezvous(5, CTX, &t.mr[1], 0, 100);
    t.send(0, &request);
    t.world.run();
    expect_cqe(&mut t.world, 0, &mut t.cq, cqe::TM_RNDV_INCOMPLETE);
}

#[test]
fn an_eager_message_longer_than_its_buffer_ends_the_connection() {
    for len in [101, 5000] {
        let mut t = Tags::new(World::new(2, 1));
        t.add(2, 5, 0, 100);
        t.eager(0, 5, &pattern(1, len));
        t.world.run();
        let found = t.world.completions(0, &mut t.cq);
        let last = found.last().unwrap();
        assert_eq!((last.status, last.wqe.get()), (cqe::LOC_LEN_ERR, 2));
        assert_eq!(
            (last.opcode, last.tm_flags & VALID),
            (cqe::TM_RECV, CQE_TM_TAGGED)
        );
        assert_eq!(t.read(100, 64), [0; 64]);
        // The other queue pair continues, and the place is free.
        t.add(2, 5, 0, 100);
        t.eager(1, 5, b"next");
        assert_eq!(t.one().tm_flags, MATCHED | VALID);
    }
}

#[test]
fn a_rendezvous_that_can_not_be_read_fails_its_buffer() {
    for (which, status) in [cqe::REM_ACCESS_ERR, cqe::LOC_PROT_ERR]
        .into_iter()
        .enumerate()
    {
        let mut t = Tags::new(World::new(2, 1));
        let mut peer = t.mr[1];
        let mut sge = t.buffer(0, 100);
        match which {
            0 => peer.key ^= 1,
            _ => sge.2 ^= 1,
        }
        t.op(&TagOp {
            slot: 3,
            tag: 5,
            mask: u64::MAX,
            silent: true,
            sges: &[sge],
            ..TagOp::default()
        });
        t.send(0, &rendezvous(5, CTX, &peer, 0, 100));
        t.world.run();
        let found = t.world.completions(0, &mut t.cq);
        let [matched, failed] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((matched.status, matched.tm_flags), (cqe::SUCCESS, MATCHED));
        assert_eq!((failed.status, failed.tm_flags), (status, CQE_TM_TAGGED));
        assert_eq!(failed.wqe.get(), 3);
        let qpn = t.receivers[0].qpn;
        let attr = t.world.hosts[0].driver.query_qp(qpn).unwrap();
        assert_eq!(attr.state, QPS_ERR);
        t.add(3, 5, 0, 100);
        t.eager(1, 5, b"next");
        assert_eq!(t.one().tm_flags, MATCHED | VALID);
    }
}

#[test]
fn a_sender_that_has_no_buffer_for_the_fin_is_waited_for() {
    let mut t = Tags::with_path(World::new(2, 1), |c| {
        c.min_rnr_timer = 1;
        c.rnr_retry = 2;
    });
    t.add(3, 5, 0, 100);
    t.send(0, &rendezvous(5, CTX, &t.mr[1].clone(), 0, 100));
    t.world.run();
    // The data has arrived; an event reports the end of the connection.
    let found = t.world.completions(0, &mut t.cq);
    let flags: Vec<u8> = found.iter().map(|found| found.tm_flags).collect();
    assert_eq!(flags, [MATCHED, VALID]);
    let events = t.world.hosts[0].driver.async_events();
    assert!(
        events.contains(&(event::QP_FATAL, t.receivers[0].qpn)),
        "{events:?}"
    );
}

#[test]
fn requests_that_are_no_rendezvous_go_to_software() {
    let mut t = Tags::new(World::new(2, 1));
    let peer = t.mr[1];
    t.add(0, 5, 0, 1000);
    let good = rendezvous(5, CTX, &peer, 0, 100);
    let mut longest = good.clone();
    longest.resize(64, 0);
    let mut long = good.clone();
    long.resize(65, 0);
    let mut longer = good.clone();
    longer.resize(3000, 0);
    let huge = rendezvous(5, CTX, &peer, 0, u32::MAX);
    let messages = [
        (good[..31].to_vec(), wr::WR_SEND),
        (good[..16].to_vec(), wr::WR_SEND),
        (long, wr::WR_SEND),
        (longer, wr::WR_SEND),
        (huge, wr::WR_SEND),
        (good, wr::WR_SEND_IMM),
    ];
    for (n, (message, opcode)) in messages.iter().enumerate() {
        t.post_plain(n as u32);
        t.send_with(0, LEN - 8192, message, *opcode);
        let found = t.one();
        assert_eq!((found.opcode, found.tm_flags), (cqe::TM_RECV, 0));
        assert_eq!(found.byte_len.get() as usize, message.len());
        assert_eq!(t.sync(n as u32), CQE_TM_SYNC_REQ);
        assert_eq!(t.sync(n as u32 + 1), 0);
    }
    post_for_fin(&mut t, 0, 200_000);
    t.send(0, &longest);
    t.world.run();
    assert_eq!(t.world.completions(0, &mut t.cq).len(), 2);
}

#[test]
fn impossible_operations_are_reported() {
    let mut t = Tags::new(World::new(2, 1));
    t.add(0, 5, 0, 100);
    let buffer = [t.buffer(0, 100)];
    let add = TagOp {
        tag: 5,
        mask: u64::MAX,
        sges: &buffer,
        silent: true,
        ..TagOp::default()
    };
    let del = |slot| TagOp {
        opcode: TM_OP_DEL,
        slot,
        silent: true,
        ..TagOp::default()
    };
    // Silent or not: what fails is told.
    for (op, opcode, vendor) in [
        (add, cqe::TM_ADD, cqe::KEY_STATE),
        (TagOp { slot: TAGS, ..add }, cqe::TM_ADD, cqe::BOUNDS),
        (
            TagOp {
                slot: u32::MAX,
                ..add
            },
            cqe::TM_ADD,
            cqe::BOUNDS,
        ),
        (del(1), cqe::TM_DEL, cqe::KEY_STATE),
        (del(u32::MAX), cqe::TM_DEL, cqe::KEY_STATE),
        (
            TagOp {
                opcode: 9,
                ..del(0)
            },
            cqe::TM_SYNC,
            cqe::OPCODE,
        ),
    ] {
        // proves: IBV_WC_TM_ERR
        let found = t.done(&op, cqe::TM_ERR);
        assert_eq!((found.opcode, found.vendor_err), (opcode, vendor));
        assert_eq!(found.wqe.get(), t.srq.ops_posted() - 1);
    }
    for change in [
        |op: &mut TmOp| op.num_sge = 5,
        |op: &mut TmOp| op.flags |= 0x80,
        |op: &mut TmOp| op.unexpected = U32::new(1),
        |op: &mut TmOp| op.reserved0 = 1,
        |op: &mut TmOp| op.reserved1 = U32::new(1),
        |op: &mut TmOp| op.reserved2[31] = 1,
    ] {
        let mut op = TmOp {
            opcode: TM_OP_ADD,
            slot: U32::new(1),
            ..TmOp::default()
        };
        change(&mut op);
        let driver = &mut t.world.hosts[0].driver;
        driver.write_raw_tag_op(&mut t.srq, &op);
        driver.ring_tag_ops(&t.srq);
        expect_cqe(&mut t.world, 0, &mut t.cq, cqe::TM_ERR);
    }
    // A consumed buffer can't be removed; one that is listed can, silently, and its place be used again.
    t.eager(0, 5, b"data");
    assert_eq!(t.one().wqe.get(), 0);
    t.done(&del(0), cqe::TM_ERR);
    t.add(0, 5, 0, 100);
    t.op(&del(0));
    assert!(t.world.completions(0, &mut t.cq).is_empty());
    t.add(0, 5, 0, 100);
}

#[test]
fn a_place_is_taken_until_its_data_has_come() {
    let mut t = Tags::new(World::new(2, 1));
    t.add(0, 5, 0, 100_000);
    t.world
        .lose(|host, header| host == 1 && header.aeth.is_some() && header.reth.is_none());
    let request = rendezvous(5, CTX, &t.mr[1].clone(), 0, 100_000);
    t.send(0, &request);
    t.world.run_for(20_000);
    assert_eq!(t.world.completions(0, &mut t.cq)[0].tm_flags, MATCHED);
    let buffer = [t.buffer(0, 100)];
    let add = TagOp {
        sges: &buffer,
        ..TagOp::default()
    };
    t.done(&add, cqe::TM_ERR);
    let del = TagOp {
        opcode: TM_OP_DEL,
        ..TagOp::default()
    };
    t.done(&del, cqe::TM_ERR);
    t.world.lose_nothing();
    t.world.run();
    assert_eq!(t.world.completions(0, &mut t.cq)[0].tm_flags, VALID);
    t.done(&add, cqe::SUCCESS);
}

#[test]
fn a_ring_of_operations_is_bounded_and_belongs_to_its_context() {
    let mut t = Tags::new(World::new(2, 1));
    let srqn = t.srq.srqn();
    let errors = |t: &mut Tags| {
        let counter = faultline_abi::admin::Counter::doorbell_errors;
        t.world.hosts[0].driver.counter(counter).unwrap()
    };
    let driver = &mut t.world.hosts[0].driver;
    // Late ones do no harm.
    driver.ring(0, doorbell::TM_OPS, srqn, 0);
    driver.ring(0, doorbell::TM_OPS, srqn, u32::MAX);
    assert_eq!(errors(&mut t), 0);
    let driver = &mut t.world.hosts[0].driver;
    let page = driver.alloc_uctx().unwrap();
    let (pd, plain) = (t.world.hosts[0].pd, t.world.hosts[0].mr(4096).unwrap());
    let driver = &mut t.world.hosts[0].driver;
    let untagged = driver.create_srq(pd, 0, 4, 2, 0).unwrap().srqn;
    driver.ring(page, doorbell::TM_OPS, srqn, 1);
    driver.ring(0, doorbell::TM_OPS, untagged, 1);
    driver.ring(0, doorbell::TM_OPS, 0xff_ffff, 1);
    driver.ring(0, doorbell::TM_OPS, srqn, 17);
    assert_eq!(errors(&mut t), 4);
    let events = t.world.hosts[0].driver.async_events();
    assert!(events.contains(&(event::SRQ_ERROR, srqn)), "{events:?}");
    // Sixteen at once are fine.
    for slot in 0..TAGS {
        let sges = [(plain.va, 10, plain.key)];
        let op = TagOp {
            slot,
            sges: &sges,
            ..TagOp::default()
        };
        t.world.hosts[0].driver.write_tag_op(&mut t.srq, &op);
    }
    t.world.hosts[0].driver.ring_tag_ops(&t.srq);
    let found = t.world.completions(0, &mut t.cq);
    assert!(found.iter().map(|done| done.wqe.get()).eq(0..16));
}

#[test]
fn buffers_of_a_queue_pair_that_ends_are_given_back() {
    for end in 0..3 {
        let mut t = Tags::new(World::new(2, 1));
        let peer = t.mr[1];
        for slot in 0..10 {
            t.add(slot, u64::from(slot), 0, 100_000);
        }
        // More than are read at once; and an eager message whose end does not come.
        t.world.lose(|host, header| {
            host == 1
                && (header.aeth.is_some()
                    || header.bth.opcode.is_last_or_only() && header.bth.psn.get() > 20)
        });
        for slot in 0..9 {
            let request = rendezvous(slot, CTX, &peer, 0, 50_000);
            t.send_with(0, LEN - 65_536 + slot * 64, &request, wr::WR_SEND);
        }
        let head = eager(TMH_EAGER, 9, CTX);
        t.send_with(
            0,
            300_000,
            &[head, pattern(0, 20_000)].concat(),
            wr::WR_SEND,
        );
        t.world.run_for(200_000);
        let found = t.world.completions(0, &mut t.cq);
        assert_eq!(found.len(), 10);
        assert!(found.iter().all(|found| found.tm_flags == MATCHED));
        let qpn = t.receivers[0].qpn;
        let driver = &mut t.world.hosts[0].driver;
        match end {
            0 => driver.set_state(qpn, QPS_ERR).unwrap(),
            1 => driver.set_state(qpn, QPS_RESET).unwrap(),
            _ => drop(driver.command(DESTROY_QP, qpn, &[0u8; 0]).unwrap()),
        }
        let mut found = t.world.completions(0, &mut t.cq);
        found.sort_by_key(|found| found.wqe.get());
        assert!(
            found.iter().map(|found| found.wqe.get()).eq(0..10),
            "{found:?}"
        );
        for found in found {
            assert_eq!(
                (found.status, found.opcode),
                (cqe::WR_FLUSH_ERR, cqe::TM_RECV)
            );
            assert_eq!(found.tm_flags, CQE_TM_TAGGED);
        }
        t.world.lose_nothing();
        for slot in 0..10 {
            t.add(slot, u64::from(slot), 0, 100_000);
        }
        t.eager(1, 4, b"data");
        t.world.run();
        assert_eq!(t.world.completions(0, &mut t.cq).len(), 1);
    }
}

/// More requests than one turn completes are before the rendezvous, and the queue pair ends before the flush does.
#[test]
fn buffers_are_given_back_though_the_flush_has_not_ended() {
    const LOG_DEPTH: u8 = 14;
    for end in 0..2 {
        let mut t = Tags::new(World::new(2, 1));
        let create = CreateMkey {
            pd: U32::new(t.world.hosts[0].pd),
            flags: U32::new(MKEY_WINDOW_1),
            ..CreateMkey::default()
        };
        let driver = &mut t.world.hosts[0].driver;
        let bind = BindMwWqe {
            opcode: wr::WR_BIND_MW,
            rkey: driver.command(CREATE_MKEY, 0, &create).unwrap().handle,
            ..BindMwWqe::default()
        };
        let own_cq = t.world.hosts[0].cq(LOG_DEPTH + 1).unwrap();
        let config = QpConfig {
            log_depth: LOG_DEPTH,
            max_sge: 1,
            srqn: Some(t.srq.srqn()),
            ..t.world.hosts[0].qp_config(QPT_RC, &own_cq)
        };
        let mut deep = t.world.hosts[0].driver.create_qp(&config).unwrap();
        let pair = [deep.qpn, t.senders[0].qpn];
        t.world.hosts[1]
            .driver
            .set_state(pair[1], QPS_RESET)
            .unwrap();
        t.world.connect_qps(QPT_RC, pair, |_| {});
        for slot in 0..2 {
            t.add(slot, u64::from(slot), 0, 1000);
        }
        t.world.lose(|host, _| host == 0);
        // Operations without packets wait for the SEND before them, which is lost.
        let driver = &mut t.world.hosts[0].driver;
        driver.post_send(&mut deep, &Send::default());
        for _ in 2..1 << LOG_DEPTH {
            driver.post_raw_send(&mut deep, bind.as_bytes());
        }
        let peer = t.mr[1];
        for slot in 0..2 {
            let request = rendezvous(slot, CTX, &peer, 0, 500);
            t.send_with(0, LEN - 65_536 + slot * 64, &request, wr::WR_SEND);
        }
        t.world.run_for(1_000_000);
        let found = t.world.completions(0, &mut t.cq);
        assert_eq!(found.len(), 2);
        let driver = &mut t.world.hosts[0].driver;
        driver.set_state(deep.qpn, QPS_ERR).unwrap();
        match end {
            0 => driver.set_state(deep.qpn, QPS_RESET).unwrap(),
            _ => drop(driver.command(DESTROY_QP, deep.qpn, &[0u8; 0]).unwrap()),
        }
        let found = t.world.completions(0, &mut t.cq);
        let slots = found.iter().map(|found| (found.wqe.get(), found.status));
        assert!(
            slots.eq([(0, cqe::WR_FLUSH_ERR), (1, cqe::WR_FLUSH_ERR)]),
            "{found:?}"
        );
        for slot in 0..2 {
            t.add(slot, u64::from(slot), 0, 1000);
        }
    }
}

#[test]
fn a_rendezvous_waits_until_its_queue_pair_may_send() {
    let mut world = World::new(2, 1);
    let [mut cq, sender_cq] = [0, 1].map(|host: usize| world.hosts[host].cq(8).unwrap());
    let pd = world.hosts[0].pd;
    let mut srq = world.hosts[0]
        .driver
        .create_tag_srq(pd, 0, cq.cqn, TAGS)
        .unwrap();
    let mut config = world.hosts[0].qp_config(QPT_RC, &cq);
    config.srqn = Some(srq.srqn());
    let qpn = world.hosts[0].driver.create_qp(&config).unwrap().qpn;
    let mut sender = world.hosts[1].qp(QPT_RC, &sender_cq).unwrap();
    let [to, from] = [0, 1].map(|host: usize| world.hosts[host].mr(10_000).unwrap());
    let path = world.path(0, qpn);
    world.hosts[1]
        .driver
        .connect(sender.qpn, QPT_RC, &path)
        .unwrap();
    let path = world.path(1, sender.qpn);
    let driver = &mut world.hosts[0].driver;
    driver.to_init(qpn, path.access).unwrap();
    driver.to_rtr(qpn, QPT_RC, &path).unwrap();
    let sges = [(to.va, 100, to.key)];
    let op = TagOp {
        sges: &sges,
        silent: true,
        ..TagOp::default()
    };
    driver.post_tag_op(&mut srq, &op);
    let request = rendezvous(0, CTX, &from, 1000, 100);
    world.hosts[1].driver.write_mr(&from, 0, &request);
    world.hosts[1]
        .driver
        .write_mr(&from, 1000, &pattern(1, 100));
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(from.va, 32, from.key)],
        ..Send::default()
    };
    world.hosts[1].driver.post_send(&mut sender, &send);
    world.run();
    assert_eq!(world.completions(0, &mut cq).len(), 1);
    world.hosts[0].driver.to_rts(qpn, QPT_RC, &path).unwrap();
    world.run_for(1_000_000);
    let found = expect_cqe(&mut world, 0, &mut cq, cqe::SUCCESS);
    assert_eq!(found.tm_flags, VALID);
    assert!(world.hosts[0].driver.read_mr(&to, 0, 100) == pattern(1, 100));
}

#[test]
fn keys_are_of_the_queues_protection_domain() {
    for own in [true, false] {
        let mut world = World::new(2, 1);
        let [mut cq, sender_cq] = [0, 1].map(|host: usize| world.hosts[host].cq(8).unwrap());
        let pd = world.hosts[0].driver.alloc_pd().unwrap();
        let driver = &mut world.hosts[0].driver;
        let mut srq = driver.create_tag_srq(pd, 0, cq.cqn, TAGS).unwrap();
        let access = ACCESS_LOCAL_WRITE;
        let of_srq = driver.reg_mr(pd, 0x10_0000, 8192, access).unwrap();
        let of_qp = world.hosts[0].mr(8192).unwrap();
        let mut config = world.hosts[0].qp_config(QPT_RC, &cq);
        config.srqn = Some(srq.srqn());
        let qpn = world.hosts[0].driver.create_qp(&config).unwrap().qpn;
        let mut sender = world.hosts[1].qp(QPT_RC, &sender_cq).unwrap();
        let from = world.hosts[1].mr(8192).unwrap();
        for (host, qpn, peer) in [(0, qpn, sender.qpn), (1, sender.qpn, qpn)] {
            let path = world.path(1 - host, peer);
            world.hosts[host]
                .driver
                .connect(qpn, QPT_RC, &path)
                .unwrap();
        }
        let to = if own { of_srq } else { of_qp };
        let sges = [(to.va, 5000, to.key)];
        let op = TagOp {
            sges: &sges,
            silent: true,
            ..TagOp::default()
        };
        world.hosts[0].driver.post_tag_op(&mut srq, &op);
        let request = rendezvous(0, CTX, &from, 1000, 5000);
        world.hosts[1].driver.write_mr(&from, 0, &request);
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(from.va, 32, from.key)],
            ..Send::default()
        };
        world.hosts[1].driver.post_send(&mut sender, &send);
        world.run_for(1_000_000);
        let found = world.completions(0, &mut cq);
        let expected = if own { cqe::SUCCESS } else { cqe::LOC_PROT_ERR };
        assert_eq!(found.last().unwrap().status, expected);
    }
}

#[test]
fn objects_are_checked_and_counted() {
    let mut t = Tags::new(World::new(2, 1));
    let pd = t.world.hosts[0].pd;
    let (cqn, srqn) = (t.cq.cqn, t.srq.srqn());
    let udp = {
        let mut config = t.world.hosts[0].qp_config(QPT_UC, &t.own_cq);
        config.srqn = Some(srqn);
        config
    };
    let driver = &mut t.world.hosts[0].driver;
    let refused = |status| Err(Error::Refused(status));
    let create = |driver: &mut faultline_simulation::Driver<_>, pd, cqn, tags| {
        driver
            .create_tag_srq(pd, 0, cqn, tags)
            .map(|srq| srq.srqn())
    };
    assert_eq!(create(driver, 99, cqn, 1), refused(Status::BadPd));
    assert_eq!(create(driver, pd, 0xff_ffff, 1), refused(Status::BadCq));
    assert_eq!(create(driver, pd, cqn, 0), refused(Status::BadAttribute));
    assert_eq!(create(driver, pd, cqn, 129), refused(Status::BadAttribute));
    assert_eq!(
        create(driver, pd, cqn, u32::MAX),
        refused(Status::BadAttribute)
    );
    let wrong = driver.create_qp(&udp).map(|qp| qp.qpn);
    assert_eq!(wrong, refused(Status::BadSrq));
    let page = driver.alloc_uctx().unwrap();
    let foreign = driver
        .create_tag_srq(pd, page, cqn, 1)
        .map(|srq| srq.srqn());
    assert_eq!(foreign, refused(Status::DomainMismatch));
    let none = [0u8; 0];
    let in_use = driver.command(DESTROY_CQ, cqn, &none).map(|_| 0);
    assert_eq!(in_use, refused(Status::InUse));
    let in_use = driver.command(DESTROY_SRQ, srqn, &none).map(|_| 0);
    assert_eq!(in_use, refused(Status::InUse));
    for receiver in &t.receivers {
        driver.command(DESTROY_QP, receiver.qpn, &none).unwrap();
    }
    driver.command(DESTROY_SRQ, srqn, &none).unwrap();
    driver.command(DESTROY_CQ, cqn, &none).unwrap();
}

#[test]
fn buffers_may_be_absent() {
    for (long, by_rendezvous) in [(false, false), (true, false), (true, true), (false, true)] {
        let mut t = Tags::new(World::new(2, 1));
        let mut own = HostPager::new(&mut t.world, 0, 32, 6);
        own.register(&mut t.world, 0x7000_0100, 1 << 20);
        let mut peer = HostPager::new(&mut t.world, 1, 32, 6);
        peer.register(&mut t.world, 0x7000_0100, 1 << 20);
        let len = if long { 15_000 } else { 500 };
        let data = pattern(4, len);
        peer.write(&t.world, 0, 5000, &data);
        let to = own.sge(0, 9000, len as u32);
        let (va, _, key) = peer.sge(0, 5000, len as u32);
        let mr = Mr {
            key,
            va,
            addr: 0,
            len: len as u64,
        };
        let op = TagOp {
            slot: 1,
            sges: &[to],
            silent: true,
            ..TagOp::default()
        };
        t.op(&op);
        post_for_fin(&mut t, 0, 200_000);
        match by_rendezvous {
            true => t.send(0, &rendezvous(0, CTX, &mr, 0, len as u32)),
            false => t.eager(0, 0, &data),
        }
        pager::run(&mut t.world, &mut [&mut own, &mut peer]);
        let found = t.world.completions(0, &mut t.cq);
        let flags: Vec<u8> = found.iter().map(|found| found.tm_flags).collect();
        match long || by_rendezvous {
            true => assert_eq!(flags, [MATCHED, VALID]),
            false => assert_eq!(flags, [MATCHED | VALID]),
        }
        assert!(own.read(&t.world, 0, 9000, len) == data);
        assert!(!own.records.is_empty());
    }
}

/// A process can ring without limit; its driver must be able to read the resulting events.
#[test]
fn a_broken_list_is_reported_once() {
    let mut t = Tags::new(World::new(2, 1));
    t.add(0, 1, 0, 100);
    let srqn = t.srq.srqn();
    let driver = &mut t.world.hosts[0].driver;
    driver.async_events();
    let before = driver.counter(Counter::doorbell_errors).unwrap();
    for n in 0..70_000 {
        driver.ring(0, doorbell::TM_OPS, srqn, 1000 + n);
    }
    let refused = driver.counter(Counter::doorbell_errors).unwrap() - before;
    assert_eq!(refused, 70_000);
    assert_eq!(driver.async_events(), [(event::SRQ_ERROR, srqn)]);
}

/// The header that software finds is the one by which the device has left the message to it.
#[test]
fn a_sender_that_races_has_one_header() {
    const TAG_AT: u64 = core::mem::offset_of!(Tmh, tag) as u64;
    let (first, then) = (eager(TMH_EAGER, 5, CTX), 9u64.to_be_bytes());
    // The device's reads that still find the first tag.
    for reads in 0..5 {
        let world = World::new(2, 1);
        world.hand_over_by_reference();
        let mut t = Tags::new(world);
        t.add(0, 9, 0, 4096);
        t.post_plain(0);
        let at = t.mr[1].addr + LEN - 65_536 + TAG_AT;
        t.world.change_after(1, at, &then, reads);
        t.eager(0, 5, &pattern(1, 500));
        let found = t.one();
        let matched = found.tm_flags & CQE_TM_MATCH != 0;
        assert_eq!(matched, reads == 0, "after {reads} reads");
        if !matched {
            assert!(t.read(PLAIN, first.len()) == first, "after {reads} reads");
        }
    }
}
