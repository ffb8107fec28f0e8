//! Why a stream ends.

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_wire::rdmap::{RdmapOpcode, Terminate, TerminateCode};

use super::send::Octets;
use crate::fault::Need;
use crate::mkey::Miss;

/// Octets of a DDP header and of that of a READ request, as far as a Terminate message repeats them.
const MAX_HEADERS: usize = 18 + 28;

/// What this end refuses: the content of its Terminate message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The reason.
    pub code: TerminateCode,
    /// The DDP segment that caused it: length and headers.
    ulpdu_len: u16,
    headers: Vec<u8>,
}

impl Refused {
    /// A refusal of a DDP segment; `headers` are its first octets.
    pub(super) fn new(code: TerminateCode, headers: &[u8], ulpdu_len: u16) -> Self {
        let headers = headers.get(..MAX_HEADERS).unwrap_or(headers);
        Self {
            code,
            ulpdu_len,
            headers: headers.to_vec(),
        }
    }

    /// The Terminate message.
    pub(super) fn message(&self) -> Octets {
        let is_tagged = self.headers.first().is_some_and(|octet| octet & 0x80 != 0);
        let ddp_len = if is_tagged { 14 } else { 18 };
        let ddp_header = self.headers.get(..ddp_len).unwrap_or_default();
        let opcode = ddp_header.get(1).map_or(0, |octet| octet & 0xf);
        let is_read = opcode == RdmapOpcode::ReadRequest as u8 && !is_tagged;
        let rest = self.headers.get(ddp_len..).unwrap_or_default();
        let rdmap_header = match rest.get(..28).filter(|_| is_read) {
            Some(header) => header,
            None => &[],
        };
        let terminate = Terminate {
            code: self.code,
            segment_len: (!ddp_header.is_empty()).then_some(self.ulpdu_len),
            ddp_header,
            rdmap_header,
        };
        let mut octets = Octets::new();
        octets.resize(terminate.message_len(), 0);
        // Lengths are those that the headers have.
        let _ = terminate.emit(&mut octets);
        octets
    }
}

/// Why a stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// This end sends a Terminate message.
    Refused(Refused),
    /// The peer has sent one.
    Terminated(TerminateCode),
    /// The setup frame of the peer breaks the rules.
    BadSetup,
}

/// Why an FPDU is not executed.
#[derive(Debug)]
pub(super) enum Stop {
    /// Its payload cannot be read: it counts as lost.
    Lost,
    /// A page is missing.
    Absent(Need),
    /// The stream ends.
    End(End),
}

/// The code for memory that the peer names in a tagged segment (RFC 5041 section 7.1), or in a request (RFC 5040 section 4.8).
pub(super) fn code_of(miss: Miss, is_tagged: bool) -> TerminateCode {
    use TerminateCode as T;
    match (miss, is_tagged) {
        (Miss::Key, true) => T::DDP_TAGGED_INVALID_STAG,
        (Miss::Pd, true) => T::DDP_TAGGED_NOT_ASSOCIATED,
        (Miss::Bounds, true) => T::DDP_TAGGED_BOUNDS,
        (Miss::Key, false) => T::RDMAP_INVALID_STAG,
        (Miss::Pd, false) => T::RDMAP_NOT_ASSOCIATED,
        (Miss::Bounds, false) => T::RDMAP_BOUNDS,
        (Miss::Access, _) => T::RDMAP_ACCESS,
        (Miss::NotPresent(_) | Miss::Absent(_), _) => T::RDMAP_CATASTROPHIC_STREAM,
    }
}

/// The counter of Terminate messages that are sent with this code; `None`: it is counted elsewhere, or the cause is here.
pub(super) fn counter_of(code: TerminateCode) -> Option<Counter> {
    match status_of(code) {
        _ if code == TerminateCode::DDP_UNTAGGED_NO_BUFFER => None,
        cqe::REM_ACCESS_ERR => Some(Counter::resp_remote_access_errors),
        cqe::REM_INV_REQ_ERR => Some(Counter::resp_invalid_request),
        _ => None,
    }
}

/// Status of the completion of a request that the peer has refused with this code.
pub(super) fn status_of(code: TerminateCode) -> u8 {
    match (code.layer, code.error_type) {
        (0 | 1, 1) => cqe::REM_ACCESS_ERR,
        (0, 2) | (1, 2) => cqe::REM_INV_REQ_ERR,
        _ => cqe::REM_OP_ERR,
    }
}
