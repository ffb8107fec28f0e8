//! FLUSH to persistence where memory takes a while to become durable (a file on a disk, say).

use faultline_abi::admin::{CREATE_MKEY, Counter, CreateMkey, DESTROY_QP, MKEY_FAST_REG};
use faultline_abi::qp::*;
use faultline_abi::wqe::{self as wr, FLUSH_GLOBAL, FLUSH_PERSISTENT, FlushWqe, RegMrWqe};
use faultline_abi::{U32, U64, cqe, event};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Mr, Send};
use faultline_simulator::{Pair, World, expect_cqe};
use zerocopy::IntoBytes;

const ACCESS: u32 = ALL_ACCESS | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;
const VA: u64 = 0x5_0000;
const LEN: u64 = 16 << 10;
const MS: u64 = 1_000_000;

/// Host 0 writes into memory of host 1 and flushes it.
struct Durability {
    world: World,
    pair: Pair,
    mr: Mr,
}

impl Durability {
    fn new() -> Self {
        Self::on(World::new(2, 1))
    }

    fn on(mut world: World) -> Self {
        let pd = world.hosts[1].pd;
        let driver = &mut world.hosts[1].driver;
        let mr = driver.reg_mr(pd, VA, LEN, ACCESS).unwrap();
        let pair = world.connect(QPT_RC, LEN, |path| path.access = ACCESS);
        world.persist_slowly(1);
        Self { world, pair, mr }
    }

    fn flush(&mut self, placement: u32, range: Option<(u64, u64)>, key: u32) {
        let (addr, length) = range.unwrap_or_default();
        let flush = FlushWqe {
            opcode: wr::WR_FLUSH,
            flags: wr::WR_FLAG_SIGNALED,
            placement: U32::new(placement),
            selectivity: U32::new(u32::from(range.is_none())),
            rkey: U32::new(key),
            remote_addr: U64::new(addr),
            length: U64::new(length),
            ..FlushWqe::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_raw_send(&mut self.pair.qp[0], flush.as_bytes());
    }

    fn inline(&mut self, opcode: u8, at: u64, data: &[u8]) {
        let send = Send {
            opcode,
            inline: Some(data),
            remote_addr: self.mr.va + at,
            rkey: self.mr.key,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &send);
    }

    /// Completions of host 0: opcodes, all of them good.
    #[track_caller]
    fn done(&mut self) -> Vec<u8> {
        let found = self.world.completions(0, &mut self.pair.cq[0]);
        assert!(
            found.iter().all(|cqe| cqe.status == cqe::SUCCESS),
            "{found:?}"
        );
        found.iter().map(|cqe| cqe.opcode).collect()
    }

    fn memory(&self, at: u64, len: usize) -> Vec<u8> {
        self.world.hosts[1].driver.read_mr(&self.mr, at, len)
    }

    fn ranges(&self) -> Vec<Option<Vec<(u64, u64)>>> {
        let requests = self.world.persisting(1);
        requests.into_iter().map(|request| request.ranges).collect()
    }
}

#[test]
fn nothing_overtakes_a_waiting_flush_and_no_other_queue_pair_waits() {
    for by_reference in [false, true] {
        let mut d = Durability::new();
        if by_reference {
            d.world.hand_over_by_reference();
        }
        d.inline(wr::WR_WRITE, 100, b"data");
        let both = FLUSH_GLOBAL | FLUSH_PERSISTENT;
        d.flush(both, Some((VA + 100, 5000)), d.mr.key);
        d.inline(wr::WR_ATOMIC_WRITE, 8, b"finished");
        d.inline(wr::WR_WRITE, 200, b"more");
        d.world.run_for(5 * MS);
        assert_eq!(d.done(), [cqe::RDMA_WRITE]);
        assert_eq!(
            (d.memory(100, 4), d.memory(8, 8)),
            (b"data".to_vec(), vec![0; 8])
        );
        assert_eq!(d.memory(200, 4), [0; 4]);
        // The range, and no more; asked for once, however often the requester comes again.
        assert_eq!(d.ranges(), [Some(vec![(d.mr.addr + 100, 5000)])]);

        let mut other = d.world.connect(QPT_RC, LEN, |_| {});
        d.world.post_write(&mut other, 8000);
        d.world.run_for(MS);
        expect_cqe(&mut d.world, 0, &mut other.cq[0], cqe::SUCCESS);
        assert!(d.done().is_empty());

        // It ends as soon as memory is durable: the requester is told.
        d.world.persist(1, true);
        d.world.run_for(MS / 20);
        // proves: IBV_WC_FLUSH, IBV_WC_ATOMIC_WRITE
        assert_eq!(d.done(), [cqe::FLUSH, cqe::ATOMIC_WRITE, cqe::RDMA_WRITE]);
        assert_eq!(
            (d.memory(8, 8), d.memory(200, 4)),
            (b"finished".to_vec(), b"more".to_vec())
        );
        assert_eq!(d.ranges(), []);
        d.world.run();
        assert!(d.done().is_empty());
    }
}

#[test]
fn visibility_does_not_wait_for_durability() {
    let mut d = Durability::new();
    d.flush(FLUSH_GLOBAL, None, d.mr.key);
    d.world.run();
    assert_eq!((d.done(), d.ranges()), (vec![cqe::FLUSH], vec![]));
}

#[test]
fn each_of_several_flushes_waits_for_its_own() {
    let mut d = Durability::new();
    for n in 0..3 {
        d.inline(wr::WR_WRITE, n * 8, &[7; 8]);
        d.flush(FLUSH_PERSISTENT, Some((VA + n * 8, 8)), d.mr.key);
    }
    for n in 0..3 {
        d.world.run_for(MS);
        assert_eq!(
            d.done(),
            [cqe::FLUSH, cqe::RDMA_WRITE][usize::from(n == 0)..]
        );
        // proves: IBV_FLUSH_PERSISTENT, IB_DEVICE_FLUSH_PERSISTENT, IBV_ACCESS_FLUSH_PERSISTENT
        assert_eq!(d.ranges(), [Some(vec![(d.mr.addr + n * 8, 8)])]);
        d.world.persist(1, true);
    }
    d.world.run_for(MS);
    assert_eq!(d.done(), [cqe::FLUSH]);
}

#[test]
fn a_flush_that_cannot_become_durable_ends_the_connection() {
    let mut d = Durability::new();
    d.flush(FLUSH_PERSISTENT, None, d.mr.key);
    d.world.run_for(MS);
    let errors = |d: &mut Durability| {
        let driver = &mut d.world.hosts[1].driver;
        driver.counter(Counter::dma_errors).unwrap()
    };
    let before = errors(&mut d);
    d.world.hosts[1].driver.async_events();
    d.world.persist(1, false);
    d.world.run();
    expect_cqe(&mut d.world, 0, &mut d.pair.cq[0], cqe::REM_OP_ERR);
    let qpn = d.pair.qp[1].qpn;
    let events = d.world.hosts[1].driver.async_events();
    assert_eq!(events, [(event::QP_FATAL, qpn)]);
    assert_eq!(errors(&mut d), before + 1);
}

#[test]
fn present_parts_of_a_region_are_returned_piece_by_piece() {
    let mut d = Durability::new();
    let host = &mut d.world.hosts[1];
    // In the reverse order no two pages follow each other.
    let frames = host.driver.alloc(300 << 12).unwrap();
    let list = host.driver.alloc(300 * 8).unwrap();
    for n in 0..300u64 {
        let page = frames + ((299 - n) << 12);
        host.driver.bus.write(list + n * 8, &page.to_le_bytes());
    }
    let create = CreateMkey {
        pd: U32::new(host.pd),
        flags: U32::new(MKEY_FAST_REG),
        length: U64::new(300),
        page_shift: 12,
        ..CreateMkey::default()
    };
    for (pages, told) in [(3u64, true), (300, false)] {
        let host = &mut d.world.hosts[1];
        let key = host.driver.command(CREATE_MKEY, 0, &create).unwrap();
        let register = RegMrWqe {
            opcode: wr::WR_REG_MR,
            access: U32::new(ACCESS_LOCAL_WRITE | ACCESS_FLUSH_PERSISTENT),
            key: key.handle,
            iova: U64::new(VA + 10),
            length: U64::new((pages << 12) - 30),
            list: U64::new(list),
            num_pages: U32::new(pages as u32),
            page_shift: U32::new(12),
            ..RegMrWqe::default()
        };
        let bytes = register.as_bytes();
        host.driver.post_raw_send(&mut d.pair.qp[1], bytes);
        d.world.run();
        expect_cqe(&mut d.world, 1, &mut d.pair.cq[1], cqe::SUCCESS);
        d.flush(FLUSH_PERSISTENT, None, key.handle.get());
        d.world.run_for(MS);
        let last = frames + (299 << 12);
        let expected = vec![(last + 10, 4086), (last - 4096, 4096), (last - 8192, 4076)];
        assert_eq!(d.ranges(), [told.then_some(expected)]);
        d.world.persist(1, true);
        d.world.run();
        assert_eq!(d.done(), [cqe::FLUSH]);
    }
    // Of a region with more pages than are looked at it is all, of one that is not there nothing.
    let create = CreateMkey {
        access: U32::new(ACCESS | ACCESS_ON_DEMAND),
        flags: U32::new(0),
        iova: U64::new(VA),
        ..create
    };
    for (length, expected) in [(1u64 << 40, None), (1 << 20, Some(vec![]))] {
        let create = CreateMkey {
            length: U64::new(length),
            ..create
        };
        let host = &mut d.world.hosts[1];
        let key = host.driver.command(CREATE_MKEY, 0, &create).unwrap();
        d.flush(FLUSH_PERSISTENT, None, key.handle.get());
        d.world.run_for(MS);
        assert_eq!(d.ranges(), [expected]);
        d.world.persist(1, true);
        d.world.run();
        assert_eq!(d.done(), [cqe::FLUSH]);
    }
}

#[test]
fn the_end_of_a_flush_without_a_waiter_is_ignored() {
    for how in 0..3 {
        let mut d = Durability::new();
        d.flush(FLUSH_PERSISTENT, None, d.mr.key);
        d.world.run_for(MS);
        let qpn = d.pair.qp[1].qpn;
        let mut path = d.world.path(0, d.pair.qp[0].qpn);
        path.access = ACCESS;
        let driver = &mut d.world.hosts[1].driver;
        match how {
            0 => driver.set_state(qpn, QPS_ERR).unwrap(),
            1 => drop(driver.command(DESTROY_QP, qpn, &[0u8; 0]).unwrap()),
            _ => {
                driver.set_state(qpn, QPS_RESET).unwrap();
                driver.connect(qpn, QPT_RC, &path).unwrap();
            }
        }
        if how == 2 {
            // A repeated request begins anew, and the end of its former write-back has no effect on
            // it.
            d.world.run_for(100 * MS);
            assert_eq!(d.ranges().len(), 2);
            d.world.persist(1, false);
            d.world.run_for(100 * MS);
            assert!(d.done().is_empty());
            d.world.persist(1, true);
            d.world.run();
            assert_eq!(d.done(), [cqe::FLUSH]);
            continue;
        }
        d.world.persist(1, how == 0);
        d.world.run();
        expect_cqe(&mut d.world, 0, &mut d.pair.cq[0], cqe::RETRY_EXC_ERR);
    }
}

#[test]
fn flushes_are_answered_on_a_bad_wire_too() {
    for seed in 0..20 {
        let mut d = Durability::on(World::new(2, seed));
        d.world.impair(LinkModel {
            loss: 150_000,
            ..LinkModel::PLAIN
        });
        let mut expected = Vec::new();
        for n in 0..10u64 {
            d.inline(wr::WR_WRITE, n * 8, &n.to_le_bytes());
            d.flush(FLUSH_PERSISTENT, Some((VA + n * 8, 8)), d.mr.key);
            expected.extend([cqe::RDMA_WRITE, cqe::FLUSH]);
        }
        let mut done = Vec::new();
        for _ in 0..10_000 {
            d.world.run_for(MS / 3);
            done.extend(d.done());
            if !d.ranges().is_empty() {
                // The data of the FLUSH has been written.
                let n = d.ranges()[0].as_ref().unwrap()[0].0 - d.mr.addr;
                assert_eq!(d.memory(n, 8), (n / 8).to_le_bytes());
                assert_eq!(d.ranges().len(), 1);
                d.world.persist(1, true);
            }
            if done.len() == expected.len() {
                break;
            }
        }
        assert_eq!(done, expected, "seed {seed}");
    }
}
