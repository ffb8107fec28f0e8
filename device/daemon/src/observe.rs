//! Copies of the state of NICs, made in the engine for other threads.
//!
//! A copy takes microseconds: numbers only, no text. The control server makes JSON of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_abi::regs;
use faultline_fabric::PortId;
use faultline_fabric::link_model::{LinkModelCounts, ModelledLink, PauseCounts};
use faultline_nic::inspect::CqFill;
use faultline_nic::{Nic, NicConfig, ObjectCounts};
use faultline_telemetry::{
    Direction, EngineSnapshot, FabricSnapshot, LinkSnapshot, NicGauges, NicSnapshot, PortCounts,
    PortSnapshot, PrioritySnapshot,
};
use faultline_wire::{MacAddr, PrioritySet};

use crate::clock::nanos;
use crate::engines::engine::Engine;
use crate::log::output;
use crate::nic::io::{Client, NicIo};
use crate::peer_rings::PeerRings;
use faultline_config::PollMode;
use faultline_fabric::Mark;
use faultline_fabric::external_port::{ExternalCounts, ExternalPort};
use faultline_fabric::port_faults::FaultCounts;

/// The link of a port.
#[derive(Clone, Copy, Debug)]
pub struct LinkState {
    /// It is up.
    pub up: bool,
    /// Longest payload of Ethernet frames, if it is limited.
    pub mtu: Option<u16>,
    /// Speed in Mb/s.
    pub speed_mbps: u32,
    /// Frames that it has dropped, by reason.
    pub counts: FaultCounts,
    /// Packets from the NIC that are still to be dropped.
    pub tx_drops: u32,
    /// Packets to the NIC that are still to be dropped.
    pub rx_drops: u32,
    /// Interrupts that are still to be suppressed.
    pub interrupt_losses: u32,
}

/// A NIC without its objects.
#[derive(Clone, Debug)]
pub struct NicState {
    /// Its MAC address.
    pub mac: MacAddr,
    /// FAULTLINE_STATUS_* bits.
    pub status: u32,
    /// FAULTLINE_FATAL_*.
    pub fatal: u32,
    /// The function may use DMA and interrupts.
    pub bus_master: bool,
    /// Fault policy `stall` has stopped its ingress.
    pub stalled: bool,
    /// Beats since the start.
    pub heartbeat: u32,
    /// Its client.
    pub client: Option<Client>,
    /// Its link.
    pub link: LinkState,
    /// Configuration of the firmware.
    pub config: NicConfig,
    /// Objects that exist.
    pub objects: ObjectCounts,
    /// Octets of page tables, of page lists of rings, and of queue pairs.
    pub held_memory: usize,
    /// CQs whose notices wait for room in an event queue.
    pub waiting_notices: usize,
    /// Waiting entries, by queue.
    pub queue_depths: Vec<(&'static str, u64)>,
    /// Diagnostics for which there was no room.
    pub lost_diagnostics: u64,
    /// Requests that it has sent.
    pub tx_messages: u64,
    /// Requests that it has received.
    pub rx_messages: u64,
    /// In the order of `Counter::ALL`.
    pub counters: Vec<u64>,
}

/// A direction of a link that has a model.
#[derive(Clone, Debug)]
pub struct LinkModelState {
    /// Name of the NIC or of the external port.
    pub port: String,
    /// `Tx`: from the NIC, or to the peer of an external port.
    pub direction: Direction,
    /// Effects of the link model.
    pub counts: LinkModelCounts,
    /// Priorities that it pauses singly.
    pub(crate) pfc: PrioritySet,
}

impl LinkModelState {
    /// Pauses of the priorities that the link pauses singly.
    pub fn pauses_by_priority(&self) -> impl Iterator<Item = (u8, PauseCounts)> {
        let counts = |priority| {
            let counts = self.counts.by_priority.get(usize::from(priority));
            (priority, counts.copied().unwrap_or_default())
        };
        self.pfc.iter().map(counts)
    }
}

/// A port that leads out of the process.
#[derive(Clone, Debug)]
pub struct ExternalState {
    /// Its name.
    pub name: String,
    /// It has a peer.
    pub is_connected: bool,
    /// Peers since the start.
    pub connections: u64,
    /// Frames that it has passed and dropped.
    pub counts: ExternalCounts,
    /// See [`faultline_ports::channel::PortStatus`].
    pub(crate) lost: u64,
    pub(crate) not_sent: u64,
    /// Connections, frames and rings of peers that were refused.
    pub malformed: u64,
}

impl ExternalState {
    /// Frames that were dropped, by reason.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = &self.counts;
        [
            ("too_long", counts.too_long),
            ("too_short", counts.too_short),
            ("vlan", counts.vlan),
            ("no_peer", counts.no_peer),
            ("overrun", counts.overrun),
            ("lost", self.lost),
            ("not_sent", self.not_sent),
        ]
        .into_iter()
    }
}

/// An engine.
#[derive(Clone, Debug)]
pub struct EngineState {
    /// Ports of its NICs.
    pub nics: Vec<PortId>,
    /// The device clock is stopped.
    pub paused: bool,
    /// Its polling mode.
    pub mode: PollMode,
    /// Nanoseconds without work after which it sleeps.
    pub poll_time_ns: u64,
    /// Nanoseconds of real time since the start.
    pub uptime_ns: u64,
    /// Nanoseconds of the device clock since the start.
    pub device_time_ns: u64,
    /// Passes since the start.
    pub passes: u64,
    /// Sleeps since the start.
    pub sleeps: u64,
    /// Doorbells that were rung during a sleep and did not wake the engine.
    pub missed_wakeups: u64,
    /// Doorbells of a sleep whose write to the kick page is still missing.
    pub awaited_kicks: u64,
    /// Nanoseconds in passes with work.
    pub busy_ns: u64,
    /// Longest pass, in nanoseconds.
    pub longest_pass_ns: u64,
    /// Requests of the control server since the start.
    pub control_requests: u64,
}

/// Waiting entries of the device's queues, by queue.
fn queue_depths(nic: &Nic) -> Vec<(&'static str, u64)> {
    let depths = nic.queue_depths().into_iter();
    depths.map(|(queue, depth)| (queue, depth as u64)).collect()
}

impl Engine {
    /// The directions of links that have a model.
    pub fn link_model_states(&self) -> Vec<LinkModelState> {
        let state = |(id, dir, line): (PortId, Direction, &ModelledLink<Mark>)| {
            let external = id.checked_sub(self.fabric.nics.ports());
            let external = external.and_then(|index| self.fabric.externals.get(index));
            let nic = self.io.nics.get(id).map(NicIo::name);
            LinkModelState {
                port: nic
                    .or(external.map(ExternalPort::name))
                    .unwrap_or_default()
                    .to_owned(),
                direction: dir,
                counts: line.counts(),
                pfc: line.pfc(),
            }
        };
        self.fabric.links.iter().map(state).collect()
    }

    /// The ports that lead out of the process.
    pub fn external_states(&self) -> Vec<ExternalState> {
        let state = |port: &ExternalPort<PeerRings>| {
            let status = port.peer().status();
            let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            ExternalState {
                name: port.name().to_owned(),
                is_connected: status.is_connected.load(Ordering::Relaxed),
                connections: read(&status.connections),
                counts: port.counts,
                lost: read(&status.lost),
                not_sent: read(&status.not_sent),
                malformed: read(&status.malformed),
            }
        };
        self.fabric.externals.iter().map(state).collect()
    }

    /// Metrics of external ports and of modelled links.
    pub fn fabric_snapshot(&self) -> FabricSnapshot {
        let ports = self.external_states().into_iter().map(|state| {
            let counts = state.counts;
            PortSnapshot {
                connected: state.is_connected,
                connections: state.connections,
                rx: (counts.rx_frames, counts.rx_octets),
                tx: (counts.tx_frames, counts.tx_octets),
                drops: state.drops().collect(),
                holds: counts.holds,
                malformed: state.malformed,
                name: state.name,
            }
        });
        let links = self.link_model_states().into_iter().map(|state| {
            let pauses = state.pauses_by_priority();
            let pauses = pauses.map(|(priority, counts)| PrioritySnapshot {
                priority,
                pauses: counts.pauses,
                paused: Duration::from_nanos(counts.paused_ns),
            });
            let pauses_by_priority = pauses.collect();
            let counts = state.counts;
            LinkSnapshot {
                port: state.port,
                direction: state.direction,
                effects: counts.effects().into(),
                pauses: counts.pauses,
                pauses_by_priority,
            }
        });
        FabricSnapshot {
            ports: ports.collect(),
            links: links.collect(),
        }
    }

    /// Metrics of a NIC.
    pub fn nic_snapshot(&mut self, id: PortId, name: String) -> Option<NicSnapshot> {
        let now = self.now();
        let port = self.fabric.nics.get_mut(id)?;
        let objects = port.nic.object_counts();
        let status = port.nic.read_register(now, regs::STATUS);
        let count = |count: usize| count as u64;
        let client = self.io.nics.get(id).and_then(|io| io.client.as_ref());
        let gauges = NicGauges {
            objects: vec![
                ("pd", count(objects.pds)),
                ("mkey", count(objects.mkeys)),
                ("cq", count(objects.cqs)),
                ("qp", count(objects.qps)),
                ("srq", count(objects.srqs)),
                ("ah", count(objects.ahs)),
                ("listener", count(objects.listeners)),
                ("connection", count(objects.connections)),
                ("context", count(objects.uctxs)),
            ],
            queue_pairs: objects
                .qp_states
                .iter()
                .map(|(state, pairs)| (state.name(), count(pairs)))
                .collect(),
            queue_depths: queue_depths(&port.nic),
            // Several steps of their own.
            fullest_cq: (0, 0),
            parked_bytes: count(port.nic.parked_bytes()),
            held_bytes: count(port.nic.held_memory()),
            faults_in_flight: count(port.nic.faults(usize::MAX).len()),
            stalled: port.nic.is_stalled(),
            attached: client.map(|client| client.since.elapsed()),
            link_up: status & regs::LINK_UP != 0,
            fatal: status & regs::FATAL != 0,
        };
        let counters = port.nic.counters().values();
        let port = PortCounts {
            log_dropped: self.io.nics.get(id).map_or(0, NicIo::dropped_messages),
            link_drops: vec![
                ("down", port.faults.counts.down),
                ("mtu", port.faults.counts.too_long),
                ("tx_request", port.faults.counts.tx_dropped),
                ("rx_request", port.faults.counts.rx_dropped),
                ("vlan", port.faults.counts.vlan),
            ],
            interrupts_suppressed: port.faults.counts.interrupts_lost,
        };
        Some(NicSnapshot {
            name,
            counters: counters.try_into().unwrap_or([0; Counter::COUNT]),
            metrics: self.io.recorder.snapshot(u16::try_from(id).ok()?),
            gauges,
            port,
        })
    }

    /// Returns the fullest completion queue of a NIC from place `from` on, and the place for the next call. No queue for a function that
    /// may not access memory.
    pub fn fullest_cq(&self, id: PortId, from: u32) -> (Option<CqFill>, Option<u32>) {
        let port = self.fabric.nics.get(id).filter(|port| port.bus_master);
        match (port, self.fabric.memories.get(id)) {
            (Some(port), Some(ram)) => port.nic.fullest_cq(ram, from),
            _ => (None, None),
        }
    }

    /// Metrics of the engine with this name.
    pub fn snapshot(&self, name: String) -> EngineSnapshot {
        EngineSnapshot {
            name,
            uptime: Duration::from_nanos(self.clock.real().0),
            busy: Duration::from_nanos(self.stats.busy_ns),
            passes: self.stats.passes,
            longest_pass: Duration::from_nanos(self.stats.longest_pass_ns),
            sleeps: self.stats.sleeps,
            missed_wakeups: self.stats.missed_wakeups,
            log_lines_lost: output::lost_lines(),
        }
    }

    /// The state of a NIC.
    pub fn nic_state(&mut self, id: PortId) -> Option<NicState> {
        let now = self.now();
        let mut messages = |direction| {
            let nic = u16::try_from(id).ok();
            nic.map_or(0, |nic| self.io.recorder.messages(nic, direction))
        };
        let (tx_messages, rx_messages) = (messages(Direction::Tx), messages(Direction::Rx));
        let port = self.fabric.nics.get_mut(id)?;
        let status = port.nic.read_register(now, regs::STATUS);
        let link = &port.faults;
        let link = LinkState {
            up: status & regs::LINK_UP != 0,
            mtu: link.mtu(),
            speed_mbps: port.nic.link_speed(),
            counts: link.counts,
            tx_drops: link.pending_drops(Direction::Tx),
            rx_drops: link.pending_drops(Direction::Rx),
            interrupt_losses: link.pending_interrupt_losses(),
        };
        Some(NicState {
            mac: port.nic.mac(),
            status,
            fatal: port.nic.read_register(now, regs::FATAL_CODE),
            bus_master: port.bus_master,
            stalled: port.nic.is_stalled(),
            client: self.io.nics.get(id).and_then(|io| io.client.clone()),
            heartbeat: self.io.nics.get(id).map_or(0, NicIo::heartbeat),
            link,
            config: port.nic.config().clone(),
            objects: port.nic.object_counts(),
            held_memory: port.nic.held_memory(),
            waiting_notices: port.nic.waiting_notices(),
            queue_depths: queue_depths(&port.nic),
            lost_diagnostics: port.lost_diagnostics,
            tx_messages,
            rx_messages,
            counters: port.nic.counters().values().to_vec(),
        })
    }

    /// The state of the engine.
    pub fn engine_state(&self) -> EngineState {
        EngineState {
            nics: self.fabric.nics.iter().map(|(id, _)| id).collect(),
            paused: self.clock.is_stopped(),
            mode: self.mode,
            poll_time_ns: nanos(self.poll_time),
            uptime_ns: self.clock.real().0,
            device_time_ns: self.now().0,
            passes: self.stats.passes,
            sleeps: self.stats.sleeps,
            missed_wakeups: self.stats.missed_wakeups,
            awaited_kicks: self
                .io
                .nics
                .values()
                .map(|io| u64::from(io.awaits_kick()))
                .sum(),
            busy_ns: self.stats.busy_ns,
            longest_pass_ns: self.stats.longest_pass_ns,
            control_requests: self.control_requests,
        }
    }
}
