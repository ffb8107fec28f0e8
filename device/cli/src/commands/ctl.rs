//! `faultline ctl`: one request, printed as a table or as JSON.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Subcommand;
use faultline_control::objects::{
    ContextView, FaultView, Page, Policy, PolicyChange, QueuePairView, RegionView,
};
use faultline_control::ports::{LinkModelView, PortView, PriorityView};
use faultline_control::view::{
    Action, ClientView, Direction, EngineChange, EngineThreadView, EngineView, LinkChange,
    LinkView, NicName, NicSummary, NicView, Step, Stepped,
};
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::{Client, Target, segment};
use super::metrics;
use super::table::{duration, or_dash, size, table, yes};
use super::{Printable, print, show};

/// Look at a running process and control it.
#[derive(Debug, clap::Args)]
pub(crate) struct Ctl {
    #[command(flatten)]
    target: Target,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the NICs.
    Nics,
    /// List the ports that lead out of the process.
    Ports,
    /// List the directions of links that have a model, with its effects.
    Links,
    /// Show a NIC: state, link, configuration, number of objects.
    Show {
        /// Name of the NIC.
        nic: String,
    },
    /// List queue pairs.
    Qps {
        /// Name of the NIC.
        nic: String,
    },
    /// List memory keys.
    Regions {
        /// Name of the NIC.
        nic: String,
    },
    /// List faults that the driver has not answered, the oldest first.
    Faults {
        /// Name of the NIC.
        nic: String,
    },
    /// List user contexts.
    Contexts {
        /// Name of the NIC.
        nic: String,
    },
    /// Show counters that are not zero.
    Counters {
        /// Name of the NIC.
        nic: String,
        /// Show also those that are zero.
        #[arg(long)]
        all: bool,
    },
    /// Set the fault policy of a queue pair.
    Policy {
        /// Name of the NIC.
        nic: String,
        /// Number of the queue pair.
        qpn: u32,
        /// The policy.
        policy: Policy,
    },
    /// Show the link of a NIC, or change it.
    Link {
        /// Name of the NIC.
        nic: String,
        /// Take the link up or down.
        #[arg(value_enum)]
        state: Option<LinkState>,
        /// Longest frame without Ethernet header; 0: not limited.
        #[arg(long, value_name = "BYTES")]
        mtu: Option<u16>,
        /// Speed that is reported, in Mb/s.
        #[arg(long, value_name = "MBPS")]
        speed: Option<u32>,
    },
    /// Do something to a NIC, for tests of software.
    Action {
        /// Name of the NIC.
        nic: String,
        #[command(subcommand)]
        action: ActionCommand,
    },
    /// Run a scenario on the NICs.
    Scenario {
        #[command(subcommand)]
        command: super::scenario_control::ScenarioCommand,
    },
    /// Start a rule on the NICs that run: a fault, as in a scenario, until it is removed.
    Inject(super::rules_control::Inject),
    /// List the rules of `inject`, or remove one.
    Rules {
        #[command(subcommand)]
        command: Option<super::rules_control::RulesCommand>,
    },
    /// Add an absent NIC of the configuration: its socket is created, and a client can attach it.
    AddNic {
        /// Name of the NIC.
        nic: String,
    },
    /// Remove a NIC: its client is disconnected, and its socket is removed. It can be added again.
    RemoveNic {
        /// Name of the NIC.
        nic: String,
    },
    /// Check packets against the rules of the InfiniBand specification while they pass.
    Check {
        #[command(subcommand)]
        command: super::check_control::CheckCommand,
    },
    /// Show the engine.
    Engine,
    /// Stop all NICs and the device clock.
    Pause,
    /// End a pause.
    Resume,
    /// Execute passes of a paused engine.
    Step {
        /// Number of passes, 1 to 256.
        #[arg(default_value_t = 1)]
        passes: u32,
        /// Moves the device clock forward before the first pass, in microseconds.
        #[arg(long, value_name = "US", default_value_t = 0)]
        advance: u64,
    },
    /// Print the metrics for Prometheus; with --json, a list of samples.
    Metrics,
    /// Print the complete state of a NIC as JSON.
    Dump {
        /// Name of the NIC.
        nic: String,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LinkState {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Way {
    /// Packets that the NIC sends.
    Tx,
    /// Packets that the NIC receives.
    Rx,
}

#[derive(Debug, Subcommand)]
enum ActionCommand {
    /// Reset the device.
    Reset,
    /// Stop the device with a fatal error.
    Fatal,
    /// Fail all faults that the driver has not answered.
    FailFaults,
    /// Drop the next packets of a direction.
    DropFrames {
        /// Direction, from the NIC's point of view.
        direction: Way,
        /// Number of packets; 0 cancels an earlier request.
        count: u32,
    },
    /// Suppress the next interrupts.
    LoseInterrupts {
        /// Number of interrupts; 0 cancels an earlier request.
        count: u32,
    },
}

impl From<ActionCommand> for Action {
    fn from(action: ActionCommand) -> Self {
        match action {
            ActionCommand::Reset => Self::Reset {},
            ActionCommand::Fatal => Self::Fatal {},
            ActionCommand::FailFaults => Self::FailFaults {},
            ActionCommand::DropFrames { direction, count } => Self::DropFrames {
                direction: match direction {
                    Way::Tx => Direction::Tx,
                    Way::Rx => Direction::Rx,
                },
                count,
            },
            ActionCommand::LoseInterrupts { count } => Self::LoseInterrupts { count },
        }
    }
}

/// Output of `ctl action --json`.
#[derive(Serialize)]
struct Done {
    nic: String,
    done: Action,
}

impl Ctl {
    /// Executes the command.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = self.target.client()?;
        let json = self.json;
        let nic_path = |nic: &str, rest: &str| format!("/v1/nics/{}{rest}", segment(nic));
        match self.command {
            Command::Nics => {
                let list: Vec<_> = client.get("/v1/nics")?;
                show(json, list.as_slice(), nics)
            }
            Command::AddNic { nic } => add_nic(&client, json, nic),
            Command::RemoveNic { nic } => remove_nic(&client, json, &nic_path(&nic, "")),
            Command::Ports => {
                let list: Vec<_> = client.get("/v1/ports")?;
                show(json, list.as_slice(), ports)
            }
            Command::Links => {
                let list: Vec<_> = client.get("/v1/links")?;
                show(json, list.as_slice(), links)
            }
            Command::Show { nic } => show(json, &client.get(&nic_path(&nic, ""))?, show_nic),
            Command::Qps { nic } => {
                let list = all(&client, &nic_path(&nic, "/queue-pairs"))?;
                show(json, list.as_slice(), queue_pairs)
            }
            Command::Regions { nic } => {
                let list = all(&client, &nic_path(&nic, "/regions"))?;
                show(json, list.as_slice(), regions)
            }
            Command::Faults { nic } => {
                let list: Vec<_> = client.get(&nic_path(&nic, "/faults"))?;
                show(json, list.as_slice(), faults)
            }
            Command::Contexts { nic } => {
                let list = all(&client, &nic_path(&nic, "/contexts"))?;
                show(json, list.as_slice(), contexts)
            }
            Command::Counters { nic, all } => {
                let mut values: BTreeMap<String, u64> = client.get(&nic_path(&nic, "/counters"))?;
                values.retain(|_, value| all || *value != 0);
                show(json, &values, counters)
            }
            Command::Policy { nic, qpn, policy } => {
                let path = nic_path(&nic, &format!("/queue-pairs/{qpn}/fault-policy"));
                let pair: QueuePairView =
                    client.send(Method::PUT, &path, &PolicyChange { policy })?;
                show(json, &[pair][..], queue_pairs)
            }
            Command::Link {
                nic,
                state,
                mtu,
                speed,
            } => {
                let change = LinkChange {
                    up: state.map(|state| matches!(state, LinkState::Up)),
                    mtu,
                    speed_mbps: speed,
                };
                let path = nic_path(&nic, "/link");
                let link = match change == LinkChange::default() {
                    true => client.get(&path)?,
                    false => client.send(Method::PUT, &path, &change)?,
                };
                show(json, &link, show_link)
            }
            Command::Action { nic, action } => {
                let action = Action::from(action);
                client.send::<()>(Method::POST, &nic_path(&nic, "/actions"), &action)?;
                let done = Done { nic, done: action };
                show(json, &done, |_| String::new())
            }
            Command::Scenario { command } => command.run(&client, json),
            Command::Inject(inject) => inject.run(&client, json),
            Command::Rules { command } => super::rules_control::run(command, &client, json),
            Command::Check { command } => command.run(&client, json),
            Command::Engine => show(json, &client.get("/v1/engine")?, engine),
            Command::Pause => pause(&client, json, true),
            Command::Resume => pause(&client, json, false),
            Command::Step { passes, advance } => {
                let step = Step {
                    passes,
                    advance_us: advance,
                };
                let stepped = client.send(Method::POST, "/v1/engine/step", &step)?;
                show(json, &stepped, stepped_text)
            }
            Command::Metrics if json => {
                let mut text = Vec::new();
                client.request(Method::GET, "/metrics", Vec::new(), |part| {
                    text.extend_from_slice(part);
                    Ok(())
                })?;
                let samples = metrics::samples(std::str::from_utf8(&text)?)?;
                show(json, samples.as_slice(), |_| String::new())
            }
            Command::Metrics => print_answer(&client, "/metrics"),
            Command::Dump { nic } => print_answer(&client, &nic_path(&nic, "/dump")),
        }
    }
}

fn add_nic(client: &Client, json: bool, name: String) -> anyhow::Result<()> {
    let nic = client.send(Method::POST, "/v1/nics", &NicName { name })?;
    show(json, &[nic][..], nics)
}

fn remove_nic(client: &Client, json: bool, path: &str) -> anyhow::Result<()> {
    let nic = client.send(Method::DELETE, path, &())?;
    show(json, &[nic][..], nics)
}

/// Prints an answer as it comes.
fn print_answer(client: &Client, path: &str) -> anyhow::Result<()> {
    let mut text = Printable::default();
    client.request(Method::GET, path, Vec::new(), |part| {
        print(&text.part(part))
    })
}

/// All parts of a list.
pub(crate) fn all<T: DeserializeOwned>(client: &Client, path: &str) -> anyhow::Result<Vec<T>> {
    let mut items = Vec::new();
    let mut from = Some(0);
    while let Some(place) = from {
        let mut page: Page<T> = client.get(&format!("{path}?from={place}"))?;
        items.append(&mut page.items);
        if let Some(next) = page.next.filter(|next| *next <= place) {
            bail!(
                "the answer to {path} is not what this version expects: part {next} follows part {place}"
            );
        }
        from = page.next;
    }
    Ok(items)
}

fn pause(client: &Client, json: bool, paused: bool) -> anyhow::Result<()> {
    let view = client.send(Method::PUT, "/v1/engine", &EngineChange { paused })?;
    show(json, &view, engine)
}

/// The name that a value has in JSON.
pub(crate) fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

/// The client of a NIC, with the time since it has attached.
fn client(client: Option<&ClientView>) -> String {
    let Some(client) = client else {
        return "-".to_owned();
    };
    let program = client.program.as_deref().unwrap_or("attached");
    let pid = client.pid.map_or(String::new(), |pid| format!(" {pid}"));
    format!("{program}{pid} for {}", duration(client.attached_ns))
}

fn nics(nics: &[NicSummary]) -> String {
    let row = |nic: &NicSummary| {
        vec![
            nic.name.clone(),
            nic.mac.clone(),
            if nic.present {
                name(&nic.state)
            } else {
                "absent".to_owned()
            },
            if nic.link_up { "up" } else { "down" }.to_owned(),
            yes(nic.stalled),
            client(nic.client.as_ref()),
            nic.queue_pairs.to_string(),
            nic.memory_keys.to_string(),
            nic.tx_packets.to_string(),
            nic.rx_packets.to_string(),
        ]
    };
    let rows: Vec<_> = nics.iter().map(row).collect();
    let head = [
        "NAME", "MAC", "STATE", "LINK", "STALLED", "CLIENT", "QPS", "KEYS", "TX", "RX",
    ];
    table(&head, &rows)
}

fn ports(ports: &[PortView]) -> String {
    let row = |port: &PortView| {
        let dropped = port.dropped.iter().filter(|(_, count)| **count > 0);
        let dropped: Vec<_> = dropped
            .map(|(reason, count)| format!("{reason}: {count}"))
            .collect();
        vec![
            port.name.clone(),
            yes(port.connected),
            port.connections.to_string(),
            port.tx_frames.to_string(),
            port.tx_bytes.to_string(),
            port.rx_frames.to_string(),
            port.rx_bytes.to_string(),
            dropped.join(", "),
        ]
    };
    let rows: Vec<_> = ports.iter().map(row).collect();
    let head = [
        "NAME",
        "CONNECTED",
        "CONNECTIONS",
        "TX",
        "TX-BYTES",
        "RX",
        "RX-BYTES",
        "DROPPED",
    ];
    table(&head, &rows)
}

fn links(links: &[LinkModelView]) -> String {
    let priority = |paused: &PriorityView| {
        let time = duration(paused.paused_ns);
        format!("{}: {} ({time})", paused.priority, paused.pauses)
    };
    let row = |link: &LinkModelView| {
        let priorities: Vec<_> = link.priorities.iter().map(priority).collect();
        vec![
            link.port.clone(),
            name(&link.direction),
            link.lost.to_string(),
            link.queue_full.to_string(),
            link.duplicated.to_string(),
            link.reordered.to_string(),
            link.corrupted.to_string(),
            link.marked.to_string(),
            link.pauses.to_string(),
            priorities.join(", "),
        ]
    };
    let rows: Vec<_> = links.iter().map(row).collect();
    let head = [
        "PORT",
        "DIR",
        "LOST",
        "QUEUE-FULL",
        "DUPLICATED",
        "REORDERED",
        "CORRUPTED",
        "ECN-MARKED",
        "PAUSES",
        "PFC",
    ];
    table(&head, &rows)
}

/// Lines of a name and a value.
fn lines(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:width$}  {value}\n");
    lines.iter().map(line).collect()
}

fn show_nic(nic: &NicView) -> String {
    let objects = &nic.objects;
    let config = &nic.config;
    let state = match nic.fatal_cause {
        0 => name(&nic.state),
        cause => format!("{}, cause {cause}", name(&nic.state)),
    };
    lines(&[
        ("name", nic.name.clone()),
        ("MAC", nic.mac.clone()),
        ("state", state),
        ("bus master", yes(nic.bus_master)),
        ("stalled", yes(nic.stalled)),
        ("client", client(nic.client.as_ref())),
    ]) + &show_link(&nic.link)
        + &lines(&[
            ("fault policy", config.fault_policy.clone()),
            ("on demand", yes(config.on_demand)),
            ("fault timeout", duration(config.fault_timeout_ns)),
            ("stall timeout", duration(config.stall_timeout_ns)),
            ("pitfalls", config.pitfalls.join(", ")),
            ("transport", nic.config.transport.clone()),
            ("queue pairs", objects.queue_pairs.to_string()),
            ("connections", objects.connections.to_string()),
            ("listeners", objects.listeners.to_string()),
            ("memory keys", objects.memory_keys.to_string()),
            ("completion queues", objects.completion_queues.to_string()),
            ("contexts", objects.contexts.to_string()),
            ("waits for pages", objects.fault_waits.to_string()),
            (
                "table memory",
                format!("{} of {}", size(nic.held_memory), size(config.table_bytes)),
            ),
            ("lost diagnostics", nic.lost_diagnostics.to_string()),
        ])
}

fn show_link(link: &LinkView) -> String {
    let state = if link.up { "up" } else { "down" };
    let injected = |done: u64, pending: u32| match pending {
        0 => done.to_string(),
        _ => format!("{done}, {pending} to come"),
    };
    lines(&[
        ("link", format!("{state}, {} Mb/s", link.speed_mbps)),
        (
            "link MTU",
            link.mtu
                .map_or("not limited".to_owned(), |mtu| mtu.to_string()),
        ),
        ("too long", link.too_long.to_string()),
        (
            "dropped, sent",
            injected(link.tx_dropped, link.tx_drops_pending),
        ),
        (
            "dropped, received",
            injected(link.rx_dropped, link.rx_drops_pending),
        ),
        ("dropped, VLAN", link.vlan_dropped.to_string()),
        (
            "interrupts lost",
            injected(link.interrupts_lost, link.interrupt_losses_pending),
        ),
    ])
}

fn queue_pairs(pairs: &[QueuePairView]) -> String {
    let row = |pair: &QueuePairView| {
        vec![
            pair.qpn.to_string(),
            name(&pair.kind),
            pair.state.map_or("-".to_owned(), |state| name(&state)),
            peer(pair),
            pair.context.to_string(),
            name(&pair.fault_policy),
            pair.sends_pending.to_string(),
            yes(pair.waits_for_page),
            pair.tx_packets.to_string(),
            pair.tx_bytes.to_string(),
            pair.rx_packets.to_string(),
            pair.rx_bytes.to_string(),
        ]
    };
    let rows: Vec<_> = pairs.iter().map(row).collect();
    let head = [
        "QPN", "KIND", "STATE", "PEER", "CONTEXT", "POLICY", "SENDS", "WAITS", "TX", "TX-BYTES",
        "RX", "RX-BYTES",
    ];
    let connected: Vec<_> = pairs.iter().filter_map(connection).collect();
    match connected.is_empty() {
        true => table(&head, &rows),
        false => table(&head, &rows) + "\n" + &table(&CONNECTION, &connected),
    }
}

/// The queue pair of the peer, or the address and port of an iWARP connection.
fn peer(pair: &QueuePairView) -> String {
    match &pair.connection {
        Some(connection) => place(&connection.remote_address, connection.remote_port),
        None => or_dash(pair.peer_qpn),
    }
}

/// An address and a port.
fn place(address: &str, port: u16) -> String {
    let address = address.strip_prefix("::ffff:").unwrap_or(address);
    match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    }
}

/// Columns of a TCP connection.
const CONNECTION: [&str; 10] = [
    "QPN", "TCP", "LOCAL", "PEER", "CWND", "WINDOW", "RTT", "UNACKED", "UNSENT", "KEPT",
];

fn connection(pair: &QueuePairView) -> Option<Vec<String>> {
    let connection = pair.connection.as_ref()?;
    let round_trip = connection.round_trip_ns;
    Some(vec![
        pair.qpn.to_string(),
        connection.tcp_state.clone(),
        place(&connection.local_address, connection.local_port),
        peer(pair),
        connection.congestion_window.to_string(),
        connection.peer_window.to_string(),
        round_trip.map_or("-".to_owned(), duration),
        connection.unacknowledged.to_string(),
        connection.unsent.to_string(),
        connection.kept.to_string(),
    ])
}

fn regions(regions: &[RegionView]) -> String {
    let row = |region: &RegionView| {
        vec![
            format!("{:#x}", region.key),
            region.pd.to_string(),
            format!("{:#x}", region.iova),
            size(region.length),
            yes(region.on_demand),
            region.present_entries.to_string(),
            size(region.table_bytes),
            region.access.join(","),
        ]
    };
    let rows: Vec<_> = regions.iter().map(row).collect();
    let head = [
        "KEY",
        "PD",
        "ADDRESS",
        "LENGTH",
        "ON-DEMAND",
        "PRESENT",
        "TABLE",
        "ACCESS",
    ];
    table(&head, &rows)
}

fn faults(faults: &[FaultView]) -> String {
    let row = |fault: &FaultView| {
        vec![
            format!("{:#x}", fault.token),
            duration(fault.age_ns),
            format!("{:#x}", fault.key),
            format!("{:#x}", fault.va),
            fault.pages.to_string(),
            if fault.write { "write" } else { "read" }.to_owned(),
            fault.context.to_string(),
            fault.waiters.to_string(),
        ]
    };
    let rows: Vec<_> = faults.iter().map(row).collect();
    let head = [
        "TOKEN", "AGE", "KEY", "ADDRESS", "PAGES", "ACCESS", "CONTEXT", "WAITERS",
    ];
    table(&head, &rows)
}

fn contexts(contexts: &[ContextView]) -> String {
    let row = |context: &ContextView| {
        vec![
            context.context.to_string(),
            context.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            context.program.clone().unwrap_or_default(),
            context.objects.to_string(),
        ]
    };
    let rows: Vec<_> = contexts.iter().map(row).collect();
    table(&["CONTEXT", "PID", "PROGRAM", "OBJECTS"], &rows)
}

fn counters(counters: &BTreeMap<String, u64>) -> String {
    let row = |(name, value): (&String, &u64)| vec![name.clone(), value.to_string()];
    let rows: Vec<_> = counters.iter().map(row).collect();
    table(&["COUNTER", "VALUE"], &rows)
}

fn engine(engine: &EngineView) -> String {
    let mut text = lines(&[
        ("paused", yes(engine.paused)),
        ("poll", name(&engine.poll)),
        ("uptime", duration(engine.uptime_ns)),
        ("device clock", duration(engine.device_time_ns)),
        ("passes", engine.passes.to_string()),
        ("longest pass", duration(engine.longest_pass_ns)),
        ("control requests", engine.control_requests.to_string()),
        ("missed wake-ups", engine.missed_wakeups.to_string()),
    ]);
    if engine.threads.len() > 1 {
        let row = |thread: &EngineThreadView| {
            vec![
                thread.name.clone(),
                thread.nics.join(", "),
                thread.passes.to_string(),
                duration(thread.busy_ns),
                duration(thread.longest_pass_ns),
            ]
        };
        let rows: Vec<_> = engine.threads.iter().map(row).collect();
        text += &table(&["ENGINE", "NICS", "PASSES", "BUSY", "LONGEST PASS"], &rows);
    }
    text
}

fn stepped_text(stepped: &Stepped) -> String {
    format!(
        "{} of {} passes had work; the device clock is {}\n",
        stepped.worked,
        stepped.passes,
        duration(stepped.device_time_ns)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pair(connection: serde_json::Value) -> QueuePairView {
        let mut pair = json!({
            "qpn": 5, "kind": "rc", "state": "RTS", "context": 1, "pd": 1, "send_cq": 0, "recv_cq": 0, "srq": null,
            "peer_qpn": null, "path_mtu": 1448, "fault_policy": "rnr", "sends_pending": 0, "waits_for_page": false,
            "tx_packets": 0, "tx_bytes": 0, "rx_packets": 0, "rx_bytes": 0,
        });
        if !connection.is_null() {
            pair["connection"] = connection;
        }
        serde_json::from_value(pair).unwrap()
    }

    /// A queue pair of iWARP has its connection in a second table.
    #[test]
    fn connections_are_shown_with_their_windows() {
        let text = queue_pairs(&[pair(serde_json::Value::Null)]);
        assert!(!text.contains("CWND"), "{text}");
        let connection = |local: &str, remote: &str| {
            json!({
                "local_address": local, "local_port": 40000, "remote_address": remote, "remote_port": 4791,
                "tcp_state": "ESTABLISHED", "is_active": true, "mpa_revision": 2, "congestion_window": 14480,
                "peer_window": 65535, "round_trip_ns": 12_000, "unacknowledged": 7, "unsent": 8, "kept": 9,
            })
        };
        let v4 = connection("::ffff:10.0.0.1", "::ffff:10.0.0.2");
        let text = queue_pairs(&[pair(v4), pair(connection("fd00::1", "fd00::2"))]);
        let lines: Vec<&str> = text.lines().collect();
        let [.., head, v4, v6] = lines[..] else {
            panic!("{text}");
        };
        assert!(head.contains("CWND") && head.contains("KEPT"), "{head}");
        let cells = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            cells(v4)[1..5],
            ["ESTABLISHED", "10.0.0.1:40000", "10.0.0.2:4791", "14480"]
        );
        assert_eq!(cells(v6)[2..4], ["[fd00::1]:40000", "[fd00::2]:4791"]);
    }
}
