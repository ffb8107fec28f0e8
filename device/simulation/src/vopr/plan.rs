//! The parts of a random run.

use std::fmt;
use std::time::Duration;

use faultline_abi::qp::{QPT_RC, QPT_UC, QPT_UD, QPT_XRC_INI};
use faultline_fabric::link_model::LinkModel;
use faultline_fabric::vlan::VlanMembership;
use faultline_nic::{Dcqcn, FaultPolicy};
use faultline_scenario::trigger::Direction;

use super::rules::{PlanRule, RuleEffect};
use crate::process::{NicShape, PortShape, ProcessShape};

/// Octets of the source and of the sink in the memory of a flow.
pub(super) const PART: u64 = 64 << 10;
/// The same as a length.
pub(super) const PART_OCTETS: usize = 64 << 10;
/// Octets for the payload of a SEND.
pub(super) const MESSAGE: u32 = 4096;
/// Octets in front of the payload of a datagram: the GRH.
pub(super) const GRH: u32 = 40;
/// Most requests of a flow.
pub(super) const MAX_REQUESTS: u64 = 24;

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed that it follows from, which also orders the passes of engines.
    pub seed: u64,
    /// Engines of each process.
    pub engines: usize,
    /// The port that connects two processes; `None`: there is one process.
    pub port: Option<PlanPort>,
    /// NICs.
    pub nics: Vec<PlanNic>,
    /// Connections and their requests.
    pub flows: Vec<Flow>,
    /// Events of NICs, by time.
    pub events: Vec<Event>,
    /// Rules. If there are some, the first engine of each process has all NICs.
    pub rules: Vec<PlanRule>,
}

/// The external ports of two processes, whose peers pass frames to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanPort {
    /// Models of the link of each port: to the peer, and from it.
    pub links: [Option<LinkModel>; 2],
    /// Octets in the ring to the peer.
    pub room: usize,
    /// Nanoseconds from one frame that the peer takes to the next; 0: it takes frames at once.
    pub pace: u64,
}

/// A NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanNic {
    /// Its process: 0 or, if processes are connected, 1.
    pub process: usize,
    /// Its engine at the start.
    pub engine: usize,
    /// Models of its link: away from the NIC, and to it.
    pub links: [Option<LinkModel>; 2],
    /// Its VLAN; `None`: the process has no VLANs.
    pub vlan: Option<u16>,
    /// Its frames have the tag of the VLAN: it is no access port.
    pub is_trunk: bool,
    /// Its queue pairs are those of iWARP. Such NICs talk to each other only.
    pub is_iwarp: bool,
    /// It has congestion control.
    pub congestion: bool,
    /// Its memory is registered on demand.
    pub on_demand: bool,
    /// Time from a fault record to its answer, in nanoseconds.
    pub pager_delay: u64,
    /// log2 of the records in its fault queue.
    pub fault_depth: u8,
    /// Its pager maps pages at once, and answers later that it has failed: connections that still wait end then.
    pub pager_fails: bool,
    /// Fault policy of its queue pairs when they are made.
    pub policy: FaultPolicy,
}

/// The service of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Reliable connection whose responder receives from a shared receive queue.
    RcSrq,
    /// Extended reliable connection: an initiator, a target and its shared receive queue.
    Xrc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
    /// Reliable connection of iWARP.
    Iwarp,
}

impl Transport {
    /// All services of RoCE.
    pub const ALL: [Self; 5] = [Self::Rc, Self::RcSrq, Self::Xrc, Self::Uc, Self::Ud];

    /// True if each request is executed once, in order, or the connection ends.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::RcSrq | Self::Xrc | Self::Iwarp)
    }

    /// True if receives are posted to a shared receive queue.
    pub(super) fn has_srq(self) -> bool {
        matches!(self, Self::RcSrq | Self::Xrc)
    }

    /// The type of the requester's queue pair.
    pub(super) fn requester(self) -> u8 {
        match self {
            Self::Rc | Self::RcSrq | Self::Iwarp => QPT_RC,
            Self::Xrc => QPT_XRC_INI,
            Self::Uc => QPT_UC,
            Self::Ud => QPT_UD,
        }
    }

    /// Name of the count of its requests.
    pub(super) fn count(self) -> &'static str {
        match self {
            Self::Rc => "RC requests",
            Self::RcSrq => "RC requests to an SRQ",
            Self::Xrc => "XRC requests",
            Self::Uc => "UC requests",
            Self::Ud => "UD requests",
            Self::Iwarp => "iWARP requests",
        }
    }
}

/// A connection from one NIC to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The NIC that requests.
    pub from: usize,
    /// The NIC that responds.
    pub to: usize,
    /// The service.
    pub transport: Transport,
    /// Code of the path MTU.
    pub path_mtu: u8,
    /// Its packets are capable of ECN.
    pub ecn: bool,
    /// Nanoseconds from one request to the next.
    pub gap: u64,
    /// Requests.
    pub requests: Vec<Request>,
}

/// A request of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// RDMA WRITE: octets, and their offset in source and sink.
    Write(u32, u32),
    /// RDMA READ, the other way.
    Read(u32, u32),
    /// SEND: octets, and their offset in the source.
    Send(u32, u32),
    /// Adds this to the counter of the responder.
    FetchAdd(u32),
    /// Compares the counter of the responder with its value (true) or with another one, and swaps.
    CompareSwap(bool),
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the traffic has begun.
    pub at: u64,
    /// The NIC to which it happens.
    pub nic: usize,
    /// What.
    pub what: What,
}

/// An event of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It moves to an engine.
    Move(usize),
    /// Drops this number of packets at its port.
    Drop(Direction, u32),
    /// Takes its link down for this number of nanoseconds.
    LinkDown(u64),
    /// All pages of its memory on demand are taken away.
    Evict,
    /// Its queue pairs get this fault policy.
    Policy(FaultPolicy),
    /// Reboots its guest, which takes this number of nanoseconds. Then its connections are made again.
    Reset(u64),
}

impl Plan {
    /// Number of processes.
    pub(super) fn processes(&self) -> usize {
        match self.port {
            Some(_) => 2,
            None => 1,
        }
    }

    /// The process of a NIC.
    pub(super) fn process_of(&self, nic: &PlanNic) -> usize {
        nic.process.min(self.processes().saturating_sub(1))
    }

    /// A process of the run.
    pub(super) fn shape(&self, process: usize) -> ProcessShape {
        let nic = |nic: &PlanNic| NicShape {
            engine: nic.engine,
            links: nic.links,
            vlans: nic.vlan.map(|vlan| match nic.is_trunk {
                true => VlanMembership::new(None, Some([vlan].into_iter().collect())),
                false => VlanMembership::new(Some(vlan), None),
            }),
            transport: match nic.is_iwarp {
                true => faultline_nic::Transport::Iwarp,
                false => faultline_nic::Transport::Roce,
            },
            congestion: nic.congestion.then(Dcqcn::default),
            ..NicShape::default()
        };
        let port = |port: &PlanPort| PortShape {
            links: port.links,
            // No frame is lost because the peer is slow.
            hold: Duration::from_secs(1),
            room: port.room,
            ..PortShape::default()
        };
        let nics = self.nics.iter();
        ProcessShape {
            engines: self.engines,
            nics: nics
                .filter(|nic| self.process_of(nic) == process)
                .map(nic)
                .collect(),
            ports: self.port.iter().map(port).collect(),
            seed: self.seed,
            first_address: process.saturating_mul(self.nics.len()),
        }
    }

    /// The VLAN whose tag frames of a NIC have.
    pub(super) fn tag_of(&self, nic: usize) -> Option<u16> {
        let nic = self.nics.get(nic).filter(|nic| nic.is_trunk)?;
        nic.vlan
    }

    /// True if no frame of one NIC of a flow reaches the other.
    pub(super) fn is_separated(&self, flow: &Flow) -> bool {
        let vlan = |nic: usize| self.nics.get(nic).and_then(|nic| nic.vlan);
        vlan(flow.from) != vlan(flow.to)
    }

    /// True if packets of a flow may be lost, repeated or reordered on their way.
    pub(super) fn loses_packets(&self, flow: &Flow) -> bool {
        let is_exact = |link: &LinkModel| {
            let chances = [link.loss, link.duplicate, link.reorder, link.corrupt];
            chances == [0; 4] && link.queue_bytes == 0
        };
        let ends = [flow.from, flow.to];
        let mut links = self.ends(flow).flat_map(|nic| nic.links.iter().flatten());
        let loses = |event: &Event| matches!(event.what, What::Drop(..) | What::LinkDown(_));
        let mut events = self.events.iter();
        let loses_by_rule = |effect| matches!(effect, RuleEffect::Loses | RuleEffect::TakesRetry);
        !links.all(is_exact)
            || self.port.is_some()
            || events.any(|event| ends.contains(&event.nic) && loses(event))
            || self.effects_on(flow).any(loses_by_rule)
            || self.is_separated(flow)
    }

    /// True if nothing in the plan loses, repeats or reorders messages of a flow, although its service repairs nothing.
    pub(super) fn keeps_messages(&self, flow: &Flow) -> bool {
        let ends = [flow.from, flow.to];
        let loses_by = |policy| matches!(policy, FaultPolicy::Drop | FaultPolicy::Terminate);
        let loses = |event: &Event| match event.what {
            What::Reset(_) => true,
            What::Policy(policy) => loses_by(policy),
            _ => false,
        };
        let mut events = self.events.iter();
        let mut nics = self.ends(flow).filter(|nic| nic.on_demand);
        !self.loses_packets(flow)
            && !self
                .effects_on(flow)
                .any(|effect| effect == RuleEffect::Fails)
            && !nics.any(|nic| nic.pager_fails || loses_by(nic.policy))
            && !events.any(|event| ends.contains(&event.nic) && loses(event))
    }

    /// Effects of rules at the NICs of a flow.
    fn effects_on(&self, flow: &Flow) -> impl Iterator<Item = RuleEffect> {
        let ends = [flow.from, flow.to];
        let rules = self.rules.iter();
        let own = rules.filter(move |rule| ends.contains(&rule.nic));
        own.map(|rule| rule.effect)
    }

    /// True if page faults of a NIC may fail: its pager answers so, or a rule.
    pub(super) fn fails_faults(&self, nic: usize) -> bool {
        let mut rules = self.rules.iter();
        let fails = |rule: &PlanRule| rule.nic == nic && rule.effect == RuleEffect::Fails;
        self.nics
            .get(nic)
            .is_some_and(|own| own.on_demand && (own.pager_fails || rules.any(fails)))
    }

    /// Both NICs of a flow.
    fn ends(&self, flow: &Flow) -> impl Iterator<Item = &PlanNic> {
        let ends = [flow.from, flow.to].into_iter();
        ends.filter_map(|nic| self.nics.get(nic))
    }

    /// True if a packet of a flow may arrive twice.
    pub(super) fn repeats_packets(&self, flow: &Flow) -> bool {
        let ports = self.port.iter().flat_map(|port| &port.links);
        let links = self.ends(flow).flat_map(|nic| &nic.links);
        let mut links = links.chain(ports).flatten();
        links.any(|link| link.duplicate > 0)
            || self
                .effects_on(flow)
                .any(|effect| effect == RuleEffect::Repeats)
    }
}

fn links(
    f: &mut fmt::Formatter<'_>,
    names: [&str; 2],
    links: &[Option<LinkModel>; 2],
) -> fmt::Result {
    for (name, link) in names.iter().zip(links) {
        if let Some(link) = link {
            writeln!(f, "  link {name}: {link:?}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} engines", self.engines)?;
        if let Some(port) = &self.port {
            let pace = Duration::from_nanos(port.pace);
            writeln!(
                f,
                "two processes, connected by ports with room for {} octets, a frame each {pace:?}",
                port.room
            )?;
            links(f, ["to the peer", "from the peer"], &port.links)?;
        }
        for (index, nic) in self.nics.iter().enumerate() {
            write!(f, "NIC {index}: ")?;
            if self.port.is_some() {
                write!(f, "process {}, ", nic.process)?;
            }
            write!(f, "engine {}", nic.engine)?;
            if nic.is_iwarp {
                write!(f, ", iWARP")?;
            }
            if nic.congestion {
                write!(f, ", DCQCN")?;
            }
            if let Some(vlan) = nic.vlan {
                let kind = if nic.is_trunk { "trunk" } else { "access port" };
                write!(f, ", {kind} of VLAN {vlan}")?;
            }
            if nic.on_demand {
                let delay = Duration::from_nanos(nic.pager_delay);
                write!(
                    f,
                    ", memory on demand, policy {}, 2^{} fault records, {} after {delay:?}",
                    nic.policy.name(),
                    nic.fault_depth,
                    match nic.pager_fails {
                        true => "mapped at once, failed",
                        false => "answered",
                    }
                )?;
            }
            writeln!(f)?;
            links(f, ["to the switch", "to the NIC"], &nic.links)?;
        }
        for flow in &self.flows {
            let gap = Duration::from_nanos(flow.gap);
            writeln!(
                f,
                "NIC {} to NIC {}, {:?}, path MTU code {}, {}, a request each {gap:?}: {:?}",
                flow.from,
                flow.to,
                flow.transport,
                flow.path_mtu,
                if flow.ecn { "ECN" } else { "no ECN" },
                flow.requests
            )?;
        }
        for event in &self.events {
            writeln!(
                f,
                "at {:?}: NIC {}: {:?}",
                Duration::from_nanos(event.at),
                event.nic,
                event.what
            )?;
        }
        self.rules.iter().try_for_each(|rule| write!(f, "{rule}"))
    }
}
