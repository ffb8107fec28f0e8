//! Sources of the traffic of a run: simulated hosts, or programs in guests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::Time;

/// The hosts of a simulation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Simulator {
    /// Number of hosts, 1 to 8, each with one NIC: `nic0`, `nic1`, and so on.
    pub hosts: u8,
    /// Time of a frame from one NIC to another.
    pub wire_delay: Time,
    /// Frames are delivered by reference, as between the NICs of a process. By default they are octets, as on a wire.
    pub by_reference: bool,
    /// Page frames of each host for its on-demand regions, 2 to 2048.
    pub page_frames: u32,
    /// Records in the fault queue of each host, a power of two.
    pub fault_queue: u32,
    /// Time from a fault record to its answer. By default that of the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault_service: Option<Time>,
    /// The answer of the hosts' drivers to a fault.
    pub faults: FaultService,
    /// The NICs have the defect `damming` of real adapters: requests that are posted while a queue pair waits for an RNR timer are
    /// lost until the ACK timeout.
    pub damming: bool,
    /// The NICs have the defect `flood` of real adapters: READs whose landing buffer is absent are sent and answered repeatedly.
    pub flood: bool,
}

impl Default for Simulator {
    fn default() -> Self {
        Self {
            hosts: 2,
            wire_delay: Time::from_micros(1),
            by_reference: false,
            page_frames: 512,
            fault_queue: 256,
            fault_service: None,
            faults: FaultService::Repair,
            damming: false,
            flood: false,
        }
    }
}

/// What a driver does with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultService {
    /// Maps the page and answers.
    Repair,
    /// Answers that there is no page.
    Fail,
    /// Never answers.
    Ignore,
}

/// Simulated traffic over one or several connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Name for expectations.
    #[serde(default)]
    pub name: String,
    /// NIC of the requester.
    #[serde(default = "nic0")]
    pub from: String,
    /// NIC of the responder; may be the same.
    #[serde(default = "nic1")]
    pub to: String,
    /// Name of the process that owns the queue pairs, for rules with `process`: 1 to 15 bytes. By default the kernel owns them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Transport service.
    #[serde(default)]
    pub service: Service,
    /// Operation.
    pub op: Operation,
    /// Bytes of a message; 8 for atomics.
    #[serde(default = "default_size")]
    pub size: u32,
    /// Messages on each connection.
    #[serde(default = "default_count")]
    pub count: u32,
    /// Messages that are outstanding on each connection at a time.
    #[serde(default = "default_depth")]
    pub depth: u32,
    /// Connections.
    #[serde(default = "default_connections")]
    pub connections: u32,
    /// Scatter/gather entries of a message, of equal length but for the last, 1 to 4.
    #[serde(default = "default_sges")]
    pub sges: u8,
    /// Memory of the requester.
    #[serde(default)]
    pub local: Memory,
    /// Memory of the responder.
    #[serde(default)]
    pub remote: Memory,
    /// Each message uses pages that no message before has used, as long as the region has such pages, and each scatter/gather
    /// entry begins on a page of its own. Else the messages use `depth` buffers in turn.
    #[serde(default)]
    pub fresh_pages: bool,
    /// Time at which it begins.
    #[serde(default)]
    pub start: Time,
    /// Shortest time between the starts of two messages of a connection.
    #[serde(default)]
    pub gap: Time,
    /// Time for which the responder waits before it posts a receive again.
    #[serde(default)]
    pub receive_delay: Time,
    /// Receives that the responder posts at the beginning; by default `depth`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receives: Option<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Local ACK timeout: 4.096 us × 2^N (IBTA 9.7.6.1.3); 0: none.
    #[serde(default = "default_timeout")]
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 0 to 7.
    #[serde(default = "default_retry")]
    pub retry_count: u8,
    /// Retries after an RNR NAK, 0 to 7; 7: without limit.
    #[serde(default = "default_retry")]
    pub rnr_retry: u8,
    /// Code of the RNR NAK timer, 0 to 31 (IBTA table 45).
    #[serde(default = "default_rnr_timer")]
    pub min_rnr_timer: u8,
    /// Fault policy of the responder's queue pairs; by default that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_policy: Option<String>,
    /// How the software of both ends learns of completions.
    #[serde(default)]
    pub wait: Wait,
    /// Deregisters the responder's memory at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deregister: Option<Time>,
}

fn nic0() -> String {
    "nic0".to_owned()
}

fn nic1() -> String {
    "nic1".to_owned()
}

fn default_size() -> u32 {
    4096
}

fn default_count() -> u32 {
    100
}

fn default_depth() -> u32 {
    8
}

fn default_connections() -> u32 {
    1
}

fn default_sges() -> u8 {
    1
}

fn default_mtu() -> u16 {
    1024
}

fn default_timeout() -> u8 {
    14
}

fn default_retry() -> u8 {
    7
}

fn default_rnr_timer() -> u8 {
    12
}

/// A transport service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// How software learns of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// It reads the completion queue all the time.
    #[default]
    Poll,
    /// It reads the completion queue after a completion event. An event or interrupt that is lost is not noticed.
    Events,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
}

/// Memory of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// Pinned.
    #[default]
    Pinned,
    /// On demand: no page is present at the beginning.
    OnDemand,
}

/// The programs of a run between guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Guests {
    /// Script that runs in both guests, with `server` or `client` as its argument; a path relative to this file.
    pub script: String,
    /// Arguments after `server` or `client`.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Exit status of the script in the client; by default 0.
    #[serde(default)]
    pub status: u8,
}
