//! Records of a capture as pcapng, made by a thread of their capture.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use faultline_ports::channel::EnginesEnd;
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

use crate::capture::{CaptureCounts, NIC_KIND, PORT_KIND, RecordHead};
use crate::judge::{Interface, InterfaceKind};

/// Octets of a part, approximately.
const PART: usize = 64 << 10;
/// Direction of a packet in `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// What makes pcapng of the records of a capture.
#[derive(Debug)]
pub(super) struct CaptureStream {
    pub(super) interfaces: Vec<Interface>,
    pub(super) counts: Arc<CaptureCounts>,
    pub(super) snaplen: u32,
    /// Frames after which it ends.
    pub(super) count: u64,
    /// Time since 1970 at which the device clock was 0.
    pub(super) origin: Duration,
}

/// Records of several engines, in the order of their times.
struct Records {
    end: EnginesEnd,
    /// By engine: the next record. Empty: it has none.
    next: Vec<Vec<u8>>,
}

impl Records {
    fn new(mut end: EnginesEnd) -> Self {
        let next = end.rings().iter().map(|_| Vec::new()).collect();
        Self { end, next }
    }

    /// Takes the next record. `None`: there is none.
    ///
    /// A record that has caused another one is earlier, and is in its ring before the other one is. So if a ring is empty after the
    /// next records of all others were taken, nothing in it is earlier than these because it has caused them.
    fn take<R>(&mut self, use_record: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut has_taken = true;
        while std::mem::take(&mut has_taken) {
            for (ring, next) in self.end.rings().iter_mut().zip(&mut self.next) {
                has_taken |= next.is_empty() && ring.pop(next).is_some();
            }
        }
        let time = |record: &Vec<u8>| RecordHead::split(record).map(|(head, _)| head.at);
        let records = self.next.iter_mut().filter(|next| !next.is_empty());
        let first = records.min_by_key(|record| time(record))?;
        let result = use_record(first);
        first.clear();
        Some(result)
    }
}

impl CaptureStream {
    /// Sends parts until there are no more records, or nobody takes them.
    pub(super) fn run(&self, end: EnginesEnd, parts: &Sender<Bytes>) {
        // Neither these blocks nor the memory that they are written to can be refused.
        let Ok(mut writer) = self.begin() else {
            return;
        };
        let mut records = Records::new(end);
        let mut left = self.count;
        loop {
            // Records that are in the rings when the capture ends are taken.
            let is_stopped = records.end.is_stopped();
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
                records.end.wait();
            }
        }
    }

    fn begin(&self) -> Result<PcapNgWriter<Vec<u8>>, PcapNgWriteError> {
        let program = concat!("Faultline ", env!("CARGO_PKG_VERSION"));
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
        let comments = head.comments().into_iter().map(CommonOption::Comment);
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
        for (interface_id, count) in (0..).zip(&self.counts.by_interface) {
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
