//! The body of an answer whose parts come from another task.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc::Receiver;

/// Such a body. `T` is dropped with it: when all parts were sent, or the connection has ended.
pub struct Parts<T> {
    received: Receiver<Bytes>,
    _kept: T,
}

impl<T> Parts<T> {
    /// A body of the parts that a channel gives. `kept` is dropped with it.
    pub fn new(received: Receiver<Bytes>, kept: T) -> Self {
        Self {
            received,
            _kept: kept,
        }
    }
}

impl<T: Unpin> Body for Parts<T> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            match ready!(self.received.poll_recv(cx)) {
                Some(part) if part.is_empty() => {}
                part => return Poll::Ready(part.map(|part| Ok(Frame::data(part)))),
            }
        }
    }
}
