//! Virtual machines that libvirt runs by the steps of the package's README.Debian and its example. The scripts name the
//! differences from the example, with their reasons.
//!
//! Two machines send messages in a root in which the package of the host gets installed. The root has neither systemd nor AppArmor nor
//! cgroups. A guest has them, but is too slow for machines that boot a system: there QEMU only attaches a NIC.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::{Cluster, Nic, Plan};
use crate::driver::copy_tree;
use crate::guest::complaints;
use crate::host::{Release, has_kvm};
use crate::image::{Base, Kernel};
use crate::initrd;
use crate::package::Packages;
use crate::qemu::command_line;
use crate::vmlinux;
use crate::workspace::Workspace;

/// Further parameters of the kernel: under TCG the machine's AppArmor loads its profiles for two minutes.
const APPEND: &str = "systemd.firstboot=off apparmor=0";
/// The consoles of the machines among the logs of libvirt.
const CONSOLES: [&str; 2] = ["console0.log", "console1.log"];

/// For the start of libvirt and of a machine in a guest.
const CONFINED_LIMIT: Duration = Duration::from_secs(300);

/// Runs two machines in a root. `work` is a folder with the packages and the disk `disk`, on which those of the guest are installed.
pub fn run(
    workspace: &Workspace,
    packages: &Packages,
    kernel: Kernel,
    work: &Path,
    dir: &Path,
) -> Result<()> {
    let base = Base::obtain(workspace, Release::Trixie)?;
    let from = vmlinux::obtain(workspace, &base, kernel)?;
    fs::copy(&from, work.join("kernel")).with_context(|| format!("copying {}", from.display()))?;
    let contents = initrd::Contents {
        base: &base,
        kernel,
        overlays: &[],
        index: 0,
        stock_init: true,
    };
    initrd::write(&work.join("initrd"), workspace, &contents)?;
    let cmdline = format!("{} {APPEND}", command_line(has_kvm()));
    let booted = packages.boot_with_libvirt(&cmdline, work, &dir.join("packages-libvirt.log"));
    let logs = dir.join("packages-libvirt");
    let copied = copy_tree(&work.join("logs"), &logs);
    booted?;
    copied?;
    for name in CONSOLES {
        let path = logs.join("libvirt/qemu").join(name);
        let console = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let complaints = complaints(&String::from_utf8_lossy(&console));
        ensure!(
            complaints.is_empty(),
            "{name}: the kernel complained:\n{}",
            complaints.join("\n")
        );
    }
    Ok(())
}

/// Attaches a NIC in a guest, in the sandboxes of systemd and of AppArmor. `work` is an empty folder for the guest's disk.
pub fn run_confined(
    workspace: &Workspace,
    packages: &Packages,
    kernel: Kernel,
    work: &Path,
    dir: &Path,
) -> Result<()> {
    let logs = dir.join("packages-libvirt_confined");
    fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    let disk = packages.libvirt_disk(work, &logs.join("disk.log"))?;
    let plan = Plan {
        guests: 1,
        kernel,
        nic: Nic::None,
        stock: Some(disk),
        memory: 2048,
        append: "systemd.firstboot=off".to_owned(),
        ..Plan::default()
    };
    let cluster = Cluster::boot(workspace, &plan, &logs)?;
    let [guest] = cluster.guests.as_slice() else {
        bail!("one guest is needed");
    };
    let result = guest.must("libvirt_confined", CONFINED_LIMIT);
    cluster.save_logs();
    fs::write(logs.join("libvirt.log"), result?).context("writing a log")?;
    let troubles = cluster.troubles();
    ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
    Ok(())
}
