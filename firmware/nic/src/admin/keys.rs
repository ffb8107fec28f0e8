//! Commands on memory keys and device memory.

use faultline_abi::admin::CreateMkey;
use faultline_abi::device_memory::{AllocDm, CreateDmMkey, DmPlace};
use faultline_abi::{Status, U64};

use super::command::Answer;
use crate::device_memory::{DEVICE_MEMORY, PAGE};
use crate::dma::Dma;
use crate::nic::Nic;
use crate::number::to_usize;
use crate::time::Instant;
use crate::work;

impl Nic {
    pub(super) fn create_mkey(&mut self, cmd: &CreateMkey) -> Result<u32, Status> {
        self.pd(cmd.pd.get())?;
        let key = self.core.mkeys.create(cmd)?;
        self.pd(cmd.pd.get())?.refs.add();
        Ok(key)
    }

    pub(super) fn modify_mkey<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        key: u32,
        cmd: &CreateMkey,
    ) -> Result<(), Status> {
        self.pd(cmd.pd.get())?;
        let old_pd = self.core.mkeys.modify(key, cmd)?;
        self.pd(cmd.pd.get())?.refs.add();
        self.release_pd(old_pd);
        // Queue pairs that wait for its pages look the key up again.
        self.cancel_faults(now, mem, key);
        Ok(())
    }

    pub(super) fn destroy_mkey<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        key: u32,
    ) -> Result<(), Status> {
        let mkey = self.core.mkeys.destroy(key)?;
        if let Some(dm) = mkey.device_memory {
            self.core.device_memory.release(dm);
        }
        self.release_pd(mkey.pd);
        self.cancel_faults(now, mem, key);
        Ok(())
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the allocation is in the device memory, whose size the configuration limits"
    )]
    pub(super) fn alloc_dm<M: Dma>(&mut self, mem: &M, cmd: &AllocDm) -> Result<Answer, Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let (dm, offset, length) = self.core.device_memory.alloc(cmd.length.get())?;
        self.core.charge(work::of_frames(0, to_usize(length)));
        let memory = &mut self.core.device_memory;
        let zeroes = [0; to_usize(PAGE)];
        for at in (offset..offset + length).step_by(zeroes.len()) {
            if mem.write(DEVICE_MEMORY + at, &zeroes).is_err() {
                memory.free(dm)?;
                return Err(Status::DmaError);
            }
        }
        let place = DmPlace {
            offset: U64::new(self.device_memory_offset() + offset),
            length: U64::new(length),
        };
        Ok(Answer::with_value(dm, &place))
    }

    pub(super) fn create_dm_mkey(&mut self, cmd: &CreateDmMkey) -> Result<u32, Status> {
        self.pd(cmd.pd.get())?;
        let memory = &mut self.core.device_memory;
        let dm = cmd.dm.get();
        let base = memory.hold(dm, cmd.offset.get(), cmd.length.get())?;
        let created = self.core.mkeys.create_device(cmd, base);
        if created.is_err() {
            memory.release(dm);
        }
        let key = created?;
        self.pd(cmd.pd.get())?.refs.add();
        Ok(key)
    }
}
