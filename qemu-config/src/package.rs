//! `cargo lab package`: Debian packages of the emulator and of the guest's driver, and an archive for other distributions.
//!
//! The programs are built as for the lab's guests, and packed by Debian's tools in a copy of the guest root. Nothing is signed, and no
//! source package is made: the emulator's crates are not in the Debian archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{capture, run_logged, say};
use crate::driver::{WARNINGS, build_static_provider, copy_tree, install_provider, remove_others};
use crate::emulator::{self, Profile};
use crate::host::{self, Release};
use crate::image::{self, Base, version_in};
use crate::series::{self, Series};
use crate::workspace::{Fingerprint, Workspace};

const BUILD: &str = include_str!("../recipes/build-packages.sh");

const BOOT_WITH_LIBVIRT: &str = include_str!("../recipes/boot-with-libvirt.sh");
const CHECK_HOST_PACKAGE: &str = include_str!("../recipes/check-host-package.sh");
const CHECK_KERNEL_UPDATE: &str = include_str!("../recipes/check-kernel-update.sh");
const CHECK_KERNEL_SERIES: &str = include_str!("../recipes/check-kernel-series.sh");
const CHECK_MANUAL: &str = include_str!("../recipes/check-manual.sh");
const CHECK_RDMA_CORE_SERIES: &str = include_str!("../recipes/check-rdma-core-series.sh");
const CHECK_TARBALL: &str = include_str!("../recipes/check-tarball.sh");
const CHECK_UNITS: &str = include_str!("../recipes/check-units.sh");
const LIST_FILES: &str = include_str!("../recipes/list-files.sh");
const SERVE: &str = include_str!("../recipes/serve-from-package.sh");
const MAKE_BARE_DISK: &str = include_str!("../recipes/make-bare-disk.sh");
const MAKE_LIBVIRT_DISK: &str = include_str!("../recipes/make-libvirt-disk.sh");
const MAKE_STOCK_DISK: &str = include_str!("../recipes/make-stock-disk.sh");
const PACK_DISK: &str = include_str!("../recipes/pack-disk.sh");

/// Ten times the largest exposure of a unit in `systemd-analyze security`.
const MOST_EXPOSURE: &str = "20";
/// The packages.
const NAMES: &[&str] = &[
    "faultline",
    "faultline-dkms",
    "faultline-ibverbs-provider",
    "libfaultline-dev",
    "libfaultline1",
];
/// Size in MiB of a disk on which they are installed. It is sparse.
const DISK_SIZE: u32 = 6144;

/// Packages with which the lab builds the packages, checks them, and lets a guest boot and install them.
const TOOLS: &[&str] = &[
    "apparmor",
    "chrpath",
    "debhelper",
    "dh-apparmor",
    "dh-dkms",
    "dkms",
    "e2fsprogs",
    "fish",
    "libvirt-common",
    "libxml2-utils",
    "lintian",
    "man-db",
    "systemd-sysv",
    "zsh",
];

/// The folder of the packages, below `target`.
const FOLDER: &str = "packages";

/// Packages that were made.
#[derive(Debug, Clone)]
pub struct Packages {
    /// The root in which they were made.
    pub root: PathBuf,
    /// The folder that holds them.
    pub folder: PathBuf,
    /// The packages, sorted by name.
    pub files: Vec<PathBuf>,
    /// The archive for other distributions.
    pub tarball: PathBuf,
}

impl Packages {
    /// The file of a package.
    pub fn file(&self, package: &str) -> Result<&Path> {
        let prefix = format!("{package}_");
        let is_named = |file: &&PathBuf| {
            let name = file.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(&prefix)
        };
        let file = self.files.iter().find(is_named);
        file.map(PathBuf::as_path)
            .with_context(|| format!("there is no package {package}"))
    }
}

/// Checks of packages, each in an overlay of their root, with its output in a log.
impl Packages {
    /// lintian reports neither errors nor warnings.
    pub fn lint(&self, log: &Path) -> Result<()> {
        // Information is in the log.
        let script =
            r#"cd "$1" && lintian --info --display-info --fail-on error,warning *.changes"#;
        self.check("lintian", &self.folder, script, &["/mnt"], log)
    }

    /// systemd accepts the units and finds them hardened; the AppArmor profile, the completions and libvirt's example are valid.
    pub fn check_units(&self, work: &Path, log: &Path) -> Result<()> {
        let tree = self.unpack("faultline", work)?;
        let arguments = [tree.as_str(), MOST_EXPOSURE];
        self.check("units", work, CHECK_UNITS, &arguments, log)
    }

    /// Manual pages have no warnings.
    pub fn check_manual(&self, work: &Path, log: &Path) -> Result<()> {
        for package in NAMES {
            self.unpack(package, work)?;
        }
        self.check("manual pages", work, CHECK_MANUAL, &["/mnt"], log)
    }

    /// The host's package is installed, serves NICs to its group, explains mistakes, and leaves nothing when it is
    /// removed.
    pub fn check_host_package(&self, log: &Path) -> Result<()> {
        let file = self.file("faultline")?;
        let file = in_root(file);
        let arguments = [file.as_str(), LIST_FILES];
        let name = "the package of the host";
        self.check(name, &self.folder, CHECK_HOST_PACKAGE, &arguments, log)
    }

    /// The archive installs the same files as the packages. `rdma_core` is their source.
    pub fn check_tarball(
        &self,
        rdma_core: &Path,
        release: &str,
        work: &Path,
        log: &Path,
    ) -> Result<()> {
        for package in NAMES {
            self.unpack(package, work)?;
        }
        copy_tree(rdma_core, &work.join("rdma-core"))?;
        let file = in_root(&self.tarball);
        let to = work.join(self.tarball.file_name().unwrap_or_default());
        fs::copy(&self.tarball, to).context("copying the archive")?;
        let arguments = [file.as_str(), release];
        self.check("the archive", work, CHECK_TARBALL, &arguments, log)
    }

    /// DKMS builds the module for one kernel, and for others when their headers are installed.
    pub fn check_kernel_update(&self, release: &str, log: &Path) -> Result<()> {
        let file = in_root(self.file("faultline-dkms")?);
        let arguments = [release, file.as_str()];
        let name = "an update of the kernel";
        self.check(name, &self.folder, CHECK_KERNEL_UPDATE, &arguments, log)
    }

    /// Makes a disk on which the packages are installed, in a folder, with the module for one kernel. They leave nothing when they
    /// are removed.
    pub fn stock_disk(&self, release: &str, work: &Path, log: &Path) -> Result<PathBuf> {
        let mut arguments = vec![
            DISK_SIZE.to_string(),
            release.to_owned(),
            LIST_FILES.to_owned(),
            PACK_DISK.to_owned(),
        ];
        for package in NAMES {
            let file = self.file(package)?;
            let name = file.file_name().unwrap_or_default();
            fs::copy(file, work.join(name)).with_context(|| format!("copying {package}"))?;
            arguments.push(in_root(file));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let name = "installing the packages";
        self.check(name, work, MAKE_STOCK_DISK, &arguments, log)?;
        Ok(work.join("disk"))
    }

    /// Both series of patches apply and build. `work` is an empty folder.
    pub fn check_series(
        &self,
        series: &Series,
        release: &str,
        work: &Path,
        log: &Path,
    ) -> Result<()> {
        copy_tree(&series.kernel, &work.join("linux"))?;
        copy_tree(&series.rdma_core, &work.join("rdma-core"))?;
        let source = work.join("source");
        fs::create_dir(&source).with_context(|| format!("creating {}", source.display()))?;
        series::unpack(&series.tarball, &source)?;
        let arguments = [release, WARNINGS];
        let (kernel, rdma_core) = ("patches for the kernel", "patches for rdma-core");
        self.check(kernel, work, CHECK_KERNEL_SERIES, &arguments, log)?;
        self.check(rdma_core, work, CHECK_RDMA_CORE_SERIES, &[], log)
    }

    /// Makes a disk without the packages, in a folder, with the headers of one kernel. Those of others are below `/root/headers`.
    pub fn bare_disk(&self, release: &str, work: &Path, log: &Path) -> Result<PathBuf> {
        let size = DISK_SIZE.to_string();
        let arguments = [&size, release, PACK_DISK];
        self.check("packing a disk", work, MAKE_BARE_DISK, &arguments, log)?;
        Ok(work.join("disk"))
    }

    /// A command that installs the host's package in an overlay of the root by a command of a user, and serves its NICs. `work` is a folder
    /// with the package; it gets the sockets.
    pub fn serve(&self, work: &Path, install: &str) -> Command {
        let mut command = image::chroot_overlay(&self.root, work, SERVE);
        command.arg(install);
        command
    }

    /// Makes a disk, in an empty folder, on which the host's package and libvirt are installed.
    pub fn libvirt_disk(&self, work: &Path, log: &Path) -> Result<PathBuf> {
        let file = self.file("faultline")?;
        let to = work.join(file.file_name().unwrap_or_default());
        fs::copy(file, to).context("copying the package of the host")?;
        let size = DISK_SIZE.to_string();
        let name = "installing libvirt";
        self.check(name, work, MAKE_LIBVIRT_DISK, &[&size, PACK_DISK], log)?;
        Ok(work.join("disk"))
    }

    /// Two machines of libvirt send through the NICs of the host's package. `work` is a folder with the packages, a disk, a kernel and an
    /// initial file system; it gets the folder `logs`.
    pub fn boot_with_libvirt(&self, cmdline: &str, work: &Path, log: &Path) -> Result<()> {
        let name = "virtual machines of libvirt";
        self.check(name, work, BOOT_WITH_LIBVIRT, &[SERVE, cmdline], log)
    }

    /// Unpacks a package below a folder. Returns its path in the root in which the folder is mounted.
    fn unpack(&self, package: &str, work: &Path) -> Result<String> {
        let mut command = Command::new("dpkg-deb");
        command
            .arg("-x")
            .arg(self.file(package)?)
            .arg(work.join(package));
        capture(&mut command)?;
        Ok(format!("/mnt/{package}"))
    }

    fn check(
        &self,
        name: &str,
        work: &Path,
        script: &str,
        arguments: &[&str],
        log: &Path,
    ) -> Result<()> {
        let mut command = image::chroot_overlay(&self.root, work, script);
        run_logged(name, command.args(arguments), log)
    }
}

/// The path of a file in a root in which its folder is mounted.
fn in_root(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    format!("/mnt/{}", name.to_string_lossy())
}

/// Makes the packages and prints their names.
pub fn run(workspace: &Workspace, profile: Profile) -> Result<()> {
    let packages = make(workspace, profile)?;
    for file in packages.files.iter().chain([&packages.tarball]) {
        println!("{}", workspace.shown(file));
    }
    Ok(())
}

/// Makes the packages, with the emulator built in a profile.
pub fn make(workspace: &Workspace, profile: Profile) -> Result<Packages> {
    host::ensure_packages(workspace)?;
    let base = Base::obtain(workspace, Release::Trixie)?;
    let root = root(workspace, &base)?;
    let program = emulator::build(workspace, profile)?;
    let work = workspace.cache()?.join("packages.work");
    let _lock = workspace.lock_cache("packages")?;
    let _ = fs::remove_dir_all(&work);
    stage(workspace, &base, &program, &work.join("source"))?;
    let tarball = archive(workspace, &work)?;
    let log = work.join("build.log");
    run_logged(
        "packing Debian packages",
        &mut image::chroot(&root, Some(&work), BUILD),
        &log,
    )?;
    collect(workspace, root, &work, &tarball)
}

/// The root in which packages are made and installed: a copy of the guests' with further packages.
pub fn root(workspace: &Workspace, base: &Base) -> Result<PathBuf> {
    let mut key = Fingerprint::new();
    for tool in TOOLS {
        key = key.text(tool);
    }
    let cache = workspace.cache()?;
    let prefix = format!("root-{}-packages-", base.key);
    let root = cache.join(format!("{prefix}{}", key.finish()));
    if root.is_dir() {
        return Ok(root);
    }
    let _lock = workspace.lock_cache("packages-root")?;
    if root.is_dir() {
        return Ok(root);
    }
    host::require_root("making packages")?;
    remove_others(&cache, &prefix)?;
    let partial = cache.join("packages-root.partial");
    let _ = fs::remove_dir_all(&partial);
    let log = cache.join("packages-root.log");
    let _ = fs::remove_file(&log);
    image::copy_root(&base.root, &partial, &log)?;
    let tools: Vec<String> = TOOLS.iter().map(|&tool| tool.to_owned()).collect();
    image::install(&partial, &tools, &log)?;
    fs::rename(&partial, &root).with_context(|| format!("renaming {}", partial.display()))?;
    Ok(root)
}

/// Fills a folder with what `debian/rules` packs.
fn stage(workspace: &Workspace, base: &Base, program: &Path, source: &Path) -> Result<()> {
    let folder = |name: &str| -> Result<PathBuf> {
        let folder = source.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        Ok(folder)
    };
    copy_tree(&workspace.root().join("qemu-config/packages"), source)?;
    let changelog = "CHANGELOG.md";
    fs::copy(workspace.root().join(changelog), source.join(changelog))
        .context("copying the changelog")?;
    fs::copy(program, folder("bin")?.join("faultline")).context("copying the emulator")?;
    for (shell, file) in [
        ("bash", "faultline"),
        ("fish", "faultline.fish"),
        ("zsh", "_faultline"),
    ] {
        let script = capture(Command::new(program).args(["completions", shell]))?;
        let file = folder(&format!("completions/{shell}"))?.join(file);
        fs::write(&file, script).with_context(|| format!("writing {}", file.display()))?;
    }
    capture(Command::new(program).arg("manual").arg(folder("manual")?))?;
    fs::write(folder("host")?.join("rust-crates"), crates(workspace)?)
        .context("listing the crates")?;
    for part in ["kernel", "include"] {
        let from = workspace.guest_driver().join(part);
        copy_tree(&from, &source.join("module").join(part))?;
    }
    copy_tree(
        &workspace.guest_driver().join("examples"),
        &folder("examples")?,
    )?;
    stage_provider(workspace, base, &folder("provider")?)
}

/// Makes the archive for other distributions from the parts of the packages, but with the provider's source instead of
/// the provider, which is for Debian's rdma-core only.
fn archive(workspace: &Workspace, work: &Path) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("faultline-{version}");
    let folder = work.join(&name);
    let source = work.join("source");
    for part in [
        "bin",
        "completions",
        "examples",
        "guest",
        "host",
        "manual",
        "module",
    ] {
        copy_tree(&source.join(part), &folder.join(part))?;
    }
    let copy = |from: PathBuf, to: &str| {
        let copied = fs::copy(&from, folder.join(to));
        copied.with_context(|| format!("copying {}", from.display()))
    };
    copy(
        source.join("debian/faultline.sysusers"),
        "host/faultline.sysusers",
    )?;
    copy_tree(
        &workspace.guest_driver().join("provider"),
        &folder.join("provider"),
    )?;
    for file in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(workspace.root().join(file), file)?;
    }
    for file in ["Makefile", "README"] {
        copy(source.join("tarball").join(file), file)?;
    }
    let file = folder.join("guest/libfaultline.pc");
    let text = fs::read_to_string(&file).context("reading libfaultline.pc")?;
    fs::write(&file, text.replace("@VERSION@", version)).context("writing libfaultline.pc")?;
    let tarball = work.join(format!("{name}-linux-x86_64.tar.gz"));
    capture(
        Command::new("tar")
            .args(["--sort=name", "--owner=0", "--group=0", "-czf"])
            .args([&tarball, Path::new("-C"), work, Path::new(&name)]),
    )?;
    Ok(tarball)
}

/// Builds the provider. Puts it, its header, the name of its plugin and its dependency into a folder.
fn stage_provider(workspace: &Workspace, base: &Base, folder: &Path) -> Result<()> {
    let built = folder.with_extension("built");
    let plugin = install_provider(workspace, base, &built, &built)?;
    let status = fs::read_to_string(base.root.join("var/lib/dpkg/status"))
        .context("reading dpkg's status")?;
    let version =
        version_in(&status, "libibverbs1").context("the guest root has no libibverbs1")?;
    let release = release(&version);
    fs::copy(
        built.join("libfaultline.so.1"),
        folder.join(format!("libfaultline.so.1.0.{release}")),
    )
    .context("copying the provider")?;
    fs::copy(
        build_static_provider(workspace, base)?,
        folder.join("libfaultline.a"),
    )
    .context("copying the static library")?;
    fs::copy(
        built.join("infiniband/faultlinedv.h"),
        folder.join("faultlinedv.h"),
    )
    .context("copying the provider's header")?;
    fs::write(folder.join("plugin"), plugin).context("noting the plugin's name")?;
    fs::write(folder.join("depends"), dependency(release)).context("noting the dependency")
}

/// The release of rdma-core in the version of a Debian package.
fn release(version: &str) -> &str {
    version.rsplit_once('-').map_or(version, |(first, _)| first)
}

/// The dependency on each Debian version of this release of rdma-core and on no other release.
fn dependency(release: &str) -> String {
    format!("libibverbs1 (>= {release}), libibverbs1 (<< {release}.0~)")
}

/// Names, versions and licences of the crates in the emulator, one in each line.
fn crates(workspace: &Workspace) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let text = capture(
        Command::new(cargo)
            .args(["tree", "--package", "faultline", "--edges", "normal"])
            .args(["--prefix", "none", "--format", "{p} {l}"])
            .current_dir(workspace.root()),
    )?;
    Ok(crates_of_others(&text))
}

/// The lines of `cargo tree` that are not about this workspace, each once.
fn crates_of_others(tree: &str) -> String {
    let mut lines: Vec<String> = tree
        .lines()
        // A path follows the version of the workspace's own, a mark those that were listed before.
        .filter(|line| !line.contains("(/"))
        .map(|line| line.replace(" (proc-macro)", "").replace(" (*)", ""))
        .collect();
    lines.sort();
    lines.dedup();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Moves the packages to their folder, without those of earlier calls.
fn collect(workspace: &Workspace, root: PathBuf, work: &Path, tarball: &Path) -> Result<Packages> {
    let folder = workspace.root().join("target").join(FOLDER);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in fs::read_dir(work)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|it| it.to_str());
        if !matches!(extension, Some("deb" | "changes" | "buildinfo" | "gz")) {
            continue;
        }
        let to = folder.join(path.file_name().unwrap_or_default());
        fs::copy(&path, &to).with_context(|| format!("copying {}", path.display()))?;
        if extension == Some("deb") {
            files.push(to);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "dpkg-buildpackage has made no package");
    say(format!("packages: {}", workspace.shown(&folder)));
    Ok(Packages {
        root,
        tarball: folder.join(tarball.file_name().unwrap_or_default()),
        folder,
        files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_needs_its_release_of_rdma_core() {
        assert_eq!(release("56.1-1+deb13u1"), "56.1");
        assert_eq!(
            dependency("56.1"),
            "libibverbs1 (>= 56.1), libibverbs1 (<< 56.1.0~)"
        );
    }

    #[test]
    fn the_changelog_has_the_version_of_the_workspace() {
        let changelog = include_str!("../packages/debian/changelog");
        let version = env!("CARGO_PKG_VERSION");
        assert!(
            changelog.starts_with(&format!("faultline ({version}-")),
            "the version has changed: add it to qemu-config/packages/debian/changelog"
        );
    }

    #[test]
    fn crates_of_others_are_listed_once() {
        let tree = "faultline v0.1.0 (/work/device/cli) Apache-2.0 OR MIT\nb v2.0.0 MIT\na v1.0.0 (proc-macro) MIT\nb v2.0.0 MIT (*)\n";
        assert_eq!(crates_of_others(tree), "a v1.0.0 MIT\nb v2.0.0 MIT\n");
    }
}
