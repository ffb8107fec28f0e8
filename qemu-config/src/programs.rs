//! The compiled programs of `tests/guest`, built natively inside the unpacked guest root and laid over every guest. The scripts
//! are not built: the initial file system takes them from the source tree at each boot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::run_logged;
use crate::driver::{self, copy_tree, remove_others};
use crate::host;
use crate::image::Base;
use crate::workspace::{Fingerprint, Workspace, files_below};

/// Bumped when the way of building changes.
const RECIPE: &str = "4";

/// The sources of the programs.
fn compiled(source: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files_below(source)?;
    files.retain(|file| {
        let extension = file.extension().is_some_and(|e| e == "c" || e == "h");
        extension || file.ends_with("Makefile")
    });
    Ok(files)
}

/// The built programs, as a tree to lay over a guest's root.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The tree.
    pub overlay: PathBuf,
}

impl Programs {
    /// The programs, built if their sources have changed.
    pub fn obtain(workspace: &Workspace, base: &Base) -> Result<Self> {
        let source = workspace.root().join("tests/guest");
        let key = Fingerprint::new()
            .text(RECIPE)
            .text(&base.key)
            .files(&source, &compiled(&source)?)?
            .tree(&workspace.guest_driver().join("provider"))?
            .tree(&workspace.guest_driver().join("include"))?
            .finish();
        let cache = workspace.cache()?;
        let overlay = cache.join(format!("programs-{}-{key}", base.key));
        if overlay.is_dir() {
            return Ok(Self { overlay });
        }
        let _lock = workspace.lock_cache()?;
        if overlay.is_dir() {
            return Ok(Self { overlay });
        }
        host::require_root("building the guests' test programs")?;
        let work = cache.join("guest-programs.work");
        let _ = fs::remove_dir_all(&work);
        copy_tree(&source, &work.join("source"))?;
        // Some use what the provider offers beyond libibverbs.
        driver::install_provider(workspace, base, &work.join("include"), &work.join("lib"))?;
        run_logged(
            "building the guests' test programs",
            &mut base.chroot(&work, "make -C /mnt/source OUT=/mnt/out FAULTLINE=/mnt"),
            &work.join("build.log"),
        )?;
        let target = work.join("overlay/usr/local/bin");
        fs::create_dir_all(&target).with_context(|| format!("creating {}", target.display()))?;
        for program in files_below(&work.join("out"))? {
            let name = program.file_name().unwrap_or_default();
            fs::copy(&program, target.join(name))
                .with_context(|| format!("copying {}", program.display()))?;
        }
        remove_others(&cache, &format!("programs-{}-", base.key))?;
        fs::rename(work.join("overlay"), &overlay)
            .with_context(|| format!("making {}", overlay.display()))?;
        Ok(Self { overlay })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_not_built() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("scripts")).unwrap();
        let names = ["Makefile", "README.md", "a.c", "b.h", "scripts/c.sh"];
        for name in names {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let sources = ["Makefile", "a.c", "b.h"].map(|name| dir.path().join(name));
        assert_eq!(compiled(dir.path()).unwrap(), sources);
    }
}
