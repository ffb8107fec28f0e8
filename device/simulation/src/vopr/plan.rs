//! What a random run consists of: it follows from a seed, and can be made smaller.

use std::fmt;
use std::time::Duration;

use faultline_fabric::link_model::LinkModel;
use faultline_fabric::vlan::VlanMembership;
use faultline_scenario::trigger::Direction;
use faultline_simulator::Rng;
use faultline_wire::PrioritySet;

use crate::process::{NicShape, ProcessShape};

/// Octets of each part of the memory of a flow: source, sink, and the sink of SENDs.
pub(super) const PART: u64 = 64 << 10;
/// Octets of the sink of a SEND.
pub(super) const MESSAGE: u32 = 4096;

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed that it follows from, which also orders the passes of engines.
    pub seed: u64,
    /// Engines.
    pub engines: usize,
    /// NICs.
    pub nics: Vec<PlanNic>,
    /// Connections and what is requested on them.
    pub flows: Vec<Flow>,
    /// What happens to NICs meanwhile, by time.
    pub events: Vec<Event>,
}

/// A NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanNic {
    /// Its engine at the start.
    pub engine: usize,
    /// Models of its link: away from the NIC, and to it.
    pub links: [Option<LinkModel>; 2],
    /// It is an access port of this VLAN; `None`: the process has no VLANs.
    pub pvid: Option<u16>,
    /// Its memory is registered on demand.
    pub on_demand: bool,
    /// Time from a fault record to its answer, in nanoseconds.
    pub pager_delay: u64,
}

/// A connection (RC) from one NIC to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The NIC that requests.
    pub from: usize,
    /// The NIC that responds.
    pub to: usize,
    /// Code of the path MTU.
    pub path_mtu: u8,
    /// Nanoseconds from one request to the next.
    pub gap: u64,
    /// Requests.
    pub requests: Vec<Request>,
}

impl Flow {
    /// Its number of SENDs.
    pub(super) fn sends(&self) -> usize {
        let requests = self.requests.iter();
        requests
            .filter(|request| matches!(request, Request::Send(..)))
            .count()
    }
}

/// A request of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// RDMA WRITE of so many octets from this offset of the source to the same offset of the sink.
    Write(u32, u32),
    /// RDMA READ, the other way.
    Read(u32, u32),
    /// SEND of so many octets from this offset.
    Send(u32, u32),
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

/// What happens to a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It moves to an engine.
    Move(usize),
    /// So many packets are dropped at its port.
    Drop(Direction, u32),
    /// Its link goes down, for so many nanoseconds.
    LinkDown(u64),
    /// All pages of its memory on demand are taken away.
    Evict,
    /// Its fault policy becomes `stall` (true) or `rnr`.
    Stall(bool),
}

/// A number from `from` to `to`, as an index.
fn between(random: &mut Rng, from: u64, to: u64) -> u64 {
    let span = to.saturating_sub(from).saturating_add(1);
    from.saturating_add(random.below(span))
}

fn index(random: &mut Rng, below: usize) -> usize {
    usize::try_from(random.below(below as u64)).unwrap_or(0)
}

fn link(random: &mut Rng) -> Option<LinkModel> {
    if random.chance(600) {
        return None;
    }
    // Probabilities are of a million.
    let rarely = |random: &mut Rng, most: u64| match random.chance(500) {
        true => 0,
        false => u32::try_from(random.below(most)).unwrap_or(0),
    };
    let rates = [0, 1000, 10_000, 100_000];
    let mut model = LinkModel {
        rate_mbps: rates.get(index(random, 4)).copied().unwrap_or(0),
        delay_ns: random.below(50_000),
        loss: rarely(random, 20_000),
        duplicate: rarely(random, 20_000),
        reorder: rarely(random, 20_000),
        corrupt: rarely(random, 10_000),
        seed: random.next_u64(),
        ..LinkModel::default()
    };
    if model.rate_mbps > 0 && random.chance(400) {
        model.pause_bytes = u32::try_from(between(random, 4000, 60_000)).unwrap_or(0);
        if random.chance(500) {
            // The priority of frames without tag, singly.
            model.pfc = PrioritySet::NONE.with(0);
        }
    } else if random.chance(200) {
        model.queue_bytes = u32::try_from(between(random, 20_000, 200_000)).unwrap_or(0);
    }
    Some(model)
}

fn request(random: &mut Rng) -> Request {
    let most = match random.below(3) {
        0 => 64,
        1 => 4096,
        _ => PART,
    };
    let len = between(random, 1, most);
    let offset = random.below(PART.saturating_sub(len).saturating_add(1));
    let [len, offset] = [len, offset].map(|octets| u32::try_from(octets).unwrap_or(0));
    match random.below(3) {
        0 => Request::Write(offset, len),
        1 => Request::Read(offset, len),
        _ => Request::Send(offset.min(0xf000), len.min(MESSAGE)),
    }
}

fn event(random: &mut Rng, nics: usize, engines: usize) -> Event {
    let nic = index(random, nics);
    let what = match random.below(5) {
        0 => What::Move(index(random, engines)),
        1 => {
            let dir = match random.chance(500) {
                true => Direction::Tx,
                false => Direction::Rx,
            };
            What::Drop(dir, u32::try_from(between(random, 1, 2)).unwrap_or(1))
        }
        2 => What::LinkDown(between(random, 1000, 3_000_000)),
        3 => What::Evict,
        _ => What::Stall(random.chance(500)),
    };
    let at = random.below(2_000_000);
    Event { at, nic, what }
}

/// A packet that is alone on its way meets all drops: together they must be fewer than the retries of a connection, 7.
fn keep_drops_within_retries(events: &mut Vec<Event>) {
    let mut left = 4u32;
    events.retain(|event| match event.what {
        What::Drop(_, count) => {
            let fits = left.checked_sub(count);
            left = fits.unwrap_or(left);
            fits.is_some()
        }
        _ => true,
    });
}

impl Plan {
    /// The run of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Rng::new(seed);
        let random = &mut random;
        let engines = usize::try_from(between(random, 1, 3)).unwrap_or(1);
        let count = usize::try_from(between(random, 2, 5)).unwrap_or(2);
        let has_vlans = random.chance(250);
        let nics = (0..count).map(|_| PlanNic {
            engine: index(random, engines),
            links: [link(random), link(random)],
            pvid: has_vlans.then_some(7),
            on_demand: random.chance(400),
            pager_delay: between(random, 1000, 200_000),
        });
        let nics: Vec<PlanNic> = nics.collect();
        let flows = (0..between(random, 1, 4)).map(|_| {
            let from = index(random, count);
            let step = between(random, 1, count.saturating_sub(1) as u64);
            let to = from.saturating_add(usize::try_from(step).unwrap_or(1));
            Flow {
                from,
                to: to.checked_rem(count).unwrap_or(0),
                path_mtu: u8::try_from(between(random, 1, 5)).unwrap_or(3),
                gap: random.below(50_000),
                requests: (0..between(random, 1, 24))
                    .map(|_| request(random))
                    .collect(),
            }
        });
        let flows = flows.collect();
        let events = (0..random.below(8)).map(|_| event(random, count, engines));
        let mut events: Vec<Event> = events.collect();
        events.sort_by_key(|event| event.at);
        keep_drops_within_retries(&mut events);
        Self {
            seed,
            engines,
            nics,
            flows,
            events,
        }
    }

    /// The process of the run.
    pub fn shape(&self) -> ProcessShape {
        let nic = |nic: &PlanNic| NicShape {
            engine: nic.engine,
            links: nic.links,
            vlans: nic.pvid.map(|vlan| VlanMembership::new(Some(vlan), None)),
        };
        ProcessShape {
            engines: self.engines,
            nics: self.nics.iter().map(nic).collect(),
            ports: Vec::new(),
            seed: self.seed,
            first_address: 0,
        }
    }

    /// Runs that are a little smaller, the most reduced first.
    pub fn smaller(&self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            if plan != *self {
                found.push(plan);
            }
        };
        add(&|plan| plan.events.clear());
        for index in 0..self.flows.len() {
            if self.flows.len() > 1 {
                add(&|plan| {
                    plan.flows.remove(index);
                });
            }
        }
        for index in 0..self.events.len() {
            add(&|plan| {
                plan.events.remove(index);
            });
        }
        for index in 0..self.nics.len() {
            add(&|plan| without_nic(plan, index));
            add(&|plan| on_nic(plan, index, |nic| nic.links = [None, None]));
            add(&|plan| on_nic(plan, index, |nic| nic.links[0] = None));
            add(&|plan| on_nic(plan, index, |nic| nic.links[1] = None));
            add(&|plan| on_nic(plan, index, |nic| nic.on_demand = false));
            add(&|plan| on_nic(plan, index, |nic| nic.engine = 0));
        }
        add(&|plan| plan.nics.iter_mut().for_each(|nic| nic.pvid = None));
        for index in 0..self.flows.len() {
            add(&|plan| {
                on_flow(plan, index, |flow| {
                    let half = flow.requests.len().div_ceil(2);
                    flow.requests.truncate(half);
                })
            });
            add(&|plan| {
                on_flow(plan, index, |flow| {
                    let half = flow.requests.len() / 2;
                    if half > 0 {
                        flow.requests.drain(..half);
                    }
                })
            });
            for request in 0..self.flows.get(index).map_or(0, |flow| flow.requests.len()) {
                add(&|plan| {
                    on_flow(plan, index, |flow| {
                        if flow.requests.len() > 1 {
                            flow.requests.remove(request);
                        }
                    })
                });
            }
        }
        found
    }
}

/// Removes a NIC without flows.
fn without_nic(plan: &mut Plan, index: usize) {
    let is_used = |flow: &Flow| flow.from == index || flow.to == index;
    if plan.flows.iter().any(is_used) || plan.nics.len() <= 2 {
        return;
    }
    plan.nics.remove(index);
    plan.events.retain(|event| event.nic != index);
    let lower = |nic: &mut usize| {
        if *nic > index {
            *nic = nic.saturating_sub(1);
        }
    };
    for flow in &mut plan.flows {
        lower(&mut flow.from);
        lower(&mut flow.to);
    }
    for event in &mut plan.events {
        lower(&mut event.nic);
    }
}

fn on_nic(plan: &mut Plan, index: usize, change: impl Fn(&mut PlanNic)) {
    if let Some(nic) = plan.nics.get_mut(index) {
        change(nic);
    }
}

fn on_flow(plan: &mut Plan, index: usize, change: impl Fn(&mut Flow)) {
    if let Some(flow) = plan.flows.get_mut(index) {
        change(flow);
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} engines", self.engines)?;
        for (index, nic) in self.nics.iter().enumerate() {
            write!(f, "NIC {index}: engine {}", nic.engine)?;
            if let Some(vlan) = nic.pvid {
                write!(f, ", access port of VLAN {vlan}")?;
            }
            if nic.on_demand {
                let delay = Duration::from_nanos(nic.pager_delay);
                write!(f, ", memory on demand, faults answered after {delay:?}")?;
            }
            writeln!(f)?;
            for (name, link) in ["to the switch", "to the NIC"].iter().zip(nic.links) {
                if let Some(link) = link {
                    writeln!(f, "  link {name}: {link:?}")?;
                }
            }
        }
        for flow in &self.flows {
            let gap = Duration::from_nanos(flow.gap);
            writeln!(
                f,
                "NIC {} to NIC {}, path MTU code {}, a request each {gap:?}: {:?}",
                flow.from, flow.to, flow.path_mtu, flow.requests
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
        Ok(())
    }
}
