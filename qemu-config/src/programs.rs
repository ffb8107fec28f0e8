//! The compiled programs of `tests/guest` and the examples of `guest-driver/examples`, built natively inside the unpacked guest root and
//! laid over every guest. The scripts are not built: the initial file system takes them from the source tree at each boot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::run_logged;
use crate::driver::{self, Provider, copy_tree};
use crate::image::Base;
use crate::workspace::{Fingerprint, Workspace, files_below};

/// Bumped when the way of building changes.
const RECIPE: &str = "6";
const BUILD: &str =
    r#"make -C /mnt/source -j"$(nproc)" OUT=/mnt/out FAULTLINE=/mnt EXAMPLES=/mnt/examples "$@""#;

/// The programs that guests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// All of them, and the modules of tests.
    All,
    /// These.
    Only(&'static [&'static str]),
}

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
    /// The programs, built if their sources have changed, with the provider, which some of them use.
    pub fn obtain(workspace: &Workspace, base: &Base, selection: Selection) -> Result<Self> {
        let source = workspace.root().join("tests/guest");
        let key = Fingerprint::new()
            .text(RECIPE)
            .files(&source, &compiled(&source)?)?
            .tree(&workspace.guest_driver().join("examples"))?
            .tree(&workspace.guest_driver().join("provider"))?
            .tree(&workspace.guest_driver().join("include"))?;
        let name = format!("programs-{}", base.key);
        let all = key.clone().finish();
        let (name, key, targets) = match selection {
            Selection::Only(programs)
                if !workspace.cache()?.join(format!("{name}-{all}")).is_dir() =>
            {
                let key = programs.iter().fold(key, |key, program| key.text(program));
                (format!("selected-{name}"), key.finish(), programs)
            }
            // Those that are there already serve too.
            _ => (name, all, &["all"][..]),
        };
        let overlay = driver::obtain(workspace, &name, &key, |overlay| {
            build(workspace, base, &name, targets, overlay)
        })?;
        Ok(Self { overlay })
    }
}

fn build(
    workspace: &Workspace,
    base: &Base,
    name: &str,
    targets: &[&str],
    overlay: &Path,
) -> Result<()> {
    let work = workspace.cache()?.join(format!("{name}.work"));
    let _ = fs::remove_dir_all(&work);
    copy_tree(&workspace.root().join("tests/guest"), &work.join("source"))?;
    copy_tree(
        &workspace.guest_driver().join("examples"),
        &work.join("examples"),
    )?;
    // Some use functions of the provider beyond libibverbs.
    Provider::obtain(workspace, base)?.copy(&work)?;
    let mut command = base.chroot(&work, BUILD);
    for target in targets {
        command.arg(match *target {
            "all" => "all".to_owned(),
            program => format!("/mnt/out/{program}"),
        });
    }
    run_logged(
        "building the guests' test programs",
        &mut command,
        &work.join("build.log"),
    )?;
    let target = overlay.join("usr/local/bin");
    fs::create_dir_all(&target).with_context(|| format!("creating {}", target.display()))?;
    for program in files_below(&work.join("out"))? {
        let name = program.file_name().unwrap_or_default();
        fs::copy(&program, target.join(name))
            .with_context(|| format!("copying {}", program.display()))?;
    }
    Ok(())
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
