//! Kernels that are configured to find errors, built from Debian's source: one with KASAN, lockdep, kmemleak and fault
//! injection, one with KCSAN and lockdep.
//!
//! They become part of the unpacked guest root, as the kernels from packages are. Everything is built in except
//! the driver under test, and consumers of it that tests load and remove.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{run_logged, say};
use crate::host;
use crate::image::{self, Base, IMAGES, Image, Kernel};
use crate::workspace::{Fingerprint, Workspace};

/// Bumped when the way of building changes.
const RECIPE: &str = "3";
/// The configuration, and the lines that replace some of its lines for the kernel that finds data races.
const CONFIG: &str = include_str!("../debug-kernel.config");
const RACES: &str = include_str!("../race-kernel.config");
/// The source of the release's kernel, and packages for its build beyond those of the guest root.
const PACKAGES: [&str; 5] = ["linux-source", "flex", "bison", "bc", "libelf-dev"];

/// Fills `/mnt/out` with a tree to lay over the root.
const BUILD: &str = include_str!("../recipes/build-debug-kernel.sh");

/// The configuration of a kernel that is built here; `None` for one from a package.
pub fn config(kernel: Kernel) -> Option<String> {
    match kernel {
        Kernel::Debug => Some(CONFIG.to_owned()),
        // Of two lines about an option the second one counts.
        Kernel::Races => Some([CONFIG, RACES].concat()),
        Kernel::Stable | Kernel::Backports | Kernel::BookwormBackports | Kernel::Forky => None,
    }
}

/// Makes sure that the root has the kernel, if it is one that is built here.
pub fn obtain(workspace: &Workspace, base: &Base, kernel: Kernel) -> Result<()> {
    let Some(config) = config(kernel) else {
        return Ok(());
    };
    let name = kernel.name();
    let key = Fingerprint::new().text(RECIPE).text(&config).finish();
    let stamp = base.stamp(kernel);
    let is_there = || fs::read_to_string(&stamp).is_ok_and(|found| found == key);
    if is_there() {
        return Ok(());
    }
    let _lock = workspace.lock_cache(name)?;
    if is_there() {
        return Ok(());
    }
    host::require_root(&format!("building the {name} kernel"))?;
    let cache = workspace.cache()?;
    let work = cache.join(format!("{name}-kernel.work"));
    let root = cache.join(format!("{name}-kernel.partial"));
    for dir in [&work, &root] {
        let _ = fs::remove_dir_all(dir);
    }
    fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
    let result = build(base, kernel, &config, &root, &work);
    let _ = fs::remove_dir_all(&root);
    result?;
    let _images = workspace.lock_cache(IMAGES)?;
    overlay(&work.join("out"), &base.root)?;
    // Older images do not have the kernel's lists of built-in modules.
    Image::remove_all(&cache, base)?;
    fs::write(&stamp, key).with_context(|| format!("writing {}", stamp.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
    say(format!("  kernel {name} {}", base.kernel_release(kernel)?));
    Ok(())
}

/// Builds in a copy of the root, so that packages for the build get into no guest.
fn build(base: &Base, kernel: Kernel, config: &str, root: &Path, work: &Path) -> Result<()> {
    let log = work.join("build.log");
    let name = kernel.name();
    say(format!(
        "building the {name} kernel, once (some twenty minutes, needs the network)"
    ));
    image::copy_root(&base.root, root, &log)?;
    let packages = PACKAGES.map(str::to_owned);
    image::install(root, &packages, &log)?;
    fs::write(work.join("config"), config).context("writing the configuration")?;
    run_logged(
        &format!("compiling the {name} kernel"),
        image::chroot(root, Some(work), BUILD).arg(name),
        &log,
    )
}

/// Copies a tree over another, links and modes included.
fn overlay(from: &Path, to: &Path) -> Result<()> {
    let mut from = from.as_os_str().to_owned();
    from.push("/.");
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .context("starting cp")?;
    anyhow::ensure!(
        status.success(),
        "copying a kernel into the guest root failed"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key has the number of the recipe instead of the script, because a rebuild takes twenty minutes: not every change
    /// of the script needs one.
    #[test]
    fn the_recipe_of_the_debug_kernel_is_that_of_its_script() {
        let script = Fingerprint::new().text(BUILD).finish();
        assert_eq!(
            (RECIPE, script.as_str()),
            ("3", "ceae214421b2f54a"),
            "the script has changed: bump RECIPE if the kernel differs, and note both here"
        );
    }
}
