//! The folders in which the lab finds the project and keeps its results.
//!
//! Caches live under `target/lab-cache/`, logs of runs under `target/lab/`, always in the repository's own `target/`
//! even when `CARGO_TARGET_DIR` points elsewhere: images are large and belong to one checkout.

use std::fs::{self, FileType};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::disk_space;

/// Runs whose logs are kept; older ones are removed when a new one starts.
const KEPT_RUNS: usize = 40;

/// The checkout this lab was built from.
#[derive(Debug, Clone)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the workspace from the crate's own folder (`cargo run` names it at run time).
    pub fn find() -> Result<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
            .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let start = PathBuf::from(manifest);
        let root = start
            .ancestors()
            .find(|dir| {
                dir.join(".cargo/config.toml").is_file() && dir.join("qemu-config").is_dir()
            })
            .with_context(|| format!("no workspace root above {}", start.display()))?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// One for tests, in an empty folder.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The repository's top folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `guest-driver/`, where the kernel module and the libibverbs provider are.
    pub fn guest_driver(&self) -> PathBuf {
        self.root.join("guest-driver")
    }

    /// The cache folder, created if it does not exist.
    pub fn cache(&self) -> Result<PathBuf> {
        let dir = self.root.join("target/lab-cache");
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(dir)
    }

    /// Makes a new numbered folder under `target/lab/` for one run's logs and removes the oldest ones. Fails if the disk is nearly full.
    pub fn new_run(&self, name: &str) -> Result<PathBuf> {
        let parent = self.root.join("target/lab");
        fs::create_dir_all(&parent).with_context(|| format!("creating {}", parent.display()))?;
        disk_space::ensure(&parent)?;
        let mut runs = numbered(&parent)?;
        let mut next = runs.last().map_or(1, |(number, _)| number + 1);
        while runs.len() >= KEPT_RUNS {
            let (_, old) = runs.remove(0);
            let _ = fs::remove_dir_all(&old);
        }
        // Two labs may start at once: the one that makes the folder has the number.
        for _ in 0..100 {
            let dir = parent.join(format!("{next:04}-{name}"));
            match fs::create_dir(&dir) {
                Ok(()) => {
                    let latest = parent.join("latest");
                    let _ = fs::remove_file(&latest);
                    let _ = std::os::unix::fs::symlink(&dir, &latest);
                    return Ok(dir);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => next += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("creating {}", dir.display()));
                }
            }
        }
        bail!("no free run number under {}", parent.display())
    }

    /// A lock held while a part of the cache is being built, so that it is not built twice at once. Other parts can be built at
    /// the same time.
    pub fn lock_cache(&self, part: &str) -> Result<fs::File> {
        let path = self.cache()?.join(format!("{part}.lock"));
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        if file.try_lock().is_err() {
            crate::command::say(format!(
                "waiting for another thread or process that builds {part} in the same cache"
            ));
            file.lock()
                .with_context(|| format!("locking {}", path.display()))?;
        }
        Ok(file)
    }

    /// A path relative to the repository, for messages.
    pub fn shown<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }
}

/// The folders named `NNNN-…` below `parent`, oldest first.
fn numbered(parent: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).with_context(|| format!("reading {}", parent.display()))? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.split_once('-'))
            .and_then(|(number, _)| number.parse::<u32>().ok());
        if let Some(number) = number {
            found.push((number, path));
        }
    }
    found.sort();
    Ok(found)
}

/// A content hash that names cache entries.
#[derive(Clone, Default)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// An empty fingerprint.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a string, delimited so that neighbours cannot run together.
    pub fn text(mut self, text: &str) -> Self {
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
        self
    }

    /// Adds every file below `dir`, by relative path, mode and content.
    pub fn tree(self, dir: &Path) -> Result<Self> {
        self.files(dir, &files_below(dir)?)
    }

    /// Adds some of the files below `dir`, like [`Self::tree`].
    pub fn files(mut self, dir: &Path, files: &[PathBuf]) -> Result<Self> {
        for path in files {
            let relative = path
                .strip_prefix(dir)
                .unwrap_or(path)
                .to_string_lossy()
                .into_owned();
            self = self.text(&relative).file(path)?;
        }
        Ok(self)
    }

    /// Adds one file's content.
    pub fn file(mut self, path: &Path) -> Result<Self> {
        let mut file =
            fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = file
                .read(&mut buffer)
                .with_context(|| format!("reading {}", path.display()))?;
            if length == 0 {
                return Ok(self);
            }
            self.0.update(buffer.get(..length).unwrap_or_default());
        }
    }

    /// Sixteen hexadecimal digits.
    pub fn finish(self) -> String {
        self.0
            .finalize()
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// Every regular file below `dir`, sorted by path.
pub fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    entries_below(dir, FileType::is_file)
}

/// All symbolic links below a folder, sorted.
pub fn links_below(dir: &Path) -> Result<Vec<PathBuf>> {
    entries_below(dir, FileType::is_symlink)
}

fn entries_below(dir: &Path, wanted: fn(&FileType) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("reading {}", next.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else if wanted(&kind) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_keeps_neighbours_apart() {
        let one = Fingerprint::new().text("ab").text("c").finish();
        let other = Fingerprint::new().text("a").text("bc").finish();
        assert_ne!(one, other);
        assert_eq!(one.len(), 16);
    }

    #[test]
    fn fingerprint_of_a_tree_sees_names_and_content() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        let first = Fingerprint::new().tree(dir.path()).unwrap().finish();
        fs::write(dir.path().join("a"), "2").unwrap();
        let second = Fingerprint::new().tree(dir.path()).unwrap().finish();
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        let third = Fingerprint::new().tree(dir.path()).unwrap().finish();
        assert_ne!(first, second);
        assert_ne!(second, third);
    }

    #[test]
    fn parts_of_the_cache_are_locked_on_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(dir.path());
        let root = workspace.lock_cache("root").unwrap();
        // Would block for ever if there were one lock.
        let _images = workspace.lock_cache("images").unwrap();
        let again = fs::File::open(dir.path().join("target/lab-cache/root.lock")).unwrap();
        assert!(again.try_lock().is_err());
        drop(root);
        assert!(again.try_lock().is_ok());
    }

    #[test]
    fn runs_are_numbered_upwards() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["0002-run", "0010-test", "latest", "x-1"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let numbers: Vec<u32> = numbered(dir.path())
            .unwrap()
            .into_iter()
            .map(|(number, _)| number)
            .collect();
        assert_eq!(numbers, [2, 10]);
    }
}
