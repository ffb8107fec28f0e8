//! Regions of length zero, and new keys.

use faultline_abi::admin::{
    CREATE_DM_MKEY, CREATE_MKEY, CreateMkey, MKEY_FAST_REG, MKEY_WINDOW_1, MKEY_WINDOW_2,
    MODIFY_MKEY,
};
use faultline_abi::cqe;
use faultline_abi::device_memory::CreateDmMkey;
use faultline_abi::qp::*;
use faultline_abi::translation::{self as tq, TqCmd};
use faultline_abi::wqe::{self as wr, BindMwWqe, RegMrWqe};
use faultline_abi::{Status, U32, U64};
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Bus, Error, Pager, Send};
use faultline_simulator::{HostPager, Pair, World, expect_cqe};
use zerocopy::IntoBytes;

const PAGE: u64 = 4096;

/// A key for no bytes at this address, made in one of the ways that there are.
#[derive(Clone, Copy, Debug)]
enum Way {
    Pinned,
    ZeroBased,
    OnDemand,
    Changed,
    Fast,
    Device,
}

const WAYS: [Way; 6] = [
    Way::Pinned,
    Way::ZeroBased,
    Way::OnDemand,
    Way::Changed,
    Way::Fast,
    Way::Device,
];

fn create(world: &mut World, host: usize, cmd: &CreateMkey) -> u32 {
    let driver = &mut world.hosts[host].driver;
    let answer = driver.command(CREATE_MKEY, 0, cmd).unwrap();
    answer.handle.get()
}

/// The key, and the only address that it knows.
fn register(world: &mut World, pair: &mut Pair, host: usize, way: Way, at: u64) -> (u32, u64) {
    let pd = world.hosts[host].pd;
    let empty = CreateMkey {
        pd: U32::new(pd),
        access: U32::new(ALL_ACCESS),
        iova: U64::new(at),
        page_shift: 12,
        variant: 9,
        ..CreateMkey::default()
    };
    let with = |more| CreateMkey {
        access: U32::new(ALL_ACCESS | more),
        ..empty
    };
    match way {
        Way::Pinned => (create(world, host, &empty), at),
        Way::ZeroBased => (create(world, host, &with(ACCESS_ZERO_BASED)), 0),
        Way::OnDemand => (create(world, host, &with(ACCESS_ON_DEMAND)), at),
        Way::Changed => {
            let driver = &mut world.hosts[host].driver;
            let mr = driver.reg_mr(pd, 0x5123, 3 * PAGE, ALL_ACCESS).unwrap();
            driver.command(MODIFY_MKEY, mr.key, &empty).unwrap();
            (mr.key, at)
        }
        Way::Fast => {
            let fast = CreateMkey {
                pd: U32::new(pd),
                flags: U32::new(MKEY_FAST_REG),
                length: U64::new(4),
                page_shift: 12,
                ..CreateMkey::default()
            };
            let key = create(world, host, &fast);
            let driver = &mut world.hosts[host].driver;
            let list = driver.alloc(PAGE).unwrap();
            let page = driver.alloc(PAGE).unwrap();
            driver.bus.write(list, &page.to_le_bytes());
            let entry = RegMrWqe {
                opcode: wr::WR_REG_MR,
                access: U32::new(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ),
                key: U32::new(key),
                iova: U64::new(at),
                list: U64::new(list),
                // As many as hold a byte before the end.
                num_pages: U32::new(u32::from(!at.is_multiple_of(PAGE))),
                page_shift: U32::new(12),
                ..RegMrWqe::default()
            };
            driver.post_raw_send(&mut pair.qp[host], entry.as_bytes());
            world.run();
            expect_cqe(world, host, &mut pair.cq[host], cqe::SUCCESS);
            (key, at)
        }
        Way::Device => {
            let driver = &mut world.hosts[host].driver;
            let dm = driver.alloc_dm(PAGE).unwrap();
            let mr = driver.reg_dm(pd, &dm, PAGE, 0, ALL_ACCESS).unwrap();
            (mr.key, mr.va)
        }
    }
}

/// Posts from host 0 on a fresh connection, with a receive of the same length at host 1; the status.
fn ask(world: &mut World, opcode: u8, local: (u32, u64), remote: (u32, u64), len: u32) -> u8 {
    let mut pair = world.connect(QPT_RC, PAGE, |_| {});
    let driver = &mut world.hosts[1].driver;
    driver.post_recv(&mut pair.qp[1], 1, &[(remote.1, len, remote.0)]);
    let send = Send {
        opcode,
        sges: &[(local.1, len, local.0)],
        remote_addr: remote.1,
        rkey: remote.0,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].status
}

#[test]
fn a_region_without_a_byte_is_good_for_no_byte() {
    for way in WAYS {
        for at in [0, 0x1234_5678, 0x7000_0000, !0xfff, u64::MAX] {
            let mut world = World::new(2, 1);
            let mut pagers = [0, 1].map(|host| HostPager::new(&mut world, host, 4, 4));
            let mut pair = world.connect(QPT_RC, PAGE, |_| {});
            let [a, b] = [0, 1].map(|host| register(&mut world, &mut pair, host, way, at));
            let whole = [0, 1].map(|host| (pair.mr[host].key, pair.mr[host].va));
            for opcode in [wr::WR_SEND, wr::WR_WRITE, wr::WR_WRITE_IMM, wr::WR_READ] {
                let case = format!("{way:?} at {at:#x}, opcode {opcode}");
                let status = ask(&mut world, opcode, a, b, 0);
                assert_eq!(status, cqe::SUCCESS, "{case}");
                // Neither side has a byte.
                let status = ask(&mut world, opcode, a, whole[1], 1);
                assert_eq!(status, cqe::LOC_PROT_ERR, "{case}");
                let remote = match opcode {
                    wr::WR_SEND => cqe::REM_OP_ERR,
                    _ => cqe::REM_ACCESS_ERR,
                };
                let status = ask(&mut world, opcode, whole[0], b, 1);
                assert_eq!(status, remote, "{case}");
            }
            for (host, pager) in pagers.iter_mut().enumerate() {
                pager.collect(&mut world);
                assert!(pager.records.is_empty(), "{way:?}: faults of host {host}");
            }
        }
    }
}

/// Neither pages nor windows for it.
#[test]
fn a_region_without_a_byte_has_no_pages() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, PAGE, |_| {});
    for way in [Way::Pinned, Way::ZeroBased, Way::OnDemand, Way::Changed] {
        for at in [0, 0x1234_5678, u64::MAX] {
            let (key, _) = register(&mut world, &mut pair, 1, way, at);
            let driver = &mut world.hosts[1].driver;
            let frame = driver.alloc(PAGE).unwrap();
            for count in [0, 1, 2] {
                let map = TqCmd {
                    opcode: tq::MAP,
                    flags: tq::CONTIGUOUS,
                    key: U32::new(key),
                    iova: U64::new(at & !0xfff),
                    count: U64::new(count),
                    list: U64::new(frame | tq::READ | tq::WRITE),
                    page_shift: 12,
                    ..TqCmd::default()
                };
                let refused = Err(Error::Refused(Status::BadRange));
                assert_eq!(driver.translate(&map), refused, "{way:?} at {at:#x}");
            }
            let invalidate = TqCmd {
                opcode: tq::INVALIDATE,
                key: U32::new(key),
                count: U64::new(u64::MAX),
                ..TqCmd::default()
            };
            assert_eq!(driver.translate(&invalidate), Ok(0));
        }
    }
}

/// A region of the last address is the longest that ends there; one behind it is not to be had.
#[test]
fn the_end_of_the_address_space_is_no_wrap() {
    let mut world = World::new(1, 1);
    let pd = world.hosts[0].pd;
    for (iova, length, fits) in [
        (u64::MAX, 0, true),
        (u64::MAX, 1, true),
        (u64::MAX, 2, false),
        (u64::MAX - 1, 2, true),
        (1, u64::MAX, true),
        (2, u64::MAX, false),
    ] {
        let cmd = CreateMkey {
            pd: U32::new(pd),
            iova: U64::new(iova),
            length: U64::new(length),
            page_shift: 12,
            ..CreateMkey::default()
        };
        let created = world.hosts[0].driver.command(CREATE_MKEY, 0, &cmd);
        assert_eq!(created.is_ok(), fits, "{iova:#x} {length:#x}");
    }
}

/// A program may bind a window with the low byte 0 and go on using the key that it was given (IBTA 10.6.7.2.2: the
/// consumer names the byte).
#[test]
fn a_window_of_type_2_begins_with_the_low_byte_0() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, PAGE, |_| {});
    let pd = world.hosts[1].pd;
    let access = ALL_ACCESS | ACCESS_MW_BIND;
    let driver = &mut world.hosts[1].driver;
    let region = driver.reg_mr(pd, 0x9000, PAGE, access).unwrap();
    for variant in [0, 1, 77, 255] {
        let window = |flags| CreateMkey {
            pd: U32::new(pd),
            flags: U32::new(flags),
            page_shift: 12,
            variant,
            ..CreateMkey::default()
        };
        let key = create(&mut world, 1, &window(MKEY_WINDOW_2));
        assert_eq!(key & 0xff, 0);
        let other = create(&mut world, 1, &window(MKEY_WINDOW_1));
        assert_eq!(other & 0xff, u32::from(variant));
        let bind = BindMwWqe {
            opcode: wr::WR_BIND_MW,
            rkey: U32::new(key & !0xff),
            lkey: U32::new(region.key),
            addr: U64::new(region.va),
            length: U64::new(PAGE),
            access: U32::new(ACCESS_REMOTE_WRITE),
            ..BindMwWqe::default()
        };
        let driver = &mut world.hosts[1].driver;
        driver.post_raw_send(&mut pair.qp[1], bind.as_bytes());
        world.run();
        expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
        let from = pair.mr[0];
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(from.va, 8, from.key)],
            remote_addr: region.va,
            rkey: key,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    }
}

/// A range of device memory may be empty, but not beyond its end.
#[test]
fn an_empty_range_of_device_memory_is_inside_of_it() {
    let mut world = World::new(1, 1);
    let pd = world.hosts[0].pd;
    let driver = &mut world.hosts[0].driver;
    let dm = driver.alloc_dm(PAGE).unwrap();
    for (offset, fits) in [(0, true), (PAGE, true), (PAGE + 8, false)] {
        let cmd = CreateDmMkey {
            pd: U32::new(pd),
            access: U32::new(ALL_ACCESS),
            dm: U32::new(dm.dm),
            offset: U64::new(offset),
            ..CreateDmMkey::default()
        };
        let created = driver.command(CREATE_DM_MKEY, 0, &cmd);
        assert_eq!(created.is_ok(), fits, "{offset}");
    }
}

/// A write of a device to a page after its invalidation is in a free page frame.
#[test]
fn a_write_to_a_free_page_frame_is_found() {
    const FRAMES: u32 = 2;
    let mut world = World::new(1, 1);
    let host = &mut world.hosts[0];
    let (driver, pd) = (&mut host.driver, host.pd);
    let mut pager = Pager::new(driver, FRAMES, 4).unwrap();
    let last = driver.next_free() - PAGE;
    let region = pager.register(driver, pd, (0, 4 * PAGE), 0).unwrap();
    assert!(!pager.has_stray_writes(driver));
    driver.bus.write(last + 100, &[1]);
    assert!(pager.has_stray_writes(driver));
    // It is told when the frame is used, and once.
    assert_eq!(pager.stray_writes(), 0);
    for page in 0..4 {
        assert!(pager.map_page(driver, region, page, true).unwrap());
    }
    assert_eq!(pager.stray_writes(), 1);
    assert_eq!(pager.resident(region), 2);
}
