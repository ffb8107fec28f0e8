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

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    entry: Option<GidEntry>,
    /// Counts changes.
    generation: u32,
}

/// The table.
#[derive(Debug)]
pub(crate) struct GidTable {
    slots: Vec<Slot>,
    /// MAC addresses of its entries, each once: an interface above the netdev may have its own, such as macvlan.
    macs: Vec<MacAddr>,
    /// GIDs of its entries with their VLANs, sorted, each once.
    addresses: Vec<(Gid, Option<u16>)>,
    /// Index in `addresses` of the one that was found last: most packets are for the same.
    last_found: usize,
}

impl GidTable {
    /// A table with this number of entries, all of them empty.
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            slots: vec![Slot::default(); entries as usize],
            macs: Vec::new(),
            addresses: Vec::new(),
            last_found: 0,
        }
    }

    /// Changes an entry. Returns false if there is none with this number.
    pub(crate) fn set(&mut self, index: u32, entry: Option<GidEntry>) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return false;
        };
        if slot.entry == entry {
            return true;
        }
        *slot = Slot {
            entry,
            generation: slot.generation.wrapping_add(1),
        };
        let entries = || self.slots.iter().filter_map(|slot| slot.entry);
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
        let slot = self.slots.get(usize::from(index))?;
        let source = Source {
            index,
            generation: slot.generation,
        };
        Some((slot.entry?, source))
    }

    /// True if the entry has not changed since.
    #[inline]
    pub(crate) fn is_current(&self, source: Source) -> bool {
        let slot = self.slots.get(usize::from(source.index));
        slot.is_some_and(|slot| slot.generation == source.generation)
    }

    /// True if an entry has this MAC address.
    #[inline]
    pub(crate) fn has_mac(&self, mac: MacAddr) -> bool {
        self.macs.contains(&mac)
    }

    /// True if an entry has this GID in this VLAN.
    #[inline]
    pub(crate) fn has_address(&mut self, gid: Gid, vlan: Option<u16>) -> bool {
        let address = (gid, vlan);
        if self.addresses.get(self.last_found) == Some(&address) {
            return true;
        }
        match self.addresses.binary_search(&address) {
            Ok(found) => {
                self.last_found = found;
                true
            }
            Err(_) => false,
        }
    }

    /// All entries with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Option<&GidEntry>)> {
        let entries = self.slots.iter().map(|slot| slot.entry.as_ref());
        entries.enumerate()
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
        // Twice: the second time it is the one that was found last.
        for _ in 0..2 {
            assert!(table.has_address(gid(1), None));
            assert!(table.has_address(gid(2), Some(7)));
            assert!(!table.has_address(gid(2), None));
            assert!(!table.has_address(gid(3), Some(7)));
        }
        table.set(2, None);
        assert!(!table.has_address(gid(2), Some(7)));
        assert!(table.has_mac(MacAddr([2, 0, 0, 0, 0, 1])));
        assert!(!table.has_mac(MacAddr([2, 0, 0, 0, 0, 2])));
    }
}
