//! Reports of threads that have ended.

use tokio::sync::mpsc::UnboundedSender;

/// Reports the end of a thread when it is dropped, which a panic does too.
#[derive(Debug)]
pub(super) struct EndReport {
    thread: String,
    /// `None`: nothing is to be reported.
    ends: Option<UnboundedSender<String>>,
}

impl EndReport {
    pub(super) fn new(thread: String, ends: UnboundedSender<String>) -> Self {
        Self {
            thread,
            ends: Some(ends),
        }
    }

    /// The thread ends because it was asked to.
    pub(super) fn withdraw(mut self) {
        self.ends = None;
    }
}

impl Drop for EndReport {
    fn drop(&mut self) {
        if let Some(ends) = &self.ends {
            // The receiver is dropped when the server is stopped.
            let _ = ends.send(std::mem::take(&mut self.thread));
        }
    }
}
