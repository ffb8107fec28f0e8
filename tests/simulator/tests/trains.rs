//! Trains: the results of bursts of small messages, compared with those of the same messages as single packets.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{Cqe, SUCCESS};
use faultline_abi::qp::{QPT_RC, QPT_UC};
use faultline_abi::wqe as wr;
use faultline_nic::{FaultPolicy, Latency};
use faultline_simulation::{Rng, Send};
use faultline_simulator::pager;
use faultline_simulator::{HostPager, Pair, World};

use crate::common::{End, ends};

/// Bytes of each region: the source of messages, then where they land.
const REGION: u64 = 256 << 10;
const LANDING: u64 = 128 << 10;
/// Octets of a full packet.
const MTU: u64 = 1024;
/// Virtual address of the region on demand.
const VA: u64 = 0x5500_0000_0000;
/// Most requests of a plan; all fit into the queues.
const MOST: usize = 200;

/// What differs between plans.
#[derive(Clone, Copy, Debug)]
struct Options {
    kind: u8,
    /// Target of the WRITEs: a region on demand with this policy, else a pinned one.
    policy: Option<FaultPolicy>,
    /// Some receives are posted only after a while.
    is_late: bool,
    /// One request has a wrong key.
    is_wrong: bool,
}

/// How messages pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Each packet is a frame.
    Single,
    /// Trains are taken apart where they enter the wire.
    Wire,
    /// Between engines, by reference.
    Engines,
    /// Between NICs of an engine, by reference.
    Engine,
}

/// A completion: work request, status, opcode, bytes, immediate data and flags.
type Seen = (u32, u8, u8, u32, u32, u8);

/// Everything that software can see afterwards.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    completions: [Vec<Seen>; 2],
    landed: Vec<u8>,
    /// Next PSNs. Not of a requester in error: how many requests had begun before the error came is a matter of time.
    ends: [End; 2],
}

/// A request of a plan.
struct Request {
    opcode: u8,
    flags: u8,
    imm: [u8; 4],
    len: u64,
    from: u64,
    to: u64,
    is_inline: bool,
    is_wrong: bool,
}

fn takes_receive(opcode: u8) -> bool {
    matches!(opcode, wr::WR_SEND | wr::WR_SEND_IMM | wr::WR_WRITE_IMM)
}

/// Bursts of requests that are alike, so that there are trains, between others that end them.
fn plan(rng: &mut Rng, options: &Options) -> Vec<Request> {
    let mut requests = Vec::new();
    while requests.len() < MOST {
        let opcode = match rng.below(8) {
            0 => wr::WR_SEND_IMM,
            1 => wr::WR_WRITE_IMM,
            2..=4 => wr::WR_SEND,
            _ => wr::WR_WRITE,
        };
        let lengths = [0, 1, 8, 16, 64, 200, MTU, MTU + 1, 3 * MTU];
        let len = lengths[rng.below(lengths.len() as u64) as usize];
        let is_inline = (1..=64).contains(&len) && rng.chance(400);
        let flags = match rng.below(12) {
            0 => wr::WR_FLAG_SIGNALED | wr::WR_FLAG_FENCE,
            1 | 2 => wr::WR_FLAG_SIGNALED | wr::WR_FLAG_SOLICITED,
            _ => wr::WR_FLAG_SIGNALED,
        };
        for _ in 0..=rng.below(60) {
            requests.push(Request {
                opcode,
                flags,
                imm: (requests.len() as u32).to_be_bytes(),
                len,
                from: rng.below(LANDING - len),
                to: rng.below(LANDING - len),
                is_inline,
                is_wrong: false,
            });
        }
    }
    requests.truncate(MOST);
    if options.is_wrong {
        let wrong = rng.below(MOST as u64) as usize;
        requests[wrong].is_wrong = true;
    }
    requests
}

fn post_receives(world: &mut World, pair: &mut Pair, tags: std::ops::Range<u32>) {
    let mr = pair.mr[1];
    for tag in tags {
        let at = mr.va + u64::from(tag) * 4 % (LANDING - 4 * MTU);
        let sge = (at, 4 * MTU as u32, mr.key);
        world.hosts[1]
            .driver
            .post_recv(&mut pair.qp[1], tag, &[sge]);
    }
}

/// Carries out a plan. Returns the outcome, and how many messages have left in trains.
fn outcome(seed: u64, options: Options, form: Form) -> (Outcome, u64) {
    let mut world = World::with_config(2, seed, |config| {
        config.fault_policy = options.policy.unwrap_or_default();
        if form == Form::Single {
            // A NIC that takes time for payloads sends single packets. This one takes none.
            config.latency = Latency {
                payload_unit: 4096,
                ..Latency::default()
            };
        }
    });
    match form {
        Form::Single | Form::Wire => {}
        Form::Engines => world.hand_over_between_engines(),
        Form::Engine => world.hand_over_by_reference(),
    }
    let mut pair = world.connect(options.kind, REGION, |c| {
        let psn = 0xff_ffc0 + (seed as u32 & 31);
        (c.sq_psn, c.rq_psn) = (psn, psn);
        (c.timeout, c.retry_cnt, c.rnr_retry, c.min_rnr_timer) = (12, 7, 7, 1);
    });
    let mut pager = HostPager::new(&mut world, 1, 64, 6);
    let on_demand = pager.register(&mut world, VA, LANDING);
    let (target, key) = match options.policy {
        Some(_) => (VA, pager.regions[on_demand].key),
        None => (pair.mr[1].va + LANDING, pair.mr[1].key),
    };
    let mut rng = Rng::new(seed);
    let data: Vec<u8> = (0..LANDING).map(|_| rng.next_u64() as u8).collect();
    world.hosts[0].driver.write_mr(&pair.mr[0], 0, &data);
    let requests = plan(&mut rng, &options);
    let receives = requests
        .iter()
        .filter(|request| takes_receive(request.opcode));
    let receives = receives.count() as u32;
    let early = match options.is_late {
        true => receives / 3,
        false => receives,
    };
    post_receives(&mut world, &mut pair, 0..early);
    let source = pair.mr[0];
    for request in &requests {
        let from = request.from as usize;
        let send = Send {
            opcode: request.opcode,
            flags: request.flags,
            imm: request.imm,
            sges: &[(source.va + request.from, request.len as u32, source.key)],
            inline: None,
            remote_addr: target + request.to,
            rkey: if request.is_wrong { key ^ 0x100 } else { key },
            ..Send::default()
        };
        let inline = Send {
            sges: &[],
            inline: Some(&data[from..from + request.len as usize]),
            ..send
        };
        let send = if request.is_inline { inline } else { send };
        world.hosts[0].driver.write_send(&mut pair.qp[0], &send);
        // Bursts of several requests for one doorbell, and now and then a single one.
        if rng.chance(100) {
            world.hosts[0].driver.ring_sends(&pair.qp[0]);
        }
    }
    world.hosts[0].driver.ring_sends(&pair.qp[0]);
    if options.is_late {
        world.run_for(300_000);
        post_receives(&mut world, &mut pair, early..receives);
    }
    pager::run(&mut world, &mut [&mut pager]);
    let landed = match options.policy {
        Some(_) => pager.read(&world, on_demand, 0, LANDING as usize),
        None => world.hosts[1]
            .driver
            .read_mr(&pair.mr[1], LANDING, LANDING as usize),
    };
    pager.check_free(&world);
    let completions = [0, 1].map(|host| {
        let found = world.completions(host, &mut pair.cq[host]);
        found.iter().map(seen).collect()
    });
    let outcome = Outcome {
        completions,
        landed,
        ends: ends(&mut world, &pair),
    };
    (outcome, world.messages_in_trains(0))
}

fn seen(cqe: &Cqe) -> Seen {
    let Cqe {
        wqe,
        status,
        opcode,
        byte_len,
        imm,
        flags,
        ..
    } = cqe;
    (
        wqe.get(),
        *status,
        *opcode,
        byte_len.get(),
        imm.get(),
        *flags,
    )
}

/// Compares all forms of plans. Returns how many messages were in trains.
fn compare(seeds: std::ops::Range<u64>, options: Options) -> u64 {
    let mut in_trains = 0;
    for seed in seeds {
        let (single, none) = outcome(seed, options, Form::Single);
        assert_eq!(none, 0, "messages in trains");
        for form in [Form::Wire, Form::Engines, Form::Engine] {
            let (found, messages) = outcome(seed, options, form);
            assert!(
                single == found,
                "seed {seed}, {options:?}, {form:?}:\n{single:?}\n{found:?}"
            );
            in_trains += messages;
        }
    }
    in_trains
}

const PLAIN: Options = Options {
    kind: QPT_RC,
    policy: None,
    is_late: false,
    is_wrong: false,
};

#[test]
fn a_train_is_equivalent_to_its_packets() {
    for kind in [QPT_RC, QPT_UC] {
        let trains = compare(0..40, Options { kind, ..PLAIN });
        assert!(trains > 10_000, "{trains} messages in trains");
    }
}

#[test]
fn a_train_ends_at_a_message_with_a_wrong_key() {
    let is_wrong = true;
    compare(100..130, Options { is_wrong, ..PLAIN });
}

#[test]
fn a_train_waits_for_receives() {
    let is_late = true;
    compare(200..220, Options { is_late, ..PLAIN });
}

#[test]
fn a_train_stops_at_an_absent_page() {
    for policy in [FaultPolicy::Rnr, FaultPolicy::Drop, FaultPolicy::Stall] {
        let policy = Some(policy);
        compare(300..320, Options { policy, ..PLAIN });
    }
}

/// Without a NAK, as under policy `drop`, the requester learns of the messages before an absent page by their acknowledgement only.
#[test]
fn the_messages_before_an_absent_page_are_acknowledged_at_once() {
    let mut world = World::with_config(2, 1, |config| config.fault_policy = FaultPolicy::Drop);
    world.hand_over_by_reference();
    let mut pair = world.connect(QPT_RC, REGION, |c| c.timeout = 16);
    let mut pager = HostPager::new(&mut world, 1, 8, 4);
    let on_demand = pager.register(&mut world, VA, LANDING);
    pager.map_page(&mut world, on_demand, VA >> 12, true);
    let (source, key) = (pair.mr[0], pager.regions[on_demand].key);
    for at in [0, 8, 16, 4096, 24] {
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(source.va, 8, source.key)],
            remote_addr: VA + at,
            rkey: key,
            ..Send::default()
        };
        world.hosts[0].driver.write_send(&mut pair.qp[0], &send);
    }
    world.hosts[0].driver.ring_sends(&pair.qp[0]);
    world.run_for(1_000);
    let done = world.completions(0, &mut pair.cq[0]);
    assert_eq!(done.len(), 3, "{done:?}");
    pager::run(&mut world, &mut [&mut pager]);
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 2);
}

/// A message whose page is absent is looked at as a part of the train, and then again by itself. That is one miss, on either side.
#[test]
fn an_absent_page_behind_other_messages_is_one_miss() {
    let misses = |host: usize| {
        let mut world = World::with_config(2, 1, |config| config.fault_policy = FaultPolicy::Drop);
        world.hand_over_by_reference();
        let mut pair = world.connect(QPT_RC, REGION, |c| c.timeout = 16);
        let mut pager = HostPager::new(&mut world, host, 8, 4);
        let on_demand = pager.register(&mut world, VA, LANDING);
        pager.map_page(&mut world, on_demand, VA >> 12, true);
        let key = pager.regions[on_demand].key;
        let [source, target] = pair.mr;
        for at in [0, 8, 4096] {
            let (from, to) = match host {
                0 => ((VA + at, key), (target.va, target.key)),
                _ => ((source.va, source.key), (VA + at, key)),
            };
            let send = Send {
                opcode: wr::WR_WRITE,
                sges: &[(from.0, 8, from.1)],
                remote_addr: to.0,
                rkey: to.1,
                ..Send::default()
            };
            world.hosts[0].driver.write_send(&mut pair.qp[0], &send);
        }
        world.hosts[0].driver.ring_sends(&pair.qp[0]);
        world.run_for(100_000);
        let trains = world.messages_in_trains(0);
        let misses = world.with_nic(host, |nic| nic.counters().get(Counter::tlb_misses));
        (trains > 0, misses)
    };
    for host in [0, 1] {
        assert_eq!(misses(host), (true, 2), "host {host}");
    }
}

/// The completion of a SEND in the middle of a train is lost. The SENDs before it are complete on both sides.
#[test]
fn the_messages_before_a_lost_completion_are_acknowledged() {
    let outcomes = [false, true].map(|by_reference| {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut cq = [world.hosts[0].cq(8).unwrap(), world.hosts[1].cq(4).unwrap()];
        let mut qp = [0, 1].map(|i| world.hosts[i].qp(QPT_RC, &cq[i]).unwrap());
        let mr = [0, 1].map(|i| world.hosts[i].mr(REGION).unwrap());
        world.connect_qps(QPT_RC, [qp[0].qpn, qp[1].qpn], |_| {});
        for tag in 0..32 {
            let sge = (mr[1].va, 64, mr[1].key);
            world.hosts[1].driver.post_recv(&mut qp[1], tag, &[sge]);
        }
        for _ in 0..32 {
            let send = Send {
                opcode: wr::WR_SEND,
                sges: &[(mr[0].va, 8, mr[0].key)],
                ..Send::default()
            };
            world.hosts[0].driver.write_send(&mut qp[0], &send);
        }
        world.hosts[0].driver.ring_sends(&qp[0]);
        world.run();
        [0, 1].map(|host| {
            let found = world.completions(host, &mut cq[host]);
            found.iter().map(|cqe| cqe.status).collect::<Vec<u8>>()
        })
    });
    assert_eq!(outcomes[0], outcomes[1]);
    let done = |found: &[u8]| found.iter().filter(|status| **status == SUCCESS).count();
    assert_eq!(done(&outcomes[1][0]), 16, "{outcomes:?}");
}
