//! Flushes guest memory to the file behind it (FLUSH to persistence). msync(2) waits for a disk, so each NIC has its own
//! thread for it, and neither the engine nor other guests wait.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded};
use faultline_memory::PersistentRange;
use faultline_nic::Persist;

use crate::log::diagnostics::NicLog;
use crate::log::notice::Notice;
use crate::log::of_nic::{LogLimit, nic_span};

/// Largest number of queued requests of one NIC. A queue pair has one request at a time, unless it is reset before the
/// request is finished.
const MAX_WAITING: usize = 256;

/// A request of a queue pair to flush parts of memory.
#[derive(Debug)]
struct FlushRequest {
    qpn: u32,
    number: u64,
    parts: Vec<PersistentRange>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushed {
    /// The queue pair.
    pub(crate) qpn: u32,
    /// The number that [`Persist::Begun`] had.
    pub(crate) number: u64,
    /// False if the file system reported an error.
    pub(crate) succeeded: bool,
}

/// Delivers a result to the NIC; returns false if the engine has ended.
type Report = dyn Fn(Flushed) -> bool + Send + Sync;

/// Flushes memory for one NIC.
pub(crate) struct FlushWorker {
    /// Name of the NIC.
    nic: String,
    log: NicLog,
    report: Arc<Report>,
    /// Number of the last request. Not reset with the device, so that an old result is recognized.
    number: Cell<u64>,
    /// Queue of the thread, which the first request starts: few guests have memory that is backed by a file on a disk.
    requests: RefCell<Option<Sender<FlushRequest>>>,
}

impl fmt::Debug for FlushWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlushWorker")
            .field("nic", &self.nic)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl FlushWorker {
    /// The thread calls `report` once for each request that has begun.
    pub(crate) fn new(
        nic: &str,
        log: NicLog,
        report: impl Fn(Flushed) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            nic: nic.to_owned(),
            log,
            report: Arc::new(report),
            number: Cell::new(0),
            requests: RefCell::new(None),
        }
    }

    /// Begins to flush these parts for a queue pair.
    pub(crate) fn begin(&self, qpn: u32, parts: Vec<PersistentRange>) -> Persist {
        if parts.is_empty() {
            return Persist::Done;
        }
        let number = self.number.get().wrapping_add(1);
        let request = FlushRequest { qpn, number, parts };
        let requests = &mut *self.requests.borrow_mut();
        if requests.is_none() {
            *requests = self.start();
        }
        match requests.as_ref().map(|requests| requests.try_send(request)) {
            Some(Ok(())) => {
                self.number.set(number);
                Persist::Begun(number)
            }
            _ => Persist::Busy,
        }
    }

    /// Starts the thread. It ends when the NIC is dropped, after the requests in the queue.
    fn start(&self) -> Option<Sender<FlushRequest>> {
        let (tx, rx) = bounded(MAX_WAITING);
        let report = Arc::clone(&self.report);
        let thread = std::thread::Builder::new().name(format!("flush-{}", self.nic));
        let span = nic_span(&self.nic);
        let log = LogLimit::new();
        let thread = thread.spawn(move || span.in_scope(|| run(&rx, &*report, &log)));
        match thread {
            Ok(_) => Some(tx),
            Err(error) => {
                self.log.notice(Notice::NoFlushThread(error));
                None
            }
        }
    }
}

fn run(requests: &Receiver<FlushRequest>, report: &Report, log: &LogLimit) {
    for FlushRequest { qpn, number, parts } in requests {
        let failed = parts.iter().find_map(|part| part.sync().err());
        if let Some(error) = &failed
            && log.allows()
        {
            tracing::warn!("can't flush guest memory to its file, so the FLUSH fails: {error}");
        }
        // Unmaps the file if the guest has removed the map since.
        drop(parts);
        let flushed = Flushed {
            qpn,
            number,
            succeeded: failed.is_none(),
        };
        if !report(flushed) {
            return;
        }
    }
}
