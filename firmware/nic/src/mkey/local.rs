//! Operations of work requests on keys: fast registration, binding of windows, invalidation (IBTA 10.6.6, 10.6.7,
//! 10.7.5).
//!
//! | key | free | valid |
//! |---|---|---|
//! | fast registration | REG_MR: valid, with a new variant | LOCAL_INV or SEND with invalidate: free |
//! | window of type 2 | BIND_MW: bound to region and QP, with a new variant | the same; or the QP is destroyed: free |
//! | window of type 1 | BIND_MW: bound to the region | BIND_MW: bound to another range, or free with length 0 |
//!
//! A request that is refused changes nothing. With pitfall `qp_keys` a fast registration is valid for the QP on which it was made only, and
//! REG_MR finds it free when that QP has failed.

use faultline_abi::qp::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_LOCAL_WRITE, ACCESS_MW_BIND,
    ACCESS_ON_DEMAND, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
    ACCESS_ZERO_BASED,
};
use faultline_abi::translation as tq;

use super::access::{KeyUser, PageRange};
use super::key::{Binding, Kind, Mkey, Valid, grants_too_much, last_byte};
use super::table::Mkeys;
use crate::config::MAX_LEAVES_PER_MAP;
use crate::dma::Dma;
use crate::number::to_usize;
use crate::page_table::{PAGE_SHIFT, leaves_per_page};
use crate::work;

const REMOTE: u32 = ACCESS_REMOTE_WRITE
    | ACCESS_REMOTE_READ
    | ACCESS_REMOTE_ATOMIC
    | ACCESS_FLUSH_GLOBAL
    | ACCESS_FLUSH_PERSISTENT;

/// Why a work request has not changed a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyError {
    /// No such key.
    Key,
    /// It belongs to another protection domain.
    Pd,
    /// It is of another kind, or not in the right state, or a window is bound to it.
    State,
    /// The rights are not allowed.
    Access,
    /// The range is not allowed.
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
    /// log2 of the page size, unchecked.
    pub page_shift: u8,
}

/// WR_BIND_MW.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    /// The window's new key.
    pub rkey: u32,
    /// The region's key.
    pub lkey: u32,
    pub access: u32,
    pub addr: u64,
    pub length: u64,
}

impl Mkeys {
    /// Registers memory for a free key.
    pub(crate) fn register<M: Dma>(
        &mut self,
        user: KeyUser,
        what: &Register,
        mem: &M,
    ) -> Result<(), KeyError> {
        let mkey = self.of_index(what.key, user.pd)?;
        let Kind::Fast { max_pages, valid } = mkey.kind else {
            return Err(KeyError::State);
        };
        if self.is_valid(valid) || mkey.windows.any() {
            return Err(KeyError::State);
        }
        let known = REMOTE | ACCESS_LOCAL_WRITE;
        if what.access & !known != 0 || grants_too_much(what.access, what.access) {
            return Err(KeyError::Access);
        }
        let shift = what.page_shift;
        if !(PAGE_SHIFT..=30).contains(&shift) || what.num_pages > max_pages {
            return Err(KeyError::Bounds);
        }
        let page = 1u64 << shift;
        let last = last_byte(what.iova, what.length).ok_or(KeyError::Bounds)?;
        let offset = what.iova & !(u64::MAX << shift);
        // The list must have exactly the pages of the range.
        let pages = offset.checked_add(what.length).map(|n| n.div_ceil(page));
        if pages != Some(u64::from(what.num_pages)) {
            return Err(KeyError::Bounds);
        }
        if self.budget.is_spent() {
            return Err(KeyError::State);
        }
        // A page of another size may take many leaves.
        let leaves = u64::from(what.num_pages) << leaves_per_page(shift);
        if leaves > MAX_LEAVES_PER_MAP {
            return Err(KeyError::Bounds);
        }
        self.read_list(what, mem)?;
        self.work.add(u64::from(what.num_pages));
        if self
            .list
            .iter()
            .any(|addr| addr & !(u64::MAX << shift) != 0)
        {
            return Err(KeyError::Bounds);
        }
        let epoch = self.next_epoch();
        let valid = match &mut self.lives {
            Some(lives) => Valid::ForOne(lives.of(user.qpn)),
            None => Valid::ForAll,
        };
        let list = std::mem::take(&mut self.list);
        let result = match self.table.get_mut(what.key >> 8) {
            Some(mkey) => {
                let taken = mkey.take_list(what, last, epoch, &list);
                if let (Ok(()), Kind::Fast { valid: was, .. }) = (&taken, &mut mkey.kind) {
                    *was = valid;
                }
                mkey.account(&self.budget);
                self.work.add(mkey.take_work());
                taken
            }
            None => Err(KeyError::Key),
        };
        self.list = list;
        result
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "both count bytes and entries of a list that is not longer than the region allows"
    )]
    fn read_list<M: Dma>(&mut self, what: &Register, mem: &M) -> Result<(), KeyError> {
        let mut bytes = [0; 512];
        let mut left = what.num_pages as usize;
        let mut at = what.list;
        self.list.clear();
        while left > 0 {
            let n = left.min(bytes.len() / 8);
            let part = bytes.get_mut(..n * 8).ok_or(KeyError::List)?;
            mem.read(at, part).map_err(|_| KeyError::List)?;
            let words = part.as_chunks::<8>().0.iter();
            self.list
                .extend(words.map(|word| u64::from_le_bytes(*word)));
            at = at.checked_add(n as u64 * 8).ok_or(KeyError::List)?;
            left -= n;
        }
        Ok(())
    }

    /// Binds a window to memory of a region.
    pub(crate) fn bind(&mut self, user: KeyUser, what: &Bind) -> Result<(), KeyError> {
        let window = self.of_index(what.rkey, user.pd)?;
        let Kind::Window { two, bound } = window.kind else {
            return Err(KeyError::State);
        };
        if two && (bound.is_some() || self.closing == Some(user.qpn)) {
            return Err(KeyError::State);
        }
        let index = what.rkey >> 8;
        if !two && what.length == 0 {
            self.unbind(index);
            self.set_variant(what.rkey);
            return Ok(());
        }
        let zero_based = what.access & ACCESS_ZERO_BASED != 0;
        // Software often sets local write, which has no meaning for a window.
        let known = REMOTE | ACCESS_ZERO_BASED | ACCESS_LOCAL_WRITE;
        if what.access & !known != 0 || (zero_based && !two) {
            return Err(KeyError::Access);
        }
        let base = self.check_region(user, what)?;
        self.unbind(index);
        let region = what.lkey;
        let mkey = self.get_mut(region).ok_or(KeyError::Key)?;
        mkey.windows.add();
        let window = self.table.get_mut(index).ok_or(KeyError::Key)?;
        let qpn = two.then_some(user.qpn);
        window.kind = Kind::Window {
            two,
            bound: Some(Binding { region, base, qpn }),
        };
        window.key = what.rkey;
        window.access = what.access & REMOTE;
        window.iova = if zero_based { 0 } else { what.addr };
        window.length = what.length;
        if two {
            self.by_qp.insert((user.qpn, index));
        }
        Ok(())
    }

    /// Checks that a window may be bound to this range of a region. Returns the address in the region at which it begins.
    fn check_region(&self, user: KeyUser, what: &Bind) -> Result<u64, KeyError> {
        let region = self.get(what.lkey).ok_or(KeyError::Key)?;
        if region.pd != user.pd {
            return Err(KeyError::Pd);
        }
        let lasting = matches!(region.kind, Kind::Region | Kind::Fast { .. });
        if !lasting || !self.is_valid_for(region, user.qpn) || region.table.is_none() {
            return Err(KeyError::State);
        }
        if region.access & ACCESS_MW_BIND == 0 || grants_too_much(what.access, region.access) {
            return Err(KeyError::Access);
        }
        if what.length == 0 {
            return Err(KeyError::Bounds);
        }
        let at = what.addr.checked_add(region.shift());
        at.filter(|at| region.check_bounds(*at, what.length).is_some())
            .ok_or(KeyError::Bounds)
    }

    /// Invalidates a key for a peer, which can do so only for keys that grant remote rights.
    pub(crate) fn invalidate_for_peer(&mut self, user: KeyUser, key: u32) -> Result<(), KeyError> {
        match self.get(key) {
            Some(mkey) if mkey.access & REMOTE == 0 => Err(KeyError::Access),
            _ => self.invalidate_key(user, key),
        }
    }

    /// Invalidates a key: a fast registration for any QP of its domain, a window of type 2 for the QP that it is bound to.
    pub(crate) fn invalidate_key(&mut self, user: KeyUser, key: u32) -> Result<(), KeyError> {
        let mkey = self.get(key).ok_or(KeyError::Key)?;
        if mkey.pd != user.pd {
            return Err(KeyError::Pd);
        }
        let is_free = !self.is_valid_for(mkey, user.qpn) || mkey.windows.any();
        let mkey = self.get_mut(key).ok_or(KeyError::Key)?;
        match &mut mkey.kind {
            Kind::Fast { valid, .. } if !is_free => {
                *valid = Valid::No;
                Ok(())
            }
            Kind::Window {
                two: true,
                bound: Some(bound),
            } if bound.qpn == Some(user.qpn) => {
                self.unbind(key >> 8);
                Ok(())
            }
            _ => Err(KeyError::State),
        }
    }

    /// True if a fast registration has memory.
    fn is_valid(&self, valid: Valid) -> bool {
        match valid {
            Valid::No => false,
            Valid::ForAll => true,
            Valid::ForOne(life) => self.lives.as_ref().is_some_and(|lives| lives.lasts(life)),
        }
    }

    /// True if a key is no fast registration, or one with memory that this QP may use.
    #[inline]
    pub(super) fn is_valid_for(&self, mkey: &Mkey, qpn: u32) -> bool {
        match mkey.kind {
            Kind::Fast { valid, .. } => match valid {
                Valid::No => false,
                Valid::ForAll => true,
                Valid::ForOne(life) => {
                    let lives = self.lives.as_ref();
                    lives.is_some_and(|lives| lives.is_of(life, qpn))
                }
            },
            _ => true,
        }
    }

    /// A QP has failed, or is being reset: with pitfall `qp_keys` the registrations that were made on it end.
    pub(crate) fn end_life(&mut self, qpn: u32) {
        if let Some(lives) = &mut self.lives {
            lives.end(qpn);
        }
    }

    /// Frees the windows of a QP that is being destroyed, because no other QP may use them. Returns false if the turn is
    /// over and some are left.
    pub(crate) fn forget_qp(&mut self, qpn: u32) -> bool {
        let end = self.work.get().wrapping_add(work::TURN);
        self.closing = Some(qpn);
        while let Some(&(_, index)) = self.by_qp.range((qpn, 0)..=(qpn, u32::MAX)).next() {
            if self.work.get() >= end {
                return false;
            }
            self.work.add(work::FREE);
            self.unbind(index);
        }
        self.closing = None;
        self.end_life(qpn);
        true
    }

    /// Frees a window, if the key with this index is a bound one.
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
            region.windows.remove();
        }
    }

    fn set_variant(&mut self, key: u32) {
        if let Some(mkey) = self.table.get_mut(key >> 8) {
            mkey.key = key;
        }
    }

    /// The key of this index, with any variant.
    fn of_index(&self, key: u32, pd: u32) -> Result<&Mkey, KeyError> {
        let mkey = self.table.get(key >> 8).ok_or(KeyError::Key)?;
        if mkey.pd == pd {
            Ok(mkey)
        } else {
            Err(KeyError::Pd)
        }
    }
}

impl Mkey {
    /// Makes the key a region of these pages. They have been checked: this does not fail half-way.
    fn take_list(
        &mut self,
        what: &Register,
        last: u64,
        epoch: u64,
        list: &[u64],
    ) -> Result<(), KeyError> {
        const _: () = assert!(REMOTE & ACCESS_ON_DEMAND == 0);
        let table = self.table.as_mut().ok_or(KeyError::State)?;
        table.reset(what.iova, last);
        (self.epoch, self.iova, self.length) = (epoch, what.iova, what.length);
        let first = what.iova >> what.page_shift << what.page_shift;
        let rights = match what.access & ACCESS_LOCAL_WRITE {
            0 => tq::READ,
            _ => tq::READ | tq::WRITE,
        };
        let entry = |n: u64| list.get(to_usize(n)).map_or(0, |page| page | rights);
        let (shift, count) = (what.page_shift, u64::from(what.num_pages));
        if what.length > 0 {
            self.map(&PageRange::new(first, shift, count), entry)
                .map_err(|_| KeyError::Bounds)?;
        }
        self.key = what.key;
        self.access = what.access;
        Ok(())
    }
}
