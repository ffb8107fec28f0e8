//! Requests to an engine, and its wake-up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;

use crate::engines::sleep::{self, Processor};

type Request<E> = Box<dyn FnOnce(&mut E) + Send>;

#[derive(Debug)]
struct Shared {
    asleep: AtomicBool,
    /// A request was sent since the last look of the engine. The engine reads this in each pass, because reading the
    /// channel costs more.
    has_requests: AtomicBool,
    wake: OwnedFd,
}

impl Shared {
    /// Announces requests that were sent. The flag is exchanged, not stored: the engine exchanges it back, and so sees all requests that
    /// any thread has sent before.
    fn announce(&self) {
        self.has_requests.swap(true, Ordering::AcqRel);
    }
}

/// Wakes an engine that sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<Shared>);

impl Waker {
    /// Wakes the engine after work for it was queued. Begins with a full barrier.
    pub(crate) fn wake(&self) {
        sleep::wake::<Processor>(&self.0.asleep, || {
            // If the counter is full, the engine wakes anyway.
            let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
        });
    }
}

/// Sends requests to an engine.
#[derive(Debug)]
pub struct Handle<E> {
    requests: Sender<Request<E>>,
    waker: Waker,
}

impl<E> Clone for Handle<E> {
    fn clone(&self) -> Self {
        Self {
            requests: self.requests.clone(),
            waker: self.waker.clone(),
        }
    }
}

/// The engine has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the engine has ended")]
pub struct Ended;

/// The result of a request, which comes later.
#[derive(Debug)]
pub(crate) struct Reply<R>(Receiver<R>);

impl<R> Reply<R> {
    /// Waits for it.
    pub(crate) fn wait(self) -> Result<R, Ended> {
        self.0.recv().map_err(|_| Ended)
    }
}

impl<E> Handle<E> {
    /// Runs `work` in the engine, between two steps, and returns its result.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut E) -> R + Send + 'static,
    ) -> Result<R, Ended> {
        self.ask(work)?.wait()
    }

    /// Queues `work` to run in the engine, between two steps.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut E) -> R + Send + 'static,
    ) -> Result<Reply<R>, Ended> {
        let (tx, rx) = bounded(1);
        self.post(move |engine| {
            let _ = tx.send(work(engine));
        })?;
        Ok(Reply(rx))
    }

    /// Queues `work` to run in the engine, between two steps, and does not wait for it.
    pub fn post(&self, work: impl FnOnce(&mut E) + Send + 'static) -> Result<(), Ended> {
        self.requests.send(Box::new(work)).map_err(|_| Ended)?;
        self.waker.0.announce();
        self.waker.wake();
        Ok(())
    }

    /// A handle that wakes the engine.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// The engine's end of the channel: requests, and the wait for them.
#[derive(Debug)]
pub(crate) struct Requests<E> {
    requests: Receiver<Request<E>>,
    shared: Arc<Shared>,
}

/// Makes both ends for an engine.
pub(crate) fn pair<E>() -> std::io::Result<(Handle<E>, Requests<E>)> {
    let (tx, rx) = unbounded();
    let shared = Arc::new(Shared {
        asleep: AtomicBool::new(false),
        has_requests: AtomicBool::new(false),
        wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
    });
    let handle = Handle {
        requests: tx,
        waker: Waker(Arc::clone(&shared)),
    };
    let requests = Requests {
        requests: rx,
        shared,
    };
    Ok((handle, requests))
}

/// Where the engine looks for requests before it takes any.
#[derive(Debug)]
pub(crate) struct RequestLook(Arc<Shared>);

impl RequestLook {
    /// True if there may be requests.
    #[inline]
    pub(crate) fn may_wait(&self) -> bool {
        self.0.has_requests.load(Ordering::Relaxed)
    }
}

impl<E> Requests<E> {
    /// Where to look whether requests wait.
    pub(crate) fn look(&self) -> RequestLook {
        RequestLook(Arc::clone(&self.shared))
    }

    /// Makes [`RequestLook::may_wait`] true.
    pub(crate) fn look_again(&self) {
        self.shared.announce();
    }

    /// Number of requests that wait now. Those that come later are announced again by [`RequestLook::may_wait`].
    pub(crate) fn count(&self) -> usize {
        // A request that is sent after this sets the flag again.
        self.shared.has_requests.swap(false, Ordering::AcqRel);
        self.requests.len()
    }

    /// The next request.
    pub(crate) fn take(&self) -> Result<Request<E>, TryRecvError> {
        self.requests.try_recv()
    }

    /// Publishes whether the engine sleeps.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.shared.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Waits until the engine is woken, or the time is over. A wake-up since the last wait ends this one at once. Returns true if the
    /// time is over.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let spec = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.shared.wake, PollFlags::IN)];
        let is_over = poll(&mut fds, Some(&spec)) == Ok(0);
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        is_over
    }
}
