//! Type 0 header, capabilities, and side effects of config writes.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets of registers are constants, numbers and sizes of BARs have been checked, and the MSI-X layout has 32 bits"
)]

use crate::msix::{MAX_VECTORS, MsixLayout};

/// Size of config space in bytes, including the PCI Express extended config space.
pub const CONFIG_SIZE: usize = 4096;

// Header (PCI 3.0 §6.1).
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
const CACHE_LINE: usize = 0x0c;
const BAR0: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAP_POINTER: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;

const COMMAND_MEMORY: u16 = 1 << 1;
const COMMAND_MASTER: u16 = 1 << 2;
/// Writable bits: memory, bus master, parity response, SERR#, INTx disable. Bit 0 (I/O) is hardwired
/// to zero because the function has no I/O BARs.
const COMMAND_RW: u16 = COMMAND_MEMORY | COMMAND_MASTER | 1 << 6 | 1 << 8 | 1 << 10;
const STATUS_CAP_LIST: u16 = 1 << 4;
/// Error bits, write 1 to clear (§6.2.3).
const STATUS_W1C: u16 = 0xf900;

// Capabilities, in list order.
const PM: usize = 0x40;
const PM_CONTROL: usize = PM + 4;
const PM_NO_SOFT_RESET: u16 = 1 << 3;
const MSIX: usize = 0x50;
const MSIX_CONTROL: usize = MSIX + 2;
const MSIX_MASK_ALL: u16 = 1 << 14;
const MSIX_ENABLE: u16 = 1 << 15;
const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 0x08;
const FLR: u16 = 1 << 15;

// Extended capabilities.
const SERIAL: usize = 0x100;

/// Identification registers of the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciIdentity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Class code, 24 bits: base class, sub-class, programming interface.
    pub class: u32,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id.
    pub subsystem: u16,
    /// Device serial number, an EUI-64.
    pub serial: u64,
}

/// A memory BAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    /// BAR number, 0 to 5; a 64-bit BAR also occupies the next register.
    pub index: u8,
    /// Size in bytes, a power of two, at least 16.
    pub size: u64,
    /// 64-bit decoder.
    pub wide: bool,
    /// Prefetchable: reads have no side effects and writes may be merged.
    pub prefetchable: bool,
}

/// Why a config space cannot be built. All are errors of the caller; a guest cannot cause them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The size is not a power of two of at least 16 bytes, or exceeds the limit of the BAR.
    #[error(
        "BAR{index}: size {size:#x} is invalid; use a power of two, at least 16 and at most 2^31 (64-bit BAR: 2^63)"
    )]
    BarSize {
        /// The BAR.
        index: u8,
        /// Its size in bytes.
        size: u64,
    },
    /// The register is beyond BAR5 or belongs to another BAR.
    #[error("BAR{index}: the register does not exist or belongs to another BAR")]
    BarIndex {
        /// The BAR.
        index: u8,
    },
    /// Number of vectors out of range.
    #[error("{vectors} MSI-X vectors requested; the number must be 1 to {MAX_VECTORS}")]
    Vectors {
        /// Number of vectors.
        vectors: u16,
    },
    /// The MSI-X table or PBA is unaligned or outside its BAR, or they overlap.
    #[error(
        "MSI-X table or PBA in BAR{bar} at offset {offset:#x} is not 8-byte aligned, exceeds the BAR, or overlaps the other"
    )]
    MsixPlace {
        /// The BAR.
        bar: u8,
        /// Offset into the BAR.
        offset: u32,
    },
}

/// Power management state; D1 and D2 are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerState {
    /// Working.
    D0,
    /// Software power-down: config space works, DMA and interrupts must not happen. All state
    /// is preserved (No_Soft_Reset).
    D3Hot,
}

/// Changes caused by a write. One write can cause several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// Function-level reset was initiated. Config space is already reset; reset the function and
    /// discard its outstanding operations.
    pub flr: bool,
    /// New state of bus mastering (DMA and interrupts), if changed.
    pub bus_master: Option<bool>,
    /// New state of memory decoding, if changed.
    pub memory: Option<bool>,
    /// New state of MSI-X enable, if changed.
    pub msix: Option<bool>,
    /// New power state, if changed.
    pub power: Option<PowerState>,
}

impl ConfigChange {
    /// True if nothing changed.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Config space of one function.
///
/// Accesses have any length and alignment. Bits that are not writable ignore writes; offsets beyond
/// the end read as ones and ignore writes. Nothing panics.
#[derive(Debug, Clone)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_SIZE]>,
    /// Read-write bits.
    writable: Box<[u8; CONFIG_SIZE]>,
    /// Bits that a write of 1 clears (RW1C).
    rw1c: Box<[u8; CONFIG_SIZE]>,
    /// State after reset.
    initial: Box<[u8; CONFIG_SIZE]>,
    bars: Vec<Bar>,
    msix: Option<MsixLayout>,
}

impl ConfigSpace {
    /// Builds the config space of a function.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if a BAR or the MSI-X layout is invalid.
    pub fn new(
        identity: PciIdentity,
        bars: &[Bar],
        msix: Option<MsixLayout>,
    ) -> Result<Self, ConfigError> {
        let zero = || Box::new([0u8; CONFIG_SIZE]);
        let mut config = Self {
            bytes: zero(),
            writable: zero(),
            rw1c: zero(),
            initial: zero(),
            bars: bars.to_vec(),
            msix,
        };
        config.header(identity);
        config.bars()?;
        config.power();
        config.express();
        let next_of_pm = if let Some(layout) = msix {
            config.msix(layout)?;
            MSIX
        } else {
            EXPRESS
        };
        config.put8(PM + 1, pointer(next_of_pm));
        config.serial(identity.serial);
        config.initial = config.bytes.clone();
        Ok(config)
    }

    fn header(&mut self, identity: PciIdentity) {
        self.put16(0x00, identity.vendor);
        self.put16(0x02, identity.device);
        self.set_writable16(COMMAND, COMMAND_RW);
        self.put16(STATUS, STATUS_CAP_LIST);
        self.set_rw1c16(STATUS, STATUS_W1C);
        self.put32(REVISION, identity.class << 8 | u32::from(identity.revision));
        // Cache line size is writable and ignored (PCIe §7.5.1.3); latency timer, header type
        // 0 (single function) and BIST are zero.
        self.set_writable8(CACHE_LINE, 0xff);
        self.put16(SUBSYSTEM, identity.subsystem_vendor);
        self.put16(SUBSYSTEM + 2, identity.subsystem);
        self.put8(CAP_POINTER, pointer(PM));
        // Interrupt line is a scratch byte; pin 0 means no INTx.
        self.set_writable8(INTERRUPT_LINE, 0xff);
    }

    /// PCI 3.0 §6.2.5.1: only the address bits above the BAR size are writable, so writing ones and
    /// reading back gives the size.
    fn bars(&mut self) -> Result<(), ConfigError> {
        let mut taken = [false; 6];
        for bar in self.bars.clone() {
            let Bar {
                index,
                size,
                wide,
                prefetchable,
            } = bar;
            let limit = if wide { 1 << 63 } else { 1 << 31 };
            if !size.is_power_of_two() || size < 16 || size > limit {
                return Err(ConfigError::BarSize { index, size });
            }
            let registers = usize::from(index)..usize::from(index) + 1 + usize::from(wide);
            match taken.get_mut(registers) {
                Some(slots) if slots.iter().all(|slot| !*slot) => slots.fill(true),
                _ => return Err(ConfigError::BarIndex { index }),
            }
            let at = BAR0 + 4 * usize::from(index);
            let mask = !(size - 1);
            self.put32(at, u32::from(wide) << 2 | u32::from(prefetchable) << 3);
            self.set_writable32(at, (mask & 0xffff_ffff) as u32);
            if wide {
                self.set_writable32(at + 4, (mask >> 32) as u32);
            }
        }
        Ok(())
    }

    /// PCI PM 1.2 §3.2: version 3, no PME, no D1, no D2.
    fn power(&mut self) {
        self.put8(PM, 0x01);
        self.put16(PM + 2, 0x0003);
        self.put16(PM_CONTROL, PM_NO_SOFT_RESET);
        self.set_writable16(PM_CONTROL, 0x3);
    }

    /// PCI 3.0 §6.8.2.
    fn msix(&mut self, layout: MsixLayout) -> Result<(), ConfigError> {
        if layout.vectors == 0 || layout.vectors > MAX_VECTORS {
            return Err(ConfigError::Vectors {
                vectors: layout.vectors,
            });
        }
        let places = [
            (layout.table_bar, layout.table_offset, layout.table_len()),
            (layout.pba_bar, layout.pba_offset, layout.pba_len()),
        ];
        for (bar, offset, len) in places {
            let size = self
                .bars
                .iter()
                .find(|b| b.index == bar)
                .map_or(0, |b| b.size);
            if offset % 8 != 0 || u64::from(offset) + u64::from(len) > size {
                return Err(ConfigError::MsixPlace { bar, offset });
            }
        }
        let [(table_bar, table, table_len), (pba_bar, pba, pba_len)] = places;
        let (table, pba) = (u64::from(table), u64::from(pba));
        if table_bar == pba_bar
            && table < pba + u64::from(pba_len)
            && pba < table + u64::from(table_len)
        {
            return Err(ConfigError::MsixPlace {
                bar: pba_bar,
                offset: layout.pba_offset,
            });
        }
        self.put8(MSIX, 0x11);
        self.put8(MSIX + 1, pointer(EXPRESS));
        self.put16(MSIX_CONTROL, layout.vectors - 1);
        self.set_writable16(MSIX_CONTROL, MSIX_ENABLE | MSIX_MASK_ALL);
        self.put32(MSIX + 4, layout.table_offset | u32::from(layout.table_bar));
        self.put32(MSIX + 8, layout.pba_offset | u32::from(layout.pba_bar));
        Ok(())
    }

    /// PCIe §7.8: version 2 endpoint, 16 GT/s x16 (nominal), function-level reset.
    fn express(&mut self) {
        self.put8(EXPRESS, 0x10);
        self.put16(EXPRESS + 0x02, 0x0002);
        // Device capabilities: 128-byte payload, extended tags, role-based error reporting
        // (mandatory), FLR.
        self.put32(EXPRESS + 0x04, 1 << 5 | 1 << 15 | 1 << 28);
        // Device control reset values (§7.8.4): relaxed ordering, no snoop, 512-byte read requests.
        // Bit 15 initiates FLR and always reads 0.
        self.put16(DEVICE_CONTROL, 1 << 4 | 1 << 11 | 2 << 12);
        self.set_writable16(DEVICE_CONTROL, 0x79ff);
        self.set_rw1c16(EXPRESS + 0x0a, 0x000f);
        // Link: speed 4 (16 GT/s), width 16, ASPM optionality compliance.
        self.put32(EXPRESS + 0x0c, 4 | 16 << 4 | 1 << 22);
        self.set_writable16(EXPRESS + 0x10, 0x00c8);
        self.put16(EXPRESS + 0x12, 4 | 16 << 4);
        // Device 2: completion timeout can be disabled (§7.8.15).
        self.put32(EXPRESS + 0x24, 1 << 4);
        self.set_writable16(EXPRESS + 0x28, 1 << 4);
        // Link 2: all speeds up to 4, target speed 4.
        self.put32(EXPRESS + 0x2c, 0x1e);
        self.put16(EXPRESS + 0x30, 4);
        self.set_writable16(EXPRESS + 0x30, 0x000f);
    }

    /// PCIe §7.12; the only extended capability.
    fn serial(&mut self, serial: u64) {
        self.put32(SERIAL, 0x0003 | 1 << 16);
        self.put32(SERIAL + 4, (serial & 0xffff_ffff) as u32);
        self.put32(SERIAL + 8, (serial >> 32) as u32);
    }

    /// Reads bytes. Bytes beyond the end are ones, like a read without a completer.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = index(offset, i)
                .and_then(|at| self.bytes.get(at))
                .copied()
                .unwrap_or(0xff);
        }
    }

    /// Writes bytes and returns the resulting changes.
    ///
    /// If the write initiates a function-level reset, it resets config space, including all other
    /// bits of the same write, as on hardware.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigChange {
        let before = self.control_state();
        let mut flr = false;
        for (i, value) in data.iter().enumerate() {
            let Some(at) = index(offset, i) else { break };
            let (Some(byte), Some(writable), Some(rw1c)) = (
                self.bytes.get_mut(at),
                self.writable.get(at),
                self.rw1c.get(at),
            ) else {
                break;
            };
            let mut value = *value;
            if at == PM_CONTROL && matches!(value & 3, 1 | 2) {
                // D1 and D2: writing an unsupported state has no effect (§3.2.4).
                value = value & !3 | *byte & 3;
            }
            flr |= at == DEVICE_CONTROL + 1 && value & (FLR >> 8) as u8 != 0;
            *byte = (*byte & !writable | value & writable) & !(value & rw1c);
        }
        if flr {
            self.reset();
        }
        let after = self.control_state();
        let changed = |old: bool, new: bool| (old != new).then_some(new);
        ConfigChange {
            flr,
            bus_master: changed(before.0, after.0),
            memory: changed(before.1, after.1),
            msix: changed(before.2, after.2),
            power: (before.3 != after.3).then_some(after.3),
        }
    }

    fn control_state(&self) -> (bool, bool, bool, PowerState) {
        (
            self.bus_master(),
            self.memory(),
            self.msix_enabled(),
            self.power_state(),
        )
    }

    /// Resets config space, for DEVICE_RESET. Also clears BAR addresses: QEMU keeps its own copy, and
    /// guest firmware assigns them again after a bus reset.
    pub fn reset(&mut self) {
        self.bytes.copy_from_slice(self.initial.as_slice());
    }

    /// True if the function may use DMA and send interrupts.
    pub fn bus_master(&self) -> bool {
        self.get16(COMMAND) & COMMAND_MASTER != 0
    }

    /// True if the function decodes its BARs.
    pub fn memory(&self) -> bool {
        self.get16(COMMAND) & COMMAND_MEMORY != 0
    }

    /// True if MSI-X is enabled.
    pub fn msix_enabled(&self) -> bool {
        self.msix.is_some() && self.get16(MSIX_CONTROL) & MSIX_ENABLE != 0
    }

    /// Current power state.
    pub fn power_state(&self) -> PowerState {
        if self.get16(PM_CONTROL) & 3 == 3 {
            PowerState::D3Hot
        } else {
            PowerState::D0
        }
    }

    /// The BARs.
    pub fn bar_list(&self) -> &[Bar] {
        &self.bars
    }

    /// Address programmed into a BAR, independent of memory decoding.
    pub fn bar_address(&self, index: u8) -> Option<u64> {
        let bar = self.bars.iter().find(|bar| bar.index == index)?;
        let at = BAR0 + 4 * usize::from(index);
        let low = u64::from(self.get16(at)) | u64::from(self.get16(at + 2)) << 16;
        let high = match bar.wide {
            true => u64::from(self.get16(at + 4)) | u64::from(self.get16(at + 6)) << 16,
            false => 0,
        };
        Some((high << 32 | low) & !0xf)
    }

    fn get16(&self, at: usize) -> u16 {
        let byte = |at: usize| self.bytes.get(at).copied().unwrap_or(0xff);
        u16::from_le_bytes([byte(at), byte(at + 1)])
    }

    fn put8(&mut self, at: usize, value: u8) {
        set(&mut self.bytes, at, &[value]);
    }

    fn put16(&mut self, at: usize, value: u16) {
        set(&mut self.bytes, at, &value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        set(&mut self.bytes, at, &value.to_le_bytes());
    }

    fn set_writable8(&mut self, at: usize, mask: u8) {
        set(&mut self.writable, at, &[mask]);
    }

    fn set_writable16(&mut self, at: usize, mask: u16) {
        set(&mut self.writable, at, &mask.to_le_bytes());
    }

    fn set_writable32(&mut self, at: usize, mask: u32) {
        set(&mut self.writable, at, &mask.to_le_bytes());
    }

    fn set_rw1c16(&mut self, at: usize, mask: u16) {
        set(&mut self.rw1c, at, &mask.to_le_bytes());
    }
}

/// The offset of a capability as other registers refer to it. All are below 256; 0 would end the list.
fn pointer(capability: usize) -> u8 {
    u8::try_from(capability).unwrap_or(0)
}

/// Offset of byte `i` of an access, if it is inside config space.
fn index(offset: u64, i: usize) -> Option<usize> {
    let at = offset.checked_add(i as u64)?;
    usize::try_from(at).ok().filter(|at| *at < CONFIG_SIZE)
}

fn set(space: &mut [u8; CONFIG_SIZE], at: usize, value: &[u8]) {
    if let Some(field) = space.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}
