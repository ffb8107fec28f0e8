//! Captures of any tool against the rules of the InfiniBand specification.

use std::collections::HashSet;
use std::io::{BufReader, Read};
use std::time::Duration;

use anyhow::{Context, bail};
use faultline_oracle::{Oracle, Place, VIOLATION_LIMIT};
use faultline_wire::packet::{parse_trusted, seal};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::{PcapNgReader, PcapNgState};
use serde::Serialize;

use crate::capture::{DROPPED, LOST_ELSEWHERE, PORT_KIND};

/// First octets of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Most source addresses that are remembered. Packets of further ones are judged where they arrive.
const MOST_SOURCES: usize = 1 << 12;

/// A violation. The number of its frame is the one that Wireshark shows.
#[derive(Debug, Serialize)]
pub struct Found {
    /// Number of the frame, from 1.
    pub frame: u64,
    /// Short name of the rule.
    pub rule: &'static str,
    /// Clause of the specification.
    pub source: &'static str,
    /// Where, and what was wrong.
    pub text: String,
}

/// What was found in a capture.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// Frames in the capture.
    pub frames: u64,
    /// RoCE packets that were judged.
    pub packets: u64,
    /// Frames of which the capture has a part only.
    pub cut: u64,
    /// Frames that the capture has lost, as it says.
    pub lost: u64,
    /// Responses whose queue pair could not be told.
    pub responses_without_requests: u64,
    /// The first violations.
    pub violations: Vec<Found>,
    /// All violations.
    pub violation_count: u64,
}

impl Findings {
    /// The findings as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for found in &self.violations {
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
            text += &format!("({VIOLATION_LIMIT} violations are shown)\n");
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
        text + &format!(
            "{frames} frames, {packets} RoCE packets judged, {violation_count} violations\n"
        )
    }
}

/// Where a frame was captured.
#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    interface: usize,
    /// True if it comes from the adapter at this interface, false if it goes there; `None`: not known.
    is_sent: Option<bool>,
    is_dropped: bool,
}

/// The frames of a capture on their way to the oracle.
struct Judge {
    oracle: Oracle,
    /// Source addresses of frames that were captured where they were sent.
    sources: HashSet<[u8; 6]>,
    frames: u64,
    cut: u64,
    lost: u64,
    /// A cut frame, filled up.
    filled: Vec<u8>,
}

impl Judge {
    fn frame(&mut self, at: Duration, data: &[u8], length: u32, origin: Origin) {
        self.frames = self.frames.saturating_add(1);
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length == data.len() {
            self.pass(at, data, origin);
            return;
        }
        self.cut = self.cut.saturating_add(1);
        let mut filled = std::mem::take(&mut self.filled);
        match fill(data, length, &mut filled) {
            true => self.pass(at, &filled, origin),
            false => self.oracle.skip(),
        }
        self.filled = filled;
    }

    fn pass(&mut self, at: u64, data: &[u8], origin: Origin) {
        let source: Option<&[u8; 6]> = data.get(6..).and_then(<[u8]>::first_chunk);
        match origin.is_sent {
            Some(true) => {
                if let Some(source) = source
                    && self.sources.len() < MOST_SOURCES
                {
                    self.sources.insert(*source);
                }
                self.oracle.sent(at, origin.interface, None, data);
            }
            Some(false) if source.is_some_and(|source| self.sources.contains(source)) => {
                self.oracle.skip();
                if !origin.is_dropped {
                    self.oracle.received(at, origin.interface, data);
                }
            }
            _ => self.oracle.passed(at, data),
        }
    }

    fn lose(&mut self, frames: u64) {
        self.lost = self.lost.saturating_add(frames);
        self.oracle.forget();
    }

    fn pcapng_packet(
        &mut self,
        packet: &EnhancedPacketBlock<'_>,
        state: &PcapNgState,
    ) -> anyhow::Result<()> {
        check_link_type(state, packet.interface_id)?;
        let interface = usize::try_from(packet.interface_id).unwrap_or(usize::MAX);
        let mut origin = Origin {
            interface,
            ..Origin::default()
        };
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Flags(flags) => {
                    // What comes in through a port that leads elsewhere is sent by an adapter behind it.
                    let is_sent = match flags & 3 {
                        1 => Some(false),
                        2 => Some(true),
                        _ => None,
                    };
                    origin.is_sent = is_sent.map(|is_sent| is_sent != is_port(state, interface));
                }
                EnhancedPacketOption::DropCount(lost) if *lost > 0 => self.lose(*lost),
                EnhancedPacketOption::Common(CommonOption::Comment(text)) => {
                    origin.is_dropped |= text.starts_with(DROPPED);
                    if text == LOST_ELSEWHERE {
                        self.lose(0);
                    }
                }
                _ => {}
            }
        }
        self.frame(packet.timestamp, &packet.data, packet.original_len, origin);
        Ok(())
    }
}

/// Fills a cut frame with zeros, and makes its invariant CRC right, so that its headers can be judged. Returns false if they are
/// not whole.
fn fill(data: &[u8], length: usize, filled: &mut Vec<u8>) -> bool {
    /// Longer frames do not exist.
    const MOST: usize = 1 << 17;
    filled.clear();
    if length > MOST {
        return false;
    }
    filled.extend_from_slice(data);
    filled.resize(length, 0);
    let is_whole = parse_trusted(filled).is_ok_and(|p| p.header.header_len() <= data.len());
    is_whole && seal(filled).is_ok()
}

/// Judges a capture: pcapng or pcap. `ready`: the adapters have agreed to exchange READY packets.
///
/// # Errors
///
/// It can't be read, or is not a capture of Ethernet frames.
pub fn check(mut file: impl Read, ready: bool) -> anyhow::Result<Findings> {
    let mut magic = [0; 4];
    file.read_exact(&mut magic)
        .context("the file is shorter than the header of a capture")?;
    let file = magic.as_slice().chain(BufReader::new(file));
    let mut judge = Judge {
        oracle: Oracle::new(Place::Link),
        sources: HashSet::new(),
        frames: 0,
        cut: 0,
        lost: 0,
        filled: Vec::new(),
    };
    if ready {
        judge.oracle.set_all_ready();
    }
    match magic == PCAPNG {
        true => read_pcapng(file, &mut judge)?,
        false => read_pcap(file, &mut judge)?,
    }
    let found = judge.oracle.violations().iter().map(|violation| Found {
        frame: violation.frame,
        rule: violation.rule.name(),
        source: violation.rule.source(),
        text: violation.to_string(),
    });
    Ok(Findings {
        frames: judge.frames,
        packets: judge.oracle.packets(),
        cut: judge.cut,
        lost: judge.lost,
        responses_without_requests: judge.oracle.responses_without_flow(),
        violations: found.collect(),
        violation_count: judge.oracle.counts().values().sum(),
    })
}

fn read_pcapng(file: impl Read, judge: &mut Judge) -> anyhow::Result<()> {
    let mut reader = PcapNgReader::new(file).context("the header is not that of a pcapng file")?;
    while let Some(block) = reader.next_block() {
        let after = judge.frames;
        let (block, state) = block.with_context(|| format!("after frame {after}"))?;
        match block {
            Block::EnhancedPacket(packet) => judge.pcapng_packet(&packet, state)?,
            // It has no time; the oracle needs none on a link.
            Block::SimplePacket(packet) => {
                check_link_type(state, 0)?;
                let (data, length) = (&packet.data, packet.original_len);
                judge.frame(Duration::ZERO, data, length, Origin::default());
            }
            _ => {}
        }
    }
    Ok(())
}

/// True if an interface is described as a port that leads out of a process of Faultline.
fn is_port(state: &PcapNgState, interface: usize) -> bool {
    let found = state.interfaces().get(interface);
    let mut options = found.into_iter().flat_map(|found| &found.options);
    options.any(|option| {
        matches!(option, InterfaceDescriptionOption::IfDescription(kind) if kind == PORT_KIND)
    })
}

fn check_link_type(state: &PcapNgState, interface: u32) -> anyhow::Result<()> {
    let index = usize::try_from(interface).unwrap_or(usize::MAX);
    match state.interfaces().get(index).map(|found| found.linktype) {
        Some(DataLink::ETHERNET) => Ok(()),
        Some(other) => bail!("interface {interface} has link type {other:?}; Ethernet is needed"),
        None => bail!("interface {interface} is not described"),
    }
}

fn read_pcap(file: impl Read, judge: &mut Judge) -> anyhow::Result<()> {
    let mut reader = PcapReader::new(file)
        .context("the header is neither that of a pcapng nor of a pcap file")?;
    let link = reader.header().datalink;
    if link != DataLink::ETHERNET {
        bail!("the link type is {link:?}; Ethernet is needed");
    }
    while let Some(packet) = reader.next_packet() {
        let after = judge.frames;
        let packet = packet.with_context(|| format!("after frame {after}"))?;
        judge.frame(
            packet.timestamp(),
            packet.data(),
            packet.orig_len(),
            Origin::default(),
        );
    }
    Ok(())
}
