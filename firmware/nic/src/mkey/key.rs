//! One memory key: checks of its creation, of accesses to it, and changes of its page table.

use faultline_abi::Status;
use faultline_abi::admin::{
    CreateMkey, MKEY_FAST_REG, MKEY_KEEP_PAGES, MKEY_PHYSICAL, MKEY_WINDOW_1, MKEY_WINDOW_2,
};
use faultline_abi::device_memory::CreateDmMkey;
use faultline_abi::qp::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_HUGETLB, ACCESS_LOCAL_WRITE,
    ACCESS_MW_BIND, ACCESS_ON_DEMAND, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE, ACCESS_ZERO_BASED,
};
use faultline_abi::translation as tq;

use super::access::{Absent, Access, Miss, PageRange};
use crate::budget::{Budget, Held};
use crate::config::{MAX_FAST_REG_PAGES, MAX_LEAVES_PER_MAP};
use crate::number::low32;
use crate::page_table::{PAGE_SHIFT, PageTable, leaves_per_page};
use crate::references::References;

/// Rights of CREATE_MKEY.
const KNOWN_ACCESS: u32 = ACCESS_LOCAL_WRITE
    | ACCESS_REMOTE_WRITE
    | ACCESS_REMOTE_READ
    | ACCESS_REMOTE_ATOMIC
    | ACCESS_MW_BIND
    | ACCESS_ZERO_BASED
    | ACCESS_ON_DEMAND
    | ACCESS_HUGETLB
    | ACCESS_FLUSH_GLOBAL
    | ACCESS_FLUSH_PERSISTENT;

/// The kind of a memory key.
#[derive(Debug)]
pub(super) enum Kind {
    /// Memory that the driver has registered.
    Region,
    /// A fast registration: a work request registers memory, another one invalidates the key.
    Fast { max_pages: u32, valid: bool },
    /// Memory of the device.
    Device { dm: u32 },
    /// A part of a region.
    Window { two: bool, bound: Option<Binding> },
}

/// The memory of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    /// Key of the region.
    pub region: u32,
    /// Address in the region at which the window begins.
    pub base: u64,
    /// Type 2: the only QP that may use it.
    pub qpn: Option<u32>,
}

/// True if `granted` lets a peer write while the rights of the region, `own`, do not include local write (IBTA 10.6.3).
pub(super) fn grants_too_much(granted: u32, own: u32) -> bool {
    granted & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) != 0 && own & ACCESS_LOCAL_WRITE == 0
}

/// Last address of a region. For an empty region this is its first address, which gives access to no byte.
pub(super) fn last_byte(first: u64, length: u64) -> Option<u64> {
    first.checked_add(length.saturating_sub(1))
}

fn check_access(access: u32) -> Result<(), Status> {
    if access & !KNOWN_ACCESS != 0 || grants_too_much(access, access) {
        return Err(Status::BadAccess);
    }
    Ok(())
}

/// A memory key as the device sees it.
#[derive(Debug)]
pub struct Mkey {
    /// The whole key: index and variant.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    pub(super) kind: Kind,
    pub(super) access: u32,
    pub(super) iova: u64,
    pub(super) length: u64,
    /// None: the DMA address is the address plus `base`, or the key is a window.
    pub(super) table: Option<PageTable>,
    pub(super) base: u64,
    /// The share of the budget that the table takes.
    pub(super) held: Option<Held>,
    /// Windows that are bound to it.
    pub(super) windows: References,
    /// Stamp of its lines in the translation cache: new whenever the page table changes.
    pub(super) epoch: u64,
}

impl Mkey {
    /// Number of entries that are present, and bytes of the page table.
    pub(crate) fn occupancy(&self) -> (u32, u64) {
        let table = self.table.as_ref();
        table.map_or((0, 0), |table| (table.present(), table.allocated() as u64))
    }

    /// First address, as users of the key specify it.
    pub(crate) fn first_address(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// `ACCESS_*`.
    pub(crate) fn access_flags(&self) -> u32 {
        self.access
    }

    /// A key without rights and memory.
    fn new(pd: u32, kind: Kind) -> Self {
        Self {
            key: 0,
            pd,
            kind,
            access: 0,
            iova: 0,
            length: 0,
            table: None,
            base: 0,
            held: None,
            windows: References::default(),
            epoch: 0,
        }
    }

    /// Checks a CREATE_MKEY command; the key itself is filled in by [`Mkeys::create`](super::Mkeys::create).
    pub(super) fn parse(cmd: &CreateMkey, on_demand: bool) -> Result<Self, Status> {
        let (access, flags) = (cmd.access.get(), cmd.flags.get());
        let (iova, length) = (cmd.iova.get(), cmd.length.get());
        if let Some(kind) = Self::parse_kind(flags, length)? {
            if access != 0 || iova != 0 || cmd.reserved != [0; 18] {
                return Err(Status::ReservedNotZero);
            }
            let table = matches!(kind, Kind::Fast { .. }).then(|| PageTable::new(0, 0));
            return Ok(Self {
                table,
                ..Self::new(cmd.pd.get(), kind)
            });
        }
        check_access(access)?;
        if access & ACCESS_ON_DEMAND != 0 && !on_demand {
            return Err(Status::NotSupported);
        }
        let contradicts = access & ACCESS_ON_DEMAND != 0 && flags & MKEY_PHYSICAL != 0;
        if flags & !(MKEY_PHYSICAL | MKEY_KEEP_PAGES) != 0 || contradicts {
            return Err(Status::BadParameter);
        }
        if cmd.reserved != [0; 18] {
            return Err(Status::ReservedNotZero);
        }
        let physical = flags & MKEY_PHYSICAL != 0;
        let length = match (physical, length) {
            (true, 0) if iova == u64::MAX => return Err(Status::BadRange),
            (true, 0) => u64::MAX.saturating_sub(iova),
            (_, length) => length,
        };
        let last = last_byte(iova, length).ok_or(Status::BadRange)?;
        if !physical && !(PAGE_SHIFT..=30).contains(&cmd.page_shift) {
            return Err(Status::BadPageSize);
        }
        Ok(Self {
            access,
            iova,
            length,
            table: (!physical).then(|| PageTable::new(iova, last)),
            ..Self::new(cmd.pd.get(), Kind::Region)
        })
    }

    /// Checks a CREATE_DM_MKEY command; the key itself is filled in by [`Mkeys::create_device`](super::Mkeys::create_device).
    pub(super) fn parse_device(cmd: &CreateDmMkey, base: u64) -> Result<Self, Status> {
        if cmd.reserved != [0; 3] || cmd.reserved1.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let access = cmd.access.get();
        check_access(access)?;
        if access & (ACCESS_ON_DEMAND | ACCESS_MW_BIND) != 0 {
            return Err(Status::BadAccess);
        }
        // An address that is aligned for the peer must be aligned in memory.
        if access & ACCESS_REMOTE_ATOMIC != 0 && !cmd.offset.get().is_multiple_of(8) {
            return Err(Status::BadRange);
        }
        let kind = Kind::Device { dm: cmd.dm.get() };
        Ok(Self {
            access,
            length: cmd.length.get(),
            base,
            ..Self::new(cmd.pd.get(), kind)
        })
    }

    /// The kind that the flags name, if it is one whose memory work requests set.
    fn parse_kind(flags: u32, length: u64) -> Result<Option<Kind>, Status> {
        let window = |two| match length {
            0 => Ok(Some(Kind::Window { two, bound: None })),
            _ => Err(Status::BadRange),
        };
        match flags {
            MKEY_FAST_REG => match u32::try_from(length) {
                Ok(max_pages @ 1..=MAX_FAST_REG_PAGES) => Ok(Some(Kind::Fast {
                    max_pages,
                    valid: false,
                })),
                _ => Err(Status::BadRange),
            },
            MKEY_WINDOW_1 => window(false),
            MKEY_WINDOW_2 => window(true),
            _ => Ok(None),
        }
    }

    /// Checks that MAP and INVALIDATE apply to the key.
    pub(super) fn mapped_by_driver(&self) -> Result<(), Status> {
        match self.kind {
            Kind::Region => Ok(()),
            _ => Err(Status::BadMkey),
        }
    }

    /// The allocation of device memory behind the key.
    pub(super) fn device_memory(&self) -> Option<u32> {
        match self.kind {
            Kind::Device { dm } => Some(dm),
            _ => None,
        }
    }

    /// Charges the size of the page table to the budget.
    pub(super) fn account(&mut self, budget: &Budget) {
        let bytes = self.table.as_ref().map_or(0, PageTable::allocated);
        self.held.get_or_insert_with(|| budget.none()).set(bytes);
    }

    /// The work on the page table since the last call.
    pub(super) fn take_work(&mut self) -> u64 {
        self.table.as_mut().map_or(0, PageTable::take_work)
    }

    /// Returns true if a present entry was replaced since the last call.
    pub(super) fn take_replaced(&mut self) -> bool {
        self.table.as_mut().is_some_and(PageTable::take_replaced)
    }

    /// The difference between an address in the page table and the same address as users of the key specify it.
    pub(super) fn shift(&self) -> u64 {
        match self.access & ACCESS_ZERO_BASED {
            0 => 0,
            _ => self.iova,
        }
    }

    /// The first address, as users of the key specify it.
    pub(super) fn first(&self) -> u64 {
        self.iova.wrapping_sub(self.shift())
    }

    /// Offset of a range in the region, if all of it lies inside. Nothing here can wrap.
    pub(super) fn check_bounds(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.checked_sub(self.iova)?;
        let left = self.length.checked_sub(offset)?;
        (len <= left).then_some(offset)
    }

    /// The address in the page table of an address that users of the key specify. `None`: the key has no such address.
    pub(crate) fn address_in_table(&self, va: u64) -> Option<u64> {
        va.checked_add(self.shift())
    }

    /// Whether all of a range of the page table lies inside of the region.
    pub(crate) fn covers(&self, va: u64, len: u64) -> bool {
        self.check_bounds(va, len).is_some()
    }

    /// True for a region whose pages may be absent.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.access & ACCESS_ON_DEMAND != 0
    }

    /// The reason for a missing or read-only page at `va`.
    pub(super) fn miss(&self, va: u64, bytes: u32, access: Access) -> Miss {
        if !self.is_on_demand() {
            return Miss::NotPresent(va);
        }
        Miss::Absent(Absent {
            key: self.key,
            va,
            named: va,
            bytes,
            write: access.writes(),
        })
    }

    /// Checks the access right and the bounds of a range.
    #[inline]
    pub(super) fn check(&self, va: u64, len: u32, access: Access) -> Result<(), Miss> {
        let right = access.right();
        if self.access & right != right {
            return Err(Miss::Access);
        }
        self.check_bounds(va, u64::from(len))
            .map(drop)
            .ok_or(Miss::Bounds)
    }

    /// Writes the entries of pages: `entry` returns the entry of the n-th page. Returns the number of leaves written.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a region that wraps is not created, and the pages are compared with it before one is mapped"
    )]
    pub(super) fn map(
        &mut self,
        pages: &PageRange,
        mut entry: impl FnMut(u64) -> u64,
    ) -> Result<u32, Status> {
        let PageRange {
            iova,
            page_shift,
            count,
            only_present,
        } = *pages;
        let Some(table) = &mut self.table else {
            return Err(Status::BadMkey);
        };
        let page_size = 1u64 << page_shift;
        if iova & (page_size - 1) != 0 {
            return Err(Status::BadPageSize);
        }
        let leaves = count
            .checked_mul(1 << leaves_per_page(page_shift))
            .ok_or(Status::BadRange)?;
        let bytes = count.checked_mul(page_size).ok_or(Status::BadRange)?;
        if self.length == 0 {
            return Err(Status::BadRange);
        }
        // The first and the last page may extend beyond a region that does not begin or end at a page boundary.
        let region = (self.iova, self.iova + (self.length - 1));
        let region_first = region.0 & !(page_size - 1);
        let region_last = region.1 | (page_size - 1);
        let last = iova
            .checked_add(bytes.wrapping_sub(1))
            .ok_or(Status::BadRange)?;
        if count == 0 || leaves > MAX_LEAVES_PER_MAP || iova < region_first || last > region_last {
            return Err(Status::BadRange);
        }
        if page_shift == PAGE_SHIFT && !only_present {
            table.map_pages(iova, count, entry);
            return Ok(low32(count));
        }
        let mut written = 0;
        for page in 0..count {
            let value = entry(page);
            if value & tq::ADDR_MASK & (page_size - 1) != 0 {
                return Err(Status::BadPageSize);
            }
            let va = iova + (page << page_shift);
            written += table.map_page(va, page_shift, value, region, only_present);
        }
        Ok(written)
    }

    /// Removes the entries of a range, and returns their number.
    pub(super) fn invalidate(&mut self, iova: u64, length: u64) -> Result<u32, Status> {
        let Some(table) = &mut self.table else {
            return Err(Status::BadMkey);
        };
        let last = length
            .checked_sub(1)
            .and_then(|n| iova.checked_add(n))
            .ok_or(Status::BadRange)?;
        let end = self.iova.saturating_add(self.length.saturating_sub(1));
        let (region_first, region_last) = (self.iova & !0xfff, end | 0xfff);
        // A notifier's range may be larger than the region: the overlap is removed.
        if self.length == 0 || last < region_first || iova > region_last {
            return Ok(0);
        }
        Ok(table.invalidate(iova.max(region_first), last.min(region_last)))
    }
}
