//! `faultline check`: captured packets against the rules of the InfiniBand specification.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use faultline_oracle::{Oracle, Place, VIOLATION_LIMIT};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::{PcapNgReader, PcapNgState};
use serde::Serialize;

use super::show;

/// Exit status if a file can't be read.
const UNREADABLE: u8 = 2;

/// First octets of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Check captured RoCEv2 packets against the rules of the InfiniBand specification.
///
/// The capture must contain both directions of a connection. Packets may have been lost behind the place of the capture, so
/// rules are not applied that depend on what an adapter has received. The exit status is 1 if a rule was violated, 2 if the file can't
/// be read.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Capture file (pcapng or pcap).
    file: PathBuf,
    /// The adapters in the file are Faultlines that exchange READY packets (`ready` of their configuration). Without this
    /// option a READY packet is a violation, because a capture does not say what adapters have agreed to.
    #[arg(long)]
    ready: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let found = match check(&self.file, self.ready) {
            Ok(found) => found,
            Err(error) => {
                eprintln!("Error: can't check {}: {error:#}", self.file.display());
                return Ok(ExitCode::from(UNREADABLE));
            }
        };
        show(self.json, &found, Findings::text)?;
        Ok(match found.violations.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

/// A violation. The number of its frame is the one that Wireshark shows.
#[derive(Debug, Serialize)]
struct Found {
    frame: u64,
    rule: &'static str,
    source: &'static str,
    text: String,
}

/// What was found in a file.
#[derive(Debug, Serialize)]
struct Findings {
    /// Frames in the file.
    frames: u64,
    /// RoCE packets that were judged.
    packets: u64,
    /// Frames of which the capture has a part only.
    cut: u64,
    /// Responses whose queue pair could not be told.
    responses_without_requests: u64,
    /// The first violations.
    violations: Vec<Found>,
    /// All violations.
    violation_count: u64,
}

impl Findings {
    fn text(&self) -> String {
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
                "{} frames are cut and were not judged; capture with a larger snap length\n",
                self.cut
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

/// The frames of a file on their way to the oracle.
struct Judge {
    oracle: Oracle,
    frames: u64,
    cut: u64,
}

impl Judge {
    fn frame(&mut self, at: Duration, data: &[u8], length: u32) {
        self.frames = self.frames.saturating_add(1);
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        match usize::try_from(length) == Ok(data.len()) {
            true => self.oracle.passed(at, data),
            false => {
                self.cut = self.cut.saturating_add(1);
                self.oracle.skip();
            }
        }
    }
}

fn check(path: &Path, ready: bool) -> anyhow::Result<Findings> {
    let mut file = File::open(path)?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic)
        .context("the file is shorter than the header of a capture")?;
    file.seek(SeekFrom::Start(0))?;
    let file = BufReader::new(file);
    let mut judge = Judge {
        oracle: Oracle::new(Place::Link),
        frames: 0,
        cut: 0,
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
            Block::EnhancedPacket(packet) => {
                check_link_type(state, packet.interface_id)?;
                judge.frame(packet.timestamp, &packet.data, packet.original_len);
            }
            // It has no time; the oracle needs none on a link.
            Block::SimplePacket(packet) => {
                check_link_type(state, 0)?;
                judge.frame(Duration::ZERO, &packet.data, packet.original_len);
            }
            _ => {}
        }
    }
    Ok(())
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
        judge.frame(packet.timestamp(), packet.data(), packet.orig_len());
    }
    Ok(())
}
