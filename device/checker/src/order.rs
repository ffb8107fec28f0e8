//! The order of packets in a capture: the request that a packet presupposes.

use faultline_wire::packet::parse_trusted;
use faultline_wire::{Gid, Psn};

use crate::finding::addresses;
use crate::flow::is_connected;
use crate::frame::Frame;
use crate::log::FAR;

/// A request that was sent before the packet that presupposes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presupposed {
    pub(crate) from: Gid,
    pub(crate) to: Gid,
    /// `None`: its connection is not known.
    pub(crate) qpn: Option<u32>,
    /// Its PSN; if the connection is unknown, the highest PSN that it can have.
    pub(crate) psn: Psn,
}

impl Presupposed {
    /// True if a frame is this request.
    pub fn is(&self, frame: Frame<'_>) -> bool {
        let Ok(parsed) = parse_trusted(frame.octets()) else {
            return false;
        };
        let bth = &parsed.header.bth;
        let info = bth.opcode.info();
        if !info.kind.is_request()
            || !is_connected(info.service)
            || addresses(&parsed.header) != (self.from, self.to)
        {
            return false;
        }
        match self.qpn {
            Some(qpn) => (bth.dest_qp, bth.psn) == (qpn, self.psn),
            None => {
                let before = self.psn.diff(bth.psn);
                before >= 0 && before.unsigned_abs() <= FAR
            }
        }
    }
}
