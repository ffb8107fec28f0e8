//! Configuration of a NIC, fixed at its creation.

use faultline_abi::caps::{
    Caps, IWARP, ODP_ATOMIC, ODP_READ, ODP_RECV, ODP_SEND, ODP_SRQ_RECV, ODP_WRITE, ROCE_V1_GIDS,
};
use faultline_abi::wqe::{MAX_STRIDE_SHIFT, RQ_WQE_DATA, SQ_WQE_DATA};
use faultline_abi::{U16, U32, U64};
use faultline_wire::MacAddr;

use crate::congestion::Dcqcn;
use crate::latency::Latency;
use crate::number::low32;
use crate::origin::ReadyMode;
use crate::port_security::PortSecurity;
use crate::qp::FaultPolicy;
use crate::time::Nanos;
use crate::vendor_error::VendorErrors;
use crate::work;

/// Largest number of scatter/gather entries in a work request.
pub(crate) const MAX_SGE: u32 = 30;
/// Largest number of inline bytes: the rest of the largest stride.
pub(crate) const MAX_INLINE: u32 = (1 << MAX_STRIDE_SHIFT) - SQ_WQE_DATA;
/// Longest message: 1 GiB.
pub(crate) const MAX_MSG_SIZE: u32 = 1 << 30;
/// Longest payload of a work request that is segmented, in bytes.
pub(crate) const MAX_TSO: u32 = 1 << 16;
/// Largest Ethernet MTU in bytes.
pub(crate) const MAX_MTU: u16 = 9000;

/// Largest number of leaves that one MAP command may write: 1 GiB of 4 KiB pages.
pub(crate) const MAX_LEAVES_PER_MAP: u64 = work::TURN;
/// Largest number of pages of a fast registration: a list of 16 KiB.
pub(crate) const MAX_FAST_REG_PAGES: u32 = 2048;

/// Largest completion count of CQ moderation.
pub(crate) const MAX_CQ_COUNT: u16 = u16::MAX;
/// Longest moderation period of a CQ in microseconds.
pub(crate) const MAX_CQ_PERIOD: u16 = u16::MAX;

const _: () = assert!(RQ_WQE_DATA + MAX_SGE * 16 <= 1 << MAX_STRIDE_SHIFT);

/// Largest number of objects of each kind, and of entries in them. The names are those of `struct faultline_caps`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory keys.
    pub max_mkey: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// User contexts.
    pub max_uctx: u32,
    /// Event queues.
    pub max_eq: u32,
    /// Entries of an event queue.
    pub max_eqe: u32,
    /// Entries of the GID table.
    pub max_gid: u32,
    /// READs and atomics outstanding on a queue pair, as requester and as responder.
    pub max_rd_atomic: u32,
    /// Page faults outstanding at a time.
    pub max_faults: u32,
    /// XRC domains.
    pub max_xrcd: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in a multicast group.
    pub max_mcast_qp: u32,
    /// Flows.
    pub max_flow: u32,
    /// Bytes of device memory, whole pages.
    pub device_memory: u64,
    /// Allocations of device memory.
    pub max_dm: u32,
    /// Counter sets.
    pub max_counters: u32,
    /// Indirection tables of work queues.
    pub max_rwq_ind_table: u32,
    /// log2 of the entries of an indirection table.
    pub max_rwq_ind_table_log_size: u32,
    /// Addresses of the MAC filter.
    pub max_mac_filter: u32,
    /// Tagged buffers of a tag matching SRQ; 0 = no tag matching.
    pub max_tm_tags: u32,
    /// Operations in the ring of a tag matching SRQ.
    pub max_tm_ops: u32,
    /// iWARP: listeners, and requests that wait for an answer.
    pub max_listener: u32,
    /// iWARP: backlog of a listener.
    pub max_backlog: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 1 << 16,
            max_qp_wr: 1 << 15,
            max_cq: 1 << 16,
            max_cqe: 1 << 20,
            max_mkey: 1 << 20,
            max_pd: 1 << 15,
            max_ah: 1 << 16,
            max_srq: 1 << 14,
            max_srq_wr: 1 << 15,
            max_uctx: 1023,
            max_eq: 64,
            max_eqe: 1 << 17,
            max_gid: 256,
            max_rd_atomic: 16,
            max_faults: 1024,
            max_xrcd: 1 << 14,
            max_mcast_grp: 1 << 12,
            max_mcast_qp: 256,
            max_flow: 1 << 12,
            device_memory: 8 << 20,
            max_dm: 1024,
            max_counters: 1024,
            max_rwq_ind_table: 1 << 10,
            max_rwq_ind_table_log_size: 9,
            max_mac_filter: 128,
            max_tm_tags: 128,
            max_tm_ops: 256,
            max_listener: 1 << 12,
            max_backlog: 256,
        }
    }
}

/// Properties of a NIC.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Permanent MAC address.
    pub mac: MacAddr,
    /// Limits.
    pub limits: Limits,
    /// Offers on-demand regions. If false, the NIC supports pinned regions only.
    pub on_demand: bool,
    /// Fault policy of queue pairs that set none.
    pub fault_policy: FaultPolicy,
    /// Fault timeout: a fault without an answer for this time fails.
    pub fault_timeout: Nanos,
    /// Longest time that a page fault (policy `stall`) pauses ingress. A longer pause is treated as a deadlock.
    pub stall_timeout: Nanos,
    /// Number of NICs, including this one, that can pause the same senders: together they may pause a sender for a tenth of
    /// its time.
    pub pause_sharers: u32,
    /// Memory for packets that wait for pages in the device, in bytes.
    pub park_bytes: usize,
    /// Memory for page tables, page lists of rings and queue pairs, in bytes: 8 for each mapped page.
    pub table_bytes: usize,
    /// Peers with which READY is exchanged: it tells a requester that its page is present, so that the request is sent
    /// again without waiting for the RNR timer.
    pub ready: ReadyMode,
    /// The bit MigReq of sent packets (IBTA 9.2.4): true means "migrated", as adapters without path migration send it. Some
    /// adapters drop packets with 0. Both values are accepted.
    pub mig_req: bool,
    /// Software may give the interface another MAC address than `mac`. Such a guest can also use the address of another
    /// host of the same network, like a trusted virtual function.
    pub mac_change: bool,
    /// Addresses that software may use. `None`: all.
    pub addresses: Option<PortSecurity>,
    /// Congestion control of connections. `None`: CNPs are neither sent nor obeyed.
    pub congestion: Option<Dcqcn>,
    /// Simulated latency of a page-table look-up, as of tables in host memory. The NIC sends nothing during that time.
    pub lookup: Nanos,
    /// Simulated latency of doorbells, DMA reads and the cache of queue pairs.
    pub latency: Latency,
    /// Defects of real adapters to reproduce, so that their effect on software can be tested.
    pub pitfalls: Pitfalls,
    /// The driver's GID table has an entry of RoCE v1 before each entry of RoCE v2. Nothing can be sent with entries of RoCE v1.
    pub roce_v1_gids: bool,
    /// Whose vendor errors completions have.
    pub vendor_errors: VendorErrors,
    /// Protocol of its RDMA queue pairs.
    pub transport: Transport,
    /// The secret from which nonces, and initial sequence numbers of iWARP, are made. A NIC whose peers are not trusted needs random
    /// numbers here.
    pub secret: [u64; 2],
}

/// Protocol of the RDMA queue pairs of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Transport {
    /// RoCEv2.
    #[default]
    Roce,
    /// iWARP: RDMAP, DDP and MPA over TCP.
    Iwarp,
}

impl Transport {
    /// Its name, as in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
        }
    }

    /// True for iWARP.
    pub fn is_iwarp(self) -> bool {
        self == Self::Iwarp
    }
}

/// Known defects of real adapters: `damming` and `flood` from "Pitfalls of InfiniBand with On-Demand Paging", ISPASS 2021.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pitfalls {
    /// Requests that are posted while a QP waits for an RNR timer are lost until the ACK timeout.
    pub damming: bool,
    /// READs whose landing buffer is absent are sent and answered repeatedly; the requester drops each response.
    pub flood: bool,
    /// Fast registrations belong to the QP on which they were made, and end when it fails or is destroyed ("rds: enable rdma on iWARP",
    /// rds-devel, July 2008).
    pub qp_keys: bool,
}

impl NicConfig {
    /// The default configuration.
    pub fn new(mac: MacAddr) -> Self {
        Self {
            mac,
            limits: Limits::default(),
            on_demand: true,
            fault_policy: FaultPolicy::default(),
            fault_timeout: Nanos::from_millis(60_000),
            stall_timeout: Nanos::from_millis(500),
            pause_sharers: 1,
            park_bytes: 16 << 20,
            table_bytes: 1 << 30,
            ready: ReadyMode::default(),
            mig_req: true,
            mac_change: false,
            addresses: None,
            congestion: None,
            lookup: Nanos(0),
            latency: Latency::default(),
            pitfalls: Pitfalls::default(),
            roce_v1_gids: false,
            vendor_errors: VendorErrors::default(),
            transport: Transport::default(),
            secret: [0; 2],
        }
    }

    /// FAULTLINE_FEATURE_*.
    fn features(&self) -> u32 {
        match self.transport {
            Transport::Iwarp => IWARP,
            Transport::Roce if self.roce_v1_gids => ROCE_V1_GIDS,
            Transport::Roce => 0,
        }
    }

    /// The contents of FAULTLINE_REG_CAPS.
    pub fn caps(&self) -> Caps {
        let l = &self.limits;
        let [a, b, c, d, e, f] = self.mac.0;
        let odp = |bits: u32| U32::new(if self.on_demand { bits } else { 0 });
        let is_iwarp = self.transport == Transport::Iwarp;
        let of_roce = |bits: u32| odp(if is_iwarp { 0 } else { bits });
        Caps {
            fw_version: U64::new(1 << 16),
            node_guid: U64::new(u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])),
            page_sizes: U64::new(1 << 12 | 1 << 21 | 1 << 30),
            max_mr_size: U64::new(1 << 62),
            max_qp: U32::new(l.max_qp),
            max_qp_wr: U32::new(l.max_qp_wr),
            max_sge: U32::new(MAX_SGE),
            max_inline: U32::new(MAX_INLINE),
            max_cq: U32::new(l.max_cq),
            max_cqe: U32::new(l.max_cqe),
            max_mkey: U32::new(l.max_mkey),
            max_pd: U32::new(l.max_pd),
            max_ah: U32::new(if is_iwarp { 0 } else { l.max_ah }),
            max_srq: U32::new(l.max_srq),
            max_srq_wr: U32::new(l.max_srq_wr),
            max_uctx: U32::new(l.max_uctx),
            max_eq: U32::new(l.max_eq),
            max_eqe: U32::new(l.max_eqe),
            max_gid: U32::new(l.max_gid),
            max_msg_size: U32::new(MAX_MSG_SIZE),
            max_rd_atomic: U32::new(l.max_rd_atomic),
            max_init_rd_atomic: U32::new(l.max_rd_atomic),
            max_mtu: U32::new(u32::from(MAX_MTU)),
            max_map_pages: U32::new(512),
            max_mcast_grp: U32::new(l.max_mcast_grp),
            max_mcast_qp: U32::new(l.max_mcast_qp),
            max_flow: U32::new(l.max_flow),
            max_rwq_ind_table: U32::new(l.max_rwq_ind_table),
            max_rwq_ind_table_log_size: U32::new(l.max_rwq_ind_table_log_size),
            max_mac_filter: U32::new(l.max_mac_filter),
            max_tso: U32::new(MAX_TSO),
            rc_odp_caps: odp(ODP_SEND
                | ODP_RECV
                | ODP_WRITE
                | ODP_READ
                | ODP_ATOMIC
                | ODP_SRQ_RECV),
            xrc_odp_caps: of_roce(
                ODP_SEND | ODP_RECV | ODP_WRITE | ODP_READ | ODP_ATOMIC | ODP_SRQ_RECV,
            ),
            uc_odp_caps: of_roce(ODP_SEND | ODP_RECV | ODP_WRITE | ODP_SRQ_RECV),
            ud_odp_caps: of_roce(ODP_SEND | ODP_RECV | ODP_SRQ_RECV),
            max_faults: U32::new(l.max_faults),
            max_map_leaves: U32::new(low32(MAX_LEAVES_PER_MAP)),
            max_fast_reg_pages: U32::new(MAX_FAST_REG_PAGES),
            device_memory: U64::new(l.device_memory),
            max_dm: U32::new(l.max_dm),
            max_counters: U32::new(l.max_counters),
            max_cq_count: U16::new(MAX_CQ_COUNT),
            max_cq_period: U16::new(MAX_CQ_PERIOD),
            max_tm_tags: U32::new(if is_iwarp { 0 } else { l.max_tm_tags }),
            max_tm_ops: U32::new(if is_iwarp { 0 } else { l.max_tm_ops }),
            features: U32::new(self.features()),
            max_listener: U32::new(if is_iwarp { l.max_listener } else { 0 }),
            max_backlog: U32::new(if is_iwarp { l.max_backlog } else { 0 }),
            ..Caps::default()
        }
    }
}
