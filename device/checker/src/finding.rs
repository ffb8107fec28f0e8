//! Findings about packets.

use std::fmt;

use faultline_wire::Gid;
use faultline_wire::packet::RoceHeader;

use crate::iwarp::SegmentHeader;
use crate::rule::{Rule, Severity};

/// A packet that violates a rule. The severity is that of the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Time of the packet in nanoseconds, as it was passed to the checker.
    pub at: u64,
    /// Number of the frame among those that were passed to [`Checker::sent`](crate::Checker::sent),
    /// [`Checker::passed`](crate::Checker::passed) or [`Checker::skip`](crate::Checker::skip), from 1.
    pub frame: u64,
    /// Number of the sending adapter, as it was passed to the checker; `None`: not known.
    pub adapter: Option<usize>,
    /// The rule.
    pub rule: Rule,
    /// Headers of the RoCE packet, if it could be parsed.
    pub header: Option<RoceHeader>,
    /// The segment of an iWARP connection.
    pub segment: Option<SegmentHeader>,
    /// Description of the violation.
    pub what: String,
}

/// The IP addresses of a packet as GIDs: source, destination.
pub(crate) fn addresses(header: &RoceHeader) -> (Gid, Gid) {
    (header.ip.src_gid(), header.ip.dst_gid())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rest) = (self.at / 1_000_000_000, self.at % 1_000_000_000);
        write!(f, "frame {}, {seconds}.{rest:09} s", self.frame)?;
        if let Some(header) = &self.header {
            let (from, to) = addresses(header);
            let (qpn, psn) = (header.bth.dest_qp, header.bth.psn.get());
            let opcode = header.bth.opcode;
            write!(f, ", {from} to {to} QP {qpn}, {opcode:?} PSN {psn}")?;
        }
        if let Some(SegmentHeader { from, to, seq }) = &self.segment {
            write!(f, ", {from} to {to}, TCP {seq}")?;
        }
        let Self { rule, what, .. } = self;
        match rule.severity() {
            Severity::Violation => write!(f, ": ")?,
            severity => write!(f, ", {}: ", severity.name())?,
        }
        write!(f, "{what} [{}: {}]", rule.name(), rule.source())
    }
}
