//! Free disk space, before a run: a full disk shows as a failure of whatever writes next.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::command::say;

const GIB: u64 = 1 << 30;
/// Without so much no guest can run: a run writes logs, recordings and the guests' own changes of the image.
const LEAST: u64 = GIB;
/// All suites, with the builds of a fresh clone, write less.
const AMPLE: u64 = 25 * GIB;

/// Fails if `folder`, or the folder of temporary files, is on a disk with less than a GiB free; says how much there is if it may be too
/// little for all suites.
pub fn ensure(folder: &Path) -> Result<()> {
    let mut disks = Vec::new();
    for folder in [folder, &std::env::temp_dir()] {
        let state = rustix::fs::statvfs(folder)
            .with_context(|| format!("reading the free space of {}", folder.display()))?;
        if disks.contains(&state.f_fsid) {
            continue;
        }
        disks.push(state.f_fsid);
        if let Some(notice) = judge(folder, state.f_bavail.saturating_mul(state.f_frsize))? {
            say(notice);
        }
    }
    Ok(())
}

fn judge(folder: &Path, free: u64) -> Result<Option<String>> {
    let folder = folder.display();
    let gib = free as f64 / GIB as f64;
    if free < LEAST {
        bail!("only {gib:.1} GiB are free on the disk of {folder}; a run needs more");
    }
    let notice = format!(
        "{gib:.1} GiB are free on the disk of {folder}; all suites with their builds need up to {} GiB",
        AMPLE / GIB
    );
    Ok((free < AMPLE).then_some(notice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_space_is_said_and_too_little_is_an_error() {
        let folder = Path::new("/folder");
        assert_eq!(judge(folder, AMPLE).unwrap(), None);
        let notice = judge(folder, 3 * GIB + GIB / 2).unwrap().unwrap();
        assert!(
            notice.starts_with("3.5 GiB are free on the disk of /folder;"),
            "{notice}"
        );
        assert!(judge(folder, LEAST).unwrap().is_some());
        let error = judge(folder, LEAST - 1).unwrap_err().to_string();
        assert!(error.contains("only 1.0 GiB"), "{error}");
    }

    #[test]
    fn the_space_of_real_folders_is_found() {
        ensure(&std::env::temp_dir()).unwrap();
        let error = ensure(Path::new("/absent/folder")).unwrap_err();
        assert!(error.to_string().contains("/absent/folder"), "{error}");
    }
}
