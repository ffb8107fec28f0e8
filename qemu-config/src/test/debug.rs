//! The suites `debug-kernel` and `race-kernel`: other suites on kernels that are configured to find errors, and tests that
//! need such a kernel.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::checking_kernels::{CHECKPATCH, DEBUG_PARTS, RACE_PARTS};
use super::job::jobs_of;
use super::pair::Pairs;
use super::suite::{Options, Suite};
use super::tally::{Tally, Verdict};
use crate::command::run_logged;
use crate::debug_kernel;
use crate::host::Release;
use crate::image::{Base, Kernel};
use crate::workspace::Workspace;

/// Runs the suites whose names contain `filter`, or of one, named `suite::word`, the tests whose names contain the word;
/// they have names like `pingpong::debug::rc`.
pub fn run(
    workspace: &Workspace,
    suite: Suite,
    filter: &str,
    options: &Options,
    dir: &Path,
    tally: &mut Tally,
) {
    let (kernel, parts) = match suite {
        Suite::RaceKernel => (Kernel::Races, RACE_PARTS),
        _ => (Kernel::Debug, DEBUG_PARTS),
    };
    if suite == Suite::DebugKernel && CHECKPATCH.name.contains(filter) {
        let started = Instant::now();
        let verdict = match checkpatch(workspace, dir) {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        let name = format!("debug-kernel::{}", CHECKPATCH.name);
        tally.add(&name, started.elapsed(), verdict);
    }
    let mut pairs = Pairs::new(workspace, dir, options.checks_packets);
    let mut run = |suite, filter| {
        for job in jobs_of(workspace, suite, filter, kernel, options) {
            job.run(workspace, dir, &mut pairs, tally);
        }
    };
    run(suite, filter);
    for (suite, words) in parts.iter().filter_map(|part| within(part.name, filter)) {
        for known in Suite::all() {
            if known.name() == suite {
                run(known, words);
            }
        }
    }
    pairs.leave();
}

/// The suite and the word of its tests that both a part of a suite and a filter choose; each is a suite, or `suite::word`.
fn within<'a>(part: &'a str, filter: &'a str) -> Option<(&'a str, &'a str)> {
    let (suite, words) = part.split_once("::").unwrap_or((part, ""));
    let (name, word) = filter.split_once("::").unwrap_or((filter, ""));
    if !suite.contains(name) {
        return None;
    }
    // The more special word.
    match (words.contains(word), word.contains(words)) {
        (true, _) => Some((suite, words)),
        (false, true) => Some((suite, word)),
        (false, false) => None,
    }
}

/// Checks the style of the kernel code, the driver's and the test module's, with the script of the kernel that is built:
/// neither errors nor warnings, and no tests of the kernel's version.
fn checkpatch(workspace: &Workspace, dir: &Path) -> Result<()> {
    let base = Base::obtain(workspace, Release::Trixie)?;
    debug_kernel::obtain(workspace, &base, Kernel::Debug)?;
    let script = "cd /mnt && sh tests/guest/scripts/check_kernel_style.sh";
    run_logged(
        "checkpatch",
        &mut base.chroot(workspace.root(), script),
        &dir.join("checkpatch.log"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_chooses_within_the_parts_of_a_suite() {
        assert_eq!(within("odp", ""), Some(("odp", "")));
        assert_eq!(within("odp", "odp::dma"), Some(("odp", "dma")));
        assert_eq!(within("odp", "pingpong"), None);
        let part = "torture::everything_short";
        let chosen = Some(("torture", "everything_short"));
        assert_eq!(within(part, ""), chosen);
        assert_eq!(within(part, "torture::everything"), chosen);
        assert_eq!(within(part, "torture::pinned"), None);
        let narrower = Some(("recover", "fatal_idle"));
        assert_eq!(within("recover::fatal", "recover::fatal_idle"), narrower);
    }

    #[test]
    fn the_parts_of_the_suites_exist() {
        for part in DEBUG_PARTS.iter().chain(RACE_PARTS) {
            let part = part.name;
            let (name, word) = part.split_once("::").unwrap_or((part, ""));
            let suite = Suite::all().into_iter().find(|known| known.name() == name);
            let tests = suite.unwrap().tests();
            assert!(tests.iter().any(|test| test.name.contains(word)), "{part}");
        }
    }
}
