//! Rules follow the connections and regions of a NIC by its diagnostics.

use faultline_abi::admin::{CREATE_MKEY, DESTROY_QP, MODIFY_QP};
use faultline_nic::{CommandQueue, Diagnostic, Nic, State};

use super::Rules;
use super::request::NicRequest;
use super::view::{NewConnection, NicView, Region};

/// Queue pairs of a list that are taken at a time.
const PART: usize = 1024;

/// What rules must know of a queue pair that is ready to receive.
fn connection_of(device: &Nic, qpn: u32) -> NewConnection {
    let info = device.queue_pair_info(qpn);
    let context = info.as_ref().map(|pair| pair.context);
    let process = context.and_then(|context| device.context_info(context)?.process);
    let psns = device.queue_pair_psns(qpn);
    NewConnection {
        qpn,
        first_sent: None,
        first_received: psns.map(|psns| psns.next_received),
        process: process.map(|process| process.name),
        policy: info.map(|pair| pair.fault_policy).unwrap_or_default(),
    }
}

impl NicView {
    /// Takes the connections that exist. They have no number, and the first PSNs that rules know are the next ones.
    pub(super) fn take_existing(&mut self, device: &Nic) {
        let mut from = Some(0);
        while let Some(place) = from {
            let part = device.queue_pairs(place, PART);
            for pair in part.items {
                // Work queues and RSS queue pairs have no state.
                if matches!(pair.state, None | Some(State::Reset | State::Init)) {
                    continue;
                }
                let psns = device.queue_pair_psns(pair.qpn);
                self.existed(NewConnection {
                    first_sent: psns.map(|psns| psns.next_sent),
                    ..connection_of(device, pair.qpn)
                });
            }
            from = part.next;
        }
    }
}

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
            Diagnostic::QpState {
                qpn,
                to: State::Reset,
                ..
            }
            | Diagnostic::Command {
                queue: CommandQueue::Admin,
                opcode: DESTROY_QP,
                status: 0,
                object: qpn,
            } => self.disconnected(nic, qpn),
            Diagnostic::Reset => {
                let pairs = self.nics.get(nic).map(NicView::pairs);
                for qpn in pairs.unwrap_or_default() {
                    self.disconnected(nic, qpn);
                }
            }
            Diagnostic::Command {
                queue: CommandQueue::Admin,
                opcode: MODIFY_QP,
                status: 0,
                object: qpn,
            } => {
                let view = self.nics.get_mut(nic);
                let connection = view.and_then(|view| view.connection_mut(qpn));
                if let (Some(connection), Some(pair)) = (connection, device.queue_pair_info(qpn)) {
                    connection.policy = pair.fault_policy;
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
        // The queue pair may have had another connection, from which it went to RTR without a diagnostic that was seen.
        self.disconnected(nic, qpn);
        let new = connection_of(device, qpn);
        let view = self.nics.get_mut(nic);
        if view.is_some_and(|view| view.connected(new)) {
            for id in self.entries_of_pair(nic, qpn) {
                self.request(nic, NicRequest::AddInjectionPair(id, qpn));
            }
        }
    }

    /// A queue pair has no connection any more, and its number may get another owner.
    fn disconnected(&mut self, nic: usize, qpn: u32) {
        let entries = self.entries_of_pair(nic, qpn);
        let view = self.nics.get_mut(nic);
        if view.is_some_and(|view| view.ended(qpn)) {
            for id in entries {
                self.request(nic, NicRequest::RemoveInjectionPair(id, qpn));
            }
        }
    }

    fn registered(&mut self, nic: usize, region: Region) {
        let view = self.nics.get_mut(nic);
        if let Some(number) = view.and_then(|view| view.registered(region)) {
            self.begin_region(nic, number);
        }
    }
}
