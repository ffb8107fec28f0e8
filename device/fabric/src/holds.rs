//! Queue pairs that are held because the peer of an external port takes too slowly.
//!
//! The engine with the ports publishes which of them hold senders ([`crate::external_port`]). Each engine holds its own queue pairs whose
//! frames go to these ports, and releases them when the port no longer holds senders. Nothing is locked. The engine with the ports wakes
//! the others when that changes, and one that is about to sleep looks once more (`device/daemon/src/engines/sleep.rs`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::switch::PortId;

/// Most queue pairs of a NIC that are held at a time. What further ones send is dropped if there is no room. Entries of queue pairs
/// that were destroyed meanwhile count, too.
const MOST_HELD: usize = 1 << 16;

/// A queue pair that is held, with its NIC.
type Held = (PortId, u32);

/// What an engine knows of holds.
#[derive(Debug)]
pub struct Holds {
    /// By external port: it holds senders.
    ports: Arc<[AtomicBool]>,
    /// By external port: the queue pairs that are held because of it.
    held: Vec<Vec<Held>>,
    /// How many of them each NIC has, if any: no NIC takes the places of others.
    of_nics: BTreeMap<PortId, usize>,
}

impl Holds {
    /// One for each engine of a process with so many external ports.
    pub fn of_engines(engines: usize, ports: usize) -> impl Iterator<Item = Self> {
        let ports: Arc<[AtomicBool]> = (0..ports).map(|_| AtomicBool::new(false)).collect();
        (0..engines).map(move |_| Self {
            ports: Arc::clone(&ports),
            held: vec![Vec::new(); ports.len()],
            of_nics: BTreeMap::new(),
        })
    }

    /// False if the process has no external ports.
    #[inline]
    pub fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Publishes whether a port holds senders. Returns true if that has changed. Of the engine with the ports only.
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

    /// A queue pair of this engine is held because of a port.
    pub fn add(&mut self, port: usize, nic: PortId, queue_pair: u32) {
        if let Some(held) = self.held.get_mut(port) {
            held.push((nic, queue_pair));
            let of_nic = self.of_nics.entry(nic).or_default();
            *of_nic = of_nic.saturating_add(1);
        }
    }

    /// True if a queue pair is held without need.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.of_nics.is_empty() && self.looks_released()
    }

    #[cold]
    fn looks_released(&self) -> bool {
        let mut ports = self.held.iter().enumerate();
        ports.any(|(port, held)| !held.is_empty() && !self.holds(port))
    }

    /// Forgets the queue pairs of ports that no longer hold senders, and returns each with its NIC.
    pub fn take_released(&mut self) -> impl Iterator<Item = (PortId, u32)> {
        let (ports, of_nics) = (&self.ports, &mut self.of_nics);
        let held = self.held.iter_mut().enumerate();
        let released = held.filter(|(port, _)| !is_set(ports, *port));
        let taken = released.flat_map(|(_, held)| held.drain(..));
        taken.inspect(|(nic, _)| {
            if let Entry::Occupied(mut of_nic) = of_nics.entry(*nic) {
                match of_nic.get().saturating_sub(1) {
                    0 => drop(of_nic.remove()),
                    rest => *of_nic.get_mut() = rest,
                }
            }
        })
    }

    /// Forgets the queue pairs of a NIC, and returns them.
    pub fn take_nic(&mut self, nic: PortId) -> impl Iterator<Item = u32> {
        self.of_nics.remove(&nic);
        let of_nic = move |held: &mut Held| held.0 == nic;
        let ports = self.held.iter_mut();
        let taken = ports.flat_map(move |held| held.extract_if(.., of_nic));
        taken.map(|(_, queue_pair)| queue_pair)
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
        holds.publish(1, false);
        assert_eq!(holds.take_released().count(), MOST_HELD);
        assert!(holds.has_room(0));
    }

    #[test]
    fn a_process_without_ports_holds_nothing() {
        let holds = Holds::of_engines(1, 0).next().unwrap();
        assert!(!holds.has_ports() && !holds.publish(0, true) && !holds.holds(0));
    }
}
