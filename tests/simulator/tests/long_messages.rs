//! Long messages between NICs of an engine: runs that continue behind a turn, compared with runs that end with it.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::Cqe;
use faultline_abi::qp::{QPT_RC, QPT_UC};
use faultline_abi::wqe as wr;
use faultline_nic::FaultPolicy;
use faultline_simulation::{Rng, Send};
use faultline_simulator::pager;
use faultline_simulator::{HostPager, Pair, World};

use crate::common::{End, ends};

/// Bytes of each part of a region: the source of messages, where those of the peer land, and where data that is read lands. So the order of
/// READs and other requests, which is not defined, does not matter.
const PART: u64 = 512 << 10;
const REGION: u64 = 3 * PART;
/// Longest message. WRITEs go to the lower half of a part, READs of a region on demand are from the upper half.
const LONGEST: u64 = PART / 2;
const VA: u64 = 0x5500_0000_0000;
const REQUESTS: usize = 24;

/// What differs between plans.
#[derive(Clone, Copy, Debug)]
struct Options {
    kind: u8,
    /// Remote memory: a region on demand with this policy, else a pinned one.
    policy: Option<FaultPolicy>,
    /// One request has a wrong key.
    is_wrong: bool,
    /// The other side writes at the same time.
    is_both_ways: bool,
}

const PLAIN: Options = Options {
    kind: QPT_RC,
    policy: None,
    is_wrong: false,
    is_both_ways: false,
};

/// How messages pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Each run ends with its turn, because it is observed.
    Turns,
    /// Runs go on.
    Long,
    /// Runs go on until something waits.
    Stopped,
}

/// A completion: work request, status, opcode and bytes.
type Seen = (u32, u8, u8, u32);

/// Everything that software can see afterwards.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    completions: [Vec<Seen>; 2],
    landed: [Vec<u8>; 2],
    ends: [End; 2],
    counters: [Vec<(String, u64)>; 2],
}

/// Counters that depend on the sizes of runs: each acknowledgement is for a run, and each run looks up its pages.
fn depends_on_runs(name: &str) -> bool {
    [
        "tx_packets",
        "tx_bytes",
        "rx_packets",
        "rx_bytes",
        "tx_roce_packets",
        "rx_roce_packets",
        "tlb_hits",
        "tlb_misses",
    ]
    .contains(&name)
}

/// Posts a request of `host`. `target`: where WRITEs go, where READs come from, and the key.
fn post(
    world: &mut World,
    pair: &mut Pair,
    host: usize,
    rng: &mut Rng,
    (to, from, key): (u64, u64, u32),
) {
    let local = pair.mr[host];
    let opcodes = [wr::WR_WRITE, wr::WR_SEND, wr::WR_READ, wr::WR_WRITE];
    let opcode = opcodes[rng.below(4) as usize];
    let len = match rng.below(4) {
        0 => rng.below(64),
        1 => 4096 * (1 + rng.below(16)),
        _ => rng.below(LONGEST),
    };
    let (part, remote) = match opcode {
        wr::WR_READ => (2 * PART, from),
        _ => (0, to),
    };
    let at = local.va + part + rng.below(PART - len);
    let send = Send {
        opcode,
        flags: wr::WR_FLAG_SIGNALED,
        sges: &[(at, len as u32, local.key)],
        remote_addr: remote + rng.below(LONGEST - len + 1),
        rkey: key,
        ..Send::default()
    };
    world.hosts[host]
        .driver
        .write_send(&mut pair.qp[host], &send);
}

/// Carries out a plan. Returns the outcome, and the number of runs that were longer than a turn.
fn outcome(seed: u64, options: Options, form: Form) -> (Outcome, u64) {
    let mut world = World::with_config(2, seed, |config| {
        config.fault_policy = options.policy.unwrap_or_default();
    });
    match form {
        Form::Turns => world.hand_over_by_reference(),
        Form::Long => world.hand_over_unseen(None),
        Form::Stopped => world.hand_over_unseen(Some(seed)),
    }
    let mut rng = Rng::new(seed);
    let path_mtu = 1 + rng.below(5) as u8;
    let mut pair = world.connect(options.kind, REGION, |c| {
        let psn = 0xff_ffc0 + (seed as u32 & 31);
        (c.sq_psn, c.rq_psn, c.path_mtu) = (psn, psn, path_mtu);
        (c.timeout, c.retry_cnt, c.rnr_retry, c.min_rnr_timer) = (16, 7, 7, 1);
    });
    let mut pager = HostPager::new(&mut world, 1, 256, 6);
    let on_demand = pager.register(&mut world, VA, PART);
    let pinned = [0, 1].map(|host| {
        let mr = pair.mr[host];
        (mr.va + PART, mr.va, mr.key)
    });
    let (to, from, key) = match options.policy {
        Some(_) => (VA, VA + PART / 2, pager.regions[on_demand].key),
        None => pinned[1],
    };
    for host in 0..2 {
        let data: Vec<u8> = (0..PART).map(|_| rng.next_u64() as u8).collect();
        world.hosts[host].driver.write_mr(&pair.mr[host], 0, &data);
        for tag in 0..REQUESTS as u32 {
            let mr = pair.mr[host];
            let sge = (mr.va + PART, LONGEST as u32, mr.key);
            world.hosts[host]
                .driver
                .post_recv(&mut pair.qp[host], tag, &[sge]);
        }
    }
    let wrong = rng.below(REQUESTS as u64) as usize;
    for n in 0..REQUESTS {
        let is_wrong = options.is_wrong && n == wrong;
        let key = if is_wrong { key ^ 0x100 } else { key };
        post(&mut world, &mut pair, 0, &mut rng, (to, from, key));
        if options.is_both_ways {
            post(&mut world, &mut pair, 1, &mut rng, pinned[0]);
        }
    }
    for host in 0..2 {
        world.hosts[host].driver.ring_sends(&pair.qp[host]);
    }
    pager::run(&mut world, &mut [&mut pager]);
    let landed = [0, 1].map(|host| match options.policy {
        Some(_) if host == 1 => pager.read(&world, on_demand, 0, PART as usize),
        _ => world.hosts[host]
            .driver
            .read_mr(&pair.mr[host], 0, REGION as usize),
    });
    pager.check_free(&world);
    let completions = [0, 1].map(|host| {
        let found = world.completions(host, &mut pair.cq[host]);
        found.iter().map(seen).collect()
    });
    // How much has been sent before a NAK arrives depends on the sizes of runs, too.
    let has_naks = options.policy.is_some() || options.is_wrong;
    let counters = [0, 1].map(|host| match has_naks {
        false => counters(&world, host),
        true => Vec::new(),
    });
    let outcome = Outcome {
        completions,
        landed,
        ends: ends(&mut world, &pair),
        counters,
    };
    (outcome, world.long_runs(0) + world.long_runs(1))
}

fn counters(world: &World, host: usize) -> Vec<(String, u64)> {
    let all = Counter::ALL.iter();
    let counted = all.filter(|counter| !depends_on_runs(counter.name()));
    world.with_nic(host, |nic| {
        counted
            .map(|counter| (counter.name().to_owned(), nic.counters().get(*counter)))
            .collect()
    })
}

fn seen(cqe: &Cqe) -> Seen {
    let Cqe {
        wqe,
        status,
        opcode,
        byte_len,
        ..
    } = cqe;
    (wqe.get(), *status, *opcode, byte_len.get())
}

/// Compares all forms of plans. Returns how many runs were longer than a turn.
fn compare(seeds: std::ops::Range<u64>, options: Options) -> u64 {
    let mut long = 0;
    for seed in seeds {
        let (turns, none) = outcome(seed, options, Form::Turns);
        assert_eq!(none, 0, "runs that are longer than a turn");
        for form in [Form::Long, Form::Stopped] {
            let (found, runs) = outcome(seed, options, form);
            assert!(
                turns.landed == found.landed,
                "seed {seed}, {options:?}, {form:?}: memory"
            );
            let [turns, found] = [&turns, &found].map(|outcome| {
                let Outcome {
                    completions,
                    ends,
                    counters,
                    ..
                } = outcome;
                (completions, ends, counters)
            });
            assert_eq!(turns, found, "seed {seed}, {options:?}, {form:?}");
            long += runs;
        }
    }
    long
}

#[test]
fn successive_runs_are_equivalent_to_runs_of_a_turn() {
    let long = compare(0..10, PLAIN);
    assert!(long > 100, "{long} runs are longer than a turn");
    let kind = QPT_UC;
    assert_eq!(compare(50..51, Options { kind, ..PLAIN }), 0);
}

#[test]
fn runs_of_both_sides_continue() {
    let is_both_ways = true;
    let long = compare(
        100..116,
        Options {
            is_both_ways,
            ..PLAIN
        },
    );
    assert!(long > 0, "no run is longer than a turn");
}

#[test]
fn a_successive_run_stops_at_an_error() {
    let is_wrong = true;
    assert!(compare(200..208, Options { is_wrong, ..PLAIN }) > 0);
}

#[test]
fn a_successive_run_stops_at_an_absent_page() {
    let policies = [FaultPolicy::Rnr, FaultPolicy::Drop, FaultPolicy::Stall];
    let long = policies.map(|policy| {
        let policy = Some(policy);
        compare(300..303, Options { policy, ..PLAIN })
    });
    // A NIC with policy stall is mostly stalled in these plans.
    assert!(long[0] > 0 && long[1] > 0, "{long:?}");
}
