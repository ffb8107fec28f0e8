//! A peer that makes its packets by hand, on its own connection: whatever it sends, it reaches no memory but what
//! its keys give, costs bounded work, and ends its own connection at most.

use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Mr, Rng, Send};
use faultline_simulator::{Pair, World, expect_cqe, packet};
use faultline_wire::aeth::{Aeth, Syndrome};
use faultline_wire::atomic::{AtomicAckEth, AtomicEth};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::{Headers, Opcode};
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;
use proptest::prelude::*;

const LEN: u64 = 32 << 10;

/// Headers of a packet from host 0 to host 1.
fn header(world: &World, opcode: Opcode, qpn: u32, psn: u32) -> RoceHeader {
    let (from, to) = (&world.hosts[0], &world.hosts[1]);
    let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
    RoceHeader::new(to.mac, from.mac, ip, Bth::new(opcode, qpn, Psn::new(psn)))
}

/// Extension headers that make sense often enough to get through the first checks.
fn fill(header: &mut RoceHeader, rng: &mut Rng, mr: &Mr, len: u32) {
    let opcode = header.bth.opcode;
    let addr = match rng.below(4) {
        0 => rng.next_u64(),
        1 => mr.va + LEN - rng.below(3000),
        _ => (mr.va + rng.below(LEN)) & !7,
    };
    let rkey = if rng.chance(900) {
        mr.key
    } else {
        rng.next_u64() as u32
    };
    if opcode.has(Headers::RETH) {
        let len = match rng.below(4) {
            0 => rng.next_u64() as u32,
            1 => rng.below(20_000) as u32,
            _ => len,
        };
        header.reth = Some(Reth { addr, rkey, len });
    }
    if opcode.has(Headers::ATOMIC_ETH) {
        header.atomic = Some(AtomicEth {
            addr,
            rkey,
            swap_add: rng.next_u64(),
            compare: rng.below(2),
        });
    }
    if opcode.has(Headers::AETH) {
        header.aeth = Some(Aeth {
            syndrome: Syndrome::from_u8(rng.next_u64() as u8),
            msn: rng.below(1 << 24) as u32,
        });
    }
    if opcode.has(Headers::ATOMIC_ACK_ETH) {
        header.atomic_ack = Some(AtomicAckEth {
            original: rng.next_u64(),
        });
    }
    if opcode.has(Headers::IMM) {
        header.imm = Some(rng.next_u64() as u32);
    }
    if opcode.has(Headers::IETH) {
        header.ieth = Some(rkey);
    }
}

/// Opcodes of a service that this NIC can parse.
fn opcodes(service: faultline_wire::opcode::Service) -> Vec<Opcode> {
    let others = [Headers::XRCETH, Headers::FETH, Headers::DETH];
    let known = |opcode: &Opcode| !others.iter().any(|headers| opcode.has(*headers));
    let all = Opcode::ALL.iter().copied();
    all.filter(|opcode| opcode.info().service == service && known(opcode))
        .collect()
}

fn attack(seed: u64, kind: u8) {
    let mut rng = Rng::new(seed);
    let mut world = World::new(2, 1);
    // The victim's other connection, to someone decent.
    let mut decent = world.connect(QPT_RC, LEN, |_| {});
    let mut pair = world.connect(kind, LEN, |c| c.timeout = 8);
    let (qpn, mr) = (pair.qp[1].qpn, pair.mr[1]);
    let service = if kind == QPT_RC {
        faultline_wire::opcode::Service::Rc
    } else {
        faultline_wire::opcode::Service::Uc
    };
    let opcodes = opcodes(service);
    // The attacker's NIC is silent: what arrives for it is lost.
    world.lose(|from, _| from == 1);
    let pd = world.hosts[1].pd;
    let canary = world.hosts[1].driver.reg_mr(pd, 0x1000, 4096, 0).unwrap();
    world.hosts[1].driver.write_mr(&canary, 0, &[0x5a; 4096]);
    for tag in 0..rng.below(20) as u32 {
        let sge = (mr.va + 1000, rng.below(8000) as u32, mr.key);
        world.hosts[1]
            .driver
            .post_recv(&mut pair.qp[1], tag, &[sge]);
    }
    // Requests of the victim, so that answers find something to answer.
    if rng.chance(700) {
        for _ in 0..rng.below(6) {
            let opcode = [wr::WR_WRITE, wr::WR_SEND, wr::WR_READ][rng.below(3) as usize];
            let sges = [(mr.va, rng.below(5000) as u32, mr.key)];
            let send = Send {
                opcode: if kind == QPT_RC { opcode } else { wr::WR_SEND },
                sges: &sges,
                remote_addr: pair.mr[0].va,
                rkey: pair.mr[0].key,
                ..Send::default()
            };
            world.hosts[1].driver.post_send(&mut pair.qp[1], &send);
        }
    }
    let before = canary_bytes(&world, &canary);
    let mut psn = 0u32;
    for _ in 0..rng.below(150) {
        let opcode = opcodes[rng.below(opcodes.len() as u64) as usize];
        let len = match rng.below(3) {
            0 => 1024,
            1 => rng.below(1100),
            _ => 0,
        };
        let carries = !opcode.has(Headers::ATOMIC_ETH) && !opcode.has(Headers::ATOMIC_ACK_ETH);
        let len = if carries { len as u32 } else { 0 };
        let at = match rng.below(10) {
            0 => rng.next_u64() as u32,
            1 => psn.wrapping_sub(rng.below(8) as u32),
            2 => psn.wrapping_add(rng.below(8) as u32),
            _ => psn,
        };
        let mut header = header(&world, opcode, qpn, at);
        header.bth.ack_req = rng.chance(500);
        header.bth.solicited = rng.chance(100);
        fill(&mut header, &mut rng, &mr, len);
        world.inject(0, packet(&header, &vec![0x77; len as usize]));
        if rng.chance(300) {
            world.run_for(rng.below(3000));
        }
        // Follow the victim, so that the attack gets on.
        psn = world.hosts[1].driver.query_qp(qpn).unwrap().rq_psn.get();
    }
    world.run();
    assert_eq!(canary_bytes(&world, &canary), before);
    // Nothing completes twice, nothing is invented.
    let found = world.completions(1, &mut pair.cq[1]);
    for receive in [false, true] {
        let done: Vec<u32> = found
            .iter()
            .filter(|cqe| (cqe.opcode & cqe::RECV != 0) == receive)
            .map(|cqe| cqe.wqe.get())
            .collect();
        let once = done.iter().enumerate().all(|(n, wqe)| n as u32 == *wqe);
        let short: Vec<_> = found
            .iter()
            .map(|cqe| (cqe.opcode, cqe.wqe.get(), cqe.status))
            .collect();
        assert!(once, "{short:?}");
    }
    world.lose_nothing();
    let bytes: Vec<u8> = (0..9000u32).map(|i| (i * 3) as u8 ^ seed as u8).collect();
    transfer(&mut world, &mut decent, &bytes);
    // After a reset the same queue pair is as good as new.
    for i in 0..2 {
        let number = pair.qp[i].qpn;
        world.hosts[i].driver.set_state(number, QPS_RESET).unwrap();
        pair.qp[i].reset();
        let path = world.path(1 - i, pair.qp[1 - i].qpn);
        world.hosts[i].driver.connect(number, kind, &path).unwrap();
        world.completions(i, &mut pair.cq[i]);
    }
    transfer(&mut world, &mut pair, &bytes);
}

fn canary_bytes(world: &World, canary: &Mr) -> Vec<u8> {
    world.hosts[1].driver.read_mr(canary, 0, 4096)
}

fn transfer(world: &mut World, pair: &mut Pair, bytes: &[u8]) {
    world.hosts[0].driver.write_mr(&pair.mr[0], 3, bytes);
    let (a, b) = (pair.mr[0], pair.mr[1]);
    let sges = [(a.va + 3, bytes.len() as u32, a.key)];
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &sges,
        remote_addr: b.va + 5,
        rkey: b.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    expect_cqe(world, 0, &mut pair.cq[0], cqe::SUCCESS);
    assert!(world.hosts[1].driver.read_mr(&b, 5, bytes.len()) == bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reliable_connection_survives_any_packets_of_its_peer(seed: u64) {
        attack(seed, QPT_RC);
    }

    #[test]
    fn an_unreliable_connection_survives_any_packets_of_its_peer(seed: u64) {
        attack(seed, QPT_UC);
    }
}

/// What a requester asks for, the responses that are forged for it (opcode, octets of payload), and how its request ends.
type Forged<'a> = (u8, u32, &'a [(Opcode, usize)], u8);

/// A response that is not the one to the request: its completion says so, the next request is flushed, and nothing is
/// written of what it carries. Those that are right show that the others are refused for what is wrong with them.
#[test]
fn an_invalid_response_is_reported_and_ends_the_connection() {
    use Opcode::*;
    const OK: u8 = cqe::SUCCESS;
    const BAD: u8 = cqe::BAD_RESP_ERR;
    const LOCAL: u64 = 64;
    let cases: [Forged<'_>; 15] = [
        (wr::WR_READ, 64, &[(RcReadResponseOnly, 64)], OK),
        (wr::WR_READ, 64, &[(RcReadResponseOnly, 60)], BAD),
        (wr::WR_READ, 64, &[(RcReadResponseOnly, 68)], BAD),
        (wr::WR_READ, 64, &[(RcReadResponseOnly, 0)], BAD),
        (wr::WR_READ, 64, &[(RcReadResponseFirst, 64)], BAD),
        (wr::WR_READ, 64, &[(RcReadResponseMiddle, 64)], BAD),
        (wr::WR_READ, 64, &[(RcAtomicAcknowledge, 0)], BAD),
        (wr::WR_FETCH_ADD, 8, &[(RcAtomicAcknowledge, 0)], OK),
        (wr::WR_FETCH_ADD, 8, &[(RcReadResponseOnly, 8)], BAD),
        (wr::WR_COMP_SWAP, 8, &[(RcReadResponseLast, 8)], BAD),
        (
            wr::WR_READ,
            1500,
            &[(RcReadResponseFirst, 1024), (RcReadResponseLast, 476)],
            OK,
        ),
        (wr::WR_READ, 1500, &[(RcReadResponseOnly, 1024)], BAD),
        (wr::WR_READ, 1500, &[(RcReadResponseFirst, 1000)], BAD),
        (
            wr::WR_READ,
            1500,
            &[(RcReadResponseFirst, 1024), (RcReadResponseMiddle, 476)],
            BAD,
        ),
        (
            wr::WR_READ,
            1500,
            &[(RcReadResponseFirst, 1024), (RcReadResponseLast, 480)],
            BAD,
        ),
    ];
    for (opcode, len, responses, status) in cases {
        let mut world = World::new(2, 1);
        let mut pair = world.connect(QPT_RC, LEN, |c| c.timeout = 20);
        let (a, b) = (pair.mr[0], pair.mr[1]);
        // The victim is host 1; what it sends is lost, so that nothing but what is forged comes back.
        world.lose(|from, _| from == 1);
        world.hosts[1].driver.write_mr(&b, 0, &[0x5a; 4096]);
        let request = Send {
            opcode,
            sges: &[(b.va + LOCAL, len, b.key)],
            remote_addr: a.va,
            rkey: a.key,
            ..Send::default()
        };
        let behind = Send {
            opcode: wr::WR_WRITE,
            sges: &[(b.va, 8, b.key)],
            ..request
        };
        world.hosts[1].driver.post_send(&mut pair.qp[1], &request);
        if status != cqe::SUCCESS {
            world.hosts[1].driver.post_send(&mut pair.qp[1], &behind);
        }
        world.run_for(1000);
        let mut good = 0;
        for (n, &(response, payload)) in responses.iter().enumerate() {
            let mut header = header(&world, response, pair.qp[1].qpn, n as u32);
            header.aeth = response.has(Headers::AETH).then_some(Aeth {
                syndrome: Syndrome::from_u8(0x1f),
                msn: 1,
            });
            let original = response.has(Headers::ATOMIC_ACK_ETH);
            header.atomic_ack = original.then_some(AtomicAckEth {
                original: u64::from_le_bytes([0x77; 8]),
            });
            world.inject(0, packet(&header, &vec![0x77; payload]));
            world.run_for(1000);
            if status == cqe::SUCCESS || n + 1 < responses.len() {
                good += if original { 8 } else { payload };
            }
        }
        let case = format!("opcode {opcode}, {responses:?}");
        let found = world.completions(1, &mut pair.cq[1]);
        let ends: Vec<u8> = found.iter().map(|cqe| cqe.status).collect();
        let mut expected = vec![status];
        if status != cqe::SUCCESS {
            expected.push(cqe::WR_FLUSH_ERR);
            assert_eq!(found[0].vendor_err, cqe::PROTOCOL, "{case}");
            let attr = world.hosts[1].driver.query_qp(pair.qp[1].qpn).unwrap();
            assert_eq!(attr.state, QPS_ERR, "{case}");
        }
        // proves: IBV_WC_BAD_RESP_ERR
        assert_eq!(ends, expected, "{case}");
        let mut bytes = vec![0x5a; 4096];
        bytes[LOCAL as usize..][..good].fill(0x77);
        assert!(
            world.hosts[1].driver.read_mr(&b, 0, 4096) == bytes,
            "{case}"
        );
    }
}

/// A message that never ends: more than any message may be, into a buffer that would take it.
#[test]
fn a_message_has_an_end() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.path_mtu = 5);
    // 6 GiB of addresses, all of them the same 2 MiB of memory.
    let (pd, va) = (world.hosts[1].pd, 1 << 40);
    let driver = &mut world.hosts[1].driver;
    let mr = driver.reg_large(pd, va, 6 << 30, ALL_ACCESS).unwrap();
    let sges = [
        (mr.va, 2 << 30, mr.key),
        (mr.va + (2 << 30), 2 << 30, mr.key),
        (mr.va + (4 << 30), 2 << 30, mr.key),
    ];
    driver.post_recv(&mut pair.qp[1], 9, &sges);
    let qpn = pair.qp[1].qpn;
    let full = vec![7; 4096];
    let packets = (1 << 30) / 4096 + 1;
    for psn in 0..packets {
        let opcode = if psn == 0 {
            Opcode::RcSendFirst
        } else {
            Opcode::RcSendMiddle
        };
        let header = header(&world, opcode, qpn, psn);
        world.inject(0, packet(&header, &full));
        if psn % 256 == 255 {
            world.run_for(1000);
        }
    }
    assert_eq!(world.completions(1, &mut pair.cq[1]), []);
    world.run();
    expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::LOC_LEN_ERR);
}

/// A repetition is answered only if it asks for what was done under its PSN.
#[test]
fn a_repetition_with_another_opcode_is_not_answered() {
    let mut world = World::new(2, 1);
    let pair = world.connect(QPT_RC, LEN, |_| {});
    let (qpn, mr) = (pair.qp[1].qpn, pair.mr[1]);
    let psn = world.hosts[1].driver.query_qp(qpn).unwrap().rq_psn.get();
    let forge = |world: &World, opcode: Opcode, len: u32, payload: &[u8]| {
        let mut header = header(world, opcode, qpn, psn);
        header.reth = Some(Reth {
            addr: mr.va,
            rkey: mr.key,
            len,
        });
        world.start_trace();
        world.inject(0, packet(&header, payload));
        world.run();
        let sent = world.take_trace();
        sent.iter().filter(|(host, _)| *host == 1).count()
    };
    assert_eq!(forge(&world, Opcode::RcReadRequest, 3000, &[]), 3);
    assert_eq!(forge(&world, Opcode::RcAtomicWrite, 8, &[1; 8]), 0);
    assert_eq!(world.hosts[1].driver.read_mr(&mr, 0, 8), [0; 8]);
    // Nor a READ of something else.
    assert_eq!(forge(&world, Opcode::RcReadRequest, 3001, &[]), 0);
    assert_eq!(forge(&world, Opcode::RcReadRequest, 3000, &[]), 3);
}
