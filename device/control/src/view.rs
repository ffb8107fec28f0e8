//! The JSON of the control API, for the server and for its clients.

use std::collections::BTreeMap;

use faultline_abi::admin::Counter;
use faultline_abi::regs;
use faultline_nic::{Limits, NicConfig, ObjectCounts};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use faultline_config::PollMode;
use faultline_daemon::nic::io::Client;
use faultline_daemon::observe;
pub use faultline_telemetry::Direction;

/// What every refused request is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What was wrong, with the value, and what is allowed.
    pub error: String,
}

/// Whether a NIC works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NicState {
    /// The driver has not enabled the device.
    Disabled,
    /// The driver uses the device.
    Running,
    /// The device has stopped by a fatal error, and waits for a reset.
    Fatal,
}

/// The program that has attached a NIC by its vfio-user socket, such as QEMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientView {
    /// Number of its process, as the system of the NIC's process sees it.
    pub pid: Option<i32>,
    /// Name of its program.
    pub program: Option<String>,
    /// Time since it has attached, or since a supervisor has started the server.
    pub attached_ns: u64,
}

/// A NIC to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NicName {
    /// Name of the configuration.
    pub name: String,
}

/// A NIC in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NicSummary {
    /// Name of the configuration.
    pub name: String,
    /// It has a socket. An absent NIC was removed, or was not added yet.
    pub present: bool,
    /// MAC address in use.
    pub mac: String,
    /// Whether it works.
    pub state: NicState,
    /// The link is up.
    pub link_up: bool,
    /// Fault policy `stall` has stopped the ingress.
    pub stalled: bool,
    /// The client; `null`: none is attached.
    #[serde(default)]
    pub client: Option<ClientView>,
    /// Number of queue pairs.
    pub queue_pairs: u64,
    /// Number of memory keys.
    pub memory_keys: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets received.
    pub rx_packets: u64,
}

/// The link of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// The link is up.
    pub up: bool,
    /// Longest frame without Ethernet header, in bytes; `null`: not limited.
    pub mtu: Option<u16>,
    /// Speed that is reported; it limits nothing.
    pub speed_mbps: u32,
    /// Packets that were dropped because they were longer than `mtu`.
    pub too_long: u64,
    /// Sent packets that were dropped by request.
    pub tx_dropped: u64,
    /// Received packets that were dropped by request.
    pub rx_dropped: u64,
    /// Sent packets that were dropped because the NIC, or the port with their destination address, is no member of their VLAN.
    pub vlan_dropped: u64,
    /// Interrupts that were suppressed by request.
    pub interrupts_lost: u64,
    /// Sent packets that are still to be dropped.
    pub tx_drops_pending: u32,
    /// Received packets that are still to be dropped.
    pub rx_drops_pending: u32,
    /// Interrupts that are still to be suppressed.
    pub interrupt_losses_pending: u32,
}

/// Configuration of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigView {
    /// Permanent MAC address.
    pub mac: String,
    /// Transport of its connections: `roce` or `iwarp`.
    #[serde(default)]
    pub transport: String,
    /// Regions on demand are offered.
    pub on_demand: bool,
    /// Fault policy of queue pairs that set none.
    pub fault_policy: String,
    /// Time within which the driver must resume a fault.
    pub fault_timeout_ns: u64,
    /// Longest pause of the ingress.
    pub stall_timeout_ns: u64,
    /// NICs that share the pauses of a sender.
    pub pause_sharers: u32,
    /// Memory for packets that wait for pages.
    pub park_bytes: u64,
    /// Memory for page tables, page lists and queue pairs.
    pub table_bytes: u64,
    /// Peers that get READY packets when a fault is repaired: `known`, `always` or `never`.
    pub ready: String,
    /// The bit MigReq of sent packets.
    pub mig_req: u8,
    /// Congestion control of connections: `dcqcn`, or `none`.
    pub congestion_control: String,
    /// Modelled time of a page-table look-up.
    pub lookup_ns: u64,
    /// Defects of real adapters that are imitated.
    pub pitfalls: Vec<String>,
}

/// Number of objects of each kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectsView {
    /// Protection domains.
    pub protection_domains: u64,
    /// Memory keys.
    pub memory_keys: u64,
    /// Completion queues.
    pub completion_queues: u64,
    /// Queue pairs.
    pub queue_pairs: u64,
    /// Shared receive queues.
    pub shared_receive_queues: u64,
    /// Address handles.
    pub address_handles: u64,
    /// Listeners for iWARP connections.
    #[serde(default)]
    pub listeners: u64,
    /// iWARP connections, also those that have no queue pair yet.
    #[serde(default)]
    pub connections: u64,
    /// User contexts.
    pub contexts: u64,
    /// Timers.
    pub timers: u64,
    /// Entries for queue pairs that wait for pages.
    pub fault_waits: u64,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NicView {
    /// Name of the configuration.
    pub name: String,
    /// MAC address in use.
    pub mac: String,
    /// Whether it works.
    pub state: NicState,
    /// `FAULTLINE_FATAL_*` if it has stopped; else 0.
    pub fatal_cause: u32,
    /// The guest allows the function to access memory.
    pub bus_master: bool,
    /// Fault policy `stall` has stopped the ingress.
    pub stalled: bool,
    /// The client; `null`: none is attached.
    #[serde(default)]
    pub client: Option<ClientView>,
    /// Heartbeats of the engine.
    pub heartbeat: u32,
    /// Bytes of page tables, page lists and queue pairs.
    pub held_memory: u64,
    /// Completion queues whose events wait for room in an event queue.
    pub waiting_notices: u64,
    /// Elements that wait in queues of the device, by queue, as in the metric `faultline_queue_depth`.
    pub queue_depths: BTreeMap<String, u64>,
    /// Completions that the driver has not read in the fullest completion queue.
    pub fullest_cq_unread: u64,
    /// Completions that fit into it; 0: there is none.
    pub fullest_cq_entries: u64,
    /// Diagnostics for which the NIC had no room.
    pub lost_diagnostics: u64,
    /// Requests sent to other NICs of the process. Those that are sent again count again.
    pub tx_messages: u64,
    /// Requests received from other NICs of the process.
    pub rx_messages: u64,
    /// Its link.
    pub link: LinkView,
    /// Its configuration.
    pub config: ConfigView,
    /// Number of objects.
    pub objects: ObjectsView,
    /// Largest number of objects, by name.
    pub limits: BTreeMap<String, u64>,
    /// Counters of the device, by name.
    pub counters: BTreeMap<String, u64>,
}

/// When the engine looks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Polling {
    /// Always.
    Busy,
    /// For a while after the last work.
    Adaptive,
    /// Not at all.
    Never,
}

/// The engine threads of the process together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineView {
    /// All NICs and the device clock are stopped.
    pub paused: bool,
    /// When the engine looks for work.
    pub poll: Polling,
    /// `adaptive`: for how long after the last work.
    pub poll_time_us: u64,
    /// Time since the start.
    pub uptime_ns: u64,
    /// The device clock, which stands still in a pause.
    pub device_time_ns: u64,
    /// Passes since the start, of all threads.
    pub passes: u64,
    /// How often they have slept.
    pub sleeps: u64,
    /// Doorbells that were rung while they slept and not written to the kick page: the driver lacks a full barrier.
    #[serde(default)]
    pub missed_wakeups: u64,
    /// Doorbells, at most one of each NIC, whose write to the kick page is awaited. Those that do not come within some seconds are missed.
    #[serde(default)]
    pub awaited_kicks: u64,
    /// Time in passes that had work, the sum of all threads.
    pub busy_ns: u64,
    /// Longest of these passes.
    pub longest_pass_ns: u64,
    /// Requests of the control server that were executed.
    pub control_requests: u64,
    /// The engine threads.
    #[serde(default)]
    pub threads: Vec<EngineThreadView>,
}

/// An engine thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineThreadView {
    /// Its name in the configuration.
    pub name: String,
    /// NICs that it owns now. While a scenario runs or the process is paused, the first one owns all.
    pub nics: Vec<String>,
    /// Passes since the start.
    pub passes: u64,
    /// How often it has slept.
    pub sleeps: u64,
    /// Doorbells that were rung while it slept and not written to the kick page.
    #[serde(default)]
    pub missed_wakeups: u64,
    /// Time in passes that had work.
    pub busy_ns: u64,
    /// Longest of these passes.
    pub longest_pass_ns: u64,
}

/// Change of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineChange {
    /// Stop all NICs and the device clock, or let them continue.
    pub paused: bool,
}

/// Steps of a paused engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Passes to execute, at most 256.
    #[schema(minimum = 1, maximum = 256)]
    pub passes: u32,
    /// Moves the device clock forward before the first pass.
    #[serde(default)]
    #[schema(maximum = 3_600_000_000u64)]
    pub advance_us: u64,
}

/// What steps have done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stepped {
    /// Passes that were executed.
    pub passes: u32,
    /// Passes of these that had work.
    pub worked: u32,
    /// The device clock.
    pub device_time_ns: u64,
}

/// Change of a link. What is not given stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// Take the link up or down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Longest frame without Ethernet header; 0: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Speed that is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
}

/// Something to do to a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// The device is reset, as by a function-level reset. The PCI configuration of the guest stays.
    Reset {},
    /// The device stops with a fatal error, as after an internal one.
    Fatal {},
    /// All faults that the driver has not answered fail, as after the fault timeout.
    FailFaults {},
    /// The next packets are dropped. A run of packets of one message is dropped as a whole. Replaces an earlier request for this
    /// direction.
    DropFrames {
        /// Direction.
        direction: Direction,
        /// Number of packets; 0 withdraws an earlier request.
        count: u32,
    },
    /// The next interrupts are not sent. Replaces an earlier request.
    LoseInterrupts {
        /// Number of interrupts; 0 withdraws an earlier request.
        count: u32,
    },
}

/// Part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// Number of the first record.
    #[serde(default)]
    pub from: u64,
    /// Largest number of records, at most 4096.
    pub limit: Option<u32>,
}

/// Query of a capture.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureQuery {
    /// Names of NICs and ports, with commas between them; all, if it is missing.
    pub nic: Option<String>,
    /// Only packets to or from queue pairs of this number.
    pub qpn: Option<u32>,
    /// Only packets of this opcode or group of opcodes.
    pub opcode: Option<String>,
    /// Octets that are kept of each frame, at most 65535.
    pub snaplen: Option<u32>,
    /// The capture ends after this number of frames.
    pub count: Option<u64>,
}

/// A capture that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureView {
    /// Number of the capture.
    pub id: u64,
    /// Frames that it has.
    pub frames: u64,
    /// Frames that it has lost, because its reader was too slow.
    pub lost: u64,
}

/// Query of a snapshot of the trace.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotQuery {
    /// Number of the first record.
    #[serde(default)]
    pub from: u64,
}

/// First line of a part of the trace; the records follow, one on each line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceHeader {
    /// Names of the NICs; records have their index in this list.
    pub nics: Vec<String>,
    /// Number of the first record of this part.
    pub first: u64,
    /// Number of the record after the last one of this part: `from` of the next request.
    pub next: u64,
    /// Records that were asked for and were overwritten before they could be copied.
    pub lost: u64,
    /// Records of each NIC since the start, kept or not. Empty if no trace is kept.
    pub recorded: Vec<u64>,
    /// The device clock in nanoseconds.
    pub now: u64,
}

/// A name with a value for each counter of the device.
pub(crate) fn counters(values: &[u64]) -> BTreeMap<String, u64> {
    let names = Counter::ALL.iter().map(|counter| counter.name().to_owned());
    names.zip(values.iter().copied()).collect()
}

fn counter(values: &[u64], counter: Counter) -> u64 {
    values.get(counter as usize).copied().unwrap_or_default()
}

fn state(state: &observe::NicState) -> NicState {
    if state.status & regs::FATAL != 0 {
        NicState::Fatal
    } else if state.status & regs::ENABLED != 0 {
        NicState::Running
    } else {
        NicState::Disabled
    }
}

impl NicSummary {
    pub(crate) fn new(name: &str, present: bool, nic: &observe::NicState) -> Self {
        Self {
            name: name.to_owned(),
            present,
            mac: nic.mac.to_string(),
            state: state(nic),
            link_up: nic.link.up,
            stalled: nic.stalled,
            client: nic.client.as_ref().map(ClientView::from),
            queue_pairs: nic.objects.qps as u64,
            memory_keys: nic.objects.mkeys as u64,
            tx_packets: counter(&nic.counters, Counter::tx_packets),
            rx_packets: counter(&nic.counters, Counter::rx_packets),
        }
    }
}

impl NicView {
    /// `fullest_cq`: completions in the fullest completion queue that the driver has not read, and completions that fit.
    pub(crate) fn new(name: &str, nic: &observe::NicState, fullest_cq: (u64, u64)) -> Self {
        let depths = nic.queue_depths.iter();
        Self {
            name: name.to_owned(),
            mac: nic.mac.to_string(),
            state: state(nic),
            fatal_cause: nic.fatal,
            bus_master: nic.bus_master,
            stalled: nic.stalled,
            client: nic.client.as_ref().map(ClientView::from),
            heartbeat: nic.heartbeat,
            held_memory: nic.held_memory as u64,
            waiting_notices: nic.waiting_notices as u64,
            queue_depths: depths
                .map(|&(queue, depth)| (queue.to_owned(), depth))
                .collect(),
            fullest_cq_unread: fullest_cq.0,
            fullest_cq_entries: fullest_cq.1,
            lost_diagnostics: nic.lost_diagnostics,
            tx_messages: nic.tx_messages,
            rx_messages: nic.rx_messages,
            link: (&nic.link).into(),
            config: (&nic.config).into(),
            objects: nic.objects.into(),
            limits: limits(&nic.config.limits),
            counters: counters(&nic.counters),
        }
    }
}

impl From<&Client> for ClientView {
    fn from(client: &Client) -> Self {
        let attached = client.since.elapsed().as_nanos();
        Self {
            pid: client.pid,
            program: client.program.clone(),
            attached_ns: u64::try_from(attached).unwrap_or(u64::MAX),
        }
    }
}

impl From<&observe::LinkState> for LinkView {
    fn from(link: &observe::LinkState) -> Self {
        Self {
            up: link.up,
            mtu: link.mtu,
            speed_mbps: link.speed_mbps,
            too_long: link.counts.too_long,
            tx_dropped: link.counts.tx_dropped,
            rx_dropped: link.counts.rx_dropped,
            vlan_dropped: link.counts.vlan,
            interrupts_lost: link.counts.interrupts_lost,
            tx_drops_pending: link.tx_drops,
            rx_drops_pending: link.rx_drops,
            interrupt_losses_pending: link.interrupt_losses,
        }
    }
}

impl From<&NicConfig> for ConfigView {
    fn from(config: &NicConfig) -> Self {
        let pitfalls = [
            ("damming", config.pitfalls.damming),
            ("flood", config.pitfalls.flood),
            ("qp_keys", config.pitfalls.qp_keys),
        ];
        Self {
            mac: config.mac.to_string(),
            transport: config.transport.name().to_owned(),
            on_demand: config.on_demand,
            fault_policy: config.fault_policy.name().to_owned(),
            fault_timeout_ns: config.fault_timeout.0,
            stall_timeout_ns: config.stall_timeout.0,
            pause_sharers: config.pause_sharers,
            park_bytes: config.park_bytes as u64,
            table_bytes: config.table_bytes as u64,
            ready: config.ready.name().to_owned(),
            mig_req: u8::from(config.mig_req),
            congestion_control: match config.congestion {
                Some(_) => "dcqcn".to_owned(),
                None => "none".to_owned(),
            },
            lookup_ns: config.lookup.0,
            pitfalls: pitfalls
                .iter()
                .filter(|(_, on)| *on)
                .map(|(name, _)| (*name).to_owned())
                .collect(),
        }
    }
}

impl From<ObjectCounts> for ObjectsView {
    fn from(counts: ObjectCounts) -> Self {
        Self {
            protection_domains: counts.pds as u64,
            memory_keys: counts.mkeys as u64,
            completion_queues: counts.cqs as u64,
            queue_pairs: counts.qps as u64,
            shared_receive_queues: counts.srqs as u64,
            address_handles: counts.ahs as u64,
            listeners: counts.listeners as u64,
            connections: counts.connections as u64,
            contexts: counts.uctxs as u64,
            timers: counts.timers as u64,
            fault_waits: counts.fault_waits as u64,
        }
    }
}

fn limits(limits: &Limits) -> BTreeMap<String, u64> {
    macro_rules! by_name {
        ($($name:ident)*) => {
            [ $( (stringify!($name).to_owned(), u64::from(limits.$name)), )* ].into()
        };
    }
    by_name! {
        max_qp max_qp_wr max_cq max_cqe max_mkey max_pd max_ah max_srq max_srq_wr max_uctx max_eq max_eqe max_gid
        max_rd_atomic max_faults max_xrcd max_mcast_grp max_mcast_qp max_flow device_memory max_dm max_counters max_rwq_ind_table
        max_rwq_ind_table_log_size max_mac_filter max_tm_tags max_tm_ops
    }
}

impl From<PollMode> for Polling {
    fn from(mode: PollMode) -> Self {
        match mode {
            PollMode::Busy => Self::Busy,
            PollMode::Adaptive => Self::Adaptive,
            PollMode::Never => Self::Never,
        }
    }
}

impl EngineView {
    /// The states of all engines. `names` are theirs, `nics` those of the NICs.
    pub(crate) fn new(states: &[observe::EngineState], names: &[String], nics: &[String]) -> Self {
        let sum = |of: fn(&observe::EngineState) -> u64| {
            states.iter().map(of).fold(0, u64::saturating_add)
        };
        let first = states.first();
        let thread = |(state, name): (&observe::EngineState, &String)| EngineThreadView {
            name: name.clone(),
            nics: (state.nics.iter())
                .filter_map(|id| nics.get(*id).cloned())
                .collect(),
            passes: state.passes,
            sleeps: state.sleeps,
            missed_wakeups: state.missed_wakeups,
            busy_ns: state.busy_ns,
            longest_pass_ns: state.longest_pass_ns,
        };
        Self {
            paused: first.is_some_and(|state| state.paused),
            poll: first.map_or(PollMode::default(), |state| state.mode).into(),
            poll_time_us: first.map_or(0, |state| state.poll_time_ns / 1000),
            uptime_ns: first.map_or(0, |state| state.uptime_ns),
            device_time_ns: first.map_or(0, |state| state.device_time_ns),
            passes: sum(|state| state.passes),
            sleeps: sum(|state| state.sleeps),
            missed_wakeups: sum(|state| state.missed_wakeups),
            awaited_kicks: sum(|state| state.awaited_kicks),
            busy_ns: sum(|state| state.busy_ns),
            longest_pass_ns: (states.iter().map(|state| state.longest_pass_ns))
                .max()
                .unwrap_or_default(),
            control_requests: sum(|state| state.control_requests),
            threads: states.iter().zip(names).map(thread).collect(),
        }
    }
}
