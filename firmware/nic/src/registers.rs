//! Registers that hold values of the driver. Accesses are in `nic/registers.rs`.

use faultline_abi::caps::Caps;
use faultline_abi::regs;

use crate::config::NicConfig;

/// Range of `*_LOG_DEPTH`.
const LOG_DEPTHS: core::ops::RangeInclusive<u32> = 1..=8;
/// Alignment of ring addresses.
const RING_ALIGN: u64 = 4096;

/// Registers that hold values of the driver.
#[derive(Debug)]
pub(crate) struct Registers {
    pub(crate) caps: Caps,
    pub(crate) enabled: bool,
    pub(crate) clock_high: u32,
    pub(crate) admin_sq: u64,
    pub(crate) admin_cq: u64,
    pub(crate) admin_log_depth: u32,
    pub(crate) admin_eqn: u32,
    pub(crate) translation_sq: u64,
    pub(crate) translation_cq: u64,
    pub(crate) translation_log_depth: u32,
}

impl Registers {
    pub(crate) fn new(config: &NicConfig) -> Self {
        Self {
            caps: config.caps(),
            enabled: false,
            clock_high: 0,
            admin_sq: 0,
            admin_cq: 0,
            admin_log_depth: 0,
            admin_eqn: u32::MAX,
            translation_sq: 0,
            translation_cq: 0,
            translation_log_depth: 0,
        }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    pub(crate) fn admin_eqn(&self) -> u32 {
        self.admin_eqn
    }

    /// The 64-bit register that a half at this offset belongs to.
    pub(crate) fn wide(&mut self, offset: u32) -> Option<&mut u64> {
        Some(match offset & !4 {
            regs::ADMIN_SQ_BASE => &mut self.admin_sq,
            regs::ADMIN_CQ_BASE => &mut self.admin_cq,
            regs::TRANSLATION_SQ_BASE => &mut self.translation_sq,
            regs::TRANSLATION_CQ_BASE => &mut self.translation_cq,
            _ => return None,
        })
    }

    /// True if the addresses and depths of all rings are allowed.
    pub(crate) fn rings_are_valid(&self) -> bool {
        let aligned = [
            self.admin_sq,
            self.admin_cq,
            self.translation_sq,
            self.translation_cq,
        ]
        .iter()
        .all(|base| base % RING_ALIGN == 0 && base.checked_add(1 << 20).is_some());
        aligned
            && LOG_DEPTHS.contains(&self.admin_log_depth)
            && LOG_DEPTHS.contains(&self.translation_log_depth)
    }
}
