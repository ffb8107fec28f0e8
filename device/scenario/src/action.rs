//! Actions of a scenario: the key `do`.
//!
//! There are two sorts of actions. Some change the matched thing: the packet, the fault record, the completion, and so
//! on. Others act on the NIC.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::Time;

/// What is done. Exactly one key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    // On what the rule has matched.
    /// The thing is lost: a packet, a fault record or answer, a completion, an event, an interrupt, a doorbell. A command is never
    /// completed.
    Drop(Often),
    /// It happens later.
    Delay(Delay),
    /// It happens twice.
    Duplicate(Often),
    /// It is wrong: octets of a packet are inverted; a fault record names the page after the right one; the answer to a fault is
    /// refused; a completion has a wrong length.
    Corrupt(Corrupt),
    /// It fails: a fault, a completion, a command, a request.
    Fail(Fail),
    /// Its queue (CQ, event queue, fault queue) is treated as full.
    Overrun(Often),
    /// The packet is sent after this number of later packets of its direction, at the latest after 10 ms.
    Reorder(Reorder),
    /// Octets at the end of the packet are cut off.
    Truncate(Truncate),
    /// The packet is marked with congestion experienced (ECN, RFC 3168).
    EcnMark(Often),
    /// The packet's MigReq bit is set to `value`; the iCRC is correct.
    MigReq(MigReq),
    /// Nothing is changed. For rules that only count.
    Count(Often),

    // On the NIC.
    /// The port goes down, and up again.
    PortDown(PortDown),
    /// The port has another speed. On a running daemon it only reports the speed; in the simulator, it is also the rate
    /// of its frames.
    Speed(Speed),
    /// The port drops packets that are longer, without their Ethernet header.
    Mtu(Mtu),
    /// The NIC pauses its senders, as with Ethernet PAUSE frames, for a time.
    PauseStorm(For),
    /// The device stops with a fatal error.
    Fatal(Nothing),
    /// The device is reset, as by a function-level reset without the guest's knowledge.
    Reset(Nothing),
    /// The device is removed, as by surprise hot-unplug: registers read as ones, it accesses no memory, and its packets are lost. Only a
    /// client that connects again brings it back.
    Remove(Nothing),
    /// All NICs of the process stop, and so does the device clock.
    Pause(For),
    /// All outstanding faults fail, as if the driver had not answered them in time.
    FailFaults(Nothing),
    /// Fault records are kept in the device for a time.
    HoldFaults(For),
    /// The fault queue is treated as full for a time.
    FillFaults(For),
    /// Pages of an on-demand region are removed from the NIC's page table.
    Evict(Evict),
    /// The NIC raises faults for pages that no packet needs.
    Prefetch(Evict),
    /// Each page-table look-up takes this time.
    Lookup(Lookup),
    /// A queue pair fails.
    FailQp(QueuePair),
    /// A completion queue overruns.
    OverrunCq(Number),
    /// An event queue overruns. The device stops.
    OverrunEq(Number),
    /// The fault policy of a queue pair changes.
    FaultPolicy(SetPolicy),
    /// The run ends here; expectations are checked.
    End(Nothing),
}

/// How often a rule acts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Often {
    /// Limit of the effects on each NIC. By default 1 if the trigger has `nth` and not `every`, else none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// No parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Length of the delay.
    pub by: Time,
    /// As in `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// Something wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Corrupt {
    /// Which part of a packet: an octet of its RoCE headers (`header`) or of its payload (`payload`, the default), chosen by the
    /// seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// As in `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// A part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// From BTH on, up to the payload.
    Header,
    /// The payload; the headers if there is none.
    Payload,
}

/// A failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The error: of a completion its status, such as `LOC_PROT_ERR`; of a command its status, such as `no_resources`;
    /// of a request `rnr` or the NAK code: `psn`, `invalid_request`, `remote_access`, `remote_op`,
    /// `invalid_rd_request`. Faults fail without it.
    #[serde(default, rename = "with", skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// As in `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// Another order of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Number of packets that overtake it, 1 to 1000.
    pub by: u32,
    /// As in `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// A shorter packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Truncate {
    /// Octets that remain, Ethernet header included.
    pub to: u16,
    /// As in `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// The bit MigReq of the BTH (IBTA 9.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MigReq {
    /// Its value.
    pub value: bool,
    /// As in `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// A time for which something lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct For {
    /// How long.
    #[serde(rename = "for")]
    pub time: Time,
}

/// A port that goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortDown {
    /// Duration; by default until the end of the run.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The entries of the GID table move by one place, as after an interface went down and up with its addresses in another order.
    #[serde(default)]
    pub move_gid: bool,
}

/// The speed of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    /// Megabits per second.
    pub mbps: u32,
}

/// The MTU of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mtu {
    /// Octets, at least 68.
    pub bytes: u16,
}

/// Pages of an on-demand region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// The memory key; by default that of `region`, else all on-demand regions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<u32>,
    /// The N-th on-demand region of the NIC that was created in this run, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<u32>,
    /// First page of 4 KiB, counted from the beginning of the region.
    #[serde(default)]
    pub page: u64,
    /// Number of pages; by default to the end of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<u64>,
}

/// The latency of page-table look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lookup {
    /// How long each takes.
    pub takes: Time,
    /// Duration; by default until the end of the run.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueuePair {
    /// The N-th connection of the NIC, as in triggers. By default that of the match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qpn: Option<u32>,
}

/// The number of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Number {
    /// Number; by default that of the match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
}

/// A fault policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    /// The N-th connection of the NIC, as in triggers. By default that of the match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qpn: Option<u32>,
    /// `rnr`, `stall`, `drop`, … as in the configuration of a NIC.
    pub policy: String,
}
