//! Packets of a peer that keeps to no rule, for queue pairs of all types.

use faultline_abi::qp::*;
use faultline_simulation::Qp;
use faultline_simulator::{World, gid6, packet};
use faultline_wire::aeth::{Aeth, Syndrome};
use faultline_wire::atomic::{AtomicAckEth, AtomicEth};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::deth::Deth;
use faultline_wire::ext::{Feth, XrcEth};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::{Headers, Opcode};
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;

use crate::input::{Input, pattern};

const LEN: u64 = 8192;
pub(crate) const QKEY: u32 = 5;
const RECEIVES: u32 = 8;

/// What the peer can aim at.
pub(crate) struct Aim {
    pub qpn: u32,
    pub srqn: u32,
    /// Most packets name the first.
    pub keys: Vec<u32>,
    pub va: u64,
}

/// A region without remote rights stays unchanged by any packet, and the NIC answers commands.
pub fn responder(data: &[u8]) {
    let mut input = Input(data);
    let kind = [QPT_RC, QPT_UC, QPT_UD, QPT_RAW, QPT_XRC_TGT, QPT_GSI][usize::from(input.u8()) % 6];
    let mut world = World::new(2, 1);
    // Drivers and peers that break the rules make NICs break them.
    world.permit(&faultline_checker::Rule::ALL);
    let mut cq = world.hosts[1].cq(6).unwrap();
    let open = world.hosts[1].mr(LEN).unwrap();
    let pd = world.hosts[1].pd;
    let path = world.path(0, 77);
    let driver = &mut world.hosts[1].driver;
    let closed = driver
        .reg_mr(pd, 0x10_0000, LEN, ACCESS_LOCAL_WRITE)
        .expect("a region");
    let secret = pattern(0, LEN as usize);
    driver.write_mr(&closed, 0, secret);
    let mut srqn = 0;
    let mut receiver: Option<Qp> = None;
    let qpn = if kind == QPT_XRC_TGT {
        let xrcd = driver.alloc_xrcd().expect("a domain");
        let mut srq = driver.create_xrc_srq(pd, xrcd, cq.cqn).expect("an SRQ");
        for tag in 0..RECEIVES {
            driver.post_srq_recv(&mut srq, tag, &[(open.va, 2000, open.key)]);
        }
        srqn = srq.srqn;
        driver.create_xrc_target(xrcd).expect("a target")
    } else {
        let qp = world.hosts[1].qp(kind, &cq).unwrap();
        let number = qp.qpn;
        receiver = Some(qp);
        number
    };
    let driver = &mut world.hosts[1].driver;
    match kind {
        QPT_RC | QPT_UC | QPT_XRC_TGT => driver.connect(qpn, kind, &path),
        _ => driver.activate(qpn, kind, QKEY),
    }
    .expect("a change of state");
    if let Some(qp) = &mut receiver {
        for tag in 0..RECEIVES {
            driver.post_recv(qp, tag, &[(open.va, 2000, open.key)]);
        }
    }
    let aim = Aim {
        qpn,
        srqn,
        keys: vec![open.key, closed.key],
        va: open.va,
    };
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let bytes = frame(&world, &mut input, &aim);
        world.inject(0, bytes);
        if input.u8().is_multiple_of(4) {
            world.run_for(u64::from(input.u16()));
        }
    }
    world.run_for(1_000_000);
    let found = world.completions(1, &mut cq);
    assert!(found.len() <= RECEIVES as usize, "{found:?}");
    let driver = &mut world.hosts[1].driver;
    assert!(driver.read_mr(&closed, 0, LEN as usize) == secret);
    driver.alloc_pd().expect("a NIC that answers");
}

fn frame(world: &World, input: &mut Input<'_>, aim: &Aim) -> Vec<u8> {
    let opcode = Opcode::ALL[usize::from(input.u8()) % Opcode::ALL.len()];
    let how = input.u8();
    let qpn = if how & 7 == 7 {
        input.u32() & 0xff_ffff
    } else {
        aim.qpn
    };
    // Around the PSN that is expected.
    let psn = Psn::new(u32::from(input.u8()).wrapping_sub(8) & 0xff_ffff);
    let mut bth = Bth::new(opcode, qpn, psn);
    bth.ack_req = how & 8 != 0;
    bth.solicited = how & 16 != 0;
    let (from, to) = (&world.hosts[0], &world.hosts[1]);
    let ip = match how & 32 {
        0 => Ip::from_gids(from.gid, to.gid, 0, 0, 64),
        _ => Ip::from_gids(gid6(from), gid6(to), 0, 0, 64),
    };
    let mut header = RoceHeader::new(to.mac, from.mac, ip, bth);
    extend(&mut header, input, aim);
    let payload = match input.u8() {
        0 => 0,
        255 => 1024,
        short if short < 128 => usize::from(short),
        _ => usize::from(input.u16()) % 1100,
    };
    damaged(packet(&header, &vec![how; payload]), input)
}

/// A frame that is broken now and then.
pub(crate) fn damaged(mut bytes: Vec<u8>, input: &mut Input<'_>) -> Vec<u8> {
    match input.u8() {
        0 => {
            let at = usize::from(input.u16()) % bytes.len();
            bytes[at] ^= input.u8();
        }
        1 => bytes.truncate(14 + usize::from(input.u16()) % bytes.len()),
        _ => {}
    }
    bytes
}

/// The extension headers of the opcode.
pub(crate) fn extend(header: &mut RoceHeader, input: &mut Input<'_>, aim: &Aim) {
    let opcode = header.bth.opcode;
    let has = |headers| opcode.has(headers);
    let key = |input: &mut Input<'_>| match input.u8() % 4 {
        0 => input.u32(),
        1 => aim.keys[usize::from(input.u8()) % aim.keys.len()],
        _ => aim.keys[0],
    };
    let addr = |input: &mut Input<'_>| match input.u8() % 4 {
        0 => input.u64(),
        1 => 0x10_0000 + u64::from(input.u16()),
        _ => aim.va + u64::from(input.u16()),
    };
    if has(Headers::DETH) {
        let qkey = if input.u8().is_multiple_of(4) {
            input.u32()
        } else {
            QKEY
        };
        header.deth = Some(Deth { qkey, src_qp: 3 });
    }
    if has(Headers::RETH) {
        header.reth = Some(Reth {
            addr: addr(input),
            rkey: key(input),
            len: u32::from(input.u16()) << (input.u8() % 17),
        });
    }
    if has(Headers::ATOMIC_ETH) {
        header.atomic = Some(AtomicEth {
            addr: addr(input),
            rkey: key(input),
            swap_add: input.u64(),
            compare: input.u64(),
        });
    }
    if has(Headers::AETH) {
        header.aeth = Some(Aeth {
            syndrome: Syndrome::from_u8(input.u8()),
            msn: input.u32() & 0xff_ffff,
        });
    }
    if has(Headers::ATOMIC_ACK_ETH) {
        header.atomic_ack = Some(AtomicAckEth {
            original: input.u64(),
        });
    }
    if has(Headers::IMM) {
        header.imm = Some(input.u32());
    }
    if has(Headers::IETH) {
        header.ieth = Some(key(input));
    }
    if has(Headers::XRCETH) {
        header.xrceth = Some(XrcEth {
            srqn: if input.u8().is_multiple_of(8) {
                input.u32() & 0xff_ffff
            } else {
                aim.srqn
            },
        });
    }
    if has(Headers::FETH) {
        header.feth = Some(Feth {
            selectivity: input.u8() & 3,
            placement: input.u8() & 15,
        });
    }
}
