//! Sends and receives messages with descriptors over a stream socket. A shutdown interrupts both.

use crate::protocol::MAX_MSG_FDS;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Instant;

/// The process at the other end of a socket when it was connected; `None` if this system does not see it (unix(7), SO_PEERCRED).
pub(crate) fn peer_process(stream: &impl AsFd) -> Option<i32> {
    // For a process in another PID namespace the kernel returns 0, which the type of `rustix` cannot represent.
    let peer = getsockopt(stream, PeerCredentials).ok()?;
    Some(peer.pid()).filter(|pid| *pid > 0)
}

/// Stops servers from another thread. All clones share one state, which stays triggered.
#[derive(Debug, Clone)]
pub struct Shutdown(Arc<OwnedFd>);

impl Shutdown {
    /// Creates a shutdown that is not triggered.
    ///
    /// # Errors
    ///
    /// The error of eventfd(2).
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(Arc::new(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?)))
    }

    /// Makes every server with a clone of this shutdown return.
    pub fn trigger(&self) {
        // Fails only if the counter is at its maximum: the shutdown is triggered already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// True after [`Shutdown::trigger`].
    pub fn is_triggered(&self) -> bool {
        let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
        matches!(
            poll(
                &mut fds,
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 0
                })
            ),
            Ok(1..)
        )
    }
}

impl AsFd for Shutdown {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Why a transfer did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// End of file before the first byte.
    Eof,
    /// End of file after the first byte.
    Truncated,
    /// The shutdown was triggered.
    Shutdown,
    /// The start of the next message is unknown.
    Desynchronized,
    /// The deadline has passed.
    Late,
    /// The device behind a relay has changed.
    Changed,
    /// The socket failed.
    Io(Errno),
}

/// Descriptors that the receive buffer holds: more than allowed, so that an excess descriptor is
/// received instead of truncated.
const RECV_FDS: usize = 4 * MAX_MSG_FDS;

/// A listening socket, and the function to call when another client connects to it.
pub(crate) type Others<'a> = Option<(BorrowedFd<'a>, &'a dyn Fn())>;

/// The time from now until `at` for poll(2), not less than 0.
pub(crate) fn time_until(at: Instant) -> Timespec {
    let left = at.saturating_duration_since(Instant::now());
    Timespec::try_from(left).unwrap_or(Timespec {
        tv_sec: i64::from(i32::MAX),
        tv_nsec: 0,
    })
}

/// Waits until `fd` is ready for `flags`, the shutdown is triggered, or the deadline has passed. Calls the function in
/// `listener` each time its socket is readable.
pub(crate) fn wait(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    shutdown: &Shutdown,
    listener: Others<'_>,
    deadline: Option<Instant>,
) -> Result<(), Stop> {
    wait_any([(fd, flags)], shutdown, listener, deadline).map(|_| ())
}

fn is_ready(polled: &PollFd<'_>) -> bool {
    !polled.revents().is_empty()
}

/// Waits until one of these is ready, or for this time.
fn look(polled: &mut [PollFd<'_>], most: Option<Timespec>) -> Result<(), Stop> {
    match poll(polled, most.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Stop::Io(errno)),
    }
}

/// The same for several descriptors. Says which are ready.
pub(crate) fn wait_any<const N: usize>(
    fds: [(BorrowedFd<'_>, PollFlags); N],
    shutdown: &Shutdown,
    listener: Others<'_>,
    deadline: Option<Instant>,
) -> Result<[bool; N], Stop> {
    loop {
        let mut polled: Vec<PollFd<'_>> = fds
            .iter()
            .map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags))
            .collect();
        polled.push(PollFd::new(shutdown, PollFlags::IN));
        if let Some((socket, _)) = &listener {
            polled.push(PollFd::new(socket, PollFlags::IN));
        }
        let left = deadline.map(time_until);
        look(&mut polled, left)?;
        if polled.get(N.saturating_add(1)).is_some_and(is_ready) {
            // The descriptors are looked at one after the other: a client may have left after it was looked at, and the next one may have
            // come before the listener was.
            look(&mut polled, Some(Timespec::default()))?;
        }
        let is_ready = |at: usize| polled.get(at).is_some_and(is_ready);
        if is_ready(N) {
            return Err(Stop::Shutdown);
        }
        let ready = std::array::from_fn(is_ready);
        if ready.contains(&true) {
            return Ok(ready);
        }
        if let Some((_, on_readable)) = &listener
            && is_ready(N.saturating_add(1))
        {
            on_readable();
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            return Err(Stop::Late);
        }
    }
}

/// One connection.
pub(crate) struct Connection<'a> {
    pub stream: OwnedFd,
    pub shutdown: &'a Shutdown,
    pub listener: Others<'a>,
    /// When waiting ends with [`Stop::Late`].
    pub deadline: Option<Instant>,
    /// Descriptors of the message that is being received.
    pub fds: Vec<OwnedFd>,
    /// True if descriptors were lost (too many in the message, or too many open in this process).
    pub fds_lost: bool,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(stream: OwnedFd, shutdown: &'a Shutdown, listener: Others<'a>) -> Self {
        Self {
            stream,
            shutdown,
            listener,
            deadline: None,
            fds: Vec::new(),
            fds_lost: false,
        }
    }

    /// Receives until `buf` is full and collects descriptors in `fds`.
    pub(crate) fn recv_exact(&mut self, buf: &mut [u8]) -> Result<(), Stop> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.recv_some(rest) {
                Ok(0) => {
                    return Err(if done == 0 {
                        Stop::Eof
                    } else {
                        Stop::Truncated
                    });
                }
                Ok(n) => done = done.saturating_add(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(
                    self.stream.as_fd(),
                    PollFlags::IN,
                    self.shutdown,
                    self.listener,
                    self.deadline,
                )?,
                // A client that exits with unread replies in its socket causes a reset.
                Err(Errno::CONNRESET) if done == 0 => return Err(Stop::Eof),
                Err(errno) => return Err(Stop::Io(errno)),
            }
        }
        Ok(())
    }

    fn recv_some(&mut self, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECV_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(buf)],
            &mut control,
            flags,
        )?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                // Keep one more than allowed, so that the message is refused; close the rest.
                for fd in fds {
                    if self.fds.len() <= MAX_MSG_FDS {
                        self.fds.push(fd);
                    }
                }
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            self.fds_lost = true;
        }
        Ok(got.bytes)
    }

    /// Receives and discards `len` bytes.
    pub(crate) fn drain(&mut self, len: u32) -> Result<(), Stop> {
        let mut scratch = [0u8; 4096];
        let mut left = len as usize;
        while left > 0 {
            let step = left.min(scratch.len());
            if let Some(buf) = scratch.get_mut(..step) {
                self.recv_exact(buf).map_err(eof_inside_message)?;
            }
            left = left.saturating_sub(step);
        }
        Ok(())
    }

    /// Sends a complete message and its descriptors, at most [`MAX_MSG_FDS`].
    pub(crate) fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Stop> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MSG_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && done == 0 && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Stop::Io(Errno::NOBUFS));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.stream, &[IoSlice::new(rest)], &mut control, flags) {
                Ok(n) => done = done.saturating_add(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait(
                    self.stream.as_fd(),
                    PollFlags::OUT,
                    self.shutdown,
                    self.listener,
                    self.deadline,
                )?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Stop::Eof),
                Err(errno) => return Err(Stop::Io(errno)),
            }
        }
        Ok(())
    }
}

/// Converts [`Stop::Eof`] after the header of a message to [`Stop::Truncated`].
pub(crate) fn eof_inside_message(stop: Stop) -> Stop {
    if stop == Stop::Eof {
        Stop::Truncated
    } else {
        stop
    }
}
