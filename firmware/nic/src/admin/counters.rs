//! Commands on counters.

use faultline_abi::Status;
use faultline_abi::admin::{BindCounters, Counter, QueryCounters};

use crate::counters::CounterSet;
use crate::dma::Dma;
use crate::nic::Nic;
use crate::number::len32;

impl Nic {
    pub(super) fn bind_counters(&mut self, number: u32, cmd: &BindCounters) -> Result<(), Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let queue = self.queues.get_mut(number).ok_or(Status::BadQp)?;
        let set = CounterSet::from_number(cmd.counters.get());
        self.core.counters.hold(set)?;
        self.core.counters.release(queue.set_counters(set));
        Ok(())
    }

    pub(super) fn query_counters<M: Dma>(
        &mut self,
        mem: &M,
        set: u32,
        cmd: &QueryCounters,
    ) -> Result<u32, Status> {
        if cmd.reserved.get() != 0 {
            return Err(Status::ReservedNotZero);
        }
        let held = self.core.budget.used() as u64;
        self.core.counters.set(Counter::table_bytes, held);
        let bytes: Vec<u8> = self
            .core
            .counters
            .values_of(set)?
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let n = bytes.len().min(cmd.len.get() as usize);
        let part = bytes.get(..n).unwrap_or(&[]);
        mem.write(cmd.addr.get(), part)
            .map_err(|_| Status::DmaError)?;
        Ok(len32(Counter::COUNT))
    }
}
