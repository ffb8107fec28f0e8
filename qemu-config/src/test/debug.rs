//! The suite `debug-kernel`: other suites on a kernel that looks for mistakes, and what only such a kernel can do.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::jobs_of;
use super::pair::{Pair, Pairs};
use super::suite::{Options, Suite};
use super::tally::{Tally, Verdict};
use crate::command::run_logged;
use crate::debug_kernel;
use crate::image::{Base, Kernel};
use crate::workspace::Workspace;

/// Tests that show nothing here that shorter ones don't, and would take another half hour.
pub const TOO_SLOW: [&str; 3] = ["tcp_1_gib", "everything_other_seed", "everything_many_qps"];

/// The other suites.
pub const SUITES: [&str; 4] = ["pingpong", "odp", "keys", "torture"];

/// Runs the suites whose names contain `filter`, or of one, named `suite::word`, the tests whose names contain the word;
/// they have names like `pingpong::debug::rc`.
pub fn run(workspace: &Workspace, filter: &str, options: &Options, dir: &Path, tally: &mut Tally) {
    if CHECKPATCH.contains(filter) {
        let started = Instant::now();
        let verdict = match checkpatch(workspace, dir) {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        let name = format!("debug-kernel::{CHECKPATCH}");
        tally.add(&name, started.elapsed(), verdict);
    }
    let mut pairs = Pairs::new(workspace, dir, Kernel::Debug);
    let mut run = |suite, filter| {
        for job in jobs_of(workspace, suite, filter, Kernel::Debug, options) {
            job.run(workspace, dir, &mut pairs, tally);
        }
    };
    run(Suite::DebugKernel, filter);
    let (name, word) = filter.split_once("::").unwrap_or((filter, ""));
    for suite in Suite::all() {
        if SUITES.contains(&suite.name()) && suite.name().contains(name) {
            run(suite, word);
        }
    }
}

/// The test of the kernel code's style, the driver's and the test module's, with the script of the kernel that is built.
pub const CHECKPATCH: &str = "checkpatch";

/// Neither errors nor warnings but for comparisons of kernel versions, which a driver outside the tree needs.
fn checkpatch(workspace: &Workspace, dir: &Path) -> Result<()> {
    let base = Base::obtain(workspace)?;
    debug_kernel::obtain(workspace, &base)?;
    let script = "cd /mnt
         set -- guest-driver/kernel/*.[ch] guest-driver/include/*.h tests/guest/kernel/*.[ch]
         found=$(perl /usr/share/faultline-lab/checkpatch.pl --strict --no-tree \
              --ignore LINUX_VERSION_CODE,CONSTANT_COMPARISON --file \"$@\" || true)
         echo \"$found\"
         # Each file has been looked at.
         [ \"$(echo \"$found\" | grep -Ec ' has (no obvious )?style problems')\" = $# ]
         ! echo \"$found\" | grep -E '^(ERROR|WARNING):'";
    run_logged(
        "checkpatch",
        &mut base.chroot(workspace.root(), script),
        &dir.join("checkpatch.log"),
    )
}

/// Asks the debug kernels of a pair what has leaked, as a test of its own.
pub fn look_for_leaks(pair: &mut Pair, prefix: &str, tally: &mut Tally) {
    let started = Instant::now();
    let mut found = String::new();
    for guest in &pair.cluster.guests {
        match guest.run("look_for_leaks", Duration::from_secs(300)) {
            Ok(outcome) if outcome.success() => found.push_str(&outcome.text()),
            Ok(outcome) => found.push_str(&format!("kmemleak: {}", outcome.describe())),
            Err(error) => found.push_str(&format!("{error:#}")),
        }
    }
    found.push_str(&pair.troubles().join("\n"));
    let verdict = match found.is_empty() {
        true => Verdict::Passed,
        false => Verdict::Failed(found),
    };
    tally.add(&format!("{prefix}::leaks"), started.elapsed(), verdict);
}
