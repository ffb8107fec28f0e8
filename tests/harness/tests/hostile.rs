//! A driver that does its worst with registers, commands, work requests and doorbells, over the socket, while its
//! neighbours move verified data. A function-level reset makes its device usable again.

use faultline_abi::admin::{AdminCmd, CREATE_MKEY, Counter, CreateMkey};
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::qp::{QP_ATTR_STATE, QPS_ERR, QPS_RTS, QPS_SQE, QpAttr};
use faultline_abi::translation::{self, TqCmd};
use faultline_abi::wqe::{
    WR_BIND_MW, WR_FLAG_FENCE, WR_FLAG_SIGNALED, WR_FLAG_SOLICITED, WR_RAW, WR_SEND,
};
use faultline_abi::{U32, U64, cqe, regs};
use faultline_config::PollMode;
use faultline_harness::client::CONFIG_REGION;
use faultline_harness::testbed::{ALL_ACCESS, Fabric, LONG, Node, connect_nodes};
use faultline_harness::traffic::{Neighbours, exchange_anew, impatient};
use faultline_harness::{
    Buf, Choices, DriverError, Nic, QpOptions, QpType, Reset, RingError, Rng, SendWr, connect,
};
use zerocopy::{FromBytes, IntoBytes};

/// NIC `x` is driven badly; `y` is driven well, but talks to it; `c` and `d` have nothing to do with them.
struct Scene {
    x: Nic,
    y: Node,
    neighbours: Neighbours,
    fabric: Fabric,
}

impl Scene {
    fn new() -> Self {
        let fabric = Fabric::start(PollMode::Adaptive, &["x", "y", "c", "d"]).unwrap();
        Self {
            x: fabric.open("x").unwrap(),
            y: fabric.node("y").unwrap(),
            neighbours: Neighbours::start(&fabric, ["c", "d"]).unwrap(),
            fabric,
        }
    }

    /// After a function-level reset the device is in its initial state, whatever was done to it.
    #[track_caller]
    fn reset(&mut self, rng: &mut Rng) {
        self.neighbours.unharmed();
        self.fabric.assert_passes_are_short();
        self.x.reset(Reset::Function).unwrap();
        self.x.start().unwrap();
        let mut x = Node::new(self.x.clone()).unwrap();
        let counters = self.x.counters().unwrap();
        assert_eq!(counters[Counter::command_errors], 0);
        exchange_anew(&mut x, &mut self.y, rng);
    }
}

/// Possible ends of a command: an answer, a refusal, or the stop or reset of the device.
#[track_caller]
fn answered<T>(result: Result<T, DriverError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(DriverError::Admin { .. } | DriverError::Translation { .. }) => None,
        Err(DriverError::Ring(RingError::Down)) => None,
        Err(DriverError::Nonsense {
            what: "reason to stop",
            ..
        }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Whether the device still takes commands.
fn runs(nic: &Nic) -> bool {
    let status = nic.read_reg(regs::STATUS).unwrap();
    status & (regs::ENABLED | regs::FATAL) == regs::ENABLED
}

#[test]
fn random_accesses_to_all_regions() {
    let mut scene = Scene::new();
    let mut rng = Rng::new(1);
    let regions: Vec<(u32, u64)> = (0..9)
        .map(|region| {
            let info = scene.x.with_client(|client| client.region_info(region));
            (region, info.unwrap().size)
        })
        .collect();
    assert_eq!(regions.iter().filter(|(_, size)| *size > 0).count(), 4);
    let mut taken = 0;
    for _ in 0..12 {
        // With something to lose.
        let x = Node::new(scene.x.clone()).unwrap();
        let _qps = connect_nodes(&x, &scene.y, QpType::Rc).unwrap();
        for _ in 0..800 {
            let (region, size) = rng.pick(&regions);
            // Most registers are near the beginning; the rest matters too.
            let near = size.min(0x200);
            let offset = match rng.below(8) {
                0 => rng.edgy(),
                1 | 2 => rng.below(size + 8),
                3 | 4 => rng.below(near + 1) & !7,
                // Kick pages.
                5 => (size / 2 + rng.below(4) * 4096) & !4095,
                _ => rng.below(near + 1) & !3,
            };
            let len = match rng.below(5) {
                0 => 1 + rng.below(64) as usize,
                1 => rng.pick(&[256, 4096, 65536, 1 << 20]),
                _ => rng.pick(&[1, 2, 4, 8]),
            };
            let result = scene.x.with_client(|client| {
                if rng.below(4) == 0 {
                    return client.read(region, offset, &mut vec![0; len]);
                }
                let mut data = rng.bytes(len);
                // Small numbers mean something more often than others.
                if rng.below(2) == 0 {
                    let value = rng.edgy() & 0xff;
                    data.fill(0);
                    data[0] = value as u8;
                }
                client.write(region, offset, &data)
            });
            match result {
                Ok(()) => taken += 1,
                Err(error) => assert!(error.refusal().is_some(), "{error}"),
            }
        }
        // Some of it has reset the device, more often than not.
        scene.reset(&mut rng);
        drop(x);
    }
    assert!(taken > 1000, "only {taken} accesses were within a region");
    // Every byte of every region alone, and every word of the registers with all bits.
    for (region, size) in [(CONFIG_REGION, 4096), (regs::BAR_MSIX, 4096 + 16)] {
        for offset in 0..size {
            scene.x.with_client(|client| {
                client.write(region, offset, &[0xff]).unwrap();
                client.read(region, offset, &mut [0]).unwrap();
            });
        }
    }
    scene.reset(&mut rng);
    for offset in (0..0x200).step_by(4) {
        for value in [0u32, 1, 2, u32::MAX] {
            scene.x.write_reg(offset, value).unwrap();
            scene.x.read_reg(offset).unwrap();
        }
    }
    scene.reset(&mut rng);
    scene.neighbours.finish();
}

/// Objects for random commands to hit, and memory for them to name.
struct Targets {
    node: Node,
    scratch: Buf,
    _srq: faultline_harness::Srq,
    _qps: (faultline_harness::Qp, faultline_harness::Qp),
}

impl Targets {
    fn new(scene: &Scene) -> Self {
        let node = Node::new(scene.x.clone()).unwrap();
        let mut qps = connect_nodes(&node, &scene.y, QpType::Rc).unwrap();
        // With work under way.
        let sges = [node.mr.sge(0, 1 << 19)];
        for _ in 0..8 {
            let write = SendWr::write(&sges, scene.y.mr.remote(0));
            qps.0.post_send(&write.signaled()).unwrap();
        }
        Self {
            _srq: node.context.srq(&node.pd, 5, 1, 0).unwrap(),
            scratch: node.nic.alloc(1 << 20).unwrap(),
            _qps: qps,
            node,
        }
    }

    fn address(&self, rng: &mut Rng) -> u64 {
        match rng.below(3) {
            0 => rng.edgy(),
            _ => self.scratch.dma(0) + rng.below(200) * 4096,
        }
    }
}

#[test]
fn random_commands() {
    let mut scene = Scene::new();
    let mut rng = Rng::new(2);
    let (mut good, mut all) = (0, 0);
    for _ in 0..25 {
        let targets = Targets::new(&scene);
        for _ in 0..150 {
            if !runs(&scene.x) {
                break;
            }
            all += 1;
            if rng.below(3) == 0 {
                let mr = &targets.node.mr;
                let cmd = TqCmd {
                    opcode: rng.below(5) as u8,
                    flags: rng.below(4) as u8,
                    key: U32::new(rng.pick(&[mr.key(), mr.key() ^ 1, 0, u32::MAX])),
                    iova: U64::new(rng.pick(&[mr.iova(), mr.iova() + 4096, 0, u64::MAX])),
                    count: U64::new(rng.edgy()),
                    list: U64::new(targets.address(&mut rng) | rng.below(4)),
                    token: U64::new(rng.next_u64()),
                    page_shift: rng.pick(&[0, 12, 12, 12, 21, 30, 63, 255]),
                    ..TqCmd::default()
                };
                good += u32::from(answered(scene.x.translate(cmd)).is_some());
                continue;
            }
            let density = rng.pick(&[1, 20, 100]);
            let bytes: Vec<u8> = (0..128)
                .map(|_| match rng.below(100) < density {
                    true => rng.edgy() as u8,
                    false => 0,
                })
                .collect();
            let mut cmd = AdminCmd::read_from_bytes(&bytes).unwrap();
            cmd.hdr.opcode.set(rng.below(0x80) as u16);
            if rng.below(4) > 0 {
                cmd.hdr.reserved0.set(0);
                cmd.hdr.reserved1.set(0);
                cmd.hdr.handle.set(rng.below(8) as u32);
            }
            // Most commands that create begin with a ring, those for counters with an address.
            if rng.below(2) == 0 {
                let ring = [
                    targets.address(&mut rng),
                    (1 + rng.below(4)) | (12 << 32) | (rng.below(3) << 40),
                ];
                cmd.body[..16].copy_from_slice(ring.as_bytes());
                cmd.body[16] = rng.below(12) as u8;
            }
            good += u32::from(answered(scene.x.admin_raw(cmd)).is_some());
        }
        scene.reset(&mut rng);
        drop(targets);
    }
    assert!(good > 100 && good < all, "{good} of {all} were carried out");
    scene.neighbours.finish();
}

#[test]
fn random_work_requests() {
    let recover = QpAttr {
        mask: QP_ATTR_STATE.into(),
        state: QPS_RTS,
        ..QpAttr::default()
    };
    let mut scene = Scene::new();
    let mut rng = Rng::new(3);
    let mut statuses = [0u32; 32];
    for round in 0..32 {
        let mut x = Node::new(scene.x.clone()).unwrap();
        let kind = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Raw][round % 4];
        let options = QpOptions {
            send_sge: 4,
            inline: 80,
            ..QpOptions::default()
        };
        let mut qx = x.qp_with(kind, None, &options).unwrap();
        let mut qy = scene.y.qp(kind).unwrap();
        match kind {
            QpType::Rc | QpType::Uc => {
                connect(&qx, &qy, &impatient()).unwrap();
            }
            _ => {
                qx.open_datagrams(0x1ee7).unwrap();
                qy.open_datagrams(0x1ee7).unwrap();
            }
        }
        let ah = x.pd.ah(&scene.y.nic).unwrap().number();
        // The memory that the peer grants is a part of its own; it takes messages too.
        let lent = scene.y.nic.alloc(8192).unwrap();
        let lent = scene.y.pd.register(&lent, ALL_ACCESS).unwrap();
        let canary = scene.y.nic.alloc(64 << 10).unwrap();
        canary.fill_pattern(0, canary.len(), round as u64);
        for tag in 0..32 {
            qy.post_recv(tag, &[lent.sge(0, 4096)]).unwrap();
        }
        for n in 0..40 {
            let density = rng.pick(&[0, 5, 50, 100]);
            let mut entry: Vec<u8> = (0..128)
                .map(|_| match rng.below(100) < density {
                    true => rng.edgy() as u8,
                    false => 0,
                })
                .collect();
            entry[0] = rng.below(16) as u8;
            entry[1] = rng.below(32) as u8 | WR_FLAG_SIGNALED;
            entry[2] = rng.below(6) as u8;
            match kind {
                QpType::Ud if rng.below(2) == 0 => entry[0] = WR_SEND,
                QpType::Raw if rng.below(2) == 0 => entry[0] = WR_RAW,
                _ => {}
            }
            let mut put = |at: usize, bytes: &[u8], chance: u64| {
                if rng.below(100) < chance {
                    entry[at..at + bytes.len()].copy_from_slice(bytes);
                }
            };
            // Something of it is right now and then: the peer's key and address, the own ones, the path.
            put(12, &lent.key().to_le_bytes(), 50);
            put(16, &lent.iova().to_le_bytes(), 50);
            put(32 - 8, &0x1ee7u64.to_le_bytes(), 80);
            put(40, &ah.to_le_bytes(), 80);
            put(44, &qy.number().to_le_bytes(), 80);
            put(48, x.mr.sge(n, 64).as_bytes(), 50);
            // Most entries are well-formed: else nothing would happen but that they are refused.
            if rng.below(100) < 80 {
                entry[1] &= WR_FLAG_SIGNALED | WR_FLAG_SOLICITED | WR_FLAG_FENCE;
                entry[2] %= 2;
                entry[8..12].fill(0);
                let (from, to) = match (kind, entry[0]) {
                    (QpType::Ud, _) => (28, 40),
                    (QpType::Raw, _) => (32, 40),
                    (_, WR_BIND_MW) => (36, 48),
                    _ => (36, 44),
                };
                entry[3] = 0;
                entry[from..to].fill(0);
            }
            // In an error state everything is flushed: on to the next.
            match qx.state().unwrap() {
                QPS_ERR => break,
                QPS_SQE => qx.modify(&recover).unwrap(),
                _ => {}
            }
            let id = qx.post_raw(&entry).unwrap();
            let Some(wc) = x.cq.poll_for(LONG) else {
                panic!("no completion within {LONG:?} of {kind:?} {entry:x?}");
            };
            assert_eq!((wc.id, wc.qpn), (id, qx.number()), "{kind:?} {entry:x?}");
            qx.retire(&wc);
            statuses[usize::from(wc.status)] += 1;
        }
        assert_eq!(canary.pattern_mismatch(0, canary.len(), round as u64), None);
        drop((qx, qy));
        // The peer may have been written to and may have received, where it allowed that; no more.
        while scene.y.cq.poll().is_some() {}
        scene.reset(&mut rng);
        drop(x);
    }
    let seen = statuses.iter().filter(|count| **count > 0).count();
    assert!(seen >= 5, "few things happened: {statuses:?}");
    let well = statuses[usize::from(cqe::SUCCESS)];
    assert!(well > 25, "few things went well: {statuses:?}");
    scene.neighbours.finish();
}

#[test]
fn random_doorbells_of_all_pages() {
    let mut scene = Scene::new();
    let mut rng = Rng::new(4);
    for _ in 0..10 {
        let mut victim = Node::new(scene.x.clone()).unwrap();
        let (mut qx, mut qy) = connect_nodes(&victim, &scene.y, QpType::Rc).unwrap();
        let attacker = scene.x.context().unwrap();
        assert_ne!(attacker.page(), victim.context.page());
        let pages = scene.x.read_reg(regs::DOORBELL_PAGES).unwrap();
        let before = scene.x.counters().unwrap()[Counter::doorbell_errors];
        for _ in 0..3000 {
            let bell = Doorbell {
                // The kernel's own ones count on page 0 only, and the attacker has another.
                kind: 1 + rng.below(11) as u8,
                object: match rng.below(4) {
                    0 => qx.number(),
                    1 => victim.cq.number(),
                    2 => rng.below(8) as u32,
                    _ => rng.below(1 << 24) as u32,
                },
                value: rng.edgy() as u32,
            };
            // By its own page, or by a kick page: its own, or one that no context has.
            match rng.below(4) {
                0 => scene.x.kick(attacker.page(), bell).unwrap(),
                1 => scene.x.kick(pages - 1, bell).unwrap(),
                _ => attacker.ring(bell).unwrap(),
            }
        }
        let after = scene.x.counters().unwrap()[Counter::doorbell_errors];
        assert!(after - before > 2000, "{} refused", after - before);
        // None of them counted for the victim.
        let (x, y) = ((&mut victim, &mut qx), (&mut scene.y, &mut qy));
        faultline_harness::traffic::exchange(x, y, &mut rng);
        // The ring as memory: any bits in any word of it.
        let base = u64::from(attacker.page()) * u64::from(regs::PAGE_SIZE);
        for _ in 0..3000 {
            let at = base + rng.below(512) * 8;
            let area = scene.x.doorbell_area();
            area.store_u64(at, rng.edgy()).unwrap();
        }
        scene.x.kick(attacker.page(), nop()).unwrap();
        let (x, y) = ((&mut victim, &mut qx), (&mut scene.y, &mut qy));
        faultline_harness::traffic::exchange(x, y, &mut rng);
        // The same for the kernel's page, which affects only its owner.
        for _ in 0..3000 {
            let area = scene.x.doorbell_area();
            area.store_u64(rng.below(512) * 8, rng.edgy()).unwrap();
        }
        scene.x.kick(0, nop()).unwrap();
        scene.reset(&mut rng);
        drop((victim, qx, qy));
    }
    scene.neighbours.finish();
}

/// Commands that seem small: mappings of a page that is as large as its region, in a row, with 32 doorbells.
#[test]
fn large_pages_do_not_hold_up_neighbours() {
    const COMMANDS: u32 = 256;
    let mut scene = Scene::new();
    let mut rng = Rng::new(5);
    let node = Node::new(scene.x.clone()).unwrap();
    // Regions that begin at a page of 1 GiB, or a little behind it.
    for (iova, length) in [
        (1 << 30, 1 << 30),
        (1 << 30, 8192),
        ((1 << 30) + (1 << 22), 1 << 21),
    ] {
        let create = CreateMkey {
            pd: U32::new(node.pd.number()),
            iova: U64::new(iova),
            length: U64::new(length),
            page_shift: 30,
            ..CreateMkey::default()
        };
        let mut cmd = AdminCmd::default();
        cmd.hdr.opcode.set(CREATE_MKEY);
        cmd.body[..size_of::<CreateMkey>()].copy_from_slice(create.as_bytes());
        let (key, _) = scene.x.admin_raw(cmd).unwrap();
        let map = TqCmd {
            opcode: translation::MAP,
            flags: translation::CONTIGUOUS,
            key: U32::new(key),
            iova: U64::new(1 << 30),
            count: U64::new(1),
            list: U64::new((5 << 30) | translation::READ),
            page_shift: 30,
            ..TqCmd::default()
        };
        scene.x.translate_many(map, COMMANDS).unwrap();
    }
    scene.fabric.assert_passes_are_short();
    scene.reset(&mut rng);
    drop(node);
    scene.neighbours.finish();
}

fn nop() -> Doorbell {
    Doorbell {
        kind: doorbell::NOP,
        object: 0,
        value: 0,
    }
}
