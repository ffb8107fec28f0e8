//! The move of a NIC, with its memory and link models, from one fabric to another.

use crate::fabric::Fabric;
use crate::frame::Mark;
use crate::link_model::ModelledLink;
use crate::nic_port::NicPort;
use crate::outside::{Outside, Place};
use crate::switch::PortId;

/// A NIC on its way from one fabric to another.
#[derive(Debug)]
pub struct TakenNic<M> {
    id: PortId,
    port: NicPort,
    memory: M,
    links: Vec<(Place, ModelledLink<Mark>)>,
}

impl<M> TakenNic<M> {
    /// Its port.
    pub fn id(&self) -> PortId {
        self.id
    }
}

impl<O: Outside> Fabric<O> {
    /// Takes a NIC away.
    pub fn take_nic(&mut self, id: PortId) -> Option<TakenNic<O::Memory>> {
        self.release_nic(id);
        // The engine that takes the NIC learns again which addresses are behind it.
        self.switch.forget(id);
        let port = self.nics.replace(id, None)?;
        let of_other = self.memories_of_others.replace(id, None);
        Some(TakenNic {
            id,
            port,
            memory: self.memories.replace(id, of_other)?,
            links: self.links.take(id),
        })
    }

    /// Adds a NIC that another fabric had.
    pub fn put_nic(&mut self, nic: TakenNic<O::Memory>) {
        let id = nic.id;
        // Addresses that were learned from frames of the other fabric are not valid here.
        self.switch.forget(id);
        self.nics.replace(id, Some(nic.port));
        let of_other = self.memories.replace(id, Some(nic.memory));
        self.memories_of_others.replace(id, of_other);
        self.links.put(nic.links);
    }
}
