//! `--against`: this version and another one in turns, each with a device of its own. The other's program is started as
//! `faultline serve`, and driven over its sockets by the driver of this version; so its ABI version must be the same.
//!
//! On a host that others use, two runs one after the other differ by more than two versions do. Here a round of one version follows
//! each round of the other one, so what disturbs one disturbs the other: the ratios of neighbours are what counts. While one is
//! measured the other one's process is stopped.

use std::path::Path;

use anyhow::{Context as _, ensure};

use super::floors::run_on;
use super::{Bench, Cpus, DeviceOptions, Figure, MIB, median, quantile};

/// A kind of round.
struct Kind {
    name: &'static str,
    unit: &'static str,
    scale: f64,
    /// All blocks are copied, so that source and target are the same afterwards.
    moves_blocks: bool,
    run: fn(&mut Bench) -> anyhow::Result<f64>,
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "rate of 8-byte WRITEs",
        unit: "M/s",
        scale: 1e-6,
        moves_blocks: false,
        run: |bench| bench.rate(30),
    },
    Kind {
        name: "latency: 8-byte WRITE and back",
        unit: "us",
        scale: 1e6,
        moves_blocks: false,
        run: |bench| bench.round_trip(200),
    },
    Kind {
        name: "bandwidth of 64 KiB WRITEs",
        unit: "GB/s",
        scale: 1e-9,
        moves_blocks: true,
        run: |bench| bench.bandwidth(64 << 10, 24, false),
    },
    Kind {
        name: "bandwidth of 1 MiB WRITEs",
        unit: "GB/s",
        scale: 1e-9,
        moves_blocks: true,
        run: |bench| bench.bandwidth(MIB, 24, false),
    },
    Kind {
        name: "bandwidth of 1 MiB READs",
        unit: "GB/s",
        scale: 1e-9,
        moves_blocks: true,
        run: |bench| bench.bandwidth(MIB, 24, true),
    },
];

/// The kinds whose names contain `only`.
fn choose(only: Option<&str>) -> anyhow::Result<Vec<&'static Kind>> {
    let is_chosen = |kind: &&Kind| only.is_none_or(|only| kind.name.contains(only));
    let chosen: Vec<&Kind> = KINDS.iter().filter(is_chosen).collect();
    ensure!(
        !chosen.is_empty(),
        "no figure of --against has {:?} in its name; the figures are:\n  {}",
        only.unwrap_or_default(),
        KINDS.map(|kind| kind.name).join("\n  ")
    );
    Ok(chosen)
}

/// Values of both versions, and the ratio of this one to the other one for each pair of rounds.
#[derive(Debug, Default)]
struct Pairs {
    own: Vec<f64>,
    other: Vec<f64>,
}

impl Pairs {
    fn figures(&self, kind: &Kind) -> [Figure; 3] {
        let ratios: Vec<f64> = self
            .own
            .iter()
            .zip(&self.other)
            .map(|(own, other)| own / other)
            .collect();
        let other = format!("{}, other version", kind.name);
        let name = format!("{}, this version", kind.name);
        [
            Figure::median(&other, &self.other, kind.scale, kind.unit),
            Figure::median(&name, &self.own, kind.scale, kind.unit)
                .against(&other, median(&ratios)),
            Figure {
                middle_half: Some([0.25, 0.75].map(|share| quantile(&ratios, share))),
                ..Figure::plain(&format!("{}, ratio", kind.name), median(&ratios), "x")
            },
        ]
    }
}

/// Starts the other version on the device's processor, and a driver for it.
fn other_version(program: &Path, cpus: Cpus) -> anyhow::Result<Bench> {
    // The process keeps to the processor of the thread that starts it.
    run_on(cpus.device)?;
    let options = DeviceOptions {
        program: Some(program),
        ..DeviceOptions::default()
    };
    let bench = Bench::new(cpus, &options).with_context(|| {
        format!(
            "can't drive the NICs of {}; the ABI version of both programs must be the same",
            program.display()
        )
    });
    run_on(cpus.driver)?;
    bench
}

/// Measures pairs of rounds. The order changes from one pair to the next.
pub(crate) fn measure(
    program: &Path,
    only: Option<&str>,
    cpus: Cpus,
    quick: bool,
) -> anyhow::Result<Vec<Figure>> {
    let kinds = choose(only)?;
    let pairs = if quick { 11 } else { 41 };
    let mut other = other_version(program, cpus)?;
    other.device.stop();
    let mut own = Bench::new(cpus, &DeviceOptions::default())?;
    own.device.stop();
    let figures = measure_pairs(&kinds, pairs, &mut own, &mut other);
    // The drivers say good-bye to the devices.
    own.device.go_on();
    other.device.go_on();
    figures
}

fn measure_pairs(
    kinds: &[&Kind],
    pairs: usize,
    own: &mut Bench,
    other: &mut Bench,
) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for kind in kinds {
        let mut values = Pairs::default();
        // The first pair, in which pages are touched, does not count.
        for pair in 0..=pairs {
            for is_own in [pair % 2 == 0, pair % 2 != 0] {
                let (bench, rounds) = match is_own {
                    true => (&mut *own, &mut values.own),
                    false => (&mut *other, &mut values.other),
                };
                bench.device.go_on();
                let value = (kind.run)(bench)?;
                bench.device.stop();
                if pair > 0 {
                    rounds.push(value);
                }
            }
        }
        if kind.moves_blocks {
            own.check_data()?;
            other.check_data()?;
        }
        figures.extend(values.figures(kind));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_without_match_is_an_error_with_all_names() {
        assert_eq!(choose(None).unwrap().len(), KINDS.len());
        assert_eq!(choose(Some("64 KiB")).unwrap().len(), 1);
        let error = choose(Some("keys")).err().unwrap().to_string();
        assert!(
            KINDS.iter().all(|kind| error.contains(kind.name)),
            "{error}"
        );
    }

    #[test]
    fn the_ratio_is_that_of_neighbours() {
        // The machine is half as fast in the second half.
        let pairs = Pairs {
            own: vec![2.2, 2.2, 1.1, 1.1],
            other: vec![2.0, 2.0, 1.0, 1.0],
        };
        let [_, own, ratio] = pairs.figures(&KINDS[0]);
        assert!((ratio.value - 1.1).abs() < 1e-9 && own.ratio == Some(ratio.value));
        assert!(
            ratio
                .middle_half
                .is_some_and(|[low, high]| high - low < 1e-9)
        );
    }
}
