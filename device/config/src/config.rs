//! The NICs that a process serves and their settings, from a TOML file and the command line.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

use faultline_fabric::link_model::LinkModel;
use faultline_fabric::vlan::{VlanMembership, VlanSet};
use faultline_nic::{
    Dcqcn, FaultPolicy, Nanos, NicConfig, Pitfalls, PortSecurity, ReadyMode, Transport,
};
use faultline_scenario::problem::{self, Problem};
use faultline_scenario::profile::{self, Profile};
use faultline_wire::MacAddr;
use serde::Deserialize;

use crate::addresses;
use crate::control::ControlSettings;
use crate::dcqcn;
use crate::engine::{EngineCount, EngineLayout, EngineName};
use crate::file::{self, ConfigText, Malformed};
use crate::link_model;
use crate::pci_id::PciId;
use crate::port::PortEntry;
use crate::vlan;

/// A configuration that can't be used. The message has all of it: there is no source to be printed after it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read the configuration file {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The text is not TOML, or has an unknown key, a wrong value, or a value that does not fit others.
    #[error("{}{error}", path.as_ref().map(|path| format!("{}:", path.display())).unwrap_or_default())]
    Malformed {
        /// The file; `None`: the text is not from a file.
        path: Option<PathBuf>,
        /// Position, key and reason.
        error: Malformed,
    },
    /// All problems of a configuration, each in a line of its own.
    #[error("{}", .0.iter().map(Self::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Self>),
    /// As [`ConfigError::Malformed`], without a text: the origin of the value, and the problem.
    #[error("{0}")]
    Refused(String),
    /// `--nic` without an equals sign.
    #[error("{0:?} is not of the form NAME=SOCKET")]
    NicSyntax(String),
    /// A profile that can't be read.
    #[error("can't read the profile {}: {error}", path.display())]
    ReadProfile {
        /// Its file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A profile that does not exist, or is wrong.
    #[error("{0}")]
    Profile(String),
    /// Not a MAC address.
    #[error("{0:?} is not a unicast MAC address such as 02:00:00:00:00:01")]
    Mac(String),
}

impl ConfigError {
    /// A wrong value, or a key that is missing, at this path of the text.
    pub(crate) fn at(source: Option<&ConfigText>, path: problem::Path, what: String) -> Self {
        match source {
            Some(source) => Self::Malformed {
                path: source.path().map(Path::to_owned),
                error: source.locate(Problem::of_value(path, what)),
            },
            None if path == problem::Path::root() => Self::Refused(what),
            None => Self::Refused(format!("{path}: {what}")),
        }
    }
}

/// The look of the engine for work, and its sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PollMode {
    /// Always look: lowest latency, one core is busy for ever.
    Busy,
    /// Look for a while after the last work, then sleep.
    #[default]
    Adaptive,
    /// Sleep as soon as there is nothing to do.
    Never,
}

/// One NIC: a `[[nic]]` table, or `NAME=SOCKET` of the command line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "NicTable")]
pub struct NicEntry {
    /// Name, for messages and metrics.
    pub name: String,
    /// Path of its vfio-user socket; may be left to the command line.
    pub socket: PathBuf,
    /// Group whose members can connect; `None`: that of the process.
    pub socket_group: Option<String>,
    /// It has a socket from the start on. An absent NIC gets one by request.
    pub present: bool,
    /// MAC address; derived from the name if not given.
    pub mac: Option<MacAddr>,
    /// Settings. A setting without a value is that of `[defaults]`.
    pub settings: NicSettings,
    /// Files of a supervisor for this process and those after it. Not in configuration files.
    pub supervised: Option<SupervisedFiles>,
    /// Number of its table in the configuration file; `None`: it has none.
    pub table: Option<usize>,
    /// The command line has given its socket.
    pub has_given_socket: bool,
}

impl Default for NicEntry {
    fn default() -> Self {
        Self {
            name: String::new(),
            socket: PathBuf::new(),
            socket_group: None,
            present: is_present(),
            mac: None,
            settings: NicSettings::default(),
            supervised: None,
            table: None,
            has_given_socket: false,
        }
    }
}

/// A NIC is present unless its table says otherwise.
fn is_present() -> bool {
    true
}

/// Files of a NIC in the folder of a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupervisedFiles {
    /// BAR 2.
    pub bar: PathBuf,
    /// Number of the process that has attached the NIC; absent or empty: it is not known.
    pub client: PathBuf,
}

/// Declares the settings of a NIC once, for `[defaults]` and for `[[nic]]`. A `flatten`ed structure can't be used for the latter:
/// serde buffers its keys, and with that loses their positions.
macro_rules! nic_settings {
    ($( $(#[$attribute:meta])* $field:ident: $type:ty, )*) => {
        /// Settings of a NIC. A setting that neither the NIC nor `[defaults]` has is that of [`NicConfig::new`].
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields, default, expecting = "a table of NIC settings")]
        pub struct NicSettings {
            $( $(#[$attribute])* pub $field: Option<$type>, )*
        }

        /// The keys of a `[[nic]]` table.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, expecting = "a table of a NIC")]
        struct NicTable {
            name: String,
            #[serde(default)]
            socket: PathBuf,
            #[serde(default)]
            socket_group: Option<String>,
            #[serde(default = "is_present")]
            present: bool,
            #[serde(default, deserialize_with = "deserialize_mac")]
            mac: Option<MacAddr>,
            $( #[serde(default)] $(#[$attribute])* $field: Option<$type>, )*
        }

        impl From<NicTable> for NicEntry {
            fn from(table: NicTable) -> Self {
                Self {
                    name: table.name,
                    socket: table.socket,
                    socket_group: table.socket_group,
                    present: table.present,
                    mac: table.mac,
                    settings: NicSettings { $( $field: table.$field, )* },
                    ..Self::default()
                }
            }
        }
    };
}

nic_settings! {
    /// On-demand regions are offered; `false` is an adapter whose memory must be pinned.
    on_demand: bool,
    /// Fault policy of queue pairs that do not choose one.
    fault_policy: NamedFaultPolicy,
    /// Time within which the driver must resume a page fault, in milliseconds.
    #[serde(deserialize_with = "file::optional_number")]
    fault_timeout_ms: u64,
    /// Longest pause of the ingress by fault policy `stall`, in milliseconds: a longer one is taken for a deadlock.
    #[serde(deserialize_with = "file::optional_number")]
    stall_timeout_ms: u64,
    /// Peers with which READY packets are exchanged.
    ready: NamedReadyMode,
    /// Protocol of the RDMA queue pairs: RoCEv2 or iWARP.
    transport: NamedTransport,
    /// The bit MigReq of sent packets: 0 or 1.
    mig_req: MigReq,
    /// Congestion control of connections. An empty table switches it on with the usual parameters.
    #[serde(deserialize_with = "dcqcn::dcqcn")]
    dcqcn: Dcqcn,
    /// Modelled time of a page table look-up, in nanoseconds.
    #[serde(deserialize_with = "file::optional_number")]
    lookup_ns: u64,
    /// Memory for page tables, page lists and queue pairs, in MiB.
    #[serde(deserialize_with = "file::optional_number")]
    table_mib: usize,
    /// Known faults of real adapters that this NIC imitates.
    pitfalls: Vec<Pitfall>,
    /// Frames with the source address of another NIC are dropped (default). `false` is for a guest that forwards frames,
    /// such as a bridge.
    spoof_check: bool,
    /// IP addresses that the guest may use (default: all).
    #[serde(deserialize_with = "addresses::addresses")]
    addresses: PortSecurity,
    /// The guest may give the NIC another MAC address (default: it may not).
    mac_change: bool,
    /// PCI ID of the function.
    pci_id: PciId,
    /// VLAN of frames without tag, from the NIC and to it.
    #[serde(deserialize_with = "vlan::pvid")]
    pvid: u16,
    /// VLANs of frames with a tag.
    #[serde(deserialize_with = "vlan::vlans")]
    vlans: VlanSet,
    /// Model of the link from the NIC to the switch.
    #[serde(deserialize_with = "link_model::link_model")]
    link_tx: LinkModel,
    /// Model of the link from the switch to the NIC.
    #[serde(deserialize_with = "link_model::link_model")]
    link_rx: LinkModel,
    /// Profile: the name of one that comes with Faultline, or the path of a file, relative to the configuration file.
    profile: NamedProfile,
    /// Engine thread that owns the NIC, by its name. NICs with the same name are on the same thread.
    engine: EngineName,
}

/// A profile of the configuration. Its name is that of a file if it has a slash or ends in `.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedProfile {
    name: String,
    /// `None`: the file has not been read.
    profile: Option<Profile>,
}

impl NamedProfile {
    /// Reads the file, if it is one. `folder` is that of relative paths.
    fn load(&mut self, folder: &Path) -> Result<(), ConfigError> {
        if self.profile.is_some() {
            return Ok(());
        }
        let path = folder.join(&self.name);
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(&path)
            .map_err(|error| ConfigError::ReadProfile { path, error })?;
        let read = profile::read(&shown, &text);
        self.profile = Some(read.map_err(|problems| ConfigError::Profile(problems.to_string()))?);
        Ok(())
    }
}

impl FromStr for NamedProfile {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let profile = match profile::is_path(name) {
            true => None,
            false => Some(profile::by_name(name).map_err(ConfigError::Profile)?),
        };
        let name = name.to_owned();
        Ok(Self { name, profile })
    }
}

impl<'de> Deserialize<'de> for NamedProfile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

impl NicSettings {
    fn apply(&self, config: &mut NicConfig) {
        if let Some(on_demand) = self.on_demand {
            config.on_demand = on_demand;
        }
        if let Some(NamedFaultPolicy(policy)) = self.fault_policy {
            config.fault_policy = policy;
        }
        if let Some(ms) = self.fault_timeout_ms {
            config.fault_timeout = Nanos::from_millis(ms);
        }
        if let Some(ms) = self.stall_timeout_ms {
            config.stall_timeout = Nanos::from_millis(ms);
        }
        if let Some(NamedReadyMode(ready)) = self.ready {
            config.ready = ready;
        }
        if let Some(addresses) = &self.addresses {
            config.addresses = Some(addresses.clone());
        }
        if let Some(mac_change) = self.mac_change {
            config.mac_change = mac_change;
        }
        if let Some(NamedTransport(transport)) = self.transport {
            config.transport = transport;
        }
        if let Some(MigReq(mig_req)) = self.mig_req {
            config.mig_req = mig_req;
        }
        if let Some(dcqcn) = self.dcqcn {
            config.congestion = Some(dcqcn);
        }
        if let Some(ns) = self.lookup_ns {
            config.lookup = Nanos(ns);
        }
        if let Some(mib) = self.table_mib {
            config.table_bytes = mib.saturating_mul(1 << 20);
        }
        if let Some(pitfalls) = &self.pitfalls {
            config.pitfalls = Pitfalls {
                damming: pitfalls.contains(&Pitfall::Damming),
                flood: pitfalls.contains(&Pitfall::Flood),
                qp_keys: pitfalls.contains(&Pitfall::QpKeys),
            };
        }
    }
}

/// A fault policy, which the configuration gives by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedFaultPolicy(FaultPolicy);

impl clap::ValueEnum for NamedFaultPolicy {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<[NamedFaultPolicy; FaultPolicy::ALL.len()]> =
            LazyLock::new(|| FaultPolicy::ALL.map(NamedFaultPolicy));
        &*ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// Protocol of the RDMA queue pairs of a NIC, which the configuration gives by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedTransport(Transport);

impl clap::ValueEnum for NamedTransport {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Transport::Roce), Self(Transport::Iwarp)]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// Peers with which a NIC exchanges READY; the configuration gives them by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedReadyMode(ReadyMode);

impl clap::ValueEnum for NamedReadyMode {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: [NamedReadyMode; ReadyMode::ALL.len()] = [
            NamedReadyMode(ReadyMode::ALL[0]),
            NamedReadyMode(ReadyMode::ALL[1]),
            NamedReadyMode(ReadyMode::ALL[2]),
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// The bit MigReq of sent packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigReq(bool);

impl<'de> Deserialize<'de> for MigReq {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match file::number(deserializer)? {
            0u64 => Ok(Self(false)),
            1 => Ok(Self(true)),
            other => Err(serde::de::Error::invalid_value(
                serde::de::Unexpected::Unsigned(other),
                &"0 or 1",
            )),
        }
    }
}

/// See [`faultline_nic::Pitfalls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pitfall {
    /// Requests posted while a QP waits are lost.
    Damming,
    /// READs into absent memory are repeated without end.
    Flood,
    /// Fast registrations end with the queue pair on which they were made.
    #[value(name = "qp_keys")]
    QpKeys,
}

macro_rules! read_by_name {
    ($($name:ident)*) => { $(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                file::name(deserializer)
            }
        }
    )* };
}

read_by_name!(PollMode NamedFaultPolicy NamedReadyMode NamedTransport Pitfall);

impl FromStr for NicEntry {
    type Err = ConfigError;

    /// `NAME=SOCKET`.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text.split_once('=') {
            Some((name, socket)) if !name.is_empty() && !socket.is_empty() => Ok(Self {
                name: name.to_owned(),
                socket: socket.into(),
                has_given_socket: true,
                ..Self::default()
            }),
            _ => Err(ConfigError::NicSyntax(text.to_owned())),
        }
    }
}

impl NicEntry {
    /// Its MAC address. A derived one is locally administered and the same at every start.
    pub fn mac_address(&self) -> MacAddr {
        self.mac.unwrap_or_else(|| {
            // FNV-1a.
            let hash = self
                .name
                .bytes()
                .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
                });
            let [a, b, c, d, e, ..] = hash.to_be_bytes();
            MacAddr([0x02, a, b, c, d, e])
        })
    }

    /// Whether its frames are checked for source addresses of other NICs.
    pub fn checks_source(&self, defaults: &NicSettings) -> bool {
        let check = self.settings.spoof_check.or(defaults.spoof_check);
        check.unwrap_or(true)
    }

    /// PCI ID of its function.
    pub fn pci_id(&self, defaults: &NicSettings) -> PciId {
        let id = self.settings.pci_id.or(defaults.pci_id);
        id.unwrap_or_default()
    }

    /// Models of its link, from the NIC and to it.
    pub fn lines(&self, defaults: &NicSettings) -> [Option<LinkModel>; 2] {
        [
            self.settings.link_tx.or(defaults.link_tx),
            self.settings.link_rx.or(defaults.link_rx),
        ]
    }

    /// The configuration for the firmware.
    pub fn nic_config(&self, defaults: &NicSettings) -> NicConfig {
        let mut config = NicConfig::new(self.mac_address());
        // Settings win over profiles, those of `[defaults]` too.
        let named = self.settings.profile.as_ref().or(defaults.profile.as_ref());
        if let Some(profile) = named.and_then(|named| named.profile.as_ref()) {
            profile.apply(&mut config);
        }
        defaults.apply(&mut config);
        self.settings.apply(&mut config);
        config
    }
}

/// The configuration of a process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// When the engine polls.
    #[serde(default)]
    pub poll: PollMode,
    /// `adaptive`: how long the engine polls after the last work, in microseconds.
    #[serde(default = "default_poll_time", deserialize_with = "file::number")]
    pub poll_time_us: u64,
    /// Engine threads among which NICs without the key `engine` are divided, in turn.
    #[serde(default)]
    pub engines: EngineCount,
    /// Events that the trace keeps, of each NIC an equal part; 0: none.
    #[serde(default = "default_trace_records", deserialize_with = "file::number")]
    pub trace_records: usize,
    /// Frames, doorbells, interrupts and diagnostics are counted for the metrics; `false`: `/metrics` has only the
    /// NICs' own counters.
    #[serde(default = "default_metrics")]
    pub metrics: bool,
    /// Group whose members can connect to the unix sockets of NICs and ports that name none; `None`: only the user of the process.
    #[serde(default)]
    pub socket_group: Option<String>,
    /// Settings of NICs that have none of their own.
    #[serde(default)]
    pub defaults: NicSettings,
    /// Where the control server listens.
    #[serde(default)]
    pub control: ControlSettings,
    /// The NICs.
    #[serde(default, rename = "nic")]
    pub nics: Vec<NicEntry>,
    /// Ports that lead out of the process.
    #[serde(default, rename = "port")]
    pub ports: Vec<PortEntry>,
    /// The text that it was read from, in which errors have their places.
    #[serde(skip)]
    pub source: Option<ConfigText>,
}

/// A few megabytes: some tens of milliseconds at full message rate.
fn default_trace_records() -> usize {
    1 << 16
}

fn default_metrics() -> bool {
    true
}

fn default_poll_time() -> u64 {
    200
}

impl Default for Config {
    fn default() -> Self {
        Self {
            poll: PollMode::default(),
            poll_time_us: default_poll_time(),
            engines: EngineCount::default(),
            trace_records: default_trace_records(),
            metrics: default_metrics(),
            socket_group: None,
            defaults: NicSettings::default(),
            control: ControlSettings::default(),
            nics: Vec::new(),
            ports: Vec::new(),
            source: None,
        }
    }
}

impl Config {
    /// Reads a TOML file.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read {
            path: path.to_owned(),
            error,
        })?;
        let mut config = Self::from_text(Some(path), &text)?;
        config.load_profiles(path.parent().unwrap_or(Path::new("")))?;
        Ok(config)
    }

    /// Reads the files of profiles. Relative paths begin at `folder`. The NICs are those of the file, in its order.
    fn load_profiles(&mut self, folder: &Path) -> Result<(), ConfigError> {
        let source = self.source.as_ref();
        let nics = problem::Path::root().key("nic");
        let of_nics = self.nics.iter_mut().enumerate();
        let of_nics = of_nics.map(|(table, nic)| (nics.index(table), &mut nic.settings));
        let defaults = (problem::Path::root().key("defaults"), &mut self.defaults);
        for (table, settings) in of_nics.chain([defaults]) {
            let Some(profile) = &mut settings.profile else {
                continue;
            };
            profile.load(folder).map_err(|error| match error {
                ConfigError::ReadProfile { .. } => {
                    ConfigError::at(source, table.key("profile"), error.to_string())
                }
                error => error,
            })?;
        }
        Ok(())
    }

    /// Uses a profile for all NICs that have none of their own. A relative path begins at the working directory.
    pub fn set_profile(&mut self, mut profile: NamedProfile) -> Result<(), ConfigError> {
        profile.load(Path::new(""))?;
        self.defaults.profile = Some(profile);
        Ok(())
    }

    /// Reads the text of a TOML file.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        Self::from_text(None, text)
    }

    fn from_text(path: Option<&Path>, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = file::parse(text).map_err(|problems| {
            let of_file = |error| ConfigError::Malformed {
                path: path.map(Path::to_owned),
                error,
            };
            ConfigError::Several(problems.into_iter().map(of_file).collect())
        })?;
        for (table, nic) in config.nics.iter_mut().enumerate() {
            nic.table = Some(table);
        }
        config.source = Some(ConfigText::new(path, text));
        Ok(config)
    }

    /// The profile of one of these NICs: its name and its contents.
    pub fn profile(&self, nic: &NicEntry) -> Option<(String, Profile)> {
        let named = nic.settings.profile.as_ref();
        let NamedProfile { name, profile } = named.or(self.defaults.profile.as_ref())?;
        Some((name.clone(), profile.clone()?))
    }

    /// The configuration for the firmware of one of these NICs: its settings, and the number of NICs with which it
    /// shares the pauses of a sender.
    pub fn nic_config(&self, nic: &NicEntry) -> NicConfig {
        let others = self.nics.len().saturating_sub(1);
        NicConfig {
            pause_sharers: u32::try_from(others).unwrap_or(u32::MAX).max(1),
            ..nic.nic_config(&self.defaults)
        }
    }

    /// VLANs of each NIC, then of each port; `None` if no key says anything about VLANs: then the switch is not VLAN-aware.
    pub fn vlan_memberships(&self) -> Option<Vec<VlanMembership>> {
        let defaults = &self.defaults;
        let nics = self.nics.iter().map(|nic| {
            let vlans = nic.settings.vlans.as_ref();
            (
                nic.settings.pvid.or(defaults.pvid),
                vlans.or(defaults.vlans.as_ref()),
            )
        });
        let ports = self.ports.iter();
        let ports = ports.map(|port| (port.pvid, port.vlans.as_ref()));
        let keys: Vec<_> = nics.chain(ports).collect();
        let is_aware = keys
            .iter()
            .any(|(pvid, vlans)| pvid.is_some() || vlans.is_some());
        let membership = |(pvid, vlans): (Option<u16>, Option<&VlanSet>)| {
            VlanMembership::new(pvid, vlans.cloned())
        };
        is_aware.then(|| keys.into_iter().map(membership).collect())
    }

    /// The engines, and which NIC is on which.
    pub fn engine_layout(&self) -> EngineLayout {
        let default = self.defaults.engine.as_ref();
        let names = self
            .nics
            .iter()
            .map(|nic| nic.settings.engine.as_ref().or(default));
        EngineLayout::new(self.engines, names)
    }

    /// Adds the NICs of a command line. One that the file has as well gets its socket from here, and the rest from there.
    pub fn add(&mut self, mut nics: Vec<NicEntry>) {
        for nic in &mut nics {
            let same = |entry: &NicEntry| entry.name == nic.name;
            if let Some(at) = self.nics.iter().position(same) {
                let socket = std::mem::take(&mut nic.socket);
                *nic = NicEntry {
                    socket,
                    has_given_socket: true,
                    ..self.nics.remove(at)
                };
            }
        }
        self.nics.append(&mut nics);
    }

    /// `adaptive`: time for which the engine looks for work after the last work.
    pub fn poll_time(&self) -> Duration {
        Duration::from_micros(self.poll_time_us)
    }
}

fn deserialize_mac<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<MacAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_mac(&text).map(Some).map_err(serde::de::Error::custom)
}

fn parse_mac(text: &str) -> Result<MacAddr, ConfigError> {
    let bad = || ConfigError::Mac(text.to_owned());
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts
            .next()
            .filter(|part| part.len() == 2)
            .ok_or_else(bad)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
    }
    let mac = MacAddr(mac);
    if parts.next().is_some() || mac.is_multicast() || mac.0 == [0; 6] {
        return Err(bad());
    }
    Ok(mac)
}

/// The message that refuses a file whose only NIC has these keys. They begin in line 3.
#[cfg(test)]
pub(crate) fn refusal_of_nic(keys: &str) -> String {
    let text = format!("[[nic]]\nname = \"a\"\n{keys}");
    Config::from_toml(&text).unwrap_err().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let text = "poll = \"busy\"\n[[nic]]\nname = \"a\"\nsocket = \"/tmp/a\"\n\
                    [[nic]]\nname = \"b\"\nsocket = \"/tmp/b\"\nmac = \"02:00:00:00:00:01\"\n";
        let config = Config::from_toml(text).unwrap();
        assert_eq!(config.poll, PollMode::Busy);
        assert_eq!(config.nics[1].mac_address(), MacAddr([2, 0, 0, 0, 0, 1]));
        assert_ne!(config.nics[0].mac_address(), config.nics[1].mac_address());
        config.check().unwrap();
    }

    #[test]
    fn a_nic_can_be_one_without_paging_or_with_another_policy() {
        let text = "[[nic]]\nname = \"a\"\nsocket = \"/a\"\non_demand = false\n\
                    [[nic]]\nname = \"b\"\nsocket = \"/b\"\nfault_policy = \"stall\"\n\
                    fault_timeout_ms = 5\nlookup_ns = 7\npitfalls = [\"flood\"]\n";
        let config = Config::from_toml(text).unwrap();
        let [a, b] = [0, 1].map(|n: usize| config.nics[n].nic_config(&config.defaults));
        assert!(!a.on_demand && b.on_demand);
        assert_eq!(a.caps().rc_odp_caps.get(), 0);
        assert_eq!(
            (a.fault_policy, b.fault_policy),
            (FaultPolicy::Rnr, FaultPolicy::Stall)
        );
        assert_eq!(
            (b.fault_timeout, b.lookup),
            (Nanos::from_millis(5), Nanos(7))
        );
        assert!(b.pitfalls.flood && !b.pitfalls.damming);
    }

    /// Larger numbers than TOML's largest, 2^63 - 1, have the same meaning.
    #[test]
    fn numbers_beyond_the_largest_of_toml_mean_the_largest() {
        let largest = i64::MAX;
        let text = format!(
            "[defaults]\ntable_mib = {largest}\nfault_timeout_ms = {largest}\nstall_timeout_ms = {largest}\n\
             [[nic]]\nname = \"a\"\nsocket = \"/a\"\n"
        );
        let config = Config::from_toml(&text).unwrap();
        let nic = config.nic_config(&config.nics[0]);
        assert_eq!(nic.table_bytes, usize::MAX);
        assert_eq!(
            (nic.fault_timeout, nic.stall_timeout),
            (Nanos(u64::MAX), Nanos(u64::MAX))
        );
    }

    /// All others of a NIC together pause it for as long as one may.
    #[test]
    fn pauses_are_shared_by_all_others() {
        let mut config = Config::from_toml("").unwrap();
        for (n, sharers) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
            config.add(vec![format!("nic{n}=/{n}").parse().unwrap()]);
            for nic in &config.nics {
                assert_eq!(config.nic_config(nic).pause_sharers, sharers, "{n} NICs");
            }
        }
    }

    #[test]
    fn settings_that_a_nic_lacks_are_those_of_the_defaults() {
        let text =
            "[defaults]\non_demand = false\nlookup_ns = 7\n[[nic]]\nname = \"a\"\nlookup_ns = 9\n";
        let mut config = Config::from_toml(text).unwrap();
        assert!(config.check().is_err(), "the NIC has no socket");
        config.add(vec!["b=/b".parse().unwrap(), "a=/a".parse().unwrap()]);
        config.check().unwrap();
        let seen = config.nics.iter().map(|nic| {
            let told = nic.nic_config(&config.defaults);
            (
                nic.name.as_str(),
                nic.socket.to_str(),
                told.on_demand,
                told.lookup,
            )
        });
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [
                ("b", Some("/b"), false, Nanos(7)),
                ("a", Some("/a"), false, Nanos(9))
            ]
        );
    }

    #[test]
    fn settings_win_over_profiles() {
        let text = "[defaults]\nprofile = \"connectx-like\"\nlookup_ns = 7\n[[nic]]\nname = \"a\"\n\
                    [[nic]]\nname = \"b\"\nprofile = \"pinned-only\"\n\
                    [[nic]]\nname = \"c\"\nready = \"always\"\nmig_req = 0\n";
        let config = Config::from_toml(text).unwrap();
        let [a, b, c] = [0, 1, 2].map(|n: usize| config.nics[n].nic_config(&config.defaults));
        assert!(a.pitfalls.damming && a.on_demand);
        assert_eq!((a.ready, a.mig_req), (ReadyMode::Never, true));
        assert_eq!((a.lookup, a.latency.doorbell), (Nanos(7), Nanos(300)));
        assert!(!b.on_demand && !b.pitfalls.damming);
        assert_eq!((b.ready, b.mig_req), (ReadyMode::Known, true));
        assert!(c.pitfalls.damming);
        assert_eq!((c.ready, c.mig_req), (ReadyMode::Always, false));
        let error = Config::from_toml("[defaults]\nprofile = \"smal\"\n").unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with(
                "2:11: defaults.profile: unknown profile \"smal\" (did you mean `small`?)"
            ),
            "{error}"
        );
    }

    #[test]
    fn profiles_of_files_are_relative_to_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nics.toml");
        std::fs::write(&path, "[[nic]]\nname = \"a\"\nprofile = \"mine.toml\"\n").unwrap();
        let error = Config::from_file(&path).unwrap_err().to_string();
        let place = format!("{}:3:11: nic[0].profile: can't read", path.display());
        assert!(error.starts_with(&place), "{error}");
        std::fs::write(
            folder.path().join("mine.toml"),
            "[latency]\npcie = \"9us\"\n",
        )
        .unwrap();
        let config = Config::from_file(&path).unwrap();
        let nic = config.nics[0].nic_config(&config.defaults);
        assert_eq!(nic.latency.pcie, Nanos(9000));
        std::fs::write(
            folder.path().join("mine.toml"),
            "[latency]\npci = \"9us\"\n",
        )
        .unwrap();
        let error = Config::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("did you mean `pcie`?"), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        assert!("a".parse::<NicEntry>().is_err());
        assert!("=x".parse::<NicEntry>().is_err());
        for bad in [
            "",
            "02:00:00:00:00",
            "01:00:00:00:00:00",
            "00:00:00:00:00:00",
            "2:0:0:0:0:1",
            "02:00:00:00:00:01:02",
        ] {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
        for unknown in [
            "pol = 1",
            "[defaults]\nondemand = true",
            "[[nic]]\nname = \"a\"\nondemand = true",
            "[[nic]]\nname = \"a\"\nfault_policy = \"lazy\"",
        ] {
            assert!(Config::from_toml(unknown).is_err(), "{unknown}");
        }
    }
}
