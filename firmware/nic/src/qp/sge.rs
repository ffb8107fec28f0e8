//! Scatter/gather lists: the parts of entries that hold a part of a message.

use crate::mkey::{Access, KeyRange, KeyUser};
use crate::number::low32;
use crate::receive_queue::SgEntry;

/// Contiguous virtual memory behind a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SgPart {
    /// Local key.
    pub lkey: u32,
    /// First virtual address.
    pub va: u64,
    /// Bytes.
    pub len: u32,
    /// Bytes from `va` to the end of the entry.
    pub left: u32,
}

impl SgPart {
    /// The part as a range of memory that this user accesses.
    pub(crate) fn range(&self, user: KeyUser, access: Access) -> KeyRange {
        KeyRange {
            key: self.lkey,
            user,
            va: self.va,
            len: self.len,
            access,
        }
    }
}

/// The parts of `sges` that hold `len` bytes at `offset` of the message. Ends early if the entries do.
pub(crate) fn parts(
    sges: &[SgEntry],
    offset: u64,
    len: u64,
) -> impl Iterator<Item = SgPart> + use<'_> {
    let (mut skip, mut wanted) = (offset, len);
    sges.iter().filter_map(move |sge| {
        let left = u64::from(sge.len).saturating_sub(skip);
        let at = skip;
        skip = skip.saturating_sub(u64::from(sge.len));
        if left == 0 || wanted == 0 {
            return None;
        }
        let n = left.min(wanted);
        wanted = wanted.saturating_sub(n);
        Some(SgPart {
            lkey: sge.lkey,
            va: sge.addr.wrapping_add(at),
            len: low32(n),
            left: low32(left),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(addr: u64, len: u32) -> SgEntry {
        SgEntry { addr, len, lkey: 7 }
    }

    #[test]
    fn parts_cover_a_range_of_the_message() {
        let sges = [sge(0x1000, 10), sge(0x5000, 0), sge(0x9000, 100)];
        let found = |offset, len| -> Vec<_> {
            parts(&sges, offset, len)
                .map(|part| (part.va, part.len, part.left))
                .collect()
        };
        assert_eq!(found(0, 10), [(0x1000, 10, 10)]);
        assert_eq!(found(4, 10), [(0x1004, 6, 6), (0x9000, 4, 100)]);
        assert_eq!(found(10, 5), [(0x9000, 5, 100)]);
        assert_eq!(found(60, 100), [(0x9032, 50, 50)]);
        assert_eq!(found(110, 1), []);
        assert_eq!(found(3, 0), []);
    }
}
