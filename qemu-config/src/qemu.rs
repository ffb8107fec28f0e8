//! Obtaining a QEMU that can attach the NIC, and its command lines.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use crate::command::{bound_to_us, capture, run_logged, say, which};
use crate::host::{Mirror, Release, tsc_khz};
use crate::workspace::{Fingerprint, Workspace};

/// Bumped when the way of unpacking changes.
const RECIPE: &str = "1";

/// The step in which one is unpacked.
pub const UNPACKING: &str = "unpacking QEMU from backports";

/// What each guest's kernel is told.
///
/// `no_timer_check`: on a busy host the kernel's test of its timer interrupt fails. `watchdog_thresh`: a guest that gets no processor
/// for 20 s looks to itself like one that is stuck.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=6 panic=-1 oops=panic mitigations=off \
     random.trust_cpu=on tsc=reliable edd=off no_timer_check watchdog_thresh=60 \
     module_blacklist=lpc_ich,iTCO_wdt,i2c_i801,psmouse,pcspkr";

/// The same with the rate of the time stamp counter. On a busy host a kernel under TCG measures it wrongly, because the timer that it
/// compares it with stands still while the guest does not run.
pub fn command_line(kvm: bool) -> String {
    match tsc_khz() {
        Some(khz) if !kvm => format!("{COMMAND_LINE} tsc_early_khz={khz}"),
        _ => COMMAND_LINE.to_owned(),
    }
}

/// A QEMU and how to start it.
#[derive(Debug, Clone)]
pub struct Qemu {
    program: PathBuf,
    /// For an unpacked one: its root folder.
    unpacked: Option<PathBuf>,
    /// Output of `--version`.
    pub version: String,
}

impl Qemu {
    /// The host's QEMU if it has `vfio-user-pci`, else one unpacked into the cache.
    pub fn obtain(workspace: &Workspace) -> Result<Self> {
        if let Some(program) = which("qemu-system-x86_64") {
            let mut qemu = Self {
                program,
                unpacked: None,
                version: String::new(),
            };
            if qemu.has_vfio_user() {
                qemu.version = qemu.ask_version()?;
                return Ok(qemu);
            }
        }
        let mut qemu = Self::unpack(workspace)?;
        qemu.version = qemu
            .ask_version()
            .context("the unpacked QEMU does not run")?;
        Ok(qemu)
    }

    fn unpack(workspace: &Workspace) -> Result<Self> {
        let suite = Release::Trixie.suite();
        let key = Fingerprint::new().text(RECIPE).text(suite).finish();
        let cache = workspace.cache()?;
        let root = cache.join(format!("qemu-{key}"));
        let qemu = Self {
            program: root.join("usr/bin/qemu-system-x86_64"),
            unpacked: Some(root.clone()),
            version: String::new(),
        };
        if qemu.program.is_file() {
            return Ok(qemu);
        }
        let _lock = workspace.lock_cache("qemu")?;
        if qemu.program.is_file() {
            return Ok(qemu);
        }
        say(
            "this host's QEMU has no vfio-user-pci (10.1 or later is needed); unpacking one, which needs the network",
        );
        let mirror = Mirror::of_host()?;
        let partial = cache.join(format!("qemu-{key}.partial"));
        let _ = fs::remove_dir_all(&partial);
        let sources = cache.join("qemu-sources.list");
        fs::write(&sources, mirror.sources(Release::Trixie))
            .context("writing the package sources")?;
        let mut command = Command::new("mmdebstrap");
        command.args([
            "--variant=extract",
            "--include=qemu-system-x86",
            "--format=directory",
        ]);
        for option in &mirror.options {
            command.arg(format!("--aptopt={option}"));
        }
        // QEMU and its firmware from backports, everything they depend on from the release.
        command
            .arg("--aptopt=APT::Install-Recommends \"false\"")
            .arg(
                "--setup-hook=mkdir -p \"$1/etc/apt/preferences.d\" && printf \
                 'Package: qemu* seabios ipxe*\\nPin: release n=trixie-backports\\nPin-Priority: 900\\n' \
                 > \"$1/etc/apt/preferences.d/qemu\"",
            )
            .arg(suite)
            .arg(&partial)
            .arg(&sources);
        run_logged(UNPACKING, &mut command, &cache.join("qemu.log"))
            .context("is the network there? QEMU could not be fetched from the Debian mirror")?;
        fs::rename(&partial, &root).with_context(|| format!("renaming {}", partial.display()))?;
        Ok(qemu)
    }

    /// The command that runs `qemu-system-x86_64`, through its own loader if it is an unpacked one.
    ///
    /// An unpacked QEMU has its libraries below `usr/lib` only: the links of a merged `/usr` (`/lib`, `/lib64`) are made
    /// by maintainer scripts, which the extract variant does not run.
    fn arguments(&self) -> Vec<OsString> {
        let Some(root) = &self.unpacked else {
            return vec![self.program.clone().into()];
        };
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        vec![
            libraries.join("ld-linux-x86-64.so.2").into(),
            "--library-path".into(),
            libraries.into(),
            self.program.clone().into(),
            "-L".into(),
            root.join("usr/share/qemu").into(),
            "-L".into(),
            root.join("usr/share/seabios").into(),
        ]
    }

    /// A QEMU that dies with the lab.
    pub fn command(&self) -> Command {
        let mut arguments = self.arguments().into_iter();
        let mut command = bound_to_us(arguments.next().unwrap_or_default());
        command.args(arguments);
        if let Some(root) = &self.unpacked {
            command.env(
                "QEMU_MODULE_DIR",
                root.join("usr/lib/x86_64-linux-gnu/qemu"),
            );
        }
        command
    }

    /// The words a user types to start this QEMU by hand.
    pub fn shown(&self) -> String {
        self.arguments()
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn has_vfio_user(&self) -> bool {
        capture(self.command().args(["-device", "help"]))
            .is_ok_and(|text| text.contains("\"vfio-user-pci\""))
    }

    fn ask_version(&self) -> Result<String> {
        let text = capture(self.command().arg("--version"))?;
        Ok(text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("QEMU emulator version ")
            .to_owned())
    }
}

/// The connection of a guest's virtio-net card: to that of another guest, whose QEMU listens, or to a port of the emulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wire {
    /// The socket between the two QEMUs.
    pub socket: PathBuf,
    /// True if this end listens.
    pub listens: bool,
    /// True if the emulator has the card's rings.
    pub is_vhost: bool,
}

/// Hardware of a guest beyond a disk, a NIC and memory in one piece.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hardware {
    /// NUMA nodes that share the memory; 0 and 1 are the same.
    pub nodes: u32,
    /// MiB of swap on compressed memory (zram).
    pub zram: u32,
    /// MiB of swap on a disk of its own.
    pub swap_disk: u32,
    /// MiB of persistent memory, with a file system that maps it directly (DAX) at `/mnt/dax`.
    pub pmem: u32,
    /// Huge pages of 2 MiB set aside at boot.
    pub huge_pages: u32,
    /// NICs besides the first.
    pub further_nics: u32,
    /// A virtual IOMMU, which gives each device only the memory that its driver has mapped for it.
    pub viommu: bool,
}

/// The host's files behind a guest's [`Hardware`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backing {
    /// The swap disk.
    pub swap_disk: Option<PathBuf>,
    /// The persistent memory, and its size in MiB.
    pub pmem: Option<(PathBuf, u32)>,
}

/// One guest as QEMU sees it.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Use KVM instead of TCG.
    pub kvm: bool,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory: u32,
    /// Guest kernel.
    pub kernel: PathBuf,
    /// Initial file system.
    pub initrd: PathBuf,
    /// Root disk.
    pub disk: PathBuf,
    /// Writes go to that disk, instead of a throw-away overlay in TMPDIR.
    pub keeps_writes: bool,
    /// Log file of the serial console.
    pub serial: PathBuf,
    /// Listening socket of the lab's agent channel.
    pub agent: PathBuf,
    /// Listening socket of the interactive console.
    pub console: PathBuf,
    /// The vfio-user sockets of its NICs.
    pub nics: Vec<PathBuf>,
    /// A virtio-net card joined to the other guest's, for comparisons.
    pub wire: Option<Wire>,
    /// The guest's index, which determines its MAC address.
    pub index: usize,
    /// Additional kernel command line.
    pub append: String,
    /// NUMA nodes that share the memory.
    pub nodes: u32,
    /// See [`Hardware::viommu`].
    pub viommu: bool,
    /// Files of further devices.
    pub backing: Backing,
    /// Arguments of a user, instead of memory, processors, disks, and NIC.
    pub of_user: Option<Vec<String>>,
}

impl Machine {
    /// QEMU's arguments.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = Words(Vec::new());
        match &self.of_user {
            Some(arguments) => words.0.extend_from_slice(arguments),
            None => {
                self.add_memory(&mut words);
                self.add_processors(&mut words);
                self.add_disks(&mut words);
                self.add_network(&mut words);
            }
        }
        self.add_kernel(&mut words);
        self.add_channels(&mut words);
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            words.0.push(flag.to_owned());
        }
        words.0
    }

    fn add_memory(&self, words: &mut Words) {
        // vfio-user passes guest memory to the emulator by descriptor, so the memory must be shared and backed by a
        // file.
        let nodes = self.nodes.max(1);
        for node in 0..nodes {
            let id = if nodes == 1 {
                "ram".to_owned()
            } else {
                format!("ram{node}")
            };
            words.add(
                "-object",
                json!({"qom-type": "memory-backend-memfd", "id": id, "share": true,
                       "size": (u64::from(self.memory) << 20) / u64::from(nodes)})
                .to_string(),
            );
        }
        let machine = "usb=off,smbus=off,sata=off,vmport=off,graphics=off";
        if nodes == 1 {
            words.add("-machine", format!("q35,memory-backend=ram,{machine}"));
        } else {
            words.add("-machine", format!("q35,{machine}"));
            for node in 0..nodes {
                // Processors are assigned to nodes in turn; a node may have none.
                let cpus: String = (node..self.most_cpus())
                    .step_by(nodes as usize)
                    .map(|cpu| format!(",cpus={cpu}"))
                    .collect();
                words.add(
                    "-numa",
                    format!("node,nodeid={node},memdev=ram{node}{cpus}"),
                );
            }
        }
    }

    /// Virtual CPUs that there can be, of which `cpus` are plugged in. TCG executes LOCKed instructions as atomic ones only if there can
    /// be two; otherwise they are neither atomic nor a barrier for the emulator.
    fn most_cpus(&self) -> u32 {
        self.cpus.max(2)
    }

    fn add_processors(&self, words: &mut Words) {
        if self.kvm {
            words.add("-accel", "kvm".into());
            words.add("-cpu", "host".into());
        } else {
            words.add("-accel", "tcg,thread=multi,tb-size=256".into());
            // TCG executes string instructions step by step. Without the fast ones, which move a byte a step, kernels
            // and libraries use those that move eight. 1 GiB over TCP: 29 s instead of 47 s.
            words.add(
                "-cpu",
                "max,erms=off,fsrm=off,fzrm=off,fsrs=off,fsrc=off".into(),
            );
        }
        let (cpus, most) = (self.cpus, self.most_cpus());
        match self.nodes > 1 {
            // Linux warns of processors of one socket that are on two nodes.
            true => words.add("-smp", format!("{cpus},sockets={most},maxcpus={most}")),
            false => words.add("-smp", format!("{cpus},maxcpus={most}")),
        }
        match &self.backing.pmem {
            None => words.add("-m", format!("{}M", self.memory)),
            // A memory device needs a place in the address space, in steps of whole GiB.
            Some((_, size)) => {
                let most = (self.memory + size).next_multiple_of(1024) + 1024;
                words.add("-m", format!("{}M,slots=1,maxmem={most}M", self.memory));
            }
        }
    }

    fn add_kernel(&self, words: &mut Words) {
        words.add("-display", "none".into());
        words.add("-serial", format!("file:{}", self.serial.display()));
        words.add("-kernel", self.kernel.display().to_string());
        words.add("-initrd", self.initrd.display().to_string());
        let mut line = command_line(self.kvm).to_owned();
        if self.viommu {
            // Debian's kernels do not use one unasked. Strict: an unmapped page is out of reach at once.
            line += " intel_iommu=on iommu.strict=1";
        }
        line = format!("{line} {}", self.append);
        words.add("-append", line.trim_end().to_owned());
    }

    fn add_disks(&self, words: &mut Words) {
        let snapshot = if self.keeps_writes { "off" } else { "on" };
        words.add(
            "-drive",
            format!(
                "if=none,id=root,format=raw,snapshot={snapshot},cache=unsafe,file={}",
                self.disk.display()
            ),
        );
        words.add("-device", "virtio-blk-pci,drive=root".into());
        if let Some(disk) = &self.backing.swap_disk {
            words.add(
                "-drive",
                format!(
                    "if=none,id=swap,format=raw,cache=unsafe,discard=unmap,file={}",
                    disk.display()
                ),
            );
            words.add("-device", "virtio-blk-pci,drive=swap,serial=swap".into());
        }
        if let Some((file, size)) = &self.backing.pmem {
            words.add(
                "-object",
                json!({"qom-type": "memory-backend-file", "id": "pmem", "share": true,
                       "mem-path": file, "size": u64::from(*size) << 20})
                .to_string(),
            );
            words.add("-device", "virtio-pmem-pci,memdev=pmem".into());
        }
    }

    /// The channel of the agent, and the interactive console.
    fn add_channels(&self, words: &mut Words) {
        words.add("-device", "virtio-serial-pci,id=serial".into());
        words.add(
            "-chardev",
            format!("socket,id=agent,path={}", self.agent.display()),
        );
        words.add(
            "-device",
            "virtserialport,bus=serial.0,chardev=agent,name=faultline.lab.agent".into(),
        );
        words.add(
            "-chardev",
            format!("socket,id=console,path={}", self.console.display()),
        );
        words.add("-device", "virtconsole,bus=serial.0,chardev=console".into());
    }

    fn add_network(&self, words: &mut Words) {
        if self.viommu {
            // Devices outside of QEMU learn of maps only in caching mode. Its interrupt remapping has nothing to do with memory.
            words.add("-device", "intel-iommu,caching-mode=on,intremap=off".into());
        }
        for (number, socket) in self.nics.iter().enumerate() {
            let id = match number {
                0 => "nic".to_owned(),
                _ => format!("nic{number}"),
            };
            words.add(
                "-device",
                json!({"driver": "vfio-user-pci", "id": id,
                       "x-msg-timeout": ANSWER_LIMIT_MS,
                       "socket": {"type": "unix", "path": socket}})
                .to_string(),
            );
        }
        if let Some(wire) = &self.wire {
            let queues = match wire.is_vhost {
                true => {
                    let path = wire.socket.display();
                    words.add("-chardev", format!("socket,id=rings,path={path}"));
                    words.add(
                        "-netdev",
                        "vhost-user,id=wire,chardev=rings,queues=2".to_owned(),
                    );
                    ",mq=on,vectors=6"
                }
                false => {
                    words.add(
                        "-netdev",
                        json!({"type": "stream", "id": "wire", "server": wire.listens,
                               "addr": {"type": "unix", "path": wire.socket}})
                        .to_string(),
                    );
                    ""
                }
            };
            words.add(
                "-device",
                format!(
                    "virtio-net-pci,netdev=wire,mac=52:54:00:fa:17:{:02x},romfile={queues}",
                    self.index + 1
                ),
            );
        }
    }
}

/// Arguments of a command.
struct Words(Vec<String>);

impl Words {
    fn add(&mut self, option: &str, value: String) {
        self.0.push(option.to_owned());
        self.0.push(value);
    }
}

/// QEMU ends the connection if an access to a register has no answer for this time, by default five seconds. An
/// emulator that is stopped for a minute shall survive.
pub const ANSWER_LIMIT_MS: u16 = 65_000;

/// Arguments that users add to their own QEMU command line to attach one NIC.
pub fn attach_hint(socket: &Path) -> String {
    let device = json!({"driver": "vfio-user-pci", "socket": {"type": "unix", "path": socket}});
    format!(
        "-object memory-backend-memfd,id=ram,share=on,size=1G -m 1G -machine q35,memory-backend=ram -device '{device}'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            kvm: false,
            cpus: 2,
            memory: 1024,
            kernel: "/k".into(),
            initrd: "/i".into(),
            disk: "/d".into(),
            keeps_writes: false,
            serial: "/s".into(),
            agent: "/a".into(),
            console: "/c".into(),
            nics: vec!["/tmp/a b.sock".into()],
            wire: None,
            index: 0,
            append: String::new(),
            nodes: 1,
            viommu: false,
            backing: Backing::default(),
            of_user: None,
        }
    }

    #[test]
    fn nodes_share_memory_and_processors() {
        let mut two = machine();
        two.nodes = 2;
        two.cpus = 3;
        let all = two.arguments().join(" ");
        assert!(!all.contains("memory-backend=ram"), "{all}");
        assert_eq!(all.matches("\"size\":536870912").count(), 2, "{all}");
        assert!(
            all.contains("node,nodeid=0,memdev=ram0,cpus=0,cpus=2"),
            "{all}"
        );
        assert!(all.contains("node,nodeid=1,memdev=ram1,cpus=1"), "{all}");
    }

    #[test]
    fn there_can_be_two_processors() {
        let mut one = machine();
        one.cpus = 1;
        assert!(one.arguments().contains(&"1,maxcpus=2".to_owned()));
        one.nodes = 2;
        let all = one.arguments().join(" ");
        assert!(all.contains("-smp 1,sockets=2,maxcpus=2"), "{all}");
        // QEMU wants each that there can be to have a node.
        assert!(all.contains("memdev=ram1,cpus=1"), "{all}");
        assert!(machine().arguments().contains(&"2,maxcpus=2".to_owned()));
    }

    #[test]
    fn further_devices_are_attached_behind_the_root_disk() {
        let mut more = machine();
        more.backing = Backing {
            swap_disk: Some("/swap".into()),
            pmem: Some(("/pmem".into(), 300)),
        };
        let all = more.arguments().join(" ");
        assert!(
            all.find("drive=root").unwrap() < all.find("drive=swap").unwrap(),
            "{all}"
        );
        assert!(all.contains("1024M,slots=1,maxmem=3072M"), "{all}");
        assert!(all.contains("\"size\":314572800"), "{all}");
        assert!(all.contains("virtio-pmem-pci,memdev=pmem"), "{all}");
    }

    #[test]
    fn memory_is_shared_and_the_nic_is_attached() {
        let words = machine().arguments();
        let all = words.join(" ");
        assert!(all.contains("\"share\":true"), "{all}");
        assert!(all.contains("\"size\":1073741824"), "{all}");
        assert!(words.contains(
            &r#"{"driver":"vfio-user-pci","id":"nic","socket":{"path":"/tmp/a b.sock","type":"unix"},"x-msg-timeout":65000}"#.to_owned()
        ));
        assert!(!all.contains("virtio-net"), "{all}");
    }

    #[test]
    fn a_wire_has_a_listening_end_and_a_mac_of_its_own() {
        let mut one = machine();
        one.wire = Some(Wire {
            socket: "/w".into(),
            listens: true,
            is_vhost: false,
        });
        one.index = 1;
        let all = one.arguments().join(" ");
        assert!(all.contains("\"server\":true"), "{all}");
        assert!(all.contains("52:54:00:fa:17:02"), "{all}");
    }

    #[test]
    fn every_option_has_its_value() {
        let words = machine().arguments();
        let position = words.iter().position(|word| word == "-append").unwrap();
        assert!(words[position + 1].starts_with("console=ttyS0"));
        assert!(!words[position + 1].contains("  "));
    }
}
