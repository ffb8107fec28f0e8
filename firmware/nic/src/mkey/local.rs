//! What work requests do to keys: fast registration, binding of windows, invalidation (IBTA 10.6.6, 10.6.7, 10.7.5).
//!
//! | key | free | valid |
//! |---|---|---|
//! | fast registration | REG_MR: valid, with a new variant | LOCAL_INV or SEND with invalidate: free |
//! | window of type 2 | BIND_MW: bound to region and QP, with a new variant | the same; or the QP goes: free |
//! | window of type 1 | BIND_MW: bound to the region | BIND_MW: bound anew, or free with length 0 |
//!
//! Whatever is refused changes nothing.

use faultline_abi::qp::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_LOCAL_WRITE, ACCESS_MW_BIND,
    ACCESS_ON_DEMAND, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
    ACCESS_ZERO_BASED,
};
use faultline_abi::translation as tq;

use super::{Bearer, Binding, Kind, MAX_LEAVES_PER_MAP, Mkey, Mkeys, grants_too_much, last_byte};
use crate::dma::Dma;
use crate::page_table::{PAGE_SHIFT, leaves_per_page};
use crate::work;

const REMOTE: u32 = ACCESS_REMOTE_WRITE
    | ACCESS_REMOTE_READ
    | ACCESS_REMOTE_ATOMIC
    | ACCESS_FLUSH_GLOBAL
    | ACCESS_FLUSH_PERSISTENT;

/// Why a key was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unchanged {
    /// No such key.
    Key,
    /// It belongs to another protection domain.
    Pd,
    /// It is of another kind, or not in the right state, or a window is bound to it.
    State,
    /// The rights are not to be had.
    Access,
    /// The range is not to be had.
    Bounds,
    /// The list can't be read.
    List,
}

/// WR_REG_MR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register {
    pub key: u32,
    pub access: u32,
    pub iova: u64,
    pub length: u64,
    /// DMA address of the page addresses.
    pub list: u64,
    pub num_pages: u32,
    pub page_shift: u32,
}

/// WR_BIND_MW.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    /// The window's key as it will be.
    pub rkey: u32,
    /// The region's.
    pub lkey: u32,
    pub access: u32,
    pub addr: u64,
    pub length: u64,
}

impl Mkeys {
    /// Gives a free key memory.
    pub(crate) fn register<M: Dma>(
        &mut self,
        pd: u32,
        what: &Register,
        mem: &M,
    ) -> Result<(), Unchanged> {
        let mkey = self.of_index(what.key, pd)?;
        let Kind::Fast { max_pages, valid } = mkey.kind else {
            return Err(Unchanged::State);
        };
        if valid {
            return Err(Unchanged::State);
        }
        let known = REMOTE | ACCESS_LOCAL_WRITE;
        if what.access & !known != 0 || grants_too_much(what.access, what.access) {
            return Err(Unchanged::Access);
        }
        let shift = what.page_shift;
        if !(u32::from(PAGE_SHIFT)..=30).contains(&shift) || what.num_pages > max_pages {
            return Err(Unchanged::Bounds);
        }
        let page = 1u64 << shift;
        let last = last_byte(what.iova, what.length).ok_or(Unchanged::Bounds)?;
        let offset = what.iova & (page - 1);
        // Neither less nor more pages than the range has.
        let pages = offset.checked_add(what.length).map(|n| n.div_ceil(page));
        if pages != Some(u64::from(what.num_pages)) {
            return Err(Unchanged::Bounds);
        }
        if self.budget.is_spent() {
            return Err(Unchanged::State);
        }
        // A page of another size may take many leaves.
        let leaves = u64::from(what.num_pages) << leaves_per_page(shift as u8);
        if leaves > MAX_LEAVES_PER_MAP {
            return Err(Unchanged::Bounds);
        }
        self.read_list(what, mem)?;
        self.work.add(u64::from(what.num_pages));
        if self.list.iter().any(|addr| addr & (page - 1) != 0) {
            return Err(Unchanged::Bounds);
        }
        let epoch = self.next_epoch();
        let list = std::mem::take(&mut self.list);
        let result = match self.table.get_mut(what.key >> 8) {
            Some(mkey) => {
                let taken = mkey.take_list(what, last, epoch, &list);
                mkey.account(&self.budget);
                self.work.add(mkey.take_work());
                taken
            }
            None => Err(Unchanged::Key),
        };
        self.list = list;
        result
    }

    fn read_list<M: Dma>(&mut self, what: &Register, mem: &M) -> Result<(), Unchanged> {
        let mut bytes = [0; 512];
        let mut left = what.num_pages as usize;
        let mut at = what.list;
        self.list.clear();
        while left > 0 {
            let n = left.min(bytes.len() / 8);
            let part = bytes.get_mut(..n * 8).ok_or(Unchanged::List)?;
            mem.read(at, part).map_err(|_| Unchanged::List)?;
            let words = part.as_chunks::<8>().0.iter();
            self.list
                .extend(words.map(|word| u64::from_le_bytes(*word)));
            at = at.checked_add(n as u64 * 8).ok_or(Unchanged::List)?;
            left -= n;
        }
        Ok(())
    }

    /// Gives a window memory of a region.
    pub(crate) fn bind(&mut self, bearer: Bearer, what: &Bind) -> Result<(), Unchanged> {
        let window = self.of_index(what.rkey, bearer.pd)?;
        let Kind::Window { two, bound } = window.kind else {
            return Err(Unchanged::State);
        };
        if two && (bound.is_some() || self.closing == Some(bearer.qpn)) {
            return Err(Unchanged::State);
        }
        let index = what.rkey >> 8;
        if !two && what.length == 0 {
            self.unbind(index);
            self.rename(what.rkey);
            return Ok(());
        }
        let zero_based = what.access & ACCESS_ZERO_BASED != 0;
        // Local write is customary here, and means nothing.
        let known = REMOTE | ACCESS_ZERO_BASED | ACCESS_LOCAL_WRITE;
        if what.access & !known != 0 || (zero_based && !two) {
            return Err(Unchanged::Access);
        }
        let base = self.check_region(bearer.pd, what)?;
        self.unbind(index);
        let region = what.lkey;
        let mkey = self.get_mut(region).ok_or(Unchanged::Key)?;
        mkey.windows += 1;
        let window = self.table.get_mut(index).ok_or(Unchanged::Key)?;
        let qpn = two.then_some(bearer.qpn);
        window.kind = Kind::Window {
            two,
            bound: Some(Binding { region, base, qpn }),
        };
        window.key = what.rkey;
        window.access = what.access & REMOTE;
        window.iova = if zero_based { 0 } else { what.addr };
        window.length = what.length;
        if two {
            self.by_qp.insert((bearer.qpn, index));
        }
        Ok(())
    }

    /// Whether a region of this domain lets a window be bound to this range; gives where in it that begins.
    fn check_region(&self, pd: u32, what: &Bind) -> Result<u64, Unchanged> {
        let region = self.get(what.lkey).ok_or(Unchanged::Key)?;
        if region.pd != pd {
            return Err(Unchanged::Pd);
        }
        let lasting = matches!(region.kind, Kind::Region | Kind::Fast { valid: true, .. });
        if !lasting || region.table.is_none() {
            return Err(Unchanged::State);
        }
        if region.access & ACCESS_MW_BIND == 0 || grants_too_much(what.access, region.access) {
            return Err(Unchanged::Access);
        }
        if what.length == 0 {
            return Err(Unchanged::Bounds);
        }
        let at = what.addr.checked_add(region.shift());
        at.filter(|at| region.check_bounds(*at, what.length).is_some())
            .ok_or(Unchanged::Bounds)
    }

    /// Takes the memory from a key for a peer: of what was not shown to peers it can't.
    pub(crate) fn invalidate_for_peer(
        &mut self,
        bearer: Bearer,
        key: u32,
    ) -> Result<(), Unchanged> {
        match self.get(key) {
            Some(mkey) if mkey.access & REMOTE == 0 => Err(Unchanged::Access),
            _ => self.invalidate_key(bearer, key),
        }
    }

    /// Takes the memory from a key: of a fast registration for anybody of its domain, of a window of type 2 for
    /// the QP that it is bound to.
    pub(crate) fn invalidate_key(&mut self, bearer: Bearer, key: u32) -> Result<(), Unchanged> {
        let mkey = self.get_mut(key).ok_or(Unchanged::Key)?;
        if mkey.pd != bearer.pd {
            return Err(Unchanged::Pd);
        }
        match &mut mkey.kind {
            Kind::Fast { valid, .. } if *valid && mkey.windows == 0 => {
                *valid = false;
                Ok(())
            }
            Kind::Window {
                two: true,
                bound: Some(bound),
            } if bound.qpn == Some(bearer.qpn) => {
                self.unbind(key >> 8);
                Ok(())
            }
            _ => Err(Unchanged::State),
        }
    }

    /// A QP goes, and its windows are freed: nobody else may inherit them. It may have many; gives whether all are free, or
    /// others must have their turn first.
    pub(crate) fn forget_qp(&mut self, qpn: u32) -> bool {
        let end = self.work.get() + work::TURN;
        self.closing = Some(qpn);
        while let Some(&(_, index)) = self.by_qp.range((qpn, 0)..=(qpn, u32::MAX)).next() {
            if self.work.get() >= end {
                return false;
            }
            self.work.add(work::FREE);
            self.unbind(index);
        }
        self.closing = None;
        true
    }

    /// Frees a window, if it is one and bound.
    pub(super) fn unbind(&mut self, index: u32) {
        let Some(mkey) = self.table.get_mut(index) else {
            return;
        };
        let Kind::Window { bound, .. } = &mut mkey.kind else {
            return;
        };
        let Some(was) = bound.take() else { return };
        if let Some(qpn) = was.qpn {
            self.by_qp.remove(&(qpn, index));
        }
        if let Some(region) = self.get_mut(was.region) {
            region.windows -= 1;
        }
    }

    fn rename(&mut self, key: u32) {
        if let Some(mkey) = self.table.get_mut(key >> 8) {
            mkey.key = key;
        }
    }

    /// The key of this index, whatever its variant.
    fn of_index(&self, key: u32, pd: u32) -> Result<&Mkey, Unchanged> {
        let mkey = self.table.get(key >> 8).ok_or(Unchanged::Key)?;
        if mkey.pd == pd {
            Ok(mkey)
        } else {
            Err(Unchanged::Pd)
        }
    }
}

impl Mkey {
    /// Becomes a region of these pages. They have been checked: this does not fail half-way.
    fn take_list(
        &mut self,
        what: &Register,
        last: u64,
        epoch: u64,
        list: &[u64],
    ) -> Result<(), Unchanged> {
        const _: () = assert!(REMOTE & ACCESS_ON_DEMAND == 0);
        let table = self.table.as_mut().ok_or(Unchanged::State)?;
        table.reset(what.iova, last);
        (self.epoch, self.iova, self.length) = (epoch, what.iova, what.length);
        let first = what.iova >> what.page_shift << what.page_shift;
        let rights = match what.access & ACCESS_LOCAL_WRITE {
            0 => tq::READ,
            _ => tq::READ | tq::WRITE,
        };
        let entry = |n: u64| list.get(n as usize).map_or(0, |page| page | rights);
        let (shift, count) = (what.page_shift as u8, u64::from(what.num_pages));
        if what.length > 0 {
            self.map(first, shift, count, false, entry)
                .map_err(|_| Unchanged::Bounds)?;
        }
        self.key = what.key;
        self.access = what.access;
        if let Kind::Fast { valid, .. } = &mut self.kind {
            *valid = true;
        }
        Ok(())
    }
}
