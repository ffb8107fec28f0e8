//! A stream with a time limit for writing.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Set if the time limits of a connection do not hold: it has the stream of a capture, whose reader may wait as long as it likes.
/// Requests carry it as an extension.
#[derive(Clone, Debug, Default)]
pub(crate) struct Endless(Arc<AtomicBool>);

impl Endless {
    /// Suspends the time limits until the connection ends.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream whose writes fail if the peer has taken nothing for some time.
pub(crate) struct Impatient<S> {
    stream: S,
    limit: Duration,
    endless: Endless,
    /// Exists while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(crate) fn new(stream: S, limit: Duration, endless: Endless) -> Self {
        Self {
            stream,
            limit,
            endless,
            waits: None,
        }
    }

    /// Passes on the result of a write. One that waits longer than the limit fails.
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() || self.endless.is_set() {
            self.waits = None;
            return result;
        }
        let limit = self.limit;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waits.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limited(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.limited(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_if_nothing_is_read() {
        let (mut near, far) = duplex(8);
        let mut far = Impatient::new(far, Duration::from_secs(5), Endless::default());
        far.write_all(&[1; 8]).await.unwrap();
        // Something is read before the time is over, again and again.
        let slow = async {
            for _ in 0..4 {
                sleep(Duration::from_secs(4)).await;
                let mut part = [0; 2];
                near.read_exact(&mut part).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(far.write_all(&[2; 8]), slow);
        written.unwrap();
        let start = tokio::time::Instant::now();
        let error = far.write_all(&[3]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}
