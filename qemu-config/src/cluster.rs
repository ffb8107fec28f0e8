//! Clusters: several guests on one emulator, which are started, get their addresses, and are stopped together.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::command::say;
use crate::emulator::{self, Emulator, Profile, Settings};
use crate::guest::{Booting, Guest, complaints, without_rxe_warnings};
use crate::host;
use crate::image::{Base, Kernel};
use crate::initrd;
use crate::prepare::{self, LongBuild, Needs, Prepared};
use crate::priority::Priority;
use crate::programs::Selection;
use crate::qemu::{Backing, Hardware, Machine, Qemu, Wire};
use crate::races;
use crate::socket_folder::SocketFolder;
use crate::vmlinux;
use crate::wakeups;
use crate::wiring::{WireBetween, Wiring};
use crate::workspace::Workspace;

/// The device that carries the guests' RDMA traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Nic {
    /// The project's NIC.
    Faultline,
    /// The kernel's `rdma_rxe` over virtio-net, for comparison (two guests).
    Rxe,
    /// The project's NIC in the first of two guests, the kernel's `rdma_rxe` over virtio-net in the second.
    Mixed,
    /// The same with virtio-net by vhost-user, so that it has several queues and offloads.
    Vhost,
    /// Nothing: a bare guest.
    None,
}

impl Nic {
    /// True if the first guest has the project's NIC and the second has virtio-net.
    fn is_mixed(self) -> bool {
        matches!(self, Self::Mixed | Self::Vhost)
    }
}

/// For each step of setting up a guest.
const SETUP_LIMIT: Duration = Duration::from_secs(60);
/// Factor of this limit for guests that boot with a low priority.
const BESIDE_LIMIT: u32 = 10;

/// A cluster to boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Number of guests.
    pub guests: usize,
    /// Their kernel.
    pub kernel: Kernel,
    /// Packages to install on top of the base image.
    pub packages: Vec<String>,
    /// The guests get software that Debian has as source only.
    pub upstream: bool,
    /// Further software that the guests get, in order.
    pub long_builds: Vec<LongBuild>,
    /// The programs of `tests/guest` that the guests get.
    pub programs: Selection,
    /// A configuration file for the emulator.
    pub config: Option<PathBuf>,
    /// Profile of the NICs: its name, or the path of a file.
    pub nic_profile: Option<String>,
    /// Path of the emulator's control socket, instead of one in the run's folder.
    pub control: Option<PathBuf>,
    /// A supervisor holds the guests' connections, and starts the emulator again.
    pub supervisor: bool,
    /// A disk on which Debian's own init boots, with the packages of the driver, instead of the lab's image and driver.
    pub stock: Option<PathBuf>,
    /// One such disk per guest. Writes go to the disk and are kept across boots.
    pub own_disks: Vec<PathBuf>,
    /// QEMU arguments of a user for each guest, instead of those for memory, processors, disk, and NIC.
    pub machines: Option<Vec<Vec<String>>>,
    /// The device under test.
    pub nic: Nic,
    /// What connects the guests' NICs.
    pub wiring: Wiring,
    /// The profile in which the emulator is built.
    pub profile: Profile,
    /// Virtual CPUs of each guest; if `None`, two with KVM and one without.
    ///
    /// With one, QEMU's TCG is told that there can be two (`maxcpus`). Otherwise it executes LOCKed instructions as ordinary ones.
    ///
    /// QEMU's multi-threaded TCG has a race with a kernel that patches its own code on another CPU
    /// ("Oops: int3" in about one boot of thirty), and more virtual CPUs than cores make
    /// everything slower.
    pub cpus: Option<u32>,
    /// Guests of other clusters that run at the same time and share the host's cores.
    pub neighbours: usize,
    /// MiB of memory of each guest.
    pub memory: u32,
    /// Further hardware of each guest.
    pub hardware: Hardware,
    /// MTU of the guests' network interfaces; the driver's own choice if `None`.
    pub mtu: Option<u32>,
    /// Boot the packaged kernel, and not the uncompressed one. That one boots faster, but QEMU copies it into memory
    /// again, over the changes of the running kernel, when a machine wakes up from S3.
    pub packaged_kernel: bool,
    /// Additional kernel command line.
    pub append: String,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            guests: 2,
            kernel: Kernel::Stable,
            packages: Vec::new(),
            upstream: false,
            long_builds: Vec::new(),
            programs: Selection::All,
            config: None,
            nic_profile: None,
            control: None,
            supervisor: false,
            stock: None,
            own_disks: Vec::new(),
            machines: None,
            nic: Nic::Faultline,
            wiring: Wiring::Switch,
            profile: Profile::Quick,
            cpus: None,
            neighbours: 0,
            memory: 1024,
            hardware: Hardware::default(),
            mtu: None,
            packaged_kernel: false,
            append: String::new(),
        }
    }
}

/// Running guests and the device that connects them.
pub struct Cluster {
    /// The plan that was booted.
    pub plan: Plan,
    /// The guests, by index.
    pub guests: Vec<Arc<Guest>>,
    /// The emulator, if the plan has one; the first guest's, if each has its own.
    pub emulator: Option<Emulator>,
    /// The program of the emulators.
    program: Option<PathBuf>,
    /// The second guest's emulator, if it has its own, and its connection to the first.
    second: Option<(Emulator, WireBetween)>,
    /// Logs of this run.
    pub dir: PathBuf,
    /// QEMU, for messages.
    pub qemu: Qemu,
    /// Versions of everything that was booted.
    pub versions: Vec<(String, String)>,
    /// How often it was booted again because of [`TCG_RACE`] or [`FAST_CLOCK`].
    pub repeated: usize,
    /// Sockets; in a short path because a socket's address holds 108 bytes.
    _sockets: SocketFolder,
}

/// The IPv4 address of a guest.
pub fn address(index: usize) -> String {
    format!("10.77.0.{}", index + 1)
}

/// The IPv6 address of a guest.
pub fn address6(index: usize) -> String {
    format!("fd77::{:x}", index + 1)
}

/// What a cluster is booted from.
struct Parts<'a> {
    workspace: &'a Workspace,
    plan: &'a Plan,
    qemu: Qemu,
    base: Base,
    /// The disk of the guests.
    disk: PathBuf,
    /// Folders whose files are added to the guests' initrd: programs, and the driver.
    overlays: Vec<PathBuf>,
    kvm: bool,
    /// Virtual CPUs of each guest.
    cpus: u32,
}

impl<'a> Parts<'a> {
    /// Builds or downloads what is absent.
    fn obtain(workspace: &'a Workspace, plan: &'a Plan) -> Result<Self> {
        ensure!(
            (1..=32).contains(&plan.guests),
            "{} guests: 1 to 32 are possible",
            plan.guests
        );
        ensure!(
            plan.nic != Nic::Rxe || plan.guests == 2,
            "rxe over virtio-net joins exactly two guests"
        );
        ensure!(
            !plan.nic.is_mixed() || plan.guests == 2,
            "the NIC and rxe need exactly two guests"
        );
        ensure!(
            !plan.wiring.is_between_emulators() || plan.guests == 2 && plan.nic == Nic::Faultline,
            "a wire between emulators needs exactly two guests with the project's NIC"
        );
        ensure!(
            plan.hardware.further_nics == 0
                || plan.nic == Nic::Faultline && !plan.wiring.is_between_emulators(),
            "further NICs need guests with the project's NIC, on one emulator"
        );
        let has_nic = !matches!(plan.nic, Nic::Rxe | Nic::None);
        let needs = Needs {
            kernel: plan.kernel,
            packages: &plan.packages,
            programs: plan.programs,
            disk: plan.stock.as_deref(),
            driver: has_nic && plan.stock.is_none(),
            upstream: plan.upstream,
            long_builds: &plan.long_builds,
            emulator: has_nic.then_some(plan.profile),
        };
        let Prepared {
            qemu,
            base,
            disk,
            overlays,
        } = prepare::obtain(workspace, &needs)?;
        let kvm = host::has_kvm();
        Ok(Self {
            workspace,
            plan,
            qemu,
            base,
            disk,
            overlays,
            kvm,
            cpus: plan.cpus.unwrap_or(if kvm { 2 } else { 1 }),
        })
    }

    fn versions(&self) -> Result<Vec<(String, String)>> {
        let mut versions = vec![("qemu".to_owned(), self.qemu.version.clone())];
        versions.extend(self.base.versions()?);
        Ok(versions)
    }

    /// Starts the emulators with sockets in `sockets`; their logs go to `dir`.
    fn start_emulators(
        &self,
        program: &Path,
        sockets: &Path,
        dir: &Path,
    ) -> Result<(Emulator, Option<(Emulator, WireBetween)>)> {
        let start =
            |nics, settings: &Settings<'_>| Emulator::start(program, nics, settings, sockets, dir);
        if !self.plan.wiring.is_between_emulators() {
            let (nics, ports) = match self.plan.nic {
                Nic::Mixed | Nic::Vhost => {
                    let socket = virtio_socket(sockets, 1);
                    let keys = match self.plan.nic {
                        Nic::Vhost => "kind = \"vhost-user-net\"\nsocket = \"",
                        _ => "kind = \"stream\"\nlisten = \"unix:",
                    };
                    let socket = socket.display();
                    let port = format!("[[port]]\nname = \"virtio1\"\n{keys}{socket}\"\n");
                    (0..1, port)
                }
                _ => {
                    let each = 1 + self.plan.hardware.further_nics as usize;
                    (0..self.plan.guests * each, String::new())
                }
            };
            return Ok((start(nics, &self.settings(ports, None))?, None));
        }
        let mut wire = WireBetween::new(self.plan.wiring)?;
        let tcp_port = free_tcp_port()?;
        let mut emulators = (0..2).map(|index| {
            let ports = wire.port(index, sockets, tcp_port);
            let settings = self.settings(ports, wire.namespace(index));
            start(index..index + 1, &settings)
        });
        let (Some(first), Some(second)) = (emulators.next(), emulators.next()) else {
            bail!("two emulators are needed");
        };
        let (first, second) = (first?, second?);
        drop(emulators);
        wire.connect()?;
        Ok((first, Some((second, wire))))
    }

    fn settings(&self, ports: String, namespace: Option<String>) -> Settings<'_> {
        let plan = self.plan;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Settings {
            config: plan.config.as_deref(),
            nic_profile: plan.nic_profile.as_deref(),
            control: plan.control.as_deref(),
            engines: plan.wiring.engines(),
            supervisor: plan.supervisor,
            crowded: cores <= (plan.guests + plan.neighbours) * self.cpus as usize,
            ports,
            namespace,
        }
    }

    /// A guest's machine, with its initrd and the files of its further devices in `sockets`.
    fn machine(
        &self,
        index: usize,
        sockets: &Path,
        logs: &Path,
        nics: Vec<PathBuf>,
    ) -> Result<Machine> {
        let (plan, base) = (self.plan, &self.base);
        let initrd = sockets.join(format!("initrd{index}"));
        let contents = initrd::Contents {
            base,
            kernel: plan.kernel,
            overlays: &self.overlays,
            index,
            stock_init: plan.stock.is_some(),
        };
        initrd::write(&initrd, self.workspace, &contents)?;
        Ok(Machine {
            kvm: self.kvm,
            cpus: self.cpus,
            memory: plan.memory,
            kernel: match plan.packaged_kernel {
                true => base.vmlinuz(plan.kernel)?,
                false => vmlinux::obtain(self.workspace, base, plan.kernel)?,
            },
            initrd,
            disk: plan.own_disks.get(index).unwrap_or(&self.disk).clone(),
            keeps_writes: index < plan.own_disks.len(),
            serial: logs.join("serial.log"),
            agent: sockets.join(format!("agent{index}")),
            console: sockets.join(format!("console{index}")),
            nics,
            wire: match plan.nic {
                Nic::Rxe => Some(Wire {
                    socket: sockets.join("wire"),
                    listens: index == 0,
                    is_vhost: false,
                }),
                Nic::Mixed | Nic::Vhost if index > 0 => Some(Wire {
                    socket: virtio_socket(sockets, index),
                    listens: false,
                    is_vhost: plan.nic == Nic::Vhost,
                }),
                Nic::Mixed | Nic::Vhost | Nic::Faultline | Nic::None => None,
            },
            index,
            append: plan.append.clone(),
            nodes: plan.hardware.nodes,
            viommu: plan.hardware.viommu,
            backing: back(&plan.hardware, sockets, index)?,
            of_user: plan.machines.as_ref().and_then(|of| of.get(index).cloned()),
        })
    }
}

type Guests = Arc<Mutex<Vec<Weak<Guest>>>>;

/// Builds or downloads the absent parts for guests of a plan.
pub fn prepare(workspace: &Workspace, plan: &Plan) -> Result<()> {
    let parts = Parts::obtain(workspace, plan)?;
    vmlinux::obtain(workspace, &parts.base, plan.kernel).map(|_| ())
}

impl Cluster {
    /// Boots the plan; logs go to `dir`.
    ///
    /// Must be called on a thread that lives as long as the cluster: QEMU and the emulator die with it.
    pub fn boot(workspace: &Workspace, plan: &Plan, dir: &Path) -> Result<Self> {
        Self::boot_with(workspace, plan, dir, &Priority::default())
    }

    /// The same, with this priority.
    pub fn boot_with(
        workspace: &Workspace,
        plan: &Plan,
        dir: &Path,
        priority: &Priority,
    ) -> Result<Self> {
        let mut repeated = 0;
        loop {
            let booted = Self::boot_once(workspace, plan, dir, priority);
            let reason = match &booted {
                Err(error) if repeated < 2 => not_ours(&format!("{error:#}")),
                _ => None,
            };
            let Some(reason) = reason else {
                return booted.map(|cluster| Self {
                    repeated,
                    ..cluster
                });
            };
            say(format!("{reason}; booting again"));
            repeated += 1;
        }
    }

    fn boot_once(
        workspace: &Workspace,
        plan: &Plan,
        dir: &Path,
        priority: &Priority,
    ) -> Result<Self> {
        let parts = Parts::obtain(workspace, plan)?;
        let mut versions = parts.versions()?;
        let sockets = SocketFolder::new()?;
        let (program, emulator, second) = match plan.nic {
            Nic::Faultline | Nic::Mixed | Nic::Vhost => {
                let program = emulator::build(workspace, plan.profile)?;
                versions.push(("faultline".into(), emulator::version(&program)));
                let (emulator, second) = parts.start_emulators(&program, sockets.path(), dir)?;
                for emulator in std::iter::once(&emulator).chain(second.iter().map(|(it, _)| it)) {
                    priority.add(emulator.id(), emulator::NICENESS);
                }
                (Some(program), Some(emulator), second)
            }
            Nic::Rxe | Nic::None => (None, None, None),
        };
        let text: String = versions
            .iter()
            .map(|(name, version)| format!("{name} {version}\n"))
            .collect();
        std::fs::write(dir.join("versions"), text).context("recording versions")?;

        let time_factor =
            plan.kernel.time_factor() * if priority.is_low() { BESIDE_LIMIT } else { 1 };
        let known: Guests = Arc::default();
        let on_barrier = barrier(known.clone(), plan.guests);
        let started = Instant::now();
        let mut booting = Vec::new();
        for index in 0..plan.guests {
            let logs = dir.join(format!("guest{index}"));
            std::fs::create_dir_all(&logs)
                .with_context(|| format!("creating {}", logs.display()))?;
            let (of, at) = match &second {
                Some((second, _)) if index == 1 => (Some(second), 0),
                _ => (emulator.as_ref(), index),
            };
            // The first NICs of all guests have the first numbers.
            let sockets_of = of.map_or(&[][..], |emulator| &emulator.sockets);
            let nics = sockets_of.iter().skip(at).step_by(plan.guests).cloned();
            let machine = parts.machine(index, sockets.path(), &logs, nics.collect())?;
            let guest = Booting::start(&parts.qemu, &machine, &logs, time_factor)?;
            priority.add(guest.qemu(), 0);
            booting.push(guest);
            if plan.nic == Nic::Rxe && index == 0 {
                // The other end connects to this one's socket.
                wait_for(&sockets.path().join("wire"))?;
            }
        }
        let guests = in_parallel(booting, |booting| {
            let guest = Arc::new(booting.ready(on_barrier.clone())?);
            lock(&known).push(Arc::downgrade(&guest));
            check_clock(&guest, started)?;
            guest
                .must(
                    &configure_command(guest.index, plan),
                    SETUP_LIMIT * time_factor,
                )
                .context("setting up the guest")?;
            if let Some(command) = hardware_command(&plan.hardware) {
                guest
                    .must(&command, SETUP_LIMIT * time_factor)
                    .context("putting the guest's further devices into use")?;
            }
            Ok(guest)
        })?;
        say(format!(
            "{} guest{} ({}, {}, {}) ready in {:.1} s",
            plan.guests,
            if plan.guests == 1 { "" } else { "s" },
            parts.base.kernel_release(plan.kernel)?,
            if parts.kvm { "KVM" } else { "TCG" },
            match &plan.machines {
                Some(_) => "virtual CPUs as given".to_owned(),
                None if parts.cpus == 1 => "1 virtual CPU".to_owned(),
                None => format!("{} virtual CPUs", parts.cpus),
            },
            started.elapsed().as_secs_f64()
        ));
        Ok(Self {
            plan: plan.clone(),
            guests,
            emulator,
            program,
            second,
            dir: dir.to_owned(),
            qemu: parts.qemu,
            versions,
            repeated: 0,
            _sockets: sockets,
        })
    }

    /// Kernel complaints of all guests, wake-ups that drivers have missed, and the emulator's death, as messages; empty if all is well.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles_in(Guest::serial)
    }

    /// The same of a part of each guest's serial output.
    pub fn troubles_in(&self, mut part: impl FnMut(&Guest) -> String) -> Vec<String> {
        let mut troubles = Vec::new();
        for guest in &self.guests {
            let mut serial = part(guest);
            // With a configuration its link loses packets.
            if self.plan.nic.is_mixed() && self.plan.config.is_some() && guest.index > 0 {
                let (rest, count) = without_rxe_warnings(&serial);
                if count > 0 {
                    say(format!(
                        "guest {}: {count} warnings of rxe_completer()",
                        guest.index
                    ));
                }
                serial = rest;
            }
            for line in complaints(&serial) {
                troubles.push(format!("guest {} kernel: {line}", guest.index));
            }
        }
        for emulator in self.emulators() {
            troubles.extend(match emulator.ended() {
                Some(status) => Some(format!("the emulator ended: {status}")),
                None => self.missed_wakeups(emulator),
            });
        }
        troubles
    }

    /// A message if drivers have missed wake-ups of an emulator.
    fn missed_wakeups(&self, emulator: &Emulator) -> Option<String> {
        match wakeups::missed(self.program.as_ref()?, &emulator.control) {
            Ok(0) => None,
            Ok(count) => Some(format!(
                "drivers have missed {count} wake-ups of the emulator: doorbells that were rung while it slept, and not written to \
                 the kick page"
            )),
            Err(error) => Some(format!(
                "the emulator does not tell its missed wake-ups: {error:#}"
            )),
        }
    }

    /// Its emulators: none, one, or one for each guest.
    pub fn emulators(&self) -> impl Iterator<Item = &Emulator> {
        let second = self.second.iter().map(|(emulator, _)| emulator);
        self.emulator.iter().chain(second)
    }

    /// Saves each guest's kernel log beside its serial log. Lists the data races in which the driver has no part.
    pub fn save_logs(&self) {
        for guest in &self.guests {
            let races = races::of_others(&guest.serial());
            if !races.is_empty() {
                let path = guest.dir.join("races.log");
                let lines = races
                    .iter()
                    .map(|(race, count)| format!("{count} {race}\n"));
                let _ = std::fs::write(&path, lines.collect::<String>());
                let (count, path) = (races.len(), path.display());
                say(format!("{count} data races without the driver: {path}"));
            }
            if let Ok(outcome) = guest.run("dmesg", Duration::from_secs(20)) {
                let _ = std::fs::write(guest.dir.join("dmesg.log"), outcome.stdout);
            }
        }
    }
}

/// Message for a guest with the race that [`is_tcg_race`] finds in its output.
pub const TCG_RACE: &str = "a guest died of QEMU's race with self-patching code";

/// True if a kernel died of an error of QEMU's TCG instead of one of this project: it met a breakpoint that the kernel
/// writes temporarily while it patches its code, after the kernel had removed it.
pub fn is_tcg_race(text: &str) -> bool {
    !host::has_kvm() && text.contains("Oops: int3")
}

/// Message for a guest with a clock that runs too fast.
const FAST_CLOCK: &str = "a guest's clock runs too fast";

/// Fails if a guest that was started then, or later, has been running for longer. On a busy host a kernel sometimes measures a time
/// stamp counter at a fraction of its rate (`tsc: Detected 435.778 MHz`), so all of its timeouts are too short.
fn check_clock(guest: &Guest, started: Instant) -> Result<()> {
    let uptime = guest.must("read -r up _ </proc/uptime; echo $up", SETUP_LIMIT)?;
    let uptime: f64 = (uptime.trim().parse()).with_context(|| format!("uptime {uptime:?}"))?;
    let elapsed = started.elapsed().as_secs_f64();
    ensure!(
        uptime < elapsed + 1.0,
        "{FAST_CLOCK}: guest {} has been running for {uptime} s after {elapsed:.1} s",
        guest.index
    );
    Ok(())
}

/// Why a boot failed, if that is a rare error of QEMU or of a kernel.
fn not_ours(error: &str) -> Option<&'static str> {
    match () {
        () if is_tcg_race(error) => Some(TCG_RACE),
        () if error.contains(FAST_CLOCK) => Some(FAST_CLOCK),
        () => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts guests at barriers, and releases them when all have arrived.
fn barrier(known: Guests, count: usize) -> crate::guest::OnBarrier {
    let arrived: Mutex<HashMap<String, usize>> = Mutex::default();
    let (release, releases) = mpsc::channel::<String>();
    // Released from a thread of its own: the caller is the thread that reads a guest's channel.
    thread::spawn(move || {
        for name in releases {
            for guest in lock(&known).iter().filter_map(Weak::upgrade) {
                guest.release(&name);
            }
        }
    });
    Arc::new(move |_, name| {
        let mut arrived = lock(&arrived);
        let waiting = arrived.entry(name.to_owned()).or_default();
        *waiting += 1;
        if *waiting == count {
            arrived.remove(name);
            let _ = release.send(name.to_owned());
        }
    })
}

/// Creates the files behind a guest's further devices in `dir`, which is removed with the cluster.
fn back(hardware: &Hardware, dir: &Path, index: usize) -> Result<Backing> {
    let sparse = |name: &str, mib: u32| -> Result<PathBuf> {
        let path = dir.join(format!("{name}{index}"));
        std::fs::File::create(&path)
            .and_then(|file| file.set_len(u64::from(mib) << 20))
            .with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    };
    let mut backing = Backing::default();
    if hardware.swap_disk > 0 {
        backing.swap_disk = Some(sparse("swap", hardware.swap_disk)?);
    }
    if hardware.pmem > 0 {
        let path = sparse("pmem", hardware.pmem)?;
        // Created on the host, so that guests need no tools for it. DAX requires blocks of the size of a page.
        let mut command = std::process::Command::new(
            crate::command::which("mke2fs").context("mke2fs is not in PATH")?,
        );
        command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0"]);
        crate::command::capture(command.arg(&path)).context("making a file system for DAX")?;
        backing.pmem = Some((path, hardware.pmem));
    }
    Ok(backing)
}

/// The command that puts a guest's further devices into use, if it has any.
fn hardware_command(hardware: &Hardware) -> Option<String> {
    let mut words = Vec::new();
    if hardware.zram > 0 {
        words.push(format!("zram={}", hardware.zram));
    }
    if hardware.swap_disk > 0 {
        words.push("swap_disk".to_owned());
    }
    if hardware.pmem > 0 {
        words.push("pmem".to_owned());
    }
    if hardware.huge_pages > 0 {
        words.push(format!("huge_pages={}", hardware.huge_pages));
    }
    if hardware.further_nics > 0 {
        words.push("further_nics".to_owned());
    }
    (!words.is_empty()).then(|| format!("use_hardware {}", words.join(" ")))
}

/// Socket of the emulator's port for the virtio-net device of a guest.
fn virtio_socket(sockets: &Path, index: usize) -> PathBuf {
    sockets.join(format!("virtio{index}"))
}

/// A TCP port of 127.0.0.1 on which no socket listens. Another process may take it.
pub fn free_tcp_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("finding a free TCP port")?;
    Ok(listener.local_addr()?.port())
}

fn wait_for(path: &Path) -> Result<()> {
    let started = Instant::now();
    while !path.exists() {
        ensure!(
            started.elapsed() < Duration::from_secs(20),
            "QEMU made no socket {}",
            path.display()
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Runs `work` on every item in a thread of its own; the first error, if any, is the result.
pub fn in_parallel<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = items
            .into_iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        let results: Vec<Result<R>> = threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| bail!("a lab thread panicked"))
            })
            .collect();
        results.into_iter().collect()
    })
}

/// Sets a guest's addresses, and the variables of its scripts.
pub fn configure(guest: &Guest, plan: &Plan) -> Result<()> {
    let command = configure_command(guest.index, plan);
    guest
        .must(&command, SETUP_LIMIT * plan.kernel.time_factor())
        .context("setting up the guest")?;
    Ok(())
}

fn configure_command(index: usize, plan: &Plan) -> String {
    let peer = if index == 0 { 1 } else { 0 };
    let nic = match plan.nic {
        Nic::Faultline => "faultline",
        Nic::Mixed | Nic::Vhost if index == 0 => "faultline",
        Nic::Mixed | Nic::Vhost | Nic::Rxe => "rxe",
        Nic::None => "none",
    };
    let mtu = plan.mtu.map_or(String::new(), |mtu| mtu.to_string());
    // Options of the ODP programs for a device that cannot do all of it: rdma_rxe ignores the offset into an on-demand
    // page (Linux 7.2).
    let limits = match plan.nic {
        Nic::Rxe | Nic::Mixed | Nic::Vhost => "--aligned --same-iova",
        Nic::Faultline | Nic::None => "",
    };
    format!(
        "configure_guest {nic} '{mtu}' GUEST_INDEX={index} GUEST_COUNT={} GUEST_MIB={} \
         MY_IP={} MY_IP6={} PEER_IP={} PEER_IP6={} \
         ARTEFACTS=/tmp/artefacts LAB_TIME_FACTOR={} NIC_LIMITS='{limits}' EMULATORS={}",
        plan.guests,
        plan.memory,
        address(index),
        address6(index),
        address(peer),
        address6(peer),
        plan.kernel.time_factor(),
        1 + u8::from(plan.wiring.is_between_emulators()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_index() {
        assert_eq!(address(0), "10.77.0.1");
        assert_eq!(address6(15), "fd77::10");
    }

    #[test]
    fn hardware_is_put_into_use_only_if_it_is_there() {
        assert_eq!(hardware_command(&Hardware::default()), None);
        let hardware = Hardware {
            zram: 64,
            huge_pages: 16,
            ..Hardware::default()
        };
        let command = hardware_command(&hardware);
        assert_eq!(
            command.as_deref(),
            Some("use_hardware zram=64 huge_pages=16")
        );
    }

    #[test]
    fn a_guest_gets_its_addresses_and_limits() {
        let plan = Plan {
            nic: Nic::Rxe,
            mtu: Some(4200),
            ..Plan::default()
        };
        let command = configure_command(1, &plan);
        assert!(
            command.starts_with("configure_guest rxe '4200' "),
            "{command}"
        );
        for part in [
            " MY_IP=10.77.0.2 ",
            " PEER_IP=10.77.0.1 ",
            " NIC_LIMITS='--aligned --same-iova'",
        ] {
            assert!(command.contains(part), "{command}");
        }
        let command = configure_command(0, &Plan::default());
        assert!(
            command.starts_with("configure_guest faultline '' "),
            "{command}"
        );
    }

    #[test]
    fn backing_files_have_their_size() {
        let dir = tempfile::tempdir().unwrap();
        let hardware = Hardware {
            swap_disk: 3,
            ..Hardware::default()
        };
        let backing = back(&hardware, dir.path(), 1).unwrap();
        let disk = backing.swap_disk.unwrap();
        assert_eq!(std::fs::metadata(disk).unwrap().len(), 3 << 20);
        assert_eq!(backing.pmem, None);
    }

    #[test]
    fn parallel_work_keeps_order_and_reports_errors() {
        assert_eq!(
            in_parallel(vec![1, 2, 3], |n| Ok(n * 2)).unwrap(),
            [2, 4, 6]
        );
        let error =
            in_parallel(vec![1, 2], |n| if n == 2 { bail!("two") } else { Ok(n) }).unwrap_err();
        assert_eq!(error.to_string(), "two");
    }
}
