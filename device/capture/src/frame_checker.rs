//! Captured frames for the checker, and its findings.

use std::collections::HashMap;

use faultline_checker::{
    Checker, Finding, Frame, Place, QueuePair, REMARK_LIMIT, Severity, VIOLATION_LIMIT,
};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::packet::parse_trusted;
use faultline_wire::{Ethernet, Ip, Tcp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most source addresses of an interface that are remembered. Packets of further ones are judged where they arrive, too.
const MOST_SOURCES: usize = 1 << 10;
/// Most queue pairs whose attributes are remembered. The path MTUs of further ones are learned from full packets.
const MOST_PAIRS: usize = 1 << 14;
/// Longest frame: longer ones do not exist.
const LONGEST: usize = 1 << 17;

/// A finding about a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// Number of the frame, from 1: the one that Wireshark shows.
    pub frame: u64,
    /// Name of the interface whose adapter has sent the frame, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Short name of the rule.
    pub rule: String,
    /// `violation`, `suspicious` or `note`.
    #[serde(default)]
    pub severity: String,
    /// Clause of the specification.
    pub source: String,
    /// Where, and what was wrong.
    pub text: String,
}

/// What is at an interface of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    /// An adapter.
    Nic,
    /// A port of Faultline that leads out of the process, to adapters behind it.
    Port,
}

/// An interface, and what the adapters at it have violated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InterfaceFindings {
    /// Its name.
    pub name: String,
    /// The kind of adapter at it.
    pub kind: InterfaceKind,
    /// Violations by frames that come from it.
    pub violations: u64,
}

/// What was found in captured frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Findings {
    /// Frames in the capture.
    pub frames: u64,
    /// RoCE packets that were judged.
    pub packets: u64,
    /// TCP segments of iWARP connections that were judged.
    #[serde(default)]
    pub segments: u64,
    /// TCP segments of iWARP connections that were not judged, because the beginning of the connection was not seen, or several senders
    /// have used its addresses and ports.
    #[serde(default)]
    pub unjudged_segments: u64,
    /// Frames that are cut in the file.
    pub cut: u64,
    /// Frames that the capture has lost.
    pub lost: u64,
    /// Responses whose queue pair could not be told.
    pub responses_without_requests: u64,
    /// Packets of connections that are not judged, because several adapters, software or several queue pairs have sent with their addresses
    /// and numbers.
    #[serde(default)]
    pub mixed: u64,
    /// The first violations of each interface.
    pub violations: Vec<Found>,
    /// All violations.
    pub violation_count: u64,
    /// Times that old requests or connections were forgotten, because the checker may keep no more: these connections were judged anew.
    #[serde(default)]
    pub forgotten: u64,
    /// What is suspicious, and notes: the first ones of each rule.
    #[serde(default)]
    pub remarks: Vec<Found>,
    /// All of these.
    #[serde(default)]
    pub remark_count: u64,
    /// Frames that were in tunnels, or had several VLAN tags.
    #[serde(default)]
    pub tunnelled: u64,
    /// The interfaces.
    pub interfaces: Vec<InterfaceFindings>,
}

impl Findings {
    /// The findings as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for found in self.violations.iter().chain(&self.remarks) {
            text += &found.text;
            text.push('\n');
        }
        let Self {
            frames,
            packets,
            violation_count,
            ..
        } = self;
        if *violation_count > self.violations.len() as u64 {
            text += &format!(
                "(the first violations of each interface are shown, {VIOLATION_LIMIT} at most)\n"
            );
        }
        if self.remark_count > self.remarks.len() as u64 {
            let count = self.remark_count;
            text += &format!(
                "({count} findings are no violations; {REMARK_LIMIT} of each rule are shown)\n"
            );
        }
        if self.tunnelled > 0 {
            let count = self.tunnelled;
            text += &format!("{count} frames were taken out of tunnels or VLAN tags\n");
        }
        if self.cut > 0 {
            text += &format!(
                "{} frames are cut: their invariant CRCs were not judged, and nothing of those without whole headers; capture with a \
                 larger snap length\n",
                self.cut
            );
        }
        if self.lost > 0 {
            text += &format!(
                "{} frames were lost by the capture; connections were judged anew after each loss\n",
                self.lost
            );
        }
        if self.responses_without_requests > 0 {
            text += &format!(
                "{} responses were not judged: their requests are not in the capture, or several connections fit\n",
                self.responses_without_requests
            );
        }
        if self.mixed > 0 {
            text += &format!(
                "{} packets were judged by themselves only: several senders have used the addresses and numbers of their connections\n",
                self.mixed
            );
        }
        if self.forgotten > 0 {
            text += &format!(
                "old requests or connections were forgotten {} times, because the checker may keep no more; these connections were judged \
                 anew\n",
                self.forgotten
            );
        }
        if self.unjudged_segments > 0 {
            text += &format!(
                "{} iWARP segments were not judged: the beginnings of their connections were not seen, or several senders have used their \
                 addresses and ports\n",
                self.unjudged_segments
            );
        }
        let iwarp = match self.segments {
            0 => String::new(),
            segments => format!("{segments} iWARP segments and "),
        };
        text + &format!(
            "{frames} frames, {iwarp}{packets} RoCE packets judged, {violation_count} violations\n"
        )
    }
}

/// An interface of a capture.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name in the capture.
    pub name: String,
    /// What is behind it.
    pub kind: InterfaceKind,
}

/// Where a frame was captured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin {
    /// Number of the interface.
    pub interface: usize,
    /// Direction at the interface, if it is known: true if it goes out there.
    pub is_outbound: Option<bool>,
    /// The queue pair that has sent it, if it is known.
    pub sender: Option<u32>,
    /// Software has made it, and the adapter at the interface has only sent it.
    pub is_raw: bool,
    /// It goes no further, or differs from what was sent.
    pub is_impaired: bool,
    /// The adapter that it has reached executes it later: its ingress waits for a page fault.
    pub is_held: bool,
}

/// What is known of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    mtu: Option<u32>,
    /// READs and atomics that it may have outstanding.
    read_limit: Option<u32>,
}

/// Shows captured frames to the checker.
#[derive(Debug)]
pub struct FrameChecker {
    checker: Checker,
    /// The interfaces of the capture.
    pub interfaces: Vec<Interface>,
    /// By address: the interface where frames with this source were sent.
    sources: HashMap<[u8; 6], usize>,
    /// By interface: addresses that were first seen there.
    counts: HashMap<usize, usize>,
    /// Attributes of queue pairs, by interface and number.
    pairs: HashMap<(usize, u32), Attributes>,
    frames: u64,
    cut: u64,
    lost: u64,
    tunnelled: u64,
    /// A cut frame, filled up.
    filled: Vec<u8>,
}

impl FrameChecker {
    /// `ready`: all adapters have agreed to exchange READY packets; otherwise those named to [`FrameChecker::agree_to_ready`].
    pub fn new(interfaces: Vec<Interface>, ready: bool) -> Self {
        let mut checker = Checker::new(Place::Link);
        if ready {
            checker.set_all_ready();
        }
        let mut frame_checker = Self {
            checker,
            interfaces: Vec::new(),
            sources: HashMap::new(),
            counts: HashMap::new(),
            pairs: HashMap::new(),
            frames: 0,
            cut: 0,
            lost: 0,
            tunnelled: 0,
            filled: Vec::new(),
        };
        interfaces
            .into_iter()
            .for_each(|interface| frame_checker.add(interface));
        frame_checker
    }

    /// For a file from an unknown source. `ready`: the adapters are Faultlines that exchange READY packets.
    pub(crate) fn of_file(ready: bool) -> Self {
        let mut frame_checker = Self::new(Vec::new(), ready);
        frame_checker.checker.set_any_makers();
        frame_checker
    }

    /// One more interface of the capture.
    pub fn add(&mut self, interface: Interface) {
        // Before a port, bridges and sockets may lose frames.
        if interface.kind == InterfaceKind::Port {
            self.checker.set_remote(self.interfaces.len());
        }
        self.interfaces.push(interface);
    }

    /// The adapter of an interface has agreed to exchange READY packets with the others that have.
    pub fn agree_to_ready(&mut self, interface: usize) {
        self.checker.set_ready(interface, true);
    }

    /// Sets how many bytes all connections and findings may take.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.checker.limit_memory(bytes);
    }

    /// Frames so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Frames that the capture has lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Judges a frame of `length` octets; `data` are the known ones. Returns false, and judges nothing of it, if its headers are
    /// cut.
    pub fn frame(&mut self, at: u64, data: &[u8], length: usize, origin: Origin) -> bool {
        self.frames = self.frames.saturating_add(1);
        if length == data.len() {
            self.pass(at, data.into(), origin);
            return true;
        }
        let mut filled = std::mem::take(&mut self.filled);
        let is_whole = fill(data, length, &mut filled);
        match is_whole {
            true => self.pass(at, Frame::cut(&filled, data.len()), origin),
            false => self.checker.skip(),
        }
        self.filled = filled;
        is_whole
    }

    /// Counts a frame that is cut in the file.
    pub(crate) fn note_cut(&mut self) {
        self.cut = self.cut.saturating_add(1);
    }

    /// Counts a frame that was in a tunnel.
    pub(crate) fn note_tunnel(&mut self) {
        self.tunnelled = self.tunnelled.saturating_add(1);
    }

    /// The number of the next frame, which is judged later by [`FrameChecker::show`].
    pub(crate) fn number(&mut self) -> u64 {
        self.frames = self.frames.saturating_add(1);
        self.frames
    }

    /// Judges the frame with this number.
    pub(crate) fn show(&mut self, number: u64, at: u64, frame: Frame<'_>, origin: Origin) {
        self.checker.set_number(number);
        self.pass(at, frame, origin);
    }

    /// Notes that the frame that was judged last stands before the one that it presupposes.
    pub(crate) fn note_order(&mut self, at: u64, frame: Frame<'_>, later: u64) {
        self.checker.note_order(at, frame, later);
    }

    fn pass(&mut self, at: u64, frame: Frame<'_>, origin: Origin) {
        let interface = origin.interface;
        if self.is_in_transit(origin, frame.octets()) {
            self.checker.skip();
            return;
        }
        // What comes in through a port that leads elsewhere is sent by an adapter behind it.
        let is_sent = origin
            .is_outbound
            .map(|is_outbound| is_outbound != self.is_port(interface));
        let source = address(frame.octets(), SOURCE);
        match is_sent {
            Some(true) => {
                // The switch takes none with the address of another NIC.
                if let Some(source) = source.filter(|_| !origin.is_impaired) {
                    self.learn(source, interface);
                }
                if origin.is_raw {
                    self.checker.sent_by_software(at, interface, frame);
                    return;
                }
                let sender = origin.sender.map(|qpn| {
                    let known = self.pairs.get(&(interface, qpn)).copied();
                    let Attributes { mtu, read_limit } = known.unwrap_or_default();
                    QueuePair {
                        qpn,
                        mtu,
                        read_limit,
                    }
                });
                self.checker.sent(at, interface, sender, frame);
            }
            // It was judged where it was sent, or its source address is wrong, too.
            Some(false) if origin.is_impaired => self.checker.skip(),
            Some(false) if source.is_some_and(|source| self.sources.contains_key(&source)) => {
                self.checker.skip();
                match origin.is_held {
                    true => self.checker.held(at, interface, frame),
                    false => self.checker.received(at, interface, frame),
                }
            }
            Some(false) => self.checker.passed_to(at, interface, frame),
            None => self.checker.passed(at, frame),
        }
    }

    /// True if a frame passes a port on its way between two NICs of the capture: it is judged at the NICs. At the port it is late,
    /// and would look like a repetition. One that comes in there from a NIC has gone out through another port.
    fn is_in_transit(&self, origin: Origin, frame: &[u8]) -> bool {
        let is_of_nic = |place| {
            let sent_at = address(frame, place).and_then(|address| self.sources.get(&address));
            sent_at.is_some_and(|&sent_at| !self.is_port(sent_at))
        };
        let comes_in = origin.is_outbound == Some(false);
        self.is_port(origin.interface) && is_of_nic(SOURCE) && (comes_in || is_of_nic(DESTINATION))
    }

    /// An address is that of an interface. The switch lets a NIC send with its own addresses, while what comes in through a port may be of
    /// any of them.
    fn learn(&mut self, address: [u8; 6], interface: usize) {
        let is_port = self.is_port(interface);
        match self.sources.get_mut(&address) {
            Some(_) if is_port => {}
            Some(sent_at) => *sent_at = interface,
            None => {
                let count = self.counts.entry(interface).or_default();
                if *count < MOST_SOURCES {
                    *count = count.saturating_add(1);
                    self.sources.insert(address, interface);
                }
            }
        }
    }

    fn is_port(&self, interface: usize) -> bool {
        let found = self.interfaces.get(interface);
        found.is_some_and(|found| found.kind == InterfaceKind::Port)
    }

    /// The capture has lost frames: connections are judged anew.
    pub fn lose(&mut self, frames: u64) {
        self.lost = self.lost.saturating_add(frames);
        self.checker.forget();
    }

    /// Discards the attributes of queue pairs: some notices were lost.
    pub fn forget_attributes(&mut self) {
        self.pairs.clear();
    }

    /// A queue pair of the adapter at an interface begins another connection, with this path MTU; 0: it has none.
    pub fn restart_queue_pair(&mut self, interface: usize, qpn: u32, mtu: u32) {
        self.checker.restart_queue_pair(interface, qpn);
        self.pairs.remove(&(interface, qpn));
        if mtu > 0 {
            self.set_attribute(interface, qpn, |pair| pair.mtu = Some(mtu));
        }
    }

    /// Sets how many READs and atomics a queue pair of the adapter at an interface may have outstanding.
    pub fn limit_reads(&mut self, interface: usize, qpn: u32, limit: u32) {
        self.set_attribute(interface, qpn, |pair| pair.read_limit = Some(limit));
    }

    fn set_attribute(&mut self, interface: usize, qpn: u32, set: impl FnOnce(&mut Attributes)) {
        let pair = (interface, qpn);
        if self.pairs.len() < MOST_PAIRS || self.pairs.contains_key(&pair) {
            set(self.pairs.entry(pair).or_default());
        }
    }

    /// The checker.
    pub fn checker(&self) -> &Checker {
        &self.checker
    }

    /// What was found until now.
    pub fn findings(&self) -> Findings {
        let name = |adapter: Option<usize>| {
            let interface = adapter.and_then(|adapter| self.interfaces.get(adapter));
            interface.map(|interface| interface.name.clone())
        };
        let found = |finding: &Finding| Found {
            frame: finding.frame,
            interface: name(finding.adapter),
            rule: finding.rule.name().to_owned(),
            severity: finding.rule.severity().name().to_owned(),
            source: finding.rule.source().to_owned(),
            text: finding.to_string(),
        };
        let interfaces = self.interfaces.iter().enumerate();
        let interfaces = interfaces.map(|(number, interface)| InterfaceFindings {
            name: interface.name.clone(),
            kind: interface.kind,
            violations: self.checker.count_of(Some(number)),
        });
        Findings {
            frames: self.frames,
            packets: self.checker.packets(),
            segments: self.checker.segments(),
            unjudged_segments: self.checker.unjudged_segments(),
            cut: self.cut,
            lost: self.lost,
            responses_without_requests: self.checker.responses_without_flow(),
            mixed: self.checker.mixed(),
            forgotten: self.checker.forgotten(),
            violations: self.checker.violations().iter().map(found).collect(),
            violation_count: self.checker.count(Severity::Violation),
            remarks: self.checker.remarks().iter().map(found).collect(),
            remark_count: [Severity::Suspicious, Severity::Note]
                .map(|severity| self.checker.count(severity))
                .iter()
                .sum(),
            tunnelled: self.tunnelled,
            interfaces: interfaces.collect(),
        }
    }
}

/// Where an Ethernet frame has its addresses.
const DESTINATION: usize = 0;
const SOURCE: usize = 6;

/// An address of an Ethernet frame.
fn address(frame: &[u8], place: usize) -> Option<[u8; 6]> {
    frame.get(place..)?.first_chunk().copied()
}

/// Fills a cut frame with zeros, so that its headers can be judged. Returns false if they are not whole.
pub(crate) fn fill(data: &[u8], length: usize, filled: &mut Vec<u8>) -> bool {
    filled.clear();
    if length > LONGEST {
        return false;
    }
    filled.extend_from_slice(data);
    filled.resize(length, 0);
    match parse_trusted(filled) {
        Ok(parsed) => parsed.header.header_len() <= data.len(),
        Err(_) => has_tcp_header(data),
    }
}

/// True if the first octets of a frame contain the header of a TCP segment.
fn has_tcp_header(data: &[u8]) -> bool {
    let header = || {
        let (_, at_ip) = Ethernet::parse(data).ok()?;
        // The length of the frame is checked when the segment is judged.
        let (ip, len) = Ip::parse_start(data.get(at_ip..)?, LONGEST).ok()?;
        let at_tcp = at_ip.checked_add(len)?;
        let is_tcp = ip.protocol() == PROTOCOL_TCP;
        is_tcp
            .then(|| Tcp::parse(data.get(at_tcp..)?).ok())
            .flatten()
    };
    header().is_some()
}

#[cfg(test)]
mod tests {
    use faultline_wire::{EtherType, Gid, MacAddr};

    use super::*;

    /// A cut TCP segment can be judged if its header is whole.
    #[test]
    fn a_cut_segment_needs_its_header() {
        let ethernet = Ethernet {
            dst: MacAddr([2; 6]),
            src: MacAddr([4; 6]),
            vlan: None,
            ethertype: EtherType::IPV6,
        };
        let gid = |last: u8| Gid([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let mut ip = Ip::from_gids(gid(1), gid(2), 0, 0, 64);
        let Ip::V6(v6) = &mut ip else {
            unreachable!("the addresses are of IPv6");
        };
        v6.next_header = PROTOCOL_TCP;
        ip.set_payload_len(1000).unwrap();
        let mut frame = vec![0; 14 + 40 + 1000];
        ethernet.emit(&mut frame).unwrap();
        ip.emit(&mut frame[14..]).unwrap();
        Tcp::default().emit(&mut frame[54..]).unwrap();
        let mut filled = Vec::new();
        for (known, is_whole) in [(73, false), (74, true), (500, true)] {
            let found = fill(&frame[..known], frame.len(), &mut filled);
            assert_eq!((found, filled.len()), (is_whole, frame.len()));
        }
        // The next header is that of UDP.
        frame[14 + 6] = 17;
        assert!(!fill(&frame[..74], frame.len(), &mut filled));
    }
}
