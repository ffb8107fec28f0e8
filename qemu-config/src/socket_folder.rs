//! Folders of sockets and initrds. They are in the folder of temporary files, because the path of a socket is short (unix(7)).

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Waits for the end of the lab, also by a signal that it cannot handle, and removes the folder.
const WATCH: &str = "trap '' INT TERM HUP; read -r _; rm -rf -- \"$1\"";

/// A folder that is removed with this value, or when this process has ended.
#[derive(Debug)]
pub struct SocketFolder {
    folder: TempDir,
    watch: Child,
    /// The end of this pipe wakes `watch`.
    pipe: Option<ChildStdin>,
}

impl SocketFolder {
    /// Makes a folder.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("lab-")
            .tempdir()
            .context("making a folder for sockets")?;
        let mut watch = Command::new("sh");
        watch.args(["-c", WATCH, "sh"]).arg(folder.path());
        // Ctrl-C in the terminal of the lab is not for it.
        watch.process_group(0);
        watch
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut watch = watch.spawn().context("starting sh")?;
        let pipe = watch.stdin.take();
        Ok(Self {
            folder,
            watch,
            pipe,
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        drop(self.pipe.take());
        // It is no error if the folder was removed before.
        let _ = self.watch.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// The folder of a process that is killed is removed, too.
    #[test]
    fn a_folder_is_removed_when_its_process_has_ended() {
        let folder = SocketFolder::new().unwrap();
        let path = folder.path().to_owned();
        fs::write(path.join("initrd0"), "large").unwrap();
        drop(folder);
        assert!(!path.exists());
        let mut killed = SocketFolder::new().unwrap();
        let path = killed.path().to_owned();
        fs::write(path.join("initrd0"), "large").unwrap();
        // As the kernel closes the pipe of a process that was killed.
        drop(killed.pipe.take());
        let start = Instant::now();
        while path.exists() {
            assert!(start.elapsed() < LONG, "it is not removed");
            sleep(Duration::from_millis(5));
        }
    }
}
