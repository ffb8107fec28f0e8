//! A table of an engine's entries by port of the process.

use crate::switch::PortId;

/// A table by port. Ports have the same numbers in all engines; an engine has entries of its own ports only.
#[derive(Debug)]
pub struct ByPort<T>(Vec<Option<T>>);

impl<T> ByPort<T> {
    /// An empty table for this number of ports.
    pub fn new(ports: usize) -> Self {
        Self((0..ports).map(|_| None).collect())
    }

    /// Number of ports of the process.
    #[inline]
    pub fn ports(&self) -> usize {
        self.0.len()
    }

    /// The entry of a port.
    #[inline]
    pub fn get(&self, id: PortId) -> Option<&T> {
        self.0.get(id)?.as_ref()
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: PortId) -> Option<&mut T> {
        self.0.get_mut(id)?.as_mut()
    }

    /// The entries, with their ports.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &T)> {
        let entries = self.0.iter().enumerate();
        entries.filter_map(|(id, entry)| Some((id, entry.as_ref()?)))
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PortId, &mut T)> {
        let entries = self.0.iter_mut().enumerate();
        entries.filter_map(|(id, entry)| Some((id, entry.as_mut()?)))
    }

    /// The entry of each port, to be changed.
    #[inline]
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Option<T>> {
        self.0.iter_mut()
    }

    /// The entries.
    #[inline]
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// Replaces the entry of a port and returns the previous one. Ignores a port that the process does not have.
    pub fn replace(&mut self, id: PortId, entry: Option<T>) -> Option<T> {
        std::mem::replace(self.0.get_mut(id)?, entry)
    }
}
