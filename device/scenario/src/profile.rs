//! Profiles of NICs: limits, fault handling and latency, in TOML files.
//!
//! Some come with Faultline ([`EMBEDDED`]). A profile changes a [`NicConfig`] where it has a key.

use faultline_nic::{FaultPolicy, Latency, Limits, NicConfig, Pitfalls, ReadyMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::names;
use crate::problem::{Path, Problem, Problems};
use crate::suggestion;
use crate::value::Time;
use crate::whole::read_whole;

/// Largest file.
pub const MAX_BYTES: usize = 1 << 16;
/// Longest latency: NICs wait with their work.
const MAX_LATENCY: Time = Time::from_millis(1000);
/// Lengths of a unit of payload. Shorter ones would make a packet take very long.
const PAYLOAD_UNITS: std::ops::RangeInclusive<u32> = 16..=4096;

/// Names and texts of the profiles that come with Faultline.
pub const EMBEDDED: [(&str, &str); 6] = [
    ("ideal", include_str!("profiles/ideal.toml")),
    ("connectx-like", include_str!("profiles/connectx-like.toml")),
    ("memfree-hca", include_str!("profiles/memfree-hca.toml")),
    ("pinned-only", include_str!("profiles/pinned-only.toml")),
    ("small", include_str!("profiles/small.toml")),
    ("slow-host", include_str!("profiles/slow-host.toml")),
];

/// A profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Description in one line.
    pub description: String,
    /// Properties of the NIC.
    pub nic: NicProfile,
    /// Latency of the NIC and of the driver.
    pub latency: LatencyProfile,
}

/// Properties of a NIC. Those without a value stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NicProfile {
    /// Offers on-demand regions.
    pub on_demand: Option<bool>,
    /// Fault policy of queue pairs that set none.
    pub fault_policy: Option<String>,
    /// A fault without an answer for this time fails.
    pub fault_timeout: Option<Time>,
    /// Longest time that a page fault with policy `stall` pauses ingress.
    pub stall_timeout: Option<Time>,
    /// Peers with which it exchanges READY packets, which tell a requester that its page is present.
    pub ready: Option<Ready>,
    /// Memory for packets that wait for pages, in bytes.
    pub park_bytes: Option<u32>,
    /// Memory for page tables, page lists and queue pairs, in bytes.
    pub table_bytes: Option<u64>,
    /// Defects of real adapters to reproduce.
    pub pitfalls: Option<Vec<Pitfall>>,
    /// The GID table has an entry of RoCE v1 before each entry of RoCE v2.
    pub roce_v1_gids: Option<bool>,
    /// Whose vendor errors (`vendor_err`) completions have.
    pub vendor_errors: Option<VendorErrors>,
    /// Largest numbers of objects and of their entries.
    pub limits: LimitsProfile,
}

/// Peers with which a NIC exchanges READY packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// With peers that are known to be Faultlines.
    Known,
    /// With all peers.
    Always,
    /// With none.
    Never,
}

impl From<Ready> for ReadyMode {
    fn from(ready: Ready) -> Self {
        match ready {
            Ready::Known => Self::Known,
            Ready::Always => Self::Always,
            Ready::Never => Self::Never,
        }
    }
}

/// A defect of real adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pitfall {
    /// Requests that are posted while a queue pair waits are lost.
    Damming,
    /// READs into absent memory are repeated without end.
    Flood,
    /// Fast registrations end with the queue pair on which they were made.
    QpKeys,
}

/// Whose vendor errors completions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VendorErrors {
    /// Those of Faultline, which name the check that failed.
    Own,
    /// Those that logs of ConnectX adapters show.
    ConnectX,
}

impl From<VendorErrors> for faultline_nic::VendorErrors {
    fn from(errors: VendorErrors) -> Self {
        match errors {
            VendorErrors::Own => Self::Own,
            VendorErrors::ConnectX => Self::ConnectX,
        }
    }
}

/// Latency of the NIC and of the driver. Values that are absent stay unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LatencyProfile {
    /// From the doorbell of a send queue until the NIC begins with it.
    pub doorbell: Option<Time>,
    /// DMA reads of each work request and its data.
    pub pcie: Option<Time>,
    /// A look-up in a page table, when the translation cache has no entry.
    pub translation_miss: Option<Time>,
    /// Queue pairs whose state the NIC keeps; 0: all.
    pub qp_cache_entries: Option<u32>,
    /// Reading the state of another queue pair.
    pub qp_cache_miss: Option<Time>,
    /// Bytes of payload that the NIC handles at a time, such as the largest payload of a PCI Express packet (128 to 4096); 0: any number.
    pub payload_unit: Option<u32>,
    /// Each such unit of a packet's payload that is begun, when the packet is sent or received.
    pub payload_unit_time: Option<Time>,
    /// Time of the service of a page fault. In the simulator: from a fault record to its answer. In other runs, where a driver takes
    /// its own time: from the fault to its record.
    pub fault_service: Option<Time>,
    /// How long a requester waits after an RNR NAK, in per cent of the NAK's timer, 100 to 1000.
    pub rnr_wait_percent: Option<u32>,
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $first:literal..=$last:expr,)*) => {
        /// Largest numbers of objects and of their entries, as in `struct faultline_caps`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct LimitsProfile {
            $($(#[$doc])* pub $name: Option<u32>,)*
        }

        impl LimitsProfile {
            fn apply(&self, limits: &mut Limits) {
                $(if let Some(value) = self.$name {
                    limits.$name = value;
                })*
            }

            /// Limits beyond which the NIC has no room, or below which no driver works.
            fn check(&self, path: &Path, problems: &mut Vec<Problem>) {
                $(if let Some(value) = self.$name
                    && !($first..=$last).contains(&value)
                {
                    let last: u32 = $last;
                    problems.push(Problem::of_value(
                        path.key(stringify!($name)),
                        format!("{value} is out of range: {} to {last} is allowed", $first),
                    ));
                })*
            }
        }
    };
}

limits! {
    /// Queue pairs.
    max_qp: 2..=1 << 16,
    /// Work requests in a send or receive queue.
    max_qp_wr: 16..=1 << 15,
    /// Completion queues.
    max_cq: 2..=1 << 16,
    /// Entries of a completion queue.
    max_cqe: 16..=1 << 20,
    /// Memory keys.
    max_mkey: 16..=1 << 20,
    /// Protection domains.
    max_pd: 2..=1 << 15,
    /// Address handles.
    max_ah: 1..=1 << 16,
    /// Shared receive queues.
    max_srq: 1..=1 << 14,
    /// Work requests in a shared receive queue.
    max_srq_wr: 16..=1 << 15,
    /// User contexts.
    max_uctx: 1..=1023,
    /// READs and atomics outstanding on a queue pair.
    max_rd_atomic: 1..=16,
    /// Page faults outstanding at a time.
    max_faults: 1..=1024,
    /// XRC domains.
    max_xrcd: 1..=1 << 14,
    /// Multicast groups.
    max_mcast_grp: 1..=1 << 12,
    /// Queue pairs in a multicast group.
    max_mcast_qp: 1..=256,
    /// Flows.
    max_flow: 1..=1 << 12,
    /// Allocations of device memory.
    max_dm: 1..=1024,
    /// Counter sets.
    max_counters: 1..=1024,
    /// Indirection tables of work queues.
    max_rwq_ind_table: 1..=1 << 10,
}

/// The text of a profile that comes with Faultline.
pub fn embedded(name: &str) -> Option<&'static str> {
    let mut all = EMBEDDED.iter();
    all.find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// True if the name of a profile is the path of a file: it has a slash or ends in `.toml`.
pub fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

/// A profile that comes with Faultline. The error names those that do.
pub fn by_name(name: &str) -> Result<Profile, String> {
    let names = || EMBEDDED.iter().map(|(name, _)| *name);
    let Some(text) = embedded(name) else {
        let list = names().map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let meant = suggestion::closest(name, names());
        let meant = meant.map_or(String::new(), |name| format!(" (did you mean `{name}`?)"));
        return Err(format!(
            "unknown profile {name:?}{meant}: give the path of a file, or one of {}",
            list.join(", ")
        ));
    };
    read(name, text).map_err(|problems| problems.to_string())
}

/// Reads the text of a profile. `name` is the file's, for messages.
pub fn read(name: &str, text: &str) -> Result<Profile, Problems> {
    let wrong = |problems| Err(Problems::new(name, text, problems));
    if text.len() > MAX_BYTES {
        let size = text.len();
        let message = format!("the file has {size} bytes, at most {MAX_BYTES} are allowed");
        return wrong(vec![Problem::of_file(message)]);
    }
    let profile: Profile = match read_whole(text, |problem| problem) {
        Ok(profile) => profile,
        Err(problems) => return wrong(problems),
    };
    match profile.problems() {
        problems if problems.is_empty() => Ok(profile),
        problems => wrong(problems),
    }
}

impl Profile {
    /// Values that are out of range.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let nic = Path::root().key("nic");
        if let Some(policy) = &self.nic.fault_policy
            && fault_policy(policy).is_none()
        {
            let names = FaultPolicy::ALL.map(FaultPolicy::name);
            let list = names.map(|name| format!("`{name}`"));
            let message = format!(
                "unknown fault policy {policy:?}, expected one of {}",
                list.join(", ")
            );
            let problem = Problem::of_value(nic.key("fault_policy"), message);
            problems.push(problem.with_suggestion(policy, names));
        }
        self.nic.limits.check(&nic.key("limits"), &mut problems);
        let latency = Path::root().key("latency");
        for (key, time) in self.latency.in_nic() {
            if let Some(time) = time.filter(|time| *time > MAX_LATENCY) {
                let message = format!("{time} is too long: at most {MAX_LATENCY} is allowed");
                problems.push(Problem::of_value(latency.key(key), message));
            }
        }
        if let Some(unit) = self.latency.payload_unit
            && unit != 0
            && !PAYLOAD_UNITS.contains(&unit)
        {
            let (first, last) = (PAYLOAD_UNITS.start(), PAYLOAD_UNITS.end());
            let message = format!("{unit} is out of range: 0 and {first} to {last} are allowed");
            problems.push(Problem::of_value(latency.key("payload_unit"), message));
        }
        if let Some(percent) = self.latency.rnr_wait_percent
            && !(100..=1000).contains(&percent)
        {
            let message = format!("{percent} is out of range: 100 to 1000 is allowed");
            problems.push(Problem::of_value(latency.key("rnr_wait_percent"), message));
        }
        problems
    }

    /// Changes a configuration where the profile has a value.
    pub fn apply(&self, config: &mut NicConfig) {
        let NicProfile {
            on_demand,
            fault_policy: policy,
            fault_timeout,
            stall_timeout,
            ready,
            park_bytes,
            table_bytes,
            pitfalls,
            roce_v1_gids,
            vendor_errors,
            limits,
        } = &self.nic;
        set(&mut config.on_demand, *on_demand);
        set(
            &mut config.fault_policy,
            policy.as_deref().and_then(fault_policy),
        );
        set(&mut config.fault_timeout, fault_timeout.map(|time| time.0));
        set(&mut config.stall_timeout, stall_timeout.map(|time| time.0));
        set(&mut config.ready, ready.map(ReadyMode::from));
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        set(&mut config.park_bytes, park_bytes.map(u64::from).map(bytes));
        set(&mut config.table_bytes, table_bytes.map(bytes));
        if let Some(pitfalls) = pitfalls {
            config.pitfalls = Pitfalls {
                damming: pitfalls.contains(&Pitfall::Damming),
                flood: pitfalls.contains(&Pitfall::Flood),
                qp_keys: pitfalls.contains(&Pitfall::QpKeys),
            };
        }
        set(&mut config.roce_v1_gids, *roce_v1_gids);
        set(
            &mut config.vendor_errors,
            vendor_errors.map(faultline_nic::VendorErrors::from),
        );
        limits.apply(&mut config.limits);
        let LatencyProfile {
            doorbell,
            pcie,
            translation_miss,
            qp_cache_entries,
            qp_cache_miss,
            payload_unit,
            payload_unit_time,
            fault_service,
            rnr_wait_percent,
        } = self.latency;
        set(&mut config.lookup, translation_miss.map(|time| time.0));
        let Latency {
            doorbell: of_doorbell,
            pcie: of_pcie,
            qp_cache_entries: entries,
            qp_cache_miss: miss,
            payload_unit: unit,
            payload_unit_time: unit_time,
            fault_service: service,
            rnr_wait_percent: rnr_wait,
        } = &mut config.latency;
        set(of_doorbell, doorbell.map(|time| time.0));
        set(of_pcie, pcie.map(|time| time.0));
        set(entries, qp_cache_entries);
        set(miss, qp_cache_miss.map(|time| time.0));
        set(unit, payload_unit);
        set(unit_time, payload_unit_time.map(|time| time.0));
        set(service, fault_service.map(|time| time.0));
        set(rnr_wait, rnr_wait_percent);
    }
}

impl LatencyProfile {
    /// Times that the NIC waits.
    fn in_nic(&self) -> [(&'static str, Option<Time>); 6] {
        [
            ("doorbell", self.doorbell),
            ("pcie", self.pcie),
            ("translation_miss", self.translation_miss),
            ("qp_cache_miss", self.qp_cache_miss),
            ("payload_unit_time", self.payload_unit_time),
            ("fault_service", self.fault_service),
        ]
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn fault_policy(name: &str) -> Option<FaultPolicy> {
    let number = names::FAULT_POLICIES.find(name)?;
    FaultPolicy::ALL.get(usize::from(number)).copied()
}

#[cfg(test)]
mod tests {
    use faultline_nic::Nanos;
    use faultline_wire::MacAddr;

    use super::*;

    fn config(name: &str) -> NicConfig {
        let mut config = NicConfig::new(MacAddr([2, 0, 0, 0, 0, 1]));
        by_name(name).unwrap().apply(&mut config);
        config
    }

    #[test]
    fn each_embedded_profile_is_read_and_has_a_description() {
        for (name, _) in EMBEDDED {
            let profile = by_name(name).unwrap();
            assert!(!profile.description.is_empty(), "{name}");
        }
    }

    #[test]
    fn profiles_change_only_their_keys() {
        let ideal = config("ideal");
        let no_latency = Latency {
            fault_service: Nanos(4000),
            ..Latency::default()
        };
        assert_eq!((ideal.lookup, ideal.latency), (Nanos(0), no_latency));
        assert_eq!(ideal.ready, ReadyMode::Known);
        assert_eq!(ideal.pitfalls, Pitfalls::default());
        let published = config("connectx-like");
        assert!(published.pitfalls.damming && published.pitfalls.flood);
        assert!(published.ready == ReadyMode::Never && published.on_demand);
        assert_eq!(
            published.vendor_errors,
            faultline_nic::VendorErrors::ConnectX
        );
        assert_eq!(ideal.vendor_errors, faultline_nic::VendorErrors::Own);
        assert!(published.roce_v1_gids && !ideal.roce_v1_gids);
        assert_eq!(published.latency.doorbell, Nanos(300));
        assert_eq!(published.latency.qp_cache_entries, 1024);
        assert_eq!(published.lookup, Nanos(500));
        assert_eq!(published.latency.rnr_wait_percent, 325);
        assert_eq!(published.latency.fault_service, Nanos(220_000));
        assert!(!config("pinned-only").on_demand);
        let small = config("small");
        assert_eq!((small.limits.max_qp, small.limits.max_faults), (64, 4));
        assert_eq!((small.table_bytes, small.park_bytes), (4 << 20, 64 << 10));
        // Values that a profile does not name stay unchanged.
        assert_eq!(small.limits.max_eq, Limits::default().max_eq);
        let slow = by_name("slow-host").unwrap();
        assert_eq!(slow.latency.fault_service, Some(Time::from_millis(100)));
    }

    #[test]
    fn wrong_profiles_are_drawn() {
        let text = "[nic]\nfault_policy = \"rn\"\n[nic.limits]\nmax_qp = 1\n[latency]\npcie = \"2s\"\npayload_unit = 8\n";
        assert_eq!(
            read("a.toml", text).unwrap_err().to_string(),
            "error: nic.fault_policy: unknown fault policy \"rn\", expected one of `rnr`, `drop`, `stall`, `terminate`
 --> a.toml:2:16
  |
2 | fault_policy = \"rn\"
  |                ^^^^ did you mean `rnr`?

error: nic.limits.max_qp: 1 is out of range: 2 to 65536 is allowed
 --> a.toml:4:10
  |
4 | max_qp = 1
  |          ^

error: latency.pcie: 2s is too long: at most 1s is allowed
 --> a.toml:6:8
  |
6 | pcie = \"2s\"
  |        ^^^^

error: latency.payload_unit: 8 is out of range: 0 and 16 to 4096 are allowed
 --> a.toml:7:16
  |
7 | payload_unit = 8
  |                ^"
        );
        let found = read("a.toml", "[latency]\ndoorbel = \"1us\"\n").unwrap_err();
        assert!(
            found.to_string().ends_with("did you mean `doorbell`?"),
            "{found}"
        );
        let found = by_name("connectx").unwrap_err();
        assert!(found.contains("did you mean `connectx-like`?"), "{found}");
    }
}
