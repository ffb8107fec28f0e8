//! The listening socket and its file.

use crate::device::Device;
use crate::ended::Ended;
use crate::server::serve;
use crate::socket::{Others, Shutdown, Stop, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, chmodat, chownat, fchmod, fstat, lstat, open, unlink,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::path::{Path, PathBuf};
use tracing::{info, warn};

/// Why the socket could not be created. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens on the path.
    #[error("socket {0} is in use by another process; stop it or choose another path")]
    InUse(PathBuf),
    /// The path exists and is not a socket. The file is not changed.
    #[error("{0} exists and is not a socket; remove it or choose another path")]
    NotASocket(PathBuf),
    /// The directory does not exist.
    #[error("the directory of {0} does not exist; create it first")]
    NoDirectory(PathBuf),
    /// No permission to create, remove or access the socket.
    #[error("no permission to create the socket {0}; check its owner and its directory's mode")]
    Permission(PathBuf),
    /// The path is too long for a socket address (sun_path of unix(7), 107 bytes).
    #[error("socket path {0} is longer than 107 bytes; choose a shorter one")]
    TooLong(PathBuf),
    /// The file system has no room for the file of a socket.
    #[error(
        "the file system of the socket {0} is full: see df and df -i; free some space or choose another path"
    )]
    Full(PathBuf),
    /// The socket could not be given to a group.
    #[error(
        "cannot give the socket {path} to group {group}: {errno}; run faultline as a member of this group, or as root"
    )]
    Group {
        /// The path.
        path: PathBuf,
        /// Number of the group.
        group: u32,
        /// The error number.
        errno: Errno,
    },
    /// Another error of the operating system.
    #[error("cannot listen on {path}: {errno}")]
    Os {
        /// The path.
        path: PathBuf,
        /// The error number.
        errno: Errno,
    },
}

impl ListenError {
    fn from_errno(path: &Path, errno: Errno) -> Self {
        let path = path.to_path_buf();
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NoDirectory(path),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Permission(path),
            Errno::NAMETOOLONG => Self::TooLong(path),
            Errno::NOSPC | Errno::DQUOT => Self::Full(path),
            Errno::ADDRINUSE | Errno::EXIST => Self::InUse(path),
            errno => Self::Os { path, errno },
        }
    }
}

/// A listening socket with mode 0600, or 0660 for a group. Dropping it removes the file, unless another process has replaced the file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, to detect that the file was replaced.
    identity: Option<(u64, u64)>,
}

/// Lets a group connect to a socket file of this process.
///
/// The file is opened first: a link or another file that has replaced it gets no other group and mode.
fn give_to_group(path: &Path, group: Gid) -> Result<(), ListenError> {
    let failed = |errno| ListenError::Group {
        path: path.to_path_buf(),
        group: group.as_raw(),
        errno,
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket(path.to_path_buf()));
    }
    // A sandbox may refuse the call, which is not needed for the group of the process.
    if stat.st_gid != group.as_raw() {
        chownat(&file, "", None, Some(group), AtFlags::EMPTY_PATH).map_err(failed)?;
    }
    // fchmod(2) refuses descriptors of O_PATH.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    chmodat(CWD, link, mode, AtFlags::empty()).map_err(failed)
}

/// Device and inode of a socket file; `None` if the file does not exist.
fn identity(path: &Path) -> Result<Option<(u64, u64)>, ListenError> {
    match lstat(path) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Socket => {
            Ok(Some((stat.st_dev, stat.st_ino)))
        }
        Ok(_) => Err(ListenError::NotASocket(path.to_path_buf())),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(ListenError::from_errno(path, errno)),
    }
}

fn new_socket(path: &Path) -> Result<OwnedFd, ListenError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| ListenError::from_errno(path, errno))
}

/// Connects to a socket on which a process listens.
pub(crate) fn connect_to(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

impl Listener {
    /// Listens on `path`, to which only the user of this process can connect. Replaces a socket file on which no process
    /// listens.
    ///
    /// # Errors
    ///
    /// [`ListenError`]. Except for a removed stale socket, an existing file is not changed.
    pub fn listen(path: impl Into<PathBuf>) -> Result<Self, ListenError> {
        Self::listen_for(path, None)
    }

    /// As [`Self::listen`]; members of `group` can connect as well.
    ///
    /// # Errors
    ///
    /// [`ListenError`]. Except for a removed stale socket, an existing file is not changed.
    pub fn listen_for(path: impl Into<PathBuf>, group: Option<Gid>) -> Result<Self, ListenError> {
        let path = path.into();
        let os = |errno| ListenError::from_errno(&path, errno);
        let address = SocketAddrUnix::new(&path).map_err(os)?;
        if let Some(found) = identity(&path)? {
            let probe = new_socket(&path)?;
            match connect(&probe, &address) {
                // EAGAIN: the backlog is full, so a process listens.
                Ok(()) | Err(Errno::AGAIN) => return Err(ListenError::InUse(path)),
                Err(Errno::CONNREFUSED) => {
                    // Another process may have replaced the file meanwhile; a short race remains.
                    if identity(&path)? == Some(found) {
                        info!("removing stale socket {}", path.display());
                        unlink(&path).map_err(os)?;
                    }
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(os(errno)),
            }
        }
        let socket = new_socket(&path)?;
        // Linux gives the file the mode of the socket's inode (less the umask, net/unix
        // unix_bind_bsd), so other users cannot access the file at any time.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(os)?;
        bind(&socket, &address).map_err(os)?;
        let identity = identity(&path)?;
        let listener = Self {
            socket,
            path,
            identity,
        };
        if let Some(group) = group {
            give_to_group(&listener.path, group)?;
        }
        listen(&listener.socket, 16)
            .map_err(|errno| ListenError::from_errno(&listener.path, errno))?;
        Ok(listener)
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves clients one after the other until `shutdown` is triggered.
    ///
    /// A second client that connects while another is attached is disconnected at once.
    pub fn serve(&self, device: &mut dyn Device, shutdown: &Shutdown) {
        self.each_client(shutdown, |stream, others| {
            serve(stream, device, shutdown, others)
        });
    }

    /// Calls `serve` for each client, as [`Listener::serve`] does.
    pub(crate) fn each_client(
        &self,
        shutdown: &Shutdown,
        mut serve: impl FnMut(OwnedFd, Others<'_>) -> Ended,
    ) {
        let reject = || match self.accept() {
            Ok(Some(stream)) => {
                warn!(
                    "{}: connection refused: another client is attached",
                    self.path.display()
                );
                drop(stream);
            }
            Ok(None) => {}
            Err(_) => pause(shutdown),
        };
        while !shutdown.is_triggered() {
            match wait(self.socket.as_fd(), PollFlags::IN, shutdown, None, None) {
                Ok(()) => {}
                Err(Stop::Shutdown) => return,
                Err(_) => pause(shutdown),
            }
            match self.accept() {
                Ok(Some(stream)) => {
                    let ended = serve(stream, Some((self.socket.as_fd(), &reject)));
                    info!(?ended, "{}: connection ended", self.path.display());
                }
                Ok(None) => {}
                Err(errno) => {
                    warn!(
                        "{}: cannot accept a connection: {errno}",
                        self.path.display()
                    );
                    pause(shutdown);
                }
            }
        }
    }

    fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(stream) => Ok(Some(stream)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Waits 100 ms or until `shutdown` is triggered: after an error, most likely too many open files,
/// an immediate retry would spin.
fn pause(shutdown: &Shutdown) {
    let mut fds = [PollFd::new(shutdown, PollFlags::IN)];
    let _ = poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        }),
    );
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path).ok().flatten() == self.identity {
            let _ = unlink(&self.path);
        }
    }
}
