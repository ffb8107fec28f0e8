//! The step `workflows` of the suite `host`: actionlint must find no errors in the workflow of this repository, in that of
//! the example of another repository, and in the steps of the action.
//!
//! actionlint reads workflows. Of an action it reads only which inputs it has, so the steps are checked as those of a
//! reusable workflow with the same inputs. The step also fails if actionlint does not find errors that are made on purpose.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::run_logged;
use crate::host;
use crate::workspace::{Workspace, files_below};

/// The action, and how a workflow of another repository refers to it.
pub const ACTION: &str = "qemu-config/action/action.yml";
pub const FROM_ELSEWHERE: &str = "OWNER/faultline/qemu-config/action@main";
/// The workflow of the example.
pub const EXAMPLE: &str = "qemu-config/action/example/.github/workflows/rdma.yml";

/// Errors in the action: the correct text, and the wrong one that actionlint must refuse.
const ERRORS_OF_ACTION: &[(&str, &str)] = &[
    ("shell: bash", "shel: bash"),
    ("inputs.kernel", "inputs.kernels"),
    ("steps.lab.outputs", "steps.labs.outputs"),
];
/// The same in the workflow of the example.
const ERRORS_OF_WORKFLOW: &[(&str, &str)] = &[
    ("runs-on:", "run-on:"),
    ("if: always()", "if: alway()"),
    // Inputs of the action of this repository.
    ("packages:", "package:"),
    ("script:", "skript:"),
];

/// Checks all of them, and that errors are found; `dir` gets the files that are not of the repository. The error has the
/// findings.
pub fn check(workspace: &Workspace, dir: &Path) -> Result<()> {
    let root = workspace.root();
    let read =
        |path| fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    let mut files = files_below(&root.join(".github/workflows"))?;
    ensure!(
        !files.is_empty(),
        "there is no workflow in .github/workflows"
    );
    let made = [
        ("action.yml", as_workflow(&read(ACTION)?)?, ERRORS_OF_ACTION),
        (
            "example.yml",
            with_action_of_tree(&read(EXAMPLE)?)?,
            ERRORS_OF_WORKFLOW,
        ),
    ];
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    };
    for (name, text, _) in &made {
        files.push(write(name, text)?);
    }
    host::ensure_linters(workspace)?;
    actionlint(workspace, &files, &dir.join("workflows.log"))?;
    for (name, text, errors) in &made {
        for (right, wrong) in *errors {
            ensure!(text.contains(right), "{name} does not contain {right:?}");
            let file = write("wrong.yml", &text.replace(right, wrong))?;
            let found = actionlint(workspace, &[file], &dir.join("workflows-wrong.log"));
            ensure!(found.is_err(), "actionlint accepts {wrong:?} in {name}");
        }
    }
    Ok(())
}

/// Runs actionlint in the root of the repository, where it finds the action.
fn actionlint(workspace: &Workspace, files: &[PathBuf], log: &Path) -> Result<()> {
    let mut actionlint = Command::new(host::actionlint(workspace)?);
    actionlint
        .current_dir(workspace.root())
        .args(["-no-color", "-oneline"])
        .args(files);
    run_logged("actionlint", &mut actionlint, log)
}

/// A reusable workflow with the inputs and the steps of a composite action.
fn as_workflow(action: &str) -> Result<String> {
    let (head, steps) = action
        .split_once("runs:\n  using: composite\n  steps:\n")
        .context("action.yml has no steps of a composite action")?;
    let (_, inputs) = head
        .split_once("\ninputs:\n")
        .context("action.yml has no inputs")?;
    let mut workflow = String::from("on:\n  workflow_call:\n    inputs:\n");
    for line in inputs.lines() {
        workflow.push_str(&format!("    {line}\n"));
        let is_name = line.starts_with("  ") && !line.starts_with("   ");
        if is_name {
            // An action's inputs are strings; a workflow has to say so.
            workflow.push_str("        type: string\n");
        }
    }
    workflow.push_str("jobs:\n  action:\n    runs-on: ubuntu-latest\n    steps:\n");
    for line in steps.lines() {
        workflow.push_str(&format!("  {line}\n"));
    }
    Ok(workflow)
}

/// A workflow of another repository, with the action of this tree.
fn with_action_of_tree(workflow: &str) -> Result<String> {
    ensure!(
        workflow.contains(FROM_ELSEWHERE),
        "{EXAMPLE} does not use {FROM_ELSEWHERE}"
    );
    let (folder, _) = ACTION.rsplit_once('/').unwrap_or_default();
    Ok(workflow.replace(FROM_ELSEWHERE, &format!("./{folder}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPOSITE: &str = "name: x\ninputs:\n  script:\n    required: true\nruns:\n  using: composite\n  steps:\n    \
                          - run: ${{ inputs.script }}\n      shell: bash\n";

    #[test]
    fn the_steps_of_an_action_become_a_workflow() {
        assert_eq!(
            as_workflow(COMPOSITE).unwrap(),
            "on:\n  workflow_call:\n    inputs:\n      script:\n        type: string\n        required: true\njobs:\n  \
             action:\n    runs-on: ubuntu-latest\n    steps:\n      - run: ${{ inputs.script }}\n        shell: bash\n"
        );
        assert!(as_workflow("name: x\nruns:\n  using: node24\n").is_err());
    }

    #[test]
    fn the_action_of_the_tree_takes_the_place_of_the_published_one() {
        let workflow = format!("steps:\n  - uses: {FROM_ELSEWHERE}\n");
        assert_eq!(
            with_action_of_tree(&workflow).unwrap(),
            "steps:\n  - uses: ./qemu-config/action\n"
        );
        assert!(with_action_of_tree("steps:\n").is_err());
    }

    /// A source tree with one file in each folder of which programs and guests are made, the script, and a document.
    fn tree_with_cache_script() -> tempfile::TempDir {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tree = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = tree.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for file in SOURCES {
            write(file, file);
        }
        write("docs/install.md", "");
        for file in ["rust-toolchain.toml", CACHE_SCRIPT] {
            write(file, "");
            fs::copy(root.join(file), tree.path().join(file)).unwrap();
        }
        tree
    }

    const CACHE_SCRIPT: &str = "qemu-config/action/cache.sh";
    const SOURCES: [&str; 8] = [
        ".cargo/config.toml",
        "Cargo.lock",
        "Cargo.toml",
        "device/a/src/lib.rs",
        "firmware/a/src/lib.rs",
        "guest-driver/kernel/a.c",
        "qemu-config/src/a.rs",
        "tests/guest/a.c",
    ];

    /// The script's output in a tree.
    fn cache_script(tree: &Path, arguments: &[&str], packages: &str) -> String {
        let mut command = Command::new("bash");
        let command = command.arg(tree.join(CACHE_SCRIPT)).args(arguments).envs([
            ("RUNNER_ARCH", "X64"),
            ("FAULTLINE_KERNEL", "stable"),
            ("FAULTLINE_PACKAGES", packages),
        ]);
        crate::command::capture(command).unwrap()
    }

    #[test]
    fn keys_of_caches_change_with_their_contents() {
        let tree = tree_with_cache_script();
        let root = tree.path();
        let keys = |packages| {
            let output = cache_script(root, &["keys"], packages);
            let pairs = output.lines().map(|line| line.split_once('=').unwrap());
            let keys: Vec<_> = pairs.map(|(_, value)| value.to_owned()).collect();
            <[String; 4]>::try_from(keys).unwrap()
        };
        let [target, sources, programs, guests] = keys("a,b");
        assert_eq!(
            Path::new(&target),
            root.canonicalize().unwrap().join("target")
        );
        assert!(
            programs.starts_with("faultline-programs-X64-1."),
            "{programs}"
        );
        assert!(
            guests.starts_with("faultline-guests-X64-stable-"),
            "{guests}"
        );
        assert!(!guests.contains(','));
        let [_, same, same_programs, others] = keys("a");
        assert_eq!((&same, &same_programs), (&sources, &programs));
        assert_ne!(others, guests);
        fs::write(root.join("docs/install.md"), "x").unwrap();
        assert_eq!(keys("a")[1], sources);
        for file in SOURCES {
            fs::write(root.join(file), "other").unwrap();
            assert_ne!(keys("a")[1], sources, "{file}");
            fs::write(root.join(file), file).unwrap();
        }
        assert_eq!(keys("a")[1], sources);
    }

    #[test]
    fn sources_are_older_than_programs_that_were_made_of_them() {
        let tree = tree_with_cache_script();
        let root = tree.path();
        let program = std::time::SystemTime::now();
        let is_newer =
            |file: &str| fs::metadata(root.join(file)).unwrap().modified().unwrap() > program;
        cache_script(root, &["date", "true"], "");
        assert!(!SOURCES.iter().any(|file| is_newer(file)));
        for hit in ["false", ""] {
            cache_script(root, &["date", hit], "");
            assert!(SOURCES.iter().all(|file| is_newer(file)));
            cache_script(root, &["date", "true"], "");
        }
    }
}
