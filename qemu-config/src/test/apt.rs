//! Packages in guests that have none: apt installs them, another kernel arrives, apt removes them. Guests boot again between these
//! steps, from the disks to which they wrote.
//!
//! DKMS compiles in the guests, which takes a quarter of an hour for each kernel under TCG.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::installed::{OF_GUEST, booted, on_demand, pingpong};
use crate::cluster::{Cluster, Nic, Plan};
use crate::command::capture;
use crate::host::Release;
use crate::image::{Base, Kernel};
use crate::package::Packages;
use crate::workspace::Workspace;

const SHORT: Duration = Duration::from_secs(120);
/// For an installation with a compilation.
const COMPILATION: Duration = Duration::from_secs(45 * 60);

/// The guests' disks, and what boots them.
struct Machines<'a> {
    workspace: &'a Workspace,
    /// A disk for each guest.
    disks: Vec<PathBuf>,
    /// The folder of the logs.
    dir: &'a Path,
}

impl Machines<'_> {
    /// Boots guests, runs `act`, and powers them off. `name` is that of the logs.
    fn boot(
        &self,
        name: &str,
        (guests, kernel, nic): (usize, Kernel, Nic),
        act: impl FnOnce(&Cluster) -> Result<()>,
    ) -> Result<()> {
        let logs = self.dir.join(format!("packages-apt-{name}"));
        fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
        let plan = Plan {
            guests,
            kernel,
            nic,
            stock: self.disks.first().cloned(),
            own_disks: self.disks.clone(),
            append: "systemd.firstboot=off".to_owned(),
            ..Plan::default()
        };
        let cluster = Cluster::boot(self.workspace, &plan, &logs)?;
        let result = act(&cluster);
        cluster.save_logs();
        result.with_context(|| format!("guests of {}", logs.display()))?;
        for guest in &cluster.guests {
            guest.power_off(SHORT)?;
        }
        let troubles = cluster.troubles();
        ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
        for disk in self.disks.iter().take(guests) {
            let state = capture(Command::new("dumpe2fs").arg("-h").arg(disk))?;
            // Without a journal, only a file system that was unmounted is clean.
            ensure!(
                state
                    .lines()
                    .any(|line| line.starts_with("Filesystem state:") && line.ends_with(" clean")),
                "{} was not unmounted:\n{state}",
                disk.display()
            );
        }
        Ok(())
    }
}

/// Runs all steps. `work` is an empty folder for the disks.
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
    let second = work.join("second");
    capture(
        Command::new("cp")
            .args(["--sparse=always", "--"])
            .args([&disk, &second]),
    )?;
    let machines = Machines {
        workspace,
        disks: vec![disk, second],
        dir,
    };
    machines.boot("install", (2, first, Nic::None), |cluster| {
        install(cluster, packages)
    })?;
    machines.boot("installed", (2, first, Nic::Faultline), |cluster| {
        booted(cluster)?;
        pingpong(cluster, "")?;
        on_demand(cluster)
    })?;
    // In a second guest the compiler would do the same once more.
    let release = base.kernel_release(other)?;
    machines.boot("update", (1, first, Nic::Faultline), |cluster| {
        update(cluster, &release)
    })?;
    machines.boot("updated", (1, other, Nic::Faultline), |cluster| {
        booted(cluster)?;
        with_itself(cluster)?;
        remove(cluster)
    })?;
    machines.boot("removed", (1, first, Nic::None), gone)
}

/// apt installs the packages as files. Nothing else is needed from an archive.
fn install(cluster: &Cluster, packages: &Packages) -> Result<()> {
    let mut commands = Vec::new();
    for guest in &cluster.guests {
        for package in OF_GUEST {
            let file = packages.file(package)?;
            let content = fs::read(file).with_context(|| format!("reading {package}"))?;
            guest.put(&format!("/root/{package}.deb"), &content)?;
        }
        commands.push(
            guest.start(&crate::protocol::Exec {
                script: "set -eux\n\
                     if modinfo faultline || dpkg -l | grep faultline; then exit 1; fi\n\
                     cd /root && apt-get install -y ./*.deb && rm ./*.deb"
                    .to_owned(),
                ..Default::default()
            })?,
        );
    }
    for command in commands {
        let outcome = command.wait(COMPILATION, &mut |_| ())?;
        ensure!(
            outcome.success(),
            "apt: {}:\n{}",
            outcome.describe(),
            String::from_utf8_lossy(&outcome.both)
        );
    }
    Ok(())
}

/// Makes the headers of another kernel available and runs the postinst script of their package, which calls DKMS.
fn update(cluster: &Cluster, release: &str) -> Result<()> {
    let guest = cluster.guests.first().context("no guest")?;
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
    let guest = cluster.guests.first().context("no guest")?;
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
    let guest = cluster.guests.first().context("no guest")?;
    guest.must(
        &format!("apt-get purge -y {}", OF_GUEST.join(" ")),
        SHORT * 5,
    )?;
    Ok(())
}

/// After a removal and a boot, neither the module nor a file of the project is there; the compiled modules of both kernels are gone.
fn gone(cluster: &Cluster) -> Result<()> {
    let guest = cluster.guests.first().context("no guest")?;
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
