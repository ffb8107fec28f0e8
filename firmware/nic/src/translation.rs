//! The translation queue: page entries, invalidations, resumes.

use faultline_abi::admin::Counter;
use faultline_abi::translation::{CONTIGUOUS, INVALIDATE, MAP, REPLACE, RESUME, TqCmd, TqComp};
use faultline_abi::{Status, U16, U32, regs};
use zerocopy::IntoBytes;

use crate::diagnostic::{CommandQueue, Diagnostic, DriverTimes};
use crate::dma::Dma;
use crate::injection::commands::CommandFate;
use crate::injection::point::Point;
use crate::mkey::PageRange;
use crate::nic::Nic;
use crate::number::to_usize;
use crate::ring::write_entry;
use crate::time::Instant;
use crate::work;

/// Longest page list of a MAP command: one page of them.
const MAX_LIST: u64 = 512;

impl Nic {
    /// Executes translation commands up to the producer index, and returns false if that is out of range. New commands
    /// wait behind those that were deferred.
    pub(crate) fn run_translation<M: Dma>(&mut self, now: Instant, mem: &M, producer: u32) -> bool {
        let behind = self.translation.has_work();
        let taken = self.translation.announce(producer);
        if !behind {
            self.continue_translation(now, mem);
        }
        taken
    }

    /// Executes translation commands until there are none left or the turn is over.
    pub(crate) fn continue_translation<M: Dma>(&mut self, now: Instant, mem: &M) {
        let turn = self.core.begin_turn();
        while self.translation.has_work() {
            if self.core.is_over(turn) {
                self.core.defer(now);
                return;
            }
            self.core.charge(work::COMMAND);
            let rings = &mut self.translation;
            let mut cmd = TqCmd::default();
            if mem
                .read(rings.command(size_of::<TqCmd>()), cmd.as_mut_bytes())
                .is_err()
            {
                self.core.fatal = regs::RING_DMA;
                return;
            }
            let opcode = u16::from(cmd.opcode);
            let key = Some(cmd.key.get());
            let refused = match self.command_fate(now, CommandQueue::Translation, opcode, key) {
                CommandFate::Execute => None,
                CommandFate::Refuse(status) => Some(status),
                CommandFate::Wait => return,
            };
            let rings = &mut self.translation;
            let (at, phase) = rings.completion(size_of::<TqComp>());
            rings.advance();
            let result = match refused {
                Some(status) => Err(status),
                None => self.translate_command(now, mem, &cmd),
            };
            let (status, n) = match result {
                Ok(n) => (Status::Ok, n),
                Err(status) => {
                    self.core.counters.inc(Counter::command_errors);
                    (status, 0)
                }
            };
            self.core.diagnose(
                now,
                Diagnostic::Command {
                    queue: CommandQueue::Translation,
                    opcode,
                    status: status as u16,
                    object: cmd.key.get(),
                },
            );
            let completion = TqComp {
                id: cmd.id,
                status: U16::new(status as u16),
                count: U32::new(n),
                phase,
                ..TqComp::default()
            };
            if write_entry(mem, at, completion.as_bytes()).is_err() {
                self.core.fatal = regs::RING_DMA;
                return;
            }
        }
    }

    fn translate_command<M: Dma>(
        &mut self,
        now: Instant,
        mem: &M,
        cmd: &TqCmd,
    ) -> Result<u32, Status> {
        let driver = DriverTimes {
            wait_ns: cmd.wait_ns.get(),
            map_ns: cmd.map_ns.get(),
            post_ns: cmd.post_ns.get(),
        };
        let has_times = driver != DriverTimes::default();
        if cmd.reserved0 != 0 || cmd.reserved1 != [0; 8] || has_times && cmd.opcode != RESUME {
            return Err(Status::ReservedNotZero);
        }
        if cmd.flags & !CONTIGUOUS != 0 {
            return Err(Status::BadParameter);
        }
        let (key, iova, count) = (cmd.key.get(), cmd.iova.get(), cmd.count.get());
        let pages = PageRange {
            iova,
            page_shift: cmd.page_shift,
            count,
            only_present: cmd.opcode == REPLACE,
        };
        match cmd.opcode {
            MAP | REPLACE if cmd.flags & CONTIGUOUS != 0 => {
                let (first, shift) = (cmd.list.get(), cmd.page_shift);
                let entry =
                    |n: u64| first.wrapping_add(n.checked_shl(u32::from(shift)).unwrap_or(0));
                self.core.mkeys.map(key, &pages, entry)
            }
            MAP | REPLACE => {
                if count == 0 || count > MAX_LIST {
                    return Err(Status::BadRange);
                }
                let mut list = [0; to_usize(MAX_LIST) * 8];
                self.core.charge(count);
                let bytes = list
                    .get_mut(..to_usize(count).saturating_mul(8))
                    .ok_or(Status::BadRange)?;
                mem.read(cmd.list.get(), bytes)
                    .map_err(|_| Status::DmaError)?;
                let (entries, _) = bytes.as_chunks::<8>();
                let entry = |n: u64| {
                    entries
                        .get(to_usize(n))
                        .map_or(0, |word| u64::from_le_bytes(*word))
                };
                self.core.mkeys.map(key, &pages, entry)
            }
            INVALIDATE => self.invalidate_pages(key, iova, count),
            RESUME if self.core.injections.has(Point::FaultAnswer) => {
                let (token, status) = (cmd.token.get(), cmd.resume_status.get());
                self.resume_with_injections(now, mem, token, status, driver)
            }
            RESUME => {
                let repaired = cmd.resume_status.get() == Status::Ok as u16;
                self.resume_fault(now, mem, cmd.token.get(), repaired, driver)
            }
            _ => Err(Status::BadOpcode),
        }
    }
}
