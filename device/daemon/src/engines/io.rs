//! The surroundings of the fabric of an engine thread: interrupts, records, captures, the log, and the links to other
//! engines.

use faultline_capture::Captures;
use faultline_fabric::PortId;
use faultline_fabric::by_port::ByPort;
use faultline_fabric::frame::{Frame, Octets};
use faultline_fabric::nics::Nics;
use faultline_fabric::outside::{Outside, Seen};
use faultline_nic::{Diagnostic, Instant, Nic};
use faultline_telemetry::{DoorbellPath, FrameEvent, Recorder, TraceEvent};

use crate::engines::handle::RequestLook;
use crate::engines::link::EngineLinks;
use crate::log::diagnostics::{self, DiagnosticQueue};
use crate::log::notice::Notice;
use crate::nic::io::{NicIo, number};
use crate::nic::ram::Ram;
use crate::peer_rings::PeerRings;

/// The surroundings of the fabric of an engine.
#[derive(Debug)]
pub struct EngineIo {
    /// Doorbell pages, interrupts and logs of the NICs of this engine.
    pub nics: ByPort<NicIo>,
    /// Metrics and trace of its NICs.
    pub recorder: Recorder,
    /// Captures that run.
    pub captures: Captures,
    /// For messages that are logged. The engine thread writes none itself.
    pub(crate) log: DiagnosticQueue,
    /// Links to the other engines.
    pub(crate) links: EngineLinks,
    /// Requests to the engine.
    pub(crate) requests: RequestLook,
}

impl EngineIo {
    #[cold]
    fn take_diagnostic(&mut self, at: Instant, nic: PortId, diagnostic: &Diagnostic, device: &Nic) {
        self.recorder.diagnostic(at, number(nic), diagnostic);
        if self.captures.is_on() {
            self.captures.diagnostic(at, nic, diagnostic, device);
        }
        self.log.count(nic, diagnostic);
        if self.log.takes(nic, diagnostics::level(diagnostic)) {
            let owner = diagnostics::owner(device, diagnostic);
            self.log.push_diagnostic(nic, at, *diagnostic, owner);
        }
    }
}

impl Outside for EngineIo {
    type Memory = Ram;
    type Peer = PeerRings;

    #[inline]
    fn interrupt(&mut self, now: Instant, nic: PortId, vector: u16) {
        if let Some(io) = self.nics.get(nic) {
            io.irqs.trigger(usize::from(vector));
        }
        let event = TraceEvent::Interrupt { vector };
        self.recorder.event(now, number(nic), event);
    }

    #[inline]
    fn has_others(&self) -> bool {
        !self.links.is_empty()
    }

    #[inline]
    fn cross(
        &mut self,
        now: Instant,
        (from, sender): (PortId, u32),
        to: Option<PortId>,
        frame: Frame<'_>,
        memory: Option<&Ram>,
    ) -> bool {
        match frame {
            Frame::Octets(Octets { mark, bytes }) => {
                self.links
                    .send_octets((now, from), to, (mark.origin, bytes))
            }
            Frame::ByReference(frame) => {
                memory.is_some_and(|memory| self.links.send((now, from, sender), to, frame, memory))
            }
        }
    }

    #[inline]
    fn is_held(&self, nic: PortId) -> bool {
        self.links.hold(nic)
    }

    #[inline]
    fn is_any_full(&self) -> bool {
        self.links.is_any_full()
    }

    #[inline]
    fn is_awaited(&self, nics: &Nics) -> bool {
        let is_rung = |(id, io): (PortId, &NicIo)| {
            nics.get(id).is_some_and(|port| port.bus_master) && io.must_poll()
        };
        // The queue of a capture has room for the frames of a pass in which each NIC has one turn.
        self.captures.is_on()
            || self.requests.may_wait()
            || self.nics.iter().any(is_rung)
            || self.links.has_news()
    }

    #[inline]
    fn watches_frames(&self) -> bool {
        self.captures.is_on()
    }

    #[inline]
    fn names_faults(&self) -> bool {
        self.captures.names_faults()
    }

    #[inline(always)]
    fn seen(&mut self, now: Instant, seen: Seen<'_, Ram>) {
        match seen {
            Seen::Sent {
                nic,
                sender,
                frame,
                len,
                to,
            } => {
                if let Some(event) = self.recorder.frame(sender, frame, len) {
                    let to = to.map_or(FrameEvent::NO_NIC, number);
                    let event = FrameEvent { to, ..event };
                    self.recorder.sent(now, number(nic), event);
                }
            }
            Seen::Received { nic, sender, frame } => {
                let event = match frame {
                    Frame::ByReference(sent) => self.recorder.frame(sender, sent, sent.len()),
                    Frame::Octets(Octets { bytes, .. }) => {
                        let header = frame.header();
                        Some(FrameEvent::of_packet(header.as_ref(), bytes.len()))
                    }
                };
                if let Some(event) = event {
                    self.recorder.received(number(nic), &event);
                }
            }
            Seen::Frame(sight) => self.captures.sight(now, &sight),
            Seen::Arriving(nic) => self.captures.arriving(nic),
            Seen::Diagnostic {
                nic,
                diagnostic,
                device,
            } => self.take_diagnostic(now, nic, diagnostic, device),
            Seen::LostDiagnostics(nic, lost) => {
                self.recorder.lost_diagnostics(number(nic), lost);
                self.captures.connections_unknown(now);
            }
            Seen::LateDoorbell { nic, page, bell } => {
                let event = TraceEvent::doorbell(page, bell, DoorbellPath::Late);
                self.recorder.event(now, number(nic), event);
            }
            Seen::ForgedSource(nic, src) => {
                if let Some(io) = self.nics.get_mut(nic) {
                    io.log_forged_source(src);
                }
            }
            Seen::AddressInUse { nic, address, port } => {
                let notice = Notice::AddressInUse {
                    address,
                    port: port.to_owned(),
                };
                self.log.of_nic(nic).notice(notice);
            }
        }
    }
}
