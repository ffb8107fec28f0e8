//! Random processes keep their promises.

use faultline_simulation::vopr::{Plan, run, shrink};

/// Seeds of each run of the tests.
const SEEDS: u64 = 200;

/// Runs of a plan that is made smaller.
const SHRINKS: usize = 400;

#[test]
fn what_happens_to_nics_breaks_no_promise() {
    let mut sum = [0u64; 4];
    for seed in 0..SEEDS {
        let plan = Plan::of_seed(seed);
        match run(&plan) {
            Ok(report) => {
                let counts = [report.packets, report.dropped, report.faults, report.moves];
                sum.iter_mut()
                    .zip(counts)
                    .for_each(|(sum, count)| *sum += count);
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
    // What the plans are about has happened.
    let [packets, dropped, faults, moves] = sum;
    println!("{packets} packets, {dropped} dropped, {faults} faults, {moves} moves");
    assert!(
        packets > 50_000 && dropped > 200 && faults > 200 && moves > 50,
        "{sum:?}"
    );
}

#[test]
fn a_seed_is_one_run() {
    for seed in [3, 17, 40] {
        let plan = Plan::of_seed(seed);
        let hashes = [(); 2].map(|()| run(&plan).unwrap().hash);
        assert_eq!(hashes[0], hashes[1]);
    }
}
