//! Memory keys: what a key lets whom do, and where its bytes are.

use std::collections::BTreeSet;

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

use crate::budget::{Budget, Held};
use crate::frame::{Segments, follows, push_segment};
use crate::page_table::{self, Nodes, PAGE_SHIFT, PageTable, leaves_per_page};
use crate::table::Table;
use crate::tlb::Tlb;
use crate::work::{self, Meter};

mod local;

pub(crate) use local::{Bind, Register, Unchanged};

/// Rights that CREATE_MKEY knows.
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

/// Largest number of leaves that one MAP command may write: 1 GiB of 4 KiB pages.
pub(crate) const MAX_LEAVES_PER_MAP: u64 = work::TURN;

/// Largest number of pages of a fast registration: a list of 16 KiB.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 2048;

/// Pages that [`Mkeys::ranges`] looks at, and pieces that it gives.
const MAX_RANGE_LOOKUPS: u32 = 1 << 14;
const MAX_RANGES: usize = 256;

/// Who shows a key: a QP, and the domain it does so for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// Protection domain.
    pub pd: u32,
    /// Queue pair.
    pub qpn: u32,
}

/// The kind of access that a work request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Gather for a request of this NIC.
    LocalRead,
    /// Scatter a receive or a response.
    LocalWrite,
    /// A peer's WRITE.
    RemoteWrite,
    /// A peer's READ.
    RemoteRead,
    /// A peer's atomic.
    RemoteAtomic,
    /// A peer's FLUSH that makes data visible.
    FlushGlobal,
    /// A peer's FLUSH that makes data durable.
    FlushPersistent,
}

impl Access {
    fn right(self) -> u32 {
        match self {
            Self::LocalRead => 0,
            Self::LocalWrite => ACCESS_LOCAL_WRITE,
            Self::RemoteWrite => ACCESS_REMOTE_WRITE,
            Self::RemoteRead => ACCESS_REMOTE_READ,
            Self::RemoteAtomic => ACCESS_REMOTE_ATOMIC,
            Self::FlushGlobal => ACCESS_FLUSH_GLOBAL,
            Self::FlushPersistent => ACCESS_FLUSH_PERSISTENT,
        }
    }

    fn is_remote(self) -> bool {
        !matches!(self, Self::LocalRead | Self::LocalWrite)
    }

    /// Whether the memory is changed.
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::LocalWrite | Self::RemoteWrite | Self::RemoteAtomic
        )
    }
}

/// Why a translation has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// No such key, or an old variant of it.
    Key,
    /// The key belongs to another protection domain.
    Pd,
    /// The key does not give the right.
    Access,
    /// The range leaves the region.
    Bounds,
    /// The page at this address of a pinned region has no entry, or none that may be written.
    NotPresent(u64),
    /// The same in a region on demand: not an error, but a page fault.
    Absent(Absent),
}

impl Miss {
    /// As seen by somebody for whom addresses are so much smaller.
    fn named(self, shift: u64) -> Self {
        match self {
            Self::Absent(absent) => Self::Absent(Absent {
                named: absent.va.wrapping_sub(shift),
                ..absent
            }),
            other => other,
        }
    }
}

/// Bytes of a region on demand that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The region's key.
    pub key: u32,
    /// The first of them, as the driver counts.
    pub va: u64,
    /// The same as whoever asked for it counts: a window or a region may begin at 0 for him.
    pub named: u64,
    /// How many were asked for from there on.
    pub bytes: u32,
    /// They are to be written.
    pub write: bool,
}

/// What a key stands for.
#[derive(Debug)]
enum Kind {
    /// Memory that the driver has registered.
    Region,
    /// Memory that a work request registers, and another one gives up.
    Fast { max_pages: u32, valid: bool },
    /// Memory of the device.
    Device { dm: u32 },
    /// A part of a region.
    Window { two: bool, bound: Option<Binding> },
}

/// The memory of a window.
#[derive(Clone, Copy, Debug)]
struct Binding {
    /// Key of the region.
    region: u32,
    /// Where in it the window begins.
    base: u64,
    /// Type 2: the only QP that may use it.
    qpn: Option<u32>,
}

/// IBTA 10.6.3: whoever lets others write must be able to write. `own` are the rights of who gives `granted`.
fn grants_too_much(granted: u32, own: u32) -> bool {
    granted & (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC) != 0 && own & ACCESS_LOCAL_WRITE == 0
}

/// Last address of a region. An empty one may begin anywhere; of such a region it is the first address, and none can be used.
fn last_byte(first: u64, length: u64) -> Option<u64> {
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
    kind: Kind,
    access: u32,
    iova: u64,
    length: u64,
    /// None: addresses and `base` make DMA addresses, or it is a window.
    table: Option<PageTable>,
    base: u64,
    /// What the table takes of the budget.
    held: Option<Held>,
    /// Windows that are bound to it.
    windows: u32,
    /// Stamp of its lines in the translation cache: new whenever the page table changes.
    epoch: u64,
}

impl Mkey {
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
            windows: 0,
            epoch: 0,
        }
    }

    /// Checks a CREATE_MKEY command; the key itself is filled in by [`Mkeys::create`].
    fn parse(cmd: &CreateMkey, on_demand: bool) -> Result<Self, Status> {
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
            (true, 0) => u64::MAX - iova,
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

    /// Checks a CREATE_DM_MKEY command; the key itself is filled in by [`Mkeys::create_device`].
    fn parse_device(cmd: &CreateDmMkey, base: u64) -> Result<Self, Status> {
        if cmd.reserved != [0; 3] || cmd.reserved1.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let access = cmd.access.get();
        check_access(access)?;
        if access & (ACCESS_ON_DEMAND | ACCESS_MW_BIND) != 0 {
            return Err(Status::BadAccess);
        }
        // What is aligned for the peer must be so in memory.
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

    /// The kind that the flags name, if it is one whose memory comes by work requests.
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

    fn mapped_by_driver(&self) -> Result<(), Status> {
        match self.kind {
            Kind::Region => Ok(()),
            _ => Err(Status::BadMkey),
        }
    }

    /// The allocation of device memory that it is for.
    fn device_memory(&self) -> Option<u32> {
        match self.kind {
            Kind::Device { dm } => Some(dm),
            _ => None,
        }
    }

    /// Has the budget know how large the page table is.
    fn account(&mut self, budget: &Budget) {
        let bytes = self.table.as_ref().map_or(0, PageTable::allocated);
        self.held.get_or_insert_with(|| budget.none()).set(bytes);
    }

    /// What has been done with the page table since the last call.
    fn take_work(&mut self) -> u64 {
        self.table.as_mut().map_or(0, PageTable::take_work)
    }

    /// What is added to an address of a region or allocation to get that in its page table.
    fn shift(&self) -> u64 {
        match self.access & ACCESS_ZERO_BASED {
            0 => 0,
            _ => self.iova,
        }
    }

    /// Its first address, as whoever uses it counts.
    fn first(&self) -> u64 {
        self.iova - self.shift()
    }

    // Offset of a range in the region, if all of it lies inside. Nothing here can wrap.
    fn check_bounds(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.checked_sub(self.iova)?;
        (offset <= self.length && len <= self.length - offset).then_some(offset)
    }

    /// Appends the pieces of guest memory behind a range that has been checked, until `out` has `room` of them.
    /// Gives the number of bytes for which there was room.
    #[inline]
    fn walk(
        &self,
        va: u64,
        len: u32,
        access: Access,
        room: usize,
        tlb: &Tlb,
        out: &mut Segments,
    ) -> Result<u32, Miss> {
        let Some(table) = &self.table else {
            push_segment(out, self.base.wrapping_add(va), len);
            return Ok(len);
        };
        let (mut va, mut left) = (va, u64::from(len));
        while left > 0 {
            let leaf = tlb
                .lookup(self.epoch, va, || table.lookup(va))
                .filter(|leaf| leaf.writable || !access.writes())
                .ok_or_else(|| self.miss(va, left as u32, access))?;
            let n = leaf.len.min(left);
            if out.len() >= room && !follows(out, leaf.addr) {
                break;
            }
            push_segment(out, leaf.addr, n as u32);
            left -= n;
            // Only a region that ends at the last address can wrap, and then `left` is zero.
            va = va.wrapping_add(n);
        }
        Ok(len - left as u32)
    }

    fn miss(&self, va: u64, bytes: u32, access: Access) -> Miss {
        if self.access & ACCESS_ON_DEMAND == 0 {
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

    /// Whether all pages of a range that has been checked are there, as far as that is not certain anyway: those
    /// of pinned regions are. `looked` is called for each page that is looked at.
    fn require(
        &self,
        va: u64,
        len: u32,
        access: Access,
        mut looked: impl FnMut(),
    ) -> Result<(), Miss> {
        let Some(table) = &self.table else {
            return Ok(());
        };
        if self.access & ACCESS_ON_DEMAND == 0 {
            return Ok(());
        }
        let (mut va, mut left) = (va, u64::from(len));
        while left > 0 {
            looked();
            let leaf = table
                .lookup(va)
                .filter(|leaf| leaf.writable || !access.writes())
                .ok_or_else(|| self.miss(va, left as u32, access))?;
            let n = leaf.len.min(left);
            left -= n;
            va = va.wrapping_add(n);
        }
        Ok(())
    }

    /// Whether the key gives the right to a range.
    fn check(&self, va: u64, len: u32, access: Access) -> Result<(), Miss> {
        let right = access.right();
        if self.access & right != right {
            return Err(Miss::Access);
        }
        self.check_bounds(va, u64::from(len))
            .map(drop)
            .ok_or(Miss::Bounds)
    }

    /// Pages of 2^`page_shift` bytes from `iova` on get the entries that `entry` gives; with `only_present`
    /// those that have one.
    fn map(
        &mut self,
        iova: u64,
        page_shift: u8,
        count: u64,
        only_present: bool,
        mut entry: impl FnMut(u64) -> u64,
    ) -> Result<u32, Status> {
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
        // The first and last page may stick out of a region that does not begin or end at a page.
        let region = (self.iova, self.iova + (self.length - 1));
        let region_first = region.0 & !(page_size - 1);
        let region_last = region.1 | (page_size - 1);
        let last = iova
            .checked_add(bytes.wrapping_sub(1))
            .ok_or(Status::BadRange)?;
        if count == 0 || leaves > MAX_LEAVES_PER_MAP || iova < region_first || last > region_last {
            return Err(Status::BadRange);
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

    fn invalidate(&mut self, iova: u64, length: u64) -> Result<u32, Status> {
        let Some(table) = &mut self.table else {
            return Err(Status::BadMkey);
        };
        let last = length
            .checked_sub(1)
            .and_then(|n| iova.checked_add(n))
            .ok_or(Status::BadRange)?;
        let end = self.iova + self.length.saturating_sub(1);
        let (region_first, region_last) = (self.iova & !0xfff, end | 0xfff);
        // A notifier's range may be larger than the region; what overlaps goes.
        if self.length == 0 || last < region_first || iova > region_last {
            return Ok(0);
        }
        Ok(table.invalidate(iova.max(region_first), last.min(region_last)))
    }
}

/// What is left of a key.
#[derive(Clone, Copy, Debug)]
pub struct Destroyed {
    /// Its protection domain.
    pub pd: u32,
    /// The allocation of device memory that it was for.
    pub device_memory: Option<u32>,
}

/// All memory keys of a NIC.
#[derive(Debug)]
pub struct Mkeys {
    table: Table<Mkey>,
    /// In front of the page tables of all keys.
    pub(crate) tlb: Tlb,
    /// The newest stamp of any region.
    epoch: u64,
    on_demand: bool,
    /// A list of pages that is being registered.
    list: Vec<u64>,
    /// What all page tables together may take.
    budget: Budget,
    /// Page tables whose keys are gone, and what they take of the budget until they are freed.
    old_tables: Vec<(Nodes, Held)>,
    /// Windows of type 2 by the QP that they are bound to.
    by_qp: BTreeSet<(u32, u32)>,
    /// The QP that is about to go: it gets no more windows.
    closing: Option<u32>,
    /// See [`Mkeys::work`].
    work: Meter,
}

impl Mkeys {
    /// Room for `max` keys, those of regions on demand among them if these are offered.
    pub fn new(max: u32, on_demand: bool, budget: Budget) -> Self {
        Self {
            table: Table::new(max, 1),
            tlb: Tlb::new(),
            epoch: 0,
            on_demand,
            list: Vec::new(),
            budget,
            old_tables: Vec::new(),
            by_qp: BTreeSet::new(),
            closing: None,
            work: Meter::default(),
        }
    }

    /// Makes a key. The protection domain has been checked.
    pub fn create(&mut self, cmd: &CreateMkey) -> Result<u32, Status> {
        if cmd.flags.get() & MKEY_KEEP_PAGES != 0 {
            return Err(Status::BadParameter);
        }
        let mkey = Mkey::parse(cmd, self.on_demand)?;
        // A program may bind it with the key that it has now, of which it names the low byte only.
        let variant = match mkey.kind {
            Kind::Window { two: true, .. } => 0,
            _ => cmd.variant,
        };
        self.insert(mkey, variant)
    }

    /// Makes a key for device memory that is at `base`. The protection domain has been checked.
    pub fn create_device(&mut self, cmd: &CreateDmMkey, base: u64) -> Result<u32, Status> {
        let mkey = Mkey::parse_device(cmd, base)?;
        self.insert(mkey, cmd.variant)
    }

    fn insert(&mut self, mkey: Mkey, variant: u8) -> Result<u32, Status> {
        let variant = u32::from(variant);
        let epoch = self.next_epoch();
        let make = |index: u32| Mkey {
            key: (index << 8) | variant,
            epoch,
            ..mkey
        };
        let index = self.table.insert_with(make).ok_or(Status::NoResources)?;
        Ok((index << 8) | variant)
    }

    /// Makes another region of a key, which keeps its number. The protection domain has been checked; gives the
    /// old one.
    pub fn modify(&mut self, key: u32, cmd: &CreateMkey) -> Result<u32, Status> {
        let new = Mkey::parse(cmd, self.on_demand)?;
        let epoch = self.next_epoch();
        let old = self.get_mut(key).ok_or(Status::BadMkey)?;
        if !matches!((&old.kind, &new.kind), (Kind::Region, Kind::Region)) {
            return Err(Status::BadMkey);
        }
        if old.windows > 0 {
            return Err(Status::InUse);
        }
        let keep = cmd.flags.get() & MKEY_KEEP_PAGES != 0;
        if keep && (new.iova, new.length) != (old.iova, old.length) {
            return Err(Status::BadRange);
        }
        let pd = old.pd;
        let (table, held) = match keep {
            true => (old.table.take(), old.held.take()),
            false => (new.table, None),
        };
        let gone = std::mem::replace(
            old,
            Mkey {
                key,
                epoch,
                table,
                held,
                ..new
            },
        );
        self.drop_table(gone);
        Ok(pd)
    }

    /// Takes a key out of service. That of a window or a fast registration goes with any variant: work requests
    /// change it.
    pub fn destroy(&mut self, key: u32) -> Result<Destroyed, Status> {
        let mkey = self.table.get(key >> 8).ok_or(Status::BadMkey)?;
        if mkey.key != key && matches!(mkey.kind, Kind::Region | Kind::Device { .. }) {
            return Err(Status::BadMkey);
        }
        // IBTA 10.6.7.2.5: a region outlives its windows.
        if mkey.windows > 0 {
            return Err(Status::InUse);
        }
        self.unbind(key >> 8);
        let mkey = self.table.remove(key >> 8).ok_or(Status::BadMkey)?;
        let destroyed = Destroyed {
            pd: mkey.pd,
            device_memory: mkey.device_memory(),
        };
        self.drop_table(mkey);
        Ok(destroyed)
    }

    /// The page table of a key that is gone is freed in turns: it may be large.
    fn drop_table(&mut self, mkey: Mkey) {
        if let (Some(table), Some(held)) = (mkey.table, mkey.held) {
            self.old_tables.push((table.into_nodes(), held));
        }
    }

    /// Frees page tables whose keys are gone, about as many as there is time for in a turn. Gives whether all are freed.
    pub(crate) fn free_old_tables(&mut self) -> bool {
        let end = self.work.get() + work::TURN;
        while let Some((nodes, held)) = self.old_tables.last_mut() {
            while nodes.pop().is_some() {
                work::count_steps(1);
                self.work.add(work::FREE);
                if self.work.get() >= end {
                    held.set(page_table::bytes(nodes));
                    return false;
                }
            }
            self.old_tables.pop();
        }
        true
    }

    /// Looks up by index and compares all 32 bits.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&Mkey> {
        self.table.get(key >> 8).filter(|mkey| mkey.key == key)
    }

    // Stamps are never used twice, so that a line can't outlive its region either.
    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    fn get_mut(&mut self, key: u32) -> Option<&mut Mkey> {
        self.table.get_mut(key >> 8).filter(|mkey| mkey.key == key)
    }

    /// The region behind a range that a key stands for, and where in the region it begins, if the bearer may
    /// access it so.
    #[inline]
    fn find(
        &self,
        key: u32,
        bearer: Bearer,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<(&Mkey, u64), Miss> {
        let mkey = self.get(key).ok_or(Miss::Key)?;
        if mkey.pd != bearer.pd {
            return Err(Miss::Pd);
        }
        match &mkey.kind {
            Kind::Region | Kind::Device { .. } | Kind::Fast { valid: true, .. } => {
                let at = va.checked_add(mkey.shift()).ok_or(Miss::Bounds)?;
                mkey.check(at, len, access)?;
                Ok((mkey, at))
            }
            // A window has an rkey only.
            Kind::Window {
                bound: Some(bound), ..
            } if access.is_remote() && bound.qpn.is_none_or(|qpn| qpn == bearer.qpn) => {
                mkey.check(va, len, access)?;
                let region = self.get(bound.region).ok_or(Miss::Key)?;
                Ok((region, bound.base.wrapping_add(va - mkey.iova)))
            }
            _ => Err(Miss::Key),
        }
    }

    /// Appends the runs of guest memory behind a range that a key stands for.
    #[inline]
    pub fn translate(
        &self,
        key: u32,
        bearer: Bearer,
        va: u64,
        len: u32,
        access: Access,
        out: &mut Segments,
    ) -> Result<(), Miss> {
        let (region, at) = self.find(key, bearer, va, len, access)?;
        region
            .walk(at, len, access, usize::MAX, &self.tlb, out)
            .map(drop)
            .map_err(|miss| miss.named(at.wrapping_sub(va)))
    }

    /// As [`Mkeys::translate`], but for as much only as [`Segments`] hold without allocation. Gives the number
    /// of bytes.
    #[inline]
    pub fn translate_some(
        &self,
        key: u32,
        bearer: Bearer,
        va: u64,
        len: u32,
        access: Access,
        out: &mut Segments,
    ) -> Result<u32, Miss> {
        let room = out.inline_size();
        let (region, at) = self.find(key, bearer, va, len, access)?;
        region
            .walk(at, len, access, room, &self.tlb, out)
            .map_err(|miss| miss.named(at.wrapping_sub(va)))
    }

    /// Whether a range may be accessed and all of it is there.
    pub fn require(
        &self,
        key: u32,
        bearer: Bearer,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<(), Miss> {
        let (region, at) = self.find(key, bearer, va, len, access)?;
        region
            .require(at, len, access, || self.work.add(work::PAGE))
            .map_err(|miss| miss.named(at.wrapping_sub(va)))
    }

    /// Whether a range may be accessed at all, pages present or not.
    pub fn check(
        &self,
        key: u32,
        bearer: Bearer,
        va: u64,
        len: u32,
        access: Access,
    ) -> Result<(), Miss> {
        self.find(key, bearer, va, len, access).map(drop)
    }

    /// Whether a range, or (None) all that a key stands for, may be flushed so.
    pub fn check_flush(
        &self,
        key: u32,
        bearer: Bearer,
        range: Option<(u64, u32)>,
        access: Access,
    ) -> Result<(), Miss> {
        let first = self.get(key).ok_or(Miss::Key)?.first();
        let (va, len) = range.unwrap_or((first, 0));
        self.check(key, bearer, va, len, access)
    }

    /// Guest memory (address, bytes) behind a range or (None) behind all that a key stands for, as far as it is there.
    /// None if that is too much to say: in too many pieces, or in a region with too many pages.
    pub fn ranges(
        &self,
        key: u32,
        bearer: Bearer,
        range: Option<(u64, u32)>,
        access: Access,
    ) -> Option<Vec<(u64, u64)>> {
        let named = self.get(key)?;
        let (va, len) = match range {
            Some((va, len)) => (va, u64::from(len)),
            None => (named.first(), named.length),
        };
        let (region, mut at) = self.find(key, bearer, va, 0, access).ok()?;
        let Some(table) = &region.table else {
            return Some(vec![(region.base.wrapping_add(at), len)]);
        };
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut left = len;
        for _ in 0..MAX_RANGE_LOOKUPS {
            if left == 0 {
                return (ranges.len() <= MAX_RANGES).then_some(ranges);
            }
            self.work.add(work::PAGE);
            let leaf = table.lookup(at);
            // To the next page, where there is none.
            let step = leaf.map_or(4096 - (at & 4095), |leaf| leaf.len).min(left);
            match (leaf, ranges.last_mut()) {
                (None, _) => {}
                (Some(leaf), Some((addr, len))) if addr.wrapping_add(*len) == leaf.addr => {
                    *len += step;
                }
                (Some(leaf), _) => ranges.push((leaf.addr, step)),
            }
            at = at.wrapping_add(step);
            left -= step;
        }
        None
    }

    /// MAP and REPLACE of the translation queue; `entry` gives the page entry of the n-th page.
    pub fn map(
        &mut self,
        key: u32,
        iova: u64,
        page_shift: u8,
        count: u64,
        only_present: bool,
        entry: impl FnMut(u64) -> u64,
    ) -> Result<u32, Status> {
        if !(PAGE_SHIFT..=30).contains(&page_shift) {
            return Err(Status::BadPageSize);
        }
        // One command may go beyond the limit, by its own leaves.
        if self.budget.is_spent() {
            return Err(Status::NoResources);
        }
        let (epoch, budget) = (self.next_epoch(), self.budget.clone());
        let mkey = self.get_mut(key).ok_or(Status::BadMkey)?;
        mkey.mapped_by_driver()?;
        mkey.epoch = epoch;
        let mapped = mkey.map(iova, page_shift, count, only_present, entry);
        mkey.account(&budget);
        let work = mkey.take_work();
        self.work.add(work);
        mapped
    }

    /// INVALIDATE of the translation queue.
    pub fn invalidate(&mut self, key: u32, iova: u64, length: u64) -> Result<u32, Status> {
        let epoch = self.next_epoch();
        let mkey = self.get_mut(key).ok_or(Status::BadMkey)?;
        mkey.mapped_by_driver()?;
        mkey.epoch = epoch;
        let removed = mkey.invalidate(iova, length)?;
        let work = mkey.take_work();
        self.work.add(work);
        Ok(removed)
    }

    /// What has been done with page tables so far, in the unit of [`crate::Nic::work`], but for the look-ups of data that is
    /// copied.
    pub fn work(&self) -> u64 {
        self.work.get()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_abi::{U32, U64};

    fn of(pd: u32) -> Bearer {
        Bearer { pd, qpn: 5 }
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
            keys.check(key, of(2), 0x1000, 1, Access::LocalRead),
            Err(Miss::Pd)
        );
    }

    #[test]
    fn a_key_is_changed_and_keeps_its_number_and_its_pages_if_asked() {
        let (mut keys, key) = rw_region(0x1000, 4096);
        keys.map(key, 0x1000, 12, 1, false, |_| 0x5000 | RW)
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
            keys.translate(key, of(2), 0x1000, 8, access, &mut out),
            Ok(())
        );
        let access = Access::RemoteWrite;
        assert_eq!(keys.check(key, of(2), 0x1000, 8, access), Err(Miss::Access));
        assert_eq!(keys.check(key, of(1), 0x1000, 8, access), Err(Miss::Pd));
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
        assert_eq!(keys.check(key, of(1), 0x1000, 8, access), Err(Miss::Bounds));
        assert_eq!(
            keys.translate(key, of(1), 0x9000, 8, access, &mut out),
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
                keys.check(key, of(1), va, len, Access::LocalRead),
                Err(Miss::Bounds),
                "{va:#x}"
            );
        }
        assert_eq!(keys.check(key, of(1), 0x2000, 0, Access::LocalRead), Ok(()));
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
            keys.check(key, of(1), 0, 8, Access::RemoteRead),
            Err(Miss::Access)
        );
        assert_eq!(keys.check(key, of(1), 0, 8, Access::RemoteWrite), Ok(()));
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
            keys.map(key, 0x10_0000, 12, 4, false, |n| pages[n as usize] | RW),
            Ok(4)
        );
        let mut out = Segments::new();
        keys.translate(key, of(1), 0x10_0810, 0x2000, Access::LocalWrite, &mut out)
            .unwrap();
        let found: Vec<_> = out.iter().map(|s| (s.addr, s.len)).collect();
        assert_eq!(found, [(0x5810, 0x17f0), (0x9000, 0x810)]);
        // The fifth page would begin after the region's end.
        assert_eq!(
            keys.map(key, 0x10_0000, 12, 5, false, |_| 0x5000 | RW),
            Err(Status::BadRange)
        );
        assert_eq!(
            keys.map(key, 0xf_f000, 12, 1, false, |_| 0x5000 | RW),
            Err(Status::BadRange)
        );
        assert_eq!(keys.invalidate(key, 0, u64::MAX), Ok(4));
        let miss = keys.translate(key, of(1), 0x10_0810, 8, Access::LocalWrite, &mut out);
        assert_eq!(miss, Err(Miss::NotPresent(0x10_0810)));
    }

    #[test]
    fn odd_page_sizes_and_short_regions_work() {
        let (mut keys, key) = rw_region(0x40_0000, 0x2_0000);
        assert_eq!(
            keys.map(key, 0x40_0000, 16, 2, false, |n| ((n + 1) << 20) | RW),
            Ok(32)
        );
        let mut out = Segments::new();
        keys.translate(key, of(1), 0x41_0010, 0x100, Access::LocalRead, &mut out)
            .unwrap();
        assert_eq!((out[0].addr, out[0].len), (0x20_0010, 0x100));
        // A region of 8 KiB inside a 2 MiB page.
        let (mut keys, key) = rw_region(0x40_3000, 0x2000);
        assert!(
            keys.map(key, 0x40_0000, 21, 1, false, |_| (1 << 21) | RW)
                .is_ok()
        );
        out.clear();
        keys.translate(key, of(1), 0x40_3000, 0x2000, Access::LocalRead, &mut out)
            .unwrap();
        assert_eq!((out[0].addr, out[0].len), ((1 << 21) + 0x3000, 0x2000));
    }

    #[test]
    fn read_only_pages_are_not_written() {
        let (mut keys, key) = rw_region(0, 4096);
        keys.map(key, 0, 12, 1, false, |_| 0x5000 | tq::READ)
            .unwrap();
        let mut out = Segments::new();
        assert!(
            keys.translate(key, of(1), 0, 8, Access::LocalRead, &mut out)
                .is_ok()
        );
        let miss = keys.translate(key, of(1), 0, 8, Access::RemoteWrite, &mut out);
        assert_eq!(miss, Err(Miss::NotPresent(0)));
    }
}
