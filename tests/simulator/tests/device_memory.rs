//! Memory of the device: allocation, keys for it, and traffic from and to it.

use faultline_abi::admin::{CREATE_DM_MKEY, CreateMkey, DEALLOC_DM, DESTROY_MKEY, MODIFY_MKEY};
use faultline_abi::cqe;
use faultline_abi::device_memory::{AllocDm, CreateDmMkey};
use faultline_abi::qp::*;
use faultline_abi::translation::{INVALIDATE, TqCmd};
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U32, U64};
use faultline_simulation::driver::{ALL_ACCESS, Dm};
use faultline_simulation::{Bus, Error, Mr, Send};
use faultline_simulator::{Pair, World, expect_cqe};

use crate::common::pattern;

const PAGE: u64 = 4096;

/// Two connected hosts; the device memory is host 1's.
struct Setup {
    world: World,
    pair: Pair,
    dm: Dm,
    key: Mr,
}

impl Setup {
    fn new() -> Self {
        let mut world = World::new(2, 1);
        let pair = world.connect(QPT_RC, 64 << 10, |_| {});
        let pd = world.hosts[1].pd;
        let driver = &mut world.hosts[1].driver;
        // Something in front, so that an offset of zero is not right by chance.
        driver.alloc_dm(1).unwrap();
        let dm = driver.alloc_dm(4 * PAGE).unwrap();
        let key = driver.reg_dm(pd, &dm, 104, 3 * PAGE, ALL_ACCESS).unwrap();
        Self {
            world,
            pair,
            dm,
            key,
        }
    }

    /// Host 0 asks on a fresh connection; the status.
    fn ask(&mut self, opcode: u8, addr: u64, len: u32) -> u8 {
        self.pair = self.world.connect(QPT_RC, 64 << 10, |_| {});
        let mr = self.pair.mr[0];
        let send = Send {
            opcode,
            sges: &[(mr.va, len, mr.key)],
            remote_addr: addr,
            rkey: self.key.key,
            compare_add: 5,
            ..Send::default()
        };
        let host = &mut self.world.hosts[0];
        host.driver.write_mr(&mr, 0, &pattern(16 << 10));
        host.driver.post_send(&mut self.pair.qp[0], &send);
        self.world.run();
        let found = self.world.completions(0, &mut self.pair.cq[0]);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].status
    }

    fn device(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let bus = &self.world.hosts[1].driver.bus;
        bus.read(self.dm.addr + at, &mut bytes);
        bytes
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    match result {
        Err(Error::Refused(status)) => status,
        other => panic!("not refused: {other:?}"),
    }
}

/// Addresses count from the key's first byte, independent of its place in the allocation.
#[test]
fn a_peer_writes_reads_and_adds() {
    for by_reference in [false, true] {
        let mut s = Setup::new();
        if by_reference {
            s.world.hand_over_by_reference();
        }
        assert_eq!(s.ask(wr::WR_WRITE, 8, 9000), cqe::SUCCESS);
        assert!(s.device(112, 9000) == pattern(9000));
        assert_eq!(s.device(0, 112), [0; 112]);
        assert_eq!(s.device(112 + 9000, 16), [0; 16]);
        assert_eq!(s.ask(wr::WR_READ, 0, 9000), cqe::SUCCESS);
        let mr = s.pair.mr[0];
        let read = s.world.hosts[0].driver.read_mr(&mr, 0, 9000);
        assert_eq!(read[..8], [0; 8]);
        assert!(read[8..] == pattern(8992));
        let word = |s: &Setup| u64::from_le_bytes(s.device(112, 8).try_into().unwrap());
        let before = word(&s);
        assert_eq!(s.ask(wr::WR_FETCH_ADD, 8, 8), cqe::SUCCESS);
        assert_eq!(word(&s), before + 5);
        let mr = s.pair.mr[0];
        let old = s.world.hosts[0].driver.read_mr(&mr, 0, 8);
        assert_eq!(old, before.to_le_bytes());
    }
}

#[test]
fn nothing_outside_of_the_key_is_touched() {
    let mut s = Setup::new();
    for (at, len) in [
        (3 * PAGE, 1),
        (3 * PAGE - 7, 8),
        (u64::MAX, 2),
        (u64::MAX - 103, 8),
        (1 << 63, 8),
    ] {
        let status = s.ask(wr::WR_WRITE, at, len);
        assert_eq!(status, cqe::REM_ACCESS_ERR, "{len} at {at:#x}");
    }
    assert_eq!(s.device(0, 4 * PAGE as usize), vec![0; 4 * PAGE as usize]);
    let pd = s.world.hosts[1].pd;
    let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ;
    let driver = &mut s.world.hosts[1].driver;
    s.key = driver.reg_dm(pd, &s.dm, 0, 8, access).unwrap();
    assert_eq!(s.ask(wr::WR_WRITE, 0, 8), cqe::REM_ACCESS_ERR);
    assert_eq!(s.ask(wr::WR_READ, 0, 8), cqe::SUCCESS);
    // A key of length zero is good for nothing, and for that it is good.
    let driver = &mut s.world.hosts[1].driver;
    s.key = driver.reg_dm(pd, &s.dm, 0, 0, ALL_ACCESS).unwrap();
    assert_eq!(s.ask(wr::WR_READ, 0, 1), cqe::REM_ACCESS_ERR);
}

/// Gathered from and scattered to device memory: no byte goes through the guest.
#[test]
fn sends_and_receives_use_it() {
    let mut s = Setup::new();
    let pd = s.world.hosts[0].pd;
    let driver = &mut s.world.hosts[0].driver;
    let source = driver.alloc_dm(2 * PAGE).unwrap();
    let from = driver.reg_dm(pd, &source, 8, 6000, 0).unwrap();
    driver.bus.write(source.addr + 8, &pattern(6000));
    let driver = &mut s.world.hosts[1].driver;
    driver.post_recv(&mut s.pair.qp[1], 3, &[(0, 6000, s.key.key)]);
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(0, 1000, from.key), (1000, 5000, from.key)],
        ..Send::default()
    };
    s.world.hosts[0].driver.post_send(&mut s.pair.qp[0], &send);
    s.world.run();
    expect_cqe(&mut s.world, 0, &mut s.pair.cq[0], cqe::SUCCESS);
    let got = expect_cqe(&mut s.world, 1, &mut s.pair.cq[1], cqe::SUCCESS);
    assert_eq!(got.byte_len.get(), 6000);
    assert!(s.device(104, 6000) == pattern(6000));
}

/// The data of one user is erased before the next one gets the memory.
#[test]
fn memory_is_zero_when_it_is_allocated() {
    let mut s = Setup::new();
    assert_eq!(s.ask(wr::WR_WRITE, 0, 9000), cqe::SUCCESS);
    let driver = &mut s.world.hosts[1].driver;
    assert_eq!(
        refused(driver.command(DEALLOC_DM, s.dm.dm, &())),
        Status::InUse
    );
    driver.command(DESTROY_MKEY, s.key.key, &()).unwrap();
    driver.command(DEALLOC_DM, s.dm.dm, &()).unwrap();
    assert_eq!(
        refused(driver.command(DEALLOC_DM, s.dm.dm, &())),
        Status::BadDm
    );
    let again = driver.alloc_dm(4 * PAGE).unwrap();
    assert_eq!(again.addr, s.dm.addr);
    assert_ne!(again.dm, s.dm.dm);
    assert_eq!(s.device(0, 4 * PAGE as usize), vec![0; 4 * PAGE as usize]);
    assert_eq!(s.ask(wr::WR_WRITE, 0, 8), cqe::REM_ACCESS_ERR);
}

#[test]
fn missing_device_memory_is_not_allocated() {
    let mut world = World::with_config(1, 1, |config| {
        config.limits.device_memory = 8 * PAGE;
        config.limits.max_dm = 3;
    });
    let driver = &mut world.hosts[0].driver;
    assert_eq!(refused(driver.alloc_dm(0)), Status::BadRange);
    for len in [8 * PAGE + 1, u64::MAX, 1 << 63] {
        assert_eq!(refused(driver.alloc_dm(len)), Status::NoDeviceMemory);
    }
    let dms = [1, PAGE, 5 * PAGE].map(|len| driver.alloc_dm(len).unwrap());
    assert_eq!(refused(driver.alloc_dm(1)), Status::NoResources);
    driver.command(DEALLOC_DM, dms[1].dm, &()).unwrap();
    // Two pages are free, but not together.
    assert_eq!(refused(driver.alloc_dm(PAGE + 1)), Status::NoDeviceMemory);
    assert_eq!(driver.alloc_dm(PAGE).unwrap().addr, dms[1].addr);
}

#[test]
fn without_device_memory_none_is_offered() {
    let mut world = World::with_config(1, 1, |config| config.limits.device_memory = 0);
    let driver = &mut world.hosts[0].driver;
    assert_eq!(refused(driver.alloc_dm(1)), Status::NoDeviceMemory);
}

#[test]
fn bad_commands_are_refused_one_by_one() {
    let mut s = Setup::new();
    let pd = s.world.hosts[1].pd;
    let (dm, key) = (s.dm, s.key.key);
    let driver = &mut s.world.hosts[1].driver;
    let alloc = AllocDm {
        length: U64::new(1),
        reserved: U64::new(1),
    };
    let opcode = faultline_abi::admin::ALLOC_DM;
    let status = refused(driver.command(opcode, 0, &alloc));
    assert_eq!(status, Status::ReservedNotZero);
    for (access, status) in [
        (ACCESS_ON_DEMAND, Status::BadAccess),
        (ACCESS_MW_BIND, Status::BadAccess),
        (ACCESS_REMOTE_WRITE, Status::BadAccess),
        (1 << 30, Status::BadAccess),
        (ACCESS_LOCAL_WRITE | ACCESS_REMOTE_ATOMIC, Status::BadRange),
    ] {
        assert_eq!(refused(driver.reg_dm(pd, &dm, 4, 8, access)), status);
    }
    for (offset, len) in [(4 * PAGE, 1), (1, 4 * PAGE), (u64::MAX, 2), (8, u64::MAX)] {
        let status = refused(driver.reg_dm(pd, &dm, offset, len, 0));
        assert_eq!(status, Status::BadRange);
    }
    assert_eq!(refused(driver.reg_dm(pd + 9, &dm, 0, 8, 0)), Status::BadPd);
    let gone = Dm { dm: 99, ..dm };
    assert_eq!(refused(driver.reg_dm(pd, &gone, 0, 8, 0)), Status::BadDm);
    let reserved = CreateDmMkey {
        pd: U32::new(pd),
        dm: U32::new(dm.dm),
        reserved1: U64::new(1),
        ..CreateDmMkey::default()
    };
    let status = refused(driver.command(CREATE_DM_MKEY, 0, &reserved));
    assert_eq!(status, Status::ReservedNotZero);
    // It has no page table, and can't be made into something that has one.
    let invalidate = TqCmd {
        opcode: INVALIDATE,
        key: U32::new(key),
        count: U64::new(PAGE),
        ..TqCmd::default()
    };
    assert_eq!(refused(driver.translate(&invalidate)), Status::BadMkey);
    let region = CreateMkey {
        pd: U32::new(pd),
        length: U64::new(PAGE),
        page_shift: 12,
        ..CreateMkey::default()
    };
    let status = refused(driver.command(MODIFY_MKEY, key, &region));
    assert_eq!(status, Status::BadMkey);
    // Refused commands have held nothing.
    driver.command(DESTROY_MKEY, key, &()).unwrap();
    driver.command(DEALLOC_DM, dm.dm, &()).unwrap();
}

/// No work request changes the variant: the old key, or one that was guessed, is not the key.
#[test]
fn a_key_of_device_memory_is_accepted_only_under_its_own_name() {
    let mut s = Setup::new();
    let key = s.key.key;
    for other in [key ^ 1, key ^ 0x80, key & !0xff] {
        let driver = &mut s.world.hosts[1].driver;
        let gone = driver.command(DESTROY_MKEY, other, &[0u8; 0]);
        assert_eq!(refused(gone), Status::BadMkey);
    }
    assert_eq!(s.ask(wr::WR_WRITE, 0, 8), cqe::SUCCESS);
    let driver = &mut s.world.hosts[1].driver;
    driver.command(DESTROY_MKEY, key, &[0u8; 0]).unwrap();
    driver.command(DEALLOC_DM, s.dm.dm, &[0u8; 0]).unwrap();
}
