//! Triggers of rules: the key `on`.

pub use faultline_telemetry::Direction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::{Chance, Range, Time};

/// What a rule matches. One key names the kind of thing; `dir`, `opcode`, `psn`, `iter`, `bytes`, `offset`, `queue`, `msn` and `stag`
/// belong to packets, and one of them alone makes a trigger for packets. Further keys are conditions, and all of them must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Trigger {
    // Packets.
    /// Packets that the NIC sends (`tx`, the default) or receives (`rx`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<Direction>,
    /// Packets with this opcode: `any`, a group such as `SEND` or `RNR_NAK`, or one opcode such as `rc_send_only`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opcode: Option<String>,
    /// Packets with these PSNs, relative to the first PSN of the connection in the direction of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<Range>,
    /// Packets of this transmission: 1 is the first, 2 the first retransmission, and so on. A new transmission begins with a
    /// packet whose PSN is not greater than that of the packet before, on the same connection and in the same direction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iter: Option<u32>,
    /// The packet with which this number of bytes is reached, counted over all packets that match the other keys, and each
    /// further multiple of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,

    // TCP segments of iWARP.
    /// TCP segments whose first octet of data is at these offsets in its stream: 0 is the first octet after the SYN. If no SYN was seen
    /// in this run, 0 is the first octet of the first segment that was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<Range>,
    /// TCP segments that begin with a message of this DDP queue: 0 is that of SENDs, 1 of READ requests and atomics, 2 of Terminate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// TCP segments that begin with an untagged message with these sequence numbers, which count from 1 in each queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub msn: Option<Range>,
    /// TCP segments that begin with a message to this STag, or with one that invalidates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stag: Option<u32>,

    // Page faults.
    /// A page fault: its record is about to be written (`record`), or the driver answers it (`answer`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultMoment>,

    // Other things.
    /// A completion is about to be written: `any`, or its status, such as `SUCCESS` or `RETRY_EXC_ERR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<String>,
    /// An event is about to be written: `any`, or its kind, such as `completion`, `qp_fatal` or `port_down`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// A command of the driver is about to be executed: `any` of the admin queue or one such as `create_qp`; `any_translation`
    /// of the translation queue or one such as `map`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A page-table look-up: `any`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup: Option<Any>,
    /// The responder of a reliable service is about to execute a request: `any`, or one opcode such as `rc_write_only`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// An interrupt is about to be sent: `any`, or the number of its MSI-X vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<AnyOr<u16>>,
    /// A doorbell has been rung: `any`, or its type, such as `sq` or `cq_arm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doorbell: Option<String>,
    /// The NIC reports something: a kind of diagnostic such as `retried` or `stall_timed_out`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostic: Option<String>,
    /// A queue pair enters this state: `RESET`, `INIT`, `RTR`, `RTS`, `SQD`, `SQE`, `ERR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp_state: Option<String>,
    /// The API's request to signal this name to the scenario: on a running daemon only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,

    // Conditions.
    /// Only this connection of the NIC: 0 is the first queue pair that became ready to receive in this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    /// Only the queue pair with this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qpn: Option<u32>,
    /// Only accesses with this memory key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<u32>,
    /// Only accesses to the N-th on-demand region of the NIC that was created in this run, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<u32>,
    /// Only accesses to these pages of 4 KiB, counted from the beginning of the region that `region` or `key` names, else from
    /// address 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<Range>,
    /// Only the queue pairs and regions of processes with this name, as the driver has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Only if the queue (CQ, event queue or fault queue) has at least this number of entries that software has not
    /// read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u32>,
    /// Only from this time on, since the start of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Time>,
    /// Only until this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Time>,

    // Which of those that match.
    /// The first match that counts, from 1. Without `every` and `times`, it is the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// From the first match that counts on, each N-th. Without `times`, without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// The probability that a match counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chance: Option<Chance>,
}

/// A moment of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultMoment {
    /// Its record is about to be written to the fault queue.
    Record,
    /// The driver answers it.
    Answer,
}

/// All things of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Any {
    /// Each.
    Any,
}

/// A value, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "neither `any` nor the number of an MSI-X vector, an integer from 0 to 65535"
)]
pub enum AnyOr<T> {
    /// Each.
    Any(Any),
    /// Only this one.
    Only(T),
}
