//! Fields of work requests that must be zero, in each layout that a work request has.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe::{self as wr, BindMwWqe, FlushWqe, RawSeg, RqWqe, SqWqe, UdSeg};
use faultline_simulation::Send;
use faultline_simulator::{Pair, World, expect_cqe};

const DATA: usize = offset_of!(SqWqe, compare_add);

/// The bytes of a send work request that must be zero, by kind of queue pair and opcode.
fn layouts() -> Vec<(u8, u8, Range<usize>)> {
    let word = 3..4;
    let bind = offset_of!(BindMwWqe, reserved2)..size_of::<BindMwWqe>();
    let flush = offset_of!(FlushWqe, reserved2)..offset_of!(FlushWqe, remote_qpn);
    let ud = DATA + offset_of!(UdSeg, reserved)..DATA + size_of::<UdSeg>();
    let raw = DATA + offset_of!(RawSeg, reserved)..DATA + size_of::<RawSeg>();
    vec![
        (QPT_RC, wr::WR_WRITE, word.clone()),
        (QPT_RC, wr::WR_BIND_MW, word.clone()),
        (QPT_RC, wr::WR_BIND_MW, bind.clone()),
        (QPT_UC, wr::WR_BIND_MW, bind),
        (QPT_RC, wr::WR_FLUSH, flush),
        (QPT_UD, wr::WR_SEND, word),
        (QPT_UD, wr::WR_SEND, ud.clone()),
        (QPT_UD, wr::WR_SEND_IMM, ud.clone()),
        (QPT_GSI, wr::WR_SEND, ud),
        (QPT_RAW, wr::WR_RAW, raw),
    ]
}

/// The result of an entry on a fresh queue pair.
fn outcome(kind: u8, entry: &[u8]) -> (u8, u8) {
    let mut world = World::new(2, 1);
    let (mut cq, mut qp) = match kind {
        QPT_RC | QPT_UC => {
            let Pair { cq, qp, .. } = world.connect(kind, 4096, |_| {});
            let ([cq, _], [qp, _]) = (cq, qp);
            (cq, qp)
        }
        _ => {
            let cq = world.hosts[0].cq(4).unwrap();
            let qp = world.hosts[0].qp(kind, &cq).unwrap();
            world.hosts[0].driver.activate(qp.qpn, kind, 7).unwrap();
            (cq, qp)
        }
    };
    world.hosts[0].driver.post_raw_send(&mut qp, entry);
    world.run();
    let found = world.completions(0, &mut cq);
    assert_eq!(found.len(), 1, "{found:?}");
    (found[0].status, found[0].vendor_err)
}

#[test]
fn a_reserved_byte_of_a_send_work_request_is_looked_at() {
    const REFUSED: (u8, u8) = (cqe::LOC_QP_OP_ERR, cqe::RESERVED);
    for (kind, opcode, reserved) in layouts() {
        let mut entry = [0; 64];
        entry[0] = opcode;
        if opcode == wr::WR_FLUSH {
            entry[offset_of!(FlushWqe, placement)] = wr::FLUSH_GLOBAL as u8;
        }
        assert_ne!(outcome(kind, &entry), REFUSED, "{kind} {opcode}");
        for at in reserved {
            let mut entry = entry;
            entry[at] = 0x80;
            assert_eq!(outcome(kind, &entry), REFUSED, "{kind} {opcode} byte {at}");
        }
    }
}

#[test]
fn a_reserved_byte_of_a_receive_work_request_is_looked_at() {
    for at in offset_of!(RqWqe, reserved)..size_of::<RqWqe>() {
        let mut world = World::new(2, 1);
        let mut pair = world.connect(QPT_RC, 4096, |_| {});
        let mut entry = [0; 32];
        entry[at] = 1;
        let driver = &mut world.hosts[1].driver;
        driver.post_raw_recv(&mut pair.qp[1], &entry);
        let send = Send {
            opcode: wr::WR_SEND,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_OP_ERR);
    }
}
