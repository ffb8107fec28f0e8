//! Building the guest's driver: kernel module and libibverbs provider, natively inside the unpacked guest root. They do not depend
//! on each other, and are built at the same time.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::{run_logged, say};
use crate::host;
use crate::image::{Base, FETCH_SOURCE, Kernel, STALE, version_in};
use crate::workspace::{Fingerprint, Workspace, files_below};

/// Bumped when the way of building changes. The scripts are part of the keys themselves.
const RECIPE: &str = "7";
const BUILD_MODULES: &str = include_str!("../recipes/build-modules.sh");
const MODULE_FACTS: &str = include_str!("../recipes/module-facts.sh");
const INDEX_MODULES: &str = include_str!("../recipes/index-modules.sh");
const CONFIGURE_RDMA_CORE: &str = include_str!("../recipes/configure-rdma-core.sh");
const BUILD_PROVIDER: &str = include_str!("../recipes/build-provider.sh");
const BUILD_STATIC_PROVIDER: &str = include_str!("../recipes/build-static-provider.sh");
const TEST_PROVIDER: &str = include_str!("../recipes/test-provider.sh");
/// The script of the driver that finds out the declarations of a kernel; modules of tests use it too.
const PROBE: &str = "compat_probe.sh";
/// Name of the module, the provider and its driver file.
const NAME: &str = "faultline";
/// The step in which the module is built for a kernel; the kernel's name follows.
pub const BUILDING: &str = "building faultline.ko for the kernel ";
/// The part of the cache with the source of rdma-core, in which the provider is built.
const RDMA_CORE: &str = "rdma-core";
/// Debian's folder of libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Version of the provider as a library that programs link with.
const SOVERSION: u32 = 1;

/// Warnings of the compiler in addition to the kernel's `W=1`. The headers of the kernel compare signed with unsigned numbers
/// and have parameters without use, as do callbacks.
pub const WARNINGS: &str = "-Wall -Wextra -Wno-unused-parameter -Wno-sign-compare";

/// The built module for one kernel, with the index that makes `modprobe` and udev know it, as a tree to lay over a guest's root.
#[derive(Debug, Clone)]
pub struct Driver {
    /// The tree.
    pub overlay: PathBuf,
}

impl Driver {
    /// The module for `kernel`, built if its sources have changed.
    pub fn obtain(workspace: &Workspace, base: &Base, kernel: Kernel) -> Result<Self> {
        let source = workspace.guest_driver();
        let key = of_kernel(base, kernel)?
            .text(INDEX_MODULES)
            .tree(&source.join("kernel"))?
            .tree(&source.join("include"))?
            .finish();
        let name = format!("driver-{}", kernel.name());
        let overlay = obtain(workspace, &name, &key, |overlay| {
            build_module(workspace, base, kernel, overlay)
        })?;
        Ok(Self { overlay })
    }
}

/// The modules of `tests/guest/kernel`, which only tests load, by path: they are not in the index.
#[derive(Debug, Clone)]
pub struct TestModules {
    /// The tree to lay over a guest's root.
    pub overlay: PathBuf,
}

impl TestModules {
    /// The modules for `kernel`, built if their sources have changed.
    pub fn obtain(workspace: &Workspace, base: &Base, kernel: Kernel) -> Result<Self> {
        let probe = workspace.guest_driver().join("kernel").join(PROBE);
        let key = of_kernel(base, kernel)?
            .tree(&test_modules(workspace))?
            .file(&probe)?
            .finish();
        let name = format!("test-modules-{}", kernel.name());
        let overlay = obtain(workspace, &name, &key, |overlay| {
            let work = workspace.cache()?.join(format!("{name}.work"));
            let _ = fs::remove_dir_all(&work);
            copy_tree(&test_modules(workspace), &work.join("test"))?;
            fs::create_dir_all(work.join("kernel"))?;
            fs::copy(&probe, work.join("kernel").join(PROBE)).context("copying the probe")?;
            let release = base.kernel_release(kernel)?;
            run_logged(
                &format!("building modules of tests for the kernel {}", kernel.name()),
                base.chroot(&work, BUILD_MODULES)
                    .args([&release, "test", &flags()]),
                &work.join("build.log"),
            )?;
            let target = overlay.join("usr/lib/modules").join(&release);
            fs::create_dir_all(&target)
                .with_context(|| format!("creating {}", target.display()))?;
            for file in files_below(&work.join("test"))? {
                let name = file.file_name().unwrap_or_default();
                if file.extension().is_some_and(|extension| extension == "ko") {
                    fs::copy(&file, target.join(name))
                        .with_context(|| format!("copying {}", file.display()))?;
                }
            }
            Ok(())
        })?;
        Ok(Self { overlay })
    }
}

/// The built libibverbs provider, as a tree to lay over a guest's root. It is for the root's rdma-core, so it serves all kernels.
#[derive(Debug, Clone)]
pub struct Provider {
    /// The tree.
    pub overlay: PathBuf,
}

impl Provider {
    /// The provider, built if its sources have changed.
    pub fn obtain(workspace: &Workspace, base: &Base) -> Result<Self> {
        let source = workspace.guest_driver();
        let key = Fingerprint::new()
            .text(RECIPE)
            .text(FETCH_SOURCE)
            .text(CONFIGURE_RDMA_CORE)
            .text(BUILD_PROVIDER)
            .tree(&source.join("provider"))?
            .tree(&source.join("include"))?
            .finish();
        let name = format!("provider-{}", base.key);
        let overlay = obtain(workspace, &name, &key, |overlay| {
            build_provider(workspace, base, overlay)
        })?;
        Ok(Self { overlay })
    }

    /// Copies its header and library into the folders `include` and `lib` of a folder, to compile programs with.
    pub fn copy(&self, to: &Path) -> Result<()> {
        copy_tree(&self.overlay.join("usr/include"), &to.join("include"))?;
        let library = format!("lib{NAME}.so");
        copy_tree(&self.overlay.join(LIBRARIES), &to.join("lib"))?;
        symlink(
            format!("{library}.{SOVERSION}"),
            to.join("lib").join(library),
        )
        .context("linking the library")
    }
}

/// The beginning of the key of modules for a kernel.
pub fn of_kernel(base: &Base, kernel: Kernel) -> Result<Fingerprint> {
    Ok(Fingerprint::new()
        .text(RECIPE)
        .text(BUILD_MODULES)
        .text(&flags())
        .text(&base.kernel_key(kernel))
        .text(&base.kernel_release(kernel)?))
}

/// The variable of make with the compiler's options for modules. Debug information is not kept, but kbuild makes BTF of it.
fn flags() -> String {
    format!("KCFLAGS={WARNINGS}")
}

/// A folder of the cache that `make` fills if there is none with this key. Folders with other keys are removed.
pub fn obtain(
    workspace: &Workspace,
    name: &str,
    key: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = workspace.cache()?;
    let folder = cache.join(format!("{name}-{key}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    let _lock = workspace.lock_cache(name)?;
    if folder.is_dir() {
        return Ok(folder);
    }
    host::require_root(&format!("building {name}"))?;
    let partial = cache.join(format!("{name}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).with_context(|| format!("creating {}", partial.display()))?;
    make(&partial)?;
    remove_others(&cache, &format!("{name}-"))?;
    fs::rename(&partial, &folder).with_context(|| format!("renaming {}", partial.display()))?;
    Ok(folder)
}

/// Removes the cache's entries that begin with `prefix`, except young ones: a lab that runs from other sources may need
/// them, and the two would delete and rebuild each other's entries in turns.
pub fn remove_others(cache: &Path, prefix: &str) -> Result<()> {
    remove_older(cache, prefix, STALE)
}

fn remove_older(cache: &Path, prefix: &str, least: Duration) -> Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = matches!(modified.map(|time| time.elapsed()), Ok(Ok(age)) if age >= least);
        if is_old && name.starts_with(prefix) {
            let path = entry.path();
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
    Ok(())
}

/// Copies a tree, keeping modification times so that incremental builds recognize unchanged files.
pub fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for (file, target) in copy_tree_anew(from, to)? {
        let modified = fs::metadata(&file)?.modified()?;
        fs::File::options()
            .write(true)
            .open(&target)?
            .set_modified(modified)?;
    }
    Ok(())
}

/// Copies those files of a tree that the target does not have, or has differently.
fn copy_changed(from: &Path, to: &Path) -> Result<()> {
    for file in files_below(from)? {
        let target = to.join(file.strip_prefix(from).unwrap_or(&file));
        let content = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        if fs::read(&target).is_ok_and(|present| present == content) {
            continue;
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        fs::write(&target, content).with_context(|| format!("writing {}", target.display()))?;
    }
    Ok(())
}

/// Copies a tree as new files. Returns each file and its copy.
fn copy_tree_anew(from: &Path, to: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut copies = Vec::new();
    for file in files_below(from)? {
        let target = to.join(file.strip_prefix(from).unwrap_or(&file));
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        fs::copy(&file, &target).with_context(|| format!("copying {}", file.display()))?;
        copies.push((file, target));
    }
    Ok(copies)
}

/// The folder in which the module for a kernel is built.
pub fn module_folder(workspace: &Workspace, kernel: Kernel) -> Result<PathBuf> {
    Ok(workspace.cache()?.join(format!("module-{}", kernel.name())))
}

/// The sources of modules that only tests load.
fn test_modules(workspace: &Workspace) -> PathBuf {
    workspace.root().join("tests/guest/kernel")
}

/// Builds `faultline.ko` and the module index.
///
/// The sources are copied first: kbuild writes beside them, and the objects of two kernels must be separate.
fn build_module(workspace: &Workspace, base: &Base, kernel: Kernel, overlay: &Path) -> Result<()> {
    let release = base.kernel_release(kernel)?;
    let source = workspace.guest_driver();
    let work = module_folder(workspace, kernel)?;
    let _ = fs::remove_dir_all(&work);
    copy_tree(&source.join("kernel"), &work.join("kernel"))?;
    copy_tree(&source.join("include"), &work.join("include"))?;
    let log = work.join("build.log");
    run_logged(
        &format!("{BUILDING}{}", kernel.name()),
        base.chroot(&work, BUILD_MODULES)
            .args([&release, "kernel", &flags()]),
        &log,
    )?;
    let warnings = warnings(&fs::read_to_string(&log).unwrap_or_default());
    if !warnings.is_empty() {
        say(format!(
            "{} warnings while building {NAME}.ko (log: {}):",
            warnings.len(),
            log.display()
        ));
        for warning in warnings.iter().take(20) {
            say(format!("  {warning}"));
        }
    }
    let index = module_index(workspace, base, kernel, &work)?;
    let target = overlay.join("usr/lib/modules").join(&release);
    fs::create_dir_all(target.join("updates"))
        .with_context(|| format!("creating {}", target.display()))?;
    let module = format!("{NAME}.ko");
    fs::copy(
        work.join("kernel").join(&module),
        target.join("updates").join(&module),
    )
    .context("copying the module")?;
    copy_tree(&index, &target)
}

/// Builds all modules for a kernel once more, as a check: with the kernel's own additional warnings (`W=1`), and with sparse.
/// Returns the warnings.
pub fn module_warnings(workspace: &Workspace, base: &Base, kernel: Kernel) -> Result<String> {
    let source = workspace.guest_driver();
    let parts = [
        (source.join("kernel"), "kernel"),
        (source.join("include"), "include"),
        (test_modules(workspace), "test"),
    ];
    let mut key = of_kernel(base, kernel)?;
    for (from, _) in &parts {
        key = key.tree(from)?;
    }
    let name = format!("module-check-{}", kernel.name());
    let folder = obtain(workspace, &name, &key.finish(), |folder| {
        for (from, to) in &parts {
            copy_tree(from, &folder.join(to))?;
        }
        let release = base.kernel_release(kernel)?;
        // sparse of this release can't read the headers of newer kernels.
        let check = if kernel == Kernel::Stable { "1" } else { "0" };
        for part in ["kernel", "test"] {
            run_logged(
                &format!(
                    "checking the modules in {part} for the kernel {}",
                    kernel.name()
                ),
                base.chroot(folder, BUILD_MODULES)
                    .args([&release, part, &flags(), "W=1"])
                    .arg(format!("C={check}")),
                &folder.join("build.log"),
            )?;
        }
        Ok(())
    })?;
    let log = fs::read_to_string(folder.join("build.log")).context("reading a log")?;
    Ok(warnings(&log).join("\n"))
}

/// Builds the module in a folder, with another text in one of its files.
pub fn changed_module(
    workspace: &Workspace,
    base: &Base,
    kernel: Kernel,
    (file, text, other): (&str, &str, &str),
    dir: &Path,
) -> Result<PathBuf> {
    let release = base.kernel_release(kernel)?;
    let work = dir.join("changed-module");
    // The objects of the last build are used again, if there are any.
    let built = module_folder(workspace, kernel)?;
    if built.is_dir() {
        copy_tree(&built, &work)?;
    }
    for (from, to) in [
        (workspace.guest_driver().join("kernel"), "kernel"),
        (workspace.guest_driver().join("include"), "include"),
    ] {
        copy_changed(&from, &work.join(to))?;
    }
    let path = work.join("kernel").join(file);
    let source =
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let changed = source.replace(text, other);
    if changed == source {
        bail!("{file} has no {text:?}");
    }
    fs::write(&path, changed).with_context(|| format!("writing {}", path.display()))?;
    run_logged(
        &format!("building {NAME}.ko with {text} = {other}"),
        base.chroot(&work, BUILD_MODULES)
            .args([&release, "kernel", &flags()]),
        &work.join("build.log"),
    )?;
    Ok(work.join(format!("kernel/{NAME}.ko")))
}

/// The files by which `modprobe` and udev find modules, with this module among them. They are created only if the facts
/// about the module have changed, because depmod over all modules takes seconds here and far longer in a guest.
fn module_index(
    workspace: &Workspace,
    base: &Base,
    kernel: Kernel,
    work: &Path,
) -> Result<PathBuf> {
    let release = base.kernel_release(kernel)?;
    let log = work.join("build.log");
    let module = format!("/mnt/kernel/{NAME}.ko");
    let about = crate::command::capture(base.chroot(work, MODULE_FACTS).arg(&module))
        .context("reading the module's facts")?;
    let key = Fingerprint::new()
        .text(RECIPE)
        .text(INDEX_MODULES)
        .text(&base.kernel_key(kernel))
        .text(&release)
        .text(&about)
        .finish();
    let cache = workspace.cache()?;
    let index = cache.join(format!("module-index-{}-{key}", kernel.name()));
    if index.is_dir() {
        return Ok(index);
    }
    let modules = format!("usr/lib/modules/{release}");
    run_logged(
        "indexing modules",
        base.chroot(work, INDEX_MODULES).args([&release, &module]),
        &log,
    )?;
    remove_others(&cache, &format!("module-index-{}-", kernel.name()))?;
    let partial = cache.join(format!("module-index-{}.partial", kernel.name()));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).with_context(|| format!("creating {}", partial.display()))?;
    for entry in fs::read_dir(work.join("tree").join(&modules))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Only the output of depmod; modules.order and modules.builtin are the kernel's own.
        if entry.file_type()?.is_file() && !name.contains("builtin") && name != "modules.order" {
            fs::copy(entry.path(), partial.join(&name))
                .with_context(|| format!("copying {name}"))?;
        }
    }
    fs::rename(&partial, &index).with_context(|| format!("renaming {}", partial.display()))?;
    Ok(index)
}

/// Warnings of the compiler and of modpost, and errors of sparse (after which make continues), in a build log.
fn warnings(log: &str) -> Vec<String> {
    log.lines()
        .filter(|line| {
            ["warning:", "WARNING:", " error:"]
                .iter()
                .any(|word| line.contains(word))
        })
        .map(str::to_owned)
        .collect()
}

/// Builds and runs the provider's own test, which simulates kernel and device, so it needs no guest.
pub fn test_provider(workspace: &Workspace, base: &Base) -> Result<()> {
    let _lock = workspace.lock_cache(RDMA_CORE)?;
    let work = prepare_tree(workspace, base)?;
    run_logged(
        "testing the libibverbs provider",
        base.chroot(&work, TEST_PROVIDER).arg(NAME),
        &work.join("test.log"),
    )
}

/// The source tree of the guest's exact rdma-core release with the provider in it, configured: the ABI between
/// libibverbs and its providers is private to a release, and its headers are not installed. Returns the folder that
/// holds `source` and `build`.
pub fn provider_tree(workspace: &Workspace, base: &Base) -> Result<PathBuf> {
    let _lock = workspace.lock_cache(RDMA_CORE)?;
    prepare_tree(workspace, base)
}

/// Does the same while the lock is held.
fn prepare_tree(workspace: &Workspace, base: &Base) -> Result<PathBuf> {
    let status = fs::read_to_string(base.root.join("var/lib/dpkg/status"))
        .context("reading dpkg's status")?;
    let version =
        version_in(&status, "libibverbs1").context("the guest root has no libibverbs1")?;
    let recipe = Fingerprint::new()
        .text(FETCH_SOURCE)
        .text(CONFIGURE_RDMA_CORE)
        .finish();
    let cache = workspace.cache()?;
    let work = cache.join(format!(
        "rdma-core-{}-{}-{recipe}",
        base.key,
        version.replace('/', "_")
    ));
    if !work.exists() {
        remove_others(&cache, &format!("rdma-core-{}-", base.key))?;
    }
    let log = work.join("build.log");
    fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
    let tree = work.join("source");
    if !tree.join("CMakeLists.txt").is_file() {
        run_logged(
            &format!("fetching rdma-core {version}"),
            base.chroot(&work, FETCH_SOURCE)
                .args([&format!("rdma-core={version}"), "/mnt"]),
            &log,
        )
        .context(
            "could not fetch rdma-core's source from the Debian mirror; check that this host has a network",
        )?;
    }
    let target = tree.join("providers").join(NAME);
    let parts = ["provider", "include"].map(|part| workspace.guest_driver().join(part));
    let mut same = true;
    for part in &parts {
        for file in files_below(part)? {
            let copy = target.join(file.strip_prefix(part).unwrap_or(&file));
            same &= fs::read(copy).is_ok_and(|copy| fs::read(&file).is_ok_and(|file| file == copy));
        }
    }
    // Several worktrees may share the cache, and a source of another one need not be newer than the object that was made
    // of this one's. So sources that differ are copied as new files.
    if !same {
        let _ = fs::remove_dir_all(&target);
        for part in &parts {
            copy_tree_anew(part, &target)?;
        }
    }
    register_provider(&tree.join("CMakeLists.txt"))?;
    run_logged(
        "configuring rdma-core",
        &mut base.chroot(&work, CONFIGURE_RDMA_CORE),
        &log,
    )?;
    Ok(work)
}

/// The headers that declare verbs: of the guests' rdma-core, installed ones and the one for providers, and of both kernels.
pub fn verbs_headers(workspace: &Workspace, base: &Base) -> Result<Vec<PathBuf>> {
    let installed = base.root.join("usr/include/infiniband");
    let source = provider_tree(workspace, base)?.join("source");
    let mut headers = vec![
        installed.join("verbs.h"),
        installed.join("ib_user_ioctl_verbs.h"),
        source.join("libibverbs/driver.h"),
    ];
    for kernel in Kernel::BOTH {
        let release = base.kernel_release(kernel)?;
        // Debian keeps files that do not depend on the architecture in a separate folder.
        let version = release.strip_suffix("-amd64").unwrap_or(&release);
        headers.push(base.root.join(format!(
            "usr/src/linux-headers-{version}-common/include/rdma/ib_verbs.h"
        )));
    }
    Ok(headers)
}

fn build_provider(workspace: &Workspace, base: &Base, overlay: &Path) -> Result<()> {
    let libraries = overlay.join(LIBRARIES);
    let plugin = install_provider(workspace, base, &overlay.join("usr/include"), &libraries)?;
    let plugins = libraries.join("libibverbs");
    fs::create_dir_all(&plugins).with_context(|| format!("creating {}", plugins.display()))?;
    // A link, because a program that links with the library must get the same one as the plugin, not a copy.
    symlink(format!("../lib{NAME}.so.{SOVERSION}"), plugins.join(plugin))
        .context("linking the plugin")?;
    let drivers = overlay.join("etc/libibverbs.d");
    fs::create_dir_all(&drivers).with_context(|| format!("creating {}", drivers.display()))?;
    fs::write(
        drivers.join(format!("{NAME}.driver")),
        format!("driver {NAME}\n"),
    )
    .context("writing the driver file")
}

/// Builds the provider, and copies it, as a library to link with, and its header into these folders. Returns the file name
/// under which libibverbs loads it as a plugin.
pub fn install_provider(
    workspace: &Workspace,
    base: &Base,
    headers: &Path,
    libraries: &Path,
) -> Result<String> {
    let _lock = workspace.lock_cache(RDMA_CORE)?;
    let work = prepare_tree(workspace, base)?;
    run_logged(
        "building the libibverbs provider",
        base.chroot(&work, BUILD_PROVIDER)
            .args([NAME, &SOVERSION.to_string()]),
        &work.join("build.log"),
    )?;
    let library = format!("lib{NAME}.so.{SOVERSION}");
    let header = format!("{NAME}dv.h");
    let headers = headers.join("infiniband");
    for folder in [&headers, libraries] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::copy(work.join("out").join(&library), libraries.join(&library))
        .with_context(|| format!("copying {library}"))?;
    symlink(&library, libraries.join(format!("lib{NAME}.so"))).context("linking the library")?;
    fs::copy(
        workspace.guest_driver().join("provider").join(&header),
        headers.join(&header),
    )
    .with_context(|| format!("copying {header}"))?;
    let plugin =
        fs::read_to_string(work.join("out/plugin")).context("reading the plugin's name")?;
    Ok(plugin.trim().to_owned())
}

/// Builds the provider as a static library for the `libibverbs.a` of the guest root. To be called after [`install_provider`]. Returns the
/// library.
pub fn build_static_provider(workspace: &Workspace, base: &Base) -> Result<PathBuf> {
    let _lock = workspace.lock_cache(RDMA_CORE)?;
    let work = prepare_tree(workspace, base)?;
    run_logged(
        "building the provider as a static library",
        base.chroot(&work, BUILD_STATIC_PROVIDER).arg(NAME),
        &work.join("build.log"),
    )?;
    Ok(work.join(format!("out/lib{NAME}.a")))
}

/// Adds the provider to rdma-core's list, once.
fn register_provider(cmake: &Path) -> Result<()> {
    let text = fs::read_to_string(cmake).with_context(|| format!("reading {}", cmake.display()))?;
    let Some(changed) = with_provider(&text) else {
        return Ok(());
    };
    fs::write(cmake, changed).with_context(|| format!("writing {}", cmake.display()))
}

/// `CMakeLists.txt` with the provider in its list, or `None` if the list has it already.
fn with_provider(text: &str) -> Option<String> {
    let wanted = format!("add_subdirectory(providers/{NAME})");
    if text.contains(&wanted) {
        return None;
    }
    let anchor = text.lines().find(|line| {
        line.trim_start()
            .starts_with("add_subdirectory(providers/rxe)")
    });
    Some(match anchor {
        Some(anchor) => text.replacen(anchor, &format!("{anchor}\n{wanted}"), 1),
        None => format!("{text}\n{wanted}\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_entries_of_the_cache_stay() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["programs-a", "driver-a"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_others(dir.path(), "programs-").unwrap();
        assert!(dir.path().join("programs-a").exists());
        remove_older(dir.path(), "programs-", Duration::ZERO).unwrap();
        assert!(!dir.path().join("programs-a").exists());
        assert!(dir.path().join("driver-a").exists());
    }

    #[test]
    fn the_provider_is_registered_once() {
        let text = "add_subdirectory(providers/mlx5)\nadd_subdirectory(providers/rxe)\nadd_subdirectory(x)\n";
        let once = with_provider(text).unwrap();
        assert!(once.contains(
            "(providers/rxe)\nadd_subdirectory(providers/faultline)\nadd_subdirectory(x)"
        ));
        assert_eq!(with_provider(&once), None);
        assert!(
            with_provider("nothing")
                .unwrap()
                .ends_with("add_subdirectory(providers/faultline)\n")
        );
    }

    #[test]
    fn warnings_are_found_in_a_log() {
        let log = "a.c:3:1: warning: unused variable\nCC x.o\nWARNING: modpost: missing MODULE_DESCRIPTION()\n\
                   b.c:4:2: error: undefined identifier 'x'\nLD [M]  error.ko\n";
        assert_eq!(warnings(log).len(), 3);
    }

    #[test]
    fn copies_keep_their_times() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("sub")).unwrap();
        fs::write(from.join("sub/file"), "x").unwrap();
        let early = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        fs::File::options()
            .write(true)
            .open(from.join("sub/file"))
            .unwrap()
            .set_modified(early)
            .unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(
            fs::metadata(to.join("sub/file"))
                .unwrap()
                .modified()
                .unwrap(),
            early
        );
    }
}
