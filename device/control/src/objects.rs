//! The JSON of the objects of a NIC: queue pairs, regions, faults, contexts.

use faultline_abi::qp as abi;
use faultline_nic::inspect::{
    ConnectionInfo, ContextInfo, FaultInfo, QueueKind, QueuePairInfo, RegionInfo, Traffic,
};
use faultline_nic::{FaultPolicy, Instant, QpType, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The objects. There may be none although more parts follow.
    pub items: Vec<T>,
    /// `from` of the next part; `null`: this was the last.
    pub next: Option<u32>,
}

/// Which part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// Where to begin: `next` of the part before.
    #[serde(default)]
    pub from: u32,
    /// Largest number of objects.
    pub limit: Option<u32>,
}

/// What kind of a queue has a number of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueuePairKind {
    /// General services, QP1.
    Gsi,
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Ethernet frames.
    Raw,
    /// XRC initiator.
    XrcIni,
    /// XRC target.
    XrcTgt,
    /// A work queue for receives.
    WorkQueue,
    /// An RSS queue pair.
    Rss,
}

/// State of a queue pair (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum QueuePairState {
    /// Nothing is sent or received, and no work requests are taken.
    Reset,
    /// Takes receive requests.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained: receives, and begins no new send requests.
    Sqd,
    /// Send queue in error: receives.
    Sqe,
    /// Error: all requests are flushed.
    Err,
}

/// What becomes of requests whose pages are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// RNR NAK; packets of unreliable services are parked.
    Rnr,
    /// The packet is dropped.
    Drop,
    /// The ingress of the NIC stops.
    Stall,
    /// The queue pair fails.
    Terminate,
}

/// A queue pair, work queue or RSS queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePairView {
    /// Number.
    pub qpn: u32,
    /// Kind.
    pub kind: QueuePairKind,
    /// State; an RSS queue pair has none.
    pub state: Option<QueuePairState>,
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
    /// Number of the peer's queue pair, of a connection.
    pub peer_qpn: Option<u32>,
    /// Bytes of payload in a full packet; of iWARP, octets of data in a full segment.
    pub path_mtu: u32,
    /// Fault policy.
    pub fault_policy: Policy,
    /// Send work requests that are posted and not completed.
    pub sends_pending: u32,
    /// It waits for a page.
    pub waits_for_page: bool,
    /// The TCP connection of an iWARP queue pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<ConnectionView>,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of payload received.
    pub rx_bytes: u64,
}

/// The TCP connection of an iWARP queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionView {
    /// IP address of this end.
    pub local_address: String,
    /// TCP port of this end.
    pub local_port: u16,
    /// IP address of the peer.
    pub remote_address: String,
    /// TCP port of the peer.
    pub remote_port: u16,
    /// State of the connection, with the name of RFC 9293.
    pub tcp_state: String,
    /// This end has opened the connection.
    pub is_active: bool,
    /// Revision of MPA: 1, or 2 for RFC 6581.
    pub mpa_revision: u8,
    /// Congestion window in octets.
    pub congestion_window: u64,
    /// Window of the peer in octets.
    pub peer_window: u64,
    /// Smoothed round-trip time.
    pub round_trip_ns: Option<u64>,
    /// Octets that are sent and not acknowledged.
    pub unacknowledged: u64,
    /// Octets that wait to be sent.
    pub unsent: u64,
    /// Octets that have arrived and cannot be used yet: they wait for a page, for octets before them, or for the rest of an FPDU.
    pub kept: u64,
}

/// Change of a queue pair's fault policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// The new policy.
    pub policy: Policy,
}

/// A memory key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegionView {
    /// The whole key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// First address, as the user of the key counts.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Access rights.
    pub access: Vec<String>,
    /// Pages may be absent.
    pub on_demand: bool,
    /// Entries of the page table that are present, each for a page of 4 KiB, 2 MiB or 1 GiB.
    pub present_entries: u32,
    /// Bytes of the page table.
    pub table_bytes: u64,
}

/// A fault that the driver has not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FaultView {
    /// Token, the same as in logs, traces and the guest's tracepoints.
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
    /// Time since it was raised.
    pub age_ns: u64,
    /// Queue pairs that wait.
    pub waiters: u32,
    /// The queue pair that has waited longest.
    pub qpn: Option<u32>,
}

/// A user context: a process of the guest that has opened the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ContextView {
    /// Number, which is that of its doorbell page.
    pub context: u32,
    /// Protection domains, queue pairs, completion queues and shared receive queues.
    pub objects: u32,
    /// Process id in the guest, if the driver has told it.
    pub pid: Option<u32>,
    /// Name of the program, likewise.
    pub program: Option<String>,
}

impl From<FaultPolicy> for Policy {
    fn from(policy: FaultPolicy) -> Self {
        match policy {
            FaultPolicy::Rnr => Self::Rnr,
            FaultPolicy::Drop => Self::Drop,
            FaultPolicy::Stall => Self::Stall,
            FaultPolicy::Terminate => Self::Terminate,
        }
    }
}

impl From<Policy> for FaultPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Rnr => Self::Rnr,
            Policy::Drop => Self::Drop,
            Policy::Stall => Self::Stall,
            Policy::Terminate => Self::Terminate,
        }
    }
}

impl From<QueueKind> for QueuePairKind {
    fn from(kind: QueueKind) -> Self {
        match kind {
            QueueKind::Pair(QpType::Gsi) => Self::Gsi,
            QueueKind::Pair(QpType::Rc) => Self::Rc,
            QueueKind::Pair(QpType::Uc) => Self::Uc,
            QueueKind::Pair(QpType::Ud) => Self::Ud,
            QueueKind::Pair(QpType::Raw) => Self::Raw,
            QueueKind::Pair(QpType::XrcIni) => Self::XrcIni,
            QueueKind::Pair(QpType::XrcTgt) => Self::XrcTgt,
            QueueKind::WorkQueue => Self::WorkQueue,
            QueueKind::Rss => Self::Rss,
        }
    }
}

impl From<State> for QueuePairState {
    fn from(state: State) -> Self {
        match state {
            State::Reset => Self::Reset,
            State::Init => Self::Init,
            State::Rtr => Self::Rtr,
            State::Rts => Self::Rts,
            State::Sqd => Self::Sqd,
            State::Sqe => Self::Sqe,
            State::Err => Self::Err,
        }
    }
}

impl From<QueuePairInfo> for QueuePairView {
    fn from(info: QueuePairInfo) -> Self {
        let Traffic {
            tx_packets,
            tx_bytes,
            rx_packets,
            rx_bytes,
        } = info.traffic;
        Self {
            qpn: info.qpn,
            kind: info.kind.into(),
            state: info.state.map(Into::into),
            context: info.context,
            pd: info.pd,
            send_cq: info.send_cq,
            recv_cq: info.recv_cq,
            srq: info.srq,
            peer_qpn: info.peer_qpn,
            path_mtu: info.mtu,
            fault_policy: info.fault_policy.into(),
            sends_pending: info.sends_pending,
            waits_for_page: info.waits_for_page,
            connection: info.connection.map(|connection| (*connection).into()),
            tx_packets,
            tx_bytes,
            rx_packets,
            rx_bytes,
        }
    }
}

impl From<ConnectionInfo> for ConnectionView {
    fn from(info: ConnectionInfo) -> Self {
        Self {
            local_address: info.local_address,
            local_port: info.local_port,
            remote_address: info.remote_address,
            remote_port: info.remote_port,
            tcp_state: info.tcp_state,
            is_active: info.is_active,
            mpa_revision: info.mpa_revision,
            congestion_window: info.congestion_window,
            peer_window: info.peer_window,
            round_trip_ns: info.round_trip_ns,
            unacknowledged: info.unacknowledged,
            unsent: info.unsent,
            kept: info.kept,
        }
    }
}

impl From<RegionInfo> for RegionView {
    fn from(info: RegionInfo) -> Self {
        let rights = [
            (abi::ACCESS_LOCAL_WRITE, "local_write"),
            (abi::ACCESS_REMOTE_WRITE, "remote_write"),
            (abi::ACCESS_REMOTE_READ, "remote_read"),
            (abi::ACCESS_REMOTE_ATOMIC, "remote_atomic"),
            (abi::ACCESS_MW_BIND, "bind"),
            (abi::ACCESS_ZERO_BASED, "zero_based"),
            (abi::ACCESS_HUGETLB, "hugetlb"),
            (abi::ACCESS_FLUSH_GLOBAL, "flush_global"),
            (abi::ACCESS_FLUSH_PERSISTENT, "flush_persistent"),
        ];
        Self {
            key: info.key,
            pd: info.pd,
            iova: info.iova,
            length: info.length,
            access: rights
                .iter()
                .filter(|(bit, _)| info.access & bit != 0)
                .map(|(_, name)| (*name).to_owned())
                .collect(),
            on_demand: info.on_demand,
            present_entries: info.present_entries,
            table_bytes: info.table_bytes,
        }
    }
}

impl FaultView {
    pub(crate) fn new(info: &FaultInfo, now: Instant) -> Self {
        Self {
            token: info.token,
            key: info.key,
            va: info.va,
            pages: info.pages,
            write: info.write,
            context: info.context,
            age_ns: now.0.saturating_sub(info.raised.0),
            waiters: info.waiters,
            qpn: info.qpn,
        }
    }
}

impl From<ContextInfo> for ContextView {
    fn from(info: ContextInfo) -> Self {
        Self {
            context: info.context,
            objects: info.objects,
            pid: info.process.as_ref().map(|process| process.pid),
            program: info.process.map(|process| process.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::ValueEnum;

    use super::*;

    /// One spelling in the API, in commands, in configurations, and in the pages that list the policies.
    #[test]
    fn policies_have_one_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let pages = [
            "docs/page-faults.md",
            "qemu-config/packages/host/faultline.toml.5",
            "qemu-config/packages/guest/faultlinedv.7",
            "guest-driver/kernel/faultline_restrack.c",
            "guest-driver/provider/faultlinedv.h",
        ]
        .map(|name| (name, page(name)));
        assert_eq!(Policy::value_variants().len(), FaultPolicy::ALL.len());
        for policy in FaultPolicy::ALL {
            let (view, name) = (Policy::from(policy), policy.name());
            assert_eq!(serde_json::to_value(view).unwrap(), name);
            assert_eq!(view.to_possible_value().unwrap().get_name(), name);
            for (file, text) in &pages {
                // Manual pages have hyphens as `\-`.
                let text = text.to_lowercase().replace("\\-", "-");
                assert!(text.contains(name), "{file} has no policy {name}");
            }
        }
    }
}
