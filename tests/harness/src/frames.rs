//! Ethernet frames for raw queue pairs, and threads that send and receive them.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use faultline_abi::cqe;
use faultline_abi::doorbell::DoorbellPage;
use faultline_abi::steering::{CreateFlow, FlowFields};
use faultline_abi::wqe::Sge;
use faultline_abi::{U16, U32, regs};

use crate::cq::{Cq, Wc};
use crate::domain::Mr;
use crate::error::DriverError;
use crate::event::EventQueue;
use crate::nic::Nic;
use crate::qp::{Qp, QpOptions, QpType};
use crate::ram::{Buf, pattern};
use crate::testbed::{ALL_ACCESS, LONG, Node};
use crate::wr::SendWr;

/// Bytes from one buffer of a [`RawReceiver`] to the next.
pub const SLOT: usize = 2048;
const LOG_DEPTH: u8 = 6;

/// The header behind Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Another EtherType.
    Other(u16),
    /// IPv4.
    V4 {
        /// Source address.
        src: [u8; 4],
        /// Destination address.
        dst: [u8; 4],
    },
    /// IPv6.
    V6 {
        /// Source address.
        src: [u8; 16],
        /// Destination address.
        dst: [u8; 16],
    },
}

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A frame. Its checksums are zero.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Destination MAC address.
    pub dst: [u8; 6],
    /// Source MAC address.
    pub src: [u8; 6],
    /// Tag control information of a VLAN tag.
    pub vlan: Option<u16>,
    /// The header after Ethernet.
    pub network: Network,
    /// The header after IP.
    pub transport: Transport,
    /// Source, destination.
    pub ports: (u16, u16),
    /// Payload.
    pub data: &'a [u8],
}

impl Frame<'_> {
    /// UDP over IPv4.
    pub fn to(nic: &Nic) -> Self {
        Self {
            dst: nic.mac(),
            src: [2, 0, 0, 0, 0, 9],
            vlan: None,
            network: Network::V4 {
                src: [10, 1, 1, 1],
                dst: [10, 2, 2, 2],
            },
            transport: Transport::Udp,
            ports: (1234, 5678),
            data: &[],
        }
    }

    /// As on the wire, without FCS.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = [self.dst, self.src].concat();
        if let Some(tci) = self.vlan {
            out.extend([0x81, 0]);
            out.extend(tci.to_be_bytes());
        }
        let segment = self.segment();
        let len = segment.len() as u16;
        let protocol = match self.transport {
            Transport::Tcp => 6,
            Transport::Udp => 17,
        };
        match self.network {
            Network::Other(kind) => {
                out.extend(kind.to_be_bytes());
                out.extend(self.data);
                return out;
            }
            Network::V4 { src, dst } => {
                out.extend([0x08, 0x00, 0x45, 0]);
                out.extend((20 + len).to_be_bytes());
                out.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
                out.extend([src, dst].concat());
            }
            Network::V6 { src, dst } => {
                out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                out.extend(len.to_be_bytes());
                out.extend([protocol, 64]);
                out.extend([src, dst].concat());
            }
        }
        out.extend(segment);
        out
    }

    fn segment(&self) -> Vec<u8> {
        let (src, dst) = self.ports;
        let mut out = [src.to_be_bytes(), dst.to_be_bytes()].concat();
        match self.transport {
            Transport::Tcp => out.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0, 1, 0, 0, 0, 0]),
            Transport::Udp => {
                out.extend((8 + self.data.len() as u16).to_be_bytes());
                out.extend([0, 0]);
            }
        }
        out.extend(self.data);
        out
    }
}

/// A raw queue pair that is ready to receive 2^`log_depth` frames and to send as many, with a completion for each.
pub fn raw_qp(node: &Node, cq: &Cq, log_depth: u8) -> Result<Qp, DriverError> {
    let options = QpOptions {
        send_depth: log_depth,
        recv_depth: log_depth,
        sig_all: true,
        ..QpOptions::default()
    };
    let qp = node
        .context
        .qp(&node.pd, QpType::Raw, cq, cq, None, &options)?;
    qp.open_datagrams(0)?;
    Ok(qp)
}

/// A raw queue pair that receives frames, with a CQ and buffers of its own.
#[derive(Debug)]
pub struct RawReceiver {
    /// The queue pair.
    pub qp: Qp,
    /// Its CQ.
    pub cq: Cq,
    /// Region of `buf`.
    pub mr: Mr,
    /// The buffers.
    pub buf: Buf,
}

impl RawReceiver {
    /// Buffers.
    pub const DEPTH: usize = 1 << LOG_DEPTH;

    /// Creates one with all of its buffers posted. Its completion events go to `eq`.
    pub fn new(node: &Node, eq: &EventQueue) -> Result<Self, DriverError> {
        let cq = node.context.cq(eq, LOG_DEPTH + 2)?;
        let qp = raw_qp(node, &cq, LOG_DEPTH)?;
        let buf = node.nic.alloc(Self::DEPTH * SLOT)?;
        let mr = node.pd.register(&buf, ALL_ACCESS)?;
        let mut receiver = Self { qp, cq, mr, buf };
        (0..Self::DEPTH as u32).for_each(|n| receiver.post(n));
        Ok(receiver)
    }

    fn sge(&self, n: u32) -> Sge {
        self.mr.sge(n as usize * SLOT, SLOT)
    }

    fn post(&mut self, n: u32) {
        let sges = [self.sge(n)];
        self.qp
            .post_recv(n, &sges)
            .expect("no more buffers than fit");
    }

    /// The next received frame and its completion, if any. Posts its buffer again.
    #[track_caller]
    pub fn receive(&mut self) -> Option<(Wc, Vec<u8>)> {
        let wc = self.cq.poll()?;
        assert!(
            wc.is_ok() && wc.opcode == cqe::RECV,
            "not a frame received: {wc:?}"
        );
        assert_eq!(wc.qpn, self.qp.number());
        let frame = self.buf.to_vec(wc.id as usize * SLOT, wc.len as usize);
        self.post(wc.id);
        Some((wc, frame))
    }
}

/// A flow of kind NORMAL, as a command.
pub fn rule(priority: u16, headers: u32, tag: u32) -> CreateFlow {
    CreateFlow {
        headers: U32::new(headers),
        priority: U16::new(priority),
        tag: U32::new(tag),
        ..CreateFlow::default()
    }
}

/// Fields of a flow that matches every frame.
pub fn anything() -> (FlowFields, FlowFields) {
    <(FlowFields, FlowFields)>::default()
}

/// Sends a frame and waits for its completion. The receivers in the same process have received it then.
#[track_caller]
pub fn send(node: &mut Node, qp: &mut Qp, frame: &[u8]) {
    node.buf.write(0, frame);
    let sges = [node.mr.sge(0, frame.len())];
    qp.post_send(&SendWr::raw(&sges)).unwrap();
    let wc = node.good_completion();
    qp.retire(&wc);
}

/// Waits until the device has handled the doorbells of all pages, so that all requests to arm are in effect.
pub fn drain_doorbells(node: &Node) {
    let seen = |page: u32| {
        let word = |at: usize| {
            let at = u64::from(page) * u64::from(regs::PAGE_SIZE) + at as u64;
            node.nic.doorbell_area().load_u64(at).unwrap()
        };
        word(offset_of!(DoorbellPage, producer)) == word(offset_of!(DoorbellPage, consumer))
    };
    let start = Instant::now();
    while ![0, node.context.page()].into_iter().all(seen) {
        assert!(start.elapsed() < LONG, "doorbells are not taken");
        std::thread::yield_now();
    }
}

/// A sender of numbered frames, on a thread. It pauses while `Stream::WINDOW` frames have not been received.
#[derive(Debug)]
pub struct Stream {
    /// Numbers that have been given to frames so far. The frame may not have been posted.
    sent: Arc<AtomicU64>,
    /// Frames that need not be waited for any more.
    done: Arc<AtomicU64>,
    /// Tells the thread to pause.
    rest: Arc<AtomicBool>,
    /// The thread pauses, and all posted frames have been sent.
    rests: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    const WINDOW: u64 = 24;
    const DATA: usize = 700;

    /// Sends frames from `node` to another until [`Stream::stop`]; `vary` may change each but for its data.
    pub fn start(mut node: Node, to: &Node, vary: fn(u64, &mut Frame<'_>)) -> Self {
        let [sent, done] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let [rest, rests, stop] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let (count, answered) = (sent.clone(), done.clone());
        let (pause, paused, end) = (rest.clone(), rests.clone(), stop.clone());
        let nic = to.nic.clone();
        let thread = std::thread::spawn(move || {
            let mut qp = raw_qp(&node, &node.cq, 6).unwrap();
            while !end.load(Ordering::Relaxed) {
                while let Some(wc) = node.cq.poll() {
                    assert!(wc.is_ok(), "{wc:?}");
                    qp.retire(&wc);
                }
                if pause.load(Ordering::Acquire) {
                    let idle = qp.room() == RawReceiver::DEPTH as u32;
                    paused.store(idle, Ordering::Release);
                    std::thread::yield_now();
                    continue;
                }
                paused.store(false, Ordering::Release);
                let number = count.load(Ordering::Relaxed);
                let open = number - answered.load(Ordering::Acquire);
                if open >= Self::WINDOW || qp.room() == 0 {
                    std::thread::yield_now();
                    continue;
                }
                let data = [number.to_le_bytes().to_vec(), pattern(number, Self::DATA)].concat();
                let mut frame = Frame {
                    data: &data,
                    ..Frame::to(&nic)
                };
                vary(number, &mut frame);
                let bytes = frame.bytes();
                let at = (number % 64) as usize * SLOT;
                node.buf.write(at, &bytes);
                count.store(number + 1, Ordering::SeqCst);
                let sges = [node.mr.sge(at, bytes.len())];
                qp.post_send(&SendWr::raw(&sges)).unwrap();
            }
        });
        Self {
            sent,
            done,
            rest,
            rests,
            stop,
            thread: Some(thread),
        }
    }

    /// Frames that have been received or forgiven.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Frames with this number or a higher one are posted after this call.
    pub fn next_number(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// The number in a frame that has been received, which is as it was sent.
    #[track_caller]
    pub fn number_of(&self, frame: &[u8]) -> u64 {
        self.done.fetch_add(1, Ordering::Release);
        let data = &frame[frame.len() - Self::DATA - 8..];
        let number = u64::from_le_bytes(data[..8].try_into().unwrap());
        assert!(data[8..] == pattern(number, Self::DATA), "frame {number}");
        number
    }

    /// Sends nothing from now on; waits until all frames have left. They have arrived then, or are lost.
    pub fn rest(&self) {
        self.rest.store(true, Ordering::Release);
        self.await_rest(true);
    }

    /// Continues after a rest. Frames that have not been received by now count as lost.
    pub fn go_on(&self) {
        self.done.store(self.next_number(), Ordering::Release);
        self.rest.store(false, Ordering::Release);
        self.await_rest(false);
    }

    fn await_rest(&self, rests: bool) {
        let start = Instant::now();
        while self.rests.load(Ordering::Acquire) != rests {
            assert!(start.elapsed() < LONG, "the sender of frames is stuck");
            std::thread::yield_now();
        }
    }

    /// Stops sending, and waits until all frames have left: the end of the queue pair would drop posted frames.
    pub fn stop(&self) {
        self.rest();
        self.stop.store(true, Ordering::Relaxed);
        while !self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
