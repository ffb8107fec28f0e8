//! Makes the parts from which a cluster is booted, each if its sources have changed: QEMU, the emulator, the image, and
//! the files that are laid over it.
//!
//! Independent parts are made at the same time: most of the time goes into compiling the emulator, and downloads run
//! beside it.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::command::say;
use crate::debug_kernel;
use crate::driver::{self, Driver, Provider, TestModules};
use crate::emulator::{self, Profile};
use crate::host;
use crate::image::{self, Base, Image, Kernel};
use crate::libraries;
use crate::programs::{Programs, Selection};
use crate::progress::{self, Item, Progress};
use crate::qemu::{self, Qemu};
use crate::upstream;
use crate::workspace::Workspace;

/// The steps of a first build, and the seconds that each takes beside the others on a machine with two processors.
const FIRST_BUILD: &[(&str, u64)] = &[
    (qemu::UNPACKING, 8),
    (image::BOOTSTRAP, 80),
    (image::PACKING, 8),
    ("indexing modules", 5),
];
/// The same for parts that depend on the guests' kernel; its name follows.
const FIRST_DRIVER: (&str, u64) = (driver::BUILDING, 35);
/// The same for the emulator.
const FIRST_EMULATOR: u64 = 200;
/// Shorter builds are not worth a line about their time.
const SHORT: Duration = Duration::from_secs(5);

/// Software of others that takes minutes to build. Guests get it only if a test needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LongBuild {
    /// Tests of Rust libraries.
    Libraries,
    /// The server of valkey, and its test client.
    Valkey,
}

/// What a cluster needs.
#[derive(Debug, Clone, Copy)]
pub struct Needs<'a> {
    /// The guests' kernel.
    pub kernel: Kernel,
    /// Packages to install on top of the base image.
    pub packages: &'a [String],
    /// Programs that are laid over it.
    pub programs: Selection,
    /// A disk that guests boot instead of the image.
    pub disk: Option<&'a Path>,
    /// The driver is laid over the image.
    pub driver: bool,
    /// So is software that Debian has as source only.
    pub upstream: bool,
    /// Further software that is laid over it.
    pub long_builds: &'a [LongBuild],
    /// The profile of the emulator, if there is one.
    pub emulator: Option<Profile>,
}

/// The parts from which a cluster is booted. The emulator is not here: [`emulator::build`] knows it.
#[derive(Debug)]
pub struct Prepared {
    /// QEMU.
    pub qemu: Qemu,
    /// The root that the image is made of.
    pub base: Base,
    /// The disk of the guests.
    pub disk: PathBuf,
    /// Folders whose files are added to the guests' initrd: programs, and the driver.
    pub overlays: Vec<PathBuf>,
}

/// Builds or downloads what is absent.
pub fn obtain(workspace: &Workspace, needs: &Needs<'_>) -> Result<Prepared> {
    // The user should know this before anything is built.
    host::check_packages()?;
    let started = Instant::now();
    // A run of tests has its own line.
    let line = (!progress::is_running())
        .then(|| -> Result<_> {
            Ok(Progress::start(
                &expected(workspace, needs)?,
                &workspace.cache()?,
            ))
        })
        .transpose()?;
    let prepared = thread::scope(|scope| {
        let emulator = needs
            .emulator
            .map(|profile| scope.spawn(move || shown(|| emulator::build(workspace, profile))));
        let rest = beside_the_emulator(workspace, needs);
        let Some(emulator) = emulator else {
            return rest;
        };
        if let Err(error) = &rest
            && !emulator.is_finished()
        {
            say(format!(
                "{error:#}\n(this is reported again when the build of the emulator has ended)"
            ));
        }
        joined(emulator.join()).and(rest)
    });
    let is_first = line.is_some() && started.elapsed() >= SHORT;
    drop(line);
    if is_first && prepared.is_ok() {
        say(format!(
            "everything is built, after {:.0} s",
            started.elapsed().as_secs_f64()
        ));
    }
    prepared
}

fn beside_the_emulator(workspace: &Workspace, needs: &Needs<'_>) -> Result<Prepared> {
    host::ensure_packages(workspace)?;
    thread::scope(|scope| {
        let qemu = scope.spawn(|| shown(|| Qemu::obtain(workspace)));
        let base = Base::obtain(workspace, needs.kernel.debian())?;
        debug_kernel::obtain(workspace, &base, needs.kernel)?;
        let (disk, overlays) = from_root(workspace, &base, needs)?;
        Ok(Prepared {
            qemu: joined(qemu.join())?,
            base,
            disk,
            overlays,
        })
    })
}

/// The disk, and the files that are laid over it.
fn from_root(
    workspace: &Workspace,
    base: &Base,
    needs: &Needs<'_>,
) -> Result<(PathBuf, Vec<PathBuf>)> {
    thread::scope(|scope| {
        let disk = scope.spawn(|| {
            shown(|| match needs.disk {
                Some(disk) => Ok(disk.to_owned()),
                None => Ok(Image::obtain(workspace, base, needs.packages)?.disk),
            })
        });
        let modules = scope.spawn(|| shown(|| modules(workspace, base, needs)));
        let mut overlays = vec![Programs::obtain(workspace, base, needs.programs)?.overlay];
        if needs.driver {
            overlays.push(Provider::obtain(workspace, base)?.overlay);
        }
        overlays.extend(joined(modules.join())?);
        Ok((joined(disk.join())?, overlays))
    })
}

fn modules(workspace: &Workspace, base: &Base, needs: &Needs<'_>) -> Result<Vec<PathBuf>> {
    let mut overlays = Vec::new();
    if needs.driver {
        overlays.push(Driver::obtain(workspace, base, needs.kernel)?.overlay);
        if needs.programs == Selection::All {
            overlays.push(TestModules::obtain(workspace, base, needs.kernel)?.overlay);
        }
    }
    if needs.upstream {
        overlays.extend(upstream::modules(workspace, base, needs.kernel)?);
        overlays.push(upstream::fabtests(workspace, base)?);
    }
    for build in needs.long_builds {
        overlays.push(match build {
            LongBuild::Libraries => libraries::obtain(workspace, base)?,
            LongBuild::Valkey => upstream::valkey(workspace, base)?,
        });
    }
    Ok(overlays)
}

/// The steps that are known to be ahead.
fn expected(workspace: &Workspace, needs: &Needs<'_>) -> Result<Vec<Item>> {
    let item = |name: &str, seconds| Item {
        name: name.to_owned(),
        least: seconds,
        is_test: false,
        beside: 2,
    };
    let mut items = Vec::new();
    if !Base::root(workspace, needs.kernel.debian())?.is_dir() {
        items.extend(
            FIRST_BUILD
                .iter()
                .map(|&(name, seconds)| item(name, seconds)),
        );
        let (name, seconds) = FIRST_DRIVER;
        items.push(item(&format!("{name}{}", needs.kernel.name()), seconds));
    }
    if let Some(profile) = needs.emulator
        && !emulator::binary(workspace, profile).is_file()
    {
        items.push(item(emulator::BUILDING, FIRST_EMULATOR));
    }
    Ok(items)
}

/// Lets the line of progress show the work of this thread.
fn shown<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _shown = progress::take_part();
    work()
}

fn joined<T>(ended: thread::Result<Result<T>>) -> Result<T> {
    ended.unwrap_or_else(|_| Err(anyhow!("a thread of the lab panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_expected_until_there_is_a_root() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(dir.path());
        let needs = Needs {
            kernel: Kernel::Stable,
            packages: &[],
            programs: Selection::All,
            disk: None,
            driver: true,
            upstream: false,
            long_builds: &[],
            emulator: None,
        };
        let names = || -> Vec<String> {
            let items = expected(&workspace, &needs).unwrap();
            items.into_iter().map(|item| item.name).collect()
        };
        let first = names();
        assert!(first.contains(&image::PACKING.to_owned()), "{first:?}");
        assert!(
            first.contains(&format!("{}stable", driver::BUILDING)),
            "{first:?}"
        );
        let root = Base::root(&workspace, needs.kernel.debian()).unwrap();
        std::fs::create_dir_all(root).unwrap();
        assert_eq!(names(), [""; 0]);
    }
}
