//! The tests of Rust libraries for RDMA, as their authors have published them.
//!
//! Guests have no Rust. The host's cargo fetches a library and what it depends on, both pinned, and the host's tool chain builds the
//! test programs inside the guests' root, whose compiler and libraries they are linked with.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{capture, run_logged, step};
use crate::driver::{self, copy_tree};
use crate::host;
use crate::image::{self, Base};
use crate::workspace::{Fingerprint, Workspace};

const BUILD: &str = include_str!("../recipes/build-rust-library.sh");
/// The folder of the test programs in guests: one folder for each library.
const FOLDER: &str = "usr/local/lib/rust-libraries";
/// Programs of a tool chain that build others.
const PROGRAMS: &[&str] = &["bin/cargo", "bin/rustc", "bin/rustdoc"];
/// The folder of the tool chain's libraries, and the one of the libraries for linking programs.
const LIBRARIES: &str = "lib";
const TARGET: &str = "lib/rustlib/x86_64-unknown-linux-gnu";

/// A library of the Rust package registry. Its package has the lock file with which its tests are built.
struct Library {
    name: &'static str,
    version: &'static str,
    /// SHA-256 of the package.
    digest: &'static str,
    /// The commands of cargo that build them.
    builds: &'static [&'static str],
}

const ALL: &[Library] = &[
    // Without the test that compiles programs, which needs a compiler. The examples are those that its authors run as tests.
    Library {
        name: "sideway",
        version: "0.4.3",
        digest: "7669500361477013bc37bcf21f6c9cd6ffcf4839b6fbffb3cb9df11e30a78c3e",
        builds: &[
            "test --no-run --lib --test test_*",
            "build --example rc_pingpong_split --example cmtime",
        ],
    },
    // The features are those with which its authors run its tests. Its other test programs have no tests.
    Library {
        name: "async-rdma",
        version: "0.5.0",
        digest: "98d0ceeadfe6c2f1e07c7f44750e6a3c1f00bec489ad8aa25dd6da242dedbffa",
        builds: &[
            "test --no-run --lib --test atomic --test device --test imm --test loop --test mr_slice --test rmr_* --features cm,raw",
            "test --doc --features cm,raw",
            "test --no-run --test cancel_safety --features cancel_safety_test",
        ],
    },
];

/// The test programs of all libraries, as a tree to lay over a guest's root.
pub fn obtain(workspace: &Workspace, base: &Base) -> Result<PathBuf> {
    let mut key = Fingerprint::new().text(BUILD);
    for library in ALL {
        key = key.text(library.name).text(library.digest);
        key = library
            .builds
            .iter()
            .fold(key, |key, build| key.text(build));
    }
    let name = format!("rust-libraries-{}", base.key);
    driver::obtain(workspace, &name, &key.finish(), |overlay| {
        let work = workspace.cache()?.join(format!("{name}.work"));
        let _ = fs::remove_dir_all(&work);
        copy_tool_chain(&work.join("rust"))?;
        let libclang = host::libclang(workspace)?;
        fs::copy(&libclang, work.join("libclang.so"))
            .with_context(|| format!("copying {}", libclang.display()))?;
        for library in ALL {
            library.build(base, &work)?;
            let built = work.join(library.name).join("out");
            copy_tree(&built, &overlay.join(FOLDER).join(library.name))?;
        }
        fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))
    })
}

impl Library {
    /// Its name with its version, as archives and cargo have it.
    fn id(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Builds its test programs in the folder `name/out` of `work`.
    fn build(&self, base: &Base, work: &Path) -> Result<()> {
        let log = work.join(format!("{}.log", self.name));
        let source = work.join(self.name);
        self.unpack(&source, &log)?;
        run_logged(
            &format!("fetching what {} depends on (needs the network)", self.id()),
            cargo()
                .args(["vendor", "--quiet", "--locked"])
                .current_dir(&source),
            &log,
        )?;
        run_logged(
            &format!("building the tests of {}", self.id()),
            image::chroot(&base.root, Some(work), BUILD)
                .arg(self.name)
                .args(self.builds),
            &log,
        )
    }

    /// Fetches and unpacks its package.
    fn unpack(&self, source: &Path, log: &Path) -> Result<()> {
        let id = self.id();
        step(&format!("fetching {id} (needs the network)"), || {
            let package = format!("{}@{}", self.name, self.version);
            capture(cargo().args(["info", "--quiet", &package]))
        })?;
        let archive = self.archive()?;
        let found = capture(Command::new("sha256sum").arg(&archive))?;
        ensure!(
            found.starts_with(self.digest),
            "{} is another package than expected: {found}",
            archive.display()
        );
        fs::create_dir_all(source).with_context(|| format!("creating {}", source.display()))?;
        let mut tar = Command::new("tar");
        tar.args(["--strip-components=1", "--no-same-owner", "-C"])
            .arg(source)
            .arg("-xf")
            .arg(&archive);
        run_logged(&format!("unpacking {id}"), &mut tar, log)?;
        // Otherwise cargo looks for the workspace of which it is a member, and finds the project's.
        let manifest = source.join("Cargo.toml");
        let mut text = fs::read_to_string(&manifest)
            .with_context(|| format!("reading {}", manifest.display()))?;
        text.push_str("\n[workspace]\n");
        fs::write(&manifest, text).with_context(|| format!("writing {}", manifest.display()))
    }

    /// Where cargo has put its package: in a folder for each registry.
    fn archive(&self) -> Result<PathBuf> {
        let name = format!("{}.crate", self.id());
        let home = env::var_os("CARGO_HOME").map_or_else(
            || env::home_dir().unwrap_or_default().join(".cargo"),
            PathBuf::from,
        );
        let cache = home.join("registry/cache");
        for registry in fs::read_dir(&cache).with_context(|| {
            format!("reading the packages that cargo has in {}", cache.display())
        })? {
            let archive = registry?.path().join(&name);
            if archive.is_file() {
                return Ok(archive);
            }
        }
        bail!("cargo has not put {name} below {}", cache.display())
    }
}

/// Copies the parts of the host's tool chain that build programs.
fn copy_tool_chain(to: &Path) -> Result<()> {
    let printed = capture(Command::new("rustc").args(["--print", "sysroot"]))?;
    let from = Path::new(printed.trim());
    let mut files: Vec<PathBuf> = PROGRAMS.iter().map(PathBuf::from).collect();
    let libraries = from.join(LIBRARIES);
    for entry in
        fs::read_dir(&libraries).with_context(|| format!("reading {}", libraries.display()))?
    {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push(Path::new(LIBRARIES).join(entry.file_name()));
        }
    }
    for file in files {
        let (file, copy) = (from.join(&file), to.join(&file));
        if let Some(parent) = copy.parent() {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        fs::copy(&file, &copy).with_context(|| {
            format!(
                "copying {}: the lab needs a tool chain of rustup",
                file.display()
            )
        })?;
    }
    copy_tree(&from.join(TARGET), &to.join(TARGET))
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = include_str!("../../tests/guest/scripts/programs_libraries.sh");

    #[test]
    fn the_script_runs_the_built_programs() {
        for library in ALL {
            for build in library.builds {
                let words: Vec<&str> = build.split(' ').collect();
                for pair in words.windows(2) {
                    let ["--test" | "--example", name] = pair else {
                        continue;
                    };
                    let program = format!("{}/{}", library.name, name.trim_end_matches('*'));
                    assert!(SCRIPT.contains(&program), "{program}");
                }
            }
        }
    }
}
