//! The packet checker of a running process: a capture that judges its frames in a thread of its own.
//!
//! Each engine puts the first octets of each frame into its ring of the capture, and never waits. If the thread is slower than
//! the engines, frames are lost to the checker, and counted; it then judges all connections anew. The thread has the lowest priority:
//! on a busy machine it judges less, and takes nothing from guests and engines.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use faultline_ports::channel::{self, Bell, EngineEnd};
use rustix::process::setpriority_process;
use rustix::thread::gettid;

use crate::capture::{CaptureFilter, RING};
use crate::frame_checker::{Findings, FrameChecker, Interface, InterfaceKind, Origin};
use crate::record::{Notice, RecordHead};
use crate::records::CaptureRecords;
use crate::share::CaptureShare;

/// Octets of each frame that contain all headers: Ethernet with a VLAN tag, IPv6, TCP with all options, and the longest ones of iWARP.
const SNAPLEN: usize = 192;
/// Bytes of all connections and findings. Guests decide how many there are.
const MEMORY: usize = 32 << 20;
/// Records that are judged while readers of the findings wait.
const BATCH: usize = 256;
/// Time between two looks at empty rings. No engine wakes the thread, because each wake-up is a system call. A ring takes some
/// 20,000 packets.
const LOOK: Duration = Duration::from_millis(5);
/// Lowest priority (`nice`).
const NICE: i32 = 19;

/// What engines need to feed a checker.
#[derive(Debug)]
pub struct CheckerFeed {
    /// The frames that it is shown.
    pub filter: CaptureFilter,
    /// By engine.
    pub ends: Vec<EngineEnd>,
    /// What the engines and the checker share.
    pub share: Arc<CaptureShare>,
}

/// A checker that runs.
#[derive(Debug)]
pub struct PacketChecker {
    frame_checker: Arc<Mutex<FrameChecker>>,
    /// Frames in the rings, until now.
    share: Arc<CaptureShare>,
    /// By engine: the bell of its ring.
    bells: Vec<Arc<Bell>>,
    thread: Option<JoinHandle<()>>,
}

impl PacketChecker {
    /// Starts a checker of all interfaces, whose frames come from this number of engines. `ready`: adapters behind ports exchange READY packets as the NICs do.
    ///
    /// # Errors
    ///
    /// The system has no file descriptor or no thread for it.
    pub fn start(
        interfaces: Vec<Interface>,
        engines: usize,
        ready: bool,
    ) -> std::io::Result<(Self, CheckerFeed)> {
        let (ends, frames) = channel::from_engines(engines, RING)?;
        let bells = ends.iter().map(EngineEnd::bell).collect();
        let share = CaptureShare::new(interfaces.len(), engines);
        let frames = CaptureRecords::new(frames, Arc::clone(&share));
        let feed = CheckerFeed {
            filter: CaptureFilter {
                ports: vec![true; interfaces.len()],
                qpn: None,
                packets: None,
                snaplen: SNAPLEN,
                is_for_checker: true,
            },
            share,
            ends,
        };
        let nics: Vec<usize> = (interfaces.iter().enumerate())
            .filter(|(_, interface)| interface.kind == InterfaceKind::Nic)
            .map(|(number, _)| number)
            .collect();
        let mut frame_checker = FrameChecker::new(interfaces, ready);
        frame_checker.limit_memory(MEMORY);
        nics.into_iter()
            .for_each(|nic| frame_checker.agree_to_ready(nic));
        let frame_checker = Arc::new(Mutex::new(frame_checker));
        let of_thread = Arc::clone(&frame_checker);
        let thread = std::thread::Builder::new().name("packet checker".to_owned());
        let thread = thread.spawn(move || run(frames, &of_thread))?;
        let checker = Self {
            frame_checker,
            share: Arc::clone(&feed.share),
            bells,
            thread: Some(thread),
        };
        Ok((checker, feed))
    }

    /// Frames that the engines have captured until now.
    pub fn captured(&self) -> u64 {
        let counts = self.share.by_interface.iter();
        counts.map(|count| count.kept.load(Ordering::Relaxed)).sum()
    }

    /// Frames that were judged until now.
    pub fn judged(&self) -> u64 {
        lock(&self.frame_checker).frames()
    }

    /// What was found until now.
    pub fn findings(&self) -> Findings {
        lock(&self.frame_checker).findings()
    }

    /// Judges what is in the rings, and ends. The capture must have been ended, or this takes as long as frames come.
    pub fn stop(mut self) -> Arc<Mutex<FrameChecker>> {
        self.end();
        if let Some(thread) = self.thread.take() {
            // It does not panic. If it did, what it has judged counts.
            let _ = thread.join();
        }
        Arc::clone(&self.frame_checker)
    }

    /// Lets the thread end, also if some engine has not begun the capture.
    fn end(&self) {
        self.bells.iter().for_each(|bell| bell.stop());
    }
}

impl Drop for PacketChecker {
    fn drop(&mut self) {
        self.end();
    }
}

/// The frame checker; a panic while it was locked leaves it usable.
pub fn lock(frame_checker: &Mutex<FrameChecker>) -> MutexGuard<'_, FrameChecker> {
    frame_checker.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(mut frames: CaptureRecords, frame_checker: &Mutex<FrameChecker>) {
    // If the system refuses it, the thread has the priority of the others.
    let _ = setpriority_process(Some(gettid()), NICE);
    let mut has_forgotten = false;
    loop {
        // Records that are in the rings at the end are judged.
        let is_stopped = frames.is_stopped();
        let mut frame_checker = lock(frame_checker);
        let mut taken =
            (0..BATCH).map_while(|_| frames.take(|record| take(&mut frame_checker, record)));
        let is_empty = taken.by_ref().count() < BATCH;
        let forgotten = frame_checker.checker().forgotten();
        drop(frame_checker);
        if forgotten > 0 && !has_forgotten {
            has_forgotten = true;
            tracing::warn!(
                "packet checker: there are more connections or requests than it may keep ({} MiB); it forgets old ones of the NIC or port that \
                 has most, and judges these connections anew (`forgotten` counts)",
                MEMORY >> 20
            );
        }
        match (is_empty, is_stopped) {
            (true, true) => return,
            (true, false) => std::thread::sleep(LOOK),
            (false, _) => {}
        }
    }
}

/// Judges a record.
fn take(frame_checker: &mut FrameChecker, record: &[u8]) {
    let Some((head, frame)) = RecordHead::split(record) else {
        return;
    };
    let interface = usize::from(head.port);
    if let Some(notice) = head.notice {
        match notice {
            Notice::Renewal => {
                frame_checker.restart_queue_pair(interface, head.sender, head.length)
            }
            Notice::ReadLimit => frame_checker.limit_reads(interface, head.sender, head.length),
        }
        return;
    }
    if head.is_after_lost_notice {
        frame_checker.forget_attributes();
    }
    if head.is_after_loss || head.lost > 0 {
        frame_checker.lose(head.lost.into());
    }
    let origin = Origin {
        interface,
        is_outbound: Some(head.is_sent),
        is_raw: head.is_raw,
        sender: (head.sender != 0).then_some(head.sender),
        is_impaired: head.is_impaired(),
        is_held: head.is_held,
    };
    let length = usize::try_from(head.length).unwrap_or(usize::MAX);
    frame_checker.frame(head.at, frame, length, origin);
}

#[cfg(test)]
mod tests {
    use faultline_fabric::link_model::Effects;
    use faultline_wire::packet::{RoceHeader, seal};
    use faultline_wire::{Aeth, Bth, Gid, Ip, MacAddr, Opcode, Psn, Reth, Syndrome};

    use super::*;
    use faultline_fabric::Fate;

    const QPN: [u32; 2] = [17, 18];

    fn head(nic: usize, notice: Option<Notice>, length: usize) -> RecordHead {
        RecordHead {
            at: 7,
            token: 0,
            length: u32::try_from(length).unwrap(),
            lost: 0,
            port: u16::try_from(nic).unwrap(),
            is_sent: true,
            is_after_loss: false,
            is_after_lost_notice: false,
            is_raw: false,
            is_held: false,
            notice,
            sender: QPN[nic],
            fate: Fate::Passed,
            effects: Effects::NONE,
            rule: None,
        }
    }

    /// A packet of NIC 0 is a READ request, and one of NIC 1 is its response. It is captured at both.
    fn take_packet(frame_checker: &mut FrameChecker, from: usize, psn: u32) {
        take_packet_to(frame_checker, from, QPN[1 - from], psn);
    }

    fn take_packet_to(frame_checker: &mut FrameChecker, from: usize, qpn: u32, psn: u32) {
        let to = 1 - from;
        let gid = |nic: usize| Gid::from_ipv4([10, 0, 0, u8::try_from(nic).unwrap()]);
        let mac = |nic: usize| MacAddr([2, 0, 0, 0, 0, u8::try_from(nic).unwrap()]);
        let opcode = [Opcode::RcReadRequest, Opcode::RcReadResponseOnly][from];
        let ip = Ip::from_gids(gid(from), gid(to), 0, 0, 64);
        let bth = Bth::new(opcode, qpn, Psn::new(psn));
        let mut header = RoceHeader::new(mac(to), mac(from), ip, bth);
        header.reth = (from == 0).then_some(Reth {
            addr: 0,
            rkey: 1,
            len: 0,
        });
        header.aeth = (from == 1).then_some(Aeth {
            syndrome: Syndrome::ACK,
            msn: psn + 1,
        });
        let mut frame = vec![0; header.frame_len(0)];
        header.emit(0, &mut frame).unwrap();
        seal(&mut frame).unwrap();
        let sent = head(from, None, frame.len());
        let arrives = RecordHead {
            is_sent: false,
            sender: 0,
            ..head(to, None, frame.len())
        };
        for head in [sent, arrives] {
            take(
                frame_checker,
                &[&head.to_octets(), frame.as_slice()].concat(),
            );
        }
    }

    fn take_notice(frame_checker: &mut FrameChecker, notice: Notice, value: usize) {
        take(frame_checker, &head(0, Some(notice), value).to_octets());
    }

    fn nics() -> Vec<Interface> {
        let nic = |name: &str| Interface {
            name: name.to_owned(),
            kind: InterfaceKind::Nic,
        };
        ["a", "b"].map(nic).into()
    }

    /// Requests that nothing answers, of more connections than the memory is enough for.
    #[test]
    fn a_running_checker_keeps_to_its_memory() {
        let (checker, _feed) = PacketChecker::start(nics(), 1, false).unwrap();
        let mut frame_checker = lock(&checker.frame_checker);
        for psn in 0..1500 {
            for connection in 0..120 {
                take_packet_to(&mut frame_checker, 0, 100 + connection, psn);
            }
            assert!(frame_checker.checker().bytes() <= MEMORY);
        }
        assert!(frame_checker.checker().bytes() > MEMORY / 8 * 5);
        let found = frame_checker.findings();
        assert!(found.forgotten > 0 && found.text().contains("were forgotten"));
        assert_eq!(found.violation_count, 0);
    }

    #[test]
    fn reads_are_limited_as_the_last_notice_says() {
        let mut frame_checker = FrameChecker::new(nics(), false);
        take_notice(&mut frame_checker, Notice::Renewal, 1024);
        take_notice(&mut frame_checker, Notice::ReadLimit, 2);
        take_packet(&mut frame_checker, 0, 0);
        take_packet(&mut frame_checker, 1, 0);
        for psn in 1..4 {
            take_packet(&mut frame_checker, 0, psn);
        }
        let rules = |frame_checker: &FrameChecker| {
            let found = frame_checker.findings().violations;
            found
                .into_iter()
                .map(|found| found.rule)
                .collect::<Vec<_>>()
        };
        assert_eq!(rules(&frame_checker), ["read-limit"]);
        // By way of SQD the limit may change.
        take_notice(&mut frame_checker, Notice::ReadLimit, 4);
        take_packet(&mut frame_checker, 0, 4);
        assert_eq!(rules(&frame_checker), ["read-limit"]);
        take_packet(&mut frame_checker, 0, 5);
        assert_eq!(rules(&frame_checker), ["read-limit", "read-limit"]);
        // Another connection, whose limit is not known yet.
        take_notice(&mut frame_checker, Notice::Renewal, 1024);
        take_packet(&mut frame_checker, 0, 9);
        take_packet(&mut frame_checker, 1, 9);
        for psn in 10..20 {
            take_packet(&mut frame_checker, 0, psn);
        }
        assert_eq!(frame_checker.findings().violation_count, 2);
    }
}
