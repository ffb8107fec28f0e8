//! The suite `packages`: Debian packages of the emulator and of the guest's driver, and guests that have the driver from nowhere else.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::facts::{On, Row, Runs, SuiteFacts, by_name, chosen, row, runs};
use super::installed::{booted, on_demand, pair, pingpong};
use super::tally::{Tally, Verdict};
use super::{action, apt, container, libvirt, own_vm};
use crate::cluster::{Cluster, Plan, configure};
use crate::driver::{changed_module, provider_tree};
use crate::emulator::Profile;
use crate::host::Release;
use crate::image::{Base, Kernel};
use crate::package::{self, Packages};
use crate::series;
use crate::workspace::Workspace;
use crate::{processor_time, progress};

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "packages",
    shows: "The Debian packages can be built, installed and used.",
    runs: runs(
        On::Nothing,
        On::First,
        "what a release adds to packages that can be built and installed",
    ),
};

const USED: Runs = runs(
    On::First,
    On::First,
    "packages can be built, installed and used",
);
const SLOW: Runs = by_name("a quarter of an hour or more each, or much to download");

/// Its tests, in the order in which they run: those of packages, those in guests in which the packages are installed, and those that need
/// no package.
pub const TESTS: &[Row<Part>] = &[
    row(BUILD, "The packages can be made.", Part::Own).runs(USED),
    row(
        "lintian",
        "lintian finds nothing, without overrides.",
        Part::Check(|packages, _, log| packages.lint(log)),
    )
    .runs(USED),
    row(
        "units",
        "Units (exposure at most 2.0), AppArmor profile, completions and the example \
         for libvirt are valid.",
        Part::Check(|packages, work, log| packages.check_units(work, log)),
    )
    .runs(USED),
    row(
        "manual",
        "Manual pages have no warnings.",
        Part::Check(|packages, work, log| packages.check_manual(work, log)),
    ),
    row(
        "host_package",
        "The host's package serves its group only, explains errors, and leaves \
         nothing.",
        Part::Check(|packages, _, log| packages.check_host_package(log)),
    )
    .runs(USED),
    row(
        KERNEL_UPDATE,
        "DKMS builds the module for a later kernel.",
        Part::Own,
    )
    .runs(SLOW),
    row(
        TARBALL,
        "The archive for other distributions installs and removes the same files, and \
         builds.",
        Part::Own,
    )
    .runs(SLOW),
    row(
        SERIES,
        "Each patch of `cargo lab series` applies and builds.",
        Part::Own,
    )
    .runs(SLOW),
    row(
        INSTALL,
        "apt installs the packages in a root, DKMS builds the module, removal leaves \
         nothing.",
        Part::Own,
    )
    .runs(USED),
    row(
        APT,
        "The same in a booted guest, with both kernels and traffic.",
        Part::Own,
    )
    .runs(SLOW),
    row(
        LIBVIRT_CONFINED,
        "libvirt and service work under AppArmor, which denies nothing.",
        Part::Own,
    )
    .runs(SLOW),
    row(TUTORIAL, "docs/tutorial-own-vm.md is executed.", Part::Own),
    row(
        LIBVIRT,
        "README.Debian's steps for libvirt boot two machines that reach each other.",
        Part::Own,
    )
    .runs(SLOW),
    row(
        BOOT,
        "Guests of the installed disk find the device.",
        Part::Own,
    ),
    row(
        "service",
        "Both services work in their sandboxes, outlive their server, and the journal \
         explains its end.",
        Part::InGuests(|scene| served(scene.cluster)),
    ),
    row(
        "pingpong",
        "RC SENDs arrive between the guests.",
        Part::InGuests(|scene| pingpong(scene.cluster, "")),
    ),
    row(
        "odp",
        "RC SENDs arrive in absent on-demand memory.",
        Part::InGuests(|scene| on_demand(scene.cluster)),
    ),
    row(
        "static_library",
        "A static program has the provider.",
        Part::InGuests(|scene| static_library(scene.cluster)),
    ),
    row(
        "other_rdma_core",
        "libibverbs refuses a provider for another private interface.",
        Part::InGuests(|scene| other_rdma_core(scene.cluster)),
    ),
    row(
        "other_abi",
        "Drivers and libraries for other device ABIs say what to update.",
        Part::InGuests(other_abi),
    ),
    row(
        "without_extensions",
        "A driver without extensions carries traffic, and refuses fault policies.",
        Part::InGuests(without_extensions),
    ),
    row(
        "without_on_demand_paging",
        "A driver for a kernel without on-demand paging carries pinned traffic only.",
        Part::InGuests(without_on_demand_paging),
    ),
    row(
        "removal",
        "`apt purge` unloads the module and leaves nothing.",
        Part::InGuests(|scene| removed(scene.cluster)),
    ),
    row(
        "action",
        "The action for GitHub tests its example, and reports a script that fails.",
        Part::Alone(action::run),
    )
    .runs(SLOW),
    row(
        "container",
        "The Containerfile's instructions make a working lab.",
        Part::Alone(container::run),
    )
    .runs(SLOW),
];

/// What runs a test.
#[derive(Clone, Copy)]
pub enum Part {
    /// [`make`] or [`run`], because others need its result, or because it needs guests of its own.
    Own,
    Check(Check),
    InGuests(InGuests),
    Alone(Alone),
}

const APT: &str = "apt";
const BOOT: &str = "boot";
const BUILD: &str = "build";
const INSTALL: &str = "install";
const KERNEL_UPDATE: &str = "kernel_update";
const LIBVIRT: &str = "libvirt";
const LIBVIRT_CONFINED: &str = "libvirt_confined";
const SERIES: &str = "series";
const TARBALL: &str = "tarball";
const TUTORIAL: &str = "tutorial";

/// Checks packages; a folder for unpacked files, and its log.
type Check = fn(&Packages, &Path, &Path) -> Result<()>;

/// Runs in guests in which the packages are installed.
type InGuests = fn(&Scene<'_>) -> Result<()>;

/// A test that needs none of the packages, with a folder for its logs. It tests the parts for CI systems, and starts a
/// lab of its own, when nothing else runs.
type Alone = fn(&Workspace, &Path) -> Result<()>;

/// What tests in guests have.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    workspace: &'a Workspace,
    cluster: &'a Cluster,
    /// A folder for what a test builds.
    work: &'a Path,
}

const SHORT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(300);

/// Results of tests without guests for those in guests.
#[derive(Debug)]
pub struct Made {
    /// The kernel of the disk.
    kernel: Kernel,
    packages: Packages,
    /// A disk with the packages, if a chosen test needs it. It is large, so it is not kept with the logs.
    disk: Option<(TempDir, PathBuf)>,
}

/// Runs the tests without guests whose names contain `filter` and for which `is_left_out` is false, and those whose results the chosen
/// tests in guests need.
pub fn make(
    workspace: &Workspace,
    filter: &str,
    kernel: Kernel,
    is_left_out: impl Fn(&str) -> bool,
    dir: &Path,
    tally: &mut Tally,
) -> Option<Made> {
    let chosen = |name: &str| name.contains(filter) && !is_left_out(name);
    let mut tests = TESTS.iter();
    if !tests.any(|test| chosen(test.facts.name) && !matches!(test.run, Part::Alone(_))) {
        return None;
    }
    let mut suite = Run { tally };
    let packages = suite.test(BUILD, || package::make(workspace, Profile::Quick))?;
    for Row { facts, run } in TESTS.iter().filter(|test| chosen(test.facts.name)) {
        let Part::Check(check) = run else { continue };
        let name = facts.name;
        suite.test(name, || {
            let work = tempfile::tempdir().context("making a folder for packages")?;
            let log = dir.join(format!("packages-{name}.log"));
            check(&packages, work.path(), &log)
        });
    }
    if chosen(KERNEL_UPDATE) {
        suite.test(KERNEL_UPDATE, || {
            let release = Base::obtain(workspace, Release::Trixie)?.kernel_release(kernel)?;
            packages.check_kernel_update(&release, &dir.join("packages-kernel_update.log"))
        });
    }
    if chosen(TARBALL) {
        suite.test(TARBALL, || {
            let base = Base::obtain(workspace, Release::Trixie)?;
            let rdma_core = provider_tree(workspace, &base)?.join("source");
            let work = tempfile::tempdir().context("making a folder for an archive")?;
            let log = dir.join("packages-tarball.log");
            packages.check_tarball(&rdma_core, &base.kernel_release(kernel)?, work.path(), &log)
        });
    }
    if chosen(SERIES) {
        suite.test(SERIES, || {
            let series = series::make(workspace)?;
            let base = Base::obtain(workspace, Release::Trixie)?;
            let release = base.kernel_release(series::NEWEST)?;
            let work = folder_for_disk(workspace)?;
            let log = dir.join("packages-series.log");
            packages.check_series(&series, &release, work.path(), &log)
        });
    }
    let mut tests = TESTS.iter();
    let in_guests =
        tests.any(|test| chosen(test.facts.name) && matches!(test.run, Part::InGuests(_)));
    if !in_guests && ![INSTALL, TUTORIAL, LIBVIRT, BOOT].into_iter().any(chosen) {
        let needs_packages = [APT, LIBVIRT_CONFINED].into_iter().any(chosen);
        return needs_packages.then_some(Made {
            kernel,
            packages,
            disk: None,
        });
    }
    let disk = suite.test(INSTALL, || {
        let work = folder_for_disk(workspace)?;
        let release = Base::obtain(workspace, Release::Trixie)?.kernel_release(kernel)?;
        let log = dir.join("packages-install.log");
        let disk = packages.stock_disk(&release, work.path(), &log)?;
        Ok((work, disk))
    });
    Some(Made {
        kernel,
        packages,
        disk,
    })
}

/// Runs the tests in guests.
pub fn run(
    workspace: &Workspace,
    filter: &str,
    is_left_out: impl Fn(&str) -> bool,
    dir: &Path,
    tally: &mut Tally,
    made: Made,
) {
    let chosen = |name: &str| name.contains(filter) && !is_left_out(name);
    let Made {
        kernel,
        packages,
        disk,
    } = made;
    let mut suite = Run { tally };
    if chosen(APT) {
        suite.test(APT, || {
            let work = folder_for_disk(workspace)?;
            apt::run(workspace, &packages, kernel, work.path(), dir)
        });
    }
    if chosen(LIBVIRT_CONFINED) {
        suite.test(LIBVIRT_CONFINED, || {
            let work = folder_for_disk(workspace)?;
            libvirt::run_confined(workspace, &packages, kernel, work.path(), dir)
        });
    }
    let Some((work, disk)) = disk else { return };
    let in_guests = TESTS.iter().filter_map(|test| match test.run {
        Part::InGuests(run) if chosen(test.facts.name) => Some((test.facts.name, run)),
        _ => None,
    });
    let tests: Vec<_> = in_guests.collect();
    if chosen(TUTORIAL) {
        suite.test(TUTORIAL, || {
            own_vm::run(workspace, &packages, kernel, &disk, work.path(), dir)
        });
    }
    if chosen(LIBVIRT) {
        suite.test(LIBVIRT, || {
            libvirt::run(workspace, &packages, kernel, work.path(), dir)
        });
    }
    if tests.is_empty() && !chosen(BOOT) {
        return;
    }
    let plan = Plan {
        kernel,
        stock: Some(disk),
        append: "systemd.firstboot=off".to_owned(),
        ..Plan::default()
    };
    let cluster = suite.test(BOOT, || {
        let logs = dir.join("packages");
        fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
        let cluster = Cluster::boot(workspace, &plan, &logs)?;
        booted(&cluster)?;
        Ok(cluster)
    });
    let Some(cluster) = cluster else { return };
    let scene = Scene {
        workspace,
        cluster: &cluster,
        work: work.path(),
    };
    for (name, test) in tests {
        suite.test(name, || {
            let result = test(&scene);
            cluster.save_logs();
            result?;
            let troubles = cluster.troubles();
            ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
            Ok(())
        });
    }
}

/// Runs the tests that need no package, whose names contain `filter` and for which `is_left_out` is false.
pub fn run_alone(
    workspace: &Workspace,
    filter: &str,
    is_left_out: impl Fn(&str) -> bool,
    dir: &Path,
    tally: &mut Tally,
) {
    let mut suite = Run { tally };
    for Row { facts, run } in chosen(TESTS, filter) {
        if let Part::Alone(test) = run
            && !is_left_out(facts.name)
        {
            suite.test(facts.name, || test(workspace, dir));
        }
    }
}

/// A folder beside the images: a disk is too large for a file system in memory.
fn folder_for_disk(workspace: &Workspace) -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("packages-")
        .tempdir_in(workspace.cache()?)
        .context("making a folder for a disk")
}

struct Run<'a> {
    tally: &'a mut Tally,
}

impl Run<'_> {
    /// Runs one test. `None` if it has failed.
    fn test<T>(&mut self, name: &str, run: impl FnOnce() -> Result<T>) -> Option<T> {
        let full = format!("packages::{name}");
        progress::begin(&full);
        processor_time::begin();
        let started = Instant::now();
        let (verdict, value) = match run() {
            Ok(value) => (Verdict::Passed, Some(value)),
            Err(error) => (Verdict::Failed(format!("{error:#}")), None),
        };
        self.tally.add(&full, started.elapsed(), verdict);
        value
    }
}

/// The package of the host, which is installed in the guest as well: its services run in their sandbox and in their AppArmor profile,
/// make their sockets, and outlive their server.
fn served(cluster: &Cluster) -> Result<()> {
    let (first, _) = pair(cluster)?;
    first.must("service_journal", SHORT)?;
    first.must(
        "set -eux\n\
         systemctl is-active faultline\n\
         sed 's|/run/faultline/|/run/faultline/other/|' /etc/faultline/faultline.toml >/etc/faultline/other.toml\n\
         systemctl start faultline@other\n\
         for folder in /run/faultline /run/faultline/other; do\n\
           test \"$(stat -c '%a %U %G' $folder)\" = '750 faultline faultline'\n\
           test \"$(stat -c '%a %U %G' $folder/nic1.sock)\" = '660 faultline faultline'\n\
           faultline ctl nics --control $folder/control.sock | grep nic1\n\
         done\n\
         grep -x 'faultline (enforce)' /proc/$(systemctl show -P MainPID faultline)/attr/current\n\
         supervisor=$(systemctl show -P MainPID faultline)\n\
         serves() {\n\
           for _ in $(seq 100); do\n\
             if pgrep -P $supervisor && faultline ctl nics --control /run/faultline/control.sock | grep nic1; then return; fi\n\
             sleep 0.1\n\
           done\n\
           return 1\n\
         }\n\
         kill -9 $(pgrep -P $supervisor)\n\
         serves\n\
         systemctl reload faultline\n\
         serves\n\
         test \"$(systemctl show -P MainPID faultline)\" = $supervisor\n\
         if dmesg | grep 'apparmor=\"DENIED\".*profile=\"faultline\"'; then exit 1; fi\n\
         systemctl stop faultline@other\n\
         test ! -e /run/faultline/other\n\
         test -S /run/faultline/nic0.sock\n\
         systemctl stop faultline\n\
         rm /etc/faultline/other.toml",
        SHORT,
    )?;
    Ok(())
}

/// A program without shared libraries has the provider in itself.
fn static_library(cluster: &Cluster) -> Result<()> {
    let (first, _) = pair(cluster)?;
    let said = first.must(
        "set -eu\n\
         source=$(dirname \"$(command -v odp_faults)\")/static_library.c\n\
         gcc -Wall -Wextra -Werror -static -o /tmp/static_library \"$source\" -lfaultline -libverbs -lnl-route-3 -lnl-3\n\
         if ldd /tmp/static_library; then exit 3; fi\n\
         /tmp/static_library",
        SHORT,
    )?;
    ensure!(said.contains("PASS"), "it did not pass:\n{said}");
    Ok(())
}

/// A provider that needs another private interface than this libibverbs has is not loaded, and libibverbs says so.
fn other_rdma_core(cluster: &Cluster) -> Result<()> {
    let (first, _) = pair(cluster)?;
    first.must(
        "set -eu\n\
         library=$(readlink -f /usr/lib/x86_64-linux-gnu/libfaultline.so.1)\n\
         sed 's/IBVERBS_PRIVATE_[0-9][0-9]/IBVERBS_PRIVATE_00/g' \"$library\" >/tmp/library\n\
         cmp -s \"$library\" /tmp/library && exit 3\n\
         export library\n\
         unshare -m sh -eu -c 'mount --bind /tmp/library \"$library\"; ibv_devices' >/tmp/said 2>&1\n\
         cat /tmp/said\n\
         grep \"couldn't load driver 'libfaultline-rdmav34.so'\" /tmp/said\n\
         if grep $RDMA_DEV /tmp/said; then exit 4; fi\n\
         ibv_devices | grep $RDMA_DEV",
        SHORT,
    )?;
    Ok(())
}

/// A driver of another version of the device ABI does not touch the device, and says which of the two is old. So does the library
/// about a device of another version.
fn other_abi(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster;
    let (first, _) = pair(cluster)?;
    let base = Base::obtain(scene.workspace, Release::Trixie)?;
    let load = |file, text, version: &str, command: &str| {
        let change = (file, text, version);
        let kernel = cluster.plan.kernel;
        let module = changed_module(scene.workspace, &base, kernel, change, scene.work)?;
        let content = fs::read(&module).with_context(|| format!("reading {}", module.display()))?;
        first.put("/tmp/other.ko", &content)?;
        let script = format!(
            "set -eu\n\
             modprobe -r faultline\n\
             dmesg -C\n\
             insmod /tmp/other.ko\n\
             {command}\n\
             rmmod faultline\n\
             modprobe faultline"
        );
        first.must(&script, SHORT)
    };
    for (version, says) in [
        (
            "(1 << 16)",
            "driver needs 1.0; the driver is too old: update the package faultline-dkms",
        ),
        (
            "(9 << 16)",
            "driver needs 9.0; the device is too old: update the package faultline on the host",
        ),
    ] {
        let command = "test -z \"$(ls /sys/class/infiniband)\"\ndmesg";
        let log = load("faultline_hw.c", "FAULTLINE_ABI_VERSION", version, command)?;
        ensure!(
            log.contains(says),
            "no {says:?} in the kernel's log:\n{log}"
        );
    }
    for (version, says) in [
        (
            "(1 << 16)",
            " has device ABI 1.0, this library needs 2.x; update the packages faultline (host)",
        ),
        (
            "(9 << 16)",
            " has device ABI 9.0, this library needs 2.x; update the packages libfaultline1",
        ),
    ] {
        let command = "udevadm settle\nif ibv_devinfo -d $RDMA_DEV 2>&1; then exit 3; fi";
        let reads = "faultline_read(dev, FAULTLINE_REG_ABI_VERSION)";
        let said = load("faultline_verbs.c", reads, version, command)?;
        ensure!(said.contains(says), "no {says:?} in the output:\n{said}");
    }
    configure(first, &cluster.plan)?;
    pingpong(cluster, "")
}

/// A driver that is built without extensions beyond verbs carries traffic to pinned and to absent memory, and refuses
/// the rest.
fn without_extensions(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster;
    let (first, _) = pair(cluster)?;
    let base = Base::obtain(scene.workspace, Release::Trixie)?;
    let change = (
        "Kbuild",
        "CONFIG_INFINIBAND_FAULTLINE_EXTENSIONS ?= $(CONFIG_MMU_NOTIFIER)",
        "CONFIG_INFINIBAND_FAULTLINE_EXTENSIONS := n",
    );
    let module = changed_module(
        scene.workspace,
        &base,
        cluster.plan.kernel,
        change,
        scene.work,
    )?;
    let content = fs::read(&module).with_context(|| format!("reading {}", module.display()))?;
    first.put("/tmp/other.ko", &content)?;
    first.must("modprobe -r faultline && insmod /tmp/other.ko", SHORT)?;
    configure(first, &cluster.plan)?;
    on_demand(cluster)?;
    let refused = first.run("fault_policy", SHORT)?;
    let said = refused.text();
    ensure!(
        !refused.success() && said.contains("Protocol not supported"),
        "a fault policy is not refused:\n{said}"
    );
    first.must("rmmod faultline && modprobe faultline", SHORT)?;
    configure(first, &cluster.plan)?;
    pingpong(cluster, "")
}

/// A driver for a kernel without CONFIG_INFINIBAND_ON_DEMAND_PAGING carries traffic to pinned memory, and refuses the rest.
fn without_on_demand_paging(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster;
    let (first, _) = pair(cluster)?;
    // The module is built with the headers of the running kernel, with that option undefined.
    let module = "obj-$(CONFIG_INFINIBAND_FAULTLINE) :=";
    let without = "CONFIG_INFINIBAND_ON_DEMAND_PAGING :=\n\
         $(shell printf '\\043undef CONFIG_INFINIBAND_ON_DEMAND_PAGING\\n' >$(obj)/pinned.h)\n\
         ccflags-y += -include $(obj)/pinned.h\n\
         obj-$(CONFIG_INFINIBAND_FAULTLINE) :=";
    let base = Base::obtain(scene.workspace, Release::Trixie)?;
    let change = ("Kbuild", module, without);
    let kernel = cluster.plan.kernel;
    let module = changed_module(scene.workspace, &base, kernel, change, scene.work)?;
    let content = fs::read(&module).with_context(|| format!("reading {}", module.display()))?;
    first.put("/tmp/other.ko", &content)?;
    first.must("modprobe -r faultline && insmod /tmp/other.ko", SHORT)?;
    configure(first, &cluster.plan)?;
    pingpong(cluster, "")?;
    let said = first.must("odp_refused", SHORT)?;
    ensure!(said.contains("PASS"), "odp_refused did not pass:\n{said}");
    first.must("rmmod faultline && modprobe faultline", SHORT)?;
    configure(first, &cluster.plan)?;
    on_demand(cluster)
}

/// Removed packages leave neither files nor the module in the running kernel.
fn removed(cluster: &Cluster) -> Result<()> {
    let (first, _) = pair(cluster)?;
    first.must(
        "set -eux\n\
         apt-get purge -y faultline faultline-dkms faultline-ibverbs-provider libfaultline1 libfaultline-dev\n\
         if getent passwd faultline; then exit 1; fi\n\
         test ! -e /sys/module/faultline\n\
         test ! -e /sys/class/infiniband/$RDMA_DEV\n\
         test -z \"$(dkms status faultline)\"\n\
         if modinfo faultline; then exit 1; fi\n\
         left=$(find / -xdev -path /lab -prune -o -path /usr/local -prune -o -path /var/log -prune -o -path /tmp -prune -o \
           -name '*faultline*' ! -path '/usr/share/faultline-lab*' -print)\n\
         test -z \"$left\"",
        LONG,
    )?;
    Ok(())
}
