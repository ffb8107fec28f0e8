//! The plan of a seed.

use faultline_fabric::link_model::LinkModel;
use faultline_nic::FaultPolicy;
use faultline_scenario::random::Rng;
use faultline_scenario::trigger::Direction;
use faultline_wire::PrioritySet;

use super::choice::{between, index, one_of};
use super::plan::{
    Event, Flow, GRH, MAX_REQUESTS, MESSAGE, PART, Plan, PlanNic, PlanPort, Request, Transport,
    What,
};
use super::rules::{PlanRule, RuleEffect, random_rule};

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
        rate_mbps: one_of(random, &rates, 0),
        delay_ns: random.below(50_000),
        queue_bytes: 0,
        ecn_bytes: 0,
        pause_bytes: 0,
        pfc: PrioritySet::NONE,
        loss: rarely(random, 20_000),
        duplicate: rarely(random, 20_000),
        reorder: rarely(random, 20_000),
        corrupt: rarely(random, 10_000),
        seed: random.next_u64(),
    };
    if model.rate_mbps > 0 && random.chance(300) {
        model.ecn_bytes = u32::try_from(between(random, 2000, 40_000)).unwrap_or(0);
    }
    if model.rate_mbps > 0 && random.chance(400) {
        model.pause_bytes = match random.chance(200) {
            true => 1,
            false => u32::try_from(between(random, 4000, 60_000)).unwrap_or(0),
        };
        if random.chance(500) {
            // The priority of frames without tag, singly.
            model.pfc = PrioritySet::NONE.with(0);
        }
    } else if random.chance(200) {
        model.queue_bytes = u32::try_from(between(random, 20_000, 200_000)).unwrap_or(0);
    }
    Some(model)
}

fn range(random: &mut Rng, most: u64) -> (u32, u32) {
    let most = match random.below(3) {
        0 => most.min(64),
        1 => most.min(4096),
        _ => most,
    };
    let len = between(random, 1, most);
    let offset = random.below(PART.saturating_sub(len).saturating_add(1));
    let [offset, len] = [offset, len].map(|octets| u32::try_from(octets).unwrap_or(0));
    (offset, len)
}

fn request(random: &mut Rng, transport: Transport) -> Request {
    let kinds = match transport {
        Transport::Ud => 1,
        Transport::Uc => 2,
        Transport::Rc | Transport::RcSrq | Transport::Xrc | Transport::Iwarp => 5,
    };
    let message = match transport {
        Transport::Ud => MESSAGE.saturating_sub(GRH),
        _ => MESSAGE,
    };
    match random.below(kinds) {
        0 => {
            let (offset, len) = range(random, message.into());
            Request::Send(offset, len)
        }
        1 => {
            let (offset, len) = range(random, PART);
            Request::Write(offset, len)
        }
        2 => {
            let (offset, len) = range(random, PART);
            Request::Read(offset, len)
        }
        3 => Request::FetchAdd(u32::try_from(random.below(1 << 20)).unwrap_or(0)),
        _ => Request::CompareSwap(random.chance(700)),
    }
}

fn transport(random: &mut Rng) -> Transport {
    match random.chance(400) {
        true => Transport::Rc,
        false => one_of(random, &Transport::ALL, Transport::Rc),
    }
}

fn port(random: &mut Rng) -> PlanPort {
    PlanPort {
        links: [link(random), link(random)],
        room: usize::try_from(between(random, 256 << 10, 1 << 20)).unwrap_or(1 << 20),
        pace: match random.chance(500) {
            true => 0,
            false => random.below(5000),
        },
    }
}

fn policy(random: &mut Rng) -> FaultPolicy {
    one_of(random, &FaultPolicy::ALL, FaultPolicy::default())
}

fn what(random: &mut Rng, engines: usize) -> What {
    match random.below(12) {
        0 | 1 => What::Move(index(random, engines)),
        2 | 3 => {
            let dir = match random.chance(500) {
                true => Direction::Tx,
                false => Direction::Rx,
            };
            What::Drop(dir, u32::try_from(between(random, 1, 2)).unwrap_or(1))
        }
        4 | 5 => What::LinkDown(between(random, 1000, 3_000_000)),
        6 | 7 => What::Evict,
        8 | 9 => What::Policy(policy(random)),
        _ => What::Reset(between(random, 1000, 5_000_000)),
    }
}

fn event(random: &mut Rng, nics: usize, engines: usize) -> Event {
    let nic = index(random, nics);
    let what = what(random, engines);
    let at = random.below(1_000_000);
    Event { at, nic, what }
}

/// A packet that is alone on its way meets all drops: together they must be fewer than the retries of a connection, 7.
fn keep_drops_within_retries(events: &mut Vec<Event>, rules: &mut Vec<PlanRule>) {
    let mut left = 4u32;
    let mut fits = |count| {
        let rest = left.checked_sub(count);
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    rules.retain(|rule| rule.effect != RuleEffect::TakesRetry || fits(1));
    events.retain(|event| match event.what {
        What::Drop(_, count) => fits(count),
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
        let port = random.chance(300).then(|| port(random));
        // A port without VLANs is a member of all, with tags.
        let has_vlans = port.is_none() && random.chance(250);
        // NICs of one transport, and their flows.
        let iwarp = match random.chance(250) {
            true => index(random, count.saturating_sub(1)).saturating_add(2),
            false => 0,
        };
        let groups: Vec<(usize, usize)> = [(0, iwarp), (iwarp, count)]
            .into_iter()
            .filter(|(from, to)| to.saturating_sub(*from) > 1)
            .collect();
        let nics = (0..count).map(|nic| PlanNic {
            process: usize::from(port.is_some() && random.chance(500)),
            engine: index(random, engines),
            links: [link(random), link(random)],
            // The time until an iWARP connection between two VLANs fails is longer than a run.
            vlan: has_vlans.then(|| {
                if random.chance(200) && nic >= iwarp {
                    8
                } else {
                    7
                }
            }),
            is_trunk: has_vlans && random.chance(300),
            is_iwarp: nic < iwarp,
            congestion: random.chance(250),
            on_demand: random.chance(400),
            pager_delay: between(random, 1000, 200_000),
            fault_depth: match random.chance(400) {
                true => 1,
                false => 8,
            },
            pager_fails: random.chance(150),
            policy: match random.chance(600) {
                true => FaultPolicy::Rnr,
                false => policy(random),
            },
        });
        let nics: Vec<PlanNic> = nics.collect();
        let flows = (0..between(random, 1, 4)).map(|_| {
            let (first, end) = one_of(random, &groups, (0, count));
            let members = end.saturating_sub(first);
            let from = index(random, members);
            let step = index(random, members.saturating_sub(1)).saturating_add(1);
            let to = from.saturating_add(step).checked_rem(members).unwrap_or(0);
            let transport = match first < iwarp {
                true => Transport::Iwarp,
                false => transport(random),
            };
            Flow {
                from: first.saturating_add(from),
                to: first.saturating_add(to),
                transport,
                path_mtu: u8::try_from(between(random, 1, 5)).unwrap_or(3),
                ecn: random.chance(500),
                gap: random.below(50_000),
                requests: (0..between(random, 1, MAX_REQUESTS))
                    .map(|_| request(random, transport))
                    .collect(),
            }
        });
        let flows = flows.collect();
        let events = (0..random.below(8)).map(|_| event(random, count, engines));
        let mut events: Vec<Event> = events.collect();
        events.sort_by_key(|event| event.at);
        // Rules need all NICs on one engine.
        let most_rules = if random.chance(400) { 7 } else { 1 };
        let rules = (0..random.below(most_rules)).map(|_| random_rule(random, (count, iwarp)));
        let mut rules: Vec<PlanRule> = rules.collect();
        keep_drops_within_retries(&mut events, &mut rules);
        Self {
            seed,
            engines,
            port,
            nics,
            flows,
            events,
            rules,
        }
    }
}
