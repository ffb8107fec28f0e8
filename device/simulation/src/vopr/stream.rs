//! The opening of a connection of iWARP, in steps that follow events of its NICs.

use faultline_abi::U16;
use faultline_abi::event::{CONNECT_FAILED, CONNECTED, CONNECTION_REQUEST, Eqe};
use faultline_abi::iwarp::ConnectionPath;

use super::flow::{Connection, Opening};
use super::plan::Plan;
use super::processes::PlanProcesses;
use super::report::Failure;
use crate::driver::ALL_ACCESS;
use crate::iwarp::{Private, connection_path, listener_path};

/// TCP port of the first connection, at the requester and at the responder. Each connection of a run has its own.
const PORTS: (u16, u16) = (40_000, 5000);
/// Most connections of a flow.
const GENERATIONS: usize = 64;

impl Connection<'_> {
    /// Listens at the responder, and opens the connection at the requester.
    pub(super) fn open_stream(
        &mut self,
        processes: &mut PlanProcesses,
        plan: &Plan,
    ) -> Result<(), Failure> {
        let number = self.index.saturating_mul(GENERATIONS);
        let number = u16::try_from(number.saturating_add(self.generation)).unwrap_or(0);
        let local = PORTS.0.saturating_add(number);
        let port = PORTS.1.saturating_add(number);
        let in_vlan = |nic: usize, path: ConnectionPath| ConnectionPath {
            vlan: plan.tag_of(nic).map_or(path.vlan, U16::new),
            ..path
        };
        for side in self.sides() {
            if let Some(host) = processes.host(side.host) {
                host.driver.to_init(side.qpn, ALL_ACCESS)?;
            }
        }
        let Some(host) = processes.host(self.responder.host) else {
            return Ok(());
        };
        self.responder.post_receives(host, self.plan.transport);
        let path = in_vlan(self.responder.host, listener_path(host.gid, port));
        let listener = host.driver.listen(path, 1)?;
        self.opening = Some(Opening::Listening(listener));
        let remote = (host.gid, host.mac);
        if let Some(host) = processes.host(self.requester.host) {
            let path = connection_path((host.gid, local), (remote.0, port), remote.1);
            let path = in_vlan(self.requester.host, path);
            let qpn = self.requester.qpn;
            host.driver.open(qpn, path, &Private::default())?;
        }
        Ok(())
    }

    /// Takes an event of a NIC, which may be that of another connection.
    pub(super) fn take_event(
        &mut self,
        processes: &mut PlanProcesses,
        nic: usize,
        event: &Eqe,
    ) -> Result<(), Failure> {
        let object = event.object.get();
        let is_requester = (nic, object) == (self.requester.host, self.requester.qpn);
        match (self.opening, event.kind) {
            // The request of a NIC that was reset may have gone.
            _ if self.is_cut() => {}
            (Some(Opening::Listening(listener)), CONNECTION_REQUEST)
                if (nic, object) == (self.responder.host, listener) =>
            {
                let request = u32::try_from(event.token.get()).unwrap_or(u32::MAX);
                if let Some(host) = processes.host(nic) {
                    let qpn = self.responder.qpn;
                    host.driver.accept(qpn, request, &Private::default())?;
                    host.driver.unlisten(listener)?;
                }
                self.opening = Some(Opening::Accepted);
            }
            (Some(_), CONNECTED) if is_requester => {
                self.opening = None;
                self.next_at = processes.wired.now();
            }
            (Some(_), CONNECT_FAILED) if is_requester => {
                return Err(Failure::NotConnected(self.index));
            }
            _ => {}
        }
        Ok(())
    }
}
