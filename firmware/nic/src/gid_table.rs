//! The GID table: the addresses of the NIC. A RoCE packet is sent from one of them, and received for one of them.
//!
//! A path refers to its entry by [`Source`], so that it is known when software has changed the entry meanwhile.

use faultline_wire::{Gid, MacAddr};

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    /// The GID; IPv4 addresses are mapped.
    pub gid: Gid,
    /// Source MAC address of packets sent from it.
    pub mac: MacAddr,
    /// VLAN id.
    pub vlan: Option<u16>,
}

/// A reference to the contents that an entry had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    index: u16,
    generation: u32,
}

impl Source {
    /// Number of the entry.
    pub(crate) fn index(self) -> u16 {
        self.index
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct GidTable {
    entries: Vec<Option<GidEntry>>,
    /// Counts the changes of each entry.
    generations: Vec<u32>,
    /// MAC addresses of its entries, each once: an interface above the netdev may have its own, such as macvlan.
    macs: Vec<MacAddr>,
    /// GIDs of its entries with their VLANs, sorted, each once.
    addresses: Vec<(Gid, Option<u16>)>,
}

impl GidTable {
    /// A table with this number of entries, all of them empty.
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            entries: vec![None; entries as usize],
            generations: vec![0; entries as usize],
            macs: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// Changes an entry. Returns false if there is none with this number.
    pub(crate) fn set(&mut self, index: u32, entry: Option<GidEntry>) -> bool {
        let index = index as usize;
        let (Some(old), Some(generation)) =
            (self.entries.get_mut(index), self.generations.get_mut(index))
        else {
            return false;
        };
        if *old == entry {
            return true;
        }
        *old = entry;
        *generation = generation.wrapping_add(1);
        let entries = || self.entries.iter().flatten();
        self.macs = entries().map(|entry| entry.mac).collect();
        self.macs.sort_unstable();
        self.macs.dedup();
        self.addresses = entries().map(|entry| (entry.gid, entry.vlan)).collect();
        self.addresses.sort_unstable();
        self.addresses.dedup();
        true
    }

    /// An entry, and a reference to its contents. `None`: it is empty, or there is none.
    pub(crate) fn get(&self, index: u16) -> Option<(GidEntry, Source)> {
        let entry = self.entries.get(usize::from(index)).copied().flatten()?;
        let generation = *self.generations.get(usize::from(index))?;
        Some((entry, Source { index, generation }))
    }

    /// True if the entry has not changed since.
    #[inline]
    pub(crate) fn is_current(&self, source: Source) -> bool {
        self.generations.get(usize::from(source.index)) == Some(&source.generation)
    }

    /// True if an entry has this MAC address.
    #[inline]
    pub(crate) fn has_mac(&self, mac: MacAddr) -> bool {
        self.macs.contains(&mac)
    }

    /// True if an entry has this GID in this VLAN.
    pub(crate) fn has_address(&self, gid: Gid, vlan: Option<u16>) -> bool {
        self.addresses.binary_search(&(gid, vlan)).is_ok()
    }

    /// All entries with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Option<&GidEntry>)> {
        self.entries.iter().map(Option::as_ref).enumerate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(last: u8, vlan: Option<u16>) -> GidEntry {
        GidEntry {
            gid: Gid::from_ipv4([10, 0, 0, last]),
            mac: MacAddr([2, 0, 0, 0, 0, last]),
            vlan,
        }
    }

    #[test]
    fn a_reference_is_current_until_its_entry_changes() {
        let mut table = GidTable::new(2);
        assert!(table.set(0, Some(entry(1, None))));
        let (_, source) = table.get(0).unwrap();
        assert!(table.set(0, Some(entry(1, None))));
        assert!(table.set(1, Some(entry(2, None))));
        assert!(table.is_current(source), "nothing has changed");
        assert!(table.set(0, None));
        assert!(!table.is_current(source) && table.get(0).is_none());
        assert!(table.set(0, Some(entry(1, None))));
        assert!(!table.is_current(source), "it is another entry");
        assert!(!table.set(2, None), "there is no third entry");
    }

    #[test]
    fn an_address_is_a_gid_in_a_vlan() {
        let mut table = GidTable::new(4);
        for (index, entry) in (0..).zip([entry(1, None), entry(1, Some(7)), entry(2, Some(7))]) {
            table.set(index, Some(entry));
        }
        let gid = |last| Gid::from_ipv4([10, 0, 0, last]);
        assert!(table.has_address(gid(1), None));
        assert!(table.has_address(gid(2), Some(7)));
        assert!(!table.has_address(gid(2), None));
        assert!(!table.has_address(gid(3), Some(7)));
        table.set(2, None);
        assert!(!table.has_address(gid(2), Some(7)));
        assert!(table.has_mac(MacAddr([2, 0, 0, 0, 0, 1])));
        assert!(!table.has_mac(MacAddr([2, 0, 0, 0, 0, 2])));
    }
}
