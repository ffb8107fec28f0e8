//! Records of a capture as pcapng, made by a thread of their capture.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use faultline_ports::channel::EnginesEnd;
use faultline_wire::PeerQuery;
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::block_common::PcapNgBlock;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{PcapNgWriteError, PcapNgWriter};
use tokio::sync::mpsc::Sender;

use crate::frame_checker::{Interface, InterfaceKind};
use crate::record::{NIC_KIND, PORT_KIND, PROGRAM, RecordHead};
use crate::records::CaptureRecords;
use crate::share::CaptureShare;

/// Octets of a part, approximately.
const PART: usize = 64 << 10;
/// Direction of a packet in `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// What makes pcapng of the records of a capture.
#[derive(Debug)]
pub struct CaptureStream {
    /// The interfaces, in the order of their numbers.
    pub interfaces: Vec<Interface>,
    /// What it shares with the engines.
    pub share: Arc<CaptureShare>,
    /// Octets that are kept of each frame.
    pub snaplen: u32,
    /// Frames after which it ends.
    pub count: u64,
    /// Time since 1970 at which the device clock was 0.
    pub origin: Duration,
}

/// The comment of a peer query, which Wireshark does not know.
fn query_comment(query: &PeerQuery) -> &'static str {
    match (query.nonce != 0, query.echo != 0) {
        (true, false) => "peer query: asks whether the other end is a Faultline",
        (true, true) => "peer query: answers that this end is a Faultline, and asks the same",
        (false, _) => "peer query: answers that this end is a Faultline",
    }
}

impl CaptureStream {
    /// Sends parts until there are no more records, or nobody takes them.
    pub fn run(&self, end: EnginesEnd, parts: &Sender<Bytes>) {
        // Neither these blocks nor the memory that they are written to can be refused.
        let Ok(mut writer) = self.begin() else {
            return;
        };
        let mut records = CaptureRecords::new(end, Arc::clone(&self.share));
        let mut left = self.count;
        loop {
            // Records that are in the rings when the capture ends are taken.
            let is_stopped = records.is_stopped();
            let mut is_empty = false;
            while left > 0 && !is_empty && writer.get_ref().len() < PART {
                match records.take(|record| self.packet(&mut writer, record)) {
                    Some(Ok(())) => left = left.saturating_sub(1),
                    Some(Err(_)) => return,
                    None => is_empty = true,
                }
            }
            let ends = left == 0 || is_stopped && is_empty;
            if ends && self.finish(&mut writer).is_err() {
                return;
            }
            let part = std::mem::take(writer.get_mut());
            if !part.is_empty() && parts.blocking_send(part.into()).is_err() || ends {
                return;
            }
            if is_empty && !is_stopped {
                records.wait();
            }
        }
    }

    fn begin(&self) -> Result<PcapNgWriter<Vec<u8>>, PcapNgWriteError> {
        let program = format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            options: vec![SectionHeaderOption::UserApplication(program.into())],
            ..SectionHeaderBlock::default()
        };
        let mut writer = PcapNgWriter::with_section_header(Vec::new(), section)?;
        for interface in &self.interfaces {
            let kind = match interface.kind {
                InterfaceKind::Nic => NIC_KIND,
                InterfaceKind::Port => PORT_KIND,
            };
            writer.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: self.snaplen,
                options: vec![
                    InterfaceDescriptionOption::IfName((&interface.name).into()),
                    InterfaceDescriptionOption::IfDescription(kind.into()),
                    InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
                ],
            })?;
        }
        Ok(writer)
    }

    fn packet(
        &self,
        writer: &mut PcapNgWriter<Vec<u8>>,
        record: &[u8],
    ) -> Result<(), PcapNgWriteError> {
        let Some((head, frame)) = RecordHead::split(record) else {
            return Ok(());
        };
        let flags = if head.is_sent { OUTBOUND } else { INBOUND };
        let mut options = vec![EnhancedPacketOption::Flags(flags)];
        if head.lost > 0 {
            options.push(EnhancedPacketOption::DropCount(head.lost.into()));
        }
        let query = PeerQuery::parse(frame).map(|(_, query)| query_comment(&query).into());
        let comments = head.comments().into_iter().chain(query);
        let comments = comments.map(CommonOption::Comment);
        options.extend(comments.map(EnhancedPacketOption::Common));
        let block = EnhancedPacketBlock {
            interface_id: head.port.into(),
            timestamp: self.origin.saturating_add(Duration::from_nanos(head.at)),
            original_len: head.length,
            data: frame.into(),
            options,
        };
        writer.write_block(&block.into_block()).map(drop)
    }

    /// Writes the statistics of the interfaces.
    fn finish(&self, writer: &mut PcapNgWriter<Vec<u8>>) -> Result<(), PcapNgWriteError> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        for (interface_id, count) in (0..).zip(&self.share.by_interface) {
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (kept, lost) = (load(&count.kept), load(&count.lost));
            writer.write_pcapng_block(InterfaceStatisticsBlock {
                interface_id,
                timestamp: now,
                options: vec![
                    InterfaceStatisticsOption::IsbFilterAccept(kept.saturating_add(lost)),
                    InterfaceStatisticsOption::IsbIfDrop(lost),
                ],
            })?;
        }
        Ok(())
    }
}
