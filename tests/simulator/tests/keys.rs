//! Keys that work requests change: fast registration, windows, invalidation; and FLUSH and atomic writes.

use faultline_abi::admin::{
    ALLOC_PD, DESTROY_MKEY, DESTROY_QP, MKEY_FAST_REG, MKEY_WINDOW_1, MKEY_WINDOW_2,
};
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::*;
use faultline_abi::wqe::{self as wr, BindMwWqe, FlushWqe, RegMrWqe};
use faultline_abi::{Status, U32, U64};
use faultline_fabric::link_model::LinkModel;
use faultline_nic::Nanos;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Cq, Error, Mr, Qp, Send};
use faultline_simulator::{Pair, World, expect_cqe};
use zerocopy::IntoBytes;

use crate::common::{create_key, pattern};

const PAGE: u64 = 4096;
/// First address of fast registrations.
const VA: u64 = 0x1_2345_6000;
const RW: u32 = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;

/// Two connected hosts; keys are made and changed on host 1, and used by host 0.
struct Keys {
    world: World,
    pair: Pair,
    /// Memory of host 1, and its pages' addresses in a list.
    frames: u64,
    list: u64,
    /// A region of host 1 that windows can be bound to.
    region: Mr,
}

impl Keys {
    fn new() -> Self {
        Self::on(World::new(2, 1))
    }

    fn on(mut world: World) -> Self {
        let pair = world.connect(QPT_RC, 64 << 10, |_| {});
        let driver = &mut world.hosts[1].driver;
        let frames = driver.alloc(16 * PAGE).unwrap();
        let list = driver.alloc(PAGE).unwrap();
        // Backwards, so that order matters.
        for n in 0..16 {
            let page = frames + (15 - n) * PAGE;
            driver.bus.write(list + n * 8, &page.to_le_bytes());
        }
        let pd = world.hosts[1].pd;
        let access = ALL_ACCESS | ACCESS_MW_BIND;
        let region = world.hosts[1]
            .driver
            .reg_mr(pd, 0x9000_0123, 64 << 10, access);
        Self {
            world,
            pair,
            frames,
            list,
            region: region.unwrap(),
        }
    }

    fn create(&mut self, flags: u32, length: u64) -> u32 {
        create_key(&mut self.world.hosts[1], flags, length)
    }

    /// A registration of 4 pages less some bytes at both ends.
    fn register(&self, key: u32) -> RegMrWqe {
        RegMrWqe {
            opcode: wr::WR_REG_MR,
            access: U32::new(RW),
            key: U32::new(key),
            iova: U64::new(VA + 100),
            length: U64::new(4 * PAGE - 200),
            list: U64::new(self.list),
            num_pages: U32::new(4),
            page_shift: U32::new(12),
            ..RegMrWqe::default()
        }
    }

    fn bind(&self, rkey: u32) -> BindMwWqe {
        let mr = &self.region;
        BindMwWqe {
            opcode: wr::WR_BIND_MW,
            rkey: U32::new(rkey),
            lkey: U32::new(mr.key),
            addr: U64::new(mr.va + 1000),
            length: U64::new(5000),
            access: U32::new(ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ),
            ..BindMwWqe::default()
        }
    }

    /// Posts an entry to a QP of host 1 and gives its completion.
    fn local(&mut self, qp: &mut Qp, cq: &mut Cq, entry: &impl AsEntry) -> Cqe {
        self.world.hosts[1].driver.post_raw_send(qp, entry.entry());
        self.world.run();
        let found = self.world.completions(1, cq);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    /// The same with the pair's own QP, which must go well.
    #[track_caller]
    fn well(&mut self, entry: &impl AsEntry) -> Cqe {
        self.world.hosts[1]
            .driver
            .post_raw_send(&mut self.pair.qp[1], entry.entry());
        self.world.run();
        expect_cqe(&mut self.world, 1, &mut self.pair.cq[1], cqe::SUCCESS)
    }

    /// Host 0 posts a request on a fresh connection, independent of earlier ones; returns its status.
    fn ask(&mut self, opcode: u8, addr: u64, len: u32, rkey: u32) -> u8 {
        let mut pair = self.world.connect(QPT_RC, 64 << 10, |_| {});
        self.ask_on(&mut pair, opcode, addr, len, rkey)
    }

    fn ask_on(&mut self, pair: &mut Pair, opcode: u8, addr: u64, len: u32, rkey: u32) -> u8 {
        let mr = &pair.mr[0];
        let send = Send {
            opcode,
            sges: &[(mr.va, len, mr.key)],
            remote_addr: addr,
            rkey,
            ..Send::default()
        };
        self.world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        self.world.run();
        let found = self.world.completions(0, &mut pair.cq[0]);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].status
    }

    fn memory(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.world.hosts[1].driver.bus.read(at, &mut bytes);
        bytes
    }
}

/// What can be posted as it is.
trait AsEntry {
    fn entry(&self) -> &[u8];
}

macro_rules! entries {
    ($($ty:ty),*) => { $(impl AsEntry for $ty {
        fn entry(&self) -> &[u8] { self.as_bytes() }
    })* };
}

entries!(RegMrWqe, BindMwWqe, FlushWqe, wr::SqWqe);

fn invalidate(key: u32) -> wr::SqWqe {
    wr::SqWqe {
        opcode: wr::WR_LOCAL_INV,
        rkey: U32::new(key),
        ..wr::SqWqe::default()
    }
}

/// A registration gives a key memory, an invalidation on any QP of the domain takes it, and the next version of the
/// key is another key.
#[test]
fn successive_versions_of_a_key() {
    let mut k = Keys::new();
    let base = k.create(MKEY_FAST_REG, 16);
    assert_eq!(k.ask(wr::WR_WRITE, VA + 100, 8, base), cqe::REM_ACCESS_ERR);
    let other = k.world.connect(QPT_RC, PAGE, |_| {});
    let ([_, mut cq], [_, mut qp]) = (other.cq, other.qp);
    for version in [7u32, 8, 9, 255, 0] {
        let key = (base & !0xff) | version;
        let done = k.well(&k.register(key));
        assert_eq!(done.opcode, cqe::REG_MR);
        let mut pair = k.world.connect(QPT_RC, 64 << 10, |_| {});
        let data = pattern(9000);
        let from = pair.mr[0];
        k.world.hosts[0].driver.write_mr(&from, 0, &data);
        let at = VA + 100 + u64::from(version);
        let status = k.ask_on(&mut pair, wr::WR_WRITE, at, 9000, key);
        assert_eq!(status, cqe::SUCCESS);
        // The list is backwards: page 0 of the region is frame 15.
        let first = (PAGE - 100 - u64::from(version)) as usize;
        let found = k.memory(k.frames + 15 * PAGE + 100 + u64::from(version), first);
        assert!(found == data[..first]);
        assert!(k.memory(k.frames + 14 * PAGE, 4096) == data[first..first + 4096]);
        assert_eq!(
            k.ask_on(&mut pair, wr::WR_READ, at, 9000, key),
            cqe::SUCCESS
        );
        for (at, len) in [(VA + 99, 10), (VA + 4 * PAGE - 101, 2), (VA, 1)] {
            let status = k.ask(wr::WR_WRITE, at, len, key);
            assert_eq!(status, cqe::REM_ACCESS_ERR, "{len} at {at:#x}");
        }
        let wrong = key ^ 1;
        assert_eq!(k.ask(wr::WR_READ, at, 8, wrong), cqe::REM_ACCESS_ERR);
        // On another QP of the domain than the one that registered.
        let done = k.local(&mut qp, &mut cq, &invalidate(key));
        assert_eq!((done.status, done.opcode), (cqe::SUCCESS, cqe::LOCAL_INV));
        assert_eq!(k.ask(wr::WR_READ, at, 8, key), cqe::REM_ACCESS_ERR);
    }
    k.world.hosts[1]
        .driver
        .command(DESTROY_MKEY, base, &[0u8; 0])
        .unwrap();
}

/// One fence before many invalidations: they wait for the requests posted before, and complete in order.
#[test]
fn many_invalidations_and_one_fence() {
    const COUNT: u32 = 32;
    let mut k = Keys::new();
    let keys: Vec<u32> = (0..COUNT).map(|_| k.create(MKEY_FAST_REG, 4)).collect();
    for key in &keys {
        k.well(&k.register(*key));
    }
    // READs whose answers land in the registrations.
    let remote = k.pair.mr[0];
    k.world.hosts[0].driver.write_mr(&remote, 0, &pattern(8000));
    let (driver, qp) = (&mut k.world.hosts[1].driver, &mut k.pair.qp[1]);
    for key in &keys {
        let read = Send {
            opcode: wr::WR_READ,
            sges: &[(VA + 100, 8000, *key)],
            remote_addr: remote.va,
            rkey: remote.key,
            ..Send::default()
        };
        driver.write_send(qp, &read);
    }
    driver.ring_sends(qp);
    for (n, key) in keys.iter().enumerate() {
        let mut entry = invalidate(*key);
        entry.flags = if n == 0 { wr::WR_FLAG_FENCE } else { 0 };
        driver.post_raw_send(qp, entry.as_bytes());
    }
    k.world.run();
    let done = k.world.completions(1, &mut k.pair.cq[1]);
    assert!(
        done.iter().all(|cqe| cqe.status == cqe::SUCCESS),
        "{done:?}"
    );
    let opcodes: Vec<u8> = done.iter().map(|cqe| cqe.opcode).collect();
    let count = COUNT as usize;
    assert_eq!(opcodes[..count], vec![cqe::RDMA_READ; count]);
    // proves: IB_DEVICE_MEM_MGT_EXTENSIONS
    assert_eq!(opcodes[count..], vec![cqe::LOCAL_INV; count]);
    for key in keys {
        assert_eq!(k.ask(wr::WR_READ, VA + 100, 8, key), cqe::REM_ACCESS_ERR);
    }
}

/// Local operations behind requests that are lost and sent again are carried out once.
#[test]
fn losses_repeat_no_local_operation() {
    for seed in 0..20 {
        let mut k = Keys::new();
        k.world.impair(LinkModel {
            loss: 200_000,
            ..LinkModel::PLAIN
        });
        let key = k.create(MKEY_FAST_REG, 4);
        let local = k.pair.mr[1];
        let remote = k.pair.mr[0];
        let (driver, qp) = (&mut k.world.hosts[1].driver, &mut k.pair.qp[1]);
        let rounds = 10 + seed % 3;
        for n in 0..rounds {
            let key = (key & !0xff) | n;
            let register = RegMrWqe {
                opcode: wr::WR_REG_MR,
                access: U32::new(RW),
                key: U32::new(key),
                iova: U64::new(VA),
                length: U64::new(PAGE),
                list: U64::new(k.list),
                num_pages: U32::new(1),
                page_shift: U32::new(12),
                ..RegMrWqe::default()
            };
            driver.post_raw_send(qp, register.as_bytes());
            let write = Send {
                opcode: wr::WR_WRITE,
                sges: &[(local.va, 3000, local.key)],
                remote_addr: remote.va,
                rkey: remote.key,
                ..Send::default()
            };
            driver.post_send(qp, &write);
            driver.post_raw_send(qp, invalidate(key).as_bytes());
        }
        k.world.run();
        let done = k.world.completions(1, &mut k.pair.cq[1]);
        assert!(
            done.iter().all(|cqe| cqe.status == cqe::SUCCESS),
            "{done:?}"
        );
        let round = [cqe::REG_MR, cqe::RDMA_WRITE, cqe::LOCAL_INV];
        let expected: Vec<u8> = (0..rounds).flat_map(|_| round).collect();
        let found: Vec<u8> = done.iter().map(|cqe| cqe.opcode).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_send_invalidates_and_the_completion_has_the_flag() {
    let mut k = Keys::new();
    let key = k.create(MKEY_FAST_REG, 4) | 3;
    k.well(&k.register(key));
    // A key that no peer may use cannot be invalidated by a peer.
    let own = k.create(MKEY_FAST_REG, 4) | 3;
    k.well(&RegMrWqe {
        access: U32::new(ACCESS_LOCAL_WRITE),
        ..k.register(own)
    });
    for (key, status) in [
        (key, cqe::SUCCESS),
        (key, cqe::REM_INV_REQ_ERR),
        (own, cqe::REM_INV_REQ_ERR),
    ] {
        let mut pair = k.world.connect(QPT_RC, 64 << 10, |_| {});
        let (from, to) = (pair.mr[0], pair.mr[1]);
        let sge = (to.va, 3000, to.key);
        k.world.hosts[1]
            .driver
            .post_recv(&mut pair.qp[1], 5, &[sge]);
        let send = Send {
            opcode: wr::WR_SEND_INV,
            imm: key.to_le_bytes(),
            sges: &[(from.va, 2500, from.key)],
            ..Send::default()
        };
        k.world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        k.world.run();
        let done = expect_cqe(&mut k.world, 1, &mut pair.cq[1], status);
        let sent = k.world.completions(0, &mut pair.cq[0])[0].status;
        if status == cqe::SUCCESS {
            assert_eq!(sent, cqe::SUCCESS);
            assert_eq!((done.imm.get(), done.byte_len.get()), (key, 2500));
            assert_eq!(done.flags & cqe::CQE_INVALIDATE, cqe::CQE_INVALIDATE);
        } else {
            // The message arrived, and the receiver reports the error (IBTA 9.9.6.3, class J).
            assert_eq!(sent, cqe::RETRY_EXC_ERR);
        }
        assert_eq!(k.ask(wr::WR_READ, VA + 100, 8, key), cqe::REM_ACCESS_ERR);
    }
    k.well(&invalidate(own));
}

#[test]
fn a_refused_request_changes_nothing() {
    let mut k = Keys::new();
    let key = k.create(MKEY_FAST_REG, 4);
    let good = k.register(key);
    let region = k.pair.mr[1].key;
    type Change<'a> = &'a dyn Fn(&mut RegMrWqe);
    let no_pages: Change<'_> = &|r| {
        (r.iova, r.length, r.num_pages) = (U64::new(0), U64::new(u64::MAX), U32::new(0));
    };
    let cases: [(Change<'_>, u8); 16] = [
        (no_pages, cqe::BOUNDS),
        (&|r| r.key.set(0xffff_ff00), cqe::LKEY),
        (&|r| r.key.set(region), cqe::KEY_STATE),
        (&|r| r.access.set(ACCESS_REMOTE_WRITE), cqe::LKEY),
        (&|r| r.access.set(RW | ACCESS_ON_DEMAND), cqe::LKEY),
        (&|r| r.access.set(1 << 30), cqe::LKEY),
        (&|r| r.length.set(0), cqe::BOUNDS),
        (&|r| r.length.set(u64::MAX), cqe::BOUNDS),
        (&|r| r.iova.set(u64::MAX - 4), cqe::BOUNDS),
        (&|r| r.length.set(4 * PAGE - 99), cqe::BOUNDS),
        (&|r| r.length.set(3 * PAGE - 100), cqe::BOUNDS),
        (&|r| r.num_pages.set(5), cqe::BOUNDS),
        (&|r| r.num_pages.set(u32::MAX), cqe::BOUNDS),
        (&|r| r.page_shift.set(11), cqe::BOUNDS),
        (&|r| r.page_shift.set(4096 + 12), cqe::BOUNDS),
        (&|r| r.list.set(u64::MAX - 7), cqe::DMA),
    ];
    for (n, (change, vendor)) in cases.iter().enumerate() {
        let mut entry = good;
        change(&mut entry);
        let other = k.world.connect(QPT_RC, PAGE, |_| {});
        let ([_, mut cq], [_, mut qp]) = (other.cq, other.qp);
        let done = k.local(&mut qp, &mut cq, &entry);
        let expected = (cqe::MW_BIND_ERR, *vendor);
        assert_eq!((done.status, done.vendor_err), expected, "case {n}");
    }
    // Reserved fields, data, and a user's queue pair, which must not name DMA addresses.
    for n in 0..4 {
        let mut entry = good;
        let mut other = k.world.connect(QPT_RC, PAGE, |_| {});
        match n {
            0 => entry.reserved0.set(1),
            1 => entry.reserved1.set(1),
            2 => entry.flags = wr::WR_FLAG_INLINE,
            _ => {
                let host = &mut k.world.hosts[1];
                let uctx = host.driver.alloc_uctx().unwrap();
                let config = faultline_simulation::CqConfig {
                    log_depth: 4,
                    eqn: host.eq.eqn,
                    uctx,
                };
                other.cq[1] = host.driver.create_cq(config).unwrap();
                let mut config = host.qp_config(QPT_RC, &other.cq[1]);
                config.uctx = uctx;
                other.qp[1] = host.driver.create_qp(&config).unwrap();
                let path = k.world.path(0, other.qp[0].qpn);
                let driver = &mut k.world.hosts[1].driver;
                driver.connect(other.qp[1].qpn, QPT_RC, &path).unwrap();
            }
        }
        let ([_, mut cq], [_, mut qp]) = (other.cq, other.qp);
        let done = k.local(&mut qp, &mut cq, &entry);
        assert_eq!(done.status, cqe::LOC_QP_OP_ERR, "case {n}");
    }
    // The key is free still, and once it is valid it can't be registered again.
    k.well(&good);
    let mut pair = std::mem::replace(&mut k.pair, k.world.connect(QPT_RC, PAGE, |_| {}));
    let done = k.local(&mut pair.qp[1], &mut pair.cq[1], &good);
    assert_eq!(
        (done.status, done.vendor_err),
        (cqe::MW_BIND_ERR, cqe::KEY_STATE)
    );
    assert_eq!(k.ask(wr::WR_READ, VA + 100, 8, key), cqe::SUCCESS);
    // Regions do not go by work requests, and their pages not by the translation queue.
    let mut pair = k.world.connect(QPT_RC, PAGE, |_| {});
    let done = k.local(&mut pair.qp[1], &mut pair.cq[1], &invalidate(region));
    assert_eq!(
        (done.status, done.vendor_err),
        (cqe::MW_BIND_ERR, cqe::KEY_STATE)
    );
    let mr = Mr {
        key,
        ..k.pair.mr[1]
    };
    let mapped = k.world.hosts[1].driver.map(&mr, VA, &[k.frames]);
    assert!(
        matches!(mapped, Err(Error::Refused(Status::BadMkey))),
        "{mapped:?}"
    );
}

#[test]
fn keys_of_another_domain_are_neither_registered_nor_invalidated() {
    let mut k = Keys::new();
    let pd = k.world.hosts[1]
        .driver
        .command(ALLOC_PD, 0, &[0u8; 0])
        .unwrap()
        .handle
        .get();
    let own = std::mem::replace(&mut k.world.hosts[1].pd, pd);
    let foreign = k.create(MKEY_FAST_REG, 4);
    k.world.hosts[1].pd = own;
    for entry in [k.register(foreign).entry(), invalidate(foreign).entry()] {
        let mut other = k.world.connect(QPT_RC, PAGE, |_| {});
        let driver = &mut k.world.hosts[1].driver;
        driver.post_raw_send(&mut other.qp[1], entry);
        k.world.run();
        let done = k.world.completions(1, &mut other.cq[1])[0];
        assert_eq!(
            (done.status, done.vendor_err),
            (cqe::MW_BIND_ERR, cqe::LKEY)
        );
    }
}

/// A list is looked at as a whole before the key is: not even the table for its first pages is made.
#[test]
fn a_refused_list_has_no_effect() {
    let mut k = Keys::new();
    let key = k.create(MKEY_FAST_REG, 2048);
    let list = k.world.hosts[1].driver.alloc(2048 * 8).unwrap();
    let mib = 1u64 << 20;
    // The last page misaligned; and more leaves than one command writes.
    for (count, shift, last) in [(4u32, 12u32, 1u64 << 11), (3, 20, 1 << 19), (2048, 20, 0)] {
        for n in 0..count {
            let spoil = if n == count - 1 { last } else { 0 };
            let page = (u64::from(n) << shift) + spoil;
            let driver = &mut k.world.hosts[1].driver;
            let at = list + u64::from(n) * 8;
            driver.bus.write(at, &page.to_le_bytes());
        }
        let entry = RegMrWqe {
            iova: U64::new(64 * mib),
            length: U64::new(u64::from(count) << shift),
            list: U64::new(list),
            num_pages: U32::new(count),
            page_shift: U32::new(shift),
            ..k.register(key)
        };
        let other = k.world.connect(QPT_RC, PAGE, |_| {});
        let ([_, mut cq], [_, mut qp]) = (other.cq, other.qp);
        let held = |k: &Keys| k.world.with_nic(1, |nic| nic.held_memory());
        let before = held(&k);
        let done = k.local(&mut qp, &mut cq, &entry);
        let expected = (cqe::MW_BIND_ERR, cqe::BOUNDS);
        assert_eq!((done.status, done.vendor_err), expected, "{count} pages");
        assert_eq!(held(&k), before, "{count} pages");
    }
    let good = k.register(key);
    k.well(&good);
    assert_eq!(k.ask(wr::WR_READ, VA + 100, 8, key), cqe::SUCCESS);
}

/// IBTA 10.6.7.
#[test]
fn windows_give_access_to_their_range_only() {
    for two in [false, true] {
        let mut k = Keys::new();
        let window = k.create(if two { MKEY_WINDOW_2 } else { MKEY_WINDOW_1 }, 0);
        let rkey = window | 0x55;
        let mr = k.region;
        k.world.hosts[1].driver.write_mr(&mr, 0, &pattern(8000));
        let done = k.well(&k.bind(rkey));
        assert_eq!(done.opcode, cqe::BIND_MW);
        let mut pair = std::mem::replace(&mut k.pair, k.world.connect(QPT_RC, PAGE, |_| {}));
        let at = mr.va + 1000;
        assert_eq!(
            k.ask_on(&mut pair, wr::WR_READ, at, 5000, rkey),
            cqe::SUCCESS
        );
        let read = k.world.hosts[0].driver.read_mr(&pair.mr[0], 0, 5000);
        assert!(read == pattern(8000)[1000..6000]);
        assert_eq!(
            k.ask_on(&mut pair, wr::WR_WRITE, at, 5000, rkey),
            cqe::SUCCESS
        );
        // Only the QP it is bound to, or all of the domain.
        let others = if two {
            cqe::REM_ACCESS_ERR
        } else {
            cqe::SUCCESS
        };
        // proves: IB_DEVICE_MEM_WINDOW_TYPE_2B
        assert_eq!(k.ask(wr::WR_READ, at, 5000, rkey), others);
        // The region can't go before it.
        let gone = k.world.hosts[1]
            .driver
            .command(DESTROY_MKEY, mr.key, &[0u8; 0]);
        assert!(
            matches!(gone, Err(Error::Refused(Status::InUse))),
            "{gone:?}"
        );
        // Its key is no lkey.
        let mut second = k.world.connect(QPT_RC, PAGE, |_| {});
        let remote = second.mr[0];
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(at, 100, rkey)],
            remote_addr: remote.va,
            rkey: remote.key,
            ..Send::default()
        };
        k.world.hosts[1].driver.post_send(&mut second.qp[1], &write);
        k.world.run();
        expect_cqe(&mut k.world, 1, &mut second.cq[1], cqe::LOC_PROT_ERR);
        // Outside of it, by a byte, nothing is seen; nor with a right that it does not give.
        assert_eq!(
            k.ask_on(&mut pair, wr::WR_READ, at - 1, 10, rkey),
            cqe::REM_ACCESS_ERR
        );
        if two {
            // The QP is in error, and the window is not: it is freed with the QP.
            let qpn = pair.qp[1].qpn;
            k.world.hosts[1]
                .driver
                .command(DESTROY_QP, qpn, &[0u8; 0])
                .unwrap();
        } else {
            assert_eq!(
                k.ask(wr::WR_FETCH_ADD, at + 5, 8, rkey),
                cqe::REM_ACCESS_ERR
            );
            let mut third = k.world.connect(QPT_RC, PAGE, |_| {});
            let mut unbind = BindMwWqe {
                length: U64::new(0),
                rkey: U32::new(window | 0x56),
                ..k.bind(rkey)
            };
            unbind.lkey.set(0);
            let done = k.local(&mut third.qp[1], &mut third.cq[1], &unbind);
            assert_eq!(done.status, cqe::SUCCESS);
        }
        assert_eq!(k.ask(wr::WR_READ, at, 8, rkey), cqe::REM_ACCESS_ERR);
        let driver = &mut k.world.hosts[1].driver;
        driver.command(DESTROY_MKEY, mr.key, &[0u8; 0]).unwrap();
        driver.command(DESTROY_MKEY, window, &[0u8; 0]).unwrap();
    }
}

#[test]
fn a_window_of_type_2_is_bound_once_and_invalidated_where_it_is_bound() {
    let mut k = Keys::new();
    let window = k.create(MKEY_WINDOW_2, 0);
    let mut zero_based = k.bind(window | 1);
    zero_based
        .access
        .set(ACCESS_REMOTE_READ | ACCESS_ZERO_BASED);
    k.well(&zero_based);
    let mut pair = std::mem::replace(&mut k.pair, k.world.connect(QPT_RC, PAGE, |_| {}));
    let rkey = window | 1;
    let read = |k: &mut Keys, pair: &mut Pair, at| k.ask_on(pair, wr::WR_READ, at, 100, rkey);
    // proves: IBV_ACCESS_ZERO_BASED
    assert_eq!(read(&mut k, &mut pair, 4900), cqe::SUCCESS);
    // Bound already.
    let mr = k.region;
    let again = BindMwWqe {
        rkey: U32::new(window | 2),
        lkey: U32::new(mr.key),
        addr: U64::new(mr.va),
        ..zero_based
    };
    for entry in [again.entry(), invalidate(rkey).entry()] {
        let mut other = k.world.connect(QPT_RC, PAGE, |_| {});
        let driver = &mut k.world.hosts[1].driver;
        driver.post_raw_send(&mut other.qp[1], entry);
        k.world.run();
        let done = k.world.completions(1, &mut other.cq[1])[0];
        let expected = (cqe::MW_BIND_ERR, cqe::KEY_STATE);
        assert_eq!((done.status, done.vendor_err), expected);
    }
    assert_eq!(read(&mut k, &mut pair, 0), cqe::SUCCESS);
    let done = k.local(&mut pair.qp[1], &mut pair.cq[1], &invalidate(rkey));
    assert_eq!(done.status, cqe::SUCCESS);
    let done = k.local(&mut pair.qp[1], &mut pair.cq[1], &again);
    assert_eq!(done.status, cqe::SUCCESS);
    assert_eq!(read(&mut k, &mut pair, 0), cqe::REM_ACCESS_ERR);
}

/// Addresses in a region may count from its beginning, wherever that is in its pages.
#[test]
fn a_region_may_begin_at_zero() {
    let mut k = Keys::new();
    let (pd, va, len) = (k.world.hosts[1].pd, 0x7000_0567, 3 * PAGE);
    let access = ALL_ACCESS | ACCESS_MW_BIND | ACCESS_ZERO_BASED;
    let driver = &mut k.world.hosts[1].driver;
    let mr = driver.reg_mr(pd, va, len, access).unwrap();
    let text = pattern(len as u32);
    driver.write_mr(&mr, 0, &text);
    let mut pair = k.world.connect(QPT_RC, 64 << 10, |_| {});
    let status = k.ask_on(&mut pair, wr::WR_READ, 0, len as u32, mr.key);
    assert_eq!(status, cqe::SUCCESS);
    let to = pair.mr[0];
    let driver = &mut k.world.hosts[0].driver;
    // proves: IBV_ACCESS_ZERO_BASED
    assert!(driver.read_mr(&to, 0, len as usize) == text);
    // Addresses outside, and addresses that would be inside if they did not count from zero.
    for (at, len) in [
        (0, len + 1),
        (len, 1),
        (va, 8),
        (u64::MAX - va + 1, 8),
        (u64::MAX, 1),
    ] {
        let status = k.ask(wr::WR_READ, at, len as u32, mr.key);
        assert_eq!(status, cqe::REM_ACCESS_ERR, "{at:#x}");
    }
    // The same for its owner.
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(100, 50, mr.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    k.world.hosts[1].driver.post_send(&mut pair.qp[1], &send);
    k.world.run();
    expect_cqe(&mut k.world, 1, &mut pair.cq[1], cqe::SUCCESS);
    let driver = &mut k.world.hosts[0].driver;
    assert_eq!(driver.read_mr(&to, 0, 50), text[100..150]);
    // A window in it is bound to the range of its own addresses.
    let window = k.create(MKEY_WINDOW_2, 0);
    let bind = BindMwWqe {
        lkey: U32::new(mr.key),
        addr: U64::new(1000),
        ..k.bind(window)
    };
    let done = k.local(&mut pair.qp[1], &mut pair.cq[1], &bind);
    assert_eq!(done.status, cqe::SUCCESS);
    assert_eq!(
        k.ask_on(&mut pair, wr::WR_READ, 1000, 5000, window),
        cqe::SUCCESS
    );
    let driver = &mut k.world.hosts[0].driver;
    assert!(driver.read_mr(&to, 0, 5000) == text[1000..6000]);
    for addr in [va, u64::MAX - va + 1] {
        let bind = BindMwWqe {
            addr: U64::new(addr),
            rkey: U32::new(window | 1),
            ..bind
        };
        let mut other = k.world.connect(QPT_RC, PAGE, |_| {});
        let done = k.local(&mut other.qp[1], &mut other.cq[1], &bind);
        assert_eq!(done.status, cqe::MW_BIND_ERR);
    }
}

#[test]
fn windows_are_bound_only_to_regions_with_the_right() {
    let mut k = Keys::new();
    let window = k.create(MKEY_WINDOW_2, 0);
    let fast = k.create(MKEY_FAST_REG, 1);
    let (va, len) = (k.region.va, 64 << 10);
    let pd = k.world.hosts[1].pd;
    let driver = &mut k.world.hosts[1].driver;
    let no_bind = driver.reg_mr(pd, va, 4096, RW).unwrap().key;
    let read_only = driver.reg_mr(pd, va, 8192, ACCESS_MW_BIND).unwrap().key;
    type Change<'a> = &'a dyn Fn(&mut BindMwWqe);
    let cases: [(Change<'_>, u8); 12] = [
        (&|b| b.rkey.set(no_bind), cqe::KEY_STATE),
        (&|b| b.rkey.set(0xffff_ff00), cqe::LKEY),
        (&|b| b.lkey.set(b.lkey.get() ^ 1), cqe::LKEY),
        (&|b| b.lkey.set(window), cqe::KEY_STATE),
        (&|b| b.lkey.set(fast), cqe::KEY_STATE),
        (&|b| b.lkey.set(no_bind), cqe::LKEY),
        (&|b| b.lkey.set(read_only), cqe::LKEY),
        (&|b| b.access.set(ACCESS_ON_DEMAND), cqe::LKEY),
        (&|b| b.length.set(0), cqe::BOUNDS),
        (&|b| b.length.set(len - 999), cqe::BOUNDS),
        (&|b| b.length.set(u64::MAX), cqe::BOUNDS),
        (&|b| b.addr.set(va - 1), cqe::BOUNDS),
    ];
    for (n, (change, vendor)) in cases.iter().enumerate() {
        let mut entry = k.bind(window | 9);
        change(&mut entry);
        let mut other = k.world.connect(QPT_RC, PAGE, |_| {});
        let done = k.local(&mut other.qp[1], &mut other.cq[1], &entry);
        let expected = (cqe::MW_BIND_ERR, *vendor);
        // proves: IBV_ACCESS_MW_BIND, IBV_WC_MW_BIND_ERR
        assert_eq!((done.status, done.vendor_err), expected, "case {n}");
    }
    k.well(&k.bind(window | 9));
}

/// "One SEND intensive application can starve FREE+invalidate": an invalidation does not stand in line behind the
/// packets of others, however many there are.
#[test]
fn an_invalidation_waits_for_no_other_queue_pair() {
    // A device that sends nothing for a while after it has had to look up a page.
    let slow = World::with_config(2, 1, |config| config.lookup = Nanos::from_millis(1));
    let mut k = Keys::on(slow);
    let key = k.create(MKEY_FAST_REG, 4);
    k.well(&k.register(key));
    let mut others: Vec<Pair> = (0..50)
        .map(|_| k.world.connect(QPT_RC, 64 << 10, |_| {}))
        .collect();
    for pair in &mut others {
        let (from, to) = (pair.mr[1], pair.mr[0]);
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, 64 << 10, from.key)],
            remote_addr: to.va,
            rkey: to.key,
            ..Send::default()
        };
        k.world.hosts[1].driver.post_send(&mut pair.qp[1], &write);
    }
    let entry = invalidate(key);
    let driver = &mut k.world.hosts[1].driver;
    driver.post_raw_send(&mut k.pair.qp[1], entry.as_bytes());
    let before = k.world.now();
    let done = k.world.completions(1, &mut k.pair.cq[1]);
    assert_eq!((done.len(), k.world.now()), (1, before), "it was put off");
    let last = others.last_mut().unwrap();
    assert!(k.world.completions(1, &mut last.cq[1]).is_empty());
    k.world.run();
    for pair in &mut others {
        expect_cqe(&mut k.world, 1, &mut pair.cq[1], cqe::SUCCESS);
    }
}

/// Nor do other queue pairs wait for very many operations on keys.
#[test]
fn many_operations_on_keys_take_turns() {
    const COUNT: u32 = 200;
    let mut k = Keys::new();
    let key = k.create(MKEY_FAST_REG, 4);
    let mut other = k.world.connect(QPT_RC, PAGE, |_| {});
    // A request without an acknowledgement keeps later ones from being executed at the doorbell.
    k.world.lose(|_, _| true);
    let (from, to) = (k.pair.mr[1], k.pair.mr[0]);
    let write = Send {
        opcode: wr::WR_WRITE,
        sges: &[(from.va, 8, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    let (driver, qp) = (&mut k.world.hosts[1].driver, &mut k.pair.qp[1]);
    driver.post_send(qp, &write);
    for n in 0..COUNT / 2 {
        let mut register = RegMrWqe {
            opcode: wr::WR_REG_MR,
            access: U32::new(RW),
            key: U32::new((key & !0xff) | (n & 0xff)),
            iova: U64::new(VA),
            length: U64::new(PAGE),
            list: U64::new(k.list),
            num_pages: U32::new(1),
            page_shift: U32::new(12),
            ..RegMrWqe::default()
        };
        driver.post_raw_send(qp, register.as_bytes());
        register.key.set((key & !0xff) | (n & 0xff));
        driver.post_raw_send(qp, invalidate(register.key.get()).as_bytes());
    }
    let (from, to) = (other.mr[1], other.mr[0]);
    let write = Send {
        sges: &[(from.va, 8, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..write
    };
    driver.post_send(&mut other.qp[1], &write);
    k.world.lose_nothing();
    k.world.run();
    let done = k.world.completions(1, &mut k.pair.cq[1]);
    assert!(
        done.iter().all(|cqe| cqe.status == cqe::SUCCESS),
        "{done:?}"
    );
    assert_eq!(done.len() as u32, COUNT + 1);
    expect_cqe(&mut k.world, 1, &mut other.cq[1], cqe::SUCCESS);
}

/// "Network chernobyl": the error of one queue pair takes no key and no other queue pair with it.
#[test]
fn a_queue_pair_in_error_leaves_keys_and_others_alone() {
    let mut k = Keys::new();
    let (fast, window) = (k.create(MKEY_FAST_REG, 4), k.create(MKEY_WINDOW_1, 0));
    k.well(&k.register(fast));
    k.well(&k.bind(window));
    let mr = k.region;
    let mut bystander = k.world.connect(QPT_RC, 64 << 10, |_| {});
    // The QP that made both keys dies of a request of its own.
    let mut pair = std::mem::replace(&mut k.pair, k.world.connect(QPT_RC, PAGE, |_| {}));
    let done = k.local(&mut pair.qp[1], &mut pair.cq[1], &invalidate(mr.key));
    assert_eq!(done.status, cqe::MW_BIND_ERR);
    for (at, key) in [(VA + 100, fast), (mr.va + 1000, window), (mr.va, mr.key)] {
        let status = k.ask_on(&mut bystander, wr::WR_WRITE, at, 3000, key);
        assert_eq!(status, cqe::SUCCESS);
    }
}

/// A host with a second protection domain, which has a region.
fn two_domains() -> (Keys, u32, Mr) {
    let mut k = Keys::new();
    let driver = &mut k.world.hosts[1].driver;
    let pd = driver.alloc_pd().unwrap();
    let access = ALL_ACCESS | ACCESS_MW_BIND | ACCESS_FLUSH_GLOBAL;
    let foreign = driver.reg_mr(pd, 0x5000, 8192, access).unwrap();
    (k, pd, foreign)
}

#[test]
fn no_rkey_crosses_protection_domains() {
    let (mut k, _, foreign) = two_domains();
    for opcode in [
        wr::WR_WRITE,
        wr::WR_READ,
        wr::WR_FETCH_ADD,
        wr::WR_ATOMIC_WRITE,
    ] {
        let status = k.ask(opcode, 0x5000, 8, foreign.key);
        assert_eq!(status, cqe::REM_ACCESS_ERR, "opcode {opcode}");
    }
}

/// A key that is valid in the other domain does not go by a peer's SEND of this one, nor by a FLUSH through it.
#[test]
fn no_invalidation_or_flush_crosses_protection_domains() {
    let (mut k, pd, foreign) = two_domains();
    let this = std::mem::replace(&mut k.world.hosts[1].pd, pd);
    let fast = k.create(MKEY_FAST_REG, 4);
    let window = k.create(MKEY_WINDOW_1, 0);
    let mut theirs = k.world.connect(QPT_RC, PAGE, |_| {});
    let bind = BindMwWqe {
        lkey: U32::new(foreign.key),
        addr: U64::new(foreign.va),
        ..k.bind(window)
    };
    for entry in [k.register(fast).entry(), bind.entry()] {
        let driver = &mut k.world.hosts[1].driver;
        driver.post_raw_send(&mut theirs.qp[1], entry);
        k.world.run();
        expect_cqe(&mut k.world, 1, &mut theirs.cq[1], cqe::SUCCESS);
    }
    let read = |k: &mut Keys, pair: &mut Pair, va, key| k.ask_on(pair, wr::WR_READ, va, 8, key);
    assert_eq!(read(&mut k, &mut theirs, VA + 100, fast), cqe::SUCCESS);
    assert_eq!(read(&mut k, &mut theirs, foreign.va, window), cqe::SUCCESS);
    k.world.hosts[1].pd = this;
    assert_eq!(
        k.ask(wr::WR_READ, foreign.va, 8, window),
        cqe::REM_ACCESS_ERR
    );
    let mut pair = k.world.connect(QPT_RC, PAGE, |_| {});
    let to = pair.mr[1];
    let driver = &mut k.world.hosts[1].driver;
    driver.post_recv(&mut pair.qp[1], 5, &[(to.va, 64, to.key)]);
    let send_inv = Send {
        opcode: wr::WR_SEND_INV,
        imm: fast.to_le_bytes(),
        inline: Some(b"take it"),
        ..Send::default()
    };
    let driver = &mut k.world.hosts[0].driver;
    driver.post_send(&mut pair.qp[0], &send_inv);
    k.world.run();
    expect_cqe(&mut k.world, 1, &mut pair.cq[1], cqe::REM_INV_REQ_ERR);
    let all = ALL_ACCESS | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;
    let mut pair = k.world.connect(QPT_RC, PAGE, |c| c.access = all);
    let flush = FlushWqe {
        opcode: wr::WR_FLUSH,
        flags: wr::WR_FLAG_SIGNALED,
        rkey: U32::new(foreign.key),
        remote_addr: U64::new(foreign.va),
        length: U64::new(8),
        placement: U32::new(wr::FLUSH_GLOBAL),
        ..FlushWqe::default()
    };
    let driver = &mut k.world.hosts[0].driver;
    driver.post_raw_send(&mut pair.qp[0], flush.entry());
    k.world.run();
    expect_cqe(&mut k.world, 0, &mut pair.cq[0], cqe::REM_ACCESS_ERR);
    assert_eq!(read(&mut k, &mut theirs, VA + 100, fast), cqe::SUCCESS);
}

#[test]
fn no_lkey_crosses_protection_domains() {
    let (mut k, _, foreign) = two_domains();
    let mut pair = k.world.connect(QPT_RC, PAGE, |_| {});
    let (remote, sge) = (pair.mr[0], (foreign.va, 8, foreign.key));
    let write = Send {
        opcode: wr::WR_WRITE,
        sges: &[sge],
        remote_addr: remote.va,
        rkey: remote.key,
        ..Send::default()
    };
    k.world.hosts[1].driver.post_send(&mut pair.qp[1], &write);
    k.world.run();
    expect_cqe(&mut k.world, 1, &mut pair.cq[1], cqe::LOC_PROT_ERR);
    let mut pair = k.world.connect(QPT_RC, PAGE, |_| {});
    k.world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 1, &[sge]);
    let from = pair.mr[0];
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(from.va, 8, from.key)],
        ..Send::default()
    };
    k.world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    k.world.run();
    expect_cqe(&mut k.world, 1, &mut pair.cq[1], cqe::LOC_PROT_ERR);
    expect_cqe(&mut k.world, 0, &mut pair.cq[0], cqe::REM_OP_ERR);
}

/// An SRQ's receives are of the SRQ's domain, not of the QP's.
#[test]
fn receives_of_an_srq_are_of_its_protection_domain() {
    let (mut k, pd, foreign) = two_domains();
    let pair = k.world.connect(QPT_RC, PAGE, |_| {});
    let from = pair.mr[0];
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(from.va, 8, from.key)],
        ..Send::default()
    };
    let mut srq = k.world.hosts[1].driver.create_srq(pd, 0, 4, 1, 0).unwrap();
    for (key, status) in [
        (foreign.key, cqe::SUCCESS),
        (k.region.key, cqe::LOC_PROT_ERR),
    ] {
        let host = &mut k.world.hosts[1];
        let mut cq = host.cq(4).unwrap();
        let mut config = host.qp_config(QPT_RC, &cq);
        config.srqn = Some(srq.srqn);
        let served = host.driver.create_qp(&config).unwrap();
        let va = if key == foreign.key {
            foreign.va
        } else {
            k.region.va
        };
        host.driver.post_srq_recv(&mut srq, 3, &[(va, 8, key)]);
        let mut peer_cq = k.world.hosts[0].cq(4).unwrap();
        let mut peer = k.world.hosts[0].qp(QPT_RC, &peer_cq).unwrap();
        for (host, own, to, other) in [(0, peer.qpn, 1, served.qpn), (1, served.qpn, 0, peer.qpn)] {
            let path = k.world.path(to, other);
            let driver = &mut k.world.hosts[host].driver;
            driver.connect(own, QPT_RC, &path).unwrap();
        }
        k.world.hosts[0].driver.post_send(&mut peer, &send);
        k.world.run();
        expect_cqe(&mut k.world, 1, &mut cq, status);
        k.world.completions(0, &mut peer_cq);
    }
}

/// Windows: of this domain on a region of that one, and of that one on a QP of this one.
#[test]
fn no_window_crosses_protection_domains() {
    let (mut k, pd, foreign) = two_domains();
    let own = k.create(MKEY_WINDOW_2, 0);
    let this = std::mem::replace(&mut k.world.hosts[1].pd, pd);
    let theirs = k.create(MKEY_WINDOW_2, 0);
    k.world.hosts[1].pd = this;
    for (window, region) in [(own, foreign), (theirs, k.region), (theirs, foreign)] {
        let entry = BindMwWqe {
            rkey: U32::new(window),
            lkey: U32::new(region.key),
            addr: U64::new(region.va),
            ..k.bind(window)
        };
        let mut other = k.world.connect(QPT_RC, PAGE, |_| {});
        let done = k.local(&mut other.qp[1], &mut other.cq[1], &entry);
        // proves: IB_DEVICE_MEM_WINDOW_TYPE_2B
        assert_eq!(
            (done.status, done.vendor_err),
            (cqe::MW_BIND_ERR, cqe::LKEY)
        );
    }
}

#[test]
fn no_address_handle_crosses_protection_domains() {
    let (mut k, pd, _) = two_domains();
    let mut cq = k.world.hosts[1].cq(4).unwrap();
    let mut ud = k.world.hosts[1].qp(QPT_UD, &cq).unwrap();
    let av = k.world.path(0, 2).av();
    let driver = &mut k.world.hosts[1].driver;
    driver.activate(ud.qpn, QPT_UD, 7).unwrap();
    let ah = driver.create_ah(pd, av).unwrap();
    let datagram = Send {
        opcode: wr::WR_SEND,
        ah,
        remote_qpn: 2,
        qkey: 7,
        ..Send::default()
    };
    driver.post_send(&mut ud, &datagram);
    k.world.run();
    let done = expect_cqe(&mut k.world, 1, &mut cq, cqe::LOC_QP_OP_ERR);
    assert_eq!(done.vendor_err, cqe::AH);
}

#[test]
fn flushes_and_atomic_writes_are_answered() {
    for loss in [0, 20] {
        let mut k = Keys::new();
        k.world.impair(LinkModel {
            loss: loss * 10 * 1000,
            ..LinkModel::PLAIN
        });
        let pd = k.world.hosts[1].pd;
        let access = ALL_ACCESS | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;
        let driver = &mut k.world.hosts[1].driver;
        let mr = driver.reg_mr(pd, 0x5000, 8192, access).unwrap();
        let pair = k.world.connect(QPT_RC, 64 << 10, |c| c.access = access);
        let ([mut cq, _], [mut qp, _]) = (pair.cq, pair.qp);
        for n in 0..50u64 {
            let driver = &mut k.world.hosts[0].driver;
            let value = (n * 0x0101_0101_0101_0101).to_le_bytes();
            let write = Send {
                opcode: wr::WR_ATOMIC_WRITE,
                inline: Some(&value),
                remote_addr: mr.va + n * 8,
                rkey: mr.key,
                ..Send::default()
            };
            driver.post_send(&mut qp, &write);
            let flush = FlushWqe {
                opcode: wr::WR_FLUSH,
                placement: U32::new(1 + n as u32 % 3),
                selectivity: U32::new(n as u32 % 2),
                rkey: U32::new(mr.key),
                remote_addr: U64::new(mr.va),
                length: U64::new(8192),
                ..FlushWqe::default()
            };
            driver.post_raw_send(&mut qp, flush.as_bytes());
        }
        k.world.run();
        let done = k.world.completions(0, &mut cq);
        assert!(
            done.iter().all(|cqe| cqe.status == cqe::SUCCESS),
            "{done:?}"
        );
        let found: Vec<u8> = done.iter().map(|cqe| cqe.opcode).collect();
        assert_eq!(found, [cqe::ATOMIC_WRITE, cqe::FLUSH].repeat(50));
        for n in 0..50u64 {
            let bytes = k.world.hosts[1].driver.read_mr(&mr, n * 8, 8);
            assert_eq!(bytes, (n * 0x0101_0101_0101_0101).to_le_bytes());
        }
    }
}

#[test]
fn flushes_and_atomic_writes_need_rights() {
    let mut k = Keys::new();
    let pd = k.world.hosts[1].pd;
    let driver = &mut k.world.hosts[1].driver;
    let global = driver
        .reg_mr(pd, 0x5000, 8192, ALL_ACCESS | ACCESS_FLUSH_GLOBAL)
        .unwrap();
    let none = driver.reg_mr(pd, 0x5000, 8192, ACCESS_LOCAL_WRITE).unwrap();
    let flush = |mr: &Mr, placement, selectivity, addr, length| FlushWqe {
        opcode: wr::WR_FLUSH,
        placement: U32::new(placement),
        selectivity: U32::new(selectivity),
        rkey: U32::new(mr.key),
        remote_addr: U64::new(addr),
        length: U64::new(length),
        ..FlushWqe::default()
    };
    let all = ALL_ACCESS | ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT;
    for (n, (entry, access, status)) in [
        (flush(&global, 1, 0, 0x5000, 8192), all, cqe::SUCCESS),
        (flush(&global, 1, 0, 0x5000, 8193), all, cqe::REM_ACCESS_ERR),
        (flush(&global, 1, 1, 0, 0), all, cqe::SUCCESS),
        (flush(&global, 2, 0, 0x5000, 8), all, cqe::REM_ACCESS_ERR),
        (flush(&none, 1, 1, 0x5000, 8), all, cqe::REM_ACCESS_ERR),
        (
            flush(&global, 1, 0, 0x5000, 8),
            ALL_ACCESS,
            cqe::REM_INV_REQ_ERR,
        ),
        (flush(&global, 0, 0, 0x5000, 8), all, cqe::LOC_QP_OP_ERR),
        (flush(&global, 4, 0, 0x5000, 8), all, cqe::LOC_QP_OP_ERR),
        (flush(&global, 1, 2, 0x5000, 8), all, cqe::LOC_QP_OP_ERR),
        (
            flush(&global, 1, 0, 0x5000, 1 << 32),
            all,
            cqe::LOC_QP_OP_ERR,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut pair = k.world.connect(QPT_RC, PAGE, |c| c.access = access);
        let driver = &mut k.world.hosts[0].driver;
        driver.post_raw_send(&mut pair.qp[0], entry.as_bytes());
        k.world.run();
        let found = k.world.completions(0, &mut pair.cq[0]);
        // proves: IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT
        assert_eq!(found[0].status, status, "case {n}");
    }
    for (addr, len, key, status) in [
        (0x5008, 8, global.key, cqe::SUCCESS),
        (0x5001, 8, global.key, cqe::REM_INV_REQ_ERR),
        (0x7000, 8, global.key, cqe::REM_ACCESS_ERR),
        (0x5000, 8, none.key, cqe::REM_ACCESS_ERR),
        (0x5000, 16, global.key, cqe::LOC_LEN_ERR),
    ] {
        let found = k.ask(wr::WR_ATOMIC_WRITE, addr, len, key);
        assert_eq!(found, status, "{len} at {addr:#x}");
    }
}
