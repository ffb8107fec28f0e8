//! The NICs of a fabric, and which of them rest.
//!
//! A NIC that waits for nothing but a doorbell, a frame, a request or a deadline *rests*: a pass looks at its doorbells
//! only. [`Nics::get_mut`] and the other functions that give access to a NIC end its rest: a NIC that was changed has a
//! turn in the next pass, and rests again if it had nothing to do in that turn. A NIC that waits for the switch to
//! grant its address does not rest ([`Fabric::let_rest`](crate::Fabric::let_rest)).

use faultline_nic::Instant;

use crate::by_port::ByPort;
use crate::nic_port::NicPort;
use crate::switch::PortId;

/// The NIC is awake.
const AWAKE: Instant = Instant(0);
/// The NIC has no deadline.
const NEVER: Instant = Instant(u64::MAX);

/// The NICs of a fabric, by port.
#[derive(Debug)]
pub struct Nics {
    ports: ByPort<NicPort>,
    /// By port: when the rest of its NIC ends, if nothing happens before. A port without a NIC rests for ever.
    rests_until: Box<[Instant]>,
    /// Earliest end of a rest. [`AWAKE`] from the change of a NIC until the end of a pass after which all rest.
    all_rest_until: Instant,
}

impl Nics {
    /// Creates an empty table for a process with this number of NICs.
    pub(crate) fn new(ports: usize) -> Self {
        Self {
            ports: ByPort::new(ports),
            rests_until: vec![NEVER; ports].into_boxed_slice(),
            all_rest_until: AWAKE,
        }
    }

    /// Number of ports of the process that are for NICs.
    #[inline]
    pub fn ports(&self) -> usize {
        self.ports.ports()
    }

    /// The NIC of a port.
    #[inline]
    pub fn get(&self, id: PortId) -> Option<&NicPort> {
        self.ports.get(id)
    }

    /// The same, to be changed. Its rest ends.
    #[inline]
    pub fn get_mut(&mut self, id: PortId) -> Option<&mut NicPort> {
        let port = self.ports.get_mut(id)?;
        self.all_rest_until = AWAKE;
        if let Some(until) = self.rests_until.get_mut(id) {
            *until = AWAKE;
        }
        Some(port)
    }

    /// The same, of a NIC whose rest this pass has ended.
    #[inline]
    pub(crate) fn awake_port(&mut self, id: PortId) -> Option<&mut NicPort> {
        debug_assert!(self.ports.get(id).is_none() || self.is_awake(id));
        self.ports.get_mut(id)
    }

    /// The NICs, with their ports.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &NicPort)> {
        self.ports.iter()
    }

    /// The NICs.
    #[inline]
    pub fn values(&self) -> impl Iterator<Item = &NicPort> {
        self.ports.values()
    }

    /// The NICs that are awake, with their ports.
    #[inline]
    pub(crate) fn awake(&self) -> impl Iterator<Item = (PortId, &NicPort)> {
        let rests_until = self.rests_until.iter().enumerate();
        rests_until.filter_map(|(id, until)| match *until {
            AWAKE => Some((id, self.ports.get(id)?)),
            _ => None,
        })
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn awake_mut(&mut self) -> impl Iterator<Item = (PortId, &mut NicPort)> {
        let rests_until = self.rests_until.iter();
        let ports = rests_until.zip(self.ports.all_mut()).enumerate();
        ports.filter_map(|(id, (until, port))| match *until {
            AWAKE => Some((id, port.as_mut()?)),
            _ => None,
        })
    }

    /// Replaces the NIC of a port. Returns the previous one. A port that the process does not have keeps none.
    pub fn replace(&mut self, id: PortId, port: Option<NicPort>) -> Option<NicPort> {
        self.all_rest_until = AWAKE;
        if let Some(until) = self.rests_until.get_mut(id) {
            *until = port.as_ref().map_or(NEVER, |_| AWAKE);
        }
        self.ports.replace(id, port)
    }

    /// True if the NIC of a port has nothing to do at this time except perhaps doorbells, or the port has no NIC.
    #[inline]
    pub fn rests(&self, id: PortId, now: Instant) -> bool {
        self.rests_until.get(id).is_none_or(|until| *until > now)
    }

    /// True if no NIC was changed since [`Nics::come_to_rest`] has found that all rest.
    #[inline]
    pub fn all_rest(&self) -> bool {
        self.all_rest_until != AWAKE
    }

    /// As [`Nics::all_rest`], and no rest has ended at this time: no NIC has anything to do except perhaps doorbells.
    #[inline]
    pub fn all_rest_at(&self, now: Instant) -> bool {
        self.all_rest_until > now
    }

    /// To be called at the end of a pass. Returns true if all NICs rest, and did not at the end of the last pass.
    #[inline]
    pub fn come_to_rest(&mut self) -> bool {
        if self.all_rest() {
            return false;
        }
        let ends = self.rests_until.iter().copied();
        self.all_rest_until = ends.min().unwrap_or(NEVER);
        self.all_rest()
    }

    /// True if the NIC of a port does not rest: it has had a turn, or was changed.
    #[inline]
    pub(crate) fn is_awake(&self, id: PortId) -> bool {
        self.rests_until
            .get(id)
            .is_some_and(|until| *until == AWAKE)
    }

    /// Lets a NIC rest if it has nothing to do.
    #[inline]
    pub(crate) fn let_rest(&mut self, id: PortId) {
        if let (Some(port), Some(until)) = (self.ports.get(id), self.rests_until.get_mut(id))
            && port.may_rest()
        {
            *until = port.next_deadline().unwrap_or(NEVER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faultline_nic::{Nic, NicConfig};
    use faultline_wire::MacAddr;

    #[test]
    fn all_rest_until_the_first_deadline_or_a_change() {
        let mut nics = Nics::new(3);
        for id in 0..2 {
            let config = NicConfig::new(MacAddr([2, 0, 0, 0, 0, 1]));
            nics.replace(id, Some(NicPort::new(Nic::new(config))));
            assert!(!nics.come_to_rest(), "a new NIC is awake");
        }
        nics.rests_until[..2].copy_from_slice(&[Instant(7), Instant(5)]);
        assert!(!nics.all_rest(), "the pass has not ended");
        assert!(nics.come_to_rest());
        assert!(!nics.come_to_rest(), "they rested before");
        assert!(nics.all_rest_at(Instant(4)));
        assert!(!nics.all_rest_at(Instant(5)) && nics.all_rest());
        assert!(nics.get_mut(2).is_none() && nics.all_rest());
        assert!(nics.get_mut(0).is_some() && !nics.all_rest());
        assert!(!nics.come_to_rest());
        nics.let_rest(0);
        assert!(nics.rests(0, Instant(5)), "it has no deadline");
        assert!(nics.come_to_rest());
        nics.replace(1, None);
        assert!(!nics.all_rest(), "a NIC was taken away");
    }
}
