//! The step `scripts` of the suite `host`: shellcheck and ruff must find no errors in the project's shell and Python
//! files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::run_logged;
use crate::host;
use crate::workspace::{Workspace, files_below};

/// Folders in which each file is a script.
const PLACES: &[&str] = &[
    "tests/guest/scripts",
    "tests/scenarios/programs",
    "qemu-config/guest",
    "qemu-config/recipes",
    ".ci",
];

/// Scripts in other folders.
const FILES: &[&str] = &[
    "qemu-config/action/cache.sh",
    "qemu-config/action/example/make-package",
    "qemu-config/action/example/tests/rdma.sh",
    "qemu-config/action/run.sh",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Shell,
    Python,
}

/// Checks all scripts. The error has the findings.
pub fn check(workspace: &Workspace, dir: &Path) -> Result<()> {
    let (mut shell, mut python) = (Vec::new(), Vec::new());
    for (language, file) in scripts(workspace.root())? {
        match language {
            Language::Shell => shell.push(file),
            Language::Python => python.push(file),
        }
    }
    ensure!(
        !shell.is_empty() && !python.is_empty(),
        "the scripts are not where they were: {PLACES:?}"
    );
    host::ensure_linters(workspace)?;
    let log = dir.join("scripts.log");
    let mut shellcheck = Command::new("shellcheck");
    shellcheck.current_dir(workspace.root()).args(shell);
    let shell = run_logged("shellcheck", &mut shellcheck, &log);
    let mut ruff = Command::new(host::ruff(workspace)?);
    ruff.current_dir(workspace.root())
        .args(["check", "--no-cache"])
        .args(python);
    let python = run_logged("ruff", &mut ruff, &log);
    match (shell, python) {
        (Err(shell), Err(python)) => Err(python.context(format!("{shell:#}"))),
        (shell, python) => shell.and(python),
    }
}

/// The scripts of a source tree.
fn scripts(root: &Path) -> Result<Vec<(Language, PathBuf)>> {
    let mut files: Vec<PathBuf> = FILES.iter().map(|file| root.join(file)).collect();
    for place in PLACES {
        files.extend(files_below(&root.join(place))?);
    }
    let mut found = Vec::new();
    for file in files {
        let text =
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let first = text.lines().next().unwrap_or_default();
        match language(first) {
            Some(language) => found.push((language, file)),
            None => bail!(
                "{}: the first line must say which shell or Python runs it, not {first:?}",
                file.display()
            ),
        }
    }
    Ok(found)
}

/// The language that the first line of a script specifies.
fn language(first: &str) -> Option<Language> {
    let last = first.rsplit(['/', ' ', '=']).next()?;
    let is_script = first.starts_with("#!") || first.starts_with("# shellcheck shell=");
    match last {
        "sh" | "bash" if is_script => Some(Language::Shell),
        "python3" if is_script => Some(Language::Python),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_selects_the_language() {
        for first in [
            "#!/bin/bash",
            "#!/bin/busybox sh",
            "#!/usr/bin/env bash",
            "# shellcheck shell=bash",
        ] {
            assert_eq!(language(first), Some(Language::Shell), "{first}");
        }
        assert_eq!(language("#!/usr/bin/env python3"), Some(Language::Python));
        for first in ["", "bash", "#!/usr/bin/perl", "// bash"] {
            assert_eq!(language(first), None, "{first}");
        }
    }

    #[test]
    fn scripts_of_guests_are_found_and_can_be_run_by_name() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let all = scripts(&root).unwrap();
        let guests = root.join("tests/guest/scripts");
        let mut names: Vec<_> = all
            .iter()
            .filter(|(_, file)| file.starts_with(&guests))
            .filter_map(|(language, file)| {
                let extension = match language {
                    Language::Shell => "sh",
                    Language::Python => "py",
                };
                assert_eq!(file.extension().unwrap(), extension, "{}", file.display());
                let text = fs::read_to_string(file).unwrap();
                let second = text.lines().nth(1).unwrap_or_default();
                assert!(second.contains("SPDX-License"), "{}", file.display());
                file.file_stem()
            })
            .collect();
        assert!(names.len() > 20, "{names:?}");
        // They lose their extensions in a guest.
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        // Compiled programs are in the same folder there.
        for name in names {
            let program = root.join("tests/guest").join(name).with_extension("c");
            assert!(!program.exists(), "{}", program.display());
        }
    }
}
