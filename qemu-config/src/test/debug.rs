//! The suite `debug-kernel`: other suites on a kernel that is configured to find errors, and tests that need such a
//! kernel.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use super::job::jobs_of;
use super::pair::Pairs;
use super::suite::{CHECKPATCH, DEBUG_KERNEL, Options, Suite};
use super::tally::{Tally, Verdict};
use crate::command::run_logged;
use crate::debug_kernel;
use crate::host::Release;
use crate::image::{Base, Kernel};
use crate::workspace::Workspace;

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
    let mut pairs = Pairs::new(workspace, dir, options.checks_packets);
    let mut run = |suite, filter| {
        for job in jobs_of(workspace, suite, filter, Kernel::Debug, options) {
            job.run(workspace, dir, &mut pairs, tally);
        }
    };
    run(Suite::DebugKernel, filter);
    let (name, word) = filter.split_once("::").unwrap_or((filter, ""));
    for suite in Suite::all() {
        if DEBUG_KERNEL.contains(&suite.name()) && suite.name().contains(name) {
            run(suite, word);
        }
    }
}

/// Checks the style of the kernel code, the driver's and the test module's, with the script of the kernel that is built:
/// neither errors nor warnings, and no tests of the kernel's version.
fn checkpatch(workspace: &Workspace, dir: &Path) -> Result<()> {
    let base = Base::obtain(workspace, Release::Trixie)?;
    debug_kernel::obtain(workspace, &base)?;
    let script = "cd /mnt && sh tests/guest/scripts/check_kernel_style.sh";
    run_logged(
        "checkpatch",
        &mut base.chroot(workspace.root(), script),
        &dir.join("checkpatch.log"),
    )
}
