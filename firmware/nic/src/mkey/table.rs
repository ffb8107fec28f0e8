//! All memory keys of a NIC: creation, changes and destruction, and the commands of the translation queue.

use std::collections::BTreeSet;

use faultline_abi::Status;
use faultline_abi::admin::{CreateMkey, MKEY_KEEP_PAGES};
use faultline_abi::device_memory::CreateDmMkey;

use super::access::PageRange;
use super::key::{Kind, Mkey};
use crate::budget::{Budget, Held};
use crate::page_table::{Nodes, PAGE_SHIFT};
use crate::table::Table;
use crate::tlb::Tlb;
use crate::work::{self, Meter};

/// The objects that a destroyed key referred to.
#[derive(Clone, Copy, Debug)]
pub struct Destroyed {
    /// Its protection domain.
    pub pd: u32,
    /// Its allocation of device memory.
    pub device_memory: Option<u32>,
}

/// All memory keys of a NIC.
#[derive(Debug)]
pub struct Mkeys {
    pub(super) table: Table<Mkey>,
    /// The translation cache in front of the page tables of all keys.
    pub(crate) tlb: Tlb,
    /// The last stamp that was used.
    epoch: u64,
    on_demand: bool,
    /// Buffer for the page list of a registration.
    pub(super) list: Vec<u64>,
    /// The budget of all page tables together.
    pub(super) budget: Budget,
    /// Page tables of destroyed keys, and the share of the budget that they hold until they are freed.
    old_tables: Vec<(Nodes, Held)>,
    /// Windows of type 2 by the QP that they are bound to.
    pub(super) by_qp: BTreeSet<(u32, u32)>,
    /// The QP that is being destroyed: no more windows are bound to it.
    pub(super) closing: Option<u32>,
    /// See [`Mkeys::work`].
    pub(super) work: Meter,
}

impl Mkeys {
    /// Room for `max` keys. `on_demand`: regions on demand are offered.
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

    /// Places of the table from `from` on, with the keys that have one.
    pub(crate) fn places(&self, from: u32) -> impl Iterator<Item = (u32, Option<(u32, &Mkey)>)> {
        self.table.places(from)
    }

    /// Creates a key. The protection domain has been checked.
    pub fn create(&mut self, cmd: &CreateMkey) -> Result<u32, Status> {
        if cmd.flags.get() & MKEY_KEEP_PAGES != 0 {
            return Err(Status::BadParameter);
        }
        let mkey = Mkey::parse(cmd, self.on_demand)?;
        // A program names only the low byte of the key when it binds the window.
        let variant = match mkey.kind {
            Kind::Window { two: true, .. } => 0,
            _ => cmd.variant,
        };
        self.insert(mkey, variant)
    }

    /// Creates a key for device memory at `base`. The protection domain has been checked.
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

    /// Changes a key to another region. The key keeps its number. The protection domain has been checked. Returns the
    /// old protection domain.
    pub fn modify(&mut self, key: u32, cmd: &CreateMkey) -> Result<u32, Status> {
        let new = Mkey::parse(cmd, self.on_demand)?;
        let epoch = self.next_epoch();
        let old = self.get_mut(key).ok_or(Status::BadMkey)?;
        if !matches!((&old.kind, &new.kind), (Kind::Region, Kind::Region)) {
            return Err(Status::BadMkey);
        }
        if old.windows.any() {
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
        let removed = std::mem::replace(
            old,
            Mkey {
                key,
                epoch,
                table,
                held,
                ..new
            },
        );
        self.drop_table(removed);
        Ok(pd)
    }

    /// Destroys a key. Windows and fast registrations are found with any variant, because work requests change it.
    pub fn destroy(&mut self, key: u32) -> Result<Destroyed, Status> {
        let mkey = self.table.get(key >> 8).ok_or(Status::BadMkey)?;
        if mkey.key != key && matches!(mkey.kind, Kind::Region | Kind::Device { .. }) {
            return Err(Status::BadMkey);
        }
        // IBTA 10.6.7.2.5: a region outlives its windows.
        if mkey.windows.any() {
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

    /// Keeps the page table of a destroyed key, which may be large and is freed in turns.
    fn drop_table(&mut self, mkey: Mkey) {
        if let (Some(table), Some(held)) = (mkey.table, mkey.held) {
            self.old_tables.push((table.into_nodes(), held));
        }
    }

    /// Frees page tables of destroyed keys, up to the limit of a turn. Returns true if all are freed.
    pub(crate) fn free_old_tables(&mut self) -> bool {
        let end = self.work.get().wrapping_add(work::TURN);
        while let Some((nodes, held)) = self.old_tables.last_mut() {
            while nodes.free_one() {
                work::count_steps(1);
                self.work.add(work::FREE);
                if self.work.get() >= end {
                    held.set(nodes.bytes());
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

    /// A new stamp. No stamp is used twice, so a line of the translation cache can't outlive its region.
    pub(super) fn next_epoch(&mut self) -> u64 {
        self.epoch = self.epoch.wrapping_add(1);
        self.epoch
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut Mkey> {
        self.table.get_mut(key >> 8).filter(|mkey| mkey.key == key)
    }

    /// MAP and REPLACE of the translation queue: `entry` returns the entry of the n-th page. Returns the number of
    /// leaves written.
    pub fn map(
        &mut self,
        key: u32,
        pages: &PageRange,
        entry: impl FnMut(u64) -> u64,
    ) -> Result<u32, Status> {
        if !(PAGE_SHIFT..=30).contains(&pages.page_shift) {
            return Err(Status::BadPageSize);
        }
        // One command may exceed the budget by its own leaves.
        if self.budget.is_spent() {
            return Err(Status::NoResources);
        }
        let (epoch, budget) = (self.next_epoch(), self.budget.clone());
        let mkey = self.get_mut(key).ok_or(Status::BadMkey)?;
        mkey.mapped_by_driver()?;
        let mapped = mkey.map(pages, entry);
        // Absent pages are not in the TLB, so it need not forget the region when they become present.
        if mkey.take_replaced() {
            mkey.epoch = epoch;
        }
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

    /// Total work on page tables, in the unit of [`crate::Nic::work`], without look-ups for copied data.
    #[inline]
    pub fn work(&self) -> u64 {
        self.work.get()
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}
