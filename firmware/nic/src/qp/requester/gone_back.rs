//! What transmission has gone back for.

use faultline_wire::bth::Psn;

/// What transmission has gone back for since an acknowledgement or a timeout. It goes back once for each: packets that were sent before
/// it went back may cause the same again, and if going back did not help, the timeout does. Without an ACK timeout nothing does, as after the
/// loss of a last packet: for example if a request is lost, refused by an RNR NAK, and lost again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GoneBack {
    /// A response that was missing.
    response: Option<Psn>,
    /// A request for which there was a sequence NAK. A responder sends one for a gap (IBTA 9.7.5.1.3); `rdma_rxe` sends more if it refuses
    /// the request by an RNR NAK, too.
    request: Option<Psn>,
}

impl GoneBack {
    /// Transmission is to go back for a missing response. Returns true for the first time.
    pub(super) fn for_response(&mut self, psn: Psn) -> bool {
        self.response.replace(psn) != Some(psn)
    }

    /// Transmission is to go back because of a sequence NAK. Returns true for the first time.
    pub(super) fn for_request(&mut self, psn: Psn) -> bool {
        self.request.replace(psn) != Some(psn)
    }
}
