//! Translations have the right addresses with any size of pages and any first and last address of a region, and
//! take no more memory than the region needs.

use faultline_abi::admin::{CREATE_MKEY, CreateMkey, MKEY_FAST_REG};
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::translation as tq;
use faultline_abi::wqe::{self as wr, RegMrWqe};
use faultline_abi::{U32, U64};
use faultline_nic::budget::Budget;
use faultline_nic::mkey::{Access, KeyRange, KeyUser, Mkeys, PageRange};
use faultline_nic::{Segments, steps};
use faultline_simulation::{Bus, Rng, Send};
use faultline_simulator::{World, expect_cqe};
use proptest::prelude::*;
use zerocopy::IntoBytes;

const PD: u32 = 1;
const PAGE: u64 = 4096;
const RW: u64 = tq::READ | tq::WRITE;

/// Operations on a region, in order.
#[derive(Clone, Copy, Debug)]
enum Done {
    /// The addresses from `va` on are those from `addr` on.
    Mapped { va: u64, bytes: u64, addr: u64 },
    /// Nothing is mapped in a range, and perhaps nothing in leaves that overlap it.
    Removed { first: u64, last: u64 },
}

/// Where the byte at `va` must be: `Err` if that can't be told.
fn expected(done: &[Done], va: u64) -> Result<Option<u64>, ()> {
    for done in done.iter().rev() {
        match *done {
            Done::Mapped {
                va: from,
                bytes,
                addr,
            } if va >= from && va - from < bytes => {
                return Ok(Some(addr + (va - from)));
            }
            Done::Mapped { .. } => {}
            Done::Removed { first, last } => {
                if (first & !(PAGE - 1)..=last | (PAGE - 1)).contains(&va) {
                    return Ok(None);
                }
                if (first >> 30..=last >> 30).contains(&(va >> 30)) {
                    return Err(());
                }
            }
        }
    }
    Ok(None)
}

/// Lengths from a byte to 16 GiB, and often such as end near the end of a page of some size.
fn random_length(rng: &mut Rng) -> u64 {
    let power = 1u64 << rng.below(35);
    match rng.below(4) {
        0 => power,
        1 => power.saturating_sub(rng.below(3) * PAGE).max(1),
        2 => power + rng.below(3) * PAGE,
        _ => 1 + rng.below(power),
    }
}

struct Region {
    mkeys: Mkeys,
    key: u32,
    iova: u64,
    length: u64,
    done: Vec<Done>,
}

impl Region {
    fn random(rng: &mut Rng) -> Self {
        let length = random_length(rng);
        let iova = match rng.below(3) {
            0 => rng.below(1 << 40),
            1 => rng.below(1 << 10) << 30,
            _ => (rng.below(1 << 20) << 20) + rng.below(4) * PAGE,
        };
        let mut mkeys = Mkeys::new(8, true, Budget::new(1 << 30));
        let create = CreateMkey {
            pd: U32::new(PD),
            access: U32::new(ACCESS_LOCAL_WRITE),
            iova: U64::new(iova),
            length: U64::new(length),
            page_shift: 12,
            ..CreateMkey::default()
        };
        let key = mkeys.create(&create).unwrap();
        Self {
            mkeys,
            key,
            iova,
            length,
            done: Vec::new(),
        }
    }

    fn last(&self) -> u64 {
        self.iova + (self.length - 1)
    }

    /// Maps some of the pages of a random size that the region touches.
    fn map(&mut self, rng: &mut Rng) -> Result<(), TestCaseError> {
        let shift = 12 + rng.below(19) as u8;
        let (first, last) = (self.iova >> shift, self.last() >> shift);
        let page = first + rng.below(last - first + 1);
        // No more than one command takes.
        let leaves = match shift {
            30.. => 1,
            21.. => 1 << (shift - 21),
            _ => 1 << (shift - 12),
        };
        let count = 1 + rng.below((last - page + 1).min((1 << 18) / leaves).min(3000));
        let (va, addr) = (page << shift, (1 + rng.below(1 << 10)) << 34);
        let before = (self.mkeys.work(), steps());
        let written = self
            .mkeys
            .map(self.key, &PageRange::new(va, shift, count), |n| {
                (addr + (n << shift)) | RW
            });
        prop_assert!(
            written.is_ok(),
            "{written:?} of {count} pages of 2^{shift} at {va:#x}"
        );
        let written = u64::from(written.unwrap_or(0));
        prop_assert!((1..=1 << 18).contains(&written), "{written} leaves");
        let work = self.mkeys.work() - before.0;
        // Each leaf once, and at most the nodes on the way to it; few for a small region, however large the page.
        let small = self.length.div_ceil(PAGE) + 2;
        let needed = match small {
            0..=512 => small,
            _ => (count * leaves).max(512),
        };
        prop_assert!(written <= needed, "{written} leaves for {needed}");
        prop_assert!(
            work <= needed * 2 + (needed / 512 + 12) * 128,
            "work {work} for {needed} leaves"
        );
        if let (Some(before), Some(after)) = (before.1, steps()) {
            prop_assert!(
                after - before <= 4 * work,
                "{} steps, {work} charged",
                after - before
            );
        }
        self.done.push(Done::Mapped {
            va,
            bytes: count << shift,
            addr,
        });
        Ok(())
    }

    fn invalidate(&mut self, rng: &mut Rng) -> Result<(), TestCaseError> {
        let first = self.iova + rng.below(self.length);
        let last = match rng.below(2) {
            0 => first + rng.below(self.last() - first + 1),
            _ => first + rng.below((self.last() - first + 1).min(1 << 16)),
        };
        let before = (self.mkeys.work(), steps());
        let removed = self.mkeys.invalidate(self.key, first, last - first + 1);
        prop_assert!(removed.is_ok());
        let work = self.mkeys.work() - before.0;
        prop_assert!(work <= 12 * 512, "work {work} to remove {removed:?} leaves");
        if let (Some(before), Some(after)) = (before.1, steps()) {
            prop_assert!(after - before <= 4 * work + 8);
        }
        self.done.push(Done::Removed { first, last });
        Ok(())
    }

    fn look(&self, va: u64) -> Result<(), TestCaseError> {
        let range = KeyRange {
            key: self.key,
            user: KeyUser { pd: PD, qpn: 5 },
            va,
            len: 1,
            access: Access::LocalWrite,
        };
        let mut found = Segments::new();
        let result = self.mkeys.translate(&range, &mut found);
        let found = result.ok().and(found.first().map(|segment| segment.addr));
        match expected(&self.done, va) {
            Ok(wanted) => prop_assert_eq!(found, wanted, "{:#x} of {:?}", va, self.done),
            Err(()) => {
                let mapped = self.done.iter().any(|done| {
                    matches!(*done, Done::Mapped { va: from, bytes, addr }
                    if va >= from && va - from < bytes && found == Some(addr + (va - from)))
                });
                prop_assert!(
                    found.is_none() || mapped,
                    "{va:#x} is {found:x?} of {:?}",
                    self.done
                );
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_translations_have_the_right_addresses(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut region = Region::random(&mut rng);
        for _ in 0..12 {
            match rng.chance(800) {
                true => region.map(&mut rng)?,
                false => region.invalidate(&mut rng)?,
            }
            region.look(region.iova)?;
            region.look(region.last())?;
            for _ in 0..16 {
                region.look(region.iova + rng.below(region.length))?;
            }
        }
    }
}

/// A region that begins 4 MiB and 8 KiB into a page of 16 MiB.
#[test]
fn a_region_inside_a_page_has_the_offset_of_the_page() {
    let mut mkeys = Mkeys::new(8, true, Budget::new(1 << 30));
    let create = CreateMkey {
        pd: U32::new(PD),
        iova: U64::new(0x40_2000),
        length: U64::new(0x2000),
        page_shift: 24,
        ..CreateMkey::default()
    };
    let key = mkeys.create(&create).unwrap();
    mkeys
        .map(key, &PageRange::new(0, 24, 1), |_| (16 << 20) | RW)
        .unwrap();
    let mut found = Segments::new();
    let range = KeyRange {
        key,
        user: KeyUser { pd: PD, qpn: 5 },
        va: 0x40_2000,
        len: 8,
        access: Access::LocalRead,
    };
    mkeys.translate(&range, &mut found).unwrap();
    assert_eq!(found[0].addr, (20 << 20) + 0x2000);
}

/// The same for registrations by work requests, of all page sizes.
#[test]
fn fast_registrations_have_the_right_addresses() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, 64 << 10, |_| {});
    let list = world.hosts[1].driver.alloc(PAGE).unwrap();
    let pd = world.hosts[1].pd;
    let target = world.hosts[1].driver.alloc(4 * PAGE).unwrap();
    for shift in 12..=30 {
        let page = 1u64 << shift;
        // A part of one page, or of two; the bytes are at `target` and no page before its own.
        for crossing in [false, true]
            .into_iter()
            .filter(|crossing| !crossing || shift < 22)
        {
            let driver = &mut world.hosts[1].driver;
            let first = target & !(page - 1);
            let offset = match crossing {
                false => target - first,
                true => page - 100,
            };
            let pages = [first, first + page];
            driver.bus.write(list, pages.as_bytes());
            let create = CreateMkey {
                pd: U32::new(pd),
                flags: U32::new(MKEY_FAST_REG),
                length: U64::new(16),
                ..CreateMkey::default()
            };
            let key = driver
                .command(CREATE_MKEY, 0, &create)
                .unwrap()
                .handle
                .get();
            let iova = (5 << 30) + offset;
            let register = RegMrWqe {
                opcode: wr::WR_REG_MR,
                flags: wr::WR_FLAG_SIGNALED,
                access: U32::new(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE),
                key: U32::new(key),
                iova: U64::new(iova),
                length: U64::new(200),
                list: U64::new(list),
                num_pages: U32::new(1 + u32::from(crossing)),
                page_shift: U32::new(shift),
                ..RegMrWqe::default()
            };
            let before = world.with_nic(1, |nic| nic.work());
            world.hosts[1]
                .driver
                .post_raw_send(&mut pair.qp[1], register.as_bytes());
            world.run();
            expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
            let work = world.with_nic(1, |nic| nic.work()) - before;
            assert!(work < 4096, "page shift {shift}: {work}");
            let at = first + offset;
            let bytes: Vec<u8> = (0..200).map(|n| n as u8 ^ shift as u8).collect();
            let mr = pair.mr[0];
            world.hosts[0].driver.write_mr(&mr, 0, &bytes);
            let write = Send {
                opcode: wr::WR_WRITE,
                sges: &[(mr.va, 200, mr.key)],
                remote_addr: iova,
                rkey: key,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut pair.qp[0], &write);
            world.run();
            expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
            let mut found = [0; 200];
            let driver = &world.hosts[1].driver;
            driver.bus.read(at, &mut found);
            assert!(
                found[..] == bytes,
                "page shift {shift}, crossing {crossing}"
            );
            driver.bus.write(at, &[0; 200]);
        }
    }
}
