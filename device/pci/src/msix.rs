//! MSI-X table and pending bit array (PBA; PCI 3.0 §6.8.2).

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a table has at most 2^11 entries, and offsets have 32 bits"
)]

/// Most vectors that a function can have (11-bit table size field).
pub const MAX_VECTORS: u16 = 2048;

/// Length of a table entry in bytes.
const ENTRY: u32 = 16;
/// Offset of vector control in an entry.
const VECTOR_CONTROL: u32 = 12;

/// Locations of the MSI-X table and PBA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MsixLayout {
    /// Number of vectors, 1 to [`MAX_VECTORS`].
    pub vectors: u16,
    /// BAR of the table.
    pub table_bar: u8,
    /// Offset of the table in bytes, a multiple of 8.
    pub table_offset: u32,
    /// BAR of the PBA.
    pub pba_bar: u8,
    /// Offset of the PBA in bytes, a multiple of 8.
    pub pba_offset: u32,
}

impl MsixLayout {
    /// Table at the start of `bar`, PBA at the first page boundary after it.
    pub fn in_bar(bar: u8, vectors: u16) -> Self {
        let table = u32::from(vectors) * ENTRY;
        Self {
            vectors,
            table_bar: bar,
            table_offset: 0,
            pba_bar: bar,
            pba_offset: table.next_multiple_of(4096).max(4096),
        }
    }

    /// Length of the table in bytes.
    pub fn table_len(&self) -> u32 {
        u32::from(self.vectors) * ENTRY
    }

    /// Length of the PBA in bytes: whole 64-bit words.
    pub fn pba_len(&self) -> u32 {
        u32::from(self.vectors).div_ceil(64) * 8
    }

    /// Smallest BAR size, a power of two, that holds table and PBA in one BAR; at least 4096.
    pub fn bar_size(&self) -> u64 {
        let table = u64::from(self.table_offset) + u64::from(self.table_len());
        let pba = u64::from(self.pba_offset) + u64::from(self.pba_len());
        table.max(pba).next_power_of_two().max(4096)
    }
}

/// Content of the MSI-X table.
///
/// QEMU emulates the table for the guest and forwards only reads of the PBA. Other clients can
/// access this table as a driver does, but interrupts are delivered through their eventfds, not to
/// the address in the table.
#[derive(Debug, Clone)]
pub struct MsixTable {
    layout: MsixLayout,
    bytes: Vec<u8>,
}

impl MsixTable {
    /// Creates a table in its reset state: every vector masked, all other bits zero.
    pub fn new(layout: MsixLayout) -> Self {
        let mut table = Self {
            layout,
            bytes: Vec::new(),
        };
        table.reset();
        table
    }

    /// Restores the reset state.
    pub fn reset(&mut self) {
        self.bytes.clear();
        self.bytes.resize(self.layout.table_len() as usize, 0);
        for entry in self.bytes.chunks_exact_mut(ENTRY as usize) {
            if let Some(mask) = entry.get_mut(VECTOR_CONTROL as usize) {
                *mask = 1;
            }
        }
    }

    /// Mask bit of a vector; true for a vector that does not exist.
    pub fn masked(&self, vector: u16) -> bool {
        let at = u32::from(vector) * ENTRY + VECTOR_CONTROL;
        self.bytes.get(at as usize).is_none_or(|byte| byte & 1 != 0)
    }

    /// Reads bytes of `bar`. Bytes outside table and PBA read as zero. `pending(word)` returns the
    /// pending bits of vectors `64 * word` to `64 * word + 63`.
    pub fn read(&self, bar: u8, offset: u64, data: &mut [u8], pending: impl Fn(usize) -> u64) {
        for (i, byte) in data.iter_mut().enumerate() {
            let at = offset.wrapping_add(i as u64);
            *byte = 0;
            if bar == self.layout.table_bar
                && let Some(into) = at.checked_sub(self.layout.table_offset.into())
                && let Ok(into) = usize::try_from(into)
                && let Some(found) = self.bytes.get(into)
            {
                *byte = *found;
            } else if bar == self.layout.pba_bar
                && let Some(into) = at.checked_sub(self.layout.pba_offset.into())
                && into < self.layout.pba_len().into()
            {
                let word = pending((into / 8) as usize).to_le_bytes();
                *byte = word.get((into % 8) as usize).copied().unwrap_or(0);
            }
        }
    }

    /// Writes bytes of the table in `bar`. Everything else, including the PBA, ignores writes. Only
    /// the mask bit of vector control is writable.
    pub fn write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        if bar != self.layout.table_bar {
            return;
        }
        for (i, value) in data.iter().enumerate() {
            let at = offset.wrapping_add(i as u64);
            if let Some(into) = at.checked_sub(self.layout.table_offset.into())
                && let Ok(into) = u32::try_from(into)
                && let Some(byte) = self.bytes.get_mut(into as usize)
            {
                *byte = match into % ENTRY {
                    0 => value & !3, // Message address is 32-bit aligned.
                    VECTOR_CONTROL => value & 1,
                    13.. => 0,
                    _ => *value,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_starts_masked_and_keeps_only_defined_bits() {
        let mut table = MsixTable::new(MsixLayout::in_bar(4, 3));
        assert!((0..3).all(|v| table.masked(v)) && table.masked(3));
        table.write(4, 16, &[0xff; 16]);
        let mut entry = [0; 16];
        table.read(4, 16, &mut entry, |_| 0);
        assert_eq!(
            entry,
            [
                252, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0, 0
            ]
        );
        table.write(4, 16 + 12, &[0xfe]);
        assert!(!table.masked(1) && table.masked(0) && table.masked(2));
        table.reset();
        assert!(table.masked(1));
    }

    #[test]
    fn pending_bits_are_read_only_and_bounded() {
        let layout = MsixLayout::in_bar(4, 65);
        assert_eq!(
            (layout.pba_offset, layout.pba_len(), layout.bar_size()),
            (4096, 16, 8192)
        );
        let mut table = MsixTable::new(layout);
        let pending = |word| {
            [0x8000_0000_0000_0001, 1]
                .get(word)
                .copied()
                .unwrap_or(u64::MAX)
        };
        table.write(4, 4096, &[0xff; 16]);
        let mut bits = [0xaa; 20];
        table.read(4, 4096, &mut bits, pending);
        assert_eq!(
            bits,
            [
                1, 0, 0, 0, 0, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
            ]
        );
        let mut straddle = [0xaa; 3];
        table.read(4, 4096 + 7, &mut straddle, pending);
        assert_eq!(straddle, [0x80, 1, 0]);
        table.read(2, 4096, &mut straddle, pending);
        assert_eq!(straddle, [0; 3]);
        table.read(4, u64::MAX, &mut straddle, pending);
    }
}
