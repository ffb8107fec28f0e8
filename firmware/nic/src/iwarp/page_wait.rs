//! Waits of outgoing data for pages.

use crate::fault::Token;

/// The memory of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageOf {
    /// The buffer of a READ or atomic that has not begun.
    Landing,
    /// The data of the work request with this index.
    Data(u32),
    /// The memory that a READ of the peer names.
    Source,
}

/// A wait for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageWait {
    pub token: Token,
    pub of: PageOf,
    /// Offset of the stream after the FPDU that waits. When the peer has acknowledged it (it had been sent before), nothing waits any more.
    /// Maximal for a request that has not begun.
    pub until: u64,
}
