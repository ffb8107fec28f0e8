//! Commands on user contexts, protection domains and XRC domains, and their reference counts.

use faultline_abi::Status;
use faultline_abi::admin::{AllocPd, AllocUctx};

use crate::core::{Pd, Uctx};
use crate::dma::Dma;
use crate::nic::Nic;
use crate::references::References;

impl Nic {
    /// The process that owns a user context, as the driver has reported it: process id (0: not reported) and name (up
    /// to the first NUL; any bytes). `None` if no such context exists.
    pub fn process_of(&self, uctx: u32) -> Option<(u32, [u8; 16])> {
        let uctx = self.core.uctxs.get(uctx)?;
        Some((uctx.pid, uctx.comm))
    }

    pub(super) fn alloc_uctx<M: Dma>(&mut self, mem: &M, cmd: &AllocUctx) -> Result<u32, Status> {
        self.uctx_changes = self.uctx_changes.wrapping_add(1);
        let uctx = Uctx {
            version: self.uctx_changes,
            refs: References::default(),
            pid: cmd.pid.get(),
            comm: cmd.comm,
        };
        let uctxs = &mut self.core.uctxs;
        let page = uctxs.insert_with(|_| uctx).ok_or(Status::NoResources)?;
        self.core.faults.open_context(page, cmd.user.get());
        mem.new_doorbell_page(page);
        Ok(page)
    }

    pub(super) fn dealloc_uctx(&mut self, page: u32) -> Result<(), Status> {
        if self.core.uctxs.get(page).ok_or(Status::BadUctx)?.refs.any() {
            return Err(Status::InUse);
        }
        self.core.uctxs.remove(page);
        self.core.faults.close_context(page);
        self.uctx_changes = self.uctx_changes.wrapping_add(1);
        Ok(())
    }

    /// Checks that `page` is page 0, which belongs to the kernel, or the page of a user context.
    pub(super) fn check_uctx(&self, page: u32) -> Result<(), Status> {
        if page == 0 || self.core.uctxs.contains(page) {
            Ok(())
        } else {
            Err(Status::BadUctx)
        }
    }

    /// Counts one more object of a user context. Page 0, which belongs to the kernel, has no count.
    pub(super) fn hold_uctx(&mut self, page: u32) {
        if let Some(uctx) = self.core.uctxs.get_mut(page) {
            uctx.refs.add();
        }
    }

    pub(super) fn release_uctx(&mut self, page: u32) {
        if let Some(uctx) = self.core.uctxs.get_mut(page) {
            uctx.refs.remove();
        }
    }

    pub(super) fn alloc_pd(&mut self, cmd: &AllocPd) -> Result<u32, Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let uctx = cmd.uctx.get();
        self.check_uctx(uctx)?;
        let pds = &mut self.core.pds;
        let pd = Pd {
            uctx,
            ..Pd::default()
        };
        let pd = pds.insert_with(|_| pd).ok_or(Status::NoResources)?;
        self.hold_uctx(uctx);
        Ok(pd)
    }

    pub(super) fn dealloc_pd(&mut self, pd: u32) -> Result<(), Status> {
        let Pd { refs, uctx, .. } = *self.pd(pd)?;
        if refs.any() {
            return Err(Status::InUse);
        }
        self.core.pds.remove(pd);
        self.release_uctx(uctx);
        Ok(())
    }

    pub(super) fn pd(&mut self, pd: u32) -> Result<&mut Pd, Status> {
        self.core.pds.get_mut(pd).ok_or(Status::BadPd)
    }

    pub(super) fn release_pd(&mut self, pd: u32) {
        if let Some(pd) = self.core.pds.get_mut(pd) {
            pd.refs.remove();
        }
    }

    pub(super) fn alloc_xrcd(&mut self) -> Result<u32, Status> {
        let xrcds = &mut self.core.xrcds;
        xrcds
            .insert_with(|_| References::default())
            .ok_or(Status::NoResources)
    }

    pub(super) fn dealloc_xrcd(&mut self, xrcd: u32) -> Result<(), Status> {
        match self.core.xrcds.get(xrcd) {
            None => Err(Status::BadXrcd),
            Some(refs) if !refs.any() => {
                self.core.xrcds.remove(xrcd);
                Ok(())
            }
            Some(_) => Err(Status::InUse),
        }
    }

    pub(super) fn xrcd(&mut self, xrcd: u32) -> Result<&mut References, Status> {
        self.core.xrcds.get_mut(xrcd).ok_or(Status::BadXrcd)
    }

    pub(super) fn release_xrcd(&mut self, xrcd: u32) {
        if let Some(refs) = self.core.xrcds.get_mut(xrcd) {
            refs.remove();
        }
    }
}
