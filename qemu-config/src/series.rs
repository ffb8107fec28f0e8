//! `cargo lab series`: the driver as patches for the kernel, and the provider as patches for rdma-core.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{capture, run_logged};
use crate::driver::{Driver, module_folder, provider_tree};
use crate::host::{self, Release};
use crate::image::{Base, Kernel};
use crate::workspace::Workspace;

const KERNEL: &str = concat!(
    include_str!("../recipes/series-git.sh"),
    include_str!("../recipes/kernel-series.sh")
);
const RDMA_CORE: &str = concat!(
    include_str!("../recipes/series-git.sh"),
    include_str!("../recipes/rdma-core-series.sh")
);

/// The newest kernel of the guests; the patches contain only the code for it.
pub const NEWEST: Kernel = Kernel::Backports;

/// Folders with patches.
#[derive(Debug)]
pub struct Series {
    /// Those for the kernel.
    pub kernel: PathBuf,
    /// Those for rdma-core.
    pub rdma_core: PathBuf,
    /// The source of rdma-core to which they apply, as a tarball.
    pub tarball: PathBuf,
}

/// Makes the patches and prints their names.
pub fn run(workspace: &Workspace) -> Result<()> {
    let series = make(workspace)?;
    for folder in [series.kernel, series.rdma_core] {
        let mut files: Vec<_> = fs::read_dir(&folder)?.flatten().collect();
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files {
            println!("{}", workspace.shown(&file.path()));
        }
    }
    Ok(())
}

/// Makes the patches, in `target/series`.
pub fn make(workspace: &Workspace) -> Result<Series> {
    host::ensure_packages(workspace)?;
    host::ensure_patchers(workspace)?;
    let base = Base::obtain(workspace, Release::Trixie)?;
    // Building the driver creates compat_config.h.
    Driver::obtain(workspace, &base, NEWEST)?;
    let declared = module_folder(workspace, NEWEST)?.join("kernel/compat_config.h");
    let provider = provider_tree(workspace, &base)?;
    let folder = workspace.root().join("target/series");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let series = Series {
        kernel: folder.join("linux"),
        rdma_core: folder.join("rdma-core"),
        tarball: tarball(&provider)?,
    };
    let work = tempfile::tempdir().context("making a folder for patches")?;
    let new = |name: &str| -> Result<PathBuf> {
        let tree = work.path().join(name);
        fs::create_dir(&tree).with_context(|| format!("creating {}", tree.display()))?;
        Ok(tree)
    };
    let log = folder.join("log");
    run_logged(
        "making patches for the kernel",
        Command::new("sh")
            .args(["-euc", KERNEL, "sh"])
            .args([new("linux")?, workspace.guest_driver(), declared])
            .arg(headers(&base)?)
            .arg(&series.kernel),
        &log,
    )?;
    let tree = new("rdma-core")?;
    unpack(&series.tarball, &tree)?;
    run_logged(
        "making patches for rdma-core",
        Command::new("sh")
            .args(["-euc", RDMA_CORE, "sh"])
            .args([tree, workspace.guest_driver()])
            .arg(workspace.root().join("qemu-config/packages"))
            .arg(&series.rdma_core),
        &log,
    )?;
    Ok(series)
}

/// The headers of the newest kernel that do not depend on the architecture.
fn headers(base: &Base) -> Result<PathBuf> {
    let release = base.kernel_release(NEWEST)?;
    let (version, _) = release
        .rsplit_once('-')
        .with_context(|| format!("{release} names no architecture"))?;
    let name = format!("usr/src/linux-headers-{version}-common");
    Ok(base.root.join(name))
}

/// Unpacks a tarball without its top folder.
pub fn unpack(tarball: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["-x", "--strip-components=1", "--no-same-owner", "-C"]);
    capture(command.arg(to).arg("-f").arg(tarball)).map(|_| ())
}

/// The tarball that the source of rdma-core was unpacked from.
fn tarball(provider: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(provider)?.flatten().map(|entry| entry.path());
    let mut tarballs = files.filter(|path| path.to_string_lossy().contains(".orig.tar."));
    tarballs
        .next()
        .with_context(|| format!("{} has no tarball", provider.display()))
}
