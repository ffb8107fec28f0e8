//! Rules follow the connections and regions of a NIC by its diagnostics.

use faultline_abi::admin::{CREATE_MKEY, DESTROY_QP, MODIFY_QP};
use faultline_nic::{CommandQueue, Diagnostic, Nic, State};

use super::running::Rules;
use super::view::{NewConnection, ProcessName, Region};

/// Most queue pairs that one step takes. The step is part of a pass of the engine, beside whose turns (a copy of 16 KiB takes
/// 3.5 µs) it should not be long.
pub(super) const PART: usize = 64;

/// Properties of a queue pair that is ready to receive, for rules.
fn connection_of(device: &Nic, qpn: u32) -> NewConnection {
    let info = device.queue_pair_info(qpn);
    let context = info.as_ref().map(|pair| pair.context);
    let process = context.and_then(|context| device.context_info(context)?.process);
    let psns = device.queue_pair_psns(qpn);
    NewConnection {
        qpn,
        first_sent: None,
        first_received: psns.map(|psns| psns.next_received),
        process: process.map(|process| ProcessName::new(&process.name)),
        policy: info.map(|pair| pair.fault_policy).unwrap_or_default(),
    }
}

impl Rules {
    /// One step before [`Rules::begin`]: takes some of the connections that exist. They have no number, and their first
    /// PSNs for rules are the next ones. Returns true if the connections of all NICs were taken.
    pub fn take_existing<'a>(&mut self, nics: impl IntoIterator<Item = &'a Nic>) -> bool {
        for (nic, device) in nics.into_iter().enumerate() {
            let Some(from) = self.nics.get(nic).and_then(|view| view.next_place) else {
                continue;
            };
            let part = device.queue_pairs(from, PART);
            for pair in part.items {
                // Work queues and RSS queue pairs have no state.
                if matches!(pair.state, None | Some(State::Reset | State::Init)) {
                    continue;
                }
                let psns = device.queue_pair_psns(pair.qpn);
                let connection = NewConnection {
                    first_sent: psns.map(|psns| psns.next_sent),
                    ..connection_of(device, pair.qpn)
                };
                self.existed(nic, connection);
            }
            if let Some(view) = self.nics.get_mut(nic) {
                view.next_place = part.next;
            }
            break;
        }
        self.nics.iter().all(|view| view.next_place.is_none())
    }

    fn existed(&mut self, nic: usize, connection: NewConnection) {
        let qpn = connection.qpn;
        let view = self.nics.get_mut(nic);
        if view.is_some_and(|view| view.existed(connection)) {
            self.name_pair(nic, qpn);
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
                self.unname_all(nic);
                if let Some(view) = self.nics.get_mut(nic) {
                    view.all_ended();
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
        if !self.begun {
            self.existed(nic, new);
            return;
        }
        let Some(view) = self.nics.get_mut(nic) else {
            return;
        };
        let is_remembered = view.connected(new);
        let mut rules = self.plan.rules.iter();
        if rules.any(|rule| rule.conditions.connection.is_some()) && view.ends_numbers() {
            self.note_problem(format!(
                "NIC {nic}: later connections have no number for `qp`: there were too many since the start"
            ));
        }
        if is_remembered {
            self.name_pair(nic, qpn);
        }
    }

    /// A queue pair has no connection any more, and its number may get another owner.
    fn disconnected(&mut self, nic: usize, qpn: u32) {
        self.unname_pair(nic, qpn);
        if let Some(view) = self.nics.get_mut(nic) {
            view.ended(qpn);
        }
    }

    fn registered(&mut self, nic: usize, region: Region) {
        // Regions have numbers in the run only.
        if !self.begun {
            return;
        }
        let view = self.nics.get_mut(nic);
        if let Some(number) = view.and_then(|view| view.registered(region)) {
            self.begin_region(nic, number);
        }
    }
}
