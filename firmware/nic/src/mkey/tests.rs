//! Tests of keys, rights, bounds and translations.

use faultline_abi::admin::{CreateMkey, MKEY_KEEP_PAGES, MKEY_PHYSICAL};
use faultline_abi::qp::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE};
use faultline_abi::translation as tq;
use faultline_abi::{Status, U32, U64};

use super::access::{Access, KeyRange, KeyUser, Miss, PageRange};
use super::table::Mkeys;
use crate::budget::Budget;
use crate::number::to_usize;
use crate::segments::Segments;

fn of(pd: u32) -> KeyUser {
    KeyUser { pd, qpn: 5 }
}

const RW: u64 = tq::READ | tq::WRITE;

fn region(iova: u64, length: u64, access: u32) -> CreateMkey {
    CreateMkey {
        pd: U32::new(1),
        access: U32::new(access),
        iova: U64::new(iova),
        length: U64::new(length),
        page_shift: 12,
        variant: 7,
        ..CreateMkey::default()
    }
}

fn range(key: u32, user: KeyUser, va: u64, len: u32, access: Access) -> KeyRange {
    KeyRange {
        key,
        user,
        va,
        len,
        access,
    }
}

fn rw_region(iova: u64, length: u64) -> (Mkeys, u32) {
    let mut keys = Mkeys::new(8, true, Budget::new(1 << 30));
    let key = keys
        .create(&region(
            iova,
            length,
            ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE,
        ))
        .unwrap();
    (keys, key)
}

#[test]
fn all_32_bits_of_the_key_count() {
    let (keys, key) = rw_region(0x1000, 4096);
    assert_eq!(key & 0xff, 7);
    assert!(keys.get(key).is_some());
    assert!(keys.get(key ^ 1).is_none());
    assert_eq!(
        keys.check(&range(key, of(2), 0x1000, 1, Access::LocalRead)),
        Err(Miss::Pd)
    );
}

#[test]
fn a_key_is_changed_and_keeps_its_number_and_its_pages_if_asked() {
    let (mut keys, key) = rw_region(0x1000, 4096);
    keys.map(key, &PageRange::new(0x1000, 12, 1), |_| 0x5000 | RW)
        .unwrap();
    let keep = CreateMkey {
        flags: U32::new(MKEY_KEEP_PAGES),
        pd: U32::new(2),
        ..region(0x1000, 4096, ACCESS_LOCAL_WRITE)
    };
    assert_eq!(keys.modify(key, &keep), Ok(1));
    let mut out = Segments::new();
    let access = Access::LocalWrite;
    assert_eq!(
        keys.translate(&range(key, of(2), 0x1000, 8, access), &mut out),
        Ok(())
    );
    let access = Access::RemoteWrite;
    assert_eq!(
        keys.check(&range(key, of(2), 0x1000, 8, access)),
        Err(Miss::Access)
    );
    assert_eq!(
        keys.check(&range(key, of(1), 0x1000, 8, access)),
        Err(Miss::Pd)
    );
    let longer = CreateMkey {
        length: U64::new(8192),
        ..keep
    };
    assert_eq!(keys.modify(key, &longer), Err(Status::BadRange));
    assert_eq!(keys.modify(key ^ 1, &keep), Err(Status::BadMkey));
    assert_eq!(keys.create(&keep), Err(Status::BadParameter));
    let moved = region(0x9000, 8192, ACCESS_LOCAL_WRITE);
    assert_eq!(keys.modify(key, &moved), Ok(2));
    let access = Access::LocalRead;
    assert_eq!(
        keys.check(&range(key, of(1), 0x1000, 8, access)),
        Err(Miss::Bounds)
    );
    assert_eq!(
        keys.translate(&range(key, of(1), 0x9000, 8, access), &mut out),
        Err(Miss::NotPresent(0x9000))
    );
}

#[test]
fn ranges_never_wrap() {
    let (keys, key) = rw_region(0x1000, 4096);
    for (va, len) in [
        (0x1fff, 2),
        (0xfff, 1),
        (u64::MAX, 2),
        (0x2001, 0),
        (0, u32::MAX),
    ] {
        assert_eq!(
            keys.check(&range(key, of(1), va, len, Access::LocalRead)),
            Err(Miss::Bounds),
            "{va:#x}"
        );
    }
    assert_eq!(
        keys.check(&range(key, of(1), 0x2000, 0, Access::LocalRead)),
        Ok(())
    );
    let mut keys = Mkeys::new(1, true, Budget::new(1 << 30));
    assert_eq!(keys.create(&region(u64::MAX, 2, 0)), Err(Status::BadRange));
    assert!(keys.create(&region(u64::MAX, 1, 0)).is_ok());
    let nothing = CreateMkey {
        flags: U32::new(MKEY_PHYSICAL),
        ..region(u64::MAX, 0, 0)
    };
    assert_eq!(
        Mkeys::new(1, true, Budget::new(1 << 30)).create(&nothing),
        Err(Status::BadRange)
    );
}

#[test]
fn rights_are_checked_and_remote_write_needs_local_write() {
    let (keys, key) = rw_region(0, 4096);
    assert_eq!(
        keys.check(&range(key, of(1), 0, 8, Access::RemoteRead)),
        Err(Miss::Access)
    );
    assert_eq!(
        keys.check(&range(key, of(1), 0, 8, Access::RemoteWrite)),
        Ok(())
    );
    let bad = region(0, 4096, ACCESS_REMOTE_WRITE);
    assert_eq!(
        Mkeys::new(1, true, Budget::new(1 << 30)).create(&bad),
        Err(Status::BadAccess)
    );
}

#[test]
fn pages_are_joined_and_offsets_kept() {
    let (mut keys, key) = rw_region(0x10_0800, 0x3000);
    let pages = [0x5000, 0x6000, 0x9000, 0xa000];
    assert_eq!(
        keys.map(key, &PageRange::new(0x10_0000, 12, 4), |n| pages
            [to_usize(n)]
            | RW),
        Ok(4)
    );
    let mut out = Segments::new();
    keys.translate(
        &range(key, of(1), 0x10_0810, 0x2000, Access::LocalWrite),
        &mut out,
    )
    .unwrap();
    let found: Vec<_> = out.iter().map(|s| (s.addr, s.len)).collect();
    assert_eq!(found, [(0x5810, 0x17f0), (0x9000, 0x810)]);
    // The fifth page would begin after the region's end.
    assert_eq!(
        keys.map(key, &PageRange::new(0x10_0000, 12, 5), |_| 0x5000 | RW),
        Err(Status::BadRange)
    );
    assert_eq!(
        keys.map(key, &PageRange::new(0xf_f000, 12, 1), |_| 0x5000 | RW),
        Err(Status::BadRange)
    );
    assert_eq!(keys.invalidate(key, 0, u64::MAX), Ok(4));
    let miss = keys.translate(
        &range(key, of(1), 0x10_0810, 8, Access::LocalWrite),
        &mut out,
    );
    assert_eq!(miss, Err(Miss::NotPresent(0x10_0810)));
}

#[test]
fn odd_page_sizes_and_short_regions_work() {
    let (mut keys, key) = rw_region(0x40_0000, 0x2_0000);
    assert_eq!(
        keys.map(key, &PageRange::new(0x40_0000, 16, 2), |n| ((n + 1) << 20)
            | RW),
        Ok(32)
    );
    let mut out = Segments::new();
    keys.translate(
        &range(key, of(1), 0x41_0010, 0x100, Access::LocalRead),
        &mut out,
    )
    .unwrap();
    assert_eq!((out[0].addr, out[0].len), (0x20_0010, 0x100));
    // A region of 8 KiB inside a 2 MiB page.
    let (mut keys, key) = rw_region(0x40_3000, 0x2000);
    assert!(
        keys.map(key, &PageRange::new(0x40_0000, 21, 1), |_| (1 << 21) | RW)
            .is_ok()
    );
    out.clear();
    keys.translate(
        &range(key, of(1), 0x40_3000, 0x2000, Access::LocalRead),
        &mut out,
    )
    .unwrap();
    assert_eq!((out[0].addr, out[0].len), ((1 << 21) + 0x3000, 0x2000));
}

#[test]
fn read_only_pages_are_not_written() {
    let (mut keys, key) = rw_region(0, 4096);
    keys.map(key, &PageRange::new(0, 12, 1), |_| 0x5000 | tq::READ)
        .unwrap();
    let mut out = Segments::new();
    assert!(
        keys.translate(&range(key, of(1), 0, 8, Access::LocalRead), &mut out)
            .is_ok()
    );
    let miss = keys.translate(&range(key, of(1), 0, 8, Access::RemoteWrite), &mut out);
    assert_eq!(miss, Err(Miss::NotPresent(0)));
}

#[test]
fn pages_that_become_present_do_not_change_the_tlb() {
    let (mut keys, key) = rw_region(0x1000, 0x2000);
    let map = |keys: &mut Mkeys, va: u64, addr: u64| {
        keys.map(key, &PageRange::new(va, 12, 1), |_| addr).unwrap();
    };
    let translate = |keys: &Mkeys, va: u64| {
        let (mut out, before) = (Segments::new(), keys.tlb.counts().0);
        let range = range(key, of(1), va, 8, Access::LocalRead);
        keys.translate(&range, &mut out).unwrap();
        let is_hit = keys.tlb.counts().0 > before;
        (out[0].addr, is_hit)
    };
    map(&mut keys, 0x1000, 0x5000 | RW);
    assert_eq!(translate(&keys, 0x1000), (0x5000, false));
    map(&mut keys, 0x2000, 0x6000 | RW);
    assert_eq!(translate(&keys, 0x1000), (0x5000, true));
    assert_eq!(translate(&keys, 0x2000), (0x6000, false));
    // Another page, and one without permissions, replace the former pages.
    map(&mut keys, 0x1000, 0x7000 | RW);
    assert_eq!(translate(&keys, 0x1000), (0x7000, false));
    assert_eq!(translate(&keys, 0x2000), (0x6000, false));
    map(&mut keys, 0x2000, 0);
    assert_eq!(translate(&keys, 0x1000), (0x7000, false));
}
