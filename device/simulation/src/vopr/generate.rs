//! The plan of a seed.

use faultline_fabric::link_model::LinkModel;
use faultline_nic::FaultPolicy;
use faultline_scenario::random::Rng;
use faultline_scenario::trigger::Direction;
use faultline_wire::PrioritySet;

use super::plan::{
    Event, Flow, GRH, MAX_REQUESTS, MESSAGE, PART, Plan, PlanNic, PlanPort, Request, Transport,
    What,
};

/// A number from `from` to `to`.
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
        Transport::Rc | Transport::RcSrq | Transport::Xrc => 5,
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
        false => {
            let all = Transport::ALL;
            let found = all.get(index(random, all.len()));
            found.copied().unwrap_or(Transport::Rc)
        }
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
    let all = FaultPolicy::ALL;
    let found = all.get(index(random, all.len()));
    found.copied().unwrap_or_default()
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
        let port = random.chance(300).then(|| port(random));
        // A port without VLANs is a member of all, with tags.
        let has_vlans = port.is_none() && random.chance(250);
        let nics = (0..count).map(|_| PlanNic {
            process: usize::from(port.is_some() && random.chance(500)),
            engine: index(random, engines),
            links: [link(random), link(random)],
            pvid: has_vlans.then(|| if random.chance(200) { 8 } else { 7 }),
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
            let from = index(random, count);
            let step = between(random, 1, count.saturating_sub(1) as u64);
            let to = from.saturating_add(usize::try_from(step).unwrap_or(1));
            let transport = transport(random);
            Flow {
                from,
                to: to.checked_rem(count).unwrap_or(0),
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
        keep_drops_within_retries(&mut events);
        Self {
            seed,
            engines,
            port,
            nics,
            flows,
            events,
        }
    }
}
