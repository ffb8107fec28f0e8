//! Software of others that Debian has as source only.
//!
//! Kernel modules: RTRS with RNBD, and SMB Direct of `ksmbd` and `cifs`, which Debian's kernels have switched off. They are not in
//! the index of modules: `lab_insmod` of `qemu-config/guest/lib.sh` loads them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::command::run_logged;
use crate::debug_kernel;
use crate::driver::{self, copy_tree};
use crate::image::{self, Base, Kernel};
use crate::workspace::Workspace;

const BUILD_MODULES: &str = include_str!("../recipes/build-upstream-modules.sh");
/// The folder of these modules in that of a kernel's modules.
const FOLDER: &str = "upstream";

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
        let built = build(
            workspace,
            base,
            &name,
            &format!("further modules of the kernel {}", kernel.name()),
            (BUILD_MODULES, &release),
        )?;
        let modules = overlay.join("usr/lib/modules").join(&release);
        copy_tree(&built, &modules.join(FOLDER))
    })?;
    Ok(Some(overlay))
}

/// Runs a script, with an argument, in a copy of the root. Returns the folder that it has filled.
fn build(
    workspace: &Workspace,
    base: &Base,
    name: &str,
    what: &str,
    (script, argument): (&str, &str),
) -> Result<PathBuf> {
    let work = workspace.cache()?.join(format!("{name}.work"));
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
    run_logged(
        &format!("building {what} (needs the network)"),
        image::chroot_overlay(&base.root, &work, script).arg(argument),
        &work.join("build.log"),
    )?;
    Ok(work.join("out"))
}
