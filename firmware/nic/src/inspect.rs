//! Read-only views of the objects of a NIC, for operators.
//!
//! Lists come in pages, so that a call takes a bounded time however many objects a guest has made: each call looks at
//! [`SCANNED`] places of a table at most.

mod details;

pub use self::details::*;
pub use crate::counters::Traffic;
pub use crate::cq::CqFill;
pub use crate::qp::Psns;

use faultline_abi::qp::QP_ATTR_MAX_QP_RD_ATOMIC;

use crate::core::Uctx;
use crate::diagnostic::{Diagnostic, OverrunQueue};
use crate::dma::Dma;
use crate::fault::Fault;
use crate::iwarp::StreamQp;
use crate::mkey::Mkey;
use crate::nic::Nic;
use crate::qp::endpoint::Endpoint;
use crate::qp::{FaultPolicy, Qp, QpType, State};
use crate::queues::Queue;
use crate::time::Instant;

/// Most places of a table that one call looks at.
pub const SCANNED: usize = 1024;

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// The objects, in the order of their places in the table.
    pub items: Vec<T>,
    /// Where the next part begins; `None`: this was the last.
    pub next: Option<u32>,
}

/// The kind of queue that a queue pair number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QueueKind {
    /// A queue pair.
    Pair(QpType),
    /// A work queue for receives.
    WorkQueue,
    /// An RSS queue pair.
    Rss,
}

/// A queue pair, work queue or RSS queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QueuePairInfo {
    /// Number.
    pub qpn: u32,
    /// Kind, and transport of a queue pair.
    pub kind: QueueKind,
    /// State; an RSS queue pair has none.
    pub state: Option<State>,
    /// User context that owns it; 0: the kernel.
    pub context: u32,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// Shared receive queue.
    pub srq: Option<u32>,
    /// Number of the peer, of a connection.
    pub peer_qpn: Option<u32>,
    /// Bytes of payload in a full packet.
    pub mtu: u32,
    /// READs, atomics, FLUSHes and ATOMIC WRITEs that it may have outstanding, once that is set.
    pub max_rd_atomic: Option<u8>,
    /// Fault policy.
    pub fault_policy: FaultPolicy,
    /// Send work requests that are posted and not completed.
    pub sends_pending: u32,
    /// It waits for a page.
    pub waits_for_page: bool,
    /// Packets and bytes that it has sent and received.
    pub traffic: Traffic,
}

/// A memory key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RegionInfo {
    /// The whole key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// First address, as users of the key specify it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// `ACCESS_*` of `faultline_abi::qp`.
    pub access: u32,
    /// Pages may be absent.
    pub on_demand: bool,
    /// Entries of the page table that are present, each for a page of 4 KiB, 2 MiB or 1 GiB.
    pub present_entries: u32,
    /// Bytes that the page table takes.
    pub table_bytes: u64,
}

/// A fault that the driver has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FaultInfo {
    /// Token.
    pub token: u64,
    /// Memory key.
    pub key: u32,
    /// Address of the first missing page.
    pub va: u64,
    /// Missing pages of 4 KiB.
    pub pages: u64,
    /// The access writes.
    pub write: bool,
    /// User context that owns the key; 0: the kernel.
    pub context: u32,
    /// When it was raised.
    pub raised: Instant,
    /// Queue pairs that wait.
    pub waiters: u32,
    /// The queue pair that has waited longest; `None`: none waits any longer.
    pub qpn: Option<u32>,
}

/// A user context: a process that has opened the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ContextInfo {
    /// Number, which is that of its doorbell page.
    pub context: u32,
    /// Protection domains, queue pairs, CQs and SRQs.
    pub objects: u32,
    /// The process, if the driver has reported it.
    pub process: Option<Process>,
}

/// A process in the guest, as the guest's driver has reported it. The report is not verified, and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Process {
    /// Process id in the guest.
    pub pid: u32,
    /// Name of the program. Bytes that are not printable ASCII characters are question marks: the name goes to logs and
    /// terminals.
    pub name: String,
}

impl Process {
    /// The process with this id and name; `None` if the id is 0, which means: not reported.
    pub fn new(pid: u32, comm: [u8; 16]) -> Option<Self> {
        let name = comm.iter().take_while(|byte| **byte != 0);
        let printable = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        };
        (pid != 0).then(|| Self {
            pid,
            name: name.map(printable).collect(),
        })
    }
}

impl Nic {
    /// Queue pairs, work queues and RSS queue pairs from place `from` on, `limit` at most.
    pub fn queue_pairs(&self, from: u32, limit: usize) -> Listing<QueuePairInfo> {
        listing(self.queues.places(from), limit, queue_info)
    }

    /// The queue pair, work queue or RSS queue pair with this number.
    pub fn queue_pair_info(&self, qpn: u32) -> Option<QueuePairInfo> {
        self.queues.get(qpn).map(|queue| queue_info(qpn, queue))
    }

    /// The next PSNs of a queue pair.
    pub fn queue_pair_psns(&self, qpn: u32) -> Option<Psns> {
        match self.queues.get(qpn)? {
            Queue::Pair(qp) => Some(qp.psns()),
            Queue::Stream(_) | Queue::Work(_) | Queue::Rss(_) => None,
        }
    }

    /// The memory key with this number.
    pub fn region_info(&self, key: u32) -> Option<RegionInfo> {
        self.core.mkeys.get(key).map(|mkey| region_info(key, mkey))
    }

    /// Keys of the on-demand regions.
    pub fn on_demand_keys(&self) -> impl Iterator<Item = u32> {
        let keys = self.core.mkeys.places(0).filter_map(|(_, object)| object);
        let regions = keys.filter(|(_, mkey)| mkey.is_on_demand());
        regions.map(|(_, mkey)| mkey.key)
    }

    /// The user context that owns the object of a diagnostic; 0: the kernel. `None`: the object is not known, or there
    /// is none.
    pub fn context_of(&self, diagnostic: &Diagnostic) -> Option<u32> {
        let queue = |qpn| self.queues.get(qpn).map(|queue| queue.uctx());
        let of_key = |key| self.core.mkeys.get(key).map(|_| self.core.owner_of(key));
        match *diagnostic {
            Diagnostic::DoorbellRefused { page, .. } => Some(page),
            Diagnostic::Overrun {
                queue: OverrunQueue::Completion,
                object,
            } => Some(self.core.cqs.get(object)?.uctx),
            Diagnostic::Overrun {
                queue: OverrunQueue::Fault | OverrunQueue::Parked,
                object,
            } => queue(object),
            Diagnostic::FaultRaised { qpn, key, .. }
            | Diagnostic::FaultFailed { qpn, key, .. }
            | Diagnostic::FaultExpired { qpn, key, .. }
            | Diagnostic::FaultCancelled { qpn, key, .. } => queue(qpn).or_else(|| of_key(key)),
            _ => queue(diagnostic.queue_pair()?),
        }
    }

    /// Waiting entries of the device's queues, by queue. The time depends only on the number of event queues.
    pub fn queue_depths(&self) -> [(&'static str, usize); 10] {
        let core = &self.core;
        let events = core.eqs.iter().map(|(_, eq)| eq.unread() as usize).sum();
        let late = core.eqs.iter().map(|(_, eq)| eq.overflow()).sum();
        [
            ("timers", core.timers()),
            ("fault_waits", core.faults.waits()),
            ("notices", self.waiting_notices()),
            ("events", events),
            ("late_events", late),
            ("fault_records", core.faults.records.kept()),
            ("ingress_frames", core.ingress.held()),
            ("paused_queue_pairs", core.flow_control.waiting()),
            ("admin_commands", self.admin.waiting() as usize),
            ("translation_commands", self.translation.waiting() as usize),
        ]
    }

    /// The fullest completion queue from place `from` on, and the place for the next call.
    pub fn fullest_cq<M: Dma>(&self, mem: &M, from: u32) -> (Option<CqFill>, Option<u32>) {
        let part = listing(self.core.cqs.places(from), SCANNED, |_, cq| cq.fill(mem));
        let fullest = part.items.into_iter().max_by_key(|fill| fill.share());
        (fullest, part.next)
    }

    /// Bytes of packets that wait for a page.
    pub fn parked_bytes(&self) -> usize {
        self.core.park.used()
    }

    /// Memory keys from place `from` on, `limit` at most.
    pub fn regions(&self, from: u32, limit: usize) -> Listing<RegionInfo> {
        listing(self.core.mkeys.places(from), limit, region_info)
    }

    /// User contexts from place `from` on, `limit` at most.
    pub fn contexts(&self, from: u32, limit: usize) -> Listing<ContextInfo> {
        listing(self.core.uctxs.places(from), limit, context_info)
    }

    /// The user context with this number.
    pub fn context_info(&self, context: u32) -> Option<ContextInfo> {
        let uctx = self.core.uctxs.get(context)?;
        Some(context_info(context, uctx))
    }

    /// The oldest faults that the driver has not answered, `limit` at most.
    pub fn faults(&self, limit: usize) -> Vec<FaultInfo> {
        let unit = &self.core.faults;
        let faults = unit.unanswered().take(limit.min(SCANNED));
        faults
            .map(|(waiters, qpn, fault)| FaultInfo {
                waiters,
                qpn,
                ..fault_info(fault)
            })
            .collect()
    }
}

fn listing<'a, T: 'a, I>(
    places: impl Iterator<Item = (u32, Option<(u32, &'a T)>)>,
    limit: usize,
    info: impl Fn(u32, &T) -> I,
) -> Listing<I> {
    let mut items = Vec::new();
    for (scanned, (place, object)) in places.enumerate() {
        if scanned >= SCANNED || items.len() >= limit {
            return Listing {
                items,
                next: Some(place),
            };
        }
        items.extend(object.map(|(number, object)| info(number, object)));
    }
    Listing { items, next: None }
}

fn queue_info(qpn: u32, queue: &Queue) -> QueuePairInfo {
    match queue {
        Queue::Pair(qp) => pair_info(qp),
        Queue::Stream(qp) => stream_info(qp),
        Queue::Work(wq) => {
            let endpoint = &wq.endpoint;
            QueuePairInfo {
                kind: QueueKind::WorkQueue,
                state: Some(endpoint.state),
                pd: endpoint.config.pd,
                recv_cq: endpoint.config.recv_cqn,
                traffic: endpoint.traffic,
                ..without_queues(qpn, queue)
            }
        }
        Queue::Rss(_) => without_queues(qpn, queue),
    }
}

/// The fields that all kinds have.
fn without_queues(qpn: u32, queue: &Queue) -> QueuePairInfo {
    QueuePairInfo {
        qpn,
        kind: QueueKind::Rss,
        state: None,
        context: queue.uctx(),
        pd: 0,
        send_cq: 0,
        recv_cq: 0,
        srq: None,
        peer_qpn: None,
        mtu: 0,
        max_rd_atomic: None,
        fault_policy: FaultPolicy::default(),
        sends_pending: 0,
        waits_for_page: false,
        traffic: Traffic::default(),
    }
}

fn pair_info(qp: &Qp) -> QueuePairInfo {
    let endpoint = &qp.endpoint;
    let connected = endpoint.config.kind.is_connected() && endpoint.path.is_some();
    let sets_rd_atomic = endpoint.attr.mask.get() & QP_ATTR_MAX_QP_RD_ATOMIC != 0;
    QueuePairInfo {
        peer_qpn: connected.then(|| endpoint.attr.dest_qpn.get()),
        mtu: endpoint.mtu,
        max_rd_atomic: sets_rd_atomic.then_some(endpoint.attr.max_rd_atomic),
        sends_pending: qp.sends_pending(),
        waits_for_page: qp.waits_for_page(),
        ..endpoint_info(endpoint)
    }
}

fn stream_info(qp: &StreamQp) -> QueuePairInfo {
    let endpoint = &qp.endpoint;
    QueuePairInfo {
        max_rd_atomic: Some(endpoint.attr.max_rd_atomic),
        sends_pending: qp.sends_pending(),
        waits_for_page: qp.waits_for_page(),
        ..endpoint_info(endpoint)
    }
}

/// The fields that queue pairs of all transports have.
fn endpoint_info(endpoint: &Endpoint) -> QueuePairInfo {
    let config = &endpoint.config;
    QueuePairInfo {
        qpn: endpoint.number,
        kind: QueueKind::Pair(config.kind),
        state: Some(endpoint.state),
        context: config.uctx,
        pd: config.pd,
        send_cq: config.send_cqn,
        recv_cq: config.recv_cqn,
        srq: config.srqn,
        peer_qpn: None,
        mtu: 0,
        max_rd_atomic: None,
        fault_policy: endpoint.fault_policy(),
        sends_pending: 0,
        waits_for_page: false,
        traffic: endpoint.traffic,
    }
}

fn region_info(_: u32, mkey: &Mkey) -> RegionInfo {
    let (present_entries, table_bytes) = mkey.occupancy();
    RegionInfo {
        key: mkey.key,
        pd: mkey.pd,
        iova: mkey.first_address(),
        length: mkey.length(),
        access: mkey.access_flags(),
        on_demand: mkey.is_on_demand(),
        present_entries,
        table_bytes,
    }
}

fn fault_info(fault: &Fault) -> FaultInfo {
    FaultInfo {
        token: fault.token.number(),
        key: fault.key,
        va: fault.first_address(),
        pages: fault.page_count(),
        write: fault.write,
        context: fault.uctx,
        raised: fault.raised,
        waiters: 0,
        qpn: None,
    }
}

fn context_info(context: u32, uctx: &Uctx) -> ContextInfo {
    ContextInfo {
        context,
        objects: uctx.refs.count(),
        process: Process::new(uctx.pid, uctx.comm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_change_a_terminal_or_forge_a_line() {
        let process = Process::new(7, *b"ev\x1b[2J\nil\0\xffrest\0").unwrap();
        assert_eq!((process.pid, process.name.as_str()), (7, "ev?[2J?il"));
        assert_eq!(Process::new(0, *b"rping\0\0\0\0\0\0\0\0\0\0\0"), None);
    }
}
