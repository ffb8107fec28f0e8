//! A NIC on its way from one engine to another.

use faultline_fabric::PortId;
use faultline_fabric::link_model::ModelledLink;
use faultline_scenario::trigger::Direction;
use faultline_telemetry::NicRecords;

use crate::engine::Engine;
use crate::port::{NicPort, number};
use crate::ram::Ram;
use faultline_fabric::Mark;

/// All that an engine has of a NIC.
#[derive(Debug)]
pub(crate) struct MovedNic {
    id: PortId,
    port: NicPort,
    ram: Ram,
    lines: Vec<(PortId, Direction, ModelledLink<Mark>)>,
    records: NicRecords,
}

impl MovedNic {
    /// The port.
    pub(crate) fn id(&self) -> PortId {
        self.id
    }
}

impl Engine {
    /// Takes NICs of this engine away. The engine has the memory of its link in place of that of their guests.
    pub(crate) fn take_nics(&mut self, ids: &[PortId]) -> Vec<MovedNic> {
        let take = |id: &PortId| {
            let id = *id;
            self.release_nic(id);
            self.captures.forget_stall(id);
            let port = self.ports.replace(id, None)?;
            let linked = self.links.memory_of_guest.replace(id, None);
            Some(MovedNic {
                id,
                port,
                ram: self.rams.replace(id, linked)?,
                lines: self.lines.take(id),
                records: self.recorder.take_nic(number(id)),
            })
        };
        let taken = ids.iter().filter_map(take).collect();
        // This engine may make no pass before it has the links again.
        self.share_pauses();
        taken
    }

    /// Adds NICs that another engine had.
    pub(crate) fn put_nics(&mut self, nics: Vec<MovedNic>) {
        for nic in nics {
            let id = nic.id;
            self.ports.replace(id, Some(nic.port));
            let linked = self.rams.replace(id, Some(nic.ram));
            self.links.memory_of_guest.replace(id, linked);
            self.lines.put(nic.lines);
            self.recorder.put_nic(number(id), nic.records);
        }
    }
}
