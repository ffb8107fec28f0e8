//! The rest of a NIC's state, for a complete dump: queues, domains, handles, flows, groups, command rings, timers.
//!
//! Views give no access to the guest's objects or data: they contain no Q_Keys, no addresses of rings, no match fields
//! of flows, no contents of memory.

use faultline_wire::MacAddr;

use super::{Listing, SCANNED, listing};
use crate::command_ring::{CommandRings, Gate};
use crate::core::{Ah, Core, Pd};
use crate::cq::Cq;
use crate::eq::Eq;
use crate::nic::Nic;
use crate::queues::Queue;
use crate::references::References;
use crate::rss::RwqIndTable;
use crate::srq::Srq;
use crate::steering::Flow;
use crate::time::Instant;

/// Most members of a group that are listed.
const MEMBERS: usize = 16;
/// Most timers that are listed.
const TIMERS: usize = 256;

/// Attributes of a queue pair, as QUERY_QP returns them, without its Q_Key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QueuePairDetails {
    /// Number.
    pub qpn: u32,
    /// PSN of the next new request.
    pub next_sent_psn: u32,
    /// PSN of the request that is expected.
    pub next_received_psn: u32,
    /// `ACCESS_*` of `faultline_abi::qp` that the peer may use.
    pub access: u32,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// READs and atomics outstanding, as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding, as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs × 2^n; 0: none.
    pub timeout: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries; 7: without limit.
    pub rnr_retry: u8,
    /// The send queue is draining.
    pub sq_draining: bool,
    /// UDP source port; 0: it follows from the numbers of the queue pairs.
    pub udp_source_port: u16,
    /// GID of the far end, of a connection.
    pub dgid: Option<String>,
    /// The peer is known to execute READY, or is said to.
    pub exchanges_ready: bool,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CompletionQueueInfo {
    /// Number.
    pub cqn: u32,
    /// User context that owns it; 0: the kernel.
    pub context: u32,
    /// Event queue of its events.
    pub eqn: u32,
    /// Queue pairs and SRQs that use it.
    pub users: u32,
    /// Entries that fit.
    pub depth: u32,
    /// Entries written, modulo 2^32.
    pub producer: u32,
    /// Entries read, as of the last look at the record.
    pub consumer: u32,
    /// Completions that cause an event: `no`, `solicited` or `any`.
    pub armed: &'static str,
    /// It has overflowed or cannot be written.
    pub failed: bool,
    /// Its event waits for room in the event queue.
    pub event_waits: bool,
    /// Moderation: completions.
    pub moderation_count: u16,
    /// Moderation: nanoseconds.
    pub moderation_ns: u64,
}

/// A shared receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SharedReceiveQueueInfo {
    /// Number.
    pub srqn: u32,
    /// Protection domain.
    pub pd: u32,
    /// User context that owns it; 0: the kernel.
    pub context: u32,
    /// Queue pairs that use it.
    pub users: u32,
    /// Requests that fit.
    pub depth: u32,
    /// Requests taken, modulo 2^32.
    pub consumer: u32,
    /// Requests posted, as of the last look at the record.
    pub producer: u32,
    /// An event is raised if fewer are posted; 0: none.
    pub limit: u32,
    /// XRC domain.
    pub xrcd: Option<u32>,
    /// Completion queue of its own.
    pub cq: Option<u32>,
    /// Buffers in its tag list, if it matches tags.
    pub tagged_buffers: Option<u64>,
}

/// An event queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct EventQueueInfo {
    /// Number.
    pub eqn: u32,
    /// MSI-X vector.
    pub vector: u16,
    /// Completion queues that use it.
    pub users: u32,
    /// Entries that fit.
    pub depth: u32,
    /// Entries written, modulo 2^32.
    pub producer: u32,
    /// Entries read, when the driver last armed it.
    pub consumer: u32,
    /// The next event raises an interrupt.
    pub armed: bool,
    /// Completion queues whose events wait for room.
    pub waiting: usize,
    /// Other events that wait for room.
    pub overflow: usize,
}

/// A protection domain or XRC domain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DomainInfo {
    /// Number.
    pub number: u32,
    /// User context that owns it; 0: the kernel. XRC domains have none.
    pub context: Option<u32>,
    /// Objects in it.
    pub objects: u32,
}

/// An address handle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AddressHandleInfo {
    /// Number.
    pub ah: u32,
    /// Protection domain.
    pub pd: u32,
    /// GID of this end.
    pub sgid: String,
    /// GID of the far end.
    pub dgid: String,
}

/// A flow, without its match fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FlowInfo {
    /// Handle.
    pub flow: u32,
    /// `FLOW_KIND_*` of `faultline_abi::steering`.
    pub kind: u8,
    /// `FLOW_*` flags.
    pub flags: u8,
    /// The queue pair that receives.
    pub qpn: u32,
    /// Tag of the completions.
    pub tag: u32,
}

/// An indirection table of receive work queues.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct IndirectionTableInfo {
    /// Number.
    pub table: u32,
    /// User context that owns it; 0: the kernel.
    pub context: u32,
    /// RSS queue pairs that use it.
    pub users: u32,
    /// Entries.
    pub entries: usize,
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GroupInfo {
    /// GID of the group.
    pub gid: String,
    /// Number of members.
    pub members: usize,
    /// The first members, 16 at most.
    pub queue_pairs: Vec<u32>,
}

/// A command queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CommandRingInfo {
    /// Commands that fit.
    pub depth: u64,
    /// Commands announced, modulo 2^32.
    pub producer: u32,
    /// Commands executed, modulo 2^32.
    pub consumer: u32,
    /// An injection delays the next command.
    pub is_held: bool,
}

/// A timer of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TimerInfo {
    /// Queue pair.
    pub qpn: u32,
    /// Device clock at which it ends, in nanoseconds.
    pub at: u64,
}

/// State that belongs to no object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceInfo {
    /// The admin queue.
    pub admin: CommandRingInfo,
    /// The translation queue.
    pub translation: CommandRingInfo,
    /// The next deadline of the NIC, in nanoseconds of the device clock.
    pub next_deadline: Option<u64>,
    /// Number of timers that run.
    pub timer_count: usize,
    /// Those that end first, 256 at most.
    pub timers: Vec<TimerInfo>,
    /// Completion events that moderation delays.
    pub moderated_events: usize,
    /// Queue pairs with frames to send.
    pub ready: usize,
    /// Event queue of asynchronous events.
    pub async_eqn: Option<u32>,
    /// GIDs: index and GID. The table has few entries.
    pub gids: Vec<(usize, String)>,
    /// MAC address of the netdev.
    pub netdev_mac: String,
    /// Largest payload of a frame of the netdev.
    pub netdev_mtu: u16,
    /// `NETDEV_*` bits.
    pub netdev_flags: u32,
    /// Raw queue pair of the netdev; 0: none.
    pub netdev_qpn: u32,
    /// Further addresses and groups of the netdev.
    pub netdev_filters: usize,
}

impl Nic {
    /// Attributes of queue pairs from place `from` on, `limit` at most.
    pub fn queue_pair_details(&self, from: u32, limit: usize) -> Listing<QueuePairDetails> {
        let details = |qpn, queue: &Queue| queue_pair_details(&self.core, qpn, queue);
        let found = listing(self.queues.places(from), limit, details);
        Listing {
            items: found.items.into_iter().flatten().collect(),
            next: found.next,
        }
    }

    /// Completion queues from place `from` on, `limit` at most.
    pub fn completion_queues(&self, from: u32, limit: usize) -> Listing<CompletionQueueInfo> {
        listing(self.core.cqs.places(from), limit, cq_info)
    }

    /// Shared receive queues from place `from` on, `limit` at most.
    pub fn shared_receive_queues(
        &self,
        from: u32,
        limit: usize,
    ) -> Listing<SharedReceiveQueueInfo> {
        listing(self.core.srqs.places(from), limit, srq_info)
    }

    /// Event queues from place `from` on, `limit` at most.
    pub fn event_queues(&self, from: u32, limit: usize) -> Listing<EventQueueInfo> {
        listing(self.core.eqs.places(from), limit, eq_info)
    }

    /// Protection domains from place `from` on, `limit` at most.
    pub fn protection_domains(&self, from: u32, limit: usize) -> Listing<DomainInfo> {
        let info = |number, pd: &Pd| DomainInfo {
            number,
            context: Some(pd.uctx),
            objects: pd.refs.count(),
        };
        listing(self.core.pds.places(from), limit, info)
    }

    /// XRC domains from place `from` on, `limit` at most.
    pub fn xrc_domains(&self, from: u32, limit: usize) -> Listing<DomainInfo> {
        let info = |number, refs: &References| DomainInfo {
            number,
            context: None,
            objects: refs.count(),
        };
        listing(self.core.xrcds.places(from), limit, info)
    }

    /// Address handles from place `from` on, `limit` at most.
    pub fn address_handles(&self, from: u32, limit: usize) -> Listing<AddressHandleInfo> {
        let info = |ah, handle: &Ah| AddressHandleInfo {
            ah,
            pd: handle.pd,
            sgid: handle.path.sgid().to_string(),
            dgid: handle.path.dgid().to_string(),
        };
        listing(self.core.ahs.places(from), limit, info)
    }

    /// Flows from place `from` on, `limit` at most.
    pub fn flows(&self, from: u32, limit: usize) -> Listing<FlowInfo> {
        let info = |handle, flow: &Flow| FlowInfo {
            flow: handle,
            kind: flow.kind,
            flags: flow.flags,
            qpn: flow.target.qpn,
            tag: flow.target.tag,
        };
        listing(self.steering.places(from), limit, info)
    }

    /// Indirection tables from place `from` on, `limit` at most.
    pub fn indirection_tables(&self, from: u32, limit: usize) -> Listing<IndirectionTableInfo> {
        let info = |number, table: &RwqIndTable| IndirectionTableInfo {
            table: number,
            context: table.uctx,
            users: table.refs.count(),
            entries: table.queues().len(),
        };
        listing(self.rwq_ind_tables.places(from), limit, info)
    }

    /// Multicast groups from the `from`th on, in the order of their GIDs, `limit` at most.
    pub fn multicast_groups(&self, from: u32, limit: usize) -> Listing<GroupInfo> {
        let limit = limit.min(SCANNED);
        let groups = self.groups.iter().skip(from as usize).take(limit);
        let items: Vec<GroupInfo> = groups
            .map(|(gid, members)| GroupInfo {
                gid: gid.to_string(),
                members: members.len(),
                queue_pairs: members.iter().take(MEMBERS).copied().collect(),
            })
            .collect();
        let end = u32::try_from(items.len()).map_or(u32::MAX, |found| from.saturating_add(found));
        Listing {
            next: (items.len() == limit && limit > 0).then_some(end),
            items,
        }
    }

    /// The state that belongs to no object.
    pub fn device_info(&self) -> DeviceInfo {
        let core = &self.core;
        let netdev = &core.netdev;
        let timers = core.first_timers().take(TIMERS);
        let gids = core.gids.iter().take(SCANNED);
        DeviceInfo {
            admin: ring_info(&self.admin),
            translation: ring_info(&self.translation),
            next_deadline: self.next_deadline().map(|at| at.0),
            timer_count: core.timers(),
            timers: timers
                .map(|(Instant(at), qpn)| TimerInfo { qpn, at })
                .collect(),
            moderated_events: core.moderated_events(),
            ready: core.ready_count(),
            async_eqn: core.async_eqn,
            gids: gids
                .filter_map(|(index, entry)| Some((index, entry?.gid.to_string())))
                .collect(),
            netdev_mac: mac_text(netdev.mac),
            netdev_mtu: netdev.mtu,
            netdev_flags: netdev.flags,
            netdev_qpn: netdev.qpn,
            netdev_filters: netdev.filter.len(),
        }
    }
}

fn mac_text(mac: MacAddr) -> String {
    mac.to_string()
}

fn ring_info(rings: &CommandRings) -> CommandRingInfo {
    let (producer, consumer, depth) = rings.indices();
    CommandRingInfo {
        depth,
        producer,
        consumer,
        is_held: rings.gate == Gate::Closed,
    }
}

/// Work queues and RSS queue pairs have no attributes of this kind.
fn queue_pair_details(core: &Core, qpn: u32, queue: &Queue) -> Option<QueuePairDetails> {
    let Queue::Pair(qp) = queue else {
        return None;
    };
    let (psns, attr) = (qp.psns(), qp.query());
    let path = qp.endpoint.path.as_ref();
    Some(QueuePairDetails {
        qpn,
        next_sent_psn: psns.next_sent.get(),
        next_received_psn: psns.next_received.get(),
        access: attr.access.get(),
        pkey_index: attr.pkey_index.get(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        timeout: attr.timeout,
        retry_count: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        sq_draining: attr.sq_draining != 0,
        udp_source_port: attr.udp_sport.get(),
        dgid: path.map(|path| path.dgid().to_string()),
        exchanges_ready: qp.endpoint.exchanges_ready(core),
    })
}

fn srq_info(srqn: u32, srq: &Srq) -> SharedReceiveQueueInfo {
    let (producer, consumer) = srq.ring.indices();
    SharedReceiveQueueInfo {
        srqn,
        pd: srq.pd,
        context: srq.uctx,
        users: srq.refs.count(),
        depth: srq.ring.depth(),
        consumer,
        producer,
        limit: srq.limit,
        xrcd: srq.xrc.map(|(xrcd, _)| xrcd),
        cq: srq.cqn(),
        tagged_buffers: srq.tags.as_ref().map(|tags| tags.listed()),
    }
}

fn cq_info(cqn: u32, cq: &Cq) -> CompletionQueueInfo {
    let (depth, producer, consumer) = cq.indices();
    CompletionQueueInfo {
        cqn,
        context: cq.uctx,
        eqn: cq.eqn,
        users: cq.refs.count(),
        depth,
        producer,
        consumer,
        armed: cq.armed_for(),
        failed: cq.is_broken(),
        event_waits: cq.event_waits.is_some(),
        moderation_count: cq.moderation.count,
        moderation_ns: cq.moderation.period.0,
    }
}

fn eq_info(eqn: u32, eq: &Eq) -> EventQueueInfo {
    let (depth, producer, consumer) = eq.indices();
    EventQueueInfo {
        eqn,
        vector: eq.vector,
        users: eq.refs.count(),
        depth,
        producer,
        consumer,
        armed: eq.is_armed(),
        waiting: eq.waiting(),
        overflow: eq.overflow(),
    }
}
