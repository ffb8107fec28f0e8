//! Random processes keep their promises.

use faultline_simulation::vopr::{Plan, Report, run, shrink};

/// Seeds of each run of the tests.
const SEEDS: u64 = 200;

/// Runs of a plan that is made smaller.
const SHRINKS: usize = 1000;

/// Events of these seeds, with their smallest numbers.
const HAPPENS: [(&str, u64); 50] = [
    ("packets", 50_000),
    ("dropped packets", 2000),
    ("reordered packets", 100),
    ("ECN marks", 100),
    ("pauses", 50),
    ("packets between processes", 2000),
    ("RC requests", 1000),
    ("RC requests to an SRQ", 200),
    ("XRC requests", 200),
    ("UC requests", 200),
    ("UD requests", 200),
    ("lost messages", 50),
    ("atomics", 500),
    ("page faults", 1000),
    ("RNR NAKs by policy", 300),
    ("drops by policy", 50),
    ("stalls by policy", 50),
    ("connections ended by policy", 8),
    ("connections ended by a reset", 8),
    ("connections ended by a failed fault", 10),
    ("connections made again", 15),
    ("connections across VLANs", 8),
    ("resets", 30),
    ("moves", 30),
    ("links down", 30),
    ("receives flushed", 1000),
    ("iWARP requests", 300),
    ("CNPs", 5),
    ("packets dropped by rules", 1),
    ("packets delayed by rules", 1),
    ("packets overtaken by rules", 1),
    ("packets corrupted by rules", 1),
    ("packets doubled by rules", 1),
    ("packets marked by rules", 1),
    ("requests dropped by rules", 1),
    ("faults delayed by rules", 1),
    ("faults doubled by rules", 1),
    ("completions delayed by rules", 1),
    ("events delayed by rules", 1),
    ("events doubled by rules", 1),
    ("commands delayed by rules", 1),
    ("MAPs refused by rules", 1),
    ("look-ups delayed by rules", 1),
    ("doorbells delayed by rules", 1),
    ("doorbells doubled by rules", 1),
    ("ports taken down by rules", 1),
    ("senders paused by rules", 1),
    ("fault records held by rules", 1),
    ("fault queues filled by rules", 1),
    ("pages removed by rules", 1),
];

#[test]
fn events_of_nics_break_no_promise() {
    let mut sum = Report::default();
    for seed in 0..SEEDS {
        let plan = Plan::of_seed(seed);
        match run(&plan) {
            Ok(report) => {
                for (name, count) in report.counts {
                    sum.add(name, count);
                }
            }
            Err(failure) => {
                let (plan, smaller) = shrink(&plan, SHRINKS).unwrap();
                panic!(
                    "seed {seed}: {failure}\nThe smallest plan that fails: {smaller}\n{plan}\n\
                     Again: faultline vopr {seed}"
                );
            }
        }
    }
    println!("{:?}", sum.counts);
    for (name, at_least) in HAPPENS {
        assert!(sum.get(name) >= at_least, "{name}: {}", sum.get(name));
    }
}

/// It has found two work requests of an iWARP queue pair with errors of their own.
#[test]
fn seed_617_breaks_no_promise() {
    let plan = Plan::of_seed(617);
    if let Err(failure) = run(&plan) {
        panic!("{failure}\n{plan}");
    }
}

#[test]
fn a_seed_is_one_run() {
    for seed in [3, 17, 40] {
        let plan = Plan::of_seed(seed);
        let hashes = [(); 2].map(|()| run(&plan).unwrap().hash);
        assert_eq!(hashes[0], hashes[1]);
    }
}
