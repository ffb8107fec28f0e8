//! Files of command lines.
//!
//! Input is read up to a limit of bytes, and for a scenario only in its folder. Paths of results are checked before the work.

#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{Error, Read};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};

/// The path of a regular file in the folder of a scenario, or below, after symbolic links.
fn path_named_by(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let mut parts = Path::new(name).components();
    if !parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        let problem = "a scenario names files by paths relative to its folder, without `..`";
        return Err(Error::other(problem));
    }
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let path = folder.join(name).canonicalize()?;
    if !path.starts_with(folder.canonicalize()?) {
        return Err(Error::other("it is not in the folder of the scenario"));
    }
    // Other files may have no end, or wait for a writer.
    if !path.metadata()?.is_file() {
        return Err(Error::other("it is not a regular file"));
    }
    Ok(path)
}

/// The text of a file of at most `most` bytes that a scenario in this folder names.
///
/// # Errors
/// The file is not in the folder, is not a regular file, can't be read, is longer, or is not UTF-8.
pub fn read_named(folder: &Path, name: &str, most: usize) -> Result<String, Error> {
    read(&path_named_by(folder, name)?, most)
}

/// The text of a file of at most `most` bytes.
///
/// # Errors
/// It can't be read, is longer, or is not UTF-8.
pub fn read(path: &Path, most: usize) -> Result<String, Error> {
    read_text(File::open(path)?, most)
}

/// The text of an open file or pipe, at most `most` bytes.
///
/// # Errors
/// It can't be read, is longer, or is not UTF-8.
pub fn read_text(from: impl Read, most: usize) -> Result<String, Error> {
    String::from_utf8(read_bytes(from, most)?).map_err(Error::other)
}

/// The content of an open file or pipe, at most `most` bytes. The size of pipes and devices is unknown before they are
/// read.
///
/// # Errors
/// It can't be read, or is longer.
pub fn read_bytes(from: impl Read, most: usize) -> Result<Vec<u8>, Error> {
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    from.take(limit).read_to_end(&mut bytes)?;
    match bytes.len() <= most {
        true => Ok(bytes),
        false => Err(Error::other(format!("it has more than {most} bytes"))),
    }
}

/// Checks that a result can be written to a path, before the work. The file does not change.
///
/// # Errors
/// The file is a folder, or can't be opened or created for writing.
pub fn check_writable(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    // Not followed: opening a link whose target is absent would make it.
    let found = path.symlink_metadata();
    let opened = match (&found, path.metadata()) {
        (Ok(_), Ok(file)) if file.is_dir() => bail!("can't write {shown}: it is a directory"),
        (Ok(_), Ok(file)) if file.is_file() => OpenOptions::new().append(true).open(path),
        // Opening a FIFO waits for its reader.
        (Ok(_), _) => return Ok(()),
        (Err(_), _) => OpenOptions::new().write(true).create_new(true).open(path),
    };
    opened.with_context(|| format!("can't write {shown}"))?;
    if found.is_err() {
        std::fs::remove_file(path).with_context(|| format!("can't write {shown}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_for_results_is_checked_and_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new.xml");
        check_writable(&new).unwrap();
        assert!(!new.exists());
        fs::write(&new, "old").unwrap();
        check_writable(&new).unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), "old");
        let error = check_writable(&dir.path().join("absent/new.xml")).unwrap_err();
        assert!(format!("{error:#}").contains("absent/new.xml"), "{error:#}");
    }

    #[test]
    fn only_files_of_the_folder_are_read() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let folder = root.join("scenarios");
        fs::create_dir_all(folder.join("profiles")).unwrap();
        fs::write(root.join("secret.toml"), "secret").unwrap();
        fs::write(folder.join("profiles/own.toml"), "own").unwrap();
        symlink(folder.join("profiles/own.toml"), folder.join("inside.toml")).unwrap();
        symlink(root.join("secret.toml"), folder.join("outside.toml")).unwrap();
        symlink("/dev/zero", folder.join("zero.toml")).unwrap();
        let text = |name: &str| read_named(&folder, name, 3).map_err(|error| error.to_string());
        for name in ["profiles/own.toml", "./profiles/own.toml", "inside.toml"] {
            assert_eq!(text(name), Ok("own".to_owned()), "{name}");
        }
        let absolute = root.join("secret.toml").display().to_string();
        for (name, problem) in [
            ("../secret.toml", "without `..`"),
            ("profiles/../../secret.toml", "without `..`"),
            (&absolute, "without `..`"),
            ("outside.toml", "not in the folder"),
            ("zero.toml", "not in the folder"),
            ("profiles", "not a regular file"),
            ("none.toml", "No such file"),
        ] {
            let error = text(name).unwrap_err();
            assert!(error.contains(problem), "{name}: {error}");
        }
        let error = read_named(&folder, "inside.toml", 2).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 2 bytes");
        // A file of the command line may be any, and has an end.
        assert_eq!(read(&root.join("secret.toml"), 6).unwrap(), "secret");
        let error = read(Path::new("/dev/zero"), 100).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 100 bytes");
    }
}
