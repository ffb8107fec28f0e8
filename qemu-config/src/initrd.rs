//! The initial file system: the modules and programs that mount the root, and the files that the lab adds to a guest at
//! each boot.
//!
//! It is created for every boot (in milliseconds), so that neither the agent nor the driver is part of an image.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::command::capture;
use crate::image::{Base, Kernel};
use crate::workspace::{Workspace, files_below, links_below};

/// Runs first in the guest: loads the disk's modules, mounts the root, hands over.
const INIT: &str = include_str!("../guest/initramfs-init");
/// Runs as process 1 on the mounted root.
const STAGE2: &str = include_str!("../guest/init");
/// The same, if Debian's own init is process 1 then.
const STAGE2_STOCK: &str = include_str!("../guest/init-stock");
/// Functions for guest scripts.
const LIBRARY: &str = include_str!("../guest/lib.sh");

/// Constants of pyverbs for guest scripts in Python, which look for modules in their own folder.
const VERBS_ENUMS: &str = include_str!("../guest/verbs_enums.py");

/// The folder of scripts and programs of `tests/guest` in a guest.
const PROGRAMS: &str = "lab/overlay/usr/local/bin";

/// Modules needed to mount the root, and those that every boot loads: the RDMA core and persistent memory. The host
/// decompresses them, which takes a guest under TCG seconds. Their dependencies are looked up.
const MODULES: &[&str] = &[
    "virtio_blk",
    "ext4",
    "crc32c_generic",
    "crc32c_intel",
    "crc32c_cryptoapi",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "virtio_pmem",
    "nd_pmem",
];

/// A cpio archive in the "newc" format that Linux takes as an initial file system
/// (Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Debug, Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    inodes: u32,
    folders: BTreeSet<PathBuf>,
}

impl Cpio {
    /// Adds a folder and those above it.
    pub fn folder(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        if path.as_os_str().is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entry(&path.to_string_lossy(), 0o040_755, &[]);
    }

    /// Adds a file and the folders above it.
    pub fn file(&mut self, path: impl AsRef<Path>, mode: u32, content: &[u8]) {
        let path = path.as_ref();
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entry(&path.to_string_lossy(), 0o100_000 | (mode & 0o777), content);
    }

    /// Adds a symbolic link and the folders above it.
    pub fn link(&mut self, path: impl AsRef<Path>, target: &Path) {
        let path = path.as_ref();
        if let Some(parent) = path.parent() {
            self.folder(parent);
        }
        self.entry(
            &path.to_string_lossy(),
            0o120_777,
            target.as_os_str().as_encoded_bytes(),
        );
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inodes += 1;
        // magic, inode, mode, uid, gid, links, mtime, size, device ×2, special device ×2, name length, check
        let fields = [
            self.inodes,
            mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// The content of a guest's initial file system.
pub struct Contents<'a> {
    /// The root with the kernels' modules.
    pub base: &'a Base,
    /// The guest's kernel.
    pub kernel: Kernel,
    /// Trees that are laid over the root at boot.
    pub overlays: &'a [PathBuf],
    /// The guest's number.
    pub index: usize,
    /// Debian's own init boots, instead of the lab's.
    pub stock_init: bool,
}

/// Writes a guest's initial file system to `path`.
pub fn write(path: &Path, workspace: &Workspace, contents: &Contents<'_>) -> Result<()> {
    let Contents {
        base,
        kernel,
        overlays,
        index,
        stock_init,
    } = *contents;
    let mut cpio = Cpio::default();
    for folder in ["dev", "proc", "sys", "root", "bin"] {
        cpio.folder(folder);
    }
    cpio.file("init", 0o755, INIT.as_bytes());
    cpio.file(
        "bin/busybox",
        0o755,
        &read(&base.root.join("usr/bin/busybox"))?,
    );
    for (order, (name, content)) in boot_modules(workspace, base, kernel)?
        .into_iter()
        .enumerate()
    {
        cpio.file(format!("modules/{order:02}-{name}"), 0o644, &content);
    }
    let init = if stock_init { STAGE2_STOCK } else { STAGE2 };
    cpio.file("lab/init", 0o755, init.as_bytes());
    cpio.file("lab/lib.sh", 0o644, LIBRARY.as_bytes());
    cpio.file("lab/hostname", 0o644, format!("guest{index}\n").as_bytes());
    add_self(&mut cpio)?;
    let module = Path::new(PROGRAMS).join("verbs_enums.py");
    cpio.file(module, 0o644, VERBS_ENUMS.as_bytes());
    add_scripts(&mut cpio, &workspace.root().join("tests/guest/scripts"))?;
    for overlay in overlays {
        for file in files_below(overlay)? {
            let relative = file.strip_prefix(overlay).unwrap_or(&file);
            let mode = fs::metadata(&file)?.permissions().mode();
            cpio.file(Path::new("lab/overlay").join(relative), mode, &read(&file)?);
        }
        for link in links_below(overlay)? {
            let relative = link.strip_prefix(overlay).unwrap_or(&link);
            let target =
                fs::read_link(&link).with_context(|| format!("reading {}", link.display()))?;
            cpio.link(Path::new("lab/overlay").join(relative), &target);
        }
    }
    fs::write(path, cpio.finish()).with_context(|| format!("writing {}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// Adds the scripts of a folder as commands that have the files' names without their extensions.
fn add_scripts(cpio: &mut Cpio, folder: &Path) -> Result<()> {
    for file in files_below(folder)? {
        let name = file.file_stem().context("a script has a name")?;
        cpio.file(Path::new(PROGRAMS).join(name), 0o755, &read(&file)?);
    }
    Ok(())
}

/// This program is also the guest's agent. Its loader and libraries are added with it, so that the host's release need not
/// match the guest's.
fn add_self(cpio: &mut Cpio) -> Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    cpio.file("lab/lab", 0o755, &read(&program)?);
    let listing =
        capture(Command::new("ldd").arg(&program)).context("listing this program's libraries")?;
    for library in libraries(&listing) {
        let name = library.file_name().context("a library has a name")?;
        cpio.file(Path::new("lab/lib").join(name), 0o755, &read(&library)?);
    }
    Ok(())
}

/// The files in the output of `ldd`.
fn libraries(listing: &str) -> Vec<PathBuf> {
    listing
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            let path = line.split_once("=> ").map_or(line, |(_, path)| path);
            let path = path.split_once(" (").map_or(path, |(path, _)| path);
            path.starts_with('/').then(|| PathBuf::from(path))
        })
        .collect()
}

/// The decompressed modules of [`MODULES`], in loading order; kept in the cache.
fn boot_modules(
    workspace: &Workspace,
    base: &Base,
    kernel: Kernel,
) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = base
        .root
        .join("usr/lib/modules")
        .join(base.kernel_release(kernel)?);
    let dependencies =
        fs::read_to_string(folder.join("modules.dep")).context("reading modules.dep")?;
    let cache = workspace
        .cache()?
        .join(format!("boot-modules-{}-{}", base.key, kernel.name()));
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let mut modules = Vec::new();
    for relative in loading_order(&dependencies, MODULES) {
        let stem = stem(&relative).to_owned();
        let plain = cache.join(format!("{stem}.ko"));
        if !plain.is_file() {
            // Several guests may be started at once: each start makes a file of its own, and the last one stays.
            let partial =
                tempfile::NamedTempFile::new_in(&cache).context("making a file in the cache")?;
            decompress(&folder.join(&relative), partial.path())?;
            partial
                .persist(&plain)
                .with_context(|| format!("making {}", plain.display()))?;
        }
        modules.push((format!("{stem}.ko"), read(&plain)?));
    }
    Ok(modules)
}

fn decompress(from: &Path, to: &Path) -> Result<()> {
    let tool = match from.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => {
            fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
            return Ok(());
        }
    };
    let output = fs::File::create(to).with_context(|| format!("creating {}", to.display()))?;
    let status = Command::new(tool)
        .arg("-dc")
        .arg(from)
        .stdout(Stdio::from(output))
        .status()
        .with_context(|| format!("starting {tool}"))?;
    anyhow::ensure!(
        status.success(),
        "{tool} could not decompress {}",
        from.display()
    );
    Ok(())
}

/// A module's name from its path: underscores, no extensions.
fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.split('.').next().unwrap_or(name)
}

/// The paths of `wanted` modules and all they depend on, dependencies first. Unknown names are skipped: they are built
/// into the kernel or no longer in it.
fn loading_order(modules_dep: &str, wanted: &[&str]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let line = modules_dep.lines().find_map(|line| {
            let (path, needs) = line.split_once(':')?;
            (stem(path).replace('-', "_") == *name).then_some((path, needs))
        });
        let Some((path, needs)) = line else { continue };
        // modules.dep lists a module's whole closure, the deepest dependency last.
        for path in needs.split_whitespace().rev().chain([path]) {
            if !order.iter().any(|known| known == path) {
                order.push(path.to_owned());
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_first() {
        let text = "kernel/a/virtio_blk.ko.xz:\nkernel/fs/ext4.ko.xz: kernel/l/crc16.ko.xz kernel/fs/jbd2.ko.xz\n\
                    kernel/fs/jbd2.ko.xz:\nkernel/l/crc16.ko.xz:\n";
        assert_eq!(
            loading_order(text, &["virtio_blk", "ext4", "absent"]),
            [
                "kernel/a/virtio_blk.ko.xz",
                "kernel/fs/jbd2.ko.xz",
                "kernel/l/crc16.ko.xz",
                "kernel/fs/ext4.ko.xz"
            ]
        );
    }

    #[test]
    fn libraries_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibgcc_s.so.1 => /lib/x/libgcc_s.so.1 (0x2)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        assert_eq!(
            libraries(text),
            [
                PathBuf::from("/lib/x/libgcc_s.so.1"),
                PathBuf::from("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn scripts_are_commands_as_they_are_at_each_boot() {
        let dir = tempfile::tempdir().unwrap();
        let archive = |content: &str| {
            fs::write(dir.path().join("probe.sh"), content).unwrap();
            let mut cpio = Cpio::default();
            add_scripts(&mut cpio, dir.path()).unwrap();
            String::from_utf8_lossy(&cpio.finish()).into_owned()
        };
        let (first, second) = (archive("echo first"), archive("echo second"));
        let path = "lab/overlay/usr/local/bin/probe\0";
        assert!(first.contains(path) && first.contains("echo first"));
        assert!(second.contains(path) && second.contains("echo second"));
    }

    #[test]
    fn cpio_reads_the_archive() {
        let mut cpio = Cpio::default();
        cpio.file("a/b/c", 0o644, b"hello");
        cpio.file("a/d", 0o755, b"");
        let bytes = cpio.finish();
        assert!(bytes.len().is_multiple_of(4));
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let order: Vec<usize> = ["a\0", "a/b\0", "a/b/c\0", "hello", "a/d\0"]
            .iter()
            .map(|name| text.find(name).unwrap())
            .collect();
        assert!(order.is_sorted(), "{order:?}");
        assert!(text.contains("TRAILER!!!"));
        // header of the first entry: magic, inode 1, mode of a folder
        assert!(text.starts_with("07070100000001000041ed"));
    }
}
