//! Guest images: one Debian root for each release, with all kernels, made once, and images derived from it with further packages.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::command::{run_logged, say};
use crate::host::{self, Mirror, Release};
use crate::workspace::{Fingerprint, Workspace};

/// Bumped when the way of building the root changes. The packages are part of the key themselves.
const RECIPE: &str = "1";
/// Run by mmdebstrap when it has installed the packages.
const NAME_KERNELS: &str = include_str!("../recipes/name-kernels.sh");
const ENTER_ROOT: &str = include_str!("../recipes/enter-root.sh");
const ENTER_OVERLAY: &str = include_str!("../recipes/enter-overlay.sh");
const INSTALL_PACKAGES: &str = include_str!("../recipes/install-packages.sh");
/// Run in a root with the name of a source package (or `name=version`) and the folder in which `source` is made.
pub const FETCH_SOURCE: &str = include_str!("../recipes/fetch-source.sh");

/// Packages of every guest: RDMA user space, network tools, and the tools that build the driver inside the root.
const PACKAGES: &[&str] = &[
    "linux-image-amd64",
    "linux-headers-amd64",
    "udev",
    "busybox-static",
    "kmod",
    "procps",
    "iproute2",
    "ethtool",
    "iputils-ping",
    "netcat-openbsd",
    "strace",
    "xz-utils",
    "rdma-core",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "python3-pyverbs",
    "make",
    "sparse",
    "gcc",
    "g++",
    "cmake",
    "ninja-build",
    "perl",
    "pkg-config",
    "libc6-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "libnl-3-dev",
    "libnl-route-3-dev",
    "libudev-dev",
];

/// The packages of a release's guests.
fn packages(release: Release) -> Vec<&'static str> {
    let mut packages = PACKAGES.to_vec();
    if release == Release::Bookworm {
        // Later releases have it anyway: their udev depends on systemd.
        packages.push("mount");
    }
    packages
}

/// Free space in an image for the guest's files, in bytes. Images are sparse, and guests write to an overlay.
const FREE_SPACE: u64 = 4 << 30;

/// The step in which a root is made.
pub const BOOTSTRAP: &str = "unpacking and configuring Debian packages";
/// The step in which an image is made of it.
pub const PACKING: &str = "packing the guest image";
/// The part of the cache with images.
pub const IMAGES: &str = "images";

/// Derived images kept; the least recently made are removed.
const KEPT_DERIVED: usize = 6;

/// Age at which results of other recipes are removed.
pub const STALE: std::time::Duration = std::time::Duration::from_secs(2 * 3600);

/// The Debian kernel that a guest runs. It determines the release of all other packages of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Hash)]
pub enum Kernel {
    /// Debian 13's.
    Stable,
    /// That of Debian 13's backports.
    Backports,
    /// Debian 13's, configured to find errors; built on first use.
    Debug,
    /// Debian 13's, configured to find data races; built on first use.
    Races,
    /// That of Debian 12's backports.
    BookwormBackports,
    /// That of Debian testing.
    Forky,
}

impl Kernel {
    /// Those that tests run on unless told otherwise, in this order.
    pub const BOTH: [Self; 2] = [Self::Stable, Self::Backports];

    /// The kernels of a release's image.
    pub fn of(release: Release) -> &'static [Self] {
        match release {
            Release::Bookworm => &[Self::BookwormBackports],
            Release::Trixie => &Self::BOTH,
            Release::Forky => &[Self::Forky],
        }
    }

    /// The release whose image has this kernel.
    pub fn debian(self) -> Release {
        match self {
            Self::Stable | Self::Backports | Self::Debug | Self::Races => Release::Trixie,
            Self::BookwormBackports => Release::Bookworm,
            Self::Forky => Release::Forky,
        }
    }

    /// The name used in options and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Backports => "backports",
            Self::Debug => "debug",
            Self::Races => "races",
            Self::BookwormBackports => "bookworm-backports",
            Self::Forky => "forky",
        }
    }

    /// The factor by which time limits are longer than on a quiet machine, because machines are shared and some kernels
    /// slow.
    pub fn time_factor(self) -> u32 {
        match self {
            Self::Debug | Self::Races => 5,
            _ => 2,
        }
    }
}

/// The unpacked root that images are made of and in which drivers are built.
#[derive(Debug, Clone)]
pub struct Base {
    /// The release that it is made of.
    pub release: Release,
    /// Names this root and everything made from it.
    pub key: String,
    /// The unpacked root.
    pub root: PathBuf,
}

impl Base {
    /// The place of a release's root in the cache.
    pub fn root(workspace: &Workspace, release: Release) -> Result<PathBuf> {
        Ok(workspace
            .cache()?
            .join(format!("root-{}", Self::key(release))))
    }

    /// The cached root of a release, or a new one.
    pub fn obtain(workspace: &Workspace, release: Release) -> Result<Self> {
        let base = Self {
            release,
            root: Self::root(workspace, release)?,
            key: Self::key(release),
        };
        if base.root.is_dir() {
            return Ok(base);
        }
        let _lock = workspace.lock_cache("root")?;
        if !base.root.is_dir() {
            base.build(&workspace.cache()?)?;
        }
        Ok(base)
    }

    fn key(release: Release) -> String {
        let mut key = Fingerprint::new().text(RECIPE).text(release.suite());
        for package in packages(release) {
            key = key.text(package);
        }
        key.finish()
    }

    fn build(&self, cache: &Path) -> Result<()> {
        host::require_root("building the guest image")?;
        remove_stale(cache, &Release::ALL.map(Self::key))?;
        let partial = cache.join(format!("root-{}.partial", self.key));
        match fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", partial.display()));
            }
            _ => {}
        }
        say(format!(
            "building the guest root of {}, once (about two minutes, needs the network)",
            self.release.suite()
        ));
        let hook = format!("--customize-hook={}", self.name_kernels());
        bootstrap(
            self.release,
            &packages(self.release),
            &[
                "--variant=apt",
                // A root that a crash of the host leaves incomplete is made anew.
                "--dpkgopt=force-unsafe-io",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                // The lists stay, so that packages can be added later without fetching them again.
                "--skip=cleanup/apt/lists",
                &hook,
            ],
            &partial,
            &cache.join("root.log"),
        )?;
        fs::rename(&partial, &self.root)
            .with_context(|| format!("renaming {}", partial.display()))?;
        for (package, version) in self.versions()? {
            say(format!("  {package} {version}"));
        }
        Ok(())
    }

    /// The hook of mmdebstrap, which calls it with the root.
    fn name_kernels(&self) -> String {
        let words = match self.release {
            Release::Bookworm => "bookworm bookworm-backports",
            Release::Trixie => "stable backports",
            Release::Forky => "forky",
        };
        let suite = self.release.suite();
        format!("set -- \"$1\" {suite} {words}\n{NAME_KERNELS}")
    }

    /// The release of a guest kernel, for example `6.12.0-amd64`.
    pub fn kernel_release(&self, kernel: Kernel) -> Result<String> {
        ensure!(
            kernel.debian() == self.release,
            "the kernel {} is not one of {}",
            kernel.name(),
            self.release.suite()
        );
        let path = self
            .root
            .join("usr/share/faultline-lab")
            .join(kernel.name());
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut releases = text.split_whitespace();
        match (releases.next(), releases.next()) {
            (Some(release), None) => Ok(release.to_owned()),
            _ => bail!(
                "{} should name one kernel release but holds {text:?}",
                path.display()
            ),
        }
    }

    /// Distinguishes this kernel from others of its release: a kernel that is built here keeps its name when its
    /// configuration changes.
    pub fn kernel_key(&self, kernel: Kernel) -> String {
        fs::read_to_string(self.stamp(kernel)).unwrap_or_else(|_| self.key.clone())
    }

    /// The file that a kernel which is built here has beside it.
    pub fn stamp(&self, kernel: Kernel) -> PathBuf {
        let name = format!("{}.key", kernel.name());
        self.root.join("usr/share/faultline-lab").join(name)
    }

    /// The kernel's image file.
    pub fn vmlinuz(&self, kernel: Kernel) -> Result<PathBuf> {
        Ok(self
            .root
            .join("boot")
            .join(format!("vmlinuz-{}", self.kernel_release(kernel)?)))
    }

    /// Versions of the packages that matter, as resolved when the root was built.
    pub fn versions(&self) -> Result<Vec<(String, String)>> {
        let path = self.root.join("var/lib/dpkg/status");
        let status =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut versions = Vec::new();
        for &kernel in Kernel::of(self.release) {
            let release = self.kernel_release(kernel)?;
            versions.push((format!("kernel {}", kernel.name()), release));
        }
        for package in ["rdma-core", "perftest", "libc6", "udev"] {
            if let Some(version) = version_in(&status, package) {
                versions.push((package.to_owned(), version));
            }
        }
        Ok(versions)
    }

    /// A command that runs a shell script inside the root, with `work` mounted at `/mnt`, in a mount namespace of its own.
    /// The caller may append arguments of the script.
    ///
    /// It runs at native speed: builds that take minutes in a guest under TCG take seconds here.
    pub fn chroot(&self, work: &Path, script: &str) -> Command {
        chroot(&self.root, Some(work), script)
    }
}

/// Makes a root of a release with these packages and options of mmdebstrap. The list of package sources is written beside it.
pub fn bootstrap(
    release: Release,
    packages: &[&str],
    options: &[&str],
    root: &Path,
    log: &Path,
) -> Result<()> {
    let mirror = Mirror::of_host()?;
    // QEMU may be unpacked at the same time.
    let sources = root.with_extension("list");
    fs::write(&sources, mirror.sources(release)).context("writing the package sources")?;
    // In a mount namespace of its own, so that the host's /sys is not mounted in the remains of an interrupted build.
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--fork", "--kill-child", "--", "mmdebstrap"])
        .arg("--format=directory")
        .arg(format!("--include={}", packages.join(",")))
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .args(options);
    for option in &mirror.options {
        command.arg(format!("--aptopt={option}"));
    }
    command
        // The lab makes its own initial file system; Debian's would take longer to build and to boot.
        .env("INITRD", "No")
        .arg(release.suite())
        .arg(root)
        .arg(&sources);
    run_logged(BOOTSTRAP, &mut command, log)
        .context("could not make a root from the Debian mirror; check that this host has a network")
}

/// A command that runs a shell script in `root`, with `work` mounted at `/mnt`, in a mount namespace of its own. The
/// caller may append arguments of the script.
pub fn chroot(root: &Path, work: Option<&Path>, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--",
            "sh",
            "-euc",
            ENTER_ROOT,
            "sh",
        ])
        .arg(root)
        .arg(work.unwrap_or_else(|| Path::new("")))
        .arg(script);
    command
}

/// The same, in an overlay of `root`: its changes are lost when the script ends.
pub fn chroot_overlay(root: &Path, work: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--"])
        .args(["sh", "-euc", ENTER_OVERLAY, "sh", ENTER_ROOT])
        .args([root, work])
        .arg(script);
    command
}

/// A bootable disk.
#[derive(Debug, Clone)]
pub struct Image {
    /// The raw ext4 file system.
    pub disk: PathBuf,
}

impl Image {
    /// The base image, or one with `packages` installed on top, as [`install`] takes them.
    pub fn obtain(workspace: &Workspace, base: &Base, packages: &[String]) -> Result<Self> {
        let cache = workspace.cache()?;
        let mut packages = packages.to_vec();
        packages.sort();
        packages.dedup();
        let key = if packages.is_empty() {
            base.key.clone()
        } else {
            let mut key = Fingerprint::new()
                .text(&base.key)
                .text(INSTALL_PACKAGES)
                .text(FETCH_SOURCE);
            for package in &packages {
                key = key.text(package);
                if package.contains('/') {
                    key = key.file(Path::new(package))?;
                }
            }
            format!("{}-{}", base.key, key.finish())
        };
        let image = Self {
            disk: cache.join(format!("image-{key}.ext4")),
        };
        if image.disk.is_file() {
            return Ok(image);
        }
        let _lock = workspace.lock_cache(IMAGES)?;
        if image.disk.is_file() {
            return Ok(image);
        }
        if packages.is_empty() {
            make_disk(&base.root, &image.disk, &cache)?;
            return Ok(image);
        }
        host::require_root("adding packages to a guest image")?;
        prune_derived(&cache, &base.key)?;
        let copy = cache.join("derived.partial");
        let _ = fs::remove_dir_all(&copy);
        let log = cache.join("packages.log");
        let _ = fs::remove_file(&log);
        copy_root(&base.root, &copy, &log)?;
        let result =
            install(&copy, &packages, &log).and_then(|()| make_disk(&copy, &image.disk, &cache));
        let _ = fs::remove_dir_all(&copy);
        result.map(|()| image)
    }

    /// Removes the images of a root that has been changed. Running guests keep theirs.
    pub fn remove_all(cache: &Path, base: &Base) -> Result<()> {
        for path in images(cache, &format!("image-{}", base.key))? {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }
}

/// The files of the cache whose names have this prefix, the oldest first.
fn images(cache: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Copies an unpacked root.
pub fn copy_root(from: &Path, to: &Path, log: &Path) -> Result<()> {
    run_logged(
        "copying the guest root",
        Command::new("cp")
            .args(["-a", "--reflink=auto"])
            .arg(from)
            .arg(to),
        log,
    )
}

/// Installs `packages` in an unpacked root: names, paths of `.deb` files, or `src:NAME` for the upstream release of
/// `NAME`, in `/usr/src/NAME/source`.
pub fn install(root: &Path, packages: &[String], log: &Path) -> Result<()> {
    let mut arguments = Vec::new();
    let mut sources = Vec::new();
    for package in packages {
        if package.contains('/') {
            let source = Path::new(package);
            let name = source.file_name().context("a package file has a name")?;
            fs::copy(source, root.join("tmp").join(name))
                .with_context(|| format!("copying {package}"))?;
            arguments.push(format!("/tmp/{}", name.to_string_lossy()));
        } else if package
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.:/=~".contains(c))
        {
            match package.strip_prefix("src:") {
                Some(name) => sources.push(name),
                None => arguments.push(package.clone()),
            }
        } else {
            bail!("{package:?} is not the name of a Debian package");
        }
    }
    // Services must not start inside the build root.
    let policy = root.join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n").context("writing policy-rc.d")?;
    fs::set_permissions(&policy, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    const NETWORK: &str =
        "could not install packages into the guest image; check that this host has a network";
    run_logged(
        &format!("installing {}", packages.join(" ")),
        chroot(root, None, INSTALL_PACKAGES).args(&arguments),
        log,
    )
    .context(NETWORK)?;
    for name in sources {
        run_logged(
            &format!("fetching the source of {name}"),
            chroot(root, None, FETCH_SOURCE).args([name, &format!("/usr/src/{name}")]),
            log,
        )
        .context(NETWORK)?;
    }
    fs::remove_file(&policy).context("removing policy-rc.d")
}

/// Packs `root` into a raw ext4 file.
fn make_disk(root: &Path, disk: &Path, cache: &Path) -> Result<()> {
    host::require_root("packing a guest image")?;
    let used = crate::command::capture(Command::new("du").args(["-s", "-B1", "--"]).arg(root))?;
    let used: u64 = used
        .split_whitespace()
        .next()
        .and_then(|bytes| bytes.parse().ok())
        .with_context(|| format!("du said {used:?}"))?;
    let partial = disk.with_extension("partial");
    let _ = fs::remove_file(&partial);
    let log = cache.join("mke2fs.log");
    let _ = fs::remove_file(&log);
    let blocks = (used + used / 8 + FREE_SPACE) / 4096;
    run_logged(
        PACKING,
        Command::new(crate::command::which("mke2fs").context("mke2fs is not in PATH")?)
            // No journal: the image is thrown away after each boot, and guests boot faster without.
            .args([
                "-q",
                "-F",
                "-t",
                "ext4",
                "-b",
                "4096",
                "-O",
                "^has_journal,^metadata_csum",
                "-m",
                "0",
            ])
            .args([
                "-E",
                "lazy_itable_init=1,nodiscard",
                "-L",
                "faultline",
                "-d",
            ])
            .arg(root)
            .arg(&partial)
            .arg(blocks.to_string()),
        &log,
    )?;
    fs::rename(&partial, disk).with_context(|| format!("renaming {}", partial.display()))
}

/// Removes roots with other keys than these, and the files that are made of them, to free space. Young ones stay,
/// because another lab with that recipe may be running.
fn remove_stale(cache: &Path, keys: &[String]) -> Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        let age = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .map(|time| time.elapsed());
        if !matches!(age, Ok(Ok(age)) if age > STALE) {
            continue;
        }
        let path = entry.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if (name.starts_with("root-")
            || name.starts_with("image-")
            || name.starts_with("kernel-")
            || name.starts_with("programs-")
            || name.starts_with("selected-programs-")
            || name.starts_with("provider-")
            || name.starts_with("rdma-core-"))
            && !keys.iter().any(|key| name.contains(key.as_str()))
        {
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
    Ok(())
}

fn prune_derived(cache: &Path, key: &str) -> Result<()> {
    let derived = images(cache, &format!("image-{key}-"))?;
    let surplus = (derived.len() + 1).saturating_sub(KEPT_DERIVED);
    for path in &derived[..surplus] {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// The version of an installed package in a dpkg status file.
pub fn version_in(status: &str, package: &str) -> Option<String> {
    status.split("\n\n").find_map(|paragraph| {
        let field = |name: &str| {
            paragraph
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .map(str::to_owned)
        };
        (field("Package")? == package && field("Status")?.ends_with(" installed"))
            .then(|| field("Version"))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of the root has the number of the recipe instead of the script, because a rebuild takes minutes and removes
    /// the debug kernel: not every change of the script needs one.
    #[test]
    fn the_recipe_of_the_root_is_that_of_its_script() {
        let script = Fingerprint::new().text(NAME_KERNELS).finish();
        assert_eq!(
            (RECIPE, script.as_str()),
            ("1", "3b10cd5545d84a5c"),
            "the script has changed: bump RECIPE if the root differs, and note both here"
        );
    }

    #[test]
    fn versions_come_from_installed_packages_only() {
        let status = "Package: a\nStatus: deinstall ok config-files\nVersion: 1\n\n\
                      Package: rdma-core\nStatus: install ok installed\nVersion: 56.1-1\n";
        assert_eq!(version_in(status, "rdma-core").as_deref(), Some("56.1-1"));
        assert_eq!(version_in(status, "a"), None);
        assert_eq!(version_in(status, "b"), None);
    }

    #[test]
    fn the_oldest_derived_images_go_first() {
        let dir = tempfile::tempdir().unwrap();
        for index in 0..KEPT_DERIVED + 1 {
            fs::write(dir.path().join(format!("image-k-{index}.ext4")), "").unwrap();
        }
        fs::write(dir.path().join("image-k.ext4"), "").unwrap();
        prune_derived(dir.path(), "k").unwrap();
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, KEPT_DERIVED - 1 + 1);
        assert!(dir.path().join("image-k.ext4").exists());
    }
    #[test]
    fn images_of_a_root_that_changes_go() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "image-k.ext4",
            "image-k-1.ext4",
            "image-other.ext4",
            "root-k",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let base = Base {
            release: Release::Trixie,
            key: "k".into(),
            root: dir.path().join("root-k"),
        };
        Image::remove_all(dir.path(), &base).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["image-other.ext4", "root-k"]);
    }
}
