//! Two virtual machines that libvirt runs by the steps of the package's README.Debian and its example, in a root in which the package
//! of the host gets installed. The script says what differs from the example, and why.
//!
//! The root has neither systemd nor AppArmor nor cgroups.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::driver::copy_tree;
use crate::guest::complaints;
use crate::host::Release;
use crate::image::{Base, Kernel};
use crate::initrd;
use crate::package::Packages;
use crate::qemu::COMMAND_LINE;
use crate::vmlinux;
use crate::workspace::Workspace;

/// What else the kernel is told: under TCG the machine's AppArmor loads its profiles for two minutes.
const APPEND: &str = "systemd.firstboot=off apparmor=0";
/// The consoles of the machines among the logs of libvirt.
const CONSOLES: [&str; 2] = ["console0.log", "console1.log"];

/// Runs the script. `work` is a folder with the packages and the disk `disk`, on which those of the guest are installed.
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
    let cmdline = format!("{COMMAND_LINE} {APPEND}");
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
