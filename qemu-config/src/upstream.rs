//! Software of others that Debian has as source only.
//!
//! Kernel modules: RTRS with RNBD, SMB Direct of `ksmbd` and `cifs`, and `siw`, which Debian's kernels have switched off. They are not in
//! the index of modules: `lab_insmod` of `qemu-config/guest/lib.sh` loads them. Programs: some of fabtests, the tests of libfabric,
//! whose library the image has; and the server of valkey with its test of RDMA, which Debian's package is built without.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::run_logged;
use crate::debug_kernel;
use crate::driver::{self, copy_tree};
use crate::image::{self, Base, FETCH_SOURCE, Kernel};
use crate::workspace::{Fingerprint, Workspace};

const BUILD_MODULES: &str = include_str!("../recipes/build-upstream-modules.sh");
const BUILD_FABTESTS: &str = include_str!("../recipes/build-fabtests.sh");
const BUILD_VALKEY: &str = include_str!("../recipes/build-valkey.sh");
/// The folder of these modules in that of a kernel's modules.
const FOLDER: &str = "upstream";
/// The programs of fabtests that tests start.
const FABTESTS: &[&str] = &[
    "benchmarks/fi_msg_bw",
    "benchmarks/fi_msg_pingpong",
    "benchmarks/fi_rdm_bw",
    "benchmarks/fi_rdm_pingpong",
    "benchmarks/fi_rdm_tagged_bw",
    "benchmarks/fi_rdm_tagged_pingpong",
    "benchmarks/fi_rma_bw",
    "benchmarks/fi_rma_pingpong",
    "functional/fi_cm_data",
    "functional/fi_cq_data",
    "functional/fi_msg",
    "functional/fi_msg_epoll",
    "functional/fi_rdm",
    "functional/fi_rdm_atomic",
];

/// The modules of a kernel from a package, as a tree to lay over a guest's root; `None` for a kernel that is built here.
pub fn modules(workspace: &Workspace, base: &Base, kernel: Kernel) -> Result<Option<PathBuf>> {
    if debug_kernel::config(kernel).is_some() {
        return Ok(None);
    }
    let key = driver::of_kernel(base, kernel)?
        .text(BUILD_MODULES)
        .finish();
    let name = format!("upstream-modules-{}", kernel.name());
    let overlay = driver::obtain(workspace, &name, &key, |overlay| {
        let release = base.kernel_release(kernel)?;
        let work = new_work(workspace, &name)?;
        let what = format!("further modules of the kernel {}", kernel.name());
        let built = build(base, &work, &what, BUILD_MODULES, &[&release])?;
        let modules = overlay.join("usr/lib/modules").join(&release);
        copy_tree(&built, &modules.join(FOLDER))
    })?;
    Ok(Some(overlay))
}

/// Programs of fabtests, as a tree to lay over a guest's root.
pub fn fabtests(workspace: &Workspace, base: &Base) -> Result<PathBuf> {
    programs(workspace, base, "fabtests", BUILD_FABTESTS, FABTESTS)
}

/// valkey's server and test client, the same.
pub fn valkey(workspace: &Workspace, base: &Base) -> Result<PathBuf> {
    programs(workspace, base, "valkey", BUILD_VALKEY, &[])
}

/// Programs that a script with arguments builds from a source package.
fn programs(
    workspace: &Workspace,
    base: &Base,
    what: &str,
    script: &str,
    arguments: &[&str],
) -> Result<PathBuf> {
    let key = Fingerprint::new().text(script).text(FETCH_SOURCE);
    let key = arguments
        .iter()
        .fold(key, |key, argument| key.text(argument));
    let name = format!("{what}-{}", base.key);
    driver::obtain(workspace, &name, &key.finish(), |overlay| {
        let work = new_work(workspace, &name)?;
        fs::write(work.join("fetch-source"), FETCH_SOURCE).context("writing fetch-source")?;
        let built = build(base, &work, what, script, arguments)?;
        copy_tree(&built, &overlay.join("usr/local/bin"))
    })
}

/// An empty folder.
fn new_work(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let work = workspace.cache()?.join(format!("{name}.work"));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
    Ok(work)
}

/// Runs a script, with arguments, in a copy of the root that has a folder at `/mnt`. Returns the folder that the script has filled.
fn build(
    base: &Base,
    work: &Path,
    what: &str,
    script: &str,
    arguments: &[&str],
) -> Result<PathBuf> {
    run_logged(
        &format!("building {what} (needs the network)"),
        image::chroot_overlay(&base.root, work, script).args(arguments),
        &work.join("build.log"),
    )?;
    Ok(work.join("out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = include_str!("../../tests/guest/scripts/programs_fabtests.sh");

    #[test]
    fn the_programs_that_tests_start_are_built_and_no_others() {
        let commands = SCRIPT.lines().filter(|line| !line.starts_with('#'));
        let words =
            commands.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        let mut started: Vec<&str> = words.filter(|word| word.starts_with("fi_")).collect();
        started.sort();
        started.dedup();
        let mut built: Vec<&str> = FABTESTS
            .iter()
            .filter_map(|program| program.rsplit('/').next())
            .collect();
        built.sort();
        assert_eq!(started, built);
    }
}
