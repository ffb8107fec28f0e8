//! A NIC on its way from one engine to another.

use faultline_fabric::PortId;
use faultline_fabric::taken_nic::TakenNic;
use faultline_telemetry::NicRecords;

use crate::engines::engine::Engine;
use crate::nic::io::{NicIo, number};
use crate::nic::ram::Ram;

/// The parts of a NIC that belong to its engine.
#[derive(Debug)]
pub(crate) struct MovedNic {
    nic: TakenNic<Ram>,
    io: NicIo,
    records: NicRecords,
}

impl MovedNic {
    /// The port.
    pub(crate) fn id(&self) -> PortId {
        self.nic.id()
    }
}

impl Engine {
    /// Removes NICs from this engine. From then on the engine has the memory of its link in place of the memory of
    /// their guests.
    pub(crate) fn take_nics(&mut self, ids: &[PortId]) -> Vec<MovedNic> {
        let take = |id: &PortId| {
            let id = *id;
            self.io.captures.forget_stall(id);
            Some(MovedNic {
                nic: self.fabric.take_nic(id)?,
                io: self.io.nics.replace(id, None)?,
                records: self.io.recorder.take_nic(number(id)),
            })
        };
        let taken = ids.iter().filter_map(take).collect();
        // This engine may make no pass before it has the links again.
        if self.fabric.share_pauses() {
            self.io.links.wake_all();
        }
        taken
    }

    /// Adds NICs that another engine had.
    pub(crate) fn put_nics(&mut self, nics: Vec<MovedNic>) {
        for nic in nics {
            let id = nic.id();
            self.fabric.put_nic(nic.nic);
            self.io.nics.replace(id, Some(nic.io));
            self.io.recorder.put_nic(number(id), nic.records);
        }
    }
}
