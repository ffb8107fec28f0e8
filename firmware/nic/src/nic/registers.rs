//! Register accesses.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets of registers are constants or compared with constants; the configuration limits the number of doorbell pages"
)]

use faultline_abi::admin::Counter;
use faultline_abi::caps::Caps;
use faultline_abi::regs;
use faultline_abi::{ABI_VERSION, MAGIC};
use zerocopy::IntoBytes;

use super::Nic;
use crate::command_ring::CommandRings;
use crate::number::{len32, low32};
use crate::time::Instant;

impl Nic {
    /// Reads the 32-bit register at `offset`, a multiple of 4. Registers that do not exist read as zero.
    pub fn read_register(&mut self, now: Instant, offset: u32) -> u32 {
        let half = |value: u64, offset: u32| low32(value >> (8 * (offset & 4)));
        let [a, b, c, d, e, f] = self.core.config.mac.0;
        let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        const MAC_HIGH: u32 = regs::MAC + 4;
        const CLOCK_HIGH: u32 = regs::CLOCK + 4;
        let caps_end = regs::CAPS + len32(size_of::<Caps>());
        match offset {
            regs::MAGIC => MAGIC,
            regs::ABI_VERSION => ABI_VERSION,
            regs::STATUS => self.status(),
            regs::CONTROL => u32::from(self.registers.enabled) * regs::ENABLE,
            regs::MAC | MAC_HIGH => half(mac, offset),
            regs::FATAL_CODE => self.core.fatal,
            regs::CLOCK => {
                self.registers.clock_high = (now.0 >> 32) as u32;
                low32(now.0)
            }
            CLOCK_HIGH => self.registers.clock_high,
            regs::ADMIN_LOG_DEPTH => self.registers.admin_log_depth,
            regs::ADMIN_EQN => self.registers.admin_eqn,
            regs::TRANSLATION_LOG_DEPTH => self.registers.translation_log_depth,
            regs::DOORBELL_PAGES => self.doorbell_page_count(),
            regs::KICK_OFFSET => self.doorbell_page_count() * regs::PAGE_SIZE,
            regs::LINK_SPEED => self.core.link_speed_mbps,
            _ if (regs::CAPS..caps_end).contains(&offset) => {
                let at = (offset - regs::CAPS) as usize;
                let word = self.registers.caps.as_bytes().get(at..at + 4);
                word.and_then(|word| word.try_into().ok())
                    .map_or(0, u32::from_le_bytes)
            }
            _ => self
                .registers
                .wide(offset)
                .map_or(0, |value| half(*value, offset)),
        }
    }

    /// Doorbell pages in BAR 2: the kernel's and one for each user context.
    pub fn doorbell_page_count(&self) -> u32 {
        self.core.config.limits.max_uctx + 1
    }

    /// Where in BAR 2 the device memory begins: behind doorbell and kick pages.
    pub fn device_memory_offset(&self) -> u64 {
        2 * u64::from(self.doorbell_page_count()) * u64::from(regs::PAGE_SIZE)
    }

    fn status(&self) -> u32 {
        let mut status = match self.core.link_up {
            true => regs::LINK_UP,
            false => 0,
        };
        if self.registers.enabled {
            status |= regs::ENABLED;
        }
        if self.core.fatal != 0 {
            status |= regs::FATAL;
        }
        status
    }

    /// Writes the 32-bit register at `offset`, a multiple of 4.
    pub fn write_register(&mut self, now: Instant, offset: u32, value: u32) {
        match offset {
            regs::CONTROL => self.write_control(now, value),
            regs::ADMIN_EQN => self.registers.admin_eqn = value,
            // The device reads the ring registers when it is enabled; later writes are refused.
            _ if self.registers.enabled => self.core.counters.inc(Counter::register_errors),
            regs::ADMIN_LOG_DEPTH => self.registers.admin_log_depth = value,
            regs::TRANSLATION_LOG_DEPTH => self.registers.translation_log_depth = value,
            _ => match self.registers.wide(offset) {
                Some(wide) if offset & 4 == 0 => *wide = (*wide & !0xffff_ffff) | u64::from(value),
                Some(wide) => *wide = (*wide & 0xffff_ffff) | (u64::from(value) << 32),
                None => self.core.counters.inc(Counter::register_errors),
            },
        }
    }

    fn write_control(&mut self, now: Instant, value: u32) {
        if value & !(regs::ENABLE | regs::RESET) != 0 {
            self.core.counters.inc(Counter::register_errors);
            return;
        }
        let enable = value & regs::ENABLE != 0;
        if value & regs::RESET != 0 || (self.registers.enabled && !enable) {
            self.reset(now);
            return;
        }
        if !enable || self.registers.enabled {
            return;
        }
        if !self.registers.rings_are_valid() {
            self.core.fatal = regs::BAD_RINGS;
            self.report_fatal(now);
            return;
        }
        let r = &mut self.registers;
        r.enabled = true;
        self.admin = CommandRings::new(r.admin_sq, r.admin_cq, r.admin_log_depth);
        self.translation =
            CommandRings::new(r.translation_sq, r.translation_cq, r.translation_log_depth);
        self.uctx_changes = self.uctx_changes.wrapping_add(1);
        self.enabled_version = self.uctx_changes;
    }
}
