//! Packages in a guest that has none: apt installs them, another kernel arrives, apt removes them. The guest boots again between these
//! steps, from the disk to which it wrote.
//!
//! DKMS compiles in the guest. Under TCG that takes half an hour of processor time for each kernel, so there is one guest, with two
//! processors; it sends to itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::installed::{OF_GUEST, booted};
use crate::cluster::{Cluster, Nic, Plan};
use crate::command::capture;
use crate::guest::Guest;
use crate::host::Release;
use crate::image::{Base, Kernel};
use crate::package::Packages;
use crate::workspace::Workspace;

const SHORT: Duration = Duration::from_secs(120);
/// For an installation with a compilation.
const COMPILATION: Duration = Duration::from_secs(90 * 60);

/// A guest's disk, and what boots it.
struct Machine<'a> {
    workspace: &'a Workspace,
    disk: PathBuf,
    /// The folder of the logs.
    dir: &'a Path,
}

impl Machine<'_> {
    /// Boots the guest, runs `act`, and powers it off. `name` is that of the logs.
    fn boot(
        &self,
        name: &str,
        (kernel, nic): (Kernel, Nic),
        act: impl FnOnce(&Cluster) -> Result<()>,
    ) -> Result<()> {
        let logs = self.dir.join(format!("packages-apt-{name}"));
        fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
        let plan = Plan {
            guests: 1,
            cpus: Some(2),
            kernel,
            nic,
            stock: Some(self.disk.clone()),
            own_disks: vec![self.disk.clone()],
            append: "systemd.firstboot=off".to_owned(),
            ..Plan::default()
        };
        let cluster = Cluster::boot(self.workspace, &plan, &logs)?;
        let result = act(&cluster);
        cluster.save_logs();
        result.with_context(|| format!("guest of {}", logs.display()))?;
        only_guest(&cluster)?.power_off(SHORT)?;
        let troubles = cluster.troubles();
        ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
        let state = capture(Command::new("dumpe2fs").arg("-h").arg(&self.disk))?;
        // Without a journal, only a file system that was unmounted is clean.
        let is_clean =
            |line: &str| line.starts_with("Filesystem state:") && line.ends_with(" clean");
        ensure!(
            state.lines().any(is_clean),
            "{} was not unmounted:\n{state}",
            self.disk.display()
        );
        Ok(())
    }
}

fn only_guest(cluster: &Cluster) -> Result<&Guest> {
    cluster
        .guests
        .first()
        .map(AsRef::as_ref)
        .context("no guest")
}

/// Runs all steps. `work` is an empty folder for the disk.
pub fn run(
    workspace: &Workspace,
    packages: &Packages,
    first: Kernel,
    work: &Path,
    dir: &Path,
) -> Result<()> {
    let base = Base::obtain(workspace, Release::Trixie)?;
    let other = match first {
        Kernel::Stable => Kernel::Backports,
        _ => Kernel::Stable,
    };
    let disk = packages.bare_disk(
        &base.kernel_release(first)?,
        work,
        &dir.join("packages-apt-disk.log"),
    )?;
    let machine = Machine {
        workspace,
        disk,
        dir,
    };
    machine.boot("install", (first, Nic::None), |cluster| {
        install(cluster, packages)
    })?;
    machine.boot("installed", (first, Nic::Faultline), |cluster| {
        booted(cluster)?;
        with_itself(cluster)
    })?;
    let release = base.kernel_release(other)?;
    machine.boot("update", (first, Nic::Faultline), |cluster| {
        update(cluster, &release)
    })?;
    machine.boot("updated", (other, Nic::Faultline), |cluster| {
        booted(cluster)?;
        with_itself(cluster)?;
        remove(cluster)
    })?;
    machine.boot("removed", (first, Nic::None), gone)
}

/// apt installs the packages as files. Nothing else is needed from an archive.
fn install(cluster: &Cluster, packages: &Packages) -> Result<()> {
    let guest = only_guest(cluster)?;
    for package in OF_GUEST {
        let file = packages.file(package)?;
        let content = fs::read(file).with_context(|| format!("reading {package}"))?;
        guest.put(&format!("/root/{package}.deb"), &content)?;
    }
    guest.must(
        "set -eux\n\
         if modinfo faultline || dpkg -l | grep faultline; then exit 1; fi\n\
         cd /root && apt-get install -y ./*.deb && rm ./*.deb",
        COMPILATION,
    )?;
    Ok(())
}

/// Makes the headers of another kernel available and runs the postinst script of their package, which calls DKMS.
fn update(cluster: &Cluster, release: &str) -> Result<()> {
    let guest = only_guest(cluster)?;
    guest.must(
        &format!(
            "set -eux\n\
             if dkms status -k {release} | grep ': installed'; then exit 1; fi\n\
             mv /root/headers/{release} /usr/lib/modules/{release}/build\n\
             dpkg-reconfigure linux-headers-{release}\n\
             dkms status -k {release} | grep '^faultline/.*: installed'"
        ),
        COMPILATION,
    )?;
    Ok(())
}

/// A ping-pong and page faults of one guest's NIC with itself.
fn with_itself(cluster: &Cluster) -> Result<()> {
    let guest = only_guest(cluster)?;
    guest.must(
        "set -eu\n\
         ibv_rc_pingpong -c -o -d $RDMA_DEV -g $GID_INDEX >/tmp/server &\n\
         for _ in $(seq 100); do ss -ltn | grep -q :18515 && break; sleep 0.1; done\n\
         ibv_rc_pingpong -c -o -d $RDMA_DEV -g $GID_INDEX localhost\n\
         wait $!\n\
         grep usec/iter /tmp/server\n\
         odp_faults kept | grep PASS",
        SHORT,
    )?;
    Ok(())
}

fn remove(cluster: &Cluster) -> Result<()> {
    let guest = only_guest(cluster)?;
    guest.must(
        &format!("apt-get purge -y {}", OF_GUEST.join(" ")),
        SHORT * 5,
    )?;
    Ok(())
}

/// After a removal and a boot, neither the module nor a file of the project is there; the compiled modules of both kernels are gone.
fn gone(cluster: &Cluster) -> Result<()> {
    let guest = only_guest(cluster)?;
    guest.must(
        "set -eux\n\
         systemctl is-active systemd-modules-load\n\
         test ! -e /sys/module/faultline\n\
         if modinfo faultline; then exit 1; fi\n\
         left=$(find /etc /usr /var -xdev -path /usr/local -prune -o -path /var/log -prune -o \
           -name '*faultline*' ! -path '/usr/share/faultline-lab*' -print)\n\
         test -z \"$left\"",
        SHORT,
    )?;
    Ok(())
}
