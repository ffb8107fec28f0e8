//! Bad input from a driver, a process or a peer: each gets a status, a completion, a NAK or a counter, and a
//! neighbour on the same wire does not notice.

use faultline_abi::admin::{
    ALLOC_XRCD, AdminCmd, CREATE_CQ, CREATE_MKEY, CREATE_QP, Counter, CreateCq, CreateMkey,
    CreateQp, DESTROY_CQ, DESTROY_MKEY, DESTROY_QP, DESTROY_SRQ, RingDesc,
};
use faultline_abi::cqe;
use faultline_abi::doorbell::Doorbell;
use faultline_abi::qp::*;
use faultline_abi::regs;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U32, U64};
use faultline_checker::Rule;
use faultline_simulation::{Bus, Error, Mr, RAM_BASE, Rng, Send};
use faultline_simulator::{Host, Pair, World};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::{RoceHeader, seal};
use proptest::prelude::*;
use zerocopy::FromBytes;

const LEN: u64 = 32 << 10;

/// Hosts 1 and 2 talk to each other while host 0 misbehaves.
fn neighbours(world: &mut World) -> Pair {
    let cq = [1, 2].map(|i| world.hosts[i].cq(8).unwrap());
    let qp = [0, 1].map(|i| world.hosts[i + 1].qp(QPT_RC, &cq[i]).unwrap());
    let mr = [1, 2].map(|i| world.hosts[i].mr(LEN).unwrap());
    for i in 0..2 {
        let path = world.path(2 - i, qp[1 - i].qpn);
        world.hosts[i + 1]
            .driver
            .connect(qp[i].qpn, QPT_RC, &path)
            .unwrap();
    }
    Pair { cq, qp, mr }
}

fn unharmed(world: &mut World, pair: &mut Pair, salt: u8) {
    let bytes: Vec<u8> = (0..9000u32)
        .map(|i| (i as u8).wrapping_mul(3) ^ salt)
        .collect();
    world.hosts[1].driver.write_mr(&pair.mr[0], 1, &bytes);
    let (a, b) = (pair.mr[0], pair.mr[1]);
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(a.va + 1, 9000, a.key)],
        remote_addr: b.va + 5,
        rkey: b.key,
        ..Send::default()
    };
    world.hosts[1].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    let found = world.completions(1, &mut pair.cq[0]);
    assert_eq!(
        found.iter().map(|cqe| cqe.status).collect::<Vec<_>>(),
        [cqe::SUCCESS]
    );
    assert!(world.hosts[2].driver.read_mr(&b, 5, 9000) == bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_commands_get_a_status(seed: u64) {
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        // Something for the commands to hit.
        let cq = world.hosts[0].cq(4).unwrap();
        let _qp = world.hosts[0].qp(QPT_RC, &cq).unwrap();
        world.hosts[0].mr(LEN).unwrap();
        let mut rng = Rng::new(seed);
        for _ in 0..200 {
            let mut bytes = [0u8; 128];
            bytes.iter_mut().for_each(|byte| *byte = if rng.chance(300) { rng.next_u64() as u8 } else { 0 });
            let mut cmd = AdminCmd::read_from_bytes(&bytes).unwrap();
            cmd.hdr.opcode.set(rng.below(0x80) as u16);
            if rng.chance(900) {
                cmd.hdr.reserved0.set(0);
                cmd.hdr.reserved1.set(0);
            }
            if rng.chance(700) {
                cmd.hdr.handle.set(rng.below(4) as u32);
            }
            match world.hosts[0].driver.raw_command(&cmd) {
                Ok(_) | Err(Error::Refused(_)) => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }
        unharmed(&mut world, &mut pair, seed as u8);
    }

    #[test]
    fn random_translations_get_a_status(seed: u64) {
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        let mut rng = Rng::new(seed);
        // Within a page, across some, and of 1 GiB and more, at the begin of a page of some size or not.
        let pd = world.hosts[0].pd;
        let small = world.hosts[0].mr(LEN).unwrap();
        let ranges = [(0x40_2123, 100), (0x3fff_f000, 8192), (1 << 30, 1 << 30), ((5 << 30) + 8192, 3 << 30)];
        let mrs: Vec<Mr> = ranges
            .into_iter()
            .map(|(va, len)| {
                let create = CreateMkey {
                    pd: U32::new(pd),
                    iova: U64::new(va),
                    length: U64::new(len),
                    page_shift: 12,
                    ..CreateMkey::default()
                };
                let key = world.hosts[0].driver.command(CREATE_MKEY, 0, &create).unwrap();
                Mr { key: key.handle.get(), va, addr: RAM_BASE, len }
            })
            .chain([small])
            .collect();
        for _ in 0..200 {
            let mr = mrs[rng.below(mrs.len() as u64) as usize];
            let page_shift = rng.below(40) as u8;
            let page = (1u64 << page_shift) - 1;
            let entry = RAM_BASE + rng.below(2) * (rng.below(100) << 12) + rng.below(4);
            let cmd = TqCmd {
                opcode: rng.below(5) as u8,
                flags: rng.below(3) as u8,
                key: U32::new(if rng.chance(800) { mr.key } else { rng.next_u64() as u32 }),
                iova: U64::new(if rng.chance(700) { mr.va & !page } else { rng.next_u64() }),
                count: U64::new(if rng.chance(500) { rng.below(9) } else { rng.next_u64() }),
                list: U64::new(if rng.chance(700) { entry } else { rng.next_u64() }),
                token: U64::new(rng.next_u64()),
                page_shift,
                ..TqCmd::default()
            };
            match world.hosts[0].driver.translate(&cmd) {
                Ok(_) | Err(Error::Refused(_)) => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }
        unharmed(&mut world, &mut pair, seed as u8);
    }

    #[test]
    fn random_work_requests_complete(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        for kind in [QPT_RC, QPT_UC, QPT_UD, QPT_RAW] {
            let mut cq = world.hosts[0].cq(10).unwrap();
            let mut qp = world.hosts[0].qp(kind, &cq).unwrap();
            let mr = world.hosts[0].mr(LEN).unwrap();
            if kind == QPT_RC || kind == QPT_UC {
                let path = world.path(1, 77);
                world.hosts[0].driver.connect(qp.qpn, kind, &path).unwrap();
            } else {
                world.hosts[0].driver.activate(qp.qpn, kind, 5).unwrap();
            }
            for _ in 0..20 {
                let mut entry = [0u8; 128];
                let density = if rng.chance(500) { 100 } else { 900 };
                entry.iter_mut().for_each(|byte| *byte = if rng.chance(density) { rng.next_u64() as u8 } else { 0 });
                entry[0] = rng.below(16) as u8;
                entry[1] = (rng.below(32) as u8) | wr::WR_FLAG_SIGNALED;
                entry[2] = rng.below(6) as u8;
                // Now and then a usable SGE.
                if rng.chance(500) {
                    entry[48..56].copy_from_slice(&mr.va.to_le_bytes());
                    entry[60..64].copy_from_slice(&mr.key.to_le_bytes());
                }
                world.hosts[0].driver.post_raw_send(&mut qp, &entry);
            }
            world.run();
            let found = world.completions(0, &mut cq);
            prop_assert_eq!(found.len(), 20, "one completion each");
            prop_assert!(found.windows(2).all(|w| w[0].wqe.get() + 1 == w[1].wqe.get()));
        }
        unharmed(&mut world, &mut pair, seed as u8);
    }

    /// Contents of a receive queue are as little trusted as those of a send queue.
    #[test]
    fn random_receives_harm_their_own_queue_pair_alone(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        if rng.chance(500) {
            world.hand_over_by_reference();
        }
        for kind in [QPT_RC, QPT_UC, QPT_UD, QPT_RAW] {
            let mut cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
            let mut qp = [0, 1].map(|i| world.hosts[i].qp(kind, &cq[i]).unwrap());
            let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
            for i in 0..2 {
                let path = world.path(1 - i, qp[1 - i].qpn);
                let driver = &mut world.hosts[i].driver;
                match kind {
                    QPT_RC | QPT_UC => driver.connect(qp[i].qpn, kind, &path).unwrap(),
                    _ => driver.activate(qp[i].qpn, kind, 5).unwrap(),
                }
            }
            let (pd, av) = (world.hosts[1].pd, world.path(0, 0).av());
            let ah = world.hosts[1].driver.create_ah(pd, av).unwrap();
            let (mac, number) = (world.hosts[0].mac, qp[0].qpn);
            if kind == QPT_RAW {
                world.hosts[0].driver.set_netdev(mac, 9000, number).unwrap();
                world.hosts[1].driver.write_mr(&mr[1], 0, &mac.0);
            }
            for _ in 0..rng.below(20) {
                let mut entry = [0u8; 128];
                let density = if rng.chance(700) { 0 } else { 300 };
                entry.iter_mut().for_each(|byte| *byte = if rng.chance(density) { rng.next_u64() as u8 } else { 0 });
                entry[4] = rng.below(6) as u8;
                for sge in entry[16..96].chunks_exact_mut(16) {
                    if rng.chance(800) {
                        sge[..8].copy_from_slice(&(mr[0].va + rng.below(LEN)).to_le_bytes());
                        sge[8..12].copy_from_slice(&(rng.below(4000) as u32).to_le_bytes());
                        sge[12..].copy_from_slice(&mr[0].key.to_le_bytes());
                    }
                }
                world.hosts[0].driver.post_raw_recv(&mut qp[0], &entry);
            }
            let sent = rng.below(15);
            for _ in 0..sent {
                let sges = [(mr[1].va, 14 + rng.below(900) as u32, mr[1].key)];
                let send = Send {
                    opcode: if kind == QPT_RAW { wr::WR_RAW } else { wr::WR_SEND },
                    sges: &sges,
                    ah: if kind == QPT_UD { ah } else { 0 },
                    remote_qpn: number,
                    qkey: 5,
                    ..Send::default()
                };
                world.hosts[1].driver.post_send(&mut qp[1], &send);
            }
            world.run_for(1_000_000);
            world.hosts[0].driver.set_state(number, QPS_ERR).unwrap();
            world.hosts[1].driver.set_state(qp[1].qpn, QPS_ERR).unwrap();
            world.run();
            prop_assert_eq!(world.completions(1, &mut cq[1]).len() as u64, sent);
            world.completions(0, &mut cq[0]);
        }
        unharmed(&mut world, &mut pair, seed as u8);
    }

    /// Any change of a queue pair in any state, with work under way.
    #[test]
    fn random_changes_of_a_queue_pair_get_a_status(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        let mut victim = world.connect(QPT_RC, LEN, |c| c.timeout = 5);
        // The PSNs of a connection change at one end.
        world.permit(&Rule::ALL);
        let av = world.path(1, 0).av();
        for _ in 0..60 {
            let mut bytes = [0u8; 112];
            bytes.iter_mut().for_each(|byte| *byte = if rng.chance(100) { rng.next_u64() as u8 } else { 0 });
            let mut attr = QpAttr::read_from_bytes(&bytes).unwrap();
            attr.mask.set(if rng.chance(300) { rng.next_u64() as u32 } else { QP_ATTR_STATE });
            attr.state = rng.below(8) as u8;
            if rng.chance(900) {
                (attr.reserved0, attr.reserved1, attr.av) = (0, [0; 30], av);
                attr.mask.set(attr.mask.get() & 0x313_ffff);
            }
            let host = rng.below(2) as usize;
            match world.hosts[host].driver.modify_qp(victim.qp[host].qpn, &attr) {
                Ok(()) | Err(Error::Refused(_)) => {}
                other => prop_assert!(false, "{other:?}"),
            }
            let (a, b) = (victim.mr[0], victim.mr[1]);
            let sges = [(a.va, 3000, a.key)];
            let send = Send {
                opcode: [wr::WR_WRITE, wr::WR_READ, wr::WR_SEND][rng.below(3) as usize],
                sges: &sges,
                remote_addr: b.va,
                rkey: b.key,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut victim.qp[0], &send);
            world.run_for(rng.below(5000));
            if rng.chance(100) {
                for i in 0..2 {
                    let number = victim.qp[i].qpn;
                    world.hosts[i].driver.set_state(number, QPS_RESET).unwrap();
                    victim.qp[i].reset();
                    let path = world.path(1 - i, victim.qp[1 - i].qpn);
                    world.hosts[i].driver.connect(number, QPT_RC, &path).unwrap();
                }
            }
        }
        world.run_for(1_000_000);
        for i in 0..2 {
            world.hosts[i].driver.set_state(victim.qp[i].qpn, QPS_RESET).unwrap();
        }
        unharmed(&mut world, &mut pair, seed as u8);
    }

    #[test]
    fn random_doorbells_are_counted_or_harmless(seed: u64) {
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        let cq = world.hosts[0].cq(4).unwrap();
        let _qp = world.hosts[0].qp(QPT_RC, &cq).unwrap();
        let page = world.hosts[0].driver.alloc_uctx().unwrap();
        let mut rng = Rng::new(seed);
        for _ in 0..500 {
            let bell = Doorbell {
                kind: rng.below(12) as u8,
                object: rng.below(8) as u32,
                value: if rng.chance(500) { rng.below(50) as u32 } else { rng.next_u64() as u32 },
            };
            // From a process's page: the kernel's objects and queues are out of its reach.
            world.hosts[0].driver.bus.doorbell([page, page, 4000][rng.below(3) as usize], bell);
        }
        world.run();
        world.hosts[0].driver.alloc_pd().unwrap();
        prop_assert!(world.hosts[0].driver.counter(Counter::doorbell_errors).unwrap() > 0);
        unharmed(&mut world, &mut pair, seed as u8);
    }

    #[test]
    fn random_registers_do_not_break_the_neighbours(seed: u64) {
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        let mut rng = Rng::new(seed);
        for _ in 0..300 {
            let offset = (rng.below(0x220) as u32) & !3;
            let value = if rng.chance(500) { rng.below(4) as u32 } else { rng.next_u64() as u32 };
            world.hosts[0].driver.bus.write_register(offset, value);
            world.hosts[0].driver.bus.read_register(offset);
            let bell = Doorbell { kind: rng.below(8) as u8, object: 0, value };
            world.hosts[0].driver.bus.doorbell(0, bell);
        }
        world.run();
        unharmed(&mut world, &mut pair, seed as u8);
    }

    #[test]
    fn random_packets_do_no_harm(seed: u64) {
        let mut world = World::new(3, 1);
        let mut pair = neighbours(&mut world);
        let mut rng = Rng::new(seed);
        let (qpn, dst, src) = (pair.qp[1].qpn, world.hosts[2].mac, world.hosts[1].mac);
        let (from, to) = (world.hosts[1].gid, world.hosts[2].gid);
        for _ in 0..200 {
            let opcode = Opcode::ALL[rng.below(Opcode::ALL.len() as u64) as usize];
            let dest = if rng.chance(500) { qpn } else { rng.below(6) as u32 };
            // Never the next PSN: that is the peer's own packet, which is valid.
            let psn = Psn::new(0x80_0000 + rng.below(1 << 20) as u32);
            let mut header = RoceHeader::new(dst, src, Ip::from_gids(from, to, 0, 0, 64), Bth::new(opcode, dest, psn));
            fill(&mut header, &mut rng);
            let payload = vec![rng.next_u64() as u8; rng.below(1100) as usize];
            let mut bytes = vec![0; header.frame_len(payload.len())];
            header.emit(payload.len(), &mut bytes).unwrap();
            let at = header.header_len();
            bytes[at..at + payload.len()].copy_from_slice(&payload);
            seal(&mut bytes).unwrap();
            if rng.chance(300) {
                let bit = rng.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            if rng.chance(100) {
                bytes.truncate(rng.below(bytes.len() as u64).max(14) as usize);
            }
            world.inject(0, bytes);
        }
        world.run_for(1_000_000);
        unharmed(&mut world, &mut pair, seed as u8);
    }
}

/// The extension headers that the opcode calls for, with any contents.
fn fill(header: &mut RoceHeader, rng: &mut Rng) {
    use faultline_wire::opcode::Headers;
    let has = |headers| header.bth.opcode.has(headers);
    if has(Headers::DETH) {
        header.deth = Some(faultline_wire::deth::Deth {
            qkey: rng.next_u64() as u32,
            src_qp: 3,
        });
    }
    if has(Headers::RETH) {
        header.reth = Some(faultline_wire::reth::Reth {
            addr: rng.next_u64(),
            rkey: rng.next_u64() as u32,
            len: rng.next_u64() as u32,
        });
    }
    if has(Headers::AETH) {
        header.aeth = Some(faultline_wire::aeth::Aeth {
            syndrome: faultline_wire::aeth::Syndrome::from_u8(rng.next_u64() as u8),
            msn: rng.below(1 << 24) as u32,
        });
    }
    if has(Headers::ATOMIC_ETH) {
        header.atomic = Some(faultline_wire::atomic::AtomicEth {
            addr: rng.next_u64(),
            rkey: rng.next_u64() as u32,
            swap_add: rng.next_u64(),
            compare: rng.next_u64(),
        });
    }
    if has(Headers::ATOMIC_ACK_ETH) {
        header.atomic_ack = Some(faultline_wire::atomic::AtomicAckEth {
            original: rng.next_u64(),
        });
    }
    if has(Headers::IMM) {
        header.imm = Some(rng.next_u64() as u32);
    }
    if has(Headers::IETH) {
        header.ieth = Some(rng.next_u64() as u32);
    }
    if has(Headers::XRCETH) {
        header.xrceth = Some(faultline_wire::ext::XrcEth { srqn: 1 });
    }
    if has(Headers::FETH) {
        header.feth = Some(faultline_wire::ext::Feth {
            selectivity: 0,
            placement: 1,
        });
    }
}

#[test]
fn every_refusal_has_its_own_status() {
    use faultline_abi::admin::*;
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let cq = host.cq(4).unwrap();
    let refused = |result: Result<AdminComp, Error>| match result {
        Err(Error::Refused(status)) => status,
        other => panic!("{other:?}"),
    };
    let d = &mut host.driver;
    let ring = |pages| RingDesc {
        addr: U64::new(RAM_BASE + (8 << 20)),
        num_pages: U32::new(pages),
        page_shift: 12,
        ..RingDesc::default()
    };
    let good = CreateCq {
        ring: ring(2),
        log_depth: 5,
        eqn: U32::new(host.eq.eqn),
        ..CreateCq::default()
    };
    d.command(CREATE_CQ, 0, &good).unwrap();
    type Change<'a> = &'a dyn Fn(&mut CreateCq);
    let cases: [(Change<'_>, Status); 7] = [
        (&|c| c.ring = ring(0), Status::BadRing),
        (&|c| c.log_depth = 7, Status::BadRing),
        (&|c| c.log_depth = 40, Status::BadDepth),
        (&|c| c.eqn.set(99), Status::BadEq),
        (&|c| c.uctx.set(99), Status::BadUctx),
        (&|c| c.reserved0 = [1, 0, 0], Status::ReservedNotZero),
        (
            &|c| (c.ring.levels, c.ring.addr) = (1, U64::new(0x1000)),
            Status::DmaError,
        ),
    ];
    for (change, status) in cases {
        let mut body = good;
        change(&mut body);
        assert_eq!(refused(d.command(CREATE_CQ, 0, &body)), status);
    }
    assert_eq!(refused(d.command(0x7fff, 0, &())), Status::BadOpcode);
    assert_eq!(refused(d.command(DEALLOC_PD, 99, &())), Status::BadPd);
    assert_eq!(refused(d.command(DESTROY_MKEY, 99, &())), Status::BadMkey);
    assert_eq!(refused(d.command(DESTROY_CQ, 99, &())), Status::BadCq);
    assert_eq!(refused(d.command(DESTROY_QP, 99, &())), Status::BadQp);
    assert_eq!(refused(d.command(DESTROY_SRQ, 99, &())), Status::BadSrq);
    assert_eq!(refused(d.command(DESTROY_AH, 99, &())), Status::BadAh);
    assert_eq!(refused(d.command(DESTROY_EQ, 99, &())), Status::BadEq);
    assert_eq!(refused(d.command(DEALLOC_UCTX, 99, &())), Status::BadUctx);
    assert_eq!(
        refused(d.command(SET_GID, 9999, &SetGid::default())),
        Status::BadGid
    );
    // What is used can't be destroyed.
    let qp = host.qp(QPT_RC, &cq).unwrap();
    let d = &mut host.driver;
    assert_eq!(refused(d.command(DESTROY_CQ, cq.cqn, &())), Status::InUse);
    assert_eq!(refused(d.command(DEALLOC_PD, host.pd, &())), Status::InUse);
    assert_eq!(
        refused(d.command(DESTROY_EQ, host.eq.eqn, &())),
        Status::InUse
    );
    assert_eq!(
        d.set_state(qp.qpn, QPS_RTS),
        Err(Error::Refused(Status::BadTransition))
    );
    d.command(DESTROY_QP, qp.qpn, &()).unwrap();
    d.command(DESTROY_CQ, cq.cqn, &()).unwrap();
    assert_eq!(
        refused(d.command(DESTROY_QP, qp.qpn, &())),
        Status::BadQp,
        "its number is not reused"
    );
}

#[test]
fn a_process_cannot_touch_objects_of_others() {
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let cq = host.cq(4).unwrap();
    let mut qp = host.qp(QPT_UD, &cq).unwrap();
    host.driver.activate(qp.qpn, QPT_UD, 1).unwrap();
    host.driver.write_send(&mut qp, &Send::default());
    let page = host.driver.alloc_uctx().unwrap();
    let before = host.driver.counter(Counter::doorbell_errors).unwrap();
    host.driver
        .ring(page, faultline_abi::doorbell::SQ, qp.qpn, 1);
    host.driver
        .ring(page, faultline_abi::doorbell::CQ_ARM, cq.cqn, 0);
    host.driver.ring(page, faultline_abi::doorbell::ADMIN, 0, 1);
    host.driver
        .ring(page, faultline_abi::doorbell::TRANSLATION, 0, 1);
    host.driver
        .ring(page, faultline_abi::doorbell::EQ_ARM, 0, 0);
    let after = host.driver.counter(Counter::doorbell_errors).unwrap();
    assert_eq!(after - before, 5);
    let mut cq = cq;
    assert_eq!(world.completions(0, &mut cq), []);
}

#[test]
fn rings_out_of_range_stop_the_device_until_reset() {
    let mut world = World::new(1, 1);
    let bus = &mut world.hosts[0].driver.bus;
    bus.write_register(regs::CONTROL, 0);
    assert_eq!(bus.read_register(regs::STATUS) & regs::ENABLED, 0);
    bus.write_register(regs::ADMIN_LOG_DEPTH, 31);
    bus.write_register(regs::CONTROL, regs::ENABLE);
    assert_ne!(bus.read_register(regs::STATUS) & regs::FATAL, 0);
    assert_eq!(bus.read_register(regs::FATAL_CODE), regs::BAD_RINGS);
    bus.write_register(regs::CONTROL, regs::RESET);
    assert_eq!(bus.read_register(regs::STATUS) & regs::FATAL, 0);
}

/// Much work at once is done bit by bit: others have their turn in between.
#[test]
fn large_commands_are_done_one_by_one() {
    let mut world = World::new(3, 1);
    let mut pair = neighbours(&mut world);
    let host = &mut world.hosts[0];
    let region = CreateMkey {
        pd: U32::new(host.pd),
        length: U64::new(1 << 52),
        page_shift: 12,
        ..CreateMkey::default()
    };
    let key = host.driver.command(CREATE_MKEY, 0, &region).unwrap();
    let map = |page_shift: u8, count: u64| TqCmd {
        opcode: tq::MAP,
        flags: tq::CONTIGUOUS,
        key: key.handle,
        count: U64::new(count),
        list: U64::new(tq::READ),
        page_shift,
        ..TqCmd::default()
    };
    let many = |page_shift, count| vec![map(page_shift, count); 12];
    let one_by_one: Vec<usize> = (1..=12).collect();
    assert_eq!(
        host.driver.translate_all(&many(12, 1 << 18)).unwrap(),
        one_by_one
    );
    assert_eq!(
        host.driver.translate_all(&many(20, 1 << 10)).unwrap(),
        one_by_one
    );
    assert_eq!(host.driver.translate_all(&many(12, 512)).unwrap(), [12]);
    unharmed(&mut world, &mut pair, 78);
}

/// A driver may map single pages anywhere, and describe rings by lists without end: it gets a limited amount of
/// memory for that, until it frees some.
#[test]
fn page_tables_and_lists_have_a_limit() {
    const LIMIT: usize = 1 << 20;
    let mut world = World::with_config(3, 1, |config| config.table_bytes = LIMIT);
    let mut pair = neighbours(&mut world);
    let held = |world: &World| world.with_nic(0, |nic| nic.held_memory());
    let before = held(&world);
    let host = &mut world.hosts[0];
    let region = CreateMkey {
        pd: U32::new(host.pd),
        length: U64::new(1 << 52),
        page_shift: 12,
        ..CreateMkey::default()
    };
    let key = host.driver.command(CREATE_MKEY, 0, &region).unwrap();
    let map = |n: u64, count: u64| TqCmd {
        opcode: tq::MAP,
        flags: tq::CONTIGUOUS,
        key: key.handle,
        iova: U64::new(n << 40),
        count: U64::new(count),
        list: U64::new(RAM_BASE | tq::READ),
        page_shift: 12,
        ..TqCmd::default()
    };
    let mut mapped = 0;
    let refused = loop {
        match host.driver.translate(&map(mapped, 1)) {
            Ok(_) => mapped += 1,
            Err(error) => break error,
        }
        assert!(mapped < 1000);
    };
    assert_eq!(refused, Error::Refused(Status::NoResources));
    // Lists of rings come out of the same purse: here 2 MiB of addresses for one page of entries.
    let list = host.driver.alloc(4096).unwrap();
    host.driver.bus.write(list, &[0; 4096]);
    let cq = |count: u32| CreateCq {
        ring: RingDesc {
            addr: U64::new(list),
            num_pages: U32::new(count),
            page_shift: 12,
            levels: 1,
            ..RingDesc::default()
        },
        log_depth: 5,
        ..CreateCq::default()
    };
    let status = host.driver.command(CREATE_CQ, 0, &cq(512)).unwrap_err();
    assert_eq!(status, Error::Refused(Status::NoResources));
    assert!(held(&world) <= LIMIT + (64 << 10));
    let host = &mut world.hosts[0];
    host.driver
        .command(DESTROY_MKEY, key.handle.get(), &[0u8; 0])
        .unwrap();
    let number = host.driver.command(CREATE_CQ, 0, &cq(512)).unwrap().handle;
    assert_eq!(held(&world), before + 8, "one page is all that it needs");
    let host = &mut world.hosts[0];
    host.driver
        .command(DESTROY_CQ, number.get(), &[0u8; 0])
        .unwrap();
    assert_eq!(held(&world), before);
    unharmed(&mut world, &mut pair, 77);
}

/// Queue pairs come out of the same purse.
#[test]
fn queue_pairs_have_a_limit() {
    const LIMIT: usize = 1 << 20;
    let mut world = World::with_config(3, 1, |config| config.table_bytes = LIMIT);
    let mut pair = neighbours(&mut world);
    let held = |world: &World| world.with_nic(0, |nic| nic.held_memory());
    let cq = world.hosts[0].cq(4).unwrap();
    let before = held(&world);
    let host = &mut world.hosts[0];
    let xrcd = host.driver.command(ALLOC_XRCD, 0, &[0u8; 0]).unwrap();
    // The smallest that there are.
    let target = CreateQp {
        qp_type: QPT_XRC_TGT,
        xrcd: xrcd.handle,
        ..CreateQp::default()
    };
    let mut made = Vec::new();
    let refused = loop {
        match host.driver.command(CREATE_QP, 0, &target) {
            Ok(answer) => made.push(answer.handle.get()),
            Err(error) => break error,
        }
        assert!(made.len() < 10_000);
    };
    let no_room = Error::Refused(Status::NoResources);
    assert_eq!(refused, no_room);
    let config = host.qp_config(QPT_RC, &cq);
    assert_eq!(
        host.driver.create_qp(&config).map(|qp| qp.qpn),
        Err(no_room)
    );
    assert_eq!(
        host.driver.create_wq(host.pd, &cq, 4).map(|wq| wq.qpn),
        Err(no_room)
    );
    assert!(held(&world) > LIMIT - 4096 && held(&world) <= LIMIT);
    let tags = |host: &mut Host| host.driver.create_tag_srq(host.pd, 0, cq.cqn, 128);
    assert_eq!(
        tags(&mut world.hosts[0]).map(|srq| srq.srqn()),
        Err(no_room)
    );
    for qpn in made {
        let driver = &mut world.hosts[0].driver;
        driver.command(DESTROY_QP, qpn, &[0u8; 0]).unwrap();
    }
    assert_eq!(held(&world), before);
    // Lists of tagged buffers, too.
    let srq = tags(&mut world.hosts[0]).unwrap().srqn();
    assert!(held(&world) > before + 128 * 64);
    let driver = &mut world.hosts[0].driver;
    driver.command(DESTROY_SRQ, srq, &[0u8; 0]).unwrap();
    assert_eq!(held(&world), before);
    unharmed(&mut world, &mut pair, 79);
}

/// Outstanding requests of a queue pair count; when no memory is left it continues with one request at a time.
#[test]
fn requests_under_way_have_a_limit() {
    const COUNT: usize = 60;
    const SGES: usize = 16;
    for spend in [false, true] {
        let mut world = World::with_config(2, 1, |config| config.table_bytes = 256 << 10);
        let held = |world: &World| world.with_nic(0, |nic| nic.held_memory());
        let mut cq = [0, 1].map(|host: usize| world.hosts[host].cq(8).unwrap());
        let mr = [0, 1].map(|host: usize| world.hosts[host].mr(LEN).unwrap());
        let mut config = world.hosts[0].qp_config(QPT_RC, &cq[0]);
        (config.max_sge, config.log_depth) = (SGES as u8, 6);
        let mut qp = world.hosts[0].driver.create_qp(&config).unwrap();
        let peer = world.hosts[1].qp(QPT_RC, &cq[1]).unwrap();
        let idle = held(&world);
        for (host, qpn, other) in [(0, qp.qpn, peer.qpn), (1, peer.qpn, qp.qpn)] {
            let path = world.path(1 - host, other);
            let driver = &mut world.hosts[host].driver;
            driver.connect(qpn, QPT_RC, &path).unwrap();
        }
        // For what it answers.
        let answers = held(&world) - idle;
        let host = &mut world.hosts[0];
        let xrcd = host.driver.command(ALLOC_XRCD, 0, &[0u8; 0]).unwrap();
        let target = CreateQp {
            qp_type: QPT_XRC_TGT,
            xrcd: xrcd.handle,
            ..CreateQp::default()
        };
        while spend && host.driver.command(CREATE_QP, 0, &target).is_ok() {}
        // What is left is less than a queue pair; this is more than that.
        let list = CreateMkey {
            pd: U32::new(host.pd),
            length: U64::new(1 << 52),
            page_shift: 12,
            ..CreateMkey::default()
        };
        let key = host.driver.command(CREATE_MKEY, 0, &list).unwrap().handle;
        let map = TqCmd {
            opcode: tq::MAP,
            flags: tq::CONTIGUOUS,
            key,
            count: U64::new(1),
            list: U64::new(RAM_BASE | tq::READ),
            page_shift: 12,
            ..TqCmd::default()
        };
        host.driver.translate(&map).unwrap();
        let before = held(&world);

        // No acknowledgement arrives for a while.
        world.lose(|host, header| host == 1 && header.aeth.is_some());
        let data: Vec<u8> = (0..LEN as u32).map(|n| ((n * n) >> 7) as u8).collect();
        world.hosts[0].driver.write_mr(&mr[0], 0, &data);
        let packets = |world: &mut World| {
            let driver = &mut world.hosts[0].driver;
            driver.counter(Counter::tx_roce_packets).unwrap()
        };
        for n in 0..COUNT as u64 {
            let sges: Vec<_> = (0..SGES as u64)
                .map(|i| (mr[0].va + n * 512 + i * 32, 32, mr[0].key))
                .collect();
            let send = Send {
                opcode: wr::WR_WRITE,
                sges: &sges,
                remote_addr: mr[1].va + n * 512,
                rkey: mr[1].key,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut qp, &send);
        }
        world.run_for(10_000);
        let under_way = packets(&mut world);
        assert_eq!(under_way, if spend { 1 } else { COUNT as u64 });
        let taken = held(&world) - before;
        // 16 bytes each.
        assert!(taken >= under_way as usize * SGES * 16, "{taken}");
        assert!(spend || taken > COUNT * SGES * 16 + COUNT * 64, "{taken}");
        world.lose_nothing();
        world.run();
        let found = world.completions(0, &mut cq[0]);
        assert_eq!(found.len(), COUNT);
        assert!(found.iter().all(|cqe| cqe.status == cqe::SUCCESS));
        let len = COUNT * 512;
        assert!(world.hosts[1].driver.read_mr(&mr[1], 0, len) == data[..len]);
        // Room for some requests is kept, SGEs are not.
        assert!(held(&world) - before < 64 * 256);
        let driver = &mut world.hosts[0].driver;
        driver.set_state(qp.qpn, QPS_RESET).unwrap();
        assert_eq!(held(&world), before - answers);
    }
}
