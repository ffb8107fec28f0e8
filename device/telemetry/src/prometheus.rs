//! Metrics as text for Prometheus (the OpenMetrics format).
//!
//! Labels are names of NICs and ports, opcodes, kinds and states: neither a guest nor a peer can make new ones. A series of an opcode or a type of
//! doorbell begins with the first that is counted.

use std::collections::BTreeMap;
use std::fmt::Error;
use std::time::Duration;

use faultline_abi::admin::{COUNTERS, Counter};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::kind::Direction;
use crate::metrics::{Histogram, NicMetrics, Traffic};
use crate::names::{doorbell_name, opcode_name};
use crate::stage::Stage;

mod process;

pub use process::ProcessSnapshot;

/// Values that go up and down, or are read from a NIC.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NicGauges {
    /// Existing objects, by kind.
    pub objects: Vec<(&'static str, u64)>,
    /// Existing queue pairs and work queues, by state.
    pub queue_pairs: Vec<(&'static str, u64)>,
    /// Elements that wait, by queue.
    pub queue_depths: Vec<(&'static str, u64)>,
    /// Completions that the driver has not read in the fullest completion queue, and completions that fit.
    pub fullest_cq: (u64, u64),
    /// Bytes of packets that wait for a page.
    pub parked_bytes: u64,
    /// Memory of the host that the NIC's objects occupy.
    pub held_bytes: u64,
    /// Faults that the NIC holds.
    pub faults_in_flight: u64,
    /// Fault policy `stall` has stopped the ingress.
    pub stalled: bool,
    /// A client is attached, such as QEMU: for how long.
    pub attached: Option<Duration>,
    /// The port is active.
    pub link_up: bool,
    /// The device has stopped with an error.
    pub fatal: bool,
}

/// Metrics of a NIC.
#[derive(Clone, Debug)]
pub struct NicSnapshot {
    /// Name in the configuration.
    pub name: String,
    /// The device's counters, in the order of [`Counter::ALL`].
    pub counters: [u64; Counter::COUNT],
    /// Counts of the recorder.
    pub metrics: NicMetrics,
    /// The rest.
    pub gauges: NicGauges,
    /// Counts of its port.
    pub port: PortCounts,
}

/// Counts at the border between a NIC and the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortCounts {
    /// Messages about the NIC that were not logged, because too many were waiting.
    pub log_dropped: u64,
    /// Packets that the link has dropped, by reason.
    pub link_drops: Vec<(&'static str, u64)>,
    /// Interrupts that were not sent, by request.
    pub interrupts_suppressed: u64,
}

/// Metrics of a port that leads out of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortSnapshot {
    /// Name in the configuration.
    pub name: String,
    /// It has a peer.
    pub connected: bool,
    /// Peers since the start.
    pub connections: u64,
    /// Frames and bytes from the peer.
    pub rx: (u64, u64),
    /// Frames and bytes to the peer.
    pub tx: (u64, u64),
    /// Frames that were dropped, by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Number of times that it has begun to hold connections, because the peer takes frames too slowly.
    pub holds: u64,
    /// Frames and messages of the peer that were refused.
    pub malformed: u64,
}

/// Metrics of a direction of a link that has a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSnapshot {
    /// Name of the NIC or of the port.
    pub port: String,
    /// `tx`: from the NIC, or to the peer of a port; `rx`: in the other direction.
    pub direction: Direction,
    /// Frames, by effect of the model.
    pub effects: Vec<(&'static str, u64)>,
    /// Pauses of the senders that have begun.
    pub pauses: u64,
    /// The priorities that the model pauses singly.
    pub pauses_by_priority: Vec<PrioritySnapshot>,
}

/// Metrics of a priority that the model of a link pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrioritySnapshot {
    /// The priority: 0 to 7.
    pub priority: u8,
    /// Pauses that have begun.
    pub pauses: u64,
    /// Time for which it was paused.
    pub paused: Duration,
}

/// Metrics of the fabric besides NICs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricSnapshot {
    /// Ports that lead out of the process.
    pub ports: Vec<PortSnapshot>,
    /// Directions of links that have a model.
    pub links: Vec<LinkSnapshot>,
}

/// Metrics of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineSnapshot {
    /// Its name.
    pub name: String,
    /// Since the start.
    pub uptime: Duration,
    /// Of it, in passes that had work.
    pub busy: Duration,
    /// Passes.
    pub passes: u64,
    /// The longest pass that had work.
    pub longest_pass: Duration,
    /// Times that it has slept.
    pub sleeps: u64,
    /// Doorbells that were rung while it slept and not written to the kick page.
    pub missed_wakeups: u64,
    /// Log lines that the process has lost.
    pub log_lines_lost: u64,
}

/// The metrics of a process, its engines, NICs and fabric as text. The first engine also stands for the process. If there are several,
/// the label `engine` of their series is the name of each.
pub fn prometheus_text(
    nics: &[NicSnapshot],
    fabric: &FabricSnapshot,
    engines: &[EngineSnapshot],
    process: ProcessSnapshot,
) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot {
        nics: nics.to_vec(),
        names: nics.iter().map(|nic| escaped(&nic.name)).collect(),
        fabric: fabric.clone(),
        engines: engines.to_vec(),
    }));
    registry.register_collector(Box::new(process));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, &registry);
    text
}

/// Escapes a label value, which the encoder does not.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[derive(Debug)]
struct Snapshot {
    nics: Vec<NicSnapshot>,
    /// Their names as label values.
    names: Vec<String>,
    fabric: FabricSnapshot,
    engines: Vec<EngineSnapshot>,
}

/// Name, help and unit of a family.
#[derive(Clone, Copy)]
struct Family<'a> {
    /// Without prefix, unit and suffix.
    name: &'a str,
    help: &'a str,
    unit: Option<&'a Unit>,
}

/// A series: a further label, and the value.
type Series<V> = (Option<(&'static str, String)>, V);

impl Snapshot {
    fn nics(&self) -> impl Iterator<Item = (&str, &NicSnapshot)> {
        self.names.iter().map(String::as_str).zip(&self.nics)
    }

    /// A family of counters, with the series that `series` returns for each NIC.
    fn counters(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: Family<'_>,
        series: impl Fn(&NicSnapshot) -> Vec<Series<u64>>,
    ) -> Result<(), Error> {
        self.encode(encoder, family, MetricType::Counter, series)
    }

    /// A family of gauges.
    fn gauges(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: Family<'_>,
        series: impl Fn(&NicSnapshot) -> Vec<Series<u64>>,
    ) -> Result<(), Error> {
        self.encode(encoder, family, MetricType::Gauge, series)
    }

    fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: Family<'_>,
        kind: MetricType,
        series: impl Fn(&NicSnapshot) -> Vec<Series<u64>>,
    ) -> Result<(), Error> {
        let name = format!("faultline_{}", family.name);
        let mut metric = encoder.encode_descriptor(&name, family.help, family.unit, kind)?;
        for (nic, snapshot) in self.nics() {
            for (label, value) in series(snapshot) {
                let labels = labels(nic, label.as_ref());
                let mut series = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => {
                        series.encode_counter::<NoLabelSet, _, u64>(&value, None)?
                    }
                    _ => series.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }

    fn engine(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(first) = self.engines.first() else {
            return Ok(());
        };
        let seconds = Some(&Unit::Seconds);
        encoder
            .encode_descriptor(
                "faultline_engine_uptime",
                "Time since the engine has started",
                seconds,
                MetricType::Gauge,
            )?
            .encode_gauge(&first.uptime.as_secs_f64())?;
        let longest = "Longest pass of the engine that had work";
        let mut metric = encoder.encode_descriptor(
            "faultline_engine_longest_pass",
            longest,
            seconds,
            MetricType::Gauge,
        )?;
        for (engine, labels) in self.engines() {
            let value = engine.longest_pass.as_secs_f64();
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        let mut metric = encoder.encode_descriptor(
            "faultline_engine_busy",
            "Time in passes of the engine that had work",
            seconds,
            MetricType::Counter,
        )?;
        for (engine, labels) in self.engines() {
            let value = engine.busy.as_secs_f64();
            metric
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        type Value = fn(&EngineSnapshot) -> u64;
        let families: [(&str, &str, Value); 3] = [
            (
                "faultline_engine_passes",
                "Passes of the engine",
                |engine| engine.passes,
            ),
            (
                "faultline_engine_sleeps",
                "Times that the engine has slept",
                |engine| engine.sleeps,
            ),
            (
                "faultline_engine_missed_wakeups",
                "Doorbells that were rung while the engine slept and not written to the kick page",
                |engine| engine.missed_wakeups,
            ),
        ];
        for (name, help, value) in families {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (engine, labels) in self.engines() {
                metric
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&value(engine), None)?;
            }
        }
        encoder
            .encode_descriptor(
                "faultline_log_lines_lost",
                "Log lines that were lost because standard error was not read fast enough or not writable",
                None,
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, u64>(&first.log_lines_lost, None)
    }

    /// The engines with their labels.
    fn engines(&self) -> impl Iterator<Item = (&EngineSnapshot, Vec<(&'static str, String)>)> {
        let is_only = self.engines.len() == 1;
        self.engines.iter().map(move |engine| {
            let label = (!is_only).then(|| ("engine", escaped(&engine.name)));
            (engine, label.into_iter().collect())
        })
    }

    /// Frames, packets, bytes and messages, by direction and opcode.
    fn traffic(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        type Value = fn(Traffic) -> u64;
        let families: [(&str, &str, Option<&Unit>, Value); 3] = [
            (
                "frames",
                "Frames between NICs of the process; a run of packets of one message is one frame",
                None,
                |traffic| traffic.frames,
            ),
            ("packets", "Packets between NICs", None, |traffic| {
                traffic.packets
            }),
            (
                "wire",
                "Bytes of packets between NICs, without FCS",
                Some(&Unit::Bytes),
                |traffic| traffic.bytes,
            ),
        ];
        for (name, help, unit, value) in families {
            self.by_opcode(
                encoder,
                Family { name, help, unit },
                |metrics, direction| {
                    let series = metrics.traffic(direction).iter();
                    let named = |(opcode, traffic)| (opcode_name(opcode), value(traffic));
                    // Opcodes that no packet has would share a name.
                    series
                        .map(named)
                        .filter(|(name, _)| name != "unknown")
                        .collect()
                },
            )?;
        }
        let family = Family {
            name: "messages",
            help: "Requests, by the opcode of their last packet; those that are sent again count again",
            unit: None,
        };
        self.by_opcode(encoder, family, |metrics, direction| {
            let messages = metrics.traffic(direction).messages();
            messages
                .map(|(opcode, count)| (opcode_name(opcode.to_u8()), count))
                .collect()
        })
    }

    fn by_opcode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        family: Family<'_>,
        series: impl Fn(&NicMetrics, Direction) -> Vec<(String, u64)>,
    ) -> Result<(), Error> {
        let name = format!("faultline_{}", family.name);
        let mut metric =
            encoder.encode_descriptor(&name, family.help, family.unit, MetricType::Counter)?;
        for (nic, snapshot) in self.nics() {
            for direction in Direction::ALL {
                for (opcode, value) in series(&snapshot.metrics, direction) {
                    let labels = [
                        ("nic", nic),
                        ("direction", direction.name()),
                        ("opcode", &opcode),
                    ];
                    let mut series = metric.encode_family(&labels)?;
                    series.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
                }
            }
        }
        Ok(())
    }

    /// Doorbells, interrupts, diagnostics and faults.
    fn events(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        self.doorbells(encoder)?;
        self.counters(
            encoder,
            family("interrupts", "Interrupts sent, by MSI-X vector"),
            |nic| {
                let vectors = nic.metrics.interrupts();
                vectors
                    .map(|(vector, count)| (Some(("vector", vector.to_string())), count))
                    .collect()
            },
        )?;
        self.counters(
            encoder,
            family("diagnostics", "Events that the NIC has reported, by kind"),
            |nic| {
                let kinds = nic.metrics.diagnostics();
                kinds
                    .map(|(kind, count)| (Some(("kind", kind.name().to_owned())), count))
                    .collect()
            },
        )?;
        self.counters(
            encoder,
            family(
                "diagnostics_lost",
                "Events of the NIC that were overwritten before the engine took them, and are counted nowhere else",
            ),
            |nic| vec![(None, nic.metrics.lost_diagnostics)],
        )?;
        self.counters(encoder, family("faults", "Page faults by outcome"), |nic| {
            let states = nic.metrics.faults.by_state();
            let series = |(state, count): (&str, u64)| (Some(("state", state.to_owned())), count);
            states.map(series).into()
        })?;
        self.stages(encoder)
    }

    /// Doorbells by type and path. Types that have no name share one series.
    fn doorbells(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(
            "faultline_doorbells",
            "Doorbells by type and path: page (taken from a doorbell page), kick (written to a kick page), late (delayed by a scenario)",
            None,
            MetricType::Counter,
        )?;
        for (nic, snapshot) in self.nics() {
            let mut counts: BTreeMap<(&str, String), u64> = BTreeMap::new();
            for (path, kind, count) in snapshot.metrics.doorbells() {
                let kind = doorbell_name(kind).unwrap_or_else(|| "unknown".to_owned());
                let sum = counts.entry((path.name(), kind)).or_default();
                *sum = sum.saturating_add(count);
            }
            for ((path, kind), count) in counts {
                let labels = [("nic", nic), ("kind", &kind), ("path", path)];
                let mut series = metric.encode_family(&labels)?;
                series.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn stages(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut metric = encoder.encode_descriptor(
            "faultline_fault_stage",
            "Latency of page faults, by stage",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (nic, snapshot) in self.nics() {
            for stage in Stage::ALL {
                let histogram = snapshot.metrics.stage(stage);
                let labels = [("nic", nic), ("stage", stage.name())];
                metric
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(
                        histogram.sum_ns() as f64 / 1e9,
                        histogram.count(),
                        &buckets(histogram),
                        None,
                    )?;
            }
        }
        Ok(())
    }

    /// Counts of the ports.
    fn ports(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let family = family(
            "log_dropped",
            "Messages that were not logged because too many were waiting; suppressed ones are not among them",
        );
        self.counters(encoder, family, |nic| vec![(None, nic.port.log_dropped)])?;
        let interrupts = Family {
            name: "interrupts_suppressed",
            help: "Interrupts that were not sent, by request of an operator",
            unit: None,
        };
        self.counters(encoder, interrupts, |nic| {
            vec![(None, nic.port.interrupts_suppressed)]
        })?;
        let drops = Family {
            name: "link_dropped_packets",
            help: "Packets that the link has dropped: down or without bus mastering, longer than the MTU, or by request in a direction",
            unit: None,
        };
        self.counters(encoder, drops, |nic| {
            let drops = nic.port.link_drops.iter();
            let series = drops.map(|(reason, n)| (Some(("reason", (*reason).to_owned())), *n));
            series.collect()
        })
    }

    /// The ports that lead out of the process, and the modelled links.
    fn fabric(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let ports = || self.fabric.ports.iter();
        type Value = fn(&PortSnapshot) -> [u64; 2];
        let by_direction: [(&str, &str, Option<&Unit>, Value); 2] = [
            (
                "port_frames",
                "Frames from the peer of a port (rx) and to it (tx)",
                None,
                |port| [port.rx.0, port.tx.0],
            ),
            (
                "port_wire",
                "Bytes of frames from the peer of a port (rx) and to it (tx), without FCS",
                Some(&Unit::Bytes),
                |port| [port.rx.1, port.tx.1],
            ),
        ];
        for (name, help, unit, value) in by_direction {
            let series = ports().flat_map(|port| {
                let both = [Direction::Rx, Direction::Tx].into_iter().zip(value(port));
                both.map(|(direction, count)| {
                    (&port.name, Some(("direction", direction.name())), count)
                })
            });
            by_port(
                encoder,
                Family { name, help, unit },
                MetricType::Counter,
                series,
            )?;
        }
        let drops = family(
            "port_dropped_frames",
            "Frames that a port has dropped, by reason",
        );
        let series = ports().flat_map(|port| {
            let drops = port.drops.iter();
            drops.map(|(reason, count)| (&port.name, Some(("reason", *reason)), *count))
        });
        by_port(encoder, drops, MetricType::Counter, series)?;
        type Single = fn(&PortSnapshot) -> u64;
        let single: [(&str, &str, MetricType, Single); 4] = [
            (
                "port_connected",
                "1 while a port has a peer",
                MetricType::Gauge,
                |port| u64::from(port.connected),
            ),
            (
                "port_connections",
                "Peers that a port has had",
                MetricType::Counter,
                |port| port.connections,
            ),
            (
                "port_holds",
                "How often a port has begun to hold connections, because its peer takes too slowly",
                MetricType::Counter,
                |port| port.holds,
            ),
            (
                "port_malformed",
                "Connections that were closed because of invalid octets of the peer, and refused frames and rings of a guest",
                MetricType::Counter,
                |port| port.malformed,
            ),
        ];
        for (name, help, kind, value) in single {
            let series = ports().map(|port| (&port.name, None, value(port)));
            by_port(encoder, family(name, help), kind, series)?;
        }
        self.links(encoder)
    }

    fn links(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        if self.fabric.links.is_empty() {
            return Ok(());
        }
        let mut metric = encoder.encode_descriptor(
            "faultline_link_model_frames",
            "Frames by effect of the model of a link: tx from the NIC or to the peer of the port, rx in the other direction",
            None,
            MetricType::Counter,
        )?;
        for link in &self.fabric.links {
            let port = escaped(&link.port);
            for (effect, count) in &link.effects {
                let labels = [
                    ("port", port.as_str()),
                    ("direction", link.direction.name()),
                    ("effect", effect),
                ];
                let mut series = metric.encode_family(&labels)?;
                series.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "faultline_link_model_pauses",
            "Pauses of the senders by the model of a link",
            None,
            MetricType::Counter,
        )?;
        for link in &self.fabric.links {
            let labels = [
                ("port", escaped(&link.port)),
                ("direction", link.direction.name().into()),
            ];
            let mut series = metric.encode_family(&labels)?;
            series.encode_counter::<NoLabelSet, _, u64>(&link.pauses, None)?;
        }
        self.priorities(encoder)
    }

    /// Priorities that models of links pause.
    fn priorities(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let all = || {
            let links = self.fabric.links.iter();
            links.flat_map(|link| link.pauses_by_priority.iter().map(move |of| (link, of)))
        };
        if all().next().is_none() {
            return Ok(());
        }
        let labels = |link: &LinkSnapshot, of: &PrioritySnapshot| {
            [
                ("port", escaped(&link.port)),
                ("direction", link.direction.name().into()),
                ("priority", of.priority.to_string()),
            ]
        };
        let mut metric = encoder.encode_descriptor(
            "faultline_link_model_priority_pauses",
            "Pauses of single priorities by the model of a link",
            None,
            MetricType::Counter,
        )?;
        for (link, of) in all() {
            let labels = labels(link, of);
            let mut series = metric.encode_family(&labels)?;
            series.encode_counter::<NoLabelSet, _, u64>(&of.pauses, None)?;
        }
        let mut metric = encoder.encode_descriptor(
            "faultline_link_model_priority_paused",
            "Time for which the model of a link has paused single priorities",
            Some(&Unit::Seconds),
            MetricType::Counter,
        )?;
        for (link, of) in all() {
            let labels = labels(link, of);
            let mut series = metric.encode_family(&labels)?;
            series.encode_counter::<NoLabelSet, _, f64>(&of.paused.as_secs_f64(), None)?;
        }
        Ok(())
    }

    /// The device's own counters, each a family with its description.
    fn device(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        for (index, counter) in Counter::ALL.iter().enumerate() {
            let help = COUNTERS
                .constants
                .get(index)
                .map(|constant| constant.doc.concat())
                .unwrap_or_default();
            let name = format!("device_{}", counter.name());
            let family = family(&name, help.trim().trim_end_matches('.'));
            let series = |nic: &NicSnapshot| {
                let value = nic.counters.get(index).copied().unwrap_or_default();
                vec![(None, value)]
            };
            match counter {
                Counter::table_bytes => self.gauges(encoder, family, series)?,
                _ => self.counters(encoder, family, series)?,
            }
        }
        Ok(())
    }

    fn state(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        type Values = fn(&NicGauges) -> &Vec<(&'static str, u64)>;
        let by_kind: [(&str, &str, &'static str, Values); 3] = [
            ("objects", "Existing objects, by kind", "kind", |gauges| {
                &gauges.objects
            }),
            (
                "queue_pairs",
                "Existing queue pairs and work queues, by state",
                "state",
                |gauges| &gauges.queue_pairs,
            ),
            (
                "queue_depth",
                "Elements that wait in a queue of the NIC",
                "queue",
                |gauges| &gauges.queue_depths,
            ),
        ];
        for (name, help, label, values) in by_kind {
            self.gauges(encoder, family(name, help), |nic| {
                let series =
                    |(name, value): &(&str, u64)| (Some((label, (*name).to_owned())), *value);
                values(&nic.gauges).iter().map(series).collect()
            })?;
        }
        let parked = Family {
            name: "parked",
            help: "Bytes of packets that wait for a page",
            unit: Some(&Unit::Bytes),
        };
        self.gauges(encoder, parked, |nic| vec![(None, nic.gauges.parked_bytes)])?;
        let held = Family {
            name: "held",
            help: "Memory of the host that the NIC's objects occupy",
            unit: Some(&Unit::Bytes),
        };
        self.gauges(encoder, held, |nic| vec![(None, nic.gauges.held_bytes)])?;
        type Value = fn(&NicGauges) -> u64;
        let single: [(&str, &str, Value); 7] = [
            (
                "fullest_cq_unread",
                "Completions that the driver has not read in the fullest completion queue",
                |gauges| gauges.fullest_cq.0,
            ),
            (
                "fullest_cq_entries",
                "Completions that fit into the fullest completion queue",
                |gauges| gauges.fullest_cq.1,
            ),
            (
                "faults_in_flight",
                "Page faults that the driver has not answered",
                |gauges| gauges.faults_in_flight,
            ),
            (
                "ingress_stalled",
                "1 while fault policy stall has stopped the ingress",
                |gauges| u64::from(gauges.stalled),
            ),
            (
                "client_attached",
                "1 while a client is attached, such as QEMU",
                |gauges| u64::from(gauges.attached.is_some()),
            ),
            ("link_up", "1 while the port is active", |gauges| {
                u64::from(gauges.link_up)
            }),
            (
                "device_fatal",
                "1 after the device has stopped with an error",
                |gauges| u64::from(gauges.fatal),
            ),
        ];
        for (name, help, value) in single {
            self.gauges(encoder, family(name, help), |nic| {
                vec![(None, value(&nic.gauges))]
            })?;
        }
        let attached = Family {
            name: "client_attached_time",
            help: "Time since the client has attached",
            unit: Some(&Unit::Seconds),
        };
        self.gauges(encoder, attached, |nic| {
            let time = nic.gauges.attached.map(|time| (None, time.as_secs()));
            time.into_iter().collect()
        })
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.engine(&mut encoder)?;
        self.traffic(&mut encoder)?;
        self.events(&mut encoder)?;
        self.ports(&mut encoder)?;
        self.fabric(&mut encoder)?;
        self.state(&mut encoder)?;
        self.device(&mut encoder)
    }
}

/// A family with the series of ports: the name of the port, a further label, the value. Without ports there is no such family.
fn by_port<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    family: Family<'_>,
    kind: MetricType,
    series: impl Iterator<Item = (&'a String, Option<(&'static str, &'static str)>, u64)>,
) -> Result<(), Error> {
    let mut series = series.peekable();
    if series.peek().is_none() {
        return Ok(());
    }
    let name = format!("faultline_{}", family.name);
    let mut metric = encoder.encode_descriptor(&name, family.help, family.unit, kind)?;
    for (port, label, value) in series {
        let port = escaped(port);
        let labels: Vec<_> = [("port", port.as_str())].into_iter().chain(label).collect();
        let mut series = metric.encode_family(&labels)?;
        match kind {
            MetricType::Counter => series.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
            _ => series.encode_gauge(&value)?,
        }
    }
    Ok(())
}

/// A family without a unit.
fn family<'a>(name: &'a str, help: &'a str) -> Family<'a> {
    Family {
        name,
        help,
        unit: None,
    }
}

fn labels<'a>(
    nic: &'a str,
    further: Option<&'a (&'static str, String)>,
) -> Vec<(&'static str, &'a str)> {
    let further = further.map(|(name, value)| (*name, value.as_str()));
    std::iter::once(("nic", nic)).chain(further).collect()
}

/// Buckets as the encoder expects them: seconds, not cumulative.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let seconds = |bound: Option<u64>| bound.map_or(f64::MAX, |ns| ns as f64 / 1e9);
    histogram
        .buckets()
        .map(|(bound, count)| (seconds(bound), count))
        .collect()
}

#[cfg(test)]
mod tests;
