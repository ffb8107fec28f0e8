//! Causes for which transmission has gone back.

use faultline_wire::bth::Psn;

/// Causes for which transmission has gone back since the last acknowledgement or timeout. It goes back once for each
/// cause, because packets that were sent before it went back may report the cause again. If the repetition is lost too,
/// the ACK timeout recovers it. Without an ACK timeout the queue stops, as after the loss of a last packet: for example
/// if a request is lost, refused by an RNR NAK, and lost again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GoneBack {
    /// A response that was missing.
    response: Option<Psn>,
    /// A request for which there was a sequence NAK. A responder sends one for a gap (IBTA 9.7.5.1.3); `rdma_rxe` sends more if it refuses
    /// the request by an RNR NAK, too.
    request: Option<Psn>,
}

impl GoneBack {
    /// Records that a response is missing. Returns true the first time: transmission must go back.
    pub(super) fn for_response(&mut self, psn: Psn) -> bool {
        self.response.replace(psn) != Some(psn)
    }

    /// Records a sequence NAK. Returns true the first time: transmission must go back.
    pub(super) fn for_request(&mut self, psn: Psn) -> bool {
        self.request.replace(psn) != Some(psn)
    }
}
