//! Queue pairs that are held because the peer of an external port takes frames too slowly.
//!
//! The engine with the ports publishes the ports that hold senders ([`crate::external_port`]). Each engine holds its own queue pairs that
//! send to these ports, and releases them when the port no longer holds senders. There are no locks. The engine with the ports wakes the
//! others after a change, and an engine checks for changes before it sleeps (`device/daemon/src/engines/sleep.rs`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::switch::PortId;

/// Maximum number of held queue pairs of a NIC. Frames of further ones are dropped if there is no room. Entries of queue pairs that were
/// destroyed meanwhile count too.
const MOST_HELD: usize = 1 << 16;
/// Maximum number of queue pairs of a NIC that are released in one pass, because other NICs wait meanwhile.
const AT_ONCE: usize = 1 << 10;

/// The holds, as one engine sees them.
#[derive(Debug)]
pub struct Holds {
    /// By external port: true while it holds senders.
    ports: Arc<[AtomicBool]>,
    /// By external port and NIC: the held queue pairs, in order.
    held: Vec<BTreeMap<PortId, VecDeque<u32>>>,
    /// Number of held queue pairs of each NIC, so that no NIC uses the places of others.
    of_nics: BTreeMap<PortId, usize>,
}

impl Holds {
    /// Creates one for each engine of a process with `ports` external ports.
    pub fn of_engines(engines: usize, ports: usize) -> impl Iterator<Item = Self> {
        let ports: Arc<[AtomicBool]> = (0..ports).map(|_| AtomicBool::new(false)).collect();
        (0..engines).map(move |_| Self {
            ports: Arc::clone(&ports),
            held: vec![BTreeMap::new(); ports.len()],
            of_nics: BTreeMap::new(),
        })
    }

    /// False if the process has no external ports.
    #[inline]
    pub fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Publishes whether a port holds senders. Returns true if that has changed. Only the engine with the ports calls this.
    #[inline]
    pub fn publish(&self, port: usize, holds: bool) -> bool {
        let Some(shared) = self.ports.get(port) else {
            return false;
        };
        let has_changed = shared.load(Ordering::Relaxed) != holds;
        if has_changed {
            shared.store(holds, Ordering::Release);
        }
        has_changed
    }

    /// True if a port holds senders.
    #[inline]
    pub fn holds(&self, port: usize) -> bool {
        is_set(&self.ports, port)
    }

    /// True if one more queue pair of a NIC can be held.
    #[inline]
    pub fn has_room(&self, nic: PortId) -> bool {
        self.of_nics.get(&nic).is_none_or(|held| *held < MOST_HELD)
    }

    /// Holds a queue pair of this engine for a port.
    pub fn add(&mut self, port: usize, nic: PortId, queue_pair: u32) {
        if let Some(held) = self.held.get_mut(port) {
            held.entry(nic).or_default().push_back(queue_pair);
            let of_nic = self.of_nics.entry(nic).or_default();
            *of_nic = of_nic.saturating_add(1);
        }
    }

    /// Returns true if a queue pair is held for a port that no longer holds senders.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.of_nics.is_empty() && self.looks_released()
    }

    #[cold]
    fn looks_released(&self) -> bool {
        let mut ports = self.held.iter().enumerate();
        ports.any(|(port, held)| !held.is_empty() && !self.holds(port))
    }

    /// Removes queue pairs of ports that no longer hold senders, up to the limit of one pass, and returns each with its NIC.
    pub fn take_released(&mut self) -> impl Iterator<Item = (PortId, u32)> {
        let mut taken = Vec::new();
        for (port, held) in self.held.iter_mut().enumerate() {
            if is_set(&self.ports, port) {
                continue;
            }
            held.retain(|nic, held| {
                let count = held.len().min(AT_ONCE);
                taken.extend(held.drain(..count).map(|queue_pair| (*nic, queue_pair)));
                if let Entry::Occupied(mut of_nic) = self.of_nics.entry(*nic) {
                    match of_nic.get().saturating_sub(count) {
                        0 => drop(of_nic.remove()),
                        rest => *of_nic.get_mut() = rest,
                    }
                }
                !held.is_empty()
            });
        }
        taken.into_iter()
    }

    /// Removes the queue pairs of a NIC, and returns them.
    pub fn take_nic(&mut self, nic: PortId) -> impl Iterator<Item = u32> {
        self.of_nics.remove(&nic);
        let ports = self.held.iter_mut();
        ports.filter_map(move |held| held.remove(&nic)).flatten()
    }
}

fn is_set(ports: &[AtomicBool], port: usize) -> bool {
    let shared = ports.get(port);
    shared.is_some_and(|holds| holds.load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_releases_its_own_queue_pairs_of_a_port() {
        let mut engines: Vec<_> = Holds::of_engines(2, 3).collect();
        assert!(engines[0].publish(1, true) && !engines[0].publish(1, true));
        assert!(engines[0].publish(2, true));
        assert!(engines[1].holds(1) && !engines[1].holds(0) && !engines[1].holds(3));
        engines[0].add(1, 0, 17);
        for (port, queue_pair) in [(1, 5), (2, 6), (1, 7)] {
            engines[1].add(port, 4, queue_pair);
        }
        assert!(!engines[1].has_released());
        assert!(engines[0].publish(1, false));
        let mut released = Vec::new();
        for engine in &mut engines {
            assert!(engine.has_released());
            released.extend(engine.take_released());
            assert!(!engine.has_released());
        }
        assert_eq!(released, [(0, 17), (4, 5), (4, 7)]);
        assert_eq!(engines[1].take_nic(3).count(), 0);
        assert_eq!(engines[1].take_nic(4).collect::<Vec<_>>(), [6]);
        engines[0].publish(2, false);
        assert!(!engines[1].has_released());
    }

    #[test]
    fn a_nic_takes_no_place_of_others() {
        let mut holds = Holds::of_engines(1, 2).next().unwrap();
        holds.publish(1, true);
        for _ in 0..MOST_HELD {
            assert!(holds.has_room(0));
            holds.add(1, 0, 17);
        }
        assert!(!holds.has_room(0) && holds.has_room(4));
        holds.add(1, 4, 18);
        holds.publish(1, false);
        // Nor do others wait until all of its queue pairs are released.
        assert_eq!(holds.take_released().count(), AT_ONCE + 1);
        assert!(holds.has_room(0));
        for _ in 1..MOST_HELD / AT_ONCE {
            assert!(holds.has_released());
            assert!(holds.take_released().eq([(0, 17); AT_ONCE]));
        }
        assert!(!holds.has_released());
    }

    #[test]
    fn a_process_without_ports_holds_nothing() {
        let holds = Holds::of_engines(1, 0).next().unwrap();
        assert!(!holds.has_ports() && !holds.publish(0, true) && !holds.holds(0));
    }
}
