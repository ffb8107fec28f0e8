//! Captures of any tool against the rules of the InfiniBand specification.

use std::io::{BufReader, Read};
use std::time::Duration;

use anyhow::{Context, bail};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::blocks::section_header::SectionHeaderOption;
use pcap_file::pcapng::{PcapNgReader, PcapNgState};

use crate::frame_checker::{FrameChecker, Interface, InterfaceKind, Origin, fill};
use crate::record::{IMPAIRMENTS, LOST_ELSEWHERE, PORT_KIND, PROGRAM};
use crate::tunnel;
use crate::window::{Held, Window};

pub use crate::frame_checker::{Findings, Found};

/// First octets of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A capture can't be read to its end: it is damaged, or ends inside a block.
#[derive(Debug, thiserror::Error)]
#[error("{reason:#}")]
pub struct Unreadable {
    /// Position and cause.
    pub reason: anyhow::Error,
    /// Findings about the frames before that position.
    pub before: Box<Findings>,
}

/// Judges a capture: pcapng or pcap. `ready`: the adapters have agreed to exchange READY packets.
///
/// # Errors
///
/// It can't be read to its end, or is not a capture of Ethernet frames. The error has the findings about what is before.
pub fn check(file: impl Read, ready: bool) -> Result<Findings, Unreadable> {
    let mut reader = Reader {
        frame_checker: FrameChecker::of_file(ready),
        window: Window::default(),
    };
    let result = reader.read(file);
    let Reader {
        mut frame_checker,
        mut window,
    } = reader;
    window.empty(&mut frame_checker);
    match result {
        Ok(()) => Ok(frame_checker.findings()),
        Err(reason) => Err(Unreadable {
            reason,
            before: Box::new(frame_checker.findings()),
        }),
    }
}

/// Reads a file.
struct Reader {
    frame_checker: FrameChecker,
    window: Window,
}

impl Reader {
    fn read(&mut self, mut file: impl Read) -> anyhow::Result<()> {
        let mut magic = [0; 4];
        file.read_exact(&mut magic)
            .context("the file is shorter than the header of a capture")?;
        let file = magic.as_slice().chain(BufReader::new(file));
        match magic == PCAPNG {
            true => self.read_pcapng(file),
            false => self.read_pcap(file),
        }
    }

    /// Takes a frame of `length` octets; the file has `data` of it. `is_own`: Faultline made the capture, whose frames are in the order of
    /// sending.
    fn take(&mut self, at: Duration, data: &[u8], length: u32, origin: Origin, is_own: bool) {
        let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let is_whole = length == data.len();
        if is_own {
            self.frame_checker.frame(at, data, length, origin);
            if !is_whole {
                self.frame_checker.note_cut();
            }
            return;
        }
        let number = self.frame_checker.number();
        let (mut octets, length) = match tunnel::unwrap(data) {
            Some(inner) => {
                self.frame_checker.note_tunnel();
                (inner.octets, inner.length)
            }
            None => (data.to_vec(), length),
        };
        let known = octets.len();
        let is_cut = length != known;
        if is_cut || !is_whole {
            self.frame_checker.note_cut();
        }
        if is_cut {
            let mut filled = Vec::new();
            // Without whole headers nothing of it is judged.
            if !fill(&octets, length, &mut filled) {
                filled.clear();
            }
            octets = filled;
        }
        let held = Held {
            number,
            at,
            octets,
            known,
            origin,
        };
        self.window.push(&mut self.frame_checker, held);
    }

    /// The capture has lost frames here.
    fn lose(&mut self, frames: u64) {
        self.window.empty(&mut self.frame_checker);
        self.frame_checker.lose(frames);
    }

    fn take_packet(
        &mut self,
        packet: &EnhancedPacketBlock<'_>,
        state: &PcapNgState,
    ) -> anyhow::Result<()> {
        check_link_type(state, packet.interface_id)?;
        for description in state
            .interfaces()
            .iter()
            .skip(self.frame_checker.interfaces.len())
        {
            self.frame_checker.add(interface(description));
        }
        let mut origin = Origin {
            interface: usize::try_from(packet.interface_id).unwrap_or(usize::MAX),
            ..Origin::default()
        };
        for option in &packet.options {
            match option {
                EnhancedPacketOption::Flags(flags) => {
                    origin.is_outbound = match flags & 3 {
                        1 => Some(false),
                        2 => Some(true),
                        _ => None,
                    };
                }
                EnhancedPacketOption::DropCount(lost) if *lost > 0 => self.lose(*lost),
                EnhancedPacketOption::Common(CommonOption::Comment(text)) => {
                    let mut impairments = IMPAIRMENTS.iter();
                    origin.is_impaired |= impairments.any(|begin| text.starts_with(begin));
                    if text == LOST_ELSEWHERE {
                        self.lose(0);
                    }
                }
                _ => {}
            }
        }
        let (data, length) = (&packet.data, packet.original_len);
        self.take(packet.timestamp, data, length, origin, is_own(state));
        Ok(())
    }

    fn read_pcapng(&mut self, file: impl Read) -> anyhow::Result<()> {
        let mut reader =
            PcapNgReader::new(file).context("the header is not that of a pcapng file")?;
        while let Some(block) = reader.next_block() {
            let after = self.frame_checker.frames();
            let (block, state) = block.with_context(|| format!("after frame {after}"))?;
            match block {
                Block::EnhancedPacket(packet) => self.take_packet(&packet, state)?,
                // It has no time; the checker needs none on a link.
                Block::SimplePacket(packet) => {
                    check_link_type(state, 0)?;
                    let (data, length) = (&packet.data, packet.original_len);
                    self.take(Duration::ZERO, data, length, Origin::default(), false);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read_pcap(&mut self, file: impl Read) -> anyhow::Result<()> {
        let mut reader = PcapReader::new(file)
            .context("the header is neither that of a pcapng nor of a pcap file")?;
        let link = reader.header().datalink;
        if link != DataLink::ETHERNET {
            bail!("the link type is {link:?}; Ethernet is needed");
        }
        while let Some(packet) = reader.next_packet() {
            let after = self.frame_checker.frames();
            let packet = packet.with_context(|| format!("after frame {after}"))?;
            let (at, length) = (packet.timestamp(), packet.orig_len());
            self.take(at, packet.data(), length, Origin::default(), false);
        }
        Ok(())
    }
}

/// True if Faultline has captured the section.
fn is_own(state: &PcapNgState) -> bool {
    let options = &state.section().options;
    options.iter().any(|option| {
        matches!(option, SectionHeaderOption::UserApplication(name) if name.starts_with(PROGRAM))
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

fn interface(description: &InterfaceDescriptionBlock<'_>) -> Interface {
    let mut found = Interface {
        name: String::new(),
        kind: InterfaceKind::Nic,
    };
    for option in &description.options {
        match option {
            InterfaceDescriptionOption::IfName(name) => found.name = name.to_string(),
            InterfaceDescriptionOption::IfDescription(kind) if kind == PORT_KIND => {
                found.kind = InterfaceKind::Port;
            }
            _ => {}
        }
    }
    found
}
