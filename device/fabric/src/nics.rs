//! The NICs of a fabric, and which of them rest.
//!
//! A NIC that has nothing to do but to wait for a doorbell, a frame, a request or a deadline *rests*: a pass asks for its doorbells and
//! nothing else. Whoever may change a NIC ends its rest, because [`Nics::get_mut`] and the like do: a NIC that was changed has a turn in the
//! next pass, and rests again only when it had nothing to do in it. What a NIC waits for elsewhere keeps it from resting
//! ([`Fabric::let_rest`](crate::Fabric::let_rest)).

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
}

impl Nics {
    /// For a process with so many NICs. It has none yet.
    pub(crate) fn new(ports: usize) -> Self {
        Self {
            ports: ByPort::new(ports),
            rests_until: vec![NEVER; ports].into_boxed_slice(),
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
        if let Some(until) = self.rests_until.get_mut(id) {
            *until = AWAKE;
        }
        Some(port)
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
        if let Some(until) = self.rests_until.get_mut(id) {
            *until = port.as_ref().map_or(NEVER, |_| AWAKE);
        }
        self.ports.replace(id, port)
    }

    /// True if a NIC has nothing to do at this time, but perhaps doorbells; or a port has no NIC.
    #[inline]
    pub fn rests(&self, id: PortId, now: Instant) -> bool {
        self.rests_until.get(id).is_none_or(|until| *until > now)
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
            *until = port.nic.next_deadline().unwrap_or(NEVER);
        }
    }
}
