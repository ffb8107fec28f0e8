//! Executes the commands of `docs/tutorial-own-vm.md`: in a root in which the package of the host gets installed, and in guests that boot
//! with the QEMU command lines of the document.
//!
//! The root has no systemd, so a script does what the unit says. QEMU gets the lab's kernel and its channels to the guest as well. The
//! packages of the guest are on its disk already, because the guest has no network and a compiler takes minutes in it: apt finds
//! them up to date.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::installed::OF_GUEST;
use super::sight::tutorial::{Place, Step, missing, steps};
use crate::cluster::{Cluster, Nic, Plan};
use crate::command::{Owned, capture, tail};
use crate::guest::{Guest, Running};
use crate::host;
use crate::image::Kernel;
use crate::package::Packages;
use crate::protocol::Exec;
use crate::workspace::Workspace;

const DOCUMENT: &str = "docs/tutorial-own-vm.md";
/// Disks in the document.
const DISKS: [&str; 2] = ["file=vm.img,", "file=vm2.img,"];
/// Hardware virtualization in the document, and the text for hosts without it.
const ACCELERATION: [&str; 2] = ["-accel kvm -cpu host", "-accel tcg -cpu max"];
/// The folder of the sockets in the document.
const SOCKETS: &str = "/run/faultline/";
const START_LIMIT: Duration = Duration::from_secs(60);
/// For one command in a guest. apt is slow without hardware virtualization.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);

/// Runs all commands in their order. `work` is a folder with the packages, mounted in the root; `disk` is a disk on which those of the
/// guest are installed.
pub fn run(
    workspace: &Workspace,
    packages: &Packages,
    kernel: Kernel,
    disk: &Path,
    work: &Path,
    dir: &Path,
) -> Result<()> {
    let text = fs::read_to_string(workspace.root().join(DOCUMENT))
        .with_context(|| format!("reading {DOCUMENT}"))?;
    let steps = steps(&text);
    let commands = on_host(&steps)?;
    let service = serve(packages, commands.install, work, dir)?;
    let machines = commands.machines.iter().zip(DISKS);
    let machines = machines.map(|(command, name)| machine(command, name, disk, work));
    let machines: Vec<_> = machines.collect::<Result<_>>()?;
    let plan = Plan {
        guests: machines.len(),
        kernel,
        nic: Nic::None,
        stock: Some(disk.to_owned()),
        machines: Some(machines),
        append: "systemd.firstboot=off".to_owned(),
        ..Plan::default()
    };
    let logs = dir.join("packages-tutorial");
    fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    let cluster = Cluster::boot(workspace, &plan, &logs)?;
    for guest in &cluster.guests {
        for package in OF_GUEST {
            let file = packages.file(package)?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let content = fs::read(file).with_context(|| format!("reading {name}"))?;
            guest.put(&format!("/root/{name}"), &content)?;
        }
    }
    let mut log = String::new();
    let result = in_guests(&cluster, &steps, &mut log);
    fs::write(logs.join("commands.log"), &log).context("writing a log")?;
    cluster.save_logs();
    result?;
    let troubles = cluster.troubles();
    ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
    drop(cluster);
    drop(service);
    Ok(())
}

/// The commands on the host, without `sudo`.
struct HostCommands<'a> {
    install: &'a str,
    /// QEMU's arguments.
    machines: Vec<&'a str>,
}

fn on_host(steps: &[Step]) -> Result<HostCommands<'_>> {
    let (mut install, mut machines) = (None, Vec::new());
    for step in steps.iter().filter(|step| step.place == Place::Host) {
        let command = step.command.strip_prefix("sudo ").unwrap_or(&step.command);
        match command.strip_prefix("qemu-system-x86_64 ") {
            Some(arguments) => machines.push(arguments),
            None if install.is_none() && command.starts_with("apt install ") => {
                install = Some(command);
            }
            None => bail!("{DOCUMENT}: the test cannot run {command:?}"),
        }
    }
    ensure!(
        machines.len() == DISKS.len(),
        "{DOCUMENT}: {} machines are booted, not {}",
        machines.len(),
        DISKS.len()
    );
    Ok(HostCommands {
        install: install.context("the package of the host is not installed")?,
        machines,
    })
}

/// Installs the package of the host and serves its NICs until the value is dropped.
fn serve(packages: &Packages, install: &str, work: &Path, dir: &Path) -> Result<Owned> {
    let log = dir.join("packages-tutorial-host.log");
    let file = File::create(&log).context("creating a log")?;
    let mut command = packages.serve(work, install);
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("duplicating the log")?)
        .stderr(file);
    let mut service = Owned::spawn(&mut command)?;
    let started = Instant::now();
    while !work.join("faultline/nic1.sock").exists() {
        let said = || tail(&fs::read(&log).unwrap_or_default(), 20);
        if let Some(status) = service.ended() {
            bail!(
                "the package of the host does not serve ({status}):\n{}",
                said()
            );
        }
        ensure!(
            started.elapsed() < START_LIMIT,
            "the package of the host makes no sockets:\n{}",
            said()
        );
        thread::sleep(Duration::from_millis(50));
    }
    Ok(service)
}

/// The arguments of a QEMU command with the test's disk, which stays unchanged, and sockets.
fn machine(command: &str, name: &str, disk: &Path, work: &Path) -> Result<Vec<String>> {
    let [kvm, tcg] = ACCELERATION;
    for part in [name, SOCKETS, kvm] {
        ensure!(
            command.contains(part),
            "{DOCUMENT}: no {part} in {command:?}"
        );
    }
    let disk = format!("snapshot=on,cache=unsafe,file={},", disk.display());
    let sockets = format!("{}/faultline/", work.display());
    let mut command = command.replace(name, &disk).replace(SOCKETS, &sockets);
    if !host::has_kvm() {
        command = command.replace(kvm, tcg);
    }
    // A shell takes the quotes away.
    let script = format!("printf '%s\\n' {command}");
    let words = capture(Command::new("sh").args(["-c", &script]))?;
    Ok(words.lines().map(str::to_owned).collect())
}

fn in_guests(cluster: &Cluster, steps: &[Step], log: &mut String) -> Result<()> {
    let mut server: Option<(&Guest, Running<'_>)> = None;
    for step in steps {
        let Place::Guest(index) = step.place else {
            continue;
        };
        let context = || format!("{DOCUMENT}: {}", step.command);
        let guest = cluster.guests.get(index).with_context(context)?;
        *log += &format!("--- guest {index}: {}\n", step.command);
        if let Some(command) = step.command.strip_suffix('&') {
            let running = guest.start(&Exec {
                script: format!("exec {command}"),
                ..Exec::default()
            })?;
            guest
                .must("lab_until 20 lab_listens 18515", COMMAND_LIMIT)
                .with_context(context)?;
            server = Some((guest, running));
            continue;
        }
        let script = format!("cd /root\n{}", step.command);
        let output = guest.must(&script, COMMAND_LIMIT).with_context(context)?;
        *log += &output;
        if let Some(line) = missing(&step.shown, &output) {
            bail!(
                "{}: the output has no line like {line:?} in this place:\n{output}",
                context()
            );
        }
        if let Some((guest, running)) = server.take() {
            let outcome = running.wait_more(COMMAND_LIMIT)?;
            ensure!(
                outcome.success(),
                "{}: the server in guest {}: {}",
                context(),
                guest.index,
                outcome.text()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_commands_that_the_test_can_run() {
        let text = include_str!("../../../docs/tutorial-own-vm.md");
        let steps = steps(text);
        let commands = on_host(&steps).unwrap();
        assert_eq!(commands.install, "apt install ./faultline_*.deb");
        let (disk, work) = (Path::new("/d"), Path::new("/w"));
        let words = machine(commands.machines[1], DISKS[1], disk, work).unwrap();
        for word in [
            "snapshot=on,cache=unsafe,file=/d,format=raw,if=virtio",
            "q35,memory-backend=ram",
            "{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/w/faultline/nic1.sock\"}}",
        ] {
            assert!(words.iter().any(|found| found == word), "{words:?}");
        }
        let shown: Vec<_> = steps.iter().filter(|step| !step.shown.is_empty()).collect();
        assert_eq!(shown.len(), 2);
    }
}
