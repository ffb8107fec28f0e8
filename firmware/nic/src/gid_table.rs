//! The GID table: the addresses of the NIC. A RoCE packet is sent from one of them, and received for one of them.
//!
//! A path refers to its entry by [`Source`], which shows whether software has changed the entry meanwhile.

use faultline_wire::{Gid, MacAddr};

/// No VLAN, where a command names one.
pub(crate) const NO_VLAN: u16 = 0xffff;
/// Largest VLAN id (IEEE 802.1Q).
pub(crate) const MAX_VLAN: u16 = 4094;

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
    /// Number of the contents of each entry.
    generations: Vec<u32>,
    /// Contents and generation of an entry before it became empty: after the interface goes down and up, its entries
    /// are the same as before.
    former: Vec<Option<(GidEntry, u32)>>,
    /// The next number.
    next_generation: u32,
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
            former: vec![None; entries as usize],
            next_generation: 1,
            macs: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// Changes an entry. Returns true if it has changed, and `None` if there is none with this number.
    pub(crate) fn set(&mut self, index: u32, entry: Option<GidEntry>) -> Option<bool> {
        let index = index as usize;
        let old = self.entries.get_mut(index)?;
        let generation = self.generations.get_mut(index)?;
        let former = self.former.get_mut(index)?;
        if *old == entry {
            return Some(false);
        }
        let again = former.filter(|(before, _)| entry == Some(*before));
        *former = old.map(|old| (old, *generation));
        *old = entry;
        *generation = again.map_or(self.next_generation, |(_, number)| number);
        self.next_generation = self.next_generation.wrapping_add(1);
        let entries = || self.entries.iter().flatten();
        self.macs = entries().map(|entry| entry.mac).collect();
        self.macs.sort_unstable();
        self.macs.dedup();
        // VLAN 0 is none.
        let vlan = |entry: &GidEntry| entry.vlan.filter(|vlan| *vlan != 0);
        self.addresses = entries().map(|entry| (entry.gid, vlan(entry))).collect();
        self.addresses.sort_unstable();
        self.addresses.dedup();
        Some(true)
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
    fn a_reference_is_current_while_its_entry_has_the_same_contents() {
        let mut table = GidTable::new(2);
        assert_eq!(table.set(0, Some(entry(1, None))), Some(true));
        let (_, source) = table.get(0).unwrap();
        assert_eq!(table.set(0, Some(entry(1, None))), Some(false));
        assert_eq!(table.set(1, Some(entry(2, None))), Some(true));
        assert!(table.is_current(source), "nothing has changed");
        assert_eq!(table.set(0, None), Some(true));
        assert!(!table.is_current(source) && table.get(0).is_none());
        table.set(0, Some(entry(1, None)));
        assert!(table.is_current(source), "it is as it was");
        table.set(0, Some(entry(3, None)));
        assert!(!table.is_current(source));
        let (_, other) = table.get(0).unwrap();
        table.set(0, None);
        table.set(0, Some(entry(4, None)));
        assert!(!table.is_current(source) && !table.is_current(other));
        assert_eq!(table.set(2, None), None, "there is no third entry");
    }

    #[test]
    fn an_address_is_a_gid_in_a_vlan() {
        let mut table = GidTable::new(4);
        let entries = [
            entry(1, None),
            entry(1, Some(7)),
            entry(2, Some(7)),
            entry(5, Some(0)),
        ];
        for (index, entry) in (0..).zip(entries) {
            table.set(index, Some(entry));
        }
        let gid = |last| Gid::from_ipv4([10, 0, 0, last]);
        assert!(table.has_address(gid(1), None));
        assert!(table.has_address(gid(2), Some(7)));
        assert!(!table.has_address(gid(2), None));
        assert!(!table.has_address(gid(3), Some(7)));
        assert!(table.has_address(gid(5), None), "VLAN 0 is a priority");
        table.set(2, None);
        assert!(!table.has_address(gid(2), Some(7)));
        assert!(table.has_mac(MacAddr([2, 0, 0, 0, 0, 1])));
        assert!(!table.has_mac(MacAddr([2, 0, 0, 0, 0, 2])));
    }
}
