//! Rules follow the connections and regions of a NIC by its diagnostics.

use faultline_abi::admin::CREATE_MKEY;
use faultline_nic::{CommandQueue, Diagnostic, Nic, State};

use super::Rules;
use super::point_use::NewObject;
use super::view::Region;

impl Rules {
    /// Follows connections and regions of a NIC.
    pub(super) fn follow(&mut self, nic: usize, diagnostic: &Diagnostic, device: &Nic) {
        match *diagnostic {
            Diagnostic::QpState {
                qpn,
                to: State::Rtr,
                ..
            } => self.connected(nic, qpn, device),
            Diagnostic::QpState {
                qpn,
                to: State::Rts,
                ..
            } => {
                let psns = device.queue_pair_psns(qpn);
                let view = self.nics.get_mut(nic);
                if let Some(connection) = view.and_then(|view| view.connection_mut(qpn))
                    && connection.first_sent.is_none()
                {
                    connection.first_sent = psns.map(|psns| psns.next_sent);
                }
            }
            Diagnostic::Command {
                queue: CommandQueue::Admin,
                opcode: CREATE_MKEY,
                status: 0,
                object: key,
            } => {
                if let Some(region) = device.region_info(key).filter(|region| region.on_demand) {
                    let region = Region {
                        key,
                        first: region.iova,
                        len: region.length,
                    };
                    self.registered(nic, region);
                }
            }
            _ => {}
        }
    }

    fn connected(&mut self, nic: usize, qpn: u32, device: &Nic) {
        let context = device.queue_pair_info(qpn).map(|pair| pair.context);
        let process = context.and_then(|context| device.context_info(context)?.process);
        let process = process.map(|process| process.name);
        let psn = device.queue_pair_psns(qpn).map(|psns| psns.next_received);
        let view = self.nics.get_mut(nic);
        if let Some(number) = view.and_then(|view| view.connected(qpn, psn, process)) {
            self.begin_object(nic, NewObject::Connection(number));
        }
    }

    fn registered(&mut self, nic: usize, region: Region) {
        let view = self.nics.get_mut(nic);
        if let Some(number) = view.and_then(|view| view.registered(region)) {
            self.begin_object(nic, NewObject::Region(number));
        }
    }
}
